"""The smallest kernel: does the compiler work here at all?"""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def add_one(values, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    tl.store(values + at, tl.load(values + at, mask=inside) + 1.0, mask=inside)
