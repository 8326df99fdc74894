"""The model of the engine: a mixture of kernels around stored examples."""

import torch

from unn.extending import ConditionalModel, Frames


class Neighbours(ConditionalModel):
    def __init__(self, graph, options, sizes):
        super().__init__(Frames(graph))
        numbers = self.frames.at(**sizes).numbers
        self.register_buffer("memory", torch.zeros(options.stored, numbers))
        self.log_bandwidth = torch.nn.Parameter(torch.tensor(options.bandwidth).log())

    def prepare(self, values, **sizes):
        super().prepare(values, **sizes)
        frame = self.frames.at(**sizes)
        rows = self._standard(frame.flatten(values), frame)
        self.memory.copy_(rows[torch.arange(len(self.memory)) % len(rows)])

    def log_kernels(self, rows, mask):
        """Logarithm of the kernel of each stored example, shape (batch, stored)."""
        squares = ((rows[:, None] - self.memory) ** 2 * mask[:, None]).sum(2)
        return -squares / (2 * self.log_bandwidth.exp() ** 2) - mask.sum(1, keepdim=True) * self.log_bandwidth

    def loss(self, values, observed, **sizes):
        clean, condition = self.example(values, observed, **sizes)
        weights = self.log_kernels(clean, condition.numbers).log_softmax(1)
        return -torch.logsumexp(weights + self.log_kernels(clean, ~condition.numbers), 1).mean()

    def drawing(self, options, trace):
        self.refuse(steps=options.steps, sampler=options.sampler, spacing=options.spacing, trace=trace)

        def draw(batch, generators):
            weights = self.log_kernels(batch.rows, batch.numbers).softmax(1)
            draws = [
                torch.multinomial(w, 1, generator=g)
                for w, g in zip(weights, generators or [None] * len(weights))
            ]
            return torch.where(batch.numbers, batch.rows, self.memory[torch.cat(draws)])

        return draw
