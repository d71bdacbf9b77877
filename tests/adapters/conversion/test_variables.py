"""Shell scripts whose flags stand in variables, arrays and quotes: each changes where it stands."""

from __future__ import annotations

import json
import shlex
import time

import pytest

from fsdp_migrate.adapters.conversion.command import convert_command, convert_script
from fsdp_migrate.adapters.conversion.variables import Script
from fsdp_migrate.errors import ConfigError


pytestmark = pytest.mark.any_torch

NEW = "--fsdp_reshard_after_forward false"
TWO = "--fsdp_version 2 --fsdp_state_dict_type FULL_STATE_DICT"
FLAGS = "--use_fsdp --fsdp_sharding_strategy SHARD_GRAD_OP"
STRATEGY = "--fsdp_sharding_strategy"
RUN = "accelerate launch"
USE = f"{RUN} $A t.py\n"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        # a launcher in a variable, also over several lines
        (
            f'L="accelerate launch {FLAGS}"\n$L t.py\n',
            f'L="accelerate launch --use_fsdp {NEW} {TWO}"\n$L t.py\n',
        ),
        (
            f"export L='{RUN} --use_fsdp \\\n  --fsdp_sharding_strategy 2 \\\n  '\nsrun ${{L}} t.py\n",
            f"export L='{RUN} --use_fsdp \\\n  {NEW} {TWO} \\\n  '\nsrun ${{L}} t.py\n",
        ),
        # variables in variables, and a shell of its own
        (
            f'L="{RUN}"\nA="{FLAGS}"\nC="$L $A"\nS="t.py --fsdp_x 1"\nbash -c "$C $S"\n',
            f'L="{RUN}"\nA="--use_fsdp {NEW} {TWO}"\nC="$L $A"\nS="t.py --fsdp_x 1"\nbash -c "$C $S"\n',
        ),
        (
            f"bash -lc 'accelerate launch {FLAGS} t.py'\n",
            f"bash -lc 'accelerate launch --use_fsdp {NEW} {TWO} t.py'\n",
        ),
        (
            f'C="accelerate launch {FLAGS} t.py"\neval $C\n',
            f'C="accelerate launch --use_fsdp {NEW} {TWO} t.py"\neval $C\n',
        ),
        # an array with comments, that grows
        (
            f"A=(\n  --use_fsdp  # it's\n)\nA+=(--fsdp_sharding_strategy 2) # b\n{RUN} ${{A[@]}} t.py\n",
            f"A=(\n  --use_fsdp  # it's\n)\nA+=({NEW} {TWO}) # b\n{RUN} ${{A[@]}} t.py\n",
        ),
        (
            "A=(\n  --fsdp_sharding_strategy 2\n  --use_fsdp  # on\n)\naccelerate launch ${A[*]} t.py\n",
            f"A=(\n  {NEW}\n  --use_fsdp {TWO}  # on\n)\naccelerate launch ${{A[*]}} t.py\n",
        ),
        # what one of two branches sets
        (
            f'if x; then\n  A="{FLAGS}"\nelse\n  A=""\nfi\naccelerate launch $A t.py\n',
            f'if x; then\n  A="--use_fsdp {NEW} {TWO}"\nelse\n  A=""\nfi\naccelerate launch $A t.py\n',
        ),
        pytest.param(
            f'A="{FLAGS} --a"\n[ x ] && y\nA="--use_fsdp --fsdp_offload_params true"\n{RUN} $A t.py\n',
            f'A="--use_fsdp {NEW} {TWO} --a"\n[ x ] && y\n'
            f'A="--use_fsdp --fsdp_offload_params true {TWO}"\n{RUN} $A t.py\n',
        ),
        # two commands with one variable
        (
            f'A="{FLAGS}"\naccelerate launch $A t.py\naccelerate launch $A u.py\n',
            f'A="--use_fsdp {NEW} {TWO}"\naccelerate launch $A t.py\naccelerate launch $A u.py\n',
        ),
        # two commands, and what is added between them: the first runs without it
        *(
            (
                f'A="--use_fsdp {STRATEGY} 1"\n{USE}{adds} {STRATEGY} 2"\n{USE}',
                f'A="--use_fsdp {NEW[:-5]}true {TWO}"\n{USE}{adds} {NEW} {TWO}"\n{USE}',
            )
            for adds in ('A="$A', 'A+="')
        ),
        # a function has what is added before it is called, and a command behind one what is above itself
        (
            f'A="--use_fsdp"\nrun() {{\n  {USE}}}\nA+=" {STRATEGY} 2"\nrun\n',
            f'A="--use_fsdp"\nrun() {{\n  {USE}}}\nA+=" {NEW} {TWO}"\nrun\n',
        ),
        (
            f'A="--use_fsdp"\nhelp() {{ echo; }}\n{USE}A+=" {STRATEGY} 2"\n{USE}',
            f'A="--use_fsdp {TWO}"\nhelp() {{ echo; }}\n{USE}A+=" {NEW} {TWO}"\n{USE}',
        ),
        # one that nothing in this file uses
        (f'L="accelerate launch {FLAGS}"\n', f'L="accelerate launch --use_fsdp {NEW} {TWO}"\n'),
    ],
)
def test_flags_change_where_they_stand(script: str, expected: str) -> None:
    done = convert_script(script)
    assert done.text == expected
    assert not [f for f in done.findings if f.code == "FM355" and "Left as it is" in f.message]
    assert convert_script(done.text).text == done.text


