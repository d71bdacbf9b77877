"""``auto_microbatch``: the largest microbatch that fits, found by halving when a rank runs out of memory."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from fsdp_migrate.errors import BatchOutOfMemoryError, MicrobatchError
from fsdp_migrate.findings import counted
from fsdp_migrate.microbatch.running import microbatches
from fsdp_migrate.sharding.rank_channel import channel_of
from fsdp_migrate.torch_compat.devices import accelerator_type


if TYPE_CHECKING:
    from torch import nn

    from fsdp_migrate.microbatch.running import Comms


logger = logging.getLogger(__name__)

BatchT = TypeVar("BatchT")
OutputT = TypeVar("OutputT")
Split = Callable[[BatchT, int], Sequence[BatchT]]


@dataclass(frozen=True)
class MicrobatchRun(Generic[OutputT]):
    """What :func:`auto_microbatch` returns.

    ``outputs`` is what the step returned for each of this rank's microbatches, in their order; ``size`` is
    the size that fitted, to begin with at the next batch; ``num_retries`` is how often it was halved.
    """

    outputs: list[OutputT]
    size: int
    num_retries: int


def auto_microbatch(
    model: nn.Module,
    batch: BatchT,
    step: Callable[[BatchT], OutputT],
    *,
    size: int | None = None,
    min_size: int = 1,
    split: Split[BatchT] | None = None,
    comms: Comms = "auto",
) -> MicrobatchRun[OutputT]:
    """Run a batch in microbatches, and again in smaller ones when any rank runs out of memory.

    All ranks must call it. They vote before each collective, as :func:`microbatches` does under ``agree``.
    When one has run out of memory, all stop, and gradients, buffers, random numbers and FSDP2 are put back;
    the batch is then run from its start with half the size, so that what comes out is what that size would
    have given from the beginning. What ``step`` itself keeps (sums of losses, counts) is not put back:
    return it instead.

    Args:
        model: A model sharded by :func:`prepare_fully_shard` or ``fully_shard``.
        batch: This rank's part of the batch. Ranks may have different numbers of rows.
        step: Runs forward and backward on a microbatch. It must divide the loss by what does not depend on
            the microbatch's size, such as the rows or tokens of the whole batch: see :func:`microbatches`.
        size: The rows of a microbatch to begin with, the same on every rank. None: the whole batch.
        min_size: The least size to try.
        split: Cuts a batch into microbatches of a size. None: cuts every tensor in tuples, lists and mappings
            along dimension 0, and hands on the rest as it is.
        comms: As for :func:`microbatches`.

    Returns:
        The outputs of the run that fitted, and its size.

    Raises:
        BatchOutOfMemoryError: ``min_size`` does not fit either; on every rank.
        BatchError: A rank failed for another reason; on every rank.
        MicrobatchError: There is nothing to run, the ranks have different sizes, or ``batch`` holds no tensor
            and there is no ``split``.

    Example:
        >>> import torch.distributed as dist
        >>> from torch.distributed.fsdp import fully_shard
        >>> from fsdp_migrate.runtime import end_process_group
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> model = fully_shard(torch.nn.Linear(2, 1), mesh=dist.init_device_mesh("cpu", (1,)))
        >>> def step(rows):
        ...     if len(rows) > 4:
        ...         raise torch.OutOfMemoryError("too many rows for this example")
        ...     (model(rows).sum() / 10).backward()
        ...     return len(rows)
        >>> run = auto_microbatch(model, torch.ones(10, 2), step)
        >>> run.outputs, run.size, run.num_retries
        ([2, 2, 2, 2, 2], 2, 2)
        >>> end_process_group()
    """
    size, rows = _agree_on_size(model, batch, size, min_size, needs_rows=split is None)
    cut = split or split_rows
    num_retries = 0
    while True:
        try:
            outputs = _run(model, _cut(cut, batch, size), step, comms)
        except BatchOutOfMemoryError as error:
            if size <= min_size:
                raise
            smaller = max(min_size, min(size, rows or size) // 2)  # not a size that is the batch still
            logger.warning("%s. Retrying with %d rows in place of %d.", error, smaller, size)
            size, num_retries = smaller, num_retries + 1
        else:
            return MicrobatchRun(outputs, size, num_retries)
        # Outside the handler: the error and its traceback, which hold activations, are gone by now.
        gc.collect()
        if (kind := accelerator_type()) is not None:
            torch.get_device_module(kind).empty_cache()


def _cut(cut: Split[BatchT], batch: BatchT, size: int) -> Iterator[BatchT]:
    yield from cut(batch, size)  # only when asked: what is wrong then is an error on every rank


def _run(
    model: nn.Module, parts: Iterable[BatchT], step: Callable[[BatchT], OutputT], comms: Comms
) -> list[OutputT]:
    with microbatches(model, parts, comms=comms, agree=True) as batch_parts:
        return [step(part) for part in batch_parts]


def _agree_on_size(
    model: nn.Module, batch: object, size: int | None, min_size: int, *, needs_rows: bool
) -> tuple[int, int]:
    """Return the size to begin with and the most rows, the same on all ranks; or raise on all of them."""
    rows = num_rows(batch) if size is None or needs_rows else 0
    problem = _problem(size, min_size, rows)
    given = -1 if size is None else size
    own = [int(problem is not None), rows or 0, given, -given, min_size, -min_size]
    votes = channel_of(model).maximum(own)
    if problem is not None:
        raise MicrobatchError(problem)
    # Of a number and its negative the maxima cancel out only where all ranks have the same.
    if votes[0] or votes[2] != -votes[3] or votes[4] != -votes[5]:
        msg = (
            f"The ranks cannot begin with the same microbatch: here size={size}, min_size={min_size}, and "
            "another rank has others, or a batch without tensors. Give the same on every rank."
        )
        raise MicrobatchError(msg)
    return (max(votes[1], min_size) if size is None else size), votes[1]


def _problem(size: int | None, min_size: int, rows: int | None) -> str | None:
    if rows is None:
        return (
            "`batch` holds no tensor, so its rows cannot be counted and cut. Pass `split` and `size`, or a "
            "batch of tensors in tuples, lists or mappings."
        )
    if min_size < 1 or (size is not None and size < min_size):
        return f"The sizes must be 1 <= min_size <= size; got min_size={min_size} and size={size}."
    return None


def num_rows(batch: object) -> int | None:
    """Return the rows of the first tensor in tuples, lists and mappings, or None if there is none."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.ndim else None
    if isinstance(batch, Mapping):
        batch = tuple(batch.values())
    if isinstance(batch, (tuple, list)):
        return next((rows for value in batch if (rows := num_rows(value)) is not None), None)
    return None


