"""Which checkpoints are found beside the code."""

from __future__ import annotations

import os
import pickle
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fsdp_migrate.errors import ConfigError
from fsdp_migrate.parity.script_runs import compare_scripts
from fsdp_migrate.source import scan_paths
from fsdp_migrate.source.checkpoint_outlooks import Outlook
from fsdp_migrate.source.launchers import find_launches
from fsdp_migrate.source.proof_steps import steps_for_checkpoints
from fsdp_migrate.source.steps import next_steps
from fsdp_migrate.source.surroundings import CheckpointFound, find_checkpoints, find_configs
from fsdp_migrate.source.uses import ScanReport
from tests.checkpoint.samples import DATA


CHECKPOINTS = DATA / "torch-2.13.0"


FRAME = {"observation.image": torch.ones(3, 4, 4), "action": torch.ones(2), "index": torch.tensor(7)}


def _layouts(folder: Path) -> dict[str, str]:
    return {
        Path(each.path).relative_to(folder).as_posix(): each.layout for each in find_checkpoints([folder])
    }


def test_checkpoints_are_found_by_their_layout(tmp_path: Path) -> None:
    shutil.copytree(CHECKPOINTS / "plain.dcp", tmp_path / "step-10")
    shutil.copytree(CHECKPOINTS / "plain.dcp", tmp_path / "ep0-ba5")
    (tmp_path / "cut" / "sub").mkdir(parents=True)
    (tmp_path / "cut" / "__0_0.distcp").write_bytes(b"x")
    (tmp_path / "per-rank").mkdir()
    for rank in range(2):
        torch.save({"a": torch.ones(1)}, tmp_path / "per-rank" / f"model_world_size_2_rank_{rank}.pt")
    torch.save({"a": torch.ones(1)}, tmp_path / "model.pt")
    torch.save(
        {"pytorch-lightning_version": "2.4.0", "state_dict": {"w": torch.ones(1)}}, tmp_path / "last.ckpt"
    )
    torch.save({"a": torch.ones(1)}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    torch.save({"a": torch.ones(1)}, tmp_path / "best.pth.tar")
    (tmp_path / "list.pt").write_bytes(pickle.dumps([], protocol=2))
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        shutil.copytree(CHECKPOINTS / "plain.dcp", tmp_path / "checkpoint-7" / name)
    (tmp_path / "apart").mkdir()
    torch.save({"w": torch.ones(2, 2)}, tmp_path / "apart" / "net.pt")
    own = {"state": {"w": {"exp_avg": torch.ones(2, 2)}}, "param_groups": [{"lr": 0.1, "params": ["w"]}]}
    torch.save(own, tmp_path / "apart" / "adam.pt")
    (tmp_path / "lost").mkdir()
    torch.save({"a": torch.ones(1)}, tmp_path / "lost" / "model_world_size_2_rank_1.pt")
    (tmp_path / "words.bin").write_bytes(b"no checkpoint")
    (tmp_path / "venv").mkdir()
    torch.save({}, tmp_path / "venv" / "x.pt")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "model.safetensors.index.json").write_text("{}")
    (tmp_path / "one.safetensors").write_bytes(b"")
    found = _layouts(tmp_path)
    assert found.pop("lost").startswith("incomplete or ambiguous (")
    assert found == {
        "apart": "model and optimizer apart, in a file each",
        "best.pth.tar": "full state in one file",
        "checkpoint-7": "model and optimizer apart, in one folder",
        "cut": "distributed checkpoint (DCP) without its .metadata",
        "ep0-ba5": "Composer's distributed checkpoint (DCP)",
        "hf": "full state in several files",
        "last.ckpt": "full state in one file of Lightning's Trainer",
        "model.pt": "full state in one file",
        "old.pth": "full state in one file",
        "one.safetensors": "full state in safetensors",
        "per-rank": "one file per rank",
        "step-10": "distributed checkpoint (DCP)",
    }


def test_lightnings_own_file_is_read_by_its_trainer(tmp_path: Path) -> None:
    torch.save(
        {"pytorch-lightning_version": "2.4.0", "state_dict": {"w": torch.ones(1)}}, tmp_path / "last.ckpt"
    )
    steps = next_steps([], ScanReport((), 0), [], find_checkpoints([tmp_path]))
    said = " ".join(step.text for step in steps)
    assert "Trainer.fit(model, ckpt_path=FILE)" in said
    assert "torch.load" not in said


