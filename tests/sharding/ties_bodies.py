"""Models that share parameters, trained plain and prepared; every rank has the same data."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import FullyShardedDataParallel

from fsdp_migrate.sharding.prepare import prepare_fully_shard, shard_plan
from fsdp_migrate.sharding.tying import TieOwner, parameter_names
from tests.models import Block, Head, Net, batch, loss_of
from tests.rank_bodies.parity import full


if TYPE_CHECKING:
    from collections.abc import Callable


class Shared(nn.Module):
    """A net whose two blocks are one module, registered twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 6)
        self.first = Block(6, 17)
        self.again = self.first
        self.head = Head(6)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.again(self.first(self.embed(tokens))))
        return out


def _embedding_and_head() -> Any:
    return Net(tied=True)


def _two_layers_of_two_blocks() -> Any:
    net: Any = Net()
    net.blocks[1].up.weight = net.blocks[0].up.weight
    return net


def _biases_only() -> Any:
    net: Any = Net()
    net.blocks[1].up.bias = net.blocks[0].up.bias
    return net


def _one_layer_in_two_blocks() -> Any:
    net: Any = Net()
    net.blocks[1].up = net.blocks[0].up
    return net


def _two_layers_of_one_block() -> Any:
    net: Any = Net()
    net.blocks[0].norm.bias = net.blocks[0].down.bias
    return net


@dataclass(frozen=True)
class Case:
    """A model with ties, and the classes that are to be units."""

    model: Callable[[], Any]
    units: set[type[nn.Module]]


CASES: dict[str, Case] = {
    "embedding and head, both in the root": Case(_embedding_and_head, {Block}),
    "embedding and head, units of their own": Case(_embedding_and_head, {Block, nn.Embedding, nn.Linear}),
    "embedding and the unit around the head": Case(_embedding_and_head, {Block, nn.Embedding, Head}),
    "a layer of one block and of the other": Case(_two_layers_of_two_blocks, {Block}),
    "the same, with the layers as units too": Case(_two_layers_of_two_blocks, {Block, nn.Linear}),
    "biases only": Case(_biases_only, {Block}),
    "one layer registered in two blocks": Case(_one_layer_in_two_blocks, {Block}),
    "one unit registered twice": Case(Shared, {Block}),
    "within one block": Case(_two_layers_of_one_block, {Block}),
    "within one block, layers as units": Case(_two_layers_of_one_block, {Block, nn.Linear, nn.LayerNorm}),
}


@dataclass(frozen=True)
class Outcome:
    """Losses and parameters of the plain and the prepared run, ties, units and findings."""

    plain: tuple[list[float], dict[str, torch.Tensor]]
    prepared: tuple[list[float], dict[str, torch.Tensor]]
    ties_before: list[tuple[str, ...]]
    ties_after: list[tuple[str, ...]]
    units: list[str]
    codes: list[str]


def _ties(model: nn.Module) -> list[tuple[str, ...]]:
    return sorted(names for names in parameter_names(model).values() if len(names) > 1)


def _train(model: nn.Module, steps: int = 4) -> tuple[list[float], dict[str, torch.Tensor]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, batch(step, 0))
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: full(param) for name, param in model.named_parameters(remove_duplicate=False)}


def train_tied(case: str, tied: TieOwner) -> Outcome:
    """Train a plain model and a prepared one."""
    torch.manual_seed(0)
    plain = CASES[case].model()
    torch.manual_seed(0)
    model = CASES[case].model()
    before = _ties(model)
    prepare_fully_shard(model, {"auto_wrap_policy": CASES[case].units, "device_id": "cpu"}, tied=tied)
    plan = shard_plan(model)
    prepared = _train(model)
    return Outcome(
        plain=_train(plain),
        prepared=prepared,
        ties_before=before,
        ties_after=_ties(model),
        units=["+".join((*unit.grouped, unit.fqn)) for unit in plan.units],
        codes=[finding.code for finding in plan.findings if finding.code in {"FM103", "FM104"}],
    )


def load_tied(folder: str) -> tuple[list[tuple[str, ...]], bool]:
    """Save a prepared model and load it into another; return the other's ties, and whether it is equal."""
    warnings.simplefilter("ignore")
    models = []
    for seed in range(2):
        torch.manual_seed(seed)
        model = Net(tied=True)
        prepare_fully_shard(model, {"auto_wrap_policy": {Block, nn.Embedding, Head}, "device_id": "cpu"})
        models.append(model)
    save({"model": get_model_state_dict(models[0])}, checkpoint_id=folder)
    dist.barrier()
    state = {"model": get_model_state_dict(models[1])}
    load(state, checkpoint_id=folder)
    set_model_state_dict(models[1], state["model"])
    values = [{name: full(p) for name, p in m.named_parameters(remove_duplicate=False)} for m in models]
    return _ties(models[1]), all(torch.equal(values[0][name], values[1][name]) for name in values[0])


@dataclass(frozen=True)
class OnMeta:
    """Whether a tie held under both, and whether it was told of, and of a model that is not on meta."""

    fsdp1_is_tied: bool
    is_tied: bool
    told: bool
    told_of_real: bool


def tie_on_meta(with_init: bool) -> OnMeta:
    """Shard a model with a tie on the meta device under both, and one that is not there."""
    warnings.simplefilter("ignore")

    def make(device: str) -> nn.Sequential:
        with torch.device(device):
            model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 4), nn.Linear(4, 8, bias=False))
        model[2].weight = model[0].weight
        return model

    def init(module: nn.Module) -> None:
        module.to_empty(device="cpu", recurse=False)
        if isinstance(module, (nn.Embedding, nn.Linear)):
            module.reset_parameters()

    more: dict[str, Any] = {"param_init_fn": init} if with_init else {}
    cpu = torch.device("cpu")
    fsdp1 = FullyShardedDataParallel(make("meta"), use_orig_params=True, device_id=cpu, **more)
    told = []
    for device in ("meta", "cpu"):
        model = make(device)
        prepare_fully_shard(model, {"device_id": "cpu", **more})
        told.append("FM273" in {finding.code for finding in shard_plan(model).findings})
    model = make("meta")
    prepare_fully_shard(model, {"device_id": "cpu", **more})
    return OnMeta(len(list(fsdp1.parameters())) == 3, bool(_ties(model)), told[0], told[1])
