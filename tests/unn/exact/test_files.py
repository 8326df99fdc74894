"""Files of models: read and written without any change, or refused with the line."""

import gzip
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.table_models import models

from unn.errors import DataError, ObservationError
from unn.exact import (
    ModelFile,
    TableEvidence,
    inference,
    read_bif,
    read_uai,
    read_uai_evidence,
    write_bif,
    write_uai,
    write_uai_evidence,
)
from unn.exact.uai import best_values_result, marginals_result, partition_result

GRID = """MARKOV
3
2 2 3
3
1 0
2 0 1
2 1 2

2
 0.436 0.564

4
 0.128 0.872
 0.920 0.080

6
 0.210 0.333 0.457
 0.811 0.000 0.189
"""

NETWORK = """// a comment
network "two words" {
  property made by hand;
}
variable Rain {
  type discrete [ 2 ] { yes, no };
}
variable Sprinkler {
  type discrete [ 2 ] { on, off };
}
variable Grass {
  type discrete [ 3 ] { dry, moist, "very wet" };
  property position = (1, 2);
}
probability ( Rain ) {
  table 0.2, 0.8;
}
probability ( Sprinkler | Rain ) {
  (yes) 0.01, 0.99;
  (no) 0.4, 0.6;
}
probability ( Grass | Sprinkler, Rain ) {
  default 0.1, 0.2, 0.7;
  (off, no) 0.9, 0.1, 0.0;
}
"""


def write(tmp_path, text, name="model.uai"):
    path = tmp_path / name
    path.write_text(text)
    return path


def message_of(read, path):
    """The message with which a file is refused; its path if it is read."""
    try:
        read(path)
    except DataError as error:
        return str(error)
    return str(path)


def test_the_example_of_the_format_has_its_tables_last_variable_fastest(tmp_path):
    model = read_uai(write(tmp_path, GRID))
    assert model.kind == "MARKOV" and model.scopes == ((0,), (0, 1), (1, 2))
    assert model.weights[2][1].tolist() == [0.811, 0.0, 0.189]
    total = sum(
        model.weights[0][a] * model.weights[1][a, b] * model.weights[2][b, c]
        for a in range(2)
        for b in range(2)
        for c in range(3)
    )
    assert float(inference.log_partition(model.model)) == pytest.approx(math.log(total), abs=1e-12)


@given(models(zeros=(0.0, 0.3), batch=(1,)), st.sampled_from(["MARKOV", "BAYES"]))
def test_a_written_model_is_read_unchanged_and_written_to_the_same_bytes(tmp_path_factory, model, kind):
    scopes, weights = [], []
    for family in model.families:
        for scope, logs in zip(family.scopes.tolist(), family.logs[:, 0], strict=True):
            scopes.append(tuple(scope))
            weights.append(logs.exp().numpy())
    states = tuple(tuple(map(str, range(size))) for size in model.states)
    file = ModelFile(kind, model.names, states, tuple(scopes), tuple(weights))
    text = write_uai(file)
    again = read_uai(write(tmp_path_factory.mktemp("uai"), text))
    assert write_uai(again) == text
    assert again.kind == kind and again.scopes == file.scopes
    assert all(np.array_equal(a, b) for a, b in zip(again.weights, file.weights, strict=True))


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    path = tmp_path / "model.uai"
    path.write_bytes(b"\xef\xbb\xbf" + GRID.replace("\n", "\r\n").encode())
    assert read_uai(path).scopes == ((0,), (0, 1), (1, 2))


def test_compressed_models_are_read_and_damaged_ones_refused(tmp_path):
    path = tmp_path / "model.uai.gz"
    path.write_bytes(gzip.compress(GRID.encode()))
    assert len(read_uai(path).scopes) == 3
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"model\.uai\.gz cannot be read"):
        read_uai(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("MARKOV", "MARCOV"), "line 1: expected MARKOV or BAYES, got 'MARCOV'"),
        (("2 2 3", "2 x 3"), "line 3: expected the number of states of variable 1, got 'x'"),
        (("2 2 3", "2 0 3"), "line 3: expected the number of states of variable 1, got '0'"),
        (("2 0 1", "2 0 7"), r"line 6: expected a variable from 0 to 2 \(table 1\), got '7'"),
        (("2 0 1", "2 0 0"), "line 6: expected each variable once"),
        (("\n4\n", "\n5\n"), "line 12: expected 4, the number of entries of table 1, got '5'"),
        (("0.872", "-0.872"), "line 13: expected a finite number >= 0 in table 1, got '-0.872'"),
        (("0.872", "nan"), "line 13: .* got 'nan'"),
        (("0.872", "0.8_72"), "line 13: .* got '0.8_72'"),
        (("0.872", "0,872"), "line 13: .* got '0,872'"),
        ((" 0.189\n", "\n"), "the file ends where a finite number >= 0 in table 2 is expected"),
        (("0.189\n", "0.189 4\n"), "line 18: expected the end of the file, got '4'"),
        (("3\n2 2 3", "99999999\n2 2 3"), "line 2: expected the number of variables"),
        (("2 2 3", "2 2 999999999"), "line 3: expected at most 10,000,000 states"),
    ],
)
def test_malformed_models_are_refused_with_the_line_and_what_was_expected(tmp_path, change, message):
    text = GRID.replace(*change, 1)
    assert text != GRID
    with pytest.raises(DataError, match=message):
        read_uai(write(tmp_path, text))


