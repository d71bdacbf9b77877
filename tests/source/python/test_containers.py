"""Models in lists, tuples, dicts and objects of one source, alone and with the project's other files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_paths, rewrite_source
from tests.source.samples import ONE_TURNED


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
STATE = "from dataclasses import dataclass\n@dataclass\nclass State:\n    model: object\n    step: int = 0\n"
HOLDER = "class Holder:\n    def __init__(self, model):\n        self.model = model\n"
LOOPS = [
    "a = FSDP(n)\nfor name, model in [('a', a), ('b', FSDP(m))]:\n",
    "pairs = (('a', FSDP(n)), ('b', FSDP(m)))\nfor name, model in pairs:\n",
    "models = {'a': FSDP(n), 'b': FSDP(m)}\nfor name, model in models.items():\n",
    "for model in {'a': FSDP(n)}.values():\n",
    "models = {k: FSDP(n) for k, n in nets.items()}\nfor model in models.values():\n",
    "models = [FSDP(n) for n in nets]\nfor model in models[1:]:\n",
    "models = list(map(FSDP, nets))\nfor model in models:\n",
    "models = [*others, FSDP(n)]\nfor model in reversed(models):\n",
    "models = []\nmodels.append(FSDP(n))\nfor model in models:\n",
    "models = []\nmodels += [FSDP(n)]\nfor i, model in enumerate(models):\n",
    "models = [FSDP(n)]\nfor i, (model, o) in enumerate(zip(models, opts)):\n",
    f"{HOLDER}states = [Holder(FSDP(n)), Holder(FSDP(m))]\nfor model in [s.model for s in states]:\n",
    "def make():\n    return [FSDP(n), FSDP(m)]\nfor model in make():\n",
]
VALUES = [
    ("pair = (FSDP(n), tok)\nmodel, tok = pair\n", "model"),
    ("from collections import namedtuple\nS = namedtuple('S', 'model opt')\ns = S(FSDP(n), o)\n", "s.model"),
    (
        (
            "from typing import NamedTuple\nclass S(NamedTuple):\n    model: object\n    opt: object\n"
            "s = S(opt=o, model=FSDP(n))\n"
        ),
        "s[0]",
    ),
    (f"{STATE}s = State(FSDP(n), 3)\n", "s.model"),
    (f"import dataclasses\n{STATE}s = State(n)\ns = dataclasses.replace(s, model=FSDP(n))\n", "s.model"),
    ("from types import SimpleNamespace\ns = SimpleNamespace(model=FSDP(n), o=1)\n", "s.model"),
    (f"{HOLDER}s = Holder(FSDP(n))\n", "s.model"),
    (f"{STATE}def make():\n    return State(model=FSDP(n))\n", "make().model"),
    ("d = {'model': FSDP(n)}\n", "d.get('model')"),
    ("d = {}\nd['model'] = FSDP(n)\nd2 = {**d}\n", "d2['model']"),
    ("models = [FSDP(n)]\n", "next(iter(models))"),
    ("models = [FSDP(n)]\n", "models[-1]"),
]
FUNCTIONS = [
    f"{STATE}def f(state):\n    {{}}\nf(State(model=FSDP(n)))\n",
    f"{STATE.replace('object', 'FSDP')}def f(state: State):\n    {{}}\n",
    f"{HOLDER}def f(state: Holder):\n    {{}}\nHolder(FSDP(n))\n",
    f"{HOLDER}def f(state):\n    {{}}\ns = Holder(n)\ns.model = FSDP(n)\nf(s)\n",
    (
        f"{STATE}class T:\n    def __init__(self):\n        self.state = State(FSDP(n))\n    def f(self):\n"
        "        state = self.state\n        {}\n"
    ),
]
PLAIN = [
    "pair = (FSDP(n), m)\npair[1].load_state_dict(s)\n",
    "d = {'model': FSDP(n), 'ema': e}\nd['ema'].load_state_dict(s)\n",
    "from types import SimpleNamespace as S\nx = S(model=FSDP(n), ema=e)\nx.ema.load_state_dict(s)\n",
    "for m in nets:\n    m.load_state_dict(s)\nnets = [FSDP(m) for m in nets]\n",
    "for m in nets:\n    m.load_state_dict(s)\nw = [FSDP(m) for m in nets]\nfor m in w:\n    m(x)\n",
    "for a, b in zip([FSDP(n)], others):\n    b.load_state_dict(s)\n",
    "for a, b in {'x': FSDP(n)}.items():\n    a.load_state_dict(s)\n",
    "models = {'x': FSDP(n)}\nfor a in models:\n    a.load_state_dict(s)\n",
    f"{STATE}a = State(FSDP(n))\nb = State(e)\nb.model.load_state_dict(s)\n",
]


@pytest.mark.parametrize(
    "body",
    [
        *(f"{loop}    model.clip_grad_norm_(1.0)\n" for loop in LOOPS),
        *(f"{made}model = {asked}\nmodel.clip_grad_norm_(1.0)\n" for made, asked in VALUES),
        *(
            body.format("model = state.model; model.clip_grad_norm_(1.0)")
            for body in FUNCTIONS
            if "s.model = " not in body
        ),
    ],
)
def test_a_model_in_a_container(body: str) -> None:
    assert "clip_grad_norm_(model, 1.0)" in rewrite_source(FSDP + body + ONE_TURNED)


@pytest.mark.parametrize("body", FUNCTIONS)
def test_a_model_of_an_object_that_a_function_is_given(tmp_path: Path, body: str) -> None:
    (tmp_path / "main.py").write_text(FSDP + body.format("state.model.clip_grad_norm_(1.0)"))
    rewrite_paths([tmp_path], write=True)
    assert "clip_grad_norm_(state.model, 1.0)" in (tmp_path / "main.py").read_text()


@pytest.mark.parametrize("body", PLAIN)
def test_what_stands_beside_a_model_is_none(tmp_path: Path, body: str) -> None:
    (tmp_path / "main.py").write_text(FSDP + body)
    rewrite_paths([tmp_path], write=True)
    for after in (rewrite_source(FSDP + body), (tmp_path / "main.py").read_text()):
        assert ".load_state_dict(s)" in after
        assert "FM308" not in after
        assert "FM333" not in after
