"""What all ranks see when one of them fails in the middle of a batch, and what they go on with."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from fsdp_migrate.errors import BatchError, FSDPMigrateError
from fsdp_migrate.microbatch import microbatches, running
from fsdp_migrate.microbatch.rollback import Rollback
from fsdp_migrate.microbatch.search import auto_microbatch
from fsdp_migrate.sharding.prepare import prepare_fully_shard
from fsdp_migrate.torch_compat.fsdp2 import fsdp2_internals
from fsdp_migrate.torch_compat.param_groups import parameter_groups
from tests.models import ConvNet, Net, batch, loss_of
from tests.rank_bodies.microbatches import STRATEGIES, gradients, parts_of, prepared, same, settings


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Bomb:
    """Runs out of memory on the last rank, at one place, while it is armed."""

    def __init__(self) -> None:
        self.armed = False
        self.went_off = 0
        self.replaced: list[tuple[Any, str, Any]] = []

    def tick(self, *args: Any) -> None:
        del args
        if self.armed and dist.get_rank() == dist.get_world_size() - 1:
            self.went_off += 1
            self.armed = False
            raise torch.OutOfMemoryError("CUDA out of memory, says this test\nand a second line")

    def in_forward(self, module: nn.Module) -> None:
        module.register_forward_pre_hook(self.tick)

    def in_backward(self, module: nn.Module) -> None:
        module.register_forward_hook(lambda _, __, output: output.register_hook(self.tick) and None)

    def in_torch(self, function: str, number: int) -> None:
        """Go off in the ``number``-th call of one of FSDP2's own functions since it was armed."""
        collectives = fsdp2_internals("_fsdp_collectives")
        original = getattr(collectives, function)
        calls = []

        def failing(*args: Any, **kwargs: Any) -> Any:
            calls.append(self.armed)
            if not self.armed:
                calls.clear()
            if len(calls) == number:
                self.tick()
            return original(*args, **kwargs)

        self.replaced.append((collectives, function, original))
        setattr(collectives, function, failing)

    def remove(self) -> None:
        """Give torch its own functions back."""
        while self.replaced:
            setattr(*self.replaced.pop())

    def after_gathering(self, group: Any) -> None:
        param = group.parameters[0]
        original = param.init_all_gather_outputs

        def failing(*args: Any, **kwargs: Any) -> Any:
            original(*args, **kwargs)
            self.tick()

        param.init_all_gather_outputs = failing


PLACES: dict[str, Callable[[Any, Bomb], None]] = {
    "forward of the root": lambda net, bomb: bomb.in_forward(net.embed),
    "forward of the first block": lambda net, bomb: bomb.in_forward(net.blocks[0].down),
    "forward of the second block": lambda net, bomb: bomb.in_forward(net.blocks[1].norm),
    "forward of the head": lambda net, bomb: bomb.in_forward(net.head.out),
    "backward of the head": lambda net, bomb: bomb.in_backward(net.head.norm),
    "backward of the second block": lambda net, bomb: bomb.in_backward(net.blocks[1].down),
    "backward of the first block": lambda net, bomb: bomb.in_backward(net.blocks[0].up),
    "backward of the root": lambda net, bomb: bomb.in_backward(net.embed),
    "before the second gather": lambda _, bomb: bomb.in_torch("_get_param_all_gather_inputs", 2),
    "before the fifth gather": lambda _, bomb: bomb.in_torch("_get_param_all_gather_inputs", 5),
    "before the first reduction": lambda _, bomb: bomb.in_torch("foreach_reduce_scatter_copy_in", 1),
    "before the last reduction": lambda _, bomb: bomb.in_torch("foreach_reduce_scatter_copy_in", 4),
    "after a gather": lambda net, bomb: bomb.after_gathering(parameter_groups(net)[2]),
}


@dataclass
class Retry:
    """What a retried batch left, and what one that did not have to be retried did."""

    size: int
    num_retries: int
    went_off: int
    outputs: list[float]
    expected_outputs: list[float]
    same_gradients: bool
    same_buffers: bool
    same_later: bool


