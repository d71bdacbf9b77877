"""What is to be said of a config beside the arguments of FSDP1 that are read from it.

It may be FSDP2's already, and the framework's own FSDP2 may do what ``prepare_fully_shard`` does not.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.conversion.frameworks import ADAPTERS
from fsdp_migrate.adapters.hf_versions import NOT_HERE
from fsdp_migrate.config_files import ConfigConversion, convert_config_file, where_fsdp1_is
from fsdp_migrate.errors import ConfigError, FindingsError, FSDPMigrateError
from fsdp_migrate.findings import Finding, listed, make_finding


if TYPE_CHECKING:
    import os


_PLAIN = "torch"
# Whose converted configs run an FSDP2 of the framework's own, with units of its own.
_SHARD_THEMSELVES = frozenset({"accelerate", "hf", "axolotl"})
_MOST_NAMED = 4
# Of where settings stand and which version reads them: FSDP2 does nothing otherwise for it.
_NOT_OF_FSDP2 = frozenset({"FM356", "FM358"})


def already_fsdp2(path: str | os.PathLike[str]) -> Finding | None:
    """Return what there is to say of a config that holds FSDP2's settings alone, or None.

    Example:
        >>> already_fsdp2("examples/configs/accelerate.yaml") is None
        True
    """
    found = _converted(path)
    if not isinstance(found, ConfigConversion) or not found.is_fsdp2:
        return None
    return make_finding(
        "FM444",
        str(path),
        f"It holds {_titles(found)}'s settings of FSDP2 already. What FSDP1 was told and they do not say "
        "(`backward_prefetch`, `sync_module_states`, `use_orig_params`, ...) is FSDP1's default here.",
        where_fsdp1_is(Path(path)),
    )


def refuse_fsdp2(path: str | os.PathLike[str]) -> None:
    """Refuse a config of FSDP2 where FSDP1 is to run by it.

    Raises:
        ConfigError: It holds FSDP2's settings; the error says where FSDP1's are.
    """
    if (found := already_fsdp2(path)) is not None:
        said = found.message.partition(".")[0].replace("It holds ", "holds ")
        msg = f"FM444: {str(path)!r} {said}, and FSDP1 is to run by it. {found.hint}"
        raise ConfigError(msg, field="config")


_WITHOUT_FSDP = (
    "This file does not hold `fsdp`, `bf16` and `fp16` of the Trainer's arguments. So FULL_SHARD in float32 "
    "is taken, without offload. For another run give a file that holds them too: "
    '{"fsdp": "full_shard auto_wrap", "bf16": true, "fsdp_config": {what this file holds}}.'
)


def framework_notes(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Say what a framework's own FSDP2 does otherwise than ``prepare_fully_shard`` with a config.

    Example:
        >>> framework_notes("examples/configs/torch.yaml")
        ()
    """
    found = _converted(path)
    if isinstance(found, FindingsError):
        findings, titles = tuple(found.findings), ""
    elif (
        found is None or found.is_fsdp2 or all(block.framework == _PLAIN for block in found.conversion.blocks)
    ):
        return ()
    else:
        findings = found.conversion.findings
        titles = _titles(found)
    said = [
        f"{each.code} `{each.subject}`"
        for each in findings
        if each.fidelity in {"changed", "refused"} and each.code not in _NOT_OF_FSDP2
    ]
    lacks = any(each.message.startswith(NOT_HERE) for each in findings)
    without = (_WITHOUT_FSDP,) if lacks else ()
    whose = f"{titles}'s own FSDP2" if titles else "The framework's own FSDP2"
    note = f"This is what `prepare_fully_shard` does with these settings. {whose} "
    if said:
        said_by = f"`fsdp-migrate config {shlex.quote(str(path))}` says how."
        return (f"{note}does otherwise: {listed(said, _MOST_NAMED)}; {said_by}", *without)
    if isinstance(found, ConfigConversion) and _shards_itself(found):
        return (f"{note}is not run here.", *without)
    return without


def _shards_itself(found: ConfigConversion) -> bool:
    return any(block.framework in _SHARD_THEMSELVES for block in found.conversion.blocks)


def _titles(found: ConfigConversion) -> str:
    titles = (
        ADAPTERS[each.framework].title for each in found.conversion.blocks if each.framework in ADAPTERS
    )
    return " and ".join(dict.fromkeys(titles))


def _converted(path: str | os.PathLike[str]) -> ConfigConversion | FindingsError | None:
    """Return what would become of a config; the error if it cannot be converted; None if it holds nothing."""
    try:
        return convert_config_file(path)
    except FindingsError as error:
        return error
    except FSDPMigrateError:
        return None
