"""Projects, and models, that FSDP2 alone shards: questions for FSDP1's class stay false."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_paths
from fsdp_migrate.source.files import find_sources
from fsdp_migrate.source.following import links_of
from tests.source.projects import FSDP, after


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

STRATEGY = (
    "from lightning.pytorch.strategies.model_parallel import ModelParallelStrategy\n"
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, OptimStateKeyType\n\n\n"
    "class Own(ModelParallelStrategy):\n    def setup(self, trainer):\n"
    "        if any(isinstance(m, FSDP) for m in self.model.modules()):\n            raise TypeError\n\n"
    "    def state(self, state: dict):\n"
    "        return FSDP.rekey_optim_state_dict(state, OptimStateKeyType.PARAM_ID, self.model)\n"
)
TRAIN = (
    "import lightning as L\nfrom torch.distributed.fsdp import fully_shard\n\nfrom strategy import Own\n\n\n"
    "class Lit(L.LightningModule):\n    def configure_model(self):\n        fully_shard(self.net)\n\n\n"
    "trainer = L.Trainer(devices=2, strategy=Own())\ntrainer.fit(Lit())\n"
)
SAVE = "def save(model, optimizer):\n    return model.state_dict(), optimizer.state_dict()\n"
FILES = {"strategy.py": STRATEGY, "train.py": TRAIN, "tools.py": SAVE, "run.py": "import train, tools\n"}


def test_questions_for_fsdp1_stay_where_fsdp2_alone_shards(tmp_path: Path) -> None:
    assert after(tmp_path, FILES, "strategy.py") == STRATEGY
    report = rewrite_paths([tmp_path])
    assert report.changed == ()
    assert report.unclear == ()


CLASS = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"


@pytest.mark.parametrize(
    "changes",
    [
        # A model may be FSDP1's: the class is called, handed on, or derived from, also in a test.
        {"other.py": f"{CLASS}model = FSDP(net)\n"},
        {"other.py": f"{CLASS}WRAPPERS = {{'fsdp': FSDP}}\n"},
        {"other.py": "from strategy import FSDP\nmodel = FSDP(net)\n"},
        {"tests/test_it.py": f"{CLASS}\ndef test_it():\n    save(FSDP(net))\n"},
        # A framework may be asked for it, in a file or by how it is launched.
        {"other.py": "from accelerate import Accelerator\n"},
        {"other.py": "import accelerate\n"},
        {"other.py": "from transformers import Trainer\n"},
        {"other.py": "import lightning as L\nL.Trainer(strategy='fsdp')\n"},
        {"other.py": "import lightning as L\nL.Trainer(strategy = 'fsdp_cpu_offload')\n"},
        {"other.py": "import lightning as L\nL.Trainer(strategy=args.strategy)\n"},
        {"other.py": "import lightning as L\nL.Trainer(**args)\n"},
        {"other.py": "from lightning.pytorch.strategies import FSDPStrategy\n"},
        {"run.yaml": "trainer:\n  strategy: fsdp\n"},
        # Other ways to it.
        {"other.py": "model = getattr(wrappers, 'fsdp_wrap')(net)\n"},
        {"other.py": "from fsdp_migrate import prepare_fully_shard\n"},
        {"other.py": "from fairseq2.nn.fsdp import to_fsdp\nmodel = to_fsdp(net)\n"},
        # Who uses the project gives it models.
        {"other.py": f"{CLASS}\ndef is_one(m):\n    return isinstance(m, FSDP)\n"},
        # Nothing shards by FSDP2.
        {"train.py": TRAIN.replace("fully_shard(self.net)", "pass").replace(", fully_shard", "")},
        {"train.py": "import strategy\n"},
    ],
)
def test_what_may_make_a_model_of_fsdp1(tmp_path: Path, changes: dict[str, str]) -> None:
    text = after(tmp_path, {**FILES, **changes}, "strategy.py")
    assert "isinstance(m, FSDP)" not in text or "FM305" in text
    assert "FM309" in text


def test_a_switch_that_is_called_fsdp_chooses_nothing_else(tmp_path: Path) -> None:
    shard = "from torch.distributed.fsdp import fully_shard\nfrom tools import save\n\n"
    shard += "if getattr(args, 'fsdp', False):\n    fully_shard(model)\nsave(model)\n"
    for name, text in (("shard.py", shard), ("tools.py", SAVE)):
        (tmp_path / name).write_text(text)
    assert not any(each.is_near for each in links_of(find_sources([tmp_path]), [tmp_path]).values())


WRAP = (
    f"{FSDP}from torch.distributed.fsdp import fully_shard\n"
    "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
    "def by_fsdp2(model, mesh):\n    for layer in model.layers:\n        fully_shard(layer, mesh=mesh)\n"
    "    fully_shard(model, mesh=mesh)\n    return model\n\n\n"
    "def wrap(model, kind, mesh=None):\n    if kind is None:\n        return model\n"
    "    if kind == 'ddp':\n        return DDP(model)\n    return by_fsdp2(model, mesh)\n\n\n"
    "def wrap_old(model):\n    return FSDP(model)\n"
)
ASKS = (
    f"from contextlib import nullcontext\n\n{FSDP}import wrapping\n\n\n"
    "def generate(model, x):\n    if isinstance(model, FSDP):\n"
    "        with FSDP.summon_full_params(model):\n            return model.embed(x)\n"
    "    return model.embed(x)\n"
    "\n\ndef main(args, net):\n    model = wrapping.wrap(net, args.kind)\n"
    "    is_fsdp = isinstance(model, FSDP)\n"
    "    with FSDP.summon_full_params(model) if is_fsdp else nullcontext():\n        generate(model, 1)\n"
)


def test_a_model_that_is_followed_to_fsdp2s_alone(tmp_path: Path) -> None:
    assert after(tmp_path, {"wrapping.py": WRAP, "train.py": ASKS}, "train.py") == ASKS


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return by_fsdp2(model, mesh)", "return wrap_old(model)"),
        ("return by_fsdp2(model, mesh)", "return WRAPPERS[kind](model)"),
        ("    return by_fsdp2(model, mesh)", "    model = other(model)\n    return model"),
        ("    fully_shard(model, mesh=mesh)\n", ""),
        ("def wrap(", "@choose\ndef wrap("),
    ],
)
def test_a_function_that_may_give_another_model(tmp_path: Path, old: str, new: str) -> None:
    wrapping = WRAP.replace(old, new)
    assert "isinstance(model, FSDPModule)" in after(
        tmp_path, {"wrapping.py": wrapping, "train.py": ASKS}, "train.py"
    )


def test_a_function_that_another_file_may_give_other_models(tmp_path: Path) -> None:
    files = {
        "wrapping.py": WRAP,
        "train.py": ASKS,
        "more.py": "from train import generate\ngenerate(load(), 1)\n",
    }
    text = after(tmp_path, files, "train.py")
    assert "if isinstance(model, FSDPModule)" in text
    assert "is_fsdp = isinstance(model, FSDP)" in text


def test_a_check_below_fsdp2s_function_in_the_same_block(tmp_path: Path) -> None:
    text = f"{FSDP}from torch.distributed.fsdp import fully_shard\n\n\ndef main(model, net):\n"
    text += "    fully_shard(model)\n    print(isinstance(model, FSDP))\n    net = FSDP(net)\n"
    text += "    print(isinstance(net, FSDP))\n"
    found = after(tmp_path, {"train.py": text}, "train.py")
    assert "isinstance(model, FSDP))" in found
    assert "isinstance(net, FSDPModule))" in found


def test_a_check_before_fsdp2s_function(tmp_path: Path) -> None:
    text = f"{FSDP}from torch.distributed.fsdp import fully_shard\n\n\ndef shard(model):\n"
    text += "    if not isinstance(model, FSDP):\n        fully_shard(model)\n"
    assert "isinstance(model, FSDPModule)" in after(tmp_path, {"train.py": text}, "train.py")
