"""Stand-ins for what torch.distributed.checkpoint pickles into ``.metadata``, torch 2.1 to 2.15.

The names are those that files of these releases ask for. ``TensorProperties`` and its memory format moved
in 2.3, ``StorageMeta`` came in 2.4 and gained ``modules`` in 2.7, ``TensorProperties`` gained strides
in 2.15,
and Python 3.11.0 to 3.11.3 pickled enum members by ``getattr``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from fsdp_migrate.checkpoint_convert.formats.pickle_reader import Globals, Inert, InertType, StandIn, show
from fsdp_migrate.checkpoint_convert.manifest.dtypes import DTYPES


if TYPE_CHECKING:
    from typing_extensions import Self


# torch allows no more.
_MAX_DIMENSIONS: Final = 64


class DTypeName(str):
    """A torch dtype in a pickle, by name; a plain string otherwise."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        raise TypeError("a dtype takes no state")


def torch_size(value: object = ()) -> tuple[object, ...]:
    """Stand for ``torch.Size``: the tuple it was given, never a copy."""
    if type(value) is not tuple:
        raise TypeError(f"torch.Size of a {type(value).__name__}")
    return value


class SizeValue(tuple[Any, ...], metaclass=InertType):
    """``torch.Size``, where it is kept as what it is: a tuple of its own type."""

    __slots__ = ()

    def __new__(cls, value: object = ()) -> Self:
        """Return the size; it is a copy, so that it may not be long."""
        if type(value) is not tuple or len(value) > _MAX_DIMENSIONS:
            raise TypeError("torch.Size of something else than some sizes")
        return super().__new__(cls, value)

    def __setstate__(self, state: object) -> None:
        raise TypeError("a size takes no state")


class PathRecord(Inert):
    """A pathlib path: its parts, unjoined. Every class of pathlib has a subclass, called ``name``."""

    __slots__ = ("parts",)
    name: str = "PosixPath"

    def __init__(self, *parts: object) -> None:
        self.parts = parts

    def __str__(self) -> str:
        parts = [part for part in self.parts[:64] if isinstance(part, str)]
        return "/".join(parts).replace("//", "/", 1) if parts else "."


class ChunkRecord(Inert):
    """``ChunkStorageMetadata``."""

    __slots__ = ("offsets", "sizes")
    offsets: Any
    sizes: Any

    def __setstate__(self, state: Any) -> None:
        self.offsets = state["offsets"]
        self.sizes = state["sizes"]


class PropertiesRecord(Inert):
    """``TensorProperties``: a 5-tuple as state, with strides a 6-tuple from torch 2.15."""

    __slots__ = ("dtype", "layout", "memory_format", "requires_grad", "state_size")
    dtype: Any
    layout: Any
    memory_format: Any
    requires_grad: Any
    state_size: int

    def __setstate__(self, state: Any) -> None:
        if type(state) is not tuple or len(state) not in (5, 6):
            raise TypeError("TensorProperties has 5 or 6 fields")
        self.dtype, self.layout, self.requires_grad, self.memory_format = state[:4]
        self.state_size = len(state)


class TensorRecord(Inert):
    """``TensorStorageMetadata``."""

    __slots__ = ("chunks", "properties", "size")
    properties: Any
    size: Any
    chunks: Any

    def __setstate__(self, state: Any) -> None:
        self.properties = state["properties"]
        self.size = state["size"]
        self.chunks = state["chunks"]


class BytesRecord(Inert):
    """``BytesStorageMetadata``, which has no fields."""

    __slots__ = ()


class IndexRecord(Inert):
    """``MetadataIndex``; equal to itself only, so that a repeated key is seen and not merged."""

    __slots__ = ("fqn", "offset")
    fqn: Any
    offset: Any

    def __setstate__(self, state: Any) -> None:
        self.fqn = state["fqn"]
        self.offset = state.get("offset")


class StorageRecord(Inert):
    """``_StorageInfo``."""

    __slots__ = ("length", "offset", "relative_path", "transform_descriptors")
    relative_path: Any
    offset: Any
    length: Any
    transform_descriptors: Any

    def __setstate__(self, state: Any) -> None:
        self.relative_path = state["relative_path"]
        self.offset = state["offset"]
        self.length = state["length"]
        self.transform_descriptors = state.get("transform_descriptors")


