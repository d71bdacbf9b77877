"""Overrides of Composer's ``fsdp_config`` in a command: ``composer t.py y.yaml fsdp_config.verbose=true``.

Of a key that its FSDP2 does not have Composer only warns, and trains on without it.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

from fsdp_migrate.adapters.conversion.text import TextConversion, convert_text
from fsdp_migrate.errors import ConfigError
from fsdp_migrate.findings import make_finding


_OVERRIDE = re.compile(
    r"(?<![\w.$/-])[+~]{0,2}(?P<prefix>(?:\w+\.)*fsdp_config\.)(?P<key>\w+)=(?P<value>[^\s\"'\\;|&,)]*)"
)
_COMPOSER = re.compile(r"(?:^|[\s;&|(/\"'])composer\s|\bllm-?foundry\b", re.MULTILINE)
_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)
_STRATEGY, _FREES = "sharding_strategy", "reshard_after_forward"


def told_of_overrides(text: str) -> str:
    """Say what each override of Composer's ``fsdp_config`` in a script becomes; nothing where none has to.

    Example:
        >>> told_of_overrides("composer t.py y.yaml fsdp_config.sharding_strategy=SHARD_GRAD_OP")[-42:]
        '`fsdp_config.reshard_after_forward=false`.'
    """
    bare = _COMMENT.sub("", text)
    found = dict.fromkeys(match.group("prefix", "key", "value") for match in _OVERRIDE.finditer(bare))
    told = [said for each in found if (said := _told(*each))]
    if not told:
        return ""
    where = "" if _COMPOSER.search(bare) else " where Composer reads it"
    return f"The command overrides `fsdp_config`{where}: {'; '.join(told)}."


def with_overrides(done: TextConversion) -> TextConversion:
    """Return the conversion of a file of Composer's with what overrides in its commands become."""
    of_composer = any(block.framework == "composer" for block in done.blocks)
    said = told_of_overrides(done.source) if of_composer else ""
    if not said:
        return done
    hint = "Change the command too: what FSDP2 does not have Composer only warns of."
    return replace(done, findings=(*done.findings, make_finding("FM355", "command", said, hint)))


def _told(prefix: str, key: str, value: str) -> str:
    """Say what one override becomes."""
    document = json.dumps({"max_duration": "1ba", "fsdp_config": {key: value}})
    written = f"`{prefix}{key}={value}`"
    if key == _STRATEGY and "$" in value:
        return f"{written}: with FSDP2 `{prefix}{_FREES}` says it, `true` for FULL_SHARD, else `false`"
    try:
        done = convert_text(document, framework="composer", is_json=True)
    except ConfigError:
        return ""
    after = json.loads(done.text)["fsdp_config"]
    if key == _STRATEGY and _FREES in after:
        return f"{written}: with FSDP2 write `{prefix}{_FREES}={str(after[_FREES]).lower()}`"
    said = next((each for each in done.findings if each.subject == f"fsdp_config.{key}"), None)
    if key in after or said is None:
        return ""
    return f"{written}: with FSDP2 leave it out ({said.message.rstrip('.')})"
