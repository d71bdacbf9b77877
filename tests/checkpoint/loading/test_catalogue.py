"""What ranks compare of what a store holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.checkpoint_convert.loading.catalogue import Catalogue
from tests.checkpoint.loading.stores import URL, save_run
from tests.checkpoint.s3_service import BUCKET, S3


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.slow


@pytest.mark.s3
def test_ranks_compare_the_versions_of_what_a_store_holds(s3: S3, tmp_path: Path) -> None:
    """Each looks again only at the files that it read: two saves of one run must not be mixed."""
    folder, _ = save_run(tmp_path, "folder")
    s3.put(folder, "run")
    first = Catalogue(URL)
    data = (folder / "__0_0.distcp").read_bytes()
    s3.client.put_object(Bucket=BUCKET, Key="run/__0_0.distcp", Body=data[:-1] + b"?")
    second = Catalogue(URL)
    assert first.seen != second.seen
    assert Catalogue(URL).seen == second.seen
