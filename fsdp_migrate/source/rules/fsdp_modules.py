"""``FSDP.fsdp_modules(model)`` becomes a list of the modules that are ``FSDPModule``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.counted_units import COUNTED, counts_of_units
from fsdp_migrate.source.rules.class_checks import MODULE
from fsdp_migrate.source.uses import Found, Replace


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "fsdp-modules"
CODES = ("FM305",)

_ROOTS = "take [m for m in model.modules() if isinstance(m, FSDPModule)]; the roots are those below no other."


def find(source: Source) -> Iterator[Found]:
    """Find every call, and what counts such modules where a framework makes them."""
    yield from (Found("FM305", each, COUNTED, "kept") for each in counts_of_units(source))
    for call in source.calls:
        if source.class_function(call) != "fsdp_modules":
            continue
        if len(call.args) != 1 or call.args[0].star:
            yield Found("FM305", call, _ROOTS, "commented", covers=(call.func,))
            continue
        new = source.local_name(MODULE)

        def build(updated: cst.Call, new: str = new) -> cst.BaseExpression:
            template = cst.parse_expression(f"[m for m in x.modules() if isinstance(m, {new})]")
            return cst.ensure_type(
                template.deep_replace(_modules_of(template), updated.args[0].value), cst.ListComp
            )

        edit = Replace(call, build)
        becomes = f"[m for m in ... if isinstance(m, {new})]"
        yield Found("FM305", call, becomes, "rewritten", (edit,), (MODULE,), (call.func,))


def _modules_of(template: cst.BaseExpression) -> cst.BaseExpression:
    """Return the ``x`` of ``[m for m in x.modules() ...]``."""
    call = cst.ensure_type(cst.ensure_type(template, cst.ListComp).for_in.iter, cst.Call)
    return cst.ensure_type(call.func, cst.Attribute).value
