"""From :class:`FSDP1Config` to :class:`FSDP2Config`: one pure function per FSDP1 argument.

Each returns the part of the FSDP2 config that the argument decides, and the findings that say what became of
it. The table of semantics is torchtitan's ``docs/fsdp.md``, completed by the source of torch 2.6 to 2.15.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fsdp_migrate.config import (
    FSDP1Config,
    FSDP2Config,
    MeshKind,
    MixedPrecision,
    MixedPrecisionPolicy,
    OffloadPolicy,
)
from fsdp_migrate.errors import ConfigError
from fsdp_migrate.findings import Finding, make_finding


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class Mapped:
    """What one FSDP1 argument becomes: fields of :class:`FSDP2Config`, and findings."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


_MESHES: Mapping[str, MeshKind] = {
    "FULL_SHARD": "shard",
    "SHARD_GRAD_OP": "shard",
    "NO_SHARD": "replicate",
    "HYBRID_SHARD": "hybrid",
    "_HYBRID_SHARD_ZERO2": "hybrid",
}


def map_sharding_strategy(config: FSDP1Config) -> Mapped:
    """Map the strategy to a kind of mesh and to what is freed after forward.

    FSDP1 frees every unit after its forward but the root (``_runtime_utils._post_forward_reshard``), which
    is what ``fully_shard`` does by itself: its default must not be overridden on the root.
    """
    strategy = config.sharding_strategy
    frees = strategy in {"FULL_SHARD", "HYBRID_SHARD"}
    fields = {
        "mesh": _MESHES[strategy],
        "reshard_after_forward": frees,
        "root_reshard_after_forward": None if frees else False,
    }
    findings = []
    if strategy == "NO_SHARD":
        text = (
            "NO_SHARD: a (world size, 1) mesh; gradients are all-reduced, nothing is sharded. Over several "
            "backward passes the same sums are made in another order, so that the last bits may differ. What "
            "is written to weights in a forward, or between it and its backward, is lost, without an error: "
            "FSDP1 kept it (FM452)."
        )
        hint = (
            "Write to weights before the forward, or after the backward. DistributedDataParallel does what "
            "NO_SHARD did, with less bookkeeping, and keeps what is written at any time."
        )
        findings.append(make_finding("FM002", "sharding_strategy", text, hint))
    else:
        kept = "every unit but the root is freed" if frees else "nothing is freed"
        text = f"{strategy}: {kept} after forward."
        findings.append(make_finding("FM001", "sharding_strategy", text))
    if fields["mesh"] == "hybrid" and config.process_group is None and config.device_mesh is None:
        text = "Each node is one shard group, and ranks of the same local number replicate, as in FSDP1."
        hint = "Pass a 2-D `device_mesh` to choose other groups."
        findings.append(make_finding("FM005", "sharding_strategy", text, hint))
    return Mapped(fields, tuple(findings))


def map_process_group(config: FSDP1Config) -> Mapped:
    """Carry the group, or the (shard, replicate) pair of groups of the hybrid strategies."""
    group = config.process_group
    if group is None:
        return Mapped()
    if config.device_mesh is not None:
        msg = "`process_group` and `device_mesh` are both given. Give one of them."
        raise ConfigError(msg, field="process_group")
    is_pair = isinstance(group, (tuple, list))
    hybrid = _MESHES[config.sharding_strategy] == "hybrid"
    if is_pair != hybrid or (isinstance(group, (tuple, list)) and len(group) != 2):
        expected = "a pair of groups, (shard, replicate)" if hybrid else "one group"
        msg = f"`process_group` is {group!r}; {config.sharding_strategy} expects {expected}."
        raise ConfigError(msg, field="process_group")
    text = "The groups become the mesh (replicate, shard)." if is_pair else "The group becomes a mesh."
    finding = make_finding("FM003", "process_group", text)
    return Mapped({"process_group": group}, (finding,))


def map_device_mesh(config: FSDP1Config) -> Mapped:
    """Carry the mesh: one dimension, or (replicate, shard) for the hybrid strategies."""
    mesh = config.device_mesh
    if mesh is None:
        return Mapped()
    ndim = getattr(mesh, "ndim", None)
    expected = 2 if _MESHES[config.sharding_strategy] == "hybrid" else 1
    if ndim != expected:
        msg = (
            f"`device_mesh` has {ndim} dimensions; {config.sharding_strategy} expects {expected}. "
            "Use a slice of it, such as `mesh['dp']`."
        )
        raise ConfigError(msg, field="device_mesh")
    finding = make_finding("FM004", "device_mesh", f"The {ndim}-D mesh is used as it is.")
    return Mapped({"device_mesh": mesh}, (finding,))


