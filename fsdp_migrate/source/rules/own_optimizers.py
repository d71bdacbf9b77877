"""Optimizers that are not torch's, and what holds a model's parameters from before it is sharded."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.framework_words import kept
from fsdp_migrate.source.kept_before import KEPT, held_before
from fsdp_migrate.source.kept_in_classes import kept_in_classes
from fsdp_migrate.source.kept_lists import kept_in_functions, names_given
from fsdp_migrate.source.optimizer_bases import (
    bases_of,
    classes_named,
    fills_its_state_early,
    is_optimizer_class,
    steps_of,
)
from fsdp_migrate.source.python.heirs import COMPOSERS, HUGGING_FACES, led_to
from fsdp_migrate.source.python.held import FLAT, has_model
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, last_name, named_arguments, text_of, walk_for
from fsdp_migrate.source.python.optimizers import is_made_of_a_model, stepped
from fsdp_migrate.source.python.other_engines import is_in_other_engines_branch
from fsdp_migrate.source.python.parameters import makes_optimizers, model_of
from fsdp_migrate.source.python.trainer_models import SETTINGS
from fsdp_migrate.source.sharded_parts import whole_of
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "own-optimizer"
CODES = ("FM445", "FM446")

_STEPS = (
    "where this optimizer is given a sharded model, its parameters, gradients and states are DTensors of "
    "their own shapes; FSDP1's were plain tensors, one rank's flat part. Arithmetic goes on as it is; norms, "
    "sums, views, matrix products, collectives, kernels and plain tensors beside them need .to_local() or "
    ".full_tensor()."
)
_PUT = (
    "where this optimizer is given a sharded model, FSDP2 goes on with the tensor that it has: assigning "
    ".data to a DTensor does not reach it, and this is lost. Copy into it, p.data.copy_(x)."
)
_EARLY = (
    "its state is made with it, of the parameters from before sharding: under FSDP2 Accelerate, and HF's "
    "Trainer, put new ones into it, which have no state at the first step. Make each parameter's where the "
    "step first meets it: `if p not in self.state: ...`."
)
_USES_FRAMEWORKS = re.compile(r"^[ \t]*(?:from|import)[ \t]+(?:accelerate|transformers|trl)\b", re.MULTILINE)
_FOREIGN = (
    "this optimizer is not torch's, and is given DTensors now: see that its step takes them, as arithmetic "
    "does and kernels of their own (bitsandbytes, apex) do not."
)
_PLAIN = "stays: its step does arithmetic alone, which DTensors take"
_TRANSFORMERS = (
    "stays: its step does arithmetic alone, which DTensors take; today's transformers have none, "
    "torch.optim.AdamW takes its place"
)
_UNWRAPS = "stays: its step takes DTensors apart itself"
_REFUSE = (
    "of a sharded model this raises, or steps otherwise, where its parameters are DTensors: {}. Take another "
    "optimizer, such as AdamW, or give each its part: prepare_fully_shard(..., optimizers=) tells of it when "
    "it runs."
)
_STEPS_OF = (
    "its step is that of {}, which is not torch's: where it is given a sharded model, see that this takes "
    "DTensors, as arithmetic does and kernels of their own, and plain tensors beside them, do not."
)
_MAY_BE = "this may be {}: "
_TORCHS = {
    "torch.optim.Adafactor": "it changes the norms of rows in place, of which each rank has a part",
    "torch.optim.LBFGS": "it makes one vector of all gradients, which DTensor cannot flatten",
    "torch.optim.Rprop": "it sets masked items of gradients, which DTensors refuse before torch 2.15",
    "torch.distributed.optim.ZeroRedundancyOptimizer": (
        "it sends parameters to other ranks, which collectives refuse; FSDP2 shards the state itself"
    ),
}
_ADAMW = frozenset({"transformers.AdamW", "transformers.optimization.AdamW"})
# What a step may call without looking at a parameter as a whole.
_ARITHMETIC = frozenset(
    {
        *("NotImplementedError", "RuntimeError", "ValueError", "abs", "abs_", "add", "add_"),
        *("addcdiv", "addcdiv_", "addcmul", "addcmul_", "append", "clamp", "clamp_", "clamp_max_"),
        *("clamp_min_", "clear", "clone", "closure", "copy_", "detach", "detach_", "div", "div_"),
        *("double", "empty_like", "enable_grad", "enumerate", "exp", "extend", "float", "format"),
        *("full_like", "get", "int", "isinstance", "items", "keys", "len", "lerp", "lerp_"),
        *("masked_fill_", "max_", "maximum", "minimum", "mul", "mul_", "neg", "no_grad", "ones_like"),
        *("param_groups", "pop", "pow", "pow_", "range", "reciprocal", "requires_grad"),
        *("requires_grad_", "rsqrt", "rsqrt_", "setdefault", "sign", "sign_", "sqrt", "sqrt_"),
        *("square", "step", "sub", "sub_", "super", "tanh", "to", "type_as", "update", "values"),
        *("zero_", "zeros_like", "zip"),
    }
)
_NAMED = re.compile(r"ada(m|grad|factor)|lion|optim|sgd|shampoo|lamb|lars|muon|\bopt(?![a-z])|_opt(?![a-z])")
_KERNELS = frozenset({"apex", "bitsandbytes", "deepspeed", "fused_adam", "transformer_engine"})
# Accelerate's stand-in, which DeepSpeed's config asks for: no FSDP run comes to it.
_DEEPSPEEDS = re.compile(r"^accelerate\.(?:\w+\.)*DummyOptim$")
_GROUPS = re.compile(r"param\w*$|group|decay", re.IGNORECASE)
_TAKE_APART = frozenset({"_local_tensor", "full_tensor", "to_local"})
_NOT_STEPS = frozenset({"__init__", "__setstate__", "load_state_dict", "state_dict"})


def find(source: Source) -> Iterator[Found]:
    """Find classes of optimizers, calls of those that are not torch's, and parameters that are kept."""
    for node in classes_given_parameters(source):
        if (inherited := _said_of_its_step(source, node)) is not None:
            yield Found("FM445", node, inherited, "commented")
            continue
        stays = _PLAIN if _is_arithmetic(node) else _UNWRAPS if _unwraps(source, node) else None
        if fills_its_state_early(node) and _is_beside_frameworks(source):
            yield Found("FM445", node, _EARLY if stays else f"{_EARLY} And {_STEPS}", "commented")
        else:
            yield Found("FM445", node, stays or _STEPS, "kept" if stays else "commented")
        yield from (Found("FM445", each, _PUT, "commented") for each in _put_anew(source, node))
    by_methods = set(_made_by_methods(source))
    for call in source.calls:
        said = _said_of(source, call)  # few calls make an optimizer: what each is given takes longer to tell
        if said is not None and (call in by_methods or is_given_parameters(source, call)):
            yield said
    for held, by in dict.fromkeys([*kept_in_functions(source), *kept_in_classes(source)]):
        yield Found("FM446", held, kept(by) if by else KEPT, "commented")
    yield from held_before(source)


