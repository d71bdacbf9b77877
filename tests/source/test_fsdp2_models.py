"""Models that the same block gives to FSDP2's function."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.source.projects import FSDP, after


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


def test_a_check_below_fsdp2s_function_in_the_same_block(tmp_path: Path) -> None:
    text = f"{FSDP}from torch.distributed.fsdp import fully_shard\n\n\ndef main(model, net):\n"
    text += "    fully_shard(model)\n    print(isinstance(model, FSDP))\n    net = FSDP(net)\n"
    text += "    print(isinstance(net, FSDP))\n"
    found = after(tmp_path, {"train.py": text}, "train.py")
    assert "isinstance(model, FSDP))" in found
    assert "isinstance(net, FSDPModule))" in found


@pytest.mark.parametrize(
    ("made", "is_two"),
    [
        ("model = fully_shard(model)", True),
        ("model = DDP(model)", False),
        ("model = fully_shard(model)\n    if x:\n        model = net", False),
        ("for model in models:\n        fully_shard(model)", False),
    ],
)
def test_what_every_value_of_a_model_is(tmp_path: Path, made: str, *, is_two: bool) -> None:
    text = f"{FSDP}from torch.distributed.fsdp import fully_shard\n\n\ndef main(models, x, net):\n"
    text += f"    {made}\n    print(isinstance(model, FSDP))\n    net = FSDP(net)\n"
    found = after(tmp_path, {"train.py": text}, "train.py")
    assert ("isinstance(model, FSDP))" in found) is is_two


def test_a_check_before_fsdp2s_function(tmp_path: Path) -> None:
    text = f"{FSDP}from torch.distributed.fsdp import fully_shard\n\n\ndef shard(model):\n"
    text += "    if not isinstance(model, FSDP):\n        fully_shard(model)\n"
    assert "isinstance(model, FSDPModule)" in after(tmp_path, {"train.py": text}, "train.py")


@pytest.mark.parametrize(("given", "is_left"), [("model", True), ("other", False)])
def test_models_of_a_list_that_each_branch_shards_by_its_own(
    tmp_path: Path, given: str, *, is_left: bool
) -> None:
    text = (
        f"{FSDP}from torch.distributed.fsdp import fully_shard\n\n\ndef main(models, new):\n"
        "    if new == 2:\n"
        f"        for model in models:\n            fully_shard({given})\n"
        "            state = model.state_dict()\n"
        "    elif new == 1:\n        for i, model in enumerate(models):\n"
        "            models[i] = FSDP(model)\n"
    )
    found = after(tmp_path, {"train.py": text}, "train.py")
    assert ("            state = model.state_dict()\n" in found) is is_left
