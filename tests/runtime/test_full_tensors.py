"""``named_full_tensors``: names, values, collectives, memory, and loops that end early."""

from __future__ import annotations

import pytest

from tests.ranks import run_ranks
from tests.runtime import weight_sync_bodies as weight_sync


def test_names_and_values_are_those_of_a_state_dict() -> None:
    for found in run_ranks(weight_sync.values):
        cases = {name: wrong for name, wrong in found.items() if ", " in name}
        assert len(cases) == 5 * 3
        assert not any(cases.values()), cases
        assert found["cast"] == found["shared"] == []
        # A tie's second name comes directly after its first.
        names = [name for name in found["reference"] if name != "head.out.weight"]
        names.insert(names.index("embed.weight") + 1, "head.out.weight")
        assert [name for name in found["names"] if name != "count"] == names
        assert found["one tensor"]
        assert set(found["chosen"]) == {"head.out.weight", "blocks.1.up.weight", "offset"}
        assert found["chosen"] == [name for name in found["names"] if name in found["chosen"]]


def test_a_bucket_is_gathered_at_once() -> None:
    for found in run_ranks(weight_sync.communication):
        assert found["1"] == {"all-gather": found["params"]}
        assert found[str(2**30)] == {"all-gather": 1}


def test_memory_is_that_of_a_bucket_whatever_the_model() -> None:
    for found in run_ranks(weight_sync.memory):
        size = found["tensor"]
        # The bucket, this rank's part of it, a tensor; and for a moment what a thread of gloo still holds of
        # the last bucket, or of what ranks told each other. One tensor is the buffer itself. The model
        # has 32.
        assert size <= found["1"] <= (1 + 0.6) * size + size * 1.1
        assert 4 * size <= found["4"] <= (4 + 2 + 0.2) * size + 4.1 * size
        assert 32 * size <= found["32"] <= (32 + 16 + 1) * size + 4 * size


def test_what_does_not_fit_is_an_error_on_every_rank() -> None:
    first, second = run_ranks(weight_sync.wrong_calls)
    for found in (first, second):
        assert "have" not in found["unknown name"][1]
        for key, text in (
            ("unknown name", "`names` holds `head.out.weigth`, which is no tensor of the model's state dict"),
            ("unknown name", "Did you mean `head.out.weight`?"),
            (
                "other buckets",
                "Ranks 0 and 1 called `named_full_tensors` with different models or arguments: ",
            ),
            ("other buckets", "`bucket_bytes` of 10 and 11"),
            ("other names", "1 and 2 tensors"),
            ("other dtype", "`offset` of shape [6], float32 and `offset` of shape [6], bfloat16"),
            ("meta", "`weight` is on the meta device and has no values"),
            ("offloaded meta", "`weight` has no values to move"),
        ):
            assert found[key][0] == "ModelError"
            assert text in found[key][1]
        assert found["no bytes"][0] == "ConfigError"
        assert found["afterwards"] == []
    assert first["unknown name"][1].startswith("Rank 1 cannot give its tensors, so no rank does: ")


def test_a_loop_that_ends_early_is_an_error_elsewhere_and_no_hang() -> None:
    first, second = run_ranks(weight_sync.early_ends)
    for key in ("break", "error", "never begun", "closed"):
        kind, text = first[key]
        assert kind == "ModelStateError", key
        assert "Rank 1 cannot go on with `named_full_tensors`" in text
        assert "its loop over the tensors has ended before the last of them" in text
    assert second["break"] == second["never begun"] == ("no error", "")
    assert second["error"] == ("ModelStateError", "the engine is gone")
    for found in (first, second):
        assert found["all"] == found["last"] == ("no error", "")
        assert found["afterwards"] == []
    assert (second["counts"][0], first["counts"][0], second["counts"][1]) == (1, 1, 1)
    assert second["memory"] == ("MemoryError", "no memory here")
    assert first["memory"][0] == "ModelStateError"
    assert "Rank 1 cannot go on" in first["memory"][1]
    assert "no memory here" in first["memory"][1]


@pytest.mark.slow
def test_models_on_meshes_of_several_dimensions() -> None:
    for found in run_ranks(weight_sync.on_meshes, world_size=4):
        assert sorted(found) == sorted(weight_sync.MESHES)
        refused: set[str] = set()
        for name, case in found.items():
            if isinstance(case, str):
                refused.add(name)  # which another test holds to the torch that it is refused on
                continue
            assert [case[str(num_bytes)] for num_bytes in (1, 3000, 2**30)] == [[], [], []], name
            assert case[f"gathers of {2**30}"] <= case["gathers of 3000"] < case["gathers of 1"]
        assert refused <= {"uneven tensor parallel", "expert parallel"}
        # Over the shards alone, not over the replicas.
        assert found["HYBRID_SHARD"][f"gathers of {2**30}"] == 1
