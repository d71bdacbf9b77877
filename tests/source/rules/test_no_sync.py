"""``no_sync``, called and named."""

from __future__ import annotations

import pytest

from tests.source.samples import assert_commented, assert_left_alone, assert_turned, codes, uses


pytestmark = pytest.mark.any_torch


TURNED = [
    ("with model.no_sync():\n    pass\n", "with no_sync(model):\n    pass\n"),
    ("with FSDP.no_sync(model):\n    pass\n", "with no_sync(model):\n    pass\n"),
    (
        "context = model.no_sync if more else nothing\n",
        "context = partial(no_sync, model) if more else nothing\n",
    ),
]


@pytest.mark.parametrize(("before", "after"), TURNED)
def test_methods_become_functions(before: str, after: str) -> None:
    assert_turned(before, after)


COMMENTED = [
    ("def f(model):\n    with model.no_sync():\n        pass\n", "FM312"),
]


@pytest.mark.parametrize(("body", "code"), COMMENTED)
def test_what_is_left_to_people_gets_one_comment(body: str, code: str) -> None:
    assert_commented(body, code)


LEFT_ALONE = [
    "self.trainer.no_sync()\n",
    "def f(model):\n    with get_accelerator().no_sync(model):\n        pass\n",
    "class T:\n    def no_sync(self): ...\n",
    "class T:\n    def f(self):\n        self.no_sync = False\n        if self.no_sync:\n            pass\n",
    "other.no_sync = True\n",
    "self._ddp_model_ref.no_sync()\n",
]


@pytest.mark.parametrize("body", LEFT_ALONE)
def test_other_things_with_the_same_names_are_left_alone(body: str) -> None:
    assert_left_alone(body)


ACCELERATE = (
    "from accelerate import Accelerator, FullyShardedDataParallelPlugin as Plugin\n"
    "accelerator = Accelerator(fsdp_plugin=Plugin(sharding_strategy=1), gradient_accumulation_steps=2)\n"
    "model, optimizer = accelerator.prepare(model, optimizer)\nmodels = [model]\nothers = [loss]\n"
)


@pytest.mark.parametrize(
    ("given", "is_said"),
    [
        ("accumulate(models)", True),
        ("accumulate([model])", True),
        ("no_sync((model, head))", True),
        ("accumulate(*models)", False),
        ("accumulate(model)", False),
        ("accumulate(others)", False),
        ("gather(models)", False),
    ],
)
def test_accelerate_is_given_a_list_of_models(given: str, *, is_said: bool) -> None:
    body = f"{ACCELERATE}with accelerator.{given}:\n    pass\n"
    assert (("FM312", "commented") in codes(body)) is is_said
    once = body.replace("_steps=2", "_steps=1")
    assert (("FM312", "commented") in codes(once)) is ("no_sync(" in given)


@pytest.mark.parametrize(
    "prepares",
    [
        "prepare(model, device_placement=[True])",
        "prepare_model(model, device_placement=True, evaluation_mode=mode)",
        "prepare_model(model=model, evaluation_mode=mode)",
    ],
)
def test_what_one_model_is_prepared_with_makes_no_list_of_it(prepares: str) -> None:
    """The model was taken for a list, and advice was given by which ``accumulate`` raises."""
    body = ACCELERATE.replace(
        "model, optimizer = accelerator.prepare(model, optimizer)", f"model = accelerator.{prepares}"
    )
    found = codes(f"{body}with accelerator.accumulate(model):\n    x = model.state_dict()\n")
    assert ("FM312", "commented") not in found
    assert ("FM333", "commented") in found, "it is a sharded model"


PREPARED = ACCELERATE.replace(
    "models = [model]", "head = Head()\nmodels = [model, head]\nholder = Holder(model)"
)
HOLDER = "class Holder(Module):\n    def __init__(self, m):\n        self.net = m\n\n\n"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("accumulate(model, head)", "`head`"),
        ("accumulate(head, model, other)", "`head`, `other`"),
        ("accumulate(*models)", "`head`"),
        ("accumulate(model.encoder)", "`model.encoder`"),
        ("no_sync(holder)", "`holder`"),
        ("accumulate(model)", ""),
        ("accumulate(*[model])", ""),
        ("accumulate(holder.net)", ""),
        ("accumulate(head)", ""),
        ("accumulate(*unseen)", ""),
        ("accumulate(accelerator.unwrap_model(model))", ""),
        ("accumulate(around)", "`around`"),  # what an unknown call makes of it
        ("accumulate(moved)", "`moved`"),
        ("accumulate(bare)", ""),
        ("accumulate(alike)", ""),
        ("accumulate(apart)", ""),
    ],
)
def test_accelerate_is_given_what_it_has_not_sharded(given: str, named: str) -> None:
    """Under FSDP2 ``accumulate`` and ``no_sync`` raise AttributeError for it; FSDP1 passed over it."""
    made = "around = unseen(c)(model)\nbare = accelerator.unwrap_model(model)\n"
    made += "moved = unseen(c)(model)\nmoved = moved.to(device)\n"
    made += "alike = torch.compile(model)\napart = unseen(c)(other)\n"
    body = f"{HOLDER}{PREPARED}{made}with accelerator.{given}:\n    pass\n"
    assert (("FM312", "commented") in codes(body)) is bool(named)
    said = [each.becomes for each in uses(body) if each.code == "FM312"]
    assert named in " ".join(said)
    once = body.replace("_steps=2", "_steps=1")
    assert (("FM312", "commented") in codes(once)) is ("no_sync(" in given)
