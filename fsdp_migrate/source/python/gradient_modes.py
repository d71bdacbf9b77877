"""Whether a place of a source is run without gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.nodes import last_name, text_of


if TYPE_CHECKING:
    from fsdp_migrate.source.python.scopes import Index


_NO_GRAD: Final = frozenset({"inference_mode", "no_grad"})


def is_without_gradients(index: Index, node: cst.CSTNode) -> bool:
    """Tell whether a place, or the context that it is a part of, is within ``torch.no_grad()``."""
    for above in index.ancestors(node):
        asked = [item.item for item in above.items] if isinstance(above, cst.With) else []
        if isinstance(above, cst.FunctionDef):
            asked = [each.decorator for each in above.decorators]
        if any(map(_takes_none, asked)):
            return True
    return False


def _takes_none(asked: cst.BaseExpression) -> bool:
    """Tell whether a context or a decorator is ``no_grad`` or ``set_grad_enabled(False)``."""
    made = asked.func if isinstance(asked, cst.Call) else asked
    if last_name(made) == "set_grad_enabled" and isinstance(asked, cst.Call):
        return [text_of(each.value) for each in asked.args] == ["False"]
    return last_name(made) in _NO_GRAD
