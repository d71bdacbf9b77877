"""Models that a framework shards in one file, and that functions and objects of other files are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import after


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

ACCELERATE = (
    "from accelerate import Accelerator, FullyShardedDataParallelPlugin\n"
    "from helpers import Ema, save\n"
    "accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())\n"
    "model, optimizer = accelerator.prepare(net, optimizer)\n"
)
FABRIC = (
    "from lightning.fabric import Fabric\nfrom helpers import Ema, save\n"
    "fabric = Fabric(devices=2, strategy='fsdp')\nmodel, optimizer = fabric.setup(net, optimizer)\n"
)
KEEP = "        self.model = model\n\n"
SAVE = "def save(model, path):\n    torch.save(model.state_dict(), path)\n"


def said(folder: Path, makes: str, helpers: str) -> dict[str, str]:
    (folder / "train.py").write_text(makes)
    (folder / "helpers.py").write_text(f"import copy\nimport torch\n\n\n{helpers}")
    uses = (use for use in scan_paths([folder]).uses if use.action != "unclear")
    return {use.code: use.becomes for use in uses if use.path.endswith("helpers.py")}


@pytest.mark.parametrize(
    "gives", ["save(model, p)\n", "save(path=p, model=model)\n", "save(accelerator.unwrap_model(model), p)\n"]
)
def test_what_accelerate_prepares_is_given_to_a_function_of_another_file(tmp_path: Path, gives: str) -> None:
    found = said(tmp_path, ACCELERATE + gives, SAVE)
    assert list(found) == ["FM333"]
    assert "the model that Accelerate shards: where it is, take accelerator.get_state_dict" in found["FM333"]
    assert said(tmp_path, ACCELERATE.replace("Plugin()", "Plugin(fsdp_version=2)") + gives, SAVE) == {}
    assert said(tmp_path, ACCELERATE.replace("prepare(net, ", "prepare(loader, ") + gives, SAVE) == {}
    assert (
        said(tmp_path, ACCELERATE.replace("=FullyShardedDataParallelPlugin()", "=None") + gives, SAVE) == {}
    )
    above = ACCELERATE.replace("model, optimizer =", f"{gives.replace('(model', '(net')}net, optimizer =")
    assert said(tmp_path, above.replace("model=model", "model=net"), SAVE) == {}


def test_what_fabric_sets_up_is_given_to_a_function_of_another_file(tmp_path: Path) -> None:
    found = said(tmp_path, f"{FABRIC}save(model, p)\n", SAVE)
    assert list(found) == ["FM333"]
    assert "the model that Fabric shards: where it is, take fabric.save(" in found["FM333"]
    assert said(tmp_path, f"{FABRIC.replace('fsdp', 'ddp')}save(model, p)\n", SAVE) == {}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("        self.shadow = copy.deepcopy(model)\n", "FM323"),
        (
            f"{KEEP}    def update(self):\n        x = [p.grad.norm() for p in self.model.parameters()]\n",
            "FM423",
        ),
        (f"{KEEP}    def save(self, a):\n        a.unwrap_model(self.model).save_pretrained(p)\n", "FM333"),
    ],
)
def test_objects_of_another_file_hold_what_accelerate_prepares(tmp_path: Path, body: str, code: str) -> None:
    helpers = f"class Ema:\n    def __init__(self, model):\n{body}"
    assert code in said(tmp_path, f"{ACCELERATE}ema = Ema(model)\n", helpers)
    assert said(tmp_path, f"{ACCELERATE}ema = Ema(other)\n", helpers) == {}


def test_functions_and_objects_of_other_files_give_what_accelerate_prepares(tmp_path: Path) -> None:
    makes = (
        "from accelerate import Accelerator, FullyShardedDataParallelPlugin\n\n\n"
        "class Run:\n    def __init__(self, net, optimizer):\n"
        "        self.accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())\n"
        "        self.model, self.optimizer = self.accelerator.prepare(net, optimizer)\n\n\n"
        "def build(net, optimizer):\n    run = Run(net, optimizer)\n    return run.accelerator, run.model\n"
    )
    (tmp_path / "make.py").write_text(makes)
    uses = "from make import Run, build\nrun = Run(net, optimizer)\nx = run.model.state_dict()\n"
    assert list(said(tmp_path, "", uses)) == ["FM333"]
    uses = "from make import build\naccelerator, model = build(net, optimizer)\nx = model.module.weight\n"
    assert list(said(tmp_path, "", uses)) == ["FM333"]


def test_a_branch_for_other_types_is_left_alone_in_what_is_given_the_model(tmp_path: Path) -> None:
    asks = (
        "from accelerate.utils import DistributedType\n\n\ndef save(model, accelerator):\n"
        "    if accelerator.distributed_type == DistributedType.FSDP:\n        {}\n    else:\n        {}\n"
    )
    gives = f"{ACCELERATE}save(model, accelerator)\n"
    assert list(said(tmp_path, gives, asks.format("model.state_dict()", "pass"))) == ["FM333"]
    assert said(tmp_path, gives, asks.format("pass", "model.module.state_dict()")) == {}


@pytest.mark.parametrize(
    ("makes", "chooses", "is_said"),
    [
        (ACCELERATE, "'bias' in n", True),
        (ACCELERATE, "n.startswith('head')", True),
        (FABRIC, "'bias' in n", False),
        (FABRIC, "n.startswith('head')", False),
    ],
)
def test_names_of_parameters_are_those_that_the_framework_gives_them(
    tmp_path: Path, makes: str, chooses: str, is_said: bool
) -> None:
    """Fabric asks for use_orig_params=True, and puts a module of its own around FSDP1's."""
    helpers = f"def save(model):\n    return [p for n, p in model.named_parameters() if {chooses}]\n"
    assert ("FM318" in said(tmp_path, f"{makes}save(model)\n", helpers)) is is_said


