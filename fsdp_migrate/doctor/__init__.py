"""The doctor: known faults of torch and the frameworks that bite in this migration, and whom they hit."""

from fsdp_migrate.doctor.examine import Diagnosis, Symptom, examine, stops_in_framework
from fsdp_migrate.doctor.faults import FAULTS
from fsdp_migrate.doctor.known import Affected, KnownFault
from fsdp_migrate.doctor.sight import Sight, look


__all__ = [
    "FAULTS",
    "Affected",
    "Diagnosis",
    "KnownFault",
    "Sight",
    "Symptom",
    "examine",
    "look",
    "stops_in_framework",
]
