"""``model.clip_grad_norm_(...)`` becomes ``clip_grad_norm_(model, ...)``, which sums over all shards.

``torch.nn.utils.clip_grad_norm_`` took the norm of one rank's shards under FSDP1, and takes that of the whole
under FSDP2, as a DTensor.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.framework_words import clips, is_an_accelerator, name_of_framework
from fsdp_migrate.source.method_calls import (
    is_likely_made_elsewhere,
    may_clip_itself,
    on_model,
    renamed,
    sureness_of_lost,
    unbound,
)
from fsdp_migrate.source.parameter_values import ParameterValues, is_itself
from fsdp_migrate.source.python.clipped_lists import clipped, given_to_clipper, values_of, whose_groups
from fsdp_migrate.source.python.last_values import values_set
from fsdp_migrate.source.python.nodes import (
    dotted,
    given_by_name,
    last_name,
    placed_arguments,
    short,
    text_of,
    walk_for,
)
from fsdp_migrate.source.python.one_rank import runs_on_one_rank
from fsdp_migrate.source.python.optimizers import has_groups
from fsdp_migrate.source.python.own_names import values_bound
from fsdp_migrate.source.python.parameter_lists import named_as_parameters, shares
from fsdp_migrate.source.python.strategies import are_whole
from fsdp_migrate.source.python.xlas import imports_xlas
from fsdp_migrate.source.rules.class_checks import MODULE
from fsdp_migrate.source.rules.own_optimizers import classes_given_parameters, is_given_parameters
from fsdp_migrate.source.uses import Found, Need, Replace


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "clip-grad-norm"
CODES = ("FM311", "FM326")

CLIP = Need("fsdp_migrate.runtime", "clip_grad_norm_")
_TORCHS = frozenset(
    {
        "torch.nn.utils.clip_grad_norm_",
        "torch.nn.utils.clip_grad.clip_grad_norm_",
        "torch.nn.utils.clip_grad_norm",
    }
)
_UNSURE = "if this is the sharded model, call fsdp_migrate.runtime.clip_grad_norm_(model, max_norm)."
_OF_ITS_OWN = (
    "a model's class of this project has a clip_grad_norm_ of its own: of such a model this stays as it is; "
    "of a sharded model without one take fsdp_migrate.runtime.clip_grad_norm_(model, max_norm)."
)
_MAYBE_WHOLE = (
    "where this model is sharded the norm is now that of the whole gradient; under FSDP1 it was that of one "
    "rank's shards. {}, and see that max_norm is meant so."
)
_LIST = (
    "where these are a sharded model's parameters, the norm is now that of the whole gradient; under FSDP1 "
    "it was that of one rank's shards. Take fsdp_migrate.runtime.clip_grad_norm_, and see that max_norm is "
    "meant so."
)
_ONE_RANK = (
    "one rank alone comes here, and every rank must take part in the norm of the whole gradient: FSDP1's was "
    "that of one rank's shards. Call fsdp_migrate.runtime.clip_grad_norm_ above this branch."
)
_ALONE = " One rank alone comes here, and would wait for the others: call it above, on every rank."
_BY_ACCELERATE = (
    "where {} shards this model, the norm is now that of the whole gradients of these parameters, as a "
    "DTensor; under FSDP1 Accelerate took that of one rank's shards of them, unless they were all of one "
    "model's. See that max_norm is meant so, and take .full_tensor() of what this gives."
)
_TIMMS = re.compile(r"^timm\.utils\.(\w+\.)*(adaptive_clip_grad|dispatch_clip_grad)$")
_BY_TIMM = (
    "timm takes the norm of whole gradients here now; under FSDP1 it took that of one rank's flat part. "
    "Where that is of all together, take fsdp_migrate.runtime.clip_grad_norm_, and see that the limit is "
    "meant so."
)
_WHOLE = "the norm is now that of the whole gradient; under FSDP1 it was that of one rank's shards."
_RAISES = (
    " With error_if_nonfinite all ranks raise now where it is not finite; under FSDP1 those alone did whose "
    "own shards were not."
)
_NOT_FINITE = "error_if_nonfinite"
_PLACE_OF_IT = 3


def find(source: Source) -> Iterator[Found]:
    """Find FSDP1's own method, and torch's function where it is given an FSDP1 model's parameters."""
    for call in source.calls:
        if unbound(source, call, "clip_grad_norm_"):
            yield _renamed(source, call, "FM311")
        elif isinstance(call.func, cst.Attribute) and call.func.attr.value == "clip_grad_norm_":
            yield from _of_method(source, call, call.func.value)
        yield from _of_timm(source, call)
        is_held = _is_held(source, call.func) or given_to_clipper(source, call) is not None
        if not (is_held or source.index.qualified(call.func) & _TORCHS) or _is_of_others(source, call):
            continue
        is_alone = runs_on_one_rank(source.index, source.models.guards, call)
        if _is_given_a_model(source, call) and is_alone:
            yield Found("FM326", call, _ONE_RANK, "commented")
        elif _is_given_a_model(source, call) and not is_held:
            # Where every rank held all of it, the norm was that of the whole before.
            said = "" if are_whole(source.models) else _WHOLE + _of_raising(call)
            yield _renamed(source, call, "FM326", said)
        elif _is_given_a_list(source, call):
            yield Found("FM326", call, _LIST + _of_raising(call) + (_ALONE if is_alone else ""), "commented")
        elif _may_be_given_one(source, call):
            said = _MAYBE_WHOLE.format(clips(source, call, _model_of(call)))
            said += _of_raising(call) + (_ALONE if is_alone else "")
            yield Found("FM326", call, said, "commented")


