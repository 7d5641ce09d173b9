"""Arc-standard transitions: how a parser reaches a dependency tree word by word.

Definitions (Nivre, "Algorithms for Deterministic Incremental Dependency Parsing", Computational Linguistics 34(4),
2008, section 4.1).

(1) A configuration is a stack and a buffer of words; at first the stack holds the root, word 0, and the buffer the
    words 1 to n in order.
(2) SHIFT moves the buffer's first word onto the stack. LEFT takes the second word off the stack, a dependent of the
    first; RIGHT takes the first off, a dependent of the second.
(3) A sentence of n words takes 2n transitions: each word is shifted once and taken off once.
(4) A tree can be reached exactly when it is projective: no arc runs over a word that does not depend on one of the
    arc's ends, directly or not.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

SHIFT, LEFT, RIGHT = range(3)


def find_transitions(heads: Sequence[int]) -> list[int] | None:
    """Transitions to the tree in which word i (from 1) depends on `heads[i - 1]`; None when there are none, see (4).

    The static oracle: LEFT or RIGHT as soon as the word taken off has all its dependents, else SHIFT. O(n).

    >>> find_transitions([2, 0])
    [0, 0, 1, 2]
    """
    head = [0, *heads]
    num_missing = [0] * len(head)
    for dependent_head in heads:
        num_missing[dependent_head] += 1
    stack, following, transitions = [0], 1, []
    while following < len(head) or len(stack) > 1:
        transition = _next_transition(stack, head, num_missing)
        if transition == SHIFT:
            if following == len(head):
                return None
            stack.append(following)
            following += 1
        else:
            taken = stack.pop(-2 if transition == LEFT else -1)
            num_missing[head[taken]] -= 1
        transitions.append(transition)
    return transitions


def _next_transition(stack: list[int], head: list[int], num_missing: list[int]) -> int:
    if len(stack) < 2:
        return SHIFT
    first, second = stack[-1], stack[-2]
    if second and head[second] == first and not num_missing[second]:
        return LEFT
    if head[first] == second and not num_missing[first]:
        return RIGHT
    return SHIFT


def follow(transitions: Sequence[int]) -> Iterator[tuple[list[int], int]]:
    """Stack and the buffer's first word before each transition. The stack is the same list every time."""
    stack, following = [0], 1
    for transition in transitions:
        yield stack, following
        if transition == SHIFT:
            stack.append(following)
            following += 1
        else:
            stack.pop(-2 if transition == LEFT else -1)


def sample_heads(num_words: int, rng: random.Random) -> list[int]:
    """A made-up projective tree: every stretch of words has a head, with dependents close to it on either side."""
    heads = [0] * num_words

    def attach(first: int, last: int, head: int) -> None:
        """Words first..last: one of them depends on `head`, the others on it, in stretches of their own."""
        stretches = [(first, last, head)]
        while stretches:
            low, high, above = stretches.pop()
            middle = rng.randint(low, high)
            heads[middle - 1] = above
            stretches += [(a, b, middle) for a, b in _cut(low, middle - 1, rng) + _cut(middle + 1, high, rng)]

    attach(1, num_words, 0)
    return heads


def _cut(first: int, last: int, rng: random.Random) -> list[tuple[int, int]]:
    """Stretches first..last falls into, of any length."""
    stretches = []
    while first <= last:
        end = rng.randint(first, last)
        stretches.append((first, end))
        first = end + 1
    return stretches
