"""``clip_grad_norm_`` of a model, and of its parameters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_source, scan_paths, scan_source
from tests.source.projects import FSDP
from tests.source.samples import (
    ONE_TURNED,
    assert_commented,
    assert_left_alone,
    assert_turned,
    codes,
    turned,
    uses,
)


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


TURNED = [
    ("model.clip_grad_norm_(1.0)\n", "clip_grad_norm_(model, 1.0)\n"),
    (
        "norm = model.clip_grad_norm_(max_norm=clip, norm_type=2)\n",
        "norm = clip_grad_norm_(model, max_norm=clip, norm_type=2)\n",
    ),
    ("FSDP.clip_grad_norm_(model, 1.0)\n", "clip_grad_norm_(model, 1.0)\n"),
    (
        "model.clip_grad_norm_(  # of all\n    # one is usual\n    1.0,\n)\n",
        "clip_grad_norm_(\n    model,  # of all\n    # one is usual\n    1.0,\n)\n",
    ),
    (
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
        "# fsdp-migrate: FM326\nclip_grad_norm_(model.parameters(), 1.0)\n",
    ),
]


@pytest.mark.parametrize(("before", "after"), TURNED)
def test_methods_become_functions(before: str, after: str) -> None:
    assert_turned(before, after)


COMMENTED = [
    ("x.clip_grad_norm_(1.0)\n", "FM311"),
    ("def f(wrapped):\n    wrapped.clip_grad_norm_(1.0)\n", "FM311"),
]


@pytest.mark.parametrize(("body", "code"), COMMENTED)
def test_what_is_left_to_people_gets_one_comment(body: str, code: str) -> None:
    assert_commented(body, code)


LEFT_ALONE = [
    "accelerator.clip_grad_norm_(net.parameters(), 1.0)\n",
    "torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n",
]


@pytest.mark.parametrize("body", LEFT_ALONE)
def test_other_things_with_the_same_names_are_left_alone(body: str) -> None:
    assert_left_alone(body)


def test_clipping_by_a_model_that_another_source_has_made_is_said() -> None:
    body = "from wrapping import fsdp_wrapper\n\nmodel = fsdp_wrapper(net)\nmodel.clip_grad_norm_(1.0)\n"
    assert [(use.code, use.action) for use in scan_source(body) if use.line == 4] == [("FM311", "commented")]


@pytest.mark.parametrize(
    "body",
    [
        (
            "def f(model):\n    if isinstance(model, FSDP):\n        print()\n"
            "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        ),
        (
            "def f(models, net):\n    generator = FSDP(net)\n"
            "    torch.nn.utils.clip_grad_norm_(models.generator.parameters(), 1.0)\n"
        ),
        (
            "if one:\n    model = FSDP(net)\nelse:\n    model = torch.nn.DataParallel(net)\n"
            "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        ),
    ],
)
def test_the_norm_of_what_may_be_sharded_is_said(body: str) -> None:
    assert ("FM326", "commented") in codes(body)


@pytest.mark.parametrize(
    "body",
    [
        (
            "def f(model):\n    if isinstance(model, FSDP):\n        return\n"
            "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        ),
        (
            "def f(model: FSDP, zero):\n    if zero:\n        model.clip_grad_norm_(1.0)\n    else:\n"
            "        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        ),
        "generator = FSDP(net)\ntorch.nn.utils.clip_grad_norm_(models.other.parameters(), 1.0)\n",
        (
            "if use_fsdp:\n    model = FSDP(net)\nelse:\n    pass\n"
            "if not use_fsdp:\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        ),
    ],
)
def test_the_norm_of_other_models_is_not(body: str) -> None:
    assert "FM326" not in {code for code, _ in codes(body)}


@pytest.mark.parametrize(
    "use",
    [
        "models['a'].clip_grad_norm_(1.0)\n",
        "for m in models.values():\n    m.clip_grad_norm_(1.0)\n",
        "for name, m in models.items():\n    m.clip_grad_norm_(1.0)\n",
        "x = [m.clip_grad_norm_(1.0) for m in models]\n",
    ],
)
def test_items_of_a_dict_or_a_list_that_are_wrapped(use: str) -> None:
    assert ("FM311", "rewritten") in codes(f"models = {{}}\nmodels[name] = FSDP(net)\n{use}{ONE_TURNED}")


def test_a_choice_that_is_not_about_the_model() -> None:
    clip = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    body = (
        f"def train(model, scaler):\n    if scaler is not None:\n        {clip}    else:\n"
        f"        if isinstance(model, FSDP):\n            model.clip_grad_norm_(1.0)\n"
        f"        else:\n            {clip}"
    )
    assert [(use.code, use.line) for use in uses(body) if use.code == "FM326"] == [("FM326", 16)]


@pytest.mark.parametrize(
    ("wraps", "is_said"),
    [
        (
            "from fairscale.nn import FullyShardedDataParallel as Base\nclass Wrapped(Base):\n    pass\n",
            False,
        ),
        ("class FullyShardedDataParallel:\n    pass\nWrapped = FullyShardedDataParallel\n", False),
        ("class Wrapped:\n    pass\n", True),
        (f"from fairscale.nn import FullyShardedDataParallel as Base\n{FSDP}Wrapped = FSDP\n", True),
    ],
)
def test_a_model_of_another_fsdp_in_another_file(tmp_path: Path, wraps: str, is_said: bool) -> None:
    clip = (
        "from wraps import Wrapped\ndef clip(fsdp_module: Wrapped):\n    fsdp_module.clip_grad_norm_(1.0)\n"
    )
    (tmp_path / "wraps.py").write_text(wraps)
    (tmp_path / "clip.py").write_text(clip)
    found = {use.code for use in scan_paths([tmp_path]).uses if use.path.endswith("clip.py")}
    assert ("FM311" in found) is is_said


def test_clipping_by_the_model_of_a_trainer_is_said() -> None:
    body = "def clip(module):\n    module.trainer.model.clip_grad_norm_(1.0)\n"
    assert ("FM311", "commented") in codes(f"model = FSDP(net)\n{body}")


def test_parameters_of_a_part_of_a_model_are_said() -> None:
    body = "params = list(model.base_model.parameters())\ntorch.nn.utils.clip_grad_norm_(params, 1.0)\n"
    assert ("FM326", "commented") in codes(f"model = FSDP(net)\n{body}")


@pytest.mark.parametrize(
    ("body", "model", "is_said"),
    [
        ("model = FSDP(net)\n", "model.layers[0]", True),
        ("guide = Guide()\nguide.core = FSDP(guide.core)\n", "guide", True),
        ("guide = Guide()\nguide.core = FSDP(guide.core)\nguide = Guide()\n", "guide", False),
        ("state.model = FSDP(net)\n", "state.critics[0]", False),
    ],
)
def test_parts_of_models_and_modules_with_a_sharded_part(body: str, model: str, is_said: bool) -> None:
    clip = f"torch.nn.utils.clip_grad_norm_({model}.parameters(), 1.0)\n"
    assert (("FM326", "commented") in codes(f"{body}{clip}")) is is_said


def test_one_rank_alone_takes_no_norm_of_all() -> None:
    clip = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    body = f"model = FSDP(net)\nif debug and rank == 0:\n    norm = {clip}"
    assert ("FM326", "commented") in codes(body)
    assert ("FM326", "rewritten") in codes(body.replace(" and rank == 0", ""))


@pytest.mark.parametrize("given", ["optimizer.param_groups[0]['params']", "[p for p in net.parameters()]"])
def test_one_rank_alone_is_said_to_wait_where_a_list_is_given(given: str) -> None:
    body = (
        "net = FSDP(net)\noptimizer = torch.optim.AdamW(net.parameters())\nif debug and rank == 0:\n"
        f"    torch.nn.utils.clip_grad_norm_({given}, 1.0)\n"
    )
    assert "One rank alone comes here" in turned(body)
    assert "One rank alone comes here" not in turned(body.replace(" and rank == 0", ""))


@pytest.mark.parametrize(
    ("other", "is_alone"),
    [
        ("", True),
        ("clip(model)\n", False),
        ("if rank < 1:\n    clip(model)\n", True),
        ("spawn(clip)\n", False),
    ],
)
def test_a_function_that_one_rank_alone_calls_takes_no_norm_of_all(other: str, *, is_alone: bool) -> None:
    body = (
        "def clip(model: FSDP):\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n\n\n"
        f"model = FSDP(net)\nif rank == 0:\n    clip(model)\n{other}"
    )
    assert (("FM326", "commented") in codes(body)) is is_alone


def test_a_module_that_wraps_one_in_itself_has_its_parameters() -> None:
    wrapper = (
        "class Base(torch.nn.Module):\n    def __init__(self, net):\n        self.module = net\n"
        "class Wrapper(Base):\n    def __init__(self, net, *args, **kwargs):\n"
        "        super().__init__(net)\n        self.module = FSDP(net, *args, **kwargs)\n"
    )
    clip = "model = Wrapper(net, x=1)\ntorch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    assert ("FM326", "commented") in codes(wrapper + clip)
    assert "FM326" not in dict(codes(wrapper + clip.replace("Wrapper", "Base")))


PARTS = """class Pair(torch.nn.Module):
    def __init__(self, a, b, opt):
        super().__init__()
        {made}
    def fit(self, x):
        self(x).sum().backward()
        torch.nn.utils.clip_grad_norm_({given}, 0.25)
