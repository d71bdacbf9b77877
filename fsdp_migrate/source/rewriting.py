"""Text in, text out: :func:`scan_source` and :func:`rewrite_source`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.source.analysis import analyse, has_anything, report
from fsdp_migrate.source.edits import apply_edits
from fsdp_migrate.source.python.links import ALONE
from fsdp_migrate.source.python.parsing import told


if TYPE_CHECKING:
    from fsdp_migrate.source.python.links import Links
    from fsdp_migrate.source.uses import Use


def scan_source(code: str, path: str = "<source>") -> list[Use]:
    r"""Find every use of FSDP1 in a Python source. The source is neither imported nor run.

    Args:
        code: The text.
        path: The name under which uses are reported.

    Raises:
        SourceError: The text is no Python; or this package fails on it, which is a bug of its own.

    Example:
        >>> code = "from torch.distributed.fsdp import FullyShardedDataParallel as F\nmodel = F(net)\n"
        >>> [(use.line, use.rule, use.becomes) for use in scan_source(code) if use.code == "FM301"]
        [(2, 'constructor', 'prepare_fully_shard(net, {...})')]
    """
    return scan_linked(code, path, ALONE)


def scan_linked(code: str, path: str, links: Links) -> list[Use]:
    """Find every use, as :func:`scan_source` does, in a source of which other files say something."""
    if not has_anything(code, links):
        return []
    with told(path, links.failure):
        source, found = analyse(code, path, links)
        return report(path, source, found)


def rewrite_source(code: str, path: str = "<source>") -> str:
    r"""Turn what can be turned with certainty into FSDP2 code, and set a comment above what cannot.

    Formatting and everything else stay. Rewriting the result again changes nothing.

    Args:
        code: The text of a Python source.
        path: Its name, for messages.

    Returns:
        The new text; the same one if nothing of FSDP1 is in it.

    Raises:
        SourceError: The text is no Python; or this package fails on it, which is a bug of its own.

    Example:
        >>> code = "from torch.distributed.fsdp import FullyShardedDataParallel\n"
        >>> code += "model = FullyShardedDataParallel(net, device_id=0)\n"
        >>> print(rewrite_source(code), end="")
        from fsdp_migrate import prepare_fully_shard
        model = prepare_fully_shard(net, {"device_id": 0})
    """
    return rewrite_linked(code, path, ALONE)[0]


def rewrite_linked(code: str, path: str, links: Links) -> tuple[str, list[Use]]:
    """Rewrite a source of which other files say something; return its uses too, as they were before."""
    if not has_anything(code, links):
        return code, []
    with told(path, links.failure):
        source, found = analyse(code, path, links)
        uses = report(path, source, found)
        return apply_edits(source, [item for _, item in found]), uses
