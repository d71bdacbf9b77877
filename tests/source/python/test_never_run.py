"""What never runs, or never with FSDP1's class, makes no model, and nothing is said of it."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import scan_source
from tests.source.samples import turned


pytestmark = pytest.mark.any_torch

HEAD = (
    "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType\n"
    "from torch.distributed.checkpoint.state_dict import get_model_state_dict\n\n\n"
)
CLIPS = (
    "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n    torch.save(model.state_dict(), 'm')\n"
)
MAKES = "def main(args, net):\n    model = make()\n{}" + CLIPS
SHARDED = "    if args.fsdp_kind:\n{}        model = FSDP(net)\n    else:\n        model = net.to(0)\n"


def said(body: str, head: str = HEAD) -> set[tuple[str, str]]:
    """Return the codes of what is rewritten or gets a comment, imports left out."""
    found = scan_source(head + body)
    actions = {"rewritten", "commented"}
    return {(use.code, use.action) for use in found if use.action in actions and use.code != "FM329"}


@pytest.mark.parametrize(
    "leaves",
    [
        "        raise RuntimeError('no')\n",
        "        return None\n",
        "        if args.x:\n            raise ValueError\n        else:\n            return 1\n",
        "        try:\n            return f()\n        except ValueError:\n            raise\n",
        "        try:\n            f()\n        finally:\n            return 1\n",
    ],
)
def test_what_stands_below_a_statement_that_leaves_makes_nothing(leaves: str) -> None:
    assert said(MAKES.format(SHARDED.format(leaves))) == set()
    after = turned(HEAD + MAKES.format(SHARDED.format(leaves)), "")
    assert "        model = FSDP(net)\n" in after
    assert "FullyShardedDataParallel as FSDP" in after


@pytest.mark.parametrize(
    "leaves",
    [
        "        if args.x:\n            raise RuntimeError('no')\n",
        "        if args.x:\n            raise ValueError\n        elif args.y:\n            return 1\n",
        "        try:\n            return f()\n        except ValueError:\n            pass\n",
        "        with torch.no_grad():\n            return f()\n",
        "        for x in args.all:\n            return f()\n",
        "        def inner():\n            raise ValueError\n",
        "        sys.exit(1) if args.x else None\n",
    ],
)
def test_what_may_be_come_to_is_sharded(leaves: str) -> None:
    assert {code for code, _ in said(MAKES.format(SHARDED.format(leaves)))} >= {"FM301", "FM326"}


def test_the_lines_of_a_module_may_be_run_one_by_one() -> None:
    """As those of a notebook are, whose cells are one source here."""
    assert ("FM301", "rewritten") in said("raise ValueError\nmodel = FSDP(net)\n")


def test_a_loop_that_is_left_or_goes_on_before() -> None:
    loop = "    for net in nets:\n        continue\n        model = FSDP(net)\n"
    assert said(MAKES.format(loop)) == set()


def test_a_function_that_raises_first_gets_no_comment() -> None:
    body = (
        "def save(model, optimizer):\n    raise NotImplementedError\n"
        "    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n        keep(model)\n"
        "    optimizer.load_state_dict(torch.load('rank0.pt'))\n"
        "def other(model):\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    )
    assert said(body) == set()
    assert said(body.replace("    raise NotImplementedError\n", ""))


FALLS_BACK = """\
def shard(model):
    try:
        {imports}
        {more}fully_shard(model)
        return model
    except {error}:
        pass
    return FSDP(model)

class Saver:
    def __init__(self, model):
        self.model = shard(model)
        self.is_fsdp = isinstance(self.model, FSDP)
    def groups(self):
        return [p for p in self.model.parameters() if p.dim() < 2]
