"""Models that Accelerate is to prepare without their optimizers."""

from __future__ import annotations

import textwrap

import pytest

from fsdp_migrate.explanations import explain_code
from fsdp_migrate.source import scan_source
from tests.source.samples import IMPORTS, codes, comments, turned, uses


pytestmark = pytest.mark.any_torch


ACCELERATOR = "from accelerate import Accelerator\naccelerator = Accelerator()\n"
PLUGIN = (
    "from accelerate import Accelerator, FullyShardedDataParallelPlugin\n"
    'plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="FULL_STATE_DICT")\n'
    "accelerator = Accelerator(fsdp_plugin=plugin)\n"
)


@pytest.mark.parametrize(
    "call",
    [
        "model = accelerator.prepare(model)\n",
        "self.net = self.accelerator.prepare(self.net)\n",
        "model = accelerator.prepare_model(model)\n",
        "model = accelerator.prepare(\n    model,  # sharded first\n)\n",
        "model, loader = accelerator.prepare(model, train_dataloader)\n",
    ],
)
def test_a_model_alone_gets_a_comment(call: str) -> None:
    assert "FM449 Accelerate's FSDP2 refuses it" in comments(call, PLUGIN)
    assert turned(PLUGIN + call, header="").endswith(call)


@pytest.mark.parametrize(
    ("call", "is_said"),
    [
        ("for i in range(2):\n    models[i] = accelerator.prepare(models[i])\n", True),
        ("for i, m in enumerate(self.nets):\n    self.nets[i] = accelerator.prepare(m)\n", True),
        ("models = [accelerator.prepare(m) for m in models]\n", True),
        ("optimizers = [accelerator.prepare(o) for o in optimizers]\n", True),
        ("for i in range(2):\n    m, o = accelerator.prepare(models[i], optimizers[i])\n", False),
        ("for m, o in zip(models, optimizers):\n    m, o = accelerator.prepare(m, o)\n", False),
        ("loaders = [accelerator.prepare(x) for x in loaders]\n", False),
        ("data['train'] = accelerator.prepare(data['train'])\n", False),
    ],
)
def test_models_of_a_list_are_prepared_alone(call: str, *, is_said: bool) -> None:
    assert ("FM449 Accelerate's FSDP2 refuses it" in comments(call, PLUGIN)) is is_said


@pytest.mark.parametrize(("test", "is_said"), [("not use_fsdp", False), ("use_fsdp", True), ("x", True)])
def test_where_fsdp_is_off_there_is_nothing_to_say(test: str, *, is_said: bool) -> None:
    call = f"if {test}:\n    model = accelerator.prepare(model)\n"
    assert ("FM449" in comments(call, PLUGIN)) is is_said


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("model, model_ema, teacher = accelerator.prepare(model, model_ema, teacher)\n", "takes one model"),
        ("self.accelerator.prepare(unet, self.text_encoder, optimizer, loader)\n", "takes one model"),
        ("optimizer, lr_scheduler = accelerator.prepare(optimizer, lr_scheduler)\n", "passed together"),
    ],
)
def test_several_models_and_an_optimizer_alone_get_a_comment(call: str, said: str) -> None:
    assert said in comments(call, PLUGIN)


@pytest.mark.parametrize(
    ("before", "call", "said"),
    [
        ("opt = AdamW(dit.parameters())\n", "dit = accelerator.prepare(dit)\n", "passed together"),
        ("vae.requires_grad_(False)\ngpt.train()\n", "accelerator.prepare(vae, gpt)\n", "takes one model"),
        ("y = gpt(x)\n", "gpt, loader = accelerator.prepare(gpt, loader)\n", "passed together"),
        ("y = gpt(x)\n", "gpt, opt = accelerator.prepare(gpt, opt)\n", ""),
        ("def train(x):\n    train(x)\n", "train = accelerator.prepare(train)\n", ""),
        ("loss = loss_fn(x)\n", "loss_fn = accelerator.prepare(loss_fn)\n", ""),
    ],
)
def test_a_model_is_known_by_what_is_asked_of_it(before: str, call: str, said: str) -> None:
    found = comments(f"{before}{call}", PLUGIN)
    assert (said in found) if said else ("FM449" not in found)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("midi, vlm = accelerator.prepare(midi, vlm)\n{}", "parameters of `midi`, `vlm`, and"),
        ("midi = accelerator.prepare(midi)\nvlm = accelerator.prepare(vlm)\n{}", "make them parts of one"),
        (
            "midi, vlm = accelerator.prepare(midi, vlm)\nopt = AdamW(net.parameters())\n",
            "none is made of this",
        ),
        ("model, vlm = accelerator.prepare(model, vlm)\nopt = make_optimizer(vlm)\n", "takes one model in a"),
        ("midi = accelerator.prepare(midi)\nopt = AdamW(midi.parameters())\n", "Make the optimizer first"),
    ],
)
def test_models_of_one_optimizer_and_of_none(code: str, said: str) -> None:
    both = "opt = AdamW([{'params': midi.parameters()}, {'params': vlm.parameters()}])\n"
    assert said in comments(f"midi(x)\nvlm(x)\n{code.format(both)}", PLUGIN)


