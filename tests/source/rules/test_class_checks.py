"""Checks for the class, and what they make true in their branches and behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_source, scan_paths, scan_source
from tests.source.projects import FSDP
from tests.source.samples import IMPORTS, MARK, assert_turned, codes, plain, turned


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


METHOD = """\
class A:
    def ok(self, x):
        return isinstance(x, FSDP)

    def f(self, x):
        if self.ok(x):
            return x._handle
"""
WALK = "for m in net.modules():\n"
CHECK = "def is_fsdp(x):\n    return isinstance(x, FSDP)\n\n\n"


@pytest.mark.parametrize(
    "body",
    [
        "def f(self, x):\n    self.assertIsInstance(x, FSDP, 'text')\n    return x.sharding_strategy\n",
        "def f(self, x):\n    self.assertTrue(isinstance(x, FSDP))\n    return x.sharding_strategy\n",
        "def f(x):\n    if isinstance(x, FSDP):\n        return x._handle\n",
        "def f(x):\n    if not isinstance(x, FSDP):\n        return None\n    return x._handle\n",
        "def f(x):\n    assert isinstance(x, FSDP)\n    return x._handle\n",
        "def f(x):\n    return isinstance(x, FSDP) and x._handle\n",
        "def f(x):\n    return x._handle if isinstance(x, FSDP) else None\n",
        "def f(x):\n    return [m._handle for m in x.modules() if isinstance(m, FSDP)]\n",
        "for m in x:\n    if not isinstance(m, FSDP):\n        continue\n    m._handle\n",
        f"{CHECK}def f(x):\n    if is_fsdp(x):\n        return x._handle\n",
        f"{CHECK}def f(x):\n    return is_fsdp(x) and x.sharding_strategy\n",
        "def f(x):\n    match x:\n        case FSDP():\n            return x._handle\n",
        "def f(x):\n    match x:\n        case FSDP() as y:\n            return x._handle\n",
        METHOD,
    ],
)
def test_what_a_check_guards_is_looked_at(body: str) -> None:
    assert ("FM317", "commented") in codes(body)


@pytest.mark.parametrize(
    "body",
    [
        "def f(x):\n    if isinstance(x, FSDP):\n        return 1\n    else:\n        return x._handle\n",
        "def f(x):\n    if isinstance(x, FSDP):\n        return 1\n    return x._handle\n",
        "def f(x):\n    if isinstance(x, FSDP) or done:\n        return x._handle\n",
        "match x:\n    case FSDP():\n        pass\n    case _:\n        x._handle\n",
        "def f(x):\n    match x:\n        case FSDP() | Other():\n            return x._handle\n",
    ],
)
def test_what_it_does_not_guard_is_left_alone(body: str) -> None:
    assert "FM317" not in {code for code, _ in codes(body)}


@pytest.mark.parametrize(
    "body",
    [
        "def unwrap(m):\n    if isinstance(m, FSDP):\n        return unwrap(m.module)\n    return m\n",
        "def unwrap(m):\n    while isinstance(m, FSDP):\n        m = m.module\n    return m\n",
    ],
)
def test_unwrapping_step_by_step_does_not_go_round_for_ever(body: str) -> None:
    after = plain(body)
    assert f"{MARK}FM335" in after
    assert "m.module" in after


@pytest.mark.parametrize(
    "home",
    [
        "from kit.fsdp import FSDPModule",
        "from kit.fsdp import FSDPModule as Two",
        "import kit\nTwo = kit.FSDP2",
        # Another file of the project: `FSDP2Module = FSDPModule`.
        "from kit.fsdp2 import FSDP2Module as Two",
    ],
)
def test_fsdp2s_class_is_known_through_other_packages(home: str) -> None:
    name = "Two" if "Two" in home else "FSDPModule"
    header = f"{IMPORTS}{home}\n\n"
    check = f"def f(m):\n    if isinstance(m, (FSDP, {name})):\n        return 1\n"
    after = rewrite_source(header + check)
    assert f"isinstance(m, {name})" in after
    branch = f"if isinstance(m, FSDP):\n    g(m.module)\nelif isinstance(m, {name}):\n    g(m)\n"
    after = rewrite_source(header + branch)
    assert "isinstance(m, FSDP):" in after
    assert "m.module" in after


def test_fsdp2s_state_is_fsdp2() -> None:
    header = f"{IMPORTS}from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState\n\n"
    body = "def f(m):\n    return isinstance(m, FSDP), isinstance(m, FSDPState)\n"
    assert "isinstance(m, FSDP)," in rewrite_source(header + body)


def test_a_function_about_fsdp1_does_not_become_one_about_fsdp2() -> None:
    body = "def _is_fsdp1_module(m):\n    return isinstance(m, FSDP)\n"
    assert codes(body) == [("FM335", "commented")]
    assert "isinstance(m, FSDP)" in turned(body)


BRANCHES = """\
def wrap(model, kind):
    if kind == "fsdp":
        model = FSDP(model, device_id=0)
        model.clip_grad_norm_(1.0)
    elif kind == "fsdp2":
        state = model.state_dict()
        apply_fsdp2(model)
    return model