def _of_raising(call: cst.Call) -> str:
    """Return what is said where a norm that is not finite is to raise, or may be."""
    placed = placed_arguments(call)
    given = given_by_name(call, _NOT_FINITE) + placed[_PLACE_OF_IT : _PLACE_OF_IT + 1]
    return _RAISES if given and dotted(given[0]) != "False" else ""


def _of_timm(source: Source, call: cst.Call) -> Iterator[Found]:
    """Find timm's functions that clip gradients by norms, of all or of each parameter by itself."""
    is_timms = any(map(_TIMMS.match, source.index.qualified(call.func)))
    if is_timms and call.args and ParameterValues(source).is_many(call.args[0].value):
        yield Found("FM326", call, _BY_TIMM, "commented")


def _is_held(source: Source, func: cst.BaseExpression) -> bool:
    """Tell whether an object holds torch's function, to call it later: ``self.clip = clip_grad_norm_``."""
    values = values_set(source.index, func) if isinstance(func, cst.Attribute) else ()
    return any(source.index.qualified(each) & _TORCHS for each in values)


def _of_method(source: Source, call: cst.Call, receiver: cst.BaseExpression) -> Iterator[Found]:
    first = call.args[0].value if call.args else None
    if is_an_accelerator(source, receiver):
        by = _whose_part(source, first) if first is not None else ""
        if by:
            yield Found("FM326", call, _BY_ACCELERATE.format(by), "commented")
        return
    # FSDP1's method takes max_norm first. What is given parameters is another's, such as an Accelerator's.
    if isinstance(first, cst.Call) and (dotted(first.func) or "").endswith("parameters"):
        return
    sure = sureness_of_lost(source, receiver)
    is_made_here = last_name(receiver) in source.models.names_made
    links = (source.links, source.links.prepared)
    clips_itself = any(each.clips_itself for each in links if each is not None)
    if sure != "no" and clips_itself and not is_made_here:
        yield Found("FM311", call, _OF_ITS_OWN, "commented")
    elif may_clip_itself(source, receiver):
        yield _in_front(source, call, receiver)
    elif sure in {"sure", "likely", "mixed"}:
        new = source.local_name(CLIP)

        def build(updated: cst.Call) -> cst.Call:
            assert isinstance(updated.func, cst.Attribute)
            return on_model(updated, updated.func.value, new)

        becomes = f"{new}({short(receiver, 30)}, ...)"
        yield Found("FM311", call, becomes, "rewritten", (Replace(call, build),), (CLIP,))
    elif not source.uses_fsdp1 and imports_xlas(source.index):
        return  # torch_xla's models have such a method, too
    elif sure == "unknown" or _is_a_trainers(source, receiver) or is_likely_made_elsewhere(source, receiver):
        yield Found("FM311", call, _UNSURE, "commented")


def _in_front(source: Source, call: cst.Call, receiver: cst.BaseExpression) -> Found:
    """Return what becomes of a call that is another wrapper's own method in other runs, which stays."""
    if dotted(receiver) is None:
        return Found("FM311", call, _OF_ITS_OWN, "commented")
    new, module = source.local_name(CLIP), source.local_name(MODULE)
    is_whole = isinstance(source.index.parents[call], (cst.Assign, cst.Expr, cst.Return))

    def build(updated: cst.Call) -> cst.IfExp:
        assert isinstance(updated.func, cst.Attribute)
        model = updated.func.value
        test = cst.Call(cst.Name("isinstance"), [cst.Arg(model), cst.Arg(cst.Name(module))])
        chosen = cst.IfExp(test, on_model(updated, model.deep_clone(), new), updated)
        return chosen if is_whole else chosen.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])

    becomes = f"{new}({short(receiver, 30)}, ...) if isinstance({short(receiver, 30)}, {module}) else ..."
    return Found("FM311", call, becomes, "rewritten", (Replace(call, build),), (CLIP, MODULE))


def _whose_part(source: Source, given: cst.BaseExpression) -> str:
    """Return the framework that shards the models of which an Accelerator is given not all parameters of one.

    Accelerate compares what it is given with all of each model that it prepared.
    """
    found = {text_of(each.model): each for each in shares(source.index, given)}
    wholes = {text: _sharded_whole(source, each.model) for text, each in found.items()}
    known = {text: whole for text, whole in wholes.items() if whole is not None}
    if not known:
        return ""
    is_one = len(found) == 1 and all(text == text_of(whole) for text, whole in known.items())
    if is_one and not any(each.is_filtered for each in found.values()):
        return ""
    return name_of_framework(source, next(iter(known.values())))


