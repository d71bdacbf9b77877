"""Modules that are chosen by names that FSDP1's wrappers stood in."""

from __future__ import annotations

import pytest

from tests.source.samples import uses


pytestmark = pytest.mark.any_torch

WRAPS = "model = FSDP(net, auto_wrap_policy=ModuleWrapPolicy({{Block}}), use_orig_params=True)\n"
LOOP = "for n, m in {}.named_modules():\n    if {}:\n        m.register_forward_hook(hook)\n"


def said(body: str, wraps: str = WRAPS) -> list[str]:
    return [
        use.becomes for use in uses(wraps.replace("{{", "{").replace("}}", "}") + body) if use.code == "FM318"
    ]


@pytest.mark.parametrize(
    "test",
    [
        "n == 'blocks.0.up'",
        "n != 'head'",
        "n in ('embed', 'head')",
        "n.startswith('blocks')",
        "re.match('blocks', n)",
        "not n.startswith(('embed', 'head'))",
    ],
)
def test_names_from_the_start_are_told(test: str) -> None:
    (one,) = said(LOOP.format("model", test))
    assert "names of modules began with" in one
    assert said(f"ms = [m for n, m in model.named_modules() if {test}]\n") == [one]
    # The part's own name has no mark in it, and a model that is not sharded has none at all.
    assert not any("began" in each for each in said(LOOP.format("model.blocks", test)))
    assert said(LOOP.format("net", test), wraps="net = Net()\n") == []


def test_what_the_wrapper_held_has_no_mark_at_the_start() -> None:
    assert said(LOOP.format("net", "n == 'head'")) == []
    assert said(LOOP.format("model.module", "n == 'head'")) == []
    assert said("net = FSDP(net)\n" + LOOP.format("net", "n == 'head'"), wraps="")
    assert said("xs = [p for n, p in net.named_parameters() if n == 'head.weight']\n") == []
    assert said("xs = [p for n, p in model.named_parameters() if n == 'head.weight']\n")


def test_names_across_a_unit_are_told_of_a_part_too() -> None:
    for asked in ("model", "model.encoder", "model.module"):
        (one,) = said(LOOP.format(asked, "'blocks.0.up' in n"))
        assert "behind the unit's" in one
    # One unit alone has no mark within.
    assert said(LOOP.format("model", "'blocks.0.up' in n"), wraps="model = FSDP(net)\n") == []


@pytest.mark.parametrize(
    "test", ["'up' in n", "n.endswith('up')", "n == ''", "not n", "isinstance(m, Block)", "n.count('.') == 1"]
)
def test_what_both_answer_alike_is_left(test: str) -> None:
    assert said(LOOP.format("model", test)) == []


def test_names_that_are_cleaned_are_left() -> None:
    body = (
        "for n, m in model.named_modules():\n    n = n.replace('_fsdp_wrapped_module.', '')\n"
        "    if n == 'blocks.0.up':\n        m.register_forward_hook(hook)\n"
    )
    assert said(body) == []
    assert said(body.replace("    n = n.replace('_fsdp_wrapped_module.', '')\n", ""))


def test_a_module_of_lightning_has_no_mark_at_the_start() -> None:
    body = (
        "import lightning as L\nfrom lightning.pytorch.strategies import FSDPStrategy\n"
        "class Lit(L.LightningModule):\n    def configure_optimizers(self):\n"
        "        for n, m in self.named_modules():\n            if {}:\n                m.p = 0.1\n"
        "trainer = L.Trainer(strategy=FSDPStrategy(auto_wrap_policy={{Block}}))\ntrainer.fit(Lit())\n"
    )
    assert said(body.format("n.startswith('net')"), wraps="") == []
    (one,) = said(body.format("'net.blocks.0.up' in n"), wraps="")
    assert "behind the unit's" in one
