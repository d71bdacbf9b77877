"""Notebooks: configs and commands in their cells, converted where they stand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate import convert_config_file
from fsdp_migrate.adapters.conversion.notebooks import convert_notebook
from fsdp_migrate.config_files import read_config_file
from fsdp_migrate.errors import ConfigError, NothingToConvertError
from tests.source.python.test_notebooks import notebook


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


HF = 'fsdp: "full_shard auto_wrap"\nfsdp_config:\n  use_orig_params: true\n'
ACCELERATE = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"


def code_after(text: str, cell: int) -> str:
    return "".join(json.loads(convert_notebook(text).text)["cells"][cell - 1]["source"])


@pytest.mark.parametrize(
    ("before", "kept", "new"),
    [
        (f"%%yaml parameters\n{HF}", "%%yaml parameters\nfsdp:", "  version: 2\n"),
        (f"%%writefile a.yaml\n{HF}", "%%writefile a.yaml\nfsdp:", "  version: 2\n"),
        (f"%%writefile acc.conf\n{ACCELERATE}", "%%writefile acc.conf\n", "  fsdp_version: 2\n"),
        (
            '%%writefile a.json\n{"fsdp": "full_shard", "fsdp_config": {"limit_all_gathers": true}}',
            "%%writefile a.json\n",
            '"version": 2',
        ),
        (
            "%%bash\nset -e\ntorchrun t.py --output_dir o --fsdp full_shard\n",
            "%%bash\nset -e\n",
            '{"version": 2',
        ),
        (
            "%%writefile go.sh\naccelerate launch --use_fsdp t.py\n",
            "%%writefile go.sh\n",
            "--fsdp_version 2",
        ),
        ("x = 1\n!accelerate launch --use_fsdp t.py\ny", "x = 1\n!accelerate launch", "--fsdp_version 2"),
        (
            "if x:\n    ! accelerate launch --use_fsdp \\\n --fsdp_use_orig_params true \\\n t.py\nelse: 1",
            "if x:\n    ! accelerate launch --use_fsdp ",
            "\nelse: 1",
        ),
        (
            "out = !accelerate launch --use_fsdp t.py",
            "out = !accelerate launch",
            "--fsdp_version 2",
        ),
        ('%%bash -s "$x"\naccelerate launch --use_fsdp t.py', '%%bash -s "$x"\n', "--fsdp_version 2"),
        ("\n%%sh --bg\naccelerate launch --use_fsdp t.py", "\n%%sh --bg\n", "--fsdp_version 2"),
        ("%%time\n%%bash\naccelerate launch --use_fsdp t.py", "%%time\n%%bash\n", "--fsdp_version 2"),
        (f"\n\n%%writefile a.yaml\n{HF}", "\n\n%%writefile a.yaml\nfsdp:", "  version: 2\n"),
        (
            "%%writefile w/Makefile\nrun:\n\taccelerate launch --use_fsdp t.py",
            "%%writefile w/Makefile\nrun:\n\tacc",
            "--fsdp_version 2",
        ),
        # IPython puts values in place of single braces.
        (
            "!torchrun t.py --output_dir o --fsdp full_shard",
            '!torchrun t.py --output_dir o --fsdp full_shard --fsdp_config \'{{"version": 2',
            "}}'",
        ),
    ],
)
def test_a_cell_is_converted_where_it_stands(before: str, kept: str, new: str) -> None:
    after = code_after(notebook("a = 1", before, "z"), 3)
    assert after.startswith(kept)
    assert new in after


def test_every_other_character_stays() -> None:
    text = json.dumps(json.loads(notebook("é = 1", f"%%yaml a\n# é\n{HF}")), indent=1, ensure_ascii=False)
    done = convert_notebook(text)
    before, after = text.splitlines(), done.text.splitlines()
    assert [line for line in before if line not in after] == ['    "  use_orig_params: true\\n"']
    assert json.loads(done.text)["cells"][1] == json.loads(text)["cells"][1]
    assert {block.path for block in done.blocks} == {"cell 3: fsdp_config"}


def test_places_count_the_lines_above_a_magic() -> None:
    text = notebook("\n\n%%bash\necho\naccelerate launch --use_fsdp t.py")
    place = "cell 2, line 5: fsdp_config"
    assert [each.subject for each in convert_notebook(text).findings] == [
        f"{place}.fsdp_cpu_ram_efficient_loading",
        place,
    ]


def test_variables_count_wherever_they_are_set() -> None:
    text = notebook(
        "%env ACCELERATE_USE_FSDP=true", "import os\nos.environ['FSDP_SHARDING_STRATEGY'] = 'SHARD_GRAD_OP'"
    )
    done = convert_notebook(text)
    assert not done.is_changed
    found = next(each for each in done.findings if each.code == "FM355")
    assert found.subject == "cell 2, line 1: ACCELERATE_USE_FSDP"
    assert "FSDP_RESHARD_AFTER_FORWARD=false" in str(found.hint)


def test_what_cannot_be_converted_is_named() -> None:
    text = notebook(f"%%yaml a\n{HF}", "%%writefile b.yaml\nfsdp: [full_shard\n")
    said = [each for each in convert_notebook(text).findings if "Left as it is" in each.message]
    assert [each.subject for each in said] == ["cell 3"]
    with pytest.raises(NothingToConvertError, match="cell 2: Left as it is"):
        convert_notebook(notebook("%%writefile b.yaml\nfsdp: [full_shard\n"))
    with pytest.raises(NothingToConvertError, match="scan"):
        convert_notebook(notebook("x = 1", "%%html\n<fsdp>"))


def test_files_and_other_commands_read_it(tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    path.write_text(notebook(f"%%yaml a\n{HF}"))
    assert str(read_config_file(path).sharding_strategy).endswith("FULL_SHARD")
    assert convert_config_file(path, in_place=True).backup == f"{path}.fsdp1"
    assert convert_config_file(path).is_fsdp2
    with pytest.raises(ConfigError, match="--key"):
        convert_config_file(path, key="fsdp")
    path.write_text("[]")
    with pytest.raises(ConfigError, match="no notebook"):
        convert_config_file(path)


@pytest.mark.parametrize(("named", "is_another"), [("a.yaml", False), ("./a.yaml", False), ("b.yaml", True)])
def test_a_config_that_another_cell_writes_is_no_other_file(named: str, *, is_another: bool) -> None:
    launch = f"!accelerate launch --config_file {named} train.py"
    done = convert_notebook(notebook(f"%%writefile a.yaml\n{ACCELERATE}", launch))
    assert ("is another file" in " ".join(each.message for each in done.findings)) is is_another
