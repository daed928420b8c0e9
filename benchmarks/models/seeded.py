"""Seeded weights, so that every run measures the same model and no file is downloaded."""

import torch
from torch import nn


def seeded(model: nn.Module, seed: int = 0) -> nn.Module:
    """Fills `model` with random weights that keep activations near unit variance; returns it in eval mode.

    Buffers keep their values, but for those of batch norms, which get a plausible mean and variance.
    """
    random = torch.Generator().manual_seed(seed)

    def normal(tensor: torch.Tensor, mean: float, std: float) -> None:
        tensor.copy_(mean + std * torch.randn(tensor.shape, generator=random))

    with torch.no_grad():
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if name == "weight" and parameter.dim() > 1:
                    normal(parameter, 0.0, _inputs_per_output(module) ** -0.5)
                elif name == "weight":
                    normal(parameter, 1.0, 0.1)
                else:
                    normal(parameter, 0.0, 0.1)
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                normal(module.running_mean, 0.0, 0.1)
                module.running_var.copy_(0.5 + torch.rand(module.running_var.shape, generator=random))
    return model.eval()


def _inputs_per_output(module: nn.Module) -> float:
    """How many inputs one output of a layer sums; strides of a transposed convolution thin them out."""
    weight = module.weight
    if not isinstance(module, (nn.ConvTranspose1d, nn.ConvTranspose2d)):
        return weight[0].numel()
    taps = weight[0, 0].numel()
    for stride in module.stride:
        taps /= stride
    return max(1.0, weight.shape[0] / module.groups * taps)
