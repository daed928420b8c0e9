"""One activation is fused into an operator; what follows it stays."""

import torch
from executorch.backends.xnnpack.test.lowered import lower
from torch import nn
from torch.nn import functional as F


class Chains(nn.Module):
    """Clamps behind clamps, behind every kind of operator that takes one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.deconvolution = nn.ConvTranspose2d(3, 3, 4, 2, 1, groups=3)
        self.linear = nn.Linear(5, 5)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> list:
        y = self.conv(x)
        return [
            F.hardtanh(self.conv(x), -0.5, 0.5).relu(),
            self.conv(x).clamp(-0.5, -0.1).relu(),
            F.hardtanh(F.relu(self.norm(self.conv(x)).clamp(0.1, 0.5)), 0.2, 0.4),
            F.relu6(self.deconvolution(x).clamp(-0.3, 0.2)),
            F.relu(self.linear(x).clamp(-0.5, 0.3)),
            (y + y.sigmoid()).clamp(-0.2, 0.3).relu(),
            (y * y.sigmoid()).relu().clamp(-1, 0.3).relu(),
        ]


def test_clamps_behind_clamps():
    torch.manual_seed(0)
    model, x = Chains().eval(), 2 * torch.randn(1, 3, 6, 5)
    lowered = lower(model, (x,))
    assert not lowered.outside()
    for actual, expected in zip(lowered.run(x), model(x), strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)
    # Of every chain the first is fused, and what follows is left: one each, two of the third.
    assert lowered.census()["XNNClamp"] == 8