@pytest.mark.parametrize("is_trainers", [True, False])
def test_lightnings_folder_has_to_be_converted(tmp_path: Path, *, is_trainers: bool) -> None:
    """Its Trainer reads `state_dict` where FSDPStrategy saved `model`: there is nothing to ask `inspect`."""
    shutil.copytree(CHECKPOINTS / "plain.dcp", tmp_path / "step-10.ckpt")
    if is_trainers:
        torch.save({"pytorch-lightning_version": "2.4.0"}, tmp_path / "step-10.ckpt" / "meta.pt")
    steps = next_steps([], ScanReport((), 0), [], find_checkpoints([tmp_path]))
    (step,) = (step for step in steps if any(" convert " in command for command in step.commands))
    assert step.text.startswith("Convert it, as Lightning" if is_trainers else "Only where `inspect` says")


def test_files_of_ranks_are_converted_with_the_model_where_they_are_flat(tmp_path: Path) -> None:
    for rank in range(2):
        torch.save({"model": {}}, tmp_path / f"state_rank{rank}.pt")
    steps = next_steps([], ScanReport((), 0), [], find_checkpoints([tmp_path]))
    (step,) = (step for step in steps if any(" convert " in command for command in step.commands))
    assert "need `--model PKG.MOD:FACTORY --config FILE`" in step.text


@pytest.mark.parametrize(
    ("names", "seconds", "is_one"),
    [
        (("tables_0.pt", "tables_1.pt"), 1.0, True),
        (("tables_0.pt", "tables_1.pt"), 60.0, False),
        (("step_0.pt", "step_1.pt"), 1.0, False),
        (("model_4.pt", "model_5.pt"), 1.0, False),
    ],
)
def test_files_of_ranks_of_one_save_are_one_checkpoint(
    names: tuple[str, str], seconds: float, is_one: bool, tmp_path: Path
) -> None:
    """Not one file and an older one of the same run, as those of steps are."""
    torch.save({"model": torch.ones(1)}, tmp_path / "dense.pt")
    for number, name in enumerate(names):
        torch.save({"w": [torch.ones(1)]}, tmp_path / name)
        os.utime(tmp_path / name, (1e9 + number * seconds,) * 2)
    dense, *found = sorted(find_checkpoints([tmp_path]), key=lambda each: each.path)
    assert dense.layout == "full state in one file"
    if is_one:
        (one,) = found
        assert one.layout == f"a file of each rank, as it seems: {names[0]}, {names[1]}"
        assert one.nbytes == sum((tmp_path / name).stat().st_size for name in names)
        assert one.is_latest
    else:
        assert [each.layout for each in found] == ["full state in one file"] * 2


def test_a_file_of_torch_save_is_seen_by_its_first_bytes(tmp_path: Path) -> None:
    """As optimizers lie beside models: ``epoch_2.opt``; any other file by such a name is none."""
    names = {"last.pt", "last.pt.optim", "last.pth_optimizer", "last.pt.log", "epoch_2.opt", "run.v1.5"}
    for name in names:
        torch.save({"w": torch.ones(1)}, tmp_path / name)
    torch.save({"w": torch.ones(1)}, tmp_path / "old.OPT", _use_new_zipfile_serialization=False)
    torch.save({"step": 7}, tmp_path / "step.state")
    torch.save({"w": torch.ones(1)}, tmp_path / "odd.py")  # what says that it is a source is not opened
    (tmp_path / "words.opt").write_text("lr = 0.1\n" * 100)
    (tmp_path / "list.state").write_bytes(pickle.dumps(list(range(1000)), protocol=2))
    with zipfile.ZipFile(tmp_path / "net.torchscript", "w") as parts:  # the order in which that is written
        parts.writestr("net/data/0", b"x" * 400)
        parts.writestr("net/data.pkl", b"x")
    assert _layouts(tmp_path).keys() == names | {"old.OPT"}


