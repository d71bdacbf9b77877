"""What people see of a converted config."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape

from fsdp_migrate.cli.render.findings import NEED_ACTION, show_findings
from fsdp_migrate.cli.render.screen import console


if TYPE_CHECKING:
    from fsdp_migrate.config_files import ConfigConversion


# Where the settings are all that stands in a file, as in HF Trainer's JSON, no key leads to them.
_WHOLE = "the whole file"
STATES = {
    "converted": "converted to FSDP2",
    "fsdp2": "FSDP2 already, unchanged",
    "unused": "FSDP is off here, unchanged",
    "unchanged": "nothing to convert here",
}


def show_config(report: ConfigConversion, *, check: bool, everything: bool = False) -> None:
    """Show what became of each block of FSDP settings, what needs action, and what was written.

    A converted command is on stdout alone; what is to be said of it goes to stderr.
    """
    aside = report.is_command and not check
    out = console(aside=aside)
    findings = [
        {**finding.as_dict(), "subject": _WHOLE if finding.subject == "." else finding.subject}
        for finding in report.conversion.findings
    ]
    # Where nothing is converted, all of them are the answer why.
    has_nothing = report.has_nothing and not report.is_changed
    is_left = all(block.state == "unchanged" for block in report.conversion.blocks)
    show_findings(findings, everything=everything or has_nothing or is_left, aside=aside)
    for block in report.conversion.blocks:
        state = STATES[block.state].replace("converted", "to be converted") if check else STATES[block.state]
        place = _WHOLE if block.path == "." else f"`{block.path}`"
        if block.framework == "none":
            out.print(escape(f"{place}: FSDP is off, unchanged."))
        else:
            out.print(escape(f"{block.framework}: {place}: {state}."))
        if block.code:
            out.print("This must stand in your code:")
            out.print(escape(block.code), soft_wrap=True)
    if report.backup is not None:
        out.print(escape(f"{report.path} was replaced; the old text is kept in {report.backup}."))
    elif report.output is not None:
        out.print(escape(f"Written to {report.output}."))
    elif not report.is_changed:
        is_yours = any(finding["fidelity"] in NEED_ACTION for finding in findings)
        rest = " What is said above is left to you." if is_yours and not has_nothing else ""
        out.print(f"Nothing to convert.{rest}")
    elif not report.is_command:
        out.print("Nothing was written." if check else "Nothing was written: give `-o OUT`, or `--write`.")