def _said_of(source: Source, call: cst.Call) -> Found | None:
    """Return what is to be said of a call that makes an optimizer of sharded parameters."""
    known = _known(source, call)
    if known & _ADAMW:
        return Found("FM445", call, _TRANSFORMERS, "kept")
    if refused := sorted(known & set(_TORCHS)):
        which = _MAY_BE.format(refused[0]) if _chosen(source, call) else ""
        return Found("FM445", call, f"{which}{_REFUSE.format(_TORCHS[refused[0]])}", "commented")
    return Found("FM445", call, _FOREIGN, "commented") if _is_foreign_optimizer(source, call) else None


def _is_beside_frameworks(source: Source) -> bool:
    """Tell whether Accelerate, or the Trainer, may be given an optimizer of this source."""
    return source.links.beside_frameworks or _USES_FRAMEWORKS.search(source.code) is not None


def _said_of_its_step(source: Source, node: cst.ClassDef) -> str | None:
    """Return what is to be said of an optimizer here whose step is another class's."""
    above = steps_of(source, node)
    if refused := sorted(above & set(_TORCHS)):
        return f"this is {refused[0]} by its step: {_REFUSE.format(_TORCHS[refused[0]])}"
    names = sorted(each for each in above if "." in each and not each.startswith(("composer.", "torch.")))
    is_torchs = node.name.value in source.links.optimizers or is_optimizer_class(source, node)
    return _STEPS_OF.format(names[0]) if names and not is_torchs else None


