"""FM20x to FM24x: what a checkpoint holds, and what a conversion does with it."""

from __future__ import annotations


_NOTHING = "Nothing."
_ASKED = "Nothing: it was asked for."

EXPLANATIONS = {
    "FM201": (
        "Its tensors are stored under the names of the parameters. How they are divided does not matter: `torch.distributed.checkpoint` loads any division"
        " into FSDP2.",
        "Load it: `dcp.load` into `get_state_dict(...)`, or the framework's own resume. There is nothing to convert.",
    ),
    "FM202": (
        "`torch.compile`, activation checkpointing, DDP and FSDP1 put prefixes such as `_orig_mod.` into names. The model's own names are those without.",
        "Nothing. Build the model without the wrapper when you load, or use torch's state dict functions, which know these prefixes.",
    ),
    "FM203": (
        "Every name of the part begins with `module.`, which DDP puts there. It could also be the name of a submodule of yours; the file does not say which.",
        "If your model itself has an attribute `module`, put the prefix back with `--rename '^=module.'`.",
    ),
    "FM204": (
        "`--world-size` was given, so the tensors are divided for that many ranks. Any other number of ranks can load them too; with this one each rank reads"
        " fewer files.",
        _ASKED,
    ),
    "FM205": ("`--dtype` or `--optimizer-dtype` was given. Only floating-point values are cast.", _ASKED),
    "FM206": (
        "float16 ends at 65,504. Values beyond it became infinite, and a model that holds one computes NaN.",
        "Cast to bf16, which has the range of float32, or keep the dtype.",
    ),
    "FM207": (
        "`--weights-only` or `--without-optimizer` was given, or the target holds models only.",
        _ASKED,
    ),
    "FM208": (
        "torch 2.15 writes one more field for each tensor, which torch 2.14 and earlier cannot read. The output has the older form, which all versions read.",
        _NOTHING,
    ),
    "FM209": (
        "The class is not on the list of classes that may be unpickled, and no name in the entry has to change. So its bytes are copied, and nothing in it is executed.",
        "Whoever loads the output needs the class, as before. Load it only if you trust where the checkpoint comes from.",
    ),
    "FM210": (
        "Schedulers, random state, data loaders and the like mean the same under FSDP1 and FSDP2.",
        _NOTHING,
    ),
    "FM211": (
        "Files such as a tokenizer or a README are not part of the state, and belong to the folder.",
        _NOTHING,
    ),
    "FM212": (
        "There are three reasons: the target writes a file of this name itself; the file could run code when it is loaded, as a pickle can; or it is a link"
        " to something outside of the folder. A conversion copies the others.",
        "Copy what you need from the source yourself.",
    ),
    "FM213": (
        "Each framework looks for the state under names of its own, such as `state.model` or `app.model`.",
        "Nothing. Load the output with the framework that was named with `--to`.",
    ),
    "FM214": (
        "Only the framework that wrote the checkpoint looks for this entry. It is kept all the same: nothing is dropped silently.",
        "Nothing, if the new run can do without it. Otherwise read the entry with `dcp.load` under the name that is shown.",
    ),
    "FM215": (
        "torch before 2.4 stored all parameter groups as one value. Newer versions store each setting by itself, and can read both forms.",
        _NOTHING,
    ),
    "FM216": (
        "It was saved with `StateDictOptions(flatten_optimizer_state_dict=True)`: each parameter has its settings under its own name.",
        "Load it with `StateDictOptions(flatten_optimizer_state_dict=True)` too; without it the keys do not match.",
    ),
    "FM217": (
        "A fault of torch's: gathering a full optimizer state on CPU with `offload_to_cpu=True` put all moments of a parameter into the same memory. With"
        " Adam `exp_avg` is then a copy of `exp_avg_sq`, and the first moment is lost. Training from it raises no error, but goes wrong at the first step."
        " A checkpoint that was made of such a file, with `dcp.save` for example, has the same fault.",
        "Save the optimizer again from the run, with `offload_to_cpu=False` or `SHARDED_STATE_DICT`. If there is no run any more, convert with"
        " `--without-optimizer` and warm up again. `--keep-corrupt-optimizer` copies it as it is.",
    ),
    "FM218": (
        "A hard link must lie on the same file system as the file. Here the output lies on another one, or the file system has no hard links.",
        "Nothing. It took the time and the space of a copy.",
    ),
    "FM219": (
        "Its settings tell of moments, such as Adam's, and none is there. It was saved before the first step, or after a resume that loaded none: Accelerate's"
        " `load_state` under FSDP1 with `SHARDED_STATE_DICT` does that, without an error, and so does HF Trainer. What goes on from here begins with empty moments,"
        " under FSDP1 and FSDP2 alike.",
        "Look for an earlier checkpoint that has them: `fsdp-migrate inspect` shows how many tensors an optimizer has. Without one, warm up again.",
    ),
    "FM221": (
        "Without wrappers' prefixes, or after a rename, two entries would have one name, and one of them would be lost.",
        "Save the checkpoint with one of them left out, or choose a `--rename` that keeps them apart.",
    ),
    "FM222": (
        "`optimizer.state_dict()` of an FSDP1 model knows parameters by number. Every rank wrote its own piece under the same key, and"
        " `torch.distributed.checkpoint` kept one of them. The others are not in the checkpoint.",
        "Save it again with `FSDP.optim_state_dict` or `get_state_dict`. If there is no run any more, convert with `--without-optimizer`.",
    ),
    "FM223": (
        "LOCAL_STATE_DICT saves flat parameters, without the names and shapes of the parameters in them. With `torch.distributed.checkpoint` all ranks also"
        " write under the same key, so that one rank's piece is kept and the others are lost.",
        "Load it with the FSDP1 model that saved it, and save that with `SHARDED_STATE_DICT`.",
    ),
    "FM224": (
        "A prefix must be removed from the names in the entry, so the entry must be read. It holds a class that is not on the list of classes that may be read.",
        "Save the entry as plain values, or convert with `--weights-only`.",
    ),
    "FM225": (
        "An option applies to a model or an optimizer, and nothing in the checkpoint looks like one.",
        "`fsdp-migrate inspect` shows what was recognised. Leave the option out, or name the file or folder that holds the part.",
    ),
    "FM226": (
        "An optimizer makes the state of a parameter at the first step that has a gradient for it. FSDP1 saved groups with all names, and state for those that had some. Under FSDP2"
        " Accelerate and HF Trainer load by torch's `set_optimizer_state_dict`, which stops at each parameter that requires a gradient and has no state: `Missing optimizer state for"
        " parameter`, or a KeyError in older torch. A callback that freezes in `on_train_begin` comes after the load.",
        "Freeze them before the load, as they were when it was saved: of HF Trainer override `_load_optimizer_and_scheduler`, freeze, and call `super()`. Converting does not help, and what"
        " FSDP2 saves is no different. `load_checkpoint` takes such a checkpoint: these parameters get their state at their first step.",
    ),
    "FM227": (
        "Groups that are chosen by a parameter's name or `ndim` (HF Trainer's weight decay) leave one empty under FSDP1 with `use_orig_params=False`, whose parameters were flat. The new"
        " run has parameters in both. torch fills one group with the settings of the old one, without a word: the other keeps what it has at the start, such as the lr 0 of a warmup.",
        "Give the new run one group of all parameters, as the old had: `trainer.optimizer = torch.optim.AdamW(model.parameters(), ...)` above `trainer.train()`, or override"
        " `create_optimizer` (`Trainer(optimizers=...)` is refused under FSDP). Weight decay is FSDP1's then, too. Or load it with `load_checkpoint(..., strict=False)`, and set each group's settings again.",
    ),
    "FM228": (
        "It was written, and no weight is in it. A script that asks FSDP1's model for weights by names that it does not have, such as an adapter's, saves"
        " nothing without an error; so does one that saves the state of a rank to which FSDP1 gave none.",
        "Take another checkpoint of the same run: `fsdp-migrate inspect` shows how many tensors each has. Look at how this one was saved before the next run.",
    ),
    "FM230": (
        "Unpickling an object runs code of its class. Only classes on a list are read; this one is not on it.",
        "Convert with `--weights-only`, or with `--trust-pickle`, which copies its bytes unread. Whoever loads the output executes them.",
    ),
    "FM231": (
        "Two names of the model point to the same bytes in the file: the parameters were tied when it was saved.",
        "Nothing. Tie them in the new model too; loading fills both names.",
    ),
    "FM232": (
        "The header of a safetensors file can hold any text. A distributed checkpoint has no place for it.",
        "Keep the source if the text matters to you.",
    ),
    "FM233": (
        "An optimizer numbers its parameters in the order of the model, so each number has a name. Shapes and counts agree with that order.",
        _NOTHING,
    ),
    "FM234": (
        "Several parameters have the same shape, so that more than one order fits; or the counts do not agree. A guess could swap the state of two layers.",
        "Give `--model PKG.MOD:FACTORY`, which makes the model that was saved (and its optimizer, if it returns both). Or convert with `--without-optimizer`.",
    ),
    "FM235": (
        "Every rank wrote its own piece into a file of its own. The pieces say where they belong.",
        _NOTHING,
    ),
    "FM236": (
        "FSDP1 does not shard buffers, such as the running statistics of BatchNorm, and each rank has its own values of them. Only one can be kept: that of"
        " the lowest rank.",
        "Nothing, if the ranks should have had equal values. Otherwise read the files of the ranks yourself.",
    ),
    "FM237": (
        "Values such as random state belong to one rank. All are kept, under their rank.",
        "If the new run needs them, read the values of each rank back, under its number.",
    ),
    "FM238": (
        "A flat parameter is one vector of all parameters of a unit. Where each parameter is in it follows from the model and from FSDP1's arguments.",
        "Give `--model PKG.MOD:FACTORY` and `--config FILE` with the arguments of the `FullyShardedDataParallel` that saved it, and name the files of all ranks.",
    ),
    "FM239": (
        "For the optimizer each flat parameter was one parameter, and it kept the state under its number. The files do not say which parameters are in it.",
        "Give `--model` and `--config` as for FM238, or convert with `--without-optimizer`.",
    ),
    "FM240": (
        "The model and the FSDP1 arguments that you gave say where each parameter lies in the flat ones. Every stored size was compared with them.",
        "Nothing. `fsdp-migrate verify` with the same options compares the result.",
    ),
    "FM241": (
        "Composer's archives can hold other files beside the state of a rank. They were not copied.",
        "If you need these files, unpack the archive yourself.",
    ),
}
