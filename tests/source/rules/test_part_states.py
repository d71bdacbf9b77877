"""States of parts of a sharded model, and ``push_to_hub``."""

from __future__ import annotations

import pytest

from tests.source.samples import MODEL, codes, uses


pytestmark = pytest.mark.any_torch


def said(body: str) -> list[str]:
    return [use.becomes for use in uses(body) if use.rule == "part-states"]


@pytest.mark.parametrize(
    ("line", "takes"),
    [
        ("torch.save(model.projector.state_dict(), path)", "get_model_state_dict(model.projector, "),
        ("x = model.layers[0].state_dict()", "get_model_state_dict(model.layers[0], "),
        ("for layer in model.layers:\n    x = layer.state_dict()", "get_model_state_dict(layer, "),
        (
            "model.projector.load_state_dict(torch.load(path))",
            "load_model_state_dict(model.projector, state)",
        ),
        ("model.push_to_hub('me/net')", "save_pretrained(folder, state_dict=state)"),
        ("model.module.lm.push_to_hub('me/net')", "of torch's get_model_state_dict(model.module.lm, "),
        ("if rank == 0:\n    model.push_to_hub('me/net')", "which every rank takes above this branch, and"),
    ],
)
def test_parts_of_a_sharded_model(line: str, takes: str) -> None:
    found = said(f"{MODEL}{line}\n")
    assert len(found) == 1
    assert takes in found[0]


@pytest.mark.parametrize(
    ("puts", "is_said"),
    [
        ("model.module.head = make()\n", False),
        ("model.head = torch.nn.Linear(2, 2)\n", False),
        ("model.body = make()\n", True),
        ("other.head = make()\n", True),
    ],
)
def test_a_part_that_is_put_in_after_sharding_is_plain(puts: str, *, is_said: bool) -> None:
    assert bool(said(f"{MODEL}{puts}x = model.head.state_dict()\n")) is is_said
    # Before it, the part is sharded with the model.
    assert said(f"net.head = make()\n{MODEL}x = model.head.state_dict()\n")


@pytest.mark.parametrize(
    ("joined", "is_said"),
    [
        ("part = None\nif found:\n    part = model.head\n", True),
        ("part = None\nif found:\n    part = model.head\nelse:\n    part = model.body\n", True),
        ("part = None\nif found:\n    part = other.head\n", False),
        ("part = None\nif found:\n    part = model.head\nelse:\n    part = Head()\n", False),
        ("part = None\nif found:\n    part = model.head\nelse:\n    part = other.head\n", False),
        ("part = None\nfor _ in range(3):\n    part = part.next\n", False),
    ],
)
def test_a_part_where_branches_come_together(joined: str, *, is_said: bool) -> None:
    assert bool(said(f"{MODEL}{joined}if found:\n    x = part.state_dict()\n")) is is_said


@pytest.mark.parametrize(
    "body",
    [
        f"{MODEL}x = model.state_dict()\n",
        f"{MODEL}x = model.module.state_dict()\n",
        f"{MODEL}x = model.optimizer.state_dict()\n",
        f"{MODEL}model.tokenizer.push_to_hub('me/net')\nmodel.config.push_to_hub('me/net')\n",
        f"{MODEL}x = other.projector.state_dict()\n",
        f"x = model.projector.state_dict()\n{MODEL}",
        "model.layers[0] = FSDP(model.layers[0])\nx = model.head.state_dict()\n",
        f"{MODEL}with FSDP.summon_full_params(model):\n    x = model.projector.state_dict()\n",
        f"{MODEL}with FSDP.state_dict_type(model, t):\n    x = model.projector.state_dict()\n",
    ],
)
def test_what_is_said_elsewhere_or_is_plain(body: str) -> None:
    assert said(body) == []


BRANCHES = """\
class Trainer:
    def __init__(self):
        self.model = FSDP(net)

    def save(self):
        m = self.model
        if isinstance(m, FSDP):
            {}
        else:
            {}
"""


