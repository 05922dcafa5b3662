"""Types other than float32 that training computes in."""

from __future__ import annotations

import torch

AUTOCAST: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""`RunConfig.precision` -> the type that autocast computes matrix products in. tf32 is missing because it is not a
type of its own: it is float32 with products of lower precision."""
