"""``FSDP(model, ...)`` becomes ``prepare_fully_shard(model, {...})``, with the same arguments.

https://github.com/pytorch/torchtitan/blob/main/docs/fsdp.md
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.errors import ConfigError
from fsdp_migrate.source import catalog
from fsdp_migrate.source.early_optimizers import early_optimizers
from fsdp_migrate.source.free_of_parts import free_of_parts
from fsdp_migrate.source.kept_parameters import given_before, made_beside
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.layout import dict_argument
from fsdp_migrate.source.python.makers import is_partial_of_fsdp
from fsdp_migrate.source.python.nodes import (
    as_ast,
    dotted,
    last_name,
    named_arguments,
    short,
    text_of,
    walk_for,
)
from fsdp_migrate.source.python.wrappers import SAME_MODEL
from fsdp_migrate.source.unless_wrapped import is_unless_wrapped
from fsdp_migrate.source.uses import Found, Need, Replace
from fsdp_migrate.source.wrapped_twice import nested_by_functions, wrapped_by_others, wrapped_twice


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "constructor"
CODES = ("FM301", "FM302", "FM303", "FM422", "FM453")

PREPARE = Need("fsdp_migrate", "prepare_fully_shard")

_DYNAMIC = (
    "the arguments are known only when this runs; prepare_fully_shard checks their names then. "
    "See that they are FSDP1's, and delete this comment: there is nothing to change."
)
_STARRED = "`*` hides which arguments these are: name them, then call prepare_fully_shard(model, {...})."
_PUTTERS = frozenset(
    {"ModuleList", "Sequential", "add_module", "append", "register_module", "set_submodule", "setattr"}
)
_CONTAINERS = ("torch.nn.ModuleDict", "torch.nn.ModuleList")
_CONTAINER = (
    "FSDP2 refuses a {}, which has no forward: call prepare_fully_shard(module, {{...}}) for each module in "
    "it that is called, or make it an attribute of a module and shard that one."
)
_NESTED = (
    "FSDP inside FSDP: shard the whole model once, prepare_fully_shard(model, {'auto_wrap_policy': ...}), "
    "and select the inner modules by the policy."
)
_PARTS = (
    "FSDP around parts of a model. Where another is around the whole: shard that once, "
    "prepare_fully_shard(model, {'auto_wrap_policy': ...}), and select the parts by the policy. Where none "
    "is, call prepare_fully_shard(part, {...}) for each; states and parameters of the whole hold DTensors."
)
_WITHOUT = (
    "FSDP around parts of a model, and none around the whole: what else wraps here passes over a model that "
    "has wrapped modules. Call prepare_fully_shard(part, {...}) for each part; states and parameters of the "
    "whole hold DTensors then, and the others are plain, as they were."
)
_TWICE = (
    "FSDP around a model that it has wrapped already, and FSDP2 shards a model once: make one "
    "prepare_fully_shard(model, {...}) of both. Parameters that the first call ignored for the second are "
    "sharded with the others then."
)
_AGAIN = (
    "FSDP around a model that a function of another file has wrapped already, and FSDP2 shards a model once: "
    "leave this one out, and give its arguments where that function calls prepare_fully_shard(model, {...}). "
    "Parameters that the first call ignored for the second are sharded with the others then."
)
_AROUND_DDP = (
    "FSDP around a model that DistributedDataParallel has wrapped, which prepare_fully_shard refuses: give "
    "it the model itself. FSDP2 reduces the gradients alone."
)
_AROUND_PREPARED = (
    "FSDP around a model that Accelerate has prepared, in several processes DistributedDataParallel's or its "
    "own FSDP's, which prepare_fully_shard refuses: leave the model out of `prepare`, or leave FSDP to "
    "Accelerate."
)
_BY_A_FUNCTION = (
    "FSDP inside FSDP: this is called for parts of a model, and for the whole. Shard the whole once, "
    "prepare_fully_shard(model, {'auto_wrap_policy': ...}), and select the parts by the policy: CustomPolicy "
    "gives a part arguments of its own, such as its mixed_precision."
)
_ASKED_FOR = (
    "no FSDP is seen around `{}`, which shards its parts: call prepare_fully_shard(part, {{...}}) "
    "for each. Its objects are asked for their parameters or states, those of the parts among them, which "
    "are DTensors then: see that each such place takes them."
)


_TAKE_OUT = "take it out, or say what was meant by another."
_UNKNOWN = "`{}` was never an argument of FullyShardedDataParallel, and prepare_fully_shard refuses it: "
_KEYWORDS = {
    "device_ids": "DistributedDataParallel has it; give device_id the current device.",
    "find_unused_parameters": "DistributedDataParallel has it; take it out.",
    "output_device": "DistributedDataParallel has it; take it out.",
    "reshard_after_forward": "fairscale's class has it; give sharding_strategy, SHARD_GRAD_OP for False.",
    "flatten_parameters": "fairscale's class has it; take it out, FSDP2 flattens nothing.",
    "fp32_reduce_scatter": "fairscale's class has it; give mixed_precision.",
    "compute_dtype": "fairscale's class has it; give mixed_precision.",
    "move_params_to_cpu": "fairscale's class has it; give cpu_offload.",
}


_VALUES = {"backward_prefetch": " FSDP1 took any other value, and prefetched nothing: give None."}


def find(source: Source) -> Iterator[Found]:
    """Find every call of the class, under whatever name."""
    wrapping = wrapping_calls(source)
    nested = nested_calls(source, wrapping)
    for call in wrapping:
        if source.index.fsdp1(call.func) != catalog.FSDP:
            continue  # of a partial, which has its own rule
        if call in nested:
            yield Found(
                "FM303", call, words_of_nested(source, call, wrapping), "commented", covers=(call.func,)
            )
        elif any(arg.star == "*" for arg in call.args) or not _has_model(call):
            # FSDP1 stays here, and what is edited around it must not run with it: a code that stops.
            yield Found("FM303", call, _STARRED, "commented", covers=(call.func,))
        elif (container := words_of_container(source, call)) is not None:
            yield Found("FM303", call, container, "commented", covers=(call.func,))
        else:
            yield from of_unknown(call)
            yield from optimizers_of_flat(source, call, call)
            yield _rewritten(source, call)


def wrapping_calls(source: Source) -> list[cst.Call]:
    """Return the calls that make FSDP1's models: of the class, and of its partials."""
    index = source.index
    return [
        c for c in source.calls if index.fsdp1(c.func) == catalog.FSDP or is_partial_of_fsdp(index, c.func)
    ]


