"""Sharded tensors on disk: each rank writes and reads its own regions, by torch's planner.

The files are safetensors: a header of names, shapes and offsets, then numbers; nothing in them
can be executed. Only a sharded checkpoint imports this module.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedWriter, IOBase
from math import prod
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from mars.checkpoint.errors import CheckpointError, RankLostError, reason
from mars.checkpoint.folder import fsync
from mars.checkpoint.hashed import HashedFile
from mars.checkpoint.manifest import Fingerprint
from mars.config.errors import FailedError


def write_shards(checkpoint: Path, shards: dict[str, DTensor]) -> dict[str, Fingerprint]:
    """Write sharded tensors with all other ranks, and return the files that this one wrote.

    Every rank calls it with the same names. A region that several ranks hold is written once.
    """
    files = _WrittenFiles()
    writer = HuggingFaceStorageWriter(str(checkpoint), save_distributed=True)
    writer.fs = files
    writer.sync_files = False  # it would be done before the last bytes are handed over
    try:
        save(dict(shards), storage_writer=writer, planner=_ContiguousPlanner())
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        raise FailedError(f"rank {rank}: {reason(cause)}") from error
    except RuntimeError as error:
        raise RankLostError.noticed(error) from error
    return files.fingerprints


class StoredShards:
    """The sharded tensors of a checkpoint whose files are verified."""

    def __init__(self, checkpoint: Path, names: list[str]) -> None:
        self._checkpoint = checkpoint
        self._reader = HuggingFaceStorageReader(str(checkpoint))
        self._reader.fs = _ListedFiles(names)
        with self._trouble_named():
            self._metadata = self._reader.read_metadata()
            self._reader.set_up_storage_reader(self._metadata, is_coordinator=True)

    def describe(self, name: str) -> tuple[torch.Size, torch.dtype]:
        """Return the full shape and dtype of a tensor."""
        stored = self._metadata.state_dict_metadata.get(name)
        if not isinstance(stored, TensorStorageMetadata):
            raise CheckpointError(f"checkpoint {self._checkpoint} is damaged: no shard has {name}")
        if sum(prod(chunk.sizes) for chunk in stored.chunks) != prod(stored.size):
            raise CheckpointError(
                f"checkpoint {self._checkpoint} is damaged: the shards of {name} are not the whole"
            )
        return stored.size, stored.properties.dtype

    def read_(self, targets: dict[str, Tensor]) -> None:
        """Fill tensors, of DTensors this rank's part, from the regions of files that have it."""
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(targets, self._metadata, is_coordinator=True)
        with self._trouble_named():
            self._reader.read_data(planner.create_local_plan(), planner).wait()

    @contextmanager
    def _trouble_named(self) -> Iterator[None]:
        try:
            yield
        except (MemoryError, torch.OutOfMemoryError):
            raise  # for want of memory, not through any fault of the files
        except Exception as error:  # files that torch did not write fail anywhere in its reader
            raise CheckpointError(
                f"checkpoint {self._checkpoint} has shards that cannot be loaded: {reason(error)}"
            ) from error


class _ContiguousPlanner(DefaultSavePlanner):
    """Gives the writer tensors in the only order that safetensors has."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        """Return the part of a tensor that is written."""
        data = super().resolve_data(write_item)
        assert isinstance(data, Tensor)  # there are no others among the shards
        return data.contiguous()


class _WrittenFiles(FileSystem):
    """Files that are hashed as they are written and on disk when they are closed."""

    def __init__(self) -> None:
        self.fingerprints: dict[str, Fingerprint] = {}

    @contextmanager
    def create_stream(self, path: str | PathLike[str], mode: str) -> Iterator[IOBase]:
        """Give a file to write to; it is on disk when the context is left."""
        raw = HashedFile(Path(path), mode)
        with BufferedWriter(raw) as file:
            yield file
        fsync(Path(path))
        self.fingerprints[Path(path).name] = raw.fingerprint

    def mkdir(self, path: str | PathLike[str]) -> None:
        """Leave the folder to rank 0: where it is not seen, ranks do not share a file system."""


class _ListedFiles(FileSystem):
    """A folder in which only the files that a manifest names are seen."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def ls(self, path: str | PathLike[str]) -> list[str]:
        """Return the paths of the files."""
        return [str(Path(path) / name) for name in self._names]
