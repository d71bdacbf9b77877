"""Shell scripts: the launch lines in them, and whose flags are whose."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import PurePath
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

from fsdp_migrate.adapters.conversion.command import convert_command, convert_script
from fsdp_migrate.adapters.conversion.flags import read_flags
from fsdp_migrate.adapters.conversion.shell import commands_of, is_script, launch_of, words_of
from fsdp_migrate.cli import main
from fsdp_migrate.config_files import convert_config_file
from fsdp_migrate.errors import ConfigError, FindingsError
from tests.quick import examples


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2
# accelerate launch --use_fsdp --fsdp_sharding_strategy 3 old.py
set -e; export WANDB_MODE=offline  # it's off
cat > conf.json <<'EOF'
{"a": "--fsdp full_shard"}
EOF
accelerate launch --use_fsdp --num_processes 8 \\
    --fsdp_sharding_strategy SHARD_GRAD_OP \\
    train.py --fsdp_shards 4 --lr 1e-5 2>&1 | tee log.txt

for seed in 1 2; do
  torchrun --nproc_per_node 8 hf.py --fsdp "full_shard auto_wrap" \\
    --fsdp_transformer_layer_cls_to_wrap Block --seed $seed || echo "it's over"
done
python own.py --fsdp_sharding_strategy FULL_SHARD
"""


def test_launch_lines_are_found_and_nothing_else_changes() -> None:
    done = convert_script(SCRIPT)
    assert [(block.framework, block.path, block.state) for block in done.blocks] == [
        ("accelerate", "line 8", "converted"),
        ("hf", "line 13", "converted"),
    ]
    before, after = SCRIPT.splitlines(), done.text.splitlines()
    new = [line for line in after if line not in before]
    assert [line for line in before if line not in after] == [before[8], before[12], before[13]]
    assert new[0] == (
        "    --fsdp_reshard_after_forward false --fsdp_version 2 --fsdp_state_dict_type FULL_STATE_DICT \\"
    )
    start, _, rest = new[1].partition(" --fsdp_config ")
    assert before[12].startswith(start)
    assert json.loads(shlex.split(rest)[0])["fsdp_transformer_layer_cls_to_wrap"] == "Block"
    assert rest.endswith('|| echo "it\'s over"')
    assert subprocess.run(["bash", "-n"], input=done.text, text=True, check=False).returncode == 0
    assert convert_script(done.text).text == done.text


def test_flags_of_the_script_itself_are_named_and_left() -> None:
    found = {(f.subject, f.code) for f in convert_script(SCRIPT).findings}
    assert ("line 8: --fsdp_shards", "FM345") in found
    assert ("line 16", "FM355") in found


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "accelerate launch --fsdp_sharding_strategy 2 --use_fsdp train.py --x 1",
            "--fsdp_reshard_after_forward false --use_fsdp {two} train.py --x 1",
        ),
        (
            "accelerate launch --use_fsdp -m pkg.train --fsdp_offload_params true",
            "--use_fsdp {two} -m pkg.train --fsdp_offload_params true",
        ),
        (
            "python -m accelerate.commands.launch --use_fsdp --fsdp_use_orig_params 1 t.py",
            "--use_fsdp {two} t.py",
        ),
    ],
)
def test_flags_of_one_tool_do_not_land_in_anothers(command: str, expected: str) -> None:
    text = convert_command(command).text
    assert text.endswith(expected.format(two="--fsdp_version 2 --fsdp_state_dict_type FULL_STATE_DICT"))
    assert convert_command(text).text == text


def test_both_tools_in_one_command() -> None:
    script = "t.py --fsdp 'full_shard auto_wrap' --bf16 True"
    done = convert_command(f"accelerate launch --use_fsdp --fsdp_sharding_strategy 2 {script}")
    before, _, after = done.text.partition(" t.py ")
    assert "--fsdp_version 2" in before
    assert "--fsdp_config" not in before
    assert "--fsdp_version" not in after
    assert json.loads(shlex.split(after)[3])["version"] == 2


