"""The command ``inspect``."""

from __future__ import annotations

from typing import Annotated

from fsdp_migrate.cli.command_help import flag
from fsdp_migrate.cli.document import write_document
from fsdp_migrate.cli.options import (
    All,
    Checkpoint,
    Json,
    SourceConfig,
    SourceModel,
    TrustPickle,
    source_options,
)


def inspect(
    source: Checkpoint,
    deep: Annotated[bool, flag("--deep", "Also read and check every stored item.")] = False,
    model: SourceModel = None,
    config: SourceConfig = None,
    trust_pickle: TrustPickle = False,
    everything: All = False,
    json: Json = False,
) -> int:
    """Show what a checkpoint is, what it holds, and whether FSDP2 loads it as it is."""
    from fsdp_migrate.checkpoint_convert import inspect_checkpoint, plan_conversion
    from fsdp_migrate.checkpoint_convert.loading.advice import advise_loading
    from fsdp_migrate.cli.render.inspect import show_manifest, show_outlook
    from fsdp_migrate.cli.render.progress import watch_progress
    from fsdp_migrate.errors import PlanError

    given = source_options(model, config, trust_pickle)
    with watch_progress("Checking") as progress:
        manifest = inspect_checkpoint(source, deep=deep, options=given, progress=progress)
    try:
        plan, problem = plan_conversion(manifest), None
    except PlanError as error:
        plan, problem = None, error
    if json:
        conversion = plan.as_dict() if plan else {"error": str(problem)}
        loading = advise_loading(manifest).as_dict()
        write_document(
            "inspect", {"manifest": manifest.as_dict(), "conversion": conversion, "loading": loading}
        )
    else:
        named = {"--model": model, "--config": config}
        needed = [word for option, value in named.items() if value for word in (option, str(value))]
        needed += ["--trust-pickle"] if trust_pickle else []
        show_manifest(manifest)
        show_outlook(manifest, plan, problem, needed, everything=everything)
    return 0
