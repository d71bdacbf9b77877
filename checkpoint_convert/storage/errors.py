"""What the system and the clients of services say, as errors of this package."""

from __future__ import annotations

import contextlib
import traceback
from typing import TYPE_CHECKING, Final

from fsdp_migrate.errors import (
    CheckpointFormatError,
    CheckpointMemoryError,
    CheckpointNotFoundError,
    CheckpointReadError,
    FSDPMigrateError,
    OutputError,
    is_out_of_memory,
)


if TYPE_CHECKING:
    from collections.abc import Iterator


_PACKAGE: Final = "fsdp_migrate"


@contextlib.contextmanager
def reading_from(url: str) -> Iterator[None]:
    """Turn what the client of a service says into an error of this package."""
    try:
        yield
    except FileNotFoundError as error:
        raise CheckpointNotFoundError(f"There is nothing at {url!r}.", path=url) from error
    except Exception as error:
        if _is_ours(error):
            raise
        wrapped = CheckpointReadError(_say(url, "read", error), path=url)
        wrapped.errno = getattr(error, "errno", None)
        raise wrapped from error


@contextlib.contextmanager
def writing_to(url: str) -> Iterator[None]:
    """Turn what the client of a service says into an :class:`OutputError`."""
    try:
        yield
    except Exception as error:
        # That a file exists is an answer: of two conversions that begin at once, one gets it.
        if _is_ours(error) or isinstance(error, FileExistsError):
            raise
        wrapped = OutputError(_say(url, "written", error), path=url)
        wrapped.errno = getattr(error, "errno", None)
        raise wrapped from error


@contextlib.contextmanager
def within_limits(what: str) -> Iterator[None]:
    """Turn what Python and the system say where something is at an end into an error of this package.

    Args:
        what: What was being done, as an infinitive: ``"convert the checkpoint"``.
    """
    try:
        yield
    except FSDPMigrateError as error:
        # The system says so of a file, too: ENOMEM.
        if isinstance(error, MemoryError) or not is_out_of_memory(error):
            raise
        raise CheckpointMemoryError(_MEMORY.format(what), path=getattr(error, "path", None)) from error
    except RecursionError as error:
        msg = f"Something in the checkpoint is nested too deeply to {what}."
        raise CheckpointFormatError(msg) from error
    except Exception as error:
        if is_out_of_memory(error):
            raise CheckpointMemoryError(_MEMORY.format(what)) from error
        if not isinstance(error, OSError) or isinstance(error, BrokenPipeError):
            raise
        msg = f"The system could not {what}: {error}. Nothing is left of an unfinished output."
        kind = CheckpointNotFoundError if isinstance(error, FileNotFoundError) else CheckpointReadError
        wrapped = kind(msg, path=error.filename)
        wrapped.errno = error.errno
        raise wrapped from error


_MEMORY: Final = (
    "There is not enough memory to {}. Give the process more, or lower `buffer_bytes` (--buffer) where it is "
    "an option. Nothing is left of an unfinished output."
)


def _is_ours(error: Exception) -> bool:
    """Tell whether an error is one of this package, or a mistake in it, and not of a service.

    Clients say it in Python's own words, too: a ``ValueError`` for a URL that they cannot read.
    """
    if isinstance(error, FSDPMigrateError | MemoryError | RecursionError):
        return True
    if type(error).__module__ != "builtins" or isinstance(error, OSError):
        return False
    # The last frame is where it was raised: a mistake of this package if that is its code.
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith(f"{_PACKAGE}.")


def _say(url: str, what: str, error: Exception) -> str:
    # The classes of botocore, aiohttp, gcsfs and others; none of them is a dependency.
    kind = type(error).__name__
    if isinstance(error, PermissionError):
        return (
            f"{url!r} could not be {what}: access is denied ({error}). Use credentials that have "
            "access, or ask for the permission."
        )
    if "Credential" in kind or "TokenRetrieval" in kind:
        return (
            f"{url!r} could not be {what}: there are no credentials for it, or they have expired ({error}). "
            "Give them as the service's own tools take them; for S3 in AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or by AWS_PROFILE."
        )
    if isinstance(error, FileNotFoundError):
        return f"{url!r} could not be {what}: the bucket, or the folder, is not there ({error})."
    return f"{url!r} could not be {what}: {kind}: {error}."


def read_error(message: str, path: object, error: OSError) -> CheckpointReadError:
    """Return the error for something that the system could not read, with the system's own number."""
    wrapped = CheckpointReadError(message, path=path)
    wrapped.errno = error.errno
    return wrapped
