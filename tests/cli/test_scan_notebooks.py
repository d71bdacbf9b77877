"""What ``scan`` shows of notebooks, and of files that launch lines name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fsdp_migrate.cli import main


if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = pytest.mark.any_torch


def test_a_notebook_is_left_to_people(
    tmp_path: Path,
    run_json: Callable[..., tuple[int, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(net)\n"
    Path("book.ipynb").write_text(
        json.dumps({"cells": [{"cell_type": "code", "source": code}], "nbformat": 4})
    )
    _, document = run_json("scan", ".")
    (step,) = document["steps"]
    assert "Change the notebooks by hand" in step["text"]
    assert main(["scan", "."]) == 0
    shown = capsys.readouterr().out
    assert "Done by `fsdp-migrate rewrite`" not in shown
    assert "In a source it would become: prepare_fully_shard(net" in " ".join(shown.split())


def test_the_list_of_configs_says_what_its_step_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fsdp.json").write_text('{"backward_prefetch": "backward_pre", "limit_all_gathers": true}')
    Path("run.sh").write_text("torchrun t.py --output_dir o --fsdp full_shard --fsdp_config fsdp.json\n")
    assert main(["scan", "."]) == 0
    shown = capsys.readouterr().out
    assert "fsdp-migrate config fsdp.json --from hf --write" in shown
    assert "fsdp.json: hf: would change" in shown
    assert "does not show their framework" not in shown
