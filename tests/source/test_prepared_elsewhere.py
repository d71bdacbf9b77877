"""A second rewriting: models that ``prepare_fully_shard`` of another file shards, put there by a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from fsdp_migrate.source.prepared_elsewhere import as_before
from tests.source.projects import after


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

PREPARED = (
    "from fsdp_migrate import prepare_fully_shard\n\n"
    "def shard(net):\n    return prepare_fully_shard(net, {})\n"
)
# FSDP1's words are left in this one, so that models are followed in any case.
PREPARED_BESIDE = (
    "from fsdp_migrate import prepare_fully_shard\n"
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType\n\n"
    "def shard(net):\n    return prepare_fully_shard(net, {'use_orig_params': True})\n\n"
    "def get(model):\n    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n"
    "        return model.state_dict()\n"
)
TORCHS = "from torch.distributed.fsdp import fully_shard\n\ndef shard(net):\n    return fully_shard(net)\n"
MAIN = (
    "from trainer import Trainer\nfrom wrap import shard\n\ndef main(net):\n    Trainer(shard(net)).step()\n"
)
# A base class gives DataParallel's by a property, and the class that derives from it the sharded one.
MAIN_BY_PROPERTIES = (
    "import torch\nfrom trainer import Trainer\nfrom wrap import shard\n\n"
    "class Pipeline:\n    @property\n    def model(self):\n"
    "        return torch.nn.DataParallel(self.make())\n\n"
    "class Sharded(Pipeline):\n    @property\n    def model(self):\n        return shard(self.make())\n\n"
    "    def run(self):\n        Trainer(self.model).step()\n"
)
# Nothing shows what the Trainer is given here.
MAIN_UNSEEN = (
    "from trainer import Trainer\nfrom wrap import shard\n\n"
    "def main(net, cfg):\n    shard(net)\n    cfg(Trainer)\n"
)
MAIN_APART = "from wrap import shard\n\ndef main(net):\n    shard(net)\n"
TRAINER = (
    "class Trainer:\n    def __init__(self, x):\n        self.{name} = x\n\n"
    "    def step(self):\n        {line}\n"
)


def trainer(line: str, name: str = "model") -> str:
    return TRAINER.format(line=line, name=name)


def told(folder: Path, line: str, main: str = MAIN, wrap: str = PREPARED, name: str = "model") -> set[str]:
    """Return the codes of what is found in the Trainer's file."""
    for path, text in {"main.py": main, "wrap.py": wrap, "trainer.py": trainer(line, name)}.items():
        (folder / path).write_text(text)
    uses = scan_paths([folder]).uses
    return {use.code for use in uses if use.path.endswith("trainer.py") and use.action != "kept"}


@pytest.mark.parametrize("main", [MAIN, MAIN_BY_PROPERTIES])
@pytest.mark.parametrize("wrap", [PREPARED, PREPARED_BESIDE])
def test_its_own_way_of_clipping_is_turned_in_another_file(tmp_path: Path, main: str, wrap: str) -> None:
    files = {
        "main.py": main,
        "wrap.py": wrap,
        "trainer.py": trainer("self.model.clip_grad_norm_(max_norm=1.0)"),
    }
    assert "clip_grad_norm_(self.model, max_norm=1.0)" in after(tmp_path, files, "trainer.py")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("with self.model.no_sync(): pass", "FM312"),
        ("self.model.register_comm_hook(None, print)", "FM321"),
        ("print(self.model.check_is_root())", "FM317"),
        ("print(self.model._fsdp_wrapped_module)", "FM317"),
        ("with self.model.summon_full_params(self.model): pass", "FM313"),
        ("self.model.flatten_sharded_optim_state_dict(x, self.model, y)", "FM309"),
        ("self.model.full_optim_state_dict(self.model, y)", "FM309"),
        ("self.model.optim_state_dict(self.model, y)", "FM309"),
        ("self.model.optim_state_dict_to_load(self.model, y, x)", "FM309"),
        ("self.model.rekey_optim_state_dict(x, y, self.model)", "FM309"),
        ("self.model.set_state_dict_type(self.model, x)", "FM307"),
        ("with self.model.state_dict_type(self.model, x): pass", "FM307"),
        ("print(self.model.fsdp_modules(self.model))", "FM305"),
        ("print(getattr(self.model, 'clip_grad_norm_')(1.0))", "FM450"),
        ("print(self.model.module)", "FM450"),
        ("print(self.model.state_dict())", "FM450"),
    ],
)
def test_what_its_class_alone_has_is_named(tmp_path: Path, line: str, code: str) -> None:
    assert code in told(tmp_path, line)


@pytest.mark.parametrize(
    "line", ["print(self.model.module)", "print(self.model.state_dict())", "self.model.load_state_dict(x)"]
)
def test_a_model_that_may_be_another_wrappers_is_named(tmp_path: Path, line: str) -> None:
    assert told(tmp_path, line, MAIN_BY_PROPERTIES, PREPARED_BESIDE) == {"FM450"}
    context = "with self.model.no_sync(): pass"
    assert told(tmp_path, context, MAIN_BY_PROPERTIES, PREPARED_BESIDE) == {"FM333"}


