"""Classes each of which wraps a model in its own way, and what their methods are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.source.projects import FSDP, after


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

BASE = """\
class Strategy:
    def setup(self, model):
        return model

    def clip(self, model):
        return nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    def state(self, model):
        return model.state_dict()
"""
OF_DDP = """\
class DDPStrategy(Strategy):
    def setup(self, model):
        return DDP(model)

    def sync(self, model, last):
        return contextlib.nullcontext() if last else model.no_sync()

    def unwrap(self, model):
        return model.module

    def state(self, model):
        return model.module.state_dict()
"""
OF_FSDP = """\
class FSDPStrategy(Strategy):
    def setup(self, model):
        return FSDP(model)

    def sync(self, model, last):
        return contextlib.nullcontext() if last else model.no_sync()

    def unwrap(self, model):
        return model.module

    def clip(self, model):
        return model.clip_grad_norm_(1.0)

    def state(self, model):
        return model.state_dict()
"""
HEAD = (
    "import contextlib\nfrom torch import nn\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
    f"{FSDP}\n\n"
)
CHOICE = (
    "\n\ndef get_strategy(name):\n"
    "    return {'single': Strategy, 'ddp': DDPStrategy, 'fsdp': FSDPStrategy}[name]()\n"
)
TRAIN = """\
from strategies import get_strategy

st = get_strategy(name)
model = st.setup(net)
with st.sync(model, True):
    model(x).backward()
st.clip(model)
st.unwrap(model)
st.state(model)
"""
OF_HYBRID = (
    f"{FSDP}from strategies import Strategy\n\n\n"
    "class HybridStrategy(Strategy):\n    def setup(self, model):\n        return FSDP(model)\n"
)


def classes(folder: Path, base: str = BASE, ddp: str = OF_DDP, fsdp: str = OF_FSDP, **others: str) -> str:
    """Return what becomes of the classes."""
    code = f"{HEAD}{base}\n\n{ddp}\n\n{fsdp}{CHOICE}"
    files = {"strategies.py": code, "train.py": TRAIN} | {f"{name}.py": text for name, text in others.items()}
    return after(folder, files, "strategies.py")


def of_class(code: str, name: str) -> str:
    return code.partition(f"class {name}")[2].partition("\n\n\n")[0]


def test_what_other_classes_wrap_is_left_as_it_is(tmp_path: Path) -> None:
    code = classes(tmp_path)
    assert BASE in code
    assert OF_DDP in code


def test_what_a_class_shards_itself_is_turned_in_its_methods(tmp_path: Path) -> None:
    code = of_class(classes(tmp_path), "FSDPStrategy")
    assert "fsdp-migrate" not in code
    assert "else no_sync(model)" in code
    assert "get_model_state_dict(model" in code
    assert "return model\n" in code  # `.module` is gone


@pytest.mark.parametrize(
    "shards",
    [
        "def setup(self, model):\n        model = FSDP(model)\n        return model",
        "def setup(self, model):\n        return FSDP(model).train()",
    ],
)
def test_the_sharding_may_be_kept_in_a_name(tmp_path: Path, shards: str) -> None:
    fsdp = OF_FSDP.replace("def setup(self, model):\n        return FSDP(model)", shards)
    assert "fsdp-migrate" not in classes(tmp_path, fsdp=fsdp)


def test_ddps_class_needs_no_base_with_the_others(tmp_path: Path) -> None:
    ddp = OF_DDP.replace("DDPStrategy(Strategy)", "DDPStrategy")
    assert ddp in classes(tmp_path, ddp=ddp)


def test_the_bases_way_may_be_left_to_the_classes_below(tmp_path: Path) -> None:
    base = BASE.replace("return model\n", "raise NotImplementedError\n", 1)
    assert "fsdp-migrate" not in classes(tmp_path, base=base)


@pytest.mark.parametrize("way", ["return FSDP(model) if self.on else DDP(model)", "return wrap(model)"])
def test_what_a_class_may_shard_is_told(tmp_path: Path, way: str) -> None:
    code = of_class(classes(tmp_path, ddp=OF_DDP.replace("return DDP(model)", way)), "DDPStrategy")
    assert code.count("FM333") >= 3


def test_a_base_whose_method_the_sharding_class_runs_is_told(tmp_path: Path) -> None:
    its_own = OF_FSDP[OF_FSDP.index("    def clip") : OF_FSDP.index("    def state")]
    code = classes(tmp_path, fsdp=OF_FSDP.replace(its_own, ""))
    assert "FM326" in of_class(code, "Strategy")
    assert "FM333" not in of_class(code, "Strategy")


def test_a_base_whose_method_the_sharding_class_asks_for_is_told(tmp_path: Path) -> None:
    fsdp = OF_FSDP.replace("return model.clip_grad_norm_(1.0)", "return super().clip(model)")
    assert "FM326" in of_class(classes(tmp_path, fsdp=fsdp), "Strategy")


def test_a_base_of_another_files_class_is_told(tmp_path: Path) -> None:
    code = classes(tmp_path, hybrid=OF_HYBRID)
    assert "FM326" in of_class(code, "Strategy")
    assert OF_DDP in code


def test_a_class_of_another_family_may_be_given_the_sharded_one(tmp_path: Path) -> None:
    fsdp = OF_FSDP.replace("(Strategy)", "")
    assert "FM326" in of_class(classes(tmp_path, fsdp=fsdp), "Strategy")


def test_a_name_that_is_bound_anew_is_no_longer_what_was_given(tmp_path: Path) -> None:
    ddp = OF_DDP.replace("return model.module\n", "model = FSDP(model.module)\n        return model.module\n")
    code = of_class(classes(tmp_path, ddp=ddp), "DDPStrategy")
    assert "FM333" in code.partition("model = FSDP(model.module)\n")[2]
