"""Spins drawn in a second by our chains and by the package ``thrml``, on an Ising grid, on one thread.

    pip install thrml
    taskset -c 0 python -m tests.benchmarks.thrml_rival

Both draw the two colour classes of the grid in turn, all chains side by side, and are measured after
compilation, alternately. The mean product of neighbours of both is printed, so that neither draws something
else.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from tests.benchmarks.equilibrium import CHAINS, COUPLING, SIDE, grid
from tests.benchmarks.measure import one_thread
from unn.gibbs.chains import Chains

SWEEPS, REPEATS = 100, 10


def ours() -> Callable[[], float]:
    """A call that runs the sweeps and returns the mean product of neighbours."""
    chains = Chains(grid(SIDE), {}, 1, CHAINS, generator=torch.Generator().manual_seed(0))

    def run() -> float:
        chains.restart()
        for _ in range(SWEEPS):
            chains.sweep()
        x = chains.state.values["S"]
        return float((x[:, 1:] * x[:, :-1]).mean())

    return run


def theirs() -> Callable[[], float]:
    """The same by ``thrml``."""
    import jax
    import numpy as np
    from jax import numpy as jnp
    from thrml import Block, SamplingSchedule, SpinNode, sample_states
    from thrml.models import IsingEBM, IsingSamplingProgram, hinton_init

    nodes = [[SpinNode() for _ in range(SIDE)] for _ in range(SIDE)]
    flat = [node for row in nodes for node in row]
    edges = [(nodes[r][c], nodes[r + 1][c]) for r in range(SIDE - 1) for c in range(SIDE)]
    edges += [(nodes[r][c], nodes[r][c + 1]) for r in range(SIDE) for c in range(SIDE - 1)]
    model = IsingEBM(flat, edges, jnp.zeros(len(flat)), jnp.full(len(edges), COUPLING), jnp.array(1.0))
    classes = [
        Block([nodes[r][c] for r in range(SIDE) for c in range(SIDE) if (r + c) % 2 == colour])
        for colour in (0, 1)
    ]
    program = IsingSamplingProgram(model, classes, clamped_blocks=[])
    schedule = SamplingSchedule(n_warmup=SWEEPS, n_samples=1, steps_per_sample=1)
    state = hinton_init(jax.random.key(0), model, classes, (CHAINS,))

    @jax.jit
    def sweeps(keys, start):  # type: ignore[no-untyped-def]
        one = jax.vmap(lambda key, x: sample_states(key, program, schedule, x, [], [Block(flat)]))
        return one(keys, start)

    fresh = iter(range(1, 1000))

    def run() -> float:
        keys = jax.random.split(jax.random.key(next(fresh)), CHAINS)
        spins = np.asarray(sweeps(keys, state)[0]).reshape(CHAINS, SIDE, SIDE) * 2.0 - 1
        return float((spins[:, 1:] * spins[:, :-1]).mean())

    return run


if __name__ == "__main__":
    with one_thread():
        runs = {"ours": ours(), "thrml": theirs()}
        for run in runs.values():
            run()
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        products: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(REPEATS):
            for name, run in runs.items():
                started = time.perf_counter()
                products[name].append(run())
                seconds[name].append(time.perf_counter() - started)
        for name, times in seconds.items():
            rate = SIDE * SIDE * CHAINS * SWEEPS / min(times) / 1e6
            mean = sum(products[name]) / REPEATS
            print(f"{name}: {rate:.0f} million spins in a second, mean product of neighbours {mean:.4f}")
