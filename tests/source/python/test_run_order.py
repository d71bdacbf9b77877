"""What runs before a model is sharded, in a function of its own that is called there."""

from __future__ import annotations

import textwrap

import pytest

from fsdp_migrate.source import scan_source


pytestmark = pytest.mark.any_torch

_IMPORTS = (
    "import torch\nfrom accelerate import Accelerator, FullyShardedDataParallelPlugin\n"
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
)
_ASKS = "def has(name):\n    return any(type(m) is name for m in model.modules())\n"
_PREPARES = "model, opt = accelerator.prepare(model, opt)\n"
_PLUGIN = "accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())\n"


def _codes(text: str) -> set[str]:
    return {use.code for use in scan_source(f"{_IMPORTS}{text}") if use.action == "commented"} - {"FM320"}


def _function(body: str) -> set[str]:
    return _codes(f"def main(model, opt, names, cls):\n{textwrap.indent(_PLUGIN + body, '    ')}")


@pytest.mark.parametrize(
    "body",
    [
        f"{_ASKS}if has(cls):\n    return\n{_PREPARES}",
        f"{_ASKS}x = any(has(each) for each in names)\n{_PREPARES}",
        f"{_ASKS}def ask():\n    return has(cls)\nask()\n{_PREPARES}",
        f"{_ASKS}has(cls)\nmodel = FSDP(model)\n",
    ],
)
def test_a_function_within_that_is_called_above_has_the_plain_model(body: str) -> None:
    assert "FM316" not in _function(body)


@pytest.mark.parametrize(
    "body",
    [
        f"{_ASKS}{_PREPARES}has(cls)\n",
        f"{_ASKS}has(cls)\n{_PREPARES}has(cls)\n",
        f"{_ASKS}hooks.append(has)\nhas(cls)\n{_PREPARES}",
        f"{_ASKS}later = lambda: has(cls)\n{_PREPARES}",
        f"{_ASKS}later = (has(each) for each in names)\n{_PREPARES}",
        f"{_ASKS}def ask():\n    return has(cls)\n{_PREPARES}ask()\n",
        f"{_ASKS}{_PREPARES}",
    ],
)
def test_and_one_that_may_be_called_below_has_the_sharded_one(body: str) -> None:
    assert "FM316" in _function(body)


_TRAINER = """\
class Trainer:
    def __init__(self, model):
        self.accelerator, self.model = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin()), model
    def _cast(self):
        for p in self.model.parameters():
            p.data = p.data.to(torch.bfloat16)
    def _load(self):
        self._cast()
        self.model = self.model.to(0)
    def {0}
"""
_SHARDS = "self.model, self.opt = self.accelerator.prepare(self.model, self.opt)\n"
_SHARD = f"    def _shard(self):\n        {_SHARDS}"
_TRAIN = "    def train(self):\n        self.model.train()\n        "


@pytest.mark.parametrize(
    ("run", "is_sharded"),
    [
        (f"build(self):\n        self._load()\n        {_SHARDS}", False),
        (f"build(self):\n        self._load()\n        if self.accelerator:\n            {_SHARDS}", False),
        (f"setup(self):\n        self._load()\n{_TRAIN}self.setup()\n        {_SHARDS}", False),
        (f"setup(self):\n        self._load()\n{_SHARD}{_TRAIN}self.setup()\n        self._shard()\n", False),
        (f"build(self):\n        {_SHARDS}        self._load()\n", True),
        (f"build(self):\n        self._load()\n        {_SHARDS}        self._load()\n", True),
        (f"build(self):\n        self._load()\n        if not self.prepared:\n            {_SHARDS}", True),
        (f"build(self):\n        for _ in range(2):\n            self._load()\n        {_SHARDS}", True),
        (f"build(self, run):\n        run(self._load)\n        self._load()\n        {_SHARDS}", True),
        (f"cast(self):\n        self._load()\n{_TRAIN}self.cast()\n        {_SHARDS}", True),
    ],
)
def test_a_method_that_is_called_above_has_the_plain_model(run: str, *, is_sharded: bool) -> None:
    assert ("FM423" in _codes(_TRAINER.format(run))) is is_sharded


_SPLITS = """\
class Split(torch.nn.Module):
    def __init__(self, module, helper):
        super().__init__()
        self.module = module
        {0}
        self.module.q.weight = torch.nn.Parameter(self.module.q.weight[:2])
    def shard(self, name, module):
        module = FSDP(module)
        setattr(self.module, name, module)
    def setup(self, module):
        self.shard('q', module)
"""


@pytest.mark.parametrize(
    ("runs", "is_sharded"),
    [
        ("self.kind = 'split'", False),
        ("self.setup(module)", True),
        ("helper(self)", True),
        ("self.when_ready = self.setup", True),
    ],
)
def test_a_constructor_has_what_another_method_shards_later_plain(runs: str, *, is_sharded: bool) -> None:
    assert ("FM423" in _codes(_SPLITS.format(runs))) is is_sharded


_BRANCHES = """\
class Split(torch.nn.Module):
    def {1}(self, module, kind):
        super().__init__()
        self.module = module
        if kind == 'q':
            self.shard('q', module.q)
        elif kind == 'k':
            self.shard('k', module.k)
        {0}
            self.module.v.weight = torch.nn.Parameter(self.module.v.weight[:2])
    def shard(self, name, module):
        setattr(self.module, name, FSDP(module))
"""


@pytest.mark.parametrize(
    ("branch", "method", "is_sharded"),
    [
        ("else:", "__init__", False),
        ("elif kind == 'v':", "__init__", False),
        ("if kind == 'v':", "__init__", True),
        ("else:", "setup", True),
    ],
)
def test_a_constructor_shards_in_another_branch(branch: str, method: str, *, is_sharded: bool) -> None:
    assert ("FM423" in _codes(_BRANCHES.format(branch, method))) is is_sharded


def test_but_not_where_a_base_class_may_run_that_method_in_it() -> None:
    assert "FM423" in _codes(_SPLITS.replace("torch.nn.Module)", "Base)").format("pass"))