@pytest.mark.parametrize(
    "command",
    [
        "python t.py --fsdp_sharding_strategy 2",
        "torchrun t.py --use_fsdp true",
        "torchrun t.py --config c.yaml --fsdp --fsdp_config fast",
    ],
)
def test_a_scripts_own_flags_are_not_taken_for_accelerates(command: str) -> None:
    with pytest.raises(ConfigError, match="must be the script's own"):
        convert_command(command)


@pytest.mark.parametrize(
    "flags",
    [
        "--fsdp $FSDP",
        "--fsdp full_shard",
        "--fsdp true --fsdp_config f.json",
        "--fsdp --fsdp_config '{}'",
    ],
)
def test_what_only_hf_trainer_takes_is_its_own(flags: str) -> None:
    assert [block.framework for block in convert_command(f"torchrun t.py {flags}").blocks] == ["hf"]


def test_flags_within_quotes_that_would_need_quotes_are_told() -> None:
    with pytest.raises(
        ConfigError, match=r"that can be changed\. line 1: .* it becomes `--fsdp full_shard --fsdp_c"
    ):
        convert_script('A="--fsdp full_shard"\n')


def test_an_empty_fsdp_is_off() -> None:
    done = convert_command("python t.py --fsdp '' --output_dir x")
    assert not done.is_changed
    assert [block.state for block in done.blocks] == ["unused"]


def test_a_config_file_keeps_what_it_says() -> None:
    done = convert_command(
        "accelerate launch --config_file c.yaml --fsdp_transformer_layer_cls_to_wrap 'A, B' t.py"
    )
    assert done.text == "accelerate launch --config_file c.yaml --fsdp_transformer_layer_cls_to_wrap A,B t.py"
    assert "FM356" in {f.code for f in done.findings}
    script = convert_script("accelerate launch --config_file c.yaml t.py\n")
    assert [(block.path, block.state) for block in script.blocks] == [("line 1", "unchanged")]
    assert ["c.yaml" in (f.hint or "") for f in script.findings] == [True]


def test_fsdp_by_a_flag_alone_becomes_fsdp2() -> None:
    text = convert_command("accelerate launch --use_fsdp t.py --use_fsdp").text
    assert text == (
        "accelerate launch --use_fsdp --fsdp_version 2 --fsdp_state_dict_type FULL_STATE_DICT t.py --use_fsdp"
    )


@pytest.mark.parametrize(
    "text", ["echo hello\n", "#!/bin/sh\n# --fsdp full_shard\n", "python t.py --fsdp_x 1\n"]
)
def test_a_script_without_launch_lines_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="No command in this script"):
        convert_script(text)


WORDS = {
    "fsdp_sharding_strategy": "FULL_SHARD",
    "fsdp_use_orig_params": "true",
    "fsdp_forward_prefetch": "true",
    "fsdp_offload_params": "true",
}


@settings(max_examples=examples(60), deadline=None)
@given(
    before=st.lists(st.sampled_from(sorted(WORDS)), unique=True),
    behind=st.sets(st.sampled_from(sorted(WORDS))),
)
def test_what_stands_behind_the_script_stays_as_it_is(before: list[str], behind: set[str]) -> None:
    def flags(names: list[str]) -> str:
        return "".join(f" --{name} {WORDS[name]}" for name in names)

    tail = f"train.py --lr 1{flags(sorted(behind))}"
    done = convert_command(f"accelerate launch{flags(before)} --use_fsdp {tail}")
    assert done.text.endswith(f" {tail}")
    assert "fsdp_version" in {flag.name for flag in read_flags(done.text)}


