"""`hifigemm bench --calibrate FILE`: rates of the current GPU, in a file that ``HIFIGEMM_RATES`` may name."""

from __future__ import annotations

from pathlib import Path

from hifigemm.bench.arrays import cuda_is_usable
from hifigemm.cli.atomic import check_writable, replacing
from hifigemm.cli.errors import InputError
from hifigemm.engines.rates_file import as_json

__all__ = ["calibrate"]


def calibrate(path: Path) -> None:
    """Measure, write and print the rates of the current GPU.

    Raises
    ------
    InputError
        There is no CUDA device, or the file cannot be written.
    """
    if not cuda_is_usable():
        raise InputError("bench --calibrate measures a CUDA device, and there is none")
    import torch

    from hifigemm.engines.calibration import measure

    check_writable(path)
    rates = measure(torch.device("cuda", torch.cuda.current_device()))
    with replacing(path) as file:
        file.write(as_json(rates).encode())
    print(f"{rates}\nHIFIGEMM_RATES={path} makes products on {rates.gpu} use these rates")
