"""Models named as ``package.module:factory`` on the command line, built on the meta device."""

from __future__ import annotations

import importlib
import sys
import traceback
from typing import Any

import torch
from torch import nn

from fsdp_migrate.errors import ConfigError
from fsdp_migrate.findings import named


_MOST_NAMED = 12


def build_model(name: str) -> nn.Module:
    """Import a module, call the factory in it without arguments, and return the model that it makes.

    A factory may also return a model and its optimizer; see :func:`build_run`.

    Raises:
        ConfigError: See :func:`build_run`.
    """
    return build_run(name)[0]


def build_run(name: str) -> tuple[nn.Module, torch.optim.Optimizer | None]:
    """Import a module, call the factory in it without arguments, and return the model that it makes.

    The factory returns a model, or a model and an optimizer of its parameters.

    The factory runs under ``torch.device("meta")``, so that a model of any size costs no memory. The folder
    from which the command is run is looked at last, so that no file in it stands for a module of Python's own
    or of a package. This executes the user's code.

    Raises:
        ConfigError: The name has another form, cannot be imported, or what it names makes no module.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        msg = f"`--model` is {name!r}; expected `package.module:factory`."
        raise ConfigError(msg, field="model")
    if "" not in sys.path:
        sys.path.append("")
    try:
        factory: Any = importlib.import_module(module_name)
    except ImportError as error:
        msg = f"`--model` is {name!r}, but module `{module_name}` cannot be imported: {error}."
        raise ConfigError(msg, field="model") from error
    except Exception as error:
        msg = f"`--model` is {name!r}, but importing `{module_name}` raised {_describe(error)}."
        raise ConfigError(msg, field="model") from error
    for part in attribute.split("."):
        factory = getattr(factory, part, None)
    if not callable(factory):
        raise ConfigError(_no_factory(name, module_name, attribute), field="model")
    try:
        with torch.device("meta"):
            model = factory()
    except Exception as error:
        msg = (
            f"`--model` is {name!r}, and `{attribute}()` raised {_describe(error)}. It is called without "
            "arguments, on the meta device and without a process group; name a function that makes the plain "
            "model so."
        )
        raise ConfigError(msg, field="model") from error
    optimizer = None
    if isinstance(model, tuple) and len(model) == 2 and isinstance(model[1], torch.optim.Optimizer):
        model, optimizer = model
    if not isinstance(model, nn.Module):
        msg = f"`--model` is {name!r}, which makes a {type(model).__name__}; expected a torch module."
        raise ConfigError(msg, field="model")
    return model, optimizer


def _no_factory(name: str, module_name: str, attribute: str) -> str:
    """Say that a module has no such function, and what of its own could be meant."""
    module = sys.modules[module_name]
    own = [
        each
        for each, value in vars(module).items()
        if callable(value) and not each.startswith("_") and getattr(value, "__module__", "") == module_name
    ]
    has = (
        f"What can be called in it: {named(sorted(own), _MOST_NAMED)}."
        if own
        else "It defines no function and no class."
    )
    return f"`--model` is {name!r}, but `{module_name}` has no function or class `{attribute}`. {has}"


def _describe(error: Exception) -> str:
    """Name an error of the user's code, and the last line of theirs that led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [
        frame for frame in frames if "site-packages" not in frame.filename and frame.filename != __file__
    ]
    where = f" in {theirs[-1].filename}:{theirs[-1].lineno}" if theirs else ""
    return f"{type(error).__name__}{where}: {error}".rstrip(". ")
