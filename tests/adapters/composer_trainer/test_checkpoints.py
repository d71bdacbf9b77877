"""A run that FSDP1 saved goes on with the callback, to the last bit, and what that saves loads elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.rank_bodies.composer_training import Run, train_all
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.composer

STEPS, SAVED = 6, 3
SHARDED = {"state_dict_type": "sharded"}
FULL = {"state_dict_type": "full"}
RANK0 = {**FULL, "load_monolith_rank0_only": True, "sync_module_states": True}


def saving(folder: Path, **more: Any) -> dict[str, Any]:
    return {"save_folder": str(folder), "save_interval": f"{SAVED}ba", "save_overwrite": True, **more}


def make_runs(root: Path) -> dict[str, Run]:
    """Return the runs in their order: what saves comes before what loads it."""
    adam = Run(fsdp=SHARDED, optimizer="decoupled_adamw", warmup=True, steps=STEPS, rows=3)
    adam = replace(adam, trainer={"device_train_microbatch_size": 2})
    sgd = Run(fsdp=FULL, optimizer="sgd", warmup=True, steps=STEPS)
    from_sharded, from_full = str(root / "sharded" / "ep0-ba3"), str(root / "full" / "ep0-ba3-rank0.pt")

    def change(run: Run, migrate: bool, fsdp: dict[str, Any] | None = None, **trainer: Any) -> Run:
        return replace(run, migrate=migrate, fsdp=fsdp or run.fsdp, trainer={**run.trainer, **trainer})

    auto: dict[str, Any] = {
        "save_folder": str(root / "auto"),
        "save_overwrite": False,
        "run_name": "run",
        "autoresume": True,
    }
    return {
        "fsdp1 sharded": change(adam, False, **saving(root / "sharded")),
        "fsdp1 full": change(sgd, False, **saving(root / "full")),
        "fsdp1 auto": change(adam, False, **saving(root / "auto", run_name="run")),
        "from sharded": change(adam, True, load_path=from_sharded, **saving(root / "sharded2")),
        "from full": change(sgd, True, load_path=from_full, **saving(root / "full2")),
        "rank 0 only": change(sgd, True, RANK0, load_path=from_full),
        "full from sharded": change(adam, True, FULL, load_path=from_sharded),
        "autoresume": replace(
            change(adam, True, **auto), latest=(str(root / "auto" / "latest-rank0.pt"), "ep0-ba3")
        ),
        "fsdp1 weights": change(adam, False, load_path=from_sharded, load_weights_only=True),
        "weights": change(adam, True, load_path=from_sharded, load_weights_only=True),
        "strict full weights": change(
            sgd, True, load_path=from_full, load_weights_only=True, load_strict_model_weights=True
        ),
        "fsdp1 full weights": change(sgd, False, load_path=from_full, load_weights_only=True),
        "fsdp1 ignoring": change(sgd, False, load_path=from_full, load_ignore_keys=["state/optimizers"]),
        "ignoring": change(sgd, True, load_path=from_full, load_ignore_keys=["state/optimizers"]),
        "migrated save": change(adam, True, **saving(root / "ours")),
        "migrated full save": change(sgd, True, **saving(root / "ours_full")),
        "back to fsdp1": change(adam, False, load_path=str(root / "ours" / "ep0-ba3")),
        "back to fsdp1 full": change(sgd, False, load_path=str(root / "ours_full" / "ep0-ba3-rank0.pt")),
        "to composer's fsdp2": replace(
            change(adam, False, load_path=str(root / "ours" / "ep0-ba3")), own_fsdp2=True
        ),
        "resumed of resumed": change(
            adam, True, load_path=str(root / "sharded2" / "ep0-ba6"), max_duration="7ba"
        ),
        "another model": change(replace(adam, model="two"), True, load_path=from_sharded),
        "nothing there": change(adam, True, load_path=str(root / "nowhere")),
    }


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    runs = make_runs(tmp_path_factory.mktemp("composer"))
    ranks = run_ranks(train_all, list(runs.values()), timeout=500)
    return {name: [rank[number] for rank in ranks] for number, name in enumerate(runs)}


SAME = {
    "from sharded": "fsdp1 sharded",
    "from full": "fsdp1 full",
    "rank 0 only": "fsdp1 full",
    "full from sharded": "fsdp1 sharded",
    "autoresume": "fsdp1 auto",
    "weights": "fsdp1 weights",
    "strict full weights": "fsdp1 full weights",
    "ignoring": "fsdp1 ignoring",
    "migrated save": "fsdp1 sharded",
    "back to fsdp1": "fsdp1 sharded",
    "back to fsdp1 full": "fsdp1 full",
    "to composer's fsdp2": "fsdp1 sharded",
}


@pytest.mark.parametrize("case", SAME)
def test_the_run_goes_on_as_the_other_did(outcomes: dict[str, list[dict[str, Any]]], case: str) -> None:
    for after, before in zip(outcomes[case], outcomes[SAME[case]], strict=True):
        assert "error" not in before, before["error"]
        assert "error" not in after, after["error"]
        count = len(after["losses"])
        assert 0 < count <= len(before["losses"])
        assert after["losses"] == before["losses"][-count:]
        for name, expected in before["parameters"].items():
            assert torch.equal(after["parameters"][name], expected), name


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("another model", "CheckpointMismatchError: "),
        ("another model", "`extra.0.weight` [13, 13] is missing there"),
        ("nothing there", "nowhere not found"),
    ],
)
def test_what_does_not_fit_is_an_error_on_every_rank(
    outcomes: dict[str, list[dict[str, Any]]], case: str, text: str
) -> None:
    for found in outcomes[case]:
        assert text in found["error"]
