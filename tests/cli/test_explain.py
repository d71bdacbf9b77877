"""The command ``explain``: every code that the program can say is explained, without a network."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.errors import ConfigError, FindingsError
from fsdp_migrate.explanations import EXPLANATIONS, explain_code
from fsdp_migrate.finding_codes import FINDING_CODES
from fsdp_migrate.findings import make_finding, raise_on_findings
from fsdp_migrate.source import rewrite_source
from tests.architecture import package_modules


if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = pytest.mark.any_torch


def test_every_code_has_an_explanation_and_no_other() -> None:
    assert set(EXPLANATIONS) == set(FINDING_CODES)
    named = {
        code for path in package_modules().values() for code in re.findall(r"\bFM\d{3}\b", path.read_text())
    }
    assert named <= set(EXPLANATIONS) | {"FM999"}
    assert len(named) > 100


@pytest.mark.parametrize("code", sorted(FINDING_CODES))
def test_an_explanation_says_why_and_what_to_do(code: str) -> None:
    each = EXPLANATIONS[code]
    assert each.means == FINDING_CODES[code].summary
    for text in (each.why, each.action):
        assert text.endswith(".")
        assert "  " not in text
        assert text.count("`") % 2 == 0
    assert each.why != each.means
    if each.fidelity == "refused":
        assert not each.action.startswith("Nothing"), "a person must do something"


def test_the_commands_and_options_that_explanations_name_exist() -> None:
    from tests.test_docs import COMMANDS, OPTIONS

    text = " ".join(f"{each.why} {each.action}" for each in EXPLANATIONS.values())
    commands = set(re.findall(r"fsdp-migrate (\w+)", text))
    assert commands
    assert commands <= set(COMMANDS)
    options = set(re.findall(r"`(--[a-z-]+)", text))
    assert len(options) > 5
    assert options <= {option for _, option in OPTIONS}


def test_what_a_code_means_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "fm217", "FM001"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    for text in ("FM217 refused", "What it means", "Why", "What to do", "offload_to_cpu=True", "FM001 exact"):
        assert text in said.out


def test_without_a_code_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    shown = re.findall(r"^(FM\d+) ", capsys.readouterr().out, re.MULTILINE)
    assert shown == sorted(FINDING_CODES)


def test_explanations_as_a_document(run_json: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    code, document = run_json("explain", "FM217")
    assert code == 0
    assert document["explanations"] == [explain_code("FM217").as_dict()]


def test_an_unknown_code_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="Did you mean"):
        explain_code("FM2170")
    assert main(["explain", "nothing"]) == 1
    assert "`fsdp-migrate explain` lists them all" in capsys.readouterr().err


def test_errors_and_comments_name_the_command() -> None:
    with pytest.raises(FindingsError, match="`fsdp-migrate explain FM009`"):
        raise_on_findings([make_finding("FM009", "backward_prefetch", "x")], strict=True)
    code = "from torch.distributed.fsdp import FullyShardedDataParallel as F\nm = F(n)\nm.apply(f)\n"
    after = rewrite_source(code)
    comments = [line for line in after.splitlines() if line.startswith("# fsdp-migrate: ")]
    assert comments
    assert all("fsdp-migrate explain FM322" in comment for comment in comments)


def test_what_decides_is_said_where_a_comment_says_that_it_is_not_seen() -> None:
    said = explain_code("FM309").action
    for kind, call in (("FULL", "full_optimizer_state_dict("), ("SHARDED", "sharded_state_dict(")):
        assert f"for {kind}_STATE_DICT " in said.partition("which state is asked for is not seen")[2]
        assert call in said
