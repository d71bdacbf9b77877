"""Whose a mapping is: the packages of the classes that it names, and how sure the keys around it make one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate import words
from fsdp_migrate.adapters.engine.base import plain_values
from fsdp_migrate.adapters.engine.torch_objects import target_of


if TYPE_CHECKING:
    from fsdp_migrate.adapters.document.nodes import Mapping


PACKAGES = {
    "lightning": ("lightning", "pytorch_lightning", "lightning_fabric"),
    "composer": ("composer", "llmfoundry"),
    "hf": ("transformers", "trl"),
}
"""The packages whose classes a config of each framework instantiates."""
# What `fsdp` of HF Trainer can say.
HF_WORDS = frozenset(
    {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2", "offload", "auto_wrap"}
)

# With other keys of HF Trainer alone beside them they may be the file of `fsdp_config`, or torch's arguments.
_SHARED = frozenset(
    {
        "backward_prefetch",
        "forward_prefetch",
        "limit_all_gathers",
        "use_orig_params",
        "sync_module_states",
        "cpu_ram_efficient_loading",
    }
)


def is_of(target: str, framework: str) -> bool:
    """Tell whether a class is one of a framework's: by the package that its name begins with.

    Example:
        >>> is_of("lightning.pytorch.strategies.FSDPStrategy", "lightning"), is_of("nemo.X", "lightning")
        (True, False)
    """
    return target.partition(".")[0] in PACKAGES[framework]


def is_anothers(mapping: Mapping, framework: str) -> bool:
    """Tell whether a mapping instantiates a class of another package than a framework's own."""
    values = plain_values(mapping)
    target = target_of(values) or values.get("_component_")
    return isinstance(target, str) and "." in target and not is_of(target, framework)


def has_hf_words(mapping: Mapping) -> bool:
    """Tell whether ``fsdp`` of a mapping says what only HF Trainer's, and Axolotl's, can."""
    fsdp = plain_values(mapping).get("fsdp")
    named = (
        fsdp if isinstance(fsdp, list) else fsdp.replace(",", " ").split() if isinstance(fsdp, str) else []
    )
    return any(words.bare_word(word) in HF_WORDS for word in named)


def may_be_fsdp_config(names: set[str], known: set[str]) -> bool:
    """Tell whether a document's keys, with no prefix, may be those of the file that ``fsdp_config`` names."""
    return bool(names & _SHARED) and names <= known


def is_prefixed(names: list[str]) -> bool:
    """Tell whether keys have the prefix of Accelerate and HF Trainer: most have, or some beside ``version``.

    Scripts have it too, before a key or two of a file that they read themselves.

    Example:
        >>> is_prefixed(["fsdp_offload_params"]), is_prefixed(["fsdp_offload_params", "seed"])
        (True, False)
    """
    prefixed = sum(name.startswith("fsdp_") for name in names)
    return 2 * prefixed > len(names) or (prefixed > 0 and "version" in names)
