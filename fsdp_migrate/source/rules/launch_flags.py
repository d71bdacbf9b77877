"""Flags of ``accelerate launch``, and of HF Trainer's scripts, in a launcher that is written in Python."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import args_by_name, code, dotted, last_name, named_arguments
from fsdp_migrate.source.python.set_items import items_of
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "launch-flags"
CODES = ("FM320", "FM327")

_SAID = (
    "`accelerate launch` runs FSDP1 by these flags: `fsdp-migrate config --command '...'`, given the line, "
    "writes those of FSDP2, such as --fsdp_version 2."
)
_SAID_HF = (
    "HF Trainer runs FSDP1 by this flag: `fsdp-migrate config --command '...'`, given the line, writes those "
    "of FSDP2, such as --fsdp_config with `version` 2."
)
_SAID_CALLED = (
    "Accelerate's launcher runs FSDP1 by this, where it is not given fsdp_version=2: add that, and "
    "fsdp_reshard_after_forward=True (False for SHARD_GRAD_OP), as FSDP2 reads no fsdp_sharding_strategy. "
    "`fsdp-migrate config --command '...'`, given the same as a line of `accelerate launch`, says what else "
    "changes."
)
_LAUNCHER = "accelerate.commands.launch.launch_command"
_GIVES_VERSION = re.compile(r"""\bfsdp_version['"]?\]?\s*[=:]\s*['"]?2""")
_USE = "use_fsdp"
_OBJECTS = frozenset({"Namespace", "SimpleNamespace", "dict"})
_SET = re.compile(r"""\.use_fsdp$|\[["']use_fsdp["']\]$""")
_OFF = frozenset({"False", "None", "0"})
_HF = re.compile(r"(?:^|[\s'\"])--fsdp(?![\w-])")
_WORDS = re.compile(r"\b(?:full_shard|shard_grad_op|hybrid_shard(?:_zero2)?|no_shard)\b")
_STARTS = re.compile(r"\b(?:accelerate|deepspeed|python\d?|torchrun)\b|\.py\b")
_HAS_VERSION = re.compile(r"version[\\'\"\s]*:\s*[\\'\"]*2")
_FLAG = re.compile(r"(?:^|[\s'\"])--use[_-]fsdp(?![\w-])")
_LAUNCHES = re.compile(r"accelerate['\",\s]+launch|accelerate\.commands\.launch")
_IS_NEW = re.compile(r"--fsdp[_-]version\b(?!['\"\s,=]+1\b)")
# What shows a text to people: loggers, exceptions, and the options of the script's own.
_SHOWS = re.compile(
    r"^p?print\w*$|(?:^|_)(?:debug|info|warn|warning|error|critical|exception|log|echo)$|(?:Error|Exception|Warning)$"
    r"|^(?:add_argument|add_parser|ArgumentParser|exit|option|Option|SystemExit)$"
)
_MAKES_TEXTS = frozenset({"dedent", "format", "join", "repr", "rstrip", "str", "strip"})


def find(source: Source) -> Iterator[Found]:
    """Find the flags that ask for FSDP, once a statement."""
    yield from _of_hf(source)
    yield from _of_launcher(source)
    if "--use" not in source.code or not _FLAG.search(source.code) or not _LAUNCHES.search(source.code):
        return
    told = [node for node in _texts(source) if not _is_shown(source, node)]
    new = {source.index.statement(node) for node in told if _IS_NEW.search(_whole(source, node))}
    flagged = [node for node in told if _FLAG.search(node.value)]
    asking = {source.index.statement(node) for node in flagged}
    # `flags += " --fsdp_version 2"` is for what else the function puts together.
    made_new = {source.index.function(statement) for statement in new - asking}
    seen = set(new)
    for node in flagged:
        statement = source.index.statement(node)
        if statement not in seen and source.index.function(node) not in made_new:
            seen.add(statement)
            yield Found("FM320", node, _SAID, "commented")


