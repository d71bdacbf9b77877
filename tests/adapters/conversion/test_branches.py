"""Flags that a script adds under a condition: what every run needs does not go there."""

from __future__ import annotations

import pytest

from fsdp_migrate.adapters.conversion.command import convert_script


pytestmark = pytest.mark.any_torch

TWO = "--fsdp_version 2 --fsdp_state_dict_type FULL_STATE_DICT"
ARRAY = "A=(\n  --use_fsdp\n  --fsdp_sharding_strategy FULL_SHARD{two}\n)\n"
ADDED = "A+=(--fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP)"
RUN = 'accelerate launch "${A[@]}" t.py --lr 1\n'


@pytest.mark.parametrize(
    "condition",
    [
        f'if [ "$W" != 0 ]; then\n  {ADDED}\nfi\n',
        f'if [ "$W" != 0 ]; then {ADDED}; fi\n',
        f'[ "$W" != 0 ] && {ADDED}\n',
        f"case $W in\n  --wrap) {ADDED} ;;\nesac\n",
        f"case $W in --wrap) {ADDED} ;; esac\n",
        f"while read line; do\n  if x; then\n    {ADDED}\n  fi\ndone\n",
    ],
)
def test_what_every_run_needs_stands_with_what_every_run_has(condition: str) -> None:
    done = convert_script(ARRAY.replace("{two}", "") + condition + RUN)
    wanted = ARRAY.replace("{two}", f" {TWO}").replace(
        "_sharding_strategy FULL_SHARD", "_reshard_after_forward true"
    )
    assert done.text == wanted + condition + RUN


def test_another_variable_that_a_condition_sets_is_no_place_for_it() -> None:
    script = "if x; then\n  B='--fsdp_offload_params true'\nfi\naccelerate launch --use_fsdp{two} $B t.py\n"
    assert convert_script(script.replace("{two}", "")).text == script.replace("{two}", f" {TWO}")


@pytest.mark.parametrize(
    "script",
    [
        f"if x; then\n  A=(--use_fsdp)\n  A+=(--fsdp_offload_params true{{two}})\n  {RUN}fi\n",
        f"A=(--use_fsdp)\nA+=(--fsdp_offload_params true{{two}})\n{RUN}",
        (
            "if x; then\n  B='--fsdp_offload_params true{two}'\n"
            "else\n  B='--fsdp_offload_params false{two}'\nfi\n"
            "accelerate launch --use_fsdp $B t.py\n"
        ),
        "if x; then\n  B='--use_fsdp --fsdp_offload_params true{two}'\nfi\naccelerate launch $B t.py\n",
    ],
)
def test_what_each_run_has_stays_the_place(script: str) -> None:
    assert convert_script(script.replace("{two}", "")).text == script.replace("{two}", f" {TWO}")
