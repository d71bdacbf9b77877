"""Does a checkpoint fit the model that is to load it? What torch loads wrong without a word is found here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.manifest.classify import Groups, entry_path, group_names, parameter_name
from fsdp_migrate.checkpoint_convert.manifest.manifest import TensorEntry
from fsdp_migrate.checkpoint_convert.planning.renames import clean_name
from fsdp_migrate.findings import Finding, counted, make_finding, named


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.manifest import Manifest, Part
    from fsdp_migrate.checkpoint_convert.manifest.options import ModelOutline
    from fsdp_migrate.checkpoint_convert.manifest.planned import PlannedEntry


_EXTRA_STATE: Final = "_extra_state"


def fit_findings(
    manifest: Manifest,
    parts: Sequence[Part],
    entries: Sequence[PlannedEntry],
    names: Mapping[str, str],
) -> list[Finding]:
    """Hold what is planned against the model that was given, and its optimizer if that was given too.

    Args:
        manifest: The source, with the model.
        parts: Its parts that are wanted.
        entries: What is planned.
        names: The new name of each parameter that gets one. A model has the new names or the old ones.
    """
    outline = manifest.outline
    models = [part for part in parts if part.kind == "model"]
    refusals = {finding.code for finding in manifest.findings}
    # What else does not fit follows from flat parameters that could not be taken apart.
    if outline is None or len(models) != 1 or "FM238" in refusals:
        return []
    planned = {entry.source.key: entry for entry in entries}
    keys = [key for key in models[0].keys if isinstance(manifest.entries[key], TensorEntry)]
    new = {_clean(models[0], manifest, key, names): planned[key] for key in keys}
    back = {after: before for before, after in names.items()}
    module = models[0].module_prefix
    old = {clean_name(back.get(name, name), module=module): entry for name, entry in new.items()}
    # The model may be the one that saved, or the one that has the new names.
    is_old = len(old.keys() & outline.parameters.keys()) > len(new.keys() & outline.parameters.keys())
    tensors = old if is_old else new
    names = {before: clean_name(before, module=module) for before in names} if is_old else names
    found = [*_model_findings(outline, tensors)]
    optimizers = [part for part in parts if part.kind == "optimizer"]
    if optimizers and "FM239" not in refusals:
        found += _optimizer_findings(outline, manifest, optimizers, names)
    return found


def _clean(part: Part, manifest: Manifest, key: str, names: Mapping[str, str]) -> str:
    name = parameter_name(part, entry_path(manifest.entries[key])) or ""
    return names.get(name, name)


def _model_findings(outline: ModelOutline, tensors: Mapping[str, PlannedEntry]) -> Iterator[Finding]:
    known = {**outline.parameters, **(outline.buffers or {})}
    known.update({alias: known[name] for alias, name in outline.aliases.items() if name in known})
    missing = [name for name in known if name not in tensors]
    if missing:
        yield make_finding(
            "FM258",
            missing[0],
            f"{_count(missing)} of the model that was given {_are(missing)} not in the checkpoint: "
            f"{named(missing)}.",
            "torch would say that a key is missing, or, with `allow_partial_load`, leave the initial values. "
            "Is it the same model? `--rename` changes names.",
        )
    extra = [name for name in tensors if name not in known and _EXTRA_STATE not in name]
    if extra and outline.buffers is not None:
        yield make_finding(
            "FM259", extra[0], f"{_count(extra)}: {named(extra)}. Loading the checkpoint ignores them."
        )
    for alias, name in outline.apart.items():
        if {alias, name} <= tensors.keys():
            yield make_finding(
                "FM273",
                alias,
                f"it is `{name}` in the model, and was in another FSDP1 unit, which trained a copy of it.",
                "The run was that of a model without this tie: load it into one. A model with the tie takes "
                "one of the two values.",
            )
    for name, entry in tensors.items():
        source = entry.source
        if name in known and isinstance(source, TensorEntry) and source.shape != tuple(known[name]):
            yield make_finding(
                "FM258", name, f"it has shape {list(source.shape)}, and the model has {list(known[name])}."
            )
    yield from _dtype_findings(outline, tensors)


def _dtype_findings(outline: ModelOutline, tensors: Mapping[str, PlannedEntry]) -> Iterator[Finding]:
    kinds: dict[tuple[str, str], list[str]] = {}
    for name, entry in tensors.items():
        dtype = getattr(entry, "dtype", "")
        if name in outline.dtypes and outline.dtypes[name] != dtype:
            kinds.setdefault((dtype, outline.dtypes[name]), []).append(name)
    for (stored, wanted), names in kinds.items():
        yield make_finding(
            "FM260",
            names[0],
            f"{_count(names)} {_are(names)} stored as {stored}, and the model has {wanted}: {named(names)}.",
            "torch casts without a warning when it loads. Cast with --dtype, or make the model of that type.",
        )


def _optimizer_findings(
    outline: ModelOutline, manifest: Manifest, parts: Sequence[Part], names: Mapping[str, str]
) -> Iterator[Finding]:
    groups = group_names(manifest, parts, names)
    if groups is not None and outline.groups is not None:
        yield from _group_findings(groups, [list(group) for group in outline.groups], outline.aliases)
    if groups is None or outline.trainable is None:
        return
    first = outline.aliases
    listed = {first.get(name, name) for group in groups for name in group}
    untied = [name for group in groups for name in group if name in first and first[name] in set(group)]
    if untied:
        yield make_finding(
            "FM262",
            untied[0],
            f"the model ties it to `{first[untied[0]]}`, and the optimizer of the checkpoint knows both.",
            "Untie them in the model, as they were in the run that saved.",
        )
    new = [name for name in outline.trainable if name not in listed] if outline.groups is None else []
    if new:
        yield make_finding(
            "FM262",
            new[0],
            f"{_count(new)} of the model can be trained, and the optimizer of the checkpoint does not know "
            f"{'it' if len(new) == 1 else 'them'}: {named(new)}.",
            "Freeze them (`requires_grad_(False)`), as they were in the run that saved, or leave the "
            "optimizer out with `weights_only` (--weights-only).",
        )


def _group_findings(groups: Groups, wanted: Groups, first: Mapping[str, str]) -> Iterator[Finding]:
    stored = [{first.get(name, name) for name in group} for group in groups]
    model = [{first.get(name, name) for name in group} for group in wanted]
    if stored == model:
        return
    # `dcp.load` reads what the optimizer's state asks for, and nothing says that there was more (torch 2.13).
    if len(stored) > len(model):
        how = "torch would load it without a warning, with the settings of the first groups only"
    elif sorted(map(sorted, stored)) == sorted(map(sorted, model)):
        how = "they are the same groups in another order, so that each would get the settings of another"
    elif len(stored) < len(model):
        how = "torch would say that a key of `param_groups` is missing"
    else:
        how = "other parameters are in them, and torch would fail with a `KeyError`"
    number = next((n for n, (a, b) in enumerate(zip(stored, model, strict=False)) if a != b), 0)
    odd = sorted(stored[number] ^ model[number]) if number < min(len(stored), len(model)) else []
    where = f"; group {number} differs by {named(odd)}" if odd else ""
    yield make_finding(
        "FM261",
        "param_groups",
        f"the checkpoint has {counted(len(stored), 'parameter group')}, and the optimizer that was given has "
        f"{len(model)}{where}: {how}.",
        "Build the optimizer's groups as the run that saved did. Beware of `p.ndim`: under FSDP1 all "
        "parameters are flat.",
    )


def _count(names: Collection[str]) -> str:
    return f"{len(names)} {'name' if len(names) == 1 else 'names'}"


def _are(names: Collection[str]) -> str:
    return "is" if len(names) == 1 else "are"
