"""State dict contexts, the states of models, and those of optimizers."""

from __future__ import annotations

import pytest

from tests.source.samples import MODEL, PREPARED, assert_commented, codes, found_comments, plain, turned, uses


pytestmark = pytest.mark.any_torch


FULL = "StateDictType.FULL_STATE_DICT"
RANK0 = f"{FULL}, FullStateDictConfig(offload_to_cpu=True, rank0_only=True)"

TURNED = [
    (
        f"with FSDP.state_dict_type(model, {RANK0}):\n    state = model.state_dict()\n",
        (
            "state = get_model_state_dict(model, options="
            "StateDictOptions(full_state_dict=True, cpu_offload=True))\n"
        ),
    ),
    (
        f"with FSDP.state_dict_type(model, {FULL}):\n    state = model.state_dict()\n    # kept\n",
        "state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))\n# kept\n",
    ),
    (
        (
            "policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)\n"
            f"with FSDP.state_dict_type(\n    model, {FULL}, policy\n):  # gather\n"
            "    save(model.state_dict())\n"
        ),
        (
            "# gather\nsave(get_model_state_dict(model, options=StateDictOptions("
            "full_state_dict=True, cpu_offload=True)))\n"
        ),
    ),
    (
        (
            f"with FSDP.state_dict_type(model, {FULL}, FullStateDictConfig(offload_to_cpu=True)):\n"
            "    state = model.state_dict()\n"
        ),
        'state = full_state_dict(model, rank0_only=False, offload_to_cpu=True)["model"]\n',
    ),
    (
        (
            f"with FSDP.state_dict_type(model, {FULL}, FullStateDictConfig(rank0_only=first)):\n"
            "    state = model.state_dict()\n"
        ),
        'state = full_state_dict(model, rank0_only=first, offload_to_cpu=False).get("model", {})\n',
    ),
    (
        f"with torch.no_grad(), FSDP.state_dict_type(model, {RANK0}):\n    state = model.state_dict()\n",
        (
            "with torch.no_grad():\n    state = get_model_state_dict(model, options=StateDictOptions("
            "full_state_dict=True, cpu_offload=True))\n"
        ),
    ),
    (
        (
            "with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):\n"
            "    state = {'m': model.state_dict(), 'o': FSDP.optim_state_dict(model, optimizer)}\n"
            "    save(state)\n"
        ),
        (
            "state = {'m': get_model_state_dict(model), 'o': "
            'sharded_state_dict(model, optimizer, cpu_offload=True)["optimizer"]}\n'
            "save(state)\n"
        ),
    ),
    (
        (
            "import torch.distributed.checkpoint as dcp\n"
            "with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):\n"
            "    state = model.state_dict()\n    dcp.load_state_dict(state, reader)\n"
        ),
        (
            "import torch.distributed.checkpoint as dcp\n"
            "state = get_model_state_dict(model)\ndcp.load_state_dict(state, reader)\n"
        ),
    ),
    (
        f"FSDP.set_state_dict_type(model, {RANK0})\nstate = model.state_dict()\n",
        (
            "state = get_model_state_dict(model, options="
            "StateDictOptions(full_state_dict=True, cpu_offload=True))\n"
        ),
    ),
    (
        (
            "state = model.state_dict()\nmodel.load_state_dict(state)\n"
            "model.load_state_dict(state, strict=False)\n"
        ),
        (
            "state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))\n"
            "load_model_state_dict(model, state)\n"
            "load_model_state_dict(model, state, strict=False)\n"
        ),
    ),
]


@pytest.mark.parametrize(("before", "after"), TURNED)
def test_contexts_go_and_states_are_asked_for_by_functions(before: str, after: str) -> None:
    assert plain(MODEL + before) == PREPARED + after


