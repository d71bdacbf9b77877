"""``isinstance(x, FSDP)`` and annotations name ``FSDPModule``, which the class of each unit derives from.

https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.asking_functions import is_asked_by_default, is_asked_by_function, is_held_for_checks
from fsdp_migrate.source.fsdp2_models import is_fsdp2s, stays
from fsdp_migrate.source.method_calls import renamed
from fsdp_migrate.source.python.branches import leaves
from fsdp_migrate.source.python.heirs import HUGGING_FACES, led_to
from fsdp_migrate.source.python.made_by_others import may_be_made_by_others
from fsdp_migrate.source.python.nodes import dotted, last_name, parameters_of, text_of, walk, walk_for
from fsdp_migrate.source.python.trainer_models import OF_OPTIMIZERS, TRAINER
from fsdp_migrate.source.uses import Found, Need, Replace


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source
    from fsdp_migrate.source.uses import Action


NAME = "isinstance"
CODES = ("FM305", "FM335", "FM420")

_PARTS = (
    cst.Arg,
    cst.BinaryOperation,
    cst.Element,
    cst.Index,
    cst.Subscript,
    cst.SubscriptElement,
    cst.Tuple,
)
_COMPREHENSIONS = (cst.ListComp, cst.SetComp, cst.GeneratorExp, cst.DictComp)
MODULE = Need("torch.distributed.fsdp", "FSDPModule")

_OF_FSDP1 = (
    "this source asks for FSDP2's class as well, so what depends on this is meant for FSDP1 alone, and does "
    "not run any more: see that its FSDP2 branch does what is needed."
)
_BY_NAME = (
    "this function tells FSDP1's models from others, as its name says, and finds none any more: see what its "
    "callers do then, and remove it."
)
_OF_OTHERS = (
    "a function of another package makes FSDP1's models in this project, which stay so, and are not "
    "FSDPModule: where both come here, ask isinstance(..., (FSDP, FSDPModule)), and see what depends on it."
)
_ELSE = (
    "this project shards by FSDP2 itself, and where this is false it takes DTensors, as FSDP2's models have: "
    "what depends on it is meant for FSDP1 alone, and does not run any more. See that the other branch does "
    "what is needed of each model."
)
_FALLS_BACK = (
    "this project shards by FSDP2 itself, and by FSDP1 only where torch has no FSDP2: this was false of its "
    "models, of which isinstance(..., FSDPModule) is true. See what depends on it, which never ran, and take "
    "it out."
)
_WRAPPERS = (
    "this leaves out FSDP1's wrappers in a walk over modules, and FSDP2 has none: a layer that is a unit is "
    "FSDPModule itself, and would be left out in their place. Take the check away."
)
_NOT_YET = (
    "Hugging Face's Trainer runs {} before FSDP2 shards the model, and ran it after FSDP1 had: this is false "
    "there now, whatever class it names, and what depends on it is not done, without an error. Ask "
    "self.is_fsdp_enabled in its place."
)
_OF_DTENSORS = frozenset(
    {
        "DTensor",
        "distribute_tensor",
        "full_tensor",
        "get_model_state_dict",
        "set_model_state_dict",
        "to_local",
    }
)
_CHECKS = frozenset({"check_fn", "lambda_fn"})
_TYPES = frozenset({"NewType", "TypeVar"})
_FORMS = frozenset({"Annotated", "Optional", "Type", "TypeAlias", "Union"})
_OF_MODULES = frozenset({"children", "modules", "named_children", "named_modules"})
_FSDP1 = re.compile(r"fsdp_?v?1(?!\d)")
_BESIDE = "stays: FSDP2's class is asked for beside it"


def find(source: Source) -> Iterator[Found]:
    """Find every check for the class, and every annotation with it."""
    knows_fsdp2 = any(_is_fsdp2(source, node) for node in source.loads)
    for node, name in source.references.items():
        if name != catalog.FSDP:
            continue
        if not _asks_for_the_class(source, node):
            if is_held_for_checks(source, node, or_methods=knows_fsdp2):
                yield _held_for_checks(source, node, knows_fsdp2=knows_fsdp2)
            else:
                yield from () if knows_fsdp2 else _of_type(source, node)
            continue
        check = _check_of(source, node)
        said = _said_of(source, node, check, knows_fsdp2=knows_fsdp2)
        if _is_never_fsdp1s(source, node):
            yield stays("FM305", node, (node,))
        elif said is not None:
            yield Found(*said, covers=(node,))
        elif _is_case(source, node) and knows_fsdp2:
            yield Found("FM420", node, _OF_FSDP1, "commented", covers=(node,))
        elif check is None or not knows_fsdp2:
            new = source.local_name(MODULE)
            yield Found("FM305", node, new, "rewritten", (renamed(node, new),), (MODULE,), covers=(node,))
        else:
            yield _beside_fsdp2(source, node, check)


def _held_for_checks(source: Source, node: cst.BaseExpression, *, knows_fsdp2: bool) -> Found:
    """Return what becomes of the class that a function gives back, or a tuple holds, for checks alone."""
    if knows_fsdp2:
        return Found("FM420", node, _OF_FSDP1, "commented", covers=(node,))
    if _is_about_fsdp1(source, node):
        return Found("FM335", node, _BY_NAME, "commented", covers=(node,))
    if source.links.fsdp2_alone:
        return stays("FM305", node, (node,))
    if may_be_made_by_others(source.links, source.code):
        return Found("FM305", node, _OF_OTHERS, "commented", covers=(node,))
    if _falls_back(source):
        return Found("FM305", node, _FALLS_BACK, "commented", covers=(node,))
    new = source.local_name(MODULE)
    return Found("FM305", node, new, "rewritten", (renamed(node, new),), (MODULE,), covers=(node,))


def _said_of(
    source: Source, node: cst.BaseExpression, check: cst.Call | None, *, knows_fsdp2: bool
) -> tuple[str, cst.BaseExpression, str, Action] | None:
    """Return the comment of a check that no other class can be put into."""
    if check is not None and _is_about_fsdp1(source, node):
        return "FM335", node, _BY_NAME, "commented"
    if check is not None and (method := _makes_optimizer(source, check)) is not None:
        return "FM335", node, _NOT_YET.format(method), "commented"
    if _leaves_out_wrappers(source, node):
        return "FM305", node, _WRAPPERS, "commented"
    if check is not None and may_be_made_by_others(source.links, source.code):
        return "FM305", node, _OF_OTHERS, "commented"
    if check is not None and not knows_fsdp2 and _falls_back(source):
        return "FM305", node, _FALLS_BACK, "commented"
    if check is not None and not knows_fsdp2 and _is_beside_dtensors(source, check):
        return "FM420", node, _ELSE, "commented"
    return None


def _makes_optimizer(source: Source, check: cst.Call) -> str | None:
    """Return the method of a Trainer of Hugging Face's that a check stands in, where it makes optimizers."""
    functions = (each for each in source.index.ancestors(check) if isinstance(each, cst.FunctionDef))
    method = next((each for each in functions if each.name.value in OF_OPTIMIZERS), None)
    owner = source.index.class_of(method) if method is not None else None
    if method is None or owner is None:
        return None
    bases = {name for base in owner.bases if not base.star for name in led_to(source.index, base.value)}
    is_its = source.links.run_by_trainer.get(source.index.path_of(owner)) == TRAINER
    return method.name.value if is_its or any(map(HUGGING_FACES.match, bases)) else None


