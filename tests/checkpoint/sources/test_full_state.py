"""Full state dicts in files, converted, and read again by torch's own loader."""

from __future__ import annotations

import argparse
import json
import os
import struct
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from fsdp_migrate.checkpoint_convert import (
    convert_checkpoint,
    execute_plan,
    inspect_checkpoint,
    plan_conversion,
    verify_checkpoints,
)
from fsdp_migrate.checkpoint_convert.manifest.options import SourceOptions
from fsdp_migrate.errors import (
    CheckpointFormatError,
    CheckpointNotFoundError,
    OutputError,
    PlanError,
    UnsafePickleError,
    UnsupportedFeatureError,
)
from tests.checkpoint.samples import DATA, load_with_torch, read_metadata_with_torch, save_with_torch


if TYPE_CHECKING:
    from pathlib import Path


WHOLE = sorted(path.relative_to(DATA).as_posix() for path in DATA.glob("torch-*/*.expected.pt"))


class Own:
    """A class that no list knows."""

    def __init__(self) -> None:
        self.tag = "own"


class Bomb:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/fsdp_migrate_was_executed",)


def save(value: Any, path: Path, *, legacy: bool = False) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=not legacy)
    return path


def assert_equal(found: Any, wanted: Any) -> None:
    """Assert that two nested values are the same, tensors bit for bit."""
    if isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype
        assert torch.equal(found, wanted)
    elif isinstance(wanted, dict):
        # What torch before 2.7 did not save, and later ones look for.
        newer = {"decoupled_weight_decay"} & found.keys() if "amsgrad" in wanted else set()
        assert {str(k) for k in found} == {str(k) for k in wanted if wanted[k] != {}} | newer
        for key, value in wanted.items():
            if value != {}:
                assert_equal(found[str(key)], value)
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_equal(one, other)
    else:
        assert found == wanted


def training_state() -> dict[str, Any]:
    model = OrderedDict(
        {
            "emb.weight": torch.arange(66.0).view(11, 6),
            "blocks.0.up.weight": torch.randn(13, 6).to(torch.bfloat16),
            "blocks.0.steps": torch.tensor(7),
            "empty": torch.zeros(0, 3),
        }
    )
    moments = {
        name: {"exp_avg": torch.randn(t.shape), "step": torch.tensor(2.0)} for name, t in model.items()
    }
    return {
        "model": model,
        "optimizer": {
            "state": moments,
            "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [*model]}],
        },
        "rng": {"torch": torch.get_rng_state(), "python": (3, (1, 2), None)},
        "epoch": 3,
        "run": {"name": "a", "big": 1 << 70, "seen": {1, 2}, "raw": b"\x00\xff", "dtype": torch.bfloat16},
    }


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("world_size", [None, 3])
def test_torch_loads_what_one_file_held(legacy: bool, world_size: int | None, tmp_path: Path) -> None:
    state = training_state()
    source = save(state, tmp_path / "last.pt", legacy=legacy)
    before = source.read_bytes()
    report = convert_checkpoint(source, tmp_path / "out", world_size=world_size)
    assert report.action == "rewrite"
    assert_equal(load_with_torch(tmp_path / "out"), state)
    assert source.read_bytes() == before
    assert verify_checkpoints(source, tmp_path / "out").is_same
    if world_size:
        kinds = read_metadata_with_torch(tmp_path / "out").state_dict_metadata
        weight = kinds["model.emb.weight"]
        assert isinstance(weight, TensorStorageMetadata)
        assert len(weight.chunks) == 3


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_keys_are_those_under_which_torch_would_have_saved_it(legacy: bool, tmp_path: Path) -> None:
    state = training_state()
    state["mixed"] = [1, {"a": torch.ones(2)}, [torch.ones(1), "b"], [1, 2]]
    source = save(state, tmp_path / "last.pt", legacy=legacy)
    wanted = read_metadata_with_torch(save_with_torch(state, tmp_path / "dcp"))
    manifest = inspect_checkpoint(source)
    assert {key: entry.path for key, entry in manifest.entries.items()} == wanted.planner_data
    assert verify_checkpoints(source, tmp_path / "dcp").is_same


