"""What FM451 and FM452 say: where FSDP1 computed with old weights, and where FSDP2 loses what is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.ranks import run_ranks
from tests.sharding import written_weights_bodies as bodies


if TYPE_CHECKING:
    from tests.sharding.written_weights_bodies import Losses, Wrap


WRAPS = [(name, is_orig) for name in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD") for is_orig in (True, False)]
ALL = pytest.mark.parametrize("wrap", WRAPS)
MIXED = "got mixed torch.Tensor and DTensor"
pytestmark = pytest.mark.slow


def are_same(one: Losses, other: Losses) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return False
    return one == pytest.approx(other, rel=1e-4)


@ALL
def test_fsdp1s_teacher_computed_with_its_first_weights_for_good(wrap: Wrap) -> None:
    """The root's under FULL_SHARD, all under SHARD_GRAD_OP; that of FSDP2 is averaged as in one process."""
    was = {"FULL_SHARD": "units", "SHARD_GRAD_OP": "nothing", "NO_SHARD": "one process"}[wrap[0]]
    for found in run_ranks(bodies.taught, wrap):
        assert are_same(found["FSDP2"], found["one process"])
        assert are_same(found["FSDP1"], found[was])
        assert not are_same(found["units"], found["one process"])


@pytest.mark.parametrize(
    ("strategy", "was", "ranks"),
    [
        ("FULL_SHARD without a policy", "nothing", 2),
        ("HYBRID_SHARD", "units", 4),
        ("_HYBRID_SHARD_ZERO2", "nothing", 4),
    ],
)
def test_so_did_a_root_without_units_and_hybrid_shards(strategy: str, was: str, ranks: int) -> None:
    for found in run_ranks(bodies.taught, (strategy, True), world_size=ranks):
        assert are_same(found["FSDP2"], found["one process"])
        assert are_same(found["FSDP1"], found[was])


@ALL
def test_so_did_units_that_a_method_runs_by_themselves(wrap: Wrap) -> None:
    """Each of them is then a root: ``vae.encode(x)``."""
    for found in run_ranks(bodies.asked_by_a_method, wrap):
        first = [found["one process"][0]] * 3
        assert are_same(found["FSDP2"], found["one process"])
        assert are_same(found["FSDP1"], found["one process"] if wrap[0] == "NO_SHARD" else first)


@pytest.mark.parametrize("wrap", WRAPS)
def test_what_was_loaded_after_an_evaluation_counted(wrap: Wrap) -> None:
    assert all(run_ranks(bodies.loaded, wrap))


@ALL
@pytest.mark.parametrize("place", ["after an evaluation", "evaluated before the step"])
def test_fsdp1_took_up_late_what_was_written_after_an_evaluation(wrap: Wrap, place: str) -> None:
    for found in run_ranks(bodies.limited, wrap, place):
        assert are_same(found["FSDP2"], found["one process"])
        assert are_same(found["FSDP1"], found["one process"]) is (wrap[0] == "NO_SHARD")


@ALL
def test_what_is_written_after_the_step_counted_under_both(wrap: Wrap) -> None:
    for found in run_ranks(bodies.limited, wrap, "after the step"):
        assert are_same(found["FSDP1"], found["one process"])
        assert are_same(found["FSDP2"], found["one process"])


@ALL
def test_fsdp2_loses_what_is_written_before_the_backward(wrap: Wrap) -> None:
    for found in run_ranks(bodies.limited, wrap, "before the backward"):
        assert are_same(found["FSDP1"], found["one process"]) is (wrap[0] != "SHARD_GRAD_OP")
        assert isinstance(found["FSDP2"], list)
        assert not are_same(found["FSDP2"], found["one process"])


@ALL
def test_an_average_below_the_forward_meets_whole_weights_and_above_it_counts(wrap: Wrap) -> None:
    for found in run_ranks(contrasted, wrap, "below"):
        assert MIXED in str(found["FSDP2"])
    for found in run_ranks(contrasted, wrap, "above"):
        assert are_same(found["FSDP2"], found["one process"])
        assert are_same(found["FSDP1"], found["one process"]) is (wrap[0] == "NO_SHARD")


