"""Which lines read a checkpoint that they name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source.checkpoint_readers import with_readers
from fsdp_migrate.source.surroundings import CheckpointFound


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


MADE = '    path = join(folder, f"step-{n}.pt")\n'
SAVES, LOADS = "    dcp.save(x, Writer(path))\n", "    dcp.load(x, Reader(path))\n"


def _readers(folder: Path, name: str, text: str) -> list[str]:
    (folder / name).write_text(text)
    (found,) = with_readers([CheckpointFound("out/step-20.pt", "full state")], [folder])
    return [place.removeprefix(f"{folder}/") for place in found.read_by]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('torch.load("out/step-20.pt")', [1]),
        ('torch.save(model.state_dict(), "out/step-20.pt")', []),
        ('torch.save(x, os.path.join("out", "step-20.pt"))', []),
        ('torch.save(torch.load("out/step-20.pt"), "new.pt")', [1]),
        ('torch.save(torch.load("old.pt"), "out/step-20.pt")', []),
        ('save_file(state, filename=Path("out") / "step-20.pt")', []),
        ('fit(save_path="out/step-20.pt")', []),
        ('fit(ckpt_path="out/step-20.pt")', [1]),
        ('open("step-20.pt", "wb")', []),
        ('open("step-20.pt", mode="rb+")', [1]),
        ('open("step-20.pt")', [1]),
        ('os.remove("step-20.pt")', []),
        ('"""It reads out/step-20.pt."""', []),
        ("# torch.load('out/step-20.pt')", []),
        # By a name: what is done with it.
        ('PATH = "step-20.pt"\ntorch.save(x, PATH)', []),
        ('PATH = "step-20.pt"\ntorch.save(x, PATH)\ntorch.load(PATH)', [1]),
        ('PATH: str = "step-20.pt"\nprint(PATH)', [1]),
        ('PATH = "step-20.pt"', [1]),
        ('SAVE_PATH = "step-20.pt"', []),
        ('self.path = "step-20.pt"\ntorch.save(x, self.path)', []),
        ('add_argument(\n    "--resume", help="""\n  such as step-20.pt""")', [3]),
        ("no Python: step-20.pt", []),
        # Each line once, and not more of them than anybody reads.
        ('a, b = torch.load("step-20.pt"), torch.load("out/step-20.pt")', [1]),
        ('torch.load("step-20.pt")\n' * 7, [1, 2, 3, 4, 5]),
        # With what is put in when it runs.
        ('torch.load(os.path.join(folder, f"step-{number}.pt"))', [1]),
        ('torch.load(f"{folder}/step-{number}.pt")', [1]),
        ('torch.load("out/step-%d.pt" % number)', [1]),
        ('torch.load("step-{}.pt".format(number))', [1]),
        ('torch.load("step-" + str(number) + ".pt")', [1]),
        ('PATH = f"step-{number}.pt"\ntorch.save(x, PATH)', []),
        ('torch.save(x, os.path.join(folder, f"step-{number}.pt"))', []),
        ('torch.load(f"{name}.pt")\ntorch.load("%s.pt" % name)\ntorch.load(name + ".pt")', []),
        ('torch.load(f"step-{number}.bin")\ntorch.load(f"ema-{number}.pt")', []),
        # A name of one function is not that of another's.
        (f"def put(folder, n):\n{MADE}{SAVES}def get(path):\n{LOADS}", []),
        (f"def get(folder, n):\n{MADE}{LOADS}def put(path):\n{SAVES}", [2]),
        ('PATH = "step-20.pt"\ndef put():\n    torch.save(x, PATH)\ndef get():\n    torch.load(PATH)\n', [1]),
        (f"def put(folder, n):\n{MADE}    def write():\n        torch.save(x, path)\n    write()\n", []),
        ('def save_state(n):\n    path = f"step-{n}.pt"\n    hand_on(path)\n', []),
        ('def save_or_load(n):\n    path = f"step-{n}.pt"\n    hand_on(path)\n', [2]),
        # Options say it by their names.
        ('parser.add_argument("--out", default="out/step-20.pt")', []),
        ('parser.add_argument("--save-to", default="out/step-20.pt")', []),
        ('parser.add_argument("--ckpt", default="out/step-20.pt")', [1]),
        # Other files.
        (
            'torch.load("other/step-20.pt")\ntorch.load("./step-20.pt")\ntorch.load("a/out/step-20.pt")',
            [2, 3],
        ),
        ('torch.load("$OUT/step-20.pt")\ntorch.load(f"{other}/step-20.pt")', [1, 2]),
        ('torch.load("step-20.pt.old")', []),
        ('torch.load("big-step-20.pt")', []),
        ('torch.load("step-20.pt-1")', []),
    ],
)
def test_only_lines_that_read_are_named(text: str, lines: list[int], tmp_path: Path) -> None:
    assert _readers(tmp_path, "train.py", text) == [f"train.py:{line}" for line in lines]


def test_cells_of_notebooks_and_lines_of_scripts(tmp_path: Path) -> None:
    cells = ["import torch", 'x = 1\ntorch.load("step-20.pt")', 'torch.save(x, "step-20.pt")']
    code = {"cells": [{"cell_type": "code", "source": [each]} for each in cells]}
    assert _readers(tmp_path, "a.ipynb", json.dumps(code)) == ["a.ipynb:cell 2:2"]
    (tmp_path / "a.ipynb").unlink()
    script = "# python go.py step-20.pt\npython go.py --resume step-20.pt\n"
    assert _readers(tmp_path, "run.sh", script) == ["run.sh:2"]


def test_a_name_that_is_very_short_is_not_looked_for(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text('torch.load("out/ema")\ntorch.load("out/best")\n')
    found = with_readers([CheckpointFound(f"out/{name}", "state") for name in ("ema", "best")], [tmp_path])
    assert [len(each.read_by) for each in found] == [0, 1]
