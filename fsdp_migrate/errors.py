"""Every exception that fsdp-migrate raises on purpose.

    FSDPMigrateError
    ├── ConfigError (ValueError)                     an FSDP1 or FSDP2 argument that means nothing
    │   └── NothingToConvertError                    a config or command in which no FSDP1 settings are known
    ├── UnsupportedFeatureError (NotImplementedError) understood, and not possible here; names the feature
    ├── WrapPolicyError (ValueError)                 an auto-wrap policy that cannot be evaluated
    ├── ModelError (ValueError)                      a model that cannot be sharded as asked
    ├── OptimizerError (ValueError)                  an optimizer that does not belong to the model
    ├── ProcessGroupError (RuntimeError)             no process group, or one that does not fit
    ├── ModelStateError (RuntimeError)               a model in no state for what was asked
    ├── FindingsError (ValueError)                   findings that the caller asked to treat as errors
    ├── ParityError (RuntimeError)                   a run that does not train as under FSDP1
    ├── MicrobatchError (ValueError)                 microbatches that cannot be run
    ├── RankError (RuntimeError)                     a process of a launched group failed
    │   ├── BatchError                               a rank failed within a batch, and every rank stopped
    │   │   └── BatchOutOfMemoryError (MemoryError)  for lack of memory; a smaller microbatch may do
    │   └── RanksDivergedError                       the ranks did not do the same collectives
    ├── SourceError (ValueError)                     a Python source that cannot be read, or written
    └── CheckpointError
        ├── CheckpointNotFoundError (FileNotFoundError)
        ├── CheckpointReadError (OSError)            the system could not read it: a bad disk, no permission
        ├── CheckpointMemoryError (MemoryError)      there is not enough memory for what was asked
        ├── CheckpointFormatError (ValueError)       unreadable, corrupt, or not a checkpoint of a known kind
        │   └── UnsafePickleError                    a pickle that asks for something outside the allow-list
        ├── CheckpointMismatchError (ValueError)     two checkpoints, or a checkpoint and a request, disagree
        ├── PlanError (ValueError)                   a conversion that cannot be done; holds every reason
        ├── OutputExistsError (FileExistsError)
        └── OutputError (OSError)                    the output could not be written; nothing is left of it

Each is also the builtin that a caller would expect. A message says what is wrong, where, what was expected
and found, and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fsdp_migrate.findings import Finding


class FSDPMigrateError(Exception):
    """Base of every error that fsdp-migrate raises on purpose."""


class ConfigError(FSDPMigrateError, ValueError):
    """An argument that means nothing: unknown, contradictory or of the wrong kind.

    ``field`` is the argument's dotted name, or None where no single one is to blame.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class NothingToConvertError(ConfigError):
    """A config, a script or a command in which no FSDP1 settings are known.

    ``names_fsdp`` tells whether something in it names FSDP all the same: settings of a framework that is not
    known here, or such that may be of several. ``holds_arguments`` tells whether it has arguments of
    ``FullyShardedDataParallel`` for code of its own, ``is_switch`` whether all that names FSDP are switches
    of such code: ``use_fsdp: true``, and ``is_own`` whether code of the project is seen to look its keys up.
    """

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        names_fsdp: bool,
        holds_arguments: bool = False,
        is_switch: bool = False,
        is_own: bool = False,
    ) -> None:
        super().__init__(message, field=field)
        self.names_fsdp = names_fsdp
        self.holds_arguments = holds_arguments
        self.is_switch = is_switch
        self.is_own = is_own

    def saying(self, message: str) -> NothingToConvertError:
        """Return the same error with another text."""
        return NothingToConvertError(
            message,
            field=self.field,
            names_fsdp=self.names_fsdp,
            holds_arguments=self.holds_arguments,
            is_switch=self.is_switch,
            is_own=self.is_own,
        )


class UnsupportedFeatureError(FSDPMigrateError, NotImplementedError):
    """Something that is understood and cannot be done here; ``feature`` names it."""

    def __init__(self, message: str, *, feature: str | None = None) -> None:
        super().__init__(message)
        self.feature = feature


class WrapPolicyError(FSDPMigrateError, ValueError):
    """An auto-wrap policy that cannot be evaluated on this model."""


class ModelError(FSDPMigrateError, ValueError):
    """A model that cannot be sharded as asked; ``fqn`` names the module or parameter."""

    def __init__(self, message: str, *, fqn: str | None = None) -> None:
        super().__init__(message)
        self.fqn = fqn


class OptimizerError(FSDPMigrateError, ValueError):
    """An optimizer that does not belong to the model that is being sharded."""


class ProcessGroupError(FSDPMigrateError, RuntimeError):
    """No process group, or one that does not fit the arguments."""


class ModelStateError(FSDPMigrateError, RuntimeError):
    """A model in no state for what was asked: in the middle of a forward, summoned, not finite."""


