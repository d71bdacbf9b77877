"""What a script sets a variable to, where several commands stand in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.adapters.conversion.command import convert_script
from fsdp_migrate.adapters.conversion.shell import assignment_of
from fsdp_migrate.config_files import convert_config_file


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('  --cls*) C=$(echo "$1"); [[ "$1" != *=* ]] && shift ;;', '$(echo "$1")'),
        ('C="$(dirname "$(pwd)")/c.json"; shift', '$(dirname "$(pwd)")/c.json'),
        ("C=$((8 * (1 + N))) && echo", "$((8 * (1 + N)))"),
        ("C=$(sed 's/)//' f) python t.py", "$(sed 's/)//' f)"),
        ('C="a b" python t.py', "a b"),
        ('C="$A b"/c.json; x', '"$A b"/c.json'),
        ("C=a\\ b|x", "a\\ b"),
        ("C=$(cat <<E", "$(cat <<E"),
        ("C=(a b)", "(a"),
    ],
)
def test_a_value_ends_with_its_word(line: str, value: str) -> None:
    assert assignment_of("C", line) == (1, value)


def test_what_is_said_of_a_variable_is_its_value() -> None:
    text = 'case "$1" in\n  --cls*) CLS=$(echo "$1"); shift ;;\nesac\naccelerate launch --use_fsdp '
    done = convert_script(f"{text}--fsdp_transformer_layer_cls_to_wrap $CLS t.py\n")
    [said] = [f.message for f in done.findings if f.code == "FM346"]
    assert 'line 2 sets it to `$(echo "$1")`' in said


@pytest.mark.parametrize(
    "flags",
    [
        "torchrun t.py --output_dir o --fsdp 'full_shard auto_wrap' --fsdp_transformer_layer_cls_to_wrap $L",
        """python t.py --fsdp auto_wrap --fsdp_config '{"transformer_layer_cls_to_wrap": ["'"${L}"'"]}'""",
        "accelerate launch --use_fsdp --fsdp_transformer_layer_cls_to_wrap $L t.py",
    ],
)
@pytest.mark.parametrize(
    ("given", "is_told"), [("L=T5Block", True), ("L=T5Block\nL=A", False), ("L=A", False)]
)
def test_what_is_said_of_a_class_is_said_of_one_in_a_variable(flags: str, given: str, is_told: bool) -> None:
    done = convert_script(f"{given}\n{flags}\n")
    said = [f for f in done.findings if f.code == "FM343" and "T5Block: the encoder" in f.message]
    assert len(said) == is_told


@pytest.mark.parametrize(
    ("flag", "given", "word"),
    [
        ("--fsdp_auto_wrap_policy $P", "P=SIZE_BASED_WRAP", "SIZE_BASED_WRAP: Accelerate's FSDP2 wraps"),
        (
            "--fsdp_transformer_layer_cls_to_wrap $P",
            "P=EsmLayer",
            "Without it the launcher takes true: rank 0",
        ),
        (
            "--fsdp_cpu_ram_efficient_loading $P --fsdp_transformer_layer_cls_to_wrap ResidualBlock",
            "P=true",
            "true: rank 0 alone",
        ),
    ],
)
def test_what_a_known_value_does_otherwise_is_told(flag: str, given: str, word: str) -> None:
    launch = f"accelerate launch --use_fsdp {flag} t.py\n"
    told = [f.message for f in convert_script(f"{given}\n{launch}").findings if f.code == "FM343"]
    assert [text for text in told if text.startswith(word)]
    other = [f.message for f in convert_script(f"P=$1\n{launch}").findings if f.code == "FM343"]
    assert not [text for text in other if text.startswith(word)]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("if x; then L=A; else L=B; fi", "line 1 sets it to `A`, line 1 to `B`"),
        ("if x\nthen\n  L=A\nelse\n  L='B C'\nfi", "line 3 sets it to `A`, line 5 to `B C`"),
        ("L=A\n[[ $O ]] && L+=,B", "line 1 sets it to `A`, line 2 to `,B`"),
        ("L=A\nL=A", "line 1 sets it to `A`."),
    ],
)
def test_every_place_that_sets_a_variable_is_named(given: str, told: str) -> None:
    text = f"{given}\naccelerate launch --use_fsdp --fsdp_transformer_layer_cls_to_wrap $L t.py\n"
    [said] = [f.message for f in convert_script(text).findings if f.code == "FM346"]
    assert told in said


IN_BRANCHES = "if [ $N -eq 1 ]; then\n  C={}\nelse\n  C={}\nfi\naccelerate launch --config_file $C t.py\n"
FSDP1 = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
FSDP2 = FSDP1.replace("sharding_strategy: FULL_SHARD", "version: 2\n  fsdp_reshard_after_forward: true")
BOTH = "`fsdp-migrate config a.yaml --from accelerate` and `fsdp-migrate config b.yaml --from accelerate`."


@pytest.mark.parametrize(
    ("files", "hint"),
    [
        ({}, BOTH),
        ({"a.yaml": FSDP1, "b.yaml": FSDP1}, BOTH),
        # The command for one without FSDP, or with FSDP2's, would end in nothing to convert.
        ({"a.yaml": "distributed_type: 'NO'\n", "b.yaml": FSDP1}, BOTH.partition(" and ")[2]),
        ({"a.yaml": FSDP1, "b.yaml": "distributed_type: 'NO'\n"}, f"{BOTH.partition(' and ')[0]}."),
        ({"a.yaml": FSDP2, "b.yaml": FSDP1}, BOTH.partition(" and ")[2]),
        ({"a.yaml": FSDP2, "b.yaml": FSDP2}, None),
    ],
)
def test_each_config_that_a_branch_sets_gets_its_command(
    tmp_path: Path, files: dict[str, str], hint: str | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    run = tmp_path / "run.sh"
    run.write_text(IN_BRANCHES.format("a.yaml", "b.yaml"))
    [said] = [f for f in convert_config_file(run).conversion.findings if f.code in {"FM347", "FM356"}]
    assert (said.hint and said.hint.replace(f"{tmp_path}/", "")) == hint
    assert said.code == ("FM356" if hint else "FM347")


@pytest.mark.parametrize(
    ("values", "message", "hint"),
    [
        (("''", "b.yaml"), "empty at first, line 4 sets it to `b.yaml`.", BOTH.partition(" and ")[2]),
        (("''", "''"), "Line 2 leaves the variable empty at first.", None),
        (("a.yaml", "a.yaml"), "Line 2 sets the variable to `a.yaml`.", f"{BOTH.partition(' and ')[0]}."),
    ],
)
def test_a_config_that_one_branch_sets_gets_its_command(
    values: tuple[str, str], message: str, hint: str | None
) -> None:
    [said] = [f for f in convert_script(IN_BRANCHES.format(*values)).findings if f.code == "FM356"]
    assert said.message.endswith(message)
    assert said.hint == hint


def test_each_json_of_branches_gets_its_command() -> None:
    line = "torchrun t.py --fsdp 'full_shard auto_wrap' --fsdp_config $C\n"
    script = IN_BRANCHES.format("a.json", "b.json").partition("accelerate")[0] + line
    [said] = [f for f in convert_script(script).findings if f.code == "FM346"]
    assert "config a.json --from hf` and `fsdp-migrate config b.json --from hf`" in str(said.hint)
