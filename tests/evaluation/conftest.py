import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Read when datasets and transformers are imported.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What datasets unpacks goes away with the tests."""
    import datasets

    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("datasets")
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", Path(folder))
        patch.setenv("HF_DATASETS_CACHE", str(folder))
        yield
