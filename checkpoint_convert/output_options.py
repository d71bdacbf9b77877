"""What a user can say about an output beside its stack."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from fsdp_migrate.checkpoint_convert.keys import RenameRule, parse_rename
from fsdp_migrate.errors import ConfigError


DEFAULT_SHARD_SIZE: Final = 5 * 10**9
_SIZE: Final = re.compile(r"^\s*(\d+)\s*([KMGT]?)(I?)B?\s*$", re.IGNORECASE)
_POWERS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """How an output is written.

    Attributes:
        optimizer_class: The class of the optimizer, by whose name Composer looks for its state.
        max_shard_size: How many bytes of tensors a file of safetensors holds at most.
        renames: Changes of parameters' names, each ``"regex=replacement"``, done one after the other in
            models and optimizers alike, once wrappers' prefixes are off. Each must change a name.

    Example:
        >>> OutputOptions(max_shard_size=parse_size("2GB")).max_shard_size
        2000000000
    """

    optimizer_class: str | None = None
    max_shard_size: int = DEFAULT_SHARD_SIZE
    renames: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if type(self.max_shard_size) is not int or self.max_shard_size < 1:
            msg = f"`max_shard_size` is {self.max_shard_size!r}; expected a number of bytes of at least 1."
            raise ConfigError(msg, field="max_shard_size")
        for text in self.renames:
            parse_rename(text)
        name = self.optimizer_class
        if name is not None and not name.isidentifier():
            msg = f"`optimizer_class` is {name!r}; expected the name of a class, such as `DecoupledAdamW`."
            raise ConfigError(msg, field="optimizer_class")

    @property
    def rules(self) -> tuple[RenameRule, ...]:
        """Return the renames as rules."""
        return tuple(map(parse_rename, self.renames))


def parse_size(text: str) -> int:
    """Return the bytes that a text such as ``5GB`` or ``512MiB`` says.

    Raises:
        ConfigError: It says none.

    Example:
        >>> parse_size("5GB"), parse_size("512MiB"), parse_size("4096")
        (5000000000, 536870912, 4096)
    """
    match = _SIZE.match(text)
    if match is None or int(match[1]) == 0:
        msg = f"`max_shard_size` is {text!r}; expected a size such as '5GB' or '512MiB'."
        raise ConfigError(msg, field="max_shard_size")
    unit: int = (1024 if match[3] else 1000) ** _POWERS[match[2].upper()]
    return int(match[1]) * unit
