"""``model.module`` was the wrapped model. FSDP2 wraps nothing: it is the model itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.asked_for_inner import is_required, leaves_out
from fsdp_migrate.source.children_of_wrappers import children_of_wrappers
from fsdp_migrate.source.framework_words import is_in_a_module, mixed
from fsdp_migrate.source.method_calls import (
    is_composers,
    is_tried_alone,
    is_wrapped_itself,
    may_clip_itself,
    sureness,
    was_asked_for,
)
from fsdp_migrate.source.own_forwards import calls_itself
from fsdp_migrate.source.python.gradient_modes import is_without_gradients
from fsdp_migrate.source.python.held import has_model
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, last_name, short, text_of, walk_for
from fsdp_migrate.source.set_layers import set_layers
from fsdp_migrate.source.uses import Found, Replace


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "module-attribute"
CODES = ("FM315", "FM333", "FM335", "FM420")

_IS_SET = (
    "FSDP2 wraps nothing, so `.{}` is the model itself and was taken out. What is set here is set on the "
    "model that is sharded, and on units themselves, which FSDP1's wrappers took: is that what is meant? A "
    "layer that is put in is not sharded: do that above the sharding."
)
_OF_NAMES = (
    "FSDP2 wraps nothing, so `.{}` is the model itself and was taken out. FSDP1's names held "
    "`_fsdp_wrapped_module.` here, for each unit inside: take it out where a file that has them as keys is "
    "read."
)
_ROUND = "FSDP2 wraps nothing, so `.{}` is the model itself, and this loop would not end: remove this step."
_FORWARD = (
    "FSDP2 wraps nothing, so `.module` is the model itself, and its forward would call itself: leave this "
    "out."
)
_CALLS_ITSELF = (
    "FSDP2 wraps nothing, so `.{}` is the model itself, whose forward this becomes: it would call itself, up "
    "to a RecursionError. Call the method of its class, type({}).forward({}, ...)."
)
_MAYBE = "where this is the sharded model, there is no `.module`: FSDP2 wraps nothing, take the model itself."
_SET = (
    "FSDP1's wrapper took this, and the model within kept its own: where its class reads self.{}, it "
    "reads what is set here now, and computes by it. If that is not meant, leave this line out."
)
_LAYER = (
    "FSDP1's wrapper took this, and ran the model within, which kept its own. Now the model itself takes it: "
    "where its forward reads that, it computes by this one, which is not sharded, and whose gradients are "
    "of one rank alone. Put it into the model before that is sharded, or leave this line out."
)
_NOT_ASKED = "stays: FSDP2 models have no such attribute, so the model itself is taken"
_LEFT_OUT = (
    "FSDP1's wrapper had this attribute, and an FSDP2 model has none: what is done with `.module` here is "
    "done no more for the sharded model, and what else stands here is done in its place. Ask "
    "isinstance(model, FSDPModule) as well, and take the model itself."
)
_REQUIRED = (
    "FSDP1's wrapper had this attribute, and an FSDP2 model has none: this raises now. Ask "
    "isinstance(model, FSDPModule) as well, or take it out."
)
_ASKED = "an FSDP2 model has no such attribute: ask isinstance(model, FSDPModule) instead."
_ASKED_OF_BOTH = (
    "an FSDP2 model has no such attribute, and another model that comes here may have it: ask "
    "isinstance(model, FSDPModule) or this."
)
_NOW_THERE = (
    "FSDP1's wrapper had no such attribute, and FSDP2's model has it: what is done where it is there is done "
    "now. See that memory and numbers stay as you want them, or take the question out."
)
_SAMPLED = "stays: FSDP2 models have no such attribute, and nothing is synchronised without gradients"
_PUTS_IN = frozenset({"add_module", "register_module", "set_submodule", "__setattr__"})
_NAMED = frozenset({"named_buffers", "named_modules", "named_parameters"})
_CLEANED = re.compile(r"_fsdp_wrapped_module|clean_tensor_name")
_NAMES = frozenset({"module", "no_sync", "clip_grad_norm_", "_fsdp_wrapped_module", "_handle", "_handles"})
_CAUGHT_BEFORE = (
    "FSDP1's wrapper had no such attribute, so that what catches this ran; FSDP2's model has it, and this "
    "runs now. See that memory and numbers stay as you want them, or take the attempt out."
)
_CATCH = frozenset({"AttributeError", "BaseException", "Exception"})


def find(source: Source) -> Iterator[Found]:
    """Find ``.module`` of FSDP1 models, and questions for attributes that FSDP2 models lack."""
    for node in source.attributes:
        is_module = node.attr.value == "module" and not _is_target(source, node)
        if is_module or is_taken_out(source, node):
            yield from _of_attribute(source, node)
    for call in source.calls:
        if dotted(call.func) in {"hasattr", "getattr"} and len(call.args) >= 2:
            yield from _of_question(source, call)
    yield from _of_attempts(source)
    said = list(_set_on_the_wrapper(source))
    yield from said
    yield from _layers_of_the_wrapper(source, {each.node for each in said})
    yield from children_of_wrappers(source)


def is_taken_out(source: Source, node: cst.Attribute) -> bool:
    """Tell whether ``_fsdp_wrapped_module`` of a model that is known becomes the model itself."""
    if node.attr.value != "_fsdp_wrapped_module" or _is_target(source, node):
        return False
    is_left = (
        was_asked_for(source, node) or is_tried_alone(source, node) or is_in_a_module(source, node.value)
    )
    return not is_left and sureness(source, node.value) == "sure"


def _layers_of_the_wrapper(source: Source, said: set[cst.CSTNode]) -> Iterator[Found]:
    """Yield where a sharded model itself, and no part of it, is given a layer."""
    for node, model in set_layers(source):
        is_inner = isinstance(model, cst.Attribute) and model.attr.value in catalog.WRAPPED
        if node in said or is_inner or dotted(model) == "self" or _is_made_above(source, node, model):
            continue
        sure = sureness(source, model)
        if sure == "sure":
            yield Found("FM315", node, _LAYER, "commented")
        elif sure == "mixed":
            yield Found("FM315", node, f"{mixed(source, model)}{_LAYER}", "commented")


def _is_made_above(source: Source, node: cst.CSTNode, model: cst.BaseExpression) -> bool:
    """Tell whether the same function just made a model that is not sharded yet: ``self.net = Net()``."""
    order, home = source.index.order, source.index.function(node)
    made = [
        each.value
        for each in source.assignments
        if source.index.function(each) is home
        if order[each] < order[node] and any(text_of(to.target) == text_of(model) for to in each.targets)
    ]
    return bool(made) and isinstance(made[-1], cst.Call) and not has_model(source.models.kinds(made[-1]))


def _set_on_the_wrapper(source: Source) -> Iterator[Found]:
    """Yield where an attribute of a sharded model is set that a module class here sets and reads itself."""
    own = _own_switches(source)
    for target in walk_for(source.module, cst.AssignTarget) if own else ():
        node = target.target
        is_one = isinstance(node, cst.Attribute) and node.attr.value in own and dotted(node.value) != "self"
        if isinstance(node, cst.Attribute) and _is_within(source, node.value):
            continue
        if isinstance(node, cst.Attribute) and is_one and _is_the_wrapper(source, node.value):
            yield Found("FM335", node, _SET.format(node.attr.value), "commented")


def _is_the_wrapper(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether it is FSDP1's wrapper for certain, whether parts of what that holds are wrapped or not."""
    if sureness(source, model) == "sure":
        return True
    return source.models.key_of(model) in source.models.wholes and is_wrapped_itself(
        source, model, always=True
    )


