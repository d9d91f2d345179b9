"""One block of a transformer, compiled for the CPU and run against torch."""

from __future__ import annotations

import sys

import numpy as np
import sglk
import torch
from torch.nn import functional


class Block(torch.nn.Module):
    """A residual around a norm and a gated MLP, written the way transformers writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.Parameter(torch.ones(64))
        self.gate, self.up = (torch.nn.Linear(64, 128, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(128, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.norm
        result: torch.Tensor = x + self.down(functional.silu(self.gate(h)) * self.up(h))
        return result


def main(path: str) -> None:
    torch.manual_seed(0)
    block, x = Block(), torch.randn(5, 64)
    dims = {"x": {0: "tokens"}}
    sglk.compile(block, (x,), output=path, dims=dims, dtype="fp32")
    with sglk.load_forward(path) as compiled, torch.no_grad():
        error = np.abs(compiled(x.numpy()) - block(x).numpy()).max()
    print(f"{path}: largest difference from torch {error:.1e}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "block.sglk")