def test_what_is_said_stays_as_it_is_at_a_second_rewriting(tmp_path: Path) -> None:
    files = {"train.py": f"{ACCELERATE}save(model, p)\n", "helpers.py": f"import torch\n\n\n{SAVE}"}
    assert after(tmp_path, files, "helpers.py").count("# fsdp-migrate: FM333") == 1


@pytest.mark.parametrize(
    ("asked", "is_said"),
    [
        ("optimizer = AdamW(vlm.parameters())", True),
        ("vlm.gradient_checkpointing_enable()", True),
        ("loss = vlm(x)", True),
        ("vlm.close()", False),
    ],
)
def test_what_accelerate_prepares_is_known_by_what_is_asked_of_it(
    tmp_path: Path, asked: str, *, is_said: bool
) -> None:
    main = (
        f"{ACCELERATE.replace('helpers import Ema, save', 'saving import save')}{asked}\n"
        "vlm, optimizer = accelerator.prepare(vlm, optimizer)\nsave(vlm)\nvlm.save_pretrained('a')\n"
    )
    files = {"main.py": main, "saving.py": "def save(m):\n    m.save_pretrained('b')\n"}
    assert ("FM333" in after(tmp_path, files, "main.py")) is is_said
    assert ("FM333" in (tmp_path / "saving.py").read_text()) is is_said


@pytest.mark.parametrize(
    ("made", "is_said"),
    [
        ("Gpt(8)", True),
        ("Gpt(8).to(device)", True),
        ("AutoModelForCausalLM.from_pretrained(path)", True),
        ("build_model(config)", True),
        ("Words(8)", False),
        ("DataLoader(data)", False),
        ("AutoTokenizer.from_pretrained(path)", False),
        ("torch.optim.AdamW(parameters)", False),
    ],
)
@pytest.mark.parametrize("beside", ["", ", make(x)"])
def test_what_is_made_where_accelerate_is_given_it(
    tmp_path: Path, made: str, beside: str, *, is_said: bool
) -> None:
    main = (
        f"{ACCELERATE.replace('model, optimizer = accelerator.prepare(net, optimizer)', '')}"
        "class Gpt(nn.Module):\n    pass\nclass Words:\n    pass\n"
        f"it{', other' if beside else ''} = accelerator.prepare({made}{beside})\nsave(it, 'a.pt')\n"
    )
    found = said(tmp_path, f"import torch.nn as nn\n{main}", SAVE)
    assert ("FM333" in found) is is_said


