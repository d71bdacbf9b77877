"""FSDP settings in the environment: what Accelerate reads of them, and what it has to read for FSDP2."""

from __future__ import annotations

import pytest

from fsdp_migrate.adapters.conversion.command import convert_script
from fsdp_migrate.adapters.conversion.environment import told_by_environment


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    ("text", "become"),
    [
        (
            (
                "export ACCELERATE_USE_FSDP=true\nexport FSDP_SHARDING_STRATEGY=2 # two\n"
                "export FSDP_TRANSFORMER_CLS_TO_WRAP='A, B'\n"
            ),
            (
                "`ACCELERATE_USE_FSDP=true FSDP_RESHARD_AFTER_FORWARD=false FSDP_TRANSFORMER_CLS_TO_WRAP=A,B "
                "FSDP_VERSION=2 FSDP_STATE_DICT_TYPE=FULL_STATE_DICT`, and not `FSDP_SHARDING_STRATEGY`."
            ),
        ),
        ("ACCELERATE_USE_FSDP=1 FSDP_CPU_RAM_EFFICIENT_LOADING=1 torchrun t.py", "mean the same under FSDP2"),
        ("ACCELERATE_USE_FSDP=1 FSDP_SHARDING_STRATEGY=9 t.py", "They cannot be converted"),
    ],
)
def test_what_the_variables_become(text: str, become: str) -> None:
    done = convert_script(text)
    assert [(block.framework, block.path, block.state) for block in done.blocks] == [
        ("accelerate", "line 1", "unchanged")
    ]
    (finding,) = done.findings
    assert finding.code == "FM355"
    assert become in (finding.hint or "")


@pytest.mark.parametrize(
    "text",
    [
        "FSDP_SHARDING_STRATEGY=FULL_SHARD\npython t.py",
        "ACCELERATE_USE_FSDP=false FSDP_SHARDING_STRATEGY=1 python t.py",
        "# ACCELERATE_USE_FSDP=1 python t.py\npython t.py",
    ],
)
def test_what_accelerate_does_not_read_is_not_told(text: str) -> None:
    assert told_by_environment(text) == ((), ())


def test_fsdp2_in_the_environment_is_left_alone() -> None:
    blocks, findings = told_by_environment("ACCELERATE_USE_FSDP=1 FSDP_VERSION=2 python t.py")
    assert [block.state for block in blocks] == ["fsdp2"]
    assert [finding.code for finding in findings] == ["FM347"]


def test_precision_in_the_environment_is_told() -> None:
    text = "export ACCELERATE_USE_FSDP=1 ACCELERATE_MIXED_PRECISION={} FSDP_VERSION={}\npython t.py"
    for precision, version, codes in (
        ("bf16", "1", ["FM355", "FM354"]),
        ("no", "1", ["FM355"]),
        ("$PRECISION", "1", ["FM355"]),
        ("bf16", "2", ["FM347"]),
    ):
        _, findings = told_by_environment(text.format(precision, version))
        assert [finding.code for finding in findings] == codes, precision
    assert told_by_environment("ACCELERATE_MIXED_PRECISION=bf16 python t.py") == ((), ())


def test_what_rank_0_cannot_load_for_all_is_said_of_the_variable() -> None:
    text = "ACCELERATE_USE_FSDP=1 FSDP_CPU_RAM_EFFICIENT_LOADING={} torchrun t.py"
    for value in ("1", "true"):
        _, findings = told_by_environment(text.format(value))
        assert "(FSDP_CPU_RAM_EFFICIENT_LOADING=false)." in str(findings[0].hint)
    _, findings = told_by_environment(text.format("0"))
    assert "stops at buffers" not in str(findings[0].hint)


def test_ignored_modules_that_rank_0_loads_for_all_are_said_to_be_lost() -> None:
    text = "ACCELERATE_USE_FSDP=1 FSDP_IGNORED_MODULES=moe FSDP_CPU_RAM_EFFICIENT_LOADING={} torchrun t.py"
    for value, is_said in (("true", True), ("false", False)):
        _, findings = told_by_environment(text.format(value))
        assert ("`fsdp_ignored_modules` names all the same" in str(findings[0].hint)) is is_said
