"""Collections of a sharded model's parameters that are given to what takes plain tensors."""

from __future__ import annotations

import copy
import io
import pickle
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.tensor import DTensor

from fsdp_migrate import prepare_fully_shard
from fsdp_migrate.runtime import summon_full_params
from fsdp_migrate.source import scan_paths
from tests.ranks import run_ranks
from tests.source.samples import IMPORTS, MODEL, codes, uses


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.any_torch


HEADER = f"{IMPORTS}import torch.distributed as dist\n\n"
STATE = "state = {n: p.detach().cpu().clone() for n, p in model.named_parameters()}\n"
FILLED = "state = {}\nfor n, p in model.named_parameters():\n    state[n] = p.data.cpu()\n"
CLEANED = f"{STATE}clean = {{}}\nfor k, v in state.items():\n    clean[k.strip()] = v\n"


def is_said(body: str) -> bool:
    return ("FM423", "commented") in codes(MODEL + body, HEADER)


@pytest.mark.parametrize("made", [STATE, FILLED, "state = dict(model.named_parameters())\n"])
@pytest.mark.parametrize(
    "use",
    [
        "other.load_state_dict(state, strict=False)\n",
        "torch.save(state, path)\n",
        "torch.save({'ema': state, 'step': 1}, path)\n",
        "queue.put(state)\n",
        "dist.broadcast_object_list([state], src=0)\n",
    ],
)
def test_dicts_of_parameters(made: str, use: str) -> None:
    assert is_said(made + use)


@pytest.mark.parametrize(
    "body",
    [
        f"{CLEANED}other.load_state_dict(clean)\n",
        "other.load_state_dict({n: p for n, p in model.named_parameters()})\n",
        "ps = []\nps.extend(model.parameters())\ntorch.save(ps, path)\n",
        "ps = []\nps += [p.grad for p in model.parameters()]\ntorch.save(ps, path)\n",
        (
            "class T:\n    def f(self, net):\n        self.net = FSDP(net)\n        self.kept = {}\n"
            "        for n, p in self.net.named_parameters():\n            self.kept[n] = p.data.clone()\n"
            "    def save(self):\n        torch.save(self.kept, 'x')\n"
        ),
    ],
)
def test_however_they_are_collected(body: str) -> None:
    assert is_said(body)


@pytest.mark.parametrize(
    "body",
    [
        "state = {n: p.full_tensor() for n, p in model.named_parameters()}\nother.load_state_dict(state)\n",
        f"{STATE}print(state)\n",
        f"{STATE}scheduler.load_state_dict(state)\n",
        "sizes = {n: p.numel() for n, p in model.named_parameters()}\ntorch.save(sizes, path)\n",
        "state = {n: p for n, p in other.named_parameters()}\ntorch.save(state, path)\n",
        f"with FSDP.summon_full_params(model):\n    {STATE}torch.save(state, path)\n",
        "names = []\nfor n, p in model.named_parameters():\n    names.append(n)\ntorch.save(names, path)\n",
    ],
)
def test_what_holds_no_dtensors_is_not(body: str) -> None:
    assert not is_said(body)


KEEPS = "        self.kept = {n: p.detach().clone() for n, p in module.named_parameters()}\n"


@pytest.mark.parametrize(
    ("saves", "said"),
    [
        (
            "on_save_checkpoint(self, trainer, module, checkpoint):\n        checkpoint['a'] = self.kept\n",
            True,
        ),
        (
            "on_save_checkpoint(self, trainer, module, checkpoint):\n        checkpoint['a'] = self.decay\n",
            False,
        ),
        ("on_save_checkpoint(self, trainer, module, checkpoint):\n        other['a'] = self.kept\n", False),
        ("on_fit_end(self, trainer, module, checkpoint=None):\n        checkpoint['a'] = self.kept\n", False),
    ],
)
def test_what_a_callback_of_lightnings_puts_into_its_checkpoints(
    tmp_path: Path, saves: str, *, said: bool
) -> None:
    body = (
        "from lightning.pytorch import Callback, Trainer\n"
        "from lightning.pytorch.strategies import FSDPStrategy\n\n\nclass Own(Callback):\n"
        f"    def __init__(self):\n        self.kept = {{}}\n        self.decay = 0.9\n\n"
        f"    def on_fit_start(self, trainer, module):\n{KEEPS}\n    def {saves}\n\n"
        "trainer = Trainer(strategy=FSDPStrategy(), devices=2, callbacks=[Own()])\n"
    )
    (tmp_path / "train.py").write_text(body)
    assert ("FM423" in {use.code for use in scan_paths([tmp_path]).uses}) is said


