"""Models that a project shows to be plain are not to be looked at; where it is in doubt they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP, WRAP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

HEAD = "import torch\nfrom copy import deepcopy\nfrom nets import Net, Plain\n\n\n"
TRAIN = (
    "from tools import *\nfrom wrap import wrap\nimport other\n\n\ndef train(net):\n    return wrap(net)\n"
)
SAVE = "def save(model):\n    return model.state_dict()\n"
PIPE = (
    "from torch import nn\nclass Pipe{base}:\n    def __init__(self, path, net=None):\n"
    "        self.generator = Net(path)\n"
    "    def run(self):\n        return self.generator\n\n"
    "def load(pipe):\n    pipe.generator.load_state_dict(1)\n"
)
MAKES = "from tools import Pipe, load\npipe = Pipe(1)\n{}load(pipe)\n"
HELD = (
    "class Saver:\n    def __init__(self, model):\n        self.model = model\n"
    "    def save(self):\n        return self.model.state_dict()\n"
)
FILLED = (
    "def listed(whole):\n    found = []\n    for p in whole.parameters():\n        found.append(p)\n"
    "    return found\n"
    "class Clip:\n    def __init__(self, params):\n        self.params = params\n"
    "    def step(self):\n        torch.nn.utils.clip_grad_norm_(self.params, 1.0)\n"
)


def named(folder: Path, tools: str, other: str = "") -> list[str]:
    """Return what is to be looked at in the tools of a project that shards a model."""
    (folder / "wrap.py").write_text(WRAP)
    (folder / "train.py").write_text(TRAIN)
    (folder / "tools.py").write_text(f"{HEAD}{tools}")
    (folder / "other.py").write_text(f"{HEAD}{other}")
    return [use.text for use in scan_paths([folder]).uses if use.code == "FM450"]


@pytest.mark.parametrize(
    ("other", "is_named"),
    [
        ("", False),  # nobody calls it
        ("from tools import save\nsave(Net())\n", False),
        # The name of a model in a setting is no model.
        (
            (
                "from tools import save\ndef get(name):\n    return Plain.from_pretrained(name)\n"
                "def run(args):\n    save(get(name=args.base_model))\n"
            ),
            False,
        ),
        ("import tools\nnet = Net()\nnet = net.to('cuda').eval()\ntools.save(model=net)\n", False),
        (
            "from tools import save\ndef run(x):\n    save(load(x)[0])\ndef load(x):\n    return Net(x), 1\n",
            True,
        ),
        (
            (
                "from tools import save\ndef run(x):\n    net, _ = load(x)\n    save(net)\n"
                "def load(x):\n    return Net(x), 1\n"
            ),
            False,
        ),
        ("from tools import save\nnet, _ = lib.prepare(Net())\nsave(net)\n", True),
        ("from tools import save\nsave(lib.registry.build(1))\n", False),
        ("from tools import save\nsave(trainer.build(1))\n", True),
        ("from tools import save\nfrom accelerate import shard\nsave(shard(Net()))\n", True),
        ("from tools import save\ndef run(net):\n    save(net)\nrun(Net())\n", False),
        ("from tools import save\ndef run(net):\n    save(net)\nrun(Net())\nrun(lib.net)\n", True),
        ("from tools import save\nsave(Net() if x else lib.net)\n", True),
        ("from tools import save\nsave(deepcopy(lib.model))\n", True),
        ("from tools import save\nsave(*things)\n", True),
        ("from tools import save\nhand_over(save)\n", True),
        ("from tools import save as keep\nkeep(lib.net)\n", True),
        ("import tools\ngetattr(tools, 'save')(lib.net)\n", True),
        ("from tools import save\nfor net in lib.nets:\n    save(net)\n", True),
        ("from tools import save\nnet = Net()\nwith lib.make() as net:\n    save(net)\n", True),
        ("from tools import save\nnet = Net()\nfor x in y:\n    save(net)\n    net = lib.wrap(net)\n", True),
        ("from tools import save\n@lib.register\ndef run(net):\n    save(net)\n", True),
        (
            "from tools import save\nclass Hook(lib.Callback):\n    def end(self, net):\n        save(net)\n",
            True,
        ),
        ("from tools import save\nsave((lib.Wrapper if x else Plain)(net, 1))\n", True),
        ("from tools import save\nglobal net\nsave(net)\n", True),
    ],
)
def test_what_calls_give(tmp_path: Path, other: str, *, is_named: bool) -> None:
    assert bool(named(tmp_path, SAVE, other)) is is_named


@pytest.mark.parametrize(("name", "is_named"), [("model", True), ("other", False)])
def test_a_name_of_a_comprehension_is_another(tmp_path: Path, name: str, *, is_named: bool) -> None:
    does = f"def run(models):\n    other = 1\n    return [{name}.state_dict() for model in models]\n"
    assert bool(named(tmp_path, does, "from tools import run\nrun(lib.models)\n")) is is_named


def test_a_function_that_is_not_called_beside_what_shards_is_named(tmp_path: Path) -> None:
    """A file that shards is a place to look for a trainer's helpers, whoever imports them."""
    assert named(tmp_path, f"{FSDP}\ndef wrap_it(x):\n    return FSDP(x)\n\n{SAVE}")


