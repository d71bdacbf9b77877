"""State dict contexts: what they ask for, and whether all that happens in them is seen."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.entered_contexts import EnteredContexts
from fsdp_migrate.source.python.held_arguments import Held, held_arguments
from fsdp_migrate.source.python.last_values import last_value, value_in_class
from fsdp_migrate.source.python.no_models import is_no_model
from fsdp_migrate.source.python.nodes import (
    arguments,
    dotted,
    literal,
    named_arguments,
    text_of,
    walk,
    walk_for,
)
from fsdp_migrate.source.python.same_values import is_same_at
from fsdp_migrate.source.python.summoned_functions import SummonedFunctions
from fsdp_migrate.source.python.trainer_saves import is_saved_by_trainer


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fsdp_migrate.source.python.text import Source


Flag = bool | cst.BaseExpression
"""True or False, or an expression of the source that says which."""

_NO_LOCAL = (
    "FSDP2 has no local state dict: it held flat parameters. Where each rank saves its own file, ask for "
    "whole states with rank0_only=False"
)
_CONTEXT = ("module", "state_dict_type", "state_dict_config", "optim_state_dict_config")
_CONFIG = ("offload_to_cpu", "rank0_only")
_OPTIM_CALLS = frozenset(
    {
        "optim_state_dict",
        "optim_state_dict_to_load",
        "full_optim_state_dict",
        "sharded_optim_state_dict",
        "shard_full_optim_state_dict",
        "scatter_full_optim_state_dict",
        "flatten_sharded_optim_state_dict",
        "rekey_optim_state_dict",
    }
)
_ASK_ONLY = frozenset({"isinstance", "hasattr", "getattr", "type", "id", "print", "len"})
_SAVERS = frozenset({"push_to_hub", "save", "save_checkpoint", "save_model", "save_pretrained"})


_UNSEEN = "what asks for the state in it is not seen"
_TRAINERS = (
    "the Trainer saves here as its own `state_dict_type` says: set that to SHARDED_STATE_DICT, and take the "
    "context out"
)


@dataclass(frozen=True, eq=False)
class Settings:
    """The state dict type and its options, for the model and for the optimizer."""

    kind: Literal["full", "sharded"]
    offload: Flag = False
    rank0: Flag = False
    optim_offload: Flag = True
    optim_rank0: Flag = False

    @property
    def flags(self) -> tuple[Flag, ...]:
        """Its options, in their order."""
        return self.offload, self.rank0, self.optim_offload, self.optim_rank0


DEFAULT = Settings("full")
"""What FSDP1 does without a context."""


@dataclass(frozen=True, eq=False)
class Context:
    """One ``FSDP.state_dict_type(...)``; ``problem`` says why it cannot be turned."""

    call: cst.Call
    model: cst.BaseExpression | None
    settings: Settings | None
    problem: str | None
    item: cst.WithItem | None = None
    block: cst.With | None = None
    calls: tuple[cst.Call, ...] = ()
    """The calls of the model's own ``state_dict`` and ``load_state_dict`` in it."""
    configs: tuple[cst.Name, ...] = ()
    """The variables that hold its options."""
    is_trainers: bool = False
    """Whether all that it holds is what Hugging Face's Trainer saves by itself."""