def map_cpu_offload(config: FSDP1Config) -> Mapped:
    """Map to ``CPUOffloadPolicy``, pinned where there is an accelerator to copy to."""
    offload = config.cpu_offload is not None and config.cpu_offload.offload_params
    text = "Parameters, gradients and optimizer state stay on the CPU." if offload else "Off."
    finding = make_finding("FM006", "cpu_offload", text)
    return Mapped({"offload_policy": OffloadPolicy() if offload else None}, (finding,))


def map_auto_wrap_policy(config: FSDP1Config) -> Mapped:
    """Carry the policy; :mod:`fsdp_migrate.sharding.wrap` evaluates it as FSDP1 does."""
    policy = config.auto_wrap_policy
    text = "None: the whole model is one unit." if policy is None else "The same modules are units."
    finding = make_finding("FM007", "auto_wrap_policy", text)
    return Mapped({"auto_wrap_policy": policy}, (finding,))


def map_backward_prefetch(config: FSDP1Config) -> Mapped:
    """Map ``BACKWARD_PRE`` to FSDP2's default, None to no prefetch; ``BACKWARD_POST`` has no twin."""
    prefetch = config.backward_prefetch
    if prefetch == "BACKWARD_POST":
        text = (
            "BACKWARD_POST: FSDP2 prefetches before the gradient computation. "
            "One more unit is held in full during backward; values are the same."
        )
        hint = "Give `backward_prefetch=None` to hold one unit at a time, without overlap."
        return Mapped({}, (make_finding("FM009", "backward_prefetch", text, hint),))
    text = f"{prefetch}: " + ("FSDP2's own order." if prefetch else "prefetching is switched off.")
    finding = make_finding("FM008", "backward_prefetch", text)
    return Mapped({"backward_prefetch": prefetch is not None}, (finding,))


def map_mixed_precision(config: FSDP1Config) -> Mapped:
    """Map ``MixedPrecision`` field by field; see the ``map_mp_*`` functions."""
    precision = config.mixed_precision
    if precision is None:
        return Mapped({}, (make_finding("FM010", "mixed_precision", "None: nothing is cast."),))
    parts = [mapper(precision, config) for mapper in MIXED_PRECISION_MAPPERS]
    fields: dict[str, Any] = {}
    for part in parts:
        fields.update(part.fields)
    return Mapped(fields, tuple(finding for part in parts for finding in part.findings))


_HALF = ("bfloat16", "float16")


def added_up_in(param_dtype: str | None, reduce_dtype: str) -> str:
    """Say in which dtype FSDP2 accumulates what it has not reduced yet.

    Example:
        >>> added_up_in("bfloat16", "float32").partition(":")[2]
        ' more exact, in more memory.'
    """
    outcome = "less exact, in less memory" if reduce_dtype in _HALF else "more exact, in more memory"
    return (
        f"Under `no_sync` gradients are added up in {reduce_dtype}, where FSDP1 added them up in "
        f"{param_dtype or 'the parameters own dtype'}: {outcome}."
    )


def map_mp_dtypes(precision: MixedPrecision, config: FSDP1Config) -> Mapped:
    """Map the dtypes and where inputs are cast.

    FSDP1 casts the forward inputs of the root, and of other units only with ``cast_forward_inputs``; FSDP2's
    default casts those of every unit. With ``cast_forward_inputs`` FSDP1 casts at the root too, whatever
    ``cast_root_forward_inputs`` says (``_runtime_utils._pre_forward``). Without a ``reduce_dtype`` FSDP1
    reduces in ``param_dtype``; so does FSDP2 up to torch 2.14, but no longer in 2.15, so it is told.
    """
    del config
    reduce = precision.reduce_dtype or precision.param_dtype
    dtypes = {"param_dtype": precision.param_dtype, "reduce_dtype": reduce}
    casts = precision.cast_forward_inputs
    root_casts = casts or precision.cast_root_forward_inputs
    where = "every unit" if casts else "the root" if root_casts else "no unit"
    dtype_text = f"Parameters in {precision.param_dtype or 'their own dtype'}, gradients reduced in "
    findings = [
        make_finding("FM010", "mixed_precision", f"{dtype_text}{reduce or 'their own dtype'}."),
        make_finding("FM015", "mixed_precision.cast_forward_inputs", f"Inputs are cast at {where}."),
    ]
    if reduce is not None and (precision.param_dtype or "float32") != reduce:
        text = f"Without `no_sync` nothing differs. {added_up_in(precision.param_dtype, reduce)}"
        hint = "The first `no_sync` of a model says so again."
        findings.append(make_finding("FM022", "mixed_precision.reduce_dtype", text, hint))
    fields = {
        "mp_policy": MixedPrecisionPolicy(**dtypes, cast_forward_inputs=casts),
        "root_mp_policy": MixedPrecisionPolicy(**dtypes, cast_forward_inputs=root_casts),
    }
    return Mapped(fields, tuple(findings))