@pytest.mark.parametrize(
    ("base", "before", "is_named"),
    [
        ("", "", False),
        ("(nn.Module)", "", False),
        ("", "pipe.generator = lib.shard(pipe.generator)\n", True),
        ("", "pipe.generator, o = lib.shard(pipe.generator)\n", True),
        ("", "setattr(pipe, 'generator', lib.shard(1))\n", True),
        ("", "class Other(Pipe):\n    pass\n", True),
        ("(lib.Strategy)", "", True),
    ],
)
def test_parts_of_objects_that_are_made_in_sight(
    tmp_path: Path, base: str, before: str, *, is_named: bool
) -> None:
    assert bool(named(tmp_path, PIPE.format(base=base), MAKES.format(before))) is is_named


@pytest.mark.parametrize(
    ("other", "is_named"),
    [
        ("from tools import Saver\nSaver(Net()).save()\n", False),
        ("from tools import Saver\nSaver(lib.net).save()\n", True),
        ("from tools import Saver\nlib.register(Saver)\nSaver(Net())\n", True),
        ("from tools import Saver\nclass Mine(Saver):\n    pass\nMine(lib.net)\nSaver(Net())\n", True),
        ("", True),  # nothing shows what its objects are made of
    ],
)
def test_what_constructors_are_given(tmp_path: Path, other: str, *, is_named: bool) -> None:
    assert bool(named(tmp_path, HELD, other)) is is_named


@pytest.mark.parametrize(
    ("other", "is_named"),
    [
        ("from tools import Clip\nnet = Net()\nClip(list(net.parameters()))\n", False),
        ("from tools import Clip, listed\nClip(listed(lib.net))\n", True),
        ("from tools import Clip\nClip([p for p in lib.net.parameters() if p.requires_grad])\n", True),
    ],
)
def test_lists_of_parameters(tmp_path: Path, other: str, *, is_named: bool) -> None:
    assert bool(named(tmp_path, FILLED, other)) is is_named


@pytest.mark.parametrize(("words", "is_named"), [("", False), ("# beside FSDP\n", True)])
def test_megatrons_models_are_its_own(tmp_path: Path, words: str, *, is_named: bool) -> None:
    tools = f"from megatron.core import mpu\n{words}{SAVE}"
    assert bool(named(tmp_path, tools, "from tools import save\nsave(lib.net)\n")) is is_named


RESUMES = (
    f"{FSDP}from torch.distributed.fsdp import FullStateDictConfig as Full, StateDictType\n"
    "def resume(model, state):\n"
    "    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT, Full())\n"
    "    model.load_state_dict(state)\n"
    "def save(model):\n"
    "    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT, Full(rank0_only=True))\n"
    "    return model.state_dict()\n"
    "def infer(model, state):\n    model.load_state_dict(state)\n"
)


