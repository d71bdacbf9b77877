"""What takes the place of FSDP1's own ways where a framework shards the model: in the framework's words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.method_calls import mixed_with
from fsdp_migrate.source.python.accelerate_models import asks_for_plugin
from fsdp_migrate.source.python.accelerators import is_accelerator, is_one, method_that_shards
from fsdp_migrate.source.python.asked_classes import is_fsdp1_class
from fsdp_migrate.source.python.fabric_models import FABRIC, FABRICS, is_fabrics_own, may_shard
from fsdp_migrate.source.python.heirs import HUGGING_FACES, led_to
from fsdp_migrate.source.python.held import HANDS_ON, taken
from fsdp_migrate.source.python.nodes import dotted, named_arguments, short, text_of
from fsdp_migrate.source.python.trainer_models import CALLBACK, TRAINER
from fsdp_migrate.source.sharded_parts import whole_of


if TYPE_CHECKING:
    from fsdp_migrate.source.python.text import Source


_NAMES: Final = {
    "accelerate": "Accelerate",
    "composer": "Composer",
    "fabric": "Fabric",
    "lightning": "Lightning",
    "transformers": "Hugging Face's Trainer",
}
_BY_NAME: Final = "by its name this may be the model that is sharded elsewhere here: where it is, "
_WHOLE: Final = (
    "get_model_state_dict({}, options=StateDictOptions(full_state_dict=True, cpu_offload=True)) of torch, on "
    "every rank"
)
_STATES: Final = {
    "accelerate": "accelerator.get_state_dict(model), on every rank",
    "fabric": f"fabric.save(path, {{'model': model}}), or {_WHOLE.format('model.module')}",
    "transformers": (
        "trainer.accelerator.get_state_dict(trainer.model), on every rank, or trainer.save_model(path)"
    ),
}
_LOADS: Final = {"fabric": "fabric.load_raw(path, model), or load_model_state_dict of fsdp_migrate.runtime"}
_CLIPS: Final = {
    "accelerate": "accelerator.clip_grad_norm_(model.parameters(), max_norm)",
    "fabric": "fabric.clip_gradients(model, optimizer, max_norm=max_norm)",
    "lightning": "self.clip_gradients(optimizer, gradient_clip_val=max_norm)",
    "transformers": "max_grad_norm of the arguments",
}
_LEAVE_NORM: Final = (
    "Leave this line, whose norm is used: self.clip_gradients gives none. .full_tensor() of it is a plain "
    "tensor"
)
_UNSYNCED: Final = {"accelerate": "accelerator.no_sync(model)", "fabric": "fabric.no_backward_sync(model)"}
_ASKED: Final = {
    "accelerate": "accelerator.get_state_dict(model)",
    "transformers": "trainer.accelerator.get_state_dict(trainer.model)",
}
_OF_PARAMETERS: Final = re.compile(r"init|weight|bias|param|reset|copy|fill|lambda")
_GATHERS: Final = frozenset({"gather", "gather_for_metrics", "pad_across_processes", "reduce"})
_GATHERS_BY_NAME: Final = re.compile(
    r"^accelerate\.utils\.(operations\.)?(broadcast|gather|pad_across_processes|reduce)$"
)
_FABRICS: Final = frozenset({"all_gather", "all_reduce", "broadcast"})
_GATHERERS: Final = frozenset({"pl_module", "self", "trainer.strategy", "self.trainer.strategy"})
_OTHERS: Final = frozenset({"fabric", "lightning"})


_KEPT: Final = (
    "where {} shards this model, this holds the parameters from before that, in whose place FSDP2 puts new "
    "ones: what is clipped, averaged or stepped by it is not the model's. {}"
)
_MADE_ANEW: Final = {
    "accelerate": (
        "Make it of the prepared model; the optimizer that is prepared with the model alone is given the new "
        "ones. The whole is clipped by accelerator.clip_grad_norm_(model.parameters(), max_norm)."
    ),
    "fabric": "Make it after fabric.setup_module(model), of the model that this gives.",
    "lightning": "Make it where it is used, or in on_fit_start, of the parameters that the module has then.",
    "transformers": (
        "Make it where it is used, or in on_train_begin of a callback; the Trainer's own optimizer is given "
        "the new ones."
    ),
}
_STEPPED: Final = (
    "`{}` is what the optimizer was made of above the call by which {} shards: where these are the model's "
    "parameters, FSDP2 has put new ones in their place, and the old ones have no gradient any more{}. {}"
)
_OF_OLD_ONES: Final = {
    "accelerate": ": clip_grad_norm_ of them clips nothing, or raises where it is Accelerate's",
}
_GIVE_NEW: Final = {
    "": "Take the sharded model's, and give the optimizer to prepare_fully_shard as optimizers=.",
    "accelerate": "Take accelerator.clip_grad_norm_(model.parameters(), max_norm), of the prepared model.",
    "fabric": "Take the parameters of what fabric.setup_module(model) gives, and make the optimizer of them.",
}


# Within the Trainer's own class it is `self`; and a callback is given the model without its Trainer.
_BY_PLACE: Final = {
    TRAINER: "self.accelerator.get_state_dict(self.model)",
    CALLBACK: (
        "torch's get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, "
        "cpu_offload=True))"
    ),
}

_SAVES_ITSELF = (
    "; where it is a class of this project, whose save_pretrained has no such argument, take that state in "
    "it, and have every rank call it"
)


def name_of_framework(source: Source, model: cst.BaseExpression) -> str:
    """Return what the framework is called that shards a model."""
    return _NAMES.get(source.models.sharded_by(model), "")


def frameworks_shard(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether Accelerate or Hugging Face's Trainer shards a model, also where a config alone says how.

    FSDP1's functions that are given it show that it is sharded, and what wraps nothing itself has a
    framework do it: it has models prepared, or is a Trainer.
    """
    if source.models.sharded_by(model) in {"accelerate", "transformers"}:
        return True
    if any(source.models.is_constructor(call.func) for call in source.calls):
        return False
    owner = source.index.class_of(model)
    bases = (base.value for base in owner.bases) if owner is not None else ()
    is_trainer = any(HUGGING_FACES.match(name) for base in bases for name in led_to(source.index, base))
    return is_trainer or any(method_that_shards(source.index, call.func) for call in source.calls)


