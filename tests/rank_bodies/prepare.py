"""What ``prepare_fully_shard`` makes of a model, its optimizers and its buffers."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP, MixedPrecision, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.two_tensor import TwoTensor

from fsdp_migrate.errors import FSDPMigrateError, OptimizerError
from fsdp_migrate.sharding.prepare import prepare_fully_shard, shard_plan
from tests.models import Block, ConvNet, Net, batch, loss_of
from tests.rank_bodies.parity import Tensors, full


if TYPE_CHECKING:
    from collections.abc import Callable
from dataclasses import dataclass, field


CPU = {"device_id": "cpu"}
BLOCKS = {**CPU, "auto_wrap_policy": {Block}}


def what_comes_back() -> dict[str, Any]:
    """Prepare a net; return what a user can see of it."""
    model: Any = Net()
    values = {name: param.detach().clone() for name, param in model.named_parameters()}
    frozen = model.embed.weight
    frozen.requires_grad_(False)
    same = prepare_fully_shard(model, BLOCKS)
    return {
        "same object": same is model,
        "still a Net": isinstance(model, Net),
        "has .module": hasattr(model, "module"),
        "names": [name for name, _ in model.named_parameters()] == list(values),
        "values": all(torch.equal(full(p), values[name]) for name, p in model.named_parameters()),
        "sharded": all(isinstance(param, DTensor) for param in model.parameters()),
        "frozen": [name for name, param in model.named_parameters() if not param.requires_grad],
        "units": [name for name, module in model.named_modules() if isinstance(module, FSDPModule)],
        "plan": [unit.fqn for unit in shard_plan(model).units],
        "local rows": model.head.out.weight.to_local().shape[0],
    }


@dataclass
class Call:
    """A call of ``prepare_fully_shard`` on a net that a test has spoiled."""

    model: Any
    arguments: Any = field(default_factory=lambda: dict(BLOCKS))
    more: dict[str, Any] = field(default_factory=dict)


def _mesh(*shape: int) -> Any:
    return init_device_mesh("cpu", shape)


def _spoil(path: str, value: Callable[[Any], Any]) -> Callable[[Any], Call]:
    """Return a builder that replaces what is at ``path`` by what ``value`` makes of the net."""

    def build(net: Any) -> Call:
        owner, _, name = path.rpartition(".")
        setattr(net.get_submodule(owner), name, value(net))
        return Call(net)

    return build


def _argue(**arguments: Any) -> Callable[[Any], Call]:
    return lambda net: Call(net, {**BLOCKS, **arguments})


def _sharded_in_part(net: Any) -> Call:
    fully_shard(net.blocks[0], mesh=_mesh(dist.get_world_size()))
    return Call(net)


def _ignored_on_meta(net: Any) -> Call:
    net.head.to("meta")
    return Call(net, {**BLOCKS, "ignored_modules": [net.head]})


def _quantised() -> nn.Parameter:
    kind = type("Int8Params", (nn.Parameter,), {"__module__": "bitsandbytes.nn.modules"})
    parameter: nn.Parameter = torch.Tensor._make_subclass(kind, torch.zeros(13, 6), False)
    return parameter


class Params4bit(nn.Parameter):
    """A weight that bitsandbytes has not packed yet."""


def _made_of_tensors() -> nn.Parameter:
    return nn.Parameter(TwoTensor(torch.zeros(13, 6), torch.zeros(13, 6)), requires_grad=False)


def _integers() -> nn.Parameter:
    return nn.Parameter(torch.zeros(13, 6, dtype=torch.int8), requires_grad=False)


def _crossing_groups(net: Any) -> Call:
    everyone = dist.new_group(range(dist.get_world_size()))
    return Call(net, {**BLOCKS, "sharding_strategy": "HYBRID_SHARD", "process_group": (everyone, everyone)})


def _raise(*args: object, **kwargs: object) -> bool:
    raise KeyError("of the user's policy")


def fail_on_one_rank() -> tuple[str, str]:
    """Prepare with a policy of the user's that raises on rank 1; return each rank's error."""
    warnings.simplefilter("ignore")
    policy = _raise if dist.get_rank() else {Block}
    try:
        prepare_fully_shard(Net(), {**CPU, "auto_wrap_policy": policy})
    except Exception as error:
        return type(error).__name__, str(error)
    return "no error", ""


def outside_of_the_group(by: str) -> tuple[str, str]:
    """Prepare on a group or a mesh of rank 0 alone, on both ranks; return each rank's error."""
    warnings.simplefilter("ignore")
    group, mesh = dist.new_group([0]), DeviceMesh("cpu", [0])
    given: dict[str, Any] = {"mesh": mesh} if by == "mesh" else {}
    arguments = BLOCKS if by == "mesh" else {**BLOCKS, "process_group": group}
    try:
        prepare_fully_shard(Net(), arguments, **given)
    except FSDPMigrateError as error:
        return type(error).__name__, str(error)
    return "no error", ""


