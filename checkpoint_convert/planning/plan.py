"""From a manifest and what is asked for to a plan: what each entry becomes. Pure; all problems at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from fsdp_migrate.arguments import FLAG, NOTHING, TEXT, check_arguments, instance_of, whole_number_from
from fsdp_migrate.checkpoint_convert.formats.flatten import NumberKey
from fsdp_migrate.checkpoint_convert.formats.pickle_reader import paused_gc
from fsdp_migrate.checkpoint_convert.manifest.boxes import Box, shard_boxes
from fsdp_migrate.checkpoint_convert.manifest.classify import entry_path
from fsdp_migrate.checkpoint_convert.manifest.dtypes import resolve_cast
from fsdp_migrate.checkpoint_convert.manifest.keys import join_path
from fsdp_migrate.checkpoint_convert.manifest.manifest import (
    BytesEntry,
    Framework,
    InlineValue,
    Manifest,
    TensorEntry,
)
from fsdp_migrate.checkpoint_convert.manifest.options import OutputOptions
from fsdp_migrate.checkpoint_convert.manifest.param_group_defaults import NEWER, with_newer_settings
from fsdp_migrate.checkpoint_convert.manifest.planned import (
    PlannedEntry,
    PlannedFile,
    PlannedTensor,
    PlannedValue,
)
from fsdp_migrate.checkpoint_convert.outputs.kept_files import is_weights
from fsdp_migrate.checkpoint_convert.planning.collisions import collision_findings
from fsdp_migrate.checkpoint_convert.planning.mapped import map_wanted
from fsdp_migrate.checkpoint_convert.planning.model_fit import fit_findings
from fsdp_migrate.checkpoint_convert.planning.refusals import plan_error
from fsdp_migrate.checkpoint_convert.planning.renames import Renames, plan_renames
from fsdp_migrate.checkpoint_convert.planning.source_findings import missing_part_findings, source_findings
from fsdp_migrate.checkpoint_convert.storage.errors import within_limits
from fsdp_migrate.checkpoint_convert.storage.model_files import is_state_of_run
from fsdp_migrate.checkpoint_convert.targets.base import is_empty, without_empty
from fsdp_migrate.checkpoint_convert.targets.frameworks import resolve_target
from fsdp_migrate.errors import ConfigError
from fsdp_migrate.findings import Finding, counted, make_finding, named


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fsdp_migrate.checkpoint_convert.targets.base import Arrangement, Target


Action = Literal["none", "relink", "rewrite"]
"""``none``: it loads as it is. ``relink``: new metadata, the same data files. ``rewrite``: new data files."""

Link = Literal["auto", "hard", "copy"]
Casts = Mapping[str, str | None]
"""The type to which the tensors of parts of a kind are cast."""

MOST_RANKS: Final = 1_000_000
"""Each has a file of its own, and a place in memory."""
_MOST_NAMED: Final = 8
_UNNAMED_SHARE: Final = 64
_AS_TEXT: Final = (
    "A dict with number keys that loads this gets text keys beside them; a new scheduler keeps the "
    "milestones that it was given."
)
# torch.nn.modules.module._EXTRA_STATE_KEY_SUFFIX: what a module keeps of itself, in a form of its own.
_EXTRA_STATE: Final = "_extra_state"
CASTABLE: Final = frozenset({"float64", "float32", "float16", "bfloat16"})


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """What a conversion will do.

    Attributes:
        manifest: The source.
        action: How it is done.
        framework: Who is to load the result.
        entries: What the result holds, in the order of the source.
        left_out: The keys of the source that it does not hold.
        extra_files: Other files that are copied along.
        world_size: How many ranks tensors are divided for; None as they are.
        link: How data files are taken over by ``relink``.
        findings: What there is to say about it.
        files: Files of ``torch.save`` that stand beside the data.
        is_distributed: Whether the result is one of torch.distributed.checkpoint; else it is of safetensors.
        max_shard_size: How many bytes of tensors a file of safetensors holds at most.
        model_files: What is put beside files of safetensors, by name.
    """

    manifest: Manifest
    action: Action
    framework: Framework
    entries: tuple[PlannedEntry, ...]
    left_out: tuple[str, ...]
    extra_files: tuple[str, ...]
    world_size: int | None
    link: Link
    findings: tuple[Finding, ...]
    files: tuple[PlannedFile, ...] = ()
    is_distributed: bool = True
    max_shard_size: int = 0
    model_files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def tensors(self) -> tuple[PlannedTensor, ...]:
        """Return the tensors of the result."""
        return tuple(e for e in self.planned if isinstance(e, PlannedTensor))

    @property
    def planned(self) -> tuple[PlannedEntry, ...]:
        """Return what becomes of the entries of the source, in distributed checkpoints and in files."""
        return (*self.entries, *(leaf for file in self.files for leaf in file.planned))

    @property
    def renamed(self) -> dict[str, str]:
        """Return the new key of every entry that gets one."""
        return {e.source.key: e.key for e in self.planned if e.key != e.source.key}

    @property
    def folders(self) -> tuple[str, ...]:
        """Return the folders of the result that are distributed checkpoints; "" is the result itself."""
        return tuple(dict.fromkeys(entry.folder for entry in self.entries)) if self.is_distributed else ()

    @property
    def adds_only(self) -> bool:
        """Tell whether only settings of a later torch are lacking: who loads in part needs no conversion."""
        added = set(self.manifest.added)
        kept = [entry for entry in self.entries if entry.source.key not in added]
        is_same = all(e.key == e.source.key and not (isinstance(e, PlannedValue) and e.is_new) for e in kept)
        return self.action == "relink" and bool(added) and is_same and self._changes_nothing_else

    @property
    def _changes_nothing_else(self) -> bool:
        return not self.left_out and not self.files and self.manifest.is_portable

    @property
    def newer(self) -> list[str]:
        """Return the settings of parameter groups that the result has for a later torch's sake."""
        added, end = set(self.manifest.added), f".{NEWER}"
        return [
            entry.key
            for entry in self.planned
            if entry.source.key in added or (entry.key.endswith(end) and not _is_stored(entry))
        ]

    @property
    def synthesised(self) -> list[str]:
        """Return what the result holds and the source does not: keys, and values of files."""
        return [
            *self.newer,
            *(
                f"{file.name}: {join_path(path)}"
                for file in self.files
                for path, leaf in file.leaves
                if isinstance(leaf, InlineValue)
            ),
        ]

    @property
    def nbytes(self) -> int:
        """Return the bytes of all tensors of the source that the result holds."""
        return sum(entry.source.nbytes for entry in self.tensors)

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "source": self.manifest.source,
            "action": self.action,
            "framework": self.framework,
            "world_size": self.world_size,
            "link": self.link,
            "nbytes": self.nbytes,
            "entries": len(self.planned),
            "renamed": self.renamed,
            "joined": {}
            if self.manifest.mapped is None
            else {k: list(v) for k, v in self.manifest.mapped.joined.items()},
            "rechunked": [e.key for e in self.tensors if e.is_rechunked],
            "cast": {e.key: {"from": e.source.dtype, "to": e.dtype} for e in self.tensors if e.is_cast},
            "rewritten": [e.key for e in self.entries if isinstance(e, PlannedValue) and e.names],
            "split": [e.key for e in self.entries if isinstance(e, PlannedValue) and e.pick],
            "synthesised": self.synthesised,
            "left_out": list(self.left_out),
            "extra_files": list(self.extra_files),
            "model_files": sorted(self.model_files),
            "files": {file.name: [entry.key for entry in file.sources] for file in self.files},
            "folders": list(self.folders),
            "findings": [finding.as_dict() for finding in self.findings],
        }


