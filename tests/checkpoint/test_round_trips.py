"""Everything that a writer can write is read back by torch itself: states drawn at random, in every way.

``python -m tests.checkpoint.round_trip 5000`` does as many draws as one likes; so does ``ROUND_TRIPS`` here.
"""

from __future__ import annotations

import collections
import os
import pathlib
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.checkpoint_convert import convert_checkpoint, inspect_checkpoint
from fsdp_migrate.errors import PlanError
from tests.checkpoint.round_trip import draw, loads, round_trip, same, save, state_of
from tests.checkpoint.round_trips_bodies import save_draws
from tests.checkpoint.samples import load_with_torch, save_with_torch
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = [pytest.mark.any_torch, pytest.mark.slow]


DRAWS = int(os.environ.get("ROUND_TRIPS", "150"))
ON_RANKS = max(DRAWS // 6, 1)


def check(results: dict[str, str]) -> None:
    """Assert that every draw came back, or was refused, and that more than a few came back."""
    wrong = {name: result for name, result in results.items() if result not in ("equal", "refused")}
    assert wrong == {}
    assert sum(result == "equal" for result in results.values()) > len(results) / 2


def test_what_one_process_saved(tmp_path: Path) -> None:
    results = {}
    for seed in range(DRAWS):
        drawn, folder = draw(seed), tmp_path / str(seed)
        folder.mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            saved = save(drawn, folder)
            if saved is not None:
                results[f"{seed} {drawn.way} {drawn.options}"] = round_trip(drawn, saved, folder)
    check(results)


def test_what_two_ranks_saved(tmp_path: Path) -> None:
    saved = run_ranks(save_draws, list(range(ON_RANKS)), str(tmp_path))[0]
    results = {}
    for seed in saved:
        drawn = draw(seed, ranks=2)
        folder = tmp_path / f"converted-{seed}"
        folder.mkdir()
        if loads(tmp_path / str(seed)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results[f"{seed} {drawn.options}"] = round_trip(drawn, tmp_path / str(seed), folder)
    check(results)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        bool,
        list,
        dict,
        bytes,
        object,
        collections.defaultdict(list, a=[1]),
        torch.Size([2, 3]),
        [torch.Size(()), ()],
        pathlib.PurePosixPath("/a/b"),
        pathlib.PureWindowsPath("a\\b"),
        (torch.nn.Parameter(torch.ones(2)), torch.ones(2, requires_grad=True)),
        (torch.ones(2, dtype=torch.complex64).conj(),),
        (collections.OrderedDict(a=1), collections.Counter("ab")),
        {"": 1, "a": 2},
        {(1, "a"): 1, None: 2, b"k": 3, True: 4, torch.float32: 5},
    ],
    ids=repr,
)
def test_a_value_keeps_its_type(value: Any, tmp_path: Path) -> None:
    state = {"model": {"w": torch.ones(2)}, "value": value}
    torch.save(state, tmp_path / "a.pt")
    report = convert_checkpoint(tmp_path / "a.pt", tmp_path / "out")
    found = load_with_torch(tmp_path / "out")["value"]
    if isinstance(value, dict):
        # A flat state has plain mappings with text for keys, which is said.
        said = {finding.code for finding in report.findings}
        assert said >= ({"FM286"} if type(value) is not dict else set())
        assert said >= ({"FM275"} if any(type(key) is not str for key in value) else set())
        value = {str(key): item for key, item in value.items()}
    assert same(found, value)


def test_requires_grad_comes_along(tmp_path: Path) -> None:
    pair = (torch.nn.Parameter(torch.ones(2), requires_grad=False), torch.ones(2, requires_grad=True))
    torch.save({"model": {"w": torch.ones(2)}, "value": pair}, tmp_path / "a.pt")
    convert_checkpoint(tmp_path / "a.pt", tmp_path / "out")
    one, other = load_with_torch(tmp_path / "out")["value"]
    assert (type(one), one.requires_grad) == (torch.nn.Parameter, False)
    assert (type(other), other.requires_grad) == (torch.Tensor, True)


def test_keys_that_nobody_can_tell_the_text_of_are_refused(tmp_path: Path) -> None:
    torch.save({"model": {"w": torch.ones(2)}, "value": {frozenset({1}): 2}}, tmp_path / "a.pt")
    assert "FM287" in {finding.code for finding in inspect_checkpoint(tmp_path / "a.pt").findings}
    with pytest.raises(PlanError, match=r"FM287.*frozenset"):
        convert_checkpoint(tmp_path / "a.pt", tmp_path / "out")
    convert_checkpoint(tmp_path / "a.pt", tmp_path / "out", weights_only=True)


def test_an_empty_key_keeps_its_name(tmp_path: Path) -> None:
    state = {"model": {"_orig_mod.w": torch.ones(2)}, "value": {"": 1, "a": {"": 2}}}
    source = save_with_torch(state, tmp_path / "source")
    convert_checkpoint(source, tmp_path / "out")
    assert load_with_torch(tmp_path / "out")["value"] == state["value"]


def test_a_cast_names_what_it_leaves_alone(tmp_path: Path) -> None:
    weights = {"a": torch.ones(2), "b": torch.ones(3).to(torch.float8_e4m3fn)}
    torch.save({"model": weights}, tmp_path / "a.pt")
    report = convert_checkpoint(tmp_path / "a.pt", tmp_path / "out", dtype="bf16")
    (finding,) = [found for found in report.findings if found.code == "FM284"]
    assert "`model.b`" in finding.message
    assert "float8_e4m3fn" in finding.message
    kept = load_with_torch(tmp_path / "out")["model"]
    assert (kept["a"].dtype, kept["b"].dtype) == (torch.bfloat16, torch.float8_e4m3fn)


def test_a_type_that_safetensors_lack_is_refused(tmp_path: Path) -> None:
    torch.save({"model": {"a": torch.ones(2, dtype=torch.complex128)}}, tmp_path / "a.pt")
    with pytest.raises(PlanError, match=r"FM290.*complex128"):
        convert_checkpoint(tmp_path / "a.pt", tmp_path / "out", to="hf")


@pytest.mark.filterwarnings("ignore")  # torch warns of what it draws, once in a process
def test_the_draws_hold_every_kind_of_value() -> None:
    kinds: collections.Counter[str] = collections.Counter()

    def walk(value: Any) -> None:
        kinds[type(value).__name__] += 1
        if isinstance(value, torch.Tensor):
            kinds[str(value.dtype)] += 1
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            walk(item)

    for seed in range(100):
        walk({key: item for key, item in state_of(seed).items() if key.startswith("extra")})
    assert len(kinds) > 50
