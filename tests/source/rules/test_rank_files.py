"""Files in which each rank saved its shards, read by code that is rewritten."""

from __future__ import annotations

import pytest

from tests.source.samples import codes, turned


pytestmark = pytest.mark.any_torch

SHARDED = "with FSDP.state_dict_type(m, StateDictType.SHARDED_STATE_DICT):\n    "
SETTER = "FSDP.set_state_dict_type(m, StateDictType.SHARDED_STATE_DICT)\n"
FULL = SHARDED.replace("SHARDED", "FULL")
MADE = "m = FSDP(net)\n"


@pytest.mark.parametrize(
    "body",
    [
        f"{SHARDED}m.load_state_dict(torch.load(path))\n",
        f"state = torch.load(path)\n{SHARDED}m.load_state_dict(state['model'])\n",
        f"{SHARDED}state = torch.load(path)\n    m.load_state_dict(state_dict=state)\n",
        f"{SHARDED}x = FSDP.optim_state_dict_to_load(m, optim, torch.load(path))\n",
        f"{SETTER}m.load_state_dict(torch.load(path))\n",
        f"{SETTER}meta = torch.load(path)\nsched.load_state_dict(meta['s'])\nm.load_state_dict(meta['m'])\n",
        # A model that is called so is one.
        SETTER.replace("m,", "sched,").join(
            ("sched = FSDP(net)\n", "sched.load_state_dict(torch.load(path))\n")
        ),
        "x = FSDP.flatten_sharded_optim_state_dict(torch.load(path), m, optim)\n",
    ],
)
def test_they_are_said(body: str) -> None:
    assert codes(MADE + body).count(("FM426", "commented")) == 1
    assert "# fsdp-migrate: FM426 files that FSDP1 saved here" in turned(MADE + body)


@pytest.mark.parametrize(
    "body",
    [
        f"{FULL}m.load_state_dict(torch.load(path))\n",
        "m.load_state_dict(torch.load(path))\n",
        f"state = m.state_dict()\ndcp.load(state, path)\n{SHARDED}m.load_state_dict(state)\n",
        f"other = torch.load(path)\n{SHARDED}m.load_state_dict(state)\n",
        # What holds no parameters has none of FSDP1's tensors.
        f"{SETTER}meta = torch.load(path)\nscheduler.load_state_dict(meta['scheduler'])\n",
        f"{SETTER}s = torch.optim.lr_scheduler.LambdaLR(o, f)\ns.load_state_dict(torch.load(path))\n",
        f"{SETTER}self.scaler.load_state_dict(torch.load(path)['scaler'])\n",
    ],
)
def test_others_are_not(body: str) -> None:
    assert "FM426" not in {code for code, _ in codes(MADE + body)}


@pytest.mark.parametrize("loop", ["    a = a['x']\n", "    a = b['x']\n    b = a['y']\n"])
def test_a_state_that_comes_from_itself_ends_the_search(loop: str) -> None:
    body = f"for key in keys:\n{loop}{SHARDED}m.load_state_dict(a)\n"
    assert ("FM426", "commented") not in codes(MADE + body)


def test_a_file_that_a_function_reads() -> None:
    body = (
        "def read(rank):\n    state = torch.load(f'rank{rank}.pt')\n    return state\n\n\n"
        f"{MADE}held = read(0)\nstate = held['model']\n{SHARDED}m.load_state_dict(state)\n"
    )
    assert codes(body).count(("FM426", "commented")) == 1
    assert codes(body.replace("torch.load(", "torch.zeros(")).count(("FM426", "commented")) == 0


def test_the_context_in_which_sharded_tensors_are_read() -> None:
    body = "with load_with_process_group(group):\n    states = my_load(file)\n"
    for home in ("torch.distributed._shard.api", "torch.distributed._shard"):
        assert codes(f"from {home} import load_with_process_group\n{body}") == [("FM426", "commented")]
    assert codes(f"from mine import load_with_process_group\n{body}") == []
