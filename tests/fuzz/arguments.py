"""The FSDP1 arguments and the optimizer of a draw, as torch takes them."""

from __future__ import annotations

import os
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import (
    CustomPolicy,
    ModuleWrapPolicy,
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)

from tests.fuzz.models import Head, Net
from tests.fuzz.units import Block


if TYPE_CHECKING:
    from tests.fuzz.draws import Draw


_DEVICES = [torch.device("cpu")]


def train_on(device: str) -> None:
    """Have this process train on a device from now on, so that equal runs give equal bits there, too."""
    _DEVICES[:] = [torch.device(device)]
    if device != "cpu":
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it CUDA's products are not deterministic
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.allow_tf32 = False  # in which a recurrent layer differs by a thousandth


def device_of_runs() -> torch.device:
    """Return the device that is trained on."""
    return _DEVICES[0]


def arguments_of(drawn: Draw, net: Net) -> dict[str, Any]:
    """Return FSDP1's arguments."""
    arguments: dict[str, Any] = {
        "sharding_strategy": ShardingStrategy[drawn.strategy],
        "auto_wrap_policy": policy_of(drawn),
        "mixed_precision": _precisions()[drawn.precision],
        "use_orig_params": drawn.originals == "yes",
        "backward_prefetch": None if drawn.prefetch == "none" else BackwardPrefetch[drawn.prefetch],
        "forward_prefetch": drawn.forward_prefetch == "yes",
        "limit_all_gathers": drawn.limit == "yes",
        "device_id": device_of_runs(),
        "cpu_offload": CPUOffload(offload_params=drawn.offload == "yes"),
    }
    if drawn.ranks == 4:
        arguments["device_mesh"] = _mesh()
    first: Any = net.layers[0]
    if drawn.ignored == "a module":
        arguments["ignored_modules"] = [first.norm]
    elif drawn.ignored == "a block":
        arguments["ignored_modules"] = [first]
    elif drawn.ignored == "parameters":
        arguments["ignored_states"] = ignored_in(drawn, net)
    return arguments


def ignored_in(drawn: Draw, net: Net) -> list[nn.Parameter]:
    """Return the parameters of a model that nobody shards or reduces."""
    first: Any = net.layers[0]
    return {
        "nothing": [],
        "a module": list(first.norm.parameters()),
        "a block": list(first.parameters()),
        "parameters": [first.up.bias, first.norm.weight],
    }[drawn.ignored]


@cache
def _mesh() -> DeviceMesh:
    """Make the groups once: for each of many models that takes longer than its training."""
    return init_device_mesh(device_of_runs().type, (2, dist.get_world_size() // 2))


def policy_of(drawn: Draw) -> Any:
    """Return the auto-wrap policy, if any."""
    ends = {nn.Embedding, Head} if drawn.ends == "units" else set()
    classes: dict[str, set[type[nn.Module]]] = {
        "blocks": {Block, *ends},
        "blocks and linears": {Block, nn.Linear, *ends},
        "linears": {nn.Linear, *ends},
    }
    if drawn.policy in classes:
        return ModuleWrapPolicy(classes[drawn.policy])
    if drawn.policy == "by size":
        return partial(size_based_auto_wrap_policy, min_num_params=60)
    if drawn.policy == "transformer":
        every = {type(module) for module in Net(drawn).modules() if isinstance(module, Block)}
        return partial(transformer_auto_wrap_policy, transformer_layer_cls={*every, *ends})
    if drawn.policy == "custom":
        return CustomPolicy(_choose)
    if ends:
        return partial(lambda_auto_wrap_policy, lambda_fn=lambda module: isinstance(module, tuple(ends)))
    return None


def _choose(module: nn.Module) -> bool | dict[str, Any]:
    if isinstance(module, Head):
        return {"backward_prefetch": None}
    return isinstance(module, Block)


def _precisions() -> dict[str, MixedPrecision | None]:
    bf16, fp32 = torch.bfloat16, torch.float32
    return {
        "fp32": None,
        "bf16": MixedPrecision(bf16),
        "bf16, reduced in fp32": MixedPrecision(bf16, fp32),
        "reduced in bf16": MixedPrecision(None, bf16),
        "bf16 with buffers": MixedPrecision(bf16, bf16, bf16),
        "bf16, cast everywhere": MixedPrecision(bf16, cast_forward_inputs=True),
        "fp16": MixedPrecision(torch.float16),
        "bf16 grads kept": MixedPrecision(bf16, keep_low_precision_grads=True),
        "bf16, root not cast": MixedPrecision(bf16, cast_root_forward_inputs=False),
    }


_OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "SGD, momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "SGD, nesterov and decay": (
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01}),
    "Adam": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.01}),
    "Adam, amsgrad": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    "AdamW, for-loop": (torch.optim.AdamW, {"lr": 0.01, "foreach": False}),
    "AdamW, fused": (torch.optim.AdamW, {"lr": 0.01, "fused": True}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.01}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.01}),
    "NAdam": (torch.optim.NAdam, {"lr": 0.01}),
    "RAdam": (torch.optim.RAdam, {"lr": 0.01}),
    "Adamax": (torch.optim.Adamax, {"lr": 0.01}),
    "Adadelta": (torch.optim.Adadelta, {"lr": 0.5}),
    "ASGD": (torch.optim.ASGD, {"lr": 0.05}),
}


def optimizer_of(model: nn.Module, drawn: Draw) -> torch.optim.Optimizer:
    """Return the draw's optimizer for a model, sharded or not."""
    make, options = _OPTIMIZERS[drawn.optimizer]
    options = dict(options)
    if drawn.ignored != "nothing":
        options.pop("fused", None)
        options["foreach"] = False  # plain parameters are among sharded ones (FM106)
    named = list(model.named_parameters())
    if drawn.frozen in {"nothing", "frozen later"} and "adapter" not in drawn.blocks:
        named = [each for each in named if each[1].requires_grad]
    if drawn.groups == "one":
        return make([param for _, param in named], **options)
    groups: list[dict[str, Any]] = [
        {"params": [param for name, param in named if name.endswith("bias")], "lr": 0.02},
        {"params": [param for name, param in named if not name.endswith("bias")]},
    ]
    return make([each for each in groups if each["params"]], **options)
