"""What each command puts into a report that is shown around; :mod:`fsdp_migrate.report` writes it."""
