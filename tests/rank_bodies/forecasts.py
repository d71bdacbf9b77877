"""What real runs take of the CPU's memory, as torch's profiler sees it, to hold forecasts against."""

from __future__ import annotations

import bisect
import itertools
import json
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.profiler import ProfilerActivity, profile, record_function

from fsdp_migrate import prepare_fully_shard
from fsdp_migrate.activation_checkpointing import apply_activation_checkpointing
from fsdp_migrate.config import FSDP1Config
from fsdp_migrate.forecast import forecast_memory
from fsdp_migrate.forecast.optimizers import named_optimizer
from fsdp_migrate.forecast.rehearsal import train
from fsdp_migrate.parity.batches import default_loss
from fsdp_migrate.parity.fsdp1 import fsdp1_arguments, settle_config


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


VOCABULARY, WIDTH, HEADS = 512, 128, 4
_PATIENCE = 0.002  # seconds
_MARK = "the last step begins"


class Layer(nn.Module):
    """A layer of a decoder: attention, and a network of two matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH + 1), nn.Linear(4 * WIDTH + 1, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        shape = (rows, length, HEADS, WIDTH // HEADS)
        q, k, v = (part.reshape(shape).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, dim=-1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(rows, length, WIDTH))
        out: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.second_norm(x))))
        return out


class Decoder(nn.Module):
    """A small language model, large enough that what is not a tensor of it does not count."""

    def __init__(self, layers: int = 4, *, tied: bool = False, frozen: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        if frozen:
            self.embed.requires_grad_(False)
            self.layers[:2].requires_grad_(False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        out: torch.Tensor = self.head(self.norm(x))
        return out


def network() -> nn.Module:
    """Return a network without attention, whose parameters outweigh what it computes."""
    sides = [300, 700, 700, 700, 20]
    layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in itertools.pairwise(sides)]
    return nn.Sequential(*layers)


def llama() -> nn.Module:
    """Return a small model of transformers, with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=3,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
    )
    return LlamaForCausalLM(config)


def batch_of(model: str) -> Any:
    """Return a batch for a model."""
    generator = torch.Generator().manual_seed(0)
    if model == "network":
        return torch.randn(64, 300, generator=generator)
    tokens = torch.randint(0, VOCABULARY, (4, 64), generator=generator)
    return {"input_ids": tokens, "labels": tokens.clone()} if model == "llama" else tokens


MODELS: dict[str, Callable[[], nn.Module]] = {
    "decoder": Decoder,
    "tied decoder": partial(Decoder, tied=True),
    "frozen decoder": partial(Decoder, frozen=True),
    "network": network,
    "llama": llama,
}


def adamw_at_once(model: nn.Module) -> torch.optim.Optimizer:
    """Return AdamW that steps all parameters at once, as it does by itself on a GPU."""
    return torch.optim.AdamW(model.parameters(), foreach=True)


BF16 = {"param_dtype": "bf16", "reduce_dtype": "fp32"}
_UNITS = {"network": "Sequential", "llama": "LlamaDecoderLayer"}


@dataclass(frozen=True)
class Case:
    """A way to train a model."""

    model: str = "decoder"
    arguments: dict[str, Any] = field(default_factory=dict)
    optimizer: str | Callable[[nn.Module], torch.optim.Optimizer] = "adamw"
    accumulate: int = 1
    recomputed: Any = None
    ranks: int = 2

    @property
    def config(self) -> FSDP1Config:
        policy = {"auto_wrap_policy": _UNITS.get(self.model, "Layer"), "use_orig_params": True}
        return FSDP1Config(**{**policy, **self.arguments, "device_id": "cpu"})


def _strategy(name: str, **more: Any) -> dict[str, Any]:
    return {"sharding_strategy": name, **more}


