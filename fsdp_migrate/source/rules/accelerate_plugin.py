"""Accelerate's ``FullyShardedDataParallelPlugin``: the same class holds the settings of FSDP2.

https://huggingface.co/docs/accelerate/concept_guides/fsdp1_vs_fsdp2
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import libcst as cst

from fsdp_migrate.adapters.document.nodes import REFERENCE
from fsdp_migrate.adapters.engine.accelerate_switch import SWITCH, switches_on
from fsdp_migrate.adapters.hf_offload import NO_GLOO, makes_gloo
from fsdp_migrate.findings import make_finding
from fsdp_migrate.source import plugin_attributes
from fsdp_migrate.source.plugin_attributes import IGNORED, PLUGIN, is_changed_later, is_of_fsdp1
from fsdp_migrate.source.plugin_precision import said_of_casts
from fsdp_migrate.source.python.accelerate_precision import precision_of_accelerator, where_it_casts
from fsdp_migrate.source.python.environment import environment_of_run, fsdp_environment, variables_set
from fsdp_migrate.source.python.items import ItemChange, changed_call
from fsdp_migrate.source.python.keywords import may_be_given, values_by_stars, written_out
from fsdp_migrate.source.python.no_shard import may_choose_hybrid
from fsdp_migrate.source.python.nodes import (
    args_by_name,
    arguments,
    call as make_call,
    dotted,
    last_name,
    named_arguments,
    text_of,
    walk,
)
from fsdp_migrate.source.python.values import Values, definition, is_only_use, python_text
from fsdp_migrate.source.settings_in_python import (
    SAID,
    Converted,
    convert_settings,
    in_sentences,
    item_changes,
    said_of,
    said_of_environment,
)
from fsdp_migrate.source.uses import Found, Need, Replace


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.findings import Finding
    from fsdp_migrate.source.python.text import Source
    from fsdp_migrate.source.uses import Edit

    Given = dict[str, cst.BaseExpression]


NAME = "accelerate-plugin"
CODES = ("FM320", *SAID, "FM427")

_MEANT = (
    "Give it fsdp_version=2, reshard_after_forward=True (False for SHARD_GRAD_OP) in place of "
    'sharding_strategy, and where it has no state_dict_type that of FSDP1, "FULL_STATE_DICT"; '
    "use_orig_params, sync_module_states and the prefetches go away."
)
_IN_PLACE = "Write reshard_after_forward=True (False for SHARD_GRAD_OP) in place of its strategy. "
_UNSAID_STATE = 'Where it has no state_dict_type, write that of FSDP1, "FULL_STATE_DICT". '
_GOES = "sharding_strategy, use_orig_params, sync_module_states and the prefetches go away."
_CLASSES = "transformer_cls_names_to_wrap"
_BESIDE = {
    "limit_all_gathers": "limit_all_gathers goes away too.",
    "state_dict_config": "state_dict_config stays: FSDP2 takes its offload_to_cpu and rank0_only, for the "
    "optimizer as well.",
    "optim_state_dict_config": "optim_state_dict_config stays: its rank0_only is read where a full state is "
    "loaded.",
}
"""What is said of arguments only where they stand in the call."""
_CLASS_ITSELF = "stays: the same class holds the settings of FSDP2"
_ALREADY = "stays: it asks for FSDP2 already"
_LAUNCHED = (
    "its settings come from the config that `accelerate launch` reads: convert that one, "
    "`fsdp-migrate config FILE`, and this stays as it is. Where there is no such file:"
)
_ENVIRONMENT = "Accelerate makes its plugin of these variables of the environment. {}"
_ASKS_HF = re.compile(r"\bfsdp['\"]?\s*[:=]\s*['\"]{1,2}(?:full_shard|shard_grad_op|hybrid_shard)")
_ANY_VALUES = (
    "Set FSDP_VERSION to 2 as well. What else changes depends on their values, which are not seen here: "
    "write them as NAME=value into a file env.sh, and `fsdp-migrate config env.sh` says it."
)
_IN_ENVIRONMENT = "stays: the variables of the environment that this source sets say how it shards"
_HIDDEN = "some arguments stand behind `*` or `**`, or have no names"
_CHANGED_LATER = "attributes of it are set below"
_POLICY = (
    "`auto_wrap_policy`: Accelerate's FSDP2 wraps by class (`transformer_based_wrap`, with "
    "transformer_cls_names_to_wrap) or by size; with any other policy the whole model is one unit"
)
_ITS_CASTS = " `mixed_precision_policy` takes FSDP2's MixedPrecisionPolicy in place of MixedPrecision."
_CASTS = (
    "`mixed_precision_policy`: {} cannot be given to FSDP2's MixedPrecisionPolicy(param_dtype, reduce_dtype, "
    "output_dtype, cast_forward_inputs)"
)
_HIDDEN_CASTS = (
    "`mixed_precision_policy`: in place of MixedPrecision FSDP2 takes MixedPrecisionPolicy(param_dtype, "
    "reduce_dtype, output_dtype, cast_forward_inputs) of torch.distributed.fsdp; it has no buffer_dtype"
)
_OFFLOAD = "`cpu_offload`: FSDP2 takes true, false or a CPUOffloadPolicy, and not torch's CPUOffload"
_GONE = frozenset({"backward_prefetch", "forward_prefetch", "sync_module_states", "use_orig_params"})
_UNSAID = {"cpu_ram_efficient_loading": False, "sync_module_states": False}
"""What a plugin takes where nothing is said; the launcher of a config takes true."""
_CLIPS = "clip_grad_norm_"
_SET_OFFLOAD = (
    'Set os.environ["FSDP_OFFLOAD_PARAMS"] = "true" before the Accelerator is made; `accelerate launch` does '
    "so where its own settings offload."
)
_SHARED = "`mixed_precision_policy`: its MixedPrecision is used elsewhere too"
_STATE_TYPE = (
    "state_dict_type is FULL_STATE_DICT, as it was: FSDP2's default is another. Where the config of "
    "`accelerate launch` says SHARDED_STATE_DICT, write that."
)
_HYBRID = (
    "HYBRID_SHARD: FSDP2 shards over all ranks of all nodes.",
    (
        "On one node that is the same. Otherwise give "
        "Accelerator(parallelism_config=ParallelismConfig(dp_replicate_size=<nodes>, dp_shard_size=<ranks of "
        "a node>))."
    ),
)
_INIT = ("Accelerate's FSDP2 does not call it.", "See that the model is whole before `prepare`.")

_EACH_CLASS = (
    "torch's policy passed over a class that the model has no module of, and Accelerate stops at one.",
    "Name those classes alone that the model has.",
)
_KEYS = {"cpu_offload": "offload_params", "transformer_cls_names_to_wrap": "transformer_layer_cls_to_wrap"}
_NAMES = {
    **{key: name for name, key in _KEYS.items()},
    "fsdp_state_dict_type": "state_dict_type",
    "fsdp_reshard_after_forward": "reshard_after_forward",
}
# What says nothing of how the model is sharded, and means the same to FSDP2.
_ASIDE = frozenset({"ignored_modules", "optim_state_dict_config", "param_init_fn", "state_dict_config"})
_QUESTIONS = frozenset({"fields", "getattr", "hasattr", "isinstance", "issubclass", "signature"})
_PRECISION = "mixed_precision"
_ARGUMENTS = (
    *("activation_checkpointing", "auto_wrap_policy", "cpu_offload", "fsdp_version", "min_num_params"),
    *("mixed_precision_policy", "reshard_after_forward", "sharding_strategy", "state_dict_type"),
    *("transformer_cls_names_to_wrap", "use_orig_params", *_UNSAID, *sorted(_ASIDE)),
)
_CAST = frozenset({"param_dtype", "reduce_dtype", "buffer_dtype", "cast_forward_inputs"})
_DTYPES = Need("torch.distributed.fsdp", "MixedPrecisionPolicy")


def find(source: Source) -> Iterator[Found]:
    """Find the plugin: where it is made, and where it is only asked about."""
    for node in (*source.loads, *source.attributes):
        if any(PLUGIN.match(name) for name in source.index.qualified(node)):
            yield from _of_name(source, node)
    if "FSDP_VERSION" not in source.code:
        for switch in _switches(source):
            yield Found("FM320", switch, _ENVIRONMENT.format(_of_variables(source)), "commented")
    yield from plugin_attributes.find(source)


def _switches(source: Source) -> Iterator[cst.CSTNode]:
    """Yield what switches FSDP on in the environment: ``os.environ["ACCELERATE_USE_FSDP"] = "true"``."""
    for node, name, value in variables_set(source):
        if name == SWITCH and (switches_on(text_of(value)) or not isinstance(value, cst.SimpleString)):
            yield node


def _of_variables(source: Source) -> str:
    """Say what to set in place of the variables, if the source shows all of their values."""
    every = fsdp_environment(source)
    given = {name: value for name, value in every.items() if name == SWITCH or name.startswith("FSDP_")}
    is_known = not any(map(REFERENCE.search, given.values()))
    beside_hf = _ASKS_HF.search(source.code) is not None
    return (said_of_environment(given, beside_hf=beside_hf) if is_known else "") or _ANY_VALUES


def _of_name(source: Source, node: cst.BaseExpression) -> Iterator[Found]:
    above, around = source.index.parents[node], source.index.ancestors(node)
    if isinstance(above, cst.Attribute) or any(isinstance(each, cst.Annotation) for each in around):
        yield Found("FM320", node, _CLASS_ITSELF, "kept")
        return
    if isinstance(above, cst.Call) and above.func is node:
        yield from _of_call(source, above)
        return
    outer = next((a for a in source.index.ancestors(node) if isinstance(a, cst.Call)), None)
    asked = outer is not None and last_name(outer.func) in _QUESTIONS
    asked = asked or isinstance(above, (cst.Comparison, cst.BooleanOperation, cst.UnaryOperation, cst.If))
    yield Found("FM320", node, *((_CLASS_ITSELF, "kept") if asked else (_MEANT, "commented")))


def _of_call(source: Source, call: cst.Call) -> Iterator[Found]:
    named = named_arguments(call)
    sure = {**written_out(source, call), **named}
    given = {**may_be_given(source, call, _ARGUMENTS), **sure}
    values = Values(source)
    held, findings, reasons = _held(source, given, values)
    lost = list(_said_of_ignored(given, values))
    # A source does not say how many nodes there will be.
    document = {"distributed_type": "FSDP", "num_machines": "${NODES}", "fsdp_config": {**_UNSAID, **held}}
    word = held.pop("mixed_precision_policy", None)
    its = precision_of_accelerator(source) if word is None and "mixed_precision_policy" not in given else None
    word = its.word if its is not None else word
    if isinstance(word, str):
        document["mixed_precision"] = word
    converted = convert_settings("accelerate", document, values)
    if its is not None and not its.is_sure:
        converted = replace(converted, findings=where_it_casts(converted.findings))
    if converted.is_fsdp2:
        yield Found("FM320", call, _ALREADY, "kept")
        return
    # `_held` has said so (FM355): a call that asks for it is rewritten all the same.
    reasons += [reason for reason in converted.reasons if "HYBRID_SHARD" not in reason]
    if any(arg.star or arg.keyword is None for arg in call.args):
        reasons[:0] = [_HIDDEN, *_behind_stars(source, call, values)]
    if is_changed_later(source, call):
        reasons.append(_CHANGED_LATER)
    after = _after(held, converted)
    more = "".join(f" `{each.subject}`: {each.message} {each.hint}" for each in lost)
    if not set(given) - _ASIDE and not reasons and any(_switches(source)):
        yield Found("FM320", call, _IN_ENVIRONMENT, "kept")
    elif not set(given) - _ASIDE and not reasons:
        yield Found("FM320", call, f"{_LAUNCHED} {_MEANT}{more}", "commented")
    elif reasons:
        known = {name: value for name, value in after.items() if name in sure or name not in given}
        beside = "".join(f" {said}" for name, said in _BESIDE.items() if name in given or name in named)
        text = f"{in_sentences(reasons)} {_known(values, known, named)}{beside}"
        if any(each.message == _EACH_CLASS[0] for each in findings):
            text = f"{text} {' '.join(_EACH_CLASS)}"
        casts = given.get("mixed_precision_policy")
        text += _ITS_CASTS if casts is not None and is_of_fsdp1(source, casts) else ""
        text += more + _of_hybrid(source, held)
        yield Found("FM320", call, text, "commented", is_of_its_own=True)
        yield from _of_the_rest(call, values, given, (*converted.findings, *findings))
    else:
        yield from _rewritten(source, call, values, (*converted.findings, *findings, *lost), given, after)


def _of_the_rest(
    call: cst.Call, values: Values, given: Given, findings: tuple[Finding, ...]
) -> Iterator[Found]:
    """Say what arguments that are seen do otherwise, where others leave the call to a person."""
    named = [replace(each, subject=_argument(each.subject)) for each in findings]
    rest = [each for each in named if each.subject in {*given, _PRECISION} and each.message != _EACH_CLASS[0]]
    places = args_by_name(call)
    yield from said_of(rest, values, lambda subject: places.get(subject, call))


def _of_hybrid(source: Source, held: dict[str, Any]) -> str:
    """Say what a hybrid strategy becomes, where the strategy is not seen and the project may choose that."""
    strategy = str(held.get("sharding_strategy", held.get("reshard_after_forward")))
    is_one = source.links.hybrid or may_choose_hybrid(source.code)
    return (
        f" Where the strategy is {_HYBRID[0]} {_HYBRID[1]}" if is_one and REFERENCE.search(strategy) else ""
    )


def _behind_stars(source: Source, call: cst.Call, values: Values) -> Iterator[str]:
    """Yield what FSDP2 takes otherwise of what a dict gives: its classes are those of FSDP1."""
    if any(is_of_fsdp1(source, each) for each in values_by_stars(source, call, "mixed_precision_policy")):
        yield _HIDDEN_CASTS
    if any(_is_made_elsewhere(source, each) for each in values_by_stars(source, call, "cpu_offload")):
        yield _OFFLOAD
    policies = map(values.read, values_by_stars(source, call, "auto_wrap_policy"))
    if any(not isinstance(each, str) or _policy(each) is None for each in policies if each is not None):
        yield _POLICY


def _known(values: Values, after: dict[str, Any], named: Given) -> str:
    """Say what the call becomes, as far as it is known, and what goes away; a list stays one."""
    wanted = {"fsdp_version": 2, **after}
    strategy = wanted.pop("sharding_strategy", None)
    classes = named.get(_CLASSES)
    if _CLASSES in wanted and classes is not None and isinstance(values.read(classes), list):
        wanted[_CLASSES] = wanted[_CLASSES].split(",")
    texts = [
        f"{name}={values.pasted(python_text(value))}" for name, value in wanted.items() if name not in _GONE
    ]
    if strategy is not None:
        texts.insert(1, "reshard_after_forward=<True, or False for SHARD_GRAD_OP>")
    more = "" if strategy is not None or "reshard_after_forward" in wanted else _IN_PLACE
    more += "" if "state_dict_type" in wanted else _UNSAID_STATE
    return f"Give it, as far as it is known: {', '.join(texts)}. {more}{_GOES}"


def _held(source: Source, given: Given, values: Values) -> tuple[dict[str, Any], list[Finding], list[str]]:
    """Return the arguments as a config holds them, with what its adapter does not know of."""
    held: dict[str, Any] = {}
    findings: list[Finding] = []
    reasons: list[str] = []
    for name, node in given.items():
        value = values.read(node) if name not in _ASIDE or name == "param_init_fn" else None
        if value is None:
            continue
        if name == "param_init_fn":
            findings.append(make_finding("FM343", name, *_INIT))
        elif name == "auto_wrap_policy":
            policy = _policy(value)
            held |= policy or {}
            reasons += [] if policy else [_POLICY]
            findings += _said_of_classes(policy)
        elif name == "mixed_precision_policy" and (not isinstance(value, str) or values.has_unread(value)):
            reasons += _casts(value, values)
            reasons += [] if definition(source, node) is node or is_only_use(source, node) else [_SHARED]
            findings += said_of_casts(value)
        elif name == "cpu_offload" and _is_made_elsewhere(source, values.expression(value)):
            reasons.append(_OFFLOAD)
        elif name == "transformer_cls_names_to_wrap" and isinstance(value, list):
            held[_KEYS[name]] = ",".join(map(str, value))
        else:
            is_object = name == "cpu_offload" and isinstance(value, dict)
            held[_KEYS.get(name, name)] = value.get("offload_params", False) if is_object else value
    findings += _said_of_offload(source, held)
    strategy = str(held.get("sharding_strategy", held.get("reshard_after_forward"))).upper()
    # In torch's enum of strategies 4 and 5 are the hybrid ones.
    if "HYBRID_SHARD" in strategy or strategy in {"4", "5"}:
        findings.append(make_finding("FM355", "sharding_strategy", *_HYBRID))
    if "state_dict_type" not in held:
        findings.append(make_finding("FM344", "state_dict_type", _STATE_TYPE))
    return held, findings, reasons


def _said_of_offload(source: Source, held: dict[str, Any]) -> Iterator[Finding]:
    """Say what clipping needs where parameters are on the CPU; Accelerate sets its switch for a plugin."""
    environment = {**environment_of_run(source), SWITCH: "true"}
    if held.get("offload_params") is True and _CLIPS in source.code and not makes_gloo(environment):
        yield make_finding("FM343", "cpu_offload", f"true: {NO_GLOO}", _SET_OFFLOAD)


def _said_of_ignored(given: Given, values: Values) -> Iterator[Finding]:
    ignored, loads = given.get("ignored_modules"), given.get("cpu_ram_efficient_loading")
    is_off = loads is not None and values.read(loads) is False
    if ignored is not None and text_of(ignored) != "None" and not is_off:
        yield make_finding("FM343", "ignored_modules", *IGNORED)


def _is_made_elsewhere(source: Source, node: cst.BaseExpression | None) -> bool:
    """Tell whether a value is what a call gives, which may be an object of torch's."""
    if isinstance(node, cst.Call):
        return True
    bindings = source.index.bindings_of(node) if isinstance(node, cst.Name) else ()
    return any(each.index is not None or isinstance(each.value, cst.Call) for each in bindings)


