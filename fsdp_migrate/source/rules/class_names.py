"""The classes of modules of a sharded model: FSDP2 gives each unit one of its own, ``FSDPBlock``.

That derives from the model's class, of which FSDP1's wrapper was none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.children_of_wrappers import was_unwrapped
from fsdp_migrate.source.parts_of_objects import given_to_method
from fsdp_migrate.source.python.asked_classes import is_of_no_models, is_of_plain_objects, is_other_wrapper
from fsdp_migrate.source.python.branches import calls_fsdp2
from fsdp_migrate.source.python.last_values import last_value, stands_for
from fsdp_migrate.source.python.no_models import is_no_model
from fsdp_migrate.source.python.nodes import dotted, last_name, targets_of, text_of, walk_for
from fsdp_migrate.source.python.object_fields import classes
from fsdp_migrate.source.python.trainer_models import CALLBACK, ON_INIT
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "class-names"
CODES = ("FM316",)

_OWN_CLASS = (
    "FSDP2 gives each unit a class of its own, a subclass that is called FSDP and the name of its class: "
    "take isinstance, or the name with removeprefix('FSDP')."
)
_INNER = (
    "FSDP1's wrapper was no `{}`, so that this was false of a sharded model. FSDP2 wraps nothing: where it "
    "is one, this is true now. See which branch is meant."
)
_NAME_IS_USED = (
    "FSDP2 gives each unit a class of its own, and its name is FSDP and the name of its class, where FSDP1's "
    "`.module` had the plain one: what is looked up or named by it is another. Take removeprefix('FSDP')."
)
_CLASS_IS_A_KEY = (
    "FSDP2 gives each unit a class of its own, a subclass of its class: nothing is found by it that is kept "
    "by the model's own class. Ask for its bases, `type(m).__mro__`."
)
_NAME_IS_SHOWN = (
    "stays: a name that is only shown, which is FSDP and the name of the model's class now, that of FSDP1's "
    "wrapper or of what it held before"
)
_ASKED = frozenset({"get", "pop", "setdefault"})
_SHOWS = re.compile(r"print|log|debug|info|warn|error|critical|exception|write")
_CLEANED = re.compile(r"['\"]\^?FSDP")
# What a sharded model is under both, or under neither.
_OF_BOTH = re.compile(
    r"^[a-z_]|Parallel|DDP|FSDP|Engine|Compiled|Optimized|Script|Thunder|Wrapper|Protocol|^(Module|Path|Tensor)$"
)
_PLAIN = ("builtins.", "collections.", "numpy.", "pathlib.", "types.", "typing.")
_OF_MODULES = frozenset({"children", "modules", "named_children", "named_modules"})
_OTHER_WRAPPERS = re.compile(r"Parallel|Engine\b|(?:Optimized|Script|Thunder)Module")


def find(source: Source) -> Iterator[Found]:
    """Find where the class of a sharded model's module, or its name, is compared: ``type(m) is Block``."""
    for test in source.index.by_kind.get(cst.Comparison, ()):
        if _asks_for_own_class(source, cst.ensure_type(test, cst.Comparison)):
            yield Found("FM316", test, _OWN_CLASS, "commented")
    yield from _used(source)
    for call in source.calls:
        if dotted(call.func) == "isinstance" and len(call.args) == 2 and _is_wrapped(source, call):
            names = _classes(source, call.args[1].value)
            if names:
                yield Found("FM316", call, _INNER.format(names[0]), "commented")


def _used(source: Source) -> Iterator[Found]:
    """Find where the name of such a class is used otherwise, or the class is a key: ``KINDS[type(m)]``."""
    for node in (*source.attributes, *source.calls):
        if _ends_in_name(node) and _is_class_of_a_module(source, node):
            ways = set(_ways(source, node))
            if "looked up" in ways or "given" in ways:
                yield Found("FM316", node, _NAME_IS_USED, "commented")
            elif "shown" in ways:
                yield Found("FM316", node, _NAME_IS_SHOWN, "kept")
        elif isinstance(node, (cst.Call, cst.Attribute)) and _is_class_of_a_module(source, node):
            is_name = isinstance(source.index.parents[node], cst.Attribute)
            if not is_name and "looked up" in set(_ways(source, node)):
                yield Found("FM316", node, _CLASS_IS_A_KEY, "commented")


