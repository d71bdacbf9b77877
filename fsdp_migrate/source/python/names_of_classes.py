"""Tests for the name of a model's class, and what they say of FSDP1's wrapper and of FSDP2's classes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fsdp_migrate.source.python.scopes import Index


class _Text(NamedTuple):
    """The object whose class is asked for its name, and that text under FSDP1 and under FSDP2."""

    model: cst.BaseExpression
    fsdp1: str
    fsdp2: str


class NameTest(NamedTuple):
    """A test for the name of a class: of which object, by which words, and what it is under both."""

    model: cst.BaseExpression
    words: tuple[str, ...]
    was: bool
    will_be: bool


_NAME: Final = ("FullyShardedDataParallel", "FSDPModel")
_MODULE: Final = ("torch.distributed.fsdp.fully_sharded_data_parallel", "torch.distributed.fsdp._fully_shard")
_CLASS: Final = tuple(f"<class '{module}.{name}'>" for module, name in zip(_MODULE, _NAME, strict=True))
_WHOLE: Final = (f"{_NAME[0]}(\n  (_fsdp_wrapped_module): Model(", f"{_NAME[1]}(\n  (layer): Linear(")
_BY_NAME: Final = {"__name__": _NAME, "__qualname__": _NAME, "__module__": _MODULE}
_CASES: Final[dict[str, Callable[[str], str]]] = {
    "casefold": str.casefold,
    "lower": str.lower,
    "upper": str.upper,
}
_ASKS: Final[dict[str, Callable[[str, str], bool]]] = {"endswith": str.endswith, "startswith": str.startswith}
_MATCHES: Final = frozenset({"fullmatch", "match", "search"})
_DEEPEST: Final = 3


def name_test(index: Index, test: cst.BaseExpression) -> NameTest | None:
    """Return what a comparison, or a call, asks of the name of an object's class."""
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        operator, other = test.comparisons[0].operator, test.comparisons[0].comparator
        return _compared(index, test.left, operator, other)
    if not isinstance(test, cst.Call) or not isinstance(test.func, cst.Attribute) or not test.args:
        return None
    asks, name = test.func.value, test.func.attr.value
    if name in _ASKS:
        words = _words(test.args[0].value)
        return _answer(_text(index, asks), words, _any_of(_ASKS[name]))
    if name in _MATCHES and dotted(asks) == "re" and len(test.args) > 1:
        words = _words(test.args[0].value)
        return _answer(_text(index, test.args[1].value), words, _any_of(_searched(name)))
    return None


def _compared(
    index: Index, left: cst.BaseExpression, operator: cst.BaseCompOp, right: cst.BaseExpression
) -> NameTest | None:
    if isinstance(operator, (cst.Equal, cst.NotEqual)):
        text, words = (left, _words(right)) if _words(right) else (right, _words(left))
        return _answer(_text(index, text), words, _any_of(str.__eq__))
    if not isinstance(operator, (cst.In, cst.NotIn)):
        return None
    if isinstance(right, (cst.Tuple, cst.List, cst.Set)):
        return _answer(_text(index, left), _words(right), _any_of(str.__eq__))
    return _answer(_text(index, right), _words(left), _any_of(str.__contains__))


def _answer(
    text: _Text | None, words: tuple[str, ...], holds: Callable[[str, Iterable[str]], bool]
) -> NameTest | None:
    if text is None or not words:
        return None
    return NameTest(text.model, words, holds(text.fsdp1, words), holds(text.fsdp2, words))


def _any_of(asks: Callable[[str, str], bool]) -> Callable[[str, Iterable[str]], bool]:
    return lambda text, words: any(asks(text, word) for word in words)


def _searched(name: str) -> Callable[[str, str], bool]:
    def is_found(text: str, pattern: str) -> bool:
        try:
            return getattr(re, name)(pattern, text) is not None
        except re.error:
            return False

    return is_found


def _words(node: cst.BaseExpression) -> tuple[str, ...]:
    """Return the texts that an expression is, or holds: all of them, or none."""
    if isinstance(node, cst.SimpleString):
        return (str(node.evaluated_value),)
    parts = node.elements if isinstance(node, (cst.Tuple, cst.List, cst.Set)) else ()
    texts = [each.value for each in parts if isinstance(each.value, cst.SimpleString)]
    return tuple(str(each.evaluated_value) for each in texts) if len(texts) == len(parts) else ()


def _text(index: Index, node: cst.BaseExpression, depth: int = 0) -> _Text | None:
    """Return the name of a class that an expression stands for: ``type(m).__name__.lower()``."""
    if depth > _DEEPEST:
        return None
    if isinstance(node, cst.Name):
        held = last_value(index, node) if node in index.scopes else None
        return _text(index, held, depth + 1) if held is not None else None
    if isinstance(node, cst.Attribute):
        model = _of_class(node.value)
        known = _BY_NAME.get(node.attr.value)
        return _Text(model, *known) if model is not None and known is not None else None
    if isinstance(node, cst.FormattedString) and len(node.parts) == 1:
        part = node.parts[0]
        return _shown(part.expression) if isinstance(part, cst.FormattedStringExpression) else None
    if not isinstance(node, cst.Call):
        return None
    func = node.func
    if dotted(func) in {"repr", "str"} and len(node.args) == 1:
        return _shown(node.args[0].value)
    if not isinstance(func, cst.Attribute) or node.args:
        return None
    if func.attr.value == "_get_name":
        return _Text(func.value, *_NAME)
    case = _CASES.get(func.attr.value)
    text = _text(index, func.value, depth + 1) if case is not None else None
    return _Text(text.model, case(text.fsdp1), case(text.fsdp2)) if text is not None and case else None


def _shown(node: cst.BaseExpression) -> _Text:
    """Return the text of a class, ``str(type(m))``, or of an object of one."""
    model = _of_class(node)
    return _Text(node, *_WHOLE) if model is None else _Text(model, *_CLASS)


def _of_class(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the object whose class an expression is: ``type(m)``, ``m.__class__``."""
    if isinstance(node, cst.Call) and dotted(node.func) == "type" and len(node.args) == 1:
        return node.args[0].value
    is_class = isinstance(node, cst.Attribute) and node.attr.value == "__class__"
    return node.value if is_class and isinstance(node, cst.Attribute) else None