@pytest.mark.alike
@pytest.mark.parametrize("name", WHOLE)
def test_genuine_full_states(name: str, tmp_path: Path) -> None:
    wanted = torch.load(DATA / name, weights_only=True)
    manifest = inspect_checkpoint(DATA / name)
    assert [(part.kind, part.name) for part in manifest.parts] == [
        ("model", "model"),
        ("optimizer", "optimizer"),
    ]
    convert_checkpoint(DATA / name, tmp_path / "out", world_size=2)
    assert_equal(load_with_torch(tmp_path / "out"), wanted)


def test_a_bare_model_and_a_bare_optimizer(tmp_path: Path) -> None:
    state = training_state()
    for name, kind in (("model", "model"), ("optimizer", "optimizer")):
        source = save(state[name], tmp_path / f"{name}.bin")
        assert [(p.kind, p.prefix) for p in inspect_checkpoint(source).parts] == [(kind, ())]
        convert_checkpoint(source, tmp_path / f"{name}-out")
        assert_equal(load_with_torch(tmp_path / f"{name}-out"), state[name])


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_tensors_and_parameters_with_marks_of_their_own(legacy: bool, tmp_path: Path) -> None:
    """What FSDP1 gathers without offloading has a mark, with which torch saves it in another way."""
    gathered = torch.randn(4, 3)
    gathered._has_been_cloned = True  # type: ignore[attr-defined]
    trained = torch.nn.Parameter(torch.randn(3))
    trained.no_weight_decay = True  # type: ignore[attr-defined]
    state = {"model": {"weight": gathered, "bias": trained, "plain": torch.nn.Parameter(torch.ones(2))}}
    source = save(state, tmp_path / "last.pt", legacy=legacy)
    torch.load(source, weights_only=True)
    convert_checkpoint(source, tmp_path / "out")
    assert_equal(load_with_torch(tmp_path / "out"), state)


def test_attributes_that_are_no_marks_are_refused(tmp_path: Path) -> None:
    weight = torch.randn(4)
    weight.scales = torch.ones(4)  # type: ignore[attr-defined]
    source = save({"model": {"weight": weight}}, tmp_path / "last.pt", legacy=False)
    with pytest.raises(PlanError, match="_rebuild_from_type_v2"):
        convert_checkpoint(source, tmp_path / "out")


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_views_strides_and_ties(legacy: bool, tmp_path: Path) -> None:
    base = torch.randn(700, 90)
    model = {
        "whole": base,
        "slice": base[100:200],
        "columns": base[:, 3:5],
        "turned": base.t(),
        "steps": base[::7, ::2],
        "last": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "tied": base,
        "parameter": torch.nn.Parameter(torch.ones(3)),
    }
    source = save({"model": model}, tmp_path / "a.pt", legacy=legacy)
    (tie,) = [f for f in inspect_checkpoint(source).findings if f.code == "FM231"]
    assert "`model.whole` and `model.tied`" in tie.message
    plan = plan_conversion(inspect_checkpoint(source), world_size=3)
    # A buffer of a few elements: every block is gathered by itself.
    execute_plan(plan, tmp_path / "out", buffer_bytes=4096)
    assert_equal(load_with_torch(tmp_path / "out")["model"], model)


def test_lightning_and_composer_files(tmp_path: Path) -> None:
    state = training_state()
    lightning = {
        "state_dict": state["model"],
        "optimizer_states": [state["optimizer"]],
        "lr_schedulers": [{"last_epoch": 3}],
        "epoch": 1,
    }
    parts = inspect_checkpoint(save(lightning, tmp_path / "last.ckpt")).parts
    assert [(p.kind, p.name) for p in parts][:2] == [
        ("model", "state_dict"),
        ("optimizer", "optimizer_states.0"),
    ]
    convert_checkpoint(tmp_path / "last.ckpt", tmp_path / "lightning")
    loaded = load_with_torch(tmp_path / "lightning")
    assert_equal(loaded["state_dict"], lightning["state_dict"])
    assert_equal(loaded["optimizer_0"], state["optimizer"])
    meta = torch.load(tmp_path / "lightning" / "meta.pt", weights_only=True)
    assert meta == {"lr_schedulers": [{"last_epoch": 3}], "epoch": 1}
    composer = {
        "state": {"model": state["model"], "optimizers": {"AdamW": state["optimizer"]}, "run_name": "r"},
        "rng": [{"torch": torch.get_rng_state()}],
    }
    manifest = inspect_checkpoint(save(composer, tmp_path / "ep0-ba2-rank0.pt"))
    assert manifest.framework == "composer"
    convert_checkpoint(tmp_path / "ep0-ba2-rank0.pt", tmp_path / "torch", to="torch")
    loaded = load_with_torch(tmp_path / "torch")
    assert_equal(loaded["model"], state["model"])
    assert_equal(loaded["optim"], state["optimizer"])


