"""Texts of config files, and what is known of a file that another one names."""

from __future__ import annotations

import os
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.conversion.command import convert_script, settings_in_script
from fsdp_migrate.adapters.conversion.key_readers import refuse_others, refuse_unread
from fsdp_migrate.adapters.conversion.launched_with import installed_transformers, words_given
from fsdp_migrate.adapters.conversion.notebooks import texts_of_notebook
from fsdp_migrate.adapters.conversion.own_flags import defines_fsdp
from fsdp_migrate.adapters.conversion.project_embeddings import find_shared, holds_embeddings
from fsdp_migrate.adapters.conversion.project_imports import (
    decays_alike,
    find_own_hook,
    find_packed,
    find_spectral_norm,
    lacks_transformers,
    only_classifies,
    packs_none,
    project_root,
)
from fsdp_migrate.adapters.conversion.project_ties import defines_class, find_holder, find_tie
from fsdp_migrate.adapters.conversion.shell import is_script
from fsdp_migrate.adapters.conversion.strategy_readers import reader_of_strategy
from fsdp_migrate.adapters.conversion.text import convert_text, find_blocks, looks_like_json, read_documents
from fsdp_migrate.adapters.conversion.written_configs import configs_written
from fsdp_migrate.adapters.engine.rank0_loading import ASKS_FOR_PACKED
from fsdp_migrate.adapters.engine.settings import Settings
from fsdp_migrate.errors import ConfigError, UnsupportedFeatureError
from fsdp_migrate.text_files import BACKUP


if TYPE_CHECKING:
    from fsdp_migrate.adapters.document.nodes import Node
    from fsdp_migrate.adapters.engine.base import Block


NOTEBOOK = ".ipynb"
MAX_BYTES = 16 << 20
_FARTHEST = 4
_MOST_FOLDERS = 2000
TOLD_BY_FILE = frozenset({"accelerate", "hf"})
"""Whose configs and commands may name another file with the settings."""


def refuse_choices(framework: str, key: str | None) -> None:
    """Raise ConfigError where a framework or a key is given for a whole notebook."""
    if framework != "auto" or key is not None:
        msg = "Each cell of a notebook tells whose settings it holds: give neither `--from` nor `--key`."
        raise ConfigError(msg, field="key" if framework == "auto" else "framework")


def read_text(path: Path) -> str:
    """Read a text file, with its byte order mark and its line ends as they are.

    Raises:
        ConfigError: It is not there, no file, too large, or no text in UTF-8.
    """
    data = _read_bytes(path)
    if b"\0" in data[:4096] and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        msg = f"{str(path)!r} is no text: it has zero bytes."
        raise ConfigError(msg)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        msg = (
            f"{str(path)!r} is no text in UTF-8: byte {data[error.start]:#04x} in line {line}. Save it as "
            "UTF-8."
        )
        raise ConfigError(msg) from error


def _read_bytes(path: Path) -> bytes:
    try:
        if not path.is_file():
            msg = f"There is no file {str(path)!r}{': it is a folder' if path.is_dir() else ''}."
            raise ConfigError(msg)
        if path.stat().st_size > MAX_BYTES:
            msg = f"{str(path)!r} has {path.stat().st_size} bytes; no config is larger than {MAX_BYTES}."
            raise ConfigError(msg)
        return path.read_bytes()
    except OSError as error:
        msg = f"{str(path)!r:.200} cannot be read: {error.strerror or error}."
        raise ConfigError(msg) from error


def is_file(path: Path) -> bool:
    """Tell whether there is a file; a name that none can have is no error."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def found_from(folder: Path, name: str) -> Path | None:
    """Return where a file that a script names is found from here: beside the script, or in a folder above.

    A script in `jobs` may start in the folder that holds `jobs`.
    """
    if Path(name).is_absolute():
        return Path(name) if is_file(Path(name)) else None
    if is_file(folder / name):
        return folder / name
    above = (each / name for each in folder.absolute().parents[:_FARTHEST])
    found = next((path for path in above if is_file(path)), None)
    return found if found is None or folder.is_absolute() else Path(os.path.relpath(found))


def is_json_text(path: Path, text: str) -> bool:
    """Tell whether a text is JSON: by the file's name, and else by its looks."""
    if path.suffix.lower() == ".json":
        return True
    return path.suffix.lower() not in {".yaml", ".yml"} and looks_like_json(text.removeprefix("\ufeff"))


def documents_of(path: Path, text: str) -> list[Node]:
    """Return what a file holds; of a shell script, what its flags stand for and the configs in it."""
    name = Path(path.name.partition(BACKUP)[0])  # a script's copy is one as well
    if name.suffix == NOTEBOOK:
        found = texts_of_notebook(text, settings_in(path.parent, None, None))
        return [each for inner, is_json in found for each in _documents(inner, is_json)]
    if not is_script(name.suffix or name.name, text):
        return read_documents(text.removeprefix("\ufeff"), is_json=is_json_text(path, text))
    given = settings_in(path.parent, None, None)
    settings = settings_in_script(text, given)
    documents = [document for each in settings for document in read_documents(each, is_json=True)]
    for each in configs_written(text):
        documents += _documents(each)
    if not documents:
        told = ", ".join(block.path for block in convert_script(text, settings=given).blocks)
        msg = (
            f"No command in it has FSDP settings as flags; {told} has them elsewhere, or is FSDP2's. "
            f"`fsdp-migrate config {shlex.quote(str(path))}` says where: give that file."
        )
        raise ConfigError(msg)
    return documents


