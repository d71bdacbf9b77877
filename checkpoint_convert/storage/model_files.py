"""The files of a Hugging Face model that are no weights: configuration, tokenizer, licence."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.arguments import PATH, check_arguments
from fsdp_migrate.checkpoint_convert.storage.opening import open_folder
from fsdp_migrate.errors import CheckpointNotFoundError


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert.storage.folders import Location


MODEL_CONFIG: Final = "config.json"
FULL_MODEL: Final = "pytorch_model_fsdp.bin"
"""The model in the full form of Accelerate: without it, nothing beside it is a checkpoint."""
_TEXTS: Final = re.compile(
    r"(?:[^/]*\.(?:json|jinja|md|merges|model|py|spm|tiktoken|txt|vocab|ya?ml)|(?:LICEN[CS]E|NOTICE|COPYING)[^/]*)",
    re.IGNORECASE,
)
_OF_A_RUN: Final = re.compile(r"(?:.*index\.json|trainer_state\.json|scheduler.*|optimizer.*|rng_state.*)")
_TOKENIZERS: Final = re.compile(r"tokenizer|vocab|merges|spiece|sentencepiece|tiktoken", re.IGNORECASE)


def is_text_of_model(name: str) -> bool:
    """Tell whether a file may be published with a model: text, and nothing that runs when loaded.

    Example:
        >>> [is_text_of_model(name) for name in ("config.json", "training_args.bin", "tokenizer.model")]
        [True, False, True]
    """
    return _TEXTS.fullmatch(name) is not None and _OF_A_RUN.fullmatch(name) is None


def is_tokenizer(name: str) -> bool:
    """Tell whether a file is of a tokenizer."""
    return _TOKENIZERS.search(name) is not None


def read_model_files(folder: Location) -> dict[str, bytes]:
    """Return the files of a model's folder that are no weights and no pickles, by name.

    Raises:
        CheckpointNotFoundError: There is no such folder, or no ``config.json`` in it.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = pathlib.Path(folder, "config.json").write_text("{}")
        ...     read_model_files(folder)
        {'config.json': b'{}'}
    """
    check_arguments(PATH, folder=folder)
    opened = open_folder(folder)
    try:
        sizes = opened.files(1)
        names = [name for name in sizes if is_text_of_model(name)]
        if MODEL_CONFIG not in names:
            msg = f"{opened.url!r} has no {MODEL_CONFIG}: it is no folder of a Hugging Face model."
            raise CheckpointNotFoundError(msg, path=opened.url)
        return {name: opened.read(name, 0, sizes[name]) for name in sorted(names)}
    finally:
        opened.close()
