"""``fsdp`` and ``fsdp_config`` of Hugging Face's Trainer."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import scan_source
from tests.source.samples import assert_framework_commented, assert_untouched, comments, last, plain


pytestmark = pytest.mark.any_torch


HF = (
    "from transformers import TrainingArguments\n"
    "from transformers.trainer_utils import FSDPOption\n"
    "from trl import SFTConfig\n"
)
MORE = '"version": 2, "reshard_after_forward": {}, "state_dict_type": "FULL_STATE_DICT"'
NO_WRAP = (
    "'version': 2, 'reshard_after_forward': False, 'auto_wrap_policy': 'NO_WRAP', "
    "'state_dict_type': 'FULL_STATE_DICT'"
)
POLICY = '"auto_wrap_policy": "NO_WRAP"'
LAYER = '"transformer_layer_cls_to_wrap": [layer]'
FULL, GRAD_OP = MORE.format(True), MORE.format(False)


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


def test_an_optimizer_that_stops_at_its_first_step_has_a_comment() -> None:
    call = 'a = TrainingArguments("out", fsdp="full_shard auto_wrap", optim="{}")\n'
    assert "FM343 `optim`: adamw_bnb_8bit: the kernels of" in comments(call.format("adamw_bnb_8bit"), HF)
    assert "FM343" not in comments(call.format("adamw_torch"), HF)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("bf16=True", "`bf16`: bfloat16: Accel"),
        ("fp16=True, bf16=args.bf16", "`fp16`: float16: Accel"),
        ("bf16=args.bf16", "`bf16`: where this is true, bfloat16: Accel"),
        ("fp16=not args.bf16, bf16=args.bf16", "`bf16`: where this is true, bfloat16: Accel"),
        ("fp16=config.fp16_training, bf16=False", "`fp16`: where this is true, float16: Accel"),
        ("bf16=torch.cuda.is_bf16_supported()", "`bf16`: where this is true, bfloat16: Accel"),
        ("bf16=False, fp16=None", ""),
        ("bf16_full_eval=args.bf16", ""),
    ],
)
def test_mixed_precision_that_may_be_asked_for(given: str, said: str) -> None:
    body = f'a = TrainingArguments("o", fsdp="full_shard auto_wrap", {given})\n'
    found = comments(body, HF)
    assert (f"FM354 {said}" in found) if said else ("FM354" not in found)
    assert last(body, HF).endswith(f"}}, {given})\n")
    assert "FM354" not in comments(body.replace("full_shard auto_wrap", ""), HF)


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


@pytest.mark.parametrize(
    "config", ["os.path.join(HERE, 'fsdp.json')", "'fsdp.json'", "{'min_num_params': 0}"]
)
@pytest.mark.parametrize(
    ("word", "said"), [("hybrid_shard", "FSDP2 shards over all ranks of all nodes"), ("full_shard", "")]
)
def test_what_a_word_becomes_is_said_whatever_the_dict_is(config: str, word: str, said: str) -> None:
    body = f'class Ours(TrainingArguments):\n    fsdp: str = "{word}"\n    fsdp_config: str = {config}\n'
    found = comments(body, HF)
    assert said in found
    assert ("FM355" in found) is bool(said)


def test_defaults_of_a_class_are_said() -> None:
    body = (
        "class Ours(TrainingArguments):\n"
        '    fsdp: str = field(default="shard_grad_op")\n'
        '    fsdp_config: dict = field(default_factory=lambda: {"min_num_params": 0})\n'
    )
    assert last(body, HF) == body
    assert '"reshard_after_forward": False' in comments(body, HF)
    assert not scan_source(body.replace('"shard_grad_op"', '""'))


@pytest.mark.parametrize(
    "where",
    [
        "kwargs.update(fsdp={}, fsdp_config=None)",
        'settings = {{"output_dir": "out", "fsdp": {}}}',
        'kwargs["fsdp"] = {}',
        'HuggingFace(hyperparameters={{"fsdp": {}}})',
        "args.fsdp = {}",
        "TrainingArguments('out', **dict(fsdp={}))",
    ],
)
def test_words_of_the_hf_trainer_are_known_wherever_they_stand(where: str) -> None:
    body = where.format("['shard_grad_op', 'auto_wrap'] if on else ''") + "\n"
    assert last(body, HF) == body
    assert f"Here: fsdp_config={{{GRAD_OP}}}" in comments(body, HF)
    assert not scan_source(where.format("['anything', 'else']") + "\n")
    quoted = where.format("'\"shard_grad_op auto_wrap\"'") + "\n"  # as in SageMaker's hyperparameters
    assert f"fsdp_config={{{GRAD_OP}}}" in comments(quoted, HF)


@pytest.mark.parametrize(
    ("where", "is_said"),
    [
        ("values['fsdp'] = conf['policy']\n    args = TrainingArguments(**values)", True),
        ("values['fsdp'] = conf.policy\n    values['fsdp_config'] = conf.settings", True),
        ("args.fsdp = conf.policy\n    args.fsdp_config = conf.settings", True),
        ("values['fsdp'] = conf['policy']\n    args = Other(**values)", False),
        ("values['fsdp'] = None\n    args = TrainingArguments(**values)", False),
        ("values['fsdp'] = ''\n    values['fsdp_config'] = None", False),
        ("other['fsdp'] = conf['policy']\n    args = TrainingArguments(**values)", False),
    ],
)
def test_settings_that_come_from_a_config_of_the_projects_own(where: str, is_said: bool) -> None:
    body = f"def arguments(conf, values, args, other):\n    {where}\n"
    assert last(body, HF) == body
    assert ("`fsdp` is known only when this runs" in comments(body, HF)) is is_said


@pytest.mark.parametrize(
    ("where", "is_said"),
    [
        ("args.fsdp_config = {}", True),
        ('kwargs["fsdp_config"] = {}', True),
        ('configs = {{"small": {}}}\nargs.fsdp_config = configs[args.fsdp_config]', True),
        ('configs = {{"small": {}}}\nargs.fsdp_config = configs if on else None', False),
        ("args.other = {}", False),
    ],
)
def test_a_config_of_the_trainer_that_is_set_or_picked_alone(where: str, is_said: bool) -> None:
    config = '{"transformer_layer_cls_to_wrap": ["Block"], "limit_all_gathers": True}'
    body = where.format(config) + "\n"
    assert last(body, HF) == body
    assert ('"version": 2, "reshard_after_forward": True' in comments(body, HF)) is is_said
    # Composer's is called so too; and what asks for FSDP2 is right.
    assert "FM327" not in comments(where.format('{"sharding_strategy": "FULL_SHARD"}') + "\n", HF)
    assert "FM327" not in comments(where.format(config.replace("{", '{"version": 2, ')) + "\n", HF)
    # It is said once, with the words.
    both = f"args.fsdp = 'full_shard'\n{body}"
    assert comments(both, HF).count("'version': 2 and") == int(is_said and "kwargs" in where)


@pytest.mark.parametrize("key", ["version", "fsdp_version"])
@pytest.mark.parametrize("where", ["args.{}", "kwargs['{}']"])
def test_fsdp2_that_is_asked_for_beside_the_words(where: str, key: str) -> None:
    """Keys are read without `fsdp_`, as transformers does."""
    for version, is_said in ((2, False), (1, True)):
        config = f"{where.format('fsdp_config')} = {{'{key}': {version}}}\n"
        body = f"{where.format('fsdp')} = 'full_shard'\n{config}"
        assert ("FM327" in comments(body, HF)) is is_said


@pytest.mark.parametrize(("version", "code"), [("2", "FM327"), ("1", "FM428")])
def test_training_arguments_that_ask_for_fsdp2_stay(version: str, code: str) -> None:
    body = f"args = TrainingArguments('out', fsdp='full_shard', fsdp_config={{'version': {version}}})\n"
    found = [(use.code, use.action) for use in scan_source(body) if use.code in {"FM327", "FM428"}]
    assert found == [(code, "kept" if version == "2" else "rewritten")]


FRAMEWORKS = [
    ("from transformers import TrainingArguments as A\na = A(output_dir='x', fsdp=f())\n", "FM327"),
    ("from transformers import TrainingArguments\na = TrainingArguments(fsdp=f)\n", "FM327"),
]


@pytest.mark.parametrize(("source", "code"), FRAMEWORKS)
def test_other_frameworks_get_a_comment(source: str, code: str) -> None:
    assert_framework_commented(source, code)


NO_FRAMEWORKS = [
    "from transformers import TrainingArguments\na = TrainingArguments(output_dir='x', fsdp='')\n",
]


@pytest.mark.parametrize("source", NO_FRAMEWORKS)
def test_other_frameworks_without_fsdp1_are_left_alone(source: str) -> None:
    assert_untouched(source)


MADE = 'def make():\n    wrap = "NO_WRAP"\n    return {"auto_wrap_policy": wrap}\n\n\n'


def test_a_function_of_the_file_that_returns_the_settings_is_followed() -> None:
    body = f'{MADE}a = TrainingArguments("out", fsdp="full_shard", fsdp_config=make())\n'
    after = plain(HF + body, header="")
    assert f'    return {{"auto_wrap_policy": wrap, {FULL}}}\n' in after
    assert 'a = TrainingArguments("out", fsdp="full_shard", fsdp_config=make())\n' in after


def test_a_function_that_others_call_stays_as_it_is() -> None:
    body = f'{MADE}print(make())\na = TrainingArguments("out", fsdp="full_shard", fsdp_config=make())\n'
    after = plain(HF + body, header="")
    assert MADE in after
    assert f'fsdp="full_shard", fsdp_config={{"auto_wrap_policy": "NO_WRAP", {FULL}}})\n' in after


@pytest.mark.parametrize(
    "made",
    [
        "def make(n=1):\n    if n:\n        return {}\n    return {'min_num_params': 1}\n",
        "def make():\n    n = ask()\n    return {'min_num_params': n}\n",
        "def make():\n    yield {'min_num_params': 1}\n    return {}\n",
        "@cached\ndef make():\n    return {'min_num_params': 1}\n",
        "async def make():\n    return {'min_num_params': 1}\n",
    ],
)
def test_a_function_that_may_return_another_thing_is_left(made: str) -> None:
    body = f'{made}a = TrainingArguments("out", fsdp="full_shard", fsdp_config=make())\n'
    assert last(body, HF) == body
    assert "FM327" in comments(body, HF)


def test_names_do_not_move_into_a_function_that_lacks_them() -> None:
    given = 'fsdp="full_shard auto_wrap", fsdp_transformer_layer_cls_to_wrap=[layer], fsdp_config=make()'
    body = f'def make():\n    return {{"xla": False}}\n\n\na = TrainingArguments("out", {given})\n'
    assert last(body, HF) == body
    assert "names that it has not" in comments(body, HF)


@pytest.mark.parametrize(("version", "action"), [("", "commented"), ('"fsdp_version": 2, ', "kept")])
def test_a_config_of_axolotls_is_not_the_trainers(version: str, action: str) -> None:
    code = f'cfg = Dict({{"base_model": "m", {version}"fsdp": ["full_shard"], "fsdp_config": {{}}}})\n'
    found = [use for use in scan_source(code) if use.code == "FM327"]
    assert [use.action for use in found] == [action]
    assert ("Axolotl" in found[0].becomes) is (action == "commented")


def test_why_a_dict_is_left_is_true_of_it() -> None:
    starred = (
        'given = {"output_dir": "x", "fsdp": "full_shard"}\ngiven["lr"] = 1\na = TrainingArguments(**given)\n'
    )
    said = comments(starred, HF)
    assert "given to the Trainer's arguments by `**`" in said
    assert "in another place" not in said
    taking = 'a = TrainingArguments(output_dir="o", fsdp="full_shard", fsdp_config={**more})\n'
    said = comments(taking, HF)
    assert "takes in what is known only when this runs" in said
    assert "used in other places" not in said


def test_what_has_no_place_in_the_dict_that_is_offered_is_named() -> None:
    held = '{"forward_prefetch": "true", "transformer_layer_cls_to_wrap": ["Block"]}'
    body = f'kw = {{"output_dir": "x", "fsdp": "full_shard auto_wrap", "fsdp_config": {held}}}\n'
    said = comments(f"{body}kw.pop('output_dir')\nargs = TrainingArguments(**kw)\n", HF)
    assert "FM327" in said
    assert "What changes: `forward_prefetch` (FM343)." in said
    without = comments(
        f"{body}args = TrainingArguments(**kw)\n".replace('"forward_prefetch": "true", ', ""), HF
    )
    assert "What changes" not in without


@pytest.mark.parametrize(("field", "is_said"), [("fsdp: str = ''", False), ("other: str = ''", True)])
def test_the_class_of_the_arguments_itself_sets_what_it_was_given(field: str, *, is_said: bool) -> None:
    body = (
        f"class Arguments:\n    {field}\n\n    def __post_init__(self):\n"
        "        self.fsdp = 'full_shard' if self.fsdp else ''\n"
    )
    assert ("FM327" in comments(body, HF)) is is_said


@pytest.mark.parametrize(
    ("strategy", "frees", "said"),
    [
        ('"5"', False, "HYBRID_SHARD: HF Trainer takes no mesh"),
        ('"2"', False, ""),
        ('"1"', True, ""),
        ("args.strategy", None, "Write false for 2, 3 and 5"),
    ],
)
def test_the_strategy_that_a_source_sets_in_the_environment(
    strategy: str, frees: bool | None, said: str
) -> None:
    body = f'import os\nos.environ["FSDP_SHARDING_STRATEGY"] = {strategy}\n'
    call = 'a = TrainingArguments("o", fsdp="auto_wrap")\n'
    text = plain(body + call, f"{HF}\n")
    if frees is not None:
        assert f'"reshard_after_forward": {frees}' in text
    assert said in comments(body + call, HF)
    named = 'a = TrainingArguments("o", fsdp="full_shard auto_wrap")\n'
    assert '"reshard_after_forward": True' in plain(body + named, f"{HF}\n")


def test_offload_in_a_source_needs_gloo_as_well() -> None:
    body = 'a = TrainingArguments("o", fsdp="full_shard offload auto_wrap"{})\n'
    assert "FM343 `max_grad_norm`: `offload` in `fsdp`" in comments(body.format(""), HF)
    assert "max_grad_norm" not in comments(body.format(", max_grad_norm=0.0"), HF)
    sets = 'import os\nos.environ.update(ACCELERATE_USE_FSDP="true", FSDP_OFFLOAD_PARAMS="true")\n'
    assert "max_grad_norm" not in comments(sets + body.format(""), HF)


@pytest.mark.parametrize(
    "body",
    [
        'def given():\n    return {{"fsdp": "full_shard {}", "output_dir": "o"{}}}\n',
        'a = TrainingArguments("o", fsdp="full_shard {}"{}, **more)\n',
    ],
)
def test_offload_is_said_where_the_settings_stay_as_they_are(body: str) -> None:
    said = "FM343 `max_grad_norm`"
    beside = ', "max_grad_norm": 0.0' if "return" in body else ", max_grad_norm=0.0"
    assert f"{said}: `offload` in `fsdp`" in comments(body.format("offload auto_wrap", ""), HF)
    assert said not in comments(body.format("offload auto_wrap", beside), HF)
    assert said not in comments(body.format("auto_wrap", ""), HF)
    sets = f'import os\nos.environ["FSDP_OFFLOAD_PARAMS"] = "1"\n{body.format("auto_wrap", "")}'
    assert f"{said}: `FSDP_OFFLOAD_PARAMS=true`" in comments(sets, HF)


@pytest.mark.parametrize("more", ["", ", **more"])
def test_smoothed_labels_beside_fsdp(more: str) -> None:
    body = 'a = TrainingArguments("o", fsdp="full_shard auto_wrap", label_smoothing_factor={}{})\n'
    said = "FM343 `label_smoothing_factor`: 0.1: the Trainer shifts"
    assert said in comments(body.format("0.1", more), HF)
    assert "label_smoothing_factor`" not in comments(body.format("0.0", more), HF)


@pytest.mark.parametrize(
    ("base", "default", "is_said"),
    [
        ("Base", "full_shard auto_wrap", True),
        ("Base", "zero3", False),
        ("Base", "", False),
        ("", "full_shard", False),
    ],
)
def test_a_default_of_a_class_whose_base_stands_in_another_file(
    base: str, default: str, *, is_said: bool
) -> None:
    body = f"from base import Base\nclass Ours({base}):\n    fsdp: str = field(default='{default}')\n"
    assert ("FM327" in {use.code for use in scan_source(body)}) is is_said


@pytest.mark.parametrize(
    ("given", "is_said"),
    [
        ("TrainingArguments('o', bf16=True, fsdp='full_shard', fsdp_config={'x': 1, **more})", True),
        ("TrainingArguments('o', fsdp=args.fsdp, bf16=args.bf16)", True),
        ("TrainingArguments('o', fp16=True, fsdp='full_shard', **more)", True),
        ("x = {'output_dir': 'o', 'fsdp': 'full_shard', 'bf16': True}", True),
        ("kw = {'bf16': True}\nTrainingArguments('o', fsdp='full_shard', **kw)", True),
        ("kw = {}\nif half:\n    kw['fp16'] = True\nTrainingArguments('o', fsdp='full_shard', **kw)", True),
        ("kw = {'bf16': True}\ns = {'fsdp': 'full_shard'}\nTrainingArguments('o', **s, **kw)", True),
        ("s = {'fsdp': 'full_shard'}\nTrainingArguments('o', bf16=True, **s)", True),
        ("s = {'fsdp': args.fsdp}\nkw = dict(fp16=args.fp16)\nTrainingArguments('o', **s, **kw)", True),
        ("kw = {'bf16': False}\ns = {'fsdp': 'full_shard'}\nTrainingArguments('o', **s, **kw)", False),
        ("kw = {'bf16': False}\nTrainingArguments('o', fsdp='full_shard', **kw)", False),
        ("kw = {'bf16': True}\nTrainingArguments('o', fsdp='full_shard', **more)", False),
        ("TrainingArguments('o', fsdp=args.fsdp)", False),
        ("TrainingArguments('o', bf16=False, fsdp='full_shard', **more)", False),
    ],
)
def test_mixed_precision_is_told_where_the_rest_is_left(given: str, is_said: bool) -> None:
    found = {use.code for use in scan_source(f"{HF}{given}\n")}
    assert "FM327" in found
    assert ("FM354" in found) is is_said


SET_ITEM = "def make(words):\n    {}\n    if words:\n        given['fsdp'] = words\n    {}\n"
GIVEN_ON = "return SFTConfig(output_dir='o', **given)"


@pytest.mark.parametrize(
    ("above", "below", "is_said"),
    [
        ("given = dict(bf16=True)", GIVEN_ON, True),
        ("given = {'bf16': True}", GIVEN_ON, True),
        ("given = {}", f"given['bf16'] = True\n    {GIVEN_ON}", True),
        ("given = {}", GIVEN_ON.replace("**", "bf16=True, **"), True),
        ("given = {}", GIVEN_ON, False),
        ("given = dict(bf16=False)", GIVEN_ON, False),
        ("given = dict(bf16=True)\n    given = {}", GIVEN_ON, False),
        ("given, other = {}, {'bf16': True}\n    other['bf16'] = True", GIVEN_ON, False),
    ],
)
def test_what_else_a_dict_is_given(above: str, below: str, is_said: bool) -> None:
    found = {use.code for use in scan_source(f"{HF}{SET_ITEM.format(above, below)}")}
    assert "FM327" in found
    assert ("FM354" in found) is is_said


def test_arguments_of_before_are_said_of_what_a_dict_is_given_too() -> None:
    made = SET_ITEM.format("given = {'fsdp_min_num_params': 100}", GIVEN_ON).replace(
        "= words", "= 'full_shard'"
    )
    assert '"min_num_params": 100' in comments(made, HF)


KEYS = '{"transformer_layer_cls_to_wrap": ["Block"], "state_dict_type": "FULL_STATE_DICT"}'


@pytest.mark.parametrize(
    ("config", "is_said"),
    [(KEYS, True), ("{'auto_wrap_policy': 'size'}", False), ("load(path)", False)],
)
def test_a_dict_gives_fsdp_whatever_it_is_beside_its_config(config: str, *, is_said: bool) -> None:
    """Another file may give it on by ``**``."""
    text = f"def build(cfg):\n    config = {config}\n    return {{'fsdp': cfg.fsdp, 'fsdp_config': config}}\n"
    assert ("FM327" in {use.code for use in scan_source(text)}) is is_said
