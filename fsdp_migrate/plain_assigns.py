"""Assignments that say of which type a name is, as the plain ones that they are for who follows names."""

from __future__ import annotations

import ast


# The fields of statements in which others stand.
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


class Assign(ast.Assign):
    """``model: nn.Module = Net()``: an assignment, for all who look for one.

    Nobody who goes through the tree comes to the type: it is no use of what it names. Of this name, so that
    :func:`ast.unparse` and visitors take it for what it is.
    """

    annotation: ast.expr
    """The type that it says."""


def with_plain_assigns(tree: ast.Module) -> ast.Module:
    r"""Make plain assignments of the annotated ones of a tree, but for the fields of classes, and return it.

    Those of a class may be the fields of a dataclass, and what has no value gives none.

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
    """
    left: list[tuple[ast.AST, bool]] = [(tree, False)]
    while left:
        node, in_class = left.pop()
        for name in _BLOCKS:
            block = getattr(node, name, None)
            if isinstance(block, list):
                for place, each in enumerate(block):
                    if isinstance(each, ast.AnnAssign) and each.value is not None and not in_class:
                        block[place] = _plain(each, each.value)
                left += ((each, _is_in_class(each, in_class=in_class)) for each in block)
    return tree


def _is_in_class(node: ast.AST, *, in_class: bool) -> bool:
    """Tell whether what stands in a statement stands in the body of a class."""
    is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    return not is_function and (in_class or isinstance(node, ast.ClassDef))


def _plain(node: ast.AnnAssign, value: ast.expr) -> Assign:
    made = ast.copy_location(Assign(targets=[node.target], value=value, type_comment=None), node)
    made.annotation = node.annotation
    return made
