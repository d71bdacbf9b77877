"""Hooks, ``apply``, copies and checkpointing of a model that is wrapped."""

from __future__ import annotations

import pytest

from tests.source.samples import (
    MODEL,
    assert_commented,
    assert_left_alone,
    assert_turned,
    codes,
    turned,
    uses,
)


pytestmark = pytest.mark.any_torch


COMMENTED = [
    ("model.register_comm_hook(state, hook)\n", "FM321"),
    ("model.resize_token_embeddings(n)\n", "FM322"),
    ("model.resize_position_embeddings(n)\n", "FM322"),
    ("model.apply(initialise)\n", "FM322"),
    ("model.blocks.apply(initialise)\n", "FM322"),
    ("model.init_weights()\n", "FM322"),
    (
        "class Net(nn.Module):\n    def restart(self):\n        self.head.apply(init)\n\nmodel.restart()\n",
        "FM322",
    ),
    (
        "import transformer_engine.pytorch.distributed as te\nte.prepare_te_modules_for_fsdp(model)\n",
        "FM317",
    ),
    ("import copy\ncopied = copy.deepcopy(model)\n", "FM323"),
    ("from torch.optim import swa_utils\nswa = swa_utils.AveragedModel(model)\n", "FM323"),
    ("from timm.utils import ModelEmaV3\nema = ModelEmaV3(model, decay=0.9)\n", "FM323"),
    (
        (
            "import torch.distributed.algorithms._checkpoint.checkpoint_wrapper as w\n"
            "w.apply_activation_checkpointing(model)\n"
        ),
        "FM324",
    ),
]


@pytest.mark.parametrize(("body", "code"), COMMENTED)
def test_what_is_left_to_people_gets_one_comment(body: str, code: str) -> None:
    assert_commented(body, code)


def test_what_makes_fsdp1s_model_in_another_package() -> None:
    code = "from trl.models import prepare_fsdp\nreference = prepare_fsdp(net, accelerator)\n"
    assert ("FM303", "commented") in codes(code)


@pytest.mark.parametrize("called", ["model.forward", "model.module.forward"])
def test_forward_by_its_name_becomes_a_call_of_the_model(called: str) -> None:
    before = f"out = {called}(x, mask=mask)  # logits\n"
    assert_turned(before, "out = model(x, mask=mask)  # logits\n")


UNITS = """\
import torch.nn as nn
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
class Block(nn.Module):
    def __init__(self):
        self.fc = nn.Linear(2, 2)
    def forward(self, x):
        return self.fc.forward(x)
class Net(nn.Module):
    def __init__(self):
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(2, 2)
    def forward(self, x):
        for block in self.blocks:
            x = block.forward(x)
        return self.head.forward(self.blocks[0].forward(x))
net = Net()
model = FSDP(net, auto_wrap_policy=ModuleWrapPolicy({Block}))
"""


@pytest.mark.parametrize(
    ("part", "is_turned"),
    [
        ("model.blocks[0]", True),
        ("model.module.blocks[0]", True),
        ("model.body", True),  # of a class that is not seen
        ("model.get_input_embeddings()", True),
        ("model.head", False),  # no unit, and whole where its parameters are
        ("other.blocks[0]", False),
    ],
)
def test_forward_of_a_unit_by_its_name_becomes_a_call_of_it(part: str, *, is_turned: bool) -> None:
    after = turned(f"{UNITS}out = {part}.forward(x)\n")
    wanted = f"out = {part}.forward(x)\n".replace(".module", "")
    assert (wanted.replace(".forward", "") if is_turned else wanted) in after
    # In the classes of the model itself a unit is known by its class.
    for line in (
        "x = block(x)\n",
        "return self.head.forward(self.blocks[0](x))\n",
        "return self.fc.forward(x)\n",
    ):
        assert line in after


def test_forward_of_a_part_of_one_unit_stays() -> None:
    assert "model.head.forward(x)" in turned("model = FSDP(net)\nout = model.head.forward(x)\n")


def test_forward_of_what_may_be_another_model_gets_a_comment() -> None:
    made = "model = FSDP(net) if sharded else torch.nn.parallel.DistributedDataParallel(net)\n"
    assert ("FM448", "commented") in codes(f"{made}model.forward(x)\n")


