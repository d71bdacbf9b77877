"""What every run prints and writes otherwise: times, speeds, memory, progress bars, and names with a date."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


NUMBER: Final = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_OF_EACH_RUN: Final = frozenset(
    {"date", "duration", "elapsed", "eta", "flops", "gb", "hostname", "mem", "memory", "mfu", "ms", "pid"}
    # Of Hugging Face's Trainer, by the parameters that a rank sees: of its shards under FSDP1.
    | {"flos"}
    | {"runtime", "sec", "second", "seconds", "secs", "speed", "tflops", "throughput", "time", "times"}
    | {"fps", "ips", "sps", "timestamp", "tps", "wall", "wps"}
)
# `memory_bank_loss` is a number of the training, whatever else it names.
_OF_TRAINING: Final = frozenset(
    {"acc", "accuracy", "cer", "error", "grad", "gradient", "kl", "logits", "loss", "losses", "lr", "norm"}
    | {"perplexity", "ppl", "reward", "score", "wer", "weight"}
)
_NEAREST: Final = 3  # so many words before a number say what it is
_PARTS: Final = re.compile(r"[,;|{(\[]")
_SPEED: Final = re.compile(r"/s(?:ec(?:ond)?)?\b")
_UNIT: Final = re.compile(
    r" ?(?:[mun]?s|secs?|seconds?|mins?|minutes?|hours?|[KMGT]i?B|T?FLOPs|s/\w+|\w+/s(?:ec(?:ond)?)?)"
    r"(?![\w/])"
)
_ESCAPES: Final = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
# Looked for first, and what stands before a bar is short: a line may be a long list.
_HAS_BARS: Final = re.compile(r"%\||\[\d+:\d\d|[━╸╺]{3}")
# Of tqdm, with what stands before it, and where it does not know the end; of rich.
_BARS: Final = re.compile(
    r"(?:[^\s|{}][^|{}]{0,80}?: +)?\s*\d{1,3}%\|[^|]*\|\s*\S+/\S+ \[[^\]]*\]"
    r"|(?:[^\s|{}][^|{}]{0,80}?: +)?\b\d+(?:\.\d+)?[kMG]?[A-Za-z]+ \[\d+:\d\d(?::\d\d)?, [^\]]*/[^\]]*\]"
    r"|^.*[━╸╺]{3}.*\d.*$"
)

_CLOCK: Final = r"(?:[01]\d|2[0-3])[-_.:h]?[0-5]\d(?:[-_.:m]?[0-5]\d)?(?![0-9])"
_MONTHS: Final = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
# A date and perhaps a time, a time alone, seconds since 1970; TensorBoard's files, and the folders of wandb.
_MOMENTS: Final = re.compile(
    r"events\.out\.tfevents\..*|(?<=offline-run-).*|(?<=^run-)\d{8}_\d{6}-\w+"
    rf"|(?<![0-9])20\d\d[-_.]?(?:0\d|1[0-2])[-_.]?[0-3]\d(?:[-_T. ]*{_CLOCK})?(?:[.,]\d+)?(?![0-9])"
    rf"|(?:{_MONTHS})[-_ ]?\d\d?[-_ ]+{_CLOCK}"
    r"|(?<![0-9])(?:[01]\d|2[0-3])[-_:.][0-5]\d[-_:.][0-5]\d(?![0-9])"
    r"|(?<![0-9])1[6-9]\d{8}(?:\d{3})?(?:\.\d+)?(?![0-9])"
)


def is_of_each_run(name: str) -> bool:
    """Tell whether a number by this name is a time, a speed or memory, and none of the training.

    Example:
        >>> [is_of_each_run(each) for each in ("train_runtime", "peakMemory", "loss", "memory_bank_loss")]
        [True, True, False, False]
    """
    words = {word.lower() for word in _WORDS.findall(name)}
    return not words.isdisjoint(_OF_EACH_RUN) and words.isdisjoint(_OF_TRAINING)


def numbers_of(line: str) -> Iterator[tuple[re.Match[str], bool]]:
    """Yield each number of a line, with whether it is a time, a speed or memory.

    The words before it say so, or the unit behind it.

    Example:
        >>> [(found[0], other) for found, other in numbers_of("loss 0.5 in 3.1 s, samples_per_second: 8")]
        [('0.5', False), ('3.1', True), ('8', True)]
    """
    end, name = 0, ""
    for found in NUMBER.finditer(line):
        before = _PARTS.split(line[end : found.start()])[-1]
        own = " ".join(before.split()[-_NEAREST:])
        name = own if _WORDS.search(own) else name
        is_of_training = not {word.lower() for word in _WORDS.findall(own)}.isdisjoint(_OF_TRAINING)
        has_unit = _UNIT.match(line, found.end()) is not None and not is_of_training
        yield found, has_unit or is_of_each_run(name) or (_SPEED.search(name) is not None)
        end = found.end()


def without_those(line: str) -> str:
    """Return a line without its times, speeds and memory: what two runs that are alike have in common.

    Example:
        >>> without_those("step 3 loss 0.5 took 12 ms")
        'step 3 loss 0.5 took # ms'
    """
    parts, end = [], 0
    for found, is_other in numbers_of(line):
        if is_other:
            parts += [line[end : found.start()], "#"]
            end = found.end()
    return "".join([*parts, line[end:]])


def without_bars(line: str) -> str:
    """Return a line without progress bars, and without what moves the cursor: empty where that is all.

    Example:
        >>> without_bars(" 75%|#######5  | 3/4 [00:02<00:00,  1.18it/s]")
        ''
    """
    line = _ESCAPES.sub("", line)
    return _BARS.sub("", line) if _HAS_BARS.search(line) else line


def without_moments(name: str) -> str:
    """Return the name of a file or folder without the date and time in it, which differ in every run.

    Example:
        >>> [without_moments(each) for each in ("20261128185356-B", "log_2026-11-28.txt", "step-20000")]
        ['#-B', 'log_#.txt', 'step-20000']
    """
    return _MOMENTS.sub("#", name)


def name_alike(mine: Path, other: Path) -> dict[str, str]:
    """Rename in a folder what is named by the moment of its run, as another run's folder has it.

    Returns the old names with the new ones.

    Args:
        mine: What one run left, which stays as it is.
        other: What another run left. What lies in it is renamed, not read.
    """
    renamed: dict[str, str] = {}
    if not (mine.is_dir() and other.is_dir()):
        return renamed
    names = [{each.name for each in folder.iterdir()} for folder in (mine, other)]
    alone: list[dict[str, list[str]]] = [{}, {}]
    for place in (0, 1):
        for name in sorted(names[place] - names[1 - place]):
            if (moment := without_moments(name)) != name:
                alone[place].setdefault(moment, []).append(name)
    for moment, own in alone[0].items():
        others = alone[1].get(moment, [])
        if len(own) == len(others):  # in the order of their moments
            for name, found in zip(own, others, strict=True):
                (other / found).rename(other / name)
                renamed[found] = name
    for each in mine.iterdir():
        if each.is_dir() and not each.is_symlink() and not (other / each.name).is_symlink():
            renamed |= name_alike(each, other / each.name)
    return renamed
