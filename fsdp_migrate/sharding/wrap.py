"""Which modules become FSDP units, and in what order: FSDP1's auto-wrap policies, evaluated without wrapping.

The rules are those of ``torch.distributed.fsdp._wrap_utils._auto_wrap`` and ``wrap._recursive_wrap``: policy
objects select modules, plain callables are asked while recursing, with the number of elements that no inner
unit has taken. Nothing here changes the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.fsdp.wrap import always_wrap_policy, size_based_auto_wrap_policy

from fsdp_migrate import words
from fsdp_migrate.arguments import what_it_is
from fsdp_migrate.config import AlwaysWrap, ClassWrap, SizeWrap
from fsdp_migrate.errors import WrapPolicyError
from fsdp_migrate.torch_compat import wrap_policies


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


@dataclass(frozen=True, eq=False)
class WrapUnit:
    """A module that becomes a unit: its name, FSDP1 arguments of its own, and whether it stays unmixed."""

    fqn: str
    module: nn.Module
    overrides: Mapping[str, Any] = field(default_factory=dict)
    full_precision: bool = False


@dataclass(frozen=True)
class WrapRequest:
    """What a policy is evaluated with.

    ``full_precision_classes`` is None without mixed precision. An empty tuple is not the same: under mixed
    precision FSDP1 asks a callable policy for every module, also below those that it would not enter.
    """

    policy: Any = None
    full_precision_classes: tuple[Any, ...] | None = None
    ignored_modules: frozenset[nn.Module] = frozenset()
    ignored_params: frozenset[nn.Parameter] = frozenset()


def find_units(model: nn.Module, request: WrapRequest) -> list[WrapUnit]:
    """Return the modules that FSDP1 would wrap, inner ones first, the root last.

    Raises:
        WrapPolicyError: A class name fits no module, or the policy itself fails.
    """
    classes = request.full_precision_classes
    # Not required: FSDP1 names BatchNorm by default, also for models that have none.
    unmixed = () if classes is None else resolve_classes(classes, model, required=False)
    inner = {} if request.policy is None else _select(model, request, classes is not None, unmixed)
    units = [
        WrapUnit(fqn, module, inner[module], isinstance(module, unmixed))
        for fqn, module in post_order(model)
        if module in inner and module is not model
    ]
    return [*units, WrapUnit("", model)]


def post_order(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield every module once with its name, children before parents, in registration order."""
    visited = {root}

    def visit(module: nn.Module, fqn: str) -> Iterator[tuple[str, nn.Module]]:
        for name, child in module.named_children():
            if child not in visited:
                visited.add(child)
                yield from visit(child, f"{fqn}.{name}" if fqn else name)
        yield fqn, module

    yield from visit(root, "")


def resolve_classes(
    classes: tuple[Any, ...], model: nn.Module, *, required: bool = True
) -> tuple[type[nn.Module], ...]:
    """Find the classes of these names among the classes of the model's modules and their bases.

    Raises:
        WrapPolicyError: ``required``, and a name or a class fits none; the nearest names are told.
    """
    by_name: dict[str, type[nn.Module]] = {}
    for module in model.modules():
        for base in type(module).__mro__:
            if issubclass(base, nn.Module):
                by_name.setdefault(base.__name__, base)
                by_name.setdefault(f"{base.__module__}.{base.__qualname__}", base)
    found: list[type[nn.Module]] = []
    for item in classes:
        wanted = item if isinstance(item, type) else by_name.get(item)
        if wanted is not None and (not required or _occurs(wanted, model)):
            found.append(wanted)
        elif required:
            present = sorted({type(module).__name__ for module in model.modules()})
            name = item.__name__ if isinstance(item, type) else str(item)
            full = f"{item.__module__}.{item.__qualname__}" if isinstance(item, type) else name
            msg = (
                f"No module of class `{full}` is in the model.{words.closest(name, by_name)} "
                f"Its classes are: {', '.join(present)}."
            )
            raise WrapPolicyError(msg)
    return tuple(found)


def _occurs(wanted: type[nn.Module], model: nn.Module) -> bool:
    return any(isinstance(module, wanted) for module in model.modules())