def words_of_nested(source: Source, call: cst.Call, calls: list[cst.Call]) -> str:
    """Return what is said of a part that is wrapped: also where the file wraps nothing but such parts."""
    if (is_prepared := wrapped_by_others(source, calls).get(call)) is not None:
        return _AROUND_PREPARED if is_prepared else _AROUND_DDP
    others = [each for each in calls if not is_unless_wrapped(source, each)]
    if len(others) < len(calls):
        calls = others
        if all(_wraps_a_part(source, each) for each in others):
            return _WITHOUT
    if call in wrapped_twice(source, calls):
        return _TWICE
    if source.position(call)[0] in source.links.wrapped_again:
        return _AGAIN
    if call in nested_by_functions(source, calls):
        return _BY_A_FUNCTION
    owners = {source.index.class_of(each) for each in calls}
    names = {source.index.path_of(owner) if owner is not None else "" for owner in owners}
    owner = source.index.class_of(call)
    are_alone = names <= source.links.asked_for_parts | source.links.shards_parts
    if owner is not None and are_alone:
        return _ASKED_FOR.format(owner.name.value)
    above = (each for each in source.index.ancestors(call) if isinstance(each, cst.Assign))
    is_own = any(_is_of_a_module(source, each.target) for assign in above for each in assign.targets)
    return _PARTS if not is_own and all(_wraps_a_part(source, each) for each in calls) else _NESTED


