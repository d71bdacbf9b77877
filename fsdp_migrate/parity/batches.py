"""What both runs are fed with, and what their loss is: the user's, or made from the model's signature."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fsdp_migrate.errors import ConfigError
from fsdp_migrate.factories import code_of_user, describe_error
from fsdp_migrate.findings import counted, named


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


_ROWS, _LENGTH, _SIDE = 2, 8, 32
_TOKENS = 100
_WITHIN_LIGHTNINGS = (
    "It is a LightningModule, of which Lightning's Trainer runs `training_step`: name a function that makes "
    "the nn.Module within it instead. Or: "
)


@dataclass(frozen=True)
class Shape:
    """How large batches are that are made up, where somebody asked: rows, and tokens in each."""

    rows: int | None = None
    length: int | None = None


@dataclass(frozen=True)
class Fed:
    """The batches of this rank, one for each step, how a loss comes of one, and what of it was made up."""

    batches: tuple[Any, ...]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    notes: tuple[str, ...]


def feed(
    make_model: Callable[[], nn.Module],
    batches: Any,
    loss: Callable[[nn.Module, Any], Any] | None,
    *,
    steps: int,
    rank: int,
    world_size: int,
    shape: Shape | None = None,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Fed:
    """Return what a rank trains on.

    Args:
        make_model: Makes a model that may be run once, to see which inputs it takes.
        batches: The user's: batches in an iterable, of which each rank takes every ``world_size``-th, or a
            function that returns one, with or without the parameters ``rank`` and ``world_size``; with them
            it returns the batches of that rank alone. None: made from the model's signature.
        loss: The user's function of the model and a batch. None: what the model returns is looked at.
        steps: How many there are.
        rank: This rank.
        world_size: The number of ranks.
        shape: How large batches are that are made up.
        around: Makes the context in which the model is run to see which inputs it takes.

    Raises:
        ConfigError: There are fewer batches than steps, or none can be made for this model; or there are
            batches, and a shape for others.
    """
    notes = []
    shape = shape or Shape()
    if batches is not None and (shape.rows or shape.length):
        msg = "`batch_size` and `seq_length` are for generated batches, and `data` gives its own."
        raise ConfigError(msg, field="batch_size" if shape.rows else "seq_length")
    if batches is None:
        found, words = _made_up(make_model(), shape, steps=steps, rank=rank, around=around)
        notes.append(f"The batches were generated: {words}. Give `--data` for your own.")
    else:
        found = _of_user(batches, steps=steps, rank=rank, world_size=world_size)
    if loss is None:
        notes.append(
            "The loss is the one that the model returns, or else the mean square of its first output. Give "
            "`--loss` for your own."
        )
    return Fed(found, loss or default_loss, tuple(notes))


def _of_user(batches: Any, *, steps: int, rank: int, world_size: int) -> tuple[Any, ...]:
    given, every = batches, world_size
    if callable(batches):
        taken = inspect.signature(batches).parameters
        about = {"rank": rank, "world_size": world_size}
        wanted = {name: value for name, value in about.items() if name in taken}
        given = _by_user(lambda: batches(**wanted))
        every = 1 if wanted else world_size
    if not isinstance(given, Iterable):
        msg = f"`data` gives a {type(given).__name__}; expected batches that can be iterated over."
        raise ConfigError(msg, field="data")
    first = rank if every > 1 else 0
    # Not all of them: what gives batches may have no end.
    found: tuple[Any, ...] = _by_user(
        lambda: tuple(itertools.islice(given, first, first + steps * every, every))
    )
    if len(found) < steps:
        msg = (
            f"`data` has {counted(len(found), 'batch', 'batches')} for {counted(steps, 'step')} of rank "
            f"{rank}. Give at least {steps * every}, or fewer `steps`."
        )
        raise ConfigError(msg, field="data")
    return found


def _by_user(make: Callable[[], Any]) -> Any:
    try:
        with code_of_user("data"):
            return make()
    except Exception as error:
        msg = f"`data` raised {describe_error(error)}."
        raise ConfigError(msg, field="data") from error


def call_model(model: nn.Module, batch: Any) -> Any:
    """Call a model with a batch: a mapping gives keyword arguments, a sequence positional ones.

    Example:
        >>> call_model(nn.Identity(), (torch.tensor(1.0),))
        tensor(1.)
    """
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)


def default_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the loss that the model returns, or else the mean square of its first output."""
    output = call_model(model, batch)
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, torch.Tensor):
        return own
    for each in tensors_in(output):
        if each.is_floating_point() and each.requires_grad:
            return each if each.dim() == 0 else each.float().square().mean()
    msg = (
        f"The model returns a {type(output).__name__} without a floating-point tensor to train on. Give a "
        "`loss`: a function of the model and a batch."
    )
    raise ConfigError(msg, field="loss")


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a batch or an output.

    Example:
        >>> list(tensors_in({"x": (torch.tensor(1), "y")}))
        [tensor(1)]
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from tensors_in(each)


