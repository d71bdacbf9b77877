"""Mixed precision that sources and files of arguments give, beside a config of Accelerate's without it.

The config says nothing of it then, and no more does its conversion.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fsdp_migrate.adapters.engine.shared_keys import AUTOCAST, FLOAT_OUTPUTS, ROUNDED_IN_EVALUATION
from fsdp_migrate.adapters.hf_trainer import STRONG
from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.findings import listed
from fsdp_migrate.newer_syntax import parse_any
from fsdp_migrate.source.beside_configs import has_its_own_precision
from fsdp_migrate.source.files import CONFIGS, find_sources, read_source
from fsdp_migrate.source.next_step import Step
from fsdp_migrate.source.python.argument_places import named_arguments


if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

    from fsdp_migrate.source.surroundings import ConfigFound


_PLACES: Final = 3
_MOST: Final = 1_000_000
_SAID: Final = (
    "See what becomes of mixed precision that a run with FSDP has from here ({}): Accelerate's FSDP2 runs "
    "the model without autocast, in which its FSDP1 runs it. A float32 tensor that meets weights within the "
    "model raises then, and norms, softmax and losses are computed in the lower precision. To go on as "
    f"before write {AUTOCAST} above `accelerator.prepare`, or the Trainer's `train()`, where it is "
    "`trainer.accelerator`. Outputs, the loss "
    f"too, stay in it; for float32 write below that line {FLOAT_OUTPUTS}. {ROUNDED_IN_EVALUATION}"
)
_EXPLAIN: Final = "fsdp-migrate explain FM354"
_KEYS: Final = frozenset({"bf16", "fp16"})
_IN_ARGUMENTS: Final = re.compile(r"(?:Arguments|Args|Config)\Z")
_USES: Final = re.compile(r"^[ \t]*(?:from|import)[ \t]+(?:accelerate|transformers|trl)\b", re.MULTILINE)
_WORDS: Final = re.compile(r"\b(?:bf16|fp16|mixed_precision)\b")
BEGINS: Final = r"^[ \t{,]*['\"]?"
"""What may stand before a key in a line."""
OF_TRAINER: Final = re.compile(rf"{BEGINS}(?:{'|'.join(sorted(STRONG))})['\"]?[ \t]*[:=]", re.MULTILINE)
"""What a run's arguments have, and other files with such a key do not."""
_IN_FILES: Final = re.compile(
    rf"{BEGINS}(?:bf16|fp16)['\"]?[ \t]*[:=][ \t]*['\"]?(?:[Tt]rue|auto)\b", re.MULTILINE
)


def steps_for_precision(
    paths: Iterable[str | os.PathLike[str]], configs: Sequence[ConfigFound]
) -> list[Step]:
    """Return what to see of mixed precision that stands apart from a config of FSDP1's without any.

    Args:
        paths: The files and folders of the project.
        configs: Its configs that speak of FSDP.

    Example:
        >>> steps_for_precision(["fsdp_migrate/source"], [])
        []
    """
    if not any(map(_lacks_it, configs)):
        return []
    every, others = list(paths), {each.path for each in configs}
    places = [f"{path}:{line}" for path in find_sources(every) for line in _in_source(small_text(path))]
    files = (path for path in find_sources(every, CONFIGS) if str(path) not in others)
    places += [f"{path}:{line}" for path in files for line in _in_file(small_text(path))]
    return [Step(_SAID.format(listed(places, _PLACES)), (_EXPLAIN,))] if places else []


def _lacks_it(config: ConfigFound) -> bool:
    """Tell whether a config of Accelerate's asks, or asked, for FSDP1, and not for mixed precision."""
    is_one = config.framework == "accelerate" and (config.state == "changes" or bool(config.fsdp1_copy))
    return is_one and not has_its_own_precision(small_text(Path(config.path)))


def small_text(path: Path) -> str:
    """Return a file's text; nothing of one that is large, or cannot be read, which is said elsewhere.

    Example:
        >>> small_text(Path("/absent.yaml"))
        ''
    """
    try:
        return read_source(path) if path.is_file() and path.stat().st_size <= _MOST else ""
    except (FSDPMigrateError, OSError):
        return ""


def _in_file(text: str) -> Iterator[int]:
    """Yield the lines of a file of the Trainer's arguments that switch it on."""
    if OF_TRAINER.search(text) is not None:
        yield from (text.count("\n", 0, each.end()) + 1 for each in _IN_FILES.finditer(text))


def _in_source(text: str) -> Iterator[int]:
    """Yield the lines of a source that give it to an Accelerator, or to the Trainer's arguments."""
    if _WORDS.search(text) is None or _USES.search(text) is None:
        return
    try:
        nodes = list(ast.walk(parse_any(text)))
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in nodes:
        if isinstance(node, ast.Call):
            yield from _in_call(node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            is_on = isinstance(node.value, ast.Constant) and node.value.value is True
            if node.target.id in _KEYS and (is_on or _is_field_on(node.value)):
                yield node.lineno


def _in_call(call: ast.Call) -> Iterator[int]:
    func, given = call.func, named_arguments(call)
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    if name == "Accelerator" and "fsdp_plugin" not in given:
        yield from _switched(given.get("mixed_precision"))
    elif _IN_ARGUMENTS.search(name) and "fsdp" not in given:
        yield from (line for key in sorted(_KEYS & given.keys()) for line in _switched(given[key]))


def _switched(value: ast.expr | None) -> Iterator[int]:
    """Yield the line of a value that switches it on, or may."""
    if value is not None and not (isinstance(value, ast.Constant) and value.value in {None, False, "no"}):
        yield value.lineno


def _is_field_on(value: ast.expr | None) -> bool:
    """Tell whether it is ``field(default=True)``."""
    default = named_arguments(value).get("default") if isinstance(value, ast.Call) else None
    return isinstance(default, ast.Constant) and default.value is True
