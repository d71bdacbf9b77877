"""What asks for FSDP beside sources: recipes, variables in files, images, and settings that are not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from fsdp_migrate.source.launchers import find_launches
from fsdp_migrate.source.steps import next_steps
from fsdp_migrate.source.surroundings import find_configs


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


TRAIN = (
    "import torch\nfrom accelerate import Accelerator\naccelerator = Accelerator()\n"
    "model = accelerator.prepare(net)\ntorch.save(accelerator.unwrap_model(model).state_dict(), 'a.pt')\n"
)
TRAINER = (
    "from transformers import Trainer\ntrainer = Trainer(model=model, args=args)\n"
    "trainer.train()\ntrainer.model.save_pretrained('out')\n"
)
RUN = "\taccelerate launch --use_fsdp train.py\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Makefile", f"train:\n{RUN}"),
        ("justfile", f"train:\n{RUN}"),
        ("tasks.mk", f"train:\n{RUN}"),
        (".env", "ACCELERATE_USE_FSDP=true\n"),
        ("prod.env", "ACCELERATE_USE_FSDP='true'\n"),
        ("run.sh", "export ACCELERATE_USE_FSDP=True\n"),
        ("run", "#!/usr/bin/env bash\nexport ACCELERATE_USE_FSDP=True\n"),
        ("train.sh.wrapper", "#!/bin/sh\naccelerate launch --use_fsdp train.py\n"),
        ("train.cmd", "#!/bin/bash -l\naccelerate launch --use_fsdp train.py\n"),
        ("Dockerfile", "FROM x\nENV ACCELERATE_USE_FSDP true\n"),
        ("pod.yaml", 'env:\n  - name: ACCELERATE_USE_FSDP\n    value: "true"\n'),
        ("compose.yml", 'environment:\n  ACCELERATE_USE_FSDP: "true"\n'),
        ("poe.toml", 'train = "accelerate launch --use_fsdp train.py"\n'),
        ("start.py", "env = dict(os.environ, ACCELERATE_USE_FSDP='true')\n"),
        ("sage.py", "est = PyTorch(environment={'ACCELERATE_USE_FSDP': 'true'})\n"),
    ],
)
def test_whatever_asks_accelerate_for_fsdp_counts(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    assert not scan_paths([tmp_path]).uses
    (tmp_path / name).write_text(text)
    found = {(use.path.rpartition("/")[2], use.code) for use in scan_paths([tmp_path]).uses}
    assert ("train.py", "FM333") in found
    is_said = find_launches([tmp_path]) or find_configs([tmp_path]) or (name, "FM320") in found
    assert is_said


@pytest.mark.parametrize(
    "text",
    [
        "hyperparameters = {'fsdp': '\"full_shard auto_wrap\"'}\n",
        "os.system('torchrun t.py --output_dir o --fsdp \"full_shard auto_wrap\"')\n",
        "run(['torchrun', 't.py', '--output_dir', 'o', '--fsdp', 'full_shard auto_wrap'])\n",
    ],
)
def test_whatever_asks_the_trainer_for_fsdp_counts(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    assert not scan_paths([tmp_path]).uses
    (tmp_path / "start.py").write_text(text)
    found = {(use.path.rpartition("/")[2], use.code) for use in scan_paths([tmp_path]).uses}
    assert found >= {("train.py", "FM333"), ("start.py", "FM327")}


@pytest.mark.parametrize(
    "text",
    [
        "print('run it with --fsdp \"full_shard auto_wrap\"')\n",
        "run(['t.py', '--fsdp', 'full_shard', '--fsdp_config', '{\"version\": 2}'])\n",
        "parser.add_argument('--fsdp', default='full_shard')\n",
    ],
)
def test_a_flag_that_is_shown_or_new_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "start.py").write_text(text)
    assert not [use for use in scan_paths([tmp_path]).uses if use.rule == "launch-flags"]


def test_variables_are_named_with_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("set -a\nACCELERATE_USE_FSDP=true\nFSDP_SHARDING_STRATEGY=2\nset +a\n")
    (found,) = find_launches([tmp_path])
    assert (found.line, found.state, found.framework) == (2, "elsewhere", "accelerate")
    assert "FSDP_RESHARD_AFTER_FORWARD=false" in found.message


def test_a_part_of_a_variable_that_stays_as_it_is_is_not_left_to_be_changed(tmp_path: Path) -> None:
    script = (
        'CMD="accelerate launch --use_fsdp"\n'
        'CMD+=" --fsdp_sharding_strategy FULL_SHARD"\n'
        'CMD+=" --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP"\n'
        "$CMD t.py\n"
    )
    # Each of two commands has what stands above it, and both become FSDP2's.
    other = 'CMD+=" --fsdp_sharding_strategy SHARD_GRAD_OP"\n$CMD u.py\n'
    for text in (script, script + other):
        (tmp_path / "run.sh").write_text(text)
        found = find_launches([tmp_path])
        assert found
        assert [each.line for each in found if each.by_hand] == []


def test_numbers_of_a_script_are_known_where_its_lines_are_looked_at(tmp_path: Path) -> None:
    run = "accelerate launch --num_machines $SLURM_NNODES --num_processes $((SLURM_NNODES * 8)) --use_fsdp"
    script = f"#SBATCH --nodes=4\n{run} --fsdp_sharding_strategy HYBRID_SHARD t.py\n"
    (tmp_path / "run.sbatch").write_text(script)
    assert [each.state for each in find_launches([tmp_path])] == ["changes"]


@pytest.mark.parametrize(
    ("text", "is_said"),
    [
        ('[trainer]\nstrategy = "fsdp"\n', True),
        ('[fsdp_config]\nsharding_strategy = "FULL_SHARD"\n', True),
        ('dependencies = ["torch", "fsdp-tools"]\n', False),
    ],
)
def test_toml_is_named_as_not_read(tmp_path: Path, text: str, *, is_said: bool) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    found = find_configs([tmp_path])
    assert ["TOML, which is not read" in each.message for each in found] == [True] * is_said


@pytest.mark.parametrize(
    "name", ["train.sh.bak", "train~", "train.fsdp1", "train.fsdp1.1", "train.txt", "train.x"]
)
def test_what_is_no_script_of_a_shell_asks_for_nothing(tmp_path: Path, name: str) -> None:
    """Copies that nobody starts, texts that show a script, and what does not begin as one."""
    (tmp_path / "train.py").write_text(TRAIN)
    first = "#!/usr/bin/env python" if name == "train.x" else "#!/bin/bash"
    (tmp_path / name).write_text(f"{first}\naccelerate launch --use_fsdp train.py\n")
    assert not scan_paths([tmp_path]).uses
    assert not find_launches([tmp_path])


PAGE = """\
# Training

