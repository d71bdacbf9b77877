"""Models of a project's own that Accelerate's FSDP2 asks for their embeddings, and that have no answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_paths, scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

YAML = "distributed_type: {}\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
TRAIN = (
    "from accelerate import Accelerator\nfrom model import Net\n\n\n"
    "accelerator = Accelerator()\nmodel = accelerator.prepare(Net())\n"
)
NET = (
    "from torch import nn\nfrom transformers import PreTrainedModel\n\n\nclass Net({}):\n"
    "    def __init__(self, config):\n        super().__init__(config)\n"
    "        self.{} = nn.Embedding(2, 2)\n\n"
    "    def {}(self{}):\n        return self.words\n"
)
FORWARD = ("forward", ", x")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (NET.format("PreTrainedModel", "words", *FORWARD), "def get_input_embeddings(self)"),
        (NET.format("PreTrainedModel", "words", "get_input_embeddings", ", ids"), "without an argument"),
        (NET.format("nn.Module", "words", "get_output_embeddings", ", *, ids"), "without an argument"),
        (NET.format("PreTrainedModel", "words", "get_input_embeddings", ""), ""),
        (NET.format("PreTrainedModel", "words", "get_input_embeddings", ", ids=None"), ""),
        (NET.format("PreTrainedModel", "embed_tokens", *FORWARD), ""),
        (NET.format("nn.Module", "words", *FORWARD), ""),
        (NET.format("LlamaPreTrainedModel", "words", *FORWARD), ""),
        (f"{NET.format('PreTrainedModel', 'words', *FORWARD)}    base_model_prefix = 'net'\n", ""),
        (f"{NET.format('PreTrainedModel', 'words', *FORWARD)}\n\nclass More(Net):\n    pass\n", ""),
    ],
)
def test_models_that_have_no_answer(tmp_path: Path, made: str, said: str) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "model.py").write_text(made)
    for kind, expected in (("FSDP", bool(said)), ("MULTI_GPU", False)):
        (tmp_path / "fsdp.yaml").write_text(YAML.format(kind))
        found = [use for use in scan_paths([tmp_path]).uses if use.code == "FM343"]
        assert [said in use.becomes for use in found] == [True] * expected
    (tmp_path / "fsdp.yaml").write_text(YAML.format("FSDP"))
    rewrite_paths([tmp_path], write=True)
    assert ("FM343" in (tmp_path / "model.py").read_text()) is bool(said)
