"""Models of the project that rank 0 cannot load for all under Accelerate's FSDP2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source.loaded_by_rank_0 import find_not_loaded


if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.any_torch


MODELS = """\
class Part(nn.Module):
    def __init__(self):
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("steps", torch.zeros(1), persistent=False)
class Critic(nn.Module):
    def __init__(self):
        self.inp = nn.utils.spectral_norm(nn.Linear(8, 8))
        self.pos = nn.Parameter(torch.zeros(1, 4, 8))
        self.part = Part()
class Normed(nn.Module):
    def __init__(self):
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
class Tower(nn.Module):
    def __init__(self):
        self.normed = Normed()
class Plain(nn.Module):
    def __init__(self):
        self.part = Part()
        self.inp = nn.Linear(8, 8)
class Language(PreTrainedModel):
    def __init__(self):
        self.pos = nn.Parameter(torch.zeros(8))
class Small(Critic):
    pass
class Registered(nn.Module):
    def __init__(self):
        self.register_parameter("table", make())
"""
ON = "distributed_type: FSDP\nfsdp_config:\n  fsdp_cpu_ram_efficient_loading: true\n"


def found(folder: Path, body: str, settings: str = ON, name: str = "fsdp.yaml") -> list[str]:
    (folder / "models.py").write_text(MODELS)
    (folder / "train.py").write_text(body)
    (folder / name).write_text(settings)
    return [each.rpartition("train.py:")[2] for each in find_not_loaded([folder]).stops]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("Critic", "spectral_norm's buffers"),
        ("Small", "`pos`"),
        ("Tower", "BatchNorm1d's buffers"),
        ("Registered", "`table`"),
        ("Plain", ""),
        ("Language", ""),
        ("Unknown", ""),
    ],
)
def test_what_a_model_of_the_project_holds_is_seen(tmp_path: Path, model: str, said: str) -> None:
    direct = f"critic, opt = self.accelerator.prepare(models.{model}(8), AdamW(p))\n"
    named = f"self.critic = {model}(8).to(device)\nx, opt = accelerator.prepare(self.critic, opt)\n"
    for body, line in ((direct, 1), (named, 2)):
        every = found(tmp_path, body)
        assert len(every) == bool(said)
        assert all(each.startswith(f"{line}: {model} has ") and said in each for each in every)


def test_of_a_model_in_a_source_of_a_newer_python_too(tmp_path: Path) -> None:
    newer = "type Path = str\nmodel = accelerator.prepare(Own(8))\nclass Own(nn.Module):\n"
    newer += "    def __init__(self):\n        self.pos = nn.Parameter(x)\n"
    assert found(tmp_path, newer)


BRANCHES = """\
def build(config):
    if config.critic:
        model = Critic(8)
    else:
        model = {other}(8)
    return model
{prepare}
"""
PREPARE = "model, opt = accelerator.prepare(model, opt)"
TWO = f"def a():\n    model = {{}}()\ndef b():\n    model = {{}}()\n    {PREPARE}\n"
UNSEEN = (
    f"def a():\n    model = Critic(8)\n    return model.eval()\ndef b(c):\n    model = {{}}\n    {PREPARE}\n"
)
BUILD = "def build(c):\n    return Critic(c) if c else Plain()\n"
GIVES = f"{BUILD}def main(c):\n    model = build(c)\n    {PREPARE}\n"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (BRANCHES.format(other="Plain", prepare=PREPARE), ["Critic"]),
        (BRANCHES.format(other="Tower", prepare=PREPARE), ["Critic", "Tower"]),
        # Another function's model of that name is another model.
        (TWO.format("Critic", "Plain"), []),
        (TWO.format("Plain", "Critic"), ["Critic"]),
        (TWO.format("Plain", "Critic").replace("model = Critic", "model: nn.Module = Critic"), ["Critic"]),
        (UNSEEN.format("load(c)"), []),
        (UNSEEN.format("AutoModel.from_pretrained(c)"), []),
        # Moved, wrapped or handed over, it may be that one.
        (UNSEEN.format("model.to(0)"), ["Critic"]),
        (UNSEEN.format("wrap(model)"), ["Critic"]),
        (GIVES, ["Critic"]),
        (f"{BUILD}{PREPARE.replace('(model', '(build(c)')}\n", ["Critic"]),
        (GIVES.replace("Critic", "Language"), []),
    ],
)
def test_each_class_that_a_name_may_be_of(tmp_path: Path, body: str, named: list[str]) -> None:
    assert [each.split()[1] for each in found(tmp_path, body)] == named


PARTS = """\
class Model(nn.Module):
    part_class = Part
    def __init__(self):
        self.part = self.part_class()
