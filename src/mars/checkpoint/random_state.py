"""Every random state of a process, in the form that a checkpoint holds."""

import random
import sys
from typing import Any

import torch


def capture_random_state() -> dict[str, Any]:
    """Return the states of Python's, NumPy's and torch's generators, as tensors and plain values.

    NumPy is captured if it is imported, CUDA (all devices) if it is in use, MPS if it is present.
    """
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": [version, list(words), gauss],
        "torch": torch.get_rng_state(),
    }
    if (numpy := sys.modules.get("numpy")) is not None:
        state["numpy"] = _plain(numpy.random.get_state(legacy=False))
    # Asking a CUDA that is not in use would start it.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch left it untyped
        state["cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def restore_random_state_(state: dict[str, Any]) -> None:
    """Set every generator to a captured state, bit by bit.

    A generator that the state has and this process has not is left out: a run may go on elsewhere,
    though only where it began does it draw the same numbers.
    """
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    # Generators take their states from the CPU, wherever the checkpoint was loaded to.
    torch.set_rng_state(state["torch"].cpu())
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        numpy.random.set_state(state["numpy"])
    for device, cuda in enumerate(state.get("cuda", [])[: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(cuda.cpu(), device)
    if torch.backends.mps.is_available() and "mps" in state:
        torch.mps.set_rng_state(state["mps"].cpu())


def _plain(state: Any) -> Any:
    """Return NumPy's nested state with lists for arrays; its bit generators take either."""
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    return state.tolist() if hasattr(state, "tolist") else state