@pytest.mark.parametrize(
    "use", ["m.state_dict()", "m.encoder.state_dict()", "m.push_to_hub(x)", "m.save_pretrained(x)"]
)
def test_the_other_branch_of_a_check_holds_for_other_names(use: str) -> None:
    for sharded, plain, is_said in (("pass", use, False), (use, "pass", True)):
        found = {code for code, _ in codes(BRANCHES.format(sharded, plain)) if code in {"FM308", "FM333"}}
        assert bool(found) is is_said


@pytest.mark.parametrize(("part", "found"), [("projection", []), ("generator.layers", ["FM333"])])
def test_another_part_of_what_holds_a_sharded_model_is_plain(part: str, found: list[str]) -> None:
    code = (
        "class Pair(torch.nn.Module):\n    def __init__(self):\n        self.generator = make()\n\n"
        "class Trainer:\n    def __init__(self):\n        self.model = Pair()\n"
        "        self.model.generator = FSDP(self.model.generator)\n"
        f"    def save(self):\n        torch.save(self.model.{part}.state_dict(), 'x.pt')\n"
    )
    assert [code for code, _ in codes(code) if code == "FM333"] == found


@pytest.mark.parametrize(
    ("part", "found"),
    [
        ("getattr(self.model, 'projection', None)", []),
        ("getattr(self.model, 'generator').layers", ["FM333"]),
        ("getattr(self.model, name)", ["FM333"]),
    ],
)
def test_so_is_one_that_is_asked_for_by_its_name(part: str, found: list[str]) -> None:
    """A stop was set where a plain part is loaded, and its optimizer's state was called one rank's part."""
    code = (
        "class Pair(torch.nn.Module):\n    def __init__(self):\n        self.generator = make()\n\n"
        "class Trainer:\n    def __init__(self):\n        self.model = Pair()\n"
        "        self.model.generator = FSDP(self.model.generator)\n"
        f"        part = {part}\n        self.opt = torch.optim.SGD(part.parameters())\n"
        "        part.load_state_dict(state)\n"
        "    def save(self):\n        torch.save(self.opt.state_dict(), 'x.pt')\n"
    )
    assert [code for code, _ in codes(code) if code == "FM333"] == found
    assert ("FM425" in dict(codes(code))) is bool(found)


PAIR = """\
import peft
class Trainer:
    def __init__(self, state, parts):
        self.pair = {}
        self.pair.other = FSDP(self.pair.other)
        {}

    def load(self, state):
        {}
"""
WRAP = "self.pair.net = FSDP(self.pair.net)"
PART = "self.pair.net.inner.load_state_dict(state)"
SET_BY_NAMES = "for name in parts: setattr(self.pair, name, FSDP(getattr(self.pair, name)))"


def is_stopped(*lines: str, pair: str = "Pair()", later: str = "pass") -> bool:
    """Tell whether a run is stopped by what is done with a part of a holder that has sharded ones."""
    found = codes(PAIR.format(pair, "\n        ".join(lines), later))
    return not {("FM322", "commented"), ("FM333", "commented")}.isdisjoint(found)


@pytest.mark.parametrize(
    "does",
    [
        PART,
        "self.kept = self.pair.net.inner.state_dict()",
        "peft.set_peft_model_state_dict(self.pair.net.inner, state)",
        "self.pair.net.inner.apply(init)",
    ],
)
def test_a_part_that_is_sharded_below_is_plain_above(does: str) -> None:
    """A stop was set above the sharding of a part, where other parts of its holder are sharded already."""
    assert not is_stopped(does, WRAP)
    assert is_stopped(WRAP, does)


@pytest.mark.parametrize(
    ("lines", "later"),
    [
        (("for _ in parts:", f"    {PART}", f"    {WRAP}"), "pass"),
        ((WRAP, "self.load(state)"), PART),
        (("self.load(state)", WRAP), f"{PART}\n\n    def again(self):\n        self.load(1)"),
        ((PART, WRAP, "self.pair = FSDP(self.pair)"), "self.pair.body.inner.load_state_dict(state)"),
        ((SET_BY_NAMES, PART, WRAP), "pass"),
    ],
)
def test_a_part_that_may_be_sharded_by_then_is_said(lines: tuple[str, ...], later: str) -> None:
    assert is_stopped(*lines, later=later)


