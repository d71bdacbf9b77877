"""What one branch shows, and what it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths, scan_source
from tests.source.samples import codes, turned


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


def test_below_a_switch_it_shows_nothing_of_what_is_outside() -> None:
    body = (
        "def save(model, use_fsdp):\n"
        "    if use_fsdp:\n"
        "        state = FSDP.optim_state_dict(model, None)\n"
        "    return model.state_dict()\n"
    )
    assert "return model.state_dict()" in turned(body)


def test_and_nothing_of_the_other_branch() -> None:
    body = (
        "def save(model, sharded):\n"
        "    if sharded:\n"
        "        state = FSDP.optim_state_dict(model, optimizer)\n"
        "    else:\n"
        "        state = model.state_dict()\n"
    )
    assert "state = model.state_dict()" in turned(body)


SWITCHED = [
    (
        "def save(model, mode):\n"
        "    match mode:\n"
        "        case 'fsdp':\n"
        "            state = FSDP.optim_state_dict(model, optimizer)\n"
        "        case 'ddp':\n"
        "            state = model.module.state_dict()\n"
    ),
    (
        "def save(model, mode):\n"
        "    match mode:\n"
        "        case 'torch_ddp' | 'ddp':\n"
        "            state = model.module.state_dict()\n\n\n"
        "save(FSDP(net), 'ddp')\n"
    ),
    (
        "def save(model):\n    if mode == 'ddp':\n        state = model.module.state_dict()\n\n\n"
        "save(FSDP(net))\n"
    ),
    (
        "def save(model):\n    if mode != 'torch_fsdp':\n        state = model.module.state_dict()\n\n\n"
        "save(FSDP(net))\n"
    ),
    (
        "def save(model):\n    if mode == 'fsdp':\n        return None\n"
        "    else:\n        state = model.module.state_dict()\n\n\nsave(FSDP(net))\n"
    ),
]


@pytest.mark.parametrize("body", SWITCHED)
def test_a_branch_for_another_word_than_fsdp_is_left_alone(body: str) -> None:
    assert "            state = model.module.state_dict()\n".lstrip() in turned(body)
    assert "FM333" not in turned(body)


@pytest.mark.parametrize("other", ["hsdp", "fsdp2", "zero3"])
def test_what_is_not_fsdp_may_be_another_word_for_it(other: str) -> None:
    lines = "def save(model):\n    if mode != 'fsdp':\n        model.module.state_dict()\n"
    body = f"{lines}\n\nx = '{other}'\nsave(FSDP(net))\n"
    assert "model.module.state_dict()" not in turned(body)


@pytest.mark.parametrize(
    ("asks", "is_word"),
    [
        ("cfg.sharding_strategy = 'full_shard'\n", False),
        ("if mode == 'full_shard':\n    go()\n", True),
        ("choices = ['fsdp', 'full_shard']\n", True),
    ],
)
def test_how_fsdp_shards_is_a_word_for_it_where_it_is_asked_for(asks: str, *, is_word: bool) -> None:
    lines = "def save(model):\n    if mode != 'fsdp':\n        model.module.state_dict()\n"
    body = f"{lines}\n\n{asks}save(FSDP(net))\n"
    assert ("model.module.state_dict()" not in turned(body)) is is_word


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (
            "FM327",
            (
                "args = transformers.HfArgumentParser(transformers.TrainingArguments).parse()[0]\n"
                'if not args.fsdp:\n    args.fsdp = "full_shard auto_wrap"\n'
            ),
        ),
        (
            "FM319",
            'if not use_fsdp:\n    kwargs["strategy"] = "fsdp"\nlightning.Trainer(**kwargs)\n',
        ),
    ],
)
def test_what_switches_fsdp_on_where_it_is_off_is_said(code: str, body: str) -> None:
    found = scan_source(f"import lightning\nimport transformers\n{body}")
    assert code in {use.code for use in found if use.action == "commented"}


def test_where_there_is_no_sharded_model() -> None:
    body = (
        "def inner(m):\n    if isinstance(m, FSDP):\n        return m.module\n    return m\n\n\n"
        "def save(model: FSDP, fsdp_model, optim):\n    if fsdp_model is not None:\n        pass\n    else:\n"
        "        state = inner(model).state_dict()\n        moments = optim.state_dict()\n"
    )
    assert {code for code, action in codes(body) if action == "commented"} == set()
    assert ("FM425", "commented") in codes(body.replace("fsdp_model is not", "other is not"))


WRAPS = "    if {}:\n        net = FSDP(net)\n"
SAVE = "torch.save(net.state_dict(), 'x.pt')"
SAVES = f"    if {{}}:\n        x = 1\n    else:\n        {SAVE}\n"
PLAIN = "    plain = ready() and not args.shard\n"
ONE_OF = "    one = args.train and kind == 'one'\n    two = args.train and kind == 'two'\n"
DECIDED = [
    ("args.shard", "args.shard"),
    ("not args.plain", "not args.plain"),
    ("kind == 'one'", 'kind == "one"'),
    ("kind == 'one'", "kind != 'two'"),
    ("cfg.strategy.shard and args.train", "cfg.strategy.shard"),
    ("args.shard or args.hybrid", "args.shard or args.hybrid"),
    ("cfg.get('shard')", "cfg.get('shard')"),
    ("cfg", "cfg is not None"),
]
OFF = [f"{WRAPS.format(wraps)}{SAVES.format(asks)}" for wraps, asks in DECIDED]
OFF += [
    f"{WRAPS.format('args.shard')}    if args.shard:\n        return\n    {SAVE}\n",
    f"{WRAPS.format('args.shard')}    if not args.shard:\n        {SAVE}\n",
    f"    net = FSDP(net) if args.shard else net\n{SAVES.format('args.shard')}",
    f"{PLAIN}{WRAPS.format('args.shard and ready()')}    if plain:\n        {SAVE}\n",
    f"{ONE_OF}{WRAPS.format('two')}    if one or not args.train:\n        {SAVE}\n",
    f"{ONE_OF}{WRAPS.format('two')}    if not (two and args.train):\n        {SAVE}\n",
]
ON = [
    f"{ONE_OF}{WRAPS.format('two')}    if one or args.shard:\n        {SAVE}\n",
    f"{ONE_OF}{WRAPS.format('two')}    if not args.train or two:\n        {SAVE}\n",
    f"{ONE_OF}    kind = 2\n{WRAPS.format('two')}    if one or not args.train:\n        {SAVE}\n",
    f"{PLAIN}    args.shard = 1\n{WRAPS.format('args.shard')}    if plain:\n        {SAVE}\n",
    f"{PLAIN}    if cfg:\n        plain = 1\n{WRAPS.format('args.shard')}    if plain:\n        {SAVE}\n",
    f"{PLAIN.replace('and', 'or')}{WRAPS.format('args.shard')}    if plain:\n        {SAVE}\n",
    f"{WRAPS.format('args.shard')}{SAVES.format('args.train')}",
    f"{WRAPS.format('args.shard')}    args.shard = False\n{SAVES.format('args.shard')}",
    f"{WRAPS.format('cfg is not None')}{SAVES.format('cfg')}",
    WRAPS.format("kind == 'one'") + SAVES.format("kind == 'two' or args.shard"),
    f"{WRAPS.format('isinstance(net, A)')}{SAVES.format('isinstance(net, A)')}",
    f"{WRAPS.format('args.one')}{WRAPS.format('args.two')}{SAVES.format('args.one')}",
    f"    for i in x:\n        if i < 1:\n            net = FSDP(net)\n        if i:\n            {SAVE}\n",
]


def _functions(bodies: list[str]) -> str:
    head = "def f{}(args, cfg, kind, net):\n{}"
    return "\n\n".join(head.format(number, body) for number, body in enumerate(bodies))


def test_where_the_switch_of_the_wrapping_is_off_nothing_is_sharded() -> None:
    after = turned(_functions(OFF))
    assert after.count(SAVE) == len(OFF)
    assert "get_model_state_dict" not in after


def test_where_another_switch_is_off_it_may_be_sharded() -> None:
    assert SAVE not in turned(_functions(ON))


METHODS = """\
class {0}:
    def __init__(self, cfg, net):
        self.cfg, self.on = cfg, cfg.on

    def build(self, now):
        if {1}:
            self.net = FSDP(self.net)

    def save(self, now):
        if {1}:
            return
        torch.save(self.net.state_dict(), "{0}")
