"""Lightning's ``FSDPStrategy`` is FSDP1's; ``ModelParallelStrategy`` is the one for FSDP2.

It shards nothing itself: the LightningModule's ``configure_model`` does. So both are written, or neither.
https://lightning.ai/docs/pytorch/stable/advanced/model_parallel/tp_fsdp.html
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import libcst as cst

from fsdp_migrate.adapters.engine.claims import LIGHTNING_FOLDERS
from fsdp_migrate.findings import named
from fsdp_migrate.source import catalog
from fsdp_migrate.source.lightning_checks import privates, said_of_check
from fsdp_migrate.source.lightning_heirs import OF_ITS_CLASS, heirs_made, where_given
from fsdp_migrate.source.lightning_modules import OLD_HOOK, LightningModules, of_classes, with_hook
from fsdp_migrate.source.lightning_names import is_replaced, name_of, said_of_settings, settings_of
from fsdp_migrate.source.lightning_numbers import value_there
from fsdp_migrate.source.lightning_otherwise import taken_otherwise
from fsdp_migrate.source.lightning_words import chosen_words, is_word, words_apart
from fsdp_migrate.source.lightning_wrappers import WRAPPED, strategies_of_others, wrapped_strategies
from fsdp_migrate.source.python.accelerators import is_one
from fsdp_migrate.source.python.fabric_models import FABRICS
from fsdp_migrate.source.python.heirs import (
    FABRICS as THEIR_FABRICS,
    LIGHTNINGS,
    STRATEGIES,
    hands_on,
    led_to,
)
from fsdp_migrate.source.python.items import changed_call
from fsdp_migrate.source.python.keywords import hides_arguments, written_out
from fsdp_migrate.source.python.nodes import dotted, given_by_name, last_name, named_arguments, text_of, walk
from fsdp_migrate.source.python.values import Values, definition, python_text, takers
from fsdp_migrate.source.settings_in_python import (
    SAID,
    Converted,
    convert_settings,
    in_sentences,
    item_changes,
    said_of,
)
from fsdp_migrate.source.uses import Found, Need, Replace


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "lightning"
CODES = ("FM319", *SAID, "FM429")

_HERE = "the arguments that stand here"
_MEANT = (
    "Take ModelParallelStrategy, and call prepare_fully_shard(self, {...}) in the module's configure_model, "
    f"with {_HERE}."
)
_FABRIC = (
    "take ModelParallelStrategy(parallelize_fn=...), and call prepare_fully_shard(model, {...}) in that "
    f"function, with {_HERE}."
)
_CLASS = re.compile(
    r"^(lightning|pytorch_lightning|lightning_fabric|lightning\.(pytorch|fabric))\..*\b"
    r"(DDPFullyShardedNativeStrategy|FSDP(Strategy|Precision|MixedPrecisionPlugin|PrecisionPlugin))\b"
)
_FABRIC_HOME = "lightning.fabric"
_RANKS = "<number of ranks>"
_HIDDEN = "`*` and `**` hide arguments: add these to those below"
_IN_A_DICT = "its arguments stand in a dict that it is given by `**`: those of FSDP2 take their place"
_NO_FABRIC = "the Fabric that it is given to, and its precision and number of ranks, are not seen here"
_NO_TRAINER = "the Trainer that it is given to is not seen here"
_ELSEWHERE = "${precision}"
_ONE_BRANCH = "this strategy is given in one branch, and another in others"
_NO_MODULE = (
    "the LightningModule that the Trainer trains is not seen in these files, or has a configure_model or "
    "configure_sharded_model"
)
_OWN_HOOK = (
    "{} makes or shards its model in such a hook already: put the lines of the one below at its end, and "
    "write no second `def`, which would take its place."
)
_WRAPS = " Name the classes that `wrap()` is given there (FM303) in `auto_wrap_policy`, or all is one unit."
_OLD_HOOK = (
    "Call that hook of {} `configure_model`: ModelParallelStrategy asks for this name, and Lightning stops "
    "where a class has both it and `configure_sharded_model`."
)
_SHARDS = (
    "{} shards its model in such a hook already: keep that, put the arguments and the mesh of the lines "
    "below into its call of prepare_fully_shard, and write no second call and no second `def`."
)
_EACH_MODEL = (
    "Fabric calls that function for each model that it sets up, here {}: a class in `auto_wrap_policy` that "
    "one of them has no module of is an error, so give each its own, and None where one unit is meant."
)
_NEW = "ModelParallelStrategy"
_STATE_TYPE = "state_dict_type"
_SETS_UP = frozenset({"setup", "setup_module"})
_OWN = "what this is given to is a class of the project: see that it hands its arguments on as they are"
_TWO = "several strategies would give the LightningModule several hooks"
# What is said of the hook where it is not written as well, and of folders, which the strategy's comment says.
_SAID_ELSEWHERE = (
    *("Put the hook into the LightningModule.", "stands in `configure_model`, where FSDP2 is told."),
    LIGHTNING_FOLDERS,
)


@dataclass
class _Asked:
    """One place that asks for FSDP1, and what becomes of it."""

    node: cst.CSTNode
    call: cst.Call | None
    trainer: cst.Call | None
    package: str
    values: Values
    converted: Converted
    reasons: list[str]
    module: cst.ClassDef | None = None
    heir: str = ""
    """The class of the project that derives from the strategy, and is made here."""
    elsewhere: str | None = None
    """The class of another file that the Trainer trains, as imports write it."""

    @property
    def is_fabric(self) -> bool:
        """Whether it is Fabric's strategy, which is given a function, not the Trainer's."""
        return "fabric" in self.package

    @property
    def is_rewritten(self) -> bool:
        """Whether nothing keeps it from FSDP2's strategy, and the module that gets the hook is known."""
        return not self.reasons and (self.module is not None or self.elsewhere is not None)

    @property
    def wanted(self) -> dict[str, Any]:
        """The arguments of ModelParallelStrategy."""
        strategy = self.converted.after.get("trainer", {}).get("strategy")
        found = strategy.get("init_args") if isinstance(strategy, dict) else None
        return found if isinstance(found, dict) else {}


