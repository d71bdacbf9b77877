"""What Composer's other callbacks and algorithms do in a run that the callback has migrated.

Each that touches parameters, gradients or the model has a row here: whether it does the same as under FSDP1,
something else, or is refused when the Trainer starts. ``docs/composer.md`` has the same rows for people.
Nothing here imports Composer, or llm-foundry: classes are known by their names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fsdp_migrate.findings import Finding, make_finding


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import nn


Outcome = Literal["same", "differs", "refused"]
Said = tuple[str, str, str]
"""A code, a message and a hint."""

CHANGED, REFUSED = "FM117", "FM118"
_PACKAGES = ("composer", "llmfoundry")


@dataclass(frozen=True)
class Run:
    """What a companion is asked about: the run that it is in."""

    model: nn.Module
    optimizers: tuple[Any, ...] = ()
    has_replicas: bool = False
    broadcasts: bool = False


@dataclass(frozen=True)
class Companion:
    """A callback or an algorithm beside ours: its class, what it does, what there is to say at the start."""

    name: str
    outcome: Outcome
    text: str
    says: Callable[[Any, Run], Said | None] | None = None


def _drawn(kind: str) -> Callable[[Any, Run], Said | None]:
    def say(companion: Any, run: Run) -> Said | None:
        del companion
        if run.broadcasts:
            return None
        message = (
            f"It puts {kind} into the model, and each rank draws its own random values. Each rank keeps its "
            "values of its shard, and FSDP2's shards are not FSDP1's flat ones."
        )
        hint = (
            "Set `sync_module_states: true`, which sends rank 0's values to every rank; or load a checkpoint."
        )
        return CHANGED, message, hint

    return say


def _clipping(companion: Any, run: Run) -> Said | None:
    del run
    if companion.clipping_type != "adaptive":
        return None
    message = (
        "Adaptive clipping compares norms of rows with those of a shard's; Composer refuses it under FSDP1."
    )
    return REFUSED, message, "Clip by `norm`, or take it out."


def _ghosts(companion: Any, run: Run) -> Said | None:
    del companion, run
    message = (
        "Running averages of its norms are those of DDP. Under FSDP1, which wraps each norm, Composer set "
        "their momentum on the wrapper, where nothing reads it: the averages took in too much of each batch."
    )
    return CHANGED, message, "Do not compare evaluations with those of the old run: training is the same."


def _sam(companion: Any, run: Run) -> Said | None:
    del companion, run
    message = (
        "The step towards the sharpest point is scaled by the norm of the whole gradient. Under FSDP1 each "
        "rank scaled its part by that part's norm alone, which is a longer step; under DDP each took its own "
        "gradient."
    )
    return (
        CHANGED,
        message,
        "Compare the first losses with those of the old run; a smaller `rho` may be needed.",
    )


def _swa(companion: Any, run: Run) -> Said | None:
    del companion, run
    message = "When averaging starts, the sharded model is copied, which is an error, as it was under FSDP1."
    return REFUSED, message, "Take EMA, which works with shards, or average checkpoints after the run."


def _depth(companion: Any, run: Run) -> Said | None:
    del run
    if companion.stochastic_method != "block":
        return None
    # Norms are units of their own, so that there are some in a block that is none.
    message = (
        "Each rank drops other blocks, and one that drops a unit does not reduce it: FSDP1 failed, and "
        "so would FSDP2."
    )
    return REFUSED, message, "Set `stochastic_method='sample'`."


def _surgery(companion: Any, run: Run) -> Said | None:
    del run
    if str(companion.apply_at) in {"init", "Event.INIT"}:
        return None
    message = f"It replaces modules at `{companion.apply_at}`, when their parameters are sharded."
    return REFUSED, message, "Leave `apply_at` at its default, `Event.INIT`."


def _optimizer_monitor(companion: Any, run: Run) -> Said | None:
    reduces = companion.log_optimizer_metrics and any(
        callable(getattr(optimizer, "dist_reduce_metrics", None)) for optimizer in run.optimizers[:1]
    )
    if reduces and not run.has_replicas:
        return None
    was = "were counted once for each replica" if reduces else "were those of one rank's part"
    message = f"It logs norms of whole gradients, as under DDP; under FSDP1 they {was}."
    return CHANGED, message, "Do not compare these norms with those of the old run."


def _activations(companion: Any, run: Run) -> Said | None:
    del companion, run
    message = "The keys have no `_fsdp_wrapped_module` in them any more, and each module is logged once."
    return CHANGED, message, "Change the names in dashboards; the numbers are the same."


def _export(companion: Any, run: Run) -> Said | None:
    del companion, run
    message = "It copies the model at the end, which shards do not allow; Composer refuses it under FSDP1."
    return REFUSED, message, "Save a whole checkpoint, and export it in a process of its own."


def _monolithic(companion: Any, run: Run) -> Said | None:
    del companion, run
    message = "It asks FSDP1 for whole states, and would write one rank's shards."
    hint = (
        "Save with `state_dict_type: full`, or convert sharded checkpoints: "
        "`fsdp-migrate convert CKPT OUT --to torch`."
    )
    return REFUSED, message, hint


_DATA = "changes the data or the loss"
_LOOKS = "looks at losses, metrics or the machine"
_BEFORE = "changes the model before it is sharded"
_DRAWS = "puts new values into the model, other ones on each rank"

COMPANIONS: tuple[Companion, ...] = (
    # Composer's algorithms
    Companion("Alibi", "same", _BEFORE),
    Companion("AugMix", "same", _DATA),
    Companion("BlurPool", "same", _BEFORE),
    Companion("ChannelsLast", "differs", "parameters become contiguous: the last bits differ (FM109)"),
    Companion("ColOut", "same", _DATA),
    Companion("CutMix", "same", _DATA),
    Companion("CutOut", "same", _DATA),
    Companion(
        "EMA", "same", "averages shards; works for a child of any name, where FSDP1's had to be `module`"
    ),
    Companion("Factorize", "differs", f"{_DRAWS}; the same with `sync_module_states`", _drawn("new factors")),
    Companion(
        "GatedLinearUnits", "differs", f"{_DRAWS}; the same with `sync_module_states`", _drawn("new layers")
    ),
    Companion(
        "GhostBatchNorm",
        "differs",
        "running averages of norms are those of DDP; FSDP1's took in each batch too much",
        _ghosts,
    ),
    Companion(
        "GradientClipping",
        "same",
        "each child by its own norm, to 1e-6; `value` by the child's largest gradient; `adaptive` is refused",
        _clipping,
    ),
    Companion("GyroDropout", "same", "changes the model before the first batch; it has no parameters"),
    Companion("LabelSmoothing", "same", _DATA),
    Companion("LayerFreezing", "same", "takes parameters out of the optimizer, by name and shard"),
    Companion("LowPrecisionGroupNorm", "same", f"{_BEFORE}; refused at a later `apply_at`", _surgery),
    Companion("LowPrecisionLayerNorm", "same", f"{_BEFORE}; refused at a later `apply_at`", _surgery),
    Companion("MixUp", "same", _DATA),
    Companion("NoOpModel", "same", "the model has no child then, and is trained by DistributedDataParallel"),
    Companion("ProgressiveResizing", "same", _DATA),
    Companion("RandAugment", "same", _DATA),
    Companion(
        "SAM", "differs", "scales by the norm of the whole gradient; FSDP1 took each rank's part", _sam
    ),
    Companion("SWA", "refused", "copies the sharded model, an error under FSDP1 too", _swa),
    Companion("SelectiveBackprop", "same", "runs a forward of its own, without gradients"),
    Companion("SeqLengthWarmup", "same", "runs a forward and backward of its own before the first batch"),
    Companion(
        "SqueezeExcite", "differs", f"{_DRAWS}; the same with `sync_module_states`", _drawn("new layers")
    ),
    Companion(
        "StochasticDepth",
        "same",
        "`sample`; `block` is refused, which hung or was aborted under FSDP1 too",
        _depth,
    ),
    Companion("WeightStandardization", "same", _BEFORE),
    # Composer's callbacks
    Companion("ActivationMonitor", "differs", "the same numbers, under clean names", _activations),
    Companion("CheckpointSaver", "same", "what is saved loads under both"),
    Companion("EarlyStopper", "same", _LOOKS),
    Companion("ExportForInferenceCallback", "refused", "copies the sharded model; FSDP1 refused it", _export),
    Companion("FreeOutputs", "same", _LOOKS),
    Companion("Generate", "same", "generates on shards"),
    Companion("ImageVisualizer", "same", _LOOKS),
    Companion("LRMonitor", "same", _LOOKS),
    Companion("LoadCheckpoint", "same", "loads into shards"),
    Companion("MLPerfCallback", "same", _LOOKS),
    Companion("MemoryMonitor", "same", _LOOKS),
    Companion("MemorySnapshot", "same", _LOOKS),
    Companion("NaNMonitor", "same", _LOOKS),
    Companion("OOMObserver", "same", _LOOKS),
    Companion(
        "OptimizerMonitor",
        "differs",
        "norms of whole tensors, as under DDP; FSDP1's were one rank's part, except in Composer's optimizers",
        _optimizer_monitor,
    ),
    Companion("RuntimeEstimator", "same", _LOOKS),
    Companion("SpeedMonitor", "same", _LOOKS),
    Companion("SystemMetricsMonitor", "same", _LOOKS),
    Companion("ThresholdStopper", "same", _LOOKS),
    # llm-foundry's that touch parameters, gradients or states
    Companion("HuggingFaceCheckpointer", "same", "gathers what it saves"),
    Companion(
        "MonolithicCheckpointSaver", "refused", "asks FSDP1 for whole states; would write shards", _monolithic
    ),
)


def companion_findings(companions: Iterable[Any], run: Run) -> Iterator[Finding]:
    """Say what differs in a migrated run of what the Trainer's callbacks and algorithms do, each class once.

    Args:
        companions: The Trainer's callbacks and algorithms.
        run: The run that they are in.
    """
    rows = {row.name: row for row in COMPANIONS}
    for companion in companions:
        name = _name_of(companion, rows)
        says = rows[name].says if name is not None else None
        said = None if says is None else says(companion, run)
        if said is not None:
            code, message, hint = said
            yield make_finding(code, str(name), message, hint)


def _name_of(companion: Any, known: Iterable[str]) -> str | None:
    """Return the name of the row of an object's class, or of the class that it derives from."""
    names = set(known)
    return next(
        (
            base.__name__
            for base in type(companion).__mro__
            if base.__module__.partition(".")[0] in _PACKAGES and base.__name__ in names
        ),
        None,
    )
