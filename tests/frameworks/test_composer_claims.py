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
taken = inspect.signature(Trainer).parameters
found["no_fsdp_config"] = "fsdp_config" not in taken and "parallelism_config" in taken
from composer.utils import misc
asked = inspect.getsource(misc.is_model_fsdp)
found["asks_for_fsdp1"] = "FullyShardedDataParallel" in asked and "FSDPModule" not in asked
print(json.dumps(found))
"""


CLIPS = """
import json
import torch
from composer.algorithms.gradient_clipping import gradient_clipping
from torch.distributed.fsdp import FullyShardedDataParallel
asked = []
class Root(torch.nn.Linear):
    def check_is_root(self):
        return True
    def clip_grad_norm_(self, max_norm, norm_type=2.0):
        asked.append(norm_type)
gradient_clipping.FullyShardedDataParallel = Root
model = Root(2, 2)
model.weight.grad, model.bias.grad = torch.tensor([[4.0, 1.0], [2.0, 0.5]]), torch.zeros(2)
gradient_clipping.apply_gradient_clipping(model, "value", 2.0, fsdp_enabled=True)
gradient_clipping.apply_gradient_clipping(model, "value", 2.0, fsdp_enabled=False)
import inspect
version = "fsdp_config_version == 1" in inspect.getsource(gradient_clipping.GradientClipping.apply)
print(json.dumps({"of_fsdp1": str(asked), "of_others": model.weight.grad.tolist(), "by_version": version}))
"""


def test_value_is_the_greatest_element_under_fsdp1_and_each_element_under_fsdp2() -> None:
    found = run(CLIPS)
    assert found == {"of_fsdp1": "[inf]", "of_others": [[2.0, 1.0], [2.0, 0.5]], "by_version": True}


def test_what_is_claimed_of_composer() -> None:
    assert wrong(COMPOSER, "mosaicml", run(PROBE)) == []
