"""Functions that hand back the model that they are given, where it is of a class, or unwrapped."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import scan_source
from tests.source.samples import IMPORTS


pytestmark = pytest.mark.any_torch

CODE = """\
from torch.nn.parallel import DistributedDataParallel as DDP


def fsdp_of(model):
    {helper}


def inner_of(model):
    if isinstance(model, DDP):
        return model.module
    return without_compile(model)


def without_compile(model):
    return getattr(model, "_orig_mod", model)


def made_of(model):
    if isinstance(model, DDP):
        return FSDP(model.module)
    return model


kept = FSDP(Net())


def kept_of(model):
    return kept


def save(model):
    wrapped = fsdp_of(model)
    if {test}:
        state = wrapped.state_dict()
        plain = Net()
        plain.load_state_dict(state)
    else:
        plain = {plain}
    plain.embed.weight = torch.nn.Parameter(plain.embed.weight[:3])
    plain.save_pretrained("x")


def main(flag):
    net = Net()
    net = FSDP(net, use_orig_params=True) if flag else DDP(net)
    save(net)
"""
OR_NONE = "if isinstance(model, FSDP):\n        return model\n    return None"
INNER = "inner_of(model)"


@pytest.mark.parametrize(
    ("helper", "test", "plain", "is_plain"),
    [
        (OR_NONE, "wrapped is not None", INNER, True),
        (OR_NONE.removesuffix("\n    return None"), "wrapped is not None", INNER, True),
        (f"model = without_compile(model)\n    {OR_NONE}", "wrapped is not None", INNER, True),
        (OR_NONE.replace("FSDP)", "FSDP) and flag"), "wrapped is not None", INNER, False),
        (OR_NONE.replace("FSDP)", "DDP)"), "wrapped is not None", INNER, False),
        (OR_NONE.replace("return model", "return other"), "wrapped is not None", INNER, False),
        (OR_NONE.replace("return None", "return model"), "wrapped is not None", INNER, False),
        # What is asked may be the model within the wrapper, and then FSDP1's model comes to the other branch.
        (f"model = model.module\n    {OR_NONE}", "wrapped is not None", INNER, False),
        (OR_NONE, "wrapped is not None", "kept_of(model)", False),  # another than what it is given
        (OR_NONE, "wrapped is None", INNER, False),
        (OR_NONE, "flag", INNER, False),
        (OR_NONE, "wrapped is not None", "made_of(model)", False),  # which may wrap it, for all that is seen
    ],
)
def test_what_is_handed_back_where_it_is_none_of_fsdp1s(
    helper: str, test: str, plain: str, *, is_plain: bool
) -> None:
    """A model that was made anew for the file, or unwrapped from DDP, stopped the run."""
    code = IMPORTS + CODE.format(helper=helper, test=test, plain=plain)
    said = [use.code for use in scan_source(code) if use.action == "commented" and "plain." in use.text]
    assert (said == []) is is_plain


def test_a_state_of_what_a_function_gave_or_none_is_rewritten() -> None:
    """Below the check it is FSDP1's for certain."""
    code = IMPORTS + CODE.format(helper=OR_NONE, test="wrapped is not None", plain=INNER)
    states = [use for use in scan_source(code) if use.text == "wrapped.state_dict()"]
    assert [(use.code, use.action) for use in states] == [("FM308", "rewritten")]