def contrasted(wrap: Wrap, place: str) -> dict[str, Losses]:
    return bodies.contrasted(wrap, is_above=place == "above")


def test_moved_above_the_forward_the_values_are_the_same() -> None:
    (above, _), (below, _) = (run_ranks(contrasted, WRAPS[0], place) for place in ("above", "below"))
    assert above["one process"] == below["one process"]


def test_what_a_forward_writes_is_lost_which_fsdp1_kept_under_no_shard() -> None:
    for found in run_ranks(bodies.in_a_forward, ("NO_SHARD", True), "in place"):
        assert are_same(found["FSDP1"], found["one process"])
        assert isinstance(found["FSDP2"], list)
        assert not are_same(found["FSDP2"], found["one process"])


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "NO_SHARD"])
def test_what_a_forward_assigns_to_data_is_not_saved(strategy: str) -> None:
    for found in run_ranks(bodies.saved_in_a_forward, (strategy, True), "put"):
        assert found == {"one process": False, "FSDP1": False, "FSDP2": True}
    for losses in run_ranks(bodies.in_a_forward, ("FULL_SHARD", True), "put"):
        assert not are_same(losses["FSDP2"], losses["one process"])


@ALL
def test_written_above_the_forward_it_counts(wrap: Wrap) -> None:
    for found in run_ranks(bodies.in_a_forward, wrap, "above"):
        assert are_same(found["FSDP2"], found["one process"])


@pytest.mark.parametrize(
    ("wrap", "was"),
    [
        (("SHARD_GRAD_OP of encoders", True), "never"),
        (("SHARD_GRAD_OP of encoders", False), "never"),
        (("FULL_SHARD without a policy", False), "never"),
        (("FULL_SHARD of encoders", True), "above"),
        (("FULL_SHARD of encoders", False), "above"),
        (("NO_SHARD of encoders", True), "above"),
    ],
)
def test_fsdp1_never_took_up_what_a_part_without_gradients_was_given(wrap: Wrap, was: str) -> None:
    expected = {
        way: run_ranks(bodies.in_a_forward, wrap, way)[0]["one process"] for way in ("above", "never")
    }
    for found in run_ranks(bodies.in_a_forward, wrap, "above"):
        assert are_same(found["FSDP2"], expected["above"])
        assert are_same(found["FSDP1"], expected[was])
    assert not are_same(expected["above"], expected["never"])


@pytest.mark.parametrize("is_orig", [True, False])
def test_and_saved_it_as_it_was_first(*, is_orig: bool) -> None:
    for found in run_ranks(bodies.saved_in_a_forward, ("SHARD_GRAD_OP of encoders", is_orig), "above"):
        assert found == {"one process": False, "FSDP1": True, "FSDP2": False}
    for found in run_ranks(bodies.saved_in_a_forward, ("FULL_SHARD of encoders", is_orig), "above"):
        assert not any(found.values())


def test_under_shard_grad_op_the_forward_raises() -> None:
    for found in run_ranks(bodies.in_a_forward, ("SHARD_GRAD_OP", True), "in place"):
        assert MIXED in str(found["FSDP2"])


@pytest.mark.parametrize("wrap", WRAPS[:4])
def test_fsdp1s_states_held_the_old_weights_and_summoning_lost_the_new(wrap: Wrap) -> None:
    old = {"first.weight", "first.bias"}
    is_all = wrap[0] == "SHARD_GRAD_OP"
    for found in run_ranks(bodies.kept, wrap):
        for asked in ("full state", "summoned"):
            assert {name for name in found[asked] if name.startswith("first.")} == old
            assert any(name.startswith("blocks.") for name in found[asked]) is is_all
        assert not found["shards"]
        assert found["shards, summoned with writeback"] == ({"0", "1", "2"} if is_all else {"0"})
