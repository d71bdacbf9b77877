"""Calls of the class, under whatever name, and what else is done with it."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import scan_source
from tests.source.samples import assert_uncertain, codes, plain, turned, uses


pytestmark = pytest.mark.any_torch


TURNED = [
    ("model = FSDP(net)\n", "model = prepare_fully_shard(net)\n"),
    ("model = FSDP(net).to(0)\n", "model = prepare_fully_shard(net).to(0)\n"),
    (
        "model = FSDP(module=net, use_orig_params=True)\n",
        'model = prepare_fully_shard(net, {"use_orig_params": True})\n',
    ),
    (
        "self.net = FSDP(self.net, None, ShardingStrategy.SHARD_GRAD_OP, CPUOffload(True), device_id=0)\n",
        (
            'self.net = prepare_fully_shard(self.net, {"process_group": None, "sharding_strategy": '
            'ShardingStrategy.SHARD_GRAD_OP, "cpu_offload": CPUOffload(True), "device_id": 0})\n'
        ),
    ),
    (
        (
            "model = FSDP(\n    net,\n    auto_wrap_policy=policy,  # by class\n    # in bfloat16\n"
            "    mixed_precision=MixedPrecision(\n        param_dtype=torch.bfloat16,\n    ),\n)\n"
        ),
        (
            "model = prepare_fully_shard(\n    net,\n    {\n"
            '        "auto_wrap_policy": policy,  # by class\n        # in bfloat16\n'
            '        "mixed_precision": MixedPrecision(\n'
            "            param_dtype=torch.bfloat16,\n        ),\n    },\n)\n"
        ),
    ),
    (
        "model = FSDP(net, **kwargs)\n",
        "# fsdp-migrate: FM302\nmodel = prepare_fully_shard(net, kwargs)\n",
    ),
    (
        "model = FSDP(net, device_id=0, **kwargs)\n",
        '# fsdp-migrate: FM302\nmodel = prepare_fully_shard(net, {"device_id": 0, **kwargs})\n',
    ),
    (
        "optimizer = torch.optim.SGD(net.parameters(), lr=1)\nnet = FSDP(net, use_orig_params=True)\n",
        (
            "optimizer = torch.optim.SGD(net.parameters(), lr=1)\n"
            'net = prepare_fully_shard(net, {"use_orig_params": True}, optimizers=optimizer)\n'
        ),
    ),
    (
        "adam = torch.optim.Adam(net.parameters())\nnet = FSDP(\n    net,\n    use_orig_params=True,\n)\n",
        (
            "adam = torch.optim.Adam(net.parameters())\n"
            'net = prepare_fully_shard(\n    net,\n    {\n        "use_orig_params": True,\n    },\n'
            "    optimizers=adam,\n)\n"
        ),
    ),
    (
        "opt, rate = net.configure_optimizers()\nnet = FSDP(net)\n",
        (
            "opt, rate = net.configure_optimizers()\n# fsdp-migrate: FM453\n"
            "net = prepare_fully_shard(net, optimizers=opt)\n"
        ),
    ),
    (
        "optimizer = make(net, 1)\noptimizer = None\nnet = FSDP(net)\n",
        "optimizer = make(net, 1)\noptimizer = None\nnet = prepare_fully_shard(net)\n",
    ),
    (
        "net.load_state_dict(state)\nnet.apply(f)\nnet = FSDP(net)\nnet.load_state_dict(state)\n",
        (
            "net.load_state_dict(state)\nnet.apply(f)\nnet = prepare_fully_shard(net)\n"
            "load_model_state_dict(net, state)\n"
        ),
    ),
    (
        "for i in range(2):\n    net.load_state_dict(state)\n    net = FSDP(net)\n",
        ("for i in range(2):\n    load_model_state_dict(net, state)\n    net = prepare_fully_shard(net)\n"),
    ),
]


MODELS = """\
def main(build):
    net, ema = build(), {made}
    model = FSDP(net)
    ema = [FSDP(each) for each in ema]
    return {used}