"""


def test_a_branch_beside_fsdp2s_is_left_alone_and_said_once() -> None:
    after = plain(BRANCHES)
    assert after == BRANCHES.replace("        model = FSDP(", f"        {MARK}FM420\n        model = FSDP(")


@pytest.mark.parametrize(
    "body",
    [
        "if fsdp_version(m) == 1:\n    x = m._fsdp_wrapped_module\n",
        "def f(m: FSDP):\n    if fsdp_version(m) == 2:\n        return two(m)\n    m.clip_grad_norm_(1.0)\n",
        "if use_fsdp2:\n    fully_shard(m)\nelse:\n    m = FSDP(m)\n",
    ],
)
def test_branches_are_known_by_what_decides(body: str) -> None:
    assert [code for code, action in codes(body) if action == "commented"] == ["FM420"]


def test_a_switch_that_is_not_fsdp2s_is_none() -> None:
    body = "if not use_fsdp2:\n    m = FSDP(m)\n"
    assert "prepare_fully_shard(m)" in turned(body)


def test_a_setter_in_fsdps_branch_does_not_change_the_other() -> None:
    body = (
        "def save(model):\n"
        "    if isinstance(model, FSDP):\n"
        "        FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)\n"
        "        state = model.state_dict()\n"
        "    else:\n"
        "        state = model.state_dict()\n"
        "    return state\n"
    )
    after = turned(body)
    assert after.count("get_model_state_dict(model") == 1
    assert "    else:\n        state = model.state_dict()\n" in after


def test_a_helper_that_calls_itself_is_no_reason_to_stop() -> None:
    body = "def is_fsdp(x):\n    return is_fsdp(x)\n\n\ndef f(x):\n    return is_fsdp(x) and x._handle\n"
    assert scan_source(IMPORTS + body)


BOTH = f"{IMPORTS}from torch.distributed.fsdp import FSDPModule\n\n"
OLD_HOME = f"{IMPORTS}from torch.distributed._composable.fsdp import FSDPModule\n\n"


@pytest.mark.parametrize("header", [BOTH, OLD_HOME])
def test_a_branch_for_fsdp1_is_not_turned_into_one_for_fsdp2(header: str) -> None:
    body = (
        "def inner(m):\n"
        "    if isinstance(m, FSDP):\n"
        "        return unflatten(m)\n"
        "    return isinstance(m, FSDPModule)\n"
    )
    after = turned(body, header)
    assert "isinstance(m, FSDP):" in after
    assert f"    {MARK}FM335" in after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("isinstance(m, (FSDP, FSDPModule))", "isinstance(m, FSDPModule)"),
        ("isinstance(m, (DDP, FSDP, FSDPModule))", "isinstance(m, (DDP, FSDPModule))"),
        ("isinstance(m, (DDP, FSDPModule, FSDP))", "isinstance(m, (DDP, FSDPModule))"),
        ("isinstance(m, FSDP | FSDPModule)", "isinstance(m, FSDPModule)"),
        ("isinstance(m, FSDPModule | FSDP)", "isinstance(m, FSDPModule)"),
        ("isinstance(m, FSDPModule) or isinstance(m, FSDP)", None),
    ],
)
def test_a_check_for_both_classes_goes_on_asking_for_fsdp2s(before: str, after: str | None) -> None:
    assert turned(f"def f(m):\n    return {before}\n", BOTH).endswith(f"    return {after or before}\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("type(m) == FSDP", "isinstance(m, FSDPModule)"),
        ("x and type(m) is not FSDP", "x and not isinstance(m, FSDPModule)"),
        ("(type(m) != FSDP)", "(not isinstance(m, FSDPModule))"),
    ],
)
def test_a_type_that_is_the_class_is_asked_for_by_isinstance(before: str, after: str) -> None:
    assert turned(f"def f(m, x):\n    return {before}\n") == f"def f(m, x):\n    return {after}\n"


TURNED = [
    (
        "if isinstance(model, (FSDP, int)):\n    pass\n",
        "if isinstance(model, (FSDPModule, int)):\n    pass\n",
    ),
    ("def f(m: FSDP) -> FSDP:\n    return m\n", "def f(m: FSDPModule) -> FSDPModule:\n    return m\n"),
    (
        "match m:\n    case FSDP():\n        x\n    case FSDP(training=1) | None:\n        x\n",
        "match m:\n    case FSDPModule():\n        x\n    case FSDPModule(training=1) | None:\n        x\n",
    ),
]


@pytest.mark.parametrize(("before", "after"), TURNED)
def test_methods_become_functions(before: str, after: str) -> None:
    assert_turned(before, after)


@pytest.mark.parametrize(
    "body",
    [
        "def f(m):\n    is_fsdp = isinstance(m, FSDP)\n    return is_fsdp and len(m.module.layers)\n",
        "def f(m):\n    is_fsdp = isinstance(m, FSDP)\n    if is_fsdp:\n        return m.module.layers\n",
        "def f(m):\n    no = not isinstance(m, FSDP)\n    if no:\n        return m\n    return m.module\n",
        "def f(m):\n    ok = isinstance(m, FSDP)\n    if not ok:\n        return m\n    return m.module\n",
    ],
)
def test_a_check_whose_answer_a_name_holds_is_followed(body: str) -> None:
    assert ("FM315", "rewritten") in codes(body)


def test_a_name_that_may_hold_another_answer_proves_nothing() -> None:
    body = (
        "def f(m, other):\n    is_fsdp = isinstance(m, FSDP)\n    if other:\n        is_fsdp = True\n"
        "    return is_fsdp and m.module\n"
    )
    assert "FM315" not in {code for code, _ in codes(body)}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("def unwrap(m):\n    if isinstance(m, FSDP):\n        return m.module\n    return m\n", "FM420"),
        ("def unwrap(m):\n    if not isinstance(m, FSDP):\n        return m\n    return m.module\n", "FM335"),
        (
            "def clip(m):\n    if isinstance(m, FSDP) and m:\n        m.clip_grad_norm_(1.0)\n    return m\n",
            "FM335",
        ),
        ("if isinstance(m, FSDP):\n    one(m)\nelif isinstance(m, FSDPModule):\n    two(m)\n", "FM420"),
        ("if isinstance(m, FSDPModule):\n    two(m)\nelif isinstance(m, FSDP):\n    one(m)\n", "FM420"),
        ("x = one(m) if isinstance(m, FSDP) else two(m) if isinstance(m, FSDPModule) else m\n", "FM420"),
        ("if isinstance(m, FSDP):\n    one(m)\nelif isinstance(y, FSDPModule):\n    two(y)\n", "FM335"),
        ("def clip(m):\n    return one(m) if isinstance(m, FSDP) else m\n", "FM335"),
    ],
)
def test_what_only_fsdp1s_models_reach_stays_beside_fsdp2(body: str, code: str) -> None:
    """It stops a run, but where FSDP2's models have a branch of the same, or there is nothing to miss."""
    before = f"from torch.distributed.fsdp import FSDPModule\nfsdp2 = isinstance(other, FSDPModule)\n{body}"
    after = plain(before)
    assert [line for line in after.splitlines() if "fsdp-migrate" not in line] == before.splitlines()
    assert f"{MARK}{code}" in after


