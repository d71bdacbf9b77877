"""Which entry gets which name: wrappers off, and the top names that the target expects. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fsdp_migrate.checkpoint_convert.manifest.classify import entry_path, parameter_name
from fsdp_migrate.checkpoint_convert.manifest.keys import (
    Path,
    RenameRule,
    all_have_module,
    join_path,
    strip_module,
    strip_wrappers,
)
from fsdp_migrate.checkpoint_convert.manifest.manifest import Manifest, NameList, Part
from fsdp_migrate.errors import ConfigError
from fsdp_migrate.findings import Finding, counted, make_finding


Move = Callable[[Part, Path], Path]
"""Says where a target looks for an entry of a part that has this path once wrappers are off."""


@dataclass(frozen=True, slots=True)
class Renames:
    """The new path of every entry, the names to replace inside entries, and what there is to say about it.

    ``parameters`` is the new name of every parameter that gets one.
    """

    paths: Mapping[str, Path]
    names: Mapping[str, Mapping[str, str]]
    findings: tuple[Finding, ...]
    parameters: Mapping[str, str]


def plan_renames(
    manifest: Manifest, parts: Sequence[Part], move: Move, rules: Sequence[RenameRule] = ()
) -> Renames:
    """Decide the names of the entries of ``parts``.

    Raises:
        ConfigError: A rule changes no name.
    """
    asked = _AskedRenames(rules)
    paths: dict[str, Path] = {}
    names: dict[str, Mapping[str, str]] = {}
    findings: list[Finding] = []
    lists = {found.key: found for found in manifest.name_lists}
    for part in parts:
        own_lists = [lists[key] for key in part.keys if key in lists]
        module = drops_module(part, manifest, own_lists)
        for key in part.keys:
            clean = clean_path(part, entry_path(manifest.entries[key]), module=module)
            paths[key] = move(part, asked.rename_path(part, clean))
        for found in own_lists:
            listed = (*(found.names or ()), *found.labels)
            mapping = {n: asked.rename(clean_name(n, module=module)) for n in listed}
            names[found.key] = {old: new for old, new in mapping.items() if old != new}
        findings += _findings(part, paths, own_lists, names, module=module, asked=asked)
    # After all parts: a rule may be for one of them.
    asked.check()
    return Renames(paths, names, (*findings, *asked.findings()), _parameters(manifest, parts, asked))


def _parameters(manifest: Manifest, parts: Sequence[Part], asked: _AskedRenames) -> dict[str, str]:
    """Return the new name of every parameter that gets one."""
    found: dict[str, str] = {}
    lists = {names.key: names for names in manifest.name_lists}
    for part in parts:
        own_lists = [lists[key] for key in part.keys if key in lists]
        module = drops_module(part, manifest, own_lists)
        names = {n for key in part.keys if (n := parameter_name(part, entry_path(manifest.entries[key])))}
        names.update(n for own in own_lists for n in own.names or ())
        new = {name: asked.rename(clean_name(name, module=module)) for name in names}
        found.update({old: name for old, name in new.items() if old != name})
    return found


class _AskedRenames:
    """The renames that the user asked for, and what they changed."""

    def __init__(self, rules: Sequence[RenameRule]) -> None:
        self._rules = rules
        self._used: set[str] = set()
        self._changed: dict[str, str] = {}

    @property
    def is_empty(self) -> bool:
        """Tell whether none was asked for."""
        return not self._rules

    def rename(self, name: str) -> str:
        """Return the new name of a parameter."""
        if self.is_empty:
            return name
        new = name
        for rule in self._rules:
            after = rule.rename(new)
            self._used |= {rule.text} if after != new else set()
            new = after
        if not new or any(not part for part in new.split(".")):
            msg = f"`rename` makes {new!r} of `{name}`, which is no name."
            raise ConfigError(msg, field="rename")
        if new != name:
            self._changed[name] = new
        return new

    def rename_path(self, part: Part, path: Path) -> Path:
        """Return a path with the parameter's name in it renamed."""
        if self.is_empty or part.kind == "other":
            return path
        start = len(part.prefix)
        at = start if part.kind == "model" else start + 1
        if part.kind == "optimizer" and len(path) == start + 1:
            return (*path[:start], self._flattened(str(path[start])))
        is_name = part.kind == "model" or (path[start] == "state" and len(path) > start + 2)
        if not is_name or not isinstance(path[at], str):
            return path
        return (*path[:at], self.rename(str(path[at])), *path[at + 1 :])

    def _flattened(self, name: str) -> str:
        """Rename the parameter in ``state.<name>.exp_avg`` or ``param_groups.<name>.lr``."""
        head, _, rest = name.partition(".")
        if head not in ("state", "param_groups") or "." not in rest:
            return name
        parameter, _, field = rest.rpartition(".")
        return f"{head}.{self.rename(parameter)}.{field}"

    def check(self) -> None:
        """Refuse rules that changed nothing."""
        for rule in self._rules:
            if rule.text not in self._used:
                msg = (
                    f"`rename` {rule.text!r} changes no name of a model or an optimizer. Is it for names "
                    "with a prefix that is taken off anyway? `inspect --json` lists the names."
                )
                raise ConfigError(msg, field="rename")

    def findings(self) -> list[Finding]:
        """Return what was changed."""
        if not self._changed:
            return []
        old, new = next(iter(self._changed.items()))
        names = counted(len(self._changed), "name")
        return [make_finding("FM263", old, f"{names}, such as `{old}`: now `{new}`.")]


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
    if not module and cleaned == list(path):
        return path
    if module:
        start = len(part.prefix)
        # Nested optimizer state has the name one level further down, flattened state behind its first word.
        at = start if part.kind == "model" or len(path) == start + 1 else start + 1
        cleaned[at] = _without_module(cleaned[at], whole=part.kind == "model" or at > start)
    # A name that was empty before is the user's own, and one that is empty now was all prefix.
    return tuple(new for old, new in zip(path, cleaned, strict=True) if new != "" or old == "")


