"""The words of people's configs, and of torch's own objects, brought to one canonical form.

Nothing here imports torch: its objects are recognised by what they look like, so that a config can be read
and checked on a machine without it. Each function raises :class:`~fsdp_migrate.errors.ConfigError` for a
value that it cannot place, naming the values that it knows.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from fsdp_migrate.errors import ConfigError


T = TypeVar("T")

# With the letters that Accelerate and transformers take as well.
_TRUE = frozenset({"true", "yes", "on", "1", "t", "y"})
_FALSE = frozenset({"false", "no", "off", "0", "f", "n"})
_NOTHING = frozenset({"", "none", "null", "~"})

_DTYPES: Mapping[str, str] = {
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "fp16": "float16",
    "half": "float16",
    "float32": "float32",
    "fp32": "float32",
    "float": "float32",
    "float64": "float64",
    "fp64": "float64",
    "double": "float64",
}

_STRATEGIES: Mapping[str, str] = {
    "full_shard": "FULL_SHARD",
    "shard_grad_op": "SHARD_GRAD_OP",
    "no_shard": "NO_SHARD",
    "hybrid_shard": "HYBRID_SHARD",
    "_hybrid_shard_zero2": "_HYBRID_SHARD_ZERO2",
    "hybrid_shard_zero2": "_HYBRID_SHARD_ZERO2",
    # torch's enum counts from 1, and Accelerate's configs store the number.
    "1": "FULL_SHARD",
    "2": "SHARD_GRAD_OP",
    "3": "NO_SHARD",
    "4": "HYBRID_SHARD",
    "5": "_HYBRID_SHARD_ZERO2",
}

_PREFETCH: Mapping[str, str | None] = {
    "backward_pre": "BACKWARD_PRE",
    "backward_post": "BACKWARD_POST",
    "no_prefetch": None,
    "1": "BACKWARD_PRE",
    "2": "BACKWARD_POST",
}


def is_nothing(value: object) -> bool:
    """Tell whether a value is None or a word for it (``null``, ``none``, an empty string)."""
    return value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING)


def bare_word(value: object) -> str:
    """Return the last dotted part of a word, an enum member or a dtype, lower-case.

    Example:
        >>> bare_word("ShardingStrategy.FULL_SHARD"), bare_word(" torch.bfloat16 "), bare_word(1)
        ('full_shard', 'bfloat16', '1')
    """
    name = getattr(value, "name", None)
    text = name if isinstance(name, str) and not isinstance(value, str) else str(value)
    return text.strip().rpartition(".")[2].lower()


def closest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return `` Did you mean `x`?`` for the nearest known word, or nothing where none is near.

    A word that begins with ``no_`` says the contrary of one that only ends alike, and is not near to it.

    Example:
        >>> closest("shardng_strategy", ["sharding_strategy", "device_id"])
        ' Did you mean `sharding_strategy`?'
        >>> closest("auto_wrap", ["no_wrap", "size_based_wrap"])
        ''
    """
    denies = word.lower().startswith("no")
    by_lower = {
        candidate.lower(): candidate
        for candidate in known
        if denies or not candidate.lower().startswith("no_")
    }
    matches = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    return f" Did you mean `{by_lower[matches[0]]}`?" if matches else ""


def _look_up(value: object, table: Mapping[str, T], field: str, what: str) -> T:
    word = bare_word(value)
    if isinstance(value, (str, int)) or hasattr(value, "name") or what == "dtype":
        if word in table and not isinstance(value, bool):
            return table[word]
        known = ", ".join(f"`{name}`" for name in dict.fromkeys(table.values()))
        msg = f"`{field}` is {value!r}, which is no {what}.{closest(word, table)} Known: {known}."
        raise ConfigError(msg, field=field)
    msg = f"`{field}` is a {type(value).__name__}; expected a {what}, by name or as torch's object."
    raise ConfigError(msg, field=field)


def read_bool(value: object, field: str) -> bool:
    """Read a boolean: ``True``, ``"true"``, ``"yes"``, ``1``.

    Raises:
        ConfigError: The value is none of these.
    """
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if isinstance(value, (str, int)) and word in _TRUE | _FALSE:
        return word in _TRUE
    msg = f"`{field}` is {value!r}; expected true or false."
    raise ConfigError(msg, field=field)


def read_count(value: object, field: str) -> int:
    """Read a number of things: ``1000``, ``1e8``, ``"1e8"``, ``"100_000"``.

    Raises:
        ConfigError: The value is not a whole number, or is negative.
    """
    number: float | None = None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            number = None
    if number is None or number < 0 or number != number // 1:
        msg = f"`{field}` is {value!r}; expected a whole number such as 100000000 or 1e8."
        raise ConfigError(msg, field=field)
    return int(number)


def read_dtype(value: object, field: str) -> str | None:
    """Read a floating-point dtype: ``torch.bfloat16``, ``"bf16"``, ``"torch.float16"``; None stays None.

    Raises:
        ConfigError: No floating-point dtype has that name.
    """
    return None if is_nothing(value) else _look_up(value, _DTYPES, field, "dtype")


def read_strategy(value: object, field: str) -> str:
    """Read a sharding strategy: torch's enum, its name in any case, or its number; None is FULL_SHARD.

    Raises:
        ConfigError: There is no such strategy.
    """
    if is_nothing(value):
        return "FULL_SHARD"
    return _look_up(value, _STRATEGIES, field, "sharding strategy")


def read_prefetch(value: object, field: str) -> str | None:
    """Read a backward prefetch: torch's enum or its name; None, ``none`` and ``NO_PREFETCH`` are None.

    Raises:
        ConfigError: There is no such setting.
    """
    return None if is_nothing(value) else _look_up(value, _PREFETCH, field, "backward prefetch")


def read_names(value: object, field: str) -> tuple[str, ...]:
    """Read names given as a list or with commas: ``"Block, Head"``, ``["Block", "Head"]``.

    Raises:
        ConfigError: Something in it is not a name.
    """
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, Iterable):
        parts = (parts,)
    names = []
    for part in parts:
        if not isinstance(part, str):
            msg = f"`{field}` holds {part!r}; expected names."
            raise ConfigError(msg, field=field)
        names.append(part.strip().strip("\"'"))
    return tuple(dict.fromkeys(name for name in names if name))
