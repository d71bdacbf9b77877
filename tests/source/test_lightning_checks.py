"""Where a source asks for Lightning's FSDP1 strategy, and what is private to it."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import scan_source


pytestmark = pytest.mark.any_torch

ASKS = [
    ("if isinstance(s, FSDPStrategy):\n    wait()\n", ["ask for ModelParallelStrategy"]),
    ("if isinstance(s, FSDPStrategy):\n    raise E('not supported')\n", ["has to refuse"]),
    ("if isinstance(s, FSDPStrategy):\n    log(s)\n    raise E('FSDP1: take fsdp2')\n", []),
    ("assert not isinstance(s, FSDPStrategy)\n", ["has to refuse"]),
    ("assert not isinstance(s, FSDPStrategy), 'use ModelParallelStrategy'\n", []),
    ("assert isinstance(s, FSDPStrategy)\n", ["ask for ModelParallelStrategy"]),
    ("def f(s: FSDPStrategy):\n    pass\n", ["ask for ModelParallelStrategy"]),
]


@pytest.mark.parametrize(("body", "said"), ASKS)
def test_what_a_check_asks(body: str, said: list[str]) -> None:
    """One that refuses FSDP1 must not be turned round."""
    found = scan_source(f"from lightning.pytorch.strategies import FSDPStrategy\n{body}")
    texts = [use.becomes for use in found if use.code == "FM319"]
    assert len(texts) == len(said)
    assert all(wanted in text for wanted, text in zip(said, texts, strict=True))


def test_names_that_are_private_to_the_strategy() -> None:
    home = "from lightning.pytorch.strategies.fsdp import {0}\nx = {0}\n"
    names = (
        ("_METADATA_FILENAME", "lightning.fabric.utilities.load"),
        ("_get_full_state_dict_context", "get_model_state_dict"),
    )
    for name, said in names:
        (found,) = (use for use in scan_source(home.format(name)) if use.code == "FM319")
        assert said in found.becomes
