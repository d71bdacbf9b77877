"""The names that a model of transformers has, by its ``config.json`` and the installed transformers."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fsdp_migrate.checkpoint_convert.maps.transformers_tables import table_of
from fsdp_migrate.errors import ConfigError


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fsdp_migrate.checkpoint_convert.manifest.parameter_map import ParameterMap


_UNKNOWING: Final = frozenset({"auto_map", "quantization_config"})


@dataclass(frozen=True, slots=True)
class ConfigModel:
    """A model as far as ``from_pretrained`` looks for names.

    Attributes:
        title: Its class.
        is_guess: Whether its config names none that is known, so that a head is not known of.
        names: All names of its state: parameters, buffers, tied ones.
        needed: For each parameter that has to be stored its names, of which one is enough.
        prefix: What ``from_pretrained`` puts before names, or takes off, where a model has a head or none.
        tables: What it does to the names of older releases.
    """

    title: str
    is_guess: bool
    names: frozenset[str]
    needed: tuple[frozenset[str], ...]
    prefix: str = ""
    tables: tuple[ParameterMap, ...] = ()

    def found(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Return for each stored name those of the model under which ``from_pretrained`` finds it."""
        matchers = [rule.matcher() for table in self.tables for rule in table.rules]
        found: dict[str, list[str]] = {}
        for name in names:
            forms = [name]
            for match in matchers:
                forms += [new for form in forms[:] if (made := match(form)) is not None for new in made.names]
            found[name] = [own for form in forms for own in self._own(form)]
        return found

    def lacking(self, found: Mapping[str, list[str]]) -> list[str]:
        """Return the parameters of which no stored name is one."""
        there = {own for names in found.values() for own in names}
        return [min(names) for names in self.needed if not names & there]

    def _own(self, name: str) -> Iterator[str]:
        start = f"{self.prefix}."
        for form in {name, start + name, name.removeprefix(start)} if self.prefix else {name}:
            if form in self.names:
                yield form


def model_of_config(config: bytes) -> ConfigModel | None:
    """Return the names of the model that a ``config.json`` describes; None where nothing tells them.

    Nothing does without transformers, of a model whose code lies beside its config, which is not run, and
    of one whose layers ``from_pretrained`` exchanges for quantized ones with other names.
    """
    try:
        said = json.loads(config)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or not isinstance(said.get("model_type"), str) or _UNKNOWING & said.keys():
        return None
    try:
        model, is_guess = _build(said)
    except Exception:  # whatever transformers makes of a config that is not for its release
        return None
    return _described(model, said["model_type"], is_guess=is_guess)


def _build(said: dict[str, Any]) -> tuple[Any, bool]:
    """Make the model without memory for it; tell too whether its config names no class of transformers."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    with _quiet(transformers.logging), torch.device("meta"):
        config = transformers.AutoConfig.for_model(**said)
        maker = getattr(transformers, next(iter(said.get("architectures") or ()), ""), None)
        model = transformers.AutoModel.from_config(config) if maker is None else maker(config)
    return model, maker is None


@contextlib.contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    before = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)


def _described(model: Any, model_type: str, *, is_guess: bool) -> ConfigModel:
    same: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        same.setdefault(id(parameter), set()).add(name)
    names = {*model.state_dict(), *(name for group in same.values() for name in group)}
    # Tied ones are one parameter here; what may be tied, and is not, has to be stored.
    may_lack = getattr(model, "_keys_to_ignore_on_load_missing", None) or ()
    needed = [
        frozenset(group)
        for group in same.values()
        if not any(re.search(pattern, name) for pattern in may_lack for name in group)
    ]
    prefix = getattr(model, "base_model_prefix", "") or ""
    tables = tuple(_tables(model_type))
    return ConfigModel(type(model).__name__, is_guess, frozenset(names), tuple(needed), prefix, tables)


def _tables(model_type: str) -> Iterator[ParameterMap]:
    """Yield the table of a type of model, and the one that transformers has for all of them."""
    for name in (model_type, "legacy"):
        with contextlib.suppress(ConfigError):
            yield table_of(name)
