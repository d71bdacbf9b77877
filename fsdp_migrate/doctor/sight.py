"""What the doctor looks at: this environment, and the model, config, checkpoint and sources given to it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsdp_migrate import words
from fsdp_migrate.adapters.conversion.project_imports import TRAINER, text_if_there
from fsdp_migrate.adapters.conversion.text import find_blocks
from fsdp_migrate.adapters.document.nodes import plain
from fsdp_migrate.checkpoint_convert import inspect_checkpoint
from fsdp_migrate.config_files import read_config_file
from fsdp_migrate.config_texts import documents_of, read_text
from fsdp_migrate.doctor.known import MOST_SEEN, seen_of
from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.factories import build_model
from fsdp_migrate.findings import listed
from fsdp_migrate.sharding.plan import plan_fully_shard
from fsdp_migrate.source.files import SETTINGS, find_sources, read_source
from fsdp_migrate.source.pins import ExactPin, PinFound, find_exact_pins, find_pins, needed_by
from fsdp_migrate.source.python.meta_models import ON_META
from fsdp_migrate.torch_compat import devices
from fsdp_migrate.versions import installed_versions


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import nn

    from fsdp_migrate.checkpoint_convert import Manifest
    from fsdp_migrate.config import FSDP1Config
    from fsdp_migrate.sharding.plan import ShardPlan


_RANKS = 8
_ON_META = re.compile(rf"{ON_META.pattern}|\bto_empty\(|\bdeferred_init\b|\bskip_init\(")
# They may load on the meta device by a setting that stands elsewhere; a model of transformers alone does not.
_FRAMEWORKS = re.compile(
    rf"\b(?:accelerate|lightning|pytorch_lightning|trl)\b|{TRAINER.pattern}", re.MULTILINE
)
_LAUNCHES = re.compile(r"\baccelerate\b|\bcpu_ram_efficient_loading\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What there is to see. What was not given is None or empty; ``problem`` says why there is no plan.

    ``configs`` are YAML and JSON files, and shell scripts, beside the sources. ``pins`` are requirements that
    keep out FSDP2, ``exact_pins`` those for one version.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    has_accelerator: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)
    config: FSDP1Config | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    framework: str = ""
    model: nn.Module | None = None
    plan: ShardPlan | None = None
    problem: str = ""
    manifest: Manifest | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    configs: tuple[Path, ...] = ()
    pins: tuple[PinFound, ...] = ()
    exact_pins: tuple[ExactPin, ...] = ()

    def setting(self, name: str) -> Any:
        """Return a value of the config file as it stands there, with or without ``fsdp_`` before its key."""
        return self.settings.get(name, self.settings.get(f"fsdp_{name}"))

    @property
    def loads_on_meta(self) -> bool:
        """Whether a framework has the model go over the meta device, as Accelerate's launcher does."""
        value = self.setting("cpu_ram_efficient_loading")
        is_on = None if value is None else words.read_bool(value, "cpu_ram_efficient_loading")
        is_theirs = self.framework in {"accelerate", "hf"}
        return is_theirs and (self.framework == "accelerate" if is_on is None else is_on)

    @property
    def may_be_on_meta(self) -> bool:
        """Whether anything here makes models on the meta device, or what was given does not show it."""
        texts = self.sources.values()
        is_theirs = any(map(_FRAMEWORKS.search, texts))
        # Under its launcher `from_pretrained` loads so, whoever shards the model then.
        launched = is_theirs or any(_LAUNCHES.search(text_if_there(path)) for path in self.configs)
        is_unseen = not texts or (not self.framework and launched)
        return self.loads_on_meta or is_unseen or any(map(_ON_META.search, texts))

    def find(self, pattern: str, *, without: str = "") -> str:
        """Return the places of the source lines that match, in files that have nothing of ``without``.

        Example:
            >>> Sight(sources={"train.py": "dcp.load(state)"}).find("dcp.load")
            'train.py:1'
        """
        return listed(
            (
                f"{path}:{count}"
                for path, text in self.sources.items()
                if not (without and re.search(without, text))
                for count, line in enumerate(text.splitlines(), 1)
                if re.search(pattern, line.partition("#")[0])
            ),
            MOST_SEEN,
        )

    def findings(self, *codes: str) -> str:
        """Return what the plan and the checkpoint say under these codes, or nothing."""
        every = [
            *(self.plan.findings if self.plan else ()),
            *(self.manifest.findings if self.manifest else ()),
        ]
        return seen_of(
            f"{each.code}: {each.message.removesuffix('.')}" for each in every if each.code in codes
        )


