"""The states of optimizers, whole and to be loaded."""

from __future__ import annotations

import pytest

from tests.source.samples import MODEL, PREPARED, assert_commented, codes, plain, turned


pytestmark = pytest.mark.any_torch


FULL = "StateDictType.FULL_STATE_DICT"
RANK0 = f"{FULL}, FullStateDictConfig(offload_to_cpu=True, rank0_only=True)"


OPTIMIZERS = [
    (
        f"with FSDP.state_dict_type(model, {FULL}):\n    state = FSDP.optim_state_dict(model, opt)\n",
        "state = full_optimizer_state_dict(model, opt, rank0_only=False)\n",
    ),
    (
        (
            f"with FSDP.state_dict_type(model, {RANK0}, FullOptimStateDictConfig(rank0_only=True)):\n"
            "    state = FSDP.optim_state_dict(model, opt)\n"
            "    opt.load_state_dict(FSDP.optim_state_dict_to_load(model, opt, loaded))\n"
        ),
        (
            "state = full_optimizer_state_dict(model, opt)\n"
            "opt.load_state_dict(optim_state_dict_to_load(model, opt, loaded, from_rank0=True))\n"
        ),
    ),
    ("state = FSDP.full_optim_state_dict(model, opt)\n", "state = full_optimizer_state_dict(model, opt)\n"),
    (
        "state = FSDP.full_optim_state_dict(model, opt, rank0_only=False)\n",
        "state = full_optimizer_state_dict(model, opt, rank0_only=False)\n",
    ),
    (
        "state = FSDP.full_optim_state_dict(model, opt, optim_input=groups)\n",
        "state = full_optimizer_state_dict(model, opt)\n",
    ),
    (
        "state = FSDP.scatter_full_optim_state_dict(full, model, groups, opt)\n",
        "state = optim_state_dict_to_load(model, opt, full, from_rank0=True)\n",
    ),
    (
        "state = FSDP.shard_full_optim_state_dict(full, model, optim=opt)\n",
        "state = optim_state_dict_to_load(model, opt, full)\n",
    ),
    (
        "state = FSDP.scatter_full_optim_state_dict(full, model)\n",
        "state = optim_state_dict_to_load(model, None, full, from_rank0=True)\n",
    ),
    (
        "state = FSDP.optim_state_dict_to_load(ckpt['o'], model, opt)\n",
        "state = optim_state_dict_to_load(model, opt, ckpt['o'])\n",
    ),
    (
        "state = FSDP.optim_state_dict_to_load(model=model, optim=opt, optim_state_dict=full)\n",
        "state = optim_state_dict_to_load(model, opt, full)\n",
    ),
]


@pytest.mark.parametrize(("before", "after"), OPTIMIZERS)
def test_states_of_optimizers(before: str, after: str) -> None:
    assert plain(MODEL + before) == PREPARED + after


COMMENTED = [
    ("state = FSDP.rekey_optim_state_dict(state, kind, net)\n", "FM309"),
    ("state = FSDP.optim_state_dict_to_load(a, b, c)\n", "FM309"),
    ("state = FSDP.optim_state_dict(*args)\n", "FM309"),
    ("state = FSDP.shard_full_optim_state_dict(full, model, groups)\n", "FM309"),
    (
        (
            "from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict as load\n"
            "state = load(model_state, 'o', reader)\n"
        ),
        "FM309",
    ),
]


@pytest.mark.parametrize(("body", "code"), COMMENTED)
def test_what_is_not_seen_whole_gets_a_comment_only(body: str, code: str) -> None:
    assert_commented(body, code, alone=True)


def test_comments_within_a_call_that_is_replaced_stay() -> None:
    body = "osd = FSDP.optim_state_dict(\n    model,  # the model\n    # its own\n    opt,\n)  # saved\n"
    expected = (
        "# the model\n# its own\nosd = full_optimizer_state_dict(model, opt, rank0_only=False)  # saved\n"
    )
    assert turned(f"{MODEL}{body}") == PREPARED + expected


