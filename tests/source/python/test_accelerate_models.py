"""What Accelerate prepares beside its plugin for FSDP1 is sharded."""

from __future__ import annotations

import pytest

from tests.source.samples import comments


pytestmark = pytest.mark.any_torch


FSDP1 = (
    "import torch\nfrom accelerate import Accelerator, FullyShardedDataParallelPlugin\n"
    'plugin = FullyShardedDataParallelPlugin(sharding_strategy="FULL_SHARD")\n'
    "accelerator = Accelerator(fsdp_plugin=plugin)\n"
)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("w = model.module.weight\n", "FM333"),
        ("torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", "FM326"),
        ("torch.save(model.state_dict(), path)\n", "FM333"),
        ("accelerator.unwrap_model(model).save_pretrained(path)\n", "FM333"),
        ("accelerator.unwrap_model(model).save_pretrained(path, state_dict=state)\n", ""),
        ("accelerator.clip_grad_norm_(model.parameters(), 1.0)\n", ""),
        ("loader.state_dict()\n", ""),
    ],
)
def test_what_accelerate_prepares_beside_its_plugin_is_sharded(body: str, code: str) -> None:
    above = "model.load_state_dict(state)\n"
    prepare = "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n"
    said = comments(above + prepare + body, FSDP1)
    found = [each for each in ("FM326", "FM333", "FM446") if each in said]
    assert found == ([code] if code else [])
    assert not comments(prepare + body, FSDP1.replace('sharding_strategy="FULL_SHARD"', "fsdp_version=2"))
    said = comments(prepare + body, FSDP1.replace('sharding_strategy="FULL_SHARD"', "fsdp_version=1"))
    assert not code or code in said


def test_an_optimizer_is_given_the_sharded_parameters_by_accelerate() -> None:
    body = "optimizer = build(model)\nmodel = accelerator.prepare(model)\noptimizer.step()\n"
    said = comments(body, FSDP1)
    assert "FM449" in said
    assert "FM446" not in said


@pytest.mark.parametrize(
    "asks",
    [
        "plugin = FullyShardedDataParallelPlugin()\naccelerator = Accelerator(**{'fsdp_plugin': plugin})\n",
        "accelerator = Accelerator(fsdp_plugin=make_plugin())\n",
        "import os\nos.environ['ACCELERATE_USE_FSDP'] = 'true'\naccelerator = Accelerator()\n",
    ],
)
def test_each_way_to_ask_for_fsdp_is_enough(asks: str) -> None:
    header = f"from accelerate import Accelerator, FullyShardedDataParallelPlugin\n{asks}"
    body = "model, optimizer = accelerator.prepare(model, optimizer)\nw = model.module.weight\n"
    assert "FM333" in comments(body, header)
    assert "FM333" not in comments(body, "from accelerate import Accelerator\naccelerator = Accelerator()\n")


def test_accelerates_switch_is_on_by_true_alone() -> None:
    header = "import os\nfrom accelerate import Accelerator\nos.environ['ACCELERATE_USE_FSDP'] = {}\n"
    body = "accelerator = Accelerator()\nmodel, o = accelerator.prepare(model, o)\nw = model.module.weight\n"
    assert "FM333" in comments(body, header.format("'True'"))
    assert "FM333" not in comments(body, header.format("'1'"))


@pytest.mark.parametrize(
    ("given", "is_said"),
    [
        ("model.head.parameters()", True),
        ("[p for p in model.parameters() if p.requires_grad]", True),
        ("filter(lambda p: p.requires_grad, model.parameters())", True),
        ("list(model.parameters())[1:]", True),
        ("itertools.chain(model.parameters(), critic.parameters())", True),
        ("trained", True),
        # Accelerate compares with all of each model that it has prepared.
        ("model.parameters()", False),
        ("[p for p in model.parameters()]", False),
        ("accelerator.unwrap_model(model).parameters()", False),
        ("optimizer.param_groups[0]['params']", False),
        ("other.parameters()", False),
        ("list(other.parameters())", False),
    ],
)
def test_the_norm_of_a_part_was_one_ranks(given: str, *, is_said: bool) -> None:
    body = (
        "model, optimizer = accelerator.prepare(model, optimizer)\n"
        "critic, other_optimizer = accelerator.prepare(critic, other_optimizer)\n"
        "trained = [p for n, p in model.named_parameters() if 'bias' not in n]\n"
        f"accelerator.clip_grad_norm_({given}, 1.0)\n"
    )
    said = comments(body, FSDP1)
    assert ("FM326 where Accelerate shards this model, the norm is now that of the whole" in said) is is_said
    assert "FM326" not in comments(body, FSDP1.replace('sharding_strategy="FULL_SHARD"', "fsdp_version=2"))


