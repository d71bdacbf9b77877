"""Functions by which a project shards models with FSDP2 alone, beside FSDP1's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.source.projects import FSDP, after


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

WRAP = (
    f"{FSDP}from torch.distributed.fsdp import fully_shard\n"
    "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
    "def by_fsdp2(model, mesh):\n    for layer in model.layers:\n        fully_shard(layer, mesh=mesh)\n"
    "    fully_shard(model, mesh=mesh)\n    return model\n\n\n"
    "def wrap(model, kind, mesh=None):\n    if kind is None:\n        return model\n"
    "    if kind == 'ddp':\n        return DDP(model)\n    return by_fsdp2(model, mesh)\n\n\n"
    "def wrap_old(model):\n    return FSDP(model)\n"
)
ASKS = (
    f"from contextlib import nullcontext\n\n{FSDP}import wrapping\n\n\n"
    "def generate(model, x):\n    if isinstance(model, FSDP):\n"
    "        with FSDP.summon_full_params(model):\n            return model.embed(x)\n"
    "    return model.embed(x)\n"
    "\n\ndef main(args, net):\n    model = wrapping.wrap(net, args.kind)\n"
    "    is_fsdp = isinstance(model, FSDP)\n"
    "    with FSDP.summon_full_params(model) if is_fsdp else nullcontext():\n        generate(model, 1)\n"
)


def test_a_model_that_is_followed_to_fsdp2s_alone(tmp_path: Path) -> None:
    assert after(tmp_path, {"wrapping.py": WRAP, "train.py": ASKS}, "train.py") == ASKS


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return by_fsdp2(model, mesh)", "return wrap_old(model)"),
        ("return by_fsdp2(model, mesh)", "return WRAPPERS[kind](model)"),
        ("    return by_fsdp2(model, mesh)", "    model = other(model)\n    return model"),
        ("    fully_shard(model, mesh=mesh)\n", ""),
        ("def wrap(", "@choose\ndef wrap("),
    ],
)
def test_a_function_that_may_give_another_model(tmp_path: Path, old: str, new: str) -> None:
    wrapping = WRAP.replace(old, new)
    assert "isinstance(model, FSDPModule)" in after(
        tmp_path, {"wrapping.py": wrapping, "train.py": ASKS}, "train.py"
    )


def test_a_function_that_another_file_may_give_other_models(tmp_path: Path) -> None:
    files = {
        "wrapping.py": WRAP,
        "train.py": ASKS,
        "more.py": "from train import generate\ngenerate(load(), 1)\n",
    }
    text = after(tmp_path, files, "train.py")
    assert "if isinstance(model, FSDPModule)" in text
    assert "is_fsdp = isinstance(model, FSDP)" in text


def test_a_function_that_its_own_file_gives_fsdp1s_models_too(tmp_path: Path) -> None:
    asks = f"{ASKS}    generate(FSDP(net), 1)\n"
    text = after(tmp_path, {"wrapping.py": WRAP, "train.py": asks}, "train.py")
    assert "if isinstance(model, FSDPModule)" in text
    assert "is_fsdp = isinstance(model, FSDP)" in text
