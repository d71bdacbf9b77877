"""Names that are bound to another model below: by DDP's call, or by what makes a plain one again."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.last_values import always_runs, last_value, was_run
from fsdp_migrate.source.python.loops import of_one_object
from fsdp_migrate.source.python.nodes import dotted, last_name, text_of, walk_for, word_of
from fsdp_migrate.source.python.run_order import runs_after, runs_at, runs_in_other_branches
from fsdp_migrate.source.python.wrappers import DDP, SAME_MODEL, WRAPPERS


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from fsdp_migrate.source.python.scopes import Binding, Index


# What functions are called that may wrap a model themselves, and what they may be told.
_MAY_WRAP = re.compile(r"accelerat|ddp|distribut|fsdp|parallel|prepare|setup|shard|wrap", re.IGNORECASE)
_PUTS = ("add_module", "register_module", "set_submodule")
_OF_SETATTR, _OF_PUT = 3, 2
"""How many arguments they take."""
# What gives back an object that was pickled.
_READS_PICKLES = frozenset(
    {"cloudpickle.load", "dill.load", "joblib.load", "pickle.load", "pickle.loads", "torch.load"}
)


def is_in_value(index: Index, target: cst.CSTNode, node: cst.CSTNode) -> bool:
    """Tell whether a place is in the value that an assignment gives: ``self.net = wrap(self.net)``."""
    above: cst.CSTNode | None = index.parents.get(target)
    while isinstance(above, (cst.BaseElement, cst.Tuple, cst.List)):  # `net, loader = prepare(net, loader)`
        above = index.parents.get(above)
    assign = index.parents.get(above) if above is not None else None
    return isinstance(assign, cst.Assign) and assign.value in {node, *index.ancestors(node)}


def stands_above(index: Index, made: list[cst.CSTNode], node: cst.CSTNode) -> bool:
    """Tell whether a place runs before all statements that make a model, or without them."""
    made = [
        each
        for each in made
        if not index.excludes(each, node) and not runs_in_other_branches(index, each, node)
    ]
    function, place = index.function(node), index.order[node]
    for statement in made:
        run = runs_at(index, statement, function)
        if run is None and runs_after(index, statement, function):
            continue
        is_above = run is not None and index.order[run] < place
        if run is None or (is_above and not is_in_value(index, run, node)):
            return False
        # What stands above the wrapping in the same loop comes after it in the next round.
        loops = {a for a in index.ancestors(run) if isinstance(a, (cst.For, cst.While))}
        if any(above in loops for above in of_one_object(index, node)):
            return False
    return True


def was_just_wrapped_by_ddp(index: Index, node: cst.BaseExpression) -> bool:
    """Tell whether the last assignment to a name, whatever it was before, made it DDP's."""
    if not isinstance(node, (cst.Name, cst.Attribute)) or node not in index.scopes:
        return False
    value = last_value(index, node)
    return isinstance(value, cst.Call) and bool(index.qualified(value.func) & DDP)


def is_bound_anew(
    index: Index, node: cst.BaseExpression, made: Sequence[cst.CSTNode], models: Collection[str]
) -> bool:
    """Tell whether a name was bound to a plain model after it was a sharded one, and is wrapped no more.

    Args:
        index: The source.
        node: The name, where it is used.
        made: What makes it a sharded model, or shows it to be one.
        models: What is called a sharded model anywhere in the source.
    """
    if not isinstance(node, cst.Name) or node not in index.scopes:
        return False
    function, place = index.function(node), index.order[node]
    bindings = [b for b in index.scopes[node].lookup(node.value) if index.function(b.node) is function]
    above = (b for b in bindings if index.order[b.node] < place and not index.excludes(b.node, node))
    before = sorted(above, key=lambda each: index.order[each.node])
    while before and _gives_itself(before[-1], node, made):
        before.pop()
    last = before[-1] if before else None
    if last is None or last.node in made:
        return False
    if not always_runs(index, last, node):
        return _are_all_undone(index, node, before, made, models)
    if not _gives_plain(index, node, last, made, models):
        return False
    below = [each for each in made if index.order[each] > index.order[last.node]]
    return not any(index.order[each] < place or _comes_round(index, each, node, last.node) for each in below)


def _gives_plain(
    index: Index, node: cst.Name, last: Binding, made: Sequence[cst.CSTNode], models: Collection[str]
) -> bool:
    """Tell whether a binding gives a name, which was a sharded model's, a plain one."""
    value = last.value
    if not isinstance(value, cst.Call) or _may_wrap(value):
        return False
    names = {text_of(each) for kind in (cst.Name, cst.Attribute) for each in walk_for(value, kind)}
    if node.value in names or not names.isdisjoint(models):
        return False
    return (
        _makes_plain(index, value) or _was_deleted(index, last, node) or _was_plain(index, node, last, made)
    )


