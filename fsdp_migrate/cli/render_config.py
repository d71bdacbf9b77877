"""What people see of a converted config, on stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape

from fsdp_migrate.cli.render import console, show_findings


if TYPE_CHECKING:
    from fsdp_migrate.config_files import ConfigConversion


STATES = {
    "converted": "converted to FSDP2",
    "fsdp2": "FSDP2 already, unchanged",
    "unused": "not read by its stack, unchanged",
}


def show_config(report: ConfigConversion, *, check: bool) -> None:
    """Show what became of each block of FSDP settings, every finding, and what was written."""
    out = console()
    show_findings([finding.as_dict() for finding in report.conversion.findings])
    for block in report.conversion.blocks:
        state = STATES[block.state].replace("converted", "to be converted") if check else STATES[block.state]
        out.print(escape(f"{block.stack}: `{block.path}`: {state}."))
        if block.code:
            out.print("This must stand in your code:")
            out.print(escape(block.code), soft_wrap=True)
    if report.backup is not None:
        out.print(escape(f"{report.path} was replaced; as it was it is kept in {report.backup}."))
    elif report.output is not None:
        out.print(escape(f"Written to {report.output}."))
    elif report.is_changed and not report.is_command:
        out.print("Nothing was written." if check else "Nothing was written: give `-o OUT`, or `--write`.")
