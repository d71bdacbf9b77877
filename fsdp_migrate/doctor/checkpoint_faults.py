"""Known faults that a checkpoint shows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fsdp_migrate.checkpoint_convert.manifest.manifest import TensorEntry
from fsdp_migrate.checkpoint_convert.sources.adapter_findings import find_truncated_adapters
from fsdp_migrate.doctor.known import MOST_SEEN, Affected, KnownFault, seen_of
from fsdp_migrate.findings import listed, named


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.checkpoint_convert.manifest.manifest import Entry
    from fsdp_migrate.doctor.sight import Sight


_EXPERT = re.compile(r"^(.*\.)experts\.(\d+)\.")
_FORMS = {"ranks": "one of a file per rank"}
_ROUTER = re.compile(r"^(.*\.)(?:gate|router)\.weight$")


def _tensors(sight: Sight) -> Iterator[TensorEntry]:
    for entry in sight.manifest.entries.values() if sight.manifest is not None else ():
        if isinstance(entry, TensorEntry):
            yield entry


def _not_portable(sight: Sight) -> str:
    return "its metadata is of torch 2.15" if sight.manifest and not sight.manifest.is_portable else ""


def _missing_experts(sight: Sight) -> str:
    """Compare the experts of each layer with the rows of its router, or with each other."""
    experts: dict[str, set[int]] = {}
    rows: dict[str, int] = {}
    for entry in _tensors(sight):
        if found := _EXPERT.match(entry.key):
            experts.setdefault(found.group(1), set()).add(int(found.group(2)))
        elif found := _ROUTER.match(entry.key):
            rows[found.group(1)] = entry.shape[0]
    lacking = []
    for layer, numbers in experts.items():
        expected = rows.get(layer, max(numbers) + 1)
        if missing := sorted(set(range(expected)) - numbers):
            lost = f"{'number' if len(missing) == 1 else 'numbers'} {listed(missing, MOST_SEEN)}"
            lacking.append(f"`{layer}experts` has {len(numbers)} of {expected}, and not {lost}")
    return seen_of(lacking)


def _truncated_adapters(sight: Sight) -> str:
    found = find_truncated_adapters({entry.key: entry.shape for entry in _tensors(sight)})
    return seen_of(f"`{key}` has {what}" for key, what in found.items())


def _several_groups(sight: Sight) -> str:
    lists = sight.manifest.name_lists if sight.manifest is not None else ()
    return seen_of(
        f"`{each.key}` holds {len(each.groups)} parameter groups" for each in lists if len(each.groups) > 1
    )


def _is_in_shards(entry: Entry) -> bool:
    return isinstance(entry, TensorEntry) and any(
        each.stored.file.endswith(".distcp") for each in entry.chunks
    )


def _wants_another_form(sight: Sight) -> str:
    """Compare the config's kind of state dict with what the checkpoint is."""
    wanted = str(sight.setting("state_dict_type") or "").upper()
    manifest = sight.manifest
    # Lightning loads either form, whatever its setting says.
    if manifest is None or not wanted or "lightning" in {sight.framework, manifest.framework}:
        return ""
    # Accelerate's folder is no distributed checkpoint as a whole: it is made of several.
    is_sharded = manifest.layout == "dcp" or any(map(_is_in_shards, manifest.entries.values()))
    form = "a sharded one" if is_sharded else _FORMS.get(manifest.layout, "a whole one")
    if ("FULL" in wanted and form != "a whole one") or ("SHARDED" in wanted and not is_sharded):
        return f"the config says {wanted}, and the checkpoint is {form} ({manifest.framework})"
    return ""


def resumes_empty(sight: Sight) -> str:
    """Look for an optimizer that Accelerate saved in shards: the form that FSDP1 does not load again.

    Example:
        >>> from fsdp_migrate.doctor.sight import Sight
        >>> resumes_empty(Sight())
        ''
    """
    manifest = sight.manifest
    if manifest is None or manifest.framework != "accelerate" or str(sight.setting("version")) == "2":
        return ""
    sharded = {key for key, entry in manifest.entries.items() if _is_in_shards(entry)}
    optimizers = [
        part.name for part in manifest.parts if part.kind == "optimizer" and not sharded.isdisjoint(part.keys)
    ]
    return f"Accelerate saved {named(optimizers, MOST_SEEN)} in shards" if optimizers else ""


