"""Names that stand for another model further down."""

from __future__ import annotations

import textwrap

import pytest

from fsdp_migrate.source import scan_source
from fsdp_migrate.source.python.text import Source
from tests.source.samples import IMPORTS, codes, uses


pytestmark = pytest.mark.any_torch

_WRAPPED = "model = FSDP(net)\nrun(model)\n"
_MIXED = """\
model = load(args)
if sharded:
    model = FSDP(model)
else:
    model = torch.nn.parallel.DistributedDataParallel(model)
"""


def _found(body: str) -> set[str]:
    return {code for code, _ in codes(f"def f(net, args, sharded):\n{textwrap.indent(body, '    ')}")}


@pytest.mark.parametrize(
    "anew",
    [
        "del model\nmodel, _, _ = build(args, distributed=False)\n",
        "del model, net\nmodel = build(args)\n",
        "model = load(args)\n",
        "model = Net(args)\n",
        "model = AutoModel.from_pretrained(args)\n",
        "del model\nmodel, _ = build(args)\nmodel = model.to(device)\nmodel = model.eval()\n",
        "model = Net(args)\nif bf16:\n    model = model.bfloat16()\n",
    ],
)
def test_a_name_that_is_bound_to_a_plain_model_again(anew: str) -> None:
    used = "model.load_state_dict(state)\nmodel.save_pretrained(folder)\nfor x in xs:\n    model.module\n"
    assert _found(f"{_MIXED}{anew}{used}") == {"FM301"}
    # What is wrapped again is a model of FSDP1's again.
    assert "FM308" in _found(f"{_WRAPPED}{anew}model = FSDP(model)\nmodel.load_state_dict(state)\n")


@pytest.mark.parametrize(
    "anew",
    [
        "model = build(args)\n",
        "model = model.to(device)\n",
        "if again:\n    model = Net(args)\nmodel = model.to(device)\n",
        "model = Net(args)\nmodel = model.shard()\nmodel = model.to(device)\n",
        "del model\nmodel = setup_model(args)\n",
        "del model\nmodel = build(args, fsdp=True)\n",
        "model = Wrapper(model)\n",
        "model = ManualFSDP(net)\n",
        "if again:\n    model = Net(args)\n",
        "model = Net(args)\nFSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)\n",
        "other = model\nmodel = Outer(other)\n",
    ],
)
def test_a_name_that_may_be_a_sharded_model_still(anew: str) -> None:
    assert {"FM308", "FM333"} & _found(f"{_WRAPPED}{anew}model.load_state_dict(state)\n")


def test_a_name_that_is_another_model_in_the_other_branch() -> None:
    made = "del model\nmodel, _ = build(args)\n"
    anew = f"{made}if lora:\n    model = {{}}\nelse:\n    model.load_state_dict(state)\n"
    assert _found(f"{_MIXED}{anew.format('Peft(model, args)')}") == {"FM301"}
    loop = f"for x in xs:\n{textwrap.indent(anew.partition(chr(10))[2], '    ')}"
    assert {"FM308", "FM333"} & _found(f"{_MIXED}{loop.format('FSDP(model)')}")


@pytest.mark.parametrize(
    ("sharding", "before", "is_plain"),
    [
        ("ref = FSDP(model)\nrun(ref)\ndel ref\ndel model\nmodel = build(args)", "", True),
        ("ref = FSDP(model)\nmodel = Net(args)", "", True),
        ("model = FSDP(model)\nmodel = Net(args)", "", True),
        ("if args:\n    ref = FSDP(model)\ndel model\nmodel = build(args)", "", True),
        ("ref = FSDP(model)\ndel model\nif args:\n    model = build(args)", "", False),
        ("ref = FSDP(model)\ndel model\nmodel = build(args)\nmodel = setup_model(model)", "", False),
        ("ref = FSDP(model)\ndel model\nmodel = build(args)\nnew = FSDP(model)", "", False),
        ("ref = FSDP(model)\ndel model\nmodel = build(ref)", "", False),
        ("ref = FSDP(model)\ndel model\nmodel = build(args)", "for x in xs:", False),
    ],
)
def test_a_name_that_the_branch_which_shards_binds_to_a_plain_model(
    sharding: str, before: str, *, is_plain: bool
) -> None:
    """It counted as sharded below the branch, and advice was given there that raises."""
    branch = f"if sharded:\n{textwrap.indent(sharding, '    ')}\nelse:\n    run(model)\n"
    used = f"{branch}for p in model.parameters():\n    p.uniform_(-1, 1)\n"
    used = f"{before}\n{textwrap.indent(used, '    ')}" if before else used
    assert ("FM336" not in _found(f"model = Net(args)\n{used}")) is is_plain


