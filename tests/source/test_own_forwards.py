"""What becomes a sharded model's own forward, and hands on to what the wrapper held, would call itself."""

from __future__ import annotations

import pytest

from tests.source.samples import MODEL, codes, turned, uncommented


pytestmark = pytest.mark.any_torch

SELF = "def f(self: FSDP, *args):\n    return self.{}(*args)\n"
ENDLESS = [
    f"{SELF.format('module')}m.forward = types.MethodType(f, m)\n",
    f"{SELF.format('_fsdp_wrapped_module')}m.__dict__['forward'] = types.MethodType(f, m)\n",
    f"{SELF.format('module.forward')}setattr(m, 'forward', f.__get__(m))\n",
    "def f(self: FSDP, x):\n    inner = self.module\n    return inner(x)\nm.forward = f.__get__(m)\n",
    "def f(*args):\n    return model.module(*args)\nmodel.forward = f\n",
    "model.forward = lambda *args: model.module(*args)\n",
    "model.forward = torch.no_grad()(lambda *args: model.module(*args))\n",
    "def make(m: FSDP):\n    def f(x):\n        return m.module(x)\n    return f\nm.forward = make(m)\n",
]


@pytest.mark.parametrize("body", ENDLESS)
def test_a_forward_that_would_call_itself_is_left_and_stops_a_run(body: str) -> None:
    """The wrapper was taken out, without a comment: RecursionError at the first call."""
    body = f"import types\n{body}"
    assert ("FM335", "commented") in codes(MODEL + body)
    after = turned(MODEL + body)
    assert "# fsdp-migrate: FM335 " in after
    assert any(f".{name}" in uncommented(after) for name in ("module", "_fsdp_wrapped_module"))


@pytest.mark.parametrize(
    "body",
    [
        f"{SELF.format('module')}m.sample = types.MethodType(f, m)\n",
        f"{SELF.format('module.sample')}m.forward = types.MethodType(f, m)\n",
        "def f(self: FSDP, x):\n    return x * self.module.scale\nm.forward = types.MethodType(f, m)\n",
        "student.forward = lambda *args: model.module(*args)\n",
        "def f(*args):\n    return model.module(*args)\nf(x)\n",
    ],
)
def test_what_calls_something_else_is_rewritten(body: str) -> None:
    body = f"import types\n{body}"
    assert "FM335" not in dict(codes(MODEL + body))
    assert ".module" not in uncommented(turned(MODEL + body))
