"""Pickles that attack: each is refused, and nothing of it runs."""

from __future__ import annotations

import contextlib
import copyreg
import os
import pickle
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from fsdp_migrate.checkpoint_convert import convert_checkpoint, inspect_checkpoint
from fsdp_migrate.checkpoint_convert.formats.dcp_metadata_reader import read_metadata
from fsdp_migrate.checkpoint_convert.formats.dcp_values import METADATA_GLOBALS, ChunkRecord
from fsdp_migrate.checkpoint_convert.formats.pickle_reader import load_pickle
from fsdp_migrate.checkpoint_convert.formats.torch_values import VALUE_GLOBALS, load_value
from fsdp_migrate.errors import CheckpointFormatError, UnsafePickleError
from tests.checkpoint.formats.attacks import METADATA, MISSING, PROTO, short, stack_global
from tests.checkpoint.samples import PLAIN, assert_nothing_left, contents, copy_of
from tests.quick import examples


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def call(function: bytes, *arguments: bytes) -> bytes:
    return function + b"(" + b"".join(arguments) + b"tR"


class _Reduce:
    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self._reduced = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self._reduced


def gadgets(sentinel: Path) -> dict[str, bytes]:
    """Return pickles that would make ``sentinel`` if they ran, by the trick that they use."""
    touch = f"touch {sentinel}"
    source = f"open({str(sentinel)!r}, 'w').close()"
    chunk = stack_global(MISSING, "ChunkStorageMetadata") + b")\x81"
    return {
        "reduce os.system": pickle.dumps(_Reduce(os.system, touch)),
        "reduce eval": pickle.dumps(_Reduce(eval, source)),
        "reduce exec, protocol 2": pickle.dumps(_Reduce(exec, source), protocol=2),
        "subprocess": pickle.dumps(_Reduce(subprocess.check_call, ["touch", str(sentinel)])),
        "inside a container": pickle.dumps({"a": [1, (2, _Reduce(os.system, touch))]}),
        "GLOBAL, protocol 0 form": PROTO + b"cposix\nsystem\n(" + short(touch) + b"tR.",
        "INST": PROTO + b"(" + short(touch) + b"iposix\nsystem\n.",
        "OBJ": PROTO + b"(cposix\nsystem\n" + short(touch) + b"o.",
        "nested __import__": PROTO
        + call(
            call(
                stack_global("builtins", "getattr"),
                call(stack_global("builtins", "__import__"), short("os")),
                short("system"),
            ),
            short(touch),
        )
        + b".",
        "getattr on an allowed class": PROTO
        + call(
            stack_global("builtins", "getattr"),
            stack_global(MISSING, "Metadata"),
            short("__init_subclass__"),
        )
        + b".",
        "getattr on an allowed function": PROTO
        + call(
            call(
                stack_global("builtins", "getattr"),
                stack_global("torch", "Size"),
                short("__globals__"),
            )
        )
        + b".",
        "dotted STACK_GLOBAL": PROTO + call(stack_global("os", "system"), short(touch)) + b".",
        "dotted name through an allowed module": PROTO
        + call(stack_global("torch.serialization", "os.system"), short(touch))
        + b".",
        "STACK_GLOBAL of names from the memo": PROTO
        + short("os")
        + b"\x94"
        + short("system")
        + b"\x94"
        + b"h\x00h\x01\x93("
        + short(touch)
        + b"tR.",
        "BUILD with __setstate__ of a foreign class": PROTO
        + stack_global("test.pickletester", "C")
        + b")\x81}("
        + short("__setstate__")
        + stack_global("os", "system")
        + b"ub"
        + short(touch)
        + b"b.",
        "BUILD puts a __setstate__ on an allowed class": PROTO
        + stack_global(MISSING, "ChunkStorageMetadata")
        + b"N}("
        + short("__setstate__")
        + stack_global("torch", "Size")
        + b"u\x86b.",
        "BUILD changes an allowed function": PROTO
        + stack_global("torch", "Size")
        + b"N}("
        + short("_call")
        + stack_global("torch.serialization", "_get_layout")
        + b"u\x86b.",
        "BUILD gives a chunk a __reduce__": PROTO
        + chunk
        + b"}("
        + short("__reduce__")
        + stack_global("os", "system")
        + b"ub.",
        "NEWOBJ_EX": PROTO + stack_global("subprocess", "Popen") + b"(" + short(touch) + b"t}\x92.",
        "persistent id": PROTO + short(touch) + b"Q.",
        "text persistent id": PROTO + b"P" + touch.encode() + b"\n.",
        "EXT1": PROTO + b"\x82\x01(" + short(touch) + b"tR.",
        "EXT4": PROTO + b"\x84\x01\x00\x00\x00(" + short(touch) + b"tR.",
        "out-of-band buffer": b"\x80\x05\x97.",
        "types.FunctionType": PROTO + call(stack_global("types", "FunctionType"), short(source)) + b".",
        "torch hub": PROTO + call(stack_global("torch.hub", "load"), short("x/y")) + b".",
        "runpy": PROTO + call(stack_global("runpy", "run_path"), short(str(sentinel))) + b".",
        "operator": PROTO + call(stack_global("operator", "attrgetter"), short("system")) + b".",
        "pickle.loads": PROTO + call(stack_global("_pickle", "loads"), b"C\x01.") + b".",
        "numpy.load by name": PROTO + call(stack_global("numpy", "load"), short("x")) + b".",
    }


