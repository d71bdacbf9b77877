"""The kinds of blocks in drawn models: each does something to what it is given, or to what it returns."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint


if TYPE_CHECKING:
    from collections.abc import Callable


WIDTH = 6
INNER = 11
VOCABULARY = 13


class Block(nn.Module):
    """A residual perceptron; ``needs`` names what else the model hands to its forward."""

    needs: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, INNER)
        self.down = nn.Linear(INNER, WIDTH)

    def residual(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's own part, which is added to its input."""
        out: torch.Tensor = self.down(torch.tanh(self.up(self.norm(x))))
        return out

    def forward(self, x: torch.Tensor) -> Any:
        """Add the block's own part to its input."""
        return x + self.residual(x)


def _note(out: torch.Tensor) -> torch.Tensor:
    return 0.1 * out.float().square().mean()


class NotingInList(Block):
    """Appends a loss of its own to a list that it is given."""

    needs = ("list",)

    def forward(self, x: torch.Tensor, notes: Any = None) -> Any:
        out = super().forward(x)
        notes.append(_note(out))
        return out


class NotingInDict(Block):
    """Writes a loss of its own into a dict that it is given."""

    needs = ("dict",)

    def forward(self, x: torch.Tensor, notes: Any = None) -> Any:
        out = super().forward(x)
        notes[len(notes)] = _note(out)
        return out


class NotingInItself(Block):
    """Keeps a loss of its own, which the model fetches."""

    kept: Any = None

    def forward(self, x: torch.Tensor) -> Any:
        out = super().forward(x)
        self.kept = _note(out)
        return out


class Cross(Block):
    """Uses its second input twice, as cross-attention does."""

    needs = ("memory",)

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, memory: Any = None) -> Any:
        weights = (x @ self.key(memory).transpose(-1, -2)).softmax(-1)
        return super().forward(x + weights @ self.value(memory))


class NestedKeyword(Cross):
    """Takes the memory from a dict in a dict."""

    needs = ("nested",)

    def forward(self, x: torch.Tensor, memory: Any = None) -> Any:
        return super().forward(x, memory["keys"]["first"])


class Adding(Block):
    """Works in place on its input."""

    def forward(self, x: torch.Tensor) -> Any:
        x += 0.5
        return super().forward(x)


class ReluFirst(Block):
    """Begins with an activation in place."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(self.act(x + 0))


class Asking(Block):
    """Asks whether its two inputs are one tensor."""

    needs = ("first",)

    def forward(self, x: torch.Tensor, first: Any = None) -> Any:
        return super().forward(x if x is first else x + 0.5 * first)


class TupleOut(Block):
    """Returns a tuple with a loss and numbers that have no gradient."""

    def forward(self, x: torch.Tensor) -> Any:
        out = super().forward(x)
        return out, _note(out), out.argmax(-1)


class DictOut(Block):
    """Returns dicts in a dict."""

    def forward(self, x: torch.Tensor) -> Any:
        out = super().forward(x)
        return {"x": out, "more": {"loss": [_note(out)]}, "name": "block", "none": None}


@dataclass
class Result:
    """What a block or a model returns as an object of its own, which torch's pytrees do not look into."""

    x: Any
    loss: Any = None


class DataclassOut(Block):
    """Returns a dataclass."""

    def forward(self, x: torch.Tensor) -> Any:
        out = super().forward(x)
        return Result(out, _note(out))


Pair = namedtuple("Pair", ["x", "loss"])  # noqa: PYI024  # as users' older code has them


class NamedTupleOut(Block):
    """Returns a named tuple."""

    def forward(self, x: torch.Tensor) -> Any:
        out = super().forward(x)
        return Pair(out, _note(out))


class Experts(Block):
    """Uses one of three experts, another one on each rank and in each step."""

    needs = ("turn",)

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor, turn: int = 0) -> Any:
        return super().forward(x + self.experts[turn % 3](x))


class Unused(Block):
    """Has a parameter that it never uses."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Parameter(torch.ones(7))


class Running(Block):
    """Keeps a running mean in a buffer."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> Any:
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(x.detach().mean((0, 1)).to(self.mean.dtype), 0.3)
        return super().forward(x - self.mean.to(x.dtype))


class BatchNormed(Block):
    """Has a BatchNorm, which FSDP1 keeps in full precision."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(self.batch(x.transpose(1, 2)).transpose(1, 2))


class Dropping(Block):
    """Has a dropout."""

    def residual(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(super().residual(x), 0.3, self.training)


class Nested(Block):
    """Has another block in it, which is a unit too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Block()

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(self.inner(x))


