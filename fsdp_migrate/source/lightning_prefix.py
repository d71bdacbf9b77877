"""``_forward_module.``, which Lightning's FSDP1 strategy once put before the names of its state.

Whoever counts on it, by an assertion, by its length or by passing over other names, finds no name any more.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.adapters.engine.claims import LIGHTNING
from fsdp_migrate.source.python.branches import leaves
from fsdp_migrate.source.python.lightning_models import asking_for_fsdp1
from fsdp_migrate.source.python.nodes import last_name, parameters_of, text_of, walk_for
from fsdp_migrate.source.python.wrapped_in_place import given_for


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from fsdp_migrate.source.python.text import Source


PREFIX: Final = "_forward_module"
SAID: Final = (
    f"Lightning {LIGHTNING['wrapper_in_names'].versions} put this before the names of FSDPStrategy's "
    "state; under ModelParallelStrategy no name has it: take key.removeprefix('_forward_module.'), which "
    "leaves the others as they are."
)
# They leave a name alone that has no such part.
_LEAVE: Final = frozenset({"get", "getattr", "hasattr", "removeprefix", "replace", "split", "sub"})
_ALONE: Final = re.compile(rf"(?:\w+\.)*{PREFIX}\.?")
_BEFORE: Final = re.compile(rf"f['\"]{PREFIX}\.")
# Its checkpoints have the part by the same versions, whatever becomes of FSDP1.
_OTHERS: Final = re.compile(r"(?i)deepspeed|zero_to_fp32")
_PLAIN: Final = 1


def counted_on(source: Source) -> Iterator[cst.BaseExpression]:
    """Yield where a source counts on it, in a project that trains by that strategy: once a function."""
    if PREFIX not in source.code or _OTHERS.search(source.code) is not None:
        return
    if not (source.links.by_lightning or asking_for_fsdp1({Path(source.path): source.code}, or_fabric=True)):
        return
    seen: set[cst.CSTNode | None] = set()
    for node in _named(source):
        function = source.index.function(node)
        if function not in seen and _counts_on_it(source, node):
            seen.add(function)
            yield node


def prefixed_by_lightning(texts: Mapping[Path, str], lightning: Collection[Path] = ()) -> Iterator[Path]:
    """Yield the files that name it, in a project that trains by that strategy.

    Args:
        texts: The sources of the project.
        lightning: Those of which it is known otherwise that the strategy may train them.
    """
    named = [path for path, text in texts.items() if PREFIX in text and _OTHERS.search(text) is None]
    if named and (lightning or asking_for_fsdp1(texts, or_fabric=True)):
        yield from named


def _named(source: Source) -> Iterator[cst.BaseExpression]:
    """Yield the strings that are this part of a name, and what reads a name that holds one."""
    texts = (
        *source.index.by_kind.get(cst.SimpleString, ()),
        *source.index.by_kind.get(cst.FormattedString, ()),
    )
    for text in sorted(texts, key=source.index.order.__getitem__):
        if isinstance(text, cst.FormattedString):
            yield from (text,) if _BEFORE.match(text_of(text)) else ()
            continue
        string = cst.ensure_type(text, cst.SimpleString)
        if not _ALONE.fullmatch(str(string.evaluated_value)):
            continue
        yield from _read_as(source, string)


def _read_as(source: Source, string: cst.SimpleString) -> Iterator[cst.BaseExpression]:
    """Yield the string where it stands, or what reads the name or the parameter that it is given to."""
    above = source.index.parents[string]
    if isinstance(above, cst.Assign) and len(above.targets) == 1:
        target = above.targets[0].target
        yield from source.readers(target) if isinstance(target, cst.Name) else (string,)
        return
    if isinstance(above, cst.Param):
        around = source.index.ancestors(above)
        owner = next((each for each in around if isinstance(each, (cst.FunctionDef, cst.Lambda))), None)
        given = [(owner, above.name.value)] if owner is not None else []
    else:
        call = source.index.parents[above] if isinstance(above, cst.Arg) else None
        functions = source.models.guards.functions(call.func) if isinstance(call, cst.Call) else ()
        given = [
            (each, param.name.value)
            for each in functions
            for param in parameters_of(each)
            if isinstance(call, cst.Call) and given_for(call, each, param.name.value) is string
        ]
    read = (
        name
        for owner, wanted in given
        for name in walk_for(owner.body, cst.Name)
        if name.value == wanted and name in source.index.scopes
    )
    yield from read if given else (string,)


def _counts_on_it(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether a name without the part is refused, cut, passed over or looked for where this stands."""
    is_cut = isinstance(node, cst.FormattedString)
    for above in source.index.ancestors(node):
        if isinstance(above, cst.Call):
            name = above.func.attr.value if isinstance(above.func, cst.Attribute) else last_name(above.func)
            if name in _LEAVE:
                return False
            is_cut = is_cut or name == "slice"
        elif isinstance(above, (cst.Assert, cst.CompIf)):
            return True
        elif isinstance(above, cst.IfExp):
            return False
        elif isinstance(above, cst.If) and _asks(above.test, node):
            return _refuses_others(above)
        elif isinstance(above, (cst.FunctionDef, cst.ClassDef)):
            break
        is_cut = is_cut or isinstance(above, (cst.BinaryOperation, cst.Slice))
    return is_cut


def _asks(test: cst.BaseExpression, node: cst.BaseExpression) -> bool:
    """Tell whether a test asks names for the part: by its text, or by the name that holds it."""
    return PREFIX in text_of(test) or (
        isinstance(node, cst.Name) and any(each.value == node.value for each in walk_for(test, cst.Name))
    )


def _refuses_others(choice: cst.If) -> bool:
    """Tell whether what a choice does leaves out the names that do not have the part."""
    if isinstance(choice.test, cst.UnaryOperation) and isinstance(choice.test.operator, cst.Not):
        return leaves(choice.body) and len(choice.body.body) == _PLAIN
    if choice.orelse is not None:
        rest = choice.orelse.body if isinstance(choice.orelse, cst.Else) else None
        return rest is not None and leaves(rest) and len(rest.body) == _PLAIN
    # `if k.startswith(part): new[k[len(part):]] = v`: the others are in no new state.
    kept = [each.target for each in walk_for(choice.body, cst.AssignTarget)]
    return any(isinstance(each, cst.Subscript) for each in kept) and ".pop(" not in text_of(choice.body)
