"""Checkpoints that real FSDP1 ranks saved each for itself: made once per session, and what is in them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import torch

from fsdp_migrate.checkpoint_convert import SourceOptions
from fsdp_migrate.sharding.outlines import outline_model
from tests.rank_bodies.sources import RankNet, load_fsdp2
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


Flat = dict[str, Any]


POLICY = {"auto_wrap_policy": "Block"}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "plain": {**POLICY, "use_orig_params": True},
    "flat": POLICY,
    "mixed": {**POLICY, "use_orig_params": True, "mixed_precision": {"param_dtype": "bf16"}},
    "mesh": {**POLICY, "use_orig_params": True},
}


def flat_options(kind: str, **changes: Any) -> SourceOptions:
    """Return the model and the FSDP1 arguments of a kind of run."""
    return SourceOptions(model=outline_model(RankNet(), {**ARGUMENTS[kind], **changes}))


class RankSources:
    """The folder of each kind, and everything that the run held, whole, by name."""

    def __init__(self, folder: Path, expected: dict[str, Flat]) -> None:
        self.folder = folder
        self.expected = expected

    def copy(self, kind: str, pattern: str, folder: Path, *, name: str | None = None) -> Path:
        """Copy the files of a kind into a folder; ``name`` takes the place of what comes before the rank."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted((self.folder / kind).glob(f"{pattern}_rank*.pt")):
            rank = path.stem.rpartition("rank")[2]
            shutil.copy(path, folder / (path.name if name is None else name.replace("*", rank)))
        return folder


def assert_loads(outputs: Mapping[Path, Flat]) -> None:
    """Load outputs with torch into FSDP2 models on two ranks, and compare all bits with what is expected."""
    for loaded, (output, wanted) in zip(
        run_ranks(load_fsdp2, [str(output) for output in outputs])[0], outputs.items(), strict=True
    ):
        lr = loaded.pop("lr")
        assert lr == [1e-2], output
        assert loaded.keys() == wanted.keys(), output
        for name, value in wanted.items():
            assert torch.equal(loaded[name], value), (output, name)
            assert loaded[name].dtype == value.dtype, (output, name)
