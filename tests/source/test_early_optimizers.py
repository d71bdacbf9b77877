"""Optimizers that were made before FSDP1 made parameters flat: they trained nothing, and train now."""

from __future__ import annotations

import pytest

from fsdp_migrate.source.early_optimizers import TRAINS_NOW
from tests.source.samples import turned, uses


pytestmark = pytest.mark.any_torch

ADAM = "optimizer = torch.optim.AdamW(net.parameters())\n"
PARTIAL = "shard = functools.partial(FSDP, {})\n"


def said(body: str) -> int:
    """Return how often it is said; and that the optimizer is handed over all the same."""
    assert "optimizers=optimizer" in turned(body)
    return sum(use.becomes == TRAINS_NOW for use in uses(body) if use.code == "FM453")


@pytest.mark.parametrize(
    ("arguments", "is_said"),
    [
        ("net", True),
        ("net, device_id=0", True),
        ("net, use_orig_params=False", True),
        ("net, use_orig_params=True", False),
        ("net, use_orig_params=keep", False),
        ("net, **kwargs", False),
        ("net, **{'device_id': 0}", True),
        ("net, **{'use_orig_params': keep}", False),
        ("net, **{'ignored_states': held}", False),
        ("net, ignored_modules=[net.head]", False),  # the head it trained
    ],
)
def test_an_early_optimizer_without_original_parameters_is_said(arguments: str, *, is_said: bool) -> None:
    assert said(f"{ADAM}net = FSDP({arguments})\n") == int(is_said)


@pytest.mark.parametrize(
    ("after", "is_said"),
    [
        ("optimizer.step()\n", True),
        ("for g in optimizer.param_groups:\n    g['lr'] = 1\n", True),
        ("optimizer.param_groups[0]['lr'] = 1\n", True),
        ("def other():\n    optimizer = None\n", True),
        (ADAM, False),
        ("if again:\n    optimizer, rate = make(net)\n", False),
        ("optimizer.add_param_group({'params': net.parameters()})\n", False),
        ("optimizer.param_groups[0]['params'] = list(net.parameters())\n", False),
        ("optimizer.param_groups[0]['params'].extend(net.parameters())\n", False),
        ("optimizer.param_groups.append(group)\n", False),
        ("for g in optimizer.param_groups:\n    g['params'] = list(net.parameters())\n", False),
        ("# optimizer.add_param_group({'params': net.parameters()})\n", True),
        ("print('optimizer.param_groups = x')\n", True),
    ],
)
def test_one_that_is_made_or_filled_again_trained(after: str, *, is_said: bool) -> None:
    assert said(f"{ADAM}net = FSDP(net)\n{after}") == int(is_said)


@pytest.mark.parametrize(("after", "is_said"), [("pass", True), ("self.optimizer = make(net)", False)])
def test_one_of_an_object_may_step_in_any_method(after: str, *, is_said: bool) -> None:
    made = ADAM.replace("optimizer =", "self.optimizer =")
    code = (
        f"class Run:\n    def make(self, net):\n        {made}        net = FSDP(net)\n        return net\n\n"
    )
    code += f"    def more(self, net):\n        {after}\n"
    found = sum(use.becomes == TRAINS_NOW for use in uses(code) if use.code == "FM453")
    assert found == int(is_said)


@pytest.mark.parametrize(("after", "is_said"), [("return net", False), ("return net, optimizer", True)])
def test_one_that_never_steps_is_not_said_to_train(after: str, *, is_said: bool) -> None:
    assert said(f"def make(net):\n    {ADAM}    net = FSDP(net)\n    {after}\n") == int(is_said)


@pytest.mark.parametrize(("arguments", "is_said"), [("device_id=0", True), ("use_orig_params=True", False)])
def test_a_partial_of_the_class_is_asked_for_its_arguments(arguments: str, *, is_said: bool) -> None:
    assert said(f"{PARTIAL.format(arguments)}{ADAM}net = shard(net)\n") == int(is_said)


SGD = "torch.optim.SGD({}.parameters(), 0.1)"
NET = SGD.format("net")


