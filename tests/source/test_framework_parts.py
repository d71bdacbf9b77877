"""Parts of models that frameworks shard, and the optimizers that come back beside these."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

ASKS = "import lightning as L\ntrainer = L.Trainer(strategy={!r}, devices=2)\n"
PROBE = (
    "import copy\nimport lightning as L\nfrom bitsandbytes.optim import AdamW8bit\n"
    "from torch.optim.swa_utils import AveragedModel\n\n\nclass Probe(L.Callback):\n"
    "    def {}(self, trainer, pl_module):\n        {}\n"
)
START = "from accelerate import Accelerator, FullyShardedDataParallelPlugin\n"
ACCELERATE = f"{START}accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())\n"
FABRIC = "from lightning.fabric import Fabric\nfabric = Fabric(devices=2, strategy='fsdp')\n"


def codes(folder: Path, files: dict[str, str]) -> set[str]:
    for name, text in files.items():
        (folder / name).write_text(text)
    return {use.code for use in scan_paths([folder]).uses if use.path.endswith("own.py")}


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("self.best = copy.deepcopy(pl_module.net)", "FM323"),
        ("self.ema = AveragedModel(pl_module.net)", "FM323"),
        ("o = AdamW8bit(pl_module.encoder.parameters())", "FM445"),
        ("x = [p for p in pl_module.encoder.parameters() if p.ndim >= 2]", "FM318"),
        ("self.names = copy.deepcopy(pl_module.names)", ""),
        ("self.ema = AveragedModel(other.net)", ""),
        ("x = [p for p in other.parameters() if p.ndim >= 2]", ""),
    ],
)
def test_parts_are_asked_as_the_model_is(tmp_path: Path, line: str, code: str) -> None:
    files = {"own.py": PROBE.format("on_train_epoch_end", line), "asks.py": ASKS.format("fsdp")}
    assert codes(tmp_path, files) == ({code} if code else set())
    assert codes(tmp_path, {**files, "asks.py": ASKS.format("ddp")}) == set()
    assert codes(tmp_path, {**files, "own.py": PROBE.format("setup", line)}) == set()


@pytest.mark.parametrize(
    ("kept", "is_one"), [("pl_module.net", True), ("pl_module.names", False), ("other.net", False)]
)
def test_parts_that_a_callback_keeps(tmp_path: Path, kept: str, *, is_one: bool) -> None:
    reads = (
        "    def on_train_batch_end(self, *args):\n"
        "        return [p.grad.cpu().numpy() for p in self.kept.parameters()]\n"
    )
    own = f"{PROBE.format('on_fit_start', f'self.kept = {kept}')}\n{reads}"
    found = codes(tmp_path, {"own.py": own, "asks.py": ASKS.format("fsdp")})
    assert found == ({"FM423"} if is_one else set())
    assert codes(tmp_path, {"own.py": own, "asks.py": ASKS.format("ddp")}) == set()


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        (f"{ACCELERATE}model, optimizer = accelerator.prepare(net, optimizer)\n", True),
        (f"{ACCELERATE}model, optimizer, x = accelerator.prepare(net, optimizer, scheduler)\n", True),
        (f"{ACCELERATE}x, optimizer = accelerator.prepare(loader, optimizer)\n", False),
        (f"{FABRIC}model, optimizer = fabric.setup(net, optimizer)\n", True),
        (f"{FABRIC.replace('fsdp', 'ddp')}model, optimizer = fabric.setup(net, optimizer)\n", False),
    ],
)
@pytest.mark.parametrize(
    "reads",
    [
        "for g in optimizer.param_groups:\n    for p in g['params']:\n        n = p.grad.norm().item()\n",
        "for p in many:\n    n = optimizer.state[p]['exp_avg'].norm().item()\n",
    ],
)
def test_the_optimizer_that_comes_back_beside_the_model(
    tmp_path: Path, line: str, reads: str, *, is_one: bool
) -> None:
    assert ("FM423" in codes(tmp_path, {"own.py": f"{line}{reads}"})) is is_one


@pytest.mark.parametrize(
    ("prepares", "is_one"),
    [
        ("self.model, self.optimizer = accelerator.prepare(self.model, self.optimizer)", True),
        ("self.model, self.other = accelerator.prepare(self.model, other)", False),
    ],
)
def test_an_optimizer_is_loaded_that_came_back_in_the_place_of_another(
    tmp_path: Path, prepares: str, *, is_one: bool
) -> None:
    loop = (
        "class Loop:\n    def __init__(self, accelerator, net, other, head):\n        self.model = net\n"
        f"        self.optimizer = AdamW(head.parameters())\n        {prepares}\n"
        "    def load(self, path):\n"
        "        saved = torch.load(path)\n        self.optimizer.load_state_dict(saved['optimizer'])\n"
    )
    own = f"import torch\nfrom torch.optim import AdamW\n{ACCELERATE}\n\n{loop}"
    assert ("FM425" in codes(tmp_path, {"own.py": own})) is is_one


def test_what_a_models_own_method_does_with_its_parameters(tmp_path: Path) -> None:
    main = f"import own\n{ACCELERATE}net = own.Net()\nmodel, o = accelerator.prepare(net, o)\nmodel.probe()\n"
    start = "import torch\n\n\nclass Net(torch.nn.Module):\n    def probe(self):\n        "
    for line, code in (
        ("return [p.cpu().numpy() for p in self.parameters()]", "FM423"),
        ("torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)", "FM326"),
        ("return sum(p.numel() for p in self.parameters())", "FM334"),  # kept, with a note
        ("return sum(p.ndim for p in self.parameters() if p.requires_grad)", ""),
    ):
        files = {"own.py": f"{start}{line}\n", "main.py": main}
        assert codes(tmp_path, files) == ({code} if code else set())
        assert codes(tmp_path, {**files, "main.py": main.replace("model.probe()", "")}) == set()


HF = "from transformers import TrainingArguments\nargs = TrainingArguments('x'{})\n"
FSDP = ", fsdp='full_shard auto_wrap'"
TRAINER = (
    "import torch\nimport bitsandbytes as bnb\nfrom transformers import Trainer\n\n\n{}\n\n"
    "class Own(Trainer):\n    def {}:\n        {}\n"
)
COLLECTS = (
    "def plain(p):\n    if hasattr(p, 'ds_id'):\n        p = p.data.cpu().clone()\n    else:\n"
    "        p = {}\n    return p\n\n\ndef collect(named):\n    found = {{k: p for k, p in named}}\n"
    "    return {{k: plain(p).cpu() for k, p in found.items()}}\n"
)


@pytest.mark.parametrize(
    ("method", "line", "code"),
    [
        ("create_optimizer(self)", "self.optimizer = bnb.optim.Adam8bit(self.model.parameters())", "FM445"),
        ("create_optimizer(self)", "self.optimizer = torch.optim.AdamW(self.model.parameters())", ""),
        ("__init__(self, ref_model)", "self.ref = self.accelerator.prepare(ref_model)", "FM449"),
        (
            "__init__(self, ref_model)",
            "self.ref = self.accelerator.prepare_model(ref_model, evaluation_mode=True)",
            "",
        ),
        ("_save_checkpoint(self, model)", "torch.save(collect(self.model.named_parameters()), 'x')", "FM423"),
        ("_save_checkpoint(self, model)", "torch.save(collect(other.named_parameters()), 'x')", ""),
    ],
)
def test_what_trainers_do_with_models_and_optimizers(
    tmp_path: Path, method: str, line: str, code: str
) -> None:
    own = TRAINER.format(COLLECTS.format("p.detach().cpu()"), method, line)
    found = codes(tmp_path, {"own.py": own, "asks.py": HF.format(FSDP)})
    assert found == ({code} if code else set())
    assert codes(tmp_path, {"own.py": own, "asks.py": HF.format("")}) == set()


def test_a_name_that_is_given_something_else_is_no_parameter(tmp_path: Path) -> None:
    line = "torch.save(collect(self.model.named_parameters()), 'x')"
    own = TRAINER.format(COLLECTS.format("load()"), "_save_checkpoint(self, model)", line)
    assert codes(tmp_path, {"own.py": own, "asks.py": HF.format(FSDP)}) == set()


@pytest.mark.parametrize(("base", "is_one"), [("L.LightningModule", True), ("Other", False)])
def test_states_that_a_lightning_module_takes_of_itself(tmp_path: Path, base: str, *, is_one: bool) -> None:
    own = (
        f"import lightning as L\nfrom net import Net\n\n\nclass Lit({base}):\n    def __init__(self):\n"
        "        self.net = Net()\n\n    def export(self, path):\n        save(self.net.state_dict(), path)\n"
    )
    main = (
        "import lightning as L\nfrom own import Lit\nlit = Lit()\n"
        "trainer = L.Trainer(strategy='fsdp', devices=2)\ntrainer.fit(lit)\nlit.export(path)\n"
    )
    net = "import torch\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
    files = {"own.py": own, "main.py": main, "net.py": net}
    assert ("FM333" in codes(tmp_path, files)) is is_one
    above = main.replace("trainer.fit(lit)\nlit.export(path)", "lit.export(path)\ntrainer.fit(lit)")
    assert codes(tmp_path, {**files, "main.py": above}) == ({"FM429"} if is_one else set())


@pytest.mark.parametrize(
    ("asks", "own", "is_one"),
    [
        (ASKS.format("fsdp"), PROBE.format("on_train_epoch_end", "for o in trainer.optimizers:"), True),
        (ASKS.format("ddp"), PROBE.format("on_train_epoch_end", "for o in trainer.optimizers:"), False),
        (ASKS.format("fsdp"), PROBE.format("on_train_epoch_end", "for o in trainer.others:"), False),
    ],
)
def test_the_optimizers_of_lightnings_trainer(tmp_path: Path, asks: str, own: str, *, is_one: bool) -> None:
    groups = "            for g in o.param_groups:\n"
    loop = f"{groups}                x = [p.grad.cpu().numpy() for p in g['params']]\n"
    assert ("FM423" in codes(tmp_path, {"own.py": own + loop, "asks.py": asks})) is is_one


@pytest.mark.parametrize("settings", ["fsdp_config={'sharding_strategy': 'FULL_SHARD'}", "lr=1"])
def test_the_optimizers_of_composers_state(tmp_path: Path, settings: str) -> None:
    own = (
        "from composer.core import Callback\n\n\nclass Probe(Callback):\n"
        "    def batch_end(self, state, logger):\n"
        "        for g in state.optimizers[0].param_groups:\n"
        "            x = [p.grad.cpu().numpy() for p in g['params']]\n"
    )
    makes = f"Trainer(model=net, callbacks=[Probe()], {settings})\n"
    main = f"from composer import Trainer\nfrom own import Probe\n{makes}"
    found = codes(tmp_path, {"own.py": own, "main.py": main})
    assert found == ({"FM423"} if "fsdp" in settings else set())
