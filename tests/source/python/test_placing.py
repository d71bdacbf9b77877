"""New imports beside FSDP1's own, where those wait, or are tried."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import rewrite_source, scan_source


pytestmark = pytest.mark.any_torch

FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
PREPARE = "from fsdp_migrate import prepare_fully_shard\n"
MODULE = "from torch.distributed.fsdp import FSDPModule\n"
PREPARED = "m = prepare_fully_shard(net)\n"
PLACES = {
    f"""\
try:
    {FSDP}    HAS = True
except ImportError:
    FSDP = None
    HAS = False
m = FSDP(net)
""": f"""\
try:
    {FSDP}    HAS = True
except ImportError:
    FSDP = None
    prepare_fully_shard = None
    HAS = False
else:
    {PREPARE}{PREPARED}""",
    f"""\
try:
    {FSDP}except ImportError:
    pass
else:
    HAS = 1
m = FSDP(net)
""": f"""\
try:
    {FSDP}except ImportError:
    pass
else:
    {PREPARE}    HAS = 1
{PREPARED}""",
    f"""\
if is_there():
    {FSDP}else:
    FSDP = None
def f(m: FSDP):
    return FSDP and m
""": f"""\
if is_there():
    {FSDP}    {MODULE}else:
    FSDP = None
    FSDPModule = None
def f(m: FSDPModule):
    return FSDP and m
""",
    f"""\
def f(net):
    {FSDP}    return g(FSDP(net))
def g(m):
    'Doc.'
    return m.no_sync()
""": f"""\
def f(net):
    {PREPARE}    return g(prepare_fully_shard(net))
def g(m):
    'Doc.'
    from fsdp_migrate.runtime import no_sync
    return no_sync(m)
""",
    f"""\
import torch
try:
    {FSDP}except ImportError:
    pass
m = FSDP(net)
""": f"""\
import torch
try:
    {FSDP}except ImportError:
    pass
else:
    {PREPARE}{PREPARED}""",
    f"""\
import torch
try:
    import torch
    {FSDP}    THERE = True
except (ImportError, RuntimeError):
    FSDP = None
    THERE = False
def f(m):
    return THERE and isinstance(m, FSDP)
m = FSDP(net)
""": f"""\
import torch
try:
    import torch
    {FSDP}    THERE = True
except (ImportError, RuntimeError):
    FSDP = None
    FSDPModule = None
    prepare_fully_shard = None
    THERE = False
else:
    {PREPARE}    {MODULE}def f(m):
    return THERE and isinstance(m, FSDPModule)
{PREPARED}""",
    f"""\
import torch
try:
    {FSDP}except ImportError as error:
    raise RuntimeError from error
m = FSDP(net)
""": f"""\
import torch
{PREPARE}try:
    {FSDP}except ImportError as error:
    raise RuntimeError from error
{PREPARED}""",
    f"""\
import torch
try:
    {FSDP}except ImportError:
    FSDP = object
m = FSDP(net)
""": f"""\
import torch
{PREPARE}try:
    {FSDP}except ImportError:
    FSDP = object
{PREPARED}""",
    f"""\
import torch
import torch.distributed as dist
if dist.is_available():
    {FSDP}else:
    FSDP = None
def f(net) -> FSDP:
    return FSDP(net)
""": f"""\
import torch
import torch.distributed as dist
if dist.is_available():
    {FSDP}    {PREPARE}    {MODULE}else:
    FSDP = None
    FSDPModule = None
    prepare_fully_shard = None
def f(net) -> FSDPModule:
    return prepare_fully_shard(net)
""",
    f"""\
import torch
if not torch.distributed.is_available():
    FSDP = None
else:
    try:
        {FSDP}    except ImportError:
        FSDP = None
m = FSDP(net)
""": f"""\
import torch
if not torch.distributed.is_available():
    FSDP = None
    prepare_fully_shard = None
else:
    try:
        {FSDP}    except ImportError:
        FSDP = None
        prepare_fully_shard = None
    else:
        {PREPARE}{PREPARED}""",
    f"""\
import torch
if args.fsdp:
    {FSDP}m = FSDP(net)
""": f"""\
import torch
{PREPARE}if args.fsdp:
    pass
{PREPARED}""",
    f"""\
import torch
if torch.__version__ >= "2.0":
    {FSDP}else:
    {FSDP}m = FSDP(net)
""": f"""\
import torch
{PREPARE}if torch.__version__ >= "2.0":
    pass
else:
    pass
{PREPARED}""",
    """\
import importlib
fsdp = importlib.import_module('torch.distributed.fsdp')
m = fsdp.FullyShardedDataParallel(net)
""": f"""\
import importlib
{PREPARE}fsdp = importlib.import_module('torch.distributed.fsdp')
{PREPARED}""",
}


@pytest.mark.parametrize("before", PLACES)
def test_new_imports_stand_where_fsdp1s_do(before: str) -> None:
    assert rewrite_source(before) == PLACES[before]
    assert rewrite_source(PLACES[before]) == PLACES[before]


@pytest.mark.parametrize(
    "made",
    [
        "FSDP = import_module('torch.distributed.fsdp').FullyShardedDataParallel",
        "FSDP = getattr(import_module('torch.distributed.fsdp'), 'FullyShardedDataParallel')",
    ],
)
def test_what_is_imported_by_a_text(made: str) -> None:
    code = f"from importlib import import_module\n{made}\nm = FSDP(net)\nm.clip_grad_norm_(1.0)\n"
    found = {(use.code, use.action) for use in scan_source(code)}
    assert {("FM301", "rewritten"), ("FM311", "rewritten")} <= found
    assert "commented" not in {action for _, action in found}


def test_a_class_that_is_asked_for_being_there_is_no_use_of_it() -> None:
    asked = "if FSDP:\n    m = FSDP(net)\nn = FSDP(net) if FSDP else net\ndef f():\n    global FSDP\n"
    code = f"import torch\nif torch:\n    {FSDP}else:\n    FSDP = None\n{asked}"
    assert {use.code for use in scan_source(code) if use.action == "commented"} == set()


SCALER = """\
{}
try:
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
except ImportError:
    ShardedGradScaler = None
scaler = ShardedGradScaler() if ShardedGradScaler is not None else None
own = isinstance(scaler, ShardedGradScaler)
"""


def test_a_name_that_the_file_has_in_any_case_stays_its_own() -> None:
    # It became None where FSDP1's module was missing, and was imported twice.
    text = rewrite_source(SCALER.format("import torch\nfrom torch.amp import GradScaler"))
    assert "GradScaler = None" not in text.replace("ShardedGradScaler", "")
    assert text.count("import GradScaler") == 1
    assert "scaler = grad_scaler() if grad_scaler is not None else None\n" in text
    assert "isinstance(scaler, GradScaler)" in text


@pytest.mark.parametrize(
    "above", ["import torch", "if x:\n    from torch.amp import GradScaler", "GradScaler = 1"]
)
def test_a_name_that_the_file_may_not_have_is_none_too(above: str) -> None:
    text = rewrite_source(SCALER.format(above))
    names = {line.strip() for line in text.splitlines()}
    assert names & {"GradScaler = None", "fsdp_GradScaler = None"}
    assert "grad_scaler = None" in names
