"""What docs/frameworks.md shows for FSDP1's bits under Accelerate, run as it stands there."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

import pytest
import torch

from fsdp_migrate.adapters.engine.shared_keys import AUTOCAST, CAST_ALL_BUFFERS, FLOAT_OUTPUTS
from tests.frameworks import accelerate_bodies
from tests.models import VOCABULARY
from tests.ranks import ROOT, run_ranks


if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("precision", "accumulation", "most"),
    [("bf16", 1, 0.5), ("no", 1, 0.5), ("bf16", 2, 1e9), ("no", 2, 1e9)],
)
def test_the_example_has_the_bits_of_fsdp1(
    precision: str, accumulation: int, most: float, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "frameworks.md").read_text()
    [example] = re.findall(r"```python\n([^`]*?^from accelerate\b.*?)```", page, re.DOTALL | re.MULTILINE)
    # That they can be compared, and where to clip, is all that is added.
    backward, clip = "accelerator.backward(loss)\n", "clip_grad_norm_(model, 0.5)"
    assert backward in example
    assert clip in example
    example = example.replace(backward, f"losses.append(loss.item()); {backward}")
    example = example.replace(clip, f"clip_grad_norm_(model, {most})")
    given = str(tmp_path / "old"), precision, accumulation, most, example
    for found in run_ranks(accelerate_bodies.go_on, *given):
        (losses, weights), (own_losses, own_weights) = found["fsdp1"], found["example"]
        assert len(losses) == 3 * accumulation
        assert own_losses == losses
        assert own_weights.keys() == weights.keys()
        # The norm by which gradients are clipped is summed in another order.
        apart = 1e-7 if most < 1 else 0.0
        for name, weight in weights.items():
            torch.testing.assert_close(own_weights[name], weight, rtol=0.0, atol=apart)


def test_where_low_outputs_meet_float32_fsdp2_raises_and_float_helps() -> None:
    """FM354 names these, and says `.float()`."""
    for before, after in zip(
        *(run_ranks(accelerate_bodies.meet_float32, each) for each in (1, 2)), strict=True
    ):
        assert set(before.values()) == {""}
        assert {name for name, said in after.items() if not said} == {"float", "product"}


def test_where_float32_meets_weights_within_the_model_autocast_helps() -> None:
    """FM354 names these, and the line that puts the autocast around the model."""
    stops = partial(accelerate_bodies.meet_within, in_autocast=True)
    for before, after, helped in zip(
        *(run_ranks(accelerate_bodies.meet_within, each) for each in (1, 2)), run_ranks(stops, 2), strict=True
    ):
        assert set(before.values()) == set(helped.values()) == {""}
        assert {name for name, said in after.items() if not said} == {"input"}


@pytest.mark.parametrize("are_outputs_used", [False, True], ids=["loss", "outputs"])
def test_losses_in_float32_need_the_autocast_and_the_dtype_of_outputs(*, are_outputs_used: bool) -> None:
    """FM354 names both lines: with them losses are FSDP1's, also where units' outputs are used."""
    both = "\n".join(line.strip("`") for line in (AUTOCAST, FLOAT_OUTPUTS))
    lines = {"fsdp1": (1, ""), "plain": (2, ""), "both": (2, both)}
    losses = partial(accelerate_bodies.losses_of, are_outputs_used=are_outputs_used)
    found = {
        name: run_ranks(partial(losses, lines=text), version)[0] for name, (version, text) in lines.items()
    }
    # The first loss: over gloo torch up to 2.8 adds gradients up, and does not divide them by the ranks.
    first = {name: found[name][0] for name in ("fsdp1", "plain", "both")}
    assert first["both"] == first["fsdp1"] != first["plain"]


def test_losses_of_a_model_with_buffers_need_their_cast_too() -> None:
    """FM354 names the line: rotary frequencies were bfloat16 under FSDP1."""
    cast = CAST_ALL_BUFFERS.format("bfloat16")
    both = [line.strip("`") for line in (AUTOCAST, FLOAT_OUTPUTS)]
    lines = {"fsdp1": (1, []), "both": (2, both), "all": (2, [cast.strip("`"), *both])}
    losses = partial(accelerate_bodies.losses_of, are_buffers_used=True)
    first = {
        name: run_ranks(partial(losses, lines="\n".join(text)), version)[0][0]
        for name, (version, text) in lines.items()
    }
    assert first["all"] == first["fsdp1"] != first["both"]


def test_where_a_forward_reads_the_weights_of_embeddings_they_have_to_stay() -> None:
    """FM343 of ``embedding-weights`` says so, with the line by which they stay in the root."""
    assert set(run_ranks(accelerate_bodies.read_embeddings, 1)) == {""}
    assert all("DTensor" in said for said in run_ranks(accelerate_bodies.read_embeddings, 2))
    stay = partial(accelerate_bodies.read_embeddings, do_they_stay=True)
    assert set(run_ranks(stay, 2)) == {""}


def test_the_largest_gradient_is_read_of_one_rank_unless_it_is_gathered() -> None:
    """FM326 names what clips by it, and says `.full_tensor()`."""
    assert run_ranks(accelerate_bodies.clip_by_largest, 1) == [(3.0, 3.0), (3.0, 3.0)]
    (of_rank_0, whole), (of_rank_1, again) = run_ranks(accelerate_bodies.clip_by_largest, 2)
    # Over gloo torch 2.7 adds gradients up, and does not divide them by the ranks.
    assert (of_rank_0, of_rank_1) == (whole / 3, whole)
    assert whole == again


def test_fsdp2_looks_for_the_layers_in_every_model() -> None:
    """FM449 says so at the second, with the line that helps."""
    for before, after in zip(
        *(run_ranks(accelerate_bodies.prepare_two, each) for each in (1, 2)), strict=True
    ):
        assert set(before.values()) == {""}
        assert "Could not find the transformer layer class Block" in after["as it is"]
        assert after["named anew"] == ""


def test_fsdp2_takes_no_optimizer_that_holds_more_than_the_model() -> None:
    """FM449 says so."""
    for before, after in zip(*(run_ranks(accelerate_bodies.hold_more, each) for each in (1, 2)), strict=True):
        assert before == ""
        assert "couldn't be switched to its sharded version" in after


def test_fsdp2_shards_what_is_ignored_where_rank_0_loads_for_all() -> None:
    """FM343 and a step of `scan` say so; otherwise each rank has its own values, as under FSDP1."""
    own = [(False, 1.0), (False, 2.0)]
    assert run_ranks(partial(accelerate_bodies.ignore, is_loaded_by_rank_0=False), 1) == own
    assert run_ranks(partial(accelerate_bodies.ignore, is_loaded_by_rank_0=False), 2) == own
    lost = [(True, 1.0), (True, 1.0)]
    assert run_ranks(partial(accelerate_bodies.ignore, is_loaded_by_rank_0=True), 2) == lost


@pytest.mark.parametrize("places", [1, 2])
def test_what_every_unit_uses_in_two_places_has_its_gradients_added_otherwise(places: int) -> None:
    """As a decoder's layers use what the encoder gave: docs/frameworks.md says so, of float32 too."""
    found = {
        how: run_ranks(accelerate_bodies.add_up, how, places)[0] for how in ("fsdp1", "fsdp2", "prepared")
    }
    assert torch.equal(found["prepared"], found["fsdp1"])
    # gloo sums in place of averaging in some versions of torch; a power of two changes no bit.
    times = torch.round(found["fsdp2"].norm() / found["fsdp1"].norm())
    assert torch.equal(found["fsdp2"] / times, found["fsdp1"]) is (places == 1)
    torch.testing.assert_close(found["fsdp2"] / times, found["fsdp1"])


