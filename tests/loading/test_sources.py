"""Every source that docs/checkpoints.md lists, loaded without converting: the bits of convert and load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.checkpoint_convert import convert_checkpoint, inspect_checkpoint
from tests.checkpoint.every_source import SOURCES, make_sources
from tests.checkpoint.samples import load_with_torch
from tests.rank_bodies import loading
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from tests.checkpoint.rank_sources import RankSources


Both = tuple[dict[str, Any], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def loaded(rank_sources: RankSources, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Both]:
    """Return what each source's conversion holds, as torch loads it, and what each rank loaded."""
    folder = tmp_path_factory.mktemp("sources")
    cases, wanted = [], {}
    for number, (name, (path, options)) in enumerate(make_sources(rank_sources, folder).items()):
        out = folder / f"converted{number}"
        convert_checkpoint(path, out, to="torch", options=options)
        state = load_with_torch(out)
        parts = {part.kind: part.prefix for part in inspect_checkpoint(out).parts}
        model, optimizer = _below(state, parts["model"]), _below(state, parts.get("optimizer"))
        tensors = {key: value for key, value in model.items() if isinstance(value, torch.Tensor)}
        groups = _groups(optimizer, tensors)
        wanted[name] = {"model": tensors, "optimizer": optimizer, "groups": groups}
        cases.append((str(path), options, tensors, groups))
    found = run_ranks(loading.load_each, cases, timeout=400)
    return {name: (wanted[name], [rank[number] for rank in found]) for number, name in enumerate(wanted)}


def _below(state: Any, prefix: tuple[str | int, ...] | None) -> dict[str, Any]:
    """Return what a part holds."""
    if prefix is None:
        return {}
    for step in prefix:
        state = state[step]
    found: dict[str, Any] = state
    return found


def _groups(optimizer: dict[str, Any], tensors: dict[str, torch.Tensor]) -> list[dict[str, Any]]:
    """Return the parameter groups; a flattened optimizer has settings of parameters."""
    groups = optimizer.get("param_groups", [])
    if groups:
        return list(groups)
    flat = {
        key.removeprefix("param_groups."): value
        for key, value in optimizer.items()
        if key.startswith("param_groups.")
    }
    names = [name for name in tensors if f"{name}.lr" in flat]
    settings = ("lr", "betas", "weight_decay")
    return [{"params": names, **{key: flat[f"{names[0]}.{key}"] for key in settings}}] if names else []


def _states(optimizer: dict[str, Any]) -> dict[str, Any]:
    """Return each value of the optimizer's state by parameter and field."""
    nested = optimizer.get("state", {})
    found = {f"{name}.{field}": value for name, fields in nested.items() for field, value in fields.items()}
    flat = {key: value for key, value in optimizer.items() if key.startswith("state.")}
    return {**found, **{key.removeprefix("state."): value for key, value in flat.items()}}


@pytest.mark.parametrize("source", SOURCES)
def test_it_loads_as_its_conversion_does(source: str, loaded: dict[str, Both]) -> None:
    wanted, found = loaded[source]
    for rank in found:
        for name, tensor in wanted["model"].items():
            assert rank[f"model.{name}"].dtype == tensor.dtype, name
            assert torch.equal(rank[f"model.{name}"], tensor), name
        for name, value in _states(wanted["optimizer"]).items():
            assert torch.equal(rank[f"optimizer.{name}"], torch.as_tensor(value)), name
        for own, group in zip(rank.get("groups", []), wanted["groups"], strict=True):
            assert own["params"] == list(group["params"])
            for setting in ("lr", "betas", "weight_decay"):
                assert own[setting] == group[setting]
