"""What a checkpoint's reader has to know of the model and its FSDP1 arguments: names, shapes, flattening."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from fsdp_migrate import resolve
from fsdp_migrate.checkpoint_convert.flat_layout import FlatUnit
from fsdp_migrate.checkpoint_convert.source_options import ModelOutline
from fsdp_migrate.errors import ModelError
from fsdp_migrate.mapping import map_config
from fsdp_migrate.plan import read_config, wrap_request
from fsdp_migrate.tying import parameter_names
from fsdp_migrate.wrap import find_units


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn
    from torch.optim import Optimizer

    from fsdp_migrate.config import FSDP1Config
    from fsdp_migrate.wrap import WrapUnit


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
        ModelError: A parameter is not contiguous, or is tied between two units.

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
        return outline
    given = read_config(fsdp1_config)
    request = wrap_request(model, given, map_config(given)[0])
    found = find_units(model, request)
    flat = _flat_units(model, found, given, request.ignored_params)
    return replace(
        outline,
        units=flat,
        numbered=tuple(_numbered(model, flat, given)),
        sharding=_SHARDING.get(given.sharding_strategy, "all"),
    )


def _outline_target(model: nn.Module, optimizer: Optimizer | None, outline: ModelOutline) -> ModelOutline:
    """Add what tells whether a checkpoint loads into a model."""
    buffers = dict(model.named_buffers())
    stored = model.state_dict()
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
        buffers={name: tuple(tensors[name].shape) for name in buffers if name in tensors},
        dtypes={name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()},
        trainable=tuple(name for parameter, name in names.items() if parameter.requires_grad),
        groups=groups,
    )


def _flat_units(
    model: nn.Module, found: Iterable[WrapUnit], given: FSDP1Config, ignored: Iterable[nn.Parameter]
) -> tuple[FlatUnit, ...]:
    owners: dict[nn.Parameter, str] = dict.fromkeys(ignored, "")
    skipped = set(owners)
    names = parameter_names(model)
    units: list[FlatUnit] = []
    for unit in found:
        own: dict[str, nn.Parameter] = {}
        for name, parameter in unit.module.named_parameters():
            if parameter not in owners:
                owners[parameter] = unit.fqn
                own[f"{unit.fqn}.{name}" if unit.fqn else name] = parameter
            elif parameter not in skipped:
                _check_tie(names[parameter], owners[parameter])
        if own:
            shapes = {name: tuple(parameter.shape) for name, parameter in own.items()}
            units.append(FlatUnit(unit.fqn, shapes, _alignment(own, unit, given)))
    return tuple(units)


def _check_tie(names: tuple[str, ...], owner: str) -> None:
    """Check that a parameter that an inner unit has is not also a part of something outside of it."""
    if any(owner and not name.startswith(f"{owner}.") for name in names):
        shown = " and ".join(f"`{name}`" for name in names)
        msg = (
            f"{shown} are one parameter, in different FSDP1 units. FSDP1 does not keep such a tie, and what "
            "its flat parameters hold then is not recomputed."
        )
        raise ModelError(msg, fqn=names[0])


def _alignment(own: Mapping[str, nn.Parameter], unit: WrapUnit, given: FSDP1Config) -> int:
    for name, parameter in own.items():
        if not parameter.is_contiguous():
            msg = f"`{name}` is not contiguous; how FSDP1 flattened it is not recomputed."
            raise ModelError(msg, fqn=name)
    own_config = given.updated(**unit.overrides) if unit.overrides else given
    if not own_config.use_orig_params:
        return 0
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
