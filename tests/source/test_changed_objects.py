"""Sharded models put into objects by names, into other classes' methods, and by mixins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP
from tests.source.samples import ONE_TURNED


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

NET = "import torch\nclass Net(torch.nn.Module):\n    pass\n"
USES = (
    "    def fit(self):\n        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)\n"
    "        torch.save(self.model.state_dict(), 'm.pt')\n"
    "        self.model.load_state_dict(torch.load('m.pt'))\n"
)
HEAD = "import torch\nfrom net import Net\n"
INIT = "class T:\n    def __init__(self):\n        self.model = Net()\n"
BUILT = (
    "class T:\n    def __init__(self):\n        self.model = self.build(Net())\n"
    "    def build(self, m):\n        return m\n"
)
SHARD = "    def shard(self{}):\n        {}\n"


def said(folder: Path, files: dict[str, str]) -> list[tuple[str, str]]:
    """Return what is said of states and clipping, and how it ends."""
    for name, text in {"net.py": NET, **files}.items():
        (folder / name).write_text(text)
    uses = scan_paths([folder]).uses
    return [(use.code, use.action) for use in uses if use.code in {"FM308", "FM326", "FM333", "FM450"}]


@pytest.mark.parametrize(
    ("argument", "puts", "is_exact"),
    [
        ("", "self.__dict__.update(model=FSDP(self.model))", True),
        ("", "vars(self).update({'model': FSDP(self.model)})", True),
        ("", "for n in ('model',): setattr(self, n, FSDP(getattr(self, n)))", True),
        (", n", "setattr(self, n, FSDP(getattr(self, n)))", False),
        (", n", "self.__dict__[n] = FSDP(self.__dict__[n])", False),
        ("", "put(self, 'model', FSDP(self.model))", False),
    ],
)
@pytest.mark.parametrize("is_sharded", [True, False])
def test_what_is_put_into_an_object_by_a_name(
    argument: str, puts: str, is_exact: bool, is_sharded: bool, tmp_path: Path
) -> None:
    does = puts if is_sharded else puts.replace("FSDP(", "(")
    helper = "def put(one, name, value):\n    setattr(one, name, value)\n"
    text = (
        f"{FSDP}{HEAD}{helper}{INIT}{SHARD.format(argument, does)}{USES}def other(m):\n    return FSDP(m)\n"
        f"{ONE_TURNED}"
    )
    found = said(tmp_path, {"t.py": text})
    if not is_sharded:
        assert found == []
    elif is_exact:
        assert found == [("FM326", "rewritten"), ("FM308", "rewritten"), ("FM308", "rewritten")]
    else:
        assert found == [("FM450", "unclear")] * 3


@pytest.mark.parametrize(
    ("trainer", "patch"),
    [
        (INIT, "def setup(self):\n    self.model = FSDP(self.model)\nT.setup = setup\n"),
        (INIT, "def setup(self):\n    self.model = FSDP(self.model)\nsetattr(T, 'setup', setup)\n"),
        (BUILT, "def build(self, m):\n    return FSDP(m)\nt.T.build = build\n"),
        (BUILT, "def build(self, m):\n    return FSDP(m)\nsetattr(T, 'build', build)\n"),
        (BUILT, "T.build = lambda self, m: FSDP(m)\n"),
        (BUILT.replace("self.build(N", "build(N"), "def build(m):\n    return FSDP(m)\nt.build = build\n"),
    ],
)
@pytest.mark.parametrize("is_sharded", [True, False])
def test_what_is_put_in_the_place_of_a_function(
    trainer: str, patch: str, is_sharded: bool, tmp_path: Path
) -> None:
    other = f"{FSDP}import t\nfrom t import T\n{patch if is_sharded else patch.replace('FSDP(', '(')}"
    own = f"{HEAD}def build(m):\n    return m\n{trainer}{USES}"
    found = said(tmp_path, {"t.py": own, "main.py": f"{other}def other(m):\n    return FSDP(m)\n"})
    assert len(found) == (3 if is_sharded else 0)


@pytest.mark.parametrize(
    ("mixin", "base"),
    [
        (SHARD.format("", "self.model = FSDP(self.model)"), INIT),
        ("    def build(self, m):\n        return FSDP(m)\n", BUILT),
    ],
)
@pytest.mark.parametrize("is_sharded", [True, False])
def test_a_mixin_shards_what_another_base_saves(
    mixin: str, base: str, is_sharded: bool, tmp_path: Path
) -> None:
    does = mixin if is_sharded else mixin.replace("FSDP(", "(")
    found = said(
        tmp_path,
        {
            "mixin.py": f"{FSDP}class Mixin:\n{does}def other(m):\n    return FSDP(m)\n",
            "t.py": f"{HEAD}{base}{USES}",
            "whole.py": "from t import T\nfrom mixin import Mixin\nclass Whole(Mixin, T):\n    pass\n",
        },
    )
    assert [code for code, _ in found] == (["FM326", "FM333", "FM333"] if is_sharded else [])


def test_a_function_that_is_made_a_method_elsewhere_is_to_be_looked_at(tmp_path: Path) -> None:
    saves = f"{FSDP}def save(self):\n    return self.model.state_dict()\n"
    assert said(tmp_path, {"save.py": saves}) == [("FM450", "unclear")]
