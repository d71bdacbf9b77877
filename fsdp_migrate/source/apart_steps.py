"""The steps for what Accelerate's FSDP2 asks of models and their optimizers, where FSDP1 did not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.findings import listed
from fsdp_migrate.source.next_step import Step


if TYPE_CHECKING:
    from fsdp_migrate.source.prepared_apart import PreparedApart


_PLACES = 3
_TOGETHER = (
    "Let Accelerate prepare each model and its optimizer in one call, as its FSDP2 asks for: make the "
    "optimizer first, and write `model, optimizer = accelerator.prepare(model, optimizer)`"
)
_SEVERAL = (
    "Give Accelerate each model that is trained in a call of its own, with an optimizer of its own, and "
    "leave out those that are not: its FSDP2 takes one model in a call, and an optimizer of that model "
    "alone. Where one optimizer holds several, make one for each, or make the models parts of one module "
    "whose `forward` runs them"
)
_LEFT_OUT = (
    "Take models that are not trained out of Accelerate's hands, whose FSDP2 refuses them: write "
    "`model.to(accelerator.device)`, or have such a model sharded with an optimizer that never steps, "
    "`model, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters()))`"
)
_EITHER = (
    "See whether the models that Accelerate prepares here are trained, where no optimizer is made: its FSDP2 "
    "refuses a model without its optimizer. Where one is, prepare both together, `model, optimizer = "
    "accelerator.prepare(model, optimizer)`; where it is not, write `model.to(accelerator.device)`"
)
_HELD = (
    "Make what an optimizer holds beside the model's parameters a part of that model, or give it an "
    "optimizer of its own that is not prepared: Accelerate's FSDP2 stops at parameters of others"
)
_SECOND = (
    "Where a second model has none of the classes that `fsdp_transformer_layer_cls_to_wrap` names, write "
    "`accelerator.state.fsdp_plugin.transformer_cls_names_to_wrap = []` above the call that prepares it, "
    "which is one unit then as under FSDP1: Accelerate's FSDP2 looks for them in every model, and stops"
)
_NOT_LOADED = (
    "Write `fsdp_cpu_ram_efficient_loading: false`, in HF Trainer's `fsdp_config` "
    "`cpu_ram_efficient_loading`: with true, which Accelerate's launcher takes where nothing is said, its "
    "FSDP2 stops at what these models hold"
)
_TORN = (
    "Write `fsdp_cpu_ram_efficient_loading: false`, in HF Trainer's `fsdp_config` "
    "`cpu_ram_efficient_loading`, which `fsdp-migrate config` does where it sees the ties too, or give these "
    "models a method `tie_weights()` that ties them: with true, which Accelerate's launcher takes where "
    "nothing is said, its FSDP2 trains their tied weights apart, without a word"
)
_IGNORED = (
    "Write `fsdp_cpu_ram_efficient_loading: false`: with true, which Accelerate's launcher takes where "
    "nothing is said, its FSDP2 shards the modules in `ignored_modules` all the same, and gives every rank "
    "the values of rank 0"
)


def steps_for_apart(apart: PreparedApart | None) -> list[Step]:
    """Return what Accelerate asks of models that it gets without their optimizers.

    Example:
        >>> steps_for_apart(None)
        []
    """
    if apart is None:
        return []
    said = (
        (_TOGETHER, "FM449", apart.trained),
        (_SEVERAL, "FM449", apart.several),
        (_LEFT_OUT, "FM449", apart.untrained),
        (_EITHER, "FM449", apart.unclear),
        (_HELD, "FM449", apart.held),
        (_SECOND, "FM449", apart.second),
        (_NOT_LOADED, "FM343", apart.not_loaded),
        (_TORN, "FM343", apart.torn),
        (_IGNORED, "FM343", apart.ignored),
    )
    return [Step(f"{text}: {code} ({listed(places, _PLACES)}).", ()) for text, code, places in said if places]