def is_pickle_said(body: str) -> bool:
    return ("FM323", "commented") in codes(f"import pickle\n{MODEL}{body}", HEADER)


@pytest.mark.parametrize(
    "body",
    [
        "torch.save(model, path)\n",
        "torch.save(obj=model, f=path)\n",
        "torch.save({'model': model, 'step': 1}, path)\n",
        "torch.save(dict(model=model, step=1), path)\n",
        "kept = {'inner': [model], 'step': 1}\ntorch.save(kept, path)\n",
        "pickle.dump((1, model), f)\n",
        "import joblib\njoblib.dump(model, path)\n",
        "dist.broadcast_object_list([model], src=0)\n",
        "torch.save(model.module.head, path)\n",
        "with FSDP.summon_full_params(model):\n    torch.save(model.module, path)\n",
        "def keep(it):\n    torch.save({'it': it}, path)\nkeep(model)\n",
        (
            "class T:\n    def __init__(self, net):\n        self.net = FSDP(net)\n"
            "    def save(self):\n        torch.save(self, path)\n"
        ),
        (
            "class T:\n    def __init__(self, net):\n        self.net = FSDP(net)\n"
            "    def on_save_checkpoint(self, checkpoint):\n        checkpoint['net'] = self.net\n"
        ),
    ],
)
def test_models_that_are_pickled_whole(body: str) -> None:
    assert is_pickle_said(body)


@pytest.mark.parametrize(
    "body",
    [
        "torch.save(model.state_dict(), path)\n",
        "torch.save({'model': model.state_dict(), 'config': model.config, 'step': 1}, path)\n",
        "plain = Net()\ntorch.save(plain, path)\n",
        "state = FSDP.optim_state_dict(model=model, optim=optimizer)\ntorch.save(state, path)\n",
        "torch.save({'o': FSDP.full_optim_state_dict(model=model, optim=optimizer)}, path)\n",
        "torch.save(get_model_state_dict(model=model, options=options), path)\n",
        "torch.save(model.config, path)\npickle.dump(model.history, f)\ntorch.save(model(x), path)\n",
        "queue.put(model)\n",  # of threads as well, where nothing is pickled
        "model = torch.load(path)\ntorch.save(model, path)\n",
        "model = torch.load(path).to(device)\ntorch.save(model, path)\n",
        "if not isinstance(model, FSDP):\n    torch.save(model, path)\n",
        (
            "class T:\n    def __init__(self, net):\n        self.net = FSDP(net)\n"
            "    def __getstate__(self):\n        return {}\n"
            "    def save(self):\n        torch.save(self, path)\n"
        ),
    ],
)
def test_states_and_plain_models_may_be_pickled(body: str) -> None:
    assert not is_pickle_said(body)


def test_a_model_is_pickled_above_its_sharding_and_beside_it() -> None:
    above = "net = Net()\ntorch.save(net, path)\nmodel = FSDP(net)\n"
    assert ("FM323", "commented") not in codes(above, HEADER)
    assert ("FM323", "commented") in codes(f"{above}torch.save(net, path)\n", HEADER)
    beside = "net = Net()\nif sharded:\n    net = FSDP(net)\n{}else:\n    torch.save(net, path)\n"
    assert ("FM323", "commented") not in codes(
        beside.format("    torch.save(net.state_dict(), path)\n"), HEADER
    )
    assert ("FM323", "commented") in codes(beside.format("    torch.save(net, path)\n"), HEADER)


def _raises(way: Callable[[], object]) -> bool:
    try:
        way()
    except (AssertionError, AttributeError, RuntimeError, TypeError, pickle.PicklingError):
        return True
    return False