"""


@pytest.mark.parametrize(
    ("made", "given", "is_said"),
    [
        ("self.a = FSDP(a)", "self.parameters()", True),
        ("self.a = FSDP(a)", "[p for p in self.parameters() if p.requires_grad]", True),
        ("self.parts = torch.nn.ModuleList([FSDP(a), FSDP(b)])", "self.parameters()", True),
        ("self.a = a", "self.parameters()", False),
        ("self.a, self.b = FSDP(a), b", "self.b.parameters()", False),
        ("clip_grad_norm_(self.parameters(), 1.0)\n        self.a = FSDP(a)", "b.parameters()", False),
    ],
)
def test_parameters_of_a_module_that_shards_its_own_parts(made: str, given: str, is_said: bool) -> None:
    body = PARTS.format(made=made, given=given)
    found = codes(f"from torch.nn.utils import clip_grad_norm_\n{body}")
    assert (("FM326", "commented") in found) is is_said


OWN = (
    "class Own(torch.optim.SGD):\n    def step(self, closure=None):\n"
    "        params = [p for g in self.param_groups for p in g['params']]\n"
    "        torch.nn.utils.clip_grad_norm_(params, 1.0)\n        super().step(closure)\n"
)


@pytest.mark.parametrize(
    "body",
    [
        "opt = SGD({}.parameters())\ntorch.nn.utils.clip_grad_norm_(opt.param_groups[0]['params'], 1.0)\n",
        (
            "opt = SGD({}.parameters())\nfor g in opt.param_groups:\n"
            "    torch.nn.utils.clip_grad_norm_(g['params'], 1.0)\n"
        ),
        "names, kept = filter_params({})\ntorch.nn.utils.clip_grad_norm_(kept, 1.0)\n",
        f"{OWN}opt = Own({{}}.parameters())\n",
    ],
)
def test_lists_of_optimizers_and_of_functions_that_pick_parameters(body: str) -> None:
    assert ("FM326", "commented") in codes(f"model = FSDP(net)\n{body.format('model')}")
    assert "FM326" not in dict(codes(f"model = FSDP(net)\n{body.format('other')}"))


@pytest.mark.parametrize(
    ("made", "is_said"),
    [
        ("m = FSDP(net, sharding_strategy=ShardingStrategy.NO_SHARD)\n", False),
        ("s = ShardingStrategy.NO_SHARD\nm = FSDP(net, None, s).to(0)\n", False),
        ("m = FSDP(net, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)\n", True),
        ("m = FSDP(net, sharding_strategy=strategy)\n", True),
        ("m = FSDP(net)\n", True),
        ("m = FSDP(net, sharding_strategy=ShardingStrategy.NO_SHARD)\nn = FSDP(b)\n", True),
        ("m = FSDP(net, sharding_strategy=ShardingStrategy.NO_SHARD)\nf = partial(FSDP, a=1)\n", True),
    ],
)
def test_the_norm_of_whole_parameters_is_what_it_was(made: str, is_said: bool) -> None:
    clip = "torch.nn.utils.clip_grad_norm_(m.parameters(), 2.0)\n"
    body = f"from torch.distributed.fsdp import ShardingStrategy\n{made}{clip}"
    found = [use for use in uses(body) if use.code == "FM326"]
    assert [use.action for use in found] == ["rewritten"]
    assert bool(found[0].note) is is_said


@pytest.mark.parametrize("name", ["adaptive_clip_grad", "dispatch_clip_grad"])
def test_timm_clips_by_norms_too(name: str) -> None:
    body = f"from timm.utils import {name}\nm = FSDP(net)\n{name}({{}}.parameters(), 0.1)\n"
    assert ("FM326", "commented") in codes(body.format("m"))
    assert "FM326" not in dict(codes(body.format("other")))


@pytest.mark.parametrize(
    "home",
    [
        "torch_xla.distributed.fsdp",
        "torch_xla.distributed.xla_fully_sharded_data_parallel",
        "other.fsdp",
    ],
)
def test_torch_xlas_models_clip_by_themselves(tmp_path: Path, home: str) -> None:
    clips = (
        "class Strategy:\n    def wrap(self, module):\n"
        f"        from {home} import XlaFullyShardedDataParallel as XLAFSDP\n        return XLAFSDP(module)\n"
        "    def clip(self, module, norm):\n        return module.clip_grad_norm_(max_norm=norm)\n"
    )
    (tmp_path / "wrap.py").write_text(f"{FSDP}def wrap(net):\n    return FSDP(net)\n")
    (tmp_path / "clips.py").write_text(clips)
    found = {use.code for use in scan_paths([tmp_path]).uses if use.path.endswith("clips.py")}
    assert ("FM311" in found) is (home == "other.fsdp")


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("clip_fn = build(cfg)\nclip_fn(model.parameters(), 1.0)\n", True),
        (
            "clip_fn = build(cfg)\nopt = Adam(model.parameters())\nclip_fn(opt.param_groups[0]['params'])\n",
            True,
        ),
        (
            (
                "class A:\n    def __init__(self):\n        self.model = FSDP(net)\n"
                "        self.grad_clipper = build(cfg)\n    def run(self):\n"
                "        self.grad_clipper(self.model.parameters())\n"
            ),
            True,
        ),
        ("clip_fn = build(cfg)\nclip_fn(other.parameters(), 1.0)\n", False),
        ("def clip_fn(xs):\n    pass\n\nclip_fn(model.parameters())\n", False),
        ("keep = build(cfg)\nkeep(model.parameters())\n", False),
        ("clip_fn = build(cfg)\nclip_fn(image)\n", False),
    ],
)
def test_what_a_config_makes_to_clip_by(body: str, is_said: bool) -> None:
    found = codes(f"model = FSDP(net)\n{body}")
    assert (("FM326", "commented") in found) is is_said
    assert ("FM326", "rewritten") not in found


@pytest.mark.parametrize(
    ("given", "is_said"),
    [
        ("1.0, error_if_nonfinite=True", True),
        ("1.0, 2.0, True", True),
        ("1.0, error_if_nonfinite=strict", True),
        ("1.0, error_if_nonfinite=False", False),
        ("1.0", False),
    ],
)
def test_who_raises_for_a_norm_that_is_not_finite(given: str, *, is_said: bool) -> None:
    for model in ("model", "params"):
        parameters = "model.parameters()" if model == "model" else "list(model.parameters())"
        body = f"model = FSDP(net)\ntorch.nn.utils.clip_grad_norm_({parameters}, {given})\n"
        (found,) = (use for use in uses(body) if use.code == "FM326")
        assert ("all ranks raise" in found.becomes + found.note) is is_said


PREPARED = "import torch\nfrom {} import {}\nmodel = {}(net)\n"


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("model.clip_grad_norm_(1.0)\n", "clip_grad_norm_(model, 1.0)\n"),
        ("with model.no_sync():\n    model(x)\n", "with no_sync(model):\n    model(x)\n"),
        ("other.clip_grad_norm_(1.0)\n", ""),
    ],
)
def test_what_is_left_of_the_wrapper_once_somebody_prepares_by_hand(line: str, after: str) -> None:
    ours = PREPARED.format("fsdp_migrate", *["prepare_fully_shard"] * 2) + line
    turned_code = rewrite_source(ours)
    assert (after in turned_code) if after else (turned_code == ours)
    torchs = PREPARED.format("torch.distributed.fsdp", *["fully_shard"] * 2) + line
    assert rewrite_source(torchs) == torchs


XLAS = "import torch_xla.distributed.fsdp as xla\n"
FAIRSCALES = "from fairscale.nn import FullyShardedDataParallel as Other\n"
OWN_CLASS = (
    "class Other(torch.nn.Module):\n    def clip_grad_norm_(self, limit):\n        return self.parts(limit)\n"
)
EITHER = "if eager:\n    model = FSDP(net)\nelse:\n    model = {}(net)\n"


@pytest.mark.parametrize(
    ("before", "other"),
    [(XLAS, "xla.XlaFullyShardedDataParallel"), (FAIRSCALES, "Other"), (OWN_CLASS, "Other")],
)
def test_a_method_of_another_wrapper_is_still_called(before: str, other: str) -> None:
    made = f"import torch\n{FSDP}{before}{EITHER.format(other)}"
    after = rewrite_source(f"{made}norm = model.clip_grad_norm_(1.0)\n")
    new = "fsdp_clip_grad_norm_" if before is OWN_CLASS else "clip_grad_norm_"
    clips = f"{new}(model, 1.0) if isinstance(model, FSDPModule) else model.clip_grad_norm_(1.0)"
    assert f"norm = {clips}\n" in after
    assert "from torch.distributed.fsdp import FSDPModule\n" in after
    assert f"print(({clips}))" in rewrite_source(f"{made}print(model.clip_grad_norm_(1.0))\n")


def test_an_item_that_another_wrapper_may_have_made_is_left_to_a_person() -> None:
    either = "models[a] = FSDP(net)\nmodels[b] = xla.XlaFullyShardedDataParallel(net)\n"
    made = f"{FSDP}{XLAS}models = {{}}\n{either}"
    found = scan_source(f"{made}models[x].clip_grad_norm_(1.0)\n")
    assert ("FM311", "commented") in {(use.code, use.action) for use in found}


@pytest.mark.parametrize(
    "made",
    [
        # A plain model, and one of DistributedDataParallel, has no such method.
        EITHER.format("torch.nn.parallel.DistributedDataParallel"),
        "model = FSDP(net) if eager else net\n",
        f"{OWN_CLASS}class Plain(torch.nn.Module):\n    pass\n{EITHER.format('Plain')}",
        # FSDP1's in every case: its wrapper has the method, whatever the class within has.
        f"{XLAS}{OWN_CLASS}other = xla.XlaFullyShardedDataParallel(net)\nmodel = FSDP(Other(net))\n",
    ],
)
def test_what_alone_had_the_method_is_asked_for_nothing(made: str) -> None:
    after = rewrite_source(f"import torch\n{FSDP}{made}norm = model.clip_grad_norm_(1.0)\n")
    assert re.search(r"norm = (fsdp_)?clip_grad_norm_\(model, 1\.0\)\n", after)


def test_a_question_for_the_method_keeps_what_another_wrapper_has() -> None:
    asks = 'if hasattr(model, "clip_grad_norm_"):\n    model.clip_grad_norm_(1.0)\n'
    of_both = f"import torch\n{FSDP}{XLAS}{EITHER.format('xla.XlaFullyShardedDataParallel')}{asks}"
    of_one = f"import torch\n{FSDP}{XLAS}model = FSDP(net)\n{asks}"
    told = [[use.becomes for use in scan_source(each) if use.code == "FM335"] for each in (of_both, of_one)]
    assert ["isinstance(model, FSDPModule) or this" in text for (text,) in told] == [True, False]
