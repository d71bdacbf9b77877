"""HF Trainer's offload under FSDP2: the norm of gradients on the CPU needs gloo in the process group.

Accelerate makes the group with NCCL alone, unless two of its variables are set before (``state.py``), which
older versions do not read for it;
``tests/frameworks/test_accelerate_claims.py`` holds that against the Accelerate that is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate import words
from fsdp_migrate.adapters.document.nodes import REFERENCE
from fsdp_migrate.adapters.engine.accelerate_switch import SWITCH, switches_on
from fsdp_migrate.adapters.engine.base import bare_values, is_known, plain_values
from fsdp_migrate.adapters.engine.claims import ACCELERATE
from fsdp_migrate.errors import ConfigError


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.adapters.engine.base import Block, Draft, Key


OFFLOAD = "FSDP_OFFLOAD_PARAMS"
GROUP_WITH_GLOO = f"{SWITCH}=true {OFFLOAD}=true"
NO_GLOO = (
    "FSDP2's gradients are on the CPU, and clipping reduces their norm there. Accelerate makes the process "
    f"group with NCCL alone unless the environment has `{GROUP_WITH_GLOO}` (read by Accelerate "
    f"{ACCELERATE['gloo_by_variables'].versions}), and the first step then stops: "
    "`No backend type associated with device type cpu`."
)


def makes_gloo(environment: Mapping[str, str]) -> bool:
    """Tell whether Accelerate makes a process group for tensors on the CPU as well.

    Example:
        >>> makes_gloo({"ACCELERATE_USE_FSDP": "true", "FSDP_OFFLOAD_PARAMS": "true"}), makes_gloo({})
        (True, False)
    """
    full = environment.get("FSDP_STATE_DICT_TYPE") == "FULL_STATE_DICT"
    return switches_on(environment.get(SWITCH, "")) and (full or switches_on(environment.get(OFFLOAD, "")))


def say_offload(block: Block, items: tuple[str, ...], keys: tuple[Key, ...], draft: Draft) -> None:
    """Say what a run that offloads needs before it starts; a launcher that runs FSDP gives it."""
    values = bare_values(block.node, keys)
    is_word = "offload" in items
    # Where neither says it, Accelerate's plugin takes the variable, with `version: 2` too.
    is_variable = not is_word and "cpu_offload" not in values and _in_environment(block)
    offloads = is_word or is_variable or _is_on(values.get("cpu_offload"))
    norm = plain_values(block.owner).get("max_grad_norm")
    clips = not is_known(norm) or str(norm) not in {"0", "0.0"}
    if not offloads or not clips or makes_gloo(block.settings.environment):
        return
    hint = (
        f"Start it with `{GROUP_WITH_GLOO}` in the environment; `accelerate launch` sets them where its own "
        "settings offload. Or write 0, which clips nothing."
    )
    what = f"`{OFFLOAD}=true`" if is_variable else "`offload` in `fsdp`" if is_word else "`cpu_offload: true`"
    draft.say("FM343", block.beside("max_grad_norm"), f"{what}: {NO_GLOO}", hint)


def _in_environment(block: Block) -> bool:
    given = block.settings.environment.get(OFFLOAD)
    return given is not None and not REFERENCE.search(given) and _is_on(given)


def _is_on(value: object) -> bool:
    if isinstance(value, dict):
        value = value.get("offload_params")
    try:
        return is_known(value) and words.read_bool(value, "value")
    except ConfigError:
        return False
