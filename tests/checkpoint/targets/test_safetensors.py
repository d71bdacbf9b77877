"""What the target of safetensors writes, leaves out and takes from the folder of a model."""

from __future__ import annotations

import json
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
    verify_checkpoints,
)
from fsdp_migrate.errors import OutputExistsError
from tests.checkpoint.samples import PLAIN, codes, expected, save_with_torch


if TYPE_CHECKING:
    from pathlib import Path


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
