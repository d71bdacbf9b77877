"""Expressions as plain values, as configs hold them: literals, names with one value, torch's own words.

Nothing is run. What is not understood becomes a word that stands for its expression, ``${0}``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import arguments, code, short, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.source.python.text import Source


_DEEPEST = 6
_UNREAD = re.compile(r"""["']?\$\{(\d+)\}["']?""")
_TAKES = re.compile(r"^(?:pop\w*|get_nowait|input|next|read\w*|setdefault|write)$")
_ITS_VALUE = "<its value now>"
_CONSTANTS = {"True": True, "False": False, "None": None}
_ENUMS = frozenset({"BackwardPrefetch", "ShardingStrategy", "StateDictType"})
_DTYPE = re.compile(r"^torch\.(bfloat16|float16|float32|float64|half|float|double)$")
_HF_OPTION = re.compile(r"^transformers\.(?:\w+\.)*FSDPOption\.([A-Z_0-9]+)(?:\.value)?$")
_POLICIES = frozenset({"always_wrap_policy", "size_based_auto_wrap_policy", "transformer_auto_wrap_policy"})
_OBJECTS: Mapping[str, tuple[str, ...]] = {
    "MixedPrecision": (
        "param_dtype",
        "reduce_dtype",
        "buffer_dtype",
        "keep_low_precision_grads",
        "cast_forward_inputs",
        "cast_root_forward_inputs",
        "_module_classes_to_ignore",
    ),
    "CPUOffload": ("offload_params",),
    "ModuleWrapPolicy": ("module_classes",),
}
"""torch's objects that arguments of FSDP1 are made of, with the order of their own arguments."""


@dataclass(eq=False)
class Values:
    """Reads the expressions of one source, and keeps those that it does not understand."""

    source: Source
    unread: list[cst.BaseExpression] = field(default_factory=list)

    def read(self, node: cst.BaseExpression) -> Any:
        """Return the value of an expression; within it, ``${0}`` stands for what is not known."""
        return self._read(node, 0)

    def unknown(self, node: cst.BaseExpression) -> str:
        """Return what stands for an expression whose value is another than the source shows."""
        return self._unknown(node)

    def expression(self, value: object) -> cst.BaseExpression | None:
        """Return the expression that a value of :meth:`read` stands for, where it was not understood."""
        match = re.fullmatch(r"\$\{(\d+)\}", value) if isinstance(value, str) else None
        return self.unread[int(match[1])] if match and int(match[1]) < len(self.unread) else None

    def shown(self, text: str) -> str:
        """Return a message with the expressions that it speaks of, on one line."""
        return re.sub(_UNREAD, lambda match: short(self.unread[int(match[1])]), text)

    def pasted(self, text: str) -> str:
        """Return code that a person may copy, with expressions whole or named alone.

        One that is long would be cut, and one that takes what it gives (``pop``) gives it once.
        """
        return re.sub(_UNREAD, lambda match: _copied(self.unread[int(match[1])]), text)

    def written(self, value: Any) -> cst.BaseExpression:
        """Return a plain value as an expression, with those in it that were not understood."""
        text = re.sub(_UNREAD, lambda match: code(self.unread[int(match[1])]), python_text(value))
        return cst.parse_expression(text)

    def has_unread(self, value: Any) -> bool:
        """Tell whether anything in a value was not understood."""
        if isinstance(value, dict):
            return any(map(self.has_unread, value.values()))
        if isinstance(value, list):
            return any(map(self.has_unread, value))
        return self.expression(value) is not None

    def _unknown(self, node: cst.BaseExpression) -> str:
        self.unread.append(node)
        return f"${{{len(self.unread) - 1}}}"

    def _read(self, node: cst.BaseExpression, depth: int) -> Any:
        if depth > _DEEPEST:
            return self._unknown(node)
        if isinstance(node, (cst.SimpleString, cst.ConcatenatedString, cst.Integer, cst.Float)):
            value = node.evaluated_value
            return value if isinstance(value, (str, int, float)) else self._unknown(node)
        if isinstance(node, (cst.List, cst.Tuple, cst.Set)):
            return self._items(node, depth)
        if isinstance(node, cst.Dict):
            return self._mapping(node, depth)
        if isinstance(node, cst.Call):
            return self._call(node, depth)
        if isinstance(node, (cst.Name, cst.Attribute)):
            return self._name(node, depth)
        return self._unknown(node)

    def _items(self, node: cst.List | cst.Tuple | cst.Set, depth: int) -> Any:
        if any(isinstance(element, cst.StarredElement) for element in node.elements):
            return self._unknown(node)
        before = len(self.unread)
        items = [self._read(element.value, depth + 1) for element in node.elements]
        if len(self.unread) == before:
            return items
        del self.unread[before:]  # what is known of it in part is not known
        return self._unknown(node)

    def _mapping(self, node: cst.Dict, depth: int) -> Any:
        found = {}
        for element in node.elements:
            key = element.key if isinstance(element, cst.DictElement) else None
            name = self._read(key, depth + 1) if key is not None else None
            if not isinstance(name, str) or self.expression(name) is not None:
                return self._unknown(node)
            found[name] = self._read(element.value, depth + 1)
        return found

    def _call(self, node: cst.Call, depth: int) -> Any:
        if is_dict_call(self.source, node):
            given = arguments(node, ())
            return self._unknown(node) if given is None else self._each(given, depth)
        name = self.source.index.fsdp1(node.func)
        if name in _ENUMS and len(node.args) == 1 and isinstance(node.args[0].value, cst.Integer):
            return node.args[0].value.evaluated_value  # ShardingStrategy(1)
        order = _OBJECTS.get(name or "")
        given = arguments(node, order) if order is not None else None
        if given is not None:
            values = self._each(given, depth)
            return values.get("module_classes", []) if name == "ModuleWrapPolicy" else values
        made = returned(self.source, node)
        return self._policy(node, depth) if made is None else self._of_function(node, made, depth)

    def _of_function(self, node: cst.BaseExpression, made: cst.BaseExpression, depth: int) -> Any:
        """Read what a function returns, where all is known: its own names mean nothing where it is called."""
        before = len(self.unread)
        value = self._read(made, depth + 1)
        if len(self.unread) == before:
            return value
        del self.unread[before:]
        return self._unknown(node)

    def _each(self, given: Mapping[str, cst.BaseExpression], depth: int) -> dict[str, Any]:
        return {name: self._read(value, depth + 1) for name, value in given.items()}

    def _policy(self, node: cst.Call, depth: int) -> Any:
        """Read ``functools.partial(policy, ...)``: what it wraps."""
        if "functools.partial" not in self.source.index.qualified(node.func) or not node.args:
            return self._unknown(node)
        known = {"transformer_layer_cls", "min_num_params"}
        name = self.source.index.fsdp1(node.args[0].value)
        given = arguments(node.with_changes(args=node.args[1:]), ()) if name in _POLICIES else None
        if given is None or len(given) != 1 or not known >= set(given):
            return self._unknown(node)
        return self._each(given, depth)

    def _name(self, node: cst.Name | cst.Attribute, depth: int) -> Any:
        if isinstance(node, cst.Name) and node.value in _CONSTANTS:
            return _CONSTANTS[node.value]
        for qualified in sorted(self.source.index.qualified(node)):
            dtype, option = _DTYPE.match(qualified), _HF_OPTION.match(qualified)
            if dtype or option:
                return dtype[1] if dtype else option[1].lower() if option else None
        known = self.source.index.fsdp1(node)
        if known is not None and not self.source.index.is_ambiguous(node):
            owner, _, member = known.partition(".")
            if (owner in _ENUMS and member) or known in _POLICIES:
                return member or known
        value = last_value(self.source.index, node)
        # What else reads a dict or a list may change it, so that its value here is not known.
        if value is not None and (not _is_mutable(self.source, value) or _is_alone(self.source, node)):
            return self._of_place(node, value, depth)
        return self._class_name(node) or self._unknown(node)

    def _of_place(self, node: cst.Name | cst.Attribute, value: cst.BaseExpression, depth: int) -> Any:
        """Read what a name is given, where all is known if another function gives it: ``self.offload``."""
        given_in = self.source.index.function(value)
        if given_in is None or given_in in self.source.index.ancestors(node):
            return self._read(value, depth + 1)
        return self._of_function(node, value, depth)

    def _class_name(self, node: cst.Name | cst.Attribute) -> str | None:
        """Return the name of a class of this source, or of what is imported and called as classes are."""
        bindings = self.source.index.bindings_of(node) if isinstance(node, cst.Name) else []
        if len(bindings) == 1 and bindings[0].kind == "class" and isinstance(node, cst.Name):
            return node.value
        known = self.source.index.qualified(node)
        last = {name.rpartition(".")[2] for name in known}
        only = last.pop() if len(last) == 1 else ""
        # A name in capitals alone is a constant more often than a class, unless it is as short as GPT, and
        # is no module's such as `blocks.ALL`.
        is_named = isinstance(node, cst.Name) or all(name.startswith("torch.") for name in known)
        is_short = "_" not in only and len(only) < 6 and is_named and only != "ALL"
        return only if only[:1].isupper() and (only != only.upper() or is_short) else None


def is_dict_call(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether an expression is ``dict(...)``, of Python's own."""
    func = node.func if isinstance(node, cst.Call) else None
    return isinstance(func, cst.Name) and func.value == "dict" and not source.index.bindings_of(func)


def _is_mutable(source: Source, node: cst.BaseExpression) -> bool:
    return isinstance(node, (cst.Dict, cst.List, cst.Set)) or is_dict_call(source, node)


def is_only_use(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether nothing else reads a name, so that nothing else sees, or changes, what it holds."""
    if not isinstance(node, cst.Name):
        return False
    return source.readers(node) == [node] and node.value not in _exported(source)


def _is_alone(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether one call alone reads a name, once or more: ``f(wraps=layers, recomputes=layers)``."""
    if is_only_use(source, node):
        return True
    if not isinstance(node, cst.Name) or node.value in _exported(source):
        return False
    given = [source.index.parents[each] for each in source.readers(node)]
    calls = {source.index.parents[each] for each in given if isinstance(each, cst.Arg)}
    return all(isinstance(each, cst.Arg) for each in given) and len(calls) == 1


def takers(source: Source, name: cst.Name) -> list[cst.Name] | None:
    """Return the places that are given what a name holds, without those that only ask: ``s == "fsdp"``.

    None where others may be given it too, as the module offers the name.
    """
    if name.value in _exported(source):
        return None
    return [each for each in source.readers(name) if not _is_only_asked(source, each)]


def _is_only_asked(source: Source, name: cst.Name) -> bool:
    above = source.index.parents[name]
    call = source.index.parents[above] if isinstance(above, cst.Arg) else None
    is_check = isinstance(call, cst.Call) and text_of(call.func) in {"isinstance", "print"}
    return is_check or isinstance(
        above, (cst.Comparison, cst.ComparisonTarget, cst.FormattedStringExpression)
    )


def returned(source: Source, call: cst.CSTNode) -> cst.BaseExpression | None:
    """Return what calling a function of this source gives, where it has one ``return`` and takes nothing."""
    func = call.func if isinstance(call, cst.Call) and not call.args else None
    bindings = source.index.bindings_of(func) if isinstance(func, cst.Name) else []
    made = bindings[0].node if len(bindings) == 1 else None
    if not isinstance(made, cst.FunctionDef) or made.asynchronous is not None or made.decorators:
        return None
    own = [each for each in walk_for(made.body, cst.Return) if source.index.function(each) is made]
    last = made.body.body[-1] if made.body.body else None
    is_last = isinstance(last, cst.SimpleStatementLine) and len(own) == 1 and own[0] in last.body
    makes_more = any(source.index.function(each) is made for each in walk_for(made.body, cst.Yield))
    return own[0].value if is_last and not makes_more else None


def _exported(source: Source) -> set[str]:
    """Return the names that the module offers to others."""
    bindings = source.index.scope.bindings.get("__all__", [])
    values = [each.value for each in bindings if isinstance(each.value, (cst.List, cst.Tuple))]
    return {
        str(item.value.evaluated_value)
        for value in values
        for item in value.elements
        if isinstance(item.value, cst.SimpleString)
    }


def definition(source: Source, node: cst.BaseExpression) -> cst.BaseExpression:
    """Return the expression that a name stands for, as far as it is the only one; or the node itself."""
    for _ in range(_DEEPEST):
        value = last_value(source.index, node) if isinstance(node, cst.Name) else None
        if value is None and isinstance(node, cst.Call) and is_only_use(source, node.func):
            value = returned(source, node)
        if value is None:
            break
        node = value
    return node


def when_on(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return ``x`` for ``x if on else None``: what counts where it is not switched off; else the node itself.

    Example:
        >>> when_on(cst.parse_expression('"full_shard" if on else ""')).value
        '"full_shard"'
    """
    if not isinstance(node, cst.IfExp):
        return node
    if _is_off(node.orelse):
        return node.body
    return node.orelse if _is_off(node.body) else node


def _is_off(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.SimpleString):
        return not node.evaluated_value
    empty = isinstance(node, (cst.Dict, cst.List, cst.Tuple)) and not node.elements
    return empty or (isinstance(node, cst.Name) and node.value in {"None", "False"})


def _copied(node: cst.BaseExpression) -> str:
    takes = any(_TAKES.search(code(each.func).rpartition(".")[2]) for each in walk_for(node, cst.Call))
    whole = " ".join(code(node).split())
    return _ITS_VALUE if takes or short(node) != whole else whole


def python_text(value: Any, quote: str = '"') -> str:
    """Return a plain value as Python source.

    Example:
        >>> python_text({"version": 2, "layers": ["A"], "on": True})
        '{"version": 2, "layers": ["A"], "on": True}'
    """
    if isinstance(value, dict):
        inner = ", ".join(f"{python_text(k, quote)}: {python_text(v, quote)}" for k, v in value.items())
        return f"{{{inner}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(python_text(item, quote) for item in value)}]"
    if isinstance(value, str) and quote == '"':
        plain = repr(value)
        return plain if '"' in value else f'"{plain[1:-1]}"' if plain[0] == "'" else plain
    return repr(value)
