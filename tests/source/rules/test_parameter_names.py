"""Parameters that are chosen by their names, which FSDP1's flat ones did not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP
from tests.source.samples import codes, uses


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

_LIST = "xs = [p for n, p in model.named_parameters() if {}]\n"
_LOOP = "for n, p in model.named_parameters():\n    if {}:\n        {}\n"
NAMES = [
    _LIST.format("not any(nd in n for nd in ['bias', 'norm'])"),
    _LIST.format("n in decayed and p.requires_grad"),
    _LIST.format("n.endswith('.bias')"),
    _LIST.format("re.search('layers.1', n)"),
    "xs = {'params': [p for n, p in model.named_parameters() if 'bias' in n.lower()]}\n",
    _LOOP.format("'lora' not in n", "p.requires_grad = False"),
    _LOOP.format("'lora' not in n", "p.requires_grad_(False)"),
    _LOOP.format("'bias' in n or 'norm' in n", "xs.append(p)"),
    _LOOP.format("p.requires_grad", "(xs if 'bias' in n else ys).append(p)"),
    _LOOP.format("'bias' in n", "xs.append({'params': [p], 'lr': 1})"),
    "for n, p in model.named_parameters():\n    m = n.lower()\n    if 'bias' in m:\n        xs.append(p)\n",
    "for n, p in model.named_parameters():\n    no = 'bias' in n\n    (xs if no else ys).append(p)\n",
    "for n, p in model.named_parameters():\n    p.requires_grad = re.search('lora', n) is not None\n",
    _LIST.format("n.split('.')[-1] == 'bias'"),
    _LIST.format("fnmatch(n, '*.bias')"),
    "def plain(name):\n    return 'bias' in name\n" + _LIST.format("plain(n)"),
    "plain = lambda name, p: 'bias' in name\n" + _LIST.format("plain(n, p)"),
    "named = list(model.named_parameters())\nxs = [p for n, p in named if 'bias' in n]\n",
    "named = dict(model.named_parameters())\nxs = [p for n, p in named.items() if 'bias' in n]\n",
    (
        "named = {n: p for n, p in model.named_parameters()}\n"
        "some = {n: p for n, p in named.items() if p.requires_grad}\n"
        "xs = [p for n, p in some.items() if 'bias' in n]\n"
    ),
    (
        "named = sorted([(n, p) for n, p in model.named_parameters()])\nfor n, p in named:\n"
        "    if 'bias' in n:\n        xs.append(p)\n"
    ),
]
_FUNCTION = "def is_other(text):\n    return {}\n\n"
_LINES = "for n, p in model.named_parameters():\n    {}\n    if {}:\n        xs.append(p)\n"
NAMES += [
    _LINES.format("low = n.lower()", "'bias' in low or 'norm' in low"),
    _LINES.format("skip = n.endswith('.bias') or 'norm' in n", "skip"),
    "for n, p in model.named_parameters():\n    no = 'bias' in n\n    (xs if no else ys).append(p)\n",
    _FUNCTION.format("'bias' in text") + _LIST.format("is_other(n)"),
    _LOOP.format("n.split('.')[-1] == 'bias'", "xs.append(p)"),
    "for n, p in model.named_parameters():\n    p.requires_grad = re.search('lora', n) is not None\n",
    "for n, p in model.named_parameters():\n    p.requires_grad_(any(x in n for x in xs))\n",
]
NAMES += [
    _LOOP.format("'bias' in n and p.grad is not None", "p.grad.zero_()"),
    _LOOP.format("'bias' in n", "p.grad = None"),
    _LOOP.format("n.endswith('.bias')", "p.data.mul_(0.5)"),
]
OTHERS = [
    _LOOP.format("p.grad is not None", "p.grad.zero_()"),
    _LOOP.format("'bias' in n", "norms[n] = p.grad.norm()"),
    _LOOP.format("'bias' in n.replace('_fsdp_wrapped_module.', '')", "p.grad.zero_()"),
    "n = list(x.named_parameters())\nmodel.named_parameters()\nxs = [p for m, p in n if 'bias' in m]\n",
    "named = list(model.named_parameters())\nnamed = []\nxs = [p for n, p in named if 'bias' in n]\n",
    _LIST.format("p.requires_grad"),
    _LOOP.format("'bias' in n", "print(n, p)"),
    _LOOP.format("'bias' in n", "names.append(n)"),
    "for n, p in model.named_parameters():\n    is_no = 'bias' in n\n    xs.append(p)\n",
    _LIST.format("len(n)"),
    _LIST.format("seen(n)"),
    f"with FSDP.summon_full_params(model):\n    {NAMES[0]}",
    _LINES.format("low = n.lower()", "'bias' in other"),
    _LINES.format("skip = 'bias' in n", "p.requires_grad"),
    _FUNCTION.format("len(text) > 4") + _LIST.format("is_other(n)"),
    "for n, p in model.named_parameters():\n    p.requires_grad = on\n",
    _LOOP.format("'bias' in n.replace('_fsdp_wrapped_module.', '')", "xs.append(p)"),
]
CHANGED = _LOOP.format("n.startswith('encoder')", "p.grad.zero_()")
START = _LIST.format("n.startswith('encoder')")


def _is_said(body: str, wrap: str = "model = FSDP(net)\n") -> bool:
    return ("FM318", "commented") in codes(f"{wrap}{body}")


@pytest.mark.parametrize("body", NAMES)
def test_parameters_that_are_chosen_by_their_names(body: str) -> None:
    assert _is_said(body)
    assert not _is_said(body.replace("model.named", "net.named"), f"{body}model = FSDP(model)\n")
    assert _is_said(body, "model = FSDP(net, use_orig_params=False)\n")
    assert _is_said(body, "kw = {'device_id': 0}\nmodel = FSDP(net, **kw)\n")
    for asks in (
        "use_orig_params=True",
        "use_orig_params=cfg.get('orig', True)",
        "**{'use_orig_params': True}",
    ):
        assert not _is_said(body, f"model = FSDP(net, {asks})\n"), asks


@pytest.mark.parametrize(
    ("wrap", "is_said"),
    [
        # Until now any value but False was taken for True here, and nothing was said.
        ("model = FSDP(net, use_orig_params=cfg.orig)\n", True),
        ("model = FSDP(net, use_orig_params=keeps(cfg))\n", True),
        ("model = FSDP(net, **{'use_orig_params': cfg.orig})\n", True),
        ("orig: bool = True\nmodel = FSDP(net, use_orig_params=orig)\n", False),
        (
            (
                "def wrap(net, use_orig_params=True):\n"
                "    return FSDP(net, use_orig_params=use_orig_params)\nmodel = wrap(net)\n"
            ),
            False,
        ),
        (
            (
                "parser.add_argument('--orig', type=bool, default=True)\n"
                "model = FSDP(net, use_orig_params=args.orig)\n"
            ),
            False,
        ),
        (
            (
                "parser.add_argument('--orig', action='store_true')\n"
                "model = FSDP(net, use_orig_params=args.orig)\n"
            ),
            True,
        ),
    ],
)
def test_names_that_only_the_run_shows_to_be_kept(wrap: str, *, is_said: bool) -> None:
    found = [use.becomes for use in uses(f"{wrap}{NAMES[0]}") if use.code == "FM318"]
    assert [said.startswith("unless use_orig_params is true when this runs") for said in found] == [
        True
    ] * is_said


@pytest.mark.parametrize(
    ("name", "text", "is_said"),
    [
        ("fsdp.yaml", "orig: true\n", False),
        ("fsdp.yaml", "orig: false\n", True),
        ("fsdp.yaml", "# orig: true\n", True),
        ("fsdp.yaml", "use_orig_params: true\n", False),
        ("settings.py", "class Settings:\n    orig: bool = field(default=True)\n", False),
        ("settings.py", "class Settings:\n    orig: bool = False\n", True),
        ("run.sh", "torchrun train.py --use_orig_params\n", False),
        # In some runs alone; and in all, as a default.
        ("run.py", "def f(cfg):\n    if cfg.fused:\n        print()\n\n        cfg.orig = True\n", True),
        ("run.py", "def f(cfg):\n    if cfg.orig is None:\n        cfg.orig = True\n", False),
        ("run.py", "def f(cfg):\n    if cfg.fused:\n        print()\n    cfg.orig = True\n", False),
    ],
)
def test_what_else_shows_that_names_are_kept(tmp_path: Path, name: str, text: str, *, is_said: bool) -> None:
    (tmp_path / name).write_text(text)
    wrap = f"{FSDP}from groups import groups\n\nmodel = FSDP(net, use_orig_params=cfg.orig)\ngroups(model)\n"
    (tmp_path / "train.py").write_text(wrap)
    (tmp_path / "groups.py").write_text(f"def groups(model):\n    {NAMES[0]}    return xs\n")
    found = [use.becomes for use in scan_paths([tmp_path]).uses if use.code == "FM318"]
    assert [said.startswith("unless use_orig_params is true when this runs") for said in found] == [
        True
    ] * is_said


@pytest.mark.parametrize("body", OTHERS)
def test_what_chooses_nothing_or_has_clean_names(body: str) -> None:
    assert not _is_said(body)


def test_how_a_name_begins_was_never_asked_rightly() -> None:
    for body in (START, CHANGED):
        assert _is_said(body, "model = FSDP(net, use_orig_params=True)\n")
        inner = body.replace("model.", "model.module.")
        assert not _is_said(inner, "model = FSDP(net, use_orig_params=True)\n")
    said = next(each.becomes for each in uses(f"model = FSDP(net)\n{CHANGED}") if each.code == "FM318")
    assert "old groups" not in said


@pytest.mark.parametrize(
    ("test", "is_said"),
    [
        ("n == 'head.weight'", True),
        ("'head.weight' != n", True),
        ("n in ('head.weight', 'head.bias')", True),
        ("n in FROZEN", True),
        ("n in names", False),
        ("n == wanted", False),
        ("'bias' in n", False),
        ("n.split('.')[-1] == 'bias'", False),
    ],
)
def test_whole_names_were_never_met(test: str, is_said: bool) -> None:
    body = f"FROZEN = ['head.weight']\n{_LOOP.format(test, 'p.requires_grad = False')}"
    assert _is_said(body, "model = FSDP(net, use_orig_params=True)\n") is is_said
    assert not _is_said(body.replace("model.", "model.module."), "model = FSDP(net, use_orig_params=True)\n")


def test_another_file_says_whether_names_are_kept(tmp_path: Path) -> None:
    used = f"def groups(model):\n    {NAMES[0]}    return xs\n"
    (tmp_path / "groups.py").write_text(used)
    for asks, count in (("", 1), (", use_orig_params=True", 0)):
        train = f"{FSDP}from groups import groups\nmodel = FSDP(net{asks})\ngroups(model)\n"
        (tmp_path / "train.py").write_text(train)
        assert [use.code for use in scan_paths([tmp_path]).uses].count("FM318") == count


@pytest.mark.parametrize(
    ("before", "part", "test", "is_said"),
    [
        ("", "model.body", "'head' in n", True),
        ("", "model.layers[0]", "'head' in n", True),
        ("body = model.body\n", "body", "'head' in n", True),
        ("", "model.body", "n.startswith('head')", True),
        ("", "other.body", "'head' in n", False),
    ],
)
def test_names_of_a_part_of_the_model(before: str, part: str, test: str, *, is_said: bool) -> None:
    loop = f"for n, p in {part}.named_parameters():\n    if {test}:\n        p.requires_grad = True\n"
    assert (("FM318", "commented") in codes(f"model = FSDP(net)\n{before}{loop}")) is is_said


def test_names_of_a_part_that_keep_their_own_say_nothing() -> None:
    loop = "for n, p in model.body.named_parameters():\n    if n.startswith('a'):\n        xs.append(p)\n"
    assert ("FM318", "commented") not in codes(f"model = FSDP(net, use_orig_params=True)\n{loop}")


PARTS = [
    _LIST.format("re.match(r'layers', n)"),
    _LIST.format("re.search('^head', n)"),
    _LIST.format("fnmatch(n, 'layers.*')"),
    _LIST.format("n.split('.')[0] == 'head'"),
    _LIST.format("n.split('layers.')[0] == ''"),
    "for n, p in model.named_parameters():\n    xs.append({'params': [p], 'lr': int(n.split('.')[2])})\n",
]
ANY_PART = [
    _LIST.format("re.search('layers', n)"),
    _LIST.format("re.match(r'.*bias', n)"),
    _LIST.format("fnmatch(n, '*.bias')"),
    _LIST.format("n.split('.')[-1] == 'bias'"),
    "for n, p in model.named_parameters():\n    print(n.split('.')[0])\n",
    _LIST.format("int(n.split('layers.')[1].split('.')[0]) > 3"),
    _LIST.format("n.partition('layers.')[2].startswith('0')"),
]


@pytest.mark.parametrize("body", [*PARTS, *ANY_PART])
def test_parts_of_names_that_are_counted_from_the_beginning(body: str) -> None:
    own = "model = FSDP(net, use_orig_params=True)\n"
    assert ("FM318" in dict(codes(own + body))) is (body in PARTS)
    clean = body.replace("model.named", "net2.named")
    assert "FM318" not in dict(codes(own + clean))


def _said_of_names(before: str, wrap: str = "FSDP(net, **kw)") -> str:
    """Return what is said of flat names: "flat" for certain, "perhaps", or nothing."""
    body = f"{before}model = {wrap}\n{NAMES[0]}"
    said = [use.becomes for use in uses(body) if use.code == "FM318"]
    return "" if not said else "perhaps" if said[0].startswith("unless") else "flat"


@pytest.mark.parametrize(
    ("before", "said"),
    [
        # What stands elsewhere may ask for it or not. Silence hid that norms were decayed under FSDP1, so
        # it is said with its condition; until now such models were passed over.
        ("", "perhaps"),
        ("kw = load(path)\n", "perhaps"),
        ("kw = {'device_id': 0, **others}\n", "perhaps"),
        ("kw = {'device_id': 0}\nfill(kw)\n", "perhaps"),
        ("kw = {}\nfor k in names:\n    kw[k] = getattr(cfg, k)\n", "perhaps"),
        ("kw = dict(device_id=0)\nkw.update(others)\n", "perhaps"),
        ("kw = {'device_id': 0}\nkw |= others\n", "perhaps"),
        # Every key is seen.
        ("kw = {'device_id': 0}\n", "flat"),
        ("kw = dict(device_id=0)\nkw.update(forward_prefetch=True)\n", "flat"),
        ("kw = {'use_orig_params': False}\n", "flat"),
        ("kw = {}\nkw['use_orig_params'] = False\n", "flat"),
        ("kw = {}\nfor k in ['limit_all_gathers']:\n    kw[k] = getattr(cfg, k)\n", "flat"),
        ("asked = ('device_id',)\nkw = {k: getattr(cfg, k) for k in asked}\n", "flat"),
        ("kw = {'device_id': 0}\nif on:\n    kw |= {'forward_prefetch': True}\nprint(kw)\n", "flat"),
        (
            "def given():\n    found = {}\n    found['device_id'] = 0\n    return found\n\nkw = given()\n",
            "flat",
        ),
        # It is among them.
        ("kw = {}\nkw['use_orig_params'] = True\n", ""),
        ("kw = dict(use_orig_params=True)\n", ""),
        ("kw = {}\nkw.update({'use_orig_params': True})\n", ""),
        ("kw = {}\nkw.setdefault('use_orig_params', keep)\n", ""),
        ("kw = {}\nfor k in ['use_orig_params']:\n    kw[k] = getattr(cfg, k)\n", ""),
    ],
)
def test_what_two_stars_give(before: str, said: str) -> None:
    assert _said_of_names(before) == said
    partial = f"{before}wrap = functools.partial(FSDP, **kw)\n"
    assert _said_of_names(partial, "wrap(net)") == said


def test_two_stars_in_a_function(tmp_path: Path) -> None:
    def said(call: str, config: str = "") -> set[str]:
        wrap = f"{FSDP}from groups import groups\n\ndef wrap(net, **kw):\n    return FSDP(net, {call})\n\n"
        (tmp_path / "train.py").write_text(f"{wrap}model = wrap(net)\ngroups(model)\n")
        (tmp_path / "groups.py").write_text(f"def groups(model):\n    {NAMES[0]}    return xs\n")
        (tmp_path / "fsdp.yaml").write_text(config)
        found = (use for use in scan_paths([tmp_path]).uses if use.code == "FM318")
        return {use.becomes.partition(" ")[0] for use in found}

    assert said("device_id=0") == {"without"}
    assert said("**kw") == {"unless"}
    assert said("**kw", "use_orig_params: false\n") == {"unless"}
    assert said("**kw", "use_orig_params: true\n") == set()


@pytest.mark.parametrize(
    ("config", "is_said"),
    [
        ("  fsdp_use_orig_params: true\n", False),
        ("  fsdp_use_orig_params: false\n", True),
        ("  # fsdp_use_orig_params: true\n", True),
        ("", True),
    ],
)
def test_the_config_of_a_launch_says_whether_names_are_kept(
    tmp_path: Path, config: str, *, is_said: bool
) -> None:
    (tmp_path / "fsdp.yaml").write_text(f"distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 1\n{config}")
    _write_prepared(tmp_path)
    assert ("FM318" in {use.code for use in scan_paths([tmp_path]).uses}) is is_said


def test_the_variable_of_a_launch_says_whether_names_are_kept(tmp_path: Path) -> None:
    for value in ("true", "false"):
        (tmp_path / "run.sh").write_text(
            f"export FSDP_USE_ORIG_PARAMS={value}\naccelerate launch --use_fsdp train.py\n"
        )
        _write_prepared(tmp_path)
        assert ("FM318" in {use.code for use in scan_paths([tmp_path]).uses}) is (value == "false")


def _write_prepared(folder: Path) -> None:
    prepares = "from accelerate import Accelerator\nacc = Accelerator()\nmodel, opt = acc.prepare(net, opt)\n"
    (folder / "train.py").write_text(f"from groups import groups\n{prepares}groups(model)\n")
    (folder / "groups.py").write_text(f"def groups(model):\n    {NAMES[0]}    return xs\n")


_WITHIN = """\
model = FSDP(net, use_orig_params={})
{}
with FSDP.summon_full_params(model):
    for name, p in model.named_parameters():
        own = name.replace('base.', '')
        if {}:
            state[name] = p.data
