"""Parameters and gradients are DTensors now: what is done with them is said."""

from __future__ import annotations

import pytest

from fsdp_migrate.source.collective_words import COLLECTIVE, INTO
from tests.source.samples import IMPORTS, codes, turned, uses


pytestmark = pytest.mark.any_torch


HEADER = f"{IMPORTS}import torch.distributed as dist\n\n"
MODEL = "m = FSDP(net)\n"
OF_DICT = "    for n, p in {}.items():\n        dist.broadcast(p, src=0)\n"


@pytest.mark.parametrize(
    "body",
    [
        "for p in m.parameters():\n    dist.all_reduce(p.grad)\n",
        "for p in m.parameters():\n    dist.broadcast(p.data, 0)\n",
        "for p in m.parameters():\n    dist.all_reduce(tensor=p.contiguous() if flag else p)\n",
        "xs = [(p.contiguous() if flag else p) for p in m.parameters()]\ndist.all_reduce_coalesced(xs)\n",
        "for n, p in m.named_parameters():\n    x[n] = p.grad.norm(2)\n",
        "for i, p in enumerate(m.parameters()):\n    y = torch.isnan(p.grad).any()\n",
        "x = torch.stack([p.grad.norm() for p in m.parameters()])\n",
        "for p in m.parameters():\n    print(p.grad.abs_().max())\n",
        "for p in m.parameters():\n    x = torch.sqrt_(p.data).mul_(2).sum()\n",
        "for p in m.parameters():\n    w = torch.nn.init.normal_(p.data)\n    dist.broadcast(w, 0)\n",
        "x = torch.norm(torch.stack([p.grad.detach() for p in m.parameters()]))\n",
        "x = sum(p.detach().float().pow(2).sum() for p in m.parameters())\n",
        "x = any(torch.equal(p, q) for p, q in zip(m.parameters(), old))\n",
        "x = world_size * sum(p.numel() for p in m.parameters())\n",
        "x = sum([p.numel() for p in m.core.parameters()]) * devices\n",
        "x = cfg.devices * float(sum(p.numel() for p in m.parameters()))\n",
        "print(sum(p.numel() for p in m.parameters()) * accelerator.num_processes)\n",
        "n = sum(p.numel() for p in m.parameters())\nif 'fsdp' in s:\n    n = n * cfg.devices\n",
        "n = sum(p.numel() for p in m.parameters()) * torch.cuda.device_count()\n",
        "local_shard_numel = sum(p.numel() for p in m.parameters())\n",
        "print(f'parameters per FSDP shard: {sum(p.numel() for p in m.parameters())}')\n",
        "print(f'per FSDP shard = {sum(p.numel() for p in m.parameters()) / 1e9} B')\n",
        "x = sum(p.numel() for p in m.parameters())  # local_shard_numel\n",
        "x = torch.nn.utils.parameters_to_vector(m.parameters())\n",
        "g = torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)\ndist.all_reduce(g)\n",
        "g = torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0).float()\ndist.all_reduce(g)\n",
        "x = world_size * sum(p.numel() for p in net.parameters())\n",
        "n = sum(p.numel() for p in m.parameters())\nx = 6 * n\nmeter = Meter(x, peak, world_size)\n",
        "self.n = sum(p.numel() for p in m.parameters())\nmeter = Meter(self.n, world_size)\n",
        "n = sum(p.numel() for p in m.parameters())\nif r == 0:\n    print(n * world_size)\n",
        "n = sum(p.numel() for p in m.parameters())\nprint(6 * n / seconds * dist.get_world_size())\n",
        "n = sum(p.numel() for p in m.parameters()) / 1e6\nif world_size > 1:\n    n *= world_size\n",
        "x = sum(p.numel() * p.element_size() for p in m.parameters())\n",
        "n = sum(p.numel() for p in m.parameters())\nt = torch.tensor([n])\ndist.all_reduce(t)\n",
        "grads = [p.grad for p in m.parameters()]\nx = torch.nn.utils.get_total_norm(grads)\n",
        "grads = [p.grad for p in m.parameters()]\nx = torch.nn.utils.clip_grad.get_total_norm(grads)\n",
        f"for _, k in m.named_modules():\n    ps = dict(k._parameters.items())\n{OF_DICT.format('ps')}",
        f"ks = m.modules()\nfor k in ks:\n{OF_DICT.format('k._parameters')}",
        "for k in m.children():\n    for p in k.parameters(False):\n        dist.all_reduce(p.grad)\n",
        "for p in m.parameters():\n    h.update(p.data.cpu().numpy().tobytes())\n",
        "seen = {p.data_ptr() for p in m.parameters()}\n",
        "seen = {p.untyped_storage().data_ptr() for p in m.parameters()}\n",
        "for p in m.parameters():\n    p.data.storage().resize_(0)\n",
        "host = [p.detach().cpu().pin_memory() for p in m.parameters()]\n",
        "import numpy as np\nx = [np.asarray(p.detach().cpu()) for p in m.parameters()]\n",
        "def plain(t):\n    return t.cpu().tolist()\nx = [plain(p) for p in m.parameters()]\n",
        "def digest(model):\n    return [p.cpu().numpy() for p in model.parameters()]\ndigest(m)\n",
        "gs = []\nfor p in m.parameters():\n    gs.append(p.grad.detach())\nx = [g.norm(2) for g in gs]\n",
        "gs = []\nfor p in m.parameters():\n    gs += [p.grad]\nx = torch.cat(gs)\n",
        "y = torch.func.functional_call(m, dict(m.named_parameters()), x)\n",
        "m.share_memory()\n",
        "gs = []\ngs.extend(p.grad for p in m.parameters())\nfor g in gs:\n    x += g.norm()\n",
        "gs = [p.grad for p in m.parameters()]\nfor g in gs:\n    dist.all_reduce(g)\n",
        "gs = {n: p.grad for n, p in m.named_parameters()}\nfor n, g in gs.items():\n    x[n] = g.norm()\n",
        "for p in m.parameters():\n    g = p.grad.float()\n    x += g.norm()\n",
        (
            "def clip(ps):\n    gs = []\n    for p in ps:\n        gs.append(p.grad)\n"
            "    return sum(g.norm() ** 2 for g in gs)\nclip(m.parameters())\n"
        ),
    ],
)
def test_what_was_of_one_rank_is_said(body: str) -> None:
    said = {code for code, action in codes(MODEL + body, HEADER) if action == "commented"}
    assert said & {"FM334", "FM336", "FM423"}