def test_forward_under_another_name_is_the_model() -> None:
    assert_turned("f = model.forward\nf(x)\nf(y)\n", "f = model\nf(x)\nf(y)\n")
    for handed_on in (
        "call = partial(model.forward, x)",
        "f = model.forward\nrun(f)",
        "return model.forward",
    ):
        body = f"def g(model: FSDP):\n    {handed_on}\n".replace("\nrun", "\n    run")
        assert codes(body)[-1:] == [("FM448", "commented")], handed_on


LEFT_ALONE = [
    "signature(model.forward)\n",
    "print(model.forward.__name__)\n",
    "import inspect\nf = model.forward\nnames = inspect.signature(f).parameters\n",
    "model.forward\n",
    "old = model.forward\nmodel.forward = lambda x: old(x.half())\n",
    "net.forward(x)\n",
    "class Net(torch.nn.Module):\n    def f(self, x):\n        return self.forward(x), super().forward(x)\n",
    "net.apply(initialise)\n",
    "net.resize_token_embeddings(n)\n",
    "net.blocks.apply(initialise)\nnet.init_weights()\n",
    "model.rope.apply(q, k)\nmodel.restart()\n",
    "class Net(nn.Module):\n    def init_weights(self):\n        self.step = 0\n\nmodel.init_weights()\n",
    "class Net(nn.Module):\n    def run(self):\n        self.kernel.apply(self.scale)\n\nmodel.run()\n",
    "import copy\ncopied = copy.deepcopy(net)\n",
    "from torch.optim.swa_utils import AveragedModel\nswa = AveragedModel(net)\n",
]


@pytest.mark.parametrize("body", LEFT_ALONE)
def test_other_things_with_the_same_names_are_left_alone(body: str) -> None:
    assert_left_alone(body)


NET = "class Net(nn.Module):\n    def score(self, x):\n        {}\n"
OTHER_CLASS = "class Other{}:\n    def score(self, x):\n        self.head.apply(init)\n"
SCORES = "model = FSDP(Net().to(0))\nmodel.score(x)\n"


@pytest.mark.parametrize(
    "applied",
    [
        "self.apply(x)",
        "self.head.apply(init)",
        "self.head.apply(lambda m: m.reset())",
        "self.a.apply(self.score)",
        "self.a.apply(functools.partial(init, std=1))",
        "set_up = functools.partial(init, std=1)\n        self.a.apply(set_up)",
    ],
)
def test_a_method_of_the_models_own_class_that_applies_a_function(applied: str) -> None:
    assert ("FM322", "commented") in codes(NET.format(applied) + SCORES)
    above = NET.format(applied).replace("Net", "Base") + "class Net(Base):\n    pass\n"
    assert ("FM322", "commented") in codes(above + SCORES)


@pytest.mark.parametrize(
    "body",
    [
        NET.format("return self.kernel.apply(x)") + SCORES,
        NET.format("return self.kernel.apply(self.norm(x))") + SCORES,
        NET.format("y = init_state(x)\n        return self.kernel.apply(y)") + SCORES,
        NET.format("return self.kernel.apply(x, self.weight)") + SCORES,
        NET.format("return x") + OTHER_CLASS.format("") + SCORES,
        NET.format("return x") + OTHER_CLASS.format("(nn.Module)") + SCORES,
        OTHER_CLASS.format("") + OTHER_CLASS.format("(object)") + "model = FSDP(net)\nmodel.score(x)\n",
        NET.format("self.a.apply(init)").replace("score", "forward") + SCORES.replace("score", "forward"),
        "from nets import Net\n" + OTHER_CLASS.format("(nn.Module)") + SCORES,
    ],
)
def test_what_applies_no_function_to_the_models_modules(body: str) -> None:
    assert ("FM322", "commented") not in codes(body)


def test_a_method_that_initialises_and_computes_is_named_for_both() -> None:
    made = "model = FSDP(Net(), sharding_strategy=ShardingStrategy.NO_SHARD)\nmodel.generate(x)\n"
    body = NET.replace("score", "generate").format("self.apply(init)") + made
    assert {("FM322", "commented"), ("FM448", "commented")} <= set(codes(body))


