"""Assignments as the plain ones that they are for who follows names: without types, and of one name each."""

from __future__ import annotations

import ast


BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")
"""The fields of statements in which others stand, as `ast` and LibCST call them."""


class Assign(ast.Assign):
    """``model: nn.Module = Net()``: an assignment, for all who look for one.

    Nobody who goes through the tree comes to the type: it is no use of what it names. Of this name, so that
    :func:`ast.unparse` and visitors take it for what it is.
    """

    annotation: ast.expr
    """The type that it says."""


def with_plain_assigns(tree: ast.Module) -> ast.Module:
    r"""Make plain assignments of those of a tree that say a type, or give several names values; return it.

    The fields of classes stay: they may be those of a dataclass. What has no value gives none. Of
    ``a, b = f(), g()`` each name has a line, unless a value reads what a name before it is given.

    Example:
        >>> text = "x: int = 1\ny: int\nclass A:\n    z: int = 1\n    def f(self):\n        z: int = 1"
        >>> print(ast.unparse(with_plain_assigns(ast.parse(text))))
        x = 1
        y: int
        <BLANKLINE>
        class A:
            z: int = 1
        <BLANKLINE>
            def f(self):
                z = 1
        >>> print(ast.unparse(with_plain_assigns(ast.parse("a, b = 1, 2\nc, d = d, c"))))
        a = 1
        b = 2
        c, d = (d, c)
    """
    left: list[tuple[ast.AST, bool]] = [(tree, False)]
    while left:
        node, in_class = left.pop()
        for name in BLOCKS:
            block = getattr(node, name, None)
            if isinstance(block, list):
                if any(isinstance(each, (ast.AnnAssign, ast.Assign)) for each in block):
                    block[:] = [one for each in block for one in _plain(each, in_class=in_class)]
                left += ((each, _is_in_class(each, in_class=in_class)) for each in block)
    return tree


def _is_in_class(node: ast.AST, *, in_class: bool) -> bool:
    """Tell whether what stands in a statement stands in the body of a class."""
    is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    return not is_function and (in_class or isinstance(node, ast.ClassDef))


def _plain(node: ast.AST, *, in_class: bool) -> list[ast.AST]:
    if isinstance(node, ast.AnnAssign) and node.value is not None and not in_class:
        made = ast.copy_location(Assign(targets=[node.target], value=node.value, type_comment=None), node)
        made.annotation = node.annotation
        return [made]
    is_one = isinstance(node, ast.Assign) and len(node.targets) == 1
    pairs = _pairs(node.targets[0], node.value) if is_one and isinstance(node, ast.Assign) else []
    return [_one(*each) for each in pairs] or [node]


def _one(target: ast.expr, value: ast.expr) -> ast.Assign:
    """Return an assignment that begins at its name: no two statements begin at one place."""
    made = ast.copy_location(ast.Assign(targets=[target], value=value, type_comment=None), target)
    made.end_lineno, made.end_col_offset = value.end_lineno, value.end_col_offset
    return made


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """Return what each name is given, if they may have it one after the other."""
    kinds = (ast.List, ast.Tuple)
    if not isinstance(target, kinds) or not isinstance(value, kinds) or len(target.elts) != len(value.elts):
        return []
    if not all(isinstance(each, (ast.Attribute, ast.Name)) for each in target.elts):
        return []
    if any(isinstance(each, ast.Starred) for each in value.elts):
        return []
    given: set[str] = set()
    for one, other in zip(target.elts, value.elts, strict=True):
        if any(_text(each) in given for each in ast.walk(other)):
            return []
        given.add(_text(one))
    return list(zip(target.elts, value.elts, strict=True))


def _text(node: ast.AST) -> str:
    """Return a name, or an attribute by its whole name; nothing for what is neither."""
    if isinstance(node, ast.Attribute):
        owner = _text(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return node.id if isinstance(node, ast.Name) else ""
