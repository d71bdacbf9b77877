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


@pytest.mark.parametrize(
    ("beside", "is_said"),
    [
        # As PixArt-sigma has it: a package's own `__init__.py` imports the model, and nothing that package.
        ({"llava/__init__.py": "from llava.net import Net\n"}, False),
        ({"llava/__init__.py": "", "demo.py": "from llava.net import Net\nNet(c)\n"}, False),
        ({"llava/__init__.py": "from .net import Net\n", "train.py": "from llava import Net\n"}, True),
        ({"llava/__init__.py": "", "train.py": "import llava.net\n"}, True),
        (
            {
                "llava/__init__.py": "",
                "builder.py": "from llava.net import *\n",
                "train.py": "import builder\n",
            },
            True,
        ),
        ({"llava/__init__.py": "from . import net\n", "train.py": "import llava\n"}, True),
        (
            {"llava/__init__.py": "", "llava/up.py": "from . import net\n", "train.py": "import llava.up\n"},
            True,
        ),
        ({"utils.py": "", "llava/__init__.py": "import torch.utils\nimport llava.net\n"}, False),
        # What starts it may hand the model on, or a run may take it by its name.
        ({"llava/__init__.py": "", "main.py": "from llava.net import Net\nimport train\n"}, True),
        ({"llava/__init__.py": "", "train.py": "net = import_module(config.model)\n"}, True),
        ({"llava/__init__.py": "", "train.py": "net = A.from_pretrained(p, trust_remote_code=True)\n"}, True),
    ],
)
def test_a_model_that_nothing_which_trains_imports(
    tmp_path: Path, beside: dict[str, str], *, is_said: bool
) -> None:
    (tmp_path / "llava").mkdir()
    (tmp_path / "llava" / "net.py").write_text(MODEL.format("LlamaForCausalLM", "forward", PRODUCT))
    (tmp_path / "fsdp.yaml").write_text(YAML.format("FSDP"))
    train = TRAIN.replace("from model import Net\n", "import utils\n")
    for name, text in {"train.py": "", **beside}.items():
        (tmp_path / name).write_text(f"{text}{train}" if name == "train.py" else text)
    found = [use for use in scan_paths([tmp_path]).uses if use.rule == "embedding-weights"]
    assert bool(found) is is_said
