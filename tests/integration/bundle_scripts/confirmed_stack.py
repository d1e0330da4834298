"""Prints what a model gives, and the time, which no two runs have in common."""

import time

import torch
from tiny_stack import Stack

model = Stack().eval()
print("at", time.time())
with torch.no_grad():
    for length in (3, 5, 3):
        print(length, model(torch.arange(16.0).repeat(1, length, 1)).sum().item())
