"""Outputs behind URLs of which no single file makes a whole: they never look whole before they are."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import fsspec
import pytest

from fsdp_migrate.checkpoint_convert import OutputOptions, convert_checkpoint, inspect_checkpoint
from fsdp_migrate.checkpoint_convert.outputs import object_store_journal
from fsdp_migrate.checkpoint_convert.outputs.object_store import FsspecOutput
from fsdp_migrate.errors import CheckpointError, OutputError, OutputExistsError
from tests.checkpoint.samples import save_run


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = [pytest.mark.any_torch, pytest.mark.slow]

OUT = "memory://half/out"


@pytest.fixture
def fs() -> Iterator[Any]:
    found = fsspec.filesystem("memory")
    yield found
    found.rm("/half", recursive=True)


def contents(fs: Any) -> dict[str, bytes]:
    return {path: fs.cat_file(path) for path in fs.find("/half")}


@pytest.mark.parametrize("form", ["full", "sharded"])
@pytest.mark.parametrize("replaces", [False, True], ids=["new", "replaced"])
def test_half_an_output_is_not_read(
    form: Any, replaces: bool, fs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The optimizer, which comes first, was taken for a checkpoint of its own."""
    monkeypatch.setattr(object_store_journal, "SAVE_SECONDS", 0)
    count, last = itertools.count(), 1 << 60

    def counted(method: str) -> None:
        call = getattr(type(fs), method)

        def until_dead(*args: Any, **more: Any) -> Any:
            if next(count) >= last:
                raise PermissionError("the process is dead")
            return call(fs, *args, **more)

        monkeypatch.setattr(fs, method, until_dead)

    options: dict[str, Any] = {
        "to": "accelerate",
        "output_options": OutputOptions("AdamW", state_dict_type=form),
        "overwrite": replaces,
    }
    old, new = save_run(tmp_path / "old", 1.0), save_run(tmp_path / "new", 2.0)
    convert_checkpoint(new, OUT, **options)
    wanted = contents(fs)
    entries = set(inspect_checkpoint(OUT).entries)
    for method in ("pipe_file", "cp_file", "rm_file", "rm", "open"):
        counted(method)
    for moment in itertools.count():
        last = 1 << 60
        fs.rm("/half", recursive=True)
        if replaces:
            convert_checkpoint(old, OUT, **options)
        count, last = itertools.count(), moment
        with contextlib.suppress(OutputError):
            convert_checkpoint(new, OUT, **options)
        if next(count) <= moment:
            break
        FsspecOutput._active.clear()
        last = 1 << 60
        with contextlib.suppress(CheckpointError):
            assert set(inspect_checkpoint(OUT).entries) == entries, moment
        with contextlib.suppress(OutputExistsError):  # it was whole
            convert_checkpoint(new, OUT, resume=True, **options)
        assert contents(fs) == wanted, moment
    assert moment > (20 if replaces else 5)