class Deeper(Model):
    part_class = {}
model, opt = accelerator.prepare(Deeper(), opt)
"""


@pytest.mark.parametrize(("part", "is_said"), [("Normed", True), ("models.Normed", True), ("Plain", False)])
def test_a_part_whose_class_is_an_attribute(tmp_path: Path, part: str, *, is_said: bool) -> None:
    assert bool(found(tmp_path, PARTS.format(part))) is is_said


@pytest.mark.parametrize(
    ("settings", "name", "is_said"),
    [
        ("distributed_type: FSDP\nfsdp_config: {}\n", "fsdp.yaml", True),
        ("distributed_type: FSDP\nfsdp_config: {cpu_ram_efficient_loading: 'false'}\n", "fsdp.yaml", False),
        ("accelerate launch --use_fsdp train.py\n", "run.sh", True),
        ("accelerate launch --use_fsdp --fsdp_cpu_ram_efficient_loading false train.py\n", "run.sh", False),
        ("output_dir: o\nfsdp: full_shard\nfsdp_config: {min_num_params: 1}\n", "hf.yaml", False),
        ('{"fsdp_config": {"cpu_ram_efficient_loading": "true"}}', "hf.json", True),
        ("distributed_type: MULTI_GPU\n", "ddp.yaml", False),
    ],
)
def test_the_settings_decide(tmp_path: Path, settings: str, name: str, *, is_said: bool) -> None:
    assert bool(found(tmp_path, "accelerator.prepare(Critic(), opt)\n", settings, name)) is is_said


def test_a_model_that_another_file_makes_is_known_by_its_name(tmp_path: Path) -> None:
    body = "class Run:\n    def __init__(self, critic):\n        self.critic = critic\n"
    body += "        self.accelerator.prepare(self.critic, self.critic_optimizer)\n"
    (tmp_path / "main.py").write_text("from models import Critic\ntrainer = make(critic=Critic(8))\n")
    assert len(found(tmp_path, body)) == 1
    (tmp_path / "main.py").write_text("from models import Critic\ntrainer = make(model=Critic(8))\n")
    assert not found(tmp_path, body.replace("critic", "model"))
    (tmp_path / "main.py").write_text("from models import Critic\ntrainer = make(critic=Critic(8))\n")
    assert len(found(tmp_path, body)) == 1
    (tmp_path / "other.py").write_text("critic = Plain()\n")
    assert not found(tmp_path, body)


LOOP = """\
class Trainer:
    def __init__(self, data, model, avg=None):
        self.net = model.to(device)
        self.net, self.opt = accelerator.prepare(self.net, AdamW(model.parameters()))
def start(model, data):
    return accelerator.prepare(model, data)
