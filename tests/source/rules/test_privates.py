"""What is private to torch's FSDP1, and what its wrapper alone shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths, scan_source
from tests.source.projects import FSDP
from tests.source.samples import MODEL, assert_commented, codes, found_comments, turned, uses


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


COMMENTED = [
    ("handle = model._handle\n", "FM317"),
    ("x = other._fsdp_wrapped_module.x\n", "FM317"),
    (
        "from torch.distributed.fsdp._common_utils import clean_tensor_name as clean\nclean(n)\n",
        "FM317",
    ),
]


@pytest.mark.parametrize(("body", "code"), COMMENTED)
def test_what_is_left_to_people_gets_one_comment(body: str, code: str) -> None:
    assert_commented(body, code)


_COMMON = "from torch.distributed.fsdp._common_utils import "
_FALSE = "it is False of every parameter"
_NOTHING = "FSDP2 makes nothing of this class"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (f"{_COMMON}_is_fsdp_flattened\nx = not _is_fsdp_flattened(p) and p.is_meta\n", _FALSE),
        (f"{_COMMON}_is_fsdp_flattened as flat\nx = [p for p in ps if flat(p)]\n", _FALSE),
        ("x = getattr(p, '_fsdp_flattened', False)\n", _FALSE),
        (
            "for p in model.parameters():\n    assert p._is_flat_param\n",
            "it would be False of each of FSDP2's",
        ),
        (f"{_COMMON}_set_fsdp_flattened\n_set_fsdp_flattened(p)\n", "goes into `ignored_states`"),
        (f"{_COMMON}_get_module_fsdp_state as state\nx = state(m) is None\n", "it is None of every module"),
        (f"{_COMMON}clean_tensor_name\nx = clean_tensor_name(n)\n", "use the name"),
        (
            "from torch.distributed.fsdp import _traversal_utils as t\nx = list(t._get_fsdp_states(model))\n",
            "it is empty of every model",
        ),
        (
            "from torch.distributed.fsdp._runtime_utils import _lazy_init\n_lazy_init(m, m)\n",
            "take the call away",
        ),
        ("from torch.distributed.fsdp import FlatParameter as F\nx = isinstance(p, (F, list))\n", _NOTHING),
        ("from torch.distributed.fsdp import FlatParameter as F\nx = type(p) is F\n", _NOTHING),
        (f"{_COMMON}_FSDPState\nx = isinstance(s, _FSDPState)\n", _NOTHING),
        # What is no test has no value that could be told.
        (
            "from torch.distributed.fsdp import FlatParameter as F\ndef f(p: F):\n    return p\n",
            "what it was for",
        ),
        ("from torch.distributed.fsdp import FlatParameter as F\nx = F(ps)\n", "what it was for"),
        (f"{_COMMON}_has_fsdp_params\nx = _has_fsdp_params(s, m)\n", "what it was for"),
    ],
)
def test_what_has_one_value_under_fsdp2_is_said_with_it(body: str, said: str) -> None:
    """To find what it was for is little where a condition is always the same now."""
    found = [use.becomes for use in uses(f"{MODEL}{body}") if use.code == "FM317"]
    assert len(found) == 1
    assert said in found[0]
    assert ("what it was for" in found[0]) is (said == "what it was for")


@pytest.mark.parametrize(
    ("code", "is_said"),
    [
        ("from composer.utils import misc\nx = misc.is_model_fsdp(model)\n", True),
        ("from composer.utils import is_model_fsdp\nx = is_model_fsdp(model)\n", True),
        ("from own.utils import is_model_fsdp\nx = is_model_fsdp(model)\n", False),
    ],
)
def test_a_question_of_composers_is_false_of_fsdp2s_models(code: str, *, is_said: bool) -> None:
    assert ("FM317" in {use.code for use in scan_source(code)}) is is_said


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("with fsdp_state_dict_type_context(model, 'full'):\n    x = model.state_dict()\n", "KeyError(None)"),
        ("with fsdp_state_dict_type_context(model) if a else b():\n    pass\n", "KeyError(None)"),
        ("enter = fsdp_state_dict_type_context if a else b\nenter(model)\n", "KeyError(None)"),
        ("x = get_fsdp_full_optim_state_dict(model, optimizer)\n", "full_optimizer_state_dict"),
        ("x = fsdp_get_optim_state_dict(model, optimizer, 'full')\n", "full_optimizer_state_dict"),
        ("x = get_fsdp_sharded_optim_state_dict(x, model)\n", "optim_state_dict_to_load"),
        ("from own import fsdp_state_dict_type_context as own\nwith own(model):\n    pass\n", None),
    ],
)
def test_what_composer_has_for_states_is_fsdp1s(body: str, said: str | None) -> None:
    header = (
        "from composer.core.state import fsdp_state_dict_type_context, get_fsdp_full_optim_state_dict\n"
        "from composer.core.state import fsdp_get_optim_state_dict, get_fsdp_sharded_optim_state_dict\n"
    )
    found = [use.becomes for use in scan_source(header + body) if use.code == "FM317"]
    assert len(found) == (said is not None)
    assert all(said is not None and said in each for each in found)


def test_what_the_wrapper_alone_shows_is_said() -> None:
    found = found_comments(
        "def f(model: FSDP):\n"
        "    model.mixed_precision = None\n"
        "    return model.world_size, model.weight, net.process_group\n"
    )
    assert found == {("FM317", 3)}


@pytest.mark.parametrize(
    "body",
    [
        "model._streams = other._streams\n",
        "for each in (model, other):\n    each._handles.clear()\n",
        "for m in FSDP.fsdp_modules(model):\n    m._streams = streams\n",
        "for m in FSDP.fsdp_modules(model):\n    kept += m.params\n",
        "for m, t in zip(get_fsdp_modules(model), get_fsdp_modules(other)):\n    kept += t.params\n",
        "parts['head']._streams = parts['body']._streams\n",
        "root = model\nroot._unshard_stream = stream\n",
        "for p in model.parameters():\n    assert p._is_flat_param\n",
    ],
)
def test_privates_by_another_name_or_that_are_set(body: str) -> None:
    assert ("FM317", "commented") in codes(f"model = FSDP(net)\n{body}")


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("p = model.params\nprint(p.max_batch_size)\n", False),
        ("print(model.params.dim)\n", False),
        ("for p in model.params:\n    print(p.grad)\n", True),
    ],
)
def test_params_that_a_model_was_made_of(body: str, *, is_said: bool) -> None:
    assert (("FM317", "commented") in codes(f"model = FSDP(net)\n{body}")) is is_said


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("x = model.rank\n", True),
        ("x = model.module.rank\n", False),
        ("raw = model.module\nx = raw.world_size\n", False),
        ("raw = model.module\nx = raw._handle\n", True),
        ("raw = model\nx = raw.world_size\n", True),
    ],
)
def test_what_the_model_within_is_asked_for_is_its_own(body: str, *, is_said: bool) -> None:
    assert (("FM317", "commented") in codes(f"model = FSDP(net)\n{body}")) is is_said


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("    p = model.params\n    print(p.dim)\n", False),
        ("    for p in model.params:\n        print(p.grad)\n", True),
    ],
)
def test_params_of_a_model_that_another_file_gives(tmp_path: Path, body: str, *, is_said: bool) -> None:
    (tmp_path / "export.py").write_text(f"def export(model):\n{body}")
    (tmp_path / "train.py").write_text(
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nfrom export import export\n\n"
        "model = FSDP(net)\nexport(model)\n"
    )
    found = {use.code for file in scan_paths([tmp_path]).files for use in file.uses}
    assert ("FM317" in found) is is_said


_STREAMS = "{'_unshard_stream', '_default_stream'}"


@pytest.mark.parametrize(
    "body",
    [
        f"for a in {_STREAMS}:\n    setattr(net.head, a, getattr(net.body, a))\n",
        f"NAMES = list({_STREAMS})\ndef f(m):\n    for a in NAMES:\n        setattr(m, a, None)\n",
        (
            "class T:\n    names = ('_is_flat_param',)\n    def f(self, p):\n"
            "        return [getattr(p, n) for n in self.names]\n"
        ),
        "for a, b in zip(('_flat_param', 'x'), 'ab'):\n    delattr(m, a)\n",
        "for a, b in {'_flat_param': 1}.items():\n    setattr(m, a, b)\n",
        "for a, b in [('_flat_param', 1)]:\n    setattr(m, a, b)\n",
        "def take(m, name):\n    return getattr(m, name)\ntake(net, '_flat_param')\n",
        "name = '_handle'\nx = getattr(model, name)\n",
        "x = [getattr(model, a) for a in ('sharding_strategy', 'other')]\n",
        "x = getattr(model, 'sharding_strategy')\n",
        "x = any(getattr(p, '_fsdp_flattened', False) for p in group['params'])\n",
        "net.head._pre_unshard_stream = stream\n",
    ],
)
def test_privates_that_are_named_by_texts(body: str) -> None:
    assert [each for each in codes(MODEL + body) if each[0] == "FM317"] == [("FM317", "commented")]


@pytest.mark.parametrize(
    "body",
    [
        "for a in ('name', '_default_stream'):\n    getattr(other, a)\n",
        "for a in ('rank', 'name'):\n    setattr(model, a, 1)\n",
        "for a in ('_flat_param',):\n    if hasattr(m, a): print(getattr(m, a))\n",
        "for a, b in {'x': '_flat_param'}.items():\n    getattr(m, a)\n",
        "for a in ('_flat_param',):\n    print(a)\nfor a in ('x',):\n    getattr(m, a)\n",
    ],
)
def test_texts_that_name_no_privates(body: str) -> None:
    assert ("FM317", "commented") not in codes(MODEL + body)


def test_what_an_own_class_has_under_such_a_name_is_its_own() -> None:
    body = "class Log:\n    def __init__(self):\n        self._streams = []\n        self.params = {}\n"
    assert "FM317" not in {code for code, _ in codes(f"model = FSDP(net)\n{body}")}


def test_a_flat_parameter_that_a_class_here_makes_is_its_own() -> None:
    body = (
        "class Rotated:\n    def __init__(self, parts):\n        self.flat_param = torch.cat(parts)\n"
        "def turn(module):\n    return module.flat_param.norm()\n"
    )
    assert "FM317" not in {code for code, _ in codes(f"model = FSDP(net)\n{body}")}
    assert ("FM317", "commented") in codes("model = FSDP(net)\nmodule.flat_param.norm()\n")


def test_what_a_class_here_has_too_is_still_said_of_a_sharded_model() -> None:
    body = (
        "class Run:\n    def __init__(self, given):\n"
        "        self.sharding_strategy = given\n        self.flat_param = given\n"
    )
    for asked in ("print(model.sharding_strategy)\n", "model.flat_param.norm()\n"):
        assert ("FM317", "commented") in codes(f"{body}model = FSDP(net)\n{asked}"), asked


@pytest.mark.parametrize(
    ("body", "action"),
    [
        ('print(f"m._flat_param: {size(m._flat_param)}")\n', "commented"),
        ('flat = getattr(m, "_flat_param")\n', "commented"),
        ('setattr(m, "_flat_param", None)\n', "commented"),
        ('flat = getattr(m, "_flat_param", None)\n', "kept"),
        ('is_flat = hasattr(m, "_flat_param")\n', "kept"),
    ],
)
def test_one_private_attribute_has_one_finding(body: str, action: str) -> None:
    assert codes(body) == [("FM317", action)]


WITHOUT = [
    "self.net._fsdp_wrapped_module.model._fsdp_wrapped_module.prepare(1)",
    "self.net._fsdp_wrapped_module.mask = mask",
    "return module._handle.flat_param.grad",
    "return [p for p in net.parameters() if p._is_flat_param]",
    "return module._fully_sharded_module_to_handle",
]


@pytest.mark.parametrize("line", WITHOUT)
@pytest.mark.parametrize("header", ["", "import torch.distributed.fsdp\n"])
def test_what_is_fsdp1s_alone_is_said_without_its_imports(line: str, header: str) -> None:
    method = f"class Loop:\n    def step(self, net, module, mask):\n        {line}\n"
    assert {each for each in codes(method, header) if each[0] == "FM317"} == {("FM317", "commented")}
    anothers = "from fairscale.nn import FullyShardedDataParallel as FSDP\n"
    assert "FM317" not in dict(codes(method, anothers))


def test_what_is_asked_for_first_is_kept_without_imports() -> None:
    body = (
        "def inner(m):\n    if hasattr(m, '_fsdp_wrapped_module'):\n"
        "        return m._fsdp_wrapped_module\n    return m\n"
    )
    assert {action for _, action in codes(body, "")} == {"kept"}


def test_an_own_attribute_of_such_a_name_is_left_alone_without_imports() -> None:
    body = "class Flat:\n    def make(self, module):\n        self._flat_param = flat(module)\n"
    assert codes(body, "") == []


def test_a_wrapper_of_the_projects_own_has_its_own_attribute() -> None:
    body = (
        "class Wrapper(nn.Module):\n    def __init__(self, net):\n        self._fsdp_wrapped_module = net\n"
        "    def names(self, m):\n        return '_fsdp_wrapped_module' in m._fsdp_wrapped_module.names\n"
    )
    assert {action for _, action in codes(body, "")} <= {"mentioned"}


WORK = "with FSDP.summon_full_params(m):\n"
OWN = "class A:\n    def f(self, m):\n        self._handle = 1\n\n\n"
GUARDS = [
    "if hasattr(m, '_fsdp_wrapped_module'):",
    "if m and hasattr(m, '_handle') and on:",
    "if getattr(m, '_flat_param', None) is not None:",
    "if '_fsdp_wrapped_module' in dir(m):",
    "if not ('_flat_param' not in m.__dict__):",
    "if any(hasattr(p, '_local_shard') for p in m.parameters()):",
]


@pytest.mark.parametrize("guard", GUARDS)
def test_work_of_fsdp_below_a_private_question_is_not_passed_over_in_silence(guard: str) -> None:
    body = f"def f(m, on):\n    {guard}\n        {WORK}            print(m)\n"
    after = turned(body)
    assert "    # fsdp-migrate: FM317 FSDP2 has no such attribute" in after
    assert ("isinstance(p, DTensor)" if "_local_shard" in guard else "isinstance(m, FSDPModule)") in after
    assert "with summon_full_params(m):" in after
    without = f"def f(m, on):\n    {guard}\n        print(m)\n    {WORK}        print(m)\n"
    assert "FM317 FSDP2 has no" not in turned(without)


@pytest.mark.parametrize(
    "body",
    [
        f"def f(m):\n    if not hasattr(m, '_handle'):\n        return\n    {WORK}        print(m)\n",
        f"def f(m):\n    h = getattr(m, '_handle', None)\n    if h:\n        {WORK}            g(m)\n",
        f"def ok(m):\n    return hasattr(m, '_handle')\n\n\nif ok(m):\n    {WORK}        g(m)\n",
        "def f(m: FSDP):\n    if hasattr(m, '_handle'):\n        m.clip_grad_norm_(1.0)\n",
    ],
)
def test_a_private_question_may_be_asked_by_way_of_something(body: str) -> None:
    assert ("FM317", "commented") in codes(body)


@pytest.mark.parametrize(
    "body",
    [
        f"def f(m):\n    if hasattr(m, '_handle'):\n        return\n    {WORK}        print(m)\n",
        f"def f(m):\n    if hasattr(m, '_handle') or on:\n        {WORK}            print(m)\n",
        f"if hasattr(m, '_handle'):\n    {WORK}        g(m)\nelse:\n    {WORK}        h(m)\n",
        f"{OWN}if hasattr(a, '_handle'):\n    {WORK}        g()\n",
    ],
)
def test_work_that_does_not_depend_on_a_private_question(body: str) -> None:
    assert ("FM317", "commented") not in codes(body)


def test_an_attribute_that_a_test_gives_a_mock() -> None:
    body = "fake = {}\nfake._fsdp_wrapped_module = fake\n"
    assert "FM317" not in dict(codes(MODEL + body.format("mock.MagicMock()")))
    assert "FM317" in dict(codes(MODEL + body.format("Net()")))


def test_a_file_that_is_given_a_model_asks_it_for_what_is_private(tmp_path: Path) -> None:
    main = f"{FSDP}from lib import show\nshow({{}})\n"
    (tmp_path / "lib.py").write_text("import torch\ndef show(model):\n    print(model._handle)\n")
    (tmp_path / "main.py").write_text(main.format("FSDP(net)"))
    found = {use.code for file in scan_paths([tmp_path]).files for use in file.uses}
    assert "FM317" in found
    (tmp_path / "main.py").write_text(main.format("net") + "other = FSDP(net.other)\n")
    assert "FM317" not in {use.code for file in scan_paths([tmp_path]).files for use in file.uses}


MOVES = """\
def offload(model: FSDP):
    for handle in model._all_handles:
        flat_param = handle.flat_param
        {}
        flat_param._local_shard = flat_param.data
