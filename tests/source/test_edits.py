"""Edits leave all other bytes alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.left_comments import GOES_ON, MARK, comments_in
from fsdp_migrate.source import rewrite_paths, rewrite_source, scan_source
from tests.source.rewritten import BEFORE
from tests.source.samples import in_one_line


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


ENCODED = {
    "byte order mark": ("\ufeff" + BEFORE).encode(),
    "latin-1": ("# -*- coding: latin-1 -*-\n# é\n" + BEFORE).encode("latin-1"),
    "CRLF": BEFORE.replace("\n", "\r\n").encode(),
    "CR": BEFORE.replace("\n", "\r").encode(),
    "no end of line": BEFORE.rstrip("\n").encode(),
    "form feed": BEFORE.replace("\nmodel", "\n\f\nx = 1\n\f\nmodel").encode(),
    "tabs": (BEFORE + "if model:\n\twith model.no_sync():\n\t\tpass\n").encode(),
    "odd indents": (BEFORE + "if model:\n  if x:\n       model.no_sync\n").encode(),
    "continued lines": (BEFORE + "x = 1 + \\\n    2\nassert x, \\\n  model\n").encode(),
    "trailing spaces": (BEFORE + "x = 1   \n   \n# end").encode(),
}


@pytest.mark.parametrize("case", ENCODED)
def test_bytes_other_than_the_edits_stay(tmp_path: Path, case: str) -> None:
    data = ENCODED[case]
    (tmp_path / "a.py").write_bytes(data)
    assert rewrite_paths([tmp_path], write=True).problems == ()
    written = (tmp_path / "a.py").read_bytes()
    pairs = [(b"FullyShardedDataParallel(net)", b"prepare_fully_shard(net)")]
    pairs.append(
        (
            b"from torch.distributed.fsdp import FullyShardedDataParallel",
            b"from fsdp_migrate import prepare_fully_shard",
        )
    )
    for old, new in pairs:
        data = data.replace(old, new)
    if b"no_sync" in data:
        end = b"\n"
        data = data.replace(b"prepare_fully_shard" + end, b"prepare_fully_shard" + end + NO_SYNC, 1)
        data = data.replace(b"model.no_sync()", b"no_sync(model)").replace(
            b"model.no_sync", b"partial(no_sync, model)"
        )
        if b"partial" in data:
            data = data.replace(NO_SYNC, NO_SYNC + b"from functools import partial\n")
    assert written == data


NO_SYNC = b"from fsdp_migrate.runtime import no_sync\n"


def test_two_faults_of_one_code_in_a_statement_are_said_in_one_comment() -> None:
    before = f"import torch.distributed as dist\n{BEFORE}"
    loop = "for p in model.parameters():\n    "
    both = rewrite_source(f"{before}{loop}y = p.grad.norm() ** 2, dist.broadcast(p.data, src=0)\n")
    (comment,) = [line for line in in_one_line(both).splitlines() if "fsdp-migrate: FM423" in line]
    first, also, second = comment.partition(" Also: ")
    assert also
    assert "this was of one rank's part" in first
    assert "collectives do not take" in second
    assert comment.count("See `fsdp-migrate explain FM423`.") == 1
    assert rewrite_source(both) == both
    # The same fault twice is said once.
    again = rewrite_source(f"{before}{loop}y = p.grad.norm() ** 2 + p.data.norm() ** 2\n")
    assert "this was of one rank's part" in again
    assert "Also:" not in again


STRATEGY = """\
from lightning.pytorch.strategies import FSDPStrategy


def make(cfg):
    return FSDPStrategy(
        sharding_strategy=cfg["strategy"],
        state_dict_type=cfg["type"],
        activation_checkpointing_policy=cfg["a"],
    )
"""


@pytest.mark.parametrize(("longest", "width"), [(0, 88), (100, 100), (119, 119), (200, 120)])
def test_a_long_comment_is_as_wide_as_its_file(longest: int, width: int) -> None:
    """One of 1,200 characters was one line, which editors and linters choke on."""
    before = f"# {'-' * (longest - 2)}\n{STRATEGY}" if longest else STRATEGY
    after = rewrite_source(before)
    ours = [line for line in after.splitlines() if line.startswith(f"    {MARK.strip()}")]
    said = [
        line for line in ours if not line.strip().startswith(f"{GOES_ON}  ") and line.strip() != MARK.strip()
    ]
    assert len(said) > 3
    assert all(width - 40 < len(line) <= width for line in said[:3])
    assert said[0].startswith(f"    {MARK}FM319 ")
    assert all(line.strip().startswith(GOES_ON) for line in said[1:])
    # What is to be pasted is as it was.
    assert f"    {MARK}    def configure_model(self) -> None:" in ours
    # It is one comment, and says the same as before, whoever reads it.
    assert [code for _, code in comments_in(after)] == ["FM319"]
    assert rewrite_source(after) == after
    (first,), (second,) = (
        [use for use in scan_source(text) if use.code == "FM319"] for text in (before, after)
    )
    assert (second.becomes, second.is_marked) == (first.becomes, True)
    # Where nothing is found below it any more, it is read from the comment.
    settled = after.partition("    return FSDPStrategy(")[0] + "    return None\n"
    (left,) = (use for use in scan_source(settled) if use.code == "FM319")
    assert left.becomes == first.becomes


def test_a_short_comment_is_one_line() -> None:
    """A search for the comments shows it whole."""
    after = rewrite_source(f"{BEFORE}model.apply(init_weights_of_a_model)\n")
    (line,) = (line for line in after.splitlines() if MARK in line)
    assert line.endswith("See `fsdp-migrate explain FM322`.")
    assert len(line) > 120
