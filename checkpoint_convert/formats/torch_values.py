"""Stand-ins for what ``torch.save`` pickles: tensors, containers, and the records that training loops keep.

A value read through this table is inert: built-in containers, numbers and text as themselves; tensors and
arrays as descriptions that point at their bytes; objects as :class:`Record`, their class's name and what
they were built from. It can be compared and shown, not called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from fsdp_migrate.checkpoint_convert.formats.dcp_values import (
    DTYPE_GLOBALS,
    PATH_GLOBALS,
    DTypeName,
    PathRecord,
    SizeValue,
)
from fsdp_migrate.checkpoint_convert.formats.pickle_reader import (
    Globals,
    Inert,
    InertType,
    StandIn,
    load_pickle,
)
from fsdp_migrate.checkpoint_convert.manifest.dtypes import DTYPES, STORAGE_DTYPES
from fsdp_migrate.checkpoint_convert.manifest.manifest import StoredRecord
from fsdp_migrate.errors import UnsafePickleError


if TYPE_CHECKING:
    from typing_extensions import Self


class StorageType(Inert):
    """A storage class; ``dtype`` is None for untyped bytes."""

    __slots__ = ("dtype",)

    def __init__(self, dtype: str | None) -> None:
        self.dtype = dtype


class StorageRef(Inert):
    """The bytes that a tensor looks at: the record ``data/<key>`` of the same archive.

    Readers of one-file checkpoints find it once and for all: ``place`` is its file, position and size then,
    and ``crc`` its checksum, if it has one.
    """

    __slots__ = ("crc", "dtype", "key", "numel", "place")

    def __init__(self, dtype: str | None, key: str, numel: int) -> None:
        self.dtype = dtype
        self.key = key
        self.numel = numel
        self.place: tuple[str, int, int] | None = None
        self.crc: int | None = None

    @property
    def record(self) -> StoredRecord | None:
        """Return what its checksum is of."""
        if self.place is None or self.crc is None:
            return None
        return StoredRecord(self.place[1], self.place[2], self.crc)


class TensorValue(Inert):
    """A tensor: its type, shape and strides in elements, and where in which storage it starts.

    ``views`` are ``"conj"`` and ``"neg"`` where the elements are yet to be conjugated or negated.
    """

    __slots__ = ("dtype", "is_parameter", "requires_grad", "shape", "start", "storage", "strides", "views")

    def __init__(
        self,
        dtype: str,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        start: int,
        storage: StorageRef,
        *,
        requires_grad: bool = False,
        is_parameter: bool = False,
        views: tuple[str, ...] = (),
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.strides = strides
        self.start = start
        self.storage = storage
        self.requires_grad = requires_grad
        self.is_parameter = is_parameter
        self.views = views


class Record(Inert):
    """An object of an allowed class: its name, its arguments and its state, as the pickle had them.

    Every allowed class has a subclass of its own, because pickle's NEWOBJ insists on a type.
    """

    __slots__ = ("arguments", "entries", "has_state", "is_called", "items", "state")
    name: str = ""
    is_listed: bool = True

    def __new__(cls, *arguments: object) -> Self:
        """Keep the arguments, and do nothing with them."""
        record = super().__new__(cls)
        record.arguments = arguments
        record.state = None
        record.has_state = record.is_called = False
        record.items = []
        record.entries = []
        return record

    def __init__(self, *arguments: object) -> None:
        """Note that it was called (REDUCE); a class of which an instance is made (NEWOBJ) is not."""
        del arguments
        self.is_called = True

    arguments: tuple[object, ...]
    has_state: bool
    is_called: bool
    state: object
    items: list[object]
    entries: list[tuple[object, object]]

    def __setstate__(self, state: object) -> None:
        self.state = state
        self.has_state = True

    def append(self, item: object) -> None:
        """Take an item, for classes that pickle as lists."""
        self.items.append(item)

    def __setitem__(self, key: object, value: object) -> None:
        """Take an entry, for classes that pickle as mappings."""
        self.entries.append((key, value))


def record_type(name: str, *, listed: bool = True) -> type[Record]:
    """Make the stand-in for a class or a function; ``listed`` tells whether it is on the list."""
    fields = {"__slots__": (), "name": name, "is_listed": listed}
    return cast("type[Record]", InertType(name.rpartition(".")[2], (Record,), fields))


class OrderedDictValue(dict[Any, Any], metaclass=InertType):
    """``collections.OrderedDict``, filled by the pickle's items only."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()

    def __setstate__(self, state: object) -> None:
        """Ignore attributes of the dict itself, such as a state dict's ``_metadata``."""


