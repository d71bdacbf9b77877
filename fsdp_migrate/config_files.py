"""Config files: FSDP1 settings read from them, and files with FSDP2 settings made of them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fsdp_migrate import words
from fsdp_migrate.adapters.conversion.command import convert_command, convert_script
from fsdp_migrate.adapters.conversion.dockerfiles import dockerfile_becomes, is_dockerfile
from fsdp_migrate.adapters.conversion.frameworks import ADAPTERS
from fsdp_migrate.adapters.conversion.hydra_strategies import adds_to_another, said_of_others
from fsdp_migrate.adapters.conversion.key_readers import left_to_reader
from fsdp_migrate.adapters.conversion.manifests import commands_become
from fsdp_migrate.adapters.conversion.named_configs import say_named
from fsdp_migrate.adapters.conversion.notebooks import convert_notebook
from fsdp_migrate.adapters.conversion.one_look import one_look
from fsdp_migrate.adapters.conversion.overrides import told_of_overrides, with_overrides
from fsdp_migrate.adapters.conversion.project_imports import (
    fabric_of_group,
    is_hydra_group,
    lightning_package,
)
from fsdp_migrate.adapters.conversion.shell import is_script, number_of
from fsdp_migrate.adapters.conversion.text import TextConversion, convert_text, find_blocks, read_documents
from fsdp_migrate.adapters.conversion.unknown import FILE, argument_paths
from fsdp_migrate.adapters.document.nodes import plain
from fsdp_migrate.adapters.engine.torch_code import torch_call
from fsdp_migrate.arguments import NOTHING, PATH, check_arguments
from fsdp_migrate.config import FSDP1Config
from fsdp_migrate.config_texts import (
    NOTEBOOK,
    blocks_in,
    documents_of,
    found_from,
    is_file,
    is_json_text,
    only_one_called,
    read_text,
    refuse_choices,
    settings_in,
)
from fsdp_migrate.errors import (
    ConfigError,
    NothingToConvertError,
    OutputError,
    OutputExistsError,
    UnsupportedFeatureError,
)
from fsdp_migrate.findings import raise_on_findings
from fsdp_migrate.text_files import keep_backup, newest_backup, unified_diff, write_whole


if TYPE_CHECKING:
    import os

    from fsdp_migrate.adapters.document.nodes import Node
    from fsdp_migrate.adapters.engine.base import Block
    from fsdp_migrate.adapters.engine.settings import Settings


COMMAND = "--command"
_COPY = "which is not read: give a command in it with `--command`, and settings in it as a file of their own"
_OTHER_KINDS = {
    ".md": f"Markdown, {_COPY}",
    ".rst": f"reStructuredText, {_COPY}",
    ".py": "a Python source, which `fsdp-migrate rewrite` reads",
}
_OTHER_WORDS = frozenset({"torch", "composer", "lightning"})
"""Whose FSDP2 settings have other words than FSDP1's, so that they are not read as those."""
_RECOMPUTING = frozenset({"accelerate", "hf", "axolotl"})


