"""The model of a draw: an embedding, blocks that run as the draw says, and a head."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.fuzz.units import KINDS, VOCABULARY, WIDTH, Block, Result


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fuzz.draws import Draw


class BrokenOffError(Exception):
    """What a drawn model raises in the middle of its forward or backward."""


class Head(nn.Module):
    """A norm and an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        out: torch.Tensor = self.out(self.norm(x))
        return out


@dataclass
class _Given:
    """What blocks may ask for in one forward."""

    tokens: torch.Tensor
    memory: torch.Tensor
    first: torch.Tensor
    step: int
    losses: list[torch.Tensor] = field(default_factory=list)
    by_number: dict[int, torch.Tensor] = field(default_factory=dict)
    hidden: list[torch.Tensor] = field(default_factory=list)

    def get(self, name: str) -> Any:
        return {
            "list": self.losses,
            "dict": self.by_number,
            "memory": self.memory,
            "nested": {"keys": {"first": self.memory}},
            "first": self.first,
            "step": self.step,
            "tokens": self.tokens,
            "turn": self.step + dist.get_rank(),
        }[name]

    def sum(self) -> torch.Tensor:
        """Add up what blocks have noted."""
        every = [*self.losses, *self.by_number.values()]
        return sum((each.float() for each in every), torch.zeros(()))


class _Breaking(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        del ctx
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise BrokenOffError("in backward")


_break_backward: Callable[[torch.Tensor], torch.Tensor] = _Breaking.apply


class Net(nn.Module):
    """A model that runs as its draw says; ``step`` and ``breaks`` are set from outside."""

    def __init__(self, drawn: Draw) -> None:
        super().__init__()
        self.drawn = drawn
        self.step = 0
        self.breaks = ""
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        kinds = [KINDS[name] for name in drawn.blocks]
        if drawn.encoder == "yes":
            self.encoder = nn.ModuleList(Block() for _ in range(2))
            self.encoder_norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(kind() for kind in kinds)
        if drawn.route == "registered twice":
            self.layers.append(self.layers[0])
        self.head = Head()
        if drawn.loss == "of two heads":
            self.second = Head()
        self.register_buffer("offset", torch.full((WIDTH,), 0.1))
        self._tie(drawn.tie)

    def _tie(self, tie: str) -> None:
        blocks: list[Any] = list(self.layers)
        if tie == "head and embedding":
            self.head.out.weight = self.embed.weight
        elif tie == "in a block":
            blocks[0].norm.bias = blocks[0].down.bias
        elif tie == "across blocks":
            blocks[-1].up.weight = blocks[0].up.weight

    def order(self) -> list[int]:
        """Return which blocks run, in which order."""
        every = list(range(len(self.layers)))
        route = self.drawn.route
        if route == "twice over":
            return [*every, *every]
        if route == "there and back":
            return [*every, *reversed(every)]
        if route == "one left out":
            return [index for index in every if len(every) > 1 and index != self.step % len(every)] or every
        if route == "another order each step":
            return every if self.step % 2 == 0 else every[::-1]
        if route == "as often as the rank says":
            return [index for index in every for _ in range(1 + dist.get_rank() % 2)]
        return every

    def forward(self, tokens: torch.Tensor, extra: torch.Tensor, labels: torch.Tensor) -> Any:
        """Return the loss, in whatever the draw returns it."""
        x = self.embed(tokens)
        x = x + self.offset.to(x.dtype) + extra.to(x.dtype)
        memory = x
        if self.drawn.encoder == "yes":
            memory = self.embed(tokens.flip(1))
            for block in self.encoder:
                memory = block(memory)
            memory = self.encoder_norm(memory)
        given = _Given(tokens, memory, x, self.step)
        for count, index in enumerate(self.order()):
            if self.breaks and count == len(self.layers) // 2:
                x = self._break(x)
            x = self._run(index, x, given)
            given.hidden.append(x)
        return self._result(self._loss(x, labels, given), x)

    def _break(self, x: torch.Tensor) -> torch.Tensor:
        if self.breaks == "forward":
            raise BrokenOffError("in forward")
        return _break_backward(x)

    def _run(self, index: int, x: torch.Tensor, given: _Given) -> torch.Tensor:
        block: Any = self.layers[index]
        more = [given.get(name) for name in KINDS[self.drawn.blocks[index % len(self.drawn.blocks)]].needs]
        if self.drawn.route.startswith("recomputed"):
            out = checkpoint(block, x, *more, use_reentrant="reentrant" in self.drawn.route)
        else:
            out = block(x, *more)
        found, *losses = _parts(out)
        given.losses += losses
        return found

    def _loss(self, x: torch.Tensor, labels: torch.Tensor, given: _Given) -> torch.Tensor:
        def entropy(logits: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

        loss = entropy(self.head(x))
        if self.drawn.loss == "of two heads":
            loss = loss + entropy(self.second(given.hidden[0]))
        elif self.drawn.loss == "of hidden states too":
            loss = loss + 0.1 * sum((each.float().square().mean() for each in given.hidden), torch.zeros(()))
        for block in self.layers:
            kept = getattr(block, "kept", None)
            loss = loss if kept is None else loss + kept
        return loss + given.sum()

    def _result(self, loss: torch.Tensor, x: torch.Tensor) -> Any:
        results: dict[str, Any] = {
            "tensor": loss,
            "dict": {"loss": loss, "x": x},
            "tuple": (loss, x),
            "dataclass": Result(x, loss),
            "nested": [{"loss": (loss, None)}, "words"],
        }
        return results[self.drawn.result]


def loss_in(result: Any) -> torch.Tensor:
    """Return the loss in what a model returned."""
    if isinstance(result, torch.Tensor):
        return result
    if isinstance(result, dict):
        return loss_in(result["loss"])
    return loss_in(result.loss if isinstance(result, Result) else result[0])


def _parts(out: Any) -> Iterator[torch.Tensor]:
    """Yield a block's output, and then the losses that came with it."""
    if isinstance(out, torch.Tensor):
        yield out
    elif isinstance(out, dict):
        yield from (out["x"], *out["more"]["loss"])
    elif isinstance(out, list):
        yield out[0]
    elif isinstance(out, Result):
        yield from (out.x, out.loss)
    else:
        yield from (out[0], out[1])


def freeze(model: nn.Module, drawn: Draw) -> None:
    """Freeze what the draw freezes before sharding."""
    for name, param in model.named_parameters():
        param.requires_grad_(param.requires_grad and not _is_frozen(name, drawn))


def _is_frozen(name: str, drawn: Draw) -> bool:
    first, last = "layers.0.", f"layers.{len(drawn.blocks) - 1}."
    return {
        "first block": name.startswith(first),
        "thawed later": name.startswith(first),
        "embedding": name.startswith("embed."),
        "norms": "norm" in name,
        "biases": name.endswith("bias"),
        "all but the last block": not name.startswith((last, "head.")),
    }.get(drawn.frozen, False)
