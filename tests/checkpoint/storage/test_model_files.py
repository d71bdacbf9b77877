"""The configuration and the tokenizer of a model, from its folder into the output."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.checkpoint_convert import (
    OutputOptions,
    convert_checkpoint,
    read_model_files,
    verify_checkpoints,
)
from fsdp_migrate.cli import main
from fsdp_migrate.errors import OutputExistsError
from fsdp_migrate.finding_codes import FINDING_CODES
from tests.checkpoint.samples import PLAIN, codes


if TYPE_CHECKING:
    from pathlib import Path

    from fsdp_migrate.findings import Finding


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "LICENSE").write_text("free")
    (folder / "training_args.bin").write_bytes(b"PK a pickle")
    (folder / "model.safetensors").write_bytes(b"old weights")
    (folder / "model.safetensors.index.json").write_text("{}")
    return folder


@pytest.mark.parametrize("size", [1 << 40, 64])
def test_a_model_gets_its_configuration_and_tokenizer(tmp_path: Path, model_folder: Path, size: int) -> None:
    files = read_model_files(model_folder)
    assert set(files) == {"config.json", "tokenizer.json", "LICENSE"}
    options = OutputOptions(model_files=files, max_shard_size=size)
    report = convert_checkpoint(PLAIN, tmp_path / "out", to="hf", output_options=options, checksums=True)
    assert "FM292" not in codes(report)
    for name, data in files.items():
        assert (tmp_path / "out" / name).read_bytes() == data
        assert name in (tmp_path / "out" / "SHA256SUMS").read_text()
    assert not (tmp_path / "out" / "training_args.bin").exists()
    assert verify_checkpoints(PLAIN, tmp_path / "out").is_same
    assert "FM292" not in codes(convert_checkpoint(PLAIN, tmp_path / "out", to="hf", overwrite=True))


def test_what_a_published_model_lacks_is_said_and_no_pickle_comes_along(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(PLAIN, source)
    for name in ("training_args.bin", "rng_state_0.pth", "other.pkl", "trainer_state.json"):
        (source / name).write_bytes(b"\x80\x04K\x01.")
    (source / "README.md").write_text("mine")
    report = convert_checkpoint(source, tmp_path / "out", to="hf")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"README.md", "model.safetensors"}
    (finding,) = (each for each in report.findings if each.code == "FM292")
    assert "`config.json`, without which `from_pretrained` fails, and the tokenizer." in finding.message
    assert "--hf-config" in (finding.hint or "")
    left = {each.subject: each.message for each in report.findings if each.code == "FM212"}
    # What every run leaves is told apart from what may be wanted.
    assert left["to='hf'"] == "`rng_state_0.pth`, `trainer_state.json`, `training_args.bin`."
    assert left[str(source)] == "`other.pkl`."
    (source / "config.json").write_text("{}")
    report = convert_checkpoint(source, tmp_path / "bare", to="hf")
    (finding,) = (each for each in report.findings if each.code == "FM292")
    assert "config.json" not in f"{finding.subject} {finding.message}"  # that one is there
    # Whoever gave a folder without a tokenizer is not told to give one.
    given = OutputOptions(model_files={"config.json": b"{}"})
    report = convert_checkpoint(source, tmp_path / "given", to="hf", output_options=given)
    (finding,) = (each for each in report.findings if each.code == "FM292")
    assert "--hf-config" not in str(finding.hint)
    assert "AutoTokenizer needs it, the model does not" in str(finding.hint)
    # The title is that of either: one named `config.json` where the tokenizer alone lacked.
    assert "config.json" not in FINDING_CODES["FM292"].summary
    (source / "vocab.txt").write_text("a")
    assert "FM292" not in codes(convert_checkpoint(source, tmp_path / "whole", to="hf"))


def test_what_the_output_has_is_not_said_to_be_left(tmp_path: Path) -> None:
    """HF Trainer leaves `config.json` and weights beside its state; the output has both by these names."""
    source = tmp_path / "source"
    shutil.copytree(PLAIN, source)
    for name in ("config.json", "model.safetensors", "training_args.bin"):
        (source / name).write_bytes(b"{}")
    given = OutputOptions(model_files={"config.json": b"{}"})
    report = convert_checkpoint(source, tmp_path / "out", to="hf", output_options=given)
    (left,) = (each for each in report.findings if each.code == "FM212")
    assert left.message == "`training_args.bin`."
    (source / "training_args.bin").unlink()
    report = convert_checkpoint(source, tmp_path / "all", to="hf", output_options=given)
    assert "FM212" not in codes(report)
    # For another framework weights of that name come along, or are named.
    report = convert_checkpoint(source, tmp_path / "torch", world_size=8)
    assert (tmp_path / "torch" / "model.safetensors").exists() != ("FM212" in codes(report))


def test_a_training_states_own_files_stay_behind_and_the_output_is_known_again(
    tmp_path: Path, model_folder: Path
) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    shutil.copytree(PLAIN, source)
    own = ("progress.json", "notes.txt", "all_results.json", "best.model", "zero_to_fp32.py", "train.yaml")
    read = ("README.md", "tokenizer.json", "vocab.txt", "chat_template.jinja", "preprocessor_config.json")
    for name in (*own, *read, "modeling_x.py", "generation_config.json"):
        (source / name).write_text("{}")
    report = convert_checkpoint(source, out, to="hf")
    (left,) = (each for each in report.findings if each.code == "FM212")
    assert all(f"`{name}`" in left.message for name in own)
    written = {*read, "modeling_x.py", "generation_config.json", "model.safetensors"}
    assert {path.name for path in out.iterdir()} == written
    (model_folder / "progress.json").write_text("{}")
    (model_folder / "rotary.py").write_text("")  # what modeling_x.py may import
    options = OutputOptions(model_files=read_model_files(model_folder))
    convert_checkpoint(source, out, to="hf", output_options=options, overwrite=True)
    assert {path.name for path in out.iterdir()} == {*written, "config.json", "LICENSE", "rotary.py"}


def test_what_somebody_else_put_beside_weights_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name in ("model.safetensors", "optimizer.bin", "README.md"):
        (out / name).write_text("theirs")
    with pytest.raises(OutputExistsError, match=r"is no checkpoint: .* holds `optimizer.bin`\."):
        convert_checkpoint(PLAIN, out, to="hf", overwrite=True)
    (out / "optimizer.bin").unlink()
    (out / "model.safetensors").unlink()
    with pytest.raises(OutputExistsError, match=r"holds `README.md`\."):
        convert_checkpoint(PLAIN, out, to="hf", overwrite=True)
    convert_checkpoint(PLAIN, tmp_path / "own", to="hf")
    (tmp_path / "own" / "README.md").write_text("my card")
    with pytest.raises(OutputExistsError):  # another target keeps nothing
        convert_checkpoint(PLAIN, tmp_path / "own", to="torch", overwrite=True)
    convert_checkpoint(PLAIN, tmp_path / "own", to="hf", overwrite=True)
    assert (tmp_path / "own" / "README.md").read_text() == "my card"


def _of_weights_alone(tmp_path: Path, model_folder: Path) -> tuple[Finding, ...]:
    """Of a source that has what is needed, which --weights-only leaves behind."""
    source = tmp_path / "with-config"
    shutil.copytree(PLAIN, source)
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(model_folder / name, source)
    report = convert_checkpoint(source, tmp_path / "weights", to="hf", weights_only=True)
    assert not (tmp_path / "weights" / "config.json").exists()
    return tuple(report.findings)


def test_what_stood_in_the_folder_is_not_said_to_lack(tmp_path: Path, model_folder: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    shutil.copy(model_folder / "config.json", out)
    report = convert_checkpoint(PLAIN, out, to="hf", overwrite=True)
    (finding,) = (each for each in report.findings if each.code == "FM292")
    assert "config.json" not in f"{finding.message} {finding.hint}"
    assert "the tokenizer" in finding.message
    (finding,) = (f for f in _of_weights_alone(tmp_path, model_folder) if f.code == "FM292")
    assert "`config.json`, without which `from_pretrained` fails, and the tokenizer" in finding.message
    shutil.copy(model_folder / "tokenizer.json", out)
    assert "FM292" not in codes(convert_checkpoint(PLAIN, out, to="hf", overwrite=True))


def test_the_command_takes_the_folder_of_a_model(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["convert", str(PLAIN), str(tmp_path / "out"), "--to", "hf", "--hf-config"]
    assert main([*arguments, str(model_folder)]) == 0
    assert (tmp_path / "out" / "config.json").is_file()
    assert main([*arguments, str(tmp_path)]) == 1
    assert "has no config.json" in capsys.readouterr().err