def _rebuild_tensor(storage: Any, start: Any, shape: Any, strides: Any, *rest: Any) -> TensorValue:
    """Stand for ``_rebuild_tensor`` and ``_rebuild_tensor_v2``."""
    # Behind the strides stand requires_grad, backward hooks and, from v2 on, what marks a lazy view.
    grad, views = bool(rest) and rest[0] is True, _views(rest[2:3])
    return _tensor(storage, storage.dtype, start, shape, strides, grad=grad, views=views)


def _rebuild_tensor_v3(
    storage: Any, start: Any, shape: Any, strides: Any, grad: Any, hooks: Any, dtype: Any, *rest: Any
) -> TensorValue:
    """Stand for ``_rebuild_tensor_v3``, which names the element type apart from the storage."""
    del hooks
    return _tensor(storage, dtype, start, shape, strides, grad=grad is True, views=_views(rest[:1]))


def _views(marks: tuple[Any, ...]) -> tuple[str, ...]:
    """Return what torch notes of a view that is not yet carried out."""
    if not marks or not marks[0]:
        return ()
    if type(marks[0]) is not dict or not all(name in ("conj", "neg") for name in marks[0]):
        raise TypeError("a view of an unknown kind")
    return tuple(name for name, is_so in marks[0].items() if is_so is True)


def _tensor(
    storage: Any,
    dtype: Any,
    start: Any,
    shape: Any,
    strides: Any,
    *,
    grad: bool,
    views: tuple[str, ...],
) -> TensorValue:
    shape, strides = (tuple(n) if type(n) is SizeValue else n for n in (shape, strides))
    if not isinstance(storage, StorageRef) or not isinstance(dtype, str) or dtype not in DTYPES:
        raise TypeError("a tensor without storage or of an unknown type")
    if type(shape) is not tuple or type(strides) is not tuple or len(shape) != len(strides):
        raise TypeError("a tensor whose shape and strides do not fit")
    if len(shape) > _MAX_DIMENSIONS:
        raise TypeError("a tensor of more dimensions than torch allows")
    if any(type(n) is not int or not 0 <= n < 1 << 63 for n in (start, *shape, *strides)):
        raise TypeError("a tensor with a size, stride or start that is none")
    return TensorValue(str(dtype), shape, strides, start, storage, requires_grad=grad, views=views)


def _rebuild_parameter(data: object, *rest: object) -> object:
    """Stand for ``_rebuild_parameter``: the tensor, which knows that it is a parameter."""
    if not isinstance(data, TensorValue):
        return data
    return TensorValue(
        data.dtype,
        data.shape,
        data.strides,
        data.start,
        data.storage,
        requires_grad=bool(rest) and rest[0] is True,
        is_parameter=True,
        views=data.views,
    )


def storage_of(pid: object) -> StorageRef:
    """Stand for the persistent id of a storage; before torch 1.6 with a sixth field, None."""
    if (
        type(pid) is not tuple
        or len(pid) not in (5, 6)
        or pid[0] != "storage"
        or pid[5:] not in ((), (None,))
    ):
        raise TypeError("a persistent id that is not a storage")
    kind, key, numel = pid[1], pid[2], pid[4]
    is_count = type(numel) is int and -(1 << 63) <= numel < 1 << 63
    if not isinstance(kind, StorageType) or type(key) is not str or not is_count:
        raise TypeError("a storage that is not described as torch does it")
    return StorageRef(kind.dtype, key, numel)


