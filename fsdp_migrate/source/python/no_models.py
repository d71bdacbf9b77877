"""Objects that have a state dict and are no model: optimizers, schedules, scalers, loaders, metrics."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.last_values import values_set
from fsdp_migrate.source.python.nodes import dotted, last_name, text_of, walk_for
from fsdp_migrate.source.python.wrappers import of_others


if TYPE_CHECKING:
    from fsdp_migrate.source.python.scopes import Binding, Index


# Words in the names of objects whose state dicts are not those of a model.
_WORDS = ("optim", "sched", "scaler", "sampler", "loader", "dataset", "tracker", "timer", "metric")
_RANDOM = re.compile(r"(^|_)(rng|random_state)s?(_|$)")
# The packages and modules whose classes and functions make none, whatever their objects are called.
_HOMES = (
    "diffusers.optimization.",
    "diffusers.training_utils.EMAModel",
    "diffusers.EMAModel",
    "lion_pytorch.",
    "random.",
    "timm.optim.",
    "timm.scheduler.",
    "torch.Generator",
    "torch.amp.",
    "torch.cuda.amp.",
    "torch.optim.",
    "torch.utils.data.",
    "torch_ema.",
    "torchdata.",
    "torchmetrics.",
    "transformers.get_",
    "transformers.optimization.",
)
# It holds a copy of the model, which has a state of its own.
_HOLDS_A_MODEL = frozenset({"AveragedModel"})
_PARAMETERS = re.compile(r"(?:^|[._])parameters\(\)+$")
_PLAIN = re.compile(
    r"(?:typing\.|collections\.abc\.|pathlib\.|os\.)?(?:bool|bytes|float|int|str|Path|PathLike"
    r"|(?:dict|list|tuple|set|frozenset|Dict|List|Tuple|Set|Mapping|MutableMapping|Sequence|Iterable|OrderedDict)"
    r"(?:\[(?P<inner>.*)\])?)\Z"
)
_OF_MODELS = re.compile(r"model|module|net|\bAny\b|FSDP|FullyShardedDataParallel|object|\bT\b", re.IGNORECASE)
_STATE = frozenset({"load_state_dict", "state_dict"})
_MAX_DEPTH = 3


def is_no_model(index: Index, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Tell whether an object is no model: by its name, by what makes it, or by its annotation."""
    if _is_by_name(text_of(node)):
        return True
    if depth > _MAX_DEPTH:
        return False
    if isinstance(node, cst.Call):
        return _is_made_as_none(index, node, depth)
    if isinstance(node, cst.IfExp):
        parts = [each for each in (node.body, node.orelse) if text_of(each) != "None"]
        return bool(parts) and all(is_no_model(index, each, depth + 1) for each in parts)
    if isinstance(node, cst.Attribute):
        values = [each for each in values_set(index, node) if text_of(each) != "None"]
        return bool(values) and all(is_no_model(index, each, depth + 1) for each in values)
    if not isinstance(node, cst.Name) or node not in index.scopes:
        return False
    # What it is before it is made counts for nothing: `scheduler = None`.
    bindings = [each for each in index.scopes[node].lookup(node.value) if not _is_none(each)]
    return bool(bindings) and all(_is_bound_to_none(index, each, depth) for each in bindings)


def is_annotated_plain(index: Index, node: cst.BaseExpression) -> bool:
    """Tell whether a name is of a parameter that its annotation says to be no module, and to hold none.

    ``progress: dict``, ``name: str | None``, but not ``models: list[nn.Module]``; or to be in
    another wrapper.
    """
    if not isinstance(node, cst.Name) or node not in index.scopes:
        return False
    bindings = index.scopes[node].lookup(node.value)
    notes = [each.node.annotation for each in bindings if isinstance(each.node, cst.Param)]
    is_all = bool(notes) and len(notes) == len(bindings)
    return is_all and all(
        each is not None and (_is_plain(text_of(each.annotation)) or _is_of_others(index, each.annotation))
        for each in notes
    )


def _is_of_others(index: Index, annotation: cst.BaseExpression) -> bool:
    """Tell whether an annotation is the class of another wrapper than FSDP's: ``DistributedDataParallel``."""
    return any(map(of_others, index.qualified(annotation)))


