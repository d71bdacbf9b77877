"""FM20x to FM24x: what a checkpoint holds, and what a conversion does with it."""

from __future__ import annotations


_NOTHING = "Nothing."
_ASKED = "Nothing: it was asked for."

EXPLANATIONS = {
    "FM201": (
        "Its tensors have names of their own and any division, which is all that `torch.distributed.checkpoint` needs to load into FSDP2.",
        "Load it: `dcp.load` into `get_state_dict(...)`, or the framework's own resume. There is nothing to convert.",
    ),
    "FM202": (
        "`torch.compile`, activation checkpointing, DDP and FSDP1 put prefixes such as `_orig_mod.` into names. The model's own names are those without.",
        "Nothing. Build the model without the wrapper when you load, or use torch's state dict functions, which know these prefixes.",
    ),
    "FM203": (
        "Every name of the part begins with `module.`, which DDP puts there. It could also be the name of a submodule of yours; the file does not say which.",
        "If your model has an attribute `module` of its own, load into a wrapper that has it, or give the names back with `--rename '^=module.'`.",
    ),
    "FM204": (
        "`--world-size` was given. Other divisions load too; this one saves reading parts of several files.",
        _ASKED,
    ),
    "FM205": ("`--dtype` or `--optimizer-dtype` was given. Only floating-point values are cast.", _ASKED),
    "FM206": (
        "float16 ends at 65,504. Values beyond it became infinite, and a model that holds one computes NaN.",
        "Cast to bf16, which has the range of float32, or keep the dtype.",
    ),
    "FM207": ("`--weights-only`, or the target, leaves out what is no model.", _ASKED),
    "FM208": (
        "torch 2.15 writes one field more for each tensor than torch up to 2.14 can read. The output has the older form, which all versions read.",
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
        "The target's folder has its own files, or a file, such as a pickle, could run code when it is loaded.",
        "Copy what you need from the source yourself.",
    ),
    "FM213": (
        "Each framework looks for the state under names of its own, such as `state.model` or `app.model`.",
        "Nothing. Load the output with the framework that was named with `--to`.",
    ),
    "FM214": (
        "Only the framework that wrote the checkpoint looks for the entry, and nothing is dropped silently.",
        "Nothing, if the new run can do without it. Otherwise read the entry with `dcp.load` under the name that is shown.",
    ),
    "FM215": (
        "torch before 2.4 stored the list of parameter groups as one value. Newer versions store each field, and read both.",
        _NOTHING,
    ),
    "FM216": (
        "It was saved with `StateDictOptions(flatten_optimizer_state_dict=True)`: each parameter has its settings under its own name.",
        "Load it with `StateDictOptions(flatten_optimizer_state_dict=True)` too; without it the keys do not match.",
    ),
    "FM217": (
        "A fault of torch's: gathering a full optimizer state on CPU with `offload_to_cpu=True` put both moments of Adam into the same memory, so that"
        " `exp_avg` is a copy of `exp_avg_sq`. The first moment is lost. Training from it raises no error, but goes wrong at the first step."
        " A checkpoint that was made of such a file, with `dcp.save` for example, has the same fault.",
        "Save the optimizer again from the run, with `offload_to_cpu=False` or `SHARDED_STATE_DICT`. If there is no run any more, convert with"
        " `--without-optimizer` and warm up again. `--keep-corrupt-optimizer` copies it as it is.",
    ),
    "FM218": (
        "Hard links need one file system that has them. The output lies on another one, or on one without links.",
        "Nothing. It took the time and the space of a copy.",
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
        "LOCAL_STATE_DICT saves flat parameters without names and shapes, and under `torch.distributed.checkpoint` ranks overwrite each other.",
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
        "The order of the parameters gives each number its name; shapes and counts agree.",
        _NOTHING,
    ),
    "FM234": (
        "Several parameters have the same shape, or counts do not agree, so that more than one order would fit. A guess could swap the state of two layers.",
        "Give `--model PKG.MOD:FACTORY`, which makes the model that was saved (and its optimizer, if it returns both). Or convert with `--without-optimizer`.",
    ),
    "FM235": (
        "Every rank wrote its own piece into a file of its own. The pieces say where they belong.",
        _NOTHING,
    ),
    "FM236": (
        "Each rank has its own values of what FSDP1 does not shard, such as the running statistics of BatchNorm. One value has to be chosen: that of the lowest rank.",
        "Nothing, if the ranks should have had equal values. Otherwise read the files of the ranks yourself.",
    ),
    "FM237": (
        "Values such as random state belong to one rank. All are kept, under their rank.",
        "Read them back by rank, if the new run is to have them.",
    ),
    "FM238": (
        "A flat parameter is one vector of all parameters of a unit. Where each parameter is in it follows from the model and from FSDP1's arguments.",
        "Give `--model PKG.MOD:FACTORY` and `--config FILE` with the arguments of the `FullyShardedDataParallel` that saved it, and name the files of all ranks.",
    ),
    "FM239": (
        "The optimizer kept its state for flat parameters, by number.",
        "Give `--model` and `--config` as for FM238, or convert with `--without-optimizer`.",
    ),
    "FM240": (
        "The given model and arguments say where parameters are in the flat ones. Every stored size was compared with them.",
        "Nothing. `fsdp-migrate verify` with the same options compares the outcome.",
    ),
    "FM241": (
        "Composer's archives can hold more than the state of a rank.",
        "Unpack the archive yourself if you need them.",
    ),
}