def find(source: Source) -> Iterator[Found]:
    """Find the strategy, by its class and by its name."""
    asked: list[_Asked] = []
    for node in (*source.loads, *source.attributes):
        names = {name for name in source.index.qualified(node) if _CLASS.match(name)}
        above = source.index.parents[node]
        if not names or (isinstance(above, cst.Attribute) and above.value is node):
            continue
        match = next((m for name in sorted(names) if (m := STRATEGIES.match(name))), None)
        if match and isinstance(above, cst.Call) and above.func is node:
            if not is_replaced(source, above):
                asked.append(_of_call(source, above, match["package"]))
        else:
            yield from _named(source, node, names)
    for heir, match, is_handed_on in heirs_made(source):
        asked.append(_of_heir(source, heir, match["package"], is_handed_on=is_handed_on))
    for call in source.calls:
        name = _class_of(source, call)
        for arg in call.args if name in {"Fabric", "Trainer"} else ():
            if arg.keyword is None or arg.keyword.value != "strategy" or not is_word(source, arg.value):
                continue
            asked.append(_of_word(source, call, arg, is_fabric=name == "Fabric"))
    yield from _together(source, asked)
    yield from _hooks(source)
    yield from privates(source)
    yield from taken_otherwise(source)
    read = {arg.node for arg in asked}
    done = {arg.node for arg in asked if arg.call is None and arg.is_rewritten}
    yield from words_apart(source, read, done)
    yield from (Found("FM319", call, WRAPPED, "commented") for call in wrapped_strategies(source))
    yield from chosen_words(source)
    yield from (Found("FM319", node, said, "commented") for node, said in strategies_of_others(source))


def _class_of(source: Source, call: cst.Call) -> str:
    """Return the last word of the class that a call makes, or of Lightning's that its bases lead to."""
    name = last_name(call.func)
    if name in {"Fabric", "Trainer"} or not any(_is_strategy(arg) for arg in call.args):
        return name
    leads = led_to(source.index, call.func)
    return "Trainer" if any(map(LIGHTNINGS.match, leads)) else _fabric_in(leads) or name


def _is_strategy(arg: cst.Arg) -> bool:
    return arg.keyword is not None and arg.keyword.value == "strategy"


def _fabric_in(names: set[str]) -> str:
    return "Fabric" if any(map(THEIR_FABRICS.match, names)) else ""


def _named(source: Source, node: cst.CSTNode, names: set[str]) -> Iterator[Found]:
    """Find the class where nothing calls it: in a check, an annotation, as a value."""
    said = said_of_check(source, node)
    if said is None:
        said = _FABRIC if any("fabric" in name for name in names) else _MEANT
        said = said.replace(_HERE, where_given(source, node) or _HERE)
    if said:
        yield Found("FM319", node, said, "commented")


