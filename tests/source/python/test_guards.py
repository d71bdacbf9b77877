"""What checks make sure behind them: where a sharded model has left by an early return."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP
from tests.source.samples import IMPORTS, codes


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

CHECKS = """\
def is_sharded(model):
    return {asked}


def whole(model):
    if {left}:
        return None
    return model.module.state_dict() if isinstance(model, (DDP, FSDP)) else model.state_dict()


m = FSDP(net)
whole(m)
whole(DDP(net))
"""


@pytest.mark.parametrize(
    ("asked", "left", "may_be_sharded"),
    [
        ("isinstance(model, (FSDP, FSDPModule))", "is_sharded(model)", False),
        ("isinstance(model, FSDP) or isinstance(model, FSDPModule)", "is_sharded(model)", False),
        ("1", "isinstance(model, (FSDP, Other))", False),
        ("1", "isinstance(model, FSDP) or isinstance(model, Other)", False),
        ("1", "not on or isinstance(model, (Other, FSDP))", False),
        ("1", "isinstance(model, (DDP, Other))", True),
        ("isinstance(model, Other)", "is_sharded(model)", True),
    ],
)
def test_code_below_an_early_return(asked: str, left: str, may_be_sharded: bool) -> None:
    header = "from torch.nn.parallel import DistributedDataParallel as DDP\n"
    found = codes(f"{header}{CHECKS.format(asked=asked, left=left)}")
    assert any(code in {"FM308", "FM315", "FM333"} for code, _ in found) is may_be_sharded


ANSWERS = """\
def is_sharded(model):
    {first}
    return any(isinstance(p, DTensor) for p in model.parameters())
def save(model):
    if is_sharded(model):
        state = other(model)
    else:
        state = model.state_dict()
    return state
save(FSDP(net) if on else DDP(net))
"""


@pytest.mark.parametrize(
    ("first", "is_said"),
    [
        ("if isinstance(model, FSDP):\n        return True", False),
        ("if rank > 0:\n        return False", True),
        ("if isinstance(model, FSDP):\n        print(model)", True),
    ],
)
def test_an_answer_of_several_returns(first: str, *, is_said: bool) -> None:
    ddp = "from torch.nn.parallel import DistributedDataParallel as DDP\n"
    assert ("FM333" in dict(codes(f"{ddp}{ANSWERS.format(first=first)}"))) is is_said


DATA = """\
import copy, dataclasses
from collections.abc import Callable, Mapping
def is_record(x):
    return dataclasses.is_dataclass(x) and not isinstance(x, type)
def copied(data):
    if {test}:
        return copy.deepcopy(data)
    return data
copied(FSDP(net))
"""


@pytest.mark.parametrize(
    ("test", "is_said"),
    [
        ("is_record(data)", False),
        ("dataclasses.is_dataclass(data)", False),
        ("isinstance(data, (list, Mapping))", False),
        ("data.__class__ is dict", False),
        ("isinstance(data, Callable)", True),
        ("isinstance(data, (list, Block))", True),
        ("not is_record(data)", True),
        ("is_record(other)", True),
    ],
)
def test_an_object_that_was_found_to_be_no_module(test: str, *, is_said: bool) -> None:
    assert ("FM323" in dict(codes(DATA.format(test=test)))) is is_said


DISPATCH = """\
class Trainer:
    def start(self):
        if self.config.strategy == "fsdp":
            self._shard()
        elif self.config.strategy == "accelerate":
            self._prepare()

    def _shard(self):
        given = {text}
        self.agent.model = FSDP(self.agent.model, **given)

    def _prepare(self):
        self.agent.model, self.optimizer = self.accelerator.prepare(self.agent.model, self.optimizer)
"""


@pytest.mark.parametrize(
    ("text", "is_said"),
    [
        ('{"sharding_strategy": 1, "cpu_offload": None}', False),
        ('read(["--fsdp_sharding_strategy"])', False),
        ('modes["hsdp"]', True),
        ('modes["full_sharded"]', True),
    ],
)
def test_a_name_of_an_argument_is_no_word_for_another_mode(text: str, *, is_said: bool) -> None:
    found = codes(DISPATCH.replace("{text}", text))
    assert (("FM303", "commented") in found) is is_said


ELSE = """\
def is_sharded(model):
    return isinstance(model, FSDP)


def save(model, optimizer, wanted, main, other):
    if {}:
        state = FSDP.optim_state_dict(model, optimizer)
    elif {}:
        torch.save(optimizer.state_dict(), "o.pt")
