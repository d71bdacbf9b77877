from __future__ import annotations

import importlib.util


# `make test-frameworks` installs Axolotl, PEFT, bitsandbytes, fvcore, timm and torchao, which no lane has;
# the others are in one or in both.
_TESTS = {
    "axolotl": "test_axolotl_claims.py",
    "bitsandbytes": "test_bitsandbytes.py",
    "fvcore": "test_fvcore.py",
    "lightning": "test_lightning_claims.py",
    "peft": "test_peft.py",
    "timm": "test_timm.py",
    "torchao": "test_torchao.py",
}
collect_ignore = [path for name, path in _TESTS.items() if importlib.util.find_spec(name) is None]
if any(importlib.util.find_spec(name) is None for name in ("bitsandbytes", "peft")):
    collect_ignore += ["test_qlora.py"]
