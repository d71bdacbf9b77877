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
    # A list of names and no pattern for all JSON: a training state has files of the user's beside it.
    r"(?:config|(?:generation|adapter)_config|[\w-]*tokenizer[\w-]*|special_tokens_map|added_tokens)\.json"
    r"|(?:[\w-]*vocab[\w-]*|emoji|normalizer|tekken|chat_template|(?:\w*_)?(?:pre)?processor_config)\.json"
    r"|[\w.-]*(?:vocab|merges|dict|bpe)[\w-]*\.(?:txt|bpe|codes)|[\w.-]+\.(?:tiktoken|spm|tokenizer)"
    r"|[\w.-]*(?:tokenizer|spiece|spm|bpe)[\w.-]*\.model(?:\.v\d+)?"
    r"|(?:additional_chat_templates/)?[^/]+\.jinja"
    # Code of a model that transformers has no class for: `trust_remote_code`.
    r"|(?:modeling|modular|configuration|tokenization|\w*processing|feature_extraction)_\w+\.py"
    r"|(?:README|USE_POLICY)\.md|(?:LICEN[CS]E|NOTICE|COPYING)[^/]*",
    re.IGNORECASE,
)
# Code of a model's folder that the code above may import; this one is DeepSpeed's, of a run.
_CODE: Final = re.compile(r"(?!zero_to_fp32)\w+\.py")
# As Accelerate and HF Trainer leave them beside the states of a model and an optimizer.
_OF_A_RUN: Final = re.compile(
    r"(?:custom_checkpoint|dl_state_dict|optimizer|random_states|rng_state|sampler|scaler|scheduler)(?:_\d+)*"
    r"\.(?:bin|pkl|pt|pth)|trainer_state\.json|training_args\.bin"
)
_TOKENIZERS: Final = re.compile(r"tokenizer|vocab|merges|spiece|sentencepiece|tiktoken", re.IGNORECASE)


def is_text_of_model(name: str) -> bool:
    """Tell whether a file is one that transformers reads beside the weights, a model card or a licence.

    Example:
        >>> [is_text_of_model(name) for name in ("config.json", "training_args.bin", "progress.json")]
        [True, False, False]
    """
    return _TEXTS.fullmatch(name) is not None


def is_state_of_run(name: str) -> bool:
    """Tell whether a file is the state of a run, which nobody needs who reads a model.

    Example:
        >>> [is_state_of_run(name) for name in ("random_states_0.pkl", "trainer_state.json", "notes.txt")]
        [True, True, False]
    """
    return _OF_A_RUN.fullmatch(name.rpartition("/")[2]) is not None


def is_tokenizer(name: str) -> bool:
    """Tell whether a file is of a tokenizer."""
    return _TOKENIZERS.search(name) is not None


def read_model_files(folder: Location) -> dict[str, bytes]:
    """Return the files of a model's folder that transformers reads beside the weights, by name.

    The model card and licences come too; weights, pickles and the files of a run do not.

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
        names = [name for name in sizes if is_text_of_model(name) or _CODE.fullmatch(name)]
        if MODEL_CONFIG not in names:
            msg = f"{opened.url!r} has no {MODEL_CONFIG}: it is no folder of a Hugging Face model."
            raise CheckpointNotFoundError(msg, path=opened.url)
        return {name: opened.read(name, 0, sizes[name]) for name in sorted(names)}
    finally:
        opened.close()
