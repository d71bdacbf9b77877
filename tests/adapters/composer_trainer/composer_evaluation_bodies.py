"""A Trainer's evaluation that searches for a microbatch size, with a rank that runs out of memory."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from tests.rank_bodies.composer_training import Run, loader, make_trainer, prepare


if TYPE_CHECKING:
    from collections.abc import Callable


def evaluate(failures: dict[str, tuple[str, int, str]]) -> dict[str, Any]:
    """Evaluate in microbatches of two of four rows, once for each failure, and return what is found.

    A failure says where the last rank fails, in which call, and how; it does so with two rows only, unless
    ``how`` says ``always``.
    """
    prepare()
    trainer = make_trainer(Run(model="metric", fsdp={"state_dict_type": "sharded"}), [])
    trainer.fit()
    found = {}
    for name, failure in failures.items():
        found[name] = _evaluate(trainer, *failure)
        dist.barrier()
    trainer.close()
    return found


def _evaluate(trainer: Any, where: str, number: int, how: str) -> dict[str, Any]:
    from composer import Evaluator

    model = trainer.state.model
    evaluator = Evaluator(
        label="held", dataloader=loader(2, 4), device_eval_microbatch_size=2, metric_names=["accuracy"]
    )
    evaluator.auto_microbatching = True  # which Composer refuses on a CPU
    own = vars(evaluator.dataloader).get("split_batch")
    undo = _fail(model, where, number, how)
    try:
        metrics = {"accuracy": model.accuracy}
        trainer.state.eval_metrics["held"] = metrics
        trainer._eval_loop(evaluator=evaluator, metrics=metrics)
    except Exception:
        return {"error": traceback.format_exc()}
    finally:
        undo()
    accuracy = model.accuracy
    return {
        "accuracy": float(accuracy.compute()),
        "updates": accuracy._update_count,
        "size": evaluator.device_eval_microbatch_size,
        "is_put_back": vars(evaluator.dataloader).get("split_batch") == own
        and "eval_forward" not in vars(model),
        "sharded": all(isinstance(param, DTensor) for param in model.parameters()),
    }


def _fail(model: Any, where: str, number: int, how: str) -> Callable[[], None]:
    """Let the last rank fail, and return what makes it well again."""
    if dist.get_rank() != dist.get_world_size() - 1 or where == "nowhere":
        return lambda: None
    calls = 0

    def fail(rows: int) -> None:
        nonlocal calls
        calls += 1
        if how == "always" or (calls == number and rows == 2):
            if how == "otherwise":
                msg = "not memory"
                raise ValueError(msg)
            msg = "CUDA out of memory. Tried to allocate more."
            raise torch.OutOfMemoryError(msg)

    if where == "forward":
        handle = model.net.blocks[1].register_forward_pre_hook(lambda module, args: fail(len(args[0])))
        return cast("Callable[[], None]", handle.remove)
    original = type(model).update_metric

    def update_metric(self: Any, tokens: Any, outputs: Any, metric: Any) -> None:
        fail(len(tokens))
        original(self, tokens, outputs, metric)

    type(model).update_metric = update_metric

    def undo() -> None:
        type(model).update_metric = original

    return undo
