"""What asks a model, or a part of one, for its state by itself: ``model.save_pretrained(folder)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.framework_words import given, mixed, of_own_class
from fsdp_migrate.source.method_calls import is_seen_plain, sureness
from fsdp_migrate.source.python.keywords import is_given_by_name
from fsdp_migrate.source.python.last_values import values_set
from fsdp_migrate.source.python.nodes import last_name, model_argument, short, text_of
from fsdp_migrate.source.python.one_rank import runs_on_one_rank
from fsdp_migrate.source.python.own_parts import holder_of
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.model_kinds import Certainty
    from fsdp_migrate.source.python.text import Source


_ASKS_ITSELF = (
    "`save_pretrained` asks the model for its state, which is sharded now: on every rank take state = "
    "get_model_state_dict({}, options=StateDictOptions(full_state_dict=True, cpu_offload=True)) of torch, "
    "and on rank 0 give it as state_dict=state."
)
_OF_A_PART = (
    "this is a part of the model: where that is sharded, give it state_dict=, of torch's "
    "get_model_state_dict({}, options=StateDictOptions(full_state_dict=True, cpu_offload=True)), which "
    "every rank takes{}: the state of the whole has other names."
)
_OWN_SAVE = (
    "{} has a `save_pretrained` of its own, which takes no state: where what that saves, or copies, are "
    "parameters of the sharded model or were made of them, they are DTensors now. Take .full_tensor() of "
    "each in it, and have every rank call it{}."
)
_SAVES = (
    "it asks the model for its state, which is sharded now: on every rank take state = "
    "get_model_state_dict({{}}, options=StateDictOptions(full_state_dict=True, cpu_offload=True)) of torch, "
    "and on rank 0 {}."
)
_ADAPTER = (
    "it loads plain tensors into DTensors now, which raises: load the adapter before the model is sharded, "
    "or give load_model_state_dict of fsdp_migrate.runtime the state by the model's own names."
)
_GIVEN_A_MODEL = {
    "huggingface_hub.save_torch_model": _SAVES.format("save_torch_state_dict of it"),
    "peft.get_peft_model_state_dict": _SAVES.format("give it as state_dict=state"),
    "peft.utils.get_peft_model_state_dict": _SAVES.format("give it as state_dict=state"),
    "peft.set_peft_model_state_dict": _ADAPTER,
    "peft.utils.set_peft_model_state_dict": _ADAPTER,
    "safetensors.torch.load_model": (
        "it loads plain tensors into DTensors now: load_model_state_dict of fsdp_migrate.runtime takes what "
        "safetensors' load_file gives, on every rank."
    ),
    "safetensors.torch.save_model": _SAVES.format("give it to safetensors' save_file"),
}
_ON_EACH = ": it waits for all, and here one alone comes"
_NOT_MODELS = frozenset({"config", "feature_extractor", "generation_config", "image_processor", "processor"})
_DEEPEST = 6
_LONGEST = 60


def of_asking(source: Source, call: cst.Call) -> Iterator[Found]:
    """Find ``model.save_pretrained(folder)``, which takes the state of the model, or of a part, by itself."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value != "save_pretrained":
        return
    asked = func.value
    last = last_name(asked)
    if (
        is_given_by_name(source, call, "state_dict")
        or last in _NOT_MODELS
        or "tokenizer" in last
        or source.contexts.around(call) is not None
    ):
        return
    model, certainty = _asked_model(source, call, asked)
    if certainty is None or source.contexts.is_summoned(call):
        return
    is_part = model is not asked
    if own := _class_that_saves(source, asked):
        above = "" if not runs_on_one_rank(source.index, source.models.guards, call) else _ON_EACH
        said = _OWN_SAVE.format(f"`{own}`", above)
        yield Found("FM308" if certainty == "certain" else "FM333", call, said, "commented")
        return
    if certainty == "certain":
        said = _ASKS_ITSELF.format(short(asked, _LONGEST) if is_part else "model")
        yield Found("FM308", call, said, "commented")
        return
    where = " above this branch" if runs_on_one_rank(source.index, source.models.guards, call) else ""
    if is_part:
        said = _OF_A_PART.format(short(asked, _LONGEST), where)
    else:
        every = f", which every rank takes{where}" if where else ""
        every += of_own_class(source)
        said = f"{mixed(source, asked)}give it state_dict=, of {given(source, asked)}{every}."
    yield Found("FM333", call, said, "commented")