def _is_plain(annotation: str) -> bool:
    text = annotation.strip("'\" ")
    optional = re.fullmatch(r"(?:typing\.)?Optional\[(.*)\]", text)
    parts = [each.strip() for each in (optional[1] if optional else text).split("|")]
    found = [_PLAIN.match(each) for each in parts if each != "None"]
    return bool(found) and all(
        each is not None and not (each["inner"] and _OF_MODELS.search(each["inner"])) for each in found
    )


def is_of_no_model(index: Index, name: cst.Name | cst.Attribute) -> bool:
    """Tell whether a name is that of a class whose objects are no models."""
    names = index.qualified(name)
    if any(each.split(".")[-1] in _HOLDS_A_MODEL for each in names):
        return False
    return bool(names) and all(each.startswith(_HOMES) for each in names)


def _is_by_name(text: str) -> bool:
    last = text.lower().split(".")[-1]
    return last == "opt" or last.endswith("_opt") or any(word in last for word in _WORDS) or _is_random(text)


def _is_random(text: str) -> bool:
    """Tell whether a name is that of a state of random numbers: ``rng_state_item``."""
    return _RANDOM.search(text.lower().split(".")[-1]) is not None


def _is_none(binding: Binding) -> bool:
    return binding.index is None and binding.value is not None and text_of(binding.value) == "None"


def _is_bound_to_none(index: Index, binding: Binding, depth: int) -> bool:
    """Tell whether one place at which a name gets a value gives it something that is no model."""
    if isinstance(binding.node, cst.Param) and binding.node.annotation is not None:
        return _is_by_name(text_of(binding.node.annotation.annotation))
    if binding.index is not None or binding.value is None:
        # `key, stateful = rng_state_item`
        return isinstance(binding.value, (cst.Name, cst.Attribute)) and _is_random(text_of(binding.value))
    return is_no_model(index, binding.value, depth + 1)


def _is_made_as_none(index: Index, call: cst.Call, depth: int) -> bool:
    """Tell whether a call makes no model: by where its function is from, or by what a class here does."""
    names = index.qualified(call.func)
    if any(name.split(".")[-1] in _HOLDS_A_MODEL for name in names):
        return False
    if any(name.startswith(_HOMES) for name in names) or _is_by_name(dotted(call.func) or ""):
        return True
    bindings = index.bindings_of(call.func) if isinstance(call.func, cst.Name) else []
    classes = [each.node for each in bindings if isinstance(each.node, cst.ClassDef)]
    if classes:
        return all(_has_a_state_of_its_own(index, each) for each in classes)
    if _holds_parameters(call):
        return True
    functions = [each.node for each in bindings if isinstance(each.node, cst.FunctionDef)]
    given = [e.value for f in functions for e in walk_for(f.body, cst.Return) if e.value is not None]
    return bool(given) and all(is_no_model(index, each, depth + 1) for each in given)


def _holds_parameters(call: cst.Call) -> bool:
    """Tell whether a class of another file is given parameters: ``Average(model.parameters())``."""
    name = last_name(call.func)
    given = call.args[0].value if call.args and not call.args[0].star else None
    is_list = given is not None and _PARAMETERS.search(text_of(given)) is not None
    return is_list and name[:1].isupper() and not name.startswith("Parameter")


def _has_a_state_of_its_own(index: Index, node: cst.ClassDef) -> bool:
    """Tell whether a class is no module, and its state asks no other object for one."""
    bases = [name for base in node.bases for name in (dotted(base.value) or "?",)]
    known = {name for base in node.bases for name in index.qualified(base.value)}
    if any(name.startswith(_HOMES) for name in known):
        return not any(name.split(".")[-1] in _HOLDS_A_MODEL for name in known)
    methods = [each for each in node.body.body if isinstance(each, cst.FunctionDef)]
    states = [each for each in methods if each.name.value in _STATE]
    if not states or any(base not in {"ABC", "Protocol", "abc.ABC", "object"} for base in bases):
        return False
    asked = (attribute for each in states for attribute in walk_for(each.body, cst.Attribute))
    return not any(each.attr.value in _STATE or each.attr.value.endswith("_dict") for each in asked)
