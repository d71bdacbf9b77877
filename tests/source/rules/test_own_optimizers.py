"""Optimizers that are not torch's, and what holds parameters from before a model is sharded."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.source import rewrite_paths, scan_paths
from tests.source.samples import IMPORTS, codes, found_comments, turned


pytestmark = pytest.mark.any_torch

STEP = (
    "class Own(torch.optim.Optimizer):\n    def step(self, closure=None):\n"
    "        for group in self.param_groups:\n            for p in group['params']:\n"
    "                state = self.state[p]\n                if not state:\n"
    "                    state['mean'] = torch.zeros_like(p)\n"
    "                {0}\n\n\n"
)
WHOLE = STEP.format("p.sub_(p.grad / p.grad.norm(), alpha=group['lr'])")
PLAIN = STEP.format("p.sub_(state['mean'].lerp_(p.grad, 0.1), alpha=group['lr'])")


@pytest.mark.parametrize(
    "made",
    [
        "model = FSDP(net)\noptimizer = Own(model.parameters(), lr=0.1)\n",
        "model = FSDP(net)\nwith_groups = Own([{'params': model.parameters()}], lr=0.1)\n",
        "model = FSDP(net)\nparams = [p for p in model.parameters() if p.requires_grad]\nx = Own(params)\n",
        "optimizer = Own(net.parameters(), lr=0.1)\nmodel = FSDP(net)\n",
    ],
)
def test_a_class_that_looks_at_a_parameter_as_a_whole_gets_a_comment(made: str) -> None:
    assert ("FM445", 1) in found_comments(WHOLE + made)
    assert {action for code, action in codes(PLAIN + made) if code == "FM445"} == {"kept"}


def test_a_class_that_takes_dtensors_apart_itself_stays() -> None:
    own = STEP.format(
        "g = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad\n                g.norm()"
    )
    below = f"def _local(t):\n    return t.to_local() if hasattr(t, 'to_local') else t\n\n{STEP}"
    made = "model = FSDP(net)\noptimizer = Own(model.parameters(), lr=0.1)\n"
    for body in (own, below.format("_local(p.grad).norm()")):
        assert {action for code, action in codes(body + made) if code == "FM445"} == {"kept"}
    saved = WHOLE.replace(
        "    def step", "    def state_dict(self):\n        return self.x.to_local()\n    def step"
    )
    assert {action for code, action in codes(saved + made) if code == "FM445"} == {"commented"}


@pytest.mark.parametrize(
    ("calls", "helper", "action"),
    [
        (
            "self._plain(p.grad).norm()",
            "return t._local_tensor if hasattr(t, '_local_tensor') else t",
            "kept",
        ),
        (
            "self._norm(p.grad)",
            "return self._norm(t)\n    def _norm(self, t):\n        t._local_tensor.norm()",
            "kept",
        ),
        # What the step does not come to takes nothing apart for it.
        ("p.grad.norm()", "return t._local_tensor", "commented"),
        ("self._plain(p.grad).norm()", "return getattr(t, '_local', t)", "commented"),
    ],
)
def test_a_method_that_takes_dtensors_apart_for_the_step(calls: str, helper: str, action: str) -> None:
    own = STEP.format(calls).rstrip() + f"\n\n    def _plain(self, t):\n        {helper}\n\n\n"
    made = "model = FSDP(net)\noptimizer = Own(model.parameters(), lr=0.1)\n"
    assert {found for code, found in codes(own + made) if code == "FM445"} == {action}


@pytest.mark.parametrize("base", ["swa_utils.AveragedModel", "lr_scheduler.LRScheduler"])
def test_a_class_beside_torchs_optimizers_is_none(base: str) -> None:
    body = (
        f"class Own(torch.optim.{base}):\n    def step(self, closure=None):\n        print(self)\n\n\n"
        "model = FSDP(net)\nown = Own(model.parameters())\n"
    )
    assert "FM445" not in dict(codes(body))


def test_a_class_that_no_sharded_model_is_given_to_is_left_alone() -> None:
    body = f"{WHOLE}model = FSDP(net)\noptimizer = Own(other.parameters(), lr=0.1)\n"
    assert "FM445" not in {code for code, _ in codes(body)}


FILLED = "a, b = [], []\nfor n, p in {}.named_parameters():\n    if n:\n        b.append(p)\n"
TRIED = (
    "try:\n    from {} import Adam as Fused\nexcept ImportError:\n    from torch.optim import Adam as Fused\n"
)


@pytest.mark.parametrize(
    ("made", "is_told"),
    [
        ("optimizer = bnb.optim.AdamW8bit(model.parameters())\n", True),
        ("opt = Outer(params=model.parameters())\n", True),
        (
            "kept = model.parameters()\nkept = list(filter(is_trained, kept))\nopt = Outer(kept)\n",
            True,
        ),
        ("optimizer = torch.optim.AdamW(model.parameters())\n", False),
        (f"{FILLED.format('model')}opt = Outer([{{'params': a, 'lr': 1}}, {{'params': b}}])\n", True),
        (f"{FILLED.format('other')}opt = Outer([{{'params': a, 'lr': 1}}, {{'params': b}}])\n", False),
        ("some = []\nsome.extend(model.parameters())\nopt = Outer(some)\n", True),
        ("opt = Outer(get_param_groups(model, 0.1))\n", True),
        ("opt = Outer(get_names(model))\n", False),
        ("a, b = net.group_params_by_weight_decay()\nopt = Outer([{'params': a}, {'params': b}])\n", True),
        ("groups = model.param_groups()\nopt = Outer(groups)\n", True),
        ("a, b = other.group_params_by_weight_decay()\nopt = Outer([{'params': a}, {'params': b}])\n", False),
        (f"{TRIED.format('apex.optimizers')}opt = Fused(model.parameters())\n", True),
        (f"{TRIED.format('transformers')}opt = Fused(model.parameters())\n", False),
        ("average = Outer(model.parameters())\n", False),
        ("optimizer = Outer(other.parameters())\n", False),
    ],
)
def test_an_optimizer_of_another_package(made: str, is_told: bool) -> None:
    header = f"import bitsandbytes as bnb\nfrom diloco import Outer\n{IMPORTS}"
    assert (("FM445", "commented") in codes(f"model = FSDP(net)\n{made}", header)) is is_told


@pytest.mark.parametrize(
    "made",
    [
        "optimizer = Own(net.parameters())",
        "opt = Outer(params=net.parameters())",
        "params = [p for p in net.parameters() if p.requires_grad]\n    optim = torch.optim.SGD(params)",
        "opt = torch.optim.SGD([{'params': list(net.parameters())}])",
    ],
)
def test_an_optimizer_from_before_sharding_is_handed_over(made: str) -> None:
    body = f"from diloco import Outer\n{PLAIN}def run(net):\n    {made}\n    return FSDP(net)\n"
    after = turned(body)
    name = made.splitlines()[-1].split(" =")[0].strip()
    assert f"return prepare_fully_shard(net, optimizers={name})\n" in after
    assert "FM446" not in after


@pytest.mark.parametrize(
    ("made", "used", "is_told"),
    [
        ("kept = [p for p in net.parameters() if p.requires_grad]", "clip(kept)", True),
        ("kept = list(net.parameters())", "clip(kept)", True),
        ("kept = Outer(net.parameters())", "kept.step()", True),
        ("kept = {n: p for n, p in net.named_parameters()}", "clip(kept)", True),
        ("kept = list(net.parameters())", "pass", False),
        ("kept = sum(p.numel() for p in net.parameters())", "print(kept)", False),
        ("kept = {p.dtype for p in net.parameters()}", "print(kept)", False),
        ("kept = list(other.parameters())", "clip(kept)", False),
    ],
)
def test_what_holds_the_parameters_of_before(made: str, used: str, is_told: bool) -> None:
    body = f"def run(net):\n    {made}\n    net = FSDP(net)\n    {used}\n"
    assert (("FM446", 2) in found_comments(body)) is is_told


def test_a_class_of_another_file(tmp_path: Path) -> None:
    files = {
        "base.py": f"import torch\n\n\n{WHOLE}",
        "steps.py": "from base import Own\n\n\nclass Mine(Own):\n    pass\n",
        "other.py": f"import torch\n\n\n{WHOLE}",
        "main.py": f"from steps import Mine\n{IMPORTS}def groups(model):\n    return [model.parameters()]\n"
        "\n\nmodel = FSDP(net)\nopt = Mine(groups(model))\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    left = {file.path.rpartition("/")[2]: file.after for file in rewrite_paths([tmp_path]).changed}
    assert set(left) == {"base.py", "main.py"}
    assert "# fsdp-migrate: FM445" in left["base.py"]


def test_a_projects_own_optimizer_is_none_of_another_package(tmp_path: Path) -> None:
    counted = PLAIN.replace(
        "if not state:\n", "if not state:\n                    state['step'] = torch.tensor(0.0)\n"
    )
    (tmp_path / "own.py").write_text(
        f"import torch\nfrom torch.optim.optimizer import Optimizer\n\n\n{counted}"
    )
    (tmp_path / "main.py").write_text(
        f"{IMPORTS}import own\nfrom own import Own\nmodel = FSDP(net)\noptimizer = Own(model.parameters())\n"
        "other = own.Own(model.parameters())\n"
    )
    left = {Path(file.path).name: file.after for file in rewrite_paths([tmp_path]).changed}
    assert set(left) == {"main.py"}
    assert "FM445" not in left["main.py"]


WRAPS = "def wrap(model, rank):\n    return FSDP(model, device_id=rank)\n\n\n"


@pytest.mark.parametrize(
    ("made", "is_said"),
    [
        ("optimizer = torch.optim.SGD(net.parameters())\n    model = wrap(net, 0)", True),
        ("optimizer = build_optimizer(net, cfg)\n    model = wrap(net, 0)", True),
        ("optimizer = build_optimizer(other, cfg)\n    model = wrap(net, 0)", False),
        ("model = wrap(net, 0)\n    optimizer = torch.optim.SGD(model.parameters())", False),
    ],
)
def test_an_optimizer_from_before_a_function_that_shards(made: str, is_said: bool) -> None:
    body = f"{WRAPS}def run(net, cfg):\n    {made}\n    optimizer.step()\n    return model\n"
    assert (("FM446", "commented") in codes(body)) is is_said


def test_an_optimizer_from_before_a_function_of_another_file_that_shards(tmp_path: Path) -> None:
    (tmp_path / "dist.py").write_text(f"{IMPORTS}{WRAPS}")
    (tmp_path / "main.py").write_text(
        "def run(net, cfg):\n    optimizer = build_optimizer(net, cfg)\n    from dist import wrap\n"
        "    model = wrap(net, 0)\n    return optimizer, model\n"
    )
    rewrite_paths([tmp_path], write=True)
    assert "# fsdp-migrate: FM446" in (tmp_path / "main.py").read_text()


def test_parameters_that_the_wrapping_ignores_are_meant_to_be_from_before_it() -> None:
    body = (
        "frozen = [p for p in model.parameters() if not p.requires_grad]\n"
        "model = FSDP(model, ignored_states=frozen)\n"
    )
    assert "FM446" not in {code for code, _ in codes(body)}
    # They stay the objects that they are, so that what uses them goes on.
    assert "FM446" not in {code for code, _ in codes(f"{body}step(frozen)\n")}


METHOD = (
    "import bitsandbytes as bnb\nimport torch\n\n\nclass Net(torch.nn.Module):\n"
    "    def configure_optimizers(self, lr):\n        groups = [{'params': list(self.parameters())}]\n"
    "        optimizer = bnb.optim.AdamW8bit(groups, lr=lr)\n        return optimizer\n"
)
BEFORE = "optimizer = net.configure_optimizers(0.1)\nmodel = FSDP(net)\n"
AFTER = "model = FSDP(net)\nraw = model.module\noptimizer = raw.configure_optimizers(0.1)\n"


@pytest.mark.parametrize("made", [BEFORE, AFTER, BEFORE.replace("model = ", "net = ")])
def test_an_optimizer_of_another_package_that_the_model_makes_itself(tmp_path: Path, made: str) -> None:
    assert ("FM445", "commented") in codes(METHOD + made)
    assert "FM445" not in dict(codes(METHOD.replace("bnb.optim.AdamW8bit", "torch.optim.AdamW") + made))
    (tmp_path / "net.py").write_text(METHOD)
    (tmp_path / "train.py").write_text(f"{IMPORTS}from net import Net\n\nnet = Net()\n{made}")
    files = {Path(each.path).name: each.after for each in rewrite_paths([tmp_path]).changed}
    assert files.get("net.py", "").count("# fsdp-migrate: FM445 ") == 1


def test_parameters_in_groups_by_name() -> None:
    body = (
        "import bitsandbytes as bnb\nmodel = FSDP(net)\n"
        "named = {n: p for n, p in model.named_parameters() if p.requires_grad}\n"
        "decayed = [p for n, p in named.items() if 'bias' not in n]\n"
        "groups = [{'params': decayed, 'weight_decay': 0.1}]\noptimizer = bnb.optim.AdamW8bit(groups)\n"
    )
    assert ("FM445", "commented") in codes(body)


def test_parameters_that_a_function_of_another_file_is_given(tmp_path: Path) -> None:
    (tmp_path / "optim.py").write_text(
        "def build(params, lr):\n    params = list(params)\n    import bitsandbytes as bnb\n"
        "    return bnb.optim.Adam8bit(params, lr=lr)\n"
    )
    (tmp_path / "main.py").write_text(
        f"{IMPORTS}from optim import build\n\n\ndef wrap(net):\n    return FSDP(net)\n\n\n"
        "model = wrap(net)\noptimizer = build(model.parameters(), 0.1)\n"
    )
    rewrite_paths([tmp_path], write=True)
    assert "# fsdp-migrate: FM445" in (tmp_path / "optim.py").read_text()


def test_an_optimizer_of_another_package_whose_step_is_arithmetic() -> None:
    body = "model = FSDP(net)\nopt = {}(model.parameters())\n"
    header = f"from transformers import AdamW, Adafactor\n{IMPORTS}"
    assert ("FM445", "kept") in codes(body.format("AdamW"), header)
    assert ("FM445", "commented") in codes(body.format("Adafactor"), header)


def test_what_takes_the_inner_module_out_is_no_wrapping() -> None:
    holder = "class Holder(torch.nn.Module):\n    def __init__(self):\n        self.module = FSDP(net)\n"
    body = "m = Holder()\nopt = build(m)\ngetattr(m, 'module', m).load_state_dict(x)\nopt.step()\n"
    assert "FM446" not in dict(codes(holder + body))


@pytest.mark.parametrize("ignored", ["ignored", "list(ignored)"])
def test_parameters_that_the_wrapping_leaves_alone_stay_what_they_are(ignored: str) -> None:
    made = "kept = [p for p in net.parameters() if p.requires_grad]\n"
    uses = "torch.nn.utils.clip_grad_norm_(kept, 1.0)\n"
    wrapping = f"model = FSDP(net, ignored_states={ignored.replace('ignored', 'kept')})\n"
    assert "FM446" not in dict(codes(f"{made}{wrapping}{uses}"))
    assert "FM446" in dict(codes(f"{made}model = FSDP(net)\n{uses}"))


@pytest.mark.parametrize(
    ("made", "ignored", "is_said"),
    [
        ("parts = [net.users, net.items]\nkept = [p for t in parts for p in t.parameters()]", "parts", False),
        ("parts = [net.users, net.items]\nkept = list(net.users.parameters())", "parts", False),
        ("kept = list(net.users.parameters())", "[net.users]", False),
        ("kept = list(net.items.parameters())", "[net.users]", True),
        ("kept = [*net.users.parameters(), *net.items.parameters()]", "[net.users]", True),
        ("kept = list(net.parameters())", "[net.users]", True),
    ],
)
def test_parameters_of_modules_that_the_wrapping_leaves_alone(
    made: str, ignored: str, *, is_said: bool
) -> None:
    body = f"{made}\nmodel = FSDP(net, ignored_modules={ignored})\nopt = torch.optim.SGD(kept)\n"
    assert ("FM446" in dict(codes(body))) is is_said


@pytest.mark.parametrize(
    ("above", "given", "is_said"),
    [
        ("cfg = {'ignored_states': kept}", "**cfg", False),
        ("cfg = dict(ignored_parameters=kept)", "**cfg", False),
        ("cfg['ignored_states'] = list(kept)", "**cfg", False),
        ("cfg.update({'ignored_states': kept})", "**cfg", False),
        ("cfg.update(ignored_states=kept)", "**cfg", False),
        ("cfg.setdefault('ignored_states', kept)", "**cfg", False),
        ("self.cfg['ignored_states'] = kept", "**self.cfg", False),
        ("pass", "**{'ignored_states': kept}", False),
        ("cfg = {'extra': kept}", "**cfg", True),
        ("cfg['extra'] = kept", "**cfg", True),
        ("cfg.update(extra=kept)", "**cfg", True),
        ("cfg.setdefault('extra', kept)", "**cfg", True),
        ("other['ignored_states'] = kept", "**cfg", True),
        ("other.update(ignored_states=kept)", "**cfg", True),
        ("cfg.show(ignored_states=kept)", "**cfg", True),
        ("cfg['ignored_states'] = kept", "**other", True),
        ("pass", "**cfg)\n    cfg.update(ignored_states=kept", True),
        ("pass", "**cfg)\n    cfg['ignored_states'] = (kept", True),
    ],
)
def test_parameters_that_a_dict_leaves_alone(above: str, given: str, *, is_said: bool) -> None:
    body = (
        "def wrap(self, net, cfg, other):\n    kept = [p for p in net.parameters() if p.requires_grad]\n"
        f"    {above}\n    model = FSDP(net, {given})\n    torch.nn.utils.clip_grad_norm_(kept, 1.0)\n"
    )
    assert ("FM446" in dict(codes(body))) is is_said


@pytest.mark.parametrize(
    ("made", "is_said"),
    [
        ("torch.optim.Adafactor(model.parameters())", True),
        ("torch.optim.Rprop(model.parameters())", True),
        ("torch.optim.LBFGS(model.parameters(), lr=1)", True),
        ("torch.distributed.optim.ZeroRedundancyOptimizer(model.parameters(), optimizer_class=x)", True),
        ("torch.optim.LBFGS([scale], lr=1)", False),
        ("torch.optim.Adamax(model.parameters())", False),
        ("torch.optim.ASGD([{'params': model.parameters()}])", False),
    ],
)
def test_optimizers_of_torch_that_take_no_dtensors(made: str, is_said: bool) -> None:
    assert (("FM445", "commented") in codes(f"model = FSDP(net)\nopt = {made}\n")) is is_said


@pytest.mark.parametrize(
    ("picks", "made"),
    [
        (
            "def make(name):\n    if name == 'own':\n        return Own\n    raise ValueError(name)\n",
            "make(name)",
        ),
        (
            "def make(name):\n    cls = ALL[name] if name else 0\n    return cls\nALL = {1: Own}\n",
            "make(name)",
        ),
        ("def make(name):\n    return functools.partial(Own, betas=(0.9, 0.99))\n", "make(name)"),
        ("ALL = {'adam': torch.optim.Adam, 'own': Own}\ndef make():\n    return ALL.get('own')\n", "make()"),
    ],
)
@pytest.mark.parametrize("is_bound", [False, True])
def test_a_class_that_a_function_or_a_dict_gives(
    picks: str, made: str, is_bound: bool, tmp_path: Path
) -> None:
    (tmp_path / "opts.py").write_text(f"import functools\nimport torch\n\n\n{WHOLE}{picks}")
    (tmp_path / "other.py").write_text(f"import torch\n\n\n{WHOLE}")
    call = f"cls = {made}\noptimizer = cls(model.parameters(), lr=0.1)\n"
    call = call if is_bound else f"optimizer = {made}(model.parameters(), lr=0.1)\n"
    (tmp_path / "main.py").write_text(f"from opts import *\n{IMPORTS}model = FSDP(net)\n{call}")
    left = {file.path.rpartition("/")[2]: file.after for file in rewrite_paths([tmp_path]).changed}
    assert set(left) == {"opts.py", "main.py"}
    assert "# fsdp-migrate: FM445" in left["opts.py"]


def test_a_class_of_the_project_by_another_name(tmp_path: Path) -> None:
    (tmp_path / "opts.py").write_text(f"import torch\n\n\n{WHOLE}")
    picks = (
        "if fast:\n    cls = Own\nelse:\n    cls = torch.optim.AdamW\noptimizer = cls(model.parameters())\n"
    )
    (tmp_path / "main.py").write_text(
        f"import torch\nfrom opts import Own\n{IMPORTS}model = FSDP(net)\n{picks}"
    )
    left = {file.path.rpartition("/")[2]: file.after for file in rewrite_paths([tmp_path]).changed}
    assert "# fsdp-migrate: FM445" in left["opts.py"]
    assert "FM445" not in left["main.py"]


@pytest.mark.parametrize(
    ("made", "given", "is_said"),
    [
        ("opt = Own(model.parameters())", "optimizers=opt, fsdp_config=cfg.fsdp", True),
        ("opt = Own(model.parameters())", "optimizers=[opt], parallelism_config={'fsdp': cfg.fsdp}", True),
        ("pass", "optimizers=Own(model.parameters()), fsdp_config=cfg.fsdp", True),
        ("opt = StableAdamW(model.parameters())", "optimizers=opt, fsdp_config=cfg.fsdp", True),
        ("opt = DecoupledAdamW(model.parameters())", "optimizers=opt, fsdp_config=cfg.fsdp", False),
        ("opt = torch.optim.AdamW(model.parameters())", "optimizers=opt, fsdp_config=cfg.fsdp", False),
        ("opt = Own(model.parameters())", "optimizers=opt, fsdp_config=None", False),
        ("opt = Own(model.parameters())", "optimizers=opt", False),
        ("opt = Own(model.parameters())", "optimizers=other, fsdp_config=cfg.fsdp", False),
    ],
)
def test_an_optimizer_that_composers_trainer_is_given(made: str, given: str, is_said: bool) -> None:
    header = "import torch\nfrom composer import Trainer\nfrom composer.optim import DecoupledAdamW\n"
    header += "from optimi import StableAdamW\n\n\n"
    run = f"def main(cfg):\n    model = make_model()\n    {made}\n    Trainer(model=model, {given}).fit()\n"
    assert (("FM445", "commented") in codes(WHOLE + run, header)) is is_said


@pytest.mark.parametrize(("calls", "action"), [("", "kept"), ("        self.check()\n", "commented")])
def test_methods_that_a_step_does_not_call_do_not_count(calls: str, action: str) -> None:
    code = (
        "class Own(torch.optim.Optimizer):\n    def step(self, closure=None):\n"
        f"{calls}        for p in self.params:\n            p.add_(p.grad)\n"
        "    def check(self):\n        dist.is_nccl_available()\n\n"
        "model = FSDP(net)\noptimizer = Own(model.parameters())\n"
    )
    assert ("FM445", action) in codes(code)


@pytest.mark.parametrize(
    ("half", "action"),
    [
        ("p.add_(p.grad / p.grad.norm())", "commented"),
        ("dist.all_reduce(p.grad)", "commented"),
        ("p.add_(p.grad.to_local().norm())", "kept"),
        ("p.add_(p.grad)", "kept"),
        # No gradient is asked for: a print of the settings.
        ("print(sum(self.rates))", "kept"),
    ],
)
def test_the_halves_of_a_step_that_a_loop_calls_itself(half: str, action: str) -> None:
    """SAM climbs, and descends, between two closures, and its `step` is that of the optimizer inside."""
    code = (
        "class Own(torch.optim.Optimizer):\n    def step(self, closure=None):\n        self.base.step()\n"
        f"    def climb(self):\n        for p in self.params:\n            {half}\n\n"
        "model = FSDP(net)\noptimizer = Own(model.parameters())\n"
    )
    assert {each for code_of, each in codes(code) if code_of == "FM445"} == {action}


@pytest.mark.parametrize(
    ("made", "is_said"),
    [
        ("held = [n for n, p in net.named_parameters()]", False),
        ("held = {n for n, p in list(net.named_parameters()) if p.requires_grad}", False),
        ("held = []\nfor n, p in net.named_parameters():\n    held.append(n)", False),
        ("held = {n: n for n, p in net.named_parameters()}", False),
        ("held = [(n, p) for n, p in net.named_parameters()]", True),
        ("held = {n: p for n, p in net.named_parameters()}", True),
        ("held = {p: n for n, p in net.named_parameters()}", True),
        ("held = [p for n, p in net.named_parameters()]", True),
        ("held = [x for x in net.named_parameters()]", True),
    ],
)
def test_a_list_of_names_holds_no_parameters(made: str, *, is_said: bool) -> None:
    body = f"{made}\nmodel = FSDP(net)\ntrain(model, held)\n"
    assert ("FM446" in dict(codes(body))) is is_said


@pytest.mark.parametrize(
    ("line", "is_said"),
    [
        ("p.data = self.state[p]['old']", True),
        ("p.data.copy_(self.state[p]['old'])", False),
        ("self.data = p", False),
        ("p.grad.data = x", False),
    ],
)
def test_data_of_parameters_that_a_step_sets(line: str, *, is_said: bool) -> None:
    body = STEP.format(line) + "model = FSDP(net)\noptimizer = Own(model.parameters(), lr=0.1)\n"
    assert ("assigning .data to a DTensor does not reach it" in turned(body)) is is_said
    plain = body.replace("FSDP(net)", "net")
    assert "does not reach it" not in turned(plain)


@pytest.mark.parametrize(
    ("made", "fill", "given"),
    [
        ("[{'params': []}, {'params': []}]", "held[1]['params'].append(p)", "held"),
        ("[dict(params=[]), dict(params=[])]", "held[p.ndim]['params'].append(p)", "held"),
        ("{}", "held.setdefault(n, {'params': []})['params'].append(p)", "list(held.values())"),
        ("defaultdict(list)", "held[n[0]].append(p)", "[{'params': each} for each in held.values()]"),
        ("{'a': [], 'b': []}", "held['a'].append(p)", "[{'params': held['a']}, {'params': []}]"),
        ("{'a': [], 'b': []}", "held['a' if n else 'b'].append(p)", "[{'params': held['b']}]"),
        ("[]", "(held if n else other).append(p)", "held"),
    ],
)
@pytest.mark.parametrize("loop", ["net.named_parameters()", "enumerate(net.parameters())"])
def test_groups_that_a_loop_fills(made: str, fill: str, given: str, loop: str) -> None:
    body = (
        "from collections import defaultdict\nfrom own import BlockAdamW\ndef main(plain, ema, other):\n"
        f"    net = FSDP(plain)\n    held = {made}\n    for n, p in {loop}:\n        {fill}\n"
        f"    return BlockAdamW({given})\n"
    )
    assert ("FM445", "commented") in codes(body)
    assert "FM445" not in {code for code, _ in codes(body.replace("net.", "ema."))}


@pytest.mark.parametrize(
    ("fill", "given"),
    [
        ("held['a'].append(n)", "held['a']"),
        ("held['a'].append(p.shape)", "held['a']"),
        ("held['a'].append(p)", "held['b']"),
        ("other['a'].append(p)", "held['a']"),
    ],
)
def test_lists_beside_those_that_a_loop_fills(fill: str, given: str) -> None:
    body = (
        "from own import BlockAdamW\ndef main(net, other):\n    model = FSDP(net)\n"
        "    held = {'a': [], 'b': []}\n    for n, p in model.named_parameters():\n"
        f"        {fill}\n    return BlockAdamW({given})\n"
    )
    assert "FM445" not in {code for code, _ in codes(body)}


@pytest.mark.parametrize(
    ("given", "is_told"),
    [
        ("make_groups(model, 0.1)", True),
        ("cfg.build(model.parameters())", True),
        ("cfg.build(other)", False),
        ("other.parameters(), lr=find_lr(model)", False),
    ],
)
def test_groups_that_an_unknown_function_makes(given: str, *, is_told: bool) -> None:
    made = f"def main(net, other, cfg):\n    model = FSDP(net)\n    return BlockAdamW({given})\n"
    found = {code for code, _ in codes(f"from own import BlockAdamW, find_lr, make_groups\n{made}")}
    assert ("FM445" in found) is is_told


FILLS = """\
class Own(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))
        {init}

    def {method}(self):
        for p in self.param_groups[0]["params"]:
            self.state[p]["master"] = p.detach().clone()

    def step(self):
        for p in self.param_groups[0]["params"]:
            p.add_(p.grad)


