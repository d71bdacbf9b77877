"""What FSDP1 was told (:class:`FSDP1Config`) and what FSDP2 is to be told (:class:`FSDP2Config`).

Both are frozen pydantic models. Nothing here imports torch: dtypes and enums are names, and objects that
only torch can make (process groups, meshes, policies, modules) are carried along as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from fsdp_migrate import words
from fsdp_migrate.arguments import what_it_is
from fsdp_migrate.errors import ConfigError


ShardingStrategy = Literal["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"]
BackwardPrefetch = Literal["BACKWARD_PRE", "BACKWARD_POST"]
MeshKind = Literal["shard", "hybrid", "replicate"]

_BATCH_NORM = ("_BatchNorm",)


MOST_DEVICES = 128
"""torch counts devices in one byte, and wraps round beyond."""


class FrozenModel(BaseModel):
    """A frozen model that takes no unknown keys and raises :class:`ConfigError`, not pydantic's own error."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    argument: ClassVar[str] = ""
    """The argument of ``FullyShardedDataParallel`` that this is the value of; empty for the whole."""
    known_as: ClassVar[str] = ""
    """What users call it, where it is not this name."""
    others: ClassVar[Mapping[str, str]] = {}
    """What is said of names that stand elsewhere, in place of the nearest name here."""

    @field_validator("*", mode="before")
    @classmethod
    def _check_names(cls, value: Any, info: Any) -> Any:
        # Of a mapping Python itself refuses other names, in a TypeError that tells nothing.
        odd = [key for key in value if not isinstance(key, str)] if isinstance(value, Mapping) else []
        if odd:
            msg = f"`{info.field_name}` has the key {odd[0]!r:.100}; expected names, as texts."
            raise ConfigError(msg, field=info.field_name)
        return value

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise _config_error(error, type(self)) from error


def _config_error(error: ValidationError, model: type[FrozenModel]) -> ConfigError:
    """Turn the first of pydantic's complaints into one of ours, with the nearest known key."""
    first = error.errors()[0]
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, ConfigError):
        return inner
    name = ".".join(str(part) for part in first["loc"])
    field = ".".join(part for part in (model.argument, name) if part)
    if first["type"] == "extra_forbidden":
        near = model.others.get(name) or words.closest(name, model.model_fields)
        owner = model.known_as or model.__name__
        return ConfigError(f"`{field}` is no argument of {owner}.{near}", field=field)
    return ConfigError(f"`{field}` is {first.get('input')!r}: {first['msg']}.", field=field)


def _attributes(value: Any, model: type[FrozenModel], *others: str) -> dict[str, Any]:
    """Read an object of torch's, such as its ``MixedPrecision``, field by field."""
    names = (*model.model_fields, *others)
    found = {name: getattr(value, name) for name in names if hasattr(value, name)}
    if not found:
        msg = f"`{model.argument}` is {value!r}; expected torch's `{model.__name__}` or a mapping."
        raise ConfigError(msg, field=model.argument)
    return found


class MixedPrecision(FrozenModel):
    """``torch.distributed.fsdp.MixedPrecision``: all of its fields and its defaults, dtypes by name.

    Example:
        >>> MixedPrecision(param_dtype="bf16", reduce_dtype="torch.float32").param_dtype
        'bfloat16'
    """

    argument: ClassVar[str] = "mixed_precision"

    param_dtype: str | None = None
    reduce_dtype: str | None = None
    buffer_dtype: str | None = None
    keep_low_precision_grads: bool = False
    cast_forward_inputs: bool = False
    cast_root_forward_inputs: bool = True
    module_classes_to_ignore: tuple[Any, ...] = _BATCH_NORM
    """torch's ``_module_classes_to_ignore``: classes, or their names."""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        if isinstance(value, str):
            return dict.fromkeys(("param_dtype", "reduce_dtype", "buffer_dtype"), value)
        if not isinstance(value, Mapping):
            value = _attributes(value, cls, "_module_classes_to_ignore")
        given = dict(value)
        if "_module_classes_to_ignore" in given:
            given["module_classes_to_ignore"] = given.pop("_module_classes_to_ignore")
        return given

    @field_validator("param_dtype", "reduce_dtype", "buffer_dtype", mode="before")
    @classmethod
    def _read_dtype(cls, value: Any, info: Any) -> str | None:
        return words.read_dtype(value, f"mixed_precision.{info.field_name}")

    @field_validator(
        "keep_low_precision_grads", "cast_forward_inputs", "cast_root_forward_inputs", mode="before"
    )
    @classmethod
    def _read_bool(cls, value: Any, info: Any) -> bool:
        return words.read_bool(value, f"mixed_precision.{info.field_name}")

    @field_validator("module_classes_to_ignore", mode="before")
    @classmethod
    def _read_classes(cls, value: Any) -> tuple[Any, ...]:
        return read_classes(value, "mixed_precision._module_classes_to_ignore")


