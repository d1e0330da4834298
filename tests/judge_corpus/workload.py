"""Run every module of the corpus over six inputs of different batch and length, and print a checksum.

python workload.py
python workload.py --dtype bfloat16
"""

import argparse

import modules
import torch
from torch import nn


class Everything(nn.Module):
    """One instance of each module, each with inputs of its own."""

    def __init__(self, dtype):
        super().__init__()
        self.parts = nn.ModuleDict({name: modules.made(kind, dtype) for name, kind in modules.TARGETS.items()})

    def forward(self, given):
        return {name: part(*given[name][0], **given[name][1]) for name, part in self.parts.items()}


def total(value):
    """The sum of magnitudes of all numbers that are numbers, over everything nested."""
    if isinstance(value, torch.Tensor):
        return float(value.double().nan_to_num().abs().sum())
    if isinstance(value, dict):
        value = tuple(value.values())
    return sum(map(total, value)) if isinstance(value, tuple) else float(value)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    dtype = getattr(torch, parser.parse_args().dtype)
    model = Everything(dtype).eval()
    calls = {name: modules.calls_of(kind, dtype) for name, kind in modules.TARGETS.items()}
    with torch.no_grad():
        for index in range(len(modules.SIZES)):
            result = model({name: listed[index] for name, listed in calls.items()})
            print(f"{index}: {total(result):.6g}")


if __name__ == "__main__":
    main()
