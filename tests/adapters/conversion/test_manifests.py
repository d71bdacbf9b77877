"""Commands in manifests: what each becomes is said, whether it stands in lists or in a text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.adapters.conversion import launched_with
from fsdp_migrate.adapters.conversion.manifests import commands_become
from fsdp_migrate.config_files import convert_config_file
from fsdp_migrate.errors import NothingToConvertError


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

TWO = "--fsdp_version 2 --fsdp_state_dict_type FULL_STATE_DICT"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "spec:\n  - command: [accelerate, launch]\n    args:\n    - --use_fsdp\n    - t.py\n    - a b\n",
            f"in `spec.0.command` and `args` becomes `accelerate launch --use_fsdp {TWO} t.py 'a b'`.",
        ),
        (
            "command:\n- accelerate\n- launch\n- --use_fsdp\n- --fsdp_sharding_strategy=2\n- t.py\n",
            (
                "in `command` becomes `accelerate launch --use_fsdp --fsdp_reshard_after_forward=false "
                f"{TWO} t.py`."
            ),
        ),
        (
            "run: |\n  cd x\n  accelerate launch --use_fsdp --fsdp_use_orig_params true \\\n    t.py\n",
            f"in `run` becomes `accelerate launch --use_fsdp {TWO} t.py`.",
        ),
        (
            "run: |\n  accelerate launch --use_fsdp --num_processes ${RANKS} t.py\n",
            f"in `run` becomes `accelerate launch --use_fsdp {TWO} --num_processes ${{RANKS}} t.py`.",
        ),
        (
            "args: [accelerate, launch, --use_fsdp, '${SCRIPT}']\n",
            f"in `args` becomes `accelerate launch --use_fsdp {TWO} ${{SCRIPT}}`.",
        ),
        (
            "run: accelerate launch --config_file ${C} --fsdp_sharding_strategy 2 t.py\n",
            (
                "becomes `accelerate launch --config_file ${C} --fsdp_reshard_after_forward false t.py`. "
                "${C} says the rest, which is not converted with this one: nothing is added here."
            ),
        ),
        (
            "run: torchrun t.py --fsdp full_shard --output_dir x\n",
            "5.0 to 5.9 save SHARDED_STATE_DICT instead of FULL_STATE_DICT.",
        ),
    ],
)
def test_what_a_command_becomes_is_said(
    tmp_path: Path, text: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is said of versions depends on the one that is installed.
    monkeypatch.setattr(launched_with, "installed_versions", tuple)
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(NothingToConvertError) as caught:
        convert_config_file(path)
    assert said in str(caught.value)
    assert path.read_text() == text


def test_a_command_over_several_lines_is_said_whole() -> None:
    run = "  accelerate launch --use_fsdp \\\n    --mixed_precision bf16 \\\n    train.py\n"
    text = f"run: |\n  echo x\n{run}  echo y\n"
    said = commands_become(text, is_json=False)
    assert f"becomes `accelerate launch --use_fsdp {TWO} --mixed_precision bf16 train.py`." in said


def test_what_a_command_becomes_is_said_once_for_all_its_variants() -> None:
    command = "torchrun $SCRIPT --fsdp full_shard --output_dir x"
    run = f"if [ $A = 1 ]; then\n  SCRIPT=a.py\nelse\n  SCRIPT=b.py\nfi\n{command}\n"
    said = commands_become(json.dumps({"run": run}), is_json=True)
    assert said.count("older ones stay with FSDP1") == 1


@pytest.mark.parametrize(
    "text",
    [
        "env:\n- name: ACCELERATE_USE_FSDP\n  value: 'true'\n- {name: FSDP_SHARDING_STRATEGY, value: '2'}\n",
        "envs:\n  ACCELERATE_USE_FSDP: true\n  FSDP_SHARDING_STRATEGY: 2\nrun: python t.py\n",
        "env: [ACCELERATE_USE_FSDP=true, FSDP_SHARDING_STRATEGY=2]\n",
    ],
)
def test_what_the_environment_in_a_manifest_becomes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(NothingToConvertError) as caught:
        convert_config_file(path)
    assert "environment that it sets" in str(caught.value)
    assert str(caught.value).endswith(
        "For FSDP2 set `ACCELERATE_USE_FSDP=true FSDP_RESHARD_AFTER_FORWARD=false FSDP_VERSION=2 "
        "FSDP_STATE_DICT_TYPE=FULL_STATE_DICT`, and not `FSDP_SHARDING_STRATEGY`."
    )


@pytest.mark.parametrize(
    "words",
    [
        "python, t.py, --fsdp_shards, 4",
        "--fsdp, --fsdp-amp, --fsdp-use-orig-params",
        "--fsdp-amp, --fsdp-limit-all-gathers, --fsdp-cpu-ram-efficient-loading",
    ],
)
def test_flags_of_a_projects_own_become_nothing(tmp_path: Path, words: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"args: [{words}]\n")
    with pytest.raises(NothingToConvertError) as caught:
        convert_config_file(path)
    assert "becomes" not in str(caught.value)


@pytest.mark.parametrize(
    ("strategy", "becomes", "said"),
    [
        ("2", '"reshard_after_forward": false', "`version: 2` is read by"),
        ("4", '"reshard_after_forward": true', "HYBRID_SHARD: HF Trainer takes no mesh"),
        ("$S", '"reshard_after_forward": true', "Write false for 2, 3 and 5"),
    ],
)
def test_the_strategy_in_the_environment_of_a_manifest(strategy: str, becomes: str, said: str) -> None:
    command = "torchrun t.py --fsdp auto_wrap --output_dir o"
    for env in (
        {"FSDP_SHARDING_STRATEGY": strategy},
        [{"name": "FSDP_SHARDING_STRATEGY", "value": strategy}],
        [f"FSDP_SHARDING_STRATEGY={strategy}"],
    ):
        text = commands_become(json.dumps({"env": env, "command": command.split()}), is_json=True)
        assert becomes in text
        assert said in text


def test_two_strategies_in_a_manifest_are_named() -> None:
    jobs = [
        {"env": {"FSDP_SHARDING_STRATEGY": given}, "run": "torchrun t.py --fsdp auto_wrap --output_dir o"}
        for given in ("2", "3")
    ]
    assert "Write false for 2, 3 and 5" in commands_become(json.dumps(jobs), is_json=True)


def test_a_config_in_the_data_of_a_manifest_is_named(tmp_path: Path) -> None:
    config = "    distributed_type: FSDP\n    fsdp_config:\n      fsdp_offload_params: true\n"
    path = tmp_path / "map.yaml"
    path.write_text(f"kind: ConfigMap\ndata:\n  fsdp.yaml: |\n{config}")
    with pytest.raises(NothingToConvertError, match=r"`data\.fsdp\.yaml` is a config \(accelerate\)"):
        convert_config_file(path)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n", ""),
        ("fsdp_config: [\nother: 1\n", "The text in `run` has settings of FSDP, and is left as it is: "),
        (
            "cat > a.yaml << EOF\ndistributed_type: FSDP\nfsdp_config:\n  fsdp_offload_params: true\nEOF\n",
            "The text in `run` writes a config (accelerate)",
        ),
    ],
)
def test_what_of_a_text_with_settings_is_told(lines: str, said: str) -> None:
    told = commands_become(json.dumps({"run": lines}), is_json=True)
    assert told.startswith(said)
    assert bool(told) == bool(said)
