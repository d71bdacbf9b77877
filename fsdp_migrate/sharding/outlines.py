"""What a checkpoint's reader has to know of the model and its FSDP1 arguments: names, shapes, flattening."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from fsdp_migrate.checkpoint_convert.manifest.flat_geometry import FlatUnit
from fsdp_migrate.checkpoint_convert.manifest.keys import strip_wrappers
from fsdp_migrate.checkpoint_convert.manifest.options import ModelOutline
from fsdp_migrate.errors import ModelError
from fsdp_migrate.mapping import map_config
from fsdp_migrate.sharding import resolve
from fsdp_migrate.sharding.plan import read_config, wrap_request
from fsdp_migrate.sharding.tying import parameter_names
from fsdp_migrate.sharding.wrap import find_units


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn
    from torch.optim import Optimizer

    from fsdp_migrate.config import FSDP1Config
    from fsdp_migrate.sharding.wrap import WrapUnit


T = TypeVar("T")

# What TorchInductor wants parameters to be aligned to, in bytes; see FSDP1's `_get_aligned_numel`.
_ALIGNMENT: Final = 16
_SHARDING: Final[dict[str, Literal["all", "one", "some"]]] = {
    "NO_SHARD": "one",
    "HYBRID_SHARD": "some",
    "_HYBRID_SHARD_ZERO2": "some",
}


def outline_model(
    model: nn.Module, fsdp1_config: Any = None, *, optimizer: Optimizer | None = None
) -> ModelOutline:
    """Describe a model as far as a checkpoint of it is to be read, without its values.

    The names are without what ``torch.compile`` and ``checkpoint_wrapper`` put into them.

    Args:
        model: The model that was saved, before it was wrapped. It may be on the meta device, and is not
            changed.
        fsdp1_config: Its FSDP1 arguments: an :class:`FSDP1Config`, or a mapping of keyword arguments. They
            tell how parameters were flattened, for checkpoints that hold flat parameters. None where
            names and shapes are enough.
        optimizer: The optimizer that is to load the result, built from the model: its groups are held against
            those of the checkpoint.

    Raises:
        ConfigError: An argument means nothing.
        WrapPolicyError: The policy cannot be evaluated on this model.
        ModelError: A parameter is not contiguous, or one is tied between two units with ``use_orig_params``.

    Example:
        >>> from torch import nn
        >>> outline = outline_model(nn.Linear(3, 2), {"use_orig_params": True})
        >>> dict(outline.parameters), outline.units[0].alignment
        ({'weight': (2, 3), 'bias': (2,)}, 4)
    """
    parameters = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    aliases = {alias: names[0] for names in parameter_names(model).values() for alias in names[1:]}
    outline = _outline_target(model, optimizer, ModelOutline(parameters, aliases=aliases))
    if fsdp1_config is None:
        return _cleaned(outline)
    given = read_config(fsdp1_config)
    request = wrap_request(model, given, map_config(given)[0])
    found = find_units(model, request)
    flat = _flat_units(found, given, request.ignored_params)
    apart = _held_apart(outline, flat, given)
    trainable = outline.trainable or ()
    every = {name: tuple(p.shape) for name, p in model.named_parameters(remove_duplicate=False)}
    outline = replace(
        outline,
        parameters={name: shape for name, shape in every.items() if name in {*parameters, *apart}},
        aliases={alias: name for alias, name in aliases.items() if alias not in apart},
        apart=apart,
        trainable=(*trainable, *(alias for alias, name in apart.items() if name in trainable)),
        units=flat,
        numbered=tuple(_numbered(model, flat, given)),
        sharding=_SHARDING.get(given.sharding_strategy, "all"),
    )
    return _cleaned(outline)


def _cleaned(outline: ModelOutline) -> ModelOutline:
    """Take wrappers out of every name."""
    units = (
        FlatUnit(strip_wrappers(unit.name), _renamed(unit.parameters), unit.alignment)
        for unit in outline.units
    )
    trainable, groups = outline.trainable, outline.groups
    return replace(
        outline,
        parameters=_renamed(outline.parameters),
        units=tuple(units),
        numbered=_texts(outline.numbered),
        aliases=dict(zip(_renamed(outline.aliases), _texts(outline.aliases.values()), strict=True)),
        apart=dict(zip(_renamed(outline.apart), _texts(outline.apart.values()), strict=True)),
        buffers=None if outline.buffers is None else _renamed(outline.buffers),
        dtypes=_renamed(outline.dtypes),
        trainable=None if trainable is None else _texts(trainable),
        groups=None if groups is None else tuple(_texts(group) for group in groups),
    )


def _renamed(named: Mapping[str, T]) -> dict[str, T]:
    return {strip_wrappers(name): value for name, value in named.items()}


def _texts(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(strip_wrappers(name) for name in names)


def _outline_target(model: nn.Module, optimizer: Optimizer | None, outline: ModelOutline) -> ModelOutline:
    """Add what tells whether a checkpoint loads into a model."""
    buffers = _renamed(dict(model.named_buffers()))
    # torch's wrapper of activation checkpointing cleans the names of a state dict, and not those of buffers.
    stored = _renamed(model.state_dict())
    tensors = {name: tensor for name, tensor in stored.items() if hasattr(tensor, "dtype")}
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = None
    if optimizer is not None:
        own = [[names.get(parameter) for parameter in group["params"]] for group in optimizer.param_groups]
        if any(name is None for group in own for name in group):
            raise ModelError("The optimizer has parameters that are not the model's.", fqn="")
        groups = tuple(tuple(name for name in group if name is not None) for group in own)
    return replace(
        outline,
        # Buffers that are not persistent are in no checkpoint.
        buffers={name: tuple(tensors[name].shape) for name in buffers if name in tensors},
        dtypes={name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()},
        trainable=tuple(name for parameter, name in names.items() if parameter.requires_grad),
        groups=groups,
    )


def _flat_units(
    found: Iterable[WrapUnit], given: FSDP1Config, ignored: Iterable[nn.Parameter]
) -> tuple[FlatUnit, ...]:
    """Return what each unit flattens: the parameters of its modules that are in no unit inside of it.

    Within a unit a tied parameter is flattened once. A tie between units is not seen by the second of them.
    """
    skipped = set(ignored)
    taken: set[nn.Module] = set()
    units: list[FlatUnit] = []
    for unit in found:
        own: dict[nn.Parameter, str] = {}
        for fqn, module in unit.module.named_modules(prefix=unit.fqn):
            for name, parameter in module.named_parameters(recurse=False) if module not in taken else ():
                if parameter not in skipped:
                    own.setdefault(parameter, f"{fqn}.{name}" if fqn else name)
        taken.update(unit.module.modules())
        if own:
            named = {name: parameter for parameter, name in own.items()}
            shapes = {name: tuple(parameter.shape) for name, parameter in named.items()}
            units.append(FlatUnit(unit.fqn, shapes, _alignment(named, unit, given)))
    return tuple(units)


def _held_apart(outline: ModelOutline, units: Iterable[FlatUnit], given: FSDP1Config) -> dict[str, str]:
    """Return the further names of tied parameters that units hold apart, each with the first name.

    With ``use_orig_params=False`` each unit copies what it flattens, and both copies are trained. Otherwise
    the second unit finds the first one's part in place of the parameter, and its forward fails.
    """
    flat = {name for unit in units for name in unit.parameters}
    found = {alias: name for alias, name in outline.aliases.items() if alias in flat}
    if found and given.use_orig_params:
        alias, name = next(iter(found.items()))
        msg = (
            f"`{name}` and `{alias}` are one parameter, in different FSDP1 units. With "
            "`use_orig_params=True` FSDP1 cannot run such a model, so no checkpoint is of these arguments."
        )
        raise ModelError(msg, fqn=name)
    return found


def _alignment(own: Mapping[str, nn.Parameter], unit: WrapUnit, given: FSDP1Config) -> int:
    for name, parameter in own.items():
        if not parameter.is_contiguous():
            msg = f"`{name}` is not contiguous; how FSDP1 flattened it is not recomputed."
            raise ModelError(msg, fqn=name)
    own_config = given.updated(**unit.overrides) if unit.overrides else given
    # FSDP1 aligns parameters in the flat one under `use_orig_params` only.
    if not own_config.use_orig_params:
        return 0
    # By the size of an element in which the flat parameter is gathered.
    mixed = None if unit.full_precision else own_config.mixed_precision
    first = next(iter(own.values()))
    word = mixed.param_dtype if mixed is not None else None
    dtype = resolve.resolve_dtype(word) or first.dtype
    return max(_ALIGNMENT // dtype.itemsize, 1)


def _numbered(model: nn.Module, units: Iterable[FlatUnit], given: FSDP1Config) -> Iterable[str]:
    """Yield what ``FSDP(model).parameters()`` would, by name: of each module what is not flat comes first."""
    in_unit = {name for unit in units for name in unit.parameters}
    names = {unit.name for unit in units}
    first = {parameter: every[0] for parameter, every in parameter_names(model).items()}
    seen: set[str] = set()
    for fqn, module in model.named_modules():
        own = [first[parameter] for parameter in module.parameters(recurse=False)]
        own = [name for name in dict.fromkeys(own) if name not in seen]
        seen.update(own)
        yield from (name for name in own if name not in in_unit)
        if given.use_orig_params:
            yield from (name for name in own if name in in_unit)
        elif fqn in names:
            yield fqn
