"""The optimizer's own state dict, saved beside a sharded model's state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_source, scan_paths, scan_source
from tests.source.projects import after
from tests.source.samples import codes, turned


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    "body",
    [
        "m = FSDP(net)\ntorch.save({'model': m.state_dict(), 'optim': optimizer.state_dict()}, path)\n",
        "def save(m: FSDP, opt):\n    return m.state_dict(), opt.state_dict()\n",
    ],
)
def test_it_is_said(body: str) -> None:
    assert ("FM425", "commented") in codes(body)


@pytest.mark.parametrize(
    "body",
    [
        "m = net\nx = m.state_dict(), optimizer.state_dict()\n",
        "m = FSDP(net)\nx = m.state_dict(), scheduler.state_dict()\n",
        "if a:\n    m = FSDP(net)\n    x = m.state_dict()\nelse:\n    x = optimizer.state_dict()\n",
    ],
)
def test_others_are_not(body: str) -> None:
    assert "FM425" not in {code for code, _ in codes(body)}


@pytest.mark.parametrize(
    ("path", "is_of_a_rank"),
    [
        ('f"optimizer.{rank:05d}.pth"', True),
        ("os.path.join(folder, str(dist.get_rank()))", True),
        ('f"{folder}/{self.local_rank}.pt"', True),
        ('"optimizer.pt"', False),
        ('f"rank0-{step}.pt"', False),
    ],
)
@pytest.mark.parametrize(
    "body", ["optimizer.load_state_dict(torch.load({}))\n", "s = torch.load({})\nopt.load_state_dict(s)\n"]
)
def test_files_of_ranks_that_are_loaded_are_said(body: str, path: str, is_of_a_rank: bool) -> None:
    found = codes(f"model = FSDP(net)\n{body.format(path)}")
    assert (("FM425", "commented") in found) is is_of_a_rank


RANKS_SAVE = """\
def save(path, extra):
    m = FSDP(net)
    {}
