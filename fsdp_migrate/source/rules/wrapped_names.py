"""``_fsdp_wrapped_module`` stood in the names of FSDP1's modules, and stands in none of FSDP2's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import lightning_prefix
from fsdp_migrate.source.python.branches import leaves
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.loops import binds, loops_around
from fsdp_migrate.source.python.names_of_classes import name_test
from fsdp_migrate.source.python.nodes import dotted, last_name, text_of, walk_for
from fsdp_migrate.source.rules.privates import asked_attribute, is_of_another_package
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "wrapped-names"
CODES = ("FM316", "FM335")

_NAMES = re.compile(r"_fsdp_wrapped_module|_fpw_module|_flat_param\b")
_PART = re.compile(r"(?:_fsdp_wrapped_module|_fpw_module|_flat_param)\.?")
_EMPTY = re.compile(r"^(?:f?['\"]{2}\+|f['\"]\{)(.+?)(?:\}['\"])?$")
_OF_NAMES = re.compile(r"\bnamed_|state_dict")
_CLEAN = "stays: names are clean already, so there is nothing to take out"
_LISTED = "stays: one of several parts that names may have, and no name has it any more"
_TRIED = "stays: tried after the clean name, which is found first now"
_MEANT = "FSDP2 puts nothing into names: no name has this part any more."
_CLASS = (
    "this is false now: no FSDP2 model's class has this name, that of a unit is its own class's with FSDP "
    "before it. Ask isinstance(model, FSDPModule) of torch.distributed.fsdp, and see what depends on it."
)
_BESIDE = "So is what stands beside it, {}: leave that out."
_SINCE = (
    "FSDP1's class had no such name, so that this was false of a sharded model. FSDP2's have it, and it is "
    "true now: see which branch is meant."
)
_CLASS_NAME = re.compile(r"FullySharded(DataParallel)?['\"]")
_STRATEGY = (
    "this is the name of Lightning's FSDP1 strategy: where ModelParallelStrategy takes its place, ask for "
    "that, and see what depends on it."
)
_STRATEGY_NAME = re.compile(r"^['\"]FSDP(Strategy)?['\"]$")
_TYPE = re.compile(r"__name__|__class__|__qualname__|\b_get_name\(|\btype\(")
# Calls that take a part out of a name where it is, and leave the name alone where it is not.
_HARMLESS = frozenset({"lstrip", "removeprefix", "removesuffix", "replace", "split", "sub", "strip"})


_ASKED = frozenset({"endswith", "startswith"})
_FOR_PEOPLE = frozenset({"description", "help", "msg"})
_SAYS = frozenset({"debug", "error", "info", "print", "warn", "warning"})


def find(source: Source) -> Iterator[Found]:
    """Find strings with the parts that FSDP1 put into names, and tests for the name of its class."""
    if is_of_another_package(source):
        return
    for kind in (cst.SimpleString, cst.FormattedStringText):
        for node in source.index.by_kind.get(kind, ()):
            assert isinstance(node, (cst.SimpleString, cst.FormattedStringText))
            if not _NAMES.search(node.value) or _is_docstring(source, node):
                continue
            if _is_help(source, node) or _is_told_by_the_attribute(source, node):
                continue
            if _is_taken_out(source, node) or _is_asked_for(source, node):
                yield Found("FM316", node, _CLEAN, "kept")
            elif _is_tried_last(source, node):
                yield Found("FM316", node, _TRIED, "kept")
            elif _is_one_of_a_list(source, node):
                yield Found("FM316", node, _LISTED, "kept")
            else:
                yield Found("FM316", node, _MEANT, "commented")

    yield from (Found("FM316", each, _MEANT, "commented") for each in _short_names(source))
    yield from _class_names(source)
    yield from (
        Found("FM316", each, lightning_prefix.SAID, "commented")
        for each in lightning_prefix.counted_on(source)
    )


def _short_names(source: Source) -> Iterator[cst.SimpleString]:
    """Yield what is short for FSDP1's parts of names: ``"fsdp" in name``, of a model's parameters."""
    for node in source.index.by_kind.get(cst.Comparison, ()):
        test = cst.ensure_type(node, cst.Comparison)
        if not isinstance(test.left, cst.SimpleString) or len(test.comparisons) != 1:
            continue
        operator, asked = test.comparisons[0].operator, test.comparisons[0].comparator
        if isinstance(operator, (cst.In, cst.NotIn)) and isinstance(asked, cst.Name):
            is_short = str(test.left.evaluated_value).strip("_.").lower() == "fsdp"
            if is_short and _is_of_parameters(source, asked):
                yield test.left


def _is_of_parameters(source: Source, name: cst.Name) -> bool:
    """Tell whether a name is one of a model's names, by the loop that it stands in."""
    loops = (loop for loop in loops_around(source.index, name) if binds(loop, name.value))
    return any(_OF_NAMES.search(text_of(loop.iter)) for loop in loops)


