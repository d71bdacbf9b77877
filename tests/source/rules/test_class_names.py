"""Tests for the class of a module, where FSDP2 gives units classes of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.samples import IMPORTS, codes, uses


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


WALK = """\
def find(module, name):
    if module.__class__.__name__ == name:
        return module.__class__
    return next(filter(None, (find(child, name) for child in module.children())), None)


"""


SHARDS = """\
def shard(model, every, kinds, names):
    for m in model.modules():
        if every:
            fully_shard(m)
        elif isinstance(m, kinds) or type(m).__name__ in names:
            fully_shard(m)


shard(FSDP(net), False, (Block,), [])
"""


def test_what_chooses_modules_for_fsdp2_is_neither_fsdp1s_nor_wrong() -> None:
    header = f"{IMPORTS}from torch.distributed.fsdp import fully_shard\n\n"
    assert {code for code, action in codes(SHARDS, header) if action == "commented"} == set()
    other = SHARDS.replace("names:\n            fully_shard(m)", "names:\n            count(m)")
    assert "commented" in {action for _, action in codes(other, header)}


IN_A_LIST = """\
from accelerate import Accelerator, FullyShardedDataParallelPlugin
import torch


def prepare(accelerator, model, {0}):
    args = [model]
    args.append({0})
    it = iter(accelerator.prepare(*args))
    model = next(it)
    {0} = next(it)
    return model, {0}


accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())
model, {0} = prepare(accelerator, net, make())
x = isinstance({0}, {1})
"""


@pytest.mark.parametrize(
    ("name", "asked", "is_said"),
    [
        ("lr_scheduler", "torch.optim.lr_scheduler.ReduceLROnPlateau", False),
        ("thing", "torch.optim.lr_scheduler.ReduceLROnPlateau", False),
        ("optimizer", "Lion", False),
        ("thing", "PeftModel", True),
        ("thing", "(PeftModel, torch.optim.SGD)", True),
    ],
)
def test_a_schedule_that_is_prepared_in_a_list_with_models(name: str, asked: str, *, is_said: bool) -> None:
    assert (("FM316", "commented") in codes(IN_A_LIST.format(name, asked), "")) is is_said


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("model = FSDP(net)\nfor m in model.modules():\n    if type(m) is Block:\n        pass\n", True),
        ("model = FSDP(net)\nx = [m for n, m in model.named_modules() if type(m) == Block]\n", True),
        ("model = FSDP(net)\nx = sum(type(m).__name__ == 'Block' for m in model.modules())\n", True),
        ("model = FSDP(net)\nkind = model.__class__.__name__\nok = kind in names\n", True),
        (f"{WALK}model = FSDP(net)\nfind(model, 'Block')\n", True),
        (f"{WALK}find(net, 'Block')\nmodel = FSDP(net)\n", False),
        ("model = FSDP(net)\nx = [m for m in model.modules() if isinstance(m, Block)]\n", False),
        ("x = [m for m in net.modules() if type(m) is Block]\nmodel = FSDP(net)\n", False),
        ("model = FSDP(net)\nok = model._get_name() in MAPPING.values()\n", True),
        ("model = FSDP(net)\nok = model._get_name() == 'Llama'\n", True),
        ("model = FSDP(net)\nok = 'Llama' in model._get_name()\n", False),
        ("ok = net._get_name() == 'Llama'\n", False),
        ("model = FSDP(net)\nok = type(model).__name__ == 'DistributedDataParallel'\n", False),
        ("model = FSDP(net)\nok = type(model).__name__ == 'DeepSpeedEngine'\n", False),
        ("model = FSDP(net)\nok = type(model).__name__ == 'EngineBlock'\n", True),
        ("model = FSDP(net)\nok = type(loss) is Block\n", False),
        ("model = FSDP(net)\nok = model.__class__ is list\n", False),
        ("model = FSDP(net)\nok = type(model) in (tuple, dict)\n", False),
        ("model = FSDP(net)\nok = type(model) in (tuple, Block)\n", True),
        ("from my import dict\nmodel = FSDP(net)\nok = type(model) is dict\n", True),
        ("model = FSDP(net)\nx = ['Norm' in type(m).__name__ for m in model.modules()]\n", False),
        ("model = FSDP(net)\nx = [type(m).__name__ in names for m in model.modules()]\n", True),
    ],
)
def test_the_class_of_a_unit_is_one_of_its_own(body: str, *, is_said: bool) -> None:
    assert (("FM316", "commented") in codes(body)) is is_said


PREPARED = """\
from accelerate import Accelerator, FullyShardedDataParallelPlugin