class CPUOffload(FrozenModel):
    """``torch.distributed.fsdp.CPUOffload``."""

    argument: ClassVar[str] = "cpu_offload"

    offload_params: bool = False

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        if isinstance(value, (bool, str, int)):
            return {"offload_params": value}
        return value if isinstance(value, Mapping) else _attributes(value, cls)

    @field_validator("offload_params", mode="before")
    @classmethod
    def _read_bool(cls, value: Any) -> bool:
        return words.read_bool(value, "cpu_offload.offload_params")


class ClassWrap(FrozenModel):
    """Wrap every module of these classes (``ModuleWrapPolicy``, ``transformer_auto_wrap_policy``)."""

    classes: tuple[Any, ...]


class SizeWrap(FrozenModel):
    """Wrap by number of parameters (``size_based_auto_wrap_policy``)."""

    min_num_params: int = 100_000_000


class AlwaysWrap(FrozenModel):
    """Wrap every module (``always_wrap_policy``)."""


_RECOMPUTED = (
    " prepare_fully_shard takes the layers as its keyword `activation_checkpointing=`, `fsdp-migrate plan` "
    "as `--activation-checkpointing`."
)


def read_classes(value: Any, field: str) -> tuple[Any, ...]:
    """Read classes given as classes or as names, one or several.

    Raises:
        ConfigError: Something in it is neither.
    """
    if words.is_nothing(value):
        return ()
    parts = (value,) if isinstance(value, type) else value
    if isinstance(parts, str) or not isinstance(parts, Iterable):
        return words.read_names(parts, field)
    classes: list[Any] = []
    for part in parts:
        classes.extend((part,) if isinstance(part, type) else words.read_names((part,), field))
    if isinstance(value, (set, frozenset)):
        classes.sort(key=str)
    return tuple(dict.fromkeys(classes))


def read_wrap_policy(value: Any) -> Any:
    """Read an auto-wrap policy: torch's own objects stay as they are, words become one of the classes above.

    Raises:
        ConfigError: The value names no policy, or a policy without what it needs.

    Example:
        >>> read_wrap_policy("Block, Head").classes
        ('Block', 'Head')
        >>> read_wrap_policy({"min_num_params": "1e8"}).min_num_params
        100000000
    """
    field = "auto_wrap_policy"
    if words.is_nothing(value) or (isinstance(value, str) and words.bare_word(value) == "no_wrap"):
        return None
    if isinstance(value, (ClassWrap, SizeWrap, AlwaysWrap)):
        return value
    if isinstance(value, str):
        return _wrap_policy_of_word(value, field)
    if isinstance(value, Mapping):
        return _wrap_policy_of_mapping(value, field)
    if isinstance(value, (type, list, tuple, set, frozenset)):
        return ClassWrap(classes=read_classes(value, field))
    if callable(value) or hasattr(value, "_run_policy"):
        return value
    msg = f"`{field}` is {value!r}; expected a policy of torch's, a callable, or class names."
    raise ConfigError(msg, field=field)


def _wrap_policy_of_word(value: str, field: str) -> ClassWrap | SizeWrap | AlwaysWrap:
    word = words.bare_word(value)
    if word in {"always_wrap_policy", "always_wrap", "always"}:
        return AlwaysWrap()
    if word in {"size_based_auto_wrap_policy", "size_based_wrap"}:
        return SizeWrap()
    if word in {"transformer_auto_wrap_policy", "transformer_based_wrap", "modulewrappolicy"}:
        msg = (
            f"`{field}` is {value!r}, which needs the classes to wrap. "
            f"Give them: `{field}: {{transformer_layer_cls: [Block]}}`, or `{field}: Block`."
        )
        raise ConfigError(msg, field=field)
    if "(" in value:
        msg = (
            f"`{field}` is {value!r}, which is code, and none is run. Give the names of the classes: "
            f"`{field}: [Block, Head]`, or `{field}: {{min_num_params: 100000000}}`."
        )
        raise ConfigError(msg, field=field)
    return ClassWrap(classes=words.read_names(value, field))


