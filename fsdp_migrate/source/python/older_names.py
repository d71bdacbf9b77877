"""Names that a model had before it was sharded: FSDP2 shards in place, so they stand for the sharded one.

``self.inner = model`` above ``model = accelerator.prepare(model)``; FSDP1's was the module in the wrapper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.loops import binds, loops_around
from fsdp_migrate.source.python.nodes import bound_in, parameters_of, text_of
from fsdp_migrate.source.python.wrappers import SAME_MODEL


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fsdp_migrate.source.python.model_kinds import Key
    from fsdp_migrate.source.python.scopes import Index


def older_names(index: Index, call: cst.Call, given: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield the other names that the same function gave what a call is given, above the call.

    By ``inner = model.to(device)`` too, by a name of such a name, and by the one that it was taken from.
    Those that it bound anew until then are none.
    """
    given = _as_it_was(given)
    if not isinstance(given, (cst.Name, cst.Attribute)):
        return
    known, same = {text_of(given)}, list(_same_models(index, call))
    while (
        found := next((each for each in same if not known.isdisjoint(map(text_of, each))), None)
    ) is not None:
        same.remove(found)
        yield from (each for each in found if text_of(each) not in known)
        known |= {*map(text_of, found)}


def _same_models(index: Index, call: cst.Call) -> Iterator[Sequence[cst.BaseExpression]]:
    """Yield the names that assignments above a call, in its function, made those of one model until then."""
    function, around = index.function(call), {*index.ancestors(call)}
    for node in index.by_kind.get(cst.Assign, ()):
        assign = cst.ensure_type(node, cst.Assign)
        is_above = index.order[assign] < index.order[call] and not index.excludes(assign, call)
        if not is_above or assign in around or index.function(assign) is not function:
            continue
        both = (*(each.target for each in assign.targets), _as_it_was(assign.value))
        names: list[cst.BaseExpression] = [
            each for each in both if isinstance(each, (cst.Name, cst.Attribute))
        ]
        names = names if len(names) > 1 else []
        names = [each for each in names if not _is_bound_between(index, each, assign, call)]
        if len({*map(text_of, names)}) > 1:
            yield names


def inner_name(
    index: Index, call: cst.Call, given: cst.BaseExpression
) -> tuple[cst.BaseExpression, bool] | None:
    """Return the name of what a call shards, and whether it gives it another: ``model = FSDP(net)``.

    In a loop that goes through such models, each round has one that is new.
    """
    given = _as_it_was(given)
    if not isinstance(given, (cst.Name, cst.Attribute)) or given not in index.scopes:
        return None
    text = text_of(given)
    if any(binds(loop, text.partition(".")[0]) for loop in loops_around(index, call)):
        return None
    statement = next(
        (each for each in index.ancestors(call) if isinstance(each, cst.BaseSmallStatement)), None
    )
    if isinstance(statement, cst.Expr) and text.startswith("self.") and _is_given_self(index, call):
        return None  # `self.__dict__.update(model=FSDP(self.model))`: perhaps the very name
    targets = [each.target for each in statement.targets] if isinstance(statement, cst.Assign) else []
    return given, all(text_of(each) != text for target in targets for each in bound_in(target))


def _is_given_self(index: Index, call: cst.Call) -> bool:
    """Tell whether what a call gives goes to another that has ``self`` too, or is one of its own dict."""
    around = (each for each in index.ancestors(call) if isinstance(each, cst.Call))
    parts = (part for each in around for part in (each.func, *(arg.value for arg in each.args)))
    return any(text_of(part) in {"self", "self.__dict__.update", "vars(self).update"} for part in parts)


def inner_parameters(
    index: Index, function: cst.FunctionDef, inner: Mapping[Key, list[cst.CSTNode]]
) -> list[str]:
    """Return the parameters of a function that are models which it shards, before it binds them anew."""
    scope, found = index.scopes[function.params], list[str]()
    for param in parameters_of(function):
        name = param.name.value
        places = sorted(inner.get((function, name), ()), key=lambda each: index.order[each])
        first = [places[0], *index.ancestors(places[0])] if places else []
        if places and all(
            each.kind == "param"
            or index.order[each.node] > index.order[places[0]]
            or each.value in first
            or _is_same(each.value, name)
            for each in scope.lookup(name)
        ):
            found.append(name)
    return found


def _as_it_was(given: cst.BaseExpression) -> cst.BaseExpression:
    """Return the model of ``model.to(device)``."""
    while isinstance(given, cst.Call) and _is_same(given, ""):
        given = cst.ensure_type(given.func, cst.Attribute).value
    return given


def _is_bound_between(index: Index, name: cst.BaseExpression, assign: cst.Assign, call: cst.Call) -> bool:
    """Tell whether a name is bound to something else between two places of its function."""
    return any(
        index.order[assign] < index.order[place] < index.order[call]
        and index.function(place) is index.function(call)
        and not index.excludes(place, call)
        and value is not assign.value
        and value is not call
        and not _is_same(value, text_of(name))
        for place, value in _bindings(index, name)
    )


def _bindings(
    index: Index, name: cst.BaseExpression
) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression | None]]:
    if isinstance(name, cst.Name):
        every = index.bindings_of(name) if name in index.scopes else ()
        yield from ((each.node, each.value) for each in every)
        return
    for target in index.places_set(text_of(name)):
        line = index.parents[target]
        yield target, line.value if isinstance(line, cst.Assign) else None


def _is_same(value: cst.BaseExpression | None, text: str) -> bool:
    """Tell whether a value is the model of a name, or of any, as it was: ``model.to(device)``."""
    func = value.func if isinstance(value, cst.Call) else None
    is_so = isinstance(func, cst.Attribute) and func.attr.value in SAME_MODEL
    return is_so and (not text or text_of(cst.ensure_type(func, cst.Attribute).value) == text)
