"""Composer Trainers whose first batches are compared with FSDP1's, beside the same without."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from tests.rank_bodies.composer_training import Run, prepare, train


if TYPE_CHECKING:
    from fsdp_migrate.parity import ParityReport


def verify_all(
    cases: dict[str, Run], alone: tuple[str, ...] = (), saving: Run | None = None
) -> dict[str, dict[str, Any]]:
    """Do each run with ``verify_steps``, and without, but for those named; return what differs, and was said.

    ``saving`` is done before, by FSDP1.
    """
    prepare()
    if saving is not None:
        train(saving)
    return {name: _verify(run, is_alone=name in alone) for name, run in cases.items()}


def _verify(run: Run, *, is_alone: bool) -> dict[str, Any]:
    lines: list[str] = []
    last, last_without = _LastWords(), _LastWords()
    handler = _Lines(lines)
    logger = logging.getLogger("fsdp_migrate")
    logger.addHandler(handler)
    try:
        own = train(replace(run, trainer={**run.trainer, "callbacks": [_listener(last)]}))
    except Exception as error:
        own = {"error": f"{type(error).__name__}: {error}", "report": getattr(error, "report", None)}
    finally:
        logger.removeHandler(handler)
    found: dict[str, Any] = {"lines": lines, "report": own.get("report"), "error": own.get("error", "")}
    if "error" in own:
        return found
    found["report"] = last.report
    found["codes"] = [code for code, subject in own["findings"] if subject == "verify_steps"]
    if not is_alone:
        trainer = {**run.trainer, "callbacks": [_listener(last_without)]}
        without = train(replace(run, trainer=trainer, callback={**run.callback, "verify_steps": 0}))
        left = {name for name in own if not _same(own[name], without[name])} - {"findings"}
        found["differs"] = sorted(left | ({"hooks"} if last.hooks != last_without.hooks else set()))
    return found


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


class _Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        if "verify_steps" in record.getMessage():
            self.lines.append(record.getMessage())


@dataclass
class _LastWords:
    """What a Trainer leaves: what was compared, and how many hooks the model has."""

    report: ParityReport | None = None
    hooks: int = 0


def _listener(last: _LastWords) -> Any:
    from composer import Callback

    class Listener(Callback):  # type: ignore[misc,unused-ignore]
        def close(self, state: Any, logger: Any) -> None:
            del logger
            last.report = next(each.parity for each in state.callbacks if hasattr(each, "parity"))
            hooks = [
                len(module._forward_hooks) + len(module._forward_pre_hooks)
                for module in state.model.modules()
            ]
            last.hooks = sum(hooks) + ("loss" in vars(state.model))

    return Listener()
