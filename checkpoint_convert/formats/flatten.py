"""Flatten a nested state as torch.distributed.checkpoint does: which keys, and what stands under each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.dcp_values import DTypeName
from fsdp_migrate.checkpoint_convert.formats.sharded_values import ShardedValue
from fsdp_migrate.checkpoint_convert.formats.torch_values import (
    OrderedDictValue,
    Record,
    TensorValue,
    describe_type,
)
from fsdp_migrate.checkpoint_convert.manifest.keys import Path, join_path
from fsdp_migrate.errors import CheckpointFormatError


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Self


_MAX_DEPTH: Final = 64
_MAX_NAME: Final = 4096
_FEWEST: Final = 10_000
_KEY_BYTES: Final = 16
_MAPPINGS: Final = frozenset({"collections.defaultdict", "collections.Counter"})
# Objects that are taken for the plain values in them, with what of these is no value. mmengine keeps its logs
# in these, with its own functions by name, so that whoever loads them must import it.
_PLAIN: Final = {"mmengine.logging.history_buffer.HistoryBuffer": frozenset({"statistics_methods"})}
_GROUPS: Final = "param_groups"
_STATE: Final = "state"
_LONGEST_KEY: Final = 16


class NumberKey(str):
    """The text of a key that is no text, as it stands in a path; ``key`` is what it is.

    torch.distributed.checkpoint takes ``str(key)``, whatever the key is.

    Example:
        >>> NumberKey(3), NumberKey(3).key
        ('3', 3)
    """

    __slots__ = ("key",)
    key: object

    def __new__(cls, key: object, text: str | None = None) -> Self:
        """Return the text of a key, which is ``text`` where the key is a stand-in."""
        self = super().__new__(cls, key if text is None else text)
        self.key = key
        return self


def flatten_state(value: object, *, pickle_size: int, where: str) -> dict[str, tuple[Path, object]]:
    """Return every leaf of a state by its flat key, with its path.

    Mappings are always walked, lists only where tensors or mappings are somewhere in them, and nothing else
    is. This is ``torch.distributed.checkpoint._traverse.traverse_state_dict``, so that the keys are those
    under which ``dcp.save`` would have stored the same state. Only an empty mapping, which that leaves out,
    is a leaf here: Lightning reads ``fit_loop.state_dict`` although it is empty. In an optimizer's ``state``
    it says that there is none, and is left out too. A key that is a number keeps it beside its text
    (:class:`NumberKey`).

    Args:
        value: A mapping.
        pickle_size: The bytes of the pickle that it came from. A small one can name the same part again and
            again, so that there is more to walk than any program wrote.
        where: The file, for messages.

    Raises:
        CheckpointFormatError: Two leaves have the same key, or there are more than can have been written.

    Example:
        >>> flatten_state({"a": {"b": 1}, "c": [1, 2]}, pickle_size=100, where="an example")
        {'a.b': (('a', 'b'), 1), 'c': (('c',), [1, 2])}
        >>> flatten_state({"a": {}}, pickle_size=100, where="an example")
        {'a': (('a',), {})}
    """
    walk = _Walk(max(pickle_size, _FEWEST), where)
    # A pickle refers to a long text by a few bytes, as often as it likes: so the sum of lengths is bounded.
    left = max(_KEY_BYTES * pickle_size, _FEWEST * _MAX_NAME // 4)
    leaves: dict[str, tuple[Path, object]] = {}
    for path, leaf in walk.leaves((), value, 0):
        key = join_path(path)
        left -= len(key)
        if left < 0:
            # One long name, over and over: a few bytes of pickle for each of it.
            raise CheckpointFormatError(f"{where} holds more names than any program writes into such a file.")
        if key in leaves:
            msg = f"{where} holds two entries that are both called `{key}` once their names are joined."
            raise CheckpointFormatError(msg)
        leaves[key] = (path, leaf)
    return leaves


def entries_of(value: object) -> Iterable[tuple[object, object]] | None:
    """Return the entries of a mapping, or of an object that is taken for one; None for anything else."""
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, Record) and value.name in _MAPPINGS:
        # A Counter is pickled as what it is made of, a defaultdict with its factory.
        made_of = [item for item in value.arguments if isinstance(item, dict)]
        return [*(pair for item in made_of for pair in item.items()), *value.entries]
    if isinstance(value, Record) and value.name in _PLAIN and isinstance(value.state, dict):
        return [pair for pair in value.state.items() if pair[0] not in _PLAIN[value.name]]
    return None


def plain_objects(value: object) -> dict[str, int]:
    """Return the classes of the objects in a state that are taken for the values in them, and how many.

    Example:
        >>> plain_objects({"message_hub": {"log_scalars": {}}})
        {}
    """
    found: dict[str, int] = {}
    seen: set[int] = set()
    pending: list[object] = [value]
    while pending:
        item = pending.pop()
        if not isinstance(item, list | tuple | dict | Record) or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Record) and item.name in _PLAIN:
            found[item.name] = found.get(item.name, 0) + 1
        elif isinstance(item, list | tuple):
            pending += item
        else:
            pending += [inner for _, inner in entries_of(item) or ()]
    return found


def text_of_key(key: object) -> str | None:
    """Return what ``str`` makes of a key, or None where that is not known without running it.

    Example:
        >>> text_of_key("a"), text_of_key(3), text_of_key(None), text_of_key((1, "a")), text_of_key(((),))
        ('a', '3', 'None', "(1, 'a')", None)
    """
    if isinstance(key, DTypeName):
        return f"torch.{key}"
    if isinstance(key, str | bool | int | float | None):
        return str(key)
    data = _bytes_of(key)
    if data is not None:
        return str(data)
    if type(key) is tuple and len(key) <= _LONGEST_KEY:
        items = [_bytes_of(item) if isinstance(item, Record) else item for item in key]
        is_plain = all(type(item) in (str, bool, int, float, bytes) for item in items)
        return repr(tuple(items)) if is_plain else None
    return None


def _bytes_of(key: object) -> bytes | None:
    """Return the bytes that a key is; before protocol 3 pickles name what makes them of text."""
    if isinstance(key, bytes):
        return key
    if not isinstance(key, Record) or not key.is_called:
        return None
    if key.name in ("builtins.bytes", "__builtin__.bytes") and key.arguments == ():
        return b""
    is_encoded = key.name == "_codecs.encode" and len(key.arguments) == 2
    if is_encoded and type(key.arguments[0]) is str and key.arguments[1] == "latin1":
        try:
            return key.arguments[0].encode("latin1")
        except UnicodeEncodeError:
            return None
    return None


def _name_of(key: object) -> str | None:
    text = text_of_key(key)
    return text if text is None or type(key) is str else NumberKey(key, text)


def lost_containers(value: object) -> dict[str, int]:
    """Return the classes of mappings that a flat state does not keep, and how many there are of each.

    An ``OrderedDict`` of tensors is the state of a model: whoever loads it has a container of its own.

    Example:
        >>> lost_containers({"a": OrderedDictValue(), "b": {}, "c": ({"d": OrderedDictValue()},)})
        {'collections.OrderedDict': 1}
    """
    found: dict[str, int] = {}
    seen: set[int] = set()
    pending: list[object] = [value]
    while pending:
        item = pending.pop()
        entries = entries_of(item)
        if (entries is None and not isinstance(item, list)) or id(item) in seen:
            continue
        seen.add(id(item))
        inner = list(item) if isinstance(item, list) else [part for _, part in entries or ()]
        is_plain = type(item) in (list, dict) or (isinstance(item, Record) and item.name in _PLAIN)
        holds_tensors = any(isinstance(part, TensorValue | ShardedValue) for part in inner)
        if not is_plain and not (isinstance(item, OrderedDictValue) and holds_tensors):
            kind = describe_type(item)
            found[kind] = found.get(kind, 0) + 1
        pending += inner
    return found


class _Walk:
    def __init__(self, limit: int, where: str) -> None:
        self._left = limit
        self._where = where
        self._terminal: dict[int, bool] = {}
        self._optimizers: set[Path] = set()

    def leaves(self, path: Path, value: object, depth: int) -> Iterator[tuple[Path, object]]:
        self._left -= 1
        if depth > _MAX_DEPTH or self._left < 0:
            msg = f"{self._where} is nested in a way that no program writes: it was not read any further."
            raise CheckpointFormatError(msg)
        entries = entries_of(value)
        names = None if entries is None else [_name_of(key) for key, _ in entries]
        if entries is not None and names is not None and None not in names:
            yield from self._entries(path, zip(names, entries, strict=True), depth)
            # An empty mapping would be lost; that a parameter has no state says as much as no entry.
            if path and not any(True for _ in entries) and not self._is_state(path):
                yield path, {}
        # As torch does: a list of numbers is one value, a list with a tensor or a mapping in it is walked.
        elif isinstance(value, list) and not self._is_terminal(value, 0):
            for number, item in enumerate(value):
                yield from self.leaves((*path, number), item, depth + 1)
        else:
            yield path, value

    def _entries(
        self, path: Path, named: Iterable[tuple[str | None, tuple[object, object]]], depth: int
    ) -> Iterator[tuple[Path, object]]:
        entries = [(name or "", item) for name, (_, item) in named]
        if any(name == _GROUPS for name, _ in entries):
            self._optimizers.add(path)
        for name, item in entries:
            if len(name) > _MAX_NAME:
                raise CheckpointFormatError(f"{self._where} holds a name of {len(name)} characters.")
            yield from self.leaves((*path, name), item, depth + 1)

    def _is_state(self, path: Path) -> bool:
        """Tell whether a path is an optimizer's ``state``, or a parameter's in it."""
        return any(path[:-n] in self._optimizers and path[-n] == _STATE for n in (1, 2) if len(path) >= n)

    def _is_terminal(self, value: object, depth: int) -> bool:
        """Tell whether nothing in a list is walked; what is asked twice is remembered."""
        if entries_of(value) is not None:
            return False
        if not isinstance(value, list) or depth > _MAX_DEPTH:
            return True
        known = self._terminal.get(id(value))
        if known is None:
            # A list that holds itself is no part of what makes it walked.
            self._terminal[id(value)] = True
            known = not any(
                isinstance(item, TensorValue | ShardedValue)
                or (isinstance(item, list | dict | Record) and not self._is_terminal(item, depth + 1))
                for item in value
            )
            self._terminal[id(value)] = known
        return known
