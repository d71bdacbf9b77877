"""Damaged, incomplete and foreign sources: one clear error, the source untouched, no output left."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch

from fsdp_migrate.checkpoint_convert import (
    SourceOptions,
    convert_checkpoint,
    execute_plan,
    inspect_checkpoint,
    plan_conversion,
    verify_checkpoints,
)
from fsdp_migrate.errors import CheckpointFormatError, PlanError
from tests.checkpoint.damage import KEY, _Foreign, refuse
from tests.checkpoint.samples import PLAIN, assert_nothing_left, copy_of, save_with_torch


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


def test_a_missing_data_file(tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    (source / "__1_0.distcp").unlink()
    message = refuse(source, tmp_path, r"'__1_0\.distcp' is missing", CheckpointFormatError)
    assert "1 problem)" in message


@pytest.mark.parametrize("cut", [1, 100, 60_000])
def test_a_data_file_that_was_cut_off(cut: int, tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    os.truncate(source / "__1_0.distcp", (source / "__1_0.distcp").stat().st_size - cut)
    refuse(source, tmp_path, "was cut off", CheckpointFormatError)


def test_a_flipped_bit_is_found_by_a_deep_look(tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    stored = inspect_checkpoint(source).entries[KEY].chunks[0].stored  # type: ignore[union-attr]
    data = bytearray((source / stored.file).read_bytes())
    data[stored.offset + 710] ^= 1
    (source / stored.file).write_bytes(data)
    inspect_checkpoint(source)
    with pytest.raises(CheckpointFormatError, match="checksum"):
        inspect_checkpoint(source, deep=True)
    report = verify_checkpoints(PLAIN, source)
    assert [difference.key for difference in report.differences] == [KEY]


def test_a_source_that_changed_since_it_was_inspected(tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    plan = plan_conversion(inspect_checkpoint(source), world_size=3)
    with (source / "__1_0.distcp").open("ab") as file:
        file.write(b"more")
    with pytest.raises(CheckpointFormatError, match="has changed since it was inspected"):
        execute_plan(plan, tmp_path / "out")
    assert_nothing_left(tmp_path, "copy")


def test_flat_parameters_are_refused_with_the_reason(tmp_path: Path) -> None:
    save_with_torch({"model": {"_flat_param": torch.ones(9), "b": torch.ones(2)}}, tmp_path / "flat")
    message = refuse(tmp_path / "flat", tmp_path, "FM223", PlanError)
    assert "LOCAL_STATE_DICT" in message
    assert "SHARDED_STATE_DICT" in message


def test_numbered_optimizer_state_is_refused_with_the_reason(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    save_with_torch(state, tmp_path / "raw")
    message = refuse(tmp_path / "raw", tmp_path, "FM222", PlanError)
    assert "lost" in message
    report = convert_checkpoint(tmp_path / "raw", tmp_path / "out", weights_only=True)
    assert sorted(entry.key for entry in report.plan.entries) == ["model.0.bias", "model.0.weight"]


def test_an_unknown_class_is_carried_over_byte_for_byte(tmp_path: Path) -> None:
    state = {"model": {"w": torch.ones(4, 2)}, "mine": _Foreign(), "step": 3}
    source = save_with_torch(state, tmp_path / "source")
    for deep in (False, True):
        (finding,) = [f for f in inspect_checkpoint(source, deep=deep).findings if f.code == "FM230"]
        assert finding.subject == "mine"
        assert "_Foreign" in finding.message
    # To relink and to rewrite, and also where nothing has to change.
    for world_size in (None, 2):
        with pytest.raises(PlanError, match=r"FM230.*trust_pickle"):
            convert_checkpoint(source, tmp_path / "out", world_size=world_size)
    with pytest.raises(PlanError, match="FM230"):
        convert_checkpoint(source)
    trusted = SourceOptions(trust_pickle=True)
    report = convert_checkpoint(source, tmp_path / "out", world_size=2, options=trusted)
    assert [found.subject for found in report.findings if found.code == "FM209"] == ["mine"]
    assert verify_checkpoints(source, tmp_path / "out").is_same
    convert_checkpoint(source, tmp_path / "weights", weights_only=True)


def test_a_damaged_value_is_an_error_although_only_names_change(tmp_path: Path) -> None:
    state = {"model": {"_orig_mod.w": torch.ones(4, 2)}, "note": "a text that is long enough to be found"}
    source = save_with_torch(state, tmp_path / "source")
    (file,) = source.glob("*.distcp")
    data = file.read_bytes()
    file.write_bytes(data.replace(b"long enough", b"wrong enoug"))
    with pytest.raises(CheckpointFormatError, match=r"`note`.*checksum"):
        inspect_checkpoint(source)


def test_equal_moments_are_found(tmp_path: Path) -> None:
    moments = {"exp_avg": torch.arange(1.0, 4.0), "exp_avg_sq": torch.arange(1.0, 4.0)}
    zeros = {"exp_avg": torch.zeros(3), "exp_avg_sq": torch.zeros(3)}
    state = {
        "model": {"a": torch.ones(3), "b": torch.ones(3)},
        "optim": {"state": {"a": moments, "b": zeros}, "param_groups": [{"params": ["a", "b"]}]},
    }
    source = save_with_torch(state, tmp_path / "source")
    codes = [f for f in inspect_checkpoint(source, deep=True).findings if f.code == "FM217"]
    assert len(codes) == 1
    assert "1 of 2 parameters" in codes[0].message
    assert "FM217" not in {f.code for f in inspect_checkpoint(PLAIN, deep=True).findings}


@pytest.mark.parametrize(
    "names",
    [
        ["model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"],
        ["pytorch_model_fsdp.bin", "optimizer.bin"],
    ],
)
def test_a_damaged_file_of_a_folder_is_named(names: list[str], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for name in names:
        (tmp_path / "other" / name).write_bytes(b"x")
    message = refuse(tmp_path / "other", tmp_path, "was not written by torch.save", CheckpointFormatError)
    assert names[0] in message
