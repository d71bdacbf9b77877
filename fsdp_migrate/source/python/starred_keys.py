"""The names of what ``FSDP(model, **kwargs)`` is given by two stars, where a dict is seen to be filled."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.python.walked import children_of, walked


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_FUNCTIONS, ast.Lambda, ast.Module)
_DEEPEST: Final = 6
_SAME: Final = frozenset({"copy", "copy.copy", "copy.deepcopy", "deepcopy", "dict"})
# What is given a dict, or asked of it, and puts nothing into it.
_READS: Final = frozenset({"bool", "len", "list", "print", "repr", "sorted", "str"})
_LOOKS = (ast.BinOp, ast.BoolOp, ast.Compare, ast.Dict, ast.If, ast.IfExp, ast.Return)
_ASKS: Final = frozenset({"copy", "get", "items", "keys", "pop", "values"})


class _UnseenError(Exception):
    """Something else may have put keys into a dict."""


def is_given_by_stars(tree: ast.Module, makes: Callable[[ast.Call], bool], name: str) -> bool | None:
    """Tell whether calls give an argument by two stars; None where they may, and what they give is not seen.

    Args:
        tree: The file.
        makes: Tells which calls are meant.
        name: The argument. What is False does not count.
    """
    is_seen = True
    for node in walked(tree):
        if isinstance(node, ast.Call) and any(each.arg is None for each in node.keywords) and makes(node):
            keys = keys_by_stars(tree, node)
            if keys is not None and name in keys:
                return True
            is_seen = is_seen and keys is not None
    return False if is_seen else None


def keys_by_stars(tree: ast.Module, call: ast.Call) -> frozenset[str] | None:
    r"""Return the names of what a call is given by two stars; None where not all are seen.

    What is False is left out.

    Example:
        >>> tree = ast.parse("kw = dict(a=1)\nfor each in ['b']:\n    kw[each] = 2\nmake(net, **kw)")
        >>> sorted(keys_by_stars(tree, tree.body[-1].value))
        ['a', 'b']
    """
    reading = _Reading(_above(tree))
    starred = [each.value for each in call.keywords if each.arg is None]
    try:
        return frozenset().union(*(reading.keys(each, 0) for each in starred))
    except _UnseenError:
        return None


def _above(tree: ast.Module) -> dict[ast.AST, ast.AST]:
    return {below: node for node in walked(tree) for below in children_of(node)}


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


@dataclass(frozen=True, eq=False)
class _Reading:
    """What is asked of one file."""

    above: dict[ast.AST, ast.AST] = field(repr=False)
    """What each node stands in."""

    def keys(self, node: ast.expr, depth: int) -> set[str]:
        """Return the keys of a dict.

        Raises:
            _UnseenError: They are not all seen.
        """
        if depth > _DEEPEST:
            raise _UnseenError
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            found = (
                self.keys(value, depth + 1) if key is None else self._set(key, value, depth)
                for key, value in pairs
            )
            return set().union(*found)
        if isinstance(node, ast.Name):
            return self._of_name(node, depth)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return self.keys(node.left, depth + 1) | self.keys(node.right, depth + 1)
        if isinstance(node, (ast.BoolOp, ast.IfExp)):
            parts = node.values if isinstance(node, ast.BoolOp) else [node.body, node.orelse]
            return set().union(*(self.keys(each, depth + 1) for each in parts))
        if isinstance(node, ast.DictComp):
            return self._texts(node.key, depth)
        return self._of_call(node, depth)

    def _of_call(self, node: ast.expr, depth: int) -> set[str]:
        text = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if not isinstance(node, ast.Call):
            raise _UnseenError
        if isinstance(node.func, ast.Attribute) and node.func.attr == "copy" and not node.args:
            return self.keys(node.func.value, depth + 1)
        if text in _SAME:
            return self._given(node, depth)
        return set().union(*(self.keys(each, depth + 1) for each in self._returned(node)))

    def _given(self, call: ast.Call, depth: int) -> set[str]:
        """Return the keys that ``dict(...)`` and ``.update(...)`` are given."""
        found = {each.arg for each in call.keywords if each.arg is not None and not _is_false(each.value)}
        inner = [*call.args, *(each.value for each in call.keywords if each.arg is None)]
        return found.union(*(self.keys(each, depth + 1) for each in inner))

    def _returned(self, call: ast.Call) -> list[ast.expr]:
        """Return what a function of this file gives."""
        home = self._home(call)
        while home is not None:
            for each in home.body if isinstance(home, (*_FUNCTIONS, ast.Module)) else ():
                if isinstance(each, _FUNCTIONS) and ast.unparse(call.func) == each.name:
                    return self._returns(each)
            home = self._home(home)
        raise _UnseenError

    def _returns(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.expr]:
        given = [each for each in ast.walk(function) if isinstance(each, ast.Return)]
        own = [each.value for each in given if self._home(each) is function and each.value is not None]
        if not own:
            raise _UnseenError
        return own

    def _of_name(self, name: ast.Name, depth: int) -> set[str]:
        """Return what a name's dict is made of, and what is put into it anywhere."""
        found: set[str] = set()
        uses = list(self._uses(name))
        if not any(isinstance(each.ctx, ast.Store) for each in uses):
            raise _UnseenError
        for use in uses:
            found |= self._of_use(use, depth)
        return found

    def _uses(self, name: ast.Name) -> Iterator[ast.Name]:
        """Yield where the variable is used that a name stands for."""
        home = self._home(name)
        while home is not None and not self._binds(home, name.id):
            home = self._home(home)
        if home is None:
            raise _UnseenError
        for node in ast.walk(home):
            if isinstance(node, ast.Name) and node.id == name.id and self._owner(node) is home:
                yield node

    def _owner(self, name: ast.Name) -> ast.AST | None:
        home = self._home(name)
        while home is not None and not self._binds(home, name.id):
            home = self._home(home)
        return home

    def _binds(self, home: ast.AST, name: str) -> bool:
        """Tell whether a name is a function's or a file's own.

        Raises:
            _UnseenError: It is a parameter.
        """
        args = ast.walk(home.args) if isinstance(home, (*_FUNCTIONS, ast.Lambda)) else ()
        if any(isinstance(each, ast.arg) and each.arg == name for each in args):
            raise _UnseenError
        return any(
            isinstance(each, ast.Name)
            and each.id == name
            and isinstance(each.ctx, ast.Store)
            and self._home(each) is home
            for each in ast.walk(home)
        )

    def _home(self, node: ast.AST) -> ast.AST | None:
        """Return the function or the file that a node stands in."""
        above = self.above.get(node)
        while above is not None and not isinstance(above, _SCOPES):
            above = self.above.get(above)
        return above

    def _of_use(self, use: ast.Name, depth: int) -> set[str]:
        """Return the keys that one use of a dict's name puts into it."""
        above = self.above[use]
        if isinstance(above, ast.Subscript) and above.value is use:
            return self._of_item(above, depth) if isinstance(above.ctx, ast.Store) else set()
        if isinstance(above, ast.Attribute):
            return self._of_method(above, depth)
        if isinstance(above, ast.Call):
            if ast.unparse(above.func) in _READS | _SAME:
                return set()
        elif isinstance(above, (ast.Assign, ast.AnnAssign)) and isinstance(use.ctx, ast.Store):
            return set() if above.value is None else self.keys(above.value, depth + 1)
        elif isinstance(above, ast.AugAssign) and isinstance(above.op, ast.BitOr) and above.target is use:
            return self.keys(above.value, depth + 1)
        # By a keyword of its own another function has the dict itself.
        elif isinstance(above, _LOOKS) or (isinstance(above, ast.keyword) and above.arg is None):
            return set()
        raise _UnseenError

    def _of_item(self, item: ast.Subscript, depth: int) -> set[str]:
        line = self.above[item]
        value = line.value if isinstance(line, (ast.Assign, ast.AnnAssign)) else None
        return self._set(item.slice, item if value is None else value, depth)

    def _set(self, key: ast.expr, value: ast.expr, depth: int) -> set[str]:
        found = self._texts(key, depth)
        return set() if _is_false(value) else found

    def _of_method(self, method: ast.Attribute, depth: int) -> set[str]:
        call = self.above[method]
        if not isinstance(call, ast.Call) or call.func is not method:
            raise _UnseenError
        if method.attr == "update":
            return self._given(call, depth)
        if method.attr == "setdefault" and len(call.args) == 2:
            return self._set(call.args[0], call.args[1], depth)
        if method.attr in _ASKS:
            return set()
        raise _UnseenError

    def _texts(self, node: ast.expr, depth: int) -> set[str]:
        """Return the texts that an expression may be: itself, or each that a loop goes through."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return {node.value}
        if not isinstance(node, ast.Name):
            raise _UnseenError
        above: ast.AST | None = node
        while above is not None and not isinstance(above, _SCOPES):
            above = self.above.get(above)
            loops = (
                [above] if isinstance(above, (ast.For, ast.AsyncFor)) else getattr(above, "generators", ())
            )
            for loop in loops:
                first = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else loop.target
                if isinstance(first, ast.Name) and first.id == node.id:
                    return self._gone_through(loop.iter, depth, is_pairs=first is not loop.target)
        raise _UnseenError

    def _gone_through(self, node: ast.expr, depth: int, *, is_pairs: bool) -> set[str]:
        """Return the texts that a loop goes through, or the first ones of its pairs."""
        if depth > _DEEPEST:
            raise _UnseenError
        if isinstance(node, (ast.List, ast.Set, ast.Tuple)):
            parts: Iterable[ast.expr] = node.elts
            if is_pairs:
                parts = [part for each in parts if isinstance(each, ast.Tuple) for part in each.elts[:1]]
            return {text for each in parts for text in self._texts(each, depth + 1)}
        method = node.func if isinstance(node, ast.Call) else None
        if isinstance(method, ast.Attribute) and method.attr == ("items" if is_pairs else "keys"):
            return self.keys(method.value, depth + 1)
        if isinstance(node, ast.Dict) and not is_pairs:
            return self.keys(node, depth + 1)
        if isinstance(node, ast.Name):
            made = [self.above[use] for use in self._uses(node) if isinstance(use.ctx, ast.Store)]
            if (
                len(made) == 1
                and isinstance(made[0], (ast.Assign, ast.AnnAssign))
                and made[0].value is not None
            ):
                return self._gone_through(made[0].value, depth + 1, is_pairs=is_pairs)
        raise _UnseenError
