"""What there is to say about the entries of a source, by their names and kinds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.flatten import entries_of, text_of_key
from fsdp_migrate.checkpoint_convert.formats.torch_values import describe_type
from fsdp_migrate.checkpoint_convert.manifest.classify import entry_path, is_flattened, parameter_name
from fsdp_migrate.checkpoint_convert.manifest.manifest import BytesEntry, TensorEntry
from fsdp_migrate.findings import Finding, counted, make_finding, named


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.manifest import Entry, Framework, NameList, Part


FLAT_PARAMETER: Final = re.compile(r"(^|\.)_?flat_param(_\d+)?(\.|$)")
_FSDP1S: Final = re.compile(r"(^|\.)(_fsdp_wrapped_module|_fpw_module)(\.|$)")
FLAT_PIECES: Final = (
    "named as FSDP1's model names them: each rank's pieces of its parameters, such as an average of them "
    "(EMA) that a script keeps and saves, which say neither what they hold nor where it begins"
)
FLAT_PIECES_HINT: Final = (
    "Under FSDP1, on as many ranks, load each rank's file as before and copy it into the model's parameters, "
    "`param.copy_(saved)` in `torch.no_grad()`; save the full or sharded state dict of the model then, and "
    "convert that. Or begin the average anew, as a copy of the weights."
)
# torch.nn.modules.batchnorm._NormBase: what it counts in each forward.
_BY_RANK: Final = (".running_mean", ".running_var")
# state.<parameter>.<field>
_STATE_DEPTH: Final = 2
NO_TENSORS: Final = "FM228"
"""The code of what holds no weights at all."""


def is_fsdp1s(key: str) -> bool:
    """Tell whether a name is one as FSDP1's model shows it: with its wrappers, or of a flat parameter.

    Example:
        >>> is_fsdp1s("ema._fsdp_wrapped_module.up.weight"), is_fsdp1s("_flat_param"), is_fsdp1s("up.weight")
        (True, True, False)
    """
    return bool(_FSDP1S.search(key) or FLAT_PARAMETER.search(key))


def overwritten_findings(
    entries: Mapping[str, Entry], parts: Sequence[Part], name_lists: Sequence[NameList]
) -> Iterator[Finding]:
    """Say what ranks overwrote of each other: a distributed checkpoint keeps one of several equal keys."""
    flat = [key for key in entries if FLAT_PARAMETER.search(key)]
    if flat:
        yield make_finding(
            "FM223",
            flat[0],
            f"{counted(len(flat), 'flat parameter')}, as LOCAL_STATE_DICT saves them: their names, "
            "shapes and padding are not in the checkpoint, and plain slices of different ranks overwrote "
            "each other.",
            "Load it with the FSDP1 model that saved it, and save that with SHARDED_STATE_DICT.",
        )
    yield from _buffer_findings(parts)
    models = {
        name
        for part in parts
        if part.kind == "model"
        for key in part.keys
        if (name := parameter_name(part, entry_path(entries[key])))
    }
    lists = {names.key: names for names in name_lists}
    for part in parts:
        if part.kind == "optimizer" and _is_numbered(part, entries, models, lists):
            yield make_finding(
                "FM222",
                part.name,
                "its state is kept by parameter number, as `optimizer.state_dict()` gives it. Every rank's "
                "own piece then has the same key, and torch.distributed.checkpoint keeps one of them: the "
                "others are lost.",
                "Save it with FSDP.optim_state_dict or "
                "torch.distributed.checkpoint.state_dict.get_state_dict, or convert with "
                "`weights_only` (--weights-only).",
            )


def _buffer_findings(parts: Sequence[Part]) -> Iterator[Finding]:
    """Say of the statistics of BatchNorm that FSDP1 kept them by rank, and torch saves those of one."""
    for part in parts:
        keys = [key for key in part.keys if part.kind == "model" and key.endswith(_BY_RANK)]
        if keys:
            yield make_finding(
                "FM289",
                keys[0],
                f"{len(keys)} of them. FSDP1 does not average them over ranks, and "
                "torch.distributed.checkpoint keeps one of several equal names.",
                "A resumed FSDP1 run would have started from the same: an evaluation differs from that of a "
                "run that was not stopped, under FSDP1 too. Use SyncBatchNorm where ranks should agree.",
            )


def _is_numbered(
    part: Part, entries: Mapping[str, Entry], models: set[str], lists: Mapping[str, NameList]
) -> bool:
    """Tell whether an optimizer has numbers where its parameters' names belong.

    The layers of an ``nn.Sequential`` are called by numbers too, so names that the model has are none.
    """
    states = {
        name
        for key in part.keys
        if isinstance(entry := entries[key], TensorEntry)
        and (name := parameter_name(part, entry_path(entry)))
    }
    listed = {n for key in part.keys if key in lists for n in lists[key].names or ()}
    names = states or listed
    return bool(names) and all(name.isdigit() for name in names) and not names <= models


def form_findings(entries: Mapping[str, Entry], parts: Sequence[Part]) -> Iterator[Finding]:
    """Say in which forms of torch optimizers were saved."""
    for part in parts:
        if part.kind != "optimizer":
            continue
        paths = [entry_path(entries[key]) for key in part.keys]
        if any(path[len(part.prefix) :] == ("param_groups",) for path in paths):
            yield make_finding("FM215", part.name, "saved by torch 2.3 or earlier.")
        if any(is_flattened(part, path) for path in paths):
            yield make_finding(
                "FM216",
                part.name,
                "saved with `flatten_optimizer_state_dict=True`.",
                "Load it with the same option.",
            )


def no_tensor_findings(entries: Mapping[str, Entry]) -> Iterator[Finding]:
    """Say that there are no weights at all."""
    if not any(isinstance(entry, TensorEntry) for entry in entries.values()):
        yield make_finding(
            NO_TENSORS,
            "the checkpoint",
            "not one tensor is in it.",
            "Take another one of the same run, and look at how this one was saved.",
        )


def empty_optimizer_findings(
    entries: Mapping[str, Entry], parts: Sequence[Part], name_lists: Sequence[NameList]
) -> Iterator[Finding]:
    """Say of an optimizer that keeps moments that there are none: it goes on from the start."""
    fields = {names.key: {field for group in names.groups for field in group.fields} for names in name_lists}
    for part in parts:
        if part.kind != "optimizer":
            continue
        below = {key: entry_path(entries[key])[len(part.prefix) :] for key in part.keys}
        has_state = any(str(path[0]).partition(".")[0] == "state" for path in below.values() if path)
        # Of Adam and its kin; plain SGD keeps nothing, and has no such setting.
        has_betas = any(
            "betas" in fields.get(key, ()) or "betas" in {str(step).rpartition(".")[2] for step in path}
            for key, path in below.items()
        )
        if has_betas and not has_state:
            yield make_finding(
                "FM219",
                part.name,
                "its settings have `betas`, and no parameter has moments: saved before a step, or after a "
                "resume that loaded none.",
            )


def group_findings(
    entries: Mapping[str, Entry],
    parts: Sequence[Part],
    name_lists: Sequence[NameList],
    framework: Framework,
) -> Iterator[Finding]:
    """Say of an optimizer's groups what the new run may hold otherwise: whom they name, and who is in which.

    A script's own loop may hold frozen parameters in its groups for good. The HF Trainer puts in none that is
    frozen when its optimizer is made, and what Accelerate loads stops at those that are not frozen any more.
    """
    lists = {found.key: found.names for found in name_lists}
    shapes = {
        parameter_name(part, entry_path(entry)): entry.shape
        for part in parts
        for key in part.keys
        if part.kind == "model" and isinstance(entry := entries[key], TensorEntry)
    }
    for part in parts:
        groups = [names for key in part.keys if (names := lists.get(key)) is not None]
        if part.kind != "optimizer" or not any(groups):
            continue
        own = (entry_path(entries[key])[len(part.prefix) :] for key in part.keys)
        held = {str(path[1]) for path in own if len(path) > _STATE_DEPTH and path[0] == "state"}
        bare = [name for names in groups for name in names if name not in held]
        if held and bare and framework == "accelerate" and not any(".lora_" in name for name in held):
            yield make_finding(
                "FM226",
                part.name,
                f"{counted(len(bare), 'parameter')} in its groups without state: {named(bare)}. The HF "
                "Trainer and `Accelerator.load_state` stop under FSDP2 at those that are not frozen when it "
                "is loaded.",
                "Freeze them before it is loaded, as they were when it was saved: the HF Trainer loads "
                "before `on_train_begin`. Or load it with `load_checkpoint`.",
            )
        # Of one that was chosen by `ndim`, or by name, a flat parameter showed neither.
        mixed = [names for names in groups if len({len(shapes.get(name, ())) > 1 for name in names}) > 1]
        if len(groups) > 1 and [names for names in groups if names] == mixed and len(mixed) == 1:
            yield make_finding(
                "FM227",
                part.name,
                f"one group, of {len(groups)}, has {counted(len(mixed[0]), 'parameter')}, weights, biases "
                "and norms, and no other has any, as where FSDP1's parameters were flat. In a new run that "
                "divides them anew, one group gets the settings of this one, and the others keep those of "
                "the start.",
                "Give the new run one group of all parameters, or set each group's settings after the load.",
            )


def key_findings(entries: Mapping[str, Entry]) -> Iterator[Finding]:
    """Refuse mappings that were not walked: torch would look for their keys under names that nobody knows."""
    for entry in entries.values():
        inner = entries_of(entry.inline.value) if isinstance(entry, BytesEntry) and entry.inline else None
        kinds = sorted({describe_type(key) for key, _ in inner or () if text_of_key(key) is None})
        if kinds:
            yield make_finding(
                "FM287",
                entry.key,
                f"it has keys of the type {named(kinds)}.",
                "Save it with text for keys, or leave it out with `weights_only` (--weights-only).",
            )