@dataclass(frozen=True, slots=True)
class ConfigConversion:
    """What became of a config file. ``output`` is what was written, or None; ``backup`` the source's copy."""

    path: str
    conversion: TextConversion
    output: str | None = None
    backup: str | None = None

    @property
    def is_command(self) -> bool:
        """Whether it is a shell command rather than a file."""
        return self.path == COMMAND

    @property
    def is_changed(self) -> bool:
        """Whether the file with FSDP2 settings is another one."""
        return self.conversion.is_changed

    @property
    def is_fsdp2(self) -> bool:
        """Whether the file held FSDP2 settings alone."""
        return all(block.state == "fsdp2" for block in self.conversion.blocks)

    @property
    def has_nothing(self) -> bool:
        """Whether there is nothing to convert: it is FSDP2 already, or FSDP is off."""
        return all(block.state in {"fsdp2", "unused"} for block in self.conversion.blocks)

    @property
    def has_version(self) -> bool:
        """Whether a version of FSDP stood there, which became 2."""
        codes = {(finding.code, finding.subject.rpartition(".")[2]) for finding in self.conversion.findings}
        return not codes.isdisjoint({("FM341", "version"), ("FM341", "fsdp_version")})

    @property
    def state(self) -> Literal["changes", "elsewhere", "fsdp2", "unused"]:
        """What becomes of it: ``elsewhere`` where its settings stand in files or variables that it names."""
        if self.is_changed:
            return "changes"
        if self.is_fsdp2:
            return "fsdp2"
        return "unused" if self.has_nothing else "elsewhere"

    @property
    def left_to(self) -> str:
        """Say which source reads it itself, so that it stays; empty where none does."""
        stay = {each.path for each in self.conversion.blocks if each.is_left}
        return next((each.message for each in self.conversion.findings if each.subject in stay), "")

    def diff(self) -> str:
        """Return the change as a unified diff, empty where nothing changes."""
        return unified_diff(self.conversion.source, self.conversion.text, self.path)

    def as_dict(self) -> dict[str, Any]:
        """Return the conversion as it stands in JSON."""
        return {
            "path": self.path,
            "output": self.output,
            "backup": self.backup,
            "is_changed": self.is_changed,
            "blocks": [block.as_dict() for block in self.conversion.blocks],
            "findings": [finding.as_dict() for finding in self.conversion.findings],
            "diff": self.diff(),
            "text": self.conversion.text,
        }


def convert_config_file(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str] | None = None,
    *,
    in_place: bool = False,
    overwrite: bool = False,
    strict: bool = False,
    framework: str = "auto",
    key: str | None = None,
    world_size: int | None = None,
    nodes: int | None = None,
) -> ConfigConversion:
    """Turn the FSDP1 settings in a config file into FSDP2's; every other character stays as it is.

    Without ``dst`` and ``in_place`` nothing is written. An output is written whole or not at all.

    Args:
        src: YAML or JSON of a framework that is known, or of FSDP's own arguments, a shell script or a
            notebook.
        dst: Where to write the outcome, also where nothing had to be changed.
        in_place: Replace ``src``; the file as it was is kept beside it, as ``src.fsdp1``.
        overwrite: Replace ``dst`` if it exists.
        strict: Treat findings that something would change as an error.
        framework: Whose config it is, if it cannot be told: ``accelerate``, ``torch``, ...
        key: The dotted path of the mapping to convert, where it is not found by itself.
        world_size: The number of ranks, where the file does not say it and hybrid sharding needs it.
        nodes: The number of nodes, likewise.

    Raises:
        ConfigError: The file cannot be read, or nothing in it configures FSDP.
        FindingsError: Something in it cannot be migrated, or, under ``strict``, would change.
        OutputExistsError: ``dst`` exists.
        OutputError: The output cannot be written.
        UnsupportedFeatureError: The file's layout does not let it be edited.

    Example:
        >>> report = convert_config_file("examples/configs/accelerate.yaml")
        >>> report.conversion.blocks[0].framework, report.is_changed, report.output
        ('accelerate', True, None)
    """
    if dst is not None and in_place:
        msg = "`dst` and `in_place` are both given. Give one of them."
        raise ConfigError(msg, field="in_place")
    check_arguments(PATH, src=src)
    check_arguments(PATH | NOTHING, dst=dst)
    path = Path(src)
    _refuse_other_kinds(path)
    with one_look():
        conversion = _converted(path, framework, key, world_size, nodes)
    raise_on_findings(conversion.findings, strict=strict)
    if dst is not None:
        return _written(ConfigConversion(str(path), conversion), Path(dst), overwrite=overwrite)
    if in_place and conversion.is_changed:
        return _replaced(ConfigConversion(str(path), conversion))
    return ConfigConversion(str(path), conversion)


