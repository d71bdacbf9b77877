"""What Accelerate's ``prepare`` gives in a source that asks it for FSDP1: the sharded model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.adapters.engine.accelerate_switch import SWITCH, switches_on
from fsdp_migrate.source.catalog import FSDP
from fsdp_migrate.source.python.accelerators import PREPARES, is_accelerator, method, method_that_shards
from fsdp_migrate.source.python.asked_as_models import asked_as_models, called_as, is_model, modules_of
from fsdp_migrate.source.python.heirs import ACCELERATES, is_itself, is_made_by
from fsdp_migrate.source.python.held import put
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.launch_numbers import said_by_value
from fsdp_migrate.source.python.loops import listed_as
from fsdp_migrate.source.python.named_objects import last_part
from fsdp_migrate.source.python.nodes import dotted, named_arguments, text_of
from fsdp_migrate.source.python.optimizers import OF_A_MODEL, is_optimizer
from fsdp_migrate.source.python.starred import given_to


if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fsdp_migrate.source.python.guards import Guards
    from fsdp_migrate.source.python.scopes import Index


_PLUGIN = re.compile(r"^accelerate\..*\bFullyShardedDataParallelPlugin$")
# Of tests, spaces are left out.
_TYPE = re.compile(
    r"\bDistributedType\.FSDP\b|\bdistributed_type(?:\.\w+|\))*(?:[!=]=|in|notin).*['\"]FSDP['\"]"
    r"|['\"]FSDP['\"](?:[!=]=|in|notin).*\bdistributed_type\b"
    r"|\.is_fsdp(?:_enabled)?\b(?!\()|(?:state|accelerator\w*)\.fsdp_plugin(?![.(])|['\"]fsdp_plugin['\"]"
)
_READS = frozenset(
    {"environ.get", "getattr", "getenv", "hasattr", "os.environ.get", "os.getenv", "parse_flag_from_env"}
)
_LAUNCH_NAMES = frozenset(
    {"DistributedType", "distributed_type", "fsdp_plugin", "is_fsdp", "is_fsdp_enabled"}
)
FSDP_SWITCH: Final = re.compile(r"^((enable|is|run|use|using|with)_)?fsdp1?(_enabled)?$")
"""A switch of a project's own, by its name."""
_OTHER_TYPE = re.compile(
    r"\bdistributed_type(?:==|is)(?:\w+\.)*DistributedType\.(?!FSDP\b)[A-Z_]+$"
    r"|(?:^|\.)(?:is_)?deepspeed_enabled$"
)
# `OPT` is a family of models.
_OPTIMIZES = re.compile(r"(?i:optim|trainer\()|\b[Oo]pt\b")
_BACKWARD = re.compile(r"\.backward\(")
_INFERS = re.compile(
    r"\.eval\(\)|no_grad|inference_mode|\.generate\(|save_pretrained|state_dict\(|load_state\(|load_fsdp_model\("
)
_SAYS_NOTHING = re.compile(r"^[ \t]*(?:#|import\b|from\b).*$", re.MULTILINE)
_CLASSES = "transformer_cls_names_to_wrap"
_DEEPEST = 2
# What `prepare` and its kin take beside what they prepare.
_SETTINGS = frozenset({"device_placement", "evaluation_mode"})
ACCELERATE = "by:accelerate"
NORM: Final = "norm"
"""What the norm of ``accelerator.clip_grad_norm_`` is: a DTensor, where Accelerate shards by FSDP2."""
CLIPS: Final = "clip_grad_norm_"
"""The method that gives it."""


def shards_by_accelerate(index: Index) -> bool:
    """Tell whether a source makes Accelerate's plugin or gives it one, and does not ask for FSDP2 itself."""
    calls = [cst.ensure_type(node, cst.Call) for node in index.by_kind.get(cst.Call, ())]
    made = [call for call in calls if any(map(_PLUGIN.match, index.qualified(call.func)))]
    given = [item for call in calls for item in named_arguments(call).items()]
    if any(name == "fsdp_version" and text_of(value) != "1" for name, value in given):
        return False
    is_given = any(name == "fsdp_plugin" and text_of(value) != "None" for name, value in given)
    return bool(made) or is_given or _is_set(index)


