"""Hooks that may put keys into the states of models, and those that are seen to put none in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.source.projects import after
from tests.source.samples import IMPORTS, MODEL, turned


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize("hook", ["_register_state_dict_hook", "register_state_dict_post_hook"])
def test_states_with_keys_of_hooks_are_not_asked_of_torchs_function(hook: str) -> None:
    body = f"{MODEL}layer.{hook}(merge)\nsave(model.state_dict())\nmodel.load_state_dict(state)\n"
    after = turned(body)
    assert "FM308 hooks of this project put keys into the state" in after
    assert "save(model.state_dict())\nload_model_state_dict(model, state)\n" in after


IN_A_LINE = "def hook(m, state, prefix, meta): print(len(state))\n"
PRINTS = "def hook(m, state, prefix, meta):\n    print(len(state))\n"
IN_PLACE = "def hook(m, state, *more, dtype=None):\n    for k, v in state.items():\n"
# By each of these another function may be meant.
OTHER_HOOKS = (
    "def attach(layer, hook):\n    layer._register_state_dict_hook(hook)\n",
    "attach = lambda layer, hook: layer._register_state_dict_hook(hook)\n",
    "match found:\n    case hook:\n        pass\n",
    "match found:\n    case [*hook]:\n        pass\n",
    "match found:\n    case {'x': 1, **hook}:\n        pass\n",
    "with lib.hooked() as hook:\n    pass\n",
    "for hook in hooks:\n    pass\n",
    "[layer.add(hook) for hook in hooks]\n",
    "lib.hook = other\n",
    "class hook(Base):\n    pass\n",
    "import hook\n",
    "from lib import *\n",
)


@pytest.mark.parametrize(
    ("hook", "adds"),
    [
        ("def hook(m, state, prefix, meta):\n    return state\n", False),
        ("def hook(m, state, prefix, meta):\n    print(len(state), 'x' in state)\n", False),
        ("def hook(m, state, *more):\n    for k in list(state):\n        state.pop(k)\n", False),
        (f"{IN_PLACE}        state[k] = v.to(dtype)\n        state[k] = state[k].cpu()\n", False),
        (f"{IN_PLACE.replace('k, v', 'k').replace('.items()', '.keys()')}        state[k] = 1\n", False),
        (f"{IN_PLACE}        state[k.strip()] = v\n", True),
        (f"{IN_PLACE}        k = k.strip()\n        state[k] = v\n", True),
        (f"{IN_PLACE.replace('state.items', 'others.items')}        state[k] = v\n", True),
        (f"{IN_PLACE}        pass\n    state[k] = 1\n    state['x'] = 1\n", True),
        ("def hook(m, state, *more):\n    state[prefix] = m.x\n", True),
        ("def hook(m, state, *more):\n    state.update(x=1)\n", True),
        ("def hook(m, state, *more):\n    state.setdefault('x', 1)\n", True),
        ("def hook(m, state, *more):\n    merge(state)\n", True),
        ("def hook(m, state, *more):\n    same = state\n    same['x'] = 1\n", True),
        ("def hook(m, state, *more):\n    return {**state, 'x': 1}\n", True),
        ("def hook(m, state, *more):\n    return make(m)\n", True),
        ("def hook(self, state, *more):\n    state['x'] = 1\n", True),
        ("def hook(m, *given):\n    given[0]['x'] = 1\n", True),
        ("from lib import hook\n", True),
        ("def hook(m, state):\n    return state\nhook = other\n", True),
        *((f"{PRINTS}{more}", True) for more in OTHER_HOOKS),
        (f"try:\n    from lib import hook\nexcept ImportError:\n    {IN_A_LINE}", True),
        (f"@merging\n{PRINTS}", True),
        (f"@lib.staticmethod\n{PRINTS}", True),
        (f"class A:\n    {IN_A_LINE}from lib import *\n", True),
        (f"from lib import *\n{PRINTS}", False),
        ("def hook(m, state, *more):\n    print(m.helper.state, [k for k in sorted(state)])\n", False),
        ("def hook(m, state, *more):\n    m.helper.list(state)\n", True),
        ("def hook(m, state, *more):\n    lib.print(state)\n", True),
        ("from lib import print\ndef hook(m, state, *more):\n    print(state)\n", True),
        ("def hook(m, state, *more):\n    for state in m.states:\n        pass\n    return state\n", True),
        (
            "def hook(m, s):\n    return s\nclass A:\n    def hook(self, m, s):\n        s[1] = 1\n",
            True,
        ),
    ],
)
def test_hooks_that_put_no_key_into_a_state(hook: str, *, adds: bool) -> None:
    found = turned(f"{hook}{MODEL}layer._register_state_dict_hook(hook)\nsave(model.state_dict())\n")
    assert ("FM308 hooks of this project" in found) is adds


def test_hooks_that_are_methods() -> None:
    owner = (
        "class Own(nn.Module):\n    def __init__(self):\n        self._register_state_dict_hook(self._post)\n"
        "{}    def _post(self, m, state, *more):\n        {}\n"
    )
    for static, does, adds in (("", "return state", False), ("", "state['x'] = 1", True)):
        found = turned(f"{owner.format(static, does)}{MODEL}save(model.state_dict())\n")
        assert ("FM308 hooks of this project" in found) is adds
    for does, adds in (("m['x'] = 1", True), ("print(len(m))", False), ("return module", True)):
        static = owner.format("    @staticmethod\n", does).replace("self, m, state", "module, m")
        for hook in ("self._post", "Own._post", "lib._post", "self.lib._post", "super()._post"):
            found = turned(f"{static.replace('self._post', hook)}{MODEL}save(model.state_dict())\n")
            is_other = hook not in {"self._post", "Own._post"}
            assert ("FM308 hooks of this project" in found) is (adds or is_other), (does, hook)


def test_a_hook_that_is_a_method_of_another_class() -> None:
    does = "    def _post(self, m, state, *more):\n        print(len(state))\n"
    asks = "    def __init__(self):\n        self._register_state_dict_hook({}._post)\n"
    for hook in ("self", "Own"):
        body = f"class Own(nn.Module):\n{does}class Other(Base):\n{asks.format(hook)}{MODEL}"
        assert "FM308 hooks of this project" in turned(f"{body}save(model.state_dict())\n")


def test_a_sharded_state_with_keys_of_hooks_is_not_gathered() -> None:
    body = (
        f"{MODEL}layer.register_state_dict_post_hook(merge)\n"
        "with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT{}):\n    x = model.state_dict()\n"
    )
    assert turned(body.format("")).endswith("x = model.state_dict()\n")
    assert "FM308" not in turned(body.format(""))
    offloaded = turned(body.format(", ShardedStateDictConfig(offload_to_cpu=True)"))
    assert "{k: v.cpu() for k, v in model.state_dict().items()}" in offloaded
    assert "full_tensor" not in offloaded


_OWN = """\
import torch.nn as nn

