"""What each target writes: names, files and findings, and that nothing of the source is left out unsaid."""

from __future__ import annotations

import json
import shlex
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
import torch
from safetensors.torch import load_file

from fsdp_migrate.checkpoint_convert import (
    ModelOutline,
    OutputOptions,
    SourceOptions,
    convert_checkpoint,
    inspect_checkpoint,
    plan_conversion,
    read_model_files,
    verify_checkpoints,
)
from fsdp_migrate.checkpoint_convert.targets.frameworks import TARGETS
from fsdp_migrate.cli import main
from fsdp_migrate.errors import ConfigError, OutputExistsError, PlanError
from tests.checkpoint.samples import (
    COMPOSER,
    DATA,
    FLAT,
    PLAIN,
    contents,
    expected,
    load_with_torch,
    save_with_torch,
)


if TYPE_CHECKING:
    from pathlib import Path


CLASS = OutputOptions(optimizer_class="AdamW")


def codes(report: Any) -> set[str]:
    return {finding.code for finding in report.findings}


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("source", [PLAIN, COMPOSER], ids=["torch", "composer"])
def test_every_entry_is_in_the_output_or_named(source: Path, to: str) -> None:
    manifest = inspect_checkpoint(source)
    plan = plan_conversion(manifest, to=to, output_options=CLASS)
    kept = {entry.source.key for entry in plan.entries}
    kept |= {entry.key for file in plan.files for entry in file.sources}
    # A flattened optimizer has its groups under each parameter, which leaves nothing to list in them.
    listed = {names.key for names in manifest.name_lists} if to == "torchtitan" else set()
    assert set(manifest.entries) - kept == set(plan.left_out)
    named = " ".join(f"{finding.subject} {finding.message}" for finding in plan.findings)
    for part in manifest.parts:
        lost = [key for key in part.keys if key in plan.left_out and key not in listed]
        assert not lost or f"`{part.name}`" in named or all(key in named for key in lost), part.name
    others = {part.name for part in manifest.parts if part.kind == "other"}
    moved = {part.name for part in manifest.parts if part.kind == "other" and set(part.keys) - kept == set()}
    assert to == "hf" or others == moved


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("name", ["torch-2.3.1/mesh.dcp", "composer-0.32.1/ep0-ba2"])
def test_verify_finds_a_target_the_same_and_a_cast_different(name: str, to: str, tmp_path: Path) -> None:
    convert_checkpoint(DATA / name, tmp_path / "out", to=to, world_size=3, output_options=CLASS)
    report = verify_checkpoints(DATA / name, tmp_path / "out")
    assert report.differences == ()
    parts = inspect_checkpoint(DATA / name).part_of()
    assert all(parts[key].kind == "other" or to == "hf" for key in report.aside if key in parts)
    wanted = [e.key for e in inspect_checkpoint(DATA / name).tensors if parts[e.key].kind == "model"]
    # Of a tied pair safetensors have one.
    assert report.tensors >= len(wanted) - (to == "hf")
    out = inspect_checkpoint(tmp_path / "out")
    damaged = convert_checkpoint(
        tmp_path / "out", tmp_path / "other", to="hf" if to == "hf" else "torch", dtype="bf16"
    )
    assert damaged.output
    assert not verify_checkpoints(out, tmp_path / "other").is_same


def test_safetensors_of_the_model_alone(tmp_path: Path) -> None:
    report = convert_checkpoint(PLAIN, tmp_path / "out", to="hf", checksums=True)
    assert [p.name for p in sorted((tmp_path / "out").iterdir())] == ["SHA256SUMS", "model.safetensors"]
    loaded = load_file(tmp_path / "out" / "model.safetensors")
    wanted = expected(PLAIN)["model"]
    assert torch.equal(wanted.pop("head.weight"), wanted["emb.weight"])  # they are tied
    assert loaded.keys() == wanted.keys()
    assert all(torch.equal(loaded[name], wanted[name]) for name in wanted)
    assert "FM257" in codes(report)
    assert "FM257" not in codes(convert_checkpoint(PLAIN, tmp_path / "w", to="hf", weights_only=True))


