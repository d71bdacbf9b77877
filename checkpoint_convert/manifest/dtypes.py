"""The element types of tensors by name, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fsdp_migrate.errors import ConfigError


@dataclass(frozen=True)
class DType:
    """One element type: its name in torch, its size, and the storage class that torch.save names for it.

    ``storage`` is None for the newer types, which torch saves as untyped bytes with the type beside them.
    """

    name: str
    itemsize: int
    storage: str | None
    is_float: bool = False


DTYPES: Final = {
    dtype.name: dtype
    for dtype in (
        DType("float64", 8, "DoubleStorage", is_float=True),
        DType("float32", 4, "FloatStorage", is_float=True),
        DType("float16", 2, "HalfStorage", is_float=True),
        DType("bfloat16", 2, "BFloat16Storage", is_float=True),
        DType("float8_e4m3fn", 1, None, is_float=True),
        DType("float8_e4m3fnuz", 1, None, is_float=True),
        DType("float8_e5m2", 1, None, is_float=True),
        DType("float8_e5m2fnuz", 1, None, is_float=True),
        DType("float8_e8m0fnu", 1, None, is_float=True),
        DType("int64", 8, "LongStorage"),
        DType("int32", 4, "IntStorage"),
        DType("int16", 2, "ShortStorage"),
        DType("int8", 1, "CharStorage"),
        DType("uint64", 8, None),
        DType("uint32", 4, None),
        DType("uint16", 2, None),
        DType("uint8", 1, "ByteStorage"),
        DType("bool", 1, "BoolStorage"),
        DType("complex64", 8, "ComplexFloatStorage"),
        DType("complex128", 16, "ComplexDoubleStorage"),
    )
}

STORAGE_DTYPES: Final = {dtype.storage: dtype.name for dtype in DTYPES.values() if dtype.storage is not None}

_SPELLINGS: Final = {
    "keep": None,
    "fp32": "float32",
    "float32": "float32",
    "float": "float32",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp16": "float16",
    "float16": "float16",
    "half": "float16",
}


def resolve_cast(dtype: object, *, field: str) -> str | None:
    """Return the torch name of the type to cast to, or None to keep what is there.

    Args:
        dtype: ``"keep"``, ``"fp32"``, ``"bf16"``, ``"fp16"``, torch's spellings, torch's own dtypes, or None.
        field: The argument's name, for the message.

    Raises:
        ConfigError: It is none of these.

    Example:
        >>> resolve_cast("bf16", field="dtype"), resolve_cast("torch.float32", field="dtype")
        ('bfloat16', 'float32')
    """
    if dtype is None:
        return None
    word = str(dtype).strip().lower().removeprefix("torch.")
    if word not in _SPELLINGS:
        msg = f"`{field}` is {dtype!r}; expected one of 'keep', 'fp32', 'bf16', 'fp16'."
        raise ConfigError(msg, field=field)
    return _SPELLINGS[word]