def mixed(source: Source, model: cst.BaseExpression) -> str:
    """Return how a comment begins that is about a model which may be sharded."""
    name = _NAMES.get(source.models.sharded_by(model), "")
    if not name and source.models.is_unknown(model):
        return _BY_NAME
    return f"this may be the model that {name} shards: where it is, " if name else mixed_with(source, model)


def state(source: Source, model: cst.BaseExpression, *, is_load: bool) -> str:
    """Return what gives, or takes, the whole state of a model that may be sharded."""
    by = source.models.sharded_by(model)
    if is_load:
        return _LOADS.get(by, "load_model_state_dict of fsdp_migrate.runtime, given the model")
    if (own := _by_place(source, model)) is not None:
        return f"{own}, on every rank"
    if by == "fabric" and source.models.is_inner(model):
        return _WHOLE.format(short(model, 30))
    # Without these options rank 0 would save its own shards, without an error.
    found = _STATES.get(
        by, _WHOLE.format(_itself(source, model)) + ", where the state is to be whole (rank 0 has it)"
    )
    inner = handed_to(source, model)
    return found if inner is None else found.replace("(model)", f"({short(model, 30)}.{inner})")


def handed_to(source: Source, node: cst.BaseExpression) -> str | None:
    """Return the attribute to which an object, that is no module, hands on what it is asked: its model."""
    return next(iter(sorted(taken(HANDS_ON, source.models.kinds(node)))), None)