"""
IN_PLACE = 'torch.save({"m": m.state_dict(), "opt": optimizer.state_dict()}, FILE)'
BY_NAME_ = (
    'file = FILE\n    s = {"m": m.state_dict(), "opt": optimizer.state_dict()}\n    torch.save(s, f=file)'
)


@pytest.mark.parametrize("how", [IN_PLACE, BY_NAME_])
@pytest.mark.parametrize(
    ("file", "is_of_a_rank"), [('f"extra_{rank}.pt"', True), ('"last.pt"', False), ('f"rank0-{n}.pt"', False)]
)
def test_each_rank_that_saves_is_told_to_take_the_whole(how: str, file: str, is_of_a_rank: bool) -> None:
    """Without rank0_only=False the files of the other ranks hold {}, and none can be resumed from."""
    said = comments(RANKS_SAVE.format(how.replace("FILE", file)))
    assert ("full_optimizer_state_dict(model, optimizer, rank0_only=False)" in said) is is_of_a_rank
    assert ("asked for on every rank" in said) is not is_of_a_rank


@pytest.mark.parametrize(
    ("model", "is_apart"),
    [
        ('m.load_state_dict(blob["model"])\n', False),
        ('m.load_state_dict(torch.load("model.pt"))\n', True),
        ("dcp.load(m.state_dict(), checkpoint_id=folder)\n", True),
    ],
)
def test_what_of_ranks_files_can_be_joined_is_said(model: str, is_apart: bool) -> None:
    """No file of the model beside: load_checkpoint finds no optimizer there, and raises."""
    load = 'blob = torch.load(f"extra_{rank}.pt")\noptimizer.load_state_dict(blob["opt"])\n'
    said = comments(f"m = FSDP(net)\n{load}{model}")
    assert ("let the old script load it once" in said) is is_apart
    assert "load_checkpoint(FOLDER, model, optimizer)" in said
    # One file of the model beside those of the ranks is enough, as `inspect` says of the folder.
    assert ("or in one beside them, as `fsdp-migrate inspect FOLDER` says" in said) is is_apart


def comments(body: str) -> str:
    return " ".join(line.strip("# ") for line in turned(body).splitlines() if line.lstrip().startswith("#"))


def test_the_optimizers_own_state_need_not_be_given() -> None:
    given = "optim_state_dict=self.opt.state_dict()"
    body = (
        f"def f(self, model: FSDP):\n    return FSDP.optim_state_dict(model=model, optim=self.opt, {given})\n"
    )
    assert "return full_optimizer_state_dict(model, self.opt, rank0_only=False)\n" in turned(body)
    assert [code for code, action in codes(body) if action == "commented"] == []


def test_another_state_is_left_to_a_person() -> None:
    body = "def f(model: FSDP, opt, state):\n    return FSDP.optim_state_dict(model, opt, state)\n"
    assert ("FM309", "commented") in codes(body)


@pytest.mark.parametrize(
    ("path", "is_of_a_rank"),
    [
        ('f"optimizer.{shard:02d}-of-{total:02d}.pt"', True),
        ('os.path.join(folder, f"optimizer_{rank}.pt")', True),
        ('"optimizer.pt"', False),
    ],
)
def test_a_path_in_a_variable(path: str, is_of_a_rank: bool) -> None:
    body = f"def load(optim):\n    path = {path}\n    optim.load_state_dict(torch.load(path))\n"
    assert (("FM425", "commented") in codes(body)) is is_of_a_rank


def test_beside_a_model_that_may_be_ddps() -> None:
    body = (
        "model = FSDP(net) if sharded else torch.nn.parallel.DistributedDataParallel(net)\n"
        "state = {'model': model.state_dict(), 'optimizer': optim.state_dict()}\n"
    )
    assert ("FM425", "commented") in codes(body)


MADE = "model = FSDP(net)\noptimizer = torch.optim.AdamW(model.parameters())\n"


@pytest.mark.parametrize(
    ("loaded", "is_said"),
    [
        ("state = torch.load(path)\noptimizer.load_state_dict(state['optimizer'])\n", True),
        ("optimizer.load_state_dict(torch.load(path))\n", True),
        (
            (
                "state = FSDP.optim_state_dict_to_load(model, optimizer, torch.load(path))\n"
                "optimizer.load_state_dict(state)\n"
            ),
            False,
        ),
        (
            (
                "state = torch.load(path)\n"
                "state = FSDP.optim_state_dict_to_load(model, optimizer, state)\n"
                "optimizer.load_state_dict(state)\n"
            ),
            False,
        ),
        ("optimizer.load_state_dict(state)\n", False),
    ],
)
def test_what_an_optimizer_of_a_sharded_model_saved_by_itself(loaded: str, is_said: bool) -> None:
    assert (("FM425", "commented") in codes(MADE + loaded)) is is_said


IN_METHODS = """\
class Loop:
    def __init__(self, net):
        self.net = FSDP(net)
        {calls}

    def make(self):
        {made}

    def keep(self):
        torch.save(self.optimizer.state_dict(), path)

    def load(self):
        self.optimizer.load_state_dict(torch.load(path))
