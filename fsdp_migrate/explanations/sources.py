"""FM30x to FM33x and FM42x: Python sources."""

from __future__ import annotations


_NOTHING = "Nothing."

EXPLANATIONS = {
    "FM301": (
        "FSDP1 wraps a model in an object, FSDP2 changes the model in place. `prepare_fully_shard` takes the arguments of FSDP1 and returns the model itself.",
        "Nothing. `fsdp_migrate.shard_plan(model).findings` says what became of each argument.",
    ),
    "FM302": (
        "The call unpacks a dict or takes a variable, and the source does not show its keys. Unknown names raise when the call runs.",
        "Run it once on a small model, or `fsdp-migrate plan` with the same arguments, before a long run.",
    ),
    "FM303": (
        "Which modules are wrapped, and in what order, is decided by code: `wrap` inside `enable_wrap`, calls inside calls, arguments behind `*`, or the class passed around."
        " `prepare_fully_shard` shards a whole model at once.",
        'Build the model without wrapping. Call `prepare_fully_shard(model, {"auto_wrap_policy": ...})` once, with a policy that names the classes that were'
        " wrapped; or `fully_shard` on each module, inner ones first, and the root last."
        " A script of which every wrap is left like this trains with FSDP1 as before: nothing in it can raise, and nothing else of it is turned."
        " Once a wrap is settled, run `fsdp-migrate rewrite` again for the rest."
        " Where a comment says that FSDP2 has no such function of the class, nothing takes its place: take out what calls it, and what is done with what it gave.",
    ),
    "FM304": (
        "FSDP2 has no class to derive from: `fully_shard` gives the model's own class a mixin, `FSDPModule`.",
        "Change the methods of the subclass into functions that take the model, or put them into the model's own class.",
    ),
    "FM305": (
        "A sharded model is an instance of `FSDPModule`, as it was one of `FullyShardedDataParallel`.",
        "Look at the code below the check: `.module` and other attributes of the wrapper are gone. In a walk over modules a check that leaves out"
        " wrappers stays, and a comment says to take it away: FSDP2 has no wrappers, and a layer that is a unit is `FSDPModule` itself.",
    ),
    "FM306": (
        "With FSDP1 a context chose the kind of state dict. With torch's functions `StateDictOptions` chooses it in each call.",
        _NOTHING,
    ),
    "FM307": (
        "In such a context a model's state dict is of another kind. If code inside it is not seen, or if the kind is known only when it runs, no call is"
        " certain to do the same.",
        'Replace what is inside: a full state by `full_state_dict(model).get("model", {})` of `fsdp_migrate.runtime`, which rank 0 has, that of an'
        " optimizer by `full_optimizer_state_dict(model, optimizer)`; a sharded one by `get_model_state_dict(model)` of"
        " `torch.distributed.checkpoint.state_dict`; loading a file by `fsdp_migrate.load_checkpoint(path, model, optimizer)`, whatever saved it, a state by"
        " `load_full_state_dict` or `set_model_state_dict`. Then remove the context. Where states are taken and loaded by torch's `get_state_dict` and its kin"
        " alone, which ask for no such context, there is nothing to replace: remove it. So it is around `save_model()` of Hugging Face's Trainer, which"
        " gathers the state itself, if `state_dict_type` of its FSDP config is `FULL_STATE_DICT`.",
    ),
    "FM308": (
        "`state_dict()` of an FSDP2 model holds `DTensor`s with this rank's shard. torch's functions give the full or sharded state that FSDP1 gave."
        " A full state is loaded by `load_model_state_dict` of `fsdp_migrate.runtime`: torch's `set_model_state_dict` fills in what it lacks from the"
        " model, and raises no error.",
        "Nothing where it was rewritten. Above a call that is left, the comment says what takes its place. Every rank must take part in the call, as before.",
    ),
    "FM309": (
        "FSDP1's static methods turned the optimizer's state into names and back. The functions of `fsdp_migrate.runtime` do that for FSDP2.",
        "Nothing where it was rewritten. Where a comment names `fsdp_migrate.load_checkpoint(PATH, model, optimizer)`, put that call, below `import fsdp_migrate`, in place of the lines that load"
        " the optimizer's state: by its whole name, since many a script has a function `load_checkpoint` of its own. Where `dcp.load` read into `FSDP.optim_state_dict(model, optimizer)` of an optimizer that had not stepped,"
        " FSDP1 loaded no moments, without an error, and FSDP2 loads them now: compare losses with the FSDP1 run that was not stopped. Where it says that which state is asked for is not seen, the type of state dicts that was set decides: for FULL_STATE_DICT call"
        " `full_optimizer_state_dict(model, optimizer)`, for SHARDED_STATE_DICT `sharded_state_dict(model, optimizer)['optimizer']`. Where a comment says that arguments have no equivalent, call `full_optimizer_state_dict(model, optimizer)`,"
        " `sharded_state_dict` or `optim_state_dict_to_load` of `fsdp_migrate.runtime` with the arguments that they take, and do the rest with their result.",
    ),
    "FM310": (
        "The classes are plain settings. `prepare_fully_shard` takes them, so that arguments need not be written anew.",
        'Nothing, as long as torch has FSDP1. To remove the import, pass words: `"sharding_strategy": "FULL_SHARD"`.',
    ),
    "FM311": (
        "The method belonged to the wrapper. The function computes the same norm, over all shards. It adds them up in another order, so that the norm may"
        " differ in its last bits, and with it what is clipped.",
        "Nothing. The result is a plain tensor, the same on every rank. To compare two runs to the last bit, leave clipping out of both.",
    ),
    "FM312": (
        "FSDP2 has `set_requires_gradient_sync`, which stays set until it is changed. The context sets it, and resets it at its end."
        " Gradients accumulate in `reduce_dtype`, where FSDP1 took the dtype of the parameters: under mixed precision with more than one microbatch losses"
        " differ a little from the old run (FM022, which the run logs).",
        "Nothing. To compare two runs to the last bit, take one microbatch a step, or the same dtype for both, in both.",
    ),
    "FM313": (
        "The context gathers whole parameters, and shards them again at its end, written back if asked.",
        "Nothing where it was rewritten. Below a comment FSDP1's call, left as it is, gathers nothing of an FSDP2 model, without an error: call"
        " `fsdp_migrate.runtime.summon_full_params` with the same arguments, by their names, and take the parameters inside of it. The model must not run"
        " inside; FSDP2 does not allow that.",
    ),
    "FM314": (
        "FSDP1's subclass works only with FSDP1. torch's own `GradScaler` works with `DTensor`, and its ranks agree on an overflow, where FSDP1's decided"
        " alone; but it asks the mesh where the gradients are, which NCCL alone cannot do on the CPU, and it raises where plain parameters are among"
        " sharded ones. The function makes one that works in all cases.",
        "Nothing where it was rewritten or stays. Below a comment call `fsdp_migrate.runtime.grad_scaler` with the same arguments, by their names.",
    ),
    "FM315": (
        "FSDP1's wrapper kept the model as `.module`. FSDP2 has no wrapper: `model` is the model. So a flag or a layer that is set on `model` reaches"
        " the model itself, where FSDP1's wrapper took it, and the model within went on with its own.",
        "Put a layer into the model before that is sharded. Check that the code did not mean an attribute `module` of your own model.",
    ),
    "FM316": (
        "FSDP1 put `_fsdp_wrapped_module` into the names of parameters and modules. Under FSDP2 names are those of the model, so that a test for the"
        " prefix is never true, and a lookup with it fails. Nor is any class called `FullyShardedDataParallel`: a unit's class is called as its own,"
        " with `FSDP` before it, so that `type(m).__name__` is another. That class derives from the model's own, as FSDP1's wrapper did not: `isinstance(model, Net)`"
        " was false of a sharded model, and is true now.",
        "Use the names without the prefix. Code that only takes the prefix out may stay: it does nothing. Instead of a class's name ask"
        " `isinstance(m, FSDPModule)`.",
    ),
    "FM317": (
        "Flat parameters, handles and the wrapper's attributes are how FSDP1 works inside. FSDP2 has none of them. A class or a function of another"
        " package that has FSDP in its name may ask a model for them. Some of it has one value of every FSDP2 model: `_is_fsdp_flattened(p)` and"
        " `isinstance(p, FlatParameter)` are False, `_get_module_fsdp_state(m)` is None, `_get_fsdp_states(m)` and `_get_fsdp_handles(m)` are empty, and nothing raises.",
        "Where it has one value, leave it out of the condition, or take what is never done any more away. Else find out what the code was for. Shard and mesh: `p.to_local()`, `p.device_mesh` and `p.placements` of each parameter. Whole parameters:"
        " `fsdp_migrate.runtime.summon_full_params`. Strategy and policy: `shard_plan(model)`. Flat parameters that were moved to the host and back:"
        " `with offloaded(model, optimizer):` of `fsdp_migrate.runtime`. Of another package see whether its release takes FSDP2's models.",
    ),
    "FM318": (
        "FSDP1's parameters were flat once the model was wrapped, of one dimension, with `use_orig_params` true or false: `p.ndim >= 2` was never true. (Only under"
        " `NO_SHARD`, or on one rank, with `use_orig_params=True` they kept their shapes.) Without `use_orig_params=True` they had names of their own as well,"
        " which end in `_flat_param`: a test such as `'bias' in name` was never true, and no name began with that of a module."
        " And a part that is no unit, `model.head`, had no parameters: freezing it did nothing, its group was empty, and an optimizer of it alone was an error."
        " FSDP2's have the model's shapes and names, and the test does what it says (a size, `p.numel() > 1000`, is that of the whole, and no more of a rank's part): weight decay"
        " or an optimizer comes to other parameters than in the old run, without an error. The names of modules had a mark for each wrapper, whatever"
        " `use_orig_params` said: what a loop over `named_modules()` does to some by a whole name was not done.",
        "Decide which of the two is meant. Of modules take the lines out to go on as before. To go on exactly as before, put every parameter into the group that flat ones came to, and keep the other group, empty:"
        ' `[{"params": [], ...}, {"params": list(model.parameters()), ...}]`; then the checkpoint of the old run fits. (Functions of timm leave an empty group out: then it is one group of all.) To divide them as the test says from now on,'
        " load that checkpoint with `load_checkpoint(..., strict=False)`, and then set each group's settings (`weight_decay`) again: they are the old run's."
        " Of a part that had no parameters, take the line out to go on as before, or keep it, and tell whoever compares the two.",
    ),
    "FM319": (
        "Lightning's `FSDPStrategy` is FSDP1. Its FSDP2 is `ModelParallelStrategy`, and the module shards itself in the hook `configure_model`.",
        "Give the Trainer `ModelParallelStrategy(data_parallel_size=RANKS, tensor_parallel_size=1)`, and the module `def configure_model(self)` that calls"
        ' `prepare_fully_shard(self, {...}, mesh=self.device_mesh["data_parallel"])` with the arguments that the strategy had. The comment has both, as far as they are'
        " known. What the strategy recomputes (`activation_checkpointing_policy`, `activation_checkpointing`) is the keyword `activation_checkpointing=` of prepare_fully_shard, and its"
        " `device_mesh` the keyword `mesh=`; the others go into the arguments by their own names. For settings in a file, `fsdp-migrate config FILE` writes the strategy and prints the hook."
        " Fabric has no hook: its strategy is given `parallelize_fn`, a function that the comment has. FSDP2 replaces the parameters, so make optimizers, and the lists of parameters that they are given, after"
        " `model = fabric.setup_module(model)`. A strategy that offloads is given"
        ' `process_group_backend="cpu:gloo,cuda:nccl"` and its hook no mesh: gradients are on the CPU then, where'
        " clipping and saving need gloo, and `prepare_fully_shard` makes a mesh of the group that has it."
        " A strategy of another package (`NLPFSDPStrategy` of NeMo) stays FSDP1 until that package has one for FSDP2.",
    ),
    "FM320": (
        "Accelerate's plugin is FSDP1 unless it is told `fsdp_version=2`; some of its arguments have other names then.",
        "Write `FullyShardedDataParallelPlugin(fsdp_version=2, reshard_after_forward=True, ...)`, true for FULL_SHARD and false for SHARD_GRAD_OP, with"
        ' `state_dict_type="FULL_STATE_DICT"` where it has none, which FSDP1 took by itself, and leave'
        " `sharding_strategy`, `use_orig_params`, `sync_module_states`, `backward_prefetch` and `forward_prefetch` out.",
    ),
    "FM321": (
        "A hook of FSDP1 gets the flat gradient of a unit. FSDP2's hooks are set on units and take other arguments.",
        "Use `set_all_reduce_hook` of each unit (`for m in model.modules() if isinstance(m, FSDPModule)`), or, for low-precision reduction,"
        " `reduce_dtype` of `MixedPrecision`.",
    ),
    "FM322": (
        "FSDP1's `apply` gathered whole parameters for the function. Now the function sees `DTensor`s, and this rank holds only a part of them: initialisation"
        " by position or by norm gives other values.",
        "Initialise before sharding, or call `model.apply(fn)` in `fsdp_migrate.runtime.summon_full_params(model)`.",
    ),
    "FM323": (
        "FSDP2 keeps state about units that cannot be copied, and `copy.deepcopy` of a sharded model raises. Of its parameters it raises"
        " while they have gradients, and so does that of a part of it and of its optimizer. Pickling a sharded model, or any part of it, raises always, also"
        " in `summon_full_params`: `torch.save(model, path)`, `torch.save({'model': model}, path)`, `pickle.dump`. FSDP1's wrapper could be neither copied nor pickled; what was"
        " inside of it without units of its own, such as `model.module` or a head, could, and was whole in `summon_full_params` alone.",
        "Copy the model before sharding, and shard both. For an average of weights keep a state dict. Of parameters take `p.detach().clone()`. In place of a pickle save"
        " `fsdp_migrate.runtime.full_state_dict(model)`, which all ranks must take, and where it is read make the model first, and give it that state: `net.load_state_dict(state['model'])` before"
        " it is sharded. A line that runs only where the model is plain stays as it is: delete the comment.",
    ),
    "FM324": (
        "Around sharded modules the wrapper recomputes the forward hooks too, which gather the parameters once more in the backward.",
        "Give `prepare_fully_shard(..., activation_checkpointing=[Block])` the classes of the layers, or a function as `check_fn` was, and delete the old call: what"
        " it wrapped is wrapped now. Or let the old call stay, above the one that shards. It also runs as it stands, and gives the same values, if its `check_fn` asks"
        " `isinstance`: then delete the comment alone. One that compares `type(m)`, or its name, finds no unit behind sharding, and nothing is recomputed: a unit's class is called"
        " `FSDP` and its own name.",
    ),
    "FM325": ("It is text. Nothing runs it.", "Nothing; you may want to correct it."),
    "FM326": (
        "The comment says which case it is. torch's and timm's functions, and Accelerate's method given a part of a model, several, or one that `free_memory` made it forget: under FSDP1 each rank"
        " took the norm of its own shards, and clipped by that. Now it is the norm of the whole gradient: larger, and the same on every rank, so that"
        " clipping starts earlier; from Accelerate it is a DTensor. Accelerate in steps that only accumulate: FSDP2 shows no gradients there, and what is clipped is"
        " the sum in the last of them. Fabric's `clip_gradients(..., max_norm=...)`: the norm is the same as before, that of the whole; but where it is not finite"
        " this raises now, as `error_if_nonfinite` is true unless you say otherwise, which FSDPStrategy passed over.",
        "Fabric: give it `error_if_nonfinite=False` to go on as before, or leave it if a norm that is not finite is to stop the run; nothing else differs there. All"
        " others: the new norm is right. If the run was tuned to the old one, choose a larger `max_norm`. In steps that accumulate, clip below"
        " `if accelerator.sync_gradients:`.",
    ),
    "FM327": (
        "The Trainer makes FSDP from its arguments `fsdp` and `fsdp_config`. FSDP2 is asked for by `version: 2` in `fsdp_config`, which transformers"
        " 5.0 and newer read, and 5.10 and newer with `state_dict_type`; older ones pass over it without a word.",
        'Where the settings stand in a file, `fsdp-migrate config FILE --write`. In Python, write `fsdp_config={"version": 2, "reshard_after_forward": True,'
        " ...}`: true for full_shard, false for shard_grad_op.",
    ),
    "FM328": (
        "Composer makes FSDP from its config when the Trainer starts. The callback changes that config before it is used.",
        "Add `FSDP2Migration()` of `fsdp_migrate.adapters.composer_callback` to the Trainer's `callbacks`. The config stays; "
        "but mosaicml 0.32, which the callback needs, has no argument `fsdp_config` any more: give it as "
        '`parallelism_config={"fsdp": ...}`.',
    ),
    "FM329": ("After the rewriting nothing uses the name any more.", "Nothing: the import is taken out."),
    "FM331": (
        "Every call of the partial gives it the model only, so that the partial can hold the arguments.",
        _NOTHING,
    ),
    "FM332": (
        "Inside `summon_full_params` FSDP1's model ran on whole parameters. FSDP2's forward gathers by itself, and fails if they are gathered already.",
        "Run the model outside the context. For generation, `model.unshard()` before and `model.reshard()` after it saves gathering in each forward.",
    ),
    "FM333": (
        "The code serves FSDP and `DistributedDataParallel`. For DDP the call must stay as it is, for FSDP2 it must change.",
        "Make two branches: `if isinstance(model, FSDPModule): ...` with the call for FSDP2, and the old one for DDP. For a whole state that is"
        " `get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))`, on every rank: without the options a rank"
        " would save its own shards, and below `if rank == 0` it would wait for the others. Where the comment says `by its name` and it is a plain model,"
        " delete the comment.",
    ),
    "FM334": (
        "FSDP1 showed each rank its part of flat parameters. FSDP2 shows `DTensor`: a count or a norm is that of the whole, the same on each rank. Here it is"
        " printed, logged or counted, and nothing is computed by it.",
        "Take `x.to_local()` for this rank's part, as before. For the whole take out what sums over ranks or multiplies by their number.",
    ),
    "FM335": (
        "FSDP1 put a wrapper around a model; FSDP2 has none. A check for the wrapper's class or methods is false now, so that what it guards (clipping,"
        " gathering a state) does not happen any more, without an error. An attribute that was set on the wrapper is set on the model. What unwraps step by"
        " step fails, or does not end, when it is reached, which may be at the first save.",
        "See what depends on it. Ask `isinstance(model, FSDPModule)`, let FSDP2's branch do what was done here, and take out what unwraps.",
    ),
    "FM336": (
        "FSDP1 showed plain tensors. FSDP2 shows `DTensor`, which collectives, `.numpy()`, assignments to items and operations with"
        " a plain tensor refuse. It goes on here as a `DTensor`, or the run ends in its first step, with an error.",
        "Take `x.full_tensor()`, on every rank, for the whole, or `x.to_local()` for this rank's part, and put back what is a `DTensor`.",
    ),
    "FM420": (
        "The source supports both versions. Code for FSDP1 alone must not be rewritten, or FSDP2 would run both branches. Where a source asks for a method that FSDP2's models alone have, the answer is another one now, and its branch runs.",
        "When you no longer need FSDP1, delete the branch. If a branch runs now that did not before, see what it does to memory and numbers.",
    ),
    "FM421": (
        "Sharded states of FSDP1 hold `ShardedTensor`, those of FSDP2 `DTensor`.",
        "`x.local_shards()[0].tensor` becomes `x.to_local()`, and `x.gather(...)` becomes `x.full_tensor()`.",
    ),
    "FM422": (
        "The class takes no such keyword in any version of torch. The call fails under FSDP1 as well, or it was never run. Or it is a value that no word of"
        " the argument is, such as `backward_prefetch=True`, which FSDP1 took for no prefetch, and `prepare_fully_shard` refuses.",
        "Remove it, or give the setting under the name, or by the word, that torch has for it.",
    ),
    "FM423": (
        "FSDP1 showed each rank its part of flat parameters, as plain tensors. FSDP2 shows `DTensor`: their norms and sums are those of"
        " the whole, the same on each rank, and collectives do not take them. But a number that is taken at once, `p.norm().item()`, is that of"
        " one rank's part, as before; of what is computed with it first, `p.norm() ** 2`, of several stacked, or of what `clip_grad_norm_` gives,"
        " it is that of the whole on torch 2.13, and on torch 2.7 of one rank's part. Under `no_sync` it shows no gradients at all until they are reduced.",
        "Take `x.full_tensor()` for the whole or `x.to_local()` for this rank's part, which are rows of it: FSDP1's part was another stretch, so that what one"
        " rank computes of it is another number, and the sum over the ranks the same. What FSDP ignores is plain, and has neither, and so are the root's parameters between a forward and its backward:"
        " take `p.to_local() if isinstance(p, DTensor) else p`. Take out what summed over ranks, where it summed"
        " what is of the whole now; for norms of"
        " gradients call `fsdp_migrate.runtime.clip_grad_norm_(model, float('inf'))`, which gives a plain tensor."
        " Values that are put in by `p.data = x` are copied in, `p.data.copy_(x)`. Where `p.data = p.master` gave the step float32 weights, and the forward half ones again:"
        " once the weights are loaded, and before they are sharded, set `p.data = p.data.float()` of each that is trained, and of all in one unit with it, on each rank, also where they are"
        " on the meta device (`param_init_fn` must not cast them back). Give `MixedPrecision(param_dtype=half, reduce_dtype=half, cast_root_forward_inputs=False)`, where `half` is the dtype that"
        " the weights had in the forward, and delete the copies and each cast of weights and gradients. With one backward a step the losses are FSDP1's, bit for bit at two ranks; gradients"
        " of several are added up in float32, where they were added up in half. What is saved is float32 now: cast it where the file is to hold half.",
    ),
    "FM424": (
        "`patch` and `monkeypatch` fail for a name that the module does not have. The rewritten module imports `prepare_fully_shard`.",
        "Patch the name that the rewritten module has.",
    ),
    "FM425": (
        "Parameters are numbered in it, and each rank has its own shards. If one rank saves it, or all ranks under one name, the rest is lost;"
        " it was so under FSDP1 too.",
        "Save `fsdp_migrate.runtime.full_optimizer_state_dict(model, optimizer)` or `sharded_state_dict(model, optimizer)`, and load"
        " with `optim_state_dict_to_load` or `load_checkpoint`. The first gives rank 0 the state and the others `{}`: where each rank saves a file, ask"
        " with `rank0_only=False`. `load_checkpoint` joins FSDP1's files of ranks that hold the model too, or beside which a file holds it. From an optimizer's files alone, let the old"
        " script load them once, and save what `full_optimizer_state_dict` gives there.",
    ),
    "FM445": (
        "FSDP1 gave an optimizer plain tensors: one rank's flat part of each unit. FSDP2 gives it `DTensor`s of the parameters' own shapes."
        " What is done to each element goes on as it is. A norm or a sum is that of the whole, a view or a matrix product gathers or fails,"
        " collectives and kernels do not take DTensors, and neither does arithmetic with a plain tensor beside one.",
        "Go through the class's `step`. Take `p.to_local()` and `p.grad.to_local()` where one rank's part is meant, `.full_tensor()` where the"
        " whole is, and take out what summed over ranks. A ratio of norms (LAMB, LARS, clipping by unit) of one rank's part was of another stretch under FSDP1: take the whole. Optimizers with kernels of their own (bitsandbytes, apex) need another one.",
    ),
    "FM446": (
        "FSDP2 puts new parameters into the model. A list of the old ones, or an object that holds some, is not the model's any more: nothing"
        " is trained, clipped or averaged by it, without an error: the comment stops a run. Under FSDP1 with `use_orig_params=True` the old ones stayed. Accelerate and Hugging Face's Trainer put"
        " the new ones into the optimizer that is prepared with the model, and into nothing else; Fabric and Lightning into none: clipping by an old list does"
        " nothing, without an error.",
        "Make the list, or the object, after `prepare_fully_shard`, or after the framework has sharded. If it holds optimizers, give these as `optimizers=`: they"
        " are pointed at the new ones. Then delete the comment.",
    ),
    "FM453": (
        "The optimizer was made before FSDP1 put the parameters into flat ones, which it did not hold: without `use_orig_params=True` it trained nothing of"
        " the model, without an error. `prepare_fully_shard(..., optimizers=)` points it at the sharded parameters, and it trains.",
        "Try its settings again, and do not go on from the old run's checkpoint as if it were trained: it has the first weights. Then delete the comment.",
    ),
    "FM447": (
        "FSDP1's parameters were plain tensors, FSDP2's are `DTensor`s. torch's optimizers work on whole groups at a time on GPUs (`foreach`), and those"
        ' kernels refuse a group that holds both kinds: "got mixed torch.Tensor and DTensor". `prepare_fully_shard` switches them off before the step of such an'
        " optimizer, whenever that was made.",
        "For an optimizer nothing; a group for each kind, `AdamW([{'params': head.parameters()}, {'params': model.parameters()}])`, is faster. For"
        " `torch._foreach_*` make a list of each kind.",
    ),
    "FM449": (
        "For FSDP1 Accelerate once advised to prepare the model alone, before the optimizer was made. Its FSDP2 puts the sharded parameters into the"
        ' optimizer, and stops at the start: "a model and optimizer must be passed together". It takes one model in a call: "Only one model is supported".',
        "Make the optimizer of the model as it is, write `model, optimizer = accelerator.prepare(model, optimizer)`, and delete the comment if there is one. It is one model in a call:"
        " where one optimizer holds the parameters of several models, make one optimizer for each and step them all, or make the models parts of one module whose"
        " `forward` runs them, and prepare that. Each has to have the classes that `fsdp_transformer_layer_cls_to_wrap` names. A model that"
        " is not trained is left out, `model.to(accelerator.device)`; if it has to be sharded, or mixed precision casts it, which else changes its outputs,"
        " give `prepare` an optimizer of it that never steps. A checkpoint of FSDP1 has no folder `optimizer_1` of that one, and `load_state` stops: let"
        " the new run save once, and copy this folder into the old checkpoint. A model that is left out is not in what `save_state` writes.",
    ),
    "FM448": (
        "FSDP1's wrapper gathered parameters in its own `forward`. FSDP2 does so in hooks, which run where the module is called, and not where its"
        ' `forward` is called by name: that fails with "got mixed torch.Tensor and DTensor".',
        "Nothing, where it was rewritten. Where a comment says so, call the model itself. For another method that uses parameters itself, such as"
        ' `encode`, there is `fsdp_migrate.runtime.register_forward_methods(model, "NAME")`: under `NO_SHARD` FSDP1 needed none.',
    ),
    "FM451": (
        "After a forward that no backward followed FSDP1 kept what it had gathered: of the root, and under `SHARD_GRAD_OP` of every unit. It showed its"
        " shards, and what was written to these was not computed with: in the next forward alone if that has a backward, and of a model that only"
        " runs without gradients (a teacher, MoCo's key encoder, a target network) never. So it was with units of"
        " a trained model that only run without gradients, under `SHARD_GRAD_OP`. State dicts of FSDP1 held the old weights as well, full and"
        " sharded, and `summon_full_params` wrote them over the new ones. `NO_SHARD` was not concerned. Models of `prepare_fully_shard` gather anew.",
        "Nothing: delete the comment. Losses differ from the old run's, and are those of one process. Tell whoever compares the two. A teacher in a"
        " checkpoint of FSDP1's may be the first one: start it from what it should be.",
    ),
    "FM452": (
        "FSDP2's root keeps its weights whole from its forward to its backward, under `SHARD_GRAD_OP` and `NO_SHARD` every unit does, and `parameters()`"
        " gives these. What is written into them is thrown away with them; what is assigned to their `.data` may be computed with, and is never saved."
        " FSDP1 showed its shards there under `FULL_SHARD`, and whole weights that stay under `NO_SHARD`: it kept what was written in place.",
        "Write where the model is sharded: above the forward, or below the backward. In a module whose `forward` averages weights, take that call out of"
        " it, and make it from the loop before `model(...)`; write in place, `p.data.mul_(m).add_(q.data, alpha=1 - m)`. Then delete the comment.",
    ),
    "FM450": (
        "A file that a sharded model may come to saves, loads, clips or copies one, and where that model is made could not be followed: a registry or"
        " a config picks it, or an object that is not seen holds it. `scan` and `rewrite` name the place, and change nothing there.",
        "Find out which model it is. If it is the sharded one, do what the line says; if it is not, nothing.",
    ),
    "FM454": (
        "The sharded model, its parameters or its gradients go into a function of another package, whose code `scan` does not read, or into one of"
        " torch's of which nothing is known here for `DTensor`s. FSDP1 gave it plain tensors with one rank's part. `scan` and `rewrite` name the"
        " place, and change nothing there.",
        "Look into that function. If it only calls the model, nothing is to be done. If it reads, copies, saves or changes parameters, see that it takes"
        " `DTensor`s: a norm or sum of one is of the whole, and a plain tensor beside one raises. `fsdp-migrate compare` runs your command before and"
        " after, and names what differs.",
    ),
    "FM426": (
        "Under `SHARDED_STATE_DICT` each rank saved its shards by `torch.save`. FSDP1's are `ShardedTensor`s, FSDP2's `DTensor`s. The rewritten code"
        " reads what it has saved itself, at the same number of ranks.",
        "Load FSDP1's files with `fsdp_migrate.load_checkpoint(FOLDER, model, optimizer)`, at any number of ranks, or convert the folder once and read"
        " it with `dcp.load`. For new checkpoints `torch.distributed.checkpoint.save` is better: it can be loaded at another number of ranks.",
    ),
    "FM427": (
        "The values that the plugin has in this source are known, so they were converted as those of a config of Accelerate are.",
        "Do what comments above it say, if there are any. Accelerate 1.6 or newer runs it.",
    ),
    "FM428": (
        "The values of `fsdp` and `fsdp_config` in this source are known, so they were converted as those of a config are.",
        "Do what comments above it say, if there are any. Transformers 5.0 or newer runs it.",
    ),
    "FM429": (
        "The values of the strategy in this source are known, and so is the module. `ModelParallelStrategy` shards nothing itself: `configure_model`, which"
        " was added to the module, does, with the arguments that the strategy had.",
        "Do what comments above it say, if there are any. If the number of devices is changed, change `data_parallel_size` too.",
    ),
}