def _of_fsdp1(module: Any) -> Any:
    return FSDP(module, device_id=torch.device("cpu"))


REFUSED: dict[str, Callable[[Any], Call]] = {
    "scalar": _spoil("temperature", lambda net: nn.Parameter(torch.tensor(1.0))),
    "rows without elements": _spoil("gain", lambda net: nn.Parameter(torch.zeros(3, 0))),
    "sharded already": _sharded_in_part,
    "wrapped by FSDP1": lambda net: Call(_of_fsdp1(net)),
    "part wrapped by FSDP1": _spoil("blocks.0", lambda net: _of_fsdp1(net.blocks[0])),
    "wrapped by DDP": lambda net: Call(DistributedDataParallel(net)),
    "several dtypes": _spoil("blocks.1.up", lambda net: net.blocks[1].up.to(torch.bfloat16)),
    "a container": lambda net: Call(net.blocks, dict(CPU)),
    "no reset_parameters": _spoil("gain", lambda net: nn.Parameter(torch.zeros(3, device="meta"))),
    "a buffer that nobody sets": _spoil("blocks.0.scale", lambda net: torch.zeros(1, device="meta")),
    "ignored on meta": _ignored_on_meta,
    "quantised": _spoil("head.out.weight", lambda net: _quantised()),
    "not packed yet": _spoil("head.out.weight", lambda net: Params4bit(torch.zeros(13, 6))),
    "made of tensors": _spoil("head.out.weight", lambda net: _made_of_tensors()),
    "integers": _spoil("head.out.weight", lambda net: _integers()),
    "a policy that wraps nothing": _argue(auto_wrap_policy=lambda module, recurse, **_: recurse),
    "a class that matches nothing": _argue(auto_wrap_policy={Block, nn.Conv1d}),
    "no device": _argue(device_id="gpu"),
    "a device that is not here": lambda net: Call(
        net, {"device_id": "xpu:7"}, {"activation_checkpointing": {Block}}
    ),
    "no module": lambda net: Call(net, more={"model": {"a": 1}}),
    "no owner of ties": lambda net: Call(net, more={"tied": "root"}),
    "classes that match nothing": _argue(auto_wrap_policy=ModuleWrapPolicy({nn.Conv1d})),
    "a misspelt check function": lambda net: Call(
        net, more={"activation_checkpointing": {"check_fnn": lambda module: True}}
    ),
    "no mesh": lambda net: Call(net, more={"mesh": "dp"}),
    "no process group": _argue(process_group="world"),
    "groups that cross twice": _crossing_groups,
    "no optimizer": lambda net: Call(net, more={"optimizers": ["sgd"]}),
    "a name that matches nothing": _argue(ignored_modules=["heat"]),
    "an expression that is none": _argue(ignored_modules="hea(d"),
    "too many ranks to shard over again": lambda net: Call(net, more={"reshard_after_forward": 3}),
    "optimizer of another model": lambda net: Call(
        net, more={"optimizers": torch.optim.SGD(Net().parameters(), lr=1.0)}
    ),
    "activation checkpointing": lambda net: Call(net, more={"activation_checkpointing": "Blok"}),
    "strict": lambda net: Call(net, {**BLOCKS, "backward_prefetch": "BACKWARD_POST"}, {"strict": True}),
    "parameters in ignored_modules": _argue(ignored_modules=[nn.Parameter(torch.zeros(1))]),
    "2-D mesh": lambda net: Call(net, more={"mesh": _mesh(dist.get_world_size(), 1)}),
    "1-D mesh for HYBRID_SHARD": lambda net: Call(
        net, {**BLOCKS, "sharding_strategy": "HYBRID_SHARD"}, {"mesh": _mesh(dist.get_world_size())}
    ),
    "unknown argument": _argue(shard_strategy="FULL_SHARD"),
    "no mapping": lambda net: Call(net, object()),
}