def test_collectives_and_arrays_take_fsdp1s_parameters_and_no_dtensors() -> None:
    """FM423 says so of Accelerate's collectives, of histograms and of the norm; FM333 of a part's state."""
    for before, after in zip(
        *(run_ranks(accelerate_bodies.read_parameters, each) for each in (1, 2)), strict=True
    ):
        assert (before.pop("state of a part"), after.pop("state of a part")) == ("Tensor", "DTensor")
        assert set(before.values()) == {""}
        assert {name for name, said in after.items() if not said} == {"norm as a number"}


def test_clipping_while_gradients_are_added_up_is_otherwise_under_fsdp2() -> None:
    """FM326 says so, and that `if accelerator.sync_gradients:` above it trains as FSDP2 does."""
    found = {
        (version, how): run_ranks(accelerate_bodies.clip_while_adding, version, how)[0]
        for version in (1, 2)
        for how in ("everywhere", "guarded")
    }
    assert 0.0 not in found[1, "everywhere"][0]
    assert [norm > 0 for norm in found[2, "everywhere"][0]] == [False, True, False, True]
    weights = {key: weight for key, (_, weight) in found.items()}
    assert not torch.allclose(weights[1, "everywhere"], weights[2, "everywhere"], atol=1e-4)
    for version in (1, 2):
        torch.testing.assert_close(weights[version, "guarded"], weights[2, "everywhere"])


def test_an_accelerator_without_the_model_saves_none(tmp_path: Path) -> None:
    """FM303 says so of `save_state`, where a model that is sharded already is not to be given to it."""
    (files, held), _ = run_ranks(accelerate_bodies.save_apart, str(tmp_path))
    assert "optimizer.bin" in files
    assert not [name for name in files if "model" in name]
    assert held == [-(-VOCABULARY // 2), 6]


def test_a_state_that_an_optimizer_makes_early_is_not_that_of_what_it_steps() -> None:
    """FM445 says so: FSDP2 puts new parameters into it; under FSDP1 it is made of the sharded ones."""
    assert run_ranks(accelerate_bodies.make_state_early) == [False, False]
