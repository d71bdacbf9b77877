"""The two that are trained, under torch's FSDP1 and prepared; each shows whole tensors by plain names."""

from __future__ import annotations

import random
import sys
import time
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    FSDPModule,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)
from torch.distributed.tensor import DTensor

from fsdp_migrate.errors import ConfigError
from fsdp_migrate.parity.fsdp1 import wrap_in_fsdp1
from fsdp_migrate.parity.recording import Recorder, clean_name
from fsdp_migrate.parity.report import Collective, Cost
from fsdp_migrate.runtime import full_optimizer_state_dict
from fsdp_migrate.sharding.prepare import shard_plan
from fsdp_migrate.sharding.structure import check_is_module
from fsdp_migrate.sharding.tying import parameter_names
from fsdp_migrate.torch_compat.fsdp1_shards import named_whole_parameters
from fsdp_migrate.torch_compat.traffic import Traffic, count_traffic


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch.optim import Optimizer


Tensors = dict[str, torch.Tensor]
_Held = tuple[int, str, str]  # the place of its unit, its name, and what it has: such as a moment

_CARRIED = "carried by fsdp_migrate"
_WHOLE = {"rank0_only": False, "offload_to_cpu": False}


class Trainee:
    """A model that is trained, and what it shows. ``plain`` is the model itself, without a wrapper.

    ``on_host`` keeps whatever it shows in host memory, wherever it trains. Without ``records`` no hooks are
    put on its modules, and what happens inside a forward is not seen.
    """

    def __init__(
        self, plain: nn.Module, device: torch.device, *, on_host: bool = False, records: bool = True
    ) -> None:
        self.plain = plain
        self.device = device
        self.on_host = on_host
        self.recorder = Recorder(plain if records else nn.Module(), self._wait, on_host=on_host)
        self.model: Any = plain
        self.optimizer: Any = None
        self.traffic = Traffic()

    def _wait(self) -> None:
        if self.device.type != "cpu":
            torch.get_device_module(self.device.type).synchronize()

    def train(self, batch: Any, loss: Callable[[nn.Module, Any], Any], seed: int) -> tuple[float, float]:
        """Go forward and backward; return the loss and the seconds that it took without recording."""
        seed_everything(seed)
        self.traffic = Traffic()
        self._wait()
        began = time.perf_counter()
        with count_traffic(self.traffic):
            found = loss(self.model, batch)
            if not isinstance(found, torch.Tensor) or found.numel() != 1:
                msg = f"`loss` returns {found!r:.100}; expected a tensor of one number."
                raise ConfigError(msg, field="loss")
            self.recorder.is_backward = True
            torch.autograd.backward(found)
        self._wait()
        return float(found.detach()), time.perf_counter() - began - self.recorder.seconds

    def step(self) -> float:
        """Step the optimizer; return the seconds."""
        began = time.perf_counter()
        with count_traffic(self.traffic):
            self.optimizer.step()
        self._wait()
        return time.perf_counter() - began

    def cost(self, seconds: float, peak: int | None) -> Cost:
        """Return what the step cost; gradients must still be there."""
        params = list(self.model.parameters())
        states = [
            each
            for values in self.optimizer.state.values()
            for each in values.values()
            if isinstance(each, torch.Tensor)
        ]
        collectives = tuple(
            Collective(kind=kind, dtype=dtype, group_size=size, calls=calls, bytes=self.traffic.bytes[key])
            for key, calls in sorted(self.traffic.calls.items())
            for kind, dtype, size in [key]
        )
        return Cost(
            seconds=seconds,
            collectives=collectives,
            parameter_bytes=held_bytes(params),
            gradient_bytes=held_bytes(each.grad for each in params if each.grad is not None),
            optimizer_bytes=held_bytes(states),
            buffer_bytes=held_bytes(self.model.buffers()),
            peak_bytes=peak,
        )

    def buffers(self) -> Tensors:
        """Return the buffers."""
        return {clean_name(name): self._own(each) for name, each in self.model.named_buffers()}

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a tensor, gathered if it is sharded."""
        found = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        return found.detach().to("cpu", copy=True) if self.on_host else found.detach().clone()


class UnderFSDP1(Trainee):
    """A model that torch's FSDP1 wraps."""

    def wrap(self, arguments: Mapping[str, Any], make_optimizer: Callable[[nn.Module], Optimizer]) -> None:
        """Wrap the model, and make its optimizer."""
        model = wrap_in_fsdp1(self.plain, arguments)
        self.adopt(model, make_optimizer(model), uses_originals=bool(arguments["use_orig_params"]))

    def adopt(self, model: nn.Module, optimizer: Optimizer, *, uses_originals: bool) -> None:
        """Take a model that is wrapped, or whose children are, with its optimizer."""
        self.model, self.optimizer, self.uses_originals = model, optimizer, uses_originals

    def units(self) -> set[str]:
        """Return the names of the units that hold parameters."""
        # FSDP1 wraps modules without any parameters as well.
        return {
            clean_name(name)
            for name, each in self.model.named_modules()
            if isinstance(each, FSDP) and next(each.parameters(), None) is not None
        }

    @contextmanager
    def _states(self) -> Iterator[None]:
        configs = FullStateDictConfig(**_WHOLE), FullOptimStateDictConfig(**_WHOLE)
        with FSDP.state_dict_type(self.model, StateDictType.FULL_STATE_DICT, *configs):
            yield

    def ties(self) -> set[tuple[str, ...]]:
        """Return the names that have one parameter."""
        with FSDP.summon_full_params(self.model, writeback=False):
            return _ties(self.model)

    def parameters(self) -> Tensors:
        """Return the parameters, whole, and leave FSDP1 as it is: by what it has gathered its run goes on."""
        return {clean_name(name): each for name, each in named_whole_parameters(self.model, self._own)}

    def gradients(self) -> Tensors:
        """Return the gradients, whole; what is frozen has none, though FSDP1 shows zeros in trained units."""
        # torch's own `summon_full_params(with_grads=True)` fails with flat parameters and with gradients in
        # another dtype than the parameters'.
        carried = {
            param: {} if param.grad is None else {_CARRIED: param.grad} for param in self.model.parameters()
        }
        found, is_trained = self._whole(carried), self._trained()
        return {
            name: self._own(values[_CARRIED])
            for name, values in found.items()
            if _CARRIED in values and is_trained(name)
        }

    def _trained(self) -> Callable[[str], bool]:
        """Return what tells whether a parameter is trained: of flat ones, whether its unit is."""
        trains = {clean_name(name): param.requires_grad for name, param in self.model.named_parameters()}
        if self.uses_originals:
            return lambda name: trains.get(name, False)
        flat = {name.rpartition(".")[0]: is_trained for name, is_trained in trains.items()}

        def of_unit(name: str) -> bool:
            units = [each for each in flat if not each or name.startswith(f"{each}.")]
            return flat[max(units, key=len)] if units else True

        return of_unit

    def take_gradients(self, gradients: Tensors) -> None:
        """Take whole gradients for its own, where it has any; torch shards them, as an optimizer's state."""
        carrier = torch.optim.SGD(self.model.parameters(), lr=0.0)
        with self._states():
            outline = FSDP.optim_state_dict(self.model, carrier)
            outline["state"] = {
                name: {_CARRIED: gradients[clean_name(name)]}
                for group in outline["param_groups"]
                for name in group["params"]
                if clean_name(name) in gradients
            }
            carrier.load_state_dict(FSDP.optim_state_dict_to_load(self.model, carrier, outline))
        for param in self.model.parameters():
            taken = carrier.state.get(param, {}).get(_CARRIED)
            if param.grad is not None and taken is not None:
                param.grad.copy_(taken.view_as(param.grad))

    def _whole(self, states: Mapping[Any, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return what lies beside parameters, or flat parameters, whole and by names.

        torch itself unflattens it, as the state of an optimizer that has all of a unit's parameters. Where
        one has nothing and others of its unit have, torch fails; so it is lent zeros. Which have is agreed
        on by all ranks: one whose shard holds frozen parameters alone has nothing to tell it by.
        """
        carrier = torch.optim.SGD(self.model.parameters(), lr=0.0)
        carrier.state.update(states)
        places = {param: place for place, unit in enumerate(self._wrapped()) for param in unit.parameters()}
        named = {
            param: (places.get(param, -1), clean_name(name)) for name, param in self.model.named_parameters()
        }
        held = self._of_all_ranks(
            {
                (*named[param], key): each.dtype
                for param in named
                for key, each in states.get(param, {}).items()
                if _is_large(each)
            }
        )
        of_units = {(place, key): dtype for (place, _, key), dtype in held.items()}
        lent = set()
        for param, (place, name) in named.items():
            for key, dtype in [(key, dtype) for (unit, key), dtype in of_units.items() if unit == place]:
                if (place, name, key) not in held:
                    lent.add((name, key))
                if key not in carrier.state[param]:
                    zeros = torch.zeros_like(param, dtype=held.get((place, name, key), dtype))
                    carrier.state[param] = {**carrier.state[param], key: zeros}
        with self._states():
            found: dict[str, Any] = FSDP.optim_state_dict(self.model, carrier)
        return {
            clean_name(name): {
                key: each for key, each in values.items() if (clean_name(name), key) not in lent
            }
            for name, values in found["state"].items()
        }

    def _wrapped(self) -> list[FSDP]:
        """Return the modules that FSDP1 wraps, outer ones first."""
        return [each for each in self.model.modules() if isinstance(each, FSDP)]

    def _of_all_ranks(self, own: dict[_Held, torch.dtype]) -> dict[_Held, torch.dtype]:
        """Return what any rank has that shares a unit with this one."""
        found: dict[_Held, torch.dtype] = {}
        for group in dict.fromkeys(each.process_group for each in self._wrapped()):
            every: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(every, own, group=group)
            found |= {key: dtype for each in every for key, dtype in each.items()}
        return found

    def is_on_any_rank(self, *, holds: bool) -> bool:
        """Tell whether something holds on a rank that shares a unit with this one; collective."""
        return bool(self._of_all_ranks({(0, "", ""): torch.bool} if holds else {}))

    def optimizer_state(self) -> dict[str, Any]:
        """Return the optimizer's state, whole, by the names of parameters."""
        groups = self.optimizer.param_groups
        places = {param: place for place, group in enumerate(groups, 1) for param in group["params"]}
        # The number of its group goes with the state of each parameter: FSDP1 knows the names, the optimizer
        # the groups.
        states = {
            param: {
                **self.optimizer.state.get(param, {}),
                _CARRIED: places.get(param, 0),
            }
            for param in self.model.parameters()
        }
        found = self._whole(states)
        numbers = {name: int(values.pop(_CARRIED, 0)) for name, values in found.items()}
        return {
            "state": {name: self._shown(values) for name, values in found.items() if values},
            "param_groups": [
                {**group, "params": [name for name, each in numbers.items() if each == place]}
                for place, group in enumerate(groups, 1)
            ],
        }

    def _shown(self, values: dict[str, Any]) -> dict[str, Any]:
        if not self.on_host:
            return values
        return {key: each.cpu() if isinstance(each, torch.Tensor) else each for key, each in values.items()}

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """Load an optimizer's whole state, by the names of parameters."""
        with self._states():
            self.optimizer.load_state_dict(FSDP.optim_state_dict_to_load(self.model, self.optimizer, state))


class Prepared(Trainee):
    """A model that :func:`~fsdp_migrate.prepare_fully_shard` shards."""

    def prepare(
        self, prepare: Callable[..., Any], config: Any, make_optimizer: Callable[[nn.Module], Optimizer]
    ) -> None:
        """Shard the model, and make its optimizer."""
        self.model = prepare(self.plain, config)
        check_is_module(self.model)
        self.plan = shard_plan(self.model)
        self.optimizer = make_optimizer(self.model)

    def adopt(self, optimizer: Optimizer) -> None:
        """Take the model as it was sharded, or its children were, with its optimizer."""
        self.model, self.optimizer = self.plain, optimizer

    def units(self) -> set[str]:
        """Return the names of the units."""
        named = self.model.named_modules()
        return {clean_name(name) for name, each in named if isinstance(each, FSDPModule)}

    def ties(self) -> set[tuple[str, ...]]:
        """Return the names that have one parameter."""
        return _ties(self.model)

    def parameters(self) -> Tensors:
        """Return the parameters, whole."""
        named = self.model.named_parameters(remove_duplicate=False)
        return {clean_name(name): self._own(each) for name, each in named}

    def gradients(self) -> Tensors:
        """Return the gradients, whole."""
        return {
            clean_name(name): self._own(each.grad)
            for name, each in self.model.named_parameters()
            if each.grad is not None
        }

    def optimizer_state(self) -> dict[str, Any]:
        """Return the optimizer's state, whole, by the names of parameters."""
        given = {**_WHOLE, "offload_to_cpu": self.on_host}
        found: dict[str, Any] = full_optimizer_state_dict(self.model, self.optimizer, **given)
        return found


def _is_large(value: Any) -> bool:
    """Tell whether a part of an optimizer's state is of a parameter's shape."""
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _ties(model: nn.Module) -> set[tuple[str, ...]]:
    names = (tuple(sorted(map(clean_name, each))) for each in parameter_names(model).values())
    return {each for each in names if len(each) > 1}


def held_bytes(tensors: Any) -> int:
    """Return how many bytes of this rank's memory tensors hold; what is shared counts once."""
    sizes = {}
    for each in tensors:
        local = each.to_local() if isinstance(each, DTensor) else each
        storage = local.untyped_storage()
        sizes[storage.data_ptr(), local.device] = storage.nbytes()
    return sum(sizes.values())


def seed_everything(seed: int) -> None:
    """Seed torch's generators and Python's, and numpy's where it is loaded."""
    torch.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)


@contextmanager
def quiet_fsdp1() -> Iterator[None]:
    """Keep FSDP1's warnings of its own end to itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", UserWarning)
        yield


def is_alone() -> bool:
    """Tell whether there is no process group."""
    return not (dist.is_available() and dist.is_initialized())
