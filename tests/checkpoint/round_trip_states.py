"""States drawn at random, of everything that ``torch.save`` takes, and whether two values are the same."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import pathlib
import types
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch


if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random


@dataclasses.dataclass
class Settings:
    """A class of the user's own, which is on no list."""

    rate: float
    names: list[str]


class Point(NamedTuple):
    x: int
    y: object


class Colour(enum.Enum):
    RED = 1
    GREEN = "green"


FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
FLOAT8 = tuple(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
)
OTHERS = tuple(
    getattr(torch, name)
    for name in (
        *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"),
        *("complex32", "complex64", "complex128", "float4_e2m1fn_x2", "bits8", "uint4"),
    )
    if hasattr(torch, name)
)
# Types that stand for themselves.
TYPES = (bool, bytes, dict, float, int, list, object, str, tuple, set, frozenset, complex, bytearray, type)


class Drawer:
    """Draws values; ``wild`` ones too, which no training loop was seen to keep."""

    def __init__(self, chance: Random, *, wild: bool) -> None:
        self.chance = chance
        self.wild = wild
        self._tensors: list[torch.Tensor] = []

    def state(self) -> dict[str, Any]:
        """Return a training state: a model, often its optimizer, and values beside them."""
        chance = self.chance
        names = [f"layers.{n}.{kind}" for n in range(chance.randrange(1, 4)) for kind in ("weight", "bias")]
        dtypes = (*FLOATS, *FLOAT8, torch.int64) if chance.random() < 0.3 else (torch.float32,)
        model = {name: self.tensor(chance.choice(dtypes), plain=chance.random() < 0.7) for name in names}
        state: dict[str, Any] = {"model": collections.OrderedDict(model)}
        if chance.random() < 0.6:
            state["optimizer"] = self._optimizer(model)
        for number in range(chance.randrange(1, 6)):
            state[f"extra_{number}"] = self.value(chance.randrange(4))
        return state

    def _optimizer(self, model: dict[str, torch.Tensor]) -> dict[str, Any]:
        states = {
            name: {
                "step": torch.tensor(float(self.chance.randrange(9))),
                "exp_avg": torch.rand(tensor.shape),
                "exp_avg_sq": torch.rand(tensor.shape),
            }
            for name, tensor in model.items()
        }
        group = {"lr": 0.1, "betas": (0.9, 0.999), "foreach": None, "capturable": False}
        return {"state": states, "param_groups": [{**group, "params": list(model)}]}

    def tensor(self, dtype: torch.dtype | None = None, *, plain: bool = False) -> torch.Tensor:
        """Return a tensor of any type, shape and layout."""
        chance = self.chance
        chosen = chance.choice((*FLOATS, *FLOAT8, *OTHERS)) if dtype is None else dtype
        shape = chance.choice([(), (0,), (1,), (5,), (4, 3), (2, 0, 3), (2, 3, 4), (1, 1, 2, 1), (17, 2)])
        if plain:
            return self._filled(chance.choice([(5,), (4, 3), (17, 2)]), chosen)
        kind = chance.randrange(9)
        if kind == 0 and self._tensors and dtype is None:
            return self._view(chance.choice(self._tensors))
        tensor = self._filled(shape, chosen)
        self._tensors.append(tensor)
        if kind == 1:
            return torch.nn.Parameter(
                tensor, requires_grad=chosen.is_floating_point and not chance.randrange(2)
            )
        return self._view(tensor) if kind in (2, 3) else tensor

    def _filled(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor of any bytes that are values of the type."""
        size = torch.empty((), dtype=dtype).element_size()
        count = size
        for n in shape:
            count *= n
        data = bytes(self.chance.randrange(2 if dtype == torch.bool else 256) for _ in range(count))
        raw = torch.frombuffer(bytearray(data or b"\0" * 16), dtype=torch.uint8)[:count]
        return raw.clone().view(dtype).reshape(shape)

    def _view(self, tensor: torch.Tensor) -> torch.Tensor:
        kind = self.chance.randrange(5)
        if kind == 0 and tensor.dim() > 1:
            return tensor.transpose(0, 1)
        if kind == 1 and tensor.dim():
            return tensor[::2]
        if kind == 2 and tensor.dim() and tensor.shape[-1] > 1:
            return tensor[..., 1:]
        if kind == 3 and tensor.dim() == 4 and tensor.dtype in FLOATS:
            return tensor.to(memory_format=torch.channels_last)
        return tensor.detach()

    def value(self, depth: int) -> Any:
        """Return any value, nested ``depth`` deep."""
        if depth == 0:
            makers = [*_PLAIN, *(_WILD if self.wild and self.chance.random() < 0.4 else ())]
            return self.chance.choice(makers)(self)
        return self.chance.choice(_CONTAINERS)(self, [self.value(depth - 1) for _ in range(self._count())])

    def _count(self) -> int:
        return self.chance.choice((0, 1, 1, 2, 3))

    def integer(self) -> int:
        limit = self.chance.choice((1, 255, 1 << 16, 1 << 31, 1 << 63, 1 << 200))
        return self.chance.choice((-1, 1)) * self.chance.randrange(limit + 1)

    def number(self) -> float:
        return self.chance.choice((0.0, -0.0, 1.5, float("inf"), -float("inf"), float("nan"), 5e-324, 1e308))

    def text(self) -> str:
        return self.chance.choice(("", "a", "module.x", "æøå", "日本", "\0\n", "x" * 300, "\ud800", "a.b.0"))

    def data(self) -> bytes:
        return self.chance.choice((b"", b"\0", b"\x80\xff", bytes(range(256)), b"abc"))

    def array(self) -> Any:
        """Return a numpy array."""
        values = (
            np.arange(6).reshape(2, 3),
            np.asfortranarray(np.arange(6.0).reshape(2, 3)),
            np.array(3.5),
            np.zeros((0, 2), np.float32),
            np.array(["a", "bc"]),
            np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
            np.array(["2020-01-01"], dtype="datetime64[D]"),
            np.array([True, False]),
            np.array([b"x", b"yz"]),
            np.array([1, None, "x"], dtype=object),
            np.arange(10, dtype=">i2")[::2],
        )
        return self.chance.choice(values)

    def scalar(self) -> Any:
        """Return a scalar of numpy."""
        kinds = (np.float32(1.5), np.float64(2), np.int64(-3), np.bool_(True), np.uint8(7), np.float16(0.5))
        return self.chance.choice((*kinds, np.str_("x"), np.complex64(1j), np.datetime64("2020-01-01")))

    def moment(self) -> Any:
        """Return something of datetime."""
        zone = datetime.timezone(datetime.timedelta(hours=2), "X")
        when = datetime.datetime(2024, 2, 29, 12, 30, 1, 5, tzinfo=self.chance.choice((None, zone)))
        kinds = (when, when.date(), when.timetz(), datetime.timedelta(1, 2, 3), datetime.timezone.utc, zone)
        return self.chance.choice(kinds)

    def path(self) -> Any:
        """Return a path of any class that this system can make."""
        kind = self.chance.choice((pathlib.PurePosixPath, pathlib.PosixPath, pathlib.PureWindowsPath))
        return kind(self.chance.choice(("/a/b", "a", ".", "..", "")))


def _keyed(drawer: Drawer, values: list[Any]) -> dict[Any, Any]:
    """Return a mapping whose keys are of one kind, or of several."""
    keys: list[Any] = ["k", "", "a.b", 3, -1, True, None, 2.5, (1, "a"), b"k", 1 << 70]
    chance = drawer.chance
    named = [f"k{number}" for number in range(len(values))]
    chosen = named if chance.random() < 0.7 else chance.sample(keys, len(values))
    return dict(zip(chosen, values, strict=True))


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return not isinstance(value, torch.Tensor)


_CONTAINERS: tuple[Callable[[Drawer, list[Any]], Any], ...] = (
    lambda d, v: v,
    lambda d, v: v,
    lambda d, v: tuple(v),
    _keyed,
    _keyed,
    lambda d, v: collections.OrderedDict(_keyed(d, v)),
    lambda d, v: {item for item in v if _hashable(item)},
    lambda d, v: frozenset(item for item in v if _hashable(item)),
    lambda d, v: collections.deque(v, maxlen=d.chance.choice((None, 3))),
    lambda d, v: collections.defaultdict(d.chance.choice((list, dict, int, None)), _keyed(d, v)),
    lambda d, v: types.SimpleNamespace(a=v),
    lambda d, v: [v, v],
)
_PLAIN: tuple[Callable[[Drawer], Any], ...] = (
    lambda d: None,
    lambda d: d.chance.random() < 0.5,
    lambda d: d.integer(),
    lambda d: d.number(),
    lambda d: d.text(),
    lambda d: d.data(),
    lambda d: bytearray(d.data()),
    lambda d: complex(d.number(), d.number()),
    lambda d: d.tensor(),
    lambda d: d.tensor(),
    lambda d: d.array(),
    lambda d: d.scalar(),
    lambda d: d.moment(),
    lambda d: d.path(),
    lambda d: d.chance.choice(TYPES),
    lambda d: range(d.chance.randrange(5), 9, 2),
    lambda d: slice(1, None, 2),
    lambda d: torch.Size(d.chance.choice(((), (1,), (2, 3)))),
    lambda d: d.chance.choice((*FLOATS, *FLOAT8, *OTHERS)),
    lambda d: torch.device(d.chance.choice(("cpu", "cuda:1", "meta"))),
    lambda d: decimal.Decimal("1.50"),
    lambda d: fractions.Fraction(2, 3),
    lambda d: uuid.UUID(int=d.chance.randrange(1 << 128)),
    lambda d: argparse.Namespace(lr=d.number(), name=d.text()),
    lambda d: collections.Counter(a=2, b=-1),
    lambda d: {},
    lambda d: collections.OrderedDict(),
    lambda d: ...,
    lambda d: np.dtype(d.chance.choice(("f4", ">i8", "U3"))),
    lambda d: torch.strided,
    lambda d: torch.channels_last,
    lambda d: np.random.default_rng(3),
    lambda d: np.random.RandomState(3).get_state(),
    lambda d: torch.get_rng_state(),
)
_WILD: tuple[Callable[[Drawer], Any], ...] = (
    lambda d: Settings(0.5, ["a"]),
    lambda d: Point(1, [2]),
    lambda d: Colour.RED,
    lambda d: Settings,
    lambda d: torch.eye(3).to_sparse(),
    lambda d: torch.quantize_per_tensor(torch.eye(3), 0.1, 2, torch.qint8),
    lambda d: torch.ones(2, dtype=torch.complex64).conj(),
    lambda d: torch.ones(2, device="meta"),
    lambda d: torch.nn.Linear(2, 1),
    lambda d: len,
    lambda d: NotImplemented,
    lambda d: torch.ones(1).expand(4),
    lambda d: torch.nn.UninitializedParameter(),
    lambda d: np.ma.masked_array([1, 2], [False, True]),
    lambda d: collections.UserDict(a=1),
    lambda d: collections.ChainMap({"a": 1}),
    lambda d: types.MappingProxyType,
    lambda d: decimal.Decimal("NaN"),
)
