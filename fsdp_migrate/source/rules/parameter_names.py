"""FSDP1's flat parameters had names of their own; FSDP2's have the model's, by which groups are made.

What is decided by a name after wrapping, such as which parameters are decayed, comes out differently.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, NamedTuple

import libcst as cst

from fsdp_migrate.source.flat_parameters import flat_of, of_flat
from fsdp_migrate.source.names_from_outside import looked_for_within
from fsdp_migrate.source.parameter_values import ParameterValues
from fsdp_migrate.source.plain_copies import PlainCopies
from fsdp_migrate.source.python.held import FLAT
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.named_loops import named_loops
from fsdp_migrate.source.python.nodes import dotted, last_name, parameters_of, text_of, walk_for
from fsdp_migrate.source.python.strategies import is_one_unit
from fsdp_migrate.source.sharded_parts import whole_of
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "parameter-names"
CODES = ("FM318",)

_NAMED = "with names that end in `_flat_param`; FSDP2's have the model's names"
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
_FROM_BEFORE = (
    "FSDP1's names began with `_fsdp_wrapped_module.` here, so that none was among these, which are from "
    "before sharding or of a full state; FSDP2's are the model's, so this decides differently, without an "
    "error. Decide which is meant."
)
_FROM_OUTSIDE = (
    "these names are from outside of summon_full_params, where FSDP1's were those of flat parameters without "
    "use_orig_params=True: none within was among them. FSDP2's are the model's in both, so this decides "
    "differently, without an error. Decide which is meant."
)
_PART = (
    "FSDP1's names had `_fsdp_wrapped_module.` in them here, so that this was another part of the name, or "
    "no match; FSDP2's are the model's, so this decides differently, without an error, or raises. Decide "
    "which is meant; a checkpoint of FSDP1 has the old groups."
)
_OLD_GROUPS = "; a checkpoint of FSDP1 has the old groups"
_OF_UNITS = (
    "of what stands in a unit FSDP1's names had `_fsdp_wrapped_module.` behind the unit's here, so that this "
    "was another part of the name, or no match; FSDP2's are the model's, so this decides differently, "
    "without an error. Decide which is meant; a checkpoint of FSDP1 has the old groups."
)
_SAVED = (
    "of what stands in a unit FSDP1's names had `_fsdp_wrapped_module.` in them here, in a LightningModule, "
    "and those of the state that is saved had not: what is looked up by them was not found, and is now. See "
    "which parameters the file is to hold."
)
CLEANED = re.compile(r"_fsdp_wrapped_module|clean_tensor_name|_flat_param")
_ASKS = frozenset({"endswith", "find", "startswith"})
_MATCHES = frozenset({"findall", "fnmatch", "fnmatchcase", "fullmatch", "match", "search"})
_FROM_START = frozenset({"fnmatch", "fnmatchcase", "fullmatch", "match"})
_ANY_START = re.compile(r"\^?\(?(\?:)?(\.[*+]|\*)")
_SAME_TEXT = frozenset({"casefold", "lower", "partition", "rpartition", "rsplit", "split", "strip", "upper"})
_DEEPEST = 2
_PUTS = frozenset({"add", "append", "insert"})
# Lightning and Fabric put a module of their own around FSDP1's, or go by the one within, and ask for
# use_orig_params=True as Hugging Face's Trainer does.
OF_A_MODULE = frozenset({"fabric", "lightning"})
_KEEP_NAMES = frozenset({"transformers"})
# A unit's name ends before that: `blocks.0.attn`, `blocks.{i}.attn`, `blocks\\.\\d+\\.attn`. What stands for
# any text (`.*`) stands for the mark, too; `0.weight` is of a Linear, which seldom is a unit.
_BEHIND = r"\.(?!(?:weight|bias)\b)[A-Za-z_]"
_ACROSS = re.compile(rf"(?:(?:^|\.)\d+|\\d[+*]?\)?|\])\\?{_BEHIND}")
_BEHIND_A_VALUE = re.compile(_BEHIND)
_PAST_A_UNIT = 3
"""The first part of a name that may stand behind a unit's: ``model.blocks.0.attn``."""
_SAVERS = frozenset({"on_load_checkpoint", "on_save_checkpoint"})
LOOPS = (cst.For, cst.ListComp, cst.GeneratorExp, cst.SetComp)


