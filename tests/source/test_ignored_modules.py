"""Modules that Accelerate's plugin is told to ignore, where rank 0 loads for all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source.ignored_modules import find_ignored


if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.any_torch


ON = "distributed_type: FSDP\nfsdp_config:\n  fsdp_cpu_ram_efficient_loading: true\n"
SET = "trainer.accelerator.state.fsdp_plugin.ignored_modules = [layer.moe for layer in model.layers]\n"


@pytest.mark.parametrize(
    ("body", "settings", "lines"),
    [
        (SET, ON, ["1"]),
        (f"x = 1\n{SET}", "distributed_type: FSDP\nfsdp_config: {}\n", ["2"]),
        ("setattr(state.fsdp_plugin, 'ignored_modules', [m.moe])\n", ON, ["1"]),
        (f"plugin(cpu_ram_efficient_loading=True)\n{SET}", "", ["2"]),
        (SET, ON.replace("true", "false"), []),
        (SET, "distributed_type: MULTI_GPU\n", []),
        ("accelerator.state.fsdp_plugin.ignored_modules = None\n", ON, []),
        ("self.ignored_modules = [m.moe]  # of no plugin\n", ON, []),
        ("fsdp_plugin.ignored_modules = [\n", ON, []),
    ],
)
def test_the_settings_decide(tmp_path: Path, body: str, settings: str, lines: list[str]) -> None:
    (tmp_path / "train.py").write_text(body)
    (tmp_path / "fsdp.yaml").write_text(settings)
    assert [each.rpartition(":")[2] for each in find_ignored([tmp_path])] == lines
