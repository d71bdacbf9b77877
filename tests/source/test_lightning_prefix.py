"""What Lightning's FSDP1 strategy put before names, and who counts on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths, scan_source


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

STRATEGY = "from lightning.pytorch.strategies import FSDPStrategy\nstrategy = FSDPStrategy()\n"
PART = "'_forward_module.'"


def places(code: str) -> list[int]:
    """Return the lines at which it is said that no name has the part any more."""
    uses = (use for use in scan_source(code) if use.code == "FM316" and use.action == "commented")
    return [use.line for use in uses if "removeprefix" in use.becomes]


COUNTING = [
    "for k in state:\n    assert k.startswith({})\n",
    "new = {{k[len({}):]: v for k, v in state.items()}}\n",
    "part = {}\nnew = {{k[slice(len(part), 99)]: v for k, v in state.items()}}\n",
    "part = {}\nnew = {{k[len(part):]: v for k, v in state.items()}}\n",
    "new = {{k: v for k, v in state.items() if k.startswith({})}}\n",
    "part = {}\nnew = {{k: v for k, v in state.items() if k.startswith(part)}}\n",
    "for k in state:\n    if not k.startswith({}):\n        continue\n    new[k] = state[k]\n",
    "for k in state:\n    if not k.startswith({}):\n        raise KeyError(k)\n",
    "for k, v in state.items():\n    if k.startswith({}):\n        new[k[16:]] = v\n",
    "for k, v in state.items():\n    if {} in k:\n        new[k] = v\n    else:\n        continue\n",
    "w = state[{} + 'model.weight']\n",
    "w = state['_forward_module.' f'{{name}}']\nnew = {} + w\n",
]
LEAVING = [
    "new = {{k.removeprefix({}): v for k, v in state.items()}}\n",
    "new = {{k.replace({}, ''): v for k, v in state.items()}}\n",
    "part = {}\nnew = {{k.replace(part, ''): v for k, v in state.items()}}\n",
    "new = {{re.sub({}, '', k): v for k, v in state.items()}}\n",
    "new = {{(k[len({0}):] if k.startswith({0}) else k): v for k, v in state.items()}}\n",
    "for k, v in state.items():\n    if k.startswith({0}):\n        k = k[len({0}):]\n    new[k] = v\n",
    "for k in state:\n    if k.startswith({0}):\n        new[k[16:]] = 1\n    else:\n        new[k] = 0\n",
    "for k in list(state):\n    if k.startswith({0}):\n        state[k[len({0}):]] = state.pop(k)\n",
    "for k in state:\n    if not k.startswith({}):\n        new[k] = 0\n        continue\n    print(k)\n",
    "consume_prefix_in_state_dict_if_present(state, {})\n",
    "net = getattr(net, {}.rstrip('.'), net)\n",
    "PARTS = ['module.', {}]\n",
]


@pytest.mark.parametrize("code", COUNTING)
def test_who_counts_on_it_is_told_once(code: str) -> None:
    body = code.format(PART)
    assert len(places(f"{STRATEGY}{body}")) == 1
    inside = "".join(f"    {line}\n" for line in body.splitlines())
    assert len(places(f"{STRATEGY}def strip(state, new):\n{inside}")) == 1


@pytest.mark.parametrize("code", LEAVING)
def test_who_leaves_other_names_alone_is_not(code: str) -> None:
    assert places(f"{STRATEGY}{code.format(PART)}") == []


COUNTS = "def strip(state, part{}):\n    return {{k[len(part):]: v for k, v in state.items()}}\n"
LEAVES = "def strip(state, part{}):\n    return {{k.replace(part, ''): v for k, v in state.items()}}\n"


@pytest.mark.parametrize(
    ("function", "default", "call", "lines"),
    [
        (COUNTS, f"={PART}", "strip(state)", [4]),
        (COUNTS, "", f"strip(state, {PART})", [4]),
        (COUNTS, "", f"strip(state, part={PART})", [4]),
        (COUNTS, "='module.'", "strip(state)", []),
        (LEAVES, f"={PART}", "strip(state)", []),
        (LEAVES, "", f"strip(state, {PART})", []),
    ],
)
def test_a_function_that_is_given_it_counts_on_it(
    function: str, default: str, call: str, lines: list[int]
) -> None:
    assert places(f"{STRATEGY}{function.format(default)}{call}\n") == lines


def test_a_key_that_is_put_together_has_it() -> None:
    assert places(f"{STRATEGY}w = state[f'_forward_module.{{name}}']\n") == [3]


@pytest.mark.parametrize(
    "imports",
    [
        "import lightning.pytorch as pl\ntrainer = pl.Trainer(strategy='ddp')\n",
        "import torch\n",
        f"{STRATEGY}import deepspeed\n",
    ],
)
def test_other_strategies_names_are_as_they_were(imports: str) -> None:
    assert places(f"{imports}{COUNTING[0].format(PART)}") == []


def test_a_function_of_another_file_counts_on_it(tmp_path: Path) -> None:
    body = "def strip(state):\n    return {k[len('_forward_module.'):]: v for k, v in state.items()}\n"
    (tmp_path / "tools.py").write_text(body)
    (tmp_path / "train.py").write_text(
        "import lightning.pytorch as pl\nfrom tools import strip\n"
        "def main(lit):\n    trainer = pl.Trainer(strategy='{}')\n    trainer.fit(lit)\n".format("fsdp")
    )
    (use,) = (use for use in scan_paths([tmp_path]).uses if use.code == "FM316")
    assert (use.path, use.line) == (str(tmp_path / "tools.py"), 2)
    (tmp_path / "train.py").write_text("import lightning.pytorch as pl\nt = pl.Trainer(strategy='ddp')\n")
    assert scan_paths([tmp_path]).uses == ()