@within_limits("plan the conversion")
@paused_gc()
def plan_conversion(
    manifest: Manifest,
    *,
    to: str = "auto",
    world_size: int | None = None,
    dtype: object = None,
    optimizer_dtype: object = None,
    weights_only: bool = False,
    without_optimizer: bool = False,
    link: str = "auto",
    output_options: OutputOptions | None = None,
) -> ConversionPlan:
    """Decide what a conversion will do, and whether it can be done. Nothing is read or written.

    Args:
        manifest: What :func:`inspect_checkpoint` found.
        to: The framework that is to load the result: ``"torch"``, ``"composer"``, ``"accelerate"`` (also for
            the HF Trainer), ``"lightning"``, ``"torchtitan"``, ``"hf"``, or ``"auto"`` for the one that wrote
            the source.
        world_size: Divide every sharded tensor as ``fully_shard`` does on so many ranks; None leaves the
            chunks as they are. Any number loads on any other.
        dtype: Cast the floating-point tensors of models to ``"fp32"``, ``"bf16"`` or ``"fp16"``; None or
            ``"keep"`` leaves them as they are.
        optimizer_dtype: The same for the state of optimizers, but for step counts.
        weights_only: Keep the model and leave the rest out.
        without_optimizer: Leave optimizers out and keep the rest.
        link: How ``relink`` takes data files over: ``"hard"`` links, ``"copy"``, or ``"auto"``, links
            where they can be.
        output_options: What else there is to say about the output.

    Raises:
        PlanError: It cannot be done; its ``findings`` hold every reason.
        ConfigError: An argument is none of its words.

    Example:
        >>> from fsdp_migrate.checkpoint_convert import inspect_checkpoint
        >>> manifest = inspect_checkpoint("tests/checkpoint/data/torch-2.13.0/plain.dcp")
        >>> plan_conversion(manifest).action
        'none'
        >>> plan_conversion(manifest, world_size=4).action
        'rewrite'
    """
    _check_arguments(world_size, to, link, manifest, output_options, (weights_only, without_optimizer))
    asked = {"model": (dtype, "dtype"), "optimizer": (optimizer_dtype, "optimizer_dtype")}
    casts = {kind: resolve_cast(cast, field=field) for kind, (cast, field) in asked.items()}
    left = ("other", "optimizer") if weights_only else ("optimizer",) if without_optimizer else ()
    if output_options is not None and output_options.map is not None:
        # First: all that follows, renames too, speaks of the parameters that the map makes.
        manifest = map_wanted(manifest, output_options.map, left)
    parts = [part for part in manifest.parts if part.kind not in left]
    if to != "hf":
        manifest, parts = with_newer_settings(manifest, parts)
    target = resolve_target(manifest, to, parts=parts, options=output_options)
    renames = plan_renames(manifest, parts, target.move, target.options.rules)
    entries = _plan_entries(target, renames, casts, world_size)
    extra_files = () if weights_only else tuple(filter(target.carries, manifest.extra_files))
    findings = [
        *source_findings(manifest, target, left),
        *renames.findings,
        # Where two parts have one place, their names are the same for no other reason.
        *(target.refusals() or collision_findings(entries, renames, target)),
        *missing_part_findings(manifest, casts, weights_only=weights_only),
        *_uncast_findings(entries, manifest, casts),
        *fit_findings(manifest, parts, entries, renames.parameters),
    ]
    if refused := [finding for finding in findings if finding.fidelity == "refused"]:
        raise plan_error(manifest, refused)
    arrangement = target.arrange(entries)
    # What is divided by parameter can meet where it was apart before.
    if met := collision_findings(arrangement.entries, renames, target):
        raise plan_error(manifest, met)
    if target.is_distributed:
        arrangement = replace(arrangement, entries=without_empty(arrangement.entries))
    left_out = _left_out(manifest, arrangement)
    plan = ConversionPlan(
        manifest=manifest,
        action=_choose_action(target, arrangement, left_out),
        framework=target.framework,
        entries=arrangement.entries,
        left_out=left_out,
        extra_files=extra_files,
        world_size=world_size,
        link=link,  # type: ignore[arg-type]  # checked above
        findings=(),
        files=arrangement.files,
        is_distributed=target.is_distributed,
        max_shard_size=target.options.max_shard_size,
        model_files={} if target.is_distributed else target.options.model_files,
    )
    return replace(plan, findings=(*findings, *arrangement.findings, *_plan_findings(plan, target)))


