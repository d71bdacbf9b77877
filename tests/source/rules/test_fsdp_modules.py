"""``FSDP.fsdp_modules``, and what it gives."""

from __future__ import annotations

import pytest

from tests.source.samples import assert_commented, assert_turned, found_comments


pytestmark = pytest.mark.any_torch


TURNED = [
    (
        "for unit in FSDP.fsdp_modules(model):\n    pass\n",
        "for unit in [m for m in model.modules() if isinstance(m, FSDPModule)]:\n    pass\n",
    ),
]


@pytest.mark.parametrize(("before", "after"), TURNED)
def test_methods_become_functions(before: str, after: str) -> None:
    assert_turned(before, after)


COMMENTED = [
    ("roots = FSDP.fsdp_modules(model, root_only=True)\n", "FM305"),
]


@pytest.mark.parametrize(("body", "code"), COMMENTED)
def test_what_is_left_to_people_gets_one_comment(body: str, code: str) -> None:
    assert_commented(body, code)


def test_what_fsdp_modules_gives_are_fsdp1_modules() -> None:
    assert ("FM317", 2) in found_comments(
        "for part in FSDP.fsdp_modules(net):\n    part._handle.reshard(True)\n"
    )
    assert ("FM317", 1) in found_comments("x = FSDP.fsdp_modules(net)[0]._use_orig_params\n")
    assert ("FM317", 1) in found_comments("x = [part._handle for part in FSDP.fsdp_modules(net)]\n")


@pytest.mark.parametrize("owner", ["model", "type(model)", "model.__class__"])
def test_it_is_found_on_the_model_and_its_class(owner: str) -> None:
    assert_turned(
        f"for unit in {owner}.fsdp_modules(model):\n    pass\n",
        "for unit in [m for m in model.modules() if isinstance(m, FSDPModule)]:\n    pass\n",
    )
    assert_commented(f"roots = {owner}.fsdp_modules(model, root_only=True)\n", "FM305")
