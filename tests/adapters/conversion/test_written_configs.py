"""Configs that a script writes in here-documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.adapters.conversion.command import convert_script
from fsdp_migrate.config_files import convert_config_file, read_config_file
from fsdp_migrate.source.launchers import find_launches


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

YAML = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: 1  # {}\n"
LAUNCH = "accelerate launch --config_file out/c.yaml train.py\n"


@pytest.mark.parametrize(
    ("asks", "word"),
    [
        ("cat > out/c.yaml << EOF", "EOF"),
        ("cat <<'E' > out/c.yaml", "E"),
        ("  tee out/c.yaml <<-E >/dev/null", "  E"),
    ],
)
def test_a_config_is_converted_where_the_script_writes_it(asks: str, word: str) -> None:
    done = convert_script(f"set -e\n{asks}\n{YAML.format('$N')}\n{word}\n{LAUNCH}")
    new = "  fsdp_reshard_after_forward: true  # $N\n  fsdp_version: 2\n"
    assert new in done.text
    assert done.text.endswith(f"\n\n{word}\n{LAUNCH}")
    assert [(each.path, each.state) for each in done.blocks][-1] == ("line 2", "converted")
    # It is no other file, and no here-document that was not read.
    assert not [each for each in done.findings if each.code == "FM356"]
    assert convert_script(done.text).text == done.text


@pytest.mark.parametrize("inner", ["fsdp_config: [\n", YAML.format("\\"), "fsdp_config:\n  a: 1\n"])
def test_one_that_cannot_be_read_is_named(inner: str) -> None:
    done = convert_script(f"cat > out/c.yaml <<E\n{inner}E\n{LAUNCH}")
    said = [each.subject.rpartition(": ")[2] for each in done.findings if each.code == "FM356"]
    assert sorted(said) == ["--config_file", "here-document"]
    assert done.text.startswith(f"cat > out/c.yaml <<E\n{inner}E\n")


def test_scan_and_plan_know_it(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"cat > out/c.yaml <<E\n{YAML.format('')}E\n{LAUNCH}")
    [found] = find_launches([tmp_path])
    assert (found.line, found.framework, found.state) == (1, "accelerate", "changes")
    assert read_config_file(script).sharding_strategy is not None
    convert_config_file(script, in_place=True)
    assert [each.state for each in find_launches([tmp_path])] == ["fsdp2"]


WRAPS = f"{YAML}  fsdp_transformer_layer_cls_to_wrap: ${{LAYER}}\n"


@pytest.mark.parametrize(
    ("above", "sign", "below", "is_told"),
    [
        ("LAYER=Block", "E", "", True),
        ("export LAYER=${LAYER:-Block}", "E", "", True),
        ("OTHER=Block", "E", "", False),
        ("LAYER=Block", "'E'", "", False),
        (":", "E", "LAYER=Block", False),
    ],
)
def test_a_variable_is_what_the_script_set_above(above: str, sign: str, below: str, is_told: bool) -> None:
    script = f"{above}\ncat > out/c.yaml <<{sign}\n{WRAPS}E\n{below}\n"
    said = [each.message for each in convert_script(script).findings if each.code == "FM346"]
    assert any("line 1 sets it to" in each for each in said) is is_told
    assert any("is not set in this file" in each for each in said) is not is_told
