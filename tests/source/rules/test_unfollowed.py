"""What is done with models that could not be followed: named, and nothing more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_paths, scan_paths
from tests.source.projects import WRAP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

# What a registry picks is not followed: nothing says that `save` is given the sharded model.
CLIP = (
    "class Clip:\n    def __init__(self, x):\n        self.model, self.size = clip(x)\n"
    "        self.model = self.model.eval()\n        self.model.load_state_dict(x)\n"
)
LOADED = (
    "def run(model, optimizer, x):\n    state = optim_state_dict_to_load(model, optimizer, x)\n"
    "    optimizer.load_state_dict(state)\n"
)
# Something that is not followed picks functions by their names, so that nobody knows what they are given.
PICKED = "PICKED = ['norms', 'run', 'save', 'train', 'update', 'values']\n"
TRAIN = "from tools import TOOLS\nfrom wrap import wrap\n\n\ndef main(net):\n    TOOLS['save'](wrap(net))\n"


def found(folder: Path, tools: str, train: str = TRAIN) -> dict[str, str]:
    """Return what is unclear in the tools of a project, by its text, and see that a rewriting leaves it."""
    (folder / "wrap.py").write_text(WRAP)
    (folder / "train.py").write_text(train)
    (folder / "picks.py").write_text(PICKED)
    (folder / "tools.py").write_text(tools)
    uses = [use for use in scan_paths([folder]).uses if use.action == "unclear"]
    assert {use.code for use in uses} <= {"FM450"}
    report = rewrite_paths([folder], write=True)
    assert (folder / "tools.py").read_text() == tools
    assert [use.place for use in report.unclear] == [use.place for use in uses]
    return {use.text: use.becomes for use in uses}


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("model.state_dict()", "get_model_state_dict"),
        ("model.load_state_dict(x)", "load_model_state_dict"),
        ("model.load_state_dict(x.model, False)", "load_model_state_dict"),
        ("model.no_sync()", "no_sync(model)"),
        ("y = model.forward(x)", "write model(...)"),
        ("torch.nn.utils.parameters_to_vector(model.parameters())", "take p.full_tensor() of each"),
        ("model.clip_grad_norm_(1.0)", "clip_grad_norm_(model, max_norm)"),
        ("model.save_pretrained(x)", "state_dict="),
        ("x.actor.state_dict()", "get_model_state_dict"),
        ("x['model'].state_dict()", "get_model_state_dict"),
        ("torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "that of the whole gradient"),
        ("copy.deepcopy(model)", "before it is sharded"),
        ("get_peft_model_state_dict(model)", "state_dict="),
        ("get_peft_model_state_dict(model, adapter_name='x')", "state_dict="),
        ("for p, e in zip(model.parameters(), x.parameters()): e.add_(p)", "DTensors"),
        ("sum(p.grad.detach().norm() for p in model.parameters())", "a norm or sum is that of the whole"),
        ("for m in x:\n        for p in m.parameters(): y = p.grad.float().pow(2).sum()", "norm or sum is"),
        ("for p in model.parameters(): y = DTensor.from_local(p.grad, x).norm()", "norm or sum is"),
        ("optimizer.state_dict()", "full_optimizer_state_dict"),
        ("optimizer.load_state_dict(x)", "optim_state_dict_to_load"),
    ],
)
def test_it_says_what_to_know_if_the_model_is_sharded(tmp_path: Path, does: str, said: str) -> None:
    uses = found(tmp_path, f"import copy\nimport torch\n\n\ndef run(model, optimizer, x):\n    {does}\n")
    assert len(uses) == 1
    assert said in next(iter(uses.values()))


@pytest.mark.parametrize(
    "plain",
    [
        "def run(model, x):\n    get_peft_model_state_dict(model, state_dict=x)\n",
        "def run(model, x):\n    get_peft_model_state_dict(model, x)\n",
        "def run(x):\n    model = Net()\n    model.load_state_dict(x)\n",
        "def run(x):\n    model = x.build_model()\n    model.load_state_dict(x)\n",
        "def run(x):\n    model = Net()\n    model.encoder.load_state_dict(x)\n",
        "def run(x):\n    model = t5(x).eval()\n    model.load_state_dict(x)\n",
        CLIP,
        "class Net(nn.Module):\n    def load(self, x):\n        self.encoder.load_state_dict(x)\n",
        "def run(scheduler, sampler):\n    scheduler.state_dict()\n    sampler.load_state_dict(1)\n",
        "def run(model, x):\n    model.save_pretrained(x, state_dict=x)\n",
        "def run(model_cfg, model_args):\n    copy.deepcopy(model_cfg)\n    copy.deepcopy(model_args)\n",
        "def run(model, x):\n    if not isinstance(model, FSDP):\n        model.load_state_dict(x)\n",
        "def run(model):\n    return model(1)\n",
        "class Net(nn.Module):\n    def encode(self, x):\n        return self.model.forward(x)\n",
        "def run(loss, x):\n    return loss.forward(x)\n",
        LOADED,
        "def run(model):\n    return [p.grad for p in model.parameters()], sum(p.norm() for p in [])\n",
        "def run(x):\n    for p, q in zip(x.parameters(), x.parameters()):\n        p.add_(q)\n",
        "def run(model):\n    for p in model.parameters():\n        y = p.grad.full_tensor().norm()\n",
        "def run(main_config, x):\n    copy.deepcopy(main_config.model)\n    copy.deepcopy(x['cfg'].net)\n",
        "from megatron import mpu\ndef run(model, optim):\n    model.state_dict()\n    optim.state_dict()\n",
        "def run(ema, net, x):\n    x.ema.state_dict(net)\n    ema.load_state_dict(x.model, x)\n",
        "def run(x):\n    with summon_full_params(x.base):\n        x.model.save_pretrained(1)\n",
    ],
)
def test_what_is_plain_or_no_model_is_not_named(tmp_path: Path, plain: str) -> None:
    fsdp = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n" if "FSDP" in plain else ""
    (tmp_path / "wrap.py").write_text(WRAP)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "tools.py").write_text(f"import copy\nimport torch\nfrom torch import nn\n{fsdp}\n\n{plain}")
    assert [use for use in scan_paths([tmp_path]).uses if use.action == "unclear"] == []


def test_what_an_accelerator_gives_back_is_the_model_by_any_name(tmp_path: Path) -> None:
    saves = "def save(model, a, x):\n    inner = a.{}(model)\n    torch.save(inner.state_dict(), x)\n"
    assert list(found(tmp_path, saves.format("unwrap_model"))) == ["inner.state_dict()"]
    assert found(tmp_path, saves.format("make")) == {}
    # Of a model that is sharded in sight no framework has to be asked.
    unwraps = "from accelerate import Accelerator\nfrom wrap import wrap\n\n\nmodel = wrap(net)\n"
    unwraps += "inner = Accelerator().unwrap_model(model)\nstate = inner.state_dict()\n"
    (tmp_path / "wrap.py").write_text(WRAP)
    (tmp_path / "train.py").write_text(unwraps)
    assert "FM308" in {use.code for use in scan_paths([tmp_path]).uses if use.text == "inner.state_dict()"}


def test_what_another_rule_says_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        f"{WRAP}\n\ndef run(net, optimizer):\n    model = wrap(net)\n    model.state_dict()\n"
        "    optimizer.state_dict()\n"
    )
    assert "FM450" not in {use.code for use in scan_paths([tmp_path]).uses}
    # Once rewritten, the comment that is left speaks of it.
    rewrite_paths([tmp_path], write=True)
    assert "FM450" not in {use.code for use in scan_paths([tmp_path]).uses}


def test_attributes_are_followed_to_what_sets_them(tmp_path: Path) -> None:
    saver = (
        "class Saver:\n    def __init__(self, model, path):\n        self.model = {}\n"
        "    def save(self):\n        return self.model.state_dict()\n"
    )
    assert list(found(tmp_path, saver.format("model"))) == ["self.model.state_dict()"]
    assert found(tmp_path, saver.format("Net(path)")) == {}
    once = "def save(model):\n    return model.module.state_dict() if 'x' in model else model.state_dict()\n"
    assert len(found(tmp_path, once)) == 1
    # A class that is set from elsewhere, such as one of a Trainer's.
    base = "class Saver(Trainer):\n    def save(self):\n        return self.model.state_dict()\n"
    assert list(found(tmp_path, base)) == ["self.model.state_dict()"]


@pytest.mark.parametrize(
    ("does", "is_said"),
    [
        ("load_state_dict(self, state):\n        self.mean = copy.deepcopy(state['ema'])", False),
        ("load_state_dict(self, state):\n        self.mean = copy.deepcopy(self.ema)", True),
        ("run(self, state):\n        self.mean = copy.deepcopy(state['ema'])", True),
        (
            "run(self, ema):\n        x = {n for n, p in ema.state_dict(keep_vars=True).items() if p.ndim}",
            False,
        ),
        ("run(self, ema):\n        x = {n: p for n, p in ema.state_dict(keep_vars=True).items()}", True),
        (
            "run(self, ema):\n        x = {n for n, p in ema.state_dict(keep_vars=True).items() if p.sum()}",
            True,
        ),
    ],
)
def test_items_of_a_loaded_state_and_names_of_one(tmp_path: Path, does: str, *, is_said: bool) -> None:
    body = f"import copy\n\n\nclass EMA:\n    def {does}\n"
    assert bool(found(tmp_path, body)) is is_said


AVERAGE = """import torch
class State:
    def values(self, model):
        yield from model.named_parameters()
        yield from {buffers}
    def update(self, mine, model):
        torch._foreach_mul_(mine, 0.9)
        torch._foreach_add_(mine, [v for _, v in self.values(model)], alpha=0.1)