class StorageMetaRecord(Inert):
    """``StorageMeta``: where and by which save the checkpoint was written; its fields tell the torch."""

    __slots__ = ("has_modules",)
    has_modules: bool

    def __setstate__(self, state: Any) -> None:
        self.has_modules = "modules" in state


class MetadataRecord(Inert):
    """``Metadata``: the whole of the file."""

    __slots__ = (
        "planner_data",
        "state_dict_metadata",
        "storage_data",
        "storage_meta",
        "version",
    )
    state_dict_metadata: Any
    planner_data: Any
    storage_data: Any
    storage_meta: Any
    version: Any

    def __setstate__(self, state: Any) -> None:
        self.state_dict_metadata = state["state_dict_metadata"]
        self.planner_data = state.get("planner_data")
        self.storage_data = state.get("storage_data")
        self.storage_meta = state.get("storage_meta")
        self.version = state.get("version")


class _MemoryFormatEnum(Inert):
    """``_MEM_FORMAT_ENCODING``: called with a value it is that value."""

    __slots__ = ()

    def __call__(self, value: object) -> int:
        if type(value) is not int or not 0 <= value <= 2:
            raise TypeError(f"no such memory format: {show(value)}")
        return value


_MEMORY_FORMAT: Final = _MemoryFormatEnum()
_MEMORY_FORMAT_NAMES: Final = {
    "TORCH_CONTIGUOUS_FORMAT": 0,
    "TORCH_CHANNELS_LAST": 1,
    "TORCH_PRESERVE_FORMAT": 2,
}


def _enum_member(enum: object, name: object) -> int:
    """Stand for ``getattr`` on the one enum of these files."""
    if enum is not _MEMORY_FORMAT or not isinstance(name, str):
        raise TypeError("getattr of something else than a memory format")
    return _MEMORY_FORMAT_NAMES[name]


def _layout(name: object) -> str:
    if type(name) is not str:
        raise TypeError("a layout that is not a name")
    return name


def _path_type(name: str) -> type[PathRecord]:
    return cast("type[PathRecord]", InertType(name, (PathRecord,), {"__slots__": (), "name": name}))


TORCH_SIZE: Final = StandIn(torch_size)
_PATH_TYPES: Final = {
    name: _path_type(name)
    for name in ("Path", "PosixPath", "PurePath", "PurePosixPath", "PureWindowsPath", "WindowsPath")
}
DTYPE_GLOBALS: Final[dict[tuple[str, str], object]] = {("torch", name): DTypeName(name) for name in DTYPES}
# Python 3.13 has its classes of paths in `pathlib._local`, and pickles them from there.
PATH_GLOBALS: Final[dict[tuple[str, str], object]] = {
    (module, name): kind for module in ("pathlib", "pathlib._local") for name, kind in _PATH_TYPES.items()
}
_METADATA: Final = "torch.distributed.checkpoint.metadata"
_OLD_METADATA: Final = "torch.distributed._shard.sharded_tensor.metadata"

METADATA_GLOBALS: Final[Globals] = {
    **DTYPE_GLOBALS,
    **PATH_GLOBALS,
    ("torch", "Size"): TORCH_SIZE,
    ("torch.serialization", "_get_layout"): StandIn(_layout),
    ("builtins", "getattr"): StandIn(_enum_member),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): StorageRecord,
    (_METADATA, "Metadata"): MetadataRecord,
    (_METADATA, "MetadataIndex"): IndexRecord,
    (_METADATA, "TensorStorageMetadata"): TensorRecord,
    (_METADATA, "BytesStorageMetadata"): BytesRecord,
    (_METADATA, "ChunkStorageMetadata"): ChunkRecord,
    (_METADATA, "TensorProperties"): PropertiesRecord,
    (_METADATA, "StorageMeta"): StorageMetaRecord,
    (_METADATA, "_MEM_FORMAT_ENCODING"): _MEMORY_FORMAT,
    (_METADATA, "MEM_FORMAT_ENCODING"): _MEMORY_FORMAT,
    (_OLD_METADATA, "TensorProperties"): PropertiesRecord,
    (_OLD_METADATA, "MEM_FORMAT_ENCODING"): _MEMORY_FORMAT,
}
