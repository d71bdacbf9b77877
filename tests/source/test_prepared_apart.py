"""Where a script hands Accelerate models without their optimizers, beside a config that asks for FSDP."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from fsdp_migrate.source.asked_around import ASKS_HF, asked_around, configs_elsewhere, configs_unknown
from fsdp_migrate.source.pins import packages_of
from fsdp_migrate.source.prepared_apart import PreparedApart, find_prepared_apart
from fsdp_migrate.source.steps import next_steps
from fsdp_migrate.source.uses import ScanReport


if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.any_torch

_CODE = re.compile(r": (FM\d{3}) \(")

LATER = "optimizer = accelerator.prepare(torch.optim.AdamW(parameters))\n"


@pytest.mark.parametrize(
    ("call", "lines"),
    [
        ("model = accelerator.prepare(model)\n", [1]),
        ("encoder = self.accelerator.prepare(encoder)\n", [1]),
        ("encoder, opt = accelerator.prepare(encoder, opt)\n", []),
        (
            "if accelerator.distributed_type != DistributedType.FSDP:\n    e = accelerator.prepare(net_e)\n",
            [],
        ),
        ("loader, dataset = accelerator.prepare(loader, dataset)\n", []),
        ("broken = accelerator.prepare(encoder\n", []),
    ],
)
def test_calls_are_found_by_what_they_are_given(tmp_path: Path, call: str, lines: list[int]) -> None:
    path = tmp_path / "train.py"
    path.write_text(call + LATER.replace("accelerator.prepare", ""))
    assert find_prepared_apart([tmp_path]).trained == tuple(f"{path}:{line}" for line in lines)


@pytest.mark.parametrize(
    "call",
    [
        "encoder, teacher = accelerator.prepare(encoder, teacher)\n",
        "clip_model, siglip_model = accelerator.prepare(\n    clip_model, siglip_model\n)\n",
        "x, y = accelerator.prepare(*[model, critic])\n",
    ],
)
def test_several_models_in_a_call_have_a_step_of_their_own(tmp_path: Path, call: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(call + LATER.replace("accelerator.prepare", ""))
    found = find_prepared_apart([tmp_path])
    assert (found.several, found.trained) == ((f"{path}:1",), ())
    path.write_text(f"{call}model.generate(tokens)\n")
    assert find_prepared_apart([tmp_path]).untrained == (f"{path}:1",)


OF_BOTH = "optimizer = AdamW(list(midi.parameters()) + list(vlm.parameters()))\n"
ALONE_LATER = "optimizer, loader = accelerator.prepare(optimizer, loader)\n"


@pytest.mark.parametrize(
    ("code", "several", "trained"),
    [
        (f"midi, vlm = accelerator.prepare(midi, vlm)\n{OF_BOTH}{ALONE_LATER}", [1, 3], []),
        (f"midi = accelerator.prepare(midi)\nvlm = accelerator.prepare(vlm)\n{OF_BOTH}", [1, 2], []),
        ("m, v, o = accelerator.prepare(midi, vlm, optimizer)\nmidi(x)\nvlm(x)\n", [1], []),
        # An optimizer of one model, and of one that nothing prepares.
        (
            f"midi = accelerator.prepare(midi)\noptimizer = AdamW(midi.parameters())\n{ALONE_LATER}",
            [],
            [1, 3],
        ),
        (f"midi = accelerator.prepare(midi)\n{OF_BOTH}", [], [1]),
    ],
)
def test_models_of_one_optimizer_are_not_told_to_go_each_with_theirs(
    tmp_path: Path, code: str, several: list[int], trained: list[int]
) -> None:
    path = tmp_path / "train.py"
    path.write_text(code)
    found = find_prepared_apart([tmp_path])
    assert found.several == tuple(f"{path}:{line}" for line in several)
    assert found.trained == tuple(f"{path}:{line}" for line in trained)
    assert (found.untrained, found.unclear, found.held) == ((), (), ())


TRAINED_BESIDE = "optimizer = AdamW(model.parameters())\n"
REFERENCE = "ref = accelerator.prepare_model(ref)\n"


@pytest.mark.parametrize(
    ("code", "is_trained"),
    [
        # Frozen, or switched to `eval()` there, or held by none of the optimizers that are made.
        (f"ref.requires_grad_(False)\n{REFERENCE}optimizer = make(config)\n", False),
        (f"for p in ref.parameters():\n    p.requires_grad = False\n{REFERENCE}optim = load()\n", False),
        (f"{REFERENCE}ref.eval()\noptimizer.step()\n", False),
        (f"{REFERENCE}{TRAINED_BESIDE}", False),
        (f"{REFERENCE}dataset = Data(model=ref)\n{TRAINED_BESIDE}", False),
        (f"{REFERENCE}{TRAINED_BESIDE}train(model, ref=ref, optimizer=optimizer)\n", False),
        # It is trained, or may be: by an optimizer that is not seen, in another model, by an adapter.
        (f"{REFERENCE}optimizer = AdamW(ref.parameters())\n", True),
        (f"{REFERENCE}optimizer = make_optimizer(ref)\n", True),
        (f"{REFERENCE}optimizer = make_optimizer(config)\n", True),
        (f"{REFERENCE}model = Both(ref, head)\n{TRAINED_BESIDE}", True),
        (f"{REFERENCE}optimizer = make(config)\ntrain(ref, optimizer)\nref.eval()\n", True),
        (f"{REFERENCE}optimizer = AdamW(ref.parameters())\ntrain(model, ref, optimizer)\n", True),
        (f"{REFERENCE}{TRAINED_BESIDE}train(ref)\n", True),
        (f"{REFERENCE}{TRAINED_BESIDE}make_optimizer(ref, optimizer)\n", True),
        (f"{REFERENCE}ref.eval()\noptimizer.step()\nref.train()\n", True),
        (f"ref.requires_grad_(False)\nref = get_peft_model(ref)\n{REFERENCE}optimizer = make()\n", True),
        (f"ref.requires_grad_(False)\nref.add_adapter(lora)\n{REFERENCE}optimizer = make()\n", True),
        (f"if x:\n    ref.eval()\n{REFERENCE}optimizer.step()\n", True),
        (f"def other(ref):\n    ref.eval()\n{REFERENCE}optimizer.step()\n", True),
    ],
)
def test_a_model_that_is_not_trained_beside_one_that_is(
    tmp_path: Path, code: str, *, is_trained: bool
) -> None:
    path = tmp_path / "train.py"
    path.write_text(code)
    line = code[: code.index(REFERENCE)].count("\n") + 1
    found = find_prepared_apart([tmp_path])
    assert found.trained == ((f"{path}:{line}",) if is_trained else ())
    assert found.untrained == (() if is_trained else (f"{path}:{line}",))


def test_a_frozen_model_that_a_class_keeps(tmp_path: Path) -> None:
    path, kept = tmp_path / "train.py", "class Run:\n    def start(self):\n        self.t = make()\n{}{}"
    prepares = "        self.t = self.accelerator.prepare_model(self.t)\n        self.opt.step()\n"
    path.write_text(kept.format("        self.t.requires_grad_(False)\n", prepares))
    assert find_prepared_apart([tmp_path]).untrained == (f"{path}:5",)
    trains = "    def run(self):\n        self.t.train()\n"
    path.write_text(kept.format("        self.t.requires_grad_(False)\n", prepares) + trains)
    assert find_prepared_apart([tmp_path]).trained == (f"{path}:5",)


HEADS = "optimizer = AdamW(chain(model.parameters(), {}.parameters()))\n"
BOTH = "model, optimizer = accelerator.prepare(model, optimizer)\n"
SECOND = "critic, critic_opt = accelerator.prepare(critic, critic_opt)\n"


@pytest.mark.parametrize(
    ("code", "held", "second"),
    [
        (HEADS.format("head") + BOTH, [2], []),
        (HEADS.format("model.head") + BOTH, [], []),
        (BOTH + SECOND, [], [2]),
        (BOTH + BOTH, [], []),
        (f"if own:\n    {BOTH}else:\n    {SECOND}", [], []),
    ],
)
def test_calls_that_stop_though_a_model_and_its_optimizer_are_given(
    tmp_path: Path, code: str, held: list[int], second: list[int]
) -> None:
    path = tmp_path / "train.py"
    path.write_text(code)
    found = find_prepared_apart([tmp_path])
    assert found.held == tuple(f"{path}:{line}" for line in held)
    assert found.second == tuple(f"{path}:{line}" for line in second)
    assert (found.trained, found.untrained, found.unclear) == ((), (), ())


ALONE = "model = accelerator.prepare(model)\n"
TRAINS = "loss.backward()\n"


@pytest.mark.parametrize(
    ("name", "code", "kind"),
    [
        ("train.py", f"{ALONE}{LATER}", "trained"),
        ("serve.py", f"{ALONE}model.generate(tokens)\n", "untrained"),
        ("serve.py", f"assert 'OPT' in name\n{ALONE}model.generate(tokens)\n", "untrained"),
        ("serve.py", f"opt = Lion(model.parameters())\n{ALONE}model.generate(tokens)\n", "trained"),
        ("probe.py", f"{ALONE}model(tokens)\n", "unclear"),
        ("probe.py", f"{ALONE}{TRAINS}", "unclear"),
        ("tests/test_probe.py", f"def test_probe():\n    {ALONE}    {TRAINS}", None),
        ("test_model.py", f"{ALONE}model.generate(tokens)\n", "untrained"),
    ],
)
def test_what_a_file_without_an_optimizer_is_told(
    tmp_path: Path, name: str, code: str, kind: str | None
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(code)
    found = find_prepared_apart([tmp_path])
    told = {each: getattr(found, each) for each in ("trained", "untrained", "unclear")}
    assert {each for each, places in told.items() if places} == ({kind} if kind else set())


@pytest.mark.parametrize(
    ("code", "frameworks", "expected"),
    [
        ('args = TrainingArguments("o", fsdp="full_shard auto_wrap")\n', ["hf"], False),
        ("model = FSDP(model)\n", [], False),
        ("plugin = FullyShardedDataParallelPlugin(use_orig_params=True)\n", [], True),
        ('os.environ["ACCELERATE_USE_FSDP"] = "true"\n', [], True),
        ("print()\n", ["hf, accelerate"], True),
        ("print()\n", [""], True),
    ],
)
def test_whether_anything_asks_accelerate_for_fsdp(
    tmp_path: Path, code: str, frameworks: list[str], *, expected: bool
) -> None:
    imports = (
        "import os\nfrom accelerate import FullyShardedDataParallelPlugin\n"
        "from transformers import TrainingArguments\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    )
    (tmp_path / "train.py").write_text(f"{imports}{code}")
    (tmp_path / "other.py").write_text(f"{ALONE}{LATER}")
    found = find_prepared_apart([tmp_path], scan_paths([tmp_path]), frameworks)
    assert bool(found.trained) is expected


LAUNCHED = "#!/bin/bash\n# first\naccelerate launch --config_file {} train.py\n"
PREPARES = f"from accelerate import Accelerator\naccelerator = Accelerator()\n{ALONE}{LATER}"


@pytest.mark.parametrize(
    ("launch", "beside", "is_asked"),
    [
        ("conf/FSDP.yaml", {}, True),
        ("conf/FSDP.yaml", {"conf/FSDP.yaml": "distributed_type: MULTI_GPU\n"}, False),
        ("conf/fsdp2.yaml", {}, False),
        ("conf/ddp.yaml", {}, False),
        ("conf/ddp.yaml", {"left.py": "remove('pytorch_model_fsdp.bin')\n"}, True),
    ],
)
def test_a_source_that_is_taken_for_accelerates_without_its_config(
    tmp_path: Path, launch: str, beside: dict[str, str], *, is_asked: bool
) -> None:
    for name, text in {"train.py": PREPARES, "job.sh": LAUNCHED.format(launch), **beside}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    report = scan_paths([tmp_path])
    assert bool(find_prepared_apart([tmp_path], report, []).trained) is is_asked
    assert ("accelerate" in packages_of(report, [])) is is_asked
    told = [f"{launch} ({tmp_path / 'job.sh'}:3)"] if launch == "conf/FSDP.yaml" and not beside else []
    assert configs_elsewhere([tmp_path]) == told
    steps = [each.text for each in next_steps([], report, [], [], elsewhere=told)]
    assert any(f"not in these folders: {launch}" in each for each in steps) is bool(told)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ('FSDP_CONFIG="conf/fsdp.yaml"\n{}${{FSDP_CONFIG}} train.py\n', None),
        ("export FSDP_CONFIG=conf/fsdp.yaml  # ours\n{}$FSDP_CONFIG train.py\n", None),
        ("FSDP_CONFIG=${{1:-conf/fsdp.yaml}}\n{}$FSDP_CONFIG train.py\n", None),
        ('FSDP_CONFIG="${{FSDP_CONFIG:-$ROOT/conf/fsdp.yaml}}"\n{}"$FSDP_CONFIG" train.py\n', None),
        ("FSDP=fsdp\n{}conf/${{FSDP}}.yaml train.py\n", None),
        ("if x; then\n  FSDP=conf/fsdp.yaml\nelse\n  FSDP=a/fsdp.yaml\nfi\n{}$FSDP train.py\n", None),
        # The script writes it.
        ('FSDP=/tmp/fsdp_$$.yaml\ncat > "${{FSDP}}" <<E\na: b\nE\n{}"$FSDP" train.py\n', None),
        ("make_config | tee $OUT/fsdp9.yaml\n{}$OUT/fsdp9.yaml train.py\n", None),
        # It is not here, or not said, or one of two is not here.
        ("FSDP=/tmp/fsdp_$$.yaml\ncat > $FSDP_LOG\n{}$FSDP train.py\n", "$FSDP"),
        ("FSDP_CONFIG=conf/fsdp8.yaml\n{}$FSDP_CONFIG train.py\n", "conf/fsdp8.yaml"),
        ("FSDP=conf/fsdp.yaml\nFSDP=a/my_fsdp.yaml\n{}$FSDP train.py\n", "a/my_fsdp.yaml"),
        ("FSDP_CONFIG=$1\n{}$FSDP_CONFIG train.py\n", "$FSDP_CONFIG"),
        ("MY_FSDP_CONFIG=conf/fsdp.yaml\n{}$FSDP_CONFIG train.py\n", "$FSDP_CONFIG"),
        ("# FSDP_CONFIG=conf/fsdp.yaml\n{}$FSDP_CONFIG train.py\n", "$FSDP_CONFIG"),
    ],
)
def test_a_config_that_a_variable_of_the_script_names(tmp_path: Path, script: str, told: str | None) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "fsdp.yaml").write_text("distributed_type: FSDP\n")
    text = script.format("accelerate launch --config_file ")
    (tmp_path / "job.sh").write_text(text)
    line = text[: text.index("accelerate")].count("\n") + 1
    expected = [] if told is None else [f"{told} ({tmp_path / 'job.sh'}:{line})"]
    assert configs_elsewhere([tmp_path]) == expected
    assert asked_around([tmp_path / "job.sh"], ASKS_HF)


@pytest.mark.parametrize(
    ("launch", "beside", "is_told"),
    [
        ("configs/a.yaml", {"left.py": "import accelerate\nremove('pytorch_model_fsdp.bin')\n"}, True),
        ("configs/a.yaml", {"other.sh": "accelerate launch --use_fsdp train.py\n"}, True),
        (
            "../a.yaml",
            {"left.py": "from transformers import Trainer\nif trainer.is_fsdp_enabled: pass\n"},
            True,
        ),
        # Nothing speaks of FSDP, or not under Accelerate, or the config is here, or it is another engine's.
        ("configs/a.yaml", {}, False),
        ("configs/a.yaml", {"left.py": "import accelerate\n# fsdp\n"}, False),
        ("configs/a.yaml", {"left.py": "import torch.distributed.fsdp\n"}, False),
        ("configs/a.yaml", {"configs/a.yaml": "distributed_type: NO\n", "l.py": "import trl, fsdp\n"}, False),
        ("configs/$NAME.yaml", {"l.py": "import trl, fsdp\n"}, False),
        ("configs/ds_zero2.yaml", {"l.py": "import trl, fsdp\n"}, False),
        ("configs/FSDP.yaml", {"l.py": "import trl, fsdp\n"}, False),
    ],
)
def test_a_config_whose_name_says_nothing_and_that_is_not_here(
    tmp_path: Path, launch: str, beside: dict[str, str], *, is_told: bool
) -> None:
    for name, text in {"train.py": PREPARES, "job.sh": LAUNCHED.format(launch), **beside}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    told = configs_unknown([tmp_path])
    assert told == ([f"{launch} ({tmp_path / 'job.sh'}:3)"] if is_told else [])
    steps = [each.text for each in next_steps([], scan_paths([tmp_path]), [], [], unknown=told)]
    assert any(f"not in these folders: {launch}" in each for each in steps) is is_told


def test_each_step_of_what_accelerate_is_given_names_its_code() -> None:
    """So that ``explain`` can be asked about it."""
    names = [each.name for each in fields(PreparedApart)]
    found = PreparedApart(**{name: (f"{name}.py:1",) for name in names})
    steps = [each.text for each in next_steps([], ScanReport((), 0), [], [], apart=found)]
    codes = {name: code for name in names for text in steps for code in _CODE.findall(text) if name in text}
    assert codes == {
        **dict.fromkeys(("trained", "several", "untrained", "unclear", "held", "second"), "FM449"),
        **dict.fromkeys(("not_loaded", "torn", "ignored"), "FM343"),
    }


def test_an_optimizer_of_another_method_does_not_make_a_model_a_trained_one(tmp_path: Path) -> None:
    lines = [
        "class Run:",
        "    def train(self):",
        "        optimizer = torch.optim.Adam(model.parameters())",
    ]
    lines += [
        "    def encode(self):",
        "        model = make()",
        "        self.model = accelerator.prepare(model)",
    ]
    (tmp_path / "run.py").write_text("from accelerate import Accelerator\n" + "\n".join(lines) + "\n")
    (tmp_path / "fsdp.yaml").write_text("distributed_type: FSDP\n")
    found = find_prepared_apart([tmp_path])
    assert (found.trained, found.unclear) == ((), (f"{tmp_path / 'run.py'}:7",))
    (tmp_path / "run.py").write_text(
        (tmp_path / "run.py").read_text().replace("Adam(model", "Adam(self.model")
    )
    found = find_prepared_apart([tmp_path])
    assert (found.trained, found.unclear) == ((f"{tmp_path / 'run.py'}:7",), ())
