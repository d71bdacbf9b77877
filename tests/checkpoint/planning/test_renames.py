"""What becomes of names: where `module.` comes off, and where it stays."""

from __future__ import annotations

from typing import Any

from fsdp_migrate.checkpoint_convert.manifest.manifest import (
    Entry,
    NameList,
)
from fsdp_migrate.checkpoint_convert.planning.plan import plan_conversion
from tests.checkpoint.entries import manifest, model, optimizer, tensor, value


def names_after(entries: list[Entry], **fields: Any) -> list[str]:
    return [entry.key for entry in plan_conversion(manifest(entries, **fields)).entries]


def lists(*names: str) -> dict[str, Any]:
    return {"name_lists": (NameList("optim.param_groups.0.params", names),)}


def test_module_comes_off_where_every_name_has_it() -> None:
    entries = [*model("model", wrap="module."), *optimizer("optim", wrap="module.")]
    plan = plan_conversion(manifest(entries, **lists("module.a.weight")))
    assert plan.entries[0].key == "model.a.weight"
    assert plan.entries[2].key == "optim.state.a.weight.exp_avg"
    assert plan.entries[2].path == ("optim", "state", "a.weight", "exp_avg")
    assert plan.entries[4].path == ("optim", "param_groups", 0, "lr")
    assert {"FM203"} <= {finding.code for finding in plan.findings}


def test_module_stays_where_one_name_lacks_it() -> None:
    entries = [*model("model", wrap="module."), tensor("model", "head.weight")]
    assert names_after(entries) == [entry.key for entry in entries]


def test_module_stays_in_the_middle() -> None:
    entries: list[Entry] = [tensor("model", "a.module.weight"), tensor("model", "module_list.0")]
    assert names_after(entries) == [entry.key for entry in entries]


def test_module_comes_off_behind_a_wrapper() -> None:
    entries: list[Entry] = [tensor("model", "_orig_mod.module.a.weight")]
    assert names_after(entries) == ["model.a.weight"]


def test_module_comes_off_flattened_optimizers() -> None:
    entries: list[Entry] = [
        tensor("model", "module.a.weight"),
        tensor("optim", "state.module.a.weight.exp_avg"),
        value("optim", "param_groups.module.a.weight.lr"),
    ]
    assert names_after(entries) == [
        "model.a.weight",
        "optim.state.a.weight.exp_avg",
        "optim.param_groups.a.weight.lr",
    ]
