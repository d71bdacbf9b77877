"""Entries of a checkpoint that does not exist, and a manifest of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsdp_migrate.checkpoint_convert.manifest.classify import find_parts
from fsdp_migrate.checkpoint_convert.manifest.keys import join_path
from fsdp_migrate.checkpoint_convert.manifest.manifest import (
    BytesEntry,
    Chunk,
    Entry,
    Manifest,
    Stored,
    TensorEntry,
)


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert.manifest.keys import Path
    from fsdp_migrate.checkpoint_convert.manifest.manifest import Entry


PLACE = Stored("__0_0.distcp", 0, 1000)


def tensor(*path: str | int, dtype: str = "float32", shape: tuple[int, ...] = (4, 2)) -> TensorEntry:
    offsets = (0,) * len(shape)
    return TensorEntry(join_path(path), path, dtype, shape, (Chunk(offsets, shape, PLACE),))


def value(*path: str | int) -> BytesEntry:
    return BytesEntry(join_path(path), path, PLACE)


def model(*prefix: str, wrap: str = "") -> list[Entry]:
    return [tensor(*prefix, f"{wrap}a.weight"), tensor(*prefix, f"{wrap}a.bias", shape=(4,))]


def optimizer(*prefix: str, wrap: str = "") -> list[Entry]:
    return [
        tensor(*prefix, "state", f"{wrap}a.weight", "exp_avg"),
        tensor(*prefix, "state", f"{wrap}a.weight", "step", shape=()),
        value(*prefix, "param_groups", 0, "lr"),
        value(*prefix, "param_groups", 0, "params"),
    ]


def manifest(entries: list[Entry], **fields: Any) -> Manifest:
    found = {entry.key: entry for entry in entries}
    known: dict[str, Any] = {
        "source": "/ckpt",
        "layout": "dcp",
        "framework": "torch",
        "evidence": "",
        "entries": found,
        "files": {"__0_0.distcp": 10_000},
        "extra_files": {},
        "parts": find_parts(found),
    }
    return Manifest(**{**known, **fields})


def flattened(*prefix: str) -> list[Entry]:
    return [
        tensor(*prefix, "state.a.weight.exp_avg"),
        value(*prefix, "param_groups.a.weight.lr"),
    ]


CASES: dict[str, tuple[list[Entry], set[tuple[str, Path]]]] = {
    "get_state_dict": (
        [*model("model"), *optimizer("optim")],
        {("model", ("model",)), ("optimizer", ("optim",))},
    ),
    "names of the user's own": (
        [*model("net_a"), *optimizer("adam")],
        {("model", ("net_a",)), ("optimizer", ("adam",))},
    ),
    "a Stateful": (
        [*model("app", "model"), *optimizer("app", "optim")],
        {("model", ("app", "model")), ("optimizer", ("app", "optim"))},
    ),
    "flattened optimizer": (
        [*model("model"), *flattened("optimizer")],
        {("model", ("model",)), ("optimizer", ("optimizer",))},
    ),
    "whole parameter groups": (
        [*model("model"), tensor("o", "state", "a.weight", "exp_avg"), value("o", "param_groups")],
        {("model", ("model",)), ("optimizer", ("o",))},
    ),
    "Composer": (
        [
            *model("state", "model"),
            *optimizer("state", "optimizers", "AdamW"),
            value("state", "timestamp", "Timestamp", "epoch"),
            value("state", "run_name"),
            tensor("rng", 0, "torch", dtype="uint8"),
        ],
        {
            ("model", ("state", "model")),
            ("optimizer", ("state", "optimizers", "AdamW")),
            ("other", ("state", "timestamp")),
            ("other", ("state",)),
            ("other", ("rng",)),
        },
    ),
    "Composer before torch 2.3": (
        [*model("state", "model"), *optimizer("optimizers", "AdamW"), value("state", "run_name")],
        {
            ("model", ("state", "model")),
            ("optimizer", ("optimizers", "AdamW")),
            ("other", ("state",)),
        },
    ),
    "Lightning": (
        [*model("state_dict"), *optimizer("optimizer_0")],
        {("model", ("state_dict",)), ("optimizer", ("optimizer_0",))},
    ),
    "torchtitan": (
        [*model(), *optimizer("optimizer"), value("train_state"), value("lr_scheduler", "x")],
        {
            ("model", ()),
            ("optimizer", ("optimizer",)),
            ("other", ("train_state",)),
            ("other", ("lr_scheduler",)),
        },
    ),
    "a bare state dict": (model(), {("model", ())}),
    "Accelerate's model folder": (model("model"), {("model", ("model",))}),
    "Accelerate's optimizer folder": (optimizer("optimizer"), {("optimizer", ("optimizer",))}),
    "a copy of the weights": (
        [*model("model"), *model("ema"), *optimizer("optim")],
        {("model", ("model",)), ("other", ("ema",)), ("optimizer", ("optim",))},
    ),
    "state without groups": (
        [*model("model"), tensor("optim", "state", "a.weight", "exp_avg")],
        {("model", ("model",)), ("optimizer", ("optim",))},
    ),
    "a model called state": (
        [tensor("model", "state.a.weight"), *optimizer("optim")],
        {("model", ("model",)), ("optimizer", ("optim",))},
    ),
    "extra state": (
        [*model("model"), value("model", "fp8._extra_state", "amax"), *optimizer("optim")],
        {("model", ("model",)), ("optimizer", ("optim",))},
    ),
    "a dict called model that is none": (
        [value("extra", "model", "x", "y"), tensor("extra", "model", "x", "z")],
        {("other", ("extra",))},
    ),
    "statistics with the optimizer's words": (
        [*model("model"), tensor("metrics", "state", "loss"), value("metrics", "state", "n")],
        {("model", ("model",)), ("other", ("metrics",))},
    ),
    "wrapped names": (
        [*model("m", wrap="_orig_mod."), *optimizer("o")],
        {("model", ("m",)), ("optimizer", ("o",))},
    ),
}