"""
_GATHERED = "names = [n for n, _ in model.named_parameters()]"
_FILLED = (
    "names = []\nfor n, _ in model.named_parameters():\n    n2 = n.removeprefix('x')\n    names.append(n2)"
)


@pytest.mark.parametrize(
    ("keeps", "gathered", "test", "is_said"),
    [
        ("False", _GATHERED, "name in names", True),
        ("False", _GATHERED, "own not in names", True),
        ("False", _FILLED, "own in names or name == 'x'", True),
        (
            "False",
            "names = set(n for n, p in model.named_parameters() if p.requires_grad)",
            "name in names",
            True,
        ),
        ("False", "names = dict(model.named_parameters())", "name in names", True),
        ("False", "names = {n: p for n, p in model.named_parameters()}", "name in names.keys()", True),
        ("True", _GATHERED, "name in names", False),
        ("False", _GATHERED.replace("model", "other"), "name in names", False),
        ("False", "names = [p for _, p in model.named_parameters()]", "p in names", False),
        ("False", _GATHERED, "name in wanted", False),
        ("False", _GATHERED, "wanted in names", False),
        ("False", f"with FSDP.summon_full_params(model):\n    {_GATHERED}", "name in names", False),
    ],
)
def test_names_from_outside_are_looked_for_within(
    keeps: str, gathered: str, test: str, *, is_said: bool
) -> None:
    body = _WITHIN.format(keeps, gathered, test)
    found = [use for use in uses(body) if use.code == "FM318" and "from outside of" in use.becomes]
    assert bool(found) is is_said


_OWN = """\
class Worker:
    def build(self, net):
        self.model = FSDP(net, use_orig_params={})
    def group(self):
        model = self.model
        return [p for n, p in model.named_parameters() if 'bias' in n]
