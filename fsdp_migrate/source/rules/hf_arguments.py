"""``fsdp`` and ``fsdp_config`` of Hugging Face's ``TrainingArguments``, and of the classes that extend it.

https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments.fsdp_config
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import libcst as cst

from fsdp_migrate.adapters.engine.ownership import HF_WORDS
from fsdp_migrate.source.hf_left import BY_STARS, ELSEWHERE, FORMER, UNKNOWN, left, of_former
from fsdp_migrate.source.python.items import ItemChange, changed_call, changed_dict
from fsdp_migrate.source.python.keywords import may_be_given
from fsdp_migrate.source.python.meta_models import made_on_meta
from fsdp_migrate.source.python.nodes import args_by_name, code, dotted, last_name, named_arguments
from fsdp_migrate.source.python.set_items import gives_items, items_beside, items_of
from fsdp_migrate.source.python.values import (
    Values,
    definition,
    is_dict_call,
    python_text,
    when_on,
)
from fsdp_migrate.source.settings_in_python import (
    SAID,
    Converted,
    convert_settings,
    item_changes,
    said_of,
)
from fsdp_migrate.source.uses import Found, Replace


if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from fsdp_migrate.findings import Finding
    from fsdp_migrate.source.python.text import Source
    from fsdp_migrate.source.uses import Edit

    Given = dict[str, cst.BaseExpression]
    Changes = dict[str, ItemChange]
    New = list[tuple[str, cst.BaseExpression]]


NAME = "hf-arguments"
CODES = ("FM327", *SAID, "FM428")

_ALREADY = "stays: it asks for FSDP2 already"
_HIDDEN = "`**` may hold `fsdp_config`"
_AXOLOTL = (
    "this is a config of Axolotl's, which takes FSDP2 by fsdp_version: 2 and fsdp_config without prefixes: "
    "`fsdp-migrate config FILE --from axolotl` turns one in a file."
)
_OF_HF_TRAINER = re.compile(r"\b(?:TrainingArguments|trl)\b|\w(?:Trainer|TConfig|POConfig)\b")
_IS_ITEM = re.compile(r"""\[["']fsdp["']\]$""")
_PICKED = (
    "the Trainer's FSDP1 has these settings: FSDP2 takes them with 'version': 2 and 'reshard_after_forward': "
    "True in each dict (False for shard_grad_op). {}: {}."
)
_IS_CONFIG = re.compile(r"""(\.fsdp_config|\[["']fsdp_config["']\])$""")
_OF_HF = re.compile(r"^(fsdp_)?transformer_layer_cls_to_wrap$|^fsdp_(backward_prefetch|min_num_params)$")
_SHARED = "the dict of `fsdp_config` is used in other places too"
_TAKES_IN = "the dict of `fsdp_config` takes in what is known only when this runs"
_MADE = "the function that `fsdp_config` comes from would need names that it has not"
_SYNC = "sync_module_states"
_ON_META = (
    "`sync_module_states`: FSDP1 sends rank 0's weights to all ranks without being told. FSDP2 does not, and "
    "some ranks of this project make models on the meta device: they stop, because nobody fills them. Write "
    "'cpu_ram_efficient_loading': True into `fsdp_config`{}, or let every rank load the weights."
)
_NO_BUFFERS = (
    ", and make them within accelerate.init_empty_weights() in place of torch's meta device (which has the "
    "buffers too: what no state dict has of these is not sent, and the start fails)"
)
_DEFAULT = "a default of this class"
_BESIDE = ("bf16", "fp16")
_NUMBERS = ("max_grad_norm", "label_smoothing_factor", "weight_decay")
_TAKEN = ("fsdp", "fsdp_config", *FORMER, *_BESIDE, *_NUMBERS)
_CLASS = re.compile(r"(?:\A|\.)\w*TrainingArguments\Z|\Atrl\..*Config\Z")


def find(source: Source) -> Iterator[Found]:
    """Find the arguments that ask for FSDP, in calls and as defaults of a class of the project."""
    for call in source.calls:
        if is_of_the_trainer(source, call):
            yield from _of_call(source, call)
    for node in source.index.by_kind.get(cst.ClassDef, ()):
        if isinstance(node, cst.ClassDef):
            yield from _of_class(source, node)
    yield from _elsewhere(source)
    yield from _configs(source)


def is_of_the_trainer(source: Source, call: cst.Call) -> bool:
    """Tell whether a call makes arguments of Hugging Face's Trainer."""
    names = source.index.qualified(call.func) or {dotted(call.func) or ""}
    given = named_arguments(call)
    as_config = "output_dir" in given and any(name.endswith("Config") for name in names)
    return as_config or any(_CLASS.search(name) for name in names)


def _of_call(source: Source, call: cst.Call) -> Iterator[Found]:
    given = {**may_be_given(source, call, ("optim", *_BESIDE, *_NUMBERS)), **named_arguments(call)}
    # `"full_shard" if use_fsdp else ""` is how projects switch it off: what counts is where it is on.
    given |= {name: when_on(node) for name, node in given.items() if name in {"fsdp", "fsdp_config"}}
    if "fsdp" not in given:
        yield from _of_stars(source, call)
        return
    argument = next(arg for arg in call.args if arg.keyword is not None and arg.keyword.value == "fsdp")
    values = Values(source)
    document, maybe = _document(given, values)
    if not document["fsdp"]:
        return
    converted = convert_settings("hf", document, values)
    if converted.is_fsdp2:
        yield Found("FM327", argument, _ALREADY, "kept")
        return
    yield from _of_meta(source, argument, converted)
    reasons = _reasons(source, call, given, values, converted)
    if reasons and _is_converted_elsewhere(source, converted, values):
        yield Found("FM327", argument, _ALREADY, "kept")
        return
    if reasons:
        text = left(converted, values, reasons) + _gone(source, converted, given)
        yield Found("FM327", argument, text, "commented", is_of_its_own=True)
        yield from _of_the_rest(values, converted, argument, maybe)
        return
    places = args_by_name(call)
    findings = [_where(each, maybe) for each in converted.findings]
    yield from said_of(findings, values, lambda subject: places.get(subject.partition(".")[0], argument))
    becomes = f"fsdp_config={values.shown(python_text(converted.after['fsdp_config']))}"
    edits = tuple(_edits(source, call, given, values, converted))
    yield Found("FM428", call, becomes, "rewritten", edits)


def _of_the_rest(
    values: Values, converted: Converted, place: cst.CSTNode, maybe: str = ""
) -> Iterator[Found]:
    """Say what arguments beside FSDP's do otherwise where FSDP's own are left to a person."""
    rest = [each for each in converted.findings if each.code == "FM354" or each.subject in _NUMBERS]
    yield from said_of([_where(each, maybe) for each in rest], values, lambda _: place)


def _of_meta(source: Source, place: cst.CSTNode, converted: Converted) -> Iterator[Found]:
    """Say of the weights that FSDP1 sends without being told where some ranks make none themselves."""
    lost = next((each for each in converted.findings if each.subject.endswith(_SYNC)), None)
    # Where it is said to be true, the adapter has FM343 for it itself.
    if lost is None or lost.code != "FM340":
        return
    on_meta = {source.links.beside_meta, made_on_meta(source.code)} - {""}
    if on_meta:
        said = _ON_META.format(_NO_BUFFERS if "buffers" in on_meta else "")
        yield Found("FM343", place, said, "commented", is_of_its_own=True)


def _document(given: Given, values: Values) -> tuple[dict[str, Any], str]:
    """Return the arguments as a config of the Trainer holds them, and what of them may be true."""
    document: dict[str, Any] = {"output_dir": "."}
    for name in ("fsdp", "fsdp_config", *FORMER):
        value = values.read(given[name]) if name in given else None
        if value is not None:
            document[name] = _read_json(value) if name == "fsdp_config" else value
    maybe = _switch_on(
        {name: values.read(given[name]) for name in _BESIDE if name in given}, document, values
    )
    for name in ("optim", *_NUMBERS):
        value = values.read(given[name]) if name in given else None
        if isinstance(value, (int, float) if name in _NUMBERS else str):
            document[name] = value
    return {"fsdp": None, **document}, maybe


def _switch_on(flags: dict[str, Any], document: dict[str, Any], values: Values) -> str:
    """Put what is true into a document, or one that may be where none is, and return that one's name."""
    document |= {name: True for name, value in flags.items() if value is True}
    unsure = [] if True in flags.values() else [name for name in flags if values.has_unread(flags[name])]
    document |= dict.fromkeys(unsure[:1], True)
    return "".join(unsure[:1])


def _where(finding: Finding, maybe: str) -> Finding:
    """Return what is said of mixed precision, where it is known only when this runs if it is asked for."""
    is_unsure = finding.code == "FM354" and bool(maybe)
    return replace(finding, message=f"where this is true, {finding.message}") if is_unsure else finding


def _read_json(value: Any) -> Any:
    """Return what JSON in a string holds, which the Trainer reads too; anything else as it is."""
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _reasons(
    source: Source, call: cst.Call, given: Given, values: Values, converted: Converted
) -> tuple[str, ...]:
    """Return why a call is left to a person."""
    before = converted.before
    if values.has_unread(before["fsdp"]):
        return (UNKNOWN,)
    if any(arg.star for arg in call.args) and "fsdp_config" not in given:
        return (_HIDDEN,)
    asked = given.get("fsdp_config")
    home = definition(source, asked) if asked is not None else None
    is_dict = home is not None and (isinstance(home, cst.Dict) or is_dict_call(source, home))
    is_made = isinstance(asked, cst.Call) and not is_dict_call(source, asked)
    if is_dict and not is_made and values.expression(before.get("fsdp_config")) is not None:
        return (_TAKES_IN if _takes_in(home) else _SHARED,)
    if is_dict and is_made and values.has_unread(converted.after.get("fsdp_config")):
        return (*converted.reasons, _MADE)
    return converted.reasons


def _takes_in(home: cst.BaseExpression | None) -> bool:
    """Tell whether a dict that is written out takes in another: ``{"a": 1, **more}``."""
    parts = home.elements if isinstance(home, cst.Dict) else home.args if isinstance(home, cst.Call) else ()
    return any(isinstance(each, cst.StarredDictElement) or getattr(each, "star", "") for each in parts)


def _taker(source: Source, place: cst.CSTNode) -> cst.Call | None:
    """Return the call of the Trainer's arguments that is given the dict of a place by ``**``."""
    assign = next((each for each in source.index.ancestors(place) if isinstance(each, cst.Assign)), None)
    target = assign.targets[0].target if assign is not None else None
    for reader in source.readers(target) if isinstance(target, cst.Name) else ():
        arg = source.index.parents[reader]
        call = source.index.parents.get(arg)
        is_starred = isinstance(arg, cst.Arg) and arg.star == "**"
        if is_starred and isinstance(call, cst.Call) and is_of_the_trainer(source, call):
            return call
    return None


def _beside_stars(source: Source, call: cst.Call | None) -> Given:
    """Return what a call is given beside a dict with ``fsdp``, by name and in the other dicts it takes in."""
    if call is None:
        return {}
    return {**may_be_given(source, call, _TAKEN), **items_of(source, call, any_call=True)}


def _is_converted_elsewhere(source: Source, converted: Converted, values: Values) -> bool:
    """Tell whether the file that `fsdp_config` names is FSDP2's already, and all else can stay."""
    before, after = converted.before, converted.after
    file = before.get("fsdp_config")
    is_file = isinstance(file, str) and values.expression(file) is None
    stays = not converted.is_refused and after["fsdp"] == before["fsdp"]
    if not (is_file and stays):
        return False
    from fsdp_migrate.config_texts import holds_fsdp2

    return holds_fsdp2(Path(source.path).parent, str(file))


def _edits(
    source: Source, call: cst.Call, given: Given, values: Values, converted: Converted
) -> Iterator[Edit]:
    before, after = dict(converted.before), dict(converted.after)
    config, wanted = before.pop("fsdp_config", None), after.pop("fsdp_config")
    changes, new = item_changes(before, after, values)
    home = definition(source, given["fsdp_config"]) if "fsdp_config" in given else None
    if home is None:
        new.append(("fsdp_config", values.written(wanted)))
    elif isinstance(home, cst.Dict) or is_dict_call(source, home):
        items = item_changes(config, wanted, values)
        yield Replace(home, lambda node: _changed(node, *items))
    else:
        yield Replace(given["fsdp_config"], lambda node: values.written(wanted))
    if "fsdp" in changes:
        words = changes.pop("fsdp").value
        yield Replace(given["fsdp"], lambda node: words)
    yield Replace(call, lambda node: changed_call(node, changes, new, "fsdp"))


def _changed(node: cst.BaseExpression, changes: Changes, new: New) -> cst.BaseExpression:
    if isinstance(node, cst.Dict):
        return changed_dict(node, changes, new)
    call = cst.ensure_type(node, cst.Call)
    last = call.args[-1].keyword if call.args else None
    return changed_call(call, changes, new, last.value if last is not None else None)


def _of_stars(source: Source, call: cst.Call) -> Iterator[Found]:
    """Find ``fsdp`` in the dicts of this source that are given as ``**arguments``, whatever it is."""
    for arg in call.args:
        name = arg.value if arg.star == "**" and isinstance(arg.value, cst.Name) else None
        for binding in source.index.bindings_of(name) if name is not None else ():
            given = items_of(source, binding.value) if binding.value is not None else {}
            if "fsdp" in given and not _says_so(source, given["fsdp"]):
                yield from _stated(source, {**_beside_stars(source, call), **given}, given["fsdp"])


def _elsewhere(source: Source) -> Iterator[Found]:
    """Find words of the Trainer's ``fsdp`` in dicts, in calls of others, and where an attribute is set."""
    calls = [call for call in source.calls if not is_of_the_trainer(source, call)]
    for node in (*calls, *source.index.by_kind.get(cst.Dict, ())):
        given = items_of(source, node, any_call=True)
        if "fsdp" in given and (_says_so(source, given["fsdp"]) or _has_its_config(source, node, given)):
            beside = _beside_stars(source, _taker(source, given["fsdp"]))
            yield from _stated(source, {**beside, **given}, given["fsdp"])
    for assign in source.assignments:
        for target in (each.target for each in assign.targets):
            name = target.attr.value if isinstance(target, cst.Attribute) else code(target)
            is_set = name == "fsdp" and isinstance(target, cst.Attribute) and not _is_a_field(source, target)
            is_set = is_set or _IS_ITEM.search(name) is not None
            if is_set and (_says_so(source, assign.value) or _is_given_with(source, assign, code(target))):
                given = {**_beside(source, assign, code(target)), "fsdp": when_on(assign.value)}
                yield from _stated(source, given, assign)


def _has_its_config(source: Source, node: cst.CSTNode, given: Given) -> bool:
    """Tell whether a dict gives ``fsdp``, whatever it is, beside an ``fsdp_config`` of the Trainer's keys."""
    value = given.get("fsdp_config") if isinstance(node, cst.Dict) else None
    home = definition(source, value) if value is not None else None
    return isinstance(home, cst.Dict) and any(map(_OF_HF.search, items_of(source, home)))


def _is_given_with(source: Source, assign: cst.Assign, text: str) -> bool:
    """Tell whether ``values["fsdp"]``, whatever it is set to, goes to the Trainer's arguments.

    Its dict does by ``**values``, or ``fsdp_config`` is set beside it, as the Trainer alone takes both.
    """
    value = when_on(assign.value)
    if not isinstance(value, (cst.Attribute, cst.Call, cst.Name, cst.Subscript)) or code(value) == "None":
        return False
    before, _, after = text.rpartition("fsdp")
    function = source.index.function(assign)
    # A project that shards by itself may call its own settings so.
    is_theirs = _OF_HF_TRAINER.search(source.code) or "transformers" in source.links.frameworks
    for other in source.assignments if is_theirs else ():
        is_config = any(code(each.target) == f"{before}fsdp_config{after}" for each in other.targets)
        if is_config and source.index.function(other) is function:
            return True
    name = re.match(r"([\w.]+)\[", text)
    return name is not None and any(
        source.index.function(call) is function and is_of_the_trainer(source, call)
        for call in source.calls
        if gives_items(call, name[1])
    )


def _beside(source: Source, assign: cst.Assign, text: str) -> Given:
    """Return what else is given with ``fsdp``; of ``fsdp_config`` what is written out."""
    found = items_beside(source, assign, text)
    return {name: each for name, each in found.items() if name != "fsdp_config" or isinstance(each, cst.Dict)}


def _is_a_field(source: Source, target: cst.Attribute) -> bool:
    """Tell whether the arguments' own class sets what it was given: ``self.fsdp``, beside ``fsdp: str``."""
    owner = source.index.class_of(target) if dotted(target) == "self.fsdp" else None
    lines = (line for line in owner.body.body if isinstance(line, cst.SimpleStatementLine)) if owner else ()
    fields = (small for line in lines for small in line.body if isinstance(small, cst.AnnAssign))
    return any(dotted(each.target) == "fsdp" for each in fields)


def _configs(source: Source) -> Iterator[Found]:
    """Find where ``fsdp_config`` alone is set, to a dict or to one picked from a dict of them."""
    texts = [(assign, [code(each.target) for each in assign.targets]) for assign in source.assignments]
    told = {text for _, every in texts for text in every}
    for assign, every in texts:
        for text in every:
            # Where `fsdp` is set beside it, what becomes of both is said there.
            if not _IS_CONFIG.search(text) or text.replace("fsdp_config", "fsdp") in told:
                continue
            value = when_on(assign.value)
            home = definition(source, value.value if isinstance(value, cst.Subscript) else value)
            given = items_of(source, home)
            if isinstance(value, cst.Subscript):
                name, held = next(iter(given.items()), ("", home))
                given = items_of(source, held)
                where = f"`{name}` becomes"
            else:
                held, where = home, "This one becomes"
            if "version" in given or not any(map(_OF_HF.search, given)):
                continue
            values = Values(source)
            document = {"output_dir": ".", "fsdp": "full_shard auto_wrap", "fsdp_config": values.read(held)}
            after = convert_settings("hf", document, values).after.get("fsdp_config")
            yield Found(
                "FM327", assign, _PICKED.format(where, values.pasted(python_text(after))), "commented"
            )


def _says_so(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether a value is what only the Trainer's ``fsdp`` can be."""
    value = Values(source).read(when_on(node))
    words = value.strip("'\"").replace(",", " ").split() if isinstance(value, str) else value
    return isinstance(words, list) and any(word in HF_WORDS - {"offload"} for word in words)


def _stated(source: Source, given: Given, place: cst.CSTNode) -> Iterator[Found]:
    values = Values(source)
    if "base_model" in given:
        is_fsdp2 = "fsdp_version" in given
        yield Found("FM327", place, *((_ALREADY, "kept") if is_fsdp2 else (_AXOLOTL, "commented")))
        return
    held = {name: values.read(given[name]) for name in _TAKEN if name in given}
    # SageMaker's hyperparameters have the quotes of a shell within those of Python.
    held = {name: value.strip("'\"") if isinstance(value, str) else value for name, value in held.items()}
    yield from _commented(held, values, place, ELSEWHERE if _taker(source, place) is None else BY_STARS)


def _of_class(source: Source, node: cst.ClassDef) -> Iterator[Found]:
    """Find defaults of a class that extends the arguments: ``fsdp: str = "full_shard"``."""
    bases = [source.index.qualified(base.value) or {dotted(base.value) or ""} for base in node.bases]
    is_theirs = any(_CLASS.search(name) for names in bases for name in names)
    values, held, place = Values(source), dict[str, Any](), None
    for line in node.body.body:
        for small in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            name, value = _default(small)
            # A class of another file may extend the arguments: then the words tell.
            is_theirs = is_theirs or (bool(bases) and name == "fsdp" and _is_said(source, value))
            if name in _TAKEN and value is not None:
                held[name] = values.read(value)
                place = small if name == "fsdp" else place
    if is_theirs and place is not None and held.get("fsdp"):
        yield from _commented(held, values, place, _DEFAULT)


def _is_said(source: Source, value: cst.BaseExpression | None) -> bool:
    return value is not None and _says_so(source, value)


def _default(small: cst.CSTNode) -> tuple[str, cst.BaseExpression | None]:
    """Return the name and the default of a field; that of ``field(default=...)`` too."""
    name, value = "", None
    if isinstance(small, cst.AnnAssign):
        name, value = dotted(small.target) or "", small.value
    elif isinstance(small, cst.Assign):
        name, value = dotted(small.targets[0].target) or "", small.value
    if isinstance(value, cst.Call) and last_name(value.func) == "field":
        given = named_arguments(value)
        made = given.get("default_factory")
        value = made.body if isinstance(made, cst.Lambda) else given.get("default")
    return name, value


def _gone(source: Source, converted: Converted, given: Container[str]) -> str:
    """Return what to do of arguments that transformers took out, where the others become FSDP2's."""
    return "" if converted.is_refused else of_former(source.code, given)


def _commented(held: dict[str, Any], values: Values, node: cst.CSTNode, why: str) -> Iterator[Found]:
    document = {name: held[name] for name in _TAKEN if held.get(name) is not None}
    maybe = _switch_on({name: held[name] for name in _BESIDE if name in held}, document, values)
    converted = convert_settings("hf", {"output_dir": ".", **document}, values)
    # A class of the project's that has such a field takes it.
    gone = "" if why == _DEFAULT else _gone(values.source, converted, held)
    if converted.is_fsdp2:
        yield Found("FM327", node, *((f"{_ALREADY}.{gone}", "commented") if gone else (_ALREADY, "kept")))
        return
    yield from _of_meta(values.source, node, converted)
    reasons = (UNKNOWN,) if values.has_unread(held["fsdp"]) else (why, *converted.reasons)
    yield Found("FM327", node, left(converted, values, reasons) + gone, "commented")
    yield from _of_the_rest(values, converted, node, maybe)
