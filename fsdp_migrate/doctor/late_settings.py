"""Parameters that a training comes back to: made trainable, or written into, between two epochs.

A framework's own FSDP2 shows whole parameters after an evaluation, on which such a setting is lost.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.findings import listed
from fsdp_migrate.newer_syntax import parse_any


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from fsdp_migrate.doctor.sight import Sight


_FRAMEWORKS: Final = re.compile(r"\b[Aa]ccelerat|\b\w*Trainer(?:Callback)?\b")
_EVALUATES: Final = re.compile(r"\b(?:inference_mode|no_grad)\b|\.eval\(\)|(?:\b|_)(?:eval_|evaluat|validat)")
_TRAINS: Final = re.compile(r"backward|evaluat|\bfit|\bstep$|train|valid")
_PARAMETERS: Final = frozenset({"named_parameters", "parameters"})
# Hooks that are called once, before any forward.
_ONCE: Final = frozenset({"on_fit_start", "on_init_end", "on_train_begin", "on_train_start"})
# Those of a step that come after its backward, which has sharded again, and before an evaluation.
_OF_A_STEP: Final = frozenset(
    {
        *("on_after_backward", "on_before_optimizer_step", "on_before_zero_grad", "on_optimizer_step"),
        *("on_pre_optimizer_step", "on_step_end", "on_substep_end"),
    }
)
# What a Trainer calls between steps.
_EVALUATION: Final = re.compile(r"evaluate|evaluation_loop|predict(?:ion_(?:loop|step))?|training_step")
# What says that something is computed or reduced in fewer bits; and what says that it is not.
_LOW: Final = re.compile(
    r"bf16|bfloat16|fp16|float16|\bhalf\b|MixedPrecision|_dtype\b|autocast|mixed_precision"
)
_NOT_LOW: Final = re.compile(
    r"\b(?:downcast_bf16|mixed_precision|bf16|fp16)[\"']?\s*[:=]\s*[\"']?(?:no|none|null|false)\b",
    re.IGNORECASE,
)
_SAYS: Final = re.compile(r"\b(?:FSDP|FullyShardedDataParallel|TrainingArguments)\(")
# What a command may say, nothing here shows.
_PARSES: Final = re.compile(r"\bHfArgumentParser\b|\bTrlParser\b")
_LARGEST: Final = 1_000_000
_MOST: Final = 3
_DEEPEST: Final = 3
_Loop = ast.For | ast.While | ast.AsyncFor
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def late_settings(sight: Sight, *, is_written: bool) -> str:
    """Return where parameters are made trainable, or not, again and again; or, if asked, written into too."""
    sources = _Sources(sight.sources)
    found = (
        f"{path}:{line}"
        for path, text in sight.sources.items()
        if "requires_grad" in text or (is_written and "copy_" in text)
        if _FRAMEWORKS.search(text) and _EVALUATES.search(text)
        for line in _lines(text, sources, is_written=is_written)
    )
    return listed(dict.fromkeys(found), _MOST)


def _lines(text: str, sources: _Sources, *, is_written: bool) -> Iterator[int]:
    tree = sources.tree(text)
    for node in ast.walk(tree.root):
        if not isinstance(node, (ast.Assign, ast.Call)):
            continue
        is_one = _sets(node) or (is_written and _writes(node, tree.above))
        once = _ONCE | _OF_A_STEP if is_written else _ONCE
        if is_one and _comes_again(node, tree, sources, once):
            yield node.lineno


class _Tree:
    """A source, and what stands around each of its nodes."""

    def __init__(self, text: str) -> None:
        try:
            self.root = parse_any(text)
        except SyntaxError:
            self.root = ast.Module([], [])
        self.above = {id(child): node for node in ast.walk(self.root) for child in ast.iter_child_nodes(node)}


class _Sources:
    """The sources of a project, each parsed where it is asked for."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = tuple(texts.values())
        self._trees: dict[str, _Tree] = {}

    def tree(self, text: str) -> _Tree:
        """Return a source as it is parsed."""
        if text not in self._trees:
            self._trees[text] = _Tree(text)
        return self._trees[text]

    def calls(self, name: str, home: _Tree) -> Iterator[tuple[ast.Call, _Tree]]:
        """Yield the calls of a function: in its own source, and in others if no other one has its name."""
        defines = re.compile(rf"\bdef {name}\(")
        is_alone = sum(len(defines.findall(text)) for text in self._texts) == 1
        others = (self.tree(text) for text in self._texts if is_alone and f"{name}(" in text)
        for tree in dict.fromkeys((home, *others)):
            every = (node for node in ast.walk(tree.root) if isinstance(node, ast.Call))
            yield from ((call, tree) for call in every if _last(call) == name)


