"""``FSDP.summon_full_params(model, ...)`` becomes ``summon_full_params(model, ...)``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.called_methods import is_own, is_the_model, methods_that_may_run
from fsdp_migrate.source.framework_words import frameworks_shard
from fsdp_migrate.source.fsdp2_models import is_fsdp2s, stays
from fsdp_migrate.source.method_calls import sureness, unbound
from fsdp_migrate.source.other_objects import other_objects
from fsdp_migrate.source.python.loops import binds, loops_around
from fsdp_migrate.source.python.made_sure import asks_class
from fsdp_migrate.source.python.nodes import (
    dotted,
    given_by_name,
    keyword,
    last_name,
    placed_parameters,
    text_of,
    walk_for,
)
from fsdp_migrate.source.python.one_rank import is_of_one_rank, runs_on_one_rank
from fsdp_migrate.source.python.wrappers import SAME_MODEL
from fsdp_migrate.source.rules.privates import is_of_another_package
from fsdp_migrate.source.uses import Found, Need, Replace


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "summon-full-params"
CODES = ("FM313", "FM332")

SUMMON = Need("fsdp_migrate.runtime", "summon_full_params")
_ORDER = ("module", "recurse", "writeback", "rank0_only", "offload_to_cpu", "with_grads")
# What parts of models, and methods that run them, are called.
_PARTS = re.compile(
    r"encod|decod|forward|embed|head|layer|block|backbone|generat|sampl|predict|attention|infer"
)
# Of these, what says by its name that it does something.
_METHODS = re.compile(r"forward|encode(?!r)|decode(?!r)|generate(?!_?or)|sample(?!r)|predict(?!_?or)|infer")


@dataclass(frozen=True)
class _Running:
    """That a model runs in a context, or seems to."""

    meaning: str
    """What that means, with a place for what becomes of the context."""
    method: str = ""
    """The method of the model that runs, where one does."""
    where_gathered: str | None = None
    """What is left to do where a framework's model gathers its parameters itself; None where it does not."""

    def said(self, *, is_read: bool, is_alone: bool) -> str:
        """Return what is said where the block reads parameters as well, and where one rank alone runs it."""
        meant = self.meaning.format(self.method, away=_OUT_OF_IT if is_read else _AWAY)
        return f"{meant} {_ON_EVERY_RANK}" if is_alone else meant