def _is_within(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether it is what the wrapper held: ``model.module``, by a name too."""
    if isinstance(model, cst.Attribute) and model.attr.value in catalog.WRAPPED:
        return True
    held = last_value(source.index, model) if isinstance(model, (cst.Attribute, cst.Name)) else None
    return isinstance(held, cst.Attribute) and held.attr.value in catalog.WRAPPED


def _own_switches(source: Source) -> set[str]:
    """Return what constructors of modules in this source set, no call's result, and their methods read."""
    found: set[str] = set()
    for owner in source.index.by_kind.get(cst.ClassDef, ()):
        assert isinstance(owner, cst.ClassDef)
        if not any(last_name(base.value) == "Module" for base in owner.bases):
            continue
        methods = [each for each in owner.body.body if isinstance(each, cst.FunctionDef)]
        made = [each for each in methods if each.name.value == "__init__"]
        set_here = {
            text_of(each.target)
            for method in made
            for assign in walk_for(method, cst.Assign)
            if not isinstance(assign.value, cst.Call)
            for each in assign.targets
        }
        read = {
            text_of(each)
            for method in methods
            if method not in made
            for each in walk_for(method, cst.Attribute)
            if not isinstance(source.index.parents[each], (cst.AssignTarget, cst.AugAssign))
        }
        found |= {each.removeprefix("self.") for each in set_here & read if each.startswith("self.")}
    return {each for each in found if "." not in each}


def _of_attribute(source: Source, node: cst.Attribute) -> Iterator[Found]:
    sure = sureness(source, node.value)
    if is_in_a_module(source, node.value):
        return
    if was_asked_for(source, node) or is_tried_alone(source, node):
        if sure in {"sure", "mixed"}:
            yield Found("FM315", node, "stays: it is asked for first, and not there", "kept")
    elif sure == "sure" and _goes_round(source, node):
        yield Found("FM335", node, _ROUND.format(node.attr.value), "commented")
    elif sure == "sure" and _becomes_a_forward(source, node):
        yield Found("FM335", node, _FORWARD, "commented")
    elif sure == "sure" and calls_itself(source, node):
        model = text_of(node.value)
        yield Found("FM335", node, _CALLS_ITSELF.format(node.attr.value, model, model), "commented")
    elif sure == "sure":
        edit = Replace(node, lambda updated: updated.value)
        # What is read or called is the same as before: there is nothing to settle.
        note = _OF_NAMES if _keeps_names(source, node) else _IS_SET if _is_set(source, node) else ""
        yield Found("FM315", node, short(node.value), "rewritten", (edit,), note=note.format(node.attr.value))
    elif sure == "mixed" and not is_composers(source, node.value):
        said = f"{mixed(source, node.value)}there is no `.module`."
        yield from () if source.links.keeps_module else (Found("FM333", node, said, "commented"),)
    elif sure != "no" and (source.models.is_asked(node.value) or source.models.is_guarded(node.value)):
        yield Found("FM333", node, _MAYBE, "commented")


def _is_set(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether something is set below a node, or below the name it is bound to: ``m.module.a = b``."""
    parents = source.index.parents
    whole = node
    while isinstance(parents[whole], (cst.Attribute, cst.Subscript)) and not _is_index(parents[whole], whole):
        whole = parents[whole]
    above = parents[whole]
    if isinstance(above, cst.AugAssign):
        if above.target is whole and whole is not node:
            return True
    elif isinstance(above, cst.AssignTarget):
        return whole is not node
    if isinstance(above, cst.Call) and above.func is whole:
        return isinstance(whole, cst.Attribute) and whole.attr.value in _PUTS_IN
    if isinstance(above, cst.Arg):
        call = parents[above]
        is_first = isinstance(call, cst.Call) and call.args[0] is above
        return is_first and isinstance(call, cst.Call) and dotted(call.func) == "setattr"
    if whole is node and isinstance(above, cst.Assign) and len(above.targets) == 1:
        target = above.targets[0].target
        readers = source.readers(target) if isinstance(target, cst.Name) else ()
        return any(each is not target and _is_set(source, each) for each in readers)
    return False


def _is_index(above: cst.CSTNode, node: cst.CSTNode) -> bool:
    return isinstance(above, cst.Subscript) and above.value is not node


def _keeps_names(source: Source, node: cst.Attribute) -> bool:
    """Tell whether the names of a model's parts become keys: ``for n, p in m.module.named_parameters():``."""
    asked = source.index.parents[node]
    call = source.index.parents[asked]
    if (
        not isinstance(asked, cst.Attribute)
        or asked.attr.value not in _NAMED
        or not isinstance(call, cst.Call)
    ):
        return False
    function = source.index.function(node)
    if _CLEANED.search(text_of(function) if function is not None else ""):
        return False
    above = source.index.parents[source.index.parents[call]]
    if isinstance(above, cst.Call) and dotted(above.func) in {"OrderedDict", "dict"}:
        return True
    for whole in source.index.ancestors(call):
        if isinstance(whole, (cst.For, cst.CompFor)):
            target = whole.target
            names = target.elements if isinstance(target, cst.Tuple) else ()
            first = names[0].value if names else None
            is_in_iter = any(each is call for each in walk_for(whole.iter, cst.Call))
            loop = source.index.parents[whole] if isinstance(whole, cst.CompFor) else whole
            return isinstance(first, cst.Name) and is_in_iter and _is_key(loop, first.value)
        if isinstance(whole, cst.BaseStatement):
            return False
    return False


def _is_key(loop: cst.CSTNode, name: str) -> bool:
    """Tell whether a name is a key in a loop, or in the dict that a comprehension makes."""
    if isinstance(loop, cst.DictComp):
        return text_of(loop.key) == name
    items = (each.slice for each in walk_for(loop, cst.Subscript))
    return any(text_of(each[0]) == name for each in items)


def _goes_round(source: Source, node: cst.Attribute) -> bool:
    """Tell whether a model is unwrapped step by step: in a loop, or by a function that calls itself."""
    function = source.index.function(node)
    below: cst.CSTNode = node
    for above in source.index.ancestors(node):
        if isinstance(above, cst.While) and below is above.body:
            asked = (*walk_for(above.test, cst.Name), *walk_for(above.test, cst.Attribute))
            return any(text_of(part) == text_of(node.value) for part in asked)
        if isinstance(above, cst.Call) and isinstance(below, cst.Arg) and below.value is node:
            # `torch.save(model.module)` in a function `save` is no call of itself.
            called = dotted(above.func) if not source.index.qualified(above.func) else None
            if called and function is not None and called.split(".")[-1] == function.name.value:
                return True
        below = above
    return False


def _becomes_a_forward(source: Source, node: cst.Attribute) -> bool:
    """Tell whether a model's forward is set to that of what it wraps: ``m.forward = m.module.__call__``."""
    asked = source.index.parents[node]
    if not isinstance(asked, cst.Attribute) or asked.attr.value not in {"__call__", "forward"}:
        return False
    model, above = text_of(node.value), source.index.parents[asked]
    if isinstance(above, cst.Assign):
        return any(
            text_of(each.target) in {f"{model}.forward", f"{model}.__call__"} for each in above.targets
        )
    call = source.index.parents.get(above) if isinstance(above, cst.Arg) else None
    if not isinstance(call, cst.Call) or dotted(call.func) != "setattr" or len(call.args) != 3:
        return False
    return text_of(call.args[0].value) == model and "forward" in text_of(call.args[1].value)


def _is_target(source: Source, node: cst.Attribute) -> bool:
    return isinstance(source.index.parents[node], (cst.AssignTarget, cst.Del))


def _of_question(source: Source, call: cst.Call) -> Iterator[Found]:
    name = call.args[1].value
    word = name.evaluated_value if isinstance(name, cst.SimpleString) else ""
    is_new = word in catalog.OF_FSDP2_ALONE
    if word not in _NAMES and not is_new:
        return
    asked = call.args[0].value
    if source.models.certainty(asked) is None or is_in_a_module(source, asked):
        return
    if is_new:
        yield Found("FM420", call, _NOW_THERE, "commented")
    elif word in catalog.WRAPPED and is_required(source, call):
        yield Found("FM315", call, _REQUIRED, "commented")
    elif word in catalog.WRAPPED and leaves_out(source, call, f"{text_of(asked)}.{word}"):
        yield Found("FM315", call, _LEFT_OUT, "commented")
    elif word in {"module", "_fsdp_wrapped_module", "_handle", "_handles"}:
        yield Found("FM315", call, _NOT_ASKED, "kept")
    elif word == "no_sync" and len(call.args) == 3 and _is_sampling(source, call):
        yield Found("FM315", call, _SAMPLED, "kept")
    else:
        # Without `no_sync` gradients are the same, and only come more often.
        code = "FM315" if word == "no_sync" else "FM335"
        is_both = word == "clip_grad_norm_" and may_clip_itself(source, asked)
        yield Found(code, call, _ASKED_OF_BOTH if is_both else _ASKED, "commented")


def _of_attempts(source: Source) -> Iterator[Found]:
    """Find what FSDP2's models alone have, where its absence is caught, or asked for in a list of names."""
    for node in source.attributes:
        if node.attr.value in catalog.OF_FSDP2_ALONE and _is_caught(source, node):
            yield from _of_new(source, node, node.value, _CAUGHT_BEFORE)
    for each in source.index.by_kind.get(cst.Comparison, ()):
        test = cst.ensure_type(each, cst.Comparison)
        listed, word = test.comparisons[0].comparator, test.left
        is_new = isinstance(word, cst.SimpleString) and word.evaluated_value in catalog.OF_FSDP2_ALONE
        is_asked = isinstance(listed, cst.Call) and dotted(listed.func) == "dir" and len(listed.args) == 1
        if is_new and isinstance(listed, cst.Call) and is_asked:
            yield from _of_new(source, test, listed.args[0].value, _NOW_THERE)


def _of_new(source: Source, node: cst.CSTNode, model: cst.BaseExpression, said: str) -> Iterator[Found]:
    if source.models.certainty(model) is not None and not is_in_a_module(source, model):
        yield Found("FM420", node, said, "commented")


def _is_caught(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether an attribute's absence is caught: ``except AttributeError``, ``suppress(...)``."""
    below = node
    for above in source.index.ancestors(node):
        if isinstance(above, (cst.FunctionDef, cst.Lambda)):
            return False
        if isinstance(above, cst.Try) and below is above.body:
            every = (_classes(each.type) for each in above.handlers)
            if any(classes & _CATCH for classes in every):
                return True
        if isinstance(above, cst.With) and below is above.body:
            calls = (item.item for item in above.items if isinstance(item.item, cst.Call))
            if any(last_name(call.func) == "suppress" and _given(call) & _CATCH for call in calls):
                return True
        below = above
    return False


def _classes(caught: cst.BaseExpression | None) -> set[str]:
    """Return the exceptions that a handler is for; of one for all, that all derive from."""
    if caught is None:
        return {"BaseException"}
    return {each.value for each in walk_for(caught, cst.Name)}


def _given(call: cst.Call) -> set[str]:
    return {text_of(arg.value) for arg in call.args}


def _is_sampling(source: Source, call: cst.Call) -> bool:
    """Tell whether ``getattr(model, "no_sync", default)`` serves code without gradients alone."""
    if is_without_gradients(source.index, call):
        return True
    above = source.index.parents[call]
    target = above.targets[0].target if isinstance(above, cst.Assign) and len(above.targets) == 1 else None
    if not isinstance(target, cst.Name):
        return False
    readers = [node for node in source.readers(target) if node is not target]
    return bool(readers) and all(is_without_gradients(source.index, node) for node in readers)