COMMENTED = [
    ("with FSDP.state_dict_type(model, kind):\n    model.state_dict()\n", "FM307"),
    (f"with FSDP.state_dict_type(model, {FULL}, config):\n    model.state_dict()\n", "FM307"),
    (f"with FSDP.state_dict_type(model, {FULL}):\n    trainer.save(model)\n", "FM307"),
    (f"with FSDP.state_dict_type(model, {FULL}):\n    other.state_dict()\n", "FM307"),
    (f"with FSDP.state_dict_type(model, {FULL}):\n    model.save_pretrained(folder)\n", "FM307"),
    ("with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):\n    model.state_dict()\n", "FM307"),
    (f"context = FSDP.state_dict_type(model, {FULL})\nuse(context)\n", "FM307"),
    (f"def whole(m):\n    with FSDP.state_dict_type(m, {FULL}):\n        yield m\n", "FM307"),
    (f"FSDP.set_state_dict_type(model, {FULL})\nsave(trainer)\n", "FM307"),
    (f"before = FSDP.set_state_dict_type(model, {FULL})\n", "FM307"),
    ("state = model.state_dict(prefix='x.')\n", "FM308"),
]


@pytest.mark.parametrize(("body", "code"), COMMENTED)
def test_what_is_not_seen_whole_gets_a_comment_only(body: str, code: str) -> None:
    assert_commented(body, code, alone=True)


LEFT_ALONE = [
    "state = net2.state_dict()\n",
    "state = optimizer.state_dict()\noptimizer.load_state_dict(state)\n",
    "def f(model):\n    return model.state_dict()\n",
]


@pytest.mark.parametrize("body", LEFT_ALONE)
def test_states_of_other_things_are_left_alone(body: str) -> None:
    assert turned(body) == body


def test_a_variable_with_options_stays_where_something_else_reads_it() -> None:
    body = (
        "policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)\nprint(policy)\n"
        f"with FSDP.state_dict_type(model, {FULL}, policy):\n    state = model.state_dict()\n"
    )
    after = turned(MODEL + body)
    assert "policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)\nprint(policy)\n" in after
    assert ("FM306", "kept") in codes(MODEL + body)


def test_a_call_that_may_run_in_an_unseen_context_is_not_made_a_full_one() -> None:
    body = (
        "def save(model):\n    return model.state_dict()\n\n\n"
        "with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):\n    save(model)\n"
    )
    assert ("FM308", "commented") in codes(MODEL + body)
    assert "    return model.state_dict()\n" in turned(MODEL + body)


def test_a_model_that_may_be_ddps_is_left_as_it_is() -> None:
    header = (
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    )
    body = (
        "\n\nmodel = FSDP(net) if fsdp else DDP(net)\nmodel.state_dict()\nmodel.no_sync()\nmodel.module.x\n"
    )
    assert codes(body, header) == [("FM301", "rewritten"), *[("FM333", "commented")] * 3]
    after = turned(body, header)
    for line in ("model.state_dict()", "model.no_sync()", "model.module.x"):
        assert f"\n{line}\n" in after


def test_functions_of_the_class_are_known_where_a_model_is_asked_for_them() -> None:
    body = (
        "model = FSDP(net)\n"
        "with model.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n"
        "    weights = model.state_dict()\n"
        "moments = model.full_optim_state_dict(model, optim)\n"
    )
    assert turned(body) == (
        "model = prepare_fully_shard(net)\n"
        "weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))\n"
        "moments = full_optimizer_state_dict(model, optim)\n"
    )


def test_the_context_of_a_model_that_is_not_known_is_not_silent() -> None:
    body = "def save(m):\n    with m.state_dict_type(m, StateDictType.LOCAL_STATE_DICT):\n        pass\n"
    assert found_comments(body) == {("FM307", 2)}


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


def test_a_model_of_another_function_is_none_for_certain_by_its_name() -> None:
    setter = (
        "def {0}(model):\n    FSDP.set_state_dict_type(model, StateDictType.{1})\n    model.state_dict()\n"
    )
    other = "def infer(model, state):\n    model.load_state_dict(state)\n"
    both = f"{setter.format('a', 'FULL_STATE_DICT')}{setter.format('b', 'SHARDED_STATE_DICT')}{other}"
    assert "    # fsdp-migrate: FM333 by its name this may be the model that is sharded" in turned(both)
    assert "    model.load_state_dict(state)\n" in turned(both)
    one = f"{setter.format('a', 'FULL_STATE_DICT')}{other}"
    assert "    load_model_state_dict(model, state)\n" in plain(one)


