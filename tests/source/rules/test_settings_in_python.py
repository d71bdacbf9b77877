"""Settings of frameworks that stand in Python: converted in place, or said as far as they are known."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import scan_source
from tests.source.samples import plain, turned


pytestmark = pytest.mark.any_torch


HF = (
    "from transformers import TrainingArguments\n"
    "from transformers.trainer_utils import FSDPOption\n"
    "from trl import SFTConfig\n"
)
ACCELERATE = (
    "import functools\nimport torch\n"
    "from accelerate import Accelerator, FullyShardedDataParallelPlugin as Plugin\n"
    "from models import Block\n"
    "from torch.distributed.fsdp import CPUOffload, MixedPrecision, ShardingStrategy, StateDictType\n"
    "from torch.distributed.fsdp.wrap import ModuleWrapPolicy, transformer_auto_wrap_policy as by_class\n"
)
MORE = '"version": 2, "reshard_after_forward": {}, "state_dict_type": "FULL_STATE_DICT"'
NO_WRAP = (
    "'version': 2, 'reshard_after_forward': False, 'auto_wrap_policy': 'NO_WRAP', "
    "'state_dict_type': 'FULL_STATE_DICT'"
)
POLICY = '"auto_wrap_policy": "NO_WRAP"'
LAYER = '"transformer_layer_cls_to_wrap": [layer]'
FULL, GRAD_OP = MORE.format(True), MORE.format(False)


def last(body: str, header: str) -> str:
    """Return a body as it is rewritten, without our comments."""
    lines = turned(header + body, header="").splitlines()
    kept = [line for line in lines if not line.lstrip().startswith("# fsdp-migrate:")]
    return "\n".join(kept[-body.count("\n") :]) + "\n"


def comments(body: str, header: str) -> str:
    lines = turned(header + body, header="").splitlines()
    return "\n".join(line for line in lines if line.lstrip().startswith("# fsdp-migrate:"))


HF_CALLS = [
    ('fsdp="full_shard auto_wrap"', f'fsdp="full_shard auto_wrap", fsdp_config={{{FULL}}}'),
    (
        "fsdp=[FSDPOption.SHARD_GRAD_OP, FSDPOption.AUTO_WRAP], seed=1",
        f"fsdp=[FSDPOption.SHARD_GRAD_OP, FSDPOption.AUTO_WRAP], fsdp_config={{{GRAD_OP}}}, seed=1",
    ),
    (
        'fsdp="shard_grad_op auto_wrap" if on else "", fsdp_transformer_layer_cls_to_wrap=[layer]',
        f'fsdp="shard_grad_op auto_wrap" if on else "", fsdp_config={{{GRAD_OP}, {LAYER}}}',
    ),
    (
        "fsdp='shard_grad_op', fsdp_config={'min_num_params': 1e3, 'xla': on}",
        f"fsdp='shard_grad_op', fsdp_config={{'min_num_params': 1000, 'xla': on, {NO_WRAP}}}",
    ),
    (
        'fsdp="no_shard" if on else "", fsdp_config={"auto_wrap_policy": "NO_WRAP"} if on else None',
        f'fsdp="shard_grad_op" if on else "", fsdp_config={{{POLICY}, {GRAD_OP}}} if on else None',
    ),
    (
        'fsdp="full_shard auto_wrap", fsdp_config=\'{"fsdp_min_num_params": 0}\'',
        f'fsdp="full_shard auto_wrap", fsdp_config={{"fsdp_min_num_params": 0, {FULL}}}',
    ),
]


@pytest.mark.parametrize(("before", "after"), HF_CALLS)
@pytest.mark.parametrize("name", ["TrainingArguments", "SFTConfig"])
def test_arguments_of_the_hf_trainer(name: str, before: str, after: str) -> None:
    assert last(f'a = {name}("out", {before})\n', HF) == f'a = {name}("out", {after})\n'


def test_a_dict_is_changed_where_it_stands_and_keeps_its_comments() -> None:
    body = (
        "config = dict(\n"
        "    # for the layers\n"
        "    min_num_params=0,  # none\n"
        "    use_orig_params=True,  # for compile\n"
        ")\n"
        'a = TrainingArguments("out", fsdp="full_shard auto_wrap", fsdp_config=config)\n'
    )
    assert (
        "config = dict(\n"
        "    # for the layers\n"
        "    min_num_params=0,  # none\n"
        "    # use_orig_params: for compile\n"
        "    version=2,\n"
        "    reshard_after_forward=True,\n"
        '    state_dict_type="FULL_STATE_DICT",\n'
        ")\n"
    ) in plain(HF + body, header="")


HF_LEFT = [
    ('fsdp=["full_shard", more]', f"Here: fsdp_config={{{FULL}}}, with False in place of True"),
    ('fsdp="full_shard", fsdp_config=make()', "is known only when this runs"),
    ('fsdp="shard_grad_op auto_wrap", fsdp_config=make()', f"Here: add {{{GRAD_OP}}} to it"),
    ('fsdp="full_shard", **more', "`**` may hold `fsdp_config`"),
    ('fsdp="full_shard", fsdp_config="a/fsdp.json"', "`fsdp-migrate config a/fsdp.json --from hf --write`"),
    ('fsdp="full_shard", fsdp_config={"xla": True}', "PyTorch/XLA's FSDP is another one"),
    ('fsdp="full_shard auto_wrap", fsdp_min_num_params=n', "SIZE_BASED_WRAP` beside it"),
    ('fsdp="full_shard autowrap"', "Did you mean `auto_wrap`?"),
    ('**{"fsdp": "full_shard"}', "these are arguments of the Trainer"),
]


@pytest.mark.parametrize(("given", "said"), HF_LEFT)
def test_what_is_left_of_the_hf_trainers_is_said(given: str, said: str) -> None:
    body = f'a = TrainingArguments("out", {given})\n'
    assert last(body, HF) == body
    assert said in comments(body, HF)


def test_a_dict_that_others_read_is_left() -> None:
    body = (
        'config = {"min_num_params": 0}\nconfig["xla"] = False\n'
        'a = TrainingArguments("out", fsdp="full_shard", fsdp_config=config)\n'
    )
    assert last(body, HF) == body
    assert "used in other places too" in comments(body, HF)


def test_defaults_of_a_class_are_said() -> None:
    body = (
        "class Ours(TrainingArguments):\n"
        '    fsdp: str = field(default="shard_grad_op")\n'
        '    fsdp_config: dict = field(default_factory=lambda: {"min_num_params": 0})\n'
    )
    assert last(body, HF) == body
    assert '"reshard_after_forward": False' in comments(body, HF)
    assert not scan_source(body.replace('"shard_grad_op"', '""'))


TYPE = 'state_dict_type="{}_STATE_DICT"'
WHOLE, SHARDED = TYPE.format("FULL"), TYPE.format("SHARDED")
BY_CLASS = 'auto_wrap_policy="TRANSFORMER_BASED_WRAP"'
BLOCK = 'transformer_cls_names_to_wrap=["Block"]'
CAST = "mixed_precision_policy=MixedPrecisionPolicy(reduce_dtype=torch.half)"
PLUGINS = [
    (
        f"sharding_strategy=ShardingStrategy.FULL_SHARD, use_orig_params=True, {SHARDED}",
        f"fsdp_version=2, reshard_after_forward=True, {SHARDED}",
    ),
    (
        "sharding_strategy=2, cpu_offload=CPUOffload(True), ignored_modules=f(m)",
        f"fsdp_version=2, reshard_after_forward=False, cpu_offload=True, ignored_modules=f(m), {WHOLE}",
    ),
    (
        "fsdp_version=1, auto_wrap_policy=functools.partial(by_class, transformer_layer_cls={Block})",
        f"fsdp_version=2, {BY_CLASS}, {BLOCK}, {WHOLE}",
    ),
    (
        f"auto_wrap_policy=ModuleWrapPolicy([Block]), {TYPE.format('LOCAL')}",
        f"fsdp_version=2, {BY_CLASS}, {SHARDED}, {BLOCK}",
    ),
    (
        f"sharding_strategy=ShardingStrategy(2), {SHARDED}, mixed_precision_policy=dict(param_dtype=t)",
        f"sharding_strategy=ShardingStrategy(2), {SHARDED}, mixed_precision_policy=dict(param_dtype=t)",
    ),
    (
        "state_dict_type=StateDictType(3), mixed_precision_policy=dict(reduce_dtype=torch.half)",
        f"fsdp_version=2, state_dict_type=StateDictType(3), {CAST}",
    ),
    (
        f"mixed_precision_policy=MixedPrecision(torch.half, buffer_dtype=torch.half), {SHARDED}",
        f"fsdp_version=2, mixed_precision_policy=MixedPrecisionPolicy(param_dtype=torch.half), {SHARDED}",
    ),
]


@pytest.mark.parametrize(("before", "after"), PLUGINS)
def test_accelerates_plugin(before: str, after: str) -> None:
    assert last(f"p = Plugin({before})\n", ACCELERATE) == f"p = Plugin({after})\n"


PLUGINS_LEFT = [
    (
        "sharding_strategy=ShardingStrategy[args.s]",
        "reshard_after_forward=<True, or False for SHARD_GRAD_OP>",
    ),
    ("ShardingStrategy.FULL_SHARD", "have no names"),
    ("sharding_strategy=1, **more", "stand behind `*` or `**`"),
    ("state_dict_config=config", "`accelerate launch` reads"),
    ("auto_wrap_policy=policy, sharding_strategy=1", "the whole model is one unit"),
    (
        "mixed_precision_policy=MixedPrecision(keep_low_precision_grads=True), sharding_strategy=1",
        "keep_low_precision_grads cannot be said",
    ),
]


@pytest.mark.parametrize(("given", "said"), PLUGINS_LEFT)
def test_what_is_left_of_accelerates_plugin_is_said(given: str, said: str) -> None:
    body = f"p = Plugin({given})\n"
    assert last(body, ACCELERATE) == body
    assert said in comments(body, ACCELERATE)


def test_a_plugin_whose_attributes_are_set_later_is_left() -> None:
    body = "p = Plugin(sharding_strategy=1)\np.cpu_offload = find()\n"
    assert last(body, ACCELERATE) == body


@pytest.mark.parametrize(
    "where",
    [
        "kwargs.update(fsdp={}, fsdp_config=None)",
        'settings = {{"output_dir": "out", "fsdp": {}}}',
        'kwargs["fsdp"] = {}',
        "args.fsdp = {}",
        "TrainingArguments('out', **dict(fsdp={}))",
    ],
)
def test_words_of_the_hf_trainer_are_known_wherever_they_stand(where: str) -> None:
    body = where.format("['shard_grad_op', 'auto_wrap'] if on else ''") + "\n"
    assert last(body, HF) == body
    assert f"Here: fsdp_config={{{GRAD_OP}}}" in comments(body, HF)
    assert not scan_source(where.format("['anything', 'else']") + "\n")


def test_a_policy_that_fsdp2_of_accelerate_does_not_know_is_said() -> None:
    body = "trainer.accelerator.state.fsdp_plugin.auto_wrap_policy = fsdp_auto_wrap_policy(model)\n"
    assert "FM343 with this policy" in comments(body, ACCELERATE)


def test_attributes_of_another_functions_plugin_do_not_count() -> None:
    body = "p = Plugin(sharding_strategy=1)\ndef f(x):\n    p = x.fsdp_plugin\n    p.cpu_offload = 1\n"
    assert "p = Plugin(fsdp_version=2, " in last(body, ACCELERATE)


def test_what_accelerate_does_otherwise_is_said_for_each_plugin_of_a_statement() -> None:
    body = (
        'p = [Plugin(sharding_strategy="HYBRID_SHARD"), Plugin(forward_prefetch=True, min_num_params=1),'
        ' Plugin(auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=1)]\n'
        'Accelerator(fsdp_plugin=p[0], mixed_precision="bf16")\n'
    )
    said = comments(body, ACCELERATE)
    assert [code for code in ("FM343", "FM354", "FM355", "FM427") if code not in said] == []
    assert said.count(": FM343") == 2


def test_what_goes_away_takes_its_imports_along() -> None:
    before = "p = Plugin(auto_wrap_policy=functools.partial(by_class, transformer_layer_cls={Block}))\n"
    after = turned(ACCELERATE + before, header="")
    assert "functools" not in after
    assert "by_class" not in after
    assert "import torch\n" in after


LIT = """\
import lightning as L
from lightning.pytorch.strategies import FSDPStrategy


