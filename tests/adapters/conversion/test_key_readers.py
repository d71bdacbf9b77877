"""A file in the words of Hugging Face's Trainer, and who reads it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.config_files import convert_config_file, read_config_file
from fsdp_migrate.errors import ConfigError
from fsdp_migrate.source.launchers import find_launches
from fsdp_migrate.source.steps import next_steps
from fsdp_migrate.source.surroundings import find_configs
from fsdp_migrate.source.uses import ScanReport


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


@pytest.fixture(autouse=True)
def _project(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch\n")


SETTINGS = {"transformer_layer_cls_to_wrap": "Block", "limit_all_gathers": True, "use_orig_params": True}
FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
READ = "config = json.load(open('conf/fsdp.json'))\n"
USED = "model = FSDP(net, limit_all_gathers=config['limit_all_gathers'])\n"


@pytest.mark.parametrize(
    ("source", "state"),
    [
        (FSDP + READ + USED, "unclear"),
        (FSDP + READ + USED.replace("['limit_all_gathers']", ".get('limit_all_gathers')"), "unclear"),
        (FSDP + USED, "changes"),
        (FSDP + READ, "changes"),
        (READ + USED, "changes"),
        ("arguments = TrainingArguments(fsdp='full_shard', fsdp_config='conf/fsdp.json')\n", "changes"),
    ],
)
def test_what_code_looks_up_by_itself_is_left_to_it(tmp_path: Path, source: str, state: str) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "fsdp.json").write_text(json.dumps(SETTINGS))
    (tmp_path / "train.py").write_text(source)
    (found,) = find_configs([tmp_path])
    assert (found.state, found.holds_arguments) == (state, state == "unclear")
    assert ("train.py looks its keys up" in found.message) is (state == "unclear")
    assert "Accelerate" not in found.message


def test_the_trainers_own_arguments_are_theirs(tmp_path: Path) -> None:
    arguments = {"output_dir": "out", "fsdp": "full_shard", "fsdp_config": SETTINGS, "learning_rate": 1.0}
    (tmp_path / "fsdp.json").write_text(json.dumps(arguments))
    (tmp_path / "train.py").write_text(FSDP + "x = json.load(open('fsdp.json'))['fsdp']\n")
    (found,) = find_configs([tmp_path])
    assert found.state == "changes"


FLAT = (
    "fsdp_sharding_strategy: SHARD_GRAD_OP\n"
    "fsdp_offload_params: true\n"
    "fsdp_state_dict_type: SHARDED_STATE_DICT\n"
)
PLUGIN = (
    "from accelerate import Accelerator, FullyShardedDataParallelPlugin\n"
    "def make(cfg):\n"
    "    return FullyShardedDataParallelPlugin(cpu_offload={})\n"
)
LOOKS_UP = PLUGIN.format("cfg.get('fsdp_offload_params', False)")
BY_OTHER_WORDS = PLUGIN.format("cfg.offload")
TRAINS = (
    "from transformers import Trainer, TrainingArguments\nTrainer(model, TrainingArguments(**cfg)).train()\n"
)


@pytest.mark.parametrize(
    ("name", "sources", "said"),
    [
        ("fsdp.yaml", [LOOKS_UP], "a.py looks its keys up itself"),
        ("fsdp.json", [LOOKS_UP], "a.py looks its keys up itself"),
        ("fsdp.yaml", [LOOKS_UP.replace("cfg.get(", "cfg.pop(")], "a.py looks its keys up itself"),
        ("fsdp.yaml", ["", LOOKS_UP], "b.py looks its keys up itself"),
        ("fsdp.yaml", [BY_OTHER_WORDS], "does not show who reads it: sources make FSDP1"),
        ("fsdp.json", [BY_OTHER_WORDS], "does not show who reads it: sources make FSDP1"),
        ("fsdp.yaml", [LOOKS_UP, TRAINS], "does not show who reads it: a.py looks keys"),
        ("fsdp.yaml", [TRAINS], ""),
        ("fsdp.yaml", [BY_OTHER_WORDS, TRAINS], ""),
        ("fsdp.yaml", ["import torch\n"], ""),
        ("fsdp.yaml", [], ""),
    ],
)
def test_who_reads_a_file_of_keys_alone_is_asked_of_the_project(
    tmp_path: Path, name: str, sources: list[str], said: str
) -> None:
    path = tmp_path / name
    is_json = path.suffix == ".json"
    path.write_text(json.dumps(dict(each.split(": ") for each in FLAT.splitlines())) if is_json else FLAT)
    for source, letter in zip(sources, "ab", strict=False):
        (tmp_path / f"{letter}.py").write_text(source)
    if not said:
        assert convert_config_file(path).is_changed
        return
    for read in (convert_config_file, read_config_file):
        with pytest.raises(ConfigError, match=said):
            read(path)
    (found,) = find_configs([tmp_path])
    assert (found.framework, found.state, found.is_own) == ("", "unclear", "itself: leave" in found.message)
    assert ("What Accelerate's plugin takes" in found.message) is found.is_own
    assert convert_config_file(path, framework="hf").is_changed


def test_a_question_names_the_commands_that_answer_it(tmp_path: Path) -> None:
    path = tmp_path / "fsdp.yaml"
    path.write_text(FLAT)
    (tmp_path / "a.py").write_text(BY_OTHER_WORDS)
    with pytest.raises(ConfigError) as caught:
        convert_config_file(path)
    named = re.findall(r"`fsdp-migrate config (\S+) --from (\w+)(?: --key (\S+))?`", str(caught.value))
    assert [framework for _, framework, _ in named] == ["hf", "accelerate"]
    for file, framework, key in named:
        assert convert_config_file(file, framework=framework, key=key or None).is_changed


def test_a_launch_line_does_not_take_a_file_from_the_source_that_reads_it(tmp_path: Path) -> None:
    (tmp_path / "fsdp.json").write_text(json.dumps({"fsdp_offload_params": True}))
    (tmp_path / "run.sh").write_text(
        "torchrun train.py --output_dir o --fsdp full_shard --fsdp_config fsdp.json\n"
    )
    for source, state in ((LOOKS_UP, "unclear"), ("import torch\n", "changes"), (BY_OTHER_WORDS, "changes")):
        (tmp_path / "train.py").write_text(source)
        found = {each.path: each for each in find_configs([tmp_path], find_launches([tmp_path]))}
        assert found[str(tmp_path / "fsdp.json")].state == state


ARGUMENTS = (
    "output_dir: out\nper_device_train_batch_size: 4\n"
    "fsdp: true\nfsdp_config:\n  sharding_strategy: FULL_SHARD\n"
)
OPENS = "import yaml\nfrom accelerate import Accelerator\ncfg = yaml.safe_load(open('cfg.yaml'))\n"
UNREAD = "no Trainer of it, and none looks `fsdp_config` up"
OWN = "a.py looks its keys up itself"


@pytest.mark.parametrize(
    ("name", "source", "beside", "said"),
    [
        ("cfg.yaml", OPENS, ("run.sh", "python train.py\n"), UNREAD),
        ("cfg.yaml", OPENS + FSDP + "FSDP(net)\n", ("README.md", "# Ours\n"), UNREAD),
        ("cfg.yaml", OPENS + "shards = cfg['fsdp']\n", ("run.sh", ""), OWN),
        ("cfg.yaml", OPENS + "kind = cfg.fsdp_config.sharding_strategy\n", ("run.sh", ""), OWN),
        ("cfg.yaml", OPENS + TRAINS, ("run.sh", ""), ""),
        ("cfg.yaml", OPENS, ("run.sh", "trl sft --config cfg.yaml\n"), ""),
        ("cfg.yaml", OPENS, ("README.md", "`llamafactory-cli train cfg.yaml`\n"), ""),
        ("cfg.yaml", OPENS, ("requirements-dev.txt", "axolotl==0.9\n"), ""),
        ("cfg.yaml", "import torch\n", ("run.sh", ""), ""),
        ("cfg.json", OPENS, ("run.sh", ""), ""),
    ],
)
def test_the_trainers_words_are_nobodys_where_no_source_has_a_trainer(
    tmp_path: Path, name: str, source: str, beside: tuple[str, str], said: str
) -> None:
    path = tmp_path / name
    values = {
        "output_dir": "o",
        "per_device_train_batch_size": 4,
        "fsdp": True,
        "fsdp_config": {"fsdp_offload_params": True},
    }
    path.write_text(ARGUMENTS if path.suffix == ".yaml" else json.dumps(values))
    (tmp_path / "a.py").write_text(source)
    (tmp_path / beside[0]).write_text(beside[1])
    (found,) = find_configs([tmp_path])
    assert (found.state, said in found.message) == ("unclear" if said else "changes", True)
    assert convert_config_file(path, framework="hf").is_changed
    # What is only read is read as it says: `plan` and `parity` are given it by who knows whose it is.
    assert read_config_file(path).model_fields_set


BLOCK = "fsdp:\n  sharding_strategy: FULL_SHARD\n  mixed_precision: {param: bf16, reduce: fp32}\n"
ONE_KEY = "seed: 1\nfsdp:\n  sharding_strategy: SHARD_GRAD_OP\n"
SHARDS = (
    "from torch.distributed.fsdp import ShardingStrategy\n"
    "def shard(model, cfg):\n    strategy = ShardingStrategy[cfg['sharding_strategy']]\n"
)
GIVES = "shard(model, cfg['fsdp'])\n"


@pytest.mark.parametrize(
    ("config", "sources", "is_left"),
    [
        (BLOCK, [SHARDS + "    mp = cfg.get('mixed_precision')\n"], True),
        (BLOCK, [SHARDS, GIVES], True),
        (ONE_KEY, [SHARDS, GIVES], True),
        # One key alone, of whatever mapping; a reader that makes nothing; nobody.
        (ONE_KEY, [SHARDS], False),
        (BLOCK, [SHARDS.replace("['sharding_strategy']", ".strategy"), GIVES], False),
        (BLOCK, [SHARDS.replace("ShardingStrategy", "Names") + GIVES], False),
        (BLOCK, ["import torch\n"], False),
    ],
)
def test_settings_in_words_of_the_projects_own_are_left_to_what_reads_them(
    tmp_path: Path, config: str, sources: list[str], *, is_left: bool
) -> None:
    (tmp_path / "run.yaml").write_text(config)
    for source, letter in zip(sources, "ab", strict=False):
        (tmp_path / f"{letter}.py").write_text(source)
    (found,) = find_configs([tmp_path])
    assert (found.state, found.is_own) == ("unclear", is_left)
    assert ("a.py looks its keys up itself" in found.message) is is_left
    # The reader makes FSDP2 by then, or still FSDP1.
    is_turned = "prepare_fully_shard" in sources[0]
    assert ("which is turned already" in found.message) is (is_left and is_turned)
    assert ("which `fsdp-migrate rewrite` turns" in found.message) is (is_left and not is_turned)
    steps = next_steps([str(tmp_path)], ScanReport((), 1), [found], [])
    assert any("See why these configs" in step.text for step in steps) is not is_left


STRATEGY = (
    "def build(cfg):\n    return {}(cfg['sharding_strategy'])\nL.Trainer(strategy=build(cfg['fsdp']))\n"
)


@pytest.mark.parametrize(
    ("made", "becomes"),
    [
        ("FSDPStrategy", "which `fsdp-migrate rewrite` turns, or says above it what to write."),
        ("ModelParallelStrategy", "which is turned already."),
        ("DDPStrategy", ""),
    ],
)
def test_settings_that_lightnings_strategy_is_given_are_left_to_its_source(
    made: str, becomes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They were "not known", with a command to convert them and another to leave them."""
    (tmp_path / "run.yaml").write_text("fsdp:\n  sharding_strategy: FULL_SHARD\n  state_dict_type: full\n")
    (tmp_path / "a.py").write_text(STRATEGY.format(made))
    (found,) = find_configs([tmp_path])
    assert found.is_own is bool(becomes)
    assert main(["scan", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    # What is left to a source is known, and no command is named for it.
    assert (
        f"run.yaml: stays: a.py looks its keys up itself: leave it to that source, {becomes}" in said
    ) is (found.is_own)
    assert ("run.yaml: not known: " in said) is not found.is_own
    assert "prepare_fully_shard" not in said or not found.is_own
