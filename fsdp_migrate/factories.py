"""Models and functions that are named as ``package.module:factory``, or as ``transformers:config.json``."""

from __future__ import annotations

import importlib
import json
import sys
import sysconfig
import traceback
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fsdp_migrate.errors import ConfigError
from fsdp_migrate.findings import named


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_MOST_NAMED = 12
_TRANSFORMERS = "transformers"
_WITHOUT_HEAD = (
    "{} names no `architectures`, so that the model is the one without a head (transformers' AutoModel): its "
    "bytes, memory and losses are not those of what is trained. Write its class into the file, such as "
    '`"architectures": ["LlamaForCausalLM"]`.'
)
_CONFIG = "config.json"


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
    return call_factory(name, load_factory(name), device="meta")


def call_factory(
    name: str, factory: Callable[[], Any], *, device: str | None = None
) -> tuple[nn.Module, torch.optim.Optimizer | None]:
    """Call a factory, under a device if one is given; return its model, and its optimizer if it made one.

    Raises:
        ConfigError: It raised, or what it returned is neither a model nor a model and its optimizer.
    """
    place: AbstractContextManager[Any] = nullcontext() if device is None else torch.device(device)
    called = name.partition(":")[2] or name
    try:
        with place, code_of_user(called):
            model = factory()
    except Exception as error:
        where = "" if device is None else f", on the {device} device and without a process group"
        msg = (
            f"`--model` is {name!r}, and `{called}()` raised {describe_error(error)}. "
            f"It is called without arguments{where}; name a function that makes the plain model so."
        )
        raise ConfigError(msg, field="model") from error
    optimizer = None
    if isinstance(model, tuple) and len(model) == 2 and isinstance(model[1], torch.optim.Optimizer):
        model, optimizer = model
    if not isinstance(model, nn.Module):
        msg = f"`--model` is {name!r}, which makes a {type(model).__name__}; expected a torch module."
        raise ConfigError(msg, field="model")
    return model, optimizer


def load_factory(name: str) -> Callable[[], Any]:
    """Return the factory of that name. ``transformers:FOLDER`` makes the model of the ``config.json`` in it.

    Raises:
        ConfigError: See :func:`load_function`; or the config cannot be read, or names no architecture.
    """
    path = _config_named(name)
    if path is not None:
        return partial(_build_from_config, name, _read_architecture(name, path))
    return load_function(name, "model")


def _config_named(name: str) -> Path | None:
    """Return the folder or file of a config of transformers that a name is of, or None."""
    module, _, path = name.partition(":")
    is_one = path.endswith(".json") or "/" in path or Path(path).exists()
    return Path(path) if module == _TRANSFORMERS and is_one else None


def factory_notes(name: str) -> tuple[str, ...]:
    """Say of a config of transformers that names no class that its model is made without a head.

    Raises:
        ConfigError: The config cannot be read.

    Example:
        >>> factory_notes("train:make_model")
        ()
    """
    path = _config_named(name)
    if path is None or _read_architecture(name, path)[1] is not None:
        return ()
    return (_WITHOUT_HEAD.format(path / _CONFIG if path.is_dir() else path),)


