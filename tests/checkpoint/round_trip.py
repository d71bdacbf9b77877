"""Save a random state by torch, convert it, load the result by torch, and hold it against the state.

python -m tests.checkpoint.round_trip 5000          # so many draws, from 0 on
python -m tests.checkpoint.round_trip 1 --first 17  # one of them
"""

from __future__ import annotations

import argparse
import collections
import decimal
import io
import math
import random
import shutil
import sys
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn.parameter import is_lazy

from fsdp_migrate.checkpoint_convert import (
    OutputOptions,
    SourceOptions,
    convert_checkpoint,
    verify_checkpoints,
)
from fsdp_migrate.checkpoint_convert.targets.frameworks import TARGETS
from fsdp_migrate.errors import FSDPMigrateError
from tests.checkpoint.round_trip_states import FLOATS, Drawer
from tests.checkpoint.samples import load_with_torch, save_with_torch


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


CASTS: Final = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# What a finding may say of a difference, by the kind of it.
SAID: Final = {
    "a container of another type": {"FM286"},
    "a key that became text": {"FM275"},
    "an empty mapping that is gone": {"FM274"},
    "a list without its empty mappings": {"FM274"},
}


@dataclass(frozen=True)
class Draw:
    """One draw: how the state is made, and what is asked of the conversion."""

    seed: int
    way: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def target(self) -> str:
        return str(self.options.get("to", "torch"))


def draw(seed: int, ranks: int = 1) -> Draw:
    """Return the draw of a number."""
    chance = random.Random(f"options {seed}")
    way = "ranks" if ranks > 1 else chance.choice(("file", "file", "file", "folder", "legacy"))
    options: dict[str, Any] = {}
    choices: dict[str, Callable[[], Any]] = {
        "to": lambda: chance.choice(tuple(TARGETS)),
        "world_size": lambda: chance.choice((1, 2, 3)),
        "dtype": lambda: chance.choice(tuple(CASTS)),
        "link": lambda: "copy",
        "checksums": lambda: True,
        "buffer_bytes": lambda: chance.choice((1, 100, 1 << 20)),
        "weights_only": lambda: True,
        "options": lambda: SourceOptions(trust_pickle=True),
    }
    for name, choose in choices.items():
        if chance.random() < 0.22:
            options[name] = choose()
    options["output_options"] = OutputOptions(
        optimizer_class="AdamW",
        max_shard_size=chance.choice((99, 10**9)),
        state_dict_type=chance.choice(("auto", "full")),
    )
    return Draw(seed, way, options)


def state_of(seed: int) -> dict[str, Any]:
    """Return the state of a draw; the same wherever it is made."""
    torch.manual_seed(seed)
    chance = random.Random(f"state {seed}")
    return Drawer(chance, wild=chance.random() < 0.3).state()


def save(drawn: Draw, folder: Path) -> Path | None:
    """Save the state of a draw in this process, as torch does; None where torch itself does not take it."""
    state = state_of(drawn.seed)
    data = io.BytesIO()
    try:
        torch.save(state, data, _use_new_zipfile_serialization=drawn.way != "legacy")
        data.seek(0)
        torch.load(data, weights_only=False)
        save_with_torch(state, folder / "source")
    except BaseException:  # of any kind: classes that cannot be pickled; CheckpointException
        return None
    if not loads(folder / "source"):
        return None
    if drawn.way == "folder":
        return folder / "source"
    (folder / "source.pt").write_bytes(data.getvalue())
    return folder / "source.pt"


def loads(folder: Path) -> bool:
    """Tell whether torch loads a checkpoint of its own: not where lists have empty mappings in them."""
    try:
        load_with_torch(folder)
    except BaseException:  # torch's CheckpointException is no Exception
        return False
    return True


def round_trip(drawn: Draw, source: Path, folder: Path) -> str:
    """Convert and load what was saved; return ``"equal"``, ``"refused"``, or what is wrong."""
    out = folder / "out"
    try:
        report = convert_checkpoint(source, out, **drawn.options)
    except FSDPMigrateError as error:
        return "refused" if "is a bug" not in str(error) else str(error)
    told = {finding.code for finding in report.findings}
    try:
        loaded = load(out, drawn.target)
    except BaseException as error:  # torch's CheckpointException is no Exception
        last = str(error).strip().rpartition("\n")[2]
        return f"torch cannot load it: {type(error).__name__}: {last}"
    if drawn.target == "torch":
        # What torch itself made of a state when it saved it is no matter of ours.
        whole = load_with_torch(source) if source.is_dir() else torch.load(source, weights_only=False)
        wanted = {"model": whole["model"]} if drawn.options.get("weights_only") else whole
        for kind, where in differences(loaded, wanted, ()):
            if not SAID.get(kind, set()) & told and not _is_cast(where, kind, drawn):
                return f"{'.'.join(map(str, where))}: {kind}"
    given = {name: drawn.options[name] for name in ("dtype", "weights_only") if name in drawn.options}
    compared = verify_checkpoints(source, out, **given)
    if compared.is_same:
        return "equal"
    # What is relinked torch can read, and nothing here can.
    message = compared.differences[0].message
    return "refused" if " conj view" in message else f"verify: {compared.differences[0]}"


