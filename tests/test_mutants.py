"""The defects that ``make mutants`` plants are in the present code."""

from pathlib import Path

import pytest
from mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_a_planted_defect_changes_one_place_and_names_tests_that_exist(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1
    assert mutant.new != mutant.old
    for path in mutant.tests.split():
        assert Path(ROOT / path).exists()