class Adapter(Block):
    """Trains an adapter alone."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(requires_grad=False)
        self.adapter = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x + self.adapter(x))


class Detached(Block):
    """Lets no gradient through its own part."""

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.residual(x.detach())


class PartlyWithoutGradients(Block):
    """Computes a part without gradients."""

    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            more = self.residual(x)
        return super().forward(x + more)


class Recomputing(Block):
    """Recomputes its middle."""

    def forward(self, x: torch.Tensor) -> Any:
        return x + checkpoint(self.residual, x, use_reentrant=False)  # type: ignore[operator,unused-ignore]


def _halve(module: nn.Module, grads: Any, _: Any) -> Any:
    """Halve what goes backward out of a module."""
    del module
    return tuple(None if grad is None else grad * 0.5 for grad in grads)


class Hooked(Block):
    """Has hooks of its own, before and after its forward, and in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.register_forward_pre_hook(lambda _, args: (args[0] * 1.1, *args[1:]))
        self.register_forward_hook(lambda _, __, out: out * 0.9)
        self.up.register_full_backward_hook(_halve)


class BackwardHooked(Block):
    """Has a hook in backward on the whole block."""

    def __init__(self) -> None:
        super().__init__()
        self.register_full_backward_hook(_halve)


class TensorHooked(Block):
    """Scales the gradient of its input."""

    def forward(self, x: torch.Tensor) -> Any:
        x = x * 1.0
        if x.requires_grad:
            x.register_hook(lambda grad: grad * 0.5)
        return super().forward(x)


class Passing(Block):
    """Returns what it was given, every other time."""

    needs = ("step",)

    def forward(self, x: torch.Tensor, step: int = 0) -> Any:
        return x if step % 2 else super().forward(x)


class View(Block):
    """Returns a view of its result."""

    def forward(self, x: torch.Tensor) -> Any:
        return torch.cat([super().forward(x), x], -1)[..., :WIDTH]


class Repeating(Block):
    """Uses its layers twice."""

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(super().forward(x))


class _Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grads[0] * 2 + x * 0


_double: Callable[[torch.Tensor], torch.Tensor] = _Doubling.apply


class OwnFunction(Block):
    """Has an autograd function of its own."""

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(_double(x))


class Attention(Block):
    """Has torch's attention, which asks whether its inputs are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x + self.attention(x, x, x, need_weights=False)[0])


class Convolution(Block):
    """Has a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x + self.conv(x.transpose(1, 2)).transpose(1, 2))


class Recurrent(Block):
    """Has a recurrent layer, which keeps its weights in a list as well."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x + self.recurrent(x)[0])


class WeightNormed(Block):
    """Has a parametrised weight."""

    def __init__(self) -> None:
        super().__init__()
        self.down = weight_norm(self.down)


class Scaled(Block):
    """Has parameters of its own, of odd shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((1,), 0.9))
        self.shift = nn.ParameterList([nn.Parameter(torch.full((1, 1, WIDTH), 0.1)) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x * self.gain + sum(self.shift))


class Looking(Block):
    """Looks tokens up itself."""

    needs = ("tokens",)

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)

    def forward(self, x: torch.Tensor, tokens: Any = None) -> Any:
        return super().forward(x + self.table(tokens))


class Upcasting(Block):
    """Computes its norm in float32, as language models do."""

    def residual(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.float().square().mean(-1, keepdim=True).rsqrt()
        return super().residual((x.float() * scale).to(x.dtype))


class Splitting(Block):
    """Gives a list of parts, of which the model uses one."""

    def forward(self, x: torch.Tensor) -> Any:
        out = super().forward(x)
        return [out, out.detach() * 2, (out * 3).chunk(2, -1)]


KINDS: dict[str, type[Block]] = {
    "plain": Block,
    "noting in a list": NotingInList,
    "noting in a dict": NotingInDict,
    "noting in itself": NotingInItself,
    "cross": Cross,
    "nested keyword": NestedKeyword,
    "adding in place": Adding,
    "relu in place": ReluFirst,
    "asking": Asking,
    "tuple out": TupleOut,
    "dict out": DictOut,
    "dataclass out": DataclassOut,
    "named tuple out": NamedTupleOut,
    "list out": Splitting,
    "experts": Experts,
    "unused": Unused,
    "running": Running,
    "batch norm": BatchNormed,
    "dropout": Dropping,
    "nested": Nested,
    "adapter": Adapter,
    "detached": Detached,
    "partly without gradients": PartlyWithoutGradients,
    "recomputing": Recomputing,
    "hooked": Hooked,
    "hooked in backward": BackwardHooked,
    "hooked tensor": TensorHooked,
    "passing": Passing,
    "view": View,
    "repeating": Repeating,
    "own function": OwnFunction,
    "attention": Attention,
    "convolution": Convolution,
    "recurrent": Recurrent,
    "weight norm": WeightNormed,
    "scaled": Scaled,
    "looking up": Looking,
    "upcasting": Upcasting,
}