"""


@pytest.mark.parametrize(("keeps", "is_said"), [("False", True), ("True", False)])
def test_another_file_keeps_names_of_a_model_of_its_own(tmp_path: Path, keeps: str, *, is_said: bool) -> None:
    (tmp_path / "a.py").write_text(f"{FSDP}\n{_OWN.format(keeps)}")
    (tmp_path / "b.py").write_text(f"{FSDP}\nmodel = FSDP(net, use_orig_params=True)\n")
    assert ("FM318" in {use.code for use in scan_paths([tmp_path]).uses}) is is_said


@pytest.mark.parametrize(
    ("asked", "given", "is_said"),
    [
        ("name == 'norm.weight'", "n", True),
        ("name.endswith('.bias') or name == 'norm.weight'", "n", True),
        ("name.startswith('norm')", "n", True),
        ("re.match('norm', name) is not None", "n", True),
        ("'norm' in name", "n", False),
        ("name.endswith('.bias')", "n", False),
        ("name == 'weight'", "n.split('.')[-1]", False),
        ("name.replace('_fsdp_wrapped_module.', '') == 'norm.weight'", "n", False),
    ],
)
def test_a_function_is_asked_about_the_beginning_of_a_name(asked: str, given: str, *, is_said: bool) -> None:
    body = f"def plain(name):\n    return {asked}\nmodel = FSDP(net, use_orig_params=True)\n"
    assert (("FM318", "commented") in codes(body + _LIST.format(f"not plain({given})"))) is is_said