def _of_launcher(source: Source) -> Iterator[Found]:
    """Find what asks for FSDP in a file that calls Accelerate's launcher with an object, not with flags."""
    if "launch_command" not in source.code or _GIVES_VERSION.search(source.code):
        return
    if not any(_LAUNCHER in source.index.qualified(call.func) for call in source.calls):
        return
    for call in source.calls:
        given = named_arguments(call)
        is_object = last_name(call.func) in _OBJECTS or any(name.startswith("fsdp_") for name in given)
        if is_object and _USE in given and code(given[_USE]) not in _OFF:
            yield Found("FM320", args_by_name(call)[_USE], _SAID_CALLED, "commented")
    for node in source.index.by_kind.get(cst.Dict, ()):
        value = items_of(source, node).get(_USE)
        if value is not None and code(value) not in _OFF:
            yield Found("FM320", value, _SAID_CALLED, "commented")
    for assign in source.assignments:
        is_set = any(_SET.search(code(each.target)) for each in assign.targets)
        if is_set and code(assign.value) not in _OFF:
            yield Found("FM320", assign, _SAID_CALLED, "commented")


def _of_hf(source: Source) -> Iterator[Found]:
    """Find the flag of HF Trainer's, with its words, in the texts of a launcher."""
    if "--fsdp" not in source.code or not _WORDS.search(source.code):
        return
    seen: set[cst.CSTNode] = set()
    for node in _texts(source):
        whole, statement = _whole(source, node), source.index.statement(node)
        is_one = _HF.search(node.value) and _WORDS.search(whole) and not _HAS_VERSION.search(whole)
        starts = _STARTS.search(whole) or (
            isinstance(source.index.parents[node], cst.Element) and _STARTS.search(source.code)
        )
        if is_one and starts and statement not in seen and not _is_shown(source, node):
            seen.add(statement)
            yield Found("FM327", node, _SAID_HF, "commented")


def _texts(source: Source) -> Iterator[cst.SimpleString | cst.FormattedStringText]:
    for kind in (cst.SimpleString, cst.FormattedStringText):
        for node in source.index.by_kind.get(kind, ()):
            assert isinstance(node, (cst.SimpleString, cst.FormattedStringText))
            if "--" in node.value:
                yield node


def _whole(source: Source, node: cst.CSTNode) -> str:
    """Return what stands in a statement, as far as it is one with a text: of an ``if`` its test."""
    statement = source.index.statement(node)
    for above in source.index.ancestors(node):
        if above is statement:
            break
        node = above
    return code(node)


def _is_shown(source: Source, node: cst.CSTNode, *, is_named: bool = False) -> bool:
    """Tell whether a text is a docstring, only asked for, or shown to people, and so runs nothing."""
    if isinstance(source.index.parents[node], cst.Expr):
        return True
    below = node
    for above in source.index.ancestors(node):
        if isinstance(above, (cst.Comparison, cst.Raise)):
            return True
        if isinstance(above, cst.Assert):
            return above.msg is below
        if isinstance(above, cst.Assign):
            return not is_named and _is_message(source, above)
        if isinstance(above, cst.Call):
            name = _name(above)
            if name not in _MAKES_TEXTS:
                return above.func is not below and _SHOWS.search(name) is not None
        elif isinstance(above, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
            return False
        below = above
    return False


def _is_message(source: Source, assign: cst.Assign) -> bool:
    """Tell whether a name is only shown: ``msg = "..."``, ``raise ValueError(msg)``."""
    target = assign.targets[0].target if len(assign.targets) == 1 else None
    readers = source.readers(target) if isinstance(target, cst.Name) else []
    return bool(readers) and all(_is_shown(source, each, is_named=True) for each in readers)


def _name(call: cst.Call) -> str:
    func = call.func
    return func.attr.value if isinstance(func, cst.Attribute) else (dotted(func) or "")
