"""Functions of other packages that make FSDP1's models, which rewriting does not change."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.nodes import given_by_name, word_of


if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    import libcst as cst

    from fsdp_migrate.source.python.links import Links


_PACKAGES = ("composer", "d2go", "fairseq2", "ray", "torchtnt")
_IMPORTS = re.compile(rf"^[ \t]*(?:from|import) (?:{'|'.join(_PACKAGES)})\b", re.MULTILINE)
_DEFINES = re.compile(
    r"^(?:def (?:build_fsdp|prepare_fsdp(?:_module)?|prepare_model|to_fsdp1?)\(|class FSDPStrategy\b)",
    re.MULTILINE,
)
_NAMES = re.compile(
    r"\b(?P<name>build_fsdp|prepare_fsdp(?:_module)?|to_fsdp1?)\(|parallel_strategy=[\"']fsdp[\"']"
)


def may_be_made_by_others(links: Links, code: str) -> bool:
    """Tell whether a function of another package makes FSDP1's models in a source or its project."""
    return is_made_by_others([code]) if links.made_by_others is None else links.made_by_others


def is_made_by_others(texts: Collection[str]) -> bool:
    """Tell whether a function of another package makes FSDP1's models, which rewriting does not change.

    Example:
        >>> is_made_by_others(["from fairseq2.nn.fsdp import to_fsdp; model = to_fsdp(net, gang)"])
        True
    """
    found = [match for text in texts if _IMPORTS.search(text) for match in _NAMES.finditer(text)]
    names = {match["name"] for match in found if match["name"]}
    own = {name for name in names if any(f"def {name}(" in text for text in texts)}
    return any(match["name"] not in own for match in found)


def own_packages(texts: Mapping[Path, str]) -> frozenset[str]:
    """Return which of those packages a project is itself: what makes models there is rewritten with the rest.

    Example:
        >>> from pathlib import Path
        >>> own_packages({Path("tnt/torchtnt/utils/a.py"): "def prepare_fsdp(module): ...", Path("b.py"): ""})
        frozenset({'torchtnt'})
    """
    homes = (path.parts for path, text in texts.items() if _DEFINES.search(text))
    return frozenset(name for parts in homes for name in _PACKAGES if name in parts[:-1])


def maker_of(call: cst.Call, names: Collection[str]) -> str:
    """Return the function of another package that a call makes FSDP1's model by, or nothing.

    Ray's makes one by ``parallel_strategy="fsdp"``.
    """
    made = next(filter(catalog.MADE_BY_OTHERS.match, sorted(names)), "")
    told = given_by_name(call, "parallel_strategy")
    is_asked = not made.startswith("ray.") or any(word_of(each) == "fsdp" for each in told)
    return made if is_asked else ""
