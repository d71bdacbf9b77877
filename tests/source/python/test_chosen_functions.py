"""Functions that a switch chooses: what was tested where they are called, or handed on, holds in them."""

from __future__ import annotations

import pytest

from tests.source.samples import codes, turned


pytestmark = pytest.mark.any_torch


ACCELERATE = """\
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin as Plugin
accelerator = Accelerator(fsdp_plugin=Plugin(sharding_strategy="FULL_SHARD"))


"""
LAUNCHED = """\
class Trainer:
    def fit(self, module, model):
        if accelerator.distributed_type == DistributedType.{first}:
            prepare = self._prepare_first
        else:
            prepare = self._prepare_other
        prepare(module, model)

    def _prepare_first(self, module, model):
        {body}

    def _prepare_other(self, module, model):
        pass
"""
ALONE = "module.teacher = accelerator.prepare_model(module.teacher)"
MOVES = (
    "model, o = accelerator.prepare(model, o)\n        for p in model.parameters():\n            p.data = x"
)


@pytest.mark.parametrize(("body", "code"), [(ALONE, "FM449"), (MOVES, "FM423")])
def test_a_function_of_another_launch_is_right(body: str, code: str) -> None:
    for first, is_said in (("DEEPSPEED", False), ("MULTI_GPU", False), ("FSDP", True)):
        found = codes(LAUNCHED.format(first=first, body=body), ACCELERATE)
        assert ((code, "commented") in found) is is_said, first
    # The `else` of FSDP's branch is that of the other launches.
    swapped = LAUNCHED.format(first="FSDP", body=body).replace("_prepare_first(self", "_prepare_x(self")
    swapped = swapped.replace("_prepare_other(self", "_prepare_first(self").replace("_x(self", "_other(self")
    assert (code, "commented") not in codes(swapped, ACCELERATE)


def test_a_function_that_a_name_chooses_at_two_places() -> None:
    asks = "sharded = accelerator.distributed_type == DistributedType.FSDP\n        if {}sharded:\n"
    twice = "\n    def again(self):\n        {}            self._prepare_first(self.module, self.model)\n"
    for other, is_said in (("not ", False), ("", True)):
        code = LAUNCHED.format(first="X", body=ALONE).replace(
            "if accelerator.distributed_type == DistributedType.X:\n", asks.format(other)
        )
        found = codes(code + twice.format(asks.format(other)), ACCELERATE)
        assert (("FM449", "commented") in found) is is_said


@pytest.mark.parametrize(
    "more",
    [
        "\n    def again(self):\n        self._prepare_first(self.module, self.model)\n",
        "\n    def by_name(self):\n        return getattr(self, '_prepare_first')\n",
        "\n\nclass Heir(Trainer):\n    def _prepare_first(self, module, model):\n        pass\n",
    ],
)
def test_one_that_is_run_otherwise_too_stays_named(more: str) -> None:
    code = LAUNCHED.format(first="DEEPSPEED", body=ALONE)
    assert ("FM449", "commented") not in codes(code, ACCELERATE)
    assert ("FM449", "commented") in codes(code + more, ACCELERATE)
    public = code.replace("_prepare_first", "prepare_first")
    assert ("FM449", "commented") in codes(public, ACCELERATE)


VERSIONS = """\
class Mine(Trainer):
    def _sync_fsdp1(self, module, visited):
        for child in module.children():
            self._sync_fsdp1(child, visited)
        if isinstance(module, FSDP):
            with FSDP.summon_full_params(module, recurse=False):
                for name, param in module.named_parameters():
                    if "_fsdp_wrapped_module" in name:
                        continue
                    self.send(name, param)

    def _sync_other(self, module):
        for name, param in module.state_dict().items():
            self.send(name, param.full_tensor())

    def move(self, version):
        if fsdp_version == 1:
            self._sync_fsdp1(self.model, set())
        {other}
"""
BESIDE = "elif fsdp_version == 2:\n            self._sync_other(self.model)\n"


def test_a_function_of_fsdp1s_version_beside_one_of_fsdp2s_stays_as_it_is() -> None:
    assert {action for _, action in codes(VERSIONS.format(other=BESIDE))} == {"kept"}
    assert turned(VERSIONS.format(other=BESIDE)).endswith(VERSIONS.format(other=BESIDE))


@pytest.mark.parametrize(
    "other",
    ["", f"{BESIDE}\n    def again(self):\n        self._sync_fsdp1(self.model, set())\n"],
)
def test_one_without_a_branch_of_fsdp2s_beside_it_has_its_comments(other: str) -> None:
    found = codes(VERSIONS.format(other=other))
    assert ("FM335", "commented") in found
    assert ("FM316", "commented") in found


def test_a_function_outside_of_a_class_may_be_imported() -> None:
    own = VERSIONS.replace("class Mine(Trainer):\n", "if True:\n").replace("self._sync", "_sync")
    found = codes(own.replace("(self, ", "(").format(other=BESIDE))
    assert ("FM335", "commented") in found
