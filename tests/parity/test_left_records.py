"""Files of JSON that both runs of a script wrote, and lines that name what `compare` itself gave them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.cli.render.compare import show_comparison
from fsdp_migrate.parity.left_records import compare_records
from fsdp_migrate.parity.script_report import verdict
from fsdp_migrate.parity.script_runs import compare_scripts


if TYPE_CHECKING:
    from pathlib import Path

    from fsdp_migrate.parity.script_report import ScriptReport


pytestmark = pytest.mark.any_torch

SCRIPT = """
import json, os, sys, time
print("resumed from", os.path.abspath(sys.argv[1]))
with open(os.path.join(sys.argv[2], "metrics.jsonl"), "w") as log:
    for step in range(3):
        record = {"step": step, "loss": 0.5 / (step + 1) * FACTOR, "from": sys.argv[1]}
        record["seconds"] = time.time()
        log.write(json.dumps(record) + "\\n")
open(os.path.join(sys.argv[2], "odd.jsonl"), "w").write(f"no JSON {time.time()}")
"""


def _report(tmp_path: Path, factor: str) -> ScriptReport:
    for name, own in (("before", "1"), ("after", factor)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(SCRIPT.replace("FACTOR", own))
    (tmp_path / "after" / "runs").mkdir()
    checkpoint = tmp_path / "after" / "runs" / "step_5.pt"
    checkpoint.write_bytes(b"")
    command = [sys.executable, "train.py", "CKPT", "OUT"]
    return compare_scripts(
        tmp_path / "before", tmp_path / "after", command, checkpoints=(str(checkpoint), str(checkpoint))
    )


@pytest.mark.slow
def test_a_checkpoint_below_the_new_project_is_not_printed_otherwise(tmp_path: Path) -> None:
    """Its path is in the folder of one run alone, so that it was `.` in the one and whole in the other."""
    report = _report(tmp_path, "1")
    assert (report.num_printed, report.printed_before, report.printed_after) == (0, (), ())
    [records] = report.records
    assert (records.path, records.is_same, records.words) == ("metrics.jsonl", True, "")
    assert "odd.jsonl" in report.notes[-1]
    assert "metrics.jsonl" not in report.notes[-1]


@pytest.mark.slow
def test_a_log_of_json_lines_is_compared_record_by_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = _report(tmp_path, "(1 + step)")
    show_comparison(report)
    assert (
        "metrics.jsonl: of 9 values 2 differ; the most does `loss` of line 3, 0.16666666666666666 under "
        "FSDP1 and 0.5 under FSDP2\n"
    ) in capsys.readouterr().out
    assert json.loads(json.dumps(report.as_dict()))["records"][0]["num_others"] == 2
    # It is as what is printed: said in the verdict, and no part of it.
    trained = replace(report, steps_before=1, steps_after=1, were_fsdp1=(True, False))
    assert trained.alike
    assert verdict(trained).endswith(" Written otherwise: 1 file of records.")


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ('{"a": 1.0}', '{"a": 1.0000000001}', "1 value differs by rounding alone"),
        (
            '{"log": [{"a": 1}, {"a": 2}]}',
            '{"log": [{"a": 1}, {"a": 3}]}',
            "most does `log[1].a`, 2",
        ),
        ('{"a": NaN, "b": 1}', '{"a": NaN, "b": 2}', "of 2 values 1 differs; the most does `b`"),
        ('{"a": NaN}', '{"a": 1.0}', "`a`, nan under FSDP1 and 1.0 under FSDP2"),
        ('{"a": true}', '{"a": "x"}', "`a`, True under FSDP1 and 'x' under FSDP2"),
        ('{"a": 1}', '{"a": 1, "b": 2}', "under FSDP2 alone 1 value, the first `b`"),
        # Of training, whatever else it names.
        ('{"memory_bank_loss": 1.0}', '{"memory_bank_loss": 2.0}', "the most does `memory_bank_loss`"),
        ('{"train_runtime": 1, "peakMemory": 2}', '{"train_runtime": 3, "peakMemory": 4}', ""),
    ],
)
def test_what_differs_in_a_document_is_named(one: str, other: str, said: str) -> None:
    found = compare_records("state.json", one, other)
    assert found is not None
    assert said in found.words if said else not found.words
    assert found.is_same is (said.endswith("alone") or not said)


def test_what_is_no_json_is_not_compared() -> None:
    assert compare_records("m.jsonl", '{"a": 1}\n', '{"a": 1}\n{"a"') is None
    # A value that a number has in the one alone is no rounding.
    found = compare_records("m.jsonl", '{"a": 0}\n\n{"a": 0.0}', '{"a": 1e-12}\n\n{"a": Infinity}')
    assert found is not None
    assert found.num_others == 2
