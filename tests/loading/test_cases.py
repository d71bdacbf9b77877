"""All kinds of models load one checkpoint alike, and what does not fit is refused on every rank."""

from __future__ import annotations

import shutil
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from fsdp_migrate import load_checkpoint
from fsdp_migrate.checkpoint_convert import convert_checkpoint
from fsdp_migrate.errors import CheckpointError, CheckpointMismatchError
from tests.checkpoint.samples import ALONE
from tests.loading import load_cases_bodies as load_cases
from tests.models import Net
from tests.rank_bodies import loading
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from collections.abc import Callable
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


def test_one_rank_of_each_node_sees_the_files(saved: tuple[Path, Flat], tmp_path: Path) -> None:
    for node in ("0", "1"):
        (tmp_path / node).mkdir()
        for name in ("copy.pt", "other.pt"):
            shutil.copy(saved[0], tmp_path / node / name)
    load_cases.save_run(tmp_path, numbered=True)
    (tmp_path / "state.pt").replace(tmp_path / "1" / "other.pt")
    for copy, other, as_asked, alone in run_ranks(load_cases.load_on_nodes, str(tmp_path), world_size=4):
        for found in (copy, as_asked):
            assert_equal(found, saved[1])
            assert "the ranks [1, 3] do not see it: rank 0 reads" in found["codes"]["FM437"]
        assert other["error"] == "CheckpointMismatchError"
        assert "ranks [0]: 1 file of" in other["said"]
        assert "ranks [2]: 1 file of" in other["said"]
        assert alone["error"] in ("CheckpointNotFoundError", "RankError")
        assert other["same"]
        assert alone["same"]


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
            "`sampler`, asked for in `extra`, is not there; the checkpoint has: `scheduler`, `epoch`, `rng`",
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
        refused = ("damaged", "other", "nowhere", "not all see", "word")
        assert all(rank[name][2] for name in refused)
        assert "The ranks see different checkpoints" in rank["by torch's call"]
    assert [rank["not all see"][0] for rank in (first, second)] == ["RankError", "CheckpointNotFoundError"]
    assert second["while reading"][:2] == ["OSError", "the disk is gone"]
    assert first["while reading"][:2] == [
        "RankError",
        (
            "Rank 1 failed while it loaded, so that the model is loaded in part on every rank: "
            "OSError: the disk is gone"
        ),
    ]
    for name, how in {"vanishes": "is gone.", "changes": "has changed since it was inspected."}.items():
        assert second[name][0] == "CheckpointFormatError"
        assert how in second[name][1]
        assert first[name][0] == "RankError"
        assert second[name][1] in first[name][1]


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


def test_a_group_that_flat_parameters_left_empty_is_explained(tmp_path: Path) -> None:
    """``p.ndim >= 2`` was never true under FSDP1, so that its first group was saved without a parameter."""
    model, optimizer, _ = load_cases.make_run()
    own = load_cases.by_name(model, optimizer)
    names = [name for group in own["param_groups"] for name in group["params"]]
    first, *_ = own["param_groups"]
    own["param_groups"] = [{**first, "params": []}, {**first, "params": names}]
    torch.save({"model": model.state_dict(), "optimizer": own}, tmp_path / "state.pt")
    fresh = Net()
    by_shape = [[p for p in fresh.parameters() if (p.ndim >= 2) is wanted] for wanted in (True, False)]
    divided = torch.optim.AdamW([{"params": each} for each in by_shape], lr=1.0)
    with pytest.raises(CheckpointMismatchError, match="fsdp-migrate explain FM318"):
        load_checkpoint(tmp_path / "state.pt", fresh, divided)
    # timm leaves the empty group out.
    own["param_groups"] = [{**first, "params": names}]
    torch.save({"model": model.state_dict(), "optimizer": own}, tmp_path / "one.pt")
    with pytest.raises(CheckpointMismatchError, match=r"1 parameter group .* 2 of .*explain FM318"):
        load_checkpoint(tmp_path / "one.pt", fresh, divided)
    # What the explanation says fits.
    flat: list[dict[str, Any]] = [{"params": []}, {"params": list(fresh.parameters())}]
    as_before = torch.optim.AdamW(flat, lr=1.0)
    load_checkpoint(tmp_path / "state.pt", fresh, as_before)
    assert len(as_before.state) == len(names)


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


