"""Finding FSDP1 in Python sources, and rewriting them."""

from __future__ import annotations

import pytest


# Before the module is imported: what its assertions compare is then shown as in a test.
pytest.register_assert_rewrite("tests.source.samples")
