"""The processes that share one conversion, and what they tell each other through torchrun's store.

Rank 0 leads: it makes the output, tells the others what to do, and puts the output in its place. Every rank
gives a sign of life now and then. If one fails, or no sign comes, all stop, rank 0 cleans up, and the error
names the one that failed. There are no collectives, and no process group is left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from fsdp_migrate.arguments import check_arguments, whole_number_from
from fsdp_migrate.errors import FSDPMigrateError, RankError, UnsupportedFeatureError


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import TracebackType

    from torch.distributed import Store
    from typing_extensions import Self


# How long a rank may be silent, and how long it may take until it is there at all.
SILENCE_SECONDS = 60.0
JOIN_SECONDS = 300.0
# torchrun kills what does not end within 30 s after another rank has failed.
_STOP_SECONDS: Final = 12.0
_SPEAK_SECONDS: Final = 3.0
_BEAT: Final = 0.5
_POLL: Final = 0.05

FailureKind = Literal["error", "interrupt", "gone"]


@dataclass(frozen=True, slots=True)
class _Failure:
    rank: int
    kind: FailureKind
    text: str


def join_ranks() -> Ranks:
    """Return the ranks that torchrun started, of which this process is one.

    No process group is made, and none is needed.

    Raises:
        UnsupportedFeatureError: torchrun did not start this process.
        RankError: torchrun's store cannot be reached.
    """
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        msg = "There are no other ranks: torchrun did not start this process."
        raise UnsupportedFeatureError(msg, feature="ranks without torchrun")
    from torch.distributed import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    try:
        # The torch that runs this knows whether torchrun or rank 0 holds the store.
        found = next(rendezvous("env://", timeout=timedelta(seconds=JOIN_SECONDS)))
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise RankError(f"torchrun's store at {where} cannot be reached: {error}") from error
    store, rank, world_size = found
    # torchrun restarts ranks with the same store: what the attempt before said there is not of this one.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Ranks(PrefixStore(f"fsdp-migrate/{attempt}", store), rank, world_size)


class Ranks:
    """The ranks that share a conversion; give it to ``convert_checkpoint`` on every one of them.

    Args:
        store: What the ranks tell each other by; its timeout bounds how long its loss goes unnoticed.
        rank: The number of this process.
        world_size: How many there are.

    Raises:
        ConfigError: ``rank`` is not below ``world_size``.

    Example:
        >>> from torch.distributed import HashStore
        >>> with Ranks(HashStore(), 0, 1) as ranks:
        ...     ranks.gather("sizes", {"nbytes": 3})
        [{'nbytes': 3}]
    """

    def __init__(self, store: Store, rank: int, world_size: int) -> None:
        check_arguments(whole_number_from(1), world_size=world_size)
        check_arguments(whole_number_from(0, world_size - 1), rank=rank)
        self.rank = rank
        self.world_size = world_size
        self.done_bytes = 0
        self.others_done = 0
        self._store = store
        self._failure: _Failure | None = None
        self._quit = threading.Event()
        self._watcher: _Watcher | None = None
        self._clean_up: Callable[[BaseException], None] | None = None
        self._speaks = rank == 0

    @property
    def speaks(self) -> bool:
        """Tell whether this rank is the one that reports: rank 0, or another where rank 0 is gone."""
        return self._speaks

    @property
    def was_stopped(self) -> bool:
        """Tell whether the work ended because a rank was interrupted or killed, and for no error."""
        return self._failure is not None and self._failure.kind != "error"

    def __enter__(self) -> Self:
        self._watcher = _Watcher(self, self._store, self._quit)
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        try:
            if error is not None:
                _undisturbed(lambda: self._end(error))
                self._raise_for_other(error)
        finally:
            with contextlib.suppress(RuntimeError):
                self._store.set(f"left/{self.rank}", "1")
                # Rank 0 leaves last: where the store is in its process, the others would lose it.
                if self.rank == 0 and error is None:
                    self._pause(self._are_gone, _STOP_SECONDS)
            self._quit.set()
            if self._watcher is not None:
                self._watcher.join()

    def on_failure(self, clean_up: Callable[[BaseException], None]) -> None:
        """Say what is to be done once a rank has failed and all have stopped; the rank that leads does it."""
        self._clean_up = clean_up

    def check(self) -> None:
        """Raise if another rank has failed.

        Raises:
            RankError: One has.
        """
        failure = self._failure
        if failure is not None and failure.rank != self.rank:
            raise _rank_error(failure)

    def publish(self, topic: str, value: Mapping[str, Any]) -> None:
        """Tell the other ranks something; only rank 0 does."""
        with self._asking():
            self._store.set(topic, json.dumps(value))

    def receive(self, topic: str) -> Any:
        """Wait for what rank 0 publishes; it may take as long as rank 0 is alive."""
        return self._wait_for(topic)

    def gather(
        self, topic: str, value: Mapping[str, Any], waiting: Callable[[], None] | None = None
    ) -> list[Any] | None:
        """Bring the values of all ranks to rank 0, by rank; None on the others.

        Args:
            topic: What the values are of.
            value: That of this rank; plain JSON data.
            waiting: Called now and then on rank 0 until all are there.
        """
        with self._asking():
            self._store.set(f"{topic}/{self.rank}", json.dumps(value))
        if self.rank != 0:
            return None
        return [self._wait_for(f"{topic}/{rank}", waiting) for rank in range(self.world_size)]

    def dismiss(self) -> None:
        """Say that the error has been reported, and let the rank that failed end first: torchrun names it."""
        with contextlib.suppress(RuntimeError):
            self._store.set("spoken", "1")
            if self._failure is not None and self._failure.rank != self.rank:
                self._pause(self._are_gone, _SPEAK_SECONDS)

    def fail(self, rank: int, kind: FailureKind, text: str) -> None:
        """Note that a rank has failed; the first that is noted is the one that counts."""
        with contextlib.suppress(RuntimeError):
            # Counted by the store, so that of ranks that fail at once all name the same one.
            if self._store.add("failures", 1) == 1:
                self._store.set("failed", json.dumps([rank, kind, text]))
        self._failure = self._failure or _Failure(rank, kind, text)

    def look(self) -> None:
        """See whether a failure has been noted."""
        if self._failure is None and self._store.check(["failed"]):
            self._failure = _Failure(*json.loads(self._store.get("failed")))

    def _others(self) -> list[int]:
        return [rank for rank in range(self.world_size) if rank != self.rank]

    def _all(self, topics: Iterable[str]) -> bool:
        return all(self._store.check([topic]) for topic in topics)

    def _are_gone(self) -> bool:
        return self._all(f"left/{rank}" for rank in self._others() if rank != self._gone)

    @property
    def _gone(self) -> int | None:
        failure = self._failure
        return failure.rank if failure is not None and failure.kind == "gone" else None

    def _wait_for(self, topic: str, waiting: Callable[[], None] | None = None) -> Any:
        with self._asking():
            while not self._store.check([topic]):
                self.check()
                if waiting is not None:
                    waiting()
                time.sleep(_POLL)
            return json.loads(self._store.get(topic))

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Say that the store is gone, where it is."""
        try:
            yield
        except RankError:
            raise
        except RuntimeError as error:
            self.check()
            raise _rank_error(_Failure(0, "gone", f"cannot be reached any more: {error}")) from error

    def _pause(self, until: Callable[[], bool], seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not (found := until()) and time.monotonic() < end:
            time.sleep(_POLL)
        return found

    def _end(self, error: BaseException) -> None:
        """Tell the others, wait until they have stopped, and clean up where this rank leads."""
        is_interrupt = isinstance(error, KeyboardInterrupt | SystemExit)
        with contextlib.suppress(RuntimeError):
            if self._watcher is not None:
                # torchrun ends the others when one of them dies, and says no word about it.
                self._watcher.look_around()
            if self._failure is None:
                self.fail(self.rank, "interrupt" if is_interrupt else "error", _text(error))
            self.look()
            self._store.set(f"stopped/{self.rank}", "1")
            # The rank that cleans up waits until the others have stopped: they might still write.
            if self._leads():
                self._speaks = True
                waited = [f"stopped/{rank}" for rank in self._others() if rank != self._gone]
                self._pause(lambda: self._all(waited), _STOP_SECONDS)
        if self._speaks:
            if self._clean_up is not None:
                self._clean_up(error)
            with contextlib.suppress(RuntimeError):
                self._store.set("over", "1")
            return
        with contextlib.suppress(RuntimeError):
            # The others end later: torchrun kills all that are left when one ends with an error.
            # The one that leads waits as long before it cleans up; 24 s and 3 s are less than torchrun's 30.
            self._pause(lambda: self._store.check(["over"]), 2 * _STOP_SECONDS)
            self._pause(lambda: self._store.check(["spoken"]), _SPEAK_SECONDS)

    def _leads(self) -> bool:
        """Tell whether this is the lowest rank that is still there."""
        if self.rank == 0 or self._gone != 0:
            return self.rank == 0
        # A lower rank that is still there says within a moment that it has stopped; if none does, this leads.
        lower = [f"stopped/{rank}" for rank in range(1, self.rank)]
        return not self._pause(
            lambda: any(self._store.check([topic]) for topic in lower), 1.0 if lower else 0
        )

    def _raise_for_other(self, error: BaseException) -> None:
        """Raise the error that names another rank, where this one was only told to end."""
        failure, was_told = self._failure, isinstance(error, KeyboardInterrupt | SystemExit)
        if failure is not None and failure.rank != self.rank and failure.kind != "interrupt" and was_told:
            raise _rank_error(failure) from error


def _text(error: BaseException) -> str:
    return str(error) if isinstance(error, FSDPMigrateError) else f"{type(error).__name__}: {error}"


def _rank_error(failure: _Failure) -> RankError:
    what = {"error": "failed: ", "interrupt": "was interrupted: ", "gone": ""}[failure.kind]
    text = failure.text if failure.kind != "interrupt" else "every rank stopped."
    msg = f"Rank {failure.rank} {what}{text}"
    return RankError(msg)


class _Watcher(threading.Thread):
    """Gives this rank's sign of life, and looks for others': rank 0 for all, the others for rank 0's."""

    def __init__(self, ranks: Ranks, store: Store, quit_: threading.Event) -> None:
        super().__init__(daemon=True, name="ranks")
        self._ranks = ranks
        self._store = store
        self._quit = quit_
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._seen: dict[int, tuple[bytes, float]] = {}
        self._done: dict[int, int] = {}
        self._homes: dict[int, dict[str, Any]] = {}
        self._own = {"host": socket.gethostname(), "machine": _machine(), "pid": os.getpid()}
        watched = range(1, ranks.world_size) if ranks.rank == 0 else (0,)
        self._watched = [rank for rank in watched if rank != ranks.rank]

    def run(self) -> None:
        """Watch until the work is over."""
        count = 0
        try:
            self._store.set(f"home/{self._ranks.rank}", json.dumps(self._own))
            while not self._quit.is_set():
                count += 1
                self._store.set(f"beat/{self._ranks.rank}", f"{count} {self._ranks.done_bytes}")
                self.look_around()
                self._quit.wait(_BEAT)
        except RuntimeError as error:
            if not self._quit.is_set():
                self._ranks.fail(0, "gone", f"cannot be reached any more: {error}")

    def look_around(self) -> None:
        """Look for failures that were noted, and for ranks that ended or fell silent."""
        with self._lock:
            self._ranks.look()
            for rank in self._watched:
                text = self._problem(rank)
                if text is not None and not self._store.check([f"left/{rank}"]):
                    self._ranks.fail(rank, "gone", text)
            self._ranks.others_done = sum(self._done.values())

    def _problem(self, rank: int) -> str | None:
        """Say what is wrong with a rank, or return None."""
        now = time.monotonic()
        if not self._store.check([f"beat/{rank}"]):
            if now - self._start > JOIN_SECONDS:
                return f"did not begin within {JOIN_SECONDS:.0f} s. Was it started on every node?"
            return None
        beat = self._store.get(f"beat/{rank}")
        # A beat is new if it differs: clocks of two machines cannot be compared.
        if rank not in self._seen or self._seen[rank][0] != beat:
            self._seen[rank] = (beat, now)
            self._done[rank] = int(beat.split()[1])
        home = self._homes.get(rank)
        if home is None:
            home = self._homes[rank] = json.loads(self._store.get(f"home/{rank}"))
        name = f"(process {home['pid']} on {home['host']})"
        # On one machine this tells in a second what silence tells in a minute or more.
        if home["machine"] == self._own["machine"] and not _is_running(home["pid"]):
            return f"{name} ended without a message: it was killed, perhaps for lack of memory."
        if now - self._seen[rank][1] > SILENCE_SECONDS:
            return f"{name} has given no sign of life for {SILENCE_SECONDS:.0f} s."
        return None


def _machine() -> str:
    """Return what processes have in common that can see each other's process ids."""
    try:
        # Not the host's name: containers may share one, and do not see each other's processes.
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115
    except OSError:
        return f"unknown {os.getpid()}"


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _undisturbed(work: Callable[[], None]) -> None:
    """Do something to its end, whatever signals arrive in the meantime; raise what it raises."""
    problems: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # carried to the calling thread
            problems.append(error)

    # In a thread of its own: Python raises KeyboardInterrupt in the main thread only.
    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            thread.join()
    if problems:
        raise problems[0]
