"""Type-checks the whole repository, and makes sure that nothing was left out.

``fsdp_migrate.adapters`` and ``fsdp_migrate.checkpoint_convert`` stand in folders at the top level, which
mypy cannot know: run in the repository's root it would check half of the files and report success. So this
lays the import tree out with symbolic links under ``build/typecheck``, checks that, and compares the number
of files that mypy says it checked with the number that there are.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path


ROOT = Path(__file__).resolve().parent.parent
MAPPED = {"adapters": "adapters", "checkpoint_convert": "checkpoint_convert"}
ALONGSIDE = ("tests", "examples", "benchmarks", "tools")
CHECKED = re.compile(r"(?:in|checked) (\d+) source files?")


def main(root: Path = ROOT) -> int:
    """Check, print what mypy found with the paths of the repository, and return the exit code."""
    tree = root / "build" / "typecheck"
    expected = lay_out(root, tree)
    folders = sorted(path.name for path in tree.iterdir())
    command = [
        *(sys.executable, "-m", "mypy", "--config-file", str(root / "pyproject.toml")),
        *("--cache-dir", str(root / ".mypy_cache"), "--explicit-package-bases", *folders),
    ]
    result = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    output = result.stdout + result.stderr
    for folder in MAPPED:
        output = output.replace(f"fsdp_migrate/{folder}/", f"{folder}/")
    print(output, end="")
    found = CHECKED.search(output)
    checked = int(found.group(1)) if found else 0
    if checked != expected:
        print(f"mypy checked {checked} files, but there are {expected} to check.", file=sys.stderr)
        return 1
    return result.returncode


def lay_out(root: Path, tree: Path) -> int:
    """Build the import tree of the repository ``root`` at ``tree``; return how many files it has."""
    if tree.exists():
        shutil.rmtree(tree)
    package = tree / "fsdp_migrate"
    package.mkdir(parents=True)
    for entry in (root / "fsdp_migrate").iterdir():
        (package / entry.name).symlink_to(entry)
    for name, folder in MAPPED.items():
        (package / name).symlink_to(root / folder)
    for folder in ALONGSIDE:
        if any((root / folder).rglob("*.py")):
            (tree / folder).symlink_to(root / folder)
    sources = [root / "fsdp_migrate", *(root / f for f in (*MAPPED.values(), *ALONGSIDE))]
    return sum(len(list(source.rglob("*.py"))) for source in sources)


if __name__ == "__main__":
    sys.exit(main())
