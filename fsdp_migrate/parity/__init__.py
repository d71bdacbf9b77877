"""Parity: the user's own model under FSDP1 and under FSDP2, step by step, and where the two part first."""

from fsdp_migrate.parity.compare import compare_runs
from fsdp_migrate.parity.report import Collective, Cost, Difference, ParityReport, Step


__all__ = ["Collective", "Cost", "Difference", "ParityReport", "Step", "compare_runs"]