class Lit(L.LightningModule):
  def training_step(self, batch):
    return self.layers(batch)


def main(model=None):
  model = Lit()
"""
TRAINER = "  trainer = L.Trainer(devices={}, strategy={})\n  trainer.fit(model)\n"
MODEL_PARALLEL = (
    "ModelParallelStrategy(data_parallel_size={}, tensor_parallel_size=1, save_distributed_checkpoint={})"
)


@pytest.mark.parametrize(
    ("strategy", "after", "hook"),
    [
        ("FSDPStrategy()", MODEL_PARALLEL.format(8, False), "'use_orig_params': True"),
        (
            'FSDPStrategy(state_dict_type="sharded", sharding_strategy="SHARD_GRAD_OP", timeout=t)',
            MODEL_PARALLEL.format(8, True).replace(")", ", timeout=t)"),
            "'sharding_strategy': 'SHARD_GRAD_OP'",
        ),
        ('"fsdp_cpu_offload"', MODEL_PARALLEL.format(8, False), "'cpu_offload': True"),
    ],
)
def test_lightnings_strategy_comes_with_its_hook(strategy: str, after: str, hook: str) -> None:
    found = turned(LIT + TRAINER.format(8, strategy), header="")
    assert f"  trainer = L.Trainer(devices=8, strategy={after})\n" in found
    assert "from lightning.pytorch.strategies import ModelParallelStrategy\n" in found
    assert "FSDPStrategy\n" not in found or strategy.startswith('"')
    assert hook in found.partition("  def configure_model(self) -> None:\n")[2].partition("def main")[0]


LIT_LEFT = [
    (LIT, "devices", "FSDPStrategy()", "<number of ranks>"),
    (LIT, 8, "FSDPStrategy(auto_wrap_policy=policy)", "`auto_wrap_policy` is known only when this runs"),
    (LIT, 8, "FSDPStrategy(**more)", "hide arguments"),
    (LIT, 8, 'FSDPStrategy(), precision="16-mixed"', "has no 16-mixed"),
    (LIT.replace("training_step", "configure_model"), 8, "FSDPStrategy()", "or has a configure_model"),
    (LIT.replace("L.LightningModule", "Base"), 8, "FSDPStrategy()", "is not in this file"),
    (LIT.replace("model = Lit()", "model = Other()"), 8, '"fsdp"', "is not in this file"),
]


@pytest.mark.parametrize(("header", "devices", "strategy", "said"), LIT_LEFT)
def test_without_its_hook_the_strategy_stays(header: str, devices: object, strategy: str, said: str) -> None:
    body = header + TRAINER.format(devices, strategy)
    found = turned(body, header="")
    assert "".join(line for line in found.splitlines(keepends=True) if "# fsdp-migrate:" not in line) == body
    assert said in found
    assert "# fsdp-migrate:     def configure_model(self) -> None:" in found


def test_the_hook_is_laid_out_as_its_source_is() -> None:
    body = (LIT + TRAINER.format(8, "FSDPStrategy()")).replace("\n", "\r\n")
    after = turned(body, header="")
    assert "\r\n    if not isinstance(self, FSDPModule):\r\n      arguments = {\r\n" in after
    assert after.count("\n") == after.count("\r\n")


def test_what_is_asked_of_the_plugins_name_stays() -> None:
    found = scan_source(f"{ACCELERATE}if Plugin is not None and not Plugin:\n    pass\n")
    assert [use.action for use in found if use.code == "FM320"] == ["kept", "kept"]


def test_two_strategies_for_one_module_must_agree() -> None:
    both = TRAINER.format(8, "FSDPStrategy()") + TRAINER.format(8, "FSDPStrategy({})")
    assert turned(LIT + both.format(""), header="").count("def configure_model") == 1
    assert "several hooks" in turned(LIT + both.format("cpu_offload=True"), header="")


def test_every_function_that_sets_the_type_decides_for_itself() -> None:
    body = (
        "def save(model: FSDP, optim):\n"
        "    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True))\n"
        "    return model.state_dict()\n\n\n"
        "def load(model: FSDP, state):\n"
        "    FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)\n"
        "    model.load_state_dict(state)\n\n\n"
        "def other(model: FSDP):\n"
        "    return model.state_dict()\n"
    )
    after = plain(body)
    assert "    return full_state_dict(model, rank0_only=False, offload_to_cpu=True)[" in after
    assert "    set_model_state_dict(model, state)\n" in after
    assert "    # fsdp-migrate: FM308\n    return model.state_dict()\n" in after
    inner = body.replace("    FSDP.set_state", "    if optim:\n        FSDP.set_state", 1)
    assert plain(inner).count("FM307") == 2


def test_a_load_that_is_left_names_the_line_that_loads() -> None:
    body = (
        "def load(model: FSDP, path, kind):\n"
        "    with FSDP.state_dict_type(model, kind):\n"
        '        model.load_state_dict(torch.load(path / "m.pt")["model"])\n'
    )
    assert 'load_checkpoint(path / "m.pt", model, optimizer) of fsdp_migrate' in turned(body)
