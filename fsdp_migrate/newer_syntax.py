"""Sources that are written for a Python newer than this one, as far as following names needs them."""

from __future__ import annotations

import ast
import warnings

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


def parse_any(text: str) -> ast.Module:
    """Parse a source of this Python, or of a newer one.

    Raises:
        SyntaxError: It is no Python that is known here.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes that Python does not know
        try:
            return ast.parse(text)
        except SyntaxError:
            return parse_newer(text)


def parse_newer(text: str) -> ast.Module:
    """Parse a source that this Python's own parser does not take; its f-strings come out empty.

    Raises:
        SyntaxError: It is no Python that is known here.
    """
    try:
        module = cst.parse_module(text)
    except cst.ParserSyntaxError as error:
        raise SyntaxError(str(error)) from error
    return ast.parse(module.visit(_Older()).code)
