"""The mixed precision that a source gives its Accelerator, which makes the policy of the plugin beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from fsdp_migrate.source.python.heirs import ACCELERATES, led_to
from fsdp_migrate.source.python.nodes import given_by_name
from fsdp_migrate.source.python.values import Values


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.findings import Finding
    from fsdp_migrate.source.python.text import Source


_CASTS: Final = frozenset({"bf16", "fp16"})
_CODE: Final = "FM354"
_DTYPES: Final = ("bfloat16", "float16")
_WHERE: Final = 'where the Accelerator has `mixed_precision="bf16"` or `"fp16"`, '


class Precision(NamedTuple):
    """A word of Accelerate's, and whether nothing else may hold when it runs."""

    word: str
    is_sure: bool = True


def precision_of_accelerator(source: Source) -> Precision | None:
    """Return the ``mixed_precision`` of the Accelerators here; one of those that cast, where it is not known.

    An Accelerator that is given none takes that of its launch, which is said of the launch's config.
    """
    found = list(_given(source))
    told = [word for word in found if word is None or word in _CASTS]
    if not told:
        return None
    return Precision(next(filter(None, told), "bf16"), is_sure=len(found) == 1 and None not in told)


def _given(source: Source) -> Iterator[str | None]:
    """Yield what each Accelerator is given; None where that is known only when it runs."""
    for call in source.calls:
        if not any(map(ACCELERATES.match, led_to(source.index, call.func))):
            continue
        named = given_by_name(call, "mixed_precision")
        for value in named:
            values = Values(source)
            read = values.read(value)
            yield None if values.has_unread(read) else str(read)
        if not named and any(arg.star == "**" for arg in call.args):
            yield None


def where_it_casts(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings with a condition before what is said of a precision that is not known."""
    return tuple(_conditional(each) if each.code == _CODE else each for each in findings)


def _conditional(finding: Finding) -> Finding:
    message = finding.message
    for dtype in _DTYPES:
        message = message.removeprefix(f"{dtype}: ").replace(f"to {dtype}", "to that dtype")
    return replace(finding, message=f"{_WHERE}{message}")
