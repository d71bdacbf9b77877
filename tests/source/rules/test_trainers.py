"""FSDP1 as Composer's Trainer is told of it."""

from __future__ import annotations

import pytest

from tests.source.samples import assert_framework_commented, assert_untouched


pytestmark = pytest.mark.any_torch


FRAMEWORKS = [
    ("from composer import Trainer\nt = Trainer(model, fsdp_config=c)\n", "FM328"),
    ("import composer\nt = composer.Trainer(model, parallelism_config={'fsdp': c})\n", "FM328"),
]


@pytest.mark.parametrize(("source", "code"), FRAMEWORKS)
def test_other_frameworks_get_a_comment(source: str, code: str) -> None:
    assert_framework_commented(source, code)


NO_FRAMEWORKS = [
    "from ours import Trainer\nt = Trainer(model, fsdp_config=c)\n",
    "from composer import Trainer\nt = Trainer(model, fsdp_config=None)\n",
]


@pytest.mark.parametrize("source", NO_FRAMEWORKS)
def test_other_frameworks_without_fsdp1_are_left_alone(source: str) -> None:
    assert_untouched(source)