def test_the_parts_of_a_command() -> None:
    def at(command: str) -> tuple[str, str | None]:
        launch = launch_of(words_of(command))
        return launch.runner, None if launch.script_at is None else command[launch.script_at :].partition(
            " "
        )[0]

    assert at("accelerate launch --a b/c.py --d") == ("accelerate", "b/c.py")
    assert at("CUDA_VISIBLE_DEVICES=0 /opt/bin/torchrun --x 1 -m pkg.mod") == ("torchrun", "-m")
    assert at("accelerate launch $ARGS $SCRIPT") == ("accelerate", None)
    assert at("--fsdp full_shard") == ("", None)


def test_commands_end_where_the_shell_ends_them() -> None:
    text = "a=(\n  --x 1  # one\n  --y\n)\nif true; then run 2>&1 &> log & fi\nz <<-A <<B\n1\nA\n2\nB\nlast"
    assert [text[start:end] for start, end in commands_of(text)] == [
        "a=(\n  --x 1  # one\n  --y\n)",
        "if true",
        "then run 2>&1 &> log",
        "fi",
        "z <<-A <<B",
        "last",
    ]


def test_a_script_file_is_converted_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.slurm"
    path.write_text(SCRIPT)
    assert main(["config", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "+    --fsdp_reshard_after_forward false" in out
    assert "line 8" in out
    assert err == ""
    assert main(["config", str(path), "--write"]) == 0
    assert main(["config", str(path), "--check"]) == 0
    assert convert_config_file(path).is_fsdp2


LAUNCH_ARGS = {
    "use_fsdp": True,
    "fsdp_sharding_strategy": "HYBRID_SHARD",
    "num_machines": 2,
    "num_processes": 8,
}


def test_launch_arguments_in_json() -> None:
    document = {"accelerate_launch_args": LAUNCH_ARGS, "output_dir": "x", "num_train_epochs": 1}
    done = convert_config_text(document)
    assert done["accelerate_launch_args"] == {
        "use_fsdp": True,
        "fsdp_reshard_after_forward": True,
        "num_machines": 2,
        "num_processes": 8,
        "fsdp_version": 2,
        "fsdp_state_dict_type": "FULL_STATE_DICT",
        "use_parallelism_config": True,
        "parallelism_config_dp_replicate_size": 2,
        "parallelism_config_dp_shard_size": 4,
        "parallelism_config_tp_size": 1,
        "parallelism_config_cp_size": 1,
    }


def test_launch_arguments_beside_a_config_file_add_nothing() -> None:
    given: dict[str, object] = {
        "accelerate_launch_args": {"fsdp_transformer_layer_cls_to_wrap": "A, B", "config_file": "c.yaml"}
    }
    assert convert_config_text(given)["accelerate_launch_args"] == {
        "fsdp_transformer_layer_cls_to_wrap": "A,B",
        "config_file": "c.yaml",
    }


def convert_config_text(document: dict[str, object]) -> dict[str, object]:
    from fsdp_migrate.adapters.conversion.text import convert_text

    done = convert_text(json.dumps(document, indent=2))
    assert [block.framework for block in done.blocks] == ["accelerate"]
    assert convert_text(done.text).text == done.text
    after: dict[str, object] = json.loads(done.text)
    return after


@pytest.mark.parametrize(
    ("line", "value", "message", "hint"),
    [
        (
            'CONF=${C:-"./f.json"}',
            "$CONF",
            'line 1 sets it to `${C:-"./f.json"}`',
            "config ./f.json --from hf",
        ),
        ('export CONF="f.json"', '"$CONF"', "line 1 sets it to `f.json`", "config f.json --from hf"),
        (
            "ROOT=$(pwd)",
            "${ROOT}/conf/f.json",
            "line 1 sets the variable to `$(pwd)`",
            "config conf/f.json --from hf",
        ),
        (
            'ROOT="$(dirname "$(pwd)")" # up',
            "$ROOT/f.json",
            'sets the variable to `$(dirname "$(pwd)")`',
            "config f.json --from hf",
        ),
        (
            'case $1 in a) CONF="f.json" ;; esac',
            "$CONF",
            "line 1 sets it to `f.json`",
            "config f.json --from",
        ),
        ("OTHER=1", "$CONF", "$CONF is not set in this file", "Convert what it stands for"),
        ("CONF=/w/f.json", "$CONF", "line 1 sets it to `/w/f.json`", "config /w/f.json --from hf"),
        ("ROOT=/w", "$ROOT/c/f.json", "line 1 sets the variable to `/w`", "config /w/c/f.json --from hf"),
        (
            "ROOT=/w; CONF=${ROOT}/f.json",
            "$CONF",
            "line 1 sets it to `${ROOT}/f.json`",
            "config /w/f.json --from hf",
        ),
        (
            "ROOT=/w; ROOT=/x; CONF=$ROOT/f.json",
            "$CONF",
            "sets it to `$ROOT/f.json`",
            "config f.json --from hf",
        ),
    ],
)
def test_a_variable_that_the_script_sets_is_told(line: str, value: str, message: str, hint: str) -> None:
    done = convert_script(f"{line}\ntorchrun t.py --fsdp 'full_shard auto_wrap' --fsdp_config {value}\n")
    [said] = [f for f in done.findings if f.code == "FM346"]
    assert message in said.message
    assert said.message.count("kept") == 1
    assert hint in (said.hint or "")


@pytest.mark.parametrize("flags", ["", "--fsdp_offload_params true "])
def test_a_config_file_in_a_variable_is_told(flags: str) -> None:
    script = f"C=conf/a.yaml\naccelerate launch {flags}--config_file $C t.py\n"
    [said] = [f for f in convert_script(script).findings if f.code == "FM356"]
    assert "Line 1 sets the variable to `conf/a.yaml`" in said.message
    assert said.hint == "`fsdp-migrate config conf/a.yaml --from accelerate`."


@pytest.mark.parametrize("file", ["conf/a.yaml", "$C"])
@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ("--num_machines 2 --num_processes 16", " --nodes 2 --world-size 16"),
        ("--num_machines=$N", " --nodes N --world-size N"),
        ("--num_machines 1 --num_processes 8", ""),
    ],
)
def test_nodes_that_override_a_config_file_are_told(file: str, flags: str, options: str) -> None:
    script = f"C=conf/a.yaml\naccelerate launch --config_file {file} {flags} t.py\n"
    [said] = [f for f in convert_script(script).findings if f.code == "FM356"]
    assert (said.hint or "").startswith(f"`fsdp-migrate config conf/a.yaml --from accelerate{options}`")


