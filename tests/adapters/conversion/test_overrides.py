"""Overrides of Composer's keys in commands: of those that its FSDP2 does not have it only warns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.adapters.conversion.command import convert_script
from fsdp_migrate.adapters.conversion.overrides import told_of_overrides
from fsdp_migrate.config_files import convert_config_file
from fsdp_migrate.errors import ConfigError, NothingToConvertError


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

RUN, ZERO_2 = "composer train.py y.yaml", "sharding_strategy=SHARD_GRAD_OP"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            f"{RUN} fsdp_config.sharding_strategy=SHARD_GRAD_OP\n",
            "write `fsdp_config.reshard_after_forward=false`",
        ),
        (
            f'export O="$O llm.fsdp_config.sharding_strategy=FULL_SHARD"\n{RUN} $O\n',
            "`llm.fsdp_config.reshard_after_",
        ),
        (f"{RUN} +fsdp_config.sharding_strategy=$S\n", "`true` for FULL_SHARD, else `false`"),
        (
            f"{RUN} trainer.parallelism_config.fsdp.sharding_strategy=SHARD_GRAD_OP\n",
            "FSDP2 write `trainer.parallelism_config.fsdp.reshard_after_forward=false`",
        ),
        (
            f"{RUN} 'parallelism_config={{fsdp:{{sharding_strategy:SHARD_GRAD_OP}}}}'\n",
            "with FSDP2 write `reshard_after_forward:false`",
        ),
        (
            f"{RUN} fsdp_config.limit_all_gathers=true\n",
            "leave it out (true: FSDP2 bounds its memory",
        ),
        (
            "python t.py y.yaml fsdp_config.sharding_strategy=FULL_SHARD\n",
            "where Composer reads it: `fsdp_config",
        ),
        (
            f"{RUN} fsdp_config.sharding_strategy=NO_SHARD\n",
            "`fsdp_config.reshard_after_forward=false` (Composer's FSDP2 has one mesh of all ranks",
        ),
        (
            f"{RUN} fsdp_config.sharding_strategy=FOO\n",
            "is 'FOO', which is no sharding strategy. Known: `",
        ),
        (f"{RUN} fsdp_config.backward_prefetch=NOPE\n", "is 'NOPE', which is no backward prefetch"),
        (
            f"{RUN} llm.fsdp_config.mixed_precision='HALF'\n",
            "`llm.fsdp_config.mixed_precision=HALF`: `fsdp_config.mixed_precision` is 'HALF'; expected D",
        ),
        (
            f"{RUN} 'fsdp_config={{sharding_strategy:SHARD_GRAD_OP,verbose:true}}'\n",
            "`sharding_strategy:SHARD_GRAD_OP` in `fsdp_config={...}`: with FSDP2 write `reshard_after_for",
        ),
        (
            f'{RUN} "+llm.fsdp_config={{a: {{b: 1}}, sync_module_states: true}}"\n',
            "`sync_module_states:true` in `llm.fsdp_config={...}`: with FSDP2 leave it out (",
        ),
        (f"{RUN} 'fsdp_config.mixed_precision={{param_dtype:bf16,reduce_dtype:fp32}}'\n", "no mapping of dt"),
        (
            f"{RUN} fsdp_config.mixed_precision.param_dtype=bf16\n",
            "`fsdp_config.mixed_precision.param_dtype=bf16`: Composer's FSDP2 takes DEFAULT, PURE or FULL",
        ),
        (f"{RUN} 'fsdp_config={{sharding_strategy:FOO}}'\n", "is 'FOO', which is no sharding strategy"),
        (
            f"{RUN} fsdp_config.flatten_parameters=true fsdp_config.sharding_strategy=FULL_SHARD\n",
            "`fsdp_config.flatten_parameters=true`: with FSDP2 leave it out (true: FSDP2 flattens nothing)",
        ),
    ],
)
def test_what_an_override_becomes(script: str, said: str) -> None:
    with pytest.raises(NothingToConvertError) as caught:
        convert_script(script)
    assert said in str(caught.value)
    assert "what that chooses" not in str(caught.value)


def test_a_comment_behind_a_command_overrides_nothing() -> None:
    assert not told_of_overrides(f"{RUN} a=1 # fsdp_config.limit_all_gathers=true")
    assert told_of_overrides(f"{RUN} fsdp_config.limit_all_gathers=true # all")


@pytest.mark.parametrize(
    "arguments",
    [
        "fsdp_config.activation_checkpointing=true",
        "a=1 # fsdp_config.sharding_strategy=FULL_SHARD",
        'fsdp_config.mixed_precision="PURE"',
        "fsdp_config.mixed_precision=BF_$M",
        "'fsdp_config={verbose:true}'",
        "'fsdp_config={verbose:true'",
    ],
)
def test_what_stays_is_not_told(arguments: str) -> None:
    with pytest.raises(NothingToConvertError, match=r"`accelerate launch`\.$"):
        convert_script(f"{RUN} {arguments}\n")


@pytest.mark.parametrize("sign", ["", "# "])
def test_one_beside_the_block_of_the_same_file_is_told(sign: str, tmp_path: Path) -> None:
    path = tmp_path / "mcli.yaml"
    command = f"command: |\n  {sign}{RUN} fsdp_config.sharding_strategy=SHARD_GRAD_OP\n"
    path.write_text(
        f"{command}parameters:\n  max_duration: 1ba\n  fsdp_config: {{sharding_strategy: FULL_SHARD}}\n"
    )
    done = convert_config_file(path).conversion
    told = [f.message for f in done.findings if f.subject == "command"]
    assert len(told) == (not sign)
    assert all("`fsdp_config.reshard_after_forward=false`" in each for each in told)
    path.write_text(command)
    with pytest.raises(ConfigError) as caught:
        convert_config_file(path)
    assert ("`fsdp_config.reshard_after_forward=false`" in str(caught.value)) == (not sign)
