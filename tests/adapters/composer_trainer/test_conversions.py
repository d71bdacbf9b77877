"""Checkpoints that do not load as they are, and where they are: loaded by a real Trainer all the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.checkpoint.samples import DATA
from tests.rank_bodies.composer_conversions import (
    FULL,
    NAME,
    RANK0,
    SAVED,
    composer_of_old_torch,
    go_on,
    loading,
)
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from tests.rank_bodies.composer_training import Run


pytestmark = pytest.mark.composer

OLD = {"2.1.2": "flat", "2.3.1": "mesh"}
AUTO: dict[str, Any] = {"autoresume": True, "save_folder": "resumed", "save_overwrite": False}
CONVERT = {"convert_checkpoints": "convert"}
READ = {
    "torch 2.15": loading("later"),
    "beside half of a conversion": loading("half"),
    "optimizers at the root": loading("at_root"),
    "a file per rank": loading(f"ranks/{NAME}-rank{{rank}}.pt"),
    "a folder of files": loading("ranks", RANK0),
    "a whole file": loading(f"full/{NAME}-rank{{rank}}.pt"),
    "by the run's name": loading("run/{run_name}-rank{rank}.pt"),
    "autoresume": replace(loading(""), trainer={**loading("").trainer, "load_path": None, **AUTO}),
}
CONVERTED = {
    "over a conversion of something else": replace(loading("stale"), callback=CONVERT),
    "by the conversion that is there": loading("stale"),
    "over half of a conversion": replace(loading("half"), callback=CONVERT),
    "a file per rank, full": replace(loading(f"ranks/{NAME}-rank0.pt", FULL), callback=CONVERT),
    "packed": loading("full/packed.pt.gz"),
    "in a cache": replace(loading("cached"), callback={**CONVERT, "cache_folder": "elsewhere.fsdp2"}),
}
AS_THEY_ARE = {
    "a folder, rank 0 only": loading(f"sharded/{NAME}", RANK0),
    "a symlink file": loading("sharded/latest.symlink"),
    "a symlink file, full": loading("full/latest-rank0.pt.symlink", FULL),
    "a packed file, full": loading("full/packed.pt.gz", FULL),
}
STORED = {
    "a folder in a store": loading(f"sharded/{NAME}"),
    "a folder in a store, full": loading(f"sharded/{NAME}", FULL),
    "a file in a store": loading(f"full/{NAME}-rank{{rank}}.pt"),
    "a symlink in a store": loading("sharded/latest.symlink", FULL),
    "torch 2.15 behind a URL": loading("reachable"),
}
REFUSED: dict[str, tuple[Run, str]] = {
    "not to be converted": (
        replace(loading("refused"), callback={"convert_checkpoints": "error"}),
        "does not load into FSDP2 as it is, and `convert_checkpoints` is 'error'. Convert it: `fsdp-migrate",
    ),
    "something else is there": (
        replace(loading("taken"), callback=CONVERT),
        "taken.fsdp2' is there already, and is no checkpoint",
    ),
    "not to be written": (
        replace(loading("unwritable"), callback={**CONVERT, "cache_folder": "full/packed.pt.gz"}),
        "Give the callback a `cache_folder` that every node sees and that can be written",
    ),
    "cut off": (loading("cut/cut-rank0.pt", RANK0), "cut-rank0.pt"),
    "other shapes, rank 0 only": (
        replace(loading(f"full/{NAME}-rank0.pt", RANK0), model="wide"),
        "`net.embed.weight` has shape [13, 6] there and [13, 8] here",
    ),
    "nothing in common": (
        replace(loading(f"full/{NAME}-rank0.pt", FULL), model="module"),
        "`module.embed.weight` [13, 6] is missing there",
    ),
}
REFUSED_STORED: dict[str, tuple[Run, str]] = {
    "torch 2.15 in a store": (loading("later"), "Convert it first: `fsdp-migrate convert URL OUT`"),
    "another model in a store": (
        replace(loading(f"sharded/{NAME}"), model="two"),
        "`extra.0.weight` [13, 13] is missing there",
    ),
    "nothing in a store": (loading("nowhere"), "'nowhere' is not in FolderStore"),
}


STRAIGHT = ("later", f"full/{NAME}-rank0.pt")
LOADED: dict[str, dict[str, Any]] = {
    "all": {},
    "weights": {"load_weights_only": True, "load_strict_model_weights": True},
    "some": {
        "load_ignore_keys": ["state/optimizers", "state/callbacks", "rng"],
        "load_exclude_algorithms": ["BlurPool"],
    },
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("conversions")


@pytest.fixture(scope="module")
def outcomes(root: Path) -> list[dict[str, Any]]:
    runs = {**READ, **CONVERTED, **AS_THEY_ARE, **{name: run for name, (run, _) in REFUSED.items()}}
    stored = {**STORED, **{name: run for name, (run, _) in REFUSED_STORED.items()}}
    old = {version: str(root / f"old-{version}.fsdp2") for version in OLD}
    for version, kind in OLD.items():
        composer_of_old_torch(DATA / f"torch-{version}" / f"{kind}.dcp", Path(old[version]))
    looked = {
        f"{source}, {name}": replace(loading(source), trainer={**loading(source).trainer, **options})
        for source in (f"sharded/{NAME}", *STRAIGHT)
        for name, options in LOADED.items()
    }
    return run_ranks(go_on, str(root), runs, stored, old, looked, timeout=400)


@pytest.mark.parametrize("case", [*READ, *CONVERTED, *AS_THEY_ARE, *STORED])
def test_the_run_goes_on_from_any_of_them(outcomes: list[dict[str, Any]], case: str) -> None:
    for found in outcomes:
        before, after = found["fsdp1"], found[case]
        assert "error" not in before, before["error"]
        assert "error" not in after, after["error"]
        assert len(after["losses"]) == 4
        assert after["losses"] == before["losses"][4:]
        for name, expected in before["parameters"].items():
            assert torch.equal(after["parameters"][name], expected), name
        codes = {code for code, subject in after["findings"] if subject == "load_path"}
        assert ("FM418" in codes) == (case in CONVERTED)
        assert ("FM439" in codes) == (case in READ or case.endswith("URL"))
        assert ("FM440" in codes) == (case == "packed")


@pytest.mark.parametrize("case", [*REFUSED, *REFUSED_STORED])
def test_what_cannot_be_loaded_is_an_error_on_every_rank(outcomes: list[dict[str, Any]], case: str) -> None:
    for found in outcomes:
        assert {**REFUSED, **REFUSED_STORED}[case][1] in found[case]["error"]


def test_no_source_was_changed(outcomes: list[dict[str, Any]], root: Path) -> None:
    assert [found["changed"] for found in outcomes] == [[], []]
    made = ["stale", "half", "elsewhere", f"ranks.{NAME}-rank0.pt", "full/packed.pt.gz", "taken"]
    assert {str(path.relative_to(root)) for path in root.rglob("*.fsdp2")} >= {f"{one}.fsdp2" for one in made}
    assert not any((root / f"{name}.fsdp2").exists() for name in ("refused", "later", "at_root", "ranks"))
    assert (root / "taken.fsdp2" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("options", LOADED)
def test_what_is_read_straight_is_what_composer_loads(outcomes: list[dict[str, Any]], options: str) -> None:
    """Timestamp, callbacks, schedulers, random states and the data's place too, with each of the options."""
    for found in outcomes:
        wanted, *others = (found[f"{source}, {options}"] for source in (f"sharded/{NAME}", *STRAIGHT))
        assert wanted["timestamp"] == (0 if options == "weights" else SAVED)
        assert wanted["seen"] == (-1 if options != "all" else SAVED)
        assert bool(wanted["rng"]) == (options == "all")
        whole = found[f"sharded/{NAME}, all"]
        assert (wanted["optimizer"] == whole["optimizer"]) == (options == "all")
        assert wanted["model"] == whole["model"]
        for other in others:
            assert other == wanted


@pytest.mark.parametrize(("version", "kind"), OLD.items())
def test_what_composer_saved_with_an_old_torch_is_loaded(
    outcomes: list[dict[str, Any]], version: str, kind: str
) -> None:
    """Composer itself reads optimizers at the root by functions that only know FSDP1."""
    expected = torch.load(DATA / f"torch-{version}" / f"{kind}.expected.pt")
    for outcome in outcomes:
        found = outcome[version]
        values = {**found["parameters"], **found["buffers"]}
        for name, value in expected["model"].items():
            if name != "head.weight":  # it is the embedding's
                assert torch.equal(values[f"net.{name}"], value), name
        assert len(expected["optimizer"]["state"]) > 10
        for name, states in expected["optimizer"]["state"].items():
            for key, value in states.items():
                assert torch.equal(found["optimizer"][f"net.{name}.{key}"], value), (name, key)
