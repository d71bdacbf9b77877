"""What to say of a shell script in which no flags of FSDP can be changed: whose they are, and what to do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.conversion.foreign import FOREIGN
from fsdp_migrate.adapters.conversion.here_documents import settings_written, without_shown
from fsdp_migrate.adapters.conversion.overrides import told_of_overrides, without_overrides
from fsdp_migrate.adapters.conversion.shell import commands_of, is_printed
from fsdp_migrate.adapters.conversion.unknown import named_files, with_stand_ins, without_folder
from fsdp_migrate.errors import NothingToConvertError
from fsdp_migrate.findings import named


if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsdp_migrate.findings import Finding


_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)
_OWN_FLAG = re.compile(
    r"(?<=\s)--(?:(?!use[-_])\w+[-_]fsdp(?:[-_]\w+)*|sharding[-_]strategy|backward[-_]prefetch"
    r"|limit[-_]all[-_]gathers)(?![\w.-])"
)
_CHOICE = re.compile(
    r"(?<=\s)(?P<said>-{0,2}(?!echo\b|printf\b)[\w.+-]+(?:=|[ \t]+|[ \t]*\\\n\s*)(?P<quote>[\"']?)"
    r"(?P<open>\$\{\w+:?[-=])?"  # a variable with what it is without one: `${MODE:-fsdp}`
    r"(?:fsdp1?|fsdp_native|fsdp(?:trainer|strategy)|full_shard|shard_grad_op|hybrid_shard|fully_sharded\w*)"
    r"(?(open)\})(?P=quote))"
    r"(?=[\s;|&)]|$)",
    re.IGNORECASE,
)
# The dash of a default, as in `${2:-run_fsdp.sh}`, begins no name.
_SCRIPT = re.compile(r"(?!-)[\w./${}-]*fsdp[\w./-]*\.(?:sh|bash|slurm|sbatch|pbs)\b", re.IGNORECASE)
_SOURCE = re.compile(r"(?!-)[\w./${}-]*fsdp[\w./-]*\.py\b|(?<=\s-m )[\w.-]*fsdp[\w.-]*", re.IGNORECASE)
_FAIRSEQ = re.compile(r"--ddp[-_]backend(?:[ =]|\s*\\\n\s*)[\"']?fully_sharded|\bddp_backend=fully_sharded")
_STRATEGY = re.compile(r"\bstrategy=[\"']?(fsdp\w*)", re.IGNORECASE)
FAIRSEQ = "fairseq's `fully_sharded` is fairscale's FSDP, not torch's; fairseq2 runs FSDP2"


def nothing_in_script(text: str, findings: Sequence[Finding]) -> NothingToConvertError:
    """Return the error that says why nothing in a script was converted, and what to do about it.

    Example:
        >>> print(nothing_in_script("torchrun train_fsdp.py", ()))  # doctest: +ELLIPSIS
        No command in this script ... It starts `train_fsdp.py`: `fsdp-migrate scan` looks into sources.
    """
    said = " ".join(f"{finding.subject}: {finding.message}" for finding in findings)
    can = " that can be changed" if said else ""
    parts = [f"No command in this script has FSDP flags of HF Trainer or of `accelerate launch`{can}.", said]
    bare = _without_printed(_COMMENT.sub("", without_shown(text)))
    foreign = _foreign(without_overrides(bare))
    own = [flag for flag in dict.fromkeys(_OWN_FLAG.findall(bare)) if f"`{flag}`" not in said]
    if foreign:
        parts.append(foreign)
    elif own:
        shown = ", ".join(f"`{flag}`" for flag in own)
        parts.append(f"{shown} must be a script's own: `fsdp-migrate scan` tells what it does.")
    parts.append(named_files(bare))
    sources = list(dict.fromkeys(_SOURCE.findall(with_stand_ins(bare))))
    if sources and not own and not foreign and not said:
        parts.append(f"It starts {named(sources, 3)}: `fsdp-migrate scan` looks into sources.")
    overrides = "" if foreign else told_of_overrides(bare)
    if not own and not foreign and not said:
        parts += [overrides or _choices(bare), _scripts(bare)]
    inner = settings_written(text)
    if inner:
        parts.append(inner)
    names_fsdp = bool(findings or own or foreign or inner or overrides)
    return NothingToConvertError(" ".join(part for part in parts if part), names_fsdp=names_fsdp)


def _without_printed(bare: str) -> str:
    """Return a script without the commands that print: what they name they do not start."""
    for start, end in reversed(list(commands_of(bare))):
        if is_printed(bare, start, end):
            bare = bare[:start] + bare[end:]
    return bare


def _choices(bare: str) -> str:
    """Say which arguments of a script's own choose FSDP by their value, such as ``--mode=fsdp``."""
    found = list(
        dict.fromkeys(
            " ".join(one["said"].replace("\\\n", " ").split())
            for one in _CHOICE.finditer(f"\n{bare}")
            if not _is_idle(one["said"], bare)
        )
    )
    if not found:
        return ""
    return (
        f"FSDP is named by {named(found, 3)}: what that chooses stands in another file or in the sources, "
        "where `fsdp-migrate scan` looks."
    )


def _is_idle(said: str, bare: str) -> bool:
    """Tell whether a choice is a variable's value that the script neither uses nor hands on."""
    given = re.match(r"([A-Za-z_]\w*)=", said)
    if given is None:
        return False
    name = given.group(1)
    alone = re.search(rf"^[ \t]*{name}=\S+[ \t]*(?:;|$)", bare, re.MULTILINE)
    used = re.search(rf"\$\{{?{name}\b|\bexport\b[^\n]*\b{name}\b|\bset\s+-a\b", bare)
    return alone is not None and used is None


def _scripts(bare: str) -> str:
    """Say which other scripts that FSDP is in the name of a script starts or names."""
    names = dict.fromkeys(_SCRIPT.findall(with_stand_ins(bare)))
    found = list(dict.fromkeys(without_folder(name, bare) for name in names))
    commands = " and ".join(f"`fsdp-migrate config {name}`" for name in found[:3] if "$" not in name)
    told = f": {commands}" if commands else ", which may have FSDP flags"
    return f"It starts {named(found, 3)}{told}." if found else ""


def _foreign(bare: str) -> str:
    """Say whose the settings are, where a command gives those of a framework that has its own."""
    if _FAIRSEQ.search(bare):
        return f"{FAIRSEQ}. There is nothing to convert."
    for framework in FOREIGN:
        # As the first or the last part of an override: `actor_rollout_ref.x=1`, `model.megatron_amp_O2=1`.
        key = next(
            (k for k in framework.keys if re.search(rf"(?<![\w.]){k}[\w.]*[.=]|(?<=\w\.){k}=", bare)), None
        )
        package = next((p for p in framework.classes if re.search(rf"(?<=\s)-m\s+{p}\.", bare)), None)
        key = key or package
        if key is not None and "fsdp" in bare.lower():
            given = {one.lower() for one in _STRATEGY.findall(bare)}
            done = " That stands there already." if given == {"fsdp2"} else ""
            return f"`{key}` is of {framework.title}, whose settings are its own: {framework.says}.{done}"
    return ""
