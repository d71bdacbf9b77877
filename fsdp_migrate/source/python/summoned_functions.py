"""Functions that are called only where the models that they are given show their whole parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, given_by_name, parameters_of, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


_SUMMONS = "summon_full_params"
# What a target stands in: the loop, or the tuple of its targets, and its place in that, and then the loop.
_TARGET = 3


class SummonedFunctions:
    """Answers of one source which functions run in such contexts alone. Reads only."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._known: dict[cst.FunctionDef, bool] = {}

    def holds(self, function: cst.FunctionDef | None) -> bool:
        """Tell whether each call of a function gives it a summoned model, or a part of one, and no other."""
        if function is None:
            return False
        if function not in self._known:
            self._known[function] = False  # what calls itself adds nothing
            self._known[function] = self._is_summoned(function)
        return self._known[function]

    def _is_summoned(self, function: cst.FunctionDef) -> bool:
        path = self._source.index.path_of(function)
        name = function.name.value
        if name in self._source.links.called_summoned:
            return True  # other files call it too, all in such contexts
        if any(scope == path for scope, _ in self._source.links.is_given):
            return False  # other files call it as well
        calls = self._calls(function)
        return bool(calls) and all(self._gives_summoned(each, function) for each in calls)

    def _calls(self, function: cst.FunctionDef) -> list[cst.Call]:
        """Return the calls of a function, or of a method of its name; none where it is handed on too."""
        name, index = function.name.value, self._source.index
        if index.class_of(function) is not None:
            named: list[cst.CSTNode] = [
                each
                for each in index.by_kind.get(cst.Attribute, ())
                if cst.ensure_type(each, cst.Attribute).attr.value == name
            ]
        else:
            names = (cst.ensure_type(each, cst.Name) for each in index.by_kind.get(cst.Name, ()))
            used = (each for each in names if each.value == name and each in index.scopes)
            named = [each for each in used if any(b.node is function for b in index.bindings_of(each))]
            named = [each for each in named if each is not function.name]
        calls = [index.parents[each] for each in named]
        is_called = all(
            isinstance(call, cst.Call) and call.func is each for call, each in zip(calls, named, strict=True)
        )
        return [cst.ensure_type(each, cst.Call) for each in calls] if is_called else []

    def _gives_summoned(self, call: cst.Call, function: cst.FunctionDef) -> bool:
        summoned = [*summoned_around(self._source, call)]
        home = self._source.index.function(call)
        if not summoned and self.holds(home):
            summoned = _given_names(home)
        given = [arg.value for arg in call.args]
        shown = [each for each in given if self._is_shown(each, summoned)]
        others = (each for each in given if each not in shown)
        is_shown = bool(shown) or (not given and _reads(function, summoned))
        return is_shown and not any(map(self._is_model, others))

    def _is_shown(self, node: cst.BaseExpression, summoned: list[str]) -> bool:
        """Tell whether it is a summoned model, a part of one, or what a loop goes through of its parts."""
        if _is_below(text_of(node), summoned):
            return True
        index = self._source.index
        bindings = index.bindings_of(node) if isinstance(node, cst.Name) else ()
        loops = (
            above
            for binding in bindings
            for above in [*index.ancestors(binding.node)][:_TARGET]
            if isinstance(above, (cst.For, cst.CompFor))
        )
        return any(
            _is_below(text_of(each), summoned)
            for loop in loops
            for kind in (cst.Name, cst.Attribute)
            for each in walk_for(loop.iter, kind)
        )

    def _is_model(self, node: cst.BaseExpression) -> bool:
        models = self._source.models
        return models.certainty(node) is not None or models.sharded_with(node) is not None


def summoned_around(source: Source, node: cst.CSTNode) -> Iterator[str]:
    """Yield the models whose parameters are whole where a node stands: all of them, not the root's alone."""
    for above in source.index.ancestors(node):
        if isinstance(above, cst.FunctionDef):
            return
        for item in above.items if isinstance(above, cst.With) else ():
            for call in walk_for(item.item, cst.Call):
                if (dotted(call.func) or "").endswith(_SUMMONS) and call.args:
                    first = next((a for a in call.args if _is_model(a)), call.args[0])
                    if not _is_of_roots(source, call, first.value):
                        yield text_of(first.value)


def _is_of_roots(source: Source, call: cst.Call, model: cst.BaseExpression) -> bool:
    """Tell whether a context shows the parameters of the outermost unit alone: ``recurse=False``.

    Of a model that Accelerate shards the rewritten one shows all.
    """
    if source.models.sharded_by(model) in {"accelerate", "transformers"}:
        return False
    return any(dotted(each) == "False" for each in given_by_name(call, "recurse"))


def _is_model(arg: cst.Arg) -> bool:
    return arg.keyword is not None and arg.keyword.value == "module"


def _is_below(text: str, summoned: list[str]) -> bool:
    return any(text == each or text.startswith((f"{each}.", f"{each}[")) for each in summoned)


def _given_names(function: cst.FunctionDef | None) -> list[str]:
    return [] if function is None else [each.name.value for each in parameters_of(function)]


def _reads(function: cst.FunctionDef, summoned: list[str]) -> bool:
    """Tell whether a function that is given nothing reads a summoned model itself: ``self.model``."""
    own = {*_given_names(function)} - {"self"}
    wanted = {each for each in summoned if each.partition(".")[0] not in own}
    kinds = (cst.Attribute, cst.Name)
    return any(text_of(each) in wanted for kind in kinds for each in walk_for(function.body, kind))
