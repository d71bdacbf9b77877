"""The LightningModules of a source: which one a Trainer trains, and whether it can be given a hook."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.last_values import values_set
from fsdp_migrate.source.python.nodes import given_by_name
from fsdp_migrate.source.python.values import definition


if TYPE_CHECKING:
    from fsdp_migrate.source.python.text import Source


MODULE = re.compile(r"^(?:lightning|pytorch_lightning)(?:\.\w+)*\.LightningModule$")
HARMLESS = re.compile(r"^(?:abc\.ABC|typing\.Generic|torch\.nn\..*)$")
OLD_HOOK = "configure_sharded_model"
HOOKS = frozenset({"configure_model", OLD_HOOK})
_CLASSES = re.compile(r"'auto_wrap_policy': \[[^\]]*,[^\]]*\w")
_EACH_CLASS = (
    " Name those classes alone that the model has: Lightning passed over one that it has no module of, and "
    "prepare_fully_shard stops at it."
)


def of_classes(hook: str) -> str:
    """Say of a hook that names several classes that the model has to have them, where that was no error.

    Example:
        >>> of_classes("arguments = {'auto_wrap_policy': ['Block']}")
        ''
    """
    return _EACH_CLASS if _CLASSES.search(hook) else ""


@dataclass(eq=False)
class LightningModules:
    """The LightningModules that one source defines."""

    source: Source

    def trained_by(self, trainer: cst.Call) -> cst.ClassDef | None:
        """Return the class that a Trainer trains and that has no hook yet, or None where that is in doubt."""
        every = [node for node in self._classes() if self._is_module(node)]
        extended = {id(base) for node in every for base in self._bases_here(node)}
        fitted = self._fitted()
        trained = [node for node in every if node.name.value in fitted]
        if fitted and (len(trained) != 1 or fitted != {trained[0].name.value}):
            return None
        chosen = trained or [node for node in every if id(node) not in extended]
        if len(chosen) != 1 or not self._is_whole(chosen[0]):
            return None
        return chosen[0] if isinstance(chosen[0].body, cst.IndentedBlock) else None

    def trained_elsewhere(self) -> str | None:
        """Return the class of another file that is given to ``fit``, as imports write it, if no other is."""
        fitted = self._fitted()
        named = next(iter(fitted)) if len(fitted) == 1 else ""
        return named if named in self.source.links.lightning else None

    def named(self) -> str:
        """Return the one class that is given to ``fit``, with its file where that is another; or nothing."""
        fitted = self._fitted()
        name = next(iter(fitted)) if len(fitted) == 1 else "?"
        known = self.source.links.lightning_homes.get(name)
        is_here = any(node.name.value == name for node in self._classes())
        return known or (f"`{name}` of this file" if is_here else "")

    def hooks(self) -> dict[str, cst.FunctionDef]:
        """Return the hooks that classes have themselves, the one of today where there are two."""
        return {
            node.name.value: item
            for node in self._classes()
            if self._is_module(node)
            for name in sorted(HOOKS, reverse=True)
            for item in node.body.body
            if isinstance(item, cst.FunctionDef) and item.name.value == name
        }

    def by_name(self, name: str) -> cst.ClassDef | None:
        """Return the only class of a name that a hook can be put into."""
        found = [node for node in self._classes() if node.name.value == name]
        is_block = len(found) == 1 and isinstance(found[0].body, cst.IndentedBlock)
        return found[0] if is_block else None

    def _classes(self) -> list[cst.ClassDef]:
        nodes = self.source.index.by_kind.get(cst.ClassDef, ())
        return [node for node in nodes if isinstance(node, cst.ClassDef)]

    def _bases_here(self, node: cst.ClassDef) -> list[cst.ClassDef]:
        names = {base.value.value for base in node.bases if isinstance(base.value, cst.Name)}
        return [other for other in self._classes() if other is not node and other.name.value in names]

    def _is_module(self, node: cst.ClassDef, depth: int = 0) -> bool:
        named = (name for base in node.bases for name in self.source.index.qualified(base.value))
        if any(MODULE.match(name) for name in named):
            return True
        return depth < 5 and any(self._is_module(base, depth + 1) for base in self._bases_here(node))

    def _is_whole(self, node: cst.ClassDef, depth: int = 0) -> bool:
        """Tell whether all that a class inherits is seen, and no hook of this name is among it."""
        own = {item.name.value for item in node.body.body if isinstance(item, cst.FunctionDef)}
        here = self._bases_here(node)
        names = {each.name.value for each in here}
        for base in node.bases:
            known = self.source.index.qualified(base.value)
            is_here = isinstance(base.value, cst.Name) and base.value.value in names
            if not is_here and not any(MODULE.match(name) or HARMLESS.match(name) for name in known):
                return False
        return not own & HOOKS and depth < 5 and all(self._is_whole(each, depth + 1) for each in here)

    def _fitted(self) -> set[str]:
        """Return the classes of the models that are given to ``fit``.

        One of another file is called as imports write it, or ``?`` where no file is known for it.
        """
        found = set()
        for call in self.source.calls:
            if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "fit" or not call.args:
                continue
            named = given_by_name(call, "model")
            model = named[0] if named else call.args[0].value
            made = self._makers(model)
            found |= {self._class_of(each.func) for each in made}
        return found

    def _makers(self, model: cst.BaseExpression) -> list[cst.Call]:
        """Return the calls that make a model, in each branch; nothing where one of them is not seen."""
        made = definition(self.source, model)
        values: list[cst.BaseExpression | None] = [made]
        if made is model and isinstance(model, cst.Name) and model in self.source.index.scopes:
            bound = self.source.index.bindings_of(model)
            values = [each.value if each.index is None else None for each in bound]
        if isinstance(model, cst.Attribute):
            values = list(values_set(self.source.index, model))
        branches = [each for value in values for each in _branches(value)]
        calls = [each for each in branches if isinstance(each, cst.Call)]
        return calls if len(calls) == len(branches) else []

    def _class_of(self, func: cst.BaseExpression) -> str:
        """Return the name, as in :meth:`_fitted`, of a class that is called, or of which a method is."""
        while True:
            known = self.source.index.qualified(func)
            if isinstance(func, cst.Name):
                known = known | {func.value}
            elsewhere = sorted(known & set(self.source.links.lightning))
            if elsewhere:
                return elsewhere[0]
            if not isinstance(func, cst.Attribute):
                break
            func = func.value  # Lit.load_from_checkpoint(...)
        is_class = isinstance(func, cst.Name) and any(
            binding.kind == "class" for binding in self.source.index.bindings_of(func)
        )
        return func.value if is_class and isinstance(func, cst.Name) else "?"


def _branches(value: cst.CSTNode | None) -> list[cst.CSTNode | None]:
    """Return what an expression may be: each side of ``a if on else b``."""
    return [value.body, value.orelse] if isinstance(value, cst.IfExp) else [value]


def with_hook(source: Source, node: cst.ClassDef, code: str) -> cst.ClassDef:
    """Return a class with a hook as its last method."""
    body = cst.ensure_type(node.body, cst.IndentedBlock)
    module = source.module
    text = re.sub(r"(?m)^(?: {4})+", lambda match: module.default_indent * (len(match[0]) // 4), code)
    text = text.replace("\n", module.default_newline)
    hook = cst.ensure_type(cst.parse_statement(text, config=module.config_for_parsing), cst.FunctionDef)
    hook = hook.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    return node.with_changes(body=body.with_changes(body=[*body.body, hook]))
