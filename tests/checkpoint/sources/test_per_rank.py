"""One file per rank: sharded tensors that each rank pickled, put together without a process group."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate import load_checkpoint
from fsdp_migrate.checkpoint_convert import convert_checkpoint, inspect_checkpoint, verify_checkpoints
from fsdp_migrate.checkpoint_convert.manifest.options import SourceOptions
from fsdp_migrate.checkpoint_convert.sources.per_rank import read_rank
from fsdp_migrate.checkpoint_convert.sources.rank_merge import merge_states
from fsdp_migrate.checkpoint_convert.storage.opening import open_folder
from fsdp_migrate.errors import (
    CheckpointFormatError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    PlanError,
)
from fsdp_migrate.sharding.outlines import outline_model
from tests.checkpoint.rank_sources import RankSources, assert_loads
from tests.checkpoint.samples import DATA, load_with_torch
from tests.checkpoint.sources.test_full_state import assert_equal
from tests.rank_bodies.sources import RankNet, save_averages, save_hsdp_rank_files
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from pathlib import Path


GOLDEN_RANKS = sorted(path.relative_to(DATA).as_posix() for path in DATA.glob("torch-*/*.sharded_rank0.pt"))


def test_torch_loads_what_ranks_saved_for_themselves(rank_sources: RankSources, tmp_path: Path) -> None:
    outputs = {}
    for kind in ("plain", "mesh", "flat", "mixed"):
        source = rank_sources.copy(kind, "sharded", tmp_path / kind)
        report = convert_checkpoint(source, tmp_path / f"{kind}-out")
        assert {"FM235", "FM236"} <= {f.code for f in report.findings}
        assert [f.subject for f in report.findings if f.code == "FM236"] == ["model.rank"]
        outputs[tmp_path / f"{kind}-out"] = rank_sources.expected[kind]
        convert_checkpoint(source, tmp_path / f"{kind}-4", world_size=4)
        assert verify_checkpoints(source, tmp_path / f"{kind}-4").is_same
    assert_loads(outputs)


@pytest.mark.alike
@pytest.mark.parametrize("name", GOLDEN_RANKS)
def test_genuine_files_of_older_and_newer_torch(name: str, tmp_path: Path) -> None:
    manifest = inspect_checkpoint(DATA / name)
    assert (manifest.layout, [part.name for part in manifest.parts]) == ("ranks", ["model", "optimizer"])
    convert_checkpoint(DATA / name, tmp_path / "out")
    wanted = torch.load(DATA / name.replace("sharded_rank0", "expected"), weights_only=True)
    assert_equal(load_with_torch(tmp_path / "out"), wanted)


def test_verl_keeps_model_and_the_rest_apart(rank_sources: RankSources, tmp_path: Path) -> None:
    source = tmp_path / "actor"
    source.mkdir()
    for rank in range(2):
        file = f"world_size_2_rank_{rank}.pt"
        extra = {"lr_scheduler": {"last_epoch": 3}, "rng": {"cpu": torch.full((4,), rank), "seed": rank}}
        torch.save(extra, source / f"extra_state_{file}")
    rank_sources.copy("mesh", "model", source, name="model_world_size_2_rank_*.pt")
    (source / "fsdp_config.json").write_text('{"FSDP_version": 1, "world_size": 2}')
    report = convert_checkpoint(source, tmp_path / "out")
    loaded = load_with_torch(tmp_path / "out")
    assert torch.equal(loaded["model"]["gain"], rank_sources.expected["mesh"]["model.gain"])
    assert loaded["extra_state"]["lr_scheduler"] == {"last_epoch": 3}
    assert loaded["extra_state"]["rng"]["seed"] == 0
    assert loaded["ranks"]["1"]["extra_state"]["rng"]["seed"] == 1
    assert torch.equal(loaded["ranks"]["1"]["extra_state"]["rng"]["cpu"], torch.ones(4))
    assert [f.code for f in report.findings if f.code == "FM237"]
    assert (tmp_path / "out" / "fsdp_config.json").exists()
    (source / "model_world_size_2_rank_1.pt").unlink()
    with pytest.raises(CheckpointNotFoundError, match=r"of 1 rank, expected 2: those of rank 1"):
        inspect_checkpoint(source)


def test_composers_files_of_ranks(rank_sources: RankSources, tmp_path: Path) -> None:
    source = tmp_path / "old"
    source.mkdir()
    for rank in range(2):
        shutil.copy(rank_sources.folder / "plain" / f"ep0-ba2-rank{rank}.pt", source)
    incomplete = source / "other_world_size_2_rank_0.pt"
    shutil.copy(source / "ep0-ba2-rank0.pt", incomplete)
    manifest = inspect_checkpoint(source / "ep0-ba2-rank0.pt")
    assert (manifest.framework, manifest.layout) == ("composer", "ranks")
    with pytest.raises(CheckpointNotFoundError, match="expected 2"):
        inspect_checkpoint(incomplete)
    incomplete.unlink()
    convert_checkpoint(source, tmp_path / "out", to="torch")
    assert_loads({tmp_path / "out": rank_sources.expected["plain"]})


def test_moments_that_torch_saved_as_one_are_told(rank_sources: RankSources, tmp_path: Path) -> None:
    source = tmp_path / "optimizer.bin"
    shutil.copy(rank_sources.folder / "plain" / "full-optimizer.pt", source)
    for deep in (False, True):
        told = [f for f in inspect_checkpoint(source, deep=deep).findings if f.code == "FM217"]
        assert len(told) == 1
        assert "exp_avg" in told[0].message
    state = torch.load(source, weights_only=True)
    for moments in state["state"].values():
        moments["exp_avg_sq"] = moments["exp_avg_sq"] + 1
    torch.save(state, source)
    assert "FM217" not in {f.code for f in inspect_checkpoint(source).findings}


@pytest.mark.slow
def test_replicas_of_hybrid_sharding(tmp_path: Path) -> None:
    expected = run_ranks(save_hsdp_rank_files, str(tmp_path / "hsdp"), world_size=4, timeout=400)[0]["hsdp"]
    sources = RankSources(tmp_path / "hsdp", {"hsdp": expected})
    sharded = sources.copy("hsdp", "sharded", tmp_path / "sharded")
    convert_checkpoint(sharded, tmp_path / "out")
    verl = sources.copy("hsdp", "model", tmp_path / "verl", name="model_world_size_4_rank_*.pt")
    sources.copy("hsdp", "optim", verl, name="optim_world_size_4_rank_*.pt")
    arguments = {"auto_wrap_policy": "Block", "use_orig_params": True, "sharding_strategy": "HYBRID_SHARD"}
    options = SourceOptions(model=outline_model(RankNet(), arguments))
    report = convert_checkpoint(verl, tmp_path / "verl-out", options=options)
    assert "over 2 ranks" in next(f.message for f in report.findings if f.code == "FM240")
    for output in ("out", "verl-out"):
        loaded = load_with_torch(tmp_path / output)
        for name, value in expected.items():
            part, _, rest = name.partition(".")
            if part == "model":
                assert torch.equal(loaded["model"][rest], value)
            else:
                parameter, _, moment = rest.rpartition(".")
                assert torch.equal(loaded["optimizer"]["state"][parameter][moment], value)
    states = [
        read_rank(open_folder(sharded), path.name, path.stat().st_size, rank)
        for rank, path in enumerate(sorted(sharded.iterdir()))
    ]
    tensor: Any = states[3].leaves["model.embed.weight"][1]
    other: Any = states[3].leaves["optimizer.state.embed.weight.exp_avg"][1]
    tensor.state[1]["_local_tensor"] = other.state[1]["_local_tensor"]
    with pytest.raises(CheckpointMismatchError, match=r"sharded_rank3.pt` hold the same part.*bits differ"):
        merge_states(open_folder(sharded), states)
    flat = torch.load(verl / "optim_world_size_4_rank_3.pt", weights_only=True)
    next(m["exp_avg"] for m in flat["state"].values() if m["exp_avg"].numel())[0] += 1
    torch.save(flat, verl / "optim_world_size_4_rank_3.pt")
    with pytest.raises(CheckpointMismatchError, match=r"rank_1.pt` and .*rank_3.pt` hold the same part"):
        inspect_checkpoint(verl, options=options)


def test_naming_one_ranks_file_means_all_of_them(rank_sources: RankSources, tmp_path: Path) -> None:
    for kind in ("plain", "mesh"):
        rank_sources.copy(kind, "sharded", tmp_path, name=f"{kind}-rank*.pt")
    manifest = inspect_checkpoint(tmp_path / "plain-rank1.pt")
    assert set(manifest.files) == {"plain-rank0.pt", "plain-rank1.pt"}
    assert not manifest.extra_files
    with pytest.raises(CheckpointFormatError, match="more than one set of rank files"):
        inspect_checkpoint(tmp_path)


def test_a_rank_that_is_missing_or_named_wrong(rank_sources: RankSources, tmp_path: Path) -> None:
    for kind in ("plain", "mesh"):
        alone = rank_sources.copy(kind, "sharded", tmp_path / f"{kind}-0")
        (alone / "sharded_rank1.pt").unlink()
        with pytest.raises(CheckpointNotFoundError, match=r"saved by 2 ranks.*files of 1 .*sharded_rank0"):
            inspect_checkpoint(alone / "sharded_rank0.pt")
        swapped = rank_sources.copy(kind, "sharded", tmp_path / f"{kind}-swapped")
        shutil.copy(swapped / "sharded_rank0.pt", swapped / "sharded_rank1.pt")
        with pytest.raises(CheckpointMismatchError, match=r"`sharded_rank1.pt`.*of rank 1.*says 0"):
            inspect_checkpoint(swapped)
    mixed = rank_sources.copy("plain", "sharded", tmp_path / "two-runs")
    shutil.copy(rank_sources.folder / "mesh" / "sharded_rank1.pt", mixed / "sharded_rank1.pt")
    with pytest.raises(CheckpointMismatchError, match="divided in another way"):
        inspect_checkpoint(mixed)


def test_what_bitsandbytes_packed_of_each_rank_can_be_left_out(tmp_path: Path) -> None:
    for rank, size in enumerate((20, 12)):
        packed = {"state1": torch.zeros(size, dtype=torch.uint8), "absmax1": torch.ones(1)}
        state = {0: {"step": 1, "__bnb_optimizer_quant_state__": packed}}
        optimizer = {"state": state, "param_groups": [{"lr": 0.1, "params": [0]}]}
        saved = {"model": {"weight": torch.ones(4, 8)}, "optimizer": optimizer}
        torch.save(saved, tmp_path / f"state_rank{rank}.pt")
    model = torch.nn.Linear(8, 4, bias=False)
    with pytest.raises(PlanError, match="FM299 `optimizer`: 2 tensors of bitsandbytes' optimizer"):
        load_checkpoint(tmp_path, model, torch.optim.AdamW(model.parameters()))
    load_checkpoint(tmp_path, model, weights_only=True)
    assert torch.equal(model.weight, torch.ones(4, 8))


@pytest.fixture(scope="module")
def averages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("averages")
    return folder, run_ranks(save_averages, str(folder))[0]


@pytest.mark.parametrize("kind", ["flat", "plain"])
@pytest.mark.parametrize("name", ["ema", "nested"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_average_of_fsdp1s_own_parameters_is_refused_with_what_to_do(
    ranks: int, name: str, kind: str, averages: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Flat parameters, or with `use_orig_params` their parts: neither can be taken for whole weights."""
    for rank in range(ranks):
        shutil.copy(averages[0] / kind / f"{name}_{rank}.pt", tmp_path)
    source = tmp_path / f"{name}_0.pt"
    with pytest.raises((PlanError, CheckpointMismatchError), match="such as an average of them") as caught:
        convert_checkpoint(source, tmp_path / "out")
    for said in (
        "named as FSDP1's model names them",
        "Under FSDP1, on as many ranks",
        "`param.copy_(saved)`",
    ):
        assert said in str(caught.value)
    with pytest.raises((PlanError, CheckpointMismatchError), match="such as an average of them"):
        load_checkpoint(source, RankNet())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["flat", "plain"])
def test_what_an_average_was_copied_into_is_converted(
    kind: str, averages: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    convert_checkpoint(averages[0] / kind / "whole.pt", tmp_path / "out")
    found = load_with_torch(tmp_path / "out")
    for name, _ in RankNet().named_parameters():
        assert torch.equal(found[name], averages[1][kind][f"model.{name}"] * 2)


def test_whole_weights_under_the_names_of_fsdp1_are_converted(tmp_path: Path) -> None:
    """Of one dimension, too; as NO_SHARD shows them, or a script that summoned them."""
    state = {
        "_fsdp_wrapped_module.norm.weight": torch.ones(4),
        "_fsdp_wrapped_module.norm.bias": torch.ones(4),
    }
    torch.save(state, tmp_path / "weights.pt")
    convert_checkpoint(tmp_path / "weights.pt", tmp_path / "out")
    assert verify_checkpoints(tmp_path / "weights.pt", tmp_path / "out").is_same
