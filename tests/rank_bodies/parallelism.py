"""Tensor, sequence and expert parallelism with FSDP, beside the same training of the unsharded model."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp.wrap import CustomPolicy
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from fsdp_migrate.activation_checkpointing import apply_activation_checkpointing
from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.runtime import clip_grad_norm_
from fsdp_migrate.sharding.parallelism import Placed
from fsdp_migrate.sharding.prepare import prepare_fully_shard, shard_plan
from fsdp_migrate.sharding.tying import parameter_names
from fsdp_migrate.tensor_parallel import apply_tensor_parallel
from fsdp_migrate.torch_compat.device_meshes import OPTIONS_OF_ONE_MESH
from fsdp_migrate.torch_compat.optimizer_kinds import OPTIONS_WITHOUT_DTENSORS
from tests.models import Block
from tests.rank_bodies.parity import full
from tests.rank_bodies.runtime import result_or_refusal


if TYPE_CHECKING:
    from collections.abc import Callable


WORDS, WIDTH, INNER, LENGTH, EXPERTS = 12, 8, 16, 6, 4


class Decoder(nn.Module):
    """A language model whose sizes divide by four, in double precision: differences are not rounding."""

    def __init__(self, *, tied: bool = False, inner: int = INNER) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH, inner) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.out.weight = self.embed.weight
        self.double()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.out(self.norm(x))
        return out


class Experts(nn.Module):
    """Feed-forward experts; those of other ranks get their tokens through the group."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, INNER) / 3)
        self.down = nn.Parameter(torch.randn(EXPERTS, INNER, WIDTH) / 3)
        self.group: dist.ProcessGroup | None = None

    def forward(self, x: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
        rank, size = (0, 1) if self.group is None else (dist.get_rank(self.group), self.group.size())
        up, down = (p.to_local() if isinstance(p, DTensor) else p for p in (self.up, self.down))
        everyone, choices = x, choice
        if self.group is not None:
            # torch's differentiable all_gather fails in gloo's subgroups; a sum with zeros is the same.
            apart = [x if index == rank else torch.zeros_like(x) for index in range(size)]
            everyone = dist_nn.all_reduce(torch.cat(apart), group=self.group)
            parts = [torch.empty_like(choice) for _ in range(size)]
            dist.all_gather(parts, choice, group=self.group)
            choices = torch.cat(parts)
        out = torch.zeros_like(everyone)
        for index in range(len(up)):
            chosen = (choices == rank * len(up) + index).unsqueeze(-1)
            out = out + chosen * (torch.tanh(everyone @ up[index]) @ down[index])
        if self.group is None:
            return out
        whole: torch.Tensor = dist_nn.all_reduce(out, group=self.group)
        return whole.chunk(size)[rank]


class MixtureLayer(nn.Module):
    """A residual layer that sends every token to its best expert."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = Experts()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.norm(x).flatten(0, 1)
        gates, choice = self.router(tokens).softmax(-1).max(-1)
        out: torch.Tensor = x + (gates.unsqueeze(-1) * self.experts(tokens, choice)).view_as(x)
        return out


class Mixture(nn.Module):
    """A language model of two such layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(MixtureLayer() for _ in range(2))
        self.out = nn.Linear(WIDTH, WORDS)
        self.double()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.out(x)
        return out


def tokens_of(step: int, data_rank: int) -> torch.Tensor:
    """Return the tokens that one data-parallel rank has in one step."""
    generator = torch.Generator().manual_seed(1000 * step + data_rank)
    return torch.randint(0, WORDS, (3, LENGTH), generator=generator)


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Return the loss at repeating the input, in double precision."""
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def tensor_plan(tied: bool = False) -> dict[str, Any]:
    """Return a plan of tensor parallelism; with ties, embedding and output layer are placed alike."""
    plan: dict[str, Any] = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}
    if tied:
        plan["embed"] = RowwiseParallel(input_layouts=Replicate())
        plan["out"] = ColwiseParallel(output_layouts=Replicate())
    return plan


def sequence_plan() -> dict[str, Any]:
    """Return a plan of tensor parallelism with the sequence cut between the blocks' layers."""
    return {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "blocks.*.norm": SequenceParallel(),
        "blocks.*.up": ColwiseParallel(input_layouts=Shard(1)),
        "blocks.*.down": RowwiseParallel(output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "out": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }


@dataclass
class Setup:
    """A model as parallelized, the arguments of its preparation, and which data this rank has."""

    model: Any
    plain: Any
    arguments: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    data_rank: int = 0
    num_data_ranks: int = 2


CPU = {"device_id": "cpu"}
BLOCKS: dict[str, Any] = {**CPU, "auto_wrap_policy": {Block}}


def _pair(make: Callable[[], nn.Module]) -> tuple[Any, Any]:
    torch.manual_seed(0)
    plain = make()
    return copy.deepcopy(plain), plain


def _tensor(
    plan: Callable[[], dict[str, Any]] = tensor_plan,
    *,
    shape: tuple[int, ...] = (2, 2),
    names: tuple[str, ...] = ("dp", "tp"),
    by_torch: bool = False,
    arguments: dict[str, Any] | None = None,
    make: Callable[[], nn.Module] = Decoder,
    **more: Any,
) -> Callable[[], Setup]:
    def build() -> Setup:
        root = init_device_mesh("cpu", shape, mesh_dim_names=names)
        model, plain = _pair(make)
        apply = parallelize_module if by_torch else apply_tensor_parallel
        apply(model, root["tp"], plan())
        data = names[:-1]
        mesh = root[data[0]] if len(data) == 1 else root[data]
        rank = dist.get_rank() // root["tp"].size()
        return Setup(model, plain, arguments or BLOCKS, {"mesh": mesh, **more}, rank, mesh.size())

    return build


def _experts(*, by_config: bool) -> Callable[[], Setup]:
    def build() -> Setup:
        root = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_mod_ep", "ep"))
        model, plain = _pair(Mixture)
        place_experts(model, root["ep"])
        policy = CustomPolicy(
            lambda module: (
                {"device_mesh": root["dp_mod_ep"]}
                if isinstance(module, Experts)
                else isinstance(module, MixtureLayer)
            )
        )
        whole = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
        arguments: dict[str, Any] = {**CPU, "auto_wrap_policy": policy}
        more: dict[str, Any] = {}
        if by_config:
            arguments["device_mesh"] = whole
        else:
            more["mesh"] = whole
        return Setup(model, plain, arguments, more, dist.get_rank(), 4)

    return build


def place_experts(model: Any, mesh: DeviceMesh) -> None:
    """Give every rank of the mesh its part of the experts."""
    for module in model.modules():
        if isinstance(module, Experts):
            module.group = mesh.get_group()
            for name, param in list(module.named_parameters()):
                setattr(module, name, nn.Parameter(distribute_tensor(param, mesh, [Shard(0)])))


CASES: dict[str, Callable[[], Setup]] = {
    "tensor parallel": _tensor(),
    "tensor parallel by torch's function": _tensor(by_torch=True),
    "tensor parallel, layers as units": _tensor(arguments={**CPU, "auto_wrap_policy": {Block, nn.Linear}}),
    "tensor parallel, checkpointed": _tensor(activation_checkpointing=Block),
    "tensor parallel, activations on the CPU": _tensor(
        activation_checkpointing={"which": Block, "offload_to_cpu": True, "recompute": False}
    ),
    "tensor parallel, replicated data": _tensor(
        shape=(2, 1, 2),
        names=("dp_replicate", "dp_shard", "tp"),
        arguments={**BLOCKS, "sharding_strategy": "HYBRID_SHARD"},
    ),
    "tensor parallel, kept after forward": _tensor(
        arguments={**BLOCKS, "sharding_strategy": "SHARD_GRAD_OP"}
    ),
    "tensor parallel, tied": _tensor(lambda: tensor_plan(tied=True), make=lambda: Decoder(tied=True)),
    "tensor parallel, tied, units of their own": _tensor(
        lambda: tensor_plan(tied=True),
        make=lambda: Decoder(tied=True),
        arguments={**CPU, "auto_wrap_policy": {Block, nn.Embedding, nn.Linear}},
    ),
    "sequence parallel": _tensor(sequence_plan),
    "sequence parallel, checkpointed": _tensor(sequence_plan, activation_checkpointing="Block"),
    "expert parallel": _experts(by_config=False),
    "expert parallel, mesh in the config": _experts(by_config=True),
}


@dataclass
class Outcome:
    """Losses of the unsharded and the prepared run, the largest differences, and what the plan says."""

    expected: list[float]
    found: list[float]
    parameters: float
    gradients: float
    norms: list[tuple[float, float]]
    ties: list[tuple[str, ...]]
    parallel: dict[str, tuple[tuple[str, ...], tuple[str, ...], bool]]
    placed: dict[str, str]
    codes: list[str]
    json: Any


def _largest(model: nn.Module, plain: nn.Module, *, gradients: bool) -> float:
    worst = 0.0
    expected = dict(plain.named_parameters())
    found = dict(model.named_parameters())
    assert found.keys() == expected.keys()
    for name, param in expected.items():
        pair = (found[name].grad, param.grad) if gradients else (found[name], param)
        assert pair[0] is not None, name
        assert pair[1] is not None, name
        worst = max(worst, (full(pair[0]) - pair[1]).abs().max().item())
    return worst


def train(name: str) -> Outcome:
    """Train the unsharded model on all data, and the prepared one on this rank's part of it."""
    warnings.simplefilter("ignore")
    setup = CASES[name]()
    model, plain = setup.model, setup.plain
    prepare_fully_shard(model, setup.arguments, **setup.more)
    plan = shard_plan(model)
    placed = {key: _placed(param) for key, param in model.named_parameters()}
    foreach = "foreach" not in OPTIONS_OF_ONE_MESH
    ours = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5, foreach=foreach)
    theirs = torch.optim.SGD(plain.parameters(), lr=0.3, momentum=0.5)
    expected, found, norms, gradients = [], [], [], 0.0
    for step in range(4):
        ours.zero_grad()
        theirs.zero_grad()
        torch.autograd.backward(loss_of(model, tokens_of(step, setup.data_rank)))
        losses = [loss_of(plain, tokens_of(step, rank)) for rank in range(setup.num_data_ranks)]
        torch.autograd.backward(torch.stack(losses).mean())
        expected.append(losses[setup.data_rank].item())
        gradients = max(gradients, _largest(model, plain, gradients=True))
        norms.append(
            (
                clip_grad_norm_(model, max_norm=0.5).item(),
                torch.nn.utils.clip_grad_norm_(plain.parameters(), max_norm=0.5).item(),
            )
        )
        ours.step()
        theirs.step()
        with torch.no_grad():
            found.append(loss_of(model, tokens_of(step, setup.data_rank)).item())
            expected[-1] = loss_of(plain, tokens_of(step, setup.data_rank)).item()
    return Outcome(
        expected=expected,
        found=found,
        parameters=_largest(model, plain, gradients=False),
        gradients=gradients,
        norms=norms,
        ties=[names for names in parameter_names(model).values() if len(names) > 1],
        parallel={p.name: (p.dims, p.placements, p.expert) for p in plan.parallel},
        placed=placed,
        codes=[f.code for f in plan.findings if f.code in {"FM103", "FM120", "FM121", "FM122"}],
        json=plan.as_dict()["parallel"],
    )


def train_all() -> dict[str, Outcome | str]:
    """Train every case, as one start of the ranks is dearer than a case; what is refused is words."""
    return {name: result_or_refusal(train, name) for name in CASES}


def _placed(param: nn.Parameter) -> str:
    if not isinstance(param, DTensor):
        return "plain"
    where = Placed.of(param)
    kinds = ", ".join(str(placement) for placement in where.placements)
    return f"{'x'.join(where.dims)} {where.sizes}: {kinds}"


def uneven() -> tuple[str, str, bool]:
    """Prepare a model whose rows do not divide by all ranks; return an error, or how far it is off."""
    warnings.simplefilter("ignore")
    root = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model, plain = _pair(lambda: Decoder(inner=18))
    apply_tensor_parallel(model, root["tp"], tensor_plan())
    before = [id(param) for param in model.parameters()]
    try:
        prepare_fully_shard(model, BLOCKS, mesh=root["dp"])
    except FSDPMigrateError as error:
        return type(error).__name__, str(error), before == [id(param) for param in model.parameters()]
    torch.autograd.backward(loss_of(model, tokens_of(0, dist.get_rank() // 2)))
    losses = [loss_of(plain, tokens_of(0, rank)) for rank in range(2)]
    torch.autograd.backward(torch.stack(losses).mean())
    off = max(_largest(model, plain, gradients=True), _largest(model, plain, gradients=False))
    return "trained", str(off), off < 1e-12


def optimizer_from_before(kind: str) -> float:
    """Use an optimizer before and after sharding, on the same data everywhere; return how far it is off."""
    warnings.simplefilter("ignore")
    root = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model, plain = _pair(Decoder)
    apply_tensor_parallel(model, root["tp"], tensor_plan())
    make: Any = getattr(torch.optim, kind)
    ours, theirs = make(model.parameters(), lr=0.02, foreach=False), make(plain.parameters(), lr=0.02)
    for step in range(4):
        if step == 2:
            options = {name: True for name in ("foreach", "fused") if name in ours.param_groups[0]}
            ours.param_groups[0].update(options)
            prepare_fully_shard(model, BLOCKS, mesh=root["dp"], optimizers=ours)
            left = {name for name in options if ours.param_groups[0][name] is True}
            refused = {option for name, option in OPTIONS_WITHOUT_DTENSORS if name == kind}
            assert left == set(options) - set(OPTIONS_OF_ONE_MESH) - refused
            ours.param_groups[0].update(dict.fromkeys(options, False))
        for net, optimizer in ((model, ours), (plain, theirs)):
            optimizer.zero_grad()
            torch.autograd.backward(loss_of(net, tokens_of(step, 0)))
            optimizer.step()
    return _largest(model, plain, gradients=False)


def optimizers_from_before(kinds: tuple[str, ...]) -> dict[str, float]:
    """Do so with each kind of optimizer."""
    return {kind: optimizer_from_before(kind) for kind in kinds}


def from_rank0() -> tuple[float, float]:
    """Prepare models that only the first data-parallel rank has right; return how far they are off."""
    warnings.simplefilter("ignore")
    root = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model, plain = _pair(Decoder)
    if root["dp"].get_local_rank():
        with torch.no_grad():
            for param in model.parameters():
                param.add_(1.0)
    apply_tensor_parallel(model, root["tp"], tensor_plan())
    local = model.blocks[0].up.weight.to_local().sum().item()
    prepare_fully_shard(model, {**BLOCKS, "sync_module_states": True}, mesh=root["dp"])
    return local, _largest(model, plain, gradients=False)


def checkpointed_first() -> bool:
    """Checkpoint in place before tensor parallelism, whose names stay; return whether both came about."""
    root = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    model: Any = Decoder()
    apply_activation_checkpointing(model, Block)
    apply_tensor_parallel(model, root["tp"], tensor_plan())
    return all(isinstance(block.up.weight, DTensor) and "forward" in vars(block) for block in model.blocks)
