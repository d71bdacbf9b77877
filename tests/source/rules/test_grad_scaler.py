"""``ShardedGradScaler``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths, scan_source
from tests.source.samples import IMPORTS, codes, plain, uses


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


SCALER = "from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler\n\n"


SCALERS = [
    ("scaler = ShardedGradScaler()\n", "scaler = grad_scaler()\n", "rewritten"),
    (
        "scaler = ShardedGradScaler('cuda', 2.0, enabled=on)\n",
        "scaler = grad_scaler('cuda', init_scale=2.0, enabled=on)\n",
        "rewritten",
    ),
    ("ok = isinstance(x, ShardedGradScaler)\n", "ok = isinstance(x, GradScaler)\n", "rewritten"),
    (
        "scaler = ShardedGradScaler(2.0)\n",
        "# fsdp-migrate: FM314\nscaler = ShardedGradScaler(2.0)\n",
        "commented",
    ),
    (
        "scaler = ShardedGradScaler(**options)\n",
        "# fsdp-migrate: FM314\nscaler = ShardedGradScaler(**options)\n",
        "commented",
    ),
]


@pytest.mark.parametrize(("before", "after", "action"), SCALERS)
def test_gradient_scalers(before: str, after: str, action: str) -> None:
    assert plain(before, SCALER) == after
    assert codes(before, SCALER) == [("FM314", action)]


def test_a_scaler_that_may_be_torchs_plain_one_gets_a_comment() -> None:
    body = (
        "if sharded:\n    kind = ShardedGradScaler\nelse:\n    kind = Plain\nscaler = kind(init_scale=2.0)\n"
    )
    header = f"from torch.amp import GradScaler as Plain\n{SCALER}"
    assert ("FM314", "commented") in codes(body, header)
    assert "scaler = kind(init_scale=2.0)\n" in plain(body, header)


_TORCHS = "from torch.cuda.amp import GradScaler\n"
_ON_CPU = "model = FSDP(net, cpu_offload=CPUOffload(True))\n"
_MADE = "scaler = GradScaler()\n"
_STEP = "opt = torch.optim.SGD(model.parameters())\nscaler.step(opt)\n"
_OFF = "if not use_fsdp: scaler = GradScaler()\n"
_OTHER = "if use_fsdp: scaler = sharded_grad_scaler.ShardedGradScaler()\n"


@pytest.mark.parametrize(
    ("body", "action"),
    [
        (f"{_ON_CPU}{_MADE}{_STEP}", "commented"),
        (
            f"{_ON_CPU}make = functools.partial(GradScaler)\n{_MADE}{_STEP}".replace(
                "= GradScaler(", "= make("
            ),
            "commented",
        ),
        (f"model = FSDP(net, ignored_modules=[net.head])\n{_MADE}{_STEP}", "commented"),
        (f"{_ON_CPU.replace('True', 'False')}{_MADE}{_STEP}", "kept"),
        (f"{_ON_CPU}{_MADE}{_STEP.replace('model', 'other')}", None),
        (f"{_ON_CPU}{_MADE}{_OTHER}{_STEP}", "rewritten"),
        (f"{_ON_CPU}{_OFF}{_STEP}", None),
    ],
)
def test_torchs_own_scaler(body: str, action: str | None) -> None:
    header = f"from torch.distributed.fsdp import sharded_grad_scaler\n{_TORCHS}{IMPORTS}"
    assert [each for code, each in codes(body, header) if code == "FM314"] == ([action] if action else [])


EPOCH = "def epoch(model, optimizer, amp):\n    amp.unscale_(optimizer)\n    amp.step(optimizer)\n\n\n"
METHOD = (
    "class Run:\n    def epoch(self, optimizer, amp):\n        amp.step(optimizer)\n\n"
    "    def main(self, opt, scaler):\n        self.epoch(opt, scaler)\n\n\n"
)


@pytest.mark.parametrize(
    ("before", "call", "is_said"),
    [
        (EPOCH, "epoch(model, opt, scaler)", True),
        (EPOCH, "epoch(model, amp=scaler, optimizer=opt)", True),
        (METHOD, "Run().main(opt, scaler)", True),
        (EPOCH, "epoch(model, other, scaler)", False),
        (EPOCH, "epoch(model, opt, None)", False),
    ],
)
def test_torchs_own_scaler_that_a_function_is_given(before: str, call: str, *, is_said: bool) -> None:
    makes = "opt = torch.optim.SGD(model.parameters())\n"
    body = f"{before}model = FSDP(net)\n{makes}{_MADE}{call}\n"
    assert [each for code, each in codes(body, f"{_TORCHS}{IMPORTS}") if code == "FM314"] == [
        "kept"
    ] * is_said


@pytest.mark.parametrize(
    ("given", "action"),
    [
        ("model.parameters()", "kept"),
        ("chain(model.parameters(), head.parameters())", "commented"),
        ("[{'params': model.parameters()}, {'params': head.parameters()}]", "commented"),
        ("[{'params': model.parameters()}, {'params': model.head.parameters(), 'lr': 1.0}]", "kept"),
        ("[p for p in guide.parameters() if p.requires_grad]", "commented"),
        ("[p for p in other.parameters() if p.requires_grad]", None),
    ],
)
def test_torchs_own_scaler_of_plain_parameters_beside_sharded_ones(given: str, action: str | None) -> None:
    body = f"model = FSDP(net)\nguide = Guide()\nguide.core = FSDP(guide.core)\n{_MADE}{_STEP}".replace(
        "model.parameters()", given, 1
    )
    header = f"from itertools import chain\n{_TORCHS}{IMPORTS}"
    assert [each for code, each in codes(body, header) if code == "FM314"] == ([action] if action else [])


def test_a_scaler_beside_offload_that_is_known_only_when_it_runs() -> None:
    body = f"{_ON_CPU.replace('True', 'args.offload')}{_MADE}{_STEP}"
    said = [use.becomes for use in uses(body, f"{_TORCHS}{IMPORTS}") if use.code == "FM314"]
    assert [each.startswith("where args.offload is true, its ranks agree") for each in said] == [True]


@pytest.mark.parametrize(
    ("module", "name", "code"),
    [("sharded_grad_scaler", "ShardedGradScaler", "FM314"), ("wrap", "default_auto_wrap_policy", "FM310")],
)
def test_a_name_of_torchs_that_is_set_is_not_renamed(module: str, name: str, code: str) -> None:
    body = f"import torch.distributed.fsdp.{module}\ntorch.distributed.fsdp.{module}.{name} = Own\n"
    [use] = [each for each in scan_source(body) if each.code == code]
    assert use.action == "commented"
    assert "puts another thing in the place of torch's" in use.becomes


@pytest.mark.parametrize(
    "line", ["scaler = ShardedGradScaler()\n", "class Own(ShardedGradScaler):\n    pass\n"]
)
@pytest.mark.parametrize(
    ("other", "is_left"),
    [
        ("class SimpleFSDP(nn.Module):\n    pass\n", True),
        ("from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nFSDP(net)\n", False),
        ("from torch.distributed.fsdp import fully_shard\nfully_shard(net)\n", False),
    ],
)
def test_the_class_stays_where_nothing_is_sharded_by_fsdp(
    tmp_path: Path, line: str, other: str, *, is_left: bool
) -> None:
    """Its ranks agree on an overflow of plain parts; those of torch's own scaler drift apart."""
    (tmp_path / "train.py").write_text(SCALER + line)
    (tmp_path / "other.py").write_text(other)
    (found,) = [
        use for use in scan_paths([tmp_path / "train.py", tmp_path / "other.py"]).uses if use.code == "FM314"
    ]
    assert found.action == ("commented" if is_left else "rewritten")
    assert ("no source here shards" in found.becomes) is is_left
