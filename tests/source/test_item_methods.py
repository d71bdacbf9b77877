"""Methods that a Trainer calls on what it is given: callbacks, hooks, and what hydra makes of a config."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

CALLBACK = """\
import torch

class Watch:
    def on_step(self, trainer):
        print(trainer.model.head.weight.cpu().numpy())
"""
KEPT = """\
import torch

class Watch:
    def attach(self, trainer):
        self.trainer = trainer

    def after(self):
        print(self.trainer.model.head.weight.cpu().numpy())
"""
TRAINER = """\
from watch import Watch

class Trainer:
    def __init__(self, net, callbacks):
        self.model = {}
        self.callbacks = []
        for each in callbacks:
            self.register(each)

    def register(self, callback):
        callback.attach(self)
        self.callbacks.append(callback)

    def run(self):
        for callback in self.callbacks:
            callback.on_step(self)

Trainer(net, [Watch()]).run()
"""


@pytest.mark.parametrize("watch", [CALLBACK, KEPT])
def test_a_callback_is_given_its_trainer(tmp_path: Path, watch: str) -> None:
    assert _codes(tmp_path, {"watch.py": watch, "main.py": FSDP + TRAINER.format("FSDP(net)")}, "watch.py")


@pytest.mark.parametrize("watch", [CALLBACK, KEPT])
def test_a_callback_of_a_trainer_of_a_plain_model_is_given_that(tmp_path: Path, watch: str) -> None:
    main = FSDP + TRAINER.format("net") + "\nother = FSDP(net)\n"
    assert not _codes(tmp_path, {"watch.py": watch, "main.py": main}, "watch.py")


@pytest.mark.parametrize(
    ("name", "is_said"), [("show", True), ("append", False), ("eval", False), ("__call__", False)]
)
def test_names_that_lists_and_modules_have_too_tell_nothing(
    tmp_path: Path, name: str, *, is_said: bool
) -> None:
    watch = CALLBACK.replace("on_step", name).replace("trainer.model", "trainer")
    main = f"{FSDP}def keep(models, net):\n    model = FSDP(net)\n    models.{name}(model)\n"
    assert bool(_codes(tmp_path, {"watch.py": watch, "main.py": main}, "watch.py")) is is_said


@pytest.mark.parametrize(
    ("takes", "call", "is_said"),
    [
        ("self, trainer, step=0", "callback.on_step(self, 1)", True),
        ("self, trainer, *more", "callback.on_step(self, 1)", True),
        ("self, trainer, *, last=False", "callback.on_step(self, last=True)", True),
        ("self, trainer, **more", "callback.on_step(self, last=True)", True),
        ("self, trainer", "callback.on_step(self, 1)", False),
        ("self, trainer", "callback.on_step(self, last=True)", False),
        # Neither given nor gone through.
        ("self, trainer", "made().on_step(self)", False),
        ("self, trainer", "other.on_step(self)", False),
        ("self, trainer", "self.on_step(self)", False),
    ],
)
def test_a_method_is_one_that_can_be_called_so(
    tmp_path: Path, takes: str, call: str, *, is_said: bool
) -> None:
    watch = CALLBACK.replace("self, trainer", takes)
    main = FSDP + TRAINER.format("FSDP(net)").replace("callback.on_step(self)", call)
    assert bool(_codes(tmp_path, {"watch.py": watch, "main.py": main}, "watch.py")) is is_said


def test_what_is_known_to_be_a_model_has_its_own_methods(tmp_path: Path) -> None:
    watch = CALLBACK.replace("on_step", "show").replace("trainer.model", "trainer")
    main = f"{FSDP}def run(part, model):\n    part.show(model)\n\n\n"
    main += "def keep(net, shown):\n    model = FSDP(net)\n"
    for given, is_said in (("shown", True), ("model", False)):
        whole = f"{main}    run({given}, model)\n"
        assert bool(_codes(tmp_path, {"watch.py": watch, "main.py": whole}, "watch.py")) is is_said


def test_of_very_many_methods_of_a_name_none_is_taken(tmp_path: Path) -> None:
    other = "class Other{}:\n    def on_step(self, trainer):\n        pass\n"
    for count, is_said in ((23, True), (24, False)):
        watch = CALLBACK + "".join(other.format(each) for each in range(count))
        files = {"watch.py": watch, "main.py": FSDP + TRAINER.format("FSDP(net)")}
        assert bool(_codes(tmp_path, files, "watch.py")) is is_said


def test_hydra_makes_what_takes_all_that_it_is_given(tmp_path: Path) -> None:
    made = (
        "import torch\n\nclass Loop:\n    def __init__(self, model, optimizer):\n"
        "        self.model = model\n\n"
        "    def save(self):\n        print(self.model.head.weight.cpu().numpy())\n"
    )
    main = (
        f"{FSDP}from hydra.utils import instantiate\n\ndef main(cfg, net, optimizer):\n"
        "    model = {}\n    instantiate(cfg.loop, model=model, optimizer=optimizer).save()\n"
    )
    assert _codes(tmp_path / "a", {"loop.py": made, "main.py": main.format("FSDP(net)")}, "loop.py")
    by_name = made.replace("self, model", "self, *, model")
    assert _codes(tmp_path / "d", {"loop.py": by_name, "main.py": main.format("FSDP(net)")}, "loop.py")
    alone = main.replace(", optimizer=optimizer", "").format("FSDP(net)")
    assert not _codes(tmp_path / "e", {"loop.py": made, "main.py": alone}, "loop.py")
    plain = main.format("net\n    other = FSDP(net.other)")
    assert not _codes(tmp_path / "b", {"loop.py": made, "main.py": plain}, "loop.py")
    other = made.replace("optimizer", "data")
    assert not _codes(tmp_path / "c", {"loop.py": other, "main.py": main.format("FSDP(net)")}, "loop.py")


def test_hydra_makes_what_a_config_names(tmp_path: Path) -> None:
    body = "    def __init__(self, model, {}):\n        print(model.head.weight.cpu().numpy())\n"
    files = {
        "loop.py": f"import torch\n\nclass Loop:\n{body}",
        "main.py": f"{FSDP}from hydra.utils import instantiate\n\ndef main(cfg, net):\n"
        "    model = FSDP(net)\n    instantiate(cfg.loop, model=model, rate=0.1)\n",
    }
    for number, (takes, config, is_said) in enumerate(
        [
            ("rate", "loop:\n  _target_: loop.Loop\n", True),
            ("rate", "loop:\n  _target_: loop.Other\n", False),
            ("rate", '{"loop": {"_target_": "lib.loop.Other"}}', False),
            ("rate", "loop:\n  _target_: torch.optim.SGD\n", True),
            ("rate", "loop:\n  kind: Other\n", True),
            ("**more", "", True),
            ("*more", "", False),
        ]
    ):
        loop = files["loop.py"].format(takes)
        other = loop.partition("\n\n")[2].replace("class Loop", "\nclass Other")
        other = other.replace("print(model.head.weight.cpu().numpy())", "self.rate = 1")
        written = {"loop.py": loop + other, "main.py": files["main.py"], "conf.yaml": config}
        assert bool(_codes(tmp_path / str(number), written, "loop.py")) is is_said


ITEMS = """\
from __future__ import annotations
import logging
from abc import ABC
from typing import Any, Protocol
from watch import Watch, Base
from kinds import Other, Shape, Same

