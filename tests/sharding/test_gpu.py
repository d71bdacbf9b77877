"""One real GPU: what a CPU cannot show of a prepared model. Each case runs in a process of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.ranks import ROOT
from tests.scripts import run_python


pytestmark = pytest.mark.gpu


def on_gpu(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run_python("-m", "tests.rank_scripts.on_gpu", *arguments, cwd=ROOT))
    return found


def test_mixed_precision_trains_as_fsdp1_does_bit_for_bit() -> None:
    found = on_gpu("mixed_precision")
    assert list(found) == ["bf16", "bf16 reduced in fp32", "fp16"]
    assert all(case == {"names": 28, "different": []} for case in found.values()), found


def test_offloaded_parameters_are_pinned_and_train_as_fsdp1s_do() -> None:
    found = on_gpu("offload")
    assert (found["names"], found["different"]) == (28, [])
    assert (found["devices"], found["pinned"]) == (["cpu"], True)
    assert found["parameters"] == found["gradients"] == 24


def test_a_model_in_host_memory_leaves_the_device_and_trains_on_as_if_it_never_had() -> None:
    found = on_gpu("host_memory")
    assert (found["names"], found["different"]) == (28, [])
    assert found["inside"] <= found["before"] // 100
    assert found["reserved inside"] < found["reserved before"]
    assert found["after"] == found["before"]
    assert (found["devices inside"], found["pinned"]) == (["cpu"], True)
    assert found["given on"] == ["cuda"]
    assert found["wrong inside"] == found["wrong saved"] == found["wrong after"] == []
    assert found["same objects"]


def test_a_batch_that_ran_out_of_device_memory_is_run_in_smaller_microbatches() -> None:
    found = on_gpu("out_of_memory")
    assert found["retries"] >= 1
    assert found["size"] == 2**16 >> found["retries"]
    assert found["retries again"] == 0
    assert (found["gradients"], found["is same"]) == (24, True)
    assert found["kept"] == 0


def test_weights_that_say_how_they_are_gathered_train_as_by_fully_shard() -> None:
    """fp8 and its like; with torchao installed, its kernels too."""
    found = on_gpu("gather_hooks")
    assert len(found) >= 4
    assert all(found.values()), found


def test_recurrent_layers_compute_with_what_is_trained() -> None:
    """With `fully_shard` alone they keep the weights of the first step: a known fault that `doctor` names."""
    found = on_gpu("recurrent")
    assert (found["is same"], found["by hand is same"]) == (True, False), found


def test_memory_is_what_the_plan_says_and_about_that_of_fsdp1() -> None:
    """FSDP2 gathers into a buffer and copies out of it: it may hold two buffers of a unit more than FSDP1."""
    prepared, fsdp1 = on_gpu("memory", "prepared"), on_gpu("memory", "FSDP1")
    assert prepared["after_sharding"] == pytest.approx(prepared["planned"], rel=0.05)
    assert prepared["after_sharding"] <= 1.02 * fsdp1["after_sharding"]
    assert prepared["in_sharding"] <= prepared["planned"] + 2.1 * prepared["unit"]
    assert prepared["peak"] <= fsdp1["peak"] + 2 * prepared["unit"]


@pytest.mark.parametrize("kind", ["prepared", "FSDP1"])
def test_foretold_memory_is_what_a_gpu_allocates(kind: str) -> None:
    """cuBLAS takes workspaces from the same allocator, 32 MiB for each thread here: no forecast has them."""
    found = on_gpu("forecast", kind)
    difference = found["allocated"] - found["workspaces"] - found["foretold"]
    assert abs(difference) < 0.05 * found["foretold"], found
