"""Lines of notebooks that Python's texts are put into, and files that several cells write."""

from __future__ import annotations

import json

import pytest

from fsdp_migrate.adapters.conversion.notebooks import convert_notebook
from fsdp_migrate.errors import NothingToConvertError


LAUNCH = "accelerate launch --use_fsdp --fsdp_sharding_strategy FULL_SHARD train.py"


def _notebook(*cells: str) -> str:
    return json.dumps({"cells": [{"cell_type": "code", "source": each} for each in cells]})


@pytest.mark.parametrize(
    "cells",
    [
        ["flags = '--use_fsdp --fsdp_sharding_strategy FULL_SHARD'\n!accelerate launch {flags} train.py"],
        ["flags = '--use_fsdp --fsdp_sharding_strategy FULL_SHARD'", "!accelerate launch $flags train.py"],
        ["s = 'FULL_SHARD'", "!accelerate launch --use_fsdp --fsdp_sharding_strategy {s} train.py"],
        [
            "s = 'FULL'",
            "s = f'{s}_SHARD'",
            "f = '--use_fsdp --fsdp_sharding_strategy ' + s\n!accelerate launch {f} train.py",
        ],
        [
            "f = '--use_fsdp'",
            "f += ' --fsdp_sharding_strategy'\nf += ' FULL_SHARD'\n!accelerate launch {f} train.py",
        ],
    ],
)
def test_what_the_shell_gets_is_told_where_python_puts_it_together(cells: list[str]) -> None:
    with pytest.raises(NothingToConvertError) as caught:
        convert_notebook(_notebook(*cells))
    said = str(caught.value)
    assert (
        f"hands `{LAUNCH}` to the shell, which becomes `accelerate launch --use_fsdp --fsdp_reshard" in said
    )
    assert caught.value.names_fsdp


@pytest.mark.parametrize(
    "more",
    [
        "flags += more",
        "if big:\n    flags = '--use_fsdp --fsdp_sharding_strategy NO_SHARD'",
        "for flags in several: pass",
    ],
)
def test_a_text_that_changes_when_the_cell_runs_is_not_known(more: str) -> None:
    made = f"flags = '--use_fsdp --fsdp_sharding_strategy FULL_SHARD'\n{more}"
    for cells in (
        [f"{made}\n!accelerate launch {{flags}} train.py"],
        [made, "!accelerate launch $flags train.py"],
    ):
        with pytest.raises(NothingToConvertError) as caught:
            convert_notebook(_notebook(*cells))
        assert "which becomes" not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    ["flags = make()", "flags = f'{flags:>99}'", "flags = f'{flags} {more}'", "flags *= 2", "flags = 7"],
)
def test_a_text_that_is_not_known_is_told_of_by_its_name(line: str) -> None:
    known = "flags = '--use_fsdp --fsdp_sharding_strategy FULL_SHARD'"
    for lines, is_known in (([known], True), ([known, line], False)):
        with pytest.raises(NothingToConvertError) as caught:
            convert_notebook(_notebook(*lines, "!accelerate launch {flags} train.py"))
        assert ("hands `" in str(caught.value)) is is_known


@pytest.mark.parametrize("more", ["", "--out {out}", "--out $out", "--name {unknown}", "--shards '{{x}}'"])
def test_other_texts_in_a_line_do_not_keep_it(more: str) -> None:
    before = _notebook(f"out = 'here'\n!{LAUNCH} {more}")
    after = convert_notebook(before)
    assert after.is_changed
    assert "--fsdp_version 2" in after.text
    assert json.dumps(more)[1:-1] in after.text
    assert not any(each.code == "FM355" for each in after.findings)


def test_a_command_that_is_all_pythons_is_left_to_the_rules_for_sources() -> None:
    with pytest.raises(NothingToConvertError) as caught:
        convert_notebook(_notebook(f"cmd = '{LAUNCH}'", "!{cmd}"))
    assert "hands" not in str(caught.value)


def test_a_config_that_two_cells_write_is_left_whole() -> None:
    first = "%%writefile fsdp.yaml\ndistributed_type: FSDP\n"
    second = "%%writefile -a fsdp.yaml\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
    with pytest.raises(NothingToConvertError, match=r"cell 1: .* begins `fsdp.yaml`, and cell 2 goes on"):
        convert_notebook(_notebook(first, second))
    # Written anew, and not gone on with, each is a config of its own.
    again = convert_notebook(_notebook(first + second.partition("\n")[2], first + "use_cpu: false\n"))
    assert [block.path for block in again.blocks] == ["cell 1: fsdp_config", "cell 2: fsdp_config"]


def test_a_script_that_two_cells_write_is_read_as_one() -> None:
    first = "%%writefile run.sh\nexport FSDP_SHARDING_STRATEGY=2\n"
    second = '%%writefile -a run.sh\ntorchrun train.py --fsdp "auto_wrap"\n'
    done = convert_notebook(_notebook(first, second))
    assert '\\"reshard_after_forward\\": false' in done.text
    alone = convert_notebook(_notebook(first, second.replace(" -a", "")))
    assert '\\"reshard_after_forward\\": false' not in alone.text
