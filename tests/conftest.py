import gc
import os
from pathlib import Path

# Small tensors: threads cost more than they give, and xdist already fills the cores. Programs that
# tests start inherit this.
os.environ |= {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}

import hypothesis
import pytest
import torch

torch.set_num_threads(1)

hypothesis.settings.register_profile(
    "default", deadline=None, print_blob=True, derandomize="CI" in os.environ
)
hypothesis.settings.load_profile("default")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let what tests share be made once, by one worker; those that take longest begin."""
    for item in items:
        file = item.nodeid.split("::")[0]
        used = item._fixtureinfo.name2fixturedefs.values()  # there is no public way
        if "english" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("english"))
        elif any(each.scope == "module" and each.baseid == file for own in used for each in own):
            item.add_marker(pytest.mark.xdist_group(file.removesuffix(".py")))
    items.sort(key=lambda item: "/distributed/" not in item.nodeid)


def pytest_collection_finish() -> None:
    """Leave what stays anyway out of garbage collections, which some packages ask for often."""
    gc.freeze()


@pytest.fixture(scope="session")
def english(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a small model on GPT-2's tokens."""
    from evaluation.trained import english_run, need_data

    need_data()
    return english_run(tmp_path_factory.mktemp("english"))
