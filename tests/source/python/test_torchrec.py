"""FSDP1 beside torchrec's DistributedModelParallel: said, and nothing written."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import rewrite_source
from tests.source.samples import IMPORTS, uncommented


pytestmark = pytest.mark.any_torch

BODY = """\
class Wrapper(DataParallelWrapper):
    def wrap(self, dmp, env, device):
        dmp._dmp_wrapped_module = FSDP(dmp._dmp_wrapped_module, ignored_modules=[dmp.sparse])


dmp = DMP(module=net, data_parallel_wrapper=Wrapper())
with FSDP.state_dict_type(dmp, StateDictType.SHARDED_STATE_DICT):
    state = dmp.state_dict()
"""


@pytest.mark.parametrize(
    "imports",
    [
        (
            "from torchrec.distributed.model_parallel import DataParallelWrapper\n"
            "from torchrec.distributed import DistributedModelParallel as DMP\n"
        ),
        (
            "import torchrec.distributed as trec\nDMP = trec.DistributedModelParallel\n"
            "DataParallelWrapper = trec.model_parallel.DataParallelWrapper\n"
        ),
    ],
)
def test_what_torchrec_shards_is_left_to_a_person(imports: str) -> None:
    before = IMPORTS + imports + BODY
    after = rewrite_source(before)
    assert uncommented(after) == before
    assert after.count("# fsdp-migrate: FM301 torchrec's") == 1
    assert "# fsdp-migrate: FM306 torchrec's" in after


@pytest.mark.parametrize(
    "imports",
    [
        "from torchrec.distributed.shard import shard as trec_shard\n",
        "from torchrec.distributed.shard import shard_modules as trec_shard\n",
        "import torchrec.distributed.shard as ts\ntrec_shard = ts.shard\n",
    ],
)
def test_tables_that_torchrec_shards_beside_units_are_left_to_a_person(imports: str) -> None:
    body = "net = Net()\nnet.tables = trec_shard(module=net.tables, plan=plan)\nnet.dense = FSDP(net.dense)\n"
    body += "state = net.state_dict()\nosd = FSDP.optim_state_dict(net, opt)\n"
    after = rewrite_source(IMPORTS + imports + body)
    assert uncommented(after) == IMPORTS + imports + body
    assert (
        "a full state would gather whole" in after.partition("state = net.state_dict()")[0].split("FM308")[1]
    )


def test_torchrec_without_its_wrapper_changes_nothing() -> None:
    after = rewrite_source(f"{IMPORTS}from torchrec import EmbeddingBagCollection\nmodel = FSDP(net)\n")
    assert "model = prepare_fully_shard(net)" in after