Run it so:

```bash
{} train.py --bf16 True \\
    --fsdp "{}"
```
"""


def test_a_command_that_a_page_shows_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "README.md").write_text(PAGE.format("$ torchrun", "full_shard auto_wrap"))
    (found,) = find_launches([tmp_path])
    assert (found.line, found.framework, found.state, found.by_hand) == (6, "hf", "changes", True)
    assert found.command == 'torchrun train.py --bf16 True --fsdp "full_shard auto_wrap"'
    steps = next_steps([str(tmp_path)], scan_paths([tmp_path]), [], [], [found])
    said = "".join(part for each in steps for part in (each.text, *each.commands))
    assert f"({found.place})" in said
    assert f"fsdp-migrate config --command '{found.command}'" in said
    assert f"config {found.path}" not in said


def test_a_comment_ends_a_command_that_goes_on(tmp_path: Path) -> None:
    run = "torchrun train.py --bf16 True \\\n  --fsdp 'full_shard auto_wrap' \\\n  # --tf32 True\n"
    (tmp_path / "run.sh").write_text(run)
    (found,) = find_launches([tmp_path])
    assert (found.state, found.command[-4:]) == ("changes", "rap'")
    (tmp_path / "run.sh").write_text("torchrun train.py \\\n  # --fsdp full_shard \\\n  --x y\n")
    assert find_launches([tmp_path]) == []


@pytest.mark.parametrize(
    ("page", "script", "before"),
    [
        ("README.md", "llama/train.py", ""),
        ("README.md", "a/b/train.py", ""),
        ("docs/run.md", "data/train.py", "cd data\n"),
        ("docs/run.md", "data/train.py", "$ pip install -e . && cd data\n"),
    ],
)
def test_the_script_of_a_page_may_lie_in_another_folder(
    tmp_path: Path, page: str, script: str, before: str
) -> None:
    for name in (page, script):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / script).write_text(TRAINER)
    text = PAGE.format("torchrun", "full_shard auto_wrap").replace("torchrun", f"{before}torchrun")
    (tmp_path / page).write_text(text)
    (found,) = find_launches([tmp_path])
    assert found.framework == "hf"
    assert {use.code for use in scan_paths([tmp_path]).uses} == {"FM333"}


@pytest.mark.parametrize(
    "script",
    ["node_modules/a/train.py", "env/train.py", "docs/train.py", "a/retrain.py", "data/huge/train.py"],
)
def test_a_script_of_others_is_not_what_a_page_starts(tmp_path: Path, script: str) -> None:
    for name in ("docs/page.md", script, "guides/run.md", "env/pyvenv.cfg"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
    (tmp_path / script).write_text(TRAINER)
    (tmp_path / "env/pyvenv.cfg").write_text("")
    (tmp_path / ".gitignore").write_text("data/\n")
    page = "guides/run.md" if script.startswith("docs") else "README.md"
    (tmp_path / page).write_text(PAGE.format("torchrun", "full_shard auto_wrap"))
    assert find_launches([tmp_path]) == []


@pytest.mark.parametrize(
    ("name", "start", "words"),
    [
        ("README.md", "torchrun", "no"),
        ("README.md", "We ran torchrun", "full_shard"),
        ("CHANGELOG.md", "torchrun", "full_shard"),
        ("README.md", "torchrun other/", "full_shard"),
    ],
)
def test_a_page_that_asks_for_nothing_here_is_left(tmp_path: Path, name: str, start: str, words: str) -> None:
    (tmp_path / "train.py").write_text("")
    page = PAGE.format(start, words).replace("other/ ", "other/").replace(' --fsdp "no"', "")
    (tmp_path / name).write_text(page)
    assert find_launches([tmp_path]) == []


@pytest.mark.parametrize(
    ("flag", "is_said"),
    [("--fsdp_cpu_ram_efficient_loading False", False), ("--fsdp_sharding_strategy FULL_SHARD", True)],
)
def test_a_flag_beside_a_config_that_is_fsdp2(tmp_path: Path, flag: str, *, is_said: bool) -> None:
    """`False` and `false` are the same to Accelerate: the config says the rest."""
    (tmp_path / "c.yaml").write_text(
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"
        "  fsdp_reshard_after_forward: true\n  fsdp_state_dict_type: FULL_STATE_DICT\n"
    )
    script = tmp_path / "l.sh"
    script.write_text(
        f'C=c.yaml\nif x; then\n  ARGS="$ARGS {flag}"\nfi\naccelerate launch --config_file $C $ARGS t.py\n'
    )
    assert any(each.state == "changes" for each in find_launches([tmp_path])) is is_said