def move(batch: Any, device: torch.device) -> Any:
    """Return a copy of a batch on a device, so that no run sees what the other did to it."""
    if isinstance(batch, torch.Tensor):
        return batch.detach().clone().to(device).requires_grad_(batch.requires_grad)
    if isinstance(batch, Mapping):
        return {name: move(each, device) for name, each in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move(each, device) for each in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(move(each, device) for each in batch)
    return copy.deepcopy(batch)


Maker = tuple[str, "Callable[[torch.Generator], Any]"]


def _made_up(
    model: nn.Module,
    shape: Shape,
    *,
    steps: int,
    rank: int,
    around: Callable[[], AbstractContextManager[Any]],
) -> tuple[tuple[Any, ...], str]:
    """Make random batches of the first kind that the model can be run with."""
    refusals = []
    for words, make in _candidates(model, shape):
        try:
            with torch.no_grad(), around():
                call_model(model, make(torch.Generator().manual_seed(0)))
        except Exception as error:
            refusals.append(f"{words}: {type(error).__name__}: {error}".split("\n")[0][:160])
            continue
        seeds = [1000 * step + rank + 1 for step in range(steps)]
        return tuple(make(torch.Generator().manual_seed(seed)) for seed in seeds), words
    taken = [
        name
        for name, each in inspect.signature(model.forward).parameters.items()
        if each.default is each.empty and each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD}
    ]
    tried = "; ".join(refusals) or "it has no layer that tells what it takes"
    is_lightnings = any(each.__name__ == "LightningModule" for each in type(model).__mro__)
    msg = (
        f"No batches can be made for {type(model).__name__}, whose forward takes {named(taken) or 'nothing'} "
        f"({tried}). {_WITHIN_LIGHTNINGS if is_lightnings else ''}"
        "Give `data` (`--data PKG.MOD:BATCHES`): batches, or a function that returns them. A batch is a dict "
        "of the model's arguments by name, or a tuple of them in order. Unless the model returns its loss, "
        "give `loss` (`--loss PKG.MOD:LOSS`) too."
    )
    raise ConfigError(msg, field="data")


def _candidates(model: nn.Module, shape: Shape) -> Iterator[Maker]:
    """Yield kinds of batches that a model may take, the likeliest first."""
    taken = inspect.signature(model.forward).parameters
    rows, length = shape.rows or _ROWS, shape.length or _LENGTH
    if hasattr(model, "main_input_name") and hasattr(model, "config"):
        yield from _for_transformers(model, taken, shape)
    # The first layer that tells what it takes: inputs go into it.
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            most = module.num_embeddings
            yield (
                f"{counted(rows, 'row')} of {length} random tokens of {most}",
                _random_tokens(most, rows, length),
            )
        elif isinstance(module, nn.Linear):
            width = module.in_features
            yield f"{counted(rows, 'random row')} of {width} numbers", _random_numbers(rows, width)
            yield (
                f"{rows} x {length} random rows of {width} numbers",
                _random_numbers(rows, length, width),
            )
        elif isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            sides = [_SIDE] * len(module.kernel_size)
            yield (
                f"{counted(rows, 'random image')} of {module.in_channels} channels",
                _random_numbers(rows, module.in_channels, *sides),
            )
        else:
            continue
        return


def _for_transformers(model: Any, taken: Mapping[str, Any], shape: Shape) -> Iterator[Maker]:
    """Yield what models of transformers take: tokens or images, and labels where a loss comes of them."""
    main, config = str(model.main_input_name), model.config
    rows, length = shape.rows or _ROWS, shape.length or _LENGTH
    if main == "input_ids":
        text = config.get_text_config()
        most = int(getattr(text, "vocab_size", _TOKENS))
        names = [name for name in ("input_ids", "decoder_input_ids", "labels") if name in taken]

        def tokens(generator: torch.Generator, names: Iterable[str] = tuple(names)) -> dict[str, Any]:
            # The first ones stand for padding and ends in many models.
            made = torch.randint(min(5, most - 1), most, (rows, length), generator=generator)
            return {name: made.clone() for name in names}

        words = f"{counted(rows, 'row')} of {length} random tokens of {most} for "
        yield words + named(names), tokens
        without = tuple(name for name in names if name != "labels")
        yield words + named(without), lambda generator: tokens(generator, without)
    dummies = getattr(model, "dummy_inputs", None)
    if isinstance(dummies, Mapping):
        words = "the model's own `dummy_inputs`, every step the same"
        if shape.rows is not None:
            dummies = {name: _first_row(value, shape.rows) for name, value in dummies.items()}
            words = f"{rows} times the first row of the model's own `dummy_inputs`"
        yield words, lambda _: dict(dummies)


def _first_row(value: Any, rows: int) -> Any:
    is_batch = isinstance(value, torch.Tensor) and value.dim() > 0
    return value[:1].repeat(rows, *(1 for _ in value.shape[1:])) if is_batch else value


def _random_tokens(most: int, rows: int, length: int) -> Callable[[torch.Generator], Any]:
    return lambda generator: torch.randint(0, most, (rows, length), generator=generator)


def _random_numbers(*shape: int) -> Callable[[torch.Generator], Any]:
    return lambda generator: torch.randn(*shape, generator=generator)
