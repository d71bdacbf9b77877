"""What the demo's processes run, as ``python -m fsdp_migrate.demo.worker PHASE FOLDER STEPS``.

The two phases differ in three lines: how the model is sharded, and where the run starts. The second one goes
on twice: from the converted checkpoint by torch's own calls, and from FSDP1's own by ``load_checkpoint``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
from torch.nn import functional

from fsdp_migrate.demo import FSDP1_CHECKPOINT, FSDP2_CHECKPOINT
from fsdp_migrate.demo.model import (
    VOCABULARY,
    Transformer,
    fsdp1_arguments,
    make_batch,
    make_optimizer,
)
from fsdp_migrate.loading import load_checkpoint
from fsdp_migrate.runtime import end_process_group
from fsdp_migrate.sharding.prepare import prepare_fully_shard, shard_plan


def train_fsdp1(folder: Path, steps: int) -> dict[str, Any]:
    """Train under FSDP1 to the end, leaving a checkpoint half way."""
    torch.manual_seed(0)
    model = FSDP(Transformer(), **fsdp1_arguments(dist.get_world_size()))
    # As in many runs: every name in the state dict of a compiled model has `_orig_mod.` in it, and
    # FSDP2 does not find what it looks for.
    compiled: nn.Module = torch.compile(model, backend="eager")  # type: ignore[assignment]
    optimizer = make_optimizer(model)
    losses = train(compiled, optimizer, 0, steps // 2)
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state = {
            "model": compiled.state_dict(),
            "optimizer": FSDP.optim_state_dict(model, optimizer),
            "step": steps // 2,
        }
    dcp.save(state, checkpoint_id=folder / FSDP1_CHECKPOINT)
    losses |= train(compiled, optimizer, steps // 2, steps)
    save_final_state(model, optimizer, folder / "fsdp1-final.pt")
    return {"losses": losses}


def train_fsdp2(folder: Path, steps: int) -> dict[str, Any]:
    """Load the converted checkpoint under FSDP2, and train on to the end."""
    torch.manual_seed(1)  # another model than FSDP1 began with: all that matters is in the checkpoint
    model = prepare_fully_shard(Transformer(), fsdp1_arguments(dist.get_world_size()))
    optimizer = make_optimizer(model)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state, "step": 0}
    dcp.load(state, checkpoint_id=folder / FSDP2_CHECKPOINT)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    losses = train(model, optimizer, state["step"], steps)
    save_final_state(model, optimizer, folder / "fsdp2-final.pt")
    return {
        "losses": losses,
        "loaded": load_and_train(folder, steps),
        "findings": [finding.as_dict() for finding in shard_plan(model).findings],
    }


def load_and_train(folder: Path, steps: int) -> dict[int, float]:
    """The same in the one-line way: load what FSDP1 saved, as it is, and train on to the end."""
    torch.manual_seed(2)
    model = prepare_fully_shard(Transformer(), fsdp1_arguments(dist.get_world_size()))
    optimizer = make_optimizer(model)
    report = load_checkpoint(folder / FSDP1_CHECKPOINT, model, optimizer, extra={"step": 0})
    losses = train(model, optimizer, report.values["step"], steps)
    save_final_state(model, optimizer, folder / "loaded-final.pt")
    return losses


def train(model: nn.Module, optimizer: torch.optim.Optimizer, start: int, end: int) -> dict[int, float]:
    """Train from step ``start`` to ``end``; return the loss of each step, averaged over the ranks."""
    losses = {}
    for step in range(start + 1, end + 1):
        tokens, targets = make_batch(step, dist.get_rank())
        logits = model(tokens)
        loss = functional.cross_entropy(logits.view(-1, VOCABULARY), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses[step] = total.item() / dist.get_world_size()
    return losses


def save_final_state(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Save the whole model and optimizer state, gathered by torch itself, from rank 0."""
    # cpu_offload must stay off: on a CPU device torch would mix up the two moments of FSDP1's AdamW.
    options = StateDictOptions(full_state_dict=True)
    model_state, optimizer_state = get_state_dict(model, optimizer, options=options)
    if dist.get_rank() == 0:
        torch.save({"model": model_state, "optimizer": optimizer_state}, path)


@record
def main() -> None:
    """Run one phase, and leave what it measured in ``FOLDER/PHASE.json``."""
    phase, folder, steps = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    torch.compiler.set_stance("force_eager")  # tracing would take longer than all the rest
    dist.init_process_group("gloo")
    result = {"fsdp1": train_fsdp1, "fsdp2": train_fsdp2}[phase](folder, steps)
    if dist.get_rank() == 0:
        (folder / f"{phase}.json").write_text(json.dumps(result))
    end_process_group()


if __name__ == "__main__":
    main()
