"""Which entries are a model, which an optimizer, and what their names become."""

from __future__ import annotations

from typing import Any

import pytest

from fsdp_migrate.checkpoint_convert.manifest.classify import find_parts
from fsdp_migrate.checkpoint_convert.manifest.keys import (
    Path,
    join_path,
)
from fsdp_migrate.checkpoint_convert.manifest.manifest import (
    BytesEntry,
    Chunk,
    Entry,
    Manifest,
    NameList,
    Stored,
    TensorEntry,
)
from fsdp_migrate.checkpoint_convert.planning.plan import plan_conversion
from fsdp_migrate.errors import PlanError


PLACE = Stored("__0_0.distcp", 0, 1000)


def tensor(*path: str | int, dtype: str = "float32", shape: tuple[int, ...] = (4, 2)) -> TensorEntry:
    offsets = (0,) * len(shape)
    return TensorEntry(join_path(path), path, dtype, shape, (Chunk(offsets, shape, PLACE),))


def value(*path: str | int) -> BytesEntry:
    return BytesEntry(join_path(path), path, PLACE)


def model(*prefix: str, wrap: str = "") -> list[Entry]:
    return [tensor(*prefix, f"{wrap}a.weight"), tensor(*prefix, f"{wrap}a.bias", shape=(4,))]


def optimizer(*prefix: str, wrap: str = "") -> list[Entry]:
    return [
        tensor(*prefix, "state", f"{wrap}a.weight", "exp_avg"),
        tensor(*prefix, "state", f"{wrap}a.weight", "step", shape=()),
        value(*prefix, "param_groups", 0, "lr"),
        value(*prefix, "param_groups", 0, "params"),
    ]


def flattened(*prefix: str) -> list[Entry]:
    return [
        tensor(*prefix, "state.a.weight.exp_avg"),
        value(*prefix, "param_groups.a.weight.lr"),
    ]


def manifest(entries: list[Entry], **fields: Any) -> Manifest:
    found = {entry.key: entry for entry in entries}
    known: dict[str, Any] = {
        "source": "/ckpt",
        "layout": "dcp",
        "framework": "torch",
        "evidence": "",
        "entries": found,
        "files": {"__0_0.distcp": 10_000},
        "extra_files": {},
        "parts": find_parts(found),
    }
    return Manifest(**{**known, **fields})