"""
IMPORTED = "from torch.distributed._composable.fsdp import fully_shard"


def falls_back(imports: str = IMPORTED, more: str = "", error: str = "ImportError") -> str:
    return FALLS_BACK.format(imports=imports, more=more, error=error)


@pytest.mark.parametrize(
    "body",
    [
        falls_back(),
        falls_back("from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy"),
        falls_back(error="(ImportError, ModuleNotFoundError)"),
        falls_back(more="model = model.to(torch.bfloat16)\n        "),
        falls_back(more="from torch.distributed.device_mesh import init_device_mesh\n        "),
        falls_back().replace("        pass\n    return FSDP(model)", "        return FSDP(model)"),
    ],
)
def test_fsdp1_as_the_fallback_of_fsdp2_is_never_come_to(body: str) -> None:
    assert said(body) == {("FM305", "commented")}


@pytest.mark.parametrize(
    "body",
    [
        # Another error, or another import, may lead there.
        falls_back(error="Exception"),
        falls_back(error="(ImportError, RuntimeError)"),
        falls_back("from lib import fully_shard"),
        falls_back("from torch.distributed._composable.fsdp import fully_shard, of_a_later_one"),
        falls_back(more="import apex\n        "),
        falls_back(more="model = prepared(model)\n        "),
        falls_back(more="self.check()\n        "),
        falls_back(more="if old:\n            raise ImportError\n        "),
        falls_back().replace("        return model\n", "        if sharded:\n            return model\n"),
    ],
)
def test_a_fallback_that_may_be_come_to_is_sharded(body: str) -> None:
    assert said(body) >= {("FM301", "rewritten"), ("FM305", "rewritten")}


FLAGGED = (
    "try:\n    from torch.distributed.fsdp import fully_shard\n    HAS = True\n"
    "except ImportError:\n    {}\n\n"
)
BRANCHES = (
    "def main(args, model):\n    if {}:\n        fully_shard(model)\n    else:\n        model = FSDP(model)\n"
    + CLIPS
)


@pytest.mark.parametrize(
    ("flags", "test", "is_said"),
    [
        ("HAS = False", "HAS", False),
        ("HAS = False", "HAS or args.x", False),
        ("fully_shard = None", "fully_shard is not None", False),
        ("fully_shard = None", "not (fully_shard is None)", False),
        ("HAS = False", "HAS and args.fsdp2", True),
        ("HAS = args.x", "HAS", True),
        ("HAS = False\nHAS = asked()", "HAS", True),
        ("HAS = False\ndef turn():\n    global HAS\n    HAS = False", "HAS", True),
    ],
)
def test_names_that_say_whether_there_is_fsdp2(flags: str, test: str, *, is_said: bool) -> None:
    found = said(FLAGGED.format(flags) + BRANCHES.format(test))
    assert (found != set()) is is_said


XLA = (
    "import torch\ntry:\n    import torch_xla.core.xla_model as xm\n"
    "    from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP\n"
    "except ImportError:\n    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    "    xm = None\n\n"
)
WRAPS = (
    "def wrap(model):\n    if {}:\n        return FSDP(model, reshard_after_forward=True)\n"
    "    return FSDP(model)\n"
)


@pytest.mark.parametrize(
    ("head", "test", "is_said"),
    [
        (XLA, "xm", False),
        (XLA, "xm is not None", False),
        (XLA, "xm is None", True),
        (XLA, "args.xla", True),
        (XLA.replace("xm = None", "xm = fake()"), "xm", True),
        (XLA.replace("Xla", ""), "xm", False),
        # Where the class is torch's in any case the name says nothing of it.
        (XLA.replace("torch_xla.distributed.fsdp import Xla", "torch.distributed.fsdp import "), "xm", True),
        (f"{XLA}xm = load()\n", "xm", True),
    ],
)
def test_branches_of_torch_xla(head: str, test: str, *, is_said: bool) -> None:
    assert (("FM422", "commented") in said(WRAPS.format(test), head)) is is_said


LOOKED_UP = "    def any(self, kind, held):\n        {}\n"
ANOTHERS = [
    # A library has no method of the class.
    ("return getattr(torch.optim, kind)", False),
    ("import transformers as hf\n        return getattr(hf, kind)", False),
    # These may be one of its objects.
    ("return getattr(self, kind)", True),
    ("return getattr(super(), kind)", True),
    ("return getattr(held, kind)", True),
    ("return getattr(self.held, kind)", True),
    ("return getattr(torch.optim if held else self, kind)", True),
    ("hf = torch.optim if kind else held\n        return getattr(hf, kind)", True),
    ("hf = torch.optim\n        hf = held\n        return getattr(hf, kind)", True),
    ("import state\n        return getattr(state.saver, kind)", True),
    ("from . import torch\n        return getattr(torch.saver, kind)", True),
    ("from .torch import saver\n        return getattr(saver, kind)", True),
]
SAVER = """\
class Saver:
    def {name}(self, model, optimizer):
        torch.save({{"m": model.state_dict(), "o": optimizer.state_dict()}}, self.path)
    def save(self, model, optimizer):
        if xm:
            self.{name}(model, optimizer)
{more}
def main(net):
    model = FSDP(net)
    Saver().save(model, torch.optim.AdamW(model.parameters()))
