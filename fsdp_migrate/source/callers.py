"""Who calls a function of a project, where all that speaks of it is seen to be a call."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from fsdp_migrate.source.project import Definition, Place, dotted, last_name
from fsdp_migrate.source.project_scopes import scopes_of
from fsdp_migrate.source.python.walked import children_of, walked


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fsdp_migrate.source.project import Function, Module, Project


_DEEPEST: Final = 4
# Decorators under which a function is called as it is written.
_PLAIN: Final = frozenset({"classmethod", "enable_grad", "inference_mode", "no_grad", "staticmethod"})
# Classes that call no methods of those below them but what these are known for.
_PASSIVE: Final = frozenset({"ABC", "Generic", "Protocol", "object"})
# Bases that call the methods of torch's modules alone.
_MODULES: Final = frozenset({"GenerationMixin", "Module"})


# Methods that torch calls of a module.
_OF_MODULES: Final = re.compile(
    r"^(?:_.*|forward|(?:(?:named_)?(?:buffers|children|modules|parameters)|get_.*|set_.*|.*state_dict.*|\w*hook\w*"
    r"|apply|compile|cpu|cuda|eval|extra_repr|requires_grad_|share_memory|to|to_empty|train|zero_grad))$"
)


class Seen(NamedTuple):
    """One call, and where it stands."""

    call: ast.Call
    place: Place


class Around(NamedTuple):
    """What stands around the nodes of a file, by their ids."""

    above: dict[int, ast.AST]
    """What a node stands right in."""
    places: dict[int, Place]
    """Where the calls stand that are seen."""
    never: frozenset[int]
    """What never runs, or never with FSDP1."""


@dataclass(eq=False)
class Callers:
    """Answers by whom functions are called. Reads only."""

    project: Project
    _held: dict[str, list[Path]] = field(default_factory=dict, repr=False)
    _words: dict[Module, dict[str, list[ast.AST]]] = field(default_factory=dict, repr=False)
    _around: dict[Module, Around] = field(default_factory=dict, repr=False)

    def holding(self, name: str) -> list[Path]:
        """Return the files that have a word."""
        if name not in self._held:
            self._held[name] = self.project.holding([name])
        return self._held[name]

    def calls_in(self, module: Module) -> Iterator[Seen]:
        """Yield the calls of a file, with their places."""
        for scope in scopes_of(module):
            for statement in scope.statements:
                yield from (Seen(call, statement.place) for call in statement.calls)

    def of(self, function: Definition) -> list[Seen] | None:
        """Return the calls of a function; None where it may be called by what is not seen."""
        if isinstance(function.node, ast.ClassDef) or not _is_plain(function.node):
            return None
        owner, name = function.owner, function.node.name
        if owner is None:
            return self._calls(function, name)
        if name == "__init__":
            return self._made(owner)
        if name.startswith("__") or not self._is_passive(owner, name):
            return None
        return self._calls(function, name)

    def _is_passive(self, owner: Definition, method: str) -> bool:
        """Tell whether nothing but the project calls a method of a class."""
        assert isinstance(owner.node, ast.ClassDef)
        bases = self.project.bases(owner)
        named = [(dotted(each) or "?").split(".")[-1] for each in owner.node.bases]
        known = {each.name.split(".")[-1] for each in bases} | _PASSIVE
        if not _OF_MODULES.search(method):
            known |= _MODULES
        return all(each in known for each in named) and all(self._is_passive(each, method) for each in bases)

    def _calls(self, function: Definition, name: str) -> list[Seen] | None:
        found: list[Seen] = []
        for path in self.holding(name):
            module = self.project.module(path)
            if module is None:
                return None
            for node in self._spoken(module).get(name, ()):
                is_its = self._is_its(function, node, module)
                if is_its is None:
                    return None
                around = self.around(module)
                call = around.above.get(id(node))
                if is_its and isinstance(call, ast.Call):
                    found.append(Seen(call, around.places[id(call)]))
        return found

    def _is_its(self, function: Definition, node: ast.AST, module: Module) -> bool | None:
        """Tell whether a mention is a call of a function; None where something else is done with that."""
        around = self.around(module)
        above = around.above.get(id(node))
        if id(node) in around.never:
            return False
        if isinstance(node, ast.alias):
            return None if node.asname not in {None, node.name} else False
        if isinstance(node, ast.Constant):
            return False if picks_nothing(above, around.above) else None
        assert isinstance(node, (ast.Attribute, ast.Name))
        is_method = function.owner is not None
        if isinstance(node, ast.Name) and (is_method or isinstance(node.ctx, ast.Store)):
            return False
        if isinstance(node, ast.Name) and module is not function.module and _is_its_own(module, node.id):
            return False
        text = dotted(node)
        place = around.places.get(id(above))
        meant = None if text is None else self.stands_for(text, place or Place(module, ""))
        if meant is not None and meant is not function:
            # A method that a class below has of its own is another.
            owner, its = meant.owner, function.owner
            is_below = owner is not None and its is not None and akin(self.project, owner, its)
            return None if is_below else False
        if isinstance(node, ast.Attribute) and meant is None and not is_method:
            return False  # of an object, or of a module that is not the project's
        if isinstance(node, ast.Name) and meant is None and node.id in module.imports:
            return False
        is_open = isinstance(node, ast.Attribute) and meant is None
        if is_open and not self._may_be(function, text, above, module):
            return False
        is_call = isinstance(above, ast.Call) and above.func is node and place is not None
        return True if is_call else None

    def _may_be(self, function: Definition, text: str | None, call: ast.AST | None, module: Module) -> bool:
        """Tell whether something may be a method: its arguments fit, and no package has the class.

        ``AutoModel.from_pretrained`` is none of the project's.
        """
        if isinstance(call, ast.Call) and text == dotted(call.func) and not fits(function, call):
            return False
        owner = (text or "").rpartition(".")[0]
        written = module.imports.get(owner.partition(".")[0], "")
        parts = written.split(".")
        starts = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
        is_class = owner.rpartition(".")[2][:1].isupper()
        is_own = written.startswith(".") or any(self.project.paths(module, each) for each in starts)
        return not is_class or not written or is_own

    def may_be_made(self, owner: Definition, depth: int = 0) -> bool:
        """Tell whether anything outside of a class may make its objects, or derive from it.

        A package hands on what its ``__init__`` imports. What asks for the class alone makes none.
        """
        name, own = owner.name.split(".")[-1], {id(each) for each in ast.walk(owner.node)}
        if owner.node.decorator_list or depth > _DEEPEST:
            return True
        for path in self.holding(name):
            module = self.project.module(path)
            if module is None:
                return True
            spoken = (each for each in self._spoken(module).get(name, ()) if id(each) not in own)
            if any(self._may_make(owner, each, module, depth) for each in spoken):
                return True
        return False

    def _may_make(self, owner: Definition, node: ast.AST, module: Module, depth: int) -> bool:
        """Tell whether a mention of a class may make an object of it, and is not in another that none has."""
        around = self.around(module).above
        if isinstance(node, ast.alias):
            above = around.get(id(node))
            start = f"{'.' * above.level}{above.module or ''}" if isinstance(above, ast.ImportFrom) else ""
            is_its = self.project.find(module, f"{start}.{node.name}") is owner
            return is_its and (node.asname not in {None, node.name} or module.path.stem == "__init__")
        is_its = id(node) not in self.around(module).never and self._is_its(owner, node, module) is not False
        if not is_its or only_asks(node, around):
            return False
        others = (each for each in module.definitions.values() if isinstance(each.node, ast.ClassDef))
        within = next((each for each in others if any(part is node for part in ast.walk(each.node))), None)
        return within is None or within is owner or self.may_be_made(within, depth + 1)

    def is_named_in_vain(self, function: Definition) -> bool:
        """Tell whether something that never runs speaks of a function."""
        spoken = self.mentions(function.node.name)
        return any(id(node) in self.around(module).never for module, node in spoken)

    def mentions(self, name: str) -> Iterator[tuple[Module, ast.AST]]:
        """Yield the names, attributes, imports and texts of the project that are a word, with their files."""
        for module in filter(None, map(self.project.module, self.holding(name))):
            yield from ((module, node) for node in self._spoken(module).get(name, ()))

    def stands_for(self, text: str, place: Place) -> Definition | None:
        """Return the function or class that a name stands for, also a method of ``self``."""
        root, _, rest = text.partition(".")
        if root in {"self", "cls"} and rest:
            return self.project.own(rest, place)
        return self.project.named(text, place)

    def _made(self, owner: Definition) -> list[Seen] | None:
        """Return the calls of a class; None where others may make its objects, or derive from it."""
        found: list[Seen] = []
        name = owner.name.split(".")[-1]
        for path in self.holding(name):
            module = self.project.module(path)
            if module is None:
                return None
            for node in self._spoken(module).get(name, ()):
                around = self.around(module)
                above = around.above.get(id(node))
                if isinstance(node, ast.Name) and _only_names(node, above, around.above):
                    continue
                is_its = self._is_its(owner, node, module)
                if is_its is None:
                    return None
                if is_its and isinstance(above, ast.Call):
                    found.append(Seen(above, around.places[id(above)]))
        own = (seen for seen in self.calls_in(owner.module) if dotted(seen.call.func) == "cls")
        found.extend(seen for seen in own if self.project.class_of(seen.place) is owner)
        return found or None

    def _spoken(self, module: Module) -> dict[str, list[ast.AST]]:
        """Return the names, attributes, imports and texts of a file, by their words."""
        if module not in self._words:
            words = self._words.setdefault(module, {})
            for node in walked(module.tree):
                word = _word(node)
                if word is not None:
                    words.setdefault(word, []).append(node)
        return self._words[module]

    def around(self, module: Module) -> Around:
        """Return what stands around each node of a file."""
        if module not in self._around:
            above = {id(each): node for node in walked(module.tree) for each in children_of(node)}
            places = {id(seen.call): seen.place for seen in self.calls_in(module)}
            never = (each for scope in scopes_of(module) for each in scope.never)
            left = frozenset(id(part) for each in never for part in ast.walk(each))
            self._around[module] = Around(above, places, left)
        return self._around[module]


def akin(project: Project, one: Definition, other: Definition) -> bool:
    """Tell whether a class is another, or derives from it, or that from the first."""
    return (
        one is other
        or any(akin(project, base, other) for base in project.bases(one))
        or any(akin(project, one, base) for base in project.bases(other))
    )


def fits(function: Definition, call: ast.Call) -> bool:
    """Tell whether a function takes what a call gives it, without an error."""
    if isinstance(function.node, ast.ClassDef) or any(isinstance(each, ast.Starred) for each in call.args):
        return True
    args = function.node.args
    is_static = any(dotted(each) == "staticmethod" for each in function.node.decorator_list)
    placed = [each.arg for each in (*args.posonlyargs, *args.args)]
    placed = placed[1 if function.owner is not None and not is_static else 0 :]
    named = {each.arg for each in call.keywords}
    if (args.vararg is None and len(call.args) > len(placed)) or None in named:
        return None in named
    needed = placed[: len(placed) - len(args.defaults)][len(call.args) :]
    needed += [a.arg for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d is None]
    known = {*placed, *(each.arg for each in args.kwonlyargs)}
    return named.issuperset(needed) and (args.kwarg is not None or named <= known)


def _word(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.alias):
        return node.name.split(".")[-1]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.split(".")[-1].split(":")[-1]
    return None


def _is_its_own(module: Module, name: str) -> bool:
    """Tell whether a name is a file's own function or class, which nothing that is imported may replace."""
    return name in module.definitions and name not in module.imports and not module.stars


