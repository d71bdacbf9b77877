"""Conversions of genuine checkpoints, reopened with torch's own loader."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.checkpoint_convert import (
    convert_checkpoint,
    execute_plan,
    inspect_checkpoint,
    plan_conversion,
    verify_checkpoints,
)
from fsdp_migrate.errors import FindingsError, OutputError
from tests.checkpoint.samples import (
    COMPOSER,
    DATA,
    GOLDEN,
    NEWEST,
    PLAIN,
    assert_holds,
    contents,
    copy_of,
    expected,
    load_with_torch,
    read_metadata_with_torch,
    rename_keys,
    save_with_torch,
)


if TYPE_CHECKING:
    from pathlib import Path

    from fsdp_migrate.checkpoint_convert.storage.progress import ProgressEvent


WAYS: list[dict[str, Any]] = [{}, {"world_size": 1}, {"world_size": 3}, {"world_size": 8}]


@pytest.mark.alike
@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("name", GOLDEN)
def test_torch_loads_what_was_converted(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    source, before = DATA / name, contents(DATA / name)
    convert_checkpoint(source, tmp_path / "out", **options)
    assert_holds(load_with_torch(tmp_path / "out"), expected(source))
    report = verify_checkpoints(source, tmp_path / "out")
    assert report.is_same
    assert report.is_complete
    assert report.tensors + report.values == len(inspect_checkpoint(tmp_path / "out").entries)
    assert contents(source) == before


# One in a form of metadata that older torch cannot read, one without a setting that later torch looks for.
LACKING = ("torch-2.15", "torch-2.6")


@pytest.mark.parametrize("name", GOLDEN)
def test_a_checkpoint_of_fsdp1_needs_no_conversion(name: str) -> None:
    report = convert_checkpoint(DATA / name) if not name.startswith(LACKING) else None
    if report is not None:
        assert (report.action, report.output) == ("none", None)
        assert "FM201" in {finding.code for finding in report.findings}


def test_a_source_that_must_change_needs_an_output() -> None:
    with pytest.raises(OutputError, match="has to be converted"):
        convert_checkpoint(NEWEST)


def test_of_a_file_that_scripts_read_as_it_is_it_says_that(tmp_path: Path) -> None:
    file = tmp_path / "step-4.pt"
    torch.save({"model": {"up.weight": torch.zeros(2, 2)}, "step": 4}, file)
    with pytest.raises(OutputError, match=r"need not be converted\. A script that reads it with torch\.load"):
        convert_checkpoint(file)
    with pytest.raises(OutputError, match="has to be converted"):
        convert_checkpoint(file, to="accelerate")


def test_metadata_of_torch_2_15_becomes_readable_for_all(tmp_path: Path) -> None:
    report = convert_checkpoint(NEWEST, tmp_path / "out")
    assert report.action == "relink"
    assert "FM208" in {finding.code for finding in report.findings}
    metadata = read_metadata_with_torch(tmp_path / "out")
    assert metadata.state_dict_metadata["model.emb.weight"].size == torch.Size([11, 6])  # type: ignore[union-attr]


def test_the_metadata_is_what_torch_itself_would_write(tmp_path: Path) -> None:
    convert_checkpoint(PLAIN, tmp_path / "out")
    ours, theirs = read_metadata_with_torch(tmp_path / "out"), read_metadata_with_torch(PLAIN)
    assert ours.state_dict_metadata == theirs.state_dict_metadata
    assert ours.planner_data == theirs.planner_data
    assert ours.version == theirs.version if hasattr(theirs, "version") else True
    assert ours.storage_data.keys() == theirs.storage_data.keys()
    for index, info in theirs.storage_data.items():
        found = ours.storage_data[index]
        assert (found.offset, found.length) == (info.offset, info.length)
        assert found.relative_path == info.relative_path.replace(".distcp", ".linked.distcp")
    # `index` takes no part in the comparison of MetadataIndex, and torch uses it to find chunks.
    for index in ours.storage_data:
        if index.offset is not None:
            chunk = ours.state_dict_metadata[index.fqn].chunks[index.index]  # type: ignore[union-attr]
            assert chunk.offsets == index.offset


def test_relinked_data_files_share_their_bytes_and_not_their_names(tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path, "source")
    report = convert_checkpoint(source, tmp_path / "out", link="hard")
    assert report.bytes_written == 0
    assert report.bytes_linked == sum(f.stat().st_size for f in source.glob("*.distcp"))
    assert not {f.name for f in source.glob("*.distcp")} & {
        f.name for f in (tmp_path / "out").glob("*.distcp")
    }


def test_a_later_save_into_the_output_leaves_the_source_alone(tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path, "source")
    before = contents(source)
    convert_checkpoint(source, tmp_path / "out", link="hard")
    save_with_torch({"model": {"w": torch.ones(3)}}, tmp_path / "out")
    assert contents(source) == before


def test_copying_shares_nothing(tmp_path: Path) -> None:
    report = convert_checkpoint(PLAIN, tmp_path / "out", link="copy")
    assert (report.action, report.bytes_linked) == ("relink", 0)
    assert verify_checkpoints(PLAIN, tmp_path / "out").is_same
    assert all(f.stat().st_nlink == 1 for f in (tmp_path / "out").iterdir())


@pytest.mark.alike
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7, 16])
def test_chunks_are_those_of_fully_shard(world_size: int, tmp_path: Path) -> None:
    convert_checkpoint(PLAIN, tmp_path / "out", world_size=world_size)
    metadata = read_metadata_with_torch(tmp_path / "out")
    for key, tensor in load_with_torch(PLAIN)["model"].items():
        if key == "scale":
            continue
        entry = metadata.state_dict_metadata[f"model.{key}"]
        wanted = [tuple(part.shape) for part in torch.chunk(tensor, world_size, 0)]
        assert [tuple(chunk.sizes) for chunk in entry.chunks] == wanted  # type: ignore[union-attr]


def test_buffers_scalars_and_values_stay_whole(tmp_path: Path) -> None:
    convert_checkpoint(PLAIN, tmp_path / "out", world_size=4)
    entries = inspect_checkpoint(tmp_path / "out").entries
    for key in ("model.scale", "optimizer.state.emb.weight.step"):
        assert len(entries[key].chunks) == 1  # type: ignore[union-attr]


def test_each_rank_has_its_own_file(tmp_path: Path) -> None:
    convert_checkpoint(PLAIN, tmp_path / "out", world_size=4)
    names = sorted(f.name for f in (tmp_path / "out").iterdir())
    assert names == [".metadata", *(f"__{rank}_0.distcp" for rank in range(4))]


def test_converting_again_is_the_same(tmp_path: Path) -> None:
    first = convert_checkpoint(PLAIN, tmp_path / "one", world_size=4)
    again = convert_checkpoint(tmp_path / "one", world_size=4)
    assert (first.action, again.action) == ("rewrite", "none")
    convert_checkpoint(PLAIN, tmp_path / "two", world_size=4)
    one, two = contents(tmp_path / "one"), contents(tmp_path / "two")
    assert {n: b for n, b in one.items() if n != ".metadata"} == {
        n: b for n, b in two.items() if n != ".metadata"
    }


@pytest.mark.parametrize(("word", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_dtype_casts_the_model_and_nothing_else(word: str, dtype: torch.dtype, tmp_path: Path) -> None:
    convert_checkpoint(PLAIN, tmp_path / "out", dtype=word, world_size=3)
    got, wanted = load_with_torch(tmp_path / "out"), expected(PLAIN)
    for name, tensor in wanted["model"].items():
        assert torch.equal(got["model"][name], tensor.to(dtype))
    assert_holds({**got, "model": wanted["model"]}, wanted)


def test_optimizer_dtype_casts_moments_and_not_steps(tmp_path: Path) -> None:
    convert_checkpoint(PLAIN, tmp_path / "out", optimizer_dtype="bf16")
    got, wanted = load_with_torch(tmp_path / "out"), expected(PLAIN)
    for name, tensor in wanted["model"].items():
        assert torch.equal(got["model"][name], tensor)
    for name, moments in wanted["optimizer"]["state"].items():
        found = got["optimizer"]["state"][name]
        assert torch.equal(found["step"], moments["step"])
        assert torch.equal(found["exp_avg"], moments["exp_avg"].to(torch.bfloat16))


def test_a_cast_that_overflows_says_so(tmp_path: Path) -> None:
    state = {"model": {"w": torch.tensor([1.0, 1e6, float("inf"), -1e9]), "n": torch.arange(3)}}
    save_with_torch(state, tmp_path / "source")
    report = convert_checkpoint(tmp_path / "source", tmp_path / "out", dtype="fp16")
    (finding,) = [found for found in report.findings if found.code == "FM206"]
    assert (finding.subject, finding.message) == ("model.w", "2 values.")
    got = load_with_torch(tmp_path / "out")["model"]
    assert torch.equal(got["n"], torch.arange(3))


def test_weights_only_leaves_the_rest_out(tmp_path: Path) -> None:
    report = convert_checkpoint(PLAIN, tmp_path / "out", weights_only=True)
    got = load_with_torch(tmp_path / "out")
    assert set(got) == {"model"}
    assert set(report.plan.left_out) == {
        key for key in inspect_checkpoint(PLAIN).entries if key.startswith("optimizer")
    }
    size = sum(f.stat().st_size for f in (tmp_path / "out").glob("*.distcp"))
    assert size < 0.4 * sum(f.stat().st_size for f in PLAIN.glob("*.distcp"))


def test_wrapped_names_come_clean_everywhere(tmp_path: Path) -> None:
    names = {"emb.weight": "_orig_mod.emb.weight"}
    for number in range(2):
        for name in ("up.weight", "up.bias"):
            names[f"blocks.{number}.{name}"] = f"blocks.{number}._checkpoint_wrapped_module.{name}"
    source = rename_keys(copy_of(PLAIN, tmp_path, "source"), lambda part: names.get(part, part))
    report = convert_checkpoint(source, tmp_path / "out")
    assert report.action == "relink"
    assert report.plan.renamed["model._orig_mod.emb.weight"] == "model.emb.weight"
    assert_holds(load_with_torch(tmp_path / "out"), expected(PLAIN))
    assert verify_checkpoints(source, tmp_path / "out").is_same


def test_names_inside_parameter_groups_come_clean(tmp_path: Path) -> None:
    state = {
        "model": {"module._orig_mod.w": torch.ones(2, 2)},
        "optim": {
            "state": {"module._orig_mod.w": {"exp_avg": torch.ones(2, 2)}},
            "param_groups": [{"lr": 0.1, "params": ["module._orig_mod.w"], "param_names": ["_orig_mod.w"]}],
        },
    }
    save_with_torch(state, tmp_path / "source")
    report = convert_checkpoint(tmp_path / "source", tmp_path / "out")
    assert {"FM202", "FM203"} <= {finding.code for finding in report.findings}
    got = load_with_torch(tmp_path / "out")
    assert list(got["model"]) == ["w"]
    assert list(got["optim"]["state"]) == ["w"]
    assert got["optim"]["param_groups"] == [{"lr": 0.1, "params": ["w"], "param_names": ["w"]}]
    assert verify_checkpoints(tmp_path / "source", tmp_path / "out").is_same


def test_whole_parameter_groups_of_old_torch_come_clean(tmp_path: Path) -> None:
    source = copy_of(DATA / "torch-2.3.1" / "mesh.dcp", tmp_path, "source")
    rename_keys(source, lambda part: f"_orig_mod.{part}" if part.endswith("weight") else part)
    report = convert_checkpoint(source, tmp_path / "out", world_size=3)
    assert "FM215" in {finding.code for finding in report.findings}
    assert_holds(load_with_torch(tmp_path / "out"), expected(DATA / "torch-2.3.1" / "mesh.dcp"))


def test_composer_stays_composer(tmp_path: Path) -> None:
    report = convert_checkpoint(COMPOSER, tmp_path / "out", world_size=3)
    assert report.plan.framework == "composer"
    assert verify_checkpoints(COMPOSER, tmp_path / "out").is_same
    ours, theirs = load_with_torch(tmp_path / "out"), load_with_torch(COMPOSER)
    assert ours.keys() == theirs.keys()
    assert ours["state"]["timestamp"] == theirs["state"]["timestamp"]


def test_composer_to_torch_moves_model_and_optimizer(tmp_path: Path) -> None:
    report = convert_checkpoint(COMPOSER, tmp_path / "out", to="torch")
    assert report.action == "relink"
    got, source = load_with_torch(tmp_path / "out"), load_with_torch(COMPOSER)
    assert set(got) == {"model", "optim", "state", "rng"}
    for name, tensor in source["state"]["model"].items():
        assert torch.equal(got["model"][name], tensor)
    assert got["optim"]["param_groups"] == source["state"]["optimizers"]["AdamW"]["param_groups"]
    kept = {finding.subject for finding in report.findings if finding.code == "FM214"}
    assert {"state.timestamp", "rng"} <= kept
    assert verify_checkpoints(COMPOSER, tmp_path / "out").is_same
    with pytest.raises(FindingsError, match="FM214"):
        convert_checkpoint(COMPOSER, tmp_path / "strict", to="torch", strict=True)


def test_other_files_come_along(tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path, "source")
    (source / "notes").mkdir()
    (source / "notes" / "run.json").write_text('{"step": 2}')
    (source / "__7_0.distcp").write_bytes(b"of another save")
    report = convert_checkpoint(source, tmp_path / "out", world_size=8)
    assert (tmp_path / "out" / "notes" / "run.json").read_text() == '{"step": 2}'
    messages = {finding.code: finding.message for finding in report.findings}
    assert "`notes/run.json`" in messages["FM211"]
    assert "`__7_0.distcp`" in messages["FM212"]
    assert (source / "notes" / "run.json").stat().st_nlink == 1


def test_progress_counts_all_bytes_in_the_callers_thread(tmp_path: Path) -> None:
    import threading

    events: list[ProgressEvent] = []

    def note(event: ProgressEvent) -> None:
        assert threading.current_thread() is threading.main_thread()
        events.append(event)

    report = convert_checkpoint(PLAIN, tmp_path / "out", world_size=4, progress=note)
    assert events[0].done_bytes == 0
    assert events[-1].done_bytes == events[-1].total_bytes == report.bytes_written


@pytest.mark.alike
@pytest.mark.parametrize("buffer_bytes", [1, 64, 1000, 1 << 20])
def test_any_buffer_gives_the_same_bytes(buffer_bytes: int, tmp_path: Path) -> None:
    plan = plan_conversion(inspect_checkpoint(PLAIN), world_size=3)
    execute_plan(plan, tmp_path / "out", buffer_bytes=buffer_bytes)
    assert verify_checkpoints(PLAIN, tmp_path / "out").is_same


def test_reports_are_plain_json(tmp_path: Path) -> None:
    report = convert_checkpoint(PLAIN, tmp_path / "out", world_size=3, dtype="bf16")
    for data in (
        inspect_checkpoint(PLAIN).as_dict(),
        report.plan.as_dict(),
        report.as_dict(),
        verify_checkpoints(PLAIN, tmp_path / "out").as_dict(),
    ):
        assert json.loads(json.dumps(data)) == data


def test_any_tensor_survives(tmp_path: Path) -> None:
    names = "float64 float32 float16 bfloat16 float8_e4m3fn int64 int32 int16 int8 uint8 bool complex64"
    tensors = {
        name: torch.arange(12).reshape(3, 4).to(torch.float32).to(getattr(torch, name))
        for name in [*names.split(), "uint16", "uint32", "uint64"]
    }
    tensors["empty"] = torch.zeros(0, 3)
    tensors["channels_last"] = torch.arange(48.0).reshape(2, 2, 3, 4).to(memory_format=torch.channels_last)
    tensors["transposed"] = torch.arange(12.0).reshape(3, 4).t()
    tensors["expanded"] = torch.arange(3.0)[:, None].expand(3, 4)
    tensors["slice"] = torch.arange(40.0)[3:7]
    save_with_torch({"model": tensors}, tmp_path / "source")
    convert_checkpoint(tmp_path / "source", tmp_path / "out", world_size=2)
    got = load_with_torch(tmp_path / "out")["model"]
    for name, tensor in tensors.items():
        assert got[name].dtype == tensor.dtype
        ours, theirs = got[name].contiguous(), tensor.contiguous()
        assert ours.shape == theirs.shape
        assert (
            ours.numpy(force=True).tobytes() == theirs.numpy(force=True).tobytes()
            if (ours.dtype in (torch.float32, torch.int64))
            else torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))
        )