def _converted(
    path: Path, framework: str, key: str | None, world_size: int | None, nodes: int | None
) -> TextConversion:
    """Return what becomes of a file. Nothing is written."""
    text = read_text(path)
    names_lightning = _names_lightning(text)
    package = (fabric_of_group(path) or lightning_package(path)) if names_lightning else None
    settings = settings_in(path.parent, world_size, nodes, package)
    settings = replace(settings, is_hydra=names_lightning and is_hydra_group(path), file_name=path.name)
    try:
        if path.suffix == NOTEBOOK:
            refuse_choices(framework, key)
            conversion = convert_notebook(text, settings)
        elif is_script(path.suffix or path.name, text):
            conversion = convert_script(text, settings=settings)
        else:
            is_json = is_json_text(path, text)
            documents = read_documents(text.removeprefix("\ufeff"), is_json=is_json)
            blocks_in(path, documents, framework, key, converts=True)
            conversion = convert_text(
                text, framework=framework, key=key, is_json=is_json, settings=settings, documents=documents
            )
    except NothingToConvertError as error:
        raise _named(_why_nothing(error, path, text, settings), path) from error
    except (ConfigError, UnsupportedFeatureError) as error:
        raise _named(error, path) from error
    return _with_commands(_with_others(with_overrides(conversion), path), path)


def _not_read(path: Path) -> NothingToConvertError:
    """Return the error that says what of a file that is not changed becomes what."""
    if not is_dockerfile(path):
        text = f"{str(path)!r} is TOML, which is not read. Expected YAML, JSON, a shell script or a notebook."
        return NothingToConvertError(text, names_fsdp=True)
    said = dockerfile_becomes(read_text(path), settings_in(path.parent, None, None))
    nothing = "No setting of FSDP1 was found in it. Expected YAML, JSON, a shell script or a notebook."
    what = f"{str(path)!r} is a Dockerfile, which is not changed. {said or nothing}"
    return NothingToConvertError(what, names_fsdp=bool(said))


def _refuse_other_kinds(path: Path) -> None:
    """Raise ConfigError where a file is of a kind that holds no config as a whole."""
    kind = path.suffix.lower()
    what = _OTHER_KINDS.get(kind)
    if (is_dockerfile(path) or kind == ".toml") and path.is_file():
        raise _not_read(path)
    if what is not None and path.is_file():
        msg = f"{str(path)!r} is {what}. Expected YAML, JSON, a shell script or a notebook."
        raise ConfigError(msg)


def convert_command_line(
    command: str,
    *,
    strict: bool = False,
    world_size: int | None = None,
    nodes: int | None = None,
    script: str = "",
) -> ConfigConversion:
    """Turn the FSDP1 flags in a shell command into FSDP2's. Nothing is run.

    ``script``: the text that it stands in, which may say what numbers its variables hold.

    Raises:
        ConfigError: It cannot be read, or has no FSDP flags.
        FindingsError: Something in it cannot be migrated, or, under ``strict``, would change.

    Example:
        >>> convert_command_line("accelerate launch --use_fsdp --fsdp_use_orig_params 1 x.py").is_changed
        True
    """
    settings = replace(settings_in(Path(), world_size, nodes), number=partial(number_of, text=script))
    conversion = convert_command(command, settings=settings)
    raise_on_findings(conversion.findings, strict=strict)
    return ConfigConversion(COMMAND, conversion)


def config_as_torch(path: str | os.PathLike[str], *, framework: str = "auto", key: str | None = None) -> str:
    """Return Python that shards a model as a config file of any framework says, in plain torch.

    Raises:
        ConfigError: As :func:`read_config_file`.

    Example:
        >>> print(config_as_torch("examples/configs/accelerate.yaml").splitlines()[0])
        from fsdp_migrate import prepare_fully_shard
    """
    config = read_config_file(path, framework=framework, key=key)
    return torch_call({name: getattr(config, name) for name in config.model_fields_set})


def read_config_file(
    path: str | os.PathLike[str], *, framework: str = "auto", key: str | None = None
) -> FSDP1Config:
    """Read FSDP1 arguments from a config file of any known framework, or a mapping of them, as words.

    Of a shell script they are the flags of its launch line, or stand in a config that it writes.

    Raises:
        ConfigError: There is no such file, it cannot be read, it holds no FSDP settings or several, or an
            argument means nothing.
    """
    file = Path(path)
    text = read_text(file)
    try:
        documents = documents_of(file, text)
        blocks = blocks_in(file, documents, framework, key)
        if not blocks and len(documents) == 1 and key is None:
            return _own_arguments(documents[0])
        return _arguments_of(_only(blocks), file)
    except ConfigError as error:
        raise _named(error, file) from error


