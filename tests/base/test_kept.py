"""What is kept of what was made."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from threading import Barrier, Thread

from hypothesis import given
from hypothesis import strategies as st

from edbc.base.kept import Kept

steps = st.lists(st.tuples(st.sampled_from(["add", "of", "get"]), st.integers(0, 5)), max_size=60)


@given(steps, st.integers(1, 4))
def test_it_holds_what_a_bounded_ordered_dict_holds(steps: list[tuple[str, int]], most: int) -> None:
    """The one added or used (by `of`) longest ago goes, `gone` is told, and what is found was made for its key."""
    gone: list[int] = []
    kept: Kept[int, int] = Kept(most, gone.append)
    expected: OrderedDict[int, int] = OrderedDict()
    for how, key in steps:
        if how == "get":
            assert kept.get(key) == expected.get(key)
        elif how == "of":
            assert kept.of(key, lambda key=key: -key) == expected.get(key, -key)  # type: ignore[misc]
            expected.setdefault(key, -key)
            expected.move_to_end(key)
        else:
            assert kept.add(key, 1 - key) == 1 - key
            expected[key] = 1 - key
        went = [expected.popitem(last=False)[0] for _ in range(len(expected) - most)]
        assert list(kept.items()) == list(expected.items())
        assert gone[len(gone) - len(went) :] == went


def test_threads_that_ask_at_once_make_one_entry() -> None:
    """Sixteen threads, one key: one is made, and all get it."""
    kept: Kept[str, object] = Kept(2)
    barrier, found = Barrier(16), []

    def ask() -> None:
        barrier.wait()
        found.append(kept.of("key", object))

    threads = [Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert len(set(map(id, found))) == 1


def test_copies_and_pickles_are_empty() -> None:
    """A net that travels takes its bounds along, and nothing that is kept."""
    kept: Kept[str, int] = Kept(3)
    kept.add("a", 1)
    for other in (pickle.loads(pickle.dumps(kept)), copy.deepcopy(kept), copy.copy(kept)):
        assert (type(other), other.most, len(other)) == (Kept, 3, 0)