def test_a_value_in_a_variable_that_the_script_sets_is_told() -> None:
    script = "W=Block\naccelerate launch --use_fsdp --fsdp_transformer_layer_cls_to_wrap=$W t.py\n"
    [said] = [f for f in convert_script(script).findings if f.code == "FM346"]
    assert said.message == "$W is kept: line 1 sets it to `Block`."


@pytest.mark.parametrize("flag", ["--enable_fsdp", "--low_cpu_fsdp", "--sharding_strategy"])
def test_own_flags_that_speak_of_fsdp_otherwise_are_told(flag: str) -> None:
    with pytest.raises(ConfigError, match=rf"No command in this script .* `{flag}` must be a script's own"):
        convert_script(f"torchrun t.py --lr 1 \\\n  {flag} full\n")


def test_fsdp_in_a_variable_is_told() -> None:
    script = "WORDS='shard_grad_op auto_wrap'\ntorchrun t.py --fsdp \"$WORDS\" --output_dir x\n"
    [said] = [f for f in convert_script(script).findings if f.code == "FM346"]
    assert "line 1 sets it to `shard_grad_op auto_wrap`" in said.message
    assert "write false for shard_grad_op" in said.message


def test_a_name_with_a_variable_within_is_no_other_files_name() -> None:
    script = "export DIR=$4\naccelerate launch --config_file $DIR/config_rank$RANK.yaml t.py\n"
    [said] = [f for f in convert_script(script).findings if f.code == "FM356"]
    assert "Line 1 sets the variable to `$4`" in said.message
    assert "config $DIR/config_rank$RANK.yaml --from accelerate" in (said.hint or "")


