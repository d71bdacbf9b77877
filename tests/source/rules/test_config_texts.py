"""Configs of Accelerate's for FSDP1 that a source writes itself."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import scan_source


pytestmark = pytest.mark.any_torch

CONFIG = (
    "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: {}\n"
)
WRITES = "import subprocess\n\nCFG = {}\nopen('a.yaml', 'w').write(CFG)\n"
OF_IT = "{'distributed_type': 'FSDP', 'fsdp_config': {'fsdp_sharding_strategy': 'FULL_SHARD'}}"


def said(code: str) -> list[str]:
    return [use.becomes for use in scan_source(code) if use.rule == "config-texts"]


@pytest.mark.parametrize(
    "written",
    [
        f'"""{CONFIG.format("FULL_SHARD")}"""',
        f'f"""{CONFIG.format("FULL_SHARD")}num_processes: {{n}}\n"""',
        repr(CONFIG.format("FULL_SHARD")),
        "(" + " ".join(repr(f"{line}\n") for line in CONFIG.format("FULL_SHARD").splitlines()) + ")",
        OF_IT,
        f"yaml.dump({OF_IT})",
        OF_IT.replace("{'dist", "{'version': 2, 'dist"),
        OF_IT.replace("{'dist", "{'machine_rank': rank, 'dist"),
        OF_IT.replace("'FSDP'", "'FSDP' if n > 1 else 'NO'"),
        OF_IT.replace(
            "'fsdp_config': {", "'num_machines': n // 8, 'fsdp_config': {'fsdp_offload_params': off, "
        ),
        OF_IT.replace("{'dist", "{'kinds': {1, 2}, 'dist"),
    ],
)
def test_the_lines_that_change_are_said(written: str) -> None:
    [found] = said(WRITES.format(written))
    assert "Take out `fsdp_sharding_strategy:" in found
    assert "`fsdp_version: 2`" in found
    assert "`fsdp_reshard_after_forward: true`" in found


@pytest.mark.parametrize(
    "written",
    [
        f'"""{CONFIG.format("FULL_SHARD")}  fsdp_version: 2\n"""',
        f'"""{CONFIG.format("FULL_SHARD").replace("FSDP", "MULTI_GPU")}"""',
        "'write `distributed_type: FSDP` and `fsdp_config:` into it'",
        OF_IT.replace("'fsdp_config': {", "'fsdp_config': {'fsdp_version': 2, "),
        OF_IT.replace("'fsdp_config': {", "'fsdp_config': {'fsdp_version': '2', "),
        "{'distributed_type': kind, 'fsdp_config': {}}",
        OF_IT.replace("'FSDP'", "'MULTI_GPU' if n > 1 else 'NO'"),
        "{**base, 'distributed_type': 'FSDP'}",
        OF_IT.replace("'fsdp_config': {", "'fsdp_config': {**base, "),
        OF_IT.replace("'fsdp_config': {", "'fsdp_config': {'fsdp_version': version, "),
    ],
)
def test_what_is_none_for_fsdp1_is_left_alone(written: str) -> None:
    assert said(WRITES.format(written)) == []


def test_a_docstring_is_left_alone() -> None:
    text = CONFIG.format("FULL_SHARD").replace("\n", "\n    ")
    assert said(f'def f():\n    """Such a config:\n\n    {text}\n    """\n') == []
