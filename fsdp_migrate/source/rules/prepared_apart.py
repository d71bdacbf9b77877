"""``prepare(model)`` under Accelerate's FSDP: its FSDP2 takes it with its optimizer only.

A model that the source shards itself is none for Accelerate, which knows it by FSDP1's class.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import libcst as cst

from fsdp_migrate.findings import named
from fsdp_migrate.source.catalog import FSDP, MODEL_ALONE, PREPARED_WITH
from fsdp_migrate.source.python.accelerate_models import (
    asks_by_switch,
    asks_for_fsdp,
    asks_for_plugin,
    fsdp_said,
    has_optimizer,
    names_layers,
    only_infers,
    prepared,
)
from fsdp_migrate.source.python.accelerators import method_that_shards
from fsdp_migrate.source.python.asked_as_models import asked_as_models, is_model, made_as_others
from fsdp_migrate.source.python.frameworks import by_whom
from fsdp_migrate.source.python.heirs import HUGGING_FACES, led_to
from fsdp_migrate.source.python.last_values import last_value, seen_value
from fsdp_migrate.source.python.nodes import dotted, given_by_name, named_arguments, text_of, walk_for
from fsdp_migrate.source.python.other_engines import is_in_other_engines_branch
from fsdp_migrate.source.python.starred import added_to, given_to
from fsdp_migrate.source.python.trainer_models import TRAINER
from fsdp_migrate.source.trained_models import (
    has_optimizer_beside,
    held_together,
    is_not_trained,
    whose_parameters,
)
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "accelerate-prepare"
CODES = ("FM303", "FM449")

_MEANT = (
    "Accelerate's FSDP2 refuses it: a model and its optimizer must be passed together. Make the optimizer "
    "first, and write `model, optimizer = accelerator.prepare(model, optimizer)`; other objects may go along."
)
_LEFT_OUT = (
    " Left out it computes in its own dtype: where mixed precision casts what is prepared, its outputs "
    "differ from FSDP1's, and with the optimizer they do not."
)
_WITHOUT = (
    "Accelerate's FSDP2 refuses a model without an optimizer, and {}. Leave out a model that "
    "is not trained, `model.to(accelerator.device)`, or have it sharded with an optimizer that never steps: "
    "`model, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters()))`."
    f"{_LEFT_OUT}"
)
_UNTRAINED = _WITHOUT.format("there is none here")
_FROZEN = _WITHOUT.format("none is made of this one here")
_EITHER = (
    "Accelerate's FSDP2 refuses it: a model and its optimizer must be passed together, and no optimizer is "
    "made here. Where the model is trained, write `model, optimizer = accelerator.prepare(model, optimizer)` "
    "where both are. Where it is not, leave it out, `model.to(accelerator.device)`, or have it sharded with "
    "an optimizer that never steps: "
    "`model, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters()))`."
    f"{_LEFT_OUT}"
)
_BY_TRAINER = (
    "Accelerate's FSDP2 refuses a model without its optimizer, which the Trainer makes: give the Trainer the "
    "model as it is, it prepares it itself."
)
_NOT_YET = (
    "the Trainer makes its optimizer when it trains: it is None here, and Accelerate's FSDP2 refuses a model "
    "without its optimizer. Call `{}.create_optimizer()` above it, or leave the model to the Trainer."
)
_SEVERAL = (
    "Accelerate's FSDP2 takes one model in a call, with its optimizer: give each that is trained a call of "
    "its own, and leave out those that are not, `ema.to(accelerator.device)`. An average that is left out "
    "takes `p.full_tensor()` of the trained model's parameters where it is updated, on every rank."
)
_SHARED = (
    "one optimizer holds the parameters of {}, and Accelerate's FSDP2 takes one model in a call, with an "
    "optimizer of its parameters alone. Give each an optimizer and a call of its own, `model, optimizer = "
    "accelerator.prepare(model, optimizer)`, and step them all; or make them parts of one module whose "
    "`forward` runs them, and prepare it with the optimizer."
)
_SECOND = (
    "Accelerate's FSDP2 looks for each class of `transformer_cls_names_to_wrap` (in a config "
    "`fsdp_transformer_layer_cls_to_wrap`) in every model, and stops at one that has none; FSDP1 looked in "
    "the first. Where this one has none, write above it "
    "`accelerator.state.fsdp_plugin.transformer_cls_names_to_wrap = []`: one unit, as under FSDP1."
)
_HOLDS_MORE = (
    "this optimizer holds the parameters of {others} too, which Accelerate's FSDP2 does not shard with the "
    "model, and it stops at them. Make these part of the model, or give them an optimizer of their own that "
    "is not prepared."
)
_AGAIN = (
    "{} sharded already: FSDP1's Accelerate left as it was, and this one it would wrap once more, which "
    "raises. {} it the optimizer and loaders without the model, launch it without FSDP of its own, "
    "and clip by fsdp_migrate.runtime.clip_grad_norm_(model, ...)."
)
_SAVES_NONE = (
    " Its {} then hold no model, and one rank's part of the optimizer: save and load both by torch's "
    "get_state_dict, set_state_dict and torch.distributed.checkpoint."
)
Stopped = Literal["refused", "refused alone", "not trained", "several", "holds more", "second"]
"""Why Accelerate's FSDP2 stops at a call: by what it is given, its optimizer, or the layers' classes."""
_OTHERS = re.compile(PREPARED_WITH)
# What a model is handed over with that is no optimizer, by its name, and by what makes it.
_DATA = re.compile(
    r"loader|sched|data(?:$|_|set)|tokenizer|processor|collator|(?:^|_)d[ls]$|(?:_|train|test|val)set$"
    r"|(?:^|_)(?:batch(?:es)?|examples?|inputs?|iter(?:ator)?|labels?|prompts?|queries|samples?|texts?)$"
)
_OF_DATA = re.compile(
    r"^(?:(?:typing|collections\.abc)\.)?(?:Dict|Iterable|Iterator|List|Sequence|dict|int|list|str|tuple)\b"
    r"|(?:DataLoader|Dataset|Tokenizer\w*|Processor\w*)\b"
)
_LITERALS = (cst.Dict, cst.DictComp, cst.Integer, cst.List, cst.ListComp, cst.SimpleString)

# `accelerate config` may have put what asks for FSDP outside of the project.
_FOR_FSDP = re.compile(r"^[ \t]*#.*\bFor FSDP\b", re.MULTILINE)


def find(source: Source) -> Iterator[Found]:
    """Find these calls in a source that knows of Accelerate's FSDP; with DDP they are right."""
    calls = [call for call in source.calls if method_that_shards(source.index, call.func)]
    again = [call for call in calls if any(_is_sharded(source, call, arg.value) for arg in call.args)]
    for call in again:
        is_seen = any(_is_wrapped_here(source, arg.value) for arg in call.args)
        words = ("this model is", "Give") if is_seen else ("this model may be", "Where it is, give")
        yield Found("FM303", call, f"{_AGAIN.format(*words)}{_saved_by(source)}", "commented")
    if not _knows_of_fsdp(source):
        # A Trainer's own Accelerator is asked for it by the Trainer's arguments.
        kind_around = source.models.frameworks.trainers.kind_around
        calls = [call for call in calls if kind_around(call) == TRAINER]
    for call in calls:
        meant = "" if call in again or _is_elsewhere(source, call) else _refused(source, call)
        if meant == _MEANT and _is_trainers(source, call):
            meant = _BY_TRAINER
        elif meant in {_MEANT, _SEVERAL} and has_optimizer(source.code) and _are_untrained(source, call):
            meant = _FROZEN
        elif meant in {_MEANT, _SEVERAL} and (together := _held_together(source, call)):
            meant = _SHARED.format(named(together))
        elif meant == _MEANT and not has_optimizer_beside(source, call):
            meant = _UNTRAINED if only_infers(source.code) else _EITHER
        if call not in again and not meant and (others := _held_besides(source, call)):
            meant = _HOLDS_MORE.format(others=named(others))
        if meant or (call not in again and _is_second(source, call, calls)):
            yield Found("FM449", call, meant or _SECOND, "commented")


