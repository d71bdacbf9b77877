"""4-bit layers of the installed bitsandbytes, which compute on the CPU too, train as under FSDP1."""

from __future__ import annotations

from fsdp_migrate.adapters.engine.optimizer_names import OF_BITSANDBYTES
from tests.frameworks import bitsandbytes_bodies
from tests.ranks import run_ranks


def test_4_bit_layers_train_as_under_fsdp1_and_keep_every_byte() -> None:
    for rank in run_ranks(bitsandbytes_bodies.train):
        assert list(rank) == list(bitsandbytes_bodies.STORAGES)
        for storage, found in rank.items():
            losses, state = found["prepared"]
            if storage != "uint8":
                assert losses == found["FSDP1"][0]
                trained = [name for name in state if "base" not in name]
                assert {name: state[name] for name in trained} == {
                    name: found["FSDP1"][1][name] for name in trained
                }
            frozen = {name: value for name, value in found["plain"][1].items() if "base" in name}
            assert {name: state[name] for name in state if "base" in name} == frozen
            assert "0.base.weight.quant_state.bitsandbytes__nf4" in frozen
        # The same bytes and the same adapters, sharded or not.
        assert rank["uint8"]["prepared"][0] == rank["float32"]["prepared"][0]


def test_names_of_the_trainer_that_are_bitsandbytes() -> None:
    found = bitsandbytes_bodies.classes_of_names()
    assert {name for name, module in found.items() if module.startswith("bitsandbytes")} == OF_BITSANDBYTES
    assert len(found) > len(OF_BITSANDBYTES)
