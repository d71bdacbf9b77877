"""Composer's ``FSDPConfig``: the FSDP1 arguments that it stands for, and what the Trainer reads of it.

Nothing here imports Composer or torch: the config is an object of Composer's, a mapping of its fields, or a
block of a YAML file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fsdp_migrate import words
from fsdp_migrate.adapters.config_objects.composer_fields import DEFAULTS, MAPPERS, Given, read_precision
from fsdp_migrate.config import FSDP1Config
from fsdp_migrate.errors import ConfigError
from fsdp_migrate.findings import Finding, make_finding


if TYPE_CHECKING:
    from collections.abc import Iterable


COMPOSER_FIELDS: tuple[str, ...] = tuple(DEFAULTS)
"""The fields of Composer's ``FSDPConfig``, in its order."""

_FSDP2_ONLY = frozenset({"reshard_after_forward"})
_MESH_NAMES = frozenset({"device_mesh", "_device_mesh"})
# Fields of older versions, which Composer 0.32 takes and never looks at.
_FORMER: Mapping[str, str] = {
    "min_params": "the model's own marks decide what is wrapped",
    "flatten_parameters": "FSDP2 flattens nothing",
}


@dataclass(frozen=True)
class ComposerSettings:
    """What a Composer config says beyond FSDP1's arguments: what the Trainer, or the callback, reads itself.

    ``process_group`` is a :class:`~fsdp_migrate.adapters.config_objects.composer_groups.GroupWord` or a pair
    of groups and words, where groups must still be made; ``shard_degree`` -1 stands for the ranks that are
    left.
    """

    recompute: bool = False
    reentrant: bool = True
    offload_activations: bool = False
    shard_degree: int = -1
    replicate_degree: int | None = None
    process_group: Any = None
    state_dict_type: str = "full"
    load_monolith_rank0_only: bool = False
    load_planner: Any = None
    save_planner: Any = None
    sharded_ckpt_prefix_dir: str = DEFAULTS["sharded_ckpt_prefix_dir"]
    verbose: bool = False

    def mesh_shape(self, world_size: int, other_ranks: int = 1) -> tuple[int, int]:
        """Return the number of replicas and of shards; ``other_ranks`` are those of tensor parallelism.

        Raises:
            ConfigError: The degrees do not divide the ranks.

        Example:
            >>> ComposerSettings(replicate_degree=2).mesh_shape(8), ComposerSettings().mesh_shape(8)
            ((2, 4), (1, 8))
        """
        replicas = 1 if self.replicate_degree is None else self.replicate_degree
        known = other_ranks
        for degree in (replicas, self.shard_degree):
            known *= degree if degree > 0 else 1
        left, rest = divmod(world_size, known)
        open_degrees = replicas < 0 or self.shard_degree < 0
        if rest or (left != 1 and not open_degrees):
            msg = (
                f"`data_parallel_replicate_degree` {self.replicate_degree} and `data_parallel_shard_degree` "
                f"{self.shard_degree} do not divide the {world_size} ranks. Their product (with the degree "
                "of tensor parallelism) must be the number of ranks; -1 stands for what is left."
            )
            raise ConfigError(msg, field="data_parallel_shard_degree")
        return (left if replicas < 0 else replicas), (left if self.shard_degree < 0 else self.shard_degree)


@dataclass(frozen=True)
class ComposerMapping:
    """What :func:`composer_fsdp1_config` returns.

    ``findings`` are about Composer's own fields; what becomes of the FSDP1 arguments in ``config``,
    :func:`~fsdp_migrate.mapping.map_config` says.
    """

    config: FSDP1Config
    settings: ComposerSettings
    findings: tuple[Finding, ...]


def is_composer_config(value: object) -> bool:
    """Tell whether an object is Composer's ``FSDPConfig``, without importing Composer.

    Example:
        >>> is_composer_config({"sharding_strategy": "FULL_SHARD"})
        False
    """
    return any(
        base.__name__ == "FSDPConfig" and base.__module__.partition(".")[0] == "composer"
        for base in type(value).__mro__
    )


