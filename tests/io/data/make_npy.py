#!/usr/bin/env python3
"""Writes tests/io/data/npy/: files that NumPy wrote, good and bad, which tests/io/npy_test.cpp reads.

The files are committed, so running the tests needs no NumPy. Run this again only to change them, with NumPy and
ml_dtypes (JAX's element types):

    python3 tests/io/data/make_npy.py
"""

import pathlib

import ml_dtypes
import numpy as np

HERE = pathlib.Path(__file__).resolve().parent / "npy"


def save(name, array, version=None, **options):
    with open(HERE / name, "wb") as file:
        np.lib.format.write_array(file, array, version=version, **options)


def main():
    HERE.mkdir(exist_ok=True)
    # Element i is i - 7.5: exact in all three types, with a sign and a fraction.
    values = (np.arange(2 * 3 * 4 * 5) - 7.5).reshape(2, 3, 4, 5)

    save("f2.npy", values.astype("<f2"))
    save("f4.npy", values.astype("<f4"))
    save("f8.npy", values.astype("<f8"))
    save("version2.npy", values.astype("<f4"), version=(2, 0))
    save("version3.npy", values.astype("<f4"), version=(3, 0))
    save("special.npy", np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 2**-24, 65504, 1 / 3], "<f2"))
    save("rank0.npy", np.array(1.5, "<f4"))
    save("rank1.npy", np.array([1.5, 2.5, 3.5], "<f4"))
    save("rank3.npy", values[0].astype("<f4"))

    save("fortran.npy", np.asfortranarray(values.astype("<f4")))
    save("big_endian.npy", values.astype(">f4"))
    save("object.npy", np.array([[[[None, "text"]]]], dtype=object), allow_pickle=True)
    save("structured.npy", np.zeros((1, 2, 3, 4), dtype=[("x", "<f4"), ("y", "<f4")]))
    save("bool.npy", values > 0)
    save("int64.npy", values.astype("<i8"))
    save("complex64.npy", values.astype("<c8"))
    save("zero_size.npy", np.zeros((2, 0, 4, 5), "<f4"))
    np.savez(HERE / "archive.npz", a=np.zeros(2, "<f4"))

    # bfloat16 is no type of NumPy's: it is saved as two bytes of nothing in particular. With special values, and 1/3,
    # which is 0x3eab in bfloat16 and another number in any other type.
    bf16 = values.astype(ml_dtypes.bfloat16)
    assert bf16.dtype.str == "<V2"
    save("bf16.npy", bf16)
    save("bf16_void.npy", bf16.view("V2"))  # '|V2'
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 2.0**-133, 3.0e38, 1 / 3], ml_dtypes.bfloat16)
    save("bf16_special.npy", special)
    save("void4.npy", values.astype("<f4").view("V4"))
    # '=' is the byte order of the machine that reads. NumPy accepts it and never writes it.
    for name in ["f2", "f4", "f8"]:
        text = (HERE / f"{name}.npy").read_bytes()
        (HERE / f"native_{name}.npy").write_bytes(text.replace(f"'<{name}'".encode(), f"'={name}'".encode()))

    whole = (HERE / "f4.npy").read_bytes()
    (HERE / "truncated_header.npy").write_bytes(whole[:50])
    (HERE / "truncated_data.npy").write_bytes(whole[:-7])
    (HERE / "trailing.npy").write_bytes(whole + b"more")


if __name__ == "__main__":
    main()