_MAX_DIMENSIONS: Final = 64
_MAX_UNLISTED: Final = 1000
_RECORDS: Final = (
    "_codecs.encode",
    "_io.BytesIO",
    "argparse.Namespace",
    "builtins.bytearray",
    "builtins.complex",
    "builtins.frozenset",
    "builtins.range",
    "builtins.set",
    "builtins.slice",
    "__builtin__.bytearray",
    "__builtin__.complex",
    "__builtin__.frozenset",
    "__builtin__.set",
    "__builtin__.slice",
    "__builtin__.xrange",
    "collections.Counter",
    "collections.defaultdict",
    "collections.deque",
    "datetime.date",
    "datetime.datetime",
    "datetime.time",
    "datetime.timedelta",
    "datetime.timezone",
    "decimal.Decimal",
    "fractions.Fraction",
    "random.Random",
    "uuid.UUID",
    "types.SimpleNamespace",
    "numpy.dtype",
    "numpy.ndarray",
    "numpy.core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray._reconstruct",
    "numpy._core.multiarray.scalar",
    "numpy.random._pickle.__randomstate_ctor",
    "numpy.random._pickle.__generator_ctor",
    "numpy.random._pickle.__bit_generator_ctor",
    "numpy.random._mt19937.MT19937",
    "numpy.random._pcg64.PCG64",
    "numpy.random._pcg64.PCG64DXSM",
    "numpy.random._philox.Philox",
    "numpy.random._sfc64.SFC64",
    "numpy.random.bit_generator.SeedSequence",
    "numpy.random.bit_generator.__pyx_unpickle_SeedSequence",
    "torch.device",
    "torch.Generator",
    "torch.torch_version.TorchVersion",
    "torch.serialization._get_layout",
    "composer.core.precision.Precision",
    "composer.core.time.Time",
    "composer.core.time.TimeUnit",
    "composer.core.time.Timestamp",
)
# Types that stand in containers as themselves: defaultdict(list), scalars' types.
_BUILTINS: Final = ("builtins", "__builtin__")
_TYPE_NAMES: Final = ("bool", "bytes", "dict", "float", "int", "list", "object", "str", "tuple")


def split_name(name: str) -> tuple[str, str]:
    """Return the module and the name of a class or function."""
    module, _, last = name.rpartition(".")
    return module, last


VALUE_GLOBALS: Final[Globals] = {
    **DTYPE_GLOBALS,
    **PATH_GLOBALS,
    ("torch", "Size"): SizeValue,
    ("collections", "OrderedDict"): OrderedDictValue,
    ("torch._utils", "_rebuild_tensor"): StandIn(_rebuild_tensor),
    ("torch._utils", "_rebuild_tensor_v2"): StandIn(_rebuild_tensor),
    ("torch._utils", "_rebuild_tensor_v3"): StandIn(_rebuild_tensor_v3),
    ("torch._utils", "_rebuild_parameter"): StandIn(_rebuild_parameter),
    ("torch.storage", "UntypedStorage"): StorageType(None),
    **{("torch", name): StorageType(dtype) for name, dtype in STORAGE_DTYPES.items()},
    **{split_name(name): record_type(name) for name in _RECORDS},
    **{(module, name): record_type(f"{module}.{name}") for module in _BUILTINS for name in _TYPE_NAMES},
}


def load_value(data: bytes, *, where: str) -> object:
    """Load the ``data.pkl`` of an archive of torch.save.

    Raises:
        UnsafePickleError: It names something outside the table. Nothing of it was executed.
        CheckpointFormatError: It is damaged.
    """
    return load_pickle(data, VALUE_GLOBALS, where=where, persistent=storage_of)


def find_unlisted(data: bytes, *, where: str) -> list[str]:
    """Return what the ``data.pkl`` of an archive of torch.save names outside the table, in its order.

    Raises:
        UnsafePickleError: It attacks its reader. Nothing of it was executed.
        CheckpointFormatError: It is damaged.
    """
    unlisted: dict[str, type[Record]] = {}

    def unknown(name: str) -> type[Record]:
        if len(unlisted) >= _MAX_UNLISTED:
            msg = f"{where} names more than {_MAX_UNLISTED} classes. It was not loaded."
            raise UnsafePickleError(msg, global_name=name)
        return unlisted.setdefault(name, record_type(name, listed=False))

    load_pickle(data, VALUE_GLOBALS, where=where, persistent=storage_of, unknown=unknown)
    return list(unlisted)


def describe_type(value: object) -> str:
    """Name the type of a value as its owner knew it."""
    if isinstance(value, Record):
        return value.name
    if isinstance(value, TensorValue):
        return "torch.Tensor"
    if isinstance(value, OrderedDictValue):
        return "collections.OrderedDict"
    if isinstance(value, DTypeName):
        return "torch.dtype"
    if isinstance(value, SizeValue):
        return "torch.Size"
    if isinstance(value, PathRecord):
        return f"pathlib.{value.name}"
    return type(value).__name__