def load_function(name: str, option: str) -> Callable[..., Any]:
    """Import a module and return the function or class in it, both named as ``package.module:function``.

    The folder from which the command is run is looked at last, so that no file in it stands for a module of
    Python's own or of a package. This executes the user's code.

    Args:
        name: The name.
        option: Whose value it is, for errors: ``model``, ``data``.

    Raises:
        ConfigError: The name has another form, cannot be imported, or what it names cannot be called.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        kind = "factory" if option == "model" else option
        more = _what_of_transformers(name) if option == "model" else ""
        msg = f"`--{option}` is {name!r}; expected `package.module:{kind}`{more}."
        raise ConfigError(msg, field=option)
    if "" not in sys.path:
        sys.path.append("")
    try:
        with code_of_user(module_name):
            found: Any = importlib.import_module(module_name)
    except EndedError as error:
        msg = (
            f"`--{option}` is {name!r}, but module `{module_name}` ended while it was imported: {error}. It "
            'runs when it is imported. Put what starts the run below `if __name__ == "__main__":`.'
        )
        raise ConfigError(msg, field=option) from error
    except ImportError as error:
        msg = f"`--{option}` is {name!r}, but module `{module_name}` cannot be imported: {error}."
        raise ConfigError(msg, field=option) from error
    except Exception as error:
        msg = f"`--{option}` is {name!r}, but importing `{module_name}` raised {describe_error(error)}."
        raise ConfigError(msg, field=option) from error
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ConfigError(_no_function(name, option, module_name, attribute), field=option)
    function: Callable[..., Any] = found
    return function


def _what_of_transformers(name: str) -> str:
    """Say how a model of transformers is named; of a folder or a file that is there, how that one is."""
    is_there = Path(name).suffix == ".json" or (Path(name) / _CONFIG).is_file()
    folder = name if is_there and Path(name).exists() else "FOLDER"
    return f", or `transformers:{folder}` for the model of transformers whose {_CONFIG} lies there"


def _no_function(name: str, option: str, module_name: str, attribute: str) -> str:
    """Say that a module has no such function, and what of its own could be meant."""
    if module_name == _TRANSFORMERS:
        return (
            f"`--{option}` is {name!r}, but there is no folder or file {attribute!r} here, and transformers "
            f"has no function of that name. Give the folder that holds the model's {_CONFIG}."
        )
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
    return f"`--{option}` is {name!r}, but `{module_name}` has no function or class `{attribute}`. {has}"


def _read_architecture(name: str, path: Path) -> tuple[dict[str, Any], str | None]:
    """Return what a config of transformers says, and the class of the model that it was saved from."""
    file = path / _CONFIG if path.is_dir() else path
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        msg = f"`--model` is {name!r}, but {str(file)!r} cannot be read as JSON: {error}."
        raise ConfigError(msg, field="model") from error
    if not isinstance(config, dict) or "model_type" not in config:
        msg = (
            f"`--model` is {name!r}, but {str(file)!r} has no `model_type`: it is no config of transformers."
        )
        raise ConfigError(msg, field="model")
    return config, next(iter(config.get("architectures") or ()), None)


def _build_from_config(name: str, described: tuple[dict[str, Any], str | None]) -> nn.Module:
    """Make the model of a config, with random weights: no file of weights is looked for."""
    try:
        transformers: Any = importlib.import_module(_TRANSFORMERS)
    except ImportError as error:
        msg = f"`--model` is {name!r}, which needs the package `transformers`: {error}."
        raise ConfigError(msg, field="model") from error
    config, architecture = described
    made = transformers.AutoConfig.for_model(**config)
    maker = None if architecture is None else getattr(transformers, architecture, None)
    model: nn.Module = transformers.AutoModel.from_config(made) if maker is None else maker(made)
    return model


class EndedError(Exception):
    """The user's code ended the process, as a script does that reads a command line which is not its own."""


@contextmanager
def code_of_user(name: str) -> Iterator[None]:
    """Run code of the user's; an end of the process is an error. ``name`` stands in its usage lines.

    Raises:
        EndedError: It raised ``SystemExit``.
    """
    before = sys.argv[:]
    sys.argv[:1] = [name]
    try:
        yield
    except SystemExit as ended:
        code = 0 if ended.code is None else ended.code
        if isinstance(code, int) and code > 128:  # a signal, and not the user's code
            raise
        text = f"exit code {code}" if isinstance(code, int) else str(code)
        msg = f"SystemExit{_place_of(ended)} ({text})"
        raise EndedError(msg) from ended
    finally:
        sys.argv[:] = before


def describe_error(error: Exception) -> str:
    """Name an error of the user's code, and the last line of theirs that led to it."""
    if isinstance(error, EndedError):
        return f"{error}: it ended the process. What it reads of the command line is fsdp-migrate's"
    return f"{type(error).__name__}{_place_of(error)}: {error}".rstrip(". ")


def _place_of(error: BaseException) -> str:
    """Return where the user's own code was: not in a package, nor in Python's own modules."""
    own = sysconfig.get_path("stdlib")
    theirs = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename
        and frame.filename != __file__
        and not frame.filename.startswith((own, "<frozen"))
    ]
    return f" in {theirs[-1].filename}:{theirs[-1].lineno}" if theirs else ""