"""


def test_lists_of_parameters_and_buffers_for_foreach(tmp_path: Path) -> None:
    uses = found(tmp_path, AVERAGE.format(buffers="model.named_buffers()"))
    assert list(uses) == ["torch._foreach_mul_(mine, 0.9)"]
    assert "give each a list of its own" in uses["torch._foreach_mul_(mine, 0.9)"]
    assert found(tmp_path, AVERAGE.format(buffers="other.named_buffers()")) == {}


@pytest.mark.parametrize(
    "does",
    [
        "def run({}):\n    clip_grad_norm_(given, 1.0)\n",
        (
            "class A:\n    def __init__(self, {}):\n        self.x = given\n    def run(self):\n"
            "        torch.nn.utils.clip_grad_norm_(self.x, 1.0)\n"
        ),
        (
            "class A(base()):\n    def step(self):\n        {} = [g['params'] for g in self.param_groups]\n"
            "        clip_grad_norm_(given, 1.0)\n"
        ),
        (
            "def run(optimizer):\n    for {} in optimizer.param_groups:\n"
            "        clip_grad_norm_(given['params'], 1.0)\n"
        ),
    ],
)
def test_lists_that_are_clipped(tmp_path: Path, does: str) -> None:
    imports = "import torch\nfrom torch.nn.utils import clip_grad_norm_\n"
    uses = found(tmp_path, imports + does.format("given"))
    assert len(uses) == 1
    assert "of a sharded model's parameters the norm" in next(iter(uses.values()))


@pytest.mark.parametrize(
    "does",
    [
        "def run(given):\n    clip_grad_norm_(given, 1.0)\nrun(Net().parameters())\n",
        "def run():\n    given = Net().parameters()\n    clip_grad_norm_(given, 1.0)\n",
        "def run(tensors):\n    tensors.clip_grad_norm_(1.0)\n",
        "def run(tensors, x):\n    tensors(x).clip_grad_norm_(1.0)\n    (x if x else tensors)(1.0)\n",
        # What is advised for a sharded model is right for any.
        (
            "from fsdp_migrate import runtime\ndef run(model, given):\n"
            "    runtime.clip_grad_norm_(model, 1.0)\n    runtime.clip_grad_norm_(given, 1.0)\n"
        ),
        "def run():\n    opt = SGD(Net().parameters())\n    clip_grad_norm_(opt.param_groups[0]['p'], 1)\n",
    ],
)
def test_lists_of_plain_models_that_are_clipped(tmp_path: Path, does: str) -> None:
    assert found(tmp_path, f"from torch.nn.utils import clip_grad_norm_\n{does}") == {}


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("for p in model.parameters():\n            s = s + p.grad.pow(2).sum()", "take .to_local() of each"),
        ("clip_grad_norm_(model.parameters(), 1.0)", "do that above this branch"),
        ("torch.save(model.state_dict(), x)", "do that above this branch"),
        ("model.save_pretrained(x)", "do that above this branch"),
        ("copy.deepcopy(model)", ""),
    ],
)
def test_one_rank_alone_would_wait_for_the_others(tmp_path: Path, does: str, said: str) -> None:
    body = "import copy\nimport torch\nfrom torch.nn.utils import clip_grad_norm_\n\n\n"
    body += f"def run(model, x, s):\n    if x and dist.get_rank() == 0:\n        {does}\n"
    (alone,) = found(tmp_path, body).values()
    (every,) = found(tmp_path, body.replace(" and dist.get_rank() == 0", "")).values()
    added = alone.removeprefix(every)
    assert alone.startswith(every)
    assert ("One rank alone comes here" in added, said in added) == (bool(said), True)


@pytest.mark.parametrize(
    ("does", "text"),
    [
        ("def run({0}):\n    return sum(p.grad.data.norm() ** 2 for p in {0})\n", "p.grad.data.norm()"),
        (
            (
                "def run({0}):\n    if isinstance({0}, torch.Tensor):\n        {0} = [{0}]\n"
                "    {0} = list({0})\n    square = sum(p.grad.norm() ** 2 for p in {0})\n"
                "    torch.distributed.all_reduce(square)\n"
            ),
            "p.grad.norm()",
        ),
        (
            (
                "class A:\n    def __init__(self, {0}):\n        self.x = {0}\n    def run(self):\n"
                "        for p in self.x:\n            torch.distributed.all_reduce(p.grad)\n"
            ),
            "torch.distributed.all_reduce(p.grad)",
        ),
        (
            (
                "def run({0}):\n    grads = [p.grad for p in {0} if p.grad is not None]\n"
                "    return torch.stack([torch.norm(g) for g in grads]).norm()\n"
            ),
            "torch.norm(g)",
        ),
        (
            (
                "def run({0}):\n    for p in filter(lambda p: p.grad is not None, {0}):\n"
                "        total = total + p.grad.norm(2) ** 2\n"
            ),
            "p.grad.norm(2)",
        ),
        (
            (
                "def run({0}):\n    for group in {0}.param_groups:\n        for p in group['params']:\n"
                "            total = total + p.grad.norm(2) ** 2\n"
            ),
            "p.grad.norm(2)",
        ),
        (
            "def run({0}):\n    return max(p.grad.norm() for g in {0}.param_groups for p in g['params'])\n",
            "p.grad.norm()",
        ),
    ],
)
def test_norms_of_lists_that_others_give(tmp_path: Path, does: str, text: str) -> None:
    assert list(found(tmp_path, f"import torch\n{does.format('given')}")) == [text]


@pytest.mark.parametrize(
    "does",
    [
        # Of one rank's part, as before.
        "def run(given):\n    return sum(p.grad.norm().item() ** 2 for p in given)\n",
        "def run(given):\n    return sum(x.norm() for x in given)\n",
        "class A(base()):\n    def run(self):\n        for p in self.param_groups[0]['p']: p.grad.norm()\n",
        "def run(given):\n    return sum(p.grad.to_local().norm() for p in given)\n",
        "def run(given):\n    return sum(p.grad.norm() for p in given)\nrun(Net().parameters())\n",
        "def run(given, x):\n    for p in given:\n        p.grad = None\n        y = x.norm()\n",
        "def run():\n    given = list(Net().parameters())\n    return [p.grad.norm() for p in given]\n",
    ],
)
def test_norms_of_lists_that_are_as_before(tmp_path: Path, does: str) -> None:
    assert found(tmp_path, does) == {}


GROUPS = "[p for g in optimizer.param_groups for p in g['params']]"


@pytest.mark.parametrize(
    ("does", "text"),
    [
        (
            (
                "class A:\n    def __init__(self, x):\n        self._grad_clipper = x\n"
                f"    def run(self, optimizer):\n        ps = {GROUPS}\n"
                "        return self._grad_clipper(ps)\n"
            ),
            "self._grad_clipper(ps)",
        ),
        (f"def run(optimizer, clip_fn):\n    clip_fn({GROUPS}, 1.0)\n", "clip_fn("),
        (
            "def run(x, cfg):\n    clip_grad = CLIPS.build(cfg)\n    clip_grad(x.model.parameters())\n",
            "clip_grad(",
        ),
        ("def run(x):\n    sync = getattr(x.model, 'no_sync', None)\n", "getattr("),
        ("def run(x):\n    if hasattr(x.model, 'no_sync'):\n        x.count += 1\n", "hasattr("),
    ],
)
def test_clippers_of_a_config_and_methods_by_their_names(tmp_path: Path, does: str, text: str) -> None:
    uses = found(tmp_path, does)
    assert [each.startswith(text) for each in uses] == [True]
    assert "fsdp_migrate.runtime" in next(iter(uses.values()))


@pytest.mark.parametrize(
    "does",
    [
        f"def clip_grad(xs):\n    pass\n\n\ndef run(optimizer):\n    clip_grad({GROUPS})\n",
        (
            "class A:\n    def clip_grad(self, xs):\n        pass\n"
            f"    def run(self, optimizer):\n        self.clip_grad({GROUPS})\n"
        ),
        "def run(clipper, image):\n    return clipper(image)\n",
        "def run(clipper):\n    clipper(Net().parameters())\n",
        "def run(x):\n    return getattr(x.loader, 'no_sync', None), getattr(x.model, 'config', None)\n",
        "def run():\n    model = Net()\n    return getattr(model, 'no_sync', None)\n",
    ],
)
def test_what_clips_nothing_of_a_model(tmp_path: Path, does: str) -> None:
    assert found(tmp_path, does) == {}


FSDP2S = """import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import clip_grad_norm_
def train(model, loader):
    for x in loader:
        model(x).sum().backward()
        clip_grad_norm_(model.parameters(), 1.0)
