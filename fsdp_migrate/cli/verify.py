"""The command ``verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fsdp_migrate.cli.command_help import RESULT, option, words_of
from fsdp_migrate.cli.document import write_document
from fsdp_migrate.cli.options import (
    DType,
    Html,
    Json,
    Map,
    Markdown,
    Rename,
    SourceConfig,
    SourceModel,
    TrustPickle,
    WeightsOnly,
    WithoutOptimizer,
    source_options,
)


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert import SourceOptions
    from fsdp_migrate.cli.pages.output import Pages


def verify(
    first: Annotated[str, typer.Argument(metavar="A", help="A checkpoint.", show_default=False)],
    second: Annotated[str | None, typer.Argument(metavar="B", help="Another.", show_default=False)] = None,
    rename: Rename = None,
    map: Map = None,
    dtype: Annotated[
        DType, option("DTYPE", f"The dtype that A's weights were cast to: {words_of(DType)}.", RESULT)
    ] = DType.keep,
    optimizer_dtype: Annotated[DType, option("DTYPE", "The same for optimizer state.", RESULT)] = DType.keep,
    weights_only: WeightsOnly = False,
    without_optimizer: WithoutOptimizer = False,
    model: SourceModel = None,
    config: SourceConfig = None,
    trust_pickle: TrustPickle = False,
    html: Html = None,
    markdown: Markdown = None,
    json: Json = False,
) -> int:
    """Check one checkpoint in itself, or two and compare them bit for bit, however they are divided.

    Reads every stored item. Exits with 1 if one is damaged, or if the two
    differ. If the conversion of A into B was asked to change something,
    give the same options here: A is changed in the same way first.
    """
    from fsdp_migrate.cli.pages.output import wanted_pages
    from fsdp_migrate.cli.pages.verify import verification_report
    from fsdp_migrate.cli.render.progress import watch_progress
    from fsdp_migrate.cli.render.verify import show_verification

    wanted: dict[str, Any] = {
        "renames": tuple(rename or ()),
        "map": map,
        "dtype": dtype.value,
        "optimizer_dtype": optimizer_dtype.value,
        "weights_only": weights_only,
        "without_optimizer": without_optimizer,
    }
    pages = wanted_pages(html, markdown)
    given = source_options(model, config, trust_pickle)
    if second is None:
        _refuse_options(wanted)
        return _check(first, given, pages, json=json)
    from fsdp_migrate.checkpoint_convert import verify_checkpoints

    with watch_progress("Comparing") as progress:
        report = verify_checkpoints(first, second, **wanted, options=given, progress=progress)
    if json:
        write_document("verify", report.as_dict())
    else:
        show_verification(report)
    pages.write(lambda: verification_report(report), aside=json)
    return 0 if report.is_same else 1


def _check(source: str, given: SourceOptions, pages: Pages, *, json: bool) -> int:
    """Check one checkpoint in itself; return the exit code."""
    from fsdp_migrate.checkpoint_convert import check_checkpoint
    from fsdp_migrate.cli.pages.verify import check_report
    from fsdp_migrate.cli.render.progress import watch_progress
    from fsdp_migrate.cli.render.verify import show_check

    with watch_progress("Checking") as progress:
        checked = check_checkpoint(source, progress=progress, options=given)
    if json:
        write_document("verify", checked.as_dict())
    else:
        show_check(checked)
    pages.write(lambda: check_report(checked), aside=json)
    return 0 if checked.is_whole else 1


def _refuse_options(wanted: dict[str, Any]) -> None:
    """Refuse what says how two checkpoints differ where there is one."""
    from fsdp_migrate.errors import ConfigError

    for name, value in wanted.items():
        if value not in ((), None, False, DType.keep.value):
            option = "--" + name.removesuffix("s").replace("_", "-")
            raise ConfigError(f"`{option}` is for comparing: name the second checkpoint too.", field=name)
