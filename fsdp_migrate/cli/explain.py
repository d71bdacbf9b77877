"""The command ``explain``: what a finding means, why it is so, and what to do."""

from __future__ import annotations

from typing import Annotated

import typer

from fsdp_migrate.cli.document import write_document
from fsdp_migrate.cli.options import Json


Codes = Annotated[
    list[str] | None,
    typer.Argument(metavar="CODE...", help="Codes of findings, such as FM217.", show_default=False),
]


def explain(codes: Codes = None, json: Json = False) -> int:
    """Say what the code of a finding means, why it is so, and what to do.

    Needs no network. Without CODE it lists all codes.
    """
    from fsdp_migrate.cli.render import explanations
    from fsdp_migrate.explanations import EXPLANATIONS, explain_code

    found = [explain_code(code) for code in codes] if codes else list(EXPLANATIONS.values())
    if json:
        write_document("explain", {"explanations": [each.as_dict() for each in found]})
    elif codes:
        explanations.show_explanations(found)
    else:
        explanations.show_codes(found)
    return 0