def main(net, loader):
    {}
    train(net, loader)
"""


def test_models_of_fsdp2_itself_are_not_named(tmp_path: Path) -> None:
    assert found(tmp_path, FSDP2S.format("fully_shard(net)")) == {}
    assert len(found(tmp_path, FSDP2S.format("fully_shard(other)"))) == 1


def test_loops_that_take_dtensors_apart_are_not_named(tmp_path: Path) -> None:
    loop = (
        "def norms(model):\n    for p in model.parameters():\n"
        "        g = p.grad.{} if isinstance(p.grad, {}) else p.grad\n        print(g.norm())\n"
    )
    assert found(tmp_path, loop.format("_local_tensor", "DTensor")) == {}
    assert len(found(tmp_path, loop.format("data", "Other"))) == 1


def test_a_function_that_is_given_ddps_model_too_is_named(tmp_path: Path) -> None:
    train = (
        f"{TRAIN}\nfrom torch.nn.parallel import DistributedDataParallel as DDP\nfrom tools import save\n"
        "save(DDP(net))\n"
    )
    assert len(found(tmp_path, "def save(model):\n    return model.state_dict()\n", train)) == 1
    wraps = "def save(net):\n    model = DDP(net)\n    return model.state_dict()\n"
    imports = "from torch.nn.parallel import DistributedDataParallel as DDP\n"
    assert found(tmp_path, imports + wraps, train) == {}


PREPARED = """\
{header}
from accelerate import Accelerator