NAMES = sorted(gadgets(Path("x")))


@pytest.fixture
def extension(tmp_path: Path) -> Iterator[None]:
    """Register an extension code, and have it cached, so that it would be found without a look-up."""
    copyreg.add_extension("posix", "system", 1)
    pickle.loads(b"\x80\x02\x82\x01.")
    yield
    copyreg.remove_extension("posix", "system", 1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("extension")
def test_nothing_of_metadata_runs(name: str, tmp_path: Path) -> None:
    sentinel = tmp_path / "ran"
    source = copy_of(PLAIN, tmp_path, "source")
    (source / ".metadata").write_bytes(gadgets(sentinel)[name])
    before = contents(source)
    slots = (ChunkRecord.__setstate__, METADATA_GLOBALS["torch", "Size"])
    with pytest.raises(CheckpointFormatError, match=r"\.metadata"):
        convert_checkpoint(source, tmp_path / "out")
    assert not sentinel.exists()
    assert contents(source) == before
    assert slots == (ChunkRecord.__setstate__, METADATA_GLOBALS["torch", "Size"])
    assert_nothing_left(tmp_path, "source")
    assert inspect_checkpoint(PLAIN).framework == "torch"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("extension")
def test_nothing_of_an_item_runs(name: str, tmp_path: Path) -> None:
    sentinel = tmp_path / "ran"
    with pytest.raises(CheckpointFormatError, match="an item"):
        load_value(gadgets(sentinel)[name], where="an item")
    assert not sentinel.exists()


def test_the_gadgets_do_run_where_nobody_looks(tmp_path: Path) -> None:
    sentinel = tmp_path / "ran"
    pickle.loads(gadgets(sentinel)["reduce os.system"])
    assert sentinel.exists()


def test_the_error_names_the_global_and_the_file(tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    (source / ".metadata").write_bytes(gadgets(tmp_path / "ran")["dotted STACK_GLOBAL"])
    with pytest.raises(UnsafePickleError, match=r"`os\.system`") as caught:
        inspect_checkpoint(source)
    assert caught.value.global_name == "os.system"
    assert str(source) in str(caught.value)


NESTED = PROTO + b")\x94" + b"".join(b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86\x94" for n in range(200))
"""A tuple of 2**200 leaves: harmless to hold, and impossible to show."""


@pytest.mark.parametrize(
    "place", ["memory format", "layout", "shape", "chunk", "transforms", "path", "storage offset"]
)
def test_what_cannot_be_shown_is_not_shown(place: str) -> None:
    """Errors about values of 2**200 leaves come at once, and are short."""
    nested: Any = ()
    for _ in range(200):
        nested = (nested, nested)
    metadata = pickle.loads(METADATA)
    entry = metadata.state_dict_metadata["model.emb.weight"]
    info = next(iter(metadata.storage_data.values()))
    if place == "memory format":
        data = PROTO + call(stack_global(MISSING, "_MEM_FORMAT_ENCODING"), NESTED[2:]) + b"."
    else:
        if place == "layout":
            entry.properties = nested
        elif place == "shape":
            entry.size = nested
        elif place == "chunk":
            entry.chunks[0].offsets = nested
        elif place == "transforms":
            info.transform_descriptors = nested
        elif place == "path":
            metadata.planner_data["model.emb.weight"] = nested
            info.length = -1
        else:
            info.offset = nested
        data = pickle.dumps(metadata)
    files = {"__0_0.distcp": 1 << 30, "__1_0.distcp": 1 << 30}
    with pytest.raises(CheckpointFormatError) as caught:
        read_metadata(data, files, where="x")
    assert len(str(caught.value)) < 2000


simple = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(simple, st.integers(min_value=2, max_value=5))
@settings(max_examples=examples(200), deadline=None)
def test_plain_data_reads_as_it_was_written(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol=protocol)
    read = load_pickle(data, VALUE_GLOBALS, where="an example")
    if protocol > 2:
        assert read == value


@given(st.data())
@settings(max_examples=examples(150), deadline=None)
def test_damaged_metadata_is_an_error_and_no_crash(data: st.DataObject) -> None:
    damaged = bytearray(METADATA)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CheckpointFormatError):
        load_pickle(bytes(damaged), METADATA_GLOBALS, where="damaged")
