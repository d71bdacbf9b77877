"""Folders that frameworks write as one checkpoint: distributed ones, rank files and full files side by side.

Which name holds what follows the frameworks' own code: Accelerate's ``save_fsdp_model`` and
``save_fsdp_optimizer`` (also in the HF Trainer's ``checkpoint-N/``), OLMo, LLaMA2-Accessory, llama-cookbook,
torchtune, direct-preference-optimization, and Composer's ``checkpoint/save.py``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from fsdp_migrate.checkpoint_convert.formats.file_names import METADATA_FILE
from fsdp_migrate.checkpoint_convert.manifest.classify import entry_path, find_parts
from fsdp_migrate.checkpoint_convert.manifest.keys import Path, join_path
from fsdp_migrate.checkpoint_convert.manifest.manifest import BytesEntry, Entry, Framework
from fsdp_migrate.checkpoint_convert.sources.content_findings import overwritten_findings
from fsdp_migrate.checkpoint_convert.sources.contents import Contents, moved_entry
from fsdp_migrate.checkpoint_convert.sources.dcp import dcp_contents
from fsdp_migrate.checkpoint_convert.sources.full_state import (
    find_indexes,
    find_pieces,
    indexed_contents,
    pieces_contents,
    safetensors_contents,
    saved_file_contents,
)
from fsdp_migrate.checkpoint_convert.sources.name_lists import read_name_lists
from fsdp_migrate.checkpoint_convert.sources.per_rank import find_rank_files, rank_contents
from fsdp_migrate.errors import CheckpointFormatError, UnsupportedFeatureError
from fsdp_migrate.findings import counted, listed, make_finding


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fsdp_migrate.checkpoint_convert.manifest.options import SourceOptions
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


Role = Literal["model", "optimizer", "other"]


@dataclass(frozen=True)
class _Pattern:
    """A name that a framework gives to a component; group 1 is its number, if it has one."""

    framework: str
    role: Role
    name: re.Pattern[str]


def _patterns(*rows: tuple[str, Role, str]) -> tuple[_Pattern, ...]:
    return tuple(_Pattern(framework, role, re.compile(name)) for framework, role, name in rows)


# Folders with a `.metadata` of their own.
_FOLDERS: Final = _patterns(
    ("accelerate", "model", r"pytorch_model(?:_fsdp)?_(\d+)"),
    ("accelerate", "optimizer", r"optimizer_(\d+)"),
    # What a conversion put beside, because Accelerate has no place for it.
    ("accelerate", "other", r"other_(\d+)"),
    ("olmo", "model", r"model_and_optim"),
    ("composer-parts", "model", r"model"),
    ("composer-parts", "optimizer", r"optim"),
)
# Files of torch.save, or safetensors.
_FILES: Final = _patterns(
    ("accelerate", "model", r"pytorch_model(?:_fsdp)?(?:_(\d+))?\.bin"),
    ("accelerate", "model", r"model(?:_(\d+))?\.safetensors"),
    # PEFT under the HF Trainer: the weights of its adapter, and no others.
    ("accelerate", "model", r"adapter_model\.(?:safetensors|bin)"),
    ("accelerate", "optimizer", r"optimizer(?:_(\d+))?\.(?:bin|pt)"),
    ("olmo", "model", r"model\.pt"),
    ("olmo", "optimizer", r"optim\.pt"),
    ("olmo", "other", r"(?:train|other)\.pt"),
    ("composer-parts", "model", r"model/model\.pt"),
    ("composer-parts", "optimizer", r"optim/optim\.pt"),
    ("dpo", "model", r"policy\.pt"),
    ("torchtune", "optimizer", r"(?:recipe_state/)?recipe_state\.pt"),
    ("llama2-accessory", "model", r"consolidated\.00-of-01\.model\.pth"),
    ("llama2-accessory", "optimizer", r"consolidated\.00-of-01\.optimizer\.pth"),
    ("llama2-accessory", "other", r"consolidated\.00-of-01\.other\.pth"),
)
# LLaMA2-Accessory and Large-DiT, Meta's LLaMA, Megatron and DeepSpeed.
_TENSOR_PARALLEL: Final = re.compile(
    r"consolidated(?:_ema)?\.\d\d-of-(?P<count>\d\d)(?:\.model|\.optimizer)?\.pth"
    r"|consolidated\.(?P<last>\d\d)\.pth"
    r"|(?:.*[_\-.])?[mt]p_rank_?(?P<rank>\d+)(?:_\w*)?(?:/.*)?\.pt"
)
_TITLES: Final = {
    "accelerate": "Accelerate, also under the HF Trainer,",
    "olmo": "OLMo",
    "composer-parts": "Composer's `checkpoint.save_checkpoint_to_disk`",
    "dpo": "direct-preference-optimization",
    "torchtune": "torchtune",
    "llama2-accessory": "LLaMA2-Accessory",
    "llama-cookbook": "llama-cookbook",
}
FRAMEWORK_FOLDERS: Final = tuple(_TITLES)
# Those that are targets too; the others save what plain torch loads.
_FRAMEWORKS: Final[Mapping[str, Framework]] = {"accelerate": "accelerate", "composer-parts": "composer"}
_COOKBOOK: Final = re.compile(r"optimizer-(?P<run>.+)\.pt")


@dataclass(frozen=True)
class Component:
    """One part of a folder.

    Attributes:
        framework: Whose name it has.
        role: What it holds.
        name: The file, or the folder with a `.metadata` of its own.
        number: Which of several models or optimizers it is.
    """

    framework: str
    role: Role
    name: str
    number: int = 0

    @property
    def prefix(self) -> Path:
        """Return the path under which it stands where it names none itself."""
        if self.role == "other" and self.framework == "accelerate":
            return ()
        if self.role == "other":
            return (self.name.rpartition("/")[2].partition(".")[0],)
        return (f"{self.role}_{self.number}" if self.number else self.role,)


def is_slice(name: str) -> bool:
    """Tell whether a file has a name that ranks of tensor parallelism give to their slices.

    Example:
        >>> is_slice("consolidated.00.pth"), is_slice("model.pth")
        (True, False)
    """
    return _TENSOR_PARALLEL.fullmatch(name.rpartition("/")[2]) is not None


def refuse_tensor_parallel(names: Iterable[str], where: str) -> None:
    """Refuse what ranks of tensor parallelism saved each for itself, as LLaMA2-Accessory does.

    Raises:
        UnsupportedFeatureError: One of the files is of that kind.
    """
    for name in names:
        match = _TENSOR_PARALLEL.fullmatch(name.rpartition("/")[2])
        if match is None:
            continue
        # `-of-01` and the number 0 are what a size of 1 writes, which cuts nothing; more tells of others.
        numbers = (int(match["count"] or 0), int(match["last"] or 0) + 1, int(match["rank"] or 0) + 1)
        if max(numbers) > 1:
            count = match["count"].lstrip("0") if match["count"] else "several"
            msg = (
                f"{where!r}: `{name}` holds what one of {count} tensor-parallel ranks has of each "
                "parameter. Only the model's classes say whether that is a part of its rows, of its columns "
                "or all of it; the files do not. So they are not put together here. Save it by "
                "the framework that wrote it with a tensor-parallel size of 1 (LLaMA2-Accessory: "
                "`model_parallel_size` 1), and convert that."
            )
            raise UnsupportedFeatureError(msg, feature="tensor-parallel slices in files")


def find_components(files: Mapping[str, int]) -> list[Component]:
    """Return what a framework's folder consists of; nothing where it is no such folder.

    Example:
        >>> files = ["pytorch_model_fsdp_0/.metadata", "optimizer_0/.metadata", "scheduler.bin"]
        >>> [(c.name, c.role) for c in find_components(dict.fromkeys(files, 1))]
        [('pytorch_model_fsdp_0', 'model'), ('optimizer_0', 'optimizer')]
    """
    folders = [name.rpartition("/")[0] for name in files if name.endswith(f"/{METADATA_FILE}")]
    found = [*_matching(folders, _FOLDERS), *_matching(files, _FILES), *_cookbook(files)]
    distributed = [component for component in found if component.name in folders]
    # One more, under a name that is no framework's: the folder holds several checkpoints, and is none itself.
    if any(name not in {component.name for component in distributed} for name in folders):
        return []
    found = _without_copies(found)
    roles = {component.role for component in found}
    is_one = {"model", "optimizer"} <= roles or any(c.framework == "accelerate" for c in distributed)
    # The model is in numbered pieces, whose names are no framework's own; its optimizer's is, as torchtune's.
    is_tuned = "optimizer" in roles and bool(find_indexes(files) or _pieces(files))
    # OLMo's `model_and_optim` is both in one, and counts as the model here.
    if not is_one and not is_tuned and not (distributed and found[0].framework == "olmo"):
        return []
    order = {"model": 0, "optimizer": 1, "other": 2}
    return sorted(found, key=lambda component: (order[component.role], component.number, component.name))


def _without_copies(found: list[Component]) -> list[Component]:
    """Leave out the weights that the HF Trainer saves a second time, for use without FSDP."""
    names = [component.name for component in found if component.role == "model"]
    kept = [name for name in names if name.startswith("pytorch_model")]
    kept = [name for name in kept if name.startswith("pytorch_model_fsdp")] or kept
    kept = kept or [name for name in names if not _is_adapter(name)] or names
    # Without one of these names two files of weights are two models, as Accelerate numbers them.
    is_twice = any(name.startswith("pytorch_model_fsdp") or _is_adapter(name) for name in names)
    return [c for c in found if c.role != "model" or c.name in kept or not is_twice]


_PEFT_CONFIG = "adapter_config.json"
_PEFT_NAMES = "base_model.model."


def _is_adapter(name: str) -> bool:
    return name.startswith("adapter_model.")


def _is_of_peft(contents: Contents, files: Mapping[str, int]) -> bool:
    """Tell whether PEFT saved an adapter, and no LoRA made by hand: by its config, or its names."""
    return _PEFT_CONFIG in files or any(_PEFT_NAMES in key for key in contents.entries)


def _matching(names: Mapping[str, int] | list[str], patterns: tuple[_Pattern, ...]) -> list[Component]:
    found: list[Component] = []
    for name in names:
        for pattern in patterns:
            match = pattern.name.fullmatch(name)
            if match:
                number = int(match[1]) if match.re.groups and match[1] else 0
                found.append(Component(pattern.framework, pattern.role, name, number))
                break
    return found


def _cookbook(files: Mapping[str, int]) -> list[Component]:
    """Return llama-cookbook's files, whose names are the user's: ``optimizer-X.pt`` beside ``X.pt``.

    Raises:
        CheckpointFormatError: There are several: it saves those of all epochs into one folder.
    """
    found = [match["run"] for name in files if (match := _COOKBOOK.fullmatch(name))]
    runs = sorted(run for run in found if f"{run}.pt" in files)
    if len(runs) > 1:
        shown = listed((f"`{run}.pt` with `optimizer-{run}.pt`" for run in runs), 6)
        msg = (
            f"The folder holds {len(runs)} checkpoints: {shown}. Link the files of the one that you mean "
            "into a folder of its own and name that, or name the file of its model."
        )
        raise CheckpointFormatError(msg)
    for run in runs:
        model = Component("llama-cookbook", "model", f"{run}.pt")
        return [model, Component("llama-cookbook", "optimizer", f"optimizer-{run}.pt")]
    return []


def _pieces(files: Mapping[str, int]) -> dict[str, dict[str, int]]:
    return find_pieces("", {name: size for name, size in files.items() if "/" not in name})


def framework_contents(
    folder: Folder, components: list[Component], files: Mapping[str, int], options: SourceOptions
) -> Contents:
    """Return what a framework's folder holds as a whole.

    Args:
        folder: The folder.
        components: What it consists of.
        files: Every file in it, with its size.
        options: What the user says about it.

    Raises:
        CheckpointFormatError: Two components hold the same, or one is damaged.
        CheckpointMismatchError: Ranks contradict each other.
    """
    framework = components[0].framework
    names = ", ".join(f"`{component.name}`" for component in components)
    whole = Contents(framework, f"{names} side by side, as {_TITLES[framework]} saves them")
    whole.framework = _FRAMEWORKS.get(framework)
    for component in components:
        own = _component_contents(folder, component, files)
        _join(whole, own, component.prefix, component.name, folder)
        if component.role == "model" and _is_adapter(component.name) and _is_of_peft(own, files):
            whole.findings.append(
                make_finding(
                    "FM278",
                    component.name,
                    f"{counted(len(own.entries), 'tensor')} without the adapter's name: the model that is "
                    "trained has `lora_A.default.weight` where the file has `lora_A.weight`.",
                    r"`--rename '(lora_[AB])\.weight$=\1.default.weight'` gives them the model's names. PEFT "
                    "itself loads the file as it is.",
                )
            )
    for own, prefix in _beside(folder, components, files, options):
        _join(whole, own, prefix, next(iter(own.files)), folder)
    return whole


def _beside(
    folder: Folder, components: list[Component], files: Mapping[str, int], options: SourceOptions
) -> list[tuple[Contents, Path]]:
    """Read what else holds a part of the state: files of ranks, and a model in numbered pieces."""
    found: list[tuple[Contents, Path]] = []
    own = {component.name for component in components}
    families = find_rank_files(folder, {name: size for name, size in files.items() if name not in own})
    if families:
        found.append((rank_contents(folder, families, files, options, alone=False), ()))
    if any(component.role == "model" for component in components):
        return found
    indexes = find_indexes(files)
    if indexes:
        found.append((indexed_contents(folder, indexes[0], files), ("model",)))
    else:
        found += [(pieces_contents(folder, names), ("model",)) for names in _pieces(files).values()]
    return found


def _component_contents(folder: Folder, component: Component, files: Mapping[str, int]) -> Contents:
    if component.name not in files:
        return _distributed_contents(folder, component.name)
    if component.name.endswith(".safetensors"):
        return safetensors_contents(folder, {component.name: files[component.name]})
    return saved_file_contents(folder, component.name, files[component.name])


def _distributed_contents(folder: Folder, name: str) -> Contents:
    """Read a distributed checkpoint in a folder below; its files are then named from the whole folder on."""
    inner = folder.below(name)
    try:
        files = inner.files()
        contents = dcp_contents(inner, files)
        parts = find_parts(contents.entries)
        name_lists = tuple(read_name_lists(inner, contents.entries, parts))
    finally:
        inner.close()
    contents.findings = list(overwritten_findings(contents.entries, parts, name_lists))
    contents.own_files = frozenset(f"{name}/{file}" for file in contents.own_files)
    contents.files = {f"{name}/{file}": size for file, size in contents.files.items()}
    contents.files[f"{name}/{METADATA_FILE}"] = files[METADATA_FILE]
    contents.places = {key: (name, key) for key in contents.entries}
    contents.entries = {key: _below(entry, name) for key, entry in contents.entries.items()}
    return contents


def _below(entry: Entry, name: str) -> Entry:
    if isinstance(entry, BytesEntry):
        return replace(entry, stored=entry.stored._replace(file=f"{name}/{entry.stored.file}"))
    chunks = (
        chunk._replace(stored=chunk.stored._replace(file=f"{name}/{chunk.stored.file}"))
        for chunk in entry.chunks
    )
    return replace(entry, chunks=tuple(chunks))


def _join(whole: Contents, own: Contents, prefix: Path, name: str, folder: Folder) -> None:
    names: dict[str, str] = {}
    for key, entry in zip(own.entries, _placed(own.entries, prefix), strict=True):
        if entry.key in whole.entries:
            msg = f"`{name}` in {folder.url!r} holds `{entry.key}`, which another file there holds too."
            raise CheckpointFormatError(msg, path=f"{folder.url}/{name}")
        whole.entries[entry.key] = entry
        names[key] = entry.key
        if key in own.places:
            whole.places[entry.key] = own.places[key]
    whole.files.update(own.files)
    whole.own_files |= own.own_files
    whole.findings += [replace(each, subject=names.get(each.subject, each.subject)) for each in own.findings]
    whole.torch_hint = whole.torch_hint or own.torch_hint
    whole.is_portable = whole.is_portable and own.is_portable


def _placed(entries: Mapping[str, Entry], prefix: Path) -> list[Entry]:
    """Return the entries of a component where they belong: a bare state under the component's name."""
    parts = [part for part in find_parts(entries) if part.kind != "other"]
    tops = {entry_path(entry)[0] for entry in entries.values()}
    if prefix and ("state" in tops and "step_idx" in tops):
        # direct-preference-optimization wraps either state in {"state", "step_idx", "metrics"}.
        return [_unwrapped(entry, prefix) for entry in entries.values()]
    if prefix and prefix[-1] in tops and not any(not part.prefix for part in parts):
        return list(entries.values())
    # Accelerate calls each model `model` in its folder: only the folder's number tells the second one.
    numbered = prefix and str(prefix[-1])[-1:].isdigit()
    if numbered and parts and parts[0].prefix:
        return [_unwrapped(entry, prefix, top=parts[0].prefix[0]) for entry in entries.values()]
    is_bare = not parts or any(not part.prefix for part in parts)
    return [moved_entry(entry, prefix) if is_bare else entry for entry in entries.values()]


def _unwrapped(entry: Entry, prefix: Path, top: object = "state") -> Entry:
    path = entry_path(entry)
    new = (*prefix, *path[1:]) if path[0] == top else (f"{prefix[-1]}_info", *path)
    changes: dict[str, Any] = {"path": new, "key": join_path(new)}
    return replace(entry, **changes)