def test_another_name_of_the_class_with_its_kind_written_beside_it() -> None:
    body = (
        "from typing import TypeAlias\nModule1: TypeAlias = FSDP\n\n\n"
        "def to_fsdp1(m):\n    if not isinstance(m, Module1):\n        m = Module1(m)\n    return m\n"
    )
    after = turned(body)
    assert "if not isinstance(m, FSDPModule):\n        m = prepare_fully_shard(m)" in after
    assert "fsdp-migrate" not in after


def test_a_type_that_the_class_bounds() -> None:
    after = turned('import typing\nT = typing.TypeVar("T", bound=FSDP)\n')
    assert 'typing.TypeVar("T", bound=FSDPModule)' in after
    assert "fsdp-migrate" not in after


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Sharded = FSDP | torch.nn.Module", "Sharded = FSDPModule | torch.nn.Module"),
        (
            "Sharded = typing.Union[torch.nn.Module, FSDP]",
            "Sharded = typing.Union[torch.nn.Module, FSDPModule]",
        ),
        ("Sharded = typing.Optional[type[FSDP]]", "Sharded = typing.Optional[type[FSDPModule]]"),
        (
            "Sharded = typing.Annotated[FSDP, Is(FSDP)]",
            "Sharded = typing.Annotated[FSDPModule, Is(FSDPModule)]",
        ),
    ],
)
def test_a_type_that_is_given_a_name(line: str, expected: str) -> None:
    after = turned(f"import typing\n{line}\n")
    assert f"{expected}\n" in after
    assert "fsdp-migrate" not in after


