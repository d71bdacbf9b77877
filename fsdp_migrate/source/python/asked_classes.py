"""What a check asks an expression for: whether it names FSDP1's class, another wrapper's, or several."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.heirs import led_to
from fsdp_migrate.source.python.makers import makes_fsdp
from fsdp_migrate.source.python.no_models import is_of_no_model
from fsdp_migrate.source.python.nodes import dotted, last_name, text_of, walk_for
from fsdp_migrate.source.python.wrappers import DDP, WRAPPERS


if TYPE_CHECKING:
    from collections.abc import Callable

    from fsdp_migrate.source.python.scopes import Binding, Index

    IsClass = Callable[[cst.CSTNode], bool]


_BASES = frozenset({"Module", "PreTrainedModel", "LightningModule"})
_DDP_NAMES = frozenset(name.split(".")[-1] for name in DDP)
IS_DATACLASS = "dataclasses.is_dataclass"
_PLAIN_OBJECTS = frozenset(
    {"bool", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "set", "str", "tuple"}
)
# A module may be Callable, and one of modules is Iterable and Sized.
_COLLECTION = re.compile(
    r"^(collections(\.abc)?|typing)\."
    r"(Counter|DefaultDict|Dict|List|(Mutable)?(Mapping|Sequence|Set)|OrderedDict|Tuple|defaultdict|deque)$"
)
MAY_SHARD = re.compile(r"fsdp|fully_?shard|shard|wrap")


def is_fsdp1_class(index: Index) -> IsClass:
    """Return the question whether an expression is FSDP1's class, and no other."""
    return lambda asked: (
        index.fsdp1(asked) == catalog.FSDP
        or (bool(index.checks) and bool(index.qualified(asked) & index.checks))
    )


def is_of_modules(index: Index) -> IsClass:
    """Return the question whether an expression is torch's class of all modules, or has it among others."""

    def is_class(asked: cst.CSTNode) -> bool:
        if isinstance(asked, cst.Tuple):
            return any(is_class(each.value) for each in asked.elements)
        names = index.qualified(asked) if isinstance(asked, (cst.Name, cst.Attribute)) else set()
        return bool(names & {"torch.nn.Module", "torch.nn.modules.Module", "torch.nn.modules.module.Module"})

    return is_class


def is_of_no_models(index: Index) -> IsClass:
    """Return the question whether an expression is a class of what is no model: an optimizer, a list.

    Or what asks for such objects: ``dataclasses.is_dataclass``.
    """

    def is_class(asked: cst.CSTNode) -> bool:
        if isinstance(asked, cst.Tuple):
            return bool(asked.elements) and all(is_class(each.value) for each in asked.elements)
        if not isinstance(asked, (cst.Name, cst.Attribute)):
            return False
        return is_of_no_model(index, asked) or is_of_plain_objects(index, asked)

    return is_class


def is_of_plain_objects(index: Index, asked: cst.BaseExpression) -> bool:
    """Tell whether a class is Python's own, of texts, numbers and collections, of which no module is one."""
    if isinstance(asked, cst.Name) and asked.value in _PLAIN_OBJECTS:
        return not index.bindings_of(asked)
    names = index.qualified(asked) if isinstance(asked, (cst.Name, cst.Attribute)) else set()
    return bool(names) and all(name == IS_DATACLASS or _COLLECTION.match(name) for name in names)


def is_other_wrapper(index: Index, known: frozenset[str]) -> IsClass:
    """Return the question whether an expression is a wrapper's class, or several such, and none is FSDP1's.

    DDP's, what derives from it, and of the classes that are called so those of this source, and those
    ``known`` of other files.
    """

    def is_own(binding: Binding) -> bool:
        node = binding.node
        return isinstance(node, cst.ClassDef) and not makes_fsdp(index, binding)

    def is_plain(asked: cst.BaseExpression) -> bool:
        last = last_name(asked)
        is_any = last in _BASES or MAY_SHARD.search(last.lower()) is not None
        return last[:1].isupper() and not is_any and index.fsdp1(asked) is None

    def is_class(asked: cst.CSTNode) -> bool:
        if isinstance(asked, cst.Tuple):
            parts = [each.value for each in asked.elements]
            # Beside DDP's class another one is no FSDP1's either: `(DDP, SingleAccelerator)`.
            return any(map(is_class, parts)) and all(is_class(each) or is_plain(each) for each in parts)
        if isinstance(asked, cst.SimpleString):
            return asked.evaluated_value in _DDP_NAMES
        if not isinstance(asked, (cst.Name, cst.Attribute)):
            return False
        names = index.qualified(asked)
        if names & (DDP | known):
            return True
        bindings = index.bindings_of(asked) if isinstance(asked, cst.Name) else []
        is_named = isinstance(asked, cst.Name) and WRAPPERS.search(asked.value) is not None
        is_named = is_named or bool(led_to(index, asked) & (DDP | known))
        return is_named and bool(bindings) and all(map(is_own, bindings))

    return is_class


