"""Which layers are chosen, by what words, and which words mean nothing."""

from __future__ import annotations

import copy
import inspect
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
    offload_wrapper,
)
from torch.distributed.fsdp.wrap import (
    ModuleWrapPolicy,
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)

from fsdp_migrate import plan_fully_shard
from fsdp_migrate.activation_checkpointing import (
    CheckpointOptions,
    apply_activation_checkpointing,
    plan_activation_checkpointing,
)
from fsdp_migrate.errors import ConfigError, FSDPMigrateError, ModelError, WrapPolicyError
from tests.models import Block, Head, Net, batch, loss_of


BLOCKS = ("blocks.0", "blocks.1")


def is_block(module: nn.Module) -> bool:
    return isinstance(module, Block)


CHOICES: list[tuple[Any, tuple[str, ...]]] = [
    (Block, BLOCKS),
    ("Block", BLOCKS),
    ("tests.models.Block", BLOCKS),
    ("Block, Head", (*BLOCKS, "head")),
    ([Block, "Head"], (*BLOCKS, "head")),
    ({Block}, BLOCKS),
    (is_block, BLOCKS),
    (lambda module: isinstance(module, nn.LayerNorm), ("blocks.0.norm", "blocks.1.norm", "head.norm")),
    (ModuleWrapPolicy({Block}), BLOCKS),
    (partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}), BLOCKS),
    (partial(lambda_auto_wrap_policy, lambda_fn=is_block), BLOCKS),
    (partial(size_based_auto_wrap_policy, min_num_params=200), BLOCKS),
    ({"which": Block}, BLOCKS),
    ({"check_fn": is_block}, BLOCKS),
    ({"auto_wrap_policy": {"transformer_layer_cls": ["Block"]}}, BLOCKS),
    ({"auto_wrap_policy": ModuleWrapPolicy({Block})}, BLOCKS),
]


@pytest.mark.parametrize(("which", "layers"), CHOICES, ids=range(len(CHOICES)))
def test_layers_are_chosen_by_classes_names_functions_and_policies(
    which: Any, layers: tuple[str, ...]
) -> None:
    model = Net()
    assert sorted(apply_activation_checkpointing(model, which)) == sorted(layers)
    assert sorted(n for n, m in model.named_modules() if "forward" in vars(m)) == sorted(layers)


def test_true_means_the_units_of_the_auto_wrap_policy() -> None:
    assert plan_activation_checkpointing(Net(), True, auto_wrap_policy="Block").layers == BLOCKS


def test_a_plan_says_what_is_recomputed_and_changes_nothing() -> None:
    model = Net()
    for asked, layers in ((True, BLOCKS), ({"which": "Head", "reentrant": True}, ("head",)), (False, ())):
        given = {"auto_wrap_policy": "Block"}
        plan = plan_fully_shard(model, given, world_size=2, activation_checkpointing=asked)
        assert plan.as_dict()["activation_checkpointing"] == list(layers)
        assert (plan.checkpointing is None) == (asked is False)
    assert not any("forward" in vars(module) for module in model.modules())
    with pytest.raises(WrapPolicyError, match="No module of class `Nothing`"):
        plan_fully_shard(model, {}, world_size=2, activation_checkpointing="Nothing")


OPTIONS: list[tuple[dict[str, Any], CheckpointOptions]] = [
    ({}, CheckpointOptions()),
    ({"reentrant": True, "preserve_rng_state": False}, CheckpointOptions(True, preserve_rng_state=False)),
    ({"checkpoint_impl": "reentrant"}, CheckpointOptions(reentrant=True)),
    ({"checkpoint_impl": CheckpointImpl.NO_REENTRANT}, CheckpointOptions()),
    ({"checkpoint_wrapper_fn": checkpoint_wrapper}, CheckpointOptions()),
    (
        {"checkpoint_wrapper_fn": partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.REENTRANT)},
        CheckpointOptions(reentrant=True),
    ),
    (
        {"checkpoint_wrapper_fn": partial(checkpoint_wrapper, preserve_rng_state=False)},
        CheckpointOptions(preserve_rng_state=False),
    ),
    (
        {"checkpoint_wrapper_fn": offload_wrapper},
        CheckpointOptions(recompute=False, offload_to_cpu=True),
    ),
]


@pytest.mark.parametrize(("given", "options"), OPTIONS, ids=range(len(OPTIONS)))
def test_the_options_that_fsdp1_scripts_have_are_understood(
    given: dict[str, Any], options: CheckpointOptions
) -> None:
    assert plan_activation_checkpointing(Net(), {"which": Block, **given}).options == options


