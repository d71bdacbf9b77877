"""Where a script hands Accelerate models without their optimizers, beside a config that asks for FSDP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source.prepared_apart import find_prepared_apart


if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.any_torch

LATER = "optimizer = accelerator.prepare(torch.optim.AdamW(parameters))\n"


@pytest.mark.parametrize(
    ("call", "lines"),
    [
        ("model = accelerator.prepare(model)\n", [1]),
        ("encoder = self.accelerator.prepare(encoder)\n", [1]),
        ("encoder, teacher = accelerator.prepare(encoder, teacher)\n", [1]),
        ("clip_model, siglip_model = accelerator.prepare(\n    clip_model, siglip_model\n)\n", [1]),
        ("encoder, opt = accelerator.prepare(encoder, opt)\n", []),
        (
            "if accelerator.distributed_type != DistributedType.FSDP:\n    e = accelerator.prepare(net_e)\n",
            [],
        ),
        ("loader, dataset = accelerator.prepare(loader, dataset)\n", []),
        ("broken = accelerator.prepare(encoder\n", []),
    ],
)
def test_calls_are_found_by_what_they_are_given(tmp_path: Path, call: str, lines: list[int]) -> None:
    path = tmp_path / "train.py"
    path.write_text(call + LATER.replace("accelerator.prepare", ""))
    assert find_prepared_apart([tmp_path]).trained == tuple(f"{path}:{line}" for line in lines)
