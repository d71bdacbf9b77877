"""The one table of codes of findings; ``docs/findings.md`` is the same table for people."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from fsdp_migrate.checkpoint_codes import CHECKPOINT_CODES
from fsdp_migrate.finding_code import FindingCode


if TYPE_CHECKING:
    from collections.abc import Mapping


FINDING_CODES: Mapping[str, FindingCode] = MappingProxyType(
    {
        # FM0xx: FSDP1 arguments
        "FM001": FindingCode(
            "exact", "`sharding_strategy`: FSDP2 shards and frees parameters in the same way."
        ),
        "FM002": FindingCode(
            "equivalent", "`NO_SHARD` is a (world size, 1) mesh: every rank holds all parameters."
        ),
        "FM003": FindingCode("equivalent", "`process_group` becomes the `DeviceMesh` of the same ranks."),
        "FM004": FindingCode(
            "exact", "`device_mesh` is used as it is, or with names given to its dimensions."
        ),
        "FM005": FindingCode(
            "equivalent", "`HYBRID_SHARD` without groups: one node per shard group, as a 2-D mesh."
        ),
        "FM006": FindingCode("exact", "`cpu_offload` becomes `CPUOffloadPolicy`."),
        "FM007": FindingCode("exact", "`auto_wrap_policy` selects the same units."),
        "FM008": FindingCode("exact", "`backward_prefetch` is FSDP2's own order, or switched off."),
        "FM009": FindingCode(
            "changed",
            "`BACKWARD_POST`: FSDP2 prefetches before the gradient computation, not after.",
        ),
        "FM010": FindingCode(
            "exact", "`mixed_precision`: parameters and gradients are cast in the same way."
        ),
        "FM011": FindingCode(
            "equivalent",
            "`buffer_dtype`: buffers are cast before the first forward, and back when saved.",
        ),
        "FM012": FindingCode(
            "changed",
            "`keep_low_precision_grads`: FSDP2 casts gradients to the parameters' own dtype.",
        ),
        "FM013": FindingCode("obsolete", "`limit_all_gathers`: FSDP2 bounds its memory without it."),
        "FM014": FindingCode("obsolete", "`use_orig_params`: FSDP2 always keeps the original parameters."),
        "FM015": FindingCode(
            "exact", "Forward inputs are cast where FSDP1 cast them: by default at the root only."
        ),
        "FM016": FindingCode(
            "equivalent",
            "Modules whose classes mixed precision ignores are units of their own, in full precision.",
        ),
        "FM017": FindingCode(
            "equivalent",
            "`ignored_modules`, `ignored_states`: left out of sharding by `ignored_params`.",
        ),
        "FM018": FindingCode("exact", "`param_init_fn` initialises modules that are on the meta device."),
        "FM019": FindingCode("equivalent", "`device_id`: parameters are moved to the mesh's device."),
        "FM020": FindingCode(
            "equivalent",
            "`sync_module_states`: rank 0's parameters and buffers are broadcast before sharding.",
        ),
        "FM021": FindingCode(
            "exact", "`forward_prefetch`: units are chained in the order of the first forward."
        ),
        "FM022": FindingCode(
            "equivalent", "The same without `no_sync`; under it, gradients are added up in `reduce_dtype`."
        ),
        # FM1xx: the model, as it is sharded
        "FM101": FindingCode(
            "equivalent",
            "A container without a forward is no unit; its parameters belong to the unit above.",
        ),
        "FM102": FindingCode("obsolete", "A selected module without parameters of its own needs no unit."),
        "FM103": FindingCode(
            "equivalent", "Tied parameters belong to the nearest unit above all of their modules."
        ),
        "FM104": FindingCode(
            "equivalent", "The modules of tied parameters are sharded together, as one unit."
        ),
        "FM105": FindingCode(
            "exact", "A policy by size finds no module large enough, or one names no class: all is one unit."
        ),
        "FM106": FindingCode(
            "equivalent",
            "Ignored parameters are trained beside sharded ones, which foreach optimizers refuse.",
        ),
        "FM107": FindingCode(
            "changed",
            "`HYBRID_SHARD` over shard groups of one rank: the replicas are averaged, as FSDP1's were not.",
        ),
        "FM108": FindingCode("exact", "What is ignored and not in the model has no effect, as under FSDP1."),
        "FM109": FindingCode(
            "changed", "Parameters that are not contiguous become so: sums may differ in the last bits."
        ),
        "FM110": FindingCode(
            "equivalent", "Optimizers that step in backward step the sharded parameters, after the reduction."
        ),
        "FM111": FindingCode(
            "changed", "Hooks for accumulated gradients are called after the reduction; FSDP1 called none."
        ),
        "FM112": FindingCode("changed", "`FSDP_USE_FULL_PREC_IN_EVAL=1`: evaluation stays in low precision."),
        "FM113": FindingCode("equivalent", "Options of an optimizer that take no DTensors are switched off."),
        "FM114": FindingCode("changed", "The optimizer computes other values than on FSDP1's flat shards."),
        "FM115": FindingCode("refused", "The optimizer fails with DTensors."),
        "FM116": FindingCode("exact", "Hooks of `register_hook` on parameters: not called, as under FSDP1."),
        "FM117": FindingCode(
            "changed",
            "A callback or an algorithm of Composer does or logs something else than under FSDP1.",
        ),
        "FM118": FindingCode(
            "refused", "A callback or an algorithm of Composer does not work with sharded parameters."
        ),
        "FM119": FindingCode(
            "exact", "A ComposerModel without a child to shard is trained whole, as under FSDP1."
        ),
        "FM120": FindingCode(
            "equivalent", "Tensor- or sequence-parallel parameters are sharded over FSDP's mesh too."
        ),
        "FM121": FindingCode(
            "equivalent", "Expert-parallel gradients are divided by the number of all data-parallel ranks."
        ),
        "FM122": FindingCode(
            "changed", "Parameters on several meshes: `torch.nn.utils.clip_grad_norm_` does not mix them."
        ),
        "FM123": FindingCode(
            "changed", "`NO_SHARD`: a parameter tied across units is reduced whole; FSDP1 reduced a part."
        ),
        "FM124": FindingCode(
            "changed", "A step used only what is frozen of a unit: the rest is not decayed."
        ),
        "FM125": FindingCode(
            "changed",
            "4-bit weights of an integer dtype (QLoRA) are left out of sharding, whole on every rank.",
        ),
        "FM126": FindingCode(
            "changed", "4-bit weights (QLoRA) are gathered as they are, where FSDP1 cast their packed bytes."
        ),
        "FM127": FindingCode(
            "exact", "Units that some ranks may skip: these ranks hang or train wrongly, as under FSDP1."
        ),
        "FM128": FindingCode(
            "equivalent", "`skipped_units`: ranks that skip a unit join its collectives, or all ranks stop."
        ),
        "FM129": FindingCode(
            "exact", "A model without a forward: nothing gathers its own parameters, as under FSDP1."
        ),
        "FM130": FindingCode(
            "equivalent", "Weights that say how they are gathered (fp8): FSDP1 did not ask them."
        ),
        "FM131": FindingCode(
            "changed",
            "Models on the meta device on some ranks alone, which nothing sends values: a mixture, cut otherwise.",
        ),
        "FM132": FindingCode(
            "changed",
            "Ranks with values of their own, which nothing sends those of one: a mixture, cut otherwise.",
        ),
        **CHECKPOINT_CODES,
        # FM3xx: Python sources
        "FM301": FindingCode(
            "equivalent",
            "`FSDP(model, ...)` becomes `prepare_fully_shard(model, {...})`, with the same arguments.",
        ),
        "FM302": FindingCode(
            "equivalent",
            "The arguments of `FSDP(...)` are known only when it runs; their names are checked then.",
        ),
        "FM303": FindingCode(
            "refused",
            "FSDP inside FSDP or Accelerate, `FSDP(*args)`, `wrap`, or the class as a value: must be changed by hand.",
        ),
        "FM304": FindingCode(
            "refused", "A subclass of `FullyShardedDataParallel`: FSDP2 has no class to derive from."
        ),
        "FM305": FindingCode("exact", "Checks for the class, and annotations with it, name `FSDPModule`."),
        "FM306": FindingCode("obsolete", "State dict types and their options: FSDP2 has no such contexts."),
        "FM307": FindingCode(
            "refused", "A state dict context that is not seen completely, or of a kind that FSDP2 lacks."
        ),
        "FM308": FindingCode(
            "equivalent",
            "`model.state_dict()`, `load_state_dict()`: torch's functions for full or sharded states.",
        ),
        "FM309": FindingCode(
            "equivalent",
            "`FSDP.optim_state_dict` and related functions: functions of `fsdp_migrate.runtime`.",
        ),
        "FM310": FindingCode(
            "exact", "What FSDP1's arguments are made of: `prepare_fully_shard` takes it as it is."
        ),
        "FM311": FindingCode(
            "equivalent",
            "`model.clip_grad_norm_(...)` becomes `clip_grad_norm_(model, ...)`: the same norm but for its last "
            "bits.",
        ),
        "FM312": FindingCode(
            "equivalent",
            "`model.no_sync()` becomes `no_sync(model)`, under which gradients accumulate in `reduce_dtype`.",
        ),
        "FM313": FindingCode(
            "equivalent", "`FSDP.summon_full_params(model)` becomes `summon_full_params(model)`."
        ),
        "FM314": FindingCode(
            "equivalent",
            "`ShardedGradScaler(...)` becomes `grad_scaler(...)`, and so should torch's own, where it would fail.",
        ),
        "FM315": FindingCode(
            "equivalent", "`.module` of the wrapper: FSDP2 wraps nothing, so it is the model itself."
        ),
        "FM316": FindingCode(
            "changed", "Names with `_fsdp_wrapped_module`, or of FSDP1's class: FSDP2 has none of them."
        ),
        "FM317": FindingCode(
            "refused",
            "Private to FSDP1, its wrapper's own, or made for its models: flat parameters, handles, `FSDPCheckpointer`.",
        ),
        "FM318": FindingCode(
            "changed",
            "Parameters or modules chosen by dimensions, names or parts: FSDP1's were others, FSDP2's are the model's.",
        ),
        "FM319": FindingCode(
            "refused", "Lightning's `FSDPStrategy`: `ModelParallelStrategy` needs a hook in the module."
        ),
        "FM320": FindingCode("refused", "Accelerate's plugin: it takes FSDP2 by `fsdp_version=2`."),
        "FM321": FindingCode("refused", "`register_comm_hook`: FSDP2's hooks take other arguments."),
        "FM322": FindingCode(
            "changed", "`model.apply(fn)`: FSDP1 showed whole parameters, now the function sees shards."
        ),
        "FM323": FindingCode(
            "refused",
            "A copy or a pickle of a sharded model, or a copy of its parameters: FSDP2 does not allow it.",
        ),
        "FM324": FindingCode(
            "changed", "Activation checkpointing after sharding gathers parameters once more."
        ),
        "FM325": FindingCode("obsolete", "FSDP1 in a comment or a string."),
        "FM326": FindingCode(
            "changed", "Clipping by a norm: it is that of the whole gradient now. Fabric's may raise now."
        ),
        "FM327": FindingCode("refused", "Hugging Face's Trainer: it takes FSDP2 by its `fsdp_config`."),
        "FM328": FindingCode("refused", "Composer's Trainer: its `fsdp_config` is migrated by a callback."),
        "FM329": FindingCode("obsolete", "An import of FSDP1's that nothing uses any more."),
        "FM331": FindingCode("equivalent", "A partial of FSDP becomes one of `prepare_fully_shard`."),
        "FM332": FindingCode(
            "refused", "The model runs in `summon_full_params`, which FSDP2 does not allow."
        ),
        "FM333": FindingCode(
            "refused", "The model may also be plain, or DistributedDataParallel's: must be changed by hand."
        ),
        "FM334": FindingCode(
            "changed", "A number that is only shown: it was of one rank's part, and is of the whole now."
        ),
        "FM335": FindingCode(
            "changed",
            "What holds of FSDP1's wrapper alone is asked, set or unwrapped: FSDP2 goes on without it.",
        ),
        "FM336": FindingCode(
            "changed",
            "A `DTensor` where torch takes a plain tensor alone: the run ends there, with an error.",
        ),
        # FM34x to FM36x: configs in files
        "FM340": FindingCode("exact", "A config key keeps its name and its meaning."),
        "FM341": FindingCode("equivalent", "A config key got the name or the value that FSDP2 has for it."),
        "FM342": FindingCode("obsolete", "A config key was taken out: FSDP2 needs no such option."),
        "FM343": FindingCode("changed", "A config key asks for what this framework's FSDP2 does not do."),
        "FM344": FindingCode(
            "equivalent", "A config key was added; without it FSDP2 would do something else."
        ),
        "FM345": FindingCode(
            "changed", "A config key that is not known here was kept; the nearest one is named."
        ),
        "FM346": FindingCode("changed", "A config value that the file does not hold (`${...}`) was kept."),
        "FM347": FindingCode("exact", "The config is FSDP2 already."),
        "FM348": FindingCode("refused", "A config value means nothing to FSDP1."),
        "FM349": FindingCode("exact", "A config key is there twice; the last one counts."),
        "FM350": FindingCode("refused", "PyTorch/XLA's FSDP, which is another FSDP."),
        "FM351": FindingCode(
            "exact", "FSDP settings that the framework does not read were left as they are."
        ),
        "FM352": FindingCode("refused", "`HYBRID_SHARD`, and the numbers of nodes and ranks are not known."),
        "FM353": FindingCode(
            "changed", "`NO_SHARD`, or replicas alone, where this framework's FSDP2 always shards."
        ),
        "FM354": FindingCode("changed", "Mixed precision, as this framework's FSDP2 applies it."),
        "FM355": FindingCode(
            "changed", "FSDP2 takes this setting in code or in the environment, not in the config."
        ),
        "FM356": FindingCode("changed", "Settings in another file, which is not converted with this one."),
        "FM357": FindingCode("refused", "A precision that this framework's FSDP2 does not have."),
        "FM358": FindingCode(
            "changed", "Not every version of the framework does this; the versions are named."
        ),
        "FM359": FindingCode(
            "changed", "FSDP settings whose framework cannot be told were left as they are."
        ),
        # FM401 to FM419: Composer
        "FM401": FindingCode(
            "equivalent", "Composer's `activation_checkpointing`: the same layers are recomputed."
        ),
        "FM402": FindingCode(
            "equivalent", "Composer's `activation_cpu_offload`: what the same layers keep is on the CPU."
        ),
        "FM403": FindingCode("obsolete", "Composer's `auto_wrap`: the model's own marks decide."),
        "FM404": FindingCode("refused", "TransformerEngine's FP8 options depend on FSDP1's classes."),
        "FM405": FindingCode(
            "obsolete", "A field of Composer's config that has no effect under FSDP1 either."
        ),
        "FM406": FindingCode(
            "equivalent", "Composer's degrees of data parallelism are the mesh (replicate, shard)."
        ),
        "FM407": FindingCode(
            "equivalent", "The strategy is changed to fit the degrees, as Composer changes it under FSDP1."
        ),
        "FM408": FindingCode("equivalent", "Composer's word for a process group is the mesh of those ranks."),
        "FM409": FindingCode(
            "obsolete", "Degrees of data parallelism are not used, as under FSDP1: `process_group` is given."
        ),
        "FM410": FindingCode("exact", "A limit of prefetching that FSDP2 keeps, or that has no effect."),
        "FM411": FindingCode("changed", "FSDP2 prefetches one unit ahead, whatever the limit was."),
        "FM412": FindingCode("equivalent", "`cpu_offload`, which Composer refuses under FSDP1, works."),
        "FM413": FindingCode("exact", "Composer itself reads the field, when it saves and loads."),
        "FM414": FindingCode("exact", "Composer's words for mixed precision are these dtypes."),
        "FM415": FindingCode(
            "exact", "Composer finds no module marked for activation checkpointing, and so does nothing."
        ),
        "FM416": FindingCode(
            "exact", "Parameters that Composer's FSDP1 leaves alone: not sharded, gradients not averaged."
        ),
        "FM417": FindingCode("exact", "Metrics of a ComposerModel are left alone."),
        "FM418": FindingCode(
            "equivalent", "A checkpoint was converted automatically, into a folder beside it."
        ),
        "FM419": FindingCode(
            "equivalent", "Tensors of a checkpoint that the model has no place for, as before."
        ),
        # FM42x: sources, continued
        "FM420": FindingCode(
            "changed",
            "A branch for FSDP1's models alone beside one for FSDP2's, or one that FSDP2's model comes to first.",
        ),
        "FM421": FindingCode("changed", "`ShardedTensor`: FSDP2's states hold `DTensor`."),
        "FM422": FindingCode(
            "refused", "A keyword that `FullyShardedDataParallel` never had, or a value that means nothing."
        ),
        "FM423": FindingCode(
            "changed",
            "A parameter, gradient or norm was one rank's part; now it is a `DTensor` or whole.",
        ),
        "FM424": FindingCode(
            "changed", "A mock of FSDP1's class by its name; a rewriting removes this name."
        ),
        # FM43x: checkpoints that are loaded without converting
        "FM430": FindingCode("changed", "Tensors were cast to the type of what holds them now."),
        "FM431": FindingCode("changed", "Entries of the checkpoint that nothing asked for were not loaded."),
        "FM432": FindingCode("changed", "Parameters that the checkpoint does not have keep their values."),
        "FM433": FindingCode("changed", "Tensors of another shape were not loaded."),
        "FM434": FindingCode(
            "changed", "Parameter groups differ; settings were loaded where they are the same."
        ),
        "FM435": FindingCode("exact", "Parameters without optimizer state in the checkpoint have none now."),
        "FM436": FindingCode("exact", "What was read, how fast, and how much of it has no checksum."),
        "FM437": FindingCode(
            "equivalent", "Not every rank sees the checkpoint: one rank read it and sent it."
        ),
        "FM438": FindingCode("changed", "Random states are in the checkpoint, and were not asked for."),
        "FM439": FindingCode(
            "equivalent",
            "Composer's Trainer reads the checkpoint directly into its shards, without converting.",
        ),
        "FM440": FindingCode(
            "equivalent", "A checkpoint had to be converted: Composer's Trainer could not read it directly."
        ),
        "FM441": FindingCode(
            "exact", "The first batches of Composer's Trainer are those of FSDP1 (`verify_steps`)."
        ),
        "FM442": FindingCode(
            "changed", "The first batches of Composer's Trainer differ from FSDP1's (`verify_steps`)."
        ),
        "FM443": FindingCode(
            "changed", "Batches of Composer's Trainer could not be compared with FSDP1's (`verify_steps`)."
        ),
        "FM450": FindingCode(
            "changed",
            "A model or an optimizer that could not be followed: it may be the sharded one.",
        ),
        "FM451": FindingCode(
            "changed",
            "Weights that are written, or stepped, after a forward without a backward: FSDP1 computed on "
            "with the old ones.",
        ),
        "FM452": FindingCode(
            "changed",
            "Weights that are written while a forward or its backward is under way: FSDP2 loses them.",
        ),
        "FM453": FindingCode(
            "changed",
            "An optimizer that FSDP1's flat parameters left without any: it trained nothing, and trains now.",
        ),
        "FM454": FindingCode(
            "changed",
            "What is sharded goes into code that is not read here, or is asked for what is not known.",
        ),
        "FM460": FindingCode(
            "changed", "What an optimizer notes of a parameter, such as `use_muon`, is the checkpoint's now."
        ),
        "FM444": FindingCode("changed", "The config holds FSDP2's settings already; FSDP1's were asked for."),
        "FM445": FindingCode(
            "changed", "An optimizer that is not torch's own is given the parameters of a sharded model."
        ),
        "FM446": FindingCode(
            "changed", "Something holds the parameters that the model had before it was sharded."
        ),
        "FM447": FindingCode(
            "changed",
            "An optimizer, or torch._foreach_*, is given sharded tensors and plain ones in one list.",
        ),
        "FM448": FindingCode(
            "equivalent", "`model.forward(...)` becomes `model(...)`, in whose hooks FSDP2 gathers."
        ),
        "FM449": FindingCode(
            "changed", "Accelerate is given a model without its optimizer, which its FSDP2 refuses."
        ),
        "FM425": FindingCode(
            "changed",
            "`optimizer.state_dict()` of a sharded model: one rank's part, which cannot be joined.",
        ),
        "FM426": FindingCode(
            "changed", "Files in which FSDP1's ranks saved their shards: FSDP2 does not take what they hold."
        ),
        "FM427": FindingCode(
            "equivalent", "Accelerate's plugin asks for FSDP2, with the settings that it gave to FSDP1."
        ),
        "FM428": FindingCode(
            "equivalent", "Arguments of Hugging Face's Trainer for FSDP1 become those that ask for FSDP2."
        ),
        "FM429": FindingCode(
            "equivalent", "Lightning's strategy is that of FSDP2, and the module shards itself in its hook."
        ),
    }
)
