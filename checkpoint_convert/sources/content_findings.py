"""What there is to say about the entries of a source, by their names and kinds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.manifest.classify import entry_path, is_flattened, parameter_name
from fsdp_migrate.checkpoint_convert.manifest.manifest import TensorEntry
from fsdp_migrate.findings import Finding, counted, make_finding


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.manifest import Entry, NameList, Part


FLAT_PARAMETER: Final = re.compile(r"(^|\.)_?flat_param(_\d+)?(\.|$)")
# torch.nn.modules.batchnorm._NormBase: what it counts in each forward.
_BY_RANK: Final = (".running_mean", ".running_var")


def content_findings(
    entries: Mapping[str, Entry],
    parts: Sequence[Part],
    name_lists: Sequence[NameList],
    *,
    is_distributed: bool,
) -> Iterator[Finding]:
    """Say what there is to say about the entries of a source; only distributed ones lost what is numbered."""
    flat = [key for key in entries if FLAT_PARAMETER.search(key)]
    if flat and is_distributed:
        yield make_finding(
            "FM223",
            flat[0],
            f"{counted(len(flat), 'flat parameter')}, as LOCAL_STATE_DICT saves them: their names, "
            "shapes and padding are not in the checkpoint, and plain slices of different ranks overwrote "
            "each other.",
            "Load it with the FSDP1 model that saved it, and save that with SHARDED_STATE_DICT.",
        )
    models = {
        name
        for part in parts
        if part.kind == "model"
        for key in part.keys
        if (name := parameter_name(part, entry_path(entries[key])))
    }
    if is_distributed:
        yield from _buffer_findings(entries, parts)
    lists = {names.key: names for names in name_lists}
    for part in parts:
        if part.kind == "optimizer":
            yield from _optimizer_findings(part, entries, models, lists, is_distributed=is_distributed)


def _buffer_findings(entries: Mapping[str, Entry], parts: Sequence[Part]) -> Iterator[Finding]:
    """Say of the statistics of BatchNorm that FSDP1 kept them by rank, and torch saves those of one."""
    for part in parts:
        keys = [key for key in part.keys if part.kind == "model" and key.endswith(_BY_RANK)]
        if keys:
            yield make_finding(
                "FM289",
                keys[0],
                f"{len(keys)} of them. FSDP1 does not average them over ranks, and "
                "torch.distributed.checkpoint keeps one of several equal names.",
                "A resumed FSDP1 run would have started from the same. Use SyncBatchNorm where ranks should "
                "agree.",
            )


def _optimizer_findings(
    part: Part,
    entries: Mapping[str, Entry],
    models: set[str],
    lists: Mapping[str, NameList],
    *,
    is_distributed: bool,
) -> Iterator[Finding]:
    paths = {key: entry_path(entries[key]) for key in part.keys}
    states = {
        name
        for key, path in paths.items()
        if isinstance(entries[key], TensorEntry) and (name := parameter_name(part, path))
    }
    listed = {n for key in part.keys if key in lists for n in lists[key].names or ()}
    numbers = {name for name in states or listed if name.isdigit()}
    is_numbered = bool(numbers) and numbers == (states or listed) and not numbers <= models
    if is_numbered and is_distributed:
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
    if any(path[len(part.prefix) :] == ("param_groups",) for path in paths.values()):
        yield make_finding("FM215", part.name, "saved by torch 2.3 or earlier.")
    if any(is_flattened(part, path) for path in paths.values()):
        yield make_finding(
            "FM216",
            part.name,
            "saved with `flatten_optimizer_state_dict=True`.",
            "Load it with the same option.",
        )
