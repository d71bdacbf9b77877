"""``fsdp-migrate compare``: a script in two folders, what each trains, prints and leaves."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.cli import main
from fsdp_migrate.cli.render.compare import show_comparison
from fsdp_migrate.errors import ConfigError, RankError
from fsdp_migrate.parity.printed_lines import Run
from fsdp_migrate.parity.report import Difference
from fsdp_migrate.parity.script_report import Checkpoints, ScriptReport, cause, verdict
from fsdp_migrate.parity.script_runs import Comparison, compare_scripts, report_of
from fsdp_migrate.parity.tensors import Gap, find_gap


if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
from fsdp_migrate.runtime import end_process_group
HEAD
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
SHARD
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    loss = model(torch.ones(2, 3) + step).square().mean() * FACTOR
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("WORD")
    print(f"step {step}: loss {loss.item():.9f} in pid {os.getpid()}")
os.makedirs(os.path.join(sys.argv[1], "logs"))
STATE
torch.save({"model": state}, os.path.join(sys.argv[1], "last.pt"))
open(os.path.join(sys.argv[1], "NOTES"), "w").close()
end_process_group()
"""
FSDP1 = {
    "HEAD": "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType",
    "SHARD": "model = FSDP(model, use_orig_params=True, device_id=torch.device('cpu'))",
    "STATE": "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT): state = model.state_dict()",
    "FACTOR": "1",
    "NOTES": "fsdp1.txt",
    "WORD": "a batch in float32",
}
FSDP2 = {
    "HEAD": "from fsdp_migrate import prepare_fully_shard\nfrom fsdp_migrate.runtime import full_state_dict",
    "SHARD": "model = prepare_fully_shard(model, {'use_orig_params': True})",
    "STATE": "state = full_state_dict(model)['model']",
    "FACTOR": "1",
    "NOTES": "fsdp1.txt",
    "WORD": "a batch in float32",
}


def script(folder: Path, parts: dict[str, str], **others: str) -> Path:
    text = SCRIPT
    for name, value in {**parts, **others}.items():
        text = text.replace(name, value)
    folder.mkdir()
    (folder / "train.py").write_text(text)
    return folder


