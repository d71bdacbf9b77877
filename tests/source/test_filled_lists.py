"""Lists that functions of a project fill with a model's parameters, and objects that keep them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

PICKS = (
    "def pick(model):\n    names, kept = [], []\n    for name, p in model.named_parameters():\n"
    "        names.append(name)\n        kept.append(p)\n    return names, kept\n"
)
KEEPS = (
    "import torch\nclass AmpOptimizer:\n    def __init__(self, optimizer, names, kept):\n"
    "        self.optimizer, self.names = optimizer, names\n        self.kept = kept\n    def step(self):\n"
    "        torch.nn.utils.clip_grad_norm_(self.kept, 1.0)\n        self.optimizer.step()\n"
)
MAIN = (
    "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    "def main(net, null):\n    model = {made}\n    names, kept = pick(model)\n"
    "    opt = AmpOptimizer(torch.optim.AdamW(kept), names=names, kept={given})\n    opt.step()\n"
)


def _codes(folder: Path, files: dict[str, str]) -> set[tuple[str, str]]:
    for name, text in files.items():
        (folder / name).write_text(text)
    wanted = {"rewritten", "commented"}
    return {(use.code, use.text) for use in scan_paths([folder]).uses if use.action in wanted}


@pytest.mark.parametrize(
    ("made", "given", "is_said"),
    [
        ("FSDP(net, use_orig_params=True)", "kept", True),
        ("(FSDP if sharded else null)(net)", "kept", True),
        ("null(net)", "kept", False),
        ("FSDP(net, use_orig_params=True)", "names", False),
    ],
)
@pytest.mark.parametrize("is_one_file", [True, False])
def test_a_list_that_an_object_clips(
    tmp_path: Path, made: str, given: str, *, is_said: bool, is_one_file: bool
) -> None:
    main = MAIN.format(made=made, given=given)
    files = {"main.py": f"{PICKS}{KEEPS}{main}"}
    if not is_one_file:
        imports = "from a import pick\nfrom b import AmpOptimizer\n"
        files = {"main.py": f"{imports}{main}", "a.py": PICKS, "b.py": KEEPS}
    found = _codes(tmp_path, files)
    assert any(code == "FM326" and "self.kept" in text for code, text in found) is is_said
    assert "FM445" not in {code for code, _ in found}


STEPPER = """\
import torch
class Stepper:
    def __init__(self, optimizer, model):
        self.optimizer, self.model = optimizer, model
        self.clip = torch.nn.utils.clip_grad_norm_
    def parameters_of(self):
        return [p for p in self.model.parameters() if p.requires_grad]
    def step(self, hook):
        {body}
        hook(self)
"""
HOOK = """\
import torch
def hook(stepper):
    torch.nn.utils.clip_grad_norm_(stepper.parameters_of(), 1.0)  # by the object
"""
RUN = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from a import Stepper
from b import hook
def main(net, null):
    model = {made}
    stepper = Stepper(torch.optim.AdamW(model.parameters()), model)
    stepper.step(hook)
    hook(stepper)
"""
OF_GROUPS = "self.optimizer.param_groups"
FILLED = (
    f"kept = []\n        for g in {OF_GROUPS}:\n            kept.extend(g['params'])\n"
    "        self.clip(kept, 1.0)"
)


@pytest.mark.parametrize(
    ("made", "is_said"), [("FSDP(net, use_orig_params=True)", True), ("null(net)", False)]
)
@pytest.mark.parametrize(
    "body",
    [
        "self.clip(self.model.parameters(), 1.0)",
        f"torch.nn.utils.clip_grad_norm_([p for g in {OF_GROUPS} for p in g['params']], 1.0)",
        FILLED,
    ],
)
def test_what_an_object_holds_and_clips(tmp_path: Path, body: str, made: str, *, is_said: bool) -> None:
    files = {"a.py": STEPPER.format(body=body), "b.py": HOOK, "main.py": RUN.format(made=made)}
    found = [text for code, text in _codes(tmp_path, files) if code == "FM326"]
    assert len(found) == (2 if is_said else 0)


def test_the_state_of_an_optimizer_that_an_object_holds_is_still_looked_at(tmp_path: Path) -> None:
    holds = (
        "class Hybrid:\n    def __init__(self, o):\n        self.muon_opt = o\n    def state_dict(self):\n"
        "        return {'muon': self.muon_opt.state_dict()}\ndef build(model):\n    kept = []\n"
        "    for name, p in model.named_parameters():\n        kept.append(p)\n"
        "    return Hybrid(torch.optim.AdamW(kept))\n"
    )
    main = MAIN.partition("def main")[0] + "from a import build\nmodel = FSDP(net)\nopt = build(model)\n"
    (tmp_path / "a.py").write_text(f"import torch\n{holds}")
    (tmp_path / "main.py").write_text(main)
    found = {(use.code, use.text) for use in scan_paths([tmp_path]).uses}
    assert {"FM425", "FM450"} & {code for code, text in found if text == "self.muon_opt.state_dict()"}


def test_a_model_that_is_sharded_itself_is_so_whatever_its_parts_are(tmp_path: Path) -> None:
    wrap = (
        "def wrap(model):\n    model = FSDP(model)\n    model.layers = FSDP(model.layers)\n    return model\n"
    )
    start = MAIN.partition("def main")[0]
    (tmp_path / "a.py").write_text(f"{start}{wrap}")
    (tmp_path / "main.py").write_text("from a import wrap\nmodel = wrap(net)\nmodel.state_dict()\n")
    found = {use.code for use in scan_paths([tmp_path]).uses if use.text == "model.state_dict()"}
    assert found == {"FM308"}
