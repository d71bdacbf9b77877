"""Parts of a model had no parameters where FSDP1's were flat, but for its units; FSDP2's have their own.

What is frozen, grouped or given to an optimizer by a part after wrapping comes out differently.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import libcst as cst

from fsdp_migrate.source.flat_parameters import DECIDES, flat_of, of_flat
from fsdp_migrate.source.model_runs import OPTIMIZERS
from fsdp_migrate.source.parameter_values import ParameterValues
from fsdp_migrate.source.python.frameworks import by_whom
from fsdp_migrate.source.python.held import MODEL, taken
from fsdp_migrate.source.python.loops import loops_around
from fsdp_migrate.source.python.nodes import dotted, last_name, parameters_of, text_of, walk_for, word_of
from fsdp_migrate.source.python.optimizers import is_optimizer, stepped
from fsdp_migrate.source.python.parameters import (
    PARAMETERS,
    SAME_PARAMETERS,
    is_torchs_optimizer,
)
from fsdp_migrate.source.rules.parameter_names import asked_of_name, changes, chooses
from fsdp_migrate.source.units_of_parts import part_of, units_of
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source
    from fsdp_migrate.source.units_of_parts import Part


NAME = "part-parameters"
CODES = ("FM318",)

_NONE: Final = "and this part, which is no unit, had none of its own; FSDP2's stay in their parts"
_SOME: Final = "and a part had none but those of units that it is, or holds; FSDP2's stay in their parts"
_FROZEN: Final = "so this {}comes to other parameters, without an error. Decide which are meant."
_ALONE: Final = (
    "so FSDP1 {}stopped at this optimizer, which got an empty list, and FSDP2 goes on. Decide what is meant."
)
_UNIT: Final = " If this part is a unit itself, all is as before: delete the comment."
# Lightning, Fabric, Composer and Hugging Face's Trainer ask for use_orig_params=True.
_KEEP: Final = frozenset({"composer", "fabric", "lightning", "transformers"})
_PUTS: Final = frozenset({"add_param_group", "append", "extend", "update"})
_FREEZES: Final = re.compile(r"(?i)(?:^|_)(?:un)?freeze|requires?_grad(?!ient)")
_IDS: Final = frozenset({"id", "map"})
_DEEPEST: Final = 3

_Deed = Literal["alone", "chosen", "frozen"]
"""What becomes of parameters: an optimizer is given them alone, they are put into groups, or changed."""


def find(source: Source) -> Iterator[Found]:
    """Find where parameters of a sharded model are frozen or chosen by the part that they are in."""
    said = _Said(source)
    for call in source.calls:
        for node, deed in _acted_on(source, call):
            parts = list(filter(None, (part_of(source, each) for each in _each_of(source, node))))
            if not parts or source.contexts.is_summoned(call) or said.values.is_one(node):
                continue
            if text := next(filter(None, (said.of(part, deed) for part in parts)), ""):
                yield Found("FM318", call, text, "commented")
                break


@dataclass(eq=False)
class _Said:
    """Says of the parts of one source what FSDP1's flat parameters gave them."""

    source: Source
    _known: dict[tuple[str, str], str] = field(default_factory=dict)

    @functools.cached_property
    def values(self) -> ParameterValues:
        return ParameterValues(self.source)

    def _of_all(self, meant: str, outcome: str) -> str:
        key = meant, outcome
        if key not in self._known:
            self._known[key] = of_flat(self.source, meant, outcome)
        return self._known[key]

    def of(self, part: Part, deed: _Deed) -> str:
        """Return what is said of a part; nothing where it had its own parameters, or is a unit."""
        whom = self.source.models.sharded_by(part.model) or _whom_by_parts(self.source, part.model)
        if whom in _KEEP:
            return ""
        held = units_of(self.source).held_by(part)
        if held == "all":
            return ""
        meant = _NONE if held == "none" else _SOME
        outcome = _FROZEN if deed == "frozen" else DECIDES
        if deed == "alone" and held == "none":
            outcome = _ALONE
        known = self._of_all(meant, outcome)
        said = flat_of(self.source, part.model, known, meant, outcome)
        return f"{said}{_UNIT}" if said and held == "unknown" else said


def _whom_by_parts(source: Source, model: cst.BaseExpression) -> str:
    """Return the framework that shards the parts of an object, where nothing else makes it a sharded one."""
    if any(source.models.is_constructor(call.func) for call in source.calls):
        return ""
    kinds = source.models.kinds(model)
    steps = {kind.removesuffix(f">{MODEL}") for kind in kinds if kind.endswith(f">{MODEL}")}
    found = {by_whom(taken(step, kinds)) for step in steps}
    return found.pop() if len(found) == 1 else ""


def _acted_on(source: Source, call: cst.Call) -> Iterator[tuple[cst.BaseExpression, _Deed]]:
    """Yield what may be a part of which a call freezes or chooses parameters, and what becomes of them."""
    func = call.func
    if isinstance(func, cst.Attribute):
        name = func.attr.value
        if name == "requires_grad_" or (name not in PARAMETERS and _FREEZES.search(name)):
            yield func.value, "frozen"
        elif name in PARAMETERS and _chooses(source, call):
            yield func.value, _deed_of(source, call)
    for place, arg in enumerate(call.args):
        is_place = isinstance(arg.value, (cst.Attribute, cst.Call, cst.Name, cst.Subscript))
        if is_place and not arg.star and _is_taken_by(source, call, place, arg):
            yield arg.value, "frozen"