def _left_out(manifest: Manifest, arrangement: Arrangement) -> tuple[str, ...]:
    kept = {entry.source.key for entry in arrangement.entries}
    kept |= {entry.key for file in arrangement.files for entry in file.sources}
    return tuple(key for key in manifest.entries if key not in kept)


def _check_arguments(
    world_size: object,
    to: object,
    link: str,
    manifest: object,
    output_options: object,
    left_out: tuple[object, object],
) -> None:
    check_arguments(instance_of(Manifest), manifest=manifest)
    check_arguments(instance_of(OutputOptions) | NOTHING, output_options=output_options)
    check_arguments(TEXT, to=to, link=link)
    check_arguments(FLAG, weights_only=left_out[0], without_optimizer=left_out[1])
    check_arguments(whole_number_from(1, MOST_RANKS) | NOTHING, world_size=world_size)
    if link not in get_args(Link):
        msg = f"`link` is {link!r}; expected one of {', '.join(map(repr, get_args(Link)))}."
        raise ConfigError(msg, field="link")


def _plan_entries(
    target: Target, renames: Renames, casts: Mapping[str, str | None], world_size: int | None
) -> tuple[PlannedEntry, ...]:
    manifest = target.manifest
    part_of = {key: (part, target.folder(part)) for part in target.parts for key in part.keys}
    is_whole = manifest.world_size <= 1
    joined = manifest.mapped.joined if manifest.mapped is not None else {}
    planned: list[PlannedEntry] = []
    for key, entry in manifest.entries.items():
        if key not in part_of:
            continue
        part, folder = part_of[key]
        path = renames.paths[key]
        new_key, new_path = join_path(path), None if entry.path is None else path
        if isinstance(entry, BytesEntry):
            planned.append(PlannedValue(new_key, new_path, entry, renames.names.get(key, {}), folder))
            continue
        # What a map joined is divided as `fully_shard` would: by rows of what may have come from many files.
        boxes = (
            tuple(shard_boxes(entry.shape, world_size or manifest.world_size))
            if key in joined
            else _plan_boxes(entry, world_size, shard_whole=is_whole and part.kind != "other")
        )
        dtype = plan_dtype(entry, casts.get(part.kind))
        planned.append(PlannedTensor(new_key, new_path, entry, dtype, boxes, folder))
    return tuple(planned)


