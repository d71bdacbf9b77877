"""What a project imports, where its config alone does not tell: found from the config's folder upwards."""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.conversion.one_look import kept_in_a_look
from fsdp_migrate.adapters.engine.settings import OwnHook
from fsdp_migrate.adapters.engine.shared_embeddings import classifies
from fsdp_migrate.newer_syntax import parse_any
from fsdp_migrate.plain_assigns import BLOCKS


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


ROOT = (".git", "pyproject.toml", "setup.py", "setup.cfg", "requirements.txt")
# Many a project that was downloaded has no more than these, and so may a folder that is none.
_MAYBE_ROOT = (
    "LICENSE*",
    "README*",
    ".gitignore",
    "environment.y*ml",
    "requirements*",
    "uv.lock",
    "Pipfile",
    "Makefile",
)
_LIGHTNING = re.compile(r"^[ \t]*(?:import|from)\s+(pytorch_lightning|lightning)\b", re.MULTILINE)
# These load models of transformers themselves too.
_TRANSFORMERS = re.compile(
    r"^[ \t]*(?:import|from)\s+"
    r"(?:transformers|trl|peft|unsloth|axolotl|swift|llamafactory|sentence_transformers)\b",
    re.MULTILINE,
)
TRAINER = re.compile(
    r"\bTrainingArguments\b|^[ \t]*from\s+transformers[\w.]*\s+import\s+(?:\([^)]{0,2000}|[^\n]*)Trainer\b"
    r"|\btransformers\.\w*Trainer\b"
    r"|^[ \t]*(?:import|from)\s+(?:trl|unsloth|axolotl|swift|llamafactory|sentence_transformers|setfit)\b",
    re.MULTILINE,
)
_ACCELERATE = re.compile(r"^[ \t]*(?:import|from)\s+accelerate\b", re.MULTILINE)
# In one source: `weight_decay` alone may be one number for all.
_BY_NAME = (re.compile(r"\bnamed_parameters\b"), re.compile(r"weight_decay|no_?decay", re.IGNORECASE))
_SPECTRAL = re.compile(r"^[^#\n]*(?<!def )\bspectral_norm\(", re.MULTILINE)
_TORCHS_SPECTRAL = re.compile(r"\butils\b[\w.]*(?:[ \t]+import\b[^\n]*|\.)\bspectral_norm\b")
# Of these alone a model has weights in 4 bits of bitsandbytes, beside those that load transformers'.
_LOADS_BITS = re.compile(r"^[ \t]*(?:import|from)\s+(?:bitsandbytes|diffusers|torchtune)\b", re.MULTILINE)
_BITS = re.compile(r"^[ \t]*(?:import|from)\s+(?:bitsandbytes|peft|transformers|trl|unsloth)\b", re.MULTILINE)
_LOADERS = (_TRANSFORMERS, _LOADS_BITS)
# `bnb_4bit_quant_storage` is for FSDP alone.
_PACKS = re.compile(
    r"^[^#\n]*(?:\bload_in_4bit['\"]?[ ]*[=:][ ]*True\b|\bbnb_4bit_quant_storage[ ]*=(?!=)|\bLinear4bit\()",
    re.MULTILINE,
)
_HOOK = re.compile(r"^[ \t]+def configure_model\(", re.MULTILINE)
_FUNCTIONS = (ast.AsyncFunctionDef, ast.FunctionDef, ast.Lambda)
_SHARDS = re.compile(r"\b(?:fully_shard|prepare_fully_shard|parallelize_module)\(")
_NO_MODULES = ("nn.Module", "Callback", "object", "ABC", "Strategy")
_MOST_NEAR = 100
_MOST_LEVELS = 6
_MOST_FILES = 400
_MOST_FOLDERS = 2000
_MOST_GROUPS = 4
_MOST_AROUND = 3
_SOURCES = ("src", "source", "scripts", "lib")
_MOST_ABOVE = 40
_MOST_BYTES = 1 << 20
_FABRICS = frozenset({"lightning.fabric", "lightning_fabric"})
_IMPORTED = re.compile(r"^[ \t]*(?:import|from)[ \t]+(\w+)", re.MULTILINE)
_TARGET = re.compile(r"^_target_:[ \t]*[\"']?([\w.]+)\.\w+", re.MULTILINE)
_DEFAULTS = re.compile(r"^defaults:[ \t]*(\[[^\]]{0,2000}\]|(?:\n[ \t]*-[^\n]*)+)", re.MULTILINE)