def _class_that_saves(source: Source, asked: cst.BaseExpression) -> str:
    """Return the class of what is asked, where its own method takes no state: ``ema = EMAModel(...)``."""
    index, names = source.index, source.links.own_saves
    values: list[cst.BaseExpression | None] = []
    if names and isinstance(asked, cst.Name) and asked in index.scopes:
        before = [each for each in index.bindings_of(asked) if index.order[each.node] < index.order[asked]]
        values = [max(before, key=lambda each: index.order[each.node]).value] if before else []
    elif names and isinstance(asked, cst.Attribute):
        values = [*values_set(index, asked)]
    made = {_name_of(each.func) for each in values if isinstance(each, cst.Call)}
    return made.pop() if len(made) == 1 and len(values) == 1 and made <= names else ""


def _name_of(func: cst.BaseExpression) -> str:
    """Return the class that a call makes an object of, also by a method of it: ``Net.from_pretrained``."""
    is_maker = isinstance(func, cst.Attribute) and func.attr.value.startswith("from_")
    return last_name(func.value if is_maker and isinstance(func, cst.Attribute) else func)


def _asked_model(
    source: Source, call: cst.Call, asked: cst.BaseExpression
) -> tuple[cst.BaseExpression, Certainty | None]:
    """Return the model that is asked, or the whole of the part that is, whose state is sharded, too."""
    certainty = certainty_of(source, call, asked)
    if certainty is None and (of := _whole_of(source, call, asked)) is not None:
        is_same = (
            isinstance(asked, cst.Attribute) and asked.attr.value == "_orig_mod" and asked.value is of[0]
        )
        return (asked, of[1]) if is_same else of
    return asked, certainty


def of_functions(source: Source, call: cst.Call) -> Iterator[Found]:
    """Find functions of other packages that are given a model, and ask it for its state by themselves."""
    said = next((_GIVEN_A_MODEL[n] for n in source.index.qualified(call.func) if n in _GIVEN_A_MODEL), "")
    model = model_argument(call, 0) if said else None
    placed = [arg for arg in call.args if arg.keyword is None]
    is_given = len(placed) > 1 and said == _GIVEN_A_MODEL["peft.get_peft_model_state_dict"]
    if model is None or is_given or is_given_by_name(source, call, "state_dict"):
        return
    whole, certainty = _asked_model(source, call, model)
    if certainty is None or source.contexts.is_summoned(call):
        return
    of_it = "this is the sharded model" if whole is model else "the model that this is a part of is sharded"
    said = said.format("model" if whole is model else short(model, _LONGEST))
    yield Found("FM333", call, f"where {of_it}, {said}", "commented")


def _whole_of(
    source: Source, call: cst.Call, part: cst.BaseExpression
) -> tuple[cst.BaseExpression, Certainty] | None:
    """Return the sharded model that something is a part of: ``model`` of ``model.encoder``."""
    whole: cst.BaseExpression | None = part
    for _ in range(_DEEPEST):
        if whole is None or source.models.is_other_branch(whole):
            return None
        if isinstance(whole, cst.Attribute) and whole.attr.value in catalog.WRAPPED:
            return None
        whole = holder_of(source.models, whole)
        certainty = certainty_of(source, call, whole) if whole is not None else None
        if whole is not None and certainty is not None:
            return None if source.contexts.is_summoned(call) else (whole, certainty)
    return None


def certainty_of(source: Source, call: cst.Call, model: cst.BaseExpression) -> Certainty | None:
    """Tell whether a state is that of an FSDP1 model, ``model.module`` of which is another name for it."""
    if isinstance(model, cst.Attribute) and model.attr.value in catalog.WRAPPED:
        sure = sureness(source, model.value)
        if sure in {"sure", "mixed"}:
            return "certain" if sure == "sure" else "mixed"
    models = source.models
    certainty = models.certainty(model)
    if certainty != "certain" and models.is_guarded(model):
        return "certain"
    is_plain = models.is_other_branch(model) or models.is_before_wrapping(model)
    if certainty is None and not is_plain:
        for setter in source.contexts.setters:
            same = setter.model is not None and text_of(setter.model) == text_of(model)
            if same and not source.index.excludes(setter.call, call):
                # By its name alone, what another function is given may be a plain model. Where one type is
                # set for all, the new call suits both.
                is_one = setter.model is not None and models.key_of(setter.model) == models.key_of(model)
                if is_one or source.contexts.settings_at(call) is not None:
                    return "certain"
                return None if is_seen_plain(source, model) else "mixed"
    return certainty
