"""Which names a source uses as models, whatever they are called: ``vlm.parameters()``, ``dit(x)``."""

from __future__ import annotations

import ast
import functools
import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.catalog import PREPARED_MODEL, PREPARED_WITH
from fsdp_migrate.source.python.nodes import text_of
from fsdp_migrate.source.python.parameters import makes_optimizers
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from fsdp_migrate.source.python.scopes import Index


ASKS_A_MODEL: Final = frozenset(
    {
        "children",
        "eval",
        "get_input_embeddings",
        "gradient_checkpointing_enable",
        "modules",
        "named_children",
        "named_modules",
        "named_parameters",
        "parameters",
        "requires_grad_",
        "train",
    }
)
"""Methods of models that nothing else which ``prepare`` is given has."""
_NAMED = re.compile(PREPARED_MODEL)
_OTHERS = re.compile(PREPARED_WITH)
_STATES = re.compile(r"(?:^|_)(?:checkpoint|ckpt|sd|state|state_?dict)s?$")
# By the classes that make them: what is prepared beside a model, and is no optimizer.
_MADE = re.compile(
    r"(?:Tokenizer|Processor|Collator\w*|Loader|Dataset|FeatureExtractor)(?:\.from_pretrained)?$"
)
_MODULES = ("Module", "PreTrainedModel", "ModelMixin")
_MAKES = re.compile(r"([\w.]+?)(?:\.from_(?:config|pretrained))?\(")
_NEXT_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_FUNCTION = re.compile(r"collat|criteri|fn$|func|loss|metric|process|token|transform$")


def is_model(name: str, asked: Collection[str]) -> bool:
    """Tell whether what a name stands for is a model: by what it is called, or what the source asks of it.

    Example:
        >>> is_model("self.unet", ()), is_model("dit", {"dit"}), is_model("dit_loader", {"dit_loader"})
        (True, True, False)
        >>> is_model("self.model_state_dict", ())
        False
    """
    last = name.rpartition(".")[2].lower()
    if _STATES.search(last) is not None and last not in asked:
        return False
    return _OTHERS.search(last) is None and (_NAMED.search(last) is not None or last in asked)


def called_as(written: str, modules: Collection[str]) -> str:
    """Return what something that is made where it is given would be called: by what makes it.

    Args:
        written: The expression, as it stands in the source.
        modules: The classes of modules of the same source.

    Example:
        >>> [called_as(text, {"Gpt"}) for text in ("Gpt(8).cuda()", "BertModel.from_pretrained(path)")]
        ['model', 'model']
        >>> [called_as(text, ()) for text in ("make_net(config)", "torch.optim.AdamW(params)", "load()")]
        ['model', 'optimizer', '']
    """
    made = _MAKES.match(written)
    if made is None:
        return ""
    last = made[1].rpartition(".")[2]
    if makes_optimizers(made[1]):
        return "optimizer"
    return "model" if last in modules or is_model(_NEXT_WORD.sub("_", last), ()) else ""


@functools.lru_cache(maxsize=8)
def modules_of(index: Index) -> frozenset[str]:
    """Return the classes of a source that derive from a module, by their names."""
    classes = (cst.ensure_type(node, cst.ClassDef) for node in index.by_kind.get(cst.ClassDef, ()))
    return frozenset(
        each.name.value
        for each in classes
        if any(text_of(base.value).endswith(_MODULES) for base in each.bases)
    )


@functools.lru_cache(maxsize=64)
def modules_in(tree: ast.Module) -> frozenset[str]:
    """Return what :func:`modules_of` does, of a source that the standard library has parsed."""
    classes = (node for node in walked(tree) if isinstance(node, ast.ClassDef))
    return frozenset(
        each.name for each in classes if any(ast.unparse(b).endswith(_MODULES) for b in each.bases)
    )


@functools.lru_cache(maxsize=8)
def asked_as_models(index: Index, *, or_called: bool = True) -> frozenset[str]:
    """Return the last parts of the names that a source uses as models, in small letters.

    ``or_called``: also of those that it calls, which only what ``prepare`` is given needs to be.
    """
    calls = [cst.ensure_type(node, cst.Call).func for node in index.by_kind.get(cst.Call, ())]
    asked = [f.value for f in calls if isinstance(f, cst.Attribute) and f.attr.value in ASKS_A_MODEL]
    nodes = (*index.by_kind.get(cst.FunctionDef, ()), *index.by_kind.get(cst.ClassDef, ()))
    made = [node.name.value for node in nodes if isinstance(node, (cst.FunctionDef, cst.ClassDef))]
    called = _names(map(_last, asked), map(_last, calls) if or_called else (), made)
    own = _made_as_modules(index) if or_called else frozenset()
    return (called | own) - made_as_others(index)


