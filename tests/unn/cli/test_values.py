"""Values on the command line: arrays of numbers in files."""

import io

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unn.cli.values import read_array
from unn.errors import DataError

ARRAY = np.arange(12, dtype=np.float32).reshape(3, 4)


def content_of(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return bytearray(stream.getvalue())


@given(st.lists(st.tuples(st.integers(0, 127), st.integers(0, 7)), min_size=1, max_size=3))
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arrays_with_damaged_headers_are_named_or_read_as_numbers(tmp_path, flips):
    content = content_of(ARRAY)
    for place, bit in flips:
        content[place] ^= 1 << bit
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    try:
        values = read_array("X=x.npy", str(path))
    except DataError as error:
        message = str(error)
    else:
        assert values.dtype == torch.float32
        return
    assert message.startswith("--given X=x.npy: ")


def test_arrays_are_read_as_they_were_saved(tmp_path):
    for array in (ARRAY, ARRAY.astype(np.int64), ARRAY > 3, ARRAY.T):
        np.save(tmp_path / "x.npy", array)
        expected = torch.from_numpy(array.astype(np.float32))
        assert torch.equal(read_array("X", str(tmp_path / "x.npy")), expected)


def test_files_without_an_array_of_numbers_are_refused(tmp_path):
    np.save(tmp_path / "words.npy", np.array(["a", "b"]))
    np.savez(tmp_path / "several.npy", a=ARRAY)
    (tmp_path / "empty.npy").write_bytes(b"")
    for name in ("words.npy", "several.npy.npz", "empty.npy", "missing.npy"):
        with pytest.raises(DataError, match="--given X"):
            read_array("X", str(tmp_path / name))