def _ways(model: nn.Module, inner: nn.Sequential) -> dict[str, Callable[[], object]]:
    return {
        "model": lambda: torch.save(model, io.BytesIO()),
        "in a dict": lambda: pickle.dumps({"model": model}),
        "copy": lambda: copy.deepcopy(model),
        "inner": lambda: torch.save(inner, io.BytesIO()),
        "part": lambda: torch.save(inner[1], io.BytesIO()),
    }


def refused() -> dict[str, set[str]]:
    """Return what cannot be pickled or copied of a model of each of the two, whole and in parts."""
    found: dict[str, set[str]] = {}
    for name in ("fsdp1", "fsdp1 flat", "fsdp2"):
        inner = nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.Linear(4, 4))
        if name == "fsdp2":
            model: nn.Module = prepare_fully_shard(inner, {})
        else:
            model = FSDP(inner, use_orig_params=name == "fsdp1", device_id=torch.device("cpu"))
        model(torch.ones(2, 4)).sum().backward()
        with summon_full_params(model) if name == "fsdp2" else FSDP.summon_full_params(model):
            found[name] = {way for way, does in _ways(model, inner).items() if _raises(does)}
    return found


def test_what_fsdp1_and_fsdp2_refuse_to_pickle() -> None:
    for seen in run_ranks(refused):
        assert seen["fsdp1"] == seen["fsdp1 flat"] == {"model", "in a dict", "copy"}
        assert seen["fsdp2"] == {"model", "in a dict", "copy", "inner", "part"}


BY_METHOD = """\
class Average:
    def _file(self, args, step):
        return os.path.join(args.out, f"ema_{{args.process_index}}_{{step}}.pt")

    def start(self, args, net):
        self.net = FSDP(net)
        self.kept = {{n: p.detach().clone() for n, p in self.net.named_parameters()}}
        {}

    def save(self, args):
        torch.save(self.kept, self._file(args, 3))
"""


@pytest.mark.parametrize(
    ("body", "action", "words"),
    [
        (
            f"{STATE}torch.save(state, f'x_{{rank}}.pt')\nold = torch.load(f'x_{{rank}}.pt')\n",
            "kept",
            "stays",
        ),
        (BY_METHOD.format("old = torch.load(self._file(args, 2))"), "kept", "stays"),
        (f"{STATE}torch.save(state, f'x_{{rank}}.pt')\n", "commented", "as many ranks"),
        (BY_METHOD.format("pass"), "commented", "as many ranks"),
        # One file for all ranks, and a file of ranks that something else than this is read from.
        (f"{STATE}torch.save(state, path)\nold = torch.load(path)\n", "commented", "full_tensor() of each"),
        (f"{STATE}torch.save(state, path)\nold = torch.load(f'{{rank}}.pt')\n", "commented", "of each"),
    ],
)
def test_a_file_of_each_rank(body: str, action: str, words: str) -> None:
    """p18 of the written projects saves an average of each rank's part, and reads it so."""
    found = [
        use for use in uses(body if "class" in body else MODEL + body, HEADER) if "torch.save" in use.text
    ]
    assert [(use.code, use.action, words in use.becomes) for use in found] == [("FM423", action, True)]


def parts_read_back() -> bool:
    """Tell whether each rank's file of DTensors holds what it saved, when it loads it again."""
    model = prepare_fully_shard(nn.Linear(4, 4), {})
    kept = {name: p.detach().clone() for name, p in model.named_parameters()}
    file = io.BytesIO()
    torch.save(kept, file)
    file.seek(0)
    loaded = torch.load(file)
    parts = [(loaded[name], each) for name, each in kept.items()]
    return all(
        isinstance(each, DTensor) and torch.equal(one.to_local(), each.to_local()) for one, each in parts
    )


def test_files_of_ranks_are_read_as_they_were_saved() -> None:
    assert run_ranks(parts_read_back) == [True, True]


def test_the_models_state_is_advised_in_the_place_of_its_parameters_alone() -> None:
    """A file of averages was to hold `get_model_state_dict(model, ...)`, which has none of them."""
    body = "shadow = {n: p.clone() for n, p in model.named_parameters()}\ntorch.save(shadow, path)\n"
    (said,) = (use.becomes for use in uses(f"model = FSDP(net)\n{body}") if use.code == "FM423")
    assert "take .full_tensor() of each. Of the model's parameters themselves, not of averages," in said