def of_unknown(call: cst.Call) -> Iterator[Found]:
    """Find keywords that the class never had, which torch's refused as well, and values without a meaning."""
    known = {*catalog.CONSTRUCTOR_ARGUMENTS, *catalog.FORMER_ARGUMENTS}
    said: dict[cst.CSTNode, str] = {}
    for arg in call.args:
        name = arg.keyword.value if arg.keyword is not None else ""
        if name and name not in known:
            said[arg] = _UNKNOWN.format(name) + _KEYWORDS.get(name, _TAKE_OUT)
        elif name not in {"", "module"} and (problem := _problem_of(name, arg.value)):
            said[arg] = problem
    # One statement has one comment of a code: it says all of them.
    if said:
        yield Found("FM422", next(iter(said)), " ".join(said.values()), "commented")


def _problem_of(name: str, value: cst.BaseExpression) -> str:
    """Return why a literal means nothing as the value of an argument: ``backward_prefetch=True``."""
    try:
        given = ast.literal_eval(as_ast(value))
    except (TypeError, ValueError):  # no literal
        return ""
    from fsdp_migrate.config import FSDP1Config  # for few: pydantic takes as long to load as many rules

    try:
        FSDP1Config(**{catalog.FORMER_ARGUMENTS.get(name, name): given})
    except ConfigError as error:
        return f"prepare_fully_shard refuses this: {error}{_VALUES.get(name, '')}"
    return ""


def _shows_its_keys(source: Source, given: cst.BaseExpression) -> bool:
    """Tell whether ``**given`` is a dict that stands in the source whole, with the class's keywords alone."""
    known = {*catalog.CONSTRUCTOR_ARGUMENTS, *catalog.FORMER_ARGUMENTS}
    value: cst.BaseExpression | None = given
    if isinstance(given, cst.Name):
        # What names it beside its own line and `**given` may put something into it.
        if len(re.findall(rf"(?<!\*)\b{given.value}\b", source.code)) != 1:
            return False
        value = last_value(source.index, given)
    if isinstance(value, cst.Dict):
        elements = [each for each in value.elements if isinstance(each, cst.DictElement)]
        keys = [each.key.evaluated_value for each in elements if isinstance(each.key, cst.SimpleString)]
        return len(keys) == len(value.elements) and known.issuperset(map(str, keys))
    is_dict = isinstance(value, cst.Call) and dotted(value.func) == "dict"
    named = [arg.keyword for arg in value.args] if is_dict and isinstance(value, cst.Call) else [None]
    return all(each is not None and each.value in known for each in named)


def _rewritten(source: Source, call: cst.Call) -> Found:
    prepare = source.local_name(PREPARE)
    optimizers = earlier_optimizers(source, call)

    def build(updated: cst.Call) -> cst.Call:
        changed = dict_argument(updated, catalog.CONSTRUCTOR_ARGUMENTS)
        changed = with_optimizers(changed, optimizers) if optimizers else changed
        return changed.with_changes(func=cst.Name(prepare))

    dynamic = any(arg.star and not _shows_its_keys(source, arg.value) for arg in call.args)
    return Found(
        "FM302" if dynamic else "FM301",
        call,
        f"{prepare}({short(_model_of(call), 30)}, {{...}})",
        "rewritten",
        edits=(Replace(call, build),),
        needs=(PREPARE,),
        covers=(call.func,),
        note=_DYNAMIC if dynamic else "",
    )


def with_optimizers(call: cst.Call, optimizers: str) -> cst.Call:
    """Return a call that is given the optimizers, an expression, as well."""
    name, value = "optimizers", cst.parse_expression(optimizers)
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    *before, last = call.args
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    if isinstance(before[-1].comma if before else None, cst.Comma):
        # Arguments that stand on lines of their own go on doing so.
        comma = cst.Comma(whitespace_after=cst.ensure_type(before[-1].comma, cst.Comma).whitespace_after)
    if isinstance(last.comma, cst.Comma):
        # What stood behind the last argument, a line's end perhaps, goes behind the new one.
        added = cst.Arg(value, keyword=cst.Name(name), equal=tight, comma=last.comma)
    else:
        added = cst.Arg(
            value, keyword=cst.Name(name), equal=tight, whitespace_after_arg=last.whitespace_after_arg
        )
        last = last.with_changes(whitespace_after_arg=cst.SimpleWhitespace(""))
    return call.with_changes(args=[*before, last.with_changes(comma=comma), added])


