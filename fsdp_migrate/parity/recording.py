"""What happens inside the model: hooks record one run, and compare the other with it as it goes.

A module's hooks are put on before it is sharded. So they see, in both runs, the parameters gathered and the
buffers cast that the module computes with, and its output.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from fsdp_migrate.parity.tensors import Gap, find_gap


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.utils.hooks import RemovableHandle

    from fsdp_migrate.parity.report import Stage


_WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")
_PLACE_OF_OUTPUT = "output"


def clean_name(name: str) -> str:
    """Return a name without what wrappers put into it.

    Example:
        >>> clean_name("_fsdp_wrapped_module.blocks.0._fsdp_wrapped_module.up.weight")
        'blocks.0.up.weight'
    """
    for each in _WRAPPERS:
        name = name.replace(each, "").removesuffix(f".{each[:-1]}")
    return "" if f"{name}." in _WRAPPERS else name


@dataclass(frozen=True)
class Event:
    """What one module showed: a parameter or buffer that it is about to use, or a part of its output."""

    module: str
    what: str
    recomputed: bool
    tensor: torch.Tensor


@dataclass(frozen=True)
class Parted:
    """Where a run parts from the one that it is compared with."""

    stage: Stage
    module: str
    name: str
    gap: Gap


class Recorder:
    """Records the events of one run of a model, a step at a time.

    With ``expected``, the events of the other run, each is compared as it comes, and none is kept.
    ``seconds`` is the time that this took, which is none of the model's. ``on_host`` keeps events in host
    memory.
    """

    def __init__(self, model: nn.Module, wait: Callable[[], None], *, on_host: bool = False) -> None:
        self.wait = wait
        self.on_host = on_host
        self.seconds = 0.0
        self.is_backward = False
        self.events: list[Event] = []
        self.parted: list[Parted] = []
        self.compared = {"used in forward": 0, "output": 0, "recomputed": 0}
        self.used: dict[str, None] = {}
        self._expected: list[Event] | None = None
        self._place = 0
        self._runs = "FSDP2"
        self._is_on, self._sees_own = False, True
        self._handles: list[RemovableHandle] = []
        for name, module in model.named_modules():
            own = [each for each, _ in module.named_parameters(recurse=False)]
            buffers = [each for each, _ in module.named_buffers(recurse=False)]
            before = module.register_forward_pre_hook(self._before(clean_name(name), (*own, *buffers)))
            after = module.register_forward_hook(self._after(clean_name(name)))
            self._handles += [before, after]

    def start(self, expected: list[Event] | None, *, runs: str = "FSDP2") -> None:
        """Begin a step; compare what ``runs`` shows with the events of the other run, or keep it."""
        self.seconds, self.is_backward, self._is_on = 0.0, False, True
        self.events, self.parted, self._place = [], [], 0
        self._sees_own = True
        self._expected, self._runs = expected, runs
        self.compared = dict.fromkeys(self.compared, 0)

    def pause(self) -> None:
        """See nothing until :meth:`go_on`."""
        self._is_on = False

    def go_on(self) -> None:
        """Go on with a step, in another forward: what modules own is that of the first, outputs are seen."""
        self.is_backward, self._is_on, self._sees_own = False, True, False

    def remove(self) -> None:
        """Take all hooks off the model."""
        self._is_on, self.events, self._expected = False, [], None
        for handle in self._handles:
            handle.remove()

    def stop(self) -> None:
        """End a step. Events of the other run that did not come are a difference."""
        self._is_on = False
        expected = self._expected
        if expected is not None and self._place < len(expected) and not self._has_lost_its_way():
            missing = expected[self._place]
            self._part("order of modules", missing, Gap(words=f"it runs under {self._other()} only"))

    def _other(self) -> str:
        return "FSDP1" if self._runs == "FSDP2" else "FSDP2"

    def _has_lost_its_way(self) -> bool:
        return any(each.stage == "order of modules" for each in self.parted)

    def _before(self, name: str, own: tuple[str, ...]) -> Callable[[nn.Module, Any], None]:
        def hook(module: nn.Module, args: Any) -> None:
            del args
            if self._is_on and self._sees_own:
                with self._not_counted():
                    for each in own:
                        self._see(name, each, getattr(module, each, None))

        return hook

    def _after(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            del module, args
            if self._is_on:
                with self._not_counted():
                    for part, tensor in tensors_in(output, _PLACE_OF_OUTPUT):
                        self._see(name, part, tensor)

        return hook

    def _not_counted(self) -> _Stopwatch:
        return _Stopwatch(self)

    def _see(self, module: str, what: str, tensor: Any) -> None:
        if not isinstance(tensor, torch.Tensor) or isinstance(tensor, DTensor) or tensor.is_meta:
            return  # a module that runs outside its unit's forward sees shards; it would fail by itself
        if not what.startswith(_PLACE_OF_OUTPUT):
            self.used[f"{module}.{what}" if module else what] = None
        event = Event(module, what, self.is_backward, tensor.detach())
        if self._expected is None:
            kept = tensor.detach()
            kept = kept.to("cpu", copy=True) if self.on_host else kept.clone()
            self.events.append(Event(module, what, self.is_backward, kept))
        elif not self._has_lost_its_way():  # once the order differs, places no longer mean the same
            self._compare(event)

    def _compare(self, found: Event) -> None:
        assert self._expected is not None
        stage = _stage_of(found)
        if self._place >= len(self._expected):
            self._part("order of modules", found, Gap(words=f"it runs under {self._runs} only"))
            return
        expected = self._expected[self._place]
        self._place += 1
        if (expected.module, expected.what, expected.recomputed) != (
            found.module,
            found.what,
            found.recomputed,
        ):
            words = f"`{expected.module}` ({expected.what}) comes here under {self._other()}"
            self._part("order of modules", found, Gap(words=words))
            return
        self.compared[stage] += 1
        own, other = found.tensor, expected.tensor.to(found.tensor.device)
        both = (other, own) if self._runs == "FSDP2" else (own, other)
        if (gap := find_gap(*both)) is not None:
            self._part(stage, found, gap)

    def _part(self, stage: Stage, event: Event, gap: Gap) -> None:
        name = event.module if event.what.startswith(_PLACE_OF_OUTPUT) else event.what
        if event.what.startswith(f"{_PLACE_OF_OUTPUT}."):
            name = f"{event.module}, {event.what}"
        elif name is event.what and event.module:
            name = f"{event.module}.{event.what}"
        self.parted.append(Parted(stage, event.module, name, gap))


class _Stopwatch:
    """Adds the time of a block to what the recorder took."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __enter__(self) -> None:
        self._recorder.wait()
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._recorder.wait()
        self._recorder.seconds += time.perf_counter() - self._began


def _stage_of(event: Event) -> Stage:
    if event.recomputed:
        return "recomputed"
    return "output" if event.what.startswith(_PLACE_OF_OUTPUT) else "used in forward"


def tensors_in(value: Any, place: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in an output, each with its place in it."""
    if isinstance(value, torch.Tensor):
        yield place, value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from tensors_in(each, f"{place}.{name}")
    elif isinstance(value, (tuple, list)):
        for number, each in enumerate(value):
            yield from tensors_in(each, f"{place}.{number}")