"""
ANEW = """
    def turn(self):
        self.cfg.shard = True

    def turn_back(self):
        self.cfg.shard = False
"""


def test_methods_of_one_class_ask_the_same_switch() -> None:
    switches = {"A": "self.cfg.shard", "B": "self.on", "C": "SHARD", "D": "now", "E": "self.is_on()"}
    body = "\n\n".join(METHODS.format(name, switch) for name, switch in switches.items())
    # What is set anew may have been on before.
    after = turned(f"SHARD = 1\n\n\n{body}\n\n{METHODS.format('F', 'self.cfg.shard')}{ANEW}")
    plain = [name for name in "ABCDEF" if f'torch.save(self.net.state_dict(), "{name}")' in after]
    assert plain == ["B", "C"]
    plain_alone = turned(METHODS.format("A", "self.cfg.shard"))
    assert 'torch.save(self.net.state_dict(), "A")' in plain_alone


def test_what_was_found_to_be_no_module_is_no_model() -> None:
    ask = "        return x.state_dict()\n"
    checks = ("not isinstance(x, torch.nn.Module)", "isinstance(x, torch.optim.Optimizer)")
    bodies = [f"def f{n}(x: FSDP):\n    if {check}:\n{ask}" for n, check in enumerate(checks)]
    assert turned("\n\n".join(bodies)).count(ask) == 2
    other = "\n\n".join(bodies).replace("not ", "").replace("torch.optim.Optimizer", "torch.nn.Linear")
    assert ask not in turned(other)


def test_a_switch_that_is_ddps_by_its_name() -> None:
    body = "def save(net: FSDP, cfg):\n    if cfg.enable_ddp:\n        net = net.module\n    return net.f()\n"
    assert turned(body) == body.replace("FSDP,", "FSDPModule,")
    # By such a switch some say that there are several ranks.
    for wraps in ("FSDP(net)", "wrap(net)"):
        both = (
            f"{body}\n\ndef make(net, cfg):\n    if cfg.enable_ddp:\n        net = {wraps}\n    return net\n"
        )
        assert "        net = net.module\n" not in turned(both)


def test_switches_by_their_names() -> None:
    switches = ("cfg.fsdp.use", "fsdp_config.enabled", "is_distributed", "torch.distributed.is_initialized()")
    body = "def f{}(net: FSDP, cfg, fsdp_config, is_distributed):\n{}"
    bodies = [body.format(number, SAVES.format(switch)) for number, switch in enumerate(switches)]
    assert turned("\n\n".join(bodies)).count(SAVE) == len(switches)


BOTH = """\
def build(module, strategy, version, full):
    if strategy == "fsdp":
        module = FSDP(module)
    elif strategy == "fsdp2":
        state = module.state_dict()
        apply_fsdp2(module)
        load(module, state)
    if full and fsdp_version(module) == 1:
        FSDP.set_state_dict_type(module, StateDictType.FULL_STATE_DICT)
    elif fsdp_version(module) == 1:
        FSDP.set_state_dict_type(module, StateDictType.SHARDED_STATE_DICT)
    return module