def _sets(node: ast.AST) -> bool:
    """Tell whether a statement says whether something is trained."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "requires_grad_"
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(each, ast.Attribute) and each.attr == "requires_grad" for each in targets)


def _writes(node: ast.AST, above: dict[int, ast.AST]) -> bool:
    """Tell whether a call copies into one of a loop's parameters: ``p.data.copy_(old[name])``."""
    func = node.func if isinstance(node, ast.Call) else None
    if not isinstance(func, ast.Attribute) or func.attr != "copy_":
        return False
    held = func.value.value if isinstance(func.value, ast.Attribute) else func.value
    around = list(_around(node, above))
    # There the parameters are whole ones, and what is written goes back into the shards.
    if any("summon_full_params" in map(_last, _calls(each)) for each in around if isinstance(each, ast.With)):
        return False
    loops = (each for each in around if isinstance(each, ast.For))
    return isinstance(held, ast.Name) and any(
        held.id in _names(loop.target) and _asked(loop.iter) & _PARAMETERS for loop in loops
    )


def _comes_again(node: ast.AST, tree: _Tree, sources: _Sources, once: frozenset[str], depth: int = 0) -> bool:
    """Tell whether a place is come to between forwards: in a loop that trains, or in a hook of one.

    ``once`` are hooks that do not count.
    """
    for each in _around(node, tree.above):
        if isinstance(each, _Loop) and any(map(_TRAINS.search, _asked(each))):
            return True
        if isinstance(each, _Function):
            name = each.name
            if (name.startswith("on_") and name not in once) or (
                _EVALUATION.fullmatch(name) and _is_trainers(each, tree)
            ):
                return True
            return depth < _DEEPEST and any(
                _comes_again(call, its, sources, once, depth + 1) for call, its in sources.calls(name, tree)
            )
    return False


def _is_trainers(function: ast.AST, tree: _Tree) -> bool:
    """Tell whether a function is a method of a class that is made from some Trainer."""
    around = tree.above.get(id(function))
    bases = around.bases if isinstance(around, ast.ClassDef) else []
    return any("Trainer" in ast.unparse(base) for base in bases)


def _around(node: ast.AST, above: dict[int, ast.AST]) -> Iterator[ast.AST]:
    while (outer := above.get(id(node))) is not None:
        yield outer
        node = outer


def _calls(block: ast.With) -> Iterator[ast.Call]:
    """Yield the contexts that a block enters by a call."""
    entered = (item.context_expr for item in block.items)
    yield from (each for each in entered if isinstance(each, ast.Call))


def _asked(node: ast.AST) -> set[str]:
    return {_last(each) for each in ast.walk(node) if isinstance(each, ast.Call)}


def _last(call: ast.Call) -> str:
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _names(target: ast.AST) -> Iterable[str]:
    return {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}


def is_in_full_precision(sight: Sight) -> bool:
    """Tell whether sources and configs show that nothing is trained in mixed precision.

    Where they show nothing, as where a command alone says it, it may be.
    """
    if sight.config is not None:
        is_low = _LOW.search(_NOT_LOW.sub("", repr(dict(sight.settings)))) is not None
        return sight.config.mixed_precision is None and not is_low
    texts = [*sight.sources.values(), *map(_text, sight.configs)]
    if any(_LOW.search(_NOT_LOW.sub("", text)) or _PARSES.search(text) for text in texts):
        return False
    return any(_NOT_LOW.search(text) or _SAYS.search(text) for text in texts)


def _text(path: Path) -> str:
    """Return the text of a config; one that is large, or cannot be read, says nothing."""
    try:
        is_small = path.is_file() and path.stat().st_size <= _LARGEST
        return path.read_text(errors="replace") if is_small else ""
    except OSError:
        return ""
