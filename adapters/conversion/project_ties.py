"""Weights that a project's own models tie, and that Accelerate's FSDP2 does not tie again."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from fsdp_migrate.adapters.conversion.one_look import kept_in_a_look
from fsdp_migrate.adapters.conversion.project_imports import classes_in, texts_around


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path


_MAY_TIE: Final = re.compile(
    r"(?:weight|bias)\b[^=\n]*=(?!=)|setattr\([^\n]*(?:weight|bias)|register_parameter\("
    r"|\.(?:_?from_config|from_pretrained)\("
)
_TIES_NONE: Final = re.compile(r"\b(?:weight|bias)=[\w.]+\s*(?=[,)])")
"""``bias=False`` of a call, which most projects have, and which alone makes no source worth parsing."""
_PARAMETER: Final = re.compile(r"(?:weight|bias)\Z")
_SETTINGS: Final = re.compile(r"\b(?:args|cfg|conf|config|hparams|opt|options|params|settings)\b")
_TIES_ANEW: Final = re.compile(r"PreTrained|PeftModel|For[A-Z]\w+\Z|LMHeadModel\Z")
"""What models of transformers are called, whose ``tie_weights`` Accelerate calls."""
_TRANSFORMERS: Final = re.compile(r"(?:AutoModel|For[A-Z]\w+\Z|LMHeadModel\Z)")
"""What classes of transformers are called that may tie their embeddings and their head."""
_MAKES: Final = frozenset({"_from_config", "from_config", "from_pretrained"})
_NO_MODULES: Final = frozenset({"ABC", "Enum", "Generic", "NamedTuple", "Protocol", "TypedDict", "object"})
_NO_MODEL: Final = re.compile(r"(?:Callback|Collator|Config|Dataset|Pipeline|Processor|Tokenizer|Trainer)\Z")
"""What classes are called that Accelerate is not given as a model, whatever they hold."""
METHOD: Final = "tie_weights"


class Tie(NamedTuple):
    """A parameter that is set to another one, as it is written, and where."""

    name: str
    line: int


def find_tie(folder: Path) -> str:
    """Return where the project around a folder ties weights of a model without ``tie_weights``, or nothing.

    Example:
        >>> from pathlib import Path
        >>> find_tie(Path("/absent"))
        ''
    """
    found = _found_in(folder, ties_in)
    return "`{}` ties `{}` in {}:{}".format(*found) if found else ""


def find_holder(folder: Path) -> str:
    """Return where a model without ``tie_weights`` holds one of transformers that may tie, or nothing.

    Example:
        >>> from pathlib import Path
        >>> find_holder(Path("/absent"))
        ''
    """
    found = _found_in(folder, held_models)
    return "`{}` holds `{}` in {}:{}".format(*found) if found else ""


def _found_in(folder: Path, look: Callable[[ast.ClassDef], list[Tie]]) -> tuple[str, str, str, int] | None:
    """Return the first that is found in a model without ``tie_weights``: class, name, file and line."""
    classes, places = _classes_around(folder)
    for name, node in classes.items():
        others = _made_from(node, classes)[1]
        is_model = bool(others) and not any(map(_NO_MODEL.search, others))
        if is_model and not ties_anew(node, classes) and (found := look(node)):
            return name, found[0].name, places[name], found[0].line
    return None


@kept_in_a_look
def defines_class(folder: Path, name: str) -> bool:
    """Tell whether the project around a folder has a class of a name.

    Example:
        >>> from pathlib import Path
        >>> defines_class(Path("/absent"), "Block")
        False
    """
    line = re.compile(rf"^class {re.escape(name)}\b", re.MULTILINE)
    return any(line.search(text) for _, text in texts_around(folder))


@kept_in_a_look
def _classes_around(folder: Path) -> tuple[dict[str, ast.ClassDef], dict[str, str]]:
    classes: dict[str, ast.ClassDef] = {}
    places: dict[str, str] = {}
    texts = texts_around(folder)
    if not any(_MAY_TIE.search(_TIES_NONE.sub("", text)) for _, text in texts):
        return classes, places
    for path, text in texts:
        if _MAY_TIE.search(text) or METHOD in text:
            found = {each.name: each for each in classes_in(text)}
            classes.update(found)
            places.update(dict.fromkeys(found, path.name))
    return classes, places


def ties_anew(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> bool:
    """Tell whether a class, or one that it is made from, has the method that Accelerate ties again by.

    Example:
        >>> [ties_anew(ast.parse(f"class A({base}): pass").body[0], {}) for base in ("PreTrainedModel", "B")]
        [True, False]
    """
    own, others = _made_from(node, classes)
    has_it = any(METHOD in _names_of(line) for each in own for line in each.body)
    return has_it or any(_TIES_ANEW.search(name) for name in others)


def _made_from(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> tuple[list[ast.ClassDef], list[str]]:
    """Return a class with those that it is made from, and the names of those that are not in the source."""
    own, others, left, seen = [], [], [node], {node.name}
    while left:
        each = left.pop()
        own.append(each)
        for name in [ast.unparse(base).split(".")[-1] for base in each.bases]:
            if name in classes and name not in seen:
                left.append(classes[name])
            elif name not in classes and name not in _NO_MODULES:
                others.append(name)
            seen.add(name)
    return own, others


def _names_of(line: ast.stmt) -> set[str]:
    if isinstance(line, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return {line.name}
    targets = line.targets if isinstance(line, ast.Assign) else ()
    return {each.id for each in targets if isinstance(each, ast.Name)}


def ties_in(node: ast.AST) -> list[Tie]:
    """Return the ties within a class or a source: both parameters are of one object, ``self`` or a model.

    Example:
        >>> [tie.name for tie in ties_in(ast.parse("self.head.weight = self.tok.weight"))]
        ['self.head.weight']
        >>> ties_in(ast.parse("self.head.weight = other.weight; self.bias = self.args.bias"))
        []
    """
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    bodies: list[ast.AST] = [each for each in ast.walk(node) if isinstance(each, functions)] or [node]
    found = [tie for each in bodies for tie in _in_function(each)]
    return sorted(set(found), key=lambda tie: tie.line)


def held_models(node: ast.AST) -> list[Tie]:
    """Return the attributes of a class that it gives a model of transformers: its ties are not its own.

    Example:
        >>> code = "self.lm = AutoModel.from_pretrained(p); self.tok = AutoTokenizer.from_pretrained(p)"
        >>> [held.name for held in held_models(ast.parse(code))]
        ['self.lm']
    """
    found = []
    for line, targets, value in _given(node):
        func = value.func if isinstance(value, ast.Call) else None
        is_made = isinstance(func, ast.Attribute) and func.attr in _MAKES
        if isinstance(func, ast.Attribute) and is_made and _TRANSFORMERS.search(_last_word(func.value)):
            found += [Tie(ast.unparse(each), line) for each in targets if _root(each) == "self"]
    return sorted(found, key=lambda held: held.line)


def _last_word(node: ast.expr) -> str:
    return ast.unparse(node).split(".")[-1]


def _in_function(node: ast.AST) -> Iterator[Tie]:
    given = list(_given(node))
    known = _known_by(given)
    for line, targets, value in given:
        named = [each for each in targets if isinstance(each, ast.Attribute)]
        source = known.get(value.id, value) if isinstance(value, ast.Name) else _from(value, known)
        # `a.weight = b.weight = p`: the targets themselves are one parameter.
        for other in [each for each in (source, *named[:1]) if _is_of_part(each)][:1]:
            for target in named:
                one = ast.unparse(target)
                if one != ast.unparse(other) and _root(target) == _root(other):
                    yield Tie(one, line)


def _given(node: ast.AST) -> Iterator[tuple[int, list[ast.expr], ast.expr]]:
    """Yield what is given to what: by assignment, ``setattr`` and ``register_parameter``."""
    for each in ast.walk(node):
        if isinstance(each, ast.Assign):
            yield each.lineno, each.targets, each.value
        elif isinstance(each, ast.AnnAssign) and each.value is not None:
            yield each.lineno, [each.target], each.value
        elif isinstance(each, ast.Call):
            word = each.func.attr if isinstance(each.func, ast.Attribute) else getattr(each.func, "id", "")
            args = each.args
            if word == "register_parameter" and isinstance(each.func, ast.Attribute):
                args = [each.func.value, *args]
            elif word != "setattr":
                continue
            if len(args) == 3 and isinstance(args[1], ast.Constant) and isinstance(args[1].value, str):
                yield each.lineno, [ast.Attribute(args[0], args[1].value, ast.Load())], args[2]


def _known_by(given: Iterable[tuple[int, list[ast.expr], ast.expr]]) -> dict[str, ast.expr]:
    """Return what local names stand for: ``w = self.tok.weight``, or ``self.tok = tok``."""
    known: dict[str, ast.expr] = {}
    for _, targets, value in given:
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(value, ast.Attribute):
                known[target.id] = value
            elif isinstance(target, ast.Attribute) and isinstance(value, ast.Name):
                known.setdefault(value.id, target)
    return known


def _from(value: ast.expr, known: dict[str, ast.expr]) -> ast.expr:
    """Return ``self.tok.weight`` of ``tok.weight``, where `self.tok` is that name too."""
    inner = value.value if isinstance(value, ast.Attribute) else None
    if isinstance(value, ast.Attribute) and isinstance(inner, ast.Name) and inner.id in known:
        return ast.Attribute(known[inner.id], value.attr, ast.Load())
    return value


def _is_of_part(node: ast.expr) -> bool:
    """Tell whether it is called as a parameter of a module that something holds: ``self.tok.weight``."""
    if not isinstance(node, ast.Attribute) or not _PARAMETER.match(node.attr):
        return False
    return (
        _root(node) != "" and not isinstance(node.value, ast.Name) and not _SETTINGS.search(ast.unparse(node))
    )


def _root(node: ast.expr) -> str:
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        else:
            return ""
    return node.id