def test_of_a_state_that_may_be_ddps_the_options_are_named() -> None:
    body = (
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "model = FSDP(net) if sharded else DDP(net)\nstate = model.state_dict()\n"
    )
    said = "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)) of"
    assert f"where it is sharded, take {said} torch, on every rank" in turned(body)
    saved = body.replace("state = model.state_dict()", "model.save_pretrained(folder)")
    assert f"give it state_dict=, of {said} torch, on every rank" in turned(saved)


BRANCHES = """\
def save(model: FSDP, optim, kind):
    if kind == "full":
        FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True))
        state = model.state_dict()
    elif kind == "sharded":
        FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
        state = model.state_dict(), FSDP.optim_state_dict(model, optim)
    else:
        state = None
"""
LOCAL = """\
def local(model: FSDP, file):
    with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
        {}
"""


def test_a_branch_that_sets_the_type_decides_for_what_follows_in_it() -> None:
    after = plain(BRANCHES)
    assert "FM" not in after
    assert "set_state_dict_type" not in after
    assert "        state = full_state_dict(model, rank0_only=False, offload_to_cpu=True)" in after
    moments = 'sharded_state_dict(model, optim, cpu_offload=True)["optimizer"]'
    assert f"        state = get_model_state_dict(model), {moments}" in after
    # Another kind of context elsewhere says nothing of it, unless it may call what is here.
    inside = "torch.save(model.state_dict(), file)"
    assert "set_state_dict_type" not in plain(f"import torch\n{BRANCHES}\n\n{LOCAL.format(inside)}")
    assert plain(f"{BRANCHES}\n\n{LOCAL.format('save(model, None, 0)')}").count("FM307") == 3


@pytest.mark.parametrize("late", ["    model.load_state_dict(state)\n", "    return model.state_dict()\n"])
def test_what_follows_the_branches_is_decided_by_none(late: str) -> None:
    assert plain(BRANCHES + late).count("FM307") == 2


def test_a_load_that_is_left_names_the_line_that_loads() -> None:
    body = (
        "def load(model: FSDP, path, kind):\n"
        "    with FSDP.state_dict_type(model, kind):\n"
        '        model.load_state_dict(torch.load(path / "m.pt")["model"])\n'
    )
    assert 'fsdp_migrate.load_checkpoint(path / "m.pt", model, optimizer)' in turned(body)
    # Of files of ranks the folder is read: one file alone has no optimizer beside it.
    of_ranks = turned(body.replace('"m.pt"', 'f"model_rank{rank}.pt"'))
    assert "fsdp_migrate.load_checkpoint(FOLDER, model, optimizer)" in of_ranks


def test_what_is_moved_before_it_is_wrapped_is_a_plain_model() -> None:
    body = (
        "def f(net, other, more):\n    net = net.to(0)\n    other.load_state_dict(net.state_dict())\n"
        "    if more:\n        net = FSDP(net)\n    return net\n"
    )
    assert "other.load_state_dict(net.state_dict())\n" in turned(body)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("model.save_pretrained(folder)", "FM308"),
        ("model.llm.save_pretrained(folder, safe_serialization=True)", "FM308"),
        ("model.save_pretrained(folder, state_dict=state)", None),
        ("kwargs.setdefault('state_dict', whole)\nmodel.save_pretrained(folder, **kwargs)", None),
        ("model.save_pretrained(folder, **kwargs)", "FM308"),
        ("model.config.save_pretrained(folder)", None),
        ("tokenizer.save_pretrained(folder)", None),
        ("other.save_pretrained(folder)", None),
    ],
)
def test_what_asks_a_sharded_model_for_its_state_itself(call: str, code: str | None) -> None:
    found = [each for each in codes(f"model = FSDP(net)\n{call}\n") if each[1] == "commented"]
    assert found == ([(code, "commented")] if code else [])


def test_what_asks_a_model_that_may_be_ddps_for_its_state() -> None:
    body = (
        "model = FSDP(net) if sharded else torch.nn.parallel.DistributedDataParallel(net)\n"
        "model.save_pretrained(folder)\n"
    )
    assert ("FM333", "commented") in codes(body)
    assert "get_model_state_dict(model, options=" in turned(body)
    # The state of the whole has other names than a part is loaded by.
    assert "get_model_state_dict(model.llm, options=" in turned(body.replace("model.save", "model.llm.save"))


