"""Norms and counts that are only shown stop no run; what is computed by them does."""

from __future__ import annotations

import pytest

from tests.source.samples import codes


pytestmark = pytest.mark.any_torch


MODEL = "import math\nimport torch.distributed as dist\ndef step(m: FSDP, log, logger, writer, metrics, x):\n"
PRINTED = [
    "print(p.grad.norm())",
    "print(f'{(p.grad.norm() ** 2).item():.2f}')",
    "logger.info('norm %s', (p.grad.norm() ** 2).item())",
    "wandb.log({'norm': (p.grad.norm() ** 2).item()})",
    "writer.add_scalar('norm', (p.grad.norm() ** 2).item() ** 0.5, 1)",
    "metrics['norm'] = p.grad.norm()",
    "metrics['norm'] = p.grad.norm()\n        print(metrics['norm'])",
    "y = p.grad.norm()\n        print(y)",
    "x and logger.info(p.grad.norm())",
    "y = 0.0\n        y += (p.grad.norm() ** 2).item()\n        print(y)",
    "y = torch.cat([p.grad.view(-1), p.view(-1)])\n        print(y.abs().max().item(), y.device)",
    "y = round(float(p.grad.norm() ** 2), 2)\n        z = y * 2\n        print('norm', z)",
]
USED = [
    "y = p.grad.norm()\n        p.grad.mul_(1 / y)",
    "y = (p.grad.norm() ** 2).item()\n        dist.all_reduce(torch.tensor(y))",
    "if p.grad.norm() > 5:\n            print('skip')",
    "return p.grad.norm()",
    "scale(p.grad.norm())",
    "self.norm = p.grad.norm()",
    "y = p.grad.norm()\n        print(y)\n        scale(y)",
    "x['norm'] = p.grad.norm()",
    "y = self.norm = p.grad.norm()\n        print(y)",
    "y = 0.0\n        y += (p.grad.norm() ** 2).item()\n        scale(y)",
    "print(p.grad.norm().backward())",
    "print(lambda: p.grad.norm())",
    "y = torch.cat([p.grad.view(-1), p.view(-1)])\n        print(y.device)\n        scale(y.abs())",
    "y = p.grad.norm()",
    "yield p.grad.norm()",
    "x = x + torch.log(p.grad.norm())",
    "y = math.log(p.grad.norm())\n        scale(y)",
    "x = x - log_prior(p.grad.norm())",
    "return prior.log_prob(p.grad.norm())",
    "metrics['norm'] = p.grad.norm()\n        if metrics['norm'] > 5:\n            return",
    "metrics['norm'] = p.grad.norm()\n        print(metrics['norm'])\n        p.grad.mul_(metrics['norm'])",
    "print(y := p.grad.norm())\n        scale(y)",
    "if dist.get_rank() == 0:\n            print((p.grad.norm() ** 2).item())",
]


@pytest.mark.parametrize(
    ("does", "code"), [*((each, "FM334") for each in PRINTED), *((each, "FM423") for each in USED)]
)
def test_what_is_only_shown_is_told_apart(does: str, code: str) -> None:
    found = codes(f"{MODEL}    for p in m.parameters():\n        {does}\n")
    said = {each for each, action in found if action == "commented"}
    assert said & {"FM334", "FM423"} == {code}
