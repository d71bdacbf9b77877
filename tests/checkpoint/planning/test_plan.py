"""What a plan casts and divides, and that all reasons against one come at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.checkpoint_convert.manifest.classify import find_parts
from fsdp_migrate.checkpoint_convert.planning.plan import plan_conversion
from fsdp_migrate.errors import PlanError
from tests.checkpoint.entries import CASES, manifest, model, optimizer, tensor, value


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert.manifest.manifest import Entry


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
