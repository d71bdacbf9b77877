"""Questions about the shape of parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths, scan_source
from tests.source.samples import IMPORTS, MODEL, assert_commented, assert_left_alone, codes


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


COMMENTED = [
    ("decayed = [p for p in model.parameters() if p.ndim >= 2]\n", "FM318"),
    ("for n, p in model.named_parameters():\n    if len(p.shape) == 1:\n        pass\n", "FM318"),
    ("muon = [p for p in model.parameters() if 2 <= p.ndim]\n", "FM318"),
    ("muon = [p for p in model.parameters() if 1 <= p.ndim < 2]\n", "FM318"),
    ("muon = [p for p in model.parameters() if 1 <= p.ndim <= most]\n", "FM318"),
    ("muon = [p for p in model.parameters() if len(p.size()) > 1]\n", "FM318"),
    ("for p in model.parameters():\n    shape = p.shape\n    x = len(shape) > 1\n", "FM318"),
    ("for p in model.parameters():\n    d = p.dim()\n    if d == 1:\n        p.wd = 0\n", "FM318"),
    (
        "for p in model.parameters():\n    if p.dim() > 1:\n        print(p)\n        muon.append(p)\n",
        "FM318",
    ),
    (
        "for p in model.parameters():\n    if p.dim() > 1:\n        print(p)\n    else:\n        a(p)\n",
        "FM318",
    ),
    (
        (
            "nd = {n: p.ndim for n, p in model.named_parameters()}\n"
            "xs = [p for n, p in model.named_parameters() if nd[n] < 2]\n"
        ),
        "FM318",
    ),
    ("muon = list(filter(lambda p: p.ndim >= 2, model.parameters()))\n", "FM318"),
    ("muon = [p for p in model.parameters() if p.squeeze().ndim > 1]\n", "FM318"),
    ("for n, p in model.named_parameters():\n    x = len(p.detach().squeeze().shape) <= 1\n", "FM318"),
]


@pytest.mark.parametrize(("body", "code"), COMMENTED)
def test_what_is_left_to_people_gets_one_comment(body: str, code: str) -> None:
    assert_commented(body, code)


LEFT_ALONE = [
    # True, or false, of flat parameters and of all others: scalars are sharded by neither.
    "decayed = [p for p in model.parameters() if p.ndim >= 1]\n",
    "decayed = [p for p in model.parameters() if p.dim() > 0]\n",
    "scalars = [p for p in model.parameters() if len(p.shape) == 0]\n",
    "scalars = [p for p in model.parameters() if 1 > p.ndim]\n",
    "every = [p for p in model.parameters() if 1 <= p.ndim <= 9]\n",
    "wide = [x for x in things if x.ndim >= 2]\n",
    "flat = x.ndim == 1\n",
    # What comes of data, in a function that names the model's parameters as well.
    *(
        f"def step(loader):\n    for x in {over}:\n        if x.dim() == 5:\n            x = x[0]\n"
        "    clip(model.parameters(), 1.0)\n"
        for over in ("loader", "tqdm(self.train_loader)", "range(3)", "batches", "zip(samples, labels)")
    ),
    # What is given to a function as well that is given something of another loop.
    (
        "def one(x, c):\n    if x.dim() == 5:\n        x = x[0]\n\n\ndef step(contexts, x):\n"
        "    for c in contexts:\n        one(x, c)\n    clip(model.parameters(), 1.0)\n"
    ),
    # What the function is given that asks the model for a device.
    (
        "def step(ids):\n    assert ids.dim() == 2\n"
        "    device = next(model.parameters()).device\n    model(ids.to(device))\n"
    ),
    "for p in model.parameters():\n    d = x.dim()\n    y = d == 1, p\n",
    "for p in model.parameters():\n    d = p.dim()\n    y = d >= 1\n",
    (
        "out = unwrap(model).generate(x)\ntokens = out.sequences\n"
        "for i, ids in enumerate(tokens):\n    assert ids.ndim == 1\nfor p in model.parameters():\n    p\n"
    ),
    "for x in model(batch):\n    assert x.ndim == 2\nfor p in model.parameters():\n    p\n",
    # What decides on what is shown alone: FM318 stopped the run.
    "for n, p in model.named_parameters():\n    if p.requires_grad and p.dim() > 1:\n        print(n)\n",
    (
        "for n, p in model.named_parameters():\n    if p.ndim < 2:\n        print(n)\n"
        "    else:\n        logger.info(n)\n"
    ),
    "nd = {n: x.ndim for n, x in things}\nxs = [n for n, p in model.named_parameters() if nd[n] < 2]\n",
]


@pytest.mark.parametrize(("shown", "is_said"), [("print(count)", False), ("lr = 1 / count", True)])
def test_a_count_by_dimensions_is_no_choice_where_it_is_shown(shown: str, *, is_said: bool) -> None:
    loop = "for p in model.parameters():\n    if p.ndim < 2:\n        count += p.numel()\n"
    body = f"{MODEL}count = 0\n{loop}{shown}\n"
    assert (("FM318", "commented") in codes(body)) is is_said


@pytest.mark.parametrize("body", LEFT_ALONE)
def test_other_things_with_the_same_names_are_left_alone(body: str) -> None:
    assert_left_alone(body)


@pytest.mark.parametrize(
    ("test", "is_of_parameters"),
    [
        ("param.ndim <= 1", True),
        ("len(param.shape) == 1", True),
        ("self.device_mesh.ndim == 2", False),
        ("mesh.ndim == 2", False),
    ],
)
def test_dimensions_of_a_mesh_are_not_those_of_parameters(test: str, is_of_parameters: bool) -> None:
    body = f"def f(self, mesh, model: FSDP):\n    for param in model.parameters():\n        print({test})\n"
    assert (("FM318", "commented") in codes(body)) is is_of_parameters


@pytest.mark.parametrize("name", ["p", "q"])
def test_a_function_that_is_asked_of_each_parameter(name: str) -> None:
    body = (
        "def is_matrix(q):\n    return q.ndim >= 2\n\n\ndef sort(q, model: FSDP):\n"
        f"    for p in model.parameters():\n        (muon if is_matrix({name}) else adam).append(p)\n"
    )
    assert (("FM318", "commented") in codes(body)) is (name == "p")


@pytest.mark.parametrize("given", ["model", "other"])
def test_an_optimizer_that_sorts_by_dimensions_itself(given: str) -> None:
    """As Muon's classes do: under FSDP1 all of it went to their AdamW."""
    body = (
        "class Muon(torch.optim.Optimizer):\n    def __init__(self, params):\n"
        "        super().__init__(params, {})\n        for p in params:\n"
        "            self.state[p]['use_muon'] = p.ndim >= 2\n\n\n"
        f"model = FSDP(net)\noptimizer = Muon({given}.parameters())\n"
    )
    assert (("FM318", "commented") in codes(body)) is (given == "model")