def _of_call(source: Source, call: cst.Call, package: str) -> _Asked:
    """Read ``FSDPStrategy(...)`` with the Trainer that it is given to."""
    values, reasons = Values(source), list[str]()
    given = {**written_out(source, call), **named_arguments(call)}
    held = {name: values.read(value) for name, value in given.items()}
    if hides_arguments(source, call) or any(arg.keyword is None and not arg.star for arg in call.args):
        reasons.append(_HIDDEN)
    elif any(arg.star for arg in call.args):
        reasons.append(_IN_A_DICT)
    trainer = _trainer_of(source, call)
    if trainer is not None and not _is_in_each_case(source, call, trainer):
        reasons.append(_ONE_BRANCH)
    reasons += said_of_settings(settings_of(source, call))
    strategy = {"class_path": f"{package}.strategies.FSDPStrategy", "init_args": held}
    return _asked(source, _Asked(call, call, trainer, package, values, Converted({}, {}), reasons), strategy)


def _of_heir(source: Source, call: cst.Call, package: str, *, is_handed_on: bool) -> _Asked:
    """Read a call of a class that derives from the strategy, whose methods a person has to look at."""
    asked = _Asked(call, call, None, package, Values(source), Converted({}, {}), [])
    if is_handed_on:
        asked = _of_call(source, call, package)
    asked.heir = last_name(call.func)
    asked.reasons.insert(0, OF_ITS_CLASS.format(asked.heir))
    return asked


def _of_word(source: Source, trainer: cst.Call, arg: cst.Arg, *, is_fabric: bool) -> _Asked:
    """Read ``Trainer(strategy="fsdp")``, or ``Fabric``'s."""
    names = sorted(led_to(source.index, trainer.func))
    if is_fabric:
        package = "lightning_fabric" if names and names[0].startswith("lightning_fabric") else _FABRIC_HOME
        values = Values(source)
        held = {"cpu_offload": True} if "cpu_offload" in str(values.read(arg.value)) else {}
        asked = _Asked(arg, None, trainer, package, values, Converted({}, {}), [])
        return _asked(source, asked, {"class_path": f"{package}.strategies.FSDPStrategy", "init_args": held})
    package = (
        "pytorch_lightning" if names and names[0].startswith("pytorch_lightning") else "lightning.pytorch"
    )
    known = trainer if any(LIGHTNINGS.match(name) for name in names) else None
    values = Values(source)
    word = str(values.read(arg.value)).replace("fsdp_native_full_shard_offload", "fsdp_cpu_offload")
    return _asked(source, _Asked(arg, None, known, package, values, Converted({}, {}), []), word)


def _asked(source: Source, asked: _Asked, strategy: Any) -> _Asked:
    """Convert a strategy with what the Trainer says, and find the module that is to have the hook."""
    document: dict[str, Any] = {"accelerator": "auto", "strategy": strategy}
    if asked.trainer is not None and not hands_on(source.index, asked.trainer.func):
        asked.reasons.append(_OWN)
    if asked.trainer is None:
        asked.reasons.append(_NO_FABRIC if asked.is_fabric else _NO_TRAINER)
        document |= {} if asked.is_fabric else {"precision": _ELSEWHERE}
    else:
        given = named_arguments(asked.trainer)
        hidden = any(arg.star for arg in asked.trainer.args)
        for name in ("devices", "num_nodes", "precision", "sync_batchnorm"):
            if name in given:
                document[name] = value_there(source, asked.values, given[name], asked.node)
            # What `**` may hold is known only when this runs; the adapter takes such a word for that.
            elif hidden:
                document[name] = f"${{{name}}}"
        document = {name: value for name, value in document.items() if value is not None}
    asked.converted = convert_settings("lightning", {"trainer": document}, asked.values)
    asked.reasons += asked.converted.reasons
    # ModelParallelStrategy does not heed `sync_batchnorm`: the hook converts the layers, and has to know.
    unknown = [
        each.message
        for each in asked.converted.findings
        if each.code == "FM345" or (each.code == "FM346" and each.subject.endswith("sync_batchnorm"))
    ]
    asked.reasons += unknown
    if asked.trainer is not None and not asked.reasons and not asked.is_fabric:
        modules = LightningModules(source)
        asked.elsewhere = modules.trained_elsewhere()
        if asked.elsewhere is not None:
            asked.reasons += filter(None, [source.links.lightning[asked.elsewhere]])
        else:
            asked.module = modules.trained_by(asked.trainer)
            asked.reasons += [] if asked.module is not None else [_NO_MODULE]
    return asked


