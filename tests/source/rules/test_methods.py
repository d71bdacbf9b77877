"""What is called on a wrapped model, and what else depends on its being wrapped."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import scan_source
from tests.source.samples import codes, plain, turned


pytestmark = pytest.mark.any_torch


MODEL = "model = FSDP(net)\n"
PREPARED = "model = prepare_fully_shard(net)\n"

TURNED = [
    ("model.clip_grad_norm_(1.0)\n", "clip_grad_norm_(model, 1.0)\n"),
    (
        "norm = model.clip_grad_norm_(max_norm=clip, norm_type=2)\n",
        "norm = clip_grad_norm_(model, max_norm=clip, norm_type=2)\n",
    ),
    ("FSDP.clip_grad_norm_(model, 1.0)\n", "clip_grad_norm_(model, 1.0)\n"),
    (
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
        "# fsdp-migrate: FM326\nclip_grad_norm_(model.parameters(), 1.0)\n",
    ),
    ("with model.no_sync():\n    pass\n", "with no_sync(model):\n    pass\n"),
    ("with FSDP.no_sync(model):\n    pass\n", "with no_sync(model):\n    pass\n"),
    (
        "context = model.no_sync if more else nothing\n",
        "context = partial(no_sync, model) if more else nothing\n",
    ),
    (
        "with FSDP.summon_full_params(model, False, writeback=False):\n    print(model.weight)\n",
        "with summon_full_params(model, recurse=False, writeback=False):\n    print(model.weight)\n",
    ),
    (
        "with FSDP.summon_full_params(model) if whole else nothing:\n    pass\n",
        "with summon_full_params(model) if whole else nothing:\n    pass\n",
    ),
    ("with model.summon_full_params(model):\n    pass\n", "with summon_full_params(model):\n    pass\n"),
    ("print(model.module.config)\n", "# fsdp-migrate: FM315\nprint(model.config)\n"),
    (
        "for unit in FSDP.fsdp_modules(model):\n    pass\n",
        "for unit in [m for m in model.modules() if isinstance(m, FSDPModule)]:\n    pass\n",
    ),
    (
        "if isinstance(model, (FSDP, int)):\n    pass\n",
        "if isinstance(model, (FSDPModule, int)):\n    pass\n",
    ),
    ("def f(m: FSDP) -> FSDP:\n    return m\n", "def f(m: FSDPModule) -> FSDPModule:\n    return m\n"),
]


@pytest.mark.parametrize(("before", "after"), TURNED)
def test_methods_become_functions(before: str, after: str) -> None:
    assert plain(MODEL + before) == PREPARED + after


FLOWS = [
    "def train(model):\n    model.clip_grad_norm_(1.0)\n\n\ntrain(FSDP(net))\n",
    "def train(model: FSDP):\n    model.clip_grad_norm_(1.0)\n",
    "def train(x):\n    if isinstance(x, FSDP):\n        x.clip_grad_norm_(1.0)\n",
    "def make():\n    return FSDP(net), 1\n\n\nx, one = make()\nx.clip_grad_norm_(1.0)\n",
    (
        "class T:\n    def __init__(self):\n        self.net = FSDP(net)\n\n    def step(self):\n"
        "        self.net.clip_grad_norm_(1.0)\n"
    ),
    "x = torch.compile(FSDP(net).cuda())\nx.clip_grad_norm_(1.0)\n",
    "def step(model, config):\n    if config.enable_fsdp:\n        model.clip_grad_norm_(1.0)\n",
]


@pytest.mark.parametrize("body", FLOWS)
def test_a_model_is_followed_through_the_source(body: str) -> None:
    assert ("FM311", "rewritten") in codes(body)
    after = turned(body)
    assert "clip_grad_norm_(" in after
    assert ".clip_grad_norm_(" not in after


COMMENTED = [
    ("x.clip_grad_norm_(1.0)\n", "FM311"),
    ("def f(model):\n    model.clip_grad_norm_(1.0)\n", "FM311"),
    ("def f(model):\n    with model.no_sync():\n        pass\n", "FM312"),
    ("with FSDP.summon_full_params(*args):\n    pass\n", "FM313"),
    ("with FSDP.summon_full_params(model):\n    model.generate(x)\n", "FM332"),
    (
        "context = lambda: FSDP.summon_full_params(model)\nwith context():\n    model.generate(x)\n",
        "FM313",
    ),
    ("with torch.no_grad():\n    stack.enter_context(FSDP.summon_full_params(model))\n", "FM313"),
    ("roots = FSDP.fsdp_modules(model, root_only=True)\n", "FM305"),
    ("ok = hasattr(model, 'no_sync')\n", "FM315"),
    ("if '_fsdp_wrapped_module' in name:\n    pass\n", "FM316"),
    ("key = f'{name}._fsdp_wrapped_module.x'\n", "FM316"),
    ("handle = model._handle\n", "FM317"),
    ("x = model._fsdp_wrapped_module.x\n", "FM317"),
    (
        "from torch.distributed.fsdp._common_utils import clean_tensor_name as clean\nclean(n)\n",
        "FM317",
    ),
    ("decayed = [p for p in model.parameters() if p.ndim >= 2]\n", "FM318"),
    ("for n, p in model.named_parameters():\n    if len(p.shape) == 1:\n        pass\n", "FM318"),
    ("model.register_comm_hook(state, hook)\n", "FM321"),
    ("model.apply(initialise)\n", "FM322"),
    ("import copy\ncopied = copy.deepcopy(model)\n", "FM323"),
    (
        (
            "import torch.distributed.algorithms._checkpoint.checkpoint_wrapper as w\n"
            "w.apply_activation_checkpointing(model)\n"
        ),
        "FM324",
    ),
]


@pytest.mark.parametrize(("body", "code"), COMMENTED)
def test_what_is_left_to_people_gets_one_comment(body: str, code: str) -> None:
    assert (code, "commented") in codes(MODEL + body)
    after = turned(MODEL + body)
    kept = "".join(line for line in after.splitlines(keepends=True) if "# fsdp-migrate: " not in line)
    assert kept == PREPARED + body
    assert after.count(f"# fsdp-migrate: {code} ") == 1


KEPT = [
    ("name = name.replace('_fsdp_wrapped_module.', '')\n", "FM316"),
    ("inner = model.module if hasattr(model, 'module') else model\n", "FM315"),
    ("inner = getattr(model, 'module', model)\n", "FM315"),
]


@pytest.mark.parametrize(("body", "code"), KEPT)
def test_what_is_right_already_stays(body: str, code: str) -> None:
    assert {action for found, action in codes(MODEL + body) if found == code} == {"kept"}
    assert turned(MODEL + body) == PREPARED + body


LEFT_ALONE = [
    "accelerator.clip_grad_norm_(net.parameters(), 1.0)\n",
    "torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n",
    "self.trainer.no_sync()\n",
    "x = net.module.weight\n",
    "wide = [x for x in things if x.ndim >= 2]\n",
    "flat = x.ndim == 1\n",
    "net.apply(initialise)\n",
    "import copy\ncopied = copy.deepcopy(net)\n",
    "class T:\n    def no_sync(self): ...\n",
]


@pytest.mark.parametrize("body", LEFT_ALONE)
def test_other_things_with_the_same_names_are_left_alone(body: str) -> None:
    assert turned(MODEL + body) == PREPARED + body
    assert codes(MODEL + body) == [("FM301", "rewritten")]


def test_a_check_that_lets_others_through_proves_nothing() -> None:
    body = (
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "def f(x):\n    if isinstance(x, FSDP) or isinstance(x, DDP):\n        return x.module.y\n"
        "    if not isinstance(x, FSDP):\n        return x.module.z\n"
        "    if ready and isinstance(x, FSDP):\n        return x.module.w\n"
    )
    after = turned(body)
    assert "return x.module.y\n" in after
    assert "return x.module.z\n" in after
    assert "return x.w\n" in after


SCALER = "from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler\n\n"
SCALERS = [
    ("scaler = ShardedGradScaler()\n", "scaler = grad_scaler()\n", "rewritten"),
    (
        "scaler = ShardedGradScaler('cuda', 2.0, enabled=on)\n",
        "scaler = grad_scaler('cuda', init_scale=2.0, enabled=on)\n",
        "rewritten",
    ),
    ("ok = isinstance(x, ShardedGradScaler)\n", "ok = isinstance(x, GradScaler)\n", "rewritten"),
    (
        "scaler = ShardedGradScaler(2.0)\n",
        "# fsdp-migrate: FM314\nscaler = ShardedGradScaler(2.0)\n",
        "commented",
    ),
    (
        "scaler = ShardedGradScaler(**options)\n",
        "# fsdp-migrate: FM314\nscaler = ShardedGradScaler(**options)\n",
        "commented",
    ),
]


@pytest.mark.parametrize(("before", "after", "action"), SCALERS)
def test_gradient_scalers(before: str, after: str, action: str) -> None:
    assert plain(before, SCALER) == after
    assert codes(before, SCALER) == [("FM314", action)]


FRAMEWORKS = [
    ("from lightning.pytorch.strategies import FSDPStrategy\ns = FSDPStrategy()\n", "FM319"),
    ("import pytorch_lightning as pl\nt = pl.Trainer(strategy='fsdp')\n", "FM319"),
    ("from accelerate import FullyShardedDataParallelPlugin as P\np = P()\n", "FM320"),
    ("from transformers import TrainingArguments as A\na = A(output_dir='x', fsdp=f())\n", "FM327"),
    ("from transformers import TrainingArguments\na = TrainingArguments(fsdp=f)\n", "FM327"),
    ("from composer import Trainer\nt = Trainer(model, fsdp_config=c)\n", "FM328"),
    ("import composer\nt = composer.Trainer(model, parallelism_config={'fsdp': c})\n", "FM328"),
]


@pytest.mark.parametrize(("source", "code"), FRAMEWORKS)
def test_other_frameworks_get_a_comment(source: str, code: str) -> None:
    assert codes(source, header="") == [(code, "commented")]
    after = turned(source, header="")
    assert "".join(line for line in after.splitlines(keepends=True) if "# fsdp-" not in line) == source


NO_FRAMEWORKS = [
    "import pytorch_lightning as pl\nt = pl.Trainer(strategy='ddp')\n# no fsdp\n",
    "from transformers import TrainingArguments\na = TrainingArguments(output_dir='x', fsdp='')\n",
    "from ours import Trainer\nt = Trainer(model, fsdp_config=c)\n",
    "from composer import Trainer\nt = Trainer(model, fsdp_config=None)\n",
]


@pytest.mark.parametrize("source", NO_FRAMEWORKS)
def test_other_frameworks_without_fsdp1_are_left_alone(source: str) -> None:
    assert codes(source, header="") == []
    assert turned(source, header="") == source


def test_comments_and_strings_are_told_apart() -> None:
    source = '# FSDP(model) here\n"""FullyShardedDataParallel."""\nx = "torch.distributed.fsdp"\n'
    assert codes(source, header="") == [("FM325", "mentioned")] * 3
    assert turned(source, header="") == source


def test_imports_that_nothing_uses_are_told_apart() -> None:
    source = "from torch.distributed.fsdp import FullyShardedDataParallel as F, StateDictType\nF(net)\n"
    found = [(use.code, use.action) for use in scan_source(source)]
    assert found == [("FM329", "rewritten"), ("FM329", "kept"), ("FM301", "rewritten")]
    assert turned(source, header="").startswith("from torch.distributed.fsdp import StateDictType\n")
