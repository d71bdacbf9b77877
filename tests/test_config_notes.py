"""What is said of a config beside the arguments of FSDP1 that are read from it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.config_files import convert_config_file, read_config_file
from fsdp_migrate.config_notes import already_fsdp2, framework_notes, refuse_fsdp2
from fsdp_migrate.errors import ConfigError


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

ACCELERATE = (
    "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
)
HF = "fsdp: full_shard auto_wrap\nfsdp_config:\n  backward_prefetch: backward_pre\n"


@pytest.mark.parametrize(("text", "title"), [(ACCELERATE, "Accelerate"), (HF, "HF Trainer")])
def test_a_config_of_fsdp2_is_named_with_the_copy_of_fsdp1s(text: str, title: str, tmp_path: Path) -> None:
    path = tmp_path / "my config.yaml"
    path.write_text(text)
    assert already_fsdp2(path) is None
    refuse_fsdp2(path)
    convert_config_file(path, in_place=True)
    found = already_fsdp2(path)
    assert found is not None
    assert (found.code, found.fidelity) == ("FM444", "changed")
    assert f"{title}'s settings of FSDP2 already" in found.message
    assert f"--config '{path}.fsdp1'" in str(found.hint)
    with pytest.raises(
        ConfigError, match=r"FSDP2 already, and FSDP1 is to run by it\. Give the file as it was"
    ) as error:
        refuse_fsdp2(path)
    assert f"{path}.fsdp1" in str(error.value)
    refuse_fsdp2(f"{path}.fsdp1")


def test_of_several_copies_the_newest_is_named_and_without_one_no_file_is(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    for prefetch in ("BACKWARD_PRE", "BACKWARD_POST"):
        path.write_text(f"{ACCELERATE}  fsdp_backward_prefetch: {prefetch}\n")
        convert_config_file(path, in_place=True)
    found = already_fsdp2(path)
    assert found is not None
    assert f"{path}.fsdp1.1`" in str(found.hint)
    for end in ("", ".1"):
        (tmp_path / f"accelerate.yaml.fsdp1{end}").unlink()
    found = already_fsdp2(path)
    assert found is not None
    assert str(tmp_path) not in str(found.hint)
    assert "version control" in str(found.hint)


PLAIN = (
    "  fsdp_backward_prefetch: BACKWARD_PRE\n  fsdp_cpu_ram_efficient_loading: false\n"
    "  fsdp_sync_module_states: false\n"
)


def test_what_the_frameworks_own_fsdp2_does_otherwise_is_said(tmp_path: Path) -> None:
    """``config`` says FM354 of bf16, where ``plan`` and ``parity`` find that nothing changes."""
    path = tmp_path / "accelerate.yaml"
    path.write_text(ACCELERATE)
    (note,) = framework_notes(path)
    assert "`prepare_fully_shard`" in note
    assert "Accelerate's own FSDP2 does otherwise: " in note
    assert "FM354 `mixed_precision`" in note
    path.write_text(ACCELERATE.replace("bf16", "'no'") + PLAIN)
    (note,) = framework_notes(path)
    assert note.endswith("Accelerate's own FSDP2 is not run here.")
    # torch's own arguments are no framework's, and what holds no settings of FSDP says nothing.
    path.write_text("sharding_strategy: FULL_SHARD\nbackward_prefetch: BACKWARD_POST\n")
    assert framework_notes(path) == ()
    path.write_text("learning_rate: 1\n")
    assert framework_notes(path) == ()
    assert already_fsdp2(path) is None


def test_settings_of_the_trainer_that_are_not_in_the_file_are_said(tmp_path: Path) -> None:
    path = tmp_path / "fsdp_config.json"
    path.write_text('{"fsdp_transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}')
    note, lacks = framework_notes(path)
    # FM356 and FM358 say where settings stand and who reads them: FSDP2 does nothing otherwise for it.
    assert "does otherwise: FM343 `backward_prefetch`; " in note
    assert "does not hold `fsdp`, `bf16` and `fp16`" in lacks
    # Layers are named: they are the units, though `auto_wrap` stands elsewhere.
    assert "LlamaDecoderLayer" in str(read_config_file(path).auto_wrap_policy)
    whole = {"fsdp": "full_shard auto_wrap", "bf16": True, "fsdp_config": json.loads(path.read_text())}
    path.write_text(json.dumps(whole))
    assert not any("does not hold" in note for note in framework_notes(path))


def test_what_cannot_be_converted_is_said_too(tmp_path: Path) -> None:
    path = tmp_path / "fsdp.yaml"
    path.write_text(
        f"{ACCELERATE}  fsdp_sharding_strategy: HYBRID_SHARD\nnum_machines: 2\nnum_processes: 3\n".replace(
            "  fsdp_sharding_strategy: FULL_SHARD\n", ""
        )
    )
    (note,) = framework_notes(path)
    assert "FM352" in note