def hands_to_fsdp1(index: Index) -> bool:
    """Tell whether a source asks Accelerate for FSDP, and gives FSDP1's functions what Accelerate prepared.

    ``if accelerator.distributed_type == DistributedType.FSDP: with FSDP.state_dict_type(model, ...)``: it is
    written for such runs, whichever config they have.
    """
    calls = (cst.ensure_type(node, cst.Call) for node in index.by_kind.get(cst.Call, ()))
    names = {index.fsdp1(call.func) or "" for call in calls}
    is_given = FSDP not in names and any(name.startswith(f"{FSDP}.") for name in names)
    return is_given and asks_for_fsdp(index) and not _asks_for_version(index)


def _asks_for_version(index: Index) -> bool:
    """Tell whether a source asks for FSDP's version, and so serves FSDP2 too: ``accelerator.is_fsdp2``."""
    names = (cst.ensure_type(node, cst.Name) for node in index.by_kind.get(cst.Name, ()))
    return any(each.value in {"fsdp_version", "is_fsdp2"} for each in names)


def _is_set(index: Index) -> bool:
    """Tell whether a source sets ``os.environ["ACCELERATE_USE_FSDP"]``, which Accelerate reads."""
    for node in index.by_kind.get(cst.Assign, ()):
        assign = cst.ensure_type(node, cst.Assign)
        if any(SWITCH in text_of(each.target) for each in assign.targets):
            return switches_on(text_of(assign.value))
    return False


def asks_for_plugin(index: Index) -> bool:
    """Tell whether a source makes the plugin, gives or reads it, or sets the variable that makes one."""
    for node in index.by_kind.get(cst.Call, ()):
        call = cst.ensure_type(node, cst.Call)
        if any(map(_PLUGIN.match, index.qualified(call.func))):
            return True
        if "fsdp_plugin" in named_arguments(call):
            return True
    attributes = (cst.ensure_type(node, cst.Attribute) for node in index.by_kind.get(cst.Attribute, ()))
    read = (node for node in attributes if node.attr.value == "fsdp_plugin")
    is_read = any(_is_of_accelerator(node.value, index) for node in read)
    return is_read or _is_set(index)


def names_layers(index: Index) -> bool:
    """Tell whether a source's plugin may name the classes of layers; without a plugin the launch does.

    What sets them anew for each model has seen to it.
    """
    assigns = (cst.ensure_type(node, cst.Assign) for node in index.by_kind.get(cst.Assign, ()))
    if any(text_of(each.target).endswith(_CLASSES) for assign in assigns for each in assign.targets):
        return False
    calls = [cst.ensure_type(node, cst.Call) for node in index.by_kind.get(cst.Call, ())]
    made = [call for call in calls if any(map(_PLUGIN.match, index.qualified(call.func)))]
    given = [arg for call in made for arg in call.args]
    is_given = any(arg.star or (arg.keyword and arg.keyword.value == _CLASSES) for arg in given)
    # FSDP1's own policies become names.
    return (
        not made or is_given or any(arg.keyword and arg.keyword.value == "auto_wrap_policy" for arg in given)
    )


def asks_for_fsdp(index: Index) -> bool:
    """Tell whether a source asks Accelerate how it was launched: ``DistributedType.FSDP``."""
    asked = (*index.by_kind.get(cst.Attribute, ()), *index.by_kind.get(cst.Comparison, ()))
    found = (node for node in asked if _TYPE.search(text_of(node)))
    return any(not _is_refused(index, node) for node in found) or _asks_by_name(index)


def _is_refused(index: Index, node: cst.CSTNode) -> bool:
    """Tell whether a source asks for FSDP to refuse it: ``if distributed_type == FSDP: raise``."""
    below: cst.CSTNode = node
    if isinstance(node, cst.Comparison) and "!=" in text_of(node):
        return False
    for above in index.ancestors(node):
        if isinstance(above, cst.If):
            last = above.body.body[-1] if below is above.test and above.body.body else None
            small = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
            return isinstance(small, cst.Raise)
        # `!= FSDP` and `not` refuse the others.
        is_other = isinstance(above, cst.Comparison) and "!=" in text_of(above)
        if is_other or isinstance(above, (cst.UnaryOperation, cst.BaseStatement)):
            return False
        below = above
    return False


def _asks_by_name(index: Index) -> bool:
    """Tell whether a source asks for the plugin, or for Accelerate's switch, by the name of it."""
    texts = (cst.ensure_type(node, cst.SimpleString) for node in index.by_kind.get(cst.SimpleString, ()))
    named = [each for each in texts if each.value[1:-1] in {"fsdp_plugin", SWITCH}]
    calls = (index.parents.get(index.parents[each]) for each in named)
    return any(isinstance(call, cst.Call) and dotted(call.func) in _READS for call in calls)