def test_what_is_explained_of_several_models() -> None:
    assert "one model in a call" in explain_code("FM449").action


TOKENS = "AutoTokenizer.from_pretrained(path)"


@pytest.mark.parametrize(
    ("before", "call", "is_said"),
    [
        ("", "model, tok = accelerator.prepare(model, tok)\n", True),
        ("", "model, x = accelerator.prepare(model, tokenizer, processor, loader)\n", True),
        (f"model, t = make(), {TOKENS}\n", "model, t = accelerator.prepare(model, t)\n", True),
        ("self.c = DataCollatorForSeq(t)\n", "x = self.accelerator.prepare(self.model, self.c)\n", True),
        (f"model, t = {TOKENS}, make()\n", "model, t = accelerator.prepare(model, t)\n", False),
        ("t = make()\n", "model, t = accelerator.prepare(model, t)\n", False),
        ("", "model, tok, optim = accelerator.prepare(model, tok, optim)\n", False),
    ],
)
def test_what_is_seen_to_be_no_optimizer_does_not_stand_for_one(
    before: str, call: str, *, is_said: bool
) -> None:
    assert ("FM449" in comments(f"{before}{call}", PLUGIN)) is is_said


def test_a_model_that_a_trainer_is_given_below_is_left_to_it() -> None:
    call = "from trl import SFTTrainer\nmodel, tok = accelerator.prepare(model, tok)\n"
    given = "trainer = SFTTrainer({}, args=a)\n"
    assert "give the Trainer the model as it is" in comments(call + given.format("model=model"), PLUGIN)
    assert "give the Trainer the model as it is" in comments(call + given.format("model"), PLUGIN)
    assert "passed together" in comments(call + given.format("model=other"), PLUGIN)
    assert "passed together" in comments(given.format("model=model") + call, PLUGIN)


@pytest.mark.parametrize(
    ("asks", "is_said"),
    [
        ("accelerator.state.fsdp_plugin.auto_wrap_policy = policy\n", True),
        ("os.environ['ACCELERATE_USE_FSDP'] = 'true'\n", True),
        ("os.environ['ACCELERATE_USE_FSDP'] = 'false'\n", False),
        ("is_sharded = accelerator.distributed_type == DistributedType.FSDP\n", True),
        ("is_sharded = accelerator.distributed_type == 'FSDP'\n", True),
        ("is_sharded = trainer.is_fsdp_enabled\n", True),
        ("is_sharded = accelerator.is_fsdp2\n", False),
        ("is_sharded = getattr(accelerator.state, 'fsdp_plugin', None) is not None\n", True),
        ("is_sharded = accelerator.state.fsdp_plugin is not None\n", True),
        ("with FSDP.summon_full_params(model):\n    pass\n", True),
        ("own = FSDP(other)\nwith FSDP.summon_full_params(own):\n    pass\n", False),
        ("plan.fsdp_plugin.run()\n", False),
        ("# For FSDP feature, prepare the model first.\n", True),
        ("# FSDP is for another day.\n", False),
    ],
)
def test_the_plugin_comes_by_the_launch(asks: str, *, is_said: bool) -> None:
    code = f"{ACCELERATOR}{IMPORTS}{asks}model = accelerator.prepare(model)\n"
    assert ("FM449" in {use.code for use in scan_source(code)}) is is_said


