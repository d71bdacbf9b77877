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
from fsdp_migrate import FSDP2Config
from fsdp_migrate.checkpoint_convert import CheckpointReader, OutputOptions, Ranks, check_checkpoint
from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.source import scan_paths
from tests.test_arguments import SOURCE, convert, load, plan


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.any_torch

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
