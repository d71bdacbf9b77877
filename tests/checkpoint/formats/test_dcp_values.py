"""Values that training loops keep, read from a pickle without running it."""

from __future__ import annotations

import collections
import io
import pickle
import zipfile
from pathlib import Path

from fsdp_migrate.checkpoint_convert.formats.torch_values import Record, load_value


def test_objects_of_allowed_classes_are_kept_and_not_made() -> None:
    import datetime

    value = load_value(pickle.dumps(datetime.timedelta(days=3), protocol=2), where="an example")
    assert isinstance(value, Record)
    assert (value.name, value.arguments) == ("datetime.timedelta", (3, 0, 0))


def test_values_that_training_loops_keep_can_be_read() -> None:
    import datetime
    import random

    import numpy as np
    import torch

    state = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "generator": np.random.default_rng(0),
        "scalar": np.float64(0.5),
        "torch": torch.get_rng_state(),
        "when": datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc),
        "ordered": collections.OrderedDict(a=torch.ones(2)),
        "default": collections.defaultdict(list, a=[1]),
        "counter": collections.Counter("aab"),
        "deque": collections.deque([1, 2], maxlen=3),
        "set": {1, 2},
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "size": torch.Size([2, 3]),
        "path": Path("/a/b"),
        "version": torch.__version__,
        "complex": 1 + 2j,
        "range": range(3),
    }
    buffer = io.BytesIO()
    torch.save(state, buffer)
    with zipfile.ZipFile(buffer) as archive:
        value = load_value(archive.read("archive/data.pkl"), where="an example")
    assert isinstance(value, dict)
    assert list(value) == list(state)
