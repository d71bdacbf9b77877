"""What every target has to do: no entry is left out unsaid, and what cannot be held is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.checkpoint_convert import (
    OutputOptions,
    convert_checkpoint,
    inspect_checkpoint,
    plan_conversion,
    verify_checkpoints,
)
from fsdp_migrate.checkpoint_convert.targets.frameworks import TARGETS
from fsdp_migrate.errors import ConfigError, OutputExistsError, PlanError
from tests.checkpoint.samples import (
    COMPOSER,
    DATA,
    FLAT,
    PLAIN,
    codes,
    contents,
    load_with_torch,
    save_with_torch,
)


if TYPE_CHECKING:
    from pathlib import Path


CLASS = OutputOptions(optimizer_class="AdamW")


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("source", [PLAIN, COMPOSER], ids=["torch", "composer"])
def test_every_entry_is_in_the_output_or_named(source: Path, to: str) -> None:
    manifest = inspect_checkpoint(source)
    plan = plan_conversion(manifest, to=to, output_options=CLASS)
    kept = {entry.source.key for entry in plan.entries}
    kept |= {entry.key for file in plan.files for entry in file.sources}
    # A flattened optimizer has its groups under each parameter, which leaves nothing to list in them.
    listed = {names.key for names in manifest.name_lists} if to == "torchtitan" else set()
    assert set(manifest.entries) - kept == set(plan.left_out)
    named = " ".join(f"{finding.subject} {finding.message}" for finding in plan.findings)
    for part in manifest.parts:
        lost = [key for key in part.keys if key in plan.left_out and key not in listed]
        assert not lost or f"`{part.name}`" in named or all(key in named for key in lost), part.name
    others = {part.name for part in manifest.parts if part.kind == "other"}
    moved = {part.name for part in manifest.parts if part.kind == "other" and set(part.keys) - kept == set()}
    assert to == "hf" or others == moved


@pytest.mark.alike
@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("name", ["torch-2.3.1/mesh.dcp", "composer-0.32.1/ep0-ba2"])
def test_verify_finds_a_target_the_same_and_a_cast_different(name: str, to: str, tmp_path: Path) -> None:
    convert_checkpoint(DATA / name, tmp_path / "out", to=to, world_size=3, output_options=CLASS)
    report = verify_checkpoints(DATA / name, tmp_path / "out")
    assert report.differences == ()
    parts = inspect_checkpoint(DATA / name).part_of()
    assert all(parts[key].kind == "other" or to == "hf" for key in report.aside if key in parts)
    wanted = [e.key for e in inspect_checkpoint(DATA / name).tensors if parts[e.key].kind == "model"]
    # Of a tied pair safetensors have one.
    assert report.tensors >= len(wanted) - (to == "hf")
    out = inspect_checkpoint(tmp_path / "out")
    damaged = convert_checkpoint(
        tmp_path / "out", tmp_path / "other", to="hf" if to == "hf" else "torch", dtype="bf16"
    )
    assert damaged.output
    assert not verify_checkpoints(out, tmp_path / "other").is_same


@pytest.mark.alike
@pytest.mark.parametrize("to", ["accelerate", "hf", "lightning", "torchtitan"])
def test_an_output_of_any_target_can_be_replaced_and_gone_on_with(to: str, tmp_path: Path) -> None:
    convert_checkpoint(PLAIN, tmp_path / "out", to=to, checksums=True)
    before = contents(tmp_path / "out")
    convert_checkpoint(PLAIN, tmp_path / "out", to=to, checksums=True, overwrite=True, resume=True)
    after = contents(tmp_path / "out")
    assert after.keys() == before.keys()
    data = {name for name in after if not name.endswith((".metadata", "SHA256SUMS"))}
    assert all(after[name] == before[name] for name in data)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(OutputExistsError, match="no checkpoint"):
        convert_checkpoint(PLAIN, tmp_path / "mine", to=to, overwrite=True)


def test_composer_to_the_folders_of_accelerate(tmp_path: Path) -> None:
    report = convert_checkpoint(COMPOSER, tmp_path / "out", to="accelerate")
    found = {name.partition("/")[0] for name in contents(tmp_path / "out")}
    assert found == {"optimizer_0", "other_0", "pytorch_model_fsdp_0", "scheduler.bin"}
    state = load_with_torch(tmp_path / "out" / "other_0")
    assert state["state"]["timestamp"]["Timestamp"]["batch"] == 2
    assert torch.load(tmp_path / "out" / "scheduler.bin", weights_only=True)["last_epoch"] == 2
    assert {"FM214", "FM250"} <= codes(report)


def test_composer_to_lightning_keeps_count(tmp_path: Path) -> None:
    report = convert_checkpoint(COMPOSER, tmp_path / "out", to="lightning")
    meta = torch.load(tmp_path / "out" / "meta.pt", weights_only=True)
    assert (meta["epoch"], meta["global_step"]) == (0, 2)
    assert [scheduler["last_epoch"] for scheduler in meta["lr_schedulers"]] == [2]
    assert "FM256" in codes(report)


def test_several_optimizers_become_one_as_get_state_dict_makes_them(tmp_path: Path) -> None:
    def part(name: str, lr: float) -> dict[str, Any]:
        group = {"lr": lr, "params": [name]}
        return {"state": {name: {"exp_avg": torch.full((3,), lr)}}, "param_groups": [group]}

    state = {
        "state": {
            "model": {"a": torch.ones(3), "b": torch.zeros(3)},
            "optimizers": {"AdamW": part("a", 0.1), "SGD": part("b", 0.2)},
            "timestamp": {"batch": 1},
            "run_name": "two",
        }
    }
    save_with_torch(state, tmp_path / "source")
    convert_checkpoint(tmp_path / "source", tmp_path / "out", to="torch")
    found = load_with_torch(tmp_path / "out")["optim"]
    assert [(group["lr"], group["params"]) for group in found["param_groups"]] == [(0.1, ["a"]), (0.2, ["b"])]
    assert found["state"]["b"]["exp_avg"][0] == pytest.approx(0.2)
    convert_checkpoint(tmp_path / "source", tmp_path / "apart", to="accelerate")
    for number, lr in enumerate((0.1, 0.2)):
        own = load_with_torch(tmp_path / "apart" / f"optimizer_{number}")["optimizer"]
        assert own["param_groups"][0]["lr"] == lr


def test_what_a_target_cannot_hold_is_refused() -> None:
    refused = [
        (PLAIN, "composer", None, "FM254"),
        (FLAT.with_name("plain.dcp"), "composer", "AdamW", None),
    ]
    for source, to, name, code in refused:
        manifest = inspect_checkpoint(source)
        options = OutputOptions(optimizer_class=name)
        if code is None:
            assert "FM255" in codes(plan_conversion(manifest, to=to, output_options=options))
            continue
        with pytest.raises(PlanError) as caught:
            plan_conversion(manifest, to=to, output_options=options)
        assert {finding.code for finding in caught.value.findings} == {code}


def test_two_models_and_flattened_optimizers_are_refused_where_one_is_looked_for(tmp_path: Path) -> None:
    weights = {"w": torch.ones(2)}
    save_with_torch({"model": weights, "net": weights}, tmp_path / "models")
    flat = {"state.w.exp_avg": torch.ones(2), "param_groups.w.lr": 0.1}
    save_with_torch({"model": weights, "optim": flat}, tmp_path / "flat")
    for name, to, code in (
        ("models", "lightning", "FM251"),
        ("models", "hf", "FM251"),
        ("flat", "accelerate", "FM252"),
        ("flat", "lightning", "FM252"),
    ):
        with pytest.raises(PlanError, match=to) as caught:
            plan_conversion(inspect_checkpoint(tmp_path / name), to=to)
        assert [finding.code for finding in caught.value.findings] == [code]
    convert_checkpoint(tmp_path / "flat", tmp_path / "out", to="torchtitan")
    assert load_with_torch(tmp_path / "out")["optimizer"].keys() == flat.keys()


def test_sizes_and_classes_that_mean_nothing() -> None:
    wrong: list[dict[str, Any]] = [{"max_shard_size": 0}, {"optimizer_class": "torch.optim.AdamW"}]
    for options in wrong:
        with pytest.raises(ConfigError, match=next(iter(options))):
            OutputOptions(**options)
