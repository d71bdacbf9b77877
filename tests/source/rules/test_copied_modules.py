"""Heads and embeddings that PEFT copies, where Accelerate's FSDP2 stops at those of a tied model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

YAML = "distributed_type: {}\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
TRAIN = (
    "from peft import LoraConfig, get_peft_model\nfrom transformers import Trainer\n\n{}\n"
    "model = get_peft_model(model, LoraConfig(r=8, {}))\n"
    "Trainer(model=model, args=args, train_dataset=data).train()\n"
)


@pytest.mark.parametrize(
    ("before", "given", "kind", "named"),
    [
        ("", "modules_to_save=['lm_head', 'embed_tokens']", "FSDP", "`embed_tokens`, `lm_head`"),
        ("", "modules_to_save=['model.embed_tokens']", "FSDP", "`embed_tokens`"),
        ("MODULES = ('wte',)", "modules_to_save=MODULES", "FSDP", "`wte`"),
        ("", "modules_to_save=['lm_head']", "MULTI_GPU", None),
        ("", "modules_to_save=['score', 'norm']", "FSDP", None),
        ("", "modules_to_save=None", "FSDP", None),
        ("", "modules_to_save=args.modules", "FSDP", None),
        ("", "target_modules=['lm_head']", "FSDP", None),
    ],
)
def test_what_may_be_tied_is_named(
    tmp_path: Path, before: str, given: str, kind: str, named: str | None
) -> None:
    (tmp_path / "train.py").write_text(TRAIN.format(before, given))
    (tmp_path / "fsdp.yaml").write_text(YAML.format(kind))
    found = [use for use in scan_paths([tmp_path]).uses if use.rule == "copied-modules"]
    assert [(use.code, use.action) for use in found] == [("FM343", "commented")] * (named is not None)
    assert all(f"PEFT trains copies of {named}." in use.becomes for use in found)
