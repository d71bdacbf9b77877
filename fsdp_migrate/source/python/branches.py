"""Branches for FSDP1 alone, in sources that have others for FSDP2: what is in them is left alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.chosen_functions import places_chosen
from fsdp_migrate.source.python.nodes import dotted, kept, last_name, parameters_of, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.scopes import Index


# `is_fully_sharded(model)` is what FSDP1's models are called as well.
_FSDP2 = re.compile(r"fsdp_?v?2|fully_shard(?!ed)|fsdp\w*version\w*(\(.*\))?==2")
_FSDP1 = re.compile(r"fsdp\w*version\w*(\(.*\))?==1")
_VERSION = re.compile(r"fsdp\w*version")
_MODEL = re.compile(r"(model|module|net|network)$")
_NOT = re.compile(r"^not\b|!=|\bnotin\b")
_LEAVES = (cst.Return, cst.Raise, cst.Continue, cst.Break)


def fsdp1_branch(index: Index, node: cst.CSTNode) -> cst.CSTNode | None:
    """Return the innermost branch that a node stands in, where it is FSDP1's and another one is FSDP2's."""
    below: cst.CSTNode = node
    for above in index.ancestors(node):
        if isinstance(above, (cst.If, cst.IfExp)) and below is above.body:
            if asks_for_fsdp2(index, above.test):
                return None
            is_fsdp1s = _asks_for_fsdp1(index, above.test)
            if is_fsdp1s or (any(_others(index, above)) and not calls_fsdp2(above.body)):
                return above.body
        elif isinstance(above, (cst.If, cst.IfExp)) and below is above.orelse:
            is_beside = calls_fsdp2(above.body) or (
                _is_for_all_of_fsdp2(index, above.test) and not _makes_fsdp1(index, above.body)
            )
            if is_beside and not calls_fsdp2(_first(below)):
                return below
        elif isinstance(above, cst.IndentedBlock) and _comes_after_fsdp2(index, above, below):
            return above
        if isinstance(above, cst.FunctionDef):
            return above.body if is_fsdp1s_function(index, above) else None
        below = above
    return None


def is_fsdp1s_function(index: Index, function: cst.FunctionDef) -> bool:
    """Tell whether FSDP1's branches alone choose a function, each beside one of FSDP2's."""
    places = places_chosen(index, function)
    return bool(places) and all(_is_beside_fsdp2s(index, place) for place in places)


def _is_beside_fsdp2s(index: Index, node: cst.CSTNode) -> bool:
    choice = _choice_around(index, node)
    if choice is None:
        return False
    return _asks_for_fsdp1(index, choice.test) and any(_others(index, choice))


def _choice_around(index: Index, node: cst.CSTNode) -> cst.If | None:
    """Return the innermost choice of the same function in whose first branch a place is."""
    below: cst.CSTNode = node
    for above in index.ancestors(node):
        if isinstance(above, cst.If) and below is above.body:
            return above
        if isinstance(above, cst.FunctionDef):
            return None
        below = above
    return None


def is_fsdp2s(index: Index, node: cst.CSTNode) -> bool:
    """Tell whether a place is FSDP2's alone: by its branches, its function's, or its parameters."""
    if _is_asked_for_fsdp2(index, node):
        return True
    own = index.function(node)
    if own is None:
        return False
    if _takes_fsdp2s(index, own):
        return True
    places = places_chosen(index, own)
    return bool(places) and all(_is_asked_for_fsdp2(index, place) for place in places)


def gathers_state(index: Index, node: cst.CSTNode) -> bool:
    """Tell whether it is a state of which the same function gathers what FSDP2 gives: ``v.full_tensor()``."""
    func, own = node.func if isinstance(node, cst.Call) else node, index.function(node)
    is_state = isinstance(func, cst.Attribute) and func.attr.value == "state_dict"
    return is_state and own is not None and _gathers(index, own)


@kept
def _gathers(index: Index, function: cst.FunctionDef) -> bool:
    return any(each.attr.value == "full_tensor" for each in walk_for(function, cst.Attribute))


def _takes_fsdp2s(index: Index, function: cst.FunctionDef) -> bool:
    """Tell whether a function says that its model is FSDP2's: ``def save(model: FSDPModule)``."""
    noted = (each.annotation.annotation for each in parameters_of(function) if each.annotation is not None)
    return any(index.qualified(each) & catalog.FSDP2_CLASSES for each in noted)


def _is_asked_for_fsdp2(index: Index, node: cst.CSTNode) -> bool:
    choice = _choice_around(index, node)
    return choice is not None and asks_for_fsdp2(index, choice.test)


def asks_for_fsdp2(index: Index, test: cst.BaseExpression) -> bool:
    """Tell whether a test asks for FSDP2: by its class, by a version, or by what a switch is called."""
    text = _plain(index, test)
    if _NOT.search(text):
        return False
    if _FSDP2.search(text):
        return True
    checks = (call for call in walk_for(test, cst.Call) if dotted(call.func) == "isinstance")
    return any(len(call.args) == 2 and index.is_fsdp2_class(call.args[1].value) for call in checks)


