"""Measures the machine while a job runs: the GPU through NVML, everything else through psutil.

No torch.
"""
