"""How many bytes a rule has to move and to keep for one parameter, counted from its equations.

A rule is written as its passes over memory, each as what it reads and what it writes:

    p  parameter       m  first moment (exp_avg)        l  previous gradient (last_grad)
    g  gradient        v  second moment (exp_avg_sq)    d  direction of a matrix

A clip per tensor costs a pass of its own: no element can be scaled before the norm of all is known.
Newton-Schulz works on d between its passes; its products are arithmetic, not traffic, and are not
counted. An implementation that stores temporaries moves more than is counted here, so that the
bandwidth computed from these figures is what it achieves on the traffic that is necessary.
"""

from dataclasses import dataclass

_BYTES = 4  # float32
_STATE = ("m", "v", "l")


@dataclass(frozen=True, slots=True)
class Traffic:
    """The passes of one rule over memory."""

    passes: tuple[str, ...]

    @property
    def moved(self) -> int:
        """Bytes read and written a parameter and step."""
        return _BYTES * sum(len(p.replace("->", " ").split()) for p in self.passes)

    @property
    def state(self) -> int:
        """Bytes a parameter kept from step to step."""
        named = {stream for p in self.passes for stream in p.replace("->", " ").split()}
        return _BYTES * sum(stream in named for stream in _STATE)


ADAMW = Traffic(("p g m v -> p m v",))
MUON = Traffic(("g m -> m d", "p d -> p"))
UNCLIPPED = Traffic(("p g m v l -> p m v l",))  # mars-adamw as a port without a clip has it

BUFFERED = {
    "mars-adamw": Traffic(("g l ->", "p g m v l -> p m v l")),
    "mars-lion": Traffic(("g l ->", "p g m l -> p m l")),
    "mars-shampoo": Traffic(("g l ->", "g m l -> m l d", "p d -> p")),
    "mars-m": Traffic(("g l ->", "g m l -> m l d", "p d -> p")),
}
LEAN = {
    "mars-adamw": ADAMW,
    "mars-lion": Traffic(("p g m -> p m",)),
    "mars-shampoo": MUON,
    "mars-m": MUON,
}