@pytest.mark.parametrize(
    ("test", "is_said"),
    [
        ("accelerator.distributed_type == DistributedType.FSDP", True),
        ("accelerator.distributed_type != DistributedType.FSDP", False),
        ("not trainer.is_fsdp_enabled", False),
        ("trainer.is_fsdp_enabled or accelerator.distributed_type != 'FSDP'", True),
        ("trainer.is_deepspeed_enabled", False),
    ],
)
def test_what_other_launches_come_to_is_right(test: str, *, is_said: bool) -> None:
    asks = "print(accelerator.distributed_type == DistributedType.FSDP)\n"
    code = f"{ACCELERATOR}{asks}if {test}:\n    model = accelerator.prepare(model)\n"
    assert ("FM449" in {use.code for use in scan_source(code)}) is is_said
    other = f"{ACCELERATOR}{asks}if {test}:\n    pass\nelse:\n    model = accelerator.prepare_model(model)\n"
    assert ("FM449" in {use.code for use in scan_source(other)}) is not is_said


def test_a_program_without_an_optimizer_is_told_to_leave_the_model_out() -> None:
    call = "model = accelerator.prepare(model)\n"
    assert "there is none here" in comments(call + "model.generate(tokens)\n", PLUGIN)
    unused = "from torch import optim\n# the Trainer's optimizer\naccelerator.load_state(path)\n"
    assert "there is none here" in comments(unused + call, PLUGIN)
    assert "Make the optimizer first" in comments(call + "optimizer = AdamW(model.parameters())\n", PLUGIN)
    assert "Where the model is trained" in comments(call + "model.eval()\nloss.backward()\n", PLUGIN)


@pytest.mark.parametrize("mode", ["True", "evaluates"])
def test_a_model_that_is_prepared_for_evaluation_stays_whole(mode: str) -> None:
    body = f"ref = accelerator.prepare_model(ref, evaluation_mode={mode})\n"
    assert not comments(body, PLUGIN)
    assert comments(body.replace(mode, "False"), PLUGIN)


@pytest.mark.parametrize(
    "code",
    [
        PLUGIN + "a, b, c = accelerator.prepare(model, model_optimizer, model_scheduler)\n",
        PLUGIN + "objects = accelerator.prepare(thing, optimizer)\n",
        PLUGIN + "objects = accelerator.prepare(model, other_model, *more)\n",
        PLUGIN + "model, optimizer = accelerator.prepare(model, optimizer)\n",
        PLUGIN + "loader = accelerator.prepare(loader)\n",
        PLUGIN + "objects = accelerator.prepare(model, *others)\n",
        "# no FSDP here\nfrom accelerate import Accelerator\nmodel = accelerator.prepare(model)\n",
    ],
)
def test_other_calls_are_right(code: str) -> None:
    assert "FM449" not in {use.code for use in scan_source(code)}


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("model = FSDP(net)\nmodel = accelerator.prepare(model)\n", True),
        ("model = FSDP(net)\nmodel, optimizer = accelerator.prepare(model, optimizer)\n", True),
        ("def shard(m):\n    return FSDP(m)\nmodel = shard(net)\nmodel = accelerator.prepare(model)\n", True),
        ("self.model = FSDP(net)\nself.model = self.accelerator.prepare_model(self.model)\n", True),
        ("model = FSDP(net)\noptimizer = accelerator.prepare(optimizer)\n", False),
        ("if own:\n    model = FSDP(net)\nelse:\n    model = accelerator.prepare(model)\n", False),
        ("model = accelerator.prepare(net)\nmodel = accelerator.prepare(model)\n", False),
        ("other = accelerator.prepare(net)\nmodel = FSDP(net)\n", False),
    ],
)
def test_a_model_that_is_sharded_before_it_is_prepared(body: str, *, is_said: bool) -> None:
    if "self." in body:
        body = f"class Work:\n    def run(self, net):\n{textwrap.indent(body, ' ' * 8)}"
    assert (("FM303", "commented") in codes(ACCELERATOR + body)) is is_said


MOVED = """\
class Work:
    def load(self):
        self.model = make()
        {}
        self.model = self.model.to(self.device)

    def start(self):
        self.model, self.optimizer = self.accelerator.prepare(self.model, self.optimizer)

    def save(self):
        if isinstance(self.model, FSDP):
            return self.model.state_dict()

    def turned(self, model):
        model.tie_weights()
        return model

    def wrapped(self, model):
        model = FSDP(model)
        return model
"""


