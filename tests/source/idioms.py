"""Sources of some size, which hold much of what training scripts do with FSDP1's models."""

from __future__ import annotations


FULL_STATES = """\
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)


def save(model, optimizer, folder, step):
    config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    optim_config = FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config, optim_config):
        weights = model.state_dict()
        state = FSDP.optim_state_dict(model, optimizer)
    is_first = dist.get_rank() == 0
    path = os.path.join(folder, f"{step}.pt")
    if is_first:
        payload = {"model": weights, "optimizer": state, "step": step}
        torch.save(payload, path)


def load(model, optimizer, path):
    payload = torch.load(path, map_location="cpu")
    config = FullStateDictConfig(rank0_only=False)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        weights = payload["model"]
        model.load_state_dict(weights)
    state = FSDP.optim_state_dict_to_load(model, optimizer, payload["optimizer"])
    optimizer.load_state_dict(state)
    return payload["step"]


def main(net, loader, folder):
    strategy = ShardingStrategy.SHARD_GRAD_OP
    precision = MixedPrecision(param_dtype=torch.bfloat16)
    model = FSDP(net, sharding_strategy=strategy, mixed_precision=precision)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    start = load(model, optimizer, folder)
    for step, batch in enumerate(loader, start):
        loss = model(batch).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    save(model, optimizer, folder, step)
    whole = model.state_dict()
    last = {"model": whole}
    torch.save(last, "last.pt")
"""

TRAINER = """\
import copy

import torch
from torch.cuda.amp import GradScaler
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType


class Average:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {}
        for name, p in model.named_parameters():
            clone = p.data.clone()
            self.shadow[name] = clone

    def update(self, model):
        for name, p in model.named_parameters():
            old = self.shadow[name]
            self.shadow[name] = old * self.decay + p.data * (1 - self.decay)


class Trainer:
    def __init__(self, net, args):
        self.args = args
        self.model = net
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.model = FSDP(self.model, use_orig_params=True)
        self.average = Average(self.model, 0.99)
        self.scaler = GradScaler()
        self.best = None

    def groups(self):
        named = list(self.model.named_parameters())
        decays = [p for n, p in named if p.ndim > 1]
        others = [p for n, p in named if p.ndim <= 1]
        return [{"params": decays}, {"params": others, "weight_decay": 0.0}]

    def step(self, batch, is_last):
        if not is_last:
            with self.model.no_sync():
                loss = self.model(batch)
                self.scaler.scale(loss).backward()
            return loss
        loss = self.model(batch)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        params = [p for p in self.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.clip_grad_norm_(params, self.args.max_norm)
        grads = [p.grad.norm() for p in self.model.parameters()]
        total = torch.stack(grads).norm()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss, norm, total

    def save(self, path):
        inner = self.model.module
        unwrapped = inner if inner is not None else self.model
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, path)
        self.best = copy.deepcopy(self.model)
        return unwrapped

    def restore(self, path):
        saved = torch.load(path)
        weights = {k.replace("_fsdp_wrapped_module.", ""): v for k, v in saved["model"].items()}
        self.model.load_state_dict(weights)
        self.optimizer.load_state_dict(saved["optimizer"])

    def evaluate(self, loader):
        FSDP.set_state_dict_type(self.model, StateDictType.SHARDED_STATE_DICT)
        context = FSDP.summon_full_params(self.model, writeback=False)
        with context:
            weight = self.model.head.weight
            copied = weight.detach().clone()
            total = sum(p.numel() for p in self.model.parameters())
        return copied, total
"""

FACTORIES = """\
import functools

import torch
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

STRATEGIES = {"full": ShardingStrategy.FULL_SHARD, "grad": ShardingStrategy.SHARD_GRAD_OP}
Wrapper = FullyShardedDataParallel


def options(args, block):
    kwargs = {}
    kwargs["device_id"] = torch.cuda.current_device()
    if args.layers:
        policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={block})
    else:
        policy = functools.partial(size_based_auto_wrap_policy, min_num_params=1_000)
    kwargs["auto_wrap_policy"] = policy
    offload = CPUOffload(offload_params=True) if args.offload else None
    return {**kwargs, "cpu_offload": offload, "backward_prefetch": BackwardPrefetch.BACKWARD_PRE}


def build(args, net, block):
    strategy = STRATEGIES[args.strategy]
    settings = options(args, block)
    make = functools.partial(Wrapper, sharding_strategy=strategy, limit_all_gathers=True)
    net.body = make(net.body)
    layers = []
    for layer in net.layers:
        wrapped = Wrapper(layer)
        layers.append(wrapped)
    net.layers = torch.nn.ModuleList(layers)
    wrapped = Wrapper(net, **settings)
    is_one = isinstance(wrapped, FullyShardedDataParallel)
    kind = type(wrapped).__name__
    if is_one and kind == "FullyShardedDataParallel":
        return wrapped
    return None


def train(args, net, block, batches):
    model = build(args, net, block)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    counts = [p.numel() for p in model.parameters()]
    flat = torch.cat([p.view(-1) for p in model.parameters()])
    for batch in batches:
        loss = model(batch).sum()
        loss.backward()
        norm = model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    print(norm, counts, flat)
"""

