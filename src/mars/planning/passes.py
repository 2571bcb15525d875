"""What a step moves for one parameter under the options of a run, from the rules' passes.

In the letters of `mars.bench.traffic`, and two more: ``x`` is the previous point of exact mode and
``h`` the tensor that holds a parameter while the two are exchanged.
"""

from mars.bench.traffic import ADAMW, BUFFERED, LEAN, MUON, Traffic
from mars.config.schema import Optimizer

_PLAIN = {"adamw": ADAMW, "lion": LEAN["mars-lion"], "muon": MUON}
# To the previous point and back, and the new point kept.
_EXCHANGE = ("p -> h", "x -> p", "h -> x")
_VISIT = (*_EXCHANGE, *_EXCHANGE, "p -> x")
# What bfloat16 spares of the four bytes of a stored gradient, each time it is read or written.
_SPARED = 2


def traffic_of(rule: str, optimizer: Optimizer) -> Traffic:
    """Return the passes of a rule as the options make it; ``rule`` is that of `MARS.describe`."""
    visit = _VISIT if optimizer.exact else ()
    if rule in _PLAIN:
        return Traffic((*_PLAIN[rule].passes, *visit))
    if optimizer.lean:
        return LEAN[rule]
    passes = BUFFERED[rule].passes
    if optimizer.clip == "none":
        passes = passes[1:]  # the first is the clip's
    if optimizer.exact:
        return Traffic((*(_unremembered(each) for each in passes), "g -> l", *visit))
    return Traffic(passes)


def moved_bytes(rule: str, optimizer: Optimizer) -> int:
    """Return the bytes a step reads and writes for one parameter of a rule."""
    traffic = traffic_of(rule, optimizer)
    if optimizer.last_grad_dtype != "bfloat16":
        return traffic.moved
    stored = sum(each.replace("->", " ").split().count("l") for each in traffic.passes)
    return traffic.moved - _SPARED * stored


def _unremembered(each: str) -> str:
    """Return a pass that leaves the gradient of the previous point as it is."""
    reads, writes = each.split("->")
    return f"{reads}->{writes.replace(' l', '')}"
