"""Composer's callbacks and algorithms beside ours: what the table says of each is so, in real Trainers."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fsdp_migrate.adapters.composer_trainer.companions import COMPANIONS, Run, companion_findings
from tests.adapters.composer_trainer.composer_companions_bodies import Case, run_all
from tests.ranks import run_ranks


pytestmark = pytest.mark.composer

SYNC = {"sync_module_states": True}
FACTORS = {"min_channels": 4, "latent_channels": 0.5, "min_features": 8, "latent_features": 0.5}
SQUEEZED = {"min_channels": 4, "latent_channels": 4}
WARMUP = {"duration": 0.5, "min_seq_length": 8, "max_seq_length": 16, "step_size": 8}
MONITORED = {"monitor": "accuracy", "dataloader_label": "eval"}

SAME: dict[str, Case] = {
    "augmix": Case("AugMix", model="pictures"),
    "blurpool": Case("BlurPool", model="image"),
    "colout": Case("ColOut", {"batch": True}, model="image"),
    "cutmix": Case("CutMix", model="image"),
    "cutout": Case("CutOut", model="image"),
    "ema": Case("EMA", {"half_life": "2ba"}, model="module"),
    "clipping by value": Case("GradientClipping", {"clipping_type": "value", "clipping_threshold": 0.005}),
    "gyro dropout": Case("GyroDropout", {"p": 0.5, "sigma": 2, "tau": 2}, model="image"),
    "label smoothing": Case("LabelSmoothing", model="image"),
    "layer freezing": Case("LayerFreezing", {"freeze_start": 0.0}, epochs=3),
    "group norm": Case("LowPrecisionGroupNorm", model="image", precision="amp_bf16"),
    "layer norm": Case("LowPrecisionLayerNorm", precision="amp_bf16"),
    "mixup": Case("MixUp", model="image"),
    "no-op model": Case("NoOpModel", model="binary"),
    "resizing": Case("ProgressiveResizing", {"delay_fraction": 0.0}, model="image"),
    "randaugment": Case("RandAugment", model="pictures"),
    "selective backprop": Case(
        "SelectiveBackprop", {"start": 0.0, "end": 1.0, "interrupt": 0}, model="image"
    ),
    "length warmup": Case("SeqLengthWarmup", WARMUP, model="bert"),
    "samples dropped": Case(
        "StochasticDepth",
        {"target_layer_name": "ResNetBottleneck", "stochastic_method": "sample", "drop_rate": 0.5},
        model="resnet",
    ),
    "weight standardization": Case("WeightStandardization", model="image"),
    "early stopper": Case("EarlyStopper", MONITORED, model="metric", evaluates=True),
    "threshold stopper": Case(
        "ThresholdStopper", {**MONITORED, "threshold": 0.99}, model="metric", evaluates=True
    ),
    **{
        name: Case(name)
        for name in (
            *("FreeOutputs", "LRMonitor", "MemoryMonitor", "MemorySnapshot", "NaNMonitor", "OOMObserver"),
            *("RuntimeEstimator", "SpeedMonitor", "SystemMetricsMonitor"),
        )
    },
}
"""What is the same to the last bit."""
FROM_RANK_0 = {
    "factorize": Case("Factorize", FACTORS, model="image", fsdp=SYNC),
    "gated linear units": Case("GatedLinearUnits", model="bert", fsdp=SYNC),
    "squeeze and excite": Case("SqueezeExcite", SQUEEZED, model="image", fsdp=SYNC),
}
"""What is the same as under DDP; FSDP1 cannot broadcast on CPUs."""
CLIPPED = Case("GradientClipping", {"clipping_type": "norm", "clipping_threshold": 0.05})
MONITORS: dict[str, Case] = {
    "sgd": Case("OptimizerMonitor", {"batch_log_interval": 1}),
    "decoupled_adamw": Case("OptimizerMonitor", {"batch_log_interval": 1}, optimizer="decoupled_adamw"),
    "gradients only": Case(
        "OptimizerMonitor",
        {"batch_log_interval": 2, "log_optimizer_metrics": False},
        optimizer="decoupled_adamw",
    ),
    "no shards": Case(
        "OptimizerMonitor",
        {"batch_log_interval": 1},
        optimizer="decoupled_adamw",
        fsdp={"sharding_strategy": "NO_SHARD"},
    ),
}
GHOSTS = Case("GhostBatchNorm", {"ghost_batch_size": 2}, model="image")
ACTIVATIONS = Case("ActivationMonitor", {"interval": "1ba", "only_log_wandb": False})
DRAWN = (
    Case("Factorize", FACTORS, model="image"),
    Case("GatedLinearUnits", model="bert"),
    Case("SqueezeExcite", SQUEEZED, model="image"),
)
STRICT = Case("SAM", strict=True, fsdp={"backward_prefetch": "BACKWARD_PRE"})
REFUSED: dict[str, Case] = {
    "adaptive clipping": Case("GradientClipping", {"clipping_type": "adaptive", "clipping_threshold": 0.05}),
    "weight averaging": Case("SWA", {"swa_start": "1ep", "swa_end": "2ep"}, epochs=3),
    "surgery after sharding": Case(
        "LowPrecisionGroupNorm", model="image", precision="amp_bf16", apply_at="after_load"
    ),
    "export": Case("ExportForInferenceCallback", {"save_format": "torchscript", "save_path": "/nowhere"}),
}
FAILED_UNDER_FSDP1 = ("adaptive clipping", "weight averaging", "export")
BLOCKS = {
    model: Case(
        "StochasticDepth",
        {"target_layer_name": "ResNetBottleneck", "stochastic_method": "block", "drop_rate": 0.5},
        model=model,
    )
    for model in ("resnet", "resnet whole")
}
"""Not run under FSDP1: with one unit for the whole model it aborts the process, for its norms are units."""

Outcomes = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    """What each rank found, by the name of the case and the way: FSDP1, DDP or ours."""
    runs: dict[str, tuple[Case, str]] = {}
    for name, case in {**SAME, "clipped": CLIPPED, "activations": ACTIVATIONS, **MONITORS}.items():
        runs |= {f"{name} {way}": (case, way) for way in ("fsdp1", "ours")}
    runs |= {f"ghosts {way}": (GHOSTS, way) for way in ("fsdp1", "ours", "ddp")}
    runs |= {f"{name} ddp": (case, "ddp") for name, case in {**MONITORS, **FROM_RANK_0}.items()}
    runs |= {f"{name} ours": (case, "ours") for name, case in FROM_RANK_0.items()}
    runs |= {f"sam {way}": (Case("SAM"), way) for way in ("fsdp1", "ours")}
    runs |= {f"{case.name} drawn": (case, "ours") for case in DRAWN}
    runs |= {"strict ours": (STRICT, "ours")}
    runs |= {f"{name} ours": (case, "ours") for name, case in {**REFUSED, **BLOCKS}.items()}
    runs |= {f"{name} fsdp1": (REFUSED[name], "fsdp1") for name in FAILED_UNDER_FSDP1}
    ranks = run_ranks(run_all, list(runs.values()), timeout=550)
    return {name: [found[number] for found in ranks] for number, name in enumerate(runs)}


def same(after: dict[str, Any], before: dict[str, Any]) -> None:
    assert "error" not in before, before["trace"]
    assert "error" not in after, after["trace"]
    assert after["losses"] == before["losses"]
    assert len(after["losses"]) >= 4
    assert sorted(after["parameters"]) == sorted(before["parameters"])
    for name, expected in before["parameters"].items():
        assert torch.equal(after["parameters"][name], expected), name


@pytest.mark.parametrize("name", SAME)
def test_what_is_the_same(outcomes: Outcomes, name: str) -> None:
    for before, after in zip(outcomes[f"{name} fsdp1"], outcomes[f"{name} ours"], strict=True):
        same(after, before)
        assert after["logged"] == before["logged"]
        assert not {code for code, _ in after["findings"]} & {"FM117", "FM118"}


@pytest.mark.parametrize("name", FROM_RANK_0)
def test_new_values_of_rank_0_are_the_same_as_under_ddp(outcomes: Outcomes, name: str) -> None:
    for plain, after in zip(outcomes[f"{name} ddp"], outcomes[f"{name} ours"], strict=True):
        same(after, plain)
        assert not {code for code, _ in after["findings"]} & {"FM117", "FM118"}


def test_clipping_by_norm_is_the_same_but_for_the_order_of_sums(
    outcomes: Outcomes,
) -> None:
    for before, after in zip(outcomes["clipped fsdp1"], outcomes["clipped ours"], strict=True):
        assert after["losses"] == pytest.approx(before["losses"], abs=1e-6)


@pytest.mark.parametrize("name", MONITORS)
def test_the_optimizer_monitor_logs_norms_of_whole_tensors(outcomes: Outcomes, name: str) -> None:
    for plain, after in zip(outcomes[f"{name} ddp"], outcomes[f"{name} ours"], strict=True):
        same(after, plain)
        norms = {key: value for key, value in plain["logged"].items() if key.startswith("l2_norm")}
        assert len(norms) > 10
        assert after["logged"].keys() == plain["logged"].keys()
        for key, value in norms.items():
            assert after["logged"][key] == pytest.approx(value, rel=1e-5, abs=1e-9), key


def test_it_says_that_norms_were_one_ranks_part_under_fsdp1(outcomes: Outcomes) -> None:
    """Composer reduces what its own optimizers report, and that is all; it does so over replicas too."""
    for name in MONITORS:
        for before, after in zip(outcomes[f"{name} fsdp1"], outcomes[f"{name} ours"], strict=True):
            there, here = (found["logged"]["l2_norm/grad/global"][0] for found in (before, after))
            is_said = ("FM117", "OptimizerMonitor") in after["findings"]
            assert is_said == (name != "decoupled_adamw")
            assert (there == pytest.approx(here, rel=1e-5)) == (not is_said), name
    (there, _), (here, _) = (
        [found["logged"]["l2_norm/grad/global"][0] for found in outcomes[f"no shards {way}"]]
        for way in ("fsdp1", "ours")
    )
    assert there == pytest.approx(math.sqrt(2) * here, rel=1e-5)


def test_activations_are_logged_under_clean_names(outcomes: Outcomes) -> None:
    for before, after in zip(outcomes["activations fsdp1"], outcomes["activations ours"], strict=True):
        same(after, before)
        assert ("FM117", "ActivationMonitor") in after["findings"]
        assert after["logged"] == before["logged"]


def test_norms_of_ghost_batches_average_as_under_ddp(outcomes: Outcomes) -> None:
    """Composer sets their momentum on FSDP1's wrapper, where nothing reads it; training is the same."""
    kinds = (outcomes[f"ghosts {way}"] for way in ("fsdp1", "ours", "ddp"))
    for rank, (before, after, plain) in enumerate(zip(*kinds, strict=True)):
        same(after, before)
        assert ("FM117", "GhostBatchNorm") in after["findings"]
        assert len(after["averages"]) == 2
        for name, expected in after["averages"].items():
            if rank == 0:  # whose buffers DDP gives to all
                assert plain["averages"][name] == pytest.approx(expected, rel=1e-5)
            assert before["averages"][name] != pytest.approx(expected, rel=1e-1)