def retry(place: str, strategy: str = "FULL_SHARD", comms: Any = "auto") -> Retry:
    """Run out of memory at four rows, in the second microbatch, and go on with two; then train on."""
    bomb = Bomb()
    outcomes: list[Any] = []
    for size in (4, 2):
        model = prepared(**STRATEGIES[strategy]())
        rank = dist.get_rank()
        torch.manual_seed(rank)
        torch.autograd.backward(loss_of(model, batch(9, rank)))  # gradients that are there already
        if size == 4:
            PLACES[place](model, bomb)
        outcomes.append((model, _run_batch(model, batch(0, rank, rows=8), size, bomb, comms)))
        outcomes[-1] += (gradients(model), dict(model.named_buffers()))
    bomb.remove()
    (first, run, found, buffers), (second, expected, wanted, their_buffers) = outcomes
    later = []
    for model in (first, second):
        torch.optim.SGD(model.parameters(), lr=0.3).step()
        model.zero_grad()
        for tokens in microbatches(model, parts_of(3, dist.get_rank(), 2)):
            torch.autograd.backward(loss_of(model, tokens))
        later.append(gradients(model))
    return Retry(
        run.size,
        run.num_retries,
        bomb.went_off,
        run.outputs,
        expected.outputs,
        same(found, wanted),
        same(buffers, their_buffers),
        same(*later),
    )


def retry_everywhere() -> dict[str, Retry]:
    """Retry after each of the places, one after the other."""
    return {place: retry(place) for place in PLACES}


def _run_batch(model: nn.Module, rows: torch.Tensor, size: int, bomb: Bomb, comms: Any) -> Any:
    seen: list[int] = []

    def step(tokens: torch.Tensor) -> float:
        seen.append(len(tokens))
        bomb.armed = len(tokens) == 4 and len(seen) == 2
        loss = loss_of(model, tokens) * len(tokens) / len(rows)
        torch.autograd.backward(loss)
        return loss.item()

    return auto_microbatch(model, rows, step, size=size, comms=comms)


