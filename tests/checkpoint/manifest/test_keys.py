"""Names of wrappers that come off, and names that come twice."""

from __future__ import annotations

from hypothesis import given, strategies as st

from fsdp_migrate.checkpoint_convert.manifest.keys import (
    WRAPPER_PARTS,
    find_collisions,
    strip_module,
    strip_wrappers,
)


parts = st.sampled_from([*sorted(WRAPPER_PARTS), "module", "a", "b0", "weight", "my_orig_mod"])


@given(st.lists(parts, min_size=1, max_size=8).map(".".join))
def test_stripping_is_idempotent_and_takes_whole_parts(name: str) -> None:
    stripped = strip_wrappers(name)
    assert strip_wrappers(stripped) == stripped
    assert stripped.split(".") == [p for p in name.split(".") if p not in WRAPPER_PARTS] or not stripped
    assert strip_module(stripped).count("module") >= stripped.count("module") - 1


@given(st.dictionaries(st.text(max_size=3), st.text(max_size=1)))
def test_collisions_are_those_names_that_come_twice(renames: dict[str, str]) -> None:
    found = find_collisions(renames)
    new = list(renames.values())
    assert set(found) == {name for name in new if new.count(name) > 1}
    assert all(len(olds) == new.count(name) for name, olds in found.items())
