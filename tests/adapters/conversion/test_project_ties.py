"""Weights that a project's own models tie: Accelerate's FSDP2 tears them where rank 0 loads for all."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.adapters.conversion.project_ties import find_tie
from fsdp_migrate.config_files import convert_config_file


if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.any_torch

HEAD = "distributed_type: FSDP\nfsdp_config:\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
LAYERS = "  fsdp_transformer_layer_cls_to_wrap: {}\n"
TRUE = "  fsdp_cpu_ram_efficient_loading: true\n"
SYNC = "  fsdp_sync_module_states: true\n"
NET = """\
from accelerate import Accelerator
class Net(nn.Module):
    def __init__(self):
        self.tok, self.head = nn.Embedding(8, 8), nn.Linear(8, 8)
        self.head.weight = self.tok.weight
"""
METHOD = "    def tie_weights(self): ...\n"


@pytest.mark.parametrize(
    ("config", "source", "loads"),
    [
        (HEAD + LAYERS.format("Block") + TRUE, NET, False),
        (HEAD + LAYERS.format("Block"), NET, False),
        (HEAD + TRUE, NET, False),
        ("distributed_type: FSDP\n", NET, False),
        (HEAD + LAYERS.format("Block") + TRUE, NET + METHOD, True),
        (HEAD + LAYERS.format("Block"), NET + METHOD, None),
        (HEAD + LAYERS.format("LlamaDecoderLayer") + TRUE, NET, True),
        (HEAD + LAYERS.format("Block") + TRUE, NET.replace("self.tok.weight", "p"), True),
        ("distributed_type: FSDP\n", NET + METHOD, None),
    ],
)
def test_false_is_written_where_the_project_ties(
    config: str, source: str, *, loads: bool | None, tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text(source)
    (tmp_path / "setup.py").write_text("")
    (tmp_path / "fsdp.yaml").write_text(config)
    done = convert_config_file(tmp_path / "fsdp.yaml").conversion
    written = re.findall(r"\bfsdp_cpu_ram_efficient_loading[\"']?: (\w+)", done.text)
    assert written == ([] if loads is None else [str(loads).lower()])
    said = [f for f in done.findings if f.subject.endswith("cpu_ram_efficient_loading")]
    torn = [f for f in said if "`Net` ties `self.head.weight` in net.py:5" in f.message]
    assert [f.code for f in torn] == ["FM343"] * (loads is False)
    assert all("`tie_weights`" in f.message for f in said)


@pytest.mark.parametrize("loads", [TRUE, ""])
@pytest.mark.parametrize("layers", ["", LAYERS.format("LlamaDecoderLayer")])
def test_where_a_model_of_transformers_may_be_trained_as_well(
    layers: str, loads: str, tmp_path: Path
) -> None:
    (tmp_path / "setup.py").write_text("")
    (tmp_path / "net.py").write_text(f"from transformers import AutoTokenizer\n{NET}")
    (tmp_path / "fsdp.yaml").write_text(HEAD + layers + loads)
    done = convert_config_file(tmp_path / "fsdp.yaml").conversion
    assert "cpu_ram_efficient_loading: false" not in done.text
    [said] = [f for f in done.findings if f.subject.endswith("cpu_ram_efficient_loading")]
    is_doubtful = not layers
    assert said.code == ("FM343" if is_doubtful else "FM340")
    assert ("`Net` ties `self.head.weight` in net.py:6" in said.message) is is_doubtful
    assert ("If that model is trained, write false" in (said.hint or "")) is is_doubtful


IN_4_BITS = "from transformers import BitsAndBytesConfig\nconfig = BitsAndBytesConfig(load_in_4bit=True)\n"


@pytest.mark.parametrize("loads", [TRUE, ""])
@pytest.mark.parametrize("name", ["fsdp.yaml", "fsdp_qlora.yaml"])
def test_weights_in_4_bits_hide_no_tie(name: str, loads: str, tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("")
    (tmp_path / "tune.py").write_text(IN_4_BITS if name == "fsdp.yaml" else "import bitsandbytes\n")
    (tmp_path / "net.py").write_text(NET)
    for layers, source, said_too in (
        (LAYERS.format("Block"), NET, "`Net` ties `self.head.weight` in net.py:5"),
        (LAYERS.format("Block"), NET + METHOD, "FSDP2 stops at buffers that the state dict holds"),
        ("", f"import transformers\n{NET}", "`Net` ties `self.head.weight` in net.py:6"),
    ):
        (tmp_path / "net.py").write_text(source)
        (tmp_path / name).write_text(HEAD + layers + loads)
        done = convert_config_file(tmp_path / name).conversion
        [said] = [f for f in done.findings if f.subject.endswith("cpu_ram_efficient_loading")]
        assert said_too in said.message
        is_torn = bool(layers) and METHOD not in source
        assert ("cpu_ram_efficient_loading: false" in done.text) is is_torn
        assert ("4-bit" in said.message) is not is_torn


def test_of_hugging_faces_trainer_too(tmp_path: Path) -> None:
    config = tmp_path / "fsdp.json"
    config.write_text('{"cpu_ram_efficient_loading": true, "backward_prefetch": "backward_pre"}')
    for source, code in ((NET, "FM343"), (NET + METHOD, "FM340")):
        (tmp_path / "net.py").write_text(f"from transformers import Trainer\n{source}")
        findings = convert_config_file(config, framework="hf", key=".").conversion.findings
        assert [f.code for f in findings if f.subject.endswith("cpu_ram_efficient_loading")] == [code]


HOLDER = NET.replace("self.head.weight = self.tok.weight", "self.lm = Qwen2ForCausalLM.from_pretrained(path)")


@pytest.mark.parametrize(
    ("source", "is_said"),
    [
        (HOLDER, True),
        (HOLDER.replace("Qwen2ForCausalLM.from_pretrained(path)", "AutoModel.from_config(c)"), True),
        (HOLDER + METHOD, False),
        (HOLDER.replace("nn.Module", "PreTrainedModel"), False),
        # Accelerate is given the model of a Trainer, not the Trainer with its reference model.
        (HOLDER.replace("nn.Module", "GRPOTrainer"), False),
        (HOLDER.replace("nn.Module", "Trainer"), False),
        (HOLDER.replace("self.lm", "lm"), False),
        (HOLDER.replace("Qwen2ForCausalLM", "Tokenizer"), False),
    ],
)
def test_a_model_of_transformers_within_one_of_the_project(
    source: str, *, is_said: bool, tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text(f"from transformers import Qwen2ForCausalLM\n{source}")
    (tmp_path / "fsdp.yaml").write_text(HEAD + LAYERS.format("Qwen2DecoderLayer") + TRUE)
    done = convert_config_file(tmp_path / "fsdp.yaml").conversion
    [said] = [f for f in done.findings if f.subject.endswith("cpu_ram_efficient_loading")]
    assert "cpu_ram_efficient_loading: true" in done.text
    assert said.code == ("FM343" if is_said else "FM340")
    assert ("`Net` holds `self.lm` in net.py:6, a model of transformers" in said.message) is is_said


def test_layers_of_the_projects_own_that_are_called_as_transformers_are(tmp_path: Path) -> None:
    (tmp_path / "fsdp.yaml").write_text(HEAD + LAYERS.format("OwnDecoderLayer") + TRUE)
    for source, code in (("class OwnDecoderLayer(nn.Module): ...\n", "FM343"), ("", "FM340")):
        (tmp_path / "net.py").write_text(f"from transformers import Trainer\n{source}")
        findings = convert_config_file(tmp_path / "fsdp.yaml").conversion.findings
        assert [f.code for f in findings if f.subject.endswith("cpu_ram_efficient_loading")] == [code]


def test_what_rank_0_sent_is_told_then(tmp_path: Path) -> None:
    config = tmp_path / "fsdp.yaml"
    (tmp_path / "net.py").write_text(NET)
    for more in ("", SYNC):
        config.write_text(HEAD + LAYERS.format("Block") + TRUE + more)
        [said] = [
            f for f in convert_config_file(config).conversion.findings if "sync_module_states" in f.subject
        ]
        assert said.code == "FM343"
        assert "set it to true" not in (said.hint or "")


def test_of_a_command_too(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "run.sh").write_text(
        "accelerate launch --use_fsdp --fsdp_transformer_layer_cls_to_wrap Block net.py\n"
    )
    text = convert_config_file(tmp_path / "run.sh").conversion.text
    assert "--fsdp_cpu_ram_efficient_loading false" in text


def test_the_method_may_stand_in_another_file(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("")
    (tmp_path / "net.py").write_text(NET.replace("nn.Module", "base.Base"))
    assert find_tie(tmp_path)
    (tmp_path / "base.py").write_text(f"class Base(nn.Module):\n{METHOD}")
    assert not find_tie(tmp_path)
    (tmp_path / "net.py").write_text(
        "class Net:\n    def __init__(self):\n        self.a.weight = self.b.weight"
    )
    assert not find_tie(tmp_path)


def test_a_source_for_a_newer_python_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(f"type Size = int\n{NET}")
    (tmp_path / "setup.py").touch()
    assert find_tie(tmp_path)