def _sharded_whole(source: Source, model: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the model that a framework shards, of which an expression is the whole or a part."""
    part: cst.BaseExpression | None = model
    while part is not None:
        if source.models.certainty(part) is not None:
            return part if source.models.sharded_by(part) else None
        # `model.layers[0]`
        part = part.value if isinstance(part, cst.Subscript) else source.models.sharded_with(part)
    return None


def _is_a_trainers(source: Source, receiver: cst.BaseExpression) -> bool:
    """Tell whether it is the model of a Trainer, in a source that uses FSDP1: ``module.trainer.model``."""
    return source.uses_fsdp1 and (dotted(receiver) or "").endswith(("trainer.model", "strategy.model"))


def _renamed(source: Source, call: cst.Call, code: str, note: str = "") -> Found:
    new = source.local_name(CLIP)
    edit = renamed(call.func, new)
    return Found(code, call, f"{new}(...)", "rewritten", (edit,), (CLIP,), (call.func,), note)


def _model_of(call: cst.Call) -> cst.BaseExpression | None:
    """Return the model whose parameters a call is given: ``model.parameters()``."""
    first = call.args[0].value if call.args else None
    if not isinstance(first, cst.Call) or not isinstance(first.func, cst.Attribute):
        return None
    return first.func.value if first.func.attr.value == "parameters" else None


def _is_given_a_model(source: Source, call: cst.Call) -> bool:
    model = _model_of(call)
    return model is not None and source.models.certainty(model) == "certain"


def _is_given_a_list(source: Source, call: cst.Call) -> bool:
    """Tell whether a list is given that is an optimizer's, or that a function made of a sharded model."""
    given = clipped(call) or given_to_clipper(source, call)
    return given is not None and not source.models.is_parameters(given) and _are_of_a_model(source, given)


def _are_of_a_model(source: Source, given: cst.BaseExpression) -> bool:
    """Tell whether a list is that of an optimizer of a sharded model, or one that a function took of it."""
    optimizer = whose_groups(source, given)
    if optimizer is not None:
        return _is_of_a_model(source, optimizer)
    models = (named_as_parameters(each, name) for name, each in values_of(source, given))
    if any(source.models.certainty(each) is not None for each in models if each is not None):
        return True
    if isinstance(given, cst.Call) and isinstance(given.func, cst.Attribute) and not given.args:
        return False  # `net.parameters()`: of a model by its name
    values = ParameterValues(source)
    return values.is_many(given) or values.is_one(given)


def _is_of_a_model(source: Source, optimizer: cst.BaseExpression) -> bool:
    text = text_of(optimizer)
    if has_groups(source.models.kinds(optimizer)):
        return True
    if text == "self":
        return source.index.class_of(optimizer) in list(classes_given_parameters(source))
    made = values_bound(source, optimizer)
    return any(is_given_parameters(source, each) for each in made if isinstance(each, cst.Call))


def _may_be_given_one(source: Source, call: cst.Call) -> bool:
    """Tell whether a model may be sharded: it is asked for that, or one of its name is wrapped here."""
    model = _model_of(call)
    if model is not None and (
        source.models.is_other_branch(model) or source.models.is_before_wrapping(model)
    ):
        return False
    if call.args and source.models.is_parameters(call.args[0].value):
        return True
    if model is None:
        return False
    if source.models.certainty(model) is not None or source.models.is_asked(model):
        return True
    if is_itself(source, model):
        return True
    last = (dotted(model) or "").rpartition(".")
    return bool(last[1]) and last[2] in source.models.names_made and source.models.is_unknown(model)


def _clips_in_its_own_way(source: Source, choice: cst.If, call: cst.Call) -> bool:
    """Tell whether another branch calls the method that FSDP1's models alone have, on the same model."""
    model = _model_of(call)
    wanted = f"{text_of(model)}.clip_grad_norm_" if model is not None else ""
    others = [each for each in walk_for(choice, cst.Call) if source.index.excludes(each, call)]
    return any(dotted(each.func) == wanted and _nearest_choice(source, each) is choice for each in others)


def _nearest_choice(source: Source, node: cst.CSTNode) -> cst.If | None:
    """Return the innermost ``if`` that decides on a place and has another branch; ``elif`` is one with it."""
    for above in source.index.ancestors(node):
        if isinstance(above, cst.If) and above.orelse is not None:
            return _first_of_chain(source, above)
    return None


def _first_of_chain(source: Source, choice: cst.If) -> cst.If:
    above = source.index.parents[choice]
    return _first_of_chain(source, above) if isinstance(above, cst.If) else choice


def _is_of_others(source: Source, call: cst.Call) -> bool:
    """Tell whether the class, or a switch such as ``use_fsdp``, was asked for: the branch of other models."""
    above = [each for each in source.index.ancestors(call) if isinstance(each, cst.If)]
    tests = [each.test for each in above]
    return any(_clips_in_its_own_way(source, each, call) for each in above) or any(
        (part in source.references and source.index.fsdp1(part) == catalog.FSDP)
        or last_name(part).lower().find("fsdp") >= 0
        for test in tests
        for kind in (cst.Name, cst.Attribute)
        for part in walk_for(test, kind)
    )