def test_values_of_a_state_that_was_saved_are_not_parameters() -> None:
    body = (
        "def f(model: FSDP, saved):\n    names = [n for n, _ in model.named_parameters()]\n"
        "    for key, state in saved['state'].items():\n        for k, v in state.items():\n"
        "            print(v.dim() == 0, names)\n"
    )
    assert "FM318" not in {code for code, _ in codes(body)}


@pytest.mark.parametrize(
    "call",
    [
        "optim_factory.add_weight_decay(model.module, 0.1)",
        "optim_factory.create_optimizer(args, model)",
        "timm.optim.param_groups_weight_decay(model)",
        "create_loraplus_optimizer(model=model, optimizer_cls=AdamW, lr=1e-4, loraplus_lr_ratio=16)",
    ],
)
def test_functions_of_packages_that_group_by_shape(call: str) -> None:
    body = (
        "import timm\nimport timm.optim.optim_factory as optim_factory\n"
        f"from peft.optimizers import create_loraplus_optimizer\nmodel = FSDP(net)\ngroups = {call}\n"
    )
    assert ("FM318", "commented") in codes(body)
    assert ("FM318", "commented") not in codes(body.replace("FSDP(net)", "net"))


def test_before_the_wrapping_parameters_have_their_own_shapes() -> None:
    marked = "for p in {}.parameters():\n    p.no_decay = p.ndim < 2\n"
    used = "opt = torch.optim.AdamW(model.parameters())\n"
    assert "FM318" not in dict(codes(f"{marked.format('net')}model = FSDP(net)\n{used}"))
    assert "FM318" in dict(codes(f"model = FSDP(net)\n{marked.format('model')}{used}"))


@pytest.mark.parametrize(
    ("given", "is_said"),
    [
        ("sharding_strategy=ShardingStrategy.NO_SHARD, use_orig_params=True", False),
        ("sharding_strategy=ShardingStrategy.NO_SHARD", True),
        ("sharding_strategy=ShardingStrategy.FULL_SHARD, use_orig_params=True", True),
    ],
)
def test_parameters_that_kept_their_shapes(given: str, is_said: bool) -> None:
    body = f"model = FSDP(net, {given})\nx = [p for p in model.parameters() if p.ndim >= 2]\n"
    assert ("FM318" in dict(codes(body))) is is_said