"""
HEIR = "class Own(Trainer):\n    pass\n"
MAKER = "class Own(Trainer):\n    def __init__(self, model):\n        super().__init__(None, model)\n"
MAIN = "from train import Trainer, start\n"


@pytest.mark.parametrize(
    ("calls", "named"),
    [
        ("def main(d):\n    model = Denoiser()\n    Trainer(d, model).train()\n", ["4: Denoiser"]),
        ("Trainer(model=Denoiser(), data=d)\n", ["4: Denoiser"]),
        ("start(Denoiser(), d)\n", ["6: Denoiser"]),
        # From function to function, and through the classes below.
        ("def run(m):\n    Trainer(d, m)\nrun(Denoiser())\n", ["4: Denoiser"]),
        (f"{HEIR}Own(d, Denoiser())\n", ["4: Denoiser"]),
        (f"{MAKER}Own(Denoiser())\n", ["4: Denoiser"]),
        ("def build(c):\n    return Denoiser() if c else Plain()\nTrainer(d, build(c))\n", ["4: Denoiser"]),
        # What is given elsewhere, is not seen, or holds nothing.
        ("Trainer(Denoiser(), m)\n", []),
        ("Trainer(d, m, Denoiser())\n", []),
        ("Trainer(*Denoiser())\n", []),
        ("Trainer(d, Plain())\nOther(d, Denoiser())\n", []),
        (f"{HEIR.replace('Trainer', 'Other')}Own(d, Denoiser())\n", []),
        ("def run(m):\n    Trainer(d, m)\nrun(Plain())\ndef other():\n    m = Denoiser()\n", []),
    ],
)
def test_a_model_that_a_call_of_another_file_gives(tmp_path: Path, calls: str, named: list[str]) -> None:
    (tmp_path / "main.py").write_text(f"from models import *\n{MAIN}{calls}")
    denoiser = MODELS.replace("Tower", "Denoiser")
    (tmp_path / "more.py").write_text(
        denoiser[denoiser.index("class Normed") : denoiser.index("class Plain")]
    )
    assert [each.partition(" has ")[0] for each in found(tmp_path, LOOP)] == named


def test_no_model_that_goes_to_another_file_s_function_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("def start(model, data):\n    ...\nstart(Critic(8), d)\n")
    assert not found(tmp_path, LOOP)
    (tmp_path / "main.py").write_text(f"{MAIN}start(Critic(8), d)\n")
    assert len(found(tmp_path, LOOP)) == 1


def test_very_large_files_are_not_read(tmp_path: Path) -> None:
    body = "accelerator.prepare(Critic(), opt)\n"
    assert found(tmp_path, body, f"{ON}#{' ' * 900_000}")
    assert not found(tmp_path, body, f"{ON}#{' ' * 1_000_000}")


TIED = """\
class Net(nn.Module):
    def __init__(self):
        self.tok, self.head = nn.Embedding(8, 8), nn.Linear(8, 8)
        {}
    {}
model, opt = accelerator.prepare(Net(), opt)
"""
TIE = "self.head.weight = self.tok.weight"
METHOD = "def tie_weights(self): ..."


@pytest.mark.parametrize(
    ("body", "tied"),
    [
        (TIED.format(TIE, ""), ["`self.head.weight`"]),
        (TIED.format("w = self.tok.weight; self.head.weight = w", ""), ["`self.head.weight`"]),
        (TIED.format("setattr(self.head, 'weight', self.tok.weight)", ""), ["`self.head.weight`"]),
        (TIED.format("self.head.weight = self.tok.weight = p", ""), ["`self.tok.weight`"]),
        (TIED.format(TIE, "") + f"class Own(nn.Module):\n    {METHOD}\n", ["`self.head.weight`"]),
        (TIED.format("self.part = Tying()", "") + TIED.format(TIE, "").replace("Net", "Tying"), None),
        (TIED.format(TIE, METHOD), []),
        (TIED.format(TIE, "").replace("nn.Module", "LlamaPreTrainedModel"), []),
        (TIED.format(TIE, "").replace("nn.Module", "Own") + f"class Own:\n    {METHOD}\n", []),
        (TIED.format("self.head.weight = nn.Parameter(self.tok.weight.clone())", ""), []),
        (TIED.format("self.head.weight = other.weight; self.bias = self.args.bias", ""), []),
        (TIED.format("self.loss_weight = self.weight", ""), []),
    ],
)
def test_ties_that_a_model_has_no_method_for(tmp_path: Path, body: str, tied: list[str] | None) -> None:
    (tmp_path / "fsdp.yaml").write_text(ON)
    (tmp_path / "train.py").write_text(body)
    torn = [each.rpartition(" ties ")[2] for each in find_not_loaded([tmp_path]).torn]
    assert torn == (["`self.head.weight`"] * 2 if tied is None else tied)
    (tmp_path / "fsdp.yaml").write_text(ON.replace("true", "false"))
    assert not find_not_loaded([tmp_path]).torn


def test_the_plugin_in_a_source_decides_too(tmp_path: Path) -> None:
    plugin = "p = FullyShardedDataParallelPlugin(cpu_ram_efficient_loading={})\n"
    for value, is_said in (("True", True), ("False", False)):
        (tmp_path / "train.py").write_text(plugin.format(value) + TIED.format(TIE, ""))
        assert bool(find_not_loaded([tmp_path]).torn) is is_said
