"""Compile the exchange's kernels for a GPU, which needs none: Triton's interpreter takes what its compiler refuses.

A program, because a process defines its kernels for one of the two.
"""

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from trainers.exchange.kernels import gpu

HOPPER = GPUTarget("cuda", 90, 32)
#: The types of what is not a number of entries.
TYPES = {
    "gradient": "*fp32", "residual": "*fp32", "kept": "*fp32", "vector": "*fp32", "out": "*fp32",
    "aside_values": "*fp32", "values": "*fp32", "threshold": "*fp32", "scale": "fp32",
    "counts": "*i32", "ends": "*i32", "aside_indices": "*i32", "indices": "*i32",
}  # fmt: skip


def compile_for_gpu(kernel: Any, **constants: Any) -> None:
    """Raises triton.CompilationError."""
    types = {name: "constexpr" if name in constants else TYPES.get(name, "i32") for name in kernel.arg_names}
    triton.compile(ASTSource(kernel, types, constexprs=constants), target=HOPPER)


if __name__ == "__main__":
    sizes = {"BLOCK": gpu.BLOCK, "ASIDE": gpu.ASIDE}
    for keeps in (False, True):
        compile_for_gpu(gpu._gather, KEEPS=keeps, **sizes)
        for has_residual in (False, True):
            compile_for_gpu(gpu._split, HAS_RESIDUAL=has_residual, KEEPS=keeps, **sizes)
    compile_for_gpu(gpu._scatter_add, BLOCK=gpu.BLOCK)
