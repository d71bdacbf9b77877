"""Faults of the environment, the model and arguments: seen where they are, and not where they are not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from fsdp_migrate.doctor import KnownFault, Sight
from fsdp_migrate.doctor.model_faults import MODEL_FAULTS
from fsdp_migrate.errors import UnsupportedFeatureError
from fsdp_migrate.findings import make_finding
from fsdp_migrate.torch_compat import fsdp2
from tests.doctor.sights import LOW, TIED, assert_seen, of_config, of_model, seeing
from tests.models import ConvNet, Net


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


class Params4bit(nn.Parameter):
    """Bears the name of bitsandbytes' class."""


class Odd(nn.Module):
    """Has what breaks: a scalar, two dtypes, packed weights, a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.low = nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
        self.packed = Params4bit(torch.zeros(4))
        self.register_buffer("frequencies", torch.ones(2), persistent=False)


def of_ignored() -> Sight:
    """See a plan that leaves a parameter alone, or where torch cannot, one with its finding."""
    if fsdp2.HAS_IGNORED_PARAMS:
        return of_model(Net(), ignored_states=["head.out.bias"])
    with pytest.raises(UnsupportedFeatureError, match=r"`ignored_states` needs torch 2\.7"):
        of_model(Net(), ignored_states=["head.out.bias"])
    assert PLAIN.plan is not None
    findings = (*PLAIN.plan.findings, make_finding("FM106", "ignored_states", "left alone"))
    return replace(PLAIN, plan=replace(PLAIN.plan, findings=findings))


PLAIN = of_model(Net(), auto_wrap_policy={nn.Embedding, nn.Linear})


ODD = seeing(model=Odd())

CASES: dict[str, tuple[Sight, Sight]] = {
    "gloo-averages": (
        Sight(versions={"torch": "2.7.0"}),
        Sight(versions={"torch": "2.7.0"}, has_accelerator=True),
    ),
    "metadata-of-2.15": (Sight(versions={"torch": "2.15.0"}), Sight(versions={"torch": "2.14.1"})),
    "offload-without-gloo": (of_config(cpu_offload=True), of_config()),
    "pinned-offload-without-accelerator": (
        of_config(cpu_offload=True),
        replace(of_config(cpu_offload=True), has_accelerator=True),
    ),
    "full-precision-in-evaluation": (
        replace(of_config(**LOW), environ={"FSDP_USE_FULL_PREC_IN_EVAL": "1"}),
        of_config(**LOW),
    ),
    "shards-without-rows": (of_model(Net(), 8), of_model(nn.Linear(8, 8), 8)),
    "shards-without-rows-in-transformer-engine": (
        of_model(Net(), 8),
        replace(of_model(Net(), 8), versions={"torch": "2.13"}),
    ),
    "ties-across-units": (TIED, PLAIN),
    "uneven-ties": (
        replace(TIED, versions={"torch": "2.12.0"}),
        replace(TIED, versions={"torch": "2.13.0"}),
    ),
    "ties-torn-on-meta": (TIED, PLAIN),
    "unsaved-buffers-on-meta": (ODD, PLAIN),
    "scalar-parameters": (ODD, PLAIN),
    "mixed-dtypes-in-a-unit": (ODD, PLAIN),
    "containers-are-no-units": (of_model(Net(), auto_wrap_policy={nn.ModuleList, nn.Embedding}), PLAIN),
    "batch-norm-of-one-rank": (seeing(model=ConvNet()), seeing(model=nn.SyncBatchNorm(2))),
    "recurrent-layers-on-cuda": (seeing(model=nn.LSTM(2, 2)), PLAIN),
    "packed-4-bit-weights": (ODD, PLAIN),
    "clipping-plain-among-sharded": (of_ignored(), PLAIN),
}


@pytest.mark.parametrize("fault", MODEL_FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_seen_where_it_is_and_nowhere_else(fault: KnownFault) -> None:
    assert_seen(fault, *CASES[fault.name])


class Adapted(nn.Module):
    """Has a frozen weight first, and two trained ones of two dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4).to(torch.float16).requires_grad_(False)
        self.head = nn.Linear(4, 4, bias=False).to(torch.bfloat16)
        self.lora = nn.Linear(4, 4, bias=False)