@pytest.mark.parametrize("kind", ["kind", "StateDictType.SHARDED_STATE_DICT"])
def test_a_state_that_a_folder_is_read_into_names_what_reads_the_moments_too(kind: str) -> None:
    """A new optimizer has no state to be read into: nothing would be read, without an error."""
    body = (
        "import torch.distributed.checkpoint as dcp\n"
        "def load(model: FSDP, opt, folder):\n"
        f"    FSDP.set_state_dict_type(model, {kind})\n"
        "    state = {'m': model.state_dict(), 'optimizer': FSDP.optim_state_dict(model, opt)}\n"
    )
    said = "call fsdp_migrate.load_checkpoint(FOLDER, model, optimizer)"
    saved = turned(f"{body}    dcp.save(state, folder)\n")
    loaded = turned(f"{body}    dcp.load(state, checkpoint_id=folder)\n")
    loaded = " ".join(loaded.replace("# fsdp-migrate:", "").split())
    for words in (said, "compare with one that was not stopped"):
        assert words not in saved
        assert words in loaded


@pytest.mark.parametrize("group", ["dist.GroupMember.WORLD", "torch.distributed.group.WORLD"])
def test_another_world_around_a_state_is_told(group: str) -> None:
    asks = "state = FSDP.full_optim_state_dict(model, optimizer)\n"
    swap = f"{MODEL}world = {group}\n{group} = data_parallel\n{asks}{group} = world\n"
    assert turned(swap).count("# fsdp-migrate: FM309 functions of fsdp_migrate.runtime ask") == 2
    assert "ask torch.distributed" not in turned(swap.replace(asks, "dist.barrier()\n"))


def test_the_type_of_a_context_is_seen_whatever_else_stands_in_it() -> None:
    asks = "    state = FSDP.optim_state_dict(model, optimizer)\n"
    context = f"{MODEL}with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, full, optim):\n{asks}"
    made = "full = FullStateDictConfig()\noptim = FullOptimStateDictConfig(rank0_only=False)\n"
    after = turned(f"{made}{context}    other = average.state_dict()\n")
    assert "FM307" in after
    assert "FM309" not in after
    assert "state = full_optimizer_state_dict(model, optimizer, rank0_only=False)" in after


def test_a_state_that_torch_gave_is_rekeyed_as_before() -> None:
    body = "from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict\n"
    body += (
        "state = get_optimizer_state_dict(net, opt)\nstate = FSDP.rekey_optim_state_dict(state, kind, net)\n"
    )
    assert ("FM309", "kept") in codes(body)


@pytest.mark.parametrize(
    "body",
    [
        "state = FSDP.rekey_optim_state_dict(read, OptimStateKeyType.PARAM_NAME, plain, optim=adam)\n",
        (
            "state = FSDP.rekey_optim_state_dict(\n    model=plain, optim_state_dict=read,"
            " optim_state_key_type=fsdp_api.OptimStateKeyType.PARAM_NAME\n)\n"
        ),
        "kind = OptimStateKeyType.PARAM_NAME\nstate = FSDP.rekey_optim_state_dict(read, kind, plain)\n",
    ],
)
def test_a_plain_models_state_is_given_names_as_before(body: str) -> None:
    """Without it the state of a run without FSDP fits no optimizer of a sharded model."""
    after = turned(f"{MODEL}{body}new = FSDP.shard_full_optim_state_dict(state, model, optim=opt)\n")
    assert body in after
    assert "FM309" not in after
    assert "new = optim_state_dict_to_load(model, opt, state)\n" in after


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("OptimStateKeyType.PARAM_ID", "rekey nothing."),
        (
            "OptimStateKeyType.PARAM_ID",
            "keep the call that asks for PARAM_NAME: checkpoints that were saved by",
        ),
        ("kind", "rekey nothing to numbers."),
        (
            "OptimStateKeyType.PARAM_NAME if named else OptimStateKeyType.PARAM_ID",
            "rekey nothing to numbers.",
        ),
    ],
)
def test_a_state_of_names_is_not_to_be_numbered(kind: str, said: str) -> None:
    after = turned(f"{MODEL}state = FSDP.rekey_optim_state_dict(read, {kind}, net)\n")
    assert said in " ".join(line.strip("# ") for line in after.splitlines())