class Loop:
    items: {field}

    def __init__(self, net, items: {argument}):
        self.model = FSDP(net)
        self.items = items

    def run(self, item: {single}):
        {call}
"""
KINDS = (
    "from typing import Protocol\n\nclass Other:\n    pass\n\nclass Shape(Protocol):\n    pass\n\n"
    "def Same(x):\n    return x\n"
)
BASED = "import torch\n\nclass Base:\n    pass\n\n" + CALLBACK.partition("\n\n")[2].replace(
    "class Watch", "class Watch(Base)"
)
LOOP = "for item in self.items:\n            item.on_step(self)"


@pytest.mark.parametrize(
    ("call", "told", "is_said"),
    [
        ("item.on_step(self)", {"single": "Watch"}, True),
        ("item.on_step(self)", {"single": "Base"}, True),
        ("item.on_step(self)", {"single": "'Base | None'"}, True),
        ("item.on_step(self)", {"single": "Any"}, True),
        ("item.on_step(self)", {"single": "object"}, True),
        (LOOP, {"field": "list[Shape]"}, True),
        ("item.on_step(self)", {"single": "Same"}, True),
        ("item.on_step(self)", {"single": "Other"}, False),
        ("item.on_step(self)", {"single": "logging.Logger"}, False),
        (LOOP, {"field": "list[Base]"}, True),
        (LOOP, {"field": "dict[str, Any]"}, True),
        (LOOP, {"field": "list[Other]"}, False),
        (LOOP, {"argument": "list[Base]", "field": ""}, True),
        (LOOP, {"argument": "list[Other]", "field": ""}, False),
        (LOOP, {"argument": "list['Other']", "field": ""}, False),
        (LOOP, {"argument": "None", "field": ""}, True),
        ("for item in item:\n            item.on_step(self)", {"single": "tuple[Other, ...]"}, False),
    ],
)
def test_annotations_say_whose_method_it_is(
    tmp_path: Path, call: str, told: dict[str, str], *, is_said: bool
) -> None:
    names = {"field": "list", "argument": "list", "single": "object"} | told
    main = FSDP + ITEMS.format(call=call, **names)
    main = main.replace("    items: \n", "") + "\nLoop(net, things)\n"
    main = main.replace(FSDP + "from __future__ import annotations\n", FSDP)
    files = {"watch.py": BASED, "kinds.py": KINDS, "main.py": main}
    assert bool(_codes(tmp_path, files, "watch.py")) is is_said


def test_a_method_with_parameters_of_types_is_one_of_its_name(tmp_path: Path) -> None:
    watch = CALLBACK.replace("on_step(self", "on_step[T](self")
    files = {"watch.py": watch, "main.py": FSDP + TRAINER.format("FSDP(net)")}
    assert _codes(tmp_path, files, "watch.py")


SHARD = f"{FSDP}def shard(trainer):\n    net = trainer.model\n    trainer.model = FSDP(net)\n"
TRAINED = """\
import torch
from shard import shard