@dataclass(eq=False)
class Contexts:
    """Every context of a source, and what was set for all of it by ``set_state_dict_type``."""

    source: Source
    every: list[Context] = field(default_factory=list)
    setters: list[Context] = field(default_factory=list)

    def __post_init__(self) -> None:
        setters = []
        for call in self.source.calls:
            name = self.source.class_function(call)
            if name == "state_dict_type":
                self.every.append(self._read(call))
            elif name == "set_state_dict_type":
                setters.append(call)
            elif (later := self._made_later(call)) is not None:
                self.every.append(self._read(call, later))
        # What a setter decides depends on the contexts, too.
        self.setters.extend(map(self._read_setter, setters))

    def around(self, node: cst.CSTNode) -> Context | None:
        """Return the innermost context that a node stands in."""
        blocks = {context.block: context for context in self.every if context.block is not None}
        below: cst.CSTNode = node
        for above in self.source.index.ancestors(node):
            if type(above) is cst.With and above in blocks and below is above.body:
                return blocks[above]
            below = above
        return None

    def settings_at(self, node: cst.CSTNode) -> Settings | None:
        """Return what a call outside of every context is told, or None where that is not known."""
        if self.source.links.gives_contexts and self.entered.is_by_another_file(node):
            return None
        entered = self.entered.around(node)
        if entered:
            return _same_everywhere(entered)
        if not self._is_in_no_other(node):
            return None  # the call may run in a context that stands elsewhere
        if not self.setters:
            # What another file sets may hold here: it is not guessed.
            return None if self.source.links.types_elsewhere else DEFAULT
        if len(self.setters) == 1:
            return self.setters[0].settings if self.setters[0].problem is None else None
        # Each says it for what follows in its function, or in its branch.
        decides = self._decides(node, [each.call for each in self.setters])
        found = next((each for each in self.setters if each.call is decides), None)
        return found.settings if found is not None and found.problem is None else None

    @functools.cached_property
    def entered(self) -> EnteredContexts:
        """Those that blocks enter which stand elsewhere."""
        return EnteredContexts(self.source, self.every)

    def is_entered_here(self, context: Context) -> bool:
        """Tell whether blocks of this source enter a context made elsewhere, and ask for its type alone."""
        every = self.entered.beside(context)
        blocks = [each for each in self.entered.blocks_of(context) if each is not context.block]
        return _same_everywhere(every) is not None and bool(blocks)

    def _may_hold_around(self, context: Context, node: cst.CSTNode) -> bool:
        """Tell whether a place outside of a context may run in it, also by a call: not by one of torch's."""
        index, blocks = self.source.index, self.entered.blocks_of(context)
        if index.function(context.call) is index.function(node):
            # No block enters it: a stack, or what it is given to, may do so for what follows.
            is_below = index.order[context.call] < index.order[node]
            return is_below and not blocks and not _is_default(context.settings)
        inside = (call for block in blocks for call in walk_for(block.body, cst.Call))
        is_seen = bool(blocks) and not self.entered.is_otherwise(context)
        return not is_seen or not all(map(self._calls_nothing_here, inside))

    def _calls_nothing_here(self, call: cst.Call) -> bool:
        func = call.func
        if isinstance(func, cst.Attribute) and func.attr.value in {"state_dict", "load_state_dict"}:
            return True
        names = self.source.index.qualified(func)
        return bool(names) and all(name.startswith(("torch.", "os.")) for name in names)

    def _decides(self, node: cst.CSTNode, setters: Sequence[cst.Call]) -> cst.Call | None:
        """Return the call that certainly sets the type for a node below it, the last of several."""
        index = self.source.index
        above, order = set(index.ancestors(node)), index.order
        own = index.function(node)
        before = [c for c in setters if index.function(c) is own and order[c] < order[node]]
        sure = [c for c in before if index.parents[index.parents[index.parents[c]]] in above]
        if not sure:
            return None
        later = before[before.index(sure[-1]) + 1 :]
        return sure[-1] if all(index.excludes(c, node) for c in later) else None

    def _made_later(self, call: cst.Call) -> cst.Call | None:
        """Return the call that a partial makes: ``partial(FSDP.state_dict_type, model, kind)``."""
        if not call.args or "functools.partial" not in self.source.index.qualified(call.func):
            return None
        later = call.with_changes(func=call.args[0].value, args=call.args[1:])
        return later if self.source.class_function(later) == "state_dict_type" else None

    def _read(self, call: cst.Call, later: cst.Call | None = None) -> Context:
        model, settings, configs, problem = self._settings(later or call, call)
        func = (later or call).func
        if func in self.source.references and self.source.index.is_ambiguous(func):
            problem = problem or "whether this is torch's FSDP, or another's of the same name, is not seen"
        item = self.source.index.parents[call]
        block = self.source.index.parents[item]
        if not isinstance(item, cst.WithItem) or not isinstance(block, cst.With):
            return Context(call, model, settings, problem or "the context is not entered where it is made")
        inside: list[cst.Call] = []
        if problem is None and (block.asynchronous is not None or item.asname is not None):
            problem = "the context is entered in an unusual way"
        if problem is None and model is not None:
            problem = self._problem_inside(block, model, inside)
        is_trainers = model is not None and self._is_of_trainers_saves(block, model)
        if is_trainers and problem in {None, _UNSEEN}:
            problem = None if settings is not None and settings.kind == "full" else _TRAINERS
        return Context(call, model, settings, problem, item, block, tuple(inside), configs, is_trainers)

    def _read_setter(self, call: cst.Call) -> Context:
        model, settings, configs, problem = self._settings(call, call)
        every = [c for c in self.source.calls if self._is_setter(c)]
        # It returns what was set before: code that keeps it will set it again, where this does not follow.
        if problem is None and not isinstance(self.source.index.parents[call], cst.Expr):
            problem = "what was set before is used"
        if problem is None and len(every) > 1 and not self._are_decided(every, model):
            problem = "the type is set more than once"
        function = self.source.index.function(call) if len(every) > 1 else None
        inside = [
            c
            for c in self.source.calls
            if model is not None and self.is_state_call(c, model)
            if function is None or self.source.index.function(c) is function
        ]
        if problem is None and not inside:
            problem = (
                "it decides what an FSDP1 model's state_dict() gives in other places (where only torch's "
                "get_state_dict and its kin take states, delete this call)"
            )
        return Context(call, model, settings, problem, configs=configs)

    def _are_decided(self, setters: Sequence[cst.Call], model: cst.BaseExpression | None) -> bool:
        """Tell whether each call is a statement of a function, and which one holds is seen for each state.

        In a branch, what follows in it comes after the call: ``if kind == "full": set(...)``.
        """
        blocks = [self._block(call) for call in setters]
        if not all(type(above) in {cst.FunctionDef, cst.If, cst.Else} for above in blocks):
            return False
        if all(isinstance(above, cst.FunctionDef) for above in blocks):
            return True
        index = self.source.index
        return model is not None and all(
            self._decides(call, setters) is not None and self._is_in_no_other(call)
            for call in self.source.calls
            if self.is_state_call(call, model) and self.around(call) is None
            if any(
                index.function(call) is index.function(c)
                and index.order[c] < index.order[call]
                and not index.excludes(c, call)
                for c in setters
            )
        )

    def _is_in_no_other(self, node: cst.CSTNode) -> bool:
        """Tell whether no context that stands elsewhere may hold around a node."""
        return not any(c.problem is not None and self._may_hold_around(c, node) for c in self.every)

    def _block(self, call: cst.Call) -> cst.CSTNode | None:
        """Return what a call is a statement of: a function, or a branch in one."""
        line = self.source.index.parents[self.source.index.parents[call]]
        block = self.source.index.parents.get(line)
        above = self.source.index.parents.get(block) if isinstance(block, cst.IndentedBlock) else None
        return above if self.source.index.function(call) is not None else None

    def _is_setter(self, call: cst.Call) -> bool:
        return self.source.class_function(call) == "set_state_dict_type"

    def is_state_call(self, call: cst.Call, model: cst.BaseExpression) -> bool:
        """Tell whether a call is the model's own ``state_dict()`` or ``load_state_dict(...)``."""
        func = call.func
        if not isinstance(func, cst.Attribute) or func.attr.value not in {"state_dict", "load_state_dict"}:
            return False
        return text_of(func.value) == text_of(model)

    def _settings(
        self, call: cst.Call, at: cst.Call
    ) -> tuple[cst.BaseExpression | None, Settings | None, tuple[cst.Name, ...], str | None]:
        given = held_arguments(self.source.index, call, _CONTEXT)
        if given is None or "module" not in given or "state_dict_type" not in given:
            return None, None, (), "its arguments are not seen"
        model, (asked, by) = given["module"].value, given["state_dict_type"]
        known = self.source.index.fsdp1(asked) or self._type_of(asked)
        kind = (known or "").split(".")[-1]
        if kind == "LOCAL_STATE_DICT":
            return model, None, (), _NO_LOCAL
        if kind not in {"FULL_STATE_DICT", "SHARDED_STATE_DICT"}:
            return model, None, (), "its type is known only when this runs"
        read = [self._flags(given.get(name), at) for name in _CONTEXT[2:]]
        if read[0] is None or read[1] is None:
            return model, None, (), "its options are known only when this runs"
        (own, first), (optim, second) = read[0], read[1]
        settings = Settings(
            "full" if kind == "FULL_STATE_DICT" else "sharded",
            # torch's defaults: FullStateDictConfig does not offload, FullOptimStateDictConfig does.
            own.get("offload_to_cpu", False),
            own.get("rank0_only", False),
            optim.get("offload_to_cpu", True),
            optim.get("rank0_only", False),
        )
        holders = {each: None for each in (by, first, second) if isinstance(each, cst.Name)}
        return model, settings, tuple(holders), None

    def _type_of(self, node: cst.BaseExpression) -> str | None:
        """Return the type that a variable, or an attribute of `self`, is given in one place only."""
        value = last_value(self.source.index, node) if isinstance(node, (cst.Name, cst.Attribute)) else None
        return None if value is None else self.source.index.fsdp1(value)

    def is_summoned(self, node: cst.CSTNode) -> bool:
        """Tell whether a node stands in a context that shows whole parameters, or that may be one.

        Also in a function that is called in such contexts alone, on what they show.
        """
        if "summon_full_params" not in self.source.code and not self.source.links.called_summoned:
            return False
        return self._stands_in_summoned(node) or self._summoned_functions.holds(
            self.source.index.function(node)
        )

    @functools.cached_property
    def _summoned_functions(self) -> SummonedFunctions:
        return SummonedFunctions(self.source)

    def _stands_in_summoned(self, node: cst.CSTNode) -> bool:
        return any(
            (dotted(call.func) or "").endswith("summon_full_params")
            for above in self.source.index.ancestors(node)
            if type(above) is cst.With
            for item in above.items
            for made in self._made_of(item.item)
            for call in walk_for(made, cst.Call)
        )

    def _made_of(self, item: cst.BaseExpression) -> Iterator[cst.CSTNode]:
        """Yield what a context may be: of a name its values, of a call what functions here return."""
        bindings = self.source.index.bindings_of(item) if isinstance(item, cst.Name) else ()
        for value in (item, *(each.value for each in bindings if each.value is not None)):
            yield value
            if isinstance(value, cst.Call):
                for function in self.source.models.guards.functions(value.func):
                    yield from walk_for(function.body, cst.Return)

    def _flags(
        self, config: Held | None, call: cst.Call
    ) -> tuple[dict[str, Flag], cst.Name | cst.Attribute | None] | None:
        """Return the options of a config, made here or held by a variable that is assigned once."""
        node, variable = config or (None, None)
        if node is None or (isinstance(node, cst.Name) and node.value == "None"):
            return {}, variable
        held = variable
        if isinstance(node, (cst.Name, cst.Attribute)):
            held, variable = node, variable or node
            node = last_value(self.source.index, held)
            if node is None and isinstance(held, cst.Attribute):
                node = value_in_class(self.source.index, held)
        if not isinstance(node, cst.Call):
            return None
        name = self.source.index.fsdp1(node.func)
        given = arguments(node, _CONFIG)
        if name not in catalog.STATE_DICT_WORDS or given is None or set(given) - {*_CONFIG, "use_dtensor"}:
            return None
        flags: dict[str, Flag] = {}
        for key, value in given.items():
            plain = literal(value)
            if plain is None and (key == "use_dtensor" or not self._can_be_moved(value, held, call)):
                return None
            flags[key] = value if plain is None else plain
        return flags, variable

    def _can_be_moved(
        self, value: cst.BaseExpression, held: cst.Name | cst.Attribute | None, call: cst.Call
    ) -> bool:
        """Tell whether an expression of a config may be moved into the new call.

        From the call itself it may, from a variable's line where it was the same at that time. Names of
        another function, or of a class's body, are not known here; and what a setter says holds in others.
        """
        if held is None:
            return True
        is_setter = self._is_setter(call)
        return isinstance(held, cst.Name) and not is_setter and is_same_at(self.source.index, value, call)

    def _problem_inside(
        self, block: cst.With, model: cst.BaseExpression, inside: list[cst.Call]
    ) -> str | None:
        """Collect the model's calls in the block, and tell what else there may ask for its state."""
        optim = 0
        for node in walk(block.body):
            if isinstance(node, (cst.Yield, cst.Await)):  # a generator's caller, or another coroutine
                return "other code runs in this context"
            if not isinstance(node, cst.Call):
                continue
            if self.source.class_function(node) in _OPTIM_CALLS:
                optim += 1
                continue
            problem = self._problem_of_call(node, model)
            if problem is not None:
                return problem
            if self.is_state_call(node, model):
                inside.append(node)
        return None if inside or optim else _UNSEEN

    def _is_of_trainers_saves(self, block: cst.With, model: cst.BaseExpression) -> bool:
        """Tell whether all calls in a block are those by which a Trainer saves, one of them at least."""
        calls = list(walk_for(block.body, cst.Call))
        saves = [each for each in calls if is_saved_by_trainer(self.source.index, each, model)]
        others = (each for each in calls if each not in saves and text_of(each) != "super()")
        return bool(saves) and all(
            self._calls_nothing_here(each) or dotted(each.func) in _ASK_ONLY for each in others
        )

    def _is_given_as_an_optimizer(self, node: cst.BaseExpression) -> bool:
        """Tell whether the same function gives something to FSDP1's functions beside the model."""
        function, text = self.source.index.function(node), text_of(node)
        calls = (each for each in self.source.calls if self.source.class_function(each) in _OPTIM_CALLS)
        return any(
            self.source.index.function(call) is function
            and any(text_of(arg.value) == text for arg in call.args[1:])
            for call in calls
        )

    def _problem_of_call(self, call: cst.Call, model: cst.BaseExpression) -> str | None:
        func, text = call.func, text_of(model)
        name = dotted(func) or ""
        if isinstance(func, cst.Attribute) and func.attr.value in {"state_dict", "load_state_dict"}:
            if self.is_state_call(call, model):
                return None if can_turn(call) else "`state_dict` is given arguments that have no equivalent"
            # `dist_cp.load_state_dict(...)` is a function of a module, and asks no model.
            index = self.source.index
            is_known = is_no_model(index, func.value) or self._is_given_as_an_optimizer(func.value)
            if not is_known and not index.qualified(func.value):
                return f"whether `{name or 'this'}` belongs to the same model is not seen"
            return None
        if name in {f"{text}.{saver}" for saver in _SAVERS}:
            given = named_arguments(call)
            return None if "state_dict" in given else f"`{name}` asks for the state itself"
        if name.split(".")[-1] not in _ASK_ONLY and any(text_of(arg.value) == text for arg in call.args):
            return f"`{name or 'a call'}` is given the model, and may ask for its state"
        return None


def _same_everywhere(contexts: Sequence[Context]) -> Settings | None:
    """Return what the one context of several functions' callers says: names of its own are unknown there."""
    settings = contexts[0].settings if len(contexts) == 1 else None
    if settings is None:
        return None
    return settings if all(isinstance(each, bool) for each in settings.flags) else None


def _is_default(settings: Settings | None) -> bool:
    """Tell whether it is what FSDP1 does without a context."""
    return settings is not None and (settings.kind, settings.flags) == (DEFAULT.kind, DEFAULT.flags)


def can_turn(call: cst.Call) -> bool:
    """Tell whether a ``state_dict`` or ``load_state_dict`` call has arguments that torch's functions have."""
    assert isinstance(call.func, cst.Attribute)
    if call.func.attr.value == "state_dict":
        return not call.args
    given = arguments(call, ("state_dict", "strict"))
    return given is not None and "state_dict" in given and set(given) <= {"state_dict", "strict"}


def names_in(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Return the names and attributes of an expression."""
    return [*walk_for(node, cst.Name), *walk_for(node, cst.Attribute)]