class Manager:
    def __init__(self, net, version, full):
        self.net = build(net, "fsdp", version, full)

    def sync(self):
        return {n: p.full_tensor() for n, p in self.net.state_dict().items()}
"""


def test_a_state_that_the_models_of_both_versions_give() -> None:
    assert "FM308" not in turned(BOTH)
    # Without FSDP2's branches it was decided by the types, and is sharded now.
    one = BOTH.replace("fsdp_version(module) == 1", "version").replace("fsdp2", "other")
    assert ("FM308", "commented") in codes(one)
    saved = "def save(self):\n        self.net.load_state_dict(torch.load('x.pt'))\n"
    assert turned(f"{BOTH}\n    {saved}").count("FM308 ") == 1


SENDS = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from transformers import Trainer


class Distil(Trainer):
    def send(self):
        plugin = self.accelerator.state.fsdp_plugin
        {choice}
            self._send_one(self.model)
        elif {other}:
            self._send_two(self.model)

    def _send_one(self, module):
        with FSDP.summon_full_params(module):
            self.client.update(module)

    def _send_two(self, module):
        for name, value in module.state_dict().items():
            self.client.update(name, {value})
"""
VERSION = 'version = getattr(plugin, "fsdp_version", 1) if plugin else 1\n        if version == 1:'


@pytest.mark.parametrize(
    ("choice", "other", "value", "is_said"),
    [
        (VERSION, "version == 2", "value", False),
        ("if plugin.fsdp_version == 1:", "plugin.fsdp_version == 2", "value", False),
        ("if plugin.kind == 1:", "self.accelerator.is_fsdp2", "value", False),
        ("if plugin.kind == 1:", "plugin.kind == 2", "value.full_tensor()", False),
        ("if plugin.kind == 1:", "plugin.kind == 2", "value", True),
        (VERSION.replace("fsdp_version", "version"), "version == 2", "value", True),
    ],
)
def test_what_a_branch_of_fsdp2_gathers_is_left_alone(
    choice: str, other: str, value: str, *, is_said: bool, tmp_path: Path
) -> None:
    found = _said(tmp_path, SENDS.format(choice=choice, other=other, value=value))
    assert bool(found & {"FM333", "FM450"}) is is_said