def _select(
    model: nn.Module, request: WrapRequest, mixed: bool, unmixed: tuple[type[nn.Module], ...]
) -> dict[nn.Module, Mapping[str, Any]]:
    """Return the selected modules, each with the FSDP1 arguments that the policy gives it."""
    policy = request.policy
    ignored = set(request.ignored_modules)
    if isinstance(policy, ClassWrap):
        wanted = resolve_classes(policy.classes, model)
        selected: dict[nn.Module, Mapping[str, Any]] | None = {
            module: {} for module in model.modules() if isinstance(module, wanted) and module not in ignored
        }
    else:
        run = _run(policy, model, ignored)
        selected = None if run is None else dict(run)
    if selected is None:
        asked = _as_callable(policy)
        found = _recurse(model, partial(_ask, asked, mixed, unmixed), request)
        return {each: {} if isinstance(each, unmixed) else _own_arguments(each) for each in found}
    # Policy objects do not know of mixed precision; FSDP1 adds the classes that it ignores to what they
    # select.
    for module in model.modules():
        if isinstance(module, unmixed) and module not in ignored:
            selected.setdefault(module, {})
    return selected


def _own_arguments(module: nn.Module) -> Mapping[str, Any]:
    """Return what FSDP1 takes of a module itself before all else, where a callable selects it."""
    own: Mapping[Any, Any] = getattr(module, "_wrap_overrides", {})
    _check_names(own, f"`_wrap_overrides` of a {type(module).__name__} has")
    return own


def _check_names(arguments: Iterable[Any], start: str) -> None:
    """Refuse what is no name of an argument; ``start``: whose the arguments are."""
    odd = next((key for key in arguments if not isinstance(key, str)), None)
    if odd is not None:
        msg = f"{start} the argument {odd!r:.100}; expected names of FSDP1's arguments, as texts."
        raise WrapPolicyError(msg)


def _run(policy: Any, model: nn.Module, ignored: set[nn.Module]) -> dict[nn.Module, Any] | None:
    """Run a policy object; what it answers for a module must be what FSDP1 takes."""
    try:
        run = wrap_policies.run_wrap_policy(policy, model, ignored)
    except ValueError as error:
        if not wrap_policies.is_of_torch(error):
            raise
        msg = f"The `auto_wrap_policy` cannot be evaluated: {error}."
        raise WrapPolicyError(msg) from error
    for module, overrides in (run or {}).items():
        _check_names(overrides, f"The `auto_wrap_policy` gives a {type(module).__name__}")
    return run


def _as_callable(policy: Any) -> Callable[..., bool]:
    if isinstance(policy, SizeWrap):
        return partial(size_based_auto_wrap_policy, min_num_params=policy.min_num_params)
    if isinstance(policy, AlwaysWrap):
        return always_wrap_policy
    if not callable(policy):
        msg = f"`auto_wrap_policy` is {policy!r}, which is neither a policy object nor callable."
        raise WrapPolicyError(msg)
    wrap: Callable[..., bool] = policy
    return wrap


def _ask(
    policy: Callable[..., bool],
    mixed: bool,
    unmixed: tuple[type[nn.Module], ...],
    module: nn.Module,
    recurse: bool,
    nonwrapped_numel: int,
) -> bool:
    """Ask the policy as FSDP1 does: under mixed precision, or-ed with "wrap the ignored classes"."""
    # Yes to every `recurse`: what FSDP1 puts beside the policy (`_wrap_module_cls_individually`) enters all.
    if mixed and (recurse or isinstance(module, unmixed)):
        return True
    try:
        answer = policy(module=module, recurse=recurse, nonwrapped_numel=nonwrapped_numel)
    except TypeError as error:
        msg = (
            f"The auto-wrap policy {policy!r} failed on a {type(module).__name__}: {error}. FSDP1 calls it "
            "with `module`, `recurse` and `nonwrapped_numel`; bind other arguments with functools.partial."
        )
        raise WrapPolicyError(msg) from error
    try:
        return bool(answer)
    except Exception as error:
        msg = (
            f"The auto-wrap policy {policy!r} answered {what_it_is(answer)} for a {type(module).__name__}, "
            f"which is neither true nor false ({error}); expected True or False."
        )
        raise WrapPolicyError(msg) from error


def _recurse(root: nn.Module, ask: Callable[..., bool], request: WrapRequest) -> list[nn.Module]:
    """Return what ``_recursive_wrap`` would wrap below the root."""
    wrapped: dict[nn.Module, None] = {}

    def visit(module: nn.Module, only_children: bool) -> int:
        numel = sum(p.numel() for p in module.parameters() if p not in request.ignored_params)
        # FSDP1 asks with all elements first, and then with what inner units left: size policies go by both.
        if not ask(module=module, recurse=True, nonwrapped_numel=numel):
            return 0
        taken = 0
        for _, child in module.named_children():
            if child not in request.ignored_modules and child not in wrapped:
                taken += visit(child, only_children=False)
        if not only_children and ask(module=module, recurse=False, nonwrapped_numel=numel - taken):
            wrapped[module] = None
            return numel
        return taken

    visit(root, only_children=True)
    return list(wrapped)
