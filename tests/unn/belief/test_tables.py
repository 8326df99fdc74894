"""Belief propagation on models of tables: files, evidence and batches."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.table_models import random_model

import unn
from unn.belief import BeliefOptions, table_marginals
from unn.errors import ArgumentError, ObservationError
from unn.exact import TableEvidence, inference, read_bif

CHAIN = """network chain { }
variable rain { type discrete [ 2 ] { no, yes }; }
variable lawn { type discrete [ 3 ] { dry, damp, wet }; }
variable shoes { type discrete [ 2 ] { dry, wet }; }
probability ( rain ) { table 0.8, 0.2; }
probability ( lawn | rain ) { (no) 0.7, 0.2, 0.1; (yes) 0.05, 0.25, 0.7; }
probability ( shoes | lawn ) { (dry) 0.99, 0.01; (damp) 0.6, 0.4; (wet) 0.1, 0.9; }
"""


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.sampled_from([1, 3]), st.booleans())
def test_marginals_of_trees_of_tables_are_exact_with_any_evidence(seed, batch, soft):
    generator = torch.Generator().manual_seed(seed)
    parents = [int(torch.randint(k, (), generator=generator)) for k in range(1, 6)]
    model = random_model(
        generator, [2, 3, 2, 4, 3, 2], [[k + 1, p] for k, p in enumerate(parents)], batch=batch
    )
    rows = torch.stack([torch.randint(-2, size, (3,), generator=generator) for size in model.states], 1)
    scores = {1: torch.randn(1, 3, generator=generator)} if soft else {}
    evidence = TableEvidence(rows.clamp(min=-1), scores)
    beliefs = table_marginals(model, evidence)
    exact = inference.marginals(model, evidence)
    assert bool(beliefs.converged.all())
    torch.testing.assert_close(beliefs.probabilities, exact.probabilities, atol=1e-6, rtol=0)
    torch.testing.assert_close(beliefs.log_partition, exact.log_partition, atol=1e-6, rtol=0)


def test_a_file_is_answered_as_its_tables(tmp_path):
    path = tmp_path / "chain.bif"
    path.write_text(CHAIN)
    file = read_bif(path)
    evidence = TableEvidence.of(file.model, {2: 1})
    own = table_marginals(file, evidence)
    assert torch.equal(own.probabilities, table_marginals(file.model, evidence).probabilities)
    torch.testing.assert_close(
        own.probabilities, inference.marginals(file.model, evidence).probabilities, atol=1e-6, rtol=0
    )
    bound = table_marginals(file, evidence, BeliefOptions(method="mini-bucket"))
    torch.testing.assert_close(bound.log_partition, unn.belief.upper_bound(file, evidence))


def test_other_options_and_evidence_of_other_models_are_refused():
    model = random_model(torch.Generator().manual_seed(0), [2, 2], [[0, 1]])
    with pytest.raises(ArgumentError, match="BeliefOptions"):
        table_marginals(model, None, {"rounds": 3})
    with pytest.raises(ObservationError, match="shape"):
        table_marginals(model, TableEvidence(torch.zeros(1, 3, dtype=torch.long)))
