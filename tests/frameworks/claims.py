"""Holds what is claimed of a framework against what it did."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from importlib.metadata import version
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.adapters.engine.claims import Claim


def run(code: str, argument: object = None) -> Any:
    """Run code in a process of its own: these libraries set the environment. It prints one JSON document."""
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), json.dumps(argument)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def wrong(claims: Mapping[str, Claim], package: str, found: Mapping[str, bool]) -> list[str]:
    """Return the claims of which the installed version does other than is claimed, or that were not tried."""
    here = version(package)
    untried = [f"{name}: not tried" for name in claims if name not in found]
    return untried + [
        f"{package} {here}: {name} is {does}, claimed for {claims[name].versions}"
        for name, does in found.items()
        if claims[name].holds(here) != does
    ]
