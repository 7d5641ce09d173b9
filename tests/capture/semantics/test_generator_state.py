"""Threads that ask for the state of torch's generator while garbage is collected: nobody waits for ever."""

from __future__ import annotations

import subprocess
import sys

THREADS = """
import gc, sys, threading, time
from edbc.capture.semantics.randomness import state_of_generator


class Slow:
    def __del__(self):
        time.sleep(0.0005)


def ask():
    for _ in range(1000):
        circle = Slow()
        circle.itself = circle
        del circle
        state_of_generator()


gc.set_threshold(5, 2, 2)
sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(60)
print("waiting" if any(thread.is_alive() for thread in threads) else "ended", flush=True)
import os
os._exit(0)
"""


def test_nobody_waits_for_the_generator_with_pythons_lock() -> None:
    """Collections run Python that lets go of its lock. With `torch.default_generator.get_state` itself they wait."""
    ran = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=120)

    assert ran.stdout.split() == ["ended"], ran.stderr
