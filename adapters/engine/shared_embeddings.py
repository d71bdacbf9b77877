"""Units of the policy that hold what Accelerate's FSDP2 gives a unit of its own, by the classes' names."""

from __future__ import annotations

import re

from fsdp_migrate.adapters.engine.base import Block, Draft, plain_values, written_key
from fsdp_migrate.adapters.engine.claims import ACCELERATE
from fsdp_migrate.adapters.engine.shared_keys import class_names


_SHARED_EMBEDDINGS = re.compile(
    r"(?:(?:M|UM|Long)?T5|SwitchTransformers|Pop2Piano)Block\Z"
    r"|(?:(?:M|PL)?Bart|Marian|(?:BigBird)?PegasusX?|Blenderbot(?:Small)?|LED|Mvp|M2M100|NllbMoe|(?:XLM)?ProphetNet)"
    r"(?:En|De)coderLayer\Z"
)
"""Layers of models whose encoder and decoder hold the embeddings too."""
_OF_BOTH = re.compile(
    r"(?:[\w.-]+/)?(?:(?:flan-|long-?|m|um|by)?t5|(?:distil|m|pl)?bart|bigbird-pegasus|pegasus|opus-mt|m2m100|nllb|led"
    r"|blenderbot|(?:xlm-)?prophetnet)(?![a-zA-Z])(?![\w.-]*encoder)[\w.-]*",
    re.IGNORECASE,
)
"""What checkpoints of such models are called on the hub."""
_NAMES_MODEL = ("model_name_or_path", "pretrained_model_name_or_path", "model_name", "model_id", "base_model")
_SHARED_BIAS = re.compile(
    r"(?:Bert|(?:XLM)?Roberta|DebertaV2|Albert|MPNet|BigBird|Longformer)Layer(?:Group)?\Z"
)
"""Layers of models of which a language model's head holds the bias of its decoder too."""
_CLASSIFIES = re.compile(
    r"\b\w+For(?:(?:Sequence|Token)Classification|QuestionAnswering|MultipleChoice|NextSentencePrediction)\b"
)
_OF_LANGUAGE = re.compile(r"\w+For(?:MaskedLM|CausalLM|PreTraining|LanguageModeling)\b|LMHead")


_HOLDS_EMBEDDINGS = re.compile(
    r"(?!\w*(?:Patch|Rotary|Sinusoidal|Position(?:al)?|Word|Token|Time(?:step)?)Embeddings\Z)[A-Z]\w+Embeddings\Z"
)
"""Parts of transformers' models that hold the input embeddings, and are not these themselves."""
_INNER_MODEL = re.compile(
    r"(?!\w*(?:Vision|Visual|Image|Video|Audio|Speech|Acoustic|Codec|Wav|Hubert|Detection|ControlNet|Tokenizer|[23]D))"
    r"(?!\w*(?:Head|Heads|Pre[Tt]rained|Reward|Value|Critic|Condition|Prior)Model\Z)"
    r"[A-Z][A-Za-z]+\w*Model\Z|(?:OPT|Whisper)Decoder\Z"
)
"""Models of transformers without their head. A tower beside the language model holds no embeddings of its."""


_IN_BOTH = "the encoder and the decoder of such a model hold its embeddings too"
_BIAS_OF_HEAD = (
    "only of a masked or causal language model (`BertForMaskedLM`), not of a classifier: its head holds its "
    "decoder's bias too"
)
_DECODER = "the decoder and the last norm"
EMBEDDINGS_STAY = (
    "Before the model is prepared, or the Trainer trains, write `model.get_input_embeddings = "
    "model.get_output_embeddings = lambda: None`: both stay in the root, as under FSDP1. Afterwards (of the "
    "Trainer in a callback's `on_train_begin`) write `del model.get_input_embeddings, "
    "model.get_output_embeddings`, for what calls these in training or saving."
)


def classifies(text: str) -> bool:
    """Tell whether a source makes classifiers of transformers, and no language models.

    Example:
        >>> [classifies(f"{name}.from_pretrained(p)") for name in ("BertForTokenClassification", "BertModel")]
        [True, False]
        >>> classifies("BertForMaskedLM(c); BertForTokenClassification(c)")
        False
    """
    return _CLASSIFIES.search(text) is not None and _OF_LANGUAGE.search(text) is None


def is_inner_model(name: str) -> bool:
    """Tell whether a class is called as models of transformers without their head, which hold embeddings.

    Example:
        >>> [is_inner_model(name) for name in ("LlamaModel", "SiglipVisionModel", "GPT2LMHeadModel")]
        [True, False, False]
    """
    return _INNER_MODEL.match(name) is not None


def _holds_embeddings(name: str, block: Block) -> bool:
    if _HOLDS_EMBEDDINGS.match(name):
        return True
    of_project = block.settings.embeds(name)
    return is_inner_model(name) if of_project is None else of_project


def _shared_here(block: Block) -> str:
    """Return what model of an encoder and a decoder is trained, as the file or the project around says."""
    beside = plain_values(block.owner)
    names = (str(beside.get(key)) for key in _NAMES_MODEL)
    return next((f"`{name}`" for name in names if _OF_BOTH.fullmatch(name)), "") or block.settings.shares()


def say_shared_embeddings(block: Block, draft: Draft) -> None:
    """Say of embeddings, or a bias, that two modules hold that Accelerate's FSDP2 splits these."""
    key = written_key(block.node, "transformer_layer_cls_to_wrap") if block.node is not None else None
    value = plain_values(block.node).get(key or "") if block.node is not None else None
    kinds = [(_SHARED_EMBEDDINGS, _IN_BOTH, "these"), (_SHARED_BIAS, _BIAS_OF_HEAD, _DECODER)]
    for layers, holds, unit in kinds[:1] if block.settings.classifies() else kinds:
        shared = [name for name in class_names(block.settled(value)) if layers.match(name)]
        if key is not None and shared:
            text = (
                f"{','.join(shared)}: {holds}. Accelerate {ACCELERATE['embeddings_apart'].versions} gives "
                f"{unit} a unit of their own, and the first forward stops: `shared with a parameter already "
                "managed by another FSDP group`."
            )
            draft.say("FM343", block.at(key), text, EMBEDDINGS_STAY)
    if not class_names(block.settled(value)) and (trained := _shared_here(block)):
        text = (
            f"{trained}: {_IN_BOTH}. Where that is trained here, Accelerate "
            f"{ACCELERATE['embeddings_apart'].versions} gives these a unit of their own, whatever the policy "
            "says, and the first forward stops: `shared with a parameter already managed by another FSDP "
            "group`."
        )
        draft.say("FM343", block.name, text, EMBEDDINGS_STAY)
    holders = [name for name in class_names(block.settled(value)) if _holds_embeddings(name, block)]
    if key is not None and holders:
        text = (
            f"{','.join(holders)}: it holds the model's embeddings where `get_input_embeddings()` gives a "
            f"part of it. Accelerate {ACCELERATE['carves_units'].versions} makes it a unit, then gives that "
            "part one of its own, and stops: `Invariant encountered: value was None when it should not be`."
        )
        draft.say(
            "FM343", block.at(key), text, f"Leave this class out; values are the same. Or: {EMBEDDINGS_STAY}"
        )
