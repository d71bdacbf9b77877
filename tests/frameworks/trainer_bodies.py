"""Ranks on which Hugging Face's Trainer says what its methods and callbacks are given, by FSDP1 and FSDP2."""

from __future__ import annotations

import os
import warnings
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from accelerate.state import DistributedType, PartialState
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from fsdp_migrate.source.python.trainer_models import (
    GIVEN_SHARDED,
    MAKES_OPTIMIZER,
    ON_INIT,
    RUN_SHARDED,
)


Seen = dict[str, str]
MAKES_BEFORE = ("__init__", MAKES_OPTIMIZER)
"""Methods that make lists of parameters before FSDP2 shards."""
BEFORE = ("__init__", "get_train_dataloader", "_get_train_sampler", "_wrap_model")
CALLED = ("on_step_end", "on_save", "on_log", "on_evaluate", "on_train_begin", "on_train_end", ON_INIT)


class _StopError(Exception):
    """Ends the run of FSDP1 before it saves: on the CPU its full states end the process."""


def what(model: Any) -> str:
    """Return by which FSDP a model is sharded, and how many dimensions its first parameter has."""
    by = "1" if isinstance(model, FullyShardedDataParallel) else "2" if isinstance(model, FSDPModule) else "0"
    return f"{by}:{next(model.parameters()).ndim}"


def watch(version: int, folder: str) -> Seen:
    """Train two steps, and return what was seen in each method."""
    warnings.simplefilter("ignore")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), ACCELERATE_USE_CPU="true")
    several = mock.Mock(return_value=("gloo", DistributedType.MULTI_GPU))
    seen: Seen = {}
    with (
        mock.patch.object(PartialState, "_prepare_backend", several),
        mock.patch.object(PartialState, "set_device", _take_the_cpu),
    ):
        trainer = _trainer(version, folder, seen)
        try:
            trainer.train()
        except _StopError:
            assert version == 1
    return seen


def _take_the_cpu(state: Any) -> None:
    state.device = torch.device("cpu")


def _trainer(version: int, folder: str, seen: Seen) -> Trainer:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32}
    heads: dict[str, Any] = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    row = {"input_ids": torch.arange(8), "labels": torch.arange(8)}
    config = {
        "version": version,
        "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
        "cpu_ram_efficient_loading": False,
        "sync_module_states": False,
        "state_dict_type": "FULL_STATE_DICT",
    }
    arguments = TrainingArguments(
        output_dir=folder,
        fsdp="full_shard auto_wrap",
        fsdp_config=config,
        max_steps=1,
        save_steps=1,
        eval_strategy="steps",
        eval_steps=1,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
    )
    return _watching(seen, version)(
        model=LlamaForCausalLM(LlamaConfig(**sizes, **heads)),
        args=arguments,
        train_dataset=[row] * 4,
        eval_dataset=[row] * 2,
        callbacks=[_callback(seen)],
    )


def _watching(seen: Seen, version: int) -> type[Trainer]:
    kept: dict[str, list[torch.nn.Parameter]] = {}

    def watched(name: str) -> Any:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            given = args[0] if args and isinstance(args[0], torch.nn.Module) else None
            if hasattr(self, "model") and name != "__init__":
                _note_self(seen, kept, name, self.model)
            if given is not None:
                seen.setdefault(f"{name} model", what(given))
            if name == "_save_checkpoint":
                if version == 1:
                    raise _StopError
                value = next(iter(self.model.state_dict().values()))
                seen["state"] = "DTensor" if isinstance(value, DTensor) else "plain"
            if name == "_save":
                seen["saved"] = "given" if kwargs.get("state_dict") is not None else "asked"
            result = getattr(Trainer, name)(self, *args, **kwargs)
            if name == "__init__":
                seen["__init__ self"] = what(self.model)
                kept[name] = list(self.model.parameters())
            return result

        return method

    names = {*RUN_SHARDED, *GIVEN_SHARDED, MAKES_OPTIMIZER, *BEFORE}
    there = {name for name in names if hasattr(Trainer, name)}
    return type("Watching", (Trainer,), {name: watched(name) for name in there})


def _note_self(
    seen: Seen, kept: dict[str, list[torch.nn.Parameter]], name: str, model: torch.nn.Module
) -> None:
    seen.setdefault(f"{name} self", what(model))
    if name == MAKES_OPTIMIZER:
        kept[name] = list(model.parameters())
    if name != "training_step":
        return
    own = {id(each) for each in model.parameters()}
    for when, before in kept.items():
        seen[f"kept {when}"] = str(all(id(each) in own for each in before))


def _callback(seen: Seen) -> TrainerCallback:
    def watched(name: str) -> Any:
        def method(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            del self, args, state, control
            seen.setdefault(name, what(kwargs["model"]))

        return method

    made: TrainerCallback = type("Seeing", (TrainerCallback,), {name: watched(name) for name in CALLED})()
    return made