@pytest.mark.parametrize(
    ("use", "is_said"),
    [
        ("x += (p == 0).sum()", True),
        ("x += torch.count_nonzero(p.grad)", True),
        ("x += p.grad.abs().flatten().topk(3).values[0]", True),
        ("x = torch.quantile(p.grad.float().flatten(), 0.5)", True),
        ("x = torch.histc(p.detach().float(), bins=4)", True),
        ("x = F.cosine_similarity(old[n], p.flatten(), dim=0)", True),
        ("x = torch.sort(p.grad.view(-1))[0]", True),
        ("x = torch.where(p > 0, p, -p).mean()", True),
        ("x = p[p > 0].sum()", True),
        ("x = p.grad.reshape(-1)[0].item()", True),
        ("x = torch.linalg.svdvals(p.detach())", True),
        ("x = (-p.grad).max()", True),
        ("g = p.grad.sign()\n    x = g.sum()", True),
        ("p.grad[p.grad > 1] = 0", True),
        ("p.data[0] += 1", True),
        ("p.index_fill_(0, rows, 0.0)", True),
        ("dist.send(p.data, 1)", True),
        ("dist.all_reduce_coalesced([p.grad])", True),
        ("dist.all_gather_into_tensor(out, p.detach().flatten())", True),
        ("ops = [dist.P2POp(dist.isend, p.data, 1)]", True),
        ("x = p.untyped_storage().nbytes()", False),
        ("x = batch.storage().data_ptr() + batch.pin_memory().numel()", False),
        ("x = torch.abs(p)", False),
        ("x = p.grad is None or p.grad.numel() == 0", False),
        ("p.grad = p.grad.clamp(-1, 1)", False),
        ("p.grad.masked_fill_(p.grad > 1, 1)", False),
        ("x[n] = p.flatten()", False),
        ("x = (p.shape[0] == 3) + sum(p.shape)", False),
        ("x = n == 'bias' and n.count('x')", False),
        ("x = torch.sort(other)[0]", False),
    ],
)
def test_statistics_and_messages_of_what_is_made_of_a_parameter(use: str, is_said: bool) -> None:
    header = f"import torch.nn.functional as F\n{HEADER}"
    body = f"{MODEL}for n, p in m.named_parameters():\n    {use}\n"
    assert codes(body, header).count(("FM423", "commented")) == is_said


@pytest.mark.parametrize(
    ("use", "is_said"),
    [
        ("x = m.get_parameter('head.weight').norm()", True),
        ("x = next(m.parameters()).norm()", True),
        ("x = list(m.parameters())[0].norm()", True),
        ("w = dict(m.named_parameters())['head.weight']\nx = w.mean()", True),
        ("for p in m.parameters():\n    p.register_post_accumulate_grad_hook(log)", True),
        ("m.head.weight.copy_(torch.nn.functional.normalize(m.head.weight, dim=-1))", True),
        ("from torch.distributed.optim import _apply_optimizer_in_backward as f\nf(o, m.parameters())", True),
        ("g = torch.autograd.grad(loss, list(m.parameters()))", True),
        ("g = torch.autograd.grad(loss, m.decoder.out.weight, retain_graph=True)[0]", True),
        ("f(x).sum().backward(inputs=list(m.parameters()))", True),
        ("g = torch.autograd.grad(loss, x, create_graph=True)", False),
        ("loss.backward(retain_graph=True)", False),
        ("m.logit_scale.data = torch.clamp(m.logit_scale.data, 0, 4)", True),
        ("m.encoder.cls_token.data = x", True),
        ("m.running_mean.data = x", False),
        ("m.head.weight = m.emb.weight", True),
        ("m.head.weight = torch.nn.Parameter(x)", True),
        ("other.head.weight = x", False),
        ("m.head.scale = x", False),
        # Of what holds a sharded model the rest is its own.
        ("held = Held()\nheld.net = FSDP(held.net)\nheld.bias = args.bias", False),
        ("held = Held()\nheld.net = FSDP(held.net)\nheld.logit_scale.data = x", False),
        ("held = Held()\nheld.net = FSDP(held.net)\nheld.net.bias = x", True),
        ("held = Held()\nheld.net = FSDP(held.net)\nheld.net.head.bias = x", True),
        ("m.logit_scale.data.clamp_(0, 4)", False),
        ("other.logit_scale.data = x", False),
        ("for k in m.modules():\n    if hasattr(k, 'weight'):\n        x += k.weight.norm()", True),
        ("for k in other.modules():\n    if hasattr(k, 'weight'):\n        x += k.weight.norm()", False),
        ("torch.save(m.head.weight, 'x')", True),
        ("x = next(m.parameters()).device", False),
        ("x = other.get_parameter('head.weight').norm()", False),
        ("x = next(iter(loader)).mean()", False),
        ("for p in m.parameters():\n    p.register_hook(lambda g: g * 0.5)", True),
        ("n = FSDP(x, use_orig_params=True)\nfor p in m.parameters():\n    p.register_hook(f)", False),
        ("for k in m.modules():\n    k.register_forward_hook(f)", False),
        ("for k in m.modules():\n    k.register_forward_hook(lambda k, i, o: k.weight.norm())", False),
    ],
)
def test_one_parameter_that_is_taken_of_all(use: str, is_said: bool) -> None:
    assert codes(f"{MODEL}{use}\n", HEADER).count(("FM423", "commented")) == is_said