@pytest.mark.parametrize(("given", "is_said"), [("Net().eval()", False), ("lib.net", True)])
def test_a_namesake_that_every_call_gives_a_plain_model(tmp_path: Path, given: str, *, is_said: bool) -> None:
    named(tmp_path, RESUMES, f"from tools import infer\nnet = {given}\ninfer(net, 1)\n")
    assert ("FM333" in {use.code for use in scan_paths([tmp_path]).uses}) is is_said


SWITCH = (
    f"{FSDP}import torch.distributed as dist\nfrom nets import Net\n\n"
    "def save(model, path):\n    torch.save(model.state_dict(), path)\n\n"
    "def train(args, data):\n    model = Net.from_pretrained(args.path)\n{set}\n"
    "    if {on}:\n        model = FSDP(model)\n    else:\n        model = model.to(0)\n{more}"
    "    for x in data:\n        if {on}:\n            keep(model)\n"
    "        else:\n            save(model, args.out)\n\n"
    "if __name__ == '__main__':\n    args = parse()\n    train(args, 1)\n"
)


@pytest.mark.parametrize(
    ("values", "is_named"),
    [
        ({}, False),
        ({"set": "    on = args.on", "on": "on"}, False),
        ({"set": "", "on": "args.on"}, False),
        ({"set": "    on = args.on", "on": "not on"}, False),
        # It may be another switch, or come out otherwise there.
        ({"more": "    use_it = other()\n"}, True),
        ({"more": "    if args.late:\n        use_it = False\n"}, True),
        ({"set": "    use_it = 1\n    def turn():\n        nonlocal use_it\n        use_it = 0"}, True),
        ({"on": "asked()"}, True),
        # It is sharded by what is no branch of the switch.
        ({"more": "    model = FSDP(model)\n"}, True),
        ({"more": "    if args.late:\n        model = FSDP(model)\n"}, True),
        ({"more": "    shard = lambda m: FSDP(m)\n    model = shard(model)\n"}, True),
        # The function is given another model, too.
        ({"more": "    save(FSDP(Net()), 1)\n"}, True),
        ({"more": "    args.run(save)\n"}, True),
        ({"more": "    if use_it:\n        save(model, 1)\n"}, True),
    ],
)
def test_the_else_of_a_switch_that_decides_on_the_wrapping(
    tmp_path: Path, values: dict[str, str], *, is_named: bool
) -> None:
    known = {"set": "    use_it = dist.get_world_size() > 1", "on": "use_it", "more": "", **values}
    (tmp_path / "train.py").write_text(f"import torch\n{SWITCH.format(**known)}")
    found = [use for use in scan_paths([tmp_path]).uses if use.code in {"FM450", "FM308"}]
    assert bool(found) is is_named


FABRIC = (
    "from tools import save\nimport lightning as L\n\n\ndef run():\n    fabric = L.Fabric({})\n"
    "    net, optimizer = fabric.setup(Net(), torch.optim.AdamW(Net().parameters()))\n    save(net)\n"
)


@pytest.mark.parametrize(
    ("given", "is_named"),
    [
        ("devices=1, precision='bf16-true'", False),
        ("devices=n, strategy='ddp'", False),
        ("devices=n, strategy=DeepSpeedStrategy(config=c)", False),
        ("devices=n, strategy=(DeepSpeedStrategy(config=c) if n > 1 else 'auto')", False),
        ("devices=n", True),
        ("devices=n, strategy=strategy", True),
        ("devices=n, strategy=ModelParallelStrategy()", True),
        ("**given", True),
    ],
)
def test_a_fabric_that_is_asked_for_no_fsdp(tmp_path: Path, given: str, *, is_named: bool) -> None:
    assert bool(named(tmp_path, SAVE, FABRIC.format(given))) is is_named