def find(source: Source) -> Iterator[Found]:
    """Find where parameters of a sharded model are chosen by their names."""
    flat, values = of_flat(source, _NAMED), ParameterValues(source)
    copies = PlainCopies(values)
    for call in source.calls:
        func = call.func
        if not isinstance(func, cst.Attribute) or func.attr.value != "named_parameters":
            continue
        model = whole_of(source, func.value)
        if model is None:
            if FLAT in source.models.kinds(func.value):
                yield from _of_inner(source, call, copies)
            continue
        if source.contexts.is_summoned(call):
            is_own = source.models.sharded_by(model) in OF_A_MODULE | _KEEP_NAMES
            found = (
                looked_for_within(values, call) if flat_of(source, model, flat, _NAMED) and not is_own else ()
            )
            yield from (Found("FM318", test, _FROM_OUTSIDE, "commented") for test in found)
            continue
        if _is_by_state(source, call, model):
            yield Found("FM318", call, _SAVED, "commented")
            continue
        for loop, names in named_loops(source.index, call):
            if isinstance(loop, LOOPS):
                yield from _of_loop(
                    source,
                    loop,
                    names,
                    Asked(func.value, model, flat_of(source, model, flat, _NAMED), copies),
                )


def _of_inner(source: Source, call: cst.Call, copies: PlainCopies) -> Iterator[Found]:
    """Find names across units where Hugging Face's Trainer shows what is within FSDP1's outermost wrapper."""
    for loop, names in named_loops(source.index, call):
        function = source.index.function(loop) or source.module
        if isinstance(loop, LOOPS) and not CLEANED.search(text_of(function)) and chooses(loop, names[1]):
            asked = across_units(source, loop, names, copies)
            yield from (Found("FM318", node, _OF_UNITS, "commented") for node in asked)


class Asked(NamedTuple):
    """A question for named parameters."""

    asked: cst.BaseExpression
    """What was asked: the model, or a part of it."""
    model: cst.BaseExpression
    flat: str
    """What is said of flat parameters' names."""
    copies: PlainCopies


def _of_loop(source: Source, loop: cst.CSTNode, names: tuple[str, str], by: Asked) -> Iterator[Found]:
    """Find where a loop over a sharded model's parameters asks for their names."""
    function = source.index.function(loop) or source.module
    is_choice = chooses(loop, names[1])
    if CLEANED.search(text_of(function)) or not (is_choice or changes(loop, names[1])):
        return
    sharded_by = source.models.sharded_by(by.model)
    if sharded_by in OF_A_MODULE:
        asks = is_choice and has_units(source, by.model)
        asked = across_units(source, loop, names, by.copies) if asks else ()
        yield from (Found("FM318", node, _OF_UNITS, "commented") for node in asked)
        return
    # A part has names of the model's own, but for those of flat parameters.
    is_inner = by.model is not by.asked or shows_the_inner(source, by.asked)
    of_flat = "" if sharded_by in _KEEP_NAMES else by.flat
    is_across = not of_flat and not is_one_unit(source.models, by.model)
    across = across_units(source, loop, names, by.copies) if is_across else ()
    said_of = dict.fromkeys(across, _OF_UNITS)
    said_of |= dict(_said(source, loop, names, is_inner=is_inner, of_flat=of_flat))
    if not is_choice:  # what is written to parameters or gradients is in no checkpoint as groups
        said_of = {node: said.replace(_OLD_GROUPS, "") for node, said in said_of.items()}
    if not is_inner:
        said_of |= dict.fromkeys(_of_names_before(source, loop, names, by.copies), _FROM_BEFORE)
    yield from (Found("FM318", node, said, "commented") for node, said in said_of.items())


def shows_the_inner(source: Source, asked: cst.BaseExpression) -> bool:
    """Tell whether it is what FSDP1's outermost wrapper held, whose names did not begin with its mark."""
    return text_of(asked).endswith(".module") or source.models.is_inner(asked)


