"""Whether ``use_orig_params`` may be asked for where no source shows it.

By two stars, as in ``FSDP(net, **kwargs)``, or in the config by which Accelerate's launch shards.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source import catalog
from fsdp_migrate.source.asked_around import COMMENT, settings_around
from fsdp_migrate.source.project import Place, dotted
from fsdp_migrate.source.python.accelerate_models import ACCELERATE
from fsdp_migrate.source.python.argument_places import every_argument
from fsdp_migrate.source.python.kept_names import is_known_at_run_alone
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.python.starred_keys import is_given_by_stars


if TYPE_CHECKING:
    import ast
    import os
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from fsdp_migrate.source.project import Module, Project
    from fsdp_migrate.source.python.links import Links


ARGUMENT: Final = "use_orig_params"
_KEEPS: Final = re.compile(rf"(?i:{ARGUMENT})\b(?!['\"]?\]?[\s:=,]+['\"]?(?:(?i:false|no)|0)\b)")
"""What a config or a command says that may ask for parameters of their own names."""
_LAUNCHED: Final = "accelerate"
"""The framework whose launch gives its plugin what the config or a flag says."""


def with_unseen_names(
    project: Project, links: Mapping[Path, Links], around: Iterable[str | os.PathLike[str]]
) -> dict[Path, Links]:
    """Tell the files that hold FSDP1 where its class is given arguments that no file shows.

    What a config of the project says is taken for what they are, and for what Accelerate's plugin is given.
    """
    links = _with_names_at_run(project, links, around)
    makes = [path for path, text in project.texts.items() if catalog.FSDP in text and "**" in text]
    found = {_of_module(project, each) for each in filter(None, map(project.module, makes))} - {False}
    by_launch = [path for path, each in links.items() if _is_by_launch(each)]
    if not found and not by_launch:
        return dict(links)
    asked = any(_KEEPS.search(COMMENT.sub("", text)) for _, text in settings_around(around))
    says = (COMMENT.sub("", text) for text in project.texts.values() if ARGUMENT in text.lower())
    if by_launch and (asked or any(map(_KEEPS.search, says))):
        links = {
            **links,
            **{path: replace(links[path], keeps_names=True, names_at_run=False) for path in by_launch},
        }
    if not found:
        return dict(links)
    keeps = True in found or asked
    told = {*links, *(path for path, text in project.texts.items() if catalog.FSDP in text)}
    known = {path: links.get(path, NOTHING) for path in told}
    return {
        path: replace(
            each,
            keeps_names=each.keeps_names or keeps,
            names_at_run=each.names_at_run and not keeps,
            unseen_names=True,
        )
        for path, each in known.items()
    }


def _with_names_at_run(
    project: Project, links: Mapping[Path, Links], around: Iterable[str | os.PathLike[str]]
) -> Mapping[Path, Links]:
    """Tell files where names are kept whether only the run shows it."""
    if not any(each.keeps_names for each in links.values()):
        return links
    told = [COMMENT.sub("", text) for _, text in settings_around(around)]
    if any(map(_KEEPS.search, told)) or not is_known_at_run_alone([*project.texts.values(), *told]):
        return links
    return {path: replace(each, names_at_run=each.keeps_names) for path, each in links.items()}


def _is_by_launch(links: Links) -> bool:
    """Tell whether Accelerate shards models in a file, or what the file is given."""
    given = (kind for kinds in links.is_given.values() for kind in kinds)
    return _LAUNCHED in links.frameworks or ACCELERATE in given


def _of_module(project: Project, module: Module) -> bool | None:
    place = Place(module, "")

    def makes(call: ast.Call) -> bool:
        # Or it is given to what calls it later: `partial(FSDP, **kwargs)`.
        known = [call.func, *every_argument(call)]
        names = (project.qualified(dotted(each) or "", place) for each in known)
        return any(catalog.fsdp1_name(each) == catalog.FSDP for each in names)

    return is_given_by_stars(module.tree, makes, ARGUMENT)