def _is_plain(node: Function) -> bool:
    """Tell whether no decorator hands a function to something else."""
    called = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
    return all(last_name(each) in _PLAIN for each in called)


def picks_nothing(node: ast.AST | None, above: dict[int, ast.AST]) -> bool:
    """Tell whether a text picks nothing: in ``__all__``, in a comparison, or a line of its own."""
    if isinstance(node, (ast.Compare, ast.Expr, ast.JoinedStr)):
        return True
    assign = above.get(id(node)) if isinstance(node, (ast.List, ast.Tuple)) else None
    return isinstance(assign, ast.Assign) and [dotted(each) for each in assign.targets] == ["__all__"]


def only_asks(node: ast.AST, around: dict[int, ast.AST]) -> bool:
    """Tell whether a class is only asked for: in an annotation, or ``isinstance(x, (Own, Other))``."""
    below, above = node, around.get(id(node))
    while isinstance(above, (ast.Attribute, ast.BinOp, ast.List, ast.Subscript, ast.Tuple)):
        below, above = above, around.get(id(above))
    if isinstance(above, ast.Call):
        return isinstance(below, ast.expr) and dotted(above.func) in {"isinstance", "issubclass"}
    if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return above.returns is below
    return isinstance(above, ast.arg) or (isinstance(above, ast.AnnAssign) and above.annotation is below)


def _only_names(node: ast.Name, above: ast.AST | None, around: dict[int, ast.AST]) -> bool:
    """Tell whether a class is only named: in an annotation, an ``isinstance``, or to ask it for something."""
    top: ast.AST = node
    whole = above
    while isinstance(whole, (ast.BinOp, ast.Subscript, ast.Tuple)):  # `ret: tuple[int, Trainer]`
        top, whole = whole, around.get(id(whole))
    if isinstance(whole, ast.arg) or (isinstance(whole, ast.AnnAssign) and whole.annotation is top):
        return True
    if isinstance(whole, (ast.FunctionDef, ast.AsyncFunctionDef)) and whole.returns is top:
        return True
    if isinstance(above, ast.Attribute):
        return not isinstance(around.get(id(above)), ast.Attribute) and above.attr != "__init__"
    return isinstance(above, ast.Call) and dotted(above.func) in {"isinstance", "issubclass", "super"}
