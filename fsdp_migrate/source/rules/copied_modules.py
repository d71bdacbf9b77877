"""Heads and embeddings that PEFT copies to train them: of a tied model Accelerate's FSDP2 stops at them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.adapters.engine.claims import ACCELERATE
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import named_arguments, walk_for
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "copied-modules"
CODES = ("FM343",)

_MEANT = (
    "PEFT trains copies of `{}`. Where the model's head is tied to its embeddings "
    "(`config.tie_word_embeddings`), what was copied stays tied, which FSDP1 takes. Accelerate's FSDP2 stops "
    f"at it where rank 0 loads for all, Accelerate {ACCELERATE['embeddings_apart'].versions} in any case: "
    "`attribute 'weight' already exists`, `is shared with a parameter already managed`. Untie the model "
    "before PEFT gets it: `model.config.tie_word_embeddings = False; head = model.get_output_embeddings(); "
    "head.weight = torch.nn.Parameter(head.weight.detach().clone())`. It then trains as before."
)
_KEYWORD = "modules_to_save"
_MAY_BE_TIED = frozenset(
    {"embed_in", "embed_out", "embed_tokens", "lm_head", "output_layer", "shared", "word_embeddings", "wte"}
)


def find(source: Source) -> Iterator[Found]:
    """Find these in settings of PEFT, in projects that Accelerate or Hugging Face's Trainer shards."""
    for call in source.calls if source.links.copies_modules else ():
        given = named_arguments(call).get(_KEYWORD)
        if given is not None and (copied := sorted(_words(source, given) & _MAY_BE_TIED)):
            yield Found("FM343", given, _MEANT.format("`, `".join(copied)), "commented")


def _words(source: Source, given: cst.BaseExpression) -> set[str]:
    """Return the modules that are named, here or where the name was given its value."""
    if isinstance(given, (cst.Attribute, cst.Name)):
        given = last_value(source.index, given) or given
    texts = (each.evaluated_value for each in walk_for(given, cst.SimpleString))
    return {text.rpartition(".")[2] for text in texts if isinstance(text, str)}
