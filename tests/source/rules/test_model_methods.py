"""Hooks, ``apply``, copies and checkpointing of a model that is wrapped."""

from __future__ import annotations

import pytest

from tests.source.samples import MODEL, assert_commented, assert_left_alone, assert_turned, codes, uses


pytestmark = pytest.mark.any_torch


COMMENTED = [
    ("model.register_comm_hook(state, hook)\n", "FM321"),
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
    comment = "# fsdp-migrate: FM315\n" if "module" in called else ""
    assert_turned(before, f"{comment}out = model(x, mask=mask)  # logits\n")


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
    "old = model.forward\nmodel.forward = lambda x: old(x.half())\n",
    "net.forward(x)\n",
    "class Net(torch.nn.Module):\n    def f(self, x):\n        return self.forward(x), super().forward(x)\n",
    "net.apply(initialise)\n",
    "net.blocks.apply(initialise)\nnet.init_weights()\n",
    "model.rope.apply(q, k)\nmodel.restart()\n",
    "class Net(nn.Module):\n    def init_weights(self):\n        self.step = 0\n\nmodel.init_weights()\n",
    "import copy\ncopied = copy.deepcopy(net)\n",
]


@pytest.mark.parametrize("body", LEFT_ALONE)
def test_other_things_with_the_same_names_are_left_alone(body: str) -> None:
    assert_left_alone(body)


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
