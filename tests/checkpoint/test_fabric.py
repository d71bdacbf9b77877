"""Checkpoints that Lightning's own Fabric saves under FSDP1: what is said of them, and who loads them."""

from __future__ import annotations

import importlib.util
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.checkpoint_convert import (
    convert_checkpoint,
    inspect_checkpoint,
    verify_checkpoints,
)
from fsdp_migrate.checkpoint_convert.loading.advice import advise_loading
from fsdp_migrate.errors import PlanError
from fsdp_migrate.source.surroundings import find_checkpoints
from tests.checkpoint import fabric_bodies
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="needs Lightning")
KINDS = ("sharded", "full")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, Any]]]:
    """What Fabric left of each kind, and what its ranks held."""
    folder = tmp_path_factory.mktemp("fabric")
    names = {"sharded": "step-2", "full": "step-2.ckpt"}
    paths = {kind: folder / kind / names[kind] for kind in KINDS}
    for path in paths.values():
        path.parent.mkdir()
    return {kind: (paths[kind], run_ranks(fabric_bodies.save, str(paths[kind]), kind)[0]) for kind in KINDS}


def assert_held(loaded: dict[str, Any], held: dict[str, Any]) -> None:
    torch.testing.assert_close(loaded["model"], held["model"], rtol=0, atol=0)
    torch.testing.assert_close(loaded["optimizer"], held["optimizer"], rtol=0, atol=0)
    assert (loaded["lr"], loaded["step"]) == (held["lr"], 2)


@pytest.mark.parametrize("kind", KINDS)
def test_fabric_loads_what_its_fsdp1_saved(kind: str, saved: dict[str, Any]) -> None:
    path, held = saved[kind]
    for loaded in run_ranks(fabric_bodies.load, str(path)):
        assert_held(loaded, held)


@pytest.mark.parametrize("kind", KINDS)
def test_inspect_says_that_it_is_loaded_as_it_is(kind: str, saved: dict[str, Any]) -> None:
    manifest = inspect_checkpoint(saved[kind][0])
    assert manifest.framework == "torch"
    assert "fabric.load" in (advise_loading(manifest).by_framework or "")
    assert {part.name for part in manifest.parts} - {"step"} == set(fabric_bodies.NAMES.values())
    [found] = find_checkpoints([str(saved[kind][0].parent)])
    assert not found.is_lightnings


def test_fabric_loads_the_converted_folder(saved: dict[str, Any], tmp_path: Path) -> None:
    path, held = saved["sharded"]
    convert_checkpoint(path, tmp_path / "out")
    assert verify_checkpoints(path, tmp_path / "out").is_same
    for loaded in run_ranks(fabric_bodies.load, str(tmp_path / "out")):
        assert_held(loaded, held)


def test_a_folder_for_the_trainer_is_refused_with_both_ways_on(saved: dict[str, Any], tmp_path: Path) -> None:
    path, _ = saved["sharded"]
    with pytest.raises(PlanError, match=r"FM281.*pytorch-lightning_version") as error:
        convert_checkpoint(path, tmp_path / "out", to="lightning")
    assert "leave `--to` out" in str(error.value)
    assert "a copy of the folder without `meta.pt`" in str(error.value)
    # Which is then one that the Trainer finds its names in.
    copy = shutil.copytree(path, tmp_path / "copy", ignore=shutil.ignore_patterns("meta.pt"))
    convert_checkpoint(copy, tmp_path / "out", to="lightning")
    assert inspect_checkpoint(tmp_path / "out").framework == "lightning"
    # A full file holds what the script gave, and no file of Fabric's is in the way.
    convert_checkpoint(saved["full"][0], tmp_path / "full", to="lightning")
    assert inspect_checkpoint(tmp_path / "full").framework == "lightning"


