"""Sizes of element types by name, so that specs need not import torch."""

BYTES = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
}


def dtype_bytes(name: str) -> int:
    """Bytes of one element of the torch dtype called ``name``."""
    try:
        return BYTES[name]
    except KeyError:
        raise ValueError(f"unknown dtype {name!r}; accepted: {', '.join(BYTES)}") from None
