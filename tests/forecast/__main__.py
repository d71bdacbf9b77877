"""Holds all forecasts against real ranks, and prints both: ``python -m tests.forecast [CASE...]``."""

from __future__ import annotations

import sys

from tests.rank_bodies import forecasts
from tests.ranks import run_ranks


MOST_OFF = 0.05


def main(names: list[str]) -> int:
    """Print a row of Markdown for each case; return 1 if a forecast is further off than it may be."""
    worst = 0.0
    sys.stdout.write("| case | FSDP2 predicted | measured | off | FSDP1 predicted | measured | off |\n")
    sys.stdout.write("|---|--:|--:|--:|--:|--:|--:|\n")
    for name in names or list(forecasts.CASES):
        told = forecasts.foretell(name)
        cells = [name]
        for which, peak in reversed(told.peaks):
            ranks = forecasts.CASES[name].ranks
            real = run_ranks(forecasts.measure, name, which, world_size=ranks)[0]["peak"]
            off = float("inf") if peak is None or not told.counts_activations else peak.total / real - 1
            worst = max(worst, abs(off))
            cells += ["none" if peak is None else f"{peak.total:,}", f"{real:,}", f"{off:+.2%}"]
        sys.stdout.write(f"| {' | '.join(cells)} |\n")
        sys.stdout.flush()
    sys.stdout.write(f"\nThe furthest is {worst:.2%} off; {MOST_OFF:.0%} are allowed.\n")
    return int(worst > MOST_OFF)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
