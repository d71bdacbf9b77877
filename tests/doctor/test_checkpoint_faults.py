"""Known faults that a checkpoint shows: each is seen where it is, and not where it is not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from fsdp_migrate.checkpoint_convert import Manifest
from fsdp_migrate.checkpoint_convert.manifest.manifest import (
    Chunk,
    GroupOutline,
    NameList,
    Part,
    Stored,
    TensorEntry,
)
from fsdp_migrate.doctor.checkpoint_faults import CHECKPOINT_FAULTS
from fsdp_migrate.findings import make_finding
from tests.doctor.sights import assert_seen, is_seen, seeing


if TYPE_CHECKING:
    from fsdp_migrate.doctor import KnownFault, Sight


pytestmark = pytest.mark.any_torch

[FORM] = [each for each in CHECKPOINT_FAULTS if each.name == "state-dict-type-of-another-form"]


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


def grouped(count: int) -> Sight:
    sight = of_tensors()
    assert sight.manifest is not None
    group = GroupOutline(*([()] * len(GroupOutline._fields)))
    listed = NameList("optimizer.param_groups", (), groups=(group,) * count)
    return replace(sight, manifest=replace(sight.manifest, name_lists=(listed,)))


def of_accelerate(file: str) -> Sight:
    sight = of_tensors(optimizer__state__w__exp_avg=(2,))
    assert sight.manifest is not None
    [(key, entry)] = sight.manifest.entries.items()
    assert isinstance(entry, TensorEntry)
    moved = replace(entry, chunks=(Chunk((0,), (2,), Stored(file, 0, 8)),))
    part = Part("optimizer", ("optimizer",), (key,))
    return replace(
        sight,
        manifest=replace(sight.manifest, framework="accelerate", entries={key: moved}, parts=(part,)),
    )


EXPERTS: dict[str, Any] = {"layers__0__mlp__experts__0__w": (4, 4), "layers__0__mlp__experts__1__w": (4, 4)}


ADAPTER: dict[str, Any] = {"model__q__lora_A__weight": (4, 16), "model__q__lora_B__weight": (16, 8)}

CASES: dict[str, tuple[Sight, Sight]] = {
    "checkpoint-of-2.15": (of_tensors(portable=False), of_tensors()),
    "corrupt-full-optimizer": (of_tensors(make_finding("FM217", "a", "equal")), of_tensors()),
    "optimizer-by-numbers": (of_tensors(make_finding("FM222", "a", "lost")), of_tensors()),
    "accelerate-resumes-without-moments": (
        of_accelerate("optimizer_0/__0_0.distcp"),
        of_accelerate("optimizer.bin"),
    ),
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
}


@pytest.mark.parametrize("fault", CHECKPOINT_FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_seen_where_it_is_and_nowhere_else(fault: KnownFault) -> None:
    assert_seen(fault, *CASES[fault.name])


def test_every_case_is_one_of_a_fault() -> None:
    assert CASES.keys() == {fault.name for fault in CHECKPOINT_FAULTS}


@pytest.mark.parametrize("wanted", ["FULL_STATE_DICT", "SHARDED_STATE_DICT"])
@pytest.mark.parametrize("file", ["pytorch_model_fsdp_0/__0_0.distcp", "pytorch_model_fsdp.bin"])
def test_the_form_of_a_folder_of_accelerate_is_that_of_the_files_in_it(wanted: str, file: str) -> None:
    sight = of_accelerate(file)
    assert sight.manifest is not None
    sight = replace(
        sight,
        manifest=replace(sight.manifest, layout="accelerate"),
        settings={"fsdp_state_dict_type": wanted},
    )
    assert is_seen(FORM, sight) is (("FULL" in wanted) is file.endswith(".distcp"))


def test_files_of_ranks_are_of_neither_form() -> None:
    for wanted in ("FULL_STATE_DICT", "SHARDED_STATE_DICT"):
        sight = replace(of_tensors(layout="ranks"), settings={"fsdp_state_dict_type": wanted})
        assert "one of a file per rank" in FORM.sees(sight)


def test_lightning_loads_either_form() -> None:
    sight = of_tensors(layout="file", w=(2,))
    assert is_seen(FORM, replace(sight, settings={"state_dict_type": "sharded"}))
    assert not is_seen(FORM, replace(sight, settings={"state_dict_type": "sharded"}, framework="lightning"))