"""
BY_NAME = "[{'params': [p for n, p in NET.named_parameters() if 'bias' in n], 'weight_decay': 0.0}]"


@pytest.mark.parametrize("net", ["self.net", "other"])
@pytest.mark.parametrize(
    ("calls", "made"),
    [
        ("self.optimizer = self.make()", "return torch.optim.AdamW(NET.parameters())"),
        (
            "self.optimizer = self.make()",
            "opt = torch.optim.AdamW(NET.parameters())\n        return opt",
        ),
        ("self.make()", "self.optimizer = torch.optim.AdamW(NET.parameters())"),
        ("self.make()", f"groups = {BY_NAME}\n        self.optimizer = torch.optim.AdamW(groups)"),
        ("self.make()", f"self.optimizer = torch.optim.AdamW({BY_NAME})"),
    ],
)
def test_an_optimizer_that_a_method_makes(calls: str, made: str, net: str) -> None:
    body = IN_METHODS.format(calls=calls, made=made.replace("NET", net))
    assert codes(body).count(("FM425", "commented")) == (2 if net == "self.net" else 0)


def test_what_an_optimizer_loads_before_its_model_is_sharded() -> None:
    body = "optimizer = torch.optim.AdamW(net.parameters())\noptimizer.load_state_dict(torch.load(path))\n"
    assert "FM425" not in {code for code, _ in codes(f"{body}net = FSDP(net)\n")}


@pytest.mark.parametrize(("loaded", "is_said"), [("self.optimizer", True), ("self.other_optimizer", False)])
def test_what_a_class_saved_of_an_optimizer_and_loads(loaded: str, is_said: bool) -> None:
    body = (
        "class Loop:\n    def save(self, m: FSDP):\n"
        "        torch.save({'m': m.state_dict(), 'optim': self.optimizer.state_dict()}, 'x.pt')\n"
        "    def load(self):\n        state = torch.load('x.pt')\n"
        f"        {loaded}.load_state_dict(state['optim'])\n"
    )
    assert (codes(body).count(("FM425", "commented")) == 2) is is_said


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("torch.save(optimizer.state_dict(), path)\n", True),
        ("torch.save({'optim': optimizer.state_dict()}, path)\n", True),
        ("print(optimizer.state_dict())\n", False),
        ("torch.save(scheduler.state_dict(), path)\n", False),
    ],
)
def test_what_is_saved_of_an_optimizer_alone(body: str, is_said: bool) -> None:
    assert (("FM425", "commented") in codes(MADE + body)) is is_said


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("    state = held['optimizer'].state_dict()\n    torch.save({'optim': state}, path)\n", True),
        ("    state = {'optim': opt.state_dict()}\n    torch.save(state, path)\n", True),
        ("    state['optim'] = opt.state_dict()\n    torch.save(state, path)\n", True),
        ("    torch.save(opt.state_dict(), path)\n", True),
        ("    state = {'optim': opt.state_dict()}\n    print(state)\n", False),
        ("    state = torch.load(path)\n    held['optimizer'].load_state_dict(state['optim'])\n", True),
        ("    if not use_fsdp:\n        torch.save(opt.state_dict(), path)\n", False),
        ("    x = FSDP.optim_state_dict(m, opt)\n    torch.save(opt.state_dict(), path)\n", False),
    ],
)
@pytest.mark.parametrize(("model", "is_sharded"), [("m: FSDP", True), ("m", False)])
def test_an_optimizer_that_a_function_is_given(
    body: str, is_said: bool, model: str, is_sharded: bool
) -> None:
    found = codes(f"def run({model}, m2):\n    pass\ndef save(held, opt, path):\n{body}")
    assert (("FM425", "commented") in found) is (is_said and is_sharded)


def test_a_state_beside_that_of_what_the_wrapper_holds() -> None:
    body = (
        "def train(model, optimizer):\n"
        "    torch.save({'m': model.module.state_dict(), 'o': optimizer.state_dict()}, path)\n"
        "model = FSDP(net)\ntrain(model, optimizer)\n"
    )
    assert ("FM425", "commented") in codes(body)


@pytest.mark.parametrize(
    ("state", "is_said"),
    [
        ("checkpoint['optimizer']", True),
        ("to_device(checkpoint['optim'], model)", True),
        ("FSDP.optim_state_dict_to_load(model, optimizer, checkpoint['optim'])", False),
        ("states[0]", False),
    ],
)
def test_an_item_of_a_checkpoint_by_its_name(state: str, *, is_said: bool) -> None:
    body = f"def load(model: FSDP, optimizer, checkpoint):\n    optimizer.load_state_dict({state})\n"
    assert (("FM425", "commented") in codes(body)) is is_said


@pytest.mark.parametrize(
    ("model", "is_said"), [("model", True), ("plain.net", False), ("scheduler", False), ("vocabulary", False)]
)
def test_a_state_of_a_model_that_the_same_dict_holds(model: str, *, is_said: bool) -> None:
    saved = f"{{'model': {model}.state_dict(), 'optimizer': optimizer.state_dict()}}"
    body = (
        "def save(model, plain, scheduler, vocabulary, optimizer, path):\n"
        f"    torch.save({saved}, path)\n\n\nsharded = FSDP(net)\n"
    )
    found = codes(body)
    assert ("FM425", "commented") in found
    assert (("FM333", "commented") in found) is is_said


def test_what_is_made_of_a_model_and_an_optimizer_is_none() -> None:
    body = "model = FSDP(net)\noptim = {}\ntorch.save((model.state_dict(), optim.state_dict()), 'x')\n"
    assert "FM425" in dict(codes(body.format("Adam(model.parameters())")))
    assert "FM425" not in dict(codes(body.format("Adapter(model, inner_optim)")))


def test_the_state_of_an_optimizer_is_said_where_it_is_saved_as_well() -> None:
    body = (
        "class T:\n"
        "    def make(self, net):\n"
        "        self.model = FSDP(net)\n"
        "        self.optim = torch.optim.AdamW(self.model.parameters())\n"
        "    def save(self):\n        self.keep(to_cpu(self.optim.state_dict()))\n"
        "    def load(self, state):\n        self.optim.load_state_dict(state['optimizer'])\n"
    )
    assert [each for each in codes(body) if each[0] == "FM425"] == [("FM425", "commented")] * 2


@pytest.mark.parametrize(
    ("loop", "is_said"),
    [
        ("for key, obj in self.checkpointables.items():\n            data[key] = obj.state_dict()\n", True),
        ("for key in self.names:\n            data[key] = self.more[key].state_dict()\n", False),
        (
            (
                "for key, obj in self.checkpointables.items():\n            if key == 'optimizer':\n"
                "                data[key] = FSDP.optim_state_dict(self.model, obj)\n"
                "            else:\n                data[key] = obj.state_dict()\n"
            ),
            False,
        ),
    ],
)
def test_an_optimizer_among_what_a_checkpointer_was_given(loop: str, is_said: bool) -> None:
    body = (
        "class Ours(Checkpointer):\n    def save(self, name):\n        data = {{}}\n"
        "        {}data['model'] = self.model.state_dict()\n        {}"
    )
    context = "with FSDP.state_dict_type(self.model, StateDictType.FULL_STATE_DICT):\n            "
    assert (("FM425", "commented") in codes(body.format(context, loop))) is is_said
    assert ("FM425", "commented") not in codes(body.format("", loop))


def test_what_was_rewritten_gets_no_comment_the_next_time() -> None:
    body = (
        "import torch\n"
        "def save(m: FSDP, opt):\n"
        "    with FSDP.state_dict_type(m, StateDictType.LOCAL_STATE_DICT):\n"
        "        torch.save(m.state_dict(), 'a')\n"
        "    torch.save(opt.state_dict(), 'b')\n"
        "def load(m: FSDP, opt, state):\n"
        "    opt.load_state_dict(FSDP.optim_state_dict_to_load(m, opt, state['optim']))\n"
    )
    # `turned` rewrites twice, and compares.
    assert "    opt.load_state_dict(optim_state_dict_to_load(m, opt, state['optim']))" in turned(body)


@pytest.mark.parametrize("guard", ["self._is_fsdp_wrapped()", "self.is_fsdp"])
@pytest.mark.parametrize(
    ("saved", "is_said"),
    [
        ("for k, obj in self.checkpointables.items():\n            d[k] = obj.state_dict()", True),
        ("d['optim'] = self.optimizer.state_dict()", True),
        ("if not GUARD:\n            d['optim'] = self.optimizer.state_dict()", False),
    ],
)
def test_a_guard_that_says_fsdp_by_its_name_alone(guard: str, saved: str, is_said: bool) -> None:
    """What FSDP1's functions decide on in one branch may be sharded, and so is what is saved beside it."""
    body = (
        "class Saver:\n    def save(self):\n        d = dict()\n        if GUARD:\n"
        f"            TOLD\n        {saved}\n        torch.save(d, path)\n"
    )
    told = (
        (
            "with FSDP.state_dict_type(self.model, StateDictType.FULL_STATE_DICT):\n"
            "                d['model'] = self.model.state_dict()"
        ),
        (
            "FSDP.set_state_dict_type(self.model, StateDictType.FULL_STATE_DICT)\n"
            "            d['model'] = self.model.state_dict()"
        ),
    )
    for each in told:
        found = codes(body.replace("TOLD", each).replace("GUARD", guard))
        assert (("FM425", "commented") in found) is is_said, each


