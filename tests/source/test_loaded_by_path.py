"""Files of a project that are loaded by their paths are followed as imported ones are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


PRE = "def digest(params):\n    for name, p in params:\n        print(p.cpu().numpy())\n"
FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
IMPORTS = f"import importlib.util\nimport os\nfrom pathlib import Path\n{FSDP}"
LOAD = "spec = importlib.util.spec_from_file_location('_h', {})\nm = importlib.util.module_from_spec(spec)\n"
RUN = "spec.loader.exec_module(m)\n"
USE = "model = FSDP(net)\n{}(model.named_parameters())\n"
HELPER = (
    "def helper({}):\n    spec = importlib.util.spec_from_file_location('_h', {})\n"
    "    module = importlib.util.module_from_spec(spec)\n    spec.loader.exec_module(module)\n"
    "    return module\n"
)


def by_spec(path: str, use: str = "m.digest") -> str:
    return f"{LOAD.format(path)}{RUN}{USE.format(use)}"


def by_helper(given: str, path: str, call: str, use: str = "shared.digest", between: str = "") -> str:
    return f"{HELPER.format(given, path)}shared = helper({call})\n{between}{USE.format(use)}"


ALIAS = "digest = shared.digest\n"
LOADER = (
    "from importlib.machinery import SourceFileLoader\n"
    "m = SourceFileLoader('x', 'tools/pre.py').load_module()\n"
)


@pytest.mark.parametrize(
    "main",
    [
        "import pre as m\n" + USE.format("m.digest"),
        by_spec("'tools/pre.py'"),
        by_spec("Path(__file__).with_name('pre.py')"),
        by_spec("os.path.join(HERE, 'pre.py')"),
        "FILE = HERE / 'pre.py'\n" + by_spec("str(FILE)"),
        by_helper("", "HERE / 'pre.py'", ""),
        by_helper("path", "path", "HERE / 'pre.py'"),
        by_helper("path", "str(path)", "path=f'{HERE}/pre.py'", "digest", ALIAS),
        LOADER + USE.format("m.digest"),
    ],
)
def test_a_file_that_is_loaded_by_its_path(tmp_path: Path, main: str) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "pre.py").write_text(PRE)
    (tmp_path / "tools" / "main.py").write_text(f"{IMPORTS}{main}")
    found = [(use.path.rpartition("/")[2], use.line, use.code) for use in scan_paths([tmp_path]).uses]
    assert ("pre.py", 3, "FM423") in found


@pytest.mark.parametrize("path", ["sys.argv[1]", "'other.py'"])
def test_what_is_loaded_from_elsewhere_is_another_file(tmp_path: Path, path: str) -> None:
    (tmp_path / "pre.py").write_text(PRE)
    main = f"{IMPORTS}import sys\n{LOAD.format(path)}{RUN}{USE.format('m.digest')}"
    (tmp_path / "main.py").write_text(main)
    assert not [use for use in scan_paths([tmp_path]).uses if use.path.endswith("pre.py")]
