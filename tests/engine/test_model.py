"""The ViT: its size, its shapes, its attention, its precision."""

from __future__ import annotations

import pytest
import torch

from vitprof.config.catalog import MODELS, model_preset
from vitprof.engine.model import Attention, ViT


def tiny() -> ViT:
    torch.manual_seed(0)
    return ViT(MODELS["tiny"], image_size=28, channels=1, classes=10)


def parameters(model: ViT) -> int:
    return sum(p.numel() for p in model.parameters())


def test_tiny_has_the_parameters_of_the_article() -> None:
    dim, mlp, inner, tokens = 64, 128, 8 * 8, 16 + 1  # as in the article
    patches = 7 * 7 * dim + dim
    attention = 2 * dim + dim * 3 * inner + inner * dim + dim
    block = attention + 2 * dim + dim * mlp + mlp + mlp * dim + dim
    head = dim * mlp + mlp + mlp * 10 + 10
    assert parameters(tiny()) == patches + dim + tokens * dim + 6 * block + head == 213_642


@pytest.mark.parametrize(
    ("name", "deit"),
    [("ti/16", 5_717_416), ("s/16", 22_050_664), ("b/16", 86_567_656)],  # timm's deit_*_patch16_224
)
def test_the_others_have_the_parameters_of_deit(name: str, deit: int) -> None:
    preset = model_preset(name)
    with torch.device("meta"):  # shapes only
        model = ViT(preset, image_size=224, channels=3, classes=1000)
        logits = model(torch.empty(2, 3, 224, 224))
    assert parameters(model) == deit - preset.depth * 3 * preset.dim  # q, k and v have no bias here
    assert logits.shape == (2, 1000)


@pytest.mark.parametrize("batch", [1, 3])
def test_images_to_logits(batch: int) -> None:
    assert tiny()(torch.randn(batch, 1, 28, 28)).shape == (batch, 10)


def test_patches_are_cut_row_by_row() -> None:
    image = torch.arange(28 * 28.0).reshape(1, 1, 28, 28)
    patches = tiny().to_patches[0](image)
    assert patches.shape == (1, 16, 49)
    assert torch.equal(patches[0, 0], image[0, 0, :7, :7].flatten())
    assert torch.equal(patches[0, 5], image[0, 0, 7:14, 7:14].flatten())


@pytest.mark.parametrize(("name", "scale"), [("tiny", 64**-0.5), ("ti/16", 64**-0.5)])
def test_attention_is_softmax_with_the_stated_scale(name: str, scale: float) -> None:
    preset = model_preset(name)
    assert preset.scale == scale
    torch.manual_seed(1)
    heads, dim_head = preset.heads, preset.dim_head
    layer = Attention(dim=preset.dim, heads=heads, dim_head=dim_head, scale=preset.scale)
    x = torch.randn(2, 5, preset.dim)

    def plain(by: float) -> torch.Tensor:
        q, k, v = layer.to_qkv(layer.norm(x)).reshape(2, 5, 3, heads, dim_head).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-1, -2) * by, dim=-1)
        return layer.to_out((weights @ v).transpose(1, 2).reshape(2, 5, heads * dim_head))

    assert torch.allclose(layer(x), plain(scale), atol=1e-5)
    assert not torch.allclose(layer(x), plain(2 * scale), atol=1e-3)  # the scale is not without effect


def test_tiny_has_the_scale_of_the_article_and_not_the_usual_one() -> None:
    assert MODELS["tiny"].scale == MODELS["tiny"].dim ** -0.5 != MODELS["tiny"].dim_head ** -0.5
    assert all(m.scale == m.dim_head**-0.5 for m in MODELS.values() if m.name != "tiny")


def test_same_seed_same_weights() -> None:
    first, second = tiny(), tiny()
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_every_parameter_learns() -> None:
    model = tiny()
    model(torch.randn(4, 1, 28, 28)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_bf16_stays_near_fp32() -> None:
    model, images = tiny(), torch.randn(8, 1, 28, 28)
    full = model(images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model(images)
    assert half.dtype == torch.bfloat16
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert torch.allclose(half.float(), full, atol=0.05)
    assert not torch.equal(half.float(), full)


def test_image_that_no_patch_grid_fits() -> None:
    with pytest.raises(ValueError, match="30 is not divisible by patch_size 7"):
        ViT(MODELS["tiny"], image_size=30, channels=1, classes=10)