def _has_model(call: cst.Call) -> bool:
    first = call.args[0] if call.args else None
    named = "module" in named_arguments(call)
    return named or (first is not None and not first.star and first.keyword is None)


def _model_of(call: cst.Call) -> cst.BaseExpression:
    return named_arguments(call).get("module", call.args[0].value)


def words_of_container(source: Source, call: cst.Call) -> str | None:
    """Return what is said of a model that is one of torch's containers without a forward."""
    model = _itself(_model_of(call))
    if isinstance(model, cst.Name) and model in source.index.scopes:
        made = last_value(source.index, model)
        model = model if made is None else _itself(made)
    names = source.index.qualified(model.func) if isinstance(model, cst.Call) else ()
    return next((_CONTAINER.format(name.rpartition(".")[2]) for name in _CONTAINERS if name in names), None)


def nested_calls(source: Source, calls: list[cst.Call]) -> set[cst.Call]:
    """Return the calls that wrap a part of a model, those that wrap a model with such parts, or twice.

    Not those that wrap a model only where none of its parts is wrapped.
    """
    calls = [each for each in calls if not is_unless_wrapped(source, each)]
    twice = wrapped_twice(source, calls) | nested_by_functions(source, calls)
    twice |= {each for each in calls if source.position(each)[0] in source.links.wrapped_again}
    twice |= wrapped_by_others(source, calls).keys()
    inner = {call for call in calls if _wraps_a_part(source, call)}
    wrapped = {call: text_of(_itself(_model_of(call))) for call in calls if _has_model(call)}
    pairs = {
        part
        for part, text in wrapped.items()
        for whole, other in wrapped.items()
        if part is not whole
        and text.startswith((f"{other}.", f"{other}["))
        and not source.index.excludes(part, whole)
    }
    if not inner and not pairs:
        return twice
    wholes = {
        whole
        for whole, other in wrapped.items()
        if any(text.startswith((f"{other}.", f"{other}[")) for part, text in wrapped.items() if part in pairs)
    }
    # A part that is wrapped in a loop, in another function even, belongs to some model that is wrapped too.
    others = set(calls) - free_of_parts(source, calls, inner) if inner else set()
    return twice | pairs | wholes | others


def _itself(model: cst.BaseExpression) -> cst.BaseExpression:
    """Return a model without what gives it back: ``model.to(device)`` is no part of it."""
    while (
        isinstance(model, cst.Call)
        and isinstance(model.func, cst.Attribute)
        and model.func.attr.value in SAME_MODEL
    ):
        model = model.func.value
    return model


def _wraps_a_part(source: Source, call: cst.Call) -> bool:
    """Tell whether what is wrapped is put into a model: an item, an attribute by name, a layer of a list."""
    below: cst.CSTNode = call
    for above in source.index.ancestors(call):
        if isinstance(above, cst.Assign):
            targets = [target.target for target in above.targets]
            return any(
                isinstance(each, cst.Subscript)
                or _is_put_somewhere(source, each)
                or _is_of_a_module(source, each)
                for each in targets
            )
        if isinstance(above, cst.Call) and above is not call:
            return _puts_into_a_model(source, above, below)
        if isinstance(above, (cst.ListComp, cst.GeneratorExp)):
            return not _are_models_of_their_own(source, call, above)
        if isinstance(above, cst.BaseStatement):
            return False
        below = above
    return False