@pytest.mark.parametrize(
    ("line", "is_made_first"),
    [
        (f"opt, model = {NET}, FSDP(net)\n", True),
        (f"[opt, model] = [{NET}, FSDP(net)]\n", True),
        (f"(opt, rate), model = ({NET}, 0.1), FSDP(net)\n", True),
        (f"run.opt, run.model = {NET}, FSDP(net)\n", True),
        (f"run({NET}, FSDP(net))\n", True),
        (f"parts = {{'opt': {NET}, 'model': FSDP(net)}}\n", True),
        (f"def make(net):\n    return {NET}, FSDP(net)\n", True),
        (f"make = functools.partial(FSDP, device_id=0)\nopt, model = {NET}, make(net)\n", True),
        # Python makes the model first: what its name gives then is sharded.
        (f"model, opt = FSDP(net), {NET}\n", False),
        (f"opt, model = {SGD.format('other')}, FSDP(net)\n", False),
        (f"opt = {SGD.format('FSDP(net)')}\n", False),
        (f"opt = {NET}; model = FSDP(net)\n", False),  # it is given to the call
    ],
)
def test_an_optimizer_that_the_line_of_the_wrapping_makes_first(line: str, *, is_made_first: bool) -> None:
    found = [use.code for use in uses(line) if use.code in {"FM446", "FM453"}]
    assert found == (["FM446", "FM453"] if is_made_first else ["FM453"] if "; " in line else [])
    keeps = line.replace("FSDP(net)", "FSDP(net, use_orig_params=True)").replace(
        "=0)", "=0, use_orig_params=True)"
    )
    kept = [use.code for use in uses(keeps) if use.code in {"FM446", "FM453"}]
    assert kept == ["FM446"] * is_made_first


@pytest.mark.parametrize(
    "made",
    [
        f"optimizer, rate = {NET}, None\n",
        f"rate, (optimizer, x) = None, ({NET}, 1)\n",
        f"optimizer = {NET} if plain else {ADAM.partition(' = ')[2]}",
    ],
)
def test_one_of_a_tuple_or_of_two_is_handed_over_by_its_name(made: str) -> None:
    assert said(f"{made}net = FSDP(net)\n") == 1


def test_a_list_that_the_line_of_the_wrapping_makes_first_is_kept() -> None:
    line = "kept, model = list(net.parameters()), FSDP(net, use_orig_params=True)\n"
    for used, count in (("clip(kept)\n", 1), ("print(len(kept))\n", 0), ("", 0)):
        assert [use.code for use in uses(line + used)].count("FM446") == count


WRAPS = "net = FSDP(net, use_orig_params=True)\n"
EARLY = "optimizer = torch.optim.AdamW(net.parameters())\n"


@pytest.mark.parametrize(
    ("before", "is_given"),
    [
        (EARLY, True),
        (f"if args.early:\n    {EARLY}else:\n    optimizer = torch.optim.SGD(net.parameters())\n", True),
        (f"optimizer = None\nif args.early:\n    {EARLY}", True),
        (f"if args.early:\n    {EARLY}else:\n    raise ValueError\n", True),
        (f"with lock:\n    {EARLY}", True),
        (f"try:\n    {EARLY}except ValueError:\n    raise\n", True),
        (f"for _ in range(n):\n    {EARLY}", True),  # which runs at least once
        (f"if args.wraps:\n    {EARLY}", True),  # under the same test as the wrapping
        # The name has no value where the branch was not taken.
        (f"if args.early:\n    {EARLY}", False),
        (f"if args.early:\n    {EARLY}elif args.late:\n    optimizer = None\n", False),
    ],
)
def test_what_a_branch_alone_makes_is_not_given(before: str, *, is_given: bool) -> None:
    inner = "".join(f"    {line}\n" for line in before.splitlines())
    code = f"def main(args, net):\n{inner}    if args.wraps:\n        {WRAPS}    train(net, optimizer)\n"
    assert ("optimizers=optimizer" in turned(code)) is is_given


def test_one_of_an_object_has_a_value_where_another_method_sets_it() -> None:
    made = "class Run:\n    def __init__(self):\n        {}\n    def go(self, net):\n"
    made += f"        if x:\n            self.{EARLY}"
    for first, is_given in (("self.optimizer = None", True), ("self.other = None", False)):
        after = turned(f"{made.format(first)}        {WRAPS}        return net, self.optimizer\n")
        assert ("optimizers=self.optimizer" in after) is is_given


def test_an_optimizer_of_a_sharded_model_is_none_from_before_another_stage() -> None:
    stages = "def main(args, net):\n    if args.first:\n        net = FSDP(net)\n    if args.first:\n        "
    code = f"{stages}{EARLY}        train(net, optimizer)\n    if not args.first:\n        net = FSDP(net)\n"
    assert "optimizers=" not in turned(code)
    assert not [use for use in uses(code) if use.code in {"FM446", "FM453"}]