@pytest.mark.parametrize("kind", KINDS)
def test_an_average_by_fsdp1s_names_is_told_and_converted(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "step-2.ckpt"
    held = run_ranks(fabric_bodies.save, str(path), kind, "ema")[0]
    manifest = inspect_checkpoint(path)
    (told,) = [found for found in manifest.findings if found.code == "FM280"]
    assert told.subject == "ema"
    assert "`_forward_module._fsdp_wrapped_module." in told.message
    assert "Convert it" in str(told.hint)
    assert advise_loading(manifest).by_framework is None
    convert_checkpoint(path, tmp_path / "out")
    assert verify_checkpoints(path, tmp_path / "out").is_same
    # Of a folder Fabric gives schedulers back without loading them: a full file stays one.
    written = tmp_path / "out" / path.name if kind == "full" else tmp_path / "out"
    for loaded in run_ranks(fabric_bodies.load, str(written)):
        assert_held(loaded, held)
        assert list(loaded["left"]["ema"]) == loaded["names"]
        for name, average in loaded["left"]["ema"].items():
            torch.testing.assert_close(average, held["model"][name.partition(".")[2]], rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_save_without_such_names_is_written_as_before(
    kind: str, saved: dict[str, Any], tmp_path: Path
) -> None:
    manifest = inspect_checkpoint(saved[kind][0])
    assert "FM280" not in {found.code for found in manifest.findings}
    convert_checkpoint(saved[kind][0], tmp_path / "out")
    # A script's own folder has no file of ours in it, and Fabric's is the one that was there.
    assert (tmp_path / "out" / "meta.pt").exists() is (kind == "sharded")


@pytest.fixture(scope="module")
def scheduled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What Fabric left of each kind where the script gave it a scheduler too."""
    folder = tmp_path_factory.mktemp("scheduled")
    for kind in KINDS:
        run_ranks(fabric_bodies.save, str(folder / f"{kind}.ckpt"), kind, "schedule")
    return {kind: folder / f"{kind}.ckpt" for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_a_scheduler_beside_the_data_is_loaded_where_it_is_asked_for(
    kind: str, scheduled: dict[str, Path]
) -> None:
    for loaded in run_ranks(fabric_bodies.load_here, str(scheduled[kind])):
        assert (loaded["lr"], loaded["epochs"]) == ([0.025], 2)
        assert loaded["values"]["step"] == 2
        assert all(f"`{name}`" in loaded["left"] for name in ("schedule", "step", "history"))


@pytest.mark.parametrize("kind", KINDS)
def test_accelerate_finds_it_and_what_has_no_place_is_named(
    kind: str, scheduled: dict[str, Path], tmp_path: Path
) -> None:
    done = convert_checkpoint(scheduled[kind], tmp_path / "out", to="accelerate")
    state = torch.load(tmp_path / "out" / "scheduler.bin")
    assert (state["last_epoch"], state["_last_lr"]) == (2, [0.025])
    left = {found.subject for found in done.findings if found.code == "FM214"}
    assert {"step", "history"} <= left
    assert not (tmp_path / "out" / "meta.pt").exists()
    assert verify_checkpoints(scheduled[kind], tmp_path / "out").is_same


def test_torchtitan_gets_its_entries_and_verify_knows_them(
    scheduled: dict[str, Path], tmp_path: Path
) -> None:
    convert_checkpoint(scheduled["sharded"], tmp_path / "out", to="torchtitan")
    assert verify_checkpoints(scheduled["sharded"], tmp_path / "out").is_same
    entries = inspect_checkpoint(tmp_path / "out").entries
    assert {"step", "history"} <= entries.keys()


def test_for_fabric_itself_the_file_beside_is_copied_as_it_is(
    scheduled: dict[str, Path], tmp_path: Path
) -> None:
    convert_checkpoint(scheduled["sharded"], tmp_path / "out")
    assert (tmp_path / "out/meta.pt").read_bytes() == (scheduled["sharded"] / "meta.pt").read_bytes()
    said = advise_loading(inspect_checkpoint(scheduled["sharded"])).others
    assert "`meta.pt` holds" in str(said)


def test_a_file_of_that_name_which_is_no_mapping_stays_beside(saved: dict[str, Any], tmp_path: Path) -> None:
    copy = shutil.copytree(saved["sharded"][0], tmp_path / "copy")
    torch.save([1, 2], copy / "meta.pt")
    done = convert_checkpoint(copy, tmp_path / "out", to="accelerate")
    assert done.plan.extra_files == ("meta.pt",)