def asks_among_others(index: Index) -> IsClass:
    """Return the question whether FSDP1's class is one of several: ``(FSDP, DDP)``."""

    def is_class(asked: cst.CSTNode) -> bool:
        if isinstance(asked, cst.BinaryOperation) and isinstance(asked.operator, cst.BitOr):
            parts: list[cst.BaseExpression] = [asked.left, asked.right]
        else:
            parts = [each.value for each in asked.elements] if isinstance(asked, cst.Tuple) else []
        return any(index.fsdp1(part) == catalog.FSDP or is_class(part) for part in parts)

    return is_class


def is_fsdp1_among(index: Index) -> IsClass:
    """Return the question whether an expression is FSDP1's class, or has it among others."""
    is_it, is_among = is_fsdp1_class(index), asks_among_others(index)
    return lambda asked: is_it(asked) or is_among(asked)


def member_of(node: cst.BaseExpression) -> str:
    """Return what the member of a class is called: ``Strategy.ddp``."""
    *_, owner, last = ("", "", *(dotted(node) or "").split("."))
    return last if owner[:1].isupper() else ""


def answer_of(function: cst.FunctionDef) -> cst.BaseExpression | None:
    """Return what a function answers, where it has one ``return``, or others of True below tests alone.

    ``if isinstance(m, FSDP): return True`` above ``return any(...)`` answers the one or the other.
    """
    given = [each.value for each in walk_for(function.body, cst.Return) if each.value is not None]
    if len(given) == 1:
        return given[0]
    *above, last = function.body.body or [None]
    small = last.body[0] if isinstance(last, cst.SimpleStatementLine) else None
    answer = small.value if isinstance(small, cst.Return) else None
    tests = [each.test for each in above if isinstance(each, cst.If) and _gives_true(each)]
    if answer is None or len(tests) + 1 != len(given):
        return None
    for test in reversed(tests):
        answer = cst.BooleanOperation(test, cst.Or(), answer)
    return answer


def _gives_true(choice: cst.If) -> bool:
    lines = choice.body.body
    line = lines[0] if len(lines) == 1 and choice.orelse is None else None
    small = line.body[0] if isinstance(line, cst.SimpleStatementLine) else line
    return isinstance(small, cst.Return) and small.value is not None and text_of(small.value) == "True"


def compares_type(test: cst.Comparison, text: str, is_class: IsClass, *, want: bool) -> bool:
    """Tell whether a comparison that is ``want`` says a class: ``type(model).__name__ == "DDP"``."""
    if len(test.comparisons) != 1:
        return False
    operator, other = test.comparisons[0].operator, test.comparisons[0].comparator
    asked = (f"type({text})", f"type({text}).__name__", f"{text}.__class__", f"{text}.__class__.__name__")
    same = (cst.Equal, cst.Is, cst.In) if want else (cst.NotEqual, cst.IsNot, cst.NotIn)
    if not isinstance(operator, same):
        return False
    if isinstance(operator, (cst.In, cst.NotIn)) and isinstance(test.left, cst.SimpleString):
        return text_of(other) in {*asked, f"str({asked[0]})"} and is_class(test.left)
    return text_of(test.left) in asked and is_class(other)


def asks_each(call: cst.Call, text: str, is_class: IsClass) -> bool:
    """Tell whether a call is ``any(isinstance(m, FSDP) for m in model.modules())``."""
    each = call.args[0].value if dotted(call.func) == "any" and len(call.args) == 1 else None
    if not isinstance(each, (cst.GeneratorExp, cst.ListComp)):
        return False
    check, over = each.elt, each.for_in.iter
    is_check = isinstance(check, cst.Call) and dotted(check.func) == "isinstance" and len(check.args) == 2
    if not is_check or not isinstance(over, cst.Call) or not isinstance(over.func, cst.Attribute):
        return False
    is_model = over.func.attr.value in {"children", "modules"} and text_of(over.func.value) == text
    return is_model and is_class(cst.ensure_type(check, cst.Call).args[1].value)