def map_mp_buffer_dtype(precision: MixedPrecision, config: FSDP1Config) -> Mapped:
    """Carry ``buffer_dtype``, for which FSDP2 has no option: the buffers themselves are cast."""
    del config
    if precision.buffer_dtype is None:
        return Mapped()
    text = (
        f"Floating-point buffers are cast to {precision.buffer_dtype}; "
        "a state dict holds them in their own dtype, as with FSDP1."
    )
    finding = make_finding("FM011", "mixed_precision.buffer_dtype", text)
    return Mapped({"buffer_dtype": precision.buffer_dtype}, (finding,))


def map_mp_keep_low_precision_grads(precision: MixedPrecision, config: FSDP1Config) -> Mapped:
    """Say that FSDP2 always casts the sharded gradient to the parameter's own dtype."""
    del config
    if not precision.keep_low_precision_grads:
        return Mapped()
    text = (
        "FSDP2 casts each sharded gradient to its parameter's own dtype. The values are those of "
        f"{precision.reduce_dtype or precision.param_dtype}; `.grad` takes more memory."
    )
    hint = "An optimizer that was written for low-precision gradients can cast them itself."
    subject = "mixed_precision.keep_low_precision_grads"
    return Mapped({}, (make_finding("FM012", subject, text, hint),))


def map_mp_module_classes_to_ignore(precision: MixedPrecision, config: FSDP1Config) -> Mapped:
    """Make modules of the ignored classes full-precision units, which FSDP1 does where it auto-wraps.

    The default is not empty: FSDP1 keeps BatchNorm in full precision.
    """
    classes = precision.module_classes_to_ignore
    subject = "mixed_precision._module_classes_to_ignore"
    if not classes:
        return Mapped()
    names = ", ".join(getattr(item, "__name__", str(item)) for item in classes)
    if config.auto_wrap_policy is None:
        text = f"{names}: no effect, as in FSDP1, which uses it only with an `auto_wrap_policy`."
        return Mapped({}, (make_finding("FM016", subject, text),))
    text = f"{names}: units of their own, in full precision, inputs cast to float32 and outputs back."
    return Mapped({"full_precision_classes": classes}, (make_finding("FM016", subject, text),))


MIXED_PRECISION_MAPPERS: tuple[Callable[[MixedPrecision, FSDP1Config], Mapped], ...] = (
    map_mp_dtypes,
    map_mp_buffer_dtype,
    map_mp_keep_low_precision_grads,
    map_mp_module_classes_to_ignore,
)


def _map_ignored(config: FSDP1Config, name: str) -> Mapped:
    value = getattr(config, name)
    if not value:
        return Mapped()
    text = "Left as they are: not sharded, not moved, gradients not reduced."
    return Mapped({name: value}, (make_finding("FM017", name, text),))


def map_ignored_modules(config: FSDP1Config) -> Mapped:
    """Carry the modules whose parameters are left alone."""
    return _map_ignored(config, "ignored_modules")


def map_ignored_states(config: FSDP1Config) -> Mapped:
    """Carry the modules or parameters that are left alone."""
    return _map_ignored(config, "ignored_states")


def map_param_init_fn(config: FSDP1Config) -> Mapped:
    """Carry the function that initialises modules on the meta device."""
    if config.param_init_fn is None:
        return Mapped()
    finding = make_finding("FM018", "param_init_fn", "Called for modules on the meta device.")
    return Mapped({"param_init_fn": config.param_init_fn}, (finding,))


