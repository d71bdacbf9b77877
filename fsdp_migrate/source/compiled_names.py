"""States whose names had ``_orig_mod.`` of ``torch.compile`` under FSDP1, and have none now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.held import COMPILED
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, text_of


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NOTE: Final = (
    "the model is compiled: FSDP1's state had `_orig_mod.` in its names, as named_parameters() has, and this "
    "one has not. See that what looks names up in it, or loads the file into a compiled model, does without."
)
_PREFIX: Final = "_orig_mod"
# What gives a name without the prefix that it is given.
_TAKES_OUT: Final = frozenset({"partition", "removeprefix", "replace", "rpartition", "split", "sub"})


def had_prefix(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether a model is what this source, or another, compiles: its state's names lose a prefix.

    Where the source takes the prefix out itself, nothing is lost.
    """
    if _PREFIX in source.code and _takes_it_out(source):
        return False
    if COMPILED in source.models.kinds(model):
        return True
    names = {text_of(model), text_of(model).removesuffix(".module"), *_wrapped_as(source, text_of(model))}
    return not names.isdisjoint(_compiled(source)) or _was_compiled_in(source, model)


def _was_compiled_in(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether a class here compiles what is asked of an object of it: ``trainer.model.state_dict()``."""
    if not isinstance(model, cst.Attribute) or not isinstance(model.value, cst.Name):
        return False
    made = last_value(source.index, model.value) if model.value in source.index.scopes else None
    named = dotted(made.func) if isinstance(made, cst.Call) else None
    own = f"self.{model.attr.value}"
    for node in source.index.by_kind.get(cst.ClassDef, ()):
        owner = cst.ensure_type(node, cst.ClassDef)
        if owner.name.value == named:
            names = {own, *_wrapped_as(source, own, owner)}
            if not names.isdisjoint(_compiled(source, owner)):
                return True
    return False


def _takes_it_out(source: Source) -> bool:
    """Tell whether a text with the prefix, here or by its name, is given to what takes it out of others."""
    texts = [
        node
        for node in source.index.by_kind.get(cst.SimpleString, ())
        if isinstance(node, cst.SimpleString) and _PREFIX in node.value
    ]
    return any(_is_taken_out(source, node) for node in texts)


def _is_taken_out(source: Source, node: cst.CSTNode) -> bool:
    for above in source.index.ancestors(node):
        if isinstance(above, cst.Slice):
            return True  # `name[len("_orig_mod."):]`
        if isinstance(above, cst.Call):
            name = above.func.attr.value if isinstance(above.func, cst.Attribute) else dotted(above.func)
            if name in _TAKES_OUT:
                return True
        elif isinstance(above, cst.Assign):
            names = [each.target for each in above.targets if isinstance(each.target, cst.Name)]
            readers = (reader for name in names for reader in source.readers(name))
            return above.value is node and any(_is_taken_out(source, each) for each in readers)
        elif isinstance(above, cst.BaseStatement):
            return False
    return False


def _compiled(source: Source, owner: cst.ClassDef | None = None) -> Iterator[str]:
    """Yield what a compiled model is called, in a class if one is given: ``model = torch.compile(net)``."""
    for call in source.calls:
        if _is_in(source, call, owner) and "torch.compile" in source.index.qualified(call.func):
            if _is_instead(source, call):
                continue
            above = source.index.parents[call]
            targets = above.targets if isinstance(above, cst.Assign) else ()
            yield from (text_of(each.target) for each in targets)
            # FSDP(torch.compile(net)), which the wrapping's own name stands for
            if isinstance(above, cst.Arg):
                yield text_of(call)


def _is_instead(source: Source, call: cst.Call) -> bool:
    """Tell whether a model is compiled only where it is not sharded: ``elif args.compile:`` below that."""
    above = source.index.parents[call]
    names = {text_of(each.target) for each in above.targets} if isinstance(above, cst.Assign) else set()
    names |= {text_of(arg.value) for arg in call.args[:1]}
    function = source.index.function(call)
    beside = (each for each in source.calls if source.index.function(each) is function)
    sharding = [each for each in beside if _shards(source, each, names) and each is not call]
    return bool(sharding) and all(_is_never_with(source, each, call) for each in sharding)


def _is_never_with(source: Source, one: cst.Call, other: cst.Call) -> bool:
    """Tell whether of two calls a run comes to one at most, by branches or by the answers of tests."""
    facts = [dict(_told(source, each)) for each in (one, other)]
    return source.index.excludes(one, other) or any(facts[1].get(t) is (not v) for t, v in facts[0].items())


def _told(source: Source, node: cst.CSTNode) -> Iterator[tuple[str, bool]]:
    """Yield the tests that have come out above a place, and how: of ``not x`` that is true x is false."""
    for test, truth in source.models.guards.facts(node):
        is_not = isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not)
        asked = test.expression if is_not and isinstance(test, cst.UnaryOperation) else test
        yield text_of(asked), truth is not is_not


def _shards(source: Source, call: cst.Call, names: set[str]) -> bool:
    """Tell whether a call gives a sharded model, and is given something of these names or gives it to one."""
    above = source.index.parents[call]
    targets = above.targets if isinstance(above, cst.Assign) else ()
    near = {*(text_of(each.target) for each in targets), *(text_of(arg.value) for arg in call.args)}
    return not near.isdisjoint(names) and "fsdp" in source.models.kinds(call)


def _is_in(source: Source, node: cst.CSTNode, owner: cst.ClassDef | None) -> bool:
    return owner is None or source.index.class_of(node) is owner


def _wrapped_as(source: Source, model: str, owner: cst.ClassDef | None = None) -> Iterator[str]:
    """Yield what FSDP1's class was given to make the model: ``net`` of ``model = FSDP(net)``."""
    for call in source.calls:
        above = source.index.parents[call]
        targets = above.targets if isinstance(above, cst.Assign) else ()
        is_its = any(text_of(each.target) == model for each in targets)
        if (
            is_its
            and _is_in(source, call, owner)
            and call.args
            and source.index.fsdp1(call.func) == catalog.FSDP
        ):
            yield text_of(call.args[0].value)