def _policy(value: Any) -> dict[str, Any] | None:
    """Return a policy as Accelerate's words: those of FSDP1, or torch's own policies by what they hold."""
    if isinstance(value, str):
        word = {
            "transformer_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "size_based_auto_wrap_policy": "SIZE_BASED_WRAP",
        }.get(value, value)
        known = word.upper() in {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"}
        return {"auto_wrap_policy": word} if known else None
    if isinstance(value, dict) and "min_num_params" in value:
        return {"auto_wrap_policy": "SIZE_BASED_WRAP", **value}
    classes = value.get("transformer_layer_cls") if isinstance(value, dict) else value
    names = [classes] if isinstance(classes, str) else classes
    if not isinstance(names, list) or not all(isinstance(n, str) and n.isidentifier() for n in names):
        return None
    return {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "transformer_layer_cls_to_wrap": ",".join(names)}


def _said_of_classes(policy: dict[str, Any] | None) -> Iterator[Finding]:
    if "," in (policy or {}).get("transformer_layer_cls_to_wrap", ""):
        yield make_finding("FM343", "auto_wrap_policy", *_EACH_CLASS)


def _casts(value: Any, values: Values) -> list[str]:
    """Return why mixed precision cannot be said to FSDP2, if so."""
    if not isinstance(value, dict) or values.has_unread(value):
        return [_CASTS.format("what is known only when this runs")]
    odd = sorted(set(value) - _CAST)
    return [_CASTS.format(", ".join(odd))] if odd else []


def _after(held: dict[str, Any], converted: Converted) -> dict[str, Any]:
    """Return what the adapter wrote, by the plugin's names."""
    after: dict[str, Any] = dict(converted.after.get("fsdp_config", held))
    for name in _UNSAID.keys() - held.keys():
        after.pop(name, None)
    return {_NAMES.get(key, key): value for key, value in after.items()}


def _rewritten(
    source: Source,
    call: cst.Call,
    values: Values,
    findings: tuple[Finding, ...],
    given: Given,
    after: dict[str, Any],
) -> Iterator[Found]:
    apart = {"mixed_precision_policy", *_ASIDE}
    before = {
        name: value
        for name, node in given.items()
        if name not in apart and (value := values.read(node)) is not None
    }
    wanted = dict(after)
    if "transformer_cls_names_to_wrap" in wanted and not isinstance(
        before.get("transformer_cls_names_to_wrap"), str
    ):
        wanted["transformer_cls_names_to_wrap"] = wanted["transformer_cls_names_to_wrap"].split(",")
    changes, new = item_changes(before, wanted, values)
    edits, needs = _edits(source, call, given, changes, new)
    places = args_by_name(call)
    named = [replace(each, subject=_argument(each.subject)) for each in findings]
    yield from said_of(named, values, lambda subject: places.get(subject, next(iter(places.values()))))
    gone = [given[name] for name, change in changes.items() if change.remove or change.value is not None]
    gone += [definition(source, given["mixed_precision_policy"])] if needs else []
    away = tuple(_references(source, gone))
    shown = ", ".join(f"{name}={values.shown(python_text(value))}" for name, value in wanted.items())
    told = any(each.code == "FM344" and each.message == _STATE_TYPE for each in findings)
    note, becomes = _STATE_TYPE if told else "", f"{dotted(call.func)}({shown})"
    yield Found("FM427", call, becomes, "rewritten", tuple(edits), needs, away, note)


def _argument(subject: str) -> str:
    key = subject.rpartition(".")[2]
    return _NAMES.get(key, key.replace("fsdp_backward", "backward"))


def _references(source: Source, gone: list[cst.BaseExpression]) -> Iterator[cst.CSTNode]:
    """Yield the names of torch's that go away with expressions."""
    for node in gone:
        for inner in walk(node):
            is_partial = isinstance(inner, cst.Call) and "functools.partial" in source.index.qualified(
                inner.func
            )
            if inner in source.references:
                yield inner
            elif is_partial and isinstance(inner, cst.Call):
                yield inner.func


def _edits(
    source: Source,
    call: cst.Call,
    given: Given,
    changes: dict[str, ItemChange],
    new: list[tuple[str, cst.BaseExpression]],
) -> tuple[list[Edit], tuple[Need, ...]]:
    policy = given.get("mixed_precision_policy")
    home = definition(source, policy) if policy is not None else None
    turns = isinstance(home, (cst.Call, cst.Dict))

    def build(updated: cst.Call) -> cst.Call:
        every = dict(changes)
        if turns and home is policy:
            value = named_arguments(updated)["mixed_precision_policy"]
            every["mixed_precision_policy"] = ItemChange(value=_cast(source, value))
        first = [(name, value) for name, value in new if name == "fsdp_version"]
        last = next((a.keyword.value for a in reversed(updated.args) if a.keyword), None)
        rest = [(name, value) for name, value in new if name != "fsdp_version"]
        changed = changed_call(updated, {}, rest, last)
        return changed_call(changed, every, first)

    edits: list[Edit] = [Replace(call, build)]
    if turns and home is not None and home is not policy:
        edits.append(Replace(home, lambda node: _cast(source, node)))
    return edits, (_DTYPES,) if turns else ()


def _cast(source: Source, node: cst.BaseExpression) -> cst.Call:
    """Return ``MixedPrecisionPolicy(...)`` with the dtypes that FSDP1's ``MixedPrecision`` had."""
    if isinstance(node, cst.Dict):
        items = [each for each in node.elements if isinstance(each, cst.DictElement)]
        keys = {each.key: each.value for each in items}
        given = {str(k.evaluated_value): v for k, v in keys.items() if isinstance(k, cst.SimpleString)}
    else:
        order = ("param_dtype", "reduce_dtype", "buffer_dtype")
        given = arguments(cst.ensure_type(node, cst.Call), order) or {}
    kept = {name: value for name, value in given.items() if name in {"param_dtype", "reduce_dtype"}}
    return make_call(source.local_name(_DTYPES), **kept)
