"""What of one file counts in another: methods that a sharded model is asked for, its own clipping, groups."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from fsdp_migrate.source import catalog
from fsdp_migrate.source.fallbacks import has_fallback, has_fsdp2
from fsdp_migrate.source.given_contexts import context_givers
from fsdp_migrate.source.ignored_modules import ignored_attributes
from fsdp_migrate.source.ignored_states import tells_to_ignore
from fsdp_migrate.source.loaded_elsewhere import LOADS, Loads, loads_of
from fsdp_migrate.source.passes_elsewhere import deeds, may_change
from fsdp_migrate.source.project import dotted, last_name
from fsdp_migrate.source.python.counting_methods import counting_functions, counting_methods, may_count
from fsdp_migrate.source.python.links import Links
from fsdp_migrate.source.python.no_shard import chooses_no_shard
from fsdp_migrate.source.python.walked import walked
from fsdp_migrate.source.reach import imports_of
from fsdp_migrate.source.runs_elsewhere import evaluations, may_evaluate
from fsdp_migrate.source.units_of_parts import made_parts, unit_classes
from fsdp_migrate.source.writes_elsewhere import may_write, writes


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from fsdp_migrate.source.project import Module, Project
    from fsdp_migrate.source.python.links import Deeds


_GIVES_SELF = re.compile(r"^(?!\s*(?:async\s+)?def\b).*(?<!super)\(self[,)]", re.MULTILINE)
_DRAWS = re.compile(r"\b(?:bernoulli_|(?:trunc_)?normal_|rand(?:int|n)?_like|uniform_)\(")
_DEEPEST = 2
_PASSES = re.compile(r"\.backward\(|\bloss|_loss\b")
_NAMES_THE_CLASS = re.compile(rf"\b{catalog.FSDP}\b")
_SUMMONS = "summon_full_params"
_SETS_CLIPPING = re.compile(r"^[ \t]+self\.clip_grad_norm_\s*=[^=]", re.MULTILINE)


def of_the_whole(project: Project, near: Collection[Path]) -> Links:
    """Return what each file is told that holds of the project as a whole.

    ``near``: the files that models reach. Others are not parsed for what functions do to these.
    """
    around = {*near, *(each for path in near for each in imports_of(project, path))}
    loads, units = _loads(project, around), unit_classes(project.texts.values())
    return Links(
        clips_itself=clips_itself(project),
        own_groups=has_own_groups(project),
        no_shard=has_no_shard(project),
        ignores=any(map(tells_to_ignore, project.texts.values())),
        ignored=ignored_attributes(project),
        made_parts=made_parts(project.texts.values()) if units else {},
        calls_the_class=any(map(_NAMES_THE_CLASS.search, project.texts.values())),
        unit_classes=units,
        counting_methods=counting_methods(_counting(project)),
        counting_functions=counting_functions(_counting(project)),
        runners=frozenset(runners(project)),
        deeds=_deeds(project, around),
        gives_files=loads.gives,
        given_files=loads.given,
        called_summoned=frozenset(only_summoned(project)),
        falls_back=has_fallback(project),
        has_fsdp2=has_fsdp2(project),
        gives_contexts=frozenset(context_givers(project)),
    )


def _counting(project: Project) -> Iterator[ast.Module]:
    modules = (project.module(path) for path, text in project.texts.items() if may_count(text))
    yield from (each.tree for each in modules if each is not None)


def _deeds(project: Project, around: Collection[Path]) -> Deeds:
    """Return what functions do to weights, and to models where some may empty or change gradients."""
    texts = {path: project.texts[path] for path in around if path in project.texts}
    writing = (path for path, text in texts.items() if may_write(text))
    written = writes(each.tree for each in project.parsed(writing))
    if any(map(may_write, texts.values())):
        running = (path for path, text in texts.items() if may_evaluate(text))
        written |= evaluations(each.tree for each in project.parsed(running))
    if not any(map(may_change, texts.values())):
        return written
    telling = (path for path, text in texts.items() if _PASSES.search(text) or may_change(text))
    return written | deeds(each.tree for each in project.parsed(telling))


def _loads(project: Project, around: Collection[Path]) -> Loads:
    """Return the functions that give what ``torch.load`` gives, or are given it by the files that call it."""
    telling = {path for path in around if LOADS in project.texts.get(path, "")}
    loads = loads_of(each.tree for each in project.parsed(telling))
    users: set[Path] = {*project.holding(loads.gives)}.intersection(around) if loads.gives else set()
    if users <= telling:
        return loads
    return loads_of(each.tree for each in project.parsed(telling | users))


def called_summoned(project: Project) -> set[str]:
    """Return the names of what is called where parameters are summoned: of methods their last words."""
    calls = (call.func for block in _summoning(project) for call, _ in _calls_in(block))
    return {last_name(func) for func in calls} - {""}


def only_summoned(project: Project) -> Iterator[str]:
    """Yield the project's functions of which each mention is a call that gives what a block has summoned."""
    found: dict[str, set[ast.expr]] = {}
    for block in _summoning(project):
        for call, models in _calls_in(block):
            texts = [ast.unparse(each) for each in (*call.args, *(each.value for each in call.keywords))]
            if any(text == each or text.startswith(f"{each}.") for text in texts for each in models):
                found.setdefault(last_name(call.func), set()).add(call.func)
    for name, funcs in found.items():
        holding = project.holding({name})
        if any(f"def {name}(" in project.texts[path] for path in holding):
            modules = project.parsed(holding)
            named = (node for each in modules for node in walked(each.tree) if _is_named(node, name))
            if all(each in funcs for each in named):
                yield name


