"""Accelerate's plugin, and what is set on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths, scan_source
from tests.source.samples import assert_framework_commented, comments, last, turned


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


ACCELERATE = (
    "import functools\nimport torch\n"
    "from accelerate import Accelerator, FullyShardedDataParallelPlugin as Plugin\n"
    "from models import Block\n"
    "from torch.distributed.fsdp import CPUOffload, MixedPrecision, ShardingStrategy, StateDictType\n"
    "from torch.distributed.fsdp.wrap import ModuleWrapPolicy, transformer_auto_wrap_policy as by_class\n"
)


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
        "sharding_strategy=2, cpu_offload=CPUOffload(True), ignored_modules=None",
        f"fsdp_version=2, reshard_after_forward=False, cpu_offload=True, ignored_modules=None, {WHOLE}",
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
        "mixed_precision_policy=policy(), sharding_strategy=2",
        "what is known only when this runs cannot be given",
    ),
    ("cpu_offload=policy(), sharding_strategy=2", "true, false or a CPUOffloadPolicy"),
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
        "keep_low_precision_grads cannot be given to FSDP2",
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


def test_a_policy_that_fsdp2_of_accelerate_does_not_know_is_said() -> None:
    body = "trainer.accelerator.state.fsdp_plugin.auto_wrap_policy = fsdp_auto_wrap_policy(model)\n"
    assert "FM343 with this policy" in comments(body, ACCELERATE)


@pytest.mark.parametrize(
    ("value", "is_seen"),
    [
        ("getattr(fsdp_plugin, '_policy')", False),
        ("self.kept_policy", False),
        ("fsdp_auto_wrap_policy(model)", True),
        ("torch.distributed.fsdp.wrap.always_wrap_policy", True),
        ("'transformer_based_wrap'", True),
    ],
)
def test_a_policy_that_is_put_back_may_be_the_plugins_own(value: str, *, is_seen: bool) -> None:
    said = comments(f"import torch\nfsdp_plugin.auto_wrap_policy = {value}\n", ACCELERATE)
    said += comments(f"import torch\nstate.fsdp_plugin.auto_wrap_policy = {value}\n", ACCELERATE)
    assert ("FM343 with this policy" in said, "what the plugin had before" in said) == (is_seen, not is_seen)


@pytest.mark.parametrize(
    ("made", "is_said"),
    [
        ("p = Plugin(sharding_strategy=1)\n", True),
        ("", True),
        (f"p = Plugin({BY_CLASS})\n", False),
        ("import os\nos.environ['FSDP_AUTO_WRAP_POLICY'] = 'TRANSFORMER_BASED_WRAP'\n", False),
    ],
)
def test_without_such_a_policy_another_is_to_be_given(made: str, *, is_said: bool) -> None:
    body = f"{made}accelerator.state.fsdp_plugin.auto_wrap_policy = fsdp_auto_wrap_policy(model)\n"
    assert ("shards so without it, too" in comments(body, ACCELERATE)) is is_said


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


def test_the_type_of_states_is_said_where_the_call_is_left() -> None:
    said = comments("p = Plugin(state_dict_config=FullStateDictConfig())\n", ACCELERATE)
    assert "FM320" in said
    assert 'where it has no state_dict_type that of FSDP1, "FULL_STATE_DICT"' in said


def test_what_becomes_of_outputs_in_low_precision_is_said() -> None:
    casts = "p = Plugin(mixed_precision_policy=MixedPrecision(param_dtype=torch.half), sharding_strategy=1)\n"
    assert "Write `.float()` on an output" in comments(casts, ACCELERATE)
    assert "`model.forward = accelerator.autocast()(model.forward)`" in comments(casts, ACCELERATE)
    assert "output_dtype=None)`" in comments(casts, ACCELERATE)
    assert "an early stop, is chosen by them" in comments(casts, ACCELERATE)
    reduced = comments(casts.replace("param_dtype", "reduce_dtype"), ACCELERATE)
    assert ".float()" not in reduced
    assert "autocast" not in reduced
    assert "early stop" not in reduced
    plain = 'Accelerator(mixed_precision="bf16", fsdp_plugin=Plugin(sharding_strategy=1))\n'
    assert "write `.float()` on it" in comments(plain, ACCELERATE)
    assert "`model.forward = accelerator.autocast()(model.forward)`" in comments(plain, ACCELERATE)


def test_what_goes_away_takes_its_imports_along() -> None:
    before = "p = Plugin(auto_wrap_policy=functools.partial(by_class, transformer_layer_cls={Block}))\n"
    after = turned(ACCELERATE + before, header="")
    assert "functools" not in after
    assert "by_class" not in after
    assert "import torch\n" in after


def test_what_is_asked_of_the_plugins_name_stays() -> None:
    found = scan_source(f"{ACCELERATE}if Plugin is not None and not Plugin:\n    pass\n")
    assert [use.action for use in found if use.code == "FM320"] == ["kept", "kept"]


@pytest.mark.parametrize(
    ("code", "action"),
    [
        ("Plugin(sharding_strategy=strategy)", "commented"),
        ("Plugin(fsdp_version=2, reshard_after_forward=True)", "kept"),
        ("functools.partial(Plugin, cpu_offload=True)", "commented"),
        ("hasattr(Plugin, 'from_name')", "kept"),
        ("inspect.signature(Plugin)", "kept"),
        ("dataclasses.fields(Plugin)", "kept"),
        ("Plugin.get_module_class_from_name(model, 'Block')", "kept"),
    ],
)
def test_accelerates_plugin_is_told_from_questions_about_it(code: str, action: str) -> None:
    header = "import functools\nfrom accelerate import FullyShardedDataParallelPlugin as Plugin\n\n"
    found = [use.action for use in scan_source(f"{header}x = {code}\n") if use.code == "FM320"]
    assert found == [action]


FRAMEWORKS = [
    ("from accelerate import FullyShardedDataParallelPlugin as P\np = P()\n", "FM320"),
]


@pytest.mark.parametrize(("source", "code"), FRAMEWORKS)
def test_other_frameworks_get_a_comment(source: str, code: str) -> None:
    assert_framework_commented(source, code)


@pytest.mark.parametrize(
    "switch",
    [
        'os.environ["ACCELERATE_USE_FSDP"] = "true"\n',
        'os.environ.setdefault("ACCELERATE_USE_FSDP", "true")\n',
        'os.environ.update(ACCELERATE_USE_FSDP="true")\n',
        'os.environ.update({"ACCELERATE_USE_FSDP": "true"})\n',
        'os.putenv("ACCELERATE_USE_FSDP", "true")\n',
        'env = {**os.environ, "ACCELERATE_USE_FSDP": "true"}\n',
        'env = os.environ.copy()\nenv["ACCELERATE_USE_FSDP"] = "true"\n',
        'run(env=dict(os.environ, ACCELERATE_USE_FSDP="true"))\n',
        'HuggingFace(environment={"ACCELERATE_USE_FSDP": "true"})\n',
    ],
)
def test_settings_in_the_environment_are_said_where_they_are_set(switch: str) -> None:
    body = f"import os\n{switch}p = Plugin(state_dict_config=config)\n"
    said = comments(body, ACCELERATE)
    assert said.count("FM320 Accelerate makes its plugin of these variables") == 1
    assert "`accelerate launch` reads" not in said
    done = body.replace("p = ", 'os.environ["FSDP_VERSION"] = "2"\np = ')
    assert comments(done, ACCELERATE) == ""
    assert "set `FSDP_VERSION=2` too, and `FSDP_STATE_DICT_TYPE=FULL_STATE_DICT`" in said
    for value in ("'false'", "'1'"):  # Accelerate takes "true" alone for on
        assert comments(f"NAMES = {{'ACCELERATE_USE_FSDP': {value}}}\n", ACCELERATE) == ""
        off = f"import os\nos.environ['ACCELERATE_USE_FSDP'] = {value}\n"
        assert comments(off, ACCELERATE) == ""
    for on in (
        "os.environ['ACCELERATE_USE_FSDP'] = str(args.fsdp)",
        "{'ACCELERATE_USE_FSDP': str(args.fsdp)}",
    ):
        assert "FM320" in comments(f"import os\n{on}\n", ACCELERATE)


def test_what_to_set_in_the_environment_is_said_by_the_values() -> None:
    body = (
        'import os\nos.environ["ACCELERATE_USE_FSDP"] = "true"\n'
        'os.environ.update({"FSDP_SHARDING_STRATEGY": %s})\n'
    )
    said = comments(body % '"SHARD_GRAD_OP"', ACCELERATE)
    assert "FSDP_RESHARD_AFTER_FORWARD=false FSDP_VERSION=2 FSDP_STATE_DICT_TYPE=FULL_STATE_DICT`" in said
    assert "and not `FSDP_SHARDING_STRATEGY`" in said
    assert "depends on their values, which are not seen here" in comments(body % "strategy", ACCELERATE)


def test_several_classes_of_a_policy_that_passes_over_some() -> None:
    said = "Accelerate stops at one. Name those classes alone that the model has."
    header = ACCELERATE.replace("Block", "Block, Head")
    for policy in ("ModuleWrapPolicy([{}])", "functools.partial(by_class, transformer_layer_cls={{{}}})"):
        for more in ("", ", sharding_strategy=args.s"):
            made = f"p = Plugin(auto_wrap_policy={policy}{more})\n"
            assert said in comments(made.format("Block, Head"), header)
            assert said not in comments(made.format("Block"), header)


@pytest.mark.parametrize(
    ("line", "is_said"),
    [
        ("accelerator.state.fsdp_plugin.mixed_precision_policy = MixedPrecision(param_dtype=dtype)\n", True),
        ("casts = MixedPrecision()\nplugin.mixed_precision_policy = casts\n", True),
        ("plugin.mixed_precision_policy = MixedPrecisionPolicy(param_dtype=dtype)\n", False),
        ("accelerator.state.fsdp_plugin.auto_wrap_policy = None\n", False),
    ],
)
def test_what_is_set_on_the_plugin(line: str, *, is_said: bool) -> None:
    body = f"from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy\n{line}"
    assert ("FM343" in {use.code for use in scan_source(body)}) is is_said


@pytest.mark.parametrize(
    ("value", "becomes"),
    [
        ("ShardingStrategy.SHARD_GRAD_OP", "False"),
        ("ShardingStrategy.FULL_SHARD", "True"),
        ("ShardingStrategy.HYBRID_SHARD", "True (and a mesh"),
        ("args.strategy", "True for FULL_SHARD and HYBRID_SHARD, False for"),
    ],
)
def test_a_strategy_that_is_set_on_the_plugin_of_a_launch(value: str, becomes: str) -> None:
    body = "from torch.distributed.fsdp import ShardingStrategy\n"
    body += f"accelerator.state.fsdp_plugin.sharding_strategy = {value}\n"
    [use] = [use for use in scan_source(body) if use.code not in {"FM310", "FM329"}]
    assert use.code == "FM320"
    assert f"accelerator.state.fsdp_plugin.reshard_after_forward = {becomes}" in use.becomes
    assert "FM310" not in {use.code for use in scan_source(body)}


def test_what_is_known_of_a_plugin_names_the_class_of_its_casts() -> None:
    casts = "mixed_precision_policy=MixedPrecision(param_dtype=torch.bfloat16)"
    body = f"p = Plugin(sharding_strategy=ShardingStrategy[args.x], auto_wrap_policy=policy, {casts})\n"
    header = (
        f"import torch\nfrom torch.distributed.fsdp import MixedPrecision, ShardingStrategy\n{ACCELERATE}"
    )
    said = "takes FSDP2's MixedPrecisionPolicy in place of MixedPrecision"
    assert said in comments(body, header)
    assert said not in comments(body.replace(f", {casts}", ""), header)


STARS = [
    ('kw = {{}}\nif cfg.half:\n    kw["{0}"] = {1}\np = Plugin(sharding_strategy=1, **kw)\n', True),
    ("kw = dict({0}={1})\np = Plugin(**kw)\n", True),
    ("kw = {{}}\nkw.update({0}={1})\np = Plugin(**kw)\n", True),
    ('p = Plugin(sharding_strategy=1, **{{"{0}": {1}}})\n', True),
    ("def made(cfg):\n    kw = dict({0}={1})\n    return kw\n\n\np = Plugin(**made(cfg))\n", True),
    ('def made(cfg):\n    return {{"{0}": {1}}}\n\n\nkw = made(cfg)\np = Plugin(**kw)\n', True),
    ("kw, other = {{}}, dict({0}={1})\nstart(**other)\np = Plugin(**kw)\n", False),
    ("kw = dict({0}={1})\nstart(**kw)\np = Plugin(sharding_strategy=s())\n", False),
]
OBJECTS = [
    (
        "mixed_precision_policy",
        "MixedPrecision(param_dtype=torch.half)",
        "in place of MixedPrecision FSDP2 takes MixedPrecisionPolicy(",
    ),
    ("cpu_offload", "CPUOffload(offload_params=True)", "true, false or a CPUOffloadPolicy"),
    ("auto_wrap_policy", "ModuleWrapPolicy({Block})", "Accelerate's FSDP2 wraps by class"),
]
TAKEN = [
    ("mixed_precision_policy", "MixedPrecisionPolicy(param_dtype=torch.half)"),
    ("cpu_offload", "True"),
    ("auto_wrap_policy", '"transformer_based_wrap"'),
]


@pytest.mark.parametrize(("name", "value", "said"), OBJECTS)
@pytest.mark.parametrize(("body", "is_said"), STARS)
def test_what_a_dict_gives_is_said_as_what_a_name_gives(
    name: str, value: str, said: str, body: str, *, is_said: bool
) -> None:
    assert (said in comments(body.format(name, value), ACCELERATE)) is is_said


@pytest.mark.parametrize(("name", "value"), TAKEN)
@pytest.mark.parametrize("body", [body for body, is_said in STARS if is_said])
def test_what_fsdp2_takes_from_a_dict_is_not_said(name: str, value: str, body: str) -> None:
    header = ACCELERATE.replace("import CPUOffload", "import MixedPrecisionPolicy, CPUOffload")
    told = comments(body.format(name, value), header)
    assert "stand behind" in told
    assert not any(said in told for _, _, said in OBJECTS)


def test_clipping_beside_offload_needs_gloo() -> None:
    made = "p = Plugin(sharding_strategy=1, cpu_offload={})\n"
    clips = "accelerator.clip_grad_norm_(model.parameters(), 1.0)\n"
    assert "FM343 `cpu_offload`: true: FSDP2's gradients" in comments(made.format("True") + clips, ACCELERATE)
    sets = 'import os\nos.environ["FSDP_OFFLOAD_PARAMS"] = "true"\n'
    for body in (made.format("True"), made.format("False") + clips, sets + made.format("True") + clips):
        assert "gradients are on the CPU" not in comments(body, ACCELERATE)


def test_what_the_launcher_takes_by_itself_a_plugin_does_not() -> None:
    made = "p = Plugin(sharding_strategy=1{})\n"
    assert "FM343" not in comments(made.format(', auto_wrap_policy="NO_WRAP"'), ACCELERATE)
    said = comments(made.format(", sync_module_states=True"), ACCELERATE)
    assert "FSDP2 does not send rank 0's weights to the other ranks" in said
    sends = made.format(", sync_module_states=True, cpu_ram_efficient_loading=True")
    assert "does not send rank 0's weights" not in comments(sends, ACCELERATE)


_LOST = "ignored modules all the same"


@pytest.mark.parametrize(
    ("arguments", "is_said"),
    [
        (f"sharding_strategy=1, ignored_modules=f(m), {WHOLE}", True),
        (f"sharding_strategy=1, cpu_ram_efficient_loading=True, ignored_modules=f(m), {WHOLE}", True),
        (f"sharding_strategy=s, ignored_modules=f(m), {WHOLE}", True),
        ("ignored_modules=f(m)", True),
        (f"sharding_strategy=1, cpu_ram_efficient_loading=False, ignored_modules=f(m), {WHOLE}", False),
        (f"sharding_strategy=1, ignored_modules=None, {WHOLE}", False),
        ("fsdp_version=2, ignored_modules=f(m)", False),
    ],
)
def test_ignored_modules_that_rank_0_loads_for_all_are_said_to_be_lost(
    arguments: str, *, is_said: bool
) -> None:
    uses = scan_source(f"{ACCELERATE}plugin = Plugin({arguments})\n")
    assert sum(_LOST in each.becomes for each in uses) == is_said


@pytest.mark.parametrize(
    ("made", "line", "is_said"),
    [
        ("p = Plugin()\n", "acc.state.fsdp_plugin.ignored_modules = [m.moe]\n", True),
        ("p = Plugin()\n", "acc.state.fsdp_plugin.ignored_modules = None\n", False),
        ("p = Plugin(cpu_ram_efficient_loading=False)\n", "my_plugin.ignored_modules = [m.moe]\n", False),
        (
            "p = Plugin()\np.cpu_ram_efficient_loading = False\n",
            "my_plugin.ignored_modules = [m.moe]\n",
            False,
        ),
        (
            "import os\nos.environ['FSDP_CPU_RAM_EFFICIENT_LOADING'] = 'False'\np = Plugin()\n",
            "my_plugin.ignored_modules = [m.moe]\n",
            False,
        ),
        (
            "p = Plugin()  # cpu_ram_efficient_loading=False, fsdp_version=2\n",
            "my_plugin.ignored_modules = [m.moe]\n",
            True,
        ),
        # What others say decides: a step of `scan`.
        ("", "acc.state.fsdp_plugin.ignored_modules = [m.moe]\n", False),
    ],
)
def test_so_are_those_that_are_set_on_the_plugin(made: str, line: str, *, is_said: bool) -> None:
    found = [each for each in scan_source(f"{ACCELERATE}{made}{line}") if each.code == "FM343"]
    assert sum(_LOST in each.becomes for each in found) == is_said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('mixed_precision="bf16"', "`mixed_precision`: bfloat16: Accelerate's FSDP2"),
        ('mixed_precision="no"', None),
        ("lr=1", None),
        ("mixed_precision=args.precision", "where the Accelerator has `mixed_precision="),
        ('mixed_precision="bf16" if args.half else "no"', "where the Accelerator has `mixed_precision="),
        ("**options", "where the Accelerator has `mixed_precision="),
        ('mixed_precision="no")\nAccelerator(mixed_precision="fp16"', "where the Accelerator has"),
    ],
)
def test_what_holds_where_the_accelerators_precision_is_not_known(given: str, said: str | None) -> None:
    body = f"p = Plugin(sharding_strategy=1)\nAccelerator(fsdp_plugin=p, {given})\n"
    found = comments(body, ACCELERATE)
    assert ("FM354" in found) is (said is not None)
    if said is not None:
        assert said in found
        assert ("to that dtype" in found) is said.startswith("where")


@pytest.mark.parametrize(
    ("made", "is_sized"),
    [
        ('p = Plugin(auto_wrap_policy="size_based_wrap", min_num_params=9, **more)\n', True),
        ('kw = {"auto_wrap_policy": "size_based_wrap"}\np = Plugin(**kw)\n', True),
        ('kw = {}\nif big:\n    kw["auto_wrap_policy"] = "size_based_wrap"\np = Plugin(**kw)\n', True),
        ('p = Plugin(sharding_strategy=find(), auto_wrap_policy="size_based_wrap")\n', True),
        ("p = Plugin(sharding_strategy=1, **more)\n", False),
        ('kw = {"auto_wrap_policy": "no_wrap"}\np = Plugin(**kw)\n', False),
    ],
)
def test_what_is_known_is_said_where_other_arguments_are_hidden(made: str, *, is_sized: bool) -> None:
    found = comments(f'{made}Accelerator(fsdp_plugin=p, mixed_precision="bf16")\n', ACCELERATE)
    assert "FM320" in found
    assert "FM354 `mixed_precision`: bfloat16" in found
    assert ("FM343 `auto_wrap_policy`: " in found) is is_sized
    assert "FM354" not in comments(f'{made}Accelerator(fsdp_plugin=p, mixed_precision="no")\n', ACCELERATE)


def test_what_is_to_be_written_by_hand_stands_there_once() -> None:
    """It was told in words, and again as far as it was known; a list of classes became a word unasked."""
    made = f"Plugin(sharding_strategy=args.strategy, {BLOCK}, use_orig_params=True, **more)\n"
    said = comments(f"p = {made}", ACCELERATE)
    assert said.count("fsdp_version=2") == said.count("reshard_after_forward") == 1
    assert said.count("state_dict_type") == 1
    assert said.count("SHARD_GRAD_OP") == 1
    assert BLOCK in said
    assert "sharding_strategy, use_orig_params, sync_module_states and the prefetches go away." in said
    word = made.replace('["Block"]', '"Block"')
    assert 'transformer_cls_names_to_wrap="Block"' in comments(f"p = {word}", ACCELERATE)
    # Where the strategy is hidden too, what takes its place is still said.
    assert "reshard_after_forward=True (False for SHARD_GRAD_OP)" in comments(
        "p = Plugin(**more)\n", ACCELERATE
    )


def test_what_a_branch_gives_is_not_said_to_be_given() -> None:
    body = 'kw = {"min_num_params": 9}\np = Plugin(**kw)\n'
    assert "fsdp_version=2, min_num_params=9" in comments(body, ACCELERATE)
    body = body.replace("p = ", 'if big:\n    kw["min_num_params"] = 10\np = ')
    assert "min_num_params=" not in comments(body, ACCELERATE)


@pytest.mark.parametrize(
    ("dtypes", "is_said"),
    [
        ("param_dtype=torch.float32, reduce_dtype=torch.float32", False),
        ("param_dtype=torch.float, reduce_dtype=torch.bfloat16", False),
        ("param_dtype=torch.bfloat16, reduce_dtype=torch.float32", True),
        ("param_dtype=torch.float32, buffer_dtype=torch.bfloat16", True),
    ],
)
def test_a_policy_that_casts_nothing(dtypes: str, *, is_said: bool) -> None:
    header = "import torch\nfrom torch.distributed.fsdp import MixedPrecision\n" + ACCELERATE
    found = comments(f"p = Plugin(mixed_precision_policy=MixedPrecision({dtypes}))\n", header)
    assert ("FM354" in found) is is_said
    assert (".float()" in found) is ("param_dtype=torch.bfloat16" in dtypes)


HYBRID = "dp_replicate_size=<nodes>"
CHOSEN = "p = Plugin(sharding_strategy=args.strategy)\n"


@pytest.mark.parametrize(
    ("before", "is_said"),
    [
        ('parser.add_argument("--strategy", default="HYBRID_SHARD")\n', True),
        ('if args.strategy == "hybrid_shard":\n    pass\n', True),
        ("args.strategy = ShardingStrategy._HYBRID_SHARD_ZERO2\n", True),
        ('class Kinds:\n    HYBRID_SHARD = "HYBRID_SHARD"\n', False),
        ('parser.add_argument("--strategy", default="FULL_SHARD")\n', False),
        ("# the default is HYBRID_SHARD\n", False),
    ],
)
def test_a_strategy_that_is_not_seen_may_be_a_hybrid_one(
    tmp_path: Path, before: str, *, is_said: bool
) -> None:
    assert (HYBRID in comments(before + CHOSEN, ACCELERATE)) is is_said
    (tmp_path / "options.py").write_text(before)
    (tmp_path / "test_options.py").write_text('default = "HYBRID_SHARD"\n')
    (tmp_path / "train.py").write_text(f"{ACCELERATE}{CHOSEN}")
    (use,) = (use for use in scan_paths([tmp_path]).uses if use.code == "FM320" and use.action == "commented")
    assert (HYBRID in use.becomes) is is_said


def test_one_that_is_seen_is_what_it_is() -> None:
    body = 'default = "HYBRID_SHARD"\np = Plugin(sharding_strategy="FULL_SHARD", auto_wrap_policy=mine())\n'
    assert "FM320" in comments(body, ACCELERATE)
    assert HYBRID not in comments(body, ACCELERATE)


@pytest.mark.parametrize("name", ["limit_all_gathers", "state_dict_config", "optim_state_dict_config"])
def test_what_stands_in_the_call_is_said_to_go_or_to_stay(name: str) -> None:
    """The list of what goes away was silent of three arguments that stood in the call beside those named."""
    call = f"plugin = Plugin(sharding_strategy=cfg['s'], {SHARDED}, {name}=given)\n"
    said = " ".join(comments(call, ACCELERATE).replace("# fsdp-migrate:", "").split())
    others = {"limit_all_gathers", "state_dict_config", "optim_state_dict_config"} - {name}
    assert f" {name} {'goes away too' if name.startswith('limit') else 'stays'}" in said
    assert not any(f" {other} " in said for other in others)
