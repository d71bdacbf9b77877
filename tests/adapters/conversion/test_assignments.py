"""What a script sets a variable to, where several commands stand in one line."""

from __future__ import annotations

import pytest

from fsdp_migrate.adapters.conversion.command import convert_script
from fsdp_migrate.adapters.conversion.shell import assignment_of


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('  --cls*) C=$(echo "$1"); [[ "$1" != *=* ]] && shift ;;', '$(echo "$1")'),
        ('C="$(dirname "$(pwd)")/c.json"; shift', '$(dirname "$(pwd)")/c.json'),
        ("C=$((8 * (1 + N))) && echo", "$((8 * (1 + N)))"),
        ("C=$(sed 's/)//' f) python t.py", "$(sed 's/)//' f)"),
        ('C="a b" python t.py', "a b"),
        ('C="$A b"/c.json; x', '"$A b"/c.json'),
        ("C=a\\ b|x", "a\\ b"),
        ("C=$(cat <<E", "$(cat <<E"),
        ("C=(a b)", "(a"),
    ],
)
def test_a_value_ends_with_its_word(line: str, value: str) -> None:
    assert assignment_of("C", line) == (1, value)


def test_what_is_said_of_a_variable_is_its_value() -> None:
    text = 'case "$1" in\n  --cls*) CLS=$(echo "$1"); shift ;;\nesac\naccelerate launch --use_fsdp '
    done = convert_script(f"{text}--fsdp_transformer_layer_cls_to_wrap $CLS t.py\n")
    [said] = [f.message for f in done.findings if f.code == "FM346"]
    assert 'line 2 sets it to `$(echo "$1")`' in said
