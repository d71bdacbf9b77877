"""`rewrite`: the diff, what is written, and the exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.explanations import EXPLANATIONS
from fsdp_migrate.left_comments import what_they_stop
from fsdp_migrate.sharding.unsettled import unsettled_in
from fsdp_migrate.source import rewrite_source
from tests.cli.conftest import CODE


if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = pytest.mark.any_torch


LEFT = (
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(net)\n"
    "decayed = [p for p in model.parameters() if p.ndim >= 2]\nFSDP.rekey_optim_state_dict(a, b, model)\n"
    "model.apply(init)\n"
)
TURNED = "from fsdp_migrate import prepare_fully_shard\nmodel = prepare_fully_shard(net)\n"


def test_rewrite_shows_a_diff_and_writes_nothing(scripts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options in ([], ["--diff"]):
        assert main(["rewrite", str(scripts), *options]) == 0
        out, err = capsys.readouterr()
        assert out.startswith("--- ")
        assert "+model = prepare_fully_shard(net)\n" in out
        assert "1 file of 2 would change." in err
    assert (scripts / "train.py").read_text() == CODE


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ("model = FSDP(net, **given)\nFSDP.set_state_dict_type(model, kind)\n", "FM307"),
        ("model = FSDP(net, **given)\nmodel.apply(init)\n", "FM322"),
        ("model = FSDP(net)\nFSDP.rekey_optim_state_dict(a, b, model)\nmodel.apply(init)\n", "FM309"),
        ("model = FSDP(net, **given)\n", "FM302"),
    ],
)
def test_what_stops_a_run_is_what_is_to_be_explained(
    lines: str, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``rewrite`` named the first code, of which there is nothing to do; ``scan`` what stops no run."""
    script = tmp_path / "train.py"
    script.write_text(f"from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n{lines}")
    for command in (["scan", str(script)], ["rewrite", str(script), "--write"]):
        assert main(command) == 0
        assert f"`fsdp-migrate explain {code}` says" in " ".join(capsys.readouterr().out.split())