@pytest.mark.parametrize("line", ["WRAPPERS = {'fsdp': FSDP} | others", "WRAPPERS = by_name[FSDP]"])
def test_a_class_in_what_is_no_type_is_a_value(line: str) -> None:
    assert "fsdp-migrate: FM303" in turned(f"{line}\n")


@pytest.mark.parametrize("case", ["DDP()", "DDP() as n", "DDP() | DP()", "FSDPModule()"])
def test_where_a_case_is_of_another_class_a_model_is_not_fsdp1s(case: str) -> None:
    made = (
        "from torch.nn.parallel import DataParallel as DP\n"
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
    )
    body = (
        f"{made}def f(m: FSDP):\n    match m:\n        case {case}:\n            m = m.module\n    return m\n"
    )
    assert ("            m = m.module\n" in turned(body)) is ("DDP" in case)


def test_a_case_beside_one_of_fsdp2s_class_is_left_and_said() -> None:
    body = (
        "from torch.distributed.fsdp import FSDPModule\nmatch m:\n    case FSDPModule():\n        a()\n"
        "    case FSDP():\n        b()\n"
    )
    assert "# fsdp-migrate: FM420" in turned(body)
    assert "    case FSDP():" in turned(body)


@pytest.mark.parametrize(
    "check",
    [
        "isinstance(m, torch.nn.parallel.DistributedDataParallel)",
        "isinstance(m, (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel))",
    ],
)
def test_where_a_model_is_ddps_it_is_not_fsdp1s(check: str) -> None:
    body = f"def f(m: FSDP):\n    if {check}:\n        m = m.module\n    return m\n"
    assert "        m = m.module\n" in turned(body)


def test_what_a_test_asserts_to_be_of_a_class_of_the_projects_own() -> None:
    own = "class CustomFSDP(torch.nn.Module):\n    pass\n\n\n"
    asked = "    print(m._fsdp_wrapped_module)\n"
    body = f"def test(self, m):\n    self.assertIsInstance(m, CustomFSDP)\n{asked}"
    assert "FM317" not in dict(codes(own + body))
    assert "FM317" in dict(codes(f"{own}def test(self, m):\n    self.assertIsNotNone(m)\n{asked}"))


def test_where_it_may_be_either_it_may_be_fsdp1s() -> None:
    body = "def f(m: FSDP):\n    if isinstance(m, (torch.nn.DataParallel, FSDP)):\n        m = m.module\n"
    assert "m = m.module" not in turned(body)