def _is_for_all_of_fsdp2(index: Index, test: cst.BaseExpression) -> bool:
    """Tell whether a branch of FSDP2's is taken by each of its models, those too that we make of FSDP1's.

    By a mark, ``getattr(model, "_uses_fsdp2", False)``, it is taken by those alone that a source has marked.
    """
    return asks_for_fsdp2(index, test) and not any(map(_asks_for_mark, walk_for(test, cst.Call)))


def _asks_for_mark(call: cst.Call) -> bool:
    """Tell whether a call asks a model, and no config, for an attribute that speaks of FSDP2."""
    if dotted(call.func) not in {"getattr", "hasattr"} or len(call.args) < 2:
        return False
    last = last_name(call.args[0].value).lower()
    return _MODEL.search(last) is not None and _FSDP2.search(text_of(call.args[1].value).lower()) is not None


def _asks_for_fsdp1(index: Index, test: cst.BaseExpression) -> bool:
    return _FSDP1.search(_plain(index, test)) is not None


def _plain(index: Index, test: cst.BaseExpression) -> str:
    """Return a test as a text: of ``v == 2`` with what ``v`` is, where that is FSDP's version."""
    text = text_of(test).lower()
    left = test.left if isinstance(test, cst.Comparison) else None
    if not isinstance(left, cst.Name) or left not in index.scopes or _VERSION.search(text):
        return text
    values = [each.value for each in index.bindings_of(left)]
    is_version = any(each is not None and _VERSION.search(text_of(each).lower()) for each in values)
    return f"fsdp_version{text.removeprefix(left.value.lower())}" if is_version else text


def _others(index: Index, choice: cst.If | cst.IfExp) -> Iterator[bool]:
    """Yield, for each branch that follows the first, whether it is FSDP2's."""
    after: cst.CSTNode | None = choice.orelse
    while isinstance(after, (cst.If, cst.IfExp)):
        yield _is_for_all_of_fsdp2(index, after.test) or calls_fsdp2(after.body)
        after = after.orelse
    if after is not None:
        yield calls_fsdp2(after)


def _first(branch: cst.CSTNode) -> cst.CSTNode:
    """Return what is done next where a branch is not taken: of ``elif`` its body, without what follows."""
    return branch.body if isinstance(branch, (cst.If, cst.IfExp)) else branch


def calls_fsdp2(branch: cst.CSTNode) -> bool:
    """Tell whether a branch shards by FSDP2."""
    for call in walk_for(branch, cst.Call):
        last = last_name(call.func)
        if last in catalog.FSDP2_FUNCTIONS:
            return True
    return False


def _makes_fsdp1(index: Index, branch: cst.CSTNode) -> bool:
    """Tell whether a branch makes FSDP1's model, or Lightning's strategy, whatever its switch is called."""
    for call in walk_for(branch, cst.Call):
        if index.fsdp1(call.func) == catalog.FSDP or any(
            name.endswith(".FSDPStrategy") for name in index.qualified(call.func)
        ):
            return True
    return False


def _comes_after_fsdp2(index: Index, block: cst.IndentedBlock, statement: cst.CSTNode) -> bool:
    """Tell whether FSDP2's models have left a block before a statement of it: ``if is_fsdp2(m): return``."""
    for each in block.body:
        if each is statement:
            return False
        if isinstance(each, cst.If) and each.orelse is None and _is_for_all_of_fsdp2(index, each.test):
            last = each.body.body[-1] if each.body.body else None
            small = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
            if isinstance(small, (cst.Return, cst.Raise, cst.Continue)):
                return True
    return False


def leaves(body: cst.BaseSuite) -> bool:
    """Tell whether a block always ends by leaving the block around it."""
    if not body.body:
        return False
    last = body.body[-1]
    small = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
    if isinstance(small, cst.With):  # a context may take up what is raised in it
        return leaves(small.body) and not isinstance(_last_of(small.body), cst.Raise)
    return isinstance(small, _LEAVES)


def _last_of(body: cst.BaseSuite) -> cst.CSTNode:
    last = body.body[-1]
    small = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
    return _last_of(small.body) if isinstance(small, cst.With) and small.body.body else small


def asks_of_one_object(test: cst.BooleanOperation) -> bool:
    """Tell whether a test asks if an object is there, and one thing of it: ``c is None or c.x != "y"``."""
    parts = [part.expression if isinstance(part, cst.UnaryOperation) else part for part in _parts(test)]
    *first, last = parts
    asked = last.left if isinstance(last, cst.Comparison) else last
    if not isinstance(asked, cst.Attribute):
        return False
    owner = text_of(asked.value)
    names = {owner, f"{owner}isNone", f"{owner}isnotNone", f"{owner}.enabled", f"{owner}.is_enabled"}
    names |= {f"hasattr({owner},{quote}{asked.attr.value}{quote})" for quote in "'\""}
    return all(text_of(part) in names for part in first)


def _parts(test: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    if isinstance(test, cst.BooleanOperation):
        yield from _parts(test.left)
        yield from _parts(test.right)
    else:
        yield test
