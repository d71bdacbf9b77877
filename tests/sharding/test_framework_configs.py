"""``prepare_fully_shard`` takes Composer's own config object, without a Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from fsdp_migrate import prepare_fully_shard, shard_plan
from fsdp_migrate.errors import ConfigError, ModelError
from fsdp_migrate.runtime import end_process_group
from fsdp_migrate.sharding.framework_configs import read_framework_config
from tests.models import Net


if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    end_process_group()


def marked_net() -> Any:
    net: Any = Net()
    blocks = set(net.blocks)
    net.fsdp_wrap_fn = net.activation_checkpointing_fn = lambda module: module in blocks
    return net


@pytest.mark.composer
@pytest.mark.usefixtures("alone")
def test_a_config_of_composer_shards_as_its_model_is_marked() -> None:
    from composer.utils import FSDPConfig

    config = FSDPConfig(
        activation_checkpointing=True, state_dict_type="sharded", sharding_strategy="SHARD_GRAD_OP"
    )
    model = prepare_fully_shard(marked_net(), config)
    plan = shard_plan(model)
    assert [unit.fqn for unit in plan.units] == ["blocks.0", "blocks.1", ""]
    assert {"FM401", "FM413", "FM001"} <= {finding.code for finding in plan.findings}
    assert "forward" in vars(model.blocks[0])
    assert "forward" not in vars(model.head)


@pytest.mark.composer
@pytest.mark.usefixtures("alone")
def test_a_whole_model_of_composers_is_refused_and_its_child_is_taken() -> None:
    """It was one unit, without the marks of its child, and said to have the same units."""
    from composer.models import ComposerModel
    from composer.utils import FSDPConfig

    class Own(ComposerModel):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.net = marked_net()

        def forward(self, batch: Any) -> Any:
            return self.net(batch)

        def loss(self, outputs: Any, batch: Any) -> Any:
            return outputs.sum()

    model = Own()
    with pytest.raises(ModelError, match=r"ComposerModel, Own\. .* each child \(`net`\)"):
        prepare_fully_shard(model, FSDPConfig())
    assert not any(isinstance(each, FSDPModule) for each in model.modules())
    prepare_fully_shard(model.net, FSDPConfig())
    assert [unit.fqn for unit in shard_plan(model.net).units] == ["blocks.0", "blocks.1", ""]


@pytest.mark.composer
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"process_group": "node"}, "process_group"),
        ({"data_parallel_replicate_degree": 2}, "data_parallel_shard_degree"),
        ({"sharding_stratgy": "FULL_SHARD"}, "sharding_stratgy"),
    ],
)
@pytest.mark.usefixtures("alone")
def test_what_only_a_trainer_can_give_is_refused(fields: dict[str, Any], field: str) -> None:
    from composer.utils import FSDPConfig

    with pytest.raises(ConfigError) as caught:
        prepare_fully_shard(marked_net(), FSDPConfig(**fields))
    assert caught.value.field == field


def test_other_configs_are_none_of_a_framework() -> None:
    assert read_framework_config({"device_id": 0}, Net(), has_mesh=False) is None
