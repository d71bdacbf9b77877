"""Lightning's callbacks, and modules that LightningCLI trains, where FSDP1's strategy is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

TRAINS = "import lightning as L\ntrainer = L.Trainer(strategy='fsdp', devices=2)\n"
CLI = "from lightning.pytorch.cli import LightningCLI\nfrom own import Own\nLightningCLI(Own)\n"
OWN = (
    "import copy\nimport torch\nimport lightning as L\nfrom helpers import use\n\n\n"
    "class Own({}):\n    def {}:\n        {}\n"
)
HELPERS = "def use(model):\n    return model.state_dict()\n"
STRATEGY = "trainer:\n  strategy:\n    class_path: lightning.pytorch.strategies.FSDPStrategy\n"


def said(folder: Path, own: str, train: str = TRAINS) -> dict[str, set[str]]:
    """Return the codes that are said of each file but that of the Trainer, by its name."""
    for name, text in {"train.py": train, "own.py": own, "helpers.py": HELPERS}.items():
        (folder / name).write_text(text)
    found: dict[str, set[str]] = {}
    for use in (each for each in scan_paths([folder]).uses if each.action != "unclear"):
        found.setdefault(use.path.rpartition("/")[2], set()).add(use.code)
    found.pop("train.py", None)
    return found


@pytest.mark.parametrize(
    ("method", "body", "code"),
    [
        ("on_fit_start(self, trainer, pl_module)", "self.ema = copy.deepcopy(pl_module)", "FM323"),
        ("on_validation_end(self, trainer, module)", "torch.save(module.state_dict(), p)", "FM333"),
        (
            "on_before_optimizer_step(self, trainer, pl_module, optimizer)",
            "x = [p.grad.norm() for p in pl_module.parameters()]",
            "FM423",
        ),
        ("on_before_optimizer_step(self, t, m, o)", "L.pytorch.utilities.grad_norm(m, 2)", "FM423"),
        (
            "on_train_batch_end(self, t, m, outputs, batch, batch_idx)",
            "torch.nn.utils.clip_grad_norm_(m.model.parameters(), 1.0)",
            "FM326",
        ),
        ("on_load_checkpoint(self, t, m, checkpoint)", "m.load_state_dict(checkpoint['x'])", "FM333"),
        (
            "on_train_start(self, t, m)",
            "x = [p for n, p in m.named_parameters() if n.startswith('head')]",
            "",
        ),
        ("setup(self, trainer, pl_module, stage)", "self.ema = copy.deepcopy(pl_module)", ""),
        ("own(self, trainer, pl_module)", "self.ema = copy.deepcopy(pl_module)", ""),
        ("on_train_end(self, trainer, pl_module)", "torch.save(trainer.state_dict(), p)", ""),
    ],
)
def test_callbacks_are_given_the_sharded_module(tmp_path: Path, method: str, body: str, code: str) -> None:
    own = OWN.format("L.Callback", method, body)
    assert said(tmp_path, own) == ({"own.py": {code}} if code else {})
    assert said(tmp_path, own, TRAINS.replace("fsdp", "ddp")) == {}
    assert said(tmp_path, OWN.format("Other", method, body)) == {}


def test_the_file_of_a_module_is_named_below_the_project(tmp_path: Path) -> None:
    """`(charlm/lit.py)` was said of `src/charlm/lit.py`: the last folder alone."""
    package = tmp_path / "src" / "charlm"
    package.mkdir(parents=True)
    (package / "lit.py").write_text(OWN.format("L.LightningModule", "training_step(self, batch, i)", "pass"))
    strategy = "strategy=FSDPStrategy(sharding_strategy=cfg.sharding)"
    head = "from charlm.lit import Own\nfrom lightning.pytorch.strategies import FSDPStrategy\n"
    train = head + TRAINS.replace("strategy='fsdp'", strategy) + "trainer.fit(Own())\n"
    (tmp_path / "train.py").write_text(train)
    texts = [use.becomes for use in scan_paths([tmp_path]).uses if use.code == "FM319"]
    assert "LightningModule `Own` (src/charlm/lit.py)" in " ".join(texts)


def test_what_callbacks_and_modules_give_to_functions_of_other_files(tmp_path: Path) -> None:
    own = OWN.format("L.Callback", "on_train_end(self, trainer, pl_module)", "use(pl_module)")
    assert said(tmp_path, own) == {"helpers.py": {"FM333"}}
    own = OWN.format("L.Callback", "on_train_end(self, trainer, pl_module)", "use(trainer.strategy.model)")
    assert said(tmp_path, own) == {"helpers.py": {"FM333"}}
    train = f"{TRAINS}from own import Own\ntrainer.fit(Own())\n"
    for given in ("self", "self.model"):
        own = OWN.format("L.LightningModule", "on_train_end(self)", f"use({given})")
        assert said(tmp_path, own, train).get("helpers.py") == {"FM333"}
        own = OWN.format("L.LightningModule", "__init__(self)", f"use({given})")
        assert "helpers.py" not in said(tmp_path, own, train)


@pytest.mark.parametrize(
    ("name", "text", "is_asked"),
    [
        ("fsdp.yaml", STRATEGY, True),
        ("fsdp.yaml", "trainer:\n  strategy: fsdp\n", True),
        ("fsdp.yaml", "trainer:\n  strategy: fsdp_cpu_offload\n", True),
        ("run.sh", "python train.py fit --trainer.strategy fsdp\n", True),
        ("run.sh", "python train.py fit --trainer.strategy=FSDPStrategy\n", True),
        ("run.sh", "python train.py --strategy fsdp\n", True),
        ("ddp.yaml", "trainer:\n  strategy: ddp\n", False),
        ("fsdp.yaml", "trainer:\n  # strategy: fsdp\n  strategy: ddp\n", False),
        ("fsdp.yaml", STRATEGY.replace("FSDPStrategy", "ModelParallelStrategy"), False),
    ],
)
def test_a_config_asks_for_the_strategy_of_modules_that_the_cli_trains(
    tmp_path: Path, name: str, text: str, *, is_asked: bool
) -> None:
    (tmp_path / name).write_text(text)
    own = OWN.format("L.LightningModule", "on_train_end(self)", "torch.save(self.model.state_dict(), p)")
    assert said(tmp_path, own, CLI) == ({"own.py": {"FM333"}} if is_asked else {})
    assert said(tmp_path, own, CLI.replace("LightningCLI(Own)", "run()")) == {}


@pytest.mark.parametrize(
    ("given", "is_handed_on"),
    [
        ("strategy=cfg.trainer.strategy", True),
        ("devices=2, strategy=cfg['trainer']['strategy'], max_epochs=1", True),
        ("strategy=args.strategy, callbacks=[f(x)]", True),
        ("strategy=cfg.get('strategy', 'auto')", True),
        ("devices=2, **cfg.trainer", True),
        ("strategy='ddp'", False),
        ("strategy=None", False),
        ("strategy=DDPStrategy()", False),
        ("devices=cfg.devices", False),
    ],
)
@pytest.mark.parametrize("config", ["strategy: fsdp\n", "_target_: p.DDPFullyShardedNativeStrategy\n"])
def test_a_trainer_that_is_handed_the_strategy_of_a_config(
    tmp_path: Path, given: str, config: str, *, is_handed_on: bool
) -> None:
    (tmp_path / "fsdp.yaml").write_text(config)
    train = f"import lightning as L\nfrom own import Own\nL.Trainer({given}).fit(Own())\n"
    body = "torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)"
    own = OWN.format("L.LightningModule", "on_before_optimizer_step(self, optimizer)", body)
    assert said(tmp_path, own, train) == ({"own.py": {"FM326"}} if is_handed_on else {})
    (tmp_path / "fsdp.yaml").write_text("strategy: ddp\n")
    assert said(tmp_path, own, train) == {}


def test_comments_of_a_callback_say_that_the_model_may_be_whole(tmp_path: Path) -> None:
    body = "self.ema = copy.deepcopy(pl_module)"
    said(tmp_path, OWN.format("L.Callback", "on_train_start(self, trainer, pl_module)", body))
    [use] = [use for use in scan_paths([tmp_path]).uses if use.code == "FM323"]
    assert use.becomes.startswith("where the framework shards this model: ")


AFTER_FIT = (
    "import lightning as L\nfrom models import Lit\n\n\ndef main():\n    model = Lit()\n    {}\n"
    "    trainer = L.Trainer(strategy='{}', devices=2)\n    trainer.fit(model, datamodule=data)\n    {}\n"
)


@pytest.mark.parametrize(
    ("above", "below", "codes"),
    [
        ("pass", "torch.save(model.state_dict(), 'x')", {"FM333"}),
        ("pass", "model.net.save_pretrained('x')", {"FM333"}),
        ("pass", "torch.save(model.net.state_dict(), 'x')", {"FM333"}),
        ("pass", "x = [p.norm() for p in model.parameters()]", {"FM423"}),
        ("torch.save(model.state_dict(), 'x')", "pass", set()),
        ("pass", "model = Lit.load_from_checkpoint('x')\n    torch.save(model.state_dict(), 'x')", set()),
        ("pass", "other.state_dict()", set()),
    ],
)
def test_the_module_that_a_trainer_has_trained(
    tmp_path: Path, above: str, below: str, codes: set[str]
) -> None:
    for strategy, expected in (("fsdp", codes), ("ddp", set())):
        (tmp_path / "train.py").write_text(AFTER_FIT.format(above, strategy, below))
        uses = scan_paths([tmp_path]).uses
        assert {use.code for use in uses if use.code in {"FM333", "FM423"}} == expected


LIT = "import lightning as L\nimport torch\n\n\nclass Other:\n    def fit(self, model):\n        pass\n\n\n"
MADE = "L.Trainer(strategy='fsdp', devices=2)"


@pytest.mark.parametrize(
    ("code", "is_one"),
    [
        (f"run = {MADE}\nrun.fit(lit)\ntorch.save(lit.state_dict(), p)\n", True),
        (f"{MADE}.fit(lit)\ntorch.save(lit.state_dict(), p)\n", True),
        (f"def f():\n    r = {MADE}\n    r.fit(lit)\n    torch.save(lit.net.state_dict(), p)\n", True),
        (
            (
                f"def make():\n    return {MADE}\n\n\ndef f(lit):\n    t1 = make()\n    t1.fit(lit)\n"
                "    torch.save(lit.state_dict(), p)\n"
            ),
            True,
        ),
        (
            (
                f"def f(lit):\n    t = {MADE}\n    t.fit(lit)\n\n\n"
                "def g(r: L.Trainer, lit):\n    r.fit(lit)\n    torch.save(lit.state_dict(), p)\n"
            ),
            True,
        ),
        (
            (
                f"class Run:\n    def __init__(self):\n        self.pl = {MADE}\n        self.lit = Lit()\n\n"
                "    def run(self):\n        self.pl.fit(self.lit)\n        x = self.lit.state_dict()\n"
            ),
            True,
        ),
        (f"run = Other()\nt = {MADE}\nrun.fit(lit)\ntorch.save(lit.state_dict(), p)\n", False),
        (f"trainer = Other()\nt = {MADE}\ntrainer.fit(lit)\ntorch.save(lit.state_dict(), p)\n", False),
        (f"run = {MADE}\nrun.fit(lit)\nlit = Lit()\ntorch.save(lit.state_dict(), p)\n", False),
        (f"run = {MADE}\nif on:\n    run.fit(lit)\nelse:\n    torch.save(lit.state_dict(), p)\n", False),
    ],
)
def test_the_trainer_is_followed_by_any_name(tmp_path: Path, code: str, *, is_one: bool) -> None:
    (tmp_path / "train.py").write_text(LIT + code)
    found = [use.line for use in scan_paths([tmp_path]).uses if use.code == "FM333"]
    assert found == ([LIT.count("\n") + code.count("\n")] if is_one else [])


def test_the_module_in_another_method_than_that_which_trains(tmp_path: Path) -> None:
    code = (
        f"class Run:\n    def __init__(self):\n        self.pl = {MADE}\n        self.model = Lit()\n\n"
        "    def run(self):\n        self.pl.fit(self.model)\n\n"
        "    def save(self):\n        torch.save(self.model.state_dict(), p)\n"
    )
    (tmp_path / "train.py").write_text(LIT + code)
    line = LIT.count("\n") + code.count("\n")
    assert [use.code for use in scan_paths([tmp_path]).uses if use.line == line] == ["FM450"]


@pytest.mark.parametrize(
    ("beside", "is_fabrics"),
    [
        ("_target_: lightning.fabric.Fabric\ndevices: 4\n", True),
        ("_target_: lightning.Trainer\n", False),
        ("devices: 4\n", False),
        ("_target_: lightning.Fabric\ntrainer: lightning.Trainer\n", False),
    ],
)
def test_a_config_from_which_hydra_makes_a_fabric_is_none_of_a_trainers(
    tmp_path: Path, beside: str, *, is_fabrics: bool
) -> None:
    (tmp_path / "fsdp.yaml").write_text("defaults: [default]\nstrategy: fsdp\n")
    (tmp_path / "default.yaml").write_text(beside)
    train = "import lightning as L\nfrom own import Own\nL.Trainer(**cfg.trainer).fit(Own())\n"
    body = "torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)"
    own = OWN.format("L.LightningModule", "on_before_optimizer_step(self, optimizer)", body)
    assert said(tmp_path, own, train) == ({} if is_fabrics else {"own.py": {"FM326"}})


@pytest.mark.parametrize(
    ("given", "config", "is_asked"),
    [
        ("cfg.trainer.backend", "trainer:\n  backend: fsdp\n", True),
        ("cfg['trainer']['backend']", "trainer:\n  backend: 'fsdp_native'\n", True),
        ("cfg.trainer.backend", "trainer:\n  backend: ddp\n  other: fsdp\n", False),
        ("cfg.trainer.strategy", "trainer:\n  backend: fsdp\n", False),
    ],
)
def test_a_strategy_by_another_key(tmp_path: Path, given: str, config: str, *, is_asked: bool) -> None:
    (tmp_path / "config.yaml").write_text(config)
    own = OWN.format(
        "L.Callback", "on_train_end(self, trainer, module)", "torch.save(module.state_dict(), p)"
    )
    train = f"import lightning as L\ntrainer = L.Trainer(devices=2, strategy={given})\n"
    assert (said(tmp_path, own, train).get("own.py") == {"FM333"}) is is_asked


OF_MODULE = OWN.format("L.LightningModule", "on_train_end(self)", "torch.save(self.model.state_dict(), p)")
FITS = "import torch\nfrom own import Own\nown = Own()\n{}trainer.fit(own)\ntorch.save(own.state_dict(), p)\n"
MAKES = "import lightning as L\n\n\ndef build(args):\n    return L.Trainer({})\n"
BUILDS = "from train import build\ntrainer = build(args)\n"
HYDRAS = "import hydra\ntrainer = hydra.utils.instantiate(cfg.trainer)\n"
CHOSEN = "import lightning as L\n\n\nclass Kind(str, Enum):\n    fsdp = 'fsdp'\n\n\n"


@pytest.mark.parametrize(
    ("train", "makes", "more", "is_asked"),
    [
        (MAKES.format("strategy='fsdp', devices=2"), BUILDS, {}, True),
        (MAKES.format("strategy=DDPFullyShardedNativeStrategy()"), BUILDS, {}, True),
        (MAKES.format("**kwargs") + "kwargs = {'strategy': 'fsdp'}\n", BUILDS, {}, True),
        (CHOSEN + MAKES.format("strategy=kind.value"), BUILDS, {}, True),
        (MAKES.format("strategy=args.strategy"), BUILDS, {"c.py": "strategy: str = 'fsdp'\n"}, True),
        ("", HYDRAS, {"c.yaml": STRATEGY}, True),
        (
            "import ray.train.lightning as rl\n" + MAKES.format("strategy=rl.RayFSDPStrategy()"),
            BUILDS,
            {},
            True,
        ),
        (MAKES.format("strategy='ddp', devices=2"), BUILDS, {}, False),
        (MAKES.format("strategy=args.strategy"), BUILDS, {"c.py": "strategy: str = 'ddp'\n"}, False),
        ("", HYDRAS, {"c.yaml": STRATEGY.replace("FSDPStrategy", "DDPStrategy")}, False),
        (MAKES.format("strategy='fsdp', devices=2"), "import composer\n" + BUILDS, {}, True),
        (MAKES.format("strategy='fsdp', devices=2"), "trainer = L.Trainer()\n" + BUILDS, {}, True),
        # The modules are asked about, and not what fits one by a Trainer that is another's.
        (MAKES.format("strategy='fsdp', devices=2"), "trainer = L.Trainer()\n", {}, None),
    ],
)
def test_a_file_that_fits_what_another_one_makes(
    tmp_path: Path, train: str, makes: str, more: dict[str, str], *, is_asked: bool | None
) -> None:
    for name, text in {"main.py": FITS.format(makes), **more}.items():
        (tmp_path / name).write_text(text)
    found = said(tmp_path, OF_MODULE, train)
    found.pop("c.py", None)
    modules = {"own.py": {"FM333"}} if is_asked is not False else {}
    assert found == modules | ({"main.py": {"FM333"}} if is_asked else {})


def test_the_class_above_a_module_in_another_file(tmp_path: Path) -> None:
    below = "from own import Own\n\n\nclass Below(Own):\n    pass\n"
    (tmp_path / "below.py").write_text(below)
    train = "import lightning as L\nfrom below import Below\n"
    train += "L.Trainer(strategy='fsdp', devices=2).fit(Below())\n"
    assert said(tmp_path, OF_MODULE, train) == {"own.py": {"FM333"}, "below.py": {"FM429"}}


ABOVE = "class Base(L.LightningModule):\n    pass\n\n\nclass Own(Base):\n    def {}:\n        {}\n"


@pytest.mark.parametrize(
    ("method", "body"),
    [
        ("on_train_end(self)", "print(sum(p.norm() for p in self.net.parameters()))"),
        ("on_load_checkpoint(self, checkpoint)", "self.net.load_state_dict(checkpoint['net'])"),
    ],
)
def test_a_module_by_the_class_above_it(tmp_path: Path, method: str, body: str) -> None:
    own = "import lightning as L\n\n\n" + ABOVE.format(method, body)
    assert said(tmp_path, own, MAKES.format("strategy='fsdp', devices=2"))["own.py"]
    assert said(tmp_path, own, MAKES.format("strategy='ddp', devices=2")) == {}


@pytest.mark.parametrize(("branch", "is_said"), [("if", True), ("if not", False)])
def test_a_branch_for_other_strategies(tmp_path: Path, branch: str, *, is_said: bool) -> None:
    check = f"{branch} isinstance(trainer.strategy, FSDPStrategy):\n    torch.save(own.state_dict(), p)\n"
    fits = FITS.format(BUILDS).replace("torch.save(own.state_dict(), p)\n", check)
    (tmp_path / "main.py").write_text("from lightning.pytorch.strategies import FSDPStrategy\n" + fits)
    found = said(tmp_path, OF_MODULE, MAKES.format("strategy='fsdp', devices=2"))
    assert ("FM333" in found["main.py"]) is is_said


PENALTY = OWN.format(
    "L.LightningModule",
    "training_step(self, batch, i)",
    "return self.net(batch) + sum(p.abs().sum() for p in {}.parameters())",
)
WITH_POLICY = MAKES.format("strategy=FSDPStrategy(auto_wrap_policy={}), devices=2")


@pytest.mark.parametrize(
    ("of", "policy", "is_said"),
    [
        ("self", "policy", True),
        ("self.net", "{Block}", True),
        ("self.net.encoder", "{Block}", True),
        ("self.net", "None", False),
        ("other", "policy", False),
    ],
)
def test_a_penalty_in_a_step_over_parameters_of_units(
    tmp_path: Path, of: str, policy: str, *, is_said: bool
) -> None:
    own = PENALTY.format(of)
    train = WITH_POLICY.format(policy)
    assert said(tmp_path, own, train) == ({"own.py": {"FM423"}} if is_said else {})
    # Parameters of the module itself are whole in its step.
    of_root = own.replace(f"sum(p.abs().sum() for p in {of}.parameters())", "self.net.weight.norm()")
    assert said(tmp_path, of_root, train) == {}


def test_a_policy_in_a_config(tmp_path: Path) -> None:
    (tmp_path / "fsdp.yaml").write_text(f"{STRATEGY}    init_args:\n      auto_wrap_policy: [own.Block]\n")
    assert said(tmp_path, PENALTY.format("self"), CLI) == {"own.py": {"FM423"}}
    (tmp_path / "fsdp.yaml").write_text(STRATEGY)
    assert said(tmp_path, PENALTY.format("self"), CLI) == {}


@pytest.mark.parametrize(
    ("base", "method", "is_said"),
    [
        ("L.LightningModule", "on_before_zero_grad(self, optimizer)", True),
        ("L.LightningModule", "optimizer_step(self, epoch, i, optimizer, closure)", True),
        ("L.Callback", "on_before_optimizer_step(self, trainer, module, optimizer)", True),
        ("L.LightningModule", "own(self, optimizer)", False),
        ("Other", "on_before_zero_grad(self, optimizer)", False),
    ],
)
def test_the_optimizer_that_a_hook_is_given(tmp_path: Path, base: str, method: str, *, is_said: bool) -> None:
    own = OWN.format(base, method, "x = [p.grad.norm() for g in optimizer.param_groups for p in g['params']]")
    found = said(tmp_path, own, MAKES.format("strategy='fsdp', devices=2"))
    assert found == ({"own.py": {"FM423"}} if is_said else {})


def test_a_penalty_in_a_method_that_a_step_calls(tmp_path: Path) -> None:
    own = OWN.format("L.LightningModule", "{}(self, batch, i)", "return self.net(batch) + self._of_weights()")
    own += "\n    def _of_weights(self):\n        return sum((p**2).sum() for p in self.parameters())\n"
    train = WITH_POLICY.format("policy")
    assert said(tmp_path, own.format("training_step"), train) == {"own.py": {"FM423"}}
    assert said(tmp_path, own.format("other"), train) == {}


MIXIN = "import torch\n\n\nclass Saves:\n    def {}:\n        torch.save(self.net.state_dict(), p)\n"


@pytest.mark.parametrize(
    "method", ["on_train_end(self)", "on_before_optimizer_step(self, optimizer)", "own(self)"]
)
@pytest.mark.parametrize("bases", ["Saves, L.LightningModule", "Saves"])
def test_a_class_that_modules_derive_from_as_well(tmp_path: Path, method: str, bases: str) -> None:
    (tmp_path / "saves.py").write_text(MIXIN.format(method))
    own = f"import lightning as L\nfrom saves import Saves\n\n\nclass Own({bases}):\n    pass\n"
    found = said(tmp_path, own, MAKES.format("strategy='fsdp', devices=2"))
    is_said = "L." in bases and not method.startswith("own")
    assert found == ({"saves.py": {"FM333"}} if is_said else {})


@pytest.mark.parametrize(
    ("method", "is_named"), [("setup(self, trainer, module, stage)", False), ("own(self, module)", True)]
)
@pytest.mark.parametrize("base", ["L.Callback", "Other"])
def test_what_a_callback_copies_before_anything_is_sharded(
    tmp_path: Path, base: str, method: str, *, is_named: bool
) -> None:
    train = "from own import Own\n" + MAKES.format("strategy='fsdp', devices=2, callbacks=[Own()]")
    own = OWN.format(base, method, "self.ema = copy.deepcopy(module.model)")
    said(tmp_path, own, train)
    unclear = [use.code for use in scan_paths([tmp_path]).uses if use.action == "unclear"]
    assert unclear == ["FM450"] * (is_named or base == "Other")


def test_a_trainer_of_the_projects_own_is_none_of_lightnings(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("strategy: fsdp\n")
    (tmp_path / "cli.py").write_text(
        "from lightning.pytorch.cli import LightningCLI\nfrom own import Own\nLightningCLI(Own)\n"
    )
    fits = "from engine import {0}\ntrainer = {0}(cfg)\ntrainer.fit(net)\ntorch.save(net.state_dict(), p)\n"
    for name in ("SimpleTrainer", "make"):
        (tmp_path / "main.py").write_text(fits.format(name))
        found = said(tmp_path, OF_MODULE, "x = 1\n")
        assert ("main.py" in found) is (name == "make")


def test_a_module_that_its_own_file_trains_without_a_strategy(tmp_path: Path) -> None:
    other = "import lightning as L\n\n\ndef build():\n    return L.Trainer(strategy='fsdp', devices=2)\n"
    fits = "\ntrainer = L.Trainer(devices=1)\ntrainer.fit(Own())\n"
    assert said(tmp_path, OF_MODULE + fits, other) == {}
    (tmp_path / "main.py").write_text("from own import Own\nbuild().fit(Own())\n")
    assert "own.py" in said(tmp_path, OF_MODULE + fits, other)


def _comments(folder: Path, own: str, train: str) -> list[str]:
    said(folder, own, train)
    return [use.becomes for use in scan_paths([folder]).uses if use.action == "commented"]


FLAT = "x = torch.cat([p.detach().flatten() for p in {}.parameters()]).norm()"


@pytest.mark.parametrize(
    ("base", "method", "of", "is_whole"),
    [
        ("L.LightningModule", "on_before_zero_grad(self, optimizer)", "self", True),
        ("L.LightningModule", "on_before_backward(self, loss)", "self", True),
        ("L.LightningModule", "optimizer_zero_grad(self, epoch, i, optimizer)", "self", True),
        ("L.Callback", "on_before_zero_grad(self, trainer, m, optimizer)", "m", True),
        ("L.LightningModule", "on_after_backward(self)", "self", False),
        ("L.LightningModule", "on_before_optimizer_step(self, optimizer)", "self", False),
        ("L.Callback", "on_train_batch_end(self, trainer, m, outputs, batch, i)", "m", False),
    ],
)
def test_hooks_between_forward_and_backward(
    tmp_path: Path, base: str, method: str, of: str, *, is_whole: bool
) -> None:
    own = OWN.format(base, method, FLAT.format(of))
    found = _comments(tmp_path, own, WITH_POLICY.format("{Block}"))
    assert found
    assert all(("isinstance(p, DTensor) else p" in each) is is_whole for each in found)
    # Without units all is in the root, which is whole there.
    assert bool(_comments(tmp_path, own, WITH_POLICY.format("None"))) is not is_whole


def test_what_other_hooks_run_too_is_said_of(tmp_path: Path) -> None:
    own = OWN.format("L.LightningModule", "on_before_zero_grad(self, optimizer)", "self._log()")
    own += f"\n    def _log(self):\n        {FLAT.format('self')}\n"
    train = WITH_POLICY.format("None")
    assert _comments(tmp_path, own, train) == []
    [one] = _comments(tmp_path, f"{own}\n    def on_train_start(self):\n        self._log()\n", train)
    assert "isinstance(p, DTensor) else p" in one


def test_a_penalty_of_units_and_of_the_root(tmp_path: Path) -> None:
    [one] = _comments(tmp_path, PENALTY.format("self"), WITH_POLICY.format("policy"))
    assert "isinstance(p, DTensor) else p" in one
