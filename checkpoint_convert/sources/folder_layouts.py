"""The layouts that a folder can have, in the order in which they are looked for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.file_names import METADATA_FILE
from fsdp_migrate.checkpoint_convert.sources.framework_folders import (
    FRAMEWORK_FOLDERS,
    Component,
    find_components,
    framework_contents,
)
from fsdp_migrate.checkpoint_convert.sources.full_state import (
    find_indexes,
    find_pieces,
    indexed_contents,
    pieces_contents,
    safetensors_contents,
    saved_file_contents,
)
from fsdp_migrate.checkpoint_convert.sources.paired_files import PairedFiles, find_paired, paired_contents
from fsdp_migrate.checkpoint_convert.sources.per_rank import find_rank_files, rank_contents
from fsdp_migrate.errors import CheckpointFormatError
from fsdp_migrate.findings import named


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fsdp_migrate.checkpoint_convert.manifest.options import SourceOptions
    from fsdp_migrate.checkpoint_convert.sources.contents import Contents
    from fsdp_migrate.checkpoint_convert.sources.rank_files import RankFamily
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder

    Reader = Callable[["FolderFiles", SourceOptions], Contents]


_STATE_FILE: Final = re.compile(r"^[^/]+\.(?:pt|pth|bin|ckpt|th)$")
# What the HF Trainer and Accelerate write beside a model, and no model is called.
BESIDE_MODELS: Final = re.compile(
    r"(?:training_args|scheduler|scaler|rng_state|random_states|sampler)[_\d]*\.\w+"
)


@dataclass(frozen=True)
class FolderFiles:
    """The files of a folder, as layouts ask for them; no question is answered twice.

    Attributes:
        folder: Where they lie.
        files: Every file and its size.
        asked: The index that the user named; None if the folder was named.
    """

    folder: Folder
    files: Mapping[str, int]
    asked: str | None = None

    @cached_property
    def components(self) -> list[Component]:
        """What a framework's folder consists of."""
        return [] if self.asked else find_components(self.files)

    @property
    def components_title(self) -> str:
        """What such a folder is, for people: of full states, a file each, or another one; nothing if none."""
        files = [each for each in self.components if each.framework == "olmo" and each.name.endswith(".pt")]
        return "" if not self.components else IN_FILES if files == self.components else _APART

    @cached_property
    def holds_distributed(self) -> bool:
        """Whether a distributed checkpoint, or a part of one, lies in it or below it."""
        names = (name.rpartition("/")[2] for name in self.files)
        return any(name == METADATA_FILE or name.endswith(".distcp") for name in names)

    @cached_property
    def index(self) -> str | None:
        """The index of the files that hold a state together.

        Raises:
            CheckpointFormatError: There are several.
        """
        found = [self.asked] if self.asked else find_indexes(self.files)
        if len(found) > 1:
            msg = (
                f"{self.folder.url!r} holds {len(found)} indexes: {named(found)}. Name the one that you mean."
            )
            raise CheckpointFormatError(msg, path=self.folder.url)
        return found[0] if found else None

    @cached_property
    def families(self) -> list[RankFamily]:
        """The files of ranks."""
        return find_rank_files(self.folder, self.files)

    @cached_property
    def not_ranked(self) -> dict[str, int]:
        """The files that are not of ranks."""
        ranked = {name for family in self.families for name in family.files.values()}
        return {name: size for name, size in self.files.items() if name not in ranked}

    @cached_property
    def pieces(self) -> list[Mapping[str, int]]:
        """The numbered pieces of each state."""
        return list(find_pieces(self.folder.url, self.not_ranked).values())

    @cached_property
    def states(self) -> list[str]:
        """The files that can be a state of torch.save; those of ranks among them."""
        return [name for name in self.files if _STATE_FILE.search(name) and not BESIDE_MODELS.fullmatch(name)]

    @cached_property
    def paired(self) -> PairedFiles | None:
        """A model and an optimizer that fit, whatever their files are called."""
        # Pieces of one state are known by their names, and need not be read to be told apart.
        is_divided = any(len(names) > 1 for names in self.pieces)
        apart = [] if is_divided else [name for name in self.states if name in self.not_ranked]
        return find_paired(self.folder, apart, self.families, self.files)

    @cached_property
    def safetensors(self) -> dict[str, int]:
        """The files of safetensors in the folder itself."""
        is_one = (name.endswith(".safetensors") and "/" not in name for name in self.files)
        return {name: size for (name, size), found in zip(self.files.items(), is_one, strict=True) if found}


