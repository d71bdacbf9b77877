"""FM0xx and FM1xx: FSDP1's arguments, and the model as it is sharded."""

from __future__ import annotations


_NOTHING = "Nothing."

EXPLANATIONS = {
    "FM001": (
        "FSDP1 chose by a strategy what is sharded and when it is freed. FSDP2 always shards, and `reshard_after_forward` says"
        " whether a unit's parameters are freed after its forward. The root keeps its own, as under FSDP1.",
        _NOTHING,
    ),
    "FM002": (
        "FSDP2 has no unsharded mode. On a mesh of (world size, 1) each rank's shard is the whole parameter, and gradients are"
        " averaged over the ranks, as `NO_SHARD` did.",
        "Nothing. With several backward passes for each step, sums are made in another order, so that the last bits may differ."
        " `DistributedDataParallel` is the usual choice for a model that is not sharded.",
    ),
    "FM003": (
        "FSDP2 takes a `DeviceMesh` where FSDP1 took process groups. The mesh is made of the same ranks; a pair of groups"
        " becomes the two dimensions (replicate, shard).",
        "Nothing. Pass `mesh=` to choose another one.",
    ),
    "FM004": (
        "FSDP2 takes the same `DeviceMesh`. It looks for the names of a 2-D mesh's dimensions, and an unnamed one gets them.",
        _NOTHING,
    ),
    "FM005": (
        "Without groups FSDP1 made each node a shard group, and the ranks of the same number on every node replicas of each other."
        " The 2-D mesh says the same.",
        "Nothing, where all nodes have equally many ranks. For other groups pass a 2-D `device_mesh`.",
    ),
    "FM006": (
        "Both keep the sharded parameters, gradients and optimizer state on the CPU, and copy a unit to the device when its turn comes.",
        "Nothing. The optimizer steps on the CPU, as before.",
    ),
    "FM007": (
        "The policy is asked about every module in the order in which FSDP1 asked, and each module that it selects is a unit of `fully_shard`.",
        "Nothing. `fsdp-migrate plan` shows the units.",
    ),
    "FM008": (
        "FSDP2 gathers the next unit before the gradients of the current one are computed, which is `BACKWARD_PRE`. `None` switches"
        " prefetching off.",
        _NOTHING,
    ),
    "FM009": (
        "`BACKWARD_POST` gathers the next unit after the current gradients are computed: less memory, less overlap. FSDP2 has no such order and"
        " prefetches as `BACKWARD_PRE` does. Values are the same; up to one more unit is held at once.",
        "Compare the peak of memory with that of the old run. If it is too high, pass `backward_prefetch=None`, which holds less and is slower.",
    ),
    "FM010": (
        "`MixedPrecision` becomes `MixedPrecisionPolicy`: parameters are cast when they are gathered, gradients when they are reduced, to the same dtypes.",
        _NOTHING,
    ),
    "FM011": (
        "FSDP1 casts buffers before the first forward; FSDP2 leaves them alone. Prepared models cast them too, and state dicts hold them in their own dtype.",
        "Nothing. Where buffers matter, such as rotary frequencies, leaving `buffer_dtype` out keeps them exact.",
    ),
    "FM012": (
        "FSDP1 could leave gradients in the low precision of the reduction. FSDP2 always casts them to the dtype of the sharded parameter, which an"
        " optimizer in full precision needs anyway.",
        "Count on gradients of the parameters' dtype: they take more memory, and code that expects bf16 gradients must be changed.",
    ),
    "FM013": (
        "FSDP1's limiter stopped the CPU from asking for too many gathers at once. FSDP2 manages memory by streams and does not run into that.",
        _NOTHING,
    ),
    "FM014": (
        "FSDP2 shards each parameter by itself, so that the model always shows its own parameters, with their names and shapes.",
        "Nothing after `True`. After `False`, look at code that counts parameters or groups them by `p.ndim`, such as weight decay for matrices only:"
        " under FSDP1 it saw one flat parameter for each unit, now it sees the real ones.",
    ),
    "FM015": (
        "FSDP1 casts the inputs of the root's forward, and those of every unit only if asked. `cast_forward_inputs` is set for each unit accordingly.",
        _NOTHING,
    ),
    "FM016": (
        "FSDP1 keeps modules of some classes, by default BatchNorm, out of mixed precision. They become units with a policy of full precision;"
        " inputs are cast to float32, and outputs back.",
        _NOTHING,
    ),
    "FM017": (
        "The parameters in question are handed to `fully_shard` as `ignored_params`: they are not sharded, gathered or reduced.",
        "Nothing. Their gradients are not averaged over the ranks, as under FSDP1; average them yourself if they are trained. Each rank then has values of its own,"
        " and a checkpoint holds those of one: a run that goes on from it, under FSDP1 or FSDP2, differs from the run that was not stopped. Compare with the FSDP1 run that went on from it.",
    ),
    "FM018": (
        "The function is called for each module on the meta device after sharding, unit by unit, so that no rank holds the whole model.",
        _NOTHING,
    ),
    "FM019": (
        "FSDP2 works on the device type of its mesh, and on the current device of the process.",
        "Nothing, if `torch.cuda.set_device` is called as before.",
    ),
    "FM020": (
        "Each rank shards what it holds. So rank 0's values are broadcast first, unit by unit, as FSDP1 did when it was built.",
        "Nothing. Without it, all ranks must have the same initial values: set the same seed, or load a checkpoint.",
    ),
    "FM021": (
        "FSDP1 gathers the next unit's parameters before the current forward, in the order of the first iteration. The same order is recorded in the"
        " first forward, and set with `set_modules_to_forward_prefetch`.",
        "Nothing. The forward must run its units in the same order each time, as under FSDP1.",
    ),
    "FM022": (
        "Between two synchronisations FSDP2 keeps whole gradients in `reduce_dtype`, FSDP1 in the parameters' dtype. Without `no_sync`, nothing differs.",
        "If you accumulate gradients under `no_sync`, expect slightly other losses. For the most exact sums choose `reduce_dtype=torch.float32`.",
    ),
    "FM101": (
        "`fully_shard` needs a module's forward. A `ModuleList` or `ModuleDict` has none, so that it would never gather its parameters.",
        "Nothing. Let the policy select the modules inside, if each is to be a unit.",
    ),
    "FM102": (
        "All of the module's parameters belong to units inside it, or it has none. A unit without parameters does nothing.",
        _NOTHING,
    ),
    "FM103": (
        "FSDP2 refuses one parameter in two units. The nearest unit above all of its modules takes it, and modules that would share it are no units.",
        'Nothing. Where that unit becomes too large, `tied="group"` (`--tied group`) makes one unit of just these modules.',
    ),
    "FM104": (
        'You asked for `tied="group"`: `fully_shard` takes a list of modules, and gathers them together.',
        _NOTHING,
    ),
    "FM105": (
        "A size-based policy makes units of modules above a number of parameters, and no module but the root reaches it; or a policy by class is given"
        " an empty list of classes, as scripts do for PEFT. FSDP1 did the same.",
        "Nothing is wrong; but the whole model is gathered at once. Choose a smaller number, or wrap by class.",
    ),
    "FM106": (
        "Ignored parameters are plain tensors, sharded ones are `DTensor`. The foreach kernels of torch's optimizers refuse a list of both.",
        "Nothing: `foreach` and `fused` are switched off before the step of an optimizer that holds both in one group. A parameter group of their"
        " own for the ignored ones is faster. Clip by `fsdp_migrate.runtime.clip_grad_norm_`.",
    ),
    "FM107": (
        "With shard groups of one rank, FSDP1 skipped the all-reduce between replicas, so that their weights became different. FSDP2 averages them, which was surely intended.",
        "Do not expect the old losses. Start from the weights of one rank, and consider whether the old run was what it seemed.",
    ),
    "FM120": (
        "The parameters are `DTensor`s already, placed by `parallelize_module`. `fully_shard` shards them once more, over its own dimension of the mesh.",
        "Nothing. Both meshes must be dimensions of one `DeviceMesh`.",
    ),
    "FM121": (
        "Each rank of an expert-parallel group sees the data of all data-parallel ranks, so that the sum over fewer ranks is divided by the number of all.",
        "Nothing.",
    ),
    "FM122": (
        "`torch.nn.utils.clip_grad_norm_` stacks norms, which must lie on one mesh. Some optimizers' foreach kernels have the same limit.",
        "Use `fsdp_migrate.runtime.clip_grad_norm_(model, max_norm)`.",
    ),
    "FM123": (
        "Under NO_SHARD every FSDP1 unit all-reduces its own flat gradient. A parameter that several units share was in one of them. The gradients of the other units came too late or into another tensor, so that ranks trained different values. Here the unit that owns it reduces all of it.",
        "Nothing: it trains as it does without sharding. Losses differ from those of the FSDP1 run from the first step on.",
    ),
    "FM124": (
        "FSDP1's parameters were views of one flat parameter. So its backward came to a unit even if a step used only frozen parameters of it, such as a"
        " frozen embedding, and made gradients of zeros for those that are trained. Here they have no gradient, as without sharding. AdamW then leaves"
        " them alone, where it decayed them under FSDP1. It is logged once for each unit, in the first such step.",
        "Nothing, if this is as it should be: a parameter that is never used does not change. Freeze it if it is never used.",
    ),
    "FM125": (
        "bitsandbytes packs two weights into a byte. By default the bytes are uint8, which neither FSDP1 nor FSDP2 shards: FSDP1 refused the model, Accelerate"
        " leaves such weights out under FSDP2, and so does `prepare_fully_shard`. Every rank holds all of them, and none is sent.",
        "Nothing, if they fit. To shard them, quantise with `bnb_4bit_quant_storage` of the dtype of the other parameters, such as `torch.bfloat16`.",
    ),
    "FM126": (
        "The weights are bytes in the guise of a floating-point dtype. Mixed precision of another dtype made FSDP1 cast them when it gathered them, which"
        " gave other weights without an error. Here they are gathered as they are, and everything else of the unit is cast as asked.",
        "Nothing for the run from here on. If the FSDP1 run had this setting, its losses were those of other weights; compare with"
        " `bnb_4bit_quant_storage` of the dtype of `param_dtype`, where both compute the same.",
    ),
    "FM127": (
        "A unit is gathered when it runs. If a batch has no image, or no token for an expert, on one rank only, that rank goes on to its next unit."
        " Its bytes then meet those of another unit on the other ranks. If both are of one size, ranks compute with wrong parameters; nothing is said."
        " Otherwise, or later, they wait for each other. FSDP1 did the same. Names of units tell that this may happen; whether it does depends on the data.",
        'If ranks may skip these units, give `skipped_units="join"` to `prepare_fully_shard`, and find out with `skipped_units="error"`.'
        " If no rank skips them, nothing.",
    ),
    "FM128": (
        "Before each all-gather and each reduction, the ranks tell each other which unit comes next. Under `join`, a rank that does not run it takes part all"
        " the same: it frees what it gathers, and reduces gradients of zeros. So gradients are the mean over all ranks. Under `error`, all ranks stop with a message"
        " that names units and ranks. `forward_prefetch` is off under both.",
        "Nothing. It costs a small all-reduce between the CPUs for each collective of FSDP2.",
    ),
    "FM129": (
        "FSDP gathers a unit's parameters when the unit is called. A model whose class has no `forward` is never called: its other methods call modules"
        " in it. Those that are units gather for themselves, each as the root of its own. What belongs to no unit but the root's stays in shards;"
        " a method that used it failed under FSDP1, and fails here.",
        'Nothing where no method uses these parameters. Else call `fsdp_migrate.runtime.register_forward_methods(model, "encode")` once, with the names of the'
        " methods that do, or choose the modules that hold them as units.",
    ),
    "FM130": (
        "Weights of some classes, such as torchao's for fp8 and MXFP8, have methods that FSDP2 calls before and after it gathers them: they send eight bits"
        " for each number, by a scale that all ranks agree on. FSDP1 calls no such methods. With `use_orig_params=False` it flattened such weights and gave plain"
        " ones to the model, so that all bits were sent, and what the class computes (MXFP8) was computed in high precision. With `use_orig_params=True` the first"
        " step of AdamW failed on the shapes.",
        "Nothing. If an FSDP1 run had such weights, its losses may be those of higher precision.",
    ),
    "FM131": (
        "Some ranks have values and others made their models on the meta device, with a `param_init_fn` and without `sync_module_states`. Each rank shards what it"
        " has. FSDP1 did so too, and cut flat parameters, FSDP2 cuts between rows: a parameter is then made of rows of one rank's values and of what another rank's"
        " `param_init_fn` put into its own, and the mixture is another than FSDP1's.",
        "Load a checkpoint before the first step, which fills all; or pass `sync_module_states=True`, which sends rank 0's values. Without either the run starts from"
        " a mixture.",
    ),
    "FM132": (
        "Each rank made its model below a seed of its own (`torch.manual_seed(seed + rank)`), or loaded values on one rank alone, and `sync_module_states` is not"
        " set. Each rank shards what it has. FSDP1 did so too, and cut flat parameters, FSDP2 cuts between rows: the model is a mixture in both, and another one."
        " Eight numbers of each parameter are compared over the ranks; nothing is changed.",
        "Nothing, where a checkpoint is loaded before the first step: it fills all. Else pass `sync_module_states=True`, which sends rank 0's values, or make the"
        " model below one seed for all ranks. A run that is compared with FSDP1's needs this in both: the two begin with other weights.",
    ),
    "FM108": (
        "FSDP1 used only those ignored modules and parameters that are in the model, and silently left out the others.",
        _NOTHING,
    ),
    "FM109": (
        "FSDP2 shards parameters whose elements follow each other. One in `channels_last`, or a view of another shape, is copied into that order,"
        " and an operation may take another kernel for it.",
        "Nothing, unless the last bits matter to you: then call `.contiguous()` on the parameters of the FSDP1 run as well.",
    ),
    "FM110": (
        "`_apply_optimizer_in_backward` gives each parameter an optimizer. FSDP2 puts other parameters in their place, so the optimizers are given those.",
        _NOTHING,
    ),
    "FM111": (
        "A hook of `register_post_accumulate_grad_hook` moves to the sharded parameter, where FSDP2 calls it. Under FSDP1 it was on a parameter"
        " that autograd never reached.",
        "Look at what the hook does: it runs now. Remove it if the run under FSDP1 did not need it.",
    ),
    "FM112": (
        "FSDP1 read the variable and gathered parameters in full precision in evaluation. FSDP2 has one precision for a unit.",
        "Compare the evaluation with care: losses differ by the rounding of the low precision. For one in full precision load the checkpoint into a"
        " model without mixed precision.",
    ),
    "FM113": (
        "FSDP1 gave the optimizer plain tensors; here they are DTensors, for which some of torch's fused and foreach kernels have no version.",
        "Nothing: the same values are computed by other kernels.",
    ),
    "FM114": (
        "FSDP1 gave the optimizer pieces of flat parameters. Here it sees each parameter with its shape, and what it computes over a whole"
        " tensor, such as a norm or a row, is different.",
        "Expect another run, as a rule the one that the optimizer's authors meant. Compare it with a short run under FSDP1.",
    ),
    "FM115": (
        "The optimizer uses operations that DTensors do not have.",
        "Take another optimizer, or one that the page docs/prepare.md names in its place.",
    ),
    "FM116": (
        "A hook of `register_hook` is on the parameter from before sharding. FSDP1 and FSDP2 both compute with other parameters, so that autograd never calls it.",
        "Nothing, if the FSDP1 run did not need it. To have it called, register it on the sharded parameter by `register_post_accumulate_grad_hook`.",
    ),
}
