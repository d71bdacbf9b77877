"""All kinds of models load one checkpoint alike, and what does not fit is refused on every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate import load_checkpoint
from fsdp_migrate.errors import CheckpointMismatchError
from tests.models import Net
from tests.rank_bodies import load_cases
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from pathlib import Path


Flat = dict[str, Any]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Flat]:
    folder = tmp_path_factory.mktemp("saved")
    return folder / "state.pt", load_cases.save_run(folder)


@pytest.fixture(scope="module")
def cases(saved: tuple[Path, Flat]) -> list[dict[str, Flat]]:
    """What each rank held after each of the cases."""
    return run_ranks(load_cases.run_cases, str(saved[0]), timeout=300)


def assert_equal(found: Flat, wanted: Flat, *, kinds: tuple[str, ...] = ("model.", "optimizer.")) -> None:
    """Assert that all tensors are the same, and that there are no others."""
    names = {name for name in wanted if name.startswith(kinds)}
    assert {name for name in found if name.startswith(kinds)} == names
    for name in names:
        assert torch.equal(found[name], wanted[name]), name


@pytest.mark.parametrize(
    "case",
    ["plain_fsdp2", "prepared", "not_sharded", "cpu_offload", "on_meta", "sent", "sent_as_asked"],
)
def test_every_kind_of_model(case: str, cases: list[dict[str, Flat]], saved: tuple[Path, Flat]) -> None:
    for rank in cases:
        assert_equal(rank[case], saved[1])
        groups = rank[case]["groups"]
        assert [group["lr"] for group in groups] == [group["lr"] for group in saved[1]["groups"]]
        assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
        assert ("FM437" in rank[case]["codes"]) == case.startswith("sent")
        assert "FM438" in rank[case]["codes"]
        assert rank[case]["report"]["nbytes"] > 0


def test_a_frozen_parameter(cases: list[dict[str, Flat]], saved: tuple[Path, Flat]) -> None:
    for rank in cases:
        found = rank["frozen"]
        assert_equal(found, saved[1], kinds=("model.",))
        assert "optimizer.embed.weight.exp_avg" not in found
        assert torch.equal(
            found["optimizer.head.out.bias.exp_avg"], saved[1]["optimizer.head.out.bias.exp_avg"]
        )
        assert "`embed.weight`" in found["codes"]["FM431"]
        assert [group["weight_decay"] for group in found["groups"]] == [0.1, 0.0]


def test_weights_only(cases: list[dict[str, Flat]], saved: tuple[Path, Flat]) -> None:
    for rank in cases:
        assert_equal(rank["weights_only"], saved[1], kinds=("model.",))
        assert rank["weights_only"]["states"] == 0


def test_extra(cases: list[dict[str, Flat]]) -> None:
    for rank in cases:
        found = rank["with_extra"]
        assert (found["epoch"], found["last"], found["lr"]) == (4, 2, [2.5e-3, 2.5e-3])
        assert found["rng"].dtype == torch.uint8
        assert "FM438" not in found["codes"]
        assert "FM431" not in found["codes"]


def test_casts_are_said(cases: list[dict[str, Flat]], saved: tuple[Path, Flat]) -> None:
    for rank in cases:
        found = rank["half"]
        name = "optimizer.head.out.bias.exp_avg"
        assert torch.equal(found["model.embed.weight"], saved[1]["model.embed.weight"].bfloat16())
        assert torch.equal(found[name], saved[1][name].bfloat16())
        assert "float32 to bfloat16" in found["codes"]["FM430"]


def test_tensor_parallelism(tmp_path: Path) -> None:
    wanted = load_cases.save_run(tmp_path, inner=18, numbered=True)
    for found in run_ranks(load_cases.run_tensor_parallel, str(tmp_path / "state.pt")):
        assert_equal(found, wanted)


def test_what_fits_is_loaded_where_the_rest_may_differ(saved: tuple[Path, Flat]) -> None:
    for found in run_ranks(load_cases.load_partly, str(saved[0])):
        wanted = saved[1]
        for name, before in found["before"].items():
            is_own = name.startswith(("new.", "head.out."))
            assert torch.equal(found[f"model.{name}"], before if is_own else wanted[f"model.{name}"]), name
        assert "`new.weight` of the model is not in the checkpoint" in found["codes"]["FM432"]
        assert "`head.out.weight` has the shape [13, 6] in the checkpoint" in found["codes"]["FM433"]
        assert "only one side knows `new.bias`, `new.weight`" in found["codes"]["FM434"]
        assert torch.equal(
            found["optimizer.blocks.0.up.weight.exp_avg"], wanted["optimizer.blocks.0.up.weight.exp_avg"]
        )
        assert "optimizer.head.out.weight.exp_avg" not in found


def test_all_that_does_not_fit_is_one_error(saved: tuple[Path, Flat]) -> None:
    for found in run_ranks(load_cases.refuse_misfits, str(saved[0])):
        assert found["kind"] == "CheckpointMismatchError"
        assert found["same"]
        for text in (
            "`new.weight` of the model is not in the checkpoint",
            "`head.out.weight` has the shape [13, 6] in the checkpoint, and [15, 6] in the model",
            "2 parameter groups of [9, 8] parameters, and the optimizers have 1 of [19]",
            "`sampler`, asked for in `extra`, is not there; what is: `scheduler`, `epoch`, `rng`",
        ):
            assert text in found["text"]


def test_what_one_rank_finds_wrong_ends_all(saved: tuple[Path, Flat]) -> None:
    first, second = run_ranks(load_cases.refuse_on_one_rank, str(saved[0]))
    assert second["damaged"][0] == "CheckpointFormatError"
    assert first["damaged"][0] == "RankError"
    assert second["damaged"][1] in first["damaged"][1]
    assert first["damaged"][1].startswith("Rank 1 cannot load the checkpoint, so no rank does: ")
    for rank in (first, second):
        assert rank["other"][0] == "CheckpointMismatchError"
        assert "The ranks see different checkpoints" in rank["other"][1]
        assert rank["nowhere"][0] == "CheckpointNotFoundError"
        assert rank["word"][:2] == [
            "ConfigError",
            "`broadcast` is 'maybe'; expected 'auto', True or False.",
        ]
        assert all(same for name, (_, _, same) in rank.items() if name != "while reading")
    assert [rank["not all see"][0] for rank in (first, second)] == ["RankError", "CheckpointNotFoundError"]
    assert second["while reading"][:2] == ["OSError", "the disk is gone"]
    assert first["while reading"][:2] == [
        "RankError",
        (
            "Rank 1 failed while it loaded, so that the model is loaded in part on every rank: "
            "OSError: the disk is gone"
        ),
    ]


def test_tied_weights(tmp_path: Path) -> None:
    wanted = load_cases.save_run(tmp_path, tied=True)
    model = Net(tied=True)
    load_checkpoint(tmp_path / "state.pt", model, torch.optim.AdamW(load_cases.groups_of(model), lr=1.0))
    assert model.head.out.weight is model.embed.weight
    assert torch.equal(model.embed.weight, wanted["model.head.out.weight"])
    # One name of a tie is enough, as files of safetensors have it.
    state = {name: value for name, value in model.state_dict().items() if name != "head.out.weight"}
    torch.save({"model": state}, tmp_path / "one.pt")
    report = load_checkpoint(tmp_path / "one.pt", Net(tied=True))
    assert report.missing == ()
    untied = Net()
    with pytest.raises(CheckpointMismatchError, match=r"only one side knows `head\.out\.weight`"):
        load_checkpoint(
            tmp_path / "state.pt", untied, torch.optim.AdamW(load_cases.groups_of(untied), lr=1.0)
        )


def test_a_parameter_that_was_never_stepped(tmp_path: Path) -> None:
    model, optimizer, _ = load_cases.make_run()
    del optimizer.state[model.head.out.bias]
    state = {"model": model.state_dict(), "optimizer": load_cases.by_name(model, optimizer)}
    torch.save(state, tmp_path / "state.pt")
    fresh = Net()
    own = torch.optim.AdamW(load_cases.groups_of(fresh), lr=1.0)
    report = load_checkpoint(tmp_path / "state.pt", fresh, own)
    assert fresh.head.out.bias not in own.state
    assert len(own.state) == len(list(fresh.parameters())) - 1
    assert any(found.code == "FM435" and found.subject == "head.out.bias" for found in report.findings)


def test_another_kind_of_optimizer_is_refused(saved: tuple[Path, Flat]) -> None:
    model = Net()
    sgd = torch.optim.SGD(load_cases.groups_of(model), lr=1.0, momentum=0.9)
    with pytest.raises(CheckpointMismatchError, match="is it the same kind of optimizer"):
        load_checkpoint(saved[0], model, sgd)
