"""Comparing finds what differs, and only that."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file

from fsdp_migrate.checkpoint_convert import OutputOptions, convert_checkpoint, verify_checkpoints
from fsdp_migrate.cli import main
from tests.checkpoint.samples import FLAT, PLAIN, load_with_torch, save_with_torch


if TYPE_CHECKING:
    from pathlib import Path

    from fsdp_migrate.checkpoint_convert.storage.progress import ProgressEvent


def state() -> dict[str, Any]:
    return {
        "model": {"w": torch.arange(12.0).reshape(3, 4), "n": torch.tensor(3)},
        "optim": {"state": {"w": {"exp_avg": torch.ones(3, 4)}}, "param_groups": [{"params": ["w"]}]},
        "step": 7,
        "rate": 0.1,
        "nested": {"when": [1, (2.5, None)], "names": ["a", "b"], "tensor": [torch.ones(2)]},
    }


def compare(tmp_path: Path, other: dict[str, Any], **options: Any) -> list[tuple[str, str]]:
    save_with_torch(state(), tmp_path / "a")
    save_with_torch(other, tmp_path / "b")
    report = verify_checkpoints(tmp_path / "a", tmp_path / "b", **options)
    assert report.is_same == (not report.differences)
    return [(difference.key, difference.kind) for difference in report.differences]


def test_the_same_is_the_same(tmp_path: Path) -> None:
    assert compare(tmp_path, state()) == []
    assert verify_checkpoints(tmp_path / "a", tmp_path / "b").are_tensors_same


def change(path: str, value: Any) -> dict[str, Any]:
    changed = state()
    *parents, last = path.split("/")
    inner: Any = changed
    for parent in parents:
        inner = inner[parent]
    inner[last] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        ("model/w", torch.arange(12.0).reshape(4, 3), ("model.w", "shape")),
        ("model/w", torch.arange(12).reshape(3, 4), ("model.w", "dtype")),
        ("model/n", 3, ("model.n", "kind")),
        ("model/n", torch.tensor(4), ("model.n", "value")),
        ("step", 8, ("step", "value")),
        ("step", 7.0, ("step", "value")),
        ("step", True, ("step", "value")),
        ("rate", 0.1 + 1e-17 + 2e-17, ("rate", "value")),
        ("nested/when", [1, (2.5, 0)], ("nested.when", "value")),
        ("nested/when", [1, [2.5, None]], ("nested.when", "value")),
        ("nested/names", ["a"], ("nested.names", "value")),
        ("nested/names", ["b", "a"], ("nested.names", "value")),
        ("optim/param_groups", [{"params": ["v"]}], ("optim.param_groups.0.params", "value")),
    ],
)
def test_each_difference_is_named(path: str, value: Any, found: tuple[str, str], tmp_path: Path) -> None:
    assert compare(tmp_path, change(path, value)) == [found]


def test_names_in_another_order_are_said_to_be_no_more_than_that(tmp_path: Path) -> None:
    save_with_torch(state(), tmp_path / "a")
    save_with_torch(change("nested/names", ["b", "a"]), tmp_path / "b")
    (difference,) = verify_checkpoints(tmp_path / "a", tmp_path / "b").differences
    assert difference.message == "the value: the same 2 names in another order, first at [0]"


def test_settings_of_an_optimizer_in_another_form_are_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Accelerate's FSDP2 saves betas as a list, and torch's FSDP1 the names in another order."""
    group = {"params": ["w", "v"], "lr": 0.1, "betas": (0.9, 0.99)}
    for name, own in (("a", group), ("b", {**group, "params": ["v", "w"], "betas": [0.9, 0.99]})):
        save_with_torch(change("optim/param_groups", [own]), tmp_path / name)
    report = verify_checkpoints(tmp_path / "a", tmp_path / "b")
    assert report.is_same
    assert report.alike == {
        "optim.param_groups.0.betas": "a tuple and a list",
        "optim.param_groups.0.params": "the same 2 names in another order, first at [0]",
    }
    assert main(["verify", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Alike, in another form: optim.param_groups.0.betas: a tuple and" in shown
    assert "bit for bit, 2 entries in another form" in shown
    save_with_torch(change("optim/param_groups", [{**group, "betas": [0.9, 0.98]}]), tmp_path / "c")
    (difference,) = verify_checkpoints(tmp_path / "a", tmp_path / "c").differences
    assert difference.message == "[1]: 0.99 and 0.98"


@pytest.mark.parametrize("is_whole", [True, False])
def test_by_which_kernels_an_optimizer_steps_is_no_difference(tmp_path: Path, is_whole: bool) -> None:
    """``prepare_fully_shard`` switches them off for groups of sharded and plain parameters."""

    def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
        for name, own in (("a", ours), ("b", theirs)):
            group: dict[str, Any] = {"params": ["w"], "lr": 0.1, **own}
            # As one value, as torch before 2.4 saves it, and setting by setting.
            groups = [(group,)] if is_whole else [group]
            save_with_torch(change("optim/param_groups", groups), tmp_path / name)
        report = verify_checkpoints(tmp_path / "a", tmp_path / "b")
        assert report.is_same == (not report.differences)
        assert bool(report.alike) == (report.is_same and ours != theirs)
        return [each.message for each in report.differences]

    chosen: dict[str, Any] = {"foreach": None, "fused": None, "capturable": False}
    assert differences(chosen, chosen) == []
    assert differences(chosen, {**chosen, "foreach": False, "fused": True}) == []
    assert differences({"foreach": True}, {"foreach": False}) == []
    for other in ({**chosen, "capturable": None}, {**chosen, "foreach": 7}, {**chosen, "fused": [False]}):
        assert len(differences(chosen, other)) == 1
    # The same word elsewhere is the user's own.
    save_with_torch(change("nested/foreach", None), tmp_path / "a")
    save_with_torch(change("nested/foreach", False), tmp_path / "b")
    assert not verify_checkpoints(tmp_path / "a", tmp_path / "b").is_same


@pytest.mark.parametrize("is_tied", [True, False])
def test_tied_embeddings_by_one_name_and_by_both_are_the_same(tmp_path: Path, is_tied: bool) -> None:
    """As save_pretrained and `convert --to hf` write them of one model."""
    matrix = torch.arange(6.0).reshape(2, 3)
    both = {"model.embed.weight": matrix, "lm_head.weight": matrix.clone(), "other.weight": matrix + 1}
    for name in ("both", "one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"tie_word_embeddings": is_tied}))
        save_file(both, tmp_path / name / "model.safetensors")
        both = {key: tensor for key, tensor in both.items() if key != "lm_head.weight"}
    save_file(
        {"other.weight": matrix + 1, "lm_head.weight": matrix}, tmp_path / "other" / "model.safetensors"
    )
    for names in (("both", "one"), ("one", "both")):
        report = verify_checkpoints(*(tmp_path / name for name in names))
        assert report.is_same == is_tied
        assert bool(report.alike) == is_tied
    # What holds other values than all that both have is missing, tied or not.
    assert not verify_checkpoints(tmp_path / "one", tmp_path / "other").is_same


def test_the_first_element_that_differs_is_given(tmp_path: Path) -> None:
    other = state()
    other["model"]["w"][1, 2] = -1
    other["model"]["w"][2, 0] = -1
    save_with_torch(state(), tmp_path / "a")
    save_with_torch(other, tmp_path / "b")
    (difference,) = verify_checkpoints(tmp_path / "a", tmp_path / "b").differences
    assert difference.index == (1, 2)
    assert "[1, 2]" in difference.message


def test_bits_count_and_not_values(tmp_path: Path) -> None:
    for number, (one, other, same) in enumerate([(0.0, -0.0, False), (float("nan"), float("nan"), True)]):
        folders = [tmp_path / f"{number}{side}" for side in "ab"]
        for value, folder in zip((one, other), folders, strict=True):
            save_with_torch({"model": {"w": torch.tensor([value])}, "x": value}, folder)
        report = verify_checkpoints(*folders)
        assert {d.key for d in report.differences} == (set() if same else {"model.w", "x"})


def test_entries_of_one_side_are_named(tmp_path: Path) -> None:
    other = state()
    del other["step"]
    other["more"] = 1
    assert compare(tmp_path, other) == [("step", "missing"), ("more", "extra")]


def test_enough_is_enough(tmp_path: Path) -> None:
    save_with_torch({"model": {str(n): torch.tensor(n) for n in range(50)}}, tmp_path / "a")
    save_with_torch({"model": {str(n): torch.tensor(-1) for n in range(50)}}, tmp_path / "b")
    report = verify_checkpoints(tmp_path / "a", tmp_path / "b", max_differences=3)
    assert (len(report.differences), report.is_complete) == (3, False)


@pytest.mark.parametrize(
    ("change", "are_same"),
    [
        ({"dirpath": "/runs/b", **{str(number): "b" for number in range(20)}}, True),
        ({"more": 1}, True),
        ({"tensor": torch.zeros(2)}, False),
        ({"tensor": 1}, False),
        ({"extra": torch.zeros(2)}, False),
    ],
)
def test_that_tensors_are_the_same_is_known_where_other_values_differ(
    change: dict[str, Any], are_same: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two runs in two folders differ in their paths; whether all tensors had been compared was not told."""
    rest: dict[str, Any] = {"dirpath": "/runs/a", **{str(number): "a" for number in range(20)}}
    first = {"callback": {**rest, "tensor": torch.ones(2)}, "model": {"w": torch.ones(2)}}
    save_with_torch(first, tmp_path / "a")
    save_with_torch({**first, "callback": {**first["callback"], **change}}, tmp_path / "b")
    report = verify_checkpoints(tmp_path / "a", tmp_path / "b")
    assert (report.is_same, report.are_tensors_same) == (False, are_same)
    assert main(["verify", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    assert ("All tensors are the same, bit for bit" in capsys.readouterr().out) is are_same


def test_wrapped_names_count_as_the_same_and_are_said(tmp_path: Path) -> None:
    wrapped = state()
    wrapped["model"] = {f"_orig_mod.{name}": value for name, value in wrapped["model"].items()}
    wrapped["optim"]["param_groups"][0]["params"] = ["_orig_mod.w"]
    save_with_torch(state(), tmp_path / "a")
    save_with_torch(wrapped, tmp_path / "b")
    report = verify_checkpoints(tmp_path / "a", tmp_path / "b")
    assert report.is_same
    assert report.renamed == {"model.w": "model._orig_mod.w", "model.n": "model._orig_mod.n"}


def test_the_same_run_saved_in_two_ways_is_the_same() -> None:
    # The golden runs start from one seed; only `use_orig_params` differs.
    assert verify_checkpoints(PLAIN, FLAT).is_same


def test_progress_ends_at_all_bytes() -> None:
    events: list[ProgressEvent] = []
    report = verify_checkpoints(PLAIN, PLAIN, progress=events.append)
    assert events[-1].done_bytes == events[-1].total_bytes == report.nbytes


def cast_floats(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, dict):
        return {key: cast_floats(inner, dtype) for key, inner in value.items()}
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def test_what_was_asked_for_is_no_difference(tmp_path: Path) -> None:
    source = save_with_torch(state(), tmp_path / "a")
    wishes: dict[str, Any] = {"dtype": "bf16", "optimizer_dtype": "fp16"}
    convert_checkpoint(
        source, tmp_path / "out", to="accelerate", output_options=OutputOptions(renames=("^=net.",)), **wishes
    )
    assert not verify_checkpoints(source, tmp_path / "out").is_same
    report = verify_checkpoints(source, tmp_path / "out", renames=("^=net.",), **wishes)
    assert report.differences == ()
    assert report.cast == {"model.net.w": "bfloat16", "optim.state.net.w.exp_avg": "float16"}


def test_weights_alone_are_compared_where_they_alone_were_converted(tmp_path: Path) -> None:
    source = save_with_torch(state(), tmp_path / "a")
    convert_checkpoint(source, tmp_path / "out", weights_only=True)
    assert {d.kind for d in verify_checkpoints(source, tmp_path / "out").differences} == {"missing"}
    report = verify_checkpoints(source, tmp_path / "out", weights_only=True)
    assert (report.is_same, report.tensors, report.values) == (True, 2, 0)


@pytest.mark.parametrize(
    ("change_it", "asked", "said"),
    [
        (False, None, "float32 and bfloat16; the values are those that this cast gives"),
        (True, None, "float32 and bfloat16; once cast, it differs in 1 of 12 elements, by at most 1"),
        (True, "bf16", "once cast to bfloat16, it differs in 1 of 12 elements, by at most 1"),
        (False, "fp16", "float32 and bfloat16, where a cast to float16 was asked for"),
    ],
)
def test_a_cast_is_held_against_what_casting_gives(
    change_it: bool, asked: str | None, said: str, tmp_path: Path
) -> None:
    save_with_torch({"model": {"w": torch.arange(12.0).reshape(3, 4) + 1e-3}}, tmp_path / "a")
    other = cast_floats(load_with_torch(tmp_path / "a"), torch.bfloat16)
    if change_it:
        other["model"]["w"][1, 2] += 1
    save_with_torch(other, tmp_path / "b")
    report = verify_checkpoints(tmp_path / "a", tmp_path / "b", dtype=asked)
    (difference,) = report.differences
    assert difference.message.startswith(said)
    assert (difference.index, difference.largest) == ((1, 2), 1.0) if change_it else (None, None)


@pytest.mark.parametrize(("value", "is_same"), [(float("nan"), True), (float("inf"), False), (1.0, False)])
def test_a_nan_that_was_cast_may_have_any_bits(value: float, is_same: bool, tmp_path: Path) -> None:
    save_with_torch({"model": {"w": torch.tensor([1.0, float("nan"), 3.0])}}, tmp_path / "a")
    other = torch.tensor([1.0, value, 3.0], dtype=torch.bfloat16)
    if is_same:
        other.view(torch.int16)[1] = 0x7FA5  # another NaN than the one that casting makes
    save_with_torch({"model": {"w": other}}, tmp_path / "b")
    report = verify_checkpoints(tmp_path / "a", tmp_path / "b", dtype="bf16")
    assert report.is_same is is_same
    assert [difference.index for difference in report.differences] == ([] if is_same else [(1,)])


def test_the_command_takes_what_convert_took(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wishes = ["--rename", "^=net.", "--dtype", "bf16"]
    source, out = str(save_with_torch(state(), tmp_path / "a")), str(tmp_path / "out")
    assert main(["convert", source, out, *wishes]) == 0
    assert main(["verify", source, out, *wishes]) == 0
    assert "cast before it was compared, as asked: 1 tensor" in capsys.readouterr().out
    capsys.readouterr()
    assert main(["verify", source, out]) == 1
    said = capsys.readouterr().out
    assert "only the first checkpoint has it" in said
    assert "only the second checkpoint has it" in said
    assert "give the same `--rename`" in " ".join(said.split())
    assert main(["verify", source, "--dtype", "bf16"]) == 1
    assert "name the second checkpoint too" in capsys.readouterr().err
    assert main(["verify", source, out, "--rename", "nothing=x"]) == 1
    assert "changes no name" in capsys.readouterr().err


def test_names_are_those_of_the_files_and_counted_once(tmp_path: Path) -> None:
    one = save_with_torch({"model": {"w": torch.ones(2)}}, tmp_path / "one")
    convert_checkpoint(
        one, tmp_path / "out", to="lightning", output_options=OutputOptions(renames=("^=net.",))
    )
    report = verify_checkpoints(one, tmp_path / "out", renames=("^=net.",))
    assert report.renamed == {"model.w": "state_dict.net.w"}
    report = verify_checkpoints(one, tmp_path / "out")
    assert report.renamed == {}
    assert [(found.key, found.kind) for found in report.differences] == [
        ("model.w", "missing"),
        ("state_dict.net.w", "extra"),
    ]


def test_some_of_what_each_has_alone_is_shown(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_with_torch({"model": {f"{name}{n}": torch.ones(2) for n in range(9)}}, tmp_path / name)
    report = verify_checkpoints(tmp_path / "a", tmp_path / "b", max_differences=4)
    assert [found.kind for found in report.differences] == ["missing", "missing", "extra", "extra"]
    assert not report.is_complete
