"""Reading IDX files and the two sets of digits: whatever is wrong with a file is said in one line."""

import gzip
import struct

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from problems.digits.data import load_digits, move, read_idx
from unn import DataError

IMAGES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def idx(array, code=0x08, kind=">u1"):
    """An array as the content of an IDX file."""
    array = np.asarray(array)
    return (
        bytes([0, 0, code, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.astype(kind).tobytes()
    )


PLAIN = idx(IMAGES)
PACKED = gzip.compress(PLAIN)


def mnist(folder, skip=(), pack=False, **changed):
    """Four small files of MNIST; keywords ``train_images`` and so on replace their content."""
    content = {
        "train_images": idx(np.zeros((3, 5, 6))),
        "train_labels": idx([0, 1, 9]),
        "test_images": idx(np.full((2, 5, 6), 255)),
        "test_labels": idx([4, 5]),
        **changed,
    }
    for name, raw in zip(NAMES, content.values(), strict=True):
        if name not in skip:
            (folder / (f"{name}.gz" if pack else name)).write_bytes(gzip.compress(raw) if pack else raw)
    return folder


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 4), st.integers(3, 9), st.integers(3, 9), st.integers(0, 10**6))
def test_moved_images_are_windows_of_the_image_on_background(most, rows, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(4, 1, rows, columns, generator=generator)
    for image, moved in zip(images[:, 0], move(images, most, generator)[:, 0], strict=True):
        windows = []
        for down in range(-most, most + 1):
            for right in range(-most, most + 1):
                window = torch.full_like(image, -1)
                for row in range(max(0, down), min(rows, rows + down)):
                    for column in range(max(0, right), min(columns, columns + right)):
                        window[row, column] = image[row - down, column - right]
                windows.append(window)
        assert any(torch.equal(moved, window) for window in windows)


def test_images_are_moved_in_all_directions_equally_often():
    image = torch.full((1, 1, 5, 5), -1.0)
    image[0, 0, 2, 2] = 1
    count = 4500
    moved = move(image.expand(count, -1, -1, -1), 1, torch.Generator().manual_seed(0))
    places = (moved == 1).double().mean((0, 1))[1:4, 1:4] * count
    assert float(((places - count / 9) ** 2 / (count / 9)).sum()) < chi2.ppf(1 - 1e-4, 8)
    assert float(places.sum()) == count


@pytest.mark.parametrize("raw", [PLAIN, PACKED], ids=["plain", "gzip"])
def test_a_file_is_read_whether_compressed_or_not(tmp_path, raw):
    (tmp_path / "file").write_bytes(raw)
    assert np.array_equal(read_idx(tmp_path / "file"), IMAGES)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(0x08, ">u1"), (0x09, ">i1"), (0x0B, ">i2"), (0x0C, ">i4"), (0x0D, ">f4"), (0x0E, ">f8")],
)
def test_every_type_of_the_format_is_read(tmp_path, code, kind):
    values = np.array([[1, 2, 3], [4, 5, 6]]) - (0 if kind == ">u1" else 9)
    (tmp_path / "file").write_bytes(idx(values, code, kind))
    array = read_idx(tmp_path / "file")
    assert array.dtype == np.dtype(kind) and np.array_equal(array, values)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "only 0 bytes.*download it again"),
        (PLAIN[:3], "only 3 bytes.*download it again"),
        (PLAIN[:9], "header is cut off after 9 of 16 bytes.*download it again"),
        (PLAIN[:-1], r"truncated: shape \(2, 3, 4\) needs 24 bytes of data, found 23.*download it again"),
        (PLAIN[:16], r"truncated: shape \(2, 3, 4\) needs 24 bytes of data, found 0"),
        (PLAIN + b"x", r"too long: shape \(2, 3, 4\) needs 24 bytes of data, found 25"),
        (idx(IMAGES, 0x0E, ">f8")[:-1], "needs 192 bytes of data, found 191"),
        (b"\x89PNG" + PLAIN, "starts with bytes 89 50 4e 47, not with the header of an IDX file"),
        (b"<html></html>", "starts with bytes 3c 68 74 6d"),
        (b"\0\0\x07\x03" + PLAIN[4:], "starts with bytes 00 00 07 03"),
        (b"\0\1" + PLAIN[2:], "starts with bytes 00 01 08 03"),
        (PACKED[:-9], "cannot be read.*end-of-stream.*download it again"),
        (PACKED[: len(PACKED) // 2], "cannot be read.*download it again"),
        (PACKED[:2], "cannot be read.*download it again"),
        (PACKED[:5], "cannot be read.*download it again"),
        (b"\x1f\x8b" + b"garbage" * 9, "cannot be read.*download it again"),
        (PACKED[:12] + b"\xff\xff\xff\xff" + PACKED[16:], "cannot be read.*download it again"),
        (PACKED[:-8] + b"\0\0\0\0" + PACKED[-4:], "cannot be read.*CRC.*download it again"),
        (PACKED + b"abc", "cannot be read.*download it again"),
        (gzip.compress(PLAIN[:-3]), "truncated.*found 21"),
        (gzip.compress(PACKED), "starts with bytes 1f 8b"),
        (
            bytes([0, 0, 8, 3]) + struct.pack(">3I", *[2**32 - 1] * 3),
            "truncated.*needs 79228162458924105385300197375 bytes",
        ),
        (bytes([0, 0, 8, 3]) + struct.pack(">3I", 0, 2**32 - 1, 2**32 - 1), "shape"),
        (bytes([0, 0, 8, 70]) + struct.pack(">I", 1) * 70 + b"\5", "70"),
    ],
    ids=range(24),
)
def test_whatever_is_wrong_with_a_file_is_said_with_its_path(tmp_path, raw, words):
    path = tmp_path / "some-images"
    path.write_bytes(raw)
    with pytest.raises(DataError, match=f"some-images: .*{words}"):
        read_idx(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match="absent.*cannot be read"):
        read_idx(tmp_path / "absent")
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(tmp_path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    raw=st.sampled_from([PLAIN, PACKED]),
    changes=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=3),
    cut=st.integers(0, 60),
    tail=st.binary(max_size=3),
)
def test_damaged_files_are_read_or_refused_but_never_crash(tmp_path, raw, changes, cut, tail):
    damaged = bytearray(raw)
    for place, byte in changes:
        damaged[place % len(damaged)] = byte
    (tmp_path / "file").write_bytes(bytes(damaged[: len(damaged) - cut % len(damaged)]) + tail)
    message = ""
    try:
        assert isinstance(read_idx(tmp_path / "file"), np.ndarray)
    except DataError as error:
        message = str(error)
    assert not message or str(tmp_path / "file") in message


