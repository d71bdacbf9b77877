"""What lies beside the weights of an output for Hugging Face, as the dry run and the real one tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.checkpoint.planning.test_config_fit import said
from tests.checkpoint.samples import PLAIN


if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_dry_run_knows_what_stands_in_the_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text("{}")
    dry = said(capsys, PLAIN, out, "--overwrite", "--dry-run")
    assert dry["FM292"]["message"] == "the output lacks the tokenizer."
    assert said(capsys, PLAIN, out, "--overwrite")["FM292"] == dry["FM292"]
