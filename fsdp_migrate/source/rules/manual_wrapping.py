"""``enable_wrap`` and ``wrap`` shard parts of a model by hand, which prepare_fully_shard does by a policy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.made_by_others import maker_of, may_be_made_by_others
from fsdp_migrate.source.python.nodes import given_by_name, word_of
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    import libcst as cst

    from fsdp_migrate.source.python.text import Source


NAME = "manual-wrapping"
CODES = ("FM303",)

_MEANT = (
    "wrapping by hand: build the model without it, and select the same modules by "
    "prepare_fully_shard(model, {'auto_wrap_policy': ...})."
)
_OF_OTHERS = (
    "this makes FSDP1's model, by another package, which stays so: call prepare_fully_shard(model, {{...}}) "
    "of fsdp_migrate in place of {}, with what it is given. What asks that model below for its state, its "
    "norm or its parameters is to be changed then too: `rewrite` sees it if FSDP1's own class stands here."
)
_RAYS = (
    "this makes FSDP1's model, by Ray, which stays so: give it parallel_strategy=None, with which it only "
    "chooses the worker's device and moves the model there, and call "
    "prepare_fully_shard(model, {...}) of fsdp_migrate with what it returns."
)
_COMPOSERS = (
    "this makes FSDP1's model, by Composer, which stays so: in place of it call "
    "prepare_fully_shard(child, FSDPConfig(...)) of fsdp_migrate for each child of the ComposerModel, with "
    "the settings that the Trainer is given. `state.fsdp_config` is another object beside the callback "
    "FSDP2Migration, and is not taken. Nor is `precision=`: without it that is amp_fp16 on a GPU; for "
    "amp_bf16 give FSDP1's arguments in a dict, with mixed_precision=MixedPrecision(torch.bfloat16, ...)."
)
_OF_TNT = (
    "torchtnt makes FSDP1's model by this, which stays so: give the unit, or prepare_module, NOOPStrategy() "
    "and a module on its device that prepare_fully_shard(module, {...}) has sharded, with what stands here."
)
_TNTS = re.compile(r"^torchtnt\.(?:\w+\.)*FSDPStrategy$")
_IMPORTS_TNT = re.compile(r"^[ \t]*(?:from|import) torchtnt\b", re.MULTILINE)
_IMPORTS_LIGHTNING = re.compile(
    r"^[ \t]*(?:from|import) (?:lightning|lightning_fabric|pytorch_lightning)\b", re.MULTILINE
)


def find(source: Source) -> Iterator[Found]:
    """Find every use of ``enable_wrap`` and ``wrap``, and what other packages make."""
    for node, name in source.references.items():
        if name in catalog.MANUAL_WRAPPING:
            yield Found("FM303", node, _MEANT, "commented", covers=(node,))
    is_any = may_be_made_by_others(source.links, source.code)
    for call in source.calls if is_any else ():
        if made := maker_of(call, source.index.qualified(call.func)):
            said = {"composer": _COMPOSERS, "ray": _RAYS}.get(made.partition(".")[0])
            yield Found("FM303", call, said or _OF_OTHERS.format(made), "commented")

    yield from (Found("FM303", node, _OF_TNT, "commented") for node in _of_tnt(source))


def _of_tnt(source: Source) -> Iterator[cst.CSTNode]:
    """Yield what asks torchtnt for FSDP1: its class, or the word in a file that uses no other strategies."""
    if not _IMPORTS_TNT.search(source.code) or "torchtnt" in source.links.own_packages:
        return
    has_words = _IMPORTS_LIGHTNING.search(source.code) is None
    for call in source.calls:
        told = given_by_name(call, "strategy")
        is_word = has_words and any(word_of(each) == "fsdp" for each in told)
        if is_word or any(map(_TNTS.match, source.index.qualified(call.func))):
            yield call