def _each_of(source: Source, node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield what a name is in the rounds of a loop, ``for m in (net.a, net.b)``, or what is given."""
    name = node.value if isinstance(node, cst.Name) else ""
    loops = loops_around(source.index, node) if name else ()
    over = next((each.iter for each in loops if dotted(each.target) == name), None)
    if isinstance(over, (cst.List, cst.Tuple)):
        yield from (each.value for each in over.elements)
    else:
        yield node


def _is_taken_by(source: Source, call: cst.Call, place: int, arg: cst.Arg) -> bool:
    """Tell whether a function freezes, or chooses, the parameters of a module that it is given."""
    functions = source.models.guards.functions(call.func)
    if not functions:
        return _FREEZES.search(last_name(call.func)) is not None
    for function in functions:
        names = [
            each.name.value for each in parameters_of(function) if each.name.value not in {"cls", "self"}
        ]
        name = arg.keyword.value if arg.keyword else names[place] if place < len(names) else ""
        if name in names and any(_acts(source, each, name) for each in walk_for(function.body, cst.Call)):
            return True
    return False


def _acts(source: Source, call: cst.Call, name: str) -> bool:
    """Tell whether a call freezes or chooses the parameters of what has a name."""
    func = call.func
    if not isinstance(func, cst.Attribute) or dotted(func.value) != name:
        return False
    return func.attr.value == "requires_grad_" or (func.attr.value in PARAMETERS and _chooses(source, call))


def _deed_of(source: Source, node: cst.BaseExpression) -> _Deed:
    """Return what becomes of a list of parameters that is chosen by a part."""
    above = source.index.parents[node]
    if isinstance(above, cst.For):
        is_put = any(last_name(each.func) in _PUTS for each in walk_for(above.body, cst.Call))
        return "chosen" if is_put else "frozen"
    call = source.index.parents[above] if isinstance(above, cst.Arg) else None
    if not isinstance(call, cst.Call):
        return "chosen"
    if last_name(call.func) in SAME_PARAMETERS and len(call.args) == 1:
        return _deed_of(source, call)
    is_torchs = any(map(is_torchs_optimizer, source.index.qualified(call.func)))
    return "alone" if is_torchs and node in stepped(call) else "chosen"


def _chooses(source: Source, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Tell whether what a list holds goes into groups, is frozen, written, or looked for in it."""
    above = source.index.parents[node]
    while isinstance(above, (cst.Element, cst.StarredElement, cst.List, cst.Tuple)):
        above = source.index.parents[above]
    if isinstance(above, cst.Arg):
        return _is_given_on(source, above, depth)
    if isinstance(above, cst.DictElement):
        return above.value is node and word_of(above.key) == "params"
    if isinstance(above, (cst.BinaryOperation, cst.IfExp)):
        return depth <= _DEEPEST and _chooses(source, above, depth + 1)
    if isinstance(above, cst.AugAssign):
        return above.value is node
    if isinstance(above, (cst.For, cst.CompFor)):
        return above.iter is node and _is_gone_through(source, above, depth)
    if isinstance(above, cst.ComparisonTarget):
        return isinstance(above.operator, (cst.In, cst.NotIn))
    if isinstance(above, cst.Assign) and depth <= _DEEPEST:
        names = [each.target for each in above.targets if isinstance(each.target, cst.Name)]
        readers = [each for name in names for each in source.readers(name)]
        return any(_chooses(source, each, depth + 1) for each in readers)
    return False


def _is_given_on(source: Source, arg: cst.Arg, depth: int) -> bool:
    """Tell whether a call that is given a list makes groups, or an optimizer, or the same list of it."""
    call = source.index.parents[arg]
    if not isinstance(call, cst.Call) or depth > _DEEPEST:
        return False
    name = last_name(call.func)
    if arg.keyword is not None and arg.keyword.value == "params":
        return True
    if name in SAME_PARAMETERS or (name in _IDS and dotted(call.args[0].value) == "id"):
        return _chooses(source, call, depth + 1)
    if isinstance(call.func, cst.Attribute) and name in _PUTS:
        return True
    if arg.value not in stepped(call):
        return False
    above = source.index.parents[call]
    targets = [dotted(each.target) or "" for each in above.targets] if isinstance(above, cst.Assign) else []
    is_named = any(is_optimizer(each.rpartition(".")[2].lower()) for each in targets)
    is_torchs = any(map(is_torchs_optimizer, source.index.qualified(call.func)))
    return is_named or is_torchs or OPTIMIZERS.search(name.lower()) is not None


def _is_gone_through(source: Source, loop: cst.For | cst.CompFor, depth: int) -> bool:
    """Tell whether a loop over parameters gives them away, freezes them, or changes them."""
    names = [each.value for each in walk_for(loop.target, cst.Name)]
    if not names:
        return False
    around: cst.CSTNode = loop
    while isinstance(around, cst.CompFor):
        around = source.index.parents[around]
    # What is asked of names is found by `parameter-names`.
    if len(names) > 1 and any(asked_of_name(around, {names[0]})):
        return False
    if isinstance(around, cst.For):
        return chooses(around, names[-1]) or changes(around, names[-1])
    if not isinstance(around, (cst.GeneratorExp, cst.ListComp, cst.SetComp)):
        return False
    given = text_of(around.elt)
    if isinstance(around.elt, cst.Dict):
        return "params" in given and names[-1] in {each.value for each in walk_for(around.elt, cst.Name)}
    return given in {names[-1], f"id({names[-1]})"} and _chooses(source, around, depth + 1)
