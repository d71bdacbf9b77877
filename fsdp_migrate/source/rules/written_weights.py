"""Weights that are written after a forward without a backward, or while one is under way.

FSDP1 went on with what it had gathered, and FSDP2 may lose what is written into it. All of it was measured
with torch 2.13 on two gloo ranks: ``tests/sharding/written_weights_bodies.py``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.between_passes import done
from fsdp_migrate.source.fails_at_once import backwards_in, is_backward
from fsdp_migrate.source.model_runs import (
    TRAINS,
    Run,
    Written,
    frozen_models,
    is_fsdp1s,
    places_of,
    runs_of,
    writes_of,
)
from fsdp_migrate.source.python.gradient_modes import is_without_gradients
from fsdp_migrate.source.python.no_shard import chooses_no_shard
from fsdp_migrate.source.python.nodes import last_name, short, text_of, walk_for
from fsdp_migrate.source.python.reached_methods import run_by_forward
from fsdp_migrate.source.uses import Found
from fsdp_migrate.source.wrapped_classes import keeps_old_weights, keeps_units_whole
from fsdp_migrate.source.written_elsewhere import written_elsewhere


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.model_kinds import Key
    from fsdp_migrate.source.python.text import Source


NAME = "written-weights"
CODES = ("FM336", "FM451", "FM452")

_NEVER_TRAINED = (
    "the run may differ from FSDP1's here, which was wrong: {} runs without gradients alone, so FSDP1 "
    "never gathered it anew, and computed with its first weights for good, whatever is written here: those "
    "of the root, and under SHARD_GRAD_OP all. What is written counts now. Nothing is to be done."
)
_EVALUATED = (
    "the run may differ from FSDP1's here, which was wrong: {} has run without gradients above, and its "
    "next forward still computed with the weights from before, those of the root, and under SHARD_GRAD_OP "
    "all. What is written counts at once now. Nothing is to be done."
)
_STEPPED = (
    "the run may differ from FSDP1's here, which was wrong: {} has run without gradients between the "
    "backward and this step, and its next forward still computed with the weights from before the step, "
    "those of the root, and under SHARD_GRAD_OP all. The step counts at once now. Nothing is to be done."
)
_UNDER_WAY = (
    "between its forward and its backward {} shows whole weights, those of FSDP2's root, and under "
    "SHARD_GRAD_OP and NO_SHARD all: what is written to them is lost, without an error, which FSDP1 kept "
    "under FULL_SHARD and NO_SHARD. Write above the forward, or below the backward."
)
_MEETS = (
    "between its forward and its backward {} shows whole weights, those of FSDP2's root, and under "
    "SHARD_GRAD_OP and NO_SHARD all, which torch refuses beside the DTensors of {}: write above that "
    "forward. No step lies between, so the values are the same."
)
_IN_FORWARD = (
    "where the sharded model's forward runs this, FSDP2's root, and under SHARD_GRAD_OP and NO_SHARD each "
    "unit that has run, shows whole weights: what is written to them is lost, without an error, or torch "
    "refuses them beside shards. FSDP1 kept it under NO_SHARD. Call this before model(...), from the loop."
)
_KEPT_UNSHARDED = (
    "{} shows copies of its weights {}: what is written to them is lost, without an error, and NO_SHARD of "
    "FSDP1 kept it. {}. Or take DistributedDataParallel, which keeps it too."
)
_BETWEEN = ("between its forward and its backward", "Write above the forward, or below the backward")
_WITHIN = ("while a forward runs", "Call this before model(...), from the loop")
_PUT_IN_FORWARD = (
    "where the sharded model's forward runs this, what is assigned to .data reaches neither FSDP2's shards "
    "nor what it saves, without an error: write in place, p.data.mul_(m).add_(x), in a method that is called "
    "before model(...), from the loop."
)
_PART = (
    "the run may differ from FSDP1's here, which was wrong: {} runs without gradients alone, and under "
    "SHARD_GRAD_OP FSDP1 never gathered its units anew, whatever was written to them. Without "
    "use_orig_params=True a part of a unit had no parameters, so that nothing was written. It counts now. "
    "Nothing is to be done."
)
_OPTIMIZERS = re.compile(r"optim|scaler|(^|[._])opt\d*(_|$)")
_RESHARDS = re.compile(r"\b_?reshard(_\w+)?\(")
_BEFORE_ALL = re.compile(r"init|copy|setup|build|load|reset|create|make|clone")
_LOOPS = (cst.For, cst.While)


def find(source: Source) -> Iterator[Found]:
    """Find what writes to the weights of a sharded model where FSDP1 or FSDP2 does not take it up."""
    writes = list(writes_of(source)) if "parameters" in source.code else []
    if writes:
        yield from _in_classes(source, writes)
    writes += written_elsewhere(source)
    writes = [each for each in writes if not each.is_put and is_fsdp1s(source, each.model)]
    has_steps = bool(source.index.calls_of_method("step")) and "no_grad" in source.code
    runs = runs_of(source) if writes or has_steps else []
    if not runs:
        return
    for each in writes:
        yield from _of_write(source, each, runs)
    if has_steps and not _are_taken_up(source):
        yield from _of_steps(source, runs)


def _of_write(source: Source, written: Written, runs: list[Run]) -> Iterator[Found]:
    """Find what is wrong with a write: the models are whole here, or FSDP1 had not taken it up."""
    places = list(places_of(source, written.model, written.node))
    own = [place for key, place in places if _is_under_way(source, key, place, runs)]
    if own:
        said = _KEPT_UNSHARDED if _is_unsharded(source) else _UNDER_WAY
        yield Found("FM452", written.node, said.format(_named(written.model), *_BETWEEN), "commented")
        return
    for other in written.given:
        if not is_fsdp1s(source, other):
            continue
        if any(_is_under_way(source, *at, runs) for at in places_of(source, other, written.node)):
            said = _MEETS.format(_named(other), _named(written.model))
            yield Found("FM336", written.node, said, "commented")
            break
    if _are_taken_up(source) or _is_gathered_as_a_part(source, written):
        return
    for key, place in places:
        its = [run for run in runs if run.key == key]
        if its and not any(run.is_graded for run in its):
            if any(_may_follow(source, place, run.place) for run in its):
                yield Found("FM451", written.node, _NEVER_TRAINED.format(_named(written.model)), "commented")
                return
        elif any(not run.is_graded and _is_stale(source, place, run, its) for run in its):
            yield Found("FM451", written.node, _EVALUATED.format(_named(written.model)), "commented")
            return


def _are_taken_up(source: Source) -> bool:
    """Tell whether FSDP1 took up all at once: under NO_SHARD, or where a source has it shard again itself."""
    return _is_unsharded(source) or _RESHARDS.search(source.code) is not None


def _is_unsharded(source: Source) -> bool:
    """Tell whether a source, or the project, asks FSDP1 for NO_SHARD."""
    return source.models.links.no_shard or chooses_no_shard(source.code)


def _is_gathered_as_a_part(source: Source, written: Written) -> bool:
    """Tell whether FSDP1 gathered a model anew as a unit of a larger one: Lightning wraps its module whole.

    What ``configure_model`` wraps in it is no root then. FULL_SHARD frees such units after each forward.
    """
    owner = source.index.class_of(written.node)
    is_lightnings = owner is not None and any(
        text_of(base.value).endswith("LightningModule") for base in owner.bases
    )
    is_own = text_of(written.model).startswith("self.")
    return is_lightnings and is_own and not keeps_units_whole(source.code)


def _named(model: cst.BaseExpression) -> str:
    return f"`{short(model, 30)}`"


def _may_follow(source: Source, place: cst.CSTNode, run: cst.CSTNode) -> bool:
    """Tell whether a place may come after a forward: below it, in a loop with it, or in another method."""
    index = source.index
    function = index.function(place)
    if function is not index.function(run):
        is_of_one = function is not None and index.class_of(place) is index.class_of(run) is not None
        return function is not None and is_of_one and not _BEFORE_ALL.search(function.name.value)
    if index.excludes(place, run):
        return False
    return index.order[run] < index.order[place] or _common_loop(source, place, run) is not None


def _common_loop(source: Source, one: cst.CSTNode, other: cst.CSTNode) -> cst.CSTNode | None:
    around = set(source.index.ancestors(one))
    function = source.index.function(one)
    for above in source.index.ancestors(other):
        if above is function:
            return None
        if isinstance(above, _LOOPS) and above in around:
            return above
    return None


def _is_stale(source: Source, place: cst.CSTNode, run: Run, its: list[Run]) -> bool:
    """Tell whether a model that is trained has run without gradients since its last backward."""
    index, order = source.index, source.index.order
    function = index.function(place)
    if index.function(run.place) is not function or index.excludes(run.place, place):
        return False
    trains = [
        *_trainings(source, function),
        *(each.place for each in its if each.is_graded and not each.is_told),
    ]
    first, last = order[run.place], order[place]
    if first < last:
        return not any(first < order[each] < last for each in trains)
    loop = _common_loop(source, place, run.place)
    inside = set(walk_for(loop, cst.Call)) if loop is not None else set()
    return loop is not None and not any(order[e] > first or order[e] < last for e in trains if e in inside)


def _trainings(source: Source, function: cst.FunctionDef | None) -> list[cst.Call]:
    """Return the calls in a function that run a backward, or may, as their names say."""
    home = function.body if function is not None else source.module
    calls = [each for each in walk_for(home, cst.Call) if source.index.function(each) is function]
    known = set(backwards_in(source, calls))
    return [
        call
        for call in calls
        if call in known
        or (isinstance(call.func, cst.Name) and TRAINS.search(last_name(call.func).lower()) is not None)
    ]


def _is_under_way(source: Source, key: Key, place: cst.CSTNode, runs: list[Run]) -> bool:
    """Tell whether a model has run with gradients above a place, and its backward comes below."""
    index, order = source.index, source.index.order
    function = index.function(place)
    home = function.body if function is not None else source.module
    calls = [each for each in walk_for(home, cst.Call) if source.index.function(each) is function]
    backwards = [each for each in calls if is_backward(each)]
    graded = [
        run.place
        for run in runs
        if run.key == key
        and run.is_graded
        and not (run.is_told or run.is_whole)
        and index.function(run.place) is function
        and not index.excludes(run.place, place)
    ]
    above = [each for each in (*graded, *backwards) if order[each] < order[place]]
    # Of `model(x).sum().backward()` the forward is done first, which stands within it.
    is_last = bool(above) and max(above, key=lambda each: done(source, each)) in graded
    return is_last and any(order[each] > order[place] for each in backwards)


def _of_steps(source: Source, runs: list[Run]) -> Iterator[Found]:
    """Find steps of optimizers with a forward without gradients between the backward and them."""
    order = source.index.order
    trained = {run.key for run in runs if run.is_graded}
    for call in source.index.calls_of_method("step"):
        owner = cst.ensure_type(cst.ensure_type(call, cst.Call).func, cst.Attribute).value
        if not _OPTIMIZERS.search(text_of(owner).lower()):
            continue
        function = source.index.function(call)
        above = [order[e] for e in _trainings(source, function) if is_backward(e) and order[e] < order[call]]
        for run in runs:
            is_between = bool(above) and max(above) < order[run.place] < order[call]
            is_here = source.index.function(run.place) is function
            if is_between and is_here and not run.is_graded and run.key in trained:
                yield Found("FM451", call, _STEPPED.format(f"`{run.key[1]}`"), "commented")
                break


def _in_classes(source: Source, writes: list[Written]) -> Iterator[Found]:
    """Find writes to ``self``'s weights in a module's class whose objects are wrapped."""
    made, kept = set(source.links.wrapped_classes), set(source.links.classes_kept_whole)
    if any(source.models.is_constructor(call.func) for call in source.calls):
        made |= {last_name(call.func) for call in source.calls}
        kept |= made if keeps_old_weights(source.code) else set()
    for each in writes:
        owner, function = source.index.class_of(each.node), source.index.function(each.node)
        if owner is None or function is None or not (text_of(each.model) + ".").startswith("self."):
            continue
        is_module = any(text_of(base.value).endswith("Module") for base in owner.bases)
        if not is_module or owner.name.value not in made:
            continue
        if function.name.value in run_by_forward(owner):
            said = _PUT_IN_FORWARD if each.is_put else _IN_FORWARD
            if _is_unsharded(source) and not each.is_put:
                said = _KEPT_UNSHARDED.format("the model", *_WITHIN)
            yield Found("FM452", each.node, said, "commented")
        elif (
            owner.name.value in kept
            and not _RESHARDS.search(source.code)
            and _is_never_trained(source, owner, each.model)
        ):
            yield Found("FM451", each.node, _PART.format(_named(each.model)), "commented")


def _is_never_trained(source: Source, owner: cst.ClassDef, part: cst.BaseExpression) -> bool:
    """Tell whether a class runs a part of its objects without gradients alone."""
    text = text_of(part)
    calls = [each for each in walk_for(owner, cst.Call) if text_of(each.func) == text]
    if any(text_of(each) == text for each in frozen_models(source)):
        return bool(calls)
    return bool(calls) and all(is_without_gradients(source.index, each) for each in calls)