CONSTRUCTS = """\
from accelerate import Accelerator, FullyShardedDataParallelPlugin


class Trainer:
    def __init__(self, args):
        self.accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())
        self.model = build(args)
        {}

    def configure(self):
        params = {{n: p for n, p in self.model.named_parameters()}}
        return [p for n, p in params.items() if p.dim() >= 2]
"""
PREPARES = "self.model, self.optim = self.accelerator.prepare(self.model, {})"


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        (f"self.optim = AdamW(self.configure())\n        {PREPARES.format('self.optim')}", False),
        (PREPARES.format("AdamW(self.configure())"), False),
        (f"{PREPARES.format('optim')}\n        self.kept = self.configure()", True),
        (
            f"self.a = self.configure()\n        {PREPARES.format('x')}\n        self.b = self.configure()",
            True,
        ),
        (PREPARES.format("optim"), True),
    ],
)
def test_a_method_that_is_called_above_the_sharding_alone(body: str, *, is_said: bool) -> None:
    assert ("FM318" in {use.code for use in scan_source(CONSTRUCTS.format(body))}) is is_said


WRAPS = "def main(net):\n    model = FSDP(net, use_orig_params=True)\n"


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("    return list(filter(lambda p: p.ndim >= 2, model.parameters()))\n", True),
        ("    keep = lambda p: p.dim() >= 2\n    return list(filter(keep, model.parameters()))\n", True),
        (
            (
                "    out = lambda n, p: p.ndim < 2 or 'bn' in n\n    keep = lambda n, p: not out(n, p)\n"
                "    named = list(model.named_parameters())\n    return [p for n, p in named if keep(n, p)]\n"
            ),
            True,
        ),
        ("    keep = lambda q: q.ndim < 2\n    return [p for p in model.parameters() if keep(q=p)]\n", True),
        ("    model.parameters()\n    return list(filter(lambda p: p.ndim >= 2, batches))\n", False),
        ("    keep = lambda p: p.ndim < 2\n    model.parameters()\n    return keep(batch)\n", False),
        ("    keep = lambda n, p: p.ndim < 2\n    return [keep(p, x) for p in model.parameters()]\n", False),
        ("    keep = lambda p: p.ndim < 2\n    return [keep(*p) for p in model.parameters()]\n", False),
        (
            (
                "    keep = lambda p: p.ndim < 2\n    keep = other\n"
                "    return [keep(p) for p in model.parameters()]\n"
            ),
            False,
        ),
    ],
)
def test_a_function_without_a_name_that_is_given_parameters(body: str, *, is_said: bool) -> None:
    assert (("FM318", "commented") in codes(WRAPS + body)) is is_said


CHOSEN = [
    "big = [p for p in model.parameters() if p.numel() > 1000]",
    "big = {n: p for n, p in model.named_parameters() if n_vocab == p.shape[0]}",
    "big = [p for p in model.parameters() if p.size(0) >= cfg.size]",
    "big = list(p for p in model.parameters() if p.nelement() < 1_000)",
    "for p in model.parameters():\n    if p.numel() > 1000:\n        big.append(p)",
    "for p in model.parameters():\n    if p.shape[-1] == 8:\n        p.requires_grad = False",
    "for p in model.parameters():\n    n = p.numel()\n    if n < 9:\n        n\n    else:\n        x.add(p)",
    "for n, p in model.named_parameters():\n    if p.numel() > 1000:\n        rates[n] = 0.1",
    "def put(p):\n    if p.numel() > 1000:\n        big.append(p)\nfor p in model.parameters():\n    put(p)",
]
COUNTED = [
    # Whether there is anything of one on this rank.
    "kept = [p for p in model.parameters() if p.numel() > 0]",
    "kept = [p for p in model.parameters() if p.numel() != 0]",
    "for p in model.parameters():\n    if p.numel() >= 1:\n        kept.append(p)",
    # Counted and printed.
    "n = sum(1 for p in model.parameters() if p.numel() > 1000)",
    "for p in model.parameters():\n    if p.numel() > 1000:\n        print(p.shape)",
    "is_big = any(p.numel() > 1000 for p in model.parameters())",
    "for p in model.parameters():\n    assert p.shape[0] == 8",
    # Of another thing, of two parameters, and of how many dimensions.
    "big = [x for x in things if x.numel() > 1000]",
    "same = [p for p in model.parameters() if p.shape == other.shape]",
    "same = [p for p in model.parameters() if p.numel() == p.grad.numel()]",
    "big = [p for p in model.parameters() if len(names) > 1000]",
]


@pytest.mark.parametrize("body", CHOSEN)
def test_parameters_that_are_chosen_by_their_size(body: str) -> None:
    assert_commented(f"{body}\n", "FM318")


