"""Branches that one rank alone runs, such as ``if rank == 0:``; what all ranks must call hangs there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.last_values import assigned_at, last_value
from fsdp_migrate.source.python.nodes import dotted, last_name, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.guards import Guards
    from fsdp_migrate.source.python.scopes import Index


_RANK = re.compile(r"(^|_)(?<!adapter_)(?<!lora_)(rank|process_index)$")
_ZEROS = frozenset({"0", "-1", '"0"', "'0'"})
_BELOW = {"<": "1", "<=": "0", ">": "0", ">=": "1"}
_FOR_ALL = re.compile(r"fsdp|shard|zero_?[123]")
_DEEPEST = 4
_FIRST = re.compile(
    r"^(is_)?(local_|global_)?(main|master|rank_?0|rank_?zero)(_process|_node|_rank)?$"
    r"|^is_((local_|global_|world_)(process_)?zero|last_process|logg(er|ing)_(process|rank))$"
    r"|^should_save$"
)
_NODES = re.compile(r"local_?rank\W{0,8}==0|0==\w*local_?rank|not\W?\w*local_?rank|is_local_main")
_ONLY = re.compile(r"(^|\.)(rank_zero_only|on_(local_)?(main_|last_)?process|master_only|rank0_only)$")
_NOTHING = frozenset({"None", "False", "0"})
_UNSEEN = cst.Ellipsis()
_OF_OPTIMIZERS = frozenset({"load_state_dict", "state_dict", "step", "zero_grad"})
_VARIABLES = re.compile(r"^(os\.)?(environ(\.get)?|getenv)$")


def is_of_one_rank(guards: Guards, node: cst.CSTNode, depth: int = 0) -> bool:
    """Tell whether a place is reached by one rank, or by one of each node, as far as names tell."""
    return any(
        _says_so(test, truth=truth) or _holds_for_one(guards, test, depth, truth=truth)
        for test, truth in guards.facts(node)
    )


def _holds_for_one(guards: Guards, test: cst.BaseExpression, depth: int, *, truth: bool) -> bool:
    """Tell whether what is asked for is one rank's alone: ``self.writer``, made below ``rank == 0``."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return _holds_for_one(guards, test.expression, depth, truth=not truth)
    if isinstance(test, cst.BooleanOperation):
        is_all = isinstance(test.operator, cst.And) is truth
        parts = (test.left, test.right) if is_all else ()
        return any(_holds_for_one(guards, part, depth, truth=truth) for part in parts)
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        other = test.comparisons[0]
        if (
            not isinstance(other.operator, cst.IsNot if truth else cst.Is)
            or text_of(other.comparator) != "None"
        ):
            return False
        test, truth = test.left, True
    if not truth or depth == _DEEPEST or not isinstance(test, (cst.Attribute, cst.Name)):
        return False
    values = [(each, place) for each, place in _given_to(guards.index, test) if text_of(each) not in _NOTHING]
    return bool(values) and all(_is_for_one(guards, each, place, depth + 1) for each, place in values)


def _given_to(
    index: Index, node: cst.Attribute | cst.Name
) -> Iterator[tuple[cst.BaseExpression, cst.CSTNode]]:
    """Yield the values that a name, or an attribute of ``self``, is given, and where; of others nothing."""
    if isinstance(node, cst.Name):
        bindings = index.scopes[node].lookup(node.value) if node in index.scopes else ()
        for each in bindings:
            # What nothing shows, as an argument, is taken for what every rank has.
            yield (each.value if each.value is not None and each.index is None else _UNSEEN), each.node
        return
    text, owner = dotted(node) or "", index.class_of(node)
    places = index.places_set(text) if text.startswith("self.") and owner is not None else ()
    for place in places:
        value = assigned_at(index, place)
        if index.class_of(place) is owner:
            yield value if value is not None else _UNSEEN, place


def _is_for_one(guards: Guards, value: cst.BaseExpression, place: cst.CSTNode, depth: int) -> bool:
    """Tell whether one rank alone gives a name a value: ``log = Log() if rank == 0 else None``."""
    if isinstance(value, cst.IfExp) and text_of(value.orelse) in _NOTHING:
        return _says_so(value.test, truth=True) or _holds_for_one(guards, value.test, depth, truth=True)
    is_test = isinstance(value, (cst.BooleanOperation, cst.Comparison, cst.UnaryOperation))
    return (is_test and _says_so(value, truth=True)) or is_of_one_rank(guards, place, depth)


def runs_on_one_rank(index: Index, guards: Guards, node: cst.CSTNode, depth: int = 0) -> bool:
    """Tell whether one rank alone reaches a place, also by the only calls of its function."""
    if is_of_one_rank(guards, node):
        return True
    function = index.function(node)
    if function is None:
        return False
    decorators = (each.decorator for each in function.decorators)
    if any(_ONLY.search(dotted(e.func if isinstance(e, cst.Call) else e) or "") for e in decorators):
        return True
    if index.class_of(function) is not None:
        calls = _calls_of_its_own(index, function.name.value)
    else:
        if function.name.value in index.names_given:
            return False  # `spawn(main, nprocs=8)`
        named = index.calls_of_names.get(function.name.value, ())
        calls = [each for each in named if function in guards.functions(each.func)]
    return (
        depth < _DEEPEST
        and bool(calls)
        and all(
            index.function(each) is not function and runs_on_one_rank(index, guards, each, depth + 1)
            for each in calls
        )
    )