@pytest.mark.parametrize(
    ("collective", "said"),
    [("all_reduce(p.grad)", INTO), ("broadcast(p.data, 0)", INTO), ("all_gather(out, p.data)", COLLECTIVE)],
)
def test_a_collective_writes_into_a_part(collective: str, said: str) -> None:
    """As was advised, `dist.all_reduce(p.grad.full_tensor())` reduced a copy, without an error."""
    found = uses(f"{MODEL}for p in m.parameters():\n    dist.{collective}\n", HEADER)
    assert [use.becomes for use in found if use.rule == "dtensor"] == [said]


def test_copies_of_many_at_once() -> None:
    body = f"{MODEL}torch._foreach_copy_({{}}, [p.detach() for p in m.parameters()])\n"
    assert ("FM423", "commented") in codes(body.format("ema"), HEADER)
    assert "FM423" not in dict(codes(body.replace("m.p", "other.p"), HEADER))
    assert "FM423" not in dict(codes(body.format("ema").replace("_copy_", "_zero_"), HEADER))


@pytest.mark.parametrize(
    "body",
    [
        "for p in net2.parameters():\n    dist.all_reduce(p.grad)\n",
        "for n, p in m.named_parameters():\n    n.count('x'), p.requires_grad\n",
        "x = sum(p.numel() for p in m.parameters())\n",
        "x = 2 * sum(p.numel() for p in m.parameters()) * seq\n",
        "x = sum(p.numel() for p in m.parameters()) / devices\n",
        "self.n = sum(p.numel() for p in m.parameters())\nmeter = Meter(self.peak, world_size)\n",
        "n = sum(p.numel() for p in m.parameters())\nprint(n, world_size)\n",
        "# if world_size > 1:\nx = sum(p.numel() for p in m.parameters())\n",
        "# if world_size > 1:\n#     print(1)\nx = sum(p.numel() for p in m.parameters())\n",
        "x = sum(p.numel() for p in m.parameters())\ny = batch * world_size\nz = x * 4\nx += world_size\n",
        "for p in m.parameters():\n    x = p.full_tensor().norm()\n",
        "with FSDP.summon_full_params(m):\n    for p in m.parameters():\n        x = p.norm()\n",
        "loss = f(m)\ndist.all_reduce(loss)\n",
        "m2 = net3\nx = world_size * sum(p.numel() for p in net3.parameters())\nnet3 = FSDP(net3)\n",
        "g = m.clip_grad_norm_(1.0)\ndist.all_reduce(g)\n",
        f"for k in other.modules():\n{OF_DICT.format('k._parameters')}",
        "for p in m.parameters():\n    x = p.to_local().cpu().numpy()\n",
        "def plain(t):\n    return t.cpu().numpy()\nx = plain(loss)\n",
        "gs = []\nfor p in m.parameters():\n    gs.append(p.grad.to_local())\nx = torch.cat(gs)\n",
        "gs = []\nfor p in m.parameters():\n    gs.append(p.numel())\nfor g in gs:\n    x = g.max()\n",
        "for n, g in {n: p for n, p in m.named_parameters()}.items():\n    y = n.max()\n",
        "def f(gs):\n    for p in m.parameters():\n        gs.append(1)\n    return torch.cat(gs)\n",
    ],
)
def test_what_is_as_it_was_is_not(body: str) -> None:
    assert "FM423" not in {use.code for use in uses(MODEL + body, HEADER)}


@pytest.mark.parametrize(
    ("reduced", "is_said"),
    [
        ("dist.all_reduce(g)\n", True),
        ("dist.all_reduce(g, dist.ReduceOp.SUM)\n", True),
        ("dist.all_reduce(g, op=dist.ReduceOp.AVG)\n", False),
        ("dist.all_reduce(g, dist.ReduceOp.MAX)\n", False),
        ("dist.all_reduce(g)\ng /= dist.get_world_size()\n", False),
        ("dist.all_reduce(g)\ng = g / args.world_size\n", False),
        ("dist.all_reduce(g)\ng = g / count\n", True),
    ],
)
def test_an_average_of_equal_norms_is_the_norm(reduced: str, is_said: bool) -> None:
    body = f"{MODEL}g = torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)\n{reduced}"
    assert ("FM423" in {use.code for use in uses(body, HEADER)}) is is_said


