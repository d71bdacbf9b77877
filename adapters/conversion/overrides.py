"""Overrides of Composer's ``fsdp_config`` in a command: ``composer t.py y.yaml fsdp_config.verbose=true``.

Of a key that its FSDP2 does not have Composer only warns, and trains on without it.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from fsdp_migrate.adapters.conversion.text import TextConversion, convert_text
from fsdp_migrate.adapters.document.nodes import plain
from fsdp_migrate.adapters.document.yaml_reader import read_yaml
from fsdp_migrate.errors import ConfigError
from fsdp_migrate.findings import make_finding


if TYPE_CHECKING:
    from collections.abc import Iterator


_START = r"(?<![\w.$/-])[+~]{0,2}(?P<block>(?:\w+\.)*(?:fsdp_config|parallelism_config\.fsdp))"
_OUTER = r"(?<![\w.$/-])[+~]{0,2}(?P<block>(?:\w+\.)*parallelism_config)"
_MAPPING = r"\{(?:[^{}]|\{[^{}]*\})*\}"
_OVERRIDE = re.compile(rf"{_START}\.(?P<key>\w+(?:\.\w+)*)=\\?[\"']?(?P<value>{_MAPPING}|[^\s\"'\\;|&,)]*)")
_BLOCK = re.compile(rf"{_START}=\\?[\"']?(?P<value>{_MAPPING})")
_AROUND = re.compile(rf"{_OUTER}=\\?[\"']?(?P<value>{_MAPPING})")
_TIGHT = re.compile(r"([{,]\s*[\w.]+):(?=\S)")
_COMPOSER = re.compile(r"(?:^|[\s;&|(/\"'])composer\s|\bllm-?foundry\b", re.MULTILINE)
_COMMENT = re.compile(r"(?:^|(?<=[ \t]))#.*$", re.MULTILINE)
_STRATEGY, _FREES = "sharding_strategy", "reshard_after_forward"
_NOTHING_ELSE = frozenset({"FM340", "FM341", "FM342"})


class _Override(NamedTuple):
    """A key, its value, and the block's name; whether it stands in a mapping: ``fsdp_config={key:value}``."""

    block: str
    key: str
    value: str
    is_inside: bool = False

    def written(self, key: str, value: str) -> str:
        """Return how a key stands there, in the same way."""
        return f"`{key}:{value}`" if self.is_inside else f"`{self.block}.{key}={value}`"

    def __str__(self) -> str:
        where = f" in `{self.block}={{...}}`" if self.is_inside else ""
        return f"{self.written(self.key, self.value)}{where}"


def told_of_overrides(text: str) -> str:
    """Say what each override of Composer's ``fsdp_config`` in a script becomes; nothing where none has to.

    Example:
        >>> told_of_overrides("composer t.py y.yaml fsdp_config.sharding_strategy=SHARD_GRAD_OP")[-42:]
        '`fsdp_config.reshard_after_forward=false`.'
    """
    bare = _COMMENT.sub("", text)
    told = [said for each in dict.fromkeys(_overrides(bare)) if (said := _told(each))]
    if not told:
        return ""
    where = "" if _COMPOSER.search(bare) else " where Composer reads it"
    blocks = " and ".join(f"`{each}`" for each in dict.fromkeys(each.block for each in _overrides(bare)))
    return f"The command overrides {blocks}{where}: {'; '.join(told)}."


def with_overrides(done: TextConversion) -> TextConversion:
    """Return the conversion of a file of Composer's with what overrides in its commands become."""
    of_composer = any(block.framework == "composer" for block in done.blocks)
    said = told_of_overrides(done.source) if of_composer else ""
    if not said:
        return done
    hint = "Change the command too: what FSDP2 does not have Composer only warns of."
    return replace(done, findings=(*done.findings, make_finding("FM355", "command", said, hint)))


def without_overrides(text: str) -> str:
    """Return a script without the overrides of Composer's block, whose keys others have too.

    Example:
        >>> without_overrides("composer t.py y.yaml fsdp_config.flatten_parameters=true")
        'composer t.py y.yaml '
    """
    return _OVERRIDE.sub("", text) if _COMPOSER.search(text) else text


def _overrides(bare: str) -> Iterator[_Override]:
    for match in _OVERRIDE.finditer(bare):
        yield _Override(match["block"], match["key"], match["value"])
    for match in _BLOCK.finditer(bare):
        for key, value in _read(match["value"]).items():
            yield _Override(match["block"], key, _shown(value), is_inside=True)
    for match in _AROUND.finditer(bare):
        inner = _read(match["value"]).get("fsdp")
        for key, value in inner.items() if isinstance(inner, dict) else ():
            yield _Override(match["block"], key, _shown(value), is_inside=True)


def _read(mapping: str) -> dict[str, Any]:
    """Read a mapping of a command, in which no blank need stand behind a colon."""
    try:
        (node,) = read_yaml(_TIGHT.sub(r"\1: ", mapping))
    except (ConfigError, ValueError):
        return {}
    value = plain(node)
    return value if isinstance(value, dict) else {}


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _told(override: _Override) -> str:
    """Say what one override becomes."""
    _, key, value, _ = override
    if key == _STRATEGY and "$" in value:
        frees = override.written(_FREES, "")[:-1].rstrip(":=")
        return f"{override}: with FSDP2 {frees}` says it, `true` for FULL_SHARD, else `false`"
    given: Any = _read(value) if value.startswith("{") else value
    key, *inner = key.split(".")  # `mixed_precision.param_dtype=...` is of a mapping
    for name in reversed(inner):
        given = {name: given}
    document = json.dumps({"max_duration": "1ba", "fsdp_config": {key: given}})
    try:
        done = convert_text(document, framework="composer", is_json=True)
    except ConfigError:
        return ""  # no key of Composer's
    after = json.loads(done.text)["fsdp_config"]
    of_key = [each for each in done.findings if each.subject == f"fsdp_config.{key}"]
    refused = next((each for each in of_key if each.code == "FM348"), None)
    if refused is not None:
        return f"{override}: {refused.message.rstrip('.')}" if value and "$" not in value else ""
    if key == _STRATEGY and _FREES in after:
        lost = [each.message.rstrip(".") for each in of_key if each.code not in _NOTHING_ELSE]
        why = f" ({'; '.join(lost)})" if lost else ""
        return f"{override}: with FSDP2 write {override.written(_FREES, str(after[_FREES]).lower())}{why}"
    if key in after or not of_key:
        return ""
    return f"{override}: with FSDP2 leave it out ({of_key[0].message.rstrip('.')})"
