"""Names: the wrapper prefixes that FSDP1-era code leaves in them, and how they come off. Text only.

Wrappers are whole parts of a dotted name, anywhere in it: ``blocks.0._checkpoint_wrapped_module.weight``.
A leading ``module.`` is different: it is what DistributedDataParallel adds, and also a name that people give
to their own submodules, so it only comes off where every name of a part has it, and never in the middle.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fsdp_migrate.arguments import TEXT, check_arguments
from fsdp_migrate.errors import ConfigError


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


WRAPPER_PARTS: Final = frozenset(
    {"_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod", "_fpw_module"}
)
_WRAPPED: Final = re.compile("_(?:fsdp|checkpoint)_wrapped_module|_orig_mod|_fpw_module")
_MODULE: Final = "module."

Path = tuple[str | int, ...]


def strip_wrappers(name: str) -> str:
    """Take the wrappers' parts out of a dotted name.

    Example:
        >>> strip_wrappers("_orig_mod.blocks.0._checkpoint_wrapped_module.up.weight")
        'blocks.0.up.weight'
        >>> strip_wrappers("my_orig_mod.weight")
        'my_orig_mod.weight'
    """
    # Asked of every name of a checkpoint: one search is a third of the time of four.
    if _WRAPPED.search(name) is None:
        return name
    return ".".join(part for part in name.split(".") if part not in WRAPPER_PARTS)


def strip_module(name: str) -> str:
    """Take a leading ``module.`` off, after wrappers.

    Example:
        >>> strip_module("module.up.weight"), strip_module("a.module.up.weight")
        ('up.weight', 'a.module.up.weight')
    """
    return name.removeprefix(_MODULE)


def all_have_module(names: Iterable[str]) -> bool:
    """Tell whether there are names and every one starts with ``module.``, once wrappers are off."""
    found = False
    for name in names:
        if not strip_wrappers(name).startswith(_MODULE):
            return False
        found = True
    return found


@dataclass(frozen=True, slots=True)
class RenameRule:
    """A change of names that a user asked for: what matches is replaced, as ``re.sub`` does it."""

    text: str
    pattern: re.Pattern[str]
    replacement: str

    def rename(self, name: str) -> str:
        """Return the new name."""
        return self.pattern.sub(self.replacement, name)


def parse_rename(text: str) -> RenameRule:
    r"""Read ``regex=replacement``; what stands behind the last ``=`` is the replacement.

    Raises:
        ConfigError: It has another form, or is no regular expression.

    Example:
        >>> parse_rename(r"^model\.=").rename("model.layers.0.weight")
        'layers.0.weight'
        >>> parse_rename(r"blocks\.(\d+)=layers.\1").rename("blocks.3.up")
        'layers.3.up'
    """
    check_arguments(TEXT, rename=text)
    # The last one: an expression may hold `(?=`, a replacement has no use for it.
    pattern, equals, replacement = text.rpartition("=")
    if not equals or not pattern:
        raise ConfigError(f"`rename` is {text!r}; expected 'regex=replacement'.", field="rename")
    try:
        rule = RenameRule(text, re.compile(pattern), replacement)
        rule.pattern.sub(replacement, "")
        # Groups that a replacement names are looked up even where nothing matches.
        re.compile(f"(?:{pattern})|").sub(replacement, "")
    except (ValueError, re.error, IndexError) as error:
        msg = f"`rename` is {text!r}; expected 'regex=replacement': {error}."
        raise ConfigError(msg, field="rename") from error
    return rule


def join_path(path: Path) -> str:
    """Return the flat key that torch makes of a path.

    Example:
        >>> join_path(("optimizer", "param_groups", 0, "lr"))
        'optimizer.param_groups.0.lr'
    """
    return ".".join(map(str, path))


def find_collisions(renames: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the new names that more than one old name would get, with those old names.

    Example:
        >>> find_collisions({"a._orig_mod.w": "a.w", "a.w": "a.w", "b": "b"})
        {'a.w': ['a._orig_mod.w', 'a.w']}
    """
    olds: defaultdict[str, list[str]] = defaultdict(list)
    for old, new in renames.items():
        olds[new].append(old)
    return {new: names for new, names in olds.items() if len(names) > 1}
