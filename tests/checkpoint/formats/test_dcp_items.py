"""Items that torch wrote, read without it."""

from __future__ import annotations

import pytest

from fsdp_migrate.checkpoint_convert.formats.dcp_items import load_item, tensor_bytes
from fsdp_migrate.checkpoint_convert.formats.torch_values import TensorValue
from tests.checkpoint.formats.raw_items import HERE, raw, sample
from tests.checkpoint.samples import open_zip, saved


@pytest.mark.parametrize("dtype", HERE)
def test_we_read_the_tensors_that_torch_writes(dtype: str) -> None:
    tensor = sample(dtype, (5, 7))
    archive = open_zip(saved(tensor))
    value = load_item(archive)
    assert isinstance(value, TensorValue)
    found = tensor_bytes(archive, value, "f")
    assert (found.dtype, found.shape, found.strides) == (dtype, (5, 7), None)
    assert archive.read("data/0") == raw(tensor)
    archive.check_crc("data/0")
