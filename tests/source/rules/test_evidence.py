"""What is given to FSDP1's functions as the model is sharded, in all of its scope."""

from __future__ import annotations

import textwrap

import pytest

from tests.source.samples import IMPORTS, codes, plain, turned, uses


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("model.process_group\n", ("FM317", "commented")),
        ("model.register_comm_hook(None, hook)\n", ("FM321", "commented")),
        ("torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", ("FM326", "rewritten")),
        ("model.clip_grad_norm_(1.0)\n", ("FM311", "rewritten")),
        ("model.load_state_dict(state)\n", ("FM308", "rewritten")),
        ("model.module.layers\n", ("FM315", "rewritten")),
    ],
)
@pytest.mark.parametrize(
    "shows",
    [
        "FSDP.optim_state_dict(model, optimizer)",
        "FSDP.shard_full_optim_state_dict(state, model)",
        "FSDP.summon_full_params(module=model)",
    ],
)
def test_methods_of_a_model_that_a_function_shows(use: str, shows: str, expected: tuple[str, str]) -> None:
    assert expected in codes(f"def f(model, optimizer, state):\n    x = {shows}\n    {use}")


def test_before_it_is_wrapped_a_model_is_plain() -> None:
    body = "net.load_state_dict(s)\nnet = FSDP(net)\nFSDP.optim_state_dict(net, optimizer)\n"
    assert plain(body).startswith("net.load_state_dict(s)\n")


def test_data_parallel_is_another_wrapper() -> None:
    body = (
        "if a:\n    m = FSDP(net)\nelse:\n    m = torch.nn.DataParallel(net)\nm.module.load_state_dict(s)\n"
    )
    assert ("FM333", "commented") in codes(body)
    assert "m.module.load_state_dict(s)" in turned(body)


def test_the_state_of_the_wrapped_model_is_that_of_the_model() -> None:
    after = turned("m = FSDP(net)\nm.module.load_state_dict(s)\n")
    assert after.endswith("load_model_state_dict(m, s)\n")


def test_loading_is_said_to_be_loading() -> None:
    body = "m = FSDP(n) if a else torch.nn.parallel.DistributedDataParallel(n)\nm.load_state_dict(s)\n"
    assert "load_model_state_dict" in turned(body)


def test_checkpointing_by_a_function_of_another_source_is_said() -> None:
    assert ("FM324", "commented") in codes("m = FSDP(net)\npolicies.apply_fsdp_checkpointing(m)\n")


@pytest.mark.parametrize(
    "body",
    [
        "for n, part in m.named_children():\n    whole = FSDP(part)\n    setattr(m, n, whole)\nm = FSDP(m)\n",
        "for i, part in enumerate(m.layers):\n    part = FSDP(part)\n    m.layers[i] = part\nm = FSDP(m)\n",
        "class A(nn.Module):\n    def __init__(self):\n        self.encoder = FSDP(self.encoder)\n",
    ],
)
def test_parts_that_are_wrapped_by_hand_are_said(body: str) -> None:
    found = codes(body)
    assert ("FM303", "commented") in found
    assert "FM301" not in {code for code, _ in found}


def test_checkpointing_after_wrapping_is_said_whatever_the_model_is_called() -> None:
    home = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
    header = f"{IMPORTS}from {home} import apply_activation_checkpointing\n\n"
    body = "policy = Policy(FSDP(net), config)\napply_activation_checkpointing(policy.model, check_fn=f)\n"
    assert ("FM324", "commented") in codes(body, header)


def test_a_name_that_was_just_wrapped_by_ddp_is_ddps() -> None:
    """Others hand the function a model of FSDP1's; what it wraps itself is another one."""
    body = (
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "def wrap(model):\n"
        "    {}\n"
        "    if hook:\n"
        "        model.register_comm_hook(None, hook)\n"
        "    return model\n"
        "wrap(FSDP(net))\n"
    )
    assert ("FM321", "commented") in codes(body.format("pass"))
    assert "FM321" not in {code for code, _ in codes(body.format("model = DDP(model)"))}
    assert ("FM321", "commented") in codes(body.format("if flag: model = DDP(model)"))


@pytest.mark.parametrize(
    ("test", "is_plain"),
    [("not use_fsdp", True), ("not (args.fsdp or x)", True), ("use_fsdp", False), ("not use_fsdp2", False)],
)
def test_where_a_switch_is_off_nothing_is_sharded(test: str, is_plain: bool) -> None:
    body = f"if {test}:\n    saved = (model.state_dict(), optimizer.state_dict())\n"
    found = codes("def save(model: FSDP, optimizer):\n" + textwrap.indent(body, "    "))
    assert (not {"FM308", "FM425"} & {code for code, _ in found}) is is_plain


PARTS = """\
class Solver:
    def load(self, saved, name):
        part = find(self.model.module, name)
        part.load_state_dict(saved)

    def other(self, saved, name):
        part = look(self.model, name)
        part.load_state_dict(saved)

    def save(self, name, saved, on):
        part = find(self.model, name)
        {asked}
"""


@pytest.mark.parametrize(
    "asked", ["return isinstance(part, FSDP)", "FSDP.optim_state_dict_to_load(part, o, saved)"]
)
def test_the_same_part_under_a_name_in_another_method(asked: str) -> None:
    after = turned(PARTS.format(asked=asked))
    assert after.count("FM333 this class asks elsewhere") == 1
    assert after.index("FM333 this class") < after.index("def other")
    assert "FM333" not in turned(PARTS.format(asked="return isinstance(part, list)"))


