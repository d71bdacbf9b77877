"""Models that some ranks alone make on the meta device, which FSDP1 filled and FSDP2 does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.samples import comments


pytestmark = pytest.mark.any_torch

HF = "import transformers\nfrom transformers import TrainingArguments\n"
META = "with contextlib.nullcontext() if first else accelerate.init_empty_weights():\n    model = make()\n"
BRANCHES = (
    "if rank == 0:\n    model = load()\nelse:\n    with torch.device('meta'):\n        model = make()\n"
)


@pytest.mark.parametrize(
    ("made", "config", "is_said"),
    [
        (META, "", True),
        (META.replace("first", "args.fsdp and not is_local_master"), "", True),
        (BRANCHES, "", True),
        (META, ", fsdp_config={'cpu_ram_efficient_loading': True}", False),
        (META, ", fsdp_config={'sync_module_states': False}", False),
        (META, ", fsdp_config={'version': 2}", False),
        (META.replace("first", "args.small"), "", False),
        ("with init_empty_weights():\n    model = make()\n", "", False),
        ("if rank == 0:\n    print(model)\n", "", False),
    ],
)
def test_ranks_that_make_models_on_meta_get_no_weights(made: str, config: str, *, is_said: bool) -> None:
    """FSDP1 under the Trainer sends them by default; FSDP2 stops at parameters on the meta device."""
    body = f'{made}a = TrainingArguments("o", fsdp="full_shard auto_wrap"{config})\n'
    assert ("make models on the meta device" in comments(body, HF)) is is_said


@pytest.mark.parametrize(
    ("context", "is_said"),
    [
        ("torch.device('meta')", True),
        ("init_on_device(torch.device('meta'), include_buffers=True)", True),
        ("accelerate.init_empty_weights(include_buffers=True)", True),
        ("accelerate.init_empty_weights()", False),
        ("accelerate.init_empty_weights(include_buffers=False)", False),
        ("init_on_device(torch.device('meta'))", False),
    ],
)
def test_buffers_on_meta_are_filled_by_nobody(context: str, *, is_said: bool, tmp_path: Path) -> None:
    """Accelerate's FSDP2 sends a state dict, and copies other buffers: on meta there is nothing to copy."""
    made = f"with contextlib.nullcontext() if rank == 0 else {context}:\n    model = make()\n"
    call = 'a = TrainingArguments("o", fsdp="full_shard auto_wrap")\n'
    said = comments(f"{made}{call}", HF)
    assert "make models on the meta device" in said
    assert ("within accelerate.init_empty_weights() in place" in said) is is_said
    (tmp_path / "models.py").write_text(made)
    (tmp_path / "train.py").write_text(f"{HF}{call}transformers.Trainer(model, a).train()\n")
    (told,) = [each.becomes for each in scan_paths([tmp_path]).uses if "meta device" in each.becomes]
    assert ("init_empty_weights() in place" in told) is is_said


def test_where_they_are_made_in_another_file_too(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(META)
    call = 'a = TrainingArguments("o", fsdp="full_shard auto_wrap")\n'
    (tmp_path / "train.py").write_text(f"{HF}{call}transformers.Trainer(model, a).train()\n")
    (tmp_path / "args.py").write_text("kwargs = {'fsdp': 'full_shard auto_wrap', 'output_dir': 'o'}\n")
    found = {Path(each.path).name for each in scan_paths([tmp_path]).uses if "meta device" in each.becomes}
    assert "train.py" in found
    (tmp_path / "models.py").write_text(f"type Path = str\n{META}")  # of a newer Python than the oldest
    assert [each for each in scan_paths([tmp_path]).uses if "meta device" in each.becomes]
    (tmp_path / "models.py").write_text(META.replace("first", "small"))
    assert not [each for each in scan_paths([tmp_path]).uses if "meta device" in each.becomes]


def test_of_words_in_a_dict_it_is_said_too() -> None:
    body = f"{META}given = {{'fsdp': 'full_shard auto_wrap', 'seed': 1}}\n"
    assert "make models on the meta device" in comments(body, HF)