@pytest.mark.parametrize(
    ("line", "is_said"),
    [
        ("pass", False),
        ("self.model = torch.compile(self.model)", False),
        ("self.model = self.turned(self.model)", False),
        ("self.model = FSDP(self.model)", True),
        ("self.model = self.wrapped(self.model)", True),
    ],
)
def test_what_is_asked_of_a_model_later_does_not_shard_it_before(line: str, *, is_said: bool) -> None:
    plugin = PLUGIN.replace("fsdp_version=2, ", "")
    assert ("FM303" in dict(codes(MOVED.format(line), plugin + IMPORTS))) is is_said
    assert ("FM303" in dict(codes(MOVED.format(line)))) is is_said


SECOND = "FM449 Accelerate's FSDP2 looks for each class"


@pytest.mark.parametrize(
    ("between", "is_said"),
    [
        ("", True),
        ("accelerator.state.fsdp_plugin.transformer_cls_names_to_wrap = []\n", False),
        ("def other():\n    ", False),
    ],
)
def test_a_second_model_may_lack_the_layers_of_the_first(between: str, *, is_said: bool) -> None:
    first = "model, optimizer = accelerator.prepare(model, optimizer)\n"
    second = "critic, critic_opt = accelerator.prepare(critic, critic_opt)\n"
    named = PLUGIN.replace("(fsdp_version", '(transformer_cls_names_to_wrap=["Block"], fsdp_version')
    assert (SECOND in comments(first + between + second, named)) is is_said
    asked = f"{ACCELERATOR}print(accelerator.distributed_type == DistributedType.FSDP)\n"
    assert (SECOND in comments(first + between + second, asked)) is is_said
    assert SECOND not in comments(first + between + second, PLUGIN)  # it names no classes
    assert SECOND not in comments(first + between + first, named)
    either = f"if own:\n    {first}else:\n    {second}"
    assert SECOND not in comments(either, named)


@pytest.mark.parametrize(
    ("made", "others"),
    [
        ("AdamW([{'params': model.parameters()}, {'params': head.parameters(), 'lr': 0.1}])", "`head`"),
        ("AdamW(list(model.parameters()) + list(self.head.parameters()))", "`self.head`"),
        ("AdamW(chain(model.parameters(), head.parameters()))", "`head`"),
        ("AdamW(groups)", "`head`"),
        ("AdamW([*model.parameters(), temperature])", "`temperature`"),
        ("AdamW([{'params': model.parameters()}, {'params': [temperature]}])", "`temperature`"),
        ("AdamW([{'params': model.parameters()}, {'params': [model.scale]}])", ""),
        ("AdamW([{'params': model.body.parameters()}, {'params': model.head.parameters()}])", ""),
        ("AdamW([{'params': body.parameters()}, {'params': head.parameters()}])", ""),
        ("AdamW(model.parameters())", ""),
    ],
)
def test_an_optimizer_that_holds_more_than_the_model(made: str, others: str) -> None:
    groups = "groups = [{'params': model.parameters()}, {'params': head.parameters()}]\n"
    groups += "temperature = nn.Parameter(torch.ones(()))\nmodel.scale = nn.Parameter(torch.ones(()))\n"
    prepare = "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n"
    said = comments(f"{groups}optimizer = {made}\n{prepare}", PLUGIN)
    assert (f"FM449 this optimizer holds the parameters of {others} too" in said) is bool(others)
    assert ("FM449" in said) is bool(others)


def test_checkpointing_of_what_accelerate_shards_names_its_plugin() -> None:
    prepare = "model, optimizer = accelerator.prepare(model, optimizer)\n"
    plugin = PLUGIN.replace("fsdp_version=2, ", "")
    said = comments(f"{prepare}apply_activation_checkpointing(model, check_fn=check)\n", plugin)
    assert "FullyShardedDataParallelPlugin activation_checkpointing=True" in said
    assert "prepare_fully_shard" not in said


@pytest.mark.parametrize(
    ("around", "said"),
    [
        ("print({})\n", "Where the model is trained, write"),
        ("{}(x).backward()\n", "Where the model is trained, write"),
        ("{}.eval()\n", "there is none here"),
        ("optimizer = AdamW({}.parameters())\n", "Make the optimizer first"),
    ],
)
def test_where_no_optimizer_is_made_it_says_what_a_file_that_infers_does(around: str, said: str) -> None:
    assert said in comments(f"model = accelerator.prepare(model)\n{around.format('model')}", PLUGIN)