"""


@pytest.mark.parametrize(
    "line", ["handle.flat_param_to('cpu', non_blocking=True)", "flat_param.data = flat_param.data.cpu()"]
)
def test_a_function_that_moves_flat_parameters_is_told_once_with_what_takes_its_place(line: str) -> None:
    after = turned(MODEL + MOVES.format(line))
    assert after.count("# fsdp-migrate: FM317") == 1
    assert "with offloaded(model, optimizer):` of fsdp_migrate.runtime" in after
    asks = MOVES.partition("        {}")[0] + "        print(flat_param.numel())\n"
    after = turned(MODEL + asks)
    assert "offloaded" not in after
    assert "FM317" in after


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        ("m._handle.flat_param", 1),
        ("m._handle.flat_param._local_shard", 1),
        ("m._handle", 1),
        ("m._handle, m.flat_param", 2),
        ("m._handle[0].flat_param", 1),
        ("same(m._handle, m._handle)", 2),
    ],
)
def test_attributes_of_private_ones_are_one_use(asked: str, count: int) -> None:
    assert codes(f"m = FSDP(net)\nx = {asked}\n").count(("FM317", "commented")) == count


@pytest.mark.parametrize(
    "line",
    [
        "model.process_group = group",
        "for unit in FSDP.fsdp_modules(model):\n        unit.process_group = group",
        'setattr(model, "process_group", group)',
    ],
)
def test_a_group_that_a_unit_is_given_is_told(line: str) -> None:
    body = f"def change(net, other, group):\n    model = FSDP(net)\n    {line}\n"
    assert "the mesh keeps the groups" in " ".join(turned(body).replace("#", "").split())
    others = body.replace("FSDP.fsdp_modules(model)", "own").replace("(model,", "(other,")
    assert "FM317" not in turned(others.replace("model.process", "other.process"))


@pytest.mark.parametrize(
    ("lines", "is_told"),
    [
        ('handle = getattr(model, "_handle", None)\n    if handle: handle.process_group = group', True),
        ('for handle in getattr(model, "_handles", []):\n        handle.process_group = group', True),
        (
            (
                'for name in ("_handle", "_handles"):\n        held = getattr(model, name, [])\n'
                "        for each in list(held):\n            each.rank = 0"
            ),
            True,
        ),
        ('handle = getattr(model, "_handle", None)\n    if handle: print(handle.process_group)', False),
        ('handle = getattr(model, "_handle", None)\n    own.process_group = group', False),
    ],
)
def test_what_is_set_on_a_private_that_may_be_missing_is_set_no_more(lines: str, *, is_told: bool) -> None:
    body = f"def change(net, own, group):\n    model = FSDP(net)\n    {lines}\n"
    assert (("FM317", "commented") in codes(body)) is is_told
