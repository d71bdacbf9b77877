"""Imports that succeed with every torch that is taken here, FSDP2's among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final


if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


_FSDP2: Final = frozenset(
    {
        *("CPUOffloadPolicy", "FSDPModule", "MixedPrecisionPolicy", "OffloadPolicy", "fully_shard"),
        "register_fsdp_forward_method",
    }
)
# Not what stands in its `wrap` and `sharded_grad_scaler` alone.
_FSDP1: Final = frozenset(
    {
        *("BackwardPrefetch", "CPUOffload", "FlatParameter", "FullyShardedDataParallel", "MixedPrecision"),
        *("FullOptimStateDictConfig", "FullStateDictConfig", "LocalOptimStateDictConfig"),
        *("LocalStateDictConfig", "OptimStateDictConfig", "OptimStateKeyType"),
        *("ShardedOptimStateDictConfig", "ShardedStateDictConfig", "ShardingStrategy", "StateDictConfig"),
        *("StateDictSettings", "StateDictType", "wrap"),
    }
)
_TENSORS: Final = frozenset({"DTensor", "DeviceMesh", "Replicate", "Shard", "distribute_tensor"})
_TORCHS: Final = {
    "torch": frozenset({"distributed", "nn", "optim"}),
    "torch.distributed": frozenset({"fsdp"}),
    "torch.distributed._composable.fsdp": _FSDP2,
    "torch.distributed._tensor": _TENSORS,
    "torch.distributed.device_mesh": frozenset({"DeviceMesh", "init_device_mesh"}),
    "torch.distributed.fsdp": _FSDP1 | _FSDP2,
    "torch.distributed.tensor": _TENSORS,
    "torch.nn": frozenset({"Module", "functional", "parallel"}),
}
# Of Python 3.10 and each later one, on every platform.
_PYTHONS: Final = {
    "abc": frozenset({"ABC", "abstractmethod"}),
    "argparse": frozenset({"ArgumentParser", "Namespace"}),
    "collections": frozenset({"Counter", "OrderedDict", "defaultdict", "deque", "namedtuple"}),
    "collections.abc": frozenset({"Callable", "Collection", "Iterable", "Iterator", "Mapping", "Sequence"}),
    "contextlib": frozenset({"ExitStack", "contextmanager", "nullcontext", "suppress"}),
    "copy": frozenset({"copy", "deepcopy"}),
    "dataclasses": frozenset({"asdict", "dataclass", "field", "fields", "replace"}),
    "enum": frozenset({"Enum", "IntEnum", "auto"}),
    "functools": frozenset({"cache", "lru_cache", "partial", "wraps"}),
    "gc": frozenset({"collect"}),
    "inspect": frozenset({"signature"}),
    "itertools": frozenset({"chain", "islice", "product"}),
    "json": frozenset({"dump", "dumps", "load", "loads"}),
    "logging": frozenset({"Logger", "getLogger"}),
    "math": frozenset({"ceil", "floor", "inf", "log", "prod", "sqrt"}),
    "os": frozenset({"environ", "getenv", "makedirs", "path"}),
    "os.path": frozenset({"basename", "dirname", "exists", "isfile", "join"}),
    "pathlib": frozenset({"Path"}),
    "random": frozenset({"choice", "randint", "random", "seed"}),
    "re": frozenset({"compile", "match", "search", "sub"}),
    "sys": frozenset({"argv", "exit", "stderr", "stdout", "version_info"}),
    "time": frozenset({"perf_counter", "sleep", "time"}),
    "typing": frozenset(
        {
            *("TYPE_CHECKING", "Any", "Callable", "Dict", "Iterable", "Iterator", "List", "Literal"),
            *("NamedTuple", "Optional", "Sequence", "Set", "Tuple", "Type", "TypeVar", "Union", "cast"),
        }
    ),
    "warnings": frozenset({"catch_warnings", "simplefilter", "warn"}),
}
EXPORTS: Final[Mapping[str, frozenset[str]]] = _TORCHS | _PYTHONS
"""By its name what is sure to be had of a module."""
MISSING: Final = frozenset({"ImportError", "ModuleNotFoundError"})
"""What an import raises that finds nothing."""

# What imports what it reads of, or packages that torch does not bring along.
_IMPORT: Final = (
    *("torch.cuda.utilization", "torch.export.load", "torch.hub", "torch.jit.load", "torch.load"),
    *("torch.onnx", "torch.package", "torch.utils.cpp_extension", "torch.utils.tensorboard"),
)
_BUILTINS: Final = frozenset(
    {
        *("all", "any", "bool", "callable", "dict", "enumerate", "float", "frozenset", "getattr", "hasattr"),
        *("id", "int", "isinstance", "issubclass", "iter", "len", "list", "max", "min", "next", "print"),
        *("range", "repr", "reversed", "set", "setattr", "sorted", "str", "sum", "super", "tuple", "type"),
        *("vars", "zip"),
    }
)
# Of modules, FSDP2's among them, of loggers, and of what holds things.
_METHODS: Final = frozenset(
    {
        *("bfloat16", "buffers", "children", "cpu", "cuda", "double", "eval", "float", "half", "modules"),
        *("named_buffers", "named_children", "named_modules", "named_parameters", "parameters"),
        *("requires_grad_", "to", "to_empty", "train", "zero_grad"),
        *("reshard", "set_modules_to_backward_prefetch", "set_modules_to_forward_prefetch", "unshard"),
        *("set_requires_gradient_sync", "set_reshard_after_backward"),
        *("debug", "error", "exception", "info", "warning"),
        *("append", "extend", "format", "get", "items", "join", "keys", "lower", "pop", "setdefault"),
        *("startswith", "update", "upper", "values"),
    }
)


def is_sure(module: str, names: Collection[str]) -> bool:
    """Tell whether an import succeeds, of names or, where there are none, of a module as a whole.

    Example:
        >>> is_sure("torch.distributed.fsdp", ["fully_shard"]), is_sure("apex", [])
        (True, False)
    """
    return module in EXPORTS and EXPORTS[module].issuperset(names)


def is_fsdp2s(module: str, names: Collection[str]) -> bool:
    """Tell whether an import brings what shards by FSDP2, or its class.

    Example:
        >>> is_fsdp2s("torch.distributed.fsdp", ["fully_shard"]), is_fsdp2s("torch.distributed.fsdp", ["x"])
        (True, False)
    """
    is_home = module in {"torch.distributed._composable.fsdp", "torch.distributed.fsdp"}
    return is_home and not {"FSDPModule", "fully_shard"}.isdisjoint(names)


def may_miss(text: str | None, qualified: Collection[str], own: Collection[str]) -> bool:
    """Tell whether what a call runs may import something that is missing: a function of the project may.

    Args:
        text: The function, as it is written; None for what is no name.
        qualified: What it stands for by its imports.
        own: The names of the functions, methods and classes that the source defines.

    Example:
        >>> [may_miss(text, [], ["T"]) for text in ("net.to", "net.shard", "T.to", "print", "shard")]
        [False, True, True, False, True]
    """
    if text is None:
        return True
    if qualified:
        return not all(map(_is_calm, qualified))
    root, *rest = text.split(".")
    if root in own or (rest and rest[-1] in own):
        return True
    # A class of the project's may have methods of its own by any name.
    return root in {"cls", "self", "super()"} or rest[-1] not in _METHODS if rest else root not in _BUILTINS


def _is_calm(name: str) -> bool:
    """Tell whether nothing that is missing is imported by what torch or Python has by a name."""
    root = name.split(".", maxsplit=1)[0]
    if root == "torch":
        return not any(name == each or name.startswith(f"{each}.") for each in _IMPORT)
    return root in _PYTHONS