@dataclass(frozen=True)
class FolderLayout:
    """A layout that a folder can have.

    Attributes:
        title: What it is, for people.
        names: What :attr:`Manifest.layout` says of it.
        is_here: Whether a folder has it, if it has none of the earlier ones.
        read: Reads what it holds; None where nothing reads the folder as a whole.
    """

    title: str
    names: tuple[str, ...]
    is_here: Callable[[FolderFiles], bool]
    read: Reader | None


def _read_components(found: FolderFiles, options: SourceOptions) -> Contents:
    return framework_contents(found.folder, found.components, found.files, options)


def _read_index(found: FolderFiles, _: SourceOptions) -> Contents:
    return indexed_contents(found.folder, str(found.index), found.files)


def _read_paired(found: FolderFiles, options: SourceOptions) -> Contents:
    assert found.paired is not None
    return paired_contents(found.folder, found.paired, found.files, options)


def _is_in_files(paired: PairedFiles | None) -> bool:
    """Tell whether the optimizer is in one file too, and not in one of each rank."""
    return paired is not None and isinstance(paired.optimizer, str)


def _is_a_frameworks(found: FolderFiles) -> bool:
    """Tell whether names are a framework's: OLMo's of a model beside Accelerate's of an optimizer are not.

    A script calls them so, and what else it saves beside them, such as its step, is part of it.
    """
    roles = {each.role: each.framework for each in found.components}
    is_own = (roles.get("model"), roles.get("optimizer")) == ("olmo", "accelerate")
    return bool(found.components) and not (is_own and _is_in_files(found.paired))


def _read_pieces(found: FolderFiles, _: SourceOptions) -> Contents:
    return pieces_contents(found.folder, found.pieces[0])


def _read_ranks(found: FolderFiles, options: SourceOptions) -> Contents:
    return rank_contents(found.folder, found.families, found.files, options)


def _read_safetensors(found: FolderFiles, _: SourceOptions) -> Contents:
    return safetensors_contents(found.folder, found.safetensors)


def _read_file(found: FolderFiles, _: SourceOptions) -> Contents:
    name = found.states[0]
    return saved_file_contents(found.folder, name, found.files[name])


_APART: Final = "Model and optimizer apart, in one folder"
IN_FILES: Final = "Model and optimizer apart, in a file each"
"""Of full states, which a script reads as it wrote them."""
_SEVERAL: Final = "Full state in several files"
_SAFETENSORS: Final = "Full state in safetensors"

# The first that is here is the one. What is known by names stands before what has to be read to be known, and
# what holds more before what would take a part of it for the whole.
FOLDER_LAYOUTS: Final = (
    # Before distributed ones: Accelerate's folder is made of those.
    FolderLayout(_APART, FRAMEWORK_FOLDERS, _is_a_frameworks, _read_components),
    # Before files that could be states: one that lies beside a distributed checkpoint is not the checkpoint.
    FolderLayout("Distributed checkpoint (DCP)", ("dcp",), lambda found: found.holds_distributed, None),
    # Before pieces: an index says which files belong together, and names only guess it.
    FolderLayout(_SEVERAL, ("files",), lambda found: found.index is not None, _read_index),
    # Before pieces and ranks: an optimizer in the files of ranks beside a full model is one checkpoint.
    FolderLayout(IN_FILES, ("states",), lambda found: _is_in_files(found.paired), _read_paired),
    FolderLayout(_APART, ("states",), lambda found: found.paired is not None, _read_paired),
    # Before ranks: beside the pieces of a model, files of ranks hold random states and the like.
    FolderLayout(_SEVERAL, ("files",), lambda found: len(found.pieces) == 1, _read_pieces),
    FolderLayout(
        "One file per rank", ("ranks",), lambda found: bool(found.families and not found.pieces), _read_ranks
    ),
    # Before a file of torch.save: what lies beside safetensors is a trainer's own.
    FolderLayout(
        _SAFETENSORS,
        ("safetensors",),
        lambda found: len(found.safetensors) == 1 and not found.pieces,
        _read_safetensors,
    ),
    FolderLayout(
        "Full state in one file",
        ("file",),
        lambda found: len(found.states) == 1 and not found.pieces and not found.safetensors,
        _read_file,
    ),
)


def find_layout(found: FolderFiles) -> FolderLayout | None:
    """Return the layout of a folder, or None if it has none that is known.

    Raises:
        CheckpointError: What is there is a checkpoint, and incomplete or ambiguous.
    """
    return next((layout for layout in FOLDER_LAYOUTS if layout.is_here(found)), None)


def layout_title(name: str) -> str:
    """Return what a layout is, for people.

    Example:
        >>> layout_title("ranks")
        'One file per rank'
    """
    return next((layout.title for layout in FOLDER_LAYOUTS if name in layout.names), name)