def test_the_word_of_ms_swift_is_fsdp2_already() -> None:
    done = convert_script("swift sft --fsdp fsdp2 --learning_rate 1 --output_dir x\n")
    assert [
        (block.state, finding.code) for block, finding in zip(done.blocks, done.findings, strict=True)
    ] == [("fsdp2", "FM347")]


def test_flags_before_the_script_are_the_launchers_in_a_variable() -> None:
    done = convert_script("$LAUNCH --fsdp_offload_params true --config_file c.yaml t.py --fsdp_x 1\n")
    assert [(block.framework, block.path) for block in done.blocks] == [("accelerate", "line 1")]
    assert ("line 1: --fsdp_x", "FM345") in {(f.subject, f.code) for f in done.findings}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('L="run --config_file conf/a.yaml"\n$L t.py\n', "conf/a.yaml"),
        ("export CONF=conf/fsdp_4.yaml\n# old_fsdp.json\n", "conf/fsdp_4.yaml"),
    ],
)
def test_files_of_settings_in_a_script_without_flags_are_named(text: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"No command .* It names `{name}`: `fsdp-migrate config {name}`"):
        convert_script(text)


@pytest.mark.parametrize("name", ['"$CONF"', "${CONF}", "conf.yaml"])
@pytest.mark.parametrize("launcher", ["accelerate launch", "$LAUNCH"])
def test_nothing_is_added_beside_a_config_file(launcher: str, name: str) -> None:
    command = f"{launcher} --fsdp_offload_params true --config_file {name} t.py"
    done = convert_command(command)
    assert done.text == command
    assert {"FM356"} == {f.code for f in done.findings if f.fidelity == "changed"}


def test_no_key_is_named_for_a_command() -> None:
    done = convert_command("python t.py --fsdp '' --fsdp_transformer_layer_cls_to_wrap A --output_dir x")
    assert [(f.code, f.hint) for f in done.findings] == [("FM351", None)]


@pytest.mark.parametrize("flags", ["--output_dir x", "--fsdp_transformer_layer_cls_to_wrap B --output_dir x"])
def test_a_switch_without_a_value_is_no_fsdp1_of_hf_trainer(flags: str) -> None:
    with pytest.raises(ConfigError, match=r"without a value from transformers 5\.10 on, and that is FSDP2"):
        convert_command(f"torchrun t.py --fsdp {flags}")
    both = f"accelerate launch --use_fsdp --fsdp_sharding_strategy 2 t.py --fsdp {flags}"
    done = convert_command(both)
    assert [block.framework for block in done.blocks] == ["accelerate"]
    assert done.text.endswith(f" t.py --fsdp {flags}")
    assert ("FM345", "--fsdp") in {(f.code, f.subject) for f in done.findings}


def test_flags_of_hf_trainer_without_fsdp_are_no_scripts_own() -> None:
    flags = "--output_dir x --fsdp_config f.json"
    done = convert_command(f"accelerate launch --config_file z.yaml t.py {flags}")
    assert {("FM351", "--fsdp_config")} == {(f.code, f.subject) for f in done.findings if "fsdp" in f.subject}
    with pytest.raises(
        ConfigError, match=r"without `--fsdp` reads at most .* convert f\.json with `--from hf`"
    ):
        convert_command(f"torchrun t.py {flags}")
    with pytest.raises(ConfigError, match="an HF Trainer reads it only beside `--fsdp`, and what another"):
        convert_command("torchrun t.py --output_dir x --fsdp_transformer_layer_cls_to_wrap A")