def _class_names(source: Source) -> Iterator[Found]:
    """Find tests for the name of FSDP1's class, or of Lightning's strategy."""
    for test in source.index.by_kind.get(cst.Comparison, ()):
        assert isinstance(test, cst.Comparison)
        said = _said_of_class(source, test)
        if said is not None:
            yield Found(*_coded(source, test, said), "commented")
        elif _asks_for_strategy([test.left, *(each.comparator for each in test.comparisons)]):
            yield Found("FM316", test, _STRATEGY, "commented")
    for call in source.calls:
        said = _said_of_class(source, call) if isinstance(call.func, cst.Attribute) else None
        if said is not None:
            yield Found(*_coded(source, call, said), "commented")
        elif (
            isinstance(call.func, cst.Attribute)
            and call.func.attr.value in _ASKED
            and _asks_for_strategy([call.func.value, *(arg.value for arg in call.args)])
        ):
            yield Found("FM316", call, _STRATEGY, "commented")


def _coded(source: Source, test: cst.BaseExpression, said: str) -> tuple[str, cst.BaseExpression, str]:
    """Return the code of such a test: what is false now stops a run; with what is false beside it."""
    if said is not _CLASS:
        return "FM316", test, said
    whole = test
    for above in source.index.ancestors(test):
        if not isinstance(above, cst.BooleanOperation) or not isinstance(above.operator, cst.And):
            break
        whole = above
    asked = (call for call in walk_for(whole, cst.Call) if dotted(call.func) == "hasattr")
    texts = (
        text_of(call) for call in asked if re.search(r"^['\"]module['\"]$", text_of(call.args[-1].value))
    )
    beside = next(texts, None)
    return "FM335", test, said if beside is None else f"{said} {_BESIDE.format(beside)}"


def _said_of_class(source: Source, test: cst.Comparison | cst.Call) -> str | None:
    """Return what there is to say of a test for the name of a model's class, if FSDP2 answers it otherwise.

    What is not seen to be a model may be another object, unless FSDP1's class is named.
    """
    asked = name_test(source.index, test)
    if asked is None:
        is_its = isinstance(test, cst.Comparison) and _asks_for_class_name(source, test)
        return _CLASS if is_its else None
    if _is_raised(source, test, text_of(asked.model)):
        return None
    is_its = any("fullysharded" in each.lower().replace("_", "") for each in asked.words)
    if asked.was is asked.will_be or not (is_its or source.models.certainty(asked.model) is not None):
        return None
    if not is_its and _unwraps_alone(source, test, text_of(asked.model)):
        return None
    return _CLASS if asked.was else _SINCE


def _is_raised(source: Source, test: cst.CSTNode, asked: str) -> bool:
    """Tell whether it is an error's text that is asked: ``except TypeError as e: assert "..." in str(e)``."""
    around = (each for each in source.index.ancestors(test) if isinstance(each, cst.ExceptHandler))
    if any(each.name is not None and text_of(each.name.name) == asked for each in around):
        return True
    name = asked.removesuffix(".value")
    return name != asked and any(
        last_name(item.item.func) == "raises"
        and item.asname is not None
        and text_of(item.asname.name) == name
        for item in walk_for(source.index.function(test) or source.module, cst.WithItem)
        if isinstance(item.item, cst.Call)
    )


def _unwraps_alone(source: Source, test: cst.CSTNode, model: str) -> bool:
    """Tell whether a test only takes the wrapper off, which is not there: ``if ...: m = m.module``."""
    above = source.index.parents[test]
    if isinstance(above, cst.IfExp):
        return text_of(above.body) == f"{model}.module"
    body = above.body.body if isinstance(above, cst.If) else ()
    lines = [part for line in body if isinstance(line, cst.SimpleStatementLine) for part in line.body]
    value = lines[0].value if len(lines) == 1 and isinstance(lines[0], (cst.Assign, cst.Return)) else None
    return value is not None and text_of(value) == f"{model}.module"


def _asks_for_strategy(parts: list[cst.BaseExpression]) -> bool:
    """Tell whether a test asks for Lightning's strategy: ``type(strategy).__name__ == "FSDPStrategy"``."""
    texts = [text.value for part in parts for text in walk_for(part, cst.SimpleString)]
    is_named = any(map(_STRATEGY_NAME.match, texts))
    return is_named and any(_TYPE.search(text_of(each)) and "strategy" in text_of(each) for each in parts)


def _asks_for_class_name(source: Source, test: cst.Comparison) -> bool:
    """Tell whether a test asks for FSDP1's class by its name: ``type(m).__name__ == "Fully..."``."""
    texts = [text.value for text in walk_for(test, cst.SimpleString)]
    if not any(_CLASS_NAME.search(text) for text in texts):
        return False
    sides = [test.left, *(each.comparator for each in test.comparisons)]
    values = [last_value(source.index, each) for each in sides if isinstance(each, (cst.Name, cst.Attribute))]
    return any(_TYPE.search(text_of(each)) for each in (*sides, *values) if each is not None)


