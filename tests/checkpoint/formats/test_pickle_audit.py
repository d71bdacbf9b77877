"""What the opcodes of a pickle may do before anything is built of it."""

from __future__ import annotations

import contextlib
import pickle
import struct
import subprocess
import sys

import pytest
from hypothesis import given, settings, strategies as st

from fsdp_migrate.checkpoint_convert.formats.dcp_values import METADATA_GLOBALS
from fsdp_migrate.checkpoint_convert.formats.pickle_reader import load_pickle
from fsdp_migrate.errors import CheckpointFormatError, UnsafePickleError
from tests.checkpoint.formats.attacks import METADATA, MISSING, PROTO, stack_global
from tests.quick import examples


BOMBS = {
    "a key so deep that its hash overflows the stack": PROTO + b"})" + b"\x85" * 300_000 + b"Ns.",
    "a key whose hash takes for ever": PROTO + b"})" + b"2\x86" * 200 + b"Ns.",
    "the same from the memo": PROTO + b"})\x94" + b"h\x00h\x00\x86q\x00" * 200 + b"Ns.",
    "the same through a function": PROTO
    + b"})\x94"
    + (stack_global("torch", "Size") + b"h\x00h\x00\x86\x85Rq\x00") * 200
    + b"Ns.",
    "a set of such keys": PROTO + b"\x8f(" + b")" + b"2\x86" * 200 + b"\x90.",
    "memo of four billion": PROTO + b"Nr\xff\xff\xff\xff.",
    "memo by text": PROTO + b"Np4000000000\n.",
    "bytearray of an exabyte": b"\x80\x05\x96" + struct.pack("<Q", 1 << 60) + b".",
    "text of four gigabytes": PROTO + b"X\xff\xff\xff\xffabc.",
    "bytes of an exabyte": PROTO + b"\x8e" + struct.pack("<Q", 1 << 60) + b"a.",
    "long integer": PROTO + b"\x8b\xff\xff\xff\x7fabc.",
    "tuple handed over again and again": PROTO
    + b"("
    + b"N" * 30_000
    + b"l\x94"
    + (stack_global("torch", "Size") + b"h\x00\x85R0") * 3000
    + b"N.",
    "dict merged again and again": PROTO
    + b"}("
    + b"".join(b"M" + struct.pack("<H", n) + b"N" for n in range(30_000))
    + b"u\x94"
    + (stack_global(MISSING, "ChunkStorageMetadata") + b")\x81h\x00b") * 3000
    + b"N.",
}


@pytest.mark.parametrize("name", sorted(BOMBS))
def test_a_small_pickle_cannot_take_much_memory(name: str) -> None:
    code = (
        "import sys\n"
        "from fsdp_migrate.checkpoint_convert.formats.pickle_reader import load_pickle\n"
        "from fsdp_migrate.checkpoint_convert.formats.dcp_values import METADATA_GLOBALS\n"
        "from fsdp_migrate.errors import CheckpointFormatError\n"
        "def kilobytes(name):\n"
        "    return next(int(l.split()[1]) for l in open('/proc/self/status') if l.startswith(name))\n"
        "before = kilobytes('VmRSS')\n"
        "open('/proc/self/clear_refs', 'w').write('5')\n"
        "try:\n"
        "    load_pickle(sys.stdin.buffer.read(), METADATA_GLOBALS, where='bomb')\n"
        "except CheckpointFormatError as error:\n"
        "    print('refused')\n"
        "print(kilobytes('VmHWM') - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=BOMBS[name], capture_output=True, check=True, timeout=400
    )
    *refused, growth = done.stdout.decode().split()
    assert refused == ["refused"]
    assert int(growth) < 50_000


def test_tuples_within_tuples_can_be_read() -> None:
    value = tuple((n, (str(n), ())) for n in range(2000))
    data = pickle.dumps({value: value, "state": (3, tuple(range(50_000)), None)})
    assert load_pickle(data, {}, where="x") == pickle.loads(data)
    with pytest.raises(UnsafePickleError, match="nests"):
        load_pickle(pickle.dumps(tuple((n,) for n in range(20_000))), {}, where="x")


@given(st.binary(max_size=200))
@settings(max_examples=examples(300), deadline=None)
def test_garbage_is_an_error_and_no_crash(data: bytes) -> None:
    for start in (b"", PROTO, b"\x80\x02"):
        with contextlib.suppress(CheckpointFormatError):
            load_pickle(start + data, METADATA_GLOBALS, where="garbage")


@pytest.mark.slow
def test_every_cut_of_a_pickle_is_an_error() -> None:
    for end in range(0, len(METADATA), 97):
        with pytest.raises(CheckpointFormatError):
            load_pickle(METADATA[:end], METADATA_GLOBALS, where="cut")