def _are_all_undone(
    index: Index,
    node: cst.Name,
    before: Sequence[Binding],
    made: Sequence[cst.CSTNode],
    models: Collection[str],
) -> bool:
    """Tell whether what shards a model is followed, in its own block, by what gives the name a plain one.

    ``reference = FSDP(model)``, ``del model``, ``model = make()`` in one branch; the other shards nothing.
    """
    function, order = index.function(node), index.order
    # What a function is given may be sharded already.
    every = index.scopes[node].lookup(node.value)
    if any(each.kind == "param" or index.function(each.node) is not function for each in every):
        return False
    loops = {each for each in index.ancestors(node) if isinstance(each, (cst.For, cst.While))}
    for one in made:
        if index.function(one) is not function or not loops.isdisjoint(index.ancestors(one)):
            return False
        if order[one] > order[node] or index.excludes(one, node):
            continue
        since = [each for each in before if order[each.node] > order[one]]
        last = next((each for each in reversed(since) if not index.excludes(each.node, one)), None)
        if last is None or last.node in made or not was_run(index, last.node, one):
            return False
        if not _gives_plain(index, node, last, made, models):
            return False
    return bool(made)


def is_made_anew(
    index: Index, node: cst.BaseExpression, made: Sequence[cst.CSTNode], inner: Sequence[cst.CSTNode]
) -> bool:
    """Tell whether a name, or attribute of ``self``, was just given a new object that is not sharded yet.

    Args:
        index: The source.
        node: Where it is used.
        made: The targets that get a sharded model by that name.
        inner: Where what it holds is given to what shards it.
    """
    if inner and {*made} <= {*inner}:
        return was_just_made(index, node, inner)
    if not made or not isinstance(node, cst.Attribute) or _made_last(index, node) in {None, *made}:
        return False
    return was_just_made(index, node, [*made, *inner])


def was_just_made(index: Index, node: cst.BaseExpression, wrapped: Sequence[cst.CSTNode]) -> bool:
    """Tell whether a name was given a new object above, in each round of loops too, that is wrapped below.

    ``net`` between ``net = make()`` and ``model = FSDP(net)`` is the plain module.

    Args:
        index: The source.
        node: The name, attribute of ``self``, or item, where it is used.
        wrapped: Where what it holds is given to what shards it.
    """
    last = _made_last(index, node)
    if last is None or (isinstance(node, cst.Name) and any(_is_apart(index, each, node) for each in wrapped)):
        return False
    place, start, around = index.order[node], index.order[last], set(index.ancestors(last))
    loops = {a for a in index.ancestors(node) if isinstance(a, (cst.For, cst.While)) and a not in around}
    here = [each for each in wrapped if not _is_apart(index, each, node)]
    if len(here) < len(wrapped):  # other methods of the object wrap it: not if none is called meanwhile
        here += _calls_with_self(index, node)
    return not any(
        start < index.order[each] < place or not loops.isdisjoint(index.ancestors(each)) for each in here
    )


def _is_apart(index: Index, one: cst.CSTNode, other: cst.CSTNode) -> bool:
    return index.function(one) is not index.function(other)


def _made_last(index: Index, node: cst.BaseExpression) -> cst.CSTNode | None:
    """Return what binds a name last above a place, and always, to what a call makes of other things."""
    if isinstance(node, cst.Name) and node in index.scopes:
        bound = [(each.node, each.value) for each in index.bindings_of(node) if each.index is None]
    elif isinstance(node, cst.Attribute) and text_of(node).startswith("self."):
        text = text_of(node)
        bound = [(each, _value_of(index, each)) for each in index.places_set(text)]
    elif isinstance(node, cst.Subscript):
        bound = [(each, _value_of(index, each)) for each in _items_set(index).get(text_of(node), ())]
        bound += [(each, None) for each in _bound_by(index, node)]  # another item, or another dict, since
    else:
        return None
    above = [
        (target, value)
        for target, value in bound
        if not _is_apart(index, target, node)
        and index.order[target] < index.order[node]
        and not index.excludes(target, node)
    ]
    target, value = max(above, key=lambda each: index.order[each[0]], default=(None, None))
    if target is None or not isinstance(value, cst.Call) or not was_run(index, target, node):
        return None
    parts = (each for kind in (cst.Name, cst.Attribute) for each in walk_for(value, kind))
    is_of_itself = any(text_of(each) == text_of(node) for each in parts)
    return None if is_of_itself or _may_wrap(value) else target