def test_an_array_of_hf_trainers_arguments_gets_none_of_accelerates() -> None:
    array = 'A=(--output_dir x --fsdp "full_shard auto_wrap" --fsdp_transformer_layer_cls_to_wrap B)\n'
    for use in ("", 'torchrun t.py "${A[@]}"\n'):
        done = convert_script(array + use)
        assert {block.framework for block in done.blocks} == {"hf"}
        assert "--fsdp_version" not in done.text
        config = shlex.split(done.text)[shlex.split(done.text).index("--fsdp_config") + 1]
        assert json.loads(config.removesuffix(")"))["fsdp_transformer_layer_cls_to_wrap"] == "B"


def test_flags_of_a_projects_script_in_a_variable_are_its_own() -> None:
    script = "A='--fsdp_sharding_strategy 2'\npython t.py $A\n"
    with pytest.raises(ConfigError, match=r"line 2: .*must be the script's own"):
        convert_script(script)


@pytest.mark.parametrize("use", ["", "eval torchrun t.py --output_dir x $A\n"])
def test_what_cannot_be_changed_where_it_stands_is_told(use: str) -> None:
    with pytest.raises(
        ConfigError, match=r"that can be changed.* it becomes `.*--fsdp .*full_shard auto_wrap"
    ):
        convert_script(f"A='--fsdp \"full_shard auto_wrap\"'\n{use}")


def test_what_a_command_is_made_of_line_by_line_stands_in_it_once() -> None:
    lines = [f'CMD="$CMD --flag_{number} 1"' for number in range(30)]
    text = "\n".join(['CMD="accelerate launch --use_fsdp t.py"', *lines, "$CMD"])
    script = Script(text)
    [(start, end)] = script.others()
    [one] = script.variants(start, end)
    assert one.text.split() == ["accelerate", "launch", "--use_fsdp", "t.py"] + [
        word for number in range(30) for word in (f"--flag_{number}", "1")
    ]
    assert "--fsdp_version 2" in convert_script(text).text


def test_variables_in_each_other_come_to_an_end() -> None:
    lines = [
        f"A+=' --config_file $B' B+=' --use_fsdp $A {number}'".replace(" B+", "\nB+") for number in range(30)
    ]
    text = "\n".join(["A=t.py", "B=t.py", *lines, "accelerate launch $A"])
    script = Script(text)
    [(start, end)] = script.others()
    assert len(script.variants(start, end)[0].parts) < 3000


