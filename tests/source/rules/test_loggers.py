"""What loggers make of a sharded model's parameters: ``wandb.watch`` and histograms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.samples import IMPORTS, codes


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

SAID = ("FM423", "commented")
HEADER = f"{IMPORTS}import wandb\n\n"


@pytest.mark.parametrize(
    "body",
    [
        "model = FSDP(net)\nwandb.watch(model, log='all')\n",
        "model = FSDP(net)\nrun.watch(model, log='parameters', log_freq=10)\n",
        "model = FSDP(net)\nwandb.watch(models=[model], log='all')\n",
        "model = FSDP(net)\nwandb.watch(model.module, None, 'all')\n",
        "model = FSDP(net)\nwandb_logger.watch(model.encoder, 'all')\n",
        "wandb.watch(net, log='all')\nmodel = FSDP(net)\n",
        "def main(model):\n    wandb.watch(model, log='all')\n    model = FSDP(model)\n",
        "model = FSDP(net)\nfor n, p in model.named_parameters():\n    writer.add_histogram(n, p, 1)\n",
        (
            "model = FSDP(net)\nfor n, p in model.named_parameters():\n"
            "    wandb.log({n: wandb.Histogram(p.grad.cpu())})\n"
        ),
    ],
)
def test_what_reads_parameters_is_said(body: str) -> None:
    assert SAID in codes(body, HEADER)


@pytest.mark.parametrize(
    "body",
    [
        "model = FSDP(net)\nwandb.watch(model)\n",
        "model = FSDP(net)\nwandb.watch(model, log='gradients')\n",
        "model = FSDP(net)\nwandb.watch(model, log=None)\n",
        "model = FSDP(net)\nwandb.watch(other, log='all')\n",
        (
            "def main(model):\n    if on:\n        model = FSDP(model)\n"
            "    else:\n        wandb.watch(model, log='all')\n"
        ),
        "def main(model):\n    model = FSDP(model)\ndef other(model):\n    wandb.watch(model, log='all')\n",
        "model = FSDP(net)\nwriter.add_histogram('loss', losses, 1)\n",
        "model = FSDP(net)\nfor p in net2.parameters():\n    writer.add_histogram('x', p, 1)\n",
        (
            "model = FSDP(net)\nwith FSDP.summon_full_params(model):\n"
            "    for n, p in model.named_parameters():\n        writer.add_histogram(n, p, 1)\n"
        ),
    ],
)
def test_what_is_the_same_is_not_said(body: str) -> None:
    assert SAID not in codes(body, HEADER)


LIGHTNING = (
    "import lightning as L\nfrom lightning.pytorch.loggers import WandbLogger\n"
    "from models import Lit\n\n\ndef main():\n    model = Lit()\n    logger = WandbLogger()\n"
    "    logger.watch(model, log='all')\n    trainer = L.Trainer(strategy='{}', logger=logger, devices=2)\n"
    "    trainer.fit(model)\n"
)
TRAINER = (
    "import os\nimport wandb\nfrom transformers import AutoModel, Trainer, TrainingArguments\n\n\n"
    "def main():\n    {}\n    model = AutoModel.from_pretrained('x')\n    {}\n"
    "    args = TrainingArguments(output_dir='x', fsdp='{}')\n"
    "    trainer = Trainer(model=model, args=args)\n    trainer.train()\n"
)
WATCHES, VARIABLE = "wandb.watch(model, log='all')", "os.environ['WANDB_WATCH'] = 'all'"


@pytest.mark.parametrize(
    ("text", "is_said"),
    [
        (LIGHTNING.format("fsdp"), True),
        (LIGHTNING.format("ddp"), False),
        (TRAINER.format("pass", WATCHES, "full_shard"), True),
        (TRAINER.format(VARIABLE, "pass", "full_shard"), True),
        (TRAINER.format(VARIABLE.replace("all", "gradients"), "pass", "full_shard"), False),
        (TRAINER.format(VARIABLE, WATCHES, ""), False),
    ],
)
def test_models_that_a_trainer_shards_later(tmp_path: Path, text: str, is_said: bool) -> None:
    (tmp_path / "train.py").write_text(text)
    found = {use.rule for use in scan_paths([tmp_path]).uses}
    assert ("loggers" in found) is is_said


NORMS = (
    "import lightning as L\nfrom {} import {}\n\n\n"
    "class Lit(L.LightningModule):\n    def configure_optimizers(self):\n        return None\n\n"
    "    def on_before_optimizer_step(self, optimizer):\n        self.log_dict({})\n\n\n"
    "L.Trainer(strategy='{}', devices=2).fit(Lit())\n"
)


@pytest.mark.parametrize(
    ("home", "name", "call", "strategy", "is_said"),
    [
        ("lightning.pytorch.utilities", "grad_norm", "grad_norm(self, norm_type=2)", "fsdp", True),
        (
            "pytorch_lightning.utilities.grads",
            "grad_norm",
            "grad_norm(module=self.net, norm_type=2)",
            "fsdp",
            True,
        ),
        ("lightning.pytorch", "utilities", "utilities.grad_norm(self, 2)", "fsdp", True),
        ("lightning.pytorch.utilities", "grad_norm", "grad_norm(self, norm_type=2)", "ddp", False),
        ("mine.norms", "grad_norm", "grad_norm(self, norm_type=2)", "fsdp", False),
    ],
)
def test_lightnings_norm_of_gradients_raises(
    home: str, name: str, call: str, strategy: str, *, is_said: bool
) -> None:
    found = codes(NORMS.format(home, name, call, strategy), "")
    assert any(code in {"FM336", "FM423"} and action == "commented" for code, action in found) is is_said
