"""The words in HF Trainer's ``fsdp``: the strategy, ``offload`` and ``auto_wrap``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate import words
from fsdp_migrate.adapters.engine.base import is_known, plain_values
from fsdp_migrate.adapters.engine.shared_keys import strategy_of
from fsdp_migrate.adapters.hf_environment import HF_STRATEGIES, strategy_in_environment
from fsdp_migrate.adapters.hf_versions import refuse_file
from fsdp_migrate.errors import ConfigError


if TYPE_CHECKING:
    from fsdp_migrate.adapters.engine.base import Block


STRATEGIES = {word: strategy_of(word) for word in HF_STRATEGIES}
OPTIONS = (*sorted(STRATEGIES), "offload", "auto_wrap")


def items_of(block: Block) -> tuple[str, ...]:
    """Return the words in ``fsdp``: a string with spaces, or a list; True is ``full_shard``.

    Raises:
        ConfigError: A word is no option.
    """
    value = plain_values(block.owner).get("fsdp")
    if value is True:
        return ("full_shard",)
    if not is_known(value) or value is False:
        return ()
    refuse_file(value)
    parts = value if isinstance(value, list) else str(value).replace(",", " ").split()
    found = tuple(words.bare_word(part) for part in parts)
    for word in found:
        if word not in OPTIONS:
            msg = f"`fsdp` holds {word!r}, which is no option.{words.closest(word, OPTIONS)}"
            raise ConfigError(msg, field="fsdp")
    return found


def strategy_in_fsdp(block: Block) -> str | None:
    """Return the strategy that ``fsdp`` names, or where it names none the environment, or None."""
    named = [STRATEGIES[word] for word in items_of(block) if word in STRATEGIES]
    given = plain_values(block.owner).get("fsdp")
    if named:
        return named[-1] if given is not True else None
    return strategy_in_environment(block) if is_known(given) and given else None
