"""Lists of parameters that a wrapping leaves alone: they stay the objects that they are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.loops import binds, loops_around
from fsdp_migrate.source.python.nodes import (
    argument_of,
    dotted,
    given_by_name,
    placed_parameters,
    string_in,
    text_of,
    walk_for,
)


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


_LISTS: Final = frozenset({"named_parameters", "parameters"})
_MODULES: Final = "ignored_modules"
_NAMES: Final = frozenset({"ignored_parameters", "ignored_states"})
_PUTS: Final = frozenset({"setdefault", "update"})
_NOT_NONE: Final = r"(?!None\b|\[\]|\(\))"
_GIVEN: Final = re.compile(
    rf"""\bignored_(?:modules|parameters|states)(?:\s*=(?!=)|["']\s*:|["']\]\s*=(?!=))\s*{_NOT_NONE}"""
)


def tells_to_ignore(code: str) -> bool:
    """Tell whether a source gives something that FSDP ignores, by an argument or in a dict.

    Example:
        >>> [tells_to_ignore(f"FSDP(m, ignored_modules={each})") for each in ("[m.head]", "None")]
        [True, False]
    """
    return _GIVEN.search(code) is not None


def ignored_names(source: Source, wrapping: cst.Call) -> Iterator[str]:
    """Yield the names in what a wrapping is given to leave alone, also by a dict: ``FSDP(net, **kwargs)``."""
    for value in _given(source, wrapping):
        yield from (name.value for name in walk_for(value, cst.Name))
        yield from (text for each in walk_for(value, cst.Attribute) if (text := dotted(each)) is not None)
    yield from _of_modules(source, wrapping)
    # The dict holds them for this call.
    yield from (text for arg in wrapping.args if arg.star == "**" and (text := dotted(arg.value)) is not None)


def ignored_texts(source: Source, wrapping: cst.Call) -> Iterator[str]:
    """Yield the attributes in what a wrapping is given to leave alone, modules too: ``net.head``."""
    given = [*_given(source, wrapping), *given_by_name(wrapping, _MODULES)]
    held = [last_value(source.index, each) for each in given if isinstance(each, cst.Name)]
    for value in (*given, *filter(None, held)):
        yield from (text for each in walk_for(value, cst.Attribute) if (text := dotted(each)) is not None)


def _of_modules(source: Source, wrapping: cst.Call) -> Iterator[str]:
    """Yield the lists of parameters that are those of modules which a wrapping is given to leave alone."""
    given = given_by_name(wrapping, _MODULES)
    texts = {text for value in given for each in _named(value) if (text := dotted(each)) is not None}
    for value in given:
        held = last_value(source.index, value) if isinstance(value, cst.Name) else None
        texts |= {text for each in _named(held) if (text := dotted(each)) is not None} if held else set()
    for assign in source.assignments if texts else ():
        funcs = [each.func for each in walk_for(assign.value, cst.Call)]
        asked = [
            each.value for each in funcs if isinstance(each, cst.Attribute) and each.attr.value in _LISTS
        ]
        if asked and all(_is_left(source, each, texts) for each in asked):
            yield from (text for each in assign.targets if (text := dotted(each.target)) is not None)


def _named(value: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield the names and attributes in a list of modules: of ``net.router`` not ``net``."""
    if isinstance(value, (cst.List, cst.Set, cst.Tuple)):
        for each in value.elements:
            yield from _named(each.value)
    elif isinstance(value, (cst.Attribute, cst.Name)):
        yield value


def _is_left(source: Source, module: cst.BaseExpression, texts: set[str]) -> bool:
    """Tell whether a module is left alone, by its name or as one of a list that is gone through."""
    name = text_of(module)
    loops = (each for each in loops_around(source.index, module) if binds(each, name))
    return name in texts or any(text_of(each.iter) in texts for each in loops)


def _given(source: Source, wrapping: cst.Call) -> Iterator[cst.BaseExpression]:
    for arg in wrapping.args:
        if arg.star == "**":
            yield from _of_dict(source, wrapping, arg.value)
        elif arg.keyword is not None and arg.keyword.value in _NAMES:
            yield arg.value


def _of_dict(source: Source, wrapping: cst.Call, given: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield what a dict has for it that a wrapping is given, and what is put into it before."""
    is_name = isinstance(given, cst.Name) and given in source.index.scopes
    made = last_value(source.index, given) if isinstance(given, cst.Name) and is_name else given
    yield from _items(made)
    yield from _made_by(source, made) if isinstance(made, cst.Call) else ()
    text = dotted(given)
    if text is None:
        return
    yield from _put_in(source, text, wrapping)
    for call in source.calls:
        if _is_before(source, call, wrapping, text):
            yield from _filled_by(source, call, text)


def _is_before(source: Source, node: cst.CSTNode, wrapping: cst.Call, text: str) -> bool:
    """Tell whether a place comes before a wrapping, or may in another method of the object of a dict."""
    index = source.index
    if index.function(node) is index.function(wrapping):
        return index.order[node] < index.order[wrapping]
    owner = index.class_of(wrapping) if text.startswith("self.") else None
    return owner is not None and index.class_of(node) is owner


def _put_in(
    source: Source, text: str, wrapping: cst.Call | None = None, within: cst.FunctionDef | None = None
) -> Iterator[cst.BaseExpression]:
    """Yield what is put into a dict: before a wrapping, or in a function that is given it."""

    def is_there(node: cst.CSTNode) -> bool:
        if wrapping is not None:
            return _is_before(source, node, wrapping, text)
        return source.index.function(node) is within

    for assign in source.assignments:
        for each in (target.target for target in assign.targets if is_there(assign)):
            if isinstance(each, cst.Subscript) and text_of(each.value) == text and _key(each) in _NAMES:
                yield assign.value
            elif isinstance(each, cst.Attribute) and text_of(each) == text:
                yield from _items(assign.value)
    for call in source.calls:
        func = call.func
        is_put = isinstance(func, cst.Attribute) and func.attr.value in _PUTS
        if isinstance(func, cst.Attribute) and is_put and text_of(func.value) == text and is_there(call):
            yield from _items(call)


def _made_by(source: Source, call: cst.Call) -> Iterator[cst.BaseExpression]:
    """Yield it of the dict that a function of this source gives: ``FSDP(net, **options(kept))``."""
    for function in source.models.guards.functions(call.func):
        for line in walk_for(function.body, cst.Return):
            value = line.value
            held = [*_items(last_value(source.index, value) if isinstance(value, cst.Name) else value)]
            held += _put_in(source, value.value, within=function) if isinstance(value, cst.Name) else []
            yield from (each for part in held for each in _as_given(call, function, part))


def _filled_by(source: Source, call: cst.Call, text: str) -> Iterator[cst.BaseExpression]:
    """Yield what a function of this source puts into a dict that it is given: ``fill(kwargs, kept)``."""
    if all(text_of(arg.value) != text for arg in call.args):
        return
    for function in source.models.guards.functions(call.func):
        for place, name in enumerate(_parameters(function)):
            given = argument_of(call, place, {name})
            held = (
                _put_in(source, name, within=function) if given is not None and text_of(given) == text else ()
            )
            yield from (each for part in held for each in _as_given(call, function, part))


def _as_given(
    call: cst.Call, function: cst.FunctionDef, value: cst.BaseExpression
) -> Iterator[cst.BaseExpression]:
    """Yield the arguments of a call that a value in its function is made of."""
    names = {each.value for each in walk_for(value, cst.Name)}
    for place, name in enumerate(_parameters(function)):
        given = argument_of(call, place, {name}) if name in names else None
        yield from () if given is None else (given,)


def _parameters(function: cst.FunctionDef) -> list[str]:
    """Return the names of a function's arguments in their order, without the object's own."""
    names = [each.name.value for each in placed_parameters(function)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def _items(held: cst.BaseExpression | None) -> Iterator[cst.BaseExpression]:
    """Yield it of ``{"ignored_states": x}``, ``dict(ignored_states=x)`` and ``d.update({...})``."""
    if isinstance(held, cst.Dict):
        for each in held.elements:
            if isinstance(each, cst.DictElement) and string_in(each.key) in _NAMES:
                yield each.value
    elif isinstance(held, cst.Call):
        first = string_in(held.args[0].value) if len(held.args) > 1 else None
        for arg in held.args:
            if arg.keyword is None:
                yield from _items(arg.value) if isinstance(arg.value, cst.Dict) else ()
            if (arg.keyword.value if arg.keyword is not None else first) in _NAMES:
                yield arg.value


def _key(target: cst.Subscript) -> str | None:
    index = target.slice[0].slice if len(target.slice) == 1 else None
    return string_in(index.value) if isinstance(index, cst.Index) else None
