"""Microbatches of Composer's Trainer: what FSDP2 communicates in each, and what if memory runs out."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fsdp_migrate.errors import BatchOutOfMemoryError
from fsdp_migrate.microbatch import Microbatches, microbatches


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fsdp_migrate.microbatch import Comms


logger = logging.getLogger(__name__)


class AgreementSwitch:
    """Whether ranks agree before each collective, in the hands of Composer's search for a microbatch size.

    Composer hangs hooks on FSDP1's units while it searches, takes them off after three batches that fitted,
    and hangs them on again when memory gets short. To it this is one module: hooks on, agreement on.
    """

    def __init__(self) -> None:
        self.is_on = False

    def register_full_backward_hook(self, hook: Callable[..., Any]) -> AgreementSwitch:
        """Switch on; called as if on a module. Returns the handle that switches off."""
        del hook
        self.is_on = True
        return self

    def remove(self) -> None:
        """Switch off; called as if on the handle of a hook."""
        self.is_on = False


class MicrobatchDriver:
    """Runs the microbatches of a Trainer's batch as :func:`~fsdp_migrate.microbatch.microbatches` does."""

    def __init__(self, comms: Comms, out_of_memory: Callable[[], Exception]) -> None:
        self.comms: Comms = comms
        self._out_of_memory = out_of_memory
        self.switch = AgreementSwitch()
        self._running: Microbatches[Any] | None = None

    def attach(self, state: Any) -> None:
        """Show Composer's search for a microbatch size the switch, where it looks for FSDP1's hooks."""
        if state.auto_microbatching:
            # Composer's `_readd_fsdp_sync_hooks` gives what is no FSDP1 module a full backward hook alone.
            state.fsdp_modules = {"": self.switch}
            # `print` is never called: the switch takes any hook, and looks at none.
            state.automicrobatch_fsdp_hook_handles = [self.switch.register_full_backward_hook(print)]

    @contextmanager
    def batch(self, state: Any, parts: Sequence[Any]) -> Iterator[None]:
        """Surround Composer's loop over the microbatches of a batch.

        Raises:
            RuntimeError: Composer's own, if any rank ran out of memory while it searches for a size.
        """
        searches = bool(state.auto_microbatching)
        agree = searches and self.switch.is_on
        try:
            with microbatches(state.model, parts, comms=self.comms, agree=agree) as running:
                self._running = running
                # Its own check after each forward would wait for ranks that are voting here.
                state.auto_microbatching = searches and not agree
                yield
        except BatchOutOfMemoryError as error:
            if not searches:
                raise
            logger.info("%s", error)
            # Not `from error`: its traceback holds activations.
            raise self._out_of_memory() from None
        finally:
            state.auto_microbatching = searches
            self._running = None

    @contextmanager
    def microbatch(self, *, is_last: bool) -> Iterator[None]:
        """Surround one microbatch; the last one also joins those of ranks that have more."""
        if self._running is None:
            yield
            return
        next(self._running)
        yield
        # Composer stops after its last one, and asks for no more: what comes after it is done here.
        if is_last:
            next(self._running, None)
