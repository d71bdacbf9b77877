"""Whose ``--fsdp`` a command has: the script's source tells, where it is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.adapters.conversion.own_flags import defines_fsdp
from fsdp_migrate.config_files import convert_config_file
from fsdp_migrate.config_texts import documents_of
from fsdp_migrate.errors import ConfigError, NothingToConvertError


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

OWN = 'p = ArgumentParser()\np.add_argument("--fsdp", type=str)\nargs = p.parse_args()\n'
RUN = 'torchrun {} --fsdp "full_shard auto_wrap" --max_steps 30\n'


def _project(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / next(name for name in files if name.endswith(".sh"))


@pytest.mark.parametrize(
    "files",
    [
        {"go.sh": RUN.format("train.py"), "train.py": OWN},
        {"jobs/go.sh": RUN.format("src/train.py"), "src/train.py": OWN},
        {"jobs/go.sh": RUN.format('"$HERE/code/train.py"'), "jobs/code/train.py": OWN},
        {"jobs/go.sh": RUN.format("$ROOT/all/code/train.py"), "jobs/code/train.py": OWN},
        {"go.sh": RUN.format("-m src.train"), "src/train.py": OWN},
        {"go.sh": RUN.format("train.py"), "train.py": "from parsing import get\n", "parsing.py": OWN},
        {"go.sh": RUN.format("train.py"), "train.py": OWN + "TrainingArguments(fsdp=args.fsdp)\n"},
        {
            "go.sh": RUN.format("train.py"),
            "train.py": '@click.option("--fsdp", default="")\ndef main(fsdp): ...\n',
        },
    ],
)
def test_a_flag_that_the_scripts_parser_has_is_its_own(files: dict[str, str], tmp_path: Path) -> None:
    path = _project(tmp_path, files)
    with pytest.raises(NothingToConvertError, match="`--fsdp` must be the script's own"):
        convert_config_file(path)
    with pytest.raises(ConfigError):
        documents_of(path, path.read_text())


@pytest.mark.parametrize(
    "source",
    [
        OWN.replace("p = ", "from transformers import HfArgumentParser\np = "),
        OWN.replace("--fsdp", "--fsdp2"),
        OWN + 'p.add_argument("--fsdp_config")\nTrainingArguments(**vars(args))\n',
        "",
    ],
)
def test_a_flag_that_may_be_hf_trainers_is_converted(source: str, tmp_path: Path) -> None:
    files = {"go.sh": RUN.format("train.py"), "train.py": source, "other.py": OWN}
    assert convert_config_file(_project(tmp_path, files)).is_changed


def test_flags_of_the_launcher_are_no_scripts(tmp_path: Path) -> None:
    launch = "accelerate launch --use_fsdp --fsdp_offload_params true train.py --fsdp 'full_shard'\n"
    done = convert_config_file(_project(tmp_path, {"go.sh": launch, "train.py": OWN}))
    assert "--fsdp_version 2" in done.conversion.text
    assert "--fsdp_config" not in done.conversion.text
    assert [f.code for f in done.conversion.findings if f.subject.endswith("--fsdp")] == ["FM345"]


def test_a_script_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OWN)
    assert not defines_fsdp(tmp_path, "$A/$B/train.py")
    assert not defines_fsdp(tmp_path, "lib/train.py")
    assert defines_fsdp(tmp_path, "$A/lib/train.py")
