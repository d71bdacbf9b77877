"""FM25x to FM29x: what frameworks look for, and what checks find."""

from __future__ import annotations


_NOTHING = "Nothing."

EXPLANATIONS = {
    "FM250": (
        "The framework reads some values, such as schedulers, from a file beside the distributed checkpoint.",
        _NOTHING,
    ),
    "FM251": (
        "The target has one place for a model and one for an optimizer. It is not known which of several you want.",
        "Convert to `torch`, which keeps all of them under their names, or name the folder or file of the one that you want.",
    ),
    "FM252": (
        "The target needs parameter groups. The source has none, because its optimizer was flattened, or they hold a class that may not be read.",
        "Convert to `torch` or `torchtitan`, or with `--without-optimizer`.",
    ),
    "FM253": (
        "torchtitan flattens optimizers: each parameter carries the settings of its group.",
        "Put what the source does not have, such as `dataloader` and `train_state`, into torchtitan's `checkpoint.exclude_from_loading`.",
    ),
    "FM254": (
        "Composer looks for an optimizer's state under the name of its class. Other frameworks do not save that name.",
        "Give `--optimizer-class NAME`, or leave the optimizer out with `--without-optimizer`.",
    ),
    "FM255": (
        "Timestamp, schedulers, callbacks and random state exist in Composer's checkpoints only. This tool does not invent them.",
        "Tell the Trainer not to look for them, with the `load_ignore_keys` that the finding shows.",
    ),
    "FM256": (
        "Lightning reads the progress of a run from `meta.pt`. The file gets what the source holds of epochs, steps and schedulers; the progress of Lightning's loops"
        " is not known.",
        "Set `max_steps` or `max_epochs` to what is left to train, and check the learning rate of the first steps.",
    ),
    "FM257": (
        "A file of safetensors holds tensors of a model. Optimizer, schedulers and settings have no place there.",
        "Nothing, if you publish or evaluate the model. To continue training, convert with another `--to` as well.",
    ),
    "FM258": (
        "The model of `--model` has parameters that the checkpoint does not have, or has them in other shapes. Loading would fail, or leave initial values.",
        "Give the model that was saved. If only names differ, change them with `--rename REGEX=NAME`.",
    ),
    "FM259": (
        "The checkpoint holds tensors that the model of `--model` does not have. Loading ignores them.",
        "Make sure that it is the right model, and that no part of it was switched off.",
    ),
    "FM260": (
        "torch casts the tensors when it loads them, without a warning. The new run then rounds otherwise than the old one.",
        "Cast with `--dtype`, or build the model in the dtype of the checkpoint.",
    ),
    "FM261": (
        "Settings such as weight decay belong to groups. If groups differ, the wrong parameters get them.",
        "Build the groups as the old run did. If it chose them by `p.ndim`: under FSDP1 with `use_orig_params=False` all parameters were flat, so that"
        " `p.ndim` was 1.",
    ),
    "FM262": (
        "In this model other parameters are frozen or tied than in the old run. The optimizer state of some would be missing, that of others would be lost.",
        "Freeze and tie the parameters as the old run did, or convert with `--without-optimizer`.",
    ),
    "FM263": ("`--rename` was given.", "Nothing: it was asked for. Give the same `--rename` to `verify`."),
    "FM264": (
        "safetensors do not allow two names for the same bytes, so one name was written. The model's own code ties the parameters again when it is loaded.",
        "Nothing, if the model ties its own weights, as models of transformers do.",
    ),
    "FM265": (
        "The command ran under torchrun. The output is the same as if one process had written it.",
        _NOTHING,
    ),
    "FM266": (
        "`--to hf` writes the names that the checkpoint has. Where the trained module held the model as an attribute (`self.lm = ...`), each begins with"
        " that attribute's name. `from_pretrained` does not find them, gives the model random values, and only warns. The names that it looks for are those"
        " of the model that the installed transformers makes of `config.json`. An adapter alone is not compared.",
        "Convert again with the `--rename` that the finding names, or with the `config.json` of the model that was trained.",
    ),
    "FM267": (
        "`config.json` is copied as it is. transformers 5 loads weights in the dtype that it names, not in the one that they are stored in: values that"
        " were cast to bf16 take the memory of fp32 again, or fp32 weights are rounded.",
        "Write the dtype of the weights into `config.json` of the output, or give `dtype=` to `from_pretrained`.",
    ),
    "FM268": (
        "The names that `from_pretrained` looks for are those of the model that the installed transformers makes of `config.json`. Here it makes none:"
        " transformers is absent or refuses the config, the model's code lies beside its config, or its layers are quantized. Other names, which"
        " `from_pretrained` fills with random values, would not be seen (FM266).",
        "Where transformers is absent or of another release: `convert ... --dry-run` with the right one compares. Else load the output once, and read what"
        " `from_pretrained` warns of.",
    ),
    "FM269": (
        "The weights are written as the checkpoint has them. Where the training resized the model, as `resize_token_embeddings` does, the `config.json` that it"
        " started from has other sizes, and `from_pretrained` stops at the first weight that differs. Sizes are compared with those of the model that the installed"
        " transformers makes of `config.json`.",
        "Write the new `vocab_size` into `config.json` of the output, or convert with the `config.json` that the training saved.",
    ),
    "FM270": (
        "Each stored item agrees with its place, its size, its type and, where there is one, its checksum.",
        _NOTHING,
    ),
    "FM271": (
        "Old formats and safetensors have no checksums. Structure and sizes were checked; a flipped bit in the values cannot be seen.",
        "For the next copy, convert with `--checksums`, and keep `SHA256SUMS` with it.",
    ),
    "FM272": (
        "Two tensors of the model have the same values, as tied weights do. They may also be alike by chance, such as two layers of zeros.",
        _NOTHING,
    ),
    "FM273": (
        "Two FSDP1 units held a tied parameter, and each made a flat copy; or the model was on the meta device, where FSDP1 gave each module memory of its own."
        " This broke the tie, and each copy was trained by itself. Or the run that saved had a model without this tie. torch, and FSDP1 with it, loads both into"
        " the one parameter without a word, and the name that comes last in the state dict counts.",
        "Continue with an untied model, which is what was trained; or tie them and take one of the two values, which changes the model.",
    ),
    "FM274": (
        "`torch.distributed.checkpoint` makes a flat list of entries of a state. An empty mapping has no entries, so nothing is left of it.",
        "Nothing, unless your code looks for the empty mapping by its name.",
    ),
    "FM275": (
        "`torch.distributed.checkpoint` joins the keys of a state to dotted names. A number in such a name is text.",
        "If your code looks entries up by number, make the keys numbers again after loading.",
    ),
    "FM276": (
        "Composer's `HuggingFaceModel` keeps the model as its attribute `model`. `from_pretrained` knows the names inside it.",
        "Nothing. To decide about names yourself, give `--rename`; then no other name is changed.",
    ),
    "FM277": (
        "A framework stored its settings as an object of its own class. Its values were written as plain ones, so that the class is not needed to load them.",
        "Nothing, unless your code needs the object: build it from the values.",
    ),
    "FM278": (
        "In PEFT's files the names of tensors do not contain the adapter's name; in the model in training they do.",
        "To load into the model in training, give the `--rename` that the finding shows. PEFT itself loads the file as it is.",
    ),
    "FM279": (
        "torch from 2.7 looks for settings such as `decoupled_weight_decay` in the groups of Adam, and older versions did not save them.",
        "Nothing: they get the values that the older version used.",
    ),
    "FM280": (
        "A file beside the data, such as Lightning's `meta.pt` or a script's own, belongs to whoever wrote it: it is copied byte for byte. Callbacks and averages (EMA, SWA) in it may"
        " have parameters under the names that FSDP1's model showed (`_fsdp_wrapped_module.up.weight`), which FSDP2's model does not have. The same is so of what a script put"
        " beside the model into one file, and `fabric.load` and `torch.load` give it back as it stands.",
        "Of one file, and of what Fabric's own model named (`_forward_module`), `convert` takes the wrappers' parts out, and writes for `fabric.load` and `torch.load` a file of the same name into the folder, or its `meta.pt`. Otherwise, "
        'where your code reads the file: `{name.replace("_fsdp_wrapped_module.", ""): value for name, value in state.items()}`. A flat parameter in it is one rank\'s piece: make it anew.',
    ),
    "FM281": (
        "Lightning's Trainer and its Fabric both keep a `meta.pt` beside the data. The Trainer's holds epochs, steps, loops and callbacks; Fabric's holds what the script gave to"
        " `fabric.save`, under names of its own. The Trainer cannot start from Fabric's, and `fabric.load` finds nothing under the Trainer's names.",
        "For Fabric, or a script of your own, convert without `--to`. For the Trainer convert a copy of the folder that has no `meta.pt`.",
    ),
    "FM282": (
        "`--overwrite` of a folder with a Hugging Face model replaces its weights. `config.json`, the tokenizer and the rest are not touched.",
        _NOTHING,
    ),
    "FM283": (
        "torch.save stores a checksum with each record of a file. It can be compared only where the whole record is read. Linked files are not read, some"
        " records are read in part, and some formats have no checksums.",
        "To compare everything that has a checksum, run `fsdp-migrate inspect CKPT --deep`.",
    ),
    "FM284": (
        "A type such as float8 has scales, which are stored as other tensors. A cast of its numbers alone would give other weights.",
        "Cast these tensors in the model's own code, where their scales are known.",
    ),
    "FM285": (
        "The file is a pickle: to read it would run code of the classes that it names. So it was not read, and its bytes were copied.",
        "Open it only if you trust its author: `torch.load` of it runs code.",
    ),
    "FM286": (
        "torch.distributed.checkpoint flattens mappings, and does not keep their class, such as `OrderedDict` or `Counter`.",
        "Nothing, unless your code needs the class: build it from the mapping after loading.",
    ),
    "FM287": (
        "torch.distributed.checkpoint names an entry by the text of its keys. The text of a key of this class is decided by the class's own code, which is not run.",
        "Save with keys that are text or numbers, or leave the entry out of the state.",
    ),
    "FM288": (
        "A checkpoint of Accelerate has one of two forms: full or sharded. Accelerate opens only the form that `fsdp_state_dict_type` in its config names.",
        "Set `fsdp_state_dict_type` in the config that the run is started with, or give `--state-dict-type full` or `sharded`.",
    ),
    "FM289": (
        "Buffers such as the running statistics of BatchNorm differ by rank, and a distributed checkpoint keeps one of them. FSDP1 that goes on from it has"
        " those on every rank as well. What is computed with them, an evaluation's loss, then differs from that of a run that was not stopped, under FSDP1 and"
        " FSDP2 alike.",
        "Nothing, if the ranks should have had equal values. Compare evaluations with an FSDP1 run that went on from this checkpoint, too.",
    ),
    "FM290": (
        "The safetensors format has a fixed list of types.",
        "Give `--dtype` for weights, leave the optimizer out with `--weights-only`, or convert for another target.",
    ),
    "FM291": (
        "`--keep-corrupt-optimizer` was given: `exp_avg` is a copy of `exp_avg_sq`, as FM217 says.",
        "Do not train from this optimizer as it is. Its second moment is right; set the first to zero, or warm up again.",
    ),
    "FM292": (
        "The output holds weights. To load it, `from_pretrained` also needs `config.json`, which says what kind of model it is; `AutoTokenizer` needs the files of the tokenizer."
        " What the finding names is not in the checkpoint, so it could not be copied. Without `config.json` `from_pretrained` fails. Without the tokenizer the model loads, and `AutoTokenizer` alone fails.",
        "Convert again with `--hf-config DIR --overwrite`; DIR is the folder of the model that the training started from. Or copy these files into the output"
        " yourself: when you convert again, `--overwrite` replaces the weights there, and keeps every other file. What transformers does not read, such as"
        " `training_args.bin` or a JSON of your own, is never copied.",
    ),
    "FM293": (
        "A config beside the checkpoint asks for `FULL_STATE_DICT`, or the source has that form, or `--state-dict-type full` was given."
        " Tensors are whole in it, so `--world-size` changes nothing.",
        "Nothing. Rank 0 needs memory for all weights, and then for the optimizer: `--state-dict-type sharded` and"
        " `fsdp_state_dict_type: SHARDED_STATE_DICT` in the config need less.",
    ),
    "FM294": (
        "`--map` was given. No value changed: elements lie in other tensors than before, such as one tensor for all experts of a layer. The optimizer's state"
        " was moved in the same way.",
        "Nothing: it was asked for. Give the same `--map` to `verify`.",
    ),
    "FM295": (
        "A parameter is missing (an expert by its number, or the other half of a pair), or shapes or dtypes differ. Under expert parallelism a file of one"
        " rank lacks the experts of the others.",
        "Give the checkpoint that has all of them, and the map of its model: `--map transformers-5:MODEL_TYPE`, or a file of rules.",
    ),
    "FM296": (
        "State can follow its parameter if it has one value for each element, as the moments of Adam and AdamW and momentum have. The rows and columns of"
        " Adafactor and the scales of 8-bit states have not, and Muon works on each matrix as a whole. Parameters that become one must also have been trained"
        " alike: in one parameter group, with the same step, and each with state.",
        "Convert with `--without-optimizer`, and start with a new optimizer.",
    ),
    "FM297": (
        "For this model the table of transformers has rules that interleave or permute elements, or look at the config. This tool moves blocks of elements"
        " and does nothing else to them, so it cannot apply these rules.",
        "Write the rules that you need into a file, and give its name to `--map`. The weights alone are read by `from_pretrained` of transformers 5 as they are.",
    ),
    "FM298": (
        "FSDP2 cuts tensors along their first dimension. Code that saves what rank 0 has saves rank 0's slice of each adapter, without an error: Accelerate"
        " before 1.15 did (FULL_STATE_DICT), and so does `to_local()`. `lora_A` then has fewer rows than `lora_B` has columns, and `lora_B` fewer rows than"
        " the weight that it adapts.",
        "The other slices are not in this file. Take the distributed checkpoint of the same step, or PEFT's own file if that is whole. Save from"
        " `fsdp_migrate.runtime.full_state_dict`, as docs/prepare.md shows.",
    ),
    "FM299": (
        "8-bit optimizers of bitsandbytes scale blocks of elements. Under FSDP1 these were blocks of one rank's piece of a flat parameter. If the pieces were"
        " cut in another way, the scales would not fit.",
        "Convert the weights alone (`--weights-only`), and begin with new moments. `load_checkpoint` takes `weights_only=True`.",
    ),
}
