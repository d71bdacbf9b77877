"""What methods of the model itself have in common: whose methods they are, and how sure that is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.fsdp2_models import is_fsdp2s
from fsdp_migrate.source.python.accelerators import is_accelerator
from fsdp_migrate.source.python.evidence import clips_itself
from fsdp_migrate.source.python.held import has_model
from fsdp_migrate.source.python.last_values import assigned_at
from fsdp_migrate.source.python.made_by_others import may_be_made_by_others
from fsdp_migrate.source.python.nodes import dotted, last_name, placed_arguments, text_of, walk_for
from fsdp_migrate.source.python.object_fields import classes
from fsdp_migrate.source.python.own_names import values_bound
from fsdp_migrate.source.uses import Replace


if TYPE_CHECKING:
    from fsdp_migrate.source.python.text import Source


Sureness = Literal["sure", "likely", "mixed", "unknown", "no"]

# Objects of other packages that have methods of the same names.
_OTHERS = frozenset({"accelerator", "engine", "fabric", "scaler", "strategy", "trainer", "utils"})

MIXED = (
    "this may be a model in another wrapper (DistributedDataParallel, DeepSpeed) as well: where it is "
    "sharded, "
)
PLAIN = "this may be a plain model as well: where it, or a part of it, is sharded, "
# What others clip: `accelerator.clip_grad_norm_(params, 1.0)`.
_PARAMETERS = re.compile(
    r"(?<![a-z])param[a-z]*(?:\(.*)?$|(?:^|[._])(?:groups?|models?|modules?|nets?|optim\w*|weights?)(?:$|[.\[(])"
    r"|grads$",
    re.DOTALL,
)
_NO_WRAPPER = re.compile(r"param|tensor|grads?$|groups?$|list$|weights?$")
_CHOICES = (cst.For, cst.If, cst.Try, cst.While)
_CAUGHT = frozenset({"AttributeError", "Exception"})
_DDP = re.compile(r"(?<!FullySharded)DataParallel|(?<![a-z])ddp|DDP|[Dd]eep[Ss]peed")


def mixed_with(source: Source, model: cst.BaseExpression) -> str:
    """Return how a comment begins about a model that may be another than FSDP1's: one of which is seen."""
    is_ddp = "ddp" in source.models.kinds(model) or source.models.is_guarded_among(model)
    return MIXED if is_ddp or _DDP.search(source.code) else PLAIN


def sureness(source: Source, receiver: cst.BaseExpression) -> Sureness:
    """Tell how sure it is that a method is called on an FSDP1 model.

    ``likely``: by its name, by what the source imports, and below a setting such as ``enable_fsdp``.
    ``mixed``: or on DistributedDataParallel's, or what else the source makes.
    """
    if source.models.is_fsdp2(receiver) or source.models.is_guarded_fsdp2(receiver):
        return "no"
    # What a check says of this very place counts before what is known of the name elsewhere.
    if source.models.is_guarded(receiver):
        return "unknown" if _stays_fsdp1(source, receiver) else "sure"
    if source.models.is_other_branch(receiver):
        return "no"
    certainty = source.models.certainty(receiver)
    if certainty is not None:
        # A function that asks for (FSDP, DDP) is given both, whatever the calls that are seen here give it.
        is_both = _is_parameter(source, receiver) and source.models.is_guarded_among(receiver)
        return "sure" if certainty == "certain" and not is_both else "mixed"
    if source.models.is_guarded_among(receiver) or _is_composers_part(source, receiver):
        return "mixed"
    text = dotted(receiver)
    names = set() if text is None else {part.lower().lstrip("_") for part in text.split(".")}
    is_ddps = any("ddp" in each and "fsdp" not in each for each in names)
    if not source.uses_fsdp1 or is_ddps or names & _OTHERS or source.index.qualified(receiver):
        return "no"
    last = (text or "").split(".")[-1].lower()
    named = any(word in last for word in ("model", "module", "fsdp"))
    return "likely" if named and _stands_below_a_switch(source, receiver) else "unknown"