def test_sam_differs_and_says_so(outcomes: Outcomes) -> None:
    for before, after in zip(outcomes["sam fsdp1"], outcomes["sam ours"], strict=True):
        assert after["losses"] != before["losses"]
        assert ("FM117", "SAM") in after["findings"]
    for found in outcomes["strict ours"]:
        assert "FindingsError: 1 thing would change" in found["error"]


def test_new_values_that_ranks_draw_for_themselves_are_told_of(
    outcomes: Outcomes,
) -> None:
    for case in DRAWN:
        for found in outcomes[f"{case.name} drawn"]:
            assert ("FM117", case.name) in found["findings"]


@pytest.mark.parametrize("name", [*REFUSED, *BLOCKS])
def test_what_is_refused_is_so_before_the_first_batch(outcomes: Outcomes, name: str) -> None:
    case = {**REFUSED, **BLOCKS}[name]
    for found in outcomes[f"{name} ours"]:
        assert "FindingsError: 1 thing cannot be migrated" in found["error"]
        assert f"FM118 `{case.name}`" in found["error"]
    if name in FAILED_UNDER_FSDP1:
        assert all("error" in found for found in outcomes[f"{name} fsdp1"])


def test_every_callback_and_algorithm_of_composers_has_a_row() -> None:
    from composer import algorithms, callbacks
    from composer.core import Algorithm, Callback

    there = {
        name
        for module in (algorithms, callbacks)
        for name in module.__all__
        if issubclass(getattr(module, name), (Algorithm, Callback))
    }
    rows = [row.name for row in COMPANIONS]
    assert there <= set(rows)
    assert len(rows) == len(set(rows))
    assert set(rows) - there == {"HuggingFaceCheckpointer", "MonolithicCheckpointSaver"}


def test_a_class_is_known_by_its_name_and_by_what_it_derives_from() -> None:
    run = Run(torch.nn.Linear(1, 1))
    foundry = type("MonolithicCheckpointSaver", (), {"__module__": "llmfoundry.callbacks"})
    own = type("Mine", (foundry,), {"__module__": "mine"})
    stranger = type("SWA", (), {"__module__": "mine"})
    found = list(companion_findings([own(), stranger(), SimpleNamespace()], run))
    assert [(each.code, each.subject) for each in found] == [("FM118", "MonolithicCheckpointSaver")]
