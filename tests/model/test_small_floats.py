import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cookbook.model.small_floats import FORMATS, decode, encode, encode_ue8m0, pack, unpack

TORCH = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "ue8m0": "float8_e8m0fnu"}
# All of them that are not negative: OCP Microscaling Formats, tables of FP4 and FP6.
LISTED = {
    "e2m1": [0, 0.5, 1, 1.5, 2, 3, 4, 6],
    "e2m3": [*np.arange(0, 2, 0.125), *np.arange(2, 4, 0.25), *np.arange(4, 8, 0.5)],
    "e3m2": [*np.arange(0, 0.5, 0.0625), *np.arange(0.5, 1, 0.125), *np.arange(1, 2, 0.25), *np.arange(2, 4, 0.5),
             *np.arange(4, 8), *np.arange(8, 16, 2), *np.arange(16, 32, 4)],
}  # fmt: skip
LARGEST = {"e4m3": 448, "e5m2": 57344, "e3m2": 28, "e2m3": 7.5, "e2m1": 6, "ue4m3": 448, "ue8m0": 2.0**127}


def every(name):
    return (
        np.arange(1 << FORMATS[name].bits, dtype=np.uint8) if FORMATS[name].bits < 8 else np.arange(256, dtype=np.uint8)
    )


@pytest.mark.parametrize("name", TORCH)
def test_every_pattern_decodes_as_in_torch(name):
    torch = pytest.importorskip("torch")
    theirs = torch.arange(256, dtype=torch.uint8).view(getattr(torch, TORCH[name])).to(torch.float32).numpy()
    assert np.array_equal(decode(every(name), name), theirs, equal_nan=True)


@pytest.mark.parametrize("name", LISTED)
def test_every_pattern_of_the_narrow_formats_is_as_listed(name):
    half = len(LISTED[name])
    assert np.array_equal(decode(every(name)[:half], name), np.array(LISTED[name], np.float32))
    assert np.array_equal(decode(every(name)[half:], name), -np.array(LISTED[name], np.float32))


def test_ue4m3_is_e4m3_without_a_sign():
    assert np.array_equal(decode(every("ue4m3"), "ue4m3"), decode(every("e4m3")[:128], "e4m3"), equal_nan=True)


@pytest.mark.parametrize("name", [x for x in FORMATS if x != "ue8m0"])
def test_encode_inverts_decode(name):
    bits = every(name)
    values = decode(bits, name)
    finite = np.isfinite(values)
    assert np.array_equal(encode(values, name)[finite], bits[finite])
    assert np.nanmax(values[finite]) == LARGEST[name]


@given(st.lists(st.floats(-1e5, 1e5, width=32), min_size=1, max_size=16), st.sampled_from(["e4m3", "e5m2"]))
def test_rounds_as_torch(values, name):
    torch = pytest.importorskip("torch")
    array = np.array(values, np.float32)
    array = array[np.abs(array) <= LARGEST[name]]  # torch does not clamp
    theirs = torch.from_numpy(array).to(getattr(torch, TORCH[name])).view(torch.uint8).numpy()
    assert np.array_equal(encode(array, name), theirs)


@given(
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=16),
    st.sampled_from([x for x in FORMATS if x != "ue8m0"]),
)
def test_encodes_to_the_nearest_that_there_is(values, name):
    array = np.array(values, np.float32)
    table = decode(every(name), name).astype(np.float64)
    table = table[np.isfinite(table)]
    wanted = np.clip(array.astype(np.float64), 0 if not FORMATS[name].signed else -LARGEST[name], LARGEST[name])
    got = decode(encode(array, name), name).astype(np.float64)
    assert np.array_equal(np.abs(got - wanted), np.abs(table[None, :] - wanted[:, None]).min(axis=1))


@pytest.mark.parametrize(("name", "values", "codes"), [
    ("e2m1", [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25], [0, 2, 2, 4, 4, 6, 6, 8]),  # ties to even
    ("e2m1", [7, -1e9, np.inf, np.nan], [7, 15, 7, 7]),
    ("e4m3", [449, 1e9, -np.inf, np.nan, -0.0], [0x7E, 0x7E, 0xFE, 0x7F, 0x80]),
    ("e5m2", [1e9, np.nan], [0x7B, 0x7F]),
    ("ue4m3", [-1, 1e9, np.nan, 1], [0, 0x7E, 0x7F, 0x38]),
])  # fmt: skip
def test_ties_and_what_is_too_large(name, values, codes):
    assert encode(np.array(values, np.float32), name).tolist() == codes


def test_ue8m0_rounds_up_or_down_to_a_power_of_two():
    values = np.array([1, 1.5, 2, 3, 0.75, 2.0**127, 3e38, 0, 1e-45, -1, np.nan, np.inf], np.float32)
    assert encode_ue8m0(values).tolist() == [127, 128, 128, 129, 127, 254, 254, 0, 0, 255, 255, 254]
    assert encode_ue8m0(values, up=False).tolist() == [127, 127, 128, 128, 126, 254, 254, 0, 0, 255, 255, 254]
    bits = every("ue8m0")[:-1]
    for up in (True, False):
        assert np.array_equal(encode_ue8m0(decode(bits, "ue8m0"), up), bits)


@given(st.lists(st.integers(0, 63), min_size=4, max_size=4), st.sampled_from([4, 6]))
def test_packing_is_the_binary_number(codes, bits):
    array = np.array(codes, np.uint8) % (1 << bits)
    packed = pack(array, bits)
    number = sum(int(code) << bits * i for i, code in enumerate(array))
    assert int.from_bytes(packed.tobytes(), "little") == number
    assert np.array_equal(unpack(packed, bits), array)


def test_refuses():
    with pytest.raises(ValueError, match="name: got 'e9m9'"):
        decode(np.zeros(1, np.uint8), "e9m9")
    with pytest.raises(ValueError, match="needed uint8 below 16"):
        decode(np.full(1, 16, np.uint8), "e2m1")
    with pytest.raises(ValueError, match="got int64"):
        decode(np.zeros(1, np.int64), "e4m3")
    with pytest.raises(ValueError, match="encode_ue8m0"):
        encode(np.zeros(1, np.float32), "ue8m0")
    with pytest.raises(ValueError, match="needed whole bytes"):
        pack(np.zeros(3, np.uint8), 4)
