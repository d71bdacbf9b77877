"""What is said of arguments of Hugging Face's Trainer that are left to a person."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import scan_source
from tests.source.samples import comments


pytestmark = pytest.mark.any_torch

HF = "from transformers import TrainingArguments\nfrom trl import SFTConfig\n"
CLASSES, PARAMETERS = "fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params"
GONE = "transformers 5.0 and newer stop at `{}`"
SET = 'd = {{"output_dir": "o"}}\nd["fsdp"] = "full_shard auto_wrap"\nd["{}"] = {}\na = SFTConfig(**d)\n'
FSDP2 = '"fsdp_config": {"version": 2, "reshard_after_forward": True}'


@pytest.mark.parametrize(
    "body",
    [
        f'd = {{"output_dir": "o", "fsdp": "full_shard", "{CLASSES}": "A"}}\na = TrainingArguments(**d)\n',
        f'd = {{"fsdp": "full_shard", "{CLASSES}": "A"}}\nif on:\n    kw.update(d)\n',
        f'by = {{"m": {{"fsdp": "full_shard auto_wrap", "{CLASSES}": "A"}}}}\nkw.update(by[name])\n',
        SET.format(CLASSES, '"A"'),
        SET.format(CLASSES, 'given.pop("classes")'),
        f'kw = dict(fsdp="full_shard", {CLASSES}="A")\n',
        f'd["fsdp"] = "full_shard"\na = TrainingArguments(output_dir="o", {CLASSES}="A", **d)\n',
        f'd = {{"fsdp": "full_shard", "fsdp_config": "f.json", "{CLASSES}": "A"}}\n',
        # What a call itself is given stays too, where the call is left.
        f'a = TrainingArguments(output_dir="o", fsdp=words, {CLASSES}="A")\n',
        # A person who followed the rest of it.
        f'd = {{"output_dir": "o", "fsdp": "full_shard", {FSDP2}, "{CLASSES}": "A"}}\n',
    ],
)
def test_an_argument_that_transformers_took_out_is_to_be_taken_out(body: str) -> None:
    assert GONE.format(CLASSES) in comments(body, HF)
    assert GONE.format(PARAMETERS) in comments(body.replace(CLASSES, PARAMETERS).replace('"A"', "100"), HF)
    # The same without it, and where `fsdp_config` has it.
    assert "newer stop at" not in comments(body.replace(CLASSES, "run_name"), HF)
    inner = '"fsdp_config": {"transformer_layer_cls_to_wrap": ["A"]}'
    assert "newer stop at" not in comments(f'kw = {{"fsdp": "full_shard", {inner}}}\n', HF)


def test_both_are_named_with_what_they_are_in_the_dict() -> None:
    said = comments(f'kw = {{"fsdp": "full_shard", "{CLASSES}": "A", "{PARAMETERS}": 0}}\n', HF)
    assert f"stop at `{CLASSES}` and `{PARAMETERS}`, no argument of theirs" in said
    assert "take them out of what is given here; in `fsdp_config` stands" in said
    assert said.partition(" stands ")[2].startswith("`transformer_layer_cls_to_wrap` and `min_num_params`.")


OWN = f"class Own(TrainingArguments):\n    {CLASSES}: str = 'A'\n"


@pytest.mark.parametrize(
    "more", ["    fsdp: str = 'full_shard'\n", 'a = {"fsdp": "full_shard", "%s": "A"}\n']
)
def test_a_class_of_the_projects_that_has_the_field_takes_it(more: str) -> None:
    said = comments(OWN + more.replace("%s", CLASSES), HF)
    assert "FM327" in said
    assert "newer stop at" not in said


def test_what_is_already_fsdp2s_stays_without_a_comment() -> None:
    body = f'd = {{"output_dir": "o", "fsdp": "full_shard", {FSDP2}}}\n'
    assert [use.action for use in scan_source(HF + body) if use.code == "FM327"] == ["kept"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("layer", "layer"),
        ("layers_of(model)", "layers_of(model)"),
        ('given.pop("classes")', "<its value now>"),
        ('named().pop("classes")', "<its value now>"),
        ("next(classes)", "<its value now>"),
        (f"layers_of({', '.join(['model_or_its_name'] * 4)})", "<its value now>"),
    ],
)
def test_a_value_that_is_to_be_copied_is_whole_or_named(value: str, shown: str) -> None:
    said = comments(SET.format(CLASSES, value), HF)
    assert f'"transformer_layer_cls_to_wrap": {shown}}}. transformers' in said
