"""Read pickles without running them.

A pickle is a program: a global that it names is imported and called. Here a global is looked up in an
explicit table, and every entry of every table is a stand-in of ours that only keeps what it is given.
Nothing is imported and nothing else is ever resolved. The tables stand next to what they describe:
``dcp_values`` for ``.metadata``, ``torch_values`` for what torch.save wrote.

A stand-in never copies its arguments, because a pickle of a few bytes can hand the same large object to it
again and again, and it cannot be changed by the pickle's BUILD, because it outlives the load.
"""

from __future__ import annotations

import contextlib
import gc
import io
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NoReturn

from fsdp_migrate.checkpoint_convert.formats.pickle_audit import audit_opcodes
from fsdp_migrate.errors import CheckpointFormatError, CheckpointReadError, UnsafePickleError


Globals = Mapping[tuple[str, str], object]
"""What a pickle may name: ``(module, name)`` to a stand-in."""


# Python refuses to print integers of more than some thousand digits.
_LONGEST_SHOWN: Final = 2048
_NAME: Final = re.compile(r"[\w.<>\[\]-]{1,500}")


class InertType(type):
    """The type of stand-in classes: a pickle cannot set attributes on them."""

    def __setattr__(cls, name: str, value: object) -> NoReturn:
        raise TypeError(f"{cls.__name__} cannot be changed")


class Inert(metaclass=InertType):
    """Base of stand-in classes; it takes no arguments and no state unless a subclass says so."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        raise TypeError(f"{type(self).__name__} takes no state")


class StandIn(Inert):
    """A stand-in for a function: calls one of ours, and cannot be changed by BUILD."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., object]) -> None:
        self._call = call

    def __call__(self, *args: object) -> object:
        """Call it."""
        return self._call(*args)


class _Unpickler(pickle.Unpickler):
    def __init__(
        self,
        data: bytes,
        allowed: Globals,
        where: str,
        persistent: Callable[[object], object] | None,
        unknown: Callable[[str], object] | None,
    ) -> None:
        super().__init__(io.BytesIO(data))
        self._allowed = allowed
        self._where = where
        self._persistent = persistent
        self._unknown = unknown

    def find_class(self, module_name: str, global_name: str) -> Any:
        """Look a global up in the table; nothing is imported."""
        try:
            return self._allowed[module_name, global_name]
        except KeyError:
            name = f"{module_name}.{global_name}"
            if _NAME.fullmatch(name) is None:
                # Nothing that is written again under its name may say more than a name.
                msg = f"{self._where} asks for a global that has no name: {name[:80]!r}. It was not loaded."
                raise UnsafePickleError(msg, global_name=name[:200]) from None
            if self._unknown is not None:
                return self._unknown(name)
            msg = (
                f"{self._where} asks for the global `{name}`, which is not on the list of what may be "
                "read. Nothing of it was executed."
            )
            raise UnsafePickleError(msg, global_name=name) from None

    def persistent_load(self, pid: Any) -> Any:
        """Hand a persistent id on, or refuse it."""
        if self._persistent is None:
            msg = f"{self._where} refers to an object outside itself (a persistent id). It was not loaded."
            raise UnsafePickleError(msg)
        return self._persistent(pid)


def load_pickle(
    data: bytes,
    allowed: Globals,
    *,
    where: str,
    persistent: Callable[[object], object] | None = None,
    unknown: Callable[[str], object] | None = None,
) -> object:
    """Load a pickle in which only the globals of ``allowed`` may be named.

    Args:
        data: The pickle.
        allowed: The stand-ins, by module and name.
        where: The file and entry, for messages.
        persistent: What to make of persistent ids; None refuses them.
        unknown: Makes a stand-in for a global that is not in ``allowed``, by its name; None refuses it.

    Raises:
        UnsafePickleError: It names something else, or would exhaust memory. Nothing of it was executed.
        CheckpointFormatError: It is not a pickle, or not a whole one, or not one of what ``allowed``
            describes.

    Example:
        >>> import pickle
        >>> load_pickle(pickle.dumps([1, ("a", None)]), {}, where="an example")
        [1, ('a', None)]
        >>> load_pickle(pickle.dumps(print), {}, where="an example")
        Traceback (most recent call last):
        fsdp_migrate.errors.UnsafePickleError: an example asks for the global `builtins.print`, ...
    """
    end = audit_opcodes(data, where=where)
    if end != len(data):
        msg = f"{where} is not a whole pickle: {len(data) - end} bytes follow its end. The file is damaged."
        raise CheckpointFormatError(msg)
    try:
        with paused_gc():
            return _Unpickler(data, allowed, where, persistent, unknown).load()
    except UnsafePickleError:
        raise
    except MemoryError as error:
        msg = f"{where} needs more memory to be read than there is: its pickle has {len(data)} bytes."
        raise CheckpointReadError(msg) from error
    except Exception as error:
        msg = f"{where} is not readable: {type(error).__name__}: {str(error)[:300]}."
        raise CheckpointFormatError(msg) from error


@contextlib.contextmanager
def paused_gc() -> Iterator[None]:
    """Keep the garbage collector from walking millions of new objects again and again.

    Reading the metadata of 300,000 chunks takes 7.5 s with it and 0.8 s without.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def show(value: object) -> str:
    """Show a value from a pickle in a message.

    Only scalars are shown as they are: a few hundred bytes of nested tuples can have a text of exabytes.

    Example:
        >>> show(3), show((1, (2, 3))), show([[]])
        ('3', '(1, a tuple)', 'a list')
    """
    if isinstance(value, tuple) and len(value) <= 16:
        return f"({', '.join(_show_scalar(item) for item in value)})"
    return _show_scalar(value)


def _show_scalar(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > _LONGEST_SHOWN:
        return f"an integer of {value.bit_length()} bits"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return repr(value[:80])
    return f"a {type(value).__name__}"