class FindingsError(FSDPMigrateError, ValueError):
    """Findings that stop the work: refused ones always, changed ones under ``strict``.

    ``findings`` holds those that stop it; ``strict`` tells whether only ``strict`` made them errors.
    """

    def __init__(self, message: str, *, findings: Sequence[Finding], strict: bool) -> None:
        super().__init__(message)
        self.findings = tuple(findings)
        self.strict = strict

    @property
    def first_reason(self) -> str:
        r"""The first thing that stops it, without the line that counts them.

        Example:
            >>> FindingsError("2 things:\n  one\n  two", findings=(), strict=False).first_reason
            'one'
        """
        head, _, rest = str(self).partition("\n")
        return rest.partition("\n")[0].strip() if head.endswith(":") and rest else head


class ParityError(FSDPMigrateError, RuntimeError):
    """A run that does not train as under FSDP1. ``report`` is the ``ParityReport`` of what was compared."""

    def __init__(self, message: str, *, report: object = None) -> None:
        super().__init__(message)
        self.report = report


class MicrobatchError(FSDPMigrateError, ValueError):
    """Microbatches that cannot be run: none on any rank, or other settings on other ranks."""


class RankError(FSDPMigrateError, RuntimeError):
    """A process of a launched group failed."""


class BatchError(RankError):
    """A rank failed within a batch, so that every rank stopped. ``reasons`` says why, by rank."""

    def __init__(self, message: str, *, reasons: Mapping[int, str]) -> None:
        super().__init__(message)
        self.reasons = dict(reasons)


class BatchOutOfMemoryError(BatchError, MemoryError):
    """Ranks ran out of memory within a batch, and none failed for another reason."""


class RanksDivergedError(RankError):
    """Ranks were about to do different collectives; ``operations`` says which, by rank."""

    def __init__(self, message: str, *, operations: Mapping[int, str]) -> None:
        super().__init__(message)
        self.operations = dict(operations)


class SourceError(FSDPMigrateError, ValueError):
    """A Python source that cannot be read as Python, or not be rewritten; ``path`` names it."""

    def __init__(self, message: str, *, path: object = None) -> None:
        super().__init__(message)
        self.path = None if path is None else str(path)


class CheckpointError(FSDPMigrateError):
    """Base of what can be wrong with a checkpoint; ``path`` is the file or folder at fault."""

    def __init__(self, message: str, *, path: object = None) -> None:
        super().__init__(message)
        self.path = None if path is None else str(path)


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """There is nothing at the path."""


class CheckpointReadError(CheckpointError, OSError):
    """The system could not read a file of the checkpoint: a bad disk, a lost connection, no permission."""


class CheckpointMemoryError(CheckpointError, MemoryError):
    """There is not enough memory to read, convert or compare a checkpoint. Nothing is left of an output."""


class CheckpointFormatError(CheckpointError, ValueError):
    """Unreadable, corrupt, or not a checkpoint of a known kind."""


class UnsafePickleError(CheckpointFormatError):
    """A pickle that asks for a global outside the allow-list; nothing of it was executed.

    ``global_name`` is what it asked for, or None where an opcode is to blame.
    """

    def __init__(self, message: str, *, path: object = None, global_name: str | None = None) -> None:
        super().__init__(message, path=path)
        self.global_name = global_name


class CheckpointMismatchError(CheckpointError, ValueError):
    """Two checkpoints, or a checkpoint and a request, disagree.

    ``advice``, the last line of the message, says what to do in the words of who was called.
    """

    def __init__(self, message: str, *, advice: str = "", path: object = None) -> None:
        super().__init__(f"{message}\n{advice}" if advice else message, path=path)
        self.advice = advice

    def advising(self, advice: str) -> CheckpointMismatchError:
        """Return the same error with the advice of a caller, who has other words for it.

        Example:
            >>> error = CheckpointMismatchError("2 groups.", advice="Pass `strict=False`.")
            >>> print(error.advising("Give `--one`."))
            2 groups.
            Give `--one`.
        """
        said = str(self).removesuffix(f"\n{self.advice}") if self.advice else str(self)
        return CheckpointMismatchError(said, advice=advice, path=self.path)


class PlanError(CheckpointError, ValueError):
    """A conversion that cannot be done. ``findings`` holds every reason, not only the first."""

    def __init__(self, message: str, *, findings: Sequence[Finding] = (), path: object = None) -> None:
        super().__init__(message, path=path)
        self.findings = tuple(findings)


class OutputExistsError(CheckpointError, FileExistsError):
    """The output is there already and ``overwrite`` was not asked for."""


class OutputError(CheckpointError, OSError):
    """The output could not be written. Nothing is left of it; the source is as it was."""


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether the system gave no more memory; torch, the loader of libraries and threads say it so.

    Example:
        >>> is_out_of_memory(RuntimeError("can't start new thread")), is_out_of_memory(RuntimeError("no"))
        (True, False)
    """
    signs = {
        RuntimeError: ("can't allocate memory", "can't start new thread"),
        ImportError: ("failed to map segment", "cannot allocate memory"),
        OSError: ("cannot allocate memory",),
    }
    text = str(error).lower()
    said = (sign for kind, words in signs.items() if isinstance(error, kind) for sign in words)
    return isinstance(error, MemoryError) or any(sign in text for sign in said)
