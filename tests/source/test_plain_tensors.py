"""Plain tensors that a source makes, beside the DTensors that parameters and gradients are now."""

from __future__ import annotations

import pytest

from tests.source.samples import codes, turned


pytestmark = pytest.mark.any_torch

LOOP = "m = FSDP(net)\nfor n, p in m.named_parameters():\n    "


@pytest.mark.parametrize(
    ("use", "is_said"),
    [
        ("p.data.add_(torch.randn(p.shape) * 0.01)", True),
        ("p.grad.add_(torch.normal(0, 0.1, size=p.grad.shape, device=p.device))", True),
        ("p.grad += 0.01 * torch.randn(p.grad.shape)", True),
        ("p.grad = torch.zeros(p.shape)", True),
        ("p.grad.copy_(torch.zeros(p.grad.shape).to(p.device))", True),
        ("noise = torch.randn(p.size())\n    p.data.add_(noise, alpha=0.1)", True),
        ("x = p - torch.zeros(p.shape)", True),
        ("p.data.add_(torch.randn_like(p) * 0.01)", False),
        ("p.grad = torch.zeros_like(p)", False),
        ("p.grad.data.masked_fill_(torch.ones(3, 3) > 0, 0.0)", True),
        ("x = torch.where(torch.zeros(3, 3) > 0, p, 0)", True),
        ("p.grad.mul_(torch.tensor([0.5]))", True),
        ("p.grad.mul_(torch.tensor(0.5))", False),
        ("p.grad.mul_(scale)", False),
        ("p.requires_grad = bool(torch.ones(1))", False),
        ("p.to_local().add_(torch.randn(p.to_local().shape))", False),
        ("p.grad = torch.zeros(())", False),
        ("x = torch.zeros(p.shape)", False),
        ("x = p.numel() * torch.ones(3)", False),
    ],
)
def test_a_plain_tensor_beside_a_parameter(use: str, is_said: bool) -> None:
    assert codes(f"{LOOP}{use}\n").count(("FM423", "commented")) == is_said


REGISTERS = "for layer in {0}.modules():\n    layer.register_buffer('mask', layer.weight == 0)\n"


@pytest.mark.parametrize("taken", ["layer.weight", "getattr(layer, 'weight', None)"])
@pytest.mark.parametrize(
    ("registers", "is_said"),
    [
        (REGISTERS.format("net"), True),
        (REGISTERS.format("net").replace("mask", "other"), False),
        (REGISTERS.format("net").replace("layer.weight == 0)", "None)"), True),
        ("", False),
    ],
)
def test_a_buffer_beside_a_parameter(taken: str, registers: str, is_said: bool) -> None:
    loop = f"for layer in m.modules():\n    w = {taken}\n    w.grad.masked_fill_(layer.mask, 0.0)\n"
    beside = f"m = FSDP(net)\n{loop}"
    assert ("a plain tensor meets a DTensor" in turned(f"{registers}{beside}")) is is_said
    after = REGISTERS.format("m")
    assert "a plain tensor meets a DTensor" not in turned(f"m = FSDP(net)\n{after}{loop}")


@pytest.mark.parametrize(
    ("made", "is_said"),
    [
        ("[torch.zeros(p.shape) for p in m.parameters()]", True),
        ("[torch.zeros(p.numel()) for p in m.parameters()]", True),
        ("[torch.zeros_like(p) for p in m.parameters()]", False),
        ("other", False),
    ],
)
def test_a_plain_sum_of_gradients(made: str, is_said: bool) -> None:
    body = f"m = FSDP(net)\nsums = {made}\nfor s, p in zip(sums, m.parameters()):\n    s.add_(p.grad)\n"
    assert codes(body).count(("FM423", "commented")) == is_said


def test_what_an_optimizer_keeps_is_made_like_the_parameter() -> None:
    made = "m = FSDP(net)\nopt = torch.optim.AdamW(m.parameters())\nfor p in m.parameters():\n"
    put = "    opt.state[p]['exp_avg'] = {}\n"
    assert ("FM423", "commented") in codes(made + put.format("torch.zeros(p.shape)"))
    assert "FM423" not in dict(codes(made + put.format("torch.zeros_like(p)")))
    assert "FM423" not in dict(codes(made + put.format("torch.zeros(p.shape)").replace("exp_avg", "step")))


def test_in_whole_parameters_both_are_plain() -> None:
    body = (
        "m = FSDP(net)\nwith FSDP.summon_full_params(m):\n    for p in m.parameters():\n"
        "        p.add_(torch.randn(p.shape))\n        p[0] = 1\n"
    )
    assert "FM423" not in dict(codes(body))


_IN_PLACE = "As it is, this raises"
_SUM = "m = FSDP(net)\ns = {}\nfor p in m.parameters():\n    {}\nprint(s)\n"


@pytest.mark.parametrize(
    "made",
    [
        *(
            "torch.tensor(0.0, device=d)",
            "torch.tensor(0.0).to(d)",
            "torch.zeros(1).cuda()",
            "torch.zeros(())",
        ),
        "torch.zeros(8)",
    ],
)
@pytest.mark.parametrize(
    ("takes", "raises"),
    [
        ("s += torch.norm(p.data.float(), p=2)", True),
        ("s += p.grad.norm() ** 2", True),
        ("s += sum(q.norm() for q in [p])", True),
        ("s.add_(p.norm())", True),
        ("s[0] += p.sum()", True),
        ("s[0] = p.abs().max()", True),
        ("s.copy_(p.norm().detach())", True),
        ("s = s + p.norm()", False),
        ("s = torch.maximum(s, p.norm())", False),
        ("s += p.norm().item()", False),
        ("s += p.norm().full_tensor()", False),
        ("s += float(p.norm())", False),
        ("s += p.numel()", False),
        ("x = p.norm()", False),
    ],
)
def test_what_a_plain_tensor_takes_in_place_ends_a_run(made: str, takes: str, *, raises: bool) -> None:
    body = _SUM.format(made, takes)
    assert (_IN_PLACE in turned(body)) is raises
    assert not raises or "FM334" not in {code for code, _ in codes(body)}


@pytest.mark.parametrize("made", ["0", "0.0", "torch.zeros_like(next(m.parameters()))", "start", "[0.0]"])
def test_what_is_no_plain_tensor_takes_a_norm_in_place(made: str) -> None:
    assert _IN_PLACE not in turned(_SUM.format(made, "s += p.norm()"))


@pytest.mark.parametrize(("indent", "code"), [("", "FM336"), ("    if log:\n        ", "FM423")])
def test_what_ends_the_first_step_needs_no_stop(indent: str, code: str) -> None:
    body = "    s = torch.zeros(1)\n    for p in m.parameters():\n    {}    s += p.norm()\n    print(s)\n"
    steps = f"def step(net, log):\n    m = FSDP(net)\n{body.format(indent)}    m(x).sum().backward()\n"
    assert [each for each, action in codes(steps) if action == "commented"] == [code]
