"""FSDP settings in the environment: what Accelerate reads of them, and what it has to read for FSDP2."""

from __future__ import annotations

import pytest

from fsdp_migrate.adapters.conversion.command import convert_script
from fsdp_migrate.adapters.conversion.environment import told_by_environment
from fsdp_migrate.adapters.engine.settings import Settings


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
        (
            "ACCELERATE_USE_FSDP=true FSDP_CPU_RAM_EFFICIENT_LOADING=1 torchrun t.py",
            "mean the same under FSDP2",
        ),
        ("ACCELERATE_USE_FSDP=true FSDP_SHARDING_STRATEGY=9 t.py", "They cannot be converted"),
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
        "# ACCELERATE_USE_FSDP=true python t.py\npython t.py",
    ],
)
def test_what_accelerate_does_not_read_is_not_told(text: str) -> None:
    assert told_by_environment(text) == ((), ())


def test_fsdp2_in_the_environment_is_left_alone() -> None:
    blocks, findings = told_by_environment("ACCELERATE_USE_FSDP=true FSDP_VERSION=2 python t.py")
    assert [block.state for block in blocks] == ["fsdp2"]
    assert [finding.code for finding in findings] == ["FM347"]


def test_precision_in_the_environment_is_told() -> None:
    text = "export ACCELERATE_USE_FSDP=true ACCELERATE_MIXED_PRECISION={} FSDP_VERSION={}\npython t.py"
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
    text = "ACCELERATE_USE_FSDP=true FSDP_CPU_RAM_EFFICIENT_LOADING={} torchrun t.py"
    for value in ("1", "true"):
        _, findings = told_by_environment(text.format(value))
        assert "(FSDP_CPU_RAM_EFFICIENT_LOADING=false)." in str(findings[0].hint)
    _, findings = told_by_environment(text.format("0"))
    assert "stops at buffers" not in str(findings[0].hint)


@pytest.mark.parametrize("value", ["1", "yes", "on"])
def test_accelerate_takes_true_alone_for_on(value: str) -> None:
    text = f"ACCELERATE_USE_FSDP={value} FSDP_CPU_RAM_EFFICIENT_LOADING=1 torchrun t.py"
    blocks, findings = told_by_environment(text)
    assert [block.state for block in blocks] == ["unused"]
    assert [finding.code for finding in findings] == ["FM351"]
    assert "takes `true` alone for on" in findings[0].message
    for written in ("True", "$ON"):
        assert told_by_environment(text.replace(f"={value} ", f"={written} "))[1][0].code == "FM355"


@pytest.mark.parametrize(
    ("variable", "code", "said"),
    [
        ("FSDP_SHARDING_STRATEGY=4", "FM355", "on several Accelerate's FSDP2 shards over all of them"),
        (
            "FSDP_SHARDING_STRATEGY=hybrid_shard_zero2",
            "FM355",
            "PARALLELISM_CONFIG_DP_REPLICATE_SIZE=<nodes>",
        ),
        ("FSDP_SHARDING_STRATEGY=NO_SHARD", "FM353", "cannot keep whole parameters"),
        ("FSDP_STATE_DICT_TYPE=LOCAL_STATE_DICT", "FM343", "no local state dicts"),
        ("FSDP_FORWARD_PREFETCH=true", "FM343", "does not prefetch in forward"),
        ("FSDP_AUTO_WRAP_POLICY=SIZE_BASED_WRAP", "FM343", "wraps every module"),
        ("FSDP_SYNC_MODULE_STATES=true", "FM343", "does not send rank 0's weights"),
    ],
)
def test_what_fsdp2_takes_otherwise_is_said_of_a_variable(variable: str, code: str, said: str) -> None:
    _, findings = told_by_environment(f"export ACCELERATE_USE_FSDP=true {variable}\npython t.py")
    first, *others = findings
    assert first.code == "FM355"
    assert "FSDP_CPU_RAM" not in str(first.hint)
    [other] = others
    assert other.code == code
    assert other.subject == f"line 1: {variable.partition('=')[0]}"
    assert said in f"{other.message} {other.hint}"


def test_the_mesh_of_hybrid_shard_is_said_where_nodes_are_known() -> None:
    text = "ACCELERATE_USE_FSDP=true FSDP_SHARDING_STRATEGY=4 python t.py"
    _, findings = told_by_environment(text, Settings(world_size=8, nodes=2))
    assert len(findings) == 1
    wanted = (
        "ACCELERATE_USE_PARALLELISM_CONFIG=true PARALLELISM_CONFIG_DP_REPLICATE_SIZE=2 "
        "PARALLELISM_CONFIG_DP_SHARD_SIZE=4"
    )
    assert wanted in str(findings[0].hint)