class Sorting(torch.optim.SGD):
    """Notes which parameters are matrices, as Moonlight's Muon does."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.1, momentum=0.9)
        for param in model.parameters():
            self.state[param]["use_muon"] = param.ndim == 2


def test_what_an_optimizer_notes_of_a_parameter_is_said_where_it_changes(tmp_path: Path) -> None:
    """FSDP1 gave it vectors alone: it goes on as under FSDP1, and does not say so itself."""
    model = nn.Linear(2, 2)
    saved = {
        name: {"use_muon": False, "momentum_buffer": torch.ones(p.shape)}
        for name, p in model.named_parameters()
    }
    settings = {
        **torch.optim.SGD([torch.ones(1)], lr=0.1, momentum=0.9).param_groups[0],
        "params": list(saved),
    }
    state = {"model": model.state_dict(), "optimizer": {"state": saved, "param_groups": [settings]}}
    torch.save(state, tmp_path / "state.pt")
    optimizer = Sorting(model)
    report = load_checkpoint(tmp_path / "state.pt", model, optimizer)
    [found] = [finding for finding in report.findings if finding.code == "FM460"]
    assert "`use_muon` of `weight` was True in the optimizer, and is False" in found.message
    assert optimizer.state[model.weight]["use_muon"] is False


class LoraLinear(nn.Module):
    """A frozen layer with an adapter beside it, under the names that PEFT gives them."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.base_layer = nn.Linear(size, size).requires_grad_(requires_grad=False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(size, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, size, bias=False)})

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.base_layer(value) + self.lora_B["default"](self.lora_A["default"](value))
        return out


