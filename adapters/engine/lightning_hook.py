"""The hook of a LightningModule that shards it with FSDP2, as Python source."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from fsdp_migrate.adapters.document.nodes import Mapping
from fsdp_migrate.adapters.engine.base import mapping_at, plain_values
from fsdp_migrate.config import AlwaysWrap, ClassWrap, FSDP1Config, SizeWrap
from fsdp_migrate.errors import ConfigError
from fsdp_migrate.findings import counted


if TYPE_CHECKING:
    from fsdp_migrate.adapters.document.nodes import Node
    from fsdp_migrate.adapters.engine.settings import OwnHook


POLICY = "auto_wrap_policy"
RECOMPUTED = ("activation_checkpointing_policy", "activation_checkpointing")
"""What the strategy recomputes; no argument of FSDP1, but a keyword of prepare_fully_shard."""
_RECOMPUTES = "activation_checkpointing"
_MESH = "device_mesh"
_MESH_NAMES = '("replicate", "shard")'
_WITHOUT_MESH = {
    "sharding_strategy": ", and leave out `mesh=` there if it is one of replicas (HYBRID_SHARD, "
    "_HYBRID_SHARD_ZERO2)",
    "cpu_offload": ", and leave out `mesh=` there if it offloads",
}
"""With which values prepare_fully_shard makes the mesh: Lightning's has no replicas, and may have no gloo."""
SYNC_BATCHNORM = "torch.nn.SyncBatchNorm.convert_sync_batchnorm(self)"
"""What the Trainer's ``sync_batchnorm`` did under FSDPStrategy; ModelParallelStrategy does not heed it."""
_PUT_HOOK = "Put the hook into the LightningModule."
_BESIDE_OWN = (
    f"{_PUT_HOOK} `{{}}` ({{}}) has a `configure_model` already, and a second one would take its place: put "
    "the lines of the hook at the end of that{}."
)
_BESIDE_SEVERAL = (
    f"{_PUT_HOOK} `{{}}` ({{}}) and {{}} of the project have a `configure_model` already, and a second one "
    "would take its place: where yours is one of them, put the lines of the hook at the end of that, and "
    "above each `return` in it."
)
_ABOVE_RETURNS = (
    ", and above the `return` of line {} too: a model that is there already would not be sharded (the lines "
    "do nothing the second time)"
)
_MODULES = ("model", "module", "lightning_module", "pl_module", "task")
_HYBRID = frozenset({"HYBRID_SHARD", "_HYBRID_SHARD_ZERO2", "NO_SHARD"})


def hook_code(
    arguments: dict[str, Any],
    checkpointing: Any = None,
    mesh_shape: Any = None,
    *,
    sync_batchnorm: bool = False,
) -> str:
    """Return ``configure_model`` for FSDP1 arguments, given as words; ``mesh_shape`` is (replicas, shards).

    Lightning calls ``training_step`` and its kin, not ``forward``: they are registered, so that parameters
    of the LightningModule itself are gathered for them too. Its ``no_sync`` the Trainer enters where
    ``accumulate_grad_batches`` adds gradients up, if the model has one, as FSDP1's has and FSDP2's has not:
    without it each microbatch is reduced, and the sum differs in its last bits. Where there is no mesh, in
    ``load_from_checkpoint`` and under a Trainer with another strategy, nothing is sharded.

    Example:
        >>> print(hook_code({"sharding_strategy": "FULL_SHARD"}).splitlines()[0])
        def configure_model(self) -> None:
    """
    given, options, imports = _parts(arguments, checkpointing, mesh_shape, "self.device_mesh")
    given = "".join(f"            {line},\n" for line in given.splitlines())
    call = "".join(f"            {each},\n" for each in ("self", "arguments", *options))
    convert = f"        {SYNC_BATCHNORM}\n" if sync_batchnorm else ""
    imports = f"    import torch\n{imports}" if sync_batchnorm else imports
    return (
        "def configure_model(self) -> None:\n"
        "    from functools import partial\n"
        "\n"
        f"{imports}"
        "    from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method\n"
        "\n"
        "    from fsdp_migrate import prepare_fully_shard\n"
        "    from fsdp_migrate.runtime import no_sync\n"
        "\n"
        "    if self.device_mesh is not None and not isinstance(self, FSDPModule):\n"
        f"{convert}"
        f"        arguments = {{\n{given}        }}\n"
        f"        prepare_fully_shard(\n{call}        )\n"
        '        for name in ("training_step", "validation_step", "test_step", "predict_step"):\n'
        "            register_fsdp_forward_method(self, name)\n"
        "        self.no_sync = partial(no_sync, self)  # the Trainer's, while it accumulates gradients\n"
    )


def module_of(root: Node) -> str:
    """Return the path of the class of the LightningModule that a config names, or nothing.

    Example:
        >>> from fsdp_migrate.adapters.document.yaml_reader import read_yaml
        >>> module_of(read_yaml("model: {class_path: tasks.Lit}")[0])
        'tasks.Lit'
    """
    if not isinstance(root, Mapping):
        return ""
    for name in _MODULES:
        held = mapping_at(root, name)
        values = plain_values(held) if held is not None else {}
        for key in ("class_path", "_target_"):
            if isinstance(value := values.get(key), str):
                return value
    return ""


