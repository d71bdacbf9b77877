"""An assignment that says of which type a name is means what a plain one means."""

from __future__ import annotations

import ast
import functools
import os
from typing import TYPE_CHECKING, Any

import libcst as cst
import pytest

from fsdp_migrate.source import rewrite_source, scan_paths, scan_source
from tests.ranks import ROOT
from tests.source import idioms
from tests.source.projects import FSDP, LOOP as TRAIN, after
from tests.source.samples import IMPORTS, codes, turned


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


SCRIPTS = {path.name: path.read_text() for path in (ROOT / "tests" / "source" / "scripts").glob("*.py.txt")}
SOURCES = {**SCRIPTS, **idioms.SOURCES}
SAID = ": object"


class _Annotated(cst.CSTTransformer):
    """Says of each name that one assignment gives a value that it is an object; not in a class's own body."""

    def __init__(self) -> None:
        super().__init__()
        self.around: list[cst.CSTNode] = []
        self.others: set[str] = set()

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, (cst.ClassDef, cst.FunctionDef)):
            self.around.append(node)
        elif isinstance(node, cst.Global):
            self.others |= {each.name.value for each in node.names}
        return True

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        if self.around and original_node is self.around[-1]:
            self.around.pop()
        in_class = bool(self.around) and isinstance(self.around[-1], cst.ClassDef)
        if not isinstance(updated_node, cst.Assign) or in_class or len(updated_node.targets) > 1:
            return updated_node
        target = updated_node.targets[0].target
        is_others = isinstance(target, cst.Name) and target.value in self.others
        if is_others or not isinstance(target, (cst.Name, cst.Attribute)):
            return updated_node
        kind = cst.Annotation(cst.Name("object"))
        return cst.AnnAssign(target, kind, updated_node.value, semicolon=updated_node.semicolon)


@functools.cache
def annotated(text: str) -> str:
    after = cst.parse_module(text).visit(_Annotated()).code
    ast.parse(after)
    assert after.count(SAID) > 2
    return after


def found(text: str) -> list[tuple[str, int, str]]:
    return [(each.code, each.line, each.action) for each in scan_source(text)]


@pytest.mark.parametrize("name", SOURCES)
def test_types_of_names_change_nothing_that_is_found(name: str) -> None:
    text = SOURCES[name]
    assert SAID not in text
    wanted = found(text)
    assert wanted
    assert found(annotated(text)) == wanted


@pytest.mark.parametrize("name", SOURCES)
def test_types_of_names_stay_where_their_lines_are_rewritten(name: str) -> None:
    text = SOURCES[name]
    after = rewrite_source(annotated(text))
    ast.parse(after)
    assert after.replace(SAID, "") == rewrite_source(text)


def test_types_of_names_change_nothing_in_a_project(tmp_path: Path) -> None:
    plain, typed = (_scanned(tmp_path / kind, kind == "typed") for kind in ("plain", "typed"))
    assert typed == plain
    assert {code for _, _, code, _ in plain} >= {"FM302", "FM326", "FM423", "FM425", "FM446"}


def _scanned(folder: Path, is_typed: bool) -> list[tuple[str, int, str, str]]:
    for name, text in idioms.PROJECT.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(annotated(text) if is_typed else text)
    uses = scan_paths([folder], num_processes=1).uses
    return sorted((os.path.relpath(each.path, folder), each.line, each.code, each.action) for each in uses)


SAVED = """
class Trainer:
    def __init__(self, model):
        self.model{} = FSDP(model)

    def save(self, path):
        state{} = {"model": self.model.state_dict()}
        torch.save(state, path)
"""
SCALED = """
model = FSDP(net)
optimizer{} = torch.optim.AdamW(model.parameters())
scaler{} = GradScaler(enabled=False)
scaler.scale(model(x).sum()).backward()
scaler.step(optimizer)
"""
MADE_FIRST = """
def main(net):
    model{} = net.cuda()
    optimizer{} = torch.optim.AdamW(model.parameters())
    model{} = FSDP(model, use_orig_params=True)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (SAVED, [("FM301", "rewritten"), ("FM308", "rewritten")]),
        (SCALED, [("FM301", "rewritten"), ("FM314", "kept")]),
        (MADE_FIRST, [("FM301", "rewritten"), ("FM326", "rewritten")]),
    ],
)
def test_what_a_typed_name_holds_is_seen(body: str, wanted: list[tuple[str, str]]) -> None:
    header = f"from torch.cuda.amp import GradScaler\n{IMPORTS}"
    for said in ("", ": object", ": 'dict[str, object]'"):
        assert codes(body.replace("{}", said), header) == wanted, said


CONTEXT = """model = FSDP(net)
config: FullStateDictConfig = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
    state : dict[str, object]  = model.state_dict()