_CLIPS = "    if {0}:\n        model.clip_grad_norm_(1.0)\n    else:\n        {1}\n"
_TORCHS = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
_HAS = "hasattr(model, 'clip_grad_norm_')"
_DDP = "    if not args.fsdp: model = torch.nn.parallel.DistributedDataParallel(model)\n"


@pytest.mark.parametrize("clip", ["    model.clip_grad_norm_(1.0)\n", _CLIPS.format("args.sharded", _TORCHS)])
@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("x = model.state_dict()\n", ("FM308", "rewritten")),
        ("model.load_state_dict(state)\n", ("FM308", "rewritten")),
        ("model.save_pretrained(out)\n", ("FM308", "commented")),
        ("model.register_comm_hook(None, hook)\n", ("FM321", "commented")),
        (f"{_TORCHS}\n", ("FM326", "rewritten")),
    ],
)
def test_a_model_that_has_fsdp1s_own_method(clip: str, use: str, expected: tuple[str, str]) -> None:
    assert expected in codes(f"def f(model, args, state):\n{clip}    {use}")


def test_a_model_that_ddp_may_have_wrapped_where_a_switch_is_off() -> None:
    clip = _CLIPS.format("args.fsdp", _TORCHS)
    found = codes(f"def f(model, args):\n{_DDP}{clip}    x = model.state_dict()\n")
    assert [each for each in found if each[0] != "FM311"] == [("FM333", "commented")]


@pytest.mark.parametrize(
    "body",
    [
        f"{_CLIPS.format('args.sharded', _TORCHS)}    if args.sharded: pass\n    else: model.state_dict()\n",
        f"{_CLIPS.format('args.with_fsdp.on', _TORCHS)}    if not args.with_fsdp.on: model.state_dict()\n",
        f"{_CLIPS.format('isinstance(model, FSDP)', _TORCHS)}    model.state_dict()\n",
        f"{_CLIPS.format(_HAS, _TORCHS)}    model.state_dict()\n",
        "    model.load_state_dict(s)\n    model = wrap_model(model)\n    model.clip_grad_norm_(1.0)\n",
        "    model.clip_grad_norm_(model_params, 1.0)\n    model.state_dict()\n",
        "    trainer.clip_grad_norm_(1.0)\n    trainer.state_dict()\n",
    ],
)
def test_what_is_not_sharded_beside_the_method(body: str) -> None:
    found = {code for code, _ in codes(f"def f(model, args, trainer):\n{body}")}
    assert not found & {"FM308", "FM333", "FM326"}


@pytest.mark.parametrize(
    ("kinds", "is_said"),
    [
        ("(DDP, Single)", False),
        ("(DDP, nn.Module)", True),
        ("(Single, Other)", True),
        ("(DDP, OwnFSDP2)", True),
    ],
)
def test_a_branch_for_ddp_and_another_class(kinds: str, *, is_said: bool) -> None:
    body = (
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "from own import OwnFSDP2, Other, Single\n"
        "def save(m: FSDP, optim):\n"
        f"    if isinstance(m, {kinds}):\n        return m.module.state_dict(), optim.state_dict()\n"
    )
    found = {code for code, _ in codes(body)} & {"FM308", "FM315", "FM333", "FM425"}
    assert bool(found) is is_said


@pytest.mark.parametrize("shard", ["fully_shard", "shard"])
def test_a_branch_that_shards_by_fsdp2_itself(shard: str) -> None:
    body = (
        "from torch.distributed.fsdp import fully_shard\nshard = functools.partial(fully_shard, mesh=mesh)\n"
        "def setup(model: FSDP, mode):\n"
        f"    if mode == 2:\n        {shard}(model)\n        model.apply(init)\n"
        "    else:\n        model.apply(init)\n    other = FSDP(net)\n"
    )
    found = [use for use in uses(body) if use.code in {"FM322", "FM420"} and use.rule == "model-methods"]
    assert [use.line for use in found] == [IMPORTS.count("\n") + 8]


def test_behind_the_return_of_what_was_sharded_the_model_is_plain() -> None:
    body = "def f(self, model: FSDP):\n    if {}: return g(model)\n    return model.state_dict()\n"
    assert "FM308" not in dict(codes(body.format("self._fsdp_wrapped")))
    assert "FM308" in dict(codes(body.format("not self._fsdp_wrapped")))


def test_a_class_of_the_source_may_have_such_a_method() -> None:
    own = "class Net(nn.Module):\n    def clip_grad_norm_(self, most): pass\n"
    body = "def f(model):\n    model.clip_grad_norm_(1.0)\n    model.state_dict()\n"
    assert codes(own + body) == [("FM311", "commented")]


CHOICE = """\
model = FSDP(net)
def save(part):
    if hasattr(part, "module"):
        return part.module.state_dict()
    {}if hasattr(part, "_orig_mod"):
        with FSDP.state_dict_type(part, StateDictType.FULL_STATE_DICT):
            return part.state_dict()
    return part.state_dict()
save(torch.nn.parallel.DistributedDataParallel(Head()))
"""


@pytest.mark.parametrize("word", ["el", ""])
def test_a_branch_that_asks_what_a_model_is_shows_nothing_of_the_others(word: str) -> None:
    found = uses(CHOICE.format(word))
    assert not [use for use in found if use.code == "FM333"]
    assert [use.line - IMPORTS.count("\n") for use in found if use.code == "FM308"] == [7]


def test_a_question_without_another_branch_shows_it_everywhere() -> None:
    body = "def save(part):\n    if hasattr(part, 'a'):\n        x = FSDP.optim_state_dict(part, o)\n"
    assert ("FM308", "rewritten") in codes(f"{body}    part.load_state_dict(state)\n")