def may_clip_itself(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether a model that is FSDP1's in some runs may be one that clips by its own method.

    As torch_xla's and fairscale's wrappers do, and classes of the project. Others have no such method.
    """
    sure = sureness_of_lost(source, model)
    links = (source.links, source.links.prepared)
    clips = any(each.clips_itself for each in links if each is not None) or clips_itself(source.index)
    if sure not in {"mixed", "sure"} or source.models.is_guarded(model):
        return False
    if clips and (sure == "mixed" or _is_of_a_class_instead(source, model)):
        return True
    every = (*source.loads, *source.attributes) if sure == "mixed" else ()
    named = (name for node in every for name in source.index.qualified(node))
    return any(
        name.endswith(catalog.FSDP) and catalog.fsdp1_name(name) is None and not name.startswith("torch.")
        for name in named
    )


def _is_of_a_class_instead(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether a class that may have the method makes the model in another branch than FSDP1's."""
    key = source.models.key_of(model)
    made = source.models.made.get(key, ()) if key is not None else ()
    for value in values_bound(source, model) if made else ():
        if not isinstance(value, cst.Call) or not last_name(value.func)[:1].isupper():
            continue
        known = classes(source.index, value.func)
        methods = (each.name.value for owner in known for each in walk_for(owner, cst.FunctionDef))
        is_one = not known or "clip_grad_norm_" in methods
        if is_one and not has_model(source.models.kinds(value)):
            return any(source.index.excludes(value, target) for target in made)
    return False


def is_composers(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether it is the model of Composer's state, whose parts FSDP1 wrapped, and not itself."""
    return source.models.sharded_by(model) == "composer" and text_of(model).endswith("state.model")


def _is_composers_part(source: Source, part: cst.BaseExpression) -> bool:
    """Tell whether it is such a part, which was FSDP1's wrapper: ``state.model.net``."""
    if not isinstance(part, cst.Attribute) or not is_composers(source, part.value):
        return False
    return source.models.certainty(part.value) is not None


def sureness_of_lost(source: Source, receiver: cst.BaseExpression) -> Sureness:
    """Tell the same of a method that no model has any more, once ``prepare_fully_shard`` has sharded it.

    Whoever puts that in by hand, as a comment says, lets ``rewrite`` turn the rest.
    """
    is_ours = "prepare_fully_shard" in source.code and source.models.kinds(receiver) == {"fsdp2"}
    if is_ours and is_fsdp2s(source, receiver):
        return "sure"
    found = sureness(source, receiver)
    if found in {"no", "unknown"} and source.prepared is not None:
        certainty = source.prepared.certainty(receiver)
        found = found if certainty is None else ("sure" if certainty == "certain" else "mixed")
    return found


def was_fsdp1s(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether a model may be one that ``prepare_fully_shard`` of another file shards, or FSDP1's."""
    every = (source.models, source.prepared)
    return any(each.certainty(model) is not None for each in every if each is not None)


def is_fsdp1s_alone(source: Source, call: cst.Call) -> bool:
    """Tell whether a call runs a method that wrappers alone have, as they take it, whatever it is called on.

    FSDP1's ``clip_grad_norm_`` takes the norm, what others call so takes parameters first; ``no_sync``,
    which DistributedDataParallel's have, too, takes nothing.
    """
    func = call.func
    name = func.attr.value if isinstance(func, cst.Attribute) else ""
    if not isinstance(func, cst.Attribute) or name in source.links.has_own or source.index.qualified(func):
        return False
    last = last_name(func.value).lower().lstrip("_")
    if last in {"self", "cls", "super"} or _NO_WRAPPER.search(last):
        return False
    if name == "no_sync":
        return not call.args and not any(last.endswith(each) for each in _OTHERS)
    named = {arg.keyword.value for arg in call.args if arg.keyword is not None}
    placed = placed_arguments(call)
    if name != "clip_grad_norm_" or not call.args or "parameters" in named:
        return False
    # Accelerate's takes parameters first, whatever these are called.
    if is_accelerator(dotted(func.value) or "", source.index):
        return False
    if not placed:
        return "max_norm" in named
    return "max_norm" not in named and _PARAMETERS.search(text_of(placed[0])) is None


def is_seen_plain(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether the project shows that a model is plain, by what makes it and by every call."""
    is_plain = (source.position(model)[0], dotted(model)) in source.links.plain
    # What makes it does not tell of a Trainer that shards it in place.
    return is_plain and not source.models.frameworks.may_be_trained(model)


def _stays_fsdp1(source: Source, receiver: cst.BaseExpression) -> bool:
    """Tell whether a model that a check found FSDP1's may be one that another package makes so."""
    models = source.models
    key = models.key_of(receiver)
    # That it is clipped by the method shows FSDP1's model, and not whose.
    is_shown = key in models.evidence and not models.made.get(key)
    if models.certainty(receiver) == "certain" and not is_shown:
        return False
    return may_be_made_by_others(source.links, source.code)


def _is_parameter(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether a name is a parameter of its function, and nothing else."""
    bindings = source.index.bindings_of(node) if isinstance(node, cst.Name) else ()
    return bool(bindings) and all(each.kind == "param" for each in bindings)


def is_likely_made_elsewhere(source: Source, receiver: cst.BaseExpression) -> bool:
    """Tell whether an object may be an FSDP1 model that another source has made, by what it is called.

    For methods that FSDP1's models alone have, in sources that speak of FSDP and import nothing of it.
    """
    text = dotted(receiver)
    if text is None or source.uses_fsdp1 or source.links.other_fsdp or "fsdp" not in source.code.lower():
        return False
    if source.index.qualified(receiver):
        return False
    if source.models.is_fsdp2(receiver) or source.models.is_guarded_fsdp2(receiver):
        return False
    if _is_made_by_a_class(source, receiver):
        return False
    *_, last = names = text.lower().split(".")
    return not _OTHERS & set(names) and any(word in last for word in ("model", "module", "fsdp"))


def _is_made_by_a_class(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether a name holds what a class of another kind makes: ``model = Fairscale(net)``."""
    if not isinstance(node, cst.Name) or node not in source.index.scopes:
        return False
    values = (binding.value for binding in source.index.scopes[node].lookup(node.value))
    made = (last_name(value.func) for value in values if isinstance(value, cst.Call))
    return any(name[:1].isupper() for name in made)


def _stands_below_a_switch(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether code runs only where a setting such as ``config.enable_fsdp`` is true."""
    below: cst.CSTNode = node
    for above in source.index.ancestors(node):
        if isinstance(above, (cst.If, cst.IfExp)) and below is above.body:
            test = above.test
            while isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
                test = test.left
            name = last_name(test).lower()
            if "fsdp" in name and "fsdp2" not in name:
                return True
        below = above
    return False


def was_asked_for(source: Source, node: cst.Attribute) -> bool:
    """Tell whether an attribute stands where ``hasattr(it, "attribute")`` was found true."""
    for test, truth in source.models.guards.facts(node):
        for call in walk_for(test, cst.Call) if truth else ():
            if dotted(call.func) != "hasattr" or len(call.args) != 2:
                continue
            name = call.args[1].value
            same = isinstance(name, cst.SimpleString) and name.evaluated_value == node.attr.value
            if same and text_of(call.args[0].value) == text_of(node.value):
                return True
    return False


def is_tried_alone(source: Source, node: cst.Attribute) -> bool:
    """Tell whether it stands alone in a ``try`` that catches what FSDP2 raises, and goes on without it.

    As ``inner = model.module``, or where the handler does the same of the model itself.
    """
    line = source.index.statement(node)
    block = source.index.parents[line]
    above = source.index.parents.get(block)
    if not isinstance(above, cst.Try) or block is not above.body or len(above.body.body) != 1:
        return False
    caught = [each for each in above.handlers if each.type is None or dotted(each.type) in _CAUGHT]
    if isinstance(source.index.parents[node], cst.Assign):
        return bool(caught)
    without = text_of(above.body).replace(text_of(node), text_of(node.value))
    return any(text_of(each.body) == without for each in caught)


def unbound(source: Source, call: cst.Call, name: str) -> bool:
    """Tell whether a call is ``FSDP.name(model, ...)``."""
    return source.index.fsdp1(call.func) == f"{catalog.FSDP}.{name}"


def renamed(node: cst.BaseExpression, name: str) -> Replace:
    """Return the edit that puts a name in the place of an expression."""

    def build(updated: cst.BaseExpression) -> cst.Name:
        return cst.Name(name, updated.lpar, updated.rpar)

    return Replace(node, build)


def on_model(call: cst.Call, receiver: cst.BaseExpression, func: str) -> cst.Call:
    """Return ``func(receiver, ...)`` for ``receiver.method(...)``, laid out as it was."""
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")) if call.args else cst.MaybeSentinel.DEFAULT
    space = call.whitespace_before_args
    if call.args and isinstance(space, cst.ParenthesizedWhitespace):
        # What is said of the first argument stays before it, and is said once.
        comma = cst.Comma(whitespace_after=space)
        space = space.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
    args = [cst.Arg(receiver, comma=comma), *call.args]
    return call.with_changes(func=cst.Name(func), args=args, whitespace_before_args=space)


def is_wrapped_itself(source: Source, model: cst.BaseExpression, *, always: bool = False) -> bool:
    """Tell whether a model whose parts are wrapped is the wrapper by then, too: ``net = FSDP(net)``.

    Where its parts alone are wrapped it is an object of its own class.

    Args:
        source: The source.
        model: The expression.
        always: Whether it has to be so whatever is chosen: below no ``if`` and in no loop of its own.
    """
    index, key = source.index, source.models.key_of(model)
    around = set(index.ancestors(model))
    for target in source.models.made.get(key, ()) if key is not None else ():
        value = assigned_at(index, target)
        if not (isinstance(value, cst.Call) and source.models.is_constructor(value.func)):
            continue
        is_above = index.order[target] < index.order[model]
        chosen = any(isinstance(each, _CHOICES) and each not in around for each in index.ancestors(target))
        if (is_above or index.function(target) is not index.function(model)) and not (always and chosen):
            return True
    return False
