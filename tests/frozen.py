"""Loaded last by the server that ranks are forked from.

What it has loaded is taken out of the rounds of the garbage collector: each would walk through a million
objects, and so copy the memory that a rank shares with the server. And what every rank would find out for
itself is found out here: the sources in which `prepare_fully_shard` looks for what ``rewrite`` left; and the
name of the processor, for which Composer's Trainer starts a process that takes a second.
"""

from __future__ import annotations

import contextlib
import gc

from fsdp_migrate.sharding.unsettled import refuse_unsettled


refuse_unsettled()
with contextlib.suppress(ImportError):
    from composer.utils.collect_env import get_cpu_model

    get_cpu_model()
gc.collect()
gc.freeze()