def test_what_a_function_returns_for_other_models_is_none_of_fsdp1s() -> None:
    body = (
        "def unwrap(m: FSDP):\n    if isinstance(m, FSDP):\n        return m.inner\n    return m\n\n\n"
        "def load(m: FSDP, state):\n    inner = unwrap(m)\n    inner.load_state_dict(state)\n"
    )
    assert "    inner.load_state_dict(state)\n" in turned(body)


def test_a_question_whether_a_model_is_fully_sharded_is_not_about_fsdp2() -> None:
    body = (
        "def is_fully_sharded(model):\n    return any(isinstance(m, FSDP) for m in model.modules())\n\n\n"
        "def wrap(model):\n    if is_fully_sharded(model):\n        return model\n    return FSDP(model)\n"
    )
    assert "    return prepare_fully_shard(model)\n" in turned(body)
    assert "FM420" not in {code for code, _ in codes(body)}


def test_assertions_about_the_class() -> None:
    body = "self.assertIsInstance(model, FSDP)\nself.assertNotIsInstance(model.net, FSDP, 'a text')\n"
    assert turned(body) == body.replace("FSDP", "FSDPModule")


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("checkpoint(net, check_fn=lambda m: is_layer(m) and not isinstance(m, FSDP))\n", True),
        ("def is_one(m):\n    return not isinstance(m, FSDP)\n\n\ncheckpoint(net, check_fn=is_one)\n", True),
        ("for m in net.modules():\n    if isinstance(m, FSDP):\n        continue\n    hook(m)\n", True),
        ("x = [m for n, m in net.named_modules() if not isinstance(m, FSDP)]\n", True),
        ("for m in net.modules():\n    if not isinstance(m, FSDP):\n        hook(m)\n", True),
        ("for m in net.modules():\n    if isinstance(m, FSDP):\n        hook(m)\n", False),
        ("for m in net.modules():\n    if not isinstance(m, FSDP):\n        continue\n    hook(m)\n", False),
        ("def f(m):\n    if not isinstance(m, FSDP):\n        raise TypeError\n", False),
        ("x = [m for m in net.modules() if isinstance(m, FSDP)]\n", False),
        ("def f(m):\n    if isinstance(m, FSDP):\n        return\n    g(m)\n\n\nnet.apply(f)\n", True),
        (f"{WALK}    if isinstance(m, FSDP):\n        pass\n    else:\n        f(m)\n", True),
        (f"{WALK}    if not isinstance(m, FSDP):\n        f(m)\n    else:\n        g(m)\n", False),
        (f"{WALK}    if not isinstance(m, FSDP):\n        f(m)\n    elif on:\n        g(m)\n", False),
        ("x = [n if not isinstance(m, FSDP) else m.name for n, m in net.named_modules()]\n", False),
        ("for m in net.modules():\n    if not isinstance(m, FSDP):\n        raise TypeError\n", False),
    ],
)
def test_a_check_that_leaves_out_wrappers_in_a_walk(body: str, *, is_said: bool) -> None:
    assert (("FM305", "commented") in codes(body)) is is_said
    assert ("FSDPModule" in turned(body).replace("is FSDPModule itself", "")) is not is_said


@pytest.mark.parametrize(
    ("check", "left"),
    [
        ("not isinstance(m, FSDP | FSDPModule)", "not isinstance(m, FSDPModule)"),
        ("not isinstance(m, (FSDP, FSDPModule))", "not isinstance(m, FSDPModule)"),
        ("not isinstance(m, FSDP) and not isinstance(m, FSDPModule)", None),
        ("not (isinstance(m, FSDP) or isinstance(m, FSDPModule))", None),
    ],
)
def test_a_check_for_both_classes_leaves_out_no_wrappers(check: str, left: str | None) -> None:
    body = f"for m in net.modules():\n    if {check}:\n        hook(m)\n"
    header = f"{IMPORTS}from torch.distributed.fsdp import FSDPModule\n\n"
    assert body.replace(check, left or check) in rewrite_source(header + body)
    assert "FM305 this" not in rewrite_source(header + body)


MARKED = """\
def state(model):
    if {}:
        return get_model_state_dict(model)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        return model.state_dict()
"""


