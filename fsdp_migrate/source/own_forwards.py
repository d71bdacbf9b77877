"""Functions that become the forward of the model which they hand on to: ``m.forward = MethodType(f, m)``.

Without the wrapper such a model is its own inner one, and what calls it calls itself.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, last_name, text_of, walk_for, word_of


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


_FORWARDS: Final = frozenset({"__call__", "forward"})
_SET: Final = re.compile(r"(?:\.__dict__)?(?:\.(?:__call__|forward)|\[['\"](?:__call__|forward)['\"]\])$")
_HANDS_ON: Final = (cst.Arg, cst.Attribute, cst.Call, cst.IfExp)


def calls_itself(source: Source, node: cst.Attribute) -> bool:
    """Tell whether ``model.module`` is called in what becomes the forward of the same model."""
    if "forward" not in source.code or not _is_called(source, node):
        return False
    model, params = text_of(node.value), set[str]()
    for above in source.index.ancestors(node):
        if not isinstance(above, (cst.FunctionDef, cst.Lambda)):
            continue
        params |= {each.name.value for each in above.params.params}
        if any(model in {*params, of} for of in _becomes_forward_of(source, above)):
            return True
    return False


def _is_called(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether it is called, or its forward is, by another name too: ``inner = model.module``."""
    above = source.index.parents[node]
    if isinstance(above, cst.Attribute) and above.attr.value in _FORWARDS:
        node, above = above, source.index.parents[above]
    if isinstance(above, cst.Call):
        return above.func is node
    if isinstance(above, cst.Assign) and len(above.targets) == 1:
        target = above.targets[0].target
        readers = source.readers(target) if isinstance(target, cst.Name) else ()
        return any(each is not target and _is_called(source, each) for each in readers)
    return False


def _becomes_forward_of(source: Source, function: cst.FunctionDef | cst.Lambda) -> Iterator[str]:
    """Yield the models, as they are written, whose forward a function becomes, or what another returns."""
    if isinstance(function, cst.Lambda):
        yield from _set_by(source, function)
        return
    names = [function.name.value]
    around = source.index.function(function)
    if around is not None and _returns(source, around, function.name.value):
        names.append(around.name.value)
    for node in walk_for(source.module, cst.Name):
        if node.value in names and node is not function.name:
            yield from _set_by(source, node)


def _returns(source: Source, function: cst.FunctionDef, name: str) -> bool:
    given = (each for each in walk_for(function.body, cst.Return) if source.index.function(each) is function)
    return any(each.value is not None and last_name(each.value) == name for each in given)


def _set_by(source: Source, node: cst.BaseExpression) -> Iterator[str]:
    """Yield the model whose forward is set to what is made of a function: ``m.forward = f.__get__(m)``."""
    above: cst.CSTNode = source.index.parents[node]
    while isinstance(above, _HANDS_ON):
        if isinstance(above, cst.Call) and dotted(above.func) == "setattr" and len(above.args) == 3:
            if word_of(above.args[1].value) in _FORWARDS:
                yield text_of(above.args[0].value)
            return
        above = source.index.parents[above]
    for each in above.targets if isinstance(above, cst.Assign) else ():
        text = text_of(each.target)
        if _SET.search(text):
            yield _SET.sub("", text)