def given(source: Source, model: cst.BaseExpression) -> str:
    """Return what gives the whole state to a function that would ask the model itself."""
    if (own := _by_place(source, model)) is not None:
        return own
    return _ASKED.get(source.models.sharded_by(model), _WHOLE.format(_itself(source, model)))


def of_own_class(source: Source) -> str:
    """Return what is said beside that, where the model's class may have a ``save_pretrained`` of its own."""
    return _SAVES_ITSELF if source.links.saves_itself else ""


def _itself(source: Source, model: cst.BaseExpression) -> str:
    """Return what a sharded model is called that FSDP1's wrapper held: FSDP2's has no ``.module``.

    Where an object calls its model so, ``self.module = FSDP(net)``, that is its name.
    """
    is_held = isinstance(model, cst.Attribute) and "fsdp" in source.models.kinds(model)
    is_name = is_held and isinstance(model, cst.Attribute) and "fsdp" not in source.models.kinds(model.value)
    return short(model, 30) if is_name else short(model, 30).removesuffix(".module")


def _by_place(source: Source, model: cst.BaseExpression) -> str | None:
    if source.models.sharded_by(model) != "transformers":
        return None
    return _BY_PLACE.get(source.models.frameworks.trainers.kind_around(model))


def unsynced(source: Source, model: cst.BaseExpression) -> str:
    """Return the context in which gradients stay on their ranks."""
    return _UNSYNCED.get(source.models.sharded_by(model), "fsdp_migrate.runtime.no_sync(model)")


def kept(by: str) -> str:
    """Return what is said of parameters that are kept from before a framework shards."""
    return _KEPT.format(_NAMES.get(by, by), _MADE_ANEW.get(by, ""))


def stepped_before(name: str, by: str) -> str:
    """Return what is said where a list is clipped of which an optimizer was made before the sharding."""
    return _STEPPED.format(name, _NAMES.get(by, "FSDP"), _OF_OLD_ONES.get(by, ""), _GIVE_NEW[by])


def clips(source: Source, call: cst.Call, model: cst.BaseExpression | None) -> str:
    """Return what to do where torch clips the gradients of a model that may be sharded."""
    by = source.models.sharded_by(model) if model is not None else ""
    if by == "lightning" and not isinstance(source.index.parents[call], cst.Expr):
        return _LEAVE_NORM
    return f"Take {_CLIPS.get(by, 'fsdp_migrate.runtime.clip_grad_norm_')}"