@pytest.mark.parametrize("content", [b"", b"  \n", b"\xff\xfe\x00"])
def test_empty_files_and_files_that_are_no_text_are_refused(tmp_path, content):
    path = tmp_path / "model.uai"
    path.write_bytes(content)
    with pytest.raises(DataError, match="empty|no text"):
        read_uai(path)
    with pytest.raises(DataError, match="no such file"):
        read_uai(tmp_path / "other.uai")


@pytest.mark.parametrize("text", ["2 0 1 2 0\n", "1\n2 0 1 2 0\n"])
def test_evidence_is_read_in_both_forms(tmp_path, text):
    model = read_uai(write(tmp_path, GRID)).model
    evidence = read_uai_evidence(write(tmp_path, text, "model.uai.evid"), model)
    assert evidence.values.tolist() == [[1, -1, 0]]
    again = read_uai_evidence(write(tmp_path, write_uai_evidence(evidence), "again.evid"), model)
    assert torch.equal(again.values, evidence.values)


def test_several_samples_of_evidence_are_rows(tmp_path):
    model = read_uai(write(tmp_path, GRID)).model
    evidence = read_uai_evidence(write(tmp_path, "2\n1 0 1\n0\n", "e"), model)
    assert evidence.values.tolist() == [[1, -1, -1], [-1, -1, -1]]
    assert write_uai_evidence(evidence) == "2\n1 0 1\n0\n"
    assert read_uai_evidence(write(tmp_path, "0\n", "none"), model).values.tolist() == [[-1, -1, -1]]


@given(st.lists(st.lists(st.integers(-1, 1), min_size=3, max_size=3), min_size=1, max_size=4))
def test_written_evidence_is_read_again(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("evidence")
    model = read_uai(write(folder, GRID)).model
    evidence = TableEvidence(torch.tensor(rows))
    again = read_uai_evidence(write(folder, write_uai_evidence(evidence), "e"), model)
    assert again.values.tolist() == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 0 2", "expected a state of variable 0 from 0 to 1, got '2'"),
        ("1 5 0", "expected a variable from 0 to 2, got '5'"),
        ("2 0 1", "the file ends where"),
        ("2 1 1 1 1", "expected each variable once, got '1'"),
        ("2 0 1 0 1", "expected each variable once, got '0'"),
        ("x", "expected the number of observed variables, got 'x'"),
        ("999999999", "the file ends where one of 999,999,999 samples"),
    ],
)
def test_malformed_evidence_is_refused_with_the_line(tmp_path, text, message):
    model = read_uai(write(tmp_path, GRID)).model
    with pytest.raises(DataError, match=message):
        read_uai_evidence(write(tmp_path, text, "model.evid"), model)


def test_results_are_written_in_the_format_of_the_competitions():
    assert partition_result(math.log(100.0)) == "PR\n2.0\n"
    probabilities = torch.tensor([[0.25, 0.75, 0.0], [0.5, 0.25, 0.25]])
    assert marginals_result(probabilities, (2, 3)) == "MAR\n2 2 0.25 0.75 3 0.5 0.25 0.25\n"
    assert best_values_result([1, 0]) == "MPE\n2 1 0\n"


def test_a_network_is_read_with_its_names_and_default_rows(tmp_path):
    network = read_bif(write(tmp_path, NETWORK, "grass.bif"))
    assert network.names == ("Rain", "Sprinkler", "Grass")
    assert network.states[2] == ("dry", "moist", "very wet")
    assert network.scopes[2] == (1, 0, 2)
    assert network.weights[2][1, 1].tolist() == [0.9, 0.1, 0.0]
    assert network.weights[2][0, 0].tolist() == [0.1, 0.2, 0.7]
    assert float(inference.log_partition(network.model)) == pytest.approx(0, abs=1e-12)
    answer = inference.marginals(network.model, network.evidence({"Grass": "dry"}))
    # Bayes' rule by hand
    joint = {
        (r, s): pr * ps * (0.9 if (r, s) == ("no", "off") else 0.1)
        for r, pr, on in (("yes", 0.2, 0.01), ("no", 0.8, 0.4))
        for s, ps in (("on", on), ("off", 1 - on))
    }
    rain = sum(p for (r, _), p in joint.items() if r == "yes") / sum(joint.values())
    assert float(answer.probabilities[0, 0, 0]) == pytest.approx(rain, abs=1e-12)


