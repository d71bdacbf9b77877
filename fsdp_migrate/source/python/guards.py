"""What a check such as ``isinstance(model, FSDP)`` makes true elsewhere: in its branches, and behind them."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.accelerate_models import asks_for_launch, fsdp_said
from fsdp_migrate.source.python.asked_classes import (
    IS_DATACLASS,
    MAY_SHARD,
    answer_of,
    asks_each,
    compares_type,
    is_fsdp1_among,
    is_of_modules,
    is_of_no_models,
    is_other_wrapper,
)
from fsdp_migrate.source.python.asked_words import (
    DDP,
    DDPS_SWITCH,
    FSDP,
    SWITCHES,
    are_settings_none,
    is_case,
    is_on_for_ddp,
    says_off,
    was_done,
)
from fsdp_migrate.source.python.chosen_functions import is_chosen_there, places_chosen
from fsdp_migrate.source.python.handed_back import check_or_none
from fsdp_migrate.source.python.last_values import calls_by_function, functions_called, last_value
from fsdp_migrate.source.python.made_sure import asks_class, left_over, made_sure, ruled_out
from fsdp_migrate.source.python.match_patterns import asked_by_case
from fsdp_migrate.source.python.nodes import dotted, last_name, placed_parameters, text_of, walk_for
from fsdp_migrate.source.python.sole_holders import SoleHolder, absent_names, name_of_none, sole_holder


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fsdp_migrate.source.python.scopes import Index

    IsClass = Callable[[cst.CSTNode], bool]
    Fact = tuple[cst.BaseExpression, bool]
    Facts = tuple[tuple[Fact, ...], cst.FunctionDef | None]
    Sure = tuple[cst.CSTNode, cst.BaseExpression, bool]


_MAX_DEPTH = 3
_SHARDED = re.compile(r"^[\w-]*(fsdp|hsdp|shard|zero_?[123])[\w-]*$")
_ARGUMENT = re.compile(rf"^-*(?:fsdp_)?(?:{'|'.join(catalog.CONSTRUCTOR_ARGUMENTS)})$")
_STRATEGIES = frozenset({"full_shard", "hybrid_shard", "no_shard", "shard_grad_op"})
_GIVE_STATES = frozenset({"full_state_dict", "get_model_state_dict"})
_COMPREHENSIONS = (cst.ListComp, cst.SetComp, cst.GeneratorExp, cst.DictComp)
_TELL = frozenset(
    {
        *(cst.If, cst.IfExp, cst.While, cst.BooleanOperation, *_COMPREHENSIONS),
        *(cst.IndentedBlock, cst.MatchCase, cst.Module, cst.FunctionDef, cst.ClassDef),
    }
)
"""What a node can stand in that tells something of it."""


@dataclass(frozen=True, eq=False)
class Guards:
    """Answers where in a source a check for a class was found true, or false. Reads only."""

    index: Index
    wrappers: frozenset[str] = frozenset()
    """Wrappers' classes of other files, that are none of FSDP1's."""
    given: frozenset[str] = frozenset()
    """Functions that other files give sharded models."""
    is_unsharded: Callable[[cst.CSTNode], bool] | None = None
    """Tells whether a place runs only where the project makes no sharded model, if any does."""
    _without: dict[cst.FunctionDef, bool] = field(default_factory=dict, repr=False)
    _facts: dict[int, Facts] = field(default_factory=dict, repr=False)
    """By the nodes of this source what is known where they stand: many ask of the same."""
    _cases: dict[cst.MatchCase, tuple[Fact, ...]] = field(default_factory=dict, repr=False)
    _chosen: dict[cst.FunctionDef, tuple[Fact, ...]] = field(default_factory=dict, repr=False)
    _sure: dict[int, list[Sure]] = field(default_factory=dict, repr=False)
    """By the blocks of this source what their statements make sure for those below."""

    def holds(self, node: cst.CSTNode, is_class: IsClass) -> bool:
        """Tell whether an expression stands where it was found to be of a class."""
        text = text_of(node)
        return any(self._says(test, text, is_class, want=truth) for test, truth in self.facts(node))

    def holds_within(self, node: cst.CSTNode, is_class: IsClass) -> bool:
        """Tell whether an expression stands where it, or a module in it, was found to be of a class."""
        text = text_of(node)
        asked = ((test, truth) for test, truth in self.facts(node))
        return any(self._says(test, text, is_class, want=truth, within=True) for test, truth in asked)

    def is_excluded(self, node: cst.CSTNode, text: str, is_class: IsClass) -> bool:
        """Tell whether a place is reached only where an expression was found to be of another class."""
        if any(self._lacks(test, text, is_class, truth=truth) for test, truth in self.facts(node)):
            return True
        return self._is_excluded_by_state(node, text, is_class)

    def excludes(self, test: cst.BaseExpression, text: str, *, truth: bool) -> bool:
        """Tell whether a test that is ``truth`` says that FSDP is off, or a model none of FSDP1's."""
        is_off = says_off(test, truth=truth, says_all=self._says_all)
        return is_off or (bool(text) and self._lacks(test, text, is_fsdp1_among(self.index), truth=truth))

    def is_without_fsdp(self, node: cst.CSTNode) -> bool:
        """Tell whether a place is reached only without FSDP: ``if not use_fsdp:``, ``if mode == "ddp":``."""
        return self._is_below_off(node) or (
            (self._has_switch or self._has_ddps_switch or self._may_be_unheld)
            and self._is_chosen_without(node)
        )

    def _is_below_off(self, node: cst.CSTNode) -> bool:
        """Tell whether a place stands in a branch without FSDP."""
        if self.is_unsharded is not None and self.is_unsharded(node):
            return True
        if self._has_switch and any(
            says_off(t, truth=v, says_all=self._says_all)
            or (not v and was_done(t))
            or (isinstance(self.index.parents.get(t), cst.Assert) and v and are_settings_none(t))
            for t, v in self.facts(node)
        ):
            return True
        if self._may_be_unheld and self._is_unheld(node, self._holder):
            return True
        if self._has_ddps_switch and any(is_on_for_ddp(t, truth=v) for t, v in self.facts(node)):
            return True
        return self._has_match and any(is_case(each, DDP) for each in self.index.ancestors(node))

    def _is_unheld(self, node: cst.CSTNode, holder: SoleHolder | None) -> bool:
        """Tell whether a place is reached only while nothing that this source shards is there."""

        def is_none(test: cst.BaseExpression, truth: bool) -> bool:
            if not truth and dotted(test) in self._absent:
                return True
            return holder is not None and holder.is_none(test, node, truth=truth)

        facts = self.facts(node)
        return any(says_off(t, truth=v, says_all=self._says_all, is_unheld=is_none) for t, v in facts)

    @functools.cached_property
    def _holder(self) -> SoleHolder | None:
        # What other files give to functions may be sharded there; what a class has is its own.
        classes = {self.index.path_of(each) for each in self.index.by_kind.get(cst.ClassDef, ())}
        return None if self.given - classes else sole_holder(self.index)

    @functools.cached_property
    def _absent(self) -> frozenset[str]:
        return absent_names(self.index)

    @property
    def _may_be_unheld(self) -> bool:
        return bool(self._absent) or self._holder is not None

    def _is_chosen_without(self, node: cst.CSTNode) -> bool:
        """Tell whether a place is in a private method that is called, or handed on, without FSDP alone."""
        function = self.index.function(node)
        if function is None:
            return False
        if function not in self._without:
            found = is_chosen_there(self.index, function, self._is_below_off, self._places_of)
            self._without[function] = found
        return self._without[function]

    def _places_of(self, function: cst.FunctionDef) -> list[cst.BaseExpression]:
        is_given = self.index.path_of(function) in self.given
        return [] if is_given else places_chosen(self.index, function)

    @functools.cached_property
    def _has_switch(self) -> bool:
        names = self.index.by_kind.get(cst.Name, ())
        lowered = {cst.ensure_type(each, cst.Name).value.lower() for each in names}
        switches = SWITCHES
        is_named = any(switch.match(each) for each in lowered for switch in switches)
        is_named = is_named or not lowered.isdisjoint({"fsdp_cfg", "is_initialized"})
        return is_named or any(DDP.match(text) or FSDP.match(text) for text in self._texts | lowered)

    @functools.cached_property
    def _has_ddps_switch(self) -> bool:
        """Whether a switch is DDP's by its name, and nothing that may shard stands below it."""
        names = self.index.by_kind.get(cst.Name, ())
        if not any(DDPS_SWITCH.match(cst.ensure_type(each, cst.Name).value.lower()) for each in names):
            return False
        calls = (cst.ensure_type(each, cst.Call) for each in self.index.by_kind.get(cst.Call, ()))
        sharding = (call for call in calls if MAY_SHARD.search((dotted(call.func) or "").lower()))
        return not any(is_on_for_ddp(t, truth=v) for call in sharding for t, v in self.facts(call))

    @functools.cached_property
    def _texts(self) -> frozenset[str]:
        texts = self.index.by_kind.get(cst.SimpleString, ())
        return frozenset(cst.ensure_type(each, cst.SimpleString).value.strip("'\"").lower() for each in texts)

    @functools.cached_property
    def _texts_asked(self) -> frozenset[str]:
        above = (*self.index.by_kind.get(cst.Comparison, ()), *self.index.by_kind.get(cst.Element, ()))
        asked = (walk_for(each, cst.SimpleString) for each in above)  # of choices: `["fsdp", "full_shard"]`
        return frozenset(text.value.strip("'\"").lower() for texts in asked for text in texts)

    @functools.cached_property
    def _says_all(self) -> bool:
        """Whether what is not ``"fsdp"`` is not sharded: there is no other word for it, as ``"hsdp"``."""
        words = {text for text in self._texts if _SHARDED.match(text) and not FSDP.match(text)}
        # How FSDP1 shards, `cfg.sharding_strategy = "full_shard"`, is a word for it where it is asked for.
        named = {word for word in words if _ARGUMENT.match(word)}  # `kwargs["sharding_strategy"] = ...`
        return not words - _STRATEGIES - named and not (words - named) & self._texts_asked

    @functools.cached_property
    def _has_match(self) -> bool:
        return bool(self.index.by_kind.get(cst.Match))

    def is_no_module(self, node: cst.CSTNode) -> bool:
        """Tell whether an expression stands where it was found to be no ``nn.Module``, or what is none."""
        text = text_of(node)
        is_module, is_none = is_of_modules(self.index), is_of_no_models(self.index)
        return any(
            self._says(test, text, is_module, want=not truth) or self._says(test, text, is_none, want=truth)
            for test, truth in self.facts(node)
        )

    def is_of_other_wrapper(self, node: cst.CSTNode) -> bool:
        """Tell whether an expression stands where it was found to be in another wrapper than FSDP1's."""
        return self.holds(node, is_other_wrapper(self.index, self.wrappers))

    def is_of_others(self, node: cst.CSTNode) -> bool:
        """Tell whether a place is reached only where something was found to be in another wrapper."""
        is_class = is_other_wrapper(self.index, self.wrappers)
        checks = (test for test, truth in self.facts(node) if truth and isinstance(test, cst.Call))
        return any(is_class(call.args[1].value) for call in checks if asks_class(call))

    def facts(self, node: cst.CSTNode) -> Iterator[Fact]:
        """Return the tests that are known to be true, or false, where a node is; the nearest first."""
        known = self._facts.get(id(node))
        if known is None:
            known = self._facts[id(node)] = self._find_facts(node)
        facts, function = known
        # A body runs later, when what was tested around it may have changed, but not the launch.
        return iter(facts if function is None else (*facts, *self._chosen_by(function)))

    def _find_facts(self, node: cst.CSTNode) -> Facts:
        """Return what is known within the function that a node stands in, and that function."""
        found: list[Fact] = []
        below: cst.CSTNode = node
        for above in self.index.ancestors(node):
            if type(above) not in _TELL:
                below = above
                continue
            # Blocks first, most of what is met: to ask what is no instance of an abstract class is slow.
            if isinstance(above, (cst.IndentedBlock, cst.Module)):
                found += self._before(above, below)
            elif isinstance(above, (cst.FunctionDef, cst.ClassDef)):
                own = above if isinstance(above, cst.FunctionDef) else None
                return (*found, *left_over(self.index, found)), own
            else:
                found += self._told_by(above, below, found)
            below = above
        return (*found, *left_over(self.index, found)), None

    def _told_by(self, above: cst.CSTNode, below: cst.CSTNode, found: list[Fact]) -> Iterator[Fact]:
        """Yield what is known in a part of something that asks; ``found``: what is known nearer by."""
        if isinstance(above, (cst.If, cst.IfExp)):
            if below is not above.test:
                part = ruled_out(above, found) if above.orelse is below else above.test
                yield part, below is above.body
        elif isinstance(above, cst.While) and below is above.body:
            yield above.test, True
        elif isinstance(above, cst.BooleanOperation) and below is above.right:
            # The right of `and` is evaluated where the left is true, that of `or` where it is not.
            yield above.left, isinstance(above.operator, cst.And)
        elif isinstance(above, cst.MatchCase) and below is above.body:
            yield from self._asked_by_case(above)
        elif isinstance(above, _COMPREHENSIONS) and below is not above.for_in:
            yield from ((each.test, True) for each in above.for_in.ifs)

    def _asked_by_case(self, case: cst.MatchCase) -> tuple[Fact, ...]:
        """Return what a case asks, each time by the same nodes, which stand where it does."""
        if case not in self._cases:
            match = cst.ensure_type(self.index.parents[case], cst.Match)
            self._cases[case] = tuple(asked_by_case(match, case))
            for asked, _ in self._cases[case]:
                self.index.parents[asked] = case
                self.index.order[asked] = self.index.order[case]
        return self._cases[case]

    def _chosen_by(self, function: cst.FunctionDef) -> tuple[Fact, ...]:
        """Return what every place that calls a function, or hands it on, knows of Accelerate's launch."""
        if not self._asks_launch:
            return ()
        if function not in self._chosen:
            self._chosen[function] = ()  # what calls itself in circles is not known
            self._chosen[function] = self._find_chosen(function)
        return self._chosen[function]

    def _find_chosen(self, function: cst.FunctionDef) -> tuple[Fact, ...]:
        said: list[Fact] = []
        # What a branch defines is there only where that was taken: the launch does not change.
        own = next((fact for fact in self.facts(function) if self._said(fact) is not None), None)
        if own is not None:
            return (own,)
        for place in places_chosen(self.index, function):
            known = ((fact, self._said(fact)) for fact in self.facts(place))
            fact, is_fsdp = next(
                ((fact, answer) for fact, answer in known if answer is not None), (None, None)
            )
            if fact is None or any(self._said(each) is not is_fsdp for each in said):
                return ()
            said.append(fact)
        return tuple(said[:1])

    def _said(self, fact: Fact) -> bool | None:
        return fsdp_said(fact[0], truth=fact[1], index=self.index)

    @functools.cached_property
    def _asks_launch(self) -> bool:
        return asks_for_launch(self.index)

    def _before(self, block: cst.IndentedBlock | cst.Module, statement: cst.CSTNode) -> Iterator[Fact]:
        """Yield what the statements above one have made sure: assertions, and ``if ...: return``."""
        known = self._sure.get(id(block))
        if known is None:
            known = self._sure[id(block)] = list(made_sure(block))
        order = self.index.order
        place = order.get(statement) if known else None
        for each, test, truth in known:
            if place is not None and order[each] >= place:
                return
            yield test, truth

    def _says(
        self,
        test: cst.BaseExpression,
        text: str,
        is_class: IsClass,
        *,
        want: bool,
        depth: int = 0,
        within: bool = False,
    ) -> bool:
        """Tell whether a test that is ``want`` says that an expression is of a class, or has such."""

        def says(part: cst.BaseExpression, *, want: bool, deeper: int = 0) -> bool:
            return self._says(part, text, is_class, want=want, depth=depth + deeper, within=within)

        held = self._held(test) if depth < _MAX_DEPTH else None
        if held is not None:
            return says(held, want=want, deeper=1)
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            return says(test.expression, want=not want)
        if isinstance(test, cst.BooleanOperation):
            # Of `a and b` that is true both are; of `a or b` that is false neither is. Else one of them is.
            found = (says(part, want=want) for part in (test.left, test.right))
            return any(found) if isinstance(test.operator, cst.And) is want else all(found)
        if isinstance(test, cst.Comparison):
            return compares_type(test, text, is_class, want=want) or self._is_given(
                test, text, is_class, want
            )
        if not want or not isinstance(test, cst.Call):
            return False
        if within and asks_each(test, text, is_class):
            return True
        return self._is_check(test, text, is_class, depth, within=within)

    def _is_given(self, test: cst.Comparison, text: str, is_class: IsClass, want: bool) -> bool:
        """Tell whether a function gave a model, which gives None of what is not of a class.

        ``wrapped = fsdp_of(model)``, and then ``wrapped is not None``: both are of it.
        """
        name = name_of_none(test, truth=not want)
        value = last_value(self.index, name) if name is not None and name in self.index.scopes else None
        if name is None or not isinstance(value, cst.Call) or not value.args:
            return False
        checks = [check_or_none(each) for each in self.functions(value.func)]
        is_its = text in {name.value, text_of(value.args[0].value)}
        return is_its and bool(checks) and all(each and is_class(each.args[1].value) for each in checks)

    def _lacks(
        self, test: cst.BaseExpression, text: str, is_class: IsClass, *, truth: bool, depth: int = 0
    ) -> bool:
        """Tell whether a test that is ``truth`` says that an expression is not of a class."""

        def lacks(part: cst.BaseExpression, name: str = text, deeper: int = 0) -> bool:
            return self._lacks(part, name, is_class, truth=truth, depth=depth + deeper)

        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            return self._lacks(test.expression, text, is_class, truth=not truth, depth=depth)
        if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.Or) and not truth:
            return lacks(test.left) or lacks(test.right)
        held = self._held(test) if depth < _MAX_DEPTH else None
        if held is not None:
            return lacks(held, deeper=1)
        is_asked = isinstance(test, cst.Call) and bool(test.args) and not truth and not asks_class(test)
        if is_asked and isinstance(test, cst.Call) and text_of(test.args[0].value) == text:
            asks = list(self._asked_by(test.func)) if depth < _MAX_DEPTH else []
            if asks or not self.index.checks:  # what another file asks is known by its name
                return any(lacks(asked, name, 1) for asked, name in asks)
        return self._says(test, text, is_class, want=not truth, depth=depth)

    def _is_excluded_by_state(self, node: cst.CSTNode, text: str, is_class: IsClass) -> bool:
        """Tell whether a place is reached only where a name is None that each model of a class has set.

        Below ``if isinstance(model, FSDP): state = model.state_dict()``, that is where ``state is None``.
        """
        facts = list(self.facts(node))
        nones = (name for test, truth in facts if (name := name_of_none(test, truth=truth)) is not None)
        return any(self._is_set_of_each(name, facts, text, is_class) for name in nones)

    def _is_set_of_each(self, name: cst.Name, facts: list[Fact], text: str, is_class: IsClass) -> bool:
        """Tell whether a name gets the state of each model of a class, by a check and nothing else."""
        known = {test for test, _ in facts}
        for binding in self.index.scopes[name].lookup(name.value) if name in self.index.scopes else ():
            is_state = binding.index is None and self._is_never_none(binding.value, text)
            more = [(test, truth) for test, truth in self.facts(binding.node) if test not in known]
            # Where an assertion fails nothing runs below.
            more = [each for each in more if not isinstance(self.index.parents.get(each[0]), cst.Assert)]
            if is_state and len(more) == 1 and self._says(more[0][0], text, is_class, want=more[0][1]):
                test = more[0][0]
                # `isinstance(model, FSDP) and rank == 0` leaves other ranks without a state.
                return not isinstance(test, cst.BooleanOperation)
        return False

    def _is_never_none(self, value: cst.BaseExpression | None, text: str) -> bool:
        """Tell whether a value is a state on each rank: a dict, or what torch or FSDP1 gives of the model."""
        if isinstance(value, (cst.Dict, cst.DictComp)):
            return True
        if not isinstance(value, cst.Call):
            return False
        name = last_name(value.func)
        is_its = text_of(value.func) == f"{text}.state_dict"
        is_torchs = name in _GIVE_STATES and not any(self.functions(value.func))
        return is_its or name == "dict" or (is_torchs and any(text_of(a.value) == text for a in value.args))

    def _held(self, test: cst.BaseExpression) -> cst.BaseExpression | None:
        """Return the question whose answer a name holds: ``is_fsdp = isinstance(model, FSDP)``."""
        if not isinstance(test, cst.Name) or test not in self.index.scopes:
            return None
        value = last_value(self.index, test)
        return value if isinstance(value, (cst.Call, cst.BooleanOperation, cst.UnaryOperation)) else None

    def _is_check(self, call: cst.Call, text: str, is_class: IsClass, depth: int, *, within: bool) -> bool:
        if not call.args or text_of(call.args[0].value) != text:
            return False
        if asks_class(call):
            return is_class(call.args[1].value)
        if self.index.qualified(call.func) & {IS_DATACLASS, *self.index.checks}:
            return is_class(call.func)
        return depth < _MAX_DEPTH and self._is_helper(call.func, is_class, depth + 1, within=within)

    def _is_helper(self, func: cst.BaseExpression, is_class: IsClass, depth: int, *, within: bool) -> bool:
        """Tell whether a function of this source does nothing but ask for the class: ``is_fsdp(x)``."""
        return any(
            self._says(asked, name, is_class, want=True, depth=depth, within=within)
            for asked, name in self._asked_by(func)
        )

    def _asked_by(self, func: cst.BaseExpression) -> Iterator[tuple[cst.BaseExpression, str]]:
        """Yield what functions of this source give that do nothing but ask, and what they call the model."""
        for function in self.functions(func):
            params = [
                p.name.value for p in placed_parameters(function) if p.name.value not in {"self", "cls"}
            ]
            given = answer_of(function)
            if params and given is not None:
                yield given, params[0]

    @functools.cached_property
    def calls(self) -> dict[cst.FunctionDef, list[cst.Call]]:
        """The calls of each function of this source by a name: kept, as each parameter asks for them."""
        return calls_by_function(self.index)

    def functions(self, func: cst.CSTNode) -> tuple[cst.FunctionDef, ...]:
        """Return the functions of this source that a call may run, by their own or by another name."""
        return functions_called(self.index, func)
