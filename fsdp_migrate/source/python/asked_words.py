"""What a test asks a setting's word for: ``backend == "ddp"``, ``case "ddp":``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.asked_classes import member_of


if TYPE_CHECKING:
    import re


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
