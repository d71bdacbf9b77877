"""Damaged, incomplete and foreign sources: one clear error, the source untouched, no output left."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest
import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
)

from fsdp_migrate.checkpoint_convert import (
    SourceOptions,
    convert_checkpoint,
    execute_plan,
    inspect_checkpoint,
    plan_conversion,
    verify_checkpoints,
)
from fsdp_migrate.checkpoint_convert.formats.tensor_reader import TensorSource
from fsdp_migrate.errors import (
    CheckpointError,
    CheckpointFormatError,
    CheckpointNotFoundError,
    PlanError,
    UnsupportedFeatureError,
)
from tests.checkpoint.samples import (
    COMPOSER,
    DATA,
    PLAIN,
    assert_nothing_left,
    contents,
    copy_of,
    edit_metadata,
    rename_keys,
    save_with_torch,
)


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fsdp_migrate.checkpoint_convert.formats.dcp_items import TensorBytes
    from fsdp_migrate.checkpoint_convert.manifest.manifest import Chunk, TensorEntry


pytestmark = pytest.mark.any_torch


KEY = "model.blocks.0.up.weight"


def refuse(source: Path, tmp_path: Path, match: str, kind: type[Exception]) -> str:
    """Convert and verify a source, and return what the one clear error says."""
    before = contents(source) if source.is_dir() else None
    kept = [path.name for path in tmp_path.iterdir()]
    with pytest.raises(kind, match=match) as caught:
        convert_checkpoint(source, tmp_path / "out", world_size=3)
    if kind is not PlanError:
        with pytest.raises(kind):
            verify_checkpoints(source, PLAIN)
    assert before is None or contents(source) == before
    assert_nothing_left(tmp_path, *kept)
    return str(caught.value)


def test_nothing_there(tmp_path: Path) -> None:
    refuse(tmp_path / "missing", tmp_path, "There is nothing at", CheckpointNotFoundError)


def test_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refuse(tmp_path / "empty", tmp_path, "is an empty folder", CheckpointFormatError)


def test_data_without_metadata(tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    (source / ".metadata").unlink()
    message = refuse(source, tmp_path, "no `.metadata`", CheckpointNotFoundError)
    assert "2 `.distcp` files" in message


def test_a_missing_data_file(tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    (source / "__1_0.distcp").unlink()
    message = refuse(source, tmp_path, r"'__1_0\.distcp' is missing", CheckpointFormatError)
    assert "1 problem)" in message


@pytest.mark.parametrize("cut", [1, 100, 60_000])
def test_a_data_file_that_was_cut_off(cut: int, tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    os.truncate(source / "__1_0.distcp", (source / "__1_0.distcp").stat().st_size - cut)
    refuse(source, tmp_path, "was cut off", CheckpointFormatError)


def test_metadata_that_is_no_pickle(tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    (source / ".metadata").write_text("{}")
    refuse(source, tmp_path, "is not a pickle", CheckpointFormatError)


@pytest.mark.parametrize("size", [0, 1, 2, 50, 5000])
def test_metadata_that_was_cut_off(size: int, tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    os.truncate(source / ".metadata", size)
    refuse(source, tmp_path, r"\.metadata", CheckpointFormatError)


def _set_path(path: str) -> Callable[[Metadata], None]:
    def edit(metadata: Metadata) -> None:
        metadata.storage_data[MetadataIndex(KEY, torch.Size([0, 0]))].relative_path = path

    return edit


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../secret", "a/../../secret", "C:\\secret", "\\\\host\\secret", "a\0b"]
)
def test_an_entry_that_points_outside(path: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"x" * 100_000)
    source = edit_metadata(copy_of(PLAIN, tmp_path), _set_path(path))
    refuse(source, tmp_path, "lies outside the checkpoint", CheckpointFormatError)


def test_a_link_that_leads_outside(tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    shutil.move(source / "__1_0.distcp", tmp_path / "elsewhere")
    (source / "__1_0.distcp").symlink_to(tmp_path / "elsewhere")
    refuse(source, tmp_path, "is a link to something outside", CheckpointFormatError)


def test_a_link_that_stays_inside(tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    (source / "__1_0.distcp").rename(source / "real.bin")
    (source / "__1_0.distcp").symlink_to("real.bin")
    convert_checkpoint(source, tmp_path / "out")
    assert verify_checkpoints(PLAIN, tmp_path / "out").is_same


def test_another_file_that_leads_outside_stays_behind(tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    (tmp_path / "secret").write_text("x")
    (source / "notes").symlink_to(tmp_path / "secret")
    report = convert_checkpoint(source, tmp_path / "out")
    assert not (tmp_path / "out" / "notes").exists()
    assert "FM212" in {finding.code for finding in report.findings}


def _chunks(metadata: Metadata) -> list[ChunkStorageMetadata]:
    return metadata.state_dict_metadata[KEY].chunks  # type: ignore[union-attr]


def _grow(metadata: Metadata) -> None:
    _chunks(metadata)[0].sizes = torch.Size([8, 6])


def _shrink(metadata: Metadata) -> None:
    _chunks(metadata)[0].sizes = torch.Size([6, 6])


def _drop(metadata: Metadata) -> None:
    _chunks(metadata).pop()
    del metadata.storage_data[MetadataIndex(KEY, torch.Size([7, 0]))]


def _reach_out(metadata: Metadata) -> None:
    _chunks(metadata)[1].sizes = torch.Size([9, 6])


def _repeat(metadata: Metadata) -> None:
    _chunks(metadata).append(_chunks(metadata)[0])


def _flatten(metadata: Metadata) -> None:
    _chunks(metadata)[0].sizes = torch.Size([42])


def _lose_data(metadata: Metadata) -> None:
    del metadata.storage_data[MetadataIndex(KEY, torch.Size([7, 0]))]


def _forget_entry(metadata: Metadata) -> None:
    del metadata.state_dict_metadata[KEY]


def _share_bytes(metadata: Metadata) -> None:
    one, other = list(metadata.storage_data.values())[:2]
    other.offset = one.offset + 8


def _negative(metadata: Metadata) -> None:
    metadata.storage_data[MetadataIndex(KEY, torch.Size([0, 0]))].offset = -5


def _too_small(metadata: Metadata) -> None:
    metadata.storage_data[MetadataIndex(KEY, torch.Size([0, 0]))].length = 20


def _transform(metadata: Metadata) -> None:
    metadata.storage_data[MetadataIndex(KEY, torch.Size([0, 0]))].transform_descriptors = ["zstd"]


def _huge(metadata: Metadata) -> None:
    entry = metadata.state_dict_metadata[KEY]
    entry.size = torch.Size([1 << 40, 6])  # type: ignore[union-attr]
    _chunks(metadata)[1].sizes = torch.Size([(1 << 40) - 7, 6])


def _as_value(metadata: Metadata) -> None:
    metadata.state_dict_metadata[KEY] = BytesStorageMetadata()


LIES = [
    (_grow, "overlap"),
    (_shrink, "6 of 78 elements are in no chunk"),
    (_drop, "36 of 78 elements are in no chunk"),
    (_reach_out, "reaches outside the tensor"),
    (_repeat, "is listed twice"),
    (_flatten, "another number of dimensions"),
    (_lose_data, "has no stored data"),
    (_forget_entry, "is no entry"),
    (_share_bytes, "share bytes"),
    (_negative, "its place in"),
    (_too_small, "needs 168 bytes, and its item has 20"),
    (_transform, "transforms"),
    (_huge, "needs .* bytes"),
    (_as_value, "2 items are stored, expected 1"),
]


@pytest.mark.parametrize(("edit", "match"), LIES, ids=lambda value: getattr(value, "__name__", ""))
def test_metadata_that_lies(edit: Callable[[Metadata], None], match: str, tmp_path: Path) -> None:
    source = edit_metadata(copy_of(PLAIN, tmp_path), edit)
    message = refuse(source, tmp_path, match, CheckpointFormatError)
    assert KEY in message or edit is _share_bytes


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    def edit(metadata: Metadata) -> None:
        _grow(metadata)
        metadata.state_dict_metadata["model.head.weight"].size = torch.Size([99, 6])  # type: ignore[union-attr]

    source = edit_metadata(copy_of(PLAIN, tmp_path), edit)
    message = refuse(source, tmp_path, "2 problems", CheckpointFormatError)
    assert "model.head.weight" in message
    assert KEY in message


def test_an_item_of_another_shape_is_found_when_it_is_read(tmp_path: Path) -> None:
    def edit(metadata: Metadata) -> None:
        one = MetadataIndex("model.blocks.0.ln.bias", torch.Size([0]))
        other = MetadataIndex("model.blocks.0.up.bias", torch.Size([0]))
        data = metadata.storage_data
        data[one], data[other] = data[other], data[one]

    source = edit_metadata(copy_of(PLAIN, tmp_path), edit)
    with pytest.raises(CheckpointFormatError, match="not of the same save"):
        convert_checkpoint(source, tmp_path / "out", dtype="bf16")
    with pytest.raises(CheckpointFormatError, match="not of the same save"):
        inspect_checkpoint(source, deep=True)
    assert_nothing_left(tmp_path, "copy")


def test_a_flipped_bit_is_found_by_a_deep_look(tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    stored = inspect_checkpoint(source).entries[KEY].chunks[0].stored  # type: ignore[union-attr]
    data = bytearray((source / stored.file).read_bytes())
    data[stored.offset + 710] ^= 1
    (source / stored.file).write_bytes(data)
    inspect_checkpoint(source)
    with pytest.raises(CheckpointFormatError, match="checksum"):
        inspect_checkpoint(source, deep=True)
    report = verify_checkpoints(PLAIN, source)
    assert [difference.key for difference in report.differences] == [KEY]


@pytest.mark.parametrize("at", [0, 30, 100, 600])
def test_a_damaged_item_is_an_error(at: int, tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    stored = inspect_checkpoint(source).entries[KEY].chunks[0].stored  # type: ignore[union-attr]
    data = bytearray((source / stored.file).read_bytes())
    data[stored.offset + at : stored.offset + stored.length - 4] = b"\xff" * (stored.length - at - 4)
    (source / stored.file).write_bytes(data)
    with pytest.raises(CheckpointError, match=r"blocks\.0\.up\.weight|__0_0|__1_0"):
        convert_checkpoint(source, tmp_path / "out", dtype="bf16")
    assert_nothing_left(tmp_path, "copy")


def test_a_source_that_shrinks_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = copy_of(PLAIN, tmp_path)
    plan = plan_conversion(inspect_checkpoint(source), dtype="bf16")
    locate = TensorSource.locate

    def cut_after_it_was_found(self: TensorSource, entry: TensorEntry, chunk: Chunk) -> TensorBytes:
        found = locate(self, entry, chunk)
        os.truncate(source / "__1_0.distcp", 100)
        return found

    monkeypatch.setattr(TensorSource, "locate", cut_after_it_was_found)
    with pytest.raises(CheckpointFormatError, match="too early"):
        execute_plan(plan, tmp_path / "out")
    assert_nothing_left(tmp_path, "copy")


def test_a_source_that_changed_since_it_was_inspected(tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    plan = plan_conversion(inspect_checkpoint(source), world_size=3)
    with (source / "__1_0.distcp").open("ab") as file:
        file.write(b"more")
    with pytest.raises(CheckpointFormatError, match="has changed since it was inspected"):
        execute_plan(plan, tmp_path / "out")
    assert_nothing_left(tmp_path, "copy")


def test_flat_parameters_are_refused_with_the_reason(tmp_path: Path) -> None:
    save_with_torch({"model": {"_flat_param": torch.ones(9), "b": torch.ones(2)}}, tmp_path / "flat")
    message = refuse(tmp_path / "flat", tmp_path, "FM223", PlanError)
    assert "LOCAL_STATE_DICT" in message
    assert "SHARDED_STATE_DICT" in message


def test_numbered_optimizer_state_is_refused_with_the_reason(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    save_with_torch(state, tmp_path / "raw")
    message = refuse(tmp_path / "raw", tmp_path, "FM222", PlanError)
    assert "lost" in message
    report = convert_checkpoint(tmp_path / "raw", tmp_path / "out", weights_only=True)
    assert sorted(entry.key for entry in report.plan.entries) == ["model.0.bias", "model.0.weight"]


def test_names_that_collide_are_refused_with_both(tmp_path: Path) -> None:
    state = {"model": {"w": torch.ones(2), "_orig_mod.w": torch.ones(2), "v": torch.ones(1)}}
    save_with_torch(state, tmp_path / "twice")
    message = refuse(tmp_path / "twice", tmp_path, "FM221", PlanError)
    assert "`model.w`" in message
    assert "`model._orig_mod.w`" in message


class _Foreign:
    pass


def test_an_unknown_class_is_carried_over_byte_for_byte(tmp_path: Path) -> None:
    state = {"model": {"w": torch.ones(4, 2)}, "mine": _Foreign(), "step": 3}
    source = save_with_torch(state, tmp_path / "source")
    for deep in (False, True):
        (finding,) = [f for f in inspect_checkpoint(source, deep=deep).findings if f.code == "FM230"]
        assert finding.subject == "mine"
        assert "_Foreign" in finding.message
    # To relink and to rewrite, and also where nothing has to change.
    for world_size in (None, 2):
        with pytest.raises(PlanError, match=r"FM230.*trust_pickle"):
            convert_checkpoint(source, tmp_path / "out", world_size=world_size)
    with pytest.raises(PlanError, match="FM230"):
        convert_checkpoint(source)
    trusted = SourceOptions(trust_pickle=True)
    report = convert_checkpoint(source, tmp_path / "out", world_size=2, options=trusted)
    assert [found.subject for found in report.findings if found.code == "FM209"] == ["mine"]
    assert verify_checkpoints(source, tmp_path / "out").is_same
    convert_checkpoint(source, tmp_path / "weights", weights_only=True)


def test_a_damaged_value_is_an_error_although_only_names_change(tmp_path: Path) -> None:
    state = {"model": {"_orig_mod.w": torch.ones(4, 2)}, "note": "a text that is long enough to be found"}
    source = save_with_torch(state, tmp_path / "source")
    (file,) = source.glob("*.distcp")
    data = file.read_bytes()
    file.write_bytes(data.replace(b"long enough", b"wrong enoug"))
    with pytest.raises(CheckpointFormatError, match=r"`note`.*checksum"):
        inspect_checkpoint(source)


def test_a_file_beside_that_asks_for_a_class_is_named(tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    torch.save({"mine": _Foreign()}, source / "training_args.bin")
    report = convert_checkpoint(source, tmp_path / "out")
    (finding,) = [found for found in report.findings if found.code == "FM285"]
    assert finding.subject == "training_args.bin"
    assert "_Foreign" in finding.message


def test_an_unknown_class_beside_names_that_must_change_is_refused(tmp_path: Path) -> None:
    state = {
        "model": {"_orig_mod.w": torch.ones(4, 2)},
        "optim": {
            "state": {"_orig_mod.w": {"exp_avg": torch.ones(4, 2)}},
            "param_groups": [{"params": ["_orig_mod.w", _Foreign()]}],
        },
    }
    source = save_with_torch(state, tmp_path / "source")
    refuse(source, tmp_path, "FM224.*_Foreign", PlanError)


def test_equal_moments_are_found(tmp_path: Path) -> None:
    moments = {"exp_avg": torch.ones(3), "exp_avg_sq": torch.ones(3)}
    zeros = {"exp_avg": torch.zeros(3), "exp_avg_sq": torch.zeros(3)}
    state = {
        "model": {"a": torch.ones(3), "b": torch.ones(3)},
        "optim": {"state": {"a": moments, "b": zeros}, "param_groups": [{"params": ["a", "b"]}]},
    }
    source = save_with_torch(state, tmp_path / "source")
    codes = [f for f in inspect_checkpoint(source, deep=True).findings if f.code == "FM217"]
    assert len(codes) == 1
    assert "1 of 2 parameters" in codes[0].message
    assert "FM217" not in {f.code for f in inspect_checkpoint(PLAIN, deep=True).findings}


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_one_file_of_a_checkpoint_points_to_its_folder(name: str, tmp_path: Path) -> None:
    refuse(PLAIN / name, tmp_path, "Name its folder instead", CheckpointFormatError)


def test_any_other_file_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    refuse(tmp_path / "notes.txt", tmp_path, "is no checkpoint", CheckpointFormatError)


def test_a_folder_of_another_kind_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for name in ("config.json", "a.safetensors", "b.safetensors"):
        (tmp_path / "other" / name).write_bytes(b"x")
    refuse(tmp_path / "other", tmp_path, "Hugging Face", UnsupportedFeatureError)


@pytest.mark.parametrize(
    "names",
    [
        ["model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"],
        ["pytorch_model_fsdp.bin", "optimizer.bin"],
    ],
)
def test_a_damaged_file_of_a_folder_is_named(names: list[str], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for name in names:
        (tmp_path / "other" / name).write_bytes(b"x")
    message = refuse(tmp_path / "other", tmp_path, "was not written by torch.save", CheckpointFormatError)
    assert names[0] in message


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "photo.jpg").write_bytes(b"x")
    refuse(tmp_path / "other", tmp_path, "holds no checkpoint", CheckpointFormatError)


def test_a_parent_names_the_checkpoints_in_it(tmp_path: Path) -> None:
    message = refuse(COMPOSER.parent, tmp_path, "it holds one", CheckpointFormatError)
    assert str(COMPOSER) in message
    message = refuse(DATA / "torch-2.13.0", tmp_path, "it holds 2", CheckpointFormatError)
    assert "`flat.dcp`, `plain.dcp`" in message


def test_keys_that_the_planner_did_not_record_are_understood(tmp_path: Path) -> None:
    source = rename_keys(copy_of(PLAIN, tmp_path), lambda part: part)

    def forget(metadata: Metadata) -> None:
        metadata.planner_data = None

    manifest = inspect_checkpoint(edit_metadata(source, forget))
    assert [(part.kind, part.name) for part in manifest.parts] == [
        ("model", "model"),
        ("optimizer", "optimizer"),
    ]
    convert_checkpoint(source, tmp_path / "out", world_size=3)
    assert verify_checkpoints(PLAIN, tmp_path / "out").is_same
