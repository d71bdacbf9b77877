"""Checkpoints that a migrated Composer run loads: as they are where they load so, or converted on the way."""

from __future__ import annotations

import logging
import os
from contextlib import nullcontext
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
from fsdp_migrate.checkpoint_convert import CheckpointReader, inspect_checkpoint, plan_conversion
from fsdp_migrate.errors import (
    CheckpointMismatchError,
    CheckpointNotFoundError,
    FSDPMigrateError,
    RankError,
    UnsafePickleError,
    UnsupportedFeatureError,
)
from fsdp_migrate.findings import Finding, make_finding
from fsdp_migrate.sharding.consensus import share, together


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from fsdp_migrate.checkpoint_convert import ConversionPlan
    from fsdp_migrate.checkpoint_convert.manifest.manifest import Manifest

    ReadBy = Callable[[CheckpointReader], AbstractContextManager[None]]


__all__ = ["CACHE_SUFFIX", "CheckpointLoader", "Conversion", "compare_models", "find_scaler", "name_scaler"]

log = logging.getLogger(__name__)

_NAMES = {"AgreeingGradScaler": "GradScaler"}
"""What Composer's own FSDP2 calls the scaler that a migrated run has in its place."""
_PACKED = (".gz", ".bz2", ".lz4", ".zst", ".xz", ".lzma", ".tar", ".tgz", ".tar.gz")


