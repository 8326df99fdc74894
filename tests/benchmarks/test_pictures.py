"""The training of the recurrent transformer on pictures: examples, and a loss that falls."""

import torch
from safetensors.torch import load_file

from problems.nonogram.graph import draw_pictures
from problems.pictures.graph import declare, values_of
from tests.benchmarks.pictures import draw_of
from tests.benchmarks.recurrent import Schedule, optimizer_of, step_of, train
from unn.recurrent.model import RecurrentModel
from unn.recurrent.options import RecurrentOptions

SMALL = RecurrentOptions(width=16, heads=2, recurrences=2, dropout=0.1, structure="graph")


def sample():
    torch.manual_seed(0)
    pictures = draw_pictures(8, 4, 4, torch.Generator().manual_seed(0))
    model = RecurrentModel(declare(4, 4), SMALL, {})
    return model, pictures, draw_of(model, pictures, torch.device("cpu"))


def test_drawn_pictures_have_their_own_runs_which_alone_are_given():
    model, pictures, draw = sample()
    rows, nodes = draw(50, torch.Generator().manual_seed(0))
    values = model.layout.frame.expected(rows)
    X = values["X"].argmax(-1)
    for name, expected in values_of(X).items():
        assert torch.equal(values[name], expected)
    # each is one of the pictures, mirrored or transposed
    turned = [y for x in (pictures, pictures.mT) for y in (x, x.flip(1), x.flip(2), x.flip(1, 2))]
    every = torch.cat(turned).flatten(1)
    assert bool((X.flatten(1)[:, None] == every).all(2).any(1).all())
    assert torch.equal(nodes.sum(1), torch.full((50,), 8))
    slot = model.layout.frame.slots["X"]
    assert not bool(nodes[:, slot.nodes].any())


def test_steps_on_the_same_pictures_lower_their_loss():
    model, _, draw = sample()
    rows, nodes = draw(16, torch.Generator().manual_seed(0))
    step = step_of(model.train(), optimizer_of(model, 3e-3, captured=False), rows, nodes, bfloat16=False)
    losses = [float(step()) for _ in range(40)]
    assert losses[-1] < 0.9 * losses[0]


def test_training_writes_weights_that_open_in_a_new_model(tmp_path):
    model, _, draw = sample()
    path = tmp_path / "weights.safetensors"
    assert train(model, draw, Schedule(0.01, batch=2), 0, path) > 0
    other = RecurrentModel(declare(4, 4), SMALL, {})
    other.load_state_dict(load_file(path))
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
