"""What a run does before and after ``config``, as the frameworks here read both: what differs is said."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from fsdp_migrate.adapters.conversion.text import convert_text
from fsdp_migrate.versions import is_within


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.adapters.conversion.text import TextConversion


pytestmark = pytest.mark.any_torch


HEAD = "distributed_type: FSDP\nmixed_precision: 'no'\nnum_machines: {}\nnum_processes: 4\nfsdp_config:\n"
BOOLEANS = ["true", "false", "'true'", "'no'", "1", "y", "null", "''"]
STRATEGIES = [
    "FULL_SHARD",
    "shard_grad_op",
    "NO_SHARD",
    "HYBRID_SHARD",
    "HYBRID_SHARD_ZERO2",
    "2",
    "'4'",
    "6",
]
ACCELERATE: dict[str, list[str]] = {
    "fsdp_sharding_strategy": [*STRATEGIES, "null", "''"],
    "fsdp_reshard_after_forward": ["true", "false", "SHARD_GRAD_OP", "null"],
    "fsdp_backward_prefetch": ["BACKWARD_PRE", "backward_post", "NO_PREFETCH", "1", "null"],
    "fsdp_state_dict_type": ["FULL_STATE_DICT", "sharded_state_dict", "LOCAL_STATE_DICT", "1", "'3'", "null"],
    "fsdp_auto_wrap_policy": ["TRANSFORMER_BASED_WRAP", "size_based_wrap", "NO_WRAP", "AUTO", "null"],
    "fsdp_transformer_layer_cls_to_wrap": ["A", "'A, B'", "null"],
    "fsdp_min_num_params": ["0", "1000", "'1e3'", "null"],
    "fsdp_ignored_modules": ["a.*", "null"],
    **{
        f"fsdp_{name}": BOOLEANS
        for name in (
            *("offload_params", "use_orig_params", "sync_module_states", "cpu_ram_efficient_loading"),
            *("activation_checkpointing", "forward_prefetch"),
        )
    },
}
PAIRED = [
    *("fsdp_sharding_strategy", "fsdp_state_dict_type", "fsdp_offload_params", "fsdp_auto_wrap_policy"),
    *("fsdp_cpu_ram_efficient_loading", "fsdp_sync_module_states", "fsdp_activation_checkpointing"),
]
VALUES: list[Any] = [True, False, "true", "no", 1, None]
HF: dict[str, list[Any]] = {
    "transformer_layer_cls_to_wrap": ["A", "A, B", ["A", "B"], None],
    "min_num_params": [0, 1000, "1e3"],
    "auto_wrap_policy": ["TRANSFORMER_BASED_WRAP", "size_based_wrap", "no_wrap", None],
    "backward_prefetch": ["backward_pre", "BACKWARD_POST", "no_prefetch"],
    "state_dict_type": ["FULL_STATE_DICT", "sharded_state_dict", 1, "3", None],
    "cpu_offload": [True, False, None],
    **dict.fromkeys(
        (
            *("forward_prefetch", "use_orig_params", "sync_module_states", "cpu_ram_efficient_loading"),
            "activation_checkpointing",
        ),
        VALUES,
    ),
}
FSDP = [
    "full_shard",
    "full_shard auto_wrap",
    "shard_grad_op auto_wrap offload",
    "no_shard",
    "hybrid_shard",
    True,
]
WORDS: list[Any] = [
    *("full_shard offload auto_wrap", "no_shard offload", "hybrid_shard auto_wrap", "shard_grad_op"),
    *("offload auto_wrap", "auto_wrap", True),
]
# What may say another thing than the words in `fsdp` do.
BESIDE: list[dict[str, Any]] = [
    *({"cpu_offload": value} for value in (True, False, None, {"offload_params": True})),
    *({"offload_params": value} for value in (True, False)),
    *({"reshard_after_forward": value} for value in ("SHARD_GRAD_OP", "full_shard")),
    *({"sharding_strategy": value} for value in ("SHARD_GRAD_OP", "FULL_SHARD", 3)),
    *({"auto_wrap_policy": value} for value in ("no_wrap", "TRANSFORMER_BASED_WRAP")),
    {"auto_wrap_policy": "size_based_wrap", "min_num_params": 100},
    {"min_num_params": 100},
]
# The fact, and what a finding of it is about.
KEPT = {
    "offload": "offload",
    "policy": "policy",
    "classes": "cls",
    "count": "",
    "state": "state_dict",
    "recomputes": "activation",
    "loads": "ram",
    "ignored": "ignored",
}


def outcomes(framework: str, texts: list[str]) -> list[dict[str, Any]]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.frameworks.config_outcomes_bodies", framework]
    done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def is_said(done: TextConversion, *words: str) -> bool:
    """Tell whether something is said to change, about one of these words."""
    said = [f for f in done.findings if f.fidelity not in {"exact", "equivalent", "obsolete"}]
    return any(word in f"{f.subject} {f.message}" for f in said for word in words)


def silent(before: dict[str, Any], after: dict[str, Any], done: TextConversion) -> Iterator[str]:
    """Yield what differs, and is not said."""
    if "error" in before:
        return
    if "error" in after:
        yield f"stops: {after['error']}"
        return
    differs = {
        "version": after["version"] != 2,
        "strategy": before["frees"] != after["frees"] and not is_said(done, "eshard", "full_shard"),
        "mesh": "HYBRID" in str(before["strategy"])
        and after.get("mesh", [1, 1]) == [1, 1]
        and not any("HYBRID_SHARD" in f.message for f in done.findings),
        "replicas": before["strategy"] == "NO_SHARD" and not is_said(done, "NO_SHARD"),
        "prefetch": before["prefetch"] != "BACKWARD_PRE" and not is_said(done, "prefetch"),
        "forward prefetch": before["forward"] and not is_said(done, "forward_prefetch"),
        "sync": before["sync"]
        and not after["loads"]
        and not any("sync_module_states" in f.subject for f in done.findings),
        "gloo": after["offload"] and not after.get("gloo", True),
        **{name: before[name] != after[name] and not is_said(done, word) for name, word in KEPT.items()},
    }
    yield from (name for name, does in differs.items() if does)


def wrong(framework: str, texts: list[str]) -> list[str]:
    converted = [convert_text(text, framework=framework) for text in texts]
    pairs = [
        (text, done)
        for text, done in zip(texts, converted, strict=True)
        if not any(f.fidelity == "refused" for f in done.findings)
    ]
    # In one process, which spends seconds on the framework's imports.
    found = outcomes(framework, [text for text, _ in pairs] + [done.text for _, done in pairs])
    before, after = found[: len(pairs)], found[len(pairs) :]
    assert sum("error" in one for one in before) < len(pairs) / 3, "most of these have to run"
    return [
        f"{text}: {what}"
        for (text, done), one, two in zip(pairs, before, after, strict=True)
        for what in silent(one, two, done)
    ]


def test_what_accelerate_launches_is_the_same_or_said() -> None:
    lines = [(f"  {key}: {value}\n", 1) for key, values in ACCELERATE.items() for value in values]
    lines += [(f"  fsdp_sharding_strategy: {value}\n", 2) for value in STRATEGIES]
    for one, two in itertools.combinations(PAIRED, 2):
        tried = itertools.product(ACCELERATE[one][:3], ACCELERATE[two][:3])
        lines += [(f"  {one}: {first}\n  {two}: {second}\n", 1) for first, second in tried]
    assert wrong("accelerate", [HEAD.format(nodes) + text for text, nodes in lines]) == []


def test_what_hf_trainer_trains_is_the_same_or_said() -> None:
    import transformers

    if not is_within(transformers.__version__, "5.10", ""):
        pytest.skip("older versions do not read most of it")
    configs: list[dict[str, Any]] = [{key: value} for key, values in HF.items() for value in values]
    given: list[tuple[Any, dict[str, Any]]] = list(itertools.product(FSDP[1:3], configs))
    given += [(words, {}) for words in FSDP]
    for one, two in itertools.combinations(HF, 2):
        given.append((FSDP[1], {one: HF[one][0], two: HF[two][0]}))
    given += itertools.product(WORDS, BESIDE)
    texts = [
        json.dumps({"output_dir": "x", "fsdp": words, "fsdp_config": {"version": 1, **config}})
        for words, config in given
    ]
    assert wrong("hf", texts) == []