@pytest.mark.parametrize(
    ("group", "is_fsdps"),
    [
        ("group=self.tp_group", False),
        ("group=mpu.get_tensor_model_parallel_group()", False),
        ("dist.ReduceOp.SUM, fs_init.get_model_parallel_group()", False),
        ("group=mesh['pp'].get_group()", False),
        ("group=self.dp_group", True),
        ("group=mpu.get_data_parallel_group()", True),
        ("group=comp_group", True),
        ("group=group", True),
        ("", True),
    ],
)
def test_a_group_of_another_parallelism_is_reduced_over_as_before(group: str, *, is_fsdps: bool) -> None:
    norm = "g = torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)\n"
    lines = (
        f"{norm}dist.all_reduce(g, {group})\n",
        f"for p in m.parameters():\n    dist.all_reduce(p.grad, {group})\n",
    )
    for line in lines:
        found = [use.becomes for use in uses(MODEL + line, HEADER) if use.text.startswith("dist.all_reduce")]
        assert [("which is not FSDP's, stays" in each) for each in found] == [not is_fsdps]


LARGEST = "x = max((p.grad.abs().max().item() for p in m.parameters() if p.grad is not None), default=0.0)\n"


@pytest.mark.parametrize(
    ("made", "reduced", "is_said"),
    [
        (LARGEST, "dist.all_reduce(t, op=dist.ReduceOp.MAX)\n", False),
        (LARGEST, "dist.all_reduce(t)\n", False),
        (LARGEST.replace(".item()", ".log()"), "dist.all_reduce(t)\n", True),
        (LARGEST.replace(".item()", ".log()"), "dist.all_reduce(t, dist.ReduceOp.MIN)\n", False),
        (
            LARGEST.replace(".max().item()", ".max().log()"),
            "dist.all_reduce(t, op=ReduceOp.PRODUCT)\n",
            False,
        ),
    ],
)
def test_the_largest_of_each_rank_is_not_summed(made: str, reduced: str, *, is_said: bool) -> None:
    lines = f"{made}t = torch.tensor([x])\n{reduced}".replace("\n", "\n    ")
    body = f"def f(m):\n    {lines}return t\nf(FSDP(net))\n"
    assert ("do not sum it over the ranks" in turned(body, HEADER)) is is_said


@pytest.mark.parametrize(
    ("use", "is_said"),
    [
        ("if p.grad is not None and p.grad.numel() > 0:\n        x = p.grad.abs().max().item()", True),
        ("if p.numel() == 0:\n        continue\n    x = torch.amin(p).item()", True),
        ("x = [q.max().item() for q in m.parameters() if q.numel()]", True),
        ("if p.numel() > 0:\n        x = p.sum().item()", False),
        ("if p.numel() > 99:\n        x = p.max().item()", False),
        ("if p.numel() > 0:\n        x = batch.max().item()", False),
        ("x = p.max().item()", False),
    ],
)
def test_a_part_may_be_empty_where_the_whole_is_not(use: str, *, is_said: bool) -> None:
    """Tried with torch 2.13 on two ranks, and a parameter with one row."""
    after = turned(f"{MODEL}for p in m.parameters():\n    {use}\n", HEADER)
    assert (
        "FM423 numel() counts the whole parameter now, where this rank's part may be empty" in after
    ) is is_said


def test_it_is_said_that_all_ranks_gather_what_one_may_ask_for() -> None:
    body = "def norms(model: FSDP):\n    return [p.grad.norm() for p in model.parameters()]\n"
    said = next(use.becomes for use in uses(body, HEADER) if use.code == "FM423")
    assert ".full_tensor() of it, on every rank" in said
    assert ".to_local() of what it is made of is this rank's rows" in said
    whole = f"{body}model = FSDP(net, sharding_strategy=ShardingStrategy.NO_SHARD)\n"
    said = next(use.becomes for use in uses(whole, HEADER) if use.code == "FM423")
    assert "or under NO_SHARD of the whole" in said


@pytest.mark.parametrize(
    ("made", "is_said"),
    [
        ("FSDP(net, ignored_modules=routers)", True),
        ("FSDP(net, ignored_states=list(routers.parameters()))", True),
        ("FSDP(net)", False),
    ],
)
def test_an_ignored_parameter_is_plain(made: str, is_said: bool) -> None:
    body = f"m = {made}\nfor n, p in m.named_parameters():\n    acc += p.grad.float().pow(2).sum()\n"
    assert ("that FSDP ignores, which stays plain" in turned(body, HEADER)) is is_said


def test_a_step_is_plain() -> None:
    body = "m = FSDP(net)\nopt = torch.optim.AdamW(m.parameters())\n"
    body += "n = sum(v.numel() for s in opt.state.values() for v in s.values())\n"
    assert "`step` is plain" in turned(body, HEADER)


COUNTS = "def size(m):\n    return sum(p.numel() for p in m.parameters())\n"
NORM = "for p in m.parameters():\n    "
SUMS = (
    "def f(m):\n    t = 0.0\n    for p in m.parameters():\n        {}\n"
    "    t = torch.tensor(t)\n    dist.all_reduce(t)\n    return t\nf(m)\n"
)


