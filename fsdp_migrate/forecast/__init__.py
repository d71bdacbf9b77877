"""Memory, foreseen: what a rank of any number of ranks holds at its peak, under FSDP1 and under FSDP2."""

from fsdp_migrate.forecast.foretell import forecast_memory
from fsdp_migrate.forecast.report import MemoryForecast, PeakMemory


__all__ = ["MemoryForecast", "PeakMemory", "forecast_memory"]