def _saved_by(source: Source) -> str:
    """Return what is said of an Accelerator's checkpoints, which hold the models alone that it prepared."""
    called = {call.func.attr.value for call in source.calls if isinstance(call.func, cst.Attribute)}
    used = sorted(called & {"load_state", "save_state"}, reverse=True)
    return _SAVES_NONE.format(" and ".join(used)) if used else ""


def _is_wrapped_here(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether FSDP1's class itself makes a model in any case: a function may look at a config first."""
    value = (
        last_value(source.index, model)
        if isinstance(model, cst.Name) and model in source.index.scopes
        else model
    )
    return isinstance(value, cst.Call) and source.models.is_constructor(value.func)


def stopped_calls(source: Source) -> Iterator[tuple[cst.Call, Stopped]]:
    """Yield the calls at which Accelerate's FSDP2 stops, where a config of the project may ask for it."""
    calls = [call for call in source.calls if method_that_shards(source.index, call.func)]
    for call in calls:
        if _is_elsewhere(source, call):
            continue
        if meant := _refused(source, call):
            yield call, _why(source, call, meant)
        elif _held_besides(source, call):
            yield call, "holds more"
        elif _is_second(source, call, calls):
            yield call, "second"


def _why(source: Source, call: cst.Call, meant: str) -> Stopped:
    """Return why a call is refused: its models are trained by none, or are several, or are without theirs.

    Alone: nothing where it stands shows that they have one.
    """
    if _are_untrained(source, call):
        return "not trained"
    if meant == _SEVERAL or _held_together(source, call):
        return "several"
    return "refused" if meant != _MEANT or has_optimizer_beside(source, call) else "refused alone"


def _are_untrained(source: Source, call: cst.Call) -> bool:
    """Tell whether a call is given models, and none that the source trains."""
    models = _given_models(source, call)
    return bool(models) and all(is_not_trained(source, call, each) for each in models)


def _given_models(source: Source, call: cst.Call) -> list[cst.BaseExpression]:
    if method_that_shards(source.index, call.func) == "prepare_model":
        return [each.value for each in call.args[:1]]
    asked = asked_as_models(source.index)
    return [each.value for each in call.args if is_model(_name_of(source, each.value), asked)]


def _held_together(source: Source, call: cst.Call) -> list[str]:
    """Return the models of one optimizer that are prepared here, where a call is given one of them, or it."""
    calls = [each for each in source.calls if method_that_shards(source.index, each.func)]
    prepared_here = {text_of(arg.value) for each in calls for arg in each.args}
    for arg in call.args:
        text, owners = text_of(arg.value), _owners(source, arg.value)
        held = [owners] if owners else held_together(source, call, text)
        for each in held:
            together = [owner for owner in dict.fromkeys(each) if owner in prepared_here]
            if len(together) > 1 and (owners or text in together):
                return together
    return []


def _owners(source: Source, node: cst.BaseExpression) -> list[str]:
    """Return whose parameters an optimizer holds, by its name."""
    if not isinstance(node, (cst.Attribute, cst.Name)) or "opt" not in _name_of(source, node):
        return []
    made = seen_value(source.index, node)
    return [] if made is None else [text_of(each) for each in whose_parameters(source, made)]


def _knows_of_fsdp(source: Source) -> bool:
    """Tell whether a source asks Accelerate for FSDP, or asks whether it was, or gives FSDP1 its models."""
    if asks_for_plugin(source.index) or asks_for_fsdp(source.index):
        return True
    if asks_by_switch(source.index, source.models.guards) or _is_named_so(source):
        return True
    wraps = any(source.index.fsdp1(call.func) == FSDP for call in source.calls)
    return not wraps and any(map(source.class_function, source.calls))


def _is_named_so(source: Source) -> bool:
    """Tell whether a function that prepares has FSDP in its name, or a comment speaks for it."""
    if _FOR_FSDP.search(source.code) is not None:
        return any(method_that_shards(source.index, call.func) for call in source.calls)
    around = (source.index.function(c) for c in source.calls if method_that_shards(source.index, c.func))
    return any(each is not None and "fsdp" in each.name.value.lower() for each in around)


def _is_elsewhere(source: Source, call: cst.Call) -> bool:
    """Tell whether a call stands in a branch that FSDP does not come to."""
    if is_in_other_engines_branch(source, call):
        return True
    facts = source.models.guards.facts(call)
    return any(fsdp_said(test, truth=truth, index=source.index) is False for test, truth in facts)


def _refused(source: Source, call: cst.Call) -> str:
    """Return what is said of a call that Accelerate's FSDP2 refuses, by what its arguments are called."""
    if method_that_shards(source.index, call.func) == "prepare_model":
        return "" if _is_for_evaluation(call) else _MEANT  # it takes no optimizer, and refuses FSDP2
    if re.search(MODEL_ALONE, f"accelerator.{method_that_shards(source.index, call.func)}{_given(call)}"):
        return _MEANT
    if any(arg.star for arg in call.args):
        return _SEVERAL if _lists_several(source, call) else ""
    if (trainer := _optimizer_to_come(source, call)) is not None:
        return _NOT_YET.format(trainer)
    names = _names(source, call)
    others = [name for name in names if _OTHERS.search(name)]
    models = _models(source, call)
    if len(models) > 1:
        return _SEVERAL
    if models and _is_beside_no_optimizer(source, call):
        return _MEANT
    return _MEANT if others == names and any("opt" in name for name in names) else ""


def _optimizer_to_come(source: Source, call: cst.Call) -> str | None:
    """Return the Trainer whose optimizer a call is given, where it has made none so far."""
    index, trainers = source.index, source.models.frameworks.trainers
    for arg in call.args:
        asked = arg.value
        if not isinstance(asked, cst.Attribute) or asked.attr.value != "optimizer":
            continue
        made = trainers.made(asked.value) if dotted(asked.value) not in {None, "self"} else None
        if made is None or "optimizers" in named_arguments(made):
            continue
        makes = [*index.calls_of_method("create_optimizer"), *index.calls_of_method("train")]
        makes += index.calls_of_method("create_optimizer_and_scheduler")
        if all(index.order[each] > index.order[call] for each in makes):
            return text_of(asked.value)
    return None


def _lists_several(source: Source, call: cst.Call) -> bool:
    """Tell whether a list that a call is given by a star has several models, where it grows below too."""
    index, asked = source.index, asked_as_models(source.index)
    parts: list[tuple[cst.CSTNode, set[str]]] = []
    for place, names in ((call, given_to(index, call)), *added_to(index, call)):
        models = {each for each in names if is_model(each, asked)}
        others = [held for where, held in parts if not index.excludes(where, place)]
        if len(models.union(*others)) > 1:
            return True
        parts.append((place, models))
    return False


def _is_beside_no_optimizer(source: Source, call: cst.Call) -> bool:
    """Tell whether all that a model is prepared with is shown to be something else than its optimizer."""
    known = {*_models(source, call), *made_as_others(source.index)}
    given = zip(_names(source, call), call.args, strict=True)
    return all(name in known or _is_data(source, name, arg.value) for name, arg in given)


def _is_data(source: Source, name: str, node: cst.BaseExpression) -> bool:
    """Tell whether something is no optimizer by its name, what it is given, or its annotation."""
    if _DATA.search(name):
        return True
    if not isinstance(node, cst.Name) or node not in source.index.scopes:
        return False
    bound = source.index.bindings_of(node)
    notes = [each.node.annotation for each in bound if isinstance(each.node, cst.Param)]
    texts = [text_of(each.annotation) for each in notes if each is not None]
    if len(texts) == len(bound) > 0:
        return all(map(_OF_DATA.search, texts))
    return isinstance(last_value(source.index, node), _LITERALS)


def _is_trainers(source: Source, call: cst.Call) -> bool:
    """Tell whether Hugging Face's Trainer, which makes the optimizer itself, is given the model below."""
    models = set(_models(source, call))
    return any(
        any(map(HUGGING_FACES.match, led_to(source.index, each.func)))
        and source.index.order[each] > source.index.order[call]
        and source.index.function(each) is source.index.function(call)
        and not models.isdisjoint([*_names(source, each)[:1], *_given_as(each, "model")])
        for each in source.calls
    )


def _given_as(call: cst.Call, keyword: str) -> list[str]:
    named = given_by_name(call, keyword)
    return [(dotted(value) or "?").split(".")[-1].lower() for value in named]


def _held_besides(source: Source, call: cst.Call) -> list[str]:
    """Return what else an optimizer has the parameters of that is prepared with a model."""
    given = [arg.value for arg in call.args if isinstance(arg.value, (cst.Name, cst.Attribute))]
    models = {text_of(node) for node in given if not _OTHERS.search((dotted(node) or "").lower())}
    for node in given:
        made = last_value(source.index, node) if "opt" in (dotted(node) or "").lower() else None
        if isinstance(made, cst.Call):
            held = dict.fromkeys(text_of(each) for each in whose_parameters(source, made))
            owner = next((name for name in held if name in models), None)
            # Without the model's own it is not known what the model holds.
            if owner is not None:
                return [name for name in held if name != owner and not name.startswith(f"{owner}.")]
    return []


def _names(source: Source, call: cst.Call) -> list[str]:
    """Return what a call is given is called; an item as one of its list: ``models[i]`` as a ``model``."""
    return [_name_of(source, arg.value) for arg in call.args]


def _name_of(source: Source, node: cst.BaseExpression) -> str:
    if isinstance(node, cst.Subscript):
        return _one_of(node.value)
    over = _gone_through(source, node) if isinstance(node, cst.Name) and node in source.index.scopes else None
    return _one_of(over) if over is not None else (dotted(node) or "?").split(".")[-1].lower()


def _one_of(whole: cst.BaseExpression) -> str:
    return (dotted(whole) or "?").split(".")[-1].lower().removesuffix("s") or "?"


def _gone_through(source: Source, name: cst.Name) -> cst.BaseExpression | None:
    """Return the list whose items a loop gives a name: ``for i, net in enumerate(self.models)``."""
    bindings = source.index.bindings_of(name)
    loops = [
        above
        for each in bindings
        for above in source.index.ancestors(each.node)
        if isinstance(above, (cst.For, cst.CompFor)) and each.node in {*walk_for(above.target, cst.Name)}
    ]
    if len(loops) != len(bindings) or len(loops) != 1:
        return None
    over = loops[0].iter
    if isinstance(over, cst.Call) and dotted(over.func) == "enumerate" and over.args:
        over = over.args[0].value
    return over if isinstance(over, (cst.Name, cst.Attribute)) else None


def _models(source: Source, call: cst.Call) -> list[str]:
    """Return what the models are called that a call is given."""
    asked = asked_as_models(source.index)
    return [name for name in _names(source, call) if is_model(name, asked)]


def _is_second(source: Source, call: cst.Call, calls: list[cst.Call]) -> bool:
    """Tell whether another model was prepared before, by whose layers' class FSDP1 wrapped this one too."""
    models, home = _models(source, call), source.index.function(call)
    if not models or _is_for_evaluation(call) or not names_layers(source.index):
        return False
    return any(
        _models(source, other) not in ([], models)
        and source.index.function(other) is home
        and source.index.order[other] < source.index.order[call]
        and not source.index.excludes(other, call)
        for other in calls
    )


def _is_sharded(source: Source, call: cst.Call, node: cst.BaseExpression) -> bool:
    """Tell whether the source has sharded itself what a call is given."""
    models = source.models
    key = models.key_of(node)
    if key is None or models.certainty(node) is None:
        return False
    for target in models.made.get(key, ()):
        line = source.index.statement(target)
        made = [each for each in walk_for(line, cst.Call) if "fsdp" in models.kinds(each)]
        is_own = any(_shards_itself(source, each) for each in made)
        if is_own and call not in made and source.index.order[target] < source.index.order[call]:
            return not source.index.excludes(target, call)
    return False


def _shards_itself(source: Source, call: cst.Call) -> bool:
    """Tell whether a call that gives an FSDP1 model is the source's own, and hands on no framework's.

    What Accelerate shards has the name that it had before: ``self.model = self.model.to(device)``.
    """
    models = source.models
    if prepared(source.index, call):
        return False
    if not by_whom(models.kinds(call)):
        return True
    inner = (each for function in models.guards.functions(call.func) for each in walk_for(function, cst.Call))
    return any(models.is_constructor(each.func) for each in inner)


def _is_for_evaluation(call: cst.Call) -> bool:
    """Tell whether ``prepare_model(model, evaluation_mode=True)`` leaves the model whole, in FSDP2 too."""
    given = given_by_name(call, "evaluation_mode")
    return any(text_of(value) != "False" for value in given)


def _given(call: cst.Call) -> str:
    return f"({', '.join(text_of(each.value) if each.keyword is None else '*' for each in call.args)})"
