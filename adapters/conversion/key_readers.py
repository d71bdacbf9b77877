"""Whose a file is that holds keys of FSDP alone: HF Trainer's ``fsdp_config``, or a source's that reads it.

The file itself does not tell: Accelerate's plugin and the Trainer have the same words, and mean others by
them. The project around it does, by what looks the keys up.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.conversion.project_imports import (
    TRAINER,
    project_root,
    text_if_there,
    texts_around,
)
from fsdp_migrate.adapters.conversion.unknown import FILE
from fsdp_migrate.adapters.document.nodes import effective
from fsdp_migrate.adapters.engine.base import mappings_of
from fsdp_migrate.errors import NothingToConvertError
from fsdp_migrate.text_files import BACKUP


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from fsdp_migrate.adapters.document.nodes import Node
    from fsdp_migrate.adapters.engine.base import Block


_KINDS = frozenset({".json", ".yaml", ".yml"})
_OPENS_YAML = re.compile(r"^[ \t]*(?:import|from)\s+(?:yaml|omegaconf|hydra|ruamel)\b", re.MULTILINE)
_ASKS_FOR_FSDP = re.compile(
    r"""(?:\w\[|\.get\(|\.pop\()\s*['"]fsdp(?:_config)?['"]|(?<!distributed)\.fsdp(?:_config)?\b"""
)
_BRINGS_TRAINER = re.compile(
    r"(?<![\w/.])(?:autotrain|axolotl|llama[-_]?factory|ms-swift|sentence-transformers|swift|trl|unsloth)\b",
    re.IGNORECASE,
)
_NAMES_PACKAGES = (
    "README*",
    "*requirements*",
    "pyproject.toml",
    "environment.y*ml",
    "Makefile",
    "*.sh",
    "*/*.sh",
)
_SHARDS = re.compile(r"\bFullyShardedDataParallel(?:Plugin)?\b")
_MAKES_FSDP = re.compile(r"\b(?:FullyShardedDataParallel|prepare_fully_shard|ShardingStrategy)\b")
# In Lightning's a strategy does, and in the end its hook.
_MAKES_STRATEGY = re.compile(r"\b(?:FSDPStrategy|ModelParallelStrategy)\b")
_READS = "{} looks its keys up itself: leave it to that source, which {}.{}"
_TAKES = " prepare_fully_shard takes FSDP1's arguments."
_OR_SAYS = "`fsdp-migrate rewrite` turns, or says above it what to write"
_IS_TO_TURN, _IS_TURNED = "`fsdp-migrate rewrite` turns", "is turned already"
_TURNED = re.compile(r"\bprepare_fully_shard\b|\bModelParallelStrategy\b|\bfsdp_version['\"]?\s*[=:]\s*2\b")
_PLUGIN = " What Accelerate's plugin takes for FSDP2 is said at it."
_ASKS = (
    "What is around it does not show who reads it: {}. If HF Trainer does, this converts it: "
    f"`fsdp-migrate config {FILE} --from hf`. If Accelerate does, as a whole `fsdp_config`: "
    f"`fsdp-migrate config {FILE} --from accelerate --key .`. If code of the project's own does, leave it: "
    "`fsdp-migrate scan` says what becomes of that code."
)
_NO_TRAINER = (
    "sources make FSDP1 themselves, none has a Trainer of Hugging Face's, and none is seen to read it"
)
_UNREAD = (
    "Its words are those of Hugging Face's arguments, but the sources around have no Trainer of it, and none "
    "looks `{}` up. If a command of a package reads it, this converts it: "
    f"`fsdp-migrate config {FILE} --from hf`. Else leave it: `fsdp-migrate scan` says what becomes of code "
    "that makes FSDP."
)
_BOTH = "{} looks keys of these names up itself, and the project has a Trainer of Hugging Face's too"


def refuse_others(blocks: Iterable[Block], path: Path) -> None:
    """Raise where a file that would be HF Trainer's as a whole is another's, or nothing shows whose it is.

    Args:
        blocks: What was found in the file, without being told whose it is.
        path: The file.

    Raises:
        NothingToConvertError: A source around looks its keys up, or who reads it must be asked.

    Example:
        >>> refuse_others([], Path("/absent/fsdp.yaml"))
    """
    if Path(path.name.partition(BACKUP)[0]).suffix not in _KINDS:
        return
    whole = (each for each in blocks if each.framework == "hf" and not each.path and not each.is_fsdp2)
    names = [name for block in whole if block.node is not None for name in effective(block.node)]
    said, is_own = _told(names, path) if names else ("", False)
    if said:
        raise NothingToConvertError(said, names_fsdp=True, holds_arguments=is_own, is_own=is_own)


def left_to_reader(
    error: NothingToConvertError, path: Path, documents: Iterable[Node]
) -> NothingToConvertError:
    """Return the error that leaves a file to the source that reads its settings of FSDP1, or the one given.

    Such a source makes FSDP, and looks up keys that stand in a mapping of FSDP's name: two, or one where the
    project looks that mapping up too, ``cfg["fsdp"]``.
    """
    if path.suffix not in _KINDS or error.is_own or error.is_switch:
        return error
    blocks: set[str] = set()
    keys: set[str] = set()
    for document in documents:
        for where, mapping in mappings_of(document):
            if where and "fsdp" in where[-1].lower():
                blocks.add(where[-1])
                keys.update(effective(mapping))
    texts = texts_around(path.absolute().parent) if keys else ()
    read = {name for name in blocks | keys for _, text in texts if _looks_up(text, [name])}
    makers = (each for each, text in texts if _makes_fsdp(text) and _looks_up(text, keys))
    reader = next(makers, None) if len(read) > 1 else None
    if reader is None:
        return error
    return NothingToConvertError(_read_by(reader, texts), names_fsdp=True, is_own=True)


def refuse_unread(blocks: Iterable[Block], path: Path) -> None:
    """Raise where a YAML has arguments of HF Trainer's in a project that reads its YAML itself, without it.

    Raises:
        NothingToConvertError: None of its sources has a Trainer, and no package that brings one is named.

    Example:
        >>> refuse_unread([], Path("/absent/train.yaml"))
    """
    nested = [each for each in blocks if each.framework == "hf" and each.path and not each.is_fsdp2]
    if not nested or path.suffix not in {".yaml", ".yml"}:
        return
    texts = texts_around(path.absolute().parent)
    if any(TRAINER.search(text) for _, text in texts) or not any(_OPENS_YAML.search(t) for _, t in texts):
        return
    root = project_root(path.absolute())
    beside = (each for name in _NAMES_PACKAGES for each in (root.glob(name) if root else ()))
    if any(_BRINGS_TRAINER.search(text_if_there(each)) for each in beside):
        return
    reader = next((each for each, text in texts if _ASKS_FOR_FSDP.search(text)), None)
    if reader is not None:
        raise NothingToConvertError(_read_by(reader, texts), names_fsdp=True, is_own=True)
    raise NothingToConvertError(_UNREAD.format(nested[0].name), names_fsdp=True)


def _read_by(reader: Path, texts: Iterable[tuple[Path, str]]) -> str:
    """Return what leaves a file to the source that reads it."""
    has_plugin = any("FullyShardedDataParallelPlugin" in text for _, text in texts)
    read = next((text for each, text in texts if each == reader), "")
    is_turned = _TURNED.search(read) is not None
    # Settings of a strategy become its hook's and others of its own.
    is_strategys = _makes_fsdp(read) and _MAKES_FSDP.search(read) is None
    becomes = _IS_TURNED if is_turned else _OR_SAYS if is_strategys else _IS_TO_TURN
    more = "" if is_strategys else _TAKES + (_PLUGIN if has_plugin and not is_turned else "")
    return _READS.format(reader.name, becomes, more)


def _makes_fsdp(text: str) -> bool:
    return _MAKES_FSDP.search(text) is not None or _MAKES_STRATEGY.search(text) is not None


def _told(names: Collection[str], path: Path) -> tuple[str, bool]:
    """Say who reads a file's keys, or that this is not seen, and whether a source of the project does."""
    texts = texts_around(path.absolute().parent)
    prefixed = [name for name in names if name.startswith("fsdp_")]
    has_trainer = any(TRAINER.search(text) for _, text in texts)
    shards = any(_SHARDS.search(text) for _, text in texts)
    # Names without the prefix are anybody's: the source has to name the file, and to shard.
    reader = next(
        (
            each
            for each, text in texts
            if _SHARDS.search(text) and path.name in text and _looks_up(text, names)
        ),
        None,
    )
    if reader is not None:
        return _read_by(reader, texts), True
    reader = next((each for each, text in texts if _looks_up(text, prefixed)), None)
    if reader is not None and has_trainer and shards and _shards(texts, reader):
        return _ASKS.format(_BOTH.format(reader.name)), False
    if reader is not None and not has_trainer:
        return _read_by(reader, texts), True
    # HF Trainer reads a file of that name as JSON.
    is_doubtful = bool(prefixed) or path.suffix != ".json"
    if is_doubtful and shards and not has_trainer:
        return _ASKS.format(_NO_TRAINER), False
    return "", False


def _shards(texts: Iterable[tuple[Path, str]], reader: Path) -> bool:
    return any(each == reader and _SHARDS.search(text) is not None for each, text in texts)


def _looks_up(text: str, names: Collection[str]) -> bool:
    """Tell whether a source looks one of some keys up: ``config["min_num_params"]``."""
    every = "|".join(map(re.escape, names))
    looked_up = rf"""(?:\w\[|\.(?:get|pop)\(\s*)['"](?:{every})['"]"""
    return bool(names) and re.search(looked_up, text) is not None
