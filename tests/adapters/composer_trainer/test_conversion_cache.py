"""The pieces of loading that need no Trainer: what is compared, converted, named; without Composer too."""

from __future__ import annotations

import contextlib
import os
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fsdp_migrate.adapters.composer_trainer.checkpoints import (
    CheckpointLoader,
    compare_models,
    find_scaler,
    name_scaler,
)
from fsdp_migrate.checkpoint_convert import convert_checkpoint, inspect_checkpoint, plan_conversion
from fsdp_migrate.errors import CheckpointMismatchError, ConfigError
from fsdp_migrate.finding_codes import FINDING_CODES
from fsdp_migrate.runtime import end_process_group
from tests.adapters.composer_trainer import composer_rank0_bodies as composer_rank0
from tests.checkpoint.samples import DATA
from tests.rank_bodies.composer_conversions import composer_of_old_torch
from tests.ranks import run_ranks


GOLDEN = DATA / "torch-2.1.2" / "flat.dcp"


@pytest.fixture
def alone() -> Any:
    """A process group of this process only."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    end_process_group()


def request_of(path: Path, model: nn.Module | None = None) -> dict[str, Any]:
    config = SimpleNamespace(state_dict_type="sharded", load_planner=None)
    state = SimpleNamespace(fsdp_config=config, model=model or nn.Linear(2, 2, bias=False))
    return {"state": state, "path": str(path), "object_store": None, "ignore_keys": None}


def wrapped_checkpoint(folder: Path) -> Path:
    """Return a checkpoint whose names hold wrappers' prefixes, so that it does not load as it is."""
    from torch.distributed.checkpoint.state_dict_saver import save

    path = folder / "ba3"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.7 warns of its own use of storages
        save({"state": {"model": {"_fsdp_wrapped_module.weight": torch.ones(2, 2)}}}, checkpoint_id=path)
    return path


@pytest.mark.usefixtures("alone")
def test_what_does_not_load_is_converted_beside_it_once(tmp_path: Path) -> None:
    path = wrapped_checkpoint(tmp_path)
    loaded: list[str] = []
    loader = CheckpointLoader("convert")
    for _ in range(2):
        loader.load(lambda **given: loaded.append(given["path"]), request_of(path))
    assert loaded == [f"{path}.fsdp2"] * 2
    assert [finding.code for finding in loader.findings] == ["FM418"] * 2
    assert "FM418" in FINDING_CODES
    written = Path(loaded[0], ".metadata").stat().st_mtime_ns
    earlier = path.stat().st_mtime - 5000
    os.utime(path / ".metadata", (earlier, earlier))  # another file in its place, though an older one
    loader.load(lambda **given: None, request_of(path))
    assert Path(loaded[0], ".metadata").stat().st_mtime_ns > written


class Odd:
    """A class on no list."""


@pytest.mark.usefixtures("alone")
def test_what_cannot_be_read_straight_is_converted_with_the_reason(tmp_path: Path) -> None:
    readers: list[Any] = []

    def read_by(reader: Any) -> Any:
        readers.append(reader.read_metadata())
        return contextlib.nullcontext()

    loader = CheckpointLoader("load", read_by=read_by)
    plain = wrapped_checkpoint(tmp_path)
    loader.load(lambda **given: None, request_of(plain))
    assert [finding.code for finding in loader.findings] == ["FM439", "FM202"]
    assert list(readers[0].state_dict_metadata) == ["state.model.weight"]
    assert [each.name for each in tmp_path.iterdir()] == ["ba3"]
    loader.findings.clear()
    torch.save({"state": {"model": {"weight": torch.ones(2, 2)}, "odd": Odd()}}, tmp_path / "odd.pt")
    loaded: list[str] = []
    loader.load(lambda **given: loaded.append(given["path"]), request_of(tmp_path / "odd.pt"))
    assert loaded == [f"{tmp_path / 'odd.pt'}.fsdp2"]
    assert [finding.code for finding in loader.findings] == ["FM440", "FM418"]
    assert "`state.odd` is an object of a class on no list" in loader.findings[0].message


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("is_newer", [True, False])
def test_what_the_command_converted_is_used_if_it_is_the_newer(tmp_path: Path, is_newer: bool) -> None:
    path = wrapped_checkpoint(tmp_path)
    target = Path(f"{path}.fsdp2")
    convert_checkpoint(path, target)
    then = path.stat().st_mtime + (5000 if is_newer else -5000)
    os.utime(target / ".metadata", (then, then))
    written = (target / ".metadata").stat().st_mtime_ns
    CheckpointLoader("convert").load(lambda **given: None, request_of(path))
    assert ((target / ".metadata").stat().st_mtime_ns == written) == is_newer