def test_safetensors_and_its_index(tmp_path: Path) -> None:
    model = {name: t.contiguous() for name, t in training_state()["model"].items()}
    save_file(model, tmp_path / "model.safetensors", metadata={"format": "pt", "made": "by us"})
    manifest = inspect_checkpoint(tmp_path / "model.safetensors")
    assert [f.subject for f in manifest.findings if f.code == "FM232"] == ["model.safetensors"]
    convert_checkpoint(tmp_path / "model.safetensors", tmp_path / "out", world_size=2, dtype="fp32")
    assert torch.equal(load_with_torch(tmp_path / "out")["emb.weight"], model["emb.weight"])
    folder = tmp_path / "hf"
    folder.mkdir()
    names = list(model)
    pieces = {f"model-0000{i + 1}-of-00002.safetensors": names[i::2] for i in range(2)}
    for file, keys in pieces.items():
        save_file({key: model[key] for key in keys}, folder / file)
    (folder / "config.json").write_text("{}")
    weight_map = {key: file for file, keys in pieces.items() for key in keys}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    for source in (folder, index):
        convert_checkpoint(source, tmp_path / f"out-{source.name}")
        assert_equal(load_with_torch(tmp_path / f"out-{source.name}"), model)
    assert (tmp_path / "out-hf" / "config.json").read_text() == "{}"
    assert not (tmp_path / "out-hf" / index.name).exists()
    index.unlink()
    assert inspect_checkpoint(folder).entries.keys() == model.keys()
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointNotFoundError, match="1 of 2 files"):
        inspect_checkpoint(folder)


def test_files_of_torch_save_with_an_index(tmp_path: Path) -> None:
    model = training_state()["model"]
    names = list(model)
    for number in range(2):
        save(
            {key: model[key] for key in names[number::2]},
            tmp_path / f"pytorch_model-0000{number + 1}-of-00002.bin",
        )
    weight_map = {key: f"pytorch_model-0000{i % 2 + 1}-of-00002.bin" for i, key in enumerate(names)}
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    convert_checkpoint(index, tmp_path.parent / "indexed", world_size=2)
    assert_equal(load_with_torch(tmp_path.parent / "indexed"), model)
    for wrong, error, match in (
        (
            {**weight_map, "more": names and "pytorch_model-00001-of-00002.bin"},
            CheckpointFormatError,
            "does not hold",
        ),
        ({**weight_map, "more": "missing.bin"}, CheckpointNotFoundError, "not there"),
        ({**weight_map, "more": "../other.bin"}, CheckpointFormatError, "outside"),
    ):
        index.write_text(json.dumps({"weight_map": wrong}))
        with pytest.raises(error, match=match):
            inspect_checkpoint(index)
    index.write_text("[]")
    with pytest.raises(CheckpointFormatError, match="no index"):
        inspect_checkpoint(index)


def test_objects_of_unknown_classes_are_refused_named_and_never_executed(tmp_path: Path) -> None:
    state = {**training_state(), "hparams": Own(), "args": argparse.Namespace(lr=0.1)}
    source = save(state, tmp_path / "last.pt")
    found = {f.subject: f for f in inspect_checkpoint(source).findings if f.code == "FM230"}
    assert set(found) == {"hparams"}
    assert "Own" in found["hparams"].message
    with pytest.raises(PlanError, match=r"FM230.*trust_pickle"):
        convert_checkpoint(source, tmp_path / "out")
    convert_checkpoint(source, tmp_path / "weights", weights_only=True)
    assert_equal(load_with_torch(tmp_path / "weights"), {"model": state["model"]})
    report = convert_checkpoint(source, tmp_path / "trusted", options=SourceOptions(trust_pickle=True))
    assert {f.subject for f in report.findings if f.code == "FM209"} == {"hparams"}
    loaded = load_with_torch(tmp_path / "trusted")
    assert (loaded["args"], loaded["hparams"].tag) == (state["args"], "own")
    source = save({"model": {"w": torch.ones(2)}, "x": Bomb()}, tmp_path / "bomb.pt")
    assert [f.code for f in inspect_checkpoint(source).findings] == ["FM230"]
    with pytest.raises(UnsafePickleError, match="one object of"):
        inspect_checkpoint(save(Own(), tmp_path / "own.pt"))
    assert not os.path.exists("/tmp/fsdp_migrate_was_executed")  # noqa: PTH110