def raw(model):
    return model.module if hasattr(model, "module") else model


accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=1))
model, optimizer = accelerator.prepare(model, optimizer)
"""


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("kind = KINDS[type(raw(model)).__name__]", "commented"),
        ("kind = KINDS[type(raw(model))]", "commented"),
        ("kind = KINDS.get(accelerator.unwrap_model(model).__class__)", "commented"),
        ("name = type(raw(model)).__name__\nkind = KINDS.get(name)", "commented"),
        ("kind = getattr(library, type(raw(model)).__name__ + 'Config')", "commented"),
        ("torch.save(state, f'{type(raw(model)).__name__}.pt')", "commented"),
        ("match type(raw(model)).__name__:\n    case 'Net':\n        pass", "commented"),
        ("accelerator.print(f'{type(raw(model)).__name__}')", "kept"),
        ("name = type(raw(model)).__name__\nlogger.info('%s', name)", "kept"),
        ("raise ValueError(f'no {type(raw(model)).__name__}')", "kept"),
        ("kind = KINDS[type(raw(model)).__name__.removeprefix('FSDP')]", None),
        ("name = re.sub('^FSDP', '', type(raw(model)).__name__)\nkind = KINDS[name]", None),
        ("kind = KINDS[type(optimizer).__name__]", None),
        ("kind = KINDS[type(loss)]", None),
        ("fresh = type(raw(model))(config)", None),
        ("is_alike = isinstance(other, type(raw(model)))", None),
    ],
)
def test_what_the_class_of_a_frameworks_model_is_used_for(line: str, action: str | None) -> None:
    found = {action for code, action in codes(f"{line}\n", PREPARED) if code == "FM316"}
    assert found == ({action} if action else set())


@pytest.mark.parametrize(
    ("check", "is_said"),
    [
        ("isinstance(model, PeftModel)", True),
        ("isinstance(model, (DDP, PeftModel))", True),
        ("not isinstance(model, torch.nn.Sequential)", True),
        ("isinstance(model, torch.nn.Module)", False),
        ("isinstance(model, (DDP, torch.nn.DataParallel))", False),
        ("isinstance(model, (list, tuple))", False),
        ("isinstance(model, Path)", False),
        ("isinstance(model, FSDP)", False),
        ("isinstance(model.module, PeftModel)", False),
        ("isinstance(net, PeftModel)", False),
        ("isinstance(inner, PeftModel)", False),
        ("isinstance(taken, PeftModel)", False),
    ],
)
def test_a_class_that_the_wrapper_was_none_of(check: str, is_said: bool) -> None:
    body = (
        "from pathlib import Path\nmodel = FSDP(net)\ninner = model.module\ntaken = unwrap(model)\n"
        f"if {check}:\n    save(1)\n"
    )
    found = [use.becomes for use in uses(body) if use.code == "FM316"]
    assert bool(found) is is_said
    assert all("wrapper was no `" in each for each in found)


@pytest.mark.parametrize(
    "body",
    [
        "assert isinstance(model, PeftModel)\n",
        "if not isinstance(model, PeftModel):\n    raise TypeError(model)\n",
    ],
)
def test_a_class_that_is_required_is_not_said(body: str) -> None:
    assert "FM316" not in dict(codes(f"model = FSDP(net)\n{body}"))


ABOVE = """\
class Base:
    def __init__(self, model):
        self.wrapper = self.model = model.to(0)
        self.wrapper = FSDP({inner})
class Streaming(Base):
    def run(self, x):
        {sets}
        return x if isinstance(self.model, Special) else self.wrapper(x)