def _ways(source: Source, node: cst.BaseExpression, depth: int = 0) -> Iterator[str]:
    """Yield what becomes of a class or its name: it is looked up, shown, compared or given to something."""
    below: cst.CSTNode = node
    for above in source.index.ancestors(node):
        if isinstance(above, cst.Call) and isinstance(below, cst.Arg):
            is_raised = isinstance(source.index.parents[above], cst.Raise)
            yield "shown" if is_raised else _way_of(above, below)
            return
        if isinstance(above, cst.Call) and any(_CLEANED.match(text_of(each.value)) for each in above.args):
            return
        if isinstance(above, cst.Index):
            yield "looked up"
            return
        if isinstance(above, cst.Comparison):
            yield "compared"
            return
        if isinstance(above, cst.Match):
            yield "looked up" if below is above.subject else ""
            return
        if isinstance(above, (cst.Assign, cst.AnnAssign)):
            yield from _ways_of_target(source, above, node, depth)
            return
        if isinstance(above, cst.BaseSmallStatement):
            yield "shown" if isinstance(above, (cst.Assert, cst.Raise)) else "given"
            return
        if isinstance(above, cst.BaseStatement):
            return
        below = above


def _way_of(call: cst.Call, arg: cst.Arg) -> str:
    """Return what a call does with a class's name that it is given."""
    name = call.func.attr.value if isinstance(call.func, cst.Attribute) else dotted(call.func) or ""
    if any(_CLEANED.match(text_of(each.value)) for each in call.args):
        return ""
    if isinstance(call.func, cst.Attribute) and name in _ASKED:
        return "looked up" if arg is call.args[0] else "given"
    if name in {"getattr", "hasattr"}:
        return "looked up" if arg is not call.args[0] else ""
    return "shown" if _SHOWS.search(name) else "given"


def _ways_of_target(
    source: Source, assign: cst.Assign | cst.AnnAssign, node: cst.BaseExpression, depth: int
) -> Iterator[str]:
    for target in targets_of(assign):
        if not isinstance(target, cst.Name):
            yield "given"
        elif assign.value is node and depth == 0:
            for reader in source.readers(target):
                yield from _ways(source, reader, depth + 1)


def _is_wrapped(source: Source, call: cst.Call) -> bool:
    """Tell whether a check is about a model that FSDP1 wrapped, and not about what was taken out of it."""
    model = call.args[0].value
    if not isinstance(model, (cst.Name, cst.Attribute)) or source.models.certainty(model) is None:
        return False
    if is_no_model(source.index, model):
        return False  # a list that a schedule is prepared in may have models too
    by = source.models.sharded_by(model)
    is_told = by in {"", "accelerate"} or _is_a_callbacks(source, model)
    if not is_told or was_unwrapped(source, model):
        return False
    if _is_inner(source, model) or source.models.is_wrapped_in_parts_alone(model):
        return False  # FSDP1's wrapper held it, or parts of it are wrapped: it was of its own class
    return not _is_required(source, call)