SWITCHED = """\
import os, torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, FullStateDictConfig, StateDictType
if ranks > 1:
    distributed = True
else:
    distributed = False
if distributed:
    model = FSDP(model, use_orig_params=True)
optimizer = torch.optim.AdamW(model.parameters())
if os.path.exists(path):
    state = torch.load(path)
    if {test}:
        model.load_state_dict(state["model"])
    else:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
if distributed:
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        torch.save(model.state_dict(), path)
else:
    torch.save({{"model": model.state_dict(), "optimizer": optimizer.state_dict()}}, path)
"""


def test_where_the_switch_is_off_the_optimizer_is_that_of_a_plain_model() -> None:
    after = rewrite_source(SWITCHED.format(test="distributed"))
    assert "FM425" not in after
    assert after.count("load_model_state_dict(") == 1
    assert 'torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)' in after
    other = rewrite_source(SWITCHED.format(test="other"))
    assert other.count("FM425") == 2
    assert other.count("load_model_state_dict(") == 2


OWN = """import torch

class Own(torch.optim.SGD):
    def state_dict(self):
        {}
"""
SAVES = """from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from own import Own

def train(net, rank):
    model = FSDP(net, use_orig_params=True)
    opt = Own(model.parameters(), lr=0.1)
    opt.load_state_dict(torch.load(f"opt_rank{rank}.pt"))
    torch.save(opt.state_dict(), f"opt_rank{rank}.pt")
    save(model, opt)
"""
GIVEN = """import torch

def save(model, optimizer):
    torch.save([model.state_dict(), optimizer.state_dict()], "all.pt")
"""


