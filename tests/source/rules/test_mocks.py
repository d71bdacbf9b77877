"""Mocks of FSDP1's class, which a rewriting of the module takes away."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import scan_source


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