@pytest.mark.parametrize("pack", [False, True])
def test_mnist_is_read_from_its_four_files(tmp_path, pack):
    digits = load_digits("mnist", mnist(tmp_path, pack=pack))
    assert digits.image_shape == (5, 6)
    assert digits.train_images.shape == (3, 1, 5, 6) and digits.train_images.dtype == torch.float32
    assert (digits.train_images == -1).all() and (digits.test_images == 1).all()
    assert digits.train_labels.tolist() == [0, 1, 9] and digits.test_labels.dtype == torch.int64


def test_the_folder_is_found_in_the_environment(tmp_path, monkeypatch):
    (tmp_path / "mnist").mkdir()
    mnist(tmp_path / "mnist")
    monkeypatch.setenv("UNN_DATA", str(tmp_path))
    assert load_digits("mnist").test_labels.tolist() == [4, 5]


@pytest.mark.parametrize("value", [None, ""])
def test_without_a_folder_the_message_says_what_to_download_and_what_to_set(monkeypatch, value):
    if value is None:
        monkeypatch.delenv("UNN_DATA", raising=False)
    else:
        monkeypatch.setenv("UNN_DATA", value)
    with pytest.raises(DataError) as caught:
        load_digits("mnist")
    message = str(caught.value)
    assert "UNN_DATA is not set" in message and "mnist/" in message and "--data embedded" in message
    assert all(f"{name}.gz" in message for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_named_with_what_to_download_where(tmp_path, name):
    with pytest.raises(DataError) as caught:
        load_digits("mnist", mnist(tmp_path, skip=[name]))
    message = str(caught.value)
    assert f"neither {name}.gz nor {name} is in {tmp_path}" in message and "--data embedded" in message
    assert all(f"{other}.gz" in message for other in NAMES)


def test_a_folder_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("UNN_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="train-images-idx3-ubyte.*nowhere.mnist.*Download"):
        load_digits("mnist")


@pytest.mark.parametrize("side", ["train", "test"])
@pytest.mark.parametrize(
    "labels",
    [
        idx([0, 1, 10]),
        idx([0, 1, 255]),
        idx([0, 1, -1], 0x09, ">i1"),
        idx([0, 1, -7], 0x0C, ">i4"),
        idx([0, 1, 2.5], 0x0D, ">f4"),
        idx([0, 1, float("nan")], 0x0D, ">f4"),
    ],
    ids=["10", "255", "-1", "-7", "2.5", "nan"],
)
def test_labels_must_be_digits(tmp_path, side, labels):
    folder = mnist(tmp_path, **{f"{side}_images": idx(np.zeros((3, 5, 6))), f"{side}_labels": labels})
    with pytest.raises(DataError, match="labels-idx1-ubyte.*digits 0 to 9"):
        load_digits("mnist", folder)


def test_images_and_labels_are_equally_many(tmp_path):
    with pytest.raises(
        DataError,
        match=r"train-images-idx3-ubyte has shape \(3, 5, 6\) and train-labels-idx1-ubyte shape \(2,\)",
    ):
        load_digits("mnist", mnist(tmp_path, train_labels=idx([0, 1])))


def test_images_and_labels_are_not_swapped(tmp_path):
    with pytest.raises(DataError, match=r"expected \(n, rows, columns\) and \(n,\)"):
        load_digits(
            "mnist", mnist(tmp_path, train_images=idx([0, 1, 9]), train_labels=idx(np.zeros((3, 5, 6))))
        )


def test_there_is_at_least_one_image(tmp_path):
    with pytest.raises(DataError, match="at least one image"):
        load_digits(
            "mnist", mnist(tmp_path, train_images=idx(np.zeros((0, 5, 6))), train_labels=idx(np.zeros(0)))
        )


def test_an_image_has_at_least_one_pixel(tmp_path):
    with pytest.raises(DataError, match="images"):
        load_digits(
            "mnist",
            mnist(tmp_path, train_images=idx(np.zeros((3, 0, 6))), test_images=idx(np.zeros((2, 0, 6)))),
        )


def test_training_and_test_images_have_one_shape(tmp_path):
    with pytest.raises(DataError, match=r"\(5, 6\), test images \(6, 5\)"):
        load_digits("mnist", mnist(tmp_path, test_images=idx(np.zeros((2, 6, 5)))))


@pytest.mark.parametrize(
    "pixels",
    [idx(np.full((3, 5, 6), 1000), 0x0B, ">i2"), idx(np.full((3, 5, 6), np.nan), 0x0D, ">f4")],
    ids=["1000", "nan"],
)
def test_pixels_are_bytes(tmp_path, pixels):
    with pytest.raises(DataError, match="train-images-idx3-ubyte"):
        load_digits("mnist", mnist(tmp_path, train_images=pixels))


def test_a_corrupt_file_among_the_four_is_named(tmp_path):
    with pytest.raises(DataError, match="t10k-images-idx3-ubyte: truncated"):
        load_digits("mnist", mnist(tmp_path, test_images=idx(np.zeros((2, 5, 6)))[:-1]))


@pytest.mark.parametrize("data", ["MNIST", "", None])
def test_unknown_sets_are_refused(data):
    with pytest.raises(DataError, match="choose 'embedded' or 'mnist'"):
        load_digits(data)