def test_a_written_network_is_read_unchanged_and_written_to_the_same_bytes(tmp_path):
    network = read_bif(write(tmp_path, NETWORK, "grass.bif"))
    text = write_bif(network)
    again = read_bif(write(tmp_path, text, "again.bif"))
    assert write_bif(again) == text and '"two words"' in text and '"very wet"' in text
    assert again.states == network.states and again.names == network.names
    assert all(np.array_equal(a, b) for a, b in zip(again.weights, network.weights, strict=True))
    through = read_uai(write(tmp_path, write_uai(network)))
    assert all(np.array_equal(a, b) for a, b in zip(through.weights, network.weights, strict=True))
    with pytest.raises(DataError, match="no Bayesian network"):
        write_bif(read_uai(write(tmp_path, GRID)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("type discrete [ 2 ]", "type discrete [ 3 ]"), "line 6: expected 2, the number of states"),
        (("type discrete [ 2 ]", "type real [ 2 ]"), "line 6: expected discrete"),
        (("{ yes, no }", "{ yes, yes }"), "line 6: expected states with different names"),
        (("variable Sprinkler", "variable Rain"), "line 8: expected each variable once"),
        (("| Rain )", "| Rian )"), "line 18: .*Did you mean 'Rain'"),
        (("| Rain )", "| Rain"), "line 18: expected ',' or '\\)'"),
        (("  (no) 0.4, 0.6;\n", ""), "probabilities for all 2 configurations of the parents of 'Sprinkler'"),
        (("  (no) 0.4", "  (yes) 0.4"), "line 20: expected each configuration .* once"),
        (("  (no) 0.4", "  (maybe) 0.4"), "line 20: expected a state of 'Rain': yes, no, got 'maybe'"),
        (
            ("(no) 0.4, 0.6", "(no) 0.4, 0.7"),
            "line 20: expected probabilities of 'Sprinkler' that sum to one",
        ),
        (("(no) 0.4, 0.6", "(no) 0.4"), "line 20: expected 2 probabilities"),
        (("(no) 0.4, 0.6", "(no) 0.4, 0.6_0"), "line 20: expected a probability of 'Sprinkler', got '0.6_0'"),
        (("(no) 0.4, 0.6", "(no) 0.4, nan"), "line 20: expected a probability of 'Sprinkler', got 'nan'"),
        (("(no) 0.4, 0.6", "(no) 1.4, -0.4"), "line 20: expected a probability of 'Sprinkler', got '1.4'"),
        (("  (yes) 0.01, 0.99;", "  table 0.01, 0.99, 0.4, 0.6;"), "line 19: expected a row for each"),
        (("probability ( Rain ) {\n  table 0.2, 0.8;\n}\n", ""), "'Rain' has no probability block"),
        (('"two words" {', '"two words {'), "line 2: a quotation or comment is not closed"),
        (("(off, no) 0.9, 0.1, 0.0;\n}\n", "(off, no) 0.9, 0.1, 0.0;\n"), "the file ends where"),
        (("(off, no)", "(off)"), "line 24: expected the states of 2 parents of 'Grass'"),
        (("  table 0.2, 0.8;", "  table 0.2, 0.8; table 0.7, 0.3;"), "line 16: expected one table of 'Rain'"),
        (
            ("default 0.1, 0.2, 0.7;", "default 0.1, 0.2, 0.7; default 1, 0, 0;"),
            "expected one default of 'Grass'",
        ),
        (("{ yes, no };", "{ yes, no }; type discrete [ 1 ] { yes };"), "line 6: expected one type"),
        (("( Rain ) {\n  table 0.2, 0.8;", "( Rain | Grass ) {\n  default 0.2, 0.8;"), "ancestor of itself"),
        (("// a comment", "nonsense"), "line 1: expected network, variable or probability"),
    ],
)
def test_malformed_networks_are_refused_with_the_line_and_what_was_expected(tmp_path, change, message):
    text = NETWORK.replace(*change, 1)
    assert text != NETWORK
    with pytest.raises(DataError, match=message):
        read_bif(write(tmp_path, text, "grass.bif"))


@given(st.integers(0, len(NETWORK)), st.integers(0, 3))
def test_a_truncated_network_is_read_or_refused_by_name(tmp_path_factory, length, extra):
    path = write(tmp_path_factory.mktemp("bif"), NETWORK[:length] + " }" * extra, "grass.bif")
    assert "grass.bif" in message_of(read_bif, path)