class CheckpointLoader:
    """Loads checkpoints for one Trainer, in place of Composer's ``load_checkpoint``, and by it.

    Args:
        conversion: What becomes of a checkpoint that does not load as it is.
        cache_folder: Where conversions lie, if not beside their sources.
        read_by: Lets a reader take the place of Composer's for the folder of a sharded checkpoint.
    """

    def __init__(
        self,
        conversion: Conversion,
        cache_folder: str | Path | None = None,
        read_by: ReadBy = lambda reader: nullcontext(),
    ) -> None:
        self._cache = ConversionCache(conversion, cache_folder)
        self._read_by = read_by
        self.findings: list[Finding] = []
        self.scaler_names: tuple[str, ...] | None = None
        """The names under which the checkpoint that is being loaded has the scaler; None: none is."""

    def load(
        self, call: Callable[..., Any], arguments: dict[str, Any], shard: Callable[[], None] | None = None
    ) -> Any:
        """Load a checkpoint by Composer's function, after a look at it, read by our reader, or converted.

        ``shard`` shards a model that was left whole for a file that rank 0 alone would load.

        Raises:
            CheckpointError: It is damaged, of another model, or would have to be converted and must not be.
        """
        state = arguments["state"]
        config = state.fsdp_config
        kind = config.state_dict_type
        # One rank looks, and all follow: ranks that came to other answers would load by other collectives.
        found: Found = _from_rank0(lambda: self._look(arguments, kind))
        if arguments["object_store"] is None:
            _check_all_see(found.path)
        arguments["path"], self.scaler_names = found.path, found.scaler_names
        self.findings.extend(found.findings)
        if found.kind is not None:
            # Composer wraps later where it expects a file that rank 0 alone loads; this one needs shards.
            if found.kind == "sharded" and shard is not None and not state.fsdp_enabled:
                shard()
            config.state_dict_type = found.kind  # whatever is to be saved later
        try:
            return self._read(call, arguments) if found.is_read else call(**arguments)
        finally:
            config.state_dict_type = kind
            self.scaler_names = None

    def _read(self, call: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Load by Composer's function, which is given our reader in place of the one that it would make."""
        with CheckpointReader(arguments["path"], to="auto", options=TRUSTED) as reader:
            # Composer looks at the metadata by itself, where an error would be one of this rank alone.
            together(reader.open, [None], "cannot load the checkpoint, so no rank does", RankError)
            # Composer asks that there is a folder; the reader knows where to read.
            given = {**arguments, "path": os.curdir, "object_store": None}
            with self._read_by(reader):
                found = call(**given)
            self.findings.extend(reader.findings)
            return found

    def _look(self, arguments: Mapping[str, Any], kind: str) -> Found:
        """Return what is to be loaded, and what there is to say of it; on rank 0 only."""
        given, store = str(arguments["path"]), arguments["object_store"]
        run_name = getattr(arguments["state"], "run_name", None)
        if store is None:
            path = find_local(given, run_name)
            return self._look_here(arguments, path, kind) if path.exists() else Found(given)
        model = arguments["state"].model if _holds_to_model(arguments) else None
        read = (lambda url: self._look_behind(arguments, url)) if self._cache.conversion == "load" else None
        try:
            found = look_in_store(store, given, run_name, model, read)
        except FSDPMigrateError:
            raise
        except Exception as error:
            log.warning("%s is left to Composer to load: %s: %s", given, type(error).__name__, error)
            return Found(given)
        is_as_asked = found.kind == kind and not found.is_read
        return Found(found.path, None, found.scaler_names) if is_as_asked else found

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
        findings = _check_plan(plan, arguments)
        names = scaler_names(entry.path for entry in manifest.entries.values() if entry.path is not None)
        # Composer loads in part where it is only `decoupled_weight_decay` that torch misses.
        if path.is_dir() and (plan.action == "none" or plan.adds_only):
            return Found(str(path), "sharded", names, findings)
        if self._cache.conversion == "load" and not self._cache.is_made(path, manifest):
            why = _why_convert(path, plan)
            if why is None:
                return Found(str(path), "sharded", names, (*findings, _read_finding(path)), is_read=True)
            findings = (*findings, make_finding("FM440", "load_path", f"{path}: {why}."))
        converted = self._cache.convert(path, manifest)
        text = f"{path} does not load as it is; {converted} is loaded in its place."
        findings = (*findings, make_finding("FM418", "load_path", text))
        return Found(str(converted), "sharded", names, findings)

    def _look_behind(self, arguments: Mapping[str, Any], url: str) -> Found:
        """Look at what lies behind a URL and does not load as it is."""
        manifest = inspect_checkpoint(url, options=TRUSTED)
        plan = plan_conversion(manifest, to="auto")
        why = _why_convert(Path(url), plan)
        if why is not None:
            raise UnsupportedFeatureError(f"{why}.", feature="reading it as it is")
        names = scaler_names(entry.path for entry in manifest.entries.values() if entry.path is not None)
        findings = (*_check_plan(plan, arguments), _read_finding(url))
        return Found(url, "sharded", names, findings, is_read=True)


def _check_plan(plan: ConversionPlan, arguments: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Hold what a checkpoint offers against the model.

    Raises:
        CheckpointMismatchError: It is of another model.
    """
    shapes = model_shapes((tensor.path, tensor.source.shape) for tensor in plan.tensors)
    if not shapes or not _holds_to_model(arguments):
        return ()
    compare_models(shapes, arguments["state"].model, plan.manifest.source)
    return unused_finding(shapes, arguments["state"].model)


def _why_convert(path: Path, plan: ConversionPlan) -> str | None:
    """Say why a checkpoint must be converted before it is loaded; None where it can be read as it is."""
    if path.name.endswith(_PACKED):
        return "it is packed, and every rank would unpack it for itself"
    unlisted = [finding.subject for finding in plan.findings if finding.code == "FM209"]
    if unlisted:
        return f"`{unlisted[0]}` is an object of a class on no list, which only Composer itself can load"
    if not plan.is_distributed or set(plan.folders) - {""}:
        return "it is no checkpoint of Composer's"
    return None


def _read_finding(path: object) -> Finding:
    text = f"{path} does not load as it is. It is read straight into the shards, and nothing is written."
    return make_finding("FM439", "load_path", text)


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
    where = "cannot load the checkpoint, so no rank does"
    return share(look, [None], 0, where, CheckpointMismatchError)


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
