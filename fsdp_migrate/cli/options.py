"""The options of the commands: their words, their help and their groups.

All commands that report have the first three; the last are about checkpoints.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fsdp_migrate.cli.command_help import REPORT, RESULT, SOURCE, TARGET, WRITING, flag, option, words_of


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert import OutputOptions, ParameterMap, SourceOptions


Json = Annotated[bool, flag("--json", "Write one JSON document to stdout, not a report.", REPORT)]
Strict = Annotated[bool, flag("--strict", "Exit with 3 if anything would change.", REPORT)]
All = Annotated[bool, flag("--all", "Show everything, also what needs no action.", REPORT)]


Html = Annotated[
    Path | None, option("FILE", "Also write the report as one page of HTML.", REPORT, names="--html")
]
Markdown = Annotated[
    Path | None, option("FILE", "Also write it as Markdown, for a pull request.", REPORT, names="--markdown")
]
Sarif = Annotated[bool, flag("--sarif", "Write a SARIF log to stdout, which code hosts show.", REPORT)]


class Target(str, Enum):
    """Who is to read the output."""

    auto = "auto"
    torch = "torch"
    composer = "composer"
    accelerate = "accelerate"
    lightning = "lightning"
    torchtitan = "torchtitan"
    hf = "hf"


class DType(str, Enum):
    """The dtype of floating-point values in the output."""

    keep = "keep"
    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Link(str, Enum):
    """How data files that stay the same get into the output."""

    auto = "auto"
    hard = "hard"
    copy = "copy"


class StateDictType(str, Enum):
    """Which form of Accelerate's checkpoints is written."""

    auto = "auto"
    sharded = "sharded"
    full = "full"


class Tied(str, Enum):
    """Which unit owns a tied parameter."""

    parent = "parent"
    group = "group"


def _check_size(text: str) -> str:
    """Refuse what is no size, as wrong usage."""
    from fsdp_migrate.checkpoint_convert.manifest.options import parse_size
    from fsdp_migrate.errors import ConfigError

    try:
        parse_size(text)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    return text


def _check_renames(texts: list[str] | None) -> list[str] | None:
    """Refuse what is no rename, as wrong usage."""
    from fsdp_migrate.checkpoint_convert.manifest.keys import parse_rename
    from fsdp_migrate.errors import ConfigError

    try:
        for text in texts or ():
            parse_rename(text)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    return texts


Checkpoint = Annotated[
    str, typer.Argument(metavar="CKPT", help="A folder, a file or a URL.", show_default=False)
]
RankCount = Annotated[
    int | None, option("N", "Divide tensors as fully_shard on N ranks does.", RESULT, min=1)
]
MODEL_HELP = "What makes the model. It is run. Or transformers:FOLDER, a folder with a config.json."
SourceModel = Annotated[
    str | None,
    option(
        "PKG.MOD:FACTORY",
        "What makes the model that was saved, or transformers:FOLDER. It is run.",
        SOURCE,
        names="--model",
    ),
]
Output = Annotated[str | None, typer.Argument(metavar="OUT", help="The folder to make.", show_default=False)]
ShardSize = Annotated[
    str,
    option("SIZE", "For hf: how large a file may be, such as 5GB or 512MiB.", TARGET, callback=_check_size),
]
OptimizerClass = Annotated[str | None, option("NAME", "For composer: the class of the optimizer.", TARGET)]
StateDict = Annotated[
    StateDictType,
    option(
        "FORM",
        f"For accelerate: {words_of(StateDictType)}; auto asks a config beside CKPT or OUT.",
        TARGET,
        names="--state-dict-type",
    ),
]
Rename = Annotated[
    list[str] | None,
    option(
        "REGEX=NAME",
        "Change names of parameters, as re.sub does; repeatable.",
        RESULT,
        callback=_check_renames,
    ),
]
Map = Annotated[
    str | None,
    option(
        "MAP",
        "Hold parameters as a later model does: transformers-5, transformers-5:TYPE, or a file.",
        RESULT,
        names="--map",
    ),
]
Checksums = Annotated[bool, flag("--checksums", "Also write SHA256SUMS, which verify checks.", WRITING)]
TrustPickle = Annotated[bool, flag("--trust-pickle", "Copy objects of unknown classes, unread.", SOURCE)]
WeightsOnly = Annotated[bool, flag("--weights-only", "Only the model.", RESULT)]
WithoutOptimizer = Annotated[bool, flag("--without-optimizer", "Everything but optimizers.", RESULT)]
HfConfig = Annotated[
    str | None,
    option(
        "DIR",
        "For hf: the folder that config.json and the tokenizer are taken from.",
        TARGET,
        names="--hf-config",
    ),
]
KeepCorrupt = Annotated[
    bool, flag("--keep-corrupt-optimizer", "Copy an optimizer that torch saved corrupt (FM217).", RESULT)
]
Config = Annotated[
    Path | None,
    option("FILE", "FSDP1's arguments: the config of your framework, or keyword arguments as YAML or JSON."),
]
SourceConfig = Annotated[
    Path | None,
    option(
        "FILE", "YAML or JSON: the keyword arguments of the FSDP1 that saved it.", SOURCE, names="--config"
    ),
]


