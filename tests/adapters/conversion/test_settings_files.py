"""Files of settings that a launch line names: what is to be written there, and what is refused itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.adapters.conversion.command import convert_script
from fsdp_migrate.config_files import convert_config_file
from fsdp_migrate.errors import ConfigError, NothingToConvertError


pytestmark = pytest.mark.any_torch


RUN = "torchrun t.py --output_dir o --fsdp '{}' --fsdp_config {}\n"


@pytest.mark.parametrize("folder", ["R=$(dirname $0)", "R=/w", "A=1"])
def test_what_fsdp_says_is_to_be_written_into_a_file_behind_a_variable(folder: str) -> None:
    done = convert_script(f"{folder}\n{RUN.format('shard_grad_op', '$R/c.json')}")
    [said] = [f for f in done.findings if f.code == "FM346"]
    assert "`reshard_after_forward: false` and `auto_wrap_policy: NO_WRAP` there" in str(said.hint)
    if "R=" in folder:
        assert "c.json --from hf`, and write" in str(said.hint)
        assert f"line 1 sets the variable to `{folder.removeprefix('R=')}`" in said.message
    done = convert_script(f"{folder}\n{RUN.format('full_shard auto_wrap', '$R/c.json')}")
    assert not any("there:" in str(f.hint) for f in done.findings)


def test_a_file_that_is_refused_itself_is_not_kept_nor_written_to(tmp_path: Path) -> None:
    run = tmp_path / "run.sh"
    run.write_text(RUN.format("hybrid_shard", "c.json"))
    (tmp_path / "c.json").write_text('{"xla": true, "transformer_layer_cls_to_wrap": ["A"]}')
    done = convert_config_file(run)
    assert not done.is_changed
    [said] = done.conversion.findings
    assert (said.code, said.hint) == ("FM356", None)
    assert "cannot be converted: `xla`: PyTorch/XLA's FSDP is another one" in said.message
    (tmp_path / "c.json").write_text('{"xla": false, "transformer_layer_cls_to_wrap": ["A"]}')
    codes = {finding.code for finding in convert_config_file(run).conversion.findings}
    assert {"FM341", "FM355", "FM356"} <= codes


def test_a_config_of_accelerate_that_is_refused_says_so(tmp_path: Path) -> None:
    run = tmp_path / "run.sh"
    run.write_text("accelerate launch --config_file c.yaml t.py\n")
    config = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: {}\n"
    (tmp_path / "c.yaml").write_text(config.format("SHARDED"))
    [said] = [f for f in convert_config_file(run).conversion.findings if f.code == "FM356"]
    assert "cannot be converted: `fsdp_config.fsdp_sharding_strategy`" in said.message
    # How many nodes and ranks there are the command says.
    (tmp_path / "c.yaml").write_text(config.format("HYBRID_SHARD") + "num_machines: 2\n")
    [said] = [f for f in convert_config_file(run).conversion.findings if f.code == "FM356"]
    assert "is not converted with this one" in said.message


@pytest.mark.parametrize("flag", ["--fsdp_transformer_layer_cls_to_wrap A", "--fsdp_min_num_params 1000"])
@pytest.mark.parametrize("file", ["c.json", "$CONFIG"])
def test_arguments_that_belong_into_the_file_are_named(flag: str, file: str) -> None:
    done = convert_script(RUN.format("full_shard auto_wrap", f"{file} {flag}"))
    assert not done.is_changed
    [said] = [f for f in done.findings if flag.split(maxsplit=1)[0].removeprefix("--") in f.subject]
    assert said.code == "FM356"
    assert f"It belongs into {file}" in said.message


@pytest.mark.parametrize("run", ["accelerate launch --config_file {} t.py\n", RUN.format("full_shard", "{}")])
def test_a_file_behind_a_variable_is_read_as_one_that_is_named(tmp_path: Path, run: str) -> None:
    script, config = tmp_path / "run.sh", tmp_path / "c.json"
    converted = '{"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}}'
    config.write_text(converted if "accelerate" in run else '{"version": 2, "min_num_params": 0}')
    script.write_text("C=c.json\n" + run.format('"$C"'))
    codes = {finding.code for finding in convert_config_file(script).conversion.findings}
    assert "FM347" in codes
    assert not {"FM346", "FM356"} & codes


def test_a_file_beside_the_script_is_named_from_here(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/c.yaml").write_text(
        "distributed_type: FSDP\nfsdp_config: {fsdp_offload_params: true}\n"
    )
    script = tmp_path / "run.sh"
    for line, found in (("C=conf/c.yaml", '"$C"'), ("", "conf/c.yaml"), ("", "conf/other.yaml")):
        script.write_text(f"{line}\naccelerate launch --config_file {found} t.py\n")
        [said] = [f for f in convert_config_file(script).conversion.findings if f.code == "FM356"]
        is_there = "other" not in found
        wanted = f"{tmp_path}/conf/c.yaml" if is_there else "conf/other.yaml"
        assert f"`fsdp-migrate config {wanted} --from accelerate" in str(said.hint)


def test_a_file_in_a_folder_above_the_script_is_named_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = "distributed_type: FSDP\nfsdp_config: {fsdp_offload_params: true}\n"
    for name, text in {
        "jobs/slurm/go.sh": "accelerate launch --config_file ./conf/c.yaml t.py\n",
        "jobs/slurm/no.sh": "python t.py conf/c.yaml\n",
        "conf/c.yaml": settings,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for here, found in ((tmp_path, "./conf/c.yaml"), (tmp_path / "jobs", "../conf/c.yaml")):
        monkeypatch.chdir(here)
        folder = (tmp_path / "jobs/slurm").relative_to(here)
        [said] = convert_config_file(folder / "go.sh").conversion.findings
        assert f"`fsdp-migrate config {found} --from accelerate`" in str(said.hint)
        with pytest.raises(NothingToConvertError, match=f"config {found.removeprefix('./')}`"):
            convert_config_file(folder / "no.sh")
    convert_config_file("../conf/c.yaml", in_place=True)
    [said] = convert_config_file("slurm/go.sh").conversion.findings
    assert said.code == "FM347"


@pytest.mark.parametrize(
    ("writes", "line"),
    [
        ('cat > c.json <<EOF\n{"transformer_layer_cls_to_wrap": ["X"]}\nEOF\n', 1),
        ('mkdir o\necho "{\\"use_orig_params\\": true}" > "c.json"\n', 2),
        ("jq . d.json | tee c.json\n", 1),
        ("cat c.json > d.json\n", 0),
        ("echo > abc.json; echo > c.json.bak\n", 0),
    ],
)
def test_a_file_that_the_script_writes_itself_is_told(writes: str, line: int) -> None:
    done = convert_script(f"{writes}{RUN.format('full_shard auto_wrap', './c.json')}")
    [said] = [f for f in done.findings if f.code == "FM356" and "c.json --from hf" in str(f.hint)]
    assert (f"Line {line} writes that file" in str(said.hint)) is bool(line)
    assert ("writes that file" in str(said.hint)) is bool(line)


@pytest.mark.parametrize(
    ("run", "config", "is_said"),
    [
        ("accelerate launch -m axolotl.cli.train ax/a.yaml", "fsdp: [full_shard, auto_wrap]\n", True),
        (
            "python train.py --config ./ax/a.yaml",
            "model: m\nfsdp_config:\n  fsdp_offload_params: true\n",
            True,
        ),
        ("python train.py --config ax/a.yaml", "model: m\nfsdp: null\n", False),
        ("python train.py  # ax/a.yaml", "fsdp: [full_shard]\n", False),
        ("python train.py --config ax/b.yaml", "fsdp: [full_shard]\n", False),
    ],
)
def test_a_file_with_fsdp_settings_that_a_script_names(
    tmp_path: Path, run: str, config: str, *, is_said: bool
) -> None:
    (tmp_path / "ax").mkdir()
    (tmp_path / "ax" / "a.yaml").write_text(config)
    for script in (tmp_path / "go.sh", tmp_path / "ax" / "go.sh"):
        script.write_text(f"{run}\n")
        with pytest.raises(NothingToConvertError) as caught:
            convert_config_file(script)
        assert ("It names `ax/a.yaml`, with FSDP settings" in str(caught.value)) is is_said


LOADS = "distributed_type: FSDP\nfsdp_config: {fsdp_cpu_ram_efficient_loading: true}\n"


@pytest.mark.parametrize(
    ("run", "is_said"),
    [
        ("accelerate launch --config_file acc.yaml t.py sft.yaml", True),
        ("accelerate launch --config_file acc.yaml t.py --load_in_4bit true", True),
        ("accelerate launch --config_file acc.yaml t.py --quantization_bit 4", True),
        ("accelerate launch --use_fsdp t.py --use_4bit_quantization", True),
        ("accelerate launch --use_fsdp --fsdp_offload_params true t.py sft.yaml", True),
        ("accelerate launch --config_file acc.yaml t.py --load_in_4bit false", False),
        ("accelerate launch --config_file acc.yaml t.py --quantization_bit 8 acc.yaml", False),
    ],
)
def test_weights_in_4_bits_that_a_command_asks_for_are_told(run: str, is_said: bool, tmp_path: Path) -> None:
    (tmp_path / "acc.yaml").write_text(LOADS)
    (tmp_path / "sft.yaml").write_text("model_name_or_path: m\nquantization_bit: 4\n")
    (tmp_path / "go.sh").write_text(f"{run}\n")
    done = convert_config_file(tmp_path / "go.sh").conversion
    said = [f for f in done.findings if f.code == "FM343" and "4-bit of bitsandbytes" in f.message]
    assert bool(said) is is_said


@pytest.mark.parametrize("others", [0, 1])
def test_a_file_that_stands_once_in_the_project_is_named(
    others: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("m/yaml", "m/src", *["m/other"] * others):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "fsdp_config.yaml").write_text(LOADS) if folder != "m/yaml" else None
    (tmp_path / "setup.py").write_text("")
    monkeypatch.chdir(tmp_path)
    command = "accelerate launch --config_file fsdp_config.yaml t.py"
    Path("m/yaml/job.yaml").write_text(f'command: [bash, -c, "{command}"]\n')
    Path("m/yaml/job.sh").write_text(f"{command}\n")
    wanted = "fsdp_config.yaml" if others else "m/src/fsdp_config.yaml"
    with pytest.raises(ConfigError, match=f"`fsdp-migrate config {wanted}`"):
        convert_config_file("m/yaml/job.yaml")
    [said] = convert_config_file("m/yaml/job.sh").conversion.findings
    assert f"`fsdp-migrate config {wanted} --from" in str(said.hint)
