"""What a checkpoint may hold: tensors, dtypes and plain values, in dicts, lists and tuples.

Anything else could be written, but not loaded without executing it; it is refused at the first
save rather than missed at the first resume.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from mars.checkpoint.errors import CheckpointError

# Compared by identity: a NumPy float is a float to isinstance, and not loadable.
_KEYS = (bool, int, float, str, type(None))
_PLAIN = (*_KEYS, torch.dtype)
_TENSORS = (Tensor, nn.Parameter)


def tensors_in(value: object, *, where: str) -> Iterator[Tensor]:
    """Yield the tensors of a nested state; refuse what a checkpoint cannot hold, by its place."""
    kind = type(value)
    if isinstance(value, Tensor):
        if kind not in _TENSORS or value.layout != torch.strided or value.is_meta:
            raise CheckpointError(
                f"{where} is a {kind.__name__} ({value.layout}, {value.device}); "
                "a checkpoint holds dense plain tensors: gather or convert it first"
            )
        yield value
    elif isinstance(value, dict) and kind in (dict, OrderedDict):
        for key, item in value.items():
            if type(key) not in _KEYS:
                raise CheckpointError(
                    f"{where} has the key {key!r}; keys are numbers, strings, booleans or None"
                )
            yield from tensors_in(item, where=f"{where}[{key!r}]")
    elif isinstance(value, list | tuple) and kind in (list, tuple):
        for index, item in enumerate(value):
            yield from tensors_in(item, where=f"{where}[{index}]")
    elif kind not in _PLAIN:
        raise CheckpointError(
            f"{where} is a {kind.__module__}.{kind.__qualname__}; a checkpoint holds tensors, "
            "dtypes, numbers, strings, booleans and None, in dicts, lists and tuples: "
            "convert it first"
        )


def bytes_on_disk(tensors: Iterable[Tensor]) -> int:
    """Return about how many bytes torch.save writes for the tensors: a little more than enough."""
    # A file holds whole storages, each once, however many tensors are views of it.
    storages = {
        (t.device, t.untyped_storage().data_ptr()): t.untyped_storage().nbytes() for t in tensors
    }
    # A record has its own header, alignment and directory entry; the constant is for plain values.
    return sum(storages.values()) + 1024 * len(storages) + 2**18