@pytest.mark.parametrize("body", COUNTED)
def test_sizes_that_choose_nothing_are_left_alone(body: str) -> None:
    assert ("FM318", "commented") not in codes(f"model = FSDP(net)\n{body}\n")
    assert ("FM318", "commented") not in codes(f"{CHOSEN[0].replace('model', 'net')}\nmodel = FSDP(net)\n")


BY_A_FUNCTION = """\
def fsdp(module, **kw):
    return FSDP(module, **kw)

def main(net):
    {}for i, b in enumerate(net.blocks):
        net.blocks[i] = fsdp(b)
    model = fsdp(net)
    {}return model
"""
TEST = "d = [n for n, p in {}.named_parameters() if p.ndim > 1]\n    "


@pytest.mark.parametrize(
    ("above", "below", "is_said"),
    [(TEST.format("net"), "", False), ("", TEST.format("net"), True), ("", TEST.format("model"), True)],
)
def test_dimensions_above_a_function_that_shards_were_those_of_the_whole(
    above: str, below: str, is_said: bool
) -> None:
    assert ("FM318" in dict(codes(BY_A_FUNCTION.format(above, below)))) is is_said


OVER = "xs = [n for n, p in {}.named_parameters() if p.ndim == 2]"
MODELS = "model, other = FSDP(net), FSDP(net2)\n"
SUMMON = "with FSDP.summon_full_params(model):\n    {}\n"
BIG = "def big(m):\n    {}\n    return xs\n".format(OVER.format("m"))
CLOSED = "def closed():\n    return [p for p in model.parameters() if p.dim() > 1]\n"
ASKED = "def is_matrix(p):\n    return p.ndim == 2\n"
MATRICES = "ys = [p for p in model.parameters() if is_matrix(p)]"
PRUNER = """\
class Pruner:
    def __init__(self, net):
        self.model = FSDP(net)

    def targets(self):
        return [p for p in self.model.parameters() if p.dim() == 4]

    def update(self):
        with FSDP.summon_full_params(self.model):
            self.targets()

"""


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        (SUMMON.format(OVER.format("model")), False),
        (SUMMON.format(OVER.format("model.layers")), False),
        (SUMMON.replace("(model", "(module=model").format(OVER.format("model")), False),
        (SUMMON.replace("model)", "model, recurse=False)").format(OVER.format("model")), True),
        (SUMMON.format(OVER.format("other")), True),
        (f"{SUMMON.format('pass')}{OVER.format('model')}\n", True),
        (BIG + SUMMON.format("big(model)"), False),
        (f"{BIG}{SUMMON.format('big(model)')}big(model)\n", True),
        (BIG + SUMMON.format("big(other)"), True),
        (CLOSED + SUMMON.format("closed()"), False),
        (CLOSED + SUMMON.replace("model", "other").format("closed()"), True),
        (f"{CLOSED}{SUMMON.format('closed()')}closed()\n", True),
        (ASKED + SUMMON.format(MATRICES), False),
        (f"{ASKED}{MATRICES}\n", True),
        (PRUNER, False),
        (f"{PRUNER}Pruner(net).targets()\n", True),
        # By way of a function that such a block alone calls.
        (f"{BIG}def show(m):\n    big(m)\n\n{SUMMON.format('show(model)')}", False),
        (f"{BIG}def show(m):\n    big(m)\n\n{SUMMON.format('show(model)')}show(other)\n", True),
        (f"import timm\n{SUMMON.format('g = timm.optim.param_groups_weight_decay(model)')}", False),
    ],
)
def test_where_parameters_are_summoned_they_had_their_shapes(body: str, *, is_said: bool) -> None:
    functions, mark, block = body.rpartition("with FSDP")
    assert (("FM318", "commented") in codes(f"{functions}{MODELS}{mark}{block}")) is is_said


@pytest.mark.parametrize(
    ("calls", "is_said"),
    [
        ("with FSDP.summon_full_params(model):\n    big(model)\n", False),
        ("with FSDP.summon_full_params(model):\n    big(model)\nbig(model)\n", True),
        ("with FSDP.summon_full_params(other):\n    big(model)\n", True),
    ],
)
def test_a_function_of_another_file_that_is_given_summoned_models_alone(
    tmp_path: Path, calls: str, *, is_said: bool
) -> None:
    (tmp_path / "sizes.py").write_text(BIG)
    (tmp_path / "train.py").write_text(f"{IMPORTS}from sizes import big\n{MODELS}{calls}")
    assert ("FM318" in {use.code for use in scan_paths([tmp_path]).uses}) is is_said
