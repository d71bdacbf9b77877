"""Weights that are written where FSDP1 computed with old ones (FM451), or where FSDP2 loses them (FM452).

What is said is measured in ``tests/sharding/test_written_weights.py``.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.left_comments import stops_runs
from fsdp_migrate.source import scan_paths
from tests.source.samples import IMPORTS, turned, uses


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

TWO = "student = FSDP(net)\nteacher = FSDP(other)\n"
EMA = (
    "for p, q in zip(teacher.parameters(), student.parameters()):\n"
    "    p.data.mul_(0.9).add_(q.data, alpha=0.1)\n"
)
TEACH = "with torch.no_grad():\n    wanted = teacher(x)\n"
FREEZE = "for p in teacher.parameters():\n    p.requires_grad = False\n"
STEP = "(student(x) - wanted).mean().backward()\noptimizer.step()\n"
LIMIT = "for p in student.parameters():\n    p.data.clamp_(-c, c)\n"
EVALUATE = "with torch.no_grad():\n    print(student(x))\n"
INSIDE = textwrap.indent(EMA, "    ")
FUNCTION = f"@torch.no_grad()\ndef update(teacher, student):\n{INSIDE}\n\n"
CLASS = """\
class Distil:
    def __init__(self, net, other):
        self.student, self.teacher = FSDP(net), FSDP(other)

    def step(self, x):
        with torch.no_grad():
            wanted = self.teacher(x)
        (self.student(x) - wanted).mean().backward()

    def {}(self):
        for p, q in zip(self.teacher.parameters(), self.student.parameters()):
            p.data.mul_(0.9).add_(q.data)
"""
RUNS = """\
class Trainer:
    def __init__(self, net):
        self.model = FSDP(net)

    def step(self, x):
        self.model(x).mean().backward()

    @torch.no_grad()
    def evaluate(self, x):
        return self.model(x).mean()

    def swap(self):
        for p, q in zip(self.model.parameters(), self.shadow):
            p.data.copy_(q)

    def look(self, x):
        return self.evaluate(x)

    def run(self, data):
        for x in data:
            {}
"""
MOCO = """\
class MoCo(torch.nn.Module):
    @torch.no_grad()
    def average(self):
        for p, q in zip(self.key.parameters(), self.query.parameters()):
            {}

    def forward(self, x):
        q = self.query(x)
        {}
        return q - self.key(x)


model = FSDP(MoCo(){})
model(x).mean().backward()
"""
APART = """\
class MoCo(torch.nn.Module):
    @torch.no_grad()
    def average(self):
        for p, q in zip(self.{}.parameters(), self.query.parameters()):
            p.data.mul_(0.9).add_(q.data)

    def forward(self, x):
        q = self.query(x)
        with torch.no_grad():
            k = self.key(x)
        return q - k


model = FSDP(MoCo(){})
for x in loader:
    model.module.average()
    model(x).mean().backward()
