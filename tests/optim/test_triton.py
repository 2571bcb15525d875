"""The Triton engine without a GPU: its numbers by the interpreter, its code by the compilers."""

import functools
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
from torch import nn
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel
from triton.runtime.jit import JITFunction

from mars import MARS
from mars.optim import engines
from mars.optim.engines import triton_engine, triton_kernels
from mars.optim.engines.triton_kernels import Form

ROOT = Path(__file__).parents[2]
# Of about equal length, for as many processes.
PARTS = (
    "every_combination and mars-adamw",
    "every_combination and not mars-adamw",
    "not every_combination",
)

TARGETS = [
    *(GPUTarget("cuda", capability, 32) for capability in (80, 90, 100)),
    GPUTarget("hip", "gfx942", 64),
]
KERNELS = {
    name: getattr(triton_kernels, f"{name}_kernel")
    for name in ("norm", "reduce", "update", "momentum", "move")
}
STORED = Form(
    block=triton_engine._BLOCK,
    aligned=True,
    param=tl.float32,
    grad=tl.float32,
    last_grad=tl.float32,
    adamw=True,
    corrects=True,
    remembers=True,
    clips=True,
)
FORMS = {
    "stored": STORED,
    "evaluated": replace(STORED, remembers=False, squares_gradient=True),
    "lean": replace(STORED, corrects=False, remembers=False, clips=False),
    "lion": replace(STORED, adamw=False),
    "unaligned": replace(STORED, aligned=False),
    "on_device": replace(
        STORED, amsgrad=True, lr_on_device=True, step_on_device=True, guarded=True
    ),
    "bfloat16": replace(STORED, param=tl.bfloat16, grad=tl.bfloat16, last_grad=tl.bfloat16),
    "float16": replace(STORED, param=tl.float16, grad=tl.float16),
}


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


@functools.cache
def compiled(kernel: str, form: str, target: GPUTarget) -> CompiledKernel:
    function = KERNELS[kernel]
    types = {"table": "*i64", "owners": "*i64", "form": "constexpr"}
    return triton.compile(
        ASTSource(
            fn=function,
            signature={name: types.get(name, "*fp32") for name in function.arg_names},
            constexprs={"form": FORMS[form]},
        ),
        target=target,
        options={"num_warps": triton_engine._THREADS // target.warp_size},
    )


@pytest.mark.parametrize("part", PARTS)
def test_interpreted_kernels_pass_their_tests(part):
    tests = str(Path(__file__).with_name("triton_interpreter.py"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", tests, "-k", part, "-p", "no:cacheprovider", "-n0"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (\w+)", done.stdout.splitlines()[-1])}
    assert counts["passed"] > 50
    assert not counts.keys() & {"skipped", "xfailed", "failed", "errors"}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target.arch))
@pytest.mark.parametrize("form", FORMS)
def test_every_kernel_compiles_for_every_target(form, target):
    for kernel in KERNELS:
        binary = compiled(kernel, form, target).asm[
            "cubin" if target.backend == "cuda" else "hsaco"
        ]
        assert binary[:4] == b"\x7fELF"
        assert len(binary) > 1000


def vector_bytes(kernel: CompiledKernel, form: Form) -> Counter[str]:
    """Return the bytes for each element that full blocks load and store, from the machine's code.

    Only full blocks, which have no masks, move vectors of several values; the loads of tables and
    of numbers, and those of tails, are of one value each.
    """
    if "ptx" in kernel.asm:
        pattern = r"\b(ld|st)\.global\.v(\d)\.b(\d+)"
        found = [
            (op, int(n) * int(bits) // 8) for op, n, bits in re.findall(pattern, kernel.asm["ptx"])
        ]
    else:
        pattern = r"\bbuffer_(load|store)_dwordx(\d)"
        found = [(op, 4 * int(n)) for op, n in re.findall(pattern, kernel.asm["amdgcn"])]
    names = {"load": "ld", "store": "st"}
    total: Counter[str] = Counter()
    for op, size in found:
        total[names.get(op, op)] += size * triton_engine._THREADS
    assert all(size % form.block == 0 for size in total.values())
    return Counter({op: size // form.block for op, size in total.items()})


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target.arch))
@pytest.mark.parametrize(
    ("kernel", "form", "loads", "stores"),
    [
        ("norm", "stored", 8, 0),  # g, g_prev
        ("update", "stored", 20, 16),  # p, g, g_prev, m, v; p, m, v, g_prev
        ("update", "evaluated", 20, 12),  # g_prev is read only
        ("update", "lean", 16, 12),  # p, g, m, v; p, m, v
        ("update", "lion", 16, 12),  # p, g, g_prev, m; p, m, g_prev
        ("update", "on_device", 24, 20),  # and the largest v
        ("update", "bfloat16", 14, 12),  # p, g, g_prev of 2 bytes
        ("momentum", "stored", 12, 8),  # g, g_prev, m; m, g_prev
        ("momentum", "lean", 8, 4),  # g, m; m
        ("move", "stored", 8, 4),  # p, d; p
        ("move", "lean", 16, 8),  # p, d, g, m; p, m
    ],
)
def test_each_element_is_loaded_and_stored_once(kernel, form, loads, stores, target):
    moved = vector_bytes(compiled(kernel, form, target), FORMS[form])
    assert (moved["ld"], moved["st"]) == (loads, stores)


def test_bytes_of_a_step_are_those_of_the_design():
    def step(form, *kernels):
        parts = [vector_bytes(compiled(k, form, TARGETS[1]), FORMS[form]) for k in kernels]
        return sum(sum(part.values()) for part in parts)

    assert step("stored", "norm", "update") == 44  # of mars-adamw
    assert step("lean", "update") == 28


@pytest.mark.parametrize("target", TARGETS[:3], ids=lambda target: str(target.arch))
@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "reduce"])
def test_aligned_float32_moves_128_bits_at_a_time(kernel, target):
    widths = re.findall(
        r"\b(?:ld|st)\.global\.(v\d\.b\d+)", compiled(kernel, "stored", target).asm["ptx"]
    )
    assert set(widths) == {"v4.b32"}
    assert ".v" not in "".join(
        re.findall(r"\b(?:ld|st)\.global\S*", compiled(kernel, "unaligned", target).asm["ptx"])
    )


