"""Makes the two runs: the same model twice, from one seed or checkpoint, with optimizers that are alike."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from fsdp_migrate.errors import CheckpointMismatchError, ConfigError, RankError
from fsdp_migrate.factories import call_factory, code_of_user, describe_error
from fsdp_migrate.loading import load_checkpoint
from fsdp_migrate.parity.fsdp1 import fsdp1_arguments, settle_config
from fsdp_migrate.parity.recording import clean_name
from fsdp_migrate.parity.trainees import Prepared, UnderFSDP1, quiet_fsdp1, seed_everything
from fsdp_migrate.sharding.consensus import together
from fsdp_migrate.sharding.plan import read_config
from fsdp_migrate.sharding.tying import parameter_names


if TYPE_CHECKING:
    from collections.abc import Callable

    from fsdp_migrate.config import FSDP1Config


MadeT = TypeVar("MadeT")

LEARNING_RATE = 1e-3
_ITS_MODEL = (
    "The model must be that of the run that saved the checkpoint; `fsdp-migrate convert CKPT OUT --rename` "
    "changes names."
)
_ITS_OPTIMIZER = (
    "`--optimizer PKG.MOD:OPTIMIZER` makes the optimizer with the groups of that run, and `--weights-only` "
    "starts from the weights alone (`optimizer=`, `weights_only=True` of `compare_runs`)."
)


@dataclass(frozen=True, kw_only=True)
class ComparisonRequest:
    """What is compared, as it was asked for; :func:`~fsdp_migrate.parity.compare_runs` explains each."""

    model: Callable[[], Any]
    config: Any
    optimizer: Callable[[nn.Module], Optimizer] | None
    checkpoint: Any
    weights_only: bool
    seed: int
    device: torch.device
    prepare: Callable[..., Any]

    def make_model(self) -> tuple[nn.Module, Optimizer | None]:
        """Call the factory, always from the same seed."""
        seed_everything(self.seed)
        name = getattr(self.model, "__qualname__", "model")
        return call_factory(name, self.model)

    def config_of(self, model: nn.Module) -> FSDP1Config:
        """Return the config for one of the models, whose own modules it may name."""
        given = self.config
        is_function = callable(given) and not isinstance(given, type) and not hasattr(given, "model_fields")
        if is_function:
            try:
                with code_of_user("fsdp1_config"):
                    given = given(model)
            except Exception as error:
                msg = f"`fsdp1_config`, a function of the model, raised {describe_error(error)}."
                raise ConfigError(msg, field="fsdp1_config") from error
        return read_config(given)


def agreed(make: Callable[[], MadeT]) -> MadeT:
    """Do what runs the user's code on each rank by itself; where it fails on one, it fails on every rank.

    Raises:
        RankError: Another rank failed; it says which, and why.
    """
    made: list[MadeT] = []
    where = "cannot take part in the comparison, so no rank does"
    together(lambda: made.append(make()), [None], where, RankError)
    return made[0]


@dataclass(frozen=True)
class Pair:
    """The two runs, and what had to be settled to make them."""

    fsdp1: UnderFSDP1
    fsdp2: Prepared
    notes: tuple[str, ...]


def make_pair(request: ComparisonRequest) -> Pair:
    """Make both runs; a collective call of all ranks.

    Raises:
        ConfigError: Something that was given means nothing, or FSDP1 itself could not be given it.
    """
    plain, made = agreed(request.make_model)
    config, notes = agreed(lambda: settle_config(request.config_of(plain), request.device))
    more: list[str] = []
    default: type[Optimizer] = torch.optim.AdamW
    why = ""
    if config.mixed_precision is not None and config.mixed_precision.keep_low_precision_grads:
        # torch's AdamW mixes no dtypes: FSDP1 itself would fail in its step.
        default = torch.optim.SGD
        why = ", because AdamW refuses the gradients that FSDP1 keeps in low precision"
    if request.optimizer is None and made is None:
        name = default.__name__
        more.append(
            f"The optimizer is {name} with lr {LEARNING_RATE:g}{why}. Give `--optimizer` for your own."
        )

    def maker(model: nn.Module, own: Optimizer | None) -> Callable[[nn.Module], Optimizer]:
        return optimizer_maker(request.optimizer, model, own, default)

    # Before it is wrapped: the recorder's hooks are to run within those of FSDP1, which gather.
    fsdp1 = UnderFSDP1(plain, request.device)
    arguments, fsdp1_notes = fsdp1_arguments(config, plain, request.device)
    state = _load_plain(request, plain, maker(plain, made))
    with quiet_fsdp1():
        fsdp1.wrap(arguments, maker(plain, made))
        if state is not None:
            fsdp1.load_optimizer_state(state)
    other, other_made = agreed(request.make_model)
    fsdp2 = Prepared(other, request.device)
    own_config = (
        agreed(lambda: _settled_again(request, other, config)) if callable(request.config) else config
    )
    fsdp2.prepare(request.prepare, own_config, maker(other, other_made))
    if request.checkpoint is not None:
        _load(request, fsdp2.model, *(() if request.weights_only else (fsdp2.optimizer,)))
    return Pair(fsdp1, fsdp2, (*notes, *fsdp1_notes, *more))


def _settled_again(request: ComparisonRequest, model: nn.Module, settled: FSDP1Config) -> FSDP1Config:
    """Return the second model's own config, with the device and the groups of the first."""
    own = request.config_of(model)
    same = {name: getattr(settled, name) for name in ("device_id", "device_mesh")}
    return own.updated(**{name: value for name, value in same.items() if value is not None})


