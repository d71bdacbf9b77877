"""Files that prepare models by an Accelerator or a Fabric which another file makes, for FSDP1."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate import convert_config_file
from fsdp_migrate.source import rewrite_paths, scan_paths
from fsdp_migrate.source.asked_around import is_accelerates
from fsdp_migrate.source.prepared_apart import find_prepared_apart


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

MAKES = (
    "from accelerate import Accelerator, FullyShardedDataParallelPlugin\n\n\n"
    "def make():\n    return Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())\n"
)
PREPARES = (
    "from make import make\n\naccelerator = make()\n"
    "model, optimizer = accelerator.prepare(model, optimizer)\n"
    "head = model.module.head\n"
)


def codes(folder: Path, makes: str, prepares: str) -> set[str]:
    (folder / "make.py").write_text(makes)
    (folder / "train.py").write_text(prepares)
    return {use.code for use in scan_paths([folder]).uses if use.path.endswith("train.py")}


def test_the_plugin_of_another_file_shards_what_is_prepared(tmp_path: Path) -> None:
    assert codes(tmp_path, MAKES, PREPARES) == {"FM333"}
    own = PREPARES.replace("from make import make\n", "from accelerate import Accelerator\n")
    assert codes(tmp_path, MAKES, own.replace("make()", "Accelerator()")) == set()
    assert codes(tmp_path, MAKES.replace("Plugin())", "Plugin(fsdp_version=2))"), PREPARES) == set()
    assert codes(tmp_path, MAKES.replace("Plugin())", "Plugin(fsdp_version=1))"), PREPARES) == {"FM333"}


def test_the_fabric_of_another_file_shards_what_it_sets_up(tmp_path: Path) -> None:
    makes = (
        "from lightning.fabric import Fabric\nfrom lightning.fabric.strategies import FSDPStrategy\n\n\n"
        "def make():\n    return Fabric(devices=2, strategy=FSDPStrategy())\n"
    )
    sets_up = "def run(fabric, net):\n    model = fabric.setup(net)\n    return model.state_dict()\n"
    assert codes(tmp_path, makes, sets_up) == {"FM333"}
    assert codes(tmp_path, makes.replace("FSDPStrategy", "DDPStrategy"), sets_up) == set()


@pytest.mark.parametrize(
    ("name", "text", "is_asked"),
    [
        ("accelerate.yaml", "distributed_type: FSDP\nfsdp_config:\n  fsdp_offload_params: false\n", True),
        ("fsdp.config", "distributed_type: FSDP\nfsdp_config:\n  fsdp_offload_params: false\n", True),
        ("acc-fsdp.conf", "distributed_type: 'FSDP'\nfsdp_config: {}\n", True),
        ("zero3", "distributed_type: FSDP\n", True),
        ("README", "With\n    distributed_type: FSDP\n", False),
        ("ddp.config", "distributed_type: MULTI_GPU\n", False),
        ("run.sh", "accelerate launch --use_fsdp train.py\n", True),
        ("run", "#!/usr/bin/env bash\naccelerate launch --use_fsdp train.py\n", True),
        ("run", "accelerate launch --use_fsdp train.py\n", False),
        ("run.ps1", "accelerate launch --use_fsdp train.py\n", True),
        ("run.ps1", '$env:ACCELERATE_USE_FSDP = "true"\npython train.py\n', True),
        ("run.bat", "accelerate launch ^\n  --use_fsdp train.py\n", True),
        ("run.cmd", "set ACCELERATE_USE_FSDP=true\npython train.py\n", True),
        ("run.bat", "@rem accelerate launch --use_fsdp train.py\n", False),
        ("run.bat", ":: accelerate launch --use_fsdp train.py\n", False),
        ("fsdp.yaml.j2", "distributed_type: FSDP\nnum_processes: {{ n }}\n", True),
        ("README.md", "Run:\n```bash\naccelerate launch --use_fsdp train.py\n```\n", True),
        ("README.md", "Run:\n```bash\naccelerate launch --multi_gpu train.py\n```\n", False),
        ("README.md", "`accelerate launch --use_fsdp` is not for this.\n", False),
        ("README.md", "```yaml\ndistributed_type: FSDP\n```\n", False),
        ("NEWS.md", "```bash\naccelerate launch --use_fsdp train.py\n```\n", False),
        ("job.slurm", "export ACCELERATE_USE_FSDP=true\npython train.py\n", True),
        # Accelerate asks for "true" alone.
        ("job.slurm", "export ACCELERATE_USE_FSDP=1\npython train.py\n", False),
        ("job.yaml", "env:\n- name: ACCELERATE_USE_FSDP\n  value: 'true'\n", True),
        ("job.yaml", "env:\n  ACCELERATE_USE_FSDP: true\n  FSDP_VERSION: '2'\n", False),
        ("job.json", '[{"name": "ACCELERATE_USE_FSDP", "value": "true"}]', True),
        ("launch.py", 'run(env={**os.environ, "ACCELERATE_USE_FSDP": "true"})\n', True),
        ("launch.py", 'os.environ["ACCELERATE_USE_FSDP"] = str(args.fsdp).lower()\n', True),
        ("launch.py", 'os.environ.setdefault("ACCELERATE_USE_FSDP", "true")\n', True),
        ("launch.py", 'on = os.environ.get("ACCELERATE_USE_FSDP", "false") == "true"\n', False),
        ("launch.py", 'on = os.environ["ACCELERATE_USE_FSDP"] == "true"\n', False),
        ("launch.py", 'os.environ["ACCELERATE_USE_FSDP"] = "false"\n', False),
        ("ddp.yaml", "distributed_type: MULTI_GPU\n", False),
        ("new.yaml", "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n", False),
        ("tox.ini", "[testenv:train]\ncommands = accelerate launch --use_fsdp train.py\n", True),
        ("README.md", "```\naccelerate launch \\\n  --use_fsdp train.py\n```\n", True),
        ("run.rst", "Run::\n\n    $ NCCL_DEBUG=INFO accelerate launch --use_fsdp ./train.py\n", True),
        ("README.md", "$ accelerate launch -m train\n```yaml\ndistributed_type: FSDP\n```\n", True),
        ("README.md", "$ accelerate launch --use_fsdp --fsdp_version 2 train.py\n", False),
        ("README.md", "$ accelerate launch --use_fsdp examples/of_others.py\n", False),
        ("README.md", "accelerate launch --use_fsdp train.py is the old way.\n", False),
        ("README.md", "We took accelerate launch --use_fsdp train.py away.\n", False),
        ("README.md", "$ accelerate launch train.py\nDo not set `distributed_type: FSDP`.\n", False),
        ("run.sh", "accelerate launch --config_file ~/c/fsdp_2gpu.yaml train.py\n", True),
        ("README.md", "$ accelerate launch --config_file $HOME/fsdp.yaml train.py\n", True),
        ("run.sh", "accelerate launch --config_file ~/c/fsdp2.yaml train.py\n", False),
        ("run.sh", "accelerate launch --config_file ~/c/default.yaml train.py\n", False),
        ("run.sh", "# accelerate launch --config_file ~/c/fsdp.yaml train.py\n", False),
    ],
)
def test_a_config_or_a_launch_line_asks_accelerate_as_well(
    tmp_path: Path, name: str, text: str, is_asked: bool
) -> None:
    (tmp_path / name).write_text(text)
    prepares = (
        "from accelerate import Accelerator\n\naccelerator = Accelerator()\n"
        "model, optimizer = accelerator.prepare(model, optimizer)\n"
        "torch.save(model.state_dict(), 'model.pt')\n"
    )
    assert codes(tmp_path, "x = 1\n", prepares) == ({"FM333"} if is_asked else set())


@pytest.mark.parametrize("name", ["acc.yaml", "acc", "run.sh"])
def test_what_sources_need_is_the_same_once_the_config_is_turned(name: str, tmp_path: Path) -> None:
    text = (
        "#!/bin/bash\naccelerate launch --use_fsdp --fsdp_sharding_strategy FULL_SHARD train.py\n"
        if name == "run.sh"
        else "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
    )
    config, train = tmp_path / name, tmp_path / "train.py"
    config.write_text(text)
    train.write_text(
        "from accelerate import Accelerator\n\n\ndef run(net):\n    accelerator = Accelerator()\n"
        "    model = accelerator.prepare(net)\n    for p in model.parameters():\n"
        "        p.data = p.data * 0.9\n"
    )
    first = rewrite_paths([tmp_path])
    assert first.left == {"FM423": 1}
    convert_config_file(config, in_place=True)
    assert (tmp_path / f"{name}.fsdp1").exists()
    second = rewrite_paths([tmp_path], write=True)
    assert [each.after for each in second.files] == [each.after for each in first.files]
    # Once the sources are turned, nothing more is said of what was settled and deleted.
    lines = [each for each in train.read_text().splitlines() if "# fsdp-migrate" not in each]
    train.write_text("\n".join([*lines, ""]))
    assert not rewrite_paths([tmp_path]).changed


def test_a_source_that_cannot_be_read_hides_nothing_of_a_turned_config(tmp_path: Path) -> None:
    config = tmp_path / "acc.yaml"
    config.write_text("distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n")
    (tmp_path / "old.py").write_bytes(b"# \xff\n")
    convert_config_file(config, in_place=True)
    prepares = (
        "from accelerate import Accelerator\n\naccelerator = Accelerator()\n"
        "model, optimizer = accelerator.prepare(model, optimizer)\n"
        "torch.save(model.state_dict(), 'model.pt')\n"
    )
    assert codes(tmp_path, "x = 1\n", prepares) == {"FM333"}


@pytest.mark.parametrize(("config", "is_asked"), [("fsdp.yaml", False), ("other.yaml", True)])
def test_a_config_that_is_here_says_itself_what_it_asks_for(
    tmp_path: Path, config: str, *, is_asked: bool
) -> None:
    (tmp_path / config).write_text("distributed_type: MULTI_GPU\n")
    (tmp_path / "run.sh").write_text("accelerate launch --config_file c/fsdp.yaml train.py\n")
    prepares = PREPARES.replace("from make import make\n", "from accelerate import Accelerator\n")
    found = codes(tmp_path, "x = 1\n", prepares.replace("make()", "Accelerator()"))
    assert found == ({"FM333"} if is_asked else set())


_LAUNCH = "accelerate launch --config_file {} {}\n"
_PLAIN = f"```\n{_LAUNCH.format('ddp.yaml', 'scripts/train.py')}"
_SHARDS = _LAUNCH.format("fsdp.yaml", "scripts/big.py")


@pytest.mark.parametrize(
    ("beside", "is_asked"),
    [
        ({"README.md": f"{_PLAIN}{_SHARDS}```\n"}, False),
        ({"README.md": f"{_PLAIN}```\n", "big.sh": _SHARDS}, False),
        ({"train.sh": _LAUNCH.format("ddp.yaml", "scripts/train.py"), "big.sh": _SHARDS}, False),
        # It is launched with FSDP too, or no command names that config, or one whose script is not seen.
        ({"README.md": f"{_PLAIN}{_SHARDS}{_LAUNCH.format('fsdp.yaml', 'scripts/train.py')}```\n"}, True),
        ({"README.md": f"{_PLAIN}{_SHARDS}{_LAUNCH.format('$CONFIG', 'scripts/train.py')}```\n"}, True),
        ({"README.md": f"{_PLAIN}```\n"}, True),
        ({"README.md": f"{_PLAIN}```\n", "any.sh": _LAUNCH.format("fsdp.yaml", '"$@"')}, True),
        ({"README.md": f"{_PLAIN}{_SHARDS}```\n", "other.yaml": "distributed_type: FSDP\n"}, True),
        ({"README.md": f"{_PLAIN}{_SHARDS}```\n", "go.sh": "export ACCELERATE_USE_FSDP=true\n"}, True),
        ({"README.md": f"{_PLAIN}{_SHARDS}```\n", "scripts/big.py": "from train import run\n"}, True),
        ({"README.md": f"{_PLAIN}{_SHARDS}```\n", "go.sh": "$RUN scripts/train.py\n"}, True),
    ],
)
def test_a_script_that_is_launched_by_a_config_without_fsdp_alone(
    tmp_path: Path, beside: dict[str, str], *, is_asked: bool
) -> None:
    prepares = "from accelerate import Accelerator\naccelerator = Accelerator()\nmodel = {}\n"
    prepares += "torch.save(model.state_dict(), 'model.pt')\noptimizer = AdamW(model.parameters())\n"
    (tmp_path / "scripts").mkdir()
    files = {
        "ddp.yaml": "distributed_type: MULTI_GPU\n",
        "fsdp.yaml": "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n",
        "scripts/train.py": prepares.format("accelerator.prepare(model)"),
        "scripts/big.py": "x = 1\n",
        **beside,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    report = scan_paths([tmp_path])
    assert {use.code for use in report.uses} == ({"FM333"} if is_asked else set())
    apart = find_prepared_apart([tmp_path], report, ["accelerate"])
    assert apart.trained == ((f"{tmp_path / 'scripts/train.py'}:3",) if is_asked else ())


@pytest.mark.parametrize(
    ("config", "is_asked"),
    [
        ("_target_: lightning.Fabric\ndevices: 8\nstrategy: fsdp\n", True),
        ("strategy: {_target_: lightning.fabric.strategies.FSDPStrategy, state_dict_type: full}\n", True),
        ("_target_: lightning.Fabric\nstrategy: ddp\n", False),
        ("_target_: lightning.Trainer\nstrategy: fsdp\n", False),
    ],
)
def test_a_config_from_which_hydra_makes_a_fabric_asks_as_well(
    tmp_path: Path, config: str, is_asked: bool
) -> None:
    (tmp_path / "fabric.yaml").write_text(config)
    tune = (
        "class Tune(FabricMixin):\n    def run(self, make):\n        self.model = make()\n"
        "        self.model = self.fabric.setup_module(self.model)\n"
        "        torch.save(self.model.state_dict(), 'model.pt')\n"
    )
    assert codes(tmp_path, "x = 1\n", tune) == ({"FM333"} if is_asked else set())


_YAML = "distributed_type: FSDP\nfsdp_config:\n  fsdp_offload_params: false\n"
_SAVES = "model, opt = {}.prepare(model, opt)\ntorch.save({}.unwrap_model(model).state_dict(), 'a.pt')\n"


@pytest.mark.parametrize(
    ("before", "name", "is_one"),
    [
        ("from accelerate import Accelerator\nhf = Accelerator()\n", "hf", True),
        ("import accelerate\nself.hf = accelerate.Accelerator(cpu=False)\n", "self.hf", True),
        ("from accelerate import Accelerator as A\nhf = A()\n", "hf", True),
        ("from accelerate import Accelerator\nhf: Accelerator = made()\n", "hf", True),
        ("from accelerate import Accelerator\nx = Accelerator()\nself.hf = x\n", "self.hf", True),
        ("from accelerate import Accelerator\n", "Accelerator()", True),
        ("import accelerate\n", "accelerate.Accelerator(log_with=names())", True),
        ("", "accel", True),
        ("", "self.acc", True),
        ("from ddp import Helper\nhf = Helper()\n", "hf", False),
        ("from accelerate import Accelerator\nx = Accelerator()\nhf = Helper()\n", "hf", False),
    ],
)
def test_an_accelerator_is_one_whatever_its_name(
    tmp_path: Path, before: str, name: str, *, is_one: bool
) -> None:
    (tmp_path / "accelerate.yaml").write_text(_YAML)
    saves = before + _SAVES.format(name, name)
    assert codes(tmp_path, "x = 1\n", saves) == ({"FM333"} if is_one else set())
    (tmp_path / "accelerate.yaml").write_text("distributed_type: MULTI_GPU\n")
    assert codes(tmp_path, "x = 1\n", saves) == set()


def test_the_accelerators_methods_by_other_names(tmp_path: Path) -> None:
    (tmp_path / "accelerate.yaml").write_text(_YAML)
    body = (
        "from accelerate import Accelerator\n\n\ndef run(model, opt):\n    accelerator = Accelerator()\n"
        "    unwrap = accelerator.unwrap_model\n    prepare = accelerator.prepare\n"
        "    model, opt = prepare(model, opt)\n    net = unwrap(model)\n    net.save_pretrained('a')\n"
    )
    assert codes(tmp_path, "x = 1\n", body) == {"FM333"}
    other = body.replace("accelerator.unwrap_model", "helper").replace("accelerator.prepare", "helper")
    assert codes(tmp_path, "x = 1\n", other) == set()
    (tmp_path / "accelerate.yaml").write_text("distributed_type: MULTI_GPU\n")
    assert codes(tmp_path, "x = 1\n", body) == set()


@pytest.mark.parametrize(
    ("before", "prepares", "is_one"),
    [
        ("things = [model, opt]\n", "model, opt = accelerator.prepare(*things)\n", True),
        ("", "model, opt = accelerator.prepare(*things())\n", True),
        ("", "model, *rest = accelerator.prepare(*things())\n", True),
        ("", "model, opt = accelerator.prepare(*(net, opt))\n", True),
        ("", "model, x = accelerator.prepare(*(loader, opt))\n", False),
        ("", "*rest, model = accelerator.prepare(*things())\n", False),
        ("", "model, opt = helper.prepare(*things())\n", False),
    ],
)
def test_what_a_list_is_prepared_as_may_be_sharded(
    tmp_path: Path, before: str, prepares: str, *, is_one: bool
) -> None:
    (tmp_path / "accelerate.yaml").write_text(_YAML)
    start = "from accelerate import Accelerator\naccelerator = Accelerator()\n"
    saves = f"{start}{before}{prepares}torch.save(model.state_dict(), 'a.pt')\n"
    assert ("FM333" in codes(tmp_path, "x = 1\n", saves)) is is_one
    saving = "from train import model\nmodel.save_pretrained('a')\n"
    (tmp_path / "save.py").write_text(saving)
    others = {use.code for use in scan_paths([tmp_path]).uses if use.path.endswith("save.py")}
    assert ("FM333" in others) is is_one
    (tmp_path / "accelerate.yaml").write_text("distributed_type: MULTI_GPU\n")
    assert codes(tmp_path, "x = 1\n", saves) == set()


def test_the_norm_in_a_format_where_a_config_alone_asks(tmp_path: Path) -> None:
    (tmp_path / "accelerate.yaml").write_text(_YAML)
    body = (
        "from accelerate import Accelerator\naccelerator = Accelerator()\n"
        "model, opt = accelerator.prepare(model, opt)\n"
        "norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)\nprint(f'{norm:.3f}')\n"
    )
    assert codes(tmp_path, "x = 1\n", body) == {"FM423"}
    assert codes(tmp_path, "x = 1\n", body.replace("{norm:", "{norm.item():")) == set()
    (tmp_path / "accelerate.yaml").write_text("distributed_type: MULTI_GPU\n")
    assert codes(tmp_path, "x = 1\n", body) == set()


def test_a_pipe_without_a_suffix_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for ever
    (tmp_path / "accelerate.conf").mkdir()
    body = "from accelerate import Accelerator\naccelerator = Accelerator()\n"
    body += "model, opt = accelerator.prepare(model, opt)\nmodel.state_dict()\n"
    assert codes(tmp_path, "x = 1\n", body) == set()
    assert not is_accelerates(tmp_path / "pipe")
    (tmp_path / "fsdp.conf").write_text(_YAML)
    assert codes(tmp_path, "x = 1\n", body) == {"FM333"}


_FABRIC = (
    "from lightning.fabric import Fabric\nfrom engine import save\n\n\n"
    "def main(args, net, cfg):\n    fabric = Fabric({}, devices=2)\n    model = fabric.setup_module(net)\n"
    "    save(fabric, model)\n"
)
_ENGINE = "import torch\n\n\ndef save(fabric, model):\n    torch.save(model.state_dict(), 'a.pt')\n"


@pytest.mark.parametrize(
    ("given", "name", "text", "is_asked"),
    [
        ("strategy=args.strategy", "args.py", "add('--strategy', choices=['ddp', 'fsdp'])\n", True),
        ("strategy=cfg.strategy", "cfg.py", "class Config:\n    strategy: str = 'fsdp'\n", True),
        ("**cfg.fabric", "cfg.yaml", "fabric:\n  strategy: fsdp\n", True),
        ("strategy=args.strategy", "run.sh", "python main.py --strategy=fsdp\n", True),
        ("strategy=args.strategy", "args.py", "add('--strategy', choices=['ddp', 'auto'])\n", False),
        ("**cfg.fabric", "cfg.yaml", "fabric:\n  strategy: ddp\n", False),
        ("strategy=None", "cfg.yaml", "fabric:\n  strategy: fsdp\n", False),
        ("strategy='ddp'", "args.py", "add('--strategy', choices=['ddp', 'fsdp'])\n", False),
    ],
)
def test_a_fabric_that_is_handed_its_strategy(
    tmp_path: Path, given: str, name: str, text: str, *, is_asked: bool
) -> None:
    for file, code in {"main.py": _FABRIC.format(given), "engine.py": _ENGINE, name: text}.items():
        (tmp_path / file).write_text(code)
    found = {use.code for use in scan_paths([tmp_path]).uses if use.path.endswith("engine.py")}
    assert ("FM333" in found) is is_asked


@pytest.mark.parametrize(
    ("test", "makes", "is_told"),
    [
        ("args.using_fsdp", "accelerator.prepare_model(model)", True),
        ("args.peft and use_fsdp", "self.accelerator.prepare(model)", True),
        ("not args.using_fsdp", "accelerator.prepare_model(model)", False),
        ("args.using_fsdp", "accelerator.print(model)", False),
        ("args.using_ddp", "accelerator.prepare_model(model)", False),
    ],
)
def test_a_trainer_beside_an_accelerator_that_prepares_by_a_switch(
    test: str, makes: str, *, is_told: bool, tmp_path: Path
) -> None:
    """What the Trainer's model was asked for had nothing: it stops the run at the first save."""
    blank = "        \n" * 15  # each was taken for a line of code as well: a scan did not end
    (tmp_path / "train.py").write_text(
        "from accelerate import Accelerator\nfrom transformers import Trainer, TrainingArguments\n\n\n"
        "def get(args, model):\n"
        f"    accelerator = Accelerator()\n    if {test}:\n        # It is large.\n"
        f"{blank}        model = {makes}\n"
        "    return model\n\n\ndef main(args, net):\n    model = get(args, net)\n"
        "    trainer = Trainer(model=model, args=TrainingArguments('out'))\n    trainer.train()\n"
        "    trainer.model.save_pretrained('out')\n"
    )
    uses = scan_paths([tmp_path]).uses
    assert bool([use for use in uses if use.code == "FM333" and "save_pretrained" in use.text]) is is_told