def test_check_tells_by_its_exit_code(scripts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rewrite", str(scripts), "--check"]) == 1
    assert (scripts / "train.py").read_text() == CODE
    assert "would change: " in capsys.readouterr().out
    assert main(["rewrite", str(scripts), "--write"]) == 0
    assert (scripts / "train.py").read_text().startswith(TURNED)
    assert (scripts / "train.py.fsdp1").read_text() == CODE
    said = " ".join(capsys.readouterr().out.split())
    assert "To be settled by hand: 1 comment `# fsdp-migrate: ...`: FM322 (1)." in said
    assert main(["rewrite", str(scripts), "--check"]) == 0


def test_what_is_said_to_stop_a_run_is_what_stops_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The screen of ``rewrite``, the steps of ``scan`` and ``explain`` say it; the run's check does it."""
    script = tmp_path / "train.py"
    script.write_text(LEFT)
    said = "FM309, FM318 stop a run until they are settled and the comments deleted. FM322 stops no run: look"
    for command in (["rewrite", str(script), "--write"], ["scan", str(script)]):
        assert main(command) == 0
        assert said in " ".join(capsys.readouterr().out.split())
    assert {code for _, code in unsettled_in(script)} == {"FM309", "FM318"}
    marked = script.read_text()
    for code, stops in (("FM309", True), ("FM318", True), ("FM322", False)):
        assert main(["explain", code]) == 0
        explained = " ".join(capsys.readouterr().out.split())
        assert ("in a source stops a run" in explained, "in a source stops no run" in explained) == (
            stops,
            not stops,
        )
        assert f"# fsdp-migrate: {code} " in marked


def test_what_a_framework_stops_is_not_said_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Accelerate raises at a model without its optimizer, torch at a DTensor: no comment has to."""
    said = what_they_stop(["FM449", "FM322"])
    assert said.startswith(
        "FM322 stops no run: look at it before you train. FM449: no comment stops a run there"
    )
    assert "FM449" not in what_they_stop(["FM322", "FM309"])
    assert main(["explain", "FM449"]) == 0
    explained = " ".join(capsys.readouterr().out.split())
    assert "stops no run" not in explained
    assert "but torch or a framework does, with an error" in explained


def test_a_code_that_differs_in_bits_is_not_headed_the_same_result(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explain", "FM312"]) == 0
    explained = " ".join(capsys.readouterr().out.split())
    assert "the same result" not in explained
    assert "what may differ is said below" in explained
    assert main(["explain", "FM310"]) == 0
    assert "what may differ" not in capsys.readouterr().out  # exact


TRAINER = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from transformers import Trainer, TrainerCallback, TrainingArguments

class Sample(TrainerCallback):
    def on_evaluate(self, args, state, control, model, **kwargs):
        with FSDP.summon_full_params(model):
            print(model.encode(self.inputs))

Trainer(model, TrainingArguments("out", fsdp="full_shard"), callbacks=[Sample()]).train()
"""


@pytest.mark.parametrize(
    "beside", ["", "# call prepare_fully_shard(model, {...})\n", "prepare_fully_shard(net)\n"]
)
def test_where_a_framework_shards_by_itself_no_comment_is_said_to_stop_a_run(
    beside: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is ``prepare_fully_shard`` that raises, and HF's Trainer does not call it."""
    (tmp_path / "train.py").write_text(TRAINER)
    (tmp_path / "other.py").write_text(beside)
    for command in (["rewrite", str(tmp_path), "--write"], ["scan", str(tmp_path)]):
        assert main(command) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert "FM332" in said
        stops = beside.startswith("prepare")
        assert ("FM332 stops a run until it is settled" in said) is stops
        assert ("FM332 stops no run here, because nothing in these sources calls" in said) is not stops


def test_what_flat_parameters_were_is_said_alike_wherever_it_is_said() -> None:
    """That it is so: ``_has_other_dimensions`` of ``tests/doctor/known_faults_bodies.py``."""
    texts = (EXPLANATIONS["FM318"].why, rewrite_source(LEFT))
    assert all("with `use_orig_params` true or false" in text for text in texts)


def test_a_file_that_cannot_be_read_fails_after_the_others_are_done(
    scripts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (scripts / "bad.py").write_text("import fsdp\nprint 'x'\n")
    assert main(["rewrite", str(scripts), "--write"]) == 1
    assert (scripts / "train.py").read_text().startswith(TURNED)
    assert "bad.py:2:1: no Python 3" in capsys.readouterr().err


def test_rewrite_writes_one_document(
    scripts: Path, run_json: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    code, document = run_json("rewrite", scripts)
    assert (code, document["num_files"], document["num_changed"], document["written"]) == (0, 2, 1, False)
    assert "+model = prepare_fully_shard(net)" in document["files"][0]["diff"]


def test_modes_exclude_each_other(scripts: Path) -> None:
    assert main(["rewrite", str(scripts), "--check", "--write"]) == 2


def test_requirements_without_ours_are_named(
    scripts: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is rewritten imports fsdp_migrate, which the next machine does not have by itself."""
    monkeypatch.chdir(scripts)
    requirements = Path("requirements.txt")
    requirements.write_text("torch>=2.6  # not fsdp-migrate\n")
    said = "import fsdp_migrate: add `fsdp-migrate` to {}."
    assert main(["rewrite", ".", "--check"]) == 1
    assert said.format("requirements.txt") in capsys.readouterr().out
    (file,) = sorted(Path().rglob("*.py"))[:1]
    assert main(["scan", "."]) == 0
    assert "Add `fsdp-migrate` to requirements.txt: the" in capsys.readouterr().out
    requirements.write_text("torch>=2.6\nfsdp_migrate[all]>=0.1\n")
    for command in (["rewrite", ".", "--check"], ["rewrite", str(file), "--check"], ["scan", "."]):
        main(command)
        assert "`fsdp-migrate` to" not in capsys.readouterr().out
    requirements.unlink()
    assert main(["rewrite", ".", "--write"]) == 0
    assert said.format("what the project installs") in capsys.readouterr().out


ASKED = (
    "from transformers import Trainer\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
)
CALLBACK = (
    f"{ASKED}class Own(Trainer):\n    def save(self):\n        if isinstance(self.model, FSDP):\n"
    "            with FSDP.summon_full_params(self.model):\n                print(self.model)\n"
)
YAML = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"


@pytest.mark.parametrize(
    ("files", "places"),
    [
        ({"t.py": CALLBACK, "a.yaml": YAML}, ["a.yaml"]),
        ({"t.py": CALLBACK, "run.sh": "python t.py --fsdp full_shard\n"}, ["run.sh:1"]),
        ({"t.py": "print()\n", "a.yaml": YAML}, ["a.yaml"]),
        (
            {
                "t.py": CALLBACK,
                "c.yaml": "trainer:\n  strategy:\n    _target_: lightning.pytorch.strategies.FSDPStrategy\n",
            },
            ["c.yaml"],
        ),
        # None is there, it is FSDP2's, another engine's, or what a page shows.
        ({"t.py": CALLBACK}, []),
        (
            {
                "t.py": CALLBACK,
                "a.yaml": f"{YAML}  fsdp_version: 2\n".replace("  fsdp_sharding_strategy: FULL_SHARD\n", ""),
            },
            [],
        ),
        ({"t.py": CALLBACK, "a.yaml": "distributed_type: DEEPSPEED\n"}, []),
        ({"t.py": CALLBACK, "README.md": "```\npython t.py --fsdp full_shard\n```\n"}, []),
        (
            {
                "t.py": CODE,
                "a.yaml": "sharding_strategy: FULL_SHARD\nauto_wrap_policy: {transformer_layer_cls: [B]}\n",
            },
            [],
        ),
        ({"t.py": CODE, "c.yaml": "fsdp_config: {sharding_strategy: FULL_SHARD}\nmax_duration: 1ba\n"}, []),
    ],
)
def test_settings_that_still_ask_for_fsdp1_are_named_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], files: dict[str, str], places: list[str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert main(["rewrite", str(tmp_path), "--write"]) == 0
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last.startswith("These settings still ask for FSDP1") is bool(places)
    assert all(f"{tmp_path / place}" in last for place in places)
    assert not places or ("FSDP2's with the sources" in last) is ("Trainer" in files["t.py"])
    assert not places or ("lines that are turned" in last) is ("Trainer" in files["t.py"])