class Embedding(nn.Module):
    """A class of the same name as one of torch's, that no model has."""


WRONG: list[tuple[Any, dict[str, Any], type[FSDPMigrateError], str]] = [
    ("Blok", {}, WrapPolicyError, "No module of class `Blok`.*Did you mean `Block`"),
    (nn.Conv2d, {}, WrapPolicyError, "No module of class `.*conv.Conv2d`.*Block, Embedding, Head"),
    ([Block, nn.Conv2d], {}, WrapPolicyError, "No module of class `.*conv.Conv2d` is in the model"),
    ([Block, "Hed"], {}, WrapPolicyError, "No module of class `Hed`.*Did you mean `Head`"),
    (
        Embedding,
        {},
        WrapPolicyError,
        "class `.*checkpointing.Embedding`.*Did you mean `Embedding`",
    ),
    (nn.Linear, {"model": nn.Linear(1, 1)}, WrapPolicyError, "below the root"),
    (lambda module: False, {}, WrapPolicyError, "nothing would be checkpointed"),
    ([], {}, WrapPolicyError, "nothing would be checkpointed"),
    (partial(size_based_auto_wrap_policy, min_num_params=10**6), {}, WrapPolicyError, "nothing would be"),
    (nn.ModuleList, {}, ModelError, "`blocks` is a ModuleList, which has no `forward`.*Choose the layers"),
    (3, {}, ConfigError, "is 3; expected classes"),
    (None, {}, ConfigError, "is None; expected"),
    ([3], {}, ConfigError, "holds 3; expected classes or their names"),
    (True, {}, ConfigError, "`auto_wrap_policy`, and there is none"),
    (Block, {"recompute": False}, ConfigError, "without `offload_to_cpu=True` would do nothing"),
    (Block, {"reentrant": True, "context_fn": print}, ConfigError, "`context_fn`.*needs `reentrant=False`"),
    ({"which": Block, "reentrnt": True}, {}, ConfigError, "no option `reentrnt`. Did you mean `reentrant`"),
    ({"which": Block, "check_fn": is_block}, {}, ConfigError, "has `which`, `check_fn`"),
    ({"reentrant": True}, {}, ConfigError, "has none of them"),
    ({"which": Block, "checkpoint_impl": "other"}, {}, ConfigError, "expected `reentrant` or `no_reentrant`"),
    ({"which": Block, "checkpoint_wrapper_fn": print}, {}, ConfigError, "expected torch's `checkpoint_wr"),
]


@pytest.mark.parametrize(("which", "more", "error", "message"), WRONG, ids=range(len(WRONG)))
def test_what_cannot_be_meant_is_an_error_before_anything_is_changed(
    which: Any, more: dict[str, Any], error: type[FSDPMigrateError], message: str
) -> None:
    options = dict(more)
    model = options.pop("model", None) or Net()
    with pytest.raises(error, match=message):
        apply_activation_checkpointing(model, which, **options)
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize(
    "how", ["layer in place", "layer wrapped", "the whole in place", "the whole wrapped"]
)
def test_after_compiling_is_too_late(how: str) -> None:
    model: Any = Net()
    if how == "layer in place":
        model.blocks[0].compile(backend="eager")
    elif how == "layer wrapped":
        model.blocks[0] = torch.compile(model.blocks[0], backend="eager")
    elif how == "the whole in place":
        model.compile(backend="eager")
    else:
        model = torch.compile(model, backend="eager")
    with pytest.raises(ModelError, match=r"compiled already\. The order is: .*checkpointing, torch.compile"):
        apply_activation_checkpointing(model, Block)
    assert not any(isinstance(m, Block) and "forward" in vars(m) for m in model.modules())


def test_a_compiled_part_of_a_layer_is_no_obstacle() -> None:
    model: Any = Net()
    model.blocks[0].up.compile(backend="eager")
    assert apply_activation_checkpointing(model, Block) == BLOCKS


def test_what_is_checkpointed_already_stays_as_it_is() -> None:
    model: Any = Net()
    assert apply_activation_checkpointing(model, lambda module: module is model.blocks[0]) == BLOCKS[:1]
    first = model.blocks[0].forward
    assert apply_activation_checkpointing(model, Block, reentrant=True) == BLOCKS[1:]
    assert model.blocks[0].forward is first
    assert apply_activation_checkpointing(model, Block) == ()


