"""Each known fault is seen where it is, and not where it is not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from fsdp_migrate.checkpoint_convert import Manifest
from fsdp_migrate.checkpoint_convert.manifest.manifest import (
    Chunk,
    GroupOutline,
    NameList,
    Stored,
    TensorEntry,
)
from fsdp_migrate.config import FSDP1Config
from fsdp_migrate.doctor import FAULTS, KnownFault, Sight, examine, look
from fsdp_migrate.doctor.known import HARMS
from fsdp_migrate.errors import UnsupportedFeatureError
from fsdp_migrate.findings import make_finding
from fsdp_migrate.sharding.plan import plan_fully_shard
from fsdp_migrate.source.pins import ExactPin, PinFound
from fsdp_migrate.torch_compat import fsdp2
from tests.models import ConvNet, Net


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

BY_NAME = {fault.name: fault for fault in FAULTS}
NOW = {
    "torch": "2.13.0",
    "transformers": "5.20.0",
    "accelerate": "1.15.0",
    "mosaicml": "0.32.1",
    "transformer-engine": "2.0",
}


def seeing(**given: Any) -> Sight:
    return Sight(versions=NOW, has_accelerator=True, **given)


def of_model(model: nn.Module, shards: int = 2, **arguments: Any) -> Sight:
    config = FSDP1Config(**arguments)
    return seeing(model=model, plan=plan_fully_shard(model, config, world_size=shards))


def of_config(framework: str = "", versions: dict[str, str] | None = None, **given: Any) -> Sight:
    settings = given.pop("settings", {})
    return Sight(
        versions={**NOW, **(versions or {})},
        config=FSDP1Config(**given),
        settings=settings,
        framework=framework,
    )


def of_tensors(
    *findings: Any, layout: str = "dcp", portable: bool = True, **shapes: tuple[int, ...]
) -> Sight:
    entries = {
        key.replace("__", "."): TensorEntry(
            key.replace("__", "."),
            None,
            "float32",
            shape,
            (Chunk((0,) * len(shape), shape, Stored("a", 0, 1)),),
        )
        for key, shape in shapes.items()
    }
    manifest = Manifest(
        "folder", layout, "torch", "", entries, {}, {}, (), findings=findings, is_portable=portable
    )
    return seeing(manifest=manifest)


def of_source(text: str, **versions: str) -> Sight:
    return replace(seeing(sources={"train.py": text}), versions={**NOW, **versions})


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


def grouped(count: int) -> Sight:
    sight = of_tensors()
    assert sight.manifest is not None
    group = GroupOutline(*([()] * len(GroupOutline._fields)))
    listed = NameList("optimizer.param_groups", (), groups=(group,) * count)
    return replace(sight, manifest=replace(sight.manifest, name_lists=(listed,)))


def of_ignored() -> Sight:
    """See a plan that leaves a parameter alone, or where torch cannot, one with its finding."""
    if fsdp2.HAS_IGNORED_PARAMS:
        return of_model(Net(), ignored_states=["head.out.bias"])
    with pytest.raises(UnsupportedFeatureError, match=r"`ignored_states` needs torch 2\.7"):
        of_model(Net(), ignored_states=["head.out.bias"])
    assert PLAIN.plan is not None
    findings = (*PLAIN.plan.findings, make_finding("FM106", "ignored_states", "left alone"))
    return replace(PLAIN, plan=replace(PLAIN.plan, findings=findings))


TIED = of_model(Net(tied=True), auto_wrap_policy={nn.Embedding, nn.Linear})
PLAIN = of_model(Net(), auto_wrap_policy={nn.Embedding, nn.Linear})
ODD = seeing(model=Odd())
LOW: dict[str, Any] = {"mixed_precision": {"param_dtype": "bf16", "buffer_dtype": "bf16"}}
HF_2 = {"version": 2, "state_dict_type": "FULL_STATE_DICT"}
LOAD = "dcp.load(state)\n"
EXPERTS: dict[str, Any] = {"layers__0__mlp__experts__0__w": (4, 4), "layers__0__mlp__experts__1__w": (4, 4)}
ADAPTER: dict[str, Any] = {"model__q__lora_A__weight": (4, 16), "model__q__lora_B__weight": (16, 8)}

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
    "packed-4-bit-weights": (ODD, PLAIN),
    "clipping-plain-among-sharded": (of_ignored(), PLAIN),
    "checkpoint-of-2.15": (of_tensors(portable=False), of_tensors()),
    "corrupt-full-optimizer": (of_tensors(make_finding("FM217", "a", "equal")), of_tensors()),
    "optimizer-by-numbers": (of_tensors(make_finding("FM222", "a", "lost")), of_tensors()),
    "missing-experts": (
        of_tensors(layers__0__mlp__gate__weight=(4, 4), **EXPERTS),
        of_tensors(layers__0__mlp__gate__weight=(2, 4), **EXPERTS),
    ),
    "truncated-adapters": (
        of_tensors(**ADAPTER),
        of_tensors(**{**ADAPTER, "model__q__lora_A__weight": (8, 16)}),
    ),
    "fewer-groups-than-saved": (grouped(2), grouped(1)),
    "state-dict-type-of-another-form": (
        replace(of_tensors(), settings={"fsdp_state_dict_type": "FULL_STATE_DICT"}),
        replace(of_tensors(), settings={"fsdp_state_dict_type": "SHARDED_STATE_DICT"}),
    ),
    "fused-experts": (of_tensors(**EXPERTS), of_tensors(layers__0__mlp__experts__w=(2, 4, 4))),
    "trainer-ignores-version": (
        of_config("hf", {"transformers": "4.57.0"}, settings=HF_2),
        of_config("hf", settings=HF_2),
    ),
    "trainer-keeps-parameters": (
        of_config("hf", {"transformers": "5.3.0"}, settings=HF_2),
        of_config("hf", {"transformers": "5.3.0"}, settings={**HF_2, "reshard_after_forward": True}),
    ),
    "trainer-ignores-settings": (
        of_config("hf", {"transformers": "5.9.0"}, settings=HF_2),
        of_config("hf", {"transformers": "5.10.0"}, settings=HF_2),
    ),
    "trainer-defaults-to-fsdp2": (of_config("hf"), of_config("hf", settings=HF_2)),
    "trainer-wraps-by-size-no-more": (
        of_config("hf", settings={"min_num_params": 100}),
        of_config("hf", settings={"min_num_params": 100, "auto_wrap_policy": "SIZE_BASED_WRAP"}),
    ),
    "accelerate-recomputes-children": (
        of_config("accelerate", settings={"fsdp_activation_checkpointing": True}),
        of_config("hf", settings={"fsdp_activation_checkpointing": True}),
    ),
    "accelerate-shards-no-shard": (
        of_config("accelerate", sharding_strategy="NO_SHARD"),
        of_config("accelerate"),
    ),
    "accelerate-refuses-forward-prefetch": (
        of_config("accelerate", forward_prefetch=True),
        of_config("accelerate"),
    ),
    "composer-has-no-hybrid": (
        of_config("composer", sharding_strategy="HYBRID_SHARD"),
        of_config("composer"),
    ),
    "composer-ignores-strategy": (
        of_config("composer", sharding_strategy="SHARD_GRAD_OP"),
        of_config("composer"),
    ),
    "buffers-stay": (of_config(**LOW), of_config(mixed_precision={"param_dtype": "bf16"})),
    "initial-lr-is-lost": (
        of_source("s = LambdaLR(o, f, last_epoch=step)"),
        of_source("s = LambdaLR(o, f, last_epoch=-1)\nif last_epoch == 3: pass"),
    ),
    "raw-optimizer-state": (
        of_source('state = {"o": optimizer.state_dict()}\n' + LOAD),
        of_source('state = {"o": optimizer.state_dict()}\ntorch.save(state)'),
    ),
    "unfreezing-later": (
        of_source("m = fully_shard(m)\nfor p in m.parameters():\n    p.requires_grad_(True)"),
        of_source("m = fully_shard(m)\nfor p in m.parameters():\n    p.requires_grad_(False)"),
    ),
    "checkpoint-errors-slip-through": (
        of_source(f"try:\n    {LOAD}except Exception:\n    pass"),
        of_source(f"try:\n    {LOAD}except BaseException:\n    raise"),
    ),
    "metadata-is-a-pickle": (of_source(LOAD), of_source(f"# {LOAD}")),
    "deepcopy-of-shards": (of_source("e = deepcopy(self.model)"), of_source("e = deepcopy(config)")),
    "sync-stays-off": (
        of_source("m.set_requires_gradient_sync(False)"),
        of_source("m.set_requires_gradient_sync(False)\nm.set_requires_gradient_sync(is_last)"),
    ),
    "nameless-hybrid-mesh": (
        of_source('mesh = init_device_mesh("cuda", (2, 4))\nfully_shard(m, mesh=mesh)'),
        of_source('mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("r", "s"))\nfully_shard(m)'),
    ),
    "groups-by-dimensions": (
        of_source("m = FSDP(m)\ndecayed = [p for p in m.parameters() if p.ndim >= 2]"),
        of_source("m = FSDP(m)\nassert x.ndim == 4"),
    ),
    "old-optimizer-state-functions": (
        of_source("FSDP.full_optim_state_dict(m, o)"),
        of_source("FSDP.optim_state_dict(m, o)"),
    ),
    "norm-is-a-part": (
        of_source("norm = torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0).to_local()", torch="2.12"),
        of_source("norm = torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0).full_tensor()", torch="2.12"),
    ),
    "ending-a-group-of-gloo": (
        of_source("dist.init_process_group()\ndist.destroy_process_group()\n"),
        of_source('dist.init_process_group(backend="nccl")\ndist.destroy_process_group()\n'),
    ),
    "requirement-without-fsdp2": (
        seeing(pins=(PinFound("requirements.txt", 1, "torch", "torch==2.4.1", "2.6"),)),
        seeing(sources={"train.py": ""}, exact_pins=(ExactPin("requirements.txt", 1, "torch", "2.7.0"),)),
    ),
    "optimizer-of-8-bits": (of_source("o = bnb.optim.AdamW8bit(p)"), of_source("o = bnb.optim.AdamW(p)")),
}


def is_seen(fault: KnownFault, sight: Sight) -> bool:
    return bool(examine(sight, [fault]).symptoms)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_fault_is_seen_where_it_is_and_nowhere_else(name: str) -> None:
    there, absent = CASES[name]
    assert is_seen(BY_NAME[name], there)
    assert not is_seen(BY_NAME[name], absent)
    assert not is_seen(BY_NAME[name], Sight(versions=NOW, has_accelerator=True))


@pytest.mark.parametrize("name", [name for name, fault in BY_NAME.items() if fault.affects])
def test_a_fault_of_other_versions_is_not_seen(name: str) -> None:
    fault = BY_NAME[name]
    assert not is_seen(fault, replace(CASES[name][0], versions={}))
    for affected in fault.affects:
        outside = {**NOW, affected.package: affected.before or "0.1"}
        if affected.since or affected.before:
            assert not is_seen(fault, replace(CASES[name][0], versions=outside))


def test_what_needs_action_comes_first_and_the_worst_of_it() -> None:
    """What ``prepare_fully_shard`` mends stood among, and above, what hits its user."""
    source = "m = FSDP(m)\nd = [p for p in m.parameters() if p.ndim >= 2]\n"
    source += "try:\n    dcp.load(s)\nexcept Exception:\n    deepcopy(model)\n"
    found = examine(replace(TIED, sources={"train.py": source}))
    order = [(each.fault.is_handled, list(HARMS).index(each.fault.harm)) for each in found.symptoms]
    assert order == sorted(order)
    assert found.symptoms == (*found.needed, *found.handled)
    assert [each.fault.name for each in found.needed[:2]] == ["groups-by-dimensions", "deepcopy-of-shards"]
    assert {"ties-across-units", "ties-torn-on-meta"} <= {each.fault.name for each in found.handled}
    for fault in FAULTS:  # what says that prepare_fully_shard mends it is not told as a person's work
        assert fault.is_handled or not fault.action.startswith("`prepare_fully_shard`")


def test_versions_that_the_repository_asks_for_count_too(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.7.0\ntransformers==4.57.0\naccelerate>=1\n")
    config = tmp_path / "hf.yaml"
    config.write_text("fsdp: full_shard\nfsdp_config: {version: 2, backward_prefetch: backward_pre}\n")
    sight = look(config=config, paths=[str(tmp_path)])
    assert [(pin.package, pin.version) for pin in sight.exact_pins] == [
        ("torch", "2.7.0"),
        ("transformers", "4.57.0"),
    ]
    here = replace(sight, versions=NOW, has_accelerator=False)
    found = {each.fault.name: each.seen for each in examine(here).symptoms}
    assert f"with torch 2.7.0 of {tmp_path}/requirements.txt:1" in found["gloo-averages"]
    # transformers 4.57 has no FSDP2: it is not a version to look at, but one to raise.
    assert "transformers==4.57.0 (needed: 5.0)" in found["requirement-without-fsdp2"]
    assert "trainer-ignores-version" not in found
    assert [pin.package for pin in examine(here).pinned] == ["torch"]
    same = replace(here, versions={**NOW, "torch": "2.7.0+cpu"})
    assert examine(same).pinned == ()


def test_every_entry_is_whole_and_there_are_enough() -> None:
    assert len(FAULTS) == len(BY_NAME) >= 30
    assert CASES.keys() == BY_NAME.keys()
    for fault in FAULTS:
        assert fault.says.endswith(".")
        assert fault.action.endswith(".")
        assert fault.link == "measured" or fault.url.startswith("https://github.com/")
        assert fault.looked_up >= "2026-11-22"
