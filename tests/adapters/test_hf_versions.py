"""HF Trainer's FSDP1 by the versions that ran it: units, strategies and weights that are sent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fsdp_migrate.adapters.conversion.text import convert_text


if TYPE_CHECKING:
    from fsdp_migrate.adapters.conversion.text import TextConversion


pytestmark = pytest.mark.any_torch


def codes(done: TextConversion, subject: str) -> set[str]:
    return {finding.code for finding in done.findings if finding.subject == subject}


def test_units_of_fsdp1_by_its_version_are_the_layers() -> None:
    """From 5.10 on `auto_wrap` in `fsdp` decides nothing, and `min_num_params` needs its policy."""
    for fsdp, config, was in (
        ("full_shard", {}, "NO_WRAP"),
        ("full_shard auto_wrap", {"min_num_params": 1000}, "SIZE_BASED_WRAP"),
    ):
        given = {"output_dir": "x", "fsdp": fsdp, "fsdp_config": {**config, "version": 1}}
        done = convert_text(json.dumps(given))
        assert "auto_wrap_policy" not in json.loads(done.text)["fsdp_config"]
        [said] = [f for f in done.findings if f.subject == "fsdp_config.auto_wrap_policy"]
        assert said.code == "FM358"
        assert f"To older ones it was {was}." in said.message
        done = convert_text(json.dumps({**given, "fsdp_config": config}))
        assert json.loads(done.text)["fsdp_config"]["auto_wrap_policy"] == was


def test_what_newer_versions_read_under_fsdp1_too_needs_nothing() -> None:
    config = {"version": 1, "state_dict_type": "SHARDED_STATE_DICT"}
    given = {"output_dir": "x", "fsdp": "full_shard", "fsdp_config": config}
    [said] = [f for f in convert_text(json.dumps(given)).findings if f.subject.endswith("state_dict_type")]
    assert said.code == "FM358"
    assert "or newer there is nothing to do." in (said.hint or "")
    other = {**given, "fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT"}}
    [said] = [f for f in convert_text(json.dumps(other)).findings if f.subject.endswith("state_dict_type")]
    assert "nothing to do" not in (said.hint or "")


@pytest.mark.parametrize(("fsdp", "is_said"), [("full_shard", False), ("shard_grad_op auto_wrap", True)])
def test_versions_that_ran_full_shard_whatever_fsdp_names_are_told(fsdp: str, is_said: bool) -> None:
    done = convert_text(json.dumps({"output_dir": "x", "fsdp": fsdp}))
    [said] = [f for f in done.findings if f.code == "FM358" and f.subject == "fsdp_config"]
    assert ("5.0 and later ran FSDP1 as full_shard, whatever `fsdp` names." in said.message) is is_said


@pytest.mark.parametrize(
    ("config", "codes_of"),
    [
        ({}, {"FM340"}),
        ({"cpu_ram_efficient_loading": True}, set()),
        ({"sync_module_states": True}, {"FM343"}),
    ],
)
def test_weights_that_fsdp1_sent_by_itself_are_told(config: dict[str, Any], codes_of: set[str]) -> None:
    done = convert_text(json.dumps({"output_dir": "x", "fsdp": "full_shard", "fsdp_config": config}))
    assert codes(done, "fsdp_config.sync_module_states") == codes_of


def test_a_word_of_spaces_is_empty() -> None:
    done = convert_text(json.dumps({"output_dir": "x", "fsdp": " ", "fsdp_config": {"min_num_params": 1}}))
    assert [block.state for block in done.blocks] == ["unused"]


def test_what_the_trainer_never_read_gets_no_effect() -> None:
    given = {"output_dir": "x", "fsdp": "full_shard auto_wrap", "fsdp_config": {"offload_params": True}}
    done = convert_text(json.dumps(given))
    assert not {"offload_params", "cpu_offload"} & set(json.loads(done.text)["fsdp_config"])
    [said] = [f for f in done.findings if f.subject == "fsdp_config.offload_params"]
    assert (said.code, "Write `cpu_offload: true` to offload" in str(said.hint)) == ("FM343", True)
    done = convert_text(json.dumps({**given, "fsdp": "full_shard offload"}))
    assert json.loads(done.text)["fsdp_config"]["cpu_offload"] is True
    assert codes(done, "fsdp_config.offload_params") == {"FM342"}
