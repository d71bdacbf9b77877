"""Lightning's FSDP1 strategy, as another package is asked for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_paths, scan_paths, scan_source


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


THEIRS = "from {}.overrides import NLPFSDPStrategy\nfrom lightning.pytorch import Trainer\n\n\n"
MADE = "strategy = NLPFSDPStrategy({})\nTrainer(strategy=strategy, devices=2).fit(model)\n"


@pytest.mark.parametrize(
    ("package", "body", "is_said"),
    [
        ("nemo.parts", MADE.format("sharding_strategy='full'"), True),
        ("nemo.parts", MADE.format(""), True),
        ("nemo.parts", MADE.replace("NLPFSDPStrategy", "partial").format("NLPFSDPStrategy, x=1"), True),
        ("nemo.parts", "class Own(NLPFSDPStrategy):\n    pass\n", True),
        ("nemo.parts", "KINDS = {'fsdp': NLPFSDPStrategy}\n", True),
        # What only asks for it makes none, and one for FSDP2 has another name.
        ("nemo.parts", "on = isinstance(trainer.strategy, NLPFSDPStrategy)\n", False),
        ("nemo.parts", "def run(strategy: NLPFSDPStrategy):\n    pass\n", False),
        ("nemo.parts", MADE.replace("FSDPS", "FSDP2S").format(""), False),
        # The project's own classes are read themselves.
        ("own", MADE.format(""), False),
    ],
)
def test_a_strategy_that_another_package_has(
    tmp_path: Path, package: str, body: str, *, is_said: bool
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "overrides.py").write_text("class NLPFSDPStrategy:\n    pass\n")
    theirs = THEIRS.replace("FSDPS", "FSDP2S") if "FSDP2" in body else THEIRS
    (tmp_path / "train.py").write_text(theirs.format(package) + body)
    said = [use.becomes for use in scan_paths([tmp_path]).uses if use.code == "FM319"]
    assert [each.startswith("`NLPFSDPStrategy` of the package nemo") for each in said] == [True] * is_said


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("s = FSDPStrategy(mesh, axis='data')\n", False),
        ("s = FSDPStrategy(limit_all_gathers=True)\n", True),
        ("Launcher(strategy=FSDPStrategy())\n", True),
    ],
)
def test_without_lightning_its_words_tell(tmp_path: Path, body: str, *, is_said: bool) -> None:
    (tmp_path / "train.py").write_text(f"from jaxlab.sharding import FSDPStrategy\n\n{body}")
    assert ("FM319" in {use.code for use in scan_paths([tmp_path]).uses}) is is_said


def test_rays_strategy_is_told_of_by_its_own_words_alone(tmp_path: Path) -> None:
    body = "from ray.train.lightning import RayFSDPStrategy\nimport lightning\n\ns = RayFSDPStrategy()\n"
    (tmp_path / "train.py").write_text(body)
    said = [use.becomes for use in scan_paths([tmp_path]).uses if use.code == "FM319"]
    assert [each.partition(" with Ray's")[0] for each in said] == ["this is Lightning's FSDP1 strategy"]