def recomputes_units(path: str | os.PathLike[str]) -> bool:
    """Tell whether a config asks for activation checkpointing of the layers that its policy wraps.

    That is what Accelerate, the HF Trainer and Axolotl take ``activation_checkpointing`` for.

    Raises:
        ConfigError: As :func:`read_config_file`.

    Example:
        >>> recomputes_units("examples/configs/accelerate.yaml")
        False
    """
    file = Path(path)
    text = read_text(file)
    blocks = blocks_in(file, documents_of(file, text))
    given = [plain(block.node) for block in blocks if block.node and block.framework in _RECOMPUTING]
    flags = [each.get(f"{prefix}activation_checkpointing") for each in given for prefix in ("", "fsdp_")]
    return any(words.read_bool(flag, "activation_checkpointing") for flag in flags if flag is not None)


def where_fsdp1_is(path: Path) -> str:
    """Say where the settings of FSDP1 are that a file held before it was converted."""
    kept = newest_backup(path) or newest_backup(path.resolve())
    if kept is not None:
        return f"Give the file as it was, which lies beside it: `--config {shlex.quote(str(kept))}`."
    return (
        "Give the file as it was: `config --write` keeps it beside the new one as NAME.fsdp1, and your "
        "version control may have it."
    )


def _arguments_of(block: Block, path: Path) -> FSDP1Config:
    if block.is_fsdp2 and block.framework in _OTHER_WORDS:
        msg = f"`{block.name}` holds settings of FSDP2 already; expected FSDP1's. {where_fsdp1_is(path)}"
        raise ConfigError(msg)
    return FSDP1Config(**ADAPTERS[block.framework].parse(block))


def _own_arguments(document: Node) -> FSDP1Config:
    """Return the arguments in a file of no framework: of the whole file, or of the one mapping with some."""
    paths = list(argument_paths([document]))
    if len(paths) != 1 or not paths[0]:
        return _plain_arguments(plain(document))
    block = _only(find_blocks(document, "torch", paths[0]))
    try:
        return _plain_arguments(plain(block.node) if block.node is not None else {})
    except ConfigError as error:
        msg = (
            f"{error} This is below `{paths[0]}`, which code of its own reads. Write FSDP1's arguments in a "
            "file of their own, by the names that FullyShardedDataParallel has for them, such as "
            "`sharding_strategy: FULL_SHARD`."
        )
        raise ConfigError(msg, field=error.field) from error


def _plain_arguments(data: Any) -> FSDP1Config:
    if not isinstance(data, dict):
        msg = (
            f"It holds a {type(data).__name__}; expected a mapping of the keyword arguments of "
            "FullyShardedDataParallel, such as `sharding_strategy: FULL_SHARD`."
        )
        raise ConfigError(msg)
    return FSDP1Config(**data)


