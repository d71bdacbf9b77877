"""Counts of a sharded model's parameters that are said to be one rank's, or are summed over the ranks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, last_name, text_of, text_of_statement, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.scopes import Index


_RANKS = re.compile(
    r"world_size|element_size\(|local_\w*(?:shard|param|num)|shard\w*_\w*(?:num|param)|per_rank|num_shards"
    r"|per(?:fsdp)?(?:gpu|rank|shard)"  # in a text: "per FSDP shard"
)
_KEEP = frozenset({"dict", "print", "str"})
_NUMBER = re.compile(
    r"world_?size|num_(?:ranks|processes|shards|gpus|devices|nodes)|n_(?:gpus?|devices)|device_count\(\)"
    r"|(?:^|[._])(?:devices|gpus|nodes|ranks|shards|workers)$"
    r"|(?:data_parallel|dp|replica|shard)\w*_(?:degree|size)$|(?:group|mesh|pg)\w*(?:\[[^]]+\])?\.size\("
)
_SUMS = re.compile(r"^_?(?:dist_)?all_?reduce")
_STAGES = re.compile(r"expert|pipe|tensor|(?:^|[^a-z])(?:ep|mp|pp|tp)(?:[^a-z]|$)|model_parallel")
_GATHER = frozenset({"all_gather", "all_gather_object", "gather", "gather_for_metrics", "gather_object"})
_GATHERERS = re.compile(r"accel|dist|fabric|strategy|trainer|pl_module")
_NO_OWNERS = frozenset({"functools", "itertools", "np"})
_NO_SUM = re.compile(r"\b(?:AVG|MAX|MIN|avg|max|mean|min)\b")


def is_about_ranks(index: Index, call: cst.BaseExpression) -> bool:
    """Tell whether a count is said to be one rank's, is of bytes, or meets the number of ranks."""
    line = index.statement(call)
    return _RANKS.search(text_of_statement(line).lower()) is not None or meets_ranks(index, call)


def meets_ranks(index: Index, call: cst.BaseExpression) -> bool:
    """Tell whether a count is multiplied by the number of ranks, summed over them, or given away with it."""
    line = index.statement(call)
    is_made = _is_summed_over_ranks(index, line) or _is_multiplied_by_ranks(index, line)
    is_in_sum = any(isinstance(each, cst.Call) and _is_sum(each) for each in _within(index, call))
    return is_made or is_in_sum or _is_given_with_ranks(index, line) or _is_a_factor(index, call)


