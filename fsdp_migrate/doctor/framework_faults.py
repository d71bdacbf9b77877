"""Known faults of frameworks: settings that mean nothing, or something else in another version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsdp_migrate import words
from fsdp_migrate.adapters.engine.claims import ACCELERATE
from fsdp_migrate.adapters.engine.shared_embeddings import EMBEDDINGS_STAY
from fsdp_migrate.adapters.engine.shared_keys import EVERY_MODEL_HAS
from fsdp_migrate.doctor.accelerate_units import (
    EMBEDDINGS_AND_HEAD,
    carved_within_units,
    shared_across_units,
    unsaid_embeddings,
)
from fsdp_migrate.doctor.checkpoint_faults import resumes_empty
from fsdp_migrate.doctor.known import MOST_SEEN, Affected, KnownFault, seen_of
from fsdp_migrate.errors import ConfigError
from fsdp_migrate.findings import listed, named
from fsdp_migrate.sharding.tying import is_one_module, parameter_names


if TYPE_CHECKING:
    from collections.abc import Callable

    from fsdp_migrate.doctor.sight import Sight


_HYBRID = ("HYBRID", "_HYBRID")
FSDP1S_BITS = 'docs/frameworks.md, "FSDP1\'s bits under Accelerate"'
"""Where the lines stand that shard with ``prepare_fully_shard`` in a script of Accelerate's."""


def _is(value: Any, *expected: str) -> bool:
    return str(value).lower() in expected


def _in(framework: str, sees: Callable[[Sight], str]) -> Callable[[Sight], str]:
    """Return what sees something in the config files of one framework only."""
    return lambda sight: sees(sight) if sight.framework == framework else ""


def _is_version_2(sight: Sight) -> bool:
    return _is(sight.settings.get("version"), "2") or _is(sight.setting("version"), "2")


def _version_2(sight: Sight) -> str:
    return "`version: 2` stands in `fsdp_config`" if _is_version_2(sight) else ""


def _version_2_without_reshard(sight: Sight) -> str:
    is_missing = sight.setting("reshard_after_forward") is None
    return "`version: 2`, and no `reshard_after_forward`" if _is_version_2(sight) and is_missing else ""


def _version_2_with(*names: str) -> Callable[[Sight], str]:
    def sees(sight: Sight) -> str:
        found = [name for name in names if sight.setting(name) is not None]
        return f"`version: 2`, and {named(found, MOST_SEEN)}" if found and _is_version_2(sight) else ""

    return sees


def _resumes_from_shards(sight: Sight) -> str:
    """Look for the form that FSDP1 saves and does not load, and for what loads it, if sources are there."""
    form = str(sight.setting("state_dict_type") or "").upper()
    if sight.framework not in {"accelerate", "hf"} or "SHARDED" not in form or _is_version_2(sight):
        return ""
    if resumes_empty(sight):  # which is the same fault, named by the checkpoint
        return ""
    loads = sight.find(r"\bload_state\(|\bresume_from_checkpoint\b")
    return "" if sight.sources and not loads else f"{form}{f', and {loads}' if loads else ''}"


def _no_version(sight: Sight) -> str:
    is_missing = sight.settings.get("version") is None and sight.setting("version") is None
    return "`fsdp_config` has no `version`" if is_missing else ""


def _size_without_policy(sight: Sight) -> str:
    size, policy = sight.setting("min_num_params"), sight.setting("auto_wrap_policy")
    return f"`min_num_params: {size}` without `auto_wrap_policy`" if size and policy is None else ""


def _containers_by_size(sight: Sight) -> str:
    policy, size = sight.setting("auto_wrap_policy"), sight.setting("min_num_params")
    is_said = str(policy).upper() == "SIZE_BASED_WRAP"
    # HF Trainer and Axolotl wrap by size where only the number is given.
    if sight.framework not in {"accelerate", "hf", "axolotl"} or not (
        is_said or (size and policy is None and sight.framework != "accelerate")
    ):
        return ""
    word = "SIZE_BASED_WRAP" if is_said else f"`min_num_params: {size}`"
    if sight.model is None:
        return f"{word}, if the model has such a list"
    try:
        bound = words.read_count(size, "min_num_params") if size is not None else 0
    except ConfigError:
        bound = 0
    found = [
        f"`{name}`"
        for name, module in sight.model.named_modules()
        if type(module).__name__ in {"ModuleList", "ModuleDict"}
        and sum(each.numel() for each in module.parameters()) > bound
    ]
    return f"{word}, and {listed(found, MOST_SEEN)}" if found else ""


_UNITS = {"": "the root", EMBEDDINGS_AND_HEAD: EMBEDDINGS_AND_HEAD}


def _is_accelerates(sight: Sight) -> bool:
    # HF Trainer hands its model on to Accelerate.
    return sight.framework in {"accelerate", "hf"} and sight.model is not None


