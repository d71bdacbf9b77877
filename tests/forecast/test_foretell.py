"""What is foretold is what real ranks take; and what cannot be foretold is said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fsdp_migrate.errors import ConfigError, ProcessGroupError
from fsdp_migrate.forecast import MemoryForecast, PeakMemory, forecast_memory
from fsdp_migrate.runtime import end_process_group
from tests.models import Net
from tests.rank_bodies import forecasts
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from collections.abc import Iterator


ARGUMENTS = {"auto_wrap_policy": "Block", "use_orig_params": True, "device_id": "cpu"}


def foretell(model: nn.Module | None = None, arguments: Any = None, **more: Any) -> MemoryForecast:
    options: dict[str, Any] = {"world_size": 2, "device": "cpu", **more}
    return forecast_memory(Net() if model is None else model, arguments or ARGUMENTS, **options)


def fsdp2(told: MemoryForecast) -> PeakMemory:
    assert told.fsdp2 is not None, told.notes
    return told.fsdp2


@pytest.mark.parametrize(
    "case",
    [
        "accumulation, bf16",
        *(pytest.param(case, marks=pytest.mark.any_torch) for case in ("recomputed", "AdamW at once")),
    ],
)
def test_peaks_are_those_of_real_ranks(case: str) -> None:
    """The others of the cases, and those of 4 ranks, are held against real ranks by `make bench`."""
    told = forecasts.foretell(case)
    assert told.counts_activations, told.notes
    for which, peak in told.peaks:
        assert peak is not None
        real = run_ranks(forecasts.measure, case, which)[0]
        assert peak.total == pytest.approx(real["peak"], rel=0.05), which
        assert peak.at_rest == pytest.approx(real["at_rest"], rel=0.05), which
    assert sum(fsdp2(told).parts.values()) == fsdp2(told).total


@pytest.mark.slow
def test_parts_are_told_apart() -> None:
    """Sizes are those of `estimate_unit`, which another test holds against real ranks."""
    model = forecasts.Decoder(layers=2)
    elements = sum(param.numel() for param in model.parameters())
    told = foretell(model, {**ARGUMENTS, "auto_wrap_policy": "Layer"}, world_size=4, accumulate=2)
    parts = fsdp2(told).parts
    assert parts["parameters"] == pytest.approx(elements, rel=0.01)  # a fourth of them, 4 bytes each
    assert parts["optimizer_state"] == pytest.approx(2 * elements, rel=0.01)
    assert parts["reducing"] > 2 * elements  # whole gradients wait for the last microbatch
    assert told.fsdp1 is not None
    assert told.fsdp1.parts["reducing"] > 2 * elements


@pytest.mark.slow
def test_the_model_and_the_process_are_left_alone() -> None:
    with torch.device("meta"):
        model = Net(tied=True)
    before = {name: (id(param), param.device.type) for name, param in model.named_parameters()}
    resize = torch.UntypedStorage.resize_
    foretell(model, world_size=64)
    assert {name: (id(param), param.device.type) for name, param in model.named_parameters()} == before
    assert type(model) is Net
    assert torch.UntypedStorage.resize_ is resize
    assert not dist.is_initialized()


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    end_process_group()


@pytest.mark.usefixtures("group")
def test_a_process_group_is_in_the_way() -> None:
    with pytest.raises(ProcessGroupError, match="before `init_process_group`"):
        foretell()


class Choosing(nn.Module):
    """Reads a number from a tensor, which a fake one does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.one(x)
        return out if out.sum().item() > 0 else -out