@pytest.mark.parametrize(
    ("newest", "read", "expected"),
    [
        ("e_2.opt", "", "e_2.pt"),
        ("e_2.opt", "e_2.opt", "e_2.opt"),
        ("e_2.pth", "", "e_2.pth"),
        ("e_2.pth", "e_2.pt", "e_2.pt"),
    ],
)
def test_a_run_goes_on_from_a_model_rather_than_from_the_optimizer_beside_it(
    newest: str, read: str, expected: str, tmp_path: Path
) -> None:
    found = [
        CheckpointFound(name, "full state in one file", saved=saved, read_by=(name,) * (name == read))
        for name, saved in (("e_2.pt", 1.0), (newest, 2.0))
    ]
    steps = steps_for_checkpoints(found, [], str(tmp_path))
    assert f" --checkpoint {expected} {expected} " in " ".join(steps[-1].commands)
    assert f"fsdp-migrate doctor --checkpoint {expected}" in steps[0].commands


def test_two_files_that_a_script_reads_are_left_where_they_are(tmp_path: Path) -> None:
    """Converted they are a folder for `dcp.load`, in which the script finds no file, and begins anew."""
    read = CheckpointFound(
        "run", "model and optimizer apart, in a file each", read_by=("train.py:3",), target="new"
    )
    steps = steps_for_checkpoints([read], [], ".")
    assert "train.py:3 names run, which stays where it is: convert nothing for that." in steps[1].text
    assert not any("convert" in command or "new" in command for step in steps for command in step.commands)
    # What no script names may be for one that reads a folder; of ranks' files a script reads none.
    for other in (
        replace(read, read_by=()),
        replace(read, layout="model and optimizer apart, in one folder"),
    ):
        commands = [command for step in steps_for_checkpoints([other], [], ".") for command in step.commands]
        assert "fsdp-migrate convert run new" in commands


def test_where_another_run_may_be_the_one_that_resumes_it_is_named() -> None:
    """A script without `--resume` saves as well: which of two runs goes on is not seen."""
    found = [CheckpointFound(f"runs/{name}/step-3", "a folder of DCP", target="b") for name in ("old", "new")]
    steps = steps_for_checkpoints(found, [], ".")
    assert steps[-1].text.endswith(
        " If no script goes on from runs/old/step-3, take one that a script goes on from (runs/new/step-3)."
    )
    assert "If no script goes on" not in steps_for_checkpoints(found[:1], [], ".")[-1].text


def test_where_a_run_may_have_ended_the_checkpoint_before_is_named(tmp_path: Path) -> None:
    """From the last one of a finished run nothing is trained, and nothing is compared."""
    for name in ("step-6", "step-12", "step-9"):
        shutil.copytree(CHECKPOINTS / "plain.dcp", tmp_path / name)
    # What a run that was stopped left is none to start from.
    (tmp_path / "step-9" / ".metadata").unlink()
    (last,) = (each for each in find_checkpoints([tmp_path]) if each.is_latest)
    assert (Path(last.path).name, Path(last.before).name) == ("step-12", "step-6")
    said = steps_for_checkpoints([last], [], str(tmp_path))[-1].text
    assert f"take one before it ({last.before}), in the commands above too, or let COMMAND train" in said
    as_it_is = Outlook(is_needed=False, reader="dcp.load")
    said = steps_for_checkpoints([replace(last, outlook=as_it_is)], [], str(tmp_path))[-1].text
    assert f"take one before it ({last.before}), or let COMMAND train further." in said
    alone = replace(last, before="")
    assert "If the run ended" not in steps_for_checkpoints([alone], [], str(tmp_path))[-1].text


