"""The class as a value, and functions of it that FSDP2 does not have."""

from __future__ import annotations

import pytest
from torch import nn
from torch.distributed.checkpoint import state_dict
from torch.distributed.fsdp import FullyShardedDataParallel

from fsdp_migrate.source import catalog, scan_source
from fsdp_migrate.source.rules import leftovers
from tests.source.samples import IMPORTS, assert_uncertain, codes, uses


pytestmark = pytest.mark.any_torch


COMMENTED = [
    ("kinds = {'fsdp': FSDP}\n", ["FM303"]),
    ("ok = type(model) in {FSDP}\n", ["FM303"]),
    ("kind = FSDP.get_state_dict_type(model)\n", ["FM303"]),
]


@pytest.mark.parametrize(("body", "expected"), COMMENTED)
def test_what_is_not_certain_gets_a_comment_only(body: str, expected: list[str]) -> None:
    assert_uncertain(body, expected)


def test_the_class_as_a_default_value() -> None:
    assert ("FM303", "commented") in codes("def build(net, wrapper=FSDP):\n    return wrapper(net)\n")


def test_a_function_that_the_runtime_has_is_named() -> None:
    body = "whole = functools.partial(FSDP.{}, model, recurse=False)\n"
    for name, is_ours in (("summon_full_params", True), ("get_state_dict_type", False)):
        (said,) = (use.becomes for use in uses(body.format(name)) if use.code == "FM303")
        assert (f"fsdp_migrate.runtime.{name}" in said) is is_ours


def test_a_patch_of_the_class_is_told_to_go() -> None:
    said = [use.becomes for use in uses("FSDP.__init__ = patch(FSDP.__init__)\n") if use.code == "FM303"]
    assert said
    assert all("take the patch out" in each for each in said)


def test_a_function_without_equivalent_is_found_on_the_model() -> None:
    for owner in ("model", "type(model)", "model.__class__"):
        body = f"model = FSDP(net)\nkind = {owner}.get_state_dict_type(model)\n"
        assert ("FM303", "commented") in codes(body), owner
    assert ("FM303", "commented") not in codes("kind = config.get_state_dict_type(name)\n")


@pytest.mark.parametrize("asked", ["FSDP", "FSDP.__init__"])
def test_arguments_that_are_only_asked_for(asked: str) -> None:
    body = f"import inspect\nnames = inspect.signature({asked}).parameters.keys()\n"
    assert codes(body) == [("FM310", "kept")]
    assert ("FM303", "commented") in codes(body.replace("inspect.signature(FSDP", "patch(FSDP"))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("FSDP.parameters(model)", "call it on the model, model.parameters(...)"),
        ("FSDP.train(self.model, False)", "call it on the model, self.model.train(...)"),
        ("FSDP.named_parameters(self=model)", "model.named_parameters(...)"),
        ("FSDP.forward(model, x)", "call the model itself, model(...)"),
        ("FSDP.state_dict(model)", "get_model_state_dict(model, options="),
        ("FSDP.load_state_dict(model, x)", "set_model_state_dict(model, state, options="),
        ("FSDP.apply(model, x)", "call model.apply(...) in fsdp_migrate.runtime.summon_full_params(model)"),
        ("FSDP.check_is_root(model)", "FSDP2 has no such function."),
        ("FSDP._lazy_init(model)", "FSDP2 has no such function."),
        ("FSDP.forward(self, x)", "FSDP2 has no such function."),
        ("take(FSDP.parameters)", "FSDP2 has no such function."),
        ("FSDP.get_state_dict(model, kind)", "have `get_state_dict`: this raises, under FSDP1 too"),
        ("FSDP.get_state_dict(model, kind)", "maybe the function of torch.distributed.checkpoint.state_dict"),
        ("FSDP.gather(model)", "See what is meant."),
    ],
)
def test_a_modules_method_that_is_asked_of_the_class_is_the_models(call: str, said: str) -> None:
    found = [use.becomes for use in scan_source(f"{IMPORTS}{call}\n") if use.code == "FM303"]
    assert len(found) == 1
    assert said in found[0]


@pytest.mark.parametrize("name", ["state_dict_type", "set_state_dict_type"])
def test_a_function_that_decides_on_states_is_told_as_their_contexts_are(name: str) -> None:
    """FM303 speaks of wrapping: what takes the place of a type of states is FM307's."""
    for body in (f"kind = FSDP.{name}\n", f"take(FSDP.{name})\n"):
        found = [use for use in uses(body) if use.action == "commented"]
        assert [use.code for use in found] == ["FM307"]
        assert "`fsdp-migrate explain FM307` says what takes its place" in found[0].becomes


def test_what_modules_and_the_class_have_is_what_torch_says() -> None:
    # transformers puts methods of its own into torch's class.
    own = (
        name
        for name in dir(nn.Module)
        if getattr(getattr(nn.Module, name), "__module__", "") == "torch.nn.modules.module"
    )
    of_modules = {name for name in own if callable(getattr(nn.Module, name)) and name[0].islower()}
    assert of_modules - {"call_super_init"} == catalog.MODULE_METHODS
    of_class = {name for name in dir(FullyShardedDataParallel) if name[0] != "_"} - set(dir(nn.Module))
    assert of_class == leftovers._CLASS_OWN | leftovers._IN_RUNTIME
    assert all(hasattr(state_dict, name) for name in leftovers._FUNCTIONS)
