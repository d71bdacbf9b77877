"""Parallelize, then shard: the unsharded model is the reference, in double precision, over several steps."""

from __future__ import annotations

import re

import pytest
import torch

from fsdp_migrate.torch_compat import device_meshes
from tests.rank_bodies import parallelism, parallelism_meta, parallelism_refusals
from tests.ranks import run_ranks


BOUND = 1e-12
"""Double precision leaves about 1e-15 of rounding; a wrong scale or a missing rank shows at 1e-2."""

UP, DOWN = "blocks.0.up.weight", "blocks.1.down.weight"


Trained = list[dict[str, parallelism.Outcome | str]]


@pytest.fixture(scope="module")
def trained() -> Trained:
    return run_ranks(parallelism.train_all, world_size=4, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(parallelism.CASES))
def test_training_equals_the_unsharded_model(name: str, trained: Trained) -> None:
    for found in (outcomes[name] for outcomes in trained):
        if name.startswith("expert") and not device_meshes.HAS_GRADIENT_DIVISOR:
            unit = "`blocks.0.experts` is expert-parallel"
            assert found == f"Unit {unit}, whose gradients this torch cannot scale; 2.7 can."
            continue
        assert isinstance(found, parallelism.Outcome), found
        assert found.found == pytest.approx(found.expected, abs=BOUND)
        assert found.gradients < BOUND
        assert found.parameters < BOUND
        assert [ours for ours, _ in found.norms] == pytest.approx([plain for _, plain in found.norms])
        assert max(plain for _, plain in found.norms) > 0.5, "nothing was clipped"
        assert found.ties == ([("embed.weight", "out.weight")] if "tied" in name else [])
        assert [row["name"] for row in found.json] == list(found.parallel)
        if name.startswith("expert"):
            check_experts(found)
        elif name.startswith("sequence"):
            assert len(found.parallel) == len(found.placed)
            assert found.parallel["norm.weight"] == (("tp",), ("R",), False)
            assert re.search(r"dpxtp \(2, 2\): S\(0\), R", found.placed["norm.weight"])
            assert found.codes == ["FM120"]
        else:
            check_tensor(name, found)


def check_tensor(name: str, found: parallelism.Outcome) -> None:
    assert found.parallel[UP] == (("tp",), ("S(0)",), False)
    assert found.parallel[DOWN] == (("tp",), ("S(1)",), False)
    assert "norm.weight" not in found.parallel
    replicated = "replicated" in name
    dims, sizes = ("dp_replicatexdp_shardxtp", r"\(2, 1, 2\)") if replicated else ("dpxtp", r"\(2, 2\)")
    first = "R, " if replicated else ""
    # How torch prints a strided shard differs from version to version.
    assert re.fullmatch(rf"{dims} {sizes}: {first}_S(tridedShard)?\(.*2\), S\(0\)", found.placed[UP])
    assert re.fullmatch(rf"{dims} {sizes}: {first}S\(0\), S\(1\)", found.placed[DOWN])
    assert found.codes == [*(["FM103"] if "units of their own" in name else []), "FM120", "FM122"]


def check_experts(found: parallelism.Outcome) -> None:
    experts = [f"blocks.{block}.experts.{name}" for block in range(2) for name in ("up", "down")]
    assert list(found.parallel) == experts
    assert found.parallel[experts[0]] == (("ep",), ("S(0)",), True)
    assert found.placed[experts[0]].startswith("dp_mod_epxep (2, 2): ")
    assert found.placed["blocks.0.router.weight"] == "dp (4,): S(0)"
    assert found.codes == ["FM121", "FM122"]


@pytest.mark.slow
def test_uneven_rows_are_right_or_refused() -> None:
    for kind, text, good in run_ranks(parallelism.uneven, world_size=4, timeout=400):
        assert good, text
        if device_meshes.HAS_UNEVEN_STRIDED:
            assert kind == "trained"
        else:
            assert kind == "UnsupportedFeatureError"
            assert re.search(
                r"`blocks.0.up.weight`.*18 rows into 2.*into 4.*Pad the layer to a multiple of 4", text
            )


@pytest.mark.slow
def test_an_optimizer_from_before_keeps_its_state() -> None:
    kinds = ("SGD", "AdamW", "Adagrad")
    for found in run_ranks(parallelism.optimizers_from_before, kinds, world_size=4, timeout=400):
        assert list(found) == list(kinds)
        assert max(found.values()) < BOUND, found


@pytest.mark.slow
def test_sync_module_states_sends_each_part_to_its_likes() -> None:
    found = run_ranks(parallelism.from_rank0, world_size=4, timeout=400)
    assert len({local for local, _ in found}) == 4  # they were different everywhere
    assert all(off == 0 for _, off in found)


@pytest.mark.slow
def test_the_data_dimension_may_be_the_inner_one_where_torch_can() -> None:
    for kind, text in run_ranks(parallelism_refusals.either_order, world_size=4, timeout=400):
        if device_meshes.HAS_ANY_DIM_ORDER:
            assert (kind, float(text)) == ("sharded", 0.0)
        else:
            assert kind == "ModelError"
            assert re.search(
                r"root mesh has the order \('tp', 'dp'\).*data-parallel dimensions must come f", text
            )


def test_checkpointing_in_place_leaves_the_names_that_a_plan_needs() -> None:
    assert run_ranks(parallelism.checkpointed_first) == [True, True]


@pytest.mark.slow
def test_a_parallelized_model_of_the_meta_device_trains_as_under_fsdp1() -> None:
    fsdp1 = run_ranks(parallelism_meta.train, False, False, world_size=4, timeout=400)
    for sync in (False, True):  # FSDP1 sends nothing on a CPU; what it would send are these values
        ours = run_ranks(parallelism_meta.train, True, sync, world_size=4, timeout=400)
        for expected, found in zip(fsdp1, ours, strict=True):
            assert found.losses == expected.losses
            assert found.values.keys() == expected.values.keys()
            assert all(torch.equal(found.values[name], value) for name, value in expected.values.items())


def test_an_init_function_that_forgets_the_placement_is_an_error() -> None:
    for error in run_ranks(parallelism_meta.init_that_forgets_the_placement):
        assert re.match(r"ModelError: .*`weight` of a Linear anew.*to_empty\(device=.*keeps DTensors", error)
