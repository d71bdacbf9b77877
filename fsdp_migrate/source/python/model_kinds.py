"""What expressions are, and what they hold, by the facts of :mod:`~fsdp_migrate.source.python.models`."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.asked_classes import asks_among_others, is_fsdp1_among, is_fsdp1_class
from fsdp_migrate.source.python.asserted_off import is_asserted_off
from fsdp_migrate.source.python.bound_anew import (
    are_all_bound,
    is_bound_anew,
    is_made_anew,
    is_wrapped_between,
    stands_above,
    was_just_made,
    was_just_wrapped_by_ddp,
    was_put_there,
)
from fsdp_migrate.source.python.by_name import bound_name, of_own_names, part_read, read_by_name, set_in_dict
from fsdp_migrate.source.python.containers import given_by, held_by, is_slice, of_own_dict, step_of
from fsdp_migrate.source.python.evidence import is_off
from fsdp_migrate.source.python.frameworks import Frameworks, by_whom
from fsdp_migrate.source.python.fsdp2_branches import ShardedByFSDP2
from fsdp_migrate.source.python.given_plain import is_given_plain
from fsdp_migrate.source.python.handed_back import gives_plain
from fsdp_migrate.source.python.held import (
    EACH,
    attribute,
    has_model,
    put,
    taken,
    tensors,
    whole,
    without_models,
)
from fsdp_migrate.source.python.last_values import assigned_at, stands_for
from fsdp_migrate.source.python.left_branches import is_left_out
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.python.loops import item_of, kinds_of_targets, loop_of, names_items_of, of_one_object
from fsdp_migrate.source.python.made_before import made_before, of_its_model, optimizers_made
from fsdp_migrate.source.python.made_by_others import maker_of
from fsdp_migrate.source.python.makers import (
    chosen,
    given_here,
    gives_fsdp_modules,
    is_constructor,
    is_partial_of,
    is_wrapping,
    of_around,
    of_wrapping,
)
from fsdp_migrate.source.python.named_anew import is_named_anew
from fsdp_migrate.source.python.nodes import dotted, last_name, model_argument, text_of, walk_for
from fsdp_migrate.source.python.optimizers import made_by
from fsdp_migrate.source.python.own_parts import is_held_otherwise, of_its_wrapper
from fsdp_migrate.source.python.parameters import is_list_of
from fsdp_migrate.source.python.parameters_told import given_apart, given_by_functions, kinds_of_parameters
from fsdp_migrate.source.python.run_order import places_run
from fsdp_migrate.source.python.strategy_classes import StrategyClasses
from fsdp_migrate.source.python.wrappers import FSDP2, INNERS, MAKES, SAME_MODEL, around_model, of_others


if TYPE_CHECKING:
    from fsdp_migrate.source.python.by_name import Named
    from fsdp_migrate.source.python.guards import Guards
    from fsdp_migrate.source.python.links import Links
    from fsdp_migrate.source.python.made_before import Made
    from fsdp_migrate.source.python.never_run import NeverRun
    from fsdp_migrate.source.python.scopes import Index
    from fsdp_migrate.source.python.shown_here import ShownHere
    from fsdp_migrate.source.python.switches import Switches


Certainty = Literal["certain", "mixed"]
"""Of an expression: only ever FSDP1's or a plain module, or one that other wrappers hold as well."""

Key = tuple[cst.CSTNode, str]

_MAX_DEPTH = 2


