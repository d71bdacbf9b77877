"""Packages that a project imports and does not have: what they have for FSDP may be for FSDP1's models."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.project import parts_of
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.reach import written_imports


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fsdp_migrate.source.project import Project
    from fsdp_migrate.source.python.links import Links


# They take FSDP2's models as well, or other rules speak of what they do.
_KNOWN: Final = frozenset(
    {
        *("accelerate", "composer", "deepspeed", "fairscale", "fsdp_migrate", "lightning"),
        *("lightning_fabric", "megatron", "peft", "pytorch_lightning", "torch", "torch_xla", "transformers"),
    }
)


_CLASSES: Final = re.compile(r"^[ \t]*class[ \t]+(\w+)([^\n]*)\n((?:[ \t][^\n]*\n|\n)*)", re.MULTILINE)
_DOCSTRINGS: Final = re.compile(r"\"\"\"[^\"]*(?:\"{1,2}[^\"]+)*\"\"\"|'''[^']*(?:'{1,2}[^']+)*'''|#[^\n]*")
# Of another base it is not seen whether it steps.
_BASES: Final = frozenset({"", "ABC", "Callback", "LightningModule", "Module", "object"})
_STEPS: Final = re.compile(r"\bdef step\b|\bparam_groups\b|\.step\(|[Oo]ptim\w*\(")
_DEFINED: Final = re.compile(r"\b(?:class|def)\s+(\w+)")

# It stands in torch's name, and is another's: SageMaker's, in its containers alone.
_WITHIN_TORCH: Final = "torch.sagemaker"


def with_foreign_packages(project: Project, links: dict[Path, Links]) -> dict[Path, Links]:
    """Tell each file that speaks of FSDP which packages it imports from that are not the project's."""
    naming = [path for path, text in project.texts.items() if "fsdp" in text.lower() or path in links]
    defined = frozenset(name for text in project.texts.values() for name in _DEFINED.findall(text))
    own = {part for path in project.texts for part in parts_of(path)}
    found: dict[Path, frozenset[str]] = {}
    for path in naming:
        written = (name for name, _ in written_imports(project.texts[path]) if not name.startswith("."))
        tops = {_WITHIN_TORCH if _is_in_torch(name) else name.partition(".")[0] for name in written}
        found[path] = frozenset(tops - own - _KNOWN - set(path.parts) - sys.stdlib_module_names)
    stepping = frozenset(name for text in project.texts.values() for name in _stepping(text))
    told = {
        path: replace(links.get(path, NOTHING), foreign=names, defined=defined, stepping=stepping)
        for path, names in found.items()
    }
    return {**links, **told}


def _stepping(text: str) -> Iterator[str]:
    """Yield the classes of a text that may be optimizers: by their bases, a ``step``, or groups."""
    code = _DOCSTRINGS.sub("", text) if "class" in text else ""
    for name, bases, body in _CLASSES.findall(code):
        if not _has_known_bases(bases) or _STEPS.search(body) is not None:
            yield name


def _has_known_bases(written: str) -> bool:
    """Tell whether what stands behind the name of a class gives it no base that may step."""
    bases, is_closed, _ = written.strip().removeprefix("(").partition(")")
    names = {each.strip().rpartition(".")[2] for each in bases.split(",")}
    return written.strip().startswith(":") or (bool(is_closed) and names <= _BASES)


def _is_in_torch(name: str) -> bool:
    return f"{name}.".startswith(f"{_WITHIN_TORCH}.")
