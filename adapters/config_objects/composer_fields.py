"""One function for each field of Composer's ``FSDPConfig``: what FSDP1 was told by it, and what remains.

A field becomes an argument of :class:`~fsdp_migrate.config.FSDP1Config`, a setting that the Trainer or the
callback goes on reading, or a finding; several become more than one of these. The source is
``composer.distributed.dist_strategy.prepare_fsdp_module`` and ``composer.core.state`` of Composer 0.32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fsdp_migrate import words
from fsdp_migrate.adapters.config_objects.composer_groups import has_words, read_group
from fsdp_migrate.errors import ConfigError
from fsdp_migrate.findings import Finding, make_finding


if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class FieldPart:
    """What one field becomes: FSDP1 arguments, settings, findings."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Given:
    """The whole config: every field's value, which of them were given, and the Trainer's ``precision``."""

    values: Mapping[str, Any]
    names: frozenset[str]
    precision: str | None = None
    device_mesh: Any = None

    def flag(self, name: str) -> bool:
        """Return a field that is true or false."""
        value = self.values[name]
        return words.read_bool(DEFAULTS[name] if words.is_nothing(value) else value, name)

    def word(self, name: str) -> str:
        """Return a field that is a word, as Composer looks at it: in capitals."""
        value = self.values[name]
        text = getattr(value, "name", value)
        return str(DEFAULTS[name] if words.is_nothing(value) else text).strip().rpartition(".")[2].upper()

    def heeds(self, name: str) -> bool:
        """Tell whether the field was given, so that it has a finding even where nothing changes."""
        return name in self.names


DEFAULTS: Mapping[str, Any] = {
    "activation_checkpointing": False,
    "activation_checkpointing_reentrant": True,
    "activation_cpu_offload": False,
    "auto_wrap": True,
    "te_checkpoint_wrapper": False,
    "te_shard_fp8_weight": False,
    "backward_prefetch": "BACKWARD_POST",
    "backward_prefetch_limit": 1,
    "cpu_offload": False,
    "data_parallel_shard_degree": -1,
    "data_parallel_replicate_degree": None,
    "forward_prefetch": False,
    "forward_prefetch_limit": 1,
    "ignored_modules": None,
    "keep_low_precision_grads": False,
    "limit_all_gathers": True,
    "load_monolith_rank0_only": False,
    "load_planner": None,
    "mixed_precision": "DEFAULT",
    "process_group": None,
    "save_planner": None,
    "sharded_ckpt_prefix_dir": "ep{epoch}-ba{batch}",
    "sharding_strategy": "FULL_SHARD",
    "state_dict_type": "full",
    "sync_module_states": False,
    "use_orig_params": True,
    "verbose": False,
}
"""The 27 fields of ``composer.utils.FSDPConfig``, with their defaults."""

_DTYPES: Mapping[str, str] = {
    **dict.fromkeys(("float32", "fp32"), "float32"),
    **dict.fromkeys(("float16", "half", "fp16", "amp", "amp_fp16"), "float16"),
    **dict.fromkeys(("bfloat16", "bfloat", "bf16", "amp_bf16"), "bfloat16"),
    # Composer's own `_get_torch_dtype`: torch has no dtype for it, so FSDP is told bfloat16.
    **dict.fromkeys(("float8", "fp8", "amp_fp8"), "bfloat16"),
}
_TE = "TransformerEngine's own checkpointing and FP8 weights"


def read_precision(value: Any) -> str | None:
    """Read the Trainer's ``precision``: Composer's enum or its word, such as ``amp_bf16``.

    Raises:
        ConfigError: Composer knows no such precision.
    """
    if words.is_nothing(value):
        return None
    word = str(getattr(value, "value", value)).strip().lower()
    known = ("fp32", "amp_fp16", "amp_bf16", "amp_fp8")
    if word not in known:
        msg = f"`precision` is {value!r}; expected one of {', '.join(known)}.{words.closest(word, known)}"
        raise ConfigError(msg, field="precision")
    return word