@pytest.mark.parametrize(
    ("use", "is_as_before"),
    [
        (f"{NORM}x += p.grad.norm().item() ** 2\n", True),
        (f"{NORM}x += torch.norm(p.grad.detach()).cpu().item()\n", True),
        (f"{NORM}x += float((p == 0).sum())\n", True),
        (f"{NORM}n = p.grad.data.norm(2)\n    x += n.item() ** 2\n", True),
        (f"{NORM}if torch.isnan(p.grad).any():\n        pass\n", True),
        (f"{NORM}if not torch.isfinite(p.grad).all():\n        pass\n", True),
        (f"{NORM}if p.grad is not None and torch.isnan(p.grad).any():\n        pass\n", True),
        (f"{NORM}if torch.isnan(p.grad).any() or torch.isinf(p.grad).any():\n        pass\n", True),
        ("x = any(torch.isnan(p.grad).any() for p in m.parameters())\n", True),
        ("x = [n for n, p in m.named_parameters() if torch.isnan(p.grad).any()]\n", True),
        (SUMS.format("t += p.grad.norm().item() ** 2"), True),
        (SUMS.format("n = p.grad.norm()\n        t += n.item() ** 2"), True),
        (f"{NORM}x += (p.grad.norm() ** 2).item()\n", False),
        (f"{NORM}x += p.grad.norm() ** 2\n", False),
        (f"{NORM}n = p.grad.data.norm(2)\n    x += n.item()\n    y += n\n", False),
        (f"{NORM}x += (p == 0).sum().item()\n    n += p.numel()\ny = x / n\n", False),
        (f"{COUNTS}{NORM}x += (p == 0).sum().item()\ny = x / size(m)\n", False),
        (f"{NORM}x += (p == 0).sum().item()\ny = x / num_parameters(m)\n", False),
        (f"{NORM}x += (p == 0).sum().item()\ny = x / len_of(m)\n", True),
        (f"{NORM}x += (p == 0).sum().item()\n    n += p.nelement()\nx /= n\n", False),
        (f"{NORM}x += (p == 0).sum().item()\n    n += q.numel()\ny = x / n\n", True),
        (f"{NORM}x += (p == 0).sum().item()\n    n += p.numel()\n", True),
        (f"{NORM}x += p.grad.std().item()\n", False),
        (f"{NORM}x += p.grad.norm().log().item()\n", False),
        (f"{NORM}x = p.grad.norm() if ready else 0\n    y = x * 2\n", False),
        (f"{NORM}x = y + (-p.grad.norm())\n", False),
        (f"{NORM}x = torch.isnan(p.grad).any() or x\n    y = x\n", False),
        (f"{NORM}x = torch.equal(p, q)\n    if torch.equal(p, q):\n        pass\n", False),
        (f"{NORM}if p.grad.norm() > 1:\n        pass\n", False),
        ("x = torch.stack([p.grad.norm() for p in m.parameters()]).norm().item()\n", False),
        (SUMS.format("t += p.grad.norm() ** 2"), False),
    ],
)
def test_a_number_that_is_taken_at_once_is_of_this_ranks_part_as_before(use: str, is_as_before: bool) -> None:
    """Measured with torch 2.13 on two ranks: what is computed with it first is of the whole."""
    found = {action for code, action in codes(f"{MODEL}{use}", HEADER) if code == "FM423"}
    assert found == ({"kept"} if is_as_before else {"commented"})


@pytest.mark.parametrize(("asked", "action"), [("mean", "commented"), ("norm", "kept")])
def test_one_rank_alone_waits_for_a_mean_of_rows_that_are_not_shared_evenly(asked: str, action: str) -> None:
    """Measured with torch 2.13 on two ranks: of 3 rows it is an all-gather, of 4 each rank's own."""
    body = f"{MODEL}{NORM}if rank == 0:\n        print(p.grad.{asked}().item())\n"
    assert ("FM423", action) in codes(body, HEADER)
    assert ("FM423", "kept") in codes(body.replace("rank == 0", "debug"), HEADER)


@pytest.mark.parametrize(
    ("use", "said"),
    [
        ("x = m.head.weight.grad\n", "FM336"),
        ("x = m.get_input_embeddings().weight.grad * mask\n", "FM336"),
        ("x = m.layers[0].bias.data[3]\n", "FM423"),
        ("emb = m.get_input_embeddings()\ng = emb.weight.grad\n", "FM336"),
        ("emb = m.encoder.embed\ng = emb.weight.grad * mask\n", "FM336"),
        ("for layer in m.layers:\n    g = layer.attn.weight.grad\n", "FM336"),
        ("emb = other.get_input_embeddings()\ng = emb.weight.grad\n", ""),
        ("emb = nn.Embedding(2, 2)\ng = emb.weight.grad\n", ""),
        ("with FSDP.summon_full_params(m):\n    e = m.embed\n    x = e.weight.data[0]\n", ""),
        ("if m.head.weight.grad is None:\n    pass\n", ""),
        ("m.head.weight.grad = None\n", ""),
        ("x = other.head.weight.grad\n", ""),
        ("with FSDP.summon_full_params(m):\n    x = m.head.weight.data[0]\n", ""),
    ],
)
def test_the_gradient_of_one_weight(use: str, said: str) -> None:
    found = dict(codes(f"m = FSDP(net)\n{use}"))
    assert found.keys() & {"FM336", "FM423"} == ({said} if said else set())