def test_a_part_of_a_sharded_holder_is_said_above_its_own_sharding() -> None:
    assert is_stopped(PART, WRAP, pair="FSDP(Pair())")
    assert is_stopped("self.load(state)", WRAP, later=PART), "another may call it below"


EDITS = """\
def prune(net, masks):
    model = FSDP(net)
    for name, layer in model.named_modules():
        state_dict = layer.state_dict()
        {}
        layer.load_state_dict(state_dict)
"""


@pytest.mark.parametrize(
    ("edit", "is_said"),
    [
        ('state_dict["weight"] *= masks[name]', False),
        ('state_dict["weight"] = state_dict["weight"] * 0.5 + state_dict["other"]', False),
        ('state_dict["weight"].mul_(masks[name])', False),
        ('state_dict["weight"] = torch.load(name)', True),
        ('state_dict["weight"] *= state_dict["weight"].norm()', True),
        ("torch.save(state_dict, name)", True),
        ("state_dict = torch.load(name)", True),
        ("other.load_state_dict(state_dict)", True),
        ('masks[name] *= state_dict["weight"]', True),
        ('masks[name] = state_dict["weight"] * 0.5', True),
        ('state_dict["weight"] = state_dict["weight"] @ masks[name]', True),
        ('state_dict["weight"].copy_(masks[name])', True),
        ('print(state_dict["weight"])', True),
        ('state_dict.pop("weight")', True),
    ],
)
def test_a_state_that_goes_back_after_arithmetic(edit: str, *, is_said: bool) -> None:
    assert bool(said(EDITS.format(edit))) is is_said


@pytest.mark.parametrize(
    "put", ["layer.load_state_dict(state_dict)", "other.load_state_dict(state_dict)", "pass"]
)
def test_a_state_goes_back_to_the_module_that_gave_it(put: str) -> None:
    edit = EDITS.format('state_dict["weight"] *= masks[name]')
    found = said(edit.replace("layer.load_state_dict(state_dict)", put))
    assert bool(found) is (put != "layer.load_state_dict(state_dict)")
    # Outside of a function other files may have it as well.
    assert said("model = FSDP(net)\nlayer = model.fc\nx = layer.state_dict()\nlayer.load_state_dict(x)\n")


COPIES = """\
class Copier:
    def copy(self, target, source):
        target.conv.load_state_dict(source.conv.state_dict())
    def run(self, net, other):
        model = FSDP(net)
        with FSDP.summon_full_params(model.teacher, writeback=False):
            with FSDP.summon_full_params({summoned}, writeback=True):
                {call}
        {after}
        keep = FSDP(other)
"""
WITHIN = "self.copy(model.student, model.teacher)"


@pytest.mark.parametrize(
    ("summoned", "call", "after", "is_said"),
    [
        ("model.student", WITHIN, "pass", False),
        ("module=model.student", WITHIN, "pass", False),
        ("model.student", "self.copy(model.student.head, source=model.teacher)", "pass", False),
        ("model.student", "self.copy(model.student, model.teacher.layers[0])", "pass", False),
        ("model", WITHIN, "pass", False),
        # Of these one is sharded where the states are asked for.
        ("model.student", WITHIN, WITHIN, True),
        ("model.student", WITHIN, "put(self.copy)", True),
        ("model.other", WITHIN, "pass", True),
        ("model.student", "self.copy(model.student, model.other)", "pass", True),
    ],
)
def test_a_function_that_is_given_summoned_models_alone(
    summoned: str, call: str, after: str, *, is_said: bool
) -> None:
    assert bool(said(COPIES.format(summoned=summoned, call=call, after=after))) is is_said


def test_a_function_outside_of_a_class_that_is_given_summoned_models_alone() -> None:
    text = (
        "def copy(target, source):\n    target.conv.load_state_dict(source.conv.state_dict())\n"
        f"{MODEL}with FSDP.summon_full_params(model.a, writeback=True):\n    copy(model.a, model.a.b)\n"
    )
    assert not said(text)
    assert said(f"{text}copy(model.a, model.a.b)\n")
    assert said(f"{text}f = copy\n")
