"""The error that says why a conversion cannot be done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fsdp_migrate.errors import PlanError
from fsdp_migrate.findings import in_lines


if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsdp_migrate.checkpoint_convert.manifest.manifest import Manifest
    from fsdp_migrate.findings import Finding


_MAX_SHOWN: Final = 20


def plan_error(manifest: Manifest, refused: Sequence[Finding]) -> PlanError:
    """Return the error that holds every reason."""
    reasons = (f"{f.code} `{f.subject}`: {f.message}{f' {f.hint}' if f.hint else ''}" for f in refused)
    msg = f"{manifest.source!r} cannot be converted:\n{in_lines(reasons, _MAX_SHOWN)}"
    return PlanError(msg, findings=refused, path=manifest.source)
