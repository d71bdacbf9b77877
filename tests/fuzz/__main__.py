"""``python -m tests.fuzz``: draw, train under both, and shrink what differs; ``make fuzz`` calls it."""

from __future__ import annotations

import argparse
import sys
import time

import torch

from tests.fuzz import draws, driver
from tests.fuzz.verdicts import Verdict, summary


def main() -> int:
    """Return 1 if something differs, fails or hangs."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--draws", type=int, default=200, help="how many runs are drawn (DRAWS)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (SEED)")
    parser.add_argument("--ranks", type=int, choices=(2, 4), default=2, help="4: hybrid, 2 x 2 (RANKS)")
    parser.add_argument(
        "--draw", action="append", default=[], help="this one alone, as it was printed (DRAW)"
    )
    parser.add_argument("--device", default="cpu", help="what is trained on; cuda: one for all (DEVICE)")
    parser.add_argument("--no-shrink", action="store_true", help="print what differs as it was drawn")
    asked = parser.parse_args()
    started = time.monotonic()
    drawn = (
        [draws.parse(text) for text in asked.draw]
        if asked.draw
        else driver.draw_many(asked.draws, asked.seed, ranks=asked.ranks)
    )
    verdicts = []
    for verdict in driver.verdicts_of(drawn, device=asked.device):
        verdicts.append(verdict)
        if verdict.is_fault:
            _tell(verdict)
        elif asked.draw:
            _say(f"{verdict.outcome}: {verdict.reason} ({verdict.draw})")
    if not asked.no_shrink and not asked.draw:
        for verdict in driver.faults(verdicts):
            _say(f"Shrinking: {verdict.draw}")
            _tell(driver.shrink(verdict, device=asked.device))
    _say(f"torch {torch.__version__}, {time.monotonic() - started:.0f} s; {summary(verdicts)}")
    return 1 if driver.faults(verdicts) else 0


def _tell(verdict: Verdict) -> None:
    _say(f"{verdict.outcome}: {verdict.reason}\n  make fuzz DRAW='{verdict.draw}'")


def _say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