@pytest.mark.slow
def test_a_script_that_trains_alike_is_identical(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = script(tmp_path / "before", FSDP1), script(tmp_path / "after", FSDP2)
    given = [str(before), str(after), "--", "python", "train.py", "OUT"]
    assert main(["compare", *given]) == 0
    shown = capsys.readouterr()
    # 4 parameters: gradients and values of 2 steps, and the values before them.
    assert shown.out.splitlines()[-1] == "Identical: 20 tensors of 2 steps are the same, bit for bit."
    assert "last.pt: the same" in shown.out
    assert "Printed with other numbers" not in shown.out
    assert f"the script under FSDP2 runs in {after}" in shown.err
    assert [each.name for each in before.iterdir()] == ["train.py"]
    assert "were not compared" not in shown.out
    assert "only (" not in shown.out
    assert "trains no model with FSDP1" not in shown.out


@pytest.mark.any_torch
@pytest.mark.slow
def test_what_trains_prints_and_leaves_otherwise_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = script(tmp_path / "before", FSDP1)
    after = script(tmp_path / "after", FSDP2, FACTOR="3", NOTES="fsdp2.txt", WORD="a batch in bfloat16")
    given = ["--", "python", "train.py", "OUT"]
    assert main(["compare", str(before), str(after), *given]) == 1
    said = capsys.readouterr().out
    assert said.startswith("The runs part in step 1, at gradient ")
    assert "every number is 3 times FSDP1's" in said
    assert "  FSDP1: step 0: loss 0." in said
    assert "Printed under FSDP1 only (2 of 2):\n  a batch in float32\n  a batch in float32\n" in said
    assert "Printed under FSDP2 only (2 of 2):\n  a batch in bfloat16\n" in said
    assert "Written under FSDP1 only: fsdp1.txt" in said
    assert "Written under FSDP2 only: fsdp2.txt" in said
    assert "last.pt: differs: model." in said
    assert said.splitlines()[-1].startswith("Different: 16 of 20 tensors of 2 steps; the first is gradient ")
    # Without shards FSDP1 trains as with them: the factor stands in the script.
    assert " cause:     not FSDP1's shards: with sharding_strategy=NO_SHARD" in said


# FSDP1 keeps a root whole after a forward without a backward: what is then written to its shards, the next
# forward does not see. One process has no shards, so two are needed.
STALE = """
import sys
import torch
import torch.distributed as dist
from fsdp_migrate.runtime import end_process_group
HEAD
dist.init_process_group("gloo")
torch.manual_seed(0)
model, slow = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).requires_grad_(False)
SHARD
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    with torch.no_grad():
        for one, other in zip(slow.parameters(), model.parameters()):
            one.data.mul_(0.5).add_(other.data, alpha=0.5)
        target = slow(torch.ones(1, 2))
    (model(torch.ones(1, 2)) - target).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
end_process_group()
"""
STALE_FSDP1 = {
    "HEAD": "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy",
    "SHARD": "given = {'sharding_strategy': ShardingStrategy.SHARD_GRAD_OP, 'use_orig_params': True, "
    "'device_id': torch.device('cpu')}\nmodel, slow = FSDP(model, **given), FSDP(slow, **given)",
}
STALE_FSDP2 = {
    "HEAD": "from fsdp_migrate import prepare_fully_shard",
    "SHARD": "given = {'sharding_strategy': 'SHARD_GRAD_OP', 'use_orig_params': True}\n"
    "model, slow = prepare_fully_shard(model, given), prepare_fully_shard(slow, given)",
}


@pytest.mark.slow
def test_a_fault_of_fsdp1_itself_is_told_from_one_of_the_migration(tmp_path: Path) -> None:
    for name, parts in (("before", STALE_FSDP1), ("after", STALE_FSDP2)):
        text = STALE
        for word, code in parts.items():
            text = text.replace(word, code)
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(text)
    command = ["torchrun", "--nproc-per-node", "2", "train.py"]
    report = compare_scripts(tmp_path / "before", tmp_path / "after", command)
    assert report.first is not None
    assert (report.first.step, report.unsharded, report.alike) == (2, "FSDP2", False)
    assert "FSDP1's own run was off" in cause(report)
    assert verdict(report).endswith("FSDP1's own run was off.")


@pytest.mark.any_torch
@pytest.mark.slow
def test_each_run_goes_on_from_its_own_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("import sys\nprint(open(sys.argv[1]).read())\n")
    for name in ("old", "new"):
        (tmp_path / name).write_text(f"from the {name} one")
    given = ["--checkpoint", str(tmp_path / "old"), str(tmp_path / "new"), "--", "python", "train.py", "CKPT"]
    assert main(["compare", str(folder), str(folder), *given]) == 1
    said = capsys.readouterr().out
    assert "Printed under FSDP1 only (1 of 1):\n  from the old one\n" in said
    assert "Printed under FSDP2 only (1 of 1):\n  from the new one\n" in said


@pytest.mark.any_torch
@pytest.mark.slow
def test_a_script_that_differs_from_itself_is_not_comparable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = script(tmp_path / "one", FSDP2, FACTOR="os.getpid()")
    given = [str(folder), str(folder), "--json", "--", "python", "train.py", "OUT"]
    assert main(["compare", *given]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["identical"], document["differs_from_itself"]) == (False, True)


@pytest.mark.slow
def test_a_script_that_fails_is_told_with_its_own_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "def go():\n    raise ValueError('no such batch\\n  look here\\n  and there')\ngo()\nprint()\n"
    )
    with pytest.raises(RankError) as raised:
        compare_scripts(tmp_path, tmp_path, ["python", "train.py"])
    said = str(raised.value)
    assert said.startswith(f"`python train.py` failed in {tmp_path} (exit code 1). It printed:\nTraceback")
    assert said.endswith("ValueError: no such batch\n  look here\n  and there")


@pytest.mark.slow
def test_a_script_that_starts_its_ranks_is_told_with_the_error_of_one(tmp_path: Path) -> None:
    """Of `torch.multiprocessing.spawn` the parent's traceback came alone, which says nothing."""
    (tmp_path / "train.py").write_text(
        "import torch.multiprocessing as mp\n\ndef run(rank):\n    raise ValueError('settle this first')\n\n"
        "if __name__ == '__main__':\n    mp.spawn(run, nprocs=1)\n"
    )
    with pytest.raises(RankError, match=r"ValueError: settle this first$"):
        compare_scripts(tmp_path, tmp_path, ["python", "train.py"])


def test_files_of_a_checkpoint_that_is_the_output_itself_are_compared_with_it(tmp_path: Path) -> None:
    """Two files of one save were listed as compared, and as in no form that is."""
    given = {name: tmp_path / name / "out" for name in ("first", "second")}
    for number, folder in enumerate(given.values()):
        folder.mkdir(parents=True)
        torch.save({"w": torch.full((2,), number)}, folder / "checkpoint-1.pt")
        optimizer = {"state": {"w": {"exp_avg": torch.ones(2)}}, "param_groups": [{"params": ["w"]}]}
        torch.save(optimizer, folder / "adamw-1.pt")
        (folder / "log.txt").write_text(str(number))
        (folder / "latest").write_text(f"step-{number}")
        torch.save(number, folder / "rng.pt")
    report = report_on(tmp_path, [])
    assert [each.path for each in report.checkpoints] == ["."]
    assert [each for each in report.notes if "in no form" in each] == [
        "Written by both, with other bytes, and in no form that is compared: latest, log.txt, rng.pt."
    ]


