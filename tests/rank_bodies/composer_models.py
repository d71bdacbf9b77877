"""Models, optimizers and algorithms of Composer for the Trainers that tests run."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.models import VOCABULARY, Net


def make_model(kind: str) -> Any:
    """Return a ComposerModel: ``net`` marks its blocks, ``fn`` names them by a function, ``tied`` ties.

    ``mixed`` makes it on the meta device but for rank 0.
    """
    from composer.models import ComposerModel

    class Model(ComposerModel):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            with torch.device("meta") if _is_on_meta(kind) else nullcontext():
                net = Net(8, 16, tied="tied" in kind) if "wide" in kind else Net(tied="tied" in kind)
            if "lora" in kind:
                _adapt(net)
            if "filled" in kind:
                vars(net)["param_init_fn"] = fill
                if not _is_on_meta(kind):
                    net.apply(fill)
            _mark(net, kind)
            setattr(self, _name_of_net(kind), net)
            _add_children(self, net, kind)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = getattr(self, _name_of_net(kind))(tokens)
            out = self.left(out) if "left" in kind else out
            out = self.drop(out) if "drop" in kind else out
            return self.extra(out) if "two" in kind else out

        def loss(self, outputs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(outputs.float().view(-1, VOCABULARY), tokens.flatten())

        def get_metrics(self, is_train: bool = False) -> dict[str, Any]:
            return {"accuracy": self.accuracy} if "metric" in kind and not is_train else {}

        def update_metric(self, tokens: Any, outputs: torch.Tensor, metric: Any) -> None:
            metric.update(outputs.flatten(0, 1), tokens.flatten())

        def eval_forward(self, tokens: torch.Tensor, outputs: Any = None) -> torch.Tensor:
            found: torch.Tensor = outputs if outputs is not None else self.forward(tokens)
            return found

    return Model()


def _is_on_meta(kind: str) -> bool:
    if "everywhere" in kind:
        return True
    return ("mixed" in kind and dist.get_rank() > 0) or ("upside" in kind and dist.get_rank() == 0)


def fill(module: nn.Module) -> None:
    """Give a module's own parameters and buffers values that depend on their shapes only."""
    with torch.no_grad():
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            tensor.copy_(torch.linspace(-0.3, 0.4, tensor.numel()).view(tensor.shape))


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter, as PEFT makes it."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(requires_grad=False)
        self.down = nn.Linear(layer.in_features, 2, bias=False)
        self.up = nn.Linear(2, layer.out_features, bias=False)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(value) + self.up(self.down(value))
        return out


def _adapt(net: Any) -> None:
    net.requires_grad_(requires_grad=False)
    on_meta = net.embed.weight.is_meta
    with torch.device("meta") if on_meta else nullcontext():
        for block in net.blocks:
            block.up = Adapted(block.up)


def _name_of_net(kind: str) -> str:
    return "module" if "module" in kind else "net"  # EMA looks for `module` under FSDP1


def _mark(net: Any, kind: str) -> None:
    """Mark the net's blocks as units, by attributes or by functions."""
    blocks, last = set(net.blocks), net.blocks[-1]
    if "fn" in kind:
        net.fsdp_wrap_fn = net.activation_checkpointing_fn = lambda module: module in blocks
    elif "dict" in kind:
        given = {"sharding_strategy": "SHARD_GRAD_OP", "backward_prefetch": "BACKWARD_PRE"}
        net.fsdp_wrap_fn = lambda module: given if module is last else False
    else:
        for block in blocks:
            block._fsdp_wrap = True


def _add_children(model: Any, net: Any, kind: str) -> None:
    from torchmetrics.classification import MulticlassAccuracy

    if "two" in kind:
        model.extra = nn.Sequential(nn.Linear(VOCABULARY, VOCABULARY), nn.Tanh())
    if "metric" in kind:
        model.accuracy = MulticlassAccuracy(VOCABULARY, average="micro")
    if "left" in kind:
        model.left = nn.Linear(VOCABULARY, VOCABULARY)
        model.left._fsdp_wrap = False
    if "drop" in kind:
        model.drop = nn.Dropout(0.3)
    if "again" in kind:
        model.again = net
    if "across" in kind:
        model.other = nn.Linear(6, VOCABULARY, bias=False)
        model.other.weight = net.embed.weight


def make_optimizer(kind: str, model: nn.Module) -> Any:
    from composer import optim

    parameters = [param for param in model.parameters() if param.requires_grad]
    if kind == "strange":
        parameters.append(nn.Parameter(torch.ones(3)))
        kind = "sgd"
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    if kind == "subset":
        blocks = [
            module for name, module in model.named_modules() if "blocks." in name and name[-1].isdigit()
        ]
        groups = [{"params": list(block.parameters()), "lr": 0.1 * (n + 1)} for n, block in enumerate(blocks)]
        return optim.DecoupledSGDW(groups, lr=0.1, momentum=0.9)
    if kind == "adamw":
        return torch.optim.AdamW(parameters, lr=0.02)
    if kind == "decoupled_sgd":
        return optim.DecoupledSGDW(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3)
    named = list(model.named_parameters())
    decayed = [param for name, param in named if name.endswith("weight")]
    others = [param for name, param in named if not name.endswith("weight")]
    return optim.DecoupledAdamW([{"params": decayed, "weight_decay": 1e-3}, {"params": others}], lr=0.02)


def tensor_parallel(model: Any) -> dict[str, Any]:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    plan: dict[str, Any] = {}
    for number in range(len(model.net.blocks)):
        plan[f"net.blocks.{number}.up"] = ColwiseParallel()
        plan[f"net.blocks.{number}.down"] = RowwiseParallel()
    return {"tensor_parallel_degree": 2, "layer_plan": plan}


def make_algorithm(name: str) -> Any:
    from composer import algorithms

    if name.startswith("clip"):
        return algorithms.GradientClipping(name.partition("_")[2], 0.05)
    if name == "sam":  # it runs each batch twice
        return algorithms.SAM()
    return algorithms.EMA(half_life="2ba")