CASES: dict[str, Case] = {
    "FULL_SHARD": Case(),
    "SHARD_GRAD_OP": Case(arguments=_strategy("SHARD_GRAD_OP")),
    "HYBRID_SHARD 2 x 2": Case(arguments=_strategy("HYBRID_SHARD"), ranks=4),
    "_HYBRID_SHARD_ZERO2 2 x 2": Case(arguments=_strategy("_HYBRID_SHARD_ZERO2"), ranks=4),
    "HYBRID_SHARD 1 x 2": Case(arguments=_strategy("HYBRID_SHARD")),
    "NO_SHARD": Case(arguments=_strategy("NO_SHARD")),
    "4 ranks, one unit": Case(arguments={"auto_wrap_policy": None}, ranks=4),
    "bf16": Case(arguments={"mixed_precision": BF16}),
    "bf16, SHARD_GRAD_OP": Case(
        arguments=_strategy("SHARD_GRAD_OP", mixed_precision={"param_dtype": "bf16"})
    ),
    "accumulation": Case(accumulate=3),
    "accumulation, bf16": Case(accumulate=2, arguments={"mixed_precision": BF16}),
    "accumulation, SHARD_GRAD_OP": Case(accumulate=2, arguments=_strategy("SHARD_GRAD_OP")),
    "recomputed": Case(recomputed="Layer"),
    "recomputed, bf16": Case(recomputed="Layer", arguments={"mixed_precision": BF16}),
    "tied": Case("tied decoder"),
    "frozen": Case("frozen decoder"),
    "flat parameters": Case(arguments={"use_orig_params": False}),
    "no prefetch": Case(arguments={"backward_prefetch": None}),
    "SGD": Case("network", optimizer="sgd"),
    "SGD with momentum": Case("network", optimizer="sgd-momentum"),
    "Adam, NO_SHARD, accumulation": Case("network", _strategy("NO_SHARD"), optimizer="adam", accumulate=2),
    "AdamW at once": Case("network", optimizer=adamw_at_once),
    "llama": Case("llama"),
    "llama, bf16, recomputed, SGD with momentum": Case(
        "llama", {"mixed_precision": BF16}, optimizer="sgd-momentum", recomputed="LlamaDecoderLayer"
    ),
}


def foretell(name: str) -> Any:
    """Return the forecast of a case."""
    case = CASES[name]
    with torch.device("meta"):
        model = MODELS[case.model]()
    return forecast_memory(
        model,
        case.config,
        world_size=case.ranks,
        devices_per_node=2,
        batches=[batch_of(case.model)] * case.accumulate,
        optimizer=case.optimizer,
        accumulate=case.accumulate,
        activation_checkpointing=case.recomputed,
        device="cpu",
    )


def measure(name: str, which: str) -> dict[str, int]:
    """Train a case for two steps; return the most that this rank held in the last one, and what at rest."""
    case = CASES[name]
    activities, batches = [ProfilerActivity.CPU], [batch_of(case.model)] * case.accumulate
    with profile(activities=activities, profile_memory=True) as profiled:
        torch.manual_seed(0)
        model = MODELS[case.model]()
        config, _ = settle_config(case.config, torch.device("cpu"))
        if which == "FSDP2":
            prepare_fully_shard(model, config, activation_checkpointing=case.recomputed)
        else:
            if case.recomputed:
                apply_activation_checkpointing(model, case.recomputed)
            arguments, _ = fsdp1_arguments(config, model, torch.device("cpu"))
            model = FSDP(model, **arguments)
        chosen = case.optimizer
        optimizer = (named_optimizer(chosen) if isinstance(chosen, str) else chosen)(model)
        with _gloo_lets_go():
            train(model, optimizer, batches, default_loss)
            with record_function(_MARK):
                pass
            train(model, optimizer, batches, default_loss)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(file))
        return _peak(json.loads(file.read_text())["traceEvents"])


@contextmanager
def _gloo_lets_go() -> Iterator[None]:
    """Let gloo's threads drop tensors before the run does: what they free last the profiler does not see."""
    names = ["all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"]
    names += ["all_gather_single", "reduce_scatter_single"]
    originals = {name: getattr(dist, name) for name in names if hasattr(dist, name)}

    def patient(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if result is not None:
            result.wait()
        time.sleep(_PATIENCE)
        return result

    for name, original in originals.items():
        setattr(dist, name, partial(patient, original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


def _peak(events: list[dict[str, Any]]) -> dict[str, int]:
    """Add up what the allocator gave out, but to gloo itself: its copies are none of a GPU's.

    gloo makes them in its collectives and on its own threads, where the profiler does not see all frees.
    """
    mark = next(each for each in events if each.get("name") == _MARK)
    mine = [each for each in events if each.get("tid") == mark["tid"]]
    calls = [each for each in mine if str(each.get("name")).startswith("c10d::") and "dur" in each]
    spans = sorted((each["ts"], each["ts"] + each["dur"]) for each in calls)
    begins = [begin for begin, _ in spans]
    known: dict[int, int] = {}
    now = peak = 0
    memory = [each for each in events if each.get("name") == "[memory]"]
    for event in sorted(memory, key=lambda each: float(each["ts"])):
        address, nbytes, when = event["args"]["Addr"], event["args"]["Bytes"], event["ts"]
        place = bisect.bisect_right(begins, when) - 1
        of_gloo = event["tid"] != mark["tid"] or (place >= 0 and when <= spans[place][1])
        now -= known.pop(address, 0)  # freed; or given out again, after a free that was not seen
        if nbytes > 0 and not of_gloo:
            known[address] = nbytes
            now += nbytes
        if when >= mark["ts"]:
            peak = max(peak, now)
    return {"peak": peak, "at_rest": now}
