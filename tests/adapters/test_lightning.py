"""Lightning: ``FSDPStrategy`` becomes ``ModelParallelStrategy`` and a hook, which real Lightning runs."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import pytest
from ruamel.yaml import YAML

from fsdp_migrate.adapters.conversion.text import TextConversion, convert_text
from fsdp_migrate.adapters.engine.lightning_groups import WITH_GLOO
from fsdp_migrate.adapters.engine.lightning_hook import hook_code
from fsdp_migrate.adapters.engine.settings import Settings
from fsdp_migrate.adapters.lightning import LIGHTNING_KEYS
from fsdp_migrate.config_files import convert_config_file


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


STRATEGY = "_target_: lightning.pytorch.strategies.FSDPStrategy\n"


def convert(text: str, **options: Any) -> TextConversion:
    done = convert_text(text, **options)
    assert {block.framework for block in done.blocks} == {"lightning"}
    assert convert_text(done.text, **options).text == done.text
    for block in done.blocks:
        ast.parse(block.code or "")
        assert "Reference(" not in f"{block.code} {done.findings}"
    return done


def loaded(done: TextConversion) -> dict[str, Any]:
    document: dict[str, Any] = YAML(typ="safe").load(done.text)
    return document


EACH_KEY: list[tuple[str, str, dict[str, Any], str]] = [
    ("sharding_strategy", "SHARD_GRAD_OP", {}, "FM355"),
    ("cpu_offload", "true", {"process_group_backend": WITH_GLOO}, "FM355"),
    ("cpu_offload", "false", {}, "FM355"),
    ("cpu_offload", "null", {}, "FM342"),
    ("mixed_precision", "{param_dtype: bf16}", {}, "FM355"),
    ("auto_wrap_policy", "[pkg.Block]", {}, "FM355"),
    ("activation_checkpointing", "[pkg.Block]", {}, "FM355"),
    ("activation_checkpointing_policy", "[pkg.Block]", {}, "FM355"),
    ("backward_prefetch", "BACKWARD_PRE", {}, "FM355"),
    ("backward_prefetch", "null", {}, "FM355"),
    ("forward_prefetch", "true", {}, "FM355"),
    ("sync_module_states", "true", {}, "FM355"),
    ("ignored_modules", "[a]", {}, "FM355"),
    ("ignored_states", "[a]", {}, "FM355"),
    ("param_init_fn", "null", {}, "FM342"),
    ("device_mesh", "[2, 4]", {}, "FM355"),
    ("state_dict_type", "sharded", {"save_distributed_checkpoint": True}, "FM341"),
    ("state_dict_type", "full", {"save_distributed_checkpoint": False}, "FM341"),
    ("limit_all_gathers", "true", {}, "FM342"),
    ("use_orig_params", "false", {}, "FM342"),
    ("process_group_backend", "nccl", {"process_group_backend": "nccl"}, "FM340"),
    ("timeout", "null", {"timeout": None}, "FM340"),
    ("accelerator", "null", {}, "FM342"),
    ("parallel_devices", "null", {}, "FM342"),
    ("cluster_environment", "null", {}, "FM342"),
    ("checkpoint_io", "null", {}, "FM342"),
    ("precision_plugin", "null", {}, "FM342"),
    ("sharding_strategy", "${strategy}", {}, "FM346"),
    ("auto_wrap_policy", "{min_num_params: '${size}'}", {}, "FM346"),
    ("activation_checkpointing_policy", "['${layer}', my.Block]", {}, "FM346"),
    ("mixed_precision", "{param_dtype: '${dtype}'}", {}, "FM346"),
    ("device_mesh", "['${replicas}', 8]", {}, "FM346"),
    ("sharding_strategy", "${get:torch.distributed.fsdp.ShardingStrategy.FULL_SHARD}", {}, "FM355"),
]


@pytest.mark.parametrize(("key", "value", "after", "code"), EACH_KEY)
def test_each_key(key: str, value: str, after: dict[str, Any], code: str) -> None:
    done = convert(f"{STRATEGY}{key}: {value}\n", settings=Settings(world_size=8))
    expected = {"save_distributed_checkpoint": False, **after}
    assert loaded(done) == {
        "_target_": "lightning.pytorch.strategies.ModelParallelStrategy",
        "data_parallel_size": 8,
        "tensor_parallel_size": 1,
        **expected,
    }
    assert {f.code for f in done.findings if f.subject == key} == {code}
    if code == "FM355" and key != "device_mesh":
        assert key.removesuffix("_policy") in (done.blocks[0].code or "")


@pytest.mark.parametrize(
    ("target", "word", "is_said"),
    [
        ("lightning.pytorch.strategies", "sharded", True),
        ("lightning.pytorch.strategies", "full", False),
        # Fabric's folders have the names that `fabric.save` is given, under both strategies.
        ("lightning.fabric.strategies", "sharded", False),
    ],
)
def test_who_reads_the_folders_is_said(target: str, word: str, *, is_said: bool) -> None:
    text = f"_target_: {target}.FSDPStrategy\nstate_dict_type: {word}\n"
    done = convert(text, settings=Settings(world_size=8))
    said = [f.message for f in done.findings if f.fidelity == "changed"]
    assert any("lightning.fabric.utilities.consolidate_checkpoint" in each for each in said) is is_said


def test_every_key_of_the_table_is_tried_above() -> None:
    assert {key.name for key in LIGHTNING_KEYS} <= {key for key, *_ in EACH_KEY}


@pytest.mark.parametrize("word", ["fsdp", "fsdp_cpu_offload"])
def test_the_word_in_hydras_yaml(word: str) -> None:
    text = (
        f"trainer:\n  _target_: lightning.Trainer\n  devices: 4\n  num_nodes: 2\n  strategy: {word}  # big\n"
    )
    done = convert(text)
    assert loaded(done)["trainer"]["strategy"] == {
        "_target_": "lightning.pytorch.strategies.ModelParallelStrategy",
        "data_parallel_size": 8,
        "tensor_parallel_size": 1,
        "save_distributed_checkpoint": False,
        **({} if word == "fsdp" else {"process_group_backend": WITH_GLOO}),
    }
    assert ("cpu_offload" in (done.blocks[0].code or "")) is (word == "fsdp_cpu_offload")


def test_the_word_in_lightning_clis_yaml() -> None:
    done = convert("trainer:\n  accelerator: gpu\n  devices: 2\n  strategy: fsdp\nmodel: {}\n")
    strategy = loaded(done)["trainer"]["strategy"]
    assert strategy["class_path"] == "lightning.pytorch.strategies.ModelParallelStrategy"
    assert strategy["init_args"]["data_parallel_size"] == 2


def test_class_path_and_init_args() -> None:
    text = (
        "trainer:\n  devices: 2\n  strategy:\n    class_path: pytorch_lightning.strategies.FSDPStrategy\n"
        "    init_args:\n      sharding_strategy: SHARD_GRAD_OP\n      auto_wrap_policy: [models.Block]\n"
    )
    done = convert(text)
    assert loaded(done)["trainer"]["strategy"] == {
        "class_path": "pytorch_lightning.strategies.ModelParallelStrategy",
        "init_args": {
            "data_parallel_size": 2,
            "tensor_parallel_size": 1,
            "save_distributed_checkpoint": False,
        },
    }
    code = done.blocks[0].code or ""
    assert "'sharding_strategy': 'SHARD_GRAD_OP'" in code
    assert "'auto_wrap_policy': ['Block']" in code


@pytest.mark.parametrize(("devices", "ranks"), [("0,1", 4), ("'3,'", 2), ("[0, 2, 5]", 6), ("'4'", 8)])
def test_devices_are_counted_as_lightning_does(devices: str, ranks: int) -> None:
    done = convert(f"trainer:\n  accelerator: gpu\n  devices: {devices}\n  num_nodes: 2\n  strategy: fsdp\n")
    assert loaded(done)["trainer"]["strategy"]["init_args"]["data_parallel_size"] == ranks


def test_unknown_numbers_of_ranks_are_not_guessed() -> None:
    assert loaded(convert(STRATEGY))["data_parallel_size"] == "???"
    done = convert("trainer:\n  accelerator: gpu\n  devices: auto\n  strategy: fsdp\n")
    assert [f.fidelity for f in done.findings if f.code == "FM352"] == ["refused"]


def test_precisions() -> None:
    done = convert("trainer: {accelerator: gpu, devices: 2, precision: bf16-mixed, strategy: fsdp}\n")
    assert "'mixed_precision': 'bfloat16'" in (done.blocks[0].code or "")
    done = convert("trainer: {accelerator: gpu, devices: 2, precision: 16-mixed, strategy: fsdp}\n")
    assert [f.fidelity for f in done.findings if f.code == "FM357"] == ["refused"]


def test_fabrics_strategy_needs_a_function() -> None:
    done = convert("_target_: lightning.fabric.strategies.FSDPStrategy\n", settings=Settings(world_size=2))
    assert loaded(done)["_target_"] == "lightning.fabric.strategies.ModelParallelStrategy"
    assert "parallelize_fn" in {f.subject for f in done.findings}


def test_fsdp2_is_left_alone() -> None:
    done = convert("_target_: lightning.pytorch.strategies.ModelParallelStrategy\ndata_parallel_size: 2\n")
    assert [f.code for f in done.findings] == ["FM347"]


@pytest.mark.parametrize(
    ("given", "after"),
    [
        ("cpu_offload: true", WITH_GLOO),
        ("cpu_offload: true\nprocess_group_backend: nccl", WITH_GLOO),
        ("cpu_offload: true\nprocess_group_backend: null", WITH_GLOO),
        ("cpu_offload: ${offload}", WITH_GLOO),
        ("cpu_offload: true\nprocess_group_backend: gloo", "gloo"),
        ("cpu_offload: true\nprocess_group_backend: ${backend}", "${backend}"),
        ("cpu_offload: false\nprocess_group_backend: nccl", "nccl"),
        ("cpu_offload: false", None),
        ("cpu_offload: SOON", None),  # no value of it: prepare_fully_shard says so
        ("sharding_strategy: FULL_SHARD", None),
    ],
)
@pytest.mark.parametrize("package", ["lightning.pytorch", "lightning.fabric"])
def test_a_strategy_that_offloads_asks_for_gloo(package: str, given: str, after: str | None) -> None:
    text = f"_target_: {package}.strategies.FSDPStrategy\n{given}\n"
    done = convert(text, settings=Settings(world_size=8))
    assert loaded(done).get("process_group_backend") == after
    said = [f.message for f in done.findings if f.subject == "process_group_backend"]
    assert any("No backend type associated" in each for each in said) is (after == WITH_GLOO)
    assert len(said) <= 1
    assert ("mesh=" in (done.blocks[0].code or "")) is ("cpu_offload: true" not in given)


def test_hybrid_sharding_makes_its_own_mesh() -> None:
    done = convert(f"{STRATEGY}sharding_strategy: HYBRID_SHARD\n", settings=Settings(world_size=8))
    assert "mesh=" not in (done.blocks[0].code or "")
    assert "mesh=" in hook_code({"sharding_strategy": "FULL_SHARD"})
    done = convert(f"{STRATEGY}sharding_strategy: HYBRID_SHARD\ndevice_mesh: [2, 4]\n")
    assert "(2, 4), mesh_dim_names" in (done.blocks[0].code or "")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (STRATEGY, "precision"),
        ("trainer: {devices: 2, precision: '${precision}', strategy: fsdp}\n", "trainer.precision"),
        ("defaults: [default]\naccelerator: gpu\ndevices: 2\nstrategy: fsdp\n", "precision"),
    ],
)
def test_a_precision_in_another_file_is_told(text: str, place: str) -> None:
    done = convert(text)
    assert {f.code for f in done.findings if f.subject == place} == {"FM356"}
    assert "mixed_precision" not in (done.blocks[0].code or "")


@pytest.mark.parametrize(
    ("given", "codes", "is_in_hook"),
    [("true", {"FM355"}, True), ("false", set(), False), ("${sync}", {"FM346"}, False)],
)
def test_batch_norms_that_fsdpstrategy_synchronized(given: str, codes: set[str], is_in_hook: bool) -> None:
    done = convert(f"trainer: {{devices: 2, sync_batchnorm: '{given}', strategy: fsdp}}\n")
    assert {f.code for f in done.findings if f.subject == "trainer.sync_batchnorm"} == codes
    code = done.blocks[0].code or ""
    assert ("SyncBatchNorm.convert_sync_batchnorm(self)\n        arguments" in code) == is_in_hook
    assert ("\n    import torch\n" in code) == is_in_hook


@pytest.mark.parametrize(
    ("text", "is_told"), [(STRATEGY, True), (STRATEGY.replace("pytorch", "fabric"), False)]
)
def test_batch_norms_that_another_file_may_synchronize(text: str, is_told: bool) -> None:
    hints = [f.hint or "" for f in convert(text).findings if f.code == "FM356"]
    assert ["SyncBatchNorm" in hint for hint in hints] == [is_told]


def test_a_precision_that_is_known_is_not_asked_for() -> None:
    for text in (
        "trainer: {accelerator: gpu, devices: 2, strategy: fsdp}\n",
        "trainer: {accelerator: gpu, devices: 2, precision: bf16-mixed, strategy: fsdp}\n",
        f"{STRATEGY}mixed_precision: {{param_dtype: bf16}}\n",
    ):
        assert "FM356" not in {f.code for f in convert(text).findings}


def test_a_set_of_yaml_is_a_list_of_classes() -> None:
    policy = (
        "\n  class_path: torch.distributed.fsdp.wrap.ModuleWrapPolicy\n  init_args:\n    module_classes: "
    )
    text = f"{STRATEGY}auto_wrap_policy:{policy}!!set\n      ? a.Block\n      ? a.Head\n"
    text += f"activation_checkpointing_policy:{policy}!!set {{a.Block}}\n"
    code = convert(text, settings=Settings(world_size=8)).blocks[0].code or ""
    assert "'auto_wrap_policy': ['Block', 'Head']" in code
    assert "activation_checkpointing=['Block']" in code
    direct = convert(f"{STRATEGY}auto_wrap_policy: !!set {{a.Block}}\n", settings=Settings(world_size=8))
    assert "'auto_wrap_policy': ['Block']" in (direct.blocks[0].code or "")


@pytest.mark.parametrize(
    ("policy", "maker"),
    [
        ("pkg.wrap.Policy", "pkg.wrap.Policy"),
        ("{class_path: pkg.Policy, init_args: {modules: [pkg.Block]}}", "pkg.Policy"),
        ("{_target_: pkg.build}", "pkg.build"),
    ],
)
@pytest.mark.parametrize("key", ["auto_wrap_policy", "activation_checkpointing_policy"])
def test_a_policy_of_the_projects_own_is_no_class_of_layers(key: str, policy: str, maker: str) -> None:
    done = convert(f"{STRATEGY}{key}: {policy}\n", settings=Settings(world_size=8))
    [finding] = [f for f in done.findings if f.subject == key]
    assert finding.code == "FM355"
    assert finding.message.startswith(f"{maker} makes a policy of the project's own")
    assert key.removesuffix("_policy") in (finding.hint or "")
    assert "policy" not in (done.blocks[0].code or "")
    assert "activation_checkpointing" not in (done.blocks[0].code or "")


@pytest.mark.parametrize("getter", ["get_method", "get_static_method"])
def test_hydras_getters_name_torchs_policies(getter: str) -> None:
    path = "torch.distributed.fsdp.wrap.size_based_auto_wrap_policy"
    text = f"{STRATEGY}auto_wrap_policy: {{_target_: hydra.utils.{getter}, path: {path}}}\n"
    code = convert(text, settings=Settings(world_size=8)).blocks[0].code or ""
    assert "'auto_wrap_policy': 'size_based_auto_wrap_policy'" in code


@pytest.mark.parametrize(("word", "told"), [("fsdp", True), ("fsdp_native", False)])
def test_the_word_was_fairscales_before_lightning_2(word: str, told: bool) -> None:
    text = f"_target_: pytorch_lightning.Trainer\nstrategy: {word}\naccelerator: gpu\ndevices: 2\n"
    assert ("FM358" in {finding.code for finding in convert(text).findings}) is told


@pytest.mark.parametrize("defaults", ["[gpu.yaml]", "[/default, _self_]", "\n  - gpu\n  - _self_"])
def test_the_word_in_a_group_of_fabrics_becomes_fabrics_strategy(defaults: str, tmp_path: Path) -> None:
    (tmp_path / "default.yaml").write_text("_target_: lightning.fabric.Fabric\naccelerator: auto\n")
    (tmp_path / "gpu.yaml").write_text("defaults: [default.yaml]\naccelerator: gpu\n")
    config = tmp_path / "fsdp.yaml"
    config.write_text(f"defaults: {defaults}\ndevices: 4\nstrategy: fsdp\n".replace("[/", "["))
    done = convert_config_file(config).conversion
    strategy = loaded(done)["strategy"]
    assert strategy["_target_"] == "lightning.fabric.strategies.ModelParallelStrategy"
    assert strategy["save_distributed_checkpoint"] is True  # Fabric's FSDPStrategy saves a part for each rank
    assert "LightningModule" not in " ".join(f"{f.message} {f.hint}" for f in done.findings)
    assert [block.code for block in done.blocks if "def parallelize(model" in (block.code or "")]


@pytest.mark.parametrize("package", ["lightning.fabric", "lightning_fabric"])
def test_the_word_beside_fabrics_class_becomes_fabrics_strategy(package: str) -> None:
    done = convert(f"_target_: {package}.Fabric\naccelerator: auto\ndevices: 4\nstrategy: fsdp\n")
    assert loaded(done)["strategy"]["_target_"] == f"{package}.strategies.ModelParallelStrategy"


def test_a_reference_to_a_key_beside_it() -> None:
    policy = (
        "auto_wrap_policy: {_target_: torch.distributed.fsdp.wrap.ModuleWrapPolicy, module_classes: [m.B]}\n"
    )
    own = "auto_wrap_policy: {_target_: pkg.policy}\n"
    reference = "activation_checkpointing_policy: ${{{}}}\n"
    done = convert(f"{STRATEGY}{policy}{reference.format('.auto_wrap_policy')}")
    assert "FM346" not in {finding.code for finding in done.findings}
    assert "activation_checkpointing" in (done.blocks[0].code or "")
    assert "FM346" not in {
        each.code for each in convert(f"{STRATEGY}{own}{reference.format('.auto_wrap_policy')}").findings
    }
    for name in (".other", "auto_wrap_policy", "..auto_wrap_policy"):
        done = convert(f"{STRATEGY}{policy}{reference.format(name)}")
        assert "FM346" in {finding.code for finding in done.findings}


@pytest.mark.parametrize(
    ("base", "method", "is_said"),
    [
        ("L.LightningModule", "configure_model", True),
        ("Base", "configure_model", True),
        ("L.LightningModule", "configure_optimizers", False),
        ("nn.Module", "configure_model", False),
    ],
)
def test_a_module_that_has_the_hook_already_is_named(
    tmp_path: Path, base: str, method: str, *, is_said: bool
) -> None:
    (tmp_path / "fsdp.yaml").write_text(STRATEGY)
    code = (
        f"import lightning as L\n\n\nclass Lit({base}):\n    def {method}(self):\n        self.net = make()\n"
    )
    (tmp_path / "lit.py").write_text(code)
    said = " ".join(
        each.hint or "" for each in convert_config_file(tmp_path / "fsdp.yaml").conversion.findings
    )
    assert "Put the hook into the LightningModule." in said
    assert ("`Lit` (lit.py:5) has a `configure_model` already" in said) is is_said
    assert "`return`" not in said


_HAS = "class {}({}):\n    def configure_model(self):\n        self.net = make()\n\n\n"
_LACKS = "class {}({}):\n    size = 1\n\n\n"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("model: {class_path: tasks.Own}", "`Own` (tasks.py:9) has a `configure_model` already"),
        ("model:\n  _target_: project.tasks.Own", "`Own` (tasks.py:9) has a `configure_model` already"),
        # Of the class that it derives from, and of two of a name that of the file which the path names.
        ("model: {class_path: tasks.Heir}", "`Own` (tasks.py:9) has a `configure_model` already"),
        ("model: {class_path: tasks.Twice}", "`Twice` (tasks.py:18) has a `configure_model` already"),
        ("model: {class_path: tasks.Bare}", None),
        ("model: {class_path: tasks.Shards}", None),
        # Nothing says which it is, or it is not here.
        ("", "`First` (a.py:4) and 5 more classes of the project have a `configure_model` already"),
        ("model: {class_path: others.Own2}", "`First` (a.py:4) and 5 more classes of the project have"),
    ],
)
def test_the_hook_is_that_of_the_class_which_the_config_names(
    tmp_path: Path, model: str, said: str | None
) -> None:
    lit = "L.LightningModule"
    files = {
        "fsdp.yaml": f"{STRATEGY}{model}\n",
        "a.py": f"import lightning as L\n\n{_HAS.format('First', lit)}{_HAS.format('Twice', lit)}",
        "tasks.py": (
            f"import lightning as L\n\n{_LACKS.format('Bare', lit)}\n{_HAS.format('Own', lit)}"
            f"{_LACKS.format('Heir', 'Own')}{_HAS.format('Twice', lit)}"
            f"{_HAS.format('Shards', lit).replace('make', 'fully_shard')}{_HAS.format('Last', lit) * 2}"
        ),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = convert_config_file(tmp_path / "fsdp.yaml").conversion.findings
    hints = " ".join(each.hint or "" for each in found)
    assert "Put the hook into the LightningModule." in hints
    assert ("`configure_model` already" in hints) is (said is not None)
    assert said is None or said in hints


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("        if self.net is not None:\n            return\n        self.net = make()\n", 7),
        (
            "        if self.net:\n            return None\n        self.net = f()\n        return 1\n",
            7,
        ),
        # At its end, or in a function within, one passes over nothing.
        ("        self.net = make()\n        return self.net\n", None),
        ("        def inner():\n            return 1\n        self.net = make(inner)\n", None),
    ],
)
def test_a_return_above_the_end_of_it_is_named_by_its_line(
    tmp_path: Path, body: str, line: int | None
) -> None:
    (tmp_path / "fsdp.yaml").write_text(STRATEGY)
    code = f"import lightning as L\n\n\nclass Lit(L.LightningModule):\n    def configure_model(self):\n{body}"
    (tmp_path / "lit.py").write_text(code)
    found = convert_config_file(tmp_path / "fsdp.yaml").conversion.findings
    said = " ".join(each.hint or "" for each in found)
    assert "has a `configure_model` already" in said
    assert ("above the `return` of line" in said) is (line is not None)
    assert line is None or f"`return` of line {line} too" in said
