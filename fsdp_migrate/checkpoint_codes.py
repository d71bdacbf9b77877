"""The codes of findings on checkpoints and targets: a part of the one table, ``finding_codes``."""

from __future__ import annotations

from typing import Final

from fsdp_migrate.finding_code import FindingCode


CHECKPOINT_CODES: Final = {
    # FM2xx: checkpoints
    "FM201": FindingCode("exact", "The checkpoint loads into FSDP2 as it is."),
    "FM202": FindingCode("equivalent", "Wrappers' prefixes were taken out of names."),
    "FM203": FindingCode("changed", "A leading `module.` was taken off every name of a part."),
    "FM204": FindingCode("exact", "Tensors were divided again, as `fully_shard` divides them."),
    "FM205": FindingCode("exact", "Weights were cast, as asked."),
    "FM206": FindingCode("changed", "A cast made values infinite that were finite."),
    "FM207": FindingCode("exact", "Entries were left out, as asked."),
    "FM208": FindingCode(
        "equivalent", "Metadata that not every torch can read was written so that every one can."
    ),
    "FM209": FindingCode("exact", "An entry of an unknown class was copied byte for byte, and not read."),
    "FM210": FindingCode("exact", "Neither model nor optimizer: copied as it is."),
    "FM211": FindingCode("exact", "Other files of the folder were copied too."),
    "FM212": FindingCode("changed", "Other files of the folder do not come along."),
    "FM213": FindingCode("equivalent", "Entries were renamed to where the target looks for them."),
    "FM214": FindingCode("changed", "The target has no place for an entry; it keeps its name."),
    "FM215": FindingCode(
        "exact", "Parameter groups saved whole, as before torch 2.4: every torch reads them."
    ),
    "FM216": FindingCode(
        "exact", "A flattened optimizer: it loads with `flatten_optimizer_state_dict=True`."
    ),
    "FM217": FindingCode(
        "refused", "Moments are equal, such as `exp_avg` and `exp_avg_sq`: torch saved them corrupt."
    ),
    "FM218": FindingCode("equivalent", "Data files were copied, because they could not be linked."),
    "FM219": FindingCode("exact", "An optimizer has settings, and no state of any parameter."),
    "FM221": FindingCode("refused", "Two names become one when wrappers' prefixes come off."),
    "FM222": FindingCode(
        "refused", "Optimizer state by parameter number: torch lost parts of it when it was saved."
    ),
    "FM223": FindingCode("refused", "Flat parameters of LOCAL_STATE_DICT: names and shapes are missing."),
    "FM224": FindingCode("refused", "Names inside an entry must change, and it cannot be read safely."),
    "FM225": FindingCode("refused", "An option needs a model or an optimizer, and none was recognised."),
    "FM226": FindingCode(
        "changed", "Parameters in groups of an optimizer have no state, as if frozen until then."
    ),
    "FM227": FindingCode("changed", "One group of an optimizer holds what the new run divides into several."),
    "FM228": FindingCode("changed", "Not one tensor is in it: no run goes on from it."),
    "FM230": FindingCode("refused", "An entry holds objects of classes that are not allowed to be read."),
    "FM231": FindingCode("exact", "Entries of a model share their bytes: tied weights."),
    "FM232": FindingCode("changed", "Text in the header of a safetensors file was left behind."),
    "FM233": FindingCode(
        "equivalent", "Optimizer state by parameter number was put under the parameters' names."
    ),
    "FM234": FindingCode(
        "refused", "Optimizer state by parameter number, and the names of the numbers are not certain."
    ),
    "FM235": FindingCode("equivalent", "Tensors were put together from what each rank saved for itself."),
    "FM236": FindingCode(
        "changed",
        "Tensors that are whole on every rank, such as buffers, are not the same on all of them.",
    ),
    "FM237": FindingCode("equivalent", "Values that differ by rank are all kept, by their rank."),
    "FM238": FindingCode(
        "refused", "Flat parameters: they can only be split with the model and its FSDP1 arguments."
    ),
    "FM239": FindingCode(
        "refused", "Optimizer state of flat parameters, which needs the model and its FSDP1 arguments."
    ),
    "FM240": FindingCode("equivalent", "Flat parameters were split, by the FSDP1 arguments."),
    "FM241": FindingCode("changed", "Other files in the archive of a checkpoint were left behind."),
    # FM250 to FM268: targets
    "FM250": FindingCode(
        "equivalent", "Entries are in a file beside the data, where the target looks for them."
    ),
    "FM251": FindingCode("refused", "The target loads one model or one optimizer, and there are several."),
    "FM252": FindingCode(
        "refused", "Parameter groups cannot be brought into the form that the target loads."
    ),
    "FM253": FindingCode(
        "equivalent", "The optimizer was flattened: each parameter has the settings of its group."
    ),
    "FM254": FindingCode("refused", "Composer needs the class of the optimizer, and the source has none."),
    "FM255": FindingCode(
        "changed", "Entries that only Composer writes are missing; tell Composer not to load them."
    ),
    "FM256": FindingCode("changed", "Lightning's `meta.pt` was made from what another framework saved."),
    "FM257": FindingCode(
        "changed", "Left out: files of safetensors hold the tensors of a model, and nothing else."
    ),
    "FM258": FindingCode("refused", "The model that was given has other names or shapes."),
    "FM259": FindingCode("changed", "The model that was given has no place for some tensors."),
    "FM260": FindingCode("changed", "The model that was given has another dtype: loading casts."),
    "FM261": FindingCode("refused", "The optimizer that was given has other parameter groups."),
    "FM262": FindingCode("refused", "The model that was given trains other parameters."),
    "FM263": FindingCode("exact", "Names of parameters were changed, as asked."),
    "FM264": FindingCode("equivalent", "A further name of a tied parameter was left out of safetensors."),
    "FM265": FindingCode("exact", "The work was divided over the ranks that torchrun started."),
    "FM266": FindingCode(
        "changed", "`config.json` is of a model with other names: `from_pretrained` fills in random values."
    ),
    "FM267": FindingCode("changed", "`config.json` names another dtype than the weights have."),
    "FM268": FindingCode("exact", "Names were not compared with those of the model of `config.json`."),
    "FM269": FindingCode("changed", "`config.json` is of a model of other sizes: `from_pretrained` raises."),
    "FM270": FindingCode("exact", "Every stored item was read, and is whole."),
    "FM271": FindingCode("exact", "Data that has no checksums: no check can find a bit that flipped in it."),
    "FM272": FindingCode("exact", "Tensors of a model hold the same bytes, as tied weights do."),
    "FM273": FindingCode(
        "changed",
        "A tie that FSDP1 broke in training, or that a checkpoint lacks: each name has its own values.",
    ),
    "FM274": FindingCode(
        "equivalent", "Empty mappings were left out, as torch.distributed.checkpoint leaves them out."
    ),
    "FM275": FindingCode(
        "changed", "Keys that are numbers became text, as torch.distributed.checkpoint makes them."
    ),
    "FM276": FindingCode(
        "exact",
        "`model.` came off every name: the model is the attribute of Composer's HuggingFaceModel.",
    ),
    "FM277": FindingCode(
        "changed", "Objects of a framework's class were written as the plain values in them."
    ),
    "FM278": FindingCode("changed", "The weights are those of an adapter, under the names of PEFT's files."),
    "FM279": FindingCode(
        "equivalent", "Settings were added that torch from 2.7 looks for in the groups of Adam and AdamW."
    ),
    "FM280": FindingCode(
        "changed", "What stands beside model and optimizer holds names of FSDP1's wrappers."
    ),
    "FM281": FindingCode("refused", "The `meta.pt` beside the data is none of Lightning's Trainer."),
    "FM282": FindingCode("exact", "Only the weights were replaced: the other files in OUT are unchanged."),
    "FM283": FindingCode("exact", "Data that was not compared with a stored checksum."),
    "FM284": FindingCode("changed", "Tensors of a type that cannot be cast kept their type."),
    "FM285": FindingCode("exact", "A file beside the data asks for unknown classes; it was copied unread."),
    "FM286": FindingCode("changed", "Mappings of other classes, such as `OrderedDict`, became plain dicts."),
    "FM287": FindingCode("refused", "A mapping has keys of a class for which torch's text is not known."),
    "FM288": FindingCode(
        "changed", "A config tells Accelerate to load another form than this output has: full or sharded."
    ),
    "FM289": FindingCode("changed", "Every rank had its own buffers: the checkpoint has those of one rank."),
    "FM290": FindingCode("refused", "Safetensors have no type for some tensors."),
    "FM291": FindingCode("changed", "An optimizer state that torch saved corrupt was copied, as asked."),
    "FM292": FindingCode(
        "changed", "Files that `from_pretrained` or `AutoTokenizer` read beside the weights are absent."
    ),
    "FM293": FindingCode(
        "exact", "The output has Accelerate's full form, which it opens under FULL_STATE_DICT."
    ),
    "FM294": FindingCode(
        "exact", "Parameters and their optimizer state were put together, divided or renamed, as asked."
    ),
    "FM295": FindingCode("refused", "Parameters that a map puts together do not fit together."),
    "FM296": FindingCode("refused", "Optimizer state cannot follow its parameters through a map."),
    "FM297": FindingCode("refused", "A rule of a map does more than move elements."),
    "FM298": FindingCode("refused", "An adapter (LoRA, DoRA) was saved as one rank's slice of it."),
    "FM299": FindingCode(
        "refused", "8-bit optimizer state of bitsandbytes, which fits one rank's piece only."
    ),
}
"""The rows, by code."""