def _is_inner(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether FSDP1's wrapper held a model; of a parameter, whether every call gives what one held."""
    if source.models.is_inner(model) or not isinstance(model, cst.Name) or model not in source.index.scopes:
        return source.models.is_inner(model) or _is_inner_above(source, model)
    function = source.index.function(model)
    bindings = source.index.scopes[model].lookup(model.value)
    if function is None or [each.kind for each in bindings] != ["param"]:
        return False
    is_told = (source.index.path_of(function), model.value) in source.links.given_elsewhere
    given = [
        *stands_for(source.index, source.models.guards, model),
        *given_to_method(source, model),
    ]
    return not is_told and bool(given) and all(map(source.models.is_inner, given))


def _is_inner_above(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether it is what a class above this one wraps, and keeps beside the wrapper: ``self.model``."""
    models, text = source.models, text_of(model)
    for owner in _line_of(source, model) if text.startswith("self.") else ():
        key = (owner, text)
        if made := models.made.get(key) or models.inner.get(key):
            return {*made} <= {*models.inner.get(key, ())}
    return False


def _line_of(source: Source, node: cst.BaseExpression) -> list[cst.ClassDef]:
    """Return the class around a place, with those of this source that it is made from, the nearest first."""
    own = source.index.class_of(node)
    line = [own] if own is not None else []
    for owner in line:
        bases = (each for base in owner.bases for each in classes(source.index, base.value))
        line += [each for each in bases if each not in line]
    return line


def _is_a_callbacks(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether Hugging Face's Trainer hands a model to a callback, once it has sharded it.

    What the Trainer holds itself is a plain model in some of its methods.
    """
    function = source.index.function(model)
    name = function.name.value if function is not None else ""
    is_its = source.models.frameworks.trainers.kind_around(model) == CALLBACK
    return is_its and isinstance(model, cst.Name) and name.startswith("on_") and name != ON_INIT


def _is_required(source: Source, call: cst.Call) -> bool:
    """Tell whether a check only makes sure of a class: then the model was none of FSDP1's there."""
    for above in source.index.ancestors(call):
        if isinstance(above, cst.If):
            return any(walk_for(above.body, cst.Raise))
        if isinstance(above, (cst.Assert, cst.BaseStatement)):
            return isinstance(above, cst.Assert)
    return False


def _classes(source: Source, given: cst.BaseExpression) -> list[str]:
    """Return the classes of a check that a model may be of, and FSDP1's wrapper is none of."""
    asked = [each.value for each in given.elements] if isinstance(given, cst.Tuple) else [given]
    names = [last_name(each) for each in asked]
    if "Module" in names:
        return []
    known = [source.index.qualified(each) for each in asked]
    is_wrapper = is_other_wrapper(source.index, source.models.guards.wrappers)
    is_none = is_of_no_models(source.index)
    return [
        name
        for name, those, each in zip(names, known, asked, strict=True)
        if name
        and not _OF_BOTH.search(name)
        and not any(full.startswith(_PLAIN) for full in those)
        and not source.models.is_constructor(each)
        and source.links.subclasses.isdisjoint(those)
        and source.links.no_modules.isdisjoint({*those, text_of(each)})
        and not is_wrapper(each)
        and not is_none(each)
    ]


def _asks_for_own_class(source: Source, test: cst.Comparison) -> bool:
    """Tell whether the class of a sharded model's module is compared: ``type(m) is Block``."""
    # A part of the name, as in `"Norm" in type(m).__name__`, is in FSDP2's name too.
    others = (
        each.comparator
        for each in test.comparisons
        if not isinstance(each.operator, (cst.In, cst.NotIn))
        or not _ends_in_name(_value(source, each.comparator) or each.comparator)
    )
    sides = [test.left, *others]
    if any(_OTHER_WRAPPERS.search(text_of(each)) or each in source.references for each in sides):
        return False
    if _decides_on_fsdp2(source, test) or any(_are_plain(source, each) for each in sides):
        return False
    asked = (part for side in sides for part in (side, _value(source, side)) if part is not None)
    return any(_is_class_of_a_module(source, part) for part in asked)


def _are_plain(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether what a class is compared to is Python's own, or all are: ``list``, ``(str, dict)``."""
    if isinstance(node, (cst.List, cst.Set, cst.Tuple)):
        return bool(node.elements) and all(_are_plain(source, each.value) for each in node.elements)
    return is_of_plain_objects(source.index, node)


def _ends_in_name(node: cst.BaseExpression) -> bool:
    is_name = type(node) is cst.Attribute and node.attr.value in {"__name__", "__qualname__"}
    return is_name or _named_by_itself(node) is not None


def _named_by_itself(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the module that is asked for the name of its class: ``model._get_name()``."""
    func = node.func if type(node) is cst.Call and not node.args else None
    return func.value if type(func) is cst.Attribute and func.attr.value == "_get_name" else None


def _decides_on_fsdp2(source: Source, test: cst.Comparison) -> bool:
    """Tell whether a test chooses the modules that ``fully_shard`` is given, which are plain until then."""
    below: cst.CSTNode = test
    for above in source.index.ancestors(test):
        if isinstance(above, (cst.If, cst.IfExp)) and below is above.test:
            return calls_fsdp2(above.body)
        if isinstance(above, cst.BaseStatement):
            return False
        below = above
    return False


def _value(source: Source, node: cst.BaseExpression) -> cst.BaseExpression | None:
    return (
        last_value(source.index, node) if isinstance(node, cst.Name) and node in source.index.scopes else None
    )


def _is_class_of_a_module(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether an expression is the class, or its name, of a sharded model or of a module in one."""
    while isinstance(node, cst.Attribute) and _ends_in_name(node):
        node = node.value
    if (asked := _named_by_itself(node)) is not None:
        module = asked
    elif isinstance(node, cst.Call) and dotted(node.func) == "type" and len(node.args) == 1:
        module = node.args[0].value
    elif isinstance(node, cst.Attribute) and node.attr.value == "__class__":
        module = node.value
    else:
        return False
    return source.models.certainty(module) is not None or _is_of_a_model(source, module)


def _is_of_a_model(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether a name goes through the modules of a sharded model: ``for m in model.modules()``."""
    for above in source.index.ancestors(node):
        loops: list[cst.For | cst.CompFor] = [above] if isinstance(above, cst.For) else []
        if isinstance(above, (cst.ListComp, cst.SetComp, cst.GeneratorExp, cst.DictComp)):
            loops.append(above.for_in)
        for loop in loops:
            names = {name.value for name in walk_for(loop.target, cst.Name)}
            if text_of(node) in names and any(
                isinstance(call.func, cst.Attribute)
                and call.func.attr.value in _OF_MODULES
                and source.models.certainty(call.func.value) is not None
                for call in walk_for(loop.iter, cst.Call)
            ):
                return True
        if isinstance(above, cst.FunctionDef):
            return False
    return False