@pytest.mark.parametrize(
    ("use", "is_said"),
    [
        ("x = m.head.bias.detach().cpu().numpy()\n", True),
        ("x = m.layers[0].bias.detach().cpu().numpy()\n", True),
        ("x = m.blocks[1].attn.q.weight.norm()\n", True),
        ("w = m.layers[0].weight\nx = w.tolist()\n", True),
        ("x = m.get_input_embeddings().weight.detach().cpu().numpy()\n", True),
        ("x = other.get_input_embeddings().weight.numpy()\n", False),
        ("for layer in m.layers:\n    x = layer.weight.norm()\n", True),
        ("x = [layer.weight.norm() for _, layer in enumerate(m.layers[1:])]\n", True),
        ("for layer in m.layers:\n    for p in layer.parameters():\n        x = p.grad.norm()\n", True),
        ("for p in m.layers[0].parameters():\n    x = p.grad.norm()\n", True),
        ("dist.broadcast(m.layers[0].weight, 0)\n", True),
        ("x = m.layers[0].weight.grad.norm()\n", True),
        ("x = m.layers[0].weight.shape\n", False),
        ("x = m.layers[0].weight.full_tensor().cpu().numpy()\n", False),
        ("x = m.layers[0](y).weight.norm()\n", False),
        ("for layer in other.layers:\n    x = layer.weight.norm()\n", False),
        ("with FSDP.summon_full_params(m):\n    x = m.layers[0].weight.norm()\n", False),
        ("x = net2.layers[0].weight.norm()\nnet2 = FSDP(net2)\n", False),
        ("state.model = m\nx = state.critics[0].weight.norm()\n", False),
        ("state.model = m\nx = [p.norm() for p in state.critics[0].parameters()]\n", False),
    ],
)
def test_weights_of_parts_and_of_items_of_lists(use: str, is_said: bool) -> None:
    found = codes(f"m = FSDP(net)\n{use}", HEADER)
    assert found.count(("FM423", "commented")) == is_said


def test_what_a_module_takes_of_itself_may_be_gathered_there() -> None:
    body = (
        "class Net(nn.Module):\n    def forward(self, x):\n        return x * self.layers[0].weight.norm()\n"
        "m = FSDP(Net())\nm(x)\n"
    )
    assert "FM423" not in {use.code for use in uses(body, HEADER)}


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("for p in m.parameters():\n    p.data = p.data.half()\n", True),
        ("for n, p in m.named_parameters():\n    p.data = average[n]\n", True),
        (
            "ps = [p for p in m.parameters() if p.requires_grad]\nfor p in ps:\n    p.data = p.data.half()\n",
            True,
        ),
        ("def up(ps):\n    for p in ps:\n        p.data = p.data.half()\nup(m.parameters())\n", True),
        ("def norms(ps):\n    return [p.grad.norm() for p in ps]\nnorms(list(m.parameters()))\n", True),
        ("def norms(ps):\n    return [p.grad.norm() for p in ps]\nnorms(other.parameters())\n", False),
        (
            (
                "ps = []\nfor n, p in m.named_parameters():\n    ps.append((n, p))\n"
                "for n, p in ps:\n    p.data = p.data + z\n"
            ),
            True,
        ),
        (
            (
                "ps = []\nfor n, p in m.named_parameters():\n    ps.append((n, p, loss))\n"
                "for n, p, loss in ps:\n    x += loss.item()\n"
            ),
            False,
        ),
        ("ps = tuple(m.parameters())\nx = ps[0].view(shard_size, dim)\n", True),
        ("ps = list(m.parameters())\nx = ps[0].norm()\n", True),
        ("x = [p.detach().reshape(-1, n // world_size) for p in m.parameters()]\n", True),
        ("ps = tuple(m.parameters())\nx = ps[0].view(-1)\n", False),
        ("ps = tuple(m.parameters())\nx = ps[:2].view(shard_size, dim)\n", False),
        ("ps = tuple(other.parameters())\nx = ps[0].view(shard_size, dim)\n", False),
        ("for p in m.parameters():\n    p.data.copy_(x)\n", False),
        ("for p in other.parameters():\n    p.data = p.data.half()\n", False),
    ],
)
def test_what_is_put_into_parameters_and_lists_of_them(body: str, is_said: bool) -> None:
    assert (("FM423", "commented") in codes(MODEL + body, HEADER)) is is_said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("p.data.to('cpu', non_blocking=True)", "Call .to('cpu') of the model"),
        ("p.data.to(device_id)", "Call .to(device_id) of the model"),
        ("p.data.to(self.offload_device)", "Call .to(self.offload_device) of the model"),
        ("p.data.to(torch.cuda.current_device())", "Call .to(torch.cuda.current_device()) of the model"),
        ("p.detach().to(dtype=d, device=x)", "Call .to(x) of the model"),
        ("p.data.cpu().pin_memory()", "Call .cpu() of the model"),
        ("p.data.cuda(rank)", "Call .cuda(rank) of the model"),
        ("p.data.to(other.dtype)", "Copy into it"),
        ("p.data.float().to(p.device)", "Copy into it"),
        ("average[n].to(p.device)", "Copy into it"),
        ("p.data.to(torch.bfloat16)", "Copy into it"),
        ("average[n].half()", "Copy into it"),
    ],
)
def test_a_parameter_that_is_moved_is_moved_with_its_model(value: str, said: str) -> None:
    moved = f"{MODEL}for n, p in m.named_parameters():\n    "
    for body in (f"{moved}p.data = {value}\n", f"{moved}new = {value}\n    p.data = new\n"):
        found = [use for use in uses(f"{HEADER}{body}") if use.code == "FM423"]
        assert [said in use.becomes for use in found] == [True]