def _put_anew(source: Source, node: cst.ClassDef) -> Iterator[cst.Assign]:
    """Yield where a class sets ``.data`` of the parameters that it goes through: ``p.data = saved``."""
    for assign in walk_for(node, cst.Assign):
        for target in (each.target for each in assign.targets):
            is_data = isinstance(target, cst.Attribute) and target.attr.value == "data"
            name = target.value if is_data and isinstance(target, cst.Attribute) else None
            if not isinstance(name, cst.Name):
                continue
            loops = (each for each in source.index.ancestors(assign) if isinstance(each, cst.For))
            if any("params" in text_of(each.iter) and text_of(each.target) == name.value for each in loops):
                yield assign


@functools.lru_cache(maxsize=1)
def classes_given_parameters(source: Source) -> tuple[cst.ClassDef, ...]:
    """Return the classes of optimizers here that are given a sharded model's parameters: rules share them."""
    classes = [each for each in source.index.by_kind.get(cst.ClassDef, ()) if isinstance(each, cst.ClassDef)]
    own = {each for each in classes if is_optimizer_class(source, each)}
    names = {each.name.value for each in classes} if own else set()
    made = ((dotted(call.func), call) for call in source.calls) if own else ()
    known = {name for name, call in made if name in names and is_given_parameters(source, call)}
    known |= bases_of(source, known)
    told = source.links.optimizers | source.links.foreign_optimizers
    found = {each for each in classes if each.name.value in (told | known if each in own else told)}
    found |= {each for each in classes if each not in own and _is_made_here(source, each)}
    return tuple(each for each in classes if each in found)


def _is_made_here(source: Source, node: cst.ClassDef) -> bool:
    """Tell whether a class that derives from another package's is made an optimizer of a sharded model."""
    above = {each for each in steps_of(source, node) if "." in each}
    if not above or any(each.startswith(("composer.", "torch.")) for each in above):
        return False
    made = [call for call in source.calls if dotted(call.func) == node.name.value]
    names = [node.name.value, *above, *(name for call in made for name in _called(source, call))]
    is_one = any(_NAMED.search(name.lower()) for name in names)
    return is_one and any(is_given_parameters(source, call) for call in made)


def is_given_parameters(source: Source, call: cst.Call) -> bool:
    """Tell whether a call is given the parameters of an FSDP1 model, or a model whose parameters it takes."""
    first = stepped(call)
    for arg in call.args:
        # What another function, or file, gave: `def build(params): return Adam8bit(list(params))`.
        names = (each for each in walk_for(arg.value, cst.Name) if each in source.index.scopes)
        if any(map(source.models.is_parameters, (arg.value, *names))):
            return True
        if arg.value in first and is_made_of_a_model(source.models, arg.value):
            return True
        model = model_of(source.index, arg.value) or _grouped(source, arg.value)
        if model is None:
            if _is_of_a_method(source, call, arg.value):
                return True
            continue
        if whole_of(source, model) is not None or _is_wrapped_later(source, call, model):
            return True
        if FLAT in source.models.kinds(model):  # a Trainer gives its optimizer the sharded parameters
            return True
    return is_prepared_with_its_model(source, call) or is_given_to_a_framework(source, call)


