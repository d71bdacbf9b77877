"""Scripts of which ``rewrite`` turns no wrap: they still train with FSDP1, which is said last of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP

from fsdp_migrate.cli import main
from fsdp_migrate.source import rewrite_paths, rewrite_source, scan_paths
from fsdp_migrate.source.still_fsdp1 import said_of_still, still_fsdp1
from tests.ranks import run_ranks
from tests.source.samples import MARK


if TYPE_CHECKING:
    from pathlib import Path


IMPORTS = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
LEFT = f"{IMPORTS}\n\ndef make(net, *args):\n    return FSDP(net, *args, device_id=torch.device('cpu'))\n"
TURNED = f"{IMPORTS}\n\ndef make(net):\n    return FSDP(net)\n"
BY_HAND = """\
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import enable_wrap, wrap


def make(build):
    with enable_wrap(wrapper_cls=FullyShardedDataParallel):
        return wrap(build())
"""
PARTIAL = f"""{IMPORTS}import functools


def make(net, kinds):
    wrapper = functools.partial(FSDP, *kinds)
    return wrapper(net)
"""
VALUE = f"{IMPORTS}\n\ndef make(net, shard):\n    return shard(net, FSDP)\n"
SUBCLASS = f"{IMPORTS}\n\nclass Sharded(FSDP):\n    pass\n\n\ndef make(net):\n    return Sharded(net)\n"


def _classes(text: str) -> tuple[bool, bool]:
    """Return of which FSDP a rewritten script's model is, and that it trains."""
    names: dict[str, Any] = {}
    exec(rewrite_source(text), names)
    model = names["make"](torch.nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    return isinstance(model, FSDP), isinstance(model, FSDPModule)


def test_such_a_script_trains_with_fsdp1_without_a_word() -> None:
    assert f"{MARK}FM303" in rewrite_source(LEFT)
    assert run_ranks(_classes, LEFT) == [(True, False)] * 2
    assert run_ranks(_classes, TURNED) == [(False, True)] * 2


@pytest.mark.any_torch
@pytest.mark.parametrize("text", [LEFT, BY_HAND, SUBCLASS, PARTIAL, VALUE])
def test_it_is_the_last_thing_that_is_said(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    for command, how in (
        (["scan"], "also once it is rewritten"),
        (["rewrite", "--check"], "also once it is rewritten"),
        (["rewrite"], "also once it is rewritten"),
        (["rewrite", "--write"], "as it stands"),
        (["scan"], "as it stands"),
        (["rewrite"], "as it stands"),
    ):
        main([*command, str(tmp_path)])
        out, err = capsys.readouterr()
        last = (err or out).splitlines()[-1]
        assert last.startswith(f"{script} still trains with FSDP1, {how}: "), command
        assert "no comment stops a run" in last
        lines = script.read_text().splitlines()
        for each in still_fsdp1(scan_paths([tmp_path]).uses):
            assert f"{script}:{each.line} ({each.code})" in last, command
            assert not lines[each.line - 1].lstrip().startswith("#")


@pytest.mark.any_torch
@pytest.mark.parametrize(
    "text",
    [
        TURNED,
        "from fsdp_migrate import prepare_fully_shard\n" + LEFT + "model = prepare_fully_shard(net, {})\n",
        f"{IMPORTS}\n\ndef make(net):\n    return FSDP.check_is_root(net)\n",
        f"{IMPORTS}\n\ndef is_one(net):\n    return isinstance(net, FSDP)\n",
    ],
)
def test_nothing_is_said_where_ours_is_called_or_nothing_is_wrapped(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(text)
    for command in (["scan"], ["rewrite", "--write"], ["scan"]):
        main([*command, str(tmp_path)])
        out, err = capsys.readouterr()
        assert "still train" not in out + err


@pytest.mark.any_torch
def test_of_two_scripts_the_one_that_is_left_is_named(tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text(TURNED)
    (tmp_path / "old.py").write_text(LEFT)
    still = rewrite_paths([tmp_path], write=True).still
    said = said_of_still(still, is_checked=True)
    assert said.startswith(f"{tmp_path / 'old.py'} still trains with FSDP1, as it stands")
    assert "a run that does not come to it in another file goes on" in said
    assert "new.py" not in said
    assert said_of_still(still_fsdp1(scan_paths([tmp_path]).uses), is_checked=True) == said
    assert "no comment stops a run" in said_of_still(still, is_checked=False)


CALLBACKS = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from transformers import Trainer
from trl.models import prepare_fsdp


class Mine(Trainer):
    def compute_loss(self, model, inputs):
        if self.is_fsdp_enabled and isinstance(model, FSDP):
            print("sharded")

    def __init__(self, model, ref):
        self.ref = prepare_fsdp(ref, self.accelerator)
"""


@pytest.mark.any_torch
@pytest.mark.parametrize(
    ("beside", "text", "is_said"),
    [
        ("ds.yaml", "distributed_type: DEEPSPEED\n", True),
        ("fsdp.yaml", "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n", False),
        ("fsdp.yaml", "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n", False),
        ("run.sh", "accelerate launch --use_fsdp --fsdp_sharding_strategy FULL_SHARD train.py\n", False),
        (
            "args.py",
            "from transformers import TrainingArguments\nTrainingArguments('o', fsdp='full_shard')\n",
            False,
        ),
        ("more.py", TURNED, False),
    ],
)
def test_a_trainers_class_without_a_config_does_not_train_with_fsdp1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], beside: str, text: str, *, is_said: bool
) -> None:
    (tmp_path / "mine.py").write_text(CALLBACKS)
    (tmp_path / beside).write_text(text)
    main(["scan", str(tmp_path)])
    said = " ".join(capsys.readouterr().out.split())
    assert "still train" not in said
    assert ("by a config of FSDP2 from then on: `fsdp_version: 2`" in said) is is_said
