"""Options of the engine ``gibbs``; importing them does not load torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import ArgumentError, suggest, whole_number
from ..ranges import check_ranges

LOSSES = (
    "persistent",
    "contrastive",
    "pseudolikelihood",
    "likelihood",
    "energy-discrepancy",
    "score-matching",
)


@dataclass(frozen=True)
class GibbsOptions:
    """Options of the engine ``gibbs``.

    Attributes:
        chains: Number of chains for each query.
        burn_in: Sweeps over all variables before the first draw; a sample on the command line is the state of
            a chain of its own after as many.
        chain_draws: Draws of each chain.
        thinning: Sweeps from one draw to the next.
        tempering: Number of couplings of variables from 0 to 1 between which states are exchanged (parallel
            tempering), for energies with several modes; 1 for plain chains.
        temperature: Temperature of exp(-E / temperature).
        learning: What training maximises: the likelihood, with chains that persist from step to step
            ("persistent") or start at the examples ("contrastive"), or exactly ("likelihood", for graphs that
            the engine exact serves); or the product of the probabilities of each variable given all others
            ("pseudolikelihood"). "energy-discrepancy" and "score-matching" minimise distances that need no
            partition function: between energies of examples and of noisy copies, and of the slopes of
            log-densities, of real variables.
        learning_sweeps: Sweeps of the chains in a training step; at least 10 of latent variables that
            interact, which start anew for each batch.
        noise: For "energy-discrepancy", probability with which a noisy copy draws a discrete node anew, and
            standard deviation of the noise of real variables.
        copies: Noisy copies of each example.
    """

    chains: int = 64
    burn_in: int = 200
    chain_draws: int = 100
    thinning: int = 1
    tempering: int = 1
    temperature: float = 1.0
    learning: Literal[
        "persistent", "contrastive", "pseudolikelihood", "likelihood", "energy-discrepancy", "score-matching"
    ] = "persistent"
    learning_sweeps: int = 1
    noise: float = 0.2
    copies: int = 16

    def check(self, where: str) -> None:
        """Check the ranges.

        Raises:
            ArgumentError: for an option that is out of range, with its name.
        """
        counts = {
            "chains": (self.chains, 1, 10**7),
            "burn_in": (self.burn_in, 0, 10**9),
            "chain_draws": (self.chain_draws, 1, 10**9),
            "thinning": (self.thinning, 1, 10**6),
            "tempering": (self.tempering, 1, 1000),
            "learning_sweeps": (self.learning_sweeps, 1, 10**6),
            "copies": (self.copies, 1, 10**6),
        }
        numbers = {"temperature": (self.temperature, 1e-6, 1e6), "noise": (self.noise, 1e-6, 1e6)}
        check_ranges(where, {**counts, **numbers})
        for name, (value, _, _) in counts.items():
            whole_number(f"{where}: option {name}", value, 0, ArgumentError)
        if self.learning not in LOSSES:
            raise ArgumentError(
                f"{where}: learning={self.learning!r} is unknown.{suggest(self.learning, LOSSES)}"
            )