def is_given_to_a_framework(source: Source, call: cst.Call) -> bool:
    """Tell whether a function here makes the optimizer for a framework, or Composer's Trainer is given it."""
    function, names = source.index.function(call), _called(source, call)
    if function is not None and source.index.path_of(function) in source.links.optimizer_makers:
        return bool(names or _is_returned(source, call)) and bool(call.args)
    for other in source.calls if "composer" in source.code or source.index.heirs else ():
        given = named_arguments(other)
        asked = [given[each] for each in SETTINGS if each in given]
        held = given.get("optimizers")
        is_its = held is call or (held is not None and text_of(held).strip("[]()") in names)
        if is_its and any(text_of(each) != "None" for each in asked):
            is_trainer = any(map(COMPOSERS.match, led_to(source.index, other.func)))
            if is_trainer and source.index.function(other) is source.index.function(call):
                return True
    return "transformers" in source.links.frameworks and _is_given_to_hugging_faces(source, call)


def _is_given_to_hugging_faces(source: Source, call: cst.Call) -> bool:
    """Tell whether Hugging Face's Trainer steps its model by what a call makes.

    ``Trainer(optimizers=(optimizer, None))``, ``trainer.optimizer = optimizer``.
    """
    trainers, made = source.models.frameworks.trainers, source.index.parents[call]
    set_here = [each.target for each in made.targets] if isinstance(made, cst.Assign) else []
    owners = (
        each.value for each in set_here if isinstance(each, cst.Attribute) and each.attr.value == "optimizer"
    )
    if any(trainers.made(each) is not None for each in owners):
        return True
    names = _called(source, call)
    for other in source.calls:
        held = named_arguments(other).get("optimizers")
        held = last_value(source.index, held) if isinstance(held, cst.Name) else held
        first = held.elements[0].value if isinstance(held, cst.Tuple) and held.elements else None
        if first is call or (first is not None and text_of(first) in names):
            return any(map(HUGGING_FACES.match, led_to(source.index, other.func)))
    return False


def _called(source: Source, call: cst.Call) -> set[str]:
    """Return what is given what a call makes: ``opt = Own(p)``, or ``opt, n = Own(p), 1``."""
    made = source.index.parents[call]
    if isinstance(made, cst.Assign):
        return {text_of(each.target) for each in made.targets}
    values = source.index.parents[made] if isinstance(made, cst.Element) else None
    whole = source.index.parents[values] if isinstance(values, (cst.Tuple, cst.List)) else None
    found: set[str] = set()
    for each in whole.targets if isinstance(whole, cst.Assign) else ():
        parts = each.target.elements if isinstance(each.target, (cst.Tuple, cst.List)) else ()
        pairs = zip(parts, values.elements, strict=False) if isinstance(values, (cst.Tuple, cst.List)) else ()
        found |= {text_of(part.value) for part, value in pairs if value is made}
    return found


def _is_returned(source: Source, call: cst.Call) -> bool:
    """Tell whether a function returns what a call makes, also beside others: ``return Own(p), 1``."""
    above = source.index.parents[call]
    if isinstance(above, cst.Element):
        above = source.index.parents[source.index.parents[above]]
    return isinstance(above, cst.Return)


def is_prepared_with_its_model(source: Source, call: cst.Call) -> bool:
    """Tell whether Accelerate is given what a call makes below it, together with a model that it shards.

    It puts the sharded parameters into the optimizer.
    """
    names, function = _called(source, call), source.index.function(call)
    for other, kinds in _preparing(source) if names and call.args else ():
        if source.index.function(other) is not function or source.models.frameworks.is_elsewhere(
            kinds, other
        ):
            continue
        # Also in a call of its own, beside that which is given the model.
        for each in source.calls:
            is_below = source.index.order[each] > source.index.order[call]
            is_same = is_below and text_of(each.func) == text_of(other.func)
            if is_same and source.index.function(each) is function and names & names_given(source, each):
                return True
    return False


@functools.lru_cache(maxsize=1)
def _preparing(source: Source) -> list[tuple[cst.Call, set[str]]]:
    """Return the calls that a framework shards models by, with what they give; asked once for a source."""
    given = ((call, source.models.frameworks.of_call(call)) for call in source.calls)
    return [(call, kinds) for call, kinds in given if has_model(kinds)]


