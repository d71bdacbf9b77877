"""Inspects, converts and verifies a checkpoint from Python: `python examples/take_over.py CKPT OUT`."""

from __future__ import annotations

import sys

from fsdp_migrate import (
    FSDPMigrateError,
    convert_checkpoint,
    inspect_checkpoint,
    plan_conversion,
    verify_checkpoints,
)


def main(source: str, output: str) -> int:
    try:
        plan = plan_conversion(inspect_checkpoint(source))
        print(f"{source}: {plan.action}")
        for finding in plan.findings:
            print(f"  {finding.fidelity}: {finding.subject}: {finding.message}")
        convert_checkpoint(source, output)
        report = verify_checkpoints(source, output)
    except FSDPMigrateError as error:
        print(error, file=sys.stderr)
        return 1
    print("identical" if report.is_same else "different")
    return 0 if report.is_same else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
