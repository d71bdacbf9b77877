"""Functions that are called by other names, as partials, and as what another function gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


CLIPS = "    clip_grad_norm_(model.parameters(), 1.0)\n"
IMPORTS = "from torch.nn.utils import clip_grad_norm_\n"
GIVES = (
    "from functools import partial\ndef both():\n    fn = partial(train_a, x=1)\n    return 1, fn\n"
    "def made():\n    return train_b\n"
)
LOOPS = f"{IMPORTS}def train_a(model):\n{CLIPS}\ndef train_b(model):\n{CLIPS}\n{GIVES}"
RENAMED = [
    ("fn = train_a\n    fn(model)", 1),
    ("fn = train_a\n    fn = train_b\n    fn(model)", 1),
    ("fn = train_a if x else train_b\n    fn(model)", 2),
    ("if x:\n        fn = train_a\n    else:\n        fn = train_b\n    fn(model)", 2),
    (
        ("if x:\n        fn = train_a\n        fn(x)\n    else:\n        fn = train_b\n        fn(model)"),
        1,
    ),
    # FSDP1 changes the model that it is given: that one is sharded, too.
    (
        ("if x:\n        fn = train_a\n        fn(net)\n    else:\n        fn = train_b\n        fn(model)"),
        2,
    ),
    ("fn = train_a\n    again = fn\n    again(model)", 1),
    ("fn = fn2\n    fn2 = fn\n    fn(model)", 0),
    ("a, fn = 1, train_a\n    fn(model)", 1),
    ("fn = partial(train_a, x=x)\n    fn(model)", 1),
    ("fn = partial(train_a, x)\n    fn(model)", 0),
    ("_, fn = both()\n    fn(model)", 1),
    ("fn, _ = both()\n    fn(model)", 0),
    ("fn = both()\n    fn(model)", 0),
    ("fn = made()\n    fn(model)", 1),
    ("fn = fn()\n    fn(model)", 0),
    ("def run(fn):\n        fn(model)\nfn = train_a", 0),
]


@pytest.mark.parametrize(("body", "number"), RENAMED)
def test_a_function_that_is_called_by_another_name(tmp_path: Path, body: str, number: int) -> None:
    main = f"from functools import partial\ndef main(net, x):\n    model = FSDP(net)\n    {body}\n"
    over = {"loops.py": LOOPS, "main.py": f"{FSDP}from loops import both, made, train_a, train_b\n{main}"}
    for files in (over, {"main.py": f"{FSDP}{LOOPS}{main}"}):
        folder = tmp_path / str(len(files))
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
        said = [use.code for use in scan_paths([folder]).uses]
        assert said.count("FM326") == number, files


GETS = f"{FSDP}def get(net, fsdp=False):\n    if fsdp:\n        net = FSDP(net)\n    return net\n"


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("make = partial(get, fsdp=True)\ndef main(net):\n    model = make(net)\n", True),
        ("def main(net):\n    make = partial(get, fsdp=True)\n    model = make(net)\n", True),
        ("def main(net):\n    model = partial(get, fsdp=True)(net)\n", True),
        ("make = partial(get, fsdp=False)\ndef main(net):\n    model = make(net)\n", False),
        ("make = partial(other, fsdp=True)\ndef main(net):\n    model = make(net)\n", False),
    ],
)
def test_a_partial_of_another_files_function_that_makes_models(
    tmp_path: Path, body: str, *, is_said: bool
) -> None:
    (tmp_path / "models.py").write_text(GETS)
    train = f"import torch\nfrom functools import partial\nfrom models import get\n{body}"
    (tmp_path / "train.py").write_text(f"{train}    torch.save(model.state_dict(), 'a.pt')\n")
    assert ("FM308" in {use.code for use in scan_paths([tmp_path]).uses}) is is_said
