"""Trains a tiny model under FSDP1 and prepared, and tells how far the two are apart."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.sharding.prepare import prepare_fully_shard, shard_plan
from tests.rank_bodies.parity import full
from tests.zoo import tiny


if TYPE_CHECKING:
    from collections.abc import Sequence


WAYS = ("fp32", "bf16", "accumulated")
STEPS = 2
LIMIT = 90.0


def run_all(names: Sequence[str], folder: str) -> None:
    """Train each architecture in each way; write a line before and after it, so that a hang tells which."""
    warnings.simplefilter("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"
    with (Path(folder) / f"rank-{dist.get_rank()}").open("a") as file:
        for name in names:
            faulthandler.dump_traceback_later(LIMIT, exit=True, file=2)
            file.write(json.dumps(name) + "\n")
            file.flush()
            report = json.dumps(run_one(name))
            file.write(report + "\n")
            file.flush()
            if "gloo" in report:
                os._exit(1)  # ranks do not stand at the same place any more
            gc.collect()
    faulthandler.dump_traceback_later(LIMIT, exit=True, file=2)


def run_one(name: str) -> dict[str, Any]:
    """Train an architecture in each way under both; return what each came to."""
    report: dict[str, Any] = {"name": name}
    try:
        made = tiny.make(name, dist.get_rank())
        made.model.train()
        tiny.loss_of(made.model(**made.inputs)).backward()  # type: ignore[no-untyped-call,unused-ignore]
    except Exception as error:  # whatever transformers raises, there is no tiny model
        report["cannot"] = f"{type(error).__name__}: {error}"[:200]
        return report
    report["class"] = type(made.model).__name__
    report["units"] = sorted(block.__name__ for block in made.blocks)
    report["ways"] = {way: _compare(name, way) for way in WAYS}
    return report


def _compare(name: str, way: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    runs = []
    for who in ("FSDP1", "ours"):
        try:
            losses, parameters, codes = train(name, way, prepared=who == "ours")
        except Exception as error:  # to be told, whatever it is
            known = isinstance(error, FSDPMigrateError)
            found["outcome"] = "refused" if known else f"{who} fails"
            found["why"] = f"{type(error).__name__}: {error}"[:300]
            return found
        found["codes"] = codes
        runs.append((losses, parameters))
    (expected, before), (losses, after) = runs
    equal = losses == expected and all(map(torch.equal, before, after))
    found["outcome"] = "equal" if equal else "differs"
    if not equal:
        apart = max(abs(one - other) for one, other in zip(expected, losses, strict=True))
        found["why"] = f"losses {apart:.2g}"
    return found


def train(name: str, way: str, *, prepared: bool) -> tuple[list[float], list[torch.Tensor], list[str]]:
    """Train; return the losses, the parameters at the end, and the codes of what is changed."""
    made = tiny.make(name, dist.get_rank())
    arguments: dict[str, Any] = {"use_orig_params": True, "device_id": torch.device("cpu")}
    if made.blocks:
        arguments["auto_wrap_policy"] = ModuleWrapPolicy(made.blocks)
    if way == "bf16":
        arguments["mixed_precision"] = MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16)
    made.model.train()
    model: Any = prepare_fully_shard(made.model, arguments) if prepared else FSDP(made.model, **arguments)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(7)  # the same on every rank: some leave out layers by chance
    losses = []
    for _ in range(STEPS):
        for _ in range(2 if way == "accumulated" else 1):
            loss = tiny.loss_of(model(**made.inputs))
            torch.autograd.backward(loss)
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    if prepared:
        codes = [each.code for each in shard_plan(model).findings if each.fidelity == "changed"]
        return losses, [full(param) for param in model.parameters()], codes
    with FSDP.summon_full_params(model):
        return losses, [param.detach().clone() for param in model.parameters()], []
