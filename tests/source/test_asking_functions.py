"""FSDP1's class, given to a function of the project that asks whether something is of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_source, scan_paths, scan_source
from fsdp_migrate.source.still_fsdp1 import still_fsdp1
from tests.source.projects import FSDP, after


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

# As instructlab has it.
WRAPS = (
    "def wraps(module, kinds):\n    if isinstance(module, kinds):\n        return True\n"
    "    for child in module.children():\n        if wraps(child, kinds):\n            return True\n"
    "    return False\n"
)


def becomes(function: str, line: str) -> str:
    """Return the last line of a source once it is rewritten."""
    return rewrite_source(f"{FSDP}{function}{line}\n").splitlines()[-1]


@pytest.mark.parametrize(
    ("function", "line", "then"),
    [
        (WRAPS, "found = wraps(model, FSDP)", "found = wraps(model, FSDPModule)"),
        (WRAPS, "found = wraps(model, kinds=FSDP)", "found = wraps(model, kinds=FSDPModule)"),
        (WRAPS, "found = wraps(model, (FSDP, DDP))", "found = wraps(model, (FSDPModule, DDP))"),
        (
            "def count(net, kind):\n    return sum(isinstance(m, kind) for m in net.modules())\n",
            "print(count(net, FSDP))",
            "print(count(net, FSDPModule))",
        ),
        (
            "class Tool:\n    def asks(self, m, kind):\n        return isinstance(m, (kind, DDP))\n",
            "    def run(self, m): self.asks(m, FSDP)",
            "    def run(self, m): self.asks(m, FSDPModule)",
        ),
    ],
)
def test_the_class_that_is_asked_for_is_fsdp2s(function: str, line: str, then: str) -> None:
    assert becomes(function, line) == then


def test_so_is_one_that_is_asked_for_by_default() -> None:
    code = f"{FSDP}def is_one(m, kinds=(FSDP,)):\n    return isinstance(m, kinds)\n"
    assert "def is_one(m, kinds=(FSDPModule,)):" in rewrite_source(code)


@pytest.mark.parametrize(
    "function",
    [
        "def wraps(module, kinds):\n    return kinds(module)\n",
        "def wraps(module, kinds):\n    return module if isinstance(module, kinds) else kinds(module)\n",
        "def wraps(module, kinds):\n    other(kinds)\n    return isinstance(module, kinds)\n",
        "def wraps(module, kinds):\n    return isinstance(module, int)\n",
        "def wraps(module, kinds):\n    return isinstance(kinds, type)\n",
        "from tools import wraps\n",
        "def wraps(module, kinds):\n    kinds = kinds or DDP\n    return isinstance(module, kinds)\n",
    ],
)
def test_what_else_is_done_with_it_is_left_to_a_person(function: str) -> None:
    found = scan_source(f"{FSDP}{function}found = wraps(model, FSDP)\n")
    assert [use.code for use in found if use.action == "commented"] == ["FM303"]


def test_a_function_of_another_file_asks(tmp_path: Path) -> None:
    files = {"tools.py": WRAPS, "save.py": f"{FSDP}from tools import wraps\n\nfound = wraps(model, FSDP)\n"}
    assert "found = wraps(model, FSDPModule)" in after(tmp_path, files, "save.py")


def test_a_file_that_only_asks_does_not_train(tmp_path: Path) -> None:
    path = tmp_path / "save.py"
    path.write_text(
        f"{FSDP}{WRAPS}\ndef save(model):\n    if not wraps(model, FSDP):\n        raise TypeError\n"
    )
    assert still_fsdp1(scan_paths([tmp_path]).uses) == ()
    path.write_text(path.read_text().replace("isinstance(module, kinds)", "kinds(module)"))
    assert [use.code for use in still_fsdp1(scan_paths([tmp_path]).uses)] == ["FM303"]


GIVES = "def kind():\n    return {}\n\n\n"
ASKS = "def asks(m):\n    if kind() is not None and isinstance(m, kind()):\n        return m\n"
BY_NAME = "def asks(m):\n    held = kind()\n    return held is not None and isinstance(m, (held, int))\n"


@pytest.mark.parametrize(
    ("code", "then"),
    [
        (GIVES.format("FSDP") + ASKS, "return FSDPModule"),
        (GIVES.format("FSDP") + BY_NAME, "return FSDPModule"),
        (GIVES.format("(FSDP, DDP)") + ASKS, "return (FSDPModule, DDP)"),
        (GIVES.format("FSDP if is_there else None") + ASKS, "return FSDPModule if is_there else None"),
        ("KINDS = (FSDP, DDP)\ndef asks(m):\n    return isinstance(m, KINDS)\n", "KINDS = (FSDPModule, DDP)"),
    ],
)
def test_a_class_that_is_given_back_to_be_asked_for(tmp_path: Path, code: str, then: str) -> None:
    assert then in rewrite_source(f"{FSDP}{code}")
    (tmp_path / "a.py").write_text(f"{FSDP}{code}")
    assert still_fsdp1(scan_paths([tmp_path]).uses) == ()


@pytest.mark.parametrize(
    "code",
    [
        GIVES.format("FSDP"),
        GIVES.format("FSDP") + "model = kind()(model)\n",
        GIVES.format("FSDP") + ASKS + "model = kind()(model)\n",
        GIVES.format("FSDP") + ASKS + "make(kind)\n",
        GIVES.format("FSDP") + ASKS + "def wrap(m):\n    held = kind()\n    return held(m)\n",
        GIVES.format("FSDP") + ASKS + "def reads(m):\n    return kind().summon_full_params(m)\n",
        "KINDS = (FSDP, DDP)\nmodel = KINDS[0](model)\nfound = isinstance(model, KINDS)\n",
        "class Kept:\n    KINDS = (FSDP, DDP)\nfound = isinstance(model, Kept.KINDS)\n",
    ],
)
def test_a_class_that_is_given_back_for_more_is_left_to_a_person(code: str) -> None:
    found = [use.code for use in scan_source(f"{FSDP}{code}") if use.action == "commented"]
    assert found[:1] == ["FM303"]


# As MELT has it: both classes, each by a function, and the functions of FSDP1's below the check.
OF_BOTH = (
    "def of_fsdp2():\n    from torch.distributed.fsdp import FSDPModule\n    return FSDPModule\n\n\n"
    "def unshards(m):\n    held = kind()\n    if held is not None and isinstance(m, held):\n"
    "        return held.summon_full_params(m)\n    if isinstance(m, of_fsdp2()):\n        m.unshard()\n"
)


def test_a_class_that_is_given_back_beside_fsdp2s_has_a_branch_that_does_not_run(tmp_path: Path) -> None:
    code = f"{FSDP}{GIVES.format('FSDP')}{OF_BOTH}"
    assert [use.code for use in scan_source(code) if use.action == "commented"] == ["FM420"]
    (tmp_path / "a.py").write_text(code)
    assert still_fsdp1(scan_paths([tmp_path]).uses) == ()
    told = f"{FSDP}{GIVES.replace('kind', 'fsdp1_class').format('FSDP')}{ASKS.replace('kind', 'fsdp1_class')}"
    assert [use.code for use in scan_source(told) if use.action == "commented"] == ["FM335"]


LOOKS = "import inspect\ndef names(f):\n    return list(inspect.signature(f).parameters)\n"
RUNS = "import inspect\ndef names(f):\n    inspect.signature(f)\n    return f(1)\n"


@pytest.mark.parametrize(("function", "is_said"), [(LOOKS, False), (RUNS, True)])
@pytest.mark.parametrize(
    "call", ["names(model.forward)", "names(f=model.forward)", "g = model.forward; names(g)"]
)
def test_a_forward_that_a_function_only_looks_at_stays(
    tmp_path: Path, function: str, call: str, *, is_said: bool
) -> None:
    body = f"def main(net):\n    model = FSDP(net)\n    {call}\n"
    assert ("FM448" in {use.code for use in scan_source(f"{FSDP}{function}{body}")}) is is_said
    (tmp_path / "tools.py").write_text(function)
    (tmp_path / "train.py").write_text(f"{FSDP}from tools import names\n{body}")
    assert ("FM448" in {use.code for use in scan_paths([tmp_path]).uses}) is is_said