def _plan_boxes(entry: TensorEntry, world_size: int | None, *, shard_whole: bool) -> tuple[Box, ...]:
    """Divide a tensor if it is a sharded one.

    A tensor in one chunk is a buffer or a scalar, except where the whole checkpoint was saved by one rank:
    there nothing tells buffers from parameters, and every tensor of a model or an optimizer is divided, but
    for what a module's ``get_extra_state`` returned.
    """
    old = tuple([chunk[:2] for chunk in entry.chunks])
    shard_whole = shard_whole and not _is_extra_state(entry)
    if world_size is None or not (shard_whole or len(old) > 1):
        return old
    new = tuple(shard_boxes(entry.shape, world_size))
    # HSDP's chunks stand in any order: they are the same division, and nothing has to be moved.
    return old if set(new) == set(old) else new


def _is_stored(entry: PlannedEntry) -> bool:
    """Tell whether an entry is one of the source, or a part of one."""
    return isinstance(entry, PlannedTensor) or bool(entry.pick or entry.source.key.endswith(NEWER))


def _is_extra_state(entry: TensorEntry) -> bool:
    return _EXTRA_STATE in entry.key and any(
        str(name).rpartition(".")[2] == _EXTRA_STATE for name in entry_path(entry)
    )


def plan_dtype(entry: TensorEntry, cast: str | None) -> str:
    """Return the type that a tensor gets where ``cast`` was asked for; None asks for none."""
    # A step is a count: bfloat16 has no odd number above 256.
    is_kept = entry_path(entry)[-1] == "step" or _is_extra_state(entry)
    return entry.dtype if cast is None or is_kept or entry.dtype not in CASTABLE else cast


def _choose_action(target: Target, arrangement: Arrangement, left_out: Sequence[str]) -> Action:
    manifest, entries = target.manifest, arrangement.entries
    tensors = [entry for entry in entries if isinstance(entry, PlannedTensor)]
    is_changed = any(entry.is_cast or entry.is_rechunked for entry in tensors)
    # From the costliest down: whatever changes or moves bytes of tensors is a rewrite; new names, folders or
    # values are new metadata beside the old data; and what is left changes nothing.
    is_linkable = manifest.is_relinkable and target.is_distributed and not _shares_files(entries)
    is_streamed = any(file.planned for file in arrangement.files)
    is_joined = manifest.mapped is not None and bool(manifest.mapped.joined)
    if is_changed or is_streamed or is_joined or not is_linkable or _takes_up_space(manifest, left_out):
        return "rewrite"
    values = [entry for entry in entries if isinstance(entry, PlannedValue)]
    is_renamed = manifest.mapped is not None or any(
        manifest.places.get(e.source.key, ("", e.source.key)) != (e.folder, e.key) for e in entries
    )
    is_new = bool(arrangement.files or left_out) or any(value.is_new for value in values)
    return "relink" if is_renamed or is_new or not manifest.is_portable else "none"


def _takes_up_space(manifest: Manifest, left_out: Sequence[str]) -> bool:
    """Tell whether it matters that what is left out would stay in linked files, where nothing names it."""
    # torchtitan leaves a few lists of names out, for which nobody wants gigabytes written again.
    nbytes = sum(stored.length for key in left_out for stored in manifest.entries[key].items)
    return nbytes * _UNNAMED_SHARE > sum(manifest.files.values())


def _shares_files(entries: Sequence[PlannedEntry]) -> bool:
    """Tell whether entries of two folders of the output lie in one data file of the source."""
    folders: dict[str, str] = {}
    for entry in entries:
        if any(folders.setdefault(one.file, entry.folder) != entry.folder for one in entry.source.items):
            return True
    return False


