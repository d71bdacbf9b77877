"""The weights of embeddings in a model's forward, where Accelerate's FSDP2 makes them a unit of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

YAML = "distributed_type: {}\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
TRAIN = (
    "from accelerate import Accelerator\nfrom model import Net\n\naccelerator = Accelerator()\n"
    "model = Net(c)\n"
    "model, optimizer = accelerator.prepare(model, AdamW(model.parameters()))\n"
)
MODEL = "class Net({}):\n    def {}(self, x):\n        {}\n"
GIVEN = "return F.embedding(x, self.get_input_embeddings().weight)"
PRODUCT = "return self.model(x) @ self.model.embed_tokens.weight.T"


@pytest.mark.parametrize(
    ("base", "method", "body", "kind", "is_said"),
    [
        ("LlamaForCausalLM", "forward", PRODUCT, "FSDP", True),
        ("LlamaForCausalLM", "forward", GIVEN, "FSDP", True),
        ("PreTrainedModel", "soft", "return x.softmax(-1) @ self.shared.weight", "FSDP", True),
        ("GPT2Model", "mix", "e = self.get_input_embeddings()\n        return x @ e.weight", "FSDP", True),
        ("LlamaForCausalLM", "forward", PRODUCT, "MULTI_GPU", False),
        ("nn.Module", "forward", PRODUCT, "FSDP", False),
        ("LlamaForCausalLM", "__init__", PRODUCT, "FSDP", False),
        ("LlamaForCausalLM", "_tie_weights", "self.head.weight = self.wte.weight", "FSDP", False),
        ("LlamaForCausalLM", "forward", "self.head.weight = self.wte.weight", "FSDP", False),
        ("LlamaForCausalLM", "forward", "return x.to(self.wte.weight.dtype)", "FSDP", False),
        ("LlamaForCausalLM", "forward", "return self.model(x) @ self.lm_head.weight.T", "FSDP", False),
        ("LlamaForCausalLM", "forward", "return self.model.embed_tokens(x)", "FSDP", False),
    ],
)
def test_where_a_forward_reads_the_weights_of_embeddings(
    tmp_path: Path, base: str, method: str, body: str, kind: str, *, is_said: bool
) -> None:
    (tmp_path / "model.py").write_text(MODEL.format(base, method, body))
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "fsdp.yaml").write_text(YAML.format(kind))
    found = [use for use in scan_paths([tmp_path]).uses if use.rule == "embedding-weights"]
    assert [(use.code, use.action) for use in found] == [("FM343", "commented")] * is_said


OUTER = "class Outer(PreTrainedModel):\n"
SAYS = "    def {}(self):\n        return self.net.model.embed_tokens\n\n"


@pytest.mark.parametrize(
    ("methods", "is_said"),
    [
        (["get_input_embeddings"], True),
        (["other"], False),
        # Both are one unit then, which stays whole once the embeddings ran.
        (["get_input_embeddings", "get_output_embeddings"], False),
    ],
)
def test_the_model_around_may_say_which_its_embeddings_are(
    tmp_path: Path, methods: list[str], *, is_said: bool
) -> None:
    inner = MODEL.format("nn.Module", "forward", PRODUCT)
    (tmp_path / "model.py").write_text(f"{inner}\n\n{OUTER}{''.join(map(SAYS.format, methods))}")
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "fsdp.yaml").write_text(YAML.format("FSDP"))
    found = [use.rule for use in scan_paths([tmp_path]).uses if use.code == "FM343"]
    assert ("embedding-weights" in found) is is_said
