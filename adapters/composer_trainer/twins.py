"""A Trainer's model once more, under Composer's own FSDP1: the twin that first batches are compared with.

Before the model is sharded only its outline is copied: modules, without the memory of their parameters. The
values are gathered from the shards when the first batch comes, so that whatever was loaded is in them.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fsdp_migrate.adapters.config_objects.composer_marks import (
    CHECKPOINT_FN,
    CHECKPOINT_MARK,
    WRAP_FN,
    WRAP_MARK,
    composer_children,
)
from fsdp_migrate.errors import UnsupportedFeatureError
from fsdp_migrate.parity.recording import clean_name
from fsdp_migrate.parity.trainees import UnderFSDP1, quiet_fsdp1
from fsdp_migrate.runtime.sharded import gather, show_shards


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from torch.optim import Optimizer

    from fsdp_migrate.parity.trainees import Prepared


@dataclass(frozen=True)
class TrainersWays:
    """What Composer's Trainer does with a model: FSDP1 wraps it, in some precision, on so many ranks here."""

    wrap: Callable[[nn.Module, Sequence[Optimizer], Any, Any], None]
    precision: Callable[[Any], AbstractContextManager[Any]]
    local_ranks: Callable[[], int]


class Twin:
    """The outline of a model and its optimizer, which :meth:`wake` gives their values, and FSDP1.

    Args:
        model: The ``ComposerModel``, before it is sharded.
        optimizers: Its optimizers.
        config: The FSDP1 config of the Trainer.

    Raises:
        UnsupportedFeatureError: It has parameters that cannot be copied without their memory.
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer], config: Any) -> None:
        # Copied without its parameters, which deepcopy finds in the memo: the outline is made when the run
        # starts, and must not hold the model twice until the comparison begins.
        memo: dict[int, Any] = {id(param): _hollow(name, param) for name, param in model.named_parameters()}
        memo |= {id(optimizer.state): defaultdict(dict) for optimizer in optimizers}
        given = (model, list(optimizers), config.ignored_modules)
        self.model, self.optimizers, ignored = copy.deepcopy(given, memo)
        self._originals = dict(model.named_modules())
        self._modules = dict(self.model.named_modules())  # FSDP1's wrappers change names
        for name, child in composer_children(model).sharded.items():
            _settle_marks(child, self.model.get_submodule(name))
        self._config = copy.copy(config)
        # All ranks get the same values, and FSDP1 broadcasts none on the CPU.
        self._config.sync_module_states = self._config.verbose = False
        self._config.ignored_modules = ignored

    def wake(self, prepared: Prepared, state: Any, mesh: Any, ways: TrainersWays) -> UnderFSDP1:
        """Take the values of the prepared model and its optimizer, and let Composer wrap the twin.

        A collective call of all ranks.
        """
        # In this order: modules that algorithms put in bring buffers, and FSDP1 shards what is there when it
        # wraps. Optimizer state is loaded into what it made of the parameters.
        twin = UnderFSDP1(self.model, prepared.device, on_host=prepared.on_host)
        self._take_over(prepared.model)
        self._fill(prepared.model)
        self.look_like(prepared.model)
        if self._config.device_mesh is None:
            self._config.device_mesh = mesh
        with quiet_fsdp1(), _found_by_composer(prepared.device):
            ways.wrap(self.model, self.optimizers, self._config, state)
        twin.adopt(self.model, self.optimizers[0], uses_originals=bool(self._config.use_orig_params))
        if prepared.optimizer.state:
            # The groups stay the twin's own: they are compared.
            found = {**twin.optimizer_state(), "state": prepared.optimizer_state()["state"]}
            twin.load_optimizer_state(found)
        return twin

    def _take_over(self, model: nn.Module) -> None:
        """Take over modules without parameters that algorithms have put in since the outline was copied."""
        known = dict(model.named_modules())
        for name in [*known, *self._originals]:
            module = known.get(name)
            if module is self._originals.get(name):
                continue
            if module is None or next(module.parameters(), None) is not None:
                msg = f"`{name}` was added or removed after the model was sharded"
                raise UnsupportedFeatureError(msg, feature="verify_steps")
            above, _, own = name.rpartition(".")
            setattr(self.model.get_submodule(above), own, copy.deepcopy(module))
        self._modules = dict(self.model.named_modules())

    @torch.no_grad()
    def _fill(self, model: nn.Module) -> None:
        show_shards(model, "verify_steps")
        named = model.named_parameters(remove_duplicate=False)
        sources = {clean_name(name): param for name, param in named}
        for name, param in self.model.named_parameters():
            param.data = gather(sources[name]).cpu()
            param.requires_grad_(sources[name].requires_grad)

    @torch.no_grad()
    def look_like(self, model: nn.Module) -> None:
        """Take the values of buffers, and which modules are in training."""
        for name, module in model.named_modules():
            own = self._modules[clean_name(name)]
            own.training = module.training
            buffers = dict(own.named_buffers(recurse=False))
            for key, source in module.named_buffers(recurse=False):
                if buffers[key].is_meta:
                    setattr(own, key, source.detach().to("cpu", buffers[key].dtype, copy=True))
                else:
                    buffers[key].copy_(source)


def _hollow(name: str, param: nn.Parameter) -> nn.Parameter:
    """Return a parameter that takes no memory, and bears the same marks."""
    if type(param) is not nn.Parameter:
        msg = f"`{name}` is a {type(param).__name__}, of which no twin can be made."
        raise UnsupportedFeatureError(msg, feature="verify_steps")
    hollow = nn.Parameter(torch.empty(0, dtype=param.dtype), requires_grad=param.requires_grad)
    vars(hollow).update(vars(param))
    return hollow


def _settle_marks(child: nn.Module, twin: nn.Module) -> None:
    """Ask the functions of a child what they say of its modules: of those of a copy they may not know."""
    pairs = list(zip(child.modules(), twin.modules(), strict=True))
    for function, mark in ((WRAP_FN, WRAP_MARK), (CHECKPOINT_FN, CHECKPOINT_MARK)):
        asked = getattr(child, function, None)
        if callable(asked):
            given = {other: asked(module) for module, other in pairs if not hasattr(module, mark)}
            setattr(twin, function, _looked_up(given))


def _looked_up(given: Mapping[nn.Module, Any]) -> Callable[[nn.Module], Any]:
    def answer(module: nn.Module) -> Any:
        found = given.get(module, False)
        return dict(found) if isinstance(found, Mapping) else bool(found)

    return answer


@contextmanager
def _found_by_composer(device: torch.device) -> Iterator[None]:
    """Let Composer find the device: its FSDP1 asks CUDA for it without looking whether there is one."""
    original = torch.cuda.current_device
    if device.type != "cuda":
        torch.cuda.current_device = lambda: device  # type: ignore[assignment,return-value]
    try:
        yield
    finally:
        torch.cuda.current_device = original


_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def free_on_host() -> int | None:
    """Return how many bytes of memory this machine, or this container, has left; None: nobody tells."""
    left = []
    try:
        fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        left.append(1024 * int(fields["MemAvailable"].split()[0]))
    except (OSError, KeyError, ValueError):
        return None
    try:
        most, used = (int((_CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        left.append(most - used + int(cached.get("inactive_file", 0)))
    except (OSError, ValueError):
        pass  # no container, or one without a limit
    return min(left)


def free_on_device(device: torch.device) -> int | None:
    """Return how many bytes an accelerator has left, those that torch holds in reserve included."""
    if device.type != "cuda":
        return None
    reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + reserve


def lack_of_memory(prepared: Prepared, local_ranks: int) -> str:
    """Say what a twin needs and there is not, or nothing.

    A rank needs, where it trains: the twin's shards with gradients and optimizer state, and whole tensors of
    one kind. In host memory: the whole model while the twin is made; later whole tensors of one kind, twice,
    and what modules compute with.
    """
    params = list(prepared.model.parameters())
    whole = sum(each.numel() * each.element_size() for each in params)
    local = sum(_local_bytes(each) for each in params)
    kinds = _states_of(prepared.optimizer)
    training = local * (2 + kinds) + whole * max(1, kinds)
    comparing = whole * (max(3, 2 * kinds) + 1)
    if prepared.device.type == "cpu":
        training, comparing = 0, comparing + training
    said = []
    for where, needed, free in (
        ("host memory", comparing * local_ranks, free_on_host()),
        ("the accelerator's memory", training, free_on_device(prepared.device)),
    ):
        if free is not None and needed > free:
            said.append(f"it needs about {needed / 1e9:.2f} GB of {where}, and {free / 1e9:.2f} GB are free")
    return "; ".join(said)


def _local_bytes(param: torch.Tensor) -> int:
    local = param.to_local() if hasattr(param, "to_local") else param
    return int(local.numel() * local.element_size())


def _states_of(optimizer: Optimizer) -> int:
    """Return how many tensors an optimizer keeps for each parameter, or will."""
    found = [
        sum(isinstance(value, torch.Tensor) and value.dim() > 0 for value in values.values())
        for values in optimizer.state.values()
    ]
    if found:
        return max(found)
    groups = optimizer.param_groups
    return max(2 if "betas" in group else int(bool(group.get("momentum"))) for group in groups)
