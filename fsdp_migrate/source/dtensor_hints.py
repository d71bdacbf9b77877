"""What is added to a comment on a DTensor: who has to call, and which others are plain."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.one_rank import runs_on_one_rank
from fsdp_migrate.source.python.read_states import is_summed_state


if TYPE_CHECKING:
    from fsdp_migrate.source.parameter_values import ParameterValues


_GATHERS: Final = (
    "One rank alone comes here, and full_tensor() waits for all: call it above this branch, on every rank, "
    "or take .to_local(), which is that rank's part."
)
_IGNORED: Final = (
    "Of a parameter that FSDP ignores, which stays plain, take neither: ask isinstance(p, DTensor) first."
)
_STEPS: Final = "The state's `step` is plain: ask isinstance(v, DTensor) first."
_IGNORES: Final = re.compile(r"\bignored_(?:modules|parameters|states)\s*=(?!=)")
_TAKES: Final = re.compile(r"\.(?:full_tensor|to_local)\(\)")


def with_hints(values: ParameterValues, node: cst.CSTNode, said: str) -> str:
    """Return what is said of a place, with what its advice does not hold for."""
    source = values.source
    found = [said]
    if "full_tensor()" in said and runs_on_one_rank(source.index, source.models.guards, node):
        found.append(_GATHERS)
    if _TAKES.search(said) is not None:
        if isinstance(node, cst.Call) and is_summed_state(source.models, node):
            found.append(_STEPS)
        elif _IGNORES.search(source.code) is not None:
            found.append(_IGNORED)
    return " ".join(found)