_AWAY = "take the context away"
_OUT_OF_IT = (
    "take out of the context what runs it, and make that fsdp_migrate.runtime.summon_full_params for what "
    "reads parameters here, or saves them, which are DTensors outside"
)
_ON_EVERY_RANK = (
    "One rank alone runs it here, and would wait for the others, which gather with it: run it on every rank."
)
_RUNS = (
    "the model runs in this context, which FSDP2 does not allow: call "
    "fsdp_migrate.runtime.register_forward_methods(model, {0!r}) once, and {away}."
)
_PARTS_RUN = _Running(
    "parts of the model run in this context, which FSDP2 does not allow: put these lines into a method of "
    "the model, call fsdp_migrate.runtime.register_forward_methods(model, 'that_method') once, and {away}."
)
_METHOD_RUNS = (
    "the model seems to run in this context, by its method {0!r}, which FSDP2 does not allow: if so, call "
    "fsdp_migrate.runtime.register_forward_methods(model, {0!r}) once, and {away}. If it does not run, call "
    "fsdp_migrate.runtime.summon_full_params."
)
_FORWARD_RUNS = _Running(
    "the model runs in this context, which FSDP2 does not allow: {away}, the model gathers its parameters "
    "itself; put only what reads them into fsdp_migrate.runtime.summon_full_params.",
    where_gathered="",
)
_IN_VAIN = (
    "this context does nothing here: it looks for units of FSDP1, of which the framework's FSDP2 model has "
    "none, and that gathers its parameters itself where it runs. It can be taken away."
)
_OWN_METHOD = (
    "Only if {0!r} runs layers without the model's own forward, call "
    "fsdp_migrate.runtime.register_forward_methods(model, {0!r}) once."
)
_CALLED_AS_FORWARD = frozenset({"generate", "sample"})
_MAY_RUN = _Running(
    "the model seems to run in this context, which FSDP2 does not allow: if it does, {away}, the model "
    "gathers its parameters itself where it is called; for another method of it that is called, such as "
    "generate, call fsdp_migrate.runtime.register_forward_methods(model, 'generate') once. If it does not "
    "run, call fsdp_migrate.runtime.summon_full_params."
)
_PIPE_RUNS = _Running(
    "the model seems to run in this context, by way of a pipeline, which FSDP2 does not allow: if it does, "
    "{away}, the model gathers its parameters itself where the pipeline calls it. If it does not run, call "
    "fsdp_migrate.runtime.summon_full_params."
)
# `embed.weight.norm()`: a parameter's methods run no part.
_OF_A_TENSOR = re.compile(r"(?:^|[._])(?:weight|bias|data|grad)\.\w+$")
_MAKERS = frozenset({"from_config", "from_pretrained", "load_from_checkpoint"})
# What holds a model and runs it, what runs the model that it is given, and what does not.
_PIPE = re.compile(r"(?:\w*_)?pipe(?:line)?")
_RUN_IT = re.compile(
    r"evaluat|validat|infer|predict|generat|sampl|metric|run_|test_|trace|respond|answer_|chat|complet|rollout"
)
_LEAVE_IT = re.compile(r"_*(?:copy|export|load|log|push|save)")
_DEEPEST = 2
_READ = frozenset({"get_parameter", "named_parameters", "parameters", "state_dict"})
_SAVE = frozenset({"push_to_hub", "save_checkpoint", "save_model", "save_pretrained", "save_weights"})
# What has such a method, and no parameters.
_NO_MODEL = re.compile(r"config|processor|tokenizer|^tok$|extractor", re.IGNORECASE)
_HIDDEN = "call fsdp_migrate.runtime.summon_full_params(model, ...) with the same arguments, by their names."
_UNSEEN = (
    "what runs in this context is not seen here: if it reads parameters, call "
    "fsdp_migrate.runtime.summon_full_params; if the model runs in it, register_forward_methods instead, and "
    "let every rank run it."
)


def find(source: Source) -> Iterator[Found]:
    """Find every call, of the class or of an instance."""
    for call in source.calls:
        if unbound(source, call, "summon_full_params"):
            if call.args and is_fsdp2s(source, call.args[0].value):
                yield stays("FM313", call, (call.func,))
                continue
            yield _of_call(source, call, (call.func,))
            yield from _by_themselves(source, call)
            continue
        func = call.func
        named = isinstance(func, cst.Attribute) and func.attr.value == "summon_full_params"
        if not named or is_of_another_package(source):
            continue
        # Given itself, it is a function of the class that an instance is asked for.
        is_torchs = source.class_function(call) == "summon_full_params"
        if is_torchs or sureness(source, cst.ensure_type(func, cst.Attribute).value) in {"sure", "mixed"}:
            yield _of_call(source, call, ())
            yield from _by_themselves(source, call)


def _by_themselves(source: Source, call: cst.Call) -> Iterator[Found]:
    """Yield where it matters that the parameters in a context are other objects than those outside."""
    block = _block_of(source, call)
    if block is None or not call.args:
        return
    bodies = [body for body, _ in _bodies(source, block, call)]
    is_kept = text_of(next(iter(given_by_name(call, "writeback")), call)) != "False"
    found = other_objects(source, block.body, text_of(_model_given(call)), bodies, is_kept=is_kept)
    yield from (Found("FM313", node, said, "commented") for node, said in found)


