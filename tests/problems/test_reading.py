"""Files of instances: a damaged one is named, whatever is wrong with it."""

import gzip
import io

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from problems.reading import read_arrays, read_bytes, read_text
from unn.errors import DataError

TEXT = "".join(f"{k} {k * k % 89}\n" for k in range(300))
ARRAYS = {"edges": np.arange(200).reshape(-1, 2) % 37, "kept": np.ones((20, 30), dtype=bool)}


def archive(save):
    stream = io.BytesIO()
    save(stream, **ARRAYS)
    return stream.getvalue()


@st.composite
def damaged(draw, content):
    """The content with some bits exchanged, or cut off."""
    data = bytearray(content)
    for _ in range(draw(st.integers(0, 3))):
        data[draw(st.integers(0, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(data[: draw(st.integers(1, len(data)))]) if draw(st.booleans()) else bytes(data)


def outcome(read, path):
    """What is read, or the beginning of the message."""
    try:
        return read(path, "puzzle")
    except DataError as error:
        return ":".join(str(error).split(":")[:2])


FILES = settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(content=damaged(gzip.compress(TEXT.encode())))
@FILES
def test_damaged_compressed_text_is_refused_or_the_same(content, tmp_path):
    path = tmp_path / "puzzles.txt.gz"
    path.write_bytes(content)
    assert outcome(read_text, path) in (TEXT, f"{path}: no puzzle can be read")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@given(data=st.data())
@FILES
def test_damaged_arrays_are_refused_or_the_same(save, data, tmp_path):
    path = tmp_path / "grids.npz"
    path.write_bytes(data.draw(damaged(archive(save))))
    arrays = outcome(read_arrays, path)
    if arrays != f"{path}: no puzzle can be read":
        assert all(np.array_equal(x, ARRAYS[name]) for name, x in arrays.items() if name in ARRAYS)


def test_files_are_read_compressed_or_not(tmp_path):
    for name, content in (("a.txt", TEXT.encode()), ("a.txt.gz", gzip.compress(TEXT.encode()))):
        (tmp_path / name).write_bytes(content)
        assert read_text(tmp_path / name, "puzzle") == TEXT
        assert read_bytes(tmp_path / name, "puzzle") == content


@pytest.mark.parametrize("read", [read_bytes, read_text, read_arrays])
def test_missing_files_and_folders_are_named(read, tmp_path):
    for path in (tmp_path / "nothing.txt", tmp_path):
        with pytest.raises(DataError, match=path.name):
            read(path, "puzzle")


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_a_byte_order_mark_is_no_part_of_the_text(suffix, tmp_path):
    path = tmp_path / f"graph{suffix}"
    content = "0 1\r\n1 2\n".encode("utf-8-sig")
    path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    assert read_text(path, "graph") == "0 1\r\n1 2\n"
