"""Runs the user's Python on stand-ins for tensors and makes graphs of it; knows torch, and nothing of policies."""