"""


def test_models_of_a_list_are_none_inside_another() -> None:
    made = MODELS.replace("net, ema = build(), {made}", "net = build()\n    ema = {made}")
    for wrapped in ("FSDP(each) for each in ema", "FSDP(ema[i]) for i in range(2)"):
        own = made.replace("FSDP(each) for each in ema", wrapped)
        after = turned(own.format(made="[build() for _ in range(2)]", used="model, ema"))
        assert after.count("prepare_fully_shard(") == 2, wrapped
        for layers in (("net.layers", "model"), ("[build()]", "torch.nn.Sequential(*ema)")):
            assert "FM303" in turned(own.format(made=layers[0], used=layers[1])), (wrapped, layers)


@pytest.mark.parametrize(("before", "after"), TURNED)
def test_calls_are_turned_with_the_same_arguments(before: str, after: str) -> None:
    assert plain(before) == after


TWICE = [
    "net = FSDP(net, ignored_states=small)\nnet = FSDP(net, sharding_strategy=s)\n",
    "net = FSDP(net, ignored_states=small, **kwargs)\nouter = dict(kwargs, a=1)\nnet = FSDP(net, **outer)\n",
    "inner = FSDP(net)\ninner = inner.to(0)\nouter = FSDP(inner)\n",
    "if small:\n    net = FSDP(net, ignored_states=small)\nnet = FSDP(torch.compile(net))\n",
    "def wrap(net):\n    net = FSDP(net, ignored_states=small)\n    return FSDP(module=net)\n",
    "net = FSDP(net) if a else FSDP(net, b)\nnet = FSDP(net)\n",
    "self.net = FSDP(self.net)\nself.net = FSDP(self.net)\n",
    "def once(m):\n    return FSDP(m)\nnet = once(net)\nnet = FSDP(net)\n",
]
ONCE = [
    "if a:\n    net = FSDP(net)\nelse:\n    net = FSDP(net, limit_all_gathers=True)\n",
    "if a == 1:\n    net = FSDP(net)\nif a == 2:\n    net = FSDP(net, limit_all_gathers=True)\n",
    "def f(net):\n    if a():\n        net = FSDP(net)\n        return net\n    net = FSDP(net)\n",
    "try:\n    net = FSDP(net, use_orig_params=True)\nexcept TypeError:\n    net = FSDP(net)\n",
    "net = FSDP(net)\nif not isinstance(net, FSDP):\n    net = FSDP(net)\n",
    "model = FSDP(net)\nrun(model)\nmodel = Net()\nmodel = FSDP(model)\n",
    "model = FSDP(net)\nif again:\n    model = build()\n    model = FSDP(model)\n",
    "for kind in kinds:\n    model = build(kind)\n    model = FSDP(model)\n",
    "if fsdp:\n    net = FSDP(net)\nif hsdp:\n    net = FSDP(net)\n",
    "def f(m):\n    m = FSDP(m)\ndef g(m):\n    m = FSDP(m)\n",
    "def f(m):\n    if a:\n        return FSDP(m)\n    return m\nnet = f(net)\nnet = FSDP(net)\n",
]


@pytest.mark.parametrize("body", TWICE)
def test_a_model_that_is_wrapped_twice_gets_a_comment_at_both(body: str) -> None:
    assert "FM303 FSDP around a model that it has wrapped already" in turned(body)
    assert codes(body) == [("FM303", "commented")] * body.count("FSDP(")


@pytest.mark.parametrize("body", ONCE)
def test_a_model_that_is_wrapped_once_in_each_run_is_turned(body: str) -> None:
    assert "FM303" not in dict(codes(body))


DDP = "from torch.nn.parallel import DistributedDataParallel as DDP\n"
AROUND_DDP = [
    "net = DDP(net)\nnet = FSDP(net)\n",
    "net = FSDP(DDP(net).to(0))\n",
    "self.net = DDP(self.net)\nself.net = FSDP(self.net)\n",
    "def wrap(m):\n    return DDP(m)\nnet = FSDP(wrap(net))\n",
]
AROUND_PREPARED = [
    "net = accelerator.prepare(net)\nnet = FSDP(net)\n",
    "net, opt = accelerator.prepare(net, opt)\nnet = FSDP(net)\n",
    "if a == 1:\n    net = self.accelerator.prepare_model(net)\n    net = FSDP(net)\n",
]
AROUND_NEITHER = [
    "if ddp:\n    net = DDP(net)\nelse:\n    net = FSDP(net)\n",
    "if ddp:\n    net = DDP(net)\nif fsdp:\n    net = FSDP(net)\n",
    "net = DDP(net) if ddp else net\nif fsdp:\n    net = FSDP(net)\n",
    "ema = DDP(ema)\nnet = FSDP(net)\n",
    "net = DDP(net)\nnet = FSDP(net.module)\n",
    "net = accelerator.prepare(net)\nnet = FSDP(accelerator.unwrap_model(net))\n",
    "net = accelerator.prepare_model(net, evaluation_mode=True)\nnet = FSDP(net)\n",
    "opt, loader = accelerator.prepare(opt, loader)\nnet = FSDP(net)\n",
]


@pytest.mark.parametrize("body", [*AROUND_DDP, *AROUND_PREPARED])
def test_a_model_of_another_wrapper_gets_a_comment(body: str) -> None:
    owner = "DistributedDataParallel has wrapped" if body in AROUND_DDP else "Accelerate has prepared"
    assert f"FM303 FSDP around a model that {owner}" in turned(DDP + body).replace("\n# ", " ")
    assert "prepare_fully_shard(net" not in turned(DDP + body)


@pytest.mark.parametrize("body", AROUND_NEITHER)
def test_a_model_that_no_other_wrapper_has_is_turned(body: str) -> None:
    assert "FM303" not in dict(codes(DDP + body))


BY_A_FUNCTION = """\
def fsdp(module, **kw):
    return FSDP(module, use_orig_params=True, **kw)

