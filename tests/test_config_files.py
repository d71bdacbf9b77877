"""Config files: what is written, where, and when not."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate import convert_config_file
from fsdp_migrate.adapters.document.yaml_reader import read_yaml
from fsdp_migrate.config_files import (
    ConfigConversion,
    convert_command_line,
    read_config_file,
    recomputes_units,
)
from fsdp_migrate.errors import ConfigError, FindingsError, OutputError, OutputExistsError
from fsdp_migrate.newer_syntax import parse_any
from tests.ranks import ROOT


if TYPE_CHECKING:
    import ast

    from fsdp_migrate.adapters.document.nodes import Node


pytestmark = pytest.mark.any_torch


EXAMPLE = ROOT / "examples" / "configs" / "accelerate.yaml"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_bytes(EXAMPLE.read_bytes())
    path.chmod(0o640)
    return path


def test_without_a_place_to_write_nothing_is_written(source: Path) -> None:
    report = convert_config_file(source)
    assert report.is_changed
    assert "+  fsdp_version: 2" in report.diff()
    assert [path.name for path in source.parent.iterdir()] == ["config.yaml"]
    assert source.read_bytes() == EXAMPLE.read_bytes()


def test_a_file_is_parsed_once_and_what_becomes_of_it_once(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []

    def read(text: str) -> list[Node]:
        parsed.append(text)
        return read_yaml(text)

    monkeypatch.setattr("fsdp_migrate.adapters.conversion.text.read_yaml", read)
    report = convert_config_file(source)
    assert parsed == [report.conversion.source, report.conversion.text]


@pytest.mark.parametrize(
    ("line", "parsed"),
    [
        ("self.head = nn.Linear(8, 9, bias=False)", False),
        ("self.head = nn.Linear(8, 9, bias=bias, dtype=None)", False),
        ("self.head.bias=self.tok.bias", True),
        ("self.head.weight = self.tok.weight", True),
        ("self.lm = AutoModel.from_pretrained(name)", True),
    ],
)
def test_sources_are_parsed_where_one_may_tie_weights(
    line: str, source: Path, monkeypatch: pytest.MonkeyPatch, *, parsed: bool
) -> None:
    texts: list[str] = []

    def read(text: str) -> ast.Module:
        texts.append(text)
        return parse_any(text)

    monkeypatch.setattr("fsdp_migrate.adapters.conversion.project_imports.parse_any", read)
    (source.parent / "setup.py").write_text("")
    (source.parent / "net.py").write_text(f"class Net(nn.Module):\n    def __init__(self):\n        {line}\n")
    convert_config_file(source)
    assert bool(texts) == parsed


def test_an_output_is_written_with_the_permissions_of_the_source(source: Path) -> None:
    out = source.with_name("out.yaml")
    report = convert_config_file(source, out)
    assert out.read_text() == report.conversion.text
    assert stat.S_IMODE(out.stat().st_mode) == 0o640
    assert source.read_bytes() == EXAMPLE.read_bytes()
    with pytest.raises(OutputExistsError, match="exists already"):
        convert_config_file(source, out)
    convert_config_file(source, out, overwrite=True)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("fsdp_qlora.yaml", "FM343"),
        ("fsdp-4bit.yml", "FM343"),
        ("fsdp_bnb_nf4.yaml", "FM343"),
        ("fsdp.yaml", "FM340"),
        ("fsdp_bnb_8bit.yaml", "FM340"),
        ("fsdp_bnb.yaml", "FM340"),
        ("fsdp_no_qlora.yaml", "FM340"),
        ("fsdp-without-4bit.yaml", "FM340"),
        ("fsdp_64bit.yaml", "FM340"),
    ],
)
def test_a_files_name_tells_of_4_bit_weights(tmp_path: Path, name: str, code: str) -> None:
    """FSDP2 sends none of rank 0's weights then: more to do than to read."""
    text = "distributed_type: FSDP\nfsdp_config:\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    (tmp_path / name).write_text(f"{text}  fsdp_cpu_ram_efficient_loading: true\n")
    found = convert_config_file(tmp_path / name).conversion.findings
    (said,) = [each for each in found if each.subject.endswith("cpu_ram_efficient_loading")]
    assert said.code == code
    assert (f"of `{name}` has such weights, as its name says" in said.message) == (code == "FM343")