"""


@pytest.mark.parametrize(
    ("first", "then", "is_said"),
    [
        ("wanted and is_sharded(model)", "wanted and main", False),
        ("wanted and isinstance(model, FSDP)", "wanted", False),
        ("wanted and main and is_sharded(model)", "main and wanted", False),
        ("is_sharded(model) and wanted", "other:\n        pass\n    elif wanted", False),
        # What every module has makes no difference.
        ("is_sharded(model) and hasattr(model, 'state_dict')", "main", False),
        ("is_sharded(model) and hasattr(model, 'inner')", "main", True),
        ("wanted and is_sharded(model)", "main", True),
        ("wanted and main and is_sharded(model)", "wanted", True),
        ("wanted and is_sharded(model)", "not wanted and main", True),
        ("wanted and is_sharded(model)", "wanted or main", True),
        ("ask() and is_sharded(model)", "ask() and main", True),
    ],
)
def test_what_two_branches_ask_alike_is_true_in_both(
    tmp_path: Path, first: str, then: str, is_said: bool
) -> None:
    (tmp_path / "save.py").write_text(f"import torch\n{FSDP}{ELSE.format(first, then)}")
    found = {use.code for use in scan_paths([tmp_path]).uses if use.text == "optimizer.state_dict()"}
    assert bool(found) is is_said


HOLDER = """\
class Manager:
    def __init__(self, net, shard):
        self.net, self.sharded = net, None
        if shard:
            self.sharded = FSDP(net)
    def shard(self):
        {shard}
    def close(self):
        {close}
    def state(self, optimizer, ready):
        if {asked}:
            {first}
            return self.net.state_dict(), optimizer.state_dict()
        return self.sharded.state_dict()
"""
SHARD = "self.sharded = FSDP(self.net)"


@pytest.mark.parametrize(
    ("asked", "first", "shard", "close", "is_plain"),
    [
        ("self.sharded is None", "pass", "pass", "pass", True),
        ("self.sharded == None", "pass", SHARD, "pass", True),
        ("not self.sharded", "pass", "pass", "pass", True),
        ("ready and self.sharded is None", "pass", "pass", "pass", True),
        ("not use_fsdp or self.sharded is None", "pass", "pass", "pass", True),
        ("not HAS or self.sharded is None", "pass", "pass", "pass", True),
        ("self.sharded is None", "pass", "self.sharded = self.net = FSDP(self.net)", "pass", True),
        # Neither of these says that nothing is sharded.
        ("not ready or self.sharded is None", "pass", "pass", "pass", False),
        ("self.sharded is not None", "pass", "pass", "pass", False),
        ("self.sharded is None", SHARD, "pass", "pass", False),
        ("self.sharded is None", "self.shard()", SHARD, "pass", False),
        ("self.sharded is None", "pass", "self.net = FSDP(self.net)", "pass", False),
        ("self.sharded is None", "pass", "shard_all(FSDP, self.net)", "pass", False),
        ("self.sharded is None", "pass", "pass", "self.sharded = None", False),
        ("self.sharded is None", "pass", "pass", "self.sharded = ready()", False),
    ],
)
def test_what_runs_where_the_only_sharded_model_is_none_is_plain(
    asked: str, first: str, shard: str, close: str, *, is_plain: bool, tmp_path: Path
) -> None:
    header = "try:\n    from torch.distributed.fsdp import ShardingStrategy\n    HAS = True\n"
    header += "except ImportError:\n    HAS = False\n"
    text = header + HOLDER.format(asked=asked, first=first, shard=shard, close=close)
    (tmp_path / "a.py").write_text(f"{IMPORTS}{text}")
    said = [use.code for use in scan_paths([tmp_path]).uses if use.code in {"FM333", "FM425", "FM450"}]
    assert (not said) is is_plain


@pytest.mark.parametrize(("again", "is_plain"), [("pass", True), ("sharded = None", False)])
def test_a_name_that_alone_is_given_the_sharded_model(again: str, *, is_plain: bool, tmp_path: Path) -> None:
    text = (
        "def run(net, optimizer, shard):\n    sharded = None\n    if shard:\n        sharded = FSDP(net)\n"
        f"    {again}\n    if sharded is None:\n        torch.save(net.state_dict(), 'a.pt')\n"
    )
    (tmp_path / "a.py").write_text(f"{IMPORTS}{text}")
    said = [use.code for use in scan_paths([tmp_path]).uses if use.code in {"FM308", "FM333", "FM450"}]
    assert (not said) is is_plain


@pytest.mark.parametrize(
    ("line", "is_plain"),
    [
        # As PanzaMail has it: what the Trainer is given as FSDP's settings is asserted to be none.
        ("assert fsdp_config is None, 'not with FSDP'", True),
        ("assert cfg.fsdp_cfg is None and ready", True),
        ("assert not fsdp_config", True),
        ("if fsdp_config is not None:\n            raise ValueError", True),
        ("assert fsdp_config is None or other", False),
        ("assert fsdp_config is not None", False),
        ("assert other_config is None", False),
        ("if fsdp_config is None:\n            fsdp_config = {}", False),
        ("pass", False),
    ],
)
def test_settings_that_are_asserted_to_be_none(line: str, *, is_plain: bool, tmp_path: Path) -> None:
    text = (
        "def run(net, fsdp_config, cfg, other, rosa):\n    model = wrap(net)\n    model.train()\n"
        f"    if rosa:\n        {line}\n        if rank == 0:\n"
        "            torch.save(model.state_dict(), 'a.pt')\n\n\ndef wrap(net):\n    return FSDP(net)\n"
    )
    (tmp_path / "a.py").write_text(f"{IMPORTS}{text}")
    said = [use.code for use in scan_paths([tmp_path]).uses if use.code in {"FM308", "FM333", "FM450"}]
    assert (not said) is is_plain
