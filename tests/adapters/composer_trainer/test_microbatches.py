"""The switch that Composer's search for module hooks finds."""

from __future__ import annotations

from fsdp_migrate.adapters.composer_trainer.microbatches import AgreementSwitch


def test_the_switch_is_a_module_to_composers_search() -> None:
    switch = AgreementSwitch()
    handle = switch.register_full_backward_hook(print)
    assert switch.is_on
    handle.remove()
    assert not switch.is_on