def load(out: Path, target: str) -> dict[str, Any]:
    """Load all that torch, or whoever loads the target, would unpickle."""
    found: dict[str, Any] = {}
    folders = [path.parent for path in sorted(out.rglob(".metadata"))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for folder in folders:
            found.update(load_with_torch(folder))
        for file in sorted(out.rglob("*")):
            if file.suffix in (".pt", ".bin", ".pkl"):
                torch.load(file, weights_only=False)
    if target == "hf":
        for file in out.glob("*.safetensors"):
            found.update(load_file(file))
    return found


def _is_cast(where: tuple[Any, ...], kind: str, drawn: Draw) -> bool:
    """Tell whether a tensor differs because a cast was asked for: of the model, and of what can be cast."""
    return kind == "a cast tensor" and "dtype" in drawn.options and where[0] == "model"


def differences(found: Any, wanted: Any, where: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield how what was loaded differs from what was saved, as a distributed checkpoint flattens it."""
    if not isinstance(wanted, dict) and not (type(wanted) is list and _is_walked(wanted)):
        if not same(found, wanted):
            yield _kind_of_leaf(found, wanted), where
        return
    if isinstance(wanted, list):
        if type(found) is not list or len(found) != len(wanted):
            is_empty = any(map(_is_empty, wanted))
            yield ("a list without its empty mappings" if is_empty else "a list of another length"), where
            return
        for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
            yield from differences(one, other, (*where, number))
        return
    if type(wanted) not in (dict, collections.OrderedDict):
        yield "a container of another type", where
    for key, value in wanted.items():
        if type(key) is not str and not _is_empty(value):
            yield "a key that became text", (*where, key)
        if not isinstance(found, dict) or str(key) not in found:
            is_empty = _is_empty(value)
            yield ("an empty mapping that is gone" if is_empty else "is missing"), (*where, key)
            continue
        yield from differences(found[str(key)], value, (*where, key))


def _is_empty(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_empty, value.values()))
    return isinstance(value, list) and all(map(_is_empty, value))


def _is_walked(value: Any) -> bool:
    if isinstance(value, dict | torch.Tensor):
        return True
    return isinstance(value, list) and any(_is_walked(item) for item in value)


def _kind_of_leaf(found: Any, wanted: Any) -> str:
    if isinstance(found, torch.Tensor) and isinstance(wanted, torch.Tensor) and found.dtype != wanted.dtype:
        cast = wanted.detach().to(found.dtype)
        if cast.is_floating_point() and found.is_floating_point() and cast.shape == found.shape:
            # Of a NaN torch's own casts keep other bits here and there: by how many elements follow it.
            cast = torch.where(cast.isnan() & found.isnan(), found, cast)
        if wanted.dtype in FLOATS and same(found, cast):
            return "a cast tensor"
    return f"{_show(found)} instead of {_show(wanted)}"


def _show(value: Any) -> str:
    return f"{type(value).__name__} {value!r}"[:120]


def same(found: Any, wanted: Any) -> bool:
    """Tell whether two values are the same, types and bits included."""
    if isinstance(found, torch.Tensor) and isinstance(wanted, torch.Tensor):
        return _same_tensors(found, wanted)
    if type(found) is not type(wanted):
        return False
    if isinstance(wanted, dict):
        pairs = zip(found.items(), wanted.items(), strict=False)
        extra = getattr(found, "default_factory", None) is getattr(wanted, "default_factory", None)
        return len(found) == len(wanted) and extra and all(same(a, b) for a, b in pairs)
    if isinstance(wanted, list | tuple | collections.deque):
        is_as_long = len(found) == len(wanted) and getattr(found, "maxlen", 0) == getattr(wanted, "maxlen", 0)
        return is_as_long and all(map(same, found, wanted))
    if isinstance(wanted, set | frozenset):
        return len(found) == len(wanted) and all(any(same(a, b) for a in found) for b in wanted)
    return _same_leaves(found, wanted)


def _same_leaves(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, float | complex | decimal.Decimal):
        return repr(found) == repr(wanted)
    if isinstance(wanted, np.ndarray | np.generic):
        is_object = wanted.dtype.hasobject
        content = found.tolist() == wanted.tolist() if is_object else found.tobytes() == wanted.tobytes()
        return bool(found.dtype == wanted.dtype and found.shape == wanted.shape and content)
    if isinstance(wanted, np.random.Generator):
        return same(found.bit_generator.state, wanted.bit_generator.state)
    if isinstance(getattr(wanted, "__dict__", None), dict):
        return same(found.__dict__, wanted.__dict__)
    compares = any("__eq__" in vars(kind) for kind in type(wanted).__mro__[:-1])
    return bool(found == wanted if compares else repr(found) == repr(wanted))


def _same_tensors(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    if is_lazy(wanted):
        return is_lazy(found) and found.dtype == wanted.dtype
    if (found.dtype, found.shape, found.layout) != (wanted.dtype, wanted.shape, wanted.layout):
        return False
    return bool(_bits(found) == _bits(wanted))


def _bits(tensor: torch.Tensor) -> Any:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        return repr(tensor)
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    storage = plain.untyped_storage()
    start = plain.storage_offset() * plain.element_size()
    return bytes(storage)[start : start + math.prod(plain.shape) * plain.element_size()]


def main() -> int:
    """Do draws in this process, and say what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    results: collections.Counter[str] = collections.Counter()
    for seed in range(given.first, given.first + given.count):
        drawn = draw(seed)
        folder = Path(tempfile.mkdtemp(prefix="round-trip-"))
        try:
            saved = save(drawn, folder)
            result = "not taken by torch" if saved is None else round_trip(drawn, saved, folder)
        except Exception as error:  # a conversion that fails in any other way
            result = f"{type(error).__name__}: {error}"
        finally:
            shutil.rmtree(folder)
        is_wrong = result not in ("equal", "refused", "not taken by torch")
        results["wrong" if is_wrong else result] += 1
        if is_wrong:
            sys.stdout.write(f"{seed} {drawn.way} {drawn.options}: {result[:500]}\n")
    sys.stdout.write(f"{dict(results)}\n")
    return 1 if results["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
