"""Functions that give back what they are given, called with a sharded model by some files."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


pytestmark = pytest.mark.any_torch

_SHARDED = f"{FSDP}from lib import convert\nm = FSDP(net)\nm = convert(m)\n"
_PLAIN = "from lib import convert\nm = convert(Net())\nm.load_state_dict(m.state_dict())\n"
SAME = [
    "    return m\n",
    "    m.mode = mode\n    if mode:\n        return m\n    return m\n",
    "    m = m.eval()\n    m = inner(m)\n    return m\n\n\ndef inner(x):\n    return x\n",
]
OTHER = [
    "    m = wrap(m)\n    return m\n\n\ndef wrap(m):\n    return m\n",
    "    m = inner(m)\n    return m\n\n\ndef inner(x):\n    return copy(x)\n",
    "    if m.mode:\n        return make()\n    return m\n",
]


def _found(folder: Path, body: str, used: str) -> set[str]:
    texts = {"lib.py": f"{FSDP}def convert(m, mode=None):\n{body}", "a.py": _SHARDED, "b.py": used}
    for name, text in texts.items():
        (folder / name).write_text(text)
    return {use.code for use in scan_paths([folder]).uses if Path(use.path).name == "b.py"}


@pytest.mark.parametrize("body", SAME)
def test_a_call_gives_what_it_is_given(tmp_path: Path, body: str) -> None:
    assert _found(tmp_path, body, _PLAIN) == set()
    for call in ("convert(FSDP(net))", "convert(mode=1, m=FSDP(net))"):
        assert "FM308" in _found(tmp_path, body, f"{FSDP}{_PLAIN.replace('convert(Net())', call)}")
    assert _found(tmp_path, body, f"{_PLAIN.replace('Net()', '*nets')}") == set()


@pytest.mark.parametrize("body", OTHER)
def test_what_may_shard_it_or_gives_another(tmp_path: Path, body: str) -> None:
    assert _found(tmp_path, body, _PLAIN)


@pytest.mark.parametrize(
    ("body", "may_be_ddps"),
    [
        ("    if mode:\n        return\n    return m\n", False),
        ("    if mode:\n        return None\n    return m\n", False),
        ("    m.load(mode)\n    return m\n", False),
        ("    if mode:\n        return DDP(m)\n    return m\n", True),
    ],
)
def test_another_file_gives_the_same_function_ddps_model(
    tmp_path: Path, body: str, *, may_be_ddps: bool
) -> None:
    ddp = "from torch.nn.parallel import DistributedDataParallel as DDP\n"
    texts = {
        "lib.py": f"{ddp}def convert(m, mode=None):\n{body}",
        "a.py": f"{ddp}from lib import convert\ndef run(m):\n    m = convert(m)\n    m = DDP(m)\n"
        "    m = convert(m)\n",
        "b.py": f"{FSDP}from lib import convert\ndef show(m):\n    return m.module\n"
        "def run(m):\n    m = convert(m)\n    m = FSDP(m)\n    show(m)\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    found = {use.code for use in scan_paths([tmp_path]).uses if Path(use.path).name == "b.py"}
    assert ("FM333" in found) is may_be_ddps
    assert ("FM315" in found) is not may_be_ddps
