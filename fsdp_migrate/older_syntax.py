"""Sources of newer Pythons, written for an older one. LibCST takes a quarter of a second to import."""

from __future__ import annotations

import libcst as cst


class _Older(cst.CSTTransformer):
    """Takes out what Python 3.12 brought: type parameters, ``type X = ...`` and quotes in f-strings."""

    def leave_FunctionDef(  # noqa: N802
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        del original_node
        return updated_node.with_changes(type_parameters=None)

    def leave_ClassDef(  # noqa: N802
        self, original_node: cst.ClassDef, updated_node: cst.ClassDef
    ) -> cst.ClassDef:
        del original_node
        return updated_node.with_changes(type_parameters=None)

    def leave_TypeAlias(  # noqa: N802
        self, original_node: cst.TypeAlias, updated_node: cst.TypeAlias
    ) -> cst.Assign:
        del original_node
        return cst.Assign([cst.AssignTarget(updated_node.name)], updated_node.value)

    def leave_FormattedString(  # noqa: N802
        self, original_node: cst.FormattedString, updated_node: cst.FormattedString
    ) -> cst.SimpleString:
        del original_node
        return cst.SimpleString('""', updated_node.lpar, updated_node.rpar)


def as_older(text: str) -> str:
    """Return a source without what Python 3.12 brought; what does the same is not kept, the names are.

    Raises:
        SyntaxError: It is no Python that is known here.

    Example:
        >>> as_older("type Pair = tuple[int, int]")
        'Pair = tuple[int, int]'
    """
    try:
        module = cst.parse_module(text)
    except cst.ParserSyntaxError as error:
        raise SyntaxError(str(error)) from error
    return module.visit(_Older()).code