ACCELERATE = """\
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig


def main(net, loader, args):
    state_config = FullStateDictConfig(offload_to_cpu=True, rank0_only=False)
    plugin = FullyShardedDataParallelPlugin(
        state_dict_config=state_config,
        optim_state_dict_config=FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=False),
        use_orig_params=False,
    )
    accelerator = Accelerator(fsdp_plugin=plugin)
    optimizer = torch.optim.AdamW(net.parameters(), lr=args.lr)
    model = accelerator.prepare(net)
    optimizer, loader = accelerator.prepare(optimizer, loader)
    norms = []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(batch)
            accelerator.backward(loss)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            norms.append(norm)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.wait_for_everyone()
    unwrapped = accelerator.unwrap_model(model)
    weights = accelerator.get_state_dict(model)
    unwrapped.save_pretrained(args.out, state_dict=weights)
    own = unwrapped.state_dict()
    if accelerator.is_main_process:
        torch.save(own, "own.pt")
"""

LIGHTNING = """\
import lightning as L
import torch
from lightning.pytorch.strategies import FSDPStrategy
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Module(L.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.automatic_optimization = False

    def training_step(self, batch, index):
        optimizer = self.optimizers()
        loss = self.net(batch).mean()
        self.manual_backward(loss)
        self.clip_gradients(optimizer, gradient_clip_val=1.0)
        optimizer.step()
        optimizer.zero_grad()

    def configure_optimizers(self):
        named = dict(self.net.named_parameters())
        decays = [p for n, p in named.items() if p.ndim > 1]
        optimizer = torch.optim.AdamW(decays, lr=1e-3)
        return optimizer

    def on_train_end(self):
        weights = self.net.state_dict()
        torch.save(weights, "net.pt")


def main(net, block, loader):
    policy = ModuleWrapPolicy({block})
    precision = MixedPrecision(param_dtype=torch.bfloat16)
    strategy = FSDPStrategy(
        auto_wrap_policy=policy,
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        mixed_precision=precision,
        state_dict_type="full",
    )
    trainer = L.Trainer(strategy=strategy, gradient_clip_val=1.0)
    module = Module(net)
    trainer.fit(module, loader)
"""

SOURCES = {
    "full states": FULL_STATES,
    "trainer": TRAINER,
    "factories": FACTORIES,
    "accelerate": ACCELERATE,
    "lightning": LIGHTNING,
}

PROJECT = {
    "run/wrapping.py": """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

DEFAULTS = {"use_orig_params": True}


def wrap(net, device):
    settings = {**DEFAULTS, "device_id": device}
    wrapped = FSDP(net, **settings)
    return wrapped


def unwrap(model):
    inner = model.module if hasattr(model, "module") else model
    last = inner
    return last
""",
    "run/saving.py": """\
import torch

from run.wrapping import unwrap


def save(model, optimizer, path):
    plain = unwrap(model)
    weights = plain.state_dict()
    state = optimizer.state_dict()
    payload = {"model": weights, "optimizer": state}
    torch.save(payload, path)


def norm_of(params):
    grads = [p.grad for p in params]
    norm = torch.stack([g.norm() for g in grads]).norm()
    return norm
""",
    "run/engine.py": """\
import torch

from run.saving import norm_of, save
from run.wrapping import wrap


class Engine:
    def __init__(self, net, device):
        self.net = net
        self.optimizer = torch.optim.AdamW(self.net.parameters())
        self.model = wrap(self.net, device)
        self.params = list(self.model.parameters())
        self.steps = 0

    def step(self, batch):
        loss = self.model(batch)
        loss.backward()
        norm = norm_of(self.params)
        torch.nn.utils.clip_grad_norm_(self.params, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm

    def save(self, path):
        model = self.model
        save(model, self.optimizer, path)
""",
    "train.py": """\
from run.engine import Engine


def main(net, batches, device):
    engine = Engine(net, device)
    for batch in batches:
        norm = engine.step(batch)
        print(norm)
    model = engine.model
    names = [name for name, _ in model.named_parameters()]
    first = model.blocks[0].weight
    flat = first.view(-1)
    engine.save("last.pt")
    return names, flat
""",
}
