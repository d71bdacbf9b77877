"""Which names of a text are a framework's objects."""

from __future__ import annotations

import pytest

from fsdp_migrate.source.python.accelerators import ACCELERATORS
from fsdp_migrate.source.python.fabric_models import FABRICS
from fsdp_migrate.source.python.named_objects import names_in


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("hf = Accelerator()", {"hf"}),
        ("hf, x = Accelerator(log_with=['a', 'b']), load(1, 2)", {"hf"}),
        ("x, self.hf = load(), make_accelerator(1)", {"hf"}),
        ("def run(hf: Accelerator, x: int): pass", {"hf"}),
        ("from accelerate import Accelerator as A\nhf = A()", {"hf"}),
        ("x = tools.prepare(net)\ntools.backward(loss)", {"tools"}),
        ("x = tools.prepare(net)", set()),
        ("self.prepare(net)\nself.backward(loss)", set()),
        ("self.trainer.prepare(net)\nself.trainer.is_main_process", set()),
    ],
)
def test_accelerators(code: str, names: set[str]) -> None:
    assert names_in(ACCELERATORS, code) == names


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("fab = L.Fabric(devices=2)", {"fab"}),
        ("self.fab, x = Fabric(), 1", {"fab"}),
        ("m = tools.setup(net)\nd = tools.setup_dataloaders(x)", {"tools"}),
        ("m = tools.setup_module(net)", {"tools"}),
        ("tools.setup(net)", set()),
        ("self.setup(net)\nself.backward(loss)", set()),
    ],
)
def test_fabrics(code: str, names: set[str]) -> None:
    assert names_in(FABRICS, code) == names
