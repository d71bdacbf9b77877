"""Steps of a script's optimizers: alike under FSDP1 and prepared, and each fault is found where it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.models import Net
from tests.parity import watched_bodies
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from pathlib import Path


HOWS = ["flat", "originals", "children"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Train under FSDP1 in each way, and keep what was seen."""
    ways = {how: (how, "") for how in HOWS}
    ways |= {
        "closure": ("originals", "closure"),
        "flat and a temperature": ("flat", "temperature"),
        "flat, two models": ("flat", "two models, plain first"),
        "originals, two models": ("originals", "two models, plain first"),
        "a temperature": ("originals", "temperature"),
    }
    folders = {name: tmp_path_factory.mktemp(name.replace(" ", "-").replace(",", "")) for name in ways}
    for name, folder in folders.items():
        given = ways[name]
        run_ranks(watched_bodies.train, *given, str(folder), None)
    return folders


def compared(kept: Path, found: Path, how: str = "prepared", fault: str = "", **more: Any) -> list[Any]:
    found.mkdir(exist_ok=True)
    run_ranks(watched_bodies.train, how, fault, str(kept), str(found), *more.values())
    return [json.loads(path.read_text()) for path in sorted(found.iterdir())]


@pytest.mark.parametrize("how", HOWS)
def test_what_trains_alike_is_alike(how: str, kept: dict[str, Path], tmp_path: Path) -> None:
    steps = compared(kept[how], tmp_path, "prepared children" if how == "children" else "prepared")
    assert [(each["is_in_both"], each["differences"]) for each in steps] == [(True, [])] * 2
    assert [(each["are_fsdp1"], each["is_others"]) for each in steps] == [([True, False], False)] * 2
    net = Net()
    params, buffers = len(list(net.parameters())), len(list(net.buffers()))
    # Gradients, parameters and buffers; and before the first step what the parameters start from.
    assert [each["compared"] for each in steps] == [3 * params + buffers, 2 * params + buffers]


@pytest.mark.parametrize("how", ["flat", "originals"])
@pytest.mark.parametrize(
    ("fault", "step", "stage", "name", "said"),
    [
        ("start", 0, "parameter", "head.out.bias", ""),
        (
            "groups",
            1,
            "optimizer group",
            "head.norm.bias",
            "`weight_decay` is 0 under FSDP1, 0.5 under FSDP2",
        ),
        ("fewer", 1, "optimizer group", "head.out.bias", "in the optimizer only under FSDP1"),
        ("loss", 2, "gradient", None, "every number is 2 times FSDP1's"),
        ("buffer", 2, "buffer", "offset", ""),
    ],
)
def test_a_fault_is_named_where_it_is(
    how: str,
    fault: str,
    step: int,
    stage: str,
    name: str | None,
    said: str,
    kept: dict[str, Path],
    tmp_path: Path,
) -> None:
    found = compared(kept[how], tmp_path, fault=fault)
    first = next(each for document in found for each in document["differences"])
    assert (first["step"], first["stage"], first["name"]) == (step, stage, name or first["name"])
    assert said in f"{first['clue']} {first['gap']['words']}"


@pytest.mark.parametrize("fault", ["frozen", "taken away", "frozen, state made"])
def test_fsdp1_is_read_where_parameters_have_no_gradient(fault: str, tmp_path: Path) -> None:
    """Which those are, a rank may not see by its own shard; torch's own gathering fails then."""
    kept = tmp_path / "kept"
    kept.mkdir()
    run_ranks(watched_bodies.train, "originals", fault, str(kept), None)
    steps = compared(kept, tmp_path / "found", fault=fault)
    assert [(each["is_in_both"], each["differences"]) for each in steps] == [(True, [])] * 2
    assert steps[0]["have_state"] == ["state made" in fault] * 2


def test_gradients_that_a_closure_makes_are_seen(kept: dict[str, Path], tmp_path: Path) -> None:
    steps = compared(kept["closure"], tmp_path / "alike", fault="closure")
    assert [each["differences"] for each in steps] == [[], []]
    assert steps[1]["compared"] == compared(kept["originals"], tmp_path / "plain")[1]["compared"]


def test_a_step_that_fsdp1_had_not_is_said(kept: dict[str, Path], tmp_path: Path) -> None:
    found = compared(kept["flat"], tmp_path, fault="a step more", steps=3)
    assert [each["is_in_both"] for each in found] == [True, True, False]


def test_a_step_that_changes_nothing_is_none(kept: dict[str, Path], tmp_path: Path) -> None:
    found = compared(kept["originals"], tmp_path, fault="state made")
    assert [(each["is_in_both"], each["differences"]) for each in found] == [(True, [])] * 2
    # But it is told which optimizer had a state before the first step.
    assert [each["have_state"] for each in found] == [[False, True], [True, True]]


def test_no_more_steps_are_seen_than_were_asked_for(kept: dict[str, Path], tmp_path: Path) -> None:
    assert len(compared(kept["flat"], tmp_path, fault="a step more", steps=1)) == 1


def test_fsdp2_of_other_code_is_told(kept: dict[str, Path], tmp_path: Path) -> None:
    steps = compared(kept["children"], tmp_path, "other children")
    assert [(each["are_fsdp1"], each["is_others"]) for each in steps] == [([True, False], True)] * 2


@pytest.mark.parametrize("how", ["flat and a temperature", "a temperature"])
def test_what_belongs_to_no_module_is_compared_too(how: str, kept: dict[str, Path], tmp_path: Path) -> None:
    alike = compared(kept[how], tmp_path / "alike", fault="temperature")
    plain = compared(kept["originals"], tmp_path / "plain")
    assert [each["differences"] for each in alike] == [[], []]
    # Its gradient, its value after each step, and before the first.
    assert [each["compared"] - other["compared"] for each, other in zip(alike, plain, strict=True)] == [3, 2]
    other = compared(kept[how], tmp_path / "other", fault="temperature lr")
    found = [each for document in other for each in document["differences"]]
    assert {each["name"] for each in found} == {"(of no module) 0"}
    assert [each["stage"] for each in found if each["step"] == 1] == ["optimizer group", "parameter"]


@pytest.mark.parametrize("how", ["flat", "originals"])
def test_all_models_of_an_optimizer_are_seen_also_after_a_plain_one(
    how: str, kept: dict[str, Path], tmp_path: Path
) -> None:
    """The steps of the plain model, before it is sharded, use up none of those after it."""
    steps = compared(kept[f"{how}, two models"], tmp_path, fault="two models, plain first")
    assert [each["differences"] for each in steps] == [[]] * 4
    assert [each["are_fsdp1"] for each in steps] == [[False, False]] * 2 + [[True, False]] * 2
    alone = compared(kept[how], tmp_path / "alone")
    # The first model was seen before; gradients and values of the second's weight and bias are new.
    assert steps[-1]["compared"] == alone[-1]["compared"] + 4
