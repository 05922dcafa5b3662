"""The Vision Transformer that jobs train, written in einops so that the patterns document the shapes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from einops.layers.torch import Rearrange
from torch import Tensor, nn

from vitprof.config.catalog import ModelPreset


class Attention(nn.Module):
    """Multi-head self-attention with a LayerNorm before it: (b, n, dim) -> (b, n, dim)."""

    def __init__(self, *, dim: int, heads: int, dim_head: int, scale: float) -> None:
        super().__init__()
        self.heads = heads
        self.scale = scale
        self.norm = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, 3 * heads * dim_head, bias=False)
        self.to_out = nn.Linear(heads * dim_head, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = rearrange(self.to_qkv(self.norm(x)), "b n (qkv h d) -> qkv b h n d", qkv=3, h=self.heads)
        mixed = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        out: Tensor = self.to_out(rearrange(mixed, "b h n d -> b n (h d)"))
        return out


class Block(nn.Module):
    """Pre-norm residual block: attention, then an MLP with GELU. (b, n, dim) -> (b, n, dim)."""

    def __init__(self, *, dim: int, heads: int, dim_head: int, mlp_dim: int, scale: float) -> None:
        super().__init__()
        self.attention = Attention(dim=dim, heads=heads, dim_head=dim_head, scale=scale)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, mlp_dim), nn.GELU(), nn.Linear(mlp_dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        out: Tensor = x + self.mlp(x)
        return out


class ViT(nn.Module):
    """A Vision Transformer: images (b, channels, image_size, image_size), float -> logits (b, classes).

    Attention logits are multiplied by `scale`: the article's model uses dim**-0.5, the usual value is dim_head**-0.5;
    `vitprof.config.catalog.MODELS` states it for each preset. No dropout, so that a seed fixes the run. Raises
    `ValueError` if `patch_size` does not divide `image_size`.
    """

    def __init__(self, preset: ModelPreset, *, image_size: int, channels: int, classes: int) -> None:
        super().__init__()
        patch_size, dim, mlp_dim = preset.patch_size, preset.dim, preset.mlp_dim
        if image_size % patch_size:
            raise ValueError(f"image_size {image_size} is not divisible by patch_size {patch_size}")
        self.to_patches = nn.Sequential(
            Rearrange("b c (h p1) (w p2) -> b (h w) (p1 p2 c)", p1=patch_size, p2=patch_size),
            nn.Linear(channels * patch_size**2, dim),
        )
        self.class_token = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, (image_size // patch_size) ** 2 + 1, dim) * 0.02)
        self.blocks = nn.Sequential(
            *(
                Block(dim=dim, heads=preset.heads, dim_head=preset.dim_head, mlp_dim=mlp_dim, scale=preset.scale)
                for _ in range(preset.depth)
            )
        )
        self.head = (
            nn.Sequential(nn.Linear(dim, mlp_dim), nn.GELU(), nn.Linear(mlp_dim, classes))
            if preset.head == "mlp"
            else nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, classes))
        )

    def forward(self, images: Tensor) -> Tensor:
        x = self.to_patches(images)
        token = repeat(self.class_token, "1 1 d -> b 1 d", b=len(x))
        x = self.blocks(torch.cat([token, x], dim=1) + self.positions)
        logits: Tensor = self.head(x[:, 0])
        return logits


AUTOCAST: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""`RunConfig.precision` -> the type that autocast computes matrix products in. tf32 is missing because it is not a
type of its own: it is float32 with products of lower precision."""