def _splits(sight: Sight, *, modules: bool) -> str:
    """Return the parameters that several units would hold: of modules at several places, or tied ones."""
    if sight.model is None or sight.config is None or not _is_accelerates(sight):
        return ""
    ties = shared_across_units(sight.model, sight.config.auto_wrap_policy, sight.versions["accelerate"])
    what = "are of one module" if modules else "are one parameter"
    return seen_of(
        f"{named(tie.names)} {what}, of " + " and ".join(_UNITS.get(unit, f"`{unit}`") for unit in tie.units)
        for tie in ties
        if is_one_module(sight.model, tie) is modules
    )


def _carves_within(sight: Sight) -> str:
    if sight.model is None or sight.config is None or not _is_accelerates(sight):
        return ""
    version = sight.versions["accelerate"]
    found = carved_within_units(sight.model, sight.config.auto_wrap_policy, version)
    return seen_of(f"`{name}` is in the unit `{unit}`" for name, unit in found)


def _says_no_embeddings(sight: Sight) -> str:
    if sight.model is None or not _is_accelerates(sight):
        return ""
    found = unsaid_embeddings(sight.model, sight.versions["accelerate"])
    return seen_of(f"`{name}()` of `{type(sight.model).__name__}` raises" for name in found)


def _loads_not_all(sight: Sight) -> str:
    if sight.model is None or not (_is_accelerates(sight) and sight.loads_on_meta):
        return ""
    saved = set(sight.model.state_dict(keep_vars=True))
    found = [f"the buffer `{name}`" for name, _ in sight.model.named_buffers() if name in saved]
    if not hasattr(sight.model, "get_parameter_or_buffer"):  # which the models of transformers have
        found += [f"the model's own `{name}`" for name, _ in sight.model.named_parameters(recurse=False)]
    return seen_of(found)


def _tears_ties(sight: Sight) -> str:
    if (
        sight.model is None
        or not (_is_accelerates(sight) and sight.loads_on_meta)
        or hasattr(sight.model, "tie_weights")
    ):
        return ""
    tied = (names for names in parameter_names(sight.model).values() if len(names) > 1)
    return seen_of(f"{named(names)} are one parameter" for names in tied)


def _recomputes(sight: Sight) -> str:
    # HF Trainer hands its own on to Accelerate's plugin.
    is_on = sight.framework in {"accelerate", "hf"} and _is(sight.setting("activation_checkpointing"), "true")
    prefix = "fsdp_" if sight.framework == "accelerate" else ""
    return f"`{prefix}activation_checkpointing` is on" if is_on else ""


def _hybrid(sight: Sight) -> str:
    strategy = sight.config.sharding_strategy if sight.config is not None else ""
    return f"the strategy is {strategy}" if strategy.startswith(_HYBRID) else ""


def _strategy(name: str) -> Callable[[Sight], str]:
    def sees(sight: Sight) -> str:
        is_it = sight.config is not None and sight.config.sharding_strategy == name
        return f"the strategy is {name}" if is_it else ""

    return sees


def _forward_prefetch(sight: Sight) -> str:
    return "`forward_prefetch` is on" if sight.config and sight.config.forward_prefetch else ""


def _buffer_dtype(sight: Sight) -> str:
    precision = sight.config.mixed_precision if sight.config else None
    return f"buffers were {precision.buffer_dtype}" if precision and precision.buffer_dtype else ""


_TRIED = "2026-11-25"
_DRIFT = "huggingface/transformers#45640"