@pytest.mark.usefixtures("alone")
def test_what_the_model_has_no_place_for_is_said(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = {"model": {"weight": torch.ones(2, 2), "more": torch.ones(2)}}
        save({"state": state}, checkpoint_id=tmp_path / "ba1")
    loader = CheckpointLoader("convert")
    loader.load(lambda **given: None, request_of(tmp_path / "ba1"))
    (finding,) = [finding for finding in loader.findings if finding.code == "FM419"]
    assert "`more`" in finding.message


def test_optimizers_at_the_root_are_moved_where_composer_looks_now(tmp_path: Path) -> None:
    composer_of_old_torch(GOLDEN, tmp_path / "old")
    plan = plan_conversion(inspect_checkpoint(tmp_path / "old"))
    assert plan.action == "relink"
    assert plan.renamed["optimizers.AdamW.param_groups"] == "state.optimizers.AdamW.param_groups"
    assert all(new == f"state.{old}" for old, new in plan.renamed.items())


@pytest.mark.usefixtures("alone")
def test_conversion_can_be_an_error(tmp_path: Path) -> None:
    path = wrapped_checkpoint(tmp_path)
    with pytest.raises(CheckpointMismatchError, match=f"fsdp-migrate convert {path}"):
        CheckpointLoader("error").load(print, request_of(path))
    assert [each.name for each in tmp_path.iterdir()] == ["ba3"]
    with pytest.raises(ConfigError, match="convert_checkpoints"):
        CheckpointLoader("no")  # type: ignore[arg-type]


@pytest.mark.usefixtures("alone")
def test_a_folder_is_loaded_whatever_is_saved_later() -> None:
    """For the time of loading the kind is that of the checkpoint; it is put back after an error too."""
    request = request_of(GOLDEN)
    config = request["state"].fsdp_config
    config.state_dict_type = "full"

    def fail(**given: Any) -> None:
        assert config.state_dict_type == "sharded"
        raise RuntimeError(given["path"])

    with pytest.raises(RuntimeError, match=r"flat\.dcp"):
        CheckpointLoader("convert").load(fail, request)
    assert config.state_dict_type == "full"


def test_another_model_is_named_with_its_shapes() -> None:
    model = nn.Linear(3, 2)
    compare_models({"weight": (2, 3), "bias": (2,)}, model, "here")
    with pytest.raises(CheckpointMismatchError) as caught:
        compare_models({"weight": (2, 4)}, model, "here")
    assert "`weight` has shape [2, 4] there and [2, 3] here; `bias` [2] is missing there" in str(caught.value)


def test_a_scaler_is_found_under_both_names() -> None:
    """Composer names it by its class, which differs between FSDP1 and FSDP2."""
    saved = name_scaler({"scaler": {"ClosureGradScaler": {"scale": 2.0}}}, "ClosureGradScaler", None)
    assert saved["scaler"] == {key: {"scale": 2.0} for key in ("ClosureGradScaler", "ShardedGradScaler")}
    own = {"scaler": {"GradScaler": {"scale": 1.0}}}
    asked = name_scaler(own, "GradScaler", ("ShardedGradScaler",))
    assert asked["scaler"] == {"ShardedGradScaler": {"scale": 1.0}}
    assert name_scaler(own, "GradScaler", ()) == own
    assert find_scaler(asked, "GradScaler")["scaler"] == {"GradScaler": {"scale": 1.0}}
    assert find_scaler({}, "GradScaler") == {}


def test_what_rank_0_did_not_foresee_is_an_error_on_all_ranks() -> None:
    """Otherwise the others wait for its answer until the group's timeout."""
    first, second = run_ranks(composer_rank0.fail_on_rank0)
    assert first == ("KeyError", "'not foreseen'")
    assert second[0] == "CheckpointMismatchError"
    assert "Rank 0 cannot load the checkpoint, so no rank does: KeyError" in second[1]