class Own(nn.Module):
    def __init__(self, module):
        super().__init__()
        self._register_state_dict_hook(self._post)

    @staticmethod
    def _post(module, state, prefix, *args):
        state[prefix] = 1

    def parts(self) -> "list[Own]":
        return [each for each in self.modules() if isinstance(each, Own)]
"""
_MAIN = f"{IMPORTS}{{}}{MODEL}save(model.state_dict())\n"


@pytest.mark.parametrize(
    ("uses", "adds"),
    [
        ("", False),
        ("from own import Own\nassert not isinstance(net, (Own, list))\n", False),
        ("from torch.lib import Own\nnet = Own(net)\n", False),
        ("def f(x: Own) -> Own:\n    return x\n", False),
        ("from own import Own\nclass Above:\n    def wrap(self, net):\n        return Own(net)\n", False),
        ("from own import Own\nclass Below(Own):\n    pass\n", False),
        ("from own import Own\nnet = Own(net)\n", True),
        ("from own import Own as Other\nnet = Other(net)\n", True),
        ("import own\nnet = own.Own(net)\n", True),
        ("from own import *\nnet = Own(net)\n", True),
        ("from own import Own\nnet = wrap(net, by=Own)\n", True),
        ("from own import Own\nclass Below(Own):\n    pass\nnet = Below(net)\n", True),
        ("import own\nnet = getattr(own, cfg.kind)(net)\n", True),
        ("cfg = {'_target_': 'own.Own'}\n", True),
        ("from importlib import import_module\nown = import_module(cfg.module)\n", True),
    ],
)
def test_a_hook_of_a_class_that_nothing_makes_adds_no_key(tmp_path: Path, uses: str, *, adds: bool) -> None:
    found = after(tmp_path, {"own.py": _OWN, "main.py": _MAIN.format(uses)}, "main.py")
    assert ("FM308 hooks of this project" in found) is adds
    assert ("save(get_model_state_dict(model" in found) is not adds


def test_a_hook_of_a_class_that_a_package_hands_on_may_add_keys(tmp_path: Path) -> None:
    files = {"pkg/own.py": _OWN, "pkg/__init__.py": "from .own import Own\n", "main.py": _MAIN.format("")}
    assert "FM308 hooks of this project" in after(tmp_path, files, "main.py")


def test_a_hook_of_a_class_that_a_config_names_may_add_keys(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text("_target_: own.Own\n")
    files = {"own.py": _OWN, "main.py": _MAIN.format("")}
    assert "FM308 hooks of this project" in after(tmp_path, files, "main.py")


@pytest.mark.parametrize(
    "more",
    ["def make(net):\n    return Own(net)\n", "@register\nclass Its(Own):\n    pass\n", "net = Own(net)\n"],
)
def test_a_hook_of_a_class_that_its_own_file_makes_adds_keys(tmp_path: Path, more: str) -> None:
    files = {"own.py": f"{_OWN}\n{more}", "main.py": _MAIN.format("")}
    assert "FM308 hooks of this project" in after(tmp_path, files, "main.py")


CASTS = f"{IN_PLACE}        state[k] = v.to(dtype)\n"


@pytest.mark.parametrize(
    ("files", "adds"),
    [
        ({"hooks.py": CASTS}, False),
        ({"hooks.py": CASTS.replace("state[k]", "state[k + 'x']")}, True),
        ({"hooks.py": f"{CASTS}hook = wrap(hook)\n"}, True),
        ({"hooks/__init__.py": "from .casts import hook\n", "hooks/casts.py": CASTS}, False),
        ({}, True),
    ],
)
@pytest.mark.parametrize("given", ["hook", "partial(hook, dtype=torch.bfloat16)"])
def test_a_hook_of_another_file(tmp_path: Path, files: dict[str, str], given: str, *, adds: bool) -> None:
    uses = f"from functools import partial\nfrom hooks import hook\nnet._register_state_dict_hook({given})\n"
    found = after(tmp_path, {**files, "main.py": _MAIN.format(uses)}, "main.py")
    assert ("FM308 hooks of this project" in found) is adds


@pytest.mark.parametrize(("name", "adds"), [("FullyShardedDataParallel", False), ("Wrapped", True)])
def test_hooks_of_a_copy_of_torchs_own_class_are_fsdp1s_alone(
    tmp_path: Path, name: str, *, adds: bool
) -> None:
    copied = _OWN.replace("Own", name)
    made = f"from own import {name} as Copied\nnet = Copied(net)\n"
    found = after(tmp_path, {"own.py": copied, "main.py": _MAIN.format(made)}, "main.py")
    assert ("FM308 hooks of this project" in found) is adds