@pytest.mark.parametrize(
    ("body", "adds"),
    [
        ("return {**super().state_dict(), 'codes': self.codes}", True),
        ("return super().state_dict()", False),
    ],
)
def test_what_a_class_adds_to_its_state_is_said(tmp_path: Path, body: str, adds: bool) -> None:
    files = {
        "own.py": OWN.format(body),
        "train.py": f"import torch\nfrom saves import save\n{SAVES}",
        "saves.py": GIVEN,
    }
    text = after(tmp_path, files, "train.py")
    assert text.count("# fsdp-migrate: FM425 ") == 2
    assert text.count("`Own` has a state_dict of its own") == (2 if adds else 0)
    assert ("Where this is `Own`" in (tmp_path / "saves.py").read_text()) is adds


def test_an_optimizer_of_another_class_is_not_said_to_add(tmp_path: Path) -> None:
    files = {
        "own.py": OWN.format("return {'codes': self.codes}"),
        "train.py": f"import torch\n{SAVES.replace('opt = Own', 'other = Own')}".replace(
            "    opt.load", "    opt = torch.optim.AdamW(model.parameters())\n    opt.load"
        ),
    }
    text = after(tmp_path, files, "train.py")
    assert text.count("# fsdp-migrate: FM425 ") == 2
    assert "has a state_dict of its own" not in text


_SIDE = """\
def main(net, resume, settings):
    side = {0}
    model = {1}
    opt = torch.optim.AdamW({2})
    {3}
    checkpoint = torch.load(resume)
    opt.load_state_dict(checkpoint["opt"])
    torch.save({{"model": model.state_dict(), "opt": opt.state_dict()}}, "x.pt")
"""


@pytest.mark.parametrize(
    ("side", "model", "given", "more", "is_said"),
    [
        ("torch.nn.Linear(4, 4).to(0)", "FSDP(net)", "side.parameters()", "log(side)", False),
        ("Side(4)", "FSDP(net)", "list(side.parameters())", "side.head.copy_(x)", False),
        ("Side(4)", "FSDP(net)", "model.parameters()", "log(side)", True),
        ("Side(4)", "FSDP(Pair(net, side))", "side.parameters()", "pass", True),
        ("Side(4)", "FSDP(side)", "side.parameters()", "pass", True),
        ("Side(net)", "FSDP(net)", "side.parameters()", "pass", True),
        ("Side(4)", "FSDP(net)", "side.parameters()", "side = FSDP(side)", True),
        ("Side(4)", "FSDP(net)", "side.parameters()", "shard(side)", True),
        ("Side(4)", "FSDP(net)", "side.parameters()", "opt.add_param_group(model.parameters())", True),
        ("Side(4)\n    net.side = side", "FSDP(net)", "side.parameters()", "pass", True),
        ("Side(4)\n    net.side = side.inner", "FSDP(net)", "side.parameters()", "pass", True),
        ("load(4)", "FSDP(net)", "side.parameters()", "pass", True),
    ],
)
def test_the_optimizer_of_a_module_beside_the_sharded_model(
    side: str, model: str, given: str, more: str, *, is_said: bool
) -> None:
    found = [code for code, _ in codes(_SIDE.format(side, model, given, more)) if code == "FM425"]
    assert len(found) == (2 if is_said else 0)


