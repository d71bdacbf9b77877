"""Loaded last by the server that ranks are forked from.

What it has loaded is taken out of the rounds of the garbage collector: each would walk through a million
objects, and so copy the memory that a rank shares with the server. And what every rank would read again is
read here: the sources in which `prepare_fully_shard` looks for what ``rewrite`` left.
"""

from __future__ import annotations

import gc

from fsdp_migrate.sharding.unsettled import refuse_unsettled


refuse_unsettled()
gc.collect()
gc.freeze()
