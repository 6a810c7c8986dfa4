"""Linear layers on a CPU: their weights kept in the order in which oneDNN multiplies them."""

from __future__ import annotations

from typing import Any, Final

import torch

# What torch's own compiler calls where it freezes a model for a CPU; not in every build.
_PREPACK: Final[Any] = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
_LINEAR: Final[Any] = getattr(torch.ops.mkldnn, "_linear_pointwise", None)

_TOLERANCE: Final = 0.05
"""Of the largest number of a result: far above rounding, far below what a wrong order would give."""

_PACKED_TOKENS: Final = 1
"""For so many tokens oneDNN is asked for its order: of 1 to 512 the one that is fastest in full steps of the default
model, by a fifth, and as fast in small ones. Any order serves any number of tokens."""


class PrepackedLinear(torch.nn.Module):
    """A linear layer that has only the prepacked weight. It cannot be moved, trained or saved.

    torch brings a 16-bit weight into oneDNN's order in every call, which takes as long as multiplying a few tokens.

    Args:
        linear: what it takes the place of.
    """

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.bias = linear.bias
        # a plain attribute: no state that torch could move or save
        self._packed = _PREPACK(linear.weight.detach(), _PACKED_TOKENS)

    @property
    def weight(self) -> torch.Tensor:
        """A copy in torch's own order, for code that asks for it: `[out_features, in_features]`. O(weight)."""
        weight: torch.Tensor = self._packed.to_dense()
        return weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """`[..., in_features]` to `[..., out_features]`."""
        result: torch.Tensor = _LINEAR(inputs, self._packed, self.bias, "none", [], "")
        return result


@torch.inference_mode()
def prepack(model: torch.nn.Module) -> None:
    """Replace a model's linear layers on a CPU, subclasses apart, by prepacked ones.

    A weight that stands elsewhere in the model, too, as embeddings do that are tied to the output, stays there as it
    is, and its prepacked copy is memory besides. Layers stay as they are where torch has no oneDNN or will not prepack
    them on this machine, and where they would compute something else.
    """
    if _PREPACK is None or _LINEAR is None:
        return
    for module in tuple(model.modules()):
        for name, child in tuple(module.named_children()):
            if type(child) is torch.nn.Linear and child.weight.device.type == "cpu":
                packed = _prepacked(child)
                if packed is not None:
                    setattr(module, name, packed)


def _prepacked(plain: torch.nn.Linear) -> PrepackedLinear | None:
    """None unless it computes the same on one token, whose numbers are those of a row of the weight."""
    token = plain.weight[:1]
    expected = plain(token).float()
    try:
        packed = PrepackedLinear(plain)
        got = packed(token).float()
    except RuntimeError:  # what torch raises at a dtype that oneDNN does not take on this machine
        return None
    same = float((got - expected).abs().max()) <= _TOLERANCE * float(expected.abs().max())
    return packed if same else None