@pytest.mark.parametrize("form", FORMS)
def test_updates_need_neither_shared_nor_local_memory(form):
    """Shared memory would mean that streams of two layouts meet; local memory, spilt registers."""
    kernel = compiled("update", form, TARGETS[1])
    assert kernel.metadata.shared == 0
    assert not re.search(r"\b(?:ld|st)\.local", kernel.asm["ptx"])


class StubDriver:
    """What compiling for a GPU needs of its driver."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return TARGETS[1]


@pytest.mark.parametrize("mars_type", ["mars-adamw", "mars-m"])
def test_launches_compile_as_the_engine_asks_for_them(mars_type, monkeypatch):
    """Everything up to the launch itself: Triton's binder, its cache key, its compiler."""
    launched = []
    run = JITFunction.run

    def compile_only(self, *args, grid, warmup, **options):
        del warmup
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        launched.append((kernel.name, grid, kernel.metadata.num_warps, len(kernel.asm["cubin"])))

    monkeypatch.setattr(JITFunction, "run", compile_only)
    monkeypatch.setattr(triton_engine, "_runs_on", lambda _: True)
    monkeypatch.setattr(engines, "run_", triton_engine.run_)
    monkeypatch.setattr(triton.runtime.driver, "_active", StubDriver())
    params = [nn.Parameter(torch.ones(3, 700)), nn.Parameter(torch.ones(3, 700))]
    for param in params:
        param.grad = torch.ones_like(param)
    MARS(params, mars_type=mars_type).step()
    blocks = 2 * -(-2100 // triton_engine._BLOCK)
    rest = ["update_kernel"] if mars_type == "mars-adamw" else ["momentum_kernel", "move_kernel"]
    assert [name for name, *_ in launched] == ["norm_kernel", "reduce_kernel", *rest]
    assert [grid for _, grid, *_ in launched] == [(blocks,), (2,), *[(blocks,)] * len(rest)]
    assert all(warps == 8 and size > 1000 for *_, warps, size in launched)


def test_without_triton_the_module_imports_and_leaves_all_to_the_eager_engine():
    program = """
import sys
sys.modules["triton"] = None  # importing it now raises ModuleNotFoundError
import importlib.util, torch
find = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "triton" else find(name)
from mars import MARS
from mars.optim import engines
from mars.optim.engines import triton_engine
params = [torch.nn.Parameter(torch.ones(3, 2)) for _ in range(2)]
for param, run_ in zip(params, (triton_engine.run_, engines.run_)):
    param.grad = torch.ones(3, 2)
    engines.run_ = run_
    MARS([param]).step()
imported = "mars.optim.engines.triton_kernels" in sys.modules
print(triton_engine.is_available(), torch.equal(*params), imported)
"""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True", "False"]


@pytest.mark.parametrize(
    ("capabilities", "hip", "available"),
    [
        ([], None, False),
        ([(7, 5)], None, False),
        ([(7, 5), (9, 0)], None, True),
        ([(9, 4)], "7", True),
    ],
)
def test_the_engine_is_available_where_triton_has_a_device(
    capabilities, hip, available, monkeypatch
):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", lambda device: capabilities[device.index]
    )
    monkeypatch.setattr(torch, "version", SimpleNamespace(hip=hip))
    assert triton_engine.is_available() == available