def test_what_is_asked_above_the_wrapping_is_of_a_plain_model() -> None:
    body = (
        "def wrap(model, sharded):\n    if sharded:\n        model = FSDP(model)\n"
        f"        FSDP.set_state_dict_type(model, {RANK0})\n    return model, 'fsdp'\n\n\n"
        "def main(model, path):\n    target = model.state_dict()\n    model.load_state_dict(target)\n"
        "    model, kind = wrap(model, True)\n    return model.state_dict()\n"
    )
    after = plain(body)
    assert "    target = model.state_dict()\n    model.load_state_dict(target)\n" in after
    assert "    return get_model_state_dict(model, options=" in after


def test_what_a_state_lacks_is_said_as_before() -> None:
    lines = (
        "missing, unexpected = model.load_state_dict(state, strict=False)\n"
        "missing = model.load_state_dict(state, strict=flag).missing_keys\n"
        "found = model.load_state_dict(state, True)\n"
    )
    assert turned(MODEL + lines) == PREPARED + (
        "missing, unexpected = load_model_state_dict(model, state, strict=False)\n"
        "missing = load_model_state_dict(model, state, strict=flag).missing_keys\n"
        "found = load_model_state_dict(model, state)\n"
    )


@pytest.mark.parametrize(
    ("above", "given", "is_found"),
    [
        ('kwargs.setdefault("state_dict", state)', "**kwargs", False),
        ('kwargs["state_dict"] = state', "**kwargs", False),
        ('kwargs = {"state_dict": state}', "**kwargs", False),
        ("kwargs.update(state_dict=state)", "**kwargs", False),
        ("pass", "**dict(state_dict=state)", False),
        ("pass", "**kwargs", True),
        ('kwargs["state_dict"] = None', "**kwargs", True),
        ('kwargs["max_shard_size"] = state', "**kwargs", True),
    ],
)
def test_a_state_that_is_given_in_a_dict_of_keywords(above: str, given: str, *, is_found: bool) -> None:
    body = (
        f"def f(net, state, **kwargs):\n    m = FSDP(net)\n    {above}\n    m.save_pretrained('x', {given})\n"
    )
    assert (("FM308", "commented") in codes(body)) is is_found


@pytest.mark.parametrize(("first", "is_said"), [("pass", False), ("self.shard()", True), ("{0}", True)])
def test_parts_that_a_later_method_shards_are_plain_in_the_constructor(first: str, *, is_said: bool) -> None:
    wrapping = "for k in self.parts: self.parts[k] = FSDP(self.parts[k])"
    body = (
        "class Arch(nn.Module):\n    def __init__(self, net, state):\n"
        f"        self.parts = nn.ModuleDict(net)\n        {first.format(wrapping)}\n"
        "        self.parts.load_state_dict(state)\n"
        f"    def shard(self):\n        {wrapping}\n"
        "    def save(self):\n        return self.parts.state_dict()\n"
    )
    found = [action for code, action in codes(body) if code == "FM308"]
    assert found == ["commented"] * (1 + is_said)


def test_the_state_of_ddps_model_stays_in_a_context_of_fsdp1() -> None:
    body = (
        "def save(net):\n    net = torch.nn.parallel.DistributedDataParallel(net)\n"
        f"    with FSDP.state_dict_type(net, {RANK0}):\n        return net.state_dict()\n"
    )
    assert turned(body).endswith("DistributedDataParallel(net)\n    return net.state_dict()\n")


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("from safetensors.torch import save_model\n{}save_model(model, path)\n", True),
        ("import safetensors.torch as st\n{}st.load_model(model, path)\n", True),
        ("from peft import get_peft_model_state_dict as get\n{}get(model)\n", True),
        ("from peft import get_peft_model_state_dict as get\n{}get(model, state)\n", False),
        ("from peft import get_peft_model_state_dict as get\n{}get(model, adapter_name=name)\n", True),
        ("from peft import set_peft_model_state_dict as put\n{}put(model, state)\n", True),
        ("from peft import get_peft_model_state_dict as get\n{}get(model, state_dict=state)\n", False),
        ("from safetensors.torch import save_model\n{}save_model(net2, path)\n", False),
        (
            (
                "from safetensors.torch import save_model\n{}"
                "with FSDP.summon_full_params(model):\n    save_model(model, path)\n"
            ),
            False,
        ),
    ],
)
def test_functions_of_other_packages_that_ask_a_model_for_its_state(body: str, is_said: bool) -> None:
    assert (("FM333", "commented") in codes(body.format(MODEL))) is is_said