_PREPARES = """from accelerate import Accelerator, FullyShardedDataParallelPlugin
accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(activation_checkpointing=False))
optimizer = torch.optim.AdamW(model.parameters())
{} = accelerator.prepare({})
torch.save({{"model": accelerator.get_state_dict(model), "opt": optimizer.state_dict()}}, path)
optimizer.load_state_dict(torch.load(path)["opt"])
"""


@pytest.mark.parametrize(("names", "count"), [("model, optimizer", 2), ("loader, other", 0)])
def test_an_optimizer_that_comes_back_with_its_model(names: str, count: int) -> None:
    code = f"import torch\n{_PREPARES.format(names, names)}"
    assert [use.code for use in scan_source(code)].count("FM425") == count


@pytest.mark.parametrize(
    ("use", "is_said"),
    [
        ("print(opt.state_dict().keys())", False),
        ("print(len(opt.state_dict()))", False),
        ("x = 'state' in opt.state_dict()", False),
        ("print(list(opt.state_dict()))", False),
        ("print(sorted(opt.state_dict(), reverse=True))", False),
        ("for k in opt.state_dict():\n    print(k)", False),
        ("print([k for k in opt.state_dict()])", False),
        ("print(list((opt.state_dict(), 1)))", True),
        ("print(list(opt.state_dict().values()))", True),
        ("print(self.list(opt.state_dict()))", True),
        ("def list(state):\n    save(state)\nlist(opt.state_dict())", True),
        ("for k in x:\n    save(opt.state_dict())", True),
        ("print([opt.state_dict() for k in x])", True),
        ("for k in (opt.state_dict(), x):\n    save(k)", True),
        ("keys = opt.state_dict().keys\n", True),
        ("print(opt.state_dict().items())", True),
        ("save(opt.state_dict())", True),
        ("print(opt.state_dict()['state'].keys())", True),
    ],
)
def test_a_state_that_is_asked_for_its_keys_alone(use: str, *, is_said: bool) -> None:
    body = (
        f"model = FSDP(net)\nopt = torch.optim.AdamW(model.parameters())\nsave(model.state_dict())\n{use}\n"
    )
    assert (("FM425", "commented") in codes(body)) is is_said


SEVERAL = "model = FSDP(net)\nopts = {made}\ntorch.save({{'m': model.state_dict(), 'o': {saved}}}, path)\n"
ADAM = "torch.optim.Adam(model.parameters())"


@pytest.mark.parametrize(
    ("made", "saved", "is_said"),
    [
        (f"[{ADAM}]", "[o.state_dict() for o in opts]", True),
        (f"[{ADAM}]", "opts[0].state_dict()", True),
        (f"{{'a': {ADAM}}}", "{k: v.state_dict() for k, v in opts.items()}", True),
        (f"{{'a': {ADAM}}}", "opts['a'].state_dict()", True),
        ("[torch.optim.Adam(other.parameters())]", "[o.state_dict() for o in opts]", False),
        (f"[{ADAM}, sampler]", "opts[1].state_dict()", False),
    ],
)
def test_the_states_of_several_optimizers(made: str, saved: str, is_said: bool) -> None:
    body = SEVERAL.format(made=made, saved=saved)
    assert (("FM425", "commented") in codes(f"other = Net()\nsampler = Sampler()\n{body}")) is is_said


LIBRARY = (
    "import torch\n\n\ndef get_optimizer(model, lr):\n"
    "    optimizer = torch.optim.Adam(model.parameters(), lr=lr)\n    return {}\n"
)


