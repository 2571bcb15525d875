"""Corpora on the Hugging Face hub: which files a subset and split consist of.

`datasets` says which files these are, at one revision, and fetches them where they are to lie on
this machine. Reading them is left to whoever reads local files, by row group: so a preparation
goes on exactly where it stopped, and several processes fetch at once. No code of a repository
runs.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mars.config.errors import FailedError, RefusedError
from mars.data.inputs import Input, make_input

_NEEDS = (
    "the hub needs the extra 'data': pip install 'mars-optimizer[data]'; or name local files with "
    "--input"
)
_CONVERTED = "refs/convert/parquet"  # where the hub keeps every data set as parquet


@dataclass(frozen=True, slots=True)
class HubFiles:
    """The files of a split, at one revision."""

    addresses: tuple[str, ...]
    revision: str | None  # None for a folder in place of a repository


def find_files(
    repository: str, *, subset: str | None, split: str, revision: str | None
) -> HubFiles:
    """Return the parquet files of a split of a data set."""
    builder = _builder(repository, subset=subset, revision=revision)
    found = builder.config.data_files or {}
    if split not in found:
        raise RefusedError(
            f"{repository} has no split {split!r} but {', '.join(map(str, found))}; choose with "
            "--split"
        )
    addresses = tuple(map(str, found[split]))
    pinned = {match[1] for each in addresses if (match := re.search(r"@([0-9a-f]{40})/", each))}
    return HubFiles(addresses, pinned.pop() if len(pinned) == 1 else revision)


def as_inputs(files: HubFiles) -> list[Input]:
    """Return the files as inputs that are fetched while they are read."""
    import fsspec  # type: ignore[import-untyped]  # it has no types

    inputs = []
    for address in files.addresses:
        location = address if "://" in address else Path(address).resolve().as_uri()
        try:
            system, path = fsspec.core.url_to_fs(location)
            inputs.append(make_input(location, size=int(system.size(path))))
        except (OSError, ValueError) as error:
            raise _unfetched(location, error) from None
    return inputs


def downloaded(inputs: Sequence[Input]) -> list[Input]:
    """Return the same inputs in the hub's cache on this machine."""
    try:
        paths = _datasets().DownloadManager().download([each.location for each in inputs])
    except (OSError, ValueError) as error:
        raise _unfetched(inputs[0].location, error) from None
    return [replace(each, location=str(path)) for each, path in zip(inputs, paths, strict=True)]


def _datasets() -> Any:  # a module without types
    try:
        import datasets  # type: ignore[import-untyped]  # it has no types
        import huggingface_hub
    except ModuleNotFoundError:
        raise RefusedError(_NEEDS) from None
    huggingface_hub.logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # its warnings would drown our one line
    return datasets


def _builder(repository: str, *, subset: str | None, revision: str | None) -> Any:
    datasets = _datasets()
    try:
        try:
            return datasets.load_dataset_builder(repository, name=subset, revision=revision)
        except RuntimeError:  # a repository with a script, which nobody runs
            return datasets.load_dataset_builder(repository, name=subset, revision=_CONVERTED)
    except ConnectionError:
        raise RefusedError(
            f"{repository} cannot be reached: there is no network, or the hub is set offline; "
            "name local files with --input"
        ) from None
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise RefusedError(
            f"{repository}: {reason}; choose with --subset, or name local files with --input"
        ) from None


def _unfetched(address: str, error: Exception) -> FailedError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return FailedError(
        f"{address} could not be fetched ({reason}); run the same command again to go on"
    )