def map_sharding_strategy(given: Given) -> FieldPart:
    """Map the strategy, changed to fit the mesh as Composer changes it: two dimensions are hybrid."""
    strategy = words.read_strategy(given.values["sharding_strategy"], "sharding_strategy")
    # Groups take precedence over the degrees, which alone make a strategy hybrid or plain.
    if not words.is_nothing(given.values["process_group"]):
        return _argument(given, "sharding_strategy", strategy)
    replicated = not words.is_nothing(given.values["data_parallel_replicate_degree"])
    hybrid = {"FULL_SHARD": "HYBRID_SHARD", "SHARD_GRAD_OP": "_HYBRID_SHARD_ZERO2"}
    plain = {name: other for other, name in hybrid.items()}
    fitting = (hybrid if replicated else plain).get(strategy, strategy)
    if replicated and strategy == "NO_SHARD":
        msg = (
            "`data_parallel_replicate_degree` and `sharding_strategy: NO_SHARD` contradict each other: "
            "NO_SHARD has replicas only. Give `data_parallel_shard_degree: 1`, or leave the degrees out."
        )
        raise ConfigError(msg, field="sharding_strategy")
    if fitting == strategy:
        return _argument(given, "sharding_strategy", strategy)
    why = "is set" if replicated else "is not set, so there are no replicas"
    text = f"{strategy} is {fitting}, as Composer makes it: `data_parallel_replicate_degree` {why}."
    finding = make_finding("FM407", "sharding_strategy", text)
    return FieldPart({"sharding_strategy": fitting}, {}, (finding,))


def map_process_group(given: Given) -> FieldPart:
    """Read the words for groups; a group, or a pair of groups, is handed on as it is."""
    group = read_group(given.values["process_group"])
    if group is None:
        return FieldPart()
    if not has_words(group):
        return FieldPart({"process_group": group})
    several = group if isinstance(group, tuple) else (group,)
    text = " and ".join(f"`{item.word}`" for item in several if getattr(item, "word", None))
    text += ": the mesh is made of the groups that these ranks form; gradients are averaged over them only."
    finding = make_finding("FM408", "process_group", text)
    return FieldPart({}, {"process_group": group}, (finding,))


def map_degrees(given: Given) -> FieldPart:
    """Read the degrees of data parallelism, which make the mesh (replicate, shard) or (shard)."""
    shard = _degree(given, "data_parallel_shard_degree") or -1
    replicate = _degree(given, "data_parallel_replicate_degree")
    if shard == -1 and replicate == -1:
        msg = (
            "`data_parallel_shard_degree` and `data_parallel_replicate_degree` are both -1, which stands "
            "for the ranks that are left. Give one of them as a number."
        )
        raise ConfigError(msg, field="data_parallel_replicate_degree")
    settings = {"shard_degree": shard, "replicate_degree": replicate}
    names = ("data_parallel_replicate_degree", "data_parallel_shard_degree")
    heeded = [name for name in names if given.heeds(name)]
    arguments = {} if given.device_mesh is None else {"device_mesh": given.device_mesh}
    if not words.is_nothing(given.values["process_group"]):
        text = "Not used, as under FSDP1: `process_group` is given, and takes precedence over the degrees."
        found = tuple(make_finding("FM409", name, text) for name in heeded)
        return FieldPart({}, {"shard_degree": -1, "replicate_degree": None}, found)
    shape = f"{'all other' if shard == -1 else shard} ranks share the parameters"
    if replicate is not None:
        shape = f"{'all other' if replicate == -1 else replicate} replicas; " + shape
    found = tuple(make_finding("FM406", name, f"The mesh: {shape}.") for name in heeded)
    return FieldPart(arguments, settings, found)


def _degree(given: Given, name: str) -> int | None:
    value = given.values[name]
    if words.is_nothing(value):
        return None
    if str(value).strip() == "-1":
        return -1
    number = words.read_count(value, name)
    if number == 0:
        msg = f"`{name}` is 0; expected a number of ranks, or -1 for those that are left."
        raise ConfigError(msg, field=name)
    return number


def map_mixed_precision(given: Given) -> FieldPart:
    """Map ``PURE``, ``DEFAULT``, ``FULL`` or a dict of dtypes, with the Trainer's ``precision``."""
    value = given.values["mixed_precision"]
    keep = given.flag("keep_low_precision_grads")
    if isinstance(value, Mapping):
        dtypes = _dtypes_of_mapping(value)
        text = "Dtypes as given."
    else:
        kind = given.word("mixed_precision")
        if kind not in {"FULL", "DEFAULT", "PURE"}:
            msg = (
                f"`mixed_precision` is {value!r}; expected PURE, DEFAULT, FULL or a mapping of "
                f"`param_dtype`, `reduce_dtype` and `buffer_dtype`."
            )
            raise ConfigError(msg, field="mixed_precision")
        dtypes = _dtypes_of_word(kind, given.precision)
        text = f"{kind} with precision {given.precision}: " if kind != "FULL" else "FULL: "
        text += ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items()) or "nothing is cast"
        text += "."
    arguments = {"mixed_precision": {**dtypes, "keep_low_precision_grads": keep}}
    named = tuple(name for name in ("mixed_precision", "keep_low_precision_grads") if given.heeds(name))
    return FieldPart(arguments, {}, tuple(make_finding("FM414", name, text) for name in named))


