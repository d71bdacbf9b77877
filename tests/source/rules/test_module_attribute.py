"""``model.module``, which FSDP2 does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

from fsdp_migrate.source import catalog, rewrite_paths, scan_paths
from tests.source.projects import FSDP
from tests.source.samples import (
    MODEL,
    assert_commented,
    assert_kept,
    assert_left_alone,
    assert_turned,
    codes,
    turned,
    uses,
)


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


TURNED = [
    ("print(model.module.config)\n", "print(model.config)\n"),
    ("print(model._fsdp_wrapped_module.config)\n", "print(model.config)\n"),
    (
        "def save():\n    keep(model.module, 'a.pt')\n",
        "def save():\n    keep(model, 'a.pt')\n",
    ),
]


@pytest.mark.parametrize(("before", "after"), TURNED)
def test_methods_become_functions(before: str, after: str) -> None:
    assert_turned(before, after)


COMMENTED = [
    ("ok = hasattr(model, 'no_sync')\n", "FM315"),
    ("ok = hasattr(model, 'clip_grad_norm_')\n", "FM335"),
]


@pytest.mark.parametrize(("body", "code"), COMMENTED)
def test_what_is_left_to_people_gets_one_comment(body: str, code: str) -> None:
    assert_commented(body, code)


KEPT = [
    ("inner = model.module if hasattr(model, 'module') else model\n", "FM315"),
    ("inner = getattr(model, 'module', model)\n", "FM315"),
    ("try:\n    inner = model.module\nexcept AttributeError:\n    inner = model\n", "FM315"),
    ("try:\n    inner = model.module\nexcept:\n    pass\n", "FM315"),
]


@pytest.mark.parametrize(("body", "code"), KEPT)
def test_what_is_right_already_stays(body: str, code: str) -> None:
    assert_kept(body, code)


LEFT_ALONE = [
    "x = net.module.weight\n",
]


@pytest.mark.parametrize("body", LEFT_ALONE)
def test_other_things_with_the_same_names_are_left_alone(body: str) -> None:
    assert_left_alone(body)


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("for n, p in model.module.named_parameters():\n    shadow[n] = p.clone()\n", True),
        ("shadow = {n: p for n, p in model.module.named_parameters() if p.requires_grad}\n", True),
        ("shadow = dict(model.module.named_buffers())\n", True),
        ("for n, p in model.module.named_parameters():\n    print(n, p.shape)\n", False),
        ("for n, p in model.named_parameters():\n    shadow[n] = p.clone()\n", False),
        (
            (
                "def f(m: FSDP):\n    for n, p in m.module.named_parameters():\n"
                "        n = n.replace('_fsdp_wrapped_module.', '')\n        shadow[n] = p\n"
            ),
            False,
        ),
    ],
)
def test_names_of_what_was_wrapped_that_become_keys(body: str, *, is_said: bool) -> None:
    after = turned(f"model = FSDP(net)\n{body}")
    assert ("take it out where a file that has them as keys is read" in after) is is_said


def test_a_check_that_lets_others_through_proves_nothing() -> None:
    body = (
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "def f(x):\n    if isinstance(x, FSDP) or isinstance(x, DDP):\n        return x.module.y\n"
        "    if not isinstance(x, FSDP):\n        return x.module.z\n"
        "    if ready and isinstance(x, FSDP):\n        return x.module.w\n"
    )
    after = turned(body)
    assert "return x.module.y\n" in after
    assert "return x.module.z\n" in after
    assert "return x.w\n" in after


def test_a_model_that_is_asked_for_its_class_in_a_question_of_several_parts() -> None:
    body = "def leaf(m):\n    is_fsdp = isinstance(m, FSDP) or alone()\n    return is_fsdp and m.module.a\n"
    assert ("FM333", "commented") in codes(body)
    other = "def leaf(m):\n    if isinstance(m, FSDP):\n        return 1\n    return m.module\n"
    assert "FM333" not in {code for code, _ in codes(other)}


@pytest.mark.parametrize("asked", ["(FSDP, DDP)", "FSDP | DDP"])
@pytest.mark.parametrize("test", ["is_parallel(model)", "isinstance(model, {})"])
def test_a_check_for_one_of_several_classes(asked: str, test: str) -> None:
    body = (
        "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
        f"def is_parallel(model):\n    return isinstance(model, {asked})\n\n\n"
        f"def inner(model):\n    if {test.format(asked)}:\n        return inner(model.module)\n"
    )
    assert ("FM333", "commented") in codes(body)


def test_a_copy_of_torchs_file_is_not_edited() -> None:
    own = (
        "class FullyShardedDataParallel(nn.Module):\n    def order(self, found):\n"
        "        for wrap in self.fsdp_modules(self):\n            found[wrap.module] = wrap\n"
    )
    own += "    def whole(self):\n        with self.state_dict_type(self, Kind.L):\n            pass\n"
    assert turned(own, "") == own


@pytest.mark.parametrize("asked", ["type(model).__name__", "model.__class__.__name__"])
def test_what_is_ddps_by_the_name_of_its_class_keeps_its_module(asked: str) -> None:
    branch = f"def inner(model):\n    if {asked} == 'DistributedDataParallel':\n        return model.module\n"
    body = f"{branch}    if isinstance(model, FSDP):\n        return model\n    return model\n"
    assert "        return model.module\n" in turned(body)
    assert "FM333" not in dict(codes(body))


def test_a_function_that_asks_for_both_wrappers_is_given_both() -> None:
    body = (
        "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\ndef inner(model):\n"
        "    if isinstance(model, (FSDP, DDP)):\n        return model.module\n    return model\n\n\n"
        "inner(FSDP(net))\n"
    )
    assert ("FM333", "commented") in codes(body)
    assert "        return model.module\n" in turned(body)


def test_a_question_with_a_default_where_nothing_is_trained() -> None:
    asked = "skip = getattr(model, 'no_sync', nothing)\n"
    body = "def f(net, nothing):\n    model = FSDP(net)\n    {}    with {}skip():\n        model(x)\n"
    assert ("FM315", "kept") in codes(body.format(asked, "cast(), torch.no_grad(), "))
    assert ("FM315", "kept") in codes(f"@torch.inference_mode()\n{body.format(asked, '')}")
    assert ("FM315", "commented") in codes(body.format(asked, ""))
    # What is read once more for training, and what has no default.
    trained = f"{body.format(asked, 'torch.no_grad(), ')}    with skip():\n        model(x).backward()\n"
    assert ("FM315", "commented") in codes(trained)
    assert ("FM315", "commented") in codes(
        body.format("skip = getattr(model, 'no_sync')\n", "torch.no_grad(), ")
    )


@pytest.mark.parametrize(
    ("use", "action"),
    [
        ("setattr(m, 'forward', m.module.__call__)\n", "commented"),
        ("m.forward = m.module.forward\n", "commented"),
        ("setattr(other, 'forward', m.module.forward)\n", "rewritten"),
        ("x = m.module.forward\n", "rewritten"),
    ],
)
def test_a_forward_that_would_call_itself(use: str, action: str) -> None:
    assert ("FM335" if action == "commented" else "FM315", action) in codes(f"m = FSDP(net)\n{use}")


SWITCHED = (
    "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.flag = False\n"
    "        self.body = nn.Linear(2, 2)\n        self.unread = 1\n"
    "    def forward(self, x):\n        return self.body(x) if self.flag else x\n"
)


@pytest.mark.parametrize(
    ("does", "is_said"),
    [
        ("model = FSDP(Net())\nmodel.flag = True\n", True),
        ("model = Net()\nmodel.body = FSDP(model.body)\nmodel = FSDP(model)\nmodel.flag = True\n", True),
        # Its part alone is wrapped, or it is chosen whether it is too.
        ("model = Net()\nmodel.body = FSDP(model.body)\nmodel.flag = True\n", False),
        (
            "model = Net()\nmodel.b = FSDP(model.b)\nif c:\n    model = FSDP(model)\nmodel.flag = True\n",
            False,
        ),
        ("model = FSDP(Net())\nmodel.unread = 2\n", False),
        ("model = FSDP(Net())\nmodel.other = 2\n", False),
        ("model = Net()\nmodel.flag = True\nmodel = FSDP(model)\n", False),
        ("model = FSDP(Net())\nmodel.module.flag = True\n", False),
        ("model = FSDP(Net())\ninner = model.module\ninner.flag = True\n", False),
    ],
)
def test_what_is_set_on_the_wrapper_reaches_the_model_now(does: str, *, is_said: bool) -> None:
    after = turned(f"{SWITCHED}{does}")
    assert ("FM335 FSDP1's wrapper took this" in after) is is_said


def test_a_class_of_the_source_that_has_torchs_name_is_its_own() -> None:
    code = (
        "class FullyShardedDataParallel(torch.nn.Module):\n    def fsdp_modules(self):\n        return []\n"
        "    def finish(self):\n        for m in self.fsdp_modules():\n            use(m.module)\n"
    )
    assert "FM315" not in {each for each, _ in codes(code)}
    assert "FM315" in {each for each, _ in codes("for m in self.fsdp_modules():\n    use(m.module)\n")}


@pytest.mark.parametrize(
    ("caught", "does", "stays"),
    [
        ("", "model.freeze(x)", True),
        (" AttributeError", "model.freeze(x)", True),
        (" ValueError", "model.freeze(x)", False),
        ("", "other.freeze(x)", False),
        ("", "pass", False),
    ],
)
def test_a_try_that_does_the_same_without_it(caught: str, does: str, *, stays: bool) -> None:
    made = "from torch.nn.parallel import DistributedDataParallel as DDP\n"
    made += "model = FSDP(net) if on else DDP(net)\n"
    found = codes(f"{made}try:\n    model.module.freeze(x)\nexcept{caught}:\n    {does}\n")
    assert (("FM315", "kept") in found) is stays
    assert (("FM333", "commented") in found) is not stays


HEAD = "class Head(torch.nn.Module):\n    pass\n"
MADE_ABOVE = (
    "class T:\n  def build(self):\n    self.net = make()\n    self.net.fc = torch.nn.Linear(1, 2)\n"
    "  def shard(self):\n    self.net = FSDP(self.net)\n"
)
SHARDED = "net.fc = torch.nn.Linear(1, 2)\nmodel = FSDP(net)\n"


@pytest.mark.parametrize(
    "body",
    [
        "model.fc = torch.nn.Linear(model.fc.in_features, 10)\n",
        "model.fc = torch.nn.Linear(1, 10).to(device)\n",
        "layer = torch.nn.Sequential(torch.nn.ReLU())\nmodel.fc = layer\n",
        f"{HEAD}model.fc = Head()\n",
        "model.scale = torch.nn.Parameter(torch.ones(1))\n",
        "setattr(model, 'fc', torch.nn.Identity())\n",
        "setattr(model, name, torch.nn.Identity())\n",
        "model.add_module('fc', torch.nn.Identity())\n",
        "model.set_submodule('fc', torch.nn.Identity())\n",
        "def tune(m):\n    m.fc = torch.nn.Linear(1, 2)\ntune(model)\n",
        "class T:\n  def b(self):\n    self.n = FSDP(make())\n    self.n.fc = torch.nn.Linear(1, 2)\n",
    ],
)
def test_a_layer_that_the_wrapper_took(body: str) -> None:
    assert ("FM315", "commented") in codes(f"import torch\n{SHARDED}{body}")


@pytest.mark.parametrize(
    "body",
    [
        "model.fc = other\n",
        "model.loss = torch.nn.CrossEntropyLoss()\n",
        "model.tokenizer = Tokenizer()\n",
        "model.encoder.fc = torch.nn.Linear(1, 2)\n",
        "model.head = FSDP(torch.nn.Linear(1, 2))\n",
        "other.fc = torch.nn.Linear(1, 2)\n",
        "opt.model = torch.nn.Linear(1, 2)\n",
        "model.compare('fc', torch.nn.Identity())\n",
        "compare(model, 'fc', torch.nn.Identity())\n",
        MADE_ABOVE,
    ],
)
def test_what_is_set_and_is_no_layer_of_the_wrapper(body: str) -> None:
    assert ("FM315", "commented") not in codes(f"import torch\n{SHARDED}{body}")


def test_a_layer_that_is_set_in_another_file(tmp_path: Path) -> None:
    (tmp_path / "tune.py").write_text("from torch import nn\ndef tune(m):\n    m.fc = nn.Linear(1, 2)\n")
    (tmp_path / "main.py").write_text(f"{FSDP}from tune import tune\nmodel = FSDP(net)\ntune(model)\n")
    found = {use.code for use in scan_paths([tmp_path]).uses if use.path.endswith("tune.py")}
    assert found == {"FM315"}


@pytest.mark.parametrize(
    ("line", "is_said"),
    [
        ("out = model.module.generate(ids)", False),
        ("inner = model.module\nprint(inner.config)", False),
        ("layers = model.module.layers[0]", False),
        ("scores[model.module.name] = 1", False),
        ("setattr(report, 'name', model.module.name)", False),
        ("model.module.head = new", True),
        ("model.module.layers[0] = new", True),
        ("model.module.scale += 1", True),
        ("model.module.step: int = 1", True),
        ("setattr(model.module, 'head', new)", True),
        ("model.module.add_module('head', new)", True),
        ("inner = model.module\ninner.head = new", True),
    ],
)
def test_what_is_set_on_the_model_within_is_to_be_looked_at(line: str, *, is_said: bool) -> None:
    """A comment stood above each `.module` that was rightly taken out."""
    after = turned(f"{MODEL}{line}\n")
    assert ("FM315" in after) is is_said
    assert ".module" not in after.replace("`.module`", "")


ASKED = "isinstance(model, FSDP)"


@pytest.mark.parametrize(
    "body",
    [
        f"inner = model.module if {ASKED} else model\n",
        f"inner = model if not {ASKED} else model.module\n",
        f"save((model.module if {ASKED} else model).head)\n",
        f"if {ASKED}:\n    model = model.module\n",
        f"if {ASKED}:\n    inner = model.module\n",
        f"if {ASKED}:\n    model = model.module\nelse:\n    run(model)\n",
        f"inner = model.module if {ASKED} else other\n",
        f"inner = model.module.head if {ASKED} else model\n",
        "inner = model.module if fast else model\n",
    ],
)
def test_where_the_class_is_asked_for_there_is_nothing_to_settle(body: str) -> None:
    found = turned(f"model = FSDP(net)\n{body}")
    assert ".module" not in found.split("fsdp-migrate:")[0]
    assert "FM315" not in found


IF_FSDP = "if isinstance(m, FSDP):"
SAVES = """\
def save(net):
    model = FSDP(net)
    inner = unwrap(model)
    torch.save(inner.state_dict(), "a.pt")
    torch.save(unwrap(model).state_dict(), "b.pt")
