"""Holds the documents to what the code does: codes, commands, options, and everything that they show."""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, get_args
from xml.etree import ElementTree

import pytest
import typer

from fsdp_migrate.cli import main
from fsdp_migrate.cli.app import app
from fsdp_migrate.config import FSDP1Config
from fsdp_migrate.finding_code import Fidelity
from fsdp_migrate.finding_codes import FINDING_CODES
from fsdp_migrate.left_comments import stops_runs
from fsdp_migrate.sharding.prepare import prepare_fully_shard
from tests import readme_bodies as readme
from tests.rank_bodies import checkpoints
from tests.ranks import ROOT, run_ranks
from tools import architecture_page, findings_table, known_issues, picture


if TYPE_CHECKING:
    from pathlib import Path


README = (ROOT / "README.md").read_text()
CLI = (ROOT / "docs" / "cli.md").read_text()
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
OPTIONS = [
    (name, option)
    for name, command in COMMANDS.items()
    for parameter in command.params
    for option in parameter.opts
    if option.startswith("--") and option != "--help"
]
SHOWN = [
    line.removeprefix("$ ").partition("#")[0].strip()
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
NAMED_FILES = sorted(
    set(re.findall(r"`((?:[a-z_0-9]+/)+(?:[a-z_0-9]+\.(?:py|md|toml))?)`", ARCHITECTURE + CONTRIBUTING))
)
CODES_OF_TESTS = {
    code for path in (ROOT / "tests").rglob("*.py") for code in re.findall(r"FM\d{3}", path.read_text())
}
TARGETS = re.findall(r"(?:`|\$ )make ([a-z-]+)", README + CONTRIBUTING)


def section(page: str, title: str) -> str:
    """Return what stands under a heading of the second level."""
    found = re.search(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return found.group(1) if found else ""


def test_the_table_of_finding_codes_is_up_to_date() -> None:
    assert findings_table.main(["--check"]) == 0, "run `python tools/findings_table.py`"


def test_an_outdated_table_of_codes_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "findings.md"
    shutil.copy(findings_table.PAGE, page)
    monkeypatch.setattr(findings_table, "PAGE", page)
    assert findings_table.main([]) == 0
    assert findings_table.main(["--check"]) == 0
    page.write_text(page.read_text().replace("| FM001 |", "| FM999 |"))
    assert findings_table.main(["--check"]) == 1


def test_the_page_of_known_issues_is_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert known_issues.main(["--check"]) == 0, "run `python tools/known_issues.py`"
    page = tmp_path / "known-issues.md"
    page.write_text(known_issues.PAGE.read_text().replace("### gloo-averages", "### other"))
    monkeypatch.setattr(known_issues, "PAGE", page)
    assert known_issues.main(["--check"]) == 1
    assert known_issues.main([]) == 0
    assert known_issues.main(["--check"]) == 0


@pytest.mark.any_torch
def test_the_page_of_the_architecture_is_up_to_date() -> None:
    assert architecture_page.main(["--check"]) == 0, "run `python tools/architecture_page.py`"


@pytest.mark.slow
@pytest.mark.any_torch
def test_an_outdated_picture_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "architecture.md"
    page.write_text(architecture_page.PAGE.read_text().replace("cli --> demo", "demo --> cli"))
    monkeypatch.setattr(architecture_page, "PAGE", page)
    assert architecture_page.main(["--check"]) == 1
    assert architecture_page.main([]) == 0
    assert page.read_text() == (ROOT / "docs" / "architecture.md").read_text()


def test_the_site_draws_the_picture_without_a_program_from_elsewhere() -> None:
    found = picture.BLOCK.search(ARCHITECTURE)
    assert found is not None
    drawn = ElementTree.fromstring(picture.draw(found[1]))
    boxes = [
        [float(each.attrib[name]) for name in ("x", "y", "width", "height")]
        for each in drawn.iter("rect")
        if "class" not in each.attrib
    ]
    assert len(boxes) == found[1].count('["') - found[1].count("subgraph")
    for number, (x, y, width, height) in enumerate(boxes):
        for other_x, other_y, other_width, other_height in boxes[:number]:
            beside = x >= other_x + other_width or other_x >= x + width
            assert beside or y >= other_y + other_height or other_y >= y + height
    arrows = [re.findall(r"-?\d+", each.attrib["d"]) for each in drawn.iter("path") if "class" in each.attrib]
    assert len(arrows) == found[1].count(" --> ")
    assert all(int(points[1]) < int(points[-1]) for points in arrows)


@pytest.mark.parametrize("path", NAMED_FILES)
def test_every_file_that_contributors_are_sent_to_is_there(path: str) -> None:
    starts = (ROOT, *(ROOT / folder for folder in ("fsdp_migrate", "adapters", "checkpoint_convert")))
    assert any((start / path).exists() for start in starts)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_is_documented(command: str) -> None:
    assert section(CLI, command)
    assert COMMANDS[command].help


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_every_option_is_documented(command: str, option: str) -> None:
    assert re.search(rf"^\| `{option}[ `]", section(CLI, command), re.MULTILINE)


def test_no_option_is_documented_that_does_not_exist() -> None:
    documented = {
        (command, option)
        for command in COMMANDS
        for option in re.findall(r"^\| `(--[a-z-]+)", section(CLI, command), re.MULTILINE)
    }
    assert documented == set(OPTIONS)


def test_process_groups_are_ended_by_our_own_function() -> None:
    """Also in what is shown: docstrings, pages, and the scripts that are written as text."""
    name = "destroy_process_group"
    may = {"fsdp_migrate/torch_compat/process_groups.py", "docs/runtime.md", "docs/rules.md", "CHANGELOG.md"}
    may |= {
        "fsdp_migrate/doctor/source_faults.py",
        "docs/known-issues.md",
        "tests/doctor/test_source_faults.py",
    }
    may |= {"fsdp_migrate/source/ended_groups.py", "tests/cli/test_scan.py"}
    may |= {"tests/rank_scripts/one_after_the_other.py", "tests/rank_bodies/scripts.py", "tests/test_docs.py"}
    folders = [
        path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "." and path.name != "build"
    ]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".md")]
    found = {str(path.relative_to(ROOT)) for path in [*files, *ROOT.glob("*.md")] if name in path.read_text()}
    assert found - may == set()
    assert "fsdp_migrate/torch_compat/process_groups.py" in found