def _are_models_of_their_own(source: Source, call: cst.Call, each: cst.ListComp | cst.GeneratorExp) -> bool:
    """Tell whether a list of models is wrapped, one by one, none of which is a layer of another."""
    assign = source.index.parents[each]
    target = assign.targets[0].target if isinstance(assign, cst.Assign) and len(assign.targets) == 1 else None
    if not isinstance(target, cst.Name) or not _has_model(call):
        return False
    wrapped = _itself(_model_of(call))
    root = wrapped.value if isinstance(wrapped, cst.Subscript) else each.for_in.iter
    if not isinstance(root, cst.Name) or root not in source.index.scopes:
        return False
    values = [binding.value for binding in source.index.scopes[root].lookup(root.value)]
    made = [v for v in values if v is not None and v is not each and text_of(v) != "None"]
    if not made or not all(_makes_models(value) for value in made):
        return False
    readers = (source.index.parents[source.index.parents[name]] for name in source.readers(target))
    return not any(isinstance(above, cst.Call) and _puts_layers(above) for above in readers)


def _makes_models(value: cst.BaseExpression) -> bool:
    """Tell whether an expression is a list of what calls make: ``[Net(config) for _ in range(3)]``."""
    if isinstance(value, cst.ListComp):
        return isinstance(value.elt, cst.Call)
    return isinstance(value, cst.List) and all(isinstance(each.value, cst.Call) for each in value.elements)


def _puts_layers(call: cst.Call) -> bool:
    """Tell whether a call makes one model of several, or puts something into one."""
    name = last_name(call.func)
    return name in _PUTTERS | {"ModuleDict", "ModuleList", "Sequential"}


def _is_put_somewhere(source: Source, target: cst.BaseExpression) -> bool:
    """Tell whether a name is put into a model in the same loop: ``x = FSDP(x); setattr(m, n, x)``."""
    loops = (a for a in source.index.ancestors(target) if isinstance(a, (cst.For, cst.While)))
    loop = next(loops, None)
    if loop is None or not isinstance(target, cst.Name):
        return False
    for call in walk_for(loop.body, cst.Call):
        name = last_name(call.func)
        if name in _PUTTERS and any(text_of(arg.value) == target.value for arg in call.args):
            return True
    stored = (each for each in walk_for(loop.body, cst.Assign) if text_of(each.value) == target.value)
    return any(isinstance(each.target, cst.Subscript) for assign in stored for each in assign.targets)


def _is_of_a_module(source: Source, target: cst.BaseExpression) -> bool:
    """Tell whether a model's own ``__init__`` wraps a part of it: ``self.encoder = FSDP(self.encoder)``."""
    owner, function = source.index.class_of(target), source.index.function(target)
    if owner is None or function is None or function.name.value != "__init__":
        return False
    if source.index.path_of(owner) in source.links.shards_parts:
        return False
    bases = {last_name(base.value) for base in owner.bases}
    return (dotted(target) or "").startswith("self.") and bool(bases & {"Module", "PreTrainedModel"})


def _puts_into_a_model(source: Source, call: cst.Call, below: cst.CSTNode) -> bool:
    name = last_name(call.func)
    if source.index.fsdp1(call.func) == catalog.FSDP or is_partial_of_fsdp(source.index, call.func):
        return True
    return below in call.args and name in _PUTTERS


def earlier_optimizers(source: Source, call: cst.Call) -> str:
    """Return the optimizers that were made of the model's parameters before, as an expression."""
    names = optimizers_before(source, call)
    return names[0] if len(names) == 1 else f"[{', '.join(names)}]" if names else ""


def optimizers_before(source: Source, call: cst.Call) -> list[str]:
    """Return what the optimizers are called that were made of the model's parameters before."""
    return given_before(source, call, text_of(_model_of(call)))


def optimizers_of_flat(source: Source, made: cst.Call, call: cst.Call) -> Iterator[Found]:
    """Find optimizers from before a call that FSDP1's flat parameters took everything from.

    ``made`` is the call that has the arguments of FSDP1: the same, or that of a partial.
    """
    beside = made_beside(source, call, text_of(_model_of(call)))
    yield from early_optimizers(source, made, call, optimizers_before(source, call), beside)
