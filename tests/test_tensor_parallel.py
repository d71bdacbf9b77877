"""Orders, meshes and ties that cannot be: an error on every rank, before anything is changed."""

from __future__ import annotations

import re

import pytest

from tests.rank_bodies import parallelism_refusals
from tests.ranks import run_ranks


ROOT = r"Make one named root mesh.*mesh=mesh\['dp'\]"
UNIT = r"Experts are a unit of their own.*CustomPolicy"
ORDER = "The order is: tensor parallel, activation checkpointing, torch.compile, prepare_fully_shard"

MESSAGES = [
    ("another root", "ModelError", rf"\(tp=2\), but.*\(data=2\), a part of.*\(data=2, tensor=2\).*{ROOT}"),
    ("all ranks", "ModelError", r"over the mesh \(tp=2\).*the mesh \(dp=4\): both hold ranks \[\d, \d\]"),
    ("no mesh", "ModelError", rf"was not told its own mesh.*{ROOT}"),
    ("a group", "ModelError", rf"was not told its own mesh.*{ROOT}"),
    ("the same dimension", "ModelError", r"the mesh \(tp=2\): both hold ranks"),
    ("the whole root", "ModelError", r"the mesh \(dp=2, tp=2\): both hold ranks"),
    ("a mesh without names", "ModelError", rf"\(2,\) without names: both must have names.*{ROOT}"),
    ("NO_SHARD", "ModelError", "NO_SHARD needs a mesh that can be sliced.*'dp_replicate', 'dp_shard', 'tp'"),
    ("a partial parameter", "ModelError", "`norm.weight`.*cannot be partial"),
    ("three dimensions", "UnsupportedFeatureError", r"`norm.weight`.*may have \d dimension"),
    ("on the meta device", "UnsupportedFeatureError", r"`blocks.0.up.weight`.*to_empty\(device"),
    ("a declared tie, torn", "ModelError", "`config.tie_word_embeddings` is true, but.*two parameters"),
    ("experts without a unit", "ModelError", rf"`blocks.0` would be sharded over the mesh \(dp=4\).*{UNIT}"),
    ("experts with their router", "ModelError", rf"`blocks.0.norm.weight` in it is not expert.*{UNIT}"),
    ("experts on too few ranks", "ModelError", r"averaged over 2 ranks, but there are 4 data-parallel ranks"),
    ("tensor parallel after FSDP", "ModelError", f"`blocks.1` is sharded by FSDP already.*{ORDER}"),
    ("FSDP after FSDP", "ModelError", "sharded by fully_shard already.*after tensor parallelism"),
    ("tensor parallel after compile", "ModelError", f"`blocks.1` is compiled already.*{ORDER}"),
    ("a name that matches nothing", "ConfigError", r"`block.\*.up`.*no module. Did you mean `blocks.\d.up`"),
    ("a module that is matched twice", "ConfigError", r"twice.*by `blocks.\*.up` and by `blocks.0.up`"),
    (
        "a pattern that is too short",
        "ConfigError",
        "`blocks.up` of the tensor-parallel plan matches no module",
    ),
    (
        "a tie with one side planned",
        "ModelError",
        r"one parameter.*`embed.weight` plain, `out.weight` as S\(0\)",
    ),
    ("a tie placed in two ways", "ModelError", r"`embed.weight` as S\(1\), `out.weight` as S\(0\)"),
    (
        "a style that does not fit",
        "ModelError",
        "cannot be applied, and nothing of it was: .*ColwiseParallel",
    ),
    ("a mesh of two dimensions", "ConfigError", r"the shape \(2, 2\).*expected one named dimension.*"),
    ("a mesh of its own", "ConfigError", r"the shape \(4,\) and no names.*expected one named dimension"),
]


def test_every_refusal_is_tested() -> None:
    assert {row[0] for row in MESSAGES} == set(parallelism_refusals.WRONG)


@pytest.fixture(scope="module")
def refused() -> list[dict[str, tuple[str, str, bool]]]:
    return run_ranks(parallelism_refusals.refuse_all, world_size=4, timeout=400)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "error", "message"), MESSAGES, ids=[row[0] for row in MESSAGES])
def test_what_cannot_be_is_an_error_before_anything_is_changed(
    name: str, error: str, message: str, refused: list[dict[str, tuple[str, str, bool]]]
) -> None:
    for found, text, untouched in (results[name] for results in refused):
        assert found == error, text
        assert re.search(message, text)
        assert untouched
