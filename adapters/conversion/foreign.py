"""Frameworks whose FSDP settings are their own: what shows each, and how it runs FSDP2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.engine.base import mappings_of, plain_values


if TYPE_CHECKING:
    from fsdp_migrate.adapters.document.nodes import Node


@dataclass(frozen=True, slots=True)
class Foreign:
    """A framework whose settings are its own: what shows it, and how it runs FSDP2."""

    title: str
    classes: tuple[str, ...]
    keys: tuple[str, ...]
    says: str
    together: tuple[str, ...] = ()
    """Keys that show it where all of them stand in a document."""


FOREIGN: tuple[Foreign, ...] = (
    Foreign(
        "EasyR1",
        (),
        ("enable_full_shard", "enable_rank0_init"),
        "EasyR1 is a fork of verl that makes FSDP1 of them in its own code, whatever `strategy` says: "
        "`fsdp-migrate rewrite` on the sources brings it to FSDP2, and verl runs FSDP2",
    ),
    Foreign(
        "verl",
        ("verl",),
        ("actor_rollout_ref", "ulysses_sequence_parallel_size"),
        "verl runs FSDP2 with `strategy: fsdp2` for the actor and the critic, or for the `model` of its SFT "
        "trainer",
    ),
    Foreign(
        "oumi",
        (),
        (),
        "oumi makes FSDP1 of them in its `core/distributed.py`, which has no FSDP2, and takes no other keys",
        ("enable_fsdp", "trainer_type"),
    ),
    Foreign(
        "Modalities",
        (),
        (),
        "Modalities runs FSDP2 with `variant_key: fsdp2_wrapped` for the model",
        ("component_key", "variant_key"),
    ),
    Foreign("NeMo RL", (), ("dtensor_cfg",), "NeMo RL runs FSDP2 with `enabled: true` in its `dtensor_cfg`"),
    Foreign(
        "MaxText",
        (),
        ("ici_fsdp_parallelism", "dcn_fsdp_parallelism"),
        "MaxText shards with JAX, and has nothing of torch's",
    ),
    Foreign(
        "fairscale",
        (),
        ("flatten_parameters", "fp32_reduce_scatter", "move_params_to_cpu"),
        "its FullyShardedDataParallel is not torch's, and has no FSDP2",
    ),
    Foreign(
        "lingua",
        (),
        ("fsdp_type",),
        "lingua calls FSDP2's `fully_shard` by itself",
    ),
    Foreign(
        "OLMo",
        (),
        ("wrapping_strategy",),
        "OLMo makes FSDP1 of them in its `scripts/train.py`, which has no FSDP2: `fsdp-migrate rewrite` on "
        "the sources brings it there, and OLMo-core runs FSDP2",
    ),
    Foreign(
        "torchtune",
        ("torchtune",),
        (),
        "torchtune's distributed recipes run FSDP2 by themselves from 0.4 on, with `fsdp_cpu_offload` and "
        "`fsdp_reshard_after_forward`",
    ),
    Foreign(
        "fairseq2",
        ("fairseq2",),
        ("data_parallelism",),
        "fairseq2 runs FSDP2 with `version: v2` in the `fsdp` of its trainer",
    ),
    Foreign(
        "NeMo AutoModel",
        ("nemo_automodel",),
        (),
        "NeMo AutoModel runs FSDP2 by its `FSDP2Manager`",
    ),
    Foreign(
        "NeMo",
        ("nemo", "nemo_run"),
        ("fsdp_grad_reduce_dtype", "fsdp_sharded_checkpoint", "megatron_amp_O2"),
        "NeMo makes FSDP1 of them in its own code, which has no FSDP2; NeMo AutoModel runs FSDP2",
    ),
)


def foreign_of(document: Node) -> Foreign | None:
    """Return the framework whose settings a document holds, if it is one that has its own."""
    names: set[str] = set()
    packages: set[str] = set()
    for _, mapping in mappings_of(document):
        values = plain_values(mapping)
        names |= set(values)
        classes = (values.get(key) for key in ("_target_", "class_path", "_component_"))
        packages |= {value.partition(".")[0] for value in classes if isinstance(value, str)}
    return next(
        (
            f
            for f in FOREIGN
            if packages & set(f.classes) or names & set(f.keys) or (f.together and names >= set(f.together))
        ),
        None,
    )
