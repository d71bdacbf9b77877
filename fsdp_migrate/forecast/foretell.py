"""``forecast_memory``: how much memory a run takes on each rank, before there is a run."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.optim import Optimizer

from fsdp_migrate.arguments import (
    CALLABLE,
    NOTHING,
    TEXT,
    check_arguments,
    whole_number_from,
)
from fsdp_migrate.errors import ConfigError, ModelError, ProcessGroupError
from fsdp_migrate.factories import describe_error
from fsdp_migrate.forecast.optimizers import named_optimizer
from fsdp_migrate.forecast.rehearsal import Part, rehearse
from fsdp_migrate.forecast.report import MemoryForecast, PeakMemory
from fsdp_migrate.forecast.sums import gathered_and_reduced
from fsdp_migrate.parity.batches import Fed, Shape, default_loss, feed
from fsdp_migrate.parity.making import optimizer_maker
from fsdp_migrate.sharding.plan import plan_fully_shard, read_config
from fsdp_migrate.torch_compat.fake_runs import fake_copy, make_fake_mode


if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from fsdp_migrate.config import FSDP1Config
    from fsdp_migrate.forecast.rehearsal import Which
    from fsdp_migrate.sharding.plan import ShardPlan
    from fsdp_migrate.sharding.tying import TieOwner
    from fsdp_migrate.torch_compat.held_memory import Kind, MemoryLog


_COUNT = whole_number_from(1)
_ON_HOST: tuple[Kind, ...] = ("parameters", "gradients", "optimizer_state")


def forecast_memory(
    model: nn.Module,
    fsdp1_config: Any = None,
    *,
    world_size: int,
    devices_per_node: int | None = None,
    auto_wrap_policy: Any = None,
    activation_checkpointing: Any = None,
    tied: TieOwner = "parent",
    reshard_after_forward: bool | int | None = None,
    batches: Any = None,
    loss: Callable[[nn.Module, Any], Any] | None = None,
    optimizer: str | Callable[[nn.Module], Optimizer] | Optimizer = "adamw",
    batch_size: int | None = None,
    seq_length: int | None = None,
    accumulate: int = 1,
    device: str = "cuda",
    limit: int | None = None,
) -> MemoryForecast:
    """Foretell the peak of memory of a rank, under FSDP1 and under FSDP2, for any number of ranks.

    Two steps of training are rehearsed in this process: torch's own FSDP1 and FSDP2 shard, gather, compute,
    reduce and step, on fake tensors, which hold nothing, and on a process group that sends nothing. What they
    would hold is counted. It takes no GPU, and no memory for the model, which may be on the meta device and
    is left alone.

    Counted is what torch's allocator would hand out. Beside that a GPU holds what the allocator keeps in
    reserve, CUDA's context, and the buffers of NCCL and cuBLAS.

    Args:
        model: The model, as it would be given to ``FullyShardedDataParallel``.
        fsdp1_config: Its FSDP1 arguments, as :func:`~fsdp_migrate.plan_fully_shard` takes them.
        world_size: The number of ranks.
        devices_per_node: As ``plan_fully_shard`` takes it, and so are the next four.
        auto_wrap_policy: A policy in place of the config's.
        activation_checkpointing: The layers whose activations are recomputed.
        tied: Which unit owns a parameter that several would share.
        reshard_after_forward: In place of what the strategy says.
        batches: Batches of the size to train with, or a function that returns some, as
            :func:`~fsdp_migrate.compare_runs` takes them. None: made from the model's signature.
        loss: A function of the model and a batch. None: the loss that the model returns, or the mean square
            of its first output.
        optimizer: ``adamw``, ``adam``, ``sgd`` or ``sgd-momentum``; a function of the sharded model that
            makes one; or one of the model's own parameters, which is made again for the sharded ones.
        batch_size: How many rows the batches have that are made up.
        seq_length: How many tokens each of these rows has.
        accumulate: How many microbatches a step has. All but the last run under ``no_sync``.
        device: ``cuda``: sizes are those of CUDA's allocator, and the optimizer steps all parameters at once,
            as on GPUs. ``cpu``: as on the CPU.
        limit: The bytes that a device has, which the forecast is held against.

    Raises:
        ConfigError: An argument means nothing, or no plan can be made; see ``plan_fully_shard``.
        ProcessGroupError: There is a process group: the rehearsal needs one of its own.

    Example:
        >>> from torch import nn
        >>> found = forecast_memory(nn.Linear(256, 256), {}, world_size=4, batch_size=8, device="cpu")
        >>> found.fsdp2.parts["parameters"], found.fsdp2.parts["optimizer_state"]
        (65792, 131592)
    """
    check_arguments(_COUNT, world_size=world_size, accumulate=accumulate)
    check_arguments(_COUNT | NOTHING, batch_size=batch_size, seq_length=seq_length, limit=limit)
    check_arguments(CALLABLE | NOTHING, loss=loss)
    check_arguments(TEXT, device=device)
    if device not in {"cpu", "cuda"}:
        raise ConfigError(f"`device` is {device!r}; expected 'cuda' or 'cpu'.", field="device")
    if dist.is_initialized():
        msg = (
            "There is a process group, and the forecast needs one of its own, of ranks that are not there. "
            "Call forecast_memory before `init_process_group`, or in another process."
        )
        raise ProcessGroupError(msg)
    options = {
        "activation_checkpointing": activation_checkpointing,
        "tied": tied,
        "reshard_after_forward": reshard_after_forward,
    }
    config = read_config(fsdp1_config)
    if auto_wrap_policy is not None:
        config = config.updated(auto_wrap_policy=auto_wrap_policy)
    plan = plan_fully_shard(
        model, config, world_size=world_size, devices_per_node=devices_per_node, **options
    )
    return _Foretelling(
        model=model,
        config=config,
        plan=plan,
        options=options,
        optimizer=optimizer,
        on_cpu=device == "cpu",
        limit=limit,
    ).foretell(batches, loss, Shape(batch_size, seq_length), accumulate)


class _Foretelling:
    """One forecast, and what is to be said about it."""

    def __init__(
        self,
        *,
        model: nn.Module,
        config: FSDP1Config,
        plan: ShardPlan,
        options: dict[str, Any],
        optimizer: str | Callable[[nn.Module], Optimizer] | Optimizer,
        on_cpu: bool,
        limit: int | None,
    ) -> None:
        self.model, self.config, self.plan, self.options = model, config, plan, options
        self.on_cpu, self.limit = on_cpu, limit
        self.make_optimizer, self.optimizer_name = _read_optimizer(optimizer, model)
        self.notes: list[str] = []

    def foretell(
        self, batches: Any, loss: Callable[[nn.Module, Any], Any] | None, shape: Shape, accumulate: int
    ) -> MemoryForecast:
        fed = self._feed(batches, loss, shape, accumulate)
        peaks: dict[Which, PeakMemory | None] = {}
        if fed is not None:
            peaks = {"FSDP2": self._rehearse("FSDP2", fed), "FSDP1": self._rehearse("FSDP1", fed)}
        counts_activations = peaks.get("FSDP2") is not None
        if not counts_activations:
            peaks = {which: self._add_up(which, accumulate) for which in ("FSDP2", "FSDP1")}
        self._tell_what_is_not_known(counts_activations)
        gc.collect()  # models hold themselves; torch 2.7 warns when fake ones go, and that is to happen here
        return MemoryForecast(
            fsdp1=peaks["FSDP1"],
            fsdp2=peaks["FSDP2"],
            counts_activations=counts_activations,
            world_size=self.plan.mesh_shape[0] * self.plan.mesh_shape[1],
            optimizer=self.optimizer_name,
            microbatches=accumulate,
            notes=tuple(dict.fromkeys(self.notes)),
            limit=self.limit,
        )

    def _feed(
        self, batches: Any, loss: Callable[[nn.Module, Any], Any] | None, shape: Shape, accumulate: int
    ) -> Fed | None:
        mode = make_fake_mode()
        # The batches of a whole run need not be read: rank 0's first ones.
        try:
            fed = feed(
                lambda: fake_copy(self.model, mode),
                batches,
                loss,
                steps=accumulate,
                rank=0,
                world_size=1,
                shape=shape,
                around=lambda: mode,
            )
        except ConfigError as error:
            # That none can be made up is no fault of the user's; that theirs cannot be used is to be told.
            if batches is not None:
                raise
            self.notes.append(f"Activations are not counted: {error}")
            return None
        self.notes.extend(fed.notes)
        return fed

    def _part(self, fed: Fed | None) -> Part:
        return Part(
            model=self.model,
            plan=self.plan,
            config=self.config,
            options=self.options,
            batches=() if fed is None else fed.batches,
            loss=default_loss if fed is None else fed.loss,
            make_optimizer=self.make_optimizer,
            on_cpu=self.on_cpu,
        )

    def _rehearse(self, which: Which, fed: Fed) -> PeakMemory | None:
        try:
            log = rehearse(self._part(fed), which)
        except ConfigError:
            raise
        except Exception as error:
            what = "Activations are not counted" if which == "FSDP2" else "FSDP1 is not predicted"
            said = f"rehearsed on fake tensors, {which} raised {describe_error(error)}."
            self.notes.append(f"{what}: {error if isinstance(error, ModelError) else said}")
            return None
        if log.unfused_attention:
            self.notes.append(
                f"{log.unfused_attention} calls of `scaled_dot_product_attention` would run without a fused "
                "kernel on the CPU, where this is rehearsed, and hold all their scores; a GPU's kernel may "
                "hold less."
            )
        return self._peak_of(log)

    def _peak_of(self, log: MemoryLog) -> PeakMemory:
        away = _ON_HOST if self._offloads else ()
        moment = log.peak(since="forward", without=away)
        whole = log.peak(since="zero_grad")
        return PeakMemory(
            phase=moment.phase,
            parts={str(kind): size for kind, size in moment.held.items()},
            at_rest=log.at_rest(without=away),
            on_host=sum(whole.held.get(kind, 0) for kind in away),
        )

    @property
    def _offloads(self) -> bool:
        return self.config.cpu_offload is not None and self.config.cpu_offload.offload_params

    def _add_up(self, which: Which, accumulate: int) -> PeakMemory | None:
        """Return the sum of what is known without a forward."""
        try:
            log = rehearse(self._part(None), which)
        except Exception as error:
            said = str(error) if isinstance(error, ModelError) else f"it raised {describe_error(error)}."
            self.notes.append(f"{which} is not predicted: {said}")
            return None
        known = self._peak_of(log)
        more = gathered_and_reduced(self.plan, which, accumulates=accumulate > 1)
        parts = {**known.parts, **more}
        return replace(known, phase="backward", parts={kind: size for kind, size in parts.items() if size})

    def _tell_what_is_not_known(self, counts_activations: bool) -> None:
        if not counts_activations:
            self.notes.append(
                "The peak is the sum of parameters, gradients, optimizer state and the largest units as they "
                "are gathered and reduced: with activations it is higher."
            )
        if self._offloads:
            self.notes.append(
                "`cpu_offload`: parameters, gradients and optimizer state are counted as the host's memory. "
                "The copies of one unit's shards on their way are not counted."
            )
        if not self.on_cpu:
            self.notes.append(
                "Not counted: what CUDA's allocator keeps in reserve, CUDA's context, and the buffers of "
                "NCCL and cuBLAS. Kernels are those that torch chooses on the CPU."
            )


def _read_optimizer(
    given: str | Callable[[nn.Module], Optimizer] | Optimizer, model: nn.Module
) -> tuple[Callable[[nn.Module], Optimizer], str]:
    if isinstance(given, str):
        return named_optimizer(given), given
    if isinstance(given, Optimizer):
        return optimizer_maker(None, model, given), type(given).__name__
    check_arguments(CALLABLE, optimizer=given)
    return optimizer_maker(given, model, None), getattr(given, "__name__", "the one that is given")
