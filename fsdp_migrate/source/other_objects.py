"""Where it matters that parameters in a block are other objects than those outside of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.kept_of_contexts import kept_of, put_without_writing
from fsdp_migrate.source.looked_up import held_from_outside, is_of_numbers, looked_up, one_from_outside
from fsdp_migrate.source.python.nodes import text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fsdp_migrate.source.python.text import Source


_OTHERS = (
    "the parameters in summon_full_params are other objects than those outside of it, which FSDP1's were "
    "under use_orig_params: look them up by their names, of named_parameters(), in what was made outside."
)
_NUMBERED = (
    "the parameters in summon_full_params are new objects each time, which FSDP1's were not under "
    "use_orig_params: what id() gives of one is not what it was outside, and comes again in the next context "
    "for another. Take their names for it, of named_parameters()."
)
_SHARDED = (
    "these parameters were taken outside of summon_full_params and stay sharded in it, where FSDP1's showed "
    "the whole under use_orig_params: take model.named_parameters() inside of it."
)
_ONE = (
    "this parameter was taken outside of summon_full_params and stays sharded in it, where FSDP1's showed "
    "the whole under use_orig_params: take it inside, by its name, of the model."
)
_KEPT = (
    "these parameters were taken in summon_full_params and are not the model's outside of it, where FSDP1's "
    "stayed the model's under use_orig_params: nothing is trained, clipped or averaged by them. Take them "
    "outside of the context: FSDP2's have their own names and shapes there too."
)
_LOST = (
    "FSDP1 lost this when summon_full_params ended, without an error: it kept what is written into a "
    "parameter, p.copy_(x), and not what is put in its place. fsdp_migrate.runtime.summon_full_params keeps "
    "it, so that the model goes on with other values than FSDP1's run. If that is not meant, pass "
    "writeback=False."
)


def other_objects(
    source: Source, block: cst.CSTNode, model: str, bodies: Sequence[cst.CSTNode], *, is_kept: bool
) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield the places, and what is said of each.

    Args:
        source: The source.
        block: What runs where parameters are other objects than they are outside of it.
        model: What the model is called there.
        bodies: The block, and the bodies of the functions that it calls.
        is_kept: Whether what is written into the parameters is kept behind the block.
    """
    for body in bodies:
        for node in looked_up(source, body):
            yield node, _NUMBERED if is_of_numbers(source, node, body) else _OTHERS
        yield from ((node, _SHARDED) for node in held_from_outside(source, body))
        yield from ((node, _LOST) for node in put_without_writing(source, body) if is_kept)
    for body in _given_what_it_makes(source, block, model) - {*bodies}:
        asked = (each for each in looked_up(source, body, block) if is_of_numbers(source, each, body))
        yield from ((node, _NUMBERED) for node in asked)
    yield from ((node, _ONE) for node in one_from_outside(source, block, model))
    yield from ((node, _KEPT) for node in kept_of(source, block, model))


def _given_what_it_makes(source: Source, body: cst.CSTNode, model: str) -> set[cst.CSTNode]:
    """Return functions that a block gives what it makes of the model, ``count(entries_of(model))``."""
    found: set[cst.CSTNode] = set()
    for call in walk_for(body, cst.Call):
        made = (arg.value for arg in call.args if isinstance(arg.value, cst.Call))
        if any(text_of(arg.value) == model for each in made for arg in each.args):
            found.update(function.body for function in source.models.guards.functions(call.func))
    return found
