"""Known faults that sources show: each is seen where it is, and not where it is not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.doctor.source_faults import SOURCE_FAULTS
from fsdp_migrate.source.pins import ExactPin, PinFound
from tests.doctor.sights import NOW, assert_seen, is_seen, seeing


if TYPE_CHECKING:
    from fsdp_migrate.doctor import KnownFault, Sight


pytestmark = pytest.mark.any_torch


def of_source(text: str, **versions: str) -> Sight:
    return replace(seeing(sources={"train.py": text}), versions={**NOW, **versions})


LOAD = "dcp.load(state)\n"

WHOLE = "c = FullStateDictConfig(offload_to_cpu=True)"

CASES: dict[str, tuple[Sight, Sight]] = {
    "initial-lr-is-lost": (
        of_source("s = LambdaLR(o, f, last_epoch=step)"),
        of_source("s = LambdaLR(o, f, last_epoch=-1)\nif last_epoch == 3: pass"),
    ),
    "raw-optimizer-state": (
        of_source('state = {"o": optimizer.state_dict()}\n' + LOAD),
        of_source('state = {"o": optimizer.state_dict()}\ntorch.save(state)'),
    ),
    "fsdp1-resumes-without-moments": (
        of_source(f'state = {{"o": FSDP.optim_state_dict(m, o)}}\n{LOAD}'),
        of_source('state = {"o": FSDP.optim_state_dict(m, o)}\ndcp.save(state)'),
    ),
    "fsdp1-loses-gradients": (
        of_source("g = FSDP(g, mixed_precision=bf16)\nloss = disc(gen(noise(4)).detach())"),
        of_source("g = FSDP(g)\nloss = disc(gen(noise(4)).detach())\nloss.detach()"),
    ),
    "unfreezing-later": (
        of_source("m = fully_shard(m)\nfor p in m.parameters():\n    p.requires_grad_(True)"),
        of_source("m = fully_shard(m)\nfor p in m.parameters():\n    p.requires_grad_(False)"),
    ),
    "checkpoint-errors-slip-through": (
        of_source(f"try:\n    {LOAD}except Exception:\n    pass"),
        of_source(f"try:\n    {LOAD}except BaseException:\n    raise"),
    ),
    "metadata-is-a-pickle": (of_source(LOAD), of_source(f"# {LOAD}")),
    "deepcopy-of-shards": (of_source("e = deepcopy(self.model)"), of_source("e = deepcopy(config)")),
    "sync-stays-off": (
        of_source("m.set_requires_gradient_sync(False)"),
        of_source("m.set_requires_gradient_sync(False)\nm.set_requires_gradient_sync(is_last)"),
    ),
    "nameless-hybrid-mesh": (
        of_source('mesh = init_device_mesh("cuda", (2, 4))\nfully_shard(m, mesh=mesh)'),
        of_source('mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("r", "s"))\nfully_shard(m)'),
    ),
    "groups-by-dimensions": (
        of_source("m = FSDP(m)\ndecayed = [p for p in m.parameters() if p.ndim >= 2]"),
        of_source("m = FSDP(m)\nassert x.ndim == 4"),
    ),
    "old-optimizer-state-functions": (
        of_source("FSDP.full_optim_state_dict(m, o)"),
        of_source("FSDP.optim_state_dict(m, o)"),
    ),
    "norm-is-a-part": (
        of_source("norm = torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0).to_local()", torch="2.12"),
        of_source("norm = torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0).full_tensor()", torch="2.12"),
    ),
    "ending-a-group-of-gloo": (
        of_source("dist.init_process_group()\ndist.destroy_process_group()\n"),
        of_source('dist.init_process_group(backend="nccl")\ndist.destroy_process_group()\n'),
    ),
    "requirement-without-fsdp2": (
        seeing(pins=(PinFound("requirements.txt", 1, "torch", "torch==2.4.1", "2.6"),)),
        seeing(sources={"train.py": ""}, exact_pins=(ExactPin("requirements.txt", 1, "torch", "2.7.0"),)),
    ),
    "trainer-arguments-without-version": (
        of_source('a = TrainingArguments(fsdp="full_shard auto_wrap", fsdp_config={"min_num_params": 1})'),
        of_source('a = TrainingArguments(fsdp="full_shard auto_wrap", fsdp_config={"version": 1})'),
    ),
    "writes-after-evaluation": (
        of_source("m = FSDP(m)\nfor e, p in zip(ema.parameters(), m.parameters()):\n    e.data.mul_(0.9)"),
        of_source("m = FSDP(m)\nfor n, p in zip(names, m.parameters()):\n    print(n)"),
    ),
    "accelerate-prepares-apart": (
        of_source("model = self.accelerator.prepare(self.model)"),
        of_source(
            "model, optimizer = accelerator.prepare(model, optimizer)\na = accelerator.prepare(loader)"
        ),
    ),
    "full-state-ends-on-cpu": (
        replace(of_source(WHOLE), has_accelerator=False),
        replace(of_source(WHOLE.replace("True", "False")), has_accelerator=False),
    ),
    "optimizer-of-8-bits": (of_source("o = bnb.optim.AdamW8bit(p)"), of_source("o = bnb.optim.AdamW(p)")),
}


@pytest.mark.parametrize("fault", SOURCE_FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_seen_where_it_is_and_nowhere_else(fault: KnownFault) -> None:
    assert_seen(fault, *CASES[fault.name])


@pytest.mark.parametrize(
    ("line", "is_torchs"),
    [
        ("import torch.distributed.checkpoint as checkpoint", True),
        ("from torch.distributed import checkpoint", True),
        ("from torch.distributed import (\n    checkpoint,\n    fsdp,\n)", True),
        ("from . import checkpoint", False),
    ],
)
def test_a_module_of_the_projects_own_may_be_called_checkpoint(line: str, *, is_torchs: bool) -> None:
    (fault,) = (each for each in SOURCE_FAULTS if each.name == "metadata-is-a-pickle")
    assert is_seen(fault, of_source(f"{line}\ncheckpoint.load(path)\n")) is is_torchs


@pytest.mark.parametrize(
    "line", ['g["initial_lr"] = 1e-3', "g['initial_lr'] = g['lr']", 'g.setdefault("initial_lr", 1e-3)']
)
def test_who_sets_the_first_rate_itself_does_not_lose_it(line: str) -> None:
    (fault,) = (each for each in SOURCE_FAULTS if each.name == "initial-lr-is-lost")
    text = f"for g in o.param_groups:\n    {line}\ns = StepLR(o, 1, last_epoch=step)"
    assert not is_seen(fault, of_source(text))
    for other in (f"# {line}", 'print(g["initial_lr"])', 'assert g["initial_lr"] == 1e-3'):
        assert is_seen(fault, of_source(text.replace(line, f"pass\n    {other}")))


def test_every_case_is_one_of_a_fault() -> None:
    assert CASES.keys() == {fault.name for fault in SOURCE_FAULTS}


@pytest.mark.parametrize(
    ("begins", "ends", "is_there"),
    [
        ('dist.init_process_group("nccl" if on_gpu else "gloo")', "dist.destroy_process_group()", True),
        ('dist.init_process_group("nccl")', "dist.destroy_process_group()", False),
        # Where the file that ends a group begins one of its own, it is that.
        (
            'dist.init_process_group("gloo")',
            'dist.init_process_group("nccl")\ndist.destroy_process_group()',
            False,
        ),
        ('dist.init_process_group("nccl")', "# gloo\n", False),
        ("# not for gloo", "dist.destroy_process_group()", False),
        ('dist.init_process_group("gloo")', "# dist.destroy_process_group()", False),
    ],
)
def test_a_group_of_gloo_may_begin_in_another_file_than_it_ends(
    begins: str, ends: str, *, is_there: bool
) -> None:
    fault = next(each for each in SOURCE_FAULTS if each.name == "ending-a-group-of-gloo")
    seen = fault.sees(seeing(sources={"groups.py": begins, "train.py": ends}))
    assert ("train.py:" in seen) is is_there
    assert "groups.py" not in seen


def test_ones_own_checkpoints_need_nothing_for_their_metadata() -> None:
    fault = next(each for each in SOURCE_FAULTS if each.name == "metadata-is-a-pickle")
    assert fault.action.startswith("Nothing for your own.")