@pytest.mark.parametrize(
    ("test", "is_said"), [("accelerator.is_main_process", True), ("rank == 0", True), ("args.save", False)]
)
def test_a_state_is_taken_by_every_rank_above_a_branch_of_one(test: str, *, is_said: bool) -> None:
    prepare = "model, optimizer = accelerator.prepare(model, optimizer)\n"
    said = comments(f"{prepare}if {test}:\n    model.save_pretrained(path)\n", FSDP1)
    assert "accelerator.get_state_dict(model)" in said
    assert ("which every rank takes above this branch" in said) is is_said


STAGES = (
    "from accelerate import Accelerator\naccelerator = Accelerator()\n"
    "def main(model, cfg):\n"
    "    plugin = accelerator.state.fsdp_plugin if hasattr(accelerator.state, 'fsdp_plugin') else None\n{}"
    "    if {}:\n        def hook(models, weights, output_dir):\n            pass\n"
    "    else:\n        def hook(models, weights, output_dir):\n            {}\n"
    "    accelerator.register_save_state_pre_hook(hook)\n"
    "    opt = torch.optim.AdamW(model.parameters())\n    model, opt = accelerator.prepare(model, opt)\n"
)
KNOWS = (
    "import torch\nfrom torch.distributed.fsdp import ShardingStrategy\nprint(ShardingStrategy.FULL_SHARD)\n"
)
ITEM = "models[0].save_pretrained(output_dir)"
EITHER = "    if plugin is not None:\n        stage = {}\n    else:\n        stage = {}\n"
INNER = (
    "    if plugin is not None:\n        if plugin.x:\n            stage = 3\n"
    "        else:\n            stage = 2\n"
    "    else:\n        stage = 0\n"
)
BEFORE = "    stage = 0\n    if plugin is not None:\n        stage = {}\n"


@pytest.mark.parametrize(
    ("sets", "test", "use", "is_said"),
    [
        (INNER, "stage != 0", ITEM, False),
        (INNER, "stage != 0 or zero_stage == 3", ITEM, False),
        (INNER, "not stage == 0", ITEM, False),
        (INNER, "stage", ITEM, False),
        (INNER, "stage > 0", ITEM, False),
        (INNER, "stage >= 2", ITEM, False),
        (INNER, "stage != 0", "model = models.pop(); model.load_state_dict(weights.state_dict())", False),
        (EITHER.format("'full'", "None"), "stage is not None", ITEM, False),
        (BEFORE.format("3"), "stage != 0", ITEM, False),
        ("    stage = 3 if plugin is not None else 0\n", "stage != 0", ITEM, False),
        ("", "plugin is not None", ITEM, False),
        # FSDP may be on below these.
        (INNER, "stage == 0", ITEM, True),
        (INNER, "stage > 2", ITEM, True),
        (INNER, "stage != 0 and zero_stage == 3", ITEM, True),
        (EITHER.format("cfg.stage", "0"), "stage != 0", ITEM, True),
        (EITHER.format("3", "1"), "stage != 0", ITEM, True),
        (BEFORE.format("0"), "stage != 0", ITEM, True),
        (BEFORE.replace("plugin", "cfg.x").format("3"), "stage != 0", ITEM, True),
        ("    stage = 3 if stage else 0\n", "stage != 0", ITEM, True),
        ("", "plugin is None", ITEM, True),
    ],
)
def test_a_number_that_says_how_accelerate_was_launched(
    sets: str, test: str, use: str, *, is_said: bool
) -> None:
    said = comments(STAGES.format(sets, test, use), KNOWS)
    assert ("FM333" in said or "FM450" in said) is is_said


