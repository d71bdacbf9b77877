"""Models without a forward of their own: their methods call units, each of which gathers for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.errors import ModelError, UnsupportedFeatureError
from fsdp_migrate.findings import Finding, make_finding, named
from fsdp_migrate.torch_compat import module_kinds


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from fsdp_migrate.sharding.skipping import SkippedUnits
    from fsdp_migrate.sharding.units import UnitPlan


def without_forward(
    model: nn.Module, units: Sequence[UnitPlan], skipped_units: SkippedUnits | None
) -> Iterator[Finding]:
    """Tell of the parameters that nothing gathers where the model has no forward.

    Raises:
        ModelError: No unit has a forward either.
        UnsupportedFeatureError: ``skipped_units``, by which ranks agree in the model's forward.
    """
    if module_kinds.has_forward(model):
        return
    what = f"The model is a {type(model).__name__}, which has no `forward`"
    if len(units) == 1:
        msg = (
            f"{what}, and nothing in it is a unit: nothing would gather its parameters. Choose the modules "
            "that its methods call as units by `auto_wrap_policy`, or give its class a `forward`, by which "
            "it is called."
        )
        raise ModelError(msg, fqn="")
    if skipped_units is not None:
        msg = (
            f"{what}. Under `skipped_units` ranks agree on units in the model's forward: give its class one, "
            "by which it is called, or leave `skipped_units` out."
        )
        raise UnsupportedFeatureError(msg, feature="skipped_units")
    own = list(units[-1].parameters)
    if own:
        text = (
            f"{what}: units gather for themselves, each when it is called, and nothing gathers {named(own)}, "
            "as under FSDP1."
        )
        hint = (
            "Where a method uses them, name it once: "
            "`fsdp_migrate.runtime.register_forward_methods(model, ...)`."
        )
        yield make_finding("FM129", "the model", text, hint)