@pytest.mark.parametrize("main", [MAIN_UNSEEN, MAIN_APART])
@pytest.mark.parametrize("name", ["model", "thing", "engine"])
def test_clipping_by_something_unknown_is_named_wherever_it_stands(
    tmp_path: Path, main: str, name: str
) -> None:
    for given in ("1.0", "max_norm=x", "cfg.hparams.clip", "1.0, norm_type=2"):
        assert told(tmp_path, f"self.{name}.clip_grad_norm_({given})", main, name=name) == {"FM450"}


def test_a_context_that_wrappers_alone_have_is_named(tmp_path: Path) -> None:
    assert told(tmp_path, "with self.thing.no_sync(): pass", MAIN_UNSEEN, name="thing") == {"FM450"}
    # Accelerate's and others' are given the model.
    assert told(tmp_path, "with self.thing.no_sync(x): pass", MAIN_UNSEEN, name="thing") == set()
    assert told(tmp_path, "with self.strategy.no_sync(): pass", MAIN_UNSEEN, name="strategy") == set()


@pytest.mark.parametrize(
    "line",
    [
        "self.thing.clip_grad_norm_(self.thing.parameters(), 1.0)",
        "self.thing.clip_grad_norm_(params, max_norm=1.0)",
        "self.thing.clip_grad_norm_(x, max_norm=1.0)",
        "self.thing.clip_grad_norm_(parameters=x, max_norm=1.0)",
        "self.thing.clip_grad_norm_(self.model, 1.0)",
        "self.params.clip_grad_norm_(1.0)",
        "self.clip_grad_norm_(1.0)",
    ],
)
def test_what_others_call_so_is_not(tmp_path: Path, line: str) -> None:
    for main in (MAIN_UNSEEN, MAIN_APART):
        assert told(tmp_path, line, main, name="thing") == set()


@pytest.mark.parametrize(
    ("noted", "is_said"),
    [("accelerate.Accelerator", False), ("accelerate.Accelerator | None", False), ("Helper", True)],
)
def test_what_is_said_to_be_an_accelerator_clips_what_it_is_given(
    tmp_path: Path, noted: str, *, is_said: bool
) -> None:
    clips = "\nimport accelerate\ndef step(thing: {}, to_clip):\n    thing.clip_grad_norm_({}, 1.0)\n"
    for given in ("params_to_clip", "to_clip"):
        found = told(tmp_path, f"pass{clips.format(noted, given)}", MAIN_UNSEEN, name="thing")
        assert found == ({"FM450"} if is_said else set())


def test_a_class_of_the_project_may_have_such_a_method_itself(tmp_path: Path) -> None:
    own = f"{MAIN_UNSEEN}\nclass Clipping:\n    def clip_grad_norm_(self, max_norm):\n        pass\n"
    assert told(tmp_path, "self.thing.clip_grad_norm_(1.0)", own, name="thing") == set()


def test_a_models_class_that_clips_itself_is_left_to_a_person(tmp_path: Path) -> None:
    own = f"import torch\n{MAIN}\nclass Net(torch.nn.Module):\n    def clip_grad_norm_(self, x): pass\n"
    assert told(tmp_path, "self.model.clip_grad_norm_(1.0)", own) == {"FM311"}
    (use,) = (use for use in scan_paths([tmp_path]).uses if use.code == "FM311")
    assert use.action == "commented"


def test_a_file_that_shards_itself_shows_what_it_shards(tmp_path: Path) -> None:
    both = f"{PREPARED}\nclass Plain:\n    def clip(self, model):\n        model.no_sync()\n"
    assert told(tmp_path, "pass", "from wrap import Plain, shard\nPlain().clip(shard(1))\n", both) == set()
    assert [use for use in scan_paths([tmp_path]).uses if use.action in {"commented", "rewritten"}] == []


def test_models_that_torchs_own_function_shards_never_had_it(tmp_path: Path) -> None:
    assert told(tmp_path, "with self.model.no_sync(): pass", MAIN_BY_PROPERTIES, TORCHS) == set()
    assert told(tmp_path, "self.model.register_comm_hook(None, print)", MAIN, TORCHS) == set()


@pytest.mark.parametrize(
    ("before", "then"),
    [
        (
            "from fsdp_migrate import prepare_fully_shard",
            "import FullyShardedDataParallel as prepare_fully_shard",
        ),
        ("from fsdp_migrate import (\n    shard_plan,\n    prepare_fully_shard as p,\n)\nx", "as p\n\n\n\nx"),
        (
            "import fsdp_migrate\nfsdp_migrate.prepare_fully_shard(m)",
            "\nfsdp_migrate.FullyShardedDataParallel(m)",
        ),
    ],
)
def test_a_source_as_it_was_before_keeps_its_lines(before: str, then: str) -> None:
    assert as_before(before).endswith(then)
    assert as_before(before).count("\n") == before.count("\n")
    assert as_before("from fsdp_migrate import shard_plan") == "from fsdp_migrate import shard_plan"
    assert as_before("from composer import prepare_fully_shard") == "from composer import prepare_fully_shard"
