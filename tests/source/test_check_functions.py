"""Layers that are chosen by their classes' names behind sharding, where units have other ones."""

from __future__ import annotations

import pytest

from fsdp_migrate.source.check_functions import BY_NAME, NOT_SEEN
from tests.source.samples import IMPORTS, uses


pytestmark = pytest.mark.any_torch

HEADER = (
    f"{IMPORTS}from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import "
    "apply_activation_checkpointing\n\n"
)
NAMED = "def check(m):\n    return type(m).__name__ in ('Block', 'EncoderLayer')\n\n\n"
ASKED = "def check(m):\n    return isinstance(m, Block)\n\n\n"
HELD = "def check(m):\n    name = m.__class__.__name__\n    return name == 'Block'\n\n\n"


@pytest.mark.parametrize(
    ("before", "check", "said"),
    [
        (NAMED, "check_fn=check", BY_NAME),
        (HELD, "check_fn=check", BY_NAME),
        (NAMED, "check_fn=functools.partial(check)", BY_NAME),
        (NAMED, "check_fn=lambda m: check(m)", BY_NAME),
        (NAMED, "check_wrapper, check", BY_NAME),
        (NAMED, "check_fn=chosen", BY_NAME),
        ("", "check_fn=lambda m: type(m) is Block", BY_NAME),
        ("", "check_fn=lambda m: m.__class__ in kinds", BY_NAME),
        ("", "check_fn=lambda m: type(m).__name__.startswith('Block')", BY_NAME),
        ("from policies import check\n", "check_fn=check", NOT_SEEN),
        ("from policies import check\n", "check_fn=lambda m: check(m, 2)", NOT_SEEN),
        (ASKED, "check_fn=check", ""),
        (ASKED, "check_fn=lambda m: check(m)", ""),
        ("", "check_fn=lambda m: isinstance(m, Block)", ""),
        ("", "check_fn=lambda m: m in layers", ""),
        ("", "check_fn=lambda m: 'Block' in type(m).__name__", ""),
        ("", "auto_wrap_policy=policy", ""),
    ],
)
def test_what_a_check_of_units_asks_is_said_where_they_are_recomputed(
    before: str, check: str, said: str
) -> None:
    call = f"apply_activation_checkpointing(model, {check})\n"
    found = [
        use.becomes
        for use in uses(f"{before}chosen = check\nmodel = FSDP(net)\n{call}", HEADER)
        if use.code == "FM324"
    ]
    assert len(found) == 1
    assert found[0].endswith(said or "and delete this call.")