class Dropping(nn.Module):
    """A net with BatchNorm and dropout, which change buffers and random numbers in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.net = ConvNet()
        self.drop = nn.Dropout(0.5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.drop(self.net(tokens))
        return out


def retry_with_state() -> tuple[bool, bool]:
    """Run out of memory in a net with buffers and random numbers; tell whether both are put back."""
    found: list[Any] = []
    for size in (4, 2):
        torch.manual_seed(0)
        model: Any = Dropping()
        prepare_fully_shard(model, {"device_id": "cpu", "auto_wrap_policy": {nn.Sequential}})
        bomb = Bomb()
        bomb.in_backward(model.net.second[0])
        _run_batch(model, batch(0, dist.get_rank(), rows=8), size, bomb, "auto")
        found.append((gradients(model), {name: b.clone() for name, b in model.named_buffers()}))
    (gradients_found, buffers), (gradients_wanted, their_buffers) = found
    return same(gradients_found, gradients_wanted), same(buffers, their_buffers)


def nothing_fits() -> tuple[str, str]:
    """Run out of memory at any size."""
    model = prepared()
    bomb = Bomb()
    bomb.in_forward(model.head)

    def step(tokens: torch.Tensor) -> None:
        bomb.armed = True
        torch.autograd.backward(loss_of(model, tokens))

    return _error(lambda: auto_microbatch(model, batch(0, 0, rows=4), step))


def _error(work: Callable[[], Any]) -> tuple[str, str]:
    try:
        work()
    except (FSDPMigrateError, KeyError) as error:
        return type(error).__name__, str(error)
    return "no error", ""


def _body(model: nn.Module, tokens: torch.Tensor, index: int) -> None:
    if index == 1 and dist.get_rank() == 1:
        raise KeyError("a body's own error")
    torch.autograd.backward(loss_of(model, tokens))


def _in_with(model: nn.Module) -> None:
    with microbatches(model, parts_of(0, dist.get_rank(), 3), agree=True) as parts:
        for index, tokens in enumerate(parts):
            _body(model, tokens, index)


def _in_for(model: nn.Module) -> None:
    for index, tokens in enumerate(microbatches(model, parts_of(0, dist.get_rank(), 3), agree=True)):
        _body(model, tokens, index)


def _before_the_loop(model: nn.Module) -> None:
    with microbatches(model, parts_of(0, dist.get_rank(), 3), agree=True) as parts:
        if dist.get_rank() == 1:
            raise KeyError("a body's own error")
        for index, tokens in enumerate(parts):
            _body(model, tokens, index)


def _after_the_others(model: nn.Module) -> None:
    """Fail when the other rank has run out of microbatches, and only joins in."""
    rank = dist.get_rank()
    for index, tokens in enumerate(microbatches(model, parts_of(0, rank, 1 + rank))):
        _body(model, tokens, index)


def _by_break(model: nn.Module) -> None:
    for tokens in microbatches(model, parts_of(0, dist.get_rank(), 3), agree=True):
        torch.autograd.backward(loss_of(model, tokens))
        if dist.get_rank() == 1:
            break


def _while_joining(model: nn.Module) -> None:
    rank = dist.get_rank()
    if rank == 1:
        group = parameter_groups(model)[1]
        Bomb.after_gathering(bomb := Bomb(), group)
        bomb.armed = True
    for tokens in microbatches(model, parts_of(0, rank, 1 - rank)):
        torch.autograd.backward(loss_of(model, tokens))


def _in_loading(model: nn.Module) -> None:
    def load() -> Iterator[torch.Tensor]:
        yield batch(0, 0)
        if dist.get_rank() == 1:
            raise OSError("the file is gone")

    for tokens in microbatches(model, load()):
        torch.autograd.backward(loss_of(model, tokens))


def _nothing(model: nn.Module) -> None:
    for _ in microbatches(model, []):
        pass


def _settings(model: nn.Module) -> None:
    for _ in microbatches(model, [1], comms="last" if dist.get_rank() else "every"):
        pass


def _sizes(model: nn.Module) -> None:
    auto_microbatch(model, batch(0, 0), print, size=1 + dist.get_rank())


def _no_rows(model: nn.Module) -> None:
    auto_microbatch(model, batch(0, 0) if dist.get_rank() else "nothing", print)


def _unlike_rows(model: nn.Module) -> None:
    rows = [batch(0, 0, rows=3), batch(0, 0, rows=4 if dist.get_rank() else 3)]
    auto_microbatch(model, rows, lambda part: torch.autograd.backward(loss_of(model, part[0])), size=2)


def _skipping(model: Any) -> None:
    """Run without the first block on one rank, which still has it."""
    if dist.get_rank() == 1:
        model.forward = lambda tokens: model.head(model.blocks[1](model.embed(tokens)))
    for tokens in microbatches(model, parts_of(0, 0, 2), agree=True):
        torch.autograd.backward(loss_of(model, tokens))


def _without_a_gradient(model: Any) -> None:
    """Use on one rank a parameter of the head that another does not use."""
    if dist.get_rank() == 1:
        model.head.norm.forward = lambda x: x
    for tokens in microbatches(model, parts_of(0, 0, 2), agree=True):
        torch.autograd.backward(loss_of(model, tokens))


def _fewer_backwards(model: Any) -> None:
    for index, tokens in enumerate(microbatches(model, parts_of(0, 0, 2), agree=True)):
        loss = loss_of(model, tokens)
        if index == 0 or dist.get_rank() == 0:
            torch.autograd.backward(loss)


def _in_remembering(model: Any) -> None:
    """Run out of memory when the gradients before the batch are copied."""
    with patch.object(running, "Rollback", _forgetful if dist.get_rank() else Rollback):
        for tokens in microbatches(model, parts_of(0, 0, 2), agree=True):
            torch.autograd.backward(loss_of(model, tokens))


def _forgetful(model: nn.Module) -> None:
    del model
    raise torch.OutOfMemoryError("no room for copies")


def _swallowed(model: Any) -> None:
    """Go on after an error that is not the loop's to catch."""
    for index, tokens in enumerate(microbatches(model, parts_of(0, 0, 3), agree=True)):
        with suppress(BatchError):
            _body(model, tokens, index)


