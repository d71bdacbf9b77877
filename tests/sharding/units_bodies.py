"""Which units FSDP1 makes of a model, and which the plan makes of the same model with the same arguments."""

from __future__ import annotations

import random
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import (
    CustomPolicy,
    ModuleWrapPolicy,
    _or_policy,
    always_wrap_policy,
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)

from fsdp_migrate.errors import WrapPolicyError
from fsdp_migrate.sharding.plan import plan_fully_shard
from tests.models import Block, Head, Net


if TYPE_CHECKING:
    from collections.abc import Callable


Units = dict[str, list[str]]


class Attention(nn.Module):
    """A module that holds a MultiheadAttention, which size-based wrapping never enters."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2)
        self.extra = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.ModuleList([nn.Linear(4, 4)])})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Mixture(nn.Module):
    """Every kind of container, BatchNorm, and a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(4, 6), Attention(), Block(4, 8)])
        self.norms = nn.Sequential(nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.gain = nn.Parameter(torch.ones(4))
        self.head = Head(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def _wide(module: nn.Module) -> bool | dict[str, Any]:
    return isinstance(module, nn.Linear) and module.out_features > 5


POLICIES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "ModuleWrapPolicy": lambda: ModuleWrapPolicy({Block, Attention}),
    "ModuleWrapPolicy, nested": lambda: ModuleWrapPolicy({Block, nn.Linear, nn.Sequential}),
    "ModuleWrapPolicy, called": lambda: ModuleWrapPolicy({Block}).__call__,
    "transformer": lambda: partial(transformer_auto_wrap_policy, transformer_layer_cls={Block, Head}),
    "custom": lambda: CustomPolicy(_wide),
    "lambda": lambda: partial(lambda_auto_wrap_policy, lambda_fn=_wide),
    "always": lambda: always_wrap_policy,
    "size 10": lambda: partial(size_based_auto_wrap_policy, min_num_params=10),
    "size 40": lambda: partial(size_based_auto_wrap_policy, min_num_params=40),
    "size 100": lambda: partial(size_based_auto_wrap_policy, min_num_params=100),
    "size, default": lambda: size_based_auto_wrap_policy,
    "size, own exceptions": lambda: partial(
        size_based_auto_wrap_policy,
        min_num_params=10,
        force_leaf_modules={Block},
        exclude_wrap_modules={nn.Linear, nn.ModuleList, nn.ModuleDict},
    ),
    "or": lambda: partial(
        _or_policy,
        policies=[
            partial(lambda_auto_wrap_policy, lambda_fn=_wide),
            partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
        ],
    ),
}

WORDS: dict[str, Any] = {
    "ModuleWrapPolicy": "Block, Attention",
    "transformer": {"transformer_layer_cls": ["Block", "Head"]},
    "always": "always_wrap_policy",
    "size 10": {"min_num_params": "1e1"},
    "size, default": "SIZE_BASED_WRAP",
}
"""The same policies as they stand in configs."""


def compare_policies() -> list[tuple[str, Units, Units]]:
    """Return (policy, FSDP1's units, ours) for every policy, with and without mixed precision."""
    found = []
    for name, policy in POLICIES.items():
        for mixed in (None, MixedPrecision(torch.bfloat16), MixedPrecision(_module_classes_to_ignore=())):
            arguments = {"auto_wrap_policy": policy(), "mixed_precision": mixed}
            label = f"{name}, {mixed}"
            found.append((label, fsdp1_units(Mixture(), arguments), our_units(Mixture(), arguments)))
    return found


def compare_words() -> list[tuple[str, Units, Units]]:
    """Return (policy, FSDP1's units, ours) for policies written as words."""
    return [
        (
            name,
            fsdp1_units(Mixture(), {"auto_wrap_policy": POLICIES[name]()}),
            our_units(Mixture(), {"auto_wrap_policy": words}),
        )
        for name, words in WORDS.items()
    ]


def compare_random_models(count: int) -> list[tuple[str, Units, Units]]:
    """Return (seed, FSDP1's units, ours) for random models under random policies."""
    found = []
    for seed in range(count):
        rng = random.Random(seed)
        threshold = rng.choice([1, 5, 20, 60])
        policy = rng.choice(
            [
                partial(size_based_auto_wrap_policy, min_num_params=threshold),
                ModuleWrapPolicy({nn.Sequential, nn.BatchNorm1d}),
                CustomPolicy(partial(_chosen, seed)),
                partial(lambda_auto_wrap_policy, lambda_fn=partial(_chosen, seed)),
            ]
        )
        mixed = rng.choice([None, MixedPrecision(torch.bfloat16)])
        arguments = {"auto_wrap_policy": policy, "mixed_precision": mixed}
        first, second = (_random_model(random.Random(seed), depth=3) for _ in range(2))
        found.append((f"seed {seed}", fsdp1_units(first, arguments), our_units(second, arguments)))
    return found


def _chosen(seed: int, module: nn.Module) -> bool:
    """Choose by what the module is, so that equal models are treated equally; never a container."""
    size = sum(param.numel() for param in module.parameters())
    return not isinstance(module, (nn.ModuleList, nn.ModuleDict)) and (size * 7 + seed) % 3 == 0


def _random_model(rng: random.Random, depth: int) -> nn.Module:
    if depth == 0:
        width = rng.randint(1, 9)
        return rng.choice([nn.Linear(width, 3), nn.BatchNorm1d(width), nn.ReLU(), nn.LayerNorm(width)])
    children = [_random_model(rng, rng.randrange(depth)) for _ in range(rng.randint(1, 3))]
    root = nn.Sequential(*children)
    if depth < 3 and rng.random() < 0.4:
        return nn.ModuleList(children)
    if rng.random() < 0.3:
        root.own = nn.Parameter(torch.zeros(rng.randint(1, 30)))
    return root


def fsdp1_units(model: nn.Module, arguments: dict[str, Any]) -> Units:
    """Wrap by FSDP1 and return each unit's name with the names of the parameters that it flattened."""
    warnings.simplefilter("ignore")
    wrapped = FSDP(model, device_id=torch.device("cpu"), use_orig_params=True, **arguments)
    units: Units = {}
    for name, module in wrapped.named_modules():
        handle = getattr(module, "_handle", None)
        if isinstance(module, FSDP) and (handle is not None or module is wrapped):
            fqn = name.replace("_fsdp_wrapped_module.", "").replace("_fsdp_wrapped_module", "").rstrip(".")
            owned = handle.flat_param._fqns if handle is not None else []
            units[fqn] = sorted(f"{fqn}.{own}" if fqn else own for own in owned)
    return units


def our_units(model: nn.Module, arguments: dict[str, Any]) -> Units:
    """Plan, and return each unit's name with the names of its parameters."""
    try:
        plan = plan_fully_shard(model, arguments, world_size=2)
    except WrapPolicyError:  # selects nothing, which FSDP1 takes for one unit
        return {"": sorted(name for name, _ in model.named_parameters())}
    return {unit.fqn: sorted(unit.parameters) for unit in plan.units}


def order_of_units() -> list[str]:
    """Return our units of a net in the order in which they are sharded."""
    return list(our_units(Net(), {"auto_wrap_policy": "Block, Linear, Head"}))


def own_precisions(policy: Any) -> list[dict[str, str]]:
    """Return by FSDP1, and by ours, in what each unit computes where a block has arguments of its own."""
    arguments = {"auto_wrap_policy": policy, "mixed_precision": MixedPrecision(torch.bfloat16)}
    first: Any = Net()
    second: Any = Net()
    for net in (first, second):
        net.blocks[0]._wrap_overrides = {"mixed_precision": None}
    wrapped = FSDP(first, device_id=torch.device("cpu"), **arguments)
    fsdp1 = {
        name.replace("_fsdp_wrapped_module.", ""): str(each.mixed_precision.param_dtype)
        for name, each in wrapped.named_modules()
        if isinstance(each, FSDP)
    }
    units = plan_fully_shard(second, arguments, world_size=2).units
    ours = {each.fqn: str(each.config.mp_policy.param_dtype) for each in units}
    return [{name: text.removeprefix("torch.") for name, text in found.items()} for found in (fsdp1, ours)]