def test_parameters_in_the_place_of_an_optimizer_are_told() -> None:
    after = turned(f"{MODEL}state = FSDP.scatter_full_optim_state_dict(full, model, optim_input=groups)\n")
    assert "give the optimizer in its place, `optim=`" in after


NAMED = """\
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
    own = opt.state_dict()
    state = FSDP.optim_state_dict({given})
"""


@pytest.mark.parametrize(
    "given",
    ["model, opt, own", "model=model, optim=opt, optim_state_dict=own", "model, opt, optim_state_dict=own"],
)
def test_the_optimizers_own_state_by_a_name_goes(given: str) -> None:
    before = NAMED.format(given=given)
    expected = "state = full_optimizer_state_dict(model, opt, rank0_only=False)\n"
    assert turned(MODEL + before) == PREPARED + expected
    # What else is read by that name is still what one rank has.
    kept = turned(f"{MODEL}{before}torch.save((model.state_dict(), own), 'x')\n")
    assert "own = opt.state_dict()\n" in kept
    assert "# fsdp-migrate: FM425 " in kept
    assert expected in kept


@pytest.mark.parametrize("own", ["other.state_dict()", "opt.state_dict(1)", "load()", "opt.state"])
def test_another_state_by_a_name_stays(own: str) -> None:
    before = NAMED.format(given="model, opt, own").replace("opt.state_dict()", own)
    after = turned(MODEL + before)
    assert "FM309 these arguments have no equivalent" in after
    assert f"own = {own}\n" in after


READ_AFTER = """\
import torch.distributed.checkpoint as dcp
def both(model: FSDP, opt, folder):
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        {first}
        dcp.save(state, checkpoint_id=folder)
        {then}
        dcp.load(state, checkpoint_id=folder)
        model.load_state_dict(state["model"])
"""
WITH_OPTIMIZER = 'state = {"model": model.state_dict(), "optim": FSDP.optim_state_dict(model, opt)}'


@pytest.mark.parametrize(
    ("then", "is_told"),
    [
        ('state = {"model": model.state_dict()}', False),
        ('state: dict = {"model": model.state_dict()}', False),
        ("state = new_state(model)", False),
        ('state = {**state, "step": 0}', True),
        ('state["step"] = 0', True),
        ('if fresh: state = {"model": model.state_dict()}', True),
        (WITH_OPTIMIZER, True),
    ],
)
def test_a_name_that_holds_another_state_where_it_is_read_into_is_not_told(
    then: str, *, is_told: bool
) -> None:
    after = turned(READ_AFTER.format(first=WITH_OPTIMIZER, then=then))
    assert after.count("this reads into the state of an optimizer") == is_told


def test_a_state_that_another_branch_made_is_not_read_into() -> None:
    body = READ_AFTER.format(first=f"if saving: {WITH_OPTIMIZER}", then="pass")
    body = body.replace("        dcp.load", "        if loading: dcp.load")
    assert "this reads into the state of an optimizer" in turned(body)
    apart = (
        "import torch.distributed.checkpoint as dcp\n"
        "def one(model: FSDP, opt, folder, saving):\n"
        "    FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)\n"
        f"    if saving:\n        {WITH_OPTIMIZER}\n        dcp.save(state, checkpoint_id=folder)\n"
        '    else:\n        state = {"model": model.state_dict()}\n'
        "        dcp.load(state, checkpoint_id=folder)\n"
    )
    assert "this reads into the state of an optimizer" not in turned(apart)
