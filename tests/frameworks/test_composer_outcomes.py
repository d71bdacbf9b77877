"""What a Composer run does before and after ``config``, as its classes read both: what differs is said."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from ruamel.yaml import YAML

from fsdp_migrate.adapters.conversion.text import TextConversion, convert_text


pytestmark = pytest.mark.composer

HEAD = "max_duration: 1ba\nmodel:\n  name: m\nprecision: amp_bf16\nfsdp_config:\n"
KEYS: dict[str, list[str]] = {
    "sharding_strategy": ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "full_shard"],
    "state_dict_type": ["full", "sharded"],
    "mixed_precision": ["DEFAULT", "PURE", "FULL"],
    "backward_prefetch": ["BACKWARD_PRE", "BACKWARD_POST", "NONE"],
    "backward_prefetch_limit": ["1", "2"],
    "data_parallel_shard_degree": ["-1", "2"],
    "data_parallel_replicate_degree": ["1", "2"],
    "process_group": ["self", "node"],
    "sharded_ckpt_prefix_dir": ["x", "'ep{epoch}-ba{batch}'"],
    "ignored_modules": ["[a]", "null"],
    "load_planner": ["x", "null"],
}
BOOLEANS = [
    *("activation_checkpointing", "activation_cpu_offload", "auto_wrap", "cpu_offload", "forward_prefetch"),
    *("keep_low_precision_grads", "load_monolith_rank0_only", "te_shard_fp8_weight", "verbose"),
    *("activation_checkpointing_reentrant", "limit_all_gathers", "sync_module_states"),
]
KEYS |= {name: ["true", "false"] for name in BOOLEANS}
SAME = ("activation_checkpointing", "activation_cpu_offload", "load_monolith_rank0_only", "state_dict_type")
# What FSDP2 has none of: the value that asks for nothing.
GONE: dict[str, tuple[Any, ...]] = {
    "backward_prefetch_limit": (1,),
    "data_parallel_shard_degree": (-1, 1),
    "data_parallel_replicate_degree": (None, 1),
    "process_group": (None, "self", "mod1"),
    "sharded_ckpt_prefix_dir": ("ep{epoch}-ba{batch}",),
    "ignored_modules": (None,),
    "load_planner": (None,),
    "auto_wrap": (True,),
    "cpu_offload": (False,),
    "forward_prefetch": (False,),
    "keep_low_precision_grads": (False,),
    "te_shard_fp8_weight": (False,),
    "backward_prefetch": ("BACKWARD_PRE",),
}


def silent(text: str, done: TextConversion) -> list[str]:
    """Return what differs and is not said; a config that Composer's FSDP2 refuses stops the test."""
    from composer.utils.parallelism import FSDP2Config, FSDPConfig

    before, after = (YAML(typ="safe").load(each)["fsdp_config"] or {} for each in (text, done.text))
    one, two = FSDPConfig(**before), FSDP2Config.from_compatible_attrs(dict(after))
    changes = [f for f in done.findings if f.fidelity not in {"exact", "equivalent", "obsolete"}]
    said = " ".join(f"{f.subject} {f.message}" for f in changes)
    frees = str(one.sharding_strategy).upper() == "FULL_SHARD"
    differs = {
        "reshard": frees != two.reshard_after_forward and "NO_SHARD" not in said,
        "NO_SHARD": one.sharding_strategy == "NO_SHARD",
        "mixed_precision": one.mixed_precision != two.mixed_precision,
        **{name: getattr(one, name) != getattr(two, name) for name in SAME},
        **{name: getattr(one, name) not in plain for name, plain in GONE.items()},
    }
    return [name for name, does in differs.items() if does and name not in said]


@pytest.mark.filterwarnings("ignore:FSDP2 Config/APIs are experimental")
def test_what_composer_trains_is_the_same_or_said() -> None:
    tried = [{key: value} for key, values in KEYS.items() for value in values]
    for one, two in itertools.combinations(KEYS, 2):
        tried += [
            {one: first, two: second} for first, second in itertools.product(KEYS[one][:2], KEYS[two][:2])
        ]
    found = []
    for keys in tried:
        text = HEAD + "".join(f"  {name}: {value}\n" for name, value in keys.items())
        done = convert_text(text, framework="composer")
        if not any(f.fidelity == "refused" for f in done.findings):
            found += [f"{keys}: {what}" for what in silent(text, done)]
    assert found == []
