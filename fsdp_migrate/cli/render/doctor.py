"""What the doctor shows: each fault that is there, what was seen of it, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.cli.render.screen import console
from fsdp_migrate.findings import counted


if TYPE_CHECKING:
    from fsdp_migrate.doctor import Diagnosis


_OPTIONS = {
    "config": "--config FILE",
    "model": "--model PKG.MOD:FACTORY",
    "checkpoint": "--checkpoint CKPT",
    "sources": "PATH",
}


def show_diagnosis(diagnosis: Diagnosis) -> None:
    """Show the faults, then what was looked at, and what else could be."""
    out = console()
    for each in diagnosis.symptoms:
        fault = each.fault
        out.print(fault.name, style="bold", markup=False)
        out.print(f"  {fault.says}", markup=False)
        out.print(f"  seen:       {each.seen}", markup=False)
        out.print(f"  what to do: {fault.action}", markup=False)
        where = fault.url or "measured by us"
        out.print(f"  {fault.versions}; {where}, looked up {fault.looked_up}", markup=False)
        out.print()
    if diagnosis.problem:
        out.print(f"The model cannot be planned: {diagnosis.problem}", markup=False)
    versions = ", ".join(f"{name} {version}" for name, version in diagnosis.versions.items())
    out.print(f"Installed: {versions or 'none of the packages that are known'}.", markup=False)
    others = [option for what, option in _OPTIONS.items() if what not in diagnosis.looked_at]
    if others:
        out.print(f"More can be seen with {', '.join(others)}.", markup=False)
    found = counted(len(diagnosis.symptoms), "known fault")
    out.print(
        f"{found} of the {diagnosis.num_looked_for} that were looked for ({diagnosis.num_known} are known).",
        markup=False,
    )
