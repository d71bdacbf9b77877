"""From FSDP1's arguments to a plan, and from the plan to a sharded model."""