@pytest.mark.parametrize(
    ("value", "is_said"),
    [
        ("p.data.to(param_dtype)", True),
        ("p.data.float()", True),
        ("p.master", True),
        ("masters[p]", True),
        ("p.data + noise", False),
        ("p.data.clone()", False),
        ("torch.zeros_like(p)", False),
    ],
)
def test_what_takes_the_place_of_master_weights_is_said(value: str, *, is_said: bool) -> None:
    """To give mixed_precision is not all: what is trained has to be float32 before it is sharded."""
    found = uses(f"{HEADER}{MODEL}for n, p in m.named_parameters():\n    p.data = {value}\n")
    (said,) = (use.becomes for use in found if use.code == "FM423")
    assert "Copy into it, p.data.copy_(x)." in said
    assert ("make what is trained float32 before it is sharded, on each rank" in said) is is_said
    assert ("cast_root_forward_inputs=False" in said) is is_said


def test_a_state_of_an_optimizer_is_moved_by_no_model() -> None:
    """It was said to call `.to("cpu")` of the model, which moves the weights, and leaves the state there."""
    moved = "for s in o.state.values():\n    for v in s.values():\n        v.data = v.data.to('cpu')\n"
    found = uses(f"{HEADER}{MODEL}o = torch.optim.AdamW(m.parameters())\n{moved}")
    said = [use.becomes for use in found if use.code == "FM423"]
    assert len(said) == 1
    assert "state[key] = value.to(...)" in said[0]


def test_parameters_of_a_part_of_a_model() -> None:
    body = "for name, p in model.module.decoders.named_parameters():\n    loss += torch.sum(p ** 2)\n"
    assert ("FM423", "commented") in codes(f"model = FSDP(net)\n{body.replace('p ** 2', 'p')}")
    assert ("FM423", "commented") in codes(f"model = FSDP(net)\n{body}")


PARTS = """\
class Meta(torch.nn.Module):
    def prepare(self):
        for k in self.student:
            self.student[k] = FSDP(self.student[k])
        {last}
        for p in self.{asked}.parameters():
            torch.distributed.broadcast(p.data, src=0)
        self.{asked}.save_pretrained("x")
        print(self.{asked}.head.weight.grad)
"""


def test_a_part_beside_those_that_are_wrapped_is_plain() -> None:
    said = {
        asked: {
            code for code, action in codes(PARTS.format(asked=asked, last="pass")) if action == "commented"
        }
        for asked in ("oracle", "student")
    }
    assert said == {"oracle": {"FM303"}, "student": {"FM303", "FM333", "FM336", "FM423"}}
    whole = PARTS.replace("self", "model").format(asked="oracle", last="model = FSDP(model)")
    assert "FM336" in dict(codes(whole))


EACH = """\
class W:
    def shard(self, nets):
        for {over}:
            {above}for p in module.parameters():
                p.data = p.data.cuda()
            {below}{end}
"""
OVER = [
    ("name, module in self.net._modules.items()", "self.net._modules[name] = module"),
    ("name, module in self.net.named_children()", "setattr(self.net, name, module)"),
    ("i, module in enumerate(self.net.layers)", "self.net.layers[i] = module"),
    ("module in nets", "self.nets.append(module)"),
]
SHARDS = "module = FSDP(module)\n            "


@pytest.mark.parametrize(("over", "end"), OVER)
def test_what_a_loop_shards_is_plain_above_that(over: str, end: str) -> None:
    above = EACH.format(over=over, above="", below=SHARDS, end=end)
    below = EACH.format(over=over, above=SHARDS, below="", end=end)
    assert "FM423" not in dict(codes(above, HEADER))
    assert ("FM423", "commented") in codes(below, HEADER)


def test_another_branch_that_shards_is_of_another_object() -> None:
    first = "if skip:\n                module = FSDP(module)\n                continue\n            "
    body = EACH.format(over=OVER[0][0], above=first, below=SHARDS, end=OVER[0][1])
    assert "FM423" not in dict(codes(body, HEADER))


def test_what_a_loop_shards_again_and_again_is_said() -> None:
    body = EACH.format(over="_ in range(2)", above="", below=SHARDS, end="pass")
    assert ("FM423", "commented") in codes(body, HEADER)


@pytest.mark.parametrize(
    "given",
    ["p.full_tensor() if isinstance(p, DTensor) else p", "p._local_tensor if x else p", "a if x else b"],
)
def test_one_of_two_of_which_a_dtensor_is_taken_apart(given: str) -> None:
    body = f"{MODEL}for p in m.parameters():\n    dist.all_reduce({given})\n"
    assert ("FM423", "commented") not in codes(body, HEADER)
    assert ("FM423", "commented") in codes(body.replace(given, "p if x else b"), HEADER)


PENALTY = "sum(p.norm() ** 2 for p in m.parameters())"


