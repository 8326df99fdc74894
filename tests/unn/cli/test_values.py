"""Values on the command line: arrays of numbers in files."""

import io

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import unn
from unn.cli.values import read_array, read_value
from unn.errors import DataError, ObservationError

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


def graph_of_categories():
    g = unn.FactorGraph("g", i=4, j=2, v=3)
    g.variable("X", "i | v", unn.Entropy())
    g.variable("Y", "i j | v", unn.Entropy())
    g.variable("label", "| v", unn.Entropy())
    g.variable("Z", "n | v", unn.Entropy())
    return g


@pytest.mark.parametrize(
    ("name", "text", "numbers", "known"),
    [
        ("X", "0,2,1,0", [0, 2, 1, 0], [True] * 4),
        ("X", "0, 2,?,0", [0, 2, 0, 0], [True, True, False, True]),
        ("Y", "0,1,2,0,1,2,?,1", [[0, 1], [2, 0], [1, 2], [0, 1]], [[True] * 2] * 3 + [[False, True]]),
        ("label", "2", 2, True),
        ("Z", "2,1", [2, 1], [True, True]),
    ],
)
def test_categories_are_given_by_their_numbers(name, text, numbers, known):
    value = read_value(graph_of_categories(), name, text)
    x, mask = (value.value, value.mask) if isinstance(value, unn.Partial) else (value, None)
    expected = torch.nn.functional.one_hot(torch.tensor([numbers]), 3).float()
    given = torch.tensor([known])
    assert torch.equal(x[given], expected[given])
    assert torch.equal(given, mask) if mask is not None else bool(given.all())


def test_numbers_of_all_options_are_given_as_before():
    value = read_value(graph_of_categories(), "X", "1,0,0,0,1,0,0.5,0.5,0,0,0,1")
    assert torch.equal(
        value, torch.tensor([[[1, 0, 0], [0, 1, 0], [0.5, 0.5, 0], [0, 0, 1]]], dtype=torch.float32)
    )


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("X", "0,3,1,0", "categories of 'X' go from 0 to 2"),
        ("label", "3", "categories of 'label' go from 0 to 2"),
        ("X", "0,1,2", "expected 4 x 3"),
        ("X", "a,b,c,d", "give numbers separated by commas"),
    ],
)
def test_categories_that_a_variable_does_not_have_are_refused(name, text, reason):
    with pytest.raises(ObservationError, match=reason):
        read_value(graph_of_categories(), name, text)
