"""Python imports this when it starts, where the folder stands in ``PYTHONPATH``.

It shows each step of torch's optimizers to :mod:`fsdp_migrate.parity.watching`. Nothing of torch is imported
here: the launcher and other programs start with this too.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


_OPTIMIZER = "torch.optim.optimizer"


class _AfterImport:
    """Finds torch's module of optimizers as Python does, and puts the hooks on once it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _OPTIMIZER:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            loader, load = spec.loader, spec.loader.exec_module

            def load_and_hook(module: ModuleType) -> None:
                load(module)
                module.register_optimizer_step_pre_hook(_before)
                module.register_optimizer_step_post_hook(_after)

            vars(loader)["exec_module"] = load_and_hook
        return spec


def _before(optimizer: Any, args: Any, kwargs: Any) -> Any:
    from fsdp_migrate.parity.watching import before_step

    return before_step(optimizer, args, kwargs)


def _after(optimizer: Any, args: Any, kwargs: Any) -> None:
    del args, kwargs
    from fsdp_migrate.parity.watching import after_step

    after_step(optimizer)


def _run_the_one_behind() -> None:
    """Run the ``sitecustomize`` that this one hides, if there is one."""
    here = Path(__file__).resolve().parent
    others = [each for each in sys.path if Path(each or ".").resolve() != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


sys.meta_path.insert(0, _AfterImport())
_run_the_one_behind()
