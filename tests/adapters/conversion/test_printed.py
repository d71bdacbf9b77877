"""What a script only shows, or compares: help texts, patterns of ``case``, and defaults."""

from __future__ import annotations

import pytest

from fsdp_migrate.adapters.conversion.command import convert_script
from fsdp_migrate.errors import NothingToConvertError


pytestmark = pytest.mark.any_torch


RUN = "accelerate launch --use_fsdp --fsdp_sharding_strategy 1 t.py\n"


@pytest.mark.parametrize(
    "text",
    [
        'echo "  --use_fsdp   use FSDP"\n',
        'echo "  $0 --config c.yaml --fsdp"\n',
        'printf "  %s --fsdp\\n" "$0"\n',
        "case $1 in\n  --fsdp) M=fsdp ;;\nesac\n",
        "case $1 in\n  -f|--fsdp|--use_fsdp) M=fsdp; shift ;;\nesac\n",
        "case $1 in --fsdp) M=fsdp ;; esac\n",
        'case $1 in\n  --fsdp=*)\n    M=fsdp ;;\n  ("--use-fsdp") M=fsdp ;;\nesac\n',
    ],
)
def test_what_is_shown_or_compared_is_no_command(text: str) -> None:
    done = convert_script(text + RUN)
    assert "FM355" not in {finding.code for finding in done.findings}
    assert done.text.startswith(text)
    assert "--fsdp_version 2" in done.text


def test_a_command_behind_a_pattern_is_converted() -> None:
    done = convert_script(f"case $1 in\n  --fsdp) {RUN[:-1]} ;;\nesac\n")
    assert "  --fsdp) accelerate launch --use_fsdp --fsdp_reshard_after_forward true" in done.text
    assert "FM345" not in {finding.code for finding in done.findings}


def test_a_text_that_a_shell_is_given_is_still_reported() -> None:
    done = convert_script('echo "$RUN --use_fsdp" | bash\n' + RUN)
    assert "FM355" in {finding.code for finding in done.findings}


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ('run --c "${2:-configs/fsdp.yaml}"', "config configs/fsdp.yaml`"),
        ("C=${1-configs/fsdp.yaml}\nrun $C", "config configs/fsdp.yaml`"),
        ("bash ${1:-scripts/run_fsdp.sh}", "config scripts/run_fsdp.sh`"),
        ("run ${ROOT:-.}/fsdp.yaml", "config ./fsdp.yaml`"),
        ("python ${1:-train_fsdp.py}", "It starts `train_fsdp.py`"),
    ],
)
def test_the_default_of_an_argument_is_named_without_its_dash(text: str, command: str) -> None:
    with pytest.raises(NothingToConvertError) as raised:
        convert_script(text)
    assert command in str(raised.value)


@pytest.mark.parametrize(
    ("quoted", "code"),
    [
        (r"\"full_shard auto_wrap\"", "FM340"),
        (r"\'full_shard auto_wrap\'", "FM340"),
        (r"\"full_shard auto_wrapp\"", "FM348"),
        (r"\"full_shard auto_wrap", "FM348"),
    ],
)
def test_quotes_that_are_escaped_for_eval_are_no_part_of_a_word(quoted: str, code: str) -> None:
    text = f'ARGS="--output_dir o --fsdp {quoted} --fsdp_config c.json"\neval torchrun t.py $ARGS "$@"\n'
    done = convert_script(text)
    assert [f.code for f in done.findings if f.subject == "line 2: fsdp"] == [code]
    assert done.text == text