def _without_module(name: str | int, *, whole: bool) -> str | int:
    """Take ``module.`` off a parameter name, or off the one behind ``state.`` and ``param_groups.``."""
    if isinstance(name, int):
        return name
    if whole:
        return "" if name == "module" else strip_module(name)
    head, dot, rest = name.partition(".")
    return head + dot + strip_module(rest) if head in ("state", "param_groups") else name


def drops_module(part: Part, manifest: Manifest, lists: Sequence[NameList]) -> bool:
    """Tell whether every parameter name of a part, in its entries and its lists, begins with ``module.``.

    Where the model that was given has such names itself, they are its own, and stay.
    """
    own = manifest.outline.parameters if manifest.outline is not None else ()
    if manifest.keeps_module or all_have_module(own):
        return False
    # Not made as lists: the first name most often tells.
    names = (name for found in lists for name in found.names or ())
    known = (name for key in part.keys if (name := parameter_name(part, entry_path(manifest.entries[key]))))
    return part.kind != "other" and all_have_module(itertools.chain(known, names))


def _findings(
    part: Part,
    paths: Mapping[str, Path],
    lists: Sequence[NameList],
    names: Mapping[str, Mapping[str, str]],
    *,
    module: bool,
    asked: _AskedRenames,
) -> list[Finding]:
    found: list[Finding] = []
    wrapped = [key for key in part.keys if strip_wrappers(key) != key]
    changed = [
        found_list.key
        for found_list in lists
        if any(strip_wrappers(old) != old for old in names[found_list.key])
    ]
    if wrapped or changed:
        old = (wrapped or changed)[0]
        found.append(
            make_finding(
                "FM202",
                part.name,
                f"{counted(len(wrapped), 'name')} and the contents of "
                f"{counted(len(changed), 'entry', 'entries')}, such as `{old}`: now "
                f"`{join_path(paths[old])}`.",
            )
        )
    if module:
        found.append(
            make_finding(
                "FM203",
                part.name,
                f"{counted(len(part.keys), 'entry', 'entries')}, such as `{part.keys[0]}`: now "
                f"`{join_path(paths[part.keys[0]])}`.",
                "If `module` is a submodule of yours that holds all parameters, give the model "
                "(`--model pkg.mod:factory`): its names stay then, as with `load_checkpoint`.",
            )
        )
    if wrapped or module or not asked.is_empty:
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
