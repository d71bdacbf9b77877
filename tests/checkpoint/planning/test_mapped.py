"""What a map of parameters makes of a checkpoint, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from fsdp_migrate import load_checkpoint
from fsdp_migrate.checkpoint_convert import (
    OutputOptions,
    SourceOptions,
    convert_checkpoint,
    inspect_checkpoint,
    plan_conversion,
    verify_checkpoints,
)
from fsdp_migrate.checkpoint_convert.execution.identity import layout_digest
from fsdp_migrate.checkpoint_convert.execution.new_values import new_values
from fsdp_migrate.checkpoint_convert.execution.placement import place
from fsdp_migrate.checkpoint_convert.maps.own_files import parse_map
from fsdp_migrate.checkpoint_convert.storage.opening import open_folder
from fsdp_migrate.checkpoint_convert.targets.frameworks import TARGETS
from fsdp_migrate.cli import main
from fsdp_migrate.errors import CheckpointMismatchError, ConfigError
from fsdp_migrate.sharding.outlines import outline_model
from tests.checkpoint.planning.maps import EXPERTS, MAP, MAPPED, RULES, New, Old, stacked, state_of
from tests.checkpoint.samples import load_with_torch, save_with_torch


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

BACK = """
- {from: experts.gate_up_proj, split: 1, unstack: 0, to: [experts.*.w1.weight, experts.*.w3.weight]}
- {from: experts.down_proj, unstack: 0, to: experts.*.w2.weight}
- {from: mlp, to: moe}
"""


@pytest.mark.alike
@pytest.mark.parametrize("world_size", [None, 1, 4])
@pytest.mark.parametrize("form", ["dcp", "file"])
def test_weights_moments_and_groups(form: str, world_size: int | None, tmp_path: Path) -> None:
    state = state_of()[1]
    path = save_with_torch(state, tmp_path / "dcp") if form == "dcp" else tmp_path / "state.pt"
    if form == "file":
        torch.save(state, path)
    report = convert_checkpoint(path, tmp_path / "out", output_options=MAPPED, world_size=world_size)
    assert report.action == "rewrite"
    found = load_with_torch(tmp_path / "out")
    for field in (None, "exp_avg", "exp_avg_sq"):
        held = found["model"] if field is None else {n: s[field] for n, s in found["optim"]["state"].items()}
        expected = {**stacked(state, field), **({"scale": torch.ones(2)} if field is None else {})}
        assert held.keys() == expected.keys()
        assert all(torch.equal(held[name], value) for name, value in expected.items())
    names = ["mlp.gate.weight", "mlp.gate.bias", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    assert found["optim"]["param_groups"][0]["params"] == names
    assert {int(fields["step"]) for fields in found["optim"]["state"].values()} == {2}
    files = sorted(one.name for one in (tmp_path / "out").glob("*.distcp"))
    assert files == [f"__{rank}_0.distcp" for rank in range(world_size or 1)]
    assert verify_checkpoints(path, tmp_path / "out", map=MAP).is_same
    assert {f.code for f in report.findings} & {"FM294", "FM295", "FM296"} == {"FM294"}
    (said,) = [f.message for f in report.findings if f.code == "FM294"]
    assert said.startswith("33 parameters became 2: `mlp.experts.gate_up_proj`, `mlp.experts.down_proj`, ")
    assert "[11, 6, 4]; 2 names changed, such as `moe.gate.bias`: now `mlp.gate.bias`" in said


def test_a_value_that_is_wrong_is_seen_by_verify(source: Path, tmp_path: Path) -> None:
    swapped = RULES.replace(
        "experts.*.w1.weight, experts.*.w3.weight", "experts.*.w3.weight, experts.*.w1.weight"
    )
    convert_checkpoint(source, tmp_path / "out", output_options=OutputOptions(map=parse_map(swapped, "it")))
    report = verify_checkpoints(source, tmp_path / "out", map=MAP)
    assert {found.key.rpartition(".")[2] for found in report.differences} == {
        "gate_up_proj",
        "exp_avg",
        "exp_avg_sq",
    }


def test_another_map_is_another_conversion(source: Path) -> None:
    swapped = RULES.replace(
        "experts.*.w1.weight, experts.*.w3.weight", "experts.*.w3.weight, experts.*.w1.weight"
    )
    manifest = inspect_checkpoint(source)
    folder = open_folder(source)
    digests = []
    for rules in (RULES, RULES, swapped):
        plan = plan_conversion(manifest, output_options=OutputOptions(map=parse_map(rules, "it")))
        digests.append(layout_digest(plan, place(plan, new_values(plan, folder))))
    folder.close()
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.alike
@pytest.mark.parametrize("to", TARGETS)
def test_every_target_and_the_way_back(to: str, source: Path, tmp_path: Path) -> None:
    for form in ("full", "sharded") if to == "accelerate" else ("auto",):
        options: Any = replace(MAPPED, state_dict_type=form)
        out = tmp_path / f"out-{form}"
        convert_checkpoint(source, out, to=to, output_options=options)
        assert verify_checkpoints(source, out, map=MAP, weights_only=to == "hf").is_same
        back = OutputOptions(map=parse_map(BACK, "back.yaml"))
        convert_checkpoint(out, tmp_path / f"back-{form}", to="torch", output_options=back)
        report = verify_checkpoints(source, tmp_path / f"back-{form}", weights_only=to == "hf")
        # The names of a group are in another order, which torch does not go by.
        assert {found.key.rpartition(".")[2] for found in report.differences} <= {"params"}
        assert report.is_complete
        assert report.tensors >= 36


@pytest.mark.slow
def test_a_flattened_optimizer(tmp_path: Path) -> None:
    path = save_with_torch(state_of(flatten=True)[1], tmp_path / "dcp")
    convert_checkpoint(path, tmp_path / "out", output_options=MAPPED)
    keys = set(load_with_torch(tmp_path / "out")["optim"])
    assert "state.mlp.experts.gate_up_proj.exp_avg" in keys
    assert "param_groups.mlp.experts.gate_up_proj.lr" in keys
    assert not any("w1" in key for key in keys)
    assert verify_checkpoints(path, tmp_path / "out", map=MAP).is_same


@pytest.mark.parametrize("kind", [Old, New])
def test_the_model_that_is_given_may_be_either(kind: type[nn.Module], source: Path) -> None:
    model = kind()
    outline = outline_model(model, optimizer=torch.optim.AdamW(model.parameters()))
    manifest = inspect_checkpoint(source, options=SourceOptions(model=outline))
    assert "FM294" in {finding.code for finding in plan_conversion(manifest, output_options=MAPPED).findings}


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ("- {from: attention, to: attn}", "its rules match no parameter"),
        (f"{RULES}- {{from: attention, to: attn}}", "its rule `attention -> attn` matches no parameter"),
    ],
)
def test_a_map_that_changes_nothing(rules: str, words: str, source: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        plan_conversion(inspect_checkpoint(source), output_options=OutputOptions(map=parse_map(rules, "it")))


@pytest.mark.slow
def test_the_command(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(RULES)
    asked = ["--map", str(file)]
    assert main(["convert", str(source), *asked, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert len(plan["joined"]["model.mlp.experts.gate_up_proj"]) == 2 * EXPERTS
    assert main(["convert", str(source), str(tmp_path / "out"), *asked]) == 0
    assert f"--map {file}" in capsys.readouterr().out
    assert main(["verify", str(source), str(tmp_path / "out"), *asked]) == 0
    assert main(["verify", str(source), str(tmp_path / "out")]) == 1
    assert "`--map`" in capsys.readouterr().out
    assert main(["verify", str(source), *asked]) == 1
    assert main(["convert", str(source), str(tmp_path / "other"), "--map", "nothing"]) == 1


def test_what_does_not_fit_the_new_model(source: Path) -> None:
    new = New()
    with pytest.raises(CheckpointMismatchError, match=r"gate_up_proj"):
        load_checkpoint(source, new, weights_only=True)
    report = load_checkpoint(source, new, torch.optim.AdamW(new.parameters()), map=MAP)
    assert "FM294" in {finding.code for finding in report.findings}