"""
UNWRAPS = [
    ("return m._fsdp_wrapped_module", "return m"),
    (f"{IF_FSDP}\n        return m._fsdp_wrapped_module\n    return m", "return m\n    return m"),
    (f"{IF_FSDP}\n        m = m._fsdp_wrapped_module\n    return m", "m = m\n    return m"),
    ("return m._fsdp_wrapped_module if isinstance(m, FSDP) else m", "return m if isinstance("),
    ("while isinstance(m, FSDP):\n        m = m._fsdp_wrapped_module\n    return m", "FM335"),
    (f"{IF_FSDP}\n        return unwrap(m.module)\n    return m", "FM335"),
    (f"{IF_FSDP}\n        return unwrap(m._fsdp_wrapped_module)\n    return m", "FM335"),
    ("return getattr(m, '_fsdp_wrapped_module', m)", "getattr(m, '_fsdp_wrapped_module', m)"),
]


@pytest.mark.parametrize(("does", "becomes"), UNWRAPS)
@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_what_a_function_takes_out_of_the_wrapper_is_the_model(
    tmp_path: Path, does: str, becomes: str, *, is_elsewhere: bool
) -> None:
    """Its state was sharded without a word, once the comment in the function was settled."""
    unwrap, header = f"def unwrap(m):\n    {does}\n", f"import torch\n{FSDP}"
    files = {"train.py": f"{header}{unwrap}\n\n{SAVES}"}
    if is_elsewhere:
        files = {
            "inner.py": f"{header}{unwrap}",
            "train.py": f"{header}from inner import unwrap\n\n\n{SAVES}",
        }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    rewrite_paths([tmp_path], write=True)
    text = "".join((tmp_path / name).read_text() for name in files)
    whole = "options=StateDictOptions(full_state_dict=True)"
    assert f"get_model_state_dict(inner, {whole})" in text
    assert f"get_model_state_dict(unwrap(model), {whole})" in text
    assert becomes in text
    assert "FM317" not in text


@pytest.mark.parametrize(
    "body",
    [
        "class Own(torch.nn.Module):\n    def inner(self):\n        return self._fsdp_wrapped_module\n",
        "def f(m):\n    if hasattr(m, '_fsdp_wrapped_module'):\n        m = m._fsdp_wrapped_module\n",
        f"{MODEL}model._fsdp_wrapped_module = net\n",
    ],
)
def test_what_is_not_taken_out_of_a_wrapper(body: str) -> None:
    assert body.removeprefix(MODEL).splitlines()[-1] in turned(body)
    assert ("FM315", "rewritten") not in codes(body)


@pytest.mark.parametrize("ask", ["hasattr(model, {})", "callable(getattr(model, {}, None))"])
@pytest.mark.parametrize("name", ["set_requires_gradient_sync", "unshard", "set_reshard_after_backward"])
def test_what_fsdp2s_models_alone_have(ask: str, name: str) -> None:
    assert name in dir(FSDPModule)
    assert name not in dir(FullyShardedDataParallel)
    body = f"if {ask.format(repr(name))}:\n    model.{name}(True)\n"
    [use] = [use for use in uses(MODEL + body) if use.code == "FM420"]
    assert (use.action, "is done now" in use.becomes) == ("commented", True)
    assert f"if {ask.format(repr(name))}:" in turned(MODEL + body)  # it stays, and stops no run
    assert not [use for use in uses(MODEL + body.replace("model", "net")) if use.code == "FM420"]


def test_every_method_that_fsdp2s_models_alone_have_is_known() -> None:
    alone = set(dir(FSDPModule)) - set(dir(FullyShardedDataParallel))
    assert {name for name in alone if not name.startswith("_")} <= catalog.OF_FSDP2_ALONE


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("try:\n    model.unshard()\nexcept AttributeError:\n    pass\n", True),
        ("try:\n    ask = model.reshard\nexcept (AttributeError, TypeError):\n    ask = None\n", True),
        ("try:\n    model.unshard()\nexcept:\n    pass\n", True),
        ("with contextlib.suppress(AttributeError):\n    model.set_is_last_backward(True)\n", True),
        ("if 'unshard' in dir(model):\n    model.unshard()\n", True),
        ("ask = getattr(model, 'set_gradient_divide_factor', None)\n", True),
        # Where nothing takes up its absence, FSDP1 never came there.
        ("model.unshard()\n", False),
        ("try:\n    model.unshard()\nexcept ValueError:\n    pass\n", False),
        ("try:\n    pass\nexcept AttributeError:\n    model.unshard()\n", False),
        ("with contextlib.suppress(KeyError):\n    model.unshard()\n", False),
        ("try:\n    net2.unshard()\nexcept AttributeError:\n    pass\n", False),
        ("if 'unshard' in names:\n    pass\n", False),
        ("ask = getattr(model, 'no_such', None)\n", False),
    ],
)
def test_where_their_absence_was_taken_up(body: str, *, is_said: bool) -> None:
    said = [use for use in uses(f"{MODEL}{body}") if use.code == "FM420"]
    assert [use.action for use in said] == (["commented"] if is_said else [])


@pytest.mark.parametrize(
    ("asked", "is_said"), [("state.model.module.number", False), ("state.model.state_dict()", True)]
)
def test_composers_own_model_had_no_wrapper(tmp_path: Path, asked: str, *, is_said: bool) -> None:
    """Composer's FSDP1 wraps the parts of its model; `.module` of that itself is DDP's."""
    (tmp_path / "calls.py").write_text(
        "from composer import Callback\nclass Log(Callback):\n    def eval_batch_end(self, state, logger):\n"
        f"        n = {asked}\n"
    )
    (tmp_path / "train.py").write_text(
        "from composer import Trainer\nfrom calls import Log\n"
        "given = {'fsdp': {'sharding_strategy': 'FULL_SHARD'}}\n"
        "Trainer(model=model, parallelism_config=given, callbacks=[Log()]).fit()\n"
    )
    found = {use.code for use in scan_paths([tmp_path]).uses if use.path.endswith("calls.py")}
    assert ("FM333" in found) is is_said


@pytest.mark.parametrize(
    ("test", "then", "other", "is_said"),
    [
        ("hasattr(model, 'module')", "model.module.save_pretrained(p)", "else:\n    torch.save(s, p)", True),
        ("x and hasattr(model, 'module') and hasattr(model.module, 'f')", "model.module.f(p)", "", True),
        ("hasattr(model, 'module')", "model.module.reset()", "else:\n    log('x')", True),
        ("hasattr(model, 'module')", "model.module.f(p, s)", "else:\n    model.f(p)", False),
        ("hasattr(model, 'module')", "model.module.f(p)", "elif x:\n    pass\nelse:\n    model.f(p)", False),
        ("hasattr(model, 'module')", "model = model.module", "model.f(p)", False),
        ("hasattr(model, 'module')", "inner = model.module", "else:\n    inner = model", False),
        ("hasattr(model, 'module') or x", "model.module.f(p)", "", False),
        ("hasattr(model, 'module')", "x = model.module.f(p)", "else:\n    raise ValueError", True),
        ("hasattr(model, 'module')", "x = model.module.f(p)", "else:\n    x = model.f(p)", False),
        ("not hasattr(model, 'module')", "model.f(p)", "else:\n    model.module.g(p)", True),
        ("not hasattr(model, 'module')", "model.f(p)", "else:\n    model.module.f(p)", False),
        ("not hasattr(model, 'module')", "raise ValueError", "", True),
        ("not hasattr(model, 'module')", "model = DDP(model)", "", True),
        ("not hasattr(model, 'module')", "x = model", "else:\n    x = model.module", False),
        ("hasattr(other, 'module')", "other.module.f(p)", "", False),
    ],
)
def test_what_is_done_with_the_model_within_alone(test: str, then: str, other: str, *, is_said: bool) -> None:
    """It was said that the model itself is taken, where another branch does something else, or none."""
    found = codes(f"{MODEL}if {test}:\n    {then}\n{other}\n")
    assert (("FM315", "commented") in found) is is_said


@pytest.mark.parametrize(
    ("asserted", "is_said"),
    [
        ("hasattr(model, 'module')", True),
        ("x and hasattr(model, 'module')", True),
        ("hasattr(model, 'module') or x", False),
        ("not hasattr(model, 'module')", False),
    ],
)
def test_what_is_required_raises_now(asserted: str, *, is_said: bool) -> None:
    """`assert hasattr(model, "module")` raises, where it was said that the model itself is taken."""
    said = [use.becomes for use in uses(f"{MODEL}assert {asserted}\n") if use.code == "FM315"]
    assert any("this raises now" in each for each in said) is is_said
