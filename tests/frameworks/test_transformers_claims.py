"""What the installed transformers makes of ``fsdp`` and ``fsdp_config``, against what is claimed of it."""

from __future__ import annotations

from typing import Any

import pytest

from fsdp_migrate.adapters.engine.claims import TRANSFORMERS, Claim
from fsdp_migrate.adapters.engine.shared_keys import names_transformers_layer
from tests.frameworks.claims import run, wrong


pytestmark = pytest.mark.any_torch


# Before 5.0 the arguments set the environment, from which Accelerate's plugin reads.
ARGUMENTS = """
import contextlib, json, logging, os, sys
from accelerate.utils import FullyShardedDataParallelPlugin
from transformers import TrainingArguments
found, told = [], []
class Told(logging.Handler):
    def emit(self, record):
        told.append(record.getMessage())
logging.getLogger("transformers").addHandler(Told())
for case in json.loads(sys.argv[1]):
    for name in [name for name in os.environ if name.startswith("FSDP_")]:
        del os.environ[name]
    told.clear()
    try:
        given = TrainingArguments(output_dir="x", use_cpu=True, report_to=[], **case)
    except Exception as error:
        found.append({"error": str(error) or type(error).__name__})
        continue
    names = ("fsdp_version", "reshard_after_forward", "cpu_offload", "auto_wrap_policy", "min_num_params",
             "state_dict_type", "backward_prefetch", "transformer_cls_names_to_wrap")
    if hasattr(given, "fsdp_plugin_args"):
        found.append({name: (given.fsdp_plugin_args or {}).get(name) for name in names})
    else:
        read = {"fsdp_version": "VERSION", "cpu_offload": "OFFLOAD_PARAMS",
                "transformer_cls_names_to_wrap": "TRANSFORMER_CLS_TO_WRAP"}
        found.append({name: os.environ.get("FSDP_" + read.get(name, name.upper())) for name in names})
    with contextlib.suppress(Exception):  # sending weights asks for an accelerator
        plugin = FullyShardedDataParallelPlugin(**(getattr(given, "fsdp_plugin_args", None) or {}))
        found[-1]["strategy"] = str(plugin.sharding_strategy or plugin.reshard_after_forward)
    found[-1]["held"] = repr(given.fsdp)
    found[-1]["warned"] = any("`fsdp` as a string is deprecated" in text for text in told)
print(json.dumps(found))
"""
# Whether `save_model` under FSDP writes with each type of state dicts, whether `save_pretrained` leaves the
# state that it is given whole, and what a command line may hold: in one process, because each spends seconds
# on the Trainer's imports.
TRAINER = """
import json, tempfile
from types import SimpleNamespace
from transformers import BertConfig, BertModel, HfArgumentParser, Trainer, TrainingArguments
def saves(kind):
    saved = []
    plugin = SimpleNamespace(state_dict_type=f"StateDictType.{kind}")
    trainer = SimpleNamespace(
        args=SimpleNamespace(output_dir="x", should_save=True, push_to_hub=False), is_fsdp_enabled=True,
        model=None, model_wrapped=None,
        accelerator=SimpleNamespace(
            state=SimpleNamespace(fsdp_plugin=plugin), get_state_dict=lambda model, **_: {}
        ),
        _save=lambda *_, **__: saved.append(1),
    )
    Trainer.save_model(trainer, "x", _internal_call=True)
    return bool(saved)
found = {"saves": {kind: saves(kind) for kind in ("FULL_STATE_DICT", "SHARDED_STATE_DICT")}}
size = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=9)
model = BertModel(BertConfig(**size))
state = model.state_dict()
with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder, state_dict=state)
found["empties"] = not state
words = ["--output_dir", "x", "--use_cpu", "--report_to", "none", "--fsdp", "full_shard"]
try:
    given, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(
        [*words, "--fsdp_config", '{"version": 2}']
    )
    found["json"] = given.fsdp_config["version"] == 2
except FileNotFoundError:
    found["json"] = False
import inspect, re
sets = re.search(r"self\\.fsdp\\b", inspect.getsource(Trainer))
found["sets_fsdp"] = hasattr(Trainer, "fsdp") or sets is not None
print(json.dumps(found))
"""
# The sources are read, and no model is imported.
LAYERS = """
import json, re
from importlib.util import find_spec
from pathlib import Path
names = set()
for file in (Path(find_spec("transformers").origin).parent / "models").glob("*/modeling_*.py"):
    for held in re.findall(r"_no_split_modules\\s*=\\s*\\[([^]]*)\\]", file.read_text()):
        names.update(re.findall(r"\\w+", held))
print(json.dumps(sorted(names)))
"""
WORDS = "full_shard auto_wrap"
CASES: dict[str, dict[str, Any]] = {
    "none": {},
    "plain": {"fsdp": WORDS},
    "two": {"fsdp": WORDS, "fsdp_config": {"version": 2}},
    "state": {"fsdp": WORDS, "fsdp_config": {"version": 2, "state_dict_type": "FULL_STATE_DICT"}},
    "offload": {"fsdp": WORDS, "fsdp_config": {"version": 2, "cpu_offload": True}},
    "offload word": {"fsdp": f"{WORDS} offload", "fsdp_config": {"version": 2}},
    "policy": {"fsdp": "full_shard", "fsdp_config": {"version": 2, "auto_wrap_policy": "SIZE_BASED_WRAP"}},
    "size": {"fsdp": WORDS, "fsdp_config": {"version": 2, "min_num_params": 5}},
    "size and layers": {
        "fsdp": WORDS,
        "fsdp_config": {"version": 2, "min_num_params": 5, "transformer_layer_cls_to_wrap": "Block"},
    },
    "hybrid": {"fsdp": "hybrid_shard auto_wrap", "fsdp_config": {"version": 2}},
    "class": {"fsdp": WORDS, "fsdp_transformer_layer_cls_to_wrap": "Block"},
    "given": {"fsdp": "shard_grad_op", "fsdp_config": {"version": 2, "reshard_after_forward": True}},
    "one of two": {
        "fsdp": "shard_grad_op auto_wrap",
        "fsdp_config": {"version": 1, "sync_module_states": False},
    },
    "one": {"fsdp": WORDS, "fsdp_config": {"version": 1}},
}


