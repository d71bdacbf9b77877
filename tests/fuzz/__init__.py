"""The fuzzer: draws models, FSDP1 arguments, optimizers and habits, and holds ours against FSDP1.

draws.py says what can be drawn, units.py and models.py build it, runs.py trains it under both, verdicts.py
judges, and driver.py draws many and shrinks what differs. ``make fuzz`` runs it.
"""