FRAMEWORK_FAULTS = (
    KnownFault(
        "trainer-ignores-version",
        "HF Trainer does not read `version` in `fsdp_config`: `version: 2` trains under FSDP1.",
        "huggingface/transformers#42521",
        "config",
        _in("hf", _version_2),
        "Take transformers 5.0 or later, or from 4.51 on start with an Accelerate config that says "
        "`fsdp_version: 2`.",
        (Affected("transformers", before="5.0"),),
        harm="silent",
    ),
    KnownFault(
        "trainer-keeps-parameters",
        "HF Trainer takes a missing `reshard_after_forward` for false under `version: 2`: parameters stay "
        "whole after forward, and memory grows.",
        _DRIFT,
        "config",
        _in("hf", _version_2_without_reshard),
        "Write `reshard_after_forward: true`.",
        (Affected("transformers", "5.0", "5.4"),),
        harm="costs",
    ),
    KnownFault(
        "trainer-ignores-settings",
        "HF Trainer does not read `state_dict_type` and `cpu_offload` under `version: 2`.",
        _DRIFT,
        "config",
        _in("hf", _version_2_with("state_dict_type", "cpu_offload")),
        "Take transformers 5.10 or later; for offload write `offload` in `fsdp`.",
        (Affected("transformers", "5.0", "5.10"),),
        harm="silent",
    ),
    KnownFault(
        "trainer-defaults-to-fsdp2",
        "HF Trainer runs FSDP2 where `fsdp_config` has no `version`; before 5.10 it ran FSDP1.",
        _DRIFT,
        "config",
        _in("hf", _no_version),
        "Write the `version` that you mean. `fsdp-migrate config` writes 2.",
        (Affected("transformers", "5.10"),),
        harm="silent",
    ),
    KnownFault(
        "trainer-wraps-by-size-no-more",
        "HF Trainer reads `min_num_params` only beside `auto_wrap_policy: SIZE_BASED_WRAP`: without it "
        "only the whole model is wrapped.",
        "axolotl-ai-cloud/axolotl#3710",
        "config",
        _in("hf", _size_without_policy),
        "Write `auto_wrap_policy: SIZE_BASED_WRAP`, as `fsdp-migrate config --write` does.",
        (Affected("transformers", "5.10"),),
        harm="costs",
    ),
    KnownFault(
        "accelerate-wraps-containers",
        "Under FSDP2 Accelerate's policy by size wraps a ModuleList or ModuleDict of that size too, which "
        "FSDP1 leaves out: `fully_shard does not support containers that do not implement forward`.",
        "measured",
        "config",
        _containers_by_size,
        "Write `TRANSFORMER_BASED_WRAP` with the layers' class; or shard by `prepare_fully_shard`, which "
        f"takes the size as FSDP1 does. {EVERY_MODEL_HAS}",
        (Affected("accelerate", "1.7"),),
    ),
    KnownFault(
        "accelerate-recomputes-children",
        "Under FSDP2 Accelerate checkpoints the children of a layer, not the layer: more activations are "
        "kept than under FSDP1.",
        "huggingface/accelerate#4172",
        "config",
        _recomputes,
        "Set `fsdp_activation_checkpointing: false`, and call the model's `gradient_checkpointing_enable()`. "
        "In HF Trainer's `fsdp_config` it is `activation_checkpointing`, and the argument "
        "`gradient_checkpointing` calls that.",
        (Affected("accelerate", "1.6"),),
        harm="costs",
    ),
    KnownFault(
        "accelerate-shards-no-shard",
        "Accelerate turns NO_SHARD into `reshard_after_forward: false`, which shards.",
        "pytorch/pytorch#152710",
        "config",
        _in("accelerate", _strategy("NO_SHARD")),
        "Use DistributedDataParallel; or `prepare_fully_shard`, which makes a mesh of replicas.",
        (Affected("accelerate", "1.6"),),
        harm="costs",
    ),
    KnownFault(
        "accelerate-refuses-forward-prefetch",
        "Accelerate refuses `fsdp_forward_prefetch` under `fsdp_version: 2`.",
        "verl-project/verl#6317",
        "config",
        _in("accelerate", _forward_prefetch),
        "Nothing where `fsdp-migrate config --write` converts the file: it takes it out. Or shard by "
        "`prepare_fully_shard`, which keeps it.",
        (Affected("accelerate", "1.6"),),
    ),
    KnownFault(
        "accelerate-shards-lose-moments",
        "What Accelerate's `load_state` or HF Trainer resumes under FSDP1 with `SHARDED_STATE_DICT` has no "
        "moments: it parts from the run that was not stopped at its second step. FSDP2 loads them.",
        "measured",
        "config",
        _resumes_from_shards,
        "Compare the FSDP2 run with the FSDP1 run that was not stopped, not with one that was resumed.",
        (Affected("accelerate", "1.13"),),
        harm="silent",
        looked_up=_TRIED,
    ),
    KnownFault(
        "accelerate-splits-ties",
        "Accelerate's FSDP2, which HF Trainer takes too, gives embeddings and head units of their own, "
        "whatever the policy says. A parameter that is held outside of them too, as the embeddings of T5 and "
        "BART and the bias of BERT's head, stops the first forward: shared with a parameter already managed "
        "by another FSDP group.",
        "measured",
        "model",
        lambda sight: _splits(sight, modules=False),
        f"{EMBEDDINGS_STAY} A class of the policy that splits the parameter must be left out of it. Or keep "
        "FSDP1's settings and shard "
        f"with `prepare_fully_shard`: {FSDP1S_BITS}.",
        (Affected("accelerate", ACCELERATE["embeddings_apart"].since), Affected("torch", "2.13")),
        reproduced=True,
        looked_up=_TRIED,
    ),
    KnownFault(
        "accelerate-splits-modules",
        "A module that is registered at two places, one of them in a unit of the policy and one outside of "
        "it (experts that blocks hold too), stops Accelerate's FSDP2 in `prepare`: Invariant encountered: "
        "value was None, or on older torch: FSDP requires named DeviceMesh dims. FSDP1 trains it.",
        "measured",
        "model",
        lambda sight: _splits(sight, modules=True),
        "Name the class of that module in `fsdp_transformer_layer_cls_to_wrap` too (in HF Trainer's "
        "`fsdp_config` without `fsdp_`): it is a unit of its own then. `prepare_fully_shard` takes it as it "
        "is.",
        (Affected("accelerate", "1.6"),),
        reproduced=True,
        looked_up=_TRIED,
    ),
    KnownFault(
        "accelerate-carves-units",
        "Accelerate's FSDP2, which HF Trainer takes too, gives embeddings, head and last norm units of their "
        "own after those of the policy. Where one of them lies in a unit of the policy (`BertEmbeddings` "
        "holds the word embeddings), it stops in `prepare`: Invariant encountered: value was None, or on "
        "older torch: FSDP requires named DeviceMesh dims. FSDP1 trains it.",
        "measured",
        "model",
        _carves_within,
        f"{EMBEDDINGS_STAY} Or leave the class of that unit out of the policy, as one must where it is the "
        "last norm that lies in it: the root holds it then, and values are the same.",
        (Affected("accelerate", ACCELERATE["carves_units"].since),),
        reproduced=True,
        looked_up=_TRIED,
    ),
    KnownFault(
        "accelerate-asks-for-embeddings",
        "Accelerate's FSDP2, which HF Trainer takes too, calls the model's `get_input_embeddings()` and "
        "`get_output_embeddings()` in `prepare`. A class of a project's own that extends transformers' "
        "`PreTrainedModel`, and names its embeddings otherwise, raises NotImplementedError there: not "
        "auto-handled. FSDP1 does not ask.",
        "measured",
        "model",
        _says_no_embeddings,
        f"Give the class that method, which returns the embeddings. Or: {EMBEDDINGS_STAY}",
        (Affected("accelerate", ACCELERATE["embeddings_apart"].since),),
        reproduced=True,
        looked_up=_TRIED,
    ),
    KnownFault(
        "accelerate-loads-not-all",
        "With `cpu_ram_efficient_loading`, which Accelerate's launcher turns on where nothing is said, its "
        "FSDP2 fails to load a buffer that the state dict holds (no attribute 'device_mesh'), and in a model "
        "that is not of transformers a parameter of the model itself (not enough values to unpack).",
        "measured",
        "model",
        _loads_not_all,
        "Write `fsdp_cpu_ram_efficient_loading: false`; in HF Trainer's `fsdp_config` it is "
        "`cpu_ram_efficient_loading`.",
        (Affected("accelerate", ACCELERATE["loads_not_all"].since),),
        reproduced=True,
        looked_up=_TRIED,
    ),
    KnownFault(
        "accelerate-tears-ties",
        "With `cpu_ram_efficient_loading`, which Accelerate's launcher turns on where nothing is said, its "
        "FSDP2 moves the model to the meta device and ties again by the model's `tie_weights()`. Without "
        "such a method what was one parameter is trained as several.",
        "measured",
        "model",
        _tears_ties,
        "Write `fsdp_cpu_ram_efficient_loading: false`, or give the model a method `tie_weights`; in HF "
        "Trainer's `fsdp_config` it is `cpu_ram_efficient_loading`.",
        (Affected("accelerate", ACCELERATE["tears_ties"].since),),
        reproduced=True,
        looked_up=_TRIED,
        harm="silent",
    ),
    KnownFault(
        "composer-has-no-hybrid",
        "Composer's own FSDP2 has no hybrid sharding: replicas are not averaged, or it fails.",
        "mosaicml/composer#3916",
        "config",
        _in("composer", _hybrid),
        "Use the callback `FSDP2Migration`, which makes the mesh.",
        (Affected("mosaicml", "0.30"),),
        harm="silent",
    ),
    KnownFault(
        "composer-ignores-strategy",
        "Composer's own FSDP2 frees parameters after forward whatever `sharding_strategy` says.",
        "measured",
        "config",
        _in("composer", _strategy("SHARD_GRAD_OP")),
        "Use the callback `FSDP2Migration`, which keeps them.",
        (Affected("mosaicml", "0.30"),),
        harm="costs",
    ),
    KnownFault(
        "buffers-stay",
        "FSDP2's mixed precision has no `buffer_dtype`: buffers keep their own dtype, and results change.",
        "pytorch/pytorch#146114",
        "config",
        _buffer_dtype,
        "`prepare_fully_shard` casts them (FM011). With `fully_shard` alone cast them yourself.",
        (Affected("torch", "2.6"),),
        harm="silent",
        is_handled=True,
    ),
)
"""Faults that a config file shows, alone or beside the model."""