def where_it_goes(own: OwnHook | None) -> str:
    """Say where the hook is put, where the LightningModule may have the method already.

    Example:
        >>> where_it_goes(None)
        'Put the hook into the LightningModule.'
    """
    if own is None:
        return _PUT_HOOK
    if own.others:
        return _BESIDE_SEVERAL.format(own.owner, own.place, counted(own.others, "more class", "more classes"))
    lines = ", ".join(map(str, own.returns))
    return _BESIDE_OWN.format(own.owner, own.place, _ABOVE_RETURNS.format(lines) if lines else "")


def where_written(name: str, *, is_fabric: bool) -> str:
    """Say where in the hook, or in Fabric's function, a value of the strategy is written that is not known.

    Example:
        >>> where_written("auto_wrap_policy", is_fabric=False)
        'Write its value into `arguments` of the hook.'
    """
    hook, mesh = ("`parallelize`", "device_mesh") if is_fabric else ("the hook", "self.device_mesh")
    call = f"prepare_fully_shard in {hook}"
    if name in RECOMPUTED:
        return f"Give its value to {call} as the keyword `{_RECOMPUTES}=`, which is none of its `arguments`."
    if name == _MESH:
        shape = f"init_device_mesh({mesh}.device_type, (replicas, shards), mesh_dim_names={_MESH_NAMES})"
        return f"Give {call} such a mesh as its only `mesh=`, made of a shape by `{shape}`."
    return f"Write its value into `arguments` of {hook}{_WITHOUT_MESH.get(name, '')}."


def function_code(arguments: dict[str, Any], checkpointing: Any = None, mesh_shape: Any = None) -> str:
    """Return Fabric's ``parallelize_fn`` for FSDP1 arguments, given as words, as :func:`hook_code` does.

    Example:
        >>> print(function_code({"sharding_strategy": "FULL_SHARD"}).splitlines()[0])
        def parallelize(model, device_mesh):
    """
    given, options, imports = _parts(arguments, checkpointing, mesh_shape, "device_mesh")
    given = "".join(f"        {line},\n" for line in given.splitlines())
    call = ", ".join(("model", "arguments", *options))
    return (
        "def parallelize(model, device_mesh):\n"
        f"{imports}"
        "    from fsdp_migrate import prepare_fully_shard\n"
        "\n"
        f"    arguments = {{\n{given}    }}\n"
        f"    return prepare_fully_shard({call})\n"
    )


def _parts(
    arguments: dict[str, Any], checkpointing: Any, mesh_shape: Any, mesh: str
) -> tuple[str, list[str], str]:
    """Return the arguments line by line, the further options of the call, and what they import."""
    given = "\n".join(
        f"{name!r}: {source_of(_policy(value) if name == POLICY else value)}"
        for name, value in arguments.items()
    )
    options, imports = [], ""
    if isinstance(mesh_shape, (list, tuple)):
        imports = "    from torch.distributed.device_mesh import init_device_mesh\n"
        shape = tuple(mesh_shape)
        options.append(f"mesh=init_device_mesh({mesh}.device_type, {shape}, mesh_dim_names={_MESH_NAMES})")
    # Lightning's mesh is (data, tensor); for strategies with replicas prepare_fully_shard makes one.
    # So it does for offloaded gradients, which need gloo: torch 2.7's groups of two dimensions have none.
    elif not _offloads(arguments) and (
        str(arguments.get("sharding_strategy", "")).rpartition(".")[2].upper() not in _HYBRID
    ):
        options.append(f'mesh={mesh}["data_parallel"]')
    if checkpointing is not None:
        options.append(f"{_RECOMPUTES}={source_of(_names(checkpointing))}")
    return given, options, imports


def _offloads(arguments: dict[str, Any]) -> bool:
    with contextlib.suppress(ConfigError):  # prepare_fully_shard says what is wrong with the value
        offload = FSDP1Config(cpu_offload=arguments.get("cpu_offload")).cpu_offload
        return offload is not None and offload.offload_params
    return False


def _policy(value: Any) -> Any:
    """Return a policy with classes by the last part of their names; a number of parameters stays."""
    if isinstance(value, dict):
        return {name: inner if name == "min_num_params" else _names(inner) for name, inner in value.items()}
    return _names(value)


def _names(value: Any) -> Any:
    """Return classes by the last part of their names, which is what is looked for in a model."""
    if isinstance(value, dict) and len(value) == 1:
        return _names(next(iter(value.values())))
    if isinstance(value, str):
        return ",".join(part.strip().rpartition(".")[2] for part in value.split(","))
    return [_names(item) for item in value] if isinstance(value, list) else value


def source_of(value: Any) -> str:
    """Return a value of a config as Python source; policies as the words that stand for them."""
    if isinstance(value, ClassWrap):
        return repr([_names(item) for item in value.classes])
    if isinstance(value, SizeWrap):
        return repr({"min_num_params": value.min_num_params})
    if isinstance(value, AlwaysWrap):
        return repr("always_wrap_policy")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name!r}: {source_of(inner)}" for name, inner in value.items()) + "}"
    return repr(value)