def _summoning(project: Project) -> Iterator[ast.With]:
    """Yield the blocks in which models show their whole parameters."""
    paths = [path for path, text in project.texts.items() if _SUMMONS in text]
    asking = filter(None, map(project.module, paths))
    blocks = (node for module in asking for node in walked(module.tree) if isinstance(node, ast.With))
    for block in blocks:
        if any(_SUMMONS in ast.unparse(item.context_expr) for item in block.items):
            yield block


def _calls_in(block: ast.With) -> Iterator[tuple[ast.Call, set[str]]]:
    """Yield the calls of such a block, each with the models that it shows, as texts."""
    entered = [item.context_expr for item in block.items if isinstance(item.context_expr, ast.Call)]
    models = {
        ast.unparse(each) for call in entered for each in call.args[:1] if last_name(call.func) == _SUMMONS
    }
    yield from ((node, models) for node in ast.walk(block) if isinstance(node, ast.Call))


def _is_named(node: ast.AST, name: str) -> bool:
    """Tell whether a node is a mention of a function or method, where it is not defined or imported."""
    return isinstance(node, (ast.Attribute, ast.Name)) and last_name(node) == name


def runners(project: Project) -> Iterator[tuple[str, str | int]]:
    """Yield the functions that run what they are given, of those called where parameters are summoned."""
    called = called_summoned(project)
    for module in project.parsed(project.holding(called)) if called else ():
        for definition in module.definitions.values():
            node = definition.node
            if isinstance(node, ast.FunctionDef) and node.name in called:
                names = [arg.arg for arg in node.args.args if arg.arg not in {"self", "cls"}]
                for place, name in enumerate(names):
                    if _calls(definition.module, node, name):
                        yield node.name, name
                        yield node.name, place


def _calls(module: Module, function: ast.FunctionDef, name: str, depth: int = 0) -> bool:
    """Tell whether a function calls what it is given as a parameter, or has it generate; also by others."""
    wanted = {name, f"{name}.forward", f"{name}.generate"}
    for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        called = dotted(call.func)
        if called in wanted:
            return True
        inner = module.definitions.get(called or "")
        if depth < _DEEPEST and inner is not None and isinstance(inner.node, ast.FunctionDef):
            names = [arg.arg for arg in inner.node.args.args]
            given = [
                *zip(names, call.args, strict=False),
                *((each.arg, each.value) for each in call.keywords),
            ]
            for known, value in given:
                if known and dotted(value) == name and _calls(module, inner.node, known, depth + 1):
                    return True
    return False


