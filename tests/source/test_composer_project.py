"""Callbacks and algorithms of Composer's, which see the sharded model as ``state.model``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

OWN = (
    "import torch\nfrom composer.core import Algorithm, Callback\nfrom base import Base\n\n\n"
    "class Own({}):\n    def {}:\n        {}\n"
)
BASE = "from composer import Callback\n\n\nclass Base(Callback):\n    pass\n"
CODE = "from composer import Trainer\nt = Trainer(model, parallelism_config={'fsdp': {'verbose': True}})\n"
SAVES = "torch.save(state.model.state_dict(), 'x')"
END = "fit_end(self, state, logger)"


def said(folder: Path, own: str, **files: str) -> set[str]:
    """Return the codes that are said of a file with a callback, beside others."""
    (folder / "own.py").write_text(own)
    (folder / "base.py").write_text(BASE)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    uses = (use for use in scan_paths([folder]).uses if use.action != "unclear")
    return {use.code for use in uses if use.path.endswith("own.py")}


@pytest.mark.parametrize("base", ["Callback", "Base", "Algorithm"])
@pytest.mark.parametrize(
    ("method", "body", "code"),
    [
        (END, SAVES, "FM333"),
        (END, "state.model.model.save_pretrained('x')", "FM333"),
        (END, "x = [p.norm() for p in state.model.parameters()]", "FM423"),
        (
            "after_backward(self, state, logger)",
            "torch.nn.utils.clip_grad_norm_(state.model.parameters(), 1)",
            "FM326",
        ),
        ("apply(self, event, state, logger)", SAVES, "FM333"),
        ("init(self, state, logger)", SAVES, ""),
        (END, "torch.save(state.other.state_dict(), 'x')", ""),
        (END, "x = state.model(batch)", ""),
        # Composer's FSDP1 wrapped the model's children: they had what a wrapper has, and the model has not.
        (END, "x = state.model.net.module", "FM333"),
        (END, "state.model.net.clip_grad_norm_(1.0)", "FM311"),
        (END, "s = state.model.net.no_sync()", "FM333"),
        (END, "x = state.model.module", ""),
        (END, "x = state.model.net.body.module", ""),
        (END, "x = state.batch.module", ""),
    ],
)
def test_what_methods_are_given(tmp_path: Path, base: str, method: str, body: str, code: str) -> None:
    found = said(tmp_path, OWN.format(base, method, body), train_py=CODE)
    assert found == ({code} if code else set())


@pytest.mark.parametrize(
    ("files", "is_asked"),
    [
        ({"conf_yaml": "max_duration: 1ba\nfsdp_config:\n  sharding_strategy: FULL_SHARD\n"}, True),
        ({"conf_yaml": "max_duration: 1ba\nfsdp_config: null\n"}, False),
        ({"train_py": CODE.replace("'fsdp'", "'tp'")}, False),
        ({"train_py": CODE.replace("'fsdp'", "'fsdp2'")}, False),
        ({"train_py": f"from composer.utils import FSDP2Config\n{CODE}"}, False),
        ({"train_py": "from composer import Trainer\nt = Trainer(model)\n"}, False),
    ],
)
def test_projects_that_ask_composer_for_fsdp1(
    tmp_path: Path, files: dict[str, str], *, is_asked: bool
) -> None:
    found = said(tmp_path, OWN.format("Callback", END, SAVES), **files)
    assert found == ({"FM333"} if is_asked else set())


def test_a_callback_of_another_package(tmp_path: Path) -> None:
    own = OWN.format("Callback", END, SAVES).replace("from composer.core", "from lightning")
    assert said(tmp_path, own, train_py=CODE) == set()


@pytest.mark.parametrize(
    ("given", "above", "is_one"),
    [
        ("model=model, fsdp_config=settings", "pass", True),
        ("model, parallelism_config={'fsdp': settings}", "pass", True),
        ("model=model, fsdp_config=None", "pass", False),
        ("model=model", "pass", False),
        ("model=other, fsdp_config=settings", "pass", False),
        ("model=model, fsdp_config=settings", "model.state_dict()", True),
    ],
)
def test_what_the_trainer_is_given_is_sharded_below(
    tmp_path: Path, given: str, above: str, *, is_one: bool
) -> None:
    code = "from composer import Trainer\n\n\ndef main(settings, other):\n    model = make()\n"
    code += f"    {above}\n    trainer = Trainer({given})\n    trainer.fit()\n"
    code += "    torch.save(model.state_dict(), p)\n"
    (tmp_path / "train.py").write_text(code)
    found = [use.line for use in scan_paths([tmp_path]).uses if use.code == "FM333"]
    assert found == [9] * is_one


MODEL = (
    "import torch\nfrom composer.models import ComposerModel\n\n\nclass Own(ComposerModel):\n"
    "    def {}:\n        return {}\n"
)
SUMS = "sum(p.norm() for p in self.net.parameters())"


@pytest.mark.parametrize(
    ("method", "body", "code"),
    [
        ("loss(self, outputs, batch)", SUMS, "FM423"),
        ("update_metric(self, batch, outputs, metric)", SUMS, "FM423"),
        ("export_hf(self, path)", "torch.save(self.net.state_dict(), path)", "FM333"),
        ("load(self, path)", "self.net.load_state_dict(torch.load(path))", ""),
        ("forward(self, batch)", "self.net(batch)", ""),
        ("loss(self, outputs, batch)", "outputs.mean()", ""),
    ],
)
def test_what_a_composer_models_methods_see(tmp_path: Path, method: str, body: str, code: str) -> None:
    own = MODEL.format(method, body)
    assert said(tmp_path, own, train_py=CODE) == ({code} if code else set())
    assert said(tmp_path, own, train_py="from composer import Trainer\nt = Trainer(model)\n") == set()


def test_what_a_method_sees_that_the_loss_calls(tmp_path: Path) -> None:
    own = MODEL.format("{}(self, outputs, batch)", "outputs.mean() + self._of_weights()")
    own += f"\n    def _of_weights(self):\n        return {SUMS}\n"
    assert said(tmp_path, own.format("loss"), train_py=CODE) == {"FM423"}
    assert said(tmp_path, own.format("other"), train_py=CODE) == set()


ITEM = "kw = {}\nkw['parallelism_config'] = {'fsdp': settings}\n"
CLASS = "from composer import Trainer\n\n\nclass Mine(Trainer):\n    def __init__(self, **kw):\n"
CLASS += "        kw['fsdp_config'] = {'sharding_strategy': 'FULL_SHARD'}\n        super().__init__(**kw)\n"
MAKES = "trainer = Trainer(model=model, **kw)\n"
INSTANTIATES = "import hydra\ntrainer = hydra.utils.instantiate(cfg.trainer, model=model)\n"
IMPORTS = "from composer import Trainer\n"
CONFIG = "trainer:\n  _target_: composer.Trainer\n  fsdp_config:\n    sharding_strategy: FULL_SHARD\n"


@pytest.mark.parametrize(
    ("makes", "files", "is_one"),
    [
        (IMPORTS + ITEM + MAKES, {}, True),
        (IMPORTS + "kw = {'fsdp_config': settings}\n" + MAKES, {}, True),
        (IMPORTS + "kw = dict(fsdp_config=settings)\n" + MAKES, {}, True),
        ("from mine import Mine\ntrainer = Mine(model=model)\n", {"mine_py": CLASS}, True),
        (INSTANTIATES, {"conf_yaml": CONFIG, "base_py": BASE}, True),
        (IMPORTS + MAKES, {}, False),
        (IMPORTS + ITEM.replace("'fsdp'", "'tp'") + MAKES, {}, False),
        (IMPORTS + ITEM + MAKES.replace(", **kw", ""), {}, False),
        (INSTANTIATES.replace("cfg.trainer", "cfg.optimizer"), {"conf_yaml": CONFIG}, False),
        (INSTANTIATES, {"conf_yaml": CONFIG.replace("fsdp_config", "other")}, False),
    ],
)
def test_settings_that_reach_the_trainer_another_way(
    tmp_path: Path, makes: str, files: dict[str, str], *, is_one: bool
) -> None:
    saves = f"import torch\n{makes}trainer.fit()\ntorch.save(model.state_dict(), p)\n"
    assert ("FM333" in said(tmp_path, saves, **files)) is is_one
    of_trainer = saves.replace("model.state_dict", "trainer.state.model.state_dict")
    assert not is_one or "FM333" in said(tmp_path, of_trainer, **files)


@pytest.mark.parametrize(
    ("settings", "is_asked"),
    [
        ("{'fsdp': {'verbose': True}}", True),
        ("ParallelismConfig(fsdp=FSDPConfig())", True),
        ("{'tp': {'degree': 2}}", False),
        ("ParallelismConfig(fsdp=None)", False),
    ],
)
def test_settings_by_a_name(tmp_path: Path, settings: str, *, is_asked: bool) -> None:
    code = f"from composer import Trainer\npc = {settings}\nt = Trainer(m, seed=1, parallelism_config=pc)\n"
    found = said(tmp_path, OWN.format("Callback", END, SAVES), train_py=code)
    assert found == ({"FM333"} if is_asked else set())


@pytest.mark.parametrize(
    ("test", "is_said"),
    [
        ("state.fsdp_enabled", True),
        ("state.is_model_ddp", False),
        ("not state.fsdp_enabled", False),
        ("not state.is_model_ddp", True),
    ],
)
def test_a_branch_for_what_composer_does_not_shard(tmp_path: Path, test: str, *, is_said: bool) -> None:
    own = OWN.format("Callback", END, f"if {test}:\n            {SAVES}")
    assert said(tmp_path, own, train_py=CODE) == ({"FM333"} if is_said else set())


def test_a_forward_that_a_model_of_composers_calls_itself(tmp_path: Path) -> None:
    own = (
        "from composer import Trainer\nfrom composer.models import ComposerModel\n\n\n"
        "class Own(ComposerModel):\n    def eval_forward(self, batch, outputs=None):\n"
        "        return outputs if outputs is not None else self.forward(batch)\n\n\n"
        "Trainer(model=Own(), parallelism_config={'fsdp': {}})\n"
    )
    assert "FM448" not in said(tmp_path, own)


@pytest.mark.parametrize(
    ("settings", "given", "is_one"),
    [
        (", fsdp_config={'sharding_strategy': 'FULL_SHARD'}", "trainer", True),
        (", fsdp_config={'sharding_strategy': 'FULL_SHARD'}", "other", False),
        ("", "trainer", False),
    ],
)
def test_functions_that_are_given_the_trainer(
    tmp_path: Path, settings: str, given: str, *, is_one: bool
) -> None:
    (tmp_path / "main.py").write_text(
        "from composer import Trainer\nfrom after import finish\n\n\ndef main(net, other):\n"
        f"    trainer = Trainer(model=net{settings})\n    trainer.fit()\n    finish({given})\n"
    )
    (tmp_path / "after.py").write_text(
        "def finish(t):\n    return [p.cpu().numpy() for p in t.state.model.parameters()]\n"
    )
    found = {use.code for use in scan_paths([tmp_path]).uses if use.path.endswith("after.py")}
    assert found == ({"FM423"} if is_one else set())