@functools.lru_cache(maxsize=8)
def _items_set(index: Index) -> dict[str, list[cst.AssignTarget]]:
    """Return where items are set, by their texts: ``models["a"] = Net()``."""
    found: dict[str, list[cst.AssignTarget]] = {}
    for node in index.by_kind.get(cst.AssignTarget, ()):
        target = cst.ensure_type(node, cst.AssignTarget)
        if isinstance(target.target, cst.Subscript):
            found.setdefault(text_of(target.target), []).append(target)
    return found


def _bound_by(index: Index, node: cst.Subscript) -> Iterator[cst.CSTNode]:
    """Yield what binds the names of an item, ``models`` and ``name`` of ``models[name]``, in its function."""
    yield from index.places_set(text_of(node.value))
    for name in walk_for(node, cst.Name):
        for each in index.scopes[name].lookup(name.value) if name in index.scopes else ():
            if each.kind != "param":
                yield each.node


def _value_of(index: Index, target: cst.AssignTarget) -> cst.BaseExpression | None:
    assign = index.parents[target]
    return assign.value if isinstance(assign, cst.Assign) else None


def _calls_with_self(index: Index, node: cst.BaseExpression) -> list[cst.CSTNode]:
    """Return the calls of a function that may run methods of its object, those on the attribute left out."""
    own, found = text_of(node), list[cst.CSTNode]()
    for each in index.by_kind.get(cst.Call, ()):
        call = cst.ensure_type(each, cst.Call)
        func = text_of(call.func)
        is_own = func == own or func.startswith(f"{own}.")
        is_given = any(text_of(arg.value) == "self" for arg in call.args)
        if (func.startswith("self.") and not is_own) or is_given:
            found += [] if _is_apart(index, call, node) else [call]
    return found


def _gives_itself(binding: Binding, node: cst.Name, made: Sequence[cst.CSTNode]) -> bool:
    """Tell whether an assignment leaves a name its model, whatever that is: ``model = model.to(device)``."""
    func = binding.value.func if isinstance(binding.value, cst.Call) else None
    if not isinstance(func, cst.Attribute) or binding.index is not None or binding.node in made:
        return False
    return func.attr.value in SAME_MODEL and text_of(func.value) == node.value


def is_wrapped_between(index: Index, node: cst.BaseExpression, shows: cst.Call) -> bool:
    """Tell whether a name was wrapped, by whatever function, below a place and above what shows it sharded.

    ``model.load_state_dict(state)`` above ``model = prepare_model(model)`` is about the plain module.
    """
    if not isinstance(node, cst.Name) or node not in index.scopes:
        return False
    function, order = index.function(node), index.order
    if index.function(shows) is not function:
        return False
    for each in index.scopes[node].lookup(node.value):
        value = each.value
        if not isinstance(value, cst.Call) or not order[node] < order[each.node] < order[shows]:
            continue
        is_given = any(text_of(arg.value) == node.value for arg in value.args)
        if is_given and _MAY_WRAP.search(text_of(value.func)) and index.function(each.node) is function:
            loops = {a for a in index.ancestors(each.node) if isinstance(a, (cst.For, cst.While))}
            return loops.isdisjoint(index.ancestors(node))
    return False


def _may_wrap(call: cst.Call) -> bool:
    """Tell whether a call may wrap a model, by what it is called and told: ``distributed=False`` says no."""
    told = (arg for arg in call.args if arg.keyword is None or text_of(arg.value) not in {"False", "None"})
    return any(_MAY_WRAP.search(text_of(each)) for each in (call.func, *told))


def _comes_round(index: Index, wrapping: cst.CSTNode, node: cst.CSTNode, binding: cst.CSTNode) -> bool:
    """Tell whether a wrapping below a place comes before it in the next round of a loop."""
    if index.function(wrapping) is not index.function(node):
        return True
    loops = {a for a in index.ancestors(wrapping) if isinstance(a, (cst.For, cst.While))}
    outside = loops - set(index.ancestors(binding))
    return any(above in outside for above in index.ancestors(node))


def _makes_plain(index: Index, call: cst.Call) -> bool:
    """Tell whether a call makes a model of a class, ``Net(...)``, or reads one that was pickled whole.

    Neither FSDP1's models nor FSDP2's can be pickled, so that what was is plain.
    """
    while isinstance(call.func, cst.Attribute) and call.func.attr.value in SAME_MODEL:
        if not isinstance(call.func.value, cst.Call):
            return False
        call = call.func.value  # `torch.load(path).to(device)`
    if not index.qualified(call.func).isdisjoint(_READS_PICKLES):
        return True
    name = last_name(call.func)
    return name == "from_pretrained" or (name[:1].isupper() and WRAPPERS.search(name) is None)