@pytest.mark.parametrize(("sets", "is_said"), [("self.stage", False), ("self.other", True)])
def test_a_number_that_an_object_keeps(sets: str, *, is_said: bool) -> None:
    body = (
        "class Run:\n    def __init__(self, model, opt):\n"
        "        self.accelerator = Accelerator(fsdp_plugin=plugin)\n"
        f"        {sets} = 2 if self.accelerator.state.fsdp_plugin is not None else 0\n"
        "        self.model, self.opt = self.accelerator.prepare(model, opt)\n"
        "    def save(self, path):\n        if self.stage == 0:\n"
        "            self.model.save_pretrained(path)\n"
    )
    assert ("FM333" in comments(body, FSDP1)) is is_said


@pytest.mark.parametrize(
    ("both", "tests", "is_said"),
    [
        (
            "lora and accelerator.distributed_type == DistributedType.FSDP",
            ("not both and full", "lora"),
            False,
        ),
        (
            "lora and accelerator.distributed_type == DistributedType.FSDP",
            ("not both", "lora and full"),
            False,
        ),
        # FSDP may run below these.
        ("lora and accelerator.distributed_type == DistributedType.FSDP", ("not both", "full"), True),
        ("lora and accelerator.distributed_type == DistributedType.FSDP", ("both", "lora"), True),
        ("lora or accelerator.distributed_type == DistributedType.FSDP", ("both", "lora"), True),
        (
            "lora and full and accelerator.distributed_type == DistributedType.FSDP",
            ("not both", "lora"),
            True,
        ),
    ],
)
def test_what_is_false_of_two_where_the_other_is_true(
    both: str, tests: tuple[str, str], *, is_said: bool
) -> None:
    body = (
        "from accelerate.utils import DistributedType\ndef save(model, lora, full):\n"
        f"    both = {both}\n    if {tests[0]}:\n        if {tests[1]}:\n"
        "            model.module.state_dict()\n"
        "model, opt = accelerator.prepare(net, opt)\nsave(model, True, True)\n"
    )
    assert ("FM333" in comments(body, FSDP1)) is is_said
    again = body.replace("    if", "    lora = True\n    if", 1)
    assert "FM333" in comments(again, FSDP1) or not is_said


OWN = (
    "class Trainer:\n    def __init__(self, model, optimizer, x):\n        self.accelerator = accelerator\n"
    "        self.optimizer = optimizer\n        self.model{} = self.prepare({})\n"
    "        print(self.model.module.weight)\n\n    def prepare(self, {}):\n{}"
)
GIVES = "        return self.accelerator.prepare(*objects)\n"


@pytest.mark.parametrize(
    ("names", "given", "takes", "does", "codes"),
    [
        (", self.optimizer", "[model, optimizer]", "objects", GIVES, {"FM333"}),
        (", self.optimizer", "model, optimizer", "*objects", GIVES, {"FM333"}),
        (
            ", self.optimizer",
            "model, optimizer",
            "*objects",
            f"        if not self.on:\n            return objects\n{GIVES}",
            {"FM333"},
        ),
        ("", "model", "*objects", GIVES, {"FM333", "FM449"}),
        ("", "x, model", "x, *objects", GIVES, set()),
        ("", "model", "*objects", GIVES.replace("self.accelerator", "self.store"), set()),
        ("", "model", "*objects", GIVES.replace("*objects", "x"), set()),
    ],
)
def test_a_function_that_hands_all_that_it_is_given_to_prepare(
    names: str, given: str, takes: str, does: str, codes: set[str]
) -> None:
    said = comments(OWN.format(names, given, takes, does), FSDP1)
    assert {each for each in ("FM333", "FM449") if each in said} == codes