def test_a_model_that_a_function_is_given_may_be_sharded_where_it_does_not_shard_it() -> None:
    body = (
        "def f(model, sharded):\n    if sharded:\n        ref = FSDP(model)\n        model = Net(1)\n"
        "    model.load_state_dict(state)\nf(FSDP(net), x)\n"
    )
    assert {"FM308", "FM333"} & {code for code, _ in codes(body)}


def test_a_name_that_is_wrapped_in_a_later_round() -> None:
    loop = "for x in xs:\n    model.load_state_dict(state)\n    model = FSDP(net)\n"
    assert "FM308" in _found(f"model = Net(args)\n{loop}")


@pytest.mark.parametrize(
    "test",
    [
        'type(model).__name__ == "DistributedDataParallel"',
        'model.__class__.__name__ in ("DistributedDataParallel", "DataParallel")',
        "type(model) is torch.nn.parallel.DistributedDataParallel",
        '"DistributedDataParallel" in str(type(model))',
    ],
)
def test_ddps_class_by_its_name(test: str) -> None:
    assert _found(f"{_MIXED}if {test}:\n    return model.module\n") == {"FM301"}
    assert "FM333" in _found(f"{_MIXED}if not ({test}):\n    return model.module\n")
    assert "FM333" in _found(f"{_MIXED}if {test} or sharded:\n    return model.module\n")


def test_a_class_by_several_names_is_in_doubt() -> None:
    names = '("DistributedDataParallel", "FullyShardedDataParallel")'
    assert "FM333" in _found(f"{_MIXED}if type(model).__name__ in {names}:\n    return model.module\n")


def test_a_state_that_each_sharded_model_has_set() -> None:
    check = "state = None\nif isinstance(model, FSDP){}:\n    state = model.state_dict()\n"
    rest = "save(state if state is not None else model.state_dict())\n"
    assert "FM333" not in _found(f"{_MIXED}{check.format('')}{rest}")
    # Of other ranks it is None, and sharded.
    assert "FM333" in _found(f"{_MIXED}{check.format(' and rank == 0')}{rest}")
    assert "FM333" in _found(f"{_MIXED}{check.format('')}save(state or model.state_dict())\n")


@pytest.mark.parametrize(
    ("value", "is_said"),
    [
        ("{}", False),
        ("{k: v.cpu() for k, v in model.named_parameters()}", False),
        ("get_model_state_dict(model)", False),
        ("get_model_state_dict(net)", True),
        ("None\n    assert not lora\n    state = model.state_dict()", False),
        ("None\n    if main:\n        state = model.state_dict()", True),
        ("gather(model)", True),
        ("None", True),
    ],
)
def test_the_fallback_of_a_state_that_was_taken(value: str, is_said: bool) -> None:
    check = f"state = None\nif isinstance(model, FSDP):\n    state = {value}\n"
    for rest in (
        "save(state if state is not None else model.state_dict())\n",
        "if state is None:\n    state = model.state_dict()\n",
    ):
        found = codes(f"def f(net, args, sharded):\n{textwrap.indent(_MIXED + check + rest, '    ')}")
        assert any(code == "FM333" for code, _ in found) is is_said, rest


SETUP = """\
class Trainer:
    def setup(self):
        {first}
        self.ema = copy.deepcopy(self.net)
        {then}

    def shard(self):
        self.net = FSDP(self.net)
"""


