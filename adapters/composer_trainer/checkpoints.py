"""Checkpoints that a migrated Composer run loads: as they are where they load so, or converted on the way."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from fsdp_migrate.adapters.composer_trainer.conversion_cache import (
    CACHE_SUFFIX,
    TRUSTED,
    Conversion,
    ConversionCache,
)
from fsdp_migrate.adapters.composer_trainer.load_paths import (
    Found,
    compare_models,
    find_local,
    look_in_store,
    model_shapes,
    scaler_names,
    shapes_of,
    unused_finding,
)
from fsdp_migrate.checkpoint_convert import inspect_checkpoint, plan_conversion
from fsdp_migrate.errors import (
    CheckpointMismatchError,
    CheckpointNotFoundError,
    FSDPMigrateError,
    UnsafePickleError,
    UnsupportedFeatureError,
)
from fsdp_migrate.findings import Finding, make_finding


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fsdp_migrate.checkpoint_convert.manifest.manifest import Manifest


__all__ = ["CACHE_SUFFIX", "CheckpointLoader", "Conversion", "compare_models", "find_scaler", "name_scaler"]

log = logging.getLogger(__name__)

_NAMES = {"AgreeingGradScaler": "GradScaler"}
"""What Composer's own FSDP2 calls the scaler that a migrated run has in its place."""
_PACKED = (".gz", ".bz2", ".lz4", ".zst", ".xz", ".lzma", ".tar", ".tgz", ".tar.gz")


class CheckpointLoader:
    """Loads checkpoints for one Trainer, in place of Composer's ``load_checkpoint``, and by it."""

    def __init__(self, conversion: Conversion, cache_folder: str | Path | None = None) -> None:
        self._cache = ConversionCache(conversion, cache_folder)
        self.findings: list[Finding] = []
        self.scaler_names: tuple[str, ...] | None = None
        """The names under which the checkpoint that is being loaded has the scaler; None: none is."""

    def load(
        self, call: Callable[..., Any], arguments: dict[str, Any], shard: Callable[[], None] | None = None
    ) -> Any:
        """Load a checkpoint by Composer's function, after a look at it, or its conversion.

        ``shard`` shards a model that was left whole for a file that rank 0 alone would load.

        Raises:
            CheckpointError: It is damaged, of another model, or would have to be converted and must not be.
        """
        state = arguments["state"]
        config = state.fsdp_config
        kind = config.state_dict_type
        found: Found = _from_rank0(lambda: self._look(arguments, kind))
        if arguments["object_store"] is None:
            _check_all_see(found.path)
        arguments["path"], self.scaler_names = found.path, found.scaler_names
        self.findings.extend(found.findings)
        if found.kind is not None:
            if found.kind == "sharded" and shard is not None and not state.fsdp_enabled:
                shard()
            config.state_dict_type = found.kind  # whatever is to be saved later
        try:
            return call(**arguments)
        finally:
            config.state_dict_type = kind
            self.scaler_names = None

    def _look(self, arguments: Mapping[str, Any], kind: str) -> Found:
        """Return what is to be loaded, and what there is to say of it; on rank 0 only."""
        given, store = str(arguments["path"]), arguments["object_store"]
        run_name = getattr(arguments["state"], "run_name", None)
        if store is None:
            path = find_local(given, run_name)
            return self._look_here(arguments, path, kind) if path.exists() else Found(given)
        model = arguments["state"].model if _holds_to_model(arguments) else None
        try:
            found = look_in_store(store, given, run_name, model)
        except FSDPMigrateError:
            raise
        except Exception as error:
            log.warning("%s is left to Composer to load: %s: %s", given, type(error).__name__, error)
            return Found(given)
        return Found(found.path, None, found.scaler_names) if found.kind == kind else found

    def _look_here(self, arguments: Mapping[str, Any], path: Path, kind: str) -> Found:
        is_whole = kind == "full" and path.is_file()
        if is_whole and path.name.endswith(_PACKED):
            return Found(str(path))  # Composer unpacks it
        try:
            manifest = inspect_checkpoint(str(path), options=TRUSTED)
        except (UnsupportedFeatureError, UnsafePickleError) as error:
            log.warning("%s is left to Composer to load: %s", path, error)
            return Found(str(path))
        if is_whole and manifest.layout == "file":
            return Found(str(path), findings=_check_file(manifest, arguments))
        plan = plan_conversion(manifest, to="auto")
        findings: tuple[Finding, ...] = ()
        shapes = model_shapes((tensor.path, tensor.source.shape) for tensor in plan.tensors)
        if shapes and _holds_to_model(arguments):
            compare_models(shapes, arguments["state"].model, manifest.source)
            findings = unused_finding(shapes, arguments["state"].model)
        names = scaler_names(entry.path for entry in manifest.entries.values() if entry.path is not None)
        # Composer loads in part where it is only `decoupled_weight_decay` that torch misses.
        if path.is_dir() and (plan.action == "none" or plan.adds_only):
            return Found(str(path), "sharded", names, findings)
        converted = self._cache.convert(path, manifest)
        text = f"{path} does not load as it is; {converted} is loaded in its place."
        findings = (*findings, make_finding("FM418", "load_path", text))
        return Found(str(converted), "sharded", names, findings)


def _holds_to_model(arguments: Mapping[str, Any]) -> bool:
    """Tell whether a checkpoint must be of this model: nothing was said that leaves parts of it out."""
    return not arguments["ignore_keys"] and arguments["state"].fsdp_config.load_planner is None


def _check_file(manifest: Manifest, arguments: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Hold a whole file against the model, whose names Composer need not find unless it is strict.

    Raises:
        CheckpointMismatchError: A shape differs, nothing fits, or a name is missing that must not be.
    """
    found = model_shapes((tensor.path, tensor.shape) for tensor in manifest.tensors)
    if not found or not _holds_to_model(arguments):
        return ()
    model = arguments["state"].model
    expected = shapes_of(model)
    common = {name: shape for name, shape in found.items() if name in expected}
    is_strict = arguments["strict_model_weights"] or not common
    compare_models(found if is_strict else {**expected, **common}, model, manifest.source)
    return unused_finding(found, model)


def _check_all_see(path: str) -> None:
    """Check that what rank 0 is about to load is there for every rank: otherwise the others wait for it.

    Raises:
        CheckpointNotFoundError: On every rank, if one does not see it.
    """
    sees: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(sees, Path(path).exists())
    blind = [rank for rank, there in enumerate(sees) if not there]
    if blind and len(blind) < len(sees):  # that it is nowhere, Composer says itself
        msg = (
            f"Rank 0 is to load {path!r}, and the ranks {blind} do not see it. Put it, and a conversion's "
            "folder (`cache_folder`), where every node sees it."
        )
        raise CheckpointNotFoundError(msg, path=path)


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


def name_scaler(found: dict[str, Any], own: str, names: tuple[str, ...] | None) -> dict[str, Any]:
    """Put a scaler's state under the names that a checkpoint has, or both FSDP versions look for.

    Composer names it by its class: ``ShardedGradScaler`` under FSDP1, another under FSDP2, so that neither
    finds the other's.
    """
    state = found.get("scaler")
    if not state or own not in state:
        return found
    wanted = (_NAMES.get(own, own), "ShardedGradScaler") if names is None else names
    return {**found, "scaler": dict.fromkeys(wanted, state[own])} if wanted else found


def find_scaler(found: dict[str, Any], own: str) -> dict[str, Any]:
    """Put a loaded scaler's state under the name that this run has for it."""
    state = found.get("scaler")
    if not state or own in state:
        return found
    return {**found, "scaler": {own: next(iter(state.values()))}}
