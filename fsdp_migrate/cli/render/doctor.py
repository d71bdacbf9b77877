"""What the doctor shows: each fault that is there, what was seen of it, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.cli.render.screen import console, escape, print_text
from fsdp_migrate.doctor.known import HARMS
from fsdp_migrate.findings import counted


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.doctor import Diagnosis


HANDLED = (
    "These hit you where a framework's own FSDP2 shards the model, as with a config of Accelerate's or HF "
    "Trainer's, or code that calls `fully_shard` itself. They hit no model of `prepare_fully_shard`:"
)
_OPTIONS = {
    "config": "--config FILE",
    "model": "--model PKG.MOD:FACTORY",
    "checkpoint": "--checkpoint CKPT",
    "sources": "PATH",
}


def show_diagnosis(diagnosis: Diagnosis) -> None:
    """Show what needs action, the worst first; what is handled; what was looked at, and what could be."""
    out = console()
    for each in diagnosis.needed:
        fault = each.fault
        out.print(f"[bold]{escape(fault.name)}[/] ({HARMS[fault.harm]})", soft_wrap=True)
        print_text(out, fault.says, indent="  ")
        print_text(out, each.seen, indent=" " * 14, first="  seen:       ")
        print_text(out, fault.action, indent=" " * 14, first="  what to do: ")
        where = fault.url or "measured by us"
        print_text(out, f"Versions: {fault.versions}; {where}, looked up {fault.looked_up}", indent="  ")
        out.print()
    if diagnosis.handled:
        out.print(f"[bold]{HANDLED}[/]", soft_wrap=True)
    for each in diagnosis.handled:
        out.print(f"  {escape(each.fault.name)} ({HARMS[each.fault.harm]})", soft_wrap=True)
        print_text(out, f"{each.fault.says} Seen: {each.seen}. {each.fault.action}", indent="    ")
    if diagnosis.handled:
        out.print()
    if diagnosis.problem:
        print_text(out, f"The model cannot be planned: {diagnosis.problem}")
    for text in about_versions(diagnosis):
        print_text(out, text)
    others = [option for what, option in _OPTIONS.items() if what not in diagnosis.looked_at]
    if others:
        print_text(out, f"More can be seen with {', '.join(others)}.")
    print_text(out, diagnosis_verdict(diagnosis))


def about_versions(diagnosis: Diagnosis) -> Iterator[str]:
    """Say which versions are installed here, and where the repository asks for others."""
    versions = ", ".join(f"{name} {version}" for name, version in diagnosis.versions.items())
    yield f"Installed: {versions or 'none of the packages that are known'}."
    for pin in diagnosis.pinned:
        yield (
            f"{pin.path}:{pin.line} asks for {pin.package} {pin.version}, which is not what is installed "
            "here: run `doctor` there too."
        )


def diagnosis_verdict(diagnosis: Diagnosis) -> str:
    """Say in a sentence how many faults there are, and how many were looked for."""
    hit = "hits" if len(diagnosis.needed) == 1 else "hit"
    found = f"{counted(len(diagnosis.needed), 'known fault')} {hit} you"
    if count := len(diagnosis.handled):
        do = "does" if count == 1 else "do"
        found += f", and {count} more {do} where a framework's own FSDP2 shards the model"
    return f"{found}; {diagnosis.num_looked_for} were looked for ({diagnosis.num_known} are known)."