class Strategy:
    def _fsdp(self, module, mp=None):
        module = FSDP(module, mixed_precision=mp)
        return module

    def around(self, module):
        return self._fsdp(module)

    def prepare(self, net, blocks):
        {}
"""
IN_PARTS = [
    "net.head = self._fsdp(net.head)\n        return self._fsdp(net)",
    "net.head = self._fsdp(mp=bf16, module=net.head)\n        net = self.around(net.to(0))",
    "net.body = self._fsdp(net.body)\n        return FSDP(net)",
    "for i, b in enumerate(net.blocks):\n            net.blocks[i] = fsdp(b)\n        return fsdp(net)",
    "for s in net.stacks:\n            for b in s:\n                s[0] = fsdp(b)\n        return fsdp(net)",
    "for n, b in net.named_children():\n            setattr(net, n, fsdp(b))\n        return fsdp(net)",
    "net.blocks = torch.nn.ModuleList([fsdp(b) for b in blocks])\n        return fsdp(net)",
]
APART = [
    "net = fsdp(net)\n        return net, fsdp(build())",
    "net.actor, net.critic = fsdp(net.actor), fsdp(net.critic)\n        return net",
    "for i, b in enumerate(blocks):\n            blocks[i] = fsdp(b)\n        return blocks, fsdp(net)",
    "if flag:\n            net.head = fsdp(net.head)\n        else:\n            return fsdp(net)",
    "network = fsdp(network.body)\n        return fsdp(net)",
]


@pytest.mark.parametrize("use", IN_PARTS)
def test_a_function_that_wraps_parts_and_then_the_whole_gets_a_comment(use: str) -> None:
    """FSDP2 shards a model once: the second call of such a function raised."""
    assert "FM303 FSDP inside FSDP: this is called for parts of a model" in turned(BY_A_FUNCTION.format(use))


@pytest.mark.parametrize("use", APART)
def test_a_function_that_wraps_models_of_their_own_is_turned(use: str) -> None:
    assert "FM303" not in dict(codes(BY_A_FUNCTION.format(use)))


COMMENTED = [
    ("model = FSDP(*args, **kwargs)\n", ["FM303"]),
    ("self.module = FSDP(module, *args, **kwargs)\n", ["FM303"]),
    ("net.layers[0] = FSDP(net.layers[0])\nnet = FSDP(net)\n", ["FM303", "FM303"]),
    ("net.encoder = FSDP(net.encoder)\nnet = FSDP(net)\n", ["FM303", "FM303"]),
    ("net = torch.nn.Sequential(FSDP(a), FSDP(b))\n", ["FM303", "FM303"]),
    ("layers = [FSDP(layer) for layer in layers]\n", ["FM303"]),
]


@pytest.mark.parametrize(("body", "expected"), COMMENTED)
def test_what_is_not_certain_gets_a_comment_only(body: str, expected: list[str]) -> None:
    assert_uncertain(body, expected)


@pytest.mark.parametrize(
    "body",
    [
        'model = FSDP(torch.nn.ModuleDict({"enc": enc, "dec": dec}), auto_wrap_policy=policy)\n',
        "both = torch.nn.ModuleList([enc, dec]).to(0)\nmodel = FSDP(both.cuda(), auto_wrap_policy=policy)\n",
    ],
)
def test_a_container_without_a_forward_gets_a_comment(body: str) -> None:
    assert_uncertain(body, ["FM303"])
    assert "has no forward: call prepare_fully_shard(module, {...})" in turned(body)
    kept = body.replace("ModuleDict", "Sequential").replace("ModuleList", "Sequential")
    assert codes(kept) == [("FM301", "rewritten")]


ALIASES = [
    "from torch.distributed.fsdp import FullyShardedDataParallel\nmodel = FullyShardedDataParallel(net)\n",
    "import torch.distributed.fsdp as fsdp\nmodel = fsdp.FullyShardedDataParallel(net)\n",
    "import torch\nmodel = torch.distributed.fsdp.FullyShardedDataParallel(net)\n",
    "from torch.distributed import fsdp\nmodel = fsdp.FullyShardedDataParallel(net)\n",
    (
        "from torch.distributed.fsdp.fully_sharded_data_parallel import FullyShardedDataParallel as F\n"
        "Wrapped = F\nmodel = Wrapped(net)\n"
    ),
    "from torch.distributed.fsdp import *\nmodel = FullyShardedDataParallel(net)\n",
    "def main():\n    from torch.distributed.fsdp import FullyShardedDataParallel as F\n    model = F(net)\n",
    (
        "try:\n    from torch.distributed.fsdp import FullyShardedDataParallel as F\nexcept ImportError:\n"
        "    F = None\nif F is not None:\n    model = F(net)\n"
    ),
]


@pytest.mark.parametrize("source", ALIASES)
def test_the_class_is_known_under_any_name(source: str) -> None:
    after = turned(source, header="")
    assert "model = prepare_fully_shard(net)\n" in after
    assert "from fsdp_migrate import prepare_fully_shard\n" in after
    assert [code for code in codes(source, header="") if code[1] != "kept"] == [("FM301", "rewritten")]


OTHERS = [
    "from fairscale.nn import FullyShardedDataParallel as FSDP\nmodel = FSDP(net)\nmodel.no_sync()\n",
    "class FSDP: ...\n\n\nmodel = FSDP(net)\nmodel.clip_grad_norm_(1.0)\n",
    (
        "from torch.distributed.fsdp import FSDPModule, fully_shard\nmodel = fully_shard(net)\n"
        "isinstance(model, FSDPModule)\n"
    ),
    "import torch\ndef f(FSDP):\n    return FSDP(net)\n",
    "FSDP(net)\n",
]


@pytest.mark.parametrize("source", OTHERS)
def test_what_is_not_torchs_fsdp1_is_left_alone(source: str) -> None:
    assert turned(source, header="") == source
    assert [action for _, action in codes(source, header="") if action != "mentioned"] == []


AMBIGUOUS = """\
if new:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
else:
    from fairscale.nn import FullyShardedDataParallel as FSDP
