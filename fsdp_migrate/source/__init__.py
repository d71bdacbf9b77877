"""Finds FSDP1 in Python sources, and rewrites them; on LibCST, without importing or running what it reads.

:func:`scan_source` and :func:`rewrite_source` work on text, :func:`scan_paths` and :func:`rewrite_paths` on
files. Each rule is a file of :mod:`fsdp_migrate.source.rules`; ``docs/rules.md`` lists them.
"""

from __future__ import annotations

from fsdp_migrate.source.rewriting import rewrite_source, scan_source
from fsdp_migrate.source.rewriting_files import RewriteReport, Rewritten, rewrite_paths
from fsdp_migrate.source.scanning import scan_paths
from fsdp_migrate.source.uses import FileReport, ScanReport, Use


__all__ = [
    "FileReport",
    "RewriteReport",
    "Rewritten",
    "ScanReport",
    "Use",
    "rewrite_paths",
    "rewrite_source",
    "scan_paths",
    "scan_source",
]