@dataclass(eq=False)
class ModelKinds:
    """Answers what expressions are, by what is known of names."""

    index: Index
    links: Links = NOTHING
    """What other files of the project say of this one."""
    plain_above: frozenset[cst.CSTNode] = frozenset()
    """What other files show that the same function shards below."""
    facts: dict[Key, set[str]] = field(default_factory=dict)
    made: dict[Key, list[cst.CSTNode]] = field(default_factory=dict)
    """The targets of the assignments by which a name becomes a model."""
    added: dict[Key, list[cst.CSTNode]] = field(default_factory=dict)
    """Where something is put into a list or a dict that holds models."""
    given: set[Key] = field(default_factory=set)
    """Names that are models from elsewhere: by a call's argument, or by an annotation."""
    returns: dict[cst.CSTNode, set[str]] = field(default_factory=dict)
    """What a function gives."""
    attributes: dict[cst.CSTNode, set[str]] = field(default_factory=dict)
    """The attributes of a class's objects, of which something is known: ``self.model``."""
    wholes: dict[Key, set[str]] = field(default_factory=dict)
    """Of models with parts that are wrapped: the attributes that hold these, ``*`` for any."""
    sets_any_name: set[cst.CSTNode] = field(default_factory=set)
    """The classes that put models into attributes whose names are known only when it runs."""
    evidence: dict[Key, list[cst.Call]] = field(default_factory=dict)
    """The calls that show a name to be a model: FSDP1's functions, and the method that it alone has."""
    inner: dict[Key, list[cst.CSTNode]] = field(default_factory=dict)
    """The names of what calls shard in place, and where: ``net`` of ``model = FSDP(net)``."""
    guards: Guards = field(kw_only=True)
    """What checks for the class make sure."""
    shown_here: ShownHere = field(init=False)
    switches: Switches = field(init=False)
    """Where a switch is off that decides on the wrapping."""
    never: NeverRun = field(init=False)
    _known: dict[cst.CSTNode, set[str]] = field(default_factory=dict, repr=False)
    """What expressions were found to be since facts were last looked for."""

    def certainty(self, node: cst.CSTNode) -> Certainty | None:
        """Tell whether an expression is an FSDP1 model, as far as this source shows."""
        if not isinstance(node, cst.BaseExpression):
            return None
        kinds = whole(self.kinds(node))  # first: most are no model, and the rest is slow
        if "fsdp" not in kinds or self.is_before_wrapping(node):
            return None
        # In another branch parts of it may be wrapped, where it stays itself.
        is_ddps = was_just_wrapped_by_ddp(self.index, node) and self.key_of(node) not in self.wholes
        if is_ddps or self.is_other_branch(node):
            return None
        return "certain" if kinds == {"fsdp"} else "mixed"

    def is_before_wrapping(self, node: cst.BaseExpression) -> bool:
        """Tell whether a name is used before the statements, of the same function, that make it a model.

        ``net.load_state_dict(x)`` above ``net = FSDP(net)`` is about the plain module.
        """
        key = self.key_of(node)
        if key is None or self.frameworks.is_trained(node):
            return False
        is_new = is_made_anew(self.index, node, self.made.get(key, ()), self.inner.get(key, ()))
        if is_new or node in self.plain_above or self._is_bound_anew(node, key):
            return True
        if key in self.given:
            return self._is_wrapped_below(node)
        made = self.made.get(key, [])
        if not made:
            evidence = self.evidence.get(key, ())
            return bool(evidence) and all(self._is_other_case(each, node) for each in evidence)
        return all(stands_above(self.index, made, place) for place in places_run(self.index, node, key[0]))

    def _is_wrapped_below(self, node: cst.BaseExpression) -> bool:
        """Tell whether the same function wraps what it is given, below a place and in any case."""
        function, order, text = self.index.function(node), self.index.order, text_of(node)
        for call, model in self._wrappings:
            if model == text and order[call] > order[node] and self.index.function(call) is function:
                known = {test for test, _ in self.guards.facts(node)}
                if all(test in known for test, _ in self.guards.facts(call)):
                    loops = (a for a in self.index.ancestors(call) if isinstance(a, (cst.For, cst.While)))
                    return {*of_one_object(self.index, node)}.isdisjoint(loops)
        return False

    @functools.cached_property
    def _wrappings(self) -> list[tuple[cst.Call, str]]:
        """The calls that make FSDP1 models, and what each is given."""
        calls = [cst.ensure_type(node, cst.Call) for node in self.index.by_kind.get(cst.Call, ())]
        made = ((call, model_argument(call, 0)) for call in calls if self.is_constructor(call.func))
        return [(call, text_of(model)) for call, model in made if model and not self.never.holds(call)]

    def _is_other_case(self, shows: cst.Call, node: cst.BaseExpression) -> bool:
        """Tell whether a place is reached only where what a call shows of a model does not hold."""
        if self.index.excludes(shows, node) or is_off(self.guards, shows, node):
            return True
        return is_wrapped_between(self.index, node, shows)

    def is_inner(self, node: cst.BaseExpression) -> bool:
        """Tell whether it is a name of what the wrapper of FSDP1, or a framework, held: ``FSDP(net)``."""
        return (key := self.key_of(node)) in self.inner and {*self.made.get(key, ())} <= {*self.inner[key]}

    def _is_bound_anew(self, node: cst.BaseExpression, key: Key) -> bool:
        models = {text for (_, text), kinds in self.facts.items() if "fsdp" in kinds}
        made = [*self.made.get(key, ()), *self.evidence.get(key, ()), *self.added.get(key, ())]
        # `guide = Guide()`, and then `guide.core = FSDP(guide.core)`: it holds that one.
        for (scope, text), targets in self.made.items():
            made += targets if scope is key[0] and text.startswith(f"{key[1]}.") else ()
        return is_bound_anew(self.index, node, made, models) or is_named_anew(self, node)

    @property
    def names_made(self) -> set[str]:
        """The last parts of the names that are made FSDP1 models here."""
        made = (key for key, targets in self.made.items() if targets and "fsdp" in self.facts.get(key, ()))
        return {text.rpartition(".")[2] for _, text in made}

    def is_unknown(self, node: cst.BaseExpression) -> bool:
        """Tell whether nothing here says what an expression is."""
        return not whole(self.kinds(node))

    def is_fsdp2(self, node: cst.BaseExpression) -> bool:
        """Tell whether an expression is a model that FSDP2 has sharded, and none of FSDP1's."""
        return {"fsdp", "fsdp2"} & self.kinds(node) == {"fsdp2"}

    def is_guarded(self, node: cst.CSTNode) -> bool:
        """Tell whether an expression stands where ``isinstance(it, FSDP)`` was true, or a call shows that."""
        return self.guards.holds(node, is_fsdp1_class(self.index)) or self.shown_here.is_shown(node)

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
            asked = call.args if dotted(call.func) == "isinstance" else ()
            is_same = bool(asked) and text_of(asked[0].value) == text
            if is_same and self.index.fsdp1(asked[-1].value) == catalog.FSDP:
                return True
        return False

    @functools.cached_property
    def _fsdp2(self) -> ShardedByFSDP2:
        return ShardedByFSDP2(self.index)

    @functools.cached_property
    def strategies(self) -> StrategyClasses:
        """The classes each of which wraps models in its own way."""
        return StrategyClasses(self.index, self.links.derived_elsewhere)

    @functools.cached_property
    def optimizers(self) -> Made:
        """The names that are bound to optimizers, by their texts."""
        return optimizers_made(self.index)

    @functools.cached_property
    def frameworks(self) -> Frameworks:
        """The models that frameworks shard."""
        return Frameworks(self.index, self.links, self.guards)

    def sharded_by(self, node: cst.BaseExpression) -> str:
        """Return the framework that shards a model, such as ``fabric``; nothing where the source does it."""
        return by_whom(self.kinds(node))

    @functools.cached_property
    def are_by_frameworks(self) -> bool:
        """Whether every model that is known here is one that a framework shards, where it is asked to."""
        known = [kinds for kinds in self.facts.values() if "fsdp" in kinds]
        return all(map(by_whom, known)) and not self._wrappings and (bool(known) or self.frameworks.are_used)

    def _is_not_run(self, node: cst.CSTNode) -> bool:
        """Tell whether it is an attribute in a method in whose place a class that shards it has its own."""
        if not self.links.not_run or not (dotted(node) or "").startswith("self."):
            return False
        function, key = self.index.function(node), self.key_of(node)
        is_its_own = key is None or bool(self.made.get(key))
        return not is_its_own and function is not None and self.index.path_of(function) in self.links.not_run

    def is_other_branch(self, node: cst.CSTNode) -> bool:
        """Tell whether an expression stands where it was found to be none of FSDP1's models."""
        if self._fsdp2.is_given(node) or self._is_not_run(node) or is_left_out(self.guards, self.links, node):
            return True
        guards, text = self.guards, text_of(node)
        if guards.is_of_other_wrapper(node) or guards.is_without_fsdp(node) or guards.is_no_module(node):
            return True
        if is_held_otherwise(self, node) or is_asserted_off(self, node) or is_given_plain(self, node):
            return True
        if self.strategies.is_plain(node) or guards.is_excluded(node, text, is_fsdp1_among(self.index)):
            return True
        return isinstance(node, cst.BaseExpression) and self.is_plain_at(node, node)

    def is_plain_at(self, model: cst.BaseExpression, place: cst.CSTNode) -> bool:
        """Tell whether the switch is off at a place by which a model is wrapped, and shown to be sharded."""
        key = self.key_of(model)
        made = self.made.get(key, []) if key is not None and key not in self.given else []
        if key is None or not made:
            return False
        shown = () if are_all_bound(self.index, model, made) else self.evidence.get(key, ())
        return self.switches.is_off(place, key[0], [*made, *shown])

    def kinds(self, node: cst.BaseExpression) -> set[str]:
        """Return what an expression may be, and what it may hold, behind the steps of :mod:`held`.

        Of models ``fsdp``, ``ddp`` and ``fsdp2``; ``params`` of a list of an FSDP1 model's parameters.
        """
        if (known := self._known.get(node)) is None:
            known = self._known[node] = self._find_kinds(node)
        return known

    def _find_kinds(self, node: cst.BaseExpression) -> set[str]:
        if type(node) is cst.Name or type(node) is cst.Attribute:  # most are; other questions are slower
            return self._kinds_of_name(node)
        if isinstance(node, cst.Call):
            named = read_by_name(node)
            found = self._kinds_of_call(node) if named is None else self._kinds_by_name(node, named)
            found = found or of_own_names(self, node)
            found = found if found - tensors(found) else kinds_of_parameters(self, node) or found
            return found or given_apart(self, node) or made_by(self, node)
        if isinstance(node, cst.IfExp):
            return chosen([(part, self.kinds(part)) for part in (node.body, node.orelse)])
        if isinstance(node, cst.BooleanOperation):
            parts = (node.left, node.right) if isinstance(node.operator, cst.Or) else (node.right,)
            return chosen([(part, self.kinds(part)) for part in parts])
        if isinstance(node, (cst.Await, cst.NamedExpr)):
            return self.kinds(node.expression if isinstance(node, cst.Await) else node.value)
        if isinstance(node, cst.Subscript):
            return self._kinds_of_item(node)
        return (is_list_of(node) and kinds_of_parameters(self, node)) or held_by(self.kinds, node)

    def _kinds_of_name(self, node: cst.Name | cst.Attribute) -> set[str]:
        if type(node) is cst.Attribute and node.attr.value in INNERS:
            return self.kinds(node.value) - INNERS[node.attr.value]
        if type(node) is cst.Attribute and node.attr.value in catalog.WRAPPED:
            inner = self.kinds(node.value)
            if "fsdp" in inner:
                return inner  # of FSDP1's wrapper
        key = self.key_of(node)
        found = set() if key is None else set(self.facts.get(key, ()))
        if type(node) is cst.Attribute and node.attr.value == "__dict__":
            found |= of_own_dict(self, node)
        if type(node) is cst.Attribute:
            found |= taken(attribute(node.attr.value), self.kinds(node.value))
        if not whole(found) and (theirs := self.frameworks.of_name(node)):
            is_here = not self.is_other_branch(node) and not self.frameworks.is_elsewhere(theirs, node)
            return found | theirs if is_here else without_models(found | theirs)
        found = self._by_its_class(node, found)
        if not found:
            is_class = node in self.index.scopes and self.index.fsdp1(node) == catalog.FSDP
            return {MAKES} if is_class else made_before(self, self.optimizers, node)
        found = of_its_model(self, self.optimizers, node, found)
        if has_model(found) and key is not None:
            found = self._of_its_loop(node, key, of_its_wrapper(self, node, found))
        if has_model(found) and self._is_not_here(found, node):
            # By what shards it below alone, nothing is known of it above.
            is_known = key in self.given or not self.is_inner(node)
            found = without_models(found) if is_known else without_models(found - {"other"})
        return found

    def _by_its_class(self, node: cst.Name | cst.Attribute, found: set[str]) -> set[str]:
        """Return what a name is in a class that shards models itself, whatever other classes are given."""
        if found and not {"fsdp", "other"} & found:
            return found
        if not self.strategies.is_sharded(node):
            return found
        if found:
            return found - {"ddp", "other"} | {"fsdp"}
        # Where no call is seen that gives a model, it may be one that is not sharded yet.
        return set() if self.strategies.is_run_by_itself(node) else {"fsdp", "other"}

    def _kinds_by_name(self, call: cst.Call, named: Named) -> set[str]:
        """Return what ``getattr(self, "model", None)`` is, as ``self.model``, or what stands for it."""
        inner, key = self.kinds(named.owner), self.key_of(call)
        found = set(self.facts.get(key, ())) if key is not None else set()
        found |= taken(attribute(named.name), inner)
        found |= whole(inner) if named.name in {*catalog.WRAPPED, "_orig_mod"} and "fsdp" in inner else set()
        found = without_models(found) if has_model(found) and self._is_not_here(found, call) else found
        return found | (self.kinds(named.value) if named.value is not None else set())

    def _is_not_here(self, found: set[str], node: cst.BaseExpression) -> bool:
        if self.is_before_wrapping(node) or self.is_other_branch(node):
            return True
        return self.frameworks.is_elsewhere(found, node)

    def _of_its_loop(self, node: cst.Name | cst.Attribute, key: Key, found: set[str]) -> set[str]:
        """Return what a name is in the loop that it is the target of: another loop may use the same name."""
        loop = loop_of(self.index, node) if isinstance(node, cst.Name) else None
        if loop is None or key in self.evidence:
            return found
        if any(loop in set(self.index.ancestors(each)) for each in self.made.get(key, ())):
            return found
        kinds = self._kinds_of_targets(loop)
        return next((known for each, known in kinds if self.key_of(each) == key), without_models(found))

    def sharded_with(self, node: cst.BaseExpression) -> cst.BaseExpression | None:
        """Return the model that an expression is a part of, and sharded with: ``model`` of ``model.head``.

        Where other parts alone are wrapped, ``model.layers[i] = FSDP(model.layers[i])``, the rest is plain,
        and so is what the project tells FSDP to ignore wherever it shards.
        """
        if (read := part_read(node)) is None:
            return item_of(self.index, node)
        owner, name = read
        key = self.key_of(owner)
        parts = {"*"} if key is None or key in self.given else self.wholes.get(key, {"*"})
        is_plain = parts.isdisjoint({"*", name}) and not self._is_made(key)
        is_plain = is_plain or name in self.links.ignored
        is_put = isinstance(node, cst.Attribute) and was_put_there(self.index, node, self._made_at(owner))
        return None if is_plain or is_put else owner

    def _made_at(self, node: cst.BaseExpression) -> list[cst.CSTNode]:
        """Return where a model, or what it is a part of, is given a sharded one: ``model.module.lm``."""
        while (key := self.key_of(node)) not in self.made and isinstance(node, cst.Attribute):
            node = node.value
        return self.made.get(key, []) if key is not None else []

    def _is_made(self, key: Key | None) -> bool:
        """Tell whether a name is given a sharded model, and not ``pair = Pair()``, which holds one."""
        made_at = self.made.get(key, ()) if key is not None else ()
        values = filter(None, (assigned_at(self.index, each) for each in made_at))
        return any("fsdp" in self.kinds(each) for each in values)

    def is_wrapped_in_parts_alone(self, node: cst.BaseExpression) -> bool:
        """Tell whether parts of a module are wrapped here, ``ffn.experts[e] = FSDP(...)``, and it is not."""
        key = self.key_of(node)
        if key not in self.wholes or key in self.given or self._is_made(key):
            return False
        # What another loop goes through by the same name may be wrapped by then.
        loop = loop_of(self.index, node) if isinstance(node, cst.Name) else None
        return loop is None or any(loop in {*self.index.ancestors(each)} for each in self.made.get(key, ()))

    def is_parameters(self, node: cst.BaseExpression) -> bool:
        """Tell whether an expression holds parameters of an FSDP1 model, in one form or another."""
        return "params" in self.kinds(node)

    def _kinds_of_item(self, node: cst.Subscript) -> set[str]:
        """Return what an item is: a plain module above the statement, of its function, that wraps it."""
        if last_name(node.value) == "__dict__" or set_in_dict(node) is not None:
            return set(self.facts.get(own, ())) if (own := self.key_of(node)) is not None else set()
        kinds = self.kinds(node.value)
        if not kinds:
            return set()
        if is_slice(node):
            return put(EACH, taken(EACH, kinds))
        key = self.key_of(node.value)
        made = self.made.get((key[0], f"{key[1]}[]"), []) if key is not None else []
        index, same = self.index, [each for each in made if text_of(each) == text_of(node)]
        here, place = index.function(node), index.order[node]
        if same and all(index.function(e) is here and index.order[e] > place for e in same):
            return set()
        found = set() if made and was_just_made(index, node, made) else taken(step_of(node), kinds)
        return without_models(found) if self.frameworks.is_launched_otherwise(found, node) else found

    def _kinds_of_call(self, call: cst.Call) -> set[str]:
        if self.is_constructor(call.func):
            return of_wrapping(self.index, call)
        names = self.index.qualified(call.func)
        if names & FSDP2 or is_partial_of(self.index, call.func, FSDP2):
            return {"fsdp2"}
        if others := set().union(*map(of_others, names or {dotted(call.func) or ""})):
            return others
        # Outside of `enable_wrap` it gives back what it is given; another package's model stays FSDP1's.
        if self.index.fsdp1(call.func) == "wrap" or maker_of(call, names):
            return {"fsdp", "other"}
        if gives_fsdp_modules(self.index, call):
            return {f"{EACH}>fsdp"}
        if (inner := around_model(call, names)) is not None:
            return of_around(self, call, inner, names)
        unwrapped = self.frameworks.unwraps(call)
        found = self.kinds(unwrapped) if unwrapped is not None else self.frameworks.of_call(call)
        found |= given_by_functions(self, call)
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in SAME_MODEL:
            found |= whole(self.kinds(call.func.value))
        found = found or given_by(self, call) or self._kinds_of_wrapping(call, names)
        is_plain = bool(found) and gives_plain(self.guards, call, self.links.plain_calls)
        return without_models(found) if is_plain else found

    def _kinds_of_wrapping(self, call: cst.Call, names: set[str]) -> set[str]:
        """Return what a call gives whose function is the class in disguise, or is given it."""
        if "functools.partial" in names:
            return {MAKES} & self.kinds(call.args[0].value) if call.args else set()
        if dotted(call.func) == "map" and len(call.args) > 1:
            func = call.args[0].value
            made, given = self.kinds(func), given_here(self, func)
            given = self.kinds(func.body) if isinstance(func, cst.Lambda) else given
            return put(EACH, {"fsdp"}) if MAKES in made or "fsdp" in given else set()
        made = self.kinds(call.func)
        if MAKES in made:
            return {"fsdp", *made & {"other"}}
        if not is_wrapping(call) or any(self.guards.functions(call.func)):
            return set()
        return {"fsdp", "other"} if any(MAKES in self.kinds(arg.value) for arg in call.args[1:]) else set()

    def is_constructor(self, func: cst.CSTNode) -> bool:
        """Tell whether calling an expression makes an FSDP1 model: the class, a subclass, a partial of it."""
        return is_constructor(self.index, func)

    def key_of(self, node: cst.CSTNode) -> Key | None:
        """Return under what facts about a name are kept: where it, or its object, is bound, and its text."""
        return bound_name(self.index, node)

    def _kinds_of_targets(self, loop: cst.For | cst.CompFor) -> list[tuple[cst.BaseExpression, set[str]]]:
        kinds = self.kinds(loop.iter)
        if not kinds or names_items_of(loop):
            return []
        return list(kinds_of_targets(loop.target, taken(EACH, kinds)))