@pytest.mark.parametrize(
    ("imported", "is_said"),
    [
        ("mamba_ssm", False),
        ("bitsandbytes", True),
        ("transformers", True),
        ("diffusers", True),
        ("peft", True),
    ],
)
def test_a_name_says_nothing_of_a_project_that_loads_no_such_weights(
    tmp_path: Path, imported: str, *, is_said: bool
) -> None:
    (tmp_path / "requirements.txt").touch()
    (tmp_path / "train.py").write_text(f"from accelerate import Accelerator\nimport {imported}\n")
    text = "distributed_type: FSDP\nfsdp_config:\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    (tmp_path / "fsdp_qlora.yaml").write_text(f"{text}  fsdp_cpu_ram_efficient_loading: true\n")
    found = convert_config_file(tmp_path / "fsdp_qlora.yaml").conversion.findings
    (said,) = [each for each in found if each.subject.endswith("cpu_ram_efficient_loading")]
    assert ("as its name says" in said.message) is is_said
    if not is_said:
        assert said.code == "FM343"
        assert "FSDP2 stops at buffers" in said.message
        assert "4-bit" not in said.message


LOADS = "from transformers import BitsAndBytesConfig\n\nconfig = BitsAndBytesConfig({})\n"


@pytest.mark.parametrize(
    ("source", "is_said"),
    [
        (LOADS.format("load_in_4bit=True"), True),
        (LOADS.format("**{'load_in_4bit': True}"), True),
        (LOADS.format("bnb_4bit_quant_storage=dtype"), True),
        (LOADS.format("load_in_4bit=args.bits == 4"), False),
        (LOADS.format("load_in_8bit=True"), False),
        (LOADS.format(")  # load_in_4bit=True"), False),
        ("config = dict(load_in_4bit=True)\n", False),
    ],
)
@pytest.mark.parametrize("line", ["  fsdp_cpu_ram_efficient_loading: true\n", ""])
def test_a_source_tells_of_4_bit_weights(tmp_path: Path, source: str, line: str, *, is_said: bool) -> None:
    (tmp_path / "requirements.txt").touch()
    (tmp_path / "train.py").write_text(source)
    text = "distributed_type: FSDP\nfsdp_config:\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    (tmp_path / "fsdp.yaml").write_text(f"{text}{line}")
    found = convert_config_file(tmp_path / "fsdp.yaml").conversion.findings
    (said,) = [each for each in found if each.subject.endswith("cpu_ram_efficient_loading")]
    assert said.code == ("FM343" if is_said else "FM340")
    assert ("A source of this project has such weights: train.py:3." in said.message) is is_said


def test_the_source_is_no_output(source: Path) -> None:
    with pytest.raises(OutputExistsError, match="the source itself"):
        convert_config_file(source, source, overwrite=True)


def test_in_place_keeps_every_backup(source: Path) -> None:
    (source.parent / "config.yaml.fsdp1").write_text("mine")
    report = convert_config_file(source, in_place=True)
    assert report.backup == str(source.with_name("config.yaml.fsdp1.1"))
    assert Path(report.backup).read_bytes() == EXAMPLE.read_bytes()
    assert source.read_text() == report.conversion.text
    assert (source.parent / "config.yaml.fsdp1").read_text() == "mine"
    again = convert_config_file(source, in_place=True)
    assert again.is_fsdp2
    assert again.backup is None


def test_in_place_through_a_link_keeps_the_link(source: Path) -> None:
    link = source.with_name("link.yaml")
    link.symlink_to(source)
    convert_config_file(link, in_place=True)
    assert link.is_symlink()
    assert "fsdp_version: 2" in source.read_text()


