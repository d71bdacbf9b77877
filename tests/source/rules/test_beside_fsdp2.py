"""Sources that know FSDP2 as well, and what FSDP1's wrapper alone had."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import scan_source
from tests.source.samples import IMPORTS, MARK, turned


pytestmark = pytest.mark.any_torch


BOTH = f"{IMPORTS}from torch.distributed.fsdp import FSDPModule\n\n"
OLD_HOME = f"{IMPORTS}from torch.distributed._composable.fsdp import FSDPModule\n\n"


@pytest.mark.parametrize("header", [BOTH, OLD_HOME])
def test_a_branch_for_fsdp1_is_not_turned_into_one_for_fsdp2(header: str) -> None:
    body = (
        "def inner(m):\n"
        "    if isinstance(m, FSDP):\n"
        "        return unflatten(m)\n"
        "    return isinstance(m, FSDPModule)\n"
    )
    after = turned(body, header)
    assert "isinstance(m, FSDP):" in after
    assert f"    {MARK}FM420" in after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("isinstance(m, (FSDP, FSDPModule))", "isinstance(m, FSDPModule)"),
        ("isinstance(m, (DDP, FSDP, FSDPModule))", "isinstance(m, (DDP, FSDPModule))"),
        ("isinstance(m, (DDP, FSDPModule, FSDP))", "isinstance(m, (DDP, FSDPModule))"),
        ("isinstance(m, FSDP | FSDPModule)", "isinstance(m, FSDPModule)"),
        ("isinstance(m, FSDPModule | FSDP)", "isinstance(m, FSDPModule)"),
        ("isinstance(m, FSDPModule) or isinstance(m, FSDP)", None),
    ],
)
def test_a_check_for_both_classes_goes_on_asking_for_fsdp2s(before: str, after: str | None) -> None:
    assert turned(f"def f(m):\n    return {before}\n", BOTH).endswith(f"    return {after or before}\n")


def test_what_the_wrapper_alone_shows_is_said() -> None:
    found = _found(
        "def f(model: FSDP):\n"
        "    model.mixed_precision = None\n"
        "    return model.world_size, model.weight, net.process_group\n"
    )
    assert found == {("FM317", 3)}


def test_what_fsdp_modules_gives_are_fsdp1_modules() -> None:
    assert ("FM317", 2) in _found("for part in FSDP.fsdp_modules(net):\n    part._handle.reshard(True)\n")
    assert ("FM317", 1) in _found("x = FSDP.fsdp_modules(net)[0]._use_orig_params\n")
    assert ("FM317", 1) in _found("x = [part._handle for part in FSDP.fsdp_modules(net)]\n")


def test_a_sharded_tensor_is_said_where_fsdp1_is_known() -> None:
    use = (
        "from torch.distributed._shard.sharded_tensor import ShardedTensor\n\n\n"
        "def local(item: ShardedTensor):\n"
        "    return item.local_shards() if isinstance(item, ShardedTensor) else item\n"
    )
    assert _found(use) == {("FM421", 5)}
    assert not scan_source(use)


def test_functions_of_the_class_are_known_through_a_subclass() -> None:
    body = (
        "class Wrapper(FSDP):\n"
        "    def optim_state_dict(self):\n"
        "        return {}\n\n\n"
        "def save(model: Wrapper):\n"
        "    with Wrapper.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n"
        "        state = model.state_dict()\n"
        "    return state, Wrapper.optim_state_dict(model)\n"
    )
    after = turned(body)
    assert "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))" in after
    assert "Wrapper.optim_state_dict(model)" in after


def test_clipping_by_a_model_that_another_source_has_made_is_said() -> None:
    body = "from wrapping import fsdp_wrapper\n\nmodel = fsdp_wrapper(net)\nmodel.clip_grad_norm_(1.0)\n"
    assert [(use.code, use.action) for use in scan_source(body) if use.line == 4] == [("FM311", "commented")]


@pytest.mark.parametrize(
    ("code", "action"),
    [
        ("Plugin(sharding_strategy=strategy)", "commented"),
        ("Plugin(fsdp_version=2, reshard_after_forward=True)", "kept"),
        ("functools.partial(Plugin, cpu_offload=True)", "commented"),
        ("hasattr(Plugin, 'from_name')", "kept"),
        ("Plugin.get_module_class_from_name(model, 'Block')", "kept"),
    ],
)
def test_accelerates_plugin_is_told_from_questions_about_it(code: str, action: str) -> None:
    header = "import functools\nfrom accelerate import FullyShardedDataParallelPlugin as Plugin\n\n"
    found = [use.action for use in scan_source(f"{header}x = {code}\n") if use.code == "FM320"]
    assert found == [action]


@pytest.mark.parametrize(("version", "code"), [("2", "FM327"), ("1", "FM428")])
def test_training_arguments_that_ask_for_fsdp2_stay(version: str, code: str) -> None:
    body = f"args = TrainingArguments('out', fsdp='full_shard', fsdp_config={{'version': {version}}})\n"
    found = [(use.code, use.action) for use in scan_source(body) if use.code in {"FM327", "FM428"}]
    assert found == [(code, "kept" if version == "2" else "rewritten")]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("Fabric(strategy=FSDPStrategy())", "parallelize_fn"),
        ("isinstance(fabric.strategy, FSDPStrategy)", "ask for ModelParallelStrategy"),
        ("Fabric(strategy='fsdp')", "parallelize_fn"),
    ],
)
def test_fabric_is_told_of_its_own_way(code: str, said: str) -> None:
    header = "from lightning.fabric import Fabric\nfrom lightning.fabric.strategies import FSDPStrategy\n\n"
    assert any(said in use.becomes for use in scan_source(f"{header}x = {code}\n") if use.code == "FM319")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("type(m) == FSDP", "isinstance(m, FSDPModule)"),
        ("x and type(m) is not FSDP", "x and not isinstance(m, FSDPModule)"),
        ("(type(m) != FSDP)", "(not isinstance(m, FSDPModule))"),
    ],
)
def test_a_type_that_is_the_class_is_asked_for_by_isinstance(before: str, after: str) -> None:
    assert turned(f"def f(m, x):\n    return {before}\n") == f"def f(m, x):\n    return {after}\n"


def test_what_the_other_branch_imports_by_the_same_name_is_left_alone() -> None:
    body = (
        "def wrap(self, model, xla):\n"
        "    if not xla:\n"
        "        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "        model, self.optimizer = initialize(model, self.optimizer)\n"
        "        return FSDP(model)\n"
        "    else:\n"
        "        from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP\n"
        "        return FSDP(model, xla)\n"
    )
    after = turned(body, header="")
    assert "        return prepare_fully_shard(model)\n" in after
    assert "        return FSDP(model, xla)\n" in after


def test_what_one_of_two_imports_without_branches_brings_is_not_guessed() -> None:
    body = (
        "from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP\n"
        "if on_gpu:\n"
        "    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "model = FSDP(model)\n"
    )
    assert [use.action for use in scan_source(body) if use.rule == "constructor"] == ["commented"]


def test_functions_of_the_class_are_known_where_a_model_is_asked_for_them() -> None:
    body = (
        "model = FSDP(net)\n"
        "with model.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n"
        "    weights = model.state_dict()\n"
        "moments = model.full_optim_state_dict(model, optim)\n"
    )
    assert turned(body) == (
        "model = prepare_fully_shard(net)\n"
        "weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))\n"
        "moments = full_optimizer_state_dict(model, optim)\n"
    )


def test_the_context_of_a_model_that_is_not_known_is_not_silent() -> None:
    body = "def save(m):\n    with m.state_dict_type(m, StateDictType.LOCAL_STATE_DICT):\n        pass\n"
    assert _found(body) == {("FM307", 2)}


def test_names_of_torch_1_11_are_those_of_today() -> None:
    header = f"{IMPORTS}from torch.distributed.fsdp.wrap import default_auto_wrap_policy\n\n"
    after = turned("model = FSDP(net, fsdp_auto_wrap_policy=default_auto_wrap_policy)\n", header)
    assert 'prepare_fully_shard(net, {"auto_wrap_policy": size_based_auto_wrap_policy})' in after
    assert "default_auto_wrap_policy" not in after.replace('"auto_wrap_policy"', "")


def _found(body: str) -> set[tuple[str, int]]:
    """Return the codes and lines, counted from the body's first, of what gets a comment."""
    start = IMPORTS.count("\n")
    uses = scan_source(IMPORTS + body)
    return {(use.code, use.line - start) for use in uses if use.action == "commented"}
