"""Orders, meshes and ties of several parallelisms that cannot be."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.wrap import CustomPolicy
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    parallelize_module,
)

from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.sharding.prepare import prepare_fully_shard
from fsdp_migrate.tensor_parallel import apply_tensor_parallel
from tests.rank_bodies.parallelism import (
    BLOCKS,
    Decoder,
    Experts,
    Mixture,
    MixtureLayer,
    place_experts,
    tensor_plan,
)
from tests.rank_bodies.parity import full


if TYPE_CHECKING:
    from collections.abc import Callable


def _prepare(model: Any, mesh: Any, **arguments: Any) -> Callable[[], Any]:
    return lambda: prepare_fully_shard(model, {**BLOCKS, **arguments}, mesh=mesh)


def _parallel_decoder(plan: dict[str, Any] | None = None, **options: Any) -> tuple[Any, DeviceMesh]:
    root = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = Decoder(**options)
    parallelize_module(model, root["tp"], plan or tensor_plan())
    return model, root


def _of_another_root() -> tuple[Any, Callable[[], Any]]:
    model, _ = _parallel_decoder()
    other = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    return model, _prepare(model, other["data"])


def _of_all_ranks() -> tuple[Any, Callable[[], Any]]:
    model, _ = _parallel_decoder()
    return model, _prepare(model, init_device_mesh("cpu", (4,), mesh_dim_names=("dp",)))


def _without_a_mesh() -> tuple[Any, Callable[[], Any]]:
    model, _ = _parallel_decoder()
    return model, _prepare(model, None)


def _of_a_group() -> tuple[Any, Callable[[], Any]]:
    model, root = _parallel_decoder()
    return model, _prepare(model, None, process_group=root.get_group("dp"))


def _the_same_dimension() -> tuple[Any, Callable[[], Any]]:
    model, root = _parallel_decoder()
    return model, _prepare(model, root["tp"])


def _the_whole_root() -> tuple[Any, Callable[[], Any]]:
    model, root = _parallel_decoder()
    return model, _prepare(model, root, sharding_strategy="HYBRID_SHARD")


def _without_names() -> tuple[Any, Callable[[], Any]]:
    model, root = _parallel_decoder()
    return model, _prepare(model, DeviceMesh.from_group(root.get_group("dp"), "cpu"))


def _tensor_outside() -> tuple[Any, Callable[[], Any]]:
    root = init_device_mesh("cpu", (2, 2), mesh_dim_names=("tp", "dp"))
    model: Any = Decoder()
    for block in model.blocks:
        block.up.weight = nn.Parameter(distribute_tensor(block.up.weight, root["tp"], [Shard(0)]))
    return model, _prepare(model, root["dp"])


def _no_shard() -> tuple[Any, Callable[[], Any]]:
    model, root = _parallel_decoder()
    return model, _prepare(model, root["dp"], sharding_strategy="NO_SHARD")


def _partial() -> tuple[Any, Callable[[], Any]]:
    root = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model: Any = Decoder()
    value = DTensor.from_local(model.norm.weight.detach(), root["tp"], [Partial()])
    model.norm.weight = nn.Parameter(value)
    return model, _prepare(model, root["dp"])


def _three_dimensions() -> tuple[Any, Callable[[], Any]]:
    root = init_device_mesh("cpu", (2, 2, 1, 1), mesh_dim_names=("dp", "a", "b", "c"))
    model: Any = Decoder()
    placed = distribute_tensor(model.norm.weight, root["a", "b", "c"], [Replicate()] * 3)
    model.norm.weight = nn.Parameter(placed)
    return model, _prepare(model, root["dp"])


def _on_meta() -> tuple[Any, Callable[[], Any]]:
    root = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = Decoder().to("meta")
    parallelize_module(model, root["tp"], tensor_plan())
    return model, _prepare(model, root["dp"])


class _Config:
    tie_word_embeddings = True


class _Declared(Decoder):
    """A model that declares its tie as transformers' models do."""

    config = _Config()

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def get_output_embeddings(self) -> nn.Module:
        return self.out


def _torn_before() -> tuple[Any, Callable[[], Any]]:
    root = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = _Declared(tied=True)
    parallelize_module(model, root["tp"], tensor_plan(tied=True))
    return model, _prepare(model, root["dp"])


def _mixture() -> tuple[Any, DeviceMesh]:
    root = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_mod_ep", "ep"))
    model = Mixture()
    place_experts(model, root["ep"])
    return model, root


def _experts_without_a_unit() -> tuple[Any, Callable[[], Any]]:
    model, _ = _mixture()
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    return model, _prepare(model, mesh, auto_wrap_policy={MixtureLayer})