def composer_fsdp1_config(given: Any, *, precision: Any = None) -> ComposerMapping:
    """Read Composer's FSDP1 config: what ``FullyShardedDataParallel`` was told, and what the Trainer keeps.

    Nothing is changed, and nothing is dropped: each of the 27 fields that was given is in ``config``, in
    ``settings`` or in a finding. Which modules become units, and which layers are recomputed, the model says
    in Composer (``_fsdp_wrap``, ``fsdp_wrap_fn``, ``activation_checkpointing_fn``), not the config.

    Args:
        given: Composer's ``FSDPConfig``, or a mapping of its fields: ``parallelism_config["fsdp"]``, or the
            ``fsdp_config`` of a YAML file.
        precision: The Trainer's ``precision``, as a word (``amp_bf16``) or Composer's enum. Needed unless
            ``mixed_precision`` is FULL or a mapping of dtypes.

    Returns:
        The FSDP1 config, the settings that remain, and the findings.

    Raises:
        ConfigError: A field is unknown (the nearest known one is named), its value means nothing, or fields
            contradict each other.

    Example:
        >>> mapping = composer_fsdp1_config({"mixed_precision": "PURE"}, precision="amp_bf16")
        >>> mapping.config.mixed_precision.reduce_dtype, mapping.config.backward_prefetch
        ('bfloat16', 'BACKWARD_POST')
        >>> composer_fsdp1_config({"sharding_stratgy": "FULL_SHARD"})
        Traceback (most recent call last):
        fsdp_migrate.errors.ConfigError: `sharding_stratgy` is no field of Composer's FSDPConfig. Did you \
mean `sharding_strategy`?
    """
    found, mesh = _fields_of(given)
    known = {name: value for name, value in found.items() if name in DEFAULTS}
    findings = list(_former_fields(found.keys() - known.keys()))
    whole = Given({**DEFAULTS, **known}, frozenset(known), read_precision(precision), mesh)
    arguments: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    # Each once: fields that decide something together share a function, which would say it for each of them.
    for mapper in dict.fromkeys(MAPPERS.values()):
        part = mapper(whole)
        arguments.update(part.arguments)
        settings.update(part.settings)
        findings.extend(part.findings)
    return ComposerMapping(FSDP1Config(**arguments), ComposerSettings(**settings), tuple(findings))


def _fields_of(given: Any) -> tuple[dict[str, Any], Any]:
    """Return the fields that were given, and the mesh that the Trainer's state has put into the config."""
    if given is None:
        return {}, None
    if isinstance(given, Mapping):
        found = {str(name): value for name, value in given.items()}
        if found.keys() & _MESH_NAMES:
            msg = (
                "`device_mesh` is no field that Composer takes: it makes the mesh. Give "
                "`data_parallel_shard_degree` and `data_parallel_replicate_degree`."
            )
            raise ConfigError(msg, field="device_mesh")
        return found, None
    if not is_composer_config(given):
        kind = type(given)
        msg = (
            f"The config is a {kind.__module__}.{kind.__qualname__}; expected Composer's FSDPConfig, or a "
            "mapping of its fields."
        )
        raise ConfigError(msg, field="fsdp")
    # Its `__init__` sets what it is given, known or not, and nothing else: the rest is on the class.
    found = dict(vars(given))
    mesh = found.pop("_device_mesh", None)
    return found, mesh


def _former_fields(names: Iterable[str]) -> list[Finding]:
    findings = []
    for name in sorted(names):
        if name in _FSDP2_ONLY:
            msg = (
                f"`{name}` is a field of Composer's FSDP2Config: the config is FSDP2's already. Give "
                "FSDP1's: of a file that `fsdp-migrate config` has converted it is kept as NAME.fsdp1. "
                "Or leave the callback out: with FSDP_VERSION=2 in the environment Composer takes this "
                "one itself."
            )
            raise ConfigError(msg, field=name)
        if name not in _FORMER:
            near = words.closest(name, DEFAULTS)
            msg = f"`{name}` is no field of Composer's FSDPConfig.{near}"
            raise ConfigError(msg, field=name)
        text = f"A field of older versions, which Composer 0.32 never reads: {_FORMER[name]}."
        findings.append(make_finding("FM405", name, text))
    return findings