def clips_itself(project: Project) -> bool:
    """Tell whether a model's class of the project has a ``clip_grad_norm_`` of its own."""
    return any(
        _SETS_CLIPPING.search(text) is not None
        or ("def clip_grad_norm_(self" in text and _has_a_model_that_clips(project, path))
        for path, text in project.texts.items()
        if "clip_grad_norm_" in text
    )


def _has_a_model_that_clips(project: Project, path: Path) -> bool:
    module = project.module(path)
    known = module.definitions if module is not None else {}
    for name, definition in known.items():
        node = definition.node
        if isinstance(node, ast.ClassDef) and f"{name}.clip_grad_norm_" in known:
            bases = [ast.unparse(base).split(".")[-1] for base in node.bases]
            if any(base.endswith(("Module", "PreTrainedModel")) for base in bases):
                return True
    return False


def has_own_groups(project: Project) -> bool:
    """Tell whether a file of the project calls FSDP1's class, by its usual names, with a process group."""
    paths = (
        path for path, text in project.texts.items() if catalog.FSDP in text and "process_group=" in text
    )
    for module in filter(None, map(project.module, paths)):
        for node in walked(module.tree):
            # A partial of the class is given what its calls give to the class.
            parts = [node.func, *node.args[:1]] if isinstance(node, ast.Call) else []
            names = [ast.unparse(each).split(".")[-1] for each in parts]
            made = names[1:] if names[:1] == ["partial"] else names[:1]
            if isinstance(node, ast.Call) and {"FSDP", catalog.FSDP} & set(made):
                given = (each.value for each in node.keywords if each.arg == "process_group")
                if any(not isinstance(value, ast.Constant) for value in given):
                    return True
    return False


def has_no_shard(project: Project) -> bool:
    """Tell whether a file of the project that uses FSDP1 chooses ``NO_SHARD``."""
    return any(catalog.FSDP in text and chooses_no_shard(text) for text in project.texts.values())


def asked_for(
    func: ast.expr, known: Collection[str], kinds: Callable[[ast.expr], Collection[str]], module: Module
) -> set[str]:
    """Return the name of the method, if a call asks a sharded model for one that not every module has.

    Not of a method that the file's own model has: that is the one, and no other file's.
    """
    if not isinstance(func, ast.Attribute) or func.attr in catalog.OF_MODULES or func.attr in known:
        return set()
    is_asked = "fsdp" in kinds(func.value) and not makes_its_own(module, func.attr)
    return {func.attr} if is_asked else set()


def giving_self(project: Project, method: str) -> Iterator[Path]:
    """Yield the files in which a class has a method, and some method gives ``self`` to a function."""
    made = f"def {method}(self"
    yield from (path for path, text in project.texts.items() if made in text and _GIVES_SELF.search(text))


def makes_its_own(module: Module, method: str) -> bool:
    """Tell whether a file has a class with a method of its own, and makes objects of it."""
    owners = {name.rpartition(".")[0] for name in module.definitions if name.endswith(f".{method}")}
    # A trainer's, which asks the model that it holds for the same, is not the model's.
    handed_on = re.compile(rf"\bself\.(?:\w+\.)+{re.escape(method)}\(")
    owners = {each for each in owners if not handed_on.search(module.definitions[f"{each}.{method}"].written)}
    calls = (node.func for node in walked(module.tree) if isinstance(node, ast.Call)) if owners else ()
    return any(isinstance(func, ast.Name) and func.id in owners for func in calls)


def methods_by_file(project: Project, names: Collection[str]) -> dict[Path, frozenset[str]]:
    """Return which of some methods each file defines that go through parameters, or draw numbers.

    Of those that draw numbers not what is called where parameters are summoned.
    """
    found: dict[Path, frozenset[str]] = {}
    summoned = called_summoned(project) if names else set()
    for path in project.holding(names):
        text = project.texts[path]
        those = {*names} if "parameters()" in text else {*names} - summoned
        if "parameters()" in text or _DRAWS.search(text) is not None:
            defined = frozenset(name for name in those if f"def {name}(" in text)
            found.update({path: defined} if defined else {})
    return found
