"""States that one rank alone asks for, behind a branch or a return."""

from __future__ import annotations

import pytest

from tests.source.samples import MODEL, codes, turned, uses


pytestmark = pytest.mark.any_torch


RANK0 = "StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True, rank0_only=True)"


@pytest.mark.parametrize(
    "test",
    [
        "rank == 0",
        "0 == dist.get_rank()",
        "not args.local_rank",
        "is_main_process() and save",
        "self.is_master",
        "accelerator.is_local_main_process",
        "accelerator.process_index == 0",
        "state.local_process_index == 0",
        "args.local_rank in (-1, 0)",
        "rank in [0]",
        "rank < 1",
        "local_rank <= 0",
        "not rank > 0",
        "trainer.is_world_process_zero()",
        "self.args.should_save",
        "trainer.is_global_zero",
        "accelerator.is_last_process",
        "int(os.environ['RANK']) == 0",
        "int(os.environ.get('LOCAL_RANK', 0)) == 0",
        "os.getenv('RANK') == '0'",
    ],
)
def test_one_rank_alone_asks_for_no_state_of_all(test: str) -> None:
    ask = "torch.save(model.module.state_dict(), path)\n"
    assert ("FM308", "commented") in codes(f"{MODEL}if {test}:\n    {ask}")
    assert ("FM308", "rewritten") in codes(f"{MODEL}if {test}:\n    pass\nelse:\n    {ask}")


@pytest.mark.parametrize(
    ("made", "asked"),
    [
        ("raw = model.module if many else model", "raw"),
        ("raw = model\nif many:\n    raw = model.module", "raw"),
        ("def inner(m):\n    return m.module if many else m\nraw = inner(model)", "raw"),
        ("def inner(m):\n    return m.module if many else m", "inner(model)"),
    ],
)
def test_one_rank_alone_asks_the_inner_module_by_another_name(made: str, asked: str) -> None:
    body = f"{MODEL}{made}\nif step % 10 == 0 and is_main:\n    torch.save({asked}.state_dict(), path)\n"
    assert ("FM308", "commented") in codes(body)
    assert "    torch.save(" in turned(body)
    assert ("FM308", "rewritten") in codes(body.replace(" and is_main", ""))


@pytest.mark.parametrize(
    ("test", "is_said"),
    [
        ("rank == 0 or args.all", True),
        ("not (rank != 0 and args.one)", True),
        ("rank == 0 or args.use_fsdp", False),
        ("not (rank != 0 and not is_sharded)", False),
        ("not lora_rank", False),
        ("rank in (0, 1)", False),
        ("rank < 2", False),
        ("world_size == 1", False),
    ],
)
def test_one_rank_alone_may_be_let_in(test: str, *, is_said: bool) -> None:
    body = f"{MODEL}raw = model.module\nif {test}:\n    torch.save(raw.state_dict(), path)\n"
    assert (("FM308", "commented") in codes(body)) is is_said


@pytest.mark.parametrize("test", ["rank != 0", "rank", "rank not in (-1, 0)", "rank >= 1"])
def test_one_rank_alone_behind_a_return(test: str) -> None:
    body = (
        f"def save(model: FSDP, rank, path):\n    if {test}:\n        return\n"
        "    torch.save(model.module.state_dict(), path)\n"
    )
    assert ("FM308", "commented") in codes(body)


@pytest.mark.parametrize(
    ("group", "is_own"), [("process_group=group", True), ("process_group=None", False), ("", False)]
)
def test_rank_zero_of_a_process_group_is_not_that_of_all(group: str, *, is_own: bool) -> None:
    body = (
        f"model = FSDP(net, {group})\n"
        f"with FSDP.state_dict_type(model, {RANK0}):\n    state = model.state_dict()\n"
    )
    after = turned(body)
    assert ('state = full_state_dict(model).get("model", {})\n' in after) is is_own
    assert ("state = get_model_state_dict(model, " in after) is not is_own


@pytest.mark.parametrize(
    ("strategy", "test", "is_said"),
    [
        ("HYBRID_SHARD", "int(os.environ['LOCAL_RANK']) == 0", True),
        ("_HYBRID_SHARD_ZERO2", "local_rank == 0", True),
        ("NO_SHARD", "local_rank == 0", True),
        ("HYBRID_SHARD", "rank == 0", False),
        ("FULL_SHARD", "local_rank == 0", False),
    ],
)
def test_a_state_that_each_node_saves_is_rank_0s_alone(strategy: str, test: str, *, is_said: bool) -> None:
    config = "FullStateDictConfig(offload_to_cpu=True, rank0_only=True)"
    after = turned(
        f"model = FSDP(net, sharding_strategy=ShardingStrategy.{strategy})\n"
        f"with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, {config}):\n"
        f"    state = model.state_dict()\nif {test}:\n    torch.save(state, path)\n"
    )
    assert ("FM308 under HYBRID_SHARD FSDP1 gave this to rank 0 of each node" in after) is is_said


@pytest.mark.parametrize(
    ("made", "test", "is_said"),
    [
        ("self.log = Log() if rank == 0 else None", "self.log is not None", True),
        ("self.log = None\n        if rank == 0:\n            self.log = Log()", "self.log", True),
        ("self.shows = not rank and args.show", "self.shows and step", True),
        ("self.log = Log() if args.log else None", "self.log is not None", False),
        ("self.log = Log() if rank == 0 else None", "self.log is None", False),
        (
            "self.log = None\n        if rank == 0:\n            self.log = Log()\n        self.log = b",
            "self.log",
            False,
        ),
        ("self.shows = shows\n        if rank == 0:\n            self.shows = True", "self.shows", False),
    ],
)
def test_what_one_rank_alone_has_is_asked_for(made: str, test: str, *, is_said: bool) -> None:
    """A user who took `.full_tensor()` below `if self.log:` waited for ever: nothing told it."""
    found = uses(
        "class Loop:\n    def __init__(self, net, rank, args, shows):\n"
        f"        {made}\n        self.net = FSDP(net)\n"
        f"    def show(self, step):\n        if {test}:\n"
        "            norms = torch.stack([p.grad.norm() for p in self.net.parameters()])\n"
        "            self.log.add(norms * 2)\n"
    )
    said = [each.becomes for each in found if each.code == "FM423"]
    assert len(said) == 1
    assert ("One rank alone comes here" in said[0]) is is_said


@pytest.mark.parametrize(
    ("name", "asked", "is_said"),
    [("train", "self.net.eval_of().train", False), ("train", "self.train", True), ("fit", "loop.fit", True)],
)
def test_torchs_own_methods_show_no_rank(name: str, asked: str, *, is_said: bool) -> None:
    """`self.policy.train()` on rank 0 was taken for a call of the Trainer's own `train`."""
    found = uses(
        "class Loop:\n    def __init__(self, net):\n        self.net = FSDP(net)\n"
        f"    def {name}(self, parts):\n"
        "        torch.nn.utils.clip_grad_norm_([p for p in self.net.parameters() if p in parts], 1.0)\n"
        f"    def resume(self, rank, loop):\n        if rank == 0:\n            {asked}(parts)\n"
    )
    said = [each.becomes for each in found if each.code == "FM326"]
    assert len(said) == 1
    assert ("One rank alone comes here" in said[0]) is is_said
