"""The private parts of Composer that the callback hangs on: they stand here, and nowhere else.

Each is checked when a Trainer starts (:func:`check_composer`), so that a Composer in which one has moved is
an error that names it, not a run that goes wrong. :func:`install` puts wrappers around seven functions, once
in a process; for Trainers without the callback they only call what they wrap.
"""
# ruff: noqa: SLF001 - what Composer offers callbacks ends before the model is sharded

from __future__ import annotations

import functools
import inspect
import warnings
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

import composer
from composer import distributed
from composer.algorithms.ema import ema
from composer.algorithms.gradient_clipping import gradient_clipping
from composer.callbacks import OptimizerMonitor
from composer.core import State
from composer.core.precision import get_precision_context
from composer.trainer import trainer as trainer_module
from composer.utils import FSDP2Config, checkpoint, reproducibility
from composer.utils.dist import get_local_world_size

from fsdp_migrate.adapters.composer_trainer.twins import TrainersWays
from fsdp_migrate.errors import UnsupportedFeatureError


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from torch import nn
    from torch.distributed.checkpoint.storage import StorageReader
    from torch.distributed.device_mesh import DeviceMesh

    from fsdp_migrate.adapters.config_objects.composer import ComposerSettings


TESTED = ((0, 32), (0, 33))
"""The first and the last version of Composer that was tried: 0.32 in each release, 0.33 in development."""
SPECIFIER = f"mosaicml>={TESTED[0][0]}.{TESTED[0][1]},<{TESTED[1][0]}.{TESTED[1][1] + 1}"
"""What pip is asked for, to get one of them."""


@dataclass(frozen=True)
class Hook:
    """A private part of Composer: where it is, and the arguments that it takes."""

    owner: Any
    name: str
    parameters: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """Return its dotted name, as an error names it."""
        where = self.owner.__name__
        where = (
            where if inspect.ismodule(self.owner) else f"{self.owner.__module__}.{self.owner.__qualname__}"
        )
        return f"{where}.{self.name}"

    def problem(self) -> str | None:
        """Say what is wrong with it, or nothing."""
        if not hasattr(self.owner, self.name):
            return f"`{self.path}` is not there"
        if not self.parameters:
            return None
        found = inspect.signature(getattr(self.owner, self.name)).parameters
        missing = [name for name in self.parameters if name not in found]
        return f"`{self.path}` does not take {', '.join(missing)}" if missing else None


HOOKS: tuple[Hook, ...] = (
    Hook(State, "_apply_fsdp"),
    Hook(State, "fsdp_config"),
    Hook(State, "fsdp_enabled"),
    Hook(State, "state_dict"),
    Hook(State, "load_state_dict", ("state",)),
    Hook(FSDP2Config, "settable_attrs"),
    Hook(trainer_module, "OOM_FOUND_ON_OTHER_RANK"),
    Hook(trainer_module, "_readd_fsdp_sync_hooks", ("fsdp_modules", "sync_hook")),
    Hook(trainer_module.Trainer, "_wrap_model_for_distributed"),
    Hook(trainer_module.Trainer, "_train_microbatches", ("microbatches", "total_loss_dict")),
    Hook(trainer_module.Trainer, "_train_microbatch", ("is_final_microbatch",)),
    Hook(trainer_module.Trainer, "_eval_loop", ("evaluator", "metrics")),
    Hook(trainer_module, "_is_cuda_oom", ("e",)),
    Hook(OptimizerMonitor, "batch_end", ("state", "logger")),
    Hook(ema, "get_model_context_manager", ("model",)),
    Hook(checkpoint, "load_checkpoint", ("path", "state", "object_store", "load_weights_only")),
    Hook(checkpoint, "FileSystemReaderWithValidation", ("path",)),
    Hook(
        gradient_clipping,
        "apply_gradient_clipping",
        ("model", "clipping_type", "clipping_threshold", "fsdp_enabled"),
    ),
)


def check_composer(hooks: Sequence[Hook] = HOOKS, version: str = composer.__version__) -> None:
    """Check that this is a Composer that the callback knows.

    Raises:
        UnsupportedFeatureError: Its version was not tried, or a part of it has moved.
    """
    if not TESTED[0] <= _numbers(version) <= TESTED[1]:
        msg = (
            f"Composer {version} was not tried with FSDP2Migration, which uses internals that Composer may "
            f"move. Install `{SPECIFIER}`."
        )
        raise UnsupportedFeatureError(msg, feature=f"Composer {version}")
    problems = [problem for hook in hooks if (problem := hook.problem()) is not None]
    if problems:
        msg = (
            f"Composer {version} differs from what FSDP2Migration expects: {'; '.join(problems)}. "
            f"It was tried with `{SPECIFIER}`."
        )
        raise UnsupportedFeatureError(msg, feature=f"Composer {version}")


