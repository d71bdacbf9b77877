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