DIRECT = """\
from transformers import Trainer


class Distil(Trainer):
    def send(self, module):
        {opens}
            for name, value in module.state_dict().items():
                self.client.update(name, value)
"""


@pytest.mark.parametrize(
    ("opens", "is_said"),
    [("if self.accelerator.is_fsdp2:", False), ("if self.is_fsdp_enabled:", True)],
)
def test_what_stands_in_a_branch_of_fsdp2_is_left_alone(opens: str, *, is_said: bool, tmp_path: Path) -> None:
    assert bool(_said(tmp_path, DIRECT.format(opens=opens))) is is_said


def _said(folder: Path, text: str) -> set[str]:
    """Return the codes of what is said of states in a project that Accelerate shards by a config."""
    (folder / "fsdp.yaml").write_text("distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 1\n")
    (folder / "train.py").write_text(text)
    uses = [use for file in scan_paths([folder]).files for use in file.uses]
    return {use.code for use in uses if "state_dict" in use.text}


def test_a_member_that_is_ddps_by_its_name() -> None:
    body = "def f(net: FSDP, cfg):\n    if cfg.strategy == {} and cfg.batch:\n        return net.no_sync\n"
    assert "return net.no_sync\n" in turned(body.format("Strategy.ddp"))
    assert "return net.no_sync\n" in turned(body.format("Strategy.DDP"))
    for other in ("Strategy.fsdp", "cfg.ddp", "Strategy.best"):
        assert "return net.no_sync\n" not in turned(body.format(other))


@pytest.mark.parametrize(
    ("made", "is_fsdp2s"), [("FSDP(net, limit_all_gathers=True)", False), ("make(net)", True)]
)
def test_a_switch_that_is_called_as_fsdp2_and_makes_fsdp1(made: str, is_fsdp2s: bool) -> None:
    """The name of a switch says nothing where its own branch makes FSDP1's model."""
    body = f"if use_fsdp2:\n    m = {made}\nelse:\n    m = FSDP(net)\n"
    assert (("FM420", "commented") in codes(body)) is is_fsdp2s


def test_a_model_that_was_found_to_be_deepspeeds_is_none_of_fsdp1s() -> None:
    body = (
        "import deepspeed\n\n\ndef inner(model):\n    if isinstance(model, deepspeed.DeepSpeedEngine):\n"
        "        return model.module\n    if isinstance(model, FSDP):\n        return model.module\n"
        "    return model\n"
    )
    assert codes(body).count(("FM315", "rewritten")) == 1
    assert "FM333" not in {code for code, _ in codes(body)}


@pytest.mark.parametrize(
    ("test", "is_off"),
    [
        ("ctx is None or not ctx.enabled or ctx.strategy != 'fsdp'", True),
        ("not (ctx and ctx.strategy == 'fsdp')", True),
        ("is_main or ctx.strategy != 'fsdp'", False),
        ("ctx.is_main or ctx.strategy != 'fsdp'", False),
    ],
)
def test_a_question_that_is_asked_of_an_object_that_may_not_be_there(test: str, *, is_off: bool) -> None:
    lines = f"def save(model, optimizer, ctx):\n    if {test}:\n        return model.module.state_dict()\n"
    after = turned(f"{lines}\n\nsave(FSDP(net), adam, context)\n")
    assert ("return model.module.state_dict()" in after) is is_off


@pytest.mark.parametrize(
    ("leaves", "is_left"),
    [("return model.state_dict()", True), ("raise ValueError", False), ("print(1)", False)],
)
def test_a_branch_that_leaves_in_a_context_is_left(leaves: str, *, is_left: bool) -> None:
    body = (
        "def save(model):\n"
        "    if isinstance(model, FSDP):\n"
        "        with warnings.catch_warnings():\n"
        "            with torch.no_grad():\n"
        f"                {leaves}\n"
        "    state = model.state_dict()\n    return state\n"
        "save(FSDP(net))\n"
    )
    assert ("    state = model.state_dict()" in turned(body)) is is_left
