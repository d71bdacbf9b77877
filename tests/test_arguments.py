"""Arguments of the wrong kind: an error of this package that names the argument, never a bare TypeError."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import fsdp_migrate
from fsdp_migrate.adapters.document.nodes import Scalar, scalar_value
from fsdp_migrate.checkpoint_convert import OutputOptions, SourceOptions
from fsdp_migrate.errors import FSDPMigrateError, OptimizerError
from fsdp_migrate.runtime import optim_state_dict_to_load, sharded_state_dict
from fsdp_migrate.sharding.communication import check_communication
from fsdp_migrate.sharding.optimizers import as_list


if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.any_torch

SOURCE = "tests/checkpoint/data/torch-2.13.0/plain.dcp"


def junk() -> dict[str, object]:
    """Return one of each kind; new ones, because who is given a generator may use it up."""
    return {
        "number": 3,
        "nan": float("nan"),
        "bytes": b"x",
        "class": nn.Linear,
        "generator": iter([1]),
        "list": [1, None],
        "mapping": {1: 2},
        "scalar": torch.tensor(1.5),
        "object": object(),
    }


def plan(**arguments: Any) -> object:
    """Plan for a small model."""
    return fsdp_migrate.plan_fully_shard(
        nn.Sequential(nn.Linear(2, 2)), **{"fsdp1_config": None, "world_size": 8, **arguments}
    )


def convert(**arguments: Any) -> object:
    """Convert to a place that cannot be made, so that nothing is written."""
    return fsdp_migrate.convert_checkpoint(SOURCE, **{"dst": "/dev/null/x", **arguments})


def recompute(**arguments: Any) -> object:
    """Checkpoint the layer of a small model."""
    return fsdp_migrate.apply_activation_checkpointing(
        nn.Sequential(nn.Linear(2, 2)), **{"which": "Linear", **arguments}
    )


def load(**arguments: Any) -> object:
    """Load into a small model that the checkpoint does not fit."""
    given = {"path": SOURCE, "model": nn.Linear(2, 2), **arguments}
    return fsdp_migrate.load_checkpoint(given.pop("path"), given.pop("model"), **given)


# For each argument a call with it, and the kinds of junk that it takes.
CALLS: dict[str, tuple[Callable[[Any], object], set[str]]] = {
    "world_size": (lambda it: plan(world_size=it), {"number"}),
    "devices_per_node": (lambda it: plan(devices_per_node=it), {"number"}),
    "tied": (lambda it: plan(tied=it), set()),
    "skipped_units": (lambda it: plan(skipped_units=it), set()),
    "communication": (check_communication, set()),
    "a key of communication": (lambda it: check_communication({id(it): it}), set()),
    "reshard_after_forward": (lambda it: plan(reshard_after_forward=it), set()),
    "a key of fsdp1_config": (lambda it: plan(fsdp1_config={id(it): it}), set()),
    "optimizers": (as_list, set()),
    "shard_plan": (fsdp_migrate.shard_plan, set()),
    "model to recompute": (
        lambda it: fsdp_migrate.apply_activation_checkpointing(it, "Linear"),
        set(),
    ),
    "an option of recompute": (lambda it: recompute(which={"which": "Linear", 1: it}), set()),
    "which": (lambda it: recompute(which=it), {"class"}),
    "reentrant": (lambda it: recompute(reentrant=it), set()),
    "context_fn": (lambda it: recompute(context_fn=it), set()),
    "microbatches": (lambda it: fsdp_migrate.microbatches(it, [1]), set()),
    "agree": (lambda it: fsdp_migrate.microbatches(nn.Linear(2, 2), [1], agree=it), set()),
    "path": (lambda it: load(path=it), set()),
    "model": (lambda it: load(model=it), set()),
    "extra": (lambda it: load(extra=it), set()),
    "rename": (lambda it: load(rename=it), set()),
    "broadcast": (lambda it: load(broadcast=it), set()),
    "options": (lambda it: load(options=it), set()),
    "src": (fsdp_migrate.inspect_checkpoint, set()),
    "dst": (lambda it: convert(dst=it), set()),
    "to": (lambda it: convert(to=it), set()),
    "buffer_bytes": (lambda it: convert(buffer_bytes=it), set()),
    "progress": (lambda it: convert(progress=it), set()),
    "output_options": (lambda it: convert(output_options=it), set()),
    "manifest": (fsdp_migrate.plan_conversion, set()),
    "plan": (lambda it: fsdp_migrate.execute_plan(it, "/dev/null/x"), set()),
    "verify": (lambda it: fsdp_migrate.verify_checkpoints(it, SOURCE), set()),
    "optimizer_class": (lambda it: OutputOptions(optimizer_class=it), set()),
    "renames": (lambda it: OutputOptions(renames=it), set()),
    "renames of several": (lambda it: OutputOptions(renames=(it,)), set()),
    "model_files": (lambda it: OutputOptions(model_files={"config.json": it}), {"bytes"}),
    "outline": (lambda it: SourceOptions(model=it), set()),
    "parameter_names": (lambda it: SourceOptions(parameter_names=it), set()),
    "config file": (fsdp_migrate.convert_config_file, set()),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_kind_is_a_clear_error(name: str) -> None:
    call, taken = CALLS[name]
    for kind, value in junk().items():
        if kind not in taken:
            with pytest.raises(FSDPMigrateError):
                call(value)


def test_a_generator_of_the_users_raises_its_own_error() -> None:
    nothing: dict[str, Any] = {}
    with pytest.raises(KeyError, match="mine"):
        as_list(nothing[name] for name in ["mine"])


class Wrapper:
    """An optimizer by its shape alone, as projects write them: the state is that of what it holds."""

    def __init__(self, optimizer: Any, name: str = "optim") -> None:
        setattr(self, name, optimizer)

    @property
    def param_groups(self) -> Any:
        """Show the groups of what is wrapped."""
        return next(iter(vars(self).values())).param_groups


@pytest.mark.parametrize("name", ["optim", "optimizer"])
def test_a_wrapper_is_taken_for_the_optimizer_that_it_holds(name: str) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.25)
    wrapper: Any = Wrapper(Wrapper(optimizer, name), name)
    assert as_list(wrapper) == as_list([wrapper]) == [optimizer]
    state = sharded_state_dict(model, wrapper)["optimizer"]
    assert state["param_groups"][0]["lr"] == 0.25
    assert optim_state_dict_to_load(model, wrapper, state)["param_groups"][0]["params"] == [0, 1]


def test_a_wrapper_that_hides_its_optimizer_is_an_error_that_names_what_is_missing() -> None:
    hidden: Any = Wrapper(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1), "inside")
    model = nn.Linear(1, 1)
    hidden.inside.param_groups[0]["params"] = list(model.parameters())
    state = {"state": {}, "param_groups": [{"params": ["weight", "bias"]}]}  # which asks for no state
    assert optim_state_dict_to_load(model, hidden, state)["param_groups"][0]["params"] == [0, 1]
    for given in (hidden, [hidden]):
        with pytest.raises(OptimizerError, match="a Wrapper with `param_groups`, but without `state`"):
            as_list(given)
    schedule: Any = torch.optim.lr_scheduler.StepLR(hidden.inside, 1)
    with pytest.raises(FSDPMigrateError):
        as_list(schedule)


def test_a_number_of_5000_digits_in_a_config_stays_a_text() -> None:
    assert scalar_value(Scalar(0, 5000, "9" * 5000, "9" * 5000, quoted=False)) == "9" * 5000