def asks_by_switch(index: Index, guards: Guards) -> bool:
    """Tell whether a source prepares anything below a switch for FSDP of its own: ``if args.use_fsdp:``."""
    calls = (cst.ensure_type(node, cst.Call) for node in index.by_kind.get(cst.Call, ()))
    sharding = (call for call in calls if method_that_shards(index, call.func))
    return any(fsdp_said(t, truth=v, index=index) for call in sharding for t, v in guards.facts(call))


def asks_for_launch(index: Index) -> bool:
    """Tell whether a source asks Accelerate how it was launched, with whatever answer in mind."""
    # The names are looked at first: texts of expressions are slow, and most sources have none of these.
    names = (cst.ensure_type(node, cst.Name).value for node in index.by_kind.get(cst.Name, ()))
    if not any(name in _LAUNCH_NAMES for name in names):
        return False
    asked = index.by_kind.get(cst.Comparison, ())
    return any(_OTHER_TYPE.search(text_of(node)) for node in asked) or asks_for_fsdp(index)


def fsdp_said(test: cst.BaseExpression, *, truth: bool, index: Index | None = None) -> bool | None:
    """Return whether Accelerate runs FSDP where a test has come out as ``truth``; None where nothing tells.

    ``index``: the source, where names are to be asked what they hold.

    Example:
        >>> test = cst.parse_expression("x and state.distributed_type == DistributedType.FSDP")
        >>> fsdp_said(test, truth=True), fsdp_said(test, truth=False)
        (True, None)
        >>> fsdp_said(cst.parse_expression("not self.is_fsdp_enabled"), truth=True)
        False
        >>> fsdp_said(cst.parse_expression("a.distributed_type == DistributedType.NO"), truth=True)
        False
        >>> fsdp_said(cst.parse_expression("self.is_deepspeed_enabled"), truth=True)
        False
    """
    return _said(test, truth, index, 0)


def _said(test: cst.BaseExpression, truth: bool, index: Index | None, depth: int) -> bool | None:
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return _said(test.expression, not truth, index, depth)
    if isinstance(test, cst.BooleanOperation):
        # Of `a and b` that is true both are; of `a or b` that is false neither is.
        if isinstance(test.operator, cst.And) is not truth:
            return None
        parts = (_said(each, truth, index, depth) for each in (test.left, test.right))
        return next((part for part in parts if part is not None), None)
    held = None if index is None or depth > _DEEPEST else _said_by_held(test, truth, index, depth)
    return _said_by_words(test, truth, index) if held is None else held


def _said_by_held(test: cst.BaseExpression, truth: bool, index: Index, depth: int) -> bool | None:
    """Return the answer by what a name holds: another test, or a number that the launch decides on."""
    if isinstance(test, (cst.Name, cst.Attribute)) and test in index.scopes:
        held = last_value(index, test)
        said = _said(held, truth, None, 0) if held is not None else None
        if said is not None:
            return said

    def ask(other: cst.BaseExpression, came_out: bool) -> bool | None:
        return _said(other, came_out, index, depth + 1)

    return said_by_value(index, test, truth=truth, said=ask)


def _said_by_words(test: cst.BaseExpression, truth: bool, index: Index | None) -> bool | None:
    text = _written_out(index, test)
    if isinstance(test, (cst.Name, cst.Attribute)) and FSDP_SWITCH.match(text.rpartition(".")[2].lower()):
        return truth
    if truth and _OTHER_TYPE.search(text):
        return False
    if _TYPE.search(text) is None:
        return None
    if "fsdp_plugin" in text:
        return truth is not text.endswith(("isNone", "==None"))
    return truth is not ("!=" in text or "notin" in text)


def _written_out(index: Index | None, test: cst.BaseExpression) -> str:
    """Return the text of a test, with what a name holds that is compared: ``plugin is not None``."""
    text = text_of(test)
    left = test.left if isinstance(test, cst.Comparison) and _TYPE.search(text) is None else None
    if index is None or not isinstance(left, (cst.Name, cst.Attribute)):
        return text
    held = last_value(index, left) if isinstance(left, cst.Attribute) or left in index.scopes else None
    return text if held is None else f"{text_of(held)}{text[len(text_of(left)) :]}"