def is_in_a_module(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether FSDP1's wrapper is not seen: what has `.module`, and a forward that gathers, is another's.

    Fabric gives a module of its own, and in a LightningModule ``self`` is what FSDP1 has wrapped. Below
    ``isinstance(model, FSDP)`` it is the wrapper; FSDP1's functions take a module around that, too, and so
    show nothing of it.
    """
    is_others = source.models.sharded_by(model) in _OTHERS or is_fabrics_own(source.index, model)
    return is_others and not source.models.guards.holds(model, is_fsdp1_class(source.index))


def is_norm_used(source: Source, call: cst.Call) -> bool:
    """Tell whether ``fabric.clip_gradients(model, ..., max_norm=1.0)`` is asked for more than a number."""
    model = call.args[0].value if call.args and not call.args[0].star else None
    if model is None or not is_of_fabric(source, call, model):
        return False
    by_value = "clip_val" in named_arguments(call)
    return not by_value and not all(_is_number(source, each) for each in _readers(source, call))


def is_of_fabric(source: Source, call: cst.Call, model: cst.BaseExpression) -> bool:
    """Tell whether a Fabric that shards models is given one, or what is not seen to be another one.

    ``self.fabric.clip_gradients(self.net, ...)``: whatever makes the net, a Fabric of FSDP has set it up.
    """
    whole, models = whole_of(source, model), source.models
    if whole is not None and (by := models.sharded_by(whole) or not models.is_evident(whole)):
        return by == "fabric"
    func = call.func
    is_told = models.frameworks.sets_up_by_fabric and isinstance(func, cst.Attribute)
    if not is_told or not may_shard(source.index, cst.ensure_type(func, cst.Attribute).value):
        return False
    is_plain = models.is_other_branch(model) or models.frameworks.is_elsewhere({FABRIC}, model)
    return (whole is not None or models.is_unknown(model)) and not is_plain


def _readers(source: Source, call: cst.Call) -> list[cst.BaseExpression]:
    """Return where what a call gives is read: behind its name, or at once."""
    above = source.index.parents[call]
    if isinstance(above, cst.Expr):
        return []
    target = above.targets[0].target if isinstance(above, cst.Assign) and len(above.targets) == 1 else None
    readers = source.readers(target) if isinstance(target, cst.Name) else []
    return [*readers] or [call]


def _is_number(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether a tensor of one element is made a number: ``norm.item()``, ``float(norm)``."""
    above = source.index.parents[node]
    if isinstance(above, cst.Attribute):
        return above.attr.value == "item"
    call = source.index.parents[above] if isinstance(above, cst.Arg) else None
    return isinstance(call, cst.Call) and dotted(call.func) == "float"


def is_norm_gathered(source: Source, call: cst.Call) -> bool:
    """Tell whether ``accelerator.gather(norm)`` is given what ``accelerator.clip_grad_norm_`` gave.

    Accelerate's FSDP1 gave a plain tensor, and its FSDP2 gives torch's DTensor.
    """
    func, given = call.func, call.args[0].value if call.args and not call.args[0].star else None
    is_gather = is_an_accelerators_collective(source, func)
    if given is None or not (is_gather or (dotted(func) or "").startswith(("dist.", "torch.distributed."))):
        return False
    return is_accelerates_norm(source, given)


def is_an_accelerators_collective(source: Source, func: cst.BaseExpression) -> bool:
    """Tell whether a function is one of Accelerate's that are collectives: ``accelerator.gather``."""
    if any(map(_GATHERS_BY_NAME.match, source.index.qualified(func))):
        return True
    return (
        isinstance(func, cst.Attribute)
        and func.attr.value in _GATHERS
        and is_an_accelerator(source, func.value)
    )


def is_fabrics_collective(source: Source, func: cst.BaseExpression) -> bool:
    """Tell whether a function is a collective of Fabric's, or of a LightningModule's: ``self.all_gather``."""
    if not isinstance(func, cst.Attribute) or func.attr.value not in _FABRICS:
        return False
    owner = dotted(func.value) or ""
    is_its = is_one(FABRICS, owner, source.index)
    return is_its or (func.attr.value == "all_gather" and owner.lower() in _GATHERERS)


def is_accelerates_norm(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether something is what ``accelerator.clip_grad_norm_`` gave, where Accelerate shards."""
    values: list[cst.BaseExpression | None] = [node]
    if isinstance(node, cst.Name) and node in source.index.scopes:
        values = [binding.value for binding in source.index.scopes[node].lookup(node.value)]
    clips = (value.func for value in values if isinstance(value, cst.Call))
    is_norm = any(
        isinstance(each, cst.Attribute)
        and each.attr.value == "clip_grad_norm_"
        and is_an_accelerator(source, each.value)
        for each in clips
    )
    return is_norm and (asks_for_plugin(source.index) or "accelerate" in source.links.frameworks)


def is_an_accelerator(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether it is an Accelerator."""
    return is_accelerator(dotted(node) or "", source.index)


def is_without_parameters(source: Source, model: cst.BaseExpression, call: cst.Call) -> bool:
    """Tell whether a function that is applied to a framework's model leaves parameters alone, by its name."""
    given = " ".join(text_of(arg.value) for arg in call.args)
    return bool(source.models.sharded_by(model)) and _OF_PARAMETERS.search(given) is None
