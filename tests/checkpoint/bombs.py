"""Small files that would take their reader down: by memory, by time, by recursion."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from fsdp_migrate.checkpoint_convert import check_checkpoint, convert_checkpoint, verify_checkpoints
from fsdp_migrate.checkpoint_convert.formats.zip_writer import FIXED_RECORDS, small_archive
from fsdp_migrate.errors import FSDPMigrateError
from tests.checkpoint.fuzz import with_pickle
from tests.checkpoint.samples import DATA, PLAIN, copy_of, edit_metadata


if TYPE_CHECKING:
    from collections.abc import Callable


HUGE = 10**5000
PROTO = b"\x80\x04"
DEEP = b"]" * 60_000 + b"a" * 59_999


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    return pickle.dumps(value, protocol=2)[2:-1]


def dictionary(**items: bytes) -> bytes:
    return b"}(" + b"".join(text(key) + value for key, value in items.items()) + b"u"


def doubled(levels: int, pair: bytes = b"](h%sh%se") -> bytes:
    """Return the opcodes of a list of a list twice, of a list twice ...: 2 ** levels leaves."""
    parts = [b"(]q\x00"]
    for level in range(levels):
        memo = bytes([level])
        parts.append(pair.replace(b"%s", memo) + b"q" + bytes([level + 1]))
    # All but the last are popped again.
    return b"".join(parts) + b"1h" + bytes([levels])


def one_file(folder: Path, opcodes: bytes, **records: bytes) -> Path:
    path = folder / "model.pt"
    contents = {"data.pkl": PROTO + opcodes + b".", **FIXED_RECORDS, **records, "version": b"3\n"}
    path.write_bytes(small_archive(contents))
    return path


def tensor(shape: bytes, strides: bytes, numel: bytes, start: bytes = b"K\x00") -> bytes:
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + numel + b"tQ"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + start + shape + strides + b"\x89N" + b"tR"


def numbers(*values: int) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def in_dcp(folder: Path, key: str, opcodes: bytes) -> Path:
    """Return a copy of a real checkpoint in which one item that is no tensor holds something else."""
    source = copy_of(PLAIN, folder, "dcp")
    item = small_archive({"data.pkl": PROTO + opcodes + b".", **FIXED_RECORDS, "version": b"3\n"})
    data = (source / "__0_0.distcp").read_bytes()
    (source / "__0_0.distcp").write_bytes(data + item)

    def edit(metadata: Metadata) -> None:
        info = metadata.storage_data[MetadataIndex(key)]
        info.relative_path, info.offset, info.length = "__0_0.distcp", len(data), len(item)

    return edit_metadata(source, edit)


def in_metadata(folder: Path, edit: Callable[[Any], None]) -> Path:
    return edit_metadata(copy_of(PLAIN, folder, "dcp"), edit)


def of_rank(folder: Path, change: Callable[[bytes], bytes], kind: str = "torch-2.15.0/mesh.sharded") -> Path:
    for rank in (0, 1):
        data = (DATA / f"{kind}_rank{rank}.pt").read_bytes()
        (folder / f"model_rank{rank}.pt").write_bytes(with_pickle(data, change) if rank == 0 else data)
    return folder


def safetensors(folder: Path, header: bytes, data: bytes = b"") -> Path:
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


KEY = "model.blocks.0.up.weight"
PARAMS = "optimizer.param_groups.0.params"


def _set(name: str, value: Any) -> Callable[[Any], None]:
    def edit(metadata: Any) -> None:
        entry = metadata.state_dict_metadata[KEY]
        if name == "size":
            entry.size = value
        elif name == "chunk":
            entry.chunks[0].sizes = value
        elif name == "path":
            metadata.planner_data[KEY] = ("model", value)
        elif name == "both":
            entry.size = entry.chunks[0].sizes = value
            del entry.chunks[1:]
        else:
            info = metadata.storage_data[MetadataIndex(KEY, torch.Size([0, 0]))]
            setattr(info, name, value)

    return edit


def _with_length(folder: Path, length: int) -> Path:
    path = safetensors(folder, b"{}")
    path.write_bytes(struct.pack("<Q", length) + b"{}")
    return path


def _other_mesh(data: bytes) -> bytes:
    # The layout of a mesh is told by `shape`; that of one dimension of 2 ranks is a number.
    changed = re.sub(rb"(shape[^K]{0,12})K\x02", lambda m: m[1] + number(1 << 40), data)
    assert changed != data
    return changed


def _of_the_last_rank(folder: Path) -> Path:
    (folder / "model_rank9999999.pt").write_bytes((DATA / "torch-2.15.0/mesh.sharded_rank0.pt").read_bytes())
    (folder / "model_rank0.pt").write_bytes((DATA / "torch-2.15.0/mesh.sharded_rank0.pt").read_bytes())
    return folder


LONG_NAME = "n" * 4000
BOMBS: dict[str, Callable[[Path], Path]] = {
    "a pickle of 60,000 lists in each other": lambda f: one_file(f, dictionary(a=DEEP)),
    "the same as an item": lambda f: in_dcp(f, PARAMS, DEEP),
    "2**100 lists": lambda f: one_file(f, dictionary(a=doubled(100))),
    "2**100 lists as an item": lambda f: in_dcp(f, PARAMS, doubled(100)),
    "2**100 groups of parameters": lambda f: in_dcp(
        f, PARAMS, doubled(100, b"](}" + text("params") + b"h%ss}" + text("params") + b"h%sse")
    ),
    "a list that holds itself": lambda f: one_file(f, dictionary(a=b"]q\x00h\x00a")),
    "a list of itself as an item": lambda f: in_dcp(f, PARAMS, b"]q\x00h\x00a"),
    "groups that hold themselves": lambda f: in_dcp(f, PARAMS, b"]q\x00}" + text("params") + b"h\x00sa"),
    "a mapping that holds itself": lambda f: one_file(f, b"}q\x00" + text("a") + b"h\x00s"),
    "an object that holds itself": lambda f: one_file(
        f, dictionary(a=b"ctypes\nSimpleNamespace\n)Rq\x00}" + text("a") + b"h\x00sb")
    ),
    "names that grow with each level": lambda f: one_file(
        f,
        b"}("
        + b"".join(number(n) + b"K\x00" for n in range(9000))
        + b"uq\x000"
        + (b"}" + text(LONG_NAME) + b"q\x010(")
        + b"}h\x01" * 62
        + b"h\x00"
        + b"s" * 62
        + b"q\x021h\x02",
    ),
    "a number of 5000 digits as a name": lambda f: one_file(f, b"}" + number(HUGE) + b"K\x00s"),
    "a number of 5000 digits among names": lambda f: in_dcp(f, PARAMS, b"]" + number(HUGE) + b"a"),
    "a tensor of 2**60 elements": lambda f: one_file(
        f, dictionary(a=tensor(numbers(1 << 60), numbers(1), number(1 << 60))), **{"data/0": b"1234"}
    ),
    "a tensor of 2**60 times the same element": lambda f: one_file(
        f, dictionary(a=tensor(numbers(1 << 60), numbers(0), number(1))), **{"data/0": b"1234"}
    ),
    "a shape of 5000 digits": lambda f: one_file(
        f, dictionary(a=tensor(numbers(HUGE), numbers(1), number(1))), **{"data/0": b"1234"}
    ),
    "a storage of 5000 digits": lambda f: one_file(
        f, dictionary(a=tensor(numbers(1), numbers(1), number(HUGE))), **{"data/0": b"1234"}
    ),
    "no elements, in 2**60 rows": lambda f: one_file(
        f, dictionary(a=tensor(numbers(1 << 60, 0, 1 << 60), numbers(1, 1, 1), number(0))), **{"data/0": b""}
    ),
    "metadata of 2**60 elements": lambda f: in_metadata(f, _set("both", torch.Size([1 << 40, 1 << 20]))),
    "metadata of 10**5000 elements": lambda f: in_metadata(f, _set("both", (HUGE, 6))),
    "an offset of 5000 digits": lambda f: in_metadata(f, _set("offset", HUGE)),
    "a length of 5000 digits": lambda f: in_metadata(f, _set("length", HUGE)),
    "a path with a number of 5000 digits": lambda f: in_metadata(f, _set("path", HUGE)),
    "100,000 numbers of one hash": lambda f: one_file(
        f, dictionary(a=b"}(" + b"".join(number(n * ((1 << 61) - 1)) + b"N" for n in range(100_000)) + b"u")
    ),
    "a mesh of 2**40 ranks": lambda f: of_rank(f, _other_mesh),
    "a file of rank 9,999,999": _of_the_last_rank,
    "a header of 100,000 brackets": lambda f: safetensors(f, b'{"a":' + b"[" * 100_000),
    "a header with a number of 10,000 digits": lambda f: safetensors(
        f, b'{"a":{"dtype":"F32","shape":[' + b"9" * 10_000 + b'],"data_offsets":[0,4]}}', b"1234"
    ),
    "a header of 2**62 by 2**62 elements": lambda f: safetensors(
        f, json.dumps({"a": {"dtype": "F32", "shape": [1 << 62] * 60, "data_offsets": [0, 4]}}).encode()
    ),
    "a header that says 2**63": lambda f: _with_length(f, (1 << 63) - 1),
}


def main() -> None:
    """Read every bomb in every way, and say of each on a line of its own what came of it.

    The outcome, and the megabytes that it took at its peak.
    """
    folder = Path(sys.argv[1])
    actions: dict[str, Callable[[Path], object]] = {
        "check": check_checkpoint,
        "convert": lambda source: convert_checkpoint(source, folder / "out", world_size=2),
        "verify": lambda source: verify_checkpoints(source, source),
    }
    convert_checkpoint(PLAIN, folder / "first", world_size=2, dtype="bf16")
    for number, (name, make) in enumerate(BOMBS.items()):
        (folder / str(number)).mkdir()
        source = make(folder / str(number))
        for what, action in actions.items():
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
            before = _megabytes("VmRSS")
            try:
                action(source)
                outcome = "done"
            except FSDPMigrateError as error:
                outcome = "refused" if len(str(error)) < 5000 else "refused at length"
            line = f"{name}|{what}|{outcome}|{_megabytes('VmHWM') - before}\n"
            sys.stdout.write(line)
            sys.stdout.flush()
            shutil.rmtree(folder / "out", ignore_errors=True)


def _megabytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) // 1024


if __name__ == "__main__":
    main()