NO_SHARD = "model = FSDP(net, sharding_strategy=ShardingStrategy.NO_SHARD)\n"


def test_methods_that_compute_before_any_forward_of_a_model_that_is_not_sharded() -> None:
    found = [use.becomes for use in uses(f"{NO_SHARD}model.encode(x)\nmodel.get_image_features(x)\n")[1:]]
    assert ["(model, 'encode')" in found[0], "(model, 'get_image_features')" in found[1]] == [True, True]
    chosen = "s = ShardingStrategy.FULL_SHARD if many else ShardingStrategy.NO_SHARD\n"
    made = f"{chosen}model = FSDP(net, sharding_strategy=s)\n"
    body = f"{made}def run(m: FSDP):\n    m.generate(x)\n    m.generate(x)\n    m(x)\n"
    assert [each for each in codes(body) if each[0] == "FM448"] == [("FM448", "commented")]


OTHER = "other = FSDP(net, sharding_strategy=ShardingStrategy.NO_SHARD)\n"
WRAPPED = "with enable_wrap(wrapper_cls=FSDP):\n    net = wrap(net, sharding_strategy=ShardingStrategy.{})\n"
WRAP = "from torch.distributed.fsdp.wrap import enable_wrap, wrap\n"


@pytest.mark.parametrize(
    ("made", "is_said"),
    [
        ("model = FSDP(net)\n", False),
        ("model = FSDP(net, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP).to(0)\n", False),
        ("model = FSDP(net, None, ShardingStrategy.FULL_SHARD)\n", False),
        ("s = ShardingStrategy.HYBRID_SHARD\nmodel = FSDP(net, sharding_strategy=s)\n", False),
        (f"{WRAP}{WRAPPED.format('SHARD_GRAD_OP')}".replace("net", "model"), False),
        (f"{WRAP}{WRAPPED.format('NO_SHARD')}".replace("net", "model"), True),
        (f"{WRAP}with enable_wrap(wrapper_cls=FSDP, **how):\n    model = wrap(model)\n", True),
        ("model = FSDP(net, sharding_strategy=s)\n", True),
        ("model = FSDP(net, **how)\n", True),
        ("model = FSDP(net, None, ShardingStrategy.NO_SHARD)\n", True),
        ("model = FSDP(net)\nif x:\n    model = FSDP(net, sharding_strategy=s)\n", True),
        ("def run(model: FSDP):\n    model.encode(x)\n", True),
    ],
)
def test_the_strategy_of_the_model_itself_counts(made: str, is_said: bool) -> None:
    assert ("FM448" in dict(codes(f"{OTHER}{made}model.encode(x)\n"))) is is_said


@pytest.mark.parametrize(
    "body",
    [
        f"{NO_SHARD}model(x)\nmodel.encode(x)\n",
        f"{NO_SHARD}def train():\n    model(x)\ndef run():\n    model.encode(x)\n",
        f"{NO_SHARD}register_forward_methods(model, 'encode')\nmodel.encode(x)\n",
        f"{NO_SHARD}with FSDP.summon_full_params(model):\n    model.encode(x)\n",
        f"{NO_SHARD}tokenizer.encode(x)\nmodel.get_input_embeddings()\nmodel.encoder(x)\n",
        f"s = {{'no': ShardingStrategy.NO_SHARD}}[name]\n{MODEL}model.encode(x)\n",
        f"{MODEL}model.encode(x)\n",
    ],
)
def test_methods_after_a_forward_or_of_sharded_models_are_left_alone(body: str) -> None:
    assert "FM448" not in dict(codes(body))


@pytest.mark.parametrize(
    ("made", "is_said"),
    [
        ("FSDP.optim_state_dict(model=model, optim=optimizer)", False),
        ("optimizer_state_dict(model=model)", False),
        ("dict(model=model)", True),
        ("NamedDict(model=model)", True),
    ],
)
def test_the_state_that_is_asked_of_a_model_by_its_keyword_holds_none(made: str, *, is_said: bool) -> None:
    assert ("FM323" in dict(codes(f"{MODEL}state = {made}\ntorch.save(state, path)\n"))) is is_said