@pytest.mark.parametrize(
    ("gives", "target"), [("optimizer", "optimizer"), ("optimizer, None", "optimizer, schedule")]
)
@pytest.mark.parametrize(("model", "is_said"), [("FSDP(net)", True), ("net", False)])
def test_an_optimizer_that_a_function_of_another_file_makes(
    tmp_path: Path, gives: str, target: str, model: str, *, is_said: bool
) -> None:
    main = (
        "import torch\nfrom lib import get_optimizer\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
        f"def main(net):\n    other = FSDP(make())\n    model = {model}\n"
        f"    {target} = get_optimizer(model=model, lr=0.1)\n    saved = torch.load('x.pt')\n"
        "    optimizer.load_state_dict(saved['optimizer'])\n"
    )
    (tmp_path / "lib.py").write_text(LIBRARY.format(gives))
    (tmp_path / "main.py").write_text(main)
    found = [use.code for use in scan_paths([tmp_path]).uses if use.path.endswith("main.py")]
    assert ("FM425" in found) is is_said


TWO = """\
def plain(get_model, make):
    model = get_model()
    {}
    {}


def sharded(get_model, make):
    model = FSDP(get_model())
    optimizer = make(model.parameters())
    {}
"""
USES = (
    "torch.save({'m': model.state_dict(), 'o': optimizer.state_dict()}, path)",
    "optimizer.load_state_dict(torch.load(path)['optimizer'])",
    "torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]['params'], 1.0)",
)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    "make", ["make(model)", "make(model.parameters())", "torch.optim.SGD(model.parameters())"]
)
def test_another_function_may_call_another_optimizer_so(use: str, make: str) -> None:
    said = {("FM425", "commented"), ("FM326", "commented"), ("FM326", "rewritten")}
    other = f"optimizer = {make}"
    assert said.isdisjoint(codes(f"import torch\n{TWO.format(other, use, 'pass')}"))
    assert not said.isdisjoint(codes(f"import torch\n{TWO.format(other, 'pass', use)}"))


@pytest.mark.parametrize("use", USES[:2])
def test_what_a_function_is_given_may_be_what_another_made(use: str) -> None:
    given = TWO.format("pass", "pass", "pass") + f"\n\ndef save(model, optimizer):\n    {use}\n"
    assert ("FM425", "commented") in codes(f"import torch\n{given}")


UNKNOWN = """\
from own import build, find_lr, make_groups, make_optimizer, Lion
def main(net, other, cfg, checkpoint, scaler):
    model = FSDP(net)
    {0}
    {1}.load_state_dict(checkpoint["optimizer"])
    torch.save({1}.state_dict(), "x.pt")
"""


@pytest.mark.parametrize(
    ("made", "name"),
    [
        ("groups = make_groups(model, 0.1)\n    optimizer = make_optimizer(groups, cfg)", "optimizer"),
        ("optim = make_optimizer(cfg, make_groups(model.parameters()))", "optim"),
        ("opt2 = make_optimizer(make_groups(model), cfg)", "opt2"),
        ("optimizer = build(cfg, model)", "optimizer"),
        ("optimizer = torch.optim.AdamW(cfg.groups(model))", "optimizer"),
        ("optimizer = Lion(make_groups(model))", "optimizer"),
        ("adam = build(make_groups(model))\n    adam.zero_grad()\n    scaler.step(adam)", "adam"),
        ("adam = build(cfg, model)\n    adam.zero_grad()\n    adam.step()", "adam"),
        ("adam = build(model)\n    adam.zero_grad()\n    adam.param_groups[0]['lr'] = 0", "adam"),
    ],
)
def test_an_optimizer_that_unknown_functions_make_of_the_model(made: str, name: str) -> None:
    after = turned(UNKNOWN.format(made, name))
    assert after.count("# fsdp-migrate: FM425") == 2
    assert "FM425" not in turned(
        UNKNOWN.format(made.replace("(model", "(other").replace(", m", ", other.m"), name)
    )


@pytest.mark.parametrize(
    ("made", "name"),
    [
        ("loader = build(cfg, make_groups(model))", "loader"),
        ("meter = build(model)\n    meter.step()", "meter"),
        ("optimizer = torch.optim.AdamW(other.parameters(), lr=find_lr(model))", "optimizer"),
        ("schedule = build(make_optimizer(make_groups(model)))\n    schedule.step()", "schedule"),
        ("engine = Lion(len(model))\n    engine.step()", "engine"),
    ],
)
def test_what_unknown_functions_make_that_is_no_optimizer_of_the_model(made: str, name: str) -> None:
    assert "FM425" not in turned(UNKNOWN.format(made, name))