def _wrap_policy_of_mapping(value: Mapping[Any, Any], field: str) -> ClassWrap | SizeWrap:
    keys = {str(key) for key in value}
    for name in ("transformer_layer_cls", "module_classes", "classes"):
        if keys == {name}:
            return ClassWrap(classes=read_classes(value[name], f"{field}.{name}"))
    if keys == {"min_num_params"}:
        count = words.read_count(value["min_num_params"], f"{field}.min_num_params")
        return SizeWrap(min_num_params=count)
    msg = (
        f"`{field}` has the keys {sorted(keys)}; expected one of `transformer_layer_cls`, "
        "`module_classes` or `min_num_params`."
    )
    raise ConfigError(msg, field=field)


class FSDP1Config(FrozenModel):
    """The constructor arguments of ``FullyShardedDataParallel``, with its names and its defaults.

    Values may be torch's own objects, or the words and numbers that stand in configs for them. Which
    arguments were given, and which are defaults, stays known (``model_fields_set``).

    Raises:
        ConfigError: A key is unknown (the nearest known one is named), or a value means nothing.

    Example:
        >>> FSDP1Config(sharding_strategy="full_shard", mixed_precision="bf16").sharding_strategy
        'FULL_SHARD'
        >>> FSDP1Config(shardng_strategy=1)
        Traceback (most recent call last):
        fsdp_migrate.errors.ConfigError: `shardng_strategy` is no argument of FullyShardedDataParallel. Did \
you mean `sharding_strategy`?
    """

    known_as: ClassVar[str] = "FullyShardedDataParallel"
    # Lightning's strategy has them among FSDP1's arguments, and recomputes after it has wrapped.
    others: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("activation_checkpointing", "activation_checkpointing_policy"), _RECOMPUTED
    )

    process_group: Any = None
    sharding_strategy: ShardingStrategy = "FULL_SHARD"
    cpu_offload: CPUOffload | None = None
    auto_wrap_policy: Any = None
    backward_prefetch: BackwardPrefetch | None = "BACKWARD_PRE"
    mixed_precision: MixedPrecision | None = None
    ignored_modules: Any = None
    param_init_fn: Callable[..., Any] | None = None
    device_id: int | str | None = None
    sync_module_states: bool = False
    forward_prefetch: bool = False
    limit_all_gathers: bool = True
    use_orig_params: bool = False
    ignored_states: Any = None
    device_mesh: Any = None

    @field_validator("sharding_strategy", mode="before")
    @classmethod
    def _read_strategy(cls, value: Any) -> str:
        return words.read_strategy(value, "sharding_strategy")

    @field_validator("backward_prefetch", mode="before")
    @classmethod
    def _read_prefetch(cls, value: Any) -> str | None:
        # FSDP1 asked of False only whether it is true, as of None.
        return None if value is False else words.read_prefetch(value, "backward_prefetch")

    @field_validator("auto_wrap_policy", mode="before")
    @classmethod
    def _read_policy(cls, value: Any) -> Any:
        return read_wrap_policy(value)

    @field_validator("mixed_precision", mode="before")
    @classmethod
    def _read_mixed_precision(cls, value: Any) -> Any:
        off = isinstance(value, str) and value.strip().lower() in {"no", "false"}
        return None if off or value is False or words.is_nothing(value) else value

    @field_validator("cpu_offload", mode="before")
    @classmethod
    def _read_cpu_offload(cls, value: Any) -> Any:
        return None if words.is_nothing(value) else value

    @field_validator(
        "sync_module_states",
        "forward_prefetch",
        "limit_all_gathers",
        "use_orig_params",
        mode="before",
    )
    @classmethod
    def _read_bool(cls, value: Any, info: Any) -> bool:
        return value is not None and words.read_bool(value, info.field_name)

    @field_validator("device_id", mode="before")
    @classmethod
    def _read_device(cls, value: Any) -> int | str | None:
        if words.is_nothing(value):
            return None
        if isinstance(value, bool):
            msg = f"`device_id` is {value!r}; expected a device such as 0 or 'cuda:0'."
            raise ConfigError(msg, field="device_id")
        if isinstance(value, int) and not 0 <= value < MOST_DEVICES:
            msg = (
                f"`device_id` is {what_it_is(value)}; expected the number of a device, from 0 to "
                f"{MOST_DEVICES - 1}."
            )
            raise ConfigError(msg, field="device_id")
        word = str(value).strip()
        return int(word) if word.isdigit() else word

    @field_validator("process_group", "device_mesh", mode="before")
    @classmethod
    def _read_group(cls, value: Any, info: Any) -> Any:
        if words.is_nothing(value):
            return None
        if isinstance(value, (str, int, float, Mapping)):
            msg = (
                f"`{info.field_name}` is {value!r}; expected torch's object. A config cannot hold it: "
                "make it in code and pass it."
            )
            raise ConfigError(msg, field=info.field_name)
        if info.field_name == "device_mesh" and isinstance(value, (tuple, list)):
            msg = (
                f"`device_mesh` is {value!r}; expected torch's object. Of (replicas, shards) make it: "
                '`init_device_mesh(device_type, (replicas, shards), mesh_dim_names=("replicate", "shard"))`.'
            )
            raise ConfigError(msg, field=info.field_name)
        return value

    @field_validator("ignored_modules", "ignored_states", mode="before")
    @classmethod
    def _read_ignored(cls, value: Any, info: Any) -> Any:
        if words.is_nothing(value):
            return None
        if not isinstance(value, Iterable):
            msg = f"`{info.field_name}` is {value!r}; expected modules, parameters, or their names."
            raise ConfigError(msg, field=info.field_name)
        # An iterator would be empty the second time that somebody looks at it.
        return value if isinstance(value, str) else tuple(value)

    def updated(self, **arguments: Any) -> FSDP1Config:
        """Return a config with these arguments in place of its own; what was not given stays not given.

        Raises:
            ConfigError: An argument is unknown, or its value means nothing.
        """
        return FSDP1Config(**{**{name: getattr(self, name) for name in self.model_fields_set}, **arguments})

    @model_validator(mode="after")
    def _check_ignored(self) -> FSDP1Config:
        if self.ignored_modules is not None and self.ignored_states is not None:
            msg = "`ignored_modules` and `ignored_states` are both given. Give only `ignored_states`."
            raise ConfigError(msg, field="ignored_states")
        return self


