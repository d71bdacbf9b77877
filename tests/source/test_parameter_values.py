"""Lists of parameters and gradients, where functions are given them and give them back."""

from __future__ import annotations

import pytest

from tests.source.samples import codes, uses


pytestmark = pytest.mark.any_torch

GIVEN = """\
def join(tensors):
    return torch.cat([t.view(-1) for t in tensors])

def spread(tensors):
    return max(t.max() for t in tensors)

def first(tensors):
    return torch.median(tensors[0])

def signs(tensors):
    return [t.sign() for t in tensors]

def whole(tensor):
    if hasattr(tensor, "full_tensor"):
        return tensor.full_tensor()
    return tensor

def grads_of(model):
    return [p.grad for p in model.parameters()]

def run(net, others):
    m = FSDP(net)
    grads = [p.grad for p in m.parameters()]
    {}
"""


@pytest.mark.parametrize(
    ("use", "is_said"),
    [
        ("x = join(grads)", True),
        ("x = spread(grads)", True),
        ("x = first(grads)", True),
        ("x = join([p.grad for p in m.parameters()])", True),
        ("x = torch.stack(signs(grads))", True),
        ("x = torch.stack(grads_of(m))", True),
        ("for g in grads_of(m):\n        x = g.norm()", True),
        ("x = join(others)", False),
        ("x = torch.stack(signs(others)), signs(grads)", False),
        ("x = whole(grads[0]).norm()", False),
        ("x = torch.stack(grads_of(others))", False),
        ("x = join([m.head.weight])", True),
        ("with FSDP.summon_full_params(m):\n        x = join([m.head.weight])", False),
    ],
)
def test_lists_are_followed_into_functions_and_back(use: str, is_said: bool) -> None:
    assert (("FM423", "commented") in codes(GIVEN.format(use))) is is_said


TASKS = """\
class Tasks:
    def __init__(self, opt):
        self.o = opt

    @property
    def params(self):
        return [p for g in self.o.param_groups for p in g["params"]]

    def take(self):
        out = []
        for p in self.params:
            out.append(torch.zeros_like(p) if p.grad is None else p.grad.detach().clone())
        return out

    @staticmethod
    def dot(a, b):
        return sum((x * y).sum() for x, y in zip(a, b))

    def scaled(self, a, by=1):
        return [t * by for t in a]

    def run(self, others):
        grads = []
        for _ in range(2):
            grads.append(self.take())
        {}

def main(net, others):
    m = FSDP(net)
    opt = torch.optim.SGD({}.parameters(), lr=0.1)
    tasks = Tasks(opt)
    tasks.run(others)
"""


@pytest.mark.parametrize(
    ("use", "stepped", "is_said"),
    [
        ("x = self.dot(grads[0], grads[1])", "m", True),
        ("x = [[self.dot(a, b) for b in grads] for a in grads]", "m", True),
        ("x = Tasks.dot(b=grads[1], a=grads[0])", "m", True),
        ("for a in grads:\n            x = torch.stack([t.norm() for t in a])", "m", True),
        ("x = [t.norm() for t in grads[0]]", "m", True),
        ("x = torch.stack([p.grad.norm() for p in self.params])", "m", True),
        ("x = len(grads[0]), grads[:1]", "m", False),
        ("x = self.dot(others[0], others[1])", "m", False),
        ("x = [t.norm() for t in others[0]]", "m", False),
        ("x = self.dot(grads[0], grads[1])", "head", False),
        ("x = [t.to_local().norm() for t in grads[0]]", "m", False),
    ],
)
def test_gradients_of_tasks_are_followed_through_a_class_that_holds_the_optimizer(
    use: str, stepped: str, is_said: bool
) -> None:
    """A property, lists of lists, methods with and without ``self``: torch refused such sums in step 1."""
    assert (("FM423", "commented") in codes(TASKS.format(use, stepped))) is is_said


_PARTS = "    for i, layer in enumerate(net):\n        net[i] = FSDP(layer)\n"
_LARGEST = (
    "max(p.detach().abs().max() for p in d.parameters())",
    "min(p.data.min() for p in d.parameters())",
    "sorted(p.detach().norm() for p in d.parameters())",
    "torch.stack([p.detach().abs().max() for p in d.parameters()]).max()",
    "{n: p.detach().abs().max() for n, p in d.named_parameters()}",
)


@pytest.mark.parametrize("largest", _LARGEST)
def test_a_function_that_wraps_the_items_and_the_whole_gives_a_sharded_model(largest: str) -> None:
    whole = f"def wrapped(net):\n{_PARTS}    return FSDP(net)\n"
    assert ("FM423", "commented") in codes(
        f"{whole}d = wrapped(make())\nwmax = {largest}\ndist.all_reduce(wmax)\n"
    )


def test_what_a_function_gives_beside_the_items_that_it_wraps_is_not_known() -> None:
    other = f"def wrapped(net):\n{_PARTS}    return loss_of(net)\n"
    assert ("FM423", "commented") not in codes(f"{other}d = wrapped(make())\nwmax = {_LARGEST[0]}\n")


@pytest.mark.parametrize(
    ("wrap", "name", "is_said"),
    [
        ("FSDP(net)", "mean", True),
        ("FSDP(net)", "norm", True),
        ("FSDP(net, use_orig_params=True)", "mean", False),
        ("FSDP(net)", "sum", False),
        ("FSDP(net)", "max", False),
    ],
)
def test_means_of_each_parameter_are_not_said_to_be_those_of_flat_ones(
    wrap: str, name: str, is_said: bool
) -> None:
    found = uses(f"m = {wrap}\ntotal = sum(p.abs().{name}().item() for p in m.parameters())\n")
    (said,) = (use.becomes for use in found if use.code == "FM423" and use.action == "kept")
    assert ("flat parameter" in said) is is_said


ENABLED = "with enable_wrap(wrapper_cls=FSDP{}):\n    m = wrap(net)\n"
KEPT = "other = FSDP(net2, use_orig_params=True)\n"


@pytest.mark.parametrize(
    ("wraps", "is_said"),
    [
        (f"{KEPT}m = FSDP(net)\n", True),
        (f"{KEPT}m = FSDP(net, use_orig_params=False).eval()\n", True),
        ("other = FSDP(net2, use_orig_params=False)\nm = FSDP(net)\n", True),
        ("other = FSDP(net2)\nm = FSDP(net, use_orig_params=True).eval()\n", False),
        (KEPT + ENABLED.format(""), True),
        (ENABLED.format(", use_orig_params=True"), False),
        (ENABLED.format("").replace("(net)", "(net, use_orig_params=True)"), False),
        # What is given by two stars, or chosen, may ask for it.
        ("m = FSDP(net, **kw)\n", True),
        (f"{KEPT}m = FSDP(net, **kw)\n", False),
        ("m = FSDP(net, use_orig_params=args.keep)\n", False),
    ],
)
def test_means_are_said_of_the_model_whose_parameters_they_are(wraps: str, *, is_said: bool) -> None:
    imports = "from torch.distributed.fsdp.wrap import enable_wrap, wrap\n"
    for over in ("m.parameters()", "m.blocks.parameters()"):
        found = uses(f"{imports}{wraps}total = sum(p.abs().mean().item() for p in {over})\n")
        (said,) = (use.becomes for use in found if use.code == "FM423" and use.action == "kept")
        assert ("flat parameter" in said) is is_said
