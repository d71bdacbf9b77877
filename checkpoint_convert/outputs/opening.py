"""Start an output, go on with one, or join one, wherever it lies."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from fsdp_migrate.checkpoint_convert.outputs.local import LocalOutput
from fsdp_migrate.checkpoint_convert.storage.folders import Location, is_url, local_path


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.checkpoint_convert.outputs.output import Output


def open_output(
    dst: Location, *, source: str, overwrite: bool, resume: bool = False, keeps_others: bool = False
) -> Output:
    """Start an output, or go on with one.

    Args:
        dst: Where it is to be.
        source: The source, which it may not touch.
        overwrite: Replace one that is there.
        resume: Go on with one that was not finished.
        keeps_others: Of a model's folder that is replaced, only the weights are: what else is in it stays.

    Raises:
        OutputExistsError: It is there already, and may not be overwritten; or an interrupted conversion left
            something, and neither ``resume`` nor ``overwrite`` says what to do with it.
        OutputError: It cannot be there: it is the source, or one lies inside the other, or another process
            is writing it.
    """
    if is_url(dst):
        from fsdp_migrate.checkpoint_convert.outputs.object_store import FsspecOutput

        return FsspecOutput(
            os.fspath(dst), source=source, overwrite=overwrite, resume=resume, keeps_others=keeps_others
        )
    return LocalOutput(
        local_path(dst), source=source, overwrite=overwrite, resume=resume, keeps_others=keeps_others
    )


def join_output(dst: Location, state: Mapping[str, Any], rank: int) -> Output:
    """Write along into an output that rank 0 has begun, and said ``state`` about."""
    if is_url(dst):
        from fsdp_migrate.checkpoint_convert.outputs.object_store import JoinedFsspecOutput

        return JoinedFsspecOutput(os.fspath(dst), state, rank)
    from fsdp_migrate.checkpoint_convert.outputs.joined_output import JoinedOutput

    return JoinedOutput(local_path(dst), state, rank)
