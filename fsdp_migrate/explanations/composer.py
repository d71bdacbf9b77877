"""FM117 to FM119, FM40x and FM41x: Composer."""

from __future__ import annotations


_NOTHING = "Nothing."

EXPLANATIONS = {
    "FM117": (
        "Its result depended on FSDP1's flat shards, on FSDP1's names, or on random values that each rank draws for itself. The message says what it does now.",
        "Read the message. If only the logs differ, do nothing; otherwise compare the first losses with those of the old run.",
    ),
    "FM118": (
        "It copies, replaces or compares parameters in a way that sharded ones do not allow. Most of these failed under FSDP1 too, some of them only at the end of the run.",
        "Take it out of the Trainer's `callbacks` or `algorithms`, or do what the message says.",
    ),
    "FM119": (
        "Composer shards the direct children of a ComposerModel, and this one has none with parameters. Then it wraps the whole model in DistributedDataParallel.",
        "Nothing, if the model fits into each rank's memory. Otherwise put its layers into a child.",
    ),
    "FM401": (
        "The layers that the model marks are recomputed in the backward, without the wrapper that Composer puts around them: names stay clean.",
        _NOTHING,
    ),
    "FM402": (
        "What the marked layers keep for the backward is on the CPU until then, as before.",
        _NOTHING,
    ),
    "FM403": (
        "Composer never read it: `_fsdp_wrap` and `fsdp_wrap_fn` of the model decide what is a unit.",
        _NOTHING,
    ),
    "FM404": (
        "TransformerEngine's checkpoint wrapper and its FP8 weights use internals of FSDP1's classes.",
        "Train in bf16 under FSDP2, or stay with FSDP1 as long as FP8 is needed.",
    ),
    "FM405": ("Under FSDP1, with these settings, it had no effect either.", "Nothing. You may take it out."),
    "FM406": (
        "Composer's two degrees are the two dimensions of the mesh: replicas, and shards in each.",
        _NOTHING,
    ),
    "FM407": (
        "With several replicas Composer changes FULL_SHARD to HYBRID_SHARD, and other strategies in the same way. The callback does this too.",
        _NOTHING,
    ),
    "FM408": (
        "`node`, `self`, `setK` and the others name ranks. The mesh is made of the same ranks.",
        _NOTHING,
    ),
    "FM409": (
        "Composer reads the degrees only where no `process_group` is given.",
        "Nothing. You may take them out.",
    ),
    "FM410": ("The limit is one unit, which FSDP2 keeps, or prefetching is off.", _NOTHING),
    "FM411": (
        "FSDP2 gathers one unit ahead. A larger limit overlapped more communication, and held more memory.",
        "Compare the time of a step with the old run. `set_modules_to_forward_prefetch` and `set_modules_to_backward_prefetch` look further ahead.",
    ),
    "FM412": (
        "Composer refuses the field under FSDP1. FSDP2 can do it.",
        "Nothing; check that you want it.",
    ),
    "FM413": ("It concerns saving and loading, which Composer does as before.", _NOTHING),
    "FM414": ("PURE, DEFAULT and FULL stand for dtypes, together with the Trainer's `precision`.", _NOTHING),
    "FM415": (
        "Activation checkpointing is on, and no module has `_activation_checkpointing` or is chosen by `activation_checkpointing_fn`.",
        "Nothing, as before. If you want it to have an effect, mark the layers.",
    ),
    "FM416": (
        "FSDP1 left a child with `_fsdp_wrap = False` out completely; its gradients were not averaged either.",
        "Nothing, if it is frozen. If it is trained, each rank trains its own, as before.",
    ),
    "FM417": ("Metrics hold counters of each rank, which must not be sharded.", _NOTHING),
    "FM418": (
        "The checkpoint does not load into FSDP2 as it is. It was converted once, into a folder beside it or into `cache_folder`.",
        "Nothing. The folder may be deleted when the run has saved a checkpoint of its own.",
    ),
    "FM419": (
        "The checkpoint holds tensors that the model does not have, and Composer was told to ignore them.",
        "Make sure that it is the right model.",
    ),
    "FM441": (
        "`verify_steps` trained a twin of the model under Composer's own FSDP1 beside it. Everything that was compared is the same, to the last bit; the finding names what could only be compared up to rounding.",
        "Nothing. You can remove `verify_steps` now.",
    ),
    "FM442": (
        "`verify_steps` trained a twin of the model under Composer's own FSDP1 beside it, and the two differ. The log names the first place, both values, and the finding that explains it, if there is one.",
        'Read the finding that is named. If none is named, do not spend hours on this run: compare a small model with `fsdp-migrate parity`, and report it. `on_difference="warn"` continues the training.',
    ),
    "FM443": (
        "A twin under FSDP1 needs memory of its own, and a batch that can be run once more. The message says what prevented it. The run goes on as it would have without `verify_steps`.",
        "Compare a smaller model of the same classes with `fsdp-migrate parity`, or change what the message names for a short run.",
    ),
}