def test_a_disk_that_is_full_leaves_nothing(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        del descriptor
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        convert_config_file(source, in_place=True)
    assert [path.name for path in source.parent.iterdir()] == ["config.yaml"]
    assert source.read_bytes() == EXAMPLE.read_bytes()


def test_strict_stops_before_anything_is_written(source: Path) -> None:
    with pytest.raises(FindingsError) as caught:
        convert_config_file(source, in_place=True, strict=True)
    assert {f.code for f in caught.value.findings} == {"FM354"}
    assert source.read_bytes() == EXAMPLE.read_bytes()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a: [1\n", "config.yaml': Line 2"),
        (b"\x00\x01\x02", "is no text: it has zero bytes"),
        (b"distributed_type: FSDP # \xff\n", "is no text in UTF-8: byte 0xff in line 1"),
        (b"", "Nothing in it configures FSDP"),
        (b"- 1\n- 2\n", "Nothing in it configures FSDP"),
        (b"just words", "Nothing in it configures FSDP"),
        (b"distributed_type: FSDP\nfsdp_config: text\n", "What names FSDP is `fsdp_config`"),
        (b"model:\n  use_fsdp: true\n", "What names FSDP is `model.use_fsdp`"),
    ],
)
def test_bad_files_are_errors_and_stay(source: Path, data: bytes, message: str) -> None:
    source.write_bytes(data)
    with pytest.raises(ConfigError, match=message):
        convert_config_file(source, in_place=True)
    assert source.read_bytes() == data
    assert [path.name for path in source.parent.iterdir()] == ["config.yaml"]


def test_what_is_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        convert_config_file(tmp_path)
    with pytest.raises(ConfigError, match="There is no file"):
        convert_config_file(tmp_path / "none.yaml")


def test_a_file_that_is_too_large_is_not_read(source: Path) -> None:
    os.truncate(source, 100 << 20)
    with pytest.raises(ConfigError, match="no config is larger"):
        convert_config_file(source)


