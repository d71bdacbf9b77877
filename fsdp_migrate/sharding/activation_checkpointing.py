"""Activation checkpointing of chosen layers, in place: no wrapper, so no name changes.

FSDP1 scripts wrap layers in torch's ``CheckpointWrapper``, which puts ``_checkpoint_wrapped_module`` into the
names of parameters and modules, and hides a layer's class. Here only what the layer's ``forward`` does is
replaced. FSDP2 hangs on the same layer, outside: it gathers once for the backward, not again for the
recomputation, as ``FSDP(checkpoint_wrapper(layer))`` did.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from fsdp_migrate import words
from fsdp_migrate.arguments import FLAG, FUNCTION, NOTHING, SEVERAL, TEXT, check_arguments, what_it_is
from fsdp_migrate.config import AlwaysWrap, ClassWrap, SizeWrap, read_wrap_policy
from fsdp_migrate.errors import ConfigError, ModelError, WrapPolicyError
from fsdp_migrate.sharding.structure import check_structure
from fsdp_migrate.sharding.wrap import WrapRequest, find_units, resolve_classes
from fsdp_migrate.torch_compat import devices, module_kinds, tensor_kinds, wrap_policies


if TYPE_CHECKING:
    from collections.abc import Iterator, Set as AbstractSet


logger = logging.getLogger(__name__)

FIELD = "activation_checkpointing"
ORDER = "The order is: tensor parallel, activation checkpointing, torch.compile, prepare_fully_shard."

ContextFn = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]


@dataclass(frozen=True)
class CheckpointOptions:
    """How layers are checkpointed; the words are explained in :func:`apply_activation_checkpointing`."""

    reentrant: bool = False
    offload_to_cpu: bool = False
    recompute: bool = True
    preserve_rng_state: bool = True
    context_fn: ContextFn | None = None


@dataclass(frozen=True)
class CheckpointPlan:
    """The names of the layers that will be checkpointed, and how. Empty: all of them are already."""

    layers: tuple[str, ...]
    options: CheckpointOptions


def layers_with_units(plan: CheckpointPlan, units: AbstractSet[str]) -> Iterator[str]:
    """Yield the layers that are, or hold, units: recomputing those gathers parameters in backward."""
    for layer in plan.layers:
        if any(f"{unit}.".startswith(f"{layer}.") for unit in units):
            yield f"`{layer}`"


class CheckpointedForward:
    """What stands in the place of a layer's ``forward``: the same call, which keeps less for backward."""

    def __init__(self, module: nn.Module, options: CheckpointOptions) -> None:
        self.module = module
        self.options = options
        # Only a forward that the instance has of its own is kept: the class changes under fully_shard.
        self.own_forward: Callable[..., Any] | None = vars(module).get("forward")

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The layer's own forward, as ``inspect.signature`` looks for it."""
        return self.own_forward or MethodType(type(self.module).forward, self.module)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer's own forward."""
        if self.own_forward is not None:
            return self.own_forward(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer; under autograd, keep its inputs only, or what it saves on the CPU."""
        options, run = self.options, self.run
        if not torch.is_grad_enabled():
            return run(*args, **kwargs)
        with _save_on_cpu() if options.offload_to_cpu else nullcontext():
            if not options.recompute:
                return run(*args, **kwargs)
            if options.reentrant:
                return _checkpoint_reentrant(run, args, kwargs, preserve_rng_state=options.preserve_rng_state)
            more: dict[str, Any] = {} if options.context_fn is None else {"context_fn": options.context_fn}
            return checkpoint(
                run,
                *args,
                use_reentrant=False,
                preserve_rng_state=options.preserve_rng_state,
                **more,
                **kwargs,
            )


def _checkpoint_reentrant(
    run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, preserve_rng_state: bool
) -> Any:
    """Checkpoint by torch's older way, which takes positional arguments only."""
    names = tuple(kwargs)

    def call(*flat: Any) -> Any:
        count = len(flat) - len(names)
        return run(*flat[:count], **dict(zip(names, flat[count:], strict=True)))

    return checkpoint(
        call, *args, *kwargs.values(), use_reentrant=True, preserve_rng_state=preserve_rng_state
    )


def _save_on_cpu() -> AbstractContextManager[Any]:
    """Save on the CPU what autograd saves, but not parameters, as torch's ``save_on_cpu`` does.

    FSDP2 frees parameters and gathers them again itself; a copy would keep the unsharded ones.
    """
    pin = devices.accelerator_type() is not None

    def pack(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        if isinstance(tensor, nn.Parameter) or isinstance(tensor_kinds.base_of_view(tensor), nn.Parameter):
            return lambda: tensor
        if isinstance(tensor, DTensor):  # of tensor parallelism; torch's own `save_on_cpu` fails on it
            local, mesh, placements = pack(tensor.to_local()), tensor.device_mesh, tensor.placements
            shape, stride = tensor.shape, tensor.stride()
            return lambda: DTensor.from_local(
                local(), mesh, placements, run_check=False, shape=shape, stride=stride
            )
        saved = torch.empty(
            tensor.size(), dtype=tensor.dtype, layout=tensor.layout, pin_memory=pin and not tensor.is_sparse
        )
        return partial(saved.copy_(tensor).to, tensor.device, non_blocking=pin)

    def unpack(restore: Callable[[], torch.Tensor]) -> torch.Tensor:
        return restore()

    hooks: AbstractContextManager[Any] = saved_tensors_hooks(pack, unpack)
    return hooks


def apply_activation_checkpointing(
    model: nn.Module,
    which: Any,
    *,
    reentrant: bool = False,
    offload_to_cpu: bool = False,
    recompute: bool = True,
    preserve_rng_state: bool = True,
    context_fn: ContextFn | None = None,
) -> tuple[str, ...]:
    """Checkpoint the activations of the chosen layers: drop them after forward, recompute them in backward.

    Call it after tensor parallelism, and before ``torch.compile`` and
    :func:`~fsdp_migrate.prepare_fully_shard`, which can also call it
    (``activation_checkpointing=``). Everything is checked before anything is changed.

    Changes: what the ``forward`` of the chosen layers does. Leaves alone: the names and classes of modules,
    the names of parameters and of state-dict entries, values, hooks, and every other layer. Layers that are
    checkpointed already, by this function, by torch's ``checkpoint_wrapper`` or by their own
    ``gradient_checkpointing`` flag, stay as they are.

    Args:
        model: The model. As in torch's function of the same name, the model itself is not chosen.
        which: The layers themselves, not their children: a class or several, their names, a function that is
            asked for each module, or an FSDP1 auto-wrap policy. Or a mapping with that under ``which``,
            ``check_fn`` or ``auto_wrap_policy``, and with any of the options below or FSDP1's own words
            ``checkpoint_impl`` and ``checkpoint_wrapper_fn``.
        reentrant: Use torch's older way (``CheckpointImpl.REENTRANT``). A layer none of whose inputs needs a
            gradient then gets none.
        offload_to_cpu: Keep what is kept on the CPU until backward.
        recompute: False: nothing is recomputed; with ``offload_to_cpu``, every activation of the layers is
            kept on the CPU, as torch's ``offload_wrapper`` does, but not their parameters.
        preserve_rng_state: Recompute with the random numbers of the forward, as dropout needs it.
        context_fn: Two contexts, for the forward and for the recomputation: torch's selective checkpointing
            (``torch.utils.checkpoint.create_selective_checkpoint_contexts``).

    Returns:
        The names of the layers that are checkpointed now and were not before.

    Raises:
        ConfigError: The options contradict each other, or a word is unknown.
        WrapPolicyError: Nothing in the model is chosen.
        ModelError: The model is sharded or a layer is compiled already, or a chosen module has no forward.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        >>> apply_activation_checkpointing(model, nn.Linear)
        ('0', '2')
        >>> sorted(model.state_dict())
        ['0.bias', '0.weight', '2.bias', '2.weight']
    """
    options = CheckpointOptions(reentrant, offload_to_cpu, recompute, preserve_rng_state, context_fn)
    plan = plan_activation_checkpointing(model, which, options)
    apply_checkpoint_plan(model, plan)
    return plan.layers


def plan_activation_checkpointing(
    model: nn.Module, which: Any, options: CheckpointOptions | None = None, *, auto_wrap_policy: Any = None
) -> CheckpointPlan:
    """Find the layers to checkpoint, changing nothing; raises as :func:`apply_activation_checkpointing` does.

    ``which=True`` stands for the layers that ``auto_wrap_policy`` makes units, which is what
    ``activation_checkpointing: true`` means to Accelerate and the HuggingFace Trainer.
    """
    check_structure(model)
    choice, options = _read_choice(which, options or CheckpointOptions())
    _check_options(options)
    _check_order(model)
    if choice is True:
        choice = read_wrap_policy(auto_wrap_policy)
    chosen = _choose(model, choice)
    if not chosen:
        present = sorted({type(module).__name__ for module in model.modules() if module is not model})
        names = [c.__name__ for c in (choice if isinstance(choice, tuple) else ()) if isinstance(c, type)]
        near = words.closest(names[0], present) if names else ""
        asked = f"of class {' or '.join(f'`{name}`' for name in names)}" if names else f"for {choice!r}"
        msg = (
            f"No module below the root is chosen {asked}, so nothing would be checkpointed.{near} "
            f"The model's classes are: {', '.join(present)}."
        )
        raise WrapPolicyError(msg)
    already = _checkpointed(model)
    layers = {fqn: module for fqn, module in chosen.items() if module not in already}
    if len(layers) < len(chosen):
        logger.info("%d layers are checkpointed already and stay as they are.", len(chosen) - len(layers))
    for fqn, module in layers.items():
        _check_layer(model, fqn, module)
    return CheckpointPlan(tuple(layers), options)


def plan_if_chosen(model: nn.Module, which: Any, auto_wrap_policy: Any) -> CheckpointPlan | None:
    """Find the layers to checkpoint; None where none are asked for. Raises as above."""
    if which is None or which is False:
        return None
    return plan_activation_checkpointing(model, which, auto_wrap_policy=auto_wrap_policy)


def apply_checkpoint_plan(model: nn.Module, plan: CheckpointPlan) -> None:
    """Replace what the ``forward`` of the plan's layers does."""
    for fqn in plan.layers:
        module = model.get_submodule(fqn)
        vars(module)["forward"] = CheckpointedForward(module, plan.options)


def _read_choice(which: Any, options: CheckpointOptions) -> tuple[Any, CheckpointOptions]:
    """Take a mapping of words apart, and put classes and names into a tuple."""
    if isinstance(which, Mapping):
        given = dict(which)
        keys = [key for key in ("which", "check_fn", "auto_wrap_policy") if given.get(key) is not None]
        rest = {k: v for k, v in given.items() if k not in {"which", "check_fn", "auto_wrap_policy"}}
        # First the options, of which a misspelt name may be the one that is missing.
        options = _read_options(rest, options)
        if len(keys) != 1:
            found = ", ".join(f"`{key}`" for key in keys) or "none of them"
            msg = f"`{FIELD}` needs one of `which`, `check_fn` and `auto_wrap_policy`; it has {found}."
            raise ConfigError(msg, field=FIELD)
        choice = given[keys[0]]
        if keys[0] == "auto_wrap_policy":
            choice = read_wrap_policy(choice)
        return _read_choice(choice, options)
    if isinstance(which, str):
        return tuple(words.read_names(which, FIELD)), options
    if isinstance(which, type):
        return (which,), options
    if isinstance(which, (ClassWrap, SizeWrap, AlwaysWrap)):
        return which, options
    if SEVERAL.fits(which) and not callable(which):
        return tuple(which), options
    if callable(which) or which is True:
        return which, options
    msg = f"`{FIELD}` is {which!r}; expected classes, their names, a function of a module, or a policy."
    raise ConfigError(msg, field=FIELD)


def _read_options(given: dict[str, Any], options: CheckpointOptions) -> CheckpointOptions:
    known = {each.name for each in fields(CheckpointOptions)}
    wrapper = given.pop("checkpoint_wrapper_fn", None)
    if wrapper is not None:
        more = module_kinds.read_checkpoint_wrapper(wrapper)
        if more is None:
            msg = (
                f"`checkpoint_wrapper_fn` is {wrapper!r}; expected torch's `checkpoint_wrapper` or "
                "`offload_wrapper`, or a partial of one."
            )
            raise ConfigError(msg, field=FIELD)
        given = {**more, **given}
    implementation = given.pop("checkpoint_impl", None)
    if implementation is not None:
        word = words.bare_word(implementation)
        if word not in {"reentrant", "no_reentrant"}:
            msg = f"`checkpoint_impl` is {implementation!r}; expected `reentrant` or `no_reentrant`."
            raise ConfigError(msg, field=FIELD)
        given["reentrant"] = word == "reentrant"
    for key in given:
        if key not in known:
            check_arguments(TEXT, **{f"a key of {FIELD}": key})
            near = words.closest(key, [*known, "which", "check_fn", "checkpoint_impl"])
            msg = f"`{FIELD}` has no option `{key}`.{near} Known: {', '.join(sorted(known))}."
            raise ConfigError(msg, field=f"{FIELD}.{key}")
    return replace(options, **given)


def _check_options(options: CheckpointOptions) -> None:
    flags = (each.name for each in fields(options) if each.name != "context_fn")
    check_arguments(FLAG, **{name: getattr(options, name) for name in flags})
    if not options.recompute and not options.offload_to_cpu:
        msg = "`recompute=False` without `offload_to_cpu=True` would do nothing. Give one of them."
        raise ConfigError(msg, field=f"{FIELD}.recompute")
    check_arguments(FUNCTION | NOTHING, context_fn=options.context_fn)
    if options.context_fn is not None and (options.reentrant or not options.recompute):
        msg = "`context_fn` chooses what is recomputed, which needs `reentrant=False` and `recompute=True`."
        raise ConfigError(msg, field=f"{FIELD}.context_fn")


def _check_order(model: nn.Module) -> None:
    for fqn, module in model.named_modules():
        sharded_by = (
            "fully_shard"
            if isinstance(module, FSDPModule)
            else "FullyShardedDataParallel"
            if module_kinds.is_fsdp1_module(module)
            else None
        )
        if sharded_by:
            where = f"`{fqn}`" if fqn else "The model"
            msg = (
                f"{where} is sharded by {sharded_by} already; activation checkpointing comes before. {ORDER}"
            )
            raise ModelError(msg, fqn=fqn)


def _check_layer(model: nn.Module, fqn: str, module: nn.Module) -> None:
    if not module_kinds.has_forward(module):
        msg = (
            f"`{fqn}` is a {type(module).__name__}, which has no `forward` that could be checkpointed. "
            "Choose the layers in it."
        )
        raise ModelError(msg, fqn=fqn)
    for above in _path_to(fqn):
        if module_kinds.is_compiled(model.get_submodule(above)):
            where = "It" if above == fqn else f"`{above}`, in which it is," if above else "The model"
            msg = f"`{fqn}` cannot be checkpointed any more: {where} is compiled already. {ORDER}"
            raise ModelError(msg, fqn=fqn)


def _path_to(fqn: str) -> Iterator[str]:
    """Yield the names of the modules on the path to one: the root's (empty), then each below it."""
    yield ""
    parts = fqn.split(".")
    for count in range(1, len(parts) + 1):
        yield ".".join(parts[:count])


def _choose(model: nn.Module, choice: Any) -> dict[str, nn.Module]:
    """Return the chosen modules below the root, by name; a module that is registered twice, once."""
    if choice is None:
        msg = (
            f"`{FIELD}=True` means the layers of the `auto_wrap_policy`, and there is none. Name the layers."
        )
        raise ConfigError(msg, field=FIELD)
    if not isinstance(choice, tuple) and _is_policy(choice):
        units = find_units(model, WrapRequest(policy=choice))
        return {unit.fqn: unit.module for unit in units if unit.module is not model}
    if isinstance(choice, tuple):
        for item in choice:
            if not isinstance(item, (str, type)):
                msg = f"`{FIELD}` holds {item!r}; expected classes or their names."
                raise ConfigError(msg, field=FIELD)
        check: Callable[[nn.Module], Any] = partial(_is_one_of, resolve_classes(choice, model))
    else:
        check = choice
    below = [(fqn, module) for fqn, module in model.named_modules() if module is not model]
    return {fqn: module for fqn, module in below if _is_yes(check(module), module)}


def _is_yes(answer: Any, module: nn.Module) -> bool:
    try:
        return bool(answer)
    except Exception as error:
        msg = (
            f"The function in `{FIELD}` answered {what_it_is(answer)} for a {type(module).__name__}, which "
            f"is neither true nor false ({error}); expected True or False."
        )
        raise WrapPolicyError(msg) from error


def _is_one_of(classes: tuple[type[nn.Module], ...], module: nn.Module) -> bool:
    return isinstance(module, classes)


def _is_policy(choice: Any) -> bool:
    """Tell an auto-wrap policy from a function that takes a module only."""
    return not callable(choice) or wrap_policies.is_wrap_policy(choice)


def _checkpointed(model: nn.Module) -> set[nn.Module]:
    already = module_kinds.checkpoint_wrapped(model)
    for module in model.modules():
        # transformers: the layer checkpoints itself when this flag is set.
        flagged = getattr(module, "gradient_checkpointing", False) is True
        if flagged or isinstance(vars(module).get("forward"), CheckpointedForward):
            already.add(module)
    return already
