"""Checkpoints that a migrated Composer run loads: as they are where they load so, or converted on the way."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch.distributed as dist

from fsdp_migrate.checkpoint_convert import convert_checkpoint, inspect_checkpoint, plan_conversion
from fsdp_migrate.checkpoint_convert.metadata import TensorEntry
from fsdp_migrate.errors import (
    CheckpointMismatchError,
    ConfigError,
    UnsupportedFeatureError,
)
from fsdp_migrate.findings import Finding, make_finding


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from fsdp_migrate.checkpoint_convert.metadata import Manifest


log = logging.getLogger(__name__)

Conversion = Literal["convert", "error"]
CACHE_SUFFIX = ".fsdp2"
"""What is appended to a checkpoint's name to name the folder of its conversion, beside it."""
_MODEL, _SCALER = ("state", "model"), ("state", "scaler")


@dataclass(frozen=True)
class Found:
    """What is to be loaded in place of a path, the scaler's names in it, and what there is to say."""

    path: str
    is_folder: bool
    scaler_names: tuple[str, ...] | None = None
    findings: tuple[Finding, ...] = ()


class CheckpointLoader:
    """Loads checkpoints for one Trainer, in place of Composer's ``load_checkpoint``, and by it."""

    def __init__(self, conversion: Conversion) -> None:
        if conversion not in get_args(Conversion):
            msg = f"`convert_checkpoints` is {conversion!r}; expected one of {get_args(Conversion)}."
            raise ConfigError(msg, field="convert_checkpoints")
        self.conversion = conversion
        self.findings: list[Finding] = []
        self.scaler_names: tuple[str, ...] | None = None
        """The names under which the checkpoint that is being loaded has the scaler; None: none is."""

    def load(self, call: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Load a checkpoint by Composer's function, after a look at it, or its conversion.

        Raises:
            CheckpointError: It is damaged, of another model, or would have to be converted and must not be.
        """
        state, path = arguments["state"], arguments["path"]
        config = state.fsdp_config
        kind = config.state_dict_type
        if arguments["object_store"] is not None:
            return call(**arguments)
        found: Found = _from_rank0(lambda: self._look(arguments, Path(path).resolve(), kind))
        arguments["path"], self.scaler_names = found.path, found.scaler_names
        self.findings.extend(found.findings)
        if found.is_folder:
            config.state_dict_type = "sharded"  # a folder can be loaded whatever is to be saved later
        try:
            return call(**arguments)
        finally:
            config.state_dict_type = kind
            self.scaler_names = None

    def _look(self, arguments: Mapping[str, Any], path: Path, kind: str) -> Found:
        """Return what is to be loaded, and what there is to say of it; on rank 0 only."""
        is_folder = path.is_dir()
        given = Found(str(arguments["path"]), is_folder=is_folder)
        if not path.exists() or (not is_folder and kind == "full"):
            return given  # a whole file is what Composer loads; what is not there, it says itself
        try:
            manifest = inspect_checkpoint(str(path))
            plan = plan_conversion(manifest, to="auto")
        except UnsupportedFeatureError as error:
            log.warning("%s is left to Composer to load: %s", path, error)
            return given
        if not arguments["ignore_keys"] and arguments["state"].fsdp_config.load_planner is None:
            check_same_model(manifest, arguments["state"].model, plan.renamed)
        scaler_names = _names_below(manifest, _SCALER)
        if is_folder and plan.action == "none":
            return Found(str(path), is_folder=True, scaler_names=scaler_names)
        converted = self._convert(path)
        text = f"{path} does not load as it is; {converted} is loaded in its place."
        findings = (make_finding("FM418", "load_path", text),)
        return Found(converted, is_folder=True, scaler_names=scaler_names, findings=findings)

    def _convert(self, path: Path) -> str:
        target = path.with_name(path.name + CACHE_SUFFIX)
        if self.conversion == "error":
            msg = (
                f"{str(path)!r} does not load into FSDP2 as it is, and `convert_checkpoints` is 'error'. "
                f"Convert it: `fsdp-migrate convert {path} {target}`, and load that."
            )
            raise CheckpointMismatchError(msg, path=path)
        if target.is_dir() and target.stat().st_mtime >= _last_change(path):
            log.warning("%s does not load into FSDP2 as it is; its conversion %s is used.", path, target)
            return str(target)
        log.warning("%s does not load into FSDP2 as it is; it is converted to %s.", path, target)
        convert_checkpoint(str(path), target, overwrite=target.exists())
        return str(target)


def _last_change(path: Path) -> float:
    """Return when the file, or the last of the folder's, was written."""
    return max(each.stat().st_mtime for each in ([path] if path.is_file() else path.iterdir()))


def _from_rank0(look: Callable[[], Any]) -> Any:
    """Return on every rank what rank 0 finds, or raise on every rank what it raises."""
    said: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            said[0] = look()
        except Exception as error:
            said[1] = error
    message = [said[0], None if said[1] is None else (type(said[1]).__name__, str(said[1]))]
    dist.broadcast_object_list(message, src=0)
    if said[1] is not None:
        raise said[1]
    if message[1] is not None:
        name, text = message[1]
        msg = f"Rank 0 cannot load the checkpoint, so no rank does: {name}: {text}"
        raise CheckpointMismatchError(msg)
    return message[0]


def check_same_model(manifest: Manifest, model: nn.Module, renamed: Mapping[str, str]) -> None:
    """Check that a checkpoint holds every parameter and buffer of the model, in its shape.

    Raises:
        CheckpointMismatchError: It does not; the message names what is missing, and the shapes that differ.
    """
    found = {
        ".".join(map(str, entry.path[len(_MODEL) :])): entry.shape
        for entry in manifest.entries.values()
        if isinstance(entry, TensorEntry) and entry.path is not None and entry.path[: len(_MODEL)] == _MODEL
    }
    if not found or renamed:
        return  # of a kind that only its conversion shows
    compare_models(found, model, manifest.source)


def compare_models(found: Mapping[str, tuple[int, ...]], model: nn.Module, source: str) -> None:
    """Compare the tensors of a checkpoint with the model's, by name and shape.

    Raises:
        CheckpointMismatchError: One is missing in the checkpoint, or has another shape there.
    """
    expected = {
        _plain(name): tuple(value.shape)
        for name, value in model.state_dict().items()
        if hasattr(value, "shape")
    }
    missing = [name for name in expected if name not in found]
    other = [name for name, shape in expected.items() if name in found and tuple(found[name]) != shape]
    if not missing and not other:
        return
    parts = [
        f"`{name}` has shape {list(found[name])} there and {list(expected[name])} here" for name in other
    ]
    parts += [f"`{name}` {list(expected[name])} is missing there" for name in missing]
    more = f"; and {len(parts) - 6} more" if len(parts) > 6 else ""
    msg = (
        f"{source!r} was not saved by this model: {'; '.join(parts[:6])}{more}. It holds "
        f"{len(found)} tensors such as {', '.join(f'`{name}`' for name in list(found)[:3])}. Build the model "
        "that saved it, or leave entries out by `load_ignore_keys`."
    )
    raise CheckpointMismatchError(msg, path=source)


def _plain(name: str) -> str:
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")


def _names_below(manifest: Manifest, prefix: tuple[str, ...]) -> tuple[str, ...]:
    depth = len(prefix)
    paths = [entry.path for entry in manifest.entries.values() if entry.path is not None]
    return tuple(dict.fromkeys(str(path[depth]) for path in paths if path[:depth] == prefix and path[depth:]))


def name_scaler(found: dict[str, Any], own: str, names: tuple[str, ...] | None) -> dict[str, Any]:
    """Put a scaler's state under the names that a checkpoint has, or both FSDP versions look for.

    Composer names it by its class: ``ShardedGradScaler`` under FSDP1, another under FSDP2, so that neither
    finds the other's.
    """
    state = found.get("scaler")
    if not state or own not in state:
        return found
    wanted = (own, "ShardedGradScaler") if names is None else names
    return {**found, "scaler": dict.fromkeys(wanted, state[own])} if wanted else found


def find_scaler(found: dict[str, Any], own: str) -> dict[str, Any]:
    """Put a loaded scaler's state under the name that this run has for it."""
    state = found.get("scaler")
    if not state or own in state:
        return found
    return {**found, "scaler": {own: next(iter(state.values()))}}
