"""Prints what a model gives; ends as its first argument says."""

import os
import sys

import torch
from tiny_stack import Stack

layers = int(os.environ.get("LAYERS", "2"))
model = Stack(layers).eval()
with torch.no_grad():
    for length in (3, 5, 3):
        print(length, model.generate(torch.arange(16.0).repeat(1, length, 1)).sum().item())
    print(model(torch.ones(1, 3, 16)).sum().item())
print("argv", sys.argv[0], sys.argv[1:], "stdin", sys.stdin.readline().strip(), "forward" in vars(model.layers[0]))
how = sys.argv[1] if len(sys.argv) > 1 else "end"
if how == "raise":
    raise ValueError("on purpose")
if how != "end":
    sys.exit(int(how))