"""


@pytest.mark.parametrize(
    ("name", "more", "is_said"),
    [
        ("__xla", "", False),
        ("_xla", "", False),
        ("xla", "", True),
        ("_xla", "        self._xla(model, optimizer)\n", True),
        ("_xla", "    def any(self, kind):\n        getattr(self, f'_{kind}')(model, optimizer)\n", True),
        ("_xla", "    def any(self, kind):\n        getattr(self, '_x' + kind)(model, optimizer)\n", True),
        ("_xla", "    def any(self, kind):\n        getattr(self, kind)(model, optimizer)\n", True),
        ("_xla", "    def any(self, kind):\n        getattr(self, f'load_{kind}')(model)\n", False),
        *((("_xla", LOOKED_UP.format(each), is_said)) for each, is_said in ANOTHERS),
    ],
)
def test_private_methods_that_are_called_there_alone(name: str, more: str, *, is_said: bool) -> None:
    found = said(SAVER.format(name=name, more=more), XLA)
    assert (("FM425", "commented") in found) is is_said


RING = """\
class Saver:
    def _one(self, model, optimizer):
        torch.save({{"m": model.state_dict(), "o": optimizer.state_dict()}}, self.path)
        self._two(model, optimizer)
    def _two(self, model, optimizer):
        torch.save({{"m": model.state_dict(), "o": optimizer.state_dict()}}, self.path)
        self._one(model, optimizer)
    def save(self, model, optimizer):
        if {test}:
            self._one(model, optimizer)
            self._two(model, optimizer)
{more}
def main(cfg, net):
    model = net
    if cfg.fsdp:
        model = FSDP(net)
    Saver().save(model, torch.optim.AdamW(model.parameters()))
"""


@pytest.mark.parametrize("test", ["xm", "not cfg.fsdp"])
@pytest.mark.parametrize(
    ("more", "is_said"),
    [
        ("", False),
        ("        self._one(model, optimizer)\n", True),
        ("        self._two(model, optimizer)\n", True),
    ],
)
def test_private_methods_that_call_each_other(test: str, more: str, *, is_said: bool) -> None:
    found = said(RING.format(test=test, more=more), XLA)
    assert (("FM425", "commented") in found) is is_said


def test_private_methods_that_nothing_but_they_calls() -> None:
    body = (
        RING.format(test="xm", more="")
        .replace("            self._one", "            print")
        .replace("            self._two", "            print")
    )
    assert ("FM425", "commented") in said(body, XLA)


SWITCHED = """\
class Saver:
    def {name}(self, model, optimizer):
        torch.save({{"m": model.state_dict(), "o": optimizer.state_dict()}}, self.path)
    def __sharded(self, model, optimizer):
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            torch.save(model.state_dict(), self.path)
    def save(self, model, optimizer):
        if self.cfg.fsdp:
            self.__sharded(model, optimizer)
        else:
            self.{name}(model, optimizer)
{more}
def main(cfg, model):
    if cfg.fsdp:
        model = FSDP(model)
    Saver(cfg).save(model, torch.optim.AdamW(model.parameters()))
"""


@pytest.mark.parametrize(
    ("name", "more", "is_said"),
    [
        ("__plain", "", False),
        ("_plain", "", False),
        ("plain", "", True),
        ("_plain", "    def end(self, model, optimizer):\n        self._plain(model, optimizer)\n", True),
        ("_plain", "    def hand(self):\n        return self._plain\n", True),
        ("_plain", "    def any(self, kind):\n        getattr(self, f'_{kind}')(model, optimizer)\n", True),
        *((("_plain", LOOKED_UP.format(each), is_said)) for each, is_said in ANOTHERS),
    ],
)
def test_private_methods_that_are_called_where_the_switch_is_off(
    name: str, more: str, *, is_said: bool
) -> None:
    found = said(SWITCHED.format(name=name, more=more))
    assert (("FM425", "commented") in found) is is_said


def test_a_switch_that_a_function_inside_sets() -> None:
    turn = "    def turn():\n        nonlocal on\n        on = 0\n"
    body = "def main(args, net):\n    on = args.on\n{}    if on:\n        net = FSDP(net)\n    go()\n"
    body += "    if not on:\n"
    clips = "        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n"
    assert {code for code, _ in said(body.format("") + clips)} == {"FM301"}
    assert {code for code, _ in said(body.format(turn) + clips)} == {"FM301", "FM326"}