"""


def test_a_config_goes_with_its_type_where_nothing_reads_it() -> None:
    after = turned(CONTEXT)
    assert "\n    state" not in after
    assert "\nstate : dict[str, object]  = get_model_state_dict(model" in after
    assert "FullStateDictConfig" not in turned(
        CONTEXT, IMPORTS.replace("    FullOptimStateDictConfig,\n", "")
    )
    # What else reads it keeps it, type and all.
    assert "\nconfig: FullStateDictConfig = FullStateDictConfig(" in turned(f"{CONTEXT}print(config)\n")


FIELDS = """
@dataclasses.dataclass
class Run:
    strategy: ShardingStrategy = ShardingStrategy.FULL_SHARD
    model: FSDP = None

    def clip(self):
        self.model.clip_grad_norm_(1.0)
"""


def test_fields_of_classes_keep_the_types_that_they_say() -> None:
    assert codes(FIELDS) == [("FM305", "rewritten"), ("FM311", "rewritten")]
    assert "    model: FSDPModule = None\n" in turned(FIELDS)


def test_a_type_without_a_value_gives_none() -> None:
    body = "model: FSDP\nmodel = net\npayload: dict\nclip_grad_norm_(model.parameters(), 1.0)\n"
    assert [each for each in codes(body) if each[0] != "FM305"] == codes(body.partition("\n")[2])


LOOP = """\
import torch
from wrapping import wrap

class Loop:
    def __init__(self, net, params):
        {}

    def clip(self):
        torch.nn.utils.clip_grad_norm_(self.params, 1.0)
"""
GIVEN = (
    "from loop import Loop\n\ndef main(net):\n    loop = Loop(net, list(net.parameters()))\n    loop.clip()\n"
)


@pytest.mark.parametrize(
    ("line", "is_said"),
    [
        ("self.net = wrap(net); self.params = params", True),
        ("self.net, self.params = wrap(net), params", True),
        ("(self.params, self.net) = [params, wrap(net)]", True),
        ("self.net, self.params = net, params", False),
        ("self.net, self.params = wrap(net), list(self.net.parameters())", False),
    ],
)
def test_names_that_one_line_gives_values_are_followed_one_by_one(
    tmp_path: Path, line: str, *, is_said: bool
) -> None:
    wrapping = f"{FSDP}def wrap(net):\n    return FSDP(net)\n"
    for name, text in {"wrapping": wrapping, "loop": LOOP.format(line), "train": GIVEN}.items():
        (tmp_path / f"{name}.py").write_text(text)
    uses = scan_paths([tmp_path], num_processes=1).uses
    lines = [each.line for each in uses if each.code == "FM446" and each.path.endswith("train.py")]
    assert lines == ([4] if is_said else [])


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("    model = wrap(net)\n    train(model)\n", True),
        ("    if (model := wrap(net)) is not None:\n        train(model)\n", True),
        ("    print(model := wrap(net))\n    train(model)\n", True),
        ("    if (model := net) is not None:\n        train(model)\n", False),
    ],
)
def test_names_within_a_line_are_followed_to_other_files(tmp_path: Path, body: str, *, is_said: bool) -> None:
    main = f"from wrapping import wrap\nfrom loop import train\n\ndef main(net):\n{body}"
    wrapping = f"{FSDP}def wrap(net):\n    return FSDP(net)\n"
    found = after(tmp_path, {"wrapping.py": wrapping, "main.py": main, "loop.py": TRAIN}, "loop.py")
    assert ("    clip_grad_norm_(model, 1.0)\n" in found) == is_said