def _separate_experts(sight: Sight) -> str:
    found = [entry.key for entry in _tensors(sight) if _EXPERT.match(entry.key)]
    return f"experts have tensors of their own: {named(found, MOST_SEEN)}" if found else ""


CHECKPOINT_FAULTS = (
    KnownFault(
        "checkpoint-of-2.15",
        "The checkpoint was written by torch 2.15, and earlier versions cannot read its metadata.",
        "pytorch/pytorch#192248",
        "checkpoint",
        _not_portable,
        "`fsdp-migrate convert` writes metadata that torch 2.6 to 2.15 read.",
        (Affected("torch", before="2.15"),),
    ),
    KnownFault(
        "corrupt-full-optimizer",
        "FSDP1's full optimizer state with `offload_to_cpu` on a CPU device: both moments are the same "
        "tensor.",
        "measured",
        "checkpoint",
        lambda sight: sight.findings("FM217"),
        "Save it again with `FullOptimStateDictConfig(offload_to_cpu=False)`; `fsdp-migrate explain FM217`.",
        reproduced=True,
        harm="silent",
    ),
    KnownFault(
        "optimizer-by-numbers",
        "`optimizer.state_dict()` was saved as it is: every rank saved its part under the same keys, and one "
        "was kept. Moments are lost.",
        "measured",
        "checkpoint",
        lambda sight: sight.findings("FM222"),
        "Save by `get_state_dict`, or `fsdp_migrate.runtime.sharded_state_dict`.",
        harm="silent",
    ),
    KnownFault(
        "accelerate-resumes-without-moments",
        "`load_state` of Accelerate, and with it the resume of HF Trainer, loads no optimizer state under "
        "FSDP1 with `SHARDED_STATE_DICT`: it asks the new optimizer what to load, which has no state yet. "
        "The FSDP1 run that was resumed parts from the one that was not stopped at its second step.",
        "measured",
        "checkpoint",
        resumes_empty,
        "Compare the FSDP2 run with the FSDP1 run that was not stopped: under FSDP2 the state is loaded. A "
        "checkpoint that was saved after such a resume and before a step has no moments (FM219).",
        (Affected("accelerate", "1.13"),),
        reproduced=True,
        harm="silent",
        looked_up="2026-11-25",
    ),
    KnownFault(
        "missing-experts",
        "Under expert parallelism the experts of one rank only were saved.",
        "KempnerInstitute/KempnerForge#202",
        "checkpoint",
        _missing_experts,
        "Save again with the experts of all ranks. What is missing is nowhere else.",
        harm="silent",
    ),
    KnownFault(
        "truncated-adapters",
        "An adapter of PEFT was saved as rank 0's slice of it.",
        "huggingface/accelerate#4206",
        "checkpoint",
        _truncated_adapters,
        "Convert the distributed checkpoint of the same step instead; the adapter's file lacks rows.",
        harm="silent",
    ),
    KnownFault(
        "fewer-groups-than-saved",
        "A checkpoint of several parameter groups loads into an optimizer of one without an error, with the "
        "settings of the first group for all.",
        "measured",
        "checkpoint",
        _several_groups,
        "Build the optimizer with the same groups. `load_checkpoint` refuses what does not fit.",
        harm="silent",
    ),
    KnownFault(
        "state-dict-type-of-another-form",
        "`fsdp_state_dict_type` decides which files are looked for: a checkpoint of the other form is not "
        "found, or not read.",
        "huggingface/transformers#30491",
        "checkpoint",
        _wants_another_form,
        "Convert the checkpoint for the framework: `fsdp-migrate convert CKPT OUT --to accelerate "
        "--state-dict-type FORM` (`full`, `sharded`), or change the setting.",
    ),
    KnownFault(
        "fused-experts",
        "From transformers 5 on, the experts of a layer are one tensor. A checkpoint of separate ones has "
        "other names and shapes, and transformers itself brings weights into the new form, but no optimizer "
        "state.",
        "hiyouga/LlamaFactory#10414",
        "checkpoint",
        _separate_experts,
        "Convert weights and optimizer with `--map transformers-5`, or load with "
        '`load_checkpoint(..., map="transformers-5:MODEL_TYPE")`.',
        (Affected("transformers", "5.0"),),
    ),
)
"""Faults of what was saved."""
