"""Which expressions are FSDP1 models: followed through assignments, calls and returns of one source."""

from __future__ import annotations

import functools
import itertools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.guards import Guards, asks_among_others, is_fsdp1_class
from fsdp_migrate.source.python.last_values import last_value, stands_for
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.python.makers import gives_fsdp_modules, is_partial_of, makes_fsdp, put_into
from fsdp_migrate.source.python.nodes import dotted, item_name, model_argument, named_items, text_of, walk_for
from fsdp_migrate.source.python.parameters import model_of
from fsdp_migrate.source.python.wrappers import AROUND_MODEL, DDP, FSDP2, MAKES, SAME_MODEL


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.links import Links
    from fsdp_migrate.source.python.scopes import Index


Certainty = Literal["certain", "mixed"]
"""Of an expression: only ever FSDP1's or a plain module, or one that other wrappers hold as well."""

Key = tuple[cst.CSTNode, str]

_WRAPPING = re.compile(r"wrap|shard|fsdp|parallel")
_MAX_PASSES = 6
_MAX_DEPTH = 2
# What parameters of functions are called that FSDP1's models are given to.
_NAMED = frozenset({"fsdp_model", "fsdp_module"})


@dataclass(eq=False)
class Models:
    """Finds the FSDP1 models of a source. Reads only; no code is imported or run."""

    index: Index
    links: Links = NOTHING
    """What other files of the project say of this one."""
    facts: dict[Key, set[str]] = field(default_factory=dict)
    made: dict[Key, list[cst.CSTNode]] = field(default_factory=dict)
    """The targets of the assignments by which a name becomes a model."""
    given: set[Key] = field(default_factory=set)
    """Names that are models from elsewhere: by a call's argument, or by an annotation."""
    returns: dict[tuple[cst.CSTNode, int | str | None], set[str]] = field(default_factory=dict)
    """What a function gives: whole, by the place in a tuple, or by the name of a dict's item."""
    evidence: dict[Key, list[cst.CSTNode]] = field(default_factory=dict)
    """The calls of FSDP1's functions that are given a name as the model."""
    guards: Guards = field(init=False)
    """What checks for the class make sure."""

    def __post_init__(self) -> None:
        self.guards = Guards(self.index)
        self._note_annotations()
        self._note_evidence()
        self._note_links()
        before = -1
        # Each pass may make known what an earlier line depends on. Facts only grow, so one that adds none is
        # the last.
        for _ in range(_MAX_PASSES):
            self._pass()
            size = sum(map(len, self.facts.values())) + sum(map(len, self.returns.values()))
            if size == before:
                break
            before = size

    def certainty(self, node: cst.CSTNode) -> Certainty | None:
        """Tell whether an expression is an FSDP1 model, as far as this source shows."""
        if not isinstance(node, cst.BaseExpression) or self._is_before_wrapping(node):
            return None
        if self.is_other_branch(node) or self._was_just_wrapped_by_ddp(node):
            return None
        kinds = self.kinds(node)
        if "fsdp" not in kinds:
            return None
        return "certain" if kinds == {"fsdp"} else "mixed"

    def _is_before_wrapping(self, node: cst.BaseExpression) -> bool:
        """Tell whether a name is used before the statements, of the same function, that make it a model.

        ``net.load_state_dict(...)`` above ``net = FSDP(net)`` is about the plain module.
        """
        key = self._key(node)
        made = self.made.get(key, []) if key is not None else []
        if key is None or key in self.given:
            return False
        if not made:
            evidence = self.evidence.get(key, ())
            return bool(evidence) and all(self.index.excludes(each, node) for each in evidence)
        made = [each for each in made if not self.index.excludes(each, node)]
        function, place = self.index.function(node), self.index.order[node]
        for statement in made:
            if self.index.function(statement) is not function or self.index.order[statement] < place:
                return False
            # What stands above the wrapping in the same loop comes after it in the next round.
            loops = {a for a in self.index.ancestors(statement) if isinstance(a, (cst.For, cst.While))}
            if any(above in loops for above in self.index.ancestors(node)):
                return False
        return True

    def _was_just_wrapped_by_ddp(self, node: cst.BaseExpression) -> bool:
        """Tell whether the last assignment to a name, whatever it was before, made it DDP's."""
        if not isinstance(node, (cst.Name, cst.Attribute)) or node not in self.index.scopes:
            return False
        value = last_value(self.index, node)
        return isinstance(value, cst.Call) and bool(self.index.qualified(value.func) & DDP)

    @property
    def names_made(self) -> set[str]:
        """The last parts of the names that are made FSDP1 models here."""
        return {text.rpartition(".")[2] for (_, text), made in self.made.items() if made}

    def is_unknown(self, node: cst.BaseExpression) -> bool:
        """Tell whether nothing here says what an expression is."""
        return not self.kinds(node)

    def is_fsdp2(self, node: cst.BaseExpression) -> bool:
        """Tell whether an expression is a model that FSDP2 has sharded, and none of FSDP1's."""
        kinds = self.kinds(node)
        return "fsdp2" in kinds and "fsdp" not in kinds

    def is_guarded(self, node: cst.CSTNode) -> bool:
        """Tell whether an expression stands where ``isinstance(it, FSDP)`` was found true."""
        return self.guards.holds(node, is_fsdp1_class(self.index))

    def is_guarded_among(self, node: cst.CSTNode) -> bool:
        """Tell whether an expression stands where ``isinstance(it, (FSDP, DDP))`` was found true."""
        return self.guards.holds(node, asks_among_others(self.index))

    def is_guarded_within(self, node: cst.CSTNode) -> bool:
        """Tell whether an expression stands where it, or a module in it, was found to be FSDP1's."""
        return self.guards.holds_within(node, is_fsdp1_class(self.index))

    def is_guarded_fsdp2(self, node: cst.CSTNode) -> bool:
        """Tell whether an expression stands where ``isinstance(it, FSDPModule)`` was found true."""
        return self.guards.holds(node, self.index.is_fsdp2_class)

    def is_asked(self, node: cst.CSTNode, depth: int = 0) -> bool:
        """Tell whether the same function asks anywhere if an expression, or its origin, is FSDP1's."""
        if self.is_other_branch(node):
            return False
        held = stands_for(self.index, self.guards, node) if isinstance(node, cst.Name) else ()
        if depth < _MAX_DEPTH and any(self.is_asked(each, depth + 1) for each in held):
            return True
        text, function = text_of(node), self.index.function(node)
        for call in walk_for(function, cst.Call) if function is not None else ():
            if dotted(call.func) == "isinstance" and len(call.args) == 2:
                is_same = text_of(call.args[0].value) == text
                if is_same and self.index.fsdp1(call.args[1].value) == catalog.FSDP:
                    return True
        return False

    def is_other_branch(self, node: cst.CSTNode) -> bool:
        """Tell whether an expression stands where it was found to be none of FSDP1's models."""
        if self.guards.holds(node, self._is_ddp_class) or self.guards.is_without_fsdp(node):
            return True
        return self.guards.is_excluded(node, text_of(node), is_fsdp1_class(self.index))

    def _is_ddp_class(self, asked: cst.CSTNode) -> bool:
        """Tell whether a check asks for DDP's class, or for several such and no other."""
        if isinstance(asked, cst.Tuple):
            return bool(asked.elements) and all(self._is_ddp_class(each.value) for each in asked.elements)
        return isinstance(asked, (cst.Name, cst.Attribute)) and bool(self.index.qualified(asked) & DDP)

    # How facts come about.

    def kinds(self, node: cst.BaseExpression, index: int | str | None = None) -> set[str]:
        """Return what an expression, or the element of its tuple, may be.

        Of models ``fsdp``, ``ddp`` and ``fsdp2``; ``params`` of a list of an FSDP1 model's parameters.
        """
        if isinstance(node, cst.Call):
            return self._kinds_of_call(node, index) or self._kinds_of_parameters(node)
        if isinstance(node, (cst.ListComp, cst.GeneratorExp)):
            return self._kinds_of_parameters(node)
        if isinstance(node, cst.IfExp):
            return self._kinds_of_choice(node, index)
        if isinstance(node, cst.NamedExpr):
            return self.kinds(node.value, index)
        if isinstance(node, (cst.Tuple, cst.List)) and isinstance(index, int) and index < len(node.elements):
            return self.kinds(node.elements[index].value)
        if isinstance(node, cst.Subscript):
            is_unit = gives_fsdp_modules(self.index, node.value)
            return {"fsdp"} if is_unit else self._kinds_of_item(node)
        if isinstance(node, cst.Attribute) and node.attr.value == "_orig_mod":
            return self.kinds(node.value, index)  # of `torch.compile`
        key = self._key(node)
        found = set() if key is None or index is not None else set(self.facts.get(key, ()))
        if not found and index is None and isinstance(node, (cst.Name, cst.Attribute)):
            return {MAKES} if node in self.index.scopes and self.index.fsdp1(node) == catalog.FSDP else set()
        if "fsdp" in found and (self._is_before_wrapping(node) or self.is_other_branch(node)):
            found.discard("fsdp")
        return found

    def _kinds_of_choice(self, node: cst.IfExp, index: int | str | None) -> set[str]:
        """Return what one of two expressions may be: also another, if one makes an object of its own."""
        each = [self.kinds(part, index) for part in (node.body, node.orelse)]
        found = each[0] | each[1]
        if MAKES in found and not all(MAKES in kinds for kinds in each):
            return found | {"other"}  # `(FSDP if sharded else DDP)(net)`
        makes = (part for part, kinds in zip((node.body, node.orelse), each, strict=True) if not kinds)
        calls = [dotted(part.func) or "" for part in makes if isinstance(part, cst.Call)]
        is_other = "fsdp" in found and any(name.split(".")[-1][:1].isupper() for name in calls)
        return found | ({"other"} if is_other else set())

    def is_parameters(self, node: cst.BaseExpression) -> bool:
        """Tell whether an expression holds parameters of an FSDP1 model, in one form or another."""
        return "params" in self.kinds(node)

    def _kinds_of_parameters(self, node: cst.BaseExpression) -> set[str]:
        model = model_of(self.index, node)
        while model is not None:
            if "fsdp" in self.kinds(model):
                return {"params"}
            model = model.value if isinstance(model, cst.Attribute) else None  # a part of a model
        return set()

    def _kinds_of_item(self, node: cst.Subscript) -> set[str]:
        """Return what an item is: a plain module above the statement, of its function, that wraps it."""
        if isinstance(node.value, cst.Call):
            return self.kinds(node.value, item_name(node)) if item_name(node) is not None else set()
        key = self._key(node.value)
        made = self.made.get((key[0], f"{key[1]}[]"), []) if key is not None else []
        same = [each for each in made if text_of(each) == text_of(node)]
        function, order = self.index.function(node), self.index.order
        if same and all(self.index.function(e) is function and order[e] > order[node] for e in same):
            return set()
        by_name = (
            self.facts.get((key[0], f"{key[1]}[{item_name(node)!r}]"), set()) if key is not None else set()
        )
        return self._kinds_of_items(node.value) | by_name

    def _kinds_of_items(self, node: cst.BaseExpression) -> set[str]:
        """Return what items of a list, a dict or a ``ModuleDict`` may be: ``models[name] = FSDP(net)``."""
        key = self._key(node)
        return set() if key is None else set(self.facts.get((key[0], f"{key[1]}[]"), ()))

    def _kinds_of_call(self, call: cst.Call, index: int | str | None) -> set[str]:
        if self.is_constructor(call.func):
            return {"fsdp", "other"} if self.index.is_ambiguous(call.func) else {"fsdp"}
        names = self.index.qualified(call.func)
        if names & FSDP2 or is_partial_of(self.index, call.func, FSDP2):
            return {"fsdp2"}
        if names & DDP:
            return {"ddp"}
        if self.index.fsdp1(call.func) == "wrap" and index is None:
            return {"fsdp", "other"}  # outside of `enable_wrap` it gives back what it is given
        around = next((AROUND_MODEL[name] for name in names if name in AROUND_MODEL), None)
        if around is not None and around < len(call.args) and not call.args[around].star:
            return self.kinds(call.args[around].value)
        found: set[str] = set()
        for name in self._written(call.func, names):
            found |= self.links.gives.get((name, index), frozenset())
        for function in self.guards.functions(call.func):
            found |= self.returns.get((function, index), set())
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in SAME_MODEL:
            found |= self.kinds(call.func.value)
        return found or self._kinds_of_wrapping(call, names, index)

    def _kinds_of_wrapping(self, call: cst.Call, names: set[str], index: int | str | None) -> set[str]:
        """Return what a call gives whose function is the class in disguise, or is given it."""
        if index is not None:
            return set()
        if "functools.partial" in names:
            return {MAKES} & self.kinds(call.args[0].value) if call.args else set()
        made = self.kinds(call.func)
        if MAKES in made:
            return {"fsdp", *made & {"other"}}
        # `wrap_blocks(net, wrapper=FSDP)` of a package that is not seen.
        is_wrapping = _WRAPPING.search((dotted(call.func) or "").split(".")[-1].lower()) is not None
        if not is_wrapping or len(call.args) < 2 or any(self.guards.functions(call.func)):
            return set()
        return {"fsdp", "other"} if any(MAKES in self.kinds(arg.value) for arg in call.args[1:]) else set()

    def _written(self, func: cst.BaseExpression, names: set[str]) -> set[str]:
        """Return the names under which other files may say what a call gives."""
        text = dotted(func) if self.links else None
        owner = self.index.class_of(func) if text is not None and text.startswith(("self.", "cls.")) else None
        if owner is not None:
            return {f"{self.index.path_of(owner)}:{text}"}
        is_free = isinstance(func, cst.Name) and not names and not self.index.bindings_of(func)
        return {func.value} if is_free and isinstance(func, cst.Name) else names

    def is_constructor(self, func: cst.CSTNode) -> bool:
        """Tell whether calling an expression makes an FSDP1 model: the class, a subclass, a partial of it."""
        if self.index.fsdp1(func) == catalog.FSDP:
            return True
        if not isinstance(func, cst.Name) or func not in self.index.scopes:
            return False
        return any(makes_fsdp(self.index, each) for each in self.index.scopes[func].lookup(func.value))

    def _key(self, node: cst.CSTNode) -> Key | None:
        text = dotted(node)
        if text is None:
            return None
        root = text.split(".")[0]
        if root in {"self", "cls"} and root != text:
            owner: cst.CSTNode | None = self.index.class_of(node)
            return None if owner is None else (owner, text)
        scope = self.index.scopes.get(node)
        found = scope.find(root) if scope is not None else None
        return None if found is None else (found.node, text)

    def _add(self, key: Key | None, kinds: set[str]) -> None:
        if key is not None and kinds:
            self.facts.setdefault(key, set()).update(kinds)

    def _note_annotations(self) -> None:
        for scope in set(self.index.scopes.values()):
            for name, bindings in scope.bindings.items():
                for binding in bindings:
                    param = binding.node
                    annotation = param.annotation if isinstance(param, cst.Param) else None
                    if annotation is None:
                        if binding.kind == "param" and name in _NAMED and self._has_the_class:
                            self._add_given((scope.node, name), {"fsdp"})
                        continue
                    if self.index.fsdp1(annotation.annotation) == catalog.FSDP:
                        self._add((scope.node, name), {"fsdp"})
                        self.given.add((scope.node, name))
                    elif self.index.qualified(annotation.annotation) & FSDP2:
                        self._add((scope.node, name), {"fsdp2"})

    @functools.cached_property
    def _has_the_class(self) -> bool:
        """Whether the source imports FSDP1's class, and nothing of FSDP2's."""
        every = (each for bindings in self.index.scope.bindings.values() for each in bindings)
        names = {each.qualified for each in every if each.qualified is not None}
        return not names & FSDP2 and any(catalog.fsdp1_name(name) == catalog.FSDP for name in names)

    def _note_evidence(self) -> None:
        """Note what is given to FSDP1's functions as a model: it is sharded in all of its scope.

        What stands below a check or a switch of FSDP's says so of its branch alone.
        """
        for node in self.index.by_kind.get(cst.Call, ()):
            assert isinstance(node, cst.Call)
            known = (self.index.fsdp1(node.func) or "").removeprefix(f"{catalog.FSDP}.")
            if known not in catalog.MODEL_FUNCTIONS or not node.args:
                continue
            model = model_argument(node, catalog.MODEL_FUNCTIONS[known])
            key = self._key(model) if model is not None else None
            if key is not None and not any(_speaks_of_fsdp(test) for test, _ in self.guards.facts(node)):
                self._add(key, {"fsdp"})
                self.evidence.setdefault(key, []).append(node)

    def _note_links(self) -> None:
        """Note what other files give to the functions and classes of this one."""
        if not self.links.is_given:
            return
        definitions = (self.index.by_kind.get(kind, ()) for kind in (cst.FunctionDef, cst.ClassDef))
        for node in (self.index.module, *itertools.chain(*definitions)):
            name = self.index.path_of(node)
            for (scope, text), kinds in self.links.is_given.items():
                if scope == name:
                    self._add((node, text), set(kinds))
                    self.given.add((node, text))

    def _pass(self) -> None:
        for kind in (cst.Assign, cst.AnnAssign, cst.NamedExpr):
            for node in self.index.by_kind.get(kind, ()):
                self._follow_assignment(node)
        for node in (*self.index.by_kind.get(cst.For, ()), *self.index.by_kind.get(cst.CompFor, ())):
            self._follow_loop(node)
        for node in self.index.by_kind.get(cst.Return, ()):
            self._follow_return(node)
        for node in self.index.by_kind.get(cst.Call, ()):
            self._follow_call(node)

    def _follow_assignment(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Assign):
            for target in node.targets:
                self._assign(target.target, node.value, None)
        elif isinstance(node, (cst.AnnAssign, cst.NamedExpr)) and node.value is not None:
            self._assign(node.target, node.value, None)

    def _assign(self, target: cst.BaseExpression, value: cst.BaseExpression, index: int | None) -> None:
        if isinstance(target, (cst.Tuple, cst.List)):
            for place, element in enumerate(target.elements):
                self._assign(element.value, value, place if index is None else index)
        elif isinstance(target, (cst.Name, cst.Attribute)):
            key, kinds = self._key(target), self.kinds(value, index)
            self._add(key, kinds)
            if key is not None and index is None:
                for name, held in list(self._named_items(value)):
                    self._add((key[0], f"{key[1]}[{name!r}]"), held)
            if key is not None and "fsdp" in kinds and target not in self.made.setdefault(key, []):
                self.made[key].append(target)
        elif isinstance(target, cst.Subscript):
            key = self._key(target.value)
            items, kinds = None if key is None else (key[0], f"{key[1]}[]"), self.kinds(value, index)
            self._add(items, kinds)
            if "fsdp" in kinds and isinstance(target.value, cst.Attribute):
                self._note_whole(target.value.value)  # `model.layers[i] = FSDP(model.layers[i])`
            if items is not None and "fsdp" in kinds and target not in self.made.setdefault(items, []):
                self.made[items].append(target)

    def _follow_loop(self, node: cst.CSTNode) -> None:
        """Note what ``for m in FSDP.fsdp_modules(model)``, or ``in models.values()``, goes through."""
        assert isinstance(node, (cst.For, cst.CompFor))
        target: cst.CSTNode = node.target
        over = node.iter
        if isinstance(over, cst.Call) and dotted(over.func) == "zip" and isinstance(target, cst.Tuple):
            for each, arg in zip(target.elements, over.args, strict=False):
                self._add_given(self._key(each.value), self._kinds_of_each(arg.value))
        kinds = self._kinds_of_each(over)
        if isinstance(over, cst.Call) and isinstance(over.func, cst.Attribute) and not over.args:
            if over.func.attr.value in {"items", "values"}:
                kinds = self._kinds_of_items(over.func.value)
            if (
                over.func.attr.value == "items"
                and isinstance(target, cst.Tuple)
                and len(target.elements) == 2
            ):
                target = target.elements[1].value
        self._add_given(self._key(target), kinds)

    def _add_given(self, key: Key | None, kinds: set[str]) -> None:
        self._add(key, kinds)
        if key is not None and "fsdp" in kinds:
            self.given.add(key)

    def _kinds_of_each(self, over: cst.BaseExpression) -> set[str]:
        if isinstance(over, (cst.List, cst.Tuple)):
            return {kind for each in over.elements for kind in self.kinds(each.value)}
        return {"fsdp"} if gives_fsdp_modules(self.index, over) else self._kinds_of_items(over)

    def _follow_return(self, node: cst.CSTNode) -> None:
        function = self.index.function(node)
        if function is None or not isinstance(node, cst.Return) or node.value is None:
            return
        places: list[int | None] = [None]
        if isinstance(node.value, cst.Tuple):
            places = list(range(len(node.value.elements)))
        elif isinstance(node.value, cst.Call):
            # What another function returns may be a tuple, whose size is not seen here.
            places += range(4)
        each: dict[int | str | None, set[str]] = {place: self.kinds(node.value, place) for place in places}
        for name, kinds in (*each.items(), *self._named_items(node.value)):
            if kinds:
                self.returns.setdefault((function, name), set()).update(kinds)

    def _named_items(self, node: cst.BaseExpression) -> Iterator[tuple[str, set[str]]]:
        """Yield what is known of a dict's items, by their names: of one that stands here, or has a name."""
        yield from ((name, self.kinds(item)) for name, item in named_items(node))
        key = self._key(node)
        start = f"{key[1]}['" if key is not None else ""
        for (scope, text), kinds in list(self.facts.items()) if key is not None else ():
            if key is not None and scope is key[0] and text.startswith(start):
                yield text[len(start) : -2], kinds
        if isinstance(node, cst.Call):
            gives = self._written(node.func, self.index.qualified(node.func))
            yield from (
                (i, set(k)) for (w, i), k in self.links.gives.items() if w in gives and isinstance(i, str)
            )
            made = set(self.guards.functions(node.func))
            yield from (
                (i, k) for (f, i), k in list(self.returns.items()) if f in made and isinstance(i, str)
            )

    def _note_whole(self, node: cst.BaseExpression) -> None:
        """Note that a model has parts that are wrapped, whether it is wrapped itself or not."""
        key = self._key(node)
        if key is not None and node not in self.made.setdefault(key, []):
            self._add(key, {"fsdp", "other"})
            self.made[key].append(node)

    def _follow_call(self, node: cst.CSTNode) -> None:
        assert isinstance(node, cst.Call)
        whole, part = put_into(node)
        if whole is not None and part is not None and "fsdp" in self.kinds(part):
            self._note_whole(whole)
        for function in self.guards.functions(node.func):
            params = [param.name.value for param in function.params.params]
            if isinstance(node.func, cst.Attribute) and params[:1] in (["self"], ["cls"]):
                params = params[1:]
            keywords = {*params, *(param.name.value for param in function.params.kwonly_params)}
            for place, arg in enumerate(node.args):
                if arg.star:
                    break
                name = arg.keyword.value if arg.keyword else (params[place] if place < len(params) else "")
                if name in keywords:
                    self._add((function, name), self.kinds(arg.value))
                    if "fsdp" in self.kinds(arg.value):
                        self.given.add((function, name))


def _speaks_of_fsdp(test: cst.BaseExpression) -> bool:
    return "fsdp" in text_of(test).lower()