def refuse(name: str) -> tuple[str, str, bool]:
    """Prepare what must be refused; return the error's class, its text, and whether nothing changed."""
    warnings.simplefilter("ignore")
    call = REFUSED[name](Net())
    model = call.model
    before = _traces(model)
    try:
        prepare_fully_shard(call.more.pop("model", model), call.arguments, **call.more)
    except FSDPMigrateError as error:
        return type(error).__name__, str(error), _traces(model) == before
    return "no error", "", False


def refuse_all() -> dict[str, tuple[str, str, bool]]:
    """Refuse everything that is refused, one after the other."""
    return {name: refuse(name) for name in REFUSED}


def optimizer_left_behind(use: str) -> tuple[str, list[str]]:
    """Step with an optimizer that was built before sharding; return its errors, and one's that was given."""
    model = Net()
    old = torch.optim.SGD(model.parameters(), lr=0.1)
    given = torch.optim.SGD(model.parameters(), lr=0.1)
    other = nn.Linear(2, 2)
    apart = torch.optim.SGD(other.parameters(), lr=0.1)
    before = apart if use == "stepped before" else None
    if before is not None:
        old.step()
    prepare_fully_shard(model, BLOCKS, optimizers=given)
    torch.autograd.backward(loss_of(model, batch(0, dist.get_rank())))
    fresh = torch.optim.SGD(model.parameters(), lr=0.1)
    return _error_of_step(old), [_error_of_step(each) for each in (given, apart, fresh)]


def _error_of_step(optimizer: torch.optim.Optimizer) -> str:
    try:
        optimizer.step()
    except OptimizerError as error:
        return str(error)
    return "no error"


def _traces(model: nn.Module) -> list[object]:
    """Return what sharding, casts, hooks and checkpointing change."""
    hooks = [
        (type(m), len(m._forward_pre_hooks), len(m._forward_hooks), "forward" in vars(m))
        for m in model.modules()
    ]
    return [*hooks, *((key, id(value), type(value)) for key, value in model.named_parameters())]


def _two_groups(model: nn.Module) -> list[dict[str, Any]]:
    decayed = [param for name, param in model.named_parameters() if name.endswith("weight")]
    others = [param for name, param in model.named_parameters() if not name.endswith("weight")]
    return [{"params": decayed, "weight_decay": 0.2, "lr": 0.02}, {"params": others, "weight_decay": 0.0}]


def train_with_earlier_optimizer(kind: str, steps_before: int) -> tuple[Tensors, Tensors, Any]:
    """Train a plain model and a prepared one by an optimizer that was built, and used, before sharding.

    Every rank has the same data, so that the prepared model must stay equal to the plain one. Returns the
    parameters of both, and the prepared one's groups without their parameters.
    """
    results: list[Tensors] = []
    groups: Any = None
    for prepared in (False, True):
        torch.manual_seed(0)
        model = Net()
        optimizers = _optimizers(kind, _two_groups(model))
        for step in range(steps_before + 3):
            if prepared and step == steps_before:
                prepare_fully_shard(model, BLOCKS, optimizers=optimizers)
                every = [group for optimizer in optimizers for group in optimizer.param_groups]
                groups = [{k: v for k, v in group.items() if k != "params"} for group in every]
                owned = [param for group in every for param in group["params"]]
                assert {id(param) for param in owned} == {id(param) for param in model.parameters()}
            model.zero_grad()
            torch.autograd.backward(loss_of(model, batch(step, 0)))
            for optimizer in optimizers:
                optimizer.step()
        results.append({name: full(param) for name, param in model.named_parameters()})
    return results[0], results[1], groups


def _optimizers(kind: str, groups: list[dict[str, Any]]) -> list[torch.optim.Optimizer]:
    """Build one optimizer for both groups, or by the name of two one for each."""
    kinds = kind.split(" and ")
    parts = [groups] if len(kinds) == 1 else [[group] for group in groups]
    return [getattr(torch.optim, each)(part, lr=0.05) for each, part in zip(kinds, parts, strict=True)]


