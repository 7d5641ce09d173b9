"""Where there is no GPU, Triton interprets its kernels; the switch must be set before anything imports Triton."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
