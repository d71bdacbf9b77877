"""Projects that FSDP2 alone shards: questions for FSDP1's class stay false."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_paths
from fsdp_migrate.source.files import find_sources
from fsdp_migrate.source.following import links_of
from tests.source.projects import after
from tests.source.samples import ONE_TURNED


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
        {"other.py": f"{CLASS}WRAPPERS = {{'fsdp': FSDP}}\n{ONE_TURNED}"},
        {"other.py": "from strategy import FSDP\nmodel = FSDP(net)\n"},
        {"tests/test_it.py": f"{CLASS}\ndef test_it():\n    save(FSDP(net))\n"},
        # A framework may be asked for it, in a file or by how it is launched.
        {"other.py": "from accelerate import Accelerator\n"},
        {"other.py": "import accelerate\n"},
        {"other.py": "from transformers import Trainer\n"},
        {"other.py": "from transformers import (\n    AutoModel,\n    Seq2SeqTrainer,\n)\n"},
        {"other.py": "import transformers\nt = transformers.Seq2SeqTrainer(m)\n"},
        {"other.py": "import lightning_fabric as lf\nlf.Fabric(strategy=args.strategy)\n"},
        {"other.py": "import axolotl\n"},
        {"other.py": "import lightning as L\nL.Trainer(strategy='fsdp')\n"},
        {"other.py": "import lightning as L\nL.Trainer(strategy = 'fsdp_cpu_offload')\n"},
        {"other.py": "import lightning as L\nL.Trainer(strategy=args.strategy)\n"},
        {"other.py": "import lightning as L\nL.Trainer(**args)\n"},
        {"other.py": "import lightning as L\nprint 'of Python 2'\n"},
        {"other.py": "from lightning.pytorch.strategies import FSDPStrategy\n"},
        {"run.yaml": "trainer:\n  strategy: fsdp\n"},
        {"run.yaml": "wrap:\n  _target_: torch.distributed.fsdp.FullyShardedDataParallel\n"},
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


@pytest.mark.parametrize(
    "says",
    [
        "# FSDPStrategy, or getattr(wrappers, 'fsdp_wrap'), did it before\n",
        '"""It was\n\nimport accelerate\n\nonce, and FSDPStrategy."""\n',
        "def f():\n    '''As prepare_fully_shard does.'''\n",
    ],
)
def test_what_only_speaks_of_other_ways_makes_no_model(tmp_path: Path, says: str) -> None:
    assert after(tmp_path, {**FILES, "other.py": says}, "strategy.py") == STRATEGY


def test_a_switch_that_is_called_fsdp_chooses_nothing_else(tmp_path: Path) -> None:
    shard = "from torch.distributed.fsdp import fully_shard\nfrom tools import save\n\n"
    shard += "if getattr(args, 'fsdp', False):\n    fully_shard(model)\nsave(model)\n"
    for name, text in (("shard.py", shard), ("tools.py", SAVE)):
        (tmp_path / name).write_text(text)
    assert not any(each.is_near for each in links_of(find_sources([tmp_path]), [tmp_path]).values())
