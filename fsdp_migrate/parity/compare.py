"""``compare_runs``: FSDP1 and ``prepare_fully_shard`` train the same model side by side, step by step."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from fsdp_migrate.arguments import (
    CALLABLE,
    FLAG,
    NOTHING,
    PATH,
    TEXT,
    check_arguments,
    whole_number_from,
)
from fsdp_migrate.errors import ConfigError, FSDPMigrateError, ModelError, ProcessGroupError
from fsdp_migrate.factories import describe_error
from fsdp_migrate.parity.batches import Fed, Shape, feed, move
from fsdp_migrate.parity.comparing import Comparison
from fsdp_migrate.parity.making import ComparisonRequest, Pair, agreed, make_pair
from fsdp_migrate.parity.trainees import is_alone, quiet_fsdp1
from fsdp_migrate.sharding.prepare import prepare_fully_shard
from fsdp_migrate.torch_compat import devices


if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from torch import nn
    from torch.optim import Optimizer

    from fsdp_migrate.parity.report import Cost, ParityReport, Step
    from fsdp_migrate.parity.trainees import Trainee


_MOST_STEPS, _MOST_SEED, _MOST_ROWS = 10**9, 2**32, 10**9


def compare_runs(
    model: Callable[[], Any],
    fsdp1_config: Any = None,
    *,
    batches: Any = None,
    loss: Callable[[nn.Module, Any], Any] | None = None,
    optimizer: Callable[[nn.Module], Optimizer] | None = None,
    batch_size: int | None = None,
    seq_length: int | None = None,
    steps: int = 4,
    checkpoint: str | os.PathLike[str] | None = None,
    weights_only: bool = False,
    seed: int = 0,
    device: str | None = None,
    prepare: Callable[..., Any] = prepare_fully_shard,
    on_step: Callable[[Step], None] | None = None,
) -> ParityReport:
    """Train a model for some steps under real FSDP1 and prepared, and compare all that comes of it.

    Both have the same FSDP1 arguments, weights, batches and seeds, and take turns, a step each. Compared are
    units and ties; and in every step, in this order: the parameters and buffers that each module computes
    with, its output, the loss, what is computed again in backward, gradients from the last module to the
    first, the optimizer's groups, parameters, its state, and buffers. All ranks must call it; both models are
    in memory at once.

    Changes: the seeds of torch's, Python's and numpy's random numbers.

    Args:
        model: A function without arguments that returns the model, or the model and an optimizer of its
            parameters, which is made again for each sharded model. Called three times at most.
        fsdp1_config: What :func:`~fsdp_migrate.prepare_fully_shard` takes; or a function of the model that
            returns it, where it holds modules or parameters of the model.
        batches: Batches that can be iterated over, of which each rank takes its own; or a function that
            returns such, with or without the parameters ``rank`` and ``world_size``. A batch is given to the
            model as keyword arguments (a mapping), positional ones (a sequence) or one. None: made from the
            model's signature, and said so.
        loss: A function of the model and a batch, which calls the model and returns the loss. None: the loss
            that the model returns, or the mean square of its first output.
        optimizer: A function of the sharded model that returns its optimizer. None: the one of ``model``, or
            AdamW; SGD where FSDP1 keeps gradients in low precision, which torch's AdamW refuses.
        batch_size: How many rows the batches have that are made up; 2.
        seq_length: How many tokens each of these rows has; 8.
        steps: How many steps to train.
        checkpoint: Any checkpoint that :func:`~fsdp_migrate.load_checkpoint` reads: both runs go on from it.
        weights_only: Load no optimizer state from it.
        seed: Where random numbers begin, in both.
        device: ``"cpu"`` or ``"cuda"``. None: the accelerator that the process group can use, or the CPU.
        prepare: A function of the model and the config in place of ``prepare_fully_shard``, such as one that
            calls it with more options.
        on_step: Is told each step when it is done.

    Returns:
        What was compared and what differs. The same on all ranks, but for costs, which are each rank's own.

    Raises:
        ConfigError: Something that was given means nothing, or no batches can be made for the model.
        ProcessGroupError: No process group is initialised.
        FindingsError: The config cannot be migrated.

    Example:
        >>> import torch.distributed as dist
        >>> from torch import nn
        >>> from fsdp_migrate.runtime import end_process_group
        >>> store = dist.HashStore()
        >>> dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> report = compare_runs(lambda: nn.Linear(4, 2), {"use_orig_params": True}, steps=2, device="cpu")
        >>> report.identical, len(report.steps)
        (True, 2)
        >>> end_process_group()
    """
    if is_alone():
        msg = (
            "There is no process group. Start with torchrun and call `init_process_group()` before "
            "compare_runs; or run `fsdp-migrate parity`, which starts ranks by itself."
        )
        raise ProcessGroupError(msg)

    def check() -> None:
        check_arguments(CALLABLE, model=model, prepare=prepare)
        check_arguments(CALLABLE | NOTHING, loss=loss, optimizer=optimizer, on_step=on_step)
        check_arguments(whole_number_from(1, _MOST_STEPS), steps=steps)
        check_arguments(
            whole_number_from(1, _MOST_ROWS) | NOTHING, batch_size=batch_size, seq_length=seq_length
        )
        check_arguments(whole_number_from(-_MOST_SEED, _MOST_SEED), seed=seed)
        check_arguments(PATH | NOTHING, checkpoint=checkpoint)
        check_arguments(FLAG, weights_only=weights_only)
        check_arguments(TEXT | NOTHING, device=device)

    agreed(check)
    request = ComparisonRequest(
        model=model,
        config=fsdp1_config,
        optimizer=optimizer,
        checkpoint=checkpoint,
        weights_only=weights_only,
        seed=seed,
        device=agreed(lambda: _device(device)),
        prepare=prepare,
    )
    own: dict[str, Any] = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
    own["shape"] = Shape(batch_size, seq_length)
    fed = agreed(lambda: feed(lambda: request.make_model()[0], batches, loss, steps=steps, **own))
    return _Comparison(request, make_pair(request), fed).run(on_step or (lambda _: None))


def _device(word: str | None) -> torch.device:
    kind = word or devices.accelerator_type() or "cpu"
    if kind != "cpu" and word is None and dist.get_backend() == "gloo":
        kind = "cpu"
    if kind == "cpu":
        return torch.device("cpu")
    if kind not in {"cpu", devices.accelerator_type()}:
        known = " or ".join(repr(each) for each in ("cpu", devices.accelerator_type()) if each)
        msg = f"`device` is {kind!r:.100}; expected {known}, as this machine has."
        raise ConfigError(msg, field="device")
    index = dist.get_rank() % max(devices.device_count(kind), 1)
    torch.get_device_module(kind).set_device(index)
    return torch.device(kind, index)


class _Comparison:
    """One comparison of two runs."""

    def __init__(self, request: ComparisonRequest, pair: Pair, fed: Fed) -> None:
        self.request, self.fed = request, fed
        self.fsdp1, self.fsdp2 = pair.fsdp1, pair.fsdp2
        plan = pair.fsdp2.plan
        self._keeps_low_precision = any(each.code == "FM012" for each in plan.findings)
        self.comparison = Comparison(pair.fsdp1, pair.fsdp2, plan.units, plan.findings)
        self.comparison.notes.extend([*pair.notes, *fed.notes])

    def run(self, on_step: Callable[[Step], None]) -> ParityReport:
        """Compare how the models are sharded, then step by step, and report."""
        with quiet_fsdp1():
            self.comparison.compare_structure()
            self.comparison.share()
            steps = []
            for number, batch in enumerate(self.fed.batches, 1):
                self.comparison.begin(number)
                steps.append(self._do_step(batch))
                on_step(steps[-1])
        return self.comparison.report(steps, self.request.device)

    def _do_step(self, batch: Any) -> Step:
        comparison = self.comparison
        # The same for both runs, and another one for each step and rank.
        seed = (self.request.seed * 7919 + comparison.step) * 1009 + dist.get_rank()
        losses, seconds, peaks = [], [], []
        expected = None
        both: tuple[Trainee, ...] = (self.fsdp1, self.fsdp2)
        for each in both:
            each.recorder.start(expected)
            before = _reset_peak(self.request.device)
            # FSDP1 first: its events are kept, and FSDP2's are compared as they come and let go.
            with self._telling_whose(each):
                loss, took = each.train(move(batch, self.request.device), self.fed.loss, seed)
            each.recorder.stop()
            expected = each.recorder.events
            losses.append(loss)
            seconds.append(took)
            peaks.append(_peak(self.request.device, before))
        self.fsdp1.recorder.events = []  # all that its modules computed: the most of memory that there is
        costs = self._costs(seconds, peaks)
        one, other = (torch.tensor(each, dtype=torch.float64) for each in losses)
        comparison.compare_run(self.fsdp2.recorder, {"loss": (one, other)}, costs)
        comparison.compare_gradients(costs)
        for number, each in enumerate(both):
            with self._telling_whose(each, in_optimizer=True):
                seconds[number] += each.step()
        costs = self._costs(seconds, peaks)
        comparison.compare_states()
        for each in both:
            each.optimizer.zero_grad()
        return comparison.end((losses[0], losses[1]), costs, self.request.device)

    @contextmanager
    def _telling_whose(self, trainee: Trainee, *, in_optimizer: bool = False) -> Iterator[None]:
        """Say under which of the two the user's own code, or torch, failed."""
        try:
            yield
        except FSDPMigrateError:
            raise
        except Exception as error:
            who = "FSDP1 itself" if trainee is self.fsdp1 else "The prepared model"
            where = f"in step {self.comparison.step}, on rank {dist.get_rank()}"
            msg = f"{who} failed {where}: {describe_error(error)}."
            if in_optimizer and trainee is self.fsdp1 and self._keeps_low_precision:
                msg += (
                    " FSDP1 hands on gradients in low precision (`keep_low_precision_grads`), which "
                    f"{type(trainee.optimizer).__name__} does not take beside parameters of another dtype. A "
                    "run of FSDP1 with this optimizer fails so too, and it is no difference between the two: "
                    "give `--optimizer` the one that trains there."
                )
            raise ModelError(f"{msg} Its traceback is above, or in `__cause__`.") from error

    def _costs(self, seconds: list[float], peaks: list[int | None]) -> tuple[Cost, Cost]:
        return (
            self.fsdp1.cost(seconds[0], peaks[0]),
            self.fsdp2.cost(seconds[1], peaks[1]),
        )


def _reset_peak(device: torch.device) -> int:
    """Begin to measure an accelerator's peak; return what is allocated."""
    if device.type == "cpu":
        return 0
    module: Any = torch.get_device_module(device.type)
    module.reset_peak_memory_stats()
    return int(module.memory_allocated())


def _peak(device: torch.device, before: int) -> int | None:
    if device.type == "cpu":
        return None
    module: Any = torch.get_device_module(device.type)
    return int(module.max_memory_allocated()) - before