@pytest.mark.parametrize(
    "taken",
    [
        "from accelerate.utils import extract_model_from_parallel as bare",
        "from transformers.modeling_utils import unwrap_model as bare",
    ],
)
@pytest.mark.parametrize("makes", [ACCELERATE, FABRIC])
def test_functions_that_take_the_wrapper_off(tmp_path: Path, taken: str, makes: str) -> None:
    text = f"{taken}\n{makes}inner = bare(model)\ntorch.save(inner.state_dict(), path)\n"
    (tmp_path / "train.py").write_text(text)
    assert "FM333" in {use.code for use in scan_paths([tmp_path]).uses}


HOOK = (
    "\n\ndef main():\n    def hook(models, weights, folder):\n        for model in models:\n"
    "            {}\n\n    accelerator.register_save_state_pre_hook(hook)\n"
)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("model.save_pretrained(folder)", "FM333"),
        ("accelerator.unwrap_model(model).save_pretrained(folder)", "FM333"),
        ("x = [p.norm() for p in model.parameters()]", "FM423"),
        ("model.save_pretrained(folder, state_dict=accelerator.get_state_dict(model))", ""),
        ("weights.pop()", ""),
    ],
)
def test_hooks_that_accelerate_calls_before_it_saves(tmp_path: Path, body: str, code: str) -> None:
    (tmp_path / "train.py").write_text(ACCELERATE + HOOK.format(body))
    found = {use.code for use in scan_paths([tmp_path]).uses if use.action == "commented"}
    assert (found & {"FM333", "FM423"}) == ({code} if code else set())
    plain = ACCELERATE.replace("fsdp_plugin=FullyShardedDataParallelPlugin()", "")
    plain = plain.replace(", FullyShardedDataParallelPlugin", "")
    (tmp_path / "train.py").write_text(plain + HOOK.format(body))
    assert not scan_paths([tmp_path]).uses


PLUGIN = ACCELERATE.partition("model, optimizer")[0] + "import torch\n"
PAIRS = "out = [accelerator.prepare({}) for {} in {}]\n"


@pytest.mark.parametrize(
    ("line", "below", "is_one"),
    [
        (PAIRS.format("n, o", "n, o", "zip(nets, opts)"), "for n, o in out:\n    n.state_dict()\n", True),
        (
            PAIRS.format("n, o", "n, o", "zip(nets, opts)"),
            "a = [n for n, _ in out]\na[0].state_dict()\n",
            True,
        ),
        (PAIRS.format("m", "m", "nets"), "for m in out:\n    m.state_dict()\n", True),
        (PAIRS.format("m", "i, m", "enumerate(nets)"), "for m in out:\n    m.state_dict()\n", True),
        (PAIRS.format("m", "k, m", "nets.items()"), "out[0].state_dict()\n", True),
        (PAIRS.format("m", "m", "nets.values()"), "out[0].state_dict()\n", True),
        (PAIRS.format("d", "d", "loaders"), "for d in out:\n    d.state_dict()\n", False),
        (PAIRS.format("o, n", "o, n", "zip(opts, nets)"), "for o, n in out:\n    o.state_dict()\n", False),
        ("out = [make(n) for n in nets]\n", "for n in out:\n    n.state_dict()\n", False),
    ],
)
def test_models_that_are_prepared_in_a_comprehension(
    tmp_path: Path, line: str, below: str, *, is_one: bool
) -> None:
    (tmp_path / "train.py").write_text(PLUGIN + line + below)
    found = [use.line for use in scan_paths([tmp_path]).uses if use.code == "FM333"]
    assert found == ([(PLUGIN + line + below).count("\n")] if is_one else [])


LOOP = "for {} in {}:\n    {}\n    {}.state_dict()\n"


@pytest.mark.parametrize(
    ("body", "is_one"),
    [
        (LOOP.format("x", "nets", "y = accelerator.prepare(x)", "y"), True),
        (LOOP.format("x", "nets", "x = accelerator.prepare(x)", "x"), True),
        (LOOP.format("x, o", "zip(nets, opts)", "x, o = accelerator.prepare(x, o)", "x"), True),
        (LOOP.format("i, x", "enumerate(nets)", "x = accelerator.prepare(x)", "x"), True),
        (LOOP.format("x", "loaders", "x = accelerator.prepare(x)", "x"), False),
        (LOOP.format("x, o", "zip(loaders, nets)", "x, o = accelerator.prepare(x, o)", "x"), False),
        # It need not be of the list.
        (LOOP.format("x", "nets", "x = make(x)\n    x = accelerator.prepare(x)", "x"), False),
        ("x = accelerator.prepare(x)\nfor x in nets:\n    print(x)\nx.state_dict()\n", False),
        ("for x in nets:\n    print(x)\nx = accelerator.prepare(load())\nx.state_dict()\n", False),
    ],
)
def test_models_that_are_prepared_in_a_loop(tmp_path: Path, body: str, *, is_one: bool) -> None:
    (tmp_path / "train.py").write_text(PLUGIN + body)
    found = [use.line for use in scan_paths([tmp_path]).uses if use.code == "FM333"]
    assert found == ([(PLUGIN + body).count("\n")] if is_one else [])


