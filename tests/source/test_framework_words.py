"""What is said of a model that a framework shards names what that framework has for it."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import scan_source
from tests.source.samples import uses


pytestmark = pytest.mark.any_torch

HEADER = "from lightning.fabric import Fabric\nfrom lightning.fabric.strategies import FSDPStrategy\n"
SETS_UP = (
    "import torch\n"
    'fabric = Fabric(devices=2, strategy=FSDPStrategy(state_dict_type="full"))\n'
    "model = fabric.setup_module(net)\n"
    "optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters()))\n"
)
OF_A_MODEL = frozenset({"FM315", "FM318", "FM322", "FM324", "FM326", "FM333", "FM423", "FM448"})


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("torch.save(model.state_dict(), p)\n", "FM333", "fabric.save(path, {'model': model})"),
        (
            "torch.save(model.module.state_dict(), p)\n",
            "FM333",
            "get_model_state_dict(model.module, options=",
        ),
        ("model.load_state_dict(torch.load(p))\n", "FM333", "fabric.load_raw(path, model)"),
        ("torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", "FM326", "fabric.clip_gradients(model"),
        (
            "return fabric.clip_gradients(model, optimizer, max_norm=1, error_if_nonfinite=False)\n",
            "FM423",
            ".full_tensor()",
        ),
        (
            "n = fabric.clip_gradients(model, optimizer, max_norm=1, error_if_nonfinite=False)\nf'{n:.3f}'\n",
            "FM423",
            ".full_tensor()",
        ),
        (
            (
                "n = fabric.clip_gradients(model, optimizer, max_norm=1, error_if_nonfinite=False)\n"
                "log(n.item(), float(n))\n"
            ),
            "",
            "",
        ),
        (
            "n = fabric.clip_gradients(model, optimizer, max_norm=1, error_if_nonfinite=False).item()\n",
            "",
            "",
        ),
        ("total = [p.grad.norm() for p in model.parameters()]\n", "FM423", "as a DTensor"),
        ("decay = [p for p in model.parameters() if p.ndim >= 2]\n", "FM318", "flat"),
        ("fabric.clip_gradients(model, optimizer, max_norm=1, error_if_nonfinite=False)\n", "", ""),
        ("x = fabric.clip_gradients(model, optimizer, clip_val=1.0)\n", "", ""),
        ("fabric.save(p, {'model': model, 'optimizer': optimizer})\n", "", ""),
        ("head = model.module.head\n", "", ""),
        ("y = model.forward(x)\n", "", ""),
        ("model.apply(init_weights)\n", "FM322", "shards"),
        ("apply_activation_checkpointing(model)\n", "FM324", "above the one that gives it the model."),
        ("model.module.apply(enable_monitoring)\n", "", ""),
        ("torch.save(optimizer.state, p)\n", "", ""),
    ],
)
def test_what_fabric_sets_up_is_sharded(body: str, code: str, said: str) -> None:
    found = {use.code: use.becomes for use in scan_source(HEADER + SETS_UP + body) if use.code in OF_A_MODEL}
    assert list(found) == ([code] if code else [])
    assert said in found.get(code, "")
    others = SETS_UP.replace('FSDPStrategy(state_dict_type="full")', '"ddp"')
    assert not [use for use in scan_source(HEADER + others + body) if use.code in OF_A_MODEL]


@pytest.mark.parametrize(
    ("uses", "is_said"),
    [
        ("x = accelerator.gather(norm).mean().item()\n", True),
        ("x = self.accelerator.reduce(norm)\n", True),
        ("torch.distributed.all_reduce(norm)\n", True),
        ("x = accelerator.gather(accelerator.clip_grad_norm_(model.parameters(), 1.0))\n", True),
        ("x = norm.item()\n", False),
        ("x = accelerator.gather(loss)\n", False),
    ],
)
def test_the_norm_that_accelerate_gives_is_gathered(uses: str, *, is_said: bool) -> None:
    made = (
        "import torch\nfrom accelerate import Accelerator\naccelerator = Accelerator(fsdp_plugin=plugin)\n"
        "model, optimizer = accelerator.prepare(model, optimizer)\n"
        "norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)\n"
    )
    assert ("FM423" in {use.code for use in scan_source(made + uses)}) is is_said
    assert "FM423" not in {use.code for use in scan_source(made.replace("fsdp_plugin=plugin", "") + uses)}


PARTS = """
def wrapped(model):
    for name, part in model.named_children():
        model.add_module(name, FSDP(part))
    return model.cuda()
model = wrapped(net)
state = model.state_dict()
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (PARTS, "this may be a plain model as well: where it, or a part of it, is sharded, "),
        (f"from torch.nn.parallel import DistributedDataParallel as DDP\n{PARTS}", "DistributedDataParallel"),
        ("model = FSDP(net) if many else DDP(net)\nstate = model.state_dict()\n", "DistributedDataParallel"),
    ],
)
def test_a_comment_speaks_of_the_other_wrapper_where_one_is(body: str, said: str) -> None:
    assert [use.becomes for use in uses(body) if use.code == "FM333" and said in use.becomes]
