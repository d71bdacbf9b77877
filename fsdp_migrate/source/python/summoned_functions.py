"""Functions that are called only where the models that they are given show their whole parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


_SUMMONS = "summon_full_params"


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
        if any(scope == path for scope, _ in self._source.links.is_given):
            return False  # other files call it as well
        calls = self._calls(function)
        return bool(calls) and all(map(self._gives_summoned, calls))

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

    def _gives_summoned(self, call: cst.Call) -> bool:
        summoned = list(self._summoned_around(call))
        models = self._source.models
        given = [arg.value for arg in call.args]
        shown = [each for each in given if _is_below(text_of(each), summoned)]
        others = (each for each in given if each not in shown)
        return bool(shown) and not any(
            models.certainty(each) is not None or models.sharded_with(each) is not None for each in others
        )

    def _summoned_around(self, call: cst.Call) -> Iterator[str]:
        """Yield the models whose parameters are whole where a call stands."""
        for above in self._source.index.ancestors(call):
            if isinstance(above, cst.FunctionDef):
                return
            for item in above.items if isinstance(above, cst.With) else ():
                for each in walk_for(item.item, cst.Call):
                    if (dotted(each.func) or "").endswith(_SUMMONS) and each.args:
                        first = next((a for a in each.args if _is_model(a)), each.args[0])
                        yield text_of(first.value)


def _is_model(arg: cst.Arg) -> bool:
    return arg.keyword is not None and arg.keyword.value == "module"


def _is_below(text: str, summoned: list[str]) -> bool:
    return any(text == each or text.startswith((f"{each}.", f"{each}[")) for each in summoned)
