"""Arguments into the items of a dict, laid out as they were."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog


if TYPE_CHECKING:
    from collections.abc import Sequence


_STEP = "    "


def dict_argument(call: cst.Call, names: Sequence[str]) -> cst.Call:
    """Return ``f(model, {"a": 1, **more})`` for ``f(model, a=1, **more)``; ``f(model)`` stays.

    Args:
        call: A call whose arguments are named, or stand in the order of ``names``, the first of which is
            called ``module``.
        names: The names of the parameters in the order of their positions.
    """
    model, items = _divide(call, names)
    if not items:
        return call.with_changes(args=[_positional(model)])
    spread = call.args[-1] if call.args[-1] is not model else items[-1][1]
    only = items[0][1]
    # `**kwargs` alone is a dict already.
    if len(items) == 1 and only.star == "**":
        return call.with_changes(args=_two(_positional(model), only.with_changes(star=""), spread))
    exploded = _is_exploded(call)
    elements = []
    for place, (name, arg) in enumerate(items):
        last = place == len(items) - 1
        elements.append(_element(name, arg, last=last, exploded=exploded))
    braces = cst.Dict(elements)
    if exploded:
        opening = _newline(call.whitespace_before_args)
        end = _end_of(spread)
        # What is said of the last item stays beside it.
        deeper = cst.ensure_type(end.visit(_Deeper()), cst.ParenthesizedWhitespace)
        closing = deeper.with_changes(last_line=_last_line(call.whitespace_before_args))
        elements[-1] = elements[-1].with_changes(comma=cst.Comma(whitespace_after=closing))
        spread = _with_end(spread, end.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[]))
        braces = cst.Dict(elements, lbrace=cst.LeftCurlyBrace(whitespace_after=opening))
    return call.with_changes(args=_two(_positional(model), cst.Arg(braces), spread))


def _divide(call: cst.Call, names: Sequence[str]) -> tuple[cst.Arg, list[tuple[str, cst.Arg]]]:
    """Return the argument that is the model, and the others with their names."""
    model: cst.Arg | None = None
    items: list[tuple[str, cst.Arg]] = []
    for place, arg in enumerate(call.args):
        if arg.star:
            items.append(("", arg))
            continue
        name = arg.keyword.value if arg.keyword is not None else names[place]
        if name == names[0]:
            model = arg
        else:
            items.append((catalog.FORMER_ARGUMENTS.get(name, name), arg))
    assert model is not None
    return model, items


def _positional(arg: cst.Arg) -> cst.Arg:
    return cst.Arg(arg.value, comma=arg.comma, whitespace_after_arg=arg.whitespace_after_arg)


def _two(model: cst.Arg, second: cst.Arg, last: cst.Arg) -> list[cst.Arg]:
    """Return the model and what follows it, with the space that stood before the closing parenthesis."""
    comma = model.comma
    if not isinstance(comma, cst.Comma):
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    end = cst.MaybeSentinel.DEFAULT if not isinstance(last.comma, cst.Comma) else last.comma
    model = model.with_changes(comma=comma, whitespace_after_arg=cst.SimpleWhitespace(""))
    return [model, second.with_changes(comma=end, whitespace_after_arg=last.whitespace_after_arg)]


def _element(name: str, arg: cst.Arg, *, last: bool, exploded: bool) -> cst.BaseDictElement:
    value = arg.value
    comma: cst.Comma | cst.MaybeSentinel = cst.MaybeSentinel.DEFAULT
    if not last and isinstance(arg.comma, cst.Comma):
        comma = arg.comma
    elif not last:
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    if exploded:
        deeper = _Deeper()
        value = _as_expression(value.visit(deeper))
        comma = comma if not isinstance(comma, cst.Comma) else _as_comma(comma.visit(deeper))
    if arg.star:
        return cst.StarredDictElement(value, comma=comma)
    return cst.DictElement(cst.SimpleString(f'"{name}"'), value, comma=comma)


def _as_expression(node: object) -> cst.BaseExpression:
    assert isinstance(node, cst.BaseExpression)
    return node


def _as_comma(node: object) -> cst.Comma:
    assert isinstance(node, cst.Comma)
    return node


def _is_exploded(call: cst.Call) -> bool:
    """Tell whether every argument, and the closing parenthesis, stands on a line of its own."""
    if not isinstance(call.whitespace_before_args, cst.ParenthesizedWhitespace):
        return False
    *before, last = call.args
    between = [arg.comma.whitespace_after for arg in before if isinstance(arg.comma, cst.Comma)]
    end = last.comma.whitespace_after if isinstance(last.comma, cst.Comma) else last.whitespace_after_arg
    return all(isinstance(space, cst.ParenthesizedWhitespace) for space in (*between, end))


def _last_line(space: cst.BaseParenthesizableWhitespace) -> cst.SimpleWhitespace:
    assert isinstance(space, cst.ParenthesizedWhitespace)
    return space.last_line


def _newline(space: cst.BaseParenthesizableWhitespace) -> cst.ParenthesizedWhitespace:
    """Return a line's end after which the items stand one step deeper than the arguments did."""
    line = _last_line(space)
    return cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace(line.value + _STEP))


def _end_of(arg: cst.Arg) -> cst.ParenthesizedWhitespace:
    """Return what stands between the last argument and the closing parenthesis of an exploded call."""
    space = arg.comma.whitespace_after if isinstance(arg.comma, cst.Comma) else arg.whitespace_after_arg
    return cst.ensure_type(space, cst.ParenthesizedWhitespace)


def _with_end(arg: cst.Arg, space: cst.ParenthesizedWhitespace) -> cst.Arg:
    if isinstance(arg.comma, cst.Comma):
        return arg.with_changes(comma=arg.comma.with_changes(whitespace_after=space))
    return arg.with_changes(whitespace_after_arg=space)


class _Deeper(cst.CSTTransformer):
    """Moves the lines inside an expression one step to the right."""

    def leave_ParenthesizedWhitespace(  # noqa: N802 - LibCST's names
        self, original_node: cst.ParenthesizedWhitespace, updated_node: cst.ParenthesizedWhitespace
    ) -> cst.ParenthesizedWhitespace:
        lines = [
            line.with_changes(whitespace=cst.SimpleWhitespace(line.whitespace.value + _STEP))
            if line.comment is not None
            else line
            for line in updated_node.empty_lines
        ]
        last = updated_node.last_line
        return updated_node.with_changes(
            empty_lines=lines, last_line=last.with_changes(value=last.value + _STEP)
        )