def _is_never_fsdp1s(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether a check, or an annotation, is about a model of FSDP2's, which it never found to be one."""
    check = _check_of(source, node)
    if check is None:
        return source.links.fsdp2_alone
    if any(_is_fsdp2(source, part) for part in walk(check.args[1].value)):
        return False
    return is_fsdp2s(source, check.args[0].value)


def _falls_back(source: Source) -> bool:
    return source.links.falls_back or source.models.never.has_fallback


def _is_beside_dtensors(source: Source, check: cst.Call) -> bool:
    """Tell whether the other branch of a check is FSDP2's, in a project that shards by FSDP2 as well."""
    if not (source.links.has_fsdp2 or _shards_by_fsdp2(source)):
        return False
    above = source.index.parents[check]
    while isinstance(above, cst.BooleanOperation) and isinstance(above.operator, cst.And):
        above = source.index.parents[above]
    if not isinstance(above, (cst.If, cst.IfExp)) or check not in set(walk(above.test)):
        return False
    others = [above.orelse] if above.orelse is not None else _after(source, above)
    used = (part for other in others for kind in (cst.Name, cst.Attribute) for part in walk_for(other, kind))
    return any(last_name(part) in _OF_DTENSORS for part in used)


def _after(source: Source, choice: cst.If | cst.IfExp) -> list[cst.CSTNode]:
    """Return what follows a branch that leaves its block."""
    block = source.index.parents[choice]
    if not isinstance(choice, cst.If) or not isinstance(block, cst.IndentedBlock) or not leaves(choice.body):
        return []
    return list(block.body[block.body.index(choice) + 1 :])


def _shards_by_fsdp2(source: Source) -> bool:
    return any("fully_shard" in (dotted(call.func) or "").split(".") for call in source.calls)


def _leaves_out_wrappers(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether a check passes over wrappers in a walk over modules: ``not isinstance(m, FSDP)``."""
    check = _check_of(source, node)
    if check is None or not isinstance(check.args[0].value, cst.Name):
        return False
    if any(_is_fsdp2(source, part) for part in walk(check.args[1].value)) or _has_fsdp2s(source, check):
        return False
    below: cst.CSTNode = check
    is_negated = False
    for above in source.index.ancestors(check):
        if isinstance(above, cst.UnaryOperation) and isinstance(above.operator, cst.Not):
            is_negated = not is_negated
        elif isinstance(above, (cst.If, cst.IfExp)) and below is above.test:
            is_in_loop = _is_in_loop(source, above)
            passes = _passes_over(above.body, is_in_loop=is_in_loop)
            passes_else = above.orelse is None or _passes_over(above.orelse, is_in_loop=is_in_loop)
            if not (passes or passes_else) or (is_in_loop and _ends(above.body)):
                return False  # it tells units from others, each with work of its own, or asks for one
            is_negated = is_negated is not passes  # `if not ...: continue` goes on with these
            break
        elif not isinstance(above, cst.BooleanOperation):
            break
        below = above
    return is_negated and _is_each_module(source, check.args[0].value)


def _is_in_loop(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether a place is in a loop of its function."""
    loops = (cst.For, cst.While, cst.FunctionDef, cst.Lambda)
    nearest = next((above for above in source.index.ancestors(node) if isinstance(above, loops)), None)
    return isinstance(nearest, (cst.For, cst.While))


def _only_line(body: cst.CSTNode) -> cst.CSTNode | None:
    """Return the statement of a branch that has no more than one."""
    if isinstance(body, cst.Else):
        body = body.body
    lines = body.body if isinstance(body, (cst.IndentedBlock, cst.SimpleStatementSuite)) else [body]
    line: cst.CSTNode | None = lines[0] if len(lines) == 1 else None
    if isinstance(line, cst.SimpleStatementLine):
        line = line.body[0] if len(line.body) == 1 else None
    return line


def _passes_over(body: cst.CSTNode, *, is_in_loop: bool) -> bool:
    """Tell whether a branch does nothing: ``continue``, ``None``, or ``return False`` in a check."""
    line = _only_line(body)
    if isinstance(line, cst.Return) and not is_in_loop:
        return line.value is None or text_of(line.value) in {"False", "None"}
    is_nothing = isinstance(line, cst.BaseExpression) and text_of(line) in {"()", "None", "[]", "{}"}
    return is_nothing or isinstance(line, (cst.Continue, cst.Pass))


def _ends(body: cst.CSTNode) -> bool:
    """Tell whether a branch only ends a walk: ``raise``, ``return``, ``break``."""
    return isinstance(_only_line(body), (cst.Break, cst.Raise, cst.Return))


def _has_fsdp2s(source: Source, check: cst.Call) -> bool:
    """Tell whether FSDP2's class is asked for in the same breath: ``not A and not B``, ``A or B``."""
    whole: cst.CSTNode = check
    operator: type[cst.BaseBooleanOp] = cst.Or
    for above in source.index.ancestors(check):
        if isinstance(above, cst.UnaryOperation) and isinstance(above.operator, cst.Not) and whole is check:
            operator = cst.And
        elif not isinstance(above, cst.BooleanOperation) or not isinstance(above.operator, operator):
            break
        whole = above
    others = (call for call in walk_for(whole, cst.Call) if call is not check and _is_check(call))
    model = text_of(check.args[0].value)
    return any(
        text_of(o.args[0].value) == model
        and _is_fsdp2(source, o.args[1].value)
        and _is_negated(source, o) is (operator is cst.And)
        for o in others
    )


def _is_negated(source: Source, check: cst.Call) -> bool:
    above = source.index.parents[check]
    return isinstance(above, cst.UnaryOperation) and isinstance(above.operator, cst.Not)


def _is_each_module(source: Source, name: cst.Name) -> bool:
    """Tell whether a name stands for each module of a model: in a walk, or in a function for one."""
    for above in source.index.ancestors(name):
        if isinstance(above, (cst.Lambda, cst.FunctionDef)):
            if name.value not in {param.name.value for param in parameters_of(above)}:
                return False
            return isinstance(above, cst.Lambda) or _is_given_as_check(source, above)
        loop = above.for_in if isinstance(above, _COMPREHENSIONS) else above
        if isinstance(loop, (cst.For, cst.CompFor)):
            names = {each.value for each in walk_for(loop.target, cst.Name)}
            calls = walk_for(loop.iter, cst.Call) if name.value in names else ()
            if any(last_name(call.func) in _OF_MODULES for call in calls):
                return True
    return False


def _is_given_as_check(source: Source, function: cst.FunctionDef) -> bool:
    """Tell whether a function is given to a walk over modules: ``check_fn=is_layer``, ``net.apply(init)``."""
    for call in source.calls:
        is_walk = isinstance(call.func, cst.Attribute) and call.func.attr.value == "apply"
        for arg in call.args:
            is_check = is_walk if arg.keyword is None else arg.keyword.value in _CHECKS
            if is_check and isinstance(arg.value, cst.Name) and arg.value.value == function.name.value:
                return True
    return False


def _beside_fsdp2(source: Source, node: cst.BaseExpression, check: cst.Call) -> Found:
    """Return what becomes of a check in a source that tells FSDP1's models from FSDP2's."""
    asked = check.args[1].value
    if any(_is_fsdp2(source, part) for part in walk(asked)):
        edit = _taken_out(source, node)
        if edit is not None:
            return Found(
                "FM305", node, "taken out: FSDP2's class stands beside it", "rewritten", (edit,), (), (node,)
            )
        return Found("FM305", node, _BESIDE, "kept", covers=(node,))
    if _has_fsdp2s(source, check):
        return Found("FM305", node, _BESIDE, "kept", covers=(node,))
    # Where the same model is asked for FSDP2's class in the same branches, that branch runs.
    is_harmless = _is_told_beside(source, check) or _unwraps_alone(source, check)
    code = "FM420" if is_harmless else "FM335"
    return Found(code, node, _OF_FSDP1, "commented", covers=(node,))


def _unwraps_alone(source: Source, check: cst.Call) -> bool:
    """Tell whether a check only takes the wrapper off, which is not there: ``if ...: m = m.module``."""
    above = source.index.parents[check]
    line = _only_line(above.body) if isinstance(above, cst.If) and above.test is check else None
    value = line.value if isinstance(line, (cst.Assign, cst.Return)) else None
    return value is not None and text_of(value) == f"{text_of(check.args[0].value)}.module"


def _is_told_beside(source: Source, check: cst.Call) -> bool:
    """Tell whether a branch of the same ``if`` is for FSDP2's class: ``if A: ... elif B: ...``."""
    below: cst.CSTNode = check
    branch: cst.CSTNode | None = None
    for above in source.index.ancestors(check):
        if isinstance(above, (cst.If, cst.IfExp)) and below in {above.test, above.orelse}:
            branch = above
        elif branch is not None or isinstance(above, cst.BaseStatement):
            break
        below = above
    tests: list[cst.CSTNode] = []
    while isinstance(branch, (cst.If, cst.IfExp)):
        tests.append(branch.test)
        branch = branch.orelse
    model = text_of(check.args[0].value)
    calls = (call for test in tests for call in walk_for(test, cst.Call) if _is_check(call))
    return any(text_of(c.args[0].value) == model and _is_fsdp2(source, c.args[1].value) for c in calls)


def _taken_out(source: Source, node: cst.BaseExpression) -> Replace | None:
    """Return the edit that takes a class out of ``(A, B)`` or ``A | B``, where that is all there is."""
    above = source.index.parents[node]
    if isinstance(above, cst.BinaryOperation) and isinstance(above.operator, cst.BitOr):
        is_left = above.left is node
        return Replace(above, lambda updated: updated.right if is_left else updated.left)
    whole = source.index.parents[above]
    if not isinstance(above, cst.Element) or not isinstance(whole, cst.Tuple):
        return None
    place = list(whole.elements).index(above)

    def build(updated: cst.Tuple) -> cst.BaseExpression:
        left = [*updated.elements[:place], *updated.elements[place + 1 :]]
        if len(left) == 1:
            return left[0].value
        return updated.with_changes(
            elements=[*left[:-1], left[-1].with_changes(comma=updated.elements[-1].comma)]
        )

    return Replace(whole, build)


def _is_fsdp2(source: Source, node: cst.CSTNode) -> bool:
    return source.index.is_fsdp2_class(node)


def _is_about_fsdp1(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether a function says by its name that it is about FSDP1: ``_is_fsdp1_module``."""
    function = source.index.function(node)
    if function is None or _FSDP1.search(function.name.value.lower()) is None:
        return False
    # One that makes such models, and asks whether it has, asks of those that it makes from now on.
    return not any(source.models.is_constructor(call.func) for call in walk_for(function, cst.Call))


def _is_check(call: cst.Call) -> bool:
    return dotted(call.func) == "isinstance" and len(call.args) == 2


def _is_case(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether a pattern asks for a class: ``case FSDP():``."""
    return isinstance(source.index.parents[node], cst.MatchClass)


def _check_of(source: Source, node: cst.CSTNode) -> cst.Call | None:
    """Return the ``isinstance(...)`` that asks for a class."""
    for above in source.index.ancestors(node):
        if isinstance(above, cst.Call):
            return above if _is_check(above) else None
        if not isinstance(above, _PARTS):
            return None
    return None


def _of_type(source: Source, node: cst.BaseExpression) -> Iterator[Found]:
    """Yield what ``type(x) == FSDP`` becomes: FSDP2's classes are made of the model's own."""
    target = source.index.parents[node]
    whole = source.index.parents[target]
    if not isinstance(target, cst.ComparisonTarget) or not isinstance(whole, cst.Comparison):
        return
    asked = whole.left
    if len(whole.comparisons) != 1 or not (isinstance(asked, cst.Call) and dotted(asked.func) == "type"):
        return
    is_equal = isinstance(target.operator, (cst.Equal, cst.Is))
    if len(asked.args) != 1 or not (is_equal or isinstance(target.operator, (cst.NotEqual, cst.IsNot))):
        return
    new = source.local_name(MODULE)

    def build(updated: cst.Comparison) -> cst.BaseExpression:
        model = cst.ensure_type(updated.left, cst.Call).args[0].value
        check = cst.Call(cst.Name("isinstance"), [cst.Arg(model), cst.Arg(cst.Name(new))])
        made: cst.BaseExpression = check if is_equal else cst.UnaryOperation(cst.Not(), check)
        return made.with_changes(lpar=updated.lpar, rpar=updated.rpar)

    if source.links.fsdp2_alone:
        yield stays("FM305", node, (node,))
        return
    yield Found(
        "FM305", whole, f"isinstance(..., {new})", "rewritten", (Replace(whole, build),), (MODULE,), (node,)
    )


def _asks_for_the_class(source: Source, node: cst.CSTNode) -> bool:
    below = node
    for above in source.index.ancestors(node):
        if isinstance(above, (cst.Annotation, cst.MatchClass)) or _is_type(source, above):
            return True
        if isinstance(above, cst.Param):
            return above.default is below and is_asked_by_default(source, above)
        if isinstance(above, cst.Call):
            name, args = dotted(above.func), above.args
            is_test = (name or "").endswith((".assertIsInstance", ".assertNotIsInstance")) and len(args) > 1
            checks = (is_test or (name == "isinstance" and len(args) == 2)) and below is args[1]
            casts = name in {"cast", "typing.cast"} and len(args) == 2 and below is args[0]
            around = (each for each in source.index.ancestors(above) if isinstance(each, cst.Subscript))
            is_told = checks or casts or (name or "").split(".")[-1] in _TYPES
            is_told = is_told or is_asked_by_function(source, above, below)
            return is_told or any(_is_type(source, each) for each in around)  # Annotated[FSDP, Is(FSDP)]
        if not isinstance(above, _PARTS):
            return False
        below = above
    return False


def _is_type(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether an expression is a type that an annotation may name: ``Sharded = FSDP | FSDPModule``."""
    if isinstance(node, cst.BinaryOperation):
        return isinstance(node.operator, cst.BitOr)
    named = source.index.qualified(node.value) if isinstance(node, cst.Subscript) else set()
    return any(each.removeprefix("typing.").removeprefix("typing_extensions.") in _FORMS for each in named)
