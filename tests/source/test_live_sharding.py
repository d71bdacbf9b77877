"""Projects in which nothing makes a model of FSDP1's any more, and those of which that is not sure."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.source.projects import FSDP
from tests.source.test_reach import SAVES, near


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

FSDP2 = "from torch.distributed.fsdp import fully_shard\n"
SHARDS = (
    f"{FSDP}{FSDP2}\n\ndef apply_fsdp2(model):\n    return fully_shard(model)\n\n"
    "def apply_fsdp1(model, x):\n    model = FSDP(model)\n    return model\n"
)
ASKS = (
    f"{FSDP}\ndef is_one(m: FSDP) -> bool:\n    return isinstance(m, (FSDP, int)) or FSDP.fsdp_modules(m)\n"
)
TRAIN = "from shards import apply_fsdp2\nfrom tools import save\n\nmodel = apply_fsdp2(make())\nsave(model)\n"


def is_near(folder: Path, **changes: str) -> bool:
    """Tell whether the file that saves a model is one that a sharded model may come to."""
    files = {"shards.py": SHARDS, "train.py": TRAIN, "tools.py": SAVES}
    files |= {f"{name}.py": text for name, text in changes.items()}
    return "tools.py" in near(folder, files)


def test_a_function_for_fsdp1_that_nothing_calls_beside_fsdp2s(tmp_path: Path) -> None:
    assert not is_near(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        # It is called, by whatever name, or handed on.
        {"other": "import shards\nshards.apply_fsdp1(make(), 1)\n"},
        {"other": "from shards import apply_fsdp1 as wrap\nwrap(make(), 1)\n"},
        {"other": "import shards\nrun(shards.apply_fsdp1)\n"},
        {"other": "import shards\ngetattr(shards, 'apply_fsdp1')(make(), 1)\n"},
        {"other": "import shards\ngetattr(shards, f'apply_fsdp{x}')(make(), 1)\n"},
        {"other": "def test_it():\n    import shards\n    shards.apply_fsdp1(make(), 1)\n"},
        # The class is made use of elsewhere, or otherwise.
        {"other": f"{FSDP}model = FSDP(make())\n"},
        {"other": "from shards import FSDP\nmodel = FSDP(make())\n"},
        {"other": f"{FSDP}wrap = partial(FSDP, device_id=0)\n"},
        {"other": f"{FSDP}WRAPPERS = {{'fsdp': FSDP}}\n"},
        {"other": f"{FSDP}class Own(FSDP):\n    pass\n"},
        {"other": "from torch.distributed.fsdp.wrap import enable_wrap\n"},
        {"other": "from accelerate import Accelerator\n"},
        {"other": "from transformers import (\n    AutoModel,\n    Trainer,\n)\n"},
        # The class is called nowhere: it is asked for by who is given such models.
        {"shards": f"{FSDP2}\ndef apply_fsdp2(m):\n    return fully_shard(m)\n", "other": ASKS},
        {"other": "args = TrainingArguments(fsdp='full_shard')\n"},
        {"other": "from fsdp_migrate import prepare_fully_shard\nmodel = prepare_fully_shard(net, {})\n"},
        {"other": "from fairseq2.nn.fsdp import to_fsdp\nmodel = to_fsdp(net)\n"},
        # It gives no model to a caller, so that it may be where a run begins.
        {"shards": SHARDS.replace("(model, x):", "():")},
        {"shards": SHARDS.replace("    model = FSDP(model)\n    return model", "    fit(FSDP(model))")},
        {"shards": SHARDS.replace("def apply_fsdp1", "@register\ndef apply_fsdp1")},
        # Nothing shards by FSDP2 itself: it may be there for users of the project.
        {"train": TRAIN.replace("apply_fsdp2", "other")},
    ],
)
def test_what_may_make_a_model_of_fsdp1(tmp_path: Path, changes: dict[str, str]) -> None:
    assert is_near(tmp_path, **changes)


def test_a_function_that_is_called_below_a_raise_alone(tmp_path: Path) -> None:
    shards = f"{FSDP}\ndef wrap(model):\n    return FSDP(model)\n"
    train = "from shards import wrap\nfrom tools import save\n\ndef main(net):\n{}"
    train += "    net = wrap(net)\n    save(net)\n"
    raises = "    raise RuntimeError\n"
    assert not is_near(tmp_path, shards=shards, train=train.format(raises))
    assert is_near(tmp_path, shards=shards, train=train.format(""))
    assert is_near(tmp_path, shards=shards, train=f"{train.format(raises)}model = wrap(make())\n")


def test_the_class_is_only_asked_for(tmp_path: Path) -> None:
    assert not is_near(tmp_path, other=ASKS)


@pytest.mark.parametrize("text", ["from transformers import (\n" * 8_000, f"x = {'getattr(' * 20_000}\n"])
def test_a_long_file_of_what_looks_like_a_framework_takes_no_time(tmp_path: Path, text: str) -> None:
    start = time.process_time()
    assert not is_near(tmp_path, other=f'"""\n{text}"""\n')
    assert time.process_time() - start < 8
