"""Models that functions of other packages make stay FSDP1's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP
from tests.source.samples import codes


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("from fairseq2.nn.fsdp import to_fsdp", "to_fsdp(net, gang, None)"),
        ("from torchtnt.utils.prepare_module import prepare_fsdp", "prepare_fsdp(net, device)"),
        ("from ray.train.torch import prepare_model", "prepare_model(net, parallel_strategy='fsdp')"),
    ],
)
def test_what_another_package_makes_stays_fsdp1(package: str, call: str) -> None:
    asks = "def is_sharded(m):\n    return isinstance(m, (DDP, FSDP))\n"
    body = f"{package}\n\n\ndef shard(net, gang, device):\n    return {call}\n\n\n{asks}"
    assert codes(body) == [("FM303", "commented"), ("FM305", "commented")]
    other = body.replace("'fsdp'", "'ddp'").replace(
        package, package.replace("to_f", "f").replace("_fsdp", "")
    )
    assert ("FM305", "rewritten") in codes(other.replace("_fsdp(", "("))


TNTS = "from torchtnt.utils.prepare_module import FSDPStrategy\nunit = Unit(net, FSDPStrategy())\n"
OWN = f"{FSDP}class FSDPStrategy:\n    pass\ndef prepare_fsdp(net, device, s):\n    return FSDP(net)\n"


@pytest.mark.parametrize(
    ("home", "text", "is_said"),
    [
        ("torchtnt/utils/prepare_module.py", OWN, False),
        ("torchtnt/utils/prepare_module.py", "def other(): ...\n", True),
        ("mine/utils/prepare_module.py", OWN, True),
    ],
)
def test_the_package_itself_is_rewritten_where_it_makes_them(
    tmp_path: Path, home: str, text: str, *, is_said: bool
) -> None:
    (tmp_path / home).parent.mkdir(parents=True)
    (tmp_path / home).write_text(text)
    (tmp_path / "train.py").write_text(TNTS)
    (tmp_path / "word.py").write_text(
        "from torchtnt.framework import AutoUnit\nunit = Unit(net, strategy='fsdp')\n"
    )
    uses = [
        use for use in scan_paths([tmp_path]).uses if use.code == "FM303" and "torchtnt makes" in use.becomes
    ]
    assert len(uses) == (2 if is_said else 0)


def test_below_a_check_of_what_another_package_makes_nothing_is_edited() -> None:
    made = "from ray.train.torch import prepare_model\nmodel = prepare_model(net, parallel_strategy='fsdp')\n"
    asks = "def is_sharded(m):\n    return isinstance(m, FSDP)\n"
    uses = "    model.clip_grad_norm_(1.0)\n    print(model.module)\n"
    for test in ("isinstance(model, FSDP)", "is_sharded(model)"):
        found = codes(f"{asks}{made}if {test}:\n{uses}")
        assert {("FM311", "commented"), ("FM333", "commented")} <= set(found)
        assert "rewritten" not in {action for _, action in found}
        # What this source makes itself is rewritten.
        theirs = made.replace("model =", "other =")
        own = codes(f"{asks}{theirs}model = FSDP(net)\nif {test}:\n{uses}")
        assert {("FM311", "rewritten"), ("FM315", "rewritten")} <= set(own)


def test_another_file_has_its_model_made_by_a_package(tmp_path: Path) -> None:
    (tmp_path / "ask.py").write_text(f"{FSDP}\n\ndef ask(m):\n    return isinstance(m, FSDP)\n")
    make = "from fairseq2.nn.fsdp import to_fsdp\nfrom ask import ask\nask(to_fsdp(net, gang))\n"
    for own, action in (("", "commented"), ("def to_fsdp(net, gang):\n    return net\n", "rewritten")):
        (tmp_path / "make.py").write_text(f"{own}{make}")
        found = [(use.code, use.action) for use in scan_paths([tmp_path]).uses]
        assert ("FM305", action) in found
        # In the package's own project the function itself is rewritten.
        assert (("FM303", "commented") in found) is (not own)


def test_a_test_that_has_its_model_made_by_a_package_speaks_for_itself(tmp_path: Path) -> None:
    ask = f"{FSDP}\n\ndef ask(m):\n    return isinstance(m, FSDP)\n"
    (tmp_path / "ask.py").write_text(ask)
    made = "from fairseq2.nn.fsdp import to_fsdp\nfrom ask import ask\nask(to_fsdp(net, gang))\n"
    (tmp_path / "test_ask.py").write_text(f"{ask}{made}")
    found = {(use.path.split("/")[-1], use.code, use.action) for use in scan_paths([tmp_path]).uses}
    assert ("ask.py", "FM305", "rewritten") in found
    assert {("test_ask.py", "FM303", "commented"), ("test_ask.py", "FM305", "commented")} <= found
