"""Edits leave all other bytes alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_paths, rewrite_source
from tests.source.rewritten import BEFORE


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
    (comment,) = [line for line in both.splitlines() if "fsdp-migrate: FM423" in line]
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