@given(st.integers(0, len(GRID)), st.text(alphabet="0123456789. -\n", max_size=5))
def test_a_damaged_model_is_read_or_refused_by_name(tmp_path_factory, place, inserted):
    path = write(tmp_path_factory.mktemp("uai"), GRID[:place] + inserted + GRID[place + 2 :])
    assert "model.uai" in message_of(read_uai, path)


def test_unknown_variables_and_states_are_refused_with_the_closest_name(tmp_path):
    network = read_bif(write(tmp_path, NETWORK, "grass.bif"))
    with pytest.raises(ObservationError, match="Did you mean 'Sprinkler'"):
        network.evidence({"sprinkler": "on"})
    with pytest.raises(ObservationError, match="no state 'onn'. Did you mean 'on'"):
        network.evidence({"Sprinkler": "onn"})
    assert (
        network.evidence({"Sprinkler": "1"}).values.tolist()
        == TableEvidence.of(network.model, {1: 1}).values.tolist()
    )


LIGHT = """network light {
%s
}
variable x {
  type discrete [ 2 ] { on, off };
}
probability ( x ) {
  table 0.2, 0.8;
}
"""


def test_a_quotation_may_be_empty_or_hold_signs(tmp_path):
    network = read_bif(write(tmp_path, LIGHT % 'property comment "";\nproperty note ";";', "light.bif"))
    assert network.names == ("x",) and network.weights[0].tolist() == [0.2, 0.8]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LIGHT % "/* the prior, of old", "line 2: a quotation or comment is not closed"),
        (LIGHT % "" + "/* end", "a quotation or comment is not closed"),
        (LIGHT % "" + '"" variable y { type discrete [ 1 ] { a }; }', "expected network, variable or prob"),
        (LIGHT % "property comment", "the file ends where ';' after a property"),
    ],
)
def test_what_is_left_open_in_a_network_is_refused(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_bif(write(tmp_path, text.replace(";", "") if "property" in text else text, "light.bif"))


def test_weights_below_the_smallest_number_are_not_read_as_impossible(tmp_path):
    path = tmp_path / "under.uai"
    path.write_text("MARKOV\n2\n2 2\n2\n1 0\n1 1\n2 0.0e7 2e-400\n2 1 1\n")
    with pytest.raises(DataError, match="line 7: .*0 or at least 5e-324.*got '2e-400'"):
        read_uai(path)
    path.write_text("MARKOV\n2\n2 2\n2\n1 0\n1 1\n2 0.0e7 2e-300\n2 -0 1\n")
    assert read_uai(path).model.states == (2, 2)


def test_rows_of_many_states_that_miss_one_by_two_percent_are_refused(tmp_path):
    path = tmp_path / "wide.bif"
    states, numbers = (", ".join(x) for x in ([f"s{k}" for k in range(20)], ["0.069"] + ["0.05"] * 19))
    path.write_text(
        "network n { }\n"
        f"variable X {{ type discrete [20] {{ {states} }}; }}\n"
        f"probability ( X ) {{ table {numbers}; }}\n"
    )
    with pytest.raises(DataError, match="sum to one"):
        read_bif(path)


def test_rounded_rows_of_unobserved_children_say_nothing_about_their_parent(tmp_path):
    path = tmp_path / "rounded.bif"
    children = "".join(
        f"variable B{k} {{ type discrete [3] {{ x, y, z }}; }}\n"
        f"probability ( B{k} | A ) {{ (no) 0.333, 0.333, 0.333; (yes) 0.167, 0.167, 0.667; }}\n"
        for k in range(30)
    )
    path.write_text(
        "network n { }\nvariable A { type discrete [2] { no, yes }; }\n"
        f"probability ( A ) {{ table 0.3, 0.7; }}\n{children}"
    )
    file = read_bif(path)
    result = inference.marginals(file.model, TableEvidence.of(file.model, {}))
    torch.testing.assert_close(result.probabilities[0, 0, :2], torch.tensor([0.3, 0.7]).double())
    assert float(result.log_partition) == pytest.approx(0, abs=1e-12)
    assert "0.333, 0.333, 0.333" in write_bif(file)


def test_comments_behind_the_scopes_of_a_model_are_no_part_of_it(tmp_path):
    text = "MARKOV\n2 # two spins\n2 2\n1\n2 0 1   # a b\n4\n1 2 # first\n3 4\n"
    (tmp_path / "with.uai").write_text(text)
    (tmp_path / "without.uai").write_text(re.sub(" *#.*", "", text))
    with_comments, without = (read_uai(tmp_path / f"{name}.uai") for name in ("with", "without"))
    assert with_comments.scopes == without.scopes == ((0, 1),)
    assert (with_comments.weights[0] == without.weights[0]).all()
    (tmp_path / "bad.uai").write_text(text.replace("3 4", "3 x"))
    with pytest.raises(DataError, match="line 8"):
        read_uai(tmp_path / "bad.uai")
