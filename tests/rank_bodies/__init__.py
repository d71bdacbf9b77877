"""Functions that run inside ranks, by topic.

Every module here is imported once into the server that ranks are forked from, so nothing here may
import pytest or start threads at import time.
"""
