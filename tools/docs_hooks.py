"""What mkdocs needs beside its own: the package as it is imported, docstrings in Markdown, and a picture."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any


ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import picture  # noqa: E402


API = ROOT / "build" / "api"
_ROLE = re.compile(r":(?:func|class|meth|mod|attr|data):`~?(?:[\w.]+\.)?(\w+)`")
_EXAMPLE = re.compile(r"^( +)Example:$", re.MULTILINE)


def on_startup(**_: Any) -> None:
    """Copy the folders of code to where they are imported from, so that no torch is needed to read them."""
    shutil.rmtree(API, ignore_errors=True)
    package = API / "fsdp_migrate"
    for folder, target in (
        ("fsdp_migrate", package),
        ("adapters", package / "adapters"),
        ("checkpoint_convert", package / "checkpoint_convert"),
    ):
        for source in (ROOT / folder).rglob("*.py"):
            path = target / source.relative_to(ROOT / folder)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(as_markdown(source.read_text(encoding="utf-8")), encoding="utf-8")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Draw the pictures of a page, which code hosts draw by themselves."""
    return picture.BLOCK.sub(lambda found: picture.draw(found[1]), markdown)


def as_markdown(source: str) -> str:
    """Return a source with docstrings as the site reads them: names for Sphinx's roles, examples as such.

    Example:
        >>> as_markdown("see :func:`~a.b.call`")
        'see `call`'
    """
    return _EXAMPLE.sub(r"\1Examples:", _ROLE.sub(r"`\1`", source))
