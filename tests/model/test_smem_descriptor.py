import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cookbook.model import BlackwellDescriptor, SharedMemory
from cookbook.model.smem_descriptor import operand_bytes

fields = st.integers(0, 2**14 - 1).map(lambda x: 16 * x)
modes = st.sampled_from([(0, 16), (32, 16), (64, 16), (128, 16), (128, 32)])


@given(fields, fields, fields, modes, st.integers(0, 7), st.booleans())
def test_decode_inverts_encode(start, lbo, sbo, mode, base_offset, absolute):
    descriptor = BlackwellDescriptor(start, lbo, sbo, *mode, base_offset, absolute)
    word = descriptor.encode()
    assert BlackwellDescriptor.decode(word) == descriptor
    assert (word & 0x3FFF, word >> 46 & 7, word >> 52 & 1) == (start // 16, 1, absolute)


def test_operand_bytes_refuse():
    smem = SharedMemory(4096)
    k_major = BlackwellDescriptor(0, 16, 1024, 128)
    for descriptor, major, bits, message in (
        (k_major, "M", 16, "major: got 'M'"),
        (dataclasses.replace(k_major, lbo_absolute=True), "K", 16, "not modelled"),
        (dataclasses.replace(k_major, together=32), "K", 16, "K-major mode"),
        (dataclasses.replace(k_major, together=32), "MN", 16, "needed 32-byte ones"),
        (k_major, "MN", 32, "needed 32-byte ones"),
        (k_major, "MN", 4, "element_bits: got 4"),
    ):
        with pytest.raises(ValueError, match=message):
            operand_bytes(smem, descriptor, 8, major, bits)
    with pytest.raises(ValueError, match="rows: got 0"):
        operand_bytes(smem, k_major, 0)