def _trainer_of(source: Source, call: cst.Call) -> cst.Call | None:
    """Return the only Trainer that a strategy is given to, in the call itself or by a name."""
    node: cst.CSTNode = call
    target = name_of(source, call)
    if target is not None:
        given = takers(source, target)
        if given is None:
            return None
        settings = {each.value for each in settings_of(source, call)}
        given = [each for each in given if each not in settings]
        if len(given) != 1:
            return None
        node = given[0]
    arg = source.index.parents[node]
    trainer = source.index.parents.get(arg)
    if not isinstance(arg, cst.Arg) or arg.keyword is None or arg.keyword.value != "strategy":
        return None
    is_trainer = isinstance(trainer, cst.Call) and any(
        LIGHTNINGS.match(name) or THEIR_FABRICS.match(name) for name in led_to(source.index, trainer.func)
    )
    return trainer if is_trainer and isinstance(trainer, cst.Call) else None


def _is_in_each_case(source: Source, call: cst.Call, trainer: cst.Call) -> bool:
    """Tell whether a strategy goes to its Trainer whichever branch is taken."""
    given = given_by_name(trainer, "strategy")
    return any(each is call or definition(source, each) is call for each in given)


def _together(source: Source, every: list[_Asked]) -> Iterator[Found]:
    """Rewrite what can be, each module with one hook; comment the rest.

    Under a Trainer with another strategy, FSDP1's too, the hook finds no mesh, and does nothing.
    """
    hooks: dict[cst.ClassDef | str, set[str]] = {}
    for asked in every:
        hooked = asked.module or asked.elsewhere
        if hooked is not None:
            hooks.setdefault(hooked, set()).add(asked.converted.code)
    done: set[cst.ClassDef] = set()
    for asked in every:
        hooked = asked.module or asked.elsewhere
        if hooked is not None and len(hooks[hooked]) > 1:
            asked.reasons.append(_TWO)
        if not asked.is_rewritten:
            yield _left(source, asked)
            continue
        yield from _rewritten(source, asked, is_first=asked.module not in done)
        done.update([asked.module] if asked.module is not None else [])


def _hooks(source: Source) -> Iterator[Found]:
    """Yield the classes that get a hook because the Trainer of another file trains them."""
    for name, code in source.links.hooks.items():
        module = LightningModules(source).by_name(name)
        if module is not None:
            becomes = f"configure_model in {name}, which shards it for the Trainer of another file"
            yield Found("FM429", module, becomes, "rewritten", (_hook(source, module, code),))


def _hook(source: Source, module: cst.ClassDef, code: str) -> Replace:
    return Replace(module, lambda node: with_hook(source, node, code))


def _left(source: Source, asked: _Asked) -> Found:
    """Return the comment for what is left to a person: strategy and hook, as far as they are known."""
    wanted = {name: _RANKS if value == "auto" else value for name, value in asked.wanted.items()}
    said = in_sentences(asked.reasons)
    if not asked.converted.code:
        meant = _FABRIC[0].upper() + _FABRIC[1:] if asked.is_fabric else _MEANT
        return Found("FM319", asked.node, f"{said} {meant}".strip(), "commented")
    shown = asked.values.pasted(_arguments(wanted)).replace(f'"{_RANKS}"', _RANKS)
    home = "" if asked.heir else f" of {asked.package}.strategies"
    if asked.is_fabric:
        text = (
            f"{said} Take {asked.heir or _NEW}(parallelize_fn=parallelize, {shown}){home}, put the function "
            "that `rewrite` shows below this above it, "
            "make optimizers, and the lists of parameters that they are given, after "
            "`model = fabric.setup_module(model)`: FSDP2 replaces the parameters."
            f"{_of_each_model(source, asked) or of_classes(asked.converted.code)}"
        )
        return Found("FM319", asked.node, text.strip(), "commented", paste=asked.converted.code)
    text = (
        f"{said} Take {asked.heir or _NEW}({shown}){home}, and put the hook that "
        f"`rewrite` shows below this into {_the_module(source)}. Either without the other does "
        f"not shard.{_of_own_hook(source)}{_of_folders(asked)}"
        f"{of_classes(asked.converted.code)}"
    )
    return Found("FM319", asked.node, text, "commented", paste=asked.converted.code)


def _the_module(source: Source) -> str:
    """Name the module that gets the hook, where one alone is trained here, and its file."""
    return f"the LightningModule {LightningModules(source).named()}".rstrip()


def _of_each_model(source: Source, asked: _Asked) -> str:
    """Say that a policy by classes must suit every model, where a function gives Fabric several."""
    code = asked.converted.code
    if "'auto_wrap_policy'" not in code or "min_num_params" in code:
        return ""
    given: dict[cst.CSTNode | None, list[str]] = {}
    for call in source.calls:
        func = call.func
        if not isinstance(func, cst.Attribute) or func.attr.value not in _SETS_UP or not call.args:
            continue
        if is_one(FABRICS, dotted(func.value) or "", source.index) and not call.args[0].star:
            given.setdefault(source.index.function(call), []).append(f"`{text_of(call.args[0].value)}`")
    models = next((list(dict.fromkeys(each)) for each in given.values() if len(set(each)) > 1), [])
    return f" {_EACH_MODEL.format(' and '.join(models))}" if models else ""


