"""Python imports this when it starts, where the folder stands in ``PYTHONPATH``.

It shows each step of torch's optimizers to :mod:`fsdp_migrate.parity.watching`, and has FSDP1 keep parameters
whole where it is asked to. Nothing of torch is imported here: the launcher and other programs start with this
too.
"""

from __future__ import annotations

import os
import sys
from functools import wraps
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType


_OPTIMIZER = "torch.optim.optimizer"
_FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel"
_WHOLE = "FSDP_MIGRATE_WHOLE"


class _AfterImport:
    """Finds a module as Python does, and calls a function with it once it is loaded."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name = name
        self.then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            loader, load = spec.loader, spec.loader.exec_module

            def load_and_go_on(module: ModuleType) -> None:
                load(module)
                self.then(module)

            vars(loader)["exec_module"] = load_and_go_on
        return spec


def _watch_optimizers(module: ModuleType) -> None:
    module.register_optimizer_step_pre_hook(_before)
    module.register_optimizer_step_post_hook(_after)


def _before(optimizer: Any, args: Any, kwargs: Any) -> Any:
    from fsdp_migrate.parity.watching import before_step

    return before_step(optimizer, args, kwargs)


def _after(optimizer: Any, args: Any, kwargs: Any) -> None:
    del args, kwargs
    from fsdp_migrate.parity.watching import after_step

    after_step(optimizer)


def _keep_whole(module: ModuleType) -> None:
    """Have FSDP1 shard nothing, whatever the script asks for: its gradients are all-reduced."""
    begin = module.FullyShardedDataParallel.__init__
    takes = signature(begin)

    @wraps(begin)
    def begin_whole(*args: Any, **kwargs: Any) -> None:
        given = takes.bind(*args, **kwargs).arguments
        given["sharding_strategy"] = module.ShardingStrategy.NO_SHARD
        # The hybrid strategies alone take two groups, or a mesh of two dimensions.
        if isinstance(given.get("process_group"), tuple):
            del given["process_group"]
        if getattr(given.get("device_mesh"), "ndim", 1) > 1:
            del given["device_mesh"]
        begin(**given)

    module.FullyShardedDataParallel.__init__ = begin_whole


def _run_the_one_behind() -> None:
    """Run the ``sitecustomize`` that this one hides, if there is one."""
    here = Path(__file__).resolve().parent
    others = [each for each in sys.path if Path(each or ".").resolve() != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


sys.meta_path.insert(0, _AfterImport(_OPTIMIZER, _watch_optimizers))
if _WHOLE in os.environ:
    sys.meta_path.insert(0, _AfterImport(_FSDP1, _keep_whole))
_run_the_one_behind()