class Run(Trainer):
    def create_optimizer(self, model=None):
        self.optimizer = Own(self.model.parameters(), 0.1)
        return self.optimizer


args = TrainingArguments("out", fsdp="full_shard")
Run(model=net, args=args).train()
"""


@pytest.mark.parametrize(
    ("init", "method", "is_said"),
    [
        ("for p in params:\n            self.state[p] = {}", "other", True),
        ("self._fill()", "_fill", True),
        ("pass", "add_param_group", True),
        ("pass", "_fill", False),  # a step may do it
        ("self.steps = 0", "step_once", False),
    ],
)
def test_a_state_that_is_made_with_the_optimizer(
    tmp_path: Path, init: str, method: str, *, is_said: bool
) -> None:
    """tests/frameworks holds that it is not there in the first step under Accelerate's FSDP2."""
    text = FILLS.format(init=init, method=method)
    imports = "import torch\nfrom transformers import Trainer, TrainingArguments\n"
    (tmp_path / "train.py").write_text(f"{imports}\n\n{text}")
    found = [use for use in scan_paths([tmp_path]).uses if use.code == "FM445"]
    assert [use.action for use in found] == ["commented" if is_said else "kept"]
    assert all(("made with it" in use.becomes) is is_said for use in found)


@pytest.mark.parametrize(
    ("package", "name", "is_said"),
    [
        ("accelerate.utils", "DummyOptim", False),
        ("own.utils", "DummyOptim", True),
        ("apex", "FusedAdam", True),
    ],
)
def test_accelerates_stand_in_is_deepspeeds(
    tmp_path: Path, package: str, name: str, *, is_said: bool
) -> None:
    (tmp_path / "train.py").write_text(
        f"{IMPORTS}from {package} import {name}\nmodel = FSDP(net)\n"
        "plugin = accelerator.state.deepspeed_plugin\n"
        f"optimizer_cls = torch.optim.AdamW if plugin is None or no(plugin) else {name}\n"
        "optimizer = optimizer_cls(model.parameters(), lr=0.1)\n"
    )
    found = {use.action for use in scan_paths([tmp_path]).uses if use.code == "FM445"}
    assert found == ({"commented"} if is_said else set())
