"""Whose FSDP settings a file holds: what only one framework writes decides, and nothing else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fsdp_migrate.adapters.conversion.text import convert_text, find_blocks
from fsdp_migrate.adapters.document.yaml_reader import read_yaml
from fsdp_migrate.config_files import convert_config_file
from fsdp_migrate.errors import ConfigError


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


def frameworks_of(text: str) -> list[str]:
    return [block.framework for document in read_yaml(text) for block in find_blocks(document)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # classes of other packages
        ("_target_: nemo.lightning.FSDPStrategy\nsharding_strategy: FULL_SHARD\n", []),
        ("trainer:\n  strategy:\n    class_path: mine.strategies.FSDPStrategy\n", []),
        ("trainer:\n  strategy:\n    class_path: FSDPStrategy\n", ["lightning"]),
        ("_target_: lightning.fabric.strategies.FSDPStrategy\n", ["lightning"]),
        ("_target_: verl.workers.Actor\nstrategy: fsdp\ndevices: 8\n", []),
        ("_target_: mine.Config\nfsdp_transformer_layer_cls_to_wrap: Block\n", []),
        ("_target_: mine.Config\noutput_dir: x\nfsdp: full_shard auto_wrap\n", []),
        ("_target_: transformers.TrainingArguments\noutput_dir: x\nfsdp: full_shard\n", ["hf"]),
        ("_target_: mine.T\nmax_duration: 1ep\nfsdp_config: {sharding_strategy: FULL_SHARD}\n", []),
        ("_target_: composer.Trainer\nmax_duration: 1ep\nfsdp_config: {verbose: true}\n", ["composer"]),
        # words that others use too
        ("defaults: [a]\nstrategy: fsdp\n", []),
        ("max_steps: 10\nstrategy: fsdp\n", []),
        ("precision: bf16\nstrategy: fsdp\n", []),
        ("trainer:\n  strategy: fsdp\n", []),
        ("accelerator: gpu\nstrategy: fsdp\n", ["lightning"]),
        ("precision: bf16-mixed\nmax_steps: 10\nstrategy: fsdp\n", ["lightning"]),
        ("precision: bf16\nmax_steps: 10\nlr: 1\nstrategy: fsdp\n", []),
        ("precision: bf16\ndevices: 8\nfsdp_min_params: 5\nstrategy: fsdp\n", []),
        (
            "max_seq_len: 8\nfsdp_config: {sharding_strategy: FULL_SHARD, activation_checkpointing: true}\n",
            [],
        ),
        ("max_steps: 8\nfsdp: true\n", []),
        ("output_dir: x\nfsdp: true\n", ["hf"]),
        ("base_model: x\nfsdp: {sharding_strategy: FULL_SHARD}\n", []),
        ("use_fsdp: true\nfsdp_sharding_strategy: full_shard\nreport_to: wandb\n", []),
        ("use_fsdp: true\nfsdp_sharding_strategy: FULL_SHARD\nnum_processes: 8\n", ["accelerate"]),
        # HF's own words
        (
            "max_seq_len: 8\nfsdp: full_shard auto_wrap\nfsdp_config: {activation_checkpointing: true}\n",
            ["hf"],
        ),
        (
            "train_dataset: x\nmax_steps: 1\nfsdp: [full_shard]\nfsdp_config: {limit_all_gathers: true}\n",
            ["hf"],
        ),
    ],
)
def test_only_what_is_a_frameworks_own_decides(text: str, expected: list[str]) -> None:
    assert frameworks_of(text) == expected


@pytest.mark.parametrize(
    ("text", "framework", "key"),
    [
        ("max_steps: 10\nstrategy: fsdp\n", "lightning", "strategy"),
        ("# @package trainer\nstrategy: fsdp\n", "lightning", "strategy"),
        ("trainer:\n  strategy: fsdp\n", "lightning", "trainer.strategy"),
        ("_target_: mine.Config\noutput_dir: x\nfsdp: full_shard auto_wrap\n", "hf", "fsdp_config"),
        (
            "max_seq_len: 8\nfsdp_config: {sharding_strategy: FULL_SHARD, activation_checkpointing: true}\n",
            "composer",
            "fsdp_config",
        ),
        (
            "trainer:\n  strategy: {_target_: mine.FSDPStrategy, cpu_offload: true}\n",
            "lightning",
            "trainer.strategy",
        ),
    ],
)
def test_what_cannot_be_told_is_asked_for_by_a_command_that_works(
    text: str, framework: str, key: str
) -> None:
    with pytest.raises(ConfigError, match=rf"config FILE --from {framework} --key {key}`"):
        convert_text(text)
    done = convert_text(text, framework=framework, key=key)
    assert [(block.framework, block.path) for block in done.blocks] == [(framework, key)]


def test_what_cannot_be_told_beside_what_can_is_left_and_named() -> None:
    sure = "a:\n  distributed_type: FSDP\n  fsdp_config: {fsdp_offload_params: true}\n"
    done = convert_text(f"{sure}b:\n  max_steps: 1\n  strategy: fsdp\n")
    assert [block.path for block in done.blocks] == ["a.fsdp_config"]
    [told] = [f for f in done.findings if f.code == "FM359"]
    assert told.subject == "b.strategy"
    assert "strategy: fsdp\n" in done.text


def test_what_two_frameworks_surely_read_is_asked_for() -> None:
    text = "max_duration: 1ep\noutput_dir: x\nfsdp: ${fsdp}\nfsdp_config: {sharding_strategy: FULL_SHARD}\n"
    with pytest.raises(ConfigError, match=r"Composer and HF Trainer's\. Name one of them with `--from`"):
        convert_text(text)
    assert convert_text(text, framework="composer").is_changed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {_component_: torchtune.models.llama3_8b}\nfsdp_cpu_offload: true\n", "for torchtune"),
        ("trainer:\n  data_parallelism: fsdp\n  fsdp: {granularity: layer}\n", "`version: v2`"),
        (
            "model:\n  fsdp: true\n  fsdp_sharding_strategy: full\n  fsdp_grad_reduce_dtype: bf16\n",
            "for NeMo",
        ),
        ("distributed: {_target_: nemo_automodel.FSDP2Manager}\nuse_fsdp: true\n", "for NeMo AutoModel"),
        (
            "training: {trainer_type: TRL_SFT}\nfsdp: {enable_fsdp: true, sharding_strategy: FULL_SHARD}\n",
            "for oumi",
        ),
        (
            "m:\n  {component_key: model, variant_key: fsdp1_wrapped, config: {cpu_offload: true}}\n",
            r"for Modalities \(`m.variant_key`\).*fsdp2_wrapped",
        ),
        ("policy: {fsdp_offload_enabled: false, dtensor_cfg: {enabled: true}}\n", "for NeMo RL"),
        ("ici_fsdp_parallelism: 8\n", "for MaxText"),
        ("args: [MaxText/train.py, ici_fsdp_parallelism=1]\n", "for MaxText"),
        ("trainer: {strategy: ddp_fully_sharded}\n", "is fairscale's FSDP, not torch's"),
        ("FSDP_CONFIG: {flatten_parameters: false, mixed_precision: true, verbose: true}\n", "for fairscale"),
        (
            "actor_rollout_ref:\n  actor: {strategy: fsdp, fsdp_config: {param_offload: true}}\n",
            "strategy: fsdp2",
        ),
    ],
)
def test_frameworks_whose_settings_are_their_own_are_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        convert_text(text)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("fsdp: {sharding_strategy: FULL_SHARD, min_params: 5}\n", "fsdp"),
        ("train:\n  sharding_strategy: FULL_SHARD\n  mixed_precision: true\n  lr: 1\n", "train"),
        ("sharding_strategy: HYBRID_SHARD\nmixed_precision: bf16\nlr: 1\n", "."),
        (
            "fsdp_config: {mixed_precision: true, use_fp16: false, sharding_strategy: FULL_SHARD}\n",
            "fsdp_config",
        ),
    ],
)
def test_settings_of_a_projects_own_come_with_the_command_that_converts_them(text: str, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"`fsdp-migrate config FILE --from torch --key {key}`"):
        convert_text(text)
    done = convert_text(text, framework="torch", key=key)
    assert "reshard_after_forward: true" in done.text
    assert not [f for f in done.findings if f.fidelity == "refused"]


def test_no_command_is_named_that_does_not_work() -> None:
    with pytest.raises(ConfigError) as caught:
        convert_text("fsdp: {sharding_strategy: SHARD_ALL}\n")
    assert "--from torch" not in str(caught.value)


@pytest.mark.parametrize(
    "document",
    [
        {"use_fsdp": False},
        {"fsdp": ""},
        {"train": {"fsdp": {"enabled": False, "x": 1}}},
        {"fsdp": None},
        {"fsdp_config": []},
        {"distributed_type": "MULTI_GPU", "fsdp_config": None},
        {"enabled": False, "sharding_strategy": "full_shard", "cpu_offload": False},
    ],
)
def test_fsdp_that_is_off_is_an_answer(document: dict[str, Any]) -> None:
    done = convert_text(json.dumps(document))
    assert not done.is_changed
    assert {block.state for block in done.blocks} == {"unused"}
    assert {f.code for f in done.findings} == {"FM351"}


def test_fsdp_that_is_on_somewhere_is_not_off() -> None:
    with pytest.raises(ConfigError):
        convert_text("a: {use_fsdp: false}\nb: {use_fsdp: true}\n")
    mapping = "sharding_strategy: full_shard, use_orig_params: true"
    with pytest.raises(ConfigError, match="--from torch --key b"):
        convert_text(f"a: {{enabled: false, {mapping}}}\nb: {{enabled: true, {mapping}}}\n")


PROJECT = "defaults: [default]\naccelerator: gpu\ndevices: 4\nstrategy: fsdp\n"


@pytest.mark.parametrize(
    ("source", "package"),
    [
        ("import pytorch_lightning as pl\n", "pytorch_lightning"),
        ("from lightning.pytorch import Trainer\n", "lightning.pytorch"),
        ("import lightning as L\nimport lightning\n# not pytorch_lightning\n", "lightning.pytorch"),
    ],
)
def test_the_package_that_the_project_uses_is_written(tmp_path: Path, source: str, package: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "configs" / "trainer").mkdir(parents=True)
    config = tmp_path / "configs" / "trainer" / "fsdp.yaml"
    config.write_text(PROJECT)
    (tmp_path / "train.py").write_text(source)
    done = convert_config_file(config).conversion
    assert f"_target_: {package}.strategies.ModelParallelStrategy" in done.text


@pytest.mark.parametrize(
    ("source", "config", "package"),
    [
        ("train.py", "fsdp.yaml", "pytorch_lightning"),
        ("train.py", "configs/trainer/fsdp.yaml", "pytorch_lightning"),
        ("own/train.py", "fsdp.yaml", "pytorch_lightning"),
        ("src/own/train.py", "configs/fsdp.yaml", "pytorch_lightning"),
        # Far away is another project's.
        ("other/train.py", "configs/fsdp.yaml", "lightning.pytorch"),
        ("train.py", "a/b/c/d/fsdp.yaml", "lightning.pytorch"),
    ],
)
def test_a_project_without_a_mark_of_one_is_what_lies_around(
    source: str, config: str, package: str, tmp_path: Path
) -> None:
    for name, text in {source: "import pytorch_lightning as pl\n", config: PROJECT}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    done = convert_config_file(tmp_path / config).conversion
    assert f"_target_: {package}.strategies.ModelParallelStrategy" in done.text
    is_guess = any("No source around says which Lightning runs" in each.message for each in done.findings)
    assert is_guess is (package == "lightning.pytorch")


@pytest.mark.parametrize(
    ("text", "whose"),
    [
        ("ulysses_sequence_parallel_size: 1\nmodel:\n  fsdp_config:\n    offload_params: false\n", "verl"),
        ("distributed:\n  fsdp_type: full_shard\n", "lingua"),
    ],
)
def test_settings_of_others_are_named(text: str, whose: str) -> None:
    with pytest.raises(ConfigError, match=f"configures FSDP for {whose}"):
        convert_text(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "args: [accelerate, launch, --use_fsdp, t.py]\n",
            r"`--use_fsdp` in `args.2`.* `fsdp-migrate config --com",
        ),
        ("run: |\n  torchrun t.py \\\n    --fsdp full_shard\n", "the command in it does: `--fsdp` in `run`"),
        (
            "command: [torchrun, train.py, --sharding_strategy=full, --lr=1]\nname: fsdp\n",
            r"What does is a script's own: `--sharding_strategy` in `command.2`",
        ),
        (
            "command: |-\n  torchrun t.py ${run} --fsdp.wrapping_strategy=null\n",
            r"a script's own: `--fsdp.wrapping_strategy` in `command`\. `fsdp-migrate scan`",
        ),
        (
            "run: |\n  # FSDP\n  echo FSDP\n  oumi -c conf/FSDP/t.yaml \\\n    --lr 1\nname: a-fsdp\n",
            r"named by `run: oumi -c conf/FSDP/t.yaml`: what.*: `fsdp-migrate config conf/FSDP/t.yaml`",
        ),
        ("env: [ACCELERATE_USE_FSDP=False]\n", r"nothing to convert\. `env.0` switches FSDP off\.$"),
        ("env: [ACCELERATE_USE_FSDP=1]\n", r"nothing to convert\. `env.0` switches FSDP off\.$"),
        ("launch: {backend: fsdp}\n", r"nothing to convert. FSDP is named by `launch.backend: fsdp`"),
        (
            "trainer: {_target_: my.FSDPTrainer}\n",
            r"named by `trainer._target_: my.FSDPTrainer`.*`fsdp-migrate scan`",
        ),
        (
            "- override: a.fsdp_config.param_offload=False\n",
            r"`0.override: a.fsdp_config.param_offload=False`",
        ),
    ],
)
def test_fsdp_in_values_alone_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        convert_text(text)


@pytest.mark.parametrize("text", ["lr: 1  # not for FSDP\n", "metadata: {name: fsdp}\nrun_name: fsdp-1\n"])
def test_comments_and_names_of_runs_choose_nothing(text: str) -> None:
    with pytest.raises(ConfigError, match=r"there is nothing to convert\.$"):
        convert_text(text)


def test_a_file_of_fsdp_config_with_torchs_names_is_asked_for() -> None:
    text = (
        '{"backward_prefetch": "backward_pre", "use_orig_params": "true", "activation_checkpointing": true}'
    )
    with pytest.raises(
        ConfigError, match=r"HF Trainer's: `.* --from hf --key \.`.* own: `.* --from torch --key"
    ):
        convert_text(text)
    for given in (None, "."):  # a script's finding names the command without `--key`
        done = convert_text(text, framework="hf", key=given)
        assert json.loads(done.text)["version"] == 2
        assert json.loads(done.text)["activation_checkpointing"] is True


def test_torchs_own_arguments_are_not_asked_for() -> None:
    assert frameworks_of("sharding_strategy: FULL_SHARD\nuse_orig_params: true\n") == ["torch"]


@pytest.mark.parametrize(
    ("entry", "file"),
    [
        ("override /trainer: fsdp.yaml", "`trainer/fsdp.yaml`"),
        ("strategy: fsdp", "`strategy/fsdp.yaml`"),
        ("/train/strategy@strategy: fsdp2", "`train/strategy/fsdp2.yaml`"),
    ],
)
def test_what_hydra_takes_is_named_by_its_group(entry: str, file: str) -> None:
    with pytest.raises(ConfigError) as caught:
        convert_text(f"defaults:\n  - base\n  - {entry}\nlr: 1\n")
    assert f"Hydra takes {file} from the folder of its configs" in str(caught.value)
    assert "fsdp-migrate config fsdp.yaml" not in str(caught.value)


def test_overrides_of_verl_in_a_manifest_are_verls() -> None:
    with pytest.raises(ConfigError, match="A command in it configures FSDP for verl"):
        convert_text("args: [actor_rollout_ref.actor.fsdp_config.x=1]\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fsdp:\n  wrapping_strategy: by_block\n  precision: mixed\n", "OLMo makes FSDP1 of them"),
        ("train:\n  use_fsdp: true\n", "What code of its own makes of that, `fsdp-migrate scan` tells."),
        ("fsdp:\n  mode: full\n", "If one of them is a mapping of FSDP settings"),
    ],
)
def test_what_is_nobodys_mapping_is_not_asked_for(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        convert_text(text)
    assert said in str(caught.value)
    assert ("mapping of" in str(caught.value)) == ("mapping of" in said)


@pytest.mark.parametrize(
    ("inner", "named"),
    [
        ("policy: full_shard\n    config:\n      fsdp_layer_cls: A", "stand in `run.fsdp.config`: where"),
        ("fsdp_config:\n      fsdp_layer_cls: A", "stand in `run.fsdp.fsdp_config`: where"),
        # The mapping that is named has them itself, or nothing below it has any.
        ("fsdp_layer_cls: A\n    config:\n      fsdp_layer_cls: A", "If one of them is a mapping"),
        ("policy: full_shard\n    config:\n      layer_cls: A", "If one of them is a mapping"),
    ],
)
def test_the_mapping_that_has_the_settings_is_named_for_the_key(inner: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        convert_text(f"run:\n  fsdp:\n    {inner}\n")
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("name", "what"),
    [("README.md", "Markdown"), ("Dockerfile.gpu", "a Dockerfile"), ("a.toml", "TOML"), ("t.py", "Python")],
)
def test_files_that_hold_no_config_as_a_whole_are_named(tmp_path: Path, name: str, what: str) -> None:
    (tmp_path / name).write_text("# accelerate launch --use_fsdp\n")
    with pytest.raises(ConfigError, match=f"{what}.* Expected YAML, JSON, a shell script or a notebook"):
        convert_config_file(tmp_path / name)


def test_arguments_that_hf_trainer_has_not_make_a_file_a_projects_own(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    own = {"output_dir": "x", "fsdp": "full_shard auto_wrap", "fsdp_cpu_offload": False}
    file.write_text(json.dumps(own))
    with pytest.raises(
        ConfigError,
        match=r"`fsdp_config` may be HF Trainer's: `fsdp-migrate config \S+ --from hf --key fsdp_config`",
    ):
        convert_config_file(file)
    done = convert_config_file(file, framework="hf", key="fsdp_config").conversion
    assert json.loads(done.text)["fsdp_config"]["version"] == 2
    known = {**own, "fsdp_min_num_params": 1}
    del known["fsdp_cpu_offload"]
    assert frameworks_of(json.dumps(known)) == ["hf"]


@pytest.mark.parametrize(
    "text",
    [
        "_comment_target: no FSDP here\n",
        "output_dir: out/fsdp\nwandb_run_name: fsdp_1\n",
        "trainer: {logger: {init_args: {name: my_fsdp_run}}, profiler: {filename: fsdp_profile}}\n",
        "lr: 1\nrun:\n  name: small_fsdp\n",
        "wandb_project: fsdp\nlog_dir: fsdp\n",
        "run: |\n  # FSDP\n  echo 'with FSDP'\n  python t.py\nname: my-fsdp\n",
    ],
)
def test_names_of_runs_and_folders_choose_nothing(text: str) -> None:
    with pytest.raises(ConfigError, match=r"there is nothing to convert\.$"):
        convert_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "_wandb:\n  value: {}\nfsdp:\n  value: []\n",
        "{args: [--fsdp, full_shard], program: t.py, codePath: t.py, startedAt: '2024'}\n",
    ],
)
def test_what_wandb_recorded_is_no_config(text: str) -> None:
    with pytest.raises(ConfigError, match="W&B recorded of a run"):
        convert_text(text)


_SAID = "Fully sharded: each rank has a part."


@pytest.mark.parametrize(
    ("text", "are_texts"),
    [
        (_SAID, True),
        ("full_shard auto_wrap", False),
        ("accelerate launch --use_fsdp train.py now", False),
        ("python t.py --fsdp full_shard and more", False),
    ],
)
@pytest.mark.parametrize("others", [{}, {"epochs": 3}])
def test_texts_of_a_user_interface_are_no_config(
    text: str, others: dict[str, int], *, are_texts: bool
) -> None:
    document = {f"label.{n}": "A word, {{name}}." for n in range(30)} | {"help.fsdp": text} | others
    are_shown = are_texts and not others
    with pytest.raises(ConfigError) as caught:
        convert_text(json.dumps(document))
    assert ("shown to people" in str(caught.value)) is are_shown


def test_a_file_that_a_script_in_a_manifest_writes_is_told() -> None:
    inner = "    cat > /tmp/a.yaml <<EOF\n    distributed_type: FSDP\n    fsdp_config:\n      a: 1\n    EOF\n"
    with pytest.raises(ConfigError) as caught:
        convert_text(f"image: x\ninline_script:\n  - |\n{inner}")
    assert "In `inline_script.0`: The here-document in line 1 holds FSDP settings" in str(caught.value)
    assert "nothing to convert" not in str(caught.value)


def test_one_key_of_verls_does_not_make_it_verls_what_defaults_choose() -> None:
    text = "defaults:\n  - /x/strategy/fsdp_dpo\ntraining_args:\n  ulysses_sequence_parallel_size: 1\n"
    with pytest.raises(ConfigError) as caught:
        convert_text(text)
    assert "verl" not in str(caught.value)
    assert "FSDP is named by `defaults.0: /x/strategy/fsdp_dpo`: what that chooses" in str(caught.value)


@pytest.mark.parametrize(
    ("framework", "offered"), [("auto", ["hf", "accelerate"]), ("hf", ["hf"]), ("accelerate", ["accelerate"])]
)
def test_flat_keys_with_an_unknown_one_have_the_command_that_converts_them(
    framework: str, offered: list[str]
) -> None:
    text = "fsdp_sharding_strategy: 1\nfsdp_state_dict_type: FULL_STATE_DICT\nfsdp_offload_optimizer: true\n"
    with pytest.raises(ConfigError) as caught:
        convert_text(text, framework=framework)
    assert [
        name for name in ("hf", "accelerate") if f"--from {name} --key .`" in str(caught.value)
    ] == offered
    for name in offered:
        assert "version: 2" in convert_text(text, framework=name, key=".").text


def test_flat_keys_of_a_projects_own_have_no_such_command() -> None:
    with pytest.raises(ConfigError) as caught:
        convert_text("fsdp_sharding_strategy: 1\nfsdp_mine: 2\n")
    assert "--from hf" not in str(caught.value)