def test_a_key_that_is_not_there_is_an_error_with_the_nearest(source: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean `fsdp_config`"):
        convert_config_file(source, key="fsdp_confg")


def test_two_places_to_write_are_an_error(source: Path) -> None:
    with pytest.raises(ConfigError, match="Give one of them"):
        convert_config_file(source, source.with_name("x"), in_place=True)


def test_arguments_are_read_from_a_frameworks_config() -> None:
    config = read_config_file(EXAMPLE)
    assert config.sharding_strategy == "HYBRID_SHARD"
    assert config.auto_wrap_policy.classes == ("LlamaDecoderLayer",)
    assert config.mixed_precision is not None
    assert config.mixed_precision.param_dtype == "bfloat16"


def test_arguments_of_several_blocks_need_a_key(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(
        "".join(f"{n}:\n  distributed_type: FSDP\n  fsdp_config: {{fsdp_sharding_strategy: {s}}}\n"
                for n, s in (("a", 1), ("b", 2)))
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"`a\.fsdp_config`, `b\.fsdp_config`"):
        read_config_file(path)
    assert read_config_file(path, key="b.fsdp_config").sharding_strategy == "SHARD_GRAD_OP"


@pytest.mark.parametrize(
    "text",
    [
        "sharding_strategy: FULL_SHARD\nmixed_precision: {param_dtype: bfloat16}\n",
        "parallelism_config:\n  fsdp: {sharding_strategy: FULL_SHARD, mixed_precision: DEFAULT}\n",
        (
            "trainer:\n  accelerator: gpu\n  strategy:\n"
            "    class_path: lightning.pytorch.strategies.FSDPStrategy\n"
            "    init_args: {sharding_strategy: FULL_SHARD}\n"
        ),
    ],
    ids=["torch", "composer", "lightning"],
)
def test_settings_of_fsdp2_are_not_read_as_fsdp1s(text: str, tmp_path: Path) -> None:
    """They have other words, and what they say would be lost without one."""
    path = tmp_path / "config.yaml"
    path.write_text(text)
    assert read_config_file(path).sharding_strategy == "FULL_SHARD"
    assert convert_config_file(path, in_place=True, world_size=2).is_changed
    with pytest.raises(ConfigError, match="settings of FSDP2 already"):
        read_config_file(path)
    assert read_config_file(f"{path}.fsdp1", key=None).sharding_strategy == "FULL_SHARD"


@pytest.mark.parametrize(
    ("command", "name", "text"),
    [
        (
            "accelerate launch --config_file accelerate.yaml train.py",
            "accelerate.yaml",
            "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: 1\n",
        ),
        (
            "python train.py --fsdp 'full_shard auto_wrap' --fsdp_config fsdp.json",
            "fsdp.json",
            '{"backward_prefetch": "backward_pre", "transformer_layer_cls_to_wrap": ["Block"]}',
        ),
    ],
    ids=["accelerate", "hf"],
)
def test_another_file_that_was_converted_is_not_to_be_converted(
    command: str, name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FM356 asked for the file that had just been converted."""
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "run.sh"
    script.write_text(f"{command}\n")
    (tmp_path / "scripts" / name).write_text(text)

    def codes(done: ConfigConversion) -> set[str]:
        return {finding.code for finding in done.conversion.findings}

    assert "FM356" in codes(convert_config_file(script))
    framework = "hf" if name.endswith("json") else "auto"
    assert convert_config_file(tmp_path / "scripts" / name, in_place=True, framework=framework).is_changed
    found = codes(convert_config_file(script))
    assert "FM356" not in found
    assert "FM347" in found
    if "launch" in command:  # the other command has settings of its own beside the file
        assert convert_config_file(script).has_nothing
    # A command has no file of its own: names in it begin at the folder that one is in.
    monkeypatch.chdir(tmp_path)
    assert "FM356" in codes(convert_command_line(command))
    monkeypatch.chdir(tmp_path / "scripts")
    assert "FM356" not in codes(convert_command_line(command))


def test_arguments_are_read_where_a_file_of_the_projects_own_holds_them(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text("seed: 0\nfsdp:\n  sharding_strategy: NO_SHARD\n  use_orig_params: true\n")
    assert read_config_file(path).sharding_strategy == "NO_SHARD"
    path.write_text("seed: 0\nfsdp:\n  sharding_strategy: NO_SHARD\n  param_dtype: bf16\n")
    with pytest.raises(ConfigError, match=r"`param_dtype` is no .* below `fsdp`.* in a file of their own"):
        read_config_file(path)
    path.write_text("seed: 0\nmodel: tiny\n")
    with pytest.raises(ConfigError, match="`seed` is no argument of FullyShardedDataParallel"):
        read_config_file(path)


FLAGS = "--fsdp_sharding_strategy SHARD_GRAD_OP --fsdp_use_orig_params true"


def test_flags_of_a_launch_line_are_read_as_fsdp1s_arguments(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f'#!/bin/bash\nFLAGS="{FLAGS}"\naccelerate launch --use_fsdp $FLAGS \\\n  train.py\n')
    config = read_config_file(script)
    assert (config.sharding_strategy, config.use_orig_params) == ("SHARD_GRAD_OP", True)
    script.write_text("torchrun train.py --fsdp 'full_shard offload'\n")
    assert read_config_file(script).cpu_offload
    assert not recomputes_units(script)
    script.write_text("accelerate launch --config_file fsdp.yaml train.py\n")
    with pytest.raises(ConfigError, match=r"line 1 has them elsewhere.*`fsdp-migrate config \S+run\.sh`"):
        read_config_file(script)
    script.write_text("python train.py\n")
    with pytest.raises(ConfigError, match=r"run\.sh"):
        read_config_file(script)
    script.write_text(f"accelerate launch {FLAGS} a.py\naccelerate launch --fsdp_offload_params 1 b.py\n")
    with pytest.raises(ConfigError, match="one block of FSDP settings"):
        read_config_file(script)