def _load(request: ComparisonRequest, model: nn.Module, *optimizers: Optimizer) -> None:
    """Load the checkpoint; what does not fit is said with what helps here.

    Raises:
        CheckpointMismatchError: Something does not fit.
    """
    try:
        load_checkpoint(request.checkpoint, model, optimizers, weights_only=request.weights_only)
    except CheckpointMismatchError as error:
        if not error.advice:
            raise
        # It has words for `load_checkpoint`, which nobody called here.
        raise error.advising(
            _ITS_MODEL if request.weights_only else f"{_ITS_MODEL} {_ITS_OPTIMIZER}"
        ) from None


def _load_plain(
    request: ComparisonRequest, plain: nn.Module, make_optimizer: Callable[[nn.Module], Optimizer]
) -> dict[str, Any] | None:
    """Load a checkpoint into the model before FSDP1 wraps it; return the optimizer's state by names."""
    if request.checkpoint is None:
        return None
    if request.weights_only:
        _load(request, plain)
        return None
    optimizer = make_optimizer(plain)
    _load(request, plain, optimizer)
    names: dict[Any, str] = {param: each[0] for param, each in parameter_names(plain).items()}
    return {
        "state": {names[param]: dict(values) for param, values in optimizer.state.items()},
        "param_groups": [
            {**group, "params": [names[param] for param in group["params"]]}
            for group in optimizer.param_groups
        ],
    }


def optimizer_maker(
    own: Callable[[nn.Module], Any] | None,
    plain: nn.Module,
    made: Optimizer | None,
    default: type[Optimizer] = torch.optim.AdamW,
) -> Callable[[nn.Module], Optimizer]:
    """Return what makes the optimizer of a sharded model: the user's, the one that was made, or a default."""
    if own is not None:

        def checked(model: nn.Module) -> Optimizer:
            try:
                with code_of_user("optimizer"):
                    found = own(model)
            except Exception as error:
                msg = f"`optimizer`, a function of the sharded model, raised {describe_error(error)}."
                raise ConfigError(msg, field="optimizer") from error
            if not isinstance(found, Optimizer):
                msg = f"`optimizer` returns a {type(found).__name__}; expected an optimizer of torch."
                raise ConfigError(msg, field="optimizer")
            return found

        return checked
    if made is None:
        make: Any = default
        return lambda model: make(
            [each for each in model.parameters() if each.requires_grad], lr=LEARNING_RATE
        )
    names = {param: each[0] for param, each in parameter_names(plain).items()}
    groups = [{**group, "params": [names[param] for param in group["params"]]} for group in made.param_groups]
    kind, defaults = type(made), copy.copy(made.defaults)
    return lambda model: _rebuild(kind, defaults, groups, model)


def _rebuild(
    kind: type[Optimizer], defaults: dict[str, Any], groups: list[dict[str, Any]], model: nn.Module
) -> Optimizer:
    """Make an optimizer of a model as one was of the same model before it was sharded."""
    named = {clean_name(name): each for name, each in model.named_parameters(remove_duplicate=False)}
    is_flat = any(name not in named for group in groups for name in group["params"])
    if is_flat and len(groups) > 1:
        msg = (
            f"The factory's optimizer has {len(groups)} groups of parameters, which FSDP1 cannot tell apart "
            "with `use_orig_params=False`. Set it to true, or make an optimizer of one group."
        )
        raise ConfigError(msg, field="use_orig_params")
    found = [
        {
            **group,
            "params": list(model.parameters()) if is_flat else [named[name] for name in group["params"]],
        }
        for group in groups
    ]
    maker: Any = kind
    optimizer: Optimizer = maker(found, **defaults)
    return optimizer