@pytest.mark.parametrize("to", ["accelerate", "hf", "lightning", "torchtitan"])
def test_an_output_of_any_target_can_be_replaced_and_gone_on_with(to: str, tmp_path: Path) -> None:
    convert_checkpoint(PLAIN, tmp_path / "out", to=to, checksums=True)
    before = contents(tmp_path / "out")
    convert_checkpoint(PLAIN, tmp_path / "out", to=to, checksums=True, overwrite=True, resume=True)
    after = contents(tmp_path / "out")
    assert after.keys() == before.keys()
    data = {name for name in after if not name.endswith((".metadata", "SHA256SUMS"))}
    assert all(after[name] == before[name] for name in data)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(OutputExistsError, match="no checkpoint"):
        convert_checkpoint(PLAIN, tmp_path / "mine", to=to, overwrite=True)


def test_safetensors_in_pieces_with_an_index(tmp_path: Path) -> None:
    options = OutputOptions(max_shard_size=400)
    convert_checkpoint(PLAIN, tmp_path / "out", to="hf", dtype="bf16", output_options=options)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    names = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert len(names) > 2
    assert set(index["weight_map"].values()) == set(names)
    loaded: dict[str, torch.Tensor] = {}
    for name in names:
        piece = load_file(tmp_path / "out" / name)
        assert {index["weight_map"][key] for key in piece} == {name}
        assert sum(t.nbytes for t in piece.values()) <= 400 or len(piece) == 1
        loaded.update(piece)
    wanted = expected(PLAIN)["model"]
    assert torch.equal(wanted.pop("head.weight"), wanted["emb.weight"])  # they are tied
    assert loaded.keys() == wanted.keys()
    for name, tensor in wanted.items():
        cast = tensor.bfloat16() if tensor.is_floating_point() else tensor
        assert torch.equal(loaded[name], cast), name
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in loaded.values())


