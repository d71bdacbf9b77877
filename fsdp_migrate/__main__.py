"""Lets ``python -m fsdp_migrate`` stand for the command ``fsdp-migrate``."""

from __future__ import annotations

import sys

from fsdp_migrate.cli import main


if __name__ == "__main__":
    sys.exit(main())
