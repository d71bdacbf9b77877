"""``FSDP.summon_full_params(model, ...)`` becomes ``summon_full_params(model, ...)``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.method_calls import sureness, unbound
from fsdp_migrate.source.python.nodes import dotted, keyword, text_of, walk_for
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
_RUNS = (
    "the model runs in this context, which FSDP2 does not allow: call "
    "fsdp_migrate.runtime.register_forward_methods(model, {!r}) once, and take the context away."
)
_PARTS_RUN = (
    "parts of the model run in this context, which FSDP2 does not allow: put these lines into a method of "
    "the model, call fsdp_migrate.runtime.register_forward_methods(model, 'that_method') once, and take the "
    "context away."
)
_FORWARD_RUNS = (
    "the model runs in this context, which FSDP2 does not allow: take the context away, the model gathers "
    "its parameters itself; put only what reads them into fsdp_migrate.runtime.summon_full_params."
)
_MAY_RUN = (
    "the model seems to run in this context, which FSDP2 does not allow: if it does, call "
    "fsdp_migrate.runtime.register_forward_methods(model, 'generate') once, and take the context away; if "
    "not, call fsdp_migrate.runtime.summon_full_params."
)
# What holds a model and runs it, what runs the model that it is given, and what does not.
_PIPE = re.compile(r"(?:\w*_)?pipe(?:line)?")
_RUN_IT = re.compile(r"evaluat|validat|infer|predict|generat|sampl|metric|run_|test_|trace")
_LEAVE_IT = re.compile(r"_*(?:copy|export|load|log|push|save)")
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
            yield _of_call(source, call, (call.func,))
            continue
        func = call.func
        named = isinstance(func, cst.Attribute) and func.attr.value == "summon_full_params"
        if not named or is_of_another_package(source):
            continue
        # Given itself, it is a function of the class that an instance is asked for.
        is_torchs = source.class_function(call) == "summon_full_params"
        if is_torchs or sureness(source, cst.ensure_type(func, cst.Attribute).value) in {"sure", "mixed"}:
            yield _of_call(source, call, ())


def _of_call(source: Source, call: cst.Call, covers: tuple[cst.CSTNode, ...]) -> Found:
    if any(arg.star for arg in call.args) or not call.args:
        return Found("FM313", call, _HIDDEN, "commented", covers=covers)
    block = _block_of(source, call)
    if block is None:
        return Found("FM313", call, _UNSEEN, "commented", covers=covers)
    method = _runs_the_model(block, call)
    if method is not None:
        said = _RUNS.format(method) if method else _PARTS_RUN
        if method == "forward":
            said = _FORWARD_RUNS
        return Found("FM332", call, said, "commented", covers=covers)
    if _may_run_the_model(block, call):
        return Found("FM332", call, _MAY_RUN, "commented", covers=covers)
    new = source.local_name(SUMMON)

    def build(updated: cst.Call) -> cst.Call:
        args: list[cst.Arg] = []
        for place, given in enumerate(updated.args):
            arg = given
            # Ours takes all but the model by its name.
            name = _ORDER[place] if arg.keyword is None else arg.keyword.value
            if name == "module":
                arg = arg.with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT)
                args.insert(0, arg)
            else:
                args.append(arg.with_changes(keyword=cst.Name(name), equal=keyword("x", arg.value).equal))
        return updated.with_changes(func=cst.Name(new), args=args)

    return Found("FM313", call, f"{new}(...)", "rewritten", (Replace(call, build),), (SUMMON,), covers)


def _block_of(source: Source, call: cst.Call) -> cst.With | None:
    """Return the ``with`` statement that enters a context, at once or by a condition, if there is one."""
    for above in source.index.ancestors(call):
        if isinstance(above, cst.WithItem):
            block = source.index.parents[above]
            return block if isinstance(block, cst.With) else None
        if not isinstance(above, cst.IfExp):
            return None
    return None


def _runs_the_model(block: cst.With, call: cst.Call) -> str | None:
    """Return the method by which a context's block runs the model, or nothing where only parts of it run.

    FSDP2 would shard the parameters again. None if the block does not run it.
    """
    model, found = text_of(call.args[0].value), None
    for inner in walk_for(block.body, cst.Call):
        name = dotted(inner.func) or ""
        part = name.removeprefix(f"{model}.") if name.startswith(f"{model}.") else ""
        last = name.split(".")[-1]
        if name in {model, f"{model}.module", f"{model}.forward"}:
            found = found or "forward"
        elif last in {"forward", "generate", "sample"}:
            return last
        elif part and _PARTS.search(part) and not last.startswith(("get_", "named_", "set_")):
            if part == last and _METHODS.search(part):
                return part
            found = ""
    return found


def _may_run_the_model(block: cst.With, call: cst.Call) -> bool:
    """Tell whether a pipeline, or a function that is given the model or a pipeline, seems to run it."""
    model = text_of(call.args[0].value)
    for inner in walk_for(block.body, cst.Call):
        last = (dotted(inner.func) or "").split(".")[-1]
        if _PIPE.fullmatch(last):
            return True
        if _LEAVE_IT.match(last):
            continue
        given = [dotted(arg.value) or "" for arg in inner.args]
        if any(_PIPE.fullmatch(each.split(".")[-1]) for each in given):
            return True
        if model in given and _RUN_IT.search(last):
            return True
    return False
