"""What the project around a config of HF Trainer says: the words of `fsdp`, and which transformers it has."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.adapters.conversion import launched_with
from fsdp_migrate.config_files import convert_config_file


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch
LINE = 'torchrun sft.py --output_dir o --fsdp "{}" \\\n    --fsdp_config conf/fsdp.json\n'


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    versions = {"transformers": "5.23.0"}
    monkeypatch.setattr(launched_with, "installed_versions", versions.items)
    return versions


def _said(folder: Path, script: str, **more: object) -> dict[tuple[str, str], str]:
    (folder / "conf").mkdir(exist_ok=True)
    (folder / "requirements.txt").touch()
    (folder / "run.sh").write_text(script)
    given = {"version": 1, "transformer_layer_cls_to_wrap": ["Block"], "use_orig_params": True, **more}
    (folder / "conf" / "fsdp.json").write_text(json.dumps(given))
    report = convert_config_file(folder / "conf" / "fsdp.json", framework="hf")
    return {
        (each.code, each.subject): f"{each.message} {each.hint or ''}"
        for each in report.conversion.findings
        if each.subject == "fsdp" or each.code == "FM358" or "is installed here" in each.message
    }


def test_words_of_the_line_that_names_the_config_are_not_asked_for(tmp_path: Path) -> None:
    """`fsdp` "was not looked at", while scan names the line of run.sh that gives it."""
    found = _said(tmp_path, "export A=1\n" + LINE.format("full_shard auto_wrap"))
    assert ("FM356", "fsdp") not in found
    assert "run.sh:2 gives `full_shard auto_wrap`, which FSDP2 takes as it is." in found["FM340", "fsdp"]


def test_words_of_that_line_decide_what_is_written(tmp_path: Path) -> None:
    """The file said full_shard's, and whoever read it was to write the other by hand."""
    line = LINE.format("shard_grad_op auto_wrap")
    found = _said(tmp_path, line)
    assert ("FM356", "fsdp") not in found
    assert "takes as it is" in found["FM340", "fsdp"]
    report = convert_config_file(tmp_path / "conf" / "fsdp.json", framework="hf")
    assert json.loads(report.conversion.text)["reshard_after_forward"] is False
    # Of two lines that differ neither decides.
    (tmp_path / "other.sh").write_text(LINE.format("full_shard auto_wrap"))
    report = convert_config_file(tmp_path / "conf" / "fsdp.json", framework="hf")
    assert json.loads(report.conversion.text)["reshard_after_forward"] is True
    assert [each.code for each in report.conversion.findings if each.subject == "fsdp"] == ["FM356"]


def test_words_that_the_config_does_not_say_are_to_be_written(tmp_path: Path) -> None:
    """It said in one breath that FSDP2 takes them as they are, and that they are no word for the file."""
    found = _said(tmp_path, LINE.format("shard_grad_op auto_wrap"), sharding_strategy="FULL_SHARD")
    assert "takes as it is" not in found["FM356", "fsdp"]
    assert "FSDP2 goes by `reshard_after_forward: true` of this file" in found["FM356", "fsdp"]
    assert found["FM356", "fsdp"].endswith("Write `reshard_after_forward: false` into this file.")


@pytest.mark.parametrize(
    "script",
    [
        "",
        LINE.format("$WORDS"),
        LINE.format("hybrid_shard auto_wrap"),
        LINE.format("full_shard").replace("conf/fsdp", "conf/other"),
        LINE.format("full_shard") + LINE.format("shard_grad_op"),
        "echo 'not closed\n",
    ],
)
def test_words_that_are_not_known_or_are_to_be_changed_are_asked_for(script: str, tmp_path: Path) -> None:
    assert "was not looked at" in _said(tmp_path, script)["FM356", "fsdp"]


def test_of_an_installed_version_that_does_it_all_others_are_not_spoken_of(
    tmp_path: Path, installed: dict[str, str]
) -> None:
    """It was headed `changed`, where there is nothing to do; so was the type of state dicts."""
    found = _said(tmp_path, "", state_dict_type="SHARDED_STATE_DICT")
    assert not [code for code, _ in found if code == "FM358"]
    said = [text for text in found.values() if "5.23.0 is installed here" in text]
    assert len(said) == 2
    assert "5.9" not in str(said)
    (tmp_path / "requirements.txt").write_text("transformers[torch]>=4.50\n")
    assert "5.9" not in str(_said(tmp_path, ""))
    for required in ("transformers==5.2\n", "torch\ntransformers >=4.50,<5.5\n", "transformers~=5.1\n"):
        (tmp_path / "requirements.txt").write_text(required)
        assert "5.0 to 5.9 save SHARDED_STATE_DICT" in str(_said(tmp_path, ""))
    (tmp_path / "requirements.txt").write_text("")
    for version in ("5.9.1", "4.57.0"):
        installed["transformers"] = version
        found = _said(tmp_path, "", state_dict_type="SHARDED_STATE_DICT")
        assert "if an older one ran it" in found["FM358", "state_dict_type"]
        assert "5.0 to 5.9 save SHARDED_STATE_DICT" in str(_said(tmp_path, ""))
    installed.clear()
    assert "5.0 to 5.9 save SHARDED_STATE_DICT" in str(_said(tmp_path, ""))