model = FSDP(net)
with model.no_sync():
    pass
model.state_dict()
"""


def test_a_name_that_may_stand_for_something_else_gets_comments_only() -> None:
    after = turned(AMBIGUOUS, header="")
    assert "".join(line for line in after.splitlines(keepends=True) if "# fsdp-" not in line) == AMBIGUOUS
    assert [code for code, _ in codes(AMBIGUOUS, header="")] == ["FM301", "FM333", "FM333"]


def test_a_name_of_an_inner_scope_hides_the_class() -> None:
    body = "def f(FSDP):\n    return FSDP(net)\n\n\nmodel = FSDP(net)\n"
    assert turned(body) == "def f(FSDP):\n    return FSDP(net)\n\n\nmodel = prepare_fully_shard(net)\n"


def test_names_that_are_taken_are_imported_under_others() -> None:
    body = "def prepare_fully_shard(model): ...\n\n\nmodel = FSDP(net)\n"
    header = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    after = turned(header + body, header="")
    assert "from fsdp_migrate import prepare_fully_shard as fsdp_prepare_fully_shard\n" in after
    assert "model = fsdp_prepare_fully_shard(net)\n" in after


def test_what_is_said_of_the_last_argument_stays_beside_it() -> None:
    body = "model = FSDP(\n    net,\n    device_id=0,  # one\n    cpu_offload=None,  # two\n    # behind\n)\n"
    assert turned(body) == (
        "model = prepare_fully_shard(\n"
        "    net,\n"
        "    {\n"
        '        "device_id": 0,  # one\n'
        '        "cpu_offload": None,  # two\n'
        "        # behind\n"
        "    },\n"
        ")\n"
    )


def test_keywords_of_older_versions_get_their_names_of_today() -> None:
    assert (
        turned("m = FSDP(net, ignored_parameters=x)\n")
        == 'm = prepare_fully_shard(net, {"ignored_states": x})\n'
    )


@pytest.mark.parametrize("name", ["post_param_init_fn", "device_ids", "reshard_after_forward"])
def test_keywords_that_it_never_had_are_said(name: str) -> None:
    found = [use for use in uses(f"m = FSDP(net, {name}=x)\n") if use.code == "FM422"]
    assert [use.action for use in found] == ["commented"]
    assert name in found[0].becomes


def test_what_the_other_branch_imports_by_the_same_name_is_left_alone() -> None:
    body = (
        "def wrap(self, model, xla):\n"
        "    if not xla:\n"
        "        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "        model, self.optimizer = initialize(model, self.optimizer)\n"
        "        return FSDP(model)\n"
        "    else:\n"
        "        from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP\n"
        "        return FSDP(model, xla)\n"
    )
    after = turned(body, header="")
    assert "        return prepare_fully_shard(model)\n" in after
    assert "        return FSDP(model, xla)\n" in after


def test_what_one_of_two_imports_without_branches_brings_is_not_guessed() -> None:
    body = (
        "from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP\n"
        "if on_gpu:\n"
        "    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "model = FSDP(model)\n"
    )
    assert [use.action for use in scan_source(body) if use.rule == "constructor"] == ["commented"]


CHOSEN = [
    "if sharded:\n    wrapper = FSDP\nelse:\n    wrapper = DDP\nmodel = wrapper(net)\n",
    "wrapper = DDP\nif sharded:\n    wrapper = FSDP\nmodel = wrapper(net)\n",
]


@pytest.mark.parametrize("body", CHOSEN)
def test_a_name_for_one_of_several_classes_of_torch_gets_a_comment(body: str) -> None:
    header = "from torch.nn.parallel import DistributedDataParallel as DDP\n"
    assert ("FM301", "commented") in codes(header + body)
    assert "prepare_fully_shard(net)\n" not in turned(header + body)


def test_a_comment_too_says_that_a_name_may_be_anothers() -> None:
    source = (
        "def wrap(net, xla, *given):\n    if xla:\n"
        "        from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP\n"
        "    else:\n        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "    return FSDP(net, *given)\n"
    )
    assert "FM303 this name may stand for something other" in turned(source, header="")


def test_two_alternatives_are_not_one_inside_the_other() -> None:
    body = (
        "if many:\n    self.model = FSDP(self.net.to(device), device_id=0)\n"
        "else:\n    self.model = FSDP(self.net)\n"
    )
    assert [code for code, _ in codes(body)] == ["FM301", "FM301"]
    assert "FM303" in dict(codes("a = FSDP(net.layers)\nb = FSDP(net)\n"))


STAGES = (
    "def main(args):\n    if args.first:\n        model = FSDP(net)\n"
    "        optimizer = Adam(model.parameters())\n"
    "        train(model, optimizer)\n    if not args.first:\n        model = FSDP(model)\n"
)
OTHER_BRANCH = (
    "def main(args):\n    model = make()\n    optimizer = {}\n    if args.plain:\n"
    "        optimizer = Adam(model.parameters())\n    else:\n        model = FSDP(model)\n"
)
EITHER = (
    "net = make()\nif x:\n    net = FSDP(net)\n"
    "optimizer = Adam(net.parameters())\nif not x:\n    net = FSDP(net)\n"
)


@pytest.mark.parametrize(
    ("does", "given"),
    [
        (STAGES, 0),  # it holds what an earlier stage has sharded, and need not be bound here
        (OTHER_BRANCH.format("None"), 0),
        (OTHER_BRANCH.format("Adam(model.parameters())"), 1),
        (EITHER, 1),
    ],
)
def test_optimizers_of_other_branches_and_of_sharded_models_are_not_handed_over(
    does: str, given: int
) -> None:
    assert turned(does).count("optimizers=optimizer") == given


@pytest.mark.parametrize(
    ("made", "code"),
    [
        ("kwargs = {'device_id': 0, 'use_orig_params': True}\n", "FM301"),
        ("kwargs = dict(device_id=0, sharding_strategy=args.strategy)\n", "FM301"),
        ("kwargs = {}\n", "FM301"),
        ("kwargs = {'device_ids': 0}\n", "FM302"),
        ("kwargs = {'device_id': 0, **more}\n", "FM302"),
        ("kwargs = {'device_id': 0, name: 1}\n", "FM302"),
        ("kwargs = dict(more, device_id=0)\n", "FM302"),
        ("kwargs = {'device_id': 0}\nkwargs['use_orig_params'] = True\n", "FM302"),
        ("kwargs = {'device_id': 0}\nfill(kwargs)\n", "FM302"),
        ("kwargs = {'device_id': 0} if one else more\n", "FM302"),
        ("kwargs = make()\n", "FM302"),
    ],
)
def test_keys_that_stand_in_the_source_are_known(made: str, code: str) -> None:
    found = {each for each, _ in codes(f"{made}model = FSDP(net, **kwargs)\n")}
    assert {"FM301", "FM302"} & found == {code}


@pytest.mark.parametrize(
    ("names", "hints"),
    [
        (["device_ids"], ["DistributedDataParallel has it; give device_id the current device"]),
        (["compute_dtype"], ["fairscale's class has it; give mixed_precision"]),
        (
            ["post_param_init_fn", "device_ids", "compute_dtype"],
            ["take it out, or say what was meant by another", "give device_id", "give mixed_precision"],
        ),
    ],
)
def test_each_keyword_that_the_class_never_had_is_said_at_once(names: list[str], hints: list[str]) -> None:
    [use] = [
        use for use in uses(f"m = FSDP(net, {', '.join(f'{n}=x' for n in names)})\n") if use.code == "FM422"
    ]
    assert all(f"`{name}` was never an argument" in use.becomes for name in names)
    assert all(hint in use.becomes for hint in hints)


BESIDE = """\
class Generator(torch.nn.Module):
    pass