@pytest.mark.parametrize(
    ("beside", "is_said"),
    [
        ("tok", True),
        ("tokenizer", True),
        ("processor, collator, train_loader", True),
        ("other", False),
        ("tok, optimizer", False),
        ("opt", False),
    ],
)
def test_a_model_beside_what_is_no_optimizer(beside: str, is_said: bool) -> None:
    body = (
        'net, tok = Net.from_pretrained("a"), AutoTokenizer.from_pretrained("a")\n'
        f"net, {beside} = accelerator.prepare(net, {beside})\n"
    )
    assert ("FM449" in comments(body, PLUGIN)) is is_said


@pytest.mark.parametrize(
    ("takes", "above", "given", "is_said"),
    [
        ("samples", "", "tokenizer, samples", True),
        ("rows: list[str]", "", "rows", True),
        ("rows: DataLoader", "", "rows", True),
        ("path", "rows = [path]\n    ", "rows", True),
        ("train_set", "", "train_set", True),
        ("train_data", "", "train_data", True),
        ("rows", "", "rows", False),
        ("rows: Optimizer", "", "rows", False),
        ("rows: list[str]", "if x:\n        rows = make()\n    ", "rows", False),
        ("rows: list[str]", "", "rows, adam", False),
        ("train_opt", "", "train_opt", False),
    ],
)
def test_data_of_other_names_is_no_optimizer(takes: str, above: str, given: str, *, is_said: bool) -> None:
    # A model beside samples had nothing said of it.
    body = f"def label({takes}):\n    {above}model, x = accelerator.prepare(model, {given})\n"
    assert ("FM449 Accelerate's FSDP2 refuses" in comments(body, PLUGIN)) is is_said


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("prepare = accelerator.prepare\nmodel = prepare(model)\n", True),
        ("hf = Accelerator(fsdp_plugin=plugin)\nmodel = hf.prepare(model)\n", True),
        ("prepare = helper.prepare\nmodel = prepare(model)\n", False),
        ("model = helper.prepare(model)\n", False),
    ],
)
def test_an_accelerator_and_its_methods_by_other_names(body: str, *, is_said: bool) -> None:
    assert ("FM449" in comments(body, PLUGIN)) is is_said


@pytest.mark.parametrize(
    ("made", "is_its"),
    [
        ("import transformers\nclass Trainer(transformers.Trainer): ...\n", True),
        ("from transformers import Trainer\n", True),
        # The project's own loop prepares nothing: each rank would train by itself.
        ("import transformers\nclass Trainer:\n    def __init__(self, model): ...\n", False),
        ("from mine import Trainer\n", False),
    ],
)
def test_whose_trainer_a_model_is_given_to(made: str, *, is_its: bool) -> None:
    body = "model = accelerator.prepare(model)\ntrainer = Trainer(model=model)\noptimizer = trainer.optim\n"
    said = comments(f"{made}{body}", PLUGIN)
    assert ("give the Trainer the model as it is" in said) is is_its
    assert ("Make the optimizer first" in said) is not is_its


THINGS = "things = [model, opt, loader]\n"


@pytest.mark.parametrize(
    ("before", "given", "is_said"),
    [
        ("things = [model, reference_model, opt]\n", "*things", True),
        ("names = ('model', 'reference_model', 'opt')\n", "*map(lambda x: getattr(self, x), names)", True),
        ("names = ('model', 'critic', 'opt')\n", "*[getattr(self, each) for each in names]", True),
        ("", "*(model, critic), opt", True),
        ("things = [model, opt, loader]\n", "*things", False),
        ("names = ('model', 'critic', 'opt')\n", "*map(load, names)", False),
        ("", "*things", False),
        # A list that grows.
        (f"{THINGS}if critic:\n    things.extend([critic, critic_opt])\n", "*things", True),
        (f"{THINGS}things.extend((critic, critic_opt))\n", "*things", True),
        (f"{THINGS}if critic:\n    things += [critic, critic_opt]\n", "*things", True),
        (f"{THINGS}things.append(critic)\n", "*things", True),
        ("things = (model, opt)\nthings += (critic,)\n", "*things", True),
        ("things = []\nfor each in x:\n    things.append(model)\nthings += [critic]\n", "*things", True),
        (f"{THINGS}things.append(loader)\nthings += [scheduler]\n", "*things", False),
        (f"{THINGS}others.append(critic)\n", "*things", False),
        (f"{THINGS}things += [model]\n", "*things", False),
        ("things = []\nif x:\n    things.append(model)\nelse:\n    things += [critic]\n", "*things", False),
        (f"things = [critic]\nthings.append(critic_opt)\n{THINGS}", "*things", False),
    ],
)
def test_several_models_in_a_list_get_a_comment(before: str, given: str, *, is_said: bool) -> None:
    call = f"model, *rest = accelerator.prepare({given})\n"
    assert ("takes one model" in comments(f"{before}{call}", PLUGIN)) is is_said
    assert "FM449" not in comments(f"{before}{call}", ACCELERATOR)