def test_a_mark_of_fsdp2s_that_our_models_do_not_have() -> None:
    mark = 'getattr({}, "_uses_fsdp2", False)'
    after = turned(MARKED.format(mark.format("model")))
    assert "FM420" not in after
    assert after.count("get_model_state_dict(model") == 2
    either = f"    if {mark.format('model')}:\n        pass\n    else:\n        model.clip_grad_norm_(1)\n"
    assert "clip_grad_norm_(model, 1)" in turned(f"def clip(model: FSDP):\n{either}")
    # What a config says, and what the class is, holds for all.
    for asked in (mark.format("config"), "model.use_fsdp2", "is_fsdp2(model)"):
        assert f"    {MARK}FM420" in turned(MARKED.format(asked))


BESIDE = "def save(m):\n    if isinstance(m, FSDP){}:\n        {}\n"
ONE = "x = one(m)"


@pytest.mark.parametrize(
    ("check", "is_left"),
    [
        (BESIDE.format("", ONE) + "    else:\n        x = [p.full_tensor() for p in m.parameters()]\n", True),
        (BESIDE.format("", ONE) + "    elif isinstance(m.weight, DTensor):\n        x = two(m)\n", True),
        (BESIDE.format(" and full", ONE) + "    else:\n        x = get_model_state_dict(m)\n", True),
        (BESIDE.format("", "return one(m)") + "    return m.weight.full_tensor()\n", True),
        ("def save(m):\n    return one(m) if isinstance(m, FSDP) else m.weight.full_tensor()\n", True),
        (BESIDE.format("", ONE) + "    else:\n        x = m.state_dict()\n", False),
        (BESIDE.format("", ONE) + "    return m.weight.full_tensor()\n", False),
        (BESIDE.format("", "x = m.weight.full_tensor()"), False),
    ],
)
@pytest.mark.parametrize("has_fsdp2", [True, False])
def test_a_check_beside_a_branch_that_takes_dtensors(
    tmp_path: Path, check: str, is_left: bool, has_fsdp2: bool
) -> None:
    """FSDP2's models of the project took that branch; they are none of FSDP1's."""
    shards = "import torch.distributed.fsdp as f\nf.fully_shard(net)\n" if has_fsdp2 else "f(net)\n"
    (tmp_path / "tool.py").write_text(f"{FSDP}{check}")
    (tmp_path / "main.py").write_text(f"{FSDP}from tool import save\n{shards}save(FSDP(other))\n")
    found = {use.code for use in scan_paths([tmp_path]).uses if use.path.endswith("tool.py")}
    assert found >= ({"FM420"} if is_left and has_fsdp2 else {"FM305"})


MAKES = """\
{}class Mine({}):
    def {}(self, model=None):
        if isinstance({}, FSDP):
            self.optimizer = make(self.model)
"""


@pytest.mark.parametrize(
    ("base", "method", "model", "is_said"),
    [
        ("Trainer", "create_optimizer", "self.model", True),
        ("Trainer", "create_optimizer", "model", True),
        ("trl.SFTTrainer", "create_optimizer_and_scheduler", "self.model_wrapped", True),
        ("Base", "get_decay_parameter_names", "model", True),
        ("Trainer", "compute_loss", "model", False),
        ("Trainer", "helper", "self.model", False),
        ("Other", "create_optimizer", "self.model", False),
    ],
)
@pytest.mark.parametrize("is_elsewhere", [True, False])
def test_a_check_before_hugging_faces_trainer_shards(
    tmp_path: Path, base: str, method: str, model: str, *, is_said: bool, is_elsewhere: bool
) -> None:
    """FSDP1's optimizers were made once the model was wrapped, and FSDP2's are made before."""
    above = "class Base(Trainer):\n    pass\nclass Other(Generic[T]):\n    pass\n"
    header = f"{FSDP}import trl\nfrom transformers import Trainer\nfrom typing import Generic\n"
    if is_elsewhere:
        (tmp_path / "above.py").write_text(header + above)
        above = "from above import Base, Other\n"
    path = tmp_path / "mine.py"
    path.write_text(header + MAKES.format(above, base, method, model))
    found = {use.code for use in scan_paths([tmp_path]).uses if use.path == str(path)}
    assert ("FM335" in found) is is_said
    assert ("FM305" in found) is not is_said
