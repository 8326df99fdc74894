"""Plant one-line defects in the package, one at a time, and check that the tests catch each.

Run ``make mutants``. Works on a copy; exits with 1 if a defect survives.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Mutant:
    """A defect: in ``file``, ``old`` (which occurs once) becomes ``new``; some test among ``tests`` must
    fail."""

    what: str
    file: str
    old: str
    new: str
    tests: str


MUTANTS = (
    Mutant(
        "a permutation of dimensions is forgotten",
        "unn/ops/contraction.py",
        "return a.permute(order) if order != sorted(order) else a",
        "return a",
        "tests/factors",
    ),
    Mutant(
        "a variable that occurs twice receives one message only",
        "factors/energies/multilinear.py",
        "for position in positions[1:]:\n            total = total + self._message(",
        "for position in positions[2:]:\n            total = total + self._message(",
        "tests/factors/energies/test_multilinear.py tests/unn/descent/test_inference.py",
    ),
    Mutant(
        "a stale message is reused",
        "unn/descent/state.py",
        "if cached is not None and cached[0] == stamp:",
        "if cached is not None:",
        "tests/unn/graph/test_graph_contract.py",
    ),
    Mutant(
        "no message is kept for the next update",
        "unn/descent/schedule.py",
        "marked.append(replace(step, reused=reused))",
        "marked.append(replace(step, reused=frozenset()))",
        "tests/unn/descent/test_inference.py",
    ),
    Mutant(
        "padding is not masked in the activation",
        "unn/regularizers/elementwise.py",
        "return x if mask is None else torch.where(mask, x, 0)\n\n    def contains",
        "return x\n\n    def contains",
        "tests/unn/descent/test_inference.py tests/unn/regularizers/test_regularizers.py",
    ),
    Mutant(
        "softmax forgets its temperature",
        "unn/regularizers/simplex.py",
        "return torch.softmax(wide / self.temperature, self.dim).to(t.dtype)",
        "return torch.softmax(wide, self.dim).to(t.dtype)",
        "tests/unn/regularizers/test_regularizers.py",
    ),
    Mutant(
        "the sparsemax support is one too small",
        "unn/regularizers/simplex.py",
        "support = wide.detach() >= ordered.gather(self.dim, size - 1)",
        "support = wide.detach() > ordered.gather(self.dim, size - 1)",
        "tests/unn/regularizers/test_regularizers.py",
    ),
    Mutant(
        "the adjoint of a convolution takes the smallest image",
        "factors/energies/conv.py",
        "None, self.stride, self.padding, missing, self.groups",
        "None, self.stride, self.padding, 0, self.groups",
        "tests/factors/energies/test_conv.py",
    ),
    Mutant(
        "observed entries of a partial observation are updated",
        "unn/descent/state.py",
        "x = torch.where(where, value, x)",
        "pass",
        "tests/unn/descent/test_inference.py tests/unn/graph/test_graph_contract.py",
    ),
    Mutant(
        "a broadcast message is not expanded before it is normalised",
        "unn/descent/state.py",
        "return total if total.shape[1:] == shape else total.expand(-1, *shape)",
        "return total",
        "tests/unn/graph/test_graph_contract.py",
    ),
    Mutant(
        "colours of neighbours may agree",
        "unn/graph/colouring.py",
        "both = np.concatenate([np.stack([rows, columns], 1)[between], ",
        "both = np.concatenate([",
        "tests/unn/graph/test_colouring.py tests/unn/descent/test_inference.py",
    ),
    Mutant(
        "the trace forgets the value before the update",
        "unn/descent/trace.py",
        "change = new if old is None else new - old",
        "change = new",
        "tests/unn/graph/test_graph_contract.py",
    ),
    Mutant(
        "the inner solver takes the whole step",
        "unn/descent/conditional_gradient.py",
        "rate = torch.where(bad, rate / 2, rate)",
        "rate = rate * 1",
        "tests/factors/energies/test_directed_implicit.py tests/unn/descent/test_inference.py",
    ),
    Mutant(
        "a live update is taken for dead",
        "unn/descent/schedule.py",
        "if step.nodes is None and overwrites:",
        "if True:",
        "tests/unn",
    ),
    Mutant(
        "a dropout mask is not part of the conjugate's scale",
        "unn/regularizers/dropout.py",
        "x = self.scale * self.inner.entry_mirror(t)",
        "x = (self.scale > 0) * self.inner.entry_mirror(t)",
        "tests/unn/regularizers/test_regularizers.py tests/unn/descent/test_inference.py",
    ),
    Mutant(
        "a shifted reference starts one too late",
        "unn/graph/views.py",
        "start = starts.get(letter, 0) + dim.shift\n            if start or x",
        "start = starts.get(letter, 0) + abs(dim.shift)\n            if start or x",
        "tests/factors/energies/test_multilinear.py",
    ),
    Mutant(
        "tied sizes are not compared",
        "unn/graph/sizes.py",
        "if size_a is not None and size_b is not None and size_a != size_b:",
        "if False:",
        "tests/unn/graph/test_sizes.py",
    ),
    Mutant(
        "degree two counts as bounded",
        "unn/graph/boundedness.py",
        "decrease[f] not in (0, 1) and",
        "decrease[f] not in (0, 1, 2) and",
        "tests/unn/graph/test_boundedness.py",
    ),
    Mutant(
        "the last of a forward-backward round is repeated",
        "unn/descent/orders.py",
        "names[-2:0:-1]",
        "names[-2::-1]",
        "tests/unn/descent/test_inference.py tests/unn/descent/test_golden.py",
    ),
    Mutant(
        "renewed rows land in a copy of nothing",
        "unn/descent/state.py",
        "return old.index_put(rows, fresh)",
        "return old",
        "tests/unn",
    ),
    Mutant(
        "the schedule begins anew when a run is resumed",
        "unn/training/state.py",
        'self.schedule.load_state_dict(state["schedule"])',
        "pass",
        "tests/unn/training/test_resuming.py",
    ),
    Mutant(
        "the average of the weights begins anew when a run is resumed",
        "unn/training/state.py",
        "copy_weights(average, self.average.module, where)",
        "pass",
        "tests/unn/training/test_resuming.py",
    ),
    Mutant(
        "metrics after the checkpoint stay",
        "unn/runs/metrics.py",
        'if entry["step"] <= until_step',
        "if True",
        "tests/unn/training/test_resuming.py",
    ),
    Mutant(
        "what a killed process left behind stays",
        "unn/runs/folder.py",
        "delete_unfinished(inside)",
        "pass",
        "tests/unn/training/test_resuming.py",
    ),
    Mutant(
        "a corrupt checkpoint is not noticed",
        "unn/runs/checkpoint.py",
        'if _digest({name: value for name, value in head.items() if name != "sha256"}, packed) != digest:',
        "if False:",
        "tests/unn/training/test_resuming.py",
    ),
    Mutant(
        "parts of a batch count alike, however large they are",
        "unn/training/loop.py",
        "share = weight * group.count / whole",
        "share = 1 / len(parts)",
        "tests/unn/training/test_training.py",
    ),
    Mutant(
        "every step draws the same dropout masks",
        "unn/training/loop.py",
        "seed_of(config.seed, 3, progress.step, group.rank)",
        "seed_of(config.seed, 3, group.rank)",
        "tests/unn/training/test_training.py",
    ),
    Mutant(
        "checkpoints of a future that did not happen stay",
        "unn/runs/checkpoint.py",
        "*(step for step in steps if step > checkpoint.step)",
        "",
        "tests/unn/training/test_resuming.py",
    ),
    Mutant(
        "a run goes on with other options than it was begun with",
        "unn/training/loop.py",
        "(*shared, *option_signature(config), *problem_options)",
        "shared",
        "tests/unn/training/test_resuming.py",
    ),
    Mutant(
        "strong cycles are trusted to the factorisation",
        "factors/trees/matrix_tree.py",
        "trusted = solved.cancelled <= methods[0].max_cancellation",
        "trusted = solved.cancelled.isfinite()",
        "tests/factors/trees/test_matrix_tree.py",
    ),
    Mutant(
        "the adjacency is not symmetric",
        "unn/graph/adjacency.py",
        "rows.append(j)\n            columns.append(i)",
        "pass",
        "tests/unn/graph/test_adjacency.py",
    ),
    Mutant(
        "a product of an older value is shared",
        "factors/energies/multilinear.py",
        "if kept is None or kept[0] is not x:",
        "if kept is None:",
        "tests/factors/energies/test_multilinear.py",
    ),
    Mutant(
        "what its inverse is not is taken for the inverse of a singular matrix",
        "factors/trees/matrix_tree.py",
        "sound: Tensor = (off < slack) & (visits.amin(1) > 1 - slack) & within",
        "sound: Tensor = off < torch.inf",
        "tests/factors/trees/test_matrix_tree.py",
    ),
    Mutant(
        "several roots may be decoded where there must be one",
        "factors/trees/decoding.py",
        "fine = rooted & possible & ((roots == 1) if single_root else (roots >= 1))",
        "fine = rooted & possible & (roots >= 1)",
        "tests/factors/trees/test_matrix_tree.py",
    ),
    Mutant(
        "a given arc does not exclude the other heads",
        "factors/trees/entropy.py",
        "own._allowed = torch.where(decided, taken, ~where)",
        "own._allowed = torch.where(decided, taken | ~where, ~where)",
        "tests/problems/parsing/test_graph.py",
    ),
    Mutant(
        "modifier lists are compared without those that were added",
        "problems/parsing/metrics/attachment.py",
        "spoiled = np.bincount(gold_at[wrong], minlength=n + 1) + np.bincount(predicted_at[wrong], "
        "minlength=n + 1)",
        "spoiled = np.bincount(gold_at[wrong], minlength=n + 1)",
        "tests/problems/parsing/test_attachment.py",
    ),
    Mutant(
        "a clock chooses kernels of attention in training",
        "unn/training/loop.py",
        "stack.enter_context(reproducible())",
        "stack.enter_context(reproducible(False))",
        "tests/unn/ops/attention/test_measure.py",
    ),
    Mutant(
        "a deterministic step takes less noise away than it should",
        "unn/diffusion/samplers.py",
        "x = straight + (after / now) ** (1 + rate) * (x - straight)",
        "x = straight + 0.9 * (after / now) ** (1 + rate) * (x - straight)",
        "tests/unn/diffusion/test_sampled_distributions.py tests/unn/diffusion/test_samplers.py",
    ),
    Mutant(
        "rounds of restarts do not grow with the steps",
        "unn/diffusion/schedule.py",
        "length = max(_SHORTEST, math.isqrt(steps))",
        "length = _SHORTEST",
        "tests/unn/diffusion/test_sampled_distributions.py",
    ),
    Mutant(
        "the linear estimate moves away from the data",
        "unn/diffusion/preconditioning.py",
        "mean + forces @ covariance,",
        "mean - forces @ covariance,",
        "tests/unn/diffusion/test_preconditioning.py",
    ),
    Mutant(
        "ranks of equal values are not spread",
        "unn/calibration.py",
        "return (below + place * (equal + 1)) / (samples.shape[1] + 1)",
        "return (below + place) / (samples.shape[1] + 1)",
        "tests/unn/test_calibration.py",
    ),
    Mutant(
        "entries of one variable have the domain of all",
        "unn/diffusion/coordinates.py",
        "    if variable.bounds is not None:\n        return EntryCoordinates",
        "    if False:\n        return EntryCoordinates",
        "tests/unn/diffusion/test_entry_bounds.py",
    ),
    Mutant(
        "embeddings are shared along axes whose bounds differ",
        "unn/graph/symmetries.py",
        "if not bool((along == along[:, :1]).all()):",
        "if False:",
        "tests/unn/graph/test_bounds.py",
    ),
    Mutant(
        "the density of positive numbers is that of the extrapolated network",
        "unn/diffusion/diffusion.py",
        "exact = torch.where(one_sided, within_reach, exact)",
        "exact = torch.where(one_sided, exact, exact)",
        "tests/unn/diffusion/test_density.py",
    ),
    Mutant(
        "energies of greedy orders take sums of messages that were not recorded",
        "unn/descent/trace.py",
        "torch.where(change == 0, 0, slope * change)",
        "slope * change",
        "tests/unn/descent/test_greedy_and_coloured.py",
    ),
    Mutant(
        "dropout of attention forgets the mask",
        "unn/recurrent/network.py",
        "self.dropout(_weights(logits, mask)) @ value",
        "self.dropout(_weights(logits, None)) @ value",
        "tests/unn/recurrent/test_network.py",
    ),
    Mutant(
        "combinations that an index makes equal count twice",
        "factors/constraints/table.py",
        "first.setdefault(tuple(categories), row)",
        "first[row, *categories] = row",
        "tests/factors/constraints/test_table.py",
    ),
    Mutant(
        "an axis of unknown size has size 0",
        "unn/graph/dynamic.py",
        "if None in shape:",
        "if False:",
        "tests/unn/solver/test_solve.py",
    ),
)


def main() -> int:
    """Plant every defect and report; 0 if all are caught."""
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, ignore=_ignored)
        for mutant in MUTANTS:
            caught = _caught(copy, mutant)
            print(f"{'caught  ' if caught else 'SURVIVED'}  {mutant.file}: {mutant.what}", flush=True)
            if not caught:
                survivors.append(mutant)
    print(f"{len(MUTANTS) - len(survivors)} of {len(MUTANTS)} defects caught")
    return 1 if survivors else 0


def _ignored(folder: str, names: list[str]) -> set[str]:
    """Nothing that the tests need; ``runs`` is a package as well as the folder of what was trained."""
    made = {
        "__pycache__",
        ".git",
        ".venv",
        ".hypothesis",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        "_build",
    }
    return made.union({"runs"} if Path(folder) == ROOT else ()).intersection(names)


def _caught(copy: Path, mutant: Mutant) -> bool:
    path = copy / mutant.file
    original = path.read_text()
    if original.count(mutant.old) != 1:
        raise SystemExit(
            f"{mutant.file}: the text to change occurs {original.count(mutant.old)} times: {mutant.old!r}"
        )
    path.write_text(original.replace(mutant.old, mutant.new))
    try:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "not package",
            *mutant.tests.split(),
        ]
        environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, check=False)
        return done.returncode == 1
    finally:
        path.write_text(original)


if __name__ == "__main__":
    sys.exit(main())