def _of_call(source: Source, call: cst.Call, covers: tuple[cst.CSTNode, ...]) -> Found:
    if any(arg.star for arg in call.args) or not call.args:
        return Found("FM313", call, _HIDDEN, "commented", covers=covers)
    block = _block_of(source, call)
    if block is None:
        return Found("FM313", call, _UNSEEN, "commented", covers=covers)
    running = next(filter(None, (_running_in(source, *each) for each in _bodies(source, block, call))), None)
    if running is not None:
        return _of_running(source, call, block, running, covers)
    if _calls_a_parameter(source, block.body):
        return Found("FM313", call, _UNSEEN, "commented", covers=covers)
    new = source.local_name(SUMMON)
    # Accelerate 1.14 on makes the embeddings a unit of their own, which FSDP1's outermost unit held.
    is_whole = frameworks_shard(source, _model_given(call)) and not _is_entered_for_each(source, call)

    def build(updated: cst.Call) -> cst.Call:
        args: list[cst.Arg] = []
        for place, given in enumerate(updated.args):
            arg = given
            # Ours takes all but the model by its name.
            name = _ORDER[place] if arg.keyword is None else arg.keyword.value
            if name == "module":
                arg = arg.with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT)
                args.insert(0, arg)
            elif name != "recurse" or not is_whole:
                args.append(arg.with_changes(keyword=cst.Name(name), equal=keyword("x", arg.value).equal))
        args[-1] = args[-1].with_changes(comma=updated.args[-1].comma)
        return updated.with_changes(func=cst.Name(new), args=args)

    return Found("FM313", call, f"{new}(...)", "rewritten", (Replace(call, build),), (SUMMON,), covers)


def _is_entered_for_each(source: Source, call: cst.Call) -> bool:
    """Tell whether each unit gets a context of its own, that of the embeddings too.

    In a loop through modules, or a function that calls itself, below ``if isinstance(module, FSDP)``.
    """
    given = _model_given(call)
    if not isinstance(given, cst.Name):
        return False
    facts = source.models.guards.facts(call)
    checks = (test for test, truth in facts if truth and isinstance(test, cst.Call))
    if not any(asks_class(each) and text_of(each.args[0].value) == given.value for each in checks):
        return False
    if any(binds(loop, given.value) for loop in loops_around(source.index, call)):
        return True
    function = source.index.function(call)
    name = function.name.value if function is not None else ""
    called = walk_for(function.body, cst.Call) if function is not None else ()
    return any(dotted(each.func) in {name, f"self.{name}", f"cls.{name}"} for each in called)


def _model_given(call: cst.Call) -> cst.BaseExpression:
    """Return the model whose parameters a context is to show, by its place or by its name."""
    return next(iter(given_by_name(call, "module")), call.args[0].value)


def _of_running(
    source: Source, call: cst.Call, block: cst.With, running: _Running, covers: tuple[cst.CSTNode, ...]
) -> Found:
    """Return what is found of a context in which the model runs, or seems to."""
    bodies = list(_bodies(source, block, call))
    is_read = _reads_parameters(block.body) or any(_saves(each) for each, _ in bodies)
    more = running.where_gathered
    if is_read or more is None or not frameworks_shard(source, call.args[0].value):
        said = running.said(is_read=is_read, is_alone=_runs_alone(source, call, bodies))
        return Found("FM332", call, said, "commented", covers=covers)
    if more:
        return Found("FM313", call, f"{_IN_VAIN} {more}", "commented", covers=covers)
    return Found("FM313", call, f"stays: {_IN_VAIN}", "kept", covers=covers)


def _reads_parameters(body: cst.CSTNode) -> bool:
    """Tell whether a block reads parameters beside what it runs: ``head.weight``, ``model.parameters()``."""
    called = {call.func for call in walk_for(body, cst.Call)}
    return any(
        each.attr.value in (_READ if each in called else {"bias", "weight"})
        for each in walk_for(body, cst.Attribute)
    )


def _saves(body: cst.CSTNode) -> bool:
    """Tell whether a block saves a model: ``model.save_pretrained(path)``, which is whole here alone."""
    methods = (call.func for call in walk_for(body, cst.Call) if isinstance(call.func, cst.Attribute))
    return any(each.attr.value in _SAVE and not _NO_MODEL.search(last_name(each.value)) for each in methods)


def _runs_alone(source: Source, call: cst.Call, bodies: list[tuple[cst.CSTNode, str]]) -> bool:
    """Tell whether one rank alone comes to a context, or to what runs the model in it."""
    guards = source.models.guards
    if runs_on_one_rank(source.index, guards, call):
        return True
    blocks = ((each, name) for body, name in bodies for each in walk_for(body, cst.IndentedBlock))
    return any(
        is_of_one_rank(guards, each.body[0]) and _running_in(source, each, name) is not None
        for each, name in blocks
    )