def _of_own_hook(source: Source) -> str:
    """Say what becomes of a hook that a class of the file has already: a second one would take its place."""
    hooks = LightningModules(source).hooks()
    made = (source.index.function(call) for call in source.calls if source.models.is_constructor(call.func))
    inside = set(made)
    sharding = [f"`{name}`" for name, hook in hooks.items() if hook in inside]
    others = [name for name, hook in hooks.items() if hook not in inside]
    old = [f"`{name}`" for name, hook in hooks.items() if hook.name.value == OLD_HOOK]
    wraps = not catalog.MANUAL_WRAPPING.isdisjoint(source.references.values())
    said = [_SHARDS.format(" and ".join(sharding))] if sharding else []
    said += [f"{_OWN_HOOK.format(named(others, 3))}{_WRAPS if wraps else ''}"] if others else []
    said += [_OLD_HOOK.format(" and ".join(old))] if old else []
    return "".join(f" {each}" for each in said)


def _arguments(wanted: dict[str, Any]) -> str:
    return ", ".join(
        # One that is known only when this runs: what is known has its new name already.
        f'save_distributed_checkpoint=({python_text(value)} == "sharded")'
        if name == _STATE_TYPE
        else f"{name}={python_text(value)}"
        for name, value in wanted.items()
    )


def _rewritten(source: Source, asked: _Asked, *, is_first: bool) -> Iterator[Found]:
    need = Need(f"{asked.package}.strategies", _NEW)
    findings = [
        each
        for each in asked.converted.findings
        if not f"{each.message} {each.hint or ''}".strip().endswith(_SAID_ELSEWHERE)
    ]
    yield from said_of(findings, asked.values, lambda subject: asked.trainer or asked.node)
    shown = f"{_NEW}({asked.values.shown(_arguments(asked.wanted))})"
    module, code = asked.module, asked.converted.code
    hook = (_hook(source, module, code),) if module is not None and is_first else ()
    covers: tuple[cst.CSTNode, ...] = ()
    if asked.call is None:
        place = cst.ensure_type(asked.node, cst.Arg)
        made = cst.parse_expression(f"{source.local_name(need)}({_arguments(asked.wanted)})")
        edit = Replace(place, lambda arg: arg.with_changes(value=made))
        needs: tuple[Need, ...] = (need,)
    else:
        edit, needs = _edit_of(source, asked, need)
        removed = [arg.value for arg in asked.call.args]
        covers = (asked.call.func, *(n for v in removed for n in _torch_names(source, v)))
    name = module.name.value if module is not None else asked.elsewhere
    elsewhere = (asked.elsewhere, code) if asked.elsewhere is not None else None
    becomes = f"{shown}, and configure_model in {name}"
    folders = _of_folders(asked).strip()
    note = f"{folders} Where no code of yours reads such a folder, delete this comment." if folders else ""
    yield Found("FM429", asked.node, becomes, "rewritten", (edit, *hook), needs, covers, note, hook=elsewhere)


def _of_folders(asked: _Asked) -> str:
    """Say who reads the folders that a Trainer saves, where it does, or may, save folders."""
    saves = asked.wanted.get("save_distributed_checkpoint", _STATE_TYPE in asked.wanted)
    return f" {LIGHTNING_FOLDERS}" if saves and not asked.is_fabric else ""


def _torch_names(source: Source, value: cst.BaseExpression) -> Iterator[cst.CSTNode]:
    return (node for node in walk(value) if node in source.references)


def _edit_of(source: Source, asked: _Asked, need: Need) -> tuple[Replace, tuple[Need, ...]]:
    call = asked.call
    assert call is not None
    before = asked.converted.before["trainer"]["strategy"]["init_args"]
    changes, new = item_changes(before, asked.wanted, asked.values)
    func: cst.BaseExpression = cst.Name(source.local_name(need))
    needs: tuple[Need, ...] = (need,)
    above = call.func.value if isinstance(call.func, cst.Attribute) else None
    if above is not None and any(name.endswith(".strategies") for name in source.index.qualified(above)):
        func, needs = call.func.with_changes(attr=cst.Name(need.name)), ()

    def build(updated: cst.Call) -> cst.Call:
        return changed_call(updated, changes, new).with_changes(func=func)

    return Replace(call, build), needs