@pytest.mark.parametrize(
    ("body", "is_between"),
    [
        (f"out = m(x)\nloss = out.mean() + {PENALTY}\nloss.backward()\n", True),
        (f"for x in xs:\n    loss = m(x).mean()\n    loss += {PENALTY}\n    loss.backward()\n", True),
        (f"def f():\n    out = m(x)\n    z = {PENALTY}\n    (out.mean() + z).backward()\n", True),
        (f"z = {PENALTY}\n(m(x).mean() + z).backward()\n", False),
        (f"m(x).mean().backward()\nz = {PENALTY}\n", False),
        (f"for x in xs:\n    m(x).mean().backward()\n    z = {PENALTY}\n", False),
        (f"m.eval()\nm(x)\nz = {PENALTY}\n", False),
        ("out = m(x)\ng = sum(p.grad.norm() ** 2 for p in m.parameters())\nout.mean().backward()\n", False),
    ],
)
def test_between_forward_and_backward_some_are_whole(body: str, *, is_between: bool) -> None:
    said = [each.becomes for each in uses(MODEL + body, HEADER) if each.code in {"FM334", "FM423"}]
    assert said
    assert all(("isinstance(p, DTensor) else p" in each) is is_between for each in said)


UNUSED = "sum(p.grad is None for p in m.parameters())"
TALLY = "k = 0\nfor p in m.parameters():\n"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (f"print({UNUSED})\n", "FM334"),
        ("n = sum(p.grad is None for p in m.parameters() if p.requires_grad)\nprint('unused', n)\n", "FM334"),
        ("print(len([n for n, p in m.named_parameters() if p.grad is None]))\n", "FM334"),
        ("print(sum(1 for p in m.parameters() if p.requires_grad and p.grad is not None))\n", "FM334"),
        ("print(sum(int(p.grad is not None) for p in m.parameters()))\n", "FM334"),
        ("k = 0\nfor p in m.parameters():\n    if p.grad is None:\n        k += 1\nprint(k)\n", "FM334"),
        (f"{TALLY}    if p.grad is None:\n        if p.ndim > 1:\n            k += 1\nprint(k)\n", "FM334"),
        (f"{TALLY}    if p.grad is None: k += 1\nprint(k)\n", "FM334"),
        (f"{TALLY}    if p.grad is None:\n        pass\n    else:\n        k += 1\nprint(k)\n", "FM334"),
        (f"{TALLY}    if p.grad is not None:\n        if p.ndim > 1:\n            pass\n", ""),
        (f"share = {UNUSED} / total\n", "FM423"),
        ("gs = [p for p in m.parameters() if p.grad is None]\n", ""),
        ("for p in m.parameters():\n    if p.grad is None:\n        continue\n", ""),
        ("print(sum(p.requires_grad is None for p in m.parameters()))\n", ""),
        (UNUSED.replace("m.", "other."), ""),
        (f"with FSDP.summon_full_params(m, with_grads=True):\n    print({UNUSED})\n", ""),
    ],
)
def test_counts_of_gradients_that_are_none(body: str, code: str) -> None:
    found = [each.code for each in uses(MODEL + body, HEADER) if each.code in {"FM334", "FM423"}]
    assert found == ([code] if code else [])


@pytest.mark.parametrize("each", ["state in opt.state.values()", "_, state in opt.state.items()"])
@pytest.mark.parametrize(
    ("line", "is_said"),
    [
        (
            "for k, v in state.items():\n        if torch.is_tensor(v):\n            state[k] = v.cuda()\n",
            False,
        ),
        ("state['step'] = 0\n", False),
        ("state['exp_avg'] = state['exp_avg'].to(device)\n", False),
        ("state['exp_avg'][0] = 0\n", True),
        ("for v in state.values():\n        v[0] = 0\n", True),
    ],
)
def test_items_of_an_optimizers_state_are_set(each: str, line: str, *, is_said: bool) -> None:
    body = f"{MODEL}opt = torch.optim.AdamW(m.parameters())\nfor {each}:\n    {line}"
    assert ("FM423" in [use.code for use in uses(body, HEADER)]) is is_said


SUMMED = "def f():\n    s = n = 0\n    for p in m.parameters():\n        s += p.grad.norm().item(){}\n{}"


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        (SUMMED.format("", "        n += p.numel()\n    return s / n\n"), True),
        (SUMMED.format("", "        n += p.numel()\n    t = [s]\n    t[0] /= n\n"), True),
        (SUMMED.format("", "    return s / count_parameters(m)\n"), True),
        (SUMMED.format("", "        n += p.numel()\n    k = 1 / n\n    return s * k\n"), True),
        (SUMMED.format(" ** 2", "        n += p.numel()\n    print(100 * n / n)\n    t[0] = s\n"), False),
        (SUMMED.format("", "        n += p.numel()\n    return s / 2, n / 1e6\n"), False),
        (
            (
                "def f():\n    a = []\n    b = []\n    for p in m.parameters():\n"
                "        a.append(p.norm().item())\n        b.append(p.numel())\n"
                "    return [x / y for x, y in zip(a, b)]\n"
            ),
            True,
        ),
    ],
)
def test_a_number_of_a_rank_that_is_divided_by_a_count(body: str, *, is_said: bool) -> None:
    said = [use.becomes for use in uses(f"{MODEL}{body}") if "what is divided by that" in use.becomes]
    assert bool(said) is is_said