def _dtypes_of_word(kind: str, precision: str | None) -> dict[str, str]:
    if kind == "FULL":
        return {}
    if precision is None:
        msg = (
            f"`mixed_precision` is {kind}, which takes its dtypes from the Trainer's `precision`, and that "
            "is not known. Give it: `precision: amp_bf16`, as the Trainer has it."
        )
        raise ConfigError(msg, field="precision")
    low = _DTYPES[precision]
    return {"param_dtype": low, "reduce_dtype": "float32" if kind == "DEFAULT" else low, "buffer_dtype": low}


def _dtypes_of_mapping(value: Mapping[Any, Any]) -> dict[str, str]:
    known = ("param_dtype", "reduce_dtype", "buffer_dtype")
    dtypes: dict[str, str] = {}
    for key, dtype in value.items():
        if key not in known:
            near = words.closest(str(key), known)
            msg = f"`mixed_precision.{key}` is no dtype of Composer's `mixed_precision`.{near}"
            raise ConfigError(msg, field=f"mixed_precision.{key}")
        if not words.is_nothing(dtype):
            word = str(getattr(dtype, "value", dtype)).strip().lower().removeprefix("torch.")
            dtypes[key] = _DTYPES.get(word, word)
    return dtypes


def map_activation_checkpointing(given: Given) -> FieldPart:
    """Read what is recomputed or kept on the CPU; the model says which layers."""
    recompute = given.flag("activation_checkpointing")
    reentrant = given.flag("activation_checkpointing_reentrant")
    offload = given.flag("activation_cpu_offload")
    if offload and not given.flag("use_orig_params"):
        msg = "`activation_cpu_offload` with `use_orig_params: false` is refused by Composer, and was no run."
        raise ConfigError(msg, field="activation_cpu_offload")
    settings = {"recompute": recompute, "reentrant": reentrant, "offload_activations": offload}
    findings = []
    if given.heeds("activation_checkpointing") or recompute:
        text = "The layers that the model names are recomputed; names of parameters stay clean."
        text = text if recompute else "Off: nothing is recomputed."
        findings.append(make_finding("FM401", "activation_checkpointing", text))
    if given.heeds("activation_checkpointing_reentrant"):
        text = f"{reentrant}: " + ("torch's older" if reentrant else "torch's newer")
        text += " way of checkpointing" if recompute else " way; no effect without `activation_checkpointing`"
        findings.append(make_finding("FM401", "activation_checkpointing_reentrant", f"{text}."))
    if given.heeds("activation_cpu_offload") or offload:
        text = "What those layers keep for backward is on the CPU until then." if offload else "Off."
        findings.append(make_finding("FM402", "activation_cpu_offload", text))
    return FieldPart({}, settings, tuple(findings))


def map_te(given: Given) -> FieldPart:
    """Refuse TransformerEngine's FP8 options where they have an effect, under ``amp_fp8`` only."""
    findings = []
    for name in ("te_checkpoint_wrapper", "te_shard_fp8_weight"):
        on = given.flag(name)
        if on and given.precision == "amp_fp8":
            text = f"{_TE} depend on FSDP1's classes, and have not been tried with FSDP2."
            hint = f"Set `{name}: false`, or stay with FSDP1 for this run."
            findings.append(make_finding("FM404", name, text, hint))
        elif given.heeds(name):
            text = "Off." if not on else "No effect without `precision: amp_fp8`, as under FSDP1."
            findings.append(make_finding("FM405", name, text))
    return FieldPart({}, {}, tuple(findings))


def map_auto_wrap(given: Given) -> FieldPart:
    """Say what ``auto_wrap`` still does in Composer: nothing but switch off ``load_monolith_rank0_only``."""
    on = given.flag("auto_wrap")
    if not given.heeds("auto_wrap"):
        return FieldPart()
    text = f"{on}: Composer wraps by the model's own marks in either case."
    if not on and given.flag("load_monolith_rank0_only"):
        text += " It switches off `load_monolith_rank0_only`, and still does."
    return FieldPart({}, {}, (make_finding("FM403", "auto_wrap", text),))


def map_prefetch_limits(given: Given) -> FieldPart:
    """Say that FSDP2 prefetches one unit, whatever the limits of FSDP1 were."""
    findings = []
    for name, on in (
        (
            "backward_prefetch_limit",
            words.read_prefetch(given.values["backward_prefetch"], "backward_prefetch"),
        ),
        ("forward_prefetch_limit", given.flag("forward_prefetch") or None),
    ):
        limit = words.read_count(given.values[name], name)
        if limit == 1 or on is None:
            text = f"{limit}: " + (
                "one unit ahead, as FSDP2 does." if on is not None else "no effect without prefetching."
            )
            if given.heeds(name):
                findings.append(make_finding("FM410", name, text))
            continue
        text = f"{limit}: FSDP2 prefetches one unit ahead. Values are the same; overlap and memory are less."
        findings.append(make_finding("FM411", name, text))
    return FieldPart({}, {}, tuple(findings))


