"""A framework's FSDP settings that stand in Python, converted by the adapter that converts its configs.

What the settings say is put into a document as a config would hold it, and what the adapter makes of that is
written back as Python. Findings that need action become comments above the place.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fsdp_migrate.adapters.engine.settings import Settings
from fsdp_migrate.adapters.engine.shared_embeddings import classifies
from fsdp_migrate.errors import ConfigError, UnsupportedFeatureError
from fsdp_migrate.source.python.environment import environment_of_run
from fsdp_migrate.source.python.items import ItemChange
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import libcst as cst

    from fsdp_migrate.findings import Finding
    from fsdp_migrate.source.python.values import Values


SAID = ("FM343", "FM345", "FM353", "FM354", "FM355", "FM358")
"""What the adapters say of settings that are rewritten all the same."""

_RENAMED = {
    "sharding_strategy": "reshard_after_forward",
    "offload_params": "cpu_offload",
    "fsdp_version": "version",
    "state_dict_type": "save_distributed_checkpoint",
}
_ELSEWHERE = "FM346"
_OTHER_FILE = "FM356"
_UNKNOWN, _ARE_UNKNOWN = " is known only when this runs.", " are known only when this runs."


@dataclass(frozen=True)
class Converted:
    """Settings before and after, and what is to be said.

    ``reasons`` says why they are left to a person; empty where they are not. ``is_refused``: FSDP2 has
    nothing for them, or they mean nothing.
    """

    before: dict[str, Any]
    after: dict[str, Any]
    findings: tuple[Finding, ...] = ()
    reasons: tuple[str, ...] = ()
    code: str = ""
    is_fsdp2: bool = False
    is_refused: bool = False


def said_of_environment(given: Mapping[str, str], *, beside_hf: bool = False) -> str:
    """Return what to set for FSDP2 in place of Accelerate's variables, as is said of a shell script's.

    ``beside_hf``: HF Trainer's own arguments ask for FSDP there too.

    Example:
        >>> said_of_environment({"ACCELERATE_USE_FSDP": "true", "FSDP_SHARDING_STRATEGY": "SHARD_GRAD_OP"})
        'For FSDP2 set ...FSDP_RESHARD_AFTER_FORWARD=false...'
    """
    # Frameworks' configs take long to load, and few sources hold settings.
    from fsdp_migrate.adapters.conversion.environment import told_by_environment

    text = "\n".join(f"{n}={shlex.quote(value)}" for n, value in given.items())
    _, findings = told_by_environment(text, beside_hf=beside_hf)
    texts = [each.hint or each.message for each in findings[:1]]
    texts += [
        f"{each.subject.rpartition(' ')[2]}: {each.message} {each.hint or ''}".rstrip()
        for each in findings[1:]
    ]
    return " ".join(texts)


def convert_settings(framework: str, document: dict[str, Any], values: Values) -> Converted:
    """Convert settings as a framework's config; what is known only when it runs may be left to a person."""
    from fsdp_migrate.adapters.conversion.text import convert_text

    try:
        settings = Settings(
            environment=environment_of_run(values.source),
            classifies=lambda: classifies(values.source.code),
        )
        done = convert_text(json.dumps(document), framework=framework, is_json=True, settings=settings)
    except (ConfigError, UnsupportedFeatureError) as error:
        return Converted(document, document, reasons=(values.shown(str(error)),), is_refused=True)
    stopping = [finding for finding in done.findings if _stops(finding)]
    return Converted(
        document,
        json.loads(done.text),
        tuple(finding for finding in done.findings if finding not in stopping),
        tuple(dict.fromkeys(values.shown(_reason(each)) for each in stopping)),
        next((block.code for block in done.blocks if block.code), ""),
        any(block.state == "fsdp2" for block in done.blocks),
        any(finding.fidelity == "refused" for finding in stopping),
    )


def _stops(finding: Finding) -> bool:
    hangs_on_a_value = finding.code == _ELSEWHERE and finding.hint is not None
    return finding.fidelity == "refused" or hangs_on_a_value or finding.code == _OTHER_FILE


def _reason(finding: Finding) -> str:
    name = finding.subject.rpartition(".")[2]
    if finding.code == _ELSEWHERE:
        needs = "" if str(finding.hint).startswith(("The key is", "Convert")) else f" {finding.hint}"
        return f"`{name}`{_UNKNOWN}{needs}"
    return f"`{name}`: {finding.message}"


def in_sentences(texts: Iterable[str]) -> str:
    """Return reasons as sentences, each once; of several names of which the same is not known, in one.

    Example:
        >>> in_sentences(["one", "two?", "one"])
        'one. two?'
        >>> in_sentences(["`a` is known only when this runs.", "`b` is known only when this runs."])
        '`a`, `b` are known only when this runs.'
    """
    said: dict[str, list[str]] = {}
    for text in dict.fromkeys(texts):
        name, unknown, rest = text.partition(_UNKNOWN)
        # The text itself stands for all that is no such sentence.
        said.setdefault(f"{unknown}{rest}" if unknown else text, []).append(name)
    every = (_of_all(names, rest) if rest.startswith(_UNKNOWN) else rest for rest, names in said.items())
    return " ".join(text if text.endswith((".", "?")) else f"{text}." for text in every)


def _of_all(names: Sequence[str], said: str) -> str:
    if len(names) > 1:
        said = said.replace(_UNKNOWN, _ARE_UNKNOWN).replace("its value", "their values")
    return f"{', '.join(names)}{said}"


def item_changes(
    before: Mapping[str, Any], after: Mapping[str, Any], values: Values
) -> tuple[dict[str, ItemChange], list[tuple[str, cst.BaseExpression]]]:
    """Return what becomes of each item of a mapping, and the items that are new."""
    changes: dict[str, ItemChange] = {}
    new = [name for name in after if name not in before]
    for name, value in before.items():
        if name in after:
            if not _same(after[name], value):
                changes[name] = ItemChange(value=values.written(after[name]))
            continue
        prefix = "fsdp_" if name.startswith("fsdp_") else ""
        bare = name.removeprefix("fsdp_")
        renamed = [f"{prefix}{_RENAMED.get(bare, '')}", _RENAMED.get(name, ""), _RENAMED.get(bare, "")]
        to = next((each for each in renamed if each in new), None)
        if to is None:
            changes[name] = ItemChange(remove=True)
            continue
        new.remove(to)
        fresh = None if _same(after[to], value) else values.written(after[to])
        changes[name] = ItemChange(to, fresh)
    return changes, [(name, values.written(after[name])) for name in new]


def _same(one: object, other: object) -> bool:
    # To Python True and 1 are equal; in a config they are two values.
    return one == other and type(one) is type(other)


def said_of(
    findings: Sequence[Finding], values: Values, place: Callable[[str], cst.CSTNode]
) -> Iterator[Found]:
    """Yield what the adapter says: what needs action as comments, one for each code; the rest is reported.

    Args:
        findings: The findings.
        values: What read the settings.
        place: Returns the node that a subject stands at.
    """
    comments: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.code not in SAID:
            continue
        if finding.hint is not None:
            comments.setdefault(finding.code, []).append(finding)
        else:
            text = values.shown(f"`{finding.subject}`: {finding.message}")
            yield Found(finding.code, place(finding.subject), text, "kept")
    for code, several in comments.items():
        texts = (f"`{each.subject}`: {each.message} {each.hint}" for each in several)
        text = values.shown(" ".join(texts))
        yield Found(code, place(several[0].subject), text, "commented", is_of_its_own=True)