def ignore_the_head() -> dict[str, Any]:
    """Prepare with the head ignored, as FSDP1 takes it; return what became of it after a step."""
    model = Net()
    prepare_fully_shard(model, {**BLOCKS, "ignored_modules": [model.head]})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    torch.autograd.backward(loss_of(model, batch(0, dist.get_rank())))
    optimizer.step()
    grad = model.head.out.weight.grad
    return {
        "plain": sorted(n for n, p in model.named_parameters() if not isinstance(p, DTensor)),
        "planned": sorted(shard_plan(model).ignored),
        "local gradient": None if grad is None else grad.clone(),
    }


def buffers_in_low_precision() -> dict[str, Any]:
    """Prepare with ``buffer_dtype``; return dtypes of buffers as they are, and as state dicts hold them."""
    model = ConvNet()
    precision = MixedPrecision(torch.bfloat16, buffer_dtype=torch.bfloat16)
    ignoring = MixedPrecision(torch.bfloat16, buffer_dtype=torch.bfloat16, _module_classes_to_ignore=())
    found: dict[str, Any] = {}
    for label, mixed in (("BatchNorm kept", precision), ("all", ignoring)):
        model = ConvNet()
        policy = ModuleWrapPolicy({nn.Sequential})
        prepare_fully_shard(model, {**CPU, "auto_wrap_policy": policy, "mixed_precision": mixed})
        saved: dict[str, Any] = dict(get_model_state_dict(model))
        found[label] = {
            "live": {str(buffer.dtype) for name, buffer in model.named_buffers() if "running" in name},
            "counters": {str(b.dtype) for name, b in model.named_buffers() if "num_batches" in name},
            "state_dict": {str(v.dtype) for k, v in model.state_dict().items() if "running" in k},
            "get_model_state_dict": {str(v.dtype) for k, v in saved.items() if "running" in k},
        }
    return found


def mesh_of(arguments: str) -> tuple[tuple[int, ...], tuple[str, ...] | None, list[int]]:
    """Prepare on four ranks; return the mesh's shape, names and this rank's coordinate."""
    choices: dict[str, Callable[[], dict[str, Any]]] = {
        "default": dict,
        "HYBRID_SHARD without groups": lambda: {"sharding_strategy": "HYBRID_SHARD"},
        "2-D mesh without names": lambda: {
            "sharding_strategy": "HYBRID_SHARD",
            "device_mesh": init_device_mesh("cpu", (2, 2)),
        },
        "NO_SHARD": lambda: {"sharding_strategy": "NO_SHARD"},
        "group": lambda: {"process_group": dist.new_group([0, 1, 2, 3])},
    }
    model: Any = Net()
    prepare_fully_shard(model, {**BLOCKS, **choices[arguments]()})
    mesh = model.embed.weight.device_mesh
    return tuple(mesh.shape), mesh.mesh_dim_names, list(mesh.get_coordinate())


def gloo_gradients(strategy: str) -> float:
    """Return the prepared gradient of a mean over ranks whose losses are 1, 2, ... times one weight."""
    model = nn.Linear(1, 1, bias=False)
    prepare_fully_shard(model, {**CPU, "sharding_strategy": strategy})
    torch.autograd.backward(model(torch.ones(1, 1)).sum() * (dist.get_rank() + 1.0))
    grad = model.weight.grad
    assert grad is not None
    return float(full(grad).item())


def prefetch_targets() -> tuple[int, int]:
    """Return how many units prefetch themselves, that is nothing, with and without backward prefetch."""
    counts = []
    for prefetch in (None, "BACKWARD_PRE"):
        model = Net()
        prepare_fully_shard(model, {**BLOCKS, "backward_prefetch": prefetch})
        units = [module for module in model.modules() if isinstance(module, FSDPModule)]
        told = [unit._get_fsdp_state()._states_to_backward_prefetch for unit in units]
        counts.append(
            sum(
                bool(states) and states[0]._modules == (unit,)
                for unit, states in zip(units, told, strict=True)
            )
        )
    return counts[0], counts[1]


def reshard_settings(strategy: str) -> dict[str, Any]:
    """Return whether each unit's parameters are freed after forward: sharded again, or still whole."""
    model: Any = Net()
    prepare_fully_shard(model, {**BLOCKS, "sharding_strategy": strategy})
    model.eval()
    model(batch(0, 0))
    return {
        "block": isinstance(model.blocks[0].up.weight, DTensor),
        "root": isinstance(model.embed.weight, DTensor),
    }
