"""Sieve with powers that are zero where nothing is open; an empty row divides zero by zero."""

import torch


def forward(module, state, scores, opened):
    sharp = scores.float() * module.sharpness.float()
    largest = torch.where(opened, sharp, float("-inf")).amax(-1, keepdim=True)
    powers = torch.where(opened, torch.exp(sharp - largest.nan_to_num(neginf=0.0)), 0.0)
    return (powers / powers.sum(-1, keepdim=True)).to(scores.dtype)