def _calls_a_parameter(source: Source, body: cst.CSTNode) -> bool:
    """Tell whether a block calls a function that is given to the one around: ``return func(model)``."""
    called = (call.func for call in walk_for(body, cst.Call) if isinstance(call.func, cst.Name))
    bindings = (source.index.bindings_of(name) for name in called if name in source.index.scopes)
    return any(every and all(each.kind == "param" for each in every) for every in bindings)


def _block_of(source: Source, call: cst.Call) -> cst.With | None:
    """Return the ``with`` statement that enters a context, also by a condition, or by a name."""
    for above in source.index.ancestors(call):
        if isinstance(above, cst.WithItem):
            block = source.index.parents[above]
            return block if isinstance(block, cst.With) else None
        if isinstance(above, cst.Assign):
            return _entered_by_name(source, above)
        if not isinstance(above, cst.IfExp):
            return None
    return None


def _entered_by_name(source: Source, assign: cst.Assign) -> cst.With | None:
    """Return the one ``with`` statement that a name is for: ``context = ...``, ``with context:``."""
    target = assign.targets[0].target if len(assign.targets) == 1 else None
    readers = source.readers(target) if isinstance(target, cst.Name) else []
    item = source.index.parents[readers[0]] if len(readers) == 1 else None
    block = source.index.parents[item] if isinstance(item, cst.WithItem) else None
    is_here = block is not None and source.index.function(block) is source.index.function(assign)
    return block if is_here and isinstance(block, cst.With) else None


def _bodies(source: Source, block: cst.With, call: cst.Call) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield what runs in a context, with what the model is called there: functions of this source, too."""
    model = text_of(call.args[0].value)
    yield block.body, model
    seen: set[cst.CSTNode] = set()
    ahead: list[tuple[cst.CSTNode, str]] = [(block.body, model)]
    if any(True for _ in walk_for(block.body, cst.Yield)):
        ahead += _entered(source, source.index.function(call), model)
        yield from ahead[1:]
    for _ in range(_DEEPEST):
        ahead = [
            (function.body, name)
            for body, known in ahead
            for inner in walk_for(body, cst.Call)
            for function in source.models.guards.functions(inner.func)
            if function not in seen and (name := _called_in(source, inner, function, known))
        ]
        seen.update(source.index.parents[body] for body, _ in ahead)
        yield from ahead


def _called_in(source: Source, call: cst.Call, function: cst.FunctionDef, model: str) -> str:
    """Return what a model is called in a function that is called: an attribute of ``self``, a parameter."""
    params = [each.name.value for each in placed_parameters(function)]
    if isinstance(call.func, cst.Attribute) and params[:1] in (["self"], ["cls"]):
        params = params[1:]
    for place, arg in enumerate(call.args):
        if not arg.star and is_the_model(source, arg.value, model):
            return arg.keyword.value if arg.keyword else params[place] if place < len(params) else ""
    return model if model.startswith("self.") and isinstance(call.func, cst.Attribute) else ""


def _entered(
    source: Source, function: cst.FunctionDef | None, model: str
) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield the blocks of this source that enter a context which a function makes of another one."""
    params = [each.name.value for each in placed_parameters(function)] if function is not None else []
    params = params[1:] if params[:1] == ["self"] else params
    for node in source.index.by_kind.get(cst.With, ()):
        for item in cst.ensure_type(node, cst.With).items:
            made = item.item
            if not isinstance(made, cst.Call) or function not in set(
                source.models.guards.functions(made.func)
            ):
                continue
            given = dict(zip(params, (text_of(arg.value) for arg in made.args), strict=False))
            yield cst.ensure_type(node, cst.With).body, given.get(model, model)


def _running_in(source: Source, body: cst.CSTNode, model: str) -> _Running | None:
    """Return how a block runs the model, or seems to; None where it does not."""
    method = _runs_the_model(source, body, model)
    if method == "forward":
        return _FORWARD_RUNS
    if method:
        left = _OWN_METHOD.format(method) if method in _CALLED_AS_FORWARD else None
        return _Running(_RUNS, method, left)
    if method is not None:
        return _PARTS_RUN
    named = next(methods_that_may_run(source, body, model), None)
    return _Running(_METHOD_RUNS, named) if named is not None else _may_run_the_model(source, body, model)