@pytest.mark.parametrize("is_accelerates", [False, True])
def test_a_resume_of_fsdp1s_without_moments_is_said_where_it_is_compared(
    tmp_path: Path, *, is_accelerates: bool
) -> None:
    for name in ("pytorch_model_fsdp_0", "optimizer_0" if is_accelerates else "optimizer"):
        shutil.copytree(CHECKPOINTS / "plain.dcp", tmp_path / "step-6" / name)
    found = CheckpointFound(str(tmp_path / "step-6"), "model and optimizer apart, in one folder")
    said = steps_for_checkpoints([found], [], str(tmp_path))[-1].text
    assert ("accelerate-resumes-without-moments" in said) is is_accelerates
    assert ("the FSDP1 run that was not stopped" in said) is is_accelerates


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("proj/checkpoints/checkpoint_1", "OUT/checkpoints"),
        ("checkpoints/checkpoint_1", "OUT/checkpoints"),  # of Accelerate, with `project_dir="."`
        ("runs/full/ckpt/step-12.ckpt", "OUT/ckpt"),
        ("checkpoints/step-10", "OUT"),  # the folder that the script saves to
        ("../ckpts/step-10", "OUT"),
        ("work/a/step10.pt", "OUT"),
        ("step10.pt", "OUT"),
    ],
)
def test_a_script_that_finds_its_checkpoint_gets_a_copy_where_it_looks(path: str, folder: str) -> None:
    """Accelerate that names checkpoints itself looks in `checkpoints`, and found nothing in `OUT`."""
    said = f"`-- bash -c 'mkdir -p {folder} && cp -r CKPT {folder} && COMMAND --save-to OUT'`"
    steps = steps_for_checkpoints([CheckpointFound(path, "a folder of DCP")], [], ".")
    assert said in steps[-1].text
    with pytest.raises(ConfigError, match="The command has no `CKPT`") as error:
        compare_scripts(".", ".", ["python", "train.py"], checkpoints=(path, path))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("layout", "news"), [("full state in one file", ["a"]), ("a folder of DCP", ["a", "b"])]
)
def test_two_runs_are_compared_from_what_each_of_them_loads(layout: str, news: list[str]) -> None:
    """What FSDP2 loads as it is was never converted: a command that names the output would find nothing."""
    steps = steps_for_checkpoints([CheckpointFound("a", layout, target="b")], [], ".")
    assert list(steps[-1].commands) == [
        f"fsdp-migrate compare ../before . --checkpoint a {new} -- COMMAND" for new in news
    ]
    assert ("`Nothing needs to be converted`" in steps[-1].text) is (len(news) > 1)


@pytest.mark.parametrize("kind", ["accelerate", "trainer", "dcp", "file"])
def test_a_run_goes_on_from_what_holds_its_optimizer(kind: str, tmp_path: Path) -> None:
    """Not from a teacher that the script reads by its name, nor from weights that were exported last."""
    states = {"model": {"w": torch.ones(2)}, "optimizer": {"state": {}, "param_groups": []}}
    whole = tmp_path / ("step.pt" if kind == "file" else "epoch_1")
    if kind == "file":
        torch.save(states, whole)
    else:
        (whole / "pytorch_model_fsdp_0").mkdir(parents=True)
        name = {"accelerate": "optimizer_0/x", "trainer": "trainer_state.json", "dcp": ".metadata"}[kind]
        (whole / name).parent.mkdir(exist_ok=True)
        (whole / name).write_bytes(b"optimizer.state.w.exp_avg" if kind == "dcp" else b"{}")
    torch.save(states["model"], tmp_path / "teacher.pt")
    torch.save(states["optimizer"], tmp_path / "moments.pt")  # alone it is none either
    shapes = {str(whole): "a framework's folder", "moments.pt": "full state", "teacher.pt": "full state"}
    found = [
        CheckpointFound(
            str(tmp_path / name), layout, saved=saved, read_by=("main.py:3",) * ("teacher" in name)
        )
        for saved, (name, layout) in enumerate(shapes.items())
    ]
    steps = steps_for_checkpoints(found, [], str(tmp_path))
    assert f"fsdp-migrate doctor --checkpoint {whole}" in steps[0].commands
    assert f" --checkpoint {whole} " in " ".join(command for step in steps for command in step.commands)
    alone = steps_for_checkpoints(found[1:], [], str(tmp_path))
    assert f"fsdp-migrate doctor --checkpoint {tmp_path / 'teacher.pt'}" in alone[0].commands


def test_few_files_are_opened_to_look_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.py", "b.yaml", "c.npy", "d.PNG", "e.wav", "f.txt", "g.opt", "h.tar", "small.opt"):
        (tmp_path / name).write_bytes(b"x" * (10 if name == "small.opt" else 1000))
    opened, opens = list[str](), Path.open

    def noted(path: Path, how: str) -> Any:
        opened.append(path.name)
        return opens(path, how)

    monkeypatch.setattr(Path, "open", noted)
    assert find_checkpoints([tmp_path]) == []
    assert sorted(opened) == ["g.opt", "h.tar"]