@pytest.mark.slow
def test_a_script_without_a_step_shows_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text("print('done')\n")
    assert main(["compare", str(tmp_path), str(tmp_path), "--", "python", "train.py"]) == 1
    said = capsys.readouterr().out
    assert "Files were not compared: the command has no `OUT`." in said
    assert "Nothing was seen: no optimizer of torch made a step in the run under FSDP1." in said


@pytest.mark.slow
def test_what_fsdp1_saved_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text("import sys\nopen(sys.argv[1], 'w').write('new')\n")
    saved = tmp_path / "after" / "model.pt"
    torch.save({"weight": torch.ones(2)}, saved)
    before, folders = saved.read_bytes(), [str(tmp_path / "before"), str(tmp_path / "after")]
    assert main(["compare", *folders, "--", "python", "train.py", "model.pt"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert f"saves where it always saves, and may overwrite what is there: {saved}. Write `OUT`" in said
    assert saved.read_bytes() == before
    assert "add `--in-place` before `--`" in said
    assert main(["compare", *folders, "--", "python", "train.py", "OUT/model.pt"]) == 1
    assert saved.read_bytes() == before
    assert main(["compare", *folders, "--in-place", "--", "python", "train.py", "model.pt"]) == 1
    assert saved.read_text() == "new"


@pytest.mark.parametrize(
    ("folder", "command", "said"),
    [
        ("", [], "There is no command to run"),
        ("nowhere", ["python"], "is no folder"),
        ("", ["no-such-program"], "`no-such-program` is no program that can be found in PATH"),
    ],
)
def test_what_cannot_run_is_said(folder: str, command: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        compare_scripts(tmp_path, tmp_path / folder, command)


def test_checkpoints_need_a_place_in_the_command(tmp_path: Path) -> None:
    given = str(tmp_path), str(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="The command has no `CKPT`"):
        compare_scripts(tmp_path, tmp_path, ["python"], checkpoints=given)
    with pytest.raises(ConfigError, match=r"There is no checkpoint .*nowhere"):
        compare_scripts(tmp_path, tmp_path, ["python", "CKPT"], checkpoints=given)


@pytest.mark.slow
def test_a_sitecustomize_of_ones_own_runs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import os\nos.environ['OWN'] = 'yes'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"))
    (tmp_path / "train.py").write_text("import os\nassert os.environ['OWN'] == 'yes'\n")
    assert compare_scripts(tmp_path, tmp_path, ["python", "train.py"]).steps_before == 0


def report_on(
    folder: Path,
    found: list[Difference],
    were_fsdp1: tuple[bool, bool] = (True, False),
    *,
    enlarged: int | None = None,
    have_state: tuple[bool, bool] = (True, True),
    printed_after: tuple[str, ...] = (),
) -> ScriptReport:
    """Report on two runs of two steps, with what was found in them."""
    kept, seen = folder / "first" / "kept", folder / "second" / "found in first"
    kept.mkdir(parents=True)
    seen.mkdir(parents=True)
    for step in (1, 2):
        document = {
            "is_in_both": True,
            "are_fsdp1": were_fsdp1,
            "is_others": False,
            "have_state": have_state,
            "compared": 2,
            "number": step,
            "is_enlarged": step == enlarged,
            "differences": [each.as_dict() for each in found if each.step == step],
        }
        (seen / f"step-{step}.json").write_text(json.dumps(document))
        (kept / f"step-{step}.pt").touch()
    both = (("first", ()), ("second", printed_after))
    first, second = (Run(folder, lines, folder / each / "out") for each, lines in both)
    return report_of(first, second, Comparison(("python", "OUT"), 2, folder))


def test_a_script_that_stayed_fsdp1_and_one_that_never_was_are_told(tmp_path: Path) -> None:
    stayed = report_on(tmp_path / "stayed", [], (True, True))
    assert (stayed.alike, stayed.notes) == (False, ())
    assert verdict(stayed).startswith("Not migrated: the second run trains with FSDP1 too.")
    never = report_on(tmp_path / "never", [], (False, False))
    assert never.alike
    assert never.notes == (
        "The first run trains no model with FSDP1: BEFORE is to be the project as it was.",
    )
    turned = report_on(tmp_path / "turned", [])
    assert (turned.alike, turned.notes) == (True, ())


def test_a_framework_that_shards_is_a_cause_of_its_own(tmp_path: Path) -> None:
    report = replace(report_on(tmp_path, []), unsharded="FSDP1")
    assert "Look at what was rewritten" in cause(report)
    assert "FM354" not in cause(report)
    assert "FM354" in cause(replace(report, is_others=True))
    neither = replace(report, unsharded="neither")
    for factor, said in ((1 + 1e-4, "Leave out the clipping once"), (1.1, "FSDP1's own runs is off")):
        gap = find_gap(torch.ones(2), torch.ones(2) * factor)
        assert gap is not None
        first = Difference(step=1, stage="gradient", name="a", module="", rank=0, gap=gap)
        assert said in cause(replace(neither, differences=(first,)))
    assert "FM354" not in cause(replace(report, is_others=True, unsharded="FSDP2"))


def test_values_of_each_ranks_own_are_the_cause_of_a_first_step_that_differs(tmp_path: Path) -> None:
    """A seed of its own on each rank: an evaluation without a backward was said to be the cause."""
    report = replace(report_on(tmp_path, []), unsharded="neither")
    gap = find_gap(torch.ones(2), torch.ones(2) * 1.5)
    assert gap is not None
    first = Difference(step=0, stage="parameter", name="a", module="", rank=0, gap=gap)
    told = replace(report, differences=(first,), told=("FM132 sync_module_states: The ranks have ...",))
    assert cause(told).startswith("the values that the runs begin with")
    assert "begin with" not in cause(replace(told, told=()))
    assert "begin with" not in cause(replace(told, differences=(replace(first, step=3),)))


def test_what_the_run_does_otherwise_by_its_own_words_may_be_the_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FM273 stood among what was printed; the cause was to be looked for in what was rewritten.

    What is the same as under FSDP1, at the level of INFO, was said to be printed by one run alone.
    """
    tied = "FM273 `a`: One parameter."
    lines = (f"WARNING:fsdp_migrate:{tied}", "[x][INFO] FM001 sharding_strategy: Alike.", "FM999 b: own")
    gap = Gap(words="only under FSDP2")
    found = [Difference(step=1, stage="parameter", name="a", module="", rank=0, gap=gap)]
    report = replace(report_on(tmp_path, found, printed_after=lines), unsharded="FSDP1")
    assert (report.told, report.printed_after) == ((tied, "FM001 sharding_strategy: Alike."), (lines[2],))
    assert cause(report).endswith("Or what the run under FSDP2 says that it does otherwise: FM273")
    assert "FM273" not in cause(replace(report, unsharded="FSDP2"))
    show_comparison(report)
    said = capsys.readouterr().out
    assert f"The run under FSDP2 says what it does otherwise:\n  {tied}\n" in said
    assert "FM001" not in said
    show_comparison(report, everything=True)
    assert "FM001" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stage", "words", "is_said"),
    [
        ("gradient", "only under FSDP2", True),
        ("gradient", "only under FSDP1", False),
        ("parameter", "", False),
    ],
)
def test_gradients_that_fsdp1_lost_are_a_cause(
    tmp_path: Path, stage: Any, words: str, *, is_said: bool
) -> None:
    """A GAN's generator in mixed precision: what was rewritten was said to be wrong."""
    first = Difference(step=1, stage=stage, name="a", module="", rank=0, gap=Gap(words=words))
    report = replace(report_on(tmp_path, []), unsharded="FSDP1", differences=(first,))
    assert ("fsdp1-loses-gradients" in cause(report)) is is_said
    assert "fsdp1-loses-gradients" not in cause(replace(report, unsharded="FSDP2"))


@pytest.mark.parametrize(
    ("stage", "factor", "printed", "unsharded", "is_said"),
    [
        (
            "gradient",
            1.01,
            "WARNING FM022 mixed_precision.reduce_dtype: added up in float32",
            "unknown",
            True,
        ),
        ("gradient", 1.01, "WARNING FM022 mixed_precision.reduce_dtype: added up in float32", "FSDP1", True),
        ("gradient", 1.01, "the same, without a code", "unknown", False),
        ("gradient", 2.0, "WARNING FM022 mixed_precision.reduce_dtype: added up", "unknown", False),
        ("optimizer group", 1.01, "WARNING FM022 mixed_precision.reduce_dtype: added up", "unknown", False),
        ("gradient", 1.01, "WARNING FM022 mixed_precision.reduce_dtype: added up", "FSDP2", False),
    ],
)
def test_what_the_run_says_of_its_sums_is_the_cause(
    stage: Any, factor: float, printed: str, unsharded: Any, is_said: bool, tmp_path: Path
) -> None:
    """FM022, behind many other lines: a factor of 2, and what no sum makes, is none of it."""
    gap = find_gap(torch.ones(2), torch.ones(2) * factor)
    assert gap is not None
    found = [Difference(step=1, stage=stage, name="a", module="", rank=0, gap=gap)]
    lines = (*(f"of its own {'x' * each}" for each in range(30)), printed)
    report = replace(report_on(tmp_path, found, printed_after=lines), unsharded=unsharded)
    assert ("FM022" in cause(report)) == is_said


@pytest.mark.parametrize(
    ("have", "stage", "factor", "whose"),
    [
        ((False, True), "parameter", 1.1, "FSDP1"),
        ((True, False), "parameter", 1.1, "FSDP2"),
        ((False, False), "parameter", 1.1, None),  # both start anew
        ((False, True), "gradient", 1.1, None),  # what differs before the step is not of its optimizer
        ((False, True), "parameter", 1 + 1e-6, None),
    ],
)
def test_an_optimizer_that_was_not_loaded_is_named(
    have: tuple[bool, bool], stage: Any, factor: float, whose: str | None, tmp_path: Path
) -> None:
    gap = find_gap(torch.ones(2), torch.ones(2) * factor)
    assert gap is not None
    first = Difference(step=2, stage=stage, name="a", module="", rank=0, gap=gap)
    report = report_on(tmp_path, [first], have_state=have)
    report = replace(report, unsharded="" if whose else "FSDP1", is_others=True)
    assert cause(report).startswith(f"{whose}'s optimizer." if whose else "not FSDP1's shards")
    assert ("own run was off" in verdict(report)) == (whose == "FSDP1")


def test_rounding_is_told_from_what_differs(tmp_path: Path) -> None:
    """What differs by more is named first, and alone makes the runs different."""
    one = torch.tensor([1.0, -2.0])
    rounded, other = find_gap(one, one * (1 + 3e-7)), find_gap(one, one * 1.001)
    assert rounded is not None
    assert other is not None
    found = [
        Difference(step=step, stage="gradient", name=name, module="", rank=0, gap=gap)
        for step, name, gap in [(1, "rounded", rounded), (2, "other", other)]
    ]
    common: dict[str, Any] = {"before": "a", "after": "b", "command": (), "steps_before": 2, "steps_after": 2}
    alike = ScriptReport(
        **common,
        compared=4,
        differences=tuple(found[:1]),
        num_differences=1,
        num_rounded=1,
        checkpoints=(Checkpoints(path="last", is_same=False, is_rounded=True),),
    )
    assert (alike.alike, alike.identical) == (True, False)
    assert not replace(alike, differs_from_itself=True).alike
    assert verdict(alike) == "Alike: of 4 tensors of 2 steps 1 differ, by rounding alone."
    unread = replace(alike, checkpoints=(Checkpoints(path="last", is_same=None, words="odd"),))
    assert verdict(unread).endswith("differ, by rounding alone. Not compared: 1 checkpoint.")
    printed = replace(alike, num_printed=2)
    assert verdict(printed).endswith("differ, by rounding alone. Printed otherwise: 2 lines.")
    report = report_on(tmp_path, found)
    assert [each.name for each in report.differences] == ["other", "rounded"]
    assert verdict(report) == "Different: 1 of 4 tensors of 2 steps; the first is gradient other, step 2."


@pytest.mark.slow
def test_what_abort_at_the_end_runs_again(tmp_path: Path) -> None:
    """As gloo aborts now and then under FSDP1; the second of these runs goes well."""
    (tmp_path / "train.py").write_text(
        "import pathlib, sys\n"
        "here = pathlib.Path('tries')\n"
        "here.open('a').write('x')\n"
        "out = pathlib.Path(sys.argv[1], 'notes.txt')\n"
        "assert not out.exists()\n"
        "out.write_text(sys.argv[1] + here.read_text())\n"
        "if len(here.read_text()) % 2:\n"
        "    print(\"terminate called after throwing an instance of 'gloo::EnforceNotMet'\")\n"
        "    print('Traceback (most recent call last):')  # as torchrun does then\n"
        "    print('torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ')\n"
        "    sys.exit(1)\n"
    )
    report = compare_scripts(tmp_path, tmp_path, ["python", "train.py", "OUT"])
    assert (tmp_path / "tries").read_text() == "x" * 4
    # The path in it is the same in both, what follows is not.
    [note] = report.notes
    assert note == "Written by both, with other bytes, and in no form that is compared: notes.txt."


@pytest.mark.parametrize(("factor", "is_alike"), [(1 + 1e-6, True), (2.0, False)])
def test_small_numbers_of_a_checkpoint_are_measured_by_themselves(
    factor: float, is_alike: bool, tmp_path: Path
) -> None:
    """Of moments, which are near 0, twice as much is not rounding; the largest difference is named."""
    values = torch.linspace(1, 2, 4)
    for name, scale in (("first", 1.0), ("second", factor)):
        (tmp_path / name / "out").mkdir(parents=True)
        state = {"a": values * (1 + 1e-7 * (scale != 1.0)), "moment": values * 1e-9 * scale}
        torch.save({"model": state}, tmp_path / name / "out" / "last.pt")
    rounded = find_gap(values, values * (1 + 3e-7))
    assert rounded is not None
    found = [Difference(step=1, stage="gradient", name="a", module="", rank=0, gap=rounded)]
    report = report_on(tmp_path, found)
    [saved] = report.checkpoints
    assert (saved.is_same, saved.is_rounded, report.alike) == (False, is_alike, is_alike)
    assert saved.words.startswith("model.moment: ")


def left(folder: Path, name: str, states: Sequence[dict[str, Any]]) -> Checkpoints:
    """Return how a file that both runs left is compared."""
    for run, state in zip(("first", "second"), states, strict=True):
        (folder / run / "out").mkdir(parents=True)
        torch.save(state, folder / run / "out" / name)
    [saved] = report_on(folder, []).checkpoints
    return saved


@pytest.mark.parametrize(
    ("after", "is_same", "said"),
    [
        ({"net.w": 8, "net.b": 3}, None, "(FM238)."),
        ({"net.w": 8, "net.b": 3, "ema": 4}, False, "(FM238). Besides, it differs: "),
        ({}, False, "model.net._flat_param: only the first"),  # nothing stands in its place
    ],
)
def test_a_flat_parameter_that_is_gone_is_what_the_migration_asks_for(
    after: dict[str, int], is_same: bool | None, said: str, tmp_path: Path
) -> None:
    ema = torch.linspace(1, 2, 3)
    state = {name: torch.ones(size) for name, size in after.items() if name != "ema"}
    saved = left(
        tmp_path,
        "agent.pt",
        [
            {"model": model, "opt": {"state": {}, "param_groups": [{"params": [*range(len(model))]}]}, **more}
            for model, more in (
                ({"net._flat_param": torch.ones(6)}, {"ema": {"w": ema}}),
                (state, {"ema": {"w": ema * after.get("ema", 1)}}),
            )
        ],
    )
    assert saved.is_same is is_same
    assert said in saved.words
    told = verdict(replace(report_on(tmp_path / "told", []), checkpoints=(saved,)))
    assert told.endswith("Not compared: 1 checkpoint.") == (is_same is None)


@pytest.mark.parametrize(("step", "is_same"), [(8, None), (9, False)])
def test_an_optimizer_of_ranks_that_is_whole_now_is_what_the_migration_asks_for(
    step: int, is_same: bool | None, tmp_path: Path
) -> None:
    """FM425: the names of what lies in the files have nothing in common, and the verdict was "Different"."""
    names = ["up.weight", "up.bias"]
    model = {name: torch.linspace(1, 2, 4) for name in names}
    whole = {name: {"exp_avg": torch.ones(4), "exp_avg_sq": torch.ones(4)} for name in names}
    for run in ("first", "second"):
        folder = tmp_path / run / "out" / "step-8"
        folder.mkdir(parents=True)
        torch.save(model, folder / "model.pt")
        torch.save({"step": 8 if run == "first" else step}, folder / "trainer.pt")
    group: dict[str, Any] = {"lr": 0.1, "params": [0]}
    for rank in range(2):
        flat = {0: {"exp_avg": torch.ones(4), "exp_avg_sq": torch.ones(4), "step": torch.tensor(2.0)}}
        state = {"state": flat, "param_groups": [group]}
        torch.save(state, tmp_path / "first" / "out" / "step-8" / f"optimizer_rank{rank}.pt")
    state_of_all = {"state": whole, "param_groups": [{**group, "params": names}]}
    torch.save(state_of_all, tmp_path / "second" / "out" / "step-8" / "optimizer.pt")
    [saved] = report_on(tmp_path, []).checkpoints
    assert saved.is_same is is_same
    assert saved.words.startswith(
        "`optimizer` is one rank's part of flat parameters in each of FSDP1's files"
    )
    assert ("Besides, it differs: trainer.step" in saved.words) is (is_same is False)


def adam(first: torch.Tensor, second: torch.Tensor, lr: float = 0.1, **model: torch.Tensor) -> dict[str, Any]:
    own = {"state": {"w": {"exp_avg": first, "exp_avg_sq": second}}}
    return {"model": model, "optim": {**own, "param_groups": [{"params": ["w"], "lr": lr}]}}


@pytest.mark.parametrize(
    ("other", "besides", "is_fsdp1s"),
    [
        ({}, "Nothing else differs.", True),
        ({"w": torch.linspace(1, 2, 4) * (1 + 1e-6)}, "Besides, it differs: model.w: ", True),
        ({"w": torch.linspace(1, 2, 4) * 1.5}, "Besides, it differs: model.w: ", False),
        ({"second": torch.linspace(2, 3, 4)}, "Besides, it differs: optim.state.w.exp_avg_sq: ", False),
        ({"lr": 0.2}, "Besides, it differs: optim.param_groups.0.lr: ", False),
    ],
)
def test_a_file_that_fsdp1_saved_corrupt_is_told_from_one_that_is_wrong(
    other: dict[str, Any], besides: str, is_fsdp1s: bool, tmp_path: Path
) -> None:
    """With FM217 one moment is written over the other: that one says nothing of FSDP2's."""
    first, second = torch.linspace(-1, 1, 4), torch.linspace(1, 2, 4)
    right: dict[str, Any] = {"first": first, "second": second, "w": torch.linspace(1, 2, 4)}
    corrupt = adam(**{**right, "first": second})
    saved = left(tmp_path / "corrupt", "epoch_1.opt", (corrupt, adam(**{**right, **other})))
    assert saved.words.startswith("FSDP1's own file is corrupt, FM217 `optim")
    assert besides in saved.words
    assert (saved.is_same, saved.is_rounded, saved.is_fsdp1s) == (False, False, is_fsdp1s)
    said = verdict(replace(report_on(tmp_path / "told", []), checkpoints=(saved,)))
    assert said.endswith(" FSDP1's own files are corrupt (FM217).") == is_fsdp1s
    # Where both have it, and where FSDP2's alone has it, FSDP1's is not what is to blame.
    for number, states in enumerate(((corrupt, {**corrupt, "step": 1}), (adam(**right), corrupt))):
        blamed = left(tmp_path / str(number), "epoch_1.opt", states)
        assert ("corrupt" in blamed.words, blamed.is_fsdp1s, blamed.is_same) == (False, False, False)


def test_the_largest_difference_of_a_file_is_named_wherever_it_stands(tmp_path: Path) -> None:
    """Not of the first ten alone; the largest number too, where another differs by more of its own."""
    values = torch.linspace(1, 2, 4)
    one = {f"{number:02}": values for number in range(20)}
    other = {name: value * (1 + 1e-6) for name, value in one.items()}
    one |= {"small": values * 1e-9, "large": values}
    other |= {"small": values * 2e-9, "large": values + 0.25}
    words = left(tmp_path / "many", "last.pt", (one, other)).words
    assert words.startswith("small: differs in 4 of 4 elements")
    assert words.endswith(". By the largest number: large, by 0.25. The first of 22: 00")
    alone = left(tmp_path / "one", "last.pt", ({"w": values}, {"w": values * 2})).words
    assert alone.startswith("w: differs")
    assert "largest number" not in alone
    assert "The first of" not in alone


def test_rounding_that_an_optimizer_enlarges_is_no_fault_of_the_rewriting(tmp_path: Path) -> None:
    gap = find_gap(torch.ones(2), torch.ones(2) * 1.5)
    assert gap is not None
    found = [Difference(step=2, stage="parameter", name="a", module="", rank=0, gap=gap)]
    other = report_on(tmp_path / "other", found, enlarged=1)  # that of the step itself counts
    report = report_on(tmp_path / "own", found, enlarged=2)
    assert (other.is_enlarged, report.is_enlarged) == (False, True)
    assert cause(replace(report, unsharded="FSDP1")).startswith("rounding, as it seems")
    assert cause(replace(other, unsharded="FSDP1")).startswith("not FSDP1's shards")
    # A run without shards that is like FSDP2's proves nothing then: it sums the norm to clip by as that does.
    for one, is_off in (
        (replace(report, unsharded="FSDP2"), False),
        (replace(other, unsharded="FSDP2"), True),
    ):
        assert ("FSDP1's own run was off" in cause(one)) == is_off
        assert ("FSDP1's own run was off" in verdict(one)) == is_off


@pytest.mark.parametrize(
    ("before", "factor", "expected"), [(True, 1 + 1e-4, True), (False, 1 + 1e-4, False), (True, 1.5, False)]
)
def test_rounding_that_grows_over_steps_may_be_all(
    before: bool, factor: float, expected: bool, tmp_path: Path
) -> None:
    gaps = {
        1: find_gap(torch.ones(2), torch.ones(2) * (1 + 3e-7)),
        2: find_gap(torch.ones(2), torch.ones(2) * factor),
    }
    found = [
        Difference(step=step, stage="gradient", name="a", module="", rank=0, gap=gap)
        for step, gap in gaps.items()
        if gap is not None and (before or step == 2)
    ]
    said = cause(replace(report_on(tmp_path, found), unsharded="FSDP1"))
    assert said.startswith("not FSDP1's shards")
    assert ("rounding that has grown" in said) == expected


def test_what_is_printed_most_otherwise_is_shown_first(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [(f"step {i} loss 0.5000000", f"step {i} loss 0.5000001") for i in range(3)]
    printed = (*lines, ("took 2.0 s", "took 9.0 s"), ("mse 0.24", "mse 0.23"))
    common: dict[str, Any] = {"before": "a", "after": "b", "command": (), "steps_before": 2, "steps_after": 2}
    report = ScriptReport(**common, compared=4, differences=(), num_differences=0, printed=printed)
    show_comparison(report)
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  FSDP")]
    assert shown[:4] == [
        "  FSDP1: mse 0.24",
        "  FSDP2: mse 0.23",
        *(f"  FSDP{i + 1}: {lines[0][i]}" for i in (0, 1)),
    ]
    assert not any("took" in line for line in shown)
    show_comparison(report, everything=True)
    assert capsys.readouterr().out.index("step 0") < 200


def test_noise_about_zero_is_shown_after_a_count_that_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of many lines, too: what differs most may be printed last. What is not shown is counted."""
    noise = [(f"it {i} kl {-i}.1e-09 loss 0.5", f"it {i} kl {i}.2e-09 loss 0.5") for i in range(1, 30)]
    lines = [[pair[side] for pair in noise] for side in (0, 1)]
    for side, count, loss in ((0, 4643, 0.5), (1, 9285, 0.4)):
        lines[side] += [f"{count} parameters", f"it 30 kl 3.1e-09 loss {loss}"]
    first, second = (Run(tmp_path, tuple(each), tmp_path) for each in lines)
    report = report_of(first, second, Comparison((), 1, tmp_path))
    show_comparison(report)
    out = capsys.readouterr().out
    shown = [line for line in out.splitlines() if line.startswith("  FSDP1")]
    assert shown[:2] == ["  FSDP1: 4643 parameters", "  FSDP1: it 30 kl 3.1e-09 loss 0.5"]
    assert "  and 28 more" in out
    show_comparison(replace(report, printed=report.printed[-1:], num_pairs=1))
    assert "more" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("before", "after", "is_told"),
    [
        ("Trainable params: 21.4 K", "Trainable params: 42.8 K", True),  # Lightning's, of two ranks
        ("| 0 | net | CharLM | 21.4 K | train\n10,816 params", "| 0 | net\n21,632 params", True),
        ("4643 parameters", "9285 parameters", True),
        ("4643 parameters", "4640 parameters", False),
        ("9285 parameters", "4643 parameters", False),
        ("norm of the parameters 1.25", "norm of the parameters 2.5", False),
        ("4643 tokens", "9285 tokens", False),
        ("loss 0.1", "loss 0.4", False),
    ],
)
def test_that_a_model_has_not_grown_is_said_where_a_run_counts_parameters(
    before: str, after: str, is_told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lightning's summary of a model shows twice as many under FSDP2, and nothing said why."""
    common: dict[str, Any] = {"before": "a", "after": "b", "command": (), "steps_before": 2, "steps_after": 2}
    printed = tuple(zip(before.splitlines(), after.splitlines(), strict=True))
    show_comparison(
        ScriptReport(**common, compared=4, differences=(), num_differences=0, printed=printed, num_pairs=1)
    )
    said = " ".join(capsys.readouterr().out.split())
    assert ("the model has not grown" in said) is is_told


@pytest.mark.slow
def test_the_frames_of_the_script_are_shown_whatever_is_below_them(tmp_path: Path) -> None:
    deep = "".join(f"def f{i}():\n    f{i + 1}()\n" for i in range(12))
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "deep.py").write_text(f"{deep}def f12():\n    raise KeyError('inner')\n")
    (tmp_path / "surgery.py").write_text("import deep\n\n\ndef cut():\n    deep.f0()  # cut here\n")
    raises = "    raise RuntimeError('outer') from error\n"
    (tmp_path / "train.py").write_text(
        "import sys\nsys.path.append('site-packages')\nimport surgery\ntry:\n    surgery.cut()\n"
        f"except KeyError as error:\n{raises}"
    )
    with pytest.raises(RankError) as raised:
        compare_scripts(tmp_path, tmp_path, ["python", "train.py"])
    said = str(raised.value)
    assert "deep.f0()  # cut here" in said
    assert (
        said.index("KeyError: 'inner'") < said.index("raise RuntimeError") < said.index("RuntimeError: outer")
    )
    assert "in f12" in said
    assert "in f3" not in said
    assert said.count("  ...\n") == 1
