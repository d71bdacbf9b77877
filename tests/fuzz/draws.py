"""What the fuzzer can draw: a model, FSDP1's arguments, an optimizer, and a way to train."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    import random
    from collections.abc import Iterator


CHOICES: dict[str, tuple[str, ...]] = {
    # the model
    "route": (
        "in turn",
        "twice over",
        "there and back",
        "one left out",
        "another order each step",
        "recomputed",
        "recomputed, reentrant",
        "as often as the rank says",
        "registered twice",
    ),
    "encoder": ("no", "yes"),
    "ends": ("in the root", "units"),
    "tie": ("none", "head and embedding", "in a block", "across blocks"),
    "frozen": (
        "nothing",
        "first block",
        "embedding",
        "norms",
        "biases",
        "all but the last block",
        "thawed later",
        "frozen later",
    ),
    "result": ("tensor", "dict", "tuple", "dataclass", "nested"),
    "loss": ("one", "of hidden states too", "of two heads"),
    # FSDP1's arguments
    "strategy": ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"),
    "precision": (
        "fp32",
        "bf16",
        "bf16, reduced in fp32",
        "reduced in bf16",
        "bf16 with buffers",
        "bf16, cast everywhere",
        "fp16",
        "bf16 grads kept",
        "bf16, root not cast",
    ),
    "policy": ("blocks", "blocks and linears", "linears", "by size", "none", "transformer", "custom"),
    "originals": ("yes", "no"),
    "prefetch": ("BACKWARD_PRE", "BACKWARD_POST", "none"),
    "forward_prefetch": ("no", "yes"),
    "limit": ("yes", "no"),
    "ignored": ("nothing", "a module", "parameters", "a block"),
    "offload": ("no", "yes"),
    # the optimizer
    "optimizer": (
        "SGD",
        "SGD, momentum",
        "SGD, nesterov and decay",
        "AdamW",
        "Adam",
        "Adam, amsgrad",
        "AdamW, for-loop",
        "AdamW, fused",
        "Adagrad",
        "RMSprop",
        "NAdam",
        "RAdam",
        "Adamax",
        "Adadelta",
        "ASGD",
    ),
    "built": ("after", "before"),
    "groups": ("one", "two"),
    # habits
    "microbatches": ("1", "2", "3"),
    "sync": ("each", "no_sync"),
    "clip": ("no", "2-norm", "inf-norm"),
    "between": (
        "nothing",
        "evaluation",
        "evaluation with gradients",
        "inference",
        "state dict",
        "an exception in forward",
        "an exception in backward",
        "a forward without backward",
        "evaluation first",
        "inference first",
        "whole parameters read",
    ),
    "backward": ("each", "of two forwards at once", "of two forwards in turn"),
    "zero": ("none", "zeros"),
    "autocast": ("no", "bf16"),
    "inputs": ("tokens", "with gradients"),
}
"""Every field and its values, the plainest one first."""

LIKELIHOODS = {
    "route": 0.35,
    "encoder": 0.25,
    "tie": 0.15,
    "frozen": 0.25,
    "result": 0.25,
    "loss": 0.25,
    "strategy": 0.4,
    "precision": 0.45,
    "policy": 0.35,
    "originals": 0.15,
    "ignored": 0.12,
    "offload": 0.05,
    "optimizer": 0.7,
    "microbatches": 0.35,
    "clip": 0.1,
    "between": 0.35,
    "backward": 0.15,
    "autocast": 0.06,
    "inputs": 0.1,
}
"""How likely a field is not at its plainest; 0.2 for the others."""


@dataclass(frozen=True)
class Draw:
    """One training run; ``blocks`` are names of kinds in units.py, ``number`` seeds weights and batches."""

    number: int = 0
    blocks: tuple[str, ...] = ("plain",)
    route: str = "in turn"
    encoder: str = "no"
    ends: str = "in the root"
    tie: str = "none"
    frozen: str = "nothing"
    result: str = "tensor"
    loss: str = "one"
    strategy: str = "FULL_SHARD"
    precision: str = "fp32"
    policy: str = "blocks"
    originals: str = "yes"
    prefetch: str = "BACKWARD_PRE"
    forward_prefetch: str = "no"
    limit: str = "yes"
    ignored: str = "nothing"
    offload: str = "no"
    optimizer: str = "SGD"
    built: str = "after"
    groups: str = "one"
    microbatches: str = "1"
    sync: str = "each"
    clip: str = "no"
    between: str = "nothing"
    backward: str = "each"
    zero: str = "none"
    autocast: str = "no"
    inputs: str = "tokens"

    @property
    def ranks(self) -> int:
        """The ranks that it needs: two, or two times two."""
        return 4 if "HYBRID" in self.strategy else 2

    @property
    def is_uneven(self) -> bool:
        """Whether ranks run a unit a different number of times."""
        return self.route == "as often as the rank says"

    def __str__(self) -> str:
        """Return what is not at its plainest, as ``parse`` reads it."""
        said = [f"blocks={' + '.join(self.blocks)}"]
        plain = Draw()
        said += [
            f"{each.name}={getattr(self, each.name)}"
            for each in fields(self)
            if each.name != "blocks" and getattr(self, each.name) != getattr(plain, each.name)
        ]
        return "; ".join(said)


def parse(text: str) -> Draw:
    """Read what ``str(draw)`` wrote.

    Raises:
        ValueError: A field or a value is not one that can be drawn.
    """
    from tests.fuzz.units import KINDS  # which needs torch

    values: dict[str, object] = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        name, _, value = part.partition("=")
        if name == "number":
            values[name] = int(value)
        elif name == "blocks":
            blocks = tuple(map(str.strip, value.split("+")))
            unknown = [each for each in blocks if each not in KINDS]
            if unknown:
                msg = f"No such kinds of blocks: {unknown}. Expected some of {sorted(KINDS)}."
                raise ValueError(msg)
            values[name] = blocks
        elif value not in CHOICES.get(name, ()):
            msg = f"`{part}` cannot be drawn. Expected one of {CHOICES.get(name, tuple(CHOICES))}."
            raise ValueError(msg)
        else:
            values[name] = value
    return Draw(**values)  # type: ignore[arg-type]


def draw(chance: random.Random, kinds: tuple[str, ...], *, ranks: int) -> Draw:
    """Draw a run for so many ranks."""
    blocks = tuple(
        chance.choice(kinds) if chance.random() < 0.7 else "plain" for _ in range(chance.randint(1, 4))
    )
    values: dict[str, str] = {}
    for name, choices in CHOICES.items():
        others = choices[1:]
        if name == "strategy":
            hybrid = tuple(each for each in choices if "HYBRID" in each)
            others = hybrid if ranks == 4 else tuple(each for each in others if each not in hybrid)
        plain = chance.random() >= LIKELIHOODS.get(name, 0.2) and not (name == "strategy" and ranks == 4)
        values[name] = choices[0] if plain else chance.choice(others)
    return settle(Draw(number=chance.randrange(1000), blocks=blocks, **values))


CHANGE_IN_FORWARD = frozenset({"batch norm", "running", "dropout", "noting in itself"})
_TIES_IN_ONE_UNIT = {
    "head and embedding": frozenset({"blocks", "none", "transformer"}),
    "in a block": frozenset({"blocks", "none", "transformer", "custom"}),
    "across blocks": frozenset({"none"}),
}


def settle(drawn: Draw) -> Draw:
    """Take back what FSDP1 itself refuses, so that the draw says something."""
    changes: dict[str, str] = {**_settled_route(drawn)}
    if drawn.frozen not in {"nothing", "first block", "embedding"}:
        changes["originals"] = "yes"  # flat parameters are trained as a whole
    if drawn.groups == "two" or drawn.built == "before" or "adapter" in drawn.blocks:
        changes["originals"] = "yes"
    if drawn.microbatches == "1":
        changes["sync"] = "each"
    if (
        drawn.policy in {"linears", "blocks and linears", "by size"}
        and drawn.precision == "bf16, root not cast"
    ):
        changes["precision"] = "bf16"
    if drawn.ignored != "nothing":
        changes["precision"] = "fp32"  # what is ignored is not cast
        changes["ignored"] = "a module" if len(drawn.blocks) == 1 else drawn.ignored
        changes["clip"] = "no"  # gradients that nobody reduces are others on each rank
    if "experts" in drawn.blocks and drawn.policy in {"linears", "blocks and linears", "by size"}:
        changes["policy"] = "blocks"  # ranks would run, and gather, different units
    if not _can_share(drawn):
        changes["tie"] = "none"  # units that share a parameter free it under each other
    return replace(drawn, **changes)  # type: ignore[arg-type]


def _settled_route(drawn: Draw) -> dict[str, str]:
    """Return what is to change where blocks cannot run in that way under FSDP1, or not in the same order."""
    if drawn.is_uneven and drawn.strategy not in {"SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2"}:
        return {"route": "in turn"}  # the gathers of one rank would wait
    if drawn.is_uneven and drawn.between.startswith("an exception"):
        return {"between": "nothing"}  # each rank breaks off somewhere else
    if drawn.route == "registered twice" and drawn.policy != "none":
        return {"route": "twice over"}  # only one of the two places is wrapped
    if drawn.route.startswith("recomputed") and CHANGE_IN_FORWARD.intersection(drawn.blocks):
        return {"backward": "each"}  # otherwise it is recomputed in another order than under FSDP1
    return {}


def _can_share(drawn: Draw) -> bool:
    if drawn.tie == "head and embedding" and drawn.ends == "units":
        return False
    return drawn.strategy == "NO_SHARD" or drawn.policy in _TIES_IN_ONE_UNIT.get(drawn.tie, {drawn.policy})


def simpler(drawn: Draw) -> Iterator[Draw]:
    """Yield every draw that is one step simpler."""
    for index in range(len(drawn.blocks)):
        if len(drawn.blocks) > 1:
            yield replace(drawn, blocks=drawn.blocks[:index] + drawn.blocks[index + 1 :])
        if drawn.blocks[index] != "plain":
            blocks = (*drawn.blocks[:index], "plain", *drawn.blocks[index + 1 :])
            yield replace(drawn, blocks=blocks)
    for name, choices in CHOICES.items():
        if getattr(drawn, name) != choices[0]:
            yield replace(drawn, **{name: choices[0]})  # type: ignore[arg-type]
            if name == "microbatches" and drawn.microbatches == "3":
                yield replace(drawn, microbatches="2")
    if drawn.number:
        yield replace(drawn, number=0)
