"""QLoRA as its users write it: transformers' quantised model, with adapters of PEFT."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks import qlora_bodies
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from pathlib import Path


def test_qlora_of_a_whole_model_trains_as_under_fsdp1_and_keeps_every_byte(tmp_path: Path) -> None:
    for rank in run_ranks(qlora_bodies.run, str(tmp_path)):
        sharded, left_out = rank["torch.bfloat16"], rank["torch.uint8"]
        assert sharded["losses"] == left_out["losses"] == rank["FSDP1"]
        assert sharded["unlike"] == left_out["unlike"] == []
        assert "FM125" not in sharded["codes"]
        assert "FM125" in left_out["codes"]
        assert sharded["entries"] > 50
