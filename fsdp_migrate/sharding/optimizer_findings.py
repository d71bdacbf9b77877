"""What optimizers that are given to be sharded do otherwise than under FSDP1, or cannot do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.findings import make_finding
from fsdp_migrate.sharding.optimizer_trial import (
    error_with_dtensors,
    packs_in_blocks,
    takes_elements_alone,
)
from fsdp_migrate.torch_compat import optimizer_kinds


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch.optim import Optimizer

    from fsdp_migrate.findings import Finding


_TEXTS = {
    "Adafactor": (
        "It works in place on the norms of rows, of which each rank has a part: DTensor stops at that, or up "
        "to torch 2.12 may silently take a part for the whole. FSDP1's result is no guide either: it "
        "took each rank's flat shard for a parameter, and factored nothing."
    ),
    "LBFGS": (
        "It makes one vector of all gradients, which DTensor cannot flatten. FSDP1 ran one LBFGS on each "
        "rank, over that rank's shards."
    ),
    "Rprop": "It sets masked elements of gradients, which DTensor cannot do before torch 2.15.",
    "Muon": (
        "It works on whole matrices here, as on one device. It refused FSDP1's flat parameters, so that "
        "there is no run to compare with, but for NO_SHARD with `use_orig_params`, which kept shapes."
    ),
}
_NOT_ALONE = (
    "It does not take each element alone: steps on a matrix gave other values than steps on the same "
    "elements as vectors, which is what FSDP1 gave it. Here it gets each parameter with its shape, "
    "as a DTensor. If it sorts parameters by their dimensions, as Muon's classes do, then it had only "
    "vectors under FSDP1, and stepped all of them as such. NO_SHARD with `use_orig_params`, which one rank "
    "becomes too, kept shapes: there nothing changes."
)
_PARTS_FOR_WHOLE = " This torch may take a rank's part of a norm for the whole, without an error; 2.13 stops."
_IN_BLOCKS = (
    "Large parameters are not taken element by element: a matrix that was cut between rows gave other "
    "values. So do optimizers of 8 bits and fewer, which scale their state in blocks. Blocks lie in "
    "each rank's rows here, and lay in FSDP1's flat pieces; values differ by their rounding."
)
_HINT = "AdamW, Adam, SGD, Adagrad and torch's other element-wise optimizers give FSDP1's values."
_HINT_IN_PLACE = (
    "In its place: torch's AdamW, or torchao's AdamW8bit (and 4-bit, fp8), which take DTensors; the table of "
    "docs/prepare.md says of more."
)


def optimizer_findings(optimizers: Iterable[Optimizer]) -> Iterator[Finding]:
    """Tell, once for each class, of optimizers that differ from FSDP1's, or fail with DTensors."""
    found: dict[str, Finding] = {}
    for optimizer in optimizers:
        name = type(optimizer).__name__
        options = optimizer_kinds.refused_options(optimizer) if hasattr(optimizer, "param_groups") else []
        if options:
            which = " and ".join(f"`{option}`" for option in options)
            text = f"{which} is switched off: its kernels do not take DTensors. The values are the same."
            found[f"{name} option"] = make_finding("FM113", f"optimizers.{name}", text)
        known = optimizer_kinds.behaviour_of(optimizer)
        if known is not None:
            code = "FM115" if known[1] == "fails" else "FM114"
            found[name] = make_finding(code, f"optimizers.{name}", _TEXTS[known[0]], _HINT)
        elif name not in found and _is_of_others(optimizer):
            found.update((name, finding) for finding in _tried(optimizer, name))
    yield from found.values()


def _is_of_others(optimizer: Optimizer) -> bool:
    """Tell whether it is none of torch's own, which are known."""
    return hasattr(optimizer, "param_groups") and not type(optimizer).__module__.startswith("torch.optim")


def _tried(optimizer: Optimizer, name: str) -> Iterator[Finding]:
    """Tell what copies of an optimizer of another package did when they were stepped."""
    subject = f"optimizers.{name}"
    error = error_with_dtensors(optimizer)
    if error is not None:
        text = f"A copy of it was stepped on a DTensor, and torch stopped: {error}"
        yield make_finding("FM115", subject, text, _HINT_IN_PLACE)
    elif (alone := takes_elements_alone(optimizer)) is False:
        text = _NOT_ALONE + (_PARTS_FOR_WHOLE if optimizer_kinds.TAKES_PARTS_FOR_WHOLE else "")
        yield make_finding("FM114", subject, text, _HINT)
    elif alone and packs_in_blocks(optimizer):
        yield make_finding("FM114", subject, _IN_BLOCKS, _HINT)
