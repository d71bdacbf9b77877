"""The commands, in the order of the help; each stands in a file of its name. No logic of their own.

The library is imported inside the commands, so that ``--help`` does not wait for torch.
"""

from __future__ import annotations

from typing import Annotated

import typer

from fsdp_migrate.cli.command_help import REPORT, Command, Group, flag
from fsdp_migrate.cli.compare import compare
from fsdp_migrate.cli.config import config
from fsdp_migrate.cli.convert import convert
from fsdp_migrate.cli.demo import demo
from fsdp_migrate.cli.doctor import doctor
from fsdp_migrate.cli.explain import explain
from fsdp_migrate.cli.inspect import inspect
from fsdp_migrate.cli.parity import parity
from fsdp_migrate.cli.plan import plan
from fsdp_migrate.cli.rewrite import rewrite
from fsdp_migrate.cli.scan import scan
from fsdp_migrate.cli.verify import verify


app = typer.Typer(
    name="fsdp-migrate",
    cls=Group,
    help="Move a training run from PyTorch FSDP1 to FSDP2, with nothing dropped silently.",
    epilog="fsdp-migrate scan .",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"fsdp-migrate {version('fsdp-migrate')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, flag("--version", "Show the version.", REPORT, callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Move a training run from PyTorch FSDP1 to FSDP2, with nothing dropped silently."""
    del version


_CHECKPOINTS, _REPOSITORY = "Checkpoints", "Code and configs"
# The group of each command in the help, and examples of how it is typed.
for command, group, examples in (
    (demo, "A first look", "fsdp-migrate demo"),
    (inspect, _CHECKPOINTS, "fsdp-migrate inspect runs/step-100"),
    (
        convert,
        _CHECKPOINTS,
        """
        fsdp-migrate convert runs/step-100 runs/fsdp2/step-100
        fsdp-migrate convert runs/step-100 exported --to hf --dtype bf16
        """,
    ),
    (verify, _CHECKPOINTS, "fsdp-migrate verify runs/step-100 runs/fsdp2/step-100"),
    (
        plan,
        _REPOSITORY,
        "fsdp-migrate plan --model train:make_model --config fsdp.yaml --world-size 8",
    ),
    (
        parity,
        _REPOSITORY,
        """
        fsdp-migrate parity --model train:make_model --config fsdp.yaml
        fsdp-migrate parity --model transformers:config.json --steps 2
        """,
    ),
    (
        compare,
        _REPOSITORY,
        "fsdp-migrate compare ../before . -- torchrun --nproc-per-node 2 train.py --out OUT",
    ),
    (
        doctor,
        _REPOSITORY,
        """
        fsdp-migrate doctor .
        fsdp-migrate doctor --model train:make_model --config fsdp.yaml
        """,
    ),
    (
        config,
        _REPOSITORY,
        """
        fsdp-migrate config accelerate.yaml
        fsdp-migrate config accelerate.yaml --write
        """,
    ),
    (scan, _REPOSITORY, "fsdp-migrate scan ."),
    (
        rewrite,
        _REPOSITORY,
        """
        fsdp-migrate rewrite train.py
        fsdp-migrate rewrite src --write
        """,
    ),
    (
        explain,
        "Findings",
        """
        fsdp-migrate explain FM217
        fsdp-migrate explain
        """,
    ),
):
    app.command(cls=Command, epilog=examples, rich_help_panel=group)(command)
