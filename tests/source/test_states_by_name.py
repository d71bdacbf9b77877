"""State methods of a sharded model that are not called where they are named."""

from __future__ import annotations

import pytest

from tests.source.samples import MODEL, assert_commented, codes


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    "use",
    [
        "get = model.state_dict\nstate = get()\n",
        "save(model.state_dict)\n",
        "later(give=model.state_dict)\n",
        "put = model.load_state_dict\nput(state)\n",
        "state = (old.state_dict if old else model.state_dict)()\n",
        "get = functools.partial(model.state_dict)\n",
        'state = getattr(model, "state_dict")()\n',
        'getattr(model, "load_state_dict")(state)\n',
        'get = getattr(model, "state_dict", None)\n',
        "methods = {'model': model.state_dict}\n",
    ],
)
def test_a_method_that_is_called_later_is_said(use: str) -> None:
    assert_commented(use, "FM308")


@pytest.mark.parametrize(
    "use",
    [
        "get = other.state_dict\n",
        "save(optimizer.state_dict)\n",
        "model.state_dict = mine\n",
        "if callable(model.state_dict):\n    pass\n",
        "if hasattr(model, 'state_dict'):\n    pass\n",
        "model.state_dict.__doc__\n",
        "same = model.state_dict is other.state_dict\n",
        'keep = getattr(model, "stated", None)\n',
        'state = getattr(other, "state_dict")()\n',
        "with FSDP.summon_full_params(model):\n    save(model.state_dict)\n",
    ],
)
def test_what_calls_none_later_is_left_alone(use: str) -> None:
    assert ("FM308", "commented") not in codes(MODEL + use)


def test_above_the_wrapping_it_is_the_plain_models() -> None:
    assert ("FM308", "commented") not in codes(
        "get = net.state_dict\nsave(net.state_dict)\nmodel = FSDP(net)\n"
    )


def test_of_a_model_that_may_be_sharded_it_is_said_so() -> None:
    body = "def f(net, on):\n    model = FSDP(net) if on else DDP(net)\n    save(model.state_dict)\n"
    header = "from torch.nn.parallel import DistributedDataParallel as DDP\n"
    assert ("FM333", "commented") in codes(header + body)