def test_a_function_that_prepares_one_thing_of_many_says_nothing_of_each(tmp_path: Path) -> None:
    one = "def one(x):\n    return accelerator.prepare_model(x.model) if has(x) else x\n\n\n"
    below = "for o in [one(x) for x in things]:\n    o.state_dict()\n"
    (tmp_path / "train.py").write_text(PLUGIN + one + below)
    assert not any(use.code == "FM333" for use in scan_paths([tmp_path]).uses)


LAUNCHED = """\
import accelerate
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from clipping import clip

accelerator = accelerate.Accelerator()


def save(model):
    if {test}:
        with FSDP.{function}(model):
            state = model.state_dict()


def main(model, optimizer):
    model, optimizer = accelerator.prepare(model, optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    clip(model)
    save(model)
"""
CLIPS = "import torch\n\n\ndef clip(model):\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
OF_FSDP = "accelerator.distributed_type == accelerate.utils.DistributedType.FSDP"


@pytest.mark.parametrize(
    ("test", "function", "is_said"),
    [
        (OF_FSDP, "state_dict_type", True),
        (OF_FSDP, "summon_full_params", True),
        (f"{OF_FSDP} and not accelerator.is_fsdp2", "state_dict_type", False),
        ("accelerator.is_main_process", "no_such_thing", False),
    ],
)
def test_what_is_written_for_accelerates_fsdp1_is_run_so(
    tmp_path: Path, test: str, function: str, *, is_said: bool
) -> None:
    """Which config it is launched with may not be in the project."""
    (tmp_path / "train.py").write_text(LAUNCHED.format(test=test, function=function))
    (tmp_path / "clipping.py").write_text(CLIPS)
    found = {use.path.rpartition("/")[2] for use in scan_paths([tmp_path]).uses if use.code == "FM326"}
    assert found == ({"clipping.py", "train.py"} if is_said else set())


FINETUNE = """\
import os
import torch
from transformers import Trainer, TrainingArguments


def main(model, path):
    trainer = Trainer(model=model, args=TrainingArguments(output_dir="o"))
    trainer.train()
    trainer.model.save_pretrained(path)
    {}
"""


@pytest.mark.parametrize(
    ("line", "config", "is_said"),
    [
        ('os.remove(os.path.join(path, "pytorch_model_fsdp.bin"))', "", True),
        ("load(path + '/pytorch_model_fsdp_0')", "", True),
        ("# pytorch_model_fsdp.bin", "", False),
        ('os.remove(os.path.join(path, "pytorch_model.bin"))', "", False),
        # FSDP2 saves by the same names.
        ('os.remove(path + "/pytorch_model_fsdp.bin")', "fsdp_config:\n  fsdp_version: 2\n", False),
    ],
)
def test_the_names_of_accelerates_files_speak_of_fsdp(
    tmp_path: Path, line: str, config: str, *, is_said: bool
) -> None:
    """The config of ``accelerate launch`` may be the machine's own."""
    (tmp_path / "finetune.py").write_text(FINETUNE.format(line))
    (tmp_path / "fsdp.yaml").write_text(f"mixed_precision: bf16\n{config}")
    assert ("FM333" in {use.code for use in scan_paths([tmp_path]).uses}) is is_said
    other = (
        FINETUNE.format("")
        .replace("Trainer(model=model", "Accelerator().prepare(model")
        .split("    trainer.train")[0]
    )
    prepares = (
        f"from accelerate import Accelerator\n{other}    torch.save(trainer.state_dict(), path)\n    {line}\n"
    )
    (tmp_path / "finetune.py").write_text(prepares.replace(', args=TrainingArguments(output_dir="o")', ""))
    assert ("FM333" in {use.code for use in scan_paths([tmp_path]).uses}) is is_said