def test_what_stands_before_the_call_of_the_method_that_wraps() -> None:
    header = "import copy\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"

    def found(first: str, then: str, more: str = "") -> set[str]:
        uses = scan_source(header + SETUP.format(first=first, then=then) + more)
        return {use.code for use in uses if use.action == "commented"}

    assert found("pass", "self.shard()") == set()
    assert found("self.shard()", "pass") == {"FM323"}
    assert found("pass", "pass") == {"FM323"}
    assert found("pass", "self.shard()", "\n    def again(self):\n        self.shard()\n") == {"FM323"}


ABOVE = (
    "model.load_state_dict(x)",
    "model.save_pretrained(x)",
    "model.apply(init)",
    "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
    "x = model.sharding_strategy",
    "x = model.head.weight.data",
    "x = [type(m) is Block for m in model.modules()]",
    "x = [p for p in model.parameters() if p.ndim >= 2]",
    "for p in model.parameters(): p.data = p.data.half()",
    "other.load_state_dict({n: p for n, p in model.named_parameters()})",
)
SHARD = "def shard(model):\n    {0}\n    {1}\n    return model\n\n\n{2}"
WRAP = "model = FSDP(model)"
CALLS = ("net = shard(net)\n", "pipe.net = shard(pipe.net)\n", "model = shard(net)\nshard(model)\n")


@pytest.mark.parametrize("use", ABOVE)
def test_a_function_has_the_plain_model_above_the_wrapping(use: str) -> None:
    for call in CALLS:
        assert {code for code, _ in codes(SHARD.format(use, WRAP, call))} == {"FM301"}, call
        assert {code for code, _ in codes(SHARD.format(WRAP, use, call))} != {"FM301"}, call
    # Where it is not wrapped in each case it may have been given one that is.
    for some in (f"if x:\n        {WRAP}", f"if not isinstance(model, FSDP):\n        {WRAP}"):
        assert {"FM301"} < {code for code, _ in codes(SHARD.format(use, some, CALLS[-1]))}


def test_above_its_wrapping_an_attribute_is_plain_in_what_wraps_it() -> None:
    walk = "for p in m.parameters():\n            p.data = p.data.half()\n        "
    body = (
        "class T:\n    def setup(self):\n        self.net = self.wrap(self.net)\n\n"
        "    def wrap(self, m):\n        {}m = FSDP(m)\n        {}return m\n"
    )
    assert codes(body.format(walk, "")) == [("FM301", "rewritten")]
    assert ("FM423", "commented") in codes(body.format("", walk))


@pytest.mark.parametrize(
    ("put", "is_sharded"),
    [
        ("m.head = nn.Linear(4, 4)", False),
        ("m.other = nn.Linear(4, 4)", True),
        ("m.head = FSDP(nn.Linear(4, 4))", True),
        ("m.head = torch.compile(m.head)", True),
        ("m.head = nn.Linear(4, 4)\nm = FSDP(m)", True),
    ],
)
def test_a_part_that_is_put_onto_a_sharded_model(put: str, is_sharded: bool) -> None:
    body = f"m = FSDP(net)\n{put}\nm.head.weight.data.copy_(x)\n"
    assert (("FM336", "commented") in codes(body)) is is_sharded


_KEPT = """\
class Runs:
    def run(self, cfg, x):
        {first}
        {second}
    def make(self, cfg, x):
        {made}
        self.net.load_state_dict(x)
    def shard(self):
        self.net = FSDP(self.net)
    def give(self):
        return self.net
    def wrap(self):
        return FSDP(self.give())
"""


