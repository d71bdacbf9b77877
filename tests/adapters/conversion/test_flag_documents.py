"""What the FSDP flags of a command stand for."""

from __future__ import annotations

import pytest

from fsdp_migrate.adapters.conversion.flag_documents import accelerate_document, as_flags, hf_document
from fsdp_migrate.adapters.conversion.flags import read_flags
from fsdp_migrate.errors import ConfigError


pytestmark = pytest.mark.any_torch


def test_flags_become_documents_and_documents_flags() -> None:
    command = "--fsdp 'full_shard auto_wrap' --fsdp_config '{\"a\": 1}' --fsdp_min_num_params 9 --bf16"
    command += " --optim x"
    document = hf_document({flag.name: flag for flag in read_flags(command)})
    assert document == {
        "output_dir": "",
        "fsdp": "full_shard auto_wrap",
        "fsdp_config": {"fsdp_min_num_params": "9", "a": 1},
        "bf16": True,
        "optim": "x",
    }
    assert as_flags("hf", document)["fsdp_config"] == '{"fsdp_min_num_params": "9", "a": 1}'
    command = "--fsdp_offload_params true --num_processes 8 --mixed_precision bf16"
    document = accelerate_document({flag.name: flag for flag in read_flags(command)})
    assert document == {
        "distributed_type": "FSDP",
        "fsdp_config": {"fsdp_offload_params": "true"},
        "num_processes": 8,
        "mixed_precision": "bf16",
    }
    assert as_flags("accelerate", document) == {"fsdp_offload_params": "true"}


def test_what_is_no_json_is_said() -> None:
    flags = {flag.name: flag for flag in read_flags("--fsdp full_shard --fsdp_config '{\"a\": }'")}
    with pytest.raises(ConfigError, match="`--fsdp_config` is no JSON: line 1, column 7"):
        hf_document(flags)