@pytest.mark.parametrize(
    ("use", "is_said"),
    [
        ("torch.save(model.encoder.state_dict(), 'x')\n", True),
        ("state = model.layers[0].state_dict()\n", True),
        ("model.encoder.load_state_dict(state)\n", True),
        ("state = other.encoder.state_dict()\n", False),
        ("state = model.optimizer.state_dict()\n", False),
        ("with FSDP.summon_full_params(model):\n    state = model.encoder.state_dict()\n", False),
    ],
)
def test_the_state_of_a_part_is_sharded(use: str, is_said: bool) -> None:
    assert (("FM333", "commented") in codes(f"model = FSDP(net)\n{use}")) is is_said


def test_a_model_that_an_object_calls_its_module_has_that_name() -> None:
    made = "held.module = DDP(net) if many else FSDP(net)\nheld.module.state_dict()\n"
    imports = "from torch.nn.parallel import DistributedDataParallel as DDP\n"
    after = turned(f"{imports}held = Held()\n{made}")
    assert "take get_model_state_dict(held.module, " in after


@pytest.mark.parametrize(
    "made",
    [
        "model, opt, _, _ = deepspeed.initialize(model=net)",
        "model = deepspeed.init_inference(net)",
        "model = apex.parallel.DistributedDataParallel(net)",
        "model = fairscale.nn.FullyShardedDataParallel(net)",
        "model, opt = self.booster.boost(net, opt)",
    ],
)
def test_a_model_that_may_be_in_the_wrapper_of_another_package(made: str) -> None:
    body = (
        "import apex\nimport deepspeed\nimport fairscale\n\n\ndef main(self, net, opt, args):\n"
        f"    if args.other:\n        {made}\n    else:\n        model = FSDP(net)\n"
        "    torch.save(model.module.state_dict(), 'x.pt')\n    model.load_state_dict(torch.load('x.pt'))\n"
    )
    found = [code for code, action in codes(body) if code not in {"FM301", "FM329"}]
    assert found == ["FM333"] * 3
    plain = body.replace(made, "model = FSDP(net, device_id=0)")
    assert "FM333" not in {code for code, _ in codes(plain)}


_LOADS = (
    "with FSDP.state_dict_type(model, {}):\n    {}\n        state = torch.load(path)\n"
    "        model.load_state_dict(state)\n"
)


@pytest.mark.parametrize("kind", ["StateDictType.FULL_STATE_DICT", "StateDictType.SHARDED_STATE_DICT"])
@pytest.mark.parametrize(
    ("choice", "is_said"),
    [
        ("if rank == 0:", True),
        ("if dist.get_rank() == 0 and path:", True),
        ("if rank == 0 or use_fsdp:", False),
        ("if path:", False),
    ],
)
def test_one_rank_alone_loads_no_model(kind: str, choice: str, *, is_said: bool) -> None:
    alone = f"{choice}\n    model.load_state_dict(torch.load(path))\n"
    for body in (_LOADS.format(kind, choice), alone):
        said = [use.becomes for use in uses(f"{MODEL}{body}") if use.code == "FM308"]
        assert ["load_full_state_dict(model, {'model': state})" in each for each in said] == [is_said]
        others = [use.code for use in uses(f"{MODEL}{body.replace('model.load', 'net.load')}")]
        assert "FM308" not in others


def test_a_method_that_one_rank_alone_calls_loads_no_model() -> None:
    made = "class Trainer:\n    def __init__(self):\n        self.model = FSDP(net)\n        {}\n"
    body = f"{made}    def restore(self):\n        self.model.load_state_dict(torch.load(path))\n"
    for calls, is_said in (("if rank == 0:\n            self.restore()", True), ("self.restore()", False)):
        said = [use.becomes for use in uses(body.format(calls)) if use.code == "FM308"]
        assert ["one rank alone comes here" in each for each in said] == [is_said]