def _experts_with_their_router() -> tuple[Any, Callable[[], Any]]:
    model, root = _mixture()
    policy = CustomPolicy(
        lambda module: {"device_mesh": root["dp_mod_ep"]} if isinstance(module, MixtureLayer) else False
    )
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    return model, _prepare(model, mesh, auto_wrap_policy=policy)


def _experts_on_too_few_ranks() -> tuple[Any, Callable[[], Any]]:
    root = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("rest", "dp_mod_ep", "ep"))
    model = Mixture()
    place_experts(model, root["ep"])
    policy = CustomPolicy(
        lambda module: {"device_mesh": root["dp_mod_ep"]} if isinstance(module, Experts) else False
    )
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    return model, _prepare(model, mesh, auto_wrap_policy=policy)


def _apply(model: Any, plan: dict[str, Any], mesh: Any = None) -> Callable[[], Any]:
    root = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    return lambda: apply_tensor_parallel(model, root["tp"] if mesh is None else mesh(root), plan)


def _after_fsdp() -> tuple[Any, Callable[[], Any]]:
    root = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model: Any = Decoder()
    fully_shard(model.blocks[1], mesh=root["dp"])
    return model, _apply(model, tensor_plan())


def _after_compile() -> tuple[Any, Callable[[], Any]]:
    model: Any = Decoder()
    model.blocks[1].compile(backend="eager")
    return model, _apply(model, tensor_plan())


def _after_sharding_again() -> tuple[Any, Callable[[], Any]]:
    model, root = _parallel_decoder()
    prepare_fully_shard(model, BLOCKS, mesh=root["dp"])
    return model, _prepare(model, root["dp"])


def _with(plan: dict[str, Any], mesh: Any = None, **options: Any) -> Callable[[], Any]:
    def build() -> tuple[Any, Callable[[], Any]]:
        model = Decoder(**options)
        return model, _apply(model, plan, mesh)

    return build


WRONG: dict[str, Callable[[], tuple[Any, Callable[[], Any]]]] = {
    "another root": _of_another_root,
    "all ranks": _of_all_ranks,
    "no mesh": _without_a_mesh,
    "a group": _of_a_group,
    "the same dimension": _the_same_dimension,
    "the whole root": _the_whole_root,
    "a mesh without names": _without_names,
    "NO_SHARD": _no_shard,
    "a partial parameter": _partial,
    "three dimensions": _three_dimensions,
    "on the meta device": _on_meta,
    "a declared tie, torn": _torn_before,
    "experts without a unit": _experts_without_a_unit,
    "experts with their router": _experts_with_their_router,
    "experts on too few ranks": _experts_on_too_few_ranks,
    "tensor parallel after FSDP": _after_fsdp,
    "FSDP after FSDP": _after_sharding_again,
    "tensor parallel after compile": _after_compile,
    "a name that matches nothing": _with({**tensor_plan(), "block.*.up": ColwiseParallel()}),
    "a module that is matched twice": _with({**tensor_plan(), "blocks.0.up": ColwiseParallel()}),
    "a pattern that is too short": _with({"blocks.up": ColwiseParallel()}),
    "a tie with one side planned": _with({"out": ColwiseParallel()}, tied=True),
    "a tie placed in two ways": _with({"embed": ColwiseParallel(), "out": ColwiseParallel()}, tied=True),
    "a style that does not fit": _with({"blocks.0.up": ColwiseParallel(), "norm": ColwiseParallel()}),
    "a mesh of two dimensions": _with(tensor_plan(), lambda root: root),
    "a mesh of its own": _with(tensor_plan(), lambda root: init_device_mesh("cpu", (4,))),
}


def _state(model: nn.Module) -> list[Any]:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_parameters")
    return [
        (type(m), sorted(vars(m)), [list(vars(m)[table]) for table in hooks], list(map(id, m.parameters())))
        for m in model.modules()
    ]


def refuse(name: str) -> tuple[str, str, bool]:
    """Do what must be refused; return the error's class, its text, and whether nothing changed."""
    warnings.simplefilter("ignore")
    model, call = WRONG[name]()
    before = _state(model)
    try:
        call()
    except FSDPMigrateError as error:
        return type(error).__name__, str(error), before == _state(model)
    return "no error", "", False


def refuse_all() -> dict[str, tuple[str, str, bool]]:
    """Refuse everything that must be."""
    return {name: refuse(name) for name in WRONG}


def either_order() -> tuple[str, str]:
    """Put the data-parallel dimension inside; return an error, or "trained" and how far it is off."""
    warnings.simplefilter("ignore")
    model, call = _tensor_outside()
    whole = [full(param) for param in model.parameters()]
    try:
        call()
    except FSDPMigrateError as error:
        return type(error).__name__, str(error)
    off = max((full(p) - q).abs().max().item() for p, q in zip(model.parameters(), whole, strict=True))
    return "sharded", str(off)