def test_dtypes_that_meet_in_a_unit_are_those_of_what_is_trained() -> None:
    fault = next(each for each in MODEL_FAULTS if each.name == "mixed-dtypes-in-a-unit")
    model = Adapted()
    assert (
        fault.sees(seeing(model=model)) == "bfloat16 (`head.weight`) and float32 (`lora.weight`) in one unit"
    )
    model.head.requires_grad_(False)
    assert not fault.sees(seeing(model=model))


@pytest.mark.parametrize(
    ("framework", "version", "given", "is_seen"),
    [
        ("accelerate", "1.14.0", LOW, False),
        ("hf", "1.15.0", LOW, False),
        ("accelerate", "1.13.0", LOW, True),
        ("accelerate", "1.15.0", {}, True),
        ("", "1.15.0", LOW, True),
        ("lightning", "1.15.0", LOW, True),
    ],
)
def test_accelerate_makes_what_is_trained_one_dtype(
    framework: str, version: str, given: dict[str, Any], *, is_seen: bool
) -> None:
    fault = next(each for each in MODEL_FAULTS if each.name == "mixed-dtypes-in-a-unit")
    sight = replace(of_config(framework, {"accelerate": version}, **given), model=Adapted())
    assert bool(fault.sees(sight)) is is_seen


SCRIPT = "model = FSDP(Net())\n"


@pytest.mark.parametrize(
    ("sight", "is_seen"),
    [
        (seeing(model=Odd()), True),
        (seeing(model=Odd(), sources={"train.py": SCRIPT}), False),
        (seeing(model=Odd(), sources={"train.py": f"with torch.device('meta'):\n    {SCRIPT}"}), True),
        (seeing(model=Odd(), sources={"train.py": f"from accelerate import Accelerator\n{SCRIPT}"}), True),
        (
            replace(
                of_config("accelerate", settings={"fsdp_cpu_ram_efficient_loading": False}),
                model=Odd(),
                sources={"train.py": f"from accelerate import Accelerator\n{SCRIPT}"},
            ),
            False,
        ),
        (replace(of_config("accelerate"), model=Odd(), sources={"train.py": SCRIPT}), True),
        # A model of transformers in a project that shards it itself; not so under the Trainer.
        (seeing(model=Odd(), sources={"train.py": f"from transformers import AutoModel\n{SCRIPT}"}), False),
        (seeing(model=Odd(), sources={"t.py": f"from transformers import Trainer\n{SCRIPT}"}), True),
    ],
)
def test_what_is_lost_on_meta_is_said_where_something_may_be_made_there(
    sight: Sight, *, is_seen: bool
) -> None:
    (fault,) = (each for each in MODEL_FAULTS if each.name == "unsaved-buffers-on-meta")
    assert bool(fault.sees(sight)) is is_seen


@pytest.mark.parametrize(("line", "is_seen"), [("accelerate launch", True), ("torchrun", False)])
def test_a_model_that_accelerate_launches_may_be_on_meta(line: str, tmp_path: Path, *, is_seen: bool) -> None:
    """Under its launcher `from_pretrained` loads there, by a variable that it sets."""
    (tmp_path / "run.sh").write_text(f"{line} train.py\n")
    sources = {"train.py": f"from transformers import AutoModel\n{SCRIPT}"}
    sight = seeing(model=Odd(), sources=sources, configs=(tmp_path / "run.sh",))
    assert sight.may_be_on_meta is is_seen


def test_every_case_is_one_of_a_fault() -> None:
    assert CASES.keys() == {fault.name for fault in MODEL_FAULTS}
