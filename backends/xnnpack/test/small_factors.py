"""A linear whose weight is the large product of two small factors, as of a low-rank update."""

import torch
from torch import nn
from torch.nn import functional as F


class SmallFactors(nn.Module):
    """[N, 512] to [N, 512]: 1 MiB of weight from 16 KiB of factors."""

    def __init__(self):
        super().__init__()
        self.A = nn.Parameter(torch.randn(4, 512))
        self.B = nn.Parameter(torch.randn(512, 4))

    def forward(self, x):
        return F.linear(x, self.B @ self.A)