def split_rows(batch: Any, size: int) -> list[Any]:
    """Cut every tensor in tuples, lists and mappings along dimension 0, into parts of ``size`` rows.

    Tensors without dimensions, and what is no tensor, are in each part as they are. A batch of no rows has
    no parts.

    Raises:
        MicrobatchError: Tensors have different numbers of rows.

    Example:
        >>> split_rows({"x": torch.arange(5), "scale": 0.5}, 2)[-1]
        {'x': tensor([4]), 'scale': 0.5}
    """
    rows = num_rows(batch) or 0
    return [_slice(batch, start, min(start + size, rows), rows) for start in range(0, rows, size)]


def _slice(value: Any, start: int, end: int, rows: int) -> Any:
    if isinstance(value, torch.Tensor) and value.ndim:
        if len(value) != rows:
            msg = (
                f"A tensor of the batch has {counted(len(value), 'row')} and another {rows}, so they "
                "cannot be cut alike. Pass `split`."
            )
            raise MicrobatchError(msg)
        return value[start:end]
    if isinstance(value, Mapping):
        cut = {key: _slice(each, start, end, rows) for key, each in value.items()}
        return cut if type(value) is dict else _rebuild(value, cut)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_slice(each, start, end, rows) for each in value))
    if isinstance(value, (tuple, list)):
        return type(value)(_slice(each, start, end, rows) for each in value)
    return value


def _rebuild(original: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    """Make a mapping of the same class, such as the ``BatchEncoding`` of transformers."""
    make: Any = type(original)
    return make(values)
