"""The names that a model of transformers has, by its ``config.json`` and the installed transformers."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fsdp_migrate.checkpoint_convert.maps.transformers_tables import table_of
from fsdp_migrate.errors import ConfigError


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fsdp_migrate.checkpoint_convert.manifest.parameter_map import ParameterMap


_UNKNOWING: Final = {
    "auto_map": "the code of its model lies beside it, and is not run",
    "quantization_config": "`from_pretrained` gives its layers other names, as it quantizes them",
}


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
        shapes: The shapes of its parameters, by each of their names.
    """

    title: str
    is_guess: bool
    names: frozenset[str]
    needed: tuple[frozenset[str], ...]
    prefix: str = ""
    tables: tuple[ParameterMap, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

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

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of the parameter that a stored name is one of, where no table renames it."""
        return next((self.shapes[own] for own in self._own(name) if own in self.shapes), None)

    def _own(self, name: str) -> Iterator[str]:
        start = f"{self.prefix}."
        for form in {name, start + name, name.removeprefix(start)} if self.prefix else {name}:
            if form in self.names:
                yield form


@dataclass(frozen=True, slots=True)
class UnknownModel:
    """Why a ``config.json`` does not tell which names its model has, and what would help."""

    why: str
    hint: str | None = None


def model_of_config(config: bytes) -> ConfigModel | UnknownModel:
    """Return the names of the model that a ``config.json`` describes, or why nothing tells them.

    Nothing does without transformers, of a model whose code lies beside its config, which is not run, and
    of one whose layers ``from_pretrained`` exchanges for quantized ones with other names.
    """
    try:
        said = json.loads(config)
    except (ValueError, RecursionError):
        return UnknownModel("it is no JSON")
    if not isinstance(said, dict) or not isinstance(said.get("model_type"), str):
        return UnknownModel("it names no `model_type` of transformers")
    for key, why in _UNKNOWING.items():
        if key in said:
            return UnknownModel(f"{why} (`{key}`)")
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == "transformers"
        why = "is not installed" if absent else f"cannot be imported ({_first_line(error)})"
        return UnknownModel(
            f"transformers, which makes the model of it, {why}", "Install it for `--dry-run`."
        )
    try:
        named = _class_of(transformers, said.get("architectures"))
        model = _build(transformers, said, named)
    except Exception as error:  # anything: the code of each model reads its own keys, and checks few of them
        with_which = f"transformers {transformers.__version__} does not make a model of it"
        hint = "Is it whole? Try `--dry-run` with the transformers that it was written by."
        return UnknownModel(f"{with_which}: {type(error).__name__}: {_first_line(error)}", hint)
    return _described(model, said["model_type"], is_guess=named is None)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200].rstrip(".")


def _class_of(transformers: Any, architectures: object) -> Any:
    """Return the class of transformers that a config names first, or None."""
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    found = getattr(transformers, first, None) if isinstance(first, str) else None
    return found if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel) else None


def _build(transformers: Any, said: dict[str, Any], named: Any) -> Any:
    """Make the model without memory for it."""
    torch: Any = importlib.import_module("torch")
    with _quiet(transformers.logging), torch.device("meta"):
        config = transformers.AutoConfig.for_model(**said)
        return transformers.AutoModel.from_config(config) if named is None else named(config)


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
    shapes = {name: tuple(each.shape) for name, each in model.named_parameters(remove_duplicate=False)}
    title = type(model).__name__
    return ConfigModel(title, is_guess, frozenset(names), tuple(needed), prefix, tables, shapes)


def _tables(model_type: str) -> Iterator[ParameterMap]:
    """Yield the table of a type of model, and the one that transformers has for all of them."""
    for name in (model_type, "legacy"):
        with contextlib.suppress(ConfigError):
            yield table_of(name)
