"""Meshes in one order on all ranks, whatever the seed with which a process hashes their names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate

from fsdp_migrate.config import FSDP2Config, OffloadPolicy
from fsdp_migrate.sharding import resolve
from fsdp_migrate.torch_compat import device_meshes
from fsdp_migrate.torch_compat.device_meshes import meshes_of
from fsdp_migrate.torch_compat.fake_runs import fake_world


@pytest.mark.parametrize("seed", range(3))
def test_meshes_come_in_one_order_whatever_their_hashes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_world(4):
        whole = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        others = [DeviceMesh("cpu", [0, 1], mesh_dim_names=("tp",)), whole, whole["dp"]]
        places = {id(mesh): number for number, mesh in enumerate(others)}
        monkeypatch.setattr(DeviceMesh, "__hash__", lambda mesh: (places.get(id(mesh), 9) + seed) % 3)
        rows = [DTensor.from_local(torch.ones(2), mesh, [Replicate()] * mesh.ndim) for mesh in others]
        found = meshes_of([torch.ones(1), *rows, *rows])
        assert [mesh.mesh_dim_names for mesh in found] == [("dp", "tp"), ("dp",), ("tp",)]


def _split_off(*args: Any, **kwargs: Any) -> DeviceMesh:
    """Stand for torch's own way, which splits the world's groups and leaves NCCL alone (torch 2.7)."""
    raise AssertionError(f"torch was asked for {args} {kwargs}")


@pytest.mark.parametrize("kind", ["hybrid", "replicate"])
def test_groups_of_an_offloading_mesh_are_made_with_the_backends_of_the_world(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = FSDP2Config(mesh=kind, offload_policy=OffloadPolicy())
    monkeypatch.setattr(resolve, "resolve_devices_per_node", lambda device_type: 4)
    with fake_world(8):
        expected = resolve.make_mesh(config)
        assert dist.group.WORLD is not None
        dist.group.WORLD.bound_device_id = torch.device("cuda", 0)
        with monkeypatch.context() as patched:
            patched.setattr(device_meshes, "init_device_mesh", _split_off)
            found = resolve.make_mesh(config)
        assert found == expected
        for mesh in (found, expected):
            groups = [dist.get_process_group_ranks(group) for group in mesh.get_all_groups()]
            assert groups == ([[0, 4], [0, 1, 2, 3]] if kind == "hybrid" else [list(range(8)), [0]])
        assert {dist.get_backend_config(each) for each in found.get_all_groups()} == {
            dist.get_backend_config()
        }


@pytest.mark.parametrize(
    ("offloads", "is_bound", "kind"),
    [(False, True, "hybrid"), (True, False, "hybrid"), (True, True, "shard")],
)
def test_other_meshes_are_made_by_torch(
    offloads: bool, is_bound: bool, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = FSDP2Config(mesh=kind, offload_policy=OffloadPolicy() if offloads else None)
    monkeypatch.setattr(resolve, "resolve_devices_per_node", lambda device_type: 4)
    monkeypatch.setattr(device_meshes, "init_device_mesh", _split_off)
    monkeypatch.setattr(resolve, "init_device_mesh", _split_off)
    with fake_world(8):
        assert dist.group.WORLD is not None
        if is_bound:
            dist.group.WORLD.bound_device_id = torch.device("cuda", 0)
        with pytest.raises(AssertionError, match="torch was asked"):
            resolve.make_mesh(config)