def map_cpu_offload(given: Given) -> FieldPart:
    """Map to FSDP's ``CPUOffload``, which Composer refused to pass on."""
    if not given.flag("cpu_offload"):
        return _argument(given, "cpu_offload", False)
    text = "Composer refuses this under FSDP1; with FSDP2 parameters and optimizer state stay on the CPU."
    return FieldPart({"cpu_offload": True}, {}, (make_finding("FM412", "cpu_offload", text),))


def map_checkpoint_fields(given: Given) -> FieldPart:
    """Carry what Composer itself reads when it saves and loads."""
    kind = str(given.values["state_dict_type"] or "full").strip().lower()
    if kind not in {"full", "sharded"}:
        msg = f"`state_dict_type` is {kind!r}; Composer knows `full` and `sharded`."
        if kind == "local":
            msg += " Its last version with `local` was 0.18: export a full checkpoint with that."
        raise ConfigError(msg, field="state_dict_type")
    rank0_only = given.flag("load_monolith_rank0_only")
    heeded = rank0_only and kind == "full" and given.flag("auto_wrap")
    settings = {
        "state_dict_type": kind,
        "load_monolith_rank0_only": heeded,
        "load_planner": given.values["load_planner"],
        "save_planner": given.values["save_planner"],
        "sharded_ckpt_prefix_dir": given.values["sharded_ckpt_prefix_dir"],
        "verbose": given.flag("verbose"),
    }
    findings = []
    for name in settings:
        if not given.heeds(name):
            continue
        if name == "load_monolith_rank0_only" and rank0_only != heeded:
            text = "No effect without `state_dict_type: full` and `auto_wrap`, as under FSDP1."
            findings.append(make_finding("FM405", name, text))
        else:
            findings.append(make_finding("FM413", name, "Read by Composer itself, and kept as it is."))
    return FieldPart({}, settings, tuple(findings))


def map_same_name(name: str) -> Callable[[Given], FieldPart]:
    """Return the mapper of a field that FSDP1 has under the same name, and with the same meaning."""

    def map_field(given: Given) -> FieldPart:
        return _argument(given, name, given.values[name])

    return map_field


def map_backward_prefetch(given: Given) -> FieldPart:
    """Map the prefetch, whose default Composer sets to ``BACKWARD_POST``."""
    return FieldPart({"backward_prefetch": given.values["backward_prefetch"]})


def map_use_orig_params(given: Given) -> FieldPart:
    """Map the flag, whose default Composer sets to true."""
    return FieldPart({"use_orig_params": given.flag("use_orig_params")})


def _argument(given: Given, name: str, value: Any) -> FieldPart:
    """Hand an argument on if it was given: the defaults are FSDP1's own."""
    return FieldPart({name: value}) if given.heeds(name) else FieldPart()


MAPPERS: Mapping[str, Callable[[Given], FieldPart]] = {
    "activation_checkpointing": map_activation_checkpointing,
    "activation_checkpointing_reentrant": map_activation_checkpointing,
    "activation_cpu_offload": map_activation_checkpointing,
    "auto_wrap": map_auto_wrap,
    "te_checkpoint_wrapper": map_te,
    "te_shard_fp8_weight": map_te,
    "backward_prefetch": map_backward_prefetch,
    "backward_prefetch_limit": map_prefetch_limits,
    "cpu_offload": map_cpu_offload,
    "data_parallel_shard_degree": map_degrees,
    "data_parallel_replicate_degree": map_degrees,
    "forward_prefetch": map_same_name("forward_prefetch"),
    "forward_prefetch_limit": map_prefetch_limits,
    "ignored_modules": map_same_name("ignored_modules"),
    "keep_low_precision_grads": map_mixed_precision,
    "limit_all_gathers": map_same_name("limit_all_gathers"),
    "load_monolith_rank0_only": map_checkpoint_fields,
    "load_planner": map_checkpoint_fields,
    "mixed_precision": map_mixed_precision,
    "process_group": map_process_group,
    "save_planner": map_checkpoint_fields,
    "sharded_ckpt_prefix_dir": map_checkpoint_fields,
    "sharding_strategy": map_sharding_strategy,
    "state_dict_type": map_checkpoint_fields,
    "sync_module_states": map_same_name("sync_module_states"),
    "use_orig_params": map_use_orig_params,
    "verbose": map_checkpoint_fields,
}
"""The function of each of the 27 fields; fields that decide something together share one."""
