"""Classes of a project that derive from Lightning's FSDP1 strategy: where their arguments stand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_source, scan_paths, scan_source


if TYPE_CHECKING:
    from pathlib import Path

    from fsdp_migrate.source.uses import Use


pytestmark = pytest.mark.any_torch

IMPORTS = "import lightning.pytorch as pl\nfrom lightning.pytorch.strategies import FSDPStrategy\n"
HEIR = "class Mine(FSDPStrategy):\n    def barrier(self):\n        pass\n"
CALL = "def main(lit):\n    strategy = Mine({})\n    pl.Trainer(devices=8, strategy=strategy).fit(lit)\n"


def told(code: str) -> dict[int, str]:
    return {use.line: use.becomes for use in scan_source(code) if use.code == "FM319"}


def test_the_class_points_at_its_call_and_the_call_shows_the_hook() -> None:
    code = f"{IMPORTS}{HEIR}{CALL.format('cpu_offload=True')}"
    said = told(code)
    assert "with the arguments of `Mine(...)`, line 7" in said[3]
    assert "stand here" not in said[3]
    assert "`Mine` derives from FSDPStrategy" in said[7]
    assert "Take Mine(process_group_backend=" in said[7]
    assert "'cpu_offload': True" in rewrite_source(code)


@pytest.mark.parametrize("base", ["object", "pl.strategies.DDPStrategy"])
def test_another_class_is_left_alone(base: str) -> None:
    code = f"{IMPORTS}{HEIR}{CALL.format('cpu_offload=True')}".replace("(FSDPStrategy)", f"({base})")
    assert told(code) == {}


def test_a_constructor_of_its_own_shows_what_it_hands_on() -> None:
    own = f"{HEIR}    def __init__(self, x):\n        super().__init__(cpu_offload=True)\n        print(x)\n"
    said = told(f"{IMPORTS}{own}{CALL.format('0.1')}")
    assert "the arguments of `super().__init__(...)`, line 7, " in said[3]
    assert "`Mine(...)`, line 10" in said[3]
    assert "rewrite` shows" not in said[10]


def test_calls_in_other_files_are_told(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(f"{IMPORTS}{HEIR}")
    (tmp_path / "train.py").write_text(
        f"import lightning.pytorch as pl\nfrom own import Mine\n{CALL.format('cpu_offload=True')}"
    )
    uses: list[Use] = [use for use in scan_paths([tmp_path]).uses if use.code == "FM319"]
    said = {(use.path.rpartition("/")[2], use.line): use.becomes for use in uses}
    assert "that `Mine(...)` is given where it is called" in said["own.py", 3]
    assert "`Mine` derives from FSDPStrategy" in said["train.py", 4]
    assert len(said) == 2


def test_fabrics_is_told_of_its_function() -> None:
    code = f"{IMPORTS}{HEIR}strategy = Mine(cpu_offload=True)\n".replace(
        "lightning.pytorch", "lightning.fabric"
    )
    said = told(code)
    assert "in that function, with the arguments of `Mine(...)`, line 6" in said[3]