To = Annotated[Target, option("WHO", f"Which framework will read the output: {words_of(Target)}.", RESULT)]
ModelDType = Annotated[DType, option("DTYPE", f"The dtype of model weights: {words_of(DType)}.", RESULT)]
OptimizerDType = Annotated[DType, option("DTYPE", "The dtype of optimizer state.", RESULT)]
HowToLink = Annotated[
    Link, option("HOW", f"How unchanged data files get into OUT: {words_of(Link)}.", WRITING)
]
Overwrite = Annotated[bool, flag("--overwrite", "Replace OUT if it exists.", WRITING)]
Resume = Annotated[bool, flag("--resume", "Continue an interrupted conversion.", WRITING)]
Buffer = Annotated[int, option("MIB", "How many MiB to hold at once.", WRITING, min=1)]
DryRun = Annotated[bool, flag("--dry-run", "Show the plan and write nothing.", WRITING)]

Paths = Annotated[
    list[str],
    typer.Argument(metavar="PATH...", help="Files, folders and patterns.", show_default=False),
]


def source_options(model: str | None, config: Path | None, trust_pickle: bool) -> SourceOptions:
    """Return what the command line says about a source; a model is built on the meta device for it."""
    from fsdp_migrate.checkpoint_convert.manifest.options import SourceOptions

    outline = None
    if model is not None:
        from fsdp_migrate.config_files import read_config_file
        from fsdp_migrate.factories import build_run
        from fsdp_migrate.sharding.outlines import outline_model

        built, optimizer = build_run(model)
        arguments = None if config is None else read_config_file(config)
        outline = outline_model(built, arguments, optimizer=optimizer)
    elif config is not None:
        from fsdp_migrate.errors import ConfigError

        raise ConfigError("`--config` needs `--model`: the arguments flatten its parameters.", field="config")
    return SourceOptions(model=outline, trust_pickle=trust_pickle)


def output_options(
    max_shard_size: str,
    optimizer_class: str | None,
    renames: list[str] | None,
    hf_config: str | None,
    *,
    map: ParameterMap | None,
    keep_corrupt_optimizer: bool,
    state_dict_type: StateDictType,
) -> OutputOptions:
    """Return what the command line says about an output."""
    from fsdp_migrate.checkpoint_convert import read_model_files
    from fsdp_migrate.checkpoint_convert.manifest.options import OutputOptions, parse_size

    return OutputOptions(
        optimizer_class,
        parse_size(max_shard_size),
        tuple(renames or ()),
        {} if hf_config is None else read_model_files(hf_config),
        keep_corrupt_optimizer,
        state_dict_type.value,
        map,
    )
