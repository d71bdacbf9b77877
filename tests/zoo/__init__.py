"""The zoo: tiny models of transformers' architectures, trained under FSDP1 and prepared.

tiny.py makes them, runs.py trains them under both, and ``make zoo`` (``__main__.py``) writes docs/models.md.
"""
