"""Models that one file of a project makes, and others are given: followed over the files, nothing run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from fsdp_migrate.source.following import _Following, links_of
from tests.source.projects import CLIPPED, FSDP, LOOP, WRAP, after
from tests.source.samples import ONE_TURNED


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    "other",
    [
        {"ddp.py": "import torch\nfrom saving import save\nsave(torch.nn.DataParallel(net))\n"},
        {
            "wrap.py": "from torch.nn.parallel import DistributedDataParallel\ndef both(net):\n"
            "    net = DistributedDataParallel(net)\n    return net\n",
            "ddp.py": "from saving import save\nfrom wrap import both\nsave(both(net))\n",
        },
        {
            "engine.py": "import deepspeed\nfrom saving import save\n"
            "engine, *_ = deepspeed.initialize(model=net)\nsave(engine)\n"
        },
        {
            "engine.py": "import deepspeed\nfrom saving import save\n"
            "def run(net):\n    save(deepspeed.initialize(model=net)[0])\n"
        },
        {"engine.py": "import apex.parallel as p\nfrom saving import save\nsave(p.DataParallel(net))\n"},
    ],
)
def test_a_file_without_fsdp_gives_the_same_function_ddps_model(
    tmp_path: Path, other: dict[str, str]
) -> None:
    saving = "import torch\ndef save(model):\n    torch.save(model.module.state_dict(), 'a.pt')\n"
    files = {
        "saving.py": saving,
        "main.py": f"{FSDP}from saving import save\nmodel = FSDP(net)\nsave(model)\n",
    }
    assert "(get_model_state_dict(model, " in after(tmp_path / "alone", files, "saving.py")
    found = after(tmp_path / "both", {**files, **other}, "saving.py")
    assert "    torch.save(model.module.state_dict(), 'a.pt')\n" in found
    assert "# fsdp-migrate: FM333 this may be a model in another wrapper (DistributedDataParallel, " in found


@pytest.mark.parametrize(
    "caller",
    [
        "from loop import train\nfrom dist import wrap\nmodel = wrap(net)\ntrain(model)\n",
        "import loop, dist\nmodel = dist.wrap(net)\nloop.train(model=model)\n",
        "from loop import *\nfrom dist import *\ntrain(wrap(net))\n",
        (
            f"import functools\nfrom loop import train\n{FSDP}make = functools.partial(FSDP, device_id=0)\n"
            f"train(make(net))\n{ONE_TURNED}"
        ),
        (
            f"from loop import train\n{FSDP}class Own(FSDP):\n    pass\nmodel = Own(net).to(0)\n"
            f"train(model)\n{ONE_TURNED}"
        ),
        (
            f"from loop import train\n{FSDP}class DataParallel(FSDP):\n    pass\ntrain(DataParallel(net))\n"
            f"{ONE_TURNED}"
        ),
        (
            "from loop import train\nfrom dist import wrap\ndef build(net):\n    return 1, wrap(net)\n"
            "number, model = build(net)\ntrain(model)\n"
        ),
        (
            "from loop import train\nfrom dist import wrap\nclass Box:\n    def __init__(self, net):\n"
            "        self.net = wrap(net)\nbox = Box(net)\ntrain(box.net)\n"
        ),
    ],
)
def test_a_function_that_another_file_gives_a_model(tmp_path: Path, caller: str) -> None:
    files = {"dist.py": WRAP, "loop.py": LOOP, "main.py": caller}
    assert CLIPPED in after(tmp_path, files, "loop.py")


def test_attributes_of_an_object_and_of_a_base_class(tmp_path: Path) -> None:
    files = {
        "dist.py": WRAP,
        "base.py": "from dist import wrap\nclass Base:\n    def __init__(self, net):\n"
        "        self.actor = wrap(net)\n    def make(self, net):\n        return wrap(net)\n",
        "own.py": "from base import Base\nclass Own(Base):\n    def fit(self, net):\n"
        "        self.actor.clip_grad_norm_(1.0)\n        critic = self.make(net)\n"
        "        critic.clip_grad_norm_(2.0)\n",
        "runner.py": "from base import Base\nclass Runner:\n    def __init__(self, net):\n"
        "        self.base = Base(net)\n    def step(self):\n        self.base.actor.clip_grad_norm_(3.0)\n",
        "methods.py": "class Loop:\n    def run(self, model):\n        model.clip_grad_norm_(4.0)\n",
        "main.py": "from methods import Loop\nfrom dist import wrap\nloop = Loop()\nloop.run(wrap(net))\n",
    }
    own = after(tmp_path, files, "own.py")
    assert "clip_grad_norm_(self.actor, 1.0)" in own
    assert "clip_grad_norm_(critic, 2.0)" in own
    assert "clip_grad_norm_(self.base.actor, 3.0)" in (tmp_path / "runner.py").read_text()
    assert "clip_grad_norm_(model, 4.0)" in (tmp_path / "methods.py").read_text()


def test_norms_and_collectives_in_another_file_are_said(tmp_path: Path) -> None:
    norms = (
        "import torch\nimport torch.distributed as dist\n\n\ndef norm(model):\n    total = 0\n"
        "    for p in model.parameters():\n        total += p.grad.norm() ** 2\n"
        "        dist.all_reduce(p.grad)\n    return total\n"
    )
    for name, text in {
        "norms.py": norms,
        "main.py": f"{FSDP}from norms import norm\nmodel = FSDP(net)\nnorm(model)\n",
    }.items():
        (tmp_path / name).write_text(text)
    found = [use for use in scan_paths([tmp_path]).uses if use.path.endswith("norms.py")]
    assert [(use.code, use.line) for use in found] == [("FM423", 8), ("FM423", 9)]


def test_what_is_given_before_it_is_wrapped_is_a_plain_model(tmp_path: Path) -> None:
    files = {
        "dist.py": WRAP,
        "start.py": "def load(model, state):\n    model.load_state_dict(state)\n",
        "main.py": "from start import load\nfrom dist import wrap\n\n\ndef main(net, state):\n"
        "    net = net.to(0)\n    load(net, state)\n    net = wrap(net)\n    return net\n",
    }
    assert after(tmp_path, files, "start.py") == files["start.py"]


def test_a_model_of_a_class_of_the_project_is_plain_until_it_is_wrapped(tmp_path: Path) -> None:
    files = {
        "net.py": "class Net:\n    pass\n",
        "base.py": "class Base:\n    def load(self, m):\n        m.load_state_dict({})\n        return m\n",
        "main.py": f"{FSDP}from base import Base\nfrom net import Net\nclass Own(Base):\n"
        "    def setup(self):\n        model = Net()\n        model = self.load(model)\n"
        "        model = FSDP(model)\n        return model\n",
    }
    assert after(tmp_path, files, "base.py") == files["base.py"]


def test_an_object_that_holds_a_model_is_followed(tmp_path: Path) -> None:
    files = {
        "nets.py": f"{FSDP}class Nets:\n    def __init__(self, net):\n        self.net = FSDP(net)\n",
        "loop.py": "def train(nets, steps):\n    nets.net.clip_grad_norm_(1.0)\n",
        "main.py": "from nets import Nets\nfrom loop import train\ntrain(Nets(net), 3)\n",
    }
    assert "clip_grad_norm_(nets.net, 1.0)" in after(tmp_path, files, "loop.py")


def test_where_it_may_be_ddps_it_is_left_with_a_comment(tmp_path: Path) -> None:
    files = {
        "loop.py": LOOP.replace("model.clip_grad_norm_(1.0)", "state = model.state_dict()"),
        "main.py": f"{FSDP}from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "from loop import train\nif sharded:\n    model = FSDP(net)\nelse:\n    model = DDP(net)\n"
        "train(model)\n",
    }
    text = after(tmp_path, files, "loop.py")
    assert "# fsdp-migrate: FM333" in text
    assert "state = model.state_dict()" in text


@pytest.mark.parametrize(
    "main",
    [
        "FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)\nsave(model)\n",
        "with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):\n    save(model)\n",
    ],
)
def test_state_dict_types_of_another_file_are_not_taken_for_the_default(tmp_path: Path, main: str) -> None:
    files = {
        "store.py": "def save(model):\n    return model.state_dict()\n",
        "main.py": f"{FSDP}from torch.distributed.fsdp import StateDictType\nfrom store import save\n"
        f"model = FSDP(net)\n{main}",
    }
    text = after(tmp_path, files, "store.py")
    assert "return model.state_dict()" in text
    assert "# fsdp-migrate: FM308" in text


@pytest.mark.parametrize(
    ("main", "said"),
    [
        (
            "FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)\n",
            "get_model_state_dict(model)",
        ),
        ("FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)\n", "full_state_dict(model).get("),
        ("FSDP.set_state_dict_type(model, kind)\n", "decided by contexts or types"),
        (
            "FSDP.set_state_dict_type(model, kind)\n",
            "where none of these runs, StateDictOptions(full_state_dict=True)",
        ),
        (
            "FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT if x else SHARDED_STATE_DICT)\n",
            "decided by contexts or types",
        ),
    ],
)
def test_the_one_type_that_another_file_sets_is_named(tmp_path: Path, main: str, said: str) -> None:
    files = {
        "store.py": "def save(model):\n    return model.state_dict()\n",
        "load.py": "def load(model, state):\n    model.load_state_dict(state)\n",
        "main.py": f"{FSDP}from torch.distributed.fsdp import StateDictType\nfrom store import save\n"
        f"from load import load\nmodel = FSDP(net)\n{main}save(model)\nload(model, state)\n",
    }
    loads = {
        "get_model_state_dict(model)": "set_model_state_dict(model, STATE)",
        "full_state_dict(model).get(": "load_model_state_dict(model, STATE)",
    }
    assert said in after(tmp_path, files, "store.py")
    assert loads.get(said, said) in (tmp_path / "load.py").read_text()
    # FSDP1's default: a model that the other file does not set it of.
    is_told = (
        "gave a full state: for that one take full_state_dict(model)" in (tmp_path / "store.py").read_text()
    )
    assert is_told is (said == "get_model_state_dict(model)")


def test_a_function_of_another_file_that_returns_the_wrapper(tmp_path: Path) -> None:
    files = {
        "dist.py": f"import functools\n{FSDP}\ndef wrapper():\n    made = functools.partial(FSDP, rank=0)\n"
        f"    return made\n{ONE_TURNED}",
        "main.py": "from dist import wrapper\nmodel = wrapper()(net)\nmodel.clip_grad_norm_(1.0)\n",
    }
    assert CLIPPED in after(tmp_path, files, "main.py")


def test_an_object_in_an_attribute_is_given_a_model(tmp_path: Path) -> None:
    files = {
        "dist.py": WRAP,
        "copies.py": "class Copies:\n    def update(self, model):\n        model.clip_grad_norm_(1.0)\n",
        "main.py": "from dist import wrap\nfrom copies import Copies\nclass Trainer:\n"
        "    def __init__(self, net):\n        self.model = wrap(net)\n        self.copies = Copies()\n"
        "    def step(self):\n        self.copies.update(self.model)\n",
    }
    assert CLIPPED in after(tmp_path, files, "copies.py")


def test_an_attribute_that_a_class_may_make_itself_is_not_certain(tmp_path: Path) -> None:
    files = {
        "pipe.py": "class Pipe:\n    def __init__(self, net=None):\n"
        "        self.net = Plain() if net is None else net\n",
        "train.py": f"{FSDP}from pipe import Pipe\npipe = Pipe(net=FSDP(net))\n",
        "infer.py": "from pipe import Pipe\npipe = Pipe()\npipe.net.load_state_dict(state)\n",
    }
    text = after(tmp_path, files, "infer.py")
    assert "pipe.net.load_state_dict(state)\n" in text


def test_an_attribute_that_another_file_sets_on_an_object(tmp_path: Path) -> None:
    files = {
        "loop.py": "class Loop:\n    def __init__(self, net):\n        self.model = net\n"
        "    def step(self):\n        self.model.clip_grad_norm_(1.0)\n",
        "main.py": f"{FSDP}from loop import Loop\n\n\ndef main(net):\n    loop = Loop(net)\n"
        "    loop.model = FSDP(loop.model)\n    loop.step()\n",
    }
    assert "clip_grad_norm_(self.model, 1.0)" in after(tmp_path, files, "loop.py")


@pytest.mark.parametrize("call", ["super().__init__(model, 1)", "super(Own, self).__init__(model, 1)"])
def test_what_a_class_gives_to_the_one_it_derives_from(tmp_path: Path, call: str) -> None:
    files = {
        "base.py": "class Base:\n    def __init__(self, net, count):\n        self.net = net\n"
        "        self.kind = self.net.module.kind\n",
        "own.py": f"{FSDP}from base import Base\n\n\nclass Own(Base):\n    def __init__(self, model):\n"
        f"        model = FSDP(model)\n        {call}\n",
    }
    assert "self.kind = self.net.kind" in after(tmp_path, files, "base.py")


def test_an_object_that_a_function_returns_and_that_holds_a_model(tmp_path: Path) -> None:
    files = {
        "kinds.py": "from dataclasses import dataclass\n\n\n@dataclass\nclass Context:\n    model: object\n"
        "    step: int = 0\n",
        "start.py": f"{FSDP}from typing import cast\nfrom kinds import Context\n\n\ndef start(net):\n"
        "    model = cast('Net', FSDP(net))\n    return Context(model=model)\n",
        "main.py": "from start import start\n\n\ndef main(net):\n    held = start(net)\n"
        "    held.model.clip_grad_norm_(1.0)\n",
    }
    assert "clip_grad_norm_(held.model, 1.0)" in after(tmp_path, files, "main.py")


@pytest.mark.parametrize("name", ["decayed", "other"])
def test_a_method_of_the_models_class_in_another_file(tmp_path: Path, name: str) -> None:
    net = (
        "class Net:\n    def decayed(self):\n        return [p for p in self.parameters() if p.dim() >= 2]\n"
    )
    files = {"net.py": net, "main.py": f"{FSDP}from net import Net\nmodel = FSDP(Net())\nmodel.{name}()\n"}
    assert ("FM318" in after(tmp_path, files, "net.py")) is (name == "decayed")


def test_what_the_wrapper_holds_is_the_model_itself(tmp_path: Path) -> None:
    files = {
        "dist.py": WRAP,
        "misc.py": "import torch\ndef load(bare, optimizer, path):\n    state = torch.load(path)\n"
        "    bare.load_state_dict(state['model'])\n    optimizer.load_state_dict(state['optimizer'])\n",
        "main.py": "from misc import load\nfrom dist import wrap\nmodel = wrap(net)\nbare = model.module\n"
        "load(bare, optimizer, path)\n",
    }
    misc = after(tmp_path, files, "misc.py")
    assert "load_model_state_dict(bare, state['model'])" in misc
    assert misc.count("# fsdp-migrate: FM425") == 1


def test_an_object_that_is_called_is_given_parameters(tmp_path: Path) -> None:
    files = {
        "dist.py": WRAP,
        "misc.py": "import torch\nclass Scaler:\n    def __call__(self, loss, parameters=None):\n"
        "        return norm_of(parameters)\ndef norm_of(parameters):\n"
        "    return torch.stack([torch.norm(p.grad) for p in parameters])\n",
        "main.py": "from misc import Scaler\nfrom dist import wrap\nmodel = wrap(net)\nscaler = Scaler()\n"
        "scaler(loss, parameters=model.parameters())\n",
        "kept.py": "from misc import Scaler\nclass Trainer:\n    def __init__(self):\n"
        "        self.scaler = Scaler()\n    def step(self, loss):\n        self.scaler(loss)\n",
    }
    assert "# fsdp-migrate: FM423" in after(tmp_path, files, "misc.py")


@pytest.mark.parametrize(
    ("net", "is_own"),
    [
        ("class Net(nn.Module):\n    def wrap(self):\n        self.clip_grad_norm_ = clip_parts\n", True),
        ("class Net(nn.Module):\n    def clip_grad_norm_(self, most):\n        pass\n", True),
        ("class Loop:\n    def clip_grad_norm_(self, model, most):\n        pass\n", False),
    ],
)
def test_a_models_own_clipping_stays(tmp_path: Path, net: str, *, is_own: bool) -> None:
    files = {
        "dist.py": WRAP,
        "net.py": f"from torch import nn\n{net}",
        "loop.py": LOOP,
        "main.py": "from loop import train\nfrom dist import wrap\ntrain(wrap(net))\n",
    }
    loop = after(tmp_path, files, "loop.py")
    assert ("# fsdp-migrate: FM311 a model's class" in loop) is is_own
    assert (CLIPPED in loop) is not is_own


def test_a_model_of_fsdp2_that_a_function_of_both_gives_back(tmp_path: Path) -> None:
    clip = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    files = {
        "dist.py": WRAP,
        "load.py": "def load(model, path):\n    read(model, path)\n    return model, 1\n",
        "old.py": "from load import load\nfrom dist import wrap\nmodel, step = load(wrap(net), path)\n",
        "new.py": "import torch\nfrom torch.distributed.fsdp import fully_shard\nfrom load import load\n"
        f"def train(model):\n    {clip}def main(model):\n    fully_shard(model)\n"
        "    model, step = load(model, path)\n    train(model)\n",
    }
    assert f"    {clip}" in after(tmp_path, files, "new.py")


@pytest.mark.parametrize(
    "made", ["FSDP(net, process_group=group)", "partial(FSDP, process_group=group)(net)"]
)
def test_a_process_group_that_another_file_gives(tmp_path: Path, made: str) -> None:
    files = {
        "dist.py": f"from functools import partial\n{FSDP}def wrap(net, group):\n    return {made}\n"
        f"{ONE_TURNED}",
        "save.py": "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType\n"
        "from torch.distributed.fsdp import FullStateDictConfig\ndef save(model):\n"
        "    with FSDP.state_dict_type(\n        model, StateDictType.FULL_STATE_DICT, "
        "FullStateDictConfig(True, True)\n    ):\n        return model.state_dict()\n",
    }
    assert "full_state_dict(model).get(" in after(tmp_path, files, "save.py")


def test_a_model_that_is_handed_on_through_many_files(tmp_path: Path) -> None:
    # Each file is read before the one that it gets its model from.
    files = {"a12.py": WRAP.replace("def wrap", "def wrap_12")}
    for number in range(12):
        last, own = f"a{number + 1:02}", f"wrap_{number + 1}"
        files[f"a{number:02}.py"] = f"from {last} import {own}\ndef wrap_{number}(m):\n    return {own}(m)\n"
    files["main.py"] = "from a00 import wrap_0\nmodel = wrap_0(net)\nmodel.clip_grad_norm_(1.0)\n"
    assert "clip_grad_norm_(model, 1.0)" in after(tmp_path, files, "main.py")


def test_what_nothing_new_is_known_of_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "dist.py": WRAP,
        "box.py": "class Box:\n    def __init__(self, model):\n        self.model = model\n"
        "    def get(self):\n        return self.model\n",
        "base.py": "from box import Box\nfrom dist import wrap\nclass Base:\n    def setup(self, net):\n"
        "        self.boxes = [Box(wrap(net))]\n",
        "aim.py": "from base import Base\nclass Aim(Base):\n    def fit(self):\n"
        "        for box in self.boxes:\n            box.get().clip_grad_norm_(1.0)\n"
        "            train(box.model)\ndef train(net):\n    inner = net\n    inner.clip_grad_norm_(2.0)\n",
    }
    for name, text in files.items():
        # All are gone through from the start, the users before the makers.
        (tmp_path / name).write_text(f"{text}# FullyShardedDataParallel\n")
    paths = sorted(tmp_path.iterdir())
    links = links_of(paths)
    assert {path.name for path in links} == {"aim.py", "base.py", "box.py", "dist.py"}

    def all_again(self: _Following, key: object) -> None:
        self._news.update(scope for scopes in self._scopes.values() for scope in scopes)

    monkeypatch.setattr(_Following, "_found_more", all_again)
    assert links_of(paths) == links


def test_a_branch_for_a_wrapper_of_the_projects_own_is_left_alone(tmp_path: Path) -> None:
    branch = "    if isinstance(model, ManualFSDP):\n        model.load_state_dict(state)\n"
    train = (
        f"{FSDP}from own import ManualFSDP\nmodel = FSDP(net)\n\n\ndef load(model, state, optimizer):\n"
        f"{branch}        optimizer.load_state_dict(state)\n"
        "    else:\n        FSDP.set_state_dict_type(model, kind)\n"
        "\n\nload(model, state, optimizer)\n"
    )
    own = "import torch\n\n\nclass ManualFSDP(torch.nn.Module):\n    pass\n"
    assert branch in after(tmp_path, {"own.py": own, "train.py": train}, "train.py")
    derived = f"{FSDP}\n\nclass ManualFSDP(FSDP):\n    pass\n"
    assert branch not in after(tmp_path, {"own.py": derived, "train.py": train}, "train.py")


def test_a_method_that_the_files_own_model_has_is_no_other_files(tmp_path: Path) -> None:
    net = (
        "class Net:\n    def decayed(self):\n        return [p for p in self.parameters() if p.dim() >= 2]\n"
    )
    files = {"other.py": net, "main.py": f"{FSDP}{net}model = FSDP(Net())\nmodel.decayed()\n"}
    assert after(tmp_path, files, "other.py") == net
    assert "FM318" in (tmp_path / "main.py").read_text()


def test_a_base_class_sees_what_a_class_below_shards(tmp_path: Path) -> None:
    files = {
        "dist.py": WRAP,
        "misc.py": "def digest(model):\n    return [p.data.cpu().numpy() for p in model.parameters()]\n",
        "base.py": "from misc import digest\nclass Base:\n    def log(self):\n        digest(self.model)\n"
        "    def save(self):\n        return self.model.state_dict()\n",
        "plain.py": "from base import Base\nclass Plain(Base):\n    def keep(self):\n"
        "        return self.model.state_dict()\n",
        "main.py": "from base import Base\nfrom dist import wrap\nclass Solver(Base):\n"
        "    def build(self, net):\n        self.model = wrap(net)\n",
    }
    assert "# fsdp-migrate: FM423" in after(tmp_path, files, "misc.py")
    assert "# fsdp-migrate: FM333" in (tmp_path / "base.py").read_text()
    assert (tmp_path / "plain.py").read_text() == files["plain.py"]


OTHERWISE = "if self.mesh is None:\n            {}\n        else:\n            return super().save()"


@pytest.mark.parametrize(
    ("own", "is_run"),
    [
        ("return 1", False),
        ("return super().save()", True),
        # Where FSDP1's own method is called, its model does not go on to the class above.
        (OTHERWISE.format("return self.model.clip_grad_norm_(1.0)"), False),
        (OTHERWISE.format("self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)"), True),
        (OTHERWISE.format("return 1"), True),
    ],
)
def test_a_method_that_the_class_below_has_too_is_not_run_with_it(
    tmp_path: Path, own: str, *, is_run: bool
) -> None:
    files = {
        "dist.py": WRAP,
        "main.py": "from dist import wrap\nclass Base:\n    def save(self):\n"
        "        return self.model.state_dict()\n"
        "class Solver(Base):\n    def build(self, net):\n        self.model = wrap(net)\n"
        f"    def save(self):\n        {own}\n",
    }
    assert ("# fsdp-migrate: FM333" in after(tmp_path, files, "main.py")) is is_run


def test_a_base_class_that_is_given_a_model_is_as_sure_as_before(tmp_path: Path) -> None:
    files = {
        "dist.py": WRAP,
        "base.py": "class Base:\n    def __init__(self, model):\n        self.model = model\n"
        "    def save(self):\n        return self.model.state_dict()\n",
        "main.py": "from base import Base\nfrom dist import wrap\nclass Solver(Base):\n"
        "    def again(self, net):\n        self.model = wrap(net)\nBase(wrap(net)).save()\n",
    }
    assert "return get_model_state_dict(" in after(tmp_path, files, "base.py")


def test_no_shard_is_known_over_files(tmp_path: Path) -> None:
    files = {
        "main.py": (
            f"{FSDP}from torch.distributed.fsdp import ShardingStrategy\nfrom infer import run\n"
            "run(FSDP(net, sharding_strategy=ShardingStrategy.NO_SHARD))\n"
        ),
        "infer.py": "def run(model):\n    return model.encode_image(x)\n",
    }
    assert "(model, 'encode_image')" in after(tmp_path, files, "infer.py")


def test_what_is_set_on_one_object_need_not_be_on_another(tmp_path: Path) -> None:
    files = {
        "pipe.py": (
            "class Pipe:\n    def __init__(self, net):\n        self.net = net\n\n\n"
            "def merge(pipe, path):\n    pipe.scale = path\n    return pipe\n"
        ),
        "ui.py": (
            f"{FSDP}from pipe import Pipe, merge\n\n\nclass Ui:\n    def load(self, net):\n"
            "        self.pipe = Pipe(net)\n        self.pipe.net = FSDP(self.pipe.net)\n\n"
            "    def merge(self, path):\n        self.pipe = merge(self.pipe, path)\n"
        ),
        "node.py": (
            "import torch\nfrom pipe import Pipe, merge\n\n\n"
            "def load(net):\n    return {'pipe': Pipe(net)}\n\n\n"
            "def keep(held, path):\n    pipe = held['pipe']\n    torch.save(pipe.net.state_dict(), 'x.pt')\n"
            "    pipe = merge(pipe, path)\n\n\nkeep(load(make()), 'p')\n"
        ),
    }
    found = after(tmp_path, files, "node.py")
    assert "torch.save(pipe.net.state_dict(), 'x.pt')" in found


@pytest.mark.parametrize(
    "lines",
    [
        ["x = Path(x).stem"],
        ["y = Path(x).stem", "x = Path(y).stem"],
        ["x = list(map(Path, y))[0].stem", "y = x if x else Path(x).name"],
        ["x = Holder(y).x", "y = Holder(x).y", "y.run(x)"],
    ],
)
def test_names_that_are_made_of_themselves_in_a_loop_have_an_end(tmp_path: Path, lines: list[str]) -> None:
    (tmp_path / "a.py").write_text(f"{FSDP}def f(net):\n    return FSDP(net)\n")
    body = "".join(f"            {line}\n" for line in lines)
    loop = f"def f(names, y, out):\n    for x in names:\n        try:\n{body}            out.joinpath(x, y)\n"
    (tmp_path / "b.py").write_text(f"{loop}        except Exception:\n            pass\n")
    report = scan_paths([tmp_path])
    assert [(file.path, file.problem) for file in report.files] == [(str(tmp_path / "a.py"), None)]


UNWRAPS = [
    "return getattr(model, 'module', model)",
    "return model.module if hasattr(model, 'module') else model",
    "if isinstance(model, DDP):\n        return model.module\n    return model",
    "while hasattr(model, 'module'):\n        model = model.module\n    return model",
    "model = model.eval()\n    return model",
]


@pytest.mark.parametrize("unwraps", UNWRAPS)
@pytest.mark.parametrize("is_apart", [True, False])
def test_what_takes_a_wrapper_off_gives_what_it_is_given(
    tmp_path: Path, unwraps: str, *, is_apart: bool
) -> None:
    ddp = "from torch.nn.parallel import DistributedDataParallel as DDP\n"
    bare = f"{ddp}def bare(model):\n    {unwraps}\n"
    saves = (
        f"{'from lib import bare' if is_apart else bare}\nimport torch\n{ddp}{FSDP}"
        "a, b = FSDP(net), DDP(other)\ntorch.save(bare(a).state_dict(), 'a.pt')\n"
        "torch.save(bare(b).state_dict(), 'b.pt')\n"
    )
    found = after(tmp_path, {"lib.py": bare, "main.py": saves}, "main.py")
    assert "torch.save(get_model_state_dict(bare(a), options" in found
    assert "FM333" not in found
    assert "torch.save(bare(b).state_dict(), 'b.pt')\n" in found


@pytest.mark.parametrize(("unwraps", "is_said"), [(UNWRAPS[0], True), ("return model", False)])
def test_what_is_not_known_may_be_sharded_where_a_wrapper_is_taken_off(
    tmp_path: Path, unwraps: str, *, is_said: bool
) -> None:
    files = {
        "lib.py": f"def bare(model):\n    {unwraps}\n",
        "run.py": f"from lib import bare\n{FSDP}bare(FSDP(net))\n",
        "main.py": "import torch\nfrom lib import bare\ndef save(net):\n    return bare(net).state_dict()\n",
    }
    found = after(tmp_path, files, "main.py")
    assert ("state_dict(bare(net), " in found or "FM333" in found) is is_said


@pytest.mark.parametrize("unwraps", ["return FSDP(model)", "return model or FSDP(net)"])
def test_what_gives_something_else_is_not_taken_for_it(tmp_path: Path, unwraps: str) -> None:
    text = (
        f"import torch\n{FSDP}def bare(model):\n    {unwraps}\nbare(FSDP(net))\n"
        "torch.save(bare(plain).state_dict(), 'b.pt')\n"
    )
    found = after(tmp_path, {"main.py": text}, "main.py")
    assert "state_dict(bare(plain), " in found or "FM333" in found
