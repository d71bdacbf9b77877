"""Models of which a project shows that they are plain: made in sight, and so by every call that is seen.

What a sharded model reaches is followed elsewhere. Here only the rest is asked about: whether each value that
a name may have is one that the project shows, so that nothing unseen can come to it.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.asked_of_models import OF_MODELS, asked_in, may_be_one
from fsdp_migrate.source.call_arguments import given_by
from fsdp_migrate.source.callers import Callers
from fsdp_migrate.source.constructed import Constructed
from fsdp_migrate.source.framework_models import given_to_plain_fabric
from fsdp_migrate.source.left_branches import is_left_out
from fsdp_migrate.source.object_classes import Objects
from fsdp_migrate.source.other_launches import is_of_other_engine
from fsdp_migrate.source.plain_doubts import Doubts, filled
from fsdp_migrate.source.project import Asked, Definition, Place, dotted, last_name
from fsdp_migrate.source.project_names import targets_of
from fsdp_migrate.source.project_scopes import scopes_of
from fsdp_migrate.source.project_switches import is_ruled_out, is_without_fsdp
from fsdp_migrate.source.python.argument_places import every_argument
from fsdp_migrate.source.python.unknown_models import is_model, makes_anew
from fsdp_migrate.source.sharded_below import ShardedBelow
from fsdp_migrate.source.tables import in_table
from fsdp_migrate.source.values_bound import Bound, values_bound


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fsdp_migrate.source.project import Project
    from fsdp_migrate.source.sharding_files import ShardingFiles


_DEEPEST: Final = 24
# They give the same object, or one that is made of it alone.
_SAME: Final = frozenset(
    {
        *("bfloat16", "compile", "cpu", "cuda", "double", "eval", "float", "half", "merge_and_unload"),
        *("named_parameters", "parameters", "requires_grad_", "to", "train"),
    }
)
# What is made by these packages may be sharded by them, or be what a config picks.
_SHARDS: Final = re.compile(
    r"^(?:accelerate(?!\.(?:big_modeling\.)?(?:dispatch_model|load_checkpoint_\w+)$)|colossalai|composer|deepspeed|fairscale|fairseq2?|hydra|lightning|megatron"
    r"|pytorch_lightning|ray|torch\.distributed|torchtnt|trl)(?:\.|$)|fsdp|FSDP|[Ss]harded|Trainer"
)
_OF_FSDP: Final = re.compile(
    r"FSDP\w*\(|FullyShardedDataParallel|fully_shard\w*\(|\.(?:_?prepare|setup)\w*\(|DataParallel"
    r"|(?i:(?:apply|setup|shard|wrap)\w*fsdp|fsdp(?!\w*polic)\w*(?:model|shard|wrap)\w*\()"
)
_OF_FSDP_CALL: Final = re.compile(r"FSDP|fully_shard|\.(?:_?prepare|setup)\w*\(|DataParallel|fsdp\w*\(")
# A class that stands in a variable; not what wraps a model.
_A_CLASS: Final = re.compile(r"(?i)(?:^|_)(?:cls|class|klass)$|^model_(?:fn|type)$")
_NO_MODULE: Final = re.compile(r"Accelerator|Fabric|FSDP|Fully|Parallel|Plugin|Sharded|Strategy|Trainer")
# Objects of frameworks, whose methods may give what they shard.
_BY_OTHERS: Final = re.compile(r"(?i)accel|engine|fabric|strategy|trainer")
_BUILTINS: Final = frozenset({"filter", "iter", "list", "next", "sorted", "tuple"})
_MADE_OF: Final = (
    *(ast.List, ast.Tuple, ast.Dict, ast.ListComp, ast.GeneratorExp, ast.BinOp, ast.Set, ast.SetComp),
    *(ast.DictComp, ast.Starred),
)
_SETTINGS: Final = frozenset({"args", "cfg", "config", "hparams"})


@dataclass(eq=False)
class PlainPlaces:
    """Answers what a project shows to be plain. Reads only."""

    project: Project
    sharding: ShardingFiles
    callers: Callers = field(init=False, repr=False)
    _doubts: Doubts = field(init=False, repr=False)
    _objects: Objects = field(init=False, repr=False)
    _below: ShardedBelow = field(init=False, repr=False)
    _constructed: Constructed = field(init=False, repr=False)
    _known: dict[tuple[object, ...], bool] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.callers = Callers(self.project)
        self._doubts = Doubts(self.project, self.callers)
        self._objects = Objects(self.project, self.callers)
        self._below = ShardedBelow(self.callers, self._doubts)
        self._constructed = Constructed(self._doubts, lambda node, place: self._is_plain(node, place, 0))

    def of(self, path: Path) -> frozenset[tuple[int, str]]:
        """Return the line and the text of each expression that something is done with, and that is plain.

        Not where another of that text on the line is not.
        """
        module = self.project.module(path)
        if module is None:
            return frozenset()
        found: dict[bool, set[tuple[int, str]]] = {True: set(), False: set()}
        for node, text, place in asked_in(module, self.project.texts[path]):
            found[self._is_plain(node, place, 0)].add((node.lineno, text))
        return frozenset(found[True] - found[False])

    def above_sharding(self, path: Path) -> frozenset[tuple[int, str]]:
        """Return the same of each that the same function shards below, or what runs a constructor."""
        module = self.project.module(path)
        found: dict[bool, set[tuple[int, str]]] = {True: set(), False: set()}
        for node, text, place in asked_in(module, self.project.texts[path]) if module is not None else ():
            is_above = self._below.holds(place, text) or self._constructed.holds(place, text)
            found[is_above].add((node.lineno, text))
        return frozenset(found[True] - found[False])

    def _is_plain(self, node: ast.expr, place: Place, depth: int) -> bool:
        if depth > _DEEPEST:
            return False
        if isinstance(node, (ast.Compare, ast.Constant, ast.JoinedStr, ast.UnaryOp)):
            return True
        if isinstance(node, ast.Call):
            return self._is_made_plain(node, place, depth + 1)
        if (text := dotted(node)) is not None and self._below.holds(place, text):
            return True
        if isinstance(node, ast.Name):
            values = self._values(node, place)
            asked = ((each, place.asked if each.place.scope == place.scope else ()) for each in values or ())
            is_seen = bool(values) and all(self._is_value_plain(each, depth + 1, its) for each, its in asked)
            return is_seen and not self._doubts.is_changed(place, node.id)
        if isinstance(node, ast.Attribute):
            return self._is_attribute_plain(node, place, depth + 1)
        if isinstance(node, ast.IfExp):
            return all(self._is_plain(each, place, depth + 1) for each in (node.body, node.orelse))
        if isinstance(node, ast.BoolOp):
            return all(self._is_plain(each, place, depth + 1) for each in node.values)
        # A list that is empty here is filled elsewhere.
        is_filled = isinstance(node, _MADE_OF) and any(
            isinstance(e, ast.expr) for e in ast.iter_child_nodes(node)
        )
        return is_filled and self._holds_none(node, place, depth + 1)

    def _values(self, node: ast.Name, place: Place) -> list[Bound] | None:
        """Return what a name may hold at a place, without what is given to it where a switch is otherwise."""
        values = values_bound(place, node.id)
        return values and [each for each in values if not is_ruled_out(self.project, each.place, place)]

    def _is_value_plain(self, value: Bound, depth: int, asked: tuple[Asked, ...] = ()) -> bool:
        if isinstance(value.node, ast.arg):
            function = value.place.module.definitions.get(value.place.scope)
            return function is not None and self._is_given_plain(function, value.node.arg, depth, asked)
        if value.part is not None:
            return isinstance(value.node, ast.Call) and self._is_made_plain(
                value.node, value.place, depth, value.part
            )
        return self._is_plain(value.node, value.place, depth)

    def _is_given_plain(
        self, function: Definition, name: str, depth: int, asked: tuple[Asked, ...] = ()
    ) -> bool:
        """Tell whether all that calls give to a parameter is plain, and no call is unseen.

        ``asked``: choices of the function, which calls by their constants may never come to.
        """
        key = (function.key, name, *asked)
        if key not in self._known:
            self._known[key] = True  # what it gives to itself counts for nothing
            fixture = self._fixture(function, name)
            if fixture is not None:
                self._known[key] = self._gives_plain(fixture, depth, None)
                return self._known[key]
            calls = self.callers.of(function)
            is_called = bool(calls) or not (
                self.sharding.shards(function.module.path) or self._doubts.is_any_picked()
            )
            self._known[key] = (
                calls is not None
                and is_called
                and not self._doubts.is_picked(function)
                and not self._doubts.is_given_out(function)
                and all(
                    is_of_other_engine(place)
                    or is_without_fsdp(self.project, place)
                    or (asked and is_left_out(function, call, asked))
                    or (
                        (given := given_by(function, name, call)) is not None
                        and self._is_plain(given, place, depth)
                    )
                    for call, place in calls
                )
            )
        return self._known[key]

    @staticmethod
    def _fixture(function: Definition, name: str) -> Definition | None:
        """Return what pytest gives to a test, or to another such function: one of the same file."""
        fixture = function.module.definitions.get(name)
        is_asked = function.node.name.startswith("test") or _is_fixture(function)
        return fixture if is_asked and fixture is not None and _is_fixture(fixture) else None

    def _is_made_plain(self, call: ast.Call, place: Place, depth: int, part: int | None = None) -> bool:
        text = dotted(call.func)
        if (given := given_to_plain_fabric(call, place)) is not None:
            one = given[part or 0] if (part or 0) < len(given) else None
            return one is not None and self._is_plain(one, place, depth)
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr in _SAME
            and not self._external(text, place)
        ):
            return part is None and self._is_plain(call.func.value, place, depth)
        picked = in_table(self.project, self.callers, call.func, place) if text is None else None
        if picked is not None:
            return all(
                self._is_plain_class(each)
                if isinstance(each.node, ast.ClassDef)
                else self._gives_plain(each, depth, part)
                for each in picked
            ) and self._is_given_none(call, place, depth)
        made = self.callers.stands_for(text, place) if text is not None else None
        if text == "cls" and made is None:
            made = self.project.class_of(place)
        if made is not None and not isinstance(made.node, ast.ClassDef):
            return self._gives_plain(made, depth, part)
        if made is not None:
            return self._is_plain_class(made) and self._is_given_none(call, place, depth)
        written = self._external(text, place)
        if written is None:
            is_new = self._makes_anew(call.func) and not self._may_be_made_sharded(call.func, place)
            return is_new and self._is_given_none(call, place, depth)
        return _SHARDS.search(written) is None and self._is_given_none(call, place, depth)

    @staticmethod
    def _makes_anew(func: ast.expr) -> bool:
        """Tell whether what is called makes something anew: a class in a variable, a registry, a builtin."""
        text = dotted(func)
        if isinstance(func, ast.Name):
            return func.id in _BUILTINS or _A_CLASS.search(func.id) is not None
        if (
            not isinstance(func, ast.Attribute)
            or text is None
            or _SHARDS.search(text)
            or _BY_OTHERS.search(text)
        ):
            return False
        return makes_anew(func.attr)

    def _external(self, text: str | None, place: Place) -> str | None:
        """Return the name, as imports write it, of what is not the project's."""
        written = self.project.qualified(text, place) if text is not None else ""
        parts = written.split(".")
        starts = (".".join(parts[:count]) for count in range(1, len(parts)))
        is_own = written.startswith(".") or any(self.project.paths(place.module, each) for each in starts)
        return written if written and not is_own else None

    def _gives_plain(self, function: Definition, depth: int, part: int | None) -> bool:
        """Tell whether all that a function returns is plain, or a part of it."""
        given = [
            (each.node.value, each.place)
            for scope in scopes_of(function.module)
            for each in scope.statements
            if each.place.scope == function.name and isinstance(each.node, ast.Return)
        ]
        if not given or _of_fsdp(function) or not self._doubts.keeps(function):
            return False
        for value, place in given:
            one = value
            if part is not None and isinstance(value, ast.Tuple) and len(value.elts) > part:
                one = value.elts[part]
            elif part is not None and isinstance(value, ast.Call):
                if not self._is_made_plain(value, place, depth + 1, part):
                    return False
                continue
            elif part is not None:
                return False
            if one is None or not self._is_plain(one, place, depth + 1):
                return False
        return True

    def _is_plain_class(self, made: Definition) -> bool:
        """Tell whether a class does nothing with FSDP, nor those that it derives from."""
        assert isinstance(made.node, ast.ClassDef)
        own = {each.name.split(".")[-1] for each in self.project.bases(made)}
        bases = [dotted(each) or "?" for each in made.node.bases]
        others = [each for each in bases if each.split(".")[-1] not in own]
        is_other = any(_NO_MODULE.search(each) for each in others)
        is_sharded = _of_fsdp(made) or self._doubts.leads(made) or not self._doubts.keeps(made)
        return not is_other and not is_sharded and all(map(self._is_plain_class, self.project.bases(made)))

    def _is_module(self, made: Definition) -> bool:
        """Tell whether a class is a module of torch's."""
        assert isinstance(made.node, ast.ClassDef)
        named = [last_name(each) for each in made.node.bases]
        return "Module" in named or any(map(self._is_module, self.project.bases(made)))

    def _is_given_none(self, call: ast.Call, place: Place, depth: int) -> bool:
        """Tell whether a call is given no model that is not plain."""
        given = every_argument(call)
        return all(self._holds_none(each, place, depth) for each in given)

    def _holds_none(
        self, node: ast.AST, place: Place, depth: int, bound: frozenset[str] = frozenset()
    ) -> bool:
        """Tell whether an expression has no model, optimizer or parameters in it that are not plain."""
        text = dotted(node) if isinstance(node, ast.expr) else None
        if isinstance(node, (ast.Attribute, ast.Name)) and text is not None:
            *owners, last = text.lower().split(".")
            is_one = may_be_one(last)
            if text.split(".")[0] in bound or (owners and owners[-1] in _SETTINGS):
                return True
            return self._is_plain(node, place, depth + 1) if is_one else not self._may_be_sharded(node, place)
        if isinstance(node, ast.Call):
            func = node.func.value if isinstance(node.func, ast.Attribute) else None
            if self._doubts.wraps(node, place):
                return False
            is_models = isinstance(node.func, ast.Attribute) and node.func.attr in OF_MODELS
            is_a_part = isinstance(func, ast.Attribute) and is_model(_last_of(func.value))
            is_bound = func is not None and (dotted(func) or "").split(".")[0] in bound
            if is_models and func is not None and not is_bound and (is_a_part or isinstance(func, ast.Name)):
                return self._is_plain(func, place, depth + 1)
            parts: list[ast.AST] = [*every_argument(node)]
            parts += [func] if func is not None else []
        else:
            parts = list(ast.iter_child_nodes(node))
            loops = [each.target for each in parts if isinstance(each, ast.comprehension)]
            loops += [node.target] if isinstance(node, ast.comprehension) else []
            args = list(ast.walk(node.args)) if isinstance(node, ast.Lambda) else []
            named = (each.id for loop in loops for each in ast.walk(loop) if isinstance(each, ast.Name))
            bound |= {*named, *(each.arg for each in args if isinstance(each, ast.arg))}
        return all(self._holds_none(each, place, depth + 1, bound) for each in parts)

    def _may_be_sharded(self, node: ast.expr, place: Place) -> bool:
        """Tell whether a name that is no model's is given something of FSDP's, or what is filled below."""
        if not isinstance(node, ast.Name):
            return False
        values = values_bound(place, node.id)
        if values is None:
            return False
        is_one = any(_OF_FSDP_CALL.search(ast.unparse(each.node)) or _is_empty(each.node) for each in values)
        return is_one or self._doubts.may_hold(node, place) or any(map(self._is_given_one, values))

    def _is_given_one(self, value: Bound) -> bool:
        """Tell whether a call gives a parameter, that has no model's name, what is not plain."""
        function = value.place.module.definitions.get(value.place.scope)
        if not isinstance(value.node, ast.arg) or function is None:
            return False
        name = value.node.arg
        key = (function.key, f"given {name}")
        if key not in self._known:
            self._known[key] = False  # what it gives to itself counts for nothing
            calls = [
                (given_by(function, name, call), place) for call, place in self.callers.of(function) or ()
            ]
            given = ((each, place) for each, place in calls if each is not None)
            self._known[key] = any(self._has_one(each, place) for each, place in given)
        return self._known[key]

    def _has_one(self, node: ast.expr, place: Place) -> bool:
        """Tell whether a model's name, or a call that wraps one, is in what is given to another name."""
        called = {id(each.func) for each in ast.walk(node) if isinstance(each, ast.Call)}
        for each in ast.walk(node):
            if id(each) in called:
                continue  # `Net` of `Net(config)`
            if isinstance(each, ast.Call) and self._doubts.wraps(each, place):
                return True
            text = dotted(each) if isinstance(each, (ast.Attribute, ast.Name)) else None
            # `args.model` is the name of one.
            owner = text.rpartition(".")[0].split(".")[-1] if text is not None else ""
            if text is not None and is_model(text.split(".")[-1].lower()) and owner not in _SETTINGS:
                return isinstance(each, ast.expr) and not self._is_plain(each, place, 0)
            values = values_bound(place, each.id) if isinstance(each, ast.Name) else None
            if any(map(self._is_given_one, values or ())):
                return True
        return False

    def _may_be_made_sharded(self, func: ast.expr, place: Place) -> bool:
        """Tell whether a class in a variable, or a method by its name, may give a sharded model."""
        if isinstance(func, ast.Attribute):
            return self._doubts.may_give(func.attr)
        values = (values_bound(place, func.id) if isinstance(func, ast.Name) else None) or []
        made = [(each.node, each.place) for each in values if isinstance(each.node, ast.expr)]
        for value in values:
            function = value.place.module.definitions.get(value.place.scope)
            if isinstance(value.node, ast.arg) and function is not None:
                given = (
                    (given_by(function, value.node.arg, c), p) for c, p in self.callers.of(function) or ()
                )
                made += [(each, at) for each, at in given if each is not None]
        return any(self._doubts.is_a_maker(each, at) for each, at in made)

    def _is_attribute_plain(self, node: ast.Attribute, place: Place, depth: int) -> bool:
        owner = node.value
        if isinstance(owner, ast.Name) and owner.id in {"cls", "self"} and not values_bound(place, "cls"):
            own = self.project.class_of(place)
            return own is not None and self._is_field_plain(own, node.attr, depth)
        if is_model(last_name(owner).lower()):
            return self._is_plain(owner, place, depth)
        classes = self._objects.of(owner, place, depth)
        if classes and all(map(self._is_module, classes)):
            return self._is_plain(
                owner, place, depth
            )  # of a model that is made here the parts are plain, too
        return bool(classes) and all(self._is_field_plain(each, node.attr, depth) for each in classes)

    def _is_field_plain(self, owner: Definition, name: str, depth: int) -> bool:
        """Tell whether an attribute of a class's objects is plain, wherever it is set."""
        key = (owner.key, f"self.{name}")
        if key not in self._known:
            self._known[key] = True
            values = list(self._values_of(owner, name))
            is_none = all(isinstance(each.node, ast.Constant) for each in values)
            is_set_here = (
                not is_none
                and self._is_plain_class(owner)
                and not self._objects.is_set_elsewhere(owner, name)
            )
            self._known[key] = is_set_here and all(self._is_value_plain(each, depth + 1) for each in values)
            self._known[key] &= not self._is_filled(owner, name)
        return self._known[key]

    def _values_of(self, owner: Definition, name: str) -> Iterator[Bound]:
        for scope in scopes_of(owner.module):
            for statement in scope.statements:
                node, place = statement.node, statement.place
                if not isinstance(node, (ast.AnnAssign, ast.Assign)) or node.value is None:
                    continue
                if self.project.class_of(place) is owner:
                    targets = targets_of(node)
                    yield from (part for each in targets for part in _set_by(each, node.value, name, place))
        for base in self.project.bases(owner):
            yield from self._values_of(base, name)

    def _is_filled(self, owner: Definition, name: str) -> bool:
        """Tell whether something that is not plain is put into what an attribute holds."""
        for scope in scopes_of(owner.module):
            for statement in scope.statements:
                if self.project.class_of(statement.place) is owner:
                    given = filled(statement, f"self.{name}")
                    if not all(self._holds_none(each, statement.place, 0) for each in given):
                        return True
        return any(self._is_filled(base, name) for base in self.project.bases(owner))