def _is_docstring(source: Source, node: cst.CSTNode) -> bool:
    return isinstance(source.index.parents[node], cst.Expr)


def _is_help(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether a string is for people: ``help="..."``, or what is raised, logged or printed."""
    for above in source.index.ancestors(node):
        if isinstance(above, cst.Arg) and above.keyword is not None and above.keyword.value in _FOR_PEOPLE:
            return True
        if isinstance(above, cst.Raise):
            return True
        if isinstance(above, cst.Call):
            name = last_name(above.func)
            return name in _SAYS or name.endswith(("Error", "Exception", "Warning"))
    return False


def _is_told_by_the_attribute(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether a string names an attribute of FSDP1's, of which FM317 speaks.

    ``getattr(m, "_flat_param")``, and the label in ``print(f"m._flat_param: {m._flat_param}")``.
    """
    if not source.uses_fsdp1:
        return False
    if asked_attribute(source, node) is not None:
        return True
    line = source.index.statement(node)
    if not isinstance(line, cst.SimpleStatementLine) or not isinstance(node, cst.FormattedStringText):
        return False
    names = set(_NAMES.findall(node.value))
    return any(each.attr.value in names for each in walk_for(line, cst.Attribute))


def _is_one_of_a_list(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether it stands among other names, in a list of parts that are taken out or passed over."""
    element = source.index.parents[node]
    whole = source.index.parents.get(element)
    if not isinstance(element, cst.Element) or not isinstance(whole, (cst.List, cst.Tuple, cst.Set)):
        return False
    return len(whole.elements) > 1 and all(isinstance(each.value, cst.BaseString) for each in whole.elements)


def _is_tried_last(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether a name with the part is looked for where the same name without it was not there.

    ``if key in keys: return key``, and below it ``if "_fsdp_wrapped_module." + key in keys:``.
    """
    choice = next((a for a in source.index.ancestors(node) if isinstance(a, cst.If)), None)
    asked = _looked_up(choice.test) if choice is not None else None
    if asked is None or choice is None or not _NAMES.search(text_of(choice.test)):
        return False
    is_asked = choice.test in set(source.index.ancestors(node))
    # What is found so is given back by the same name.
    is_same = any(text_of(each) == text_of(_key(choice.test)) for each in source.index.ancestors(node))
    is_last = any(_looked_up(test) == asked for test in _tried_before(source, choice))
    return is_last and (is_asked or is_same)


def _key(test: cst.BaseExpression) -> cst.BaseExpression:
    return cst.ensure_type(test, cst.Comparison).left


def _looked_up(test: cst.BaseExpression) -> tuple[str, str] | None:
    """Return what is looked up, without FSDP1's part, and in what: ``("key", "keys")`` of ``key in keys``."""
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return None
    asked = test.comparisons[0]
    if not isinstance(asked.operator, cst.In):
        return None
    clean = _PART.sub("", text_of(test.left))
    return _EMPTY.sub(r"\1", clean), text_of(asked.comparator)


def _tried_before(source: Source, choice: cst.If) -> Iterator[cst.BaseExpression]:
    """Yield the tests for clean names that were false above: of ``elif``, and of branches that left."""
    first = choice
    while isinstance(above := source.index.parents.get(first), cst.If):
        first = above
        if not _NAMES.search(text_of(first.test)):
            yield first.test
    for each in above.body if isinstance(above, cst.IndentedBlock) else ():
        if each is first:
            return
        is_past = isinstance(each, cst.If) and each.orelse is None and leaves(each.body)
        if is_past and isinstance(each, cst.If) and not _NAMES.search(text_of(each.test)):
            yield each.test


def _is_asked_for(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether a model is asked for the attribute, or a name for the part that is then taken out."""
    arg = source.index.parents[node]
    call = source.index.parents.get(arg)
    if isinstance(call, cst.Call) and last_name(call.func) not in _ASKED:
        with_default = dotted(call.func) == "getattr" and len(call.args) == 3
        return with_default or dotted(call.func) == "hasattr"
    for above in source.index.ancestors(node):
        if isinstance(above, (cst.If, cst.IfExp)):
            return any(_is_harmless(each) for each in walk_for(above.body, cst.Call))
        if isinstance(above, cst.BaseStatement):
            return False
    return False


def _is_harmless(call: cst.Call) -> bool:
    """Tell whether a call takes one of FSDP1's parts out of a name."""
    named = isinstance(call.func, cst.Attribute) and call.func.attr.value in _HARMLESS
    return named and any(_NAMES.search(text.value) for text in walk_for(call, cst.SimpleString))


def _is_taken_out(source: Source, node: cst.CSTNode) -> bool:
    for above in source.index.ancestors(node):
        if isinstance(above, cst.Call):
            func = above.func
            name = func.attr.value if isinstance(func, cst.Attribute) else getattr(func, "value", "")
            return name in _HARMLESS
        if isinstance(above, cst.BaseStatement):
            return False
    return False