def test_the_architecture_tells_of_every_package() -> None:
    packages = {
        path.name for path in (ROOT / "checkpoint_convert").iterdir() if (path / "__init__.py").exists()
    }
    assert packages <= set(re.findall(r"^\| `(\w+)/` \|", ARCHITECTURE, re.MULTILINE))


@pytest.mark.parametrize("target", sorted({*TARGETS}))
def test_the_targets_of_make_exist(target: str) -> None:
    subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True, timeout=400)


@pytest.mark.any_torch
def test_the_commands_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_ranks(checkpoints.save_fsdp1, str(tmp_path / "CKPT"))
    monkeypatch.chdir(tmp_path)
    commands = [command.split() for command in SHOWN if command.startswith("fsdp-migrate ")]
    assert len(commands) >= 3
    for command in commands:
        assert main(command[1:]) == 0, capsys.readouterr().err


def test_every_command_that_the_readme_shows_is_tried() -> None:
    known = ("make ", "fsdp-migrate ", "pip install .")
    assert [command for command in SHOWN if not command.startswith(known)] == []


def test_the_code_of_the_readme_runs(tmp_path: Path) -> None:
    readme.save_old_run(tmp_path / "runs" / "old" / "step-4000")
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 3
    for classes in run_ranks(readme.run_blocks, blocks, str(tmp_path)):
        sharded = ["FSDPModel", "FSDPModel", "FSDPModel"]
        assert classes == ["FullyShardedDataParallel", *sharded, "the group has ended"]


@pytest.mark.slow
def test_a_clean_clone_has_the_targets_without_venvs(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "constraints").mkdir()
    for name in ("pyproject.toml", "constraints/core.txt", "constraints/composer.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    planned = subprocess.run(
        ["make", "-n", "demo"], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=400
    ).stdout
    assert "-m venv .venv" in planned
    assert "[dev]" not in planned


def test_the_readme_says_what_becomes_of_every_argument_and_how_faithfully() -> None:
    rows = re.findall(r"^\| (`.+?`) \| .+ \| ([a-z, ]+) \|$", README, re.MULTILINE)
    told = {
        name: set(words.split(", ")) for names, words in rows for name in re.findall(r"`([\w.]+)`", names)
    }
    assert {name for name in told if "." not in name} == set(FSDP1Config.model_fields)
    for words in told.values():
        assert words <= set(get_args(Fidelity))


