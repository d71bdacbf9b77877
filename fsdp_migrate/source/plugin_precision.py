"""How Accelerate's FSDP2 casts otherwise than its FSDP1, where a plugin in code says what is cast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsdp_migrate.adapters.engine.shared_keys import (
    AUTOCAST,
    CAST_ALL_BUFFERS,
    FLOAT_OUTPUTS,
    ROUNDED_IN_EVALUATION,
)
from fsdp_migrate.findings import make_finding


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.findings import Finding


def said_of_casts(value: Any) -> Iterator[Finding]:
    """Say what a value of ``mixed_precision_policy``, as a mapping, does otherwise than FSDP1's."""
    given = value if isinstance(value, dict) else {}
    text, hint = "", "Parameters and gradients are cast alike."
    # Where nothing is cast, outputs and inputs stay what they are.
    is_cast = str(given.get("param_dtype") or "").rpartition(".")[2] not in {"float", "float32"}
    if is_cast and given.get("cast_forward_inputs") is not True:
        text = "FSDP2 casts the inputs of every unit where FSDP1 casts the root's."
    if given.get("buffer_dtype"):
        text += f" FSDP2 leaves buffers in their own dtype, which FSDP1 cast to {given['buffer_dtype']}."
        cast = CAST_ALL_BUFFERS.format(str(given["buffer_dtype"]).rpartition(".")[2])
        hint += (
            " Where buffers matter, such as rotary frequencies, the new run is the more exact one; to go on "
            f"as before write {cast} above `prepare`."
        )
    if is_cast and given.get("param_dtype"):
        text += (
            " Where the Accelerator has `mixed_precision`, FSDP1 ran the model in autocast, and its outputs "
            "were float32. FSDP2 does neither."
        )
        hint += (
            " Write `.float()` on an output that meets float32 tensors, and, where such a tensor meets "
            f"weights within the model, {AUTOCAST} above `prepare`. For outputs in float32 write both that "
            f"and {FLOAT_OUTPUTS}. {ROUNDED_IN_EVALUATION}"
        )
    if text:
        yield make_finding("FM354", "mixed_precision_policy", text.strip(), hint)