def has_units(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether it is a LightningModule whose parts FSDP1's strategy wrapped, too."""
    return source.models.sharded_by(model) == "lightning" and source.models.frameworks.has_units


def _is_by_state(source: Source, call: cst.Call, model: cst.BaseExpression) -> bool:
    """Tell whether a hook that sees what is saved asks a LightningModule with units for its names."""
    function = source.index.function(call)
    is_saver = function is not None and function.name.value in _SAVERS
    return is_saver and has_units(source, model) and not CLEANED.search(text_of(function or call))


def across_units(
    source: Source, loop: cst.CSTNode, names: tuple[str, str], copies: PlainCopies
) -> Iterator[cst.BaseExpression]:
    """Yield what is asked of names in a loop that a unit's mark would stand in: ``"blocks.0.attn" in n``."""
    for test, _ in tests_of_names(source, loop, names):
        looped = list(_looped_over(source, test))
        asked = [*walk_for(test, cst.Name), *looped]
        read = [each for one in asked if (each := _value(source, one)) is not None]
        texts = (text for each in (test, *read) for text in walk_for(each, cst.SimpleString))
        formatted = (text for each in (test, *read) for text in walk_for(each, cst.FormattedString))
        is_told = any(_ACROSS.search(str(text.evaluated_value)) for text in texts)
        # Names from before sharding are whole: `any(name in n for name in names)`.
        if is_told or any(map(_is_across, formatted)) or any(map(copies.holds_names, looped)):
            yield test
    for part in _counted_parts(loop, names[0]):
        place = part.slice[0].slice
        number = place.value if isinstance(place, cst.Index) else None
        if isinstance(number, cst.Integer) and number.evaluated_value >= _PAST_A_UNIT:
            yield part


def _looped_over(source: Source, test: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield what a question in ``any`` is asked for: ``any(k in n for k in keys)``."""
    for loop in source.index.ancestors(test):
        if not isinstance(loop, (cst.GeneratorExp, cst.ListComp)):
            return
        yield loop.for_in.iter


def _is_across(text: cst.FormattedString) -> bool:
    """Tell whether a part of a name stands behind a value: ``f"blocks.{i}.attn"``."""
    parts = text.parts
    return any(
        isinstance(one, cst.FormattedStringExpression)
        and isinstance(other, cst.FormattedStringText)
        and _BEHIND_A_VALUE.match(other.value)
        for one, other in itertools.pairwise(parts)
    )


def _said(
    source: Source, loop: cst.CSTNode, names: tuple[str, str], *, is_inner: bool, of_flat: str
) -> Iterator[tuple[cst.BaseExpression, str]]:
    """Yield what is asked of names in a loop, and what is said of it."""
    for test, is_start in tests_of_names(source, loop, names):
        asked = ((test, is_start, names[0]), *_asked_within(source, test, names[0]))
        said = "" if is_inner else next(filter(None, (_said_of_root(source, *each) for each in asked)), "")
        if of_flat and said in {"", _PART}:
            said = of_flat
        if said:
            yield test, said
    parts = () if is_inner or of_flat else _counted_parts(loop, names[0])
    yield from ((part, _PART) for part in parts)


def _said_of_root(source: Source, test: cst.BaseExpression, is_start: bool, name: str) -> str:
    """Return what is said of a question that is about the beginning of a name, where FSDP1's wrapper was."""
    if is_start:
        return _START
    if is_of_wholes(source, test, name):
        return _NONE
    return _PART if is_from_the_start(source, test) else ""


def _asked_within(
    source: Source, test: cst.BaseExpression, name: str
) -> Iterator[tuple[cst.BaseExpression, bool, str]]:
    """Yield what a function of the source asks of a name that it is given: ``if not no_decay(n)``."""
    if not isinstance(test, cst.Call):
        return
    if not all(_is_whole(arg.value, name) for arg in test.args if _is_name(arg.value, {name})):
        return  # `no_decay(n.split(".")[-1])`
    for function, given in _given_there(source, test, {name}):
        for each in given:
            asked = asked_of_name(function.body, {each}, each)
            yield from ((part, is_start, each) for part, is_start in asked)


def _of_names_before(
    source: Source, loop: cst.CSTNode, names: tuple[str, str], copies: PlainCopies
) -> Iterator[cst.BaseExpression]:
    """Yield the questions whether a name is among those of the model before sharding: ``n in masks``."""
    for test, _ in tests_of_names(source, loop, names):
        if isinstance(test, cst.Comparison) and text_of(test.left) == names[0]:
            asked = test.comparisons[0]
            if isinstance(asked.operator, (cst.In, cst.NotIn)) and copies.holds_names(asked.comparator):
                yield test


def changes(loop: cst.CSTNode, parameter: str) -> bool:
    """Tell whether a loop changes parameters, or their gradients: ``p.grad.mul_(masks[n])``."""
    if not isinstance(loop, cst.For):
        return False
    asked = (call.func for call in walk_for(loop.body, cst.Call))
    methods = (func for func in asked if isinstance(func, cst.Attribute))
    if any(each.attr.value.endswith("_") and _root(each) == parameter for each in methods):
        return True
    targets = [each.target for each in walk_for(loop.body, cst.AssignTarget)]
    targets += [each.target for each in walk_for(loop.body, cst.AugAssign)]
    return any(not isinstance(each, cst.Name) and _root(each) == parameter for each in targets)


def _root(node: cst.BaseExpression) -> str:
    """Return what attributes, items and methods are taken of: ``p`` of ``p.grad.detach()``."""
    while isinstance(node, (cst.Attribute, cst.Call, cst.Subscript)):
        node = node.func if isinstance(node, cst.Call) else node.value
    return text_of(node)


def is_of_wholes(source: Source, test: cst.BaseExpression, name: str) -> bool:
    """Tell whether a name is compared with whole names that stand here: ``n == "head.weight"``."""
    asked = (test.left, test.comparisons[0].comparator) if isinstance(test, cst.Comparison) else ()
    if not isinstance(test, cst.Comparison) or not any(_is_whole(each, name) for each in asked):
        return False
    sides = [_value(source, each) for each in asked]
    if isinstance(test.comparisons[0].operator, (cst.Equal, cst.NotEqual)):
        return any(isinstance(each, cst.SimpleString) for each in sides)
    held = sides[1]
    texts = [each.value for each in held.elements] if isinstance(held, (cst.List, cst.Set, cst.Tuple)) else []
    return bool(texts) and all(isinstance(each, cst.SimpleString) for each in texts)


def is_from_the_start(source: Source, test: cst.BaseExpression) -> bool:
    """Tell whether a pattern begins where the name does: ``re.match(r"layers", n)``."""
    if not isinstance(test, cst.Call):
        return False
    last = last_name(test.func)
    texts = [_value(source, arg.value) for arg in test.args]
    held = [str(each.evaluated_value) for each in texts if isinstance(each, cst.SimpleString)]
    is_anchored = last in _FROM_START or any(each.startswith("^") for each in held)
    return last in _MATCHES and is_anchored and any(not _ANY_START.match(each) for each in held)


def _counted_parts(loop: cst.CSTNode, name: str) -> Iterator[cst.Subscript]:
    """Yield the parts of a name that are counted from its beginning: ``int(n.split(".")[1])``."""
    made = {text_of(each.targets[0].target): each.value for each in walk_for(loop, cst.Assign)}
    for node in walk_for(loop, cst.Subscript):
        value = made.get(text_of(node.value), node.value)  # `parts = n.split(".")`, and `parts[1]` of that
        func = value.func if isinstance(value, cst.Call) else None
        is_split = isinstance(func, cst.Attribute) and func.attr.value in {"split", "partition"}
        inner = node.slice[0].slice if len(node.slice) == 1 else None
        is_placed = isinstance(inner, cst.Index) and isinstance(inner.value, cst.Integer)
        is_names = is_split and is_placed and text_of(cst.ensure_type(func, cst.Attribute).value) == name
        if is_names and not _is_behind_a_word(cst.ensure_type(value, cst.Call), node):
            yield node


def _is_behind_a_word(call: cst.Call, part: cst.Subscript) -> bool:
    """Tell whether a part stands behind a word, wherever that is: ``n.split("layers.")[1]``."""
    mark = call.args[0].value if call.args else None
    is_word = isinstance(mark, cst.SimpleString) and any(map(str.isalnum, str(mark.evaluated_value)))
    return is_word and text_of(part.slice[0]) != "0"


def _value(source: Source, node: cst.BaseExpression) -> cst.BaseExpression | None:
    return last_value(source.index, node) if isinstance(node, cst.Name) else node


def chooses(loop: cst.CSTNode, parameter: str) -> bool:
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


def tests_of_names(
    source: Source, loop: cst.CSTNode, names: tuple[str, str]
) -> Iterator[tuple[cst.BaseExpression, bool]]:
    """Yield what is asked of a name in a loop and decides, and whether it is asked of its beginning."""
    name, known = names[0], {names[0]}
    if isinstance(loop, cst.For):
        made = {text_of(each.targets[0].target): each.value for each in walk_for(loop.body, cst.Assign)}
        for text, value in made.items():
            if _is_name(value, known):  # `low = name.lower()`
                known.add(text)
        tests = list(_deciding(loop, names[1]))
        for _ in range(_DEEPEST):  # `skip = "bias" in name`
            read = (each.value for test in tests for each in walk_for(test, cst.Name))
            tests += [made[text] for text in read if text in made and made[text] not in tests]
    else:
        assert isinstance(loop, (cst.ListComp, cst.GeneratorExp, cst.SetComp))
        tests = [each.test for each in loop.for_in.ifs]
    for test in tests:
        yield from ((part, is_start) for part, is_start in asked_of_name(test, known, name))
        for call in walk_for(test, cst.Call):
            if _is_asked_there(source, call, known):
                yield call, False


def _deciding(loop: cst.For, parameter: str) -> Iterator[cst.BaseExpression]:
    """Yield what decides on a parameter in the body of a loop: tests, and what ``requires_grad`` gets."""
    yield from (each.test for each in walk_for(loop.body, cst.If))
    yield from (each.test for each in walk_for(loop.body, cst.IfExp))
    for assign in walk_for(loop.body, cst.Assign):
        if text_of(assign.targets[0].target) == f"{parameter}.requires_grad":
            yield assign.value
    for call in walk_for(loop.body, cst.Call):
        if dotted(call.func) == f"{parameter}.requires_grad_":
            yield from (arg.value for arg in call.args)


def asked_of_name(
    test: cst.CSTNode, known: set[str], name: str = ""
) -> Iterator[tuple[cst.BaseExpression, bool]]:
    """Yield the questions about a name in an expression, and whether they are about its beginning."""
    for part in walk_for(test, cst.Comparison):
        operator, other = part.comparisons[0].operator, part.comparisons[0].comparator
        is_told = isinstance(operator, (cst.Equal, cst.In, cst.NotEqual, cst.NotIn))
        if is_told and any(_is_name(each, known) for each in (part.left, other)):
            yield part, False
    for call in walk_for(test, cst.Call):
        last = last_name(call.func)
        func = call.func
        is_asked = (
            isinstance(func, cst.Attribute) and func.attr.value in _ASKS and _is_name(func.value, known)
        )
        if is_asked and isinstance(func, cst.Attribute):
            yield call, func.attr.value == "startswith" and _is_whole(func.value, name)
        elif last in _MATCHES and any(_is_name(arg.value, known) for arg in call.args):
            yield call, False


def _is_asked_there(source: Source, call: cst.Call, known: set[str]) -> bool:
    """Tell whether a function of the source is given a name, and asks for what is in it."""
    return any(any(asked_of_name(each.body, given)) for each, given in _given_there(source, call, known))


def _given_there(
    source: Source, call: cst.Call, known: set[str]
) -> Iterator[tuple[cst.FunctionDef | cst.Lambda, set[str]]]:
    """Yield the functions of the source that a call gives a name as it is, and what they call it."""
    places = [place for place, arg in enumerate(call.args) if _is_name(arg.value, known)]
    for function in _run_by(source, call.func) if places else ():
        params = [
            each.name.value for each in parameters_of(function) if each.name.value not in {"cls", "self"}
        ]
        given = {params[place] for place in places if place < len(params)}
        if given and CLEANED.search(text_of(function)) is None:
            yield function, given


def _run_by(source: Source, func: cst.BaseExpression) -> Iterator[cst.FunctionDef | cst.Lambda]:
    """Yield the functions of the source that a call runs, also one without a name of its own."""
    yield from source.models.guards.functions(func)
    value = last_value(source.index, func) if isinstance(func, cst.Name) else None
    if isinstance(value, cst.Lambda):
        yield value


def _is_name(node: cst.BaseExpression, known: set[str]) -> bool:
    """Tell whether it is a name, the same in small letters, or a part of it: ``n.split(".")[-1]``."""
    while text_of(node) not in known:
        if isinstance(node, cst.Subscript):
            node = node.value
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            if node.func.attr.value not in _SAME_TEXT:
                return False
            node = node.func.value
        else:
            return False
    return True


def _is_whole(node: cst.BaseExpression, name: str) -> bool:
    return text_of(node) in {name, f"{name}.lower()"}
