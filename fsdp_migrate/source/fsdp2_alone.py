"""Whether FSDP2 alone shards a project's models: it calls ``fully_shard``, and nothing makes FSDP1's."""

from __future__ import annotations

import ast
import copy
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source import catalog
from fsdp_migrate.source.asked_around import ASKS_LIGHTNING, asked_around
from fsdp_migrate.source.live_sharding import LiveSharding
from fsdp_migrate.source.project import Place, dotted, is_a_test, last_name
from fsdp_migrate.source.python.made_by_others import is_made_by_others
from fsdp_migrate.source.python.walked import walked
from fsdp_migrate.source.python.wrappers import FSDP2


if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from pathlib import Path

    from fsdp_migrate.source.callers import Callers
    from fsdp_migrate.source.project import Module
    from fsdp_migrate.source.sharding_files import ShardingFiles


_OWN: Final = frozenset({catalog.FSDP, "ModelParallelStrategy", "fully_shard"})
# A setting, `getattr(args, "fsdp", False)`, is no function that shards.
_SETTING: Final = re.compile(
    r"\bgetattr\(\s*(?:\w+\.){0,5}(?:args|cfg|conf|config|hparams|opts?|options|settings)\s*,\s*['\"]"
)
_BY_NAME: Final = re.compile(r"\bgetattr\([^)\n]{0,500}fsdp", re.IGNORECASE)
# A launch that stands in no file of the project may ask these for FSDP1.
_OTHERS: Final = re.compile(
    r"\b(?:enable_wrap|prepare_fully_shard)\b|^[ \t]*import[ \t]+accelerate\b"
    r"|^[ \t]*from[ \t]+accelerate\b[^\n(]{0,500}(?:\([^)]{0,2000})?\bAccelerator\b"
    r"|^[ \t]*(?:from|import)[ \t]+(?:axolotl|composer|llamafactory|swift|trl|unsloth)\b"
    r"|^[ \t]*from[ \t]+transformers\b[^\n(]{0,500}(?:\([^)]{0,2000})?Trainer\b|\btransformers\.\w*Trainer\b",
    re.MULTILINE,
)
_LIGHTNING: Final = re.compile(
    r"^[ \t]*(?:from|import)[ \t]+(?:lightning(?:_fabric)?|pytorch_lightning)\b", re.MULTILINE
)
_BY_FSDP2: Final = re.compile(r"\bModelParallelStrategy\b|\bstrategies\.model_parallel\b")
# Hydra makes what a config names.
_NAMED: Final = re.compile(rf"(?i)_target_['\"]?\s*:[^\n]*\b{catalog.FSDP}\b")
_RUNS: Final = frozenset({"Fabric", "Trainer"})


@dataclass(eq=False)
class FSDP2Alone:
    """Answers so for a project. Reads only."""

    callers: Callers
    sharding: ShardingFiles
    around: Iterable[str | os.PathLike[str]] = ()
    """The files and folders that were given, where configs may ask Lightning for FSDP1."""
    _texts: dict[Path, str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        texts = self.callers.project.texts
        self._texts = {path: text for path, text in texts.items() if not is_a_test(path)}

    def holds(self) -> bool:
        """Tell whether it does, for certain."""
        if not self._shards() or is_made_by_others(list(self._texts.values())):
            return False
        if any(map(self._may_shard_otherwise, self._texts)) or asked_around(self.around, _NAMED):
            return False
        is_asked = not any(map(_LIGHTNING.search, self._texts.values())) or self._is_lightning_by_fsdp2()
        return is_asked and LiveSharding(self.callers, self.sharding).is_only_asked_for()

    def _may_shard_otherwise(self, path: Path) -> bool:
        return (_is_otherwise(self._texts[path]) and self._is_otherwise_bare(path)) or self.sharding.shards(
            path, _OWN
        )

    def _is_otherwise_bare(self, path: Path) -> bool:
        """Tell it of a file's tree: comments and docstrings do nothing."""
        module = self.callers.project.module(path)
        return module is None or _is_otherwise(ast.unparse(_Bare().visit(copy.deepcopy(module.tree))))

    def _shards(self) -> bool:
        """Tell whether a file makes use of FSDP2's function."""
        project = self.callers.project
        for module in project.parsed(each for each in self._texts if "fully_shard" in self._texts[each]):
            nodes = walked(module.tree)
            names = (dotted(node) for node in nodes if isinstance(node, (ast.Attribute, ast.Name)))
            if any(
                name is not None and project.qualified(name, Place(module, "")) in FSDP2 for name in names
            ):
                return True
        return False

    def _is_lightning_by_fsdp2(self) -> bool:
        """Tell whether Lightning shards by a strategy of FSDP2's, and each that is given to it is seen."""
        if not any(map(_BY_FSDP2.search, self._texts.values())) or asked_around(self.around, ASKS_LIGHTNING):
            return False
        for path in (each for each in self._texts if _LIGHTNING.search(self._texts[each])):
            module = self.callers.project.module(path)
            if module is None or not all(self._is_seen(each, module) for each in walked(module.tree)):
                return False
        return True

    def _is_seen(self, node: ast.AST, module: Module) -> bool:
        """Tell whether a call makes no Trainer of Lightning's, or one whose strategy stands there."""
        if not isinstance(node, ast.Call) or last_name(node.func) not in _RUNS:
            return True
        given = {each.arg: each.value for each in node.keywords}
        if None in given or node.args:
            return False
        strategy = given.get("strategy")
        if isinstance(strategy, ast.Constant):
            return "fsdp" not in str(strategy.value)
        name = (dotted(strategy.func) or "") if isinstance(strategy, ast.Call) else ""
        made = self.callers.project.named(name, Place(module, "")) if name else None
        if made is not None:
            return isinstance(made.node, ast.ClassDef) and "FSDPStrategy" not in ast.unparse(made.node)
        return strategy is None or (name.endswith("Strategy") and "FSDP" not in name)


class _Bare(ast.NodeTransformer):
    """Takes out texts that stand for themselves, as docstrings do."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return ast.copy_location(ast.Pass(), node) if is_text else self.generic_visit(node)


def _is_otherwise(text: str) -> bool:
    return _BY_NAME.search(_SETTING.sub("", text)) is not None or _OTHERS.search(text) is not None