def _grouped(source: Source, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the model that a function, of another file perhaps, makes groups of: ``param_groups(model)``."""
    value = last_value(source.index, node) if isinstance(node, (cst.Name, cst.Attribute)) else node
    if not isinstance(value, cst.Call) or not _GROUPS.search(dotted(value.func) or ""):
        return None
    models = (arg.value for arg in value.args if not arg.star)
    return next((each for each in models if source.models.certainty(each) is not None), None)


def _is_of_a_method(source: Source, call: cst.Call, given: cst.BaseExpression) -> bool:
    """Tell whether a model's own method made the groups: ``a, b = model.group_params_by_decay()``.

    The model may be asked by the name that it has before the same function wraps it.
    """
    names = (each for each in walk_for(given, cst.Name) if each in source.index.scopes)
    for name in names:
        for binding in source.index.bindings_of(name):
            func = binding.value.func if isinstance(binding.value, cst.Call) else None
            if not isinstance(func, cst.Attribute) or not _GROUPS.search(func.attr.value):
                continue
            if source.models.certainty(func.value) is not None or _is_wrapped_later(source, call, func.value):
                return True
    return False


def _made_by_methods(source: Source) -> Iterator[cst.Call]:
    """Yield the calls in methods by which a model makes its own optimizer: ``configure_optimizers``."""
    names = set(source.links.optimizer_methods)
    for call in source.calls:
        func = call.func
        if isinstance(func, cst.Attribute) and makes_optimizers(func.attr.value):
            asked = func.value
            if source.models.certainty(asked) is not None or _is_wrapped_later(source, call, asked):
                names.add(func.attr.value)
    for node in source.index.by_kind.get(cst.FunctionDef, ()) if names else ():
        assert isinstance(node, cst.FunctionDef)
        if node.name.value in names and source.index.class_of(node) is not None:
            yield from walk_for(node.body, cst.Call)


def _is_wrapped_later(source: Source, call: cst.Call, model: cst.BaseExpression) -> bool:
    """Tell whether the same function wraps a model below a call."""
    for other in source.calls:
        if source.index.fsdp1(other.func) == catalog.FSDP and other.args:
            same = text_of(other.args[0].value) == text_of(model)
            if same and source.index.function(other) is source.index.function(call):
                return True
    return False


def _is_foreign_optimizer(source: Source, call: cst.Call) -> bool:
    """Tell whether a call makes an optimizer of another package, as far as names tell."""
    name = last_name(call.func)
    known = _known(source, call)
    # Composer's own go with its FSDP2.
    others = {each for each in known if not each.startswith(("composer.", "torch."))}
    is_chosen = bool(_chosen(source, call)) or _is_chosen(source, call.func)
    names = [each.rpartition(".")[2] for each in others] if is_chosen else [name]
    if not others or not any(each[:1].isupper() for each in names):
        return False
    # Of `try: from apex... import Adam`, `except ImportError: from torch.optim import Adam` it may be either.
    if others < known and not _is_of_kernels(others) and name in names:
        return False
    if known & source.links.own_optimizers or any(classes_named(source, call.func)):
        return False
    above = source.index.parents[call]
    targets = [text_of(t.target).lower() for t in above.targets] if isinstance(above, cst.Assign) else []
    return any(_NAMED.search(text) for text in (*map(str.lower, names), *targets))


def _known(source: Source, call: cst.Call) -> set[str]:
    """Return what is called, as imports write it, by what other files show of it, too."""
    found = (source.index.qualified(call.func) | _chosen(source, call)) - _of_others(source, call.func)
    return {each for each in found if _DEEPSPEEDS.match(each) is None}


def _of_others(source: Source, func: cst.BaseExpression) -> set[str]:
    """Return what a name is only in branches that FSDP does not come to: ``cls = bnb.optim.AdamW``."""
    found: dict[bool, set[str]] = {True: set(), False: set()}
    if isinstance(func, cst.Name) and func in source.index.scopes:
        for binding in source.index.bindings_of(func):
            if isinstance(binding.value, (cst.Name, cst.Attribute)):
                is_others = is_in_other_engines_branch(source, binding.value)
                found[is_others] |= source.index.qualified(binding.value)
    return found[True] - found[False]


def _chosen(source: Source, call: cst.Call) -> set[str]:
    """Return the classes that a call may be of: out of a dict or a registry, by a function, of a config."""
    return set(source.links.chosen_optimizers.get(source.position(call.func), ()))


def _is_chosen(source: Source, func: cst.BaseExpression) -> bool:
    """Tell whether a class is called by a name that is given it: ``cls = bnb.optim.AdamW8bit``."""
    if not isinstance(func, cst.Name) or func not in source.index.scopes:
        return False
    values = (each.value for each in source.index.bindings_of(func))
    return any(isinstance(value, (cst.Name, cst.Attribute)) for value in values)


def _is_of_kernels(names: Iterable[str]) -> bool:
    """Tell whether some names are of packages whose optimizers have kernels of their own."""
    return any(name.split(".")[0] in _KERNELS for name in names)


def _is_arithmetic(node: cst.ClassDef) -> bool:
    """Tell whether the methods of an optimizer call nothing but arithmetic, each element by itself."""
    methods = [each for each in node.body.body if isinstance(each, cst.FunctionDef)]
    names = {each.name.value for each in methods}
    for method in _run_by_step(methods):
        if any(isinstance(op.operator, cst.MatrixMultiply) for op in walk_for(method, cst.BinaryOperation)):
            return False
        for call in walk_for(method.body, cst.Call):
            if _makes_a_number(call):
                continue  # of no dimension: a count of steps
            last = (dotted(call.func) or _last(call.func)).split(".")
            if last[-1] not in _ARITHMETIC | names and last[0] != "math":
                return False
    return True


def _run_by_step(methods: list[cst.FunctionDef]) -> list[cst.FunctionDef]:
    """Return what steps, and the methods that it calls."""
    found = _that_step(methods)
    for method in found:  # it grows
        called = {_last(call.func) for call in walk_for(method.body, cst.Call)}
        found += [each for each in methods if each.name.value in called and each not in found]
    return found


def _that_step(methods: list[cst.FunctionDef]) -> list[cst.FunctionDef]:
    """Return ``step`` and what else asks for gradients; where a class has none, all that may be called.

    Loops call the halves of a step themselves, such as SAM's ``climb``.
    """
    own = [each for each in methods if each.name.value not in _NOT_STEPS]
    has_step = any(each.name.value == "step" for each in own)
    return [each for each in own if not has_step or each.name.value == "step" or _reads_grads(each)]


def _reads_grads(method: cst.FunctionDef) -> bool:
    """Tell whether a method asks parameters for their gradients."""
    return any(each.attr.value == "grad" for each in walk_for(method.body, cst.Attribute))


def _unwraps(source: Source, node: cst.ClassDef) -> bool:
    """Tell whether the step of an optimizer, or functions here that it calls, take DTensors apart."""
    methods = [each for each in node.body.body if isinstance(each, cst.FunctionDef)]
    left = _that_step(methods)
    seen: list[cst.FunctionDef] = []
    while left:
        function = left.pop()
        if function not in seen:
            seen.append(function)
            names = {each.value for each in walk_for(function.body, cst.Name)}
            left += [each for each in methods if each.name.value in names - _NOT_STEPS]
            calls = [call.func for call in walk_for(function.body, cst.Call)]
            for func in (each for each in calls if isinstance(each, cst.Name)):
                left += source.models.guards.functions(func)
    return any(name.value in _TAKE_APART for each in seen for name in walk_for(each.body, cst.Name))


def _makes_a_number(call: cst.Call) -> bool:
    """Tell whether a call is ``torch.tensor(0.0)``: DTensors take what has no dimension beside them."""
    given = [arg.value for arg in call.args if arg.keyword is None]
    is_number = len(given) == 1 and isinstance(given[0], (cst.Float, cst.Integer))
    return is_number and dotted(call.func) == "torch.tensor"


def _last(func: cst.BaseExpression) -> str:
    return func.attr.value if isinstance(func, cst.Attribute) else "?"
