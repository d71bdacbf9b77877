"""Known faults that the environment, the model and FSDP1's arguments show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.adapters.engine.claims import ACCELERATE
from fsdp_migrate.doctor.known import Affected, KnownFault, seen_of
from fsdp_migrate.findings import counted, named
from fsdp_migrate.sharding.tying import parameter_names


if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from fsdp_migrate.doctor.sight import Sight


def _gloo_averages(sight: Sight) -> str:
    return "" if sight.has_accelerator else "no accelerator is here: training on the CPU is over gloo"


def _offload(sight: Sight) -> str:
    config = sight.config
    offloads = config is not None and config.cpu_offload is not None and config.cpu_offload.offload_params
    return "`cpu_offload` is on" if offloads else ""


def _offload_without_accelerator(sight: Sight) -> str:
    return (
        ""
        if sight.has_accelerator or not _offload(sight)
        else "`cpu_offload` is on, and no accelerator is here"
    )


def _evaluates_in_full_precision(sight: Sight) -> str:
    precision = sight.config.mixed_precision if sight.config else None
    is_low = precision is not None and precision.param_dtype not in {None, "float32"}
    is_set = sight.environ.get("FSDP_USE_FULL_PREC_IN_EVAL") == "1"
    return "FSDP_USE_FULL_PREC_IN_EVAL=1 is set" if is_low and is_set else ""


def _shards_without_rows(sight: Sight) -> str:
    if sight.plan is None or sight.model is None:
        return ""
    shards = sight.plan.mesh_shape[1]
    sharded = {name for unit in sight.plan.units for name in unit.parameters}
    params = sight.model.named_parameters()
    few = [name for name, each in params if name in sharded and each.dim() and each.shape[0] < shards]
    if not few:
        return ""
    return f"{counted(len(few), 'parameter')} with fewer rows than the {shards} shards: {named(few)}"


def _ties(sight: Sight) -> list[tuple[str, ...]]:
    if sight.plan is None:
        return []
    given_up = any(each.code in {"FM103", "FM104"} for each in sight.plan.findings)
    return [tie.names for tie in sight.plan.ties] if given_up else []


def _ties_across_units(sight: Sight) -> str:
    return seen_of(f"{named(names)} are one parameter, across units of the policy" for names in _ties(sight))


def _uneven_ties(sight: Sight) -> str:
    if sight.plan is None or sight.model is None:
        return ""
    shards = sight.plan.mesh_shape[1]
    model = sight.model
    rows = ((names, model.get_parameter(names[0]).shape[0]) for names in _ties(sight))
    return seen_of(
        f"{named(names)} are one parameter of {count} rows, on {shards} shards"
        for names, count in rows
        if count % shards
    )


def _any_ties(sight: Sight) -> str:
    if sight.model is None or not sight.may_be_on_meta:
        return ""
    tied = (names for names in parameter_names(sight.model).values() if len(names) > 1)
    return seen_of(f"{named(names)} are one parameter" for names in tied)


def _scalars(sight: Sight) -> str:
    params = sight.model.named_parameters() if sight.model is not None else ()
    found = [name for name, each in params if not each.dim()]
    return f"{named(found)} have no dimension" if found else ""


def _trains_in_float32(sight: Sight) -> bool:
    """Tell whether Accelerate makes what is trained float32 before FSDP2 shards it."""
    precision = sight.config.mixed_precision if sight.config else None
    is_low = precision is not None and precision.param_dtype not in {None, "float32"}
    is_its = sight.framework in {"accelerate", "hf"} and "accelerate" in sight.versions
    return (
        is_low
        and is_its
        and ACCELERATE["trained_in_float32"].holds(sight.versions["accelerate"])
        and not _packed_weights(sight)
    )


def _mixed_dtypes(sight: Sight) -> str:
    if sight.model is None or _trains_in_float32(sight):
        return ""
    params = dict(sight.model.named_parameters(remove_duplicate=False))
    units: Iterable[tuple[str, ...]] = (
        (tuple(params),) if sight.plan is None else (unit.parameters for unit in sight.plan.units)
    )
    found = []
    for names in units:
        # FSDP2 asserts in its first forward that what is trained has one dtype; what is frozen may have
        # others.
        trained = {
            str(params[name].dtype).removeprefix("torch."): name
            for name in reversed(names)
            if params[name].requires_grad
        }
        if len(trained) > 1:
            said = (f"{dtype} (`{name}`)" for dtype, name in sorted(trained.items()))
            found.append(f"{' and '.join(said)} in one unit")
    return seen_of(found)


def _modules(sight: Sight, *classes: str) -> str:
    if sight.model is None:
        return ""
    return seen_of(
        f"`{name}` is a {type(module).__name__}"
        for name, module in sight.model.named_modules()
        if any(base.__name__ in classes for base in type(module).__mro__)
    )


def _packed_weights(sight: Sight) -> str:
    params = sight.model.named_parameters() if sight.model is not None else ()
    found = [name for name, each in params if type(each).__name__ == "Params4bit"]
    return f"{named(found)} are Params4bit" if found else ""


def _unsaved_buffers(sight: Sight) -> str:
    if sight.model is None or not sight.may_be_on_meta:
        return ""
    found = [f"{where}.{name}".lstrip(".") for where, name in _non_persistent(sight.model)]
    return f"{named(found)} are in no state dict" if found else ""


def _non_persistent(model: nn.Module) -> Iterable[tuple[str, str]]:
    saved = set(model.state_dict(keep_vars=True))
    for where, module in model.named_modules():
        for name, _ in module.named_buffers(recurse=False):
            if (f"{where}.{name}" if where else name) not in saved:
                yield where, name


MODEL_FAULTS = (
    KnownFault(
        "gloo-averages",
        "gloo's reduce-scatter sums where it is asked to average: FSDP2's gradients on the CPU are as many "
        "times too large as there are ranks. AdamW hides it; SGD, clipping and logged norms do not.",
        "pytorch/pytorch#162338",
        "environment",
        _gloo_averages,
        "`prepare_fully_shard` corrects it. With `fully_shard` alone take torch 2.9 or later, or call "
        "`set_force_sum_reduction_for_comms(True)` on every unit (torch 2.8).",
        (Affected("torch", "2.6", "2.9"),),
        reproduced=True,
        harm="silent",
        is_handled=True,
    ),
    KnownFault(
        "metadata-of-2.15",
        "torch 2.15 writes six values for each tensor's properties into `.metadata`; earlier versions expect "
        "five and fail: too many values to unpack.",
        "pytorch/pytorch#175011",
        "environment",
        lambda sight: f"torch {sight.versions['torch']} writes checkpoints here",
        "Load such checkpoints with torch 2.15, or convert them: `fsdp-migrate convert` writes what all "
        "read.",
        (Affected("torch", "2.15"),),
    ),
    KnownFault(
        "offload-without-gloo",
        "With CPU offload gradients are on the CPU, and clipping or gathering them fails where the process "
        "group has NCCL alone: No backend type associated with device type cpu.",
        "pytorch/pytorch#148532",
        "config",
        _offload,
        'Make the group with both: `init_process_group("cpu:gloo,cuda:nccl")`; Lightning makes it of '
        '`process_group_backend="cpu:gloo,cuda:nccl"` of its strategy, which `rewrite` and `config` write. '
        "torch 2.7 makes the groups of a mesh of two dimensions (HYBRID_SHARD) with NCCL alone where the "
        "group was given a `device_id`, whatever backends it has. `prepare_fully_shard` makes its own mesh "
        "with both. Instead of a `device_mesh` of two dimensions of yours give it none, or make the group "
        "without `device_id`.",
    ),
    KnownFault(
        "pinned-offload-without-accelerator",
        "`CPUOffloadPolicy()` pins memory by default, which fails where there is no accelerator.",
        "measured",
        "config",
        _offload_without_accelerator,
        "`prepare_fully_shard` asks for no pinned memory there. With `fully_shard` alone write "
        "`CPUOffloadPolicy(pin_memory=False)`.",
        (Affected("torch", "2.6"),),
        reproduced=True,
        is_handled=True,
    ),
    KnownFault(
        "full-precision-in-evaluation",
        "FSDP1 evaluated in the parameters' own precision with FSDP_USE_FULL_PREC_IN_EVAL=1; FSDP2 has no "
        "such switch, and evaluates in low precision: other validation losses.",
        "measured",
        "config",
        _evaluates_in_full_precision,
        "Evaluate a copy from `full_state_dict`, or accept it and unset the variable. FM112 says so too.",
        harm="silent",
    ),
    KnownFault(
        "shards-without-rows",
        "A parameter with fewer rows than shards leaves ranks without a row of it. Fused optimizers of some "
        "packages crash on tensors without elements.",
        "NVIDIA-NeMo/Automodel#2997",
        "model",
        _shards_without_rows,
        "Use torch's own optimizers, which take them; or leave these parameters out by `ignored_states`.",
        reproduced=True,
    ),
    KnownFault(
        "shards-without-rows-in-transformer-engine",
        "TransformerEngine's fused Adam fails on shards without elements.",
        "NVIDIA/TransformerEngine#3207",
        "model",
        _shards_without_rows,
        "Use torch's AdamW for these parameters.",
        (Affected("transformer-engine"),),
    ),
    KnownFault(
        "ties-across-units",
        "A parameter that two units of `fully_shard` share fails in the first forward: shared with a "
        "parameter already managed by another FSDP group. Accelerate makes such units itself: "
        "`accelerate-splits-ties`.",
        "huggingface/accelerate#4171",
        "model",
        _ties_across_units,
        "`prepare_fully_shard` gives it to the unit above (FM103). Elsewhere leave both modules in the root, "
        "or shard them in one call: `fully_shard([embedding, head])`. Under Accelerate and HF Trainer: "
        "`accelerate-splits-ties`.",
        (Affected("torch", "2.13"),),
        reproduced=True,
        is_handled=True,
    ),
    KnownFault(
        "uneven-ties",
        "A tie that is made again after wrapping, with rows that do not divide evenly: the last rank's rows "
        "are silently never updated.",
        "pytorch/pytorch#176076",
        "model",
        _uneven_ties,
        "`prepare_fully_shard` keeps ties whole. Elsewhere never tie again after `fully_shard`.",
        (Affected("torch", before="2.13"),),
        harm="silent",
        is_handled=True,
    ),
    KnownFault(
        "ties-torn-on-meta",
        "`to_empty()` on a model of the meta device breaks ties: each name gets memory of its own.",
        "verl-project/verl#7834",
        "model",
        _any_ties,
        "`prepare_fully_shard` ties again. Elsewhere call `tie_weights()` after `to_empty()`, before "
        "`fully_shard`.",
        reproduced=True,
        harm="silent",
        is_handled=True,
    ),
    KnownFault(
        "unsaved-buffers-on-meta",
        "`to_empty()` leaves buffers that no state dict holds (rotary frequencies) without values: wrong "
        "or NaN.",
        "huggingface/transformers#45902",
        "model",
        _unsaved_buffers,
        "`prepare_fully_shard` names them in an error. Build the model on a real device, or compute these "
        "buffers again after `to_empty()`.",
        reproduced=True,
        harm="silent",
        is_handled=True,
    ),
    KnownFault(
        "scalar-parameters",
        "`fully_shard` refuses parameters without dimensions, which FSDP1 took.",
        "pytorch/pytorch#132934",
        "model",
        _scalars,
        "Make them tensors of one element, or ignore them.",
        reproduced=True,
    ),
    KnownFault(
        "mixed-dtypes-in-a-unit",
        "Trained parameters of several dtypes in one unit fail in the first forward, not before: FSDP "
        "expects uniform original parameter dtype.",
        "huggingface/accelerate#3985",
        "model",
        _mixed_dtypes,
        "Cast the model to one dtype, or give the modules of the other dtype units of their own.",
        reproduced=True,
    ),
    KnownFault(
        "containers-are-no-units",
        "`fully_shard` refuses ModuleList and ModuleDict, which have no forward.",
        "pytorch/pytorch#167856",
        "model",
        lambda sight: sight.findings("FM101"),
        "Shard the modules in them. `prepare_fully_shard` does so (FM101).",
        reproduced=True,
        is_handled=True,
    ),
    KnownFault(
        "batch-norm-of-one-rank",
        "BatchNorm's running statistics differ between ranks, and a distributed checkpoint keeps those of "
        "one rank, which need not be rank 0.",
        "measured",
        "model",
        lambda sight: "" if _modules(sight, "SyncBatchNorm") else _modules(sight, "_BatchNorm"),
        "Use SyncBatchNorm, or average the statistics before saving.",
        harm="silent",
    ),
    KnownFault(
        "recurrent-layers-on-cuda",
        "A recurrent layer moves the weights that FSDP2 gathers into memory of its own on CUDA, and computes "
        "with those of the first step from then on.",
        "measured",
        "model",
        lambda sight: _modules(sight, "RNNBase"),
        "`prepare_fully_shard` leaves them where they are. With `fully_shard` alone set "
        "`layer.flatten_parameters = lambda: None` on each such layer.",
        harm="silent",
        is_handled=True,
    ),
    KnownFault(
        "packed-4-bit-weights",
        "4-bit weights of bitsandbytes in a floating-point storage: bytes that spell NaN get another NaN "
        "when they are copied or reduced, and the weights change silently.",
        "bitsandbytes-foundation/bitsandbytes#1945",
        "model",
        _packed_weights,
        "`prepare_fully_shard` gathers them without a cast, and our tests compare every byte. Elsewhere "
        "keep the storage uint8, which is not sharded.",
        harm="silent",
        is_handled=True,
    ),
    KnownFault(
        "clipping-plain-among-sharded",
        "`torch.nn.utils.clip_grad_norm_` refuses plain gradients (ignored parameters) among sharded ones.",
        "huggingface/accelerate#4219",
        "model",
        lambda sight: sight.findings("FM106"),
        "Clip with `fsdp_migrate.runtime.clip_grad_norm_`; where not `prepare_fully_shard` shards, give "
        "optimizers `foreach=False`.",
        reproduced=True,
    ),
)
"""Faults that need no look at files."""
