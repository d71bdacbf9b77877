"""``offloaded``: everything in host memory, and back: the same objects, bit for bit.

A CPU is taken for a device here; ``tests/sharding/test_gpu.py`` sees what is pinned and freed.
"""

from __future__ import annotations

from tests.ranks import run_ranks
from tests.runtime import host_memory_bodies as host_memory


def test_everything_leaves_the_device_and_comes_back_as_it_was() -> None:
    for found in run_ranks(host_memory.round_trip):
        assert found["bytes before"] > 0
        assert found["bytes inside"] == found["after nested"] == 0
        assert found["moved"] == found["params"]
        for key in ("inside", "given inside", "nested", "objects", "own view", "objects after an error"):
            assert found[key], key
        assert found["losses"]
        assert found["trained"]
        for key, text in (
            ("forward", "The forward of a FSDPNet was called in `offloaded`"),
            ("forward of a unit", "The forward of a FSDPBlock was called in `offloaded`"),
            ("step", "A step of AdamW was made in `offloaded`"),
        ):
            assert found[key][0] == "ModelStateError"
            assert text in found[key][1]


def test_what_is_written_stays_and_a_lack_of_memory_loses_nothing() -> None:
    for found in run_ranks(host_memory.changed_inside):
        assert found["written"]
        assert "entered" not in found
        assert found["objects after a full host"]
        assert found["forward after a full host"] == "no error"
        assert found["full device"][0] == "ModelStateError"
        assert "could not bring everything back to the device: " in found["full device"][1]
        assert "(CUDA out of memory)" in found["full device"][1]
        assert found["saved from the host"]
        assert found["forward from the host"][0] == "ModelStateError"


def test_what_is_on_the_cpu_stays() -> None:
    for found in run_ranks(host_memory.on_a_cpu):
        assert found["CPU"]
        assert found["CPU offload"]
        assert found["plain"]
        assert found["stranger"][0] == "OptimizerError"
        assert found["in a forward"][0] == "ModelStateError"