def test_flags_of_the_scripts_own_are_named_as_they_are_written() -> None:
    with pytest.raises(ConfigError, match="`--fsdp-cpu-offload`, `--low_cpu_fsdp` must be the script's own"):
        convert_command("python t.py --fsdp-cpu-offload --low_cpu_fsdp --lr=1")


@pytest.mark.parametrize("script", ["$SCRIPT --lr 1", '"${SCRIPT}" "${ARGS[@]}"', "$1", "true.py"])
def test_no_flag_of_accelerate_lands_behind_the_script(script: str) -> None:
    after = convert_script(f"accelerate launch --num_processes 2 --use_fsdp {script}\n").text
    assert after.startswith("accelerate launch --num_processes 2 --use_fsdp --fsdp_version 2 ")
    assert after.endswith(f" {script}\n")


def test_the_whole_path_behind_a_variable_is_named() -> None:
    script = "C=/work/fsdp.yaml\naccelerate launch --config_file ${C} t.py\n"
    [said] = [f for f in convert_script(script).findings if f.code == "FM356"]
    assert "config /work/fsdp.yaml --from" in (said.hint or "")


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("N=2\nG=8\n{} --num_machines $N --num_processes $((N * G)) t.py", " --nodes 2 --world-size 16"),
        ("#SBATCH -N 4\n{} --num_machines ${{SLURM_NNODES}} t.py", " --nodes 4 --world-size N"),
        ("N=${{NODES:-3}}\n{} --num_machines $N --num_processes $M t.py", " --nodes 3 --world-size N"),
        ("N=1\nif a; then N=2; fi\n{} --num_machines $N t.py", " --nodes N --world-size N"),
        ("N=1\n{} --num_machines $N --num_processes 8 t.py", ""),
    ],
)
def test_numbers_of_the_command_that_is_shown_are_numbers(text: str, options: str) -> None:
    done = convert_script(text.format("accelerate launch --config_file c.yaml"))
    (finding,) = done.findings
    assert finding.hint is not None
    assert finding.hint.startswith(f"`fsdp-migrate config c.yaml --from accelerate{options}`")


def test_a_file_is_named_by_what_stands_in_for_a_variable() -> None:
    script = "C=${C:-$ROOT/conf/a.yaml}\naccelerate launch --config_file $C t.py\n"
    (finding,) = convert_script(script).findings
    assert finding.hint == "`fsdp-migrate config conf/a.yaml --from accelerate`."


@pytest.mark.parametrize("name", ["Makefile", "GNUmakefile", "a.mk", "justfile"])
def test_recipes_are_commands(name: str) -> None:
    text = "train:\n\t@accelerate launch --use_fsdp --fsdp_sharding_strategy 2 t.py\n"
    assert is_script(PurePath(name).suffix or name, text)
    assert "--fsdp_reshard_after_forward false" in convert_script(text).text


def test_variables_in_a_line_of_their_own_are_no_value() -> None:
    flags = {flag.name: flag.value for flag in read_flags('t.py --fsdp\\\n $MORE \\\n --bf16 \\\n "$@"')}
    assert flags == {"fsdp": None, "bf16": None}
    assert read_flags("t.py --fsdp $MORE")[0].value == "$MORE"
    assert read_flags("t.py --fsdp \\\n 'full_shard auto_wrap'")[0].value == "full_shard auto_wrap"


def test_a_number_of_nodes_that_is_one_by_default_is_not_known(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    launch = "accelerate launch --use_fsdp --fsdp_sharding_strategy HYBRID_SHARD --num_machines $W"
    launch += " --num_processes 8 t.py"
    path.write_text(f"W=${{2:-1}}\n{launch}\n")
    with pytest.raises(FindingsError, match="HYBRID_SHARD needs `parallelism_config`"):
        convert_config_file(path)
    path.write_text(f"W=${{2:-2}}\n{launch}\n")
    assert "--parallelism_config_dp_replicate_size 2" in convert_config_file(path).conversion.text