def _within(index: Index, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield what a node stands in, within its statement."""
    for above in index.ancestors(node):
        if isinstance(above, cst.BaseStatement):
            return
        yield above


def _is_given_with_ranks(index: Index, line: cst.CSTNode) -> bool:
    """Tell whether a call makes something of both: ``Meter(6 * count, peak, world_size)``.

    A call of which nothing is kept, such as one that prints, makes none.
    """
    made = _made_of(index, line)
    function = index.function(line)
    for node in index.by_kind.get(cst.Call, ()) if made else ():
        call = cst.ensure_type(node, cst.Call)
        if index.function(call) is not function or isinstance(index.parents[call], cst.Expr):
            continue
        given = [arg.value for arg in call.args if not isinstance(arg.value, cst.Call)]
        counted = [each for each in given if _is_made_of(each, made)]
        ranks = [each for each in given if each not in counted and _is_number_of_ranks(index, each)]
        if counted and ranks and dotted(call.func) not in _KEEP:
            return True
    return False


def _made_of(index: Index, line: cst.CSTNode) -> set[str]:
    """Return the names and attributes that hold a line's count, or what its function makes of it below."""
    made = set(map(text_of, _targets(line)))
    made.update(text_of(each.target) for each in walk_for(line, cst.AugAssign))
    function = index.function(line)
    for node in index.by_kind.get(cst.Assign, ()) if made else ():
        assign = cst.ensure_type(node, cst.Assign)
        if index.function(assign) is not function or index.order[assign] <= index.order[line]:
            continue
        if _is_made_of(assign.value, made):
            made.update(text_of(each.target) for each in assign.targets)
    return made


def _targets(line: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield what a line gives values."""
    yield from (each.target for each in walk_for(line, cst.AssignTarget))


def _is_made_of(node: cst.BaseExpression, made: set[str]) -> bool:
    kinds = (cst.Name, cst.Attribute)
    return any(text_of(each) in made for kind in kinds for each in walk_for(node, kind))


def _is_a_factor(index: Index, call: cst.BaseExpression) -> bool:
    """Tell whether a count is multiplied where it is made: ``sum(p.numel() for p in ps) * devices``."""
    below: cst.CSTNode = call
    for above in _within(index, call):
        is_product = isinstance(above, cst.BinaryOperation) and isinstance(above.operator, cst.Multiply)
        if isinstance(above, cst.BinaryOperation) and is_product:
            other = above.right if below is above.left else above.left
            if _is_number_of_ranks(index, other):
                return True
        below = above
    return False


def _is_multiplied_by_ranks(index: Index, line: cst.CSTNode) -> bool:
    """Tell whether what a line counts is multiplied by the number of ranks: ``total * world_size``."""
    targets = set(map(text_of, _targets(line)))
    targets.update(text_of(each.target) for each in walk_for(line, cst.AugAssign))
    function = index.function(line)
    kinds = (cst.AugAssign, cst.BinaryOperation)
    for node in (each for kind in kinds if targets for each in index.by_kind.get(kind, ())):
        if isinstance(node, cst.AugAssign):
            is_product, sides = isinstance(node.operator, cst.MultiplyAssign), [node.target, node.value]
        else:
            product = cst.ensure_type(node, cst.BinaryOperation)
            is_product, sides = isinstance(product.operator, cst.Multiply), [*_factors(product)]
        is_its = is_product and any(text_of(each) in targets for each in sides)
        if (
            is_its
            and index.function(node) is function
            and any(_is_number_of_ranks(index, each) for each in sides)
        ):
            return True
    return False


def _factors(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield the factors of a product, of what is divided too: ``6 * count / seconds * ranks``."""
    is_one = isinstance(node, cst.BinaryOperation) and isinstance(node.operator, (cst.Divide, cst.Multiply))
    if not isinstance(node, cst.BinaryOperation) or not is_one:
        yield node
        return
    yield from _factors(node.left)
    if isinstance(node.operator, cst.Multiply):
        yield from _factors(node.right)


def _is_number_of_ranks(index: Index, node: cst.BaseExpression) -> bool:
    held = last_value(index, node) if isinstance(node, cst.Name) and node in index.scopes else None
    return any(_NUMBER.search(text_of(each).lower()) is not None for each in (node, held) if each is not None)


def _is_summed_over_ranks(index: Index, line: cst.CSTNode) -> bool:
    """Tell whether what a line assigns, or what is made of it, is summed over the ranks."""
    made = _made_of(index, line)
    function, order = index.function(line), index.order
    for node in index.by_kind.get(cst.Call, ()) if made else ():
        call = cst.ensure_type(node, cst.Call)
        if not _is_sum(call) or index.function(call) is not function or order[call] < order[line]:
            continue
        given = [arg.value for arg in call.args if arg.keyword is None or arg.keyword.value == "tensor"]
        # Torch's `all_gather_object(every, count)` is given the list first.
        if any(_is_made_of(each, made) for each in given[: 1 + _is_gather(call)]):
            return True
    return False


def _is_gather(call: cst.Call) -> bool:
    """Tell whether a call gathers, by its name."""
    return last_name(call.func) in _GATHER


def _is_sum(call: cst.Call) -> bool:
    """Tell whether a call sums over the ranks that may share a model, and not over its stages.

    Or brings their numbers together by an object of a framework: ``accelerator.gather(count).sum()``.
    """
    func, name = call.func, last_name(call.func)
    owner = dotted(func.value) or "" if isinstance(func, cst.Attribute) else ""
    is_gathered = _is_gather(call) and _GATHERERS.search(owner.split(".")[-1].lower()) is not None
    is_reduced = name == "reduce" and isinstance(func, cst.Attribute) and owner not in _NO_OWNERS
    if _SUMS.search(name) is None and not is_reduced and not is_gathered:
        return False
    told = [text_of(arg.value) for arg in call.args if arg.keyword is not None or arg is not call.args[0]]
    return not any(_STAGES.search(each.lower()) or _NO_SUM.search(each) for each in told)