def wrap_parts(net, device=None):
    for i, layer in enumerate(net):
        net[i] = FSDP(layer)
    return FSDP(net)


def prepare(net):
    wrap_parts(net)


def show(net, optimizer):
    print(net, optimizer)


def main(base):
    net_g, net_d = Generator(opt.nz), make_d()
    {before}
    net_g = FSDP(net_g, auto_wrap_policy=policy)
    {after}
    optimizer = torch.optim.SGD(net_g.parameters(), lr=1.0)
    show(net_g, optimizer)
    fake = net_g(x)
    net_d(net_g(x)).sum().backward()
    net_d(fake)
"""
ANOTHERS_PARTS = "net_d = wrap_parts(net_d)"


def test_a_model_beside_one_with_wrapped_parts_is_turned() -> None:
    for before, behind in (
        (ANOTHERS_PARTS, "pass"),
        ("pass", APART),
        ("pass", "prepare(net_d); net_d = FSDP(net_d)"),
    ):
        done = turned(BESIDE.format(before=before, after=behind))
        assert "net_g = prepare_fully_shard(net_g" in done
        assert done.count("FM303") == 4 + 2 * ("prepare" in behind)


@pytest.mark.parametrize(
    "before",
    [
        "wrap_parts(net_g)",
        "net_g = wrap_parts(net_g)",
        "prepare(net_g)",
        "prepare(net_g.blocks)",
        "net_g.apply(wrap_parts)",
        "wrapper = functools.partial(wrap_parts, device=0); wrapper(net_g)",
        "wrapper = wrap_parts; wrapper(net_g)",
        "net_g = Generator(wrap_parts(net_d))",
        "net_g = Generator(base)",
        "net_g = base.to(0)",
        "blocks = net_g.blocks; wrap_parts(blocks)",
        "[wrap_parts(each) for each in net_g.children()]",
        "net_d = wrap_parts(net_d); net_g = Generator(net_d)",
        "net_d.head = net_g; wrap_parts(net_d)",
    ],
)
def test_a_model_that_may_hold_wrapped_parts_is_left(before: str) -> None:
    assert "net_g = FSDP(net_g" in turned(BESIDE.format(before=before, after="pass"))


@pytest.mark.parametrize(
    "after", ["wrap_parts(net_g)", "return net_g", "both = [net_g]; wrap_parts(both)", "net_d.g = net_g"]
)
def test_a_model_that_is_handed_on_to_what_wraps_is_left(after: str) -> None:
    assert "net_g = FSDP(net_g" in turned(BESIDE.format(before="pass", after=after))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("backward_prefetch=True", "FSDP1 took any other value, and prefetched nothing: give None."),
        ("mixed_precision=True", "`mixed_precision` is True; expected torch's `MixedPrecision`"),
        ("sharding_strategy='full'", "`sharding_strategy` is 'full', which is no sharding strategy"),
        ("device_id=0, depth=2, auto_wrap_policy=True", "was never an argument"),
        ("backward_prefetch=None", ""),
        ("backward_prefetch=BackwardPrefetch.BACKWARD_PRE", ""),
        ("backward_prefetch=prefetch", ""),
        ("cpu_offload=None, device_id=0, ignored_modules=[], sync_module_states=True", ""),
        ("sharding_strategy=None, mixed_precision=None, auto_wrap_policy=None", ""),
    ],
)
def test_a_value_that_means_nothing_is_named_at_the_call(given: str, words: str) -> None:
    found = [use.becomes for use in uses(f"m = FSDP(net, {given})\n") if use.code == "FM422"]
    assert [words in each for each in found] == [True] * bool(words)
