"""Loaded last by the server that ranks are forked from.

What it has loaded is taken out of the rounds of the garbage collector: each would walk through a million
objects, and so copy the memory that a rank shares with the server.
"""

from __future__ import annotations

import gc


gc.collect()
gc.freeze()