class Trainer:
    def __init__(self, net):
        self.model = net
        {}

    def show(self):
        print(self.model.head.weight.cpu().numpy())
"""


def test_a_function_makes_an_attribute_of_what_it_is_given_a_model(tmp_path: Path) -> None:
    files = {"shard.py": SHARD, "main.py": TRAINED.format("shard(self)")}
    assert _codes(tmp_path / "a", files, "main.py")
    files = {"shard.py": SHARD, "main.py": TRAINED.format("shard")}
    assert not _codes(tmp_path / "b", files, "main.py")


REACHED = [
    # The object of another file's top level.
    (
        "class Saver:\n    def show(self, model):\n        {}\n\nsaver = Saver()\n",
        "from lib import saver",
        "saver.show(model)",
    ),
    # One of two imports of a name.
    (
        "def show(model):\n    {}\n",
        "try:\n    from lib import show\nexcept ImportError:\n    from slow import show",
        "show(model)",
    ),
    (
        "def show(model):\n    {}\n",
        "try:\n    from slow import show\nexcept ImportError:\n    from lib import show",
        "show(model)",
    ),
]


@pytest.mark.parametrize(("lib", "imports", "call"), REACHED)
def test_functions_are_reached_by_objects_and_by_either_import(
    tmp_path: Path, lib: str, imports: str, call: str
) -> None:
    files = {
        "lib.py": "import torch\n\n" + lib.format("print(model.head.weight.cpu().numpy())"),
        "slow.py": "def show(model):\n    pass\n",
        "main.py": f"{FSDP}{imports}\n\ndef main(net):\n    model = FSDP(net)\n    {call}\n",
    }
    assert _codes(tmp_path / "a", files, "lib.py")
    files["main.py"] = files["main.py"].replace("FSDP(net)", "net\n    other = FSDP(net.other)")
    assert not _codes(tmp_path / "b", files, "lib.py")


HELD = (
    f"{FSDP}class Policy:\n    def __init__(self, net):\n        self.model = FSDP(net)\n\n"
    "class Agent:\n    def __init__(self, net):\n        self.policy = Policy(net)\n\n"
    "def make(net):\n    return Policy(net)\n"
)


def test_objects_are_asked_for_what_their_parts_hold(tmp_path: Path) -> None:
    use = "print({}.head.weight.cpu().numpy())"
    runner = (
        "import torch\nfrom held import Agent\n\nclass Runner:\n    def __init__(self, net):\n"
        "        self.agent = Agent(net)\n\n    def show(self):\n"
        f"        {use.format('self.agent.policy.model')}\n"
    )
    assert _codes(tmp_path / "a", {"held.py": HELD, "main.py": runner}, "main.py")
    made = (
        "import torch\nfrom held import make\n\ndef main(net):\n    model = make(net).model\n"
        f"    {use.format('model')}\n"
    )
    assert _codes(tmp_path / "b", {"held.py": HELD, "main.py": made}, "main.py")


@pytest.mark.parametrize(
    "shard",
    ["shard = lambda part: FSDP(part)\n    model = shard(net)", "model, _ = map(shard, (net, net.other))"],
)
def test_what_shards_may_have_no_name_or_be_given_to_map(tmp_path: Path, shard: str) -> None:
    main = (
        f"{FSDP}def shard(part):\n    return FSDP(part)\n\ndef main(net):\n    {shard}\n"
        "    model.head.weight.numpy()\n"
    )
    assert "FM423" in _codes(tmp_path, {"main.py": main})


SHELL = f"""\
{FSDP}import torch