"""


@pytest.mark.parametrize(
    ("inner", "sets", "is_said"),
    [
        ("self.model", "pass", False),
        ("self.model", "self.model = FSDP(x)", True),
        ("model); self.model = FSDP(model", "pass", True),
    ],
)
def test_what_a_class_above_keeps_beside_the_wrapper_is_of_its_own_class(
    tmp_path: Path, inner: str, sets: str, *, is_said: bool
) -> None:
    body = ABOVE.format(inner=inner, sets=sets)
    (tmp_path / "base.py").write_text(f"{IMPORTS}{body}")
    (tmp_path / "main.py").write_text("from base import Streaming\nStreaming(net).run(1)\n")
    found = {use.code for use in scan_paths([tmp_path]).uses}
    assert ("FM316" in found) is is_said


def test_a_class_is_asked_before_wrapping() -> None:
    body = "if isinstance(model, PeftModel):\n    x = 1\nmodel = FSDP(model)\n"
    assert "FM316" not in dict(codes(body))


@pytest.mark.parametrize(("test", "is_said"), [("fsdp is not None", False), ("other is not None", True)])
def test_where_fsdp_is_off_no_model_was_wrapped(test: str, *, is_said: bool) -> None:
    body = (
        "class T:\n    def wrap(self, model):\n        if self.fsdp:\n            model = FSDP(model)\n"
        f"        return model\n    def ask(self, model):\n        if self.{test}:\n            pass\n"
        "        elif isinstance(model, PreTrainedModel):\n            print(1)\n"
        "    def run(self):\n        self.ask(FSDP(self.net))\n"
    )
    assert (("FM316", "commented") in codes(body)) is is_said


def test_a_part_of_the_name_is_in_fsdp2s_name_too_by_way_of_a_name() -> None:
    body = "model = FSDP(net)\nkind = type(model).__name__\nif {}:\n    print(1)\n"
    for test, expected in (("'Norm' in kind", False), ("kind == 'Norm'", True), ("kind in NAMES", True)):
        body_of = body.format(test)
        assert (("FM316", "commented") in codes(body_of)) is expected, test


LOOP = "def build(model):\n    for i, block in enumerate(model.blocks):\n        "
EXPERTS = (
    "for e, expert in enumerate(block.ffn.experts):\n                block.ffn.experts[e] = FSDP(expert)"
)
AGAIN = "    for block in model.blocks:\n        x = isinstance(block, Block)\n"
WHOLE = "m = build(Net())\nx = isinstance(m, Net)\n"


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        (f"{LOOP}if isinstance(block.ffn, MoE):\n            {EXPERTS}\n    return FSDP(model)\n", False),
        (f"{LOOP}if isinstance(block.ffn, MoE):\n            block.ffn = FSDP(block.ffn)\n", False),
        (f"{LOOP}block.ffn = FSDP(block.ffn)\n        x = isinstance(block.ffn, MoE)\n", True),
        (f"{LOOP}block.ffn = FSDP(block.ffn)\n        model.blocks[i] = FSDP(block)\n{AGAIN}", True),
        (
            "def f(m):\n    for i in range(2):\n        x = isinstance(m.f, MoE)\n        m.f = FSDP(m.f)\n",
            True,
        ),
        ("m = Net()\nm.a = FSDP(m.a)\nx = isinstance(m, Net)\n", False),
        ("m = Net()\nm.a = FSDP(m.a)\nm = FSDP(m)\nx = isinstance(m, Net)\n", True),
        ("def g(m):\n    m.a = FSDP(m.a)\n    x = isinstance(m, Net)\ng(FSDP(net))\n", True),
        (f"{LOOP}model.blocks[i] = FSDP(block)\nm = Net()\nbuild(m)\nx = isinstance(m, Net)\n", False),
        (f"{LOOP}model.blocks[i] = FSDP(block)\n    return FSDP(model)\n{WHOLE}", True),
    ],
)
def test_a_module_of_which_parts_alone_are_wrapped_is_of_its_own_class(body: str, is_said: bool) -> None:
    """FSDP1 put its wrapper in the place of these parts: the check was true before it, and is."""
    assert any("wrapper was no `" in use.becomes for use in uses(body) if use.code == "FM316") is is_said


HOLDER = """\
class Worker:
    def build(self, net):
        self.fsdp = FSDP(net)
        self.inner = {0}
    def save(self, path):
        inner = {0}
        if isinstance({1}, PeftModel):
            first = list({1}.children())[0]
