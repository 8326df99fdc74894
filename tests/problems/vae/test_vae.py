"""Images from latent groups: data, the declaration, commands, and runs that stop."""

import zlib
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from support.commands import answered, printed, refused
from support.toy import same_tensors, tensors_of, without_times

import unn
from problems.vae.images import load_images
from problems.vae.problem import VAEProblem
from problems.vae.verb import Subject
from unn.errors import DataError
from unn.training import TrainingConfig, fit

SMALL = ["--width", "8", "--keys", "4", "--spatial-keys", "4", "--particles", "2", "--quiet"]


def config_of(**options):
    problem = VAEProblem()
    config = problem.config_for("latent")(**options)
    return problem, config


def save(folder, count=12, size=(5, 4), mode="L", seed=0):
    folder.mkdir(exist_ok=True)
    generator = np.random.default_rng(seed)
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    for k in range(count):
        array = generator.integers(0, 256, shape, dtype=np.uint8)
        Image.fromarray(array, mode).save(folder / f"{k:02}.png")


def test_the_embedded_digits_are_binarised_anew_at_every_access_or_once():
    problem, config = config_of()
    generator = torch.Generator().manual_seed(0)
    values = problem.generate(config, 2000, generator, {})["x"]
    assert values.shape == (2000, 8, 8) and ((values == 0) | (values == 1)).all()
    mean = load_images("digits").train.mean() / 255
    assert float(values.mean()) == pytest.approx(float(mean), abs=0.01)
    images = load_images("digits").train
    rows = torch.zeros(50, dtype=torch.long)
    grey = ((images[0, ..., 0] > 60) & (images[0, ..., 0] < 200)).nonzero()[0]
    for binarisation, varies in (("dynamic", True), ("static", False)):
        own = replace(config, binarisation=binarisation)
        pixels = problem._pixels(own, images, rows, generator)[:, grey[0], grey[1]]
        assert bool((pixels != pixels[0]).any()) == varies


def test_every_ablation_is_the_same_declaration_with_another_mask_or_frozen_gates():
    problem, config = config_of()
    counts = {}
    for attention in ("all", "neighbours", "none"):
        for frozen in (False, True):
            own = replace(config, attention=attention, frozen=frozen)
            counts[attention, frozen] = sum(p.numel() for p in problem.network(own, {}).parameters())
    assert counts["all", False] == counts["all", True] == counts["neighbours", False]
    assert counts["none", False] < counts["all", False]


def test_levels_as_normal_numbers_have_a_density_and_no_bits_and_are_printed(capsys, tmp_path):
    run = tmp_path / "run"
    printed(
        capsys, "train", "vae", "--pixels", "levels", "--layers", "2", "--steps", "2", "--batch", "4", *SMALL,
        "--folder", run,
    )  # fmt: skip
    figures = answered(capsys, "evaluate", run, "--count", "4")["1"]
    assert "bound" in figures and "bits_per_dimension" not in figures
    assert len(printed(capsys, "sample", run, "--seed", "1", "--count", "3").splitlines()) > 24


def test_a_folder_that_changed_since_the_run_was_made_is_named(capsys, tmp_path):
    save(tmp_path / "images")
    run = tmp_path / "run"
    printed(
        capsys, "train", "vae", "--data", "folder", "--images", tmp_path / "images", "--layers", "2",
        "--steps", "2", "--batch", "4", *SMALL, "--folder", run,
    )  # fmt: skip
    (tmp_path / "images" / "05.png").unlink()
    load_images.cache_clear()
    assert "training images" in refused(capsys, "resume", run, "--steps", "3")


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3)])
def test_a_folder_of_images_is_learned_as_levels(mode, channels, tmp_path, capsys):
    save(tmp_path / "images", mode=mode)
    loaded = load_images("folder", str(tmp_path / "images"))
    assert loaded.size == (4, 5, channels) and len(loaded.train) == 11 and len(loaded.test) == 1
    figures = answered(
        capsys, "train", "vae", "--data", "folder", "--images", tmp_path / "images", "--pixels", "levels",
        "--reals", "levels", "--layers", "2", "--steps", "2", "--batch", "4", *SMALL,
        "--folder", tmp_path / "run",
    )  # fmt: skip
    text = printed(capsys, "evaluate", tmp_path / "run", "--count", "1")
    assert "bits_per_dimension" in text and figures
    samples = answered(capsys, "sample", tmp_path / "run", "--count", "2", "--seed", "0")
    x = torch.tensor(samples["values"]["x"])
    assert x.shape == (2, 4, 5, channels)
    assert (((x + 1) * 127.5 - ((x + 1) * 127.5).round()).abs() < 1e-3).all()