def main(loader, x):
    hf = Accelerator()
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    {above}
    {prepares}
    {does}
"""
IMPORTS = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
BOTH = "model, optimizer, loader = hf.prepare(model, optimizer, loader)"


@pytest.mark.parametrize(
    ("prepares", "does", "is_said"),
    [
        (BOTH, "model.save_pretrained(x)", True),
        (BOTH, "torch.save(hf.unwrap_model(model).state_dict(), x)", True),
        (BOTH, "torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]['params'], 1.0)", True),
        ("model = fabric.setup_module(model)", "torch.save(model.state_dict(), x)", True),
        ("loader = hf.prepare(loader)", "model.save_pretrained(x)", False),
        ("model = helper.prepare(model)", "model.save_pretrained(x)", False),
    ],
)
def test_what_a_framework_gave_where_the_launch_is_not_seen(
    tmp_path: Path, prepares: str, does: str, *, is_said: bool
) -> None:
    for header, above, below, said in (
        (IMPORTS, "pass", does, ["FM450"] * is_said),
        (IMPORTS, does, "pass", []),
        ("", "pass", does, []),
    ):
        text = PREPARED.format(header=header, above=above, prepares=prepares, does=below)
        (tmp_path / "train.py").write_text(f"import torch\n{text}")
        assert [use.code for use in scan_paths([tmp_path]).uses if use.action == "unclear"] == said


@pytest.mark.parametrize(
    ("does", "is_said"),
    [
        ("def save(model: {}):\n    return model.state_dict()\n", "FSDPModule"),
        ("def save(model: {}, opt):\n    return opt.state_dict()\n", "FSDPModule"),
        ("def save(config):\n    return copy.deepcopy(config.{})\n", "model"),
    ],
)
def test_what_is_fsdp2s_already_and_what_a_config_says(tmp_path: Path, does: str, is_said: str) -> None:
    imports = "import copy\nfrom torch import nn\nfrom torch.distributed.fsdp import FSDPModule\n"
    assert found(tmp_path, imports + does.format(is_said)) == {}
    other = (
        does.format("nn.Module")
        if is_said == "FSDPModule"
        else does.replace("config", "state").format("model")
    )
    assert len(found(tmp_path, imports + other)) == 1


def test_a_state_in_a_context_of_whole_parameters_is_whole(tmp_path: Path) -> None:
    context = "import torch\nfrom fsdp_migrate.runtime import summon_full_params\n"
    does = "def save(model, x):\n    with {}(model):\n        model.save_pretrained(x)\n"
    assert found(tmp_path, context + does.format("summon_full_params")) == {}
    assert len(found(tmp_path, context + does.format("torch.no_grad"))) == 1
    copied = does.format("summon_full_params").replace("model.save_pretrained(x)", "copy.deepcopy(model)")
    assert len(found(tmp_path, f"import copy\n{context}{copied}")) == 1


@pytest.mark.parametrize(
    ("lines", "is_said"),
    [
        ("optimizer.load_state_dict(move(optimizer.state_dict(), x))", False),
        ("optimizer.load_state_dict(copy.deepcopy(move(optimizer.state_dict())))", False),
        (
            "optimizer.load_state_dict(move(optimizer.state_dict(), torch.device('cuda'), self.dtype, 1))",
            False,
        ),
        ("optimizer.load_state_dict(move(optimizer.state_dict(), rank=get_rank()))", False),
        ("optimizer.load_state_dict(Mover(x).tool.move(optimizer.state_dict(), f'{ckpt}'))", False),
        ("optimizer.load_state_dict(torch.load(x).merge(optimizer.state_dict()))", True),
        # What is mixed with another state is no more of the same kind.
        ("optimizer.load_state_dict(merged(optimizer.state_dict(), torch.load(x)))", True),
        ("optimizer.load_state_dict(merged(state=torch.load(x), own=optimizer.state_dict()))", True),
        ("optimizer.load_state_dict(merged(optimizer.state_dict(), x['optimizer']))", True),
        ("optimizer.load_state_dict(merged(optimizer.state_dict(), {**saved}))", True),
        ("optimizer.load_state_dict(merged(optimizer.state_dict(), ckpt))", True),
        ("x = read(x)\n    optimizer.load_state_dict(merged(optimizer.state_dict(), x))", True),
        ("optimizer.load_state_dict(merged(optimizer.state_dict(), other.state_dict()))", True),
        ("optimizer.load_state_dict(move(other.state_dict()))", True),
        ("optimizer.load_state_dict(move(x))", True),
    ],
)
def test_an_optimizer_that_loads_what_it_gave(tmp_path: Path, lines: str, *, is_said: bool) -> None:
    tools = f"def run(model, optimizer, other, x):\n    {lines}\n"
    assert bool(found(tmp_path, tools)) is is_said


@pytest.mark.parametrize(
    "again",
    ["state = move(state)", "pass", "state = torch.load(x)", "state = overlay(torch.load(x), state)"],
)
def test_an_optimizer_that_loads_its_own_state_by_a_name(tmp_path: Path, again: str) -> None:
    tools = (
        f"def run(optimizer, x):\n    state = optimizer.state_dict()\n    {again}\n"
        "    optimizer.load_state_dict(state)\n"
    )
    is_said = any("load_state_dict" in text for text in found(tmp_path, tools))
    assert is_said is ("torch.load" in again)


@pytest.mark.parametrize("first", ["hasattr(self.cfg, 'use_fsdp')", "self.cfg is not None", "self.cfg"])
def test_below_a_switch_that_is_off_nothing_is_named(tmp_path: Path, first: str) -> None:
    does = "class Saver:\n    def save(self, model):\n        if {} and self.cfg.{}:\n            pass\n"
    does += "        else:\n            torch.save(model.state_dict(), 'x')\n"
    assert found(tmp_path, f"import torch\n{does.format(first, 'use_fsdp')}") == {}
    assert len(found(tmp_path, f"import torch\n{does.format(first, 'use_ema')}")) == 1


def test_a_file_of_fsdp2s_own_models_is_not_named(tmp_path: Path) -> None:
    does = "def wrap(net):\n    fully_shard(net)\n\ndef load(model, x):\n    model.load_state_dict(x)\n"
    own = "from torch.distributed.fsdp import {}fully_shard\n"
    assert found(tmp_path, own.format("") + does) == {}
    assert len(found(tmp_path, own.format("FullyShardedDataParallel, ") + does)) == 1


def test_a_loop_of_two_models_in_a_context_of_whole_parameters(tmp_path: Path) -> None:
    does = (
        "import torch\nfrom fsdp_migrate.runtime import summon_full_params\ndef update(model, ema):\n"
        "    with {}(model):\n        for p, e in zip(model.parameters(), ema.parameters()):\n"
        "            e.add_(p)\n"
    )
    assert found(tmp_path, does.format("summon_full_params")) == {}
    assert len(found(tmp_path, does.format("torch.no_grad"))) == 1


@pytest.mark.parametrize(
    ("imports", "is_named"),
    [
        ("from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as XLAFSDP", False),
        ("from torch_xla.distributed.fsdp import checkpoint_module", True),
        ("import torch_xla.core.xla_model as xm", True),
    ],
)
def test_a_file_of_torch_xlas_models_is_not_named(tmp_path: Path, imports: str, *, is_named: bool) -> None:
    does = "    model.load_state_dict(x)\n    opt.load_state_dict(x)\n"
    tools = f"def run(model, opt, x):\n    {imports}\n{does}"
    assert len(found(tmp_path, tools)) == (2 if is_named else 0)
    torchs = "from torch.distributed.fsdp import FullyShardedDataParallel\n"
    assert len(found(tmp_path, f"{torchs}{tools}")) == 2
