"""Values of the right kind that mean nothing: a clear error that names the argument, with nothing done."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.distributed import HashStore
from torch.distributed.fsdp.wrap import CustomPolicy

import fsdp_migrate
from fsdp_migrate import FSDP2Config, runtime
from fsdp_migrate.checkpoint_convert import (
    CheckpointReader,
    ModelOutline,
    OutputOptions,
    Ranks,
    check_checkpoint,
)
from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.source import scan_paths
from tests.test_arguments import SOURCE, convert, load, plan


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.any_torch

NUMBER: Any = 3
WORD: Any = "x"
NOTHING: Any = None
LAYER: Any = nn.Linear(2, 2)
LAYERS: Any = nn.Linear
HUGE = 10**400
ENDLESS = 10**5000  # Python refuses to write it down


def answering(answer: Any) -> Callable[..., Any]:
    """Make an auto-wrap policy that always answers this."""

    def policy(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> Any:
        return answer

    return policy


def with_file(name: Any) -> object:
    """Put a file beside the weights under this name."""
    return OutputOptions(model_files={name: b"{}"})


def config(**arguments: Any) -> object:
    """Plan with these FSDP1 arguments."""
    return plan(fsdp1_config=arguments)


CASES: dict[str, tuple[Callable[[], object], str]] = {
    "a number for a field": (
        lambda: config(mixed_precision={1: "bfloat16"}),
        "`mixed_precision` has the key 1; expected names, as texts",
    ),
    "one odd field": (
        lambda: config(mixed_precision={"param_dtype": "bfloat16", None: 3}),
        "`mixed_precision` has the key None",
    ),
    "a tuple for a field": (lambda: config(cpu_offload={("a",): True}), "`cpu_offload` has the key"),
    "an FSDP2 config": (lambda: FSDP2Config(mp_policy={1: 2}), "`mp_policy` has the key 1"),
    "a negative device": (lambda: config(device_id=-5), "`device_id` is -5.*from 0 to 127"),
    "an endless device": (lambda: config(device_id=ENDLESS), "`device_id` is a whole number of more than 63"),
    "no ranks": (lambda: plan(world_size=0), "`world_size` is 0; expected a whole number of at least 1"),
    "negative ranks": (lambda: plan(world_size=-3), "`world_size` is -3"),
    "no devices": (lambda: plan(devices_per_node=0), "`devices_per_node` is 0"),
    "an answer that is neither": (
        lambda: config(auto_wrap_policy=answering(torch.ones(2))),
        "answered a Tensor for a Sequential, which is neither true nor false",
    ),
    "an odd answer of a CustomPolicy": (
        lambda: config(auto_wrap_policy=CustomPolicy(lambda _: 3.5)),  # type: ignore[arg-type, return-value]
        "`auto_wrap_policy` cannot be evaluated: .*returned 3.5",
    ),
    "an odd argument of a CustomPolicy": (
        lambda: config(auto_wrap_policy=CustomPolicy(lambda _: {1: 2})),  # type: ignore[dict-item]
        "gives a Sequential the argument 1",
    ),
    "a class in extra": (
        lambda: load(extra={"scheduler": torch.optim.lr_scheduler.LambdaLR}),
        r"`extra\['scheduler'\]` is the class LambdaLR; expected an object",
    ),
    "a number in extra": (lambda: load(extra={3: {}}), "`extra` has the name 3, which is 3"),
    "400 digits of ranks": (lambda: convert(world_size=HUGE), "`world_size` is a whole number of more"),
    "5000 digits of ranks": (lambda: convert(world_size=ENDLESS), "`world_size` is a whole number of more"),
    "too many ranks": (lambda: convert(world_size=2**40), "1099511627776; expected a whole number from 1 to"),
    "negative ranks of a conversion": (lambda: convert(world_size=-1), "`world_size` is -1"),
    "a negative buffer": (lambda: convert(buffer_bytes=-1), "`buffer_bytes` is -1"),
    "a number for ranks": (lambda: convert(ranks=3), "`ranks` is 3; expected a Ranks"),
    "a rank beyond": (lambda: Ranks(HashStore(), 2, 2), "`rank` is 2; expected a whole number from 0 to 1"),
    "a text for a rank": (lambda: Ranks(HashStore(), "0", 2), "`rank` is a str"),  # type: ignore[arg-type]
    "no ranks at all": (lambda: Ranks(HashStore(), 0, 0), "`world_size` is 0"),
    "a file above": (lambda: with_file("../x"), "`model_files` names '../x', which is no name of a file"),
    "a file elsewhere": (lambda: with_file("/tmp/x"), "`model_files` names '/tmp/x'"),
    "a file without a name": (lambda: with_file(""), "`model_files` names ''"),
    "a NUL in a file": (lambda: with_file("a\0b"), "`model_files` names"),
    "a lone surrogate in a file": (lambda: with_file("a\ud800"), "`model_files` names"),
    "a file of weights": (lambda: with_file("model.safetensors"), "where the conversion writes the weights"),
    "a number to check": (lambda: check_checkpoint(3), "`src` is 3"),  # type: ignore[arg-type]
    "a path to scan alone": (lambda: scan_paths("tests"), "`paths` is a str; expected several things"),
    "a number to scan": (lambda: scan_paths([3]), "`paths` is 3; expected a path"),  # type: ignore[list-item]
    "a number to read": (lambda: CheckpointReader(3), "`path` is 3"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", CASES)
def test_a_value_that_means_nothing_is_a_clear_error(name: str) -> None:
    call, message = CASES[name]
    with pytest.raises(FSDPMigrateError) as refusal:
        call()
    assert re.search(message, str(refusal.value), re.DOTALL), str(refusal.value)


PATHS = {"a NUL": "a\0b", "a lone surrogate": "a\ud800b", "too long": "a" * 5000}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_a_path_that_cannot_be_is_a_clear_error(path: str, tmp_path: Path) -> None:
    for call in (
        fsdp_migrate.inspect_checkpoint,
        fsdp_migrate.convert_config_file,
        check_checkpoint,
        lambda it: fsdp_migrate.verify_checkpoints(SOURCE, it),
        lambda it: scan_paths([it]),
        lambda it: load(path=it),
        lambda it: convert(dst=f"{tmp_path}/{it}"),
    ):
        with pytest.raises(FSDPMigrateError):
            call(path)
    assert not list(tmp_path.iterdir())


def test_a_policys_own_error_stays_its_own() -> None:
    nothing: dict[str, bool] = {}
    for policy in (lambda **asked: nothing["mine"], CustomPolicy(lambda _: nothing["mine"])):
        with pytest.raises(KeyError, match="mine"):
            config(auto_wrap_policy=policy)


class Unborn(nn.Module):
    """A module that forgot ``super().__init__()``."""

    def __init__(self) -> None:
        pass


RUNTIME: dict[str, tuple[Callable[[], object], str]] = {
    "a text to clip at": (
        lambda: runtime.clip_grad_norm_(LAYER, WORD),
        "`max_norm` is a str; expected a number",
    ),
    "a number to clip": (lambda: runtime.clip_grad_norm_(NUMBER, 1.0), "`model_or_parameters` is 3"),
    "numbers to clip": (
        lambda: runtime.clip_grad_norm_([NUMBER], 1.0),
        "`model_or_parameters` is 3; expected a Tensor",
    ),
    "a text for a dtype": (
        lambda: runtime.clone_parameters(LAYER, dtype=WORD),
        "`dtype` is a str; expected a dty",
    ),
    "a text for a decay": (
        lambda: runtime.ema_update({}, LAYER, WORD),
        "`decay` is a str; expected a number",
    ),
    "a number for weights": (
        lambda: runtime.ema_update(NUMBER, LAYER, 0.9),
        "`weights` is 3; expected a mapping",
    ),
    "numbers for weights": (
        lambda: runtime.ema_update({"weight": NUMBER}, LAYER, 0.9),
        "`weight` is 3. Take them from",
    ),
    "no optimizer": (
        lambda: runtime.full_optimizer_state_dict(LAYER, NOTHING),
        "`optimizer` is None; expected",
    ),
    "a text for a flag": (lambda: runtime.full_state_dict(LAYER, rank0_only=WORD), "`rank0_only` is a str"),
    "a number for a model": (
        lambda: runtime.sharded_state_dict(NUMBER),
        "The model is 3; expected a torch.nn.Mod",
    ),
    "a class for a model": (lambda: runtime.full_state_dict(LAYERS), "The model is the class Linear"),
    "a scale of nothing": (
        lambda: scaler(init_scale=0),
        "`init_scale` is 0; expected a number above 0, and finite",
    ),
    "a text for a scale": (lambda: scaler(init_scale="x"), "`init_scale` is a str; expected a number"),
    "shrinking growth": (lambda: scaler(growth_factor=0.5), "`growth_factor` is 0.5"),
    "never growing": (lambda: scaler(growth_interval=-1), "`growth_interval` is -1"),
    "a number for a state": (
        lambda: optimizer_state(3),
        "another structure than `full_optimizer_state_dict`",
    ),
    "numbers in a state": (
        lambda: optimizer_state({"state": 3, "param_groups": [4]}),
        "another structure than `full_optimizer_state_dict`",
    ),
    "an answer that is neither": (
        lambda: fsdp_migrate.apply_activation_checkpointing(nn.Sequential(LAYER), lambda _: torch.ones(2)),
        "answered a Tensor for a Linear, which is neither true nor false",
    ),
    "loading into an unborn model": (lambda: load(model=Unborn()), "has no `_parameters`.*super"),
    "loading into a lazy model": (lambda: load(model=nn.LazyLinear(2)), "`weight` of a LazyLinear is lazy"),
    "a text for weights only": (lambda: planned(weights_only="x"), "`weights_only` is a str"),
    "a number for options": (
        lambda: fsdp_migrate.verify_checkpoints(SOURCE, SOURCE, options=NUMBER),
        "`options` is 3; expected a SourceOptions",
    ),
    "a number for an outline": (lambda: ModelOutline(NUMBER), "`parameters` is 3; expected a mapping"),
    "a number for a name": (lambda: ModelOutline({NUMBER: (1,)}), "`parameters` is 3; expected a str"),
}


def scaler(**given: Any) -> object:
    """Make a scaler that scales nothing."""
    return runtime.grad_scaler("cpu", enabled=False, **given)


def optimizer_state(state: Any) -> object:
    """Load a state into an optimizer of a layer."""
    return runtime.optim_state_dict_to_load(LAYER, torch.optim.SGD(LAYER.parameters(), lr=0.1), state)


def planned(**given: Any) -> object:
    """Plan a conversion."""
    return fsdp_migrate.plan_conversion(fsdp_migrate.inspect_checkpoint(SOURCE), **given)


@pytest.mark.parametrize("name", RUNTIME)
def test_what_runtime_and_loading_cannot_take_is_a_clear_error(name: str) -> None:
    call, message = RUNTIME[name]
    with pytest.raises(FSDPMigrateError) as refusal:
        call()
    assert re.search(message, str(refusal.value), re.DOTALL), str(refusal.value)
