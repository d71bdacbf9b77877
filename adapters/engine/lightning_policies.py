"""Policies of Lightning's strategy that code of the project makes, which a hook cannot hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.adapters.engine.base import plain_values
from fsdp_migrate.adapters.engine.torch_objects import own_policy, with_siblings


if TYPE_CHECKING:
    from fsdp_migrate.adapters.engine.base import Block, Draft


POLICIES = frozenset({"auto_wrap_policy", "activation_checkpointing_policy"})


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
