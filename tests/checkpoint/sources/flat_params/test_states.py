"""Flat parameters of LOCAL_STATE_DICT and numbered flat optimizer state, taken apart by FSDP1 arguments."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint import FileSystemReader

from fsdp_migrate import load_checkpoint
from fsdp_migrate.checkpoint_convert import convert_checkpoint, inspect_checkpoint
from fsdp_migrate.checkpoint_convert.loading.advice import advise_loading
from fsdp_migrate.checkpoint_convert.manifest.options import SourceOptions
from fsdp_migrate.cli import main
from fsdp_migrate.errors import CheckpointMismatchError, CheckpointNotFoundError, PlanError
from fsdp_migrate.sharding.outlines import outline_model
from tests.checkpoint.rank_sources import ARGUMENTS, POLICY, RankSources, assert_loads, flat_options
from tests.checkpoint.samples import load_with_torch
from tests.rank_bodies.flat_sources import Critic, TiedApart, save_several, save_tied_apart
from tests.rank_bodies.sources import RankNet
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from pathlib import Path


def local_source(sources: RankSources, kind: str, folder: Path) -> Path:
    """Return a folder as Accelerate LOCAL or dinov2 leave it: flat parameters and a plain optimizer."""
    sources.copy(kind, "local", folder, name="pytorch_model_fsdp_rank*.bin")
    return sources.copy(kind, "optim", folder, name="optimizer_0_rank*.bin")


def verl_source(sources: RankSources, kind: str, folder: Path) -> Path:
    sources.copy(kind, "model", folder, name="model_world_size_2_rank_*.pt")
    return sources.copy(kind, "optim", folder, name="optim_world_size_2_rank_*.pt")


def test_torch_loads_what_was_flat(rank_sources: RankSources, tmp_path: Path) -> None:
    outputs = {}
    for kind in ARGUMENTS:
        make = verl_source if kind == "mesh" else local_source
        source = make(rank_sources, kind, tmp_path / kind)
        report = convert_checkpoint(source, tmp_path / f"{kind}-out", options=flat_options(kind))
        codes = [f.code for f in report.findings]
        assert codes.count("FM240") == (1 if kind == "mesh" else 2)
        assert "FM238" not in codes
        outputs[tmp_path / f"{kind}-out"] = rank_sources.expected[kind]
    assert_loads(outputs)
    convert_checkpoint(tmp_path / "flat", tmp_path / "flat-3", world_size=3, options=flat_options("flat"))
    chunks = FileSystemReader(tmp_path / "flat-3").read_metadata().state_dict_metadata
    assert len(chunks["model.embed.weight"].chunks) == 3  # type: ignore[union-attr]


def test_without_the_model_it_is_refused_with_what_to_give(rank_sources: RankSources, tmp_path: Path) -> None:
    source = local_source(rank_sources, "plain", tmp_path / "local")
    codes = {f.code for f in inspect_checkpoint(source).findings}
    assert {"FM238", "FM239"} <= codes
    with pytest.raises(PlanError, match=r"FM238.*--config"):
        convert_checkpoint(source, tmp_path / "out", weights_only=True)
    verl = verl_source(rank_sources, "flat", tmp_path / "verl")
    with pytest.raises(PlanError, match=r"FM239.*--config.*weights_only"):
        convert_checkpoint(verl, tmp_path / "out")
    with pytest.raises(PlanError) as caught:  # and no more: what else does not fit follows from it
        convert_checkpoint(source, tmp_path / "out", options=SourceOptions(model=outline_model(RankNet())))
    assert {finding.code for finding in caught.value.findings} == {"FM238", "FM239"}
    convert_checkpoint(verl, tmp_path / "weights", weights_only=True)
    assert set(load_with_torch(tmp_path / "weights")) == {"model"}


@pytest.mark.parametrize("kind", ["plain", "flat", "mixed"])
def test_a_rank_that_is_missing_is_not_laid_on_the_model(
    kind: str, rank_sources: RankSources, tmp_path: Path
) -> None:
    alone = rank_sources.copy(kind, "local", tmp_path / "local")
    (alone / "local_rank1.pt").unlink()
    for options in (None, flat_options(kind)):
        with pytest.raises(CheckpointNotFoundError, match=r"saved by 2 ranks.*files of 1 .*local_rank0"):
            inspect_checkpoint(alone, options=options)
    with pytest.raises(CheckpointNotFoundError, match="saved by 2 ranks"):
        load_checkpoint(alone, RankNet(), options=flat_options(kind))
    # Nothing in an optimizer's file says of how many ranks it is.
    alone = rank_sources.copy(kind, "optim", tmp_path / "optim")
    (alone / "optim_rank1.pt").unlink()
    with pytest.raises(CheckpointMismatchError, match=r"files of all of its ranks"):
        inspect_checkpoint(alone, options=flat_options(kind))


@pytest.mark.parametrize(
    ("kind", "changes", "match"),
    [
        ("plain", {"use_orig_params": False}, "elements in .* were computed"),
        ("flat", {"use_orig_params": True}, "elements in .* were computed"),
        (
            "plain",
            {"auto_wrap_policy": None},
            "give 1 unit: `blocks.0` is a flat parameter in the files, and no",
        ),
        ("plain", {"auto_wrap_policy": "LayerNorm"}, "3 flat parameters"),
        ("mixed", {"mixed_precision": None}, "were computed"),
        ("flat", {"sharding_strategy": "NO_SHARD"}, "starts at"),
        ("flat", {"ignored_states": ["gain"]}, "were computed"),
    ],
)
def test_other_arguments_than_the_runs_are_an_error(
    kind: str, changes: dict[str, Any], match: str, rank_sources: RankSources, tmp_path: Path
) -> None:
    for pattern, expected in (("local", match), ("optim", "no order of the model's|the optimizer knows")):
        source = rank_sources.copy(kind, pattern, tmp_path / pattern)
        with pytest.raises(CheckpointMismatchError, match=expected):
            inspect_checkpoint(source, options=flat_options(kind, **changes))


def test_ranks_that_lack_elements(rank_sources: RankSources, tmp_path: Path) -> None:
    source = verl_source(rank_sources, "flat", tmp_path / "source")
    path = source / "optim_world_size_2_rank_1.pt"
    state = torch.load(path, weights_only=True)
    del state["state"][1]["exp_avg"]
    torch.save(state, path)
    with pytest.raises(CheckpointMismatchError, match="rank 1 should hold"):
        inspect_checkpoint(source, options=flat_options("flat"))
    state["state"][1]["exp_avg"] = state["state"][1]["exp_avg_sq"]
    state["state"][1]["step"] += 1
    torch.save(state, path)
    with pytest.raises(CheckpointMismatchError, match=r"step` is not the same"):
        inspect_checkpoint(source, options=flat_options("flat"))
    state["state"][1] = {"exp_avg": torch.ones(3)}
    torch.save(state, path)
    with pytest.raises(CheckpointMismatchError, match=r"rank 1|no order"):
        inspect_checkpoint(source, options=flat_options("flat"))


def test_the_command_takes_the_fsdp1_arguments(
    rank_sources: RankSources, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = verl_source(rank_sources, "flat", tmp_path / "source")
    config = tmp_path / "fsdp.json"
    config.write_text(json.dumps(POLICY))
    arguments = ["convert", str(source), str(tmp_path / "out")]
    assert main([*arguments, "--config", str(config)]) == 1
    assert "--model" in capsys.readouterr().err
    model = "tests.rank_bodies.sources:RankNet"
    assert main([*arguments, "--model", model, "--config", str(config)]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("To compare them: "))
    assert main(shlex.split(line)[4:]) == 0
    loaded = load_with_torch(tmp_path / "out")
    expected = rank_sources.expected["flat"]
    assert torch.equal(
        loaded["optimizer"]["state"]["blocks.1.up.weight"]["exp_avg"],
        expected["optimizer.blocks.1.up.weight.exp_avg"],
    )
    assert main(["inspect", str(source), "--model", model, "--config", str(config)]) == 0
    again = f"`fsdp-migrate convert {source} OUT --model {model} --config {config}` would"
    assert again in " ".join(capsys.readouterr().out.split())
    assert main(["inspect", str(source)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "cannot be converted" in said
    assert f"load_checkpoint('{source}', model, optimizer)" in said  # which knows how it is flattened


def test_a_tie_between_units_was_trained_apart(tmp_path: Path) -> None:
    """FSDP1 flattens a copy in each unit: what it holds is the state of a model without the tie."""
    wanted = run_ranks(save_tied_apart, str(tmp_path / "source"))[0]
    assert not torch.equal(wanted["model"]["embed.weight"], wanted["model"]["head.weight"])
    outline = outline_model(TiedApart(), {"auto_wrap_policy": "Linear"})
    report = convert_checkpoint(tmp_path / "source", tmp_path / "out", options=SourceOptions(model=outline))
    assert [f.subject for f in report.findings if f.code == "FM273"] == ["head.weight"]
    state = load_with_torch(tmp_path / "out")
    assert state["model"].keys() == wanted["model"].keys()
    for name, tensor in wanted["model"].items():
        assert torch.equal(state["model"][name], tensor), name
    assert state["optim"]["state"].keys() == wanted["momentum"].keys()
    for name, tensor in wanted["momentum"].items():
        assert torch.equal(state["optim"]["state"][name]["momentum_buffer"], tensor), name


def _loaded(source: Path, kind: type[nn.Module], arguments: dict[str, Any], part: str | None) -> Any:
    net = TiedApart(tied=False) if kind is TiedApart else kind()
    optimizer = torch.optim.Adam(net.parameters(), lr=1.0)
    options = SourceOptions(model=outline_model(net, arguments))
    report = load_checkpoint(source, net, optimizer, part=part, extra={"iter": 0}, options=options)
    assert report.values == {"iter": 4}
    return net, optimizer


@pytest.mark.parametrize("use_orig_params", [False, True])
def test_of_several_models_in_a_file_the_one_that_is_asked_for_is_taken(
    use_orig_params: bool, tmp_path: Path
) -> None:
    arguments = {"auto_wrap_policy": "Linear", "use_orig_params": use_orig_params}
    names = {"g": "TiedApart", "d": "Critic"}
    wanted = run_ranks(save_several, str(tmp_path), names, use_orig_params)[0]
    assert "part='g'" in advise_loading(inspect_checkpoint(tmp_path)).call
    kinds: list[tuple[str, type[nn.Module]]] = [("g", TiedApart), ("d", Critic)]
    for name, kind in kinds:
        values, state = wanted[name]
        for part in (name, None):  # without it, the one whose units fit
            net, optimizer = _loaded(tmp_path, kind, arguments, part)
            assert net.state_dict().keys() == values.keys()
            for key, param in net.named_parameters():
                assert torch.equal(param, values[key]), (name, part, key)
                assert torch.equal(optimizer.state[param]["exp_avg"], state[key]["exp_avg"]), (name, key)
        other = kinds[name == "g"][0]
        with pytest.raises(
            CheckpointMismatchError, match=r"and no unit of the model|no flat parameter of the unit"
        ):
            _loaded(tmp_path, kind, arguments, other)


def test_of_two_models_that_fit_equally_well_one_must_be_named(tmp_path: Path) -> None:
    source = tmp_path / "source"
    wanted = run_ranks(save_several, str(source), {"a": "Critic", "b": "Critic"}, False)[0]
    arguments = {"auto_wrap_policy": "Linear"}
    with pytest.raises(
        CheckpointMismatchError, match=r"`a` and `b` fit .* equally well. Say which .*part='a'"
    ):
        _loaded(source, Critic, arguments, None)
    for name in ("a", "b"):
        values, state = wanted[name]
        net, optimizer = _loaded(source, Critic, arguments, name)
        for key, param in net.named_parameters():
            assert torch.equal(param, values[key])
            assert torch.equal(optimizer.state[param]["exp_avg"], state[key]["exp_avg"])
    # Converting takes one model, and leaves nothing out.
    outline = outline_model(Critic(), arguments)
    with pytest.raises(CheckpointMismatchError, match=r"of 2 models, `a` and `b`\. .*part="):
        convert_checkpoint(source, tmp_path / "out", options=SourceOptions(model=outline))
