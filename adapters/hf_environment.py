"""What HF Trainer's FSDP1 takes from Accelerate's variables, where ``fsdp`` and its config do not say it.

transformers hands a strategy on only where ``fsdp`` names one, and Accelerate's plugin takes it from
``FSDP_SHARDING_STRATEGY`` otherwise (``FullyShardedDataParallelPlugin.__post_init__``); its FSDP2 does not.
``tests/frameworks/test_accelerate_claims.py`` holds both against the plugin that is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.adapters.document.nodes import REFERENCE
from fsdp_migrate.adapters.engine.base import plain_values
from fsdp_migrate.adapters.engine.claims import TRANSFORMERS
from fsdp_migrate.adapters.engine.shared_keys import (
    frees_after_forward,
    read_state_dict_type,
    strategy_of,
)


if TYPE_CHECKING:
    from fsdp_migrate.adapters.engine.base import Block, Draft


STRATEGY = "FSDP_SHARDING_STRATEGY"
STATE_DICT_TYPE = "FSDP_STATE_DICT_TYPE"
HF_STRATEGIES = frozenset({"full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2"})


def strategy_in_environment(block: Block) -> str | None:
    """Return the strategy that the environment of a command says, or None where that is not known.

    Raises:
        ConfigError: It is no strategy.
    """
    given = block.settings.environment.get(STRATEGY)
    return None if given is None or REFERENCE.search(given) else strategy_of(given, STRATEGY)


def state_type_in_environment(block: Block) -> str | None:
    """Return the type of state dicts that the environment of a command says, or None.

    Raises:
        ConfigError: There is no such type.
    """
    given = block.settings.environment.get(STATE_DICT_TYPE)
    if given is None or REFERENCE.search(given):
        return None
    read = read_state_dict_type(given)
    return "SHARDED_STATE_DICT" if read == "LOCAL_STATE_DICT" else read


def say_environment(block: Block, items: tuple[str, ...], draft: Draft) -> None:
    """Say of these variables what FSDP1 took them for, and what FSDP2 makes of them."""
    given = block.settings.environment.get(STRATEGY)
    if given is not None and items and not HF_STRATEGIES & set(items):
        why = f"`fsdp` names no strategy, so FSDP1 takes it from {STRATEGY}, which FSDP2 does not read."
        strategy = strategy_in_environment(block)
        if strategy is not None:
            frees = str(frees_after_forward(strategy)).lower()
            text = f"{given} is {strategy}: {why} `reshard_after_forward: {frees}` in `fsdp_config` says it."
            draft.say("FM341", STRATEGY, text)
        else:
            text = f"{given} is the strategy of FSDP1: {why} `reshard_after_forward: true` is FULL_SHARD (1)."
            hint = "Write false for 2, 3 and 5; for 4 and 5 on several nodes FSDP2 needs a mesh."
            draft.say("FM346", STRATEGY, text, hint)
    kind = block.settings.environment.get(STATE_DICT_TYPE)
    config = plain_values(block.owner).get("fsdp_config")
    is_file = isinstance(config, str) and not config.lstrip().startswith("{")
    if kind is not None and (is_file or REFERENCE.search(kind)):
        versions = TRANSFORMERS["state_dict_type_read"].versions
        text = (
            f"{kind} is {STATE_DICT_TYPE}, which FSDP1 took; transformers {versions} read "
            "`state_dict_type` in `fsdp_config` instead."
        )
        draft.say("FM346", STATE_DICT_TYPE, text, f"Write there what {STATE_DICT_TYPE} says.")
