"""What the adapters claim about frameworks: what a key does, and in which versions. One table for each.

Findings take their words from here. ``tests/frameworks`` holds every claim against the framework that is
installed, and ``make test-frameworks`` against other versions of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from fsdp_migrate.versions import is_within, version_numbers


if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Claim:
    """What holds from the version ``since`` on, and no longer in ``before``; empty: always.

    Example:
        >>> Claim("x", "5.0", "5.4").versions, Claim("x", since="5.10").versions, Claim("x").versions
        ('5.0 to 5.3', '5.10 and later', 'every version')
    """

    says: str
    since: str = ""
    before: str = ""

    def holds(self, version: str) -> bool:
        """Tell whether it is claimed of a version, such as ``5.10.1``."""
        return is_within(version, self.since, self.before)

    @property
    def versions(self) -> str:
        """The versions of which it is claimed, in words."""
        if self.since and self.before:
            major, minor = version_numbers(self.before)
            return f"{self.since} to {f'{major}.{minor - 1}' if minor else f'before {major}.0'}"
        if self.since:
            return f"{self.since} and later"
        return f"before {self.before}" if self.before else "every version"


TRANSFORMERS: Mapping[str, Claim] = MappingProxyType(
    {
        "version_read": Claim("`version: 2` in `fsdp_config` makes it FSDP2", since="5.0"),
        "json_on_command_line": Claim("`--fsdp_config` takes JSON on the command line", since="4.40"),
        "fsdp2_default": Claim("FSDP2 runs without `version`", since="5.10"),
        "missing_reshard_is_false": Claim(
            "under `version: 2`, no `reshard_after_forward` is taken for false",
            since="5.0",
            before="5.4",
        ),
        "state_dict_type_read": Claim("`state_dict_type` in `fsdp_config` is read", since="5.10"),
        "save_model_full_only": Claim("`save_model` under FSDP writes weights for FULL_STATE_DICT alone"),
        "saving_empties_state": Claim(
            "`save_pretrained` takes each entry out of the state that it is given", since="5.0"
        ),
        "cpu_offload_read": Claim("`cpu_offload` in `fsdp_config` is read", since="5.10"),
        "auto_wrap_policy_read": Claim("`auto_wrap_policy` in `fsdp_config` is read", since="5.10"),
        "size_needs_policy": Claim(
            "`min_num_params` counts only beside `auto_wrap_policy: SIZE_BASED_WRAP`", since="5.10"
        ),
        "size_beside_layers_stops": Claim(
            "`min_num_params` beside `transformer_layer_cls_to_wrap` stops the run", before="5.10"
        ),
        "offload_word": Claim("`offload` in `fsdp` keeps parameters on the CPU"),
        "hybrid_refused": Claim("`hybrid_shard` in `fsdp` is refused under FSDP2", since="5.10"),
        "one_is_full_shard": Claim("FSDP1 runs FULL_SHARD, whatever strategy `fsdp` names", since="5.0"),
        "wrap_arguments": Claim(
            "`fsdp_transformer_layer_cls_to_wrap` and `fsdp_min_num_params` are arguments of their own",
            before="5.0",
        ),
        "words_deprecated": Claim(
            "words in `fsdp` are warned of: `fsdp: true` is to stand there", since="5.10"
        ),
        "fsdp_is_bool": Claim(
            "`fsdp` of the arguments is true, and None without FSDP, whatever words it was given",
            since="5.10",
        ),
        "no_fsdp_attribute": Claim("the Trainer has no attribute `fsdp`", since="4.57"),
        "no_prefetch": Claim("FSDP1 does not prefetch in backward unless `backward_prefetch` is given"),
    }
)
ACCELERATE: Mapping[str, Claim] = MappingProxyType(
    {
        "fsdp2": Claim("`fsdp_version: 2` runs FSDP2", since="1.6"),
        "full_state_dict": Claim("FSDP2 saves and loads FULL_STATE_DICT", since="1.7"),
        "prefetch_policy_unread": Claim(
            "`fsdp_backward_prefetch_policy` is not read, and refused as a flag", since="1.0"
        ),
        "no_prefetch": Claim("FSDP1 does not prefetch in backward unless `fsdp_backward_prefetch` is given"),
        "reshard_unread": Claim("Accelerate's FSDP1 reads `fsdp_sharding_strategy` alone", since="1.6"),
        "precision_by_unit": Claim(
            "FSDP2 casts the inputs of every unit, and outputs; FSDP1 the root's inputs, and buffers",
            since="1.6",
        ),
        "no_autocast": Claim("FSDP2 runs the model without autocast, in which FSDP1 runs it", since="1.6"),
        "size_counts_children": Claim(
            "under SIZE_BASED_WRAP FSDP2 counts the parameters of wrapped children too", since="1.7"
        ),
        "size_takes_containers": Claim(
            "under SIZE_BASED_WRAP FSDP2 wraps a ModuleList too, which `fully_shard` refuses", since="1.7"
        ),
        "forward_prefetch_refused": Claim("`forward_prefetch` is refused under FSDP2", since="1.6"),
        "local_refused": Claim("LOCAL_STATE_DICT is refused under FSDP2", since="1.6"),
        "strategy_by_variable": Claim(
            "without a strategy FSDP1 takes `FSDP_SHARDING_STRATEGY` of the environment; FSDP2 does not",
            since="1.6",
        ),
        "state_by_version": Claim(
            "without `fsdp_state_dict_type` FSDP1 saves FULL_STATE_DICT, and FSDP2 SHARDED_STATE_DICT",
            since="1.6",
        ),
        "embeddings_apart": Claim(
            "FSDP2 gives the embeddings a unit of their own, and the head with the last norm another",
            since="1.14",
        ),
        "carves_units": Claim(
            "FSDP2 stops where the embeddings, the head or the last norm lie in a unit of the policy",
            since="1.14",
        ),
        "trained_in_float32": Claim(
            "with mixed precision FSDP2 makes what is trained float32 first, unless weights are 4-bit",
            since="1.14",
        ),
        "tied_in_one_unit": Claim("FSDP2 gives tied embeddings and head one unit", since="1.15"),
        "loads_not_all": Claim(
            "with `fsdp_cpu_ram_efficient_loading` FSDP2 stops at buffers that the state dict holds, such as "
            "BatchNorm's, and in a model that is not of transformers at parameters of the model itself",
            since="1.7",
        ),
        "tears_ties": Claim(
            "where a model with tied weights has no method `tie_weights` FSDP2 then trains them apart, "
            "without a word",
            since="1.7",
        ),
        "casts_no_buffers": Claim(
            "Accelerate's FSDP2 leaves the buffers of `spectral_norm` in float32, which FSDP1 cast with the "
            "weights, and its first forward raises",
            since="1.6",
        ),
        "sends_no_4bit": Claim(
            "where one weight is 4-bit of bitsandbytes (QLoRA) FSDP2 sends none of rank 0's weights",
            since="1.7",
        ),
        "true_switches_on": Claim(
            "`ACCELERATE_USE_FSDP` is on where it is `true`, and not where it is 1", since="1.6"
        ),
        "any_case_switches_on": Claim("`ACCELERATE_USE_FSDP` is on where it is `True` too", since="1.10"),
        "gloo_by_variables": Claim(
            "the process group has gloo beside NCCL only where `ACCELERATE_USE_FSDP`, `FSDP_OFFLOAD_PARAMS` "
            "are true, or in place of the second `FSDP_STATE_DICT_TYPE` is FULL_STATE_DICT",
            since="1.9",
        ),
        "mesh_by_variables": Claim(
            "`PARALLELISM_CONFIG_DP_REPLICATE_SIZE` and `_DP_SHARD_SIZE` are the mesh, where "
            "`ACCELERATE_USE_PARALLELISM_CONFIG` is true",
            since="1.10",
        ),
        "ignores_nothing": Claim(
            "with `fsdp_cpu_ram_efficient_loading` FSDP2 shards what `fsdp_ignored_modules` names all the "
            "same, and gives every rank the values of rank 0",
            since="1.6",
        ),
        "prepared_together": Claim("FSDP2 prepares a model and its optimizer in one call only", since="1.6"),
    }
)
ACCELERATE_UNREAD = frozenset(
    {
        "limit_all_gathers",
        "backward_prefetch_policy",
        "transformer_cls_to_wrap",
        "transformer_cls_names_to_wrap",
    }
)
"""Keys of people's files that Accelerate's launcher has no flag for: they stand there without effect."""
LIGHTNING: Mapping[str, Claim] = MappingProxyType(
    {
        "model_parallel": Claim("`ModelParallelStrategy` shards with FSDP2", since="2.3"),
        "word_is_torchs": Claim("`strategy: fsdp` is torch's FSDP", since="2.0"),
        "fairscale_gone": Claim("`strategy: ddp_fully_sharded`, fairscale's FSDP, is gone", since="2.0"),
        "no_16_mixed": Claim("`ModelParallelStrategy` refuses `precision: 16-mixed`", since="2.3"),
        "no_sync_batchnorm": Claim(
            "`ModelParallelStrategy` does not read `sync_batchnorm`, which `FSDPStrategy` heeds", since="2.3"
        ),
        "refuses_fsdps": Claim("`ModelParallelStrategy` stops at arguments of `FSDPStrategy`", since="2.3"),
        "settings_are_fsdp1s": Claim(
            "`ModelParallelStrategy` has none of what `FSDPStrategy` keeps of its arguments", since="2.3"
        ),
        "refuses_compiled": Claim(
            "`ModelParallelStrategy` refuses what `torch.compile` made of a LightningModule", since="2.3"
        ),
        "tests_in_inference_mode": Claim(
            "tests and predictions run under `torch.inference_mode`, where `FSDPStrategy` has `no_grad`",
            since="2.3",
        ),
        "leaves_reduction_off": Claim(
            "Fabric's `no_backward_sync(.., enabled=False)` leaves the reduction of FSDP2's gradients off",
            since="2.3",
        ),
        "folders_differ": Claim(
            "`ModelParallelStrategy` saves a folder's weights as `state_dict`, where `FSDPStrategy`'s are "
            "`model`, which lightning.pytorch.utilities.consolidate_checkpoint looks for",
            since="2.3",
        ),
        "backend_is_asked_for": Claim(
            "`ModelParallelStrategy` makes the process group of `process_group_backend`, Fabric's too",
            since="2.3",
        ),
        "one_name_is_a_policy": Claim("`auto_wrap_policy` that is no set of classes goes to torch as it is"),
        "wrapper_in_names": Claim(
            "`FSDPStrategy` puts `_forward_module.` before the names of its state", before="2.1"
        ),
        "precision_casts": Claim(
            "`FSDPStrategy` takes parameters', gradients' and buffers' dtype from the Trainer's `precision`",
            since="2.6",
        ),
    }
)
LIGHTNING_FOLDERS: Final = (
    f"{LIGHTNING['folders_differ'].says}: take lightning.fabric.utilities.consolidate_checkpoint, and "
    "`state_dict` where code reads a folder's `model`."
)
LIGHTNING_SETTINGS: Final = frozenset(
    {
        *("cpu_offload", "kwargs", "mixed_precision", "mixed_precision_config", "sharding_strategy"),
        *("_activation_checkpointing_kwargs", "_state_dict_type"),
    }
)
"""Under which names the Trainer's ``FSDPStrategy`` keeps its arguments; Fabric's has most of them, too."""
COMPOSER: Mapping[str, Claim] = MappingProxyType(
    {
        "fsdp2": Claim("`FSDP_VERSION=2` in the environment makes a mapping FSDP2's", since="0.31"),
        "no_fsdp_config": Claim("`Trainer` has no argument `fsdp_config`, but `parallelism_config`"),
        "buffers_cast": Claim("FSDP1 casts buffers under DEFAULT and PURE"),
        "buffers_kept": Claim("FSDP2 leaves buffers in their own dtype", since="0.32"),
        "inputs_of_every_unit": Claim("FSDP2 casts the inputs of every unit", since="0.32"),
        "asks_for_fsdp1": Claim("`composer.utils.is_model_fsdp` asks for FSDP1's class alone"),
    }
)
AXOLOTL_REFUSED_OPTIMIZERS = frozenset({"adamw_8bit", "adamw_bnb_8bit"})
"""What Axolotl refuses under FSDP2; other 8-bit optimizers it lets pass."""
AXOLOTL_REFUSED_RL = frozenset({"dpo", "kto", "orpo", "ipo"})
"""Kinds of ``rl`` that Axolotl refuses under FSDP2 beside ``load_in_8bit`` or ``load_in_4bit``."""
AXOLOTL: Mapping[str, Claim] = MappingProxyType(
    {
        "optimizers": Claim("FSDP2 with an 8-bit optimizer of bitsandbytes is refused", since="0.8.1"),
        "quantised_rl": Claim(
            "FSDP2 is refused where `rl` is dpo, kto, orpo or ipo beside `load_in_8bit` or `load_in_4bit`",
            since="0.12",
        ),
        "bare_keys": Claim("keys of `fsdp_config` have no prefix", since="0.12"),
    }
)
