"""Makes the kernel write out of bounds, through an array that claims more memory than it has."""

import ctypes

import numpy as np

from kvhybrid.managers.kernel import put_span

malloc = ctypes.CDLL(None).malloc
malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
four_numbers = ctypes.cast(malloc(16), ctypes.POINTER(ctypes.c_int32))

if __name__ == "__main__":
    put_span(np.ctypeslib.as_array(four_numbers, shape=(8,)), 0, 8, 1, 1)