def lightning_package(config: Path) -> str | None:
    """Return the Lightning that a project's sources import most often, or None where nothing tells.

    Example:
        >>> lightning_package(Path("/absent/fsdp.yaml")) is None
        True
    """
    root = project_root(config)
    return _lightning_of(config.resolve().parent) if root is None else _lightning_in(root)


@kept_in_a_look
def _lightning_in(root: Path) -> str | None:
    return _most_imported(sources_below(root))


@kept_in_a_look
def _lightning_of(folder: Path) -> str | None:
    """Return it of what may be a project without a mark of one, the nearest folder first."""
    found = _most_imported(sources_below(folder))
    above = (_most_imported(group) for group in _groups_above(folder) if found is None)
    return found or next((each for each in above if each is not None), None)


def _groups_above(folder: Path) -> Iterator[Iterator[Path]]:
    """Yield the sources of each of the folders above one that has no mark of a project.

    Only what lies in them, in folders called as sources are, and what these import: others may hold anything.
    """
    for above in folder.parents[:_MOST_AROUND]:
        if above.parent != above:
            beside = sorted(above.glob("*.py"))[:_MOST_FILES]
            names = {name for path in beside for name in _IMPORTED.findall(text_if_there(path))}
            inner = (path for name in sorted({*_SOURCES, *names}) for path in sources_below(above / name))
            yield (path for each in (beside, inner) for path in each)


def _most_imported(sources: Iterable[Path]) -> str | None:
    counts: Counter[str] = Counter()
    for path in sources:
        text = text_if_there(path)
        counts.update(_LIGHTNING.findall(text) if "lightning" in text else ())
    if not counts:
        return None
    [(package, _)] = counts.most_common(1)
    return "lightning.pytorch" if package == "lightning" else package


def lacks_transformers(folder: Path) -> bool:
    """Tell whether the project around a folder has Accelerate prepare models, and none of transformers.

    Example:
        >>> lacks_transformers(Path("/absent"))
        False
    """
    return _prepares_without(lambda text: _TRANSFORMERS.search(text) is not None, folder)


def packs_none(folder: Path) -> bool:
    """Tell whether the project around a folder has Accelerate prepare models, and can load none in 4 bits.

    Example:
        >>> packs_none(Path("/absent"))
        False
    """
    return _prepares_without(lambda text: any(each.search(text) for each in _LOADERS), folder)


def decays_alike(folder: Path) -> bool:
    """Tell whether the project around a folder has Accelerate prepare models, and decays none by name.

    HF's Trainer does, and so may a source that names parameters and speaks of weight decay.

    Example:
        >>> decays_alike(Path("/absent"))
        False
    """
    return _prepares_without(_may_decay_by_name, folder)


def _may_decay_by_name(text: str) -> bool:
    return TRAINER.search(text) is not None or all(each.search(text) for each in _BY_NAME)


def _prepares_without(has_other: Callable[[str], bool], folder: Path) -> bool:
    """Tell whether sources of the project around a folder import Accelerate, and none has the other thing."""
    root = project_root(folder / "config")
    if root is None:
        return False
    prepares = False
    for count, path in enumerate(sources_below(root), 1):
        text = path.read_text("utf-8", "replace") if path.stat().st_size <= _MOST_BYTES else ""
        if count == _MOST_FILES or has_other(text):
            return False
        prepares = prepares or _ACCELERATE.search(text) is not None
    return prepares


def fabric_of_group(config: Path, depth: int = 4) -> str | None:
    """Return Fabric's package where the files that a file of a Hydra group begins with make a Fabric.

    Example:
        >>> fabric_of_group(Path("/absent.yaml")) is None
        True
    """
    try:
        text = config.read_text(encoding="utf-8") if config.stat().st_size <= _MOST_BYTES else ""
    except (OSError, UnicodeDecodeError):
        return None
    made = _TARGET.search(text)
    if made is not None:
        return made[1] if made[1] in _FABRICS else None
    given = _DEFAULTS.search(text)
    names = re.findall(r"[\w./-]*\w", given[1]) if given and depth else []
    parents = (config.parent / f"{name.removesuffix('.yaml')}.yaml" for name in reversed(names))
    return next((found for each in parents if (found := fabric_of_group(each, depth - 1))), None)