def test_unusable_images_are_refused_with_the_file_and_the_reason(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        load_images("folder", str(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="0 images .* at least two"):
        load_images("folder", str(tmp_path / "empty"))
    save(tmp_path / "mixed", 3)
    Image.fromarray(np.zeros((9, 9), np.uint8)).save(tmp_path / "mixed" / "zz.png")
    with pytest.raises(DataError, match=r"zz.png: an image of 9 x 9 pixels .* 00.png has 4 x 5"):
        load_images("folder", str(tmp_path / "mixed"))
    save(tmp_path / "broken", 3)
    save(tmp_path / "bomb", 3)
    header = (
        b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + (20_000).to_bytes(4, "big") * 2 + b"\x08\x00\x00\x00\x00"
    )
    checksum = zlib.crc32(header[12:]).to_bytes(4, "big")
    (tmp_path / "bomb" / "02.png").write_bytes(header + checksum)
    with pytest.raises(DataError, match="02.png: no readable image"):
        load_images("folder", str(tmp_path / "bomb"))
    save(tmp_path / "deep", 3)
    Image.fromarray(np.full((4, 5), 40_000, np.uint16)).save(tmp_path / "deep" / "02.png")
    with pytest.raises(DataError, match=r"02.png: an image of mode .* more than 8 bits"):
        load_images("folder", str(tmp_path / "deep"))
    (tmp_path / "broken" / "01.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"01.png: no readable image"):
        load_images("folder", str(tmp_path / "broken"))


def test_missing_data_say_what_to_get(monkeypatch, tmp_path):
    monkeypatch.setenv("UNN_DATA", str(tmp_path))
    load_images.cache_clear()
    with pytest.raises(DataError, match=r"chardata.mat nor .*omniglot_small_28x28.npz exists"):
        load_images("omniglot")
    (tmp_path / "omniglot").mkdir()
    (tmp_path / "omniglot" / "omniglot_small_28x28.npz").write_bytes(b"PK")
    with pytest.raises(DataError, match="cannot be read"):
        load_images("omniglot")
    # a file with the whole set comes first; its images are columns, stored column by column
    x = np.random.default_rng(0).random((3, 28, 28))
    columns = x.transpose(0, 2, 1).reshape(3, 784).T
    savemat(tmp_path / "omniglot" / "chardata.mat", {"data": columns, "testdata": columns[:, :1]})
    loaded = load_images("omniglot")
    assert loaded.train.shape == (3, 28, 28, 1) and loaded.test.shape == (1, 28, 28, 1)
    assert np.allclose(loaded.train[..., 0], np.round(x * 255))
    load_images.cache_clear()
    (tmp_path / "omniglot" / "chardata.mat").write_bytes(b"MATLAB")
    with pytest.raises(DataError, match=r"chardata.mat: cannot be read"):
        load_images("omniglot")
    load_images.cache_clear()


def test_options_that_do_not_fit_are_refused(capsys, tmp_path):
    assert "give both, or neither" in refused(capsys, "train", "vae", "--data", "folder")
    assert "--pixels levels" in refused(capsys, "train", "vae", "--reals", "levels", "--quiet")
    assert "keys=64" in refused(capsys, "train", "vae", "--keys", "64", "--quiet")
    assert "halvings must be at most 3" in refused(capsys, "train", "vae", "--halvings", "4", "--quiet")
    assert "layers" in refused(capsys, "train", "vae", "--layers", "0", "--quiet")


@pytest.mark.slow
def test_a_run_is_trained_evaluated_sampled_and_completed_on_the_command_line(capsys, tmp_path):
    run = tmp_path / "run"
    printed(capsys, "train", "vae", "--layers", "2", "--steps", "3", "--batch", "8", *SMALL, "--folder", run)
    figures = answered(capsys, "evaluate", run, "--count", "20")["1"]
    assert figures["log_likelihood"] >= figures["bound"] - 5
    assert {f"{name}_{k}" for name in ("divergence", "active") for k in (1, 2)} <= set(figures)
    picture = tmp_path / "samples.png"
    printed(capsys, "sample", run, "--count", "4", "--seed", "1", "--draw", picture)
    assert picture.stat().st_size > 1000
    subjects = get_args(Subject)
    for subject in subjects:
        own = tmp_path / f"{subject}.png"
        printed(capsys, "images", run, "--of", subject, "--draw", own, "--count", "3")
        assert own.stat().st_size > 1000
    assert len(subjects) == 6
    printed(capsys, "images", run, "--of", "interpolations", "--draw", picture, "--count", "1")
    assert "temperature must be positive" in refused(
        capsys, "images", run, "--of", "temperatures", "--temperatures", "0", "--draw", picture
    )
    assert "has no temperatures" in refused(
        capsys, "images", run, "--of", "completions", "--temperatures", "0.1", "--draw", picture
    )
    problem = VAEProblem()
    config = problem.config_for("latent")()
    query = problem.test_queries(config, 1, torch.Generator().manual_seed(0))["upper half given"]
    x, mask = query.given["x"].value[0], query.given["x"].mask[0]
    cells = zip(x.flatten().tolist(), mask.flatten().tolist(), strict=True)
    text = ",".join(str(int(value)) if given else "?" for value, given in cells)
    completed = torch.tensor(
        answered(capsys, "sample", run, "--count", "3", "--given", f"x={text}")["values"]["x"]
    )
    assert (completed[:, :4] == x[:4]).all()
    assert "x" in refused(capsys, "sample", run, "--given", "x=1,0")


@pytest.mark.slow
def test_a_run_that_stops_ends_with_the_numbers_of_one_that_does_not(tmp_path):
    problem, config = config_of(layers=2)
    training = TrainingConfig(
        steps=10,
        batch=8,
        optimizer="adamax",
        rate=5e-3,
        ema=0.9,
        skip=1e4,
        checkpoint_every=4,
        evaluate_every=5,
    )
    model = replace(
        config.model, width=8, keys=4, spatial_keys=4, divergence_warmup=8, spectral=1e-3, particles=2
    )
    config = replace(config, training=training, model=model, draws=2)

    def network(seed):
        torch.manual_seed(seed)
        network = problem.network(config, {})
        problem.prepare(config, network)
        return network

    whole = fit(network(0), problem.task(config), training)
    task, left = problem.task(config), [7]
    plain = task.loss

    def stopping(*given):
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("stop")
        return plain(*given)

    task.loss = stopping
    with pytest.raises(RuntimeError, match="stop"):
        fit(network(0), task, training, tmp_path)
    result = fit(network(9), problem.task(config), training, tmp_path)
    assert same_tensors(tensors_of(result.network), tensors_of(whole.network))
    assert without_times(result.history) == without_times(whole.history)


@pytest.mark.slow
def test_training_raises_the_bound_and_conditional_samples_complete_images():
    problem, config = config_of(layers=2, spatial=False)
    config = replace(config, draws=5, model=replace(config.model, divergence_warmup=200))
    torch.manual_seed(0)
    network = problem.network(config, {})
    before = problem.model_metrics(config, network.eval(), 50, 0)["bound"]
    training = replace(config.training, steps=1000, evaluate_every=1000, ema=0.98)
    trained = fit(network, problem.task(config), training).network
    assert problem.model_metrics(config, trained, 50, 0)["bound"] > max(before, -26)
    query = problem.test_queries(config, 300, torch.Generator().manual_seed(0))["upper half given"]
    given, free = (
        problem.metrics(config, query, trained.sample_with(x, 300, unn.SamplingOptions(seed=0), {}).values)
        for x in (query.given, {})
    )
    assert given["error"] < free["error"] - 0.02