def _made_as_modules(index: Index) -> frozenset[str]:
    """Return the last parts of names that are given what a module's class of the source makes."""
    modules = modules_of(index)
    assigns = (cst.ensure_type(node, cst.Assign) for node in index.by_kind.get(cst.Assign, ()) if modules)
    return frozenset(
        _last(name).lower()
        for assign in assigns
        for target in assign.targets
        for name, value in _pairs(target.target, assign.value)
        if _maker(value) in modules and _last(name)
    )


def _maker(value: cst.BaseExpression) -> str:
    """Return what is called first: ``Net`` of ``Net(8).to(device)``."""
    while isinstance(value, cst.Call):
        if not isinstance(value.func, cst.Attribute):
            return text_of(value.func)
        value = value.func.value
    return ""


@functools.lru_cache(maxsize=64)
def asked_in(tree: ast.Module, *, or_called: bool = True) -> frozenset[str]:
    """Return what :func:`asked_as_models` does, of a source that the standard library has parsed."""
    nodes = list(walked(tree))
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    asked = [func.value for func in calls if isinstance(func, ast.Attribute) and func.attr in ASKS_A_MODEL]
    made = [node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    called = _names(map(_last_of, asked), map(_last_of, calls) if or_called else (), made)
    own = _made_as_modules_in(tree) if or_called else frozenset()
    return (called | own) - made_as_others_in(tree)


def _made_as_modules_in(tree: ast.Module) -> frozenset[str]:
    """Return what :func:`_made_as_modules` does, of a source that the standard library has parsed."""
    modules = modules_in(tree)
    assigns = (node for node in ast.walk(tree) if isinstance(node, ast.Assign) and modules)
    made = (
        (target, assign.value)
        for assign in assigns
        for target in assign.targets
        if re.match(r"\w+\(", ast.unparse(assign.value)) is not None
    )
    found = (_last_of(each) for each, value in made if ast.unparse(value).partition("(")[0] in modules)
    return frozenset(name.lower() for name in found if name)


@functools.lru_cache(maxsize=8)
def made_as_others(index: Index) -> frozenset[str]:
    """Return the last parts of names that are given a tokenizer, a loader or the like, in small letters."""
    found: set[str] = set()
    for node in index.by_kind.get(cst.Assign, ()):
        assign = cst.ensure_type(node, cst.Assign)
        for target in assign.targets:
            for name, value in _pairs(target.target, assign.value):
                if isinstance(value, cst.Call) and _MADE.search(text_of(value.func)):
                    found.add(_last(name).lower())
    return frozenset(found)


def _pairs(
    target: cst.BaseExpression, value: cst.BaseExpression
) -> list[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Return names with what each is given: ``model, tok = make(), AutoTokenizer.from_pretrained(path)``."""
    if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple):
        both = zip(target.elements, value.elements, strict=False)
        return [(name.value, given.value) for name, given in both]
    return [(target, value)]


@functools.lru_cache(maxsize=64)
def made_as_others_in(tree: ast.Module) -> frozenset[str]:
    """Return what :func:`made_as_others` does, of a source that the standard library has parsed."""
    found: set[str] = set()
    for node in (each for each in ast.walk(tree) if isinstance(each, ast.Assign)):
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for name, value in pairs:
                if isinstance(value, ast.Call) and _MADE.search(ast.unparse(value.func)):
                    found.add(_last_of(name).lower())
    return frozenset(found)


def _names(asked: Iterable[str], called: Iterable[str], made: Iterable[str]) -> frozenset[str]:
    # What is defined here is called as a function: `train(...)` says nothing of a loader of that name.
    called = {name for name in set(called) - set(made) if _FUNCTION.search(name.lower()) is None}
    return frozenset(name.lower() for name in called.union(asked) if name)


def _last(node: cst.BaseExpression) -> str:
    name = node.attr if isinstance(node, cst.Attribute) else node
    return name.value if isinstance(name, cst.Name) else ""


def _last_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
