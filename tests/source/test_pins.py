"""Which requirements keep FSDP2 out."""

from __future__ import annotations

import pytest

from fsdp_migrate.source.pins import excludes


@pytest.mark.parametrize(
    ("bounds", "needed", "expected"),
    [
        ("==2.1.2", (2, 6), True),
        ("==2.6", (2, 6), False),
        ("==2.6.0", (2, 6), False),
        ("==2.*", (2, 6), False),
        ("==2.5.*", (2, 6), True),
        ("~=2.5.1", (2, 6), True),
        ("~=2.5", (2, 6), False),
        ("<2.6", (2, 6), True),
        ("<=2.6", (2, 6), False),
        (">=2.0,<3", (2, 6), False),
        (">=1.13", (2, 6), False),
        ("!=2.1", (2, 6), False),
    ],
)
def test_requirements_that_keep_fsdp2_out(bounds: str, needed: tuple[int, ...], expected: bool) -> None:
    assert excludes(bounds, needed) is expected
