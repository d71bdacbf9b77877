"""torch's objects as configs write them: Hydra's ``_target_``, ``class_path``, resolvers (``${...:...}``).

Nothing that they name is imported or called; only the words in them are read.
"""

from __future__ import annotations

import re
from typing import Any

from fsdp_migrate.adapters.document.nodes import Reference


_GETTERS = frozenset(
    {
        "get",
        "getattr",
        "get_attr",
        "get_class",
        "get_method",
        "get_object",
        "get_static_method",
        "resolve_dtype",
    }
)
_OF_POLICIES = frozenset({"transformer_layer_cls", "min_num_params"})
_ENUMS = frozenset({"BackwardPrefetch", "ShardingStrategy"})
_SIBLING = re.compile(r"\$\{\s*\.(\w+)\s*\}")
_RESOLVER = re.compile(r"\$\{\s*[\w.]+\s*:\s*['\"]?([A-Za-z_][\w.]*)['\"]?\s*\}\Z")


def read_objects(value: Any) -> Any:
    """Return a value with the objects in it as words and plain mappings; what is not understood stays.

    Example:
        >>> read_objects({"_target_": "torch.__dict__.get", "_args_": ["bfloat16"]})
        'bfloat16'
        >>> read_objects(Reference("${resolve_variable:torch.distributed.fsdp.ShardingStrategy.NO_SHARD}"))
        'torch.distributed.fsdp.ShardingStrategy.NO_SHARD'
        >>> read_objects({"class_path": "torch.CPUOffload", "init_args": {"offload_params": 1}})
        {'offload_params': 1}
    """
    if isinstance(value, Reference):
        match = _RESOLVER.match(value.text.strip())
        return match.group(1) if match and "." in match.group(1) else value
    if isinstance(value, list):
        return [read_objects(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "class_path" in value:
        return _instance(str(value["class_path"]), read_objects(value.get("init_args") or {}))
    if "_target_" in value:
        inner = {name: read_objects(item) for name, item in value.items() if not name.startswith("_")}
        arguments = read_objects(value.get("_args_") or [])
        return _instance(str(value["_target_"]), inner, arguments)
    return {name: read_objects(item) for name, item in value.items()}


def _instance(target: str, arguments: dict[str, Any], positional: list[Any] | None = None) -> Any:
    """Return what a call or an object stands for: its name, its only argument, or its arguments."""
    name = target.rpartition(".")[2]
    # Resolvers, which look a name up: the last text that they are given is that name.
    if name in _GETTERS:
        given = [item for item in (positional or [*arguments.values()]) if isinstance(item, str)]
        return given[-1] if given else target
    if positional and not arguments and len(positional) == 1:
        return positional[0]
    if name == "ModuleWrapPolicy":
        return listed(arguments.get("module_classes", positional[0] if positional else []))
    if name in {"transformer_auto_wrap_policy", "size_based_auto_wrap_policy"}:
        kept = {name: listed(inner) for name, inner in arguments.items() if name in _OF_POLICIES}
        return kept or name
    if name in _ENUMS and len(arguments) == 1:
        return next(iter(arguments.values()))
    return arguments or ({} if name in {"MixedPrecision", "CPUOffload"} else target)


def listed(value: Any) -> Any:
    """Return a set of YAML (``!!set``: keys without values) as a list, and anything else as it is.

    Example:
        >>> listed({"a.Block": None, "a.Head": None}), listed({"a": 1}), listed({})
        (['a.Block', 'a.Head'], {'a': 1}, {})
    """
    is_set = isinstance(value, dict) and value and all(inner is None for inner in value.values())
    return list(value) if is_set else value


def own_policy(value: Any) -> str | None:
    """Return what makes a policy where that is a project's own code; None for classes and torch's policies.

    Example:
        >>> own_policy("pkg.wrap.Policy"), own_policy({"class_path": "pkg.Policy", "init_args": {"a": 1}})
        ('pkg.wrap.Policy', 'pkg.Policy')
        >>> own_policy("torch.distributed.fsdp.wrap.always_wrap_policy"), own_policy(["pkg.Block"])
        (None, None)
    """
    made = listed(read_objects(value))
    if isinstance(made, str):
        is_own = "." in made and "," not in made and not made.startswith("torch.")
        return made if is_own else None
    if isinstance(made, dict) and not set(made) <= _OF_POLICIES:
        return target_of(value)
    return None


def target_of(value: Any) -> str | None:
    """Return the class that a mapping instantiates, or None."""
    if not isinstance(value, dict):
        return None
    target = value.get("_target_", value.get("class_path"))
    return target if isinstance(target, str) else None


def with_siblings(values: dict[str, Any]) -> dict[str, Any]:
    """Return values with what OmegaConf takes of the same mapping: ``${.auto_wrap_policy}``.

    Example:
        >>> with_siblings({"a": 1, "b": Reference("${.a}"), "c": Reference("${.d}")})
        {'a': 1, 'b': 1, 'c': '${.d}'}
    """
    named = {name: _SIBLING.fullmatch(v.text) for name, v in values.items() if isinstance(v, Reference)}
    found = {name: values.get(match[1]) for name, match in named.items() if match is not None}
    return values | {name: v for name, v in found.items() if v is not None and not isinstance(v, Reference)}