def test_what_stays_is_not_taken_for_fsdp2(tmp_path: Path) -> None:
    two = "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"
    (tmp_path / "two.yaml").write_text(two)
    (tmp_path / "off.yaml").write_text(
        "distributed_type: DEEPSPEED\nfsdp_config:\n  fsdp_offload_params: true\n"
    )
    (tmp_path / "other.yaml").write_text("output_dir: x\nfsdp: full_shard\nfsdp_config: gone.json\n")
    found = {Path(each.path).name: each.state for each in find_configs([tmp_path])}
    assert found == {"two.yaml": "fsdp2", "off.yaml": "unused", "other.yaml": "elsewhere"}
    (tmp_path / "run.sh").write_text('torchrun t.py --output_dir x --fsdp "$F" --fsdp_config "$C"\n')
    assert [each.state for each in find_launches([tmp_path])] == ["elsewhere"]


def test_what_is_refused_is_said(tmp_path: Path) -> None:
    trainer = "_target_: lightning.pytorch.Trainer\naccelerator: gpu\nstrategy: fsdp\nprecision: 16-mixed\n"
    (tmp_path / "t.yaml").write_text(trainer)
    [found] = find_configs([tmp_path])
    assert found.state == "refused"
    assert found.message.startswith("FM357 `precision`: 16-mixed")


def test_what_tests_read_and_samples_of_data_are_no_checkpoints(tmp_path: Path) -> None:
    for name in ("tests/data", "sub/fixtures"):
        (tmp_path / name).mkdir(parents=True)
        torch.save({"a": torch.ones(1)}, tmp_path / name / "model.pt")
        shutil.copytree(CHECKPOINTS / "plain.dcp", tmp_path / name / "step-10")
    (tmp_path / "frames").mkdir()
    save_file(FRAME, tmp_path / "frames" / "frame_0.safetensors")
    counted = {"norm.weight": torch.ones(2), "norm.num_batches_tracked": torch.tensor(7)}
    save_file(counted, tmp_path / "frames" / "net.safetensors")
    save_file({"gain": torch.ones(2)}, tmp_path / "frames" / "own.safetensors")
    assert set(_layouts(tmp_path)) == {"frames/net.safetensors", "frames/own.safetensors"}
    assert set(_layouts(tmp_path / "tests")) == {"data/model.pt", "data/step-10"}


@pytest.mark.parametrize("name", ["zero2.config", "acc-fsdp.conf", "fsdp"])
def test_accelerates_config_by_another_name(name: str, tmp_path: Path) -> None:
    text = "distributed_type: {}\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
    (tmp_path / name).write_text(text.format("FSDP"))
    (tmp_path / f"other-{name}").write_text(text.format("MULTI_GPU"))
    found = [(each.path, each.framework, each.state) for each in find_configs([tmp_path])]
    assert found == [(str(tmp_path / name), "accelerate", "changes")]


@pytest.mark.parametrize(
    ("fsdp", "wanted"),
    [
        ("full_shard auto_wrap", ""),
        ("shard_grad_op auto_wrap", "`reshard_after_forward: false`"),
        ("shard_grad_op", "`reshard_after_forward: false` and `auto_wrap_policy: NO_WRAP`"),
    ],
)
@pytest.mark.parametrize("name", ["run.sh", "run.yaml"])
def test_what_a_launch_asks_beside_a_config_is_to_be_written_there(
    name: str, fsdp: str, wanted: str, tmp_path: Path
) -> None:
    (tmp_path / "f.json").write_text(
        '{"transformer_layer_cls_to_wrap": ["Block"], "backward_prefetch": "backward_pre"}'
    )
    if name == "run.sh":
        (tmp_path / name).write_text(f'torchrun t.py --output_dir x --fsdp "{fsdp}" --fsdp_config f.json\n')
    else:
        (tmp_path / name).write_text(f"output_dir: x\nfsdp: {fsdp}\nfsdp_config: f.json\n")

    def steps() -> list[str]:
        configs, launches = find_configs([tmp_path]), find_launches([tmp_path])
        return [step.text for step in next_steps([], ScanReport((), 0), configs, [], launches)]

    said = [text for text in steps() if text.startswith("Then write ")]
    assert len(said) == (1 if wanted else 0)
    assert all(text.startswith(f"Then write {wanted} into ") and name in text for text in said)
    (tmp_path / "f.json").write_text('{"version": 2, "reshard_after_forward": false}')
    assert "Then write " not in str(steps())


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_saved_file_without_tensors_is_no_checkpoint(tmp_path: Path, is_zip: bool) -> None:
    torch.save({"step": 1, "names": ["a"]}, tmp_path / "notes.pt")
    torch.save({"w": torch.ones(2)}, tmp_path / "net.pt", _use_new_zipfile_serialization=is_zip)
    found = [Path(each.path).name for each in find_checkpoints([tmp_path])]
    assert found == ["net.pt"]
    (tmp_path / "cut.pt").write_bytes((tmp_path / "notes.pt").read_bytes()[:200])
    assert "cut.pt" in [Path(each.path).name for each in find_checkpoints([tmp_path])]


