"""Which methods of a class run in others of it, as far as these ask ``self`` for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, walk_for


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping


def reached(
    calls: Mapping[str, Collection[str]],
    is_hook: Callable[[str], object],
    is_elsewhere: Callable[[str], object],
) -> frozenset[str]:
    """Return the methods, none of them hooks, that hooks ask for, or what hooks ask for does.

    ``calls``: the methods of a class, each with what it asks of ``self``.
    ``is_elsewhere``: whether a framework runs a method at another time as well, so that it is none of these.

    Example:
        >>> calls = {"on_end": {"probe", "forward"}, "probe": {"deep"}, "deep": set(), "forward": set()}
        >>> sorted(reached(calls, "on_end".__eq__, "forward".__eq__))
        ['deep', 'probe']
    """
    todo = [name for name in calls if is_hook(name)]
    found: set[str] = set()
    while todo:
        asked = calls.keys() & calls[todo.pop()]
        new = {name for name in asked - found if not is_hook(name) and not is_elsewhere(name)}
        found |= new
        todo += new
    return frozenset(found)


def run_by_forward(owner: cst.ClassDef) -> set[str]:
    r"""Return the methods of a class that its forward runs, itself or by others.

    Example:
        >>> made = "class Net:\n    def forward(self, x): return self.a(x)\n    def a(self, x): return x\n"
        >>> owner = cst.ensure_type(cst.parse_module(made).body[0], cst.ClassDef)
        >>> sorted(run_by_forward(owner))
        ['a', 'forward']
    """
    methods = {each.name.value: each for each in owner.body.body if isinstance(each, cst.FunctionDef)}
    found, todo = set[str](), ["forward"]
    while todo:
        name = todo.pop()
        if name in found or name not in methods:
            continue
        found.add(name)
        calls = (dotted(call.func) or "" for call in walk_for(methods[name].body, cst.Call))
        todo += [text.removeprefix("self.") for text in calls if text.startswith("self.")]
    return found