@pytest.mark.parametrize("run", [f"{RUN} {FLAGS} t.py", "torchrun t.py --fsdp full_shard"])
def test_arguments_of_the_script_in_a_variable_are_heeded(run: str) -> None:
    done = convert_script(f'A="--output_dir o --bf16 True --optim adafactor"\n{run} $A\n')
    assert {"line 2: bf16", "line 2: optim"} <= {finding.subject for finding in done.findings}


def test_what_two_branches_may_hold_is_said_once() -> None:
    branches = 'if x; then\n  A="--output_dir a --bf16"\nelse\n  A="--output_dir b --bf16"\nfi\n'
    done = convert_script(f"{branches}{RUN} {FLAGS} t.py $A\n")
    assert [block.path for block in done.blocks] == ["line 6"]
    assert len(done.findings) == len(set(done.findings))


@pytest.mark.parametrize(("then", "path"), [('srun bash -c "$C"\n', "line 3"), ("", "line 1")])
def test_a_command_that_is_printed_is_not_run_by_that(then: str, path: str) -> None:
    done = convert_script(f'C="{RUN} {FLAGS} t.py"\necho $C\n{then}')
    assert [block.path for block in done.blocks] == [path]


def test_a_variable_of_several_quoted_parts_is_looked_into() -> None:
    script = f'export L="{RUN} {FLAGS} \\\n --main_process_ip "$IP" "\nsrun bash -c "$L t.py"\n'
    assert convert_script(script).text == script.replace(FLAGS, f"--use_fsdp {NEW} {TWO}")


@pytest.mark.parametrize("ranks", ["'$N'", "'\"$N\"'", "'\"${N}\"'"])
def test_a_text_whose_quotes_are_closed_for_a_variable_is_one_command(ranks: str) -> None:
    run = f"srun bash -c 'accelerate launch --use_fsdp --num_processes={ranks} {{}} t.py'\n"
    done = convert_script(run.replace("{}", "--fsdp_sharding_strategy=2 --mixed_precision=bf16"))
    two = "--fsdp_version 2 --fsdp_state_dict_type FULL_STATE_DICT"
    assert done.text == run.replace("{}", f"--fsdp_reshard_after_forward=false {two} --mixed_precision=bf16")
    assert "FM354" in {finding.code for finding in done.findings}


@pytest.mark.parametrize("run", ['sh -c "$C"', 'eval "$C"', 'srun bash -lc "$C"'])
def test_a_command_that_is_shown_can_be_typed(run: str) -> None:
    text = f"C='torchrun t.py \\\n  --output_dir o \\\n  --fsdp \"full_shard auto_wrap\"\n'; {run}\n"
    with pytest.raises(
        ConfigError, match=r"it becomes `(srun )?torchrun t\.py --output_dir o --fsdp \"full_shard"
    ):
        convert_script(text)
    # Within double quotes another shell's quotes can stand.
    text = f"C=\"torchrun t.py \\\n  --output_dir o \\\n  --fsdp 'full_shard auto_wrap'\n\"; {run}\n"
    assert convert_script(text).text.startswith(
        text[: text.index("'\n\"; ") + 1] + " --fsdp_config '{\\\"version"
    )


BLOCK = '{"transformer_layer_cls_to_wrap": "Block"}'
BLOCK_NEW = (
    '{"transformer_layer_cls_to_wrap": "Block", "version": 2, "reshard_after_forward": true, '
    '"state_dict_type": "FULL_STATE_DICT"}'
)
HF = "torchrun t.py --output_dir o --fsdp {q}full_shard auto_wrap{q} --fsdp_config '{block}' --seed \\$S"


def quoted(text: str) -> str:
    return text.replace('"', '\\"')


