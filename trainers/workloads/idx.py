"""The IDX format of MNIST's files: a magic number, the sizes, the bytes (yann.lecun.com/exdb/mnist, "file formats")."""

import math
import struct

import numpy as np

#: Third byte of the magic number: the entries are unsigned bytes.
UNSIGNED_BYTE = 0x08


def parse(content: bytes) -> np.ndarray:
    """Return the array (uint8) of an IDX file; raises ValueError unless `content` is one of bytes, and whole."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != UNSIGNED_BYTE:
        raise ValueError(f"it must begin with the IDX magic number 00 00 08, got {content[:3].hex(' ') or 'nothing'}")
    num_axes = content[3]
    start = 4 + 4 * num_axes
    if len(content) < start:
        raise ValueError(f"it must name {num_axes} sizes, and ends before them")
    sizes = struct.unpack_from(f">{num_axes}I", content, 4)
    if len(content) - start != math.prod(sizes):
        raise ValueError(f"it must hold {math.prod(sizes)} bytes for sizes {sizes}, got {len(content) - start}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)
