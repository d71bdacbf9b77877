"""Stand-ins for the sharded tensors that ranks pickle: ``ShardedTensor`` and ``DTensor``, torch 2.0 to 2.15.

torch rebuilds a ShardedTensor only inside a process group of the size that saved it, and a DTensor without
one to whatever its rank had. Nothing of that is needed: both say what the whole tensor is, and which boxes
of it this rank holds. The rest of what they carry (process groups, hashes, thread numbers) is kept as inert
records and never looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from fsdp_migrate.checkpoint_convert.formats.dcp_values import METADATA_GLOBALS
from fsdp_migrate.checkpoint_convert.formats.pickle_reader import Globals, Inert, StandIn, show
from fsdp_migrate.checkpoint_convert.formats.torch_values import Record, TensorValue, record_type
from fsdp_migrate.checkpoint_convert.manifest.dtypes import DTYPES
from fsdp_migrate.errors import CheckpointFormatError, UnsupportedFeatureError
from fsdp_migrate.findings import counted


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.boxes import Box, Shape


Kind = Literal["ShardedTensor", "DTensor"]

_MAX_DIMENSIONS: Final = 64
_KINDS: Final[dict[str, Kind]] = {
    "torch.distributed._shard.sharded_tensor.api.ShardedTensor": "ShardedTensor",
    "torch.distributed._tensor.api.DTensor": "DTensor",
    "torch.distributed._tensor.DTensor": "DTensor",
    "torch.distributed.tensor._api.DTensor": "DTensor",
    "torch.distributed.tensor.DTensor": "DTensor",
}


class ShardedValue(Inert):
    """A sharded tensor as one rank pickled it; :func:`local_shards` says what it holds."""

    __slots__ = ("arguments", "kind", "state")

    def __init__(self, kind: Kind, arguments: object, state: object) -> None:
        self.kind = kind
        self.arguments = arguments
        self.state = state


@dataclass(frozen=True, slots=True)
class LocalShards:
    """What one rank holds of a tensor.

    Attributes:
        kind: Which class of torch it was.
        dtype: The type of its elements.
        shape: The shape of the whole tensor.
        boxes: The boxes that this rank holds.
        tensors: The elements of each box.
        ranks: How many ranks share the tensor.
        rank: The rank that it says it is of, if it says.
        expected: The boxes of all ranks, where one rank knows them; None where the mesh tells.
    """

    kind: Kind
    dtype: str
    shape: Shape
    boxes: tuple[Box, ...]
    tensors: tuple[TensorValue, ...]
    ranks: int
    rank: int | None
    expected: tuple[Box, ...] | None = None


_REBUILD: Final = record_type("torch._tensor._rebuild_from_type_v2", listed=False)
_TENSOR: Final = record_type("torch.Tensor")
_PARAMETER: Final = record_type("torch.nn.parameter.Parameter")
_WITH_STATE: Final = record_type("torch._utils._rebuild_parameter_with_state", listed=False)
_GETATTR: Final = record_type("builtins.getattr", listed=False)
_GROUP_STATE: Final = record_type(
    "torch.distributed._shard.sharded_tensor.api.ShardedTensor.ProcessGroupState"
)


def _rebuild_from_type(*arguments: Any) -> object:
    """Stand for ``_rebuild_from_type_v2``; what is of no class known here stays a record of it."""
    # Plain tensors with attributes come by the same function: frameworks mark parameters.
    if len(arguments) == 4 and arguments[1] in (_TENSOR, _PARAMETER) and _are_marks(arguments[3]):
        return _tensor_of(arguments[0], arguments[2])
    if len(arguments) == 4 and _is_type(arguments[1]):
        kind = _KINDS.get(arguments[1].name)
        if kind is not None:
            return ShardedValue(kind, arguments[2], arguments[3])
    return _REBUILD(*arguments)


def _rebuild_parameter_with_state(*arguments: Any) -> object:
    """Stand for ``_rebuild_parameter_with_state``: the tensor itself, where its attributes are marks."""
    if len(arguments) == 4 and isinstance(arguments[0], TensorValue) and _are_marks(arguments[3]):
        return arguments[0]
    return _WITH_STATE(*arguments)


def _tensor_of(function: object, arguments: Any) -> TensorValue:
    value = function(*arguments) if isinstance(function, StandIn) else None
    if not isinstance(value, TensorValue):
        raise TypeError("a tensor that is rebuilt in an unknown way")
    return value


def _are_marks(state: object) -> bool:
    """Tell whether attributes of a tensor are plain marks, which no DCP keeps and no loader asks for.

    FSDP1 marks what it gathers by ``_has_been_cloned`` when it does not offload it, and torch.save keeps it.
    """
    return type(state) is dict and all(
        type(name) is str and type(value) in (bool, int, float, str, type(None))
        for name, value in state.items()
    )


def _get_attribute(*arguments: Any) -> object:
    """Stand for ``getattr``, by which old protocols name a class inside a class."""
    if len(arguments) == 2 and _is_type(arguments[0]) and arguments[1] == "ProcessGroupState":
        return _GROUP_STATE
    return _GETATTR(*arguments)


def _is_type(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Record)


_SHARD_METADATA: Final = "torch.distributed._shard.sharded_tensor.metadata"
SHARD_GLOBALS: Final[Globals] = {
    ("torch._tensor", "_rebuild_from_type_v2"): StandIn(_rebuild_from_type),
    ("torch._utils", "_rebuild_parameter_with_state"): StandIn(_rebuild_parameter_with_state),
    ("torch", "Tensor"): _TENSOR,
    ("torch.nn.parameter", "Parameter"): _PARAMETER,
    ("builtins", "getattr"): StandIn(_get_attribute),
    ("__builtin__", "getattr"): StandIn(_get_attribute),
    **{key: value for key, value in METADATA_GLOBALS.items() if key[0] == _SHARD_METADATA},
    **{
        (module, name): METADATA_GLOBALS["torch.distributed.checkpoint.metadata", name]
        for module in (_SHARD_METADATA, "torch.distributed.checkpoint.metadata")
        for name in ("TensorProperties", "MEM_FORMAT_ENCODING", "_MEM_FORMAT_ENCODING")
    },
}


def local_shards(value: ShardedValue, *, where: str) -> LocalShards:
    """Say which part of which tensor a rank holds, and check that it holds what it says.

    Raises:
        CheckpointFormatError: It contradicts itself, or is not described as torch does it.
        UnsupportedFeatureError: It is placed in a way that cannot be put together: partial sums, shards of
            shards in an unknown order.
    """
    try:
        return (_of_sharded_tensor if value.kind == "ShardedTensor" else _of_dtensor)(value, where)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, CheckpointFormatError):
            raise
        msg = (
            f"{where}: this {value.kind} is not described as any torch from 2.0 to 2.15 does it "
            f"({type(error).__name__}: {str(error)[:100]})."
        )
        raise CheckpointFormatError(msg) from error


def _of_sharded_tensor(value: ShardedValue, where: str) -> LocalShards:
    state: Any = value.state
    # What `ShardedTensor.__getstate__` gives: local shards, metadata, process group, and two more.
    shards, metadata, group = state[0], _fields(state[1]), _fields(state[2])
    shape = _shape(metadata["size"])
    dtype = str(metadata["tensor_properties"].dtype)
    expected = tuple(_shard_box(shard) for shard in metadata["shards_metadata"])
    known = set(expected)
    boxes: list[Box] = []
    tensors: list[TensorValue] = []
    for shard in shards:
        fields = _fields(shard)
        box, tensor = _shard_box(fields["metadata"]), fields["tensor"]
        if box not in known:
            raise _contradiction(where, f"the shard at {box[0]} is not in its list of shards")
        _check_local(tensor, box[1], dtype, where)
        boxes.append(box)
        tensors.append(tensor)
    ranks, rank = _shape((group["global_world_size"], group["global_rank"]))
    return LocalShards("ShardedTensor", dtype, shape, tuple(boxes), tuple(tensors), ranks, rank, expected)


def _fields(record: Any) -> Mapping[str, Any]:
    """Return the attributes of an object; classes with slots pickle them behind those of the dict."""
    state = record.state
    fields: Mapping[str, Any] = state[1] if isinstance(state, tuple) else state
    return fields


def _shard_box(shard: Any) -> Box:
    fields = _fields(shard)
    return _shape(tuple(fields["shard_offsets"])), _shape(tuple(fields["shard_sizes"]))


def _of_dtensor(value: ShardedValue, where: str) -> LocalShards:
    fields = _fields(value)
    spec, local = _fields(fields["_spec"]), fields["_local_tensor"]
    shape = _shape(spec["tensor_meta"].arguments[0])
    dtype = str(spec["tensor_meta"].arguments[2])
    mesh = _fields(spec["mesh"])
    sizes = _mesh_shape(mesh)
    coordinate = mesh["_coordinate_on_dim"]
    ranks = math.prod(sizes)
    if coordinate is None:  # the rank is not in the mesh, and holds nothing
        return LocalShards("DTensor", dtype, shape, (), (), ranks, None)
    if len(coordinate) != len(sizes) or any(not 0 <= c < n for c, n in zip(coordinate, sizes, strict=True)):
        raise _contradiction(where, f"its place {show(tuple(coordinate))} is not in a mesh of {list(sizes)}")
    # A DTensor does not say which elements it holds: placements and the rank's place in the mesh do.
    box = _dtensor_box(shape, spec["placements"], sizes, coordinate, where)
    _check_local(local, box[1], dtype, where)
    rank = _mesh_rank(mesh, sizes, coordinate)
    return LocalShards("DTensor", dtype, shape, (box,), (local,), ranks, rank)


def _mesh_shape(mesh: Mapping[str, Any]) -> Shape:
    """Return the shape of a device mesh: of its tensor of ranks, or of its layout from torch 2.10 on."""
    for name in ("mesh", "_mesh"):
        if isinstance(mesh.get(name), TensorValue):
            return _shape(mesh[name].shape)
    layout = _fields(mesh["_layout"])
    if "axes" in layout:
        return _shape(tuple(_product(_fields(axis)["shape"]) for axis in layout["axes"]))
    sizes = layout["shape"]
    return _shape((sizes,) if type(sizes) is int else tuple(_product(size) for size in sizes))


def _product(sizes: Any, depth: int = 0) -> int:
    """Return how many ranks there are in a dimension that is made of others."""
    if type(sizes) is int:
        return sizes
    if not isinstance(sizes, tuple) or depth > _MAX_DIMENSIONS:
        raise TypeError(f"no size: {show(sizes)}")
    return math.prod(_product(size, depth + 1) for size in sizes)


def _mesh_rank(mesh: Mapping[str, Any], sizes: Shape, coordinate: Sequence[int]) -> int | None:
    """Return the rank at a place in a mesh, where the mesh is a whole one and lists its ranks."""
    names = ("_flatten_mesh_list", "_flatten_rank_map")
    ranks = next((mesh[name] for name in names if isinstance(mesh.get(name), tuple | list)), None)
    if ranks is None or len(ranks) != math.prod(sizes):
        return None
    index = 0
    for size, place in zip(sizes, coordinate, strict=True):
        index = index * size + place
    return int(ranks[index])


def _dtensor_box(
    shape: Shape, placements: Sequence[Any], sizes: Shape, coordinate: Sequence[int], where: str
) -> Box:
    """Return the box at a place in a mesh, as ``torch.chunk`` divides dimension after dimension."""
    if len(placements) != len(sizes):
        raise _contradiction(
            where,
            f"it has {counted(len(placements), 'placement')} on a mesh of {counted(len(sizes), 'dimension')}",
        )
    offsets, lengths = [0] * len(shape), list(shape)
    for axis in _axes_in_order(placements, sizes, where):
        dim = _fields(placements[axis])["dim"]
        dim = dim + len(shape) if dim < 0 else dim
        # What torch.chunk gives, of which there can be as many parts as a file says.
        rows = -(-lengths[dim] // sizes[axis])
        start = min(coordinate[axis] * rows, lengths[dim])
        count = min(rows, lengths[dim] - start)
        offsets[dim], lengths[dim] = offsets[dim] + start, count
    return tuple(offsets), tuple(lengths)


def _axes_in_order(placements: Sequence[Any], sizes: Shape, where: str) -> list[int]:
    """Return the mesh dimensions that divide the tensor, in the order in which they do.

    Two that divide the same dimension are only sure where torch says so: a ``_StridedShard`` over the first
    was divided after the second.
    """
    plain: list[int] = []
    strided: list[int] = []
    for axis, placement in enumerate(placements):
        name = placement.name.rpartition(".")[2]
        if name == "Shard":
            plain.append(axis)
        elif name == "_StridedShard":
            strided.append(axis)
        elif name != "Replicate":
            msg = f"{where}: it is placed as `{name}`, which holds no part of the tensor by itself."
            raise UnsupportedFeatureError(msg, feature="partial tensors")
    dims = [_fields(placements[axis])["dim"] for axis in plain]
    for axis in strided:
        fields = _fields(placements[axis])
        same = [a for a in plain if a > axis and _fields(placements[a])["dim"] == fields["dim"]]
        later = math.prod(sizes[a] for a in same)
        if fields.get("split_factor", fields.get("sf")) != later:
            msg = f"{where}: its dimension {fields['dim']} was divided twice, and the order is not known."
            raise UnsupportedFeatureError(msg, feature="shards of shards")
    if len(set(dims)) < len(dims) or len(strided) > 1:
        msg = (
            f"{where}: a dimension of it is divided over two dimensions of the mesh, as tensor parallelism "
            "under FSDP1 does it. The order is not known, so it is not put together."
        )
        raise UnsupportedFeatureError(msg, feature="shards of shards")
    return [*plain, *strided]


def _check_local(tensor: object, sizes: Shape, dtype: str, where: str) -> None:
    if not isinstance(tensor, TensorValue):
        raise _contradiction(where, "its local part is no tensor")
    if dtype not in DTYPES or tensor.dtype != dtype:
        raise _contradiction(where, f"its local part is {tensor.dtype}, and it is {dtype[:40]}")
    # A rank without rows may hold a tensor of another shape, as long as it is empty.
    is_empty = 0 in sizes and 0 in tensor.shape
    if tensor.shape != sizes and not is_empty:
        raise _contradiction(
            where, f"its local part has the shape {list(tensor.shape)}, expected {list(sizes)}"
        )


def _shape(value: Any) -> Shape:
    if (
        not isinstance(value, tuple)
        or len(value) > _MAX_DIMENSIONS
        or any(type(n) is not int or not 0 <= n < 1 << 63 for n in value)
    ):
        raise TypeError(f"no shape: {show(value)}")
    return tuple(value)


def _contradiction(where: str, what: str) -> CheckpointFormatError:
    return CheckpointFormatError(f"{where}: {what}. The file is damaged, or not what its rank saved.")