def _numbers(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version; that of a development version is the next release's."""
    return tuple(int(part) if part.isdigit() else -1 for part in version.split(".")[:2])


class Driver(Protocol):
    """What takes the place of Composer's own ways in a Trainer whose run was migrated."""

    def shard(self, state: Any) -> None:
        """Shard the state's model."""
        ...

    def batch(self, state: Any, parts: Sequence[Any]) -> AbstractContextManager[None]:
        """Surround the microbatches of a batch."""
        ...

    def microbatch(self, *, is_last: bool) -> AbstractContextManager[None]:
        """Surround one microbatch."""
        ...

    def evaluation(self, state: Any, evaluator: Any, metrics: Any) -> AbstractContextManager[None]:
        """Surround the evaluation by one evaluator."""
        ...

    def load(self, call: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Load a checkpoint, by ``call`` with these arguments or others."""
        ...

    def clip(self, model: nn.Module, clipping_type: str, threshold: float) -> bool:
        """Clip gradients as FSDP1 did; tell whether this was done."""
        ...

    def monitor(self, monitor: Any, state: Any, logger: Any) -> bool:
        """Log what ``OptimizerMonitor`` logs, of whole gradients; tell whether this was done."""
        ...


class MigratedConfig(FSDP2Config):  # type: ignore[misc,unused-ignore]
    """Composer's FSDP2 config of a run that FSDP1's config describes: nothing of that is lost.

    Composer's own has fixed values where FSDP1's has fields (planners, folders of checkpoints); here they
    are the FSDP1 config's.
    """

    def __init__(
        self,
        settings: ComposerSettings,
        *,
        driver: Driver,
        mixed_precision: Any,
        device_mesh: DeviceMesh | None,
        reshard_after_forward: bool | int,
    ) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the config being experimental
            super().__init__(
                device_mesh=device_mesh,
                reshard_after_forward=reshard_after_forward,
                activation_checkpointing=settings.recompute,
                activation_cpu_offload=settings.offload_activations,
                state_dict_type=settings.state_dict_type,
                load_monolith_rank0_only=settings.load_monolith_rank0_only,
                mixed_precision=mixed_precision,
                verbose=settings.verbose,
            )
        self.settings = settings
        self.driver = driver

    @property
    def load_planner(self) -> Any:
        """The planner that the FSDP1 config gave for loading."""
        return self.settings.load_planner

    @property
    def save_planner(self) -> Any:
        """The planner that the FSDP1 config gave for saving."""
        return self.settings.save_planner

    @property
    def sharded_ckpt_prefix_dir(self) -> str:
        """The folder of each sharded checkpoint, in the folder that the Trainer saves to."""
        return self.settings.sharded_ckpt_prefix_dir

    @property
    def data_parallel_shard_degree(self) -> int:
        """The number of ranks that share the parameters; -1: those that are left."""
        return self.settings.shard_degree

    @property
    def data_parallel_replicate_degree(self) -> int | None:
        """The number of replicas."""
        return self.settings.replicate_degree


def driver_of(state: Any) -> Driver | None:
    """Return the driver of a Trainer's state, if its run was migrated."""
    config = state.fsdp_config
    return config.driver if isinstance(config, MigratedConfig) else None


def out_of_memory_error() -> RuntimeError:
    """Return the error by which Composer's Trainer knows that it has to retry with a smaller microbatch."""
    return RuntimeError(trainer_module.OOM_FOUND_ON_OTHER_RANK)


def out_of_memory_here() -> RuntimeError:
    """Return the error by which Composer's evaluation knows that memory has run out on this rank."""
    return RuntimeError("CUDA out of memory on at least one rank.")


_installed: dict[Hook, Any] = {}
_drivers: WeakKeyDictionary[nn.Module, Driver] = WeakKeyDictionary()


def wrap_by_fsdp1(model: nn.Module, optimizers: Sequence[Any], config: Any, state: Any) -> None:
    """Wrap the children of a model as the Trainer does under FSDP1, and point its optimizer at them."""
    distributed.prepare_fsdp_module(
        model, optimizers, config, state.precision, state.device, auto_microbatching=False
    )


def precision_of(state: Any) -> AbstractContextManager[Any]:
    """Return the context in which a Trainer runs forwards and losses."""
    found: AbstractContextManager[Any] = get_precision_context(state.precision, state.precision_config)
    return found


TRAINERS_WAYS = TrainersWays(wrap_by_fsdp1, precision_of, get_local_world_size)
"""What a twin of a Trainer's model is trained with."""


def take_over_sharding(state: Any) -> None:
    """Let the state's driver shard the model where the Trainer would have FSDP1 or FSDP2 do it."""

    def apply_fsdp() -> None:
        with reproducibility.seed_context(state.rank_zero_seed):  # as the original does
            state.fsdp_config.driver.shard(state)

    state._apply_fsdp = apply_fsdp


def shard_now(state: Any) -> None:
    """Shard the state's model before the Trainer would, on all ranks."""
    state._apply_fsdp()


@contextmanager
def reading_by(reader: StorageReader) -> Iterator[None]:
    """Let a reader take the place of the one that Composer makes for the folder of a sharded checkpoint."""
    original = checkpoint.FileSystemReaderWithValidation
    checkpoint.FileSystemReaderWithValidation = lambda path: reader
    try:
        yield
    finally:
        checkpoint.FileSystemReaderWithValidation = original


def name_what_is_saved(
    state: Any,
    save: Callable[[dict[str, Any], str], dict[str, Any]],
    load: Callable[[dict[str, Any], str], dict[str, Any]],
) -> None:
    """Let ``save`` change what is saved, and ``load`` what is loaded; both know the scaler's name."""
    save_state, load_state = state.state_dict, state.load_state_dict

    def state_dict() -> dict[str, Any]:
        return save(save_state(), type(state.scaler).__qualname__)

    def load_state_dict(found: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        load_state(load(found, type(state.scaler).__qualname__), *args, **kwargs)

    state.state_dict, state.load_state_dict = state_dict, load_state_dict


def drive(model: nn.Module, driver: Driver) -> None:
    """Remember whose model it is, for what Composer calls with a model and without a state."""
    _drivers[model] = driver


def install() -> None:
    """Put the wrappers in place, unless they are."""
    wrappers = {
        "_train_microbatches": _wrap_train_microbatches,
        "_train_microbatch": _wrap_train_microbatch,
        "_eval_loop": _wrap_eval_loop,
        "load_checkpoint": _wrap_load_checkpoint,
        "apply_gradient_clipping": _wrap_clipping,
        "batch_end": _wrap_monitor,
        "get_model_context_manager": _wrap_ema,
    }
    for hook in HOOKS:
        # Once in a process, for all Trainers: each wrapper asks whose run it is in.
        if hook.name in wrappers and hook not in _installed:
            original = getattr(hook.owner, hook.name)
            _installed[hook] = original
            setattr(hook.owner, hook.name, wrappers[hook.name](original))


def surround_start(surround: Callable[[Any], AbstractContextManager[None]]) -> None:
    """Put what shards a Trainer's model into a context that is made of its state, for all Trainers."""
    for hook in HOOKS:
        if hook.name == "_wrap_model_for_distributed" and hook.problem() is None and hook not in _installed:
            original = getattr(hook.owner, hook.name)
            _installed[hook] = original
            setattr(hook.owner, hook.name, _wrap_start(original, surround))


def _wrap_start(
    original: Callable[..., Any], surround: Callable[[Any], AbstractContextManager[None]]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with surround(self.state):
            return original(self, *args, **kwargs)

    return call


def _wrap_train_microbatches(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, microbatches: Any, *args: Any, **kwargs: Any) -> Any:
        driver = driver_of(self.state)
        if driver is None:
            return original(self, microbatches, *args, **kwargs)
        with driver.batch(self.state, microbatches):
            return original(self, microbatches, *args, **kwargs)

    return call


def _wrap_train_microbatch(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        driver = driver_of(self.state)
        if driver is None:
            return original(self, *args, **kwargs)
        is_last = signature.bind(self, *args, **kwargs).arguments["is_final_microbatch"]
        with driver.microbatch(is_last=bool(is_last)):
            return original(self, *args, **kwargs)

    return call


def _wrap_eval_loop(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        driver = driver_of(self.state)
        if driver is None:
            return original(self, *args, **kwargs)
        given = signature.bind(self, *args, **kwargs).arguments
        with driver.evaluation(self.state, given["evaluator"], given["metrics"]):
            return original(self, *args, **kwargs)

    return call


def _wrap_load_checkpoint(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        # The driver looks at arguments that the Trainer leaves at their defaults, too.
        bound.apply_defaults()
        driver = driver_of(bound.arguments["state"])
        if driver is None:
            return original(*args, **kwargs)
        return driver.load(original, dict(bound.arguments))

    return call


def _wrap_clipping(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        driver = _drivers.get(given["model"])
        if driver is None or not driver.clip(
            given["model"], given["clipping_type"], given["clipping_threshold"]
        ):
            original(*args, **kwargs)

    return call


def _wrap_monitor(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, state: Any, logger: Any) -> None:
        driver = driver_of(state)
        if driver is None or not driver.monitor(self, state, logger):
            original(self, state, logger)

    return call


def _wrap_ema(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let EMA average shards: Composer 0.33 asks FSDP2's modules for FSDP1's ``summon_full_params``."""

    @functools.wraps(original)
    def call(model: Any) -> Any:
        return nullcontext() if model in _drivers else original(model)

    return call
