"""FM34x, FM35x and FM444: configs in files."""

from __future__ import annotations


_NOTHING = "Nothing."

EXPLANATIONS = {
    "FM340": ("FSDP2 of this framework reads the key under the same name, and does the same.", _NOTHING),
    "FM341": (
        "FSDP2 of this framework has another name or another value for the same setting, such as `reshard_after_forward: true` for FULL_SHARD.",
        _NOTHING,
    ),
    "FM342": (
        "FSDP2 does it always, or does not need it. Some frameworks refuse the key, so that it is taken out.",
        _NOTHING,
    ),
    "FM343": (
        "The key asks for something that FSDP2 of this framework does not have, and it was taken out or changed. The finding says what differs.",
        "Decide whether the difference matters to your run. `--strict` refuses to write while there is any.",
    ),
    "FM344": (
        "A default of FSDP2 differs from FSDP1's, or the framework has to be told to use FSDP2 at all.",
        _NOTHING,
    ),
    "FM345": (
        "Neither this program nor, as far as it knows, the framework reads the key. It may be misspelt, or your own.",
        "Compare it with the name that the finding suggests. If it is your own, ignore the finding.",
    ),
    "FM346": (
        "The value is filled in when the config is read, from the environment, another key or a template. It cannot be checked here.",
        "Look at the source of the value: it must be one that FSDP2 knows.",
    ),
    "FM347": ("The file asks for FSDP2 already.", _NOTHING),
    "FM348": (
        "FSDP1 would not accept the value either, or would take it for something else.",
        "Correct the value; the finding names the nearest one.",
    ),
    "FM349": (
        "YAML and JSON readers take the last of two equal keys.",
        "Delete the first one, so that nobody is misled.",
    ),
    "FM350": (
        "PyTorch/XLA has an FSDP of its own, for TPUs, which `fully_shard` does not replace.",
        "Leave it as it is. torch_xla's guide says what its successor (SPMD) looks like.",
    ),
    "FM351": (
        "Another setting switches FSDP off, such as `distributed_type: DEEPSPEED`, or the framework looks elsewhere for it.",
        "Nothing, if FSDP is meant to be off.",
    ),
    "FM352": (
        "HYBRID_SHARD makes replicas of nodes. FSDP2 needs the number of replicas and the number of ranks in each, and the file does not hold them.",
        "Give `--nodes N` and `--world-size N`.",
    ),
    "FM353": (
        "NO_SHARD holds all parameters on every rank. FSDP2 of this framework always shards, over all ranks or within a replica.",
        "If the model fits on a rank, use DDP. Otherwise nothing: sharding takes less memory and more communication, and trains the same.",
    ),
    "FM354": (
        "Frameworks give FSDP2 a precision policy of their own. What is cast differs from FSDP1 in buffers, in the inputs of inner units or in the outputs. A loss that the model returns is an output: in bfloat16 it has some three digits, so that logged losses jump, in steps of 0.03 above 4. So do the losses of an evaluation, by which the best model or an early stop is chosen (`metric_for_best_model`): two may be equal that were not, and another one is kept. Where such an output meets a float32 tensor in a product (`@`, `torch.dot`), in `index_add_`, `scatter_add_` or an assignment by a mask, or becomes numpy's, torch raises. Accelerate and HF Trainer ran FSDP1's forward in autocast, and run FSDP2's without: a float32 tensor within the model that meets weights (`linear(x.float())`, a timestep's sines, a buffer that is added before) raises too, and norms, softmax and losses are not computed in float32. Where buffers matter, such as rotary frequencies, the new run is the more exact one.",
        "Write `.float()` on outputs that meet float32 tensors. For the autocast write `model.forward = accelerator.autocast()(model.forward)` above `accelerator.prepare`, or the Trainer's `train()`. Outputs, the loss too, are then cast to the lower precision all the same; for float32, as under FSDP1, write below that line `model.forward = accelerate.utils.convert_outputs_to_fp32(model.forward); plugin = accelerator.state.fsdp_plugin; plugin.mixed_precision_policy = dataclasses.replace(plugin.mixed_precision_policy, output_dtype=None)`, of the Trainer's `accelerator` too. For buffers in the lower precision, which FSDP1 cast, write `for buffer in filter(torch.is_floating_point, model.buffers()): buffer.data = buffer.data.to(torch.bfloat16)` above both. `output_dtype=torch.float32` would cast the outputs of every unit, those of layers too, and other numbers come out. Compare the first losses with the old run, and gradient norms where losses are rounded. Where bits must agree, shard in code with `prepare_fully_shard`, which casts as FSDP1 did. Under Accelerate write its cast of the outputs beside it: docs/frameworks.md has the lines.",
    ),
    "FM355": (
        "FSDP2 of this framework takes this setting in code or in the environment.",
        "Do what the finding says; put the printed code into your program.",
    ),
    "FM356": (
        "The setting stands in another file, in a script or in a command, which this run does not read. The finding says where, or that it is not in"
        " this file.",
        "Convert it where it stands: `fsdp-migrate config OTHER_FILE`, `rewrite` for a script, `config --command` for a command. Where it says nothing"
        " that FSDP2 lacks, it stays as it is.",
    ),
    "FM357": (
        "The framework's FSDP2 knows fewer words for precision than its FSDP1.",
        "Choose one of the words that the finding names.",
    ),
    "FM358": (
        "Versions of a framework read the same key in different ways, or do not read it. The finding names them.",
        "Look at the version that your run uses, which `fsdp-migrate doctor` shows. The written keys work in as many versions as possible. If it is one"
        " that does all of it, delete the comment.",
    ),
    "FM359": (
        "The file has FSDP settings that could belong to several frameworks, or to the project itself.",
        "Name the framework and the key: `fsdp-migrate config FILE --from torch --key KEY`.",
    ),
    "FM444": (
        "FSDP2's settings say less than FSDP1's: what FSDP1 was told of prefetching, of its wrapper and of rank 0's values is not in them. `plan` takes FSDP1's defaults for it;"
        " `parity` runs FSDP1 itself, and refuses such a file.",
        "Give the file as it was before: `config --write` keeps it beside the new one, as `NAME.fsdp1`.",
    ),
}
