"""Hold what is claimed of frameworks (tests/frameworks) against several versions of each.

    python tools/run_frameworks.py [PACKAGE==VERSION ...]

Without arguments all of VERSIONS are run, one after the other. Each is installed into a venv of its own in a
temporary folder, over the packages of the venv that runs this; it is deleted again. Exits with 1 if a claim
does not hold, or if a version cannot be installed.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path


ROOT = Path(__file__).resolve().parent.parent
VERSIONS = (
    *(
        f"accelerate=={version}"
        for version in ("1.6.0", "1.7.0", "1.8.1", "1.9.0", "1.10.1", "1.13.0", "1.14.0")
    ),
    *(f"transformers=={version}" for version in ("4.57.6", "5.0.0", "5.3.0", "5.4.0", "5.9.0", "5.10.2")),
    *(f"lightning=={version}" for version in ("2.3.3", "2.4.0", "2.5.6", "2.6.0")),
    *(f"axolotl=={version}" for version in ("0.11.0", "0.12.2")),
    "accelerate",
    "transformers",
    "lightning",
    "axolotl",
    "peft",
    "bitsandbytes",
    "torchao",
    "lion-pytorch",
    "pytorch-optimizer",
    "timm",
    "fvcore",
)
"""A name alone is the newest version."""
UNTRIED = {
    ("accelerate", "1.0"): "the flags of 0.34 name the key, and those of 1.0 do not",
    ("accelerate", "1.6"): "1.5 has no FSDP2 that could be asked",
    ("axolotl", "0.8.1"): "0.8.0 has no FSDP2; of 0.8.1 the sources were read alone",
    ("lightning", "2.0"): "1.9 and 2.0 cannot be imported beside this torch",
    ("lightning", "2.1"): "2.0 cannot be imported beside this torch; its sources were read",
    ("lightning", "2.3"): "2.2 has no such strategy that could be asked",
    ("mosaicml", "0.31"): "0.30 has no FSDP2; the composer lane has the newest alone",
    ("mosaicml", "0.32"): "0.31 casts by fixed dtypes; the composer lane has the newest alone",
    ("transformers", "4.40"): "these tests fail under 4.39 beside this torch",
    ("transformers", "4.57"): "4.57.6 has no such attribute; which release lost it was not asked",
}
"""Bounds of claims that are read in the framework's sources: why no run tries both sides of them."""
# These would bring another torch, or what only a GPU's machine has; what they need is here.
ALONE = frozenset(
    {
        "accelerate",
        "lightning",
        "axolotl",
        "peft",
        "bitsandbytes",
        "torchao",
        "lion-pytorch",
        "pytorch-optimizer",
        "timm",
    }
)
BESIDE = {
    "bitsandbytes": ("peft",),
    "lightning": ("setuptools<81",),
    "timm": ("torchvision==0.28.*", "pillow"),
}
"""What a package's tests need with it."""
TESTS: dict[str, tuple[str, ...]] = {
    "accelerate": ("test_accelerate_claims.py",),
    "transformers": ("test_transformers_claims.py", "test_optimizers.py", "test_multimodal.py"),
    "lightning": ("test_lightning_claims.py",),
    "axolotl": ("test_axolotl_claims.py",),
    "peft": ("test_peft.py",),
    "bitsandbytes": ("test_bitsandbytes.py", "test_optimizers.py", "test_qlora.py"),
    # Which optimizers are tried follows from what is installed.
    "torchao": ("test_torchao.py", "test_optimizers.py"),
    "lion-pytorch": ("test_optimizers.py",),
    "pytorch-optimizer": ("test_optimizers.py",),
    "timm": ("test_timm.py",),
    "fvcore": ("test_fvcore.py",),
}


def main(names: list[str]) -> int:
    """Run what is asked for, and print a line for each; return the exit status."""
    unknown = [name for name in names if name.partition("==")[0] not in TESTS]
    if unknown:
        sys.exit(f"No tests for {', '.join(unknown)}; expected {', '.join(TESTS)}, with ==VERSION.")
    passed = True
    for name in names or VERSIONS:
        with tempfile.TemporaryDirectory(prefix="frameworks-") as folder:
            passed = run(name, Path(folder)) and passed
    return 0 if passed else 1


def run(name: str, folder: Path) -> bool:
    """Install one version, run its tests, and say what came of it."""
    package = name.partition("==")[0]
    python = make_venv(folder)
    pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    wanted = [*(["--no-deps"] if package in ALONE else []), name, *BESIDE.get(package, ())]
    upgrade = [] if "==" in name else ["--upgrade"]
    installed = subprocess.run(
        [*pip, *upgrade, *wanted], cwd=folder, capture_output=True, text=True, check=False
    )
    if installed.returncode:
        print(f"{name}: not installed: {installed.stderr.strip()[-300:]}", flush=True)
        return False
    tests = [str(ROOT / "tests" / "frameworks" / each) for each in TESTS[package]]
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines()
    print(f"{name}: {lines[-1] if lines else 'no output'}", flush=True)
    if done.returncode:
        print("\n".join(line for line in lines if line.startswith("E ")), flush=True)
    return done.returncode == 0


def make_venv(folder: Path) -> str:
    """Make a venv whose packages come before those of this one, which it has as well."""
    venv.create(folder, with_pip=True, symlinks=True)
    python = folder / "bin" / "python"
    here = sysconfig.get_path("purelib")
    # Its .pth files count too: the package itself stands in one.
    line = f"import site; site.addsitedir({here!r})\n"
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "below.pth").write_text(line)
    return str(python)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
