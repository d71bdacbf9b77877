"""A process group ends: without a hang, without an abort, and whatever else the process does."""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from fsdp_migrate.runtime import end_process_group
from fsdp_migrate.torch_compat import process_groups
from tests.scripts import run_python, run_torchrun


if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = Path(__file__).parents[1] / "rank_scripts" / "ending_groups.py"


def make_group() -> Any:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_gather([torch.empty(1)], torch.ones(1))
    return dist.group.WORLD


@pytest.fixture
def busy_thread() -> Iterator[None]:
    """A thread of Python that never rests."""
    done = threading.Event()

    def burn() -> None:
        while not done.is_set():
            pass

    thread = threading.Thread(target=burn)
    thread.start()
    yield
    done.set()
    thread.join()


def test_groups_are_made_and_ended_again_and_again() -> None:
    """Without a wait torch 2.7 hangs here for ever; without an end files would be left."""
    assert ", 0 files left" in run_python(SCRIPT, 30, 2)


def test_ranks_end_together() -> None:
    out = run_torchrun(SCRIPT, 10)
    assert out.count("10 rounds") == out.count(", 0 files left") == 2


def test_without_a_group_nothing_happens() -> None:
    end_process_group()
    assert not dist.is_initialized()


def test_who_leaves_with_an_error_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def barrier() -> None:
        raise AssertionError

    make_group()
    monkeypatch.setattr(dist, "barrier", barrier)
    with pytest.raises(KeyError, match="the user's"):
        fail_and_end()
    assert not dist.is_initialized()


def fail_and_end() -> None:
    try:
        raise KeyError("the user's")
    finally:
        end_process_group()


@pytest.mark.usefixtures("busy_thread")
def test_groups_are_kept_where_threads_never_rest_and_torch_would_join_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_groups, "_PATIENCE", 0.1)

    def references_left(*, joins: bool) -> int:
        monkeypatch.setattr(process_groups, "_JOINS_WITH_THE_LOCK", joins)
        group = make_group()
        end_process_group()
        assert not dist.is_initialized()
        return sys.getrefcount(group)

    assert references_left(joins=True) == references_left(joins=False) + 1


def test_gloo_beside_another_default_group_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where NCCL has the parameters, and gloo what lies on the CPU."""
    importlib.import_module("torch.testing._internal.distributed.fake_pg")  # registers the backend
    waited = []
    wait = process_groups.wait_until_threads_rest

    def noted() -> bool:
        waited.append(wait())
        return waited[-1]

    monkeypatch.setattr(process_groups, "wait_until_threads_rest", noted)
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_gather([torch.empty(1)], torch.ones(1), group=dist.new_group(backend="gloo"))
    end_process_group()
    assert (waited, dist.is_initialized()) == ([True], False)


def test_what_the_system_does_not_tell_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_group()
    monkeypatch.setattr(process_groups, "_THREADS", tmp_path / "none")
    end_process_group()
    assert not dist.is_initialized()