@pytest.mark.parametrize("q", ["'", '\\"'])
@pytest.mark.parametrize(
    "script",
    [
        'bash -c "{}"\n',
        'C="{}"\nstart=$(date +%s)\nsh -c "$C"\n',
        'C="{}"\neval $C\n',
        'C="{}"\neval "$C"\n',
        'A="{}"\nC="cd w && $A"\nsrun bash -lc "$C"\n',
        'ssh $host "cd w && {}"\n',
    ],
)
def test_quotes_with_backslashes_are_the_other_shells(script: str, q: str) -> None:
    """One level of the shell's escapes is undone, and written again around what changes."""
    before = script.format(HF.format(q=q, block=quoted(BLOCK)))
    assert convert_script(before).text == script.format(HF.format(q=q, block=quoted(BLOCK_NEW)))
    typed = HF.format(q=q.strip("\\"), block=BLOCK_NEW).replace("\\$", "$")
    inner = convert_script(before).text.partition('"')[2].partition('"\n')[0]
    assert inner.replace('\\"', '"').replace("\\$", "$").removeprefix("cd w && ") == typed


@pytest.mark.parametrize("run", ["$C", "srun $C"])
def test_quotes_with_backslashes_stay_where_no_shell_takes_them_away(run: str) -> None:
    command = HF.format(q="'", block=quoted(BLOCK))
    text = f'C="{command}"\n{run}\n'
    with pytest.raises(ConfigError, match="is no JSON"):
        convert_script(text)


def test_what_the_shell_around_would_expand_is_not_written_within_its_quotes() -> None:
    command = HF.format(q="'", block=quoted(BLOCK.replace("Block", "$L")))
    text = f'bash -c "{command}"\n'
    with pytest.raises(
        ConfigError, match=r'it becomes `torchrun .* \'\{"transformer_layer_cls_to_wrap": "\$L"'
    ):
        convert_script(text)


@pytest.mark.parametrize(
    "command",
    [
        'sbatch -N 1 --wrap "{}"',
        'sbatch --wrap="{}"',
        'ssh $host "cd w && {}"',
        "ssh -o 'X no' $host \"{}\" &",
        'tmux send-keys -t a "{}" C-m',
        'su bob -c "{}"',
        'gcloud compute tpus tpu-vm ssh $T --command="{}"',
    ],
)
def test_a_text_that_is_handed_to_another_shell(command: str) -> None:
    before = command.format("accelerate launch --use_fsdp t.py")
    after = before.replace("--use_fsdp", "--use_fsdp --fsdp_version 2 --fsdp_state_dict_type FULL_STATE_DICT")
    assert convert_script(f"{before}\n").text == f"{after}\n"
    assert convert_command(before).text == after
    hf = command.format("torchrun t.py --output_dir o --fsdp full_shard").replace('"', "'")
    inner = "torchrun t.py --output_dir o --fsdp full_shard --fsdp_config '{"
    with pytest.raises(ConfigError, match=f"The command for the other shell becomes `(cd w && )?{inner}"):
        convert_script(f"{hf}\n")


@pytest.mark.parametrize("pattern", ["fsdp)", "fsdp | zero3 )", '"fsdp")', "(fsdp*)", "*)"])
def test_a_choice_of_a_case_sets_a_variable_in_its_line(pattern: str) -> None:
    given = 'case "$1" in\n  ddp) A="--multi_gpu" ;;\n  {} A="{}" ;;\nesac\naccelerate launch $A t.py\n'
    done = convert_script(given.format(pattern, "--use_fsdp --fsdp_offload_params true"))
    assert 'A="--use_fsdp --fsdp_offload_params true --fsdp_version 2 ' in done.text
    assert 'A="--multi_gpu" ;;' in done.text


def test_many_patterns_with_stars_take_no_time() -> None:
    script = f"case $x in\n  {'node1*|' * 40}node2* !) accelerate launch --use_fsdp t.py ;;\nesac\n"
    start = time.process_time()
    convert_script(script)
    assert time.process_time() - start < 8
