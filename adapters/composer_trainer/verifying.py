"""``FSDP2Migration(verify_steps=N)``: the first batches of a Trainer, beside FSDP1's on a twin of the model.

After the Trainer has run the microbatches of a batch, the twin is asked the same (see ``replaying``), with
the same random numbers. Both step; what differs, and where first, is said by the comparison that ``parity``
has. Random numbers are put back, and nothing of the Trainer's is touched, so that it trains as without.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
import torch.distributed as dist

from fsdp_migrate.adapters.composer_trainer.sharding import has_shards
from fsdp_migrate.adapters.composer_trainer.side_by_side import SideBySide, settings_of
from fsdp_migrate.adapters.composer_trainer.twins import Twin, lack_of_memory
from fsdp_migrate.arguments import check_arguments, whole_number_from
from fsdp_migrate.errors import ConfigError, FSDPMigrateError, ParityError
from fsdp_migrate.findings import counted, make_finding
from fsdp_migrate.microbatch.rollback import RandomNumbers
from fsdp_migrate.parity.making import agreed
from fsdp_migrate.parity.report import lines_of, verdict
from fsdp_migrate.parity.trainees import Prepared, quiet_fsdp1
from fsdp_migrate.sharding.consensus import exchange


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fsdp_migrate.adapters.composer_trainer.twins import TrainersWays
    from fsdp_migrate.findings import Finding
    from fsdp_migrate.parity.report import ParityReport


log = logging.getLogger(__name__)

OnDifference = Literal["error", "warn"]
"""What a difference is that no finding explains."""

_SUBJECT = "verify_steps"
_MOST_STEPS = 10**6
_SCALED = ("amp_fp16", "amp_fp8")


class StepVerifier:
    """Compares the first batches of a run with FSDP1's; of one Trainer.

    Args:
        steps: How many batches.
        on_difference: What comes of a difference that no finding explains.
        strict: Whether one that a finding explains is an error too.
        adds_up: Whether microbatches are reduced together, and FSDP1's one by one.
        told: Is told the finding in which it ends.
        ways: What Composer's Trainer does with a model.

    Raises:
        ConfigError: An argument means nothing.
    """

    def __init__(
        self,
        steps: int,
        on_difference: OnDifference,
        *,
        strict: bool,
        adds_up: bool,
        told: Callable[[Finding], None],
        ways: TrainersWays,
    ) -> None:
        check_arguments(whole_number_from(0, _MOST_STEPS), verify_steps=steps)
        if on_difference not in get_args(OnDifference):
            msg = f"`on_difference` is {on_difference!r}; expected one of {get_args(OnDifference)}."
            raise ConfigError(msg, field="on_difference")
        self.steps, self.on_difference, self.strict = steps, on_difference, strict
        self.report: ParityReport | None = None
        self._adds_up, self._told, self._ways = adds_up, told, ways
        self._is_wanted = steps > 0
        self._twin: Twin | None = None
        self._prepared: Prepared | None = None
        self._settings: list[dict[str, Any]] = []
        self._running: SideBySide | None = None

    def outline(self, state: Any, config: Any, device: torch.device) -> None:
        """Copy the outline of the model before it is sharded, unless something stands against it."""
        if not self._is_wanted:
            return
        if why := _obstacle(state):
            self.give_up(why)
            return

        def copy() -> None:
            self._twin = Twin(state.model, state.optimizers, config)

        if self._tried(copy):
            self._prepared = Prepared(state.model, device, on_host=True)

    def sharded(self, state: Any) -> None:
        """Remember the settings of the optimizer, which from now on the Trainer alone changes."""
        if self._prepared is not None:
            self._prepared.adopt(state.optimizers[0])
            self._settings = [settings_of(group) for group in state.optimizers[0].param_groups]

    @contextmanager
    def batch(self, state: Any, findings: Sequence[Finding], mesh: Any) -> Iterator[None]:
        """Surround the microbatches of a batch; the step follows."""
        if self._prepared is not None and self._running is None:
            self._start(state, findings, mesh)
        running = self._running
        if running is None:
            yield
            return
        if running.is_replayed:  # and no step since: SAM runs a batch again at another point
            self.give_up("the optimizer runs each batch several times")
            yield
            return
        running.begin()
        yield
        self._do(lambda: running.end_batch(self._settings))

    @contextmanager
    def microbatch(self, *, is_last: bool) -> Iterator[None]:
        """Surround one microbatch; after the last one the twin is asked the same."""
        running = self._running
        if running is None:
            yield
            return
        with running.microbatch():
            yield
        if is_last:
            self._do(running.replay)

    def batch_end(self) -> None:
        """Compare what the step left, and conclude after the last one.

        Raises:
            ParityError: On every rank, if they part, unless a finding explains it or a warning was asked for.
        """
        running = self._running
        if running is None or not running.is_replayed:
            return
        self._do(lambda: running.end_step(self._settings))
        if self._running is not None and (running.comparison.found or len(running.done) == self.steps):
            self._conclude()

    def fit_end(self) -> None:
        """Conclude, where there were fewer batches."""
        if self._running is not None and self._running.done:
            self._conclude()
        self._drop()

    def _start(self, state: Any, findings: Sequence[Finding], mesh: Any) -> None:
        prepared, twin = self._prepared, self._twin
        assert prepared is not None
        assert twin is not None
        lacks = exchange((dist.get_rank(), lack_of_memory(prepared, self._ways.local_ranks())), [None])
        if any(lack for _, lack in lacks):
            rank, lack = next(each for each in lacks if each[1])
            self.give_up(f"there is no memory for a twin of the model on rank {rank}: {lack}")
            return
        # The run must draw what it would have drawn: making a twin draws initial values.
        before = RandomNumbers(prepared.device.type)

        def wake() -> None:
            self._running = SideBySide(state, prepared, twin, self._ways, findings=findings, mesh=mesh)
            several = any(each.code == "FM002" for each in findings)  # replicas add microbatches up otherwise
            self._running.comparison.sums_differ = self._adds_up or several or dist.get_world_size() > 2

        self._tried(wake)
        before.restore()

    def _do(self, work: Callable[[], None]) -> None:
        """Do a part of the comparison on all ranks, with the Trainer's random numbers kept."""
        running = self._running
        if running is None:
            return
        before = RandomNumbers(running.prepared.device.type)
        with quiet_fsdp1():
            self._tried(work)
        before.restore()

    def _tried(self, work: Callable[[], None]) -> bool:
        """Do what may fail; if it does, on any rank, the run goes on without the comparison."""
        try:
            agreed(work)
        except Exception as error:
            # Not the error itself: its traceback holds the twin.
            words = str(error) if isinstance(error, FSDPMigrateError) else f"{type(error).__name__}: {error}"
            reason = words.splitlines()[0][:400].rstrip(".")
        else:
            return True
        self.give_up(reason)
        return False

    def give_up(self, reason: str) -> None:
        """Say why there is no comparison, or no more, and go on."""
        if not self._is_wanted:
            return
        done = self._running.done if self._running is not None else []
        text = (
            f"Not compared with FSDP1 after {counted(len(done), 'step')}, which did not differ: {reason}."
            if done
            else f"Not compared with FSDP1: {reason}."
        )
        hint = "`fsdp-migrate parity` compares a smaller model of the same classes."
        if self._running is not None and done:
            self.report = self._running.report()
        self._say(make_finding("FM443", _SUBJECT, text, hint))
        self._drop()

    def _conclude(self) -> None:
        assert self._running is not None
        report = self.report = self._running.report()
        self._drop()
        if report.first is None:
            self._say(make_finding("FM441", _SUBJECT, " ".join([verdict(report), *report.notes])))
            return
        lines = "\n".join([verdict(report), *lines_of(report.first)])
        hint = (
            f"`fsdp-migrate explain {report.first.explained_by}` says more." if report.is_explained else None
        )
        self._say(make_finding("FM442", _SUBJECT, verdict(report), hint), lines)
        if (self.strict or not report.is_explained) and self.on_difference == "error":
            msg = (
                f"{lines}\nThis run does not train as under FSDP1, so it stops before it costs more. Give "
                'FSDP2Migration `on_difference="warn"` to continue anyway.'
            )
            raise ParityError(msg, report=report)

    def _say(self, finding: Finding, text: str = "") -> None:
        self._told(finding)
        if not dist.is_initialized() or dist.get_rank() == 0:
            # A warning even if all is well: it was asked for, and is to be seen where no logging is set up.
            log.warning("%s %s: %s", finding.code, finding.subject, text or finding.message)

    def _drop(self) -> None:
        """Leave the model as it would be without the comparison, and let the twin go."""
        if self._running is not None:
            self._running.leave()
        if self._prepared is not None:
            self._prepared.recorder.remove()
        self._running = self._prepared = self._twin = None
        self._is_wanted = False
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _obstacle(state: Any) -> str:
    """Say what stands against a comparison in this run, or nothing."""
    precision = str(getattr(state.precision, "value", state.precision))
    if not dist.is_initialized():
        return "there is no process group"
    if not has_shards(state.model):
        return "no child of the model is sharded"
    if state.tp_config is not None:
        return "it has tensor parallelism"
    if precision in _SCALED:
        return f"with precision {precision} gradients or layers are scaled by factors from earlier batches"
    if state.auto_microbatching:
        return "the search for a microbatch size (`auto`) would find less memory beside a twin"
    return ""
