"""Classes whose objects stand for what they hold: ``__getattr__`` asks ``self.model`` for the rest."""

from __future__ import annotations

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, last_name, walk_for


def stands_for_attribute(node: cst.ClassDef) -> str | None:
    """Return the attribute that a class's objects are asked in place of, if they are no modules themselves.

    A module has a ``state_dict`` and ``parameters()`` of its own, and is asked for none of another's.
    """
    if any(last_name(base.value) not in {"ABC", "object"} for base in node.bases):
        return None
    for each in node.body.body:
        if isinstance(each, cst.FunctionDef) and each.name.value == "__getattr__":
            for given in walk_for(each.body, cst.Return):
                call = given.value
                if not isinstance(call, cst.Call) or dotted(call.func) != "getattr" or len(call.args) < 2:
                    continue
                start, _, name = (dotted(call.args[0].value) or "").partition(".")
                if start == "self" and name.isidentifier():
                    return name
    return None
