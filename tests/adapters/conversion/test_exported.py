"""Accelerate's variables beside HF Trainer's ``--fsdp`` that names no strategy: FSDP1 took them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from fsdp_migrate.adapters.conversion.command import convert_command, convert_script, settings_in_script
from fsdp_migrate.adapters.conversion.exported import exported_to_accelerate
from fsdp_migrate.errors import NothingToConvertError


pytestmark = pytest.mark.any_torch


RUN = "torchrun t.py --output_dir o --bf16 --fsdp {}\n"


def config_of(text: str) -> dict[str, Any]:
    given = re.search(r"--fsdp_config '(.*?)'", text)
    assert given is not None
    found: dict[str, Any] = json.loads(given[1])
    return found


@pytest.mark.parametrize(
    ("text", "frees", "codes"),
    [
        ("export FSDP_SHARDING_STRATEGY=5\n" + RUN.format("auto_wrap"), False, {"FM341", "FM355"}),
        ("export FSDP_SHARDING_STRATEGY='2' # two\n" + RUN.format("'offload auto_wrap'"), False, {"FM341"}),
        ("FSDP_SHARDING_STRATEGY=hybrid_shard " + RUN.format("auto_wrap"), True, {"FM341", "FM355"}),
        ("S=3\nexport FSDP_SHARDING_STRATEGY=$S\n" + RUN.format("auto_wrap"), True, {"FM346"}),
        (
            "export FSDP_SHARDING_STRATEGY=1\nexport FSDP_SHARDING_STRATEGY=2\n" + RUN.format("auto_wrap"),
            True,
            {"FM346"},
        ),
        ("export FSDP_SHARDING_STRATEGY=5\n" + RUN.format("'full_shard auto_wrap'"), True, set()),
        ("FSDP_SHARDING_STRATEGY=5\n" + RUN.format("auto_wrap"), True, set()),
        ("# export FSDP_SHARDING_STRATEGY=5\n" + RUN.format("auto_wrap"), True, set()),
    ],
)
def test_the_strategy_that_the_environment_says(text: str, frees: bool, codes: set[str]) -> None:
    done = convert_script(text)
    assert config_of(done.text)["reshard_after_forward"] is frees
    told = {finding.code for finding in done.findings if "FSDP_SHARDING_STRATEGY" in finding.subject}
    mesh = {f.code for f in done.findings if f.code == "FM355" and "HYBRID_SHARD" in f.message}
    assert told | mesh == codes


def test_a_variable_is_named_with_the_line_that_sets_it() -> None:
    done = convert_script("S=3\nexport FSDP_SHARDING_STRATEGY=$S\n" + RUN.format("auto_wrap"))
    [said] = [finding for finding in done.findings if finding.code == "FM346"]
    assert "Line 1 sets the variable to `3`." in said.message
    assert "Write false for 2, 3 and 5" in (said.hint or "")


def test_the_type_of_state_dicts_that_the_environment_says() -> None:
    text = "FSDP_STATE_DICT_TYPE=SHARDED_STATE_DICT FSDP_SHARDING_STRATEGY=2 " + RUN.format("auto_wrap")
    after = config_of(convert_command(text).text)
    assert after["state_dict_type"] == "SHARDED_STATE_DICT"
    assert after["reshard_after_forward"] is False


def test_a_file_of_settings_is_told_what_the_environment_says() -> None:
    text = "export FSDP_SHARDING_STRATEGY=2 FSDP_STATE_DICT_TYPE=SHARDED_STATE_DICT\n"
    done = convert_script(text + RUN.format("auto_wrap --fsdp_config c.json"))
    [file] = [finding for finding in done.findings if finding.code == "FM356"]
    assert "`reshard_after_forward: false`" in (file.hint or "")
    [kind] = [finding for finding in done.findings if "FSDP_STATE_DICT_TYPE" in finding.subject]
    assert kind.code == "FM346"


def test_what_is_no_strategy_stops_the_conversion() -> None:
    with pytest.raises(
        NothingToConvertError, match="SHARDING_STRATEGY` is '9', which is no sharding strategy"
    ):
        convert_script("export FSDP_SHARDING_STRATEGY=9\n" + RUN.format("auto_wrap"))


def test_plan_reads_the_strategy_too() -> None:
    (given,) = settings_in_script("export FSDP_SHARDING_STRATEGY=2\n" + RUN.format("auto_wrap"))
    assert json.loads(given)["fsdp"] == "auto_wrap shard_grad_op"


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("env FSDP_SHARDING_STRATEGY=2 python t.py", "2"),
        ("FSDP_SHARDING_STRATEGY=2\nexport FSDP_SHARDING_STRATEGY\npython t.py", "2"),
        ("set -a\nFSDP_SHARDING_STRATEGY=2\npython t.py", "2"),
        ("FSDP_SHARDING_STRATEGY=2 \\\n  python t.py", "2"),
        ("export FSDP_SHARDING_STRATEGY=\npython t.py", None),
        ("FSDP_SHARDING_STRATEGY=2; python t.py", None),
    ],
)
def test_what_is_handed_on(text: str, given: str | None) -> None:
    assert exported_to_accelerate(text).get("FSDP_SHARDING_STRATEGY") == given


OFFLOADS = [
    RUN.format("'full_shard offload auto_wrap'"),
    RUN.format("full_shard --fsdp_config '{\"cpu_offload\": true}'"),
    RUN.format("'full_shard offload' --fsdp_config c.json"),
    "export ACCELERATE_USE_FSDP=1 FSDP_OFFLOAD_PARAMS=true\n" + RUN.format("'full_shard offload'"),
    "export FSDP_OFFLOAD_PARAMS=true\n" + RUN.format("'full_shard auto_wrap'"),
    "FSDP_OFFLOAD_PARAMS=1 " + RUN.format("'full_shard' --fsdp_config c.json"),
]


@pytest.mark.parametrize("text", OFFLOADS)
def test_offload_that_torchrun_starts_needs_gloo(text: str) -> None:
    [said] = [f for f in convert_script(text).findings if f.subject.endswith("max_grad_norm")]
    assert said.code == "FM343"
    assert "`ACCELERATE_USE_FSDP=true FSDP_OFFLOAD_PARAMS=true`" in (said.hint or "")
    assert "Accelerate 1.9 and later" in said.message


@pytest.mark.parametrize(
    "text",
    [
        "export ACCELERATE_USE_FSDP=true FSDP_OFFLOAD_PARAMS=true\n" + OFFLOADS[0],
        "ACCELERATE_USE_FSDP=true FSDP_STATE_DICT_TYPE=FULL_STATE_DICT " + OFFLOADS[0],
        OFFLOADS[0].replace("--fsdp", "--max_grad_norm 0 --fsdp"),
        OFFLOADS[0].replace("torchrun", "accelerate launch --use_fsdp --fsdp_offload_params true"),
        RUN.format("'full_shard auto_wrap'"),
        RUN.format("full_shard --fsdp_config '{\"cpu_offload\": false}'"),
        "export FSDP_OFFLOAD_PARAMS=true\n"
        + RUN.format("full_shard --fsdp_config '{\"cpu_offload\": false}'"),
        "export FSDP_OFFLOAD_PARAMS=false\n" + RUN.format("'full_shard auto_wrap'"),
    ],
)
def test_where_gloo_is_there_or_nothing_is_clipped_nothing_is_said(text: str) -> None:
    assert not [f for f in convert_script(text).findings if f.subject.endswith("max_grad_norm")]


def test_versions_that_take_a_file_alone_are_named_where_json_is_added() -> None:
    [said] = [f for f in convert_script(RUN.format("full_shard")).findings if f.code == "FM358"]
    assert "Before 4.40 `--fsdp_config` takes the name of a file alone, and they stop." in said.message
    given = RUN.format("full_shard --fsdp_config '{\"use_orig_params\": true}'")
    [said] = [f for f in convert_script(given).findings if f.code == "FM358"]
    assert "4.40" not in said.message


@pytest.mark.parametrize(
    ("kind", "config", "is_said"),
    [
        ("SHARDED_STATE_DICT", "", False),
        ("FULL_STATE_DICT", "", True),
        ("FULL_STATE_DICT", """ --fsdp_config '{"state_dict_type": "SHARDED_STATE_DICT"}'""", True),
        ("", "", True),
    ],
)
def test_what_older_versions_save_instead_is_said_where_it_is_another_type(
    kind: str, config: str, is_said: bool
) -> None:
    export = f"export FSDP_STATE_DICT_TYPE={kind}\n" if kind else ""
    done = convert_script(export + RUN.format("'full_shard auto_wrap'").strip() + config + "\n")
    [said] = [finding.message for finding in done.findings if finding.code == "FM358"]
    assert ("save SHARDED_STATE_DICT instead" in said) is is_said
    assert ('"state_dict_type": "FULL_STATE_DICT"' in done.text) is is_said
