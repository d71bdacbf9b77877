"""Composer's search for a microbatch size in evaluation: ranks agree on memory that has run out."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fsdp_migrate.errors import BatchOutOfMemoryError
from fsdp_migrate.microbatch import Microbatches, microbatches


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn


logger = logging.getLogger(__name__)

_RUNNING = ("eval_forward", "update_metric")


@contextmanager
def agreeing_evaluation(
    model: nn.Module, data: Any, metrics: Mapping[str, Any], out_of_memory: Callable[[], Exception]
) -> Iterator[None]:
    """Surround Composer's loop over the batches of an evaluation that searches for a microbatch size.

    In that loop a rank that has run out of memory goes to a collective that asks the others, while these are
    in the middle of a forward: all would wait. Here they vote before each all-gather, as in training, and all
    leave the batch at the same place, by the error at which Composer takes a smaller size. Metrics are put
    back, which Composer counts again from the batch's start.

    Args:
        model: The ``ComposerModel``. Its functions are wrapped for the time of the loop.
        data: The evaluator's ``DataSpec``, whose function that splits batches is wrapped too.
        metrics: The metrics that the loop updates.
        out_of_memory: Makes the error by which Composer knows that memory has run out.
    """
    split = data.split_batch
    loop = _Loop(model, metrics, out_of_memory)

    def split_batch(batch: Any, size: Any) -> _Parts:
        return _Parts(split(batch, size), loop)

    data.split_batch = split_batch
    own = {name: vars(model)[name] for name in _RUNNING if name in vars(model)}
    for name in _RUNNING:
        setattr(model, name, loop.guard(getattr(model, name)))
    try:
        yield
    finally:
        data.split_batch = split
        for name in _RUNNING:
            delattr(model, name)
            if name in own:
                setattr(model, name, own[name])


class _Loop:
    """The microbatches of the batch that is being evaluated."""

    def __init__(
        self, model: nn.Module, metrics: Mapping[str, Any], out_of_memory: Callable[[], Exception]
    ) -> None:
        self._model = model
        self._metrics = metrics
        self._out_of_memory = out_of_memory
        self._running: Microbatches[Any] | None = None
        self._before: dict[str, Any] = {}

    def begin(self, parts: Sequence[Any]) -> Iterator[Any]:
        """Yield a batch's microbatches."""
        # Those of a batch in one part are updated once all ranks have run it.
        # With several parts the first ones are counted already when memory runs out in a later one.
        kept = self._metrics if len(parts) > 1 else {}
        self._before = {name: copy.deepcopy(metric.__getstate__()) for name, metric in kept.items()}
        self._running = microbatches(self._model, parts, agree=True)
        while True:
            with self._telling():
                part = next(self._running, self)
            if part is self:
                self._running = None
                return
            try:
                yield part
            except GeneratorExit:  # something else in Composer's loop has failed
                self._leave()
                raise

    def _leave(self) -> None:
        """Tell the other ranks that this one has left the batch."""
        running, self._running = self._running, None
        if running is not None:
            running.give_way()

    def guard(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that tells the other ranks when this one fails in it."""

        @functools.wraps(call)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if self._running is None:
                return call(*args, **kwargs)
            with self._telling():
                return call(*args, **kwargs)

        return guarded

    @contextmanager
    def _telling(self) -> Iterator[None]:
        running = self._running
        try:
            if running is None:
                yield
                return
            # Composer may go on using it after this part: only an error ends it.
            try:
                yield
            except Exception as error:
                self._running = None
                running.__exit__(type(error), error, error.__traceback__)
                raise
        except BatchOutOfMemoryError as error:
            for name, state in self._before.items():
                vars(self._metrics[name]).update(state)  # `__setstate__` would wrap its functions again
            logger.info("%s", error)
            # Not `from error`: its traceback holds activations.
            raise self._out_of_memory() from None


class _Parts(Sequence[Any]):
    """The microbatches of a batch: run by all ranks together when they are iterated over."""

    def __init__(self, parts: Sequence[Any], loop: _Loop) -> None:
        self._parts = parts
        self._loop = loop

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: Any) -> Any:
        return self._parts[index]

    def __iter__(self) -> Iterator[Any]:
        return self._loop.begin(self._parts)
