"""The names that a model of transformers has, by its ``config.json`` and the installed transformers."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fsdp_migrate.checkpoint_convert.maps.transformers_tables import table_of
from fsdp_migrate.errors import ConfigError


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fsdp_migrate.checkpoint_convert.manifest.parameter_map import ParameterMap


@dataclass(frozen=True, slots=True)
class ConfigModel:
    """A model as far as ``from_pretrained`` looks for names.

    Attributes:
        title: Its class.
        names: All names of its state: parameters, buffers, tied ones.
        needed: For each parameter that has to be stored its names, of which one is enough.
        prefix: What ``from_pretrained`` puts before names, or takes off, where a model has a head or none.
        table: What it does to the names of older releases; None where there is nothing.
    """

    title: str
    names: frozenset[str]
    needed: tuple[frozenset[str], ...]
    prefix: str = ""
    table: ParameterMap | None = None

    def found(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Return for each stored name those of the model under which ``from_pretrained`` finds it."""
        matchers = [rule.matcher() for rule in self.table.rules] if self.table is not None else []
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

    Nothing does without transformers, and of a model whose code lies beside its config, which is not run.
    """
    try:
        said = json.loads(config)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or not isinstance(said.get("model_type"), str) or "auto_map" in said:
        return None
    try:
        model = _build(said)
    except Exception:  # whatever transformers makes of a config that is not for its release
        return None
    return _described(model, said["model_type"])


def _build(said: dict[str, Any]) -> Any:
    """Make the model without memory for it."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    with _quiet(transformers.logging), torch.device("meta"):
        config = transformers.AutoConfig.for_model(**said)
        maker = getattr(transformers, next(iter(said.get("architectures") or ()), ""), None)
        return transformers.AutoModel.from_config(config) if maker is None else maker(config)


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


def _described(model: Any, model_type: str) -> ConfigModel:
    same: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        same.setdefault(id(parameter), set()).add(name)
    names = {*model.state_dict(), *(name for group in same.values() for name in group)}
    may_lack = [*map(re.escape, getattr(model, "_tied_weights_keys", None) or ())]
    may_lack += getattr(model, "_keys_to_ignore_on_load_missing", None) or ()
    needed = [
        frozenset(group)
        for group in same.values()
        if not any(re.search(pattern, name) for pattern in may_lack for name in group)
    ]
    try:
        table = table_of(model_type)
    except ConfigError:
        table = None
    prefix = getattr(model, "base_model_prefix", "") or ""
    return ConfigModel(type(model).__name__, frozenset(names), tuple(needed), prefix, table)