def are_all_bound(index: Index, node: cst.BaseExpression, made: Collection[cst.CSTNode]) -> bool:
    """Tell whether nothing but some targets can make a name a sharded model: what else binds it is plain.

    As ``model = net.to(device)`` beside ``model = FSDP(net)`` is, or ``model = Net()`` above it.
    """
    bindings = index.bindings_of(node) if isinstance(node, cst.Name) else []
    given = {text_of(arg.value) for each in bindings if each.node in made for arg in _arguments(each.value)}
    others = [each.value for each in bindings if each.node not in made]
    return bool(bindings) and all(value is not None and _is_one_of(index, value, given) for value in others)


def _arguments(value: cst.BaseExpression | None) -> Sequence[cst.Arg]:
    return value.args if isinstance(value, cst.Call) else ()


def _is_one_of(index: Index, value: cst.BaseExpression, given: Collection[str]) -> bool:
    """Tell whether a value is a model that the wrapper is given elsewhere, or a new one of a class."""
    if isinstance(value, cst.Call) and _makes_plain(index, value):
        return True
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute):
        if value.func.attr.value not in SAME_MODEL:
            return False
        value = value.func.value
    return text_of(value) in given


def _was_deleted(index: Index, last: Binding, node: cst.Name) -> bool:
    """Tell whether ``del model`` stands above the binding."""
    for each in index.by_kind.get(cst.Del, ()):
        is_above = index.order[each] < index.order[last.node]
        if is_above and index.function(each) is index.function(node):
            names = (name.value for name in walk_for(cst.ensure_type(each, cst.Del).target, cst.Name))
            if node.value in names:
                return True
    return False


def _was_plain(index: Index, node: cst.Name, last: Binding, made: Sequence[cst.CSTNode]) -> bool:
    """Tell whether the same function gave what was wrapped further up: ``m = load(); m = FSDP(m)``."""
    assert isinstance(last.value, cst.Call)
    called = text_of(last.value.func)
    for each in index.scopes[node].lookup(node.value):
        if index.function(each.node) is not index.function(node):
            continue
        is_same = isinstance(each.value, cst.Call) and text_of(each.value.func) == called
        if is_same and each.node not in made and index.order[each.node] < index.order[last.node]:
            return any(index.order[wrapping] > index.order[each.node] for wrapping in made)
    return False


def was_put_there(index: Index, node: cst.Attribute, made: Sequence[cst.CSTNode]) -> bool:
    """Tell whether a part was put onto a model after the model was made: ``model.head = nn.Linear(...)``.

    Args:
        index: The source.
        node: The part.
        made: The targets of the assignments that make the model.
    """
    function, order = index.function(node), index.order
    above = [order[each] for each in made if index.function(each) is function and order[each] < order[node]]
    for place, put in _puts(index, node):
        if index.function(place) is not function or index.excludes(place, node):
            continue
        is_above = max(above, default=-1) < order[place] < order[node]
        if not is_above or index.statement(place) is index.statement(node):
            continue
        value = last_value(index, put) if isinstance(put, cst.Name) else put
        if not isinstance(value, cst.Call) or (not above and not _is_at_once(index, place, node)):
            continue
        # What is made of the part itself may be that part: `model.head = compile(model.head)`.
        is_given = any(text_of(arg.value) == text_of(node) for arg in value.args)
        return not is_given and not _MAY_WRAP.search(dotted(value.func) or "")
    return False


def _puts(index: Index, node: cst.Attribute) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression]]:
    """Yield where a part is set, by its own text or with FSDP1's ``.module`` in it, and what is put there."""
    words = [each for each in text_of(node).split(".") if each != "module"]
    texts = {".".join(words), text_of(node)}
    texts |= {".".join((*words[:at], "module", *words[at:])) for at in range(1, len(words))}
    for target in (each for text in sorted(texts) for each in index.places_set(text)):
        assign = index.parents[target]
        if isinstance(assign, cst.Assign):
            yield target, assign.value
    named = (each for each in index.calls_of_names.get("setattr", ()) if len(each.args) == _OF_SETATTR)
    by_method = (call for name in _PUTS for call in index.calls_of_method(name) if len(call.args) == _OF_PUT)
    for call in (*named, *by_method):
        owner = call.func.value if isinstance(call.func, cst.Attribute) else call.args[0].value
        if f"{text_of(owner)}.{word_of(call.args[-2].value)}" in texts:
            yield call, call.args[-1].value


def _is_at_once(index: Index, place: cst.CSTNode, node: cst.CSTNode) -> bool:
    """Tell whether the block that puts a part there goes on with it at once, before anything may shard it."""
    line = index.statement(place)
    block = index.parents[line]
    if not isinstance(block, (cst.IndentedBlock, cst.Module)):
        return False
    next_one = block.body.index(line) + 1 if line in block.body else len(block.body)
    later = block.body[next_one : next_one + 1]
    return any(each in {node, *index.ancestors(node)} for each in later)