def test_an_optimizer_of_a_class_that_unknown_functions_make_of_its_model() -> None:
    body = (
        "from own import make_groups, make_optimizer\nclass Engine:\n    def __init__(self, net, saved):\n"
        "        self.model = FSDP(net)\n        groups = make_groups(self.model, 0.1)\n"
        "        self.optimizer = make_optimizer(groups)\n"
        "        self.optimizer.load_state_dict(saved['optimizer'])\n"
        "    def state(self):\n        return self.optimizer.state_dict()\n"
    )
    assert turned(body).count("# fsdp-migrate: FM425") == 2
    assert "FM425" not in turned(body.replace("groups(self.model", "groups(net.other"))


STRATEGIES = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP
from fsdp_migrate.runtime import optim_state_dict_to_load


class Base:
    def load_optim(self, model, optim, sd):
        optim.load_state_dict(sd)


class DDPs(Base):
    def wrap(self, model):
        return DDP(model)


class FSDPs(Base):
    def wrap(self, model):
        return FSDP(model)

    def load_optim(self, model, optim, sd):
        if rank != 0:
            sd = None
        optim.load_state_dict({})
"""


@pytest.mark.parametrize(
    ("state", "is_said"),
    [
        ("FSDP.scatter_full_optim_state_dict(sd, model, optim=optim)", False),
        ("FSDP.shard_full_optim_state_dict(sd, model)", False),
        ("model.optim_state_dict_to_load(model, optim, sd)", False),
        ("optim_state_dict_to_load(model, optim, sd, from_rank0=True)", False),
        ("moved(sd)", True),
        ("torch.load(sd)", True),
        ("moved(torch.load(sd))", True),
    ],
)
def test_what_is_made_to_be_loaded_by_a_strategy_fits(state: str, *, is_said: bool) -> None:
    found = scan_source(STRATEGIES.format(state), "train.py")
    assert [use.code for use in found].count("FM425") == is_said


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("FSDP.optim_state_dict(model, opt)", "one rank's part of the state here, by names, which"),
        ("FSDP.sharded_optim_state_dict(model, opt)", "one rank's part of the state here, by names, which"),
        ("opt.state_dict()", "one rank's part of the state here, of flat parameters, which"),
        ("{'a': opt.state_dict(), 'b': FSDP.optim_state_dict(model, opt)}", "of flat parameters, which"),
    ],
)
def test_what_fsdp1s_functions_saved_is_by_names(state: str, words: str) -> None:
    code = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    code += "model = FSDP(net)\nopt = AdamW(model.parameters())\ndef save():\n"
    code += f"    state = {state}\n    torch.save(state, f'opt.{{rank}}.pt')\n"
    code += "def load():\n    opt.load_state_dict(torch.load(f'opt.{rank}.pt'))\n"
    loaded = [use.becomes for use in scan_source(code) if use.text.startswith("opt.load_state_dict")]
    assert [words in each for each in loaded] == [True]


GAN = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP
def main(loader):
    model = Net()
    loss = Loss(weight=0.5)
    sharded = FSDP(model)
    opt = torch.optim.AdamW({}.parameters())
    {}
    opt.load_state_dict(torch.load("opt.pt"))
    torch.save(sharded.state_dict(), "model.pt")
    torch.save(opt.state_dict(), "opt.pt")
"""


@pytest.mark.parametrize(
    ("of", "wraps", "is_said"),
    [
        ("loss", "loss = DDP(loss.to(device), device_ids=[0])", False),
        ("loss.head", "loss = DDP(loss)", False),
        ("loss.head", "ready = DDP(loss)", False),
        ("sharded", "loss = DDP(loss)", True),
        ("loss.head", "loss = FSDP(loss)", True),
        ("loss.head", "loss = wrap(loss)", True),
        ("loss.head", "pair = FSDP(Pair(loss))", True),
    ],
)
def test_an_optimizer_of_what_ddp_alone_wraps_is_whole(of: str, wraps: str, *, is_said: bool) -> None:
    found = {use.text for use in scan_source(GAN.format(of, wraps)) if use.code == "FM425"}
    assert bool(found) is is_said