def map_device_id(config: FSDP1Config) -> Mapped:
    """Carry the device: its type is the mesh's, its index the current device."""
    if config.device_id is None:
        return Mapped()
    text = f"{config.device_id}: parameters move to the mesh's device, which it names."
    return Mapped({"device_id": config.device_id}, (make_finding("FM019", "device_id", text),))


def map_sync_module_states(config: FSDP1Config) -> Mapped:
    """Broadcast before sharding; without it every rank would shard its own initialisation."""
    if config.sync_module_states:
        text = "Rank 0's parameters and buffers are broadcast before sharding."
    elif "sync_module_states" in config.model_fields_set:
        text = "Off: every rank shards the values that it has, as in FSDP1."
    else:
        return Mapped()
    finding = make_finding("FM020", "sync_module_states", text)
    return Mapped({"broadcast_from_rank0": config.sync_module_states}, (finding,))


def map_forward_prefetch(config: FSDP1Config) -> Mapped:
    """Chain the units in the order of the first forward, as FSDP1 does, from the second forward on."""
    text = "Off: the next unit's all-gather starts when its turn comes."
    if config.forward_prefetch:
        text = "Each unit starts the next one's all-gather, in the order of the first forward."
    finding = make_finding("FM021", "forward_prefetch", text)
    return Mapped({"forward_prefetch": config.forward_prefetch}, (finding,))


def map_limit_all_gathers(config: FSDP1Config) -> Mapped:
    """Say that FSDP2 has no rate limiter and needs none."""
    text = f"{config.limit_all_gathers}: FSDP2 frees memory in stream order, without a limiter."
    return Mapped({}, (make_finding("FM013", "limit_all_gathers", text),))


def map_use_orig_params(config: FSDP1Config) -> Mapped:
    """Say that FSDP2 always shows the original parameters."""
    if config.use_orig_params:
        finding = make_finding("FM014", "use_orig_params", "True: always so in FSDP2.")
        return Mapped({}, (finding,))
    text = (
        "False: FSDP2 shows every original parameter where FSDP1 showed one flat parameter per unit. "
        "Optimizers that work element by element give the same values."
    )
    hint = "Code that counts parameters, or groups them by `ndim`, now sees the original ones."
    return Mapped({}, (make_finding("FM014", "use_orig_params", text, hint),))


MAPPERS: Mapping[str, Callable[[FSDP1Config], Mapped]] = MappingProxyType(
    {
        "process_group": map_process_group,
        "sharding_strategy": map_sharding_strategy,
        "cpu_offload": map_cpu_offload,
        "auto_wrap_policy": map_auto_wrap_policy,
        "backward_prefetch": map_backward_prefetch,
        "mixed_precision": map_mixed_precision,
        "ignored_modules": map_ignored_modules,
        "param_init_fn": map_param_init_fn,
        "device_id": map_device_id,
        "sync_module_states": map_sync_module_states,
        "forward_prefetch": map_forward_prefetch,
        "limit_all_gathers": map_limit_all_gathers,
        "use_orig_params": map_use_orig_params,
        "ignored_states": map_ignored_states,
        "device_mesh": map_device_mesh,
    }
)
"""One function for each argument of ``FullyShardedDataParallel``."""


def map_config(config: FSDP1Config) -> tuple[FSDP2Config, tuple[Finding, ...]]:
    """Map an FSDP1 config to an FSDP2 config, with a finding for every argument that was given.

    Arguments that were not given have FSDP1's defaults; of these only what is not plainly the same under
    FSDP2 is told. Nothing is changed.

    Raises:
        ConfigError: Arguments contradict each other, such as ``HYBRID_SHARD`` with a 1-D mesh.

    Example:
        >>> config, findings = map_config(FSDP1Config(sharding_strategy="NO_SHARD"))
        >>> config.mesh, config.reshard_after_forward, findings[0].fidelity
        ('replicate', False, 'equivalent')
    """
    fields: dict[str, Any] = {}
    findings: list[Finding] = []
    for name, mapper in MAPPERS.items():
        mapped = mapper(config)
        fields.update(mapped.fields)
        given = name in config.model_fields_set
        findings.extend(
            finding for finding in mapped.findings if given or finding.fidelity not in {"exact", "obsolete"}
        )
    return FSDP2Config(**fields), tuple(findings)
