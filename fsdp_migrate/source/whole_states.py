"""What is said of an optimizer's own state that an FSDP1 run saved, and what of it holds under NO_SHARD.

There each rank has the whole of each parameter, and with use_orig_params=True in its own shape. Measured on
two ranks: ``load_checkpoint`` takes such a state, by numbers, and the next losses are FSDP1's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.python.strategies import keep_shapes


if TYPE_CHECKING:
    from fsdp_migrate.source.python.models import Models


SAVED: Final = (
    "this is one rank's part of the state, keyed by numbers, now as DTensors: save "
    "full_optimizer_state_dict(model, optimizer) of fsdp_migrate.runtime, or sharded_state_dict, "
    "asked for on every rank. The first gives rank 0 the whole, to save it, and the others {}."
)
LOADED: Final = (
    "FSDP1 saved one rank's part of the state here, of flat parameters, which does not fit: take "
    "fsdp_migrate.load_checkpoint(FOLDER, model, optimizer), which puts the parts of all ranks together. "
    "It reads what full_optimizer_state_dict(model, optimizer, rank0_only=False) saved in these files, too."
)
LOADED_APART: Final = (
    "FSDP1 saved one rank's part of the state here, of flat parameters, which does not fit. "
    "fsdp_migrate.load_checkpoint(FOLDER, model, optimizer) joins that of all ranks where FOLDER holds the "
    "model too, in their files or in one beside them, as `fsdp-migrate inspect FOLDER` says. Else let the "
    "old script load it once, and below that, on every rank, take full_optimizer_state_dict(model, "
    "optimizer) of fsdp_migrate.runtime, which rank 0 saves; or begin it anew. What that function saved "
    "is loaded by optimizer.load_state_dict(optim_state_dict_to_load(model, optimizer, state))."
)
LOADED_ALONE: Final = (
    "what an FSDP1 run saved of this optimizer by itself is one rank's part, of flat parameters, which does "
    "not fit. What full_optimizer_state_dict saves goes through optim_state_dict_to_load(model, optimizer, "
    "state) of fsdp_migrate.runtime."
)
_WHOLE: Final = {
    SAVED: (
        "under NO_SHARD this was the whole state, keyed by numbers, and is of DTensors now: save "
        "full_optimizer_state_dict(model, optimizer) of fsdp_migrate.runtime, asked for on every rank. It "
        "gives rank 0 the whole, to save it, and the others {}."
    ),
    LOADED_ALONE: (
        "what an FSDP1 run under NO_SHARD saved of this optimizer is the whole, of plain tensors, keyed by "
        "numbers, at which the first step raises now: take fsdp_migrate.load_checkpoint(PATH, model, "
        "optimizer), where the file holds the model too. What full_optimizer_state_dict saves goes through "
        "optim_state_dict_to_load(model, optimizer, state) of fsdp_migrate.runtime."
    ),
}


def of_wholes(models: Models, said: str) -> str:
    """Return what is said of a state: where all models had whole parameters of their own shapes, that."""
    return _WHOLE[said] if said in _WHOLE and keep_shapes(models) else said
