"""What users' own functions may do to prepare_fully_shard and compare_runs, on all ranks or on one."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from fsdp_migrate import compare_runs, prepare_fully_shard


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def net() -> nn.Module:
    """Make a small model."""
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def failing(*_: Any, **__: Any) -> Any:
    """Fail as a user's function does."""
    raise KeyError("mine")


def on_rank_1(fail: Callable[[], Any], go_on: Callable[[], Any]) -> Any:
    """Do one thing on rank 1 and another on rank 0."""
    return fail() if dist.get_rank() == 1 else go_on()


def fill(module: nn.Module) -> None:
    """Give a module's own parameters memory and values."""
    module.to_empty(device="cpu", recurse=False)
    for parameter in module.parameters(recurse=False):
        nn.init.ones_(parameter)


def _changed(change: Callable[[Any], Any]) -> Callable[[nn.Module], None]:
    def init(module: nn.Module) -> None:
        fill(module)
        if isinstance(module, nn.Linear):
            change(module)

    return init


def _of_float64(module: Any) -> None:
    module.weight = nn.Parameter(module.weight.double())


def _as_plain_tensor(module: Any) -> None:
    module._parameters["weight"] = module.weight.detach()


def _renamed(module: Any) -> None:
    module.other = module.weight
    del module.weight


def _returning(module: nn.Module) -> nn.Module:
    fill(module)
    return nn.Linear(9, 9)


def _replacing_children(module: nn.Module) -> None:
    if isinstance(module, nn.Sequential):
        module[0] = nn.Linear(4, 4)
    else:
        fill(module)


def _whole_at_once(module: nn.Module) -> None:
    module.to_empty(device="cpu")
    for parameter in module.parameters():
        nn.init.ones_(parameter)


def _with_collectives(module: nn.Module) -> None:
    dist.barrier()
    fill(module)


INITS: dict[str, Callable[[nn.Module], Any]] = {
    "fails": failing,
    "fails on rank 1": lambda module: on_rank_1(failing, lambda: fill(module)),
    "takes away": _changed(lambda module: delattr(module, "bias")),
    "leaves none": _changed(lambda module: setattr(module, "bias", None)),
    "adds": _changed(lambda module: setattr(module, "extra", nn.Parameter(torch.ones(4)))),
    "renames": _changed(_renamed),
    "of float64": _changed(_of_float64),
    "a plain tensor": _changed(_as_plain_tensor),
    "back to meta": _changed(lambda module: module.to("meta")),
    "returns": _returning,
    "replaces children": _replacing_children,
    "whole at once": _whole_at_once,
    "collectives": _with_collectives,
}


def batches(count: int = 2) -> list[torch.Tensor]:
    """Make some batches."""
    return [torch.ones(2, 4) for _ in range(count)]


def _broken() -> Iterator[torch.Tensor]:
    yield torch.ones(2, 4)
    failing()


def _on_rank_1(rank: int) -> Any:
    return _broken() if rank else batches()


RUNS: dict[str, dict[str, Any]] = {
    "model fails": {"model": failing},
    "model fails on rank 1": {"model": lambda: on_rank_1(failing, net), "batches": batches(4)},
    "no model": {"model": lambda: None},
    "a number for a model": {"model": 3},
    "model and more": {"model": lambda: (net(), 3)},
    "data is a number": {"batches": 3},
    "data is empty": {"batches": []},
    "data fails": {"batches": _broken},
    "data fails on rank 1": {"batches": _on_rank_1},
    "too few on rank 1": {"batches": lambda rank: batches(1 + (rank == 0))},
    "loss fails": {"loss": failing},
    "no loss": {"loss": lambda model, batch: None},
    "loss is a number": {"loss": lambda model, batch: 3.5},
    "loss is a vector": {"loss": lambda model, batch: model(batch)},
    "a number for a loss": {"loss": 3},
    "no steps": {"steps": 0},
    "steps on rank 1": {"steps": "of the rank"},
    "endless steps": {"steps": 10**5000},
    "a text for a seed": {"seed": "x"},
    "endless seed": {"seed": 10**400},
    "no such device": {"device": "junk"},
    "a number for a device": {"device": 3},
    "optimizer fails": {"optimizer": failing},
    "no optimizer": {"optimizer": lambda model: None},
    "a number for a checkpoint": {"checkpoint": 3},
    "a checkpoint with a NUL": {"checkpoint": "a\0b"},
    "nothing prepared": {"prepare": lambda model, config: None},
    "not prepared": {"prepare": lambda model, config: model},
    "config fails": {"fsdp1_config": failing},
    "config is a number": {"fsdp1_config": lambda model: 3},
    "a number to tell": {"on_step": 3},
    "an optimizer that FSDP1's gradients do not suit": {
        "fsdp1_config": {
            "use_orig_params": True,
            "mixed_precision": {"param_dtype": "bf16", "keep_low_precision_grads": True},
        },
        "optimizer": lambda model: torch.optim.AdamW(model.parameters()),
    },
    "rows beside data": {"batches": batches(4), "batch_size": 2},
    "a text for rows": {"batch_size": "2"},
    "no tokens": {"seq_length": 0},
    "a loss that is no number": {"loss": lambda model, batch: model(batch).sum() * float("nan")},
}


def _outcome(call: Callable[[], Any]) -> tuple[str, str]:
    try:
        return "none", str(call())
    except Exception as error:
        return type(error).__name__, str(error)


def _compare(given: dict[str, Any]) -> object:
    arguments = {
        "model": net,
        "fsdp1_config": {"use_orig_params": True},
        "steps": 2,
        "device": "cpu",
        **given,
    }
    if arguments["steps"] == "of the rank":
        arguments["steps"] = on_rank_1(lambda: -1, lambda: 2)
    return compare_runs(arguments.pop("model"), **arguments).notes


def call_all() -> tuple[dict[str, tuple[str, str]], dict[str, tuple[str, str]]]:
    """Return by name the class of the error, and what it says."""
    warnings.simplefilter("ignore")
    inits, runs = {}, {}
    for name, init in INITS.items():
        with torch.device("meta"):
            model = net()
        arguments = {"device_id": "cpu", "param_init_fn": init, "auto_wrap_policy": {nn.Linear}}
        inits[name] = _outcome(partial(prepare_fully_shard, model, arguments))
    for name, given in RUNS.items():
        runs[name] = _outcome(partial(_compare, given))
    return inits, runs
