"""Types that training computes in where they are not float32."""

from __future__ import annotations

import torch

AUTOCAST: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""By `RunConfig.precision`: what autocast turns products into. tf32 is no type: float32 with shorter products."""
