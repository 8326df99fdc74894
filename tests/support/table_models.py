"""Random table models, and their answers by enumeration."""

from itertools import product

import torch
from hypothesis import strategies as st

from unn.exact.tables import Family, TableEvidence, TableModel


def enumerate_states(model):
    """All values of all variables, shape ``(values, variables)``."""
    return torch.tensor(list(product(*(range(size) for size in model.states)))).view(-1, len(model.states))


def log_weights(model, evidence=None):
    """Logarithm of the weight of all values, -inf where they contradict the evidence; ``(batch, values)``."""
    values = enumerate_states(model)
    batch = max(model.batch, 1 if evidence is None else len(evidence.values))
    logs = torch.zeros(batch, len(values), dtype=torch.float64)
    for family in model.families:
        for row, scope in enumerate(family.scopes.tolist()):
            index = tuple(values[:, v] for v in scope)
            logs = logs + family.logs[row].double()[(slice(None), *index)].reshape(family.logs.shape[1], -1)
    if evidence is not None:
        seen = evidence.values[:, None]
        agrees = ((seen < 0) | (seen == values)).all(2)
        logs = torch.where(agrees, logs, -torch.inf)
        for variable, scores in evidence.scores.items():
            logs = logs + scores.double()[:, values[:, variable]]
    return logs


def probabilities_of(model, logs):
    """Log-partition, probability of each state and entropy from the logarithms of all weights."""
    total = torch.logsumexp(logs, 1)
    possible = total > -torch.inf
    share = torch.where(possible[:, None], (logs - torch.where(possible, total, 0)[:, None]).exp(), 0)
    values = enumerate_states(model)
    most = max(model.states)
    one_hot = torch.nn.functional.one_hot(values, most).double()
    return total, torch.einsum("bk,kvs->bvs", share, one_hot), torch.special.entr(share).sum(1)


def random_model(generator, states, scopes, zeros=0.0, batch=1, scale=1.0):
    """A model with normal logarithms, some of which are -inf."""
    families = []
    for scope in scopes:
        shape = [1, batch, *(states[v] for v in scope)]
        logs = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
        logs[torch.rand(shape, generator=generator) < zeros] = -torch.inf
        families.append(Family(torch.tensor([scope], dtype=torch.long).view(1, -1), logs))
    return TableModel(tuple(states), tuple(families))


@st.composite
def models(draw, most_variables=6, zeros=(0.0, 0.0, 0.3), batch=(1, 1, 3), scale=(1.0, 1.0, 30.0)):
    """Random models with up to 7 tables over up to 3 variables each."""
    count = draw(st.integers(1, most_variables))
    states = draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    scopes = draw(
        st.lists(st.lists(st.integers(0, count - 1), unique=True, max_size=3), min_size=0, max_size=7)
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return random_model(
        generator,
        states,
        scopes,
        draw(st.sampled_from(zeros)),
        draw(st.sampled_from(batch)),
        draw(st.sampled_from(scale)),
    )


@st.composite
def models_with_evidence(draw):
    """A random model, and evidence about some of its variables, soft evidence included."""
    model = draw(models())
    batch = model.batch if model.batch > 1 else draw(st.sampled_from((1, 3)))
    rows = [
        [draw(st.integers(-1, size - 1)) if draw(st.booleans()) else -1 for size in model.states]
        for _ in range(batch)
    ]
    if draw(st.booleans()):
        # the same variables are observed in every row
        rows = [[a if b >= 0 else -1 for a, b in zip(row, rows[0], strict=True)] for row in rows]
        rows = [[max(a, 0) if b >= 0 else -1 for a, b in zip(row, rows[0], strict=True)] for row in rows]
    scores = {}
    if draw(st.booleans()):
        variable = draw(st.integers(0, len(model.states) - 1))
        generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
        scores[variable] = torch.randn(
            draw(st.sampled_from((1, batch))), model.states[variable], generator=generator
        )
    return model, TableEvidence(torch.tensor(rows), scores)