class Odd(nn.Module):
    """Takes what nobody could make up."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(64, 64)

    def forward(self, *, graph: Any) -> torch.Tensor:
        out: torch.Tensor = self.one(graph.nodes)
        return out


@pytest.mark.parametrize(
    ("model", "more", "said"),
    [
        (Odd, {}, "Activations are not counted: No batches can be made for Odd"),
        (Choosing, {"batches": [torch.ones(2, 64)]}, "FSDP2 raised DataDependentOutputException in "),
    ],
)
def test_without_a_forward_all_but_activations_is_foretold(
    model: type[nn.Module], more: dict[str, Any], said: str
) -> None:
    weights = (64 * 64 + 64) * 4
    told = foretell(model(), {"device_id": "cpu"}, limit=10 * weights, **more)
    assert not told.counts_activations
    assert "activations" not in fsdp2(told).parts
    assert fsdp2(told).parts["parameters"] == weights / 2
    assert fsdp2(told).parts["optimizer_state"] == pytest.approx(weights, rel=0.01)
    assert fsdp2(told).parts["gathered"] >= weights
    assert any(said in note for note in told.notes), told.notes
    assert any("with activations it is higher" in note for note in told.notes)
    assert told.fits is None  # it may fit


def test_whether_it_fits() -> None:
    peak = PeakMemory(phase="backward", parts={"parameters": 90, "activations": 20}, at_rest=90)
    known: dict[str, Any] = {"fsdp1": None, "fsdp2": peak, "world_size": 2, "optimizer": "sgd"}
    made = {
        (limit, counts): MemoryForecast(**known, microbatches=1, limit=limit, counts_activations=counts)
        for limit in (None, 109, 110)
        for counts in (True, False)
    }
    assert {key: each.fits for key, each in made.items()} == {
        (None, True): None,
        (None, False): None,
        (109, True): False,
        (109, False): False,
        (110, True): True,
        (110, False): None,
    }


@pytest.mark.slow
def test_offloaded_state_is_the_hosts() -> None:
    arguments = {**ARGUMENTS, "cpu_offload": {"offload_params": True}}
    kept, offloaded = foretell(), foretell(arguments=arguments)
    assert not {"parameters", "gradients", "optimizer_state"} & fsdp2(offloaded).parts.keys()
    held = [fsdp2(kept).parts[part] for part in ("parameters", "optimizer_state")]
    assert fsdp2(offloaded).on_host >= sum(held)
    assert fsdp2(offloaded).total < fsdp2(kept).total
    assert any("`cpu_offload`" in note for note in offloaded.notes)


@pytest.mark.slow
def test_what_fsdp1_refuses_is_said() -> None:
    model = Net()
    model.blocks[0].up.requires_grad_(False)
    told = foretell(model, {**ARGUMENTS, "use_orig_params": False})
    assert told.fsdp1 is None
    assert told.fsdp2 is not None
    [said] = [note for note in told.notes if note.startswith("FSDP1 is not predicted")]
    assert "some of this model are frozen, `blocks.0.up.weight` for one." in said
    assert "Set `use_orig_params: true`" in said
    assert "ValueError" not in said


@pytest.mark.slow
def test_optimizers_are_named_made_or_given() -> None:
    model = Net()
    named = foretell(model, optimizer="sgd-momentum")
    made = foretell(model, optimizer=lambda net: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5))
    given = foretell(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5))
    assert named.fsdp2 == made.fsdp2 == given.fsdp2
    assert "optimizer_state" not in fsdp2(foretell(model, optimizer="sgd")).parts
    assert given.optimizer == "SGD"
    with pytest.raises(ConfigError, match="Did you mean `adamw`"):
        foretell(optimizer="adamww")


@pytest.mark.slow
def test_sizes_of_a_gpu_are_rounded_and_attention_without_a_kernel_is_told() -> None:
    on_gpu = fsdp2(foretell(device="cuda"))
    assert all(size % 512 == 0 for size in on_gpu.parts.values())

    class Attends(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = super().forward(x).view(2, 4, 8, -1)
            out: torch.Tensor = nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
            return out

    told = foretell(Attends(16, 16), {"device_id": "cpu"}, batches=[torch.ones(2, 32, 16)])
    assert any("without a fused kernel" in note for note in told.notes), told.notes
    plain = foretell(forecasts.Decoder(1), {"device_id": "cpu"})
    assert not any("without a fused kernel" in note for note in plain.notes)