def test_a_module_that_was_pickled_whole_is_sent_for_its_state(tmp_path: Path) -> None:
    """What `trust_pickle` cannot carry over is not offered it."""
    source = save({"model": torch.nn.Linear(2, 2), "step": 3}, tmp_path / "last.pt")
    (found,) = [each for each in inspect_checkpoint(source).findings if each.code == "FM230"]
    assert "state_dict()" in (found.hint or "")
    assert "trust_pickle" not in (found.hint or "")
    with pytest.raises(PlanError, match="FM230"):
        convert_checkpoint(source, tmp_path / "out", options=SourceOptions(trust_pickle=True))


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_files_that_are_cut_off_or_lie(legacy: bool, tmp_path: Path) -> None:
    source = save({"model": {"w": torch.ones(1000)}}, tmp_path / "a.pt", legacy=legacy)
    data = source.read_bytes()
    for size in (20, 200, len(data) - 100):
        source.write_bytes(data[:size])
        with pytest.raises(CheckpointFormatError):
            inspect_checkpoint(source)
    # 1000 elements become 2 ** 30 in the shape: 4 GiB are not allocated for it.
    huge = data.replace(b"M\xe8\x03", b"J\x00\x00\x00\x40"[:5]) if legacy else b""
    if huge:
        source.write_bytes(huge)
        with pytest.raises(CheckpointFormatError, match="bytes"):
            inspect_checkpoint(source)
    expanded = save({"w": torch.ones(1).expand(1 << 40)}, tmp_path / "expanded.pt", legacy=legacy)
    with pytest.raises(CheckpointFormatError, match=r"expanded and not copied.*contiguous"):
        inspect_checkpoint(expanded)


def test_a_few_bytes_that_name_the_same_part_again_and_again(tmp_path: Path) -> None:
    value: dict[str, Any] = {"x": 1}
    for _ in range(40):
        value = {"a": value, "b": value}
    with pytest.raises(CheckpointFormatError, match="no program writes"):
        inspect_checkpoint(save(value, tmp_path / "laughs.pt"))
    with pytest.raises(CheckpointFormatError, match=r"both called `a\.b`"):
        inspect_checkpoint(save({"a.b": 1, "a": {"b": 2}}, tmp_path / "same.pt"))


@pytest.mark.parametrize(
    ("header", "match"),
    [
        ({"w": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 8]}}, "needs"),
        ({"w": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}}, "needs|starts"),
        ({"w": {"dtype": "F33", "shape": [2], "data_offsets": [0, 8]}}, "not known"),
        ({"w": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}, "no sense"),
        ({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, "end at byte"),
        ([], "does not start with an object"),
        ({"__metadata__": 3}, "no object of text"),
    ],
    ids=str,
)
def test_damaged_safetensors(header: Any, match: str, tmp_path: Path) -> None:
    text = json.dumps(header).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    with pytest.raises(CheckpointFormatError, match=match):
        inspect_checkpoint(tmp_path / "a.safetensors")


def test_what_else_files_can_be(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFeatureError, match="holds a list"):
        inspect_checkpoint(save([1], tmp_path / "list.pt"))
    source = save({"w": torch.ones(2)}, tmp_path / "w.pt")
    with pytest.raises(OutputError, match="source"):
        convert_checkpoint(source, source, overwrite=True)
    assert source.exists()


def test_a_file_on_another_file_system(tmp_path: Path) -> None:
    import fsspec

    state = training_state()
    save(state, tmp_path / "a.pt")
    fs = fsspec.filesystem("memory")
    fs.pipe("/sources/a.pt", (tmp_path / "a.pt").read_bytes())
    fs.pipe("/sources/unrelated.txt", b"x")
    convert_checkpoint("memory://sources/a.pt", tmp_path / "out", world_size=2)
    assert_equal(load_with_torch(tmp_path / "out"), state)
    assert verify_checkpoints("memory://sources/a.pt", tmp_path / "out").is_same