def test_what_composer_saves_without_an_ending_is_a_checkpoint(tmp_path: Path) -> None:
    """Its `save_filename` may be `ep{epoch}`; a script and a license have no ending either."""
    state = {"state": {"model": {"w": torch.ones(2)}, "run_name": "a"}}
    torch.save(state, tmp_path / "ep1")
    torch.save({"state": {"run_name": "a"}}, tmp_path / "notes")
    (tmp_path / "LICENSE").write_text("Apache")
    os.mkfifo(tmp_path / "pipe")
    assert _layouts(tmp_path) == {"ep1": "full state in one file"}


def test_whole_states_of_rank_0_are_checkpoints_one_by_one(tmp_path: Path) -> None:
    for batch in (4, 8):
        state = {"state": {"model": {"w": torch.ones(2)}, "run_name": "a"}}
        torch.save(state, tmp_path / f"ba{batch}-rank0.pt")
    found = {Path(each.path).name: (each.layout, each.is_latest) for each in find_checkpoints([tmp_path])}
    assert found == {
        f"ba{batch}-rank0.pt": ("full state in one file", is_latest)
        for batch, is_latest in ((4, False), (8, True))
    }


SHARDS = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(net)\n"
ASKS = (
    "from transformers import TrainingArguments\n"
    "args = TrainingArguments('o', fsdp='full_shard' if c.use_fsdp else '')\n"
)


@pytest.mark.parametrize(
    ("name", "text", "source", "is_said"),
    [
        ("c.json", '{"train": {"lr": 0.1, "use_fsdp": true}}', SHARDS, False),
        ("c.json", '{"train": {"lr": 0.1, "use_fsdp": true}}', "print()\n", True),
        ("c.json", '{"train": {"fsdp_size": 4, "use_fsdp": true}}', SHARDS, True),
        ("c.yml", "use_fsdp: true\n", ASKS, False),
        ("c.yml", "env:\n  FSDP_CPU_RAM_EFFICIENT_LOADING: 1\n", ASKS, False),
        ("c.yml", "env:\n  FSDP_SHARDING_STRATEGY: 1\n", ASKS, True),
        ("c.yml", "use_fsdp: {a: 1}\n", ASKS, True),
        ("c.yml", "use_fsdp: true\n", "print()\n", True),
        ("c.yml", "nav:\n- Backends (DeepSpeed / FSDP): backends.md\n", "print()\n", False),
        ("c.yml", "train:\n  fsdp_backend: {a: 1}\n", "print()\n", True),
    ],
)
def test_a_config_is_asked_about_where_there_is_something_to_do(
    tmp_path: Path, name: str, text: str, source: str, *, is_said: bool
) -> None:
    (tmp_path / name).write_text(text)
    (tmp_path / "train.py").write_text(source)
    steps = next_steps([str(tmp_path)], scan_paths([tmp_path]), find_configs([tmp_path]), [])
    assert any("See why these configs" in each.text for each in steps) is is_said


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("name: fsdp2", "fsdp2"),
        ("strategy: 'fsdp2'  # of its own", "fsdp2"),
        ("name: fsdp", "unclear"),
        ("# name: fsdp2", "unclear"),
        ("name: before_fsdp2", "unclear"),
    ],
)
def test_a_choice_of_the_project_that_says_fsdp2_is_not_to_be_converted(
    tmp_path: Path, said: str, state: str
) -> None:
    (tmp_path / "own.yaml").write_text(f"{said}\nauto_wrap_policy: size\nsharding_strategy: full_shard\n")
    assert [each.state for each in find_configs([tmp_path])] == [state]
