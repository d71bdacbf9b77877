"""Small questions about LibCST nodes, and the making of new ones."""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING, TypeVar, cast

import libcst as cst


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from fsdp_migrate.source.python.scopes import Index


NodeT = TypeVar("NodeT", bound=cst.CSTNode)
AnswerT = TypeVar("AnswerT")

_FIELDS: dict[type, tuple[str, ...]] = {}
_FORMATTING = frozenset({"comma", "dot", "equal", "header", "footer", "leading_lines", "semicolon"})
_EMPTY = cst.Module([])
# By identity, with the node itself, so that no other node has it meanwhile.
_KEPT: dict[int, tuple[cst.CSTNode, list[cst.CSTNode]]] = {}
_FOUND: dict[tuple[int, type], tuple[cst.CSTNode, list[cst.CSTNode]]] = {}


def children(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Return the parts of a node in the order of the source, formatting left out.

    LibCST's own ``children`` copies the node, which is slow in large sources. They are kept until another
    source is walked (:func:`forget`): many questions go through the same part of one.
    """
    known = _KEPT.get(id(node))
    if known is None or known[0] is not node:
        known = _KEPT[id(node)] = (node, _find_children(node))
    return known[1]


def forget() -> None:
    """Forget what is kept of a source, when another is begun."""
    _KEPT.clear()
    _FOUND.clear()


def kept(find: Callable[[Index, NodeT], AnswerT]) -> Callable[[Index, NodeT], AnswerT]:
    """Keep what a function answers of each node of a source, in which nothing changes: many ask the same.

    What it answers is given to all who ask, who leave it as it is.

    Example:
        >>> from fsdp_migrate.source.python.scopes import Index
        >>> @kept
        ... def text(index, node):
        ...     print("asked")
        ...     return dotted(node)
        >>> index = Index(cst.parse_module("x"))
        >>> text(index, index.by_kind[cst.Name][0]), text(index, index.by_kind[cst.Name][0])
        asked
        ('x', 'x')
    """

    @functools.wraps(find)
    def answer(index: Index, node: NodeT) -> AnswerT:
        # By identity, with the node itself: a node's own hash is a call, and no other has its identity then.
        answers: dict[int, tuple[NodeT, AnswerT]] = index.answers[find]
        known = answers.get(id(node))
        if known is None or known[0] is not node:
            known = answers[id(node)] = (node, find(index, node))
        return known[1]

    return answer


def _find_children(node: cst.CSTNode) -> list[cst.CSTNode]:
    names = _FIELDS.get(type(node))
    if names is None:
        every = type(node).__dataclass_fields__
        names = tuple(n for n in every if not (n in _FORMATTING or "whitespace" in n or n.startswith("_")))
        _FIELDS[type(node)] = names
    found: list[cst.CSTNode] = []
    for name in names:
        value = getattr(node, name)
        if _is_node(type(value)):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend([item for item in value if _is_node(type(item))])
    return found


_KINDS: dict[type, bool] = {}
_WANTED: dict[type, dict[type, bool]] = {}
"""By what is looked for, which classes are of that kind."""


def _is_node(kind: type) -> bool:
    """Tell whether a class is one of nodes: asking each value, of an abstract class, takes most of a walk."""
    known = _KINDS.get(kind)
    if known is None:
        known = _KINDS[kind] = issubclass(kind, cst.CSTNode)
    return known


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield a node and everything below it, in the order of the source."""
    left = [node]
    while left:
        found = left.pop()
        yield found
        left += children(found)[::-1]


def walk_for(node: cst.CSTNode, kind: type[NodeT]) -> Iterator[NodeT]:
    """Return every node of a kind at or below a node; kept as :func:`children` are, for most ask again."""
    known = _FOUND.get((id(node), kind))
    if known is None or known[0] is not node:
        known = _FOUND[id(node), kind] = (node, _find_all(node, kind))
    return cast("Iterator[NodeT]", iter(known[1]))


def _find_all(node: cst.CSTNode, kind: type[cst.CSTNode]) -> list[cst.CSTNode]:
    wanted = _WANTED.setdefault(kind, {})
    all_found: list[cst.CSTNode] = []
    left = [node]
    while left:
        found = left.pop()
        known = wanted.get(type(found))
        if known is None:
            known = wanted[type(found)] = isinstance(found, kind)
        if known:
            all_found.append(found)
        left += children(found)[::-1]
    return all_found


@functools.lru_cache(maxsize=20_000)
def code(node: cst.CSTNode) -> str:
    """Return a node as it stands in the source; many rules ask for the same ones."""
    return _EMPTY.code_for_node(node)


def as_ast(node: cst.BaseExpression) -> ast.expr:
    """Return an expression as Python's own parser has it; a name that none has where it is newer than that.

    Example:
        >>> ast.unparse(as_ast(cst.parse_expression("a  >  1")))
        'a > 1'
    """
    try:
        return ast.parse(f"({code(node)}\n)", mode="eval").body
    except SyntaxError:
        return ast.Name("?")  # of which nothing is known: None would be false


def dotted(node: cst.CSTNode) -> str | None:
    """Return ``a.b.c`` for a name or a chain of attributes, or None for anything else.

    Example:
        >>> dotted(cst.parse_expression("self.model")), dotted(cst.parse_expression("f().x"))
        ('self.model', None)
    """
    # By the types themselves: to ask what is no instance of an abstract class is slow.
    names = []
    while type(node) is cst.Attribute:
        names.append(node.attr.value)
        node = node.value
    if type(node) is not cst.Name:
        return None
    return ".".join((node.value, *reversed(names))) if names else node.value


def last_name(node: cst.CSTNode) -> str:
    """Return ``c`` for ``a.b.c``, and nothing for what is no name.

    Example:
        >>> [last_name(cst.parse_expression(each)) for each in ("torch.save", "save", "f().save")]
        ['save', 'save', '']
    """
    return (dotted(node) or "").rpartition(".")[2]


def text_of(node: cst.CSTNode) -> str:
    """Return an expression in a form that is equal for equal expressions, however they are written."""
    return dotted(node) or "".join(code(node).split())


class _NoLines(cst.CSTTransformer):
    def leave_EmptyLine(self, original_node: cst.EmptyLine, updated_node: cst.EmptyLine) -> cst.EmptyLine:  # noqa: N802
        return updated_node.with_changes(comment=None)


def text_of_statement(node: cst.CSTNode) -> str:
    """Return a statement as :func:`text_of` does, without comments that have lines of their own."""
    bare = node.visit(_NoLines())
    return text_of(bare) if isinstance(bare, cst.CSTNode) else ""


def short(node: cst.CSTNode, limit: int = 60) -> str:
    """Return an expression on one line, cut where it is long."""
    text = " ".join(code(node).split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def placed_parameters(function: cst.FunctionDef | cst.Lambda) -> list[cst.Param]:
    """Return the parameters that a call may give by place: LibCST keeps those before ``/`` by themselves."""
    return [*function.params.posonly_params, *function.params.params]


def parameters_of(function: cst.FunctionDef | cst.Lambda) -> list[cst.Param]:
    """Return the parameters of a function in their order, ``*args`` and ``**kwargs`` left out.

    Example:
        >>> module = cst.parse_module("def fit(model, /, x, *, steps): pass")
        >>> [each.name.value for each in parameters_of(cst.ensure_type(module.body[0], cst.FunctionDef))]
        ['model', 'x', 'steps']
    """
    return [*placed_parameters(function), *function.params.kwonly_params]


def arguments(call: cst.Call, names: Sequence[str]) -> dict[str, cst.BaseExpression] | None:
    """Return the arguments of a call by their names, or None if ``*`` or ``**`` hides some of them.

    Args:
        call: The call.
        names: The names of the parameters in the order of their positions.
    """
    found: dict[str, cst.BaseExpression] = {}
    position = 0
    for arg in call.args:
        if arg.star:
            return None
        if arg.keyword is not None:
            found[arg.keyword.value] = arg.value
        elif position < len(names):
            found[names[position]] = arg.value
            position += 1
        else:
            return None
    return found


def args_by_name(call: cst.Call) -> dict[str, cst.Arg]:
    """Return what a call is given by name, as it stands there with the name."""
    return {arg.keyword.value: arg for arg in call.args if arg.keyword is not None}


def named_arguments(call: cst.Call) -> dict[str, cst.BaseExpression]:
    """Return what a call is given by name, that of dicts with ``**`` left out.

    Example:
        >>> [*named_arguments(cst.ensure_type(cst.parse_expression("f(a, b=1, **c)"), cst.Call))]
        ['b']
    """
    return {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}


def given_by_name(call: cst.Call, name: str) -> list[cst.BaseExpression]:
    """Return what a call is given by a name: one or nothing."""
    return [arg.value for arg in call.args if arg.keyword is not None and arg.keyword.value == name]


def placed_arguments(call: cst.Call) -> list[cst.BaseExpression]:
    """Return what a call is given by place, that of lists with ``*`` left out."""
    return [arg.value for arg in call.args if arg.keyword is None and not arg.star]


def keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    """Return the argument ``name=value``."""
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return cst.Arg(value, keyword=cst.Name(name), equal=tight)


def call(name: str, *args: cst.BaseExpression, **keywords: cst.BaseExpression) -> cst.Call:
    """Return the call of a dotted name."""
    every = [cst.Arg(arg) for arg in args] + [keyword(key, value) for key, value in keywords.items()]
    first, *rest = name.split(".")
    func: cst.BaseExpression = cst.Name(first)
    for part in rest:
        func = cst.Attribute(func, cst.Name(part))
    return cst.Call(func, every)


def string_in(node: cst.BaseExpression | None) -> str | None:
    """Return the text that an expression is, where it is written out."""
    return str(node.evaluated_value) if isinstance(node, cst.SimpleString) else None


def word_of(node: cst.CSTNode) -> str:
    """Return the text that an expression, or the item of a subscript, is; or how it is written: a name, say.

    Example:
        >>> [word_of(cst.parse_expression(each)) for each in ("'fsdp'", 'r"fsdp"', "args.fsdp")]
        ['fsdp', 'fsdp', 'args.fsdp']
    """
    inner = node.slice if isinstance(node, cst.SubscriptElement) else node
    inner = inner.value if isinstance(inner, cst.Index) else inner
    return str(inner.evaluated_value) if isinstance(inner, cst.SimpleString) else text_of(node)


def literal(node: cst.CSTNode | None) -> bool | None:
    """Return the value of ``True`` or ``False``, or None for any other expression."""
    if isinstance(node, cst.Name) and node.value in {"True", "False"}:
        return node.value == "True"
    return None


def bound_in(target: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield what an assignment sets: ``run.net`` of ``run.net, run.opt = ...``, and no ``run``."""
    if isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            yield from bound_in(element.value)
    else:
        yield target


def targets_of(node: cst.CSTNode) -> list[cst.BaseExpression]:
    """Return what an assignment gives a value: of any other node nothing."""
    if isinstance(node, cst.Assign):
        return [each.target for each in node.targets]
    return [node.target] if isinstance(node, (cst.AnnAssign, cst.AugAssign)) else []


def model_argument(call: cst.Call, place: int) -> cst.BaseExpression | None:
    """Return the argument that is the model: by its name, or by its place where no star hides that."""
    return argument_of(call, place, {"model", "module"})


def argument_of(call: cst.Call, place: int, names: Collection[str]) -> cst.BaseExpression | None:
    """Return an argument by one of its names, or by its place where no star hides that.

    Example:
        >>> call = cst.ensure_type(cst.parse_expression("f(a)"), cst.Call)
        >>> [argument_of(call, place, {"x"}) is not None for place in (-1, 0, 1)]
        [False, True, False]
    """
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value in names:
            return arg.value
    before = call.args[: place + 1]
    if not 0 <= place < len(before) or any(arg.star or arg.keyword is not None for arg in before):
        return None
    return before[place].value