def _calls_of_its_own(index: Index, name: str) -> list[cst.Call]:
    """Return the calls that may be those of a project's method: ``self.policy.train()`` is of torch's."""
    calls = index.calls_of_method(name)
    if name not in catalog.MODULE_METHODS | _OF_OPTIMIZERS:
        return calls
    return [each for each in calls if dotted(each.func) in {f"self.{name}", f"cls.{name}"}]


def saves_on_each_node(index: Index) -> bool:
    """Tell whether a branch of the first rank of each node saves: ``if local_rank == 0: torch.save(...)``."""
    choices = (cst.ensure_type(each, cst.If) for each in index.by_kind.get(cst.If, ()))
    return any(
        _NODES.search(text_of(each.test).lower()) is not None and "save" in text_of(each.body).lower()
        for each in choices
    )


def is_inner(index: Index, guards: Guards, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Tell whether an expression may be the module within a wrapper, which one rank alone could ask.

    ``model.module``, ``model.module if many else model``, a name that holds one, a function that gives one.
    """
    if depth > _DEEPEST:
        return False
    if isinstance(node, cst.IfExp):
        return any(is_inner(index, guards, part, depth + 1) for part in (node.body, node.orelse))
    if isinstance(node, cst.Call):
        given = (each.value for f in guards.functions(node.func) for each in walk_for(f.body, cst.Return))
        return any(is_inner(index, guards, value, depth + 1) for value in given if value is not None)
    if isinstance(node, cst.Attribute) and node.attr.value in catalog.WRAPPED:
        return True
    if isinstance(node, cst.Attribute):
        value = last_value(index, node)
        return value is not None and is_inner(index, guards, value, depth + 1)
    bindings = (
        index.scopes[node].lookup(node.value) if isinstance(node, cst.Name) and node in index.scopes else ()
    )
    values = (each.value for each in bindings if each.index is None and each.value is not None)
    return any(is_inner(index, guards, value, depth + 1) for value in values)


def _says_so(test: cst.BaseExpression, *, truth: bool) -> bool:
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return _says_so(test.expression, truth=not truth)
    if isinstance(test, cst.BooleanOperation):
        # `rank == 0 or args.all` lets one rank alone in, too; `rank == 0 or use_fsdp` is there to prevent it.
        is_all = isinstance(test.operator, cst.And) is truth
        if not is_all and any(_lets_all_in(part, truth=truth) for part in (test.left, test.right)):
            return False
        return any(_says_so(part, truth=truth) for part in (test.left, test.right))
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        return _compares(test.left, test.comparisons[0], truth=truth)
    return _FIRST.match(_last(test)) is not None if truth else _is_rank(test)


def _compares(left: cst.BaseExpression, other: cst.ComparisonTarget, *, truth: bool) -> bool:
    """Tell whether a comparison lets the first rank alone in: ``rank in (-1, 0)``, ``rank < 1``."""
    right = other.comparator
    if isinstance(other.operator, cst.In if truth else cst.NotIn):
        values = right.elements if isinstance(right, cst.Tuple | cst.List | cst.Set) else ()
        texts = {text_of(each.value) for each in values}
        return _is_rank(left) and bool(texts) and texts <= _ZEROS
    if isinstance(
        other.operator,
        (cst.LessThan, cst.LessThanEqual) if truth else (cst.GreaterThan, cst.GreaterThanEqual),
    ):
        return _is_rank(left) and text_of(right) == _BELOW[text_of(other.operator).strip()]
    is_same = isinstance(other.operator, cst.Equal if truth else cst.NotEqual)
    return is_same and any(
        _is_rank(one) and text_of(two) in _ZEROS - {"-1"} for one, two in ((left, right), (right, left))
    )


def _lets_all_in(test: cst.BaseExpression, *, truth: bool) -> bool:
    """Tell whether a test is ``truth`` where models are sharded, on each rank."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return _lets_all_in(test.expression, truth=not truth)
    return truth and _FOR_ALL.search(text_of(test).lower()) is not None


def _is_rank(node: cst.BaseExpression) -> bool:
    return _RANK.search(_last(node)) is not None


def _last(node: cst.BaseExpression) -> str:
    """Return the last part of a name, of a function that is called without arguments, or of a variable.

    ``int(os.environ.get("RANK", 0))`` is ``rank``.
    """
    if isinstance(node, cst.Subscript) and _VARIABLES.match(dotted(node.value) or ""):
        key = node.slice[0].slice
        return _text(key.value) if isinstance(key, cst.Index) else ""
    if isinstance(node, cst.Call) and node.args and not node.args[0].star:
        if _VARIABLES.match(dotted(node.func) or ""):
            return _text(node.args[0].value)
        return _last(node.args[0].value) if dotted(node.func) in {"bool", "int"} else ""
    if isinstance(node, cst.Call):
        return _last(node.func)
    return last_name(node).lower().lstrip("_")


def _text(node: cst.BaseExpression) -> str:
    return str(node.evaluated_value).lower() if isinstance(node, cst.SimpleString) else ""