def test_transformers_loads_its_model_beside_a_config_that_is_not_touched(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=17,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    save_with_torch({"model": model.state_dict(), "step": 3}, tmp_path / "source")
    config.save_pretrained(tmp_path / "source")
    written = (tmp_path / "source" / "config.json").read_bytes()
    options = OutputOptions(max_shard_size=2000)
    convert_checkpoint(tmp_path / "source", tmp_path / "out", to="hf", output_options=options)
    assert (tmp_path / "out" / "config.json").read_bytes() == written
    load: Any = LlamaForCausalLM.from_pretrained
    loaded, info = load(tmp_path / "out", dtype=torch.float32, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_further_names_of_tied_weights_are_left_out_and_no_others(tmp_path: Path) -> None:
    """Zeros, as LoRA starts with, are the same bits too; frozen copies are not tied without an optimizer."""
    torch.manual_seed(0)
    weight = torch.randn(40, 3)
    model = {
        "emb.weight": weight,
        "head.weight": weight.clone(),
        "a": torch.zeros(3, 3),
        "b": torch.zeros(3, 3),
    }
    state = {name: {"exp_avg": torch.ones_like(model[name])} for name in ("emb.weight", "a")}
    groups = [{"lr": 0.1, "params": list(state)}]
    optimizer = {"state": state, "param_groups": groups}
    save_with_torch({"model": model, "optim": optimizer}, tmp_path / "trained")
    save_with_torch({"model": model}, tmp_path / "alone")
    torch.save({"model": {**model, "head.weight": weight}}, tmp_path / "file.pt")
    outline = ModelOutline({"emb.weight": (40, 3)}, aliases={"head.weight": "emb.weight"})
    for name, given, kept in (
        ("trained", None, {"emb.weight", "a", "b"}),
        ("alone", None, set(model)),
        ("alone", outline, {"emb.weight", "a", "b"}),
        ("file.pt", None, {"emb.weight", "a", "b"}),
    ):
        out = tmp_path / f"{name}-{given is None}"
        report = convert_checkpoint(tmp_path / name, out, to="hf", options=SourceOptions(model=given))
        assert load_file(out / "model.safetensors").keys() == kept
        assert ("FM264" in codes(report)) == (len(kept) == 3)


@pytest.mark.parametrize("name", ["torch-2.3.1/mesh.dcp", "torch-2.13.0/plain.dcp"])
def test_groups_are_divided_by_parameter_as_torch_flattens_them(name: str, tmp_path: Path) -> None:
    report = convert_checkpoint(DATA / name, tmp_path / "out", to="torchtitan")
    wanted = expected(DATA / name)
    state = load_with_torch(tmp_path / "out")
    for key, tensor in wanted["model"].items():
        assert torch.equal(state[key], tensor), key
    flat = {
        f"state.{parameter}.{moment}"
        for parameter, moments in wanted["optimizer"]["state"].items()
        for moment in moments
    }
    for group in wanted["optimizer"]["param_groups"]:
        for parameter in group["params"]:
            # Torch before 2.7 did not save the first, which later ones look for.
            for field, value in {"decoupled_weight_decay": False, **group}.items():
                if field != "params":
                    flat.add(f"param_groups.{parameter}.{field}")
                    assert state["optimizer"][f"param_groups.{parameter}.{field}"] == value
    assert state["optimizer"].keys() == flat
    assert "FM253" in codes(report)


def test_composer_to_the_folders_of_accelerate(tmp_path: Path) -> None:
    report = convert_checkpoint(COMPOSER, tmp_path / "out", to="accelerate")
    found = {name.partition("/")[0] for name in contents(tmp_path / "out")}
    assert found == {"optimizer_0", "other_0", "pytorch_model_fsdp_0", "scheduler.bin"}
    state = load_with_torch(tmp_path / "out" / "other_0")
    assert state["state"]["timestamp"]["Timestamp"]["batch"] == 2
    assert torch.load(tmp_path / "out" / "scheduler.bin", weights_only=True)["last_epoch"] == 2
    assert {"FM214", "FM250"} <= codes(report)


def test_composer_to_lightning_keeps_count(tmp_path: Path) -> None:
    report = convert_checkpoint(COMPOSER, tmp_path / "out", to="lightning")
    meta = torch.load(tmp_path / "out" / "meta.pt", weights_only=True)
    assert (meta["epoch"], meta["global_step"]) == (0, 2)
    assert [scheduler["last_epoch"] for scheduler in meta["lr_schedulers"]] == [2]
    assert "FM256" in codes(report)


class Warmup:
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __call__(self, step: int) -> float:
        return min(1.0, (step + 1) / self.steps)


@pytest.mark.parametrize("has_attributes", [False, True])
def test_functions_of_a_scheduler_that_torch_did_not_store(has_attributes: bool, tmp_path: Path) -> None:
    """torch.distributed.checkpoint stores no empty mappings, and LambdaLR has one for each plain function."""

    def make(steps: int) -> torch.optim.lr_scheduler.LambdaLR:
        groups = [{"params": [torch.nn.Parameter(torch.ones(2))]} for _ in range(2)]
        halves: Any = partial(pow, 0.5)
        functions = [halves, Warmup(steps) if has_attributes else halves]
        return torch.optim.lr_scheduler.LambdaLR(torch.optim.SGD(groups, lr=1.0), functions)

    saved = make(4)
    saved.optimizer.step()
    saved.step()
    source = save_with_torch(
        {"model": {"a": torch.ones(2)}, "scheduler": saved.state_dict()}, tmp_path / "source"
    )
    convert_checkpoint(source, tmp_path / "accelerate", to="accelerate")
    convert_checkpoint(source, tmp_path / "lightning", to="lightning")
    own = torch.load(tmp_path / "accelerate" / "scheduler.bin", weights_only=True)
    (other,) = torch.load(tmp_path / "lightning" / "meta.pt", weights_only=True)["lr_schedulers"]
    saved.optimizer.step()
    saved.step()
    for state in (own, other):
        found = make(2)
        found.load_state_dict(state)
        found.optimizer.step()
        found.step()
        assert found.get_last_lr() == saved.get_last_lr()


def test_several_optimizers_become_one_as_get_state_dict_makes_them(tmp_path: Path) -> None:
    def part(name: str, lr: float) -> dict[str, Any]:
        group = {"lr": lr, "params": [name]}
        return {"state": {name: {"exp_avg": torch.full((3,), lr)}}, "param_groups": [group]}

    state = {
        "state": {
            "model": {"a": torch.ones(3), "b": torch.zeros(3)},
            "optimizers": {"AdamW": part("a", 0.1), "SGD": part("b", 0.2)},
            "timestamp": {"batch": 1},
            "run_name": "two",
        }
    }
    save_with_torch(state, tmp_path / "source")
    convert_checkpoint(tmp_path / "source", tmp_path / "out", to="torch")
    found = load_with_torch(tmp_path / "out")["optim"]
    assert [(group["lr"], group["params"]) for group in found["param_groups"]] == [(0.1, ["a"]), (0.2, ["b"])]
    assert found["state"]["b"]["exp_avg"][0] == pytest.approx(0.2)
    convert_checkpoint(tmp_path / "source", tmp_path / "apart", to="accelerate")
    for number, lr in enumerate((0.1, 0.2)):
        own = load_with_torch(tmp_path / "apart" / f"optimizer_{number}")["optimizer"]
        assert own["param_groups"][0]["lr"] == lr


def test_what_a_target_cannot_hold_is_refused() -> None:
    refused = [
        (PLAIN, "composer", None, "FM254"),
        (FLAT.with_name("plain.dcp"), "composer", "AdamW", None),
    ]
    for source, to, name, code in refused:
        manifest = inspect_checkpoint(source)
        options = OutputOptions(optimizer_class=name)
        if code is None:
            assert "FM255" in codes(plan_conversion(manifest, to=to, output_options=options))
            continue
        with pytest.raises(PlanError) as caught:
            plan_conversion(manifest, to=to, output_options=options)
        assert {finding.code for finding in caught.value.findings} == {code}


def test_two_models_and_flattened_optimizers_are_refused_where_one_is_looked_for(tmp_path: Path) -> None:
    weights = {"w": torch.ones(2)}
    save_with_torch({"model": weights, "net": weights}, tmp_path / "models")
    flat = {"state.w.exp_avg": torch.ones(2), "param_groups.w.lr": 0.1}
    save_with_torch({"model": weights, "optim": flat}, tmp_path / "flat")
    for name, to, code in (
        ("models", "lightning", "FM251"),
        ("models", "hf", "FM251"),
        ("flat", "accelerate", "FM252"),
        ("flat", "lightning", "FM252"),
    ):
        with pytest.raises(PlanError, match=to) as caught:
            plan_conversion(inspect_checkpoint(tmp_path / name), to=to)
        assert [finding.code for finding in caught.value.findings] == [code]
    convert_checkpoint(tmp_path / "flat", tmp_path / "out", to="torchtitan")
    assert load_with_torch(tmp_path / "out")["optimizer"].keys() == flat.keys()


def test_sizes_and_classes_that_mean_nothing() -> None:
    wrong: list[dict[str, Any]] = [{"max_shard_size": 0}, {"optimizer_class": "torch.optim.AdamW"}]
    for options in wrong:
        with pytest.raises(ConfigError, match=next(iter(options))):
            OutputOptions(**options)


@pytest.mark.parametrize("where", ["local", "url"])
def test_only_the_weights_of_a_model_folder_are_replaced(where: str, tmp_path: Path) -> None:
    fs: Any = fsspec.filesystem("memory" if where == "url" else "file")
    out = "memory://out-of-weights" if where == "url" else str(tmp_path / "out")
    folder = "/out-of-weights" if where == "url" else out
    others = {"config.json": b"{}", "tokenizer/vocab.txt": b"a", "adapter_model.safetensors": b"lora"}
    old = {"model-00001-of-00002.safetensors": b"old", "model.safetensors.index.json": b"{}"}
    for name, data in {**others, **old, "SHA256SUMS": b"of the old"}.items():
        fs.makedirs(f"{folder}/{name}".rpartition("/")[0], exist_ok=True)
        fs.pipe_file(f"{folder}/{name}", data)
    with pytest.raises(OutputExistsError):
        convert_checkpoint(PLAIN, out, to="hf")
    report = convert_checkpoint(PLAIN, out, to="hf", overwrite=True)
    (said,) = (finding for finding in report.findings if finding.code == "FM282")
    assert said.message == "`adapter_model.safetensors`, `config.json`, `tokenizer/vocab.txt`."
    found = {path[len(folder) + 1 :]: fs.cat_file(path) for path in fs.find(folder)}
    assert found.pop("model.safetensors")
    assert found == others
    # Whoever asks for another kind of checkpoint is not taken to mean that.
    if where == "local":
        (tmp_path / "out" / "model.safetensors").unlink()
        with pytest.raises(OutputExistsError, match="is no checkpoint"):
            convert_checkpoint(PLAIN, out, to="torch", overwrite=True)


def huggingface_state(tmp_path: Path, *, inner: bool = True) -> Path:
    """Return what Composer saves of a ``HuggingFaceModel``, or of a model of the user's that has one."""
    weights = {"model.model.embed_tokens.weight": torch.ones(4, 2), "model.lm_head.weight": torch.zeros(4, 2)}
    if not inner:
        weights["scale"] = torch.ones(1)
    config = {"content": {"model_type": "llama"}, "class": "transformers.LlamaForCausalLM"}
    integrations = {"huggingface": {"model": {"config": config}, "tokenizer": {}}}
    state = {"model": weights, "algorithms": [], "integrations": integrations, "timestamp": {"Timestamp": {}}}
    return save_with_torch({"state": state, "rng": [{"torch": torch.get_rng_state()}]}, tmp_path / "ep0-ba2")


def test_a_huggingface_model_leaves_its_attribute_behind(tmp_path: Path) -> None:
    source = huggingface_state(tmp_path)
    report = convert_checkpoint(source, tmp_path / "out", to="hf")
    assert "FM276" in codes(report)
    assert sorted(load_file(tmp_path / "out" / "model.safetensors")) == [
        "lm_head.weight",
        "model.embed_tokens.weight",
    ]
    assert verify_checkpoints(source, tmp_path / "out").is_same
    # Who names the weights decides about all of it.
    asked = OutputOptions(renames=("^model[.]lm=model.LM",))
    report = convert_checkpoint(source, tmp_path / "asked", to="hf", output_options=asked)
    assert "FM276" not in codes(report)
    assert "model.LM_head.weight" in load_file(tmp_path / "asked" / "model.safetensors")
    assert verify_checkpoints(source, tmp_path / "asked", renames=asked.renames).is_same
    # Elsewhere names are kept: FSDP2 loads them into the same HuggingFaceModel.
    report = convert_checkpoint(source, tmp_path / "torch", to="torch")
    assert "model.model.lm_head.weight" in report.plan.renamed.values()


def test_names_beside_the_attribute_keep_all_of_them(tmp_path: Path) -> None:
    source = huggingface_state(tmp_path, inner=False)
    report = convert_checkpoint(source, tmp_path / "out", to="hf")
    assert "FM276" not in codes(report)
    assert "model.lm_head.weight" in load_file(tmp_path / "out" / "model.safetensors")
    assert verify_checkpoints(source, tmp_path / "out").is_same


def test_what_is_said_of_an_optimizer_is_not_said_where_it_is_left_out(tmp_path: Path) -> None:
    moment = torch.rand(4, 2)
    own = {"step": torch.tensor(1.0), "exp_avg": moment, "exp_avg_sq": moment}
    optimizer = {"state": {"w": own}, "param_groups": [{"params": ["w"], "lr": 0.1}]}
    torch.save({"model": {"w": torch.ones(4, 2)}, "optimizer": optimizer}, tmp_path / "full.pt")
    manifest = inspect_checkpoint(tmp_path / "full.pt")
    with pytest.raises(PlanError, match="FM217"):
        plan_conversion(manifest, to="torch")
    assert "FM217" not in codes(plan_conversion(manifest, to="torch", without_optimizer=True))
    assert "FM217" not in codes(plan_conversion(manifest, to="hf"))
    assert "FM217" not in codes(plan_conversion(manifest, weights_only=True))


def corrupt_state(folder: Path) -> Path:
    moment = torch.rand(4, 2)
    own = {"step": torch.tensor(1.0), "exp_avg": moment, "exp_avg_sq": moment}
    optimizer = {"state": {"w": own}, "param_groups": [{"params": ["w"], "lr": 0.1}]}
    state = {"model": {"w": torch.ones(4, 2)}, "optimizer": optimizer, "epoch": 3}
    torch.save(state, folder / "full.pt")
    return folder / "full.pt"


def test_a_corrupt_optimizer_is_refused_unless_told_otherwise(tmp_path: Path) -> None:
    source = corrupt_state(tmp_path)
    with pytest.raises(PlanError, match=r"FM217 .*--without-optimizer.*--keep-corrupt-optimizer"):
        convert_checkpoint(source, tmp_path / "no")
    assert not (tmp_path / "no").exists()
    report = convert_checkpoint(source, tmp_path / "without", without_optimizer=True)
    assert "FM217" not in codes(report)
    loaded = load_with_torch(tmp_path / "without")
    assert loaded["epoch"] == 3
    assert "optimizer" not in loaded
    assert verify_checkpoints(source, tmp_path / "without", without_optimizer=True).is_same
    assert not verify_checkpoints(source, tmp_path / "without").is_same
    kept = OutputOptions(keep_corrupt_optimizer=True)
    report = convert_checkpoint(source, tmp_path / "kept", output_options=kept)
    assert "FM291" in codes(report)
    assert verify_checkpoints(source, tmp_path / "kept").is_same


def test_the_command_refuses_a_corrupt_optimizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(corrupt_state(tmp_path))
    assert main(["convert", source, str(tmp_path / "out")]) == 1
    assert "FM217" in capsys.readouterr().err
    assert main(["inspect", source]) == 0
    assert "FM217" in capsys.readouterr().out
    assert main(["convert", source, str(tmp_path / "out"), "--without-optimizer"]) == 0
    (line,) = (each for each in capsys.readouterr().out.splitlines() if each.startswith("To compare them: "))
    assert "--without-optimizer" in line
    assert main(shlex.split(line)[4:]) == 0
    assert main(["convert", source, str(tmp_path / "kept"), "--keep-corrupt-optimizer", "--strict"]) == 3
    assert main(["convert", source, str(tmp_path / "kept"), "--keep-corrupt-optimizer"]) == 0


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "LICENSE").write_text("free")
    (folder / "training_args.bin").write_bytes(b"PK a pickle")
    (folder / "model.safetensors").write_bytes(b"old weights")
    (folder / "model.safetensors.index.json").write_text("{}")
    return folder


@pytest.mark.parametrize("size", [1 << 40, 64])
def test_a_model_gets_its_configuration_and_tokenizer(tmp_path: Path, model_folder: Path, size: int) -> None:
    files = read_model_files(model_folder)
    assert set(files) == {"config.json", "tokenizer.json", "LICENSE"}
    options = OutputOptions(model_files=files, max_shard_size=size)
    report = convert_checkpoint(PLAIN, tmp_path / "out", to="hf", output_options=options, checksums=True)
    assert "FM292" not in codes(report)
    for name, data in files.items():
        assert (tmp_path / "out" / name).read_bytes() == data
        assert name in (tmp_path / "out" / "SHA256SUMS").read_text()
    assert not (tmp_path / "out" / "training_args.bin").exists()
    assert verify_checkpoints(PLAIN, tmp_path / "out").is_same
    assert "FM292" not in codes(convert_checkpoint(PLAIN, tmp_path / "out", to="hf", overwrite=True))


def test_what_a_published_model_lacks_is_said_and_no_pickle_comes_along(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(PLAIN, source)
    for name in ("training_args.bin", "rng_state_0.pth", "other.pkl", "trainer_state.json"):
        (source / name).write_bytes(b"\x80\x04K\x01.")
    (source / "README.md").write_text("mine")
    report = convert_checkpoint(source, tmp_path / "out", to="hf")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"README.md", "model.safetensors"}
    (finding,) = (each for each in report.findings if each.code == "FM292")
    assert "`config.json` and the tokenizer" in finding.message
    assert "--hf-config" in (finding.hint or "")
    (left,) = (each for each in report.findings if each.code == "FM212")
    assert "`training_args.bin`" in left.message
    (source / "config.json").write_text("{}")
    (source / "vocab.txt").write_text("a")
    assert "FM292" not in codes(convert_checkpoint(source, tmp_path / "whole", to="hf"))


def test_the_command_takes_the_folder_of_a_model(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["convert", str(PLAIN), str(tmp_path / "out"), "--to", "hf", "--hf-config"]
    assert main([*arguments, str(model_folder)]) == 0
    assert (tmp_path / "out" / "config.json").is_file()
    assert main([*arguments, str(tmp_path)]) == 1
    assert "has no config.json" in capsys.readouterr().err
