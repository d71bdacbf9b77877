"""Mocks of FSDP1's class, which a rewriting of the module takes away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths, scan_source


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    "code",
    [
        '@patch("pkg.train.FSDP")\ndef test(fsdp): ...\n',
        '@mock.patch("pkg.train.FullyShardedDataParallel")\ndef test(fsdp): ...\n',
        'with patch("torch.distributed.fsdp.FullyShardedDataParallel"):\n    pass\n',
        'monkeypatch.setattr("pkg.train.FSDP", Fake)\n',
        'monkeypatch.setattr(train, "FSDP", Fake)\n',
        'patch.object(train, "FSDP")\n',
    ],
)
def test_a_mock_is_found(code: str) -> None:
    assert [(use.code, use.action) for use in scan_source(code) if use.code == "FM424"] == [
        ("FM424", "commented")
    ]


@pytest.mark.parametrize(
    "code", ['patch("pkg.fsdp_tools.run")\n', 'log.setattr("FSDP")\n', 'patch("pkg.FSDPModule")\n']
)
def test_other_strings_are_none(code: str) -> None:
    assert "FM424" not in {use.code for use in scan_source(code)}


FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"


@pytest.mark.parametrize(
    ("made", "is_said"),
    [
        ("MagicMock(spec=FSDP)", True),
        ("mock.Mock(FSDP)", True),
        ("create_autospec(FSDP, instance=True)", True),
        ("Mock(spec_set=FSDP)", True),
        ("Mock(return_value=FSDP)", False),
        ("MockServer(FSDP)", False),
    ],
)
def test_the_class_as_what_a_mock_stands_for(made: str, *, is_said: bool) -> None:
    found = {(use.code, use.action) for use in scan_source(f"{FSDP}m = {made}\n")}
    assert (("FM424", "commented") in found) is is_said
    assert (("FM303", "commented") in found) is not is_said


@pytest.mark.parametrize(
    "patched",
    [
        '@patch("pkg.train.FSDP")\ndef test(fsdp): ...\n',
        'patch.object(train, "FSDP")\n',
        'monkeypatch.setattr(train, "FSDP", Fake)\n',
        'module_patch.setattr(train, "FSDP", Fake)\n',
        'monkeypatch.setattr("pkg.train.FSDP.forward", fake)\n',
    ],
)
@pytest.mark.parametrize(
    ("train", "is_said"),
    [
        ("import deepspeed\n", False),
        (f"{FSDP}model = FSDP(net)\n", True),
        ("from .wrap import *\n", True),
        ("from .wrap import FSDP\n", True),
        (None, True),
    ],
)
def test_a_name_that_the_module_does_not_have(
    tmp_path: Path, patched: str, train: str | None, *, is_said: bool
) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "wrap.py").write_text(f"{FSDP}model = FSDP(net)\n")
    if train is not None:
        (tmp_path / "pkg" / "train.py").write_text(train)
    (tmp_path / "test_it.py").write_text(f"from pkg import train\n\n{patched}")
    codes = {use.code for use in scan_paths([tmp_path]).uses}
    assert ("FM424" in codes) is is_said
