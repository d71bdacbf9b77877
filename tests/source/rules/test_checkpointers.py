"""What fvcore's Checkpointer saves and loads of a sharded model by itself."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import scan_source


pytestmark = pytest.mark.any_torch

OBJECT = (
    "from {package} import {name}\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
    "def main(net, path):\n    model = {model}\n    checkpointer = {name}(model, 'out')\n"
    "    checkpointer.{call}\n"
)
CLASS = (
    "from fvcore.common.checkpoint import Checkpointer\n"
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType\n\n\n"
    "class Mine({base}):\n"
    "    def load(self, path):\n        {within}\n\n"
    "    {own}\n\n\n"
    "def main(net, path):\n    mine = Mine(FSDP(net), 'out')\n    mine.load(path)\n"
)


def said(text: str) -> list[str]:
    return [use.text for use in scan_source(text) if (use.rule, use.code) == ("checkpointers", "FM333")]


@pytest.mark.parametrize(
    ("filled", "is_said"),
    [
        ({"call": "load(path)"}, True),
        ({"call": "resume_or_load(path, resume=True)"}, True),
        ({"call": "save('last')"}, True),
        ({"call": "save('last')", "package": "detectron2.checkpoint", "name": "DetectionCheckpointer"}, True),
        ({"call": "has_checkpoint()"}, False),
        ({"call": "load(path)", "model": "net"}, False),
        ({"call": "load(path)", "package": "project.files"}, False),
    ],
)
def test_an_object_that_is_given_the_sharded_model(filled: dict[str, str], *, is_said: bool) -> None:
    text = OBJECT.format(
        **{"package": "fvcore.common.checkpoint", "name": "Checkpointer", "model": "FSDP(net)"} | filled
    )
    assert said(text) == [f"checkpointer.{filled['call']}"] * is_said


OWN = "def _load_model(self, checkpoint):\n        pass"


@pytest.mark.parametrize(
    ("filled", "expected"),
    [
        ({"within": "return super().load(path)"}, ["super().load(path)"]),
        ({"within": "self._load_model(self._load_file(path))"}, ["self._load_model(self._load_file(path))"]),
        ({"within": "return super().load(path)", "own": OWN}, []),
        ({"within": "self._load_model(self._load_file(path))", "own": OWN}, []),
        ({"within": "return super().load(path)", "base": "Base"}, []),
        # What stands in a context has FM307.
        (
            {
                "within": (
                    "with FSDP.state_dict_type(self.model, StateDictType.LOCAL_STATE_DICT):\n"
                    "            return super().load(path)"
                )
            },
            [],
        ),
    ],
)
def test_a_class_that_derives_from_it(filled: dict[str, str], expected: list[str]) -> None:
    assert said(CLASS.format(**{"base": "Checkpointer", "own": "x = 1"} | filled)) == expected
