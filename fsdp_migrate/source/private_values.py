"""What is private to FSDP1 and has one value of every FSDP2 model: what that value is.

Measured with torch 2.7 and 2.13: ``tests/sharding/test_private_values.py`` asks a prepared model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted


if TYPE_CHECKING:
    from fsdp_migrate.source.python.text import Source


_DTENSOR = "isinstance(param, torch.distributed.tensor.DTensor)"
_UNIT = "isinstance(module, torch.distributed.fsdp.FSDPModule)"
_LEAVE = "leave it out of the condition"
_NOT = f"{_LEAVE} (`not` of it is always true)"
OF_MARKED: Final = (
    "FSDP1 marked the parameters that it had flattened by this: FSDP2 marks none, so that it is False of "
    f"every parameter. Where it is asked, {_NOT}; where the parameters of units are meant, ask {_DTENSOR}."
)
OF_FLAT: Final = (
    "only FSDP1's flat parameters have this attribute: it would be False of each of FSDP2's, and asking "
    f"for it raises AttributeError. Where it is asked, {_NOT}; where the parameters of units are meant, ask "
    f"{_DTENSOR}."
)
_MARKS: Final = (
    "FSDP1 passed over the parameters with this mark, and FSDP2 asks none for it, so that this changes "
    "nothing: take it away. What is not to be sharded goes into `ignored_states`."
)
_STATE: Final = (
    "it is None of every module now: FSDP2's units have no state of FSDP1's. Where it is compared with None, "
    f"{_LEAVE}; whether a module is a unit, {_UNIT} tells."
)
_UNITS: Final = (
    "it is empty of every model now, so that what is done with each of them is done for none, without an "
    "error: FSDP2 has neither states nor handles of FSDP1's. Where units are meant, take the modules of "
    f"model.modules() of which {_UNIT} is True."
)
_NAMES: Final = (
    "FSDP2 puts nothing into names, so that this gives a name as it is (it takes out torch's "
    "`_checkpoint_wrapped_module.` alone): use the name."
)
_SETS_UP: Final = (
    "FSDP2 sets itself up in the model's first forward, and knows nothing of this, which raises "
    "AttributeError now: take the call away."
)
_VALUES: Final = {
    "_is_fsdp_flattened": OF_MARKED,
    "_set_fsdp_flattened": _MARKS,
    **dict.fromkeys(("_get_module_fsdp_state", "_get_module_fsdp_state_if_fully_sharded_module"), _STATE),
    **dict.fromkeys(
        (
            *("_get_fsdp_handles", "_get_fsdp_root_states", "_get_fsdp_states"),
            "_get_fsdp_states_with_modules",
        ),
        _UNITS,
    ),
    "_lazy_init": _SETS_UP,
    "clean_tensor_name": _NAMES,
}
_OF_CLASS: Final = (
    f"FSDP2 makes nothing of this class, so that asking for it is False of everything: {_LEAVE}."
)
_CLASSES: Final = {
    "FlatParameter": f"{_OF_CLASS} Of a unit's parameter {_DTENSOR} is True.",
    "FlatParamHandle": _OF_CLASS,
    "_FSDPState": f"{_OF_CLASS} Of a unit {_UNIT} is True.",
}
_PARTS = (cst.Arg, cst.BinaryOperation, cst.Element, cst.Tuple)


def said_of_value(source: Source, node: cst.CSTNode, name: str) -> str | None:
    """Return what is said of something private to FSDP1 that has one value now; None of anything else.

    Args:
        source: The source.
        node: Where it stands.
        name: Its name below ``torch.distributed.fsdp``.
    """
    last = name.rpartition(".")[2]
    if last in _CLASSES:
        return _CLASSES[last] if _is_asked(source, node) else None
    return _VALUES.get(last)


def _is_asked(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether a thing is asked for its class: ``isinstance(x, cls)``, ``type(x) is cls``."""
    below = node
    for above in source.index.ancestors(node):
        if isinstance(above, cst.Call):
            return dotted(above.func) == "isinstance" and len(above.args) > 1 and above.args[1] is below
        if isinstance(above, cst.ComparisonTarget):
            whole = source.index.parents[above]
            left = whole.left if isinstance(whole, cst.Comparison) else None
            return isinstance(left, cst.Call) and dotted(left.func) == "type"
        if not isinstance(above, _PARTS):
            return False
        below = above
    return False
