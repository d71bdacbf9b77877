"""Every source in every target: the table in docs/checkpoints.md, held against what happens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fsdp_migrate.checkpoint_convert import (
    OutputOptions,
    SourceOptions,
    convert_checkpoint,
    inspect_checkpoint,
    verify_checkpoints,
)
from fsdp_migrate.checkpoint_convert.targets.frameworks import TARGETS
from fsdp_migrate.errors import PlanError
from tests.checkpoint.every_source import SOURCES, make_sources


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert.manifest.options import StateDictForm
    from tests.checkpoint.rank_sources import RankSources


pytestmark = pytest.mark.any_torch


DOCUMENT = Path(__file__).parents[2] / "docs" / "checkpoints.md"
OPTIONS = OutputOptions(optimizer_class="AdamW")
FORMS: tuple[StateDictForm, ...] = ("sharded", "full")


@pytest.fixture(scope="module")
def sources(
    rank_sources: RankSources, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, SourceOptions]]:
    return make_sources(rank_sources, tmp_path_factory.mktemp("sources"))


def cell(source: str, to: str) -> str:
    """Return what the document says about a pair."""
    lines = DOCUMENT.read_text().splitlines()
    header = next(line for line in lines if line.startswith("| source"))
    row = next(line for line in lines if line.startswith(f"| {source} |"))
    columns = [column.strip(" `") for column in header.strip("|").split("|")]
    return row.strip("|").split("|")[columns.index(to)].strip()


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_pair(source: str, to: str, sources: dict[str, tuple[Path, SourceOptions]], tmp_path: Path) -> None:
    wanted = cell(source, to)
    path, options = sources[source]
    arguments: dict[str, Any] = {"to": to, "options": options, "output_options": OPTIONS}
    if wanted != "yes":
        with pytest.raises(PlanError) as caught:
            convert_checkpoint(path, tmp_path / "out", **arguments)
        assert {finding.code for finding in caught.value.findings} == {wanted}
        return
    # Accelerate opens one of two forms.
    for form in FORMS if to == "accelerate" else FORMS[:1]:
        asked = replace(OPTIONS, state_dict_type=form)
        convert_checkpoint(path, tmp_path / form, **{**arguments, "output_options": asked})
        report = verify_checkpoints(inspect_checkpoint(path, options=options), tmp_path / form)
        assert report.differences == ()
        models = [part for part in inspect_checkpoint(tmp_path / form).parts if part.kind == "model"]
        assert len(models) == 1
        assert report.tensors > 5


def test_every_source_of_the_document_is_tested() -> None:
    lines = DOCUMENT.read_text().split("## Every source, every target")[1].split("\n\n")[1].splitlines()
    assert [line.strip("|").split("|")[0].strip() for line in lines[2:]] == list(SOURCES)
