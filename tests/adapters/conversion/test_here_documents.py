"""Launch lines in here-documents, which become a script of a node or a job."""

from __future__ import annotations

import pytest

from fsdp_migrate.adapters.conversion.command import convert_script, settings_in_script
from fsdp_migrate.adapters.conversion.manifests import commands_become
from fsdp_migrate.errors import NothingToConvertError


pytestmark = pytest.mark.any_torch

LAUNCH = "accelerate launch --use_fsdp --fsdp_sharding_strategy {} t.py\n"
OLD, NEW = "--fsdp_sharding_strategy FULL_SHARD", "--fsdp_reshard_after_forward true --fsdp_version 2"


@pytest.mark.parametrize(
    ("asks", "word"),
    [
        ("cat > node.sh <<EOF", "EOF"),
        ("cat <<'EOF' > node.sh", "EOF"),
        ("sbatch <<\\EOF", "EOF"),
        ("ssh host bash -s <<-E", "\tE"),
        ("cat <<EOF | qsub", "EOF"),
        ("read -r -d '' CMD <<EOF", "EOF"),
    ],
)
def test_a_launch_line_changes_where_it_stands(asks: str, word: str) -> None:
    launch = LAUNCH.format("FULL_SHARD")
    done = convert_script(f"{launch}{asks}\n# don't\n{launch}{word}\nbash node.sh\n{launch}")
    assert done.text.count(NEW) == 3
    assert [block.path for block in done.blocks] == ["line 1", "line 4", "line 7"]
    assert f"\n{word}\nbash node.sh\n" in done.text
    assert settings_in_script(f"{asks}\n{launch}{word}\n") == settings_in_script(launch)


def test_what_the_script_around_sets_counts_in_it() -> None:
    run = 'torchrun t.py --output_dir o --fsdp "full_shard auto_wrap"\n'
    script = f"export FSDP_STATE_DICT_TYPE=SHARDED_STATE_DICT\nL=A\ncat > n.sh <<EOF\n{run}EOF\n"
    assert '"state_dict_type": "SHARDED_STATE_DICT"' in convert_script(script).text


def test_lines_that_go_on_in_the_later_shell_are_one_command() -> None:
    run = "accelerate launch --use_fsdp \\\\\n  --fsdp_sharding_strategy FULL_SHARD \\\\\n  t.py \\$A\n"
    done = convert_script(f"sbatch <<EOF\n{run}EOF\n")
    assert "--fsdp_reshard_after_forward true" in done.text
    assert "--fsdp_version 2 --fsdp_state_dict_type FULL_STATE_DICT \\\\\n  t.py \\$A\n" in done.text


def test_a_variable_of_the_later_shell_is_not_moved() -> None:
    run = 'torchrun t.py --fsdp "full_shard auto_wrap" --fsdp_transformer_layer_cls_to_wrap \\$L --bf16\n'
    with pytest.raises(NothingToConvertError, match=r"it becomes `torchrun t\.py .*version"):
        convert_script(f"sbatch <<EOF\n{run}EOF\n")
    assert "version" in convert_script(f"sbatch <<'EOF'\n{run.replace(chr(92), '')}EOF\n").text


@pytest.mark.parametrize(
    ("asks", "inner", "said"),
    [
        ("cat <<E", f"usage: {LAUNCH}", ""),
        ("usage() { cat <<E", LAUNCH.format("FULL_SHARD"), ""),
        ("python - <<E", 'p.add_argument("--fsdp")\n', ""),
        ("cat > t.py <<E", 'p.add_argument("--fsdp")\n', ""),
        ("cat > k.yaml <<E", 'args: ["accelerate", "launch", "--use_fsdp"]\n', "line 1 holds FSDP settings"),
    ],
)
def test_what_no_shell_runs_is_no_command(asks: str, inner: str, said: str) -> None:
    with pytest.raises(NothingToConvertError) as caught:
        convert_script(f"{asks}\n{inner}E\npython t.py\n")
    message = str(caught.value)
    assert said in message if said else message.endswith("`accelerate launch`.")


def test_one_in_parentheses_ends_where_its_word_stands() -> None:
    done = convert_script(f"A=$(cat <<E\nit's\nE\n)\n{LAUNCH.format('FULL_SHARD')}")
    assert NEW in done.text


def test_one_in_a_manifest_is_told() -> None:
    launch = f"accelerate launch --use_fsdp {OLD} t.py"
    text = f"run: |\n  sbatch <<E\n  {launch}\n  E\n"
    assert f"becomes `accelerate launch --use_fsdp {NEW}" in commands_become(text, is_json=False)
