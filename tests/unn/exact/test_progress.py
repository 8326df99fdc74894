"""Progress of exact queries."""

import io

import pytest
import torch
import tqdm

import unn
from factors import Multilinear
from unn.cli.main import main
from unn.exact.progress import watched


def grid(n=6):
    g = unn.FactorGraph("grid", r=n, c=n)
    s = g.variable("S", "r c", unn.SignedEntropy())
    j = g.constant("J", "r c", torch.randn(n, n, generator=torch.Generator().manual_seed(0)))
    g.factor(Multilinear(j["i j"], s["i j"], s["i+1 j"]))
    g.factor(Multilinear(j["i j"], s["i j"], s["i j+1"]))
    return g


def test_stages_of_a_query_go_from_nothing_to_all_of_it_and_change_no_answer():
    reports = []
    with watched(lambda stage, share: reports.append((stage, share))):
        answer = unn.exact.marginals(grid())["S"]
    assert torch.equal(answer, unn.exact.marginals(grid())["S"])
    for stage in ("upward sweep", "downward sweep"):
        shares = [share for name, share in reports if name == stage]
        assert shares[0] == 0 and shares[-1] == 1 and shares == sorted(shares) and len(shares) > 3
    search = [share for name, share in reports if name == "order of elimination"]
    assert len(search) > 1 and search == sorted(search) and search[-1] == 1


def test_nothing_is_reported_outside_the_block_and_an_exception_ends_the_query():
    reports = []
    with watched(lambda stage, share: reports.append(stage)):
        pass
    unn.exact.log_partition(grid(3))
    assert not reports

    def stop(stage, share):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), watched(stop):
        unn.exact.log_partition(grid(3))
    unn.exact.log_partition(grid(3))
    with pytest.raises(unn.ArgumentError, match="watched"), watched(3):
        pass


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("verb", ["logz", "marginals", "map"])
def test_commands_show_a_bar_on_a_terminal_that_is_gone_at_the_end(verb, tmp_path, monkeypatch, capsys):
    file = tmp_path / "pair.uai"
    file.write_text("MARKOV\n2\n2 2\n1\n2 0 1\n4\n1 2 3 4\n")
    terminal = Terminal()
    bar = tqdm.tqdm
    monkeypatch.setattr(
        "tqdm.tqdm", lambda **options: bar(**{**options, "delay": 0, "mininterval": 0, "file": terminal})
    )
    assert main([verb, str(file)]) == 0
    assert "sweep" in terminal.getvalue() and terminal.getvalue().endswith("\r")
    assert "sweep" not in capsys.readouterr().out