def test_ignored_modules_that_rank_0_loads_for_all_are_said_to_be_lost() -> None:
    text = "ACCELERATE_USE_FSDP=true FSDP_IGNORED_MODULES=moe FSDP_CPU_RAM_EFFICIENT_LOADING={} torchrun t.py"
    for value, is_said in (("true", True), ("false", False)):
        _, findings = told_by_environment(text.format(value))
        assert ("`fsdp_ignored_modules` names all the same" in str(findings[0].hint)) is is_said


@pytest.mark.parametrize(
    ("value", "before", "says"),
    [
        ("${S:-SHARD_GRAD_OP}", "", "${S:-SHARD_GRAD_OP} is not set in this file: kept, but FSDP2 does not"),
        ("$S", "S=2\n", "$S is kept: line 1 sets it to `2`, but FSDP2 does not read it."),
    ],
)
def test_a_strategy_in_a_variable_is_not_handed_on_to_fsdp2(value: str, before: str, says: str) -> None:
    text = f'{before}export ACCELERATE_USE_FSDP=true\nexport FSDP_SHARDING_STRATEGY="{value}"\npython t.py\n'
    advice, told = convert_script(text).findings
    assert (advice.hint or "").startswith("For FSDP2 set `ACCELERATE_USE_FSDP=true FSDP_VERSION=2 ")
    assert "and not `FSDP_SHARDING_STRATEGY`" in (advice.hint or "")
    assert (told.code, told.subject.partition(": ")[2]) == ("FM346", "FSDP_SHARDING_STRATEGY")
    assert told.message.startswith(says)
    assert "set `FSDP_RESHARD_AFTER_FORWARD=false`" in (told.hint or "")


@pytest.mark.parametrize("name", ["FSDP_BACKWARD_PREFETCH", "FSDP_FORWARD_PREFETCH"])
def test_a_variable_in_what_fsdp2_does_not_read_is_told(name: str) -> None:
    advice, told = convert_script(f"ACCELERATE_USE_FSDP=true {name}=$P python t.py").findings
    assert f"and not `{name}`" in (advice.hint or "")
    assert told.message == "$P is not set in this file: kept, but FSDP2 does not read it."


@pytest.mark.parametrize("name", ["FORWARD_PREFETCH", "BACKWARD_PREFETCH", "SYNC_MODULE_STATES"])
@pytest.mark.parametrize("value", ["true", "$P"])
def test_what_hf_trainer_sets_itself_changes_nothing(name: str, value: str) -> None:
    exported = f"export ACCELERATE_USE_FSDP=true\nexport FSDP_{name}={value}\n"
    done = convert_script(f'{exported}torchrun t.py --output_dir o --fsdp "full_shard auto_wrap"\n')
    assert not [f for f in done.findings if f.subject.endswith(f"FSDP_{name}")]
    assert [f for f in done.findings if f.subject.endswith("ACCELERATE_USE_FSDP")]


def test_an_argument_of_the_script_is_a_variable() -> None:
    text = "export ACCELERATE_USE_FSDP=true\nexport FSDP_SHARDING_STRATEGY=$1\ntorchrun t.py\n"
    advice, told = convert_script(text).findings
    assert "cannot be converted" not in (advice.hint or "")
    assert told.code == "FM346"


@pytest.mark.parametrize("version", ["", " FSDP_VERSION=1"])
def test_what_hf_trainer_sets_itself_decides_nothing(version: str) -> None:
    export = f"export ACCELERATE_USE_FSDP=true FSDP_CPU_RAM_EFFICIENT_LOADING=1{version}\n"
    run = "torchrun t.py --output_dir o --fsdp full_shard\n"
    said = " ".join(f"{each.message} {each.hint}" for each in convert_script(export + run).findings)
    assert "HF Trainer sets itself, to what `fsdp_config` says" in said
    assert "rank 0 alone loads" not in said
    assert "write false" not in said.lower()
    alone = " ".join(
        f"{each.message} {each.hint}" for each in convert_script(f"{export}python t.py").findings
    )
    assert "write false for such a model" in alone


@pytest.mark.parametrize("launcher", ["--use_fsdp --fsdp_cpu_ram_efficient_loading true", "--use_fsdp"])
def test_nor_does_what_its_launcher_sets(launcher: str) -> None:
    run = f"accelerate launch {launcher} t.py --output_dir o --load_in_4bit"
    messages = [each.message for each in convert_script(f"{run} --fsdp full_shard").findings]
    assert not any("rank 0 alone loads" in each for each in messages)
    assert any("rank 0 alone loads" in each.message for each in convert_script(run).findings)
