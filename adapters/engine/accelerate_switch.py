"""The variable that switches Accelerate's FSDP on, and what does: Accelerate compares with ``true``.

``tests/frameworks/test_accelerate_claims.py`` holds that against the Accelerate that is installed.
"""

from __future__ import annotations

from fsdp_migrate.adapters.document.nodes import REFERENCE


SWITCH = "ACCELERATE_USE_FSDP"


def switches_on(value: str) -> bool:
    """Tell whether Accelerate takes a value of the switch for on; ``True`` counts for 1.10 and later alone.

    Example:
        >>> switches_on("True"), switches_on("1"), switches_on("")
        (True, False, False)
    """
    return value.strip("\"'").lower() == "true"


def may_switch_on(value: str) -> bool:
    """Tell the same, or that a variable says it.

    Example:
        >>> may_switch_on("$USE_FSDP"), may_switch_on("yes")
        (True, False)
    """
    return switches_on(value) or REFERENCE.search(value) is not None
