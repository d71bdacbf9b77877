"""What one branch shows, and what it does not."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import scan_source
from tests.source.samples import codes, turned


pytestmark = pytest.mark.any_torch


def test_below_a_switch_it_shows_nothing_of_what_is_outside() -> None:
    body = (
        "def save(model, use_fsdp):\n"
        "    if use_fsdp:\n"
        "        state = FSDP.optim_state_dict(model, None)\n"
        "    return model.state_dict()\n"
    )
    assert "return model.state_dict()" in turned(body)


def test_and_nothing_of_the_other_branch() -> None:
    body = (
        "def save(model, sharded):\n"
        "    if sharded:\n"
        "        state = FSDP.optim_state_dict(model, optimizer)\n"
        "    else:\n"
        "        state = model.state_dict()\n"
    )
    assert "state = model.state_dict()" in turned(body)


SWITCHED = [
    (
        "def save(model, mode):\n"
        "    match mode:\n"
        "        case 'fsdp':\n"
        "            state = FSDP.optim_state_dict(model, optimizer)\n"
        "        case 'ddp':\n"
        "            state = model.module.state_dict()\n"
    ),
    (
        "def save(model, mode):\n"
        "    match mode:\n"
        "        case 'torch_ddp' | 'ddp':\n"
        "            state = model.module.state_dict()\n\n\n"
        "save(FSDP(net), 'ddp')\n"
    ),
    (
        "def save(model):\n    if mode == 'ddp':\n        state = model.module.state_dict()\n\n\n"
        "save(FSDP(net))\n"
    ),
    (
        "def save(model):\n    if mode != 'torch_fsdp':\n        state = model.module.state_dict()\n\n\n"
        "save(FSDP(net))\n"
    ),
    (
        "def save(model):\n    if mode == 'fsdp':\n        return None\n"
        "    else:\n        state = model.module.state_dict()\n\n\nsave(FSDP(net))\n"
    ),
]


@pytest.mark.parametrize("body", SWITCHED)
def test_a_branch_for_another_word_than_fsdp_is_left_alone(body: str) -> None:
    assert "            state = model.module.state_dict()\n".lstrip() in turned(body)
    assert "FM333" not in turned(body)


@pytest.mark.parametrize("other", ["hsdp", "fsdp2", "zero3"])
def test_what_is_not_fsdp_may_be_another_word_for_it(other: str) -> None:
    lines = "def save(model):\n    if mode != 'fsdp':\n        model.module.state_dict()\n"
    body = f"{lines}\n\nx = '{other}'\nsave(FSDP(net))\n"
    assert "model.module.state_dict()" not in turned(body)


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (
            "FM327",
            (
                "args = transformers.HfArgumentParser(transformers.TrainingArguments).parse()[0]\n"
                'if not args.fsdp:\n    args.fsdp = "full_shard auto_wrap"\n'
            ),
        ),
        (
            "FM319",
            'if not use_fsdp:\n    kwargs["strategy"] = "fsdp"\nlightning.Trainer(**kwargs)\n',
        ),
    ],
)
def test_what_switches_fsdp_on_where_it_is_off_is_said(code: str, body: str) -> None:
    found = scan_source(f"import lightning\nimport transformers\n{body}")
    assert code in {use.code for use in found if use.action == "commented"}


def test_where_there_is_no_sharded_model() -> None:
    body = (
        "def inner(m):\n    if isinstance(m, FSDP):\n        return m.module\n    return m\n\n\n"
        "def save(model: FSDP, fsdp_model, optim):\n    if fsdp_model is not None:\n        pass\n    else:\n"
        "        state = inner(model).state_dict()\n        moments = optim.state_dict()\n"
    )
    assert {code for code, action in codes(body) if action == "commented"} == set()
    assert ("FM425", "commented") in codes(body.replace("fsdp_model is not", "other is not"))