def _is_fixture(function: Definition) -> bool:
    words = [each.func if isinstance(each, ast.Call) else each for each in function.node.decorator_list]
    return any(last_name(each) == "fixture" for each in words)


def _is_empty(node: ast.AST) -> bool:
    """Tell whether a list, a set or a dict has nothing in it where it is made."""
    if isinstance(node, ast.Call):
        return dotted(node.func) in {"dict", "list", "set"} and not node.args and not node.keywords
    return isinstance(node, (ast.Dict, ast.List)) and not any(
        isinstance(each, ast.expr) for each in ast.iter_child_nodes(node)
    )


def _last_of(node: ast.expr) -> str:
    return (dotted(node) or "").rsplit(".", maxsplit=1)[-1].lower()


def _of_fsdp(definition: Definition) -> bool:
    return _OF_FSDP.search(definition.written) is not None


def _set_by(target: ast.expr, value: ast.expr, name: str, place: Place) -> Iterator[Bound]:
    """Yield what an assignment gives to ``self.name``."""
    if isinstance(target, (ast.List, ast.Tuple)):
        for count, part in enumerate(target.elts):
            if dotted(part) == f"self.{name}":
                values = value.elts if isinstance(value, (ast.List, ast.Tuple)) else []
                is_same = len(values) == len(target.elts)
                yield Bound(values[count], place) if is_same else Bound(value, place, count)
    elif dotted(target) == f"self.{name}":
        yield Bound(value, place)