def look(
    *,
    model: str | None = None,
    config: str | os.PathLike[str] | None = None,
    checkpoint: str | None = None,
    paths: Iterable[str] = (),
    world_size: int | None = None,
) -> Sight:
    """Look at what is given, and at this environment. Nothing is run but the model's factory.

    Args:
        model: The name of a factory, which is run on the meta device.
        config: A file with FSDP1's arguments.
        checkpoint: Any checkpoint that ``inspect`` reads.
        paths: Files and folders with Python sources.
        world_size: The number of ranks that the model is planned for; by default that of the config, or 8.

    Raises:
        FSDPMigrateError: Something that was given cannot be read.
    """
    files = tuple(paths)
    arguments = None if config is None else read_config_file(config)
    settings, framework = ({}, "") if config is None else _read_settings(Path(config))
    built = None if model is None else build_model(model)
    plan, problem = None, ""
    if built is not None:
        ranks, nodes = (world_size, 1) if world_size is not None else _ranks_and_nodes(settings)
        try:
            plan = plan_fully_shard(built, arguments, world_size=ranks, devices_per_node=ranks // nodes)
        except FSDPMigrateError as error:  # what else is wrong is to be said too
            problem = str(error)
    return Sight(
        versions=dict(installed_versions()),
        has_accelerator=devices.accelerator_type() is not None,
        environ=dict(os.environ),
        config=arguments,
        settings=settings,
        framework=framework,
        model=built,
        plan=plan,
        problem=problem,
        manifest=None if checkpoint is None else inspect_checkpoint(checkpoint),
        sources={str(path): read_source(path) for path in find_sources(files)},
        configs=tuple(find_sources(files, SETTINGS)) if files else (),
        pins=tuple(find_pins(files, needed_by(framework))),
        exact_pins=tuple(find_exact_pins(files)),
    )


def _ranks_and_nodes(settings: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many ranks on how many machines a config asks for; where it does not say, 8 on one.

    Accelerate writes all ranks and its machines, Lightning the ranks of a node and its nodes.

    Example:
        >>> _ranks_and_nodes({"num_processes": "4", "num_machines": 2}), _ranks_and_nodes({"devices": 4})
        ((4, 2), (4, 1))
        >>> _ranks_and_nodes({"devices": "auto"})
        (8, 1)
    """
    counts = {name: int(value) for name, value in settings.items() if str(value).isdecimal() and int(value)}
    if "devices" in counts:
        nodes = counts.get("num_nodes", 1)
        return counts["devices"] * nodes, nodes
    ranks = counts.get("num_processes", _RANKS)
    nodes = counts.get("num_machines", 1)
    return ranks, 1 if ranks % nodes else nodes


def _read_settings(path: Path) -> tuple[dict[str, Any], str]:
    """Return the scalars of a config file by their last keys, and whose file it is."""
    text = read_text(path)
    settings: dict[str, Any] = {}
    framework = ""
    for document in documents_of(path, text):
        settings.update(_scalars(plain(document)))
        framework = framework or next((block.framework for block in find_blocks(document)), "")
    return settings, framework


def _scalars(value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        return
    for key, each in value.items():
        if isinstance(each, dict):
            yield from _scalars(each)
        else:
            yield str(key), each