class Shell(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = {{}}

    def forward(self, x):
        return self.net(x)
"""
USE = "import copy\nfrom shell import Shell\n\ndef main(net):\n    shell = Shell(net)\n    {}\n"


@pytest.mark.parametrize(
    "use",
    [
        "n = [p.grad.norm() for p in shell.parameters()]",
        "own = [p for p in shell.parameters() if p.ndim > 1]",
        "other = copy.deepcopy(shell)",
    ],
)
def test_a_module_with_a_sharded_one_in_it_has_its_parameters(tmp_path: Path, use: str) -> None:
    main = USE.format(use)
    assert _codes(tmp_path / "a", {"shell.py": SHELL.format("FSDP(net)"), "main.py": main}, "main.py")
    plain = SHELL.format("net") + "\ndef wrap(net):\n    return FSDP(net)\n"
    assert not _codes(tmp_path / "b", {"shell.py": plain, "main.py": main}, "main.py")
    whole = SHELL.format("FSDP(net)") + main.replace("from shell import Shell\n", "")
    assert _codes(tmp_path / "c", {"main.py": whole}) & {"FM318", "FM321", "FM322", "FM323", "FM423"}


DISPATCHED = (
    "from accelerate import Accelerator, FullyShardedDataParallelPlugin\n\n\nclass Loop:\n"
    "    def __init__(self, net, optimizer, callbacks):\n        self.callbacks = callbacks\n"
    "        accelerator = Accelerator(fsdp_plugin={})\n"
    "        self.model, self.optimizer = accelerator.prepare(net, optimizer)\n\n"
    "    def run(self):\n        for callback in self.callbacks:\n            {}\n"
)
OWN = "class Probe:\n    def {}:\n        return [p.grad.cpu().numpy() for p in {}.parameters()]\n"
PLUGIN = "FullyShardedDataParallelPlugin()"


@pytest.mark.parametrize(
    ("call", "method", "model", "is_one"),
    [
        ("callback.on_end(self, 1)", "on_end(self, loop, step)", "loop.model", True),
        ("callback.on_end(self.model)", "on_end(self, model)", "model", True),
        ("callback.on_end(model=self.model)", "on_end(self, model=None)", "model", True),
        ("callback.on_end(self, 1)", "on_end(self, *things)", "self.net", False),
        # Another method, and one that takes less.
        ("callback.on_start(self)", "on_end(self, loop)", "loop.model", False),
        ("callback.on_end(self, 1)", "on_end(self, loop)", "loop.model", False),
        ("callback.on_end(step=self)", "on_end(self, loop)", "loop.model", False),
        # Of any objects of Python and torch.
        ("callback.update(self)", "update(self, loop)", "loop.model", False),
    ],
)
def test_what_a_loop_gives_to_callbacks(
    tmp_path: Path, call: str, method: str, model: str, *, is_one: bool
) -> None:
    own = OWN.format(method, model)
    files = {"main.py": DISPATCHED.format(PLUGIN, call), "own.py": own}
    assert _codes(tmp_path, files, "own.py") == ({"FM423"} if is_one else set())
    files["main.py"] = DISPATCHED.format("None", call)
    assert _codes(tmp_path, files, "own.py") == set()


def test_what_no_loop_goes_through_is_left_alone(tmp_path: Path) -> None:
    main = DISPATCHED.format(PLUGIN, "other.on_end(self)")
    own = OWN.format("on_end(self, loop)", "loop.model")
    assert _codes(tmp_path, {"main.py": main, "own.py": own}, "own.py") == set()


def _codes(folder: Path, files: dict[str, str], wanted: str = "main.py") -> set[str]:
    """Return the codes of what is said of a file, imports and the wrapping left out."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    found = (file for file in scan_paths([folder]).files if file.path == str(folder / wanted))
    return {use.code for file in found for use in file.uses} - {"FM301", "FM303", "FM329"}