def _documents(text: str, is_json: bool | None = None) -> list[Node]:
    return read_documents(text, is_json=looks_like_json(text) if is_json is None else is_json)


def blocks_in(
    path: Path,
    documents: list[Node],
    framework: str = "auto",
    key: str | None = None,
    *,
    converts: bool = False,
) -> list[Block]:
    """Return what configures FSDP in a file's documents.

    ``converts``: it is to be changed for who reads it, and not only read.

    Raises:
        ConfigError: Nothing stands at ``key``, or the project around does not show whose the file is.
    """
    blocks = [block for document in documents for block in find_blocks(document, framework, key)]
    if framework == "auto" and key is None:
        refuse_others(blocks, path)
        if converts:
            refuse_unread(blocks, path)
    return blocks


def settings_in(
    folder: Path, world_size: int | None, nodes: int | None, package: str | None = None
) -> Settings:
    """Return what a text in a folder does not say: it may name other files there."""
    return Settings(
        world_size,
        nodes,
        package,
        is_converted=partial(holds_fsdp2, folder),
        refusal=partial(refusal_of, folder),
        lacks_fsdp=partial(lacks_fsdp, folder),
        is_own=partial(defines_fsdp, folder),
        lacks_transformers=partial(lacks_transformers, folder),
        decays_alike=partial(decays_alike, folder),
        ties=partial(find_tie, folder),
        holds=partial(find_holder, folder),
        defines=partial(defines_class, folder),
        embeds=partial(holds_embeddings, folder),
        shares=partial(find_shared, folder),
        spectral=partial(find_spectral_norm, folder),
        packs=partial(find_packed, folder),
        packs_none=partial(packs_none, folder),
        hook=partial(find_own_hook, folder),
        classifies=partial(only_classifies, folder),
        names_packed=partial(asks_for_packed, folder),
        reader=partial(reader_of_strategy, folder),
        words_given=partial(words_given, folder),
        transformers=partial(installed_transformers, folder),
    )


def _named_text(folder: Path, name: str) -> tuple[str, bool] | None:
    """Return the text of a file that another one in a folder names, and whether it is JSON."""
    for file in (found_from(folder, name) or folder / name, Path(name)):
        try:
            text = read_text(file).removeprefix("\ufeff")
            is_json = is_json_text(file, text)
            read_documents(text, is_json=is_json)
        except ConfigError:
            continue
        return text, is_json
    return None


def holds_fsdp2(folder: Path, name: str) -> bool:
    """Tell whether FSDP2's settings alone stand in a file that another one in a folder names."""
    text, is_json = _named_text(folder, name) or ("", False)
    documents = read_documents(text, is_json=is_json) if text else []
    return any(_are_fsdp2(documents, framework) for framework in ("auto", *sorted(TOLD_BY_FILE)))


def lacks_fsdp(folder: Path, name: str) -> bool:
    """Tell whether a file that another one in a folder names is there, and has no word of FSDP."""
    text, _ = _named_text(folder, name) or ("", False)
    return bool(text) and "fsdp" not in text.lower()


def asks_for_packed(folder: Path, name: str) -> bool:
    """Tell whether a file that a command in a folder names asks for a model's weights in 4 bits."""
    text, _ = _named_text(folder, name) or ("", False)
    return ASKS_FOR_PACKED.search(text) is not None


def only_one_called(folder: Path, name: str) -> Path | None:
    """Return the one file of a project that has a name; None where there are several, or none.

    In an image, such as a manifest's, files may stand in other folders than in the project.
    """
    root = project_root(folder.absolute() / "x")
    wanted, found = Path(name).parts, []
    if root is None or not wanted or Path(name).is_absolute() or ".." in wanted:
        return None
    for count, (inner, folders, names) in enumerate(os.walk(root)):
        folders[:] = [each for each in folders if each[0] not in "._"]
        if wanted[-1] in names and (*Path(inner).parts, wanted[-1])[-len(wanted) :] == wanted:
            found.append(Path(inner) / wanted[-1])
        if count == _MOST_FOLDERS:
            return None
    return Path(os.path.relpath(found[0])) if len(found) == 1 else None


def refusal_of(folder: Path, name: str) -> str | None:
    """Say why a file that another one in a folder names is refused itself, or None where it is not."""
    text, is_json = _named_text(folder, name) or ("", False)
    for framework in ("auto", *sorted(TOLD_BY_FILE)) if text else ():
        try:
            done = convert_text(text, framework=framework, is_json=is_json)
        except (ConfigError, UnsupportedFeatureError):
            continue
        # How many nodes and ranks there are a command may say (FM352).
        told = (f for f in done.findings if f.fidelity == "refused" and f.code != "FM352")
        return next((f"`{f.subject}`: {f.message} {f.hint or ''}".rstrip() for f in told), None)
    return None


def _are_fsdp2(documents: list[Node], framework: str) -> bool:
    try:
        blocks = [block for document in documents for block in find_blocks(document, framework)]
    except ConfigError:
        return False
    return bool(blocks) and all(block.is_fsdp2 for block in blocks)
