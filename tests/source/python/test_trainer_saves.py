"""Contexts around what Hugging Face's Trainer saves by itself go away."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import rewrite_source
from tests.source.samples import turned


pytestmark = pytest.mark.any_torch

IMPORTS = (
    "import os\n\nimport transformers\nfrom transformers import Trainer\n"
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    "from torch.distributed.fsdp import FullStateDictConfig, StateDictType\n\n"
)
FULL = "StateDictType.FULL_STATE_DICT"
OWN = "class Own(Trainer):\n    def {}(self, *given):\n        torch.save(self.model.state_dict(), 'a')\n\n\n"


def after(body: str) -> str:
    """Return what becomes of a source."""
    return turned(f"{IMPORTS}\n{body}", "")


IN_CONTEXT = f"with FSDP.state_dict_type(trainer.model, {FULL}):\n    "
OF_A_FUNCTION = """\
def save(trainer: transformers.Trainer):
    policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(trainer.model, StateDictType.FULL_STATE_DICT, policy):
        trainer.save_model()
"""
OF_ITSELF = """\
class Own(Trainer):
    def save_model(self, out):
        with FSDP.state_dict_type(self.model, StateDictType.FULL_STATE_DICT):
            super().save_model(out)
"""
SEVERAL = (
    "trainer = Trainer(net, args)\n{}trainer.save_model(os.path.join(out, 'a'))\n{}trainer.save_state()\n"
)
OF_AN_HEIR = f"{OWN.format('log')}trainer = Own(net, args)\n{{}}trainer.save_model()\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (OF_A_FUNCTION, "def save(trainer: transformers.Trainer):\n    trainer.save_model()\n"),
        (OF_ITSELF, "    def save_model(self, out):\n        super().save_model(out)\n"),
        (SEVERAL.format(IN_CONTEXT, "    "), SEVERAL.format("", "")),
        (OF_AN_HEIR.format(IN_CONTEXT), OF_AN_HEIR.format("")),
    ],
)
def test_the_context_goes(body: str, expected: str) -> None:
    found = after(body)
    assert found.endswith(expected)
    assert "FM307" not in found


@pytest.mark.parametrize(
    "body",
    [
        # Of a class of the project's own, it may ask the model for its state.
        "def save(trainer):\n    with {}:\n        trainer.save_model()\n",
        "def save(trainer: Mine):\n    with {}:\n        trainer.save_model()\n",
        f"{OWN.format('save_model')}trainer = Own(net, args)\nwith {{}}:\n    trainer.save_model()\n",
        f"{OWN.format('_save')}trainer = Own(net, args)\nwith {{}}:\n    trainer.save_model()\n",
        "trainer = Trainer(net, args) if a else Mine(net)\nwith {}:\n    trainer.save_model()\n",
        # Something else may ask for it as well.
        "trainer = Trainer(net, args)\nwith {}:\n    trainer.save_model()\n    export(trainer)\n",
        "trainer = Trainer(net, args)\nwith {}:\n    trainer.train()\n",
        "trainer = Trainer(net, args)\nwith {}:\n    other.save_model()\n",
    ],
)
def test_what_may_ask_for_the_state_keeps_it(body: str) -> None:
    source = body.format(f"FSDP.state_dict_type(trainer.model, {FULL})")
    assert "FM307" in rewrite_source(f"{IMPORTS}\n{source}")


def test_of_sharded_states_the_comment_says_what_is_to_be_set() -> None:
    sharded = IN_CONTEXT.replace("FULL", "SHARDED")
    found = after(f"trainer = Trainer(net, args)\n{sharded}trainer.save_model()\n")
    assert "own `state_dict_type` says" in " ".join(found.replace("#", " ").split())


OF_STATE = """\
class Own({base}):
    def save_model(self, out, _internal_call=False):
        policy = FullStateDictConfig(offload_to_cpu={offload}, rank0_only=True)
        with FSDP.state_dict_type(self.model, StateDictType.FULL_STATE_DICT, policy):
            state = self.model.state_dict()
        {first}
        {then}
"""
GIVES = "self._save(out, state_dict=state)"


@pytest.mark.parametrize("offload", ["True", "False"])
@pytest.mark.parametrize(
    ("base", "first", "then", "is_said"),
    [
        ("Trainer", GIVES, "print(len(state))", True),
        ("Trainer", f"if self.args.should_save:\n            {GIVES}", "report(state)", True),
        ("Trainer", "super()._save(out, state)", "report(state)", True),
        ("Trainer", "print(len(state))", GIVES, False),
        ("Trainer", "self._save(out, state_dict=dict(state))", "print(len(state))", False),
        ("Trainer", f"if full:\n            {GIVES}", "else:\n            report(state)", False),
        ("Trainer", "torch.save(state, out)", "print(len(state))", False),
        ("Saver", GIVES, "print(len(state))", False),
    ],
)
def test_a_state_that_the_trainer_takes_apart(
    offload: str, base: str, first: str, then: str, *, is_said: bool
) -> None:
    result = after(OF_STATE.format(base=base, offload=offload, first=first, then=then))
    assert ("takes each entry out of this state now" in result) is is_said