@pytest.fixture(scope="module")
def did() -> dict[str, dict[str, Any]]:
    return dict(zip(CASES, run(ARGUMENTS, list(CASES.values())), strict=True))


@pytest.fixture(scope="module")
def facts(did: dict[str, dict[str, Any]]) -> dict[str, bool]:
    """What each claim says, as the installed version does it."""
    trainer = run(TRAINER)
    is_two = did["two"].get("fsdp_version") == 2
    return {
        "version_read": is_two,
        "fsdp2_default": did["plain"]["fsdp_version"] == 2,
        "missing_reshard_is_false": is_two and did["two"]["reshard_after_forward"] is False,
        "state_dict_type_read": did["state"]["state_dict_type"] == "FULL_STATE_DICT",
        "cpu_offload_read": did["offload"]["cpu_offload"] is True,
        "auto_wrap_policy_read": did["policy"]["auto_wrap_policy"] == "SIZE_BASED_WRAP",
        "size_needs_policy": did["size"]["auto_wrap_policy"] != "SIZE_BASED_WRAP",
        "size_beside_layers_stops": "error" in did["size and layers"],
        "json_on_command_line": trainer["json"],
        "offload_word": str(did["offload word"]["cpu_offload"]).lower() == "true",
        "hybrid_refused": "error" in did["hybrid"],
        "wrap_arguments": did["class"].get("transformer_cls_names_to_wrap") == "Block",
        "words_deprecated": did["plain"]["warned"],
        "save_model_full_only": trainer["saves"] == {"FULL_STATE_DICT": True, "SHARDED_STATE_DICT": False},
        "saving_empties_state": trainer["empties"],
        "one_is_full_shard": did["one of two"]["strategy"].endswith("FULL_SHARD"),
        "fsdp_is_bool": (did["plain"]["held"], did["none"]["held"]) == ("True", "None"),
        "no_fsdp_attribute": not trainer["sets_fsdp"],
        "no_prefetch": did["one"]["backward_prefetch"] == "NO_PREFETCH",
    }


def test_what_is_claimed_of_transformers(facts: dict[str, bool]) -> None:
    assert wrong(TRANSFORMERS, "transformers", facts) == []


def test_layers_of_transformers_are_known_by_their_names() -> None:
    names = run(LAYERS)
    layers = [name for name in names if name.endswith(("Layer", "Block"))]
    known = [name for name in layers if names_transformers_layer(name)]
    assert len(layers) > 100
    assert len(known) >= 0.95 * len(layers)
    others = (
        "TransformerLayer",
        "TransformerEncoderLayer",
        "TransformerBlock",
        "ResidualAttentionBlock",
        "Block",
    )
    assert not [name for name in others if names_transformers_layer(name)]


def test_what_is_written_counts_more_than_the_strategy_in_fsdp(did: dict[str, dict[str, Any]]) -> None:
    """Why the finding of a file without ``fsdp`` asks for false where it says shard_grad_op."""
    if did["plain"]["fsdp_version"] != 2:
        pytest.skip("5.10 and later run FSDP2 by themselves")
    assert did["given"]["reshard_after_forward"] is True


def test_a_claim_that_does_not_hold_is_found(facts: dict[str, bool]) -> None:
    false = {**TRANSFORMERS, "offload_word": Claim("", before="4.0"), "other": Claim("")}
    found = wrong(false, "transformers", facts)
    assert [text.partition(":")[0] for text in found][:1] == ["other"]
    assert any("offload_word is True, claimed for before 4.0" in text for text in found)
    assert len(found) == 2