def test_which_comments_stop_a_run_is_told_truly() -> None:
    page = (ROOT / "docs" / "rules.md").read_text().partition("## Comments that stop a run")[2]
    rows = re.findall(r"^\| (FM\d+) \| (yes|no) \|", page.partition("\n## ")[0], re.MULTILINE)
    assert len(rows) > 5
    assert [code for code, told in rows if stops_runs(code) is not (told == "yes")] == []
    assert [stops_runs(code) for code in re.findall(r"others \((FM\d+)\) do not", README)] == [False]


def test_every_keyword_of_prepare_fully_shard_is_documented() -> None:
    page = (ROOT / "docs" / "prepare.md").read_text()
    parameters = inspect.signature(prepare_fully_shard).parameters
    keywords = [name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY]
    assert [name for name in keywords if f"| `{name}` |" not in page] == []
    assert len(keywords) > 5


PAGES = [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md"), ROOT / "examples" / "README.md"]
SITE = (ROOT / "mkdocs.yml").read_text()


def broken_links(text: str, page: Path) -> list[str]:
    """Return the links and anchors of a page that lead nowhere, on GitHub or in the site."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        is_outside = page.parent.name == "docs" and "/" in path  # the site has the folder alone
        if is_outside or not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            found.append(link)
    return found


def anchors(text: str) -> set[str]:
    """Return the anchors of headings for which GitHub and the site have the same name."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    names = (
        re.sub(r"[^\w\s-]", "", title.lower()).strip()
        for title in re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    )
    return {name.replace(" ", "-") for name in names if not re.search(r"[\s-]{2}", name)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken_links(page.read_text(), page) == []


def test_a_broken_link_is_noticed() -> None:
    page = ROOT / "docs" / "why.md"
    broken = ["prepare.md#no-such", "gone.md", "../README.md", "#g"]
    text = "[right](prepare.md#in-which-order) `[code](x)` " + " ".join(f"[wrong]({link})" for link in broken)
    assert broken_links(text, page) == broken


MODELS = (ROOT / "docs" / "models.md").read_text()
KINDS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in MODELS.partition("\n## ")[0].splitlines()
    if line.startswith("| ") and not line.startswith("| kind |")
]


@pytest.mark.parametrize("row", KINDS, ids=lambda row: row[0][:20])
def test_what_is_said_of_a_kind_of_model_is_so(row: list[str]) -> None:
    """Its findings are what the columns say, a test meets each, and what shows it is there."""
    _, works, changes, refused, shown = row
    codes = {cell: set(re.findall(r"FM\d{3}", cell)) for cell in (works, changes, refused)}
    assert {FINDING_CODES[code].fidelity for code in codes[refused]} <= {"refused"}
    assert "refused" not in {FINDING_CODES[code].fidelity for code in codes[works] | codes[changes]}
    assert {code for each in codes.values() for code in each if code not in CODES_OF_TESTS} == set()
    files = re.findall(r"`([\w/]+\.py)`", shown)
    assert files
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_kinds_of_models_are_all_there() -> None:
    words = (
        "skip",
        "Unfreezing",
        "PEFT",
        "QLoRA",
        "Int8Params",
        "fp8",
        "Muon",
        "Adafactor",
        "Experts",
        "Tied",
    )
    assert [word for word in words if word not in " ".join(row[0] for row in KINDS)] == []


def test_the_site_has_every_page_once() -> None:
    pages = re.findall(r": ([\w-]+\.md)$", SITE, re.MULTILINE)
    assert sorted(pages) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_the_page_of_the_api_names_what_is_there() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    for name in re.findall(r"^::: (.*)$", page, re.MULTILINE):
        module, _, attribute = name.rpartition(".")
        if "composer_callback" not in module:  # it imports Composer
            assert hasattr(importlib.import_module(module), attribute), name


@pytest.mark.parametrize("page", ["index.md", "tutorial.md", "frameworks.md"])
def test_commands_of_the_first_pages_are_there(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    shown = re.findall(r"(?:\$ |`)fsdp-migrate (\w+)([^`\n]*)", text)
    assert shown
    for command, rest in shown:
        assert set(re.findall(r"--[a-z-]+", rest.partition("#")[0])) <= {
            option for name, option in OPTIONS if name == command
        }, (command, rest)
        assert command in COMMANDS
        # A checkpoint alone has no config.json, which from_pretrained looks for.
        assert "--to hf" not in rest or "--hf-config" in rest, rest