def is_hydra_group(config: Path) -> bool:
    """Tell whether a file in a folder above names the folder of a config in its ``defaults``, as Hydra's do.

    Example:
        >>> is_hydra_group(Path("/absent/trainer/fsdp.yaml"))
        False
    """
    path = config.resolve()
    for folder in path.parents[1:_MOST_GROUPS]:
        group = path.parent.relative_to(folder).as_posix()
        chosen = re.compile(rf"(?<![\w/.-])/?{re.escape(group)}(?:@[\w.]+)?[\"']?\s*:")
        above = sorted(each for each in folder.glob("*.y*ml") if each.is_file())[:_MOST_ABOVE]
        texts = (each.read_text("utf-8", "replace") for each in above if each.stat().st_size <= _MOST_BYTES)
        if any(chosen.search(given[1]) for text in texts for given in _DEFAULTS.finditer(text)):
            return True
    return False


def project_root(path: Path) -> Path | None:
    """Return the nearest folder above a file that looks like a project's root."""
    folders = path.resolve().parents[:_MOST_LEVELS]
    told = next((folder for folder in folders if any((folder / name).exists() for name in ROOT)), None)
    near = folders[: _MOST_AROUND + 1]
    return told or next((folder for folder in near if _may_be_root(folder)), None)


@kept_in_a_look
def _may_be_root(folder: Path) -> bool:
    """Tell whether a folder that holds sources has what roots of projects mostly have."""
    has_mark = any(True for pattern in _MAYBE_ROOT for _ in folder.glob(pattern))
    return has_mark and any(True for pattern in ("*.py", "*/*.py", "*/*/*.py") for _ in folder.glob(pattern))


def sources_around(folder: Path) -> Iterable[Path]:
    """Return the Python files of the project around a folder, or those near where it has no mark of one.

    Example:
        >>> list(sources_around(Path("/absent")))
        []
    """
    root = project_root(folder / "config")
    if root is not None:
        return sources_below(root)
    # What is around a folder without a mark of a project may be anybody's.
    near = [path for pattern in ("*.py", "*/*.py") for path in sorted(folder.glob(pattern))][:_MOST_NEAR]
    above = (list(group) for group in _groups_above(folder.resolve()))
    return [*near, *next((group for group in above if group), ())]


@kept_in_a_look
def only_classifies(folder: Path) -> bool:
    """Tell whether all models of transformers that the project around a folder names by it are classifiers.

    Example:
        >>> only_classifies(Path("/absent"))
        False
    """
    return classifies("\n".join(text for _, text in texts_around(folder)))


@kept_in_a_look
def texts_around(folder: Path) -> tuple[tuple[Path, str], ...]:
    """Return the Python files of the project around a folder with their texts.

    Example:
        >>> texts_around(Path("/absent"))
        ()
    """
    return tuple((path, text_if_there(path)) for path in sources_around(folder))


@kept_in_a_look
def find_spectral_norm(folder: Path) -> str:
    """Return where the project around a folder makes a layer of torch's ``spectral_norm``, or nothing.

    Example:
        >>> find_spectral_norm(Path("/absent"))
        ''
    """
    for path, text in texts_around(folder):
        made = _SPECTRAL.search(text) if _TORCHS_SPECTRAL.search(text) else None
        if made is not None:
            return f"{path.name}:{text.count(chr(10), 0, made.end()) + 1}"
    return ""


@kept_in_a_look
def find_packed(folder: Path) -> str:
    """Return where the project around a folder loads weights in 4 bits of bitsandbytes, or nothing.

    An option of its scripts, ``load_in_4bit=args.load_in_4bit``, says nothing.

    Example:
        >>> find_packed(Path("/absent"))
        ''
    """
    for path, text in texts_around(folder):
        asked = _PACKS.search(text) if _BITS.search(text) else None
        if asked is not None:
            return f"{path.name}:{text.count(chr(10), 0, asked.end()) + 1}"
    return ""


@kept_in_a_look
def find_own_hook(folder: Path, module: str = "") -> OwnHook | None:
    """Return the ``configure_model`` that a LightningModule of the project around a folder has, or None.

    ``module``: the class that a config names, by its path: its own, or that of a class it derives from. Of
    one that is not in the project, and where none is named, the first is returned, with how many more are.

    Example:
        >>> find_own_hook(Path("/absent"), "tasks.Regression") is None
        True
    """
    texts = texts_around(folder)
    if module and (classes := _classes_named(texts, module)):
        return _hook_along(texts, classes, set())
    found = [
        hook
        for path, text in texts
        if _HOOK.search(text) and _LIGHTNING.search(text)
        for owner in classes_in(text)
        if (hook := _hook_of(path, owner)) is not None
    ]
    return replace(found[0], others=len(found) - 1) if found else None


