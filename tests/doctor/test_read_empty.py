"""Lines at which FSDP1 read a folder into the state of an optimizer that had not stepped."""

from __future__ import annotations

import pytest

from fsdp_migrate.doctor.read_empty import read_empty
from tests.doctor.sights import seeing


pytestmark = pytest.mark.any_torch

ASK = "FSDP.optim_state_dict(model, optimizer)"
LOAD = "dcp.load(state, checkpoint_id=path)"


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (f"state = {{'o': {ASK}}}\n{LOAD}\n", 2),
        (f"state['o'] = {ASK}\ndist_cp.load_state_dict(state_dict=state, storage_reader=r)\n", 2),
        (f"def load():\n    if o:\n        state['o'] = {ASK}\n    {LOAD}\n", 4),
        # Saved, read into another, in another function, and made from an optimizer that has stepped.
        (f"state = {{'o': {ASK}}}\ndcp.save(state)\n", 0),
        (f"other = {{'o': {ASK}}}\n{LOAD}\n", 0),
        (f"def save():\n    state = {{'o': {ASK}}}\ndef load():\n    {LOAD}\n", 0),
        (f"optimizer.step()\nstate = {{'o': {ASK}}}\n{LOAD}\n", 0),
        (f"state = torch.load(path)\nstate['o'] = {ASK}\nmodel.load(state)\n", 0),
        (f"print 'Python 2'\nstate = {{'o': {ASK}}}\n{LOAD}\n", 0),
    ],
)
def test_a_state_that_nothing_is_read_into(body: str, line: int) -> None:
    assert read_empty(seeing(sources={"train.py": body})) == (f"train.py:{line}" if line else "")