@pytest.mark.parametrize(
    "order", [("self.make(cfg, x)", "self.shard()"), ("self.shard()", "self.make(cfg, x)")]
)
@pytest.mark.parametrize(
    ("made", "is_plain"),
    [
        ("self.net = create(cfg)", True),
        ("self.net = Net(cfg).cuda()", True),
        ("self.net = create(cfg)\n        print(x)\n        x.clear()", True),
        ("self.net = create(cfg)\n        if x:\n            self.net.eval()", True),
        ("self.net = create(cfg)\n        self.shard()", False),
        ("self.net = create(cfg)\n        helper(self)", False),
        ("self.net = self.wrap()", False),
        ("self.net = FSDP(create(cfg))", False),
        ("self.net = shard_model(cfg)", False),
        ("self.net = build(self.net)", False),
        ("if x:\n            self.net = create(cfg)", False),
        ("pass", False),
    ],
)
def test_an_attribute_that_is_given_a_new_model_is_plain(
    order: tuple[str, str], made: str, *, is_plain: bool
) -> None:
    first, second = order
    body = _KEPT.format(first=first, second=second, made=made)
    found = {text for code, text in ((use.code, use.text) for use in uses(body)) if code == "FM308"}
    assert ("self.net.load_state_dict(x)" not in found) is is_plain


_ITEMS = """\
class System(Base):
    def __init__(self, build, names, state):
        {made}
        for name in names:
            self.heads[name] = build(name)
            {above}
            self.heads[name].load_state_dict(state)
    def shard(self):
        self.net = FSDP(self.net)
        for name in self.heads:
            self.heads[name] = FSDP(self.heads[name])
"""


def _are_models(body: str) -> list[bool]:
    """Return of each thing whose state is asked for or loaded whether it is known as a sharded model."""
    source = Source(f"{IMPORTS}{body}", "train.py")
    asked = [each for each in source.attributes if each.attr.value.endswith("state_dict")]
    return [source.models.certainty(each.value) is not None for each in asked]


@pytest.mark.parametrize(
    ("above", "is_plain"),
    [
        ("log(name)", True),
        # What may wrap it in between, or speaks of another item.
        ("self.shard()", False),
        ("register(self)", False),
        ("name = 'other'", False),
        ("self.heads = heads", False),
    ],
)
def test_an_item_that_another_method_wraps_is_plain_where_it_was_just_made(
    above: str, *, is_plain: bool
) -> None:
    assert _are_models(_ITEMS.format(above=above, made="pass")) == [not is_plain]


@pytest.mark.parametrize("kind", [": Net", ""])
@pytest.mark.parametrize(("above", "is_plain"), [("log(names)", True), ("self.shard()", False)])
def test_so_is_an_attribute_whatever_its_annotation(kind: str, above: str, *, is_plain: bool) -> None:
    made = f"self.net{kind} = build(0); {above}; self.net.state_dict()"
    assert _are_models(_ITEMS.format(above="pass", made=made))[0] is not is_plain


@pytest.mark.parametrize("made", ["torch.nn.ModuleDict()", "Heads()", "dict()", "{}"])
@pytest.mark.parametrize("item", ["heads['a']", "heads[0]", "heads['a']['b']"])
def test_a_dict_is_not_made_anew_by_what_is_put_into_it_below(made: str, item: str) -> None:
    body = f"def f(net):\n    heads = {made}\n    {item} = FSDP(net)\n    {item}.state_dict()\n"
    assert _are_models(body) == [True]
    assert _are_models(body.replace(f"    {item}.state", f"    heads = {made}\n    {item}.state")) == [
        made == "{}"
    ]


_SHOWN = """\
def f(net, device, distributed):
    if distributed:
        model = FSDP(net)
    else:
        {other}
    if not distributed:
        model.state_dict()
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        model.state_dict()
"""


@pytest.mark.parametrize(
    ("other", "is_plain"),
    [
        ("model = net.to(device)", True),
        ("model = net", True),
        ("model = Net().eval()", True),
        # What FSDP1's function is given may be sharded by what is not seen.
        ("model = build(net)", False),
        ("model = other.to(device)", False),
    ],
)
def test_a_branch_that_leaves_the_model_plain_is_so_whatever_is_asked_below(
    other: str, *, is_plain: bool
) -> None:
    assert _are_models(_SHOWN.format(other=other)) == [not is_plain, True]