@kept_in_a_look
def classes_in(text: str) -> tuple[ast.ClassDef, ...]:
    r"""Return the classes of a source, outer ones first; of one that cannot be read, none.

    Example:
        >>> [each.name for each in classes_in("class A:\n    class B: pass\nclass C: pass")]
        ['A', 'C', 'B']
    """
    try:
        left: list[ast.AST] = [parse_any(text)]
    except (SyntaxError, ValueError, RecursionError):
        return ()
    # Expressions, most of the nodes, hold no class.
    for each in left:
        left += [inner for field in BLOCKS for inner in getattr(each, field, ())]
    return tuple(each for each in left if isinstance(each, ast.ClassDef))


def _classes_named(texts: Iterable[tuple[Path, str]], module: str) -> list[tuple[Path, ast.ClassDef]]:
    """Return the classes of a name, those first whose files are called as the path to it says."""
    *above, name = module.split(".")
    word = re.compile(rf"^[ \t]*class {re.escape(name)}\b", re.MULTILINE)
    found = [(path, each) for path, text in texts if word.search(text) for each in classes_in(text)]
    found = [(path, each) for path, each in found if each.name == name]
    return sorted(found, key=lambda each: -len({*above} & {*each[0].parts[:-1], each[0].stem}))


def _hook_along(
    texts: tuple[tuple[Path, str], ...], classes: list[tuple[Path, ast.ClassDef]], seen: set[str]
) -> OwnHook | None:
    """Return the hook of the first of some classes, or of the nearest that it derives from."""
    for path, owner in classes[:1]:
        if _method(owner) is not None:
            return _hook_of(path, owner)
        for base in map(ast.unparse, owner.bases):
            if base not in seen:
                found = _hook_along(texts, _classes_named(texts, base), seen | {base})
                if found is not None:
                    return found
    return None


def _method(owner: ast.ClassDef) -> ast.FunctionDef | None:
    made = (each for each in owner.body if isinstance(each, ast.FunctionDef))
    return next((each for each in made if each.name == "configure_model"), None)


def _hook_of(path: Path, owner: ast.ClassDef) -> OwnHook | None:
    """Return the hook of a class that may be a LightningModule, and does not shard there itself."""
    hook = _method(owner)
    bases = any(not ast.unparse(base).endswith(_NO_MODULES) for base in owner.bases)
    if not bases or hook is None or _SHARDS.search(ast.unparse(hook)):
        return None
    return OwnHook(owner.name, f"{path.name}:{hook.lineno}", tuple(_early_returns(hook)))


def _early_returns(hook: ast.FunctionDef) -> list[int]:
    """Return the lines at which a function may end above its last statement."""
    inner = [each for each in ast.walk(hook) if isinstance(each, _FUNCTIONS) and each is not hook]
    others = {below for each in inner for below in ast.walk(each)}
    returns = (each for each in ast.walk(hook) if isinstance(each, ast.Return) and each not in others)
    return sorted(each.lineno for each in returns if each is not hook.body[-1])


def sources_below(root: Path) -> Iterator[Path]:
    """Yield the project's Python files, so many at most."""
    return files_below(root, lambda path: path.suffix == ".py")


def files_below(root: Path, is_wanted: Callable[[Path], bool]) -> Iterator[Path]:
    """Yield files of a project, so many at most; links, hidden folders and venvs are left out.

    A config may lie anywhere, in a home folder too: so many folders at most are looked into.
    """
    count = 0
    for folder, folders, names in islice(os.walk(root), _MOST_FOLDERS):
        folders[:] = sorted(n for n in folders if n[0] not in "._" and not _is_closed(Path(folder) / n))
        for name in sorted(names):
            path = Path(folder) / name
            if is_wanted(path) and path.is_file() and not path.is_symlink():
                yield path
                count += 1
                if count == _MOST_FILES:
                    return


def _is_closed(folder: Path) -> bool:
    """Tell whether a folder is a venv, or one that may not be entered."""
    try:
        return (folder / "pyvenv.cfg").exists()
    except OSError:
        return True


def text_if_there(path: Path) -> str:
    """Return the text of a source, or nothing of one that is not there, cannot be read or is very long.

    Example:
        >>> text_if_there(Path("/absent.py"))
        ''
    """
    try:
        return path.read_text("utf-8", "replace") if path.stat().st_size <= _MOST_BYTES else ""
    except OSError:
        return ""
