"""What the installed Composer does, against what is claimed of it."""

from __future__ import annotations

import pytest

from fsdp_migrate.adapters.engine.claims import COMPOSER
from tests.frameworks.claims import run, wrong


pytestmark = pytest.mark.composer


PROBE = """
import inspect, json
from composer import Trainer
from composer.core import Precision
from composer.distributed import fsdp2
from composer.distributed.mosaic_parallelism import get_mixed_precision
found = {}
buffers = [get_mixed_precision(Precision.AMP_BF16, word)[3] for word in ("DEFAULT", "PURE")]
found["buffers_cast"] = None not in buffers and get_mixed_precision(Precision.AMP_BF16, "FULL")[3] is None
policy = fsdp2.create_mixed_precision_policy(Precision.AMP_BF16, "DEFAULT")
found["buffers_kept"] = not hasattr(policy, "buffer_dtype")
found["inputs_of_every_unit"] = policy.cast_forward_inputs
found["fsdp2"] = "FSDP_VERSION" in inspect.getsource(inspect.getmodule(Trainer))
from composer.utils import misc
asked = inspect.getsource(misc.is_model_fsdp)
found["asks_for_fsdp1"] = "FullyShardedDataParallel" in asked and "FSDPModule" not in asked
print(json.dumps(found))
"""


def test_what_is_claimed_of_composer() -> None:
    assert wrong(COMPOSER, "mosaicml", run(PROBE)) == []
