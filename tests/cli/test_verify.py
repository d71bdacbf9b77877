"""`verify`: what it shows and returns, for one checkpoint and for two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.cli import main


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    RunJson = Callable[..., tuple[int, dict[str, Any]]]


def test_verify(clean: Path, compiled: Path, tmp_path: Path, run_json: RunJson) -> None:
    out = tmp_path / "out"
    run_json("convert", clean, out, "--world-size", 4)
    code, document = run_json("verify", clean, out)
    assert (code, document["is_same"], document["differences"]) == (0, True, [])
    code, document = run_json("verify", clean, compiled)
    assert code == 0
    assert len(document["renamed"]) == 6


def test_verify_shows_the_first_differences(
    clean: Path, tmp_path: Path, run_json: RunJson, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    run_json("convert", clean, out, "--dtype", "bf16")
    code, document = run_json("verify", clean, out)
    assert (code, document["is_same"]) == (1, False)
    assert {difference["kind"] for difference in document["differences"]} == {"dtype"}
    assert main(["verify", str(clean), str(out)]) == 1
    printed = capsys.readouterr()
    assert "model.2.weight" in printed.out
    assert "Different" in printed.out
    assert printed.err == ""


@pytest.mark.parametrize(("apart", "is_said"), [(2e-8, True), (1e-3, False)])
def test_two_runs_that_differ_in_the_last_bits_are_told_what_does_that(
    apart: float, is_said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """HF's Trainer clips by default, and no screen said that clipped gradients have other last bits."""
    for name, value in (("a", 0.1), ("b", 0.1 + apart)):
        torch.save({"model": {"w": torch.tensor([value, 1.0])}}, tmp_path / f"{name}.pt")
    assert main(["verify", str(tmp_path / "a.pt"), str(tmp_path / "b.pt")]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "Different" in said
    assert ("clipped gradients differ in the last bits" in said) is is_said


def test_verify_of_one_checkpoint(
    clean: Path, tmp_path: Path, run_json: RunJson, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    run_json("convert", clean, out, "--checksums", "--link", "copy")
    code, document = run_json("verify", out)
    assert (code, document["is_whole"], document["damages"]) == (0, True, {})
    assert (document["hashed_files"], document["unprotected"]) == (3, 0)
    assert main(["verify", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    for word in ("SHA256SUMS lists 3 files", "Whole", "entries"):
        assert word in printed.out
    file = max(out.glob("*.distcp"))
    data = bytearray(file.read_bytes())
    data[700] ^= 1
    file.write_bytes(data)
    code, document = run_json("verify", out)
    assert (code, document["is_whole"]) == (1, False)
    assert str(file) in document["damages"]
    assert main(["verify", str(out)]) == 1
    assert "Damaged" in capsys.readouterr().out
