from __future__ import annotations

import re

import pytest

from fsdp_migrate.source.word_index import WordIndex


pytestmark = pytest.mark.any_torch

TEXTS = {
    "a": "state.model = net\nfrom wrap import build_model as build",
    "b": "models = state\nclass model_: pass\n",
    "c": "getattr(wrappers, cfg.kind)(net)\nmodèle = état.model2",
    "d": "",
    "e": "x = state\n.model",
}
NAMES = [
    "model",
    "state.model",
    "getattr(wrappers",
    "état",
    "mod",
    "build_model",
    "model2",
    "wrap",
    "absent",
    "",
]


@pytest.mark.parametrize("names", [[name] for name in NAMES] + [NAMES[:3], NAMES[3:], []])
def test_finds_what_a_pattern_of_whole_words_finds(names: list[str]) -> None:
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b")
    found = [key for key, text in TEXTS.items() if names and pattern.search(text)]
    assert WordIndex(TEXTS).holding(names) == found