CASES: dict[str, tuple[list[Entry], set[tuple[str, Path]]]] = {
    "get_state_dict": (
        [*model("model"), *optimizer("optim")],
        {("model", ("model",)), ("optimizer", ("optim",))},
    ),
    "names of the user's own": (
        [*model("net_a"), *optimizer("adam")],
        {("model", ("net_a",)), ("optimizer", ("adam",))},
    ),
    "a Stateful": (
        [*model("app", "model"), *optimizer("app", "optim")],
        {("model", ("app", "model")), ("optimizer", ("app", "optim"))},
    ),
    "flattened optimizer": (
        [*model("model"), *flattened("optimizer")],
        {("model", ("model",)), ("optimizer", ("optimizer",))},
    ),
    "whole parameter groups": (
        [*model("model"), tensor("o", "state", "a.weight", "exp_avg"), value("o", "param_groups")],
        {("model", ("model",)), ("optimizer", ("o",))},
    ),
    "Composer": (
        [
            *model("state", "model"),
            *optimizer("state", "optimizers", "AdamW"),
            value("state", "timestamp", "Timestamp", "epoch"),
            value("state", "run_name"),
            tensor("rng", 0, "torch", dtype="uint8"),
        ],
        {
            ("model", ("state", "model")),
            ("optimizer", ("state", "optimizers", "AdamW")),
            ("other", ("state", "timestamp")),
            ("other", ("state",)),
            ("other", ("rng",)),
        },
    ),
    "Composer before torch 2.3": (
        [*model("state", "model"), *optimizer("optimizers", "AdamW"), value("state", "run_name")],
        {
            ("model", ("state", "model")),
            ("optimizer", ("optimizers", "AdamW")),
            ("other", ("state",)),
        },
    ),
    "Lightning": (
        [*model("state_dict"), *optimizer("optimizer_0")],
        {("model", ("state_dict",)), ("optimizer", ("optimizer_0",))},
    ),
    "torchtitan": (
        [*model(), *optimizer("optimizer"), value("train_state"), value("lr_scheduler", "x")],
        {
            ("model", ()),
            ("optimizer", ("optimizer",)),
            ("other", ("train_state",)),
            ("other", ("lr_scheduler",)),
        },
    ),
    "a bare state dict": (model(), {("model", ())}),
    "Accelerate's model folder": (model("model"), {("model", ("model",))}),
    "Accelerate's optimizer folder": (optimizer("optimizer"), {("optimizer", ("optimizer",))}),
    "a copy of the weights": (
        [*model("model"), *model("ema"), *optimizer("optim")],
        {("model", ("model",)), ("other", ("ema",)), ("optimizer", ("optim",))},
    ),
    "state without groups": (
        [*model("model"), tensor("optim", "state", "a.weight", "exp_avg")],
        {("model", ("model",)), ("optimizer", ("optim",))},
    ),
    "a model called state": (
        [tensor("model", "state.a.weight"), *optimizer("optim")],
        {("model", ("model",)), ("optimizer", ("optim",))},
    ),
    "extra state": (
        [*model("model"), value("model", "fp8._extra_state", "amax"), *optimizer("optim")],
        {("model", ("model",)), ("optimizer", ("optim",))},
    ),
    "a dict called model that is none": (
        [value("extra", "model", "x", "y"), tensor("extra", "model", "x", "z")],
        {("other", ("extra",))},
    ),
    "statistics with the optimizer's words": (
        [*model("model"), tensor("metrics", "state", "loss"), value("metrics", "state", "n")],
        {("model", ("model",)), ("other", ("metrics",))},
    ),
    "wrapped names": (
        [*model("m", wrap="_orig_mod."), *optimizer("o")],
        {("model", ("m",)), ("optimizer", ("o",))},
    ),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_parts_are_found_by_structure(name: str) -> None:
    entries, wanted = CASES[name]
    parts = find_parts({entry.key: entry for entry in entries})
    assert {(part.kind, part.prefix) for part in parts} == wanted
    keys = [key for part in parts for key in part.keys]
    assert sorted(keys) == sorted(entry.key for entry in entries)


@pytest.mark.parametrize("name", sorted(CASES))
def test_casts_touch_models_only(name: str) -> None:
    entries, wanted = CASES[name]
    if not any(kind == "model" for kind, _ in wanted):
        with pytest.raises(PlanError, match="FM225"):
            plan_conversion(manifest(entries), dtype="bf16")
        return
    plan = plan_conversion(manifest(entries), dtype="bf16")
    models = [prefix for kind, prefix in wanted if kind == "model"]
    for planned in plan.tensors:
        path = planned.source.path or ()
        of_model = any(path[: len(m)] == m and (m or len(path) == 1) for m in models)
        assert planned.is_cast == of_model, planned.key


@pytest.mark.parametrize("name", sorted(CASES))
def test_steps_are_never_cast(name: str) -> None:
    entries, wanted = CASES[name]
    if any(kind == "optimizer" for kind, _ in wanted):
        plan = plan_conversion(manifest(entries), optimizer_dtype="bf16")
        assert {entry.source.key.rpartition(".")[2] for entry in plan.tensors if entry.is_cast} == {"exp_avg"}


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


def test_numbers_are_refused_unless_the_model_has_them() -> None:
    from fsdp_migrate.checkpoint_convert.sources.content_findings import overwritten_findings

    def codes(entries: list[Entry]) -> set[str]:
        found = {entry.key: entry for entry in entries}
        findings = overwritten_findings(found, find_parts(found), ())
        return {finding.code for finding in findings}

    numbered: list[Entry] = [
        tensor("optim", "state", "0", "exp_avg"),
        value("optim", "param_groups", 0, "params"),
    ]
    assert "FM222" in codes([*model("model"), *numbered])
    assert "FM222" not in codes([tensor("model", "0"), *numbered])
    sequential: list[Entry] = [
        tensor("optim", "state", "0.weight", "exp_avg"),
        value("optim", "param_groups", 0, "params"),
    ]
    assert "FM222" not in codes([tensor("model", "0.weight"), *sequential])


def test_two_optimizers_of_one_parameter_are_refused() -> None:
    entries = [
        *model("state", "model"),
        *optimizer("state", "optimizers", "AdamW"),
        *optimizer("state", "optimizers", "SGD"),
        value("state", "run_name"),
    ]
    with pytest.raises(PlanError, match=r"FM221 .*AdamW.*and .*SGD.* would both be called `optim\.state\.a"):
        plan_conversion(manifest(entries, framework="composer"), to="torch")


def test_all_reasons_come_at_once() -> None:
    values = [tensor("a", wrap + name, "x") for wrap in ("", "_orig_mod.") for name in ("one", "other")]
    entries: list[Entry] = [*values, value("b")]
    with pytest.raises(PlanError) as caught:
        plan_conversion(manifest(entries), weights_only=True, dtype="bf16", optimizer_dtype="bf16")
    codes = [finding.code for finding in caught.value.findings]
    assert codes == ["FM225", "FM225", "FM225"]
    with pytest.raises(PlanError) as caught:
        plan_conversion(manifest(entries), dtype="bf16")
    assert [finding.code for finding in caught.value.findings] == ["FM221", "FM221", "FM225"]


def test_a_checkpoint_of_one_rank_is_divided_whole() -> None:
    entries = [*model("model"), *optimizer("optim"), tensor("rng", shape=(8,))]
    plan = plan_conversion(manifest(entries), world_size=2)
    assert {entry.key: len(entry.boxes) for entry in plan.tensors} == {
        "model.a.weight": 2,
        "model.a.bias": 2,
        "optim.state.a.weight.exp_avg": 2,
        "optim.state.a.weight.step": 1,
        "rng": 1,
    }
