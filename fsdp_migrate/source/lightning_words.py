"""Words that name Lightning's FSDP1 strategy, ``strategy = "fsdp"``, and options of a command that may."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.adapters.engine.lightning_groups import REASON, WITH_GLOO
from fsdp_migrate.source.python.nodes import targets_of, text_of, walk_for
from fsdp_migrate.source.python.values import Values, takers
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


_TEXTS = frozenset({"dest", "help", "metavar"})
_OPTION = re.compile(r"^--?[\w-]*strategy$")
_CHOSEN = "this word may be given for Lightning's FSDP1 strategy: where it is chosen, {}"
_IMPORTS = re.compile(r"^[ \t]*(from|import) (lightning|pytorch_lightning|lightning_fabric)\b", re.MULTILINE)
_WRITTEN = "this names Lightning's FSDP1 strategy: {}"
_TRAINERS = (
    "give the Trainer ModelParallelStrategy() instead, and call prepare_fully_shard(self, {...}) in the "
    "module's configure_model."
)
_FABRICS = (
    "give Fabric ModelParallelStrategy(parallelize_fn=...) instead, call prepare_fully_shard(model, {...}) "
    "in that function, and make optimizers after `model = fabric.setup_module(model)`."
)
_OFFLOADS = f" Give it process_group_backend={WITH_GLOO!r} for the word that offloads: {REASON}."
_MAKES_TRAINER = re.compile(r"\b(?:Trainer|LightningCLI|LightningModule)\b")
_NAMED = re.compile(r"(?:^|[._])strategy$", re.IGNORECASE)
_GIVES = re.compile(r"(?:^|_)strategy$")
_ENUM = re.compile(r"(?:^|\.)\w*Enum$")
# The words of Lightning's other strategies, beside which an item of a set of choices is one, too.
_OTHERS = re.compile(r"^(?:auto|ddp(?:_\w+)?|deepspeed(?:_\w+)?)$")
_WORD = re.compile(r"^fsdp(_native|_cpu_offload|_native_full_shard_offload)?$")
_BLOCKS = (cst.ClassDef, cst.FunctionDef)
_NEW = "ModelParallelStrategy"


def words_apart(source: Source, read: set[cst.CSTNode], done: set[cst.CSTNode]) -> Iterator[Found]:
    """Find the words for the strategy that reach a Trainer by a dict, or by a name: ``kw["strategy"]``.

    Args:
        source: What is looked at.
        read: The arguments of which something is said already.
        done: Those of them that are rewritten.
    """
    if not _IMPORTS.search(source.code):
        return
    for node in source.index.by_kind.get(cst.SimpleString, ()):
        assert isinstance(node, cst.SimpleString)
        if not _WORD.match(node.value.strip("'\"")):
            continue
        below: cst.CSTNode = node
        above = source.index.parents[node]
        while isinstance(above, cst.IfExp) and below is not above.test:
            below, above = above, source.index.parents[above]
        if above not in read and _is_of_strategy(source, above) and not _is_settled(source, above, done):
            yield Found("FM319", node, _WRITTEN.format(_instead(source, node)), "commented")
        elif _is_a_choice(source, node):
            yield Found("FM319", node, _CHOSEN.format(_instead(source, node)), "commented")


def _instead(source: Source, word: cst.SimpleString | cst.Call) -> str:
    """Return what takes the strategy's place, by whom a file trains."""
    is_fabrics = "Fabric" in source.code and _MAKES_TRAINER.search(source.code) is None
    return (_FABRICS if is_fabrics else _TRAINERS) + (_OFFLOADS if "offload" in text_of(word) else "")


def _is_a_choice(source: Source, node: cst.SimpleString) -> bool:
    """Tell whether a word is one that may be chosen: of an ``Enum``, or ``strategy: Literal["fsdp"]``."""
    for above in source.index.ancestors(node):
        if isinstance(above, cst.Annotation):
            owner = source.index.parents[above]
            target = owner.name if isinstance(owner, cst.Param) else getattr(owner, "target", None)
            return target is not None and _NAMED.search(text_of(target)) is not None
        if isinstance(above, cst.FunctionDef):
            return False
        if isinstance(above, cst.ClassDef):
            is_enum = any(_ENUM.search(text_of(base.value)) for base in above.bases)
            words = (str(each.evaluated_value) for each in walk_for(above.body, cst.SimpleString))
            return is_enum and any(map(_OTHERS.match, words))
    return False


def _is_settled(source: Source, above: cst.CSTNode, done: set[cst.CSTNode]) -> bool:
    """Tell whether a word's name is given to nothing but arguments that are rewritten, or were."""
    target = above.targets[0].target if isinstance(above, cst.Assign) and len(above.targets) == 1 else None
    given = takers(source, target) if isinstance(target, cst.Name) else None
    inside = (each for each in source.index.ancestors(above) if isinstance(each, _BLOCKS))
    block = next(inside, None)
    if given is None or isinstance(block, cst.ClassDef):
        return False
    # Another file may import a name of the top level.
    is_seen = bool(given) or block is not None or _NEW in source.code
    return is_seen and done.issuperset(source.index.parents[each] for each in given)


def chosen_words(source: Source) -> Iterator[Found]:
    """Find options of a command that may be the strategy's word: ``("--strategy", choices=[...])``."""
    is_theirs = _IMPORTS.search(source.code) is not None
    for call in source.calls if is_theirs or source.links.beside_lightning else ():
        first = call.args[0].value if call.args else None
        if not isinstance(first, cst.SimpleString) or not _OPTION.match(str(first.evaluated_value)):
            continue
        if not is_theirs and first.evaluated_value != "--strategy":
            continue
        given = (arg.value for arg in call.args if arg.keyword is None or arg.keyword.value not in _TEXTS)
        words = (text for value in given for text in walk_for(value, cst.SimpleString))
        if any(_WORD.match(str(text.evaluated_value)) for text in words):
            yield Found("FM319", call, _CHOSEN.format(_instead(source, call)), "commented")


def _is_of_strategy(source: Source, above: cst.CSTNode) -> bool:
    """Tell whether what holds a value is called ``strategy``: an argument, an item, a name, a function."""
    if isinstance(above, cst.Return):
        function = source.index.function(above)
        return function is not None and _GIVES.search(function.name.value) is not None
    if isinstance(above, cst.Arg):
        return above.keyword is not None and above.keyword.value == "strategy"
    if isinstance(above, cst.DictElement):
        return (
            isinstance(above.key, cst.SimpleString)
            and _NAMED.search(str(above.key.evaluated_value)) is not None
        )
    if not isinstance(above, (cst.AnnAssign, cst.Assign)):
        return False
    return any(re.search(r"(^|[.\[_'\"])strategy['\"]?\]?$", text_of(each)) for each in targets_of(above))


def is_word(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether an expression is such a word, also by a name."""
    value = Values(source).read(node) if isinstance(node, (cst.SimpleString, cst.Name)) else None
    return isinstance(value, str) and bool(_WORD.match(value))
