"""``FSDP2Migration``: one callback, and a Composer Trainer that was written for FSDP1 trains under FSDP2.

    trainer = Trainer(..., parallelism_config={"fsdp": {...}}, callbacks=[FSDP2Migration()])

It needs Composer (``pip install 'fsdp-migrate[composer]'``); nothing else of this package imports it.
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from composer.core import Callback, Precision
from composer.utils import FSDP2Config, FSDPConfig, dist
from torch.distributed.fsdp import FSDPModule

from fsdp_migrate.adapters.composer_trainer.checkpoints import CheckpointLoader, find_scaler, name_scaler
from fsdp_migrate.adapters.composer_trainer.evaluation import agreeing_evaluation
from fsdp_migrate.adapters.composer_trainer.hooks import (
    TRAINERS_WAYS,
    MigratedConfig,
    check_composer,
    drive,
    install,
    name_what_is_saved,
    out_of_memory_error,
    out_of_memory_here,
    reading_by,
    shard_now,
    surround_start,
    take_over_sharding,
)
from fsdp_migrate.adapters.composer_trainer.microbatches import MicrobatchDriver
from fsdp_migrate.adapters.composer_trainer.monitoring import optimizer_metrics
from fsdp_migrate.adapters.composer_trainer.presence import require_on_every_rank, tell_of_absence
from fsdp_migrate.adapters.composer_trainer.sharding import (
    ShardRequest,
    has_shards,
    make_mesh,
    shard_composer_model,
    together,
)
from fsdp_migrate.adapters.composer_trainer.verifying import StepVerifier
from fsdp_migrate.adapters.config_objects.composer import ComposerMapping, composer_fsdp1_config
from fsdp_migrate.adapters.config_objects.composer_marks import composer_children, is_composer_model
from fsdp_migrate.errors import ConfigError, ModelError
from fsdp_migrate.mapping import map_config
from fsdp_migrate.runtime import clip_grad_norm_, grad_scaler, register_forward_methods
from fsdp_migrate.runtime.sharded import show_shards
from fsdp_migrate.sharding.unsettled import refuse_unsettled


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from composer.core import State
    from composer.loggers import Logger
    from torch import nn

    from fsdp_migrate.adapters.composer_trainer.checkpoints import Conversion
    from fsdp_migrate.adapters.composer_trainer.verifying import OnDifference
    from fsdp_migrate.findings import Finding
    from fsdp_migrate.microbatch import Comms
    from fsdp_migrate.parity import ParityReport
    from fsdp_migrate.sharding.tying import TieOwner


log = logging.getLogger(__name__)

_COLUMNS = ["code", "fidelity", "subject", "message", "hint"]
_CLIPPING = {"norm": 2.0, "value": float("inf")}


class FSDP2Migration(Callback):  # type: ignore[misc,unused-ignore]
    """Train under FSDP2 with a Trainer call that was written for Composer's FSDP1.

    The FSDP1 config is taken from the Trainer's ``parallelism_config``, and replaced in its state, so that
    everything that Composer does later (saving and loading, the gradient scaler, microbatches) sees FSDP2.
    Each direct child of the ``ComposerModel`` is sharded on its own, metrics are left alone, and units and
    recomputed layers are those that the model marks: all as under Composer's FSDP1. Where the config is
    FSDP2's already, or there is none, nothing is done but a line in the log.

    What becomes of the config's fields is in ``findings``, in the log of rank 0, and in the Trainer's loggers
    as a hyperparameter ``fsdp2_migration`` and a table of that name.

    Changes: the model, in place, as :func:`~fsdp_migrate.prepare_fully_shard` does; the optimizer's
    parameters; eight functions of Composer's, which for Trainers without the callback do what they did.
    Leaves alone: the Trainer call, the names of parameters and what is in checkpoints.

    Args:
        fsdp_config: The FSDP1 config, where the Trainer has none: Composer's ``FSDPConfig``, or a mapping of
            its fields.
        strict: Raise if anything would change that a user could notice.
        tied: Which unit owns a parameter that several would share: ``parent`` or ``group``, as in
            :func:`~fsdp_migrate.prepare_fully_shard`.
        convert_checkpoints: What to do with a checkpoint that does not load into FSDP2 as it is: ``load``
            reads it straight into the shards, and converts only what cannot be read so; ``convert`` converts
            it into a folder beside it (its name and ``.fsdp2``), which is used again until the checkpoint
            changes; or an ``error``. A conversion that is there and holds is used in any case.
        cache_folder: Where conversions lie, if not beside their checkpoints, whose folder may be for reading
            only. Every node must see it.
        reshard_after_forward: In place of what the strategy says, as in
            :func:`~fsdp_migrate.prepare_fully_shard`: a number keeps parameters on so many ranks.
        comms: What backward communicates in each microbatch, as in
            :func:`~fsdp_migrate.microbatch.microbatches`.
        verify_steps: Compare so many first batches with FSDP1's: a twin of the model under Composer's own
            FSDP1 is trained beside it, from the same values, on the same microbatches. ``parity`` has what
            was found, a finding says it in one line, and the run goes on as it would have without. It needs
            memory for the twin; where there is not enough, or a run cannot be compared, a finding says why.
        on_difference: What comes of a difference that no finding explains (with ``strict``, of any): an
            ``error`` on all ranks, after the batch in which it is, or ``warn``.

    Raises:
        ConfigError: (by the Trainer) A field of the config is unknown or means nothing; or there are two
            configs, or two of these callbacks, or one on some ranks only.
        FindingsError: (by the Trainer) Something cannot be migrated, or ``strict`` and something changes.
        ModelError: (by the Trainer) The model is no ``ComposerModel``, or cannot be sharded so.
        SourceError: (by the Trainer) ``fsdp-migrate rewrite`` left something in this run's modules to be
            settled by hand.
        ParityError: (by ``fit``) A batch does not train as under FSDP1, and no finding explains it.
        UnsupportedFeatureError: (by the Trainer) This Composer was not tried, or has moved what is needed.

    Example:
        >>> callback = FSDP2Migration(strict=True)
        >>> callback.findings
        ()
    """

    def __init__(
        self,
        fsdp_config: Any = None,
        *,
        strict: bool = False,
        tied: TieOwner = "parent",
        convert_checkpoints: Conversion = "load",
        cache_folder: str | Path | None = None,
        reshard_after_forward: bool | int | None = None,
        comms: Comms = "auto",
        verify_steps: int = 0,
        on_difference: OnDifference = "error",
    ) -> None:
        self.strict = strict
        self.tied: TieOwner = tied
        self.findings: tuple[Finding, ...] = ()
        self._given = fsdp_config
        self._reshard = reshard_after_forward
        self._loader = CheckpointLoader(convert_checkpoints, cache_folder, reading_by)
        self._mapping: ComposerMapping | None = None
        self._is_sharded = False
        self._microbatches = MicrobatchDriver(comms, out_of_memory_error)
        self._config: Any = None
        self._logger: Logger | None = None
        self._verifier = StepVerifier(
            verify_steps,
            on_difference,
            strict=strict,
            adds_up=comms == "last",
            told=self._tell,
            ways=TRAINERS_WAYS,
        )

    @property
    def parity(self) -> ParityReport | None:
        """What ``verify_steps`` has found, once it is done; None before, and where nothing was compared."""
        return self._verifier.report

    def _tell(self, finding: Finding) -> None:
        self.findings = (*self.findings, finding)
        if self._logger is not None:
            self._logger.log_hyperparameters({"fsdp2_migration_verify_steps": finding.message})

    def init(self, state: State, logger: Logger) -> None:
        """Replace the FSDP1 config in the state, before the Trainer shards the model."""
        self._logger = logger
        # Before the first collective: a rank without the callback would never join it.
        require_on_every_rank()
        config: Any = None
        mapping: ComposerMapping | None = None

        def check() -> None:
            nonlocal config, mapping
            check_composer()
            config = self._config_of(state)
            if config is not None:
                refuse_unsettled()
                mapping = composer_fsdp1_config(config, precision=state.precision)

        together(check, lambda: None if config is None else {"precision": state.precision, **vars(config)})
        if config is None or mapping is None:
            self._verifier.give_up("there is nothing to migrate")
            return
        self._config = config
        mapping = self._mapping = _with_mesh(mapping, state)
        fsdp2, _ = map_config(mapping.config)
        # At INIT the Trainer has neither chosen a scaler nor sharded; for both it looks at this config.
        state.fsdp_config = MigratedConfig(
            mapping.settings,
            driver=self,
            mixed_precision=config.mixed_precision,
            device_mesh=mapping.config.device_mesh,
            reshard_after_forward=fsdp2.reshard_after_forward if self._reshard is None else self._reshard,
        )
        install()
        drive(state.model, self)
        take_over_sharding(state)
        name_what_is_saved(state, self._name, find_scaler)

    def _config_of(self, state: State) -> Any:
        """Return the FSDP1 config as Composer's object, or None where there is nothing to migrate."""
        twins = [callback for callback in state.callbacks if isinstance(callback, FSDP2Migration)]
        if len(twins) > 1:
            msg = f"The Trainer has {len(twins)} FSDP2Migration callbacks. Give it one."
            raise ConfigError(msg, field="callbacks")
        found = state.fsdp_config
        if isinstance(found, FSDP2Config):
            log.info("The Trainer's config is FSDP2's already: there is nothing to migrate.")
            return None
        if self._given is None:
            if found is None:
                log.info("The Trainer has no FSDP config: there is nothing to migrate.")
                return None
        elif found is not None:
            msg = (
                "There are two FSDP1 configs: the Trainer's `parallelism_config['fsdp']` and the callback's "
                "`fsdp_config`. Give one of them."
            )
            raise ConfigError(msg, field="fsdp_config")
        if not is_composer_model(state.model):
            msg = f"The model is a {type(state.model).__name__}; expected a ComposerModel."
            raise ModelError(msg)
        if found is not None or isinstance(self._given, FSDPConfig):
            return found or self._given
        composer_fsdp1_config(self._given, precision=state.precision)  # FSDPConfig takes anything
        return FSDPConfig(**self._given)

    def after_load(self, state: State, logger: Logger) -> None:
        """Log what became of the config; the model is sharded and loaded by now."""
        if self._mapping is None:
            return
        if dist.get_global_rank() == 0:
            for finding in self.findings:
                if finding.code == "FM443":  # logged when it was found
                    continue
                level = logging.WARNING if finding.fidelity == "changed" else logging.INFO
                log.log(level, "%s %s: %s", finding.code, finding.subject, finding.message)
        counts = Counter(finding.fidelity for finding in self.findings)
        logger.log_hyperparameters({"fsdp2_migration": {"findings": dict(counts), "strict": self.strict}})
        rows = [[finding.as_dict()[column] for column in _COLUMNS] for finding in self.findings]
        for destination in logger.destinations:
            # Some need pandas for tables, which Composer does not.
            with suppress(ImportError):
                destination.log_table(_COLUMNS, rows, name="fsdp2_migration", step=0)

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        """Show shards again before algorithms swap parameters: after a forward the root's are whole."""
        del logger
        if state.algorithms:
            self._show_shards(state, "eval")

    def eval_end(self, state: State, logger: Logger) -> None:
        """Free the root's whole parameters, which no backward will."""
        del logger
        self._show_shards(state, "eval")

    def predict_end(self, state: State, logger: Logger) -> None:
        """Free the root's whole parameters, which no backward will."""
        del logger
        self._show_shards(state, "predict")

    def _show_shards(self, state: State, what: str) -> None:
        if self._is_sharded:
            show_shards(state.model, what)

    def shard(self, state: Any) -> None:
        """Shard the state's model and point its optimizers at the shards; a collective call of all ranks."""
        mapping = self._mapping
        if mapping is None:
            msg = "FSDP2Migration is asked to shard before it has seen the Trainer's config."
            raise AssertionError(msg)
        request = ShardRequest(
            model=state.model,
            mapping=mapping,
            device=_device(state),
            optimizers=list(state.optimizers),
            tied=self.tied,
            strict=self.strict,
            tensor_parallel=state.tp_config is not None,
            local_world_size=dist.get_local_world_size(),
            reshard_after_forward=self._reshard,
            companions=[*state.algorithms, *state.callbacks],
        )
        # Now: FSDP2 does not let what is sharded be copied.
        self._verifier.outline(state, self._config, _device(state))
        self.findings = (*self.findings, *shard_composer_model(request))
        self._verifier.sharded(state)
        for child in composer_children(state.model).sharded.values():
            # Hugging Face's, which Composer ran with the root's whole parameters shown.
            if callable(getattr(child, "generate", None)) and isinstance(child, FSDPModule):
                register_forward_methods(child, "generate")
        if type(state.scaler) is torch.amp.GradScaler and state.precision == Precision.AMP_FP16:
            # As FSDP1's: torch's own fails, or lets ranks go apart, where not all gradients are on one mesh.
            state.scaler = grad_scaler(_device(state).type)
        self._is_sharded = has_shards(state.model)
        if self._is_sharded:
            self._microbatches.attach(state)

    @contextmanager
    def batch(self, state: Any, parts: Sequence[Any]) -> Iterator[None]:
        """Surround the microbatches of a batch."""
        if not self._is_sharded or self._mapping is None:
            yield
            return
        mesh = self._mapping.config.device_mesh
        with self._verifier.batch(state, self.findings, mesh), self._microbatches.batch(state, parts):
            yield

    @contextmanager
    def microbatch(self, *, is_last: bool) -> Iterator[None]:
        """Surround one microbatch."""
        with (
            self._verifier.microbatch(is_last=is_last),
            self._microbatches.microbatch(is_last=is_last),
        ):
            yield

    def batch_end(self, state: State, logger: Logger) -> None:
        """Compare what the step of a batch left with what FSDP1's leaves, if ``verify_steps`` asks for it."""
        del state, logger
        self._verifier.batch_end()

    def fit_end(self, state: State, logger: Logger) -> None:
        """Conclude what ``verify_steps`` began, where there were fewer batches."""
        del state, logger
        self._verifier.fit_end()

    def evaluation(self, state: Any, evaluator: Any, metrics: Any) -> AbstractContextManager[None]:
        """Surround the evaluation by one evaluator."""
        if not evaluator.auto_microbatching or not self._is_sharded:
            return nullcontext()
        return agreeing_evaluation(state.model, evaluator.dataloader, metrics, out_of_memory_here)

    def load(self, call: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Load a checkpoint as it is, or in the way that was asked for if it does not load so."""
        state = arguments["state"]
        try:
            return self._loader.load(call, arguments, lambda: shard_now(state))
        finally:
            self.findings = (*self.findings, *self._loader.findings)
            self._loader.findings.clear()

    def _name(self, found: dict[str, Any], own: str) -> dict[str, Any]:
        return name_scaler(found, own, self._loader.scaler_names)

    def clip(self, model: nn.Module, clipping_type: str, threshold: float) -> bool:
        """Clip gradients as Composer does under FSDP1: each child by its own norm, or its largest value."""
        if clipping_type not in _CLIPPING:
            return False
        for child in composer_children(model).sharded.values():
            if any(param.grad is not None for param in child.parameters()):
                clip_grad_norm_(child, threshold, norm_type=_CLIPPING[clipping_type])
        return True

    def monitor(self, monitor: Any, state: Any, logger: Any) -> bool:
        """Log what ``OptimizerMonitor`` logs, each number that of the whole tensor, as under DDP."""
        if not self._is_sharded:
            return False
        if state.timestamp.batch.value % monitor.batch_log_interval == 0:
            report = getattr(state.optimizers[0], "report_per_parameter_metrics", None)
            wanted = report if monitor.log_optimizer_metrics and callable(report) else None
            logger.log_metrics(optimizer_metrics(state.model, wanted))
        return True


@contextmanager
def _tell_of_absence(state: State) -> Iterator[None]:
    """Surround the sharding of any Trainer's model: one without the callback tells the other ranks."""
    if any(isinstance(callback, FSDP2Migration) for callback in state.callbacks):
        yield
        return
    with tell_of_absence():
        yield


surround_start(_tell_of_absence)


def _with_mesh(mapping: ComposerMapping, state: State) -> ComposerMapping:
    """Make the mesh of the degrees, where Composer has not; a collective call of all ranks."""
    if state.device_mesh is not None:
        return mapping
    state.device_mesh = make_mesh(mapping.settings, _device(state).type)
    return replace(mapping, config=mapping.config.updated(device_mesh=state.device_mesh))


def _device(state: State) -> torch.device:
    """Return the device of this rank."""
    if state.device.name == "gpu":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device(state.device.name)
