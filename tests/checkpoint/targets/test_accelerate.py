"""The two forms of Accelerate's checkpoints: which is written, and what the full one holds."""

from __future__ import annotations

import json
import uuid
import zipfile
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
import torch

from fsdp_migrate.checkpoint_convert import (
    OutputOptions,
    convert_checkpoint,
    inspect_checkpoint,
    verify_checkpoints,
)
from fsdp_migrate.cli import main
from fsdp_migrate.errors import ConfigError
from tests.checkpoint import fault_sources
from tests.checkpoint.samples import save_with_torch
from tests.rank_bodies import shared_conversions
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from pathlib import Path

    from fsdp_migrate.checkpoint_convert import ConversionReport
    from fsdp_migrate.checkpoint_convert.manifest.options import StateDictForm


pytestmark = pytest.mark.any_torch


FULL = OutputOptions(state_dict_type="full")
MODEL, OPTIMIZER = "pytorch_model_fsdp.bin", "optimizer.bin"


def codes(report: ConversionReport) -> set[str]:
    return {finding.code for finding in report.findings}


def form_of(folder: Path) -> str:
    return "full" if (folder / MODEL).exists() else "sharded"


def two_of_each(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Save two models and two optimizers, names with wrappers in them, and an optimizer without a state."""
    (generator, adam), (critic, _) = fault_sources.states(1), fault_sources.states(2)
    group = {"lr": 0.5, "params": [f"_orig_mod.{name}" for name in critic]}
    state: dict[str, Any] = {
        "generator": generator,
        "generator_optimizer": adam,
        "critic": {f"_orig_mod.{name}": value for name, value in critic.items()},
        "critic_optimizer": {"state": {}, "param_groups": [group]},
        "seen": torch.arange(3),
        "step": 7,
    }
    return save_with_torch(state, folder / "source"), {**state, "critic": critic}


def test_several_models_and_optimizers(tmp_path: Path) -> None:
    source, state = two_of_each(tmp_path)
    report = convert_checkpoint(source, tmp_path / "out", to="accelerate", output_options=FULL)
    found = {path.name: torch.load(path, weights_only=True) for path in (tmp_path / "out").glob("*.bin")}
    wanted = {
        MODEL: state["generator"],
        "pytorch_model_fsdp_1.bin": state["critic"],
        OPTIMIZER: state["generator_optimizer"],
        "optimizer_1.bin": state["critic_optimizer"],
    }
    assert found.keys() == wanted.keys()
    for name in (MODEL, "pytorch_model_fsdp_1.bin"):
        assert found[name].keys() == wanted[name].keys()
        assert all(torch.equal(found[name][key], wanted[name][key]) for key in wanted[name])
    for name in (OPTIMIZER, "optimizer_1.bin"):
        assert found[name]["param_groups"][0]["params"] == list(state["critic"])
        assert found[name]["param_groups"][0]["lr"] == wanted[name]["param_groups"][0]["lr"]
        assert found[name]["state"].keys() == wanted[name]["state"].keys()
    for key, moments in wanted[OPTIMIZER]["state"].items():
        assert all(torch.equal(found[OPTIMIZER]["state"][key][m], moments[m]) for m in moments)
    assert verify_checkpoints(source, tmp_path / "out").is_same
    assert codes(report) >= {"FM214", "FM293"}
    assert (tmp_path / "out" / "other_0" / ".metadata").is_file()


def test_records_carry_their_checksums_and_casts_are_counted(tmp_path: Path) -> None:
    source = fault_sources.distributed(tmp_path)
    options: dict[str, Any] = {"to": "accelerate", "output_options": FULL, "checksums": True}
    report = convert_checkpoint(source, tmp_path / "out", dtype="bf16", world_size=4, **options)
    assert codes(report) >= {"FM205", "FM293"}
    assert "FM204" not in codes(report)
    assert report.as_dict()["entries"] > 50
    with zipfile.ZipFile(tmp_path / "out" / MODEL) as archive:
        assert archive.testzip() is None
    assert {value.dtype for value in torch.load(tmp_path / "out" / MODEL).values()} == {torch.bfloat16}
    assert verify_checkpoints(source, tmp_path / "out", dtype="bf16").is_same
    # A conversion that was finished is gone on with by doing nothing. Ranks write the same bytes.
    again = {**options, "dtype": "bf16", "resume": True}
    assert convert_checkpoint(source, tmp_path / "out", **again).bytes_resumed > 0
    out = str(tmp_path / "ranks")
    run_ranks(shared_conversions.convert, str(source), out, str(tmp_path / "store"), again, 64)
    for name in (MODEL, OPTIMIZER, "SHA256SUMS"):
        assert (tmp_path / "ranks" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


@pytest.mark.parametrize("kind", ["sharded", "full"])
def test_the_form_of_the_source_stays_where_nothing_else_is_said(kind: StateDictForm, tmp_path: Path) -> None:
    source = fault_sources.accelerate(tmp_path)
    if kind == "full":
        options = OutputOptions(state_dict_type="full")
        convert_checkpoint(source, tmp_path / "full", to="accelerate", output_options=options)
        source = tmp_path / "full"
    report = convert_checkpoint(source, tmp_path / "out", dtype="bf16")
    assert form_of(tmp_path / "out") == kind
    assert ("FM293" in codes(report)) == (kind == "full")
    other: StateDictForm = "full" if kind == "sharded" else "sharded"
    asked = OutputOptions(state_dict_type=other)
    convert_checkpoint(source, tmp_path / "other", dtype="bf16", output_options=asked)
    assert form_of(tmp_path / "other") == other
    assert verify_checkpoints(tmp_path / "out", tmp_path / "other").is_same


@pytest.mark.parametrize("place", ["source", "out", "above"])
def test_a_config_says_which_form(place: str, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    source = fault_sources.accelerate(tmp_path / "runs")
    out = tmp_path / "converted" / "out"
    out.parent.mkdir()
    folder = {"source": source, "out": out.parent, "above": tmp_path / "runs"}[place]
    config = folder / "accelerate.yaml"
    for says, form in (("FULL_STATE_DICT", "full"), ("SHARDED_STATE_DICT", "sharded"), ("3", "sharded")):
        config.write_text(f"fsdp_config:\n  fsdp_state_dict_type: {says}\n")
        report = convert_checkpoint(source, out, to="accelerate", overwrite=True)
        assert form_of(out) == form
        assert "FM288" not in codes(report)


@pytest.mark.parametrize("place", ["runs/checkpoint", "converted", "runs"])
def test_a_config_in_a_bucket_says_which_form(place: str, tmp_path: Path) -> None:
    """Nobody looked into a bucket, and a run whose config asks for the full form got the sharded one."""
    fs = fsspec.filesystem("memory")
    source = fault_sources.accelerate(tmp_path)
    fs.put(str(source), "/forms/runs/checkpoint", recursive=True)
    fs.pipe_file("/forms/runs/other/deeper.yaml", b"fsdp_state_dict_type: SHARDED_STATE_DICT")
    try:
        fs.pipe_file(f"/forms/{place}/accelerate.yaml", b"fsdp_state_dict_type: FULL_STATE_DICT")
        ends = "memory:///forms/runs/checkpoint", "memory:///forms/converted/out"
        report = convert_checkpoint(*ends, to="accelerate", overwrite=True)
        assert fs.exists(f"/forms/converted/out/{MODEL}")
        assert "FM288" not in codes(report)
    finally:
        fs.rm("/forms", recursive=True)


def test_a_config_that_asks_for_the_other_form_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = fault_sources.accelerate(tmp_path)
    (tmp_path / "a.yaml").write_text("fsdp_state_dict_type: FULL_STATE_DICT")
    out = str(tmp_path / "out")
    command = ["convert", str(source), out, "--state-dict-type", "sharded", "--json"]
    for more in (["--dry-run"], []):
        assert main([*command, *more]) == 0
        said = json.loads(capsys.readouterr().out)
        (finding,) = [f for f in said["plan" if more else "report"]["findings"] if f["code"] == "FM288"]
        assert "a.yaml" in finding["message"]
        assert "--state-dict-type" in finding["hint"]
    # Two configs that differ say nothing; that is said.
    (tmp_path / "b.json").write_text('{"state_dict_type": "SHARDED_STATE_DICT"}')
    report = convert_checkpoint(source, tmp_path / "other")
    (found,) = [finding for finding in report.findings if finding.code == "FM288"]
    assert "a.yaml" in found.message
    assert form_of(tmp_path / "other") == "sharded"
    # Of a target that is not Accelerate, nothing is said.
    assert "FM288" not in codes(convert_checkpoint(source, tmp_path / "torch", to="torch"))


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected one of 'auto', 'sharded', 'full'"):
        OutputOptions(state_dict_type="whole")  # type: ignore[arg-type]  # that is the point


def test_behind_a_url_the_model_comes_last(tmp_path: Path) -> None:
    source = fault_sources.accelerate(tmp_path)
    # A bucket whose name ends like that of a rank's file.
    name = f"{uuid.uuid4().hex}-1"
    for overwrite in (False, True):
        options: dict[str, Any] = {"output_options": FULL, "overwrite": overwrite}
        convert_checkpoint(source, f"memory://{name}", to="accelerate", **options)
        made = {info["name"]: info["created"] for info in fsspec.filesystem("memory").ls(f"/{name}")}
        assert max(made, key=lambda path: made[path]) == f"/{name}/{MODEL}"
    assert verify_checkpoints(source, f"memory://{name}").is_same
    assert inspect_checkpoint(f"memory://{name}").framework == "accelerate"
