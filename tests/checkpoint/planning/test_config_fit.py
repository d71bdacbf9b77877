"""An output for Hugging Face beside a config.json that is of another model, or of another dtype."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Final

import pytest
import torch

from fsdp_migrate.cli import main
from tests.checkpoint.samples import PLAIN


if TYPE_CHECKING:
    from pathlib import Path


_TINY: Final = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 16, "n_positions": 8}


def _gpt2(tmp_path: Path, attribute: str, **more: object) -> tuple[Path, Path]:
    """Return a checkpoint of a module that holds a GPT-2 as an attribute, and the folder of its config."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(**_TINY, bos_token_id=0, eos_token_id=0, **more)
    state = transformers.GPT2LMHeadModel(config).state_dict()
    torch.save({f"{attribute}{name}": value for name, value in state.items()}, tmp_path / "model.pt")
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text(json.dumps(config.to_dict()))
    return tmp_path / "model.pt", tmp_path / "base"


def said(capsys: pytest.CaptureFixture[str], *typed: str | Path) -> dict[str, dict[str, str]]:
    assert main(["convert", *map(str, typed), "--to", "hf", "--json", "--all"]) == 0
    document = json.loads(capsys.readouterr().out)
    findings = document["plan" if document["dry_run"] else "report"]["findings"]
    return {each["code"]: each for each in findings}


@pytest.mark.parametrize("where", ["given", "source", "standing"])
def test_names_of_a_wrapper_do_not_fit_and_the_rename_that_does_is_named(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, base = _gpt2(tmp_path, "lm.")
    out = tmp_path / "out"
    given: list[str | Path] = ["--hf-config", base]
    if where == "source":
        shutil.move(source, base)
        source, given = base, []
    elif where == "standing":
        shutil.copytree(base, out)
        given = ["--overwrite"]
    dry = said(capsys, source, out, *given, "--dry-run")
    found = said(capsys, source, out, *given)
    assert found["FM266"] == dry["FM266"]
    assert "no name in the output (`lm.transformer." in found["FM266"]["message"]
    assert "random values" in found["FM266"]["message"]
    assert found["FM266"]["hint"].startswith(
        r"Convert again with `--rename '^lm\.='`, and `--overwrite` where"
    )
    again = said(capsys, source, out, *given, *["--overwrite"][len(given) % 2 :][:1], "--rename", r"^lm\.=")
    assert "FM266" not in again


def test_names_that_from_pretrained_finds_are_not_spoken_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, base = _gpt2(tmp_path, "")
    assert not {"FM266", "FM268"} & set(said(capsys, source, tmp_path / "out", "--hf-config", base))
    # Without a head names have no prefix; from_pretrained puts it before them.
    state = torch.load(source)
    bare = {k.removeprefix("transformer."): v for k, v in state.items() if k.startswith("transformer.")}
    torch.save(bare, source)
    assert "FM266" not in said(capsys, source, tmp_path / "bare", "--hf-config", base)


@pytest.mark.parametrize(
    "text", ['{"model_type": "gpt2", "auto_map": {}}', '{"model_type": "of nobody"}', "[]", "{"]
)
def test_a_config_that_tells_no_names_is_said(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, base = _gpt2(tmp_path, "lm.")
    (base / "config.json").write_text(text)
    dry = said(capsys, source, tmp_path / "out", "--hf-config", base, "--dry-run")
    found = said(capsys, source, tmp_path / "out", "--hf-config", base)
    assert "FM266" not in found
    assert found["FM268"] == dry["FM268"]
    assert found["FM268"]["message"].startswith("`from_pretrained` may look for other names than those of")


def test_what_lacks_is_named_where_a_part_of_the_names_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, base = _gpt2(tmp_path, "", architectures=["GPT2LMHeadModel"])
    state = torch.load(source)
    renamed = {name.replace("ln_f.", "final_norm."): value for name, value in state.items()}
    torch.save(renamed, source)
    found = said(capsys, source, tmp_path / "out", "--hf-config", base)["FM266"]
    assert (
        "2 of its parameters are not there: `transformer.ln_f.weight`, `transformer.ln_f.bias`"
        in found["message"]
    )
    assert "--rename '" not in found["hint"]
    # Without a class there the head is not known, nor whether it has all that the model without one has.
    (base / "config.json").write_text(json.dumps({"model_type": "gpt2", **_TINY}))
    assert "FM266" not in said(capsys, source, tmp_path / "guess", "--hf-config", base)


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_a_config_that_names_another_dtype_than_the_weights_have_is_told(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text(json.dumps({"model_type": "own", key: "float32"}))
    given = ("--hf-config", tmp_path / "base")
    assert "FM267" not in said(capsys, PLAIN, tmp_path / "as-it-is", *given)
    found = said(capsys, PLAIN, tmp_path / "cast", *given, "--dtype", "bf16")["FM267"]
    assert f"`{key}` is float32, and the weights are bfloat16" in found["message"]
    assert "dtype=torch.bfloat16" in found["hint"]


def test_the_dtype_that_is_named_rounds_none_of_the_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(
        {"a.weight": torch.ones(2, dtype=torch.bfloat16), "b.weight": torch.ones(2)}, tmp_path / "m.pt"
    )
    (tmp_path / "config.json").write_text('{"model_type": "own", "dtype": "float16"}')
    found = said(capsys, tmp_path / "m.pt", tmp_path / "out", "--hf-config", tmp_path)["FM267"]
    assert "write float32 there" in found["hint"]


def test_an_adapter_alone_is_not_held_against_the_config_of_its_base(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    names = [f"base_model.model.h.0.attn.c_attn.lora_{side}.default.weight" for side in "AB"]
    torch.save({name: torch.ones(2, 2) for name in names}, tmp_path / "m.pt")
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "dtype": "bfloat16", **_TINY}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = said(capsys, tmp_path / "m.pt", tmp_path / "out", "--hf-config", tmp_path)
    assert not {"FM266", "FM267", "FM268"} & set(found)


@pytest.mark.parametrize(("key", "is_vocabulary"), [("vocab_size", True), ("n_positions", False)])
def test_weights_of_another_size_than_the_model_of_the_config_has_are_named(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, is_vocabulary: bool
) -> None:
    source, base = _gpt2(tmp_path, "", architectures=["GPT2LMHeadModel"])
    assert "FM269" not in said(capsys, source, tmp_path / "same", "--hf-config", base)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, key: config[key] + 4}))
    dry = said(capsys, source, tmp_path / "out", "--hf-config", base, "--dry-run")["FM269"]
    found = said(capsys, source, tmp_path / "out", "--hf-config", base)["FM269"]
    assert found == dry
    name = "transformer.wte.weight" if is_vocabulary else "transformer.wpe.weight"
    assert f"`{name}` has [{config[key]}, 8], and the model [{config[key] + 4}, 8]" in found["message"]
    assert (f'write `"vocab_size": {config[key]}`' in found["hint"]) is is_vocabulary
    # What it says is so, and what it tells to do helps.
    transformers = pytest.importorskip("transformers")
    with pytest.raises(RuntimeError):
        transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out")
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out")


def test_names_without_the_models_prefix_are_of_its_sizes_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, base = _gpt2(tmp_path, "")
    state = torch.load(source)
    torch.save(
        {k.removeprefix("transformer."): v for k, v in state.items() if k.startswith("transformer.")}, source
    )
    assert "FM269" not in said(capsys, source, tmp_path / "out", "--hf-config", base)
