"""Statements by the scope that they stand in."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fsdp_migrate.source import scan_paths
from fsdp_migrate.source.project import Module
from fsdp_migrate.source.project_scopes import scopes_of
from tests.source.projects import FSDP


pytestmark = pytest.mark.any_torch


SOURCE = """\
model = wrap(net)
class Trainer:
    def fit(self, model):
        for batch in data():
            try:
                with FSDP.state_dict_type(model, kind()):
                    save(model)
            except OSError:
                retry(model)
        else:
            done(model)
"""


def test_each_statement_has_its_scope_and_its_calls_alone() -> None:
    module = Module(Path("fit.py"), ("fit",), ast.parse(SOURCE))
    top, trainer, fit = scopes_of(module)
    assert [ast.unparse(each.node) for each in top.statements] == ["model = wrap(net)"]
    assert [function.name for function, _ in trainer.functions] == ["fit"]
    assert {each.place.scope for each in fit.statements} == {"Trainer.fit"}
    calls = {ast.unparse(call): each.place for each in fit.statements for call in each.calls}
    assert set(calls) == {
        "data()",
        "kind()",
        "FSDP.state_dict_type(model, kind())",
        "save(model)",
        "retry(model)",
        "done(model)",
    }
    assert {name for name, place in calls.items() if place.is_typed} == {
        "kind()",
        "FSDP.state_dict_type(model, kind())",
        "save(model)",
    }
    assert all(len(place.loops) == 1 for place in calls.values())


@pytest.mark.parametrize(
    ("body", "is_sharded"),
    [
        ("a = FSDP(n); save(a)", True),
        ("a = FSDP(n); b = a; save(b)", True),
        ("if x: a = FSDP(n); save(a)", True),
        ("with torch.no_grad(): a = FSDP(n); save(a)", True),
        ("a = FSDP(n); keep = save; keep(a)", True),
        ("for m in n: m = FSDP(m); save(m)", True),
        ("save(n); n = FSDP(n)", False),
        ("a = FSDP(n); n = Net(); save(n)", False),
    ],
)
def test_statements_that_share_a_line_run_one_after_another(
    tmp_path: Path, body: str, is_sharded: bool
) -> None:
    (tmp_path / "lib.py").write_text("def save(m):\n    torch.save(m.state_dict(), 'x')\n")
    (tmp_path / "main.py").write_text(f"{FSDP}from lib import save\ndef main(n, x):\n    {body}\n")
    found = {use.action for use in scan_paths([tmp_path]).uses if use.path.endswith("lib.py")}
    assert bool(found - {"unclear"}) is is_sharded


@pytest.mark.parametrize("gap", ["", "\n        "])
def test_what_a_statement_wraps_on_a_line_of_its_own_is_plain_there(tmp_path: Path, gap: str) -> None:
    wrap = (
        f"{FSDP}def wrap(net, on):\n    torch.save(net.state_dict(), 'x')\n"
        "    if on:\n        net = FSDP(net)\n    return net\n"
    )
    main = (
        "from wrap import wrap\nclass Pair:\n    pass\nclass Trainer:\n    def __init__(self, cfg):\n"
        f"        self.model = Pair()\n        self.model.net = wrap({gap}self.model.net, cfg.on)\n"
    )
    (tmp_path / "wrap.py").write_text(wrap)
    (tmp_path / "main.py").write_text(main)
    found = {use.code for use in scan_paths([tmp_path]).uses if use.line < 5}
    assert found.isdisjoint({"FM308", "FM333"})
