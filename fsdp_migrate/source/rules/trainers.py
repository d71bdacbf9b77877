"""FSDP1 as Composer's Trainer is told of it, and as a class of Hugging Face's Trainer makes it itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.adapters.engine.claims import TRANSFORMERS
from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.heirs import COMPOSERS, HUGGING_FACES, led_to
from fsdp_migrate.source.python.nodes import dotted, short, word_of
from fsdp_migrate.source.python.trainer_arguments import are_arguments
from fsdp_migrate.source.python.trainer_models import SETTINGS, TRAINER
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "trainers"
CODES = ("FM327", "FM328", "FM358")

_COMPOSER = (
    "Composer: add fsdp_migrate.adapters.composer_callback's callback to the Trainer, or give it an "
    "fsdp2_config under parallelism_config."
)
_NO_ARGUMENT = (
    " And the mosaicml that the callback needs, 0.32 or newer, has no argument `fsdp_config`: write "
    'parallelism_config={{"fsdp": {value}}}, or None where that is None.'
)
_BY_VALUE = (
    "Composer's FSDP1 takes 'value' for the greatest element, to which it scales the whole gradient down; "
    "its FSDP2 cuts off each element: fsdp_migrate.adapters.composer_callback's callback clips as FSDP1 did."
)
_CLIPS = re.compile(r"^composer\.algorithms\b.*\.(GradientClipping|apply_gradient_clipping)$")
_SHARDS_ITSELF = (
    "this Trainer shards its model itself, and its save_model writes self.model.state_dict(), which holds "
    "one rank's parts now: give the arguments fsdp_config with 'version': 2 in place of this, or the class a "
    "save_model that saves fsdp_migrate.runtime.full_state_dict(self.model), asked for on every rank."
)
_NO_FSDP = (
    f"{TRANSFORMERS['no_fsdp_attribute'].says} in the transformers that run FSDP2, "
    f"{TRANSFORMERS['version_read'].since} and newer: this raises. Ask `{{}}.is_fsdp_enabled`."
)
_TEXT = (
    f"{TRANSFORMERS['fsdp_is_bool'].says}, in transformers {TRANSFORMERS['fsdp_is_bool'].since} and newer: "
    "{}. Ask `bool({})`; strategy, policy and offload stand in `fsdp_config`."
)
_RAISES = "this raises"
_IS_OTHER = "this is another answer than before"
_TAKES_WORDS = frozenset({"any", "all", "enumerate", "iter", "len", "list", "map", "set", "sorted", "tuple"})
_TRAINERS = re.compile(r"^(?:transformers|trl)\b.*Trainer$")
_TRAINER = re.compile(r"(?:self\._?)?(?:\w+_)?trainer")
_PUTS = frozenset({"setdefault", "update"})
# What is called so shows what it is given, or holds what is shown.
_LOGS = re.compile(r"^_*(?:log|logged|logger|loggers|logging|logs|print|pprint|wandb|mlflow)(?:_|$)")
_SAVES = frozenset({"_save", "_save_checkpoint", "save_model"})


def find(source: Source) -> Iterator[Found]:
    """Find the arguments of Trainers that ask for FSDP1, and Trainers that shard by it themselves."""
    yield from _sharding_themselves(source)
    yield from _asking_for_fsdp(source)
    yield from _reading_what_is_given(source)
    asked = list(_asked_of_composer(source))
    yield from asked
    for call in source.calls if asked else ():
        if any(map(_CLIPS.match, source.index.qualified(call.func))):
            by = [
                arg.value for arg in call.args if arg.keyword is None or arg.keyword.value == "clipping_type"
            ]
            if any(word_of(each) == "value" for each in by):
                yield Found("FM328", call, _BY_VALUE, "commented")


def _asked_of_composer(source: Source) -> Iterator[Found]:
    for call in source.calls:
        if not any(_is_setting(arg) for arg in call.args):
            continue
        is_a_dict = dotted(call.func) == "dict" and _imports(source, "composer")
        if is_a_dict and _is_logged(source, call):
            continue
        if not is_a_dict and not _is_composers(source, call):
            continue
        for arg in call.args:
            if not _is_setting(arg) or _is_nothing(arg.value):
                continue
            is_gone = not is_a_dict and arg.keyword is not None and arg.keyword.value == "fsdp_config"
            gone = _NO_ARGUMENT.format(value=short(arg.value)) if is_gone else ""
            yield Found("FM328", arg, _COMPOSER + gone, "commented")

    yield from _items_for_composer(source) if _imports(source, "composer") else ()


def _items_for_composer(source: Source) -> Iterator[Found]:
    """Find the settings as items of dicts, which another function, or file, gives to the Trainer."""
    for node in (*source.index.by_kind.get(cst.DictElement, ()), *source.index.by_kind.get(cst.Assign, ())):
        if isinstance(node, cst.DictElement):
            named, value = [node.key], node.value
        else:
            assign = cst.ensure_type(node, cst.Assign)
            named, value = [key for each in assign.targets for key in _item(each.target)], assign.value
        texts = (each.evaluated_value for each in named if isinstance(each, cst.SimpleString))
        is_plain = isinstance(value, (cst.BaseNumber, cst.SimpleString))
        is_one = any(text in SETTINGS for text in texts) and not is_plain and not _is_nothing(value)
        if is_one and not _is_logged(source, node):
            yield Found("FM328", node, _COMPOSER, "commented")


def _is_logged(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether a dict's item is only shown: ``logged.update({"fsdp_config": x})``, ``log_config({...})``.

    Where such a dict is given on by ``**`` it may reach a Trainer.
    """
    taker: cst.BaseExpression | None = None
    for above in (node, *source.index.ancestors(node)):
        if isinstance(above, cst.Call) and dotted(above.func) != "dict":
            func = above.func
            is_put = isinstance(func, cst.Attribute) and func.attr.value in _PUTS
            taker = func.value if isinstance(func, cst.Attribute) and is_put else func
        elif isinstance(above, cst.Assign):
            target = above.targets[0].target if len(above.targets) == 1 else None
            taker = target.value if isinstance(target, cst.Subscript) else target
        if taker is not None or isinstance(above, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
            break
    name = (dotted(taker) or "") if taker is not None else ""
    given = (arg.value for call in source.calls for arg in call.args if arg.star == "**")
    return any(map(_LOGS.search, name.split("."))) and all(dotted(each) != name for each in given)


def _item(target: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return the key of an item that is set: ``kwargs["fsdp_config"] = ...``."""
    if not isinstance(target, cst.Subscript) or len(target.slice) != 1:
        return []
    index = target.slice[0].slice
    return [index.value] if isinstance(index, cst.Index) else []


def _is_setting(arg: cst.Arg) -> bool:
    return arg.keyword is not None and arg.keyword.value in SETTINGS


def _is_composers(source: Source, call: cst.Call) -> bool:
    """Tell whether a call makes Composer's Trainer, or one of a class whose bases lead to it."""
    if any(map(COMPOSERS.match, led_to(source.index, call.func))):
        return True
    known = sorted(source.index.qualified(call.func)) or [dotted(call.func) or ""]
    return known[0].split(".")[-1] == "Trainer" and _imports(source, "composer")


def _sharding_themselves(source: Source) -> Iterator[Found]:
    """Find ``self.model = FSDP(model)`` in a class of Hugging Face's Trainer that leaves saving to it."""
    for call in source.calls:
        owner = source.index.class_of(call) if source.index.fsdp1(call.func) == catalog.FSDP else None
        if owner is None or not any(
            HUGGING_FACES.match(name) for base in owner.bases for name in led_to(source.index, base.value)
        ):
            continue
        methods = {each.name.value for each in owner.body.body if isinstance(each, cst.FunctionDef)}
        above, function = source.index.parents[call], source.index.function(call)
        targets = [dotted(each.target) for each in above.targets] if isinstance(above, cst.Assign) else []
        is_kept = bool(targets) or isinstance(above, cst.Return)
        is_its_model = function is not None and function.name.value == "_wrap_model"
        if is_kept and (is_its_model or "self.model" in targets) and not methods & _SAVES:
            yield Found("FM327", above, _SHARDS_ITSELF, "commented")


def _asking_for_fsdp(source: Source) -> Iterator[Found]:
    """Find ``trainer.fsdp``, and ``self.fsdp`` of a Trainer's class that does not set it."""
    trainers, index = source.models.frameworks.trainers, source.index
    for node in source.attributes if trainers.is_asked or trainers.run_by_trainer else ():
        if node.attr.value != "fsdp" or isinstance(index.parents[node], cst.AssignTarget):
            continue
        owner = dotted(node.value) or ""
        is_its = owner == "self" and trainers.kind_around(node) == TRAINER
        is_one = _TRAINER.fullmatch(owner) is not None and _imports(source, "transformers")
        is_one = is_one or (bool(owner) and trainers.made(node.value) is not None)
        is_one = is_one or _is_annotated(source, node.value)
        if index.places_set(f"{owner}.fsdp"):
            continue
        if is_its or is_one:
            yield Found("FM358", node, _NO_FSDP.format(owner), "commented")
        elif are_arguments(owner, source.code) and (what := _read_as_words(source, node)):
            yield Found("FM358", node, _TEXT.format(what, f"{owner}.fsdp"), "commented")


def _reading_what_is_given(source: Source) -> Iterator[Found]:
    """Find parameters, and names, to which the arguments' ``fsdp`` comes and which are read as its words."""
    index, given = source.index, source.links.given_words
    is_asked = source.models.frameworks.trainers.is_asked and ".fsdp" in source.code
    for node in index.by_kind.get(cst.Name, ()) if given or is_asked else ():
        name = cst.ensure_type(node, cst.Name)
        what = _read_as_words(source, name) if name in index.scopes else ""
        if not what:
            continue
        bindings, function = index.bindings_of(name), index.function(name)
        if len(bindings) == 1 and bindings[0].kind == "param" and function is not None:
            is_its = (index.path_of(function), name.value) in given
        else:
            values = [dotted(each.value) or "" if each.value is not None else "" for each in bindings]
            is_its = bool(values) and all(
                each.endswith(".fsdp") and are_arguments(each.removesuffix(".fsdp"), source.code)
                for each in values
            )
        if is_its:
            yield Found("FM358", name, _TEXT.format(what, name.value), "commented")


def _is_annotated(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether it is a parameter that is said to be a Trainer: ``run: transformers.Trainer``."""
    if not isinstance(node, cst.Name) or node not in source.index.scopes:
        return False
    params = [each.node for each in source.index.bindings_of(node) if isinstance(each.node, cst.Param)]
    said = (each.annotation.annotation for each in params if each.annotation is not None)
    return any(_TRAINERS.match(name) for each in said for name in source.index.qualified(each))


def _read_as_words(source: Source, node: cst.Attribute | cst.Name) -> str:
    """Return what becomes of a place that reads ``args.fsdp`` as a text or a list; nothing of others."""
    above = source.index.parents[node]
    if isinstance(above, cst.Arg):
        call = source.index.parents[above]
        is_taken = isinstance(call, cst.Call) and dotted(call.func) in _TAKES_WORDS
        return _RAISES if is_taken and not above.keyword else ""
    if isinstance(above, (cst.For, cst.CompFor)):
        return _RAISES if above.iter is node else ""
    if isinstance(above, (cst.Attribute, cst.Subscript)):
        return _RAISES if above.value is node else ""
    if isinstance(above, cst.ComparisonTarget):
        return _RAISES if isinstance(above.operator, (cst.In, cst.NotIn)) else _compared_to(above, source)
    if isinstance(above, cst.Comparison):
        target = above.comparisons[0]
        is_text = isinstance(target.comparator, (cst.SimpleString, cst.List))
        is_same = isinstance(target.operator, (cst.Equal, cst.NotEqual))
        return _IS_OTHER if is_text and is_same and len(above.comparisons) == 1 else ""
    return ""


def _compared_to(target: cst.ComparisonTarget, source: Source) -> str:
    above = source.index.parents[target]
    left = above.left if isinstance(above, cst.Comparison) else None
    is_same = isinstance(target.operator, (cst.Equal, cst.NotEqual))
    return _IS_OTHER if is_same and isinstance(left, (cst.SimpleString, cst.List)) else ""


def _is_nothing(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) and node.value in {"None", "False"}


def _imports(source: Source, package: str) -> bool:
    bindings = (b for every in source.index.scope.bindings.values() for b in every)
    return any(b.qualified is not None and b.qualified.split(".")[0] == package for b in bindings)
