"""Lightning's strategies in YAML: which file is Hydra's, and what reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.adapters.document.nodes import Mapping, effective
from fsdp_migrate.adapters.engine.base import mappings_of


if TYPE_CHECKING:
    from fsdp_migrate.adapters.engine.base import Block, Draft
    from fsdp_migrate.adapters.engine.settings import StrategyReader


def is_hydra(block: Block) -> bool:
    """Tell Hydra's YAML from that of LightningCLI."""
    if block.node is not None:
        return "_target_" in effective(block.node)
    targets = [mapping for _, mapping in mappings_of(block.root) if "_target_" in effective(mapping)]
    names = effective(block.root) if isinstance(block.root, Mapping) else {}
    return bool(targets) or "defaults" in names or block.settings.is_hydra


def tell_of_group(block: Block, draft: Draft) -> None:
    """Say what has to read a strategy of a Hydra group of whose file nothing tells that Hydra makes it."""
    names = effective(block.root) if isinstance(block.root, Mapping) else {}
    if block.settings.is_hydra and "_target_" not in effective(block.owner) and "defaults" not in names:
        text = (
            "A file above chooses this one as Hydra's: `hydra.utils.instantiate` alone makes a `_target_`, "
            "and `Trainer(**cfg.trainer)` stops at a mapping."
        )
        hint = "Where code calls that, write `Trainer(**hydra.utils.instantiate(cfg.trainer))`."
        draft.say("FM355", block.name, text, hint)


def tell_of_reader(block: Block, draft: Draft) -> StrategyReader | None:
    """Return the source that reads the word itself, and say why the word stays then."""
    hydra = is_hydra(block)
    reader = block.settings.reader(hydra)
    if reader is None:
        return None
    key, what = ("`_target_`", "`instantiate`") if hydra else ("`class_path`", "LightningCLI")
    text = (
        f"{reader.path} reads it itself, and no source here has {what}, which alone makes an object of "
        f"{key}: left as it is, because the Trainer takes no mapping."
    )
    if reader.makes_strategy:
        hint = "Make ModelParallelStrategy there in place of FSDPStrategy; `fsdp-migrate rewrite` says how."
    else:
        hint = (
            "Where it says `fsdp`, give the Trainer ModelParallelStrategy(data_parallel_size=<number of "
            "ranks>, tensor_parallel_size=1, save_distributed_checkpoint=False) there, and put the hook into "
            "the LightningModule. Either without the other does not shard."
        )
    draft.say("FM355", block.name, text, hint)
    return reader