def _uncast_findings(entries: Sequence[PlannedEntry], manifest: Manifest, casts: Casts) -> list[Finding]:
    """Name the tensors that keep a type of floating-point numbers although a cast was asked for."""
    part_of = manifest.part_of()
    kept: dict[str, list[str]] = {}
    for entry in entries:
        part = part_of.get(entry.source.key)
        cast = None if part is None else casts.get(part.kind)
        source = entry.source if cast is not None and isinstance(entry, PlannedTensor) else None
        if source is not None and source.is_float and source.dtype not in CASTABLE:
            kept.setdefault(source.dtype, []).append(entry.key)
    return [
        make_finding(
            "FM284",
            keys[0],
            f"{counted(len(keys), 'tensor')} of {dtype}: {named(keys, _MOST_NAMED)}.",
            "Such weights are most often quantized, with scales beside them: dequantize them where they are "
            "at home.",
        )
        for dtype, keys in kept.items()
    ]


def _plan_findings(plan: ConversionPlan, target: Target) -> list[Finding]:
    manifest, found = plan.manifest, list(target.lacks({*plan.extra_files, *plan.model_files}))
    cast = [e for e in plan.tensors if e.is_cast]
    rechunked = [e for e in plan.entries if isinstance(e, PlannedTensor) and e.is_rechunked]
    others = [p.name for p in target.parts if p.kind == "other" and plan.is_distributed]
    wanted = {key for part in target.parts for key in part.keys}
    empty = [key for key in plan.left_out if is_empty(manifest.entries[key])]
    unwanted = [key for key in plan.left_out if key not in wanted and key not in set(empty)]
    numbers = [e.key for e in plan.planned if any(isinstance(name, NumberKey) for name in e.path or ())]
    tensors = counted(len(rechunked), "tensor")
    left = [name for name in manifest.extra_files if not _is_in_output(plan, name)]
    of_run = [name for name in left if plan.framework == "hf" and is_state_of_run(name)]
    left = [name for name in left if name not in of_run]
    notes = [
        (plan.action == "none", "FM201", manifest.source, "no entry has to change."),
        (
            not manifest.is_portable,
            "FM208",
            ".metadata",
            f"written by torch {manifest.torch_hint}, in a form that torch 2.6 to 2.14 cannot read.",
        ),
        (
            bool(rechunked) and plan.world_size is not None,
            "FM204",
            manifest.source,
            f"{tensors}, for {plan.world_size} ranks instead of {manifest.world_size}.",
        ),
        (bool(cast), "FM205", manifest.source, f"{counted(len(cast), 'tensor')} ({_cast_kinds(cast)})."),
        (bool(unwanted), "FM207", manifest.source, f"{counted(len(unwanted), 'entry', 'entries')}."),
        (bool(others), "FM210", ", ".join(others), "of the user or the framework."),
        (bool(empty), "FM274", manifest.source, f"{named(empty, _MOST_NAMED)}."),
        (bool(plan.newer), "FM279", manifest.source, f"{named(plan.newer, _MOST_NAMED)}."),
        (bool(numbers), "FM275", manifest.source, f"{named(numbers, _MOST_NAMED)}. {_AS_TEXT}"),
        (bool(plan.extra_files), "FM211", manifest.source, f"{named(plan.extra_files, _MOST_NAMED)}."),
        (bool(left), "FM212", manifest.source, f"{named(left, _MOST_NAMED)}."),
        (bool(of_run), "FM212", "to='hf'", f"{named(of_run, _MOST_NAMED)}."),
    ]
    found += [make_finding(code, subject, text) for holds, code, subject, text in notes if holds]
    if plan.framework != manifest.framework:
        if plan.renamed:
            moved = counted(len(plan.renamed), "entry", "entries")
            found.append(make_finding("FM213", manifest.source, f"{moved}."))
        found += _without_place(plan, target)
    return found


def _is_in_output(plan: ConversionPlan, name: str) -> bool:
    """Tell whether the output has a file of this name, be it another one that was given or is written."""
    is_given = name in plan.extra_files or name in plan.model_files
    return is_given or (plan.framework == "hf" and is_weights(name))


def _without_place(plan: ConversionPlan, target: Target) -> Iterator[Finding]:
    """Yield what is said about parts that the target's framework does not look for."""
    kept = {entry.source.key: entry for entry in plan.entries}
    for part in target.without_place():
        here = [key for key in part.keys if key in kept]
        if here:
            where = f" in `{target.rest_folder}`" if target.rest_folder else ""
            is_one = len(here) == 1
            held = "its entry, which is under its name" if is_one else f"its {len(here)} entries"
            rest = "" if is_one else ", which are under their names"
            text = f"{plan.framework} does not look for {held}{rest}{where}."
            yield make_finding("FM214", part.name, text)


def _cast_kinds(cast: Sequence[PlannedTensor]) -> str:
    return ", ".join(sorted({f"{e.source.dtype} to {e.dtype}" for e in cast}))
