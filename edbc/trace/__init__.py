"""Runs the user's Python on stand-ins for tensors and makes graphs of what it did; knows torch, and nothing of policies."""
