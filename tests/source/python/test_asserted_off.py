"""Branches for what FSDP's own branch asserts to be off."""

from __future__ import annotations

import pytest

from tests.source.samples import codes


pytestmark = pytest.mark.any_torch


BODY = """\
from torch.nn.parallel import DistributedDataParallel as DDP
def train(net, ddp, use_fsdp, use_lora, path, rank):
    model = DDP(net) if ddp else FSDP(net, use_orig_params=True)
    {above}
    if rank == 0:
        {test}
            base = model.module if hasattr(model, "module") else model
            base.save_pretrained(path)
"""
BY_CLASS = "if isinstance(model, FSDP):\n        assert not use_lora"
OF_ITSELF = """\
class Trainer:
    def __init__(self, net, use_lora, ddp):
        self.use_lora = use_lora
        self.model = DDP(net) if ddp else FSDP(net)
        {above}
    def save(self, path):
        if self.use_lora:
            self.model.save_pretrained(path)
"""
ASSERTS = "if isinstance(self.model, FSDP):\n            assert not self.use_lora"


def is_said(body: str) -> bool:
    return any(code in {"FM333", "FM450"} for code, _ in codes(body))


@pytest.mark.parametrize(
    ("above", "test"),
    [
        (BY_CLASS, "if use_lora:"),
        (BY_CLASS, "if use_lora and path:"),
        (BY_CLASS.replace("assert not use_lora", "if use_lora:\n            raise E"), "if use_lora:"),
        (BY_CLASS.replace("use_lora", "args.lora"), "if args.lora:"),
        (BY_CLASS.replace("not use_lora", "mode == 'full'"), "if mode == 'lora':"),
        (
            "if not isinstance(model, FSDP):\n        pass\n    else:\n        assert not use_lora",
            "if use_lora:",
        ),
        ("if use_fsdp:\n        assert not use_lora", "if use_lora:"),
        ("if isinstance(model, (FSDP, DDP)):\n        assert not use_lora", "if use_lora:"),
    ],
)
def test_a_branch_that_fsdps_models_never_take(above: str, test: str) -> None:
    assert is_said(BODY.format(above="pass", test=test))
    assert not is_said(BODY.format(above=above, test=test))


@pytest.mark.parametrize(
    ("above", "test"),
    [
        (BY_CLASS, "if not use_lora:"),
        (BY_CLASS, "if use_lora or path:"),
        (BY_CLASS, "if path:"),
        (BY_CLASS.replace("FSDP", "DDP"), "if use_lora:"),
        (BY_CLASS.replace("(model", "(ema"), "if use_lora:"),
        (BY_CLASS.replace("model, FSDP)", "model, FSDP) and path"), "if use_lora:"),
        (f"{BY_CLASS}\n    use_lora = path", "if use_lora:"),
        (f"if path:\n        {BY_CLASS}".replace("\n        assert", "\n            assert"), "if use_lora:"),
        (BY_CLASS.replace("assert not", "assert"), "if use_lora:"),
    ],
)
def test_a_branch_that_they_may_take(above: str, test: str) -> None:
    assert is_said(BODY.format(above=above, test=test))


@pytest.mark.parametrize(
    ("above", "may_be"),
    [
        ("pass", True),
        (ASSERTS, False),
        (ASSERTS.replace("self.use_lora", "use_lora"), True),
        (f"{ASSERTS}\n        self.use_lora = True", True),
        (f"if net:\n            {ASSERTS}".replace("\n            assert", "\n                assert"), True),
    ],
)
def test_what_the_object_keeps_is_so_in_its_methods(above: str, *, may_be: bool) -> None:
    ddp = "from torch.nn.parallel import DistributedDataParallel as DDP\n"
    assert is_said(ddp + OF_ITSELF.format(above=above)) is may_be
