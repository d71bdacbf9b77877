"""What is private to torch's FSDP1, and what its wrapper alone shows."""

from __future__ import annotations

import pytest

from tests.source.samples import assert_commented, found_comments


pytestmark = pytest.mark.any_torch


COMMENTED = [
    ("handle = model._handle\n", "FM317"),
    ("x = model._fsdp_wrapped_module.x\n", "FM317"),
    (
        "from torch.distributed.fsdp._common_utils import clean_tensor_name as clean\nclean(n)\n",
        "FM317",
    ),
]


@pytest.mark.parametrize(("body", "code"), COMMENTED)
def test_what_is_left_to_people_gets_one_comment(body: str, code: str) -> None:
    assert_commented(body, code)


def test_what_the_wrapper_alone_shows_is_said() -> None:
    found = found_comments(
        "def f(model: FSDP):\n"
        "    model.mixed_precision = None\n"
        "    return model.world_size, model.weight, net.process_group\n"
    )
    assert found == {("FM317", 3)}
