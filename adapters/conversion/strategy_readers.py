"""The source of a project that reads ``strategy: fsdp`` of a config itself.

LightningCLI and Hydra make an object of ``class_path`` or ``_target_``. Where neither reads the config, the
Trainer gets the mapping, and stops.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.conversion.project_imports import project_root, sources_below, text_if_there
from fsdp_migrate.adapters.engine.settings import StrategyReader
from fsdp_migrate.newer_syntax import parse_any


if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


_LIGHTNING = re.compile(r"^[ \t]*(?:import|from)\s+(?:pytorch_lightning|lightning)\b", re.MULTILINE)
_READS_CLASSES = re.compile(r"LightningCLI|LightningArgumentParser|jsonargparse|class_path")
_READS_TARGETS = re.compile(r"\binstantiate\b|_target_")
_READS_FILES = re.compile(r"yaml|omegaconf|hydra|json|configargparse", re.IGNORECASE)
_MAKES_STRATEGY = re.compile(r"\b(?:FSDP|ModelParallel)Strategy\b")
_KEY = re.compile(r"\.strategy$|\[['\"]strategy['\"]\]$|\.get\(['\"]strategy['\"][^()]*\)$")
# In a source that no parser takes.
_MAY_READ = re.compile(
    r"\bTrainer\([^()]{0,2000}\*\*|\bstrategy\b['\")\]]*[ \t]*(?:==|in\b)|\bstrategy=\w+[.\[]"
)
_OF_THE_TRAINER = re.compile(r"\bself\.trainer\b|\bstrategy_name\b")


def reader_of_strategy(folder: Path, is_hydra: bool) -> StrategyReader | None:
    """Return the source of the project around a folder that reads ``strategy: fsdp`` itself.

    Args:
        folder: Where the config lies.
        is_hydra: Whether it is a file of Hydra's, and no LightningCLI's.

    Returns:
        None where none does, or where a source has what reads classes in such a file.

    Example:
        >>> from pathlib import Path
        >>> reader_of_strategy(Path("/absent"), False) is None
        True
    """
    root = project_root(folder / "config")
    paths = sorted(folder.glob("*.py")) if root is None else list(sources_below(root))
    texts = {path: text for path in paths if (text := text_if_there(path))}
    others = _READS_TARGETS if is_hydra else _READS_CLASSES
    if any(map(others.search, texts.values())) or not any(map(_READS_FILES.search, texts.values())):
        return None
    readers = [path for path, text in texts.items() if _reads(text)]
    # Of several the one that makes the strategy is where it is to be changed.
    for path in sorted(readers, key=lambda path: _MAKES_STRATEGY.search(texts[path]) is None)[:1]:
        makes = _MAKES_STRATEGY.search(texts[path]) is not None
        name = path.relative_to(root or folder)
        return StrategyReader(str(name), makes)
    return None


def _reads(text: str) -> bool:
    """Tell whether a source of Lightning's asks for the word, or hands what a config says to the Trainer."""
    if ("strategy" not in text and "Trainer(" not in text) or _LIGHTNING.search(text) is None:
        return False
    try:
        nodes = list(ast.walk(parse_any(text)))
    except (SyntaxError, ValueError, RecursionError):
        return _MAY_READ.search(text) is not None
    return any(
        _asks(node) if isinstance(node, ast.Compare) else isinstance(node, ast.Call) and _hands_on(node)
        for node in nodes
    )


def _asks(node: ast.Compare) -> bool:
    """Tell whether a comparison is of a strategy with the word: ``cfg["strategy"] == "fsdp"``."""
    sides = [node.left, *node.comparators]
    words = [each for side in sides for each in _words(side)]
    asked = [ast.unparse(side) for side in sides if not _words(side)]
    return any(word.startswith("fsdp") for word in words) and any(
        re.search(r"\bstrategy\b", text) and not _OF_THE_TRAINER.search(text) for text in asked
    )


def _words(node: ast.expr) -> list[str]:
    parts: Iterable[ast.expr] = node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else (node,)
    return [each.value for each in parts if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def _hands_on(node: ast.Call) -> bool:
    """Tell whether a Trainer is given a whole block, or its key: ``Trainer(**cfg)``."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name != "Trainer":
        return False
    return any(
        not isinstance(each.value, ast.Dict)
        if each.arg is None
        else each.arg == "strategy" and _KEY.search(ast.unparse(each.value)) is not None
        for each in node.keywords
    )
