"""Parameters that are chosen by names in which FSDP1's mark stood behind a unit's."""

from __future__ import annotations

import pytest

from tests.source.samples import codes


pytestmark = pytest.mark.any_torch

_LIST = "xs = [p for n, p in model.named_parameters() if {}]\n"
_LOOP = "for n, p in model.named_parameters():\n    if {}:\n        {}\n"
ACROSS = [
    _LIST.format("'blocks.0.attn' in n"),
    _LIST.format("re.search(r'blocks\\.\\d+\\.attn', n)"),
    _LIST.format("f'blocks.{i}.attn' in n"),
    _LOOP.format("any(k in n for k in ['layers.3.mlp', 'head'])", "p.requires_grad = False"),
    _LOOP.format("'blocks.0.attn' in n", "p.grad.zero_()"),
]
WITHIN = [
    _LIST.format("'blocks.0.' in n"),
    _LIST.format("f'blocks.{i}.' in n or 'attn.qkv' in n"),
    # A unit is a layer, and no Linear in one; a part whose name ends with a number is one part.
    _LIST.format("'fc1.weight' in n or 'classifier.3.weight' in n or 'layer1.conv' in n"),
    # What stands for any text stands for the mark, too.
    _LIST.format("re.search(r'blocks.*attn', n) or re.search(r'blocks\\.\\d+\\..*\\.attn', n)"),
    _LIST.format("fnmatch(n, '*.blocks.*.attn.*')"),
]


@pytest.mark.parametrize("body", [*ACROSS, *WITHIN])
def test_names_that_lie_across_a_unit(body: str) -> None:
    for wrap in (
        "FSDP(net, auto_wrap_policy=policy, use_orig_params=True)",
        "FSDP(net, use_orig_params=True, **given)",
    ):
        assert ("FM318" in dict(codes(f"model = {wrap}\n{body}"))) is (body in ACROSS)
    inner = body.replace("model.named", "model.module.named")
    policy = "model = FSDP(net, auto_wrap_policy=policy, use_orig_params=True)\n"
    assert ("FM318" in dict(codes(policy + inner))) is (body in ACROSS)


@pytest.mark.parametrize(
    ("names", "is_said"), [("[n for n, p in net.named_parameters()]", True), ("['bias']", False)]
)
def test_names_from_before_that_are_looked_for_within_those_behind_a_unit(
    names: str, *, is_said: bool
) -> None:
    body = f"names = {names}\nmodel = {{}}\n" + _LIST.format("not any(k in n for k in names)")
    policy = "FSDP(net, auto_wrap_policy=policy, use_orig_params=True)"
    assert ("FM318" in dict(codes(body.format(policy)))) is is_said
    assert "FM318" not in dict(codes(body.format("FSDP(net, use_orig_params=True)")))


def test_a_model_of_one_unit_has_no_marks_within_its_names() -> None:
    for given in ("", ", auto_wrap_policy=None"):
        wrap = f"model = FSDP(net, use_orig_params=True{given})\n"
        assert "FM318" not in dict(codes(wrap + ACROSS[0]))
        part = "for b in net.blocks:\n    wrap_in_place(b, FSDP(b, use_orig_params=True))\n"
        assert "FM318" in dict(codes(part + wrap + ACROSS[0]))


_LIT = """\
import lightning.pytorch as pl
from lightning.pytorch.strategies import FSDPStrategy


class Lit(pl.LightningModule):
    def {}(self{}):
{}

trainer = pl.Trainer(devices=2, strategy=FSDPStrategy({}))
trainer.fit(Lit())
"""
_POLICY = "auto_wrap_policy={Block}"
_GROUPS = "for n, p in self.named_parameters():\n    {}\n    groups.setdefault(k, []).append(p)\n"


def _of_lit(body: str, hook: str = "configure_optimizers", arguments: str = _POLICY) -> set[str]:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    given = ", checkpoint" if hook.endswith("checkpoint") else ""
    return {code for code, _ in codes(_LIT.format(hook, given, lines, arguments), header="")}


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("xs = [p for n, p in self.named_parameters() if 'blocks.0.attn' in n]\n", True),
        ("xs = [p for n, p in self.named_parameters() if n == 'model.blocks.0.attn.weight']\n", True),
        ("xs = [p for n, p in self.named_parameters() if f'blocks.{i}.attn' in n]\n", True),
        ("xs = [p for n, p in self.named_parameters() if re.search(r'blocks\\.\\d+\\.attn', n)]\n", True),
        (
            "late = ('blocks.7.mlp',)\nxs = [p for n, p in self.named_parameters() if n.startswith(late)]\n",
            True,
        ),
        (_GROUPS.format("k = n.split('.')[3]"), True),
        (_GROUPS.format("parts = n.split('.')\n    k = parts[3]"), True),
        # The mark stands behind the unit's name: what ends before it, or begins behind it, has none in it.
        ("xs = [p for n, p in self.named_parameters() if 'bias' in n or n.endswith('norm.weight')]\n", False),
        ("xs = [p for n, p in self.named_parameters() if n.startswith('model.blocks.0.')]\n", False),
        ("xs = [p for n, p in self.named_parameters() if f'blocks.{i}.' in n]\n", False),
        ("xs = [p for n, p in self.named_parameters() if re.search(r'blocks\\.\\d+', n)]\n", False),
        (_GROUPS.format("k = n.split('.')[2]"), False),
        (_GROUPS.format("k = n.split('.')[-1]"), False),
        (_GROUPS.format("k = n.replace('_fsdp_wrapped_module.', '').split('.')[3]"), False),
    ],
)
def test_names_within_a_lightning_module(body: str, *, is_said: bool) -> None:
    """There `self` is what FSDP1 has wrapped, whose own wrapper would clean the names: units' marks stay."""
    assert ("FM318" in _of_lit(body)) is is_said
    assert "FM318" not in _of_lit(body, arguments="")


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("keep = {n for n, p in self.named_parameters() if p.requires_grad}\nsave(keep, checkpoint)\n", True),
        ("grads = {k: v.requires_grad for k, v in self.named_parameters()}\nsave(grads, checkpoint)\n", True),
        (
            "keep = {clean_tensor_name(n) for n, p in self.named_parameters()}\nsave(keep, checkpoint)\n",
            False,
        ),
        ("for key in list(checkpoint['state_dict']):\n    drop(key, checkpoint)\n", False),
    ],
)
def test_names_by_which_a_saved_state_is_chosen(body: str, *, is_said: bool) -> None:
    assert ("FM318" in _of_lit(body, "on_save_checkpoint")) is is_said
    assert "FM318" not in _of_lit(body, "on_save_checkpoint", "")