class MixedPrecisionPolicy(FrozenModel):
    """``torch.distributed.fsdp.MixedPrecisionPolicy`` of one unit, dtypes by name."""

    param_dtype: str | None = None
    reduce_dtype: str | None = None
    output_dtype: str | None = None
    cast_forward_inputs: bool = True


class OffloadPolicy(FrozenModel):
    """``torch.distributed.fsdp.CPUOffloadPolicy``; ``pin_memory`` None: where there is an accelerator."""

    pin_memory: bool | None = None


class FSDP2Config(FrozenModel):
    """What ``fully_shard`` and FSDP2's setters are to be told, unit by unit.

    ``mesh``: ``shard`` is one dimension over all ranks; ``hybrid`` is (replicate, shard); ``replicate`` is
    (world size, 1). ``root_reshard_after_forward`` None is torch's own default, which keeps the root's
    parameters after forward, as FSDP1 does. A plain bool or int is passed on.
    """

    mesh: MeshKind = "shard"
    process_group: Any = None
    device_mesh: Any = None
    device_id: int | str | None = None
    reshard_after_forward: bool | int = True
    root_reshard_after_forward: bool | int | None = None
    mp_policy: MixedPrecisionPolicy = MixedPrecisionPolicy()
    root_mp_policy: MixedPrecisionPolicy = MixedPrecisionPolicy()
    full_precision_classes: tuple[Any, ...] = ()
    buffer_dtype: str | None = None
    offload_policy: OffloadPolicy | None = None
    auto_wrap_policy: Any = None
    ignored_modules: Any = None
    ignored_states: Any = None
    param_init_fn: Callable[..., Any] | None = None
    broadcast_from_rank0: bool = False
    backward_prefetch: bool = True
    forward_prefetch: bool = False
