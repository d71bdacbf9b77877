"""FSDP1's flat parameters had names of their own; FSDP2's have the model's, by which groups are made.

What is decided by a name after wrapping, such as which parameters are decayed, comes out differently.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, text_of, walk_for
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "parameter-names"
CODES = ("FM318",)

_FLAT = (
    "without use_orig_params=True FSDP1's parameters were flat here, one for a unit, with names that end in "
    "`_flat_param`; FSDP2's have the model's names, so this decides differently, without an error. Decide "
    "which is meant; a checkpoint of FSDP1 has the old groups."
)
_START = (
    "FSDP1's names began with `_fsdp_wrapped_module.` here, so that this was never true; FSDP2's are the "
    "model's, so this decides differently, without an error. Decide which is meant; a checkpoint of FSDP1 "
    "has the old groups."
)
_NONE = (
    "FSDP1's names began with `_fsdp_wrapped_module.` here, so that none was like this; FSDP2's are the "
    "model's, so this decides differently, without an error. Decide which is meant; a checkpoint of FSDP1 "
    "has the old groups."
)
_CLEANED = re.compile(r"_fsdp_wrapped_module|clean_tensor_name|_flat_param")
_ASKS = frozenset({"endswith", "find", "startswith"})
_MATCHES = frozenset({"fnmatch", "fnmatchcase", "fullmatch", "match", "search"})
_OF_TEXTS = frozenset(
    {"lower", "partition", "removeprefix", "replace", "rpartition", "rsplit", "split", "strip"}
)
_PUTS = frozenset({"add", "append", "insert"})
# Lightning and Fabric put a module of their own around FSDP1's, or go by the one within, and ask for
# use_orig_params=True as Hugging Face's Trainer does.
_OF_A_MODULE = frozenset({"fabric", "lightning"})
_KEEP_NAMES = frozenset({"transformers"})
_LOOPS = (cst.For, cst.ListComp, cst.GeneratorExp, cst.SetComp)


def find(source: Source) -> Iterator[Found]:
    """Find where parameters of a sharded model are chosen by their names."""
    is_flat = _are_flat(source)
    for call in source.calls:
        func = call.func
        if not isinstance(func, cst.Attribute) or func.attr.value != "named_parameters":
            continue
        loop, names = _loop_over(source, call)
        if loop is None or source.models.certainty(func.value) is None or source.contexts.is_summoned(call):
            continue
        function = source.index.function(call) or source.module
        if not _chooses(loop, names[1]) or _CLEANED.search(text_of(function)):
            continue
        by = source.models.sharded_by(func.value)
        if by in _OF_A_MODULE:
            continue
        is_inner = text_of(func.value).endswith(".module")
        for test, is_start in _tests(source, loop, names[0]):
            if is_start and not is_inner:
                yield Found("FM318", test, _START, "commented")
            elif not is_inner and isinstance(test, cst.Comparison) and _is_of_wholes(source, test, names[0]):
                yield Found("FM318", test, _NONE, "commented")
            elif is_flat and by not in _KEEP_NAMES:
                yield Found("FM318", test, _FLAT, "commented")


def _is_of_wholes(source: Source, test: cst.Comparison, name: str) -> bool:
    """Tell whether a name is compared with whole names that stand here: ``n == "head.weight"``."""
    if name not in {text_of(test.left), text_of(test.comparisons[0].comparator)}:
        return False  # `n.split(".")[-1] == "bias"`
    sides = [_value(source, each) for each in (test.left, test.comparisons[0].comparator)]
    if isinstance(test.comparisons[0].operator, (cst.Equal, cst.NotEqual)):
        return any(isinstance(each, cst.SimpleString) for each in sides)
    held = sides[1]
    texts = [each.value for each in held.elements] if isinstance(held, (cst.List, cst.Set, cst.Tuple)) else []
    return bool(texts) and all(isinstance(each, cst.SimpleString) for each in texts)


def _are_flat(source: Source) -> bool:
    """Tell whether a model is wrapped by this source or its project, and nothing asks for its own names."""
    if source.links.keeps_names or catalog.MAY_KEEP_NAMES.search(source.code):
        return False
    wrappings = [call for call in source.calls if source.models.is_constructor(call.func)]
    starred = (arg.value for call in wrappings for arg in call.args if arg.star == "**")
    if any(not isinstance(_value(source, each), (cst.Dict, cst.Call)) for each in starred):
        return False  # what a config says
    return bool(wrappings) or bool(source.links.is_given)


def _value(source: Source, node: cst.BaseExpression) -> cst.BaseExpression | None:
    return last_value(source.index, node) if isinstance(node, cst.Name) else node


def _loop_over(source: Source, call: cst.Call) -> tuple[cst.CSTNode | None, tuple[str, str]]:
    """Return the loop that goes through what a call gives, and what it calls names and parameters."""
    for above in source.index.ancestors(call):
        if isinstance(above, (cst.For, cst.CompFor)):
            target = above.target
            if not isinstance(target, cst.Tuple) or len(target.elements) != 2:
                return None, ("", "")
            loop = source.index.parents[above] if isinstance(above, cst.CompFor) else above
            is_in_iter = call in walk_for(above.iter, cst.Call)
            names = (text_of(target.elements[0].value), text_of(target.elements[1].value))
            return (loop, names) if is_in_iter and isinstance(loop, _LOOPS) else (None, names)
        if isinstance(above, cst.BaseStatement):
            break
    return None, ("", "")


def _chooses(loop: cst.CSTNode, parameter: str) -> bool:
    """Tell whether a loop gives some of the parameters away, or freezes them."""
    if not isinstance(loop, cst.For):
        assert isinstance(loop, (cst.ListComp, cst.GeneratorExp, cst.SetComp))
        return text_of(loop.elt) == parameter
    for call in walk_for(loop.body, cst.Call):
        last = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        names = (name.value for arg in call.args for name in walk_for(arg, cst.Name))
        if (last in _PUTS and parameter in names) or dotted(call.func) == f"{parameter}.requires_grad_":
            return True
    targets = (each.target for each in walk_for(loop.body, cst.AssignTarget))
    return any(dotted(each) == f"{parameter}.requires_grad" for each in targets)


def _tests(source: Source, loop: cst.CSTNode, name: str) -> Iterator[tuple[cst.BaseExpression, bool]]:
    """Yield the tests of a name in a loop that decide, and whether they are of its beginning."""
    names = _made_of(loop, name)
    for test in _deciding(loop):
        for part in walk_for(test, cst.Comparison):
            operator, other = part.comparisons[0].operator, part.comparisons[0].comparator
            sides = (part.left, other)
            is_told = isinstance(operator, (cst.Equal, cst.In, cst.NotEqual, cst.NotIn))
            if is_told and any(_is_name(each, names) for each in sides):
                yield part, False
        for call in walk_for(test, cst.Call):
            last = (dotted(call.func) or "").split(".")[-1]
            if isinstance(call.func, cst.Attribute) and last in _ASKS and _is_name(call.func.value, names):
                yield call, last == "startswith"
            elif last in _MATCHES or _is_of_the_project(source, call.func):
                yield from ((call, False) for arg in call.args if _is_name(arg.value, names))


def _deciding(loop: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield what decides in a loop: the tests of ``if``, also by a name, and of what is trained."""
    if not isinstance(loop, cst.For):
        assert isinstance(loop, (cst.ListComp, cst.GeneratorExp, cst.SetComp))
        yield from (each.test for each in loop.for_in.ifs)
        return
    tests = [each.test for each in walk_for(loop.body, cst.If)]
    tests += [each.test for each in walk_for(loop.body, cst.IfExp)]
    asked = {name.value for test in tests for name in walk_for(test, cst.Name)}
    yield from tests
    for assign in walk_for(loop.body, cst.Assign):
        targets = [dotted(each.target) or "" for each in assign.targets]
        is_answer = not isinstance(assign.value, cst.IfExp) and any(each in asked for each in targets)
        if is_answer or any(each.endswith(".requires_grad") for each in targets):
            yield assign.value


def _made_of(loop: cst.CSTNode, name: str) -> set[str]:
    """Return a loop's name and what is made of it in its body: ``low = name.lower()``."""
    names = {name}
    for assign in walk_for(loop, cst.Assign):
        if _is_name(assign.value, names):
            names.update(text_of(each.target) for each in assign.targets)
    return names


def _is_of_the_project(source: Source, func: cst.BaseExpression) -> bool:
    """Tell whether it is a function that this source defines: ``if is_no_decay(name)``."""
    bindings = source.index.bindings_of(func) if isinstance(func, cst.Name) else ()
    return any(isinstance(each.node, cst.FunctionDef) for each in bindings)


def _is_name(node: cst.BaseExpression, names: set[str]) -> bool:
    """Tell whether it is one of some names, or made of one by the methods of texts."""
    while True:
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            if node.func.attr.value not in _OF_TEXTS:
                return False
            node = node.func.value
        elif isinstance(node, cst.Subscript):
            node = node.value
        else:
            return text_of(node) in names
