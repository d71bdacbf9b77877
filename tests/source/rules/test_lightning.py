"""Lightning's strategy, the hook that takes its place, and Fabric."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import rewrite_source, scan_source
from tests.source.samples import assert_framework_commented, assert_untouched, comments, turned, uncommented


pytestmark = pytest.mark.any_torch


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

WITH_GLOO = 'process_group_backend="cpu:gloo,cuda:nccl"'


@pytest.mark.parametrize(
    ("strategy", "after", "hook"),
    [
        ("FSDPStrategy()", MODEL_PARALLEL.format(8, False), "'use_orig_params': True"),
        (
            'FSDPStrategy(state_dict_type="sharded", sharding_strategy="SHARD_GRAD_OP", timeout=t)',
            MODEL_PARALLEL.format(8, True).replace(")", ", timeout=t)"),
            "'sharding_strategy': 'SHARD_GRAD_OP'",
        ),
        (
            '"fsdp_cpu_offload"',
            f"{MODEL_PARALLEL.format(8, False)[:-1]}, {WITH_GLOO})",
            "'cpu_offload': True",
        ),
        (
            "FSDPStrategy(cpu_offload=True)",
            MODEL_PARALLEL.format(8, False).replace("(", f"({WITH_GLOO}, "),
            "'cpu_offload': True",
        ),
        (
            "FSDPStrategy(cpu_offload=True, process_group_backend='nccl')",
            f"{MODEL_PARALLEL.format(8, False)[:-1]}, {WITH_GLOO})",
            "'cpu_offload': True",
        ),
        ("FSDPStrategy(cpu_offload=False)", MODEL_PARALLEL.format(8, False), "'cpu_offload': False"),
        (
            '"fsdp", sync_batchnorm=True',
            f"{MODEL_PARALLEL.format(8, False)}, sync_batchnorm=True",
            "torch.nn.SyncBatchNorm.convert_sync_batchnorm(self)",
        ),
    ],
)
def test_lightnings_strategy_comes_with_its_hook(strategy: str, after: str, hook: str) -> None:
    found = turned(LIT + TRAINER.format(8, strategy), header="")
    assert f"  trainer = L.Trainer(devices=8, strategy={after})\n" in found
    assert "from lightning.pytorch.strategies import ModelParallelStrategy\n" in found
    assert "FSDPStrategy\n" not in found or strategy.startswith('"')
    assert hook in found.partition("  def configure_model(self) -> None:\n")[2].partition("def main")[0]


@pytest.mark.parametrize(
    ("strategy", "is_said"),
    [
        ('FSDPStrategy(state_dict_type="sharded")', True),
        ("FSDPStrategy(state_dict_type=kind, auto_wrap_policy=policy)", True),
        ('FSDPStrategy(state_dict_type="full")', False),
        ("FSDPStrategy()", False),
        ("'fsdp'", False),
    ],
)
def test_who_reads_the_folders_that_are_saved_is_said(strategy: str, *, is_said: bool) -> None:
    """Once, where they are asked for: what reads them may be a script, or a command on a page."""
    found = comments(LIT + TRAINER.format(8, strategy), header="")
    assert ("take lightning.fabric.utilities.consolidate_checkpoint" in found) is is_said
    assert ("Where no code of yours reads such a folder, delete this comment." in found) is (
        is_said and "kind" not in strategy
    )


LIT_LEFT = [
    (LIT, "devices", "FSDPStrategy()", "<number of ranks>"),
    (LIT, 8, "FSDPStrategy(auto_wrap_policy=policy)", "`auto_wrap_policy` is known only when this runs"),
    (
        LIT,
        8,
        "FSDPStrategy(auto_wrap_policy={'min_num_params': cfg.n})",
        "Write its value into `arguments` of the hook. Take",
    ),
    (
        LIT,
        8,
        "FSDPStrategy(activation_checkpointing_policy={Block, cfg.block})",
        "as the keyword `activation_checkpointing=`",
    ),
    (LIT, 8, "FSDPStrategy(device_mesh=(cfg.replicas, 8))", "`device_mesh` is known only when this runs"),
    (LIT, 8, "FSDPStrategy(state_dict_type=kind)", 'save_distributed_checkpoint=(kind == "sharded"), '),
    (LIT, 8, "FSDPStrategy(**more)", "hide arguments"),
    (LIT, 8, 'FSDPStrategy(), precision="16-mixed"', "has no 16-mixed"),
    (
        LIT,
        8,
        "FSDPStrategy(), sync_batchnorm=flag",
        "If it is true, let the hook begin with `torch.nn.SyncBatchNorm",
    ),
    (LIT.replace("training_step", "configure_model"), 8, "FSDPStrategy()", "or has a configure_model"),
    (LIT.replace("L.LightningModule", "Base"), 8, "FSDPStrategy()", "is not seen in these files"),
    (LIT.replace("model = Lit()", "model = Other()"), 8, '"fsdp"', "is not seen in these files"),
]


@pytest.mark.parametrize(("header", "devices", "strategy", "said"), LIT_LEFT)
def test_without_its_hook_the_strategy_stays(header: str, devices: object, strategy: str, said: str) -> None:
    body = header + TRAINER.format(devices, strategy)
    found = turned(body, header="")
    assert "".join(line for line in found.splitlines(keepends=True) if "# fsdp-migrate:" not in line) == body
    assert said in found
    assert "Reference(" not in found
    assert "${" not in found
    assert "# fsdp-migrate:     def configure_model(self) -> None:" in found


def test_of_several_settings_that_are_not_known_it_is_said_once() -> None:
    given = "FSDPStrategy(auto_wrap_policy=a, mixed_precision=b, state_dict_type=c)"
    said = comments(TRAINER.format(8, given), LIT)
    assert (
        "`auto_wrap_policy`, `mixed_precision` are known only when this runs. "
        "Write their values into `arguments` of the hook. "
    ) in said
    assert said.count("known only when this runs") == 2
    assert "`state_dict_type` is known only when this runs. " in said


@pytest.mark.parametrize(
    ("made", "hook", "mesh"),
    [
        (
            f"{LIT}  trainer = L.Trainer(devices=8, strategy={{}})\n  trainer.fit(model)\n",
            "the hook",
            "self.",
        ),
        ("import lightning as L\nf = L.Fabric(devices=8, strategy={})\n", "`parallelize`", ""),
    ],
)
def test_what_is_not_known_is_written_where_it_is_taken(made: str, hook: str, mesh: str) -> None:
    """`arguments` refuses what the strategy recomputes, and a mesh that is only a shape."""
    home = "lightning.fabric" if "Fabric" in made else "lightning.pytorch"
    strategy = f"from {home}.strategies import FSDPStrategy\n"

    def said(given: str) -> str:
        return comments(f"{strategy}{made.format(f'FSDPStrategy({given})')}", header="")

    for name in ("activation_checkpointing_policy", "activation_checkpointing"):
        found = said(f"auto_wrap_policy=layers, {name}=layers")
        assert (
            f"`auto_wrap_policy` is known only when this runs. Write its value into `arguments` of {hook}. "
            in found
        )
        assert (
            f"`{name}` is known only when this runs. Give its value to prepare_fully_shard in {hook} as the "
            "keyword `activation_checkpointing=`, which is none of its `arguments`. "
        ) in found
    found = said("device_mesh=mesh")
    assert f"Give prepare_fully_shard in {hook} such a mesh as its only `mesh=`" in found
    assert f"`init_device_mesh({mesh}device_mesh.device_type, (replicas, shards), mesh_dim_names=" in found
    assert "leave out `mesh=` there if it is one of replicas" in said("sharding_strategy=a")
    assert "leave out `mesh=` there if it offloads" in said("cpu_offload=a")
    assert "leave out" not in said("auto_wrap_policy=a, forward_prefetch=b")


def test_a_hook_that_is_there_is_not_to_be_replaced_by_a_second_one() -> None:
    wraps = "    self.block = wrap(self.block)\n"
    header = LIT.replace(
        "import lightning as L\n", "import lightning as L\nfrom torch.distributed.fsdp.wrap import wrap\n"
    )
    method = f"  def configure_model(self):\n{wraps}\n  def training_step"
    body = header.replace("  def training_step", method) + TRAINER.format(8, "FSDPStrategy()")
    (said,) = (line for line in turned(body, header="").splitlines() if "# fsdp-migrate: FM319" in line)
    assert "`Lit` makes or shards its model in such a hook already" in said
    assert "no second `def`" in said
    assert "(FM303) in `auto_wrap_policy`" in said
    said = turned(body.replace(wraps, "    self.block = Block()\n"), header="")
    assert "no second `def`" in said
    assert "in `auto_wrap_policy`" not in said


def test_the_old_hook_is_to_be_renamed_and_shards_but_once() -> None:
    imports = "import lightning as L\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    method = "  def configure_sharded_model(self):\n    self.net = {}\n\n  def training_step"
    body = LIT.replace("import lightning as L\n", imports).replace("  def training_step", method)
    body += TRAINER.format(8, '"fsdp"')
    (said,) = (line for line in turned(body.format("FSDP(self.net)")).splitlines() if "FM319" in line)
    assert "Call that hook of `Lit` `configure_model`" in said
    assert "`Lit` shards its model in such a hook already: keep that" in said
    assert "at its end" not in said
    (said,) = (line for line in turned(body.format("Block()")).splitlines() if "FM319" in line)
    assert "Call that hook of `Lit` `configure_model`" in said
    assert "put the lines of the one below at its end" in said
    (said,) = (
        line
        for line in turned(body.format("Block()").replace("_sharded", "")).splitlines()
        if "FM319" in line
    )
    assert "Call that hook" not in said


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("  a = fabric.setup(student)\n  b = fabric.setup(teacher)\n", True),
        ("  a, b = fabric.setup_module(student), fabric.setup_module(teacher)\n", True),
        ("  student, optimizer = fabric.setup(student, optimizer)\n", False),
        ("  a = fabric.setup(student)\ndef other(fabric):\n  fabric.setup(teacher)\n", False),
    ],
)
def test_fabrics_function_shards_every_model_that_is_set_up(body: str, is_said: bool) -> None:
    imports = "from lightning.fabric import Fabric\nfrom lightning.fabric.strategies import FSDPStrategy\n"
    imports += "from net import Block\n"
    made = "def main():\n  fabric = Fabric(strategy=FSDPStrategy({}), devices=8)\n"
    found = turned(f"{imports}{made.format('auto_wrap_policy={Block}')}{body}", header="")
    assert ("for each model that it sets up, here `student` and `teacher`" in found) is is_said
    assert "for each model" not in turned(f"{imports}{made.format('')}{body}", header="")


def test_the_hook_is_laid_out_as_its_source_is() -> None:
    body = (LIT + TRAINER.format(8, "FSDPStrategy()")).replace("\n", "\r\n")
    after = turned(body, header="")
    assert "\r\n    if self.device_mesh is not None and not isinstance(self, FSDPModule):\r\n" in after
    assert "\r\n      arguments = {\r\n" in after
    assert after.count("\n") == after.count("\r\n")


def test_two_strategies_for_one_module_must_agree() -> None:
    both = TRAINER.format(8, "FSDPStrategy()") + TRAINER.format(8, "FSDPStrategy({})")
    assert turned(LIT + both.format(""), header="").count("def configure_model") == 1
    assert "several hooks" in turned(LIT + both.format("cpu_offload=True"), header="")


OWN = "class Own(L.Trainer):\n  {}\n\n\n"


@pytest.mark.parametrize("strategy", ["FSDPStrategy()", "'fsdp'"])
def test_a_trainer_of_the_project_is_turned_as_lightnings(strategy: str) -> None:
    code = LIT.replace("class Lit", OWN.format("pass") + "class Lit")
    found = turned(code + TRAINER.format(8, strategy).replace("L.Trainer", "Own"), header="")
    assert f"Own(devices=8, strategy={MODEL_PARALLEL.format(8, False)})" in found
    assert found.count("def configure_model") == 1


@pytest.mark.parametrize("strategy", ["FSDPStrategy()", "'fsdp'"])
def test_a_trainer_with_its_own_constructor_stays_and_so_does_the_module(strategy: str) -> None:
    own = OWN.format("def __init__(self, devices, strategy):\n    super().__init__(devices=devices)")
    code = LIT.replace("class Lit", own + "class Lit")
    found = turned(code + TRAINER.format(8, strategy).replace("L.Trainer", "Own"), header="")
    said = " ".join(each.strip().removeprefix("# fsdp-migrate:").strip() for each in found.splitlines())
    assert "is a class of the project: see that it hands its arguments on as they are." in said
    assert "is not seen here" not in said
    assert f"Own(devices=8, strategy={strategy})" in found
    both = code + TRAINER.format(8, strategy).replace("L.Trainer", "Own") + TRAINER.format(8, "'fsdp'")
    found = turned(both, header="")
    # Under the Trainer that keeps its strategy the hook finds no mesh.
    assert f"Own(devices=8, strategy={strategy})" in found
    assert any(line.startswith("  def configure_model") for line in found.splitlines())


def test_a_fabric_of_the_project_is_seen() -> None:
    code = LIT.replace("class Lit", "class Own(L.Fabric):\n  pass\n\n\nclass Lit")
    code = code.replace("lightning.pytorch.strategies", "lightning.fabric.strategies")
    said = comments(f"{code}  fabric = Own(devices=8, strategy=FSDPStrategy())\n", "")
    assert "is not seen here" not in said
    assert "are not seen here" not in said
    assert "data_parallel_size=8" in said


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("Fabric(strategy=FSDPStrategy())", "parallelize_fn"),
        ("isinstance(fabric.strategy, FSDPStrategy)", "ask for ModelParallelStrategy"),
        ("Fabric(strategy='fsdp')", "parallelize_fn"),
    ],
)
def test_fabric_is_told_of_its_own_way(code: str, said: str) -> None:
    header = "from lightning.fabric import Fabric\nfrom lightning.fabric.strategies import FSDPStrategy\n\n"
    assert any(said in use.becomes for use in scan_source(f"{header}x = {code}\n") if use.code == "FM319")


FRAMEWORKS = [
    ("from lightning.pytorch.strategies import FSDPStrategy\ns = FSDPStrategy()\n", "FM319"),
    ("import pytorch_lightning as pl\nt = pl.Trainer(strategy='fsdp')\n", "FM319"),
]


@pytest.mark.parametrize(("source", "code"), FRAMEWORKS)
def test_other_frameworks_get_a_comment(source: str, code: str) -> None:
    assert_framework_commented(source, code)


NO_FRAMEWORKS = [
    "import pytorch_lightning as pl\nt = pl.Trainer(strategy='ddp')\n# no fsdp\n",
]


@pytest.mark.parametrize("source", NO_FRAMEWORKS)
def test_other_frameworks_without_fsdp1_are_left_alone(source: str) -> None:
    assert_untouched(source)


@pytest.mark.parametrize(
    ("line", "is_said"),
    [
        ('given["strategy"] = "fsdp"', True),
        ('given = {"strategy": "fsdp_native"}', True),
        ('given = dict(strategy="fsdp")', True),
        ('strategy = "fsdp" if many else "auto"', True),
        ('class Options:\n    strategy: str = "fsdp"', True),
        ('parser.add_argument("--strategy", choices=["ddp", "fsdp"])', True),
        ('parser.add_argument("--strategy", default="fsdp")', True),
        ('parser.add_argument("--strategy", choices=["ddp"], help="fsdp")', False),
        ('parser.add_argument("--plugin", choices=["ddp", "fsdp"])', False),
        ('given["name"] = "fsdp"', False),
        ('is_sharded = strategy == "fsdp"', False),
    ],
)
def test_the_word_reaches_the_trainer_another_way(line: str, is_said: bool) -> None:
    code = f"import pytorch_lightning as pl\n{line}\ntrainer = pl.Trainer(**given)\n"
    assert [use.code for use in scan_source(code)] == ["FM319"] * is_said
    assert scan_source(code.replace("pytorch_lightning", "other")) == []


@pytest.mark.parametrize(
    ("made", "is_read"),
    [
        ("D = {'cpu_offload': True, 'sharding_strategy': 'SHARD_GRAD_OP'}\n", True),
        ("D = dict(cpu_offload=True, sharding_strategy='SHARD_GRAD_OP')\nprint(D, D['cpu_offload'])\n", True),
        ("A = {'cpu_offload': True}\nD = {**A, 'sharding_strategy': 'SHARD_GRAD_OP'}\n", True),
        ("D = {'cpu_offload': True}\nD['sharding_strategy'] = choose()\n", False),
        ("D = {'cpu_offload': True}\nfill(D)\n", False),
        ("D = {'cpu_offload': True, **choose()}\n", False),
        ("D = choose()\n", False),
    ],
)
def test_a_dict_of_arguments_is_read_as_if_written_out(made: str, *, is_read: bool) -> None:
    header = "from lightning.fabric import Fabric\nfrom lightning.fabric.strategies import FSDPStrategy\n"
    said = comments(f"{made}fabric = Fabric(devices=2, strategy=FSDPStrategy(**D))\n", header)
    assert ("'cpu_offload': True," in said) is is_read
    assert ("'sharding_strategy': 'SHARD_GRAD_OP'," in said) is is_read
    assert ("hide arguments: add these" in said) is not is_read
    assert ("stand in a dict" in said) is is_read


PRIVATE = "from lightning.fabric.strategies.fsdp import _get_full_state_dict_context as whole\n"


@pytest.mark.parametrize(
    "source",
    [
        f"def save(model):\n    {PRIVATE}    with whole(model, 8):\n        return model.state_dict()\n",
        "import lightning.pytorch.strategies.fsdp as own\n\nwhole = own._get_full_state_dict_context\n",
        "if hasattr(fabric.strategy, '_fsdp_kwargs'):\n    model = fabric.setup(model)\n",
        "given = fabric.strategy._fsdp_kwargs\n",
    ],
)
def test_what_is_private_to_the_strategy_gets_a_comment(source: str) -> None:
    assert_framework_commented(source, "FM319")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("_get_full_state_dict_context", "get_model_state_dict"),
        ("_setup_activation_checkpointing", "activation_checkpointing=)"),
        ("_has_meta_device_parameters", "see what it is asked for here"),
    ],
)
def test_each_private_function_is_told_what_takes_its_place(name: str, said: str) -> None:
    found = comments(f"from lightning.fabric.strategies.fsdp import {name}\n{name}(model)\n", header="")
    assert said in found
    assert ("get_model_state_dict" in found) is (said == "get_model_state_dict")


def test_rays_strategy_is_lightnings() -> None:
    source = "from ray.train.lightning import RayFSDPStrategy\ns = RayFSDPStrategy(cpu_offload=True)\n"
    assert_framework_commented(source, "FM319")


def test_a_strategy_that_its_trainer_is_given_in_one_branch() -> None:
    body = (
        "def f(on):\n  if on:\n    s = FSDPStrategy()\n  else:\n    s = 'auto'\n"
        "  t = L.Trainer(devices=8, precision='bf16-true', strategy=s)\n  t.fit(Lit())\n"
    )
    said = comments(body, header=LIT)
    assert "this strategy is given in one branch, and another in others" in said
    assert "data_parallel_size=8" in said
    assert "bf16-true" in said or "bfloat16" in said
    assert "is not seen here" in comments(body.replace("strategy=s", "strategy=t"), header=LIT)


@pytest.mark.parametrize("asks", ["s == 'fsdp'", "s in {'fsdp', 'x'}", "isinstance(s, str)"])
@pytest.mark.parametrize("runs", ["L.Trainer", "L.Fabric"])
def test_a_strategy_whose_name_is_a_parameter_that_is_asked(asks: str, runs: str) -> None:
    body = (
        f"def f(n, s):\n  if n > 1:\n    if {asks}:\n      s = FSDPStrategy()\n  else:\n    s = 'auto'\n"
        f"  print(s, f'{{s}}')\n  t = {runs}(devices=8, precision='bf16-true', strategy=s)\n"
    )
    said = comments(body, header=LIT)
    assert "this strategy is given in one branch, and another in others" in said
    assert "not seen here" not in said
    given = comments(body.replace("strategy=s)", "strategy=s)\n  g = L.Trainer(strategy=s)"), header=LIT)
    assert "not seen here" in given


@pytest.mark.parametrize(
    ("asks", "is_turned"),
    [
        ("isinstance(s, Base)", True),
        ("kind = type(s)", False),
        ("type(s).__name__ == 'FSDPStrategy'", False),
        ("str(s) == 'fsdp'", False),
    ],
)
def test_a_strategy_of_which_the_class_or_the_text_is_taken(asks: str, *, is_turned: bool) -> None:
    body = f"  s = FSDPStrategy()\n  {asks}\n  t = L.Trainer(devices=8, strategy=s)\n  t.fit(model)\n"
    assert ("ModelParallelStrategy(" in uncommented(turned(LIT + body, header=""))) is is_turned
    assert ("FM319" in comments(body, header=LIT)) is not is_turned


@pytest.mark.parametrize(
    ("more", "is_said"),
    [
        ("", False),
        ("  if strategy == 'fsdp':\n    print(strategy)\n", False),
        ("  other(strategy)\n", True),
        ("  kind = str(strategy)\n", True),
    ],
)
def test_a_word_that_was_rewritten_where_it_is_given_stays(more: str, *, is_said: bool) -> None:
    body = f"  strategy = 'fsdp'\n{more}  t = L.Trainer(devices=8, strategy=strategy)\n  t.fit(model)\n"
    assert "strategy=ModelParallelStrategy(" in turned(LIT + body, header="")
    assert ("FM319" in comments(body, header=LIT)) is is_said
    config = LIT.replace("def main", "class Config:\n  strategy = 'fsdp'\n\n\ndef main")
    assert "names Lightning's FSDP1 strategy" in comments(body, header=config)
    own = LIT.replace("def main", "class Own(L.Trainer):\n  def __init__(self, **kw): ...\n\n\ndef main")
    left = comments(body.replace("L.Trainer", "Own"), header=own)
    assert "names Lightning's FSDP1 strategy" in left


def test_the_precision_of_a_trainer_that_is_not_seen() -> None:
    """FSDPStrategy takes its dtypes from the Trainer, the hook from the strategy alone."""
    header = f"import torch\nfrom torch.distributed.fsdp import MixedPrecision\n{LIT}"
    for given, is_said in (("", True), ("mixed_precision=MixedPrecision(param_dtype=torch.float16)", False)):
        said = comments(f"def make():\n    return FSDPStrategy({given})\n", header)
        assert "is not seen here" in said
        assert ("`precision`: It is no plain value here" in said) is is_said, given


@pytest.mark.parametrize("package", ["L.Trainer(devices=n", "L.Fabric(devices=n"])
def test_a_policy_that_names_classes_of_which_the_model_may_have_some(package: str) -> None:
    header = f"from models import Block, Other\n{LIT}"
    for names, is_said in (("Block", False), ("Block, Other", True)):
        body = f"t = {package}, strategy=FSDPStrategy(auto_wrap_policy={{{names}}}))\n"
        said = comments(body, header)
        assert "'auto_wrap_policy': ['Block'" in said
        assert ("Name those classes alone that the model has" in said) is is_said


@pytest.mark.parametrize(
    ("more", "is_known"), [("", True), ("layers.add(Other)\n", False), ("use(layers)\n", False)]
)
def test_one_set_of_classes_for_units_and_for_what_is_recomputed(more: str, *, is_known: bool) -> None:
    """Two arguments of one call read it, and nothing else that could change it."""
    body = (
        f"layers = {{Block}}\n{more}"
        "s = FSDPStrategy(auto_wrap_policy=layers, activation_checkpointing_policy=layers)\n"
        "t = L.Trainer(devices=8, strategy=s)\nt.fit(Lit())\n"
    )
    after = rewrite_source(f"from models import Block, Other\n{LIT}{body}")
    assert ("'auto_wrap_policy': ['Block']" in after) is is_known
    assert ("activation_checkpointing=['Block']," in after) is is_known
    assert ("# fsdp-migrate: FM319" in after) is not is_known


@pytest.mark.parametrize(("name", "is_class"), [("blocks.ALL", False), ("blocks.Block", True)])
def test_a_constant_of_a_module_is_no_class_to_checkpoint(name: str, *, is_class: bool) -> None:
    code = (
        "import lightning as L\nfrom lightning.pytorch.strategies import FSDPStrategy\n"
        "from nets import blocks\n"
        f"strategy = FSDPStrategy(activation_checkpointing_policy={name})\n"
        "trainer = L.Trainer(devices=8, strategy=strategy)\n"
    )
    assert (f"activation_checkpointing='{name.rpartition('.')[2]}'" in rewrite_source(code)) is is_class


CHOICES = [
    ("class Kind(str, Enum):\n    ddp = 'ddp'\n    fsdp = 'fsdp'\n", True),
    ("class Kind(str, Enum):\n    megatron = 'megatron'\n    fsdp = 'fsdp'\n", False),
    ("class Kind:\n    ddp = 'ddp'\n    fsdp = 'fsdp'\n", False),
    ("def main(strategy: Literal['auto', 'fsdp'] = 'auto'):\n    pass\n", True),
    ("class Config:\n    strategy: Literal['auto', 'fsdp'] = 'auto'\n", True),
    ("def main(backend: Literal['auto', 'fsdp'] = 'auto'):\n    pass\n", False),
    ("def get_strategy(ranks):\n    return 'fsdp' if ranks > 1 else 'auto'\n", True),
    ("def get_name(ranks):\n    return 'fsdp'\n", False),
    ("parser.set_defaults({'trainer.strategy': 'fsdp'})\n", True),
    ("parser.set_defaults({'trainer.name': 'fsdp'})\n", False),
]


@pytest.mark.parametrize(("code", "is_said"), CHOICES)
def test_a_word_that_may_be_chosen(code: str, *, is_said: bool) -> None:
    found = turned(f"import lightning as L\n{code}", header="")
    assert ("FM319" in found) is is_said
    assert ("the module's configure_model" in found) is is_said
    of_fabric = turned(f"from lightning.fabric import Fabric\n{code}", header="")
    assert ("give Fabric ModelParallelStrategy(parallelize_fn=...)" in of_fabric) is is_said
    assert "FM319" not in turned(code, header="")


@pytest.mark.parametrize(
    ("attribute", "said"),
    [
        ("_timeout", "`_timeout` is set below this: ModelParallelStrategy takes `timeout=`"),
        ("cpu_offload", "below this `cpu_offload` of this strategy is set"),
    ],
)
def test_an_attribute_that_is_set_hides_no_trainer(attribute: str, said: str) -> None:
    body = (
        f"def f(x):\n  s = FSDPStrategy()\n  s.{attribute} = x\n"
        "  t = L.Trainer(devices=8, precision='bf16-true', strategy=s)\n  t.fit(Lit())\n"
    )
    found = comments(body, header=LIT)
    assert said in found
    assert "not seen here" not in found
    assert "data_parallel_size=8" in found


@pytest.mark.parametrize(
    ("between", "value", "is_said"),
    [
        ("", "DeepSpeedStrategy()", False),
        ("print(1)", "'auto'", False),
        ("use(s)", "DeepSpeedStrategy()", True),
        ("", "wrap(s)", True),
        ("if n:", "DeepSpeedStrategy()", True),
        ("for x in y: use(s)", "DeepSpeedStrategy()", True),
    ],
)
def test_a_strategy_that_the_next_one_replaces(between: str, value: str, *, is_said: bool) -> None:
    indent = "    " if between.endswith(":") else "  "
    body = (
        f"def f(n):\n  s = FSDPStrategy()\n  {between}\n{indent}s = {value}\n"
        "  t = L.Fabric(devices=8, strategy=s)\n"
    )
    assert ("FM319" in comments(body, header=LIT)) is is_said


@pytest.mark.parametrize(
    ("code", "is_said"),
    [
        ('strategy = "fsdp_cpu_offload"\nrun(strategy)\n', True),
        ('strategy = "fsdp"\nrun(strategy)\n', False),
        ('parser.add_argument("--strategy", choices=["ddp", "fsdp_cpu_offload"])\n', True),
        ('parser.add_argument("--strategy", choices=["ddp", "fsdp"])\n', False),
    ],
)
def test_a_word_that_offloads_is_told_of_gloo(code: str, *, is_said: bool) -> None:
    said = [use.becomes for use in scan_source(f"import lightning as L\n{code}") if use.code == "FM319"]
    assert len(said) == 1
    assert ("process_group_backend='cpu:gloo,cuda:nccl'" in said[0]) is is_said
