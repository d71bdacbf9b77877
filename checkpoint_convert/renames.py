"""Which entry gets which name: wrappers off, and the top names that the target expects. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fsdp_migrate.checkpoint_convert.keys import (
    Path,
    all_have_module,
    join_path,
    strip_module,
    strip_wrappers,
)
from fsdp_migrate.checkpoint_convert.metadata import Manifest, NameList, Part
from fsdp_migrate.checkpoint_convert.parts import entry_path, parameter_name
from fsdp_migrate.findings import Finding, make_finding


Move = Callable[[Part, Path], Path]
"""Says where a target looks for an entry of a part that has this path once wrappers are off."""


@dataclass(frozen=True, slots=True)
class Renames:
    """The new path of every entry, the names to replace inside entries, and what there is to say about it."""

    paths: Mapping[str, Path]
    names: Mapping[str, Mapping[str, str]]
    findings: tuple[Finding, ...]


def plan_renames(manifest: Manifest, parts: Sequence[Part], move: Move) -> Renames:
    """Decide the names of the entries of ``parts``."""
    paths: dict[str, Path] = {}
    names: dict[str, Mapping[str, str]] = {}
    findings: list[Finding] = []
    lists = {found.key: found for found in manifest.name_lists}
    for part in parts:
        own_lists = [lists[key] for key in part.keys if key in lists]
        module = _drops_module(part, manifest, own_lists)
        for key in part.keys:
            paths[key] = move(part, clean_path(part, entry_path(manifest.entries[key]), module=module))
        for found in own_lists:
            mapping = {n: clean_name(n, module=module) for n in (*(found.names or ()), *found.labels)}
            names[found.key] = {old: new for old, new in mapping.items() if old != new}
        findings += _findings(part, paths, own_lists, names, module=module)
    return Renames(paths, names, tuple(findings))


def clean_name(name: str, *, module: bool) -> str:
    """Take wrappers off a parameter name, and a leading ``module.`` if asked.

    Example:
        >>> clean_name("module._orig_mod.up.weight", module=True)
        'up.weight'
    """
    clean = strip_wrappers(name)
    return strip_module(clean) if module else clean


def clean_path(part: Part, path: Path, *, module: bool) -> Path:
    """Take wrappers off every name of a path, and ``module.`` off its parameter name if asked.

    Example:
        >>> part = Part("optimizer", ("optim",), ())
        >>> clean_path(part, ("optim", "state", "module._orig_mod.up.weight", "step"), module=True)
        ('optim', 'state', 'up.weight', 'step')
        >>> clean_path(part, ("optim", "param_groups.module.up.weight.lr"), module=True)
        ('optim', 'param_groups.up.weight.lr')
    """
    cleaned = [strip_wrappers(name) if isinstance(name, str) else name for name in path]
    if module:
        start = len(part.prefix)
        # Nested optimizer state has the name one level further down, flattened state behind its first word.
        at = start if part.kind == "model" or len(path) == start + 1 else start + 1
        cleaned[at] = _without_module(cleaned[at], whole=part.kind == "model" or at > start)
    return tuple(name for name in cleaned if name != "")


def _without_module(name: str | int, *, whole: bool) -> str | int:
    """Take ``module.`` off a parameter name, or off the one behind ``state.`` and ``param_groups.``."""
    if isinstance(name, int):
        return name
    if whole:
        return "" if name == "module" else strip_module(name)
    head, dot, rest = name.partition(".")
    return head + dot + strip_module(rest) if head in ("state", "param_groups") else name


def _drops_module(part: Part, manifest: Manifest, lists: Sequence[NameList]) -> bool:
    names = [name for found in lists for name in found.names or ()]
    known = [name for key in part.keys if (name := parameter_name(part, entry_path(manifest.entries[key])))]
    return part.kind != "other" and all_have_module([*known, *names])


def _findings(
    part: Part,
    paths: Mapping[str, Path],
    lists: Sequence[NameList],
    names: Mapping[str, Mapping[str, str]],
    *,
    module: bool,
) -> list[Finding]:
    found: list[Finding] = []
    wrapped = [key for key in part.keys if strip_wrappers(key) != key]
    changed = [found_list.key for found_list in lists if names[found_list.key]]
    if wrapped or changed:
        old = (wrapped or changed)[0]
        found.append(
            make_finding(
                "FM202",
                part.name,
                f"{len(wrapped)} names and the contents of {len(changed)} entries, such as `{old}`: now "
                f"`{join_path(paths[old])}`.",
            )
        )
    if module:
        found.append(
            make_finding(
                "FM203",
                part.name,
                f"{len(part.keys)} entries, such as `{part.keys[0]}`: now "
                f"`{join_path(paths[part.keys[0]])}`.",
                "If `module` is the name of a submodule of yours, wrap the model in one of that name "
                "when loading.",
            )
        )
    if wrapped or module:
        found += [
            make_finding(
                "FM224",
                unread.key,
                f"it asks for `{unread.reason}`, which is not on the list of what may be read, and the "
                "names in it have to lose their prefixes.",
            )
            for unread in lists
            if unread.names is None
        ]
    return found
