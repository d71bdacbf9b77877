"""A folder for ``PYTHONPATH``: what a Python that starts with it does."""
