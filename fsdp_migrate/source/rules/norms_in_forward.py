"""Norms and sums that the forward of a sharded model takes of its own parameters.

While a model's forward runs, its units show their shards, and the root shows whole, plain parameters. Outside
of it all are DTensors: that is told by :mod:`fsdp_migrate.source.rules.dtensors`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, last_name, text_of, walk_for
from fsdp_migrate.source.python.parameters import PARAMETERS, SAME_PARAMETERS
from fsdp_migrate.source.python.reached_methods import run_by_forward
from fsdp_migrate.source.python.tensor_words import (
    OF_THE_WHOLE,
    SAME,
    STATISTICS,
    gives_its_kind,
    gives_kind_of_given,
)
from fsdp_migrate.source.sharded_classes import is_part
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "norms-in-forward"
CODES = ("FM423",)

_MEANT = (
    "where the sharded model's forward runs this under FULL_SHARD, its units show shards, DTensors, and "
    "its root whole, plain parameters: torch refuses the two in one sum, and such a sum beside a plain loss; "
    "FSDP1 went on with this rank's parts. Take it in the training loop, above model(...), where all are "
    "DTensors, and add .full_tensor() of it to the loss."
)
_DTENSORS = frozenset({"full_tensor", "to_local", "_local_tensor", "summon_full_params"})
_NUMBERS = frozenset({"float", "item"})
# Of shapes alone: nothing is computed of values.
_LOOKED_AT = frozenset({"requires_grad_", "to", "type"})
_COMPREHENSIONS = (cst.GeneratorExp, cst.ListComp, cst.SetComp)


def find(source: Source) -> Iterator[Found]:
    """Find what the forward of a model that is sharded as a whole makes of its own parameters' values."""
    if "parameters(" not in source.code:
        return
    for node in source.index.by_kind.get(cst.ClassDef, ()):
        owner = cst.ensure_type(node, cst.ClassDef)
        if not _is_sharded(source, owner):
            continue
        ran = run_by_forward(owner)
        for method in owner.body.body:
            if isinstance(method, cst.FunctionDef) and method.name.value in ran:
                yield from _in_method(source, owner, method)


def _is_sharded(source: Source, owner: cst.ClassDef) -> bool:
    """Tell whether objects of a class are sharded as a whole: as other files say, or as this one does."""
    name = owner.name.value
    if name in source.links.sharded_classes:
        return True
    is_here = any(source.models.is_constructor(call.func) for call in source.calls)
    words = {word for call in source.calls for word in (dotted(call.func) or "").split(".")}
    return is_here and name in words and not is_part(name, [source.code])


def _in_method(source: Source, owner: cst.ClassDef, method: cst.FunctionDef) -> Iterator[Found]:
    words = {each.attr.value for each in walk_for(method, cst.Attribute)}
    if words & _DTENSORS:
        return
    seen = set[cst.CSTNode]()
    for call in walk_for(method, cst.Call):
        if not _gives_its_own(source, owner, call) or source.contexts.is_summoned(call):
            continue
        for value in _values(source, call):
            line = source.index.statement(value)
            if line not in seen and not _is_number(source, value):
                seen.add(line)
                yield Found("FM423", value, _MEANT, "commented")


def _gives_its_own(source: Source, owner: cst.ClassDef, call: cst.Call) -> bool:
    """Tell whether a call gives the parameters of ``self``, or of a part that is no layer of torch's."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value not in PARAMETERS:
        return False
    part = dotted(func.value) or ""
    if not f"{part}.".startswith("self."):
        return False
    made = [
        assign.value
        for assign in walk_for(owner, cst.Assign)
        if any(text_of(target.target) == part for target in assign.targets)
    ]
    return not made or not all(_is_a_layer(source, value) for value in made)


def _is_a_layer(source: Source, value: cst.BaseExpression) -> bool:
    """Tell whether it is one layer of torch's, which its model shows whole: no list, and no block of them."""
    known = source.index.qualified(value.func) if isinstance(value, cst.Call) else ()
    names = [each.rpartition(".")[2] for each in known if each.startswith("torch.nn.")]
    holds = ("Module", "Sequential", "Transformer")
    return any(not any(word in name for word in holds) for name in names)


def _values(source: Source, call: cst.Call) -> Iterator[cst.BaseExpression]:
    """Yield what is made of the values of parameters that a call gives, all at once or one by one."""
    index = source.index
    for above in index.ancestors(call):
        if isinstance(above, cst.FunctionDef):
            return
        if isinstance(above, cst.Call) and index.qualified(above.func) & OF_THE_WHOLE:
            yield above
        if not isinstance(above, (cst.For, *_COMPREHENSIONS)):
            continue
        loop, body = (above, above.body) if isinstance(above, cst.For) else (above.for_in, above.elt)
        if _goes_through(call, loop.iter):
            target = loop.target
            names = {each.value for each in walk_for(target, cst.Name)}
            # Of `for name, p in self.named_parameters()` the first is a text.
            if isinstance(target, cst.Tuple) and last_name(call.func) == "named_parameters":
                names = {each.value for each in walk_for(target.elements[-1].value, cst.Name)}
            used = (each for each in walk_for(body, cst.Name) if each.value in names)
            yield from (value for each in used for value in _made_of(source, each))


def _goes_through(call: cst.Call, over: cst.BaseExpression) -> bool:
    """Tell whether a loop goes through what a call gives: in ``zip(...)``, ``list(...)`` as well."""
    while isinstance(over, cst.Call) and over is not call:
        given = [arg.value for arg in over.args]
        is_same = last_name(over.func) in {*SAME_PARAMETERS, "enumerate", "tqdm", "zip"}
        inner = next((each for each in given if call in set(walk_for(each, cst.Call))), None)
        if not is_same or inner is None:
            return False
        over = inner
    return over is call


def _made_of(source: Source, name: cst.Name) -> Iterator[cst.BaseExpression]:
    """Yield what one parameter's values go into: a norm, a sum, what is computed of it and another."""
    node: cst.CSTNode = name
    while isinstance(above := source.index.parents.get(node), cst.CSTNode):
        if isinstance(above, cst.Attribute) and above.value is node:
            called = source.index.parents.get(above)
            is_called = isinstance(called, cst.Call) and called.func is above
            word = above.attr.value
            if not is_called and word in SAME:
                node = above
            elif is_called and word in STATISTICS and isinstance(called, cst.Call):
                yield called
                return
            elif is_called and gives_its_kind(word) and word not in _LOOKED_AT and called is not None:
                node = called
            else:
                return
        elif isinstance(above, cst.Arg):
            call = source.index.parents.get(above)
            known = source.index.qualified(call.func) if isinstance(call, cst.Call) else set[str]()
            if isinstance(call, cst.Call) and known & OF_THE_WHOLE:
                yield call
            if not isinstance(call, cst.Call) or not any(map(gives_kind_of_given, known)):
                return
            node = call
        elif isinstance(above, (cst.BinaryOperation, cst.UnaryOperation)):
            node = above
        else:
            return


def _is_number(source: Source, value: cst.BaseExpression) -> bool:
    """Tell whether a plain number is made of it at once: ``p.norm().item()``, ``float(p.norm())``."""
    for above in source.index.ancestors(value):
        name = above.func if isinstance(above, cst.Call) else None
        name = name.attr if isinstance(name, cst.Attribute) else name
        if isinstance(name, cst.Name) and name.value in _NUMBERS:
            return True
        if isinstance(above, (cst.BaseStatement, cst.BaseSmallStatement)):
            return False
    return False