def fsdp_may_run(test: cst.BaseExpression, *, truth: bool, index: Index) -> bool:
    """Tell whether a test asks for FSDP, and comes out as ``truth`` where it runs, among others.

    Of ``is_fsdp or rank == 0`` that is true so does each.
    """
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return fsdp_may_run(test.expression, truth=not truth, index=index)
    if isinstance(test, cst.BooleanOperation):
        return any(fsdp_may_run(part, truth=truth, index=index) for part in (test.left, test.right))
    held = last_value(index, test) if isinstance(test, cst.Name) and test in index.scopes else None
    if isinstance(held, cst.BooleanOperation):
        return fsdp_may_run(held, truth=truth, index=index)
    return fsdp_said(test, truth=truth, index=index) is True


def only_infers(code: str) -> bool:
    r"""Tell whether a source uses models and trains none, as its words say.

    Example:
        >>> only_infers("model.eval()"), only_infers("model.eval()\nloss.backward()"), only_infers("")
        (True, False, False)
    """
    said = _SAYS_NOTHING.sub("", code)
    return _INFERS.search(said) is not None and not _BACKWARD.search(said) and not has_optimizer(code)


def has_optimizer(code: str) -> bool:
    r"""Tell whether a source has an optimizer, or a Trainer that makes one, as its words say.

    Example:
        >>> has_optimizer("opt = AdamW(model.parameters())"), has_optimizer("loss.backward()")
        (True, False)
    """
    return _OPTIMIZES.search(_SAYS_NOTHING.sub("", code)) is not None


def is_list_of_models(index: Index, node: cst.Attribute) -> bool:
    """Tell whether it is ``accelerator._models``, what an Accelerator has prepared."""
    return node.attr.value == "_models" and is_accelerator(text_of(node.value), index)


def _is_of_accelerator(node: cst.BaseExpression, index: Index) -> bool:
    """Tell whether it is an Accelerator, or of one: ``accelerator.state``."""
    text = text_of(node)
    return "accelerator" in text.lower() or is_accelerator(text.removesuffix(".state"), index)


def prepared(index: Index, call: cst.Call) -> set[str]:
    """Return what a call of Accelerate's ``prepare`` gives."""
    func = method(index, call.func)
    if func is None or func.attr.value not in PREPARES:
        return set()
    is_its = is_accelerator(text_of(func.value), index) or is_made_by(index, func.value, ACCELERATES)
    if not is_its and not is_itself(index, func.value, ACCELERATES):
        return set()
    if any(arg.star for arg in call.args):
        given = given_to(index, call, or_taken=True)
        return prepared_by(given, asked_as_models(index))
    args = [arg.value for arg in call.args if arg.keyword is None or arg.keyword.value not in _SETTINGS]
    if len(args) == 1 and isinstance(args[0], (cst.List, cst.Tuple)):
        args = [each.value for each in args[0].elements]  # a project's own `prepare([model, optimizer])`
    given = [_called(index, each) for each in args]
    return prepared_by(given, asked_as_models(index))


def clipped(index: Index, call: cst.Call) -> set[str]:
    """Return what ``accelerator.clip_grad_norm_`` gives."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value != CLIPS:
        return set()
    return {NORM} if is_accelerator(text_of(func.value), index) else set()


def _called(index: Index, node: cst.BaseExpression) -> str:
    """Return what is prepared is called, or the list that it is one of: ``net`` of ``for n in nets``."""
    text, asked = dotted(node) or "", asked_as_models(index)
    if isinstance(node, cst.Call):
        return called_as(text_of(node), modules_of(index))
    if not text or is_model(text, asked):
        return text
    several = listed_as(index, node).removesuffix("s")
    return several if is_model(several, asked) else text


def prepared_by(given: Sequence[str], asked: Collection[str] = ()) -> set[str]:
    """Return what an Accelerator's ``prepare`` gives, by what its arguments are called.

    Accelerate may run with DDP as well, if it is launched so. ``asked``: what the source uses as models.

    Example:
        >>> prepared_by(["net"]) == {"fsdp", "other", "by:accelerate"}
        True
    """
    found: set[str] = set()
    optimizers: set[str] = set()
    for place, text in enumerate(given):
        if is_model(text, asked):
            kinds = {"fsdp", "other", ACCELERATE}
            found |= kinds if len(given) == 1 else put(str(place), kinds)
        elif is_optimizer(last_part(text).lower()):
            optimizers |= put(str(place), OF_A_MODEL)
    return found | optimizers if found else found
