"""``trainer.evaluate()`` of Hugging Face's Trainer where it has not trained, which its FSDP2 refuses.

https://github.com/huggingface/transformers/blob/main/src/transformers/trainer.py (``evaluation_loop``)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, short, text_of
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "untrained-evaluation"
CODES = ("FM449",)

_SAID = (
    "where this run has not trained before, the Trainer prepares its model here without an optimizer, which "
    "Accelerate's FSDP2 refuses; under FSDP1 it ran. Write above it, for such a run, "
    "`{0}.accelerator.prepare({0}.model, torch.optim.SGD({0}.model.parameters()))`, whose optimizer never "
    "steps, or evaluate without FSDP."
)
_EVALUATES = ("evaluate", "predict", "evaluation_loop")


def find(source: Source) -> Iterator[Found]:
    """Find the first of these calls for each Trainer of a function."""
    trainers, index = source.models.frameworks.trainers, source.index
    if not any(index.calls_of_method(name) for name in _EVALUATES) or not trainers.is_asked:
        return
    calls = [cst.ensure_type(each, cst.Call) for name in _EVALUATES for each in index.calls_of_method(name)]
    said: set[tuple[cst.CSTNode | None, str]] = set()
    for call in sorted(calls, key=lambda each: index.order[each]):
        trainer = cst.ensure_type(call.func, cst.Attribute).value
        made = trainers.made(trainer) if dotted(trainer) not in {None, "self", "super"} else None
        place = index.function(call), text_of(trainer)
        if made is not None and place not in said and not _may_have_trained(source, call, made):
            said.add(place)
            yield Found("FM449", call, _SAID.format(short(trainer, 40)), "commented")


def _may_have_trained(source: Source, call: cst.Call, made: cst.Call) -> bool:
    """Tell whether the Trainer has trained above a call in any run, or may have in another function."""
    index, trainers = source.index, source.models.frameworks.trainers
    above: list[cst.Call] = []
    for training in index.calls_of_method("train"):
        if trainers.made(cst.ensure_type(training.func, cst.Attribute).value) is not made:
            continue
        if index.function(training) is not index.function(call):
            return True
        if index.order[training] < index.order[call] and not index.excludes(training, call):
            above.append(training)
    # `if resume: trainer.train(...)`, `else: trainer.train()`
    is_either = any(index.excludes(one, other) for one in above for other in above)
    above += _taking(source, call, made)
    return is_either or any(_runs_before(source, each, call) for each in above)


def _taking(source: Source, call: cst.Call, made: cst.Call) -> Iterator[cst.Call]:
    """Yield the calls above another one that are given the Trainer, and may train by it: ``fit(trainer)``."""
    index, trainers = source.index, source.models.frameworks.trainers
    function = index.function(call)
    for other in source.calls:
        if index.order[other] >= index.order[call] or index.function(other) is not function:
            continue
        given = (arg.value for arg in other.args if isinstance(arg.value, (cst.Name, cst.Attribute)))
        if any(trainers.made(each) is made for each in given):
            yield other


def _runs_before(source: Source, above: cst.Call, call: cst.Call) -> bool:
    """Tell whether a call stands in no branch that does not lead to another one, below it."""
    around = set(source.index.ancestors(call))
    choices = (each for each in source.index.ancestors(above) if isinstance(each, (cst.If, cst.Else)))
    return all(each in around for each in choices)
