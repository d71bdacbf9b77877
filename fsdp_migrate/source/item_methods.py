"""Methods of what lists and parameters hold of which nothing shows the class: ``callback.on_step(self)``."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source import catalog
from fsdp_migrate.source.annotated_items import annotation_of, is_of, names_of
from fsdp_migrate.source.config_words import configs_of
from fsdp_migrate.source.project import dotted, last_name
from fsdp_migrate.source.python.argument_places import named_arguments
from fsdp_migrate.source.python.held import has_model


if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from fsdp_migrate.source.given_texts import GivenTexts
    from fsdp_migrate.source.project import Definition, Place, Project


# Lists, dicts, files and loggers have methods of these names as well.
_COMMON: Final = frozenset(
    {
        *("add", "append", "clear", "close", "copy", "debug", "error", "extend", "format", "get", "index"),
        *("info", "insert", "items", "join", "keys", "log", "pop", "print", "put", "read", "remove", "run"),
        *("send", "setdefault", "split", "submit", "update", "values", "warning", "write"),
    }
)
_LOOPS: Final = (ast.For, ast.AsyncFor, ast.comprehension)
_MOST: Final = 24
TARGET: Final = "_target_"
_NAMED: Final = re.compile(r"_target_\W{1,6}(?:\w+\.)*(\w+)")
"""In YAML, in JSON, and in dicts of Python."""


@dataclass(eq=False)
class ItemMethods:
    """Answers for a project. Reads only."""

    project: Project
    texts: GivenTexts
    around: Iterable[str | os.PathLike[str]] = ()
    """The files and folders that were given, where configs may be."""
    _known: dict[str, list[Definition]] = field(default_factory=dict, repr=False)
    _items: dict[tuple[Path, str], frozenset[str]] = field(default_factory=dict, repr=False)
    """By functions, each gone through once."""
    _classes: dict[tuple[Path, str, str], frozenset[str] | None] = field(default_factory=dict, repr=False)

    def called(
        self, call: ast.Call, func: ast.expr, place: Place, kinds: Callable[[ast.expr], set[str]]
    ) -> Iterator[Definition]:
        """Yield the methods that a call may call, of the project's classes that have one of that name.

        Args:
            call: The call.
            func: What it calls, also by another name: ``callback.on_step``, ``getattr(callback, event)``.
            place: Where it stands.
            kinds: What an expression is known to be.
        """
        item, names = self._asked(func, place)
        # What stands in a dict of the project's is no logger and no file.
        common = _COMMON - {"run"} if isinstance(item, ast.Subscript) else _COMMON
        names -= common | catalog.OF_MODULES
        if item is None or not names or kinds(item) or not self._may_be_item(item, place):
            return
        named = self._named(item.id, place) if isinstance(item, ast.Name) else None
        for each in (method for name in sorted(names) for method in self._methods(name)):
            owner = each.owner
            is_its = owner is not None and (named is None or is_of(self.project, owner, named, place))
            yield from (each,) if is_its and takes(each, call) else ()

    def _asked(self, func: ast.expr, place: Place) -> tuple[ast.expr | None, frozenset[str]]:
        """Return what is asked for a method, and by which names."""
        if isinstance(func, ast.Attribute):
            return func.value, frozenset([func.attr] if not func.attr.startswith("__") else ())
        if isinstance(func, ast.Call) and dotted(func.func) == "getattr" and len(func.args) > 1:
            return func.args[0], self.texts.of(func.args[1], place)
        return None, frozenset()

    def _may_be_item(self, node: ast.expr, place: Place) -> bool:
        """Tell whether something is an item of what a function has, or is given: ``self.plugins[name]``."""
        if isinstance(node, ast.Name):
            return self._is_item(node.id, place)
        return isinstance(node, ast.Subscript) and dotted(node.value) is not None

    def instantiated(self, call: ast.Call, kinds: Callable[[ast.expr], set[str]]) -> Iterator[Definition]:
        """Yield the classes of which hydra may make an object: those that take what it is given by name."""
        named = named_arguments(call)
        given = {name for name in named if not name.startswith("_")}
        is_hydras = last_name(call.func) == "instantiate" and len(given) > 1
        if not is_hydras or not any(has_model(kinds(each)) for each in named.values()):
            return
        models = {name for name, value in named.items() if has_model(kinds(value))}
        found = [each for each in self._constructors if _takes_named(each, given, models)]
        said = [each for each in found if each.name.split(".")[-2] in self._targets]
        yield from said or found

    @functools.cached_property
    def _constructors(self) -> list[Definition]:
        modules = map(self.project.module, self.project.holding(["__init__"]))
        every = (each for module in modules if module is not None for each in module.definitions.values())
        return [each for each in every if each.name.endswith(".__init__")]

    @functools.cached_property
    def _targets(self) -> frozenset[str]:
        """The last words of what configs, and dicts of sources, name to be made."""
        sources = (self.project.texts[path] for path in self.project.holding([TARGET]))
        texts = (*configs_of(self.around, [TARGET]), *sources)
        return frozenset(name for text in texts for name in _NAMED.findall(text))

    def _named(self, name: str, place: Place) -> frozenset[str] | None:
        """Return the classes that annotations say a name is of, if they say it."""
        key = place.module.path, place.scope, name
        if key not in self._classes:
            annotation = annotation_of(self.project, name, place)
            self._classes[key] = names_of(self.project, annotation, place) if annotation is not None else None
        return self._classes[key]

    def _is_item(self, name: str, place: Place) -> bool:
        """Tell whether a name is what a loop goes through, or what a function is given."""
        node = self.project.node(place.module, place.scope)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or name in {"self", "cls"}:
            return False
        key = place.module.path, place.scope
        if key not in self._items:
            self._items[key] = _items_of(node)
        return name in self._items[key]

    def _methods(self, name: str) -> list[Definition]:
        if name not in self._known:
            ending, found = f".{name}", []
            made = re.compile(rf"\bdef {re.escape(name)}\s*[\[(]")
            for path in self.project.holding([name]):
                module = self.project.module(path) if made.search(self.project.texts[path]) else None
                known = module.definitions.values() if module is not None else ()
                found += [each for each in known if each.name.endswith(ending) and each.owner is not None]
            self._known[name] = found if len(found) <= _MOST else []
        return self._known[name]


def _items_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[str]:
    """Return the names of what a function is given, and of what its loops go through."""
    loops = (each.target for each in ast.walk(node) if isinstance(each, _LOOPS))
    names = (part.id for target in loops for part in ast.walk(target) if isinstance(part, ast.Name))
    return frozenset({*names, *(arg.arg for arg in (*node.args.args, *node.args.kwonlyargs))})


def takes(method: Definition, call: ast.Call) -> bool:
    """Tell whether a function, or a method of an object, can be called so, by the number of what it takes."""
    node = method.node
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    is_static = any(dotted(each) == "staticmethod" for each in node.decorator_list)
    most = len(node.args.args) - (0 if method.owner is None or is_static else 1)
    named = {arg.arg for arg in (*node.args.args, *node.args.kwonlyargs)}
    is_starred = any(isinstance(each, ast.Starred) for each in call.args)
    is_many = is_starred or node.args.vararg is not None or len(call.args) <= most
    return is_many and all(
        each.arg is None or each.arg in named or node.args.kwarg is not None for each in call.keywords
    )


def _takes_named(made: Definition, given: set[str], models: set[str]) -> bool:
    """Tell whether a constructor takes what it is given by name; by ``**`` only what is beside the model."""
    node = made.node
    if not isinstance(node, ast.FunctionDef):
        return False
    taken = {arg.arg for arg in (*node.args.args, *node.args.kwonlyargs)}
    return given <= taken or (node.args.kwarg is not None and models <= taken)
