"""Lightning Fabric's strategy: its arguments, and the function that takes its place, held against Fabric."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

from fsdp_migrate.source import scan_source
from tests.source.samples import turned


HEADER = (
    "from lightning.fabric import Fabric\n"
    "from lightning.fabric.strategies import FSDPStrategy\n"
    "from models import Block\n\n"
)


def comment(body: str) -> str:
    lines = turned(HEADER + body, header="").splitlines()
    return "\n".join(line for line in lines if line.lstrip().startswith("# fsdp-migrate:"))


def pasted(body: str) -> str:
    """Return the code that a comment offers."""
    lines = comment(body).splitlines()[1:]
    return "\n".join(line.removeprefix("# fsdp-migrate:").removeprefix("     ") for line in lines)


GIVEN = (
    "strategy = FSDPStrategy(auto_wrap_policy={Block}, activation_checkpointing_policy={Block}, "
    'sharding_strategy="SHARD_GRAD_OP", state_dict_type="full", cpu_offload=False)\n'
    'fabric = Fabric(devices=4, num_nodes=2, precision="bf16-mixed", strategy=strategy)\n'
)


def test_the_arguments_and_the_function_are_said() -> None:
    said = comment(GIVEN)
    assert (
        "ModelParallelStrategy(parallelize_fn=parallelize, save_distributed_checkpoint=False, "
        "data_parallel_size=8, tensor_parallel_size=1) of lightning.fabric.strategies"
    ) in said
    assert (
        "make optimizers, and the lists of parameters that they are given, after "
        "`model = fabric.setup_module(model)`"
    ) in said
    code = pasted(GIVEN)
    assert code.startswith("def parallelize(model, device_mesh):\n")
    assert "'sharding_strategy': 'SHARD_GRAD_OP'" in code
    assert "'auto_wrap_policy': ['Block']" in code
    assert "'mixed_precision': 'bfloat16'" in code
    assert 'mesh=device_mesh["data_parallel"]' in code
    assert "activation_checkpointing=['Block']" in code


@pytest.mark.parametrize("strategy", ["FSDPStrategy()", '"fsdp"'])
def test_fabric_saves_a_folder_unless_told(strategy: str) -> None:
    from lightning.fabric.strategies.fsdp import FSDPStrategy

    default = inspect.signature(FSDPStrategy).parameters["state_dict_type"].default
    assert default == "sharded"
    assert "save_distributed_checkpoint=True" in comment(f"fabric = Fabric(devices=2, strategy={strategy})\n")


def test_offload_by_the_name_of_the_strategy() -> None:
    code = pasted('fabric = Fabric(devices=2, strategy="fsdp_cpu_offload")\n')
    assert "'cpu_offload': True" in code
    assert "mesh=" not in code  # its groups may have NCCL alone, which reduces nothing on the CPU


@pytest.mark.parametrize(
    ("strategy", "is_said"),
    [("FSDPStrategy(cpu_offload=True)", True), ('"fsdp_cpu_offload"', True), ("FSDPStrategy()", False)],
)
def test_a_strategy_that_offloads_asks_for_gloo(strategy: str, *, is_said: bool) -> None:
    said = comment(f"fabric = Fabric(devices=2, strategy={strategy})\n")
    assert ('process_group_backend="cpu:gloo,cuda:nccl"' in said) is is_said


def test_where_fabric_is_not_seen_that_is_said() -> None:
    body = "def make():\n    return FSDPStrategy(auto_wrap_policy={Block})\n"
    said = " ".join(use.becomes for use in scan_source(HEADER + body) if use.code == "FM319")
    assert "the Fabric that it is given to, and its precision and number of ranks, are not seen here" in said
    assert "data_parallel_size=<number of ranks>" in said


def test_a_precision_that_model_parallel_lacks_is_said() -> None:
    said = comment('fabric = Fabric(devices=2, precision="16-mixed", strategy="fsdp")\n')
    assert "16-mixed" in said


def test_fabric_takes_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning.fabric.strategies.model_parallel import ModelParallelStrategy

    asked: dict[str, Any] = {}

    def prepare(model: nn.Module, arguments: dict[str, Any], **more: Any) -> nn.Module:
        asked.update(arguments, **more)
        return model

    monkeypatch.setattr("fsdp_migrate.prepare_fully_shard", prepare)
    names: dict[str, Any] = {}
    exec(pasted(GIVEN), names)
    strategy = ModelParallelStrategy(
        parallelize_fn=names["parallelize"],
        data_parallel_size=1,
        tensor_parallel_size=1,
        save_distributed_checkpoint=False,
    )
    strategy.parallel_devices = [torch.device("cpu")]
    monkeypatch.setattr(type(strategy), "device_mesh", {"data_parallel": "the mesh"})
    net = nn.Linear(2, 2)
    assert strategy.setup_module(net) is net
    assert asked["mesh"] == "the mesh"
    assert asked["mixed_precision"] == "bfloat16"


@pytest.mark.parametrize(
    ("test", "size"),
    [
        ("devices > 1", "<number of ranks>"),
        ("devices * num_nodes > 1", "<number of ranks>"),
        ("not quantize and devices != 1", "<number of ranks>"),
        ("devices == 1", "1"),
        ("quantize", "1"),
        ("num_nodes < 2", "1"),
    ],
)
def test_a_branch_shows_that_there_are_more_devices_than_the_source_sets(test: str, size: str) -> None:
    body = f"devices = 1\nnum_nodes = 1\nif {test}:\n    strategy = FSDPStrategy()\n"
    body += "else:\n    strategy = 'auto'\n"
    body += "fabric = Fabric(devices=devices, num_nodes=num_nodes, strategy=strategy)\n"
    assert f"data_parallel_size={size}," in comment(body)