def _in_a_generator(model: Any) -> None:
    """Close a generator that holds the loop, on one rank, in the middle."""

    def run() -> Iterator[None]:
        with microbatches(model, parts_of(0, 0, 3), agree=True) as parts:
            for tokens in parts:
                torch.autograd.backward(loss_of(model, tokens))
                yield

    steps = run()
    next(steps)
    if dist.get_rank() == 1:
        steps.close()  # type: ignore[attr-defined]
    else:
        list(steps)


def _other_models(model: nn.Module) -> None:
    """Run a model that one rank has sharded as one unit more."""
    del model
    other = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    mesh = init_device_mesh("cpu", (2,))
    if dist.get_rank() == 1:
        fully_shard(other[0], mesh=mesh)
    fully_shard(other, mesh=mesh)
    for _ in microbatches(other, [1]):
        pass


def _unexpected_gradient(model: Any) -> None:
    """Have a gradient on the rank that joins in, of what those with more microbatches do not use."""
    rank = dist.get_rank()
    if rank == 0:
        model.head.norm.forward = lambda x: x
    for tokens in microbatches(model, parts_of(0, rank, 2 - rank), comms="last"):
        torch.autograd.backward(loss_of(model, tokens))


FAILURES: dict[str, Callable[[Any], None]] = {
    "in with": _in_with,
    "in for": _in_for,
    "before the loop": _before_the_loop,
    "after the others": _after_the_others,
    "by break": _by_break,
    "while joining": _while_joining,
    "in loading": _in_loading,
    "nothing": _nothing,
    "settings": _settings,
    "sizes": _sizes,
    "no rows": _no_rows,
    "unlike rows": _unlike_rows,
    "skipping": _skipping,
    "without a gradient": _without_a_gradient,
    "fewer backwards": _fewer_backwards,
    "in remembering": _in_remembering,
    "swallowed": _swallowed,
    "in a generator": _in_a_generator,
    "other models": _other_models,
    "unexpected gradient": _unexpected_gradient,
}


UNLIKE_GRADIENTS = {"without a gradient", "unexpected gradient"}
"""What fails in a model of plain ``fully_shard`` only: prepared ones reduce their units as a whole."""


def _plain() -> Any:
    """Return the net of ``prepared`` as torch alone shards it."""
    torch.manual_seed(0)
    net: Any = Net()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module in (*net.blocks, net.head, net):
        fully_shard(module, mesh=mesh)
    return net


@dataclass
class Failure:
    """How a batch failed on a rank, and whether the next goes well."""

    error: str
    message: str
    settings_back: bool
    gradients_back: bool
    next_is_right: bool


def fail(name: str) -> Failure:
    """Run a batch that fails, and then one that does not."""
    make = _plain if name in UNLIKE_GRADIENTS else prepared
    model, other = make(), make()
    before = settings(model)
    forwards = {module: vars(module).get("forward") for module in model.modules()}
    error, message = _error(lambda: FAILURES[name](model))
    for module, forward in forwards.items():
        if forward is None:
            vars(module).pop("forward", None)
    settings_back, gradients_back = settings(model) == before, not gradients(model)
    model.zero_grad()
    for net in (model, other):
        for tokens in microbatches(net, parts_of(3, dist.get_rank(), 2)):
            torch.autograd.backward(loss_of(net, tokens))
    return Failure(error, message, settings_back, gradients_back, same(gradients(model), gradients(other)))


def fail_everyhow() -> dict[str, Failure]:
    """Fail in every way, one after the other."""
    return {name: fail(name) for name in FAILURES}


def sync_batch_norm() -> tuple[str, str]:
    """Run different numbers of microbatches with a module whose forward needs every rank."""
    model = nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2))
    prepare_fully_shard(model, {"device_id": "cpu"})
    return _error(lambda: [None for _ in microbatches(model, range(dist.get_rank()))])


def wrong_size(size: int, min_size: int) -> tuple[str, str]:
    """Begin with a size that means nothing."""
    model = prepared()
    return _error(lambda: auto_microbatch(model, batch(0, 0), print, size=size, min_size=min_size))
