"""Communication of one's own: what is taken, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from fsdp_migrate.errors import ConfigError, UnsupportedFeatureError
from fsdp_migrate.sharding.communication import check_communication
from tests.sharding import torch_settings_bodies as settings


class _Own:
    """Communication of one's own."""

    def allocate(self, *args: Any) -> None: ...

    def __call__(self, *args: Any) -> None: ...


@pytest.mark.parametrize(
    ("communication", "words"),
    [
        ({"all_gathers": None}, r"has 'all_gathers'; expected .* Did you mean `all_gather`\?"),
        ({"all_gather": print}, r"`communication\['all_gather'\]` is a builtin.*has `allocate`"),
        (
            {"allocate_memory_from_process_group": True, "reduce_scatter": _Own()},
            r"has 'allocate_memory_from_process_group' and \['reduce_scatter'\]",
        ),
    ],
)
@pytest.mark.skipif(not settings.HAS_CUSTOM_COMMUNICATION, reason="torch 2.7 has none")
def test_what_cannot_be_communicated_so_is_refused(communication: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_communication(communication)


@pytest.mark.skipif(settings.HAS_CUSTOM_COMMUNICATION, reason="this torch has it")
def test_a_torch_without_it_is_named() -> None:
    with pytest.raises(UnsupportedFeatureError, match="has no `set_custom_all_gather`"):
        check_communication({"all_gather": _Own()})
