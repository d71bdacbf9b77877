"""Lightning's FSDP1 strategy, as another package is asked for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_paths, scan_source


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

HEADER = "from torch.distributed.fsdp import MixedPrecision\nfrom raylab import Experiment\n"
PRECISION = "MixedPrecision(param_dtype=torch.bfloat16)"


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        (
            f"kw = {{}}\nkw['mixed_precision'] = {PRECISION}\nExperiment(strategy=s, strategy_kwargs=kw)\n",
            True,
        ),
        (f"kw = dict(mixed_precision={PRECISION})\nExperiment(strategy='fsdp', strategy_args=kw)\n", True),
        (f"Experiment(strategy=name, fsdp_config={{'mixed_precision': {PRECISION}}})\n", True),
        (
            f"kw = {{}}\nkw.update(precision={PRECISION})\nExperiment(strategy=s, strategy_kwargs=kw)\n",
            True,
        ),
        (
            f"kw = {{'mixed_precision': {PRECISION}}}\nExperiment(strategy=name, strategy_kwargs=other)\n",
            False,
        ),
        (f"kw = {{'mixed_precision': {PRECISION}}}\nExperiment(strategy=name, model_kwargs=kw)\n", False),
        (f"kw = {{'mixed_precision': {PRECISION}}}\nExperiment(strategy_kwargs=kw)\n", False),
        ("Experiment(strategy=name, strategy_kwargs={})\n", False),
    ],
)
def test_a_strategy_by_its_name_with_settings_of_fsdp1(body: str, *, is_said: bool) -> None:
    found = [use.becomes for use in scan_source(HEADER + body) if use.code == "FM319"]
    assert [said.startswith("where this strategy is FSDP, what is called") for said in found] == [
        True
    ] * is_said


OPTION = 'def add(parser):\n    parser.add_argument("{}", choices=["ddp", "{}"])\n'
USES = "import lightning as L\nfrom options import add\n"


@pytest.mark.parametrize(
    ("option", "word", "uses", "is_said"),
    [
        ("--strategy", "fsdp", USES, True),
        ("--strategy", "deepspeed", f"{USES}# fsdp\n", False),
        ("--parallel_strategy", "fsdp", USES, False),
        ("--strategy", "fsdp", "from options import add\n", False),
        ("--strategy", "fsdp", f"{USES}model = FSDP(net)\n", False),
    ],
)
def test_an_option_in_a_file_without_lightning(
    tmp_path: Path, option: str, word: str, uses: str, *, is_said: bool
) -> None:
    (tmp_path / "options.py").write_text(OPTION.format(option, word))
    (tmp_path / "train.py").write_text(uses)
    changed = {
        each.path.rpartition("/")[2] for each in rewrite_paths([tmp_path]).changed if "FM319" in each.after
    }
    assert changed == ({"options.py"} if is_said else set())