def lora(seed: int) -> tuple[nn.ModuleDict, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.ModuleDict({"base_model": nn.ModuleDict({"model": nn.Sequential(*map(LoraLinear, (5, 5)))})})
    trained = [param for param in model.parameters() if param.requires_grad]
    return model, torch.optim.AdamW(trained, lr=1e-2)


def test_lora(tmp_path: Path) -> None:
    model, optimizer = lora(1)
    for _ in range(2):
        model.get_submodule("base_model.model")(torch.ones(1, 5)).square().sum().backward()
        optimizer.step()
    wanted = loading.whole(model, optimizer)
    # An optimizer of the adapters alone, by names; or by numbers, as plain loops save it.
    for number, own in enumerate((load_cases.by_name(model, optimizer), optimizer.state_dict())):
        path = tmp_path / f"{number}.pt"
        torch.save({"model": model.state_dict(), "optimizer": own}, path)
        fresh, adam = lora(2)
        load_checkpoint(path, fresh, adam)
        assert_equal(loading.whole(fresh, adam), wanted)
    # What PEFT saves of it: the adapters, without the adapter's name.
    adapters = {
        name.replace(".default", ""): value for name, value in model.state_dict().items() if "lora_" in name
    }
    torch.save(adapters, tmp_path / "adapter_model.bin")
    fresh, _ = lora(2)
    before = {name: value.clone() for name, value in fresh.state_dict().items()}
    report = load_checkpoint(
        tmp_path / "adapter_model.bin", fresh, strict=False, rename=[r"(lora_[AB])\.=\1.default."]
    )
    for name, value in fresh.state_dict().items():
        assert torch.equal(value, model.state_dict()[name] if "lora_" in name else before[name]), name
    assert sorted(report.missing) == sorted(name for name in before if "base_layer" in name)


@pytest.mark.parametrize("form", ["a list", "by their names", "two files"])
def test_several_optimizers(form: str, tmp_path: Path) -> None:
    model, _, _ = load_cases.make_run()
    halves = [[param for name, param in model.named_parameters() if name.startswith("embed") == first]
              for first in (True, False)]  # fmt: skip
    own = [torch.optim.AdamW(halves[0], lr=1e-2), torch.optim.AdamW(halves[1], lr=3e-2, weight_decay=0.3)]
    model(torch.arange(5)[None]).square().sum().backward()
    for optimizer in own:
        optimizer.step()
    states = [load_cases.by_name(model, optimizer) for optimizer in own]
    whole: Flat = {"model": model.state_dict()}
    if form == "two files":
        torch.save(whole, tmp_path / "model.pt")
        for number, state in enumerate(states):
            torch.save(state, tmp_path / f"optimizer_{number}.pt")
    else:
        names = ("optimizer_embed", "optimizer_rest")
        more = {"optimizers": states} if form == "a list" else dict(zip(names, states, strict=True))
        torch.save({**whole, **more}, tmp_path / "state.pt")
    fresh = Net()
    names_of = dict(fresh.named_parameters())
    again = [
        torch.optim.AdamW([p for n, p in names_of.items() if n.startswith("embed") == first], lr=1.0)
        for first in (True, False)
    ]
    path = tmp_path if form == "two files" else tmp_path / "state.pt"
    load_checkpoint(path, fresh, again)
    for old, new in zip(own, again, strict=True):
        assert_equal(loading.whole(fresh, new), loading.whole(model, old))
        assert [group["lr"] for group in new.param_groups] == [group["lr"] for group in old.param_groups]


class Attack:
    def __reduce__(self) -> Any:
        return print, ("executed",)


def test_what_convert_refuses_is_refused_in_its_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, optimizer, _ = load_cases.make_run()
    whole: Flat = {"model": model.state_dict(), "optimizer": load_cases.by_name(model, optimizer)}
    torch.save({**whole, "other": Attack()}, tmp_path / "unsafe.pt")
    torch.save(whole, tmp_path / "cut.pt")
    data = (tmp_path / "cut.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(data[: len(data) // 2])
    (tmp_path / "text.pt").write_text("no checkpoint")
    (tmp_path / "empty").mkdir()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for name in ("unsafe.pt", "cut.pt", "text.pt", "empty", "nowhere.pt"):
        with pytest.raises(CheckpointError) as refused:
            convert_checkpoint(tmp_path / name, tmp_path / "out")
        with pytest.raises(type(refused.value)) as loaded:
            load_checkpoint(tmp_path / name, model, optimizer)
        assert str(loaded.value) == str(refused.value)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert "executed" not in capsys.readouterr().out


class Warmup:
    """A function of the learning rate that keeps something, as LambdaLR saves it."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __call__(self, step: int) -> float:
        return min(1.0, (step + 1) / self.steps)


def decay(step: int, *, rate: float) -> float:
    return rate**step


Scheduler = torch.optim.lr_scheduler.LRScheduler
SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer, bool], Scheduler]] = {
    "milestones": lambda optimizer, new: torch.optim.lr_scheduler.MultiStepLR(
        optimizer, [5, 7] if new else [2, 4]
    ),
    # As transformers makes them: partials, of which nothing is saved.
    "partials": lambda optimizer, _: torch.optim.lr_scheduler.LambdaLR(
        optimizer, [partial(decay, rate=0.5)] * 2
    ),
    "mixed": lambda optimizer, new: torch.optim.lr_scheduler.LambdaLR(
        optimizer, [partial(decay, rate=0.5), Warmup(2 if new else 4)]
    ),
}


@pytest.mark.parametrize("form", ["folder", "file"])
@pytest.mark.parametrize("kind", SCHEDULERS)
def test_schedulers_go_on_as_the_run_that_was_saved(kind: str, form: str, tmp_path: Path) -> None:
    """torch.distributed.checkpoint makes text of numbers that are keys, and stores no empty mappings."""

    def make(*, new: bool) -> tuple[nn.Module, torch.optim.Optimizer, Scheduler]:
        model = Net()
        groups = [{"params": [param]} for param in list(model.parameters())[:2]]
        optimizer = torch.optim.SGD(groups, lr=1.0, momentum=0.9)
        return model, optimizer, SCHEDULERS[kind](optimizer, new)

    model, optimizer, scheduler = make(new=False)
    optimizer.step()
    scheduler.step()
    names = {param: name for name, param in model.named_parameters()}
    groups = [
        {**group, "params": [names[each] for each in group["params"]]} for group in optimizer.param_groups
    ]
    state = {"model": model.state_dict(), "optimizer": {"state": {}, "param_groups": groups}}
    state["scheduler"] = scheduler.state_dict()
    if form == "folder":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is one process
            dcp.save(state, checkpoint_id=tmp_path / "saved", **ALONE)
    else:
        torch.save(state, tmp_path / "saved")
    other, new_optimizer, found = make(new=True)
    load_checkpoint(tmp_path / "saved", other, new_optimizer, extra={"scheduler": found})
    for _ in range(5):
        optimizer.step()
        new_optimizer.step()
        scheduler.step()
        found.step()
        assert found.get_last_lr() == scheduler.get_last_lr()


def test_what_does_not_take_its_state_is_named(saved: tuple[Path, Flat]) -> None:
    class Strict:
        def load_state_dict(self, state: Flat) -> None:
            raise KeyError("beta")

    model = Net()
    optimizer = torch.optim.AdamW(load_cases.groups_of(model), lr=7.0)
    with pytest.raises(CheckpointMismatchError, match=r"`scheduler`, given in `extra`, .* KeyError: 'beta'"):
        load_checkpoint(saved[0], model, optimizer, extra={"scheduler": Strict()})
