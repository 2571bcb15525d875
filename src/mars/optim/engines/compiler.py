"""Compiles functions of tensors by Inductor, once for all sizes, and calls them without ceremony.

torch.compile would do the same, but check before every call that what it assumed of dtypes, sizes
and threads still holds, which takes longer than the step of a small tensor. Here all but the sizes
are part of a kernel's key, and a size is checked when it is first met.
"""

import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

# A kernel as it is written, with a variant as its last argument, and as it is called.
Function = Callable[..., Tensor | None]
Kernel = Callable[..., Tensor | None]

# Kernels are compiled on tensors of this size, whatever the first to come. For few elements, and
# many cores, the compiler would leave the threads out and not say so when larger tensors come; and
# its cache on disk does not tell code for a dimension of none or one from code for any size.
# Tests that work on few elements set it to 0 and keep off the disk.
TYPICAL = 2**20


class NoCompilerError(Exception):
    """A kernel could not be compiled; nothing has been written."""


class _Compiled:
    """A kernel's machine code, and which tensors it is good for."""

    def __init__(
        self,
        function: Function,
        variant: Hashable,
        arguments: Sequence[Tensor | None],
        *,
        size: int,
    ) -> None:
        """Compile a kernel for tensors such as ``arguments``, but of so many elements."""
        # Imported here: it takes as long as torch itself, and the disk may have the code already.
        from torch._inductor.compile_fx import compile_fx

        self._places = [i for i, argument in enumerate(arguments) if argument is not None]

        def on_tensors(*tensors: Tensor) -> Tensor | None:
            whole: list[Tensor | None] = [None] * len(arguments)
            for place, tensor in zip(self._places, tensors, strict=True):
                whole[place] = tensor
            return function(*whole, variant)

        given = self._tensors(arguments)
        samples = [t.new_empty(size) if t.shape == given[0].shape else t for t in given]
        graph = make_fx(on_tensors, tracing_mode="symbolic")(*samples)
        self._symbols = [n.meta["val"] for n in graph.graph.nodes if n.op == "placeholder"]
        self._shapes: Any = graph.shape_env
        self._run: Any = compile_fx(graph, self._symbols)

    def __call__(self, *arguments: Tensor | None) -> Tensor | None:
        result: Tensor | None = self._run(*[t for t in arguments if t is not None])
        return result

    def is_good_for(self, arguments: Sequence[Tensor | None]) -> bool:
        """Whether what the compiler assumed of sizes holds for these tensors."""
        tensors = self._tensors(arguments)
        return bool(self._shapes.evaluate_guards_for_args(self._symbols, tensors))

    def _tensors(self, arguments: Sequence[Tensor | None]) -> list[Tensor]:
        return [tensor for i in self._places if (tensor := arguments[i]) is not None]


class Compiler:
    """Compiles each kernel once a variant and dtypes, and remembers if that does not work here."""

    def __init__(self) -> None:
        self.is_broken = False
        self.compilations = 0
        self._compiled: dict[object, list[_Compiled]] = {}
        self._chosen: dict[object, _Compiled] = {}

    def kernel(self, function: Function, variant: Hashable, *arguments: Tensor | None) -> Kernel:
        """Return what runs a function on tensors such as these, of which the first is a large one.

        Raises `NoCompilerError`, after one warning, if it cannot be compiled.
        """
        if torch.compiler.is_compiling():  # the whole step, by somebody else
            return lambda *tensors: function(*tensors, variant)
        first = arguments[0]
        assert first is not None
        dtypes = tuple(None if tensor is None else tensor.dtype for tensor in arguments)
        key = (function, variant, dtypes, first.device, torch.get_num_threads())
        size = first.shape[0]
        chosen = self._chosen.get((key, size))
        if chosen is None:
            chosen = self._chosen[key, size] = self._choose(key, arguments, size=size)
        return chosen

    def _choose(
        self,
        key: tuple[Function, Hashable, Any, Any, int],
        arguments: Sequence[Tensor | None],
        *,
        size: int,
    ) -> _Compiled:
        """Return the kernel for tensors of a new size, compiling it if it must be."""
        function, variant, *_ = key
        known = self._compiled.setdefault(key, [])
        for compiled in known:
            if compiled.is_good_for(arguments):
                return compiled
        try:
            compiled = _Compiled(function, variant, arguments, size=TYPICAL or size)
        except Exception as error:  # of tracing, of the compiler, of the disk: nothing is written
            reason = str(error).strip() or type(error).__name__
            raise self._broken(reason.splitlines()[0]) from error
        if not compiled.is_good_for(arguments):
            raise self._broken(f"the code is not for {size} elements")
        self.compilations += 1
        known.append(compiled)
        return compiled

    def _broken(self, reason: str) -> NoCompilerError:
        self.is_broken = True
        warnings.warn(
            f"fused=True found no working compiler and runs on the eager engine: {reason}",
            stacklevel=2,
        )
        return NoCompilerError(reason)
