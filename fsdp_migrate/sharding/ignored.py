"""What FSDP1 was told to ignore: modules, parameters, their names, or expressions for their names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from torch import nn

from fsdp_migrate import words
from fsdp_migrate.errors import ConfigError, UnsupportedFeatureError
from fsdp_migrate.findings import make_finding
from fsdp_migrate.torch_compat import fsdp2


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.config import FSDP2Config
    from fsdp_migrate.findings import Finding


def resolve_ignored(
    model: nn.Module, config: FSDP2Config
) -> tuple[frozenset[nn.Module], frozenset[nn.Parameter]]:
    """Return the model's ignored modules with all below them, and every ignored parameter of it.

    A string is the name of a module (in ``ignored_states`` also of a parameter), or else a regular
    expression that must match whole names, as Accelerate's ``ignored_modules`` does.

    Raises:
        ConfigError: Something is of another kind, or a name is not in the model.
    """
    name = "ignored_modules" if config.ignored_modules else "ignored_states"
    given = config.ignored_modules or config.ignored_states or ()
    states = list(_resolve_names(model, name, (given,) if isinstance(given, str) else given))
    kinds = (nn.Module,) if name == "ignored_modules" else (nn.Module, nn.Parameter)
    for state in states:
        if not isinstance(state, kinds):
            expected = " and ".join(kind.__name__ for kind in kinds)
            msg = f"`{name}` holds a {type(state).__name__}; expected {expected} objects, or names."
            raise ConfigError(msg, field=name)
    modules = {child for state in states if isinstance(state, nn.Module) for child in state.modules()}
    params = {state for state in states if isinstance(state, nn.Parameter)}
    params.update(param for module in modules for param in module.parameters())
    # FSDP1 passed over what is not in the model (FM108).
    modules &= set(model.modules())
    params &= set(model.parameters())
    return frozenset(modules), frozenset(params)


def check_can_ignore(config: FSDP2Config, params: frozenset[nn.Parameter]) -> None:
    """Raise UnsupportedFeatureError where this torch's ``fully_shard`` cannot leave parameters alone."""
    if params and not fsdp2.HAS_IGNORED_PARAMS:
        name = "ignored_modules" if config.ignored_modules else "ignored_states"
        msg = f"`{name}` needs torch 2.7 or later, whose fully_shard can ignore parameters."
        raise UnsupportedFeatureError(msg, feature=name)


def ignored_elsewhere(model: nn.Module, config: FSDP2Config) -> Iterator[Finding]:
    """Tell of objects that are ignored and not in the model, which FSDP1 passed over."""
    name = "ignored_modules" if config.ignored_modules else "ignored_states"
    own = {*model.modules(), *model.parameters()}
    given = config.ignored_modules or config.ignored_states or ()
    strangers = [state for state in given if not isinstance(state, str) and state not in own]
    if strangers:
        kinds = ", ".join(sorted({type(state).__name__ for state in strangers}))
        text = f"{len(strangers)} of what is ignored are not in the model ({kinds}): no effect, as in FSDP1."
        hint = "If they should be, give the model's own modules, or their names."
        yield make_finding("FM108", name, text, hint)


def _resolve_names(model: nn.Module, field: str, given: Iterable[Any]) -> Iterable[Any]:
    known: dict[str, Any] = {name: module for name, module in model.named_modules() if name}
    if field == "ignored_states":
        known |= dict(model.named_parameters(remove_duplicate=False))
    for item in given:
        if not isinstance(item, str):
            yield item
        elif item in known:
            yield known[item]
        else:
            yield from _matching(item, known, field)


def _matching(expression: str, known: dict[str, Any], field: str) -> list[Any]:
    try:
        pattern = re.compile(expression)
    except re.error as error:
        msg = f"`{field}` holds {expression!r}, which is no name in the model and no expression: {error}."
        raise ConfigError(msg, field=field) from error
    found = [state for name, state in known.items() if pattern.fullmatch(name)]
    if not found:
        near = words.closest(expression, known)
        msg = f"`{field}` holds {expression!r}, which is no name in the model and matches none.{near}"
        raise ConfigError(msg, field=field)
    return found
