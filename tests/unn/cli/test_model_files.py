"""Commands on model files: exact answers as text, data and results; bad input is refused in one line."""

import json

import pytest

from unn.cli.main import main

NETWORK = """network test {
}
variable smoke {
  type discrete [ 2 ] { yes, no };
}
variable lung {
  type discrete [ 2 ] { yes, no };
}
probability ( smoke ) {
  table 0.5, 0.5;
}
probability ( lung | smoke ) {
  (yes) 0.1, 0.9;
  (no) 0.0, 1.0;
}
"""
MODEL = "MARKOV\n2\n2 2\n1\n2 0 1\n\n4\n1 2 3 4\n"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "net.bif").write_text(NETWORK)
    (tmp_path / "pair.uai").write_text(MODEL)
    (tmp_path / "pair.uai.evid").write_text("1 0 1\n")
    return tmp_path


def answer(capsys, *arguments):
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys, *arguments):
    assert main([*map(str, arguments)]) == 2
    message = capsys.readouterr().err
    assert message.startswith("unn: ") and message.count("\n") == 1
    return message


def test_marginals_of_a_network_follow_bayes_rule(files, capsys):
    data = answer(capsys, "marginals", files / "net.bif", "--given", "lung=no", "--want", "smoke")
    assert data["marginals"] == {
        "smoke": {"yes": pytest.approx(0.45 / 0.95), "no": pytest.approx(0.5 / 0.95)}
    }
    assert main(["marginals", str(files / "net.bif"), "--given", "lung=yes"]) == 0
    assert "smoke: yes 1.000000, no 0.000000" in capsys.readouterr().out


def test_results_are_written_in_the_format_of_the_competitions(files, capsys):
    model, evidence = files / "pair.uai", files / "pair.uai.evid"
    data = answer(capsys, "logz", model, "--evidence", evidence, "--out", files / "pr")
    assert data["log10_partition"] == pytest.approx(0.8450980400142568)
    kind, value = (files / "pr").read_text().split()
    assert kind == "PR" and float(value) == pytest.approx(0.8450980400142568)
    answer(capsys, "marginals", model, "--out", files / "mar")
    assert [float(x) for x in (files / "mar").read_text().split()[1:]] == pytest.approx(
        [2, 2, 0.3, 0.7, 2, 0.4, 0.6]
    )
    best = answer(capsys, "map", model, "--given", "1=0", "--out", files / "mpe")
    assert best["values"] == {"0": "1", "1": "0"}
    assert (files / "mpe").read_text() == "MPE\n2 1 0\n"


@pytest.mark.parametrize("command", ["logz", "map", "marginals"])
@pytest.mark.parametrize("read", ["pair.uai", "pair.uai.evid"])
def test_a_result_does_not_replace_a_file_that_is_read(files, capsys, command, read):
    before = (files / read).read_bytes()
    out = files / "." / ".." / files.name / read
    evidence = files / "pair.uai.evid"
    assert main([command, str(files / "pair.uai"), "--evidence", str(evidence), "--out", str(out)]) == 2
    assert "would replace the file that is read" in capsys.readouterr().err
    assert (files / read).read_bytes() == before


def test_options_that_exact_samples_do_not_have_are_refused(files, capsys):
    for option in (["--tries", "5"], ["--at-once", "3"], ["--steps", "2"]):
        assert main(["sample", str(files / "net.bif"), *option]) == 2
        assert "leave out" in capsys.readouterr().err


def test_samples_of_a_network_are_exact_and_those_of_a_seed(files, capsys):
    arguments = ("sample", files / "net.bif", "--count", 2000, "--seed", 3)
    samples = answer(capsys, *arguments)["samples"]
    assert samples == answer(capsys, *arguments)["samples"]
    share = sum(x["lung"] == "yes" for x in samples) / 2000
    assert share == pytest.approx(0.05, abs=0.02)
    assert not any(x["lung"] == "yes" and x["smoke"] == "no" for x in samples)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("marginals", "net.bif", "--given", "smok=yes"), "unknown variable 'smok'. Did you mean 'smoke'?"),
        (("marginals", "net.bif", "--given", "smoke=perhaps"), "has no state 'perhaps'"),
        (("marginals", "net.bif", "--given", "smoke"), "write VARIABLE=STATE"),
        (("marginals", "net.bif", "--given", "smoke=yes", "smoke=no"), "'smoke' is given twice"),
        (("marginals", "net.bif", "--want", "lungs"), "Did you mean 'lung'?"),
        (("marginals", "net.bif", "--given", "smoke=no", "lung=yes"), "probability zero"),
        (("map", "net.bif", "--given", "smoke=no", "lung=yes"), "probability zero"),
        (("sample", "net.bif", "--given", "smoke=no", "lung=yes"), "probability zero"),
        (("sample", "net.bif", "--steps", "3"), "leave out"),
        (("logz", "pair.uai", "--evidence", "pair.uai.evid", "--given", "0=0"), "different states"),
        (("logz", "pair.uai", "--seconds", "0"), "--seconds"),
        (("logz", "pair.uai", "--memory", "-1"), "--memory"),
        (("logz", "pair.uai", "--memory", "1e-9"), "largest table has 2^2 entries"),
        (("logz", "other.uai"), "no such file"),
        (("logz", "pair.txt"), "end in .uai, .bif"),
        (("logz", "pair.uai", "--evidence", "net.bif"), "net.bif, line 1: expected"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(files, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(files)
    assert message in refusal(capsys, *arguments)


def test_impossible_evidence_has_log_partition_minus_infinity(files, capsys):
    assert main(["logz", str(files / "net.bif"), "--given", "smoke=no", "lung=yes"]) == 0
    assert "-inf: the evidence has probability zero" in capsys.readouterr().out