"""


@pytest.mark.parametrize("asked", ["self.inner", "inner"])
@pytest.mark.parametrize(
    ("taken", "is_said"),
    [("self.fsdp._fsdp_wrapped_module", False), ("self.fsdp.module", False), ("self.fsdp", True)],
)
def test_what_the_wrapper_held_is_of_its_own_class(taken: str, asked: str, is_said: bool) -> None:
    found = {code for code, action in codes(HOLDER.format(taken, asked)) if action == "commented"}
    assert ("FM316" in found) is is_said
    assert ("FM335" in found) is is_said


CALLBACK = (
    "import torch\nfrom peft import PeftModel\nfrom transformers import TrainerCallback\n"
    "class Own({}):\n    def {}(self, args, state, control, {}**kwargs):\n{}"
    "        if isinstance(model, {}):\n            print(1)\n"
)
TRAINS = (
    "from transformers import Trainer, TrainingArguments\nfrom own import Own\n"
    "args = TrainingArguments('o', fsdp='full_shard')\nTrainer(net, args, callbacks=[Own()]).train()\n"
)


@pytest.mark.parametrize(
    ("base", "method", "given", "taken", "asked", "is_said"),
    [
        ("TrainerCallback", "on_train_begin", "model=None, ", "", "PeftModel", True),
        ("TrainerCallback", "on_train_begin", "", "        model = kwargs['model']\n", "PeftModel", True),
        ("TrainerCallback", "on_save", "model=None, ", "", "PeftModel", True),
        # The model is not sharded yet, another one, or asked for what it is under both.
        ("TrainerCallback", "on_init_end", "model=None, ", "", "PeftModel", False),
        ("TrainerCallback", "on_train_begin", "other=None, ", "", "PeftModel", False),
        ("TrainerCallback", "on_train_begin", "model=None, ", "", "torch.nn.Module", False),
        ("object", "on_train_begin", "model=None, ", "", "PeftModel", False),
    ],
)
def test_the_class_of_what_a_callback_is_given(
    tmp_path: Path, base: str, method: str, given: str, taken: str, asked: str, *, is_said: bool
) -> None:
    (tmp_path / "own.py").write_text(CALLBACK.format(base, method, given, taken, asked))
    (tmp_path / "train.py").write_text(TRAINS)
    assert ("FM316" in {use.code for use in scan_paths([tmp_path]).uses}) is is_said


@pytest.mark.parametrize(
    ("name", "is_said"), [("ThunderModule", False), ("OptimizedModule", False), ("Block", True)]
)
def test_wrappers_of_other_packages_are_no_units(name: str, is_said: bool) -> None:
    body = f"for m in model.modules():\n    if m.__class__.__name__ != '{name}':\n        m.x = 1\n"
    assert (("FM316", "commented") in codes(f"model = FSDP(net)\n{body}")) is is_said


BESIDE = """\
import nets
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Pipeline:
    @staticmethod
    def kind(model):
        return 1 if isinstance(model, nets.UNet) else 2

    def __init__(self, model):
        self.wrapper = self.model = model.to(0)
        if sharded:
            self.wrapper = FSDP(self.model, use_orig_params=True)

    def step(self, x):
        return self.wrapper(x, Pipeline.kind(self.{}))
"""


@pytest.mark.parametrize(
    ("given", "other", "is_said"),
    [
        ("model", "", False),
        ("wrapper", "", True),
        ("model", "pipe = Pipeline(net)\nPipeline.kind(pipe.wrapper)\n", True),
        ("model", "Pipeline.kind(FSDP(net))\n", True),
    ],
)
def test_a_function_that_is_given_what_the_wrapper_held(
    tmp_path: Path, given: str, other: str, *, is_said: bool
) -> None:
    (tmp_path / "pipeline.py").write_text(BESIDE.format(given))
    header = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nfrom pipeline import Pipeline\n"
    )
    (tmp_path / "main.py").write_text(f"{header}\n{other}")
    found = [use for use in scan_paths([tmp_path]).uses if use.code == "FM316"]
    assert [use.line for use in found] == [7] * is_said


STATES = """\
class Base:
    pass

class RandomState(Base):
    def state_dict(self):
        return {{}}

class Stateful(Protocol):
    def state_dict(self): ...

class Trainable(ABC):
    pass

class Net(torch.nn.Module, Trainable):
    pass

class Odd(elsewhere.Thing):
    pass
{}"""
ASKS = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from states import Net, Odd, RandomState as Random, Stateful, Trainable
import states

class Own:
    pass

def collect(net):
    model = FSDP(net)
    return 1 if isinstance(model, {}) else 2
"""


@pytest.mark.parametrize(
    ("asked", "beside", "is_said"),
    [
        ("Random", "", False),
        ("states.RandomState", "", False),
        ("(Random, Stateful)", "", False),
        ("Own", "", False),
        ("Random", "class More(RandomState):\n    pass\n", False),
        # A module has it beside its own class, here or by another class.
        ("Trainable", "", True),
        ("Random", "class Twin(torch.nn.Module, RandomState):\n    pass\n", True),
        (
            "Random",
            "class More(RandomState):\n    pass\nclass Twin(More, torch.nn.Module):\n    pass\n",
            True,
        ),
        ("Net", "", True),
        ("Odd", "", True),  # what that is, nothing shows
        ("(Random, Net)", "", True),
    ],
)
def test_a_class_of_the_project_that_no_module_is_of(
    tmp_path: Path, asked: str, beside: str, *, is_said: bool
) -> None:
    (tmp_path / "states.py").write_text(STATES.format(beside))
    (tmp_path / "main.py").write_text(ASKS.format(asked))
    assert ("FM316" in {use.code for use in scan_paths([tmp_path]).uses}) is is_said