def test_a_layer_with_a_flag_of_its_own_checkpoints_itself() -> None:
    model: Any = Net()
    model.blocks[0].gradient_checkpointing = True
    model.blocks[1].gradient_checkpointing = False
    assert apply_activation_checkpointing(model, Block) == BLOCKS[1:]


def test_a_module_that_is_registered_twice_is_checkpointed_once() -> None:
    model: Any = Net()
    model.blocks[1] = model.blocks[0]
    assert apply_activation_checkpointing(model, Block) == BLOCKS[:1]


class WithKeywords(nn.Module):
    """A layer that takes keywords, as attention masks are given."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.calls = 0

    def forward(self, x: torch.Tensor, *, factor: torch.Tensor, flag: bool = False) -> torch.Tensor:
        self.calls += 1
        out: torch.Tensor = torch.sigmoid(self.linear(x)) * factor
        return -out if flag else out


@pytest.mark.parametrize("reentrant", [False, True])
def test_keywords_reach_the_layer_and_get_gradients(reentrant: bool) -> None:
    torch.manual_seed(0)
    outer = nn.Sequential(WithKeywords())
    results = []
    for checkpointed in (False, True):
        if checkpointed:
            apply_activation_checkpointing(outer, WithKeywords, reentrant=reentrant)
        x, factor = (torch.linspace(-1, 1, 3).requires_grad_() for _ in range(2))
        torch.autograd.backward(outer[0](x, factor=factor, flag=True).sum())
        results.append([tensor.grad for tensor in (x, factor, *outer.parameters())])
        outer.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True) if a is not None and b is not None)
    assert len([grad for grad in results[1] if grad is not None]) == 4


def test_without_autograd_nothing_is_saved_and_the_signature_is_the_layers_own() -> None:
    layer = WithKeywords()
    outer = nn.Sequential(layer)
    apply_activation_checkpointing(outer, WithKeywords)
    with torch.no_grad():
        assert not layer(torch.ones(3), factor=torch.ones(3)).requires_grad
    assert layer.calls == 1
    assert list(inspect.signature(layer.forward).parameters) == ["x", "factor", "flag"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_runs_its_own_layers(copied: Any) -> None:
    outer: Any = nn.Sequential(WithKeywords())
    apply_activation_checkpointing(outer, WithKeywords)
    twin = copied(outer)
    torch.autograd.backward(twin[0](torch.ones(3), factor=torch.ones(3)).sum())
    assert twin[0].calls == 2
    assert outer[0].calls == 0
    assert outer[0].linear.weight.grad is None


def test_a_forward_that_the_instance_has_of_its_own_is_kept() -> None:
    model: Any = Net()
    own = model.blocks[0].forward
    model.blocks[0].forward = lambda x: own(x) * 0
    apply_activation_checkpointing(model, Block)
    assert torch.equal(model.blocks[0](torch.ones(2, 6)), torch.zeros(2, 6))


def test_parameters_are_not_put_on_the_cpu_with_the_activations() -> None:
    outer: Any = nn.Sequential(nn.Linear(3, 3, bias=False))
    apply_activation_checkpointing(outer, nn.Linear, offload_to_cpu=True, recompute=False)
    x = torch.ones(1, 3, requires_grad=True)
    out = outer(x)
    with torch.no_grad():
        outer[0].weight.zero_()  # a copy would still give the old weight's gradient
    torch.autograd.backward(out.sum())
    assert x.grad is not None
    assert torch.equal(x.grad, torch.zeros(1, 3))


def test_selective_checkpointing_saves_what_the_contexts_say() -> None:
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    seen: list[str] = []

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        seen.append(str(operator))
        return CheckpointPolicy.MUST_SAVE

    model = Net()
    contexts = partial(create_selective_checkpoint_contexts, policy)
    apply_activation_checkpointing(model, Block, context_fn=contexts)
    torch.autograd.backward(loss_of(model, batch(0, 0)))
    assert any("addmm" in operator or "mm" in operator for operator in seen)


def test_head_and_blocks_together_train_as_before() -> None:
    torch.manual_seed(0)
    plain = Net()
    model = copy.deepcopy(plain)
    apply_activation_checkpointing(model, [Block, Head])
    for net in (plain, model):
        torch.autograd.backward(loss_of(net, batch(0, 0)))
    for expected, found in zip(plain.parameters(), model.parameters(), strict=True):
        assert expected.grad is not None
        assert found.grad is not None
        assert torch.equal(found.grad, expected.grad)
