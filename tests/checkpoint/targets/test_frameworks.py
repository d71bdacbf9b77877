"""What each target writes, loaded by the framework's own code, on two ranks, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.checkpoint_convert import (
    OutputOptions,
    convert_checkpoint,
    inspect_checkpoint,
    verify_checkpoints,
)
from fsdp_migrate.checkpoint_convert.loading.advice import advise_loading
from tests.checkpoint import targets_bodies as targets
from tests.rank_bodies import conversions
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fsdp_migrate.checkpoint_convert.manifest.options import StateDictForm


LOADERS: dict[str, Callable[[str], dict[str, Any]]] = {
    "lightning": targets.load_lightning,
    "torchtitan": targets.load_torchtitan,
}
RENAMED = OutputOptions(optimizer_class="AdamW", renames=("^=net.",))


@pytest.fixture(scope="session")
def fsdp1(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A checkpoint of a real FSDP1 run of two steps with two parameter groups, and what it holds."""
    folder = tmp_path_factory.mktemp("targets") / "fsdp1"
    return folder, run_ranks(conversions.save_fsdp1, str(folder), "plain")[0]


def assert_loaded(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Assert that a framework loaded model and optimizer, bit for bit."""
    for key, value in wanted.items():
        if isinstance(value, torch.Tensor) and key != "seen":
            assert torch.equal(found[key], value), key
    assert found["lr"] == wanted["lr"]
    assert found["decay"] == wanted["decay"]


@pytest.mark.parametrize("world_size", [None, 3])
@pytest.mark.parametrize("to", sorted(LOADERS))
def test_the_stack_loads_its_target(
    to: str, world_size: int | None, fsdp1: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    source, wanted = fsdp1
    report = convert_checkpoint(source, tmp_path / "out", to=to, world_size=world_size)
    assert report.plan.framework == to
    for found in run_ranks(LOADERS[to], str(tmp_path / "out")):
        assert_loaded(found, wanted)
        if to == "lightning":
            assert found["meta"]["lr_schedulers"][0]["last_epoch"] == 2


def test_accelerate_goes_on_from_either_form(fsdp1: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    source, wanted = fsdp1
    losses = []
    forms: list[tuple[StateDictForm, int | None]] = [("full", None), ("sharded", None), ("sharded", 3)]
    for form, world_size in forms:
        out = tmp_path / f"{form}-{world_size}"
        options = OutputOptions(state_dict_type=form)
        convert_checkpoint(source, out, to="accelerate", world_size=world_size, output_options=options)
        assert verify_checkpoints(source, out).differences == ()
        ranks = run_ranks(targets.load_accelerate, str(out))
        for found in ranks:
            assert_loaded(found, wanted)
            assert found["scheduler"]["last_epoch"] == 2
        losses.append([found["losses"] for found in ranks])
    assert losses[0] == losses[1] == losses[2]
    assert sorted(path.name for path in (tmp_path / "full-None").iterdir()) == [
        "optimizer.bin",
        "other_0",
        "pytorch_model_fsdp.bin",
        "scheduler.bin",
    ]


def test_frameworks_load_fsdp1s_full_checkpoints_as_they_are(
    fsdp1: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """As ``inspect`` says of them; of one with prefixes in its names it says nothing of the kind."""
    _, wanted = fsdp1
    run_ranks(targets.save_full, str(tmp_path))
    for name, load in {"accelerate": targets.load_accelerate, "state.ckpt": targets.load_lightning}.items():
        advice = advise_loading(inspect_checkpoint(tmp_path / name))
        assert "loads it as it is" in str(advice.by_framework)
        assert advice.better_converted == ()
        for found in run_ranks(load, str(tmp_path / name)):
            assert_loaded(found, wanted)
    run_ranks(targets.save_full, str(tmp_path / "compiled"), "compiled")
    for name in ("accelerate", "state.ckpt"):
        advice = advise_loading(inspect_checkpoint(tmp_path / "compiled" / name))
        assert advice.by_framework is None
        assert "is to load it by itself" in advice.better_converted[0]


def test_torch_loads_what_accelerate_saved(fsdp1: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    source, wanted = fsdp1
    convert_checkpoint(source, tmp_path / "accelerate", to="accelerate")
    convert_checkpoint(tmp_path / "accelerate", tmp_path / "out", to="torch")
    for found in run_ranks(targets.load_torch, str(tmp_path / "out")):
        assert_loaded(found, wanted)


@pytest.mark.composer
def test_composer_loads_what_plain_torch_saved(fsdp1: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    source, wanted = fsdp1
    convert_checkpoint(source, tmp_path / "out", to="composer", output_options=RENAMED)
    for found in run_ranks(targets.load_composer, str(tmp_path / "out"), timeout=400):
        assert_loaded(found, wanted)
