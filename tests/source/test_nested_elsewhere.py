"""Functions of one file that wrap parts of a model and then the whole, called by another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_paths, scan_paths
from tests.source.samples import IMPORTS


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

WRAPPING = """\
def fsdp(module, **kw):
    return FSDP(module, use_orig_params=True, **kw)

def around(mp, module):
    module = fsdp(module, mixed_precision=mp)
    return module

class Base:
    def shard(self, module):
        return FSDP(module)

def count(module):
    return len(list(module.parameters()))
"""
TRAIN = """\
from wrapping import Base, around, count, fsdp

class Strategy(Base):
    def prepare(self, net, blocks):
        {}
"""
EACH = "for i, b in enumerate(net.blocks):\n            "
CALL, SHARD = "wrapping.py:15", "wrapping.py:23"


def _nested(folder: Path, use: str) -> set[str]:
    (folder / "wrapping.py").write_text(IMPORTS + WRAPPING)
    (folder / "train.py").write_text(IMPORTS + TRAIN.format(use))
    found = [use for use in scan_paths([folder]).uses if use.code == "FM303"]
    assert all("this is called for parts of a model, and for the whole" in use.becomes for use in found)
    return {f"{use.path.rpartition('/')[2]}:{use.line}" for use in found}


@pytest.mark.parametrize(
    ("use", "lines"),
    [
        ("net.head = fsdp(net.head)\n        return fsdp(net)", {CALL}),
        (
            f"{EACH}net.blocks[i] = fsdp(b)\n        return fsdp(net)",
            {CALL},
        ),
        (
            f"{EACH}setattr(net.blocks, i, fsdp(b))\n        net = fsdp(net.to(0))",
            {CALL},
        ),
        ("net.body = around(None, net.body)\n        return fsdp(module=net)", {CALL}),
        ("net.body = self.shard(net.body)\n        return self.shard(net)", {SHARD}),
        ("net.body = self.shard(net.body)\n        return fsdp(net)", {CALL, SHARD}),
        ("net.body = fsdp(net.body)\n        return FSDP(net)", {CALL, "train.py:19"}),
        ("net.body = FSDP(net.body)\n        return fsdp(net)", {CALL, "train.py:18"}),
    ],
)
def test_parts_and_then_the_whole(tmp_path: Path, use: str, lines: set[str]) -> None:
    assert _nested(tmp_path, use) == lines


@pytest.mark.parametrize(
    "use",
    [
        "return fsdp(net)",
        "net = fsdp(net)\n        return net, fsdp(build())",
        "net.actor = fsdp(net.actor)\n        net.critic = fsdp(net.critic)\n        return net",
        "for i, b in enumerate(blocks):\n            blocks[i] = fsdp(b)\n        return blocks, fsdp(net)",
        "if flag:\n            net.head = fsdp(net.head)\n        else:\n            return fsdp(net)",
        "net.size = count(net.head)\n        return fsdp(net)",
    ],
)
def test_models_of_their_own(tmp_path: Path, use: str) -> None:
    assert _nested(tmp_path, use) == set()


SURE = """\
def wrap(model, cfg):
    model = model.to(0)
    model = FSDP(model, **cfg)
    return model

def maybe(model, cfg):
    if cfg:
        model = FSDP(model)
    return model
"""


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("net = wrap(net, {})\n    return FSDP(net)", True),
        ("return FSDP(wrap(net, {}).cuda())", True),
        ("self.net = wrap(net, {})\n    return FSDP(self.net)", True),
        ("if flag:\n        net = wrap(net, {})\n        net = FSDP(net)\n    return net", True),
        # Not in the same run, not sure to be wrapped, not the same model.
        ("if flag:\n        net = wrap(net, {})\n    else:\n        net = FSDP(net)\n    return net", False),
        ("if flag:\n        net = wrap(net, {})\n    return FSDP(net)", False),
        ("net = maybe(net, {})\n    return FSDP(net)", False),
        ("other = wrap(net, {})\n    return other, FSDP(build())", False),
        ("net = wrap(net, {})\n    net = build()\n    return FSDP(net)", False),
        ("return wrap(net, {})", False),
    ],
)
def test_a_model_that_another_file_wraps_already(tmp_path: Path, body: str, *, is_said: bool) -> None:
    """The function of the other file is turned: others may call it alone. The outer call is not."""
    (tmp_path / "wrapping.py").write_text(IMPORTS + SURE)
    (tmp_path / "main.py").write_text(
        f"{IMPORTS}from wrapping import maybe, wrap\n\ndef build_all(self, net, flag):\n    {body}\n"
    )
    found = [use for use in scan_paths([tmp_path]).uses if use.code == "FM303"]
    assert [use.path.rpartition("/")[2] for use in found] == ["main.py"] * is_said
    assert all("a function of another file has wrapped already" in use.becomes for use in found)
    rewrite_paths([tmp_path], write=True)
    assert "prepare_fully_shard(model, cfg)" in (tmp_path / "wrapping.py").read_text()
    assert rewrite_paths([tmp_path]).changed == ()
