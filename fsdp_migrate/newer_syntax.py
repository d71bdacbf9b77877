"""Sources that are written for a Python newer than this one, as far as following names needs them."""

from __future__ import annotations

import ast
import warnings

from fsdp_migrate.plain_assigns import with_plain_assigns


def parse_any(text: str) -> ast.Module:
    """Parse a source of this Python, or of a newer one; assignments that say a type are plain ones then.

    Raises:
        SyntaxError: It is no Python that is known here.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes that Python does not know
        try:
            return with_plain_assigns(ast.parse(text))
        except SyntaxError:
            return parse_newer(text)


def parse_newer(text: str) -> ast.Module:
    """Parse a source that this Python's own parser does not take; its f-strings come out empty.

    Raises:
        SyntaxError: It is no Python that is known here.
    """
    from fsdp_migrate.older_syntax import as_older  # where it is needed: seldom

    return with_plain_assigns(ast.parse(as_older(text)))
