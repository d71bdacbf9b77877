"""Trains a draw under FSDP1 and prepared, and tells how far the two are apart."""

from __future__ import annotations

import faulthandler
import json
import math
import traceback
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.sharding.prepare import prepare_fully_shard, shard_plan
from tests.fuzz.arguments import arguments_of, device_of_runs, optimizer_of, train_on
from tests.fuzz.draws import Draw, parse
from tests.fuzz.models import Net, freeze
from tests.fuzz.training import Prepared, Run, Tensors, UnderFSDP1, worst
from tests.fuzz.unsharded import from_unsharded
from tests.fuzz.verdicts import explanations, twin_of


if TYPE_CHECKING:
    from collections.abc import Callable


LIMIT_OF_A_DRAW = 60.0
"""Seconds; one takes about half a second on a quiet core."""


@dataclass
class Report:
    """What one rank says of a draw: how far the runs are apart; 0 is bit for bit, nan is not there.

    ``fsdp1`` and ``ours`` are the errors, if any, and ``is_ours_known`` whether it is one of our own.
    ``unsharded`` and ``twin`` are how far ours is from the run without sharding, and from FSDP1's of another
    draw, where the verdict asks for these.
    """

    fsdp1: str = ""
    ours: str = ""
    is_ours_known: bool = False
    distances: dict[str, float] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)
    codes: list[str] = field(default_factory=list)
    unsharded: dict[str, float] = field(default_factory=dict)
    twin: dict[str, float] = field(default_factory=dict)


def run_all(texts: list[str], folder: str, limit: float = LIMIT_OF_A_DRAW, device: str = "cpu") -> None:
    """Train each draw under both, and write a line before and after it, so that a hang tells its draw."""
    warnings.simplefilter("ignore")
    train_on(device)
    with (Path(folder) / f"rank-{dist.get_rank()}").open("a") as file:

        def say(words: object) -> None:
            file.write(json.dumps(words) + "\n")
            file.flush()

        for text in texts:
            faulthandler.dump_traceback_later(limit, exit=True, file=2)
            say(asdict(run_both(parse(text), say)))
    faulthandler.dump_traceback_later(limit, exit=True, file=2)  # for the barrier at the end


def run_both(drawn: Draw, say: Callable[[object], None]) -> Report:
    """Train a draw under FSDP1, and prepared if FSDP1 could, and compare; where asked, by a third run too."""
    report = Report()
    runs = []
    for name, train in (("fsdp1", train_fsdp1), ("ours", train_ours)):
        say(name)
        try:
            runs.append(train(drawn))
        except Exception as error:
            words = f"{type(error).__name__}: {error}"[:600]
            if not isinstance(error, FSDPMigrateError):
                words += "\n" + "".join(traceback.format_tb(error.__traceback__)[-4:])
            setattr(report, name, words)
            report.is_ours_known = name == "ours" and isinstance(error, FSDPMigrateError)
            return report
    expected, found = runs
    report.codes = found.codes
    report.distances = _compare(expected, found, report.where)
    if not _is_any(any(report.distances.values())):
        return report
    if found.steps:
        say("unsharded")
        report.unsharded = from_unsharded(drawn, found)
    if twin := twin_of(drawn):
        say("twin")
        report.twin = _compare(train_fsdp1(twin), found, {})
    return report


def _is_any(flag: bool) -> bool:
    """Tell whether it is so on any rank."""
    flags = torch.tensor(float(flag))
    dist.all_reduce(flags)
    return bool(flags)


def _compare(expected: Run, found: Run, where: dict[str, str]) -> dict[str, float]:
    """Return how far two runs are apart, and note the names of the tensors that are."""
    distances = {"losses": apart_in_numbers(expected.losses, found.losses)}
    for what in ("gradients", "parameters", "buffers", "states"):
        distance, name = apart_in_tensors(getattr(expected, what), getattr(found, what))
        distances[what] = distance
        if name:
            where[what] = name
    return distances


def apart_in_numbers(expected: list[float], found: list[float]) -> float:
    """Return how far numbers are apart at most; nan if one is missing, or no number in one list only."""
    if len(expected) != len(found):
        return math.nan
    return worst(
        0.0 if one == other or (math.isnan(one) and math.isnan(other)) else abs(one - other)
        for one, other in zip(expected, found, strict=True)
    )


def apart_in_tensors(expected: Tensors, found: Tensors) -> tuple[float, str]:
    """Return how far tensors are apart at most, and the name of the one that is.

    It is nan if one is missing, is of another shape or dtype, or is no number where the other one is.
    """
    if missing := sorted(expected.keys() ^ found.keys()):
        return math.nan, f"only in {'FSDP1' if missing[0] in expected else 'ours'}: {missing[0]}"
    distances: dict[str, float] = {}
    for name, one in expected.items():
        other = found[name].to(one.device)  # what is offloaded may be given on either
        if one.shape != other.shape or one.dtype != other.dtype:
            words = f"{name}: {one.dtype} {list(one.shape)} / {other.dtype} {list(other.shape)}"
            return math.nan, words
        apart = (one != other) & ~(one.isnan() & other.isnan())
        if apart.any():
            distances[name] = (one[apart].double() - other[apart].double()).abs().max().item()
    where = max(
        distances, key=lambda name: math.inf if math.isnan(distances[name]) else distances[name], default=""
    )
    return worst(distances.values()), where


def train_fsdp1(drawn: Draw) -> Run:
    """Train under FSDP1; return what there is to compare."""
    torch.manual_seed(drawn.number)
    net = Net(drawn).to(device_of_runs())
    freeze(net, drawn)
    arguments = arguments_of(drawn, net)
    if device_of_runs().type == "cpu":
        arguments.pop("cpu_offload")  # FSDP1 itself needs a GPU for it, and what it computes is the same
    model = FSDP(net, **arguments)
    return UnderFSDP1(drawn, net, model, optimizer_of(model, drawn)).run()


def train_ours(drawn: Draw) -> Run:
    """Train prepared; return what there is to compare."""
    torch.manual_seed(drawn.number)
    net = Net(drawn).to(device_of_runs())
    freeze(net, drawn)
    optimizer = optimizer_of(net, drawn) if drawn.built == "before" else None
    model = prepare_fully_shard(net, arguments_of(drawn, net), optimizers=[optimizer] if optimizer else [])
    codes = [each.code for each in shard_plan(model).findings]
    training = Prepared(drawn, net, model, optimizer or optimizer_of(model, drawn))
    training.notes_steps = bool(explanations(drawn, codes))
    run = training.run()
    run.codes = codes
    return run
