"""Policies of Lightning's strategy that code of the project makes, which a hook cannot hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsdp_migrate.adapters.document.nodes import holds_reference
from fsdp_migrate.adapters.engine.base import is_known, plain_values
from fsdp_migrate.adapters.engine.lightning_hook import RECOMPUTED
from fsdp_migrate.adapters.engine.torch_objects import listed, own_policy, read_objects, with_siblings


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.adapters.engine.base import Block, Draft


POLICIES = frozenset({"auto_wrap_policy", "activation_checkpointing_policy"})


def recomputed(arguments: Mapping[str, Any]) -> Any:
    """Return which layers a strategy recomputes, as far as a hook can hold it; None where it says none."""
    for name in RECOMPUTED:
        value = listed(read_objects(arguments.get(name)))
        if is_known(value) and not holds_reference(value):
            is_own = name in POLICIES and own_policy(arguments[name]) is not None
            return None if is_own else value
    return None


def leave_own_policies(block: Block, draft: Draft) -> None:
    """Say of policies that code of the project makes that they are not in the hook."""
    assert block.node is not None
    values = with_siblings(plain_values(block.node))
    for name in sorted(POLICIES & set(values)):
        maker = own_policy(values[name])
        if maker is None:
            continue
        draft.findings[:] = [finding for finding in draft.findings if finding.subject != block.at(name)]
        text = f"{maker} makes a policy of the project's own: taken out, and not in the hook."
        if name == "auto_wrap_policy":
            hint = f"Import it there, and give its object as `{name!r}` in the arguments: without one, "
            hint += "the root is the only unit."
        else:
            hint = "Give `prepare_fully_shard` the layers' classes as `activation_checkpointing`."
        draft.say("FM355", block.at(name), text, hint)