def _only(blocks: list[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    paths = ", ".join(f"`{block.name}`" for block in blocks) or "none"
    msg = f"It should hold one block of FSDP settings; found {paths}. Name one with its `key`."
    raise ConfigError(msg, field="key")


def _named(error: ConfigError | UnsupportedFeatureError, path: Path) -> ConfigError | UnsupportedFeatureError:
    """Return the error with the file's name before what it says."""
    text = f"{str(path)!r}: {_with_name(str(error), path)}"
    if isinstance(error, NothingToConvertError):
        return error.saying(text)
    if isinstance(error, ConfigError):
        return ConfigError(text, field=error.field)
    return UnsupportedFeatureError(text, feature=error.feature)


def _why_nothing(
    error: NothingToConvertError, path: Path, text: str, settings: Settings
) -> NothingToConvertError:
    """Return the error with what a manifest's commands become, or a script names, or whose its keys are."""
    if path.suffix == NOTEBOOK:
        return error
    if is_script(path.suffix or path.name, text):
        said = _from_here(say_named(text, path.parent, str(error)), path.parent)
        return error.saying(f"{_from_here(str(error), path.parent)} {said}".strip())
    if (others := adds_to_another(path, text)) is not None:
        return others
    error = error.saying(_from_here(str(error), path.parent))
    if said := told_of_overrides(text):
        return error.saying(f"{error} {said}")
    if not error.names_fsdp:
        return error
    said = commands_become(text, is_json=is_json_text(path, text), settings=settings)
    return left_to_reader(error.saying(f"{error} {said}".strip()), path, documents_of(path, text))


def _with_others(conversion: TextConversion, path: Path) -> TextConversion:
    """Return a conversion with what other files add to the strategies of Lightning's in it."""
    strategies = [block.path for block in conversion.blocks if block.framework == "lightning"]
    said = said_of_others(path, conversion.source, strategies) if strategies else []
    return replace(conversion, findings=(*conversion.findings, *said))


def _names_lightning(text: str) -> bool:
    """Tell whether it may matter which Lightning a project uses: only a word stands for the strategy."""
    return re.search(r"strategy['\"]?\s*:\s*['\"]?fsdp", text) is not None


def _with_name(text: str, path: Path) -> str:
    """Return a text with the file's name in the commands that it shows."""
    return text.replace(f"config {FILE} ", f"config {shlex.quote(str(path))} ")


def _with_commands(conversion: TextConversion, path: Path) -> TextConversion:
    findings = (
        replace(finding, hint=_from_here(_with_name(finding.hint, path), path.parent))
        if finding.hint
        else finding
        for finding in conversion.findings
    )
    return replace(conversion, findings=tuple(findings))


def _from_here(text: str, folder: Path) -> str:
    """Name a file that a script names as it is found from here, where it lies beside the script or above."""

    def found(match: re.Match[str]) -> str:
        is_here = is_file(Path(match[1]))
        path = None if is_here else found_from(folder, match[1]) or only_one_called(folder, match[1])
        return match[0] if path is None else f"fsdp-migrate config {shlex.quote(str(path))}"

    return re.sub(r"fsdp-migrate config ([\w./-]+\.(?:json|ya?ml))\b", found, text)


def _written(report: ConfigConversion, dst: Path, *, overwrite: bool) -> ConfigConversion:
    try:
        is_there = dst.exists()
    except OSError as error:
        msg = f"{str(dst)!r:.200} cannot be the name of a file: {error.strerror or error}."
        raise OutputError(msg, path=dst) from error
    if is_there and dst.samefile(report.path):
        msg = f"{str(dst)!r} is the source itself, which is not written to. Ask for it with `--write`."
        raise OutputExistsError(msg, path=dst)
    if is_there and (dst.is_dir() or not overwrite):
        what = "is a folder" if dst.is_dir() else "exists already. Give another name, or `--overwrite`"
        msg = f"{str(dst)!r} {what}."
        raise OutputExistsError(msg, path=dst)
    _replace(dst, report.conversion.text, like=Path(report.path))
    return ConfigConversion(report.path, report.conversion, str(dst))


def _replaced(report: ConfigConversion) -> ConfigConversion:
    # A link stays a link: what it points to is replaced.
    path = Path(report.path).resolve()
    try:
        backup = keep_backup(path)
    except OSError as error:
        msg = (
            f"The backup of {str(path)!r} cannot be written: {error.strerror}. {report.path!r} is as it was."
        )
        raise OutputError(msg, path=path) from error
    try:
        _replace(path, report.conversion.text, like=path)
    except BaseException:
        if backup.is_new:
            backup.path.unlink()
        raise
    return ConfigConversion(report.path, report.conversion, report.path, str(backup.path))


def _replace(path: Path, text: str, *, like: Path) -> None:
    try:
        write_whole(path, text.encode("utf-8"), like=like)
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL, or that is no text
        reason = getattr(error, "strerror", None) or error
        msg = f"{str(path)!r} cannot be written: {reason}. Nothing is left of it."
        raise OutputError(msg, path=path) from error
