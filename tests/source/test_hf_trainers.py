"""Methods of Hugging Face's Trainers and callbacks that see the sharded model, where FSDP is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import after
from tests.source.samples import comments, last


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

TAKEN = "from transformers import TrainingArguments\n"
ASKS = (
    "from transformers import TrainingArguments\n"
    "arguments = TrainingArguments(output_dir='x', fsdp='full_shard auto_wrap')\n"
)
OWN = (
    "import torch\nfrom transformers import Trainer, TrainerCallback\nfrom helpers import use\n\n\n"
    "class Own({}):\n    def {}:\n        {}\n"
)
FOR_FSDP = (
    "used = self.accelerator.distributed_type {} DistributedType.FSDP\n"
    "        if used:\n            self.gather()\n"
    "        else:\n            x = [p.numel() for p in self.model.parameters()]"
)
HELPERS = (
    "def use(model):\n    return model.module\n\n\ndef run(trainer):\n    return trainer.model.state_dict()\n"
)
TRAINS = (
    "import transformers\nfrom helpers import run\n\n\n"
    "def main(args):\n    model = transformers.AutoModel.from_pretrained('x')\n{}"
    "    trainer = transformers.Trainer(model=model, args=args)\n{}    trainer.train()\n{}"
)


def said(folder: Path, files: dict[str, str], asks: str = ASKS) -> dict[str, set[str]]:
    """Return the codes that are said of each file but that which asks for FSDP, by its name."""
    for name, text in {"asks.py": asks, "helpers.py": HELPERS, **files}.items():
        (folder / name).write_text(text)
    found: dict[str, set[str]] = {}
    for use in (each for each in scan_paths([folder]).uses if each.action != "unclear"):
        name = use.path.rpartition("/")[2]
        if name != "asks.py":
            found.setdefault(name, set()).add(use.code)
    return found


def of_method(folder: Path, method: str, body: str, base: str = "Trainer") -> set[str]:
    return said(folder, {"own.py": OWN.format(base, method, body)}).get("own.py", set())


@pytest.mark.parametrize(
    ("method", "body", "code"),
    [
        ("compute_loss(self, model, inputs)", "return model.module(**inputs)", "FM333"),
        ("compute_loss(self, net, inputs)", "return net.module(**inputs)", "FM333"),
        ("compute_loss(self, model, inputs)", "torch.save(self.model.state_dict(), p)", "FM333"),
        (
            "training_step(self, model, inputs)",
            "torch.nn.utils.clip_grad_norm_(model.parameters(), 1)",
            "FM326",
        ),
        (
            "training_step(self, model, inputs)",
            "x = [p.grad.norm() for p in self.model_wrapped.parameters()]",
            "FM423",
        ),
        ("_save_checkpoint(self, model, trial)", "self.model.save_pretrained(p)", "FM333"),
        ("save_model(self, p)", "self.model.save_pretrained(p)", "FM333"),
        ("_save(self, p, state_dict=None)", "self.model.save_pretrained(p)", "FM333"),
        ("_save(self, p, state_dict=None)", "self.model.save_pretrained(p, state_dict=state_dict)", ""),
        ("_save(self, p, state_dict=None)", "x = self.model.state_dict() if state_dict is None else 1", ""),
        ("_save(self, p, state_dict=None)", "state_dict = state_dict or self.model.state_dict()", ""),
        ("save_model(self, p)", "x = self.model.state_dict() if self.is_deepspeed_enabled else 1", ""),
        ("save_model(self, p)", "x = 1 if self.is_fsdp_enabled else self.model.state_dict()", ""),
        ("training_step(self, m, i)", FOR_FSDP.format("=="), ""),
        ("training_step(self, m, i)", FOR_FSDP.format("!="), "FM334"),
        ("create_optimizer(self)", "x = [p for p in self.model.parameters() if p.ndim > 1]", "FM318"),
        ("create_optimizer(self, model)", "x = [p for p in model.parameters() if p.ndim > 1]", "FM318"),
        (
            "create_optimizer(self)",
            "import timm; x = timm.optim.param_groups_weight_decay(self.model)",
            "FM318",
        ),
        ("create_optimizer(self)", "x = [p for n, p in self.model.named_parameters() if 'bias' in n]", ""),
        (
            "create_optimizer(self)",
            "x = [p for n, p in self.model.named_parameters() if 'h.0.mlp' in n]",
            "FM318",
        ),
        ("create_optimizer(self)", "x = [p for n, p in self.model.named_parameters() if 'h.0.' in n]", ""),
        ("create_optimizer(self)", "x = self.model.state_dict()", ""),
        ("get_train_dataloader(self)", "x = self.model.state_dict()", ""),
        ("__init__(self, model)", "self.names = list(self.model.state_dict())", ""),
        ("own(self)", "return self.model.state_dict()", ""),
    ],
)
def test_methods_of_a_trainer_see_the_model_before_or_after_it_is_sharded(
    tmp_path: Path, method: str, body: str, code: str
) -> None:
    assert of_method(tmp_path, method, body) == ({code} if code else set())
    assert of_method(tmp_path, method, body, "Other") == set()


@pytest.mark.parametrize(
    ("method", "body", "code"),
    [
        ("on_step_end(self, args, state, control, model=None, **kwargs)", "x = model.state_dict()", "FM333"),
        ("on_save(self, args, state, control, **kwargs)", "kwargs['model'].save_pretrained(p)", "FM333"),
        ("on_save(self, args, state, control, **rest)", "rest.get('model').save_pretrained(p)", "FM333"),
        ("on_log(self, args, state, control, **kwargs)", "x = kwargs.pop('model').module", "FM333"),
        ("on_save(self, args, state, control, **kwargs)", "kwargs['tokenizer'].save_pretrained(p)", ""),
        ("on_init_end(self, args, state, control, model=None, **kwargs)", "x = model.state_dict()", ""),
    ],
)
def test_callbacks_are_given_the_sharded_model(tmp_path: Path, method: str, body: str, code: str) -> None:
    assert of_method(tmp_path, method, body, "TrainerCallback") == ({code} if code else set())
    assert of_method(tmp_path, method, body, "Other") == set()


def test_a_class_of_another_file_is_a_trainer_as_its_base_is(tmp_path: Path) -> None:
    base = "from trl import SFTTrainer\n\n\nclass Base(SFTTrainer):\n    pass\n"
    own = OWN.format("Base", "compute_loss(self, model, inputs)", "use(model)").replace(
        "from helpers", "from base import Base\nfrom helpers"
    )
    assert said(tmp_path, {"base.py": base, "own.py": own}) == {"helpers.py": {"FM333"}}


def test_comments_name_what_there_is_in_a_trainer_and_in_a_callback(tmp_path: Path) -> None:
    own = OWN.format("Trainer", "log(self, logs)", "torch.save(self.model.state_dict(), p)")
    on_save = OWN.format("TrainerCallback", "on_save(self, a, s, c, model, **k)", "x = model.state_dict()")
    files = {"asks.py": ASKS, "own.py": own, "saves.py": on_save, "helpers.py": HELPERS}
    assert "self.accelerator.get_state_dict(self.model), on every rank" in after(tmp_path, files, "own.py")
    assert "get_model_state_dict(model, options=" in (tmp_path / "saves.py").read_text()


@pytest.mark.parametrize(
    ("before", "between", "behind", "expected"),
    [
        ("", "", "    model.save_pretrained(p)\n", {"train.py"}),
        ("", "", "    run(trainer)\n", {"helpers.py"}),
        ("", "", "    run(trainer=trainer)\n", {"helpers.py"}),
        ("", "", "    trainer.model.save_pretrained(p)\n", {"train.py"}),
        ("    model.save_pretrained(p)\n", "    run(trainer)\n", "    trainer.save_model(p)\n", set()),
        ("", "", "    model = other()\n    model.save_pretrained(p)\n", set()),
    ],
)
def test_what_a_trainer_was_given_and_holds_behind_its_training(
    tmp_path: Path, before: str, between: str, behind: str, expected: set[str]
) -> None:
    train = TRAINS.format(before, between, behind)
    found = said(tmp_path, {"train.py": train})
    assert found == {name: {"FM333"} for name in expected}
    assert said(tmp_path, {"train.py": train.replace("(model=model, args=args)", "(model, args)")}) == found
    own = train.replace("transformers.Trainer(model=model, args=args)", "own.Trainer(model)")
    assert said(tmp_path, {"train.py": own.replace("import tr", "import own\nimport tr")}) == {}


@pytest.mark.parametrize(
    ("name", "text", "is_asked"),
    [
        ("run.sh", 'torchrun train.py --fsdp "full_shard auto_wrap"\n', True),
        ("run.sh", "torchrun train.py --fsdp=shard_grad_op\n", True),
        ("run.sh", 'F="full_shard auto_wrap"\ntorchrun train.py --fsdp "$F" --fsdp_config f.json\n', True),
        ("run.sh", '# torchrun train.py --fsdp "full_shard auto_wrap"\ntorchrun train.py\n', False),
        ("run.sh", "accelerate launch --use_fsdp train.py\n", True),
        ("args.json", '{"fsdp": "full_shard auto_wrap"}\n', True),
        ("args.json", '{"fsdp": ["full_shard"], "fsdp_config": {"version": 2}}\n', False),
        ("args.json", '{"fsdp": "", "fsdp_config": {}}\n', False),
        ("args.yaml", "fsdp:\n  - full_shard\n  - auto_wrap\n", True),
        ("launch.yaml", "distributed_type: FSDP\nfsdp_config:\n  fsdp_offload_params: false\n", True),
        ("launch.yaml", "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n", False),
        ("launch.yaml", "distributed_type: MULTI_GPU\n", False),
    ],
)
def test_configs_and_scripts_ask_for_fsdp_as_well(
    tmp_path: Path, name: str, text: str, *, is_asked: bool
) -> None:
    (tmp_path / name).write_text(text)
    own = OWN.format("Trainer", "compute_loss(self, model, inputs)", "use(model)")
    assert said(tmp_path, {"own.py": own}, asks="") == ({"helpers.py": {"FM333"}} if is_asked else {})


def test_configs_are_found_beside_files_that_are_given_one_by_one(tmp_path: Path) -> None:
    own = OWN.format("Trainer", "compute_loss(self, model, inputs)", "return model.module(**inputs)")
    (tmp_path / "own.py").write_text(own)
    (tmp_path / "run.sh").write_text('torchrun own.py --fsdp "full_shard"\n')
    assert [use.code for use in scan_paths(iter([tmp_path / "own.py", tmp_path / "run.sh"])).uses] == [
        "FM333"
    ]
    assert scan_paths([tmp_path / "own.py"]).uses == ()


def test_a_project_that_asks_for_fsdp2_is_told_nothing(tmp_path: Path) -> None:
    own = OWN.format("Trainer", "compute_loss(self, model, inputs)", "return model.module(**inputs)")
    asks = ASKS.replace("auto_wrap'", "auto_wrap', fsdp_config={'version': 2}")
    assert said(tmp_path, {"own.py": own}, asks) == {}


MODEL_SAVES = "    trainer.model.save_pretrained(p)\n"


@pytest.mark.parametrize(
    ("asks", "is_asked"),
    [
        ("training_args = dict(output_dir='o', fsdp='full_shard auto_wrap')\n", True),
        ("training_args = {'fsdp': 'shard_grad_op'}\n", True),
        ("training_args = {'fsdp': ''}\n", False),
        ("def f(trainer):\n    if trainer.is_fsdp_enabled:\n        trainer.save_model()\n", True),
        ("class A:\n    def f(self):\n        return self.is_fsdp_enabled\n", False),
        (
            "import trl\nclass A(trl.SFTTrainer):\n    f = lambda self: self.is_fsdp_enabled\n",
            True,
        ),
        ("import os\nos.environ['ACCELERATE_USE_FSDP'] = 'true'\n", True),
        ("run(['torchrun', 't.py', '--fsdp', 'full_shard auto_wrap'])\n", True),
        ("run('accelerate launch --use_fsdp t.py')\n", True),
        ("settings = {'fsdp': '\"full_shard auto_wrap\"'}\n", True),
        ("run(['torchrun', 't.py', '--fsdp_kind', 'full_shard'])\n", False),
        ("# fsdp='full_shard'\nx = 'full_shard'\n", False),
    ],
)
def test_what_else_asks_the_trainer_for_fsdp(tmp_path: Path, asks: str, *, is_asked: bool) -> None:
    found = said(tmp_path, {"train.py": TRAINS.format("", "", MODEL_SAVES)}, asks)
    assert (found.get("train.py") == {"FM333"}) is is_asked


LOADS = "transformers.AutoModel.from_pretrained('x')"
OBJECT = (
    "import transformers\n\n\nclass Run:\n    def __init__(self, {given}args):\n{above}"
    "        self.trainer = transformers.Trainer(model={model}, args=args)\n\n"
    "    def run(self):\n{before}        self.trainer.train()\n{below}\n"
    "    def export(self):\n        {other}\n"
)
SAVES = "        self.model.save_pretrained(p)\n"


@pytest.mark.parametrize(
    ("given", "above", "model"),
    [
        ("", f"        self.model = {LOADS}\n", "self.model"),
        ("", f"        model = {LOADS}\n        self.model = model\n", "model"),
        ("model, ", "        self.model = model\n", "model"),
        ("model, ", "        self.model = model\n", "self.model"),
    ],
)
@pytest.mark.parametrize(
    ("before", "below", "other", "codes"),
    [
        ("", SAVES, "pass", {"FM333"}),
        ("", SAVES.replace("self.model", "self.trainer.model"), "pass", {"FM333"}),
        (SAVES, "", "pass", set()),
        ("", "", "torch.save(self.model.state_dict(), p)", {"FM450"}),
        ("", "", "torch.save(self.other.state_dict(), p)", set()),
        ("", f"        self.model = {LOADS}\n{SAVES}", "pass", set()),
    ],
)
def test_a_model_and_its_trainer_as_attributes(
    tmp_path: Path, given: str, above: str, model: str, before: str, below: str, other: str, codes: set[str]
) -> None:
    values = {"given": given, "above": above, "model": model, "before": before, "below": below}
    (tmp_path / "train.py").write_text(OBJECT.format(other=other, **values))
    (tmp_path / "asks.py").write_text(ASKS)
    uses = scan_paths([tmp_path]).uses
    # Of a model that others give the file does not show that it is plain, above the training.
    expected = {"FM450"} if given and before else codes
    assert {use.code for use in uses if use.path.endswith("train.py")} == expected


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (
            (
                f"def build(args):\n    net = {LOADS}\n    return net, Trainer(net, args)\n\n\n"
                "def main(args):\n    model, t = build(args)\n    t.train()\n    model.save_pretrained(p)\n"
            ),
            {(9, "FM333")},
        ),
        (
            (
                f"def build(args):\n    net = {LOADS}\n    return net, Other(net, args)\n\n\n"
                "def main(args):\n    model, t = build(args)\n    t.train()\n    model.save_pretrained(p)\n"
            ),
            set(),
        ),
        (
            (
                f"def main(args):\n    model = {LOADS}\n"
                "    t = Trainer(model, args)\n    run(t)\n    model.save_pretrained(p)\n"
            ),
            {(5, "FM450")},
        ),
        (
            (
                f"def main(args):\n    model = {LOADS}\n"
                "    t = Trainer(model, args)\n    model.save_pretrained(p)\n    run(t)\n"
            ),
            set(),
        ),
        *(
            (
                (
                    f"def main(args):\n    model = {LOADS}\n"
                    f"    t = Trainer(model, args)\n    {looks}\n    model.save_pretrained(p)\n"
                ),
                set(),
            )
            for looks in ("print(t)", "logger.info('%s', t)", "assert isinstance(t, Trainer)")
        ),
        (
            (
                f"def one(args):\n    model = {LOADS}\n    t = Trainer(model, args)\n    t.train()\n"
                "    model.save_pretrained(p)\n\n\n"
                f"def two(args):\n    model = {LOADS}\n    t = Trainer(model, args)\n    t.train()\n"
                "    model.save_pretrained(p)\n"
            ),
            {(5, "FM333"), (12, "FM333")},
        ),
    ],
)
def test_what_a_trainer_was_given_in_other_ways(
    tmp_path: Path, code: str, found: set[tuple[int, str]]
) -> None:
    head = "import transformers\nfrom transformers import Trainer\n"
    (tmp_path / "train.py").write_text(head + code)
    (tmp_path / "asks.py").write_text(ASKS)
    uses = (use for use in scan_paths([tmp_path]).uses if use.path.endswith("train.py"))
    assert {(use.line - 2, use.code) for use in uses} == found


UNSLOTH = (
    "from transformers import Trainer\nfrom unsloth import FastLanguageModel\n\n\n"
    "def main(args):\n    model, _ = FastLanguageModel.from_pretrained('x')\n"
    "    trainer = Trainer(model=model, args=args)\n    trainer.train()\n    model.save_pretrained('y')\n"
)


@pytest.mark.parametrize(
    ("old", "new", "is_said"),
    [
        ("'x')", "'x')", False),
        ("FastLanguageModel", "FastVisionModel", False),
        ("args=args", "args=TrainingArguments('z', optim='adamw_8bit')", False),
        ("'x')\n", "'x')\n    if args.plain:\n        model = AutoModel.from_pretrained('x')\n", True),
        ("'x')\n", "'x')\n    if args.plain:\n        model = build(args)\n", True),
        ("'x')\n", "'x')\n    model = FastLanguageModel.get_peft_model(model)\n", False),
        ("unsloth import FastLanguageModel", "models import FastLanguageModel", True),
        ("args=args", "args=TrainingArguments(fsdp='full_shard')", True),
    ],
)
def test_a_model_of_unsloths_is_plain(tmp_path: Path, old: str, new: str, *, is_said: bool) -> None:
    files = {"own.py": UNSLOTH.replace(old, new), "trains.py": TRAINS.format("", "", "")}
    assert ("own.py" in said(tmp_path, files)) is is_said


@pytest.mark.parametrize(
    ("asks", "is_asked"),
    [
        ("if args.fsdp:\n    print(1)\n", True),
        ("if training_args.do_train and len(training_args.fsdp) > 0:\n    print(1)\n", True),
        ("if args.fsdp:\n    raise ValueError\n", False),
        ("if args.fsdp_like:\n    print(1)\n", False),
        ("# if args.fsdp:\n", False),
    ],
)
def test_a_source_that_asks_the_trainers_arguments(tmp_path: Path, asks: str, *, is_asked: bool) -> None:
    source = (
        "from transformers import Trainer, TrainingArguments\n"
        f"trainer = Trainer(model=model, args=args)\ntrainer.train()\n{asks}"
        "torch.save(trainer.model.state_dict(), 'x.pt')\n"
    )
    (tmp_path / "train.py").write_text(source)
    # What asks how long the words are raises besides, where they are true or None.
    raises = {"FM358"} if "len(" in asks else set()
    found = {use.code for use in scan_paths([tmp_path]).uses}
    assert found == ({"FM333"} | raises if is_asked else set())


@pytest.mark.parametrize(("version", "is_asked"), [("  fsdp_version: 2\n", False), ("", True), (None, True)])
@pytest.mark.parametrize(
    "asks", ["if trainer.is_fsdp_enabled:\n    print(1)\n", "if args.fsdp:\n    print(1)\n"]
)
def test_a_question_says_nothing_where_fsdp2_alone_is_run(
    tmp_path: Path, asks: str, version: str | None, *, is_asked: bool
) -> None:
    source = (
        "from transformers import Trainer, TrainingArguments\n"
        f"trainer = Trainer(model=model, args=args)\n{asks}trainer.predict(data)\n"
    )
    (tmp_path / "train.py").write_text(source)
    if version is not None:
        config = f"distributed_type: FSDP\nfsdp_config:\n  fsdp_offload_params: false\n{version}"
        (tmp_path / "fsdp.yaml").write_text(config)
    assert ("FM449" in {use.code for use in scan_paths([tmp_path]).uses}) is is_asked


PREDICTS = "from transformers import Trainer\nt = Trainer(model=model, args=args)\nt.predict(data)\n"
WITH_FSDP = "torchrun train.py --fsdp 'full_shard auto_wrap'\n"
PLAIN = "# on one card\npython infer.py \\\n  --model m\n"


@pytest.mark.parametrize(
    ("files", "is_said"),
    [
        ({"run.sh": WITH_FSDP, "infer.sh": PLAIN}, False),
        ({"run.sh": WITH_FSDP, "infer.sh": "deepspeed infer.py --deepspeed=ds.json\n"}, False),
        ({"README.md": f"```\n{WITH_FSDP}```\n", "infer.sh": PLAIN}, False),
        ({"run.sh": WITH_FSDP, "infer.sh": f"# not --fsdp full_shard\n{PLAIN}"}, False),
        ({"run.sh": WITH_FSDP}, True),
        ({"run.sh": f"{WITH_FSDP}torchrun $SCRIPT --fsdp full_shard\n", "infer.sh": PLAIN}, True),
        ({"run.sh": f"{WITH_FSDP}torchrun infer.py --fsdp full_shard\n", "infer.sh": PLAIN}, True),
        ({"run.sh": WITH_FSDP, "infer.sh": PLAIN, "all.py": "run('python infer.py')\n"}, True),
        ({"run.sh": WITH_FSDP + PLAIN.replace("m\n", "m --fsdp full_shard\n")}, True),
        ({"run.sh": WITH_FSDP, "infer.sh": PLAIN.replace("m\n", "m $MORE\n")}, True),
        ({"run.sh": WITH_FSDP, "infer.sh": PLAIN.replace("m\n", "m a.yaml\n")}, True),
        ({"run.sh": WITH_FSDP, "infer.sh": PLAIN.replace("m\n", "m --config=a.yaml\n")}, True),
        ({"run.sh": WITH_FSDP, "infer.sh": PLAIN.replace("m\n", "m `cat more`\n")}, True),
        ({"run.sh": WITH_FSDP, "infer.sh": PLAIN.replace("m\n", "m @more\n")}, True),
        ({"run.sh": WITH_FSDP, "infer.sh": PLAIN, "all.py": "from . import (\n    infer,\n)\n"}, True),
        ({"run.sh": WITH_FSDP, "infer.sh": PLAIN, "all.py": "import_module('infer').main()\n"}, True),
        ({"run.sh": WITH_FSDP, "infer.sh": PLAIN, "all.py": "run(['python', '-m', 'infer'])\n"}, True),
        ({"run.sh": WITH_FSDP, "infer.sh": PLAIN, "all.py": "modes = ['train', 'infer']\n"}, False),
        ({"run.sh": WITH_FSDP, "infer.sh": "accelerate launch infer.py\n"}, True),
        ({"run.sh": WITH_FSDP, "infer.sh": PLAIN, "f.yaml": "distributed_type: FSDP\n"}, True),
        ({"run.sh": WITH_FSDP, "infer.sh": PLAIN, "job.yaml": "entry_point: infer.py\n"}, True),
        ({"run.sh": WITH_FSDP, "infer.sh": PLAIN, "all.py": "from infer import t\n"}, True),
        ({"run.sh": WITH_FSDP, "infer.sh": f"export ACCELERATE_USE_FSDP=true\n{PLAIN}"}, True),
    ],
)
def test_a_script_that_commands_start_without_fsdp(
    tmp_path: Path, files: dict[str, str], *, is_said: bool
) -> None:
    for name, text in {"train.py": PREDICTS, "infer.py": PREDICTS, **files}.items():
        (tmp_path / name).write_text(text)
    found = {u.path.rpartition("/")[2] for u in scan_paths([tmp_path]).uses if u.code == "FM449"}
    assert found == ({"infer.py", "train.py"} if is_said else {"train.py"})


@pytest.mark.parametrize(
    ("orig", "decay", "is_told"),
    [("False", "0.1", True), ('"false"', "0.1", True), ("False", "0.0", False), ("True", "0.1", False)],
)
def test_a_decay_that_flat_parameters_had_whole_has_a_comment(orig: str, decay: str, is_told: bool) -> None:
    config = f'{{"use_orig_params": {orig}}}'
    body = (
        'a = TrainingArguments("o", fsdp="full_shard auto_wrap", '
        f"fsdp_config={config}, weight_decay={decay})\n"
    )
    assert ("norms and biases were decayed too" in comments(body, TAKEN)) is is_told
    assert last(body, TAKEN).endswith(f"weight_decay={decay})\n")


LOOP = """import torch
from transformers import Trainer, TrainingArguments


class Mine(Trainer):
    def _inner_training_loop(self, *args, **kwargs):
        model = {}
        for name, param in model.named_parameters():
            param.data = param.data + torch.normal(mean=0, std=1, size=param.data.size())
{}

args = TrainingArguments("o", fsdp="full_shard auto_wrap")
Mine(model, args).train()
"""
OWN_WRAP = "\n    def _wrap_model(self, model, training=True):\n        return Plain()\n"


@pytest.mark.parametrize(
    ("made", "more", "is_said"),
    [
        ("self._wrap_model(self.model_wrapped)", "", True),
        ("self.accelerator.prepare(self.model)", "", True),
        ("self._make_model(self.model_wrapped)", "", False),
        ("self._wrap_model(self.model_wrapped)", OWN_WRAP, False),
    ],
)
def test_what_a_loop_of_its_own_has_wrapped_is_sharded(
    tmp_path: Path, made: str, more: str, *, is_said: bool
) -> None:
    (tmp_path / "t.py").write_text(LOOP.format(made, more))
    found = [use.line for use in scan_paths([tmp_path]).uses if use.code == "FM423"]
    assert (9 in found) is is_said
