"""What the ranks see when rank 0 fails in what it alone looks at."""

from __future__ import annotations

from fsdp_migrate.adapters.composer_trainer.checkpoints import _from_rank0


def _fail() -> None:
    raise KeyError("not foreseen")


def fail_on_rank0() -> tuple[str, str]:
    try:
        _from_rank0(_fail)
    except Exception as error:
        return type(error).__name__, str(error)
    return "no error", ""
