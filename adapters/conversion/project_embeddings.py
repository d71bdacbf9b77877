"""Classes of a project's own that hold the embeddings of its models."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.adapters.conversion.one_look import kept_in_a_look
from fsdp_migrate.adapters.conversion.project_imports import classes_in, text_if_there, texts_around
from fsdp_migrate.adapters.engine.shared_embeddings import is_inner_model


if TYPE_CHECKING:
    from pathlib import Path


_GETTER: Final = "get_input_embeddings"
_MAKES: Final = re.compile(
    r"(?!\w*(?:Rotary|Patch|Position(?:al)?|Time(?:step)?|Sin\w*|Label))\w*Embedding\Z"
)
_OF_TRANSFORMERS: Final = re.compile(r"PreTrained|Pretrained|For[A-Z]\w+\Z|Model\Z")
_IN_BOTH: Final = re.compile(
    r"\b(AutoModelForSeq2SeqLM|(?:(?:M|UM|Long)?T5|SwitchTransformers|(?:M|PL)?Bart|Marian(?:MT)?|M2M100|Mvp|LED"
    r"|(?:BigBird)?PegasusX?|Blenderbot(?:Small)?|NllbMoe|(?:XLM)?ProphetNet)"
    r"(?:For(?:ConditionalGeneration|QuestionAnswering|(?:Sequence|Token)Classification)|Model))"
    r"(?:\s*\.\s*(?:_?from_config|from_pretrained))?\s*\("
)
"""Models of transformers, where they are made, whose encoder and decoder hold the embeddings too."""
_TRAINS: Final = re.compile(r"Trainer\(|\.prepare\(|\.backward\(|\.train\(\)")
_USUAL: Final = frozenset({"embed_in", "embed_tokens", "shared", "word_embeddings", "wte"})
"""Where the models of transformers, whose getter a class may have taken over, hold their embeddings."""


@kept_in_a_look
def holds_embeddings(folder: Path, name: str) -> bool | None:
    """Tell whether a class of the project around a folder holds what a getter gives as the embeddings.

    A getter of the class itself does not count: the class may be the model then, which is the root.

    Returns:
        None where the project has no class of that name.

    Example:
        >>> from pathlib import Path
        >>> holds_embeddings(Path("/absent"), "Model") is None
        True
    """
    # Most projects take their layers from a package: their sources need no parsing for that.
    if not any(re.search(rf"\bclass\s+{re.escape(name)}\b", text) for _, text in texts_around(folder)):
        return None
    classes = _classes_around(folder)
    if name not in classes:
        return None
    family, bases = _family(name, classes)
    held = {each for member in family for each in _made_in(classes[member])}
    given = {last for other, node in classes.items() if other not in family for last in _given_by(node)}
    if any(_OF_TRANSFORMERS.search(base) for base in bases):
        given |= _USUAL
    return bool(held & given) or any(is_inner_model(base) for base in bases)


@kept_in_a_look
def find_shared(folder: Path) -> str:
    """Return where the project around a folder trains a model of an encoder and a decoder, or nothing.

    Such as T5 and BART, which hold their embeddings in both. Of a text encoder alone nothing is said. Beside
    the sources, notebooks in the folder itself are looked at.

    Example:
        >>> from pathlib import Path
        >>> find_shared(Path("/absent"))
        ''
    """
    notebooks = ((path, text_if_there(path)) for path in sorted(folder.glob("*.ipynb")))
    for path, text in (*texts_around(folder), *notebooks):
        made = _IN_BOTH.search(text) if _TRAINS.search(text) else None
        if made is not None:
            line = "" if path.suffix == ".ipynb" else f":{text.count(chr(10), 0, made.start()) + 1}"
            return f"`{made[1]}` in {path.name}{line}"
    return ""


@kept_in_a_look
def _classes_around(folder: Path) -> dict[str, ast.ClassDef]:
    classes: dict[str, ast.ClassDef] = {}
    for _, text in texts_around(folder):
        if "class " in text:
            classes.update({each.name: each for each in classes_in(text) if each.col_offset == 0})
    return classes


def _family(name: str, classes: dict[str, ast.ClassDef]) -> tuple[set[str], list[str]]:
    """Return a class with those of the project that it is made from, and what these are made from else."""
    family, others, left = {name}, [], [name]
    while left:
        for base in [ast.unparse(each).split(".")[-1] for each in classes[left.pop()].bases]:
            if base not in classes:
                others.append(base)
            elif base not in family:
                family.add(base)
                left.append(base)
    return family, others


def _made_in(node: ast.ClassDef) -> set[str]:
    """Return the names under which a class holds embeddings: of attributes, and of words of a dict."""
    found: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Assign) and _is_embedding(each.value):
            found |= {target.attr for target in each.targets if isinstance(target, ast.Attribute)}
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Attribute):
            found |= {each.target.attr} if _is_embedding(each.value) else set()
        elif isinstance(each, ast.keyword) and each.arg and _is_embedding(each.value):
            found.add(each.arg)
        elif isinstance(each, ast.Dict):
            pairs = zip(each.keys, each.values, strict=True)
            found |= {
                str(key.value) for key, made in pairs if isinstance(key, ast.Constant) and _is_embedding(made)
            }
    return found


def _is_embedding(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and _MAKES.match(ast.unparse(value.func).split(".")[-1]) is not None


def _given_by(node: ast.ClassDef) -> set[str]:
    """Return the last names of what the class's getter returns: ``wte`` of ``self.model.transformer.wte``."""
    getters = (each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == _GETTER)
    returned = (line.value for each in getters for line in ast.walk(each) if isinstance(line, ast.Return))
    found: set[str] = set()
    for value in returned:
        if isinstance(value, ast.Attribute):
            found.add(value.attr)
        elif isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant):
            found.add(str(value.slice.value))
    return found
