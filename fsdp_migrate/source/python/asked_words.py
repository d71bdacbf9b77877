"""What a test says by words: of a setting, ``backend == "ddp"``, and of switches by what they are called."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.accelerate_models import FSDP_SWITCH
from fsdp_migrate.source.python.asked_classes import member_of
from fsdp_migrate.source.python.branches import asks_of_one_object
from fsdp_migrate.source.python.nodes import dotted, last_name, text_of


if TYPE_CHECKING:
    from collections.abc import Callable

    IsSaid = Callable[[cst.BaseExpression, bool], bool]


_ON = frozenset({"active", "enable", "enabled", "is_enabled", "on", "use"})
_DISTRIBUTED = re.compile(r"^_?(is|use|using)_(dist|distributed)$")
DDPS_SWITCH = re.compile(r"^_?(enable|is|run|use|using|with)_(torch_)?ddp$")
_INITIALIZED = frozenset({"dist.is_initialized", "torch.distributed.is_initialized"})
_DONE = re.compile(r"^_?(is_|was_|has_)?fsdp1?_?(active|applied|wrapped)$")
_HELD = re.compile(r"^_?fsdp1?_(config|model|module|plugin|wrapped\w*|wrapper\w*)$")
DDP = re.compile(r"^(torch_|pytorch_)?(ddp|dataparallel|distributed_data_parallel)$")
FSDP = re.compile(r"^(torch_|pytorch_)?fsdp1?$")
_SETTINGS = re.compile(r"^_?fsdp1?_(args|arguments|cfg|config|kwargs|plugin|strategy)$")
SWITCHES = (FSDP_SWITCH, _HELD, _DONE, _DISTRIBUTED, _SETTINGS)
"""What switches for FSDP, and what holds its models, are called."""


def is_case(node: cst.CSTNode, word: re.Pattern[str]) -> bool:
    """Tell whether a node is a branch for a word alone: ``case "ddp":``."""
    pattern = node.pattern if isinstance(node, cst.MatchCase) else None
    each = [part.pattern for part in pattern.patterns] if isinstance(pattern, cst.MatchOr) else [pattern]
    values = [part.value for part in each if isinstance(part, cst.MatchValue)]
    texts = [str(value.evaluated_value) for value in values if isinstance(value, cst.SimpleString)]
    return len(texts) == len(each) and all(word.match(text.lower()) for text in texts)


def is_word(test: cst.Comparison, word: re.Pattern[str], *, truth: bool, by_member: bool = False) -> bool:
    """Tell whether a comparison that is ``truth`` says a word: ``backend == "ddp"``."""
    if len(test.comparisons) != 1:
        return False
    asked = test.comparisons[0]
    kinds = (cst.Equal, cst.Is) if truth else (cst.NotEqual, cst.IsNot)
    sides = [each for each in (test.left, asked.comparator) if isinstance(each, cst.SimpleString)]
    words = [str(each.evaluated_value) for each in sides]
    words += [member_of(each) for each in (test.left, asked.comparator) if by_member]
    return isinstance(asked.operator, kinds) and any(word.match(each.lower()) for each in words)


def _never(_test: cst.BaseExpression, _truth: bool) -> bool:
    return False


def says_off(test: cst.BaseExpression, *, truth: bool, says_all: bool, is_unheld: IsSaid = _never) -> bool:
    """Tell whether a test that is ``truth`` says that a switch for FSDP is off, or that no model is held."""
    off = functools.partial(says_off, says_all=says_all, is_unheld=is_unheld)
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return off(test.expression, truth=not truth)
    if isinstance(test, cst.BooleanOperation):
        # Of `a and b` that is true both are; of `a or b` that is false neither is. Else one of them is.
        found = (off(part, truth=truth) for part in (test.left, test.right))
        # `ctx is None or ctx.strategy != "fsdp"` is one question: without the one there is no other.
        is_one = isinstance(test.operator, cst.And) is truth or asks_of_one_object(test)
        return any(found) if is_one else all(found)
    if isinstance(test, cst.Comparison):
        is_fsdps = says_all and is_word(test, FSDP, truth=not truth)
        # Of FSDP there may be other members: `Strategy.hsdp`.
        is_ddps = is_word(test, DDP, truth=truth, by_member=True)
        return _is_none(test, truth=truth) or is_fsdps or is_ddps or is_unheld(test, truth)
    return (not truth and is_switch(test)) or is_unheld(test, truth)


def are_settings_none(test: cst.BaseExpression) -> bool:
    """Tell whether a test that is true says that there are no settings for FSDP.

    Where it is asserted none are made below, which a branch for it may do: ``if fsdp_config is None:``.

    Example:
        >>> ask = cst.parse_expression
        >>> are_settings_none(ask("fsdp_config is None and x")), are_settings_none(ask("fsdp_model is None"))
        (True, False)
        >>> are_settings_none(ask("not args.fsdp_cfg")), are_settings_none(ask("fsdp_config is None or x"))
        (True, False)
    """
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        return are_settings_none(test.left) or are_settings_none(test.right)
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return _SETTINGS.match(last_name(test.expression).lower()) is not None
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return False
    asked = test.comparisons[0]
    is_equal = isinstance(asked.operator, (cst.Equal, cst.Is)) and text_of(asked.comparator) == "None"
    return is_equal and _SETTINGS.match(last_name(test.left).lower()) is not None


def is_on_for_ddp(test: cst.BaseExpression, *, truth: bool) -> bool:
    """Tell whether a test that is ``truth`` says that a switch for DDP is on: ``if config.enable_ddp:``."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return is_on_for_ddp(test.expression, truth=not truth)
    if isinstance(test, cst.BooleanOperation):
        found = (is_on_for_ddp(part, truth=truth) for part in (test.left, test.right))
        return any(found) if isinstance(test.operator, cst.And) is truth else all(found)
    return truth and DDPS_SWITCH.match(last_name(test).lower()) is not None


def is_switch(test: cst.BaseExpression) -> bool:
    """Tell whether it is a switch for FSDP by its name, or for all that ranks do together."""
    if isinstance(test, cst.Call):
        return dotted(test.func) in _INITIALIZED and not test.args
    *above, last = (dotted(test) or "").lower().split(".")
    if last in _ON and above:
        return FSDP_SWITCH.match(above[-1]) is not None or above[-1] in {"fsdp_config", "fsdp_cfg"}
    return FSDP_SWITCH.match(last) is not None or _DISTRIBUTED.match(last) is not None


def was_done(test: cst.BaseExpression) -> bool:
    """Tell whether a test asks if a model was sharded. Below ``if not wrapped:`` it may be, just then."""
    return _DONE.match(last_name(test).lower()) is not None


def _is_none(test: cst.Comparison, *, truth: bool) -> bool:
    """Tell whether it is the other branch of ``if fsdp_model is not None:``, or of a switch: ``self.fsdp``.

    In that of ``if fsdp_model is None:`` such a model may be made.
    """
    if truth or len(test.comparisons) != 1 or text_of(test.comparisons[0].comparator) != "None":
        return False
    last = last_name(test.left).lower()
    is_named = _HELD.match(last) is not None or FSDP_SWITCH.match(last) is not None
    return is_named and isinstance(test.comparisons[0].operator, (cst.NotEqual, cst.IsNot))