def _runs_the_model(source: Source, body: cst.CSTNode, model: str) -> str | None:
    """Return the method by which a context's block runs the model, or nothing where only parts of it run.

    FSDP2 would shard the parameters again. None if the block does not run it.
    """
    found = None
    for inner in walk_for(body, cst.Call):
        name = dotted(inner.func) or ""
        part = _part_of(source, inner.func, name, model)
        last = name.split(".")[-1]
        if name in {model, f"{model}.module", f"{model}.forward"}:
            found = found or "forward"
        elif last in {"forward", "generate", "sample"}:
            if not _is_of_a_plain_model(source, inner.func, model, body):
                return last
        elif (
            part
            and _PARTS.search(part)
            and not _OF_A_TENSOR.search(part)
            and not _runs_nothing(source, inner, last)
        ):
            if part == last and _METHODS.search(part):
                return part
            found = ""
    return found


def _part_of(source: Source, func: cst.BaseExpression, name: str, model: str) -> str:
    """Return which part of the model is called, by the model's name or by another one that it has here."""
    if name.startswith(f"{model}."):
        return name.removeprefix(f"{model}.")
    while isinstance(func, cst.Attribute):
        func = func.value
    is_one = isinstance(func, cst.Name) and func.value != model and is_the_model(source, func, model)
    return name.partition(".")[2] if is_one else ""


def _runs_nothing(source: Source, call: cst.Call, method: str) -> bool:
    """Tell whether a method of a part runs nothing: ``encoder.state_dict()``, ``head.reset_parameters()``."""
    if method.startswith(("get_", "named_", "set_")):
        return True
    # `vit.to_embedding(x)` is a part that is called, and `vit.init_embedding()` is not.
    is_result_left = isinstance(source.index.parents[call], cst.Expr)
    if method == "__call__" or (_PARTS.search(method) and not is_result_left):
        return False
    return not is_own(method) or method.endswith("_")


def _is_of_a_plain_model(source: Source, func: cst.BaseExpression, model: str, body: cst.CSTNode) -> bool:
    """Tell whether a method is one of a model of its own, made new here or before: by ``from_pretrained``."""
    while isinstance(func, cst.Attribute):
        func = func.value
    if not isinstance(func, cst.Name) or func.value == model.split(".", maxsplit=1)[0]:
        return False
    bindings = source.index.bindings_of(func) if func in source.index.scopes else []
    if not bindings or not all(_is_made_new(each.value, model) for each in bindings):
        return False
    # One that was made before may have been given to what sharded it.
    is_given = any(isinstance(source.index.parents[each], cst.Arg) for each in source.readers(func))
    return not is_given or all(body in set(source.index.ancestors(each.node)) for each in bindings)


def _is_made_new(value: cst.BaseExpression | None, model: str) -> bool:
    """Tell whether a value is a model that was just read or made, of which the sharded one is no part."""
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute):
        if value.func.attr.value in _MAKERS:
            return not any(text_of(arg.value) == model for arg in value.args)
        if value.func.attr.value not in SAME_MODEL:
            return False
        value = value.func.value
    return False


def _may_run_the_model(source: Source, body: cst.CSTNode, model: str) -> _Running | None:
    """Return that a pipeline, or a function that is given the model or one, seems to run it."""
    for inner in walk_for(body, cst.Call):
        last = last_name(inner.func)
        if _PIPE.fullmatch(last):
            return _PIPE_RUNS
        if _LEAVE_IT.match(last):
            continue
        given = [dotted(arg.value) or "" for arg in inner.args]
        if any(_PIPE.fullmatch(each.split(".")[-1]) for each in given):
            return _PIPE_RUNS
        is_given = any(is_the_model(source, arg.value, model) for arg in inner.args)
        if is_given and (_RUN_IT.search(last) or _is_run_elsewhere(source, inner, last, model)):
            return _MAY_RUN
    return None


def _is_run_elsewhere(source: Source, call: cst.Call, name: str, model: str) -> bool:
    """Tell whether a function of another file calls what it is given here as the model."""
    places = ((arg.keyword.value if arg.keyword else at, arg.value) for at, arg in enumerate(call.args))
    given = (place for place, value in places if is_the_model(source, value, model))
    return any((name, place) in source.links.runners for place in given)