def test_a_model_that_a_function_may_have_sharded_is_told_so() -> None:
    wrap = "def wrap(m, config):\n    if config.on:\n        m = FSDP(m)\n    return m\n"
    prepare = "model, opt = accelerator.prepare(model, opt)\n"
    said = {use.becomes for use in uses(f"{ACCELERATOR}{wrap}model = wrap(net, config)\n{prepare}")}
    assert any(each.startswith("this model may be sharded already") for each in said)
    said = {use.becomes for use in uses(f"{ACCELERATOR}model = FSDP(net)\n{prepare}")}
    assert any(each.startswith("this model is sharded already") for each in said)
    assert not any("no model" in each for each in said)
    saves = "accelerator.save_state('o')\naccelerator.load_state('o')\n"
    said = {use.becomes for use in uses(f"{ACCELERATOR}model = FSDP(net)\n{prepare}{saves}")}
    assert any("Its save_state and load_state then hold no model" in each for each in said)


@pytest.mark.parametrize(
    ("test", "is_said", "else_said"),
    [
        ("args.use_fsdp", True, False),
        ("using_fsdp and rank == 0", True, False),
        ("not self.is_fsdp", False, True),
        ("args.fsdp_dir", False, False),
        ("args.shard", False, False),
    ],
)
@pytest.mark.parametrize("prepares", ["accelerator.prepare(model)", "Accelerator().prepare_model(model)"])
def test_a_switch_of_the_projects_own(prepares: str, test: str, *, is_said: bool, else_said: bool) -> None:
    body = f"{ACCELERATOR}if {test}:\n    {{}}\nelse:\n    {{}}\n"
    for code, expected in (
        (body.format(f"model = {prepares}", "pass"), is_said),
        (body.format("pass", f"model = {prepares}"), else_said),
    ):
        assert ("FM449" in {use.code for use in scan_source(code)}) is expected


@pytest.mark.parametrize(
    ("made", "given", "is_said"),
    [
        ("class Net(nn.Module):\n    pass\n\n\nslow = Net().to(device)\n", "model, slow, optimizer", True),
        ("class Net(nn.Module):\n    pass\n\n\nslow, x = Net(), 1\n", "model, slow, optimizer", True),
        ("class Data(Dataset):\n    pass\n\n\nslow = Data()\n", "model, slow, optimizer", False),
        ("", "model, ema, optimizer", True),
        ("", "model, vae, optimizer", True),
        ("", "model, slow, optimizer", False),
    ],
)
def test_a_second_model_by_what_makes_it_or_its_name(made: str, given: str, *, is_said: bool) -> None:
    asks = "print(accelerator.distributed_type == DistributedType.FSDP)\n"
    code = f"{ACCELERATOR}{made}{asks}x, y, z = accelerator.prepare({given})\nupdate(slow)\n"
    said = [use.becomes for use in scan_source(code) if use.code == "FM449"]
    assert [("one model in a call" in each, "full_tensor()" in each) for each in said] == [
        (True, True)
    ] * is_said


@pytest.mark.parametrize(("name", "is_said"), [("train_fsdp", True), ("train", False)])
def test_a_function_that_has_fsdp_in_its_name(name: str, *, is_said: bool) -> None:
    body = (
        "from accelerate import Accelerator\naccelerator = Accelerator()\nfsdp = None\n\n\n"
        f"def {name}(model):\n    model = accelerator.prepare(model)\n"
        "    optimizer = torch.optim.AdamW(model.parameters())\n    optimizer.step()\n"
    )
    assert ("FM449" in {use.code for use in scan_source(body)}) is is_said


