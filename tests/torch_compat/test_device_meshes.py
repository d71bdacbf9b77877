"""Meshes in one order on all ranks, whatever the seed with which a process hashes their names."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate

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
