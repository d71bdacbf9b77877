"""What a comparison trains on: the user's batches, or such as the model's signature asks for."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from fsdp_migrate.errors import ConfigError
from fsdp_migrate.parity.batches import default_loss, feed, move


pytestmark = pytest.mark.any_torch


def fed(model: nn.Module, batches: Any = None, rank: int = 0, steps: int = 2) -> Any:
    return feed(lambda: model, batches, None, steps=steps, rank=rank, world_size=2)


def every_batch() -> list[int]:
    return list(range(8))


def batches_of_rank(rank: int) -> list[int]:
    return [10 * rank, 10 * rank + 1]


@pytest.mark.parametrize(
    ("batches", "expected"),
    [(range(8), (1, 3)), (every_batch, (1, 3)), (batches_of_rank, (10, 11)), (iter(range(8)), (1, 3))],
)
def test_each_rank_takes_its_own_batches(batches: Any, expected: tuple[int, ...]) -> None:
    assert fed(nn.Linear(2, 2), batches, rank=1).batches == expected


@pytest.mark.parametrize(("batches", "said"), [(range(3), "1 batch for 2 steps"), (7, "gives a int")])
def test_too_few_batches_are_refused(batches: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fed(nn.Linear(2, 2), batches, rank=1)


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, *, query: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(query)
        return out


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(nn.Embedding(7, 2), nn.Linear(2, 2)), (2, 8)),
        (nn.Linear(5, 2), (2, 5)),
        (nn.Sequential(nn.Conv2d(3, 1, 3), nn.ReLU()), (2, 3, 32, 32)),
        (nn.TransformerEncoderLayer(4, 1), (2, 4)),
    ],
)
def test_batches_are_made_up_for_the_first_layer(model: nn.Module, shape: tuple[int, ...]) -> None:
    found = fed(model)
    assert [each.shape for each in found.batches] == [shape, shape]
    assert not torch.equal(found.batches[0], found.batches[1])
    assert not torch.equal(found.batches[0], fed(model, rank=1).batches[0])
    assert "were generated" in found.notes[0]
    found.loss(model, found.batches[0]).backward()


@pytest.mark.parametrize("model", [Named(), nn.Bilinear(2, 2, 2)])
def test_where_none_can_be_made_the_user_is_asked(model: nn.Module) -> None:
    with pytest.raises(ConfigError, match="No batches can be made for") as caught:
        fed(model)
    # A command shows this too, where both are options.
    assert "Give `data` (`--data PKG.MOD:BATCHES`)" in str(caught.value)
    assert "A batch is a dict of the model's arguments by name, or a tuple of them in order." in str(
        caught.value
    )
    assert "give `loss` (`--loss PKG.MOD:LOSS`) too" in str(caught.value)


@pytest.mark.slow
def test_of_a_lightning_module_the_module_within_is_asked_for() -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Lit(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(2, 2)

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(self.net(batch).sum())

    with pytest.raises(ConfigError, match=r"a function that makes the nn\.Module within it"):
        fed(Lit())


@pytest.mark.slow
def test_models_of_transformers_get_tokens_and_labels() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=11, n_positions=16)
    model = transformers.GPT2LMHeadModel(config).eval()
    found = fed(model)
    batch = found.batches[0]
    assert set(batch) == {"input_ids", "labels"}
    assert torch.equal(found.loss(model, batch), model(**batch).loss)


def test_a_loss_that_cannot_be_found_is_asked_for() -> None:
    silent: Any = partial(lambda batch: {"ids": batch.long()})
    with pytest.raises(ConfigError, match="Give a `loss`"):
        default_loss(silent, torch.ones(2))


def test_a_batch_is_copied_with_its_structure() -> None:
    rows = torch.ones(2, requires_grad=True)
    batch = {"rows": rows, "more": [1, (rows,)]}
    moved = move(batch, torch.device("cpu"))
    assert moved["rows"].requires_grad
    assert moved["rows"] is not rows
    assert (type(moved["more"]), type(moved["more"][1])) == (list, tuple)
