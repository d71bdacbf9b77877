"""Names with ``_orig_mod.`` or ``module.``: what was saved fits compiled models and plain ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.checkpoint_convert import convert_checkpoint
from fsdp_migrate.checkpoint_convert.manifest.options import SourceOptions
from fsdp_migrate.sharding.outlines import outline_model
from tests.checkpoint.samples import load_with_torch
from tests.loading import compiled_bodies as bodies
from tests.models import Net
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from pathlib import Path


KINDS = ["around", "inside", "blocks", "around, flat"]
PREPARED = ["prepared", "compiled in place", "compiled after", "compiled before", "compiled blocks"]
WAYS = {
    "full": ["fully_shard", "compiled before"],
    "sharded": ["fully_shard", "compiled blocks"],
    "local": PREPARED,
}


def test_the_next_losses_are_those_of_fsdp1(tmp_path: Path) -> None:
    wanted = run_ranks(bodies.save_each, str(tmp_path), KINDS, list(WAYS))
    cases = [(kind, form, way) for kind in KINDS for form in WAYS for way in WAYS[form]]
    found = run_ranks(bodies.load_each, str(tmp_path), cases)
    for rank, losses in enumerate(found):
        same = {case: wanted[rank][case[0]] == own for case, own in zip(cases, losses, strict=True)}
        assert [case for case, is_same in same.items() if not is_same] == []

    # Converted, with the model before or after it was compiled.
    arguments = {"auto_wrap_policy": "Block", "use_orig_params": True}
    for number, model in enumerate((Net(), bodies.compiled(Net()))):
        options = SourceOptions(model=outline_model(model, arguments))
        out = tmp_path / f"out{number}"
        convert_checkpoint(tmp_path / "around" / "local", out, options=options)
        assert set(load_with_torch(out)["model"]) == set(Net().state_dict())


def test_the_prefix_of_ddp_fits_models_with_it_and_without(tmp_path: Path) -> None:
    for wanted, *found in run_ranks(bodies.load_ddp, str(tmp_path)):
        assert found == [wanted] * 4