@pytest.mark.parametrize(
    ("above", "is_said"),
    [("", True), ("trainer.create_optimizer()\n", False), ("trainer.train()\n", False)],
)
def test_an_optimizer_that_the_trainer_has_not_made(above: str, *, is_said: bool) -> None:
    body = (
        "from transformers import Trainer, TrainingArguments\n"
        "trainer = Trainer(model=m, args=TrainingArguments('o', fsdp='full_shard'), train_dataset=d)\n"
        f"{above}m, trainer.optimizer = trainer.accelerator.prepare(m, trainer.optimizer)\n"
        "if trainer.is_fsdp_enabled:\n    trainer.train()\n"
    )
    found = [use.becomes for use in scan_source(body) if use.code == "FM449"]
    assert any("trainer.create_optimizer()" in each for each in found) is is_said


@pytest.mark.parametrize(
    ("asks", "is_said"),
    [
        ('on = os.environ.get("ACCELERATE_USE_FSDP") == "true"\n', True),
        ('on = os.getenv("ACCELERATE_USE_FSDP")\n', True),
        ("if accelerator.distributed_type == DistributedType.FSDP:\n    print(1)\n", True),
        ("if accelerator.distributed_type == DistributedType.FSDP:\n    raise ValueError\n", False),
        ("if not accelerator.distributed_type == DistributedType.FSDP:\n    raise ValueError\n", True),
        ("if accelerator.distributed_type != DistributedType.FSDP:\n    raise ValueError\n", True),
        ('print("ACCELERATE_USE_FSDP")\n', False),
    ],
)
def test_a_source_that_asks_how_it_was_launched(asks: str, *, is_said: bool) -> None:
    header = "import os\nfrom accelerate import Accelerator, DistributedType\n\n"
    body = (
        f"accelerator = Accelerator()\n{asks}"
        "model = accelerator.prepare(model)\noptimizer = AdamW(model.parameters())\n"
        "optimizer = accelerator.prepare(optimizer)\n"
    )
    assert ("FM449" in dict(codes(body, header))) is is_said


@pytest.mark.parametrize("after", ["model.generate(tokens)\n", "loss.backward()\n"])
def test_a_model_that_is_left_out_is_cast_no_more(after: str) -> None:
    """Measured: a frozen teacher computes in float32 then, where mixed precision had it in bfloat16."""
    assert "Left out it computes in its own dtype" in comments(
        f"model = accelerator.prepare(model)\n{after}", PLUGIN
    )
    trained = f"model = accelerator.prepare(model)\noptimizer = AdamW(model.parameters())\n{after}"
    assert "Left out" not in comments(trained, PLUGIN)
    assert "mixed precision casts it" in explain_code("FM449").action


OTHERS_METHOD = """\
from accelerate import Accelerator, FullyShardedDataParallelPlugin
class Run:
    def __init__(self):
        self.accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())
        self.net = make()
    def train(self):
        model = make()
        optimizer = torch.optim.Adam({}.parameters())
    def encode(self):
        model = load(make())
        {} = self.accelerator.prepare({})
        return self.run()
"""


@pytest.mark.parametrize(
    ("stepped", "target", "given", "is_its"),
    [
        # A method that makes its own model has no optimizer of another method's.
        ("model", "self.model", "model", False),
        ("self.net", "self.model", "model", False),
        ("model", "model", "model", False),
        # What the object keeps may be stepped by another method.
        ("self.model", "self.model", "model", True),
        ("self.net", "self.net", "self.net", True),
        ("self.net.core", "self.net", "self.net", True),
    ],
)
def test_an_optimizer_of_another_method_is_of_what_the_object_keeps(
    stepped: str, target: str, given: str, *, is_its: bool
) -> None:
    code = OTHERS_METHOD.format(stepped, target, given)
    (said,) = (use.becomes for use in scan_source(code) if use.code == "FM449")
    assert ("Make the optimizer first" in said) is is_its
    assert ("no optimizer is made here" in said or "none is made of this one here" in said) is not is_its


def test_a_function_has_the_optimizer_that_it_is_given() -> None:
    code = "def place(accelerator, model, optimizer):\n    return accelerator.prepare(model)\n"
    plugin = (
        "from accelerate import FullyShardedDataParallelPlugin\nplugin = FullyShardedDataParallelPlugin()\n"
    )
    main = "opt = torch.optim.SGD(net.parameters())\n"
    for text, is_its in ((code, True), (code.replace(", optimizer", ""), False)):
        (said,) = (use.becomes for use in scan_source(plugin + text + main) if use.code == "FM449")
        assert ("Make the optimizer first" in said) is is_its