"""
SHARDED_ONCE = ", use_orig_params=True, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP"
IN_PLACE = "p.data.mul_(0.9).add_(q.data)"


def loop(*bodies: str) -> str:
    lines = "".join(bodies).splitlines(keepends=True)
    return "for x in loader:\n" + "".join(f"    {line}" for line in lines)


def told(body: str) -> list[tuple[str, str]]:
    """Return the code and the text of each use that the rule finds."""
    found = [use for use in uses(body) if use.rule == "written-weights"]
    assert {use.action for use in found} <= {"commented"}
    return [(use.code, use.becomes) for use in found]


@pytest.mark.parametrize(
    "body",
    [
        f"{TWO}{loop(TEACH, STEP, EMA)}",
        f"{TWO}{loop(EMA, TEACH, STEP)}",
        f"{TWO}teacher.requires_grad_(False)\n{loop('wanted = teacher(x)', chr(10), STEP, EMA)}",
        TWO + FREEZE + loop("wanted = teacher(x)\n", STEP, EMA),
        f"{TWO}{TEACH}{EMA}",
        f"{FUNCTION}{TWO}{loop(TEACH, STEP, 'update(teacher, student)', chr(10))}",
        f"{TWO}{loop(TEACH, STEP, 'torch._foreach_mul_(list(teacher.parameters()), 0.9)', chr(10))}",
        f"{TWO}{loop(TEACH, STEP, 'for p in teacher.parameters():', chr(10), '    p *= 0.9', chr(10))}",
        TWO + loop(TEACH.replace("teacher(x)", "teacher.encode(x)"), STEP, EMA),
        CLASS.format("update"),
    ],
)
def test_a_model_that_runs_without_gradients_alone(body: str) -> None:
    ((code, text),) = told(body)
    assert code == "FM451"
    assert "teacher` runs without gradients alone" in text
    assert "Nothing is to be done" in text


@pytest.mark.parametrize(
    "body",
    [
        f"{TWO}{EMA}{loop(TEACH, STEP)}",  # the first copy: FSDP1 gathered after it
        f"{TWO}{loop(STEP, EMA)}",  # a model that is only saved
        f"{TWO}{loop(TEACH.replace('no_grad', 'enable_grad'), STEP, EMA)}",
        f"{TWO}{loop('wanted = teacher(x)', chr(10), STEP, EMA)}",
        f"{TWO}{loop(TEACH, STEP, EMA)}".replace(
            "FSDP(other)", "FSDP(other, sharding_strategy=ShardingStrategy.NO_SHARD)"
        ),
        f"student, teacher = net, other\n{loop(TEACH, STEP, EMA)}model = FSDP(third)\n",
        f"{TWO}{loop(TEACH, STEP, 'for p in teacher.parameters():', chr(10), '    p.grad.zero_()', chr(10))}",
        TWO + loop(TEACH, STEP, "with FSDP.summon_full_params(teacher):\n", INSIDE),
        TWO
        + "optimizer = torch.optim.SGD(teacher.parameters(), lr=0.1)\n"
        + loop(TEACH, STEP, EMA, "teach()\n"),
        TWO + loop(TEACH.replace("teacher(x)", "teacher.describe(x)"), STEP, EMA),
        TWO + loop(TEACH, "reshard_fsdp_model(teacher)\n", STEP, EMA),
        CLASS.format("init_teacher"),
    ],
)
def test_what_fsdp1_took_up_is_not_said(body: str) -> None:
    assert told(body) == []


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (loop("student(x).mean().backward()\n", "optimizer.step()\n", EVALUATE, LIMIT), "its next forward"),
        (loop(LIMIT, "student(x).mean().backward()\n", EVALUATE), "its next forward"),
        (loop("student(x).mean().backward()\n", EVALUATE, "optimizer.step()\n"), "before the step"),
        (loop("student(x).mean().backward()\n", EVALUATE, "scaler.step(optimizer)\n"), "before the step"),
    ],
)
def test_a_trained_model_after_an_evaluation(body: str, says: str) -> None:
    ((code, text),) = told(f"student = FSDP(net)\n{body}")
    assert code == "FM451"
    assert "`student` has run without gradients" in text
    assert says in text


@pytest.mark.parametrize(
    "body",
    [
        loop("student(x).mean().backward()\n", "optimizer.step()\n", LIMIT, EVALUATE),
        loop(EVALUATE, "student(x).mean().backward()\n", "optimizer.step()\n", LIMIT),
        loop("student(x).mean().backward()\n", "optimizer.step()\n", EVALUATE),
        loop(EVALUATE, "train_step(student, x)\n", LIMIT),
        loop("student(x).mean().backward()\n", EVALUATE, "scheduler.step()\n"),
        f"{EVALUATE}student(x).mean().backward()\n{LIMIT}",
    ],
)
def test_with_a_backward_between_nothing_is_said(body: str) -> None:
    assert told(f"student = FSDP(net)\n{body}") == []


def test_between_a_forward_and_its_backward_what_is_written_is_lost() -> None:
    body = f"student = FSDP(net)\n{loop('y = student(x)', chr(10), LIMIT, 'y.mean().backward()', chr(10))}"
    ((code, text),) = told(body)
    assert (code, stops_runs(code)) == ("FM452", True)
    assert "Write above the forward, or below the backward" in text


@pytest.mark.parametrize(
    ("above", "is_said"),
    [
        ("student(x).mean().backward()", False),
        ("student(x)[1].sum().backward(retain_graph=True)", False),
        ("torch.autograd.backward(student(x).sum())", False),
        ("student(x).mean().backward(); y = student(x)", True),
    ],
)
def test_below_a_backward_in_the_line_of_the_forward_weights_are_sharded(
    above: str, *, is_said: bool
) -> None:
    body = f"student = FSDP(net)\n{loop(above, chr(10), LIMIT, 'student(x).mean().backward()', chr(10))}"
    assert [code for code, _ in told(body)] == ["FM452"] * is_said


def test_under_no_shard_it_says_that_fsdp1_kept_it_and_what_keeps_it_too() -> None:
    lines = loop("y = student(x)", chr(10), LIMIT, "y.mean().backward()", chr(10))
    (plain,) = told(f"student = FSDP(net)\n{lines}")
    (kept,) = told(f"student = FSDP(net, sharding_strategy=ShardingStrategy.NO_SHARD)\n{lines}")
    assert kept[0] == "FM452"
    assert "NO_SHARD of FSDP1 kept it" in kept[1]
    assert "DistributedDataParallel" in kept[1]
    assert "SHARD_GRAD_OP" not in kept[1]
    assert "DistributedDataParallel" not in plain[1]
    ((_, inside),) = told(
        MOCO.format(IN_PLACE, "self.average()", ", sharding_strategy=ShardingStrategy.NO_SHARD")
    )
    assert "NO_SHARD of FSDP1 kept it. Call this before model(...), from the loop" in inside


@pytest.mark.parametrize("is_above", [True, False])
def test_an_average_of_weights_that_are_whole(*, is_above: bool) -> None:
    parts = [EMA, "y = student(x)\n"] if is_above else ["y = student(x)\n", EMA]
    body = f"{TWO}{loop(*parts, TEACH, '(y - wanted).mean().backward()', chr(10))}"
    found = [code for code, _ in told(body)]
    assert found == (["FM451"] if is_above else ["FM336", "FM451"])


ADAM = "optimizer = torch.optim.Adam(student.parameters())\n"


@pytest.mark.parametrize("forward", ["", "y = student(x)\n"])
def test_an_optimizer_is_made_of_weights_and_runs_nothing(forward: str) -> None:
    """What is written between it and the first forward is written to shards."""
    averages = f"{FUNCTION}{TWO}{ADAM}{forward}update(teacher, student)\n"
    found = [code for code, _ in told(averages + loop(TEACH, STEP, "update(teacher, student)\n"))]
    assert found == (["FM336", "FM451"] if forward else ["FM451"])
    limits = f"student = FSDP(net)\n{ADAM}{forward}{LIMIT}"
    found = [code for code, _ in told(limits + loop("student(x).mean().backward()\n"))]
    assert found == (["FM452"] if forward else [])


def test_no_optimizer_takes_up_what_fsdp1_had_gathered() -> None:
    assert [code for code, _ in told(f"student = FSDP(net)\n{EVALUATE}{ADAM}{LIMIT}")] == ["FM451"]


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (IN_PLACE, "what is written to them is lost"),
        ("p.data = p.data * 0.9 + q.data * 0.1", "nor what it saves"),
    ],
)
@pytest.mark.parametrize("strategy", ["", ", sharding_strategy=ShardingStrategy.NO_SHARD"])
def test_a_forward_that_averages_weights(write: str, says: str, strategy: str) -> None:
    ((code, text),) = told(MOCO.format(write, "self.average()", strategy))
    assert code == "FM452"
    assert says in text


@pytest.mark.parametrize(
    "body",
    [
        MOCO.format(IN_PLACE, "pass", ""),  # called from the loop, of a part that is trained
        APART.format("key", ", use_orig_params=True"),
        APART.format("query", ", sharding_strategy=ShardingStrategy.SHARD_GRAD_OP"),
        MOCO.format("q.grad.mul_(0.5)", "self.average()", ""),
        MOCO.format(IN_PLACE, "self.average()", "").replace("FSDP(MoCo())", "FSDP(net)"),
        MOCO.format(IN_PLACE, "self.average()", "").replace("FSDP(MoCo())", "MoCo()"),
        MOCO.format(IN_PLACE, "self.average()", "").replace("torch.nn.Module", "Helper"),
    ],
)
def test_other_methods_and_other_classes_are_left_alone(body: str) -> None:
    assert told(body) == []


def test_a_comment_stands_above_the_write_and_goes_nowhere_else() -> None:
    after = turned(f"{TWO}{loop(TEACH, STEP, EMA)}").splitlines()
    (place,) = (number for number, line in enumerate(after) if "FM451" in line)
    assert after[place + 1].strip().startswith("p.data.mul_")


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (["self.step(x)", "self.evaluate(x)", "self.swap()"], "FM451"),
        (["self.step(x)", "self.look(x)", "self.swap()"], "FM451"),
        (["self.step(x)", "self.swap()", "self.evaluate(x)"], ""),
        (["self.evaluate(x)", "self.step(x)", "self.swap()"], ""),
        (["self.swap()", "self.step(x)", "self.evaluate(x)"], "FM451"),
        (["loss = self.model(x).mean()", "self.swap()", "loss.backward()"], "FM452"),
        (["self.step(x)", "self.swap()", "other.backward()"], ""),
        (["trainer.evaluate(x)", "trainer.swap()", "self.step(x)"], ""),
    ],
)
def test_methods_of_one_object_run_and_write(lines: list[str], code: str) -> None:
    found = told(RUNS.format("\n            ".join(lines)))
    assert [each for each, _ in found] == ([code] if code else [])


@pytest.mark.parametrize("given", ["", SHARDED_ONCE])
def test_a_part_that_runs_without_gradients_alone(given: str) -> None:
    ((code, text),) = told(APART.format("key", given))
    assert code == "FM451"
    assert "`self.key` runs without gradients alone" in text


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (MOCO.format(IN_PLACE, "self.average()", SHARDED_ONCE), "FM452"),
        (APART.format("key", SHARDED_ONCE), "FM451"),
        (APART.format("key", ", use_orig_params=True"), ""),
    ],
)
def test_a_class_of_another_file(text: str, code: str, tmp_path: Path) -> None:
    """MoCo's own repository has it so: the class in one file, the loop in another."""
    module, _, script = text.partition("\n\nmodel")
    (tmp_path / "builder.py").write_text(f"import torch\n\n\n{module}\n")
    (tmp_path / "train.py").write_text(f"{IMPORTS}from builder import MoCo\n\nmodel{script}")
    (tmp_path / "other.py").write_text(f"import torch\n\n\n{module.replace('MoCo', 'Plain')}\n")
    found = [use for use in scan_paths([tmp_path]).uses if use.rule == "written-weights"]
    assert [(use.path, use.code) for use in found] == ([(str(tmp_path / "builder.py"), code)] if code else [])


@pytest.mark.parametrize(
    ("base", "strategy", "is_said"),
    [
        ("", "", True),
        ("(L.LightningModule)", "", False),
        ("(L.LightningModule)", "SHARD_GRAD_OP", True),
    ],
)
def test_a_part_of_lightnings_module_is_no_root(base: str, strategy: str, is_said: bool) -> None:
    """Its strategy wraps the module around it, and FULL_SHARD gathers the part for each forward."""
    code = CLASS.format("average").replace("class Distil:", f"class Distil{base}:")
    found = {use.code for use in uses(f"STRATEGY = '{strategy}'\n{code}")}
    assert ("FM451" in found) == is_said
